#include "request/net_frame.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "guest/access.hpp"
#include "request/net_pieces.hpp"

namespace ringway {
namespace {

// All that is looked at of a header, whatever its length: the rest has no meaning when sending.
constexpr std::size_t kHeaderBytesRead = spec::kNetHeaderLegacyBytes;

constexpr std::uint8_t gso_bit(std::uint8_t type) {
  return static_cast<std::uint8_t>(1U << type);
}
constexpr std::uint8_t kTcpTypes = gso_bit(spec::kNetGsoTcpv4) | gso_bit(spec::kNetGsoTcpv6);
constexpr std::uint8_t kUdpTypes = gso_bit(spec::kNetGsoUdp) | gso_bit(spec::kNetGsoUdpL4);

NetRefusal check_gso(const spec::NetHeader& header, const NetFrameLimits& limits) noexcept {
  const unsigned type = header.gso_type & ~static_cast<unsigned>(spec::kNetGsoEcn);
  const bool ecn = (header.gso_type & spec::kNetGsoEcn) != 0;
  const unsigned bit = type < 8 ? 1U << type : 0;
  if ((bit & (kTcpTypes | (ecn ? 0U : kUdpTypes))) == 0) {
    return NetRefusal::bad_gso_type;
  }
  if ((bit & limits.gso_types) == 0 || (ecn && !limits.ecn)) {
    return NetRefusal::gso_not_negotiated;
  }
  if (header.gso_size == 0) {
    return NetRefusal::no_gso_size;
  }
  return (header.flags & spec::kNetHdrNeedsCsum) != 0 ? NetRefusal::none : NetRefusal::gso_without_checksum;
}

// A checksum that is left to us.
NetRefusal check_checksum(spec::NetHeader& header, std::uint32_t bytes) noexcept {
  if (header.csum_start < kNetChecksumStartMin ||
      std::uint32_t{header.csum_start} + header.csum_offset + sizeof(std::uint16_t) > bytes) {
    return NetRefusal::bad_checksum_range;
  }
  header.flags = spec::kNetHdrNeedsCsum;
  header.hdr_len = static_cast<std::uint16_t>(std::min<std::uint32_t>(header.hdr_len, bytes));
  return NetRefusal::none;
}

// Judges our copy of the header and leaves in it what has a meaning.
NetRefusal check_header(const NetFrameLimits& limits, NetFrame& frame) noexcept {
  spec::NetHeader& header = frame.header;
  if (header.gso_type != spec::kNetGsoNone) {
    const NetRefusal refusal = check_gso(header, limits);
    if (refusal != NetRefusal::none) {
      return refusal;
    }
    return frame.bytes <= limits.gso_bytes_max ? check_checksum(header, frame.bytes) : NetRefusal::long_frame;
  }
  if (frame.bytes > limits.bytes_max) {
    return NetRefusal::long_frame;
  }
  if ((header.flags & spec::kNetHdrNeedsCsum) == 0) {
    header = {};
    return NetRefusal::none;
  }
  header.gso_size = 0;
  return check_checksum(header, frame.bytes);
}

// The header at `at` of a frame within the wire's length. out.bytes is known.
[[gnu::always_inline]] inline NetRefusal read_header(const std::byte* at, const NetFrameLimits& limits,
                                                     NetFrame& out) noexcept {
  out.header = {};
  std::uint64_t start = 0;  // flags to csum_start
  guest::copy(reinterpret_cast<std::byte*>(&start), at, sizeof start);
  constexpr std::uint64_t kFlagsAndType = 0xffff;
  if (!limits.checksum || (start & kFlagsAndType) == 0) {
    return NetRefusal::none;
  }
  std::memcpy(&out.header, &start, sizeof start);
  guest::copy(reinterpret_cast<std::byte*>(&out.header.csum_offset), at + sizeof start, sizeof out.header.csum_offset);
  return check_header(limits, out);
}

// Any chain: refused, or with a header in several descriptors.
[[gnu::noinline]] NetRefusal parse_any(const Chain& chain, bool chain_fault, std::size_t header_bytes,
                                       const NetFrameLimits& limits, std::span<iovec> storage, NetFrame& out) noexcept {
  if (chain_fault || chain.writable_bytes() != 0) {
    return chain_fault ? NetRefusal::bad_chain : NetRefusal::writable_part;
  }
  const std::uint64_t bytes = chain.readable_bytes();
  if (bytes < header_bytes + kEthernetHeaderBytes) {
    return bytes < header_bytes ? NetRefusal::short_header : NetRefusal::short_frame;
  }
  if (bytes - header_bytes > std::max(limits.bytes_max, limits.gso_bytes_max)) {
    return NetRefusal::long_frame;
  }
  out.bytes = static_cast<std::uint32_t>(bytes - header_bytes);
  out.header = {};
  NetCursor cursor(chain.readable());
  cursor.read(std::as_writable_bytes(std::span(&out.header, 1)).first(kHeaderBytesRead));
  cursor.advance(header_bytes - kHeaderBytesRead);
  out.data = cursor.list(out.bytes, storage);
  if (!cursor.take(1).empty()) {
    return NetRefusal::too_many_segments;
  }
  if (!limits.checksum) {
    out.header = {};
  }
  return check_header(limits, out);
}

}  // namespace

NetFrameLimits net_frame_limits(std::uint64_t features, std::uint32_t mtu) noexcept {
  NetFrameLimits limits;
  limits.bytes_max = kEthernetHeaderBytes + 2 * kVlanTagBytes + mtu;
  limits.checksum = (features & spec::kNetCsum) != 0;
  if (!limits.checksum) {
    return limits;
  }
  limits.ecn = (features & spec::kNetHostEcn) != 0;
  const auto offer = [&](std::uint64_t feature, std::uint8_t type) {
    if ((features & feature) != 0) {
      limits.gso_types = static_cast<std::uint8_t>(limits.gso_types | gso_bit(type));
    }
  };
  offer(spec::kNetHostTso4, spec::kNetGsoTcpv4);
  offer(spec::kNetHostTso6, spec::kNetGsoTcpv6);
  offer(spec::kNetHostUfo, spec::kNetGsoUdp);
  offer(spec::kNetHostUso, spec::kNetGsoUdpL4);
  return limits;
}

NetRefusal parse_net_frame(const Chain& chain, bool chain_fault, std::size_t header_bytes, const NetFrameLimits& limits,
                           std::span<iovec> storage, NetFrame& out) noexcept {
  RW_DCHECK(header_bytes >= kHeaderBytesRead && header_bytes <= sizeof(spec::NetHeader));
  // The rule: a header in one descriptor, alone or with the frame behind it, and a frame no longer than the wire's. All
  // else, and what is to be refused for its chain, is judged by parse_any.
  const std::span<const iovec> readable = chain.readable();
  const std::uint64_t bytes = chain.readable_bytes() - header_bytes;  // may wrap, and is too much then
  if (RW_UNLIKELY((std::uint64_t{chain_fault} | chain.writable_bytes()) != 0 || bytes < kEthernetHeaderBytes ||
                  bytes > limits.bytes_max || readable.front().iov_len < header_bytes || readable.size() > storage.size())) {
    return parse_any(chain, chain_fault, header_bytes, limits, storage, out);
  }
  const iovec first = readable.front();
  std::byte* const base = static_cast<std::byte*>(first.iov_base);
  const std::size_t alone = first.iov_len == header_bytes ? 1 : 0;
  const std::size_t count = readable.size() - alone;
  for (std::size_t i = 1 - alone; i < count; ++i) {
    storage[i] = readable[i + alone];
  }
  if (alone == 0) {
    storage[0] = {.iov_base = base + header_bytes, .iov_len = first.iov_len - header_bytes};
  }
  out.data = storage.first(count);
  out.bytes = static_cast<std::uint32_t>(bytes);
  return read_header(base, limits, out);
}

NetRefusal parse_net_frame(const ChainBuffer& buffer, std::size_t header_bytes, const NetFrameLimits& limits, iovec& storage,
                           NetFrame& out) noexcept {
  RW_DCHECK(header_bytes >= kHeaderBytesRead && header_bytes <= sizeof(spec::NetHeader));
  const std::uint64_t bytes = std::uint64_t{buffer.bytes} - header_bytes;  // may wrap, and is too much then
  storage = {.iov_base = buffer.at + header_bytes, .iov_len = bytes};
  out.data = {&storage, 1};
  out.bytes = static_cast<std::uint32_t>(bytes);
  if (RW_LIKELY(bytes >= kEthernetHeaderBytes && bytes <= limits.bytes_max)) {
    return read_header(buffer.at, limits, out);
  }
  if (buffer.bytes < header_bytes + kEthernetHeaderBytes) {
    return buffer.bytes < header_bytes ? NetRefusal::short_header : NetRefusal::short_frame;
  }
  // To be cut, or too long.
  if (!limits.checksum || bytes > limits.gso_bytes_max) {
    return NetRefusal::long_frame;
  }
  out.header = {};
  guest::copy(reinterpret_cast<std::byte*>(&out.header), buffer.at, kHeaderBytesRead);
  return check_header(limits, out);
}

const char* to_string(NetRefusal refusal) noexcept {
  switch (refusal) {
    case NetRefusal::none:
      return "none";
    case NetRefusal::bad_chain:
      return "bad_chain";
    case NetRefusal::writable_part:
      return "writable_part";
    case NetRefusal::short_header:
      return "short_header";
    case NetRefusal::short_frame:
      return "short_frame";
    case NetRefusal::long_frame:
      return "long_frame";
    case NetRefusal::too_many_segments:
      return "too_many_segments";
    case NetRefusal::bad_checksum_range:
      return "bad_checksum_range";
    case NetRefusal::bad_gso_type:
      return "bad_gso_type";
    case NetRefusal::gso_not_negotiated:
      return "gso_not_negotiated";
    case NetRefusal::no_gso_size:
      return "no_gso_size";
    case NetRefusal::gso_without_checksum:
      return "gso_without_checksum";
  }
  return "unknown";
}

}  // namespace ringway
