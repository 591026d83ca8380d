// Submitting I/O through the io_uring loop: real files, bursts beyond both queues, exhausted tables. What
// every loop promises is in loop_test.cpp.
#include "loop/io_uring_loop.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "base/prng.hpp"
#include "base/unique_fd.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

class Recorded final : public UringOperation {
 public:
  void on_completion(std::int32_t r) noexcept override {
    ++completions;
    result = r;
    if (then) {
      then();
    }
  }
  int completions = 0;
  std::int32_t result = 0;
  std::function<void()> then;
};

class CountingHandler final : public FdHandler {
 public:
  void on_ready(std::uint32_t /*events*/) noexcept override { ++calls; }
  int calls = 0;
};

std::unique_ptr<IoUringLoop> make(const IoUringOptions& options) {
  auto loop = IoUringLoop::create(options);
  EXPECT_TRUE(loop.has_value()) << loop.error().message;
  return loop.has_value() ? std::move(*loop) : nullptr;
}

// Turns until nothing is in flight.
void finish(IoUringLoop& loop) {
  const Instant deadline = clock_now() + Duration::seconds(20);
  while (loop.in_flight() != 0 && clock_now() < deadline) {
    loop.wait(clock_now(), deadline);
  }
  ASSERT_EQ(loop.in_flight(), 0U) << "operations never completed";
}

// The task work mode is the parameter: deferred (6.1 and newer) or cooperative.
class UringEngineTest : public testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] static std::unique_ptr<IoUringLoop> loop_with(IoUringOptions options) {
    options.deferred_task_work = GetParam();
    auto loop = make(options);
    if (loop != nullptr) {
      EXPECT_EQ(loop->deferred_task_work(), GetParam());
    }
    return loop;
  }
};

INSTANTIATE_TEST_SUITE_P(TaskWork, UringEngineTest, testing::Values(true, false),
                         [](const auto& suite) { return suite.param ? "deferred" : "cooperative"; });

TEST_P(UringEngineTest, WritesAndReadsAFileThroughPlainAndRegisteredDescriptors) {
  auto loop = loop_with({.entries = 8});
  const UniqueFd file(memfd_create("uring_engine", MFD_CLOEXEC));
  auto slot = loop->register_file(file.get());
  ASSERT_TRUE(slot.has_value()) << slot.error().message;

  const std::string text = "written through the registered slot";
  Recorded write_operation;
  io_uring_sqe* sqe = loop->prepare(write_operation);
  ASSERT_NE(sqe, nullptr);
  io_uring_prep_write(sqe, *slot, text.data(), static_cast<unsigned>(text.size()), 4096);
  sqe->flags |= IOSQE_FIXED_FILE;
  EXPECT_EQ(loop->in_flight(), 1U);
  finish(*loop);
  EXPECT_EQ(write_operation.completions, 1);
  EXPECT_EQ(write_operation.result, static_cast<std::int32_t>(text.size()));

  std::string read_back(text.size(), '\0');
  Recorded read_operation;
  sqe = loop->prepare(read_operation);
  ASSERT_NE(sqe, nullptr);
  io_uring_prep_read(sqe, file.get(), read_back.data(), static_cast<unsigned>(read_back.size()), 4096);
  finish(*loop);
  EXPECT_EQ(read_operation.result, static_cast<std::int32_t>(text.size()));
  EXPECT_EQ(read_back, text);

  loop->unregister_file(*slot);
  Recorded after;
  sqe = loop->prepare(after);
  io_uring_prep_read(sqe, *slot, read_back.data(), 1, 0);
  sqe->flags |= IOSQE_FIXED_FILE;
  finish(*loop);
  EXPECT_EQ(after.result, -EBADF);
}

TEST_P(UringEngineTest, FailureOfOneOperationDoesNotHoldUpTheOthers) {
  auto loop = loop_with({.entries = 8});
  std::array<Recorded, 3> operations;
  char byte = 0;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    io_uring_sqe* sqe = loop->prepare(operations[i]);
    if (i == 1) {
      io_uring_prep_rw(255, sqe, -1, nullptr, 0, 0);  // no such operation: refused at submission
    } else {
      io_uring_prep_read(sqe, -1, &byte, 1, 0);
    }
  }
  finish(*loop);
  EXPECT_EQ(operations[0].result, -EBADF);
  EXPECT_EQ(operations[1].result, -EINVAL);
  EXPECT_EQ(operations[2].result, -EBADF);
}

