#include "backend/net/switch_frame.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "request/net_pieces.hpp"

namespace ringway {
namespace {

constexpr std::size_t kTypeOffset = 2 * spec::kMacBytes;
constexpr std::uint64_t kGroupBit = 1;
// 01:80:c2:00:00:00 to :0f, the first byte lowest.
constexpr std::uint64_t kReservedMac = 0x0000'00c2'8001ULL;
constexpr std::uint64_t kReservedMask = 0xf0ff'ffff'ffffULL;
constexpr std::uint16_t kVlanIdMask = 0x0fff;

constexpr std::uint8_t kIpProtocolIcmpv6 = 58;
constexpr std::size_t kArpBytes = 28;
constexpr std::uint8_t kNeighbourSolicitation = 135;
constexpr std::uint8_t kNeighbourAdvertisement = 136;
constexpr std::uint16_t kDhcpClientPort = 68;
constexpr std::uint16_t kDhcpServerPort = 67;

std::uint16_t number(std::span<const std::byte> bytes, std::size_t at) noexcept {
  std::uint16_t word = 0;
  RW_DCHECK(at + sizeof word <= bytes.size());
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return std::byteswap(word);
}
void put_word(std::span<std::byte> bytes, std::size_t at, std::uint16_t word) noexcept {
  word = std::byteswap(word);
  std::memcpy(bytes.data() + at, &word, sizeof word);
}

template <typename Address>
Address address_at(std::span<const std::byte> bytes, std::size_t at) noexcept {
  Address address;
  RW_DCHECK(at + address.size() <= bytes.size());
  std::memcpy(address.data(), bytes.data() + at, address.size());
  return address;
}
template <typename Address>
bool is_among(const std::vector<Address>& sorted, const Address& address) noexcept {
  return std::ranges::binary_search(sorted, address);
}

std::uint64_t mix(std::uint64_t word) noexcept {
  word = (word ^ word >> 32U) * 0xd6e8feb86659fd93ULL;
  return word ^ word >> 32U;
}
// Of up to 16 bytes.
std::uint64_t mix(std::span<const std::byte> bytes) noexcept {
  std::array<std::uint64_t, 2> words{};
  std::memcpy(words.data(), bytes.data(), std::min(bytes.size(), sizeof words));
  return mix(words[0] ^ mix(words[1] + bytes.size()));
}

}  // namespace

// ---------------------------------------------------------------- in

SwitchDrop SwitchFrame::enter(const NetFrame& frame, const SwitchRules& rules) noexcept {
  header_ = frame.header;
  bytes_ = frame.bytes;
  has_flow_ = false;
  has_layers_ = false;
  from_isolated_ = rules.isolated;
  const std::size_t wanted = bytes_ <= kWholeBytesMax ? kWholeBytesMax : kHeadBytes;
  NetCursor cursor(frame.data);
  head_bytes_ = static_cast<std::uint16_t>(cursor.read(std::span(head_).first(std::min<std::size_t>(bytes_, wanted))));
  const std::size_t rest = bytes_ - head_bytes_;
  // The room is for as many pieces as the sender may have: the rest of a frame has no more of them than the frame.
  pieces_used_ = static_cast<std::uint32_t>(1 + (rest == 0 ? 0 : cursor.list(rest, pieces_.subspan(1)).size()));
  RW_DCHECK(head_bytes_ >= kEthernetHeaderBytes);

  if (RW_UNLIKELY((source() & kGroupBit) != 0)) {
    return SwitchDrop::malformed;
  }
  if (RW_UNLIKELY((destination() & kReservedMask) == kReservedMac)) {
    return SwitchDrop::reserved;
  }
  priority_ = 0;
  tagged_twice_ = false;
  vlan_ = rules.vlans.native;
  if (number(head_, kTypeOffset) == kEtherTypeVlan) {
    if (const SwitchDrop drop = untag(rules); drop != SwitchDrop::none) {
      return drop;
    }
  }
  // A service tag without a number is taken off by a receiver that knows of them, and shows the tag behind it.
  const bool hides_a_tag =
      number(head_, kTypeOffset) == kEtherTypeQinq &&
      (head_bytes_ < kEthernetHeaderBytes + kVlanTagBytes || (number(head_, kTypeOffset + 2) & kVlanIdMask) == 0);
  if (RW_UNLIKELY(vlan_ == 0 || hides_a_tag)) {
    return SwitchDrop::vlan;
  }
  if (RW_UNLIKELY((header_.flags & spec::kNetHdrNeedsCsum) != 0 && header_.csum_start > UINT16_MAX - kVlanTagBytes)) {
    return SwitchDrop::malformed;  // with a tag it would begin elsewhere
  }
  if (RW_UNLIKELY(!rules.macs.empty()) && !is_among(rules.macs, source())) {
    return SwitchDrop::spoofed_mac;
  }
  if (RW_UNLIKELY(rules.checks_ip) && !is_from(rules)) {
    return SwitchDrop::spoofed_ip;
  }
  pieces_[0] = {.iov_base = head_.data(), .iov_len = head_bytes_};
  std::memcpy(tag_head_.data(), head_.data(), kTypeOffset);
  put_word(tag_head_, kTypeOffset, kEtherTypeVlan);
  put_word(tag_head_, kTypeOffset + 2, static_cast<std::uint16_t>(priority_ | vlan_));
  return SwitchDrop::none;
}

// The tag of a frame tells its VLAN, and is no part of it from here on.
SwitchDrop SwitchFrame::untag(const SwitchRules& rules) noexcept {
  if (RW_UNLIKELY(head_bytes_ < kEthernetHeaderBytes + kVlanTagBytes)) {
    return SwitchDrop::malformed;
  }
  const std::uint16_t tag = number(head_, kTypeOffset + 2);
  const auto id = static_cast<std::uint16_t>(tag & kVlanIdMask);
  priority_ = static_cast<std::uint16_t>(tag & static_cast<std::uint16_t>(~kVlanIdMask));
  if (id != 0) {  // else it has only a priority (IEEE 802.1Q §6.9)
    if (!rules.vlans.trunk || !rules.vlans.has(id)) {
      return SwitchDrop::vlan;
    }
    vlan_ = id;
  }
  std::memmove(head_.data() + kTypeOffset, head_.data() + kTypeOffset + kVlanTagBytes,
               head_bytes_ - kTypeOffset - kVlanTagBytes);
  head_bytes_ = static_cast<std::uint16_t>(head_bytes_ - kVlanTagBytes);
  bytes_ -= kVlanTagBytes;
  tagged_twice_ = number(head_, kTypeOffset) == kEtherTypeVlan;
  if ((header_.flags & spec::kNetHdrNeedsCsum) != 0) {
    if (header_.csum_start < kNetChecksumStartMin + kVlanTagBytes) {
      return SwitchDrop::malformed;
    }
    header_.csum_start = static_cast<std::uint16_t>(header_.csum_start - kVlanTagBytes);
  }
  header_.hdr_len = static_cast<std::uint16_t>(header_.hdr_len - std::min<unsigned>(header_.hdr_len, kVlanTagBytes));
  return SwitchDrop::none;
}

// ---------------------------------------------------------------- whose it is

bool SwitchFrame::is_from(const SwitchRules& rules) noexcept {
  const NetLayers& layers = this->layers();
  if (layers.ether_type == kEtherTypeVlan || layers.ether_type == kEtherTypeQinq) {
    return false;  // more tags than are looked behind, which a receiver may take off all the same
  }
  const bool writes_checksum = (header_.flags & spec::kNetHdrNeedsCsum) != 0;
  if (layers.ether_type == kEtherTypeArp) {
    if (writes_checksum) {
      return false;  // it has none: the receiver would write over what is judged here
    }
    // The sender's addresses in it, which other hosts believe.
    if (head_bytes_ < layers.l3_offset + kArpBytes) {
      return false;
    }
    const auto ip = address_at<NetIpv4>(head(), layers.l3_offset + 14U);
    const std::uint64_t mac = switch_mac(head().subspan(layers.l3_offset + 8U).first<spec::kMacBytes>());
    return mac == source() && (is_among(rules.ipv4, ip) || ip == NetIpv4{});
  }
  if (layers.ether_type != kEtherTypeIpv4 && layers.ether_type != kEtherTypeIpv6) {
    return true;
  }
  if (layers.l3 == NetLayer3::other) {
    return false;
  }
  // The receiver writes a checksum that was left to it; it must not be made to write over what is judged here.
  // Of ICMPv6 that is what lies behind its header, too, and nobody leaves its checksum to others.
  const bool headers_known = layers.l3 == NetLayer3::ipv4 || !layers.headers_cut;
  if (writes_checksum && (!headers_known || header_.csum_start < layers.l4_offset ||
                          (layers.l3 == NetLayer3::ipv6 && layers.protocol == kIpProtocolIcmpv6))) {
    return false;
  }
  return owns_ip(rules, layers);
}

bool SwitchFrame::owns_ip(const SwitchRules& rules, const NetLayers& layers) const noexcept {
  if (layers.l3 == NetLayer3::ipv6) {
    return owns_ipv6(rules, layers);
  }
  const auto ip = address_at<NetIpv4>(head(), layers.source_offset);
  // Who has no address yet asks for one.
  const bool asks = ip == NetIpv4{} && layers.l4 == NetLayer4::udp && layers.source_port == kDhcpClientPort &&
                    layers.destination_port == kDhcpServerPort;
  return asks || is_among(rules.ipv4, ip);
}

bool SwitchFrame::owns_ipv6(const SwitchRules& rules, const NetLayers& layers) const noexcept {
  if (layers.headers_cut) {
    return false;
  }
  const auto ip = address_at<NetIpv6>(head(), layers.source_offset);
  const bool icmp = layers.protocol == kIpProtocolIcmpv6;
  const std::size_t target = layers.l4_offset + 8U;
  std::uint8_t type = 0;
  if (icmp && layers.l4_offset < head_bytes_) {
    type = std::to_integer<std::uint8_t>(head_[layers.l4_offset]);
  }
  if (icmp && type == kNeighbourAdvertisement) {
    // Says whose address it is, as ARP does.
    if (layers.fragment || head_bytes_ < target + sizeof(NetIpv6) ||
        !is_among(rules.ipv6, address_at<NetIpv6>(head(), target))) {
      return false;
    }
  }
  if (layers.home_address_offset != 0 && !is_among(rules.ipv6, address_at<NetIpv6>(head(), layers.home_address_offset))) {
    return false;
  }
  // Asks whether somebody else has its address, before it uses it.
  const bool asks = ip == NetIpv6{} && icmp && type == kNeighbourSolicitation;
  return asks || is_among(rules.ipv6, ip);
}

// ---------------------------------------------------------------- where to

std::uint32_t SwitchFrame::flow() noexcept {
  if (has_flow_) {
    return flow_;
  }
  has_flow_ = true;
  const NetLayers& layers = this->layers();
  const std::span<const std::byte> all = head();
  std::uint64_t hash = 0;
  if (layers.l3 == NetLayer3::ipv4 || layers.l3 == NetLayer3::ipv6) {
    const std::size_t bytes = layers.l3 == NetLayer3::ipv4 ? sizeof(NetIpv4) : sizeof(NetIpv6);
    // Sums don't tell the two ends apart.
    hash = mix(all.subspan(layers.source_offset, bytes)) + mix(all.subspan(layers.destination_offset, bytes));
    if (layers.l4 != NetLayer4::none) {
      hash += mix(std::uint64_t{layers.source_port} + 1) + mix(std::uint64_t{layers.destination_port} + 1) + layers.protocol;
    }
  } else {
    hash = mix(all.first(spec::kMacBytes)) + mix(all.subspan(spec::kMacBytes, spec::kMacBytes));
  }
  flow_ = static_cast<std::uint32_t>(mix(hash));
  return flow_;
}

void SwitchFrame::take_hash_input(std::uint32_t types, NetHashInput& out) noexcept {
  const bool all_there = layers().l4 != NetLayer4::none || head_bytes_ == bytes_;
  if (RW_LIKELY(all_there)) {
    net_hash_input(types, layers_, head(), out);
    return;
  }
  // Perhaps with longer headers than are copied of every frame.
  std::array<std::byte, limits::kNetHeadBytesMax> longer;
  const std::span<const std::byte> found = std::span(longer).first(NetCursor(untagged().data).read(longer));
  net_hash_input(types, net_dissect(found, bytes_), found, out);
}

// ---------------------------------------------------------------- out

NetFrame SwitchFrame::tagged(std::span<iovec> storage) const noexcept {
  RW_DCHECK(storage.size() > pieces_used_);
  storage[0] = {.iov_base = const_cast<std::byte*>(tag_head_.data()), .iov_len = tag_head_.size()};
  storage[1] = {.iov_base = const_cast<std::byte*>(head_.data()) + kTypeOffset, .iov_len = head_bytes_ - kTypeOffset};
  std::ranges::copy(pieces_.subspan(1, pieces_used_ - 1), storage.begin() + 2);
  NetFrame frame{.header = header_, .data = storage.first(pieces_used_ + 1), .bytes = bytes_ + kVlanTagBytes};
  if ((header_.flags & spec::kNetHdrNeedsCsum) != 0) {
    frame.header.csum_start = static_cast<std::uint16_t>(header_.csum_start + kVlanTagBytes);
  }
  if (header_.hdr_len != 0) {
    frame.header.hdr_len = static_cast<std::uint16_t>(std::min<unsigned>(header_.hdr_len + kVlanTagBytes, UINT16_MAX));
  }
  return frame;
}

void SwitchFrame::assign(const SwitchFrame& other) noexcept {
  RW_DCHECK(other.pieces_used_ <= pieces_.size());
  header_ = other.header_;
  bytes_ = other.bytes_;
  pieces_used_ = other.pieces_used_;
  flow_ = other.flow_;
  has_flow_ = other.has_flow_;
  has_layers_ = false;
  from_isolated_ = other.from_isolated_;
  tagged_twice_ = other.tagged_twice_;
  vlan_ = other.vlan_;
  priority_ = other.priority_;
  head_bytes_ = other.head_bytes_;
  tag_head_ = other.tag_head_;
  std::memcpy(head_.data(), other.head_.data(), other.head_bytes_);
  pieces_[0] = {.iov_base = head_.data(), .iov_len = head_bytes_};
  std::ranges::copy(other.pieces_.subspan(1, pieces_used_ - 1), pieces_.begin() + 1);
}

}  // namespace ringway
