#include "base/foreign.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <semaphore>
#include <thread>

#include "base/test_soon.hpp"

namespace ringway {
namespace {

using test::soon;

UniqueFd any_descriptor() {
  return UniqueFd(::eventfd(0, EFD_CLOEXEC));
}

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

TEST(ForeignFd, WithoutHoldingsIsClosedAtOnce) {
  ForeignFd fd = any_descriptor();
  const int number = fd.get();
  EXPECT_TRUE(is_open(number));
  fd.reset();
  EXPECT_FALSE(fd);
  EXPECT_FALSE(is_open(number));
}

TEST(ForeignFd, IsCountedUntilItIsClosed) {
  const auto holdings = ForeignHoldings::create();
  {
    ForeignFd one(any_descriptor(), holdings);
    const ForeignFd empty(UniqueFd(), holdings);
    EXPECT_EQ(holdings->descriptors(), 1U);
    ForeignFd moved = std::move(one);
    ForeignFd other = moved.duplicate();
    EXPECT_TRUE(other);
    EXPECT_EQ(holdings->descriptors(), 2U);
    other = std::move(moved);
    EXPECT_TRUE(soon([&] { return holdings->descriptors() == 1; }));
  }
  EXPECT_TRUE(soon([&] { return holdings->descriptors() == 0; }));
}

TEST(ForeignFd, OneThatTakesItsTimeHoldsUpNobodyButItsOwn) {
  const auto slow = ForeignHoldings::create();
  const auto other = ForeignHoldings::create();
  std::binary_semaphore may_end{0};
  std::atomic<bool> ended{false};
  slow->let_go(ForeignHoldings::Lane::unbounded, [&] {
    may_end.acquire();
    ended = true;
  });
  ForeignFd behind(any_descriptor(), slow);
  ForeignFd beside(any_descriptor(), other);
  const int number_behind = behind.get();
  const int number_beside = beside.get();
  behind.reset();
  beside.reset();
  EXPECT_TRUE(soon([&] { return !is_open(number_beside); }));
  EXPECT_EQ(slow->descriptors(), 1U);
  EXPECT_TRUE(is_open(number_behind));
  EXPECT_FALSE(ended);
  may_end.release();
  EXPECT_TRUE(soon([&] { return slow->descriptors() == 0; }));
  EXPECT_TRUE(ended);
}

// What hangs keeps neither memory nor the files that it is in.
TEST(ForeignFd, MemoryDoesNotWaitForWhatMayTakeForEver) {
  const auto holdings = ForeignHoldings::create();
  std::binary_semaphore may_end{0};
  holdings->let_go(ForeignHoldings::Lane::unbounded, [&] { may_end.acquire(); });
  ForeignFd other(any_descriptor(), holdings);
  ForeignFd memory(UniqueFd(::memfd_create("test", MFD_CLOEXEC)), holdings);
  const int number_of_memory = memory.get();
  const int number_of_other = other.get();
  other.reset();
  memory.reset();
  EXPECT_TRUE(soon([&] { return holdings->descriptors() == 1; }));
  EXPECT_FALSE(is_open(number_of_memory));
  EXPECT_TRUE(is_open(number_of_other));
  may_end.release();
  EXPECT_TRUE(soon([&] { return holdings->descriptors() == 0; }));
}

// A worker is bound to its CPU, and must not share it with whoever lets go.
TEST(ForeignHoldings, LetsGoOnAnyCpuOfTheProcess) {
  const auto holdings = ForeignHoldings::create();
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  std::atomic<int> cpus{0};
  std::thread worker([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &all)) {
        CPU_SET(cpu, &one);
      }
    }
    EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    holdings->let_go(ForeignHoldings::Lane::bounded, [&] {
      cpu_set_t mine;
      EXPECT_EQ(::sched_getaffinity(0, sizeof mine, &mine), 0);
      cpus = CPU_COUNT(&mine);
    });
  });
  worker.join();
  EXPECT_TRUE(soon([&] { return cpus != 0; }));
  EXPECT_EQ(cpus, CPU_COUNT(&all));
}

TEST(ForeignHoldings, LetsGoInOrderFromManyThreadsAndOutlivesItsOwner) {
  std::array<std::atomic<int>, 4> done{};
  std::atomic<bool> in_order{true};
  {
    const auto holdings = ForeignHoldings::create();
    std::array<std::jthread, 4> threads;
    for (std::size_t t = 0; t < threads.size(); ++t) {
      threads[t] = std::jthread([&, t, holdings] {
        for (int i = 0; i < 1000; ++i) {
          holdings->let_go(ForeignHoldings::Lane::unbounded, [&, t, i] {
            if (done[t].exchange(i + 1) != i) {
              in_order = false;
            }
          });
        }
      });
    }
  }
  for (auto& each : done) {
    EXPECT_TRUE(soon([&] { return each == 1000; }));
  }
  EXPECT_TRUE(in_order);
}

}  // namespace
}  // namespace ringway
