#include "request/net_checksum.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "request/test_frames.hpp"

namespace ringway {
namespace {

test::Bytes random_bytes(std::size_t bytes, std::uint64_t seed) {
  Prng prng(seed);
  test::Bytes out(bytes);
  for (std::uint8_t& byte : out) {
    byte = static_cast<std::uint8_t>(prng.next());
  }
  return out;
}

// As the wire has it.
std::size_t wire(std::uint16_t stored) {
  return std::byteswap(stored);
}

std::size_t slow_checksum(std::span<const std::uint8_t> bytes) {
  const std::size_t checksum = ~test::slow_sum(bytes) & 0xffffU;
  return checksum == 0 ? 0xffff : checksum;
}

TEST(NetChecksum, TheExampleOfRfc1071) {
  const test::Bytes bytes = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
  NetSum sum;
  sum.add(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(wire(sum.folded()), 0xddf2U);
  EXPECT_EQ(wire(sum.checksum()), 0x220dU);
}

TEST(NetChecksum, EqualsASumByteByByteForEachLengthAndAlignment) {
  const test::Bytes bytes = random_bytes(2200, 1);
  for (std::size_t start = 0; start < 17; ++start) {
    for (std::size_t length = 0; length < 300; ++length) {
      const auto part = std::span(bytes).subspan(start, length);
      NetSum sum;
      sum.add(std::as_bytes(part));
      ASSERT_EQ(wire(sum.folded()), test::slow_sum(part)) << start << ' ' << length;
    }
  }
  for (const std::size_t length : {1499U, 1500U, 1501U, 2047U, 2048U, 2049U}) {
    NetSum sum;
    sum.add(std::as_bytes(std::span(bytes).first(length)));
    EXPECT_EQ(wire(sum.folded()), test::slow_sum(std::span(bytes).first(length)));
  }
}

TEST(NetChecksum, CarriesAreNotLostWhenAllBitsAreSet) {
  for (const std::size_t length : {2U, 63U, 64U, 1500U, 65535U, 1048576U}) {
    const test::Bytes ones(length, 0xff);
    NetSum sum;
    sum.add(std::as_bytes(std::span(ones)));
    EXPECT_EQ(wire(sum.folded()), test::slow_sum(ones)) << length;
  }
  // A sum whose carries make carries three times over.
  test::Bytes many(4 * std::size_t{0x10001}, 0xff);
  test::append(many, {0, 0, 1, 0});
  NetSum sum;
  sum.add(std::as_bytes(std::span(many)));
  EXPECT_EQ(wire(sum.folded()), test::slow_sum(many));
  NetSum nothing;
  EXPECT_EQ(nothing.folded(), 0);
  const test::Bytes zeros(100);
  nothing.add(std::as_bytes(std::span(zeros)));
  EXPECT_EQ(nothing.folded(), 0) << "0 only for zeros";
  EXPECT_EQ(nothing.checksum(), 0xffff);
}

TEST(NetChecksum, PiecesOfOddLengthsGiveTheSumOfTheWhole) {
  Prng prng(3);
  for (int round = 0; round < 2000; ++round) {
    const test::Bytes bytes = random_bytes(prng.below(700), prng.next());
    const std::size_t piece_max = 1 + prng.below(round % 2 == 0 ? 5 : 300);
    const test::Pieces pieces(bytes, prng.next(), piece_max);
    NetSum sum;
    NetCursor cursor(pieces.list());
    const std::size_t first = prng.below(bytes.size() + 1);
    sum.add(cursor, first);
    sum.add(cursor, bytes.size());  // more than there is
    ASSERT_EQ(wire(sum.folded()), test::slow_sum(bytes));

    // The same, copied into other pieces.
    test::Pieces target(test::Bytes(bytes.size() + 3, 0xee), prng.next(), 1 + prng.below(90));
    NetCursor from(pieces.list());
    NetCursor to(target.list());
    NetSum copied;
    ASSERT_EQ(copied.copy(to, from, first), first);
    ASSERT_EQ(copied.copy(to, from, bytes.size()), bytes.size() - first);
    ASSERT_EQ(wire(copied.folded()), test::slow_sum(bytes));
    test::Bytes expected = bytes;
    expected.insert(expected.end(), 3, 0xee);
    ASSERT_EQ(target.joined(), expected);
  }
}

TEST(NetChecksum, ACopyEndsWhereTheRoomEnds) {
  const test::Bytes bytes = random_bytes(100, 4);
  const test::Pieces pieces(bytes, 5, 7);
  const test::Pieces target(test::Bytes(61), 6, 7);
  NetCursor from(pieces.list());
  NetCursor to(target.list());
  NetSum sum;
  EXPECT_EQ(sum.copy(to, from, 100), 61U);
  EXPECT_EQ(wire(sum.folded()), test::slow_sum(std::span(bytes).first(61)));
  NetCursor again(pieces.list());
  NetCursor full(target.list());
  EXPECT_EQ(net_copy(full, again, 100), 61U);
  EXPECT_EQ(target.joined(), test::Bytes(bytes.begin(), bytes.begin() + 61));
  NetCursor source(pieces.list());
  const test::Pieces large(test::Bytes(300), 7, 9);
  NetCursor room(large.list());
  EXPECT_EQ(net_copy(room, source, 300), 100U);
}

TEST(NetChecksum, NumbersOfTheWireAndStoredWords) {
  NetSum sum;
  sum.add_number(std::uint16_t{0x1234});
  EXPECT_EQ(wire(sum.folded()), 0x1234U);
  sum.add_number(std::uint32_t{0x00011001});
  EXPECT_EQ(wire(sum.folded()), 0x2236U);
  NetSum other;
  other.add_stored(sum.folded());
  other.add_number(std::uint16_t{0xffff});
  EXPECT_EQ(wire(other.folded()), 0x2236U) << "0xffff is another 0";
}

// A frame as a driver leaves it, over all splits of source and target that matter, becomes one that a receiver accepts.
TEST(NetChecksum, CompletesWhatADriverLeftPartial) {
  Prng prng(8);
  for (const bool ipv6 : {false, true}) {
    for (const bool udp : {false, true}) {
      for (const std::size_t payload : {0U, 1U, 2U, 3U, 61U, 62U, 63U, 64U, 1447U, 1448U, 9000U, 60000U}) {
        const test::ShapedFrame frame =
            test::make_frame({.ipv6 = ipv6, .udp = udp, .tags = 1, .payload_bytes = payload}, payload);
        const test::Pieces from(frame.bytes, prng.next(), payload < 100 ? 3 : 2000);
        const test::Pieces to(test::Bytes(frame.bytes.size()), prng.next(), payload < 100 ? 3 : 1500);
        net_copy_completing(NetCursor(to.list()), from.list(), frame.bytes.size(), frame.l4, udp ? 6 : 16);
        const test::Bytes received = to.joined();
        const test::SeenFrame seen = test::look_at(received);
        EXPECT_EQ(seen.fault, "") << ipv6 << udp << payload;
        EXPECT_EQ(from.joined(), frame.bytes) << "the sender's memory stays as it is";
        test::Bytes expected = frame.bytes;
        const std::size_t field = frame.l4 + (udp ? 6 : 16);
        test::put16(expected, field, slow_checksum(std::span(frame.bytes).subspan(frame.l4)));
        EXPECT_EQ(received, expected);
      }
    }
  }
}

TEST(NetChecksum, AResultOfZeroBecomesAllOnes) {
  test::ShapedFrame frame = test::make_frame({.udp = true, .payload_bytes = 2});
  // The payload that makes the sum 0xffff.
  test::put16(frame.bytes, frame.payload, 0);
  const std::size_t sum = test::slow_sum(std::span(frame.bytes).subspan(frame.l4));
  test::put16(frame.bytes, frame.payload, 0xffff - sum);
  const test::Pieces from(frame.bytes, 1, 100);
  const test::Pieces to(test::Bytes(frame.bytes.size()), 2, 100);
  net_copy_completing(NetCursor(to.list()), from.list(), frame.bytes.size(), frame.l4, 6);
  EXPECT_EQ(test::get16(to.joined(), frame.l4 + 6), 0xffffU);
  EXPECT_EQ(test::look_at(to.joined()).fault, "");
}

TEST(NetChecksum, TheFieldMayLieAcrossTwoPiecesAndAtTheVeryEnd) {
  const test::Bytes frame = random_bytes(60, 9);
  for (std::size_t start = 0; start <= 58; ++start) {
    test::Pieces from;
    from.add(frame);
    test::Pieces to;
    to.add(test::Bytes(59));
    to.add(test::Bytes(1));
    net_copy_completing(NetCursor(to.list()), from.list(), 60, start, 58 - start);
    test::Bytes expected = frame;
    test::put16(expected, 58, slow_checksum(std::span(frame).subspan(start)));
    EXPECT_EQ(to.joined(), expected) << start;
  }
}

}  // namespace
}  // namespace ringway
