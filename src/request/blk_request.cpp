#include "request/blk_request.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "guest/access.hpp"
#include "ring/spec.hpp"

namespace ringway {
namespace {

// Walks the device-readable part of a chain, whatever its framing.
class SegmentCursor {
 public:
  explicit SegmentCursor(std::span<const iovec> segments) noexcept : segments_(segments) {}

  // Copies the next bytes into our memory. REQUIRES: as many are left.
  template <typename T>
  void take(T& to) noexcept {
    // Nearly always a header is a buffer of its own, or begins one.
    if (RW_LIKELY(segments_.front().iov_len - skip_ >= sizeof to)) {
      take_piece(&to, sizeof to);
    } else {
      take_pieces(&to, sizeof to);
    }
  }

  // Writes what is left to `to`; false if there is no room.
  [[nodiscard]] bool rest(std::span<iovec> to, std::span<iovec>& rest) noexcept {
    if (segments_.size() > to.size()) {
      return false;
    }
    copy_segments(segments_, to);
    rest = to.first(segments_.size());
    if (skip_ > 0) {
      rest.front().iov_base = static_cast<std::byte*>(rest.front().iov_base) + skip_;
      rest.front().iov_len -= skip_;
    }
    return true;
  }

  // Most requests have a single data segment, for which a call of memmove takes longer than the copy.
  static void copy_segments(std::span<const iovec> from, std::span<iovec> to) noexcept {
    if (RW_LIKELY(from.size() == 1)) {
      to.front() = from.front();
    } else {
      std::ranges::copy(from, to.begin());
    }
  }

 private:
  // From the first segment, which has as many left.
  void take_piece(void* to, std::size_t bytes) noexcept {
    const iovec& segment = segments_.front();
    guest::copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(segment.iov_base) + skip_, bytes);
    skip_ += bytes;
    if (skip_ == segment.iov_len) {
      segments_ = segments_.subspan(1);
      skip_ = 0;
    }
  }
  void take_pieces(void* to, std::size_t bytes) noexcept {
    std::byte* target = static_cast<std::byte*>(to);
    while (bytes > 0) {
      RW_DCHECK(!segments_.empty());
      const std::size_t piece = std::min(bytes, segments_.front().iov_len - skip_);
      take_piece(target, piece);
      target += piece;
      bytes -= piece;
    }
  }

