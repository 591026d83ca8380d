#include "sim/gaps.hpp"

#include <gtest/gtest.h>

namespace ringway {
namespace {

constexpr int kDraws = 20'000;

TEST(Gaps, ConstantIsConstant) {
  Prng prng(1);
  const Gap gap = constant_gap(Duration::microseconds(7));
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(gap(Instant{i}, prng), Duration::microseconds(7));
  }
}

TEST(Gaps, UniformStaysWithinItsEndsAndReachesBoth) {
  Prng prng(2);
  const Gap gap = uniform_gap(Duration{10}, Duration{13});
  bool saw_min = false;
  bool saw_max = false;
  for (int i = 0; i < kDraws; ++i) {
    const Duration drawn = gap({}, prng);
    ASSERT_GE(drawn.ns, 10);
    ASSERT_LE(drawn.ns, 13);
    saw_min |= drawn.ns == 10;
    saw_max |= drawn.ns == 13;
  }
  EXPECT_TRUE(saw_min && saw_max);
}

TEST(Gaps, PoissonHasItsMeanAndAsManyShortGapsAsItShould) {
  Prng prng(3);
  const Gap gap = poisson_gap(Duration::microseconds(10));
  double sum = 0;
  int shorter_than_mean = 0;
  for (int i = 0; i < kDraws; ++i) {
    const Duration drawn = gap({}, prng);
    ASSERT_GE(drawn.ns, 0);
    sum += static_cast<double>(drawn.ns);
    shorter_than_mean += drawn.ns < 10'000 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kDraws, 10'000, 300);
  EXPECT_NEAR(static_cast<double>(shorter_than_mean) / kDraws, 0.632, 0.015);
}

TEST(Gaps, OnOffPutsWhatFallsIntoThePauseAtItsEnd) {
  Prng prng(4);
  const Gap gap = on_off_gap(constant_gap(Duration{10}), Duration{35}, Duration{100});
  Instant now;
  const std::int64_t expected[] = {10, 20, 30, 135, 145, 155, 165, 270};
  for (const std::int64_t at : expected) {
    now = now + gap(now, prng);
    ASSERT_EQ(now.ns, at);
  }
}

TEST(Gaps, TwoPhasesTakeTurns) {
  Prng prng(5);
  const Gap gap = two_phase_gap(constant_gap(Duration{1}), constant_gap(Duration{2}), Duration{100});
  EXPECT_EQ(gap(Instant{99}, prng).ns, 1);
  EXPECT_EQ(gap(Instant{100}, prng).ns, 2);
  EXPECT_EQ(gap(Instant{200}, prng).ns, 1);
}

TEST(Gaps, NoMoreEndsTheSource) {
  Prng prng(6);
  EXPECT_EQ(Instant{1} + no_more()(Instant{1}, prng), Instant::never());
}

}  // namespace
}  // namespace ringway
