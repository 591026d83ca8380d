#include "guest/sigbus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "guest/access.hpp"
#include "guest/mapping.hpp"
#include "guest/test_memory.hpp"

namespace ringway {
namespace {

using test::kPage;
using test::memory_file;
using test::truncate;

std::shared_ptr<Mapping> map_file(const UniqueFd& file, std::uint64_t bytes) {
  auto mapping = Mapping::create(file.get(), GuestAddress{0}, UserAddress{0}, bytes, 0);
  RW_CHECK(mapping.has_value());
  return *mapping;
}

bool all_are(const std::byte* memory, std::uint64_t bytes, std::byte value) {
  return std::all_of(memory, memory + bytes, [value](std::byte b) { return b == value; });
}

// Ranges beyond any user address, so that no fault can ever be theirs.
void* unreachable(std::uint64_t page) {
  return reinterpret_cast<void*>(0xf000'0000'0000'0000 + page * kPage);
}

TEST(Sigbus, ReadOfATruncatedPageGivesZeroesAndPoisons) {
  const UniqueFd file = memory_file(8 * kPage);
  const auto mapping = map_file(file, 8 * kPage);
  std::memset(mapping->data(), 0x5a, 8 * kPage);
  truncate(file, kPage);
  const std::uint64_t before = sigbus::epoch();

  EXPECT_EQ(mapping->data()[0], std::byte{0x5a});  // still there: no fault yet
  EXPECT_FALSE(mapping->poisoned());
  errno = EXDEV;
  EXPECT_EQ(guest::load<std::uint32_t>(mapping->data() + 5 * kPage), 0U);
  EXPECT_EQ(errno, EXDEV);
  EXPECT_TRUE(mapping->poisoned());
  EXPECT_EQ(sigbus::epoch(), before + 1);

  // All of it was replaced, also what the file still has; one fault, however many pages are touched.
  EXPECT_TRUE(all_are(mapping->data(), 8 * kPage, std::byte{0}));
  EXPECT_EQ(sigbus::epoch(), before + 1);
  char in_file = 0;
  ASSERT_EQ(::pread(file.get(), &in_file, 1, 0), 1);
  EXPECT_EQ(in_file, 0x5a);
}

TEST(Sigbus, WritesAndAtomicsGoOnToo) {
  const UniqueFd file = memory_file(2 * kPage);
  const auto mapping = map_file(file, 2 * kPage);
  truncate(file, 0);
  guest::store_release<std::uint16_t>(mapping->data() + kPage, 7);
  EXPECT_EQ(guest::load_acquire<std::uint16_t>(mapping->data() + kPage), 7U);
  EXPECT_TRUE(mapping->poisoned());
}

TEST(Sigbus, MemoryGrownBackStaysPoisoned) {
  const UniqueFd file = memory_file(kPage);
  const auto mapping = map_file(file, kPage);
  truncate(file, 0);
  EXPECT_EQ(mapping->data()[0], std::byte{0});
  truncate(file, kPage);
  EXPECT_TRUE(mapping->poisoned());
  const auto again = map_file(file, kPage);
  EXPECT_FALSE(again->poisoned());
}

// What a VM's owner can do to us while we copy at full speed: the copy must end, that mapping be poisoned, no other.
TEST(Sigbus, TruncationUnderLoadIsSurvived) {
  constexpr std::uint64_t kBytes = 256 * kPage;
  const UniqueFd file = memory_file(kBytes);
  const UniqueFd other_file = memory_file(kBytes);
  const auto mapping = map_file(file, kBytes);
  const auto other = map_file(other_file, kBytes);
  std::memset(mapping->data(), 0x11, kBytes);
  std::memset(other->data(), 0x22, kBytes);
  const std::uint64_t before = sigbus::epoch();

  constexpr int kThreads = 3;
  std::atomic<int> copying{0};
  std::atomic<int> saw_poison{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      std::vector<std::byte> local(kBytes);
      bool announced = false;
      while (true) {
        guest::copy(local.data(), mapping->data(), kBytes);
        // Whoever read a zero must see the epoch moved before he would publish.
        const bool zero = std::find(local.begin(), local.end(), std::byte{0}) != local.end();
        const bool moved = sigbus::epoch() != before;
        if (zero && moved && mapping->poisoned()) {
          saw_poison.fetch_add(1);
          return;
        }
        if (zero) {
          return;  // missing from the count
        }
        if (!announced) {
          announced = true;
          copying.fetch_add(1);
        }
      }
    });
  }
  while (copying.load() < kThreads) {
    std::this_thread::yield();
  }
  truncate(file, 0);
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(saw_poison.load(), kThreads);
  EXPECT_TRUE(mapping->poisoned());
  EXPECT_EQ(sigbus::epoch(), before + 1);
  EXPECT_FALSE(other->poisoned());
  EXPECT_TRUE(all_are(other->data(), kBytes, std::byte{0x22}));
}

TEST(Sigbus, EfaultOfASystemCallPoisonsTheSameWay) {
  const UniqueFd source = memory_file(2 * kPage);
  const std::array<char, 4> data{'d', 'i', 's', 'k'};
  ASSERT_EQ(::pwrite(source.get(), data.data(), data.size(), 0), 4);
  const UniqueFd file = memory_file(2 * kPage);
  const auto mapping = map_file(file, 2 * kPage);
  truncate(file, kPage);
  std::byte* gone = mapping->data() + kPage;
  const std::uint64_t before = sigbus::epoch();

  ASSERT_EQ(::pread(source.get(), gone, kPage, 0), -1);
  ASSERT_EQ(errno, EFAULT);
  EXPECT_FALSE(mapping->poisoned());
  EXPECT_TRUE(sigbus::poison(gone));
  EXPECT_TRUE(mapping->poisoned());
  EXPECT_EQ(sigbus::epoch(), before + 1);

  // The system call now finds memory, and the file keeps what it has.
  EXPECT_EQ(::pread(source.get(), gone, kPage, 0), static_cast<ssize_t>(kPage));
  EXPECT_EQ(std::memcmp(gone, "disk", 4), 0);
  EXPECT_TRUE(sigbus::poison(mapping->data()));  // again: nothing new to count
  EXPECT_EQ(sigbus::epoch(), before + 1);
}

TEST(Sigbus, EfaultOnOurOwnMemoryIsNotTheGuests) {
  const auto mapping = map_file(memory_file(kPage), kPage);
  int local = 0;
  EXPECT_FALSE(sigbus::poison(&local));
  EXPECT_FALSE(sigbus::poison(nullptr));
  EXPECT_FALSE(sigbus::poison(mapping->data() + kPage));
  EXPECT_FALSE(mapping->poisoned());
}

TEST(Sigbus, ForgetsAMappingThatIsGone) {
  std::byte* was = nullptr;
  {
    const auto mapping = map_file(memory_file(kPage), kPage);
    was = mapping->data();
  }
  EXPECT_FALSE(sigbus::poison(was));
}

TEST(Sigbus, FullTableRefusesAndRecovers) {
  std::vector<int> slots;
  for (std::uint64_t i = 0; i < limits::kMappingsMax; ++i) {
    const int slot = sigbus::add(unreachable(i), kPage, kPage);
    if (slot < 0) {
      break;
    }
    slots.push_back(slot);
  }
  EXPECT_LE(slots.size(), limits::kMappingsMax);
  EXPECT_EQ(sigbus::add(unreachable(0), kPage, kPage), -1);
  const UniqueFd file = memory_file(kPage);
  const auto refused = Mapping::create(file.get(), GuestAddress{0}, UserAddress{0}, kPage, 0);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("too many regions"));

