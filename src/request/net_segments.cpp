// A frame is cut by changing the one copy of its headers from segment to segment: lengths, the IPv4 id and checksum, TCP's
// sequence number and flags, the transport checksum. Two ways of laying out the payload:
//
//   segments (TCP, UDP_L4)   each has all headers and up to gso_size bytes of payload
//   fragments (UDP)          the UDP header is a part of what is cut: the first fragment has it, and all but the last have
//                            gso_size bytes (rounded down to 8) behind the IP header. IPv6 gets a fragment header for it,
//                            put between the IPv6 and the UDP header.
//
// Checksums of the pseudo header are made from the addresses, not from what the driver left in the field: some drivers sum
// the length of the whole frame into it and some none.
#include "request/net_segments.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.hpp"

namespace ringway {
namespace {

constexpr std::uint32_t kIpBytesMax = 65535;
constexpr std::size_t kIpv6HeaderBytes = 40;
constexpr std::size_t kUdpHeaderBytes = 8;
constexpr std::uint16_t kTcpChecksumOffset = 16;
constexpr std::uint16_t kUdpChecksumOffset = 6;
constexpr std::size_t kTcpFlagsOffset = 13;
constexpr std::uint8_t kTcpFin = 0x01;
constexpr std::uint8_t kTcpPush = 0x08;
constexpr std::uint8_t kTcpCwr = 0x80;
constexpr std::uint8_t kIpv6FragmentHeader = 44;

std::uint8_t gso_type_of(const spec::NetHeader& header) noexcept {
  return static_cast<std::uint8_t>(header.gso_type & ~unsigned{spec::kNetGsoEcn});
}

bool matches(std::uint8_t gso_type, const NetLayers& layers) noexcept {
  switch (gso_type) {
    case spec::kNetGsoTcpv4:
      return layers.l3 == NetLayer3::ipv4 && layers.l4 == NetLayer4::tcp;
    case spec::kNetGsoTcpv6:
      return layers.l3 == NetLayer3::ipv6 && layers.l4 == NetLayer4::tcp;
    case spec::kNetGsoUdp:
    case spec::kNetGsoUdpL4:
      return layers.l4 == NetLayer4::udp;
    default:
      return false;
  }
}

}  // namespace

void net_copy_segment(NetSegment& segment, NetCursor to) noexcept {
  NetCursor head_target = to;
  to.advance(segment.head.size());
  NetCursor payload = segment.payload;
  if (segment.complete_checksum) {
    NetSum sum = segment.sum;
    sum.copy(to, payload, segment.payload_bytes);
    const std::uint16_t checksum = sum.checksum();
    std::memcpy(segment.head.data() + segment.checksum_offset, &checksum, sizeof checksum);
  } else {
    net_copy(to, payload, segment.payload_bytes);
  }
  head_target.write(segment.head);
}

void NetSegmenter::put(std::size_t at, std::uint16_t number) noexcept {
  RW_DCHECK(at + sizeof number <= head_.size());
  number = std::byteswap(number);
  std::memcpy(head_.data() + at, &number, sizeof number);
}
void NetSegmenter::put(std::size_t at, std::uint32_t number) noexcept {
  RW_DCHECK(at + sizeof number <= head_.size());
  number = std::byteswap(number);
  std::memcpy(head_.data() + at, &number, sizeof number);
}
std::uint16_t NetSegmenter::number(std::size_t at) const noexcept {
  std::uint16_t number = 0;
  std::memcpy(&number, head_.data() + at, sizeof number);
  return std::byteswap(number);
}

NetSegmentRefusal NetSegmenter::start(const NetFrame& frame, const NetSegmentOptions& options) noexcept {
  count_ = index_ = payload_done_ = 0;
  if (frame.header.gso_type == spec::kNetGsoNone) {
    return NetSegmentRefusal::not_gso;
  }
  NetCursor cursor(frame.data);
  const std::size_t gathered = cursor.read(std::span(head_).first(limits::kNetHeadBytesMax));
  layers_ = net_dissect(std::span(head_).first(gathered), frame.bytes);
  fragments_ = gso_type_of(frame.header) == spec::kNetGsoUdp;
  NetSegmentRefusal refusal = check(frame);
  if (refusal == NetSegmentRefusal::none) {
    refusal = plan(frame);
  }
  if (refusal != NetSegmentRefusal::none) {
    count_ = 0;
    return refusal;
  }
  partial_ = options.partial_checksums && !fragments_;
  payload_ = NetCursor(frame.data);
  payload_.advance(layers_.payload_offset);
  pseudo_header_ = pseudo_header();
  ip_id_ = layers_.l3 == NetLayer3::ipv4 ? number(layers_.l3_offset + 4U) : std::uint16_t{0};
  if (layers_.l4 == NetLayer4::tcp) {
    std::memcpy(&sequence_, head_.data() + layers_.l4_offset + 4, sizeof sequence_);
    sequence_ = std::byteswap(sequence_);
    tcp_flags_ = std::to_integer<std::uint8_t>(head_[layers_.l4_offset + kTcpFlagsOffset]);
  }
  if (fragments_) {
    prepare_fragments(options.fragment_id);
  }
  return NetSegmentRefusal::none;
}

NetSegmentRefusal NetSegmenter::check(const NetFrame& frame) const noexcept {
  if (!matches(gso_type_of(frame.header), layers_)) {
    return NetSegmentRefusal::wrong_headers;
  }
  const std::uint16_t field = layers_.l4 == NetLayer4::tcp ? kTcpChecksumOffset : kUdpChecksumOffset;
  if (frame.header.csum_start != layers_.l4_offset || frame.header.csum_offset != field) {
    return NetSegmentRefusal::wrong_checksum;
  }
  if (layers_.routed_on) {
    return NetSegmentRefusal::routed_on;
  }
  return fragments_ && layers_.extension_headers ? NetSegmentRefusal::extension_headers : NetSegmentRefusal::none;
}

// How much goes into each segment, and how many there are.
NetSegmentRefusal NetSegmenter::plan(const NetFrame& frame) noexcept {
  l4_header_bytes_ = static_cast<std::uint16_t>(layers_.payload_offset - layers_.l4_offset);
  payload_bytes_ = frame.bytes - layers_.payload_offset;
  const std::uint32_t cut_bytes = payload_bytes_ + (fragments_ ? l4_header_bytes_ : 0);  // what is divided
  const std::uint32_t size = fragments_ ? frame.header.gso_size & ~7U : frame.header.gso_size;
  if (size == 0) {
    return NetSegmentRefusal::bad_size;
  }
  chunk_bytes_ = std::min(size, cut_bytes);
  count_ = std::max<std::uint32_t>(1, (cut_bytes + size - 1) / size);
  if (count_ > limits::kNetSegmentsMax) {
    return NetSegmentRefusal::too_many_segments;
  }
  const std::size_t head_bytes = (fragments_ ? layers_.l4_offset : layers_.payload_offset) +
                                 (fragments_ && count_ > 1 && layers_.l3 == NetLayer3::ipv6 ? kFragmentHeaderBytes : 0);
  segment_bytes_max_ = static_cast<std::uint32_t>(head_bytes + chunk_bytes_);
  // The lengths in the headers of IP count from here on. Fragments are one packet again when they are put together.
  const std::size_t counted = layers_.l3_offset + (layers_.l3 == NetLayer3::ipv6 ? kIpv6HeaderBytes : 0);
  if (segment_bytes_max_ - counted > kIpBytesMax || (fragments_ && layers_.l4_offset - counted + cut_bytes > kIpBytesMax)) {
    return NetSegmentRefusal::bad_size;
  }
  return NetSegmentRefusal::none;
}

// Without the length, which differs from segment to segment.
NetSum NetSegmenter::pseudo_header() const noexcept {
  NetSum sum;
  const std::span<const std::byte> head(head_);
  const std::size_t source = layers_.home_address_offset != 0 ? layers_.home_address_offset : layers_.source_offset;
  const std::size_t destination =
      layers_.final_address_offset != 0 ? layers_.final_address_offset : layers_.destination_offset;
  const std::size_t address_bytes = layers_.l3 == NetLayer3::ipv4 ? 4 : 16;
  sum.add(head.subspan(source, address_bytes));
  sum.add(head.subspan(destination, address_bytes));
  sum.add_number(std::uint16_t{layers_.protocol});
  return sum;
}

void NetSegmenter::prepare_fragments(std::uint32_t fragment_id) noexcept {
  const std::uint32_t udp_bytes = payload_bytes_ + l4_header_bytes_;
  put(layers_.l4_offset + 4U, static_cast<std::uint16_t>(udp_bytes));
  put(layers_.l4_offset + std::size_t{kUdpChecksumOffset}, std::uint16_t{0});
  NetSum sum = pseudo_header_;
  sum.add_number(udp_bytes);
  sum.add(std::span<const std::byte>(head_).subspan(layers_.l4_offset, kUdpHeaderBytes));
  NetCursor payload = payload_;
  sum.add(payload, payload_bytes_);
  const std::uint16_t checksum = sum.checksum();
  std::memcpy(head_.data() + layers_.l4_offset + kUdpChecksumOffset, &checksum, sizeof checksum);
  if (layers_.l3 == NetLayer3::ipv6 && count_ > 1) {
    const std::size_t at = layers_.l4_offset;
    std::memmove(head_.data() + at + kFragmentHeaderBytes, head_.data() + at, kUdpHeaderBytes);
    head_[at] = std::byte{kIpProtocolUdp};
    head_[at + 1] = std::byte{0};
    put(at + 4, fragment_id);
    head_[layers_.l3_offset + 6U] = std::byte{kIpv6FragmentHeader};
    layers_.l4_offset = static_cast<std::uint16_t>(at + kFragmentHeaderBytes);
  }
}

// `l4_bytes`: behind the headers of IP.
void NetSegmenter::write_ip(std::uint32_t l4_bytes, std::uint32_t fragment_offset, bool more_fragments) noexcept {
  const std::size_t at = layers_.l3_offset;
  if (layers_.l3 == NetLayer3::ipv6) {
    put(at + 4, static_cast<std::uint16_t>(layers_.l4_offset - at - kIpv6HeaderBytes + l4_bytes));
    if (fragments_ && count_ > 1) {
      put(layers_.l4_offset - kFragmentHeaderBytes + 2,
          static_cast<std::uint16_t>(fragment_offset | (more_fragments ? 1U : 0U)));
    }
    return;
  }
  const std::size_t header_bytes = layers_.l4_offset - at;
  put(at + 2, static_cast<std::uint16_t>(header_bytes + l4_bytes));
  if (!fragments_) {
    put(at + 4, static_cast<std::uint16_t>(ip_id_ + index_));
  } else if (count_ > 1) {
    put(at + 6, static_cast<std::uint16_t>(fragment_offset / 8 | (more_fragments ? 0x2000U : 0U)));
  }
  put(at + 10, std::uint16_t{0});
  NetSum sum;
  sum.add(std::span<const std::byte>(head_).subspan(at, header_bytes));
  const auto checksum = static_cast<std::uint16_t>(~sum.folded());
  std::memcpy(head_.data() + at + 10, &checksum, sizeof checksum);
}

void NetSegmenter::write_tcp(std::uint32_t payload_offset, bool first, bool last) noexcept {
  put(layers_.l4_offset + 4U, sequence_ + payload_offset);
  unsigned flags = tcp_flags_;
  if (!first) {
    flags &= ~unsigned{kTcpCwr};
  }
  if (!last) {
    flags &= ~unsigned{kTcpFin | kTcpPush};
  }
  head_[layers_.l4_offset + kTcpFlagsOffset] = static_cast<std::byte>(flags);
}

void NetSegmenter::finish_checksum(NetSegment& out, std::uint32_t l4_bytes) noexcept {
  const std::uint16_t field = layers_.l4 == NetLayer4::tcp ? kTcpChecksumOffset : kUdpChecksumOffset;
  NetSum sum = pseudo_header_;
  sum.add_number(l4_bytes);
  const std::uint16_t partial = partial_ ? sum.folded() : std::uint16_t{0};
  out.checksum_offset = static_cast<std::uint16_t>(layers_.l4_offset + field);
  std::memcpy(head_.data() + out.checksum_offset, &partial, sizeof partial);
  if (partial_) {
    out.header.flags = spec::kNetHdrNeedsCsum;
    out.header.hdr_len = layers_.payload_offset;
    out.header.csum_start = layers_.l4_offset;
    out.header.csum_offset = field;
    return;
  }
  sum.add(std::span<const std::byte>(head_).subspan(layers_.l4_offset, l4_header_bytes_));
  out.sum = sum;
  out.complete_checksum = true;
}

bool NetSegmenter::next(NetSegment& out) noexcept {
  if (index_ == count_) {
    return false;
  }
  const bool first = index_ == 0;
  const bool last = index_ + 1 == count_;
  const bool has_l4_header = first || !fragments_;
  // The UDP header takes its part of the first fragment.
  const std::uint32_t room = chunk_bytes_ - (fragments_ && first ? l4_header_bytes_ : 0);
  const std::uint32_t payload_bytes = std::min(room, payload_bytes_ - payload_done_);
  const std::uint32_t l4_bytes = payload_bytes + (has_l4_header ? l4_header_bytes_ : 0);
  out = {};
  out.payload = payload_;
  out.payload_bytes = payload_bytes;
  out.head = std::span(head_).first(layers_.l4_offset + (has_l4_header ? l4_header_bytes_ : 0U));
  out.bytes = static_cast<std::uint32_t>(out.head.size()) + payload_bytes;
  write_ip(l4_bytes, index_ * chunk_bytes_, !last);
  if (layers_.l4 == NetLayer4::tcp) {
    write_tcp(payload_done_, first, last);
  } else if (!fragments_) {
    put(layers_.l4_offset + 4U, static_cast<std::uint16_t>(l4_bytes));
  }
  if (!fragments_) {
    finish_checksum(out, l4_bytes);
  }
  payload_.advance(payload_bytes);
  payload_done_ += payload_bytes;
  ++index_;
  return true;
}

const char* to_string(NetSegmentRefusal refusal) noexcept {
  switch (refusal) {
    case NetSegmentRefusal::none:
      return "none";
    case NetSegmentRefusal::not_gso:
      return "not_gso";
    case NetSegmentRefusal::wrong_headers:
      return "wrong_headers";
    case NetSegmentRefusal::wrong_checksum:
      return "wrong_checksum";
    case NetSegmentRefusal::routed_on:
      return "routed_on";
    case NetSegmentRefusal::extension_headers:
      return "extension_headers";
    case NetSegmentRefusal::bad_size:
      return "bad_size";
    case NetSegmentRefusal::too_many_segments:
      return "too_many_segments";
  }
  return "unknown";
}

}  // namespace ringway
