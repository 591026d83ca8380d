#include "control/log_sink.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

namespace ringway {
namespace {

using ::testing::StartsWith;

// A logger whose log goes into a pipe.
class PipedLog {
 public:
  PipedLog() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reading_.reset(ends[0]);
    writing_.reset(ends[1]);
    // The least that there is, and no reader that waits.
    EXPECT_GT(fcntl(writing_.get(), F_SETPIPE_SZ, 4096), 0);
    EXPECT_EQ(fcntl(reading_.get(), F_SETFL, O_NONBLOCK), 0);
    logger_.emplace("test", std::make_shared<LogSink>(writing_.get()));
    logger_->set_pattern("%l: %v");
  }
  spdlog::logger& logger() { return *logger_; }
  std::string read() const {
    char buffer[8192];
    const ssize_t got = ::read(reading_.get(), buffer, sizeof buffer);
    return got > 0 ? std::string(buffer, static_cast<std::size_t>(got)) : "";
  }

 private:
  UniqueFd reading_, writing_;
  std::optional<spdlog::logger> logger_;
};

TEST(LogSink, LinesThatNobodyReadsAreDroppedAndCounted) {
  PipedLog log;
  const std::uint64_t before = log_lines_dropped();
  constexpr int kLines = 1000;
  for (int i = 0; i < kLines; ++i) {
    log.logger().info("line {:03}", i);  // returns, or the test hangs
  }
  const std::string first = log.read();
  const auto written = static_cast<std::uint64_t>(std::ranges::count(first, '\n'));
  EXPECT_GT(written, 0U);
  EXPECT_THAT(first, StartsWith("info: line 000\n"));
  EXPECT_TRUE(first.ends_with(fmt::format("line {:03}\n", written - 1))) << "the first are kept, and whole";
  EXPECT_EQ(log_lines_dropped() - before, kLines - written);

  log.logger().error("the next");
  EXPECT_EQ(log.read(),
            fmt::format("warning: {} lines of the log went unread and are lost\nerror: the next\n", kLines - written));
  log.logger().info("another");
  EXPECT_EQ(log.read(), "info: another\n");
}

TEST(LogSink, ALineIsNeverCut) {
  PipedLog log;
  const std::string line(10'000, 'x');  // more than the pipe takes at once
  log.logger().info(line);
  log.logger().info("dropped");
  std::string all = log.read();
  EXPECT_LT(all.size(), line.size());
  for (int i = 0; i < 4; ++i) {
    log.logger().flush();
    all += log.read();
  }
  EXPECT_EQ(all, "info: " + line + "\n");
  log.logger().info("behind it");
  EXPECT_EQ(log.read(), "warning: 1 line of the log went unread and is lost\ninfo: behind it\n");
}

}  // namespace
}  // namespace ringway
