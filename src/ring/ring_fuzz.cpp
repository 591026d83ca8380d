// libFuzzer target: see ring_differential.hpp for what the bytes mean.
#include "ring/ring_differential.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  ringway::testing::run_ring_bytes({data, bytes});
  return 0;
}
