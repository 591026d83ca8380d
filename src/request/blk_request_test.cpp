#include "request/blk_request.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "ring/spec.hpp"

namespace ringway {
namespace {

constexpr std::uint64_t kCapacity = 1ULL << 20U;
constexpr std::byte kCanary{0xc5};

// Guest memory of one chain: every segment stands alone, between canaries.
class GuestChain {
 public:
  GuestChain& readable(std::vector<std::byte> bytes) {
    EXPECT_FALSE(chain_.has_writable());
    append(std::move(bytes), false);
    return *this;
  }
  GuestChain& writable(std::size_t bytes) {
    append(std::vector<std::byte>(bytes, kCanary), true);
    return *this;
  }
  // A header, cut into pieces of `piece` bytes.
  GuestChain& header(std::uint32_t type, std::uint64_t sector, std::size_t piece = 16) {
    const spec::BlkRequestHeader header{.type = type, .reserved = 0, .sector = sector};
    for (std::size_t at = 0; at < sizeof header; at += piece) {
      std::vector<std::byte> bytes(std::min(piece, sizeof header - at));
      std::memcpy(bytes.data(), reinterpret_cast<const std::byte*>(&header) + at, bytes.size());
      readable(std::move(bytes));
    }
    return *this;
  }
  GuestChain& range(std::uint64_t sector, std::uint32_t sectors, std::uint32_t flags = 0) {
    const spec::BlkRange range{.sector = sector, .sectors = sectors, .flags = flags};
    std::vector<std::byte> bytes(sizeof range);
    std::memcpy(bytes.data(), &range, sizeof range);
    return readable(std::move(bytes));
  }

  const Chain& chain() const { return chain_; }
  std::byte* bytes_of(std::size_t segment) { return memory_[segment].data() + kGuard; }
  std::size_t segments() const { return memory_.size(); }
  // All that lies around the segments is as it was.
  bool canaries_intact() const {
    return std::ranges::all_of(memory_, [](const auto& block) {
      const auto intact = [](std::byte value) { return value == kCanary; };
      return std::all_of(block.begin(), block.begin() + kGuard, intact) &&
             std::all_of(block.end() - kGuard, block.end(), intact);
    });
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 8;

  void append(std::vector<std::byte> bytes, bool is_writable) {
    std::vector<std::byte> block(bytes.size() + 2 * kGuard, kCanary);
    std::copy(bytes.begin(), bytes.end(), block.begin() + kGuard);
    memory_.push_back(std::move(block));
    chain_.storage()[chain_.count()++] = {bytes_of(memory_.size() - 1), bytes.size()};
    chain_.account(is_writable, bytes.size());
  }

  std::vector<std::vector<std::byte>> memory_;  // moving a vector leaves its bytes where they are
  Chain chain_;
};

BlkRequestLimits all_negotiated() {
  return {.capacity_bytes = kCapacity,
          .block_bytes = 512,
          .discard_bytes_max = kCapacity,
          .read_only = false,
          .write_through = false,
          .discard = true,
          .write_zeroes = true,
          .secure_erase = true};
}

class BlkRequestTest : public testing::Test {
 protected:
  BlkParsed parse(GuestChain& guest, const BlkRequestLimits& limits = all_negotiated(), bool chain_fault = false) {
    const BlkParsed parsed = parse_blk_request(guest.chain(), chain_fault, limits, storage_, request_);
    EXPECT_TRUE(guest.canaries_intact());
    return parsed;
  }
  void expect_refused(GuestChain& guest, BlkRefusal refusal, std::uint8_t status,
                      const BlkRequestLimits& limits = all_negotiated()) {
    const BlkParsed parsed = parse(guest, limits);
    EXPECT_EQ(to_string(parsed.refusal), std::string(to_string(refusal)));
    EXPECT_EQ(parsed.status, status);
    EXPECT_EQ(parsed.status_address, guest.chain().writable().empty() ? nullptr : last_writable(guest));
  }
  static std::byte* last_writable(GuestChain& guest) {
    const iovec& last = guest.chain().writable().back();
    return static_cast<std::byte*>(last.iov_base) + last.iov_len - 1;
  }
  std::uint64_t data_bytes() const {
    return std::accumulate(request_.data.begin(), request_.data.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const iovec& segment) { return sum + segment.iov_len; });
  }

