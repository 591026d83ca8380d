// One suite for all engines: what loop.hpp promises. The simulated loop takes part with descriptors that are names only.
#include "loop/loop.hpp"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "loop/clock.hpp"
#include "loop/epoll_loop.hpp"
#include "loop/io_uring_loop.hpp"
#include "loop/simulated_loop.hpp"

namespace ringway {
namespace {

enum class Engine { epoll, io_uring, io_uring_cooperative, simulated };

const char* name_of(Engine engine) {
  switch (engine) {
    case Engine::epoll:
      return "epoll";
    case Engine::io_uring:
      return "io_uring";
    case Engine::io_uring_cooperative:
      return "io_uring_cooperative";
    case Engine::simulated:
      return "simulated";
  }
  return "";
}

class WatchingHandler : public FdHandler {
 public:
  void on_ready(std::uint32_t events) noexcept override {
    ++calls;
    last_events = events;
    if (then) {
      then();
    }
  }
  int calls = 0;
  std::uint32_t last_events = 0;
  std::function<void()> then;
};

class CountingTimer : public TimerHandler {
 public:
  void on_timer(Instant now) noexcept override {
    ++calls;
    last_now = now;
    if (then) {
      then();
    }
  }
  int calls = 0;
  Instant last_now;
  std::function<void()> then;
};

class LoopTest : public testing::TestWithParam<Engine> {
 protected:
  void SetUp() override {
    switch (GetParam()) {
      case Engine::epoll: {
        auto made = EpollLoop::create();
        ASSERT_TRUE(made.has_value()) << made.error().message;
        loop_ = std::move(*made);
        break;
      }
      case Engine::io_uring:
      case Engine::io_uring_cooperative: {
        auto made = IoUringLoop::create({.entries = 64, .deferred_task_work = GetParam() == Engine::io_uring});
        ASSERT_TRUE(made.has_value()) << made.error().message;
        loop_ = std::move(*made);
        break;
      }
      case Engine::simulated: {
        auto made = std::make_unique<SimulatedLoop>(Instant{1'000'000'000});
        simulated_ = made.get();
        loop_ = std::move(made);
        break;
      }
    }
  }

  [[nodiscard]] Instant now() const { return simulated_ != nullptr ? simulated_->now() : clock_now(); }
  // Far enough that a test which reaches it has failed.
  [[nodiscard]] Instant far() const { return now() + Duration::seconds(60); }

  static UniqueFd make_event() {
    UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    EXPECT_TRUE(event);
    return event;
  }
  void signal(const UniqueFd& event) {
    if (simulated_ != nullptr) {
      simulated_->make_ready(event.get(), EPOLLIN);
      return;
    }
    const std::uint64_t one = 1;
    ASSERT_EQ(write(event.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  WatchId watch(const UniqueFd& fd, FdHandler& handler, std::uint32_t events = EPOLLIN) {
    auto id = loop_->watch(fd.get(), events, handler);
    EXPECT_TRUE(id.has_value()) << id.error().message;
    return id.value_or(WatchId{});
  }
  // Polls until nothing comes any more; an event of this thread's own doing is there at once, so this is no race.
  std::uint32_t settle() {
    std::uint32_t handled = 0;
    for (int quiet = 0; quiet < 3;) {
      const std::uint32_t now_handled = loop_->poll(now());
      handled += now_handled;
      quiet = now_handled == 0 ? quiet + 1 : 0;
    }
    return handled;
  }

  std::unique_ptr<Loop> loop_;
  SimulatedLoop* simulated_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Engines, LoopTest,
                         testing::Values(Engine::epoll, Engine::io_uring, Engine::io_uring_cooperative, Engine::simulated),
                         [](const auto& suite) { return std::string(name_of(suite.param)); });

// What needs a kernel or a second thread.
class RealLoopTest : public LoopTest {};
INSTANTIATE_TEST_SUITE_P(Engines, RealLoopTest,
                         testing::Values(Engine::epoll, Engine::io_uring, Engine::io_uring_cooperative),
                         [](const auto& suite) { return std::string(name_of(suite.param)); });

// --- Descriptors ---

TEST_P(LoopTest, EachWriteToAnEventfdThatIsNeverReadIsAnEvent) {
  const UniqueFd event = make_event();
  WatchingHandler handler;
  const WatchId id = watch(event, handler);
  settle();
  EXPECT_EQ(handler.calls, 0);
  for (int i = 0; i < 100; ++i) {
    const int before = handler.calls;
    signal(event);
    EXPECT_GE(settle(), 1U);
    ASSERT_GT(handler.calls, before) << "write " << i << " was lost";
    EXPECT_EQ(handler.last_events, static_cast<std::uint32_t>(EPOLLIN));
  }
  loop_->unwatch(id);
}

TEST_P(RealLoopTest, DescriptorReadyBeforeItIsWatchedIsReported) {
  const UniqueFd event = make_event();
  signal(event);
  WatchingHandler handler;
  const WatchId id = watch(event, handler);
  EXPECT_GE(loop_->wait(now(), far()), 1U);
  EXPECT_GE(handler.calls, 1);
  loop_->unwatch(id);
}

TEST_P(LoopTest, ReadableDescriptorDoesNotMakeTheLoopSpin) {
  const UniqueFd event = make_event();
  WatchingHandler handler;
  const WatchId id = watch(event, handler);
  signal(event);
  settle();
  const int calls = handler.calls;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(loop_->poll(now()), 0U);
  }
  const std::uint64_t sleeps = loop_->sleeps();
  const Instant deadline = now() + Duration::milliseconds(5);
  EXPECT_EQ(loop_->wait(now(), deadline), 0U);
  EXPECT_GE(now(), deadline) << "the loop did not sleep until the deadline";
  EXPECT_EQ(loop_->sleeps(), sleeps + 1);
  EXPECT_EQ(handler.calls, calls);
  loop_->unwatch(id);
}

TEST_P(LoopTest, UnwatchedDescriptorIsSilent) {
  const UniqueFd event = make_event();
  WatchingHandler handler;
  loop_->unwatch(watch(event, handler));
  signal(event);
  settle();
  EXPECT_EQ(handler.calls, 0);
}

TEST_P(LoopTest, UnwatchingTwiceOrNothingIsHarmless) {
  const UniqueFd event = make_event();
  WatchingHandler handler;
  const WatchId first = watch(event, handler);
  loop_->unwatch(first);
  const WatchId second = watch(event, handler);
  EXPECT_NE(first.value, second.value);
  loop_->unwatch(first);  // stale: must not touch the second, which may lie in the same slot
  loop_->unwatch(WatchId{});
  signal(event);
  settle();
  EXPECT_GE(handler.calls, 1);
  loop_->unwatch(second);
}

TEST_P(LoopTest, EventCollectedBeforeUnwatchIsDropped) {
  const UniqueFd a = make_event();
  const UniqueFd b = make_event();
  WatchingHandler on_a;
  WatchingHandler on_b;
  const WatchId watch_a = watch(a, on_a);
  const WatchId watch_b = watch(b, on_b);
  settle();
  // Both become ready in one batch; whichever comes first unwatches the other.
  on_a.then = [&] { loop_->unwatch(watch_b); };
  on_b.then = [&] { loop_->unwatch(watch_a); };
  signal(a);
  signal(b);
  settle();
  EXPECT_EQ(on_a.calls + on_b.calls, 1);
  loop_->unwatch(watch_a);
  loop_->unwatch(watch_b);
}

TEST_P(LoopTest, HandlerMayUnwatchItselfAndWatchAgain) {
  const UniqueFd event = make_event();
  WatchingHandler first;
  WatchingHandler second;
  WatchId id = watch(event, first);
  settle();
  first.then = [&] {
    loop_->unwatch(id);
    id = watch(event, second);
  };
  signal(event);
  settle();
  EXPECT_EQ(first.calls, 1);
  const int before = second.calls;
  signal(event);
  settle();
  EXPECT_EQ(first.calls, 1);
  EXPECT_GT(second.calls, before);
  loop_->unwatch(id);
}

TEST_P(RealLoopTest, DescriptorNumberIsReusedWithoutConfusion) {
  WatchingHandler old_handler;
  WatchingHandler new_handler;
  UniqueFd event = make_event();
  const int number = event.get();
  for (int i = 0; i < 50; ++i) {
    const WatchId old_watch = watch(event, old_handler);
    // Not submitted yet, ready and collected, or ready and not collected: each at its turn.
    if (i % 3 != 0) {
      settle();
    }
    if (i % 3 != 1) {
      signal(event);
    }
    loop_->unwatch(old_watch);
    const int old_calls = old_handler.calls;
    event.reset();
    event = make_event();
    ASSERT_EQ(event.get(), number) << "the test relies on the lowest free number being taken";
    const WatchId new_watch = watch(event, new_handler);
    const int new_calls = new_handler.calls;
    settle();
    ASSERT_EQ(new_handler.calls, new_calls) << "the new descriptor was never written to";
    signal(event);
    settle();
    ASSERT_GT(new_handler.calls, new_calls);
    ASSERT_EQ(old_handler.calls, old_calls);
    loop_->unwatch(new_watch);
    event.reset();
    event = make_event();
  }
}

TEST_P(RealLoopTest, SocketClosedAfterUnwatchIsClosedForItsPeer) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()), 0);
  UniqueFd ours(sockets[0]);
  const UniqueFd peer(sockets[1]);
  WatchingHandler handler;
  const WatchId id = watch(ours, handler, EPOLLIN | EPOLLOUT);
  settle();
  loop_->unwatch(id);
  ours.reset();
  char byte = 0;
  EXPECT_EQ(recv(peer.get(), &byte, 1, 0), 0) << "the loop still holds the socket: " << strerror(errno);
}

TEST_P(RealLoopTest, SocketClosedAfterTheLoopIsGoneIsClosedForItsPeer) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()), 0);
  UniqueFd ours(sockets[0]);
  const UniqueFd peer(sockets[1]);
  WatchingHandler handler;
  watch(ours, handler, EPOLLIN);
  settle();
  loop_.reset();
  ours.reset();
  char byte = 0;
  EXPECT_EQ(recv(peer.get(), &byte, 1, 0), 0) << "the ring still holds the socket: " << strerror(errno);
}

