#include "request/net_layers.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.hpp"
#include "base/limits.hpp"

namespace ringway {
namespace {

constexpr std::size_t kEtherTypeOffset = 12;
constexpr std::size_t kIpv4Bytes = 20;
constexpr std::size_t kIpv6Bytes = 40;
constexpr std::size_t kTcpBytes = 20;
constexpr std::size_t kUdpBytes = 8;

constexpr std::uint8_t kHopByHop = 0;
constexpr std::uint8_t kRouting = 43;
constexpr std::uint8_t kFragment = 44;
constexpr std::uint8_t kAuthentication = 51;
constexpr std::uint8_t kDestination = 60;

constexpr std::uint8_t kOptionPad1 = 0;
constexpr std::uint8_t kOptionHomeAddress = 201;
constexpr std::size_t kIpv6AddressBytes = 16;

std::uint8_t byte_at(std::span<const std::byte> head, std::size_t at) noexcept {
  RW_DCHECK(at < head.size());
  return std::to_integer<std::uint8_t>(head[at]);
}
std::uint16_t number_at(std::span<const std::byte> head, std::size_t at) noexcept {
  RW_DCHECK(at + sizeof(std::uint16_t) <= head.size());
  std::uint16_t number = 0;
  std::memcpy(&number, head.data() + at, sizeof number);
  return std::byteswap(number);
}

// `head` ends where the packet ends, if it is that short.
void dissect_l4(std::span<const std::byte> head, NetLayers& out) noexcept {
  const std::size_t at = out.l4_offset;
  const std::size_t there = head.size() - at;
  std::size_t bytes = 0;
  NetLayer4 l4 = NetLayer4::none;
  if (out.protocol == kIpProtocolTcp && there >= kTcpBytes) {
    l4 = NetLayer4::tcp;
    bytes = std::size_t{4} * (byte_at(head, at + 12) >> 4U);
    if (bytes < kTcpBytes || bytes > there) {
      return;
    }
  } else if (out.protocol == kIpProtocolUdp && there >= kUdpBytes) {
    l4 = NetLayer4::udp;
    bytes = kUdpBytes;
  } else {
    return;
  }
  out.l4 = l4;
  out.payload_offset = static_cast<std::uint16_t>(at + bytes);
  out.source_port = number_at(head, at);
  out.destination_port = number_at(head, at + 2);
}

void dissect_ipv4(std::span<const std::byte> head, std::uint32_t bytes_there, NetLayers& out) noexcept {
  const std::size_t at = out.l3_offset;
  if (head.size() - at < kIpv4Bytes || byte_at(head, at) >> 4U != 4) {
    return;
  }
  const std::size_t header_bytes = std::size_t{4} * (byte_at(head, at) & 15U);
  // A driver may leave 0 in a packet that it wants to have cut.
  const std::uint32_t total = number_at(head, at + 2);
  out.l3_bytes = total == 0 ? bytes_there : total;
  if (header_bytes < kIpv4Bytes || header_bytes > head.size() - at || out.l3_bytes < header_bytes ||
      out.l3_bytes > bytes_there) {
    out.l3_bytes = 0;
    return;
  }
  out.l3 = NetLayer3::ipv4;
  out.protocol = byte_at(head, at + 9);
  out.source_offset = static_cast<std::uint16_t>(at + 12);
  out.destination_offset = static_cast<std::uint16_t>(at + 16);
  out.l4_offset = static_cast<std::uint16_t>(at + header_bytes);
  const std::uint16_t fragment = number_at(head, at + 6);
  out.more_fragments = (fragment & 0x2000U) != 0;
  out.fragment_offset = static_cast<std::uint16_t>((fragment & 0x1fffU) * 8);
  out.fragment = out.more_fragments || out.fragment_offset != 0;
}

// Looks for the option among those of a Destination Options header that lies in `head` as a whole.
std::uint16_t find_home_address(std::span<const std::byte> head, std::size_t at, std::size_t end) noexcept {
  at += 2;
  while (at + 2 <= end) {
    const std::uint8_t type = byte_at(head, at);
    if (type == kOptionPad1) {
      ++at;
      continue;
    }
    const std::size_t bytes = byte_at(head, at + 1);
    if (type == kOptionHomeAddress && bytes == kIpv6AddressBytes && at + 2 + bytes <= end) {
      return static_cast<std::uint16_t>(at + 2);
    }
    at += 2 + bytes;
  }
  return 0;
}

// One extension header that lies in `head` as a whole.
void note_extension(std::span<const std::byte> head, std::uint8_t kind, std::size_t at, std::size_t bytes,
                    NetLayers& out) noexcept {
  if (kind == kFragment) {
    const std::uint16_t fragment = number_at(head, at + 2);
    out.more_fragments = (fragment & 1U) != 0;
    out.fragment_offset = static_cast<std::uint16_t>(fragment & 0xfff8U);
    out.fragment = out.more_fragments || out.fragment_offset != 0;
  } else if (kind == kRouting && byte_at(head, at + 3) != 0) {  // segments left
    if (byte_at(head, at + 2) == 2 && bytes >= 8 + kIpv6AddressBytes) {
      out.final_address_offset = static_cast<std::uint16_t>(at + 8);
    } else {
      out.routed_on = true;
    }
  } else if (kind == kDestination) {
    const std::uint16_t home_address = find_home_address(head, at, at + bytes);
    out.home_address_offset = home_address != 0 ? home_address : out.home_address_offset;
  }
}

bool is_extension(std::uint8_t protocol) noexcept {
  return protocol == kHopByHop || protocol == kRouting || protocol == kFragment || protocol == kDestination ||
         protocol == kAuthentication;
}

void dissect_ipv6(std::span<const std::byte> head, std::uint32_t bytes_there, NetLayers& out) noexcept {
  std::size_t at = out.l3_offset;
  if (head.size() - at < kIpv6Bytes || byte_at(head, at) >> 4U != 6) {
    return;
  }
  const std::uint32_t payload = number_at(head, at + 4);
  const std::uint32_t total = payload == 0 ? bytes_there : payload + kIpv6Bytes;
  if (total > bytes_there) {
    return;
  }
  out.l3 = NetLayer3::ipv6;
  out.l3_bytes = total;
  out.protocol = byte_at(head, at + 6);
  out.source_offset = static_cast<std::uint16_t>(at + 8);
  out.destination_offset = static_cast<std::uint16_t>(at + 24);
  head = head.first(std::min<std::size_t>(head.size(), at + total));
  at += kIpv6Bytes;
  // Behind a fragment's header comes what only the first one begins with.
  for (std::size_t count = 0; is_extension(out.protocol) && !out.fragment; ++count) {
    out.extension_headers = true;
    constexpr std::size_t kShortest = 8;
    if (count == limits::kNetExtensionHeadersMax || head.size() - at < kShortest) {
      out.headers_cut = true;
      return;
    }
    const std::uint8_t units = byte_at(head, at + 1);
    const std::size_t bytes = out.protocol == kFragment         ? kShortest
                              : out.protocol == kAuthentication ? (std::size_t{units} + 2) * 4
                                                                : (std::size_t{units} + 1) * 8;
    if (bytes > head.size() - at) {
      out.headers_cut = true;
      return;
    }
    note_extension(head, out.protocol, at, bytes, out);
    out.protocol = byte_at(head, at);
    at += bytes;
  }
  out.l4_offset = static_cast<std::uint16_t>(at);
}

}  // namespace

NetLayers net_dissect(std::span<const std::byte> head, std::uint32_t frame_bytes) noexcept {
  NetLayers out;
  // Offsets have 16 bits; nobody gathers that much.
  head = head.first(std::min<std::size_t>({head.size(), frame_bytes, 0x8000}));
  std::size_t at = kEtherTypeOffset;
  if (head.size() < at + 2) {
    return out;
  }
  out.ether_type = number_at(head, at);
  while ((out.ether_type == kEtherTypeVlan || out.ether_type == kEtherTypeQinq) && out.tags < out.tci.size() &&
         head.size() >= at + 6) {
    out.tci[out.tags++] = number_at(head, at + 2);
    at += 4;
    out.ether_type = number_at(head, at);
  }
  at += 2;
  out.l3_offset = static_cast<std::uint16_t>(at);
  const auto bytes_there = static_cast<std::uint32_t>(frame_bytes - at);
  if (out.ether_type == kEtherTypeIpv4) {
    dissect_ipv4(head, bytes_there, out);
  } else if (out.ether_type == kEtherTypeIpv6) {
    dissect_ipv6(head, bytes_there, out);
  } else if (out.ether_type == kEtherTypeArp) {
    out.l3 = NetLayer3::arp;
  }
  const bool ip = out.l3 == NetLayer3::ipv4 || out.l3 == NetLayer3::ipv6;
  if (ip && !out.fragment && !out.headers_cut) {
    dissect_l4(head.first(std::min<std::size_t>(head.size(), at + out.l3_bytes)), out);
  }
  return out;
}

}  // namespace ringway
