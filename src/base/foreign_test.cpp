#include "base/foreign.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <semaphore>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "base/test_limit.hpp"
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

// Twice for each device, where address space may be short.
TEST(ForeignHoldings, ThreadsThatLetGoHaveSmallStacks) {
  const auto holdings = ForeignHoldings::create();
  std::atomic<std::size_t> bytes{0};
  holdings->let_go(ForeignHoldings::Lane::bounded, [&] {
    pthread_attr_t attributes;
    std::size_t stack = 0;
    EXPECT_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
    EXPECT_EQ(pthread_attr_getstacksize(&attributes, &stack), 0);
    pthread_attr_destroy(&attributes);
    bytes = stack;
  });
  EXPECT_TRUE(soon([&] { return bytes != 0; }));
  EXPECT_LE(bytes, std::size_t{1} << 20U);
}

// Exit code 0: as it should be; 77: threads are to be had whatever the limit.
void let_go_without_threads() {
  const auto holdings = ForeignHoldings::create();
  ForeignFd fd(any_descriptor(), holdings);
  bool waits = false;
  {
    const test::NoThreads limit;
    fd.reset();
    waits = ForeignHoldings::try_again();
  }
  if (!waits) {
    ::_exit(77);
  }
  RW_CHECK(holdings->descriptors() == 1);
  RW_CHECK(!ForeignHoldings::try_again());
  RW_CHECK(soon([&] { return holdings->descriptors() == 0; }, std::chrono::seconds(60)));
  ::_exit(0);
}

// What couldn't be let go for want of a thread doesn't wait for what comes later.
TEST(ForeignHoldingsDeathTest, LetsGoAsSoonAsThereIsAThread) {
  if (!test::NoThreads::kPossible) {
    GTEST_SKIP() << "a sanitizer has no room for a limit on address space";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  int code = -1;
  const auto ended = [&code](int status) {
    code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return code == 0 || code == 77;
  };
  EXPECT_EXIT(let_go_without_threads(), ended, "");
  if (code == 77) {
    GTEST_SKIP() << "a limit on address space keeps nobody from a thread here";
  }
}

// Threads that have let go keep their holdings for a moment.
void await_no_holdings() {
  EXPECT_TRUE(soon([] { return ForeignHoldings::descriptor_budget().wanted == 0; }, std::chrono::seconds(30)));
}

// A limit on descriptors under which so many are left to front-ends.
test::OpenFilesLimit leave_to_front_ends(rlim_t count) {
  return test::OpenFilesLimit(count > 512 ? count + 512 : 2 * count);
}

// Holds all that it may and, as it may be, a message more.
void take_all(ForeignHoldings& holdings) {
  while (holdings.descriptors() <= holdings.descriptors_max() + 253) {
    holdings.count_descriptor();
  }
}

TEST(ForeignHoldings, WhatASessionNeedsIsItsOwnWhateverOthersHold) {
  constexpr std::uint32_t kRings = 8, kNeeded = 3 * kRings + 2 * 8 + 8;
  await_no_holdings();
  for (const rlim_t possible : {3500U, 10'000U}) {
    const test::OpenFilesLimit limit = leave_to_front_ends(possible);
    if (!limit.set()) {
      GTEST_SKIP() << "the hard limit is too low to leave " << possible << " to front-ends";
    }
    const auto modest = ForeignHoldings::create(kRings);
    std::vector<std::shared_ptr<ForeignHoldings>> greedy;
    greedy.resize(6);
    for (auto& each : greedy) {
      each = ForeignHoldings::create(1);
    }
    EXPECT_LE(ForeignHoldings::descriptor_budget().wanted, ForeignHoldings::descriptor_budget().possible);
    std::uint32_t held = 0;
    for (const auto& each : greedy) {
      take_all(*each);
      held += each->descriptors();
    }
    EXPECT_GT(greedy.front()->descriptors(), kNeeded + 253) << "nobody is greedy";
    EXPECT_GE(modest->descriptors_max(), kNeeded);
    EXPECT_LE(held + kNeeded, possible) << "there would be none left";
  }
}

TEST(ForeignHoldings, TooFewDescriptorsAreDividedByNeed) {
  await_no_holdings();
  const test::OpenFilesLimit limit = leave_to_front_ends(80);
  ASSERT_TRUE(limit.set());
  const auto small = ForeignHoldings::create(1);
  const auto large = ForeignHoldings::create(64);
  EXPECT_GT(ForeignHoldings::descriptor_budget().wanted, ForeignHoldings::descriptor_budget().possible);
  take_all(*small);
  EXPECT_GT(large->descriptors_max(), small->descriptors_max());
  EXPECT_GT(small->descriptors_max(), 5U);
  EXPECT_LE(large->descriptors_max() + small->descriptors_max(), 80U);
}

// Softirq and unaccounted steal are in a thread's CPU time, whoever is at the other end.
TEST(ForeignHoldings, WhatChanceMakesOfSystemCallsIsNoHarm) {
  const auto holdings = ForeignHoldings::create();
  Instant now = Instant{} + Duration::seconds(1000);
  for (int i = 0; i < 400'000; ++i) {
    const bool hit = i % 1000 < 3;  // one after the other, to be worse than chance
    const Duration cpu = i == 200'000 ? Duration::milliseconds(90) : Duration::microseconds(hit ? 2000 : 2);
    ASSERT_FALSE(holdings->charge(cpu, now)) << i;
    now = now + Duration::microseconds(50);
  }
  // A rare caller whom it hits each time.
  for (int i = 0; i < 1000; ++i) {
    now = now + Duration::seconds(1);
    ASSERT_FALSE(holdings->charge(Duration::milliseconds(20), now)) << i;
  }
  // The machine stood still.
  EXPECT_FALSE(holdings->charge(Duration::seconds(5), now));
  EXPECT_FALSE(holdings->harmed());
}

TEST(ForeignHoldings, SystemCallsThatAreAllLongAreHarmSoon) {
  for (const Duration each : {Duration::milliseconds(1), Duration::milliseconds(2), Duration::milliseconds(100)}) {
    SCOPED_TRACE(each.ns);
    const auto holdings = ForeignHoldings::create();
    const Instant start = Instant{} + Duration::seconds(1000);
    Instant now = start;
    int harmless = 0;
    while (harmless < 1000 && !holdings->charge(each, now)) {
      now = now + each;
      ++harmless;
    }
    EXPECT_LE(harmless, 60);
    EXPECT_LE((now - start).ns, Duration::milliseconds(800).ns);
    EXPECT_TRUE(holdings->harmed());
    EXPECT_TRUE(holdings->take_harm());
    EXPECT_FALSE(holdings->harmed());
    EXPECT_FALSE(holdings->charge(each, now)) << "a pause has paid for it";
  }
}

// The calls of another ring hide none.
TEST(ForeignHoldings, LongSystemCallsAmongManyOrdinaryOnesAreHarm) {
  const auto holdings = ForeignHoldings::create();
  const Instant start = Instant{} + Duration::seconds(1000);
  Instant now = start;
  for (int i = 0; i < 100'000 && !holdings->harmed(); ++i) {
    const Duration cpu = i % 50 == 0 ? Duration::milliseconds(2) : Duration::microseconds(2);
    now = now + cpu;
    holdings->charge(cpu, now);
  }
  EXPECT_TRUE(holdings->harmed());
  EXPECT_LE((now - start).ns, Duration::seconds(2).ns);
}

}  // namespace
}  // namespace ringway