TEST_P(RealLoopTest, SocketReportsDataSpaceAndHangUp) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()), 0);
  const UniqueFd ours(sockets[0]);
  UniqueFd peer(sockets[1]);
  WatchingHandler handler;
  const WatchId id = watch(ours, handler, EPOLLIN | EPOLLOUT);
  settle();
  EXPECT_EQ(handler.last_events & (EPOLLIN | EPOLLOUT), static_cast<std::uint32_t>(EPOLLOUT));

  // Fill it, then let the peer make room: an edge of EPOLLOUT.
  std::array<char, 4096> block{};
  while (send(ours.get(), block.data(), block.size(), MSG_NOSIGNAL) > 0) {
  }
  settle();
  handler.last_events = 0;
  while (recv(peer.get(), block.data(), block.size(), 0) > 0) {
  }
  settle();
  EXPECT_NE(handler.last_events & EPOLLOUT, 0U);

  handler.last_events = 0;
  ASSERT_EQ(send(peer.get(), "x", 1, MSG_NOSIGNAL), 1);
  settle();
  EXPECT_NE(handler.last_events & EPOLLIN, 0U);

  peer.reset();
  settle();
  EXPECT_NE(handler.last_events & EPOLLHUP, 0U);
  const int calls = handler.calls;
  for (int i = 0; i < 100; ++i) {
    loop_->poll(now());
  }
  EXPECT_EQ(handler.calls, calls) << "a hang-up is one edge, not a state that is reported for ever";
  loop_->unwatch(id);
}

