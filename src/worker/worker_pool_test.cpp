#include "worker/worker_pool.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <vector>

#include "loop/clock.hpp"
#include "loop/uring_engine.hpp"
#include "notify/event_fd.hpp"

namespace ringway {
namespace {

std::unique_ptr<WorkerPool> make_pool(WorkerPoolOptions options = {}) {
  auto pool = WorkerPool::create(options);
  EXPECT_TRUE(pool.has_value()) << (pool ? "" : pool.error().message);
  return pool ? std::move(*pool) : nullptr;
}

TEST(WorkerPool, RunsMessagesOnTheWorkersThreadInOrder) {
  auto pool = make_pool({.workers = 2});
  for (const WorkerPort& port : pool->ports()) {
    std::promise<bool> ran;
    int order = 0;
    port.executor->post([&order] { order = order * 10 + 1; });
    port.executor->post([&order] { order = order * 10 + 2; });
    port.executor->post([&] { ran.set_value(port.executor->is_current() && port.context->index == port.index); });
    EXPECT_TRUE(ran.get_future().get());
    EXPECT_EQ(order, 12);
  }
}

TEST(WorkerPool, EndsWhileIdleUnderEachLoopAndPolicy) {
  for (const LoopEngine engine : {LoopEngine::epoll, LoopEngine::automatic}) {
    for (const char* poll : {"never", "always", "fixed=50us", "grow_shrink", "adaptive"}) {
      auto pool = make_pool({.workers = 2, .engine = engine, .poll = poll});
      pool.reset();
    }
  }
}

TEST(WorkerPool, ErrorsSayWhatToChange) {
  const auto message = [](WorkerPoolOptions options) {
    auto pool = WorkerPool::create(options);
    return pool ? std::string("no error") : pool.error().message;
  };
  EXPECT_NE(message({.workers = 0}).find("between 1 and"), std::string::npos);
  EXPECT_NE(message({.poll = "sometimes"}).find("never"), std::string::npos);
  EXPECT_NE(message({.cpus = {1023}}).find("CPU 1023"), std::string::npos);
}

// A blocking eventfd at its maximum, as a peer can make of the call descriptor that it shares with us.
TEST(WorkerPool, FreesAWorkerThatHangsInAPeersDescriptor) {
  auto pool = make_pool();
  const int peer = eventfd(0, EFD_CLOEXEC);  // blocking
  ASSERT_GE(peer, 0);
  const std::uint64_t maximum = UINT64_MAX - 1;
  ASSERT_EQ(write(peer, &maximum, sizeof maximum), static_cast<ssize_t>(sizeof maximum));
  EventFd call;
  call.set(UniqueFd(fcntl(peer, F_DUPFD_CLOEXEC, 0)));
  std::promise<EventFd::Sent> sent;
  std::future<EventFd::Sent> outcome = sent.get_future();
  const WorkerPort& port = pool->ports().front();
  port.executor->post([&] { sent.set_value(call.signal(port.context->stuck_write)); });
  // A look during the write frees it; more in case the first came before.
  while (outcome.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    pool->look();
  }
  EXPECT_EQ(outcome.get(), EventFd::Sent::held);
  EXPECT_FALSE(call.present());
  close(peer);
}

// One write for the whole front-end, not one for each of its rings.
TEST(WorkerPool, OneFrontEndHoldsAWorkerOnce) {
  constexpr std::size_t kRings = 16;
  auto pool = make_pool();
  const auto holdings = ForeignHoldings::create();
  std::vector<UniqueFd> peers;
  std::vector<EventFd> calls(kRings);
  for (EventFd& call : calls) {
    peers.emplace_back(eventfd(0, EFD_CLOEXEC));  // blocking
    call.set({UniqueFd(fcntl(peers.back().get(), F_DUPFD_CLOEXEC, 0)), holdings});
  }
  const std::uint64_t maximum = UINT64_MAX - 1;
  ASSERT_EQ(write(peers.front().get(), &maximum, sizeof maximum), static_cast<ssize_t>(sizeof maximum));
  std::promise<std::vector<EventFd::Sent>> sent;
  std::future<std::vector<EventFd::Sent>> outcome = sent.get_future();
  const WorkerPort& port = pool->ports().front();
  port.executor->post([&] {
    std::vector<EventFd::Sent> each;
    for (EventFd& call : calls) {
      each.push_back(call.signal(port.context->stuck_write));
    }
    sent.set_value(std::move(each));
  });
  while (outcome.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    pool->look();
  }
  const std::vector<EventFd::Sent> each = outcome.get();
  EXPECT_EQ(std::ranges::count(each, EventFd::Sent::held), kRings);
  for (std::size_t i = 1; i < kRings; ++i) {
    pollfd written{.fd = peers[i].get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&written, 1, 0), 0) << "ring " << i << " was written to";
  }
}

// Operations that have completed already when the worker would sleep: each turn begins when the one before has ended.
TEST(WorkerPool, TimeIsCountedOnceWhenCompletionsComeBeforeTheSleep) {
  auto pool = make_pool();
  if (!pool->has_uring()) {
    GTEST_SKIP() << "no io_uring here";
  }
  class Endless final : public UringOperation {
   public:
    void start(UringEngine& engine) {
      engine_ = &engine;
      again();
    }
    void on_completion(std::int32_t /*result*/) noexcept override {
      if (--left_ == 0) {
        ended.set_value();
      } else {
        again();
      }
    }
    std::promise<void> ended;

   private:
    void again() {
      io_uring_prep_nop(engine_->prepare(*this));
      engine_->submit();
    }
    UringEngine* engine_ = nullptr;
    int left_ = 3000;
  } endless;
  const WorkerPort& port = pool->ports().front();
  const Instant began = clock_now();
  port.executor->post([&] { endless.start(*port.context->loop.uring()); });
  endless.ended.get_future().get();
  const Duration wall = clock_now() - began;
  const WorkerStats stats = pool->stats().front();
  EXPECT_GE(stats.productive_turns, 1000U) << "else this tests nothing";
  // The turn under way when either end was read belongs to only one of them.
  EXPECT_LE(stats.productive_ns, 2 * static_cast<std::uint64_t>(wall.ns));
}

TEST(WorkerPool, AnIdleWorkerSleeps) {
  auto pool = make_pool({.workers = 1, .poll = "fixed=50us"});
  std::promise<void> ran;
  pool->ports().front().executor->post([&] { ran.set_value(); });
  ran.get_future().wait();
  const WorkerStats before = pool->stats().front();
  std::promise<void> later;
  std::future<void> done = later.get_future();
  EXPECT_EQ(done.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  const WorkerStats after = pool->stats().front();
  EXPECT_LE(after.sleeps - before.sleeps, 3U);
  EXPECT_LT(after.cpu_ns - before.cpu_ns, 50'000'000U);
}

}  // namespace
}  // namespace ringway
