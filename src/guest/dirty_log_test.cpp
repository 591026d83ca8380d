#include "guest/dirty_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "base/prng.hpp"
#include "guest/test_memory.hpp"

namespace ringway {
namespace {

using test::kPage;
using test::memory_file;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A bitmap of `bytes` at `offset` in a file that has more on both sides, read back as the front-end would.
class Bitmap {
 public:
  explicit Bitmap(std::uint64_t bytes, std::uint64_t offset = 0)
      : bytes_(bytes), offset_(offset), file_(memory_file(offset + bytes + kPage)) {
    auto log = DirtyLog::create(file_.get(), bytes, offset);
    RW_CHECK(log.has_value());
    log_ = *log;
  }

  DirtyLog& log() { return *log_; }
  const UniqueFd& file() { return file_; }

  // The pages whose bits are set: bit p % 8 of byte p / 8. Fails if a byte around the bitmap was touched.
  std::set<std::uint64_t> pages() {
    std::vector<unsigned char> all(offset_ + bytes_ + kPage);
    RW_CHECK(::pread(file_.get(), all.data(), all.size(), 0) == static_cast<ssize_t>(all.size()));
    std::set<std::uint64_t> set;
    for (std::uint64_t i = 0; i < all.size(); ++i) {
      if (i < offset_ || i >= offset_ + bytes_) {
        EXPECT_EQ(all[i], 0) << "byte " << i << " lies outside the bitmap";
        continue;
      }
      for (std::uint64_t bit = 0; bit < 8; ++bit) {
        if ((all[i] >> bit & 1U) != 0) {
          set.insert((i - offset_) * 8 + bit);
        }
      }
    }
    return set;
  }