TEST_P(LoopTest, ThousandDescriptorsEachReachTheirHandler) {
  constexpr int kCount = 1000;
  std::vector<UniqueFd> events;
  std::vector<WatchingHandler> handlers(kCount);
  std::vector<WatchId> ids;
  for (int i = 0; i < kCount; ++i) {
    UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event) {
      break;  // RLIMIT_NOFILE of the machine; what there is must do
    }
    events.push_back(std::move(event));
    ids.push_back(watch(events.back(), handlers[events.size() - 1]));
  }
  ASSERT_GT(events.size(), 400U);
  settle();
  for (const UniqueFd& event : events) {
    signal(event);
  }
  EXPECT_GE(settle(), events.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    ASSERT_GE(handlers[i].calls, 1) << i;
    loop_->unwatch(ids[i]);
  }
  for (const UniqueFd& event : events) {
    signal(event);
  }
  EXPECT_EQ(settle(), 0U);
}

TEST_P(RealLoopTest, WatchingWhatCannotBeWatchedIsAnError) {
  WatchingHandler handler;
  const UniqueFd event = make_event();
  UniqueFd duplicate(dup(event.get()));
  const int number = duplicate.get();
  ASSERT_GE(number, 0);
  duplicate.reset();
  const auto bad = loop_->watch(number, EPOLLIN, handler);
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().code, EBADF);
  const UniqueFd regular(memfd_create("loop_test", MFD_CLOEXEC));
  const auto file = loop_->watch(regular.get(), EPOLLIN, handler);
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code, EPERM);
  EXPECT_NE(file.error().message.find(std::to_string(regular.get())), std::string::npos);
}