TEST_P(UringEngineTest, BurstFarBeyondTheSubmissionQueueCompletesEachOnce) {
  auto loop = loop_with({.entries = 8, .operations = 1000});
  std::deque<Recorded> operations(1000);
  for (Recorded& operation : operations) {
    io_uring_sqe* sqe = loop->prepare(operation);
    ASSERT_NE(sqe, nullptr);
    io_uring_prep_nop(sqe);
  }
  EXPECT_EQ(loop->in_flight(), 1000U);
  finish(*loop);
  for (const Recorded& operation : operations) {
    ASSERT_EQ(operation.completions, 1);
    ASSERT_EQ(operation.result, 0);
  }
}

TEST_P(UringEngineTest, CompletionQueueOverflowLosesNothing) {
  auto loop = loop_with({.entries = 8, .operations = 4000, .completion_entries = 16});
  ASSERT_EQ(loop->completion_entries(), 16U);
  const UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  CountingHandler handler;
  auto watch = loop->watch(event.get(), EPOLLIN, handler);
  ASSERT_TRUE(watch.has_value());
  loop->poll(clock_now());
  std::deque<Recorded> operations(4000);
  for (Recorded& operation : operations) {
    io_uring_sqe* sqe = loop->prepare(operation);
    // The kernel may say that completions must be taken first.
    for (int i = 0; sqe == nullptr && i < 1000; ++i) {
      loop->poll(clock_now());
      sqe = loop->prepare(operation);
    }
    ASSERT_NE(sqe, nullptr);
    io_uring_prep_nop(sqe);
  }
  const std::uint64_t one = 1;
  ASSERT_EQ(write(event.get(), &one, sizeof one), 8);
  finish(*loop);
  // The event may still stand behind what has overflowed: it comes in the next turns, one queue's length at a time.
  for (int turn = 0; turn < 16; ++turn) {
    loop->poll(clock_now());
  }
  EXPECT_GT(loop->overflows(), 0U) << "the test did not reach what it is for";
  for (const Recorded& operation : operations) {
    ASSERT_EQ(operation.completions, 1);
  }
  EXPECT_GE(handler.calls, 1) << "the event was lost in the overflow";
  // The watch still works, even if the kernel ended the poll because of the overflow.
  loop->poll(clock_now());
  const int calls = handler.calls;
  ASSERT_EQ(write(event.get(), &one, sizeof one), 8);
  loop->poll(clock_now());
  EXPECT_GT(handler.calls, calls);
  loop->unwatch(*watch);
}

TEST_P(UringEngineTest, WaitDoesNotSleepOverAnOverflow) {
  auto loop = loop_with({.entries = 8, .operations = 100, .completion_entries = 8});
  std::deque<Recorded> operations(64);
  for (Recorded& operation : operations) {
    io_uring_sqe* sqe = loop->prepare(operation);
    ASSERT_NE(sqe, nullptr);
    io_uring_prep_nop(sqe);
  }
  const Instant deadline = clock_now() + Duration::seconds(20);
  std::uint32_t handled = 0;
  for (int turn = 0; turn < 100 && handled < 64; ++turn) {
    handled += loop->wait(clock_now(), deadline);
  }
  EXPECT_EQ(handled, 64U);
  EXPECT_LT(clock_now(), deadline);
}

TEST_P(UringEngineTest, FullTableRefusesUntilACompletionFreesASlot) {
  auto loop = loop_with({.entries = 8, .operations = 4});
  std::array<Recorded, 5> operations;
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_NE(loop->prepare(operations[i]), nullptr);
  }
  EXPECT_EQ(loop->prepare(operations[4]), nullptr);
  EXPECT_EQ(loop->in_flight(), 4U);
  finish(*loop);
  EXPECT_NE(loop->prepare(operations[4]), nullptr);
  finish(*loop);
  EXPECT_EQ(operations[4].completions, 1);
}