 private:
  std::uint64_t bytes_;
  std::uint64_t offset_;
  UniqueFd file_;
  std::shared_ptr<DirtyLog> log_;
};

TEST(DirtyLog, OneByteMarksItsPage) {
  Bitmap bitmap(16);
  bitmap.log().mark(GuestAddress{9 * kPage + 17}, 1);
  EXPECT_THAT(bitmap.pages(), ElementsAre(9));
}

TEST(DirtyLog, RangesMarkThePagesThatTheyTouch) {
  Bitmap bitmap(16);
  bitmap.log().mark(GuestAddress{2 * kPage}, kPage);  // a page exactly
  EXPECT_THAT(bitmap.pages(), ElementsAre(2));
  bitmap.log().mark(GuestAddress{5 * kPage - 1}, 2);  // the last byte of one, the first of the next
  EXPECT_THAT(bitmap.pages(), ElementsAre(2, 4, 5));
  bitmap.log().mark(GuestAddress{7 * kPage}, kPage + 1);
  EXPECT_THAT(bitmap.pages(), ElementsAre(2, 4, 5, 7, 8));
  bitmap.log().mark(GuestAddress{20 * kPage}, 0);
  EXPECT_THAT(bitmap.pages(), ElementsAre(2, 4, 5, 7, 8));
  EXPECT_EQ(bitmap.log().outside(), 0U);
}

TEST(DirtyLog, PagesBeyondTheBitmapAreCountedOnly) {
  Bitmap bitmap(1);  // pages 0 to 7
  bitmap.log().mark(GuestAddress{6 * kPage}, 4 * kPage);
  EXPECT_THAT(bitmap.pages(), ElementsAre(6, 7));
  EXPECT_EQ(bitmap.log().outside(), 2U);
  bitmap.log().mark(GuestAddress{8 * kPage}, 1);
  EXPECT_EQ(bitmap.log().outside(), 3U);
  bitmap.log().mark(GuestAddress{UINT64_MAX}, 1);
  EXPECT_EQ(bitmap.log().outside(), 4U);
  bitmap.log().mark(GuestAddress{UINT64_MAX - kPage}, UINT64_MAX);  // wraps: ends with the address space
  EXPECT_EQ(bitmap.log().outside(), 6U);
  EXPECT_THAT(bitmap.pages(), ElementsAre(6, 7));
}

// Every bit width of head, middle and tail, at aligned and unaligned places, against the plain rule.
TEST(DirtyLog, AnyRangeAtAnyPlaceOfTheFile) {
  Prng prng(4096);
  for (const std::uint64_t offset : {0U, 1U, 3U, 7U, 8U, 4095U}) {
    for (const std::uint64_t bytes : {1U, 7U, 8U, 9U, 15U, 16U, 40U, 61U}) {
      Bitmap bitmap(bytes, offset);
      std::set<std::uint64_t> expected;
      std::uint64_t outside = 0;
      for (int i = 0; i < 6; ++i) {
        const std::uint64_t first = prng.below(bytes * 8 + 4);
        const std::uint64_t pages = 1 + prng.below(prng.chance(1, 2) ? 4 : bytes * 8);
        bitmap.log().mark(GuestAddress{first * kPage + prng.below(kPage)}, (pages - 1) * kPage + 1);
        // The start may lie so late in its page that the range still ends in the page before `first + pages`: it has
        // (pages - 1) * 4096 + 1 bytes, hence ends exactly pages - 1 pages after its start.
        for (std::uint64_t page = first; page < first + pages; ++page) {
          if (page < bytes * 8) {
            expected.insert(page);
          } else {
            ++outside;
          }
        }
        ASSERT_EQ(bitmap.pages(), expected) << "offset " << offset << " bytes " << bytes;
        ASSERT_EQ(bitmap.log().outside(), outside);
      }
    }
  }
}

TEST(DirtyLog, HostMemoryIsMarkedByItsGuestAddress) {
  auto low = Mapping::create_anonymous(GuestAddress{0}, UserAddress{0}, 4 * kPage);
  auto high = Mapping::create_anonymous(GuestAddress{64 * kPage}, UserAddress{0}, 4 * kPage);
  auto stranger = Mapping::create_anonymous(GuestAddress{4 * kPage}, UserAddress{0}, 4 * kPage);
  ASSERT_TRUE(low.has_value() && high.has_value() && stranger.has_value());
  auto map = RegionMap::create({*low, *high});
  ASSERT_TRUE(map.has_value());
  Bitmap bitmap(16);
  bitmap.log().mark(**map, (*high)->data() + kPage, kPage + 1);
  EXPECT_THAT(bitmap.pages(), ElementsAre(65, 66));
  EXPECT_EQ(bitmap.log().outside(), 0U);
  bitmap.log().mark(**map, (*stranger)->data(), kPage + 1);
  EXPECT_THAT(bitmap.pages(), ElementsAre(65, 66));
  EXPECT_EQ(bitmap.log().outside(), 2U);
}

// Two workers and the front-end, which fetches and clears: each mark of a page is seen by exactly those who look after it.
TEST(DirtyLog, MarksOfTwoThreadsInOneWordAreNotLost) {
  constexpr int kRounds = 20'000;
  Bitmap bitmap(8);
  auto* word = reinterpret_cast<std::uint64_t*>(bitmap.log().mapping().data());
  std::atomic<int> ready{0};
  const auto worker = [&](std::uint64_t parity) {
    ready.fetch_add(1);
    while (ready.load() < 2) {
      std::this_thread::yield();
    }
    for (int i = 0; i < kRounds; ++i) {
      const std::uint64_t page = static_cast<std::uint64_t>(i) % 32 * 2 + parity;
      bitmap.log().mark(GuestAddress{page * kPage}, 1);
      // Nobody else sets or clears this bit, so it must stand until we clear it ourselves.
      const std::uint64_t bit = std::uint64_t{1} << page;
      ASSERT_NE(__atomic_fetch_and(word, ~bit, __ATOMIC_ACQ_REL) & bit, 0U) << "round " << i;
    }
  };
  std::thread even(worker, 0);
  std::thread odd(worker, 1);
  even.join();
  odd.join();
  EXPECT_THAT(bitmap.pages(), IsEmpty());
}

// Data written before mark() must be visible to a front-end that fetched the bit.
TEST(DirtyLog, DataIsVisibleToWhoeverFetchesTheBit) {
  constexpr std::uint64_t kRounds = 2'000;
  Bitmap bitmap(8);
  auto* word = reinterpret_cast<std::uint64_t*>(bitmap.log().mapping().data());
  std::uint64_t data = 0;  // plain: a race here is what ThreadSanitizer would report
  std::atomic<std::uint64_t> copied{0};
  std::thread front_end([&] {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      while ((__atomic_exchange_n(word, 0, __ATOMIC_ACQUIRE) & 1U) == 0) {
        std::this_thread::yield();
      }
      ASSERT_EQ(data, round);
      copied.store(round, std::memory_order_release);
    }
  });
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    data = round;
    bitmap.log().mark(GuestAddress{0}, 1);
    while (copied.load(std::memory_order_acquire) != round) {
      std::this_thread::yield();
    }
  }
  front_end.join();
}

TEST(DirtyLog, RefusesAFileThatIsTooShort) {
  const UniqueFd file = memory_file(kPage);
  const auto too_short = DirtyLog::create(file.get(), kPage + 1, 0);
  ASSERT_FALSE(too_short.has_value());
  EXPECT_THAT(too_short.error().message,
              ::testing::StartsWith("dirty log of 4097 bytes starts at offset 0 of a file that "));
  EXPECT_FALSE(DirtyLog::create(file.get(), kPage, 1).has_value());
  EXPECT_FALSE(DirtyLog::create(file.get(), 0, 0).has_value());
  EXPECT_FALSE(DirtyLog::create(file.get(), UINT64_MAX, 2).has_value());
  EXPECT_TRUE(DirtyLog::create(file.get(), kPage, 0).has_value());
}

TEST(DirtyLog, TruncatedBitmapIsPoisoned) {
  Bitmap bitmap(16);
  EXPECT_FALSE(bitmap.log().poisoned());
  test::truncate(bitmap.file(), 0);
  bitmap.log().mark(GuestAddress{0}, 1);
  EXPECT_TRUE(bitmap.log().poisoned());
}

}  // namespace
}  // namespace ringway