TEST_P(RealLoopTest, WritesOfAnotherThreadAreNeverLost) {
  const UniqueFd event = make_event();
  WatchingHandler handler;
  const WatchId id = watch(event, handler);
  settle();
  // Ping-pong: the writer makes the next write only when the last was seen, so a lost edge hangs until the deadline.
  constexpr int kWrites = 500;
  std::atomic<int> seen{0};
  std::thread writer([&] {
    for (int i = 0; i < kWrites; ++i) {
      const std::uint64_t one = 1;
      EXPECT_EQ(write(event.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
      for (int now_seen = 0; (now_seen = seen.load(std::memory_order_acquire)) <= i;) {
        seen.wait(now_seen, std::memory_order_acquire);
      }
    }
  });
  const Instant deadline = far();
  for (int i = 0; i < kWrites; ++i) {
    const int before = handler.calls;
    while (handler.calls == before && clock_now() < deadline) {
      // Both ways of waiting, mixed.
      static_cast<void>(i % 2 == 0 ? loop_->wait(clock_now(), deadline) : loop_->poll(clock_now()));
    }
    if (handler.calls == before) {
      ADD_FAILURE() << "write " << i << " was not seen";
      seen.store(kWrites, std::memory_order_release);
      seen.notify_one();
      break;
    }
    seen.store(i + 1, std::memory_order_release);
    seen.notify_one();
  }
  writer.join();
  loop_->unwatch(id);
}

// --- Timers ---

TEST_P(LoopTest, TimersFireInOrderOnceAndNotEarly) {
  std::vector<int> order;
  std::array<CountingTimer, 4> timers;
  const Instant start = now();
  const std::array<std::int64_t, 4> delays{3, 1, 2, 1};  // milliseconds
  for (std::size_t i = 0; i < timers.size(); ++i) {
    timers[i].then = [&order, i] { order.push_back(static_cast<int>(i)); };
    loop_->set_timer(timers[i], start + Duration::milliseconds(delays[i]));
  }
  EXPECT_EQ(loop_->poll(start), 0U);
  while (order.size() < timers.size() && now() < start + Duration::seconds(20)) {
    loop_->wait(now(), far());
  }
  EXPECT_EQ(order, (std::vector<int>{1, 3, 2, 0}));
  for (std::size_t i = 0; i < timers.size(); ++i) {
    EXPECT_EQ(timers[i].calls, 1);
    EXPECT_GE(timers[i].last_now, start + Duration::milliseconds(delays[i]));
  }
  EXPECT_EQ(loop_->poll(now() + Duration::seconds(1)), 0U);
}

TEST_P(LoopTest, TimerThatIsDueAlreadyFiresInTheNextPoll) {
  CountingTimer timer;
  const Instant start = now();
  loop_->set_timer(timer, start);
  EXPECT_EQ(loop_->poll(start), 1U);
  EXPECT_EQ(timer.calls, 1);
  loop_->set_timer(timer, start);
  EXPECT_EQ(loop_->wait(start, Instant::never()), 1U);
  EXPECT_EQ(timer.calls, 2);
}

TEST_P(LoopTest, SettingASetTimerMovesItBothWays) {
  CountingTimer timer;
  const Instant start = now();
  loop_->set_timer(timer, start + Duration::seconds(10));
  loop_->set_timer(timer, start + Duration::seconds(5));
  EXPECT_EQ(loop_->poll(start + Duration::seconds(5)), 1U);
  EXPECT_EQ(loop_->poll(start + Duration::seconds(11)), 0U);
  loop_->set_timer(timer, start + Duration::seconds(20));
  loop_->set_timer(timer, start + Duration::seconds(30));
  EXPECT_EQ(loop_->poll(start + Duration::seconds(29)), 0U);
  EXPECT_EQ(loop_->poll(start + Duration::seconds(30)), 1U);
  EXPECT_EQ(timer.calls, 2);
}

TEST_P(LoopTest, CancelledTimerDoesNotFire) {
  CountingTimer timer;
  loop_->cancel_timer(timer);  // not set: nothing
  loop_->set_timer(timer, now());
  loop_->cancel_timer(timer);
  EXPECT_EQ(loop_->poll(now() + Duration::seconds(1)), 0U);
  EXPECT_EQ(timer.calls, 0);
}

TEST_P(LoopTest, TimersMaySetMoveAndCancelEachOtherWhileFiring) {
  CountingTimer again;
  CountingTimer victim;
  CountingTimer mover;
  const Instant start = now();
  // Sets itself to a time that has passed: fires once a poll, not for ever in one.
  again.then = [&] { loop_->set_timer(again, start); };
  mover.then = [&] {
    loop_->cancel_timer(victim);
    loop_->set_timer(victim, start + Duration::seconds(1));
    loop_->cancel_timer(again);
    loop_->set_timer(again, start);
  };
  loop_->set_timer(again, start);
  loop_->set_timer(mover, start);
  loop_->set_timer(victim, start);
  EXPECT_EQ(loop_->poll(start), 2U);
  EXPECT_EQ(victim.calls, 0);
  EXPECT_EQ(again.calls, 1);
  EXPECT_EQ(loop_->poll(start), 1U);
  EXPECT_EQ(again.calls, 2);
  loop_->cancel_timer(again);
  EXPECT_EQ(loop_->poll(start + Duration::seconds(1)), 1U);
  EXPECT_EQ(victim.calls, 1);
}

TEST_P(LoopTest, EventsAreHandledWhileATimerIsPending) {
  const UniqueFd event = make_event();
  WatchingHandler handler;
  CountingTimer timer;
  const WatchId id = watch(event, handler);
  settle();
  loop_->set_timer(timer, far());
  signal(event);
  EXPECT_GE(loop_->wait(now(), Instant::never()), 1U);
  EXPECT_EQ(handler.calls, 1);
  EXPECT_EQ(timer.calls, 0);
  loop_->cancel_timer(timer);
  loop_->unwatch(id);
}

// --- Waiting and waking ---

TEST_P(LoopTest, WaitWithNothingToDoLastsUntilItsDeadline) {
  settle();
  const std::uint64_t sleeps = loop_->sleeps();
  const Instant deadline = now() + Duration::milliseconds(3);
  EXPECT_EQ(loop_->wait(now(), deadline), 0U);
  EXPECT_GE(now(), deadline);
  EXPECT_EQ(loop_->sleeps(), sleeps + 1);
}

TEST_P(LoopTest, WaitWithADeadlineInThePastDoesNotSleep) {
  settle();
  const std::uint64_t sleeps = loop_->sleeps();
  const Instant time = now();
  EXPECT_EQ(loop_->wait(time, time), 0U);
  EXPECT_EQ(loop_->wait(time, Instant{0}), 0U);
  EXPECT_EQ(loop_->sleeps(), sleeps);
}

// What a handler stamps after a sleep must not be as old as the sleep was long.
TEST_P(LoopTest, WaitTellsTheTimeOfWakingBeforeItsHandlersRun) {
  settle();
  const Instant start = now();
  const Instant due = start + Duration::milliseconds(3);
  Instant woke = start;
  Instant seen_by_handler;
  CountingTimer timer;
  timer.then = [&] { seen_by_handler = woke; };
  loop_->set_timer(timer, due);
  EXPECT_EQ(loop_->wait(start, far(), &woke), 1U);
  EXPECT_GE(seen_by_handler, due);

  const Instant time = now();
  constexpr Instant kUntouched{1};
  woke = kUntouched;
  EXPECT_EQ(loop_->wait(time, time, &woke), 0U);
  EXPECT_EQ(woke, kUntouched) << "the deadline had passed, so it didn't sleep";
}

TEST_P(LoopTest, WakeBeforeWaitEndsItAtOnceAndOnlyThatOne) {
  loop_->wake();
  loop_->wake();
  const Instant before = now();
  EXPECT_EQ(loop_->wait(before, far()), 0U);
  EXPECT_LT(now(), before + Duration::seconds(10));
  const Instant deadline = now() + Duration::milliseconds(3);
  EXPECT_EQ(loop_->wait(now(), deadline), 0U);
  EXPECT_GE(now(), deadline) << "one wake ended two waits";
}

TEST_P(LoopTest, WakeSeenByAPollStillEndsTheNextWait) {
  settle();
  loop_->wake();
  settle();
  const std::uint64_t sleeps = loop_->sleeps();
  loop_->wait(now(), far());
  EXPECT_EQ(loop_->sleeps(), sleeps);
}

TEST_P(RealLoopTest, WakeFromAnotherThreadEndsEachWait) {
  constexpr int kWakes = 500;
  std::atomic<int> turns{0};
  std::thread waker([&] {
    for (int i = 0; i < kWakes; ++i) {
      loop_->wake();
      for (int done = 0; (done = turns.load(std::memory_order_acquire)) <= i;) {
        turns.wait(done, std::memory_order_acquire);
      }
    }
  });
  const Instant deadline = far();
  for (int i = 0; i < kWakes; ++i) {
    loop_->wait(clock_now(), deadline);
    turns.store(i + 1, std::memory_order_release);
    turns.notify_one();
  }
  waker.join();
  EXPECT_LT(clock_now(), deadline);
}

// Whoever debugs or profiles a process interrupts its system calls; a deadline and a timer must not come early by that.
TEST_P(RealLoopTest, SignalsDoNotEndTheWait) {
  struct sigaction action{};
  struct sigaction old_action{};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &old_action), 0);
  const pthread_t owner = pthread_self();
  std::atomic<bool> over{false};
  std::thread sender([&] {
    while (!over.load(std::memory_order_relaxed)) {
      pthread_kill(owner, SIGUSR1);
      std::this_thread::yield();
    }
  });
  settle();
  const std::uint64_t sleeps = loop_->sleeps();
  const Instant deadline = now() + Duration::milliseconds(5);
  EXPECT_EQ(loop_->wait(now(), deadline), 0U);
  EXPECT_GE(now(), deadline);
  EXPECT_EQ(loop_->sleeps(), sleeps + 1);
  CountingTimer timer;
  const Instant due = now() + Duration::milliseconds(5);
  loop_->set_timer(timer, due);
  EXPECT_EQ(loop_->wait(now(), far()), 1U);
  EXPECT_GE(timer.last_now, due);
  over.store(true, std::memory_order_relaxed);
  sender.join();
  ASSERT_EQ(sigaction(SIGUSR1, &old_action, nullptr), 0);
  loop_->cancel_timer(timer);
}

