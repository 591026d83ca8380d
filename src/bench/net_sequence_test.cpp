#include "bench/net_sequence.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.hpp"

namespace ringway {

void PrintTo(const NetSequence::Counts& counts, std::ostream* out) {
  *out << counts.received << " received, " << counts.lost << " lost, " << counts.duplicated << " duplicated, "
       << counts.reordered << " reordered";
}

namespace {

using Counts = NetSequence::Counts;

Counts after(const std::vector<std::uint64_t>& numbers) {
  NetSequence sequence;
  for (const std::uint64_t number : numbers) {
    sequence.arrived(number);
  }
  return sequence.counts();
}

TEST(NetSequence, WhatComesInOrderIsReceived) {
  EXPECT_EQ(after({0, 1, 2, 3}), (Counts{.received = 4}));
}

TEST(NetSequence, AGapIsLost) {
  EXPECT_EQ(after({0, 1, 4}), (Counts{.received = 3, .lost = 2}));
  EXPECT_EQ(after({3}), (Counts{.received = 1, .lost = 3}));
}

TEST(NetSequence, ALateFrameIsReorderedAndNotLost) {
  EXPECT_EQ(after({0, 2, 1, 3}), (Counts{.received = 4, .reordered = 1}));
  EXPECT_EQ(after({0, 3, 1, 4}), (Counts{.received = 4, .lost = 1, .reordered = 1}));
}

TEST(NetSequence, ASecondOneIsADuplicate) {
  EXPECT_EQ(after({0, 1, 1, 0, 2}), (Counts{.received = 3, .duplicated = 2}));
  EXPECT_EQ(after({0, 2, 2}), (Counts{.received = 2, .lost = 1, .duplicated = 1}));
  EXPECT_EQ(after({0, 2, 1, 1}), (Counts{.received = 3, .duplicated = 1, .reordered = 1}));
}

TEST(NetSequence, WhatIsGivenUpIsLostUntilItComes) {
  NetSequence sequence;
  sequence.arrived(0);
  sequence.end_at(5);
  EXPECT_EQ(sequence.counts(), (Counts{.received = 1, .lost = 4}));
  EXPECT_EQ(sequence.next(), 5U);
  sequence.end_at(3);  // it was beyond that already
  EXPECT_EQ(sequence.next(), 5U);
  sequence.arrived(2);
  sequence.arrived(2);
  EXPECT_EQ(sequence.counts(), (Counts{.received = 2, .lost = 3, .duplicated = 1, .reordered = 1}));
}

TEST(NetSequence, AGapLongerThanTheWindowLeavesNoTraceOfWhatWasBefore) {
  NetSequence sequence;
  for (std::uint64_t number = 0; number < 2 * NetSequence::kWindow; ++number) {
    sequence.arrived(number);
  }
  const std::uint64_t far = 10 * NetSequence::kWindow + 17;
  sequence.arrived(far);
  EXPECT_EQ(sequence.counts().lost, 8 * NetSequence::kWindow + 17);
  // None below was received: each within the window comes late, once.
  for (std::uint64_t number = far - 1000; number < far; ++number) {
    sequence.arrived(number);
  }
  EXPECT_EQ(sequence.counts().reordered, 1000U);
  EXPECT_EQ(sequence.counts().duplicated, 0U);
}

TEST(NetSequence, WhatIsOlderThanTheWindowCountsAsDuplicate) {
  NetSequence sequence;
  sequence.arrived(1);
  sequence.arrived(2 * NetSequence::kWindow);
  sequence.arrived(0);
  EXPECT_EQ(sequence.counts().duplicated, 1U);
  EXPECT_EQ(sequence.counts().reordered, 0U);
}

// Against a list of what came.
TEST(NetSequence, AgreesWithAPlainCount) {
  Prng random(3);
  for (int round = 0; round < 50; ++round) {
    constexpr std::uint64_t kNumbers = 3000;
    std::vector<std::uint64_t> numbers;
    std::uint64_t dropped = 0, doubled = 0;
    for (std::uint64_t number = 0; number < kNumbers; ++number) {
      const std::uint64_t fate = random.below(10);
      dropped += fate == 0 ? 1 : 0;
      doubled += fate == 1 ? 1 : 0;
      numbers.insert(numbers.end(), fate == 0 ? 0 : fate == 1 ? 2 : 1, number);
    }
    for (std::size_t i = 0; i + 60 < numbers.size(); i += 1 + random.below(40)) {
      std::swap(numbers[i], numbers[i + random.below(60)]);
    }
    NetSequence sequence;
    std::uint64_t highest = 0, late = 0;
    std::vector<bool> seen(kNumbers);
    for (const std::uint64_t number : numbers) {
      sequence.arrived(number);
      late += !seen[number] && number < highest ? 1 : 0;
      seen[number] = true;
      highest = std::max(highest, number);
    }
    sequence.end_at(kNumbers);
    EXPECT_EQ(sequence.counts(),
              (Counts{.received = kNumbers - dropped, .lost = dropped, .duplicated = doubled, .reordered = late}));
  }
}

std::uint32_t word_sum(std::span<const std::byte> bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    sum += std::to_integer<std::uint32_t>(bytes[i]) * 256 + std::to_integer<std::uint32_t>(bytes[i + 1]);
  }
  return sum % 0xffff;
}

TEST(NumberedFrame, IsValidAndTellsItsNumber) {
  for (const std::uint32_t bytes : {kNetNumberedBytesMin, 61U, 1514U, 9014U, kNetNumberedBytesMax}) {
    std::vector<std::byte> frame(bytes, std::byte{0xee});
    write_numbered_frame(frame, {1, 2, 3, 4, 5, 6}, {.run = 7, .flow = 3, .number = 0});
    set_frame_number(frame.data(), 1'000'000'000'000);
    EXPECT_EQ(frame[0], std::byte{1});
    EXPECT_EQ(frame[12], std::byte{0x08});
    EXPECT_EQ(frame[14], std::byte{0x45});
    EXPECT_EQ(std::to_integer<std::uint32_t>(frame[16]) * 256 + std::to_integer<std::uint32_t>(frame[17]), bytes - 14);
    EXPECT_EQ(std::to_integer<std::uint32_t>(frame[38]) * 256 + std::to_integer<std::uint32_t>(frame[39]), bytes - 34);
    EXPECT_EQ(word_sum(std::span(frame).subspan(14, 20)), 0U) << "the checksum of the IPv4 header";
    NetFrameLabel label;
    ASSERT_TRUE(read_frame_label(frame, label));
    EXPECT_EQ(label.run, 7);
    EXPECT_EQ(label.flow, 3);
    EXPECT_EQ(label.number, 1'000'000'000'000U);
    frame[kNetLabelOffset] = std::byte{0};
    EXPECT_FALSE(read_frame_label(frame, label));
    EXPECT_FALSE(read_frame_label(std::span(frame).first(57), label));
  }
}

std::vector<std::byte> frame_of(std::uint16_t run, std::uint16_t flow, std::uint64_t number) {
  std::vector<std::byte> frame(60);
  write_numbered_frame(frame, {}, {.run = run, .flow = flow, .number = number});
  return frame;
}

TEST(NetArrivals, KeepFlowsAndRunsApart) {
  NetArrivals arrivals(2, 7);
  EXPECT_EQ(arrivals.take(frame_of(7, 0, 0)), &arrivals.flow(0));
  EXPECT_EQ(arrivals.take(frame_of(7, 1, 0)), &arrivals.flow(1));
  EXPECT_EQ(arrivals.take(frame_of(7, 1, 2)), &arrivals.flow(1));
  EXPECT_EQ(arrivals.take(frame_of(6, 0, 5)), nullptr);  // of an earlier run
  EXPECT_EQ(arrivals.take(frame_of(7, 2, 5)), nullptr);  // of a pair that isn't there
  EXPECT_EQ(arrivals.take(std::vector<std::byte>(100)), nullptr);
  EXPECT_EQ(arrivals.counts(), (Counts{.received = 3, .lost = 1}));
  EXPECT_EQ(arrivals.stale(), 2U);
  EXPECT_EQ(arrivals.unnumbered(), 1U);
}

TEST(NetArrivals, TakeUpAFlowWhereverItIs) {
  NetArrivals arrivals(2, 0);
  EXPECT_NE(arrivals.take(frame_of(9, 1, 1'000'000)), nullptr);
  EXPECT_NE(arrivals.take(frame_of(9, 1, 1'000'002)), nullptr);
  EXPECT_EQ(arrivals.take(frame_of(8, 1, 0)), nullptr);  // one sender at a time
  EXPECT_EQ(arrivals.counts(), (Counts{.received = 2, .lost = 1}));
}

}  // namespace
}  // namespace ringway