TEST_P(UringEngineTest, CompletionHandlersMayPrepareWatchAndUnwatch) {
  auto loop = loop_with({.entries = 4, .operations = 64});
  const UniqueFd event(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  CountingHandler handler;
  std::deque<Recorded> chain(200);
  int watched = 0;
  for (std::size_t i = 0; i + 1 < chain.size(); ++i) {
    chain[i].then = [&, i] {
      io_uring_sqe* sqe = loop->prepare(chain[i + 1]);
      ASSERT_NE(sqe, nullptr);
      io_uring_prep_nop(sqe);
      auto id = loop->watch(event.get(), EPOLLIN, handler);
      ASSERT_TRUE(id.has_value());
      loop->unwatch(*id);
      ++watched;
    };
  }
  ASSERT_NE(loop->prepare(chain[0]), nullptr);
  finish(*loop);
  EXPECT_EQ(chain.back().completions, 1);
  EXPECT_EQ(watched, 199);
  EXPECT_EQ(handler.calls, 0);
}

TEST_P(UringEngineTest, UnregisteringABufferLetsWhatIsPreparedHaveIt) {
  auto loop = loop_with({.entries = 8});
  const UniqueFd file(memfd_create("uring_engine", MFD_CLOEXEC));
  ASSERT_EQ(pwrite(file.get(), "abc", 3, 0), 3);
  alignas(4096) static std::array<std::byte, 4096> memory;
  memory = {};
  const Result<int> slot = loop->register_buffer(memory);
  ASSERT_TRUE(slot.has_value()) << slot.error().message;
  Recorded before, after;
  const auto prepare = [&](Recorded& operation) {
    io_uring_prep_read_fixed(loop->prepare(operation), file.get(), memory.data(), 3, 0, *slot);
  };
  prepare(before);
  loop->unregister_buffer(*slot);
  prepare(after);
  finish(*loop);
  EXPECT_EQ(before.result, 3) << "it was prepared while the buffer was there";
  EXPECT_EQ(memory[2], std::byte{'c'});
  EXPECT_EQ(after.result, -EFAULT) << "the buffer is still registered";
}

TEST_P(UringEngineTest, RandomReadsAgainstAModelWithManyInFlight) {
  constexpr std::size_t kBlock = 512;
  constexpr std::size_t kBlocks = 256;
  auto loop = loop_with({.entries = 16, .operations = 128});
  const UniqueFd file(memfd_create("uring_engine", MFD_CLOEXEC));
  std::vector<char> content(kBlock * kBlocks);
  Prng prng(7);
  for (char& byte : content) {
    byte = static_cast<char>(prng.next());
  }
  ASSERT_EQ(pwrite(file.get(), content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));

  struct Slot {
    Recorded operation;
    std::array<char, kBlock> buffer{};
    std::size_t block = 0;
    bool busy = false;
  };
  std::deque<Slot> slots(64);
  int started = 0;
  int finished = 0;
  for (Slot& slot : slots) {
    slot.operation.then = [&] {
      EXPECT_EQ(slot.operation.result, static_cast<std::int32_t>(kBlock));
      EXPECT_EQ(std::memcmp(slot.buffer.data(), content.data() + slot.block * kBlock, kBlock), 0);
      slot.busy = false;
      ++finished;
    };
  }
  constexpr int kReads = 20'000;
  while (finished < kReads) {
    for (Slot& slot : slots) {
      if (slot.busy || started == kReads) {
        continue;
      }
      io_uring_sqe* sqe = loop->prepare(slot.operation);
      if (sqe == nullptr) {
        break;
      }
      slot.block = prng.below(kBlocks);
      slot.busy = true;
      ++started;
      io_uring_prep_read(sqe, file.get(), slot.buffer.data(), kBlock, slot.block * kBlock);
      if (prng.chance(1, 8)) {
        sqe->flags |= IOSQE_ASYNC;  // by a kernel thread, so that completions come from elsewhere and out of order
      }
    }
    loop->wait(clock_now(), clock_now() + Duration::seconds(20));
  }
  EXPECT_EQ(loop->in_flight(), 0U);
}

TEST_P(UringEngineTest, SubmittingAndReapingABatchIsOneSystemCall) {
  auto loop = loop_with({.entries = 64});
  loop->poll(clock_now());
  std::deque<Recorded> operations(32);
  const std::uint64_t before = loop->system_calls();
  for (Recorded& operation : operations) {
    io_uring_prep_nop(loop->prepare(operation));
  }
  EXPECT_EQ(loop->system_calls(), before) << "prepare() alone enters nothing";
  EXPECT_EQ(loop->poll(clock_now()), 32U);
  EXPECT_EQ(loop->system_calls(), before + 1);
}

TEST_P(UringEngineTest, SubmitHandsOverWhatIsPreparedAndHandlesNothing) {
  auto loop = loop_with({.entries = 64});
  loop->poll(clock_now());
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  Recorded write;
  io_uring_prep_write(loop->prepare(write), writer.get(), "x", 1, 0);
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), -1);
  const std::uint64_t before = loop->system_calls();
  loop->submit();
  loop->submit();
  EXPECT_EQ(loop->system_calls(), before + 1) << "nothing is left for the second one";
  EXPECT_EQ(::read(reader.get(), &byte, 1), 1);
  EXPECT_EQ(write.completions, 0);
  EXPECT_EQ(loop->poll(clock_now()), 1U);
  EXPECT_EQ(write.completions, 1);
}

