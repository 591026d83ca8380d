#include "ring/ring_differential.hpp"

#include <gtest/gtest.h>

#include "base/fence.hpp"
#include "base/prng.hpp"

namespace ringway::testing {
namespace {

// One thread, so ThreadSanitizer has little to find here and takes twenty times as long.
#ifdef RINGWAY_TSAN
constexpr std::uint64_t kSlowdown = 20;
#else
constexpr std::uint64_t kSlowdown = 1;
#endif

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
  for (std::uint64_t seed = 0; seed < 400 / kSlowdown; ++seed) {
    RecordProperty("seed", static_cast<int>(seed));
    run_ring_bytes(random_bytes(seed, false));
  }
}

TEST(RingDifferential, HostileDriverIsSurvived) {
  for (std::uint64_t seed = 0; seed < 1500 / kSlowdown; ++seed) {
    run_ring_bytes(random_bytes(seed, true));
  }
}

}  // namespace
}  // namespace ringway::testing
