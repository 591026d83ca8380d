#include "base/result.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

#include "base/check.hpp"

namespace ringway {
namespace {

Result<int> number(bool good) {
  if (!good) {
    return fail_errno(ENOENT, "cannot open disk.img");
  }
  return 7;
}

Result<> nothing(bool good) {
  if (!good) {
    return fail("the queue is full");
  }
  return {};
}

Result<std::unique_ptr<int>> owner() {
  return std::make_unique<int>(9);
}

TEST(Result, FailKeepsTheTextAndHasNoCode) {
  const Result<> result = nothing(false);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, 0);
  EXPECT_EQ(result.error().message, "the queue is full");
}

TEST(Result, FailErrnoAppendsTheReason) {
  const Result<int> result = number(false);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ENOENT);
  EXPECT_EQ(result.error().message, "cannot open disk.img: No such file or directory");
}

TEST(Result, TryReturnsTheErrorAndGoesOnOtherwise) {
  bool went_on = false;
  const auto run = [&went_on](bool first, bool second) -> Result<std::string> {
    went_on = false;
    RW_TRY(nothing(first));
    went_on = true;
    RW_TRY(number(second));  // another value type
    return "done";
  };
  EXPECT_EQ(run(true, true).value(), "done");
  EXPECT_EQ(run(false, true).error().message, "the queue is full");
  EXPECT_FALSE(went_on);
  EXPECT_EQ(run(true, false).error().code, ENOENT);
  EXPECT_TRUE(went_on);
}

TEST(Result, TryEvaluatesItsExpressionOnce) {
  int calls = 0;
  const auto counted = [&calls]() -> Result<> {
    ++calls;
    return nothing(false);
  };
  const auto run = [&counted]() -> Result<> {
    RW_TRY(counted());
    return {};
  };
  EXPECT_FALSE(run().has_value());
  EXPECT_EQ(calls, 1);
}

TEST(Result, TryAssignDeclaresTheValueOrReturnsTheError) {
  const auto run = [](bool good) -> Result<int> {
    RW_TRY_ASSIGN(const int a, number(true));
    RW_TRY_ASSIGN(auto held, owner());  // move-only
    RW_TRY_ASSIGN(const int b, number(good));
    return a + *held + b;
  };
  EXPECT_EQ(run(true).value(), 23);
  EXPECT_EQ(run(false).error().code, ENOENT);
}

TEST(Result, TryIsOneStatement) {
  const auto run = [](bool ask) -> Result<int> {
    if (ask)
      RW_TRY(nothing(false));
    else
      return 1;
    return 2;
  };
  EXPECT_EQ(run(false).value(), 1);
  EXPECT_FALSE(run(true).has_value());
}

TEST(CheckDeathTest, FailedCheckAbortsAndNamesItsPlace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  RW_CHECK(1 + 1 == 2);
  EXPECT_DEATH(RW_CHECK(1 + 1 == 3), "ringway: internal error at .*result_test.cpp:[0-9]+: 1 \\+ 1 == 3");
}

TEST(CheckDeathTest, DataPathChecksAreThereWhenAskedFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
#ifdef RINGWAY_DEBUG_CHECKS
  EXPECT_DEATH(RW_DCHECK(false), "internal error");
#else
  int evaluated = 0;
  RW_DCHECK(++evaluated == 1);
  EXPECT_EQ(evaluated, 0);
#endif
}

}  // namespace
}  // namespace ringway