  std::span<const iovec> segments_;
  std::size_t skip_ = 0;  // of the first one
};

struct Verdict {
  BlkRefusal refusal = BlkRefusal::none;
  std::uint8_t status = spec::kBlkStatusOk;
};

constexpr Verdict kAccepted{};
constexpr Verdict io_error(BlkRefusal refusal) {
  return {refusal, spec::kBlkStatusIoErr};
}
constexpr Verdict unsupported(BlkRefusal refusal) {
  return {refusal, spec::kBlkStatusUnsupported};
}

// The bytes [sector * 512, + bytes) as an offset, checked without a step that could overflow.
[[gnu::always_inline]] inline Verdict check_extent(std::uint64_t sector, std::uint64_t bytes, const BlkRequestLimits& limits,
                                                   std::uint64_t& offset) noexcept {
  if (sector > limits.capacity_bytes / spec::kSectorBytes) {
    return io_error(BlkRefusal::out_of_range);
  }
  offset = sector * spec::kSectorBytes;
  if (bytes > limits.capacity_bytes - offset) {
    return io_error(BlkRefusal::out_of_range);
  }
  // The store's block is a power of two and never smaller than a sector.
  if (((offset | bytes) & (limits.block_bytes - 1)) != 0) {
    return io_error(BlkRefusal::misaligned);
  }
  return kAccepted;
}

// Takes over the writable part less the status byte.
[[gnu::always_inline]] inline bool writable_data(const Chain& chain, std::span<iovec> storage,
                                                 std::span<iovec>& data) noexcept {
  const std::span<const iovec> writable = chain.writable();
  const bool status_stands_alone = writable.back().iov_len == 1;
  const std::size_t count = writable.size() - (status_stands_alone ? 1 : 0);
  if (count > storage.size()) {
    return false;
  }
  SegmentCursor::copy_segments(writable.first(count), storage);
  if (!status_stands_alone) {
    --storage[count - 1].iov_len;
  }
  data = storage.first(count);
  return true;
}

[[gnu::always_inline]] inline Verdict parse_data(BlkOpcode opcode, const spec::BlkRequestHeader& header, const Chain& chain,
                                                 SegmentCursor cursor, const BlkRequestLimits& limits,
                                                 std::span<iovec> storage, BlkRequest& out) noexcept {
  const bool in = opcode == BlkOpcode::in;
  if (!in && limits.read_only) {
    return io_error(BlkRefusal::read_only);
  }
  const std::uint64_t bytes = in ? chain.writable_bytes() - 1 : chain.readable_bytes() - sizeof header;
  if (bytes == 0 || bytes % spec::kSectorBytes != 0) {
    return io_error(BlkRefusal::misaligned);
  }
  const Verdict extent = check_extent(header.sector, bytes, limits, out.offset);
  if (extent.refusal != BlkRefusal::none) {
    return extent;
  }
  if (!(in ? writable_data(chain, storage, out.data) : cursor.rest(storage, out.data))) {
    return io_error(BlkRefusal::too_many_segments);
  }
  out.bytes = bytes;
  out.durable = !in && limits.write_through;
  return kAccepted;
}

Verdict parse_get_id(const Chain& chain, std::span<iovec> storage, BlkRequest& out) noexcept {
  if (!writable_data(chain, storage, out.data)) {
    return io_error(BlkRefusal::too_many_segments);
  }
  // Only the first 20 bytes are the id's; a shorter buffer gets a shorter id.
  std::size_t left = limits::kBlkIdBytes;
  std::size_t used = 0;
  for (; used < out.data.size() && left > 0; ++used) {
    iovec& segment = out.data[used];
    segment.iov_len = std::min(segment.iov_len, left);
    left -= segment.iov_len;
  }
  out.data = out.data.first(used);
  out.bytes = limits::kBlkIdBytes - left;
  return kAccepted;
}

Verdict parse_ranges(BlkOpcode opcode, bool negotiated, const Chain& chain, SegmentCursor cursor,
                     const BlkRequestLimits& limits, BlkRequest& out) noexcept {
  if (!negotiated) {
    return unsupported(BlkRefusal::not_negotiated);
  }
  if (limits.read_only) {
    return io_error(BlkRefusal::read_only);
  }
  const std::uint64_t payload = chain.readable_bytes() - sizeof(spec::BlkRequestHeader);
  const std::uint64_t count = payload / sizeof(spec::BlkRange);
  if (count == 0 || count > limits::kBlkRangesMax || payload % sizeof(spec::BlkRange) != 0) {
    return io_error(BlkRefusal::bad_ranges);
  }
  // Only WRITE ZEROES knows a flag (§5.2.6.2); an unknown one is UNSUPP whatever else is wrong.
  const std::uint32_t known_flags = opcode == BlkOpcode::write_zeroes ? spec::kBlkRangeUnmap : 0;
  Verdict verdict = kAccepted;
  for (std::uint64_t i = 0; i < count; ++i) {
    spec::BlkRange range;
    cursor.take(range);
    if ((range.flags & ~known_flags) != 0) {
      return unsupported(BlkRefusal::bad_flags);
    }
    BlkRequestRange& taken = out.ranges[i];
    taken.bytes = std::uint64_t{range.sectors} * spec::kSectorBytes;
    taken.unmap = (range.flags & spec::kBlkRangeUnmap) != 0;
    Verdict one = check_extent(range.sector, taken.bytes, limits, taken.offset);
    if (one.refusal == BlkRefusal::none && taken.bytes > limits.discard_bytes_max) {
      one = io_error(BlkRefusal::bad_ranges);
    }
    if (verdict.refusal == BlkRefusal::none) {
      verdict = one;
    }
  }
  out.range_count = static_cast<std::uint16_t>(count);
  out.durable = limits.write_through && opcode != BlkOpcode::discard;
  return verdict;
}

Verdict parse_by_type(const spec::BlkRequestHeader& header, const Chain& chain, SegmentCursor cursor,
                      const BlkRequestLimits& limits, std::span<iovec> storage, BlkRequest& out) noexcept {
  switch (header.type) {
    case spec::kBlkTypeIn:
      out.opcode = BlkOpcode::in;
      return parse_data(BlkOpcode::in, header, chain, cursor, limits, storage, out);
    case spec::kBlkTypeOut:
      out.opcode = BlkOpcode::out;
      return parse_data(BlkOpcode::out, header, chain, cursor, limits, storage, out);
    case spec::kBlkTypeFlush:
      out.opcode = BlkOpcode::flush;
      return kAccepted;
    case spec::kBlkTypeGetId:
      out.opcode = BlkOpcode::get_id;
      return parse_get_id(chain, storage, out);
    case spec::kBlkTypeDiscard:
      out.opcode = BlkOpcode::discard;
      return parse_ranges(out.opcode, limits.discard, chain, cursor, limits, out);
    case spec::kBlkTypeWriteZeroes:
      out.opcode = BlkOpcode::write_zeroes;
      return parse_ranges(out.opcode, limits.write_zeroes, chain, cursor, limits, out);
    case spec::kBlkTypeSecureErase:
      out.opcode = BlkOpcode::secure_erase;
      return parse_ranges(out.opcode, limits.secure_erase, chain, cursor, limits, out);
    default:
      return unsupported(BlkRefusal::unknown_type);
  }
}

}  // namespace

