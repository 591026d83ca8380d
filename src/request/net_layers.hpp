// What a frame is: Ethernet with up to two VLAN tags, IPv4 or IPv6, TCP or UDP, found in a copy of its first bytes.
//
// Pure. The frame lies in memory that may change, so its first bytes are gathered once and only the copy is looked at; and
// no byte of the copy is read that isn't there. Numbers are in host order, offsets count from the Ethernet header on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ringway {

inline constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr std::uint16_t kEtherTypeArp = 0x0806;
inline constexpr std::uint16_t kEtherTypeRarp = 0x8035;
inline constexpr std::uint16_t kEtherTypeVlan = 0x8100;  // 802.1Q
inline constexpr std::uint16_t kEtherTypeQinq = 0x88a8;  // 802.1ad
inline constexpr std::uint16_t kEtherTypeIpv6 = 0x86dd;
inline constexpr std::uint8_t kIpProtocolTcp = 6;
inline constexpr std::uint8_t kIpProtocolUdp = 17;

enum class NetLayer3 : std::uint8_t { other, arp, ipv4, ipv6 };
enum class NetLayer4 : std::uint8_t { none, tcp, udp };

struct NetLayers {
  NetLayer3 l3 = NetLayer3::other;  // `other` too when the header doesn't fit what is there, or contradicts itself
  NetLayer4 l4 = NetLayer4::none;   // `none` too for fragments, of which only the first has ports, and incomplete headers
  std::uint8_t tags = 0;
  std::uint8_t protocol = 0;              // behind IPv4 or IPv6 and its extension headers: TCP, UDP, ICMP, …
  std::array<std::uint16_t, 2> tci = {};  // of the tags, outermost first: priority, DEI, 12 bits of id
  std::uint16_t ether_type = 0;           // behind the tags; a length, below 0x600

  std::uint16_t l3_offset = 0;       // behind the Ethernet header and the tags
  std::uint16_t l4_offset = 0;       // behind the headers of IP; valid with ipv4, and with ipv6 unless headers_cut
  std::uint16_t payload_offset = 0;  // behind TCP's or UDP's header; valid with one of them
  std::uint32_t l3_bytes = 0;        // of the whole packet, as the header says; as the frame says where that has 0 (GSO)

  std::uint16_t source_offset = 0;  // of the addresses, 4 or 16 bytes each; valid with ipv4 and ipv6
  std::uint16_t destination_offset = 0;
  std::uint16_t source_port = 0;  // valid with tcp and udp
  std::uint16_t destination_port = 0;

  bool fragment = false;                   // one of several
  bool more_fragments = false;             // not the last one
  std::uint16_t fragment_offset = 0;       // bytes
  bool extension_headers = false;          // IPv6 with any
  bool headers_cut = false;                // IPv6: too many, or not all of them in what was gathered
  bool routed_on = false;                  // IPv6: a routing header (not of type 2) names another final destination
  std::uint16_t home_address_offset = 0;   // IPv6: of a Home Address option, 0 if there is none: the true source
  std::uint16_t final_address_offset = 0;  // IPv6: in a routing header of type 2, 0 if there is none: the true destination
};

// `head` is the beginning of a frame of `frame_bytes` bytes: all of it, or as much as was gathered (NetCursor::read).
// Reads head only; a head shorter than an Ethernet header is `other` with everything 0.
[[nodiscard]] NetLayers net_dissect(std::span<const std::byte> head, std::uint32_t frame_bytes) noexcept;

}  // namespace ringway
