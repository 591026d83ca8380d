// Long requests to the stores that copy on the worker: a slice at a time, and in between the loop's other work.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/blk/make_store.hpp"
#include "backend/blk/ram_store.hpp"
#include "backend/blk/store_test_support.hpp"
#include "base/limits.hpp"
#include "loop/simulated_loop.hpp"

namespace ringway {
namespace {

using test::GuestBuffer;
using test::TestRequest;

constexpr std::uint64_t kSlice = limits::kCopySliceBytes;
constexpr std::uint64_t kCopiedDiskBytes = 16 * kSlice;

class SlicedCopy : public testing::TestWithParam<const char*> {
 protected:
  SlicedCopy() {
    if (std::string(GetParam()) == "ram") {
      store_ = *make_ram_store({.capacity_bytes = kCopiedDiskBytes});
    } else {
      BlkStoreOptions options;
      options.path = directory_.make_file("disk", kCopiedDiskBytes);
      options.engine = BlkEngine::inline_;
      options.direct = false;
      store_ = std::move(make_blk_store(options)->store);
    }
    channel_ = *store_->open_channel(loop_, counters_);
  }

  // Polls until the request is done; how often.
  std::uint64_t polls(const TestRequest& request) {
    std::uint64_t count = 0;
    for (; request.pending() && count < 1000; ++count) {
      EXPECT_EQ(loop_.poll(loop_.now()), 1U);
    }
    return count;
  }
  void fill_disk(std::uint64_t word) {
    GuestBuffer buffer(kCopiedDiskBytes);
    buffer.fill(word);
    TestRequest write;
    write.data(BlkOpcode::out, 0, buffer).submit(*channel_);
    EXPECT_EQ(polls(write), kCopiedDiskBytes / kSlice);
    EXPECT_EQ(write.status(), spec::kBlkStatusOk);
  }
  bool disk_is(std::uint64_t word, std::uint64_t offset, std::uint64_t bytes) {
    GuestBuffer buffer(bytes);
    TestRequest read;
    read.data(BlkOpcode::in, offset, buffer).submit(*channel_);
    static_cast<void>(polls(read));
    return read.status() == spec::kBlkStatusOk && buffer.all_words_are(word);
  }

  test::TemporaryDirectory directory_{"/dev/shm"};
  SimulatedLoop loop_;
  BlkChannelCounters counters_;
  std::unique_ptr<BlkStore> store_;
  std::unique_ptr<BlkChannel> channel_;
};

TEST_P(SlicedCopy, ShortOnesAreDoneAtOnce) {
  GuestBuffer buffer(kSlice);
  TestRequest read;
  read.data(BlkOpcode::in, 0, buffer).submit(*channel_);
  EXPECT_FALSE(read.pending());
  EXPECT_EQ(channel_->take_copied(), kSlice);
  EXPECT_EQ(channel_->take_copied(), 0U);
  EXPECT_EQ(loop_.poll(loop_.now()), 0U);
}

// Segments of odd lengths, so that slices end anywhere in them, written and read back.
TEST_P(SlicedCopy, LongOnesArriveWhole) {
  constexpr std::uint64_t kBytes = 5 * kSlice + 512 * 9;
  GuestBuffer source(kBytes);
  for (std::uint64_t at = 0; at < kBytes; at += 8) {
    const std::uint64_t word = at * 0x9e37'79b9'7f4a'7c15U;
    std::memcpy(source.data() + at, &word, sizeof word);
  }
  const auto pieces = [](const GuestBuffer& buffer, std::uint64_t length) {
    std::vector<iovec> result;
    for (std::uint64_t at = 0; at < buffer.size(); at += result.back().iov_len) {
      result.push_back({buffer.data() + at, std::min<std::uint64_t>(length, buffer.size() - at)});
      length = length * 5 / 3 + 1;
    }
    return result;
  };
  TestRequest write;
  write.data(BlkOpcode::out, 4096, pieces(source, 7)).submit(*channel_);
  EXPECT_TRUE(write.pending());
  EXPECT_EQ(channel_->take_copied(), 0U);
  EXPECT_EQ(channel_->in_flight(), 1U);
  EXPECT_EQ(polls(write), 6U);
  EXPECT_EQ(write.status(), spec::kBlkStatusOk);
  GuestBuffer target(kBytes);
  TestRequest read;
  read.data(BlkOpcode::in, 4096, pieces(target, 1000)).submit(*channel_);
  EXPECT_EQ(polls(read), 6U);
  EXPECT_EQ(read.status(), spec::kBlkStatusOk);
  EXPECT_EQ(std::memcmp(source.data(), target.data(), kBytes), 0);
  EXPECT_EQ(channel_->in_flight(), 0U);
  EXPECT_EQ(counters_.short_transfers.get(), 0U) << "a slice is no short transfer";
}

TEST_P(SlicedCopy, ShortOnesPassLongOnes) {
  GuestBuffer large(8 * kSlice);
  GuestBuffer small(512);
  TestRequest first, second, short_one;
  first.data(BlkOpcode::in, 0, large).submit(*channel_);
  second.data(BlkOpcode::in, 0, large).submit(*channel_);
  short_one.data(BlkOpcode::in, 0, small).submit(*channel_);
  EXPECT_FALSE(short_one.pending());
  EXPECT_TRUE(first.pending() && second.pending());
  EXPECT_EQ(polls(first) + polls(second), 16U) << "one slice each time, whoever's it is";
}

TEST_P(SlicedCopy, RangesAreClearedWhole) {
  for (const BlkOpcode opcode : {BlkOpcode::discard, BlkOpcode::write_zeroes}) {
    for (const bool unmap : {false, true}) {
      fill_disk(7);
      TestRequest clear;
      clear
          .ranges(opcode, {{.offset = 4096, .bytes = 3 * kSlice + 4096, .unmap = unmap},
                           {.offset = 8 * kSlice, .bytes = 0, .unmap = unmap},
                           {.offset = 9 * kSlice, .bytes = 2 * kSlice, .unmap = unmap}})
          .submit(*channel_);
      EXPECT_TRUE(clear.pending());
      EXPECT_GE(polls(clear), 5U);
      EXPECT_EQ(clear.status(), spec::kBlkStatusOk);
      EXPECT_TRUE(disk_is(7, 0, 4096));
      EXPECT_TRUE(disk_is(0, 4096, 3 * kSlice + 4096));
      EXPECT_TRUE(disk_is(7, 3 * kSlice + 8192, 6 * kSlice - 8192));
      EXPECT_TRUE(disk_is(0, 9 * kSlice, 2 * kSlice));
      EXPECT_TRUE(disk_is(7, 11 * kSlice, 5 * kSlice));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, SlicedCopy, testing::Values("ram", "inline"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace ringway