BlkParsed parse_blk_request(const Chain& chain, bool chain_fault, const BlkRequestLimits& limits, std::span<iovec> storage,
                            BlkRequest& out) noexcept {
  const std::span<const iovec> writable = chain.writable();
  if (RW_UNLIKELY(writable.empty())) {
    return {.refusal = chain_fault ? BlkRefusal::bad_chain : BlkRefusal::no_status};
  }
  RW_DCHECK(writable.back().iov_len > 0);
  BlkParsed parsed;
  parsed.status_address = static_cast<std::byte*>(writable.back().iov_base) + (writable.back().iov_len - 1);
  // Of a refused chain only the status is written, which counts if nothing unwritten stands before it.
  parsed.used_length = chain.writable_bytes() == 1 ? 1 : 0;
  if (RW_UNLIKELY(chain_fault || chain.readable_bytes() < sizeof(spec::BlkRequestHeader))) {
    parsed.refusal = chain_fault ? BlkRefusal::bad_chain : BlkRefusal::short_header;
    parsed.status = spec::kBlkStatusIoErr;
    return parsed;
  }

  SegmentCursor cursor(chain.readable());
  spec::BlkRequestHeader header;
  cursor.take(header);

  // Not the ranges: they are valid only up to range_count.
  out.durable = false;
  out.range_count = 0;
  out.offset = 0;
  out.bytes = 0;
  out.data = {};
  out.writable_bytes = chain.writable_bytes();
  out.status = parsed.status_address;
  const Verdict verdict = parse_by_type(header, chain, cursor, limits, storage, out);
  parsed.refusal = verdict.refusal;
  parsed.status = verdict.status;
  return parsed;
}

std::uint32_t blk_used_length(const BlkRequest& request, std::uint8_t status) noexcept {
  std::uint64_t written = 0;  // from the start, without a gap, before the status
  if (status == spec::kBlkStatusOk && (request.opcode == BlkOpcode::in || request.opcode == BlkOpcode::get_id)) {
    written = request.bytes;
  }
  if (written + 1 == request.writable_bytes) {
    ++written;
  }
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(written, std::numeric_limits<std::uint32_t>::max()));
}

const char* to_string(BlkOpcode opcode) noexcept {
  switch (opcode) {
    case BlkOpcode::in:
      return "in";
    case BlkOpcode::out:
      return "out";
    case BlkOpcode::flush:
      return "flush";
    case BlkOpcode::get_id:
      return "get_id";
    case BlkOpcode::discard:
      return "discard";
    case BlkOpcode::write_zeroes:
      return "write_zeroes";
    case BlkOpcode::secure_erase:
      return "secure_erase";
  }
  return "unknown";
}

const char* to_string(BlkRefusal refusal) noexcept {
  switch (refusal) {
    case BlkRefusal::none:
      return "none";
    case BlkRefusal::bad_chain:
      return "bad_chain";
    case BlkRefusal::short_header:
      return "short_header";
    case BlkRefusal::no_status:
      return "no_status";
    case BlkRefusal::unknown_type:
      return "unknown_type";
    case BlkRefusal::not_negotiated:
      return "not_negotiated";
    case BlkRefusal::out_of_range:
      return "out_of_range";
    case BlkRefusal::misaligned:
      return "misaligned";
    case BlkRefusal::read_only:
      return "read_only";
    case BlkRefusal::bad_ranges:
      return "bad_ranges";
    case BlkRefusal::bad_flags:
      return "bad_flags";
    case BlkRefusal::too_many_segments:
      return "too_many_segments";
  }
  return "unknown";
}

}  // namespace ringway
