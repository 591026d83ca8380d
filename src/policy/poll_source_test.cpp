#include "policy/poll_source.hpp"

#include <gtest/gtest.h>

#include "base/prng.hpp"

namespace ringway {
namespace {

TEST(GapStatistics, BucketsFollowOneAnotherWithoutHoles) {
  for (std::size_t bucket = 0; bucket < GapStatistics::kBuckets; ++bucket) {
    const std::int64_t start = GapStatistics::start_of(bucket);
    EXPECT_EQ(GapStatistics::bucket_of(start), bucket);
    if (bucket > 0) {
      EXPECT_EQ(GapStatistics::bucket_of(start - 1), bucket - 1);
    }
  }
  EXPECT_EQ(GapStatistics::bucket_of(GapStatistics::kLongestNs), GapStatistics::kBuckets - 1);
  EXPECT_EQ(GapStatistics::bucket_of(INT64_MAX), GapStatistics::kBuckets - 1);
}

TEST(GapStatistics, CountsGapsWhereTheyBelongAndForgetsOldOnes) {
  GapStatistics gaps;
  EXPECT_EQ(gaps.total(), 0U);
  for (int i = 0; i < 100; ++i) {
    gaps.add(10'000);
  }
  const std::size_t ten_us = GapStatistics::bucket_of(10'000);
  EXPECT_EQ(gaps.weight(ten_us), gaps.total());
  for (int i = 0; i < 1'000; ++i) {
    gaps.add(500'000);
  }
  EXPECT_LE(gaps.weight(ten_us) * 100, gaps.total());
  gaps.check_invariants();
}

TEST(GapStatistics, IsKnownAfterSixteenGaps) {
  GapStatistics gaps;
  for (int i = 0; i < 15; ++i) {
    gaps.add(1'000);
    ASSERT_FALSE(gaps.is_known());
  }
  gaps.add(1'000);
  EXPECT_TRUE(gaps.is_known());
}

TEST(GapStatistics, OneOddGapMovesTheMeanByAnEighthAtMost) {
  GapStatistics gaps;
  for (int i = 0; i < 50; ++i) {
    gaps.add(80'000);
  }
  EXPECT_EQ(gaps.mean().mean(), 80'000);
  gaps.add(INT64_MAX);
  EXPECT_EQ(gaps.mean().mean(), 90'000);
  gaps.add(INT64_MIN);
  EXPECT_GE(gaps.mean().mean(), 70'000);
  gaps.check_invariants();
}

TEST(GapStatistics, FollowsAChangeInEitherDirection) {
  GapStatistics gaps;
  for (int i = 0; i < 100; ++i) {
    gaps.add(0);
  }
  EXPECT_EQ(gaps.mean().mean(), 0);
  for (int i = 0; i < 100; ++i) {
    gaps.add(100'000);
  }
  EXPECT_NEAR(static_cast<double>(gaps.mean().mean()), 100'000, 5'000);
  for (int i = 0; i < 100; ++i) {
    gaps.add(1'000);
  }
  EXPECT_NEAR(static_cast<double>(gaps.mean().mean()), 1'000, 100);
}

TEST(GapStatistics, SteadyIsWhatVariesLittleAndHasNoSecondKind) {
  Prng prng(1);
  GapStatistics steady;
  GapStatistics loose;
  GapStatistics two_kinds;
  GapStatistics few_odd;
  for (int i = 0; i < 200; ++i) {
    steady.add(100'000 + static_cast<std::int64_t>(prng.below(6'000)));
    loose.add(50'000 + static_cast<std::int64_t>(prng.below(100'000)));
    two_kinds.add(i % 5 == 0 ? 1'000'000 : 100'000);
    few_odd.add(i % 50 == 0 ? 1'000'000 : 100'000);
  }
  EXPECT_TRUE(steady.mean().is_steady());
  EXPECT_FALSE(loose.mean().is_steady());
  EXPECT_FALSE(two_kinds.mean().is_steady());
  EXPECT_TRUE(few_odd.mean().is_steady());
  EXPECT_FALSE(RobustMean{}.is_steady());
}

TEST(GapStatisticsProperty, KeepsItsInvariantsWithAnyInput) {
  Prng prng(2);
  GapStatistics gaps;
  for (int i = 0; i < 100'000; ++i) {
    const auto any = static_cast<std::int64_t>(prng.next());
    gaps.add(prng.chance(1, 4) ? any : any >> prng.below(63));
    gaps.check_invariants();
    ASSERT_LE(gaps.mean().mean(), GapStatistics::kLongestNs);
  }
}

TEST(PollSource, MeasuresFromTheFirstEmptyLookToTheNextWork) {
  PollSource source;
  source.idle(Instant{1'000}, false);
  source.idle(Instant{5'000}, true);  // still waiting: neither the time nor the state changes
  EXPECT_TRUE(source.is_waiting());
  EXPECT_FALSE(source.in_flight());
  EXPECT_EQ(source.since(), Instant{1'000});
  source.found(Instant{11'000});
  EXPECT_FALSE(source.is_waiting());
  EXPECT_EQ(source.gaps(false).mean().mean(), 10'000);
  source.found(Instant{90'000});  // busy: no gap
  EXPECT_EQ(source.gaps(false).mean().mean(), 10'000);
  EXPECT_EQ(source.gaps(true).total(), 0U);
}

TEST(PollSource, KeepsGapsWithRequestsInFlightApart) {
  PollSource source;
  for (std::int64_t i = 0; i < 20; ++i) {
    source.idle(Instant{i * 100'000}, true);
    source.found(Instant{i * 100'000 + 80'000});
    source.idle(Instant{i * 100'000 + 81'000}, false);
    source.found(Instant{i * 100'000 + 90'000});
  }
  EXPECT_EQ(source.gaps(true).mean().mean(), 80'000);
  EXPECT_EQ(source.gaps(false).mean().mean(), 9'000);
  // Only requests make the period.
  EXPECT_EQ(source.period().mean(), 100'000);
  EXPECT_EQ(source.last_arrival(), Instant{1'990'000});
}

TEST(PollSource, ClockThatGoesBackMakesGapsOfZero) {
  PollSource source;
  source.idle(Instant{1'000'000}, false);
  source.found(Instant{5});
  EXPECT_EQ(source.gaps(false).mean().mean(), 0);
  source.idle(Instant{INT64_MAX}, false);
  source.found(Instant{INT64_MIN});
  EXPECT_EQ(source.gaps(false).mean().mean(), 0);
  source.gaps(false).check_invariants();
  source.period().check_invariants();
}

TEST(PollSource, TellsOnceThatItIsFreshAndReturnsWithWork) {
  PollSource source;
  EXPECT_FALSE(source.take_fresh());
  source.idle(Instant{1}, false);
  source.leave();
  EXPECT_TRUE(source.has_left());
  source.found(Instant{2});
  EXPECT_FALSE(source.has_left());
  EXPECT_TRUE(source.take_fresh());
  EXPECT_FALSE(source.take_fresh());
}

}  // namespace
}  // namespace ringway
