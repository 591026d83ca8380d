// What only the simulated loop has: a script and a clock that jumps. What it shares with the others is in loop_test.cpp.
#include "loop/simulated_loop.hpp"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <functional>
#include <string>
#include <vector>

namespace ringway {
namespace {

class LoggingHandler final : public FdHandler {
 public:
  LoggingHandler(SimulatedLoop& loop, std::vector<std::string>& log, std::string name)
      : loop_(loop), log_(log), name_(std::move(name)) {}
  void on_ready(std::uint32_t events) noexcept override {
    log_.push_back(name_ + "@" + std::to_string(loop_.now().ns) + ":" + std::to_string(events));
  }

 private:
  SimulatedLoop& loop_;
  std::vector<std::string>& log_;
  std::string name_;
};

class LoggingTimer final : public TimerHandler {
 public:
  explicit LoggingTimer(std::vector<std::string>& log) : log_(log) {}
  void on_timer(Instant now) noexcept override { log_.push_back("timer@" + std::to_string(now.ns)); }

 private:
  std::vector<std::string>& log_;
};

TEST(SimulatedLoop, WaitJumpsFromScriptedEventToTimerToDeadline) {
  SimulatedLoop loop;
  std::vector<std::string> log;
  LoggingHandler disk(loop, log, "disk");
  LoggingTimer timer(log);
  ASSERT_TRUE(loop.watch(7, EPOLLIN, disk).has_value());
  loop.set_timer(timer, Instant{500});
  loop.at(Instant{300}, [&] { loop.make_ready(7, EPOLLIN); });
  EXPECT_EQ(loop.wait(loop.now(), Instant{900}), 1U);
  EXPECT_EQ(loop.now(), Instant{300});
  EXPECT_EQ(loop.wait(loop.now(), Instant{900}), 1U);
  EXPECT_EQ(loop.now(), Instant{500});
  EXPECT_EQ(loop.wait(loop.now(), Instant{900}), 0U);
  EXPECT_EQ(loop.now(), Instant{900});
  EXPECT_EQ(log, (std::vector<std::string>{"disk@300:1", "timer@500"}));
  EXPECT_EQ(loop.sleeps(), 3U);
  EXPECT_EQ(loop.slept(), Duration::nanoseconds(900));
  EXPECT_FALSE(loop.stalled());
}

TEST(SimulatedLoop, EventThatMakesNothingReadyDoesNotEndTheSleep) {
  SimulatedLoop loop;
  int happened = 0;
  loop.at(Instant{10}, [&] { ++happened; });
  loop.at(Instant{20}, [&] { loop.wake(); });
  loop.at(Instant{30}, [&] { ++happened; });
  EXPECT_EQ(loop.wait(loop.now(), Instant::never()), 0U);
  EXPECT_EQ(loop.now(), Instant{20});
  EXPECT_EQ(happened, 1);
  EXPECT_EQ(loop.sleeps(), 1U);
}

TEST(SimulatedLoop, TellsTheTimeOfWakingOnlyAfterASleep) {
  SimulatedLoop loop(Instant{100});
  constexpr Instant kUntouched{1};
  Instant woke = kUntouched;
  loop.wake();
  EXPECT_EQ(loop.wait(loop.now(), Instant{900}, &woke), 0U);
  EXPECT_EQ(woke, kUntouched) << "a wake() had come before";
  EXPECT_EQ(loop.wait(loop.now(), loop.now(), &woke), 0U);
  EXPECT_EQ(woke, kUntouched) << "the deadline had passed";
  EXPECT_EQ(loop.wait(loop.now(), Instant{900}, &woke), 0U);
  EXPECT_EQ(woke, Instant{900});
}

TEST(SimulatedLoop, SleepThatWouldNeverEndIsReported) {
  SimulatedLoop loop(Instant{100});
  loop.at(Instant{150}, [] {});
  EXPECT_EQ(loop.wait(loop.now(), Instant::never()), 0U);
  EXPECT_TRUE(loop.stalled());
  EXPECT_EQ(loop.now(), Instant{150}) << "what was scripted happened first";
  EXPECT_EQ(loop.wait(loop.now(), Instant{160}), 0U);
  EXPECT_FALSE(loop.stalled());
}

TEST(SimulatedLoop, AdvanceLetsTheScriptHappenButHandlersWaitForTheTurn) {
  SimulatedLoop loop;
  std::vector<std::string> log;
  LoggingHandler disk(loop, log, "disk");
  ASSERT_TRUE(loop.watch(3, EPOLLIN | EPOLLOUT, disk).has_value());
  std::vector<std::int64_t> times;
  loop.at(Instant{20}, [&] {
    times.push_back(loop.now().ns);
    loop.make_ready(3, EPOLLOUT);
  });
  loop.at(Instant{10}, [&] {
    times.push_back(loop.now().ns);
    loop.make_ready(3, EPOLLIN);
    loop.at(Instant{15}, [&] { times.push_back(loop.now().ns); });
    loop.at(Instant{5}, [&] { times.push_back(loop.now().ns); });  // past: at once
  });
  loop.advance(Duration::nanoseconds(50));
  EXPECT_EQ(times, (std::vector<std::int64_t>{10, 10, 15, 20}));
  EXPECT_TRUE(log.empty());
  EXPECT_EQ(loop.poll(loop.now()), 1U);
  EXPECT_EQ(log, (std::vector<std::string>{"disk@50:5"})) << "edges of one turn are one event";
}

TEST(SimulatedLoop, ReportsWhatIsWatchedAndAlwaysHangUps) {
  SimulatedLoop loop;
  std::vector<std::string> log;
  LoggingHandler disk(loop, log, "disk");
  ASSERT_TRUE(loop.watch(3, EPOLLIN, disk).has_value());
  loop.make_ready(3, EPOLLOUT);
  loop.make_ready(4, EPOLLIN);
  EXPECT_EQ(loop.poll(loop.now()), 0U);
  loop.make_ready(3, EPOLLOUT | EPOLLHUP);
  EXPECT_EQ(loop.poll(loop.now()), 1U);
  EXPECT_EQ(log, (std::vector<std::string>{"disk@0:" + std::to_string(EPOLLHUP)}));
}

}  // namespace
}  // namespace ringway
