#include "base/time.hpp"

#include <gtest/gtest.h>

namespace ringway {
namespace {

TEST(Duration, UnitsAreNanoseconds) {
  EXPECT_EQ(Duration::nanoseconds(7).ns, 7);
  EXPECT_EQ(Duration::microseconds(7).ns, 7'000);
  EXPECT_EQ(Duration::milliseconds(7).ns, 7'000'000);
  EXPECT_EQ(Duration::seconds(-7).ns, -7'000'000'000);
}

TEST(Duration, TooLongUnitsSaturate) {
  EXPECT_EQ(Duration::seconds(9'223'372'036).ns, 9'223'372'036'000'000'000);
  EXPECT_EQ(Duration::seconds(9'223'372'037).ns, INT64_MAX);
  EXPECT_EQ(Duration::seconds(-9'223'372'037).ns, INT64_MIN);
  EXPECT_EQ(Duration::milliseconds(INT64_MAX).ns, INT64_MAX);
  EXPECT_EQ(Duration::microseconds(INT64_MIN).ns, INT64_MIN);
}

TEST(Duration, SumsAndDifferencesSaturate) {
  const Duration longest{INT64_MAX};
  const Duration most_negative{INT64_MIN};
  EXPECT_EQ((Duration{3} + Duration{4}).ns, 7);
  EXPECT_EQ((Duration{3} - Duration{4}).ns, -1);
  EXPECT_EQ(longest + Duration{1}, longest);
  EXPECT_EQ(most_negative + Duration{-1}, most_negative);
  EXPECT_EQ(Duration{0} - most_negative, longest);
  EXPECT_EQ(most_negative - Duration{1}, most_negative);
}

TEST(Instant, AVeryLongTimeFromNowIsNever) {
  const Instant now{1'000'000};
  EXPECT_EQ(now + Duration{INT64_MAX - 1'000'000}, Instant::never());
  EXPECT_EQ(now + Duration{INT64_MAX}, Instant::never());
  EXPECT_EQ(Instant::never() + Duration{1}, Instant::never());
  EXPECT_LT(now + Duration{INT64_MAX - 1'000'001}, Instant::never());
}

TEST(Instant, OverflowIntoThePastStaysInThePast) {
  EXPECT_EQ((Instant{-2} + Duration{INT64_MIN}).ns, INT64_MIN);
  EXPECT_LT(Instant{-2} + Duration{INT64_MIN}, Instant{-2});
}

TEST(Instant, DifferenceOfInstantsIsADuration) {
  EXPECT_EQ(Instant{12} - Instant{5}, Duration{7});
  EXPECT_EQ(Instant{5} - Instant{12}, Duration{-7});
  EXPECT_EQ(Instant::never() - Instant{-1}, Duration{INT64_MAX});
  EXPECT_EQ(Instant{INT64_MIN} - Instant{1}, Duration{INT64_MIN});
}

TEST(Instant, OrdersByTime) {
  EXPECT_LT(Instant{1}, Instant{2});
  EXPECT_GT(Instant::never(), Instant{INT64_MAX - 1});
}

}  // namespace
}  // namespace ringway
