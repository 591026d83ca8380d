#include "vhost_user/socket_log.hpp"

#include <gtest/gtest.h>

namespace ringway::vhost_user {
namespace {

TEST(LineBudget, AFloodIsCutAndCountedAndTheNextPeriodHasItsLines) {
  LineBudget budget;
  Instant now = Instant{} + Duration::seconds(1000);
  for (int period = 0; period < 3; ++period) {
    std::uint32_t written = 0;
    for (int i = 0; i < 10'000; ++i) {
      written += budget.may_write(now + Duration::microseconds(i)) ? 1 : 0;
    }
    EXPECT_EQ(written, LineBudget::kLines);
    EXPECT_EQ(budget.take_left_out(), 10'000 - LineBudget::kLines);
    EXPECT_EQ(budget.take_left_out(), 0U);
    now = now + LineBudget::kPeriod;
  }
}

}  // namespace
}  // namespace ringway::vhost_user
