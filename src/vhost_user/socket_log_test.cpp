#include "vhost_user/socket_log.hpp"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

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

// Who connects and hangs up all the time doesn't hide what goes wrong.
TEST(SocketLog, NewsDoNotKeepWarningsOut) {
  const std::shared_ptr<spdlog::logger> logger = spdlog::default_logger();
  std::ostringstream written;
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(written)));
  {
    SocketLog log("d");
    for (std::uint32_t i = 0; i < 10 * LineBudget::kLines; ++i) {
      log.info("a front-end has connected");
    }
    log.warn("its ring is broken");
  }
  spdlog::set_default_logger(logger);
  EXPECT_NE(written.str().find("d: its ring is broken"), std::string::npos);
  EXPECT_NE(written.str().find("360 more lines"), std::string::npos);
}

}  // namespace
}  // namespace ringway::vhost_user