  std::vector<iovec> storage_ = std::vector<iovec>(2048);
  BlkRequest request_;
};

std::vector<std::byte> bytes_of_size(std::size_t bytes) {
  return std::vector<std::byte>(bytes, std::byte{0x11});
}

TEST_F(BlkRequestTest, usual_read) {
  GuestChain guest;
  guest.header(spec::kBlkTypeIn, 7).writable(4096).writable(1);
  ASSERT_EQ(parse(guest).refusal, BlkRefusal::none);
  EXPECT_EQ(request_.opcode, BlkOpcode::in);
  EXPECT_EQ(request_.offset, 7U * 512);
  EXPECT_EQ(request_.bytes, 4096U);
  ASSERT_EQ(request_.data.size(), 1U);
  EXPECT_EQ(request_.data[0].iov_base, guest.bytes_of(1));
  EXPECT_EQ(request_.data[0].iov_len, 4096U);
  EXPECT_EQ(request_.status, guest.bytes_of(2));
  EXPECT_FALSE(request_.durable);
}

TEST_F(BlkRequestTest, usual_write_is_durable_only_when_written_through) {
  for (const bool write_through : {false, true}) {
    GuestChain guest;
    guest.header(spec::kBlkTypeOut, 0).readable(bytes_of_size(1024)).readable(bytes_of_size(512)).writable(1);
    BlkRequestLimits limits = all_negotiated();
    limits.write_through = write_through;
    ASSERT_EQ(parse(guest, limits).refusal, BlkRefusal::none);
    EXPECT_EQ(request_.durable, write_through);
    EXPECT_EQ(request_.bytes, 1536U);
    EXPECT_EQ(data_bytes(), 1536U);
    EXPECT_EQ(request_.data[1].iov_base, guest.bytes_of(2));
  }
}

TEST_F(BlkRequestTest, write_through_holds_for_zeroes_but_not_for_the_hint_that_discard_is) {
  BlkRequestLimits limits = all_negotiated();
  limits.write_through = true;
  GuestChain zeroes;
  zeroes.header(spec::kBlkTypeWriteZeroes, 0).range(0, 8).writable(1);
  ASSERT_EQ(parse(zeroes, limits).refusal, BlkRefusal::none);
  EXPECT_TRUE(request_.durable);
  GuestChain discard;
  discard.header(spec::kBlkTypeDiscard, 0).range(0, 8).writable(1);
  ASSERT_EQ(parse(discard, limits).refusal, BlkRefusal::none);
  EXPECT_FALSE(request_.durable);
}

TEST_F(BlkRequestTest, header_and_data_in_one_segment) {
  GuestChain guest;
  const spec::BlkRequestHeader header{.type = spec::kBlkTypeOut, .reserved = 0, .sector = 1};
  std::vector<std::byte> all(sizeof header + 512, std::byte{0x42});
  std::memcpy(all.data(), &header, sizeof header);
  guest.readable(std::move(all)).writable(1);
  ASSERT_EQ(parse(guest).refusal, BlkRefusal::none);
  ASSERT_EQ(request_.data.size(), 1U);
  EXPECT_EQ(request_.data[0].iov_base, guest.bytes_of(0) + sizeof header);
  EXPECT_EQ(request_.data[0].iov_len, 512U);
}

TEST_F(BlkRequestTest, status_shares_the_last_segment_with_data) {
  GuestChain guest;
  guest.header(spec::kBlkTypeIn, 0).writable(512).writable(513);
  ASSERT_EQ(parse(guest).refusal, BlkRefusal::none);
  ASSERT_EQ(request_.data.size(), 2U);
  EXPECT_EQ(request_.data[1].iov_len, 512U);
  EXPECT_EQ(request_.status, guest.bytes_of(2) + 512);
  // The chain itself was not changed.
  EXPECT_EQ(guest.chain().writable()[1].iov_len, 513U);
}

TEST_F(BlkRequestTest, row_11_malformed_chain_gives_a_status_address_or_none) {
  GuestChain head_only;
  head_only.header(spec::kBlkTypeIn, 0);
  const BlkParsed parsed = parse(head_only);
  EXPECT_EQ(parsed.refusal, BlkRefusal::no_status);
  EXPECT_EQ(parsed.status_address, nullptr);
  EXPECT_EQ(parsed.used_length, 0U);

  GuestChain faulty;
  faulty.header(spec::kBlkTypeIn, 0).writable(1);
  const BlkParsed fault = parse(faulty, all_negotiated(), true);
  EXPECT_EQ(fault.refusal, BlkRefusal::bad_chain);
  EXPECT_EQ(fault.status, spec::kBlkStatusIoErr);
  EXPECT_EQ(fault.status_address, faulty.bytes_of(1));
  EXPECT_EQ(fault.used_length, 1U);

  GuestChain nothing_translated;
  const BlkParsed empty = parse(nothing_translated, all_negotiated(), true);
  EXPECT_EQ(empty.refusal, BlkRefusal::bad_chain);
  EXPECT_EQ(empty.status_address, nullptr);
}

TEST_F(BlkRequestTest, row_11_a_readable_status_is_no_status) {
  GuestChain guest;
  guest.header(spec::kBlkTypeOut, 0).readable(bytes_of_size(512)).readable(bytes_of_size(1));
  expect_refused(guest, BlkRefusal::no_status, spec::kBlkStatusOk);
}

TEST_F(BlkRequestTest, row_17_status_is_exactly_the_last_writable_byte) {
  for (const std::size_t last : {1U, 2U, 4U, 513U}) {
    GuestChain guest;
    guest.header(spec::kBlkTypeFlush, 0).writable(last);
    ASSERT_EQ(parse(guest).refusal, BlkRefusal::none);
    EXPECT_EQ(request_.status, guest.bytes_of(1) + last - 1);
  }
}

TEST_F(BlkRequestTest, row_18_used_length_of_every_type_and_outcome) {
  GuestChain in;
  in.header(spec::kBlkTypeIn, 0).writable(1024).writable(1);
  ASSERT_EQ(parse(in).refusal, BlkRefusal::none);
  EXPECT_EQ(blk_used_length(request_, spec::kBlkStatusOk), 1025U);
  EXPECT_EQ(blk_used_length(request_, spec::kBlkStatusIoErr), 0U);

  GuestChain out;
  out.header(spec::kBlkTypeOut, 0).readable(bytes_of_size(512)).writable(1);
  ASSERT_EQ(parse(out).refusal, BlkRefusal::none);
  EXPECT_EQ(blk_used_length(request_, spec::kBlkStatusOk), 1U);
  EXPECT_EQ(blk_used_length(request_, spec::kBlkStatusIoErr), 1U);

  GuestChain out_with_gap;
  out_with_gap.header(spec::kBlkTypeOut, 0).readable(bytes_of_size(512)).writable(5);
  ASSERT_EQ(parse(out_with_gap).refusal, BlkRefusal::none);
  EXPECT_EQ(blk_used_length(request_, spec::kBlkStatusOk), 0U);

  for (const auto& [type, opcode] :
       {std::pair{spec::kBlkTypeDiscard, BlkOpcode::discard}, std::pair{spec::kBlkTypeWriteZeroes, BlkOpcode::write_zeroes},
        std::pair{spec::kBlkTypeSecureErase, BlkOpcode::secure_erase}}) {
    GuestChain ranges;
    ranges.header(type, 0).range(0, 8).writable(1);
    ASSERT_EQ(parse(ranges).refusal, BlkRefusal::none);
    EXPECT_EQ(request_.opcode, opcode);
    EXPECT_EQ(blk_used_length(request_, spec::kBlkStatusOk), 1U);
  }

  GuestChain id;
  id.header(spec::kBlkTypeGetId, 0).writable(20).writable(1);
  ASSERT_EQ(parse(id).refusal, BlkRefusal::none);
  EXPECT_EQ(blk_used_length(request_, spec::kBlkStatusOk), 21U);

  GuestChain refused;
  refused.header(spec::kBlkTypeIn, 0).writable(511).writable(1);
  EXPECT_EQ(parse(refused).used_length, 0U);
  GuestChain unknown;
  unknown.header(99, 0).writable(1);
  EXPECT_EQ(parse(unknown).used_length, 1U);
}

TEST_F(BlkRequestTest, row_20_only_the_total_length_must_be_whole_sectors) {
  GuestChain pieces;
  pieces.header(spec::kBlkTypeIn, 0).writable(100).writable(412).writable(512).writable(1);
  ASSERT_EQ(parse(pieces).refusal, BlkRefusal::none);
  EXPECT_EQ(data_bytes(), 1024U);
  GuestChain odd_in;
  odd_in.header(spec::kBlkTypeIn, 0).writable(511).writable(1);
  expect_refused(odd_in, BlkRefusal::misaligned, spec::kBlkStatusIoErr);
  GuestChain odd_out;
  odd_out.header(spec::kBlkTypeOut, 0).readable(bytes_of_size(511)).writable(1);
  expect_refused(odd_out, BlkRefusal::misaligned, spec::kBlkStatusIoErr);
  GuestChain empty_in;
  empty_in.header(spec::kBlkTypeIn, 0).writable(1);
  expect_refused(empty_in, BlkRefusal::misaligned, spec::kBlkStatusIoErr);
  GuestChain empty_out;
  empty_out.header(spec::kBlkTypeOut, 0).writable(1);
  expect_refused(empty_out, BlkRefusal::misaligned, spec::kBlkStatusIoErr);
}

TEST_F(BlkRequestTest, row_21_sector_numbers_that_overflow) {
  const std::uint64_t last = kCapacity / 512 - 1;
  for (const std::uint64_t sector : {UINT64_MAX, UINT64_MAX - 1, std::uint64_t{1} << 55U, (std::uint64_t{1} << 55U) - 1,
                                     (std::uint64_t{1} << 55U) + 1, last, last + 1, last + 2}) {
    GuestChain in;
    in.header(spec::kBlkTypeIn, sector).writable(1024).writable(1);
    expect_refused(in, BlkRefusal::out_of_range, spec::kBlkStatusIoErr);
    GuestChain out;
    out.header(spec::kBlkTypeOut, sector).readable(bytes_of_size(1024)).writable(1);
    expect_refused(out, BlkRefusal::out_of_range, spec::kBlkStatusIoErr);
    for (const std::uint32_t type : {spec::kBlkTypeDiscard, spec::kBlkTypeWriteZeroes, spec::kBlkTypeSecureErase}) {
      GuestChain range;
      range.header(type, 0).range(sector, 2).writable(1);
      expect_refused(range, BlkRefusal::out_of_range, spec::kBlkStatusIoErr);
    }
  }
}

TEST_F(BlkRequestTest, row_22_last_sector_is_in_range) {
  GuestChain guest;
  guest.header(spec::kBlkTypeIn, kCapacity / 512 - 1).writable(512).writable(1);
  EXPECT_EQ(parse(guest).refusal, BlkRefusal::none);
  GuestChain range;
  range.header(spec::kBlkTypeDiscard, 0).range(kCapacity / 512 - 2, 2).writable(1);
  EXPECT_EQ(parse(range).refusal, BlkRefusal::none);
}

TEST_F(BlkRequestTest, row_22_sub_block_access_is_refused) {
  BlkRequestLimits limits = all_negotiated();
  limits.block_bytes = 4096;
  GuestChain short_read;
  short_read.header(spec::kBlkTypeIn, 0).writable(512).writable(1);
  expect_refused(short_read, BlkRefusal::misaligned, spec::kBlkStatusIoErr, limits);
  GuestChain shifted_write;
  shifted_write.header(spec::kBlkTypeOut, 1).readable(bytes_of_size(4096)).writable(1);
  expect_refused(shifted_write, BlkRefusal::misaligned, spec::kBlkStatusIoErr, limits);
  GuestChain range;
  range.header(spec::kBlkTypeWriteZeroes, 0).range(8, 1).writable(1);
  expect_refused(range, BlkRefusal::misaligned, spec::kBlkStatusIoErr, limits);
  GuestChain whole;
  whole.header(spec::kBlkTypeIn, 8).writable(4096).writable(1);
  EXPECT_EQ(parse(whole, limits).refusal, BlkRefusal::none);
}

TEST_F(BlkRequestTest, row_25_flush_needs_no_negotiation_and_works_on_a_read_only_disk) {
  BlkRequestLimits limits{.capacity_bytes = kCapacity, .read_only = true};
  GuestChain guest;
  guest.header(spec::kBlkTypeFlush, 0).writable(1);
  ASSERT_EQ(parse(guest, limits).refusal, BlkRefusal::none);
  EXPECT_EQ(request_.opcode, BlkOpcode::flush);
}

TEST_F(BlkRequestTest, row_25_flush_with_extra_descriptors_and_a_sector) {
  GuestChain guest;
  guest.header(spec::kBlkTypeFlush, UINT64_MAX).readable(bytes_of_size(100)).writable(77).writable(1);
  ASSERT_EQ(parse(guest).refusal, BlkRefusal::none);
  EXPECT_EQ(request_.opcode, BlkOpcode::flush);
  EXPECT_TRUE(request_.data.empty());
  EXPECT_EQ(request_.status, guest.bytes_of(3));
}

TEST_F(BlkRequestTest, row_30_many_segments) {
  for (const std::size_t segments : {130U, 1024U}) {
    GuestChain guest;
    guest.header(spec::kBlkTypeIn, 0);
    for (std::size_t i = 0; i < segments; ++i) {
      guest.writable(512);
    }
    guest.writable(1);
    ASSERT_EQ(parse(guest).refusal, BlkRefusal::none);
    EXPECT_EQ(request_.data.size(), segments);
    EXPECT_EQ(request_.bytes, segments * 512);
  }
}

TEST_F(BlkRequestTest, row_30_more_segments_than_room_is_refused) {
  storage_.resize(4);
  GuestChain in;
  in.header(spec::kBlkTypeIn, 0);
  GuestChain out;
  out.header(spec::kBlkTypeOut, 0);
  for (int i = 0; i < 5; ++i) {
    in.writable(512);
    out.readable(bytes_of_size(512));
  }
  in.writable(1);
  out.writable(1);
  expect_refused(in, BlkRefusal::too_many_segments, spec::kBlkStatusIoErr);
  expect_refused(out, BlkRefusal::too_many_segments, spec::kBlkStatusIoErr);
}

TEST_F(BlkRequestTest, row_30_one_segment_of_4_mib) {
  BlkRequestLimits limits = all_negotiated();
  limits.capacity_bytes = 16U << 20U;
  GuestChain guest;
  guest.header(spec::kBlkTypeOut, 0).readable(bytes_of_size(4U << 20U)).writable(1);
  ASSERT_EQ(parse(guest, limits).refusal, BlkRefusal::none);
  EXPECT_EQ(request_.bytes, 4U << 20U);
}

TEST_F(BlkRequestTest, row_32_get_id_is_truncated_to_the_buffer_and_to_20_bytes) {
  GuestChain short_buffer;
  short_buffer.header(spec::kBlkTypeGetId, 0).writable(3).writable(4).writable(1);
  ASSERT_EQ(parse(short_buffer).refusal, BlkRefusal::none);
  EXPECT_EQ(request_.bytes, 7U);
  EXPECT_EQ(data_bytes(), 7U);
  EXPECT_EQ(blk_used_length(request_, spec::kBlkStatusOk), 8U);

  GuestChain long_buffer;
  long_buffer.header(spec::kBlkTypeGetId, 0).writable(15).writable(50).writable(9).writable(1);
  ASSERT_EQ(parse(long_buffer).refusal, BlkRefusal::none);
  EXPECT_EQ(request_.bytes, 20U);
  ASSERT_EQ(request_.data.size(), 2U);
  EXPECT_EQ(request_.data[1].iov_len, 5U);
  EXPECT_EQ(blk_used_length(request_, spec::kBlkStatusOk), 20U);

  GuestChain no_buffer;
  no_buffer.header(spec::kBlkTypeGetId, 0).writable(1);
  ASSERT_EQ(parse(no_buffer).refusal, BlkRefusal::none);
  EXPECT_EQ(request_.bytes, 0U);
  EXPECT_TRUE(request_.data.empty());
}

TEST_F(BlkRequestTest, row_50_header_in_any_framing) {
  for (const std::size_t piece : {1U, 2U, 3U, 5U, 8U, 15U}) {
    GuestChain guest;
    guest.header(spec::kBlkTypeOut, 0x0102, piece).readable(bytes_of_size(512)).writable(1);
    BlkRequestLimits limits = all_negotiated();
    ASSERT_EQ(parse(guest, limits).refusal, BlkRefusal::none) << piece;
    EXPECT_EQ(request_.offset, 0x0102U * 512);
    EXPECT_EQ(data_bytes(), 512U);
  }
}

TEST_F(BlkRequestTest, row_50_header_of_18_one_byte_descriptors) {
  // 16 of the header and two more: an OUT of two bytes, which is no whole sector; a FLUSH, which ignores them.
  GuestChain out;
  out.header(spec::kBlkTypeOut, 0, 1).readable(bytes_of_size(1)).readable(bytes_of_size(1)).writable(1);
  expect_refused(out, BlkRefusal::misaligned, spec::kBlkStatusIoErr);
  GuestChain flush;
  flush.header(spec::kBlkTypeFlush, 0, 1).readable(bytes_of_size(1)).readable(bytes_of_size(1)).writable(1);
  EXPECT_EQ(parse(flush).refusal, BlkRefusal::none);
}

TEST_F(BlkRequestTest, row_50_header_too_short) {
  for (std::size_t bytes = 1; bytes < 16; ++bytes) {
    GuestChain guest;
    guest.readable(bytes_of_size(bytes)).writable(1);
    expect_refused(guest, BlkRefusal::short_header, spec::kBlkStatusIoErr);
  }
  GuestChain none;
  none.writable(513);
  expect_refused(none, BlkRefusal::short_header, spec::kBlkStatusIoErr);
}

TEST_F(BlkRequestTest, unknown_types_are_unsupported) {
  for (const std::uint32_t type : {2U, 3U, 5U, 10U, 12U, 15U, 0x80000000U, 0xffffffffU}) {
    GuestChain guest;
    guest.header(type, 0).writable(512).writable(1);
    expect_refused(guest, BlkRefusal::unknown_type, spec::kBlkStatusUnsupported);
  }
}

TEST_F(BlkRequestTest, ranges_not_negotiated_are_unsupported) {
  const BlkRequestLimits limits{.capacity_bytes = kCapacity, .discard_bytes_max = kCapacity};
  for (const std::uint32_t type : {spec::kBlkTypeDiscard, spec::kBlkTypeWriteZeroes, spec::kBlkTypeSecureErase}) {
    GuestChain guest;
    guest.header(type, 0).range(0, 1).writable(1);
    expect_refused(guest, BlkRefusal::not_negotiated, spec::kBlkStatusUnsupported, limits);
  }
}

TEST_F(BlkRequestTest, whatever_writes_is_refused_on_a_read_only_disk) {
  BlkRequestLimits limits = all_negotiated();
  limits.read_only = true;
  GuestChain out;
  out.header(spec::kBlkTypeOut, 0).readable(bytes_of_size(512)).writable(1);
  expect_refused(out, BlkRefusal::read_only, spec::kBlkStatusIoErr, limits);
  for (const std::uint32_t type : {spec::kBlkTypeDiscard, spec::kBlkTypeWriteZeroes, spec::kBlkTypeSecureErase}) {
    GuestChain guest;
    guest.header(type, 0).range(0, 1).writable(1);
    expect_refused(guest, BlkRefusal::read_only, spec::kBlkStatusIoErr, limits);
  }
  GuestChain in;
  in.header(spec::kBlkTypeIn, 0).writable(512).writable(1);
  EXPECT_EQ(parse(in, limits).refusal, BlkRefusal::none);
}

TEST_F(BlkRequestTest, ranges_and_flags_are_taken_over) {
  GuestChain guest;
  guest.header(spec::kBlkTypeWriteZeroes, UINT64_MAX).range(1, 2, spec::kBlkRangeUnmap).range(8, 0).range(3, 4).writable(1);
  ASSERT_EQ(parse(guest).refusal, BlkRefusal::none);
  ASSERT_EQ(request_.range_count, 3U);
  EXPECT_EQ(request_.ranges[0].offset, 512U);
  EXPECT_EQ(request_.ranges[0].bytes, 1024U);
  EXPECT_TRUE(request_.ranges[0].unmap);
  EXPECT_EQ(request_.ranges[1].bytes, 0U);
  EXPECT_EQ(request_.ranges[2].offset, 1536U);
  EXPECT_FALSE(request_.ranges[2].unmap);
}

TEST_F(BlkRequestTest, range_payloads_that_make_no_sense) {
  GuestChain none;
  none.header(spec::kBlkTypeDiscard, 0).writable(1);
  expect_refused(none, BlkRefusal::bad_ranges, spec::kBlkStatusIoErr);
  GuestChain odd;
  odd.header(spec::kBlkTypeDiscard, 0).range(0, 1).readable(bytes_of_size(1)).writable(1);
  expect_refused(odd, BlkRefusal::bad_ranges, spec::kBlkStatusIoErr);
  GuestChain many;
  many.header(spec::kBlkTypeDiscard, 0);
  for (std::uint32_t i = 0; i <= limits::kBlkRangesMax; ++i) {
    many.range(i, 1);
  }
  many.writable(1);
  expect_refused(many, BlkRefusal::bad_ranges, spec::kBlkStatusIoErr);
  BlkRequestLimits limits = all_negotiated();
  limits.discard_bytes_max = 4096;
  GuestChain longest;
  longest.header(spec::kBlkTypeDiscard, 0).range(0, 8).writable(1);
  EXPECT_EQ(parse(longest, limits).refusal, BlkRefusal::none);
  GuestChain too_long;
  too_long.header(spec::kBlkTypeDiscard, 0).range(0, 9).writable(1);
  expect_refused(too_long, BlkRefusal::bad_ranges, spec::kBlkStatusIoErr, limits);
}

TEST_F(BlkRequestTest, unknown_flags_are_unsupported_even_in_the_last_range) {
  GuestChain zeroes;
  zeroes.header(spec::kBlkTypeWriteZeroes, 0).range(UINT64_MAX, 1).range(0, 1, 2).writable(1);
  expect_refused(zeroes, BlkRefusal::bad_flags, spec::kBlkStatusUnsupported);
  for (const std::uint32_t type : {spec::kBlkTypeDiscard, spec::kBlkTypeSecureErase}) {
    GuestChain guest;
    guest.header(type, 0).range(0, 1, spec::kBlkRangeUnmap).writable(1);
    expect_refused(guest, BlkRefusal::bad_flags, spec::kBlkStatusUnsupported);
  }
}

TEST_F(BlkRequestTest, a_request_leaves_nothing_of_the_one_before_it) {
  BlkRequestLimits limits = all_negotiated();
  limits.write_through = true;
  GuestChain ranges;
  ranges.header(spec::kBlkTypeWriteZeroes, 0).range(0, 1).writable(1);
  ASSERT_EQ(parse(ranges, limits).refusal, BlkRefusal::none);
  GuestChain flush;
  flush.header(spec::kBlkTypeFlush, 0).writable(1);
  ASSERT_EQ(parse(flush, limits).refusal, BlkRefusal::none);
  EXPECT_EQ(request_.range_count, 0U);
  EXPECT_EQ(request_.bytes, 0U);
  EXPECT_TRUE(request_.data.empty());
  EXPECT_FALSE(request_.durable);
}

TEST_F(BlkRequestTest, every_refusal_and_opcode_has_a_name) {
  for (std::size_t i = 0; i < kBlkRefusals; ++i) {
    EXPECT_STRNE(to_string(static_cast<BlkRefusal>(i)), "unknown");
  }
  for (std::size_t i = 0; i < kBlkOpcodes; ++i) {
    EXPECT_STRNE(to_string(static_cast<BlkOpcode>(i)), "unknown");
  }
}

}  // namespace
}  // namespace ringway