TEST_P(UringEngineTest, WaitSubmitsAndSleepsInOneSystemCall) {
  auto loop = loop_with({.entries = 64});
  loop->poll(clock_now());
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  char byte = 0;
  Recorded operation;
  io_uring_prep_read(loop->prepare(operation), reader.get(), &byte, 1, 0);
  const std::uint64_t before = loop->system_calls();
  std::thread closer([&] { writer.reset(); });
  const Instant deadline = clock_now() + Duration::seconds(20);
  while (operation.completions == 0 && clock_now() < deadline) {
    loop->wait(clock_now(), deadline);
  }
  closer.join();
  EXPECT_EQ(operation.result, 0);
  // Two if the reader's retry went to sleep once more in between.
  EXPECT_LE(loop->system_calls() - before, 2U);
}

TEST(IoUringLoop, FilesBeyondTheTableAreRefusedAndTheirSlotsComeBack) {
  auto loop = make({.entries = 8, .registered_files = 2});
  const UniqueFd file(memfd_create("uring_engine", MFD_CLOEXEC));
  auto first = loop->register_file(file.get());
  auto second = loop->register_file(file.get());
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_NE(*first, *second);
  const auto third = loop->register_file(file.get());
  ASSERT_FALSE(third.has_value());
  EXPECT_NE(third.error().message.find("no slot"), std::string::npos);
  loop->unregister_file(*first);
  const auto again = loop->register_file(file.get());
  ASSERT_TRUE(again.has_value());
  const auto bad = loop->register_file(-5);
  EXPECT_FALSE(bad.has_value());
  loop->unregister_file(*second);
  const auto bad_with_room = loop->register_file(1'000'000);
  ASSERT_FALSE(bad_with_room.has_value());
  EXPECT_EQ(bad_with_room.error().code, EBADF);
  EXPECT_TRUE(loop->register_file(file.get()).has_value()) << "the failure lost a slot";
}

TEST(IoUringLoop, WorksWithoutATableOfRegisteredFiles) {
  auto loop = make({.entries = 8, .registered_files = 0});
  const UniqueFd file(memfd_create("uring_engine", MFD_CLOEXEC));
  EXPECT_FALSE(loop->register_file(file.get()).has_value());
  Recorded operation;
  io_uring_prep_write(loop->prepare(operation), file.get(), "x", 1, 0);
  finish(*loop);
  EXPECT_EQ(operation.result, 1);
}

TEST(IoUringLoop, RefusesSizesThatTheKernelCannotHave) {
  for (const std::uint32_t entries : {0U, 32769U, UINT32_MAX}) {
    const auto loop = IoUringLoop::create({.entries = entries});
    ASSERT_FALSE(loop.has_value());
    EXPECT_NE(loop.error().message.find("32768"), std::string::npos) << loop.error().message;
  }
}

TEST(IoUringLoop, LargestQueueWorks) {
  auto loop = make({.entries = 32768});
  ASSERT_NE(loop, nullptr);
  Recorded operation;
  ASSERT_NE(loop->prepare(operation), nullptr);
  finish(*loop);
}

// cases/blk.md 72: a sleeping worker is idle, not waiting for I/O. The kernel keeps the state of the sleeping thread where
// we can read it, /proc/self/task/TID/stat doesn't tell, so this looks at the CPU's accounting around a sleep.
TEST(IoUringLoop, SleepIsNotCountedAsWaitingForIo) {
  auto loop = make({.entries = 8});
  if (loop->counts_as_iowait()) {
    GTEST_SKIP() << "this kernel has no IORING_ENTER_NO_IOWAIT (6.15)";
  }
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  char byte = 0;
  Recorded operation;
  io_uring_prep_read(loop->prepare(operation), reader.get(), &byte, 1, 0);
  // procs_blocked counts the threads that sleep in iowait right now, over all CPUs.
  // A second thread samples while we sleep. Other processes add to the number, but we would all the time: once it is zero
  // while we sleep, we aren't in it.
  const auto blocked_now = [] {
    std::ifstream stat("/proc/stat");
    std::string word;
    while (stat >> word) {
      if (word == "procs_blocked") {
        int value = -1;
        stat >> value;
        return value;
      }
    }
    return -1;
  };
  int least = INT_MAX;
  std::thread sampler([&] {
    const Instant end = clock_now() + Duration::seconds(10);
    while (least != 0 && clock_now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // by then the other one sleeps
      least = std::min(least, blocked_now());
    }
    loop->wake();
  });
  const Instant deadline = clock_now() + Duration::seconds(20);
  loop->wait(clock_now(), deadline);
  sampler.join();
  int least_without_us = INT_MAX;
  for (int i = 0; i < 250 && least != 0 && least_without_us != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    least_without_us = std::min(least_without_us, blocked_now());
  }
  if (least != 0 && least_without_us != 0) {
    writer.reset();
    finish(*loop);
    GTEST_SKIP() << "other processes wait for I/O all the time";
  }
  EXPECT_EQ(least, 0);
  writer.reset();
  finish(*loop);
}

}  // namespace
}  // namespace ringway