Loop* g_loop_of_signal = nullptr;

TEST_P(RealLoopTest, WakeFromASignalHandlerEndsTheWait) {
  g_loop_of_signal = loop_.get();
  struct sigaction action{};
  struct sigaction old_action{};
  action.sa_handler = [](int) { g_loop_of_signal->wake(); };
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &old_action), 0);
  const pthread_t owner = pthread_self();
  const Instant deadline = far();
  // Whether the signal comes before or during the wait, the wait ends.
  std::thread sender([&] { pthread_kill(owner, SIGUSR1); });
  loop_->wait(clock_now(), deadline);
  EXPECT_LT(clock_now(), deadline);
  sender.join();
  ASSERT_EQ(sigaction(SIGUSR1, &old_action, nullptr), 0);
}

// --- Counting ---

TEST_P(RealLoopTest, SystemCallsOfAnIdlePoll) {
  const UniqueFd event = make_event();
  WatchingHandler handler;
  const WatchId id = watch(event, handler);
  settle();
  const std::uint64_t before = loop_->system_calls();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(loop_->poll(now()), 0U);
  }
  EXPECT_EQ(loop_->system_calls() - before, GetParam() == Engine::epoll ? 1000U : 0U);
  loop_->unwatch(id);
}

TEST_P(RealLoopTest, OneSystemCallPerWait) {
  settle();
  // One that is interrupted takes more: the io_uring of an earlier test may be ending still.
  std::uint64_t fewest = UINT64_MAX;
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t before = loop_->system_calls();
    loop_->wait(now(), now() + Duration::microseconds(100));
    fewest = std::min(fewest, loop_->system_calls() - before);
  }
  EXPECT_EQ(fewest, 1U);
}

}  // namespace
}  // namespace ringway