  // A single free slot anywhere is found, and is searched when memory faults.
  const std::size_t middle = slots.size() / 2;
  sigbus::remove(slots[middle]);
  {
    const auto mapping = map_file(file, kPage);
    truncate(file, 0);
    EXPECT_EQ(mapping->data()[0], std::byte{0});
    EXPECT_TRUE(mapping->poisoned());
  }
  slots.erase(slots.begin() + static_cast<std::ptrdiff_t>(middle));
  for (const int slot : slots) {
    EXPECT_FALSE(sigbus::poisoned(slot));
    sigbus::remove(slot);
  }
  // Lowest first again, and clean.
  const int lowest = sigbus::add(unreachable(0), kPage, kPage);
  EXPECT_LE(lowest, 1);
  sigbus::remove(lowest);
}

// Attaching and detaching of other devices changes the table while we search it.
TEST(Sigbus, FaultsAreFoundWhileTheTableChanges) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (std::uint64_t t = 0; t < 2; ++t) {
    others.emplace_back([&stop, t] {
      std::vector<int> mine;
      for (std::uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
        const std::uint64_t pages = 1 + i % 7;
        mine.push_back(sigbus::add(unreachable(t * 1'000'000 + i % 1000), pages * kPage, kPage));
        if (mine.size() > 20) {
          for (const int slot : mine) {
            RW_CHECK(slot >= 0 && !sigbus::poisoned(slot));
            sigbus::remove(slot);
          }
          mine.clear();
        }
      }
      for (const int slot : mine) {
        sigbus::remove(slot);
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    const UniqueFd file = memory_file(2 * kPage);
    const auto mapping = map_file(file, 2 * kPage);
    const std::uint64_t before = sigbus::epoch();
    truncate(file, 0);
    ASSERT_EQ(mapping->data()[kPage], std::byte{0});
    ASSERT_TRUE(mapping->poisoned());
    ASSERT_EQ(sigbus::epoch(), before + 1);
  }
  stop.store(true);
  for (std::thread& thread : others) {
    thread.join();
  }
}

class SigbusDeathTest : public ::testing::Test {
 protected:
  // "threadsafe": each runs in a fresh process, so that the disposition before install() is what the test says.
  SigbusDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Touches a truncated page that no Mapping knows.
  static void fault_outside() {
    const UniqueFd file = memory_file(kPage);
    void* page = ::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file.get(), 0);
    RW_CHECK(page != MAP_FAILED);
    truncate(file, 0);
    static_cast<void>(*static_cast<volatile char*>(page));
  }
  static void install_after(void (*disposition)(int)) {
    RW_CHECK(::signal(SIGBUS, disposition) != SIG_ERR);
    RW_CHECK(sigbus::install().has_value());
  }
  static void fault_inside() {
    const UniqueFd file = memory_file(kPage);
    const auto mapping = map_file(file, kPage);
    truncate(file, 0);
    RW_CHECK(mapping->data()[0] == std::byte{0} && mapping->poisoned());
  }
};

TEST_F(SigbusDeathTest, FaultOutsideTheTableEndsTheProcess) {
  EXPECT_EXIT(
      {
        install_after(SIG_DFL);
        fault_outside();
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(SigbusDeathTest, FaultOutsideTheTableGoesToTheHandlerBefore) {
  EXPECT_EXIT(
      {
        install_after([](int) { ::_exit(42); });
        fault_inside();
        fault_outside();
      },
      ::testing::ExitedWithCode(42), "");
}

TEST_F(SigbusDeathTest, SignalFromAProcessIsNoFault) {
  EXPECT_EXIT(
      {
        install_after(SIG_DFL);
        ::raise(SIGBUS);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(SigbusDeathTest, SignalThatWasIgnoredBeforeStaysIgnored) {
  EXPECT_EXIT(
      {
        install_after(SIG_IGN);
        ::raise(SIGBUS);
        fault_inside();
        ::_exit(43);
      },
      ::testing::ExitedWithCode(43), "");
}

// From now on the kernel answers each mmap of 1 MiB or more as it does under strict overcommit when memory is short.
void refuse_large_mmaps() {
  std::array<sock_filter, 6> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),  // the length's low half
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 1U << 20U, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  RW_CHECK(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  RW_CHECK(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

[[noreturn]] void touch_more_than_there_is_memory_for() {
  constexpr std::uint64_t kBytes = std::uint64_t{1} << 30U;
  const UniqueFd file = memory_file(kBytes);
  const auto mapping = map_file(file, kBytes);
  truncate(file, 0);
  refuse_large_mmaps();
  RW_CHECK(::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
  for (const std::uint64_t page : {std::uint64_t{3}, std::uint64_t{100}, kBytes / kPage - 1}) {
    std::byte* at = mapping->data() + page * kPage;
    RW_CHECK(*at == std::byte{0});
    guest::store<std::uint64_t>(at, page);
    RW_CHECK(mapping->poisoned() && sigbus::epoch() == 1);
  }
  RW_CHECK(guest::load<std::uint64_t>(mapping->data() + 3 * kPage) == 3);
  ::_exit(44);
}

TEST_F(SigbusDeathTest, WithoutMemoryForAllOfItPagesAreReplacedOneByOne) {
  EXPECT_EXIT(touch_more_than_there_is_memory_for(), ::testing::ExitedWithCode(44), "");
}

TEST_F(SigbusDeathTest, InstallingTwiceChangesNothing) {
  EXPECT_EXIT(
      {
        install_after(SIG_DFL);
        RW_CHECK(sigbus::install().has_value());
        fault_inside();
        fault_outside();
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace ringway
