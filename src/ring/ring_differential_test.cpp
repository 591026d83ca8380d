#include "ring/ring_differential.hpp"

#include <gtest/gtest.h>

#include "base/prng.hpp"

namespace ringway::testing {
namespace {

std::vector<std::uint8_t> random_bytes(std::uint64_t seed, bool hostile) {
  Prng prng(seed);
  std::vector<std::uint8_t> bytes(1 + prng.below(4000));
  for (std::uint8_t& byte : bytes) {
    byte = static_cast<std::uint8_t>(prng.next());
  }
  bytes[0] = hostile ? 1 : 0;
  return bytes;
}

// A failing seed ends the process with the place in the harness; the trace names the seed.
TEST(RingDifferential, SplitPackedAndModelAgree) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RecordProperty("seed", static_cast<int>(seed));
    run_ring_bytes(random_bytes(seed, false));
  }
}

TEST(RingDifferential, HostileDriverIsSurvived) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    run_ring_bytes(random_bytes(seed, true));
  }
}

}  // namespace
}  // namespace ringway::testing
