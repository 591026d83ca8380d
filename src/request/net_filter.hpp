// Which of the frames that arrive at a network card its driver wants, and in which queue pair (virtio 1.3 §5.1.6.5.1-.7).
//
// Immutable: made anew after each command that changes the state, and then shared by all who deliver to the card. No heap,
// no lock, no guest memory: the caller copies the first bytes of a frame once and shows them here.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "request/net_control_state.hpp"

namespace ringway {

class NetReceiveFilter {
 public:
  // Destination, source, and what may be a tag. Of a shorter frame the rest is zeros.
  static constexpr std::size_t kHeadBytes = 18;
  using Head = std::span<const std::byte, kHeadBytes>;

  // `features` are the negotiated ones.
  //
  // A driver without CTRL_RX gets frames for any address, as from QEMU: it can't say what it wants (it may be a bridge, or
  // have been given another address by its user), and filtering is best-effort by the specification, so a frame too many is
  // right where one too few may not be. The same holds for unicast frames while its address is not known.
  //
  // A driver that is promiscuous gets all there is, tagged frames of any VLAN and what it suppressed too (§5.1.6.5.1:
  // "SHOULD receive all incoming packets"). Without CTRL_RX nobody asked for that, so VLANs (CTRL_VLAN) and what is
  // suppressed (CTRL_RX_EXTRA) are filtered out all the same.
  NetReceiveFilter(const NetDriverState& state, std::uint64_t features) noexcept;

  // Whether there is no need to ask.
  [[nodiscard]] bool accepts_everything() const noexcept { return everything_; }
  [[nodiscard]] bool accepts(Head head) const noexcept {
    if (everything_) {
      return true;
    }
    std::uint64_t destination = 0;
    std::uint32_t tag = 0;
    std::memcpy(&destination, head.data(), sizeof destination);
    std::memcpy(&tag, head.data() + kTagOffset, sizeof tag);
    destination &= kAddressMask;
    if ((tag & 0xffffU) == kTagProtocol && !has_vlan(tag)) {
      return false;
    }
    if (destination == own_address_) {
      return true;
    }
    if (destination == kAddressMask) {
      return broadcast_;
    }
    return ((destination & kGroupBit) != 0 ? multicast_ : unicast_).has(destination);
  }

  // The pair that receives a frame. With RSS by its hash, or where hash_report says that there is none, the pair for
  // unclassified frames; else `steered`, the pair that its flow sends on, or the first if that is not in use (any more).
  [[nodiscard]] std::uint16_t select_pair(std::uint32_t hash, std::uint16_t hash_report,
                                          std::uint16_t steered = 0) const noexcept {
    if (!has_rss_) {
      return steered < pairs_ ? steered : std::uint16_t{0};
    }
    return hash_report == spec::kNetHashReportNone ? rss_.unclassified_pair : rss_.pairs[hash & rss_.mask];
  }

 private:
  // Addresses as numbers: the first byte is the lowest.
  static constexpr std::uint64_t kAddressMask = 0xffff'ffff'ffffULL;
  static constexpr std::uint64_t kGroupBit = 1;
  static constexpr std::uint64_t kNoAddress = ~0ULL;
  static constexpr std::size_t kTagOffset = 12;
  // 0x8100 in the order of the wire. Not 0x88a8: drivers filter by customer VLANs, and what is in a service tag is none.
  static constexpr std::uint32_t kTagProtocol = 0x0081;

  struct AddressSet {
    bool all = false;
    std::uint8_t count = 0;
    std::array<std::uint64_t, limits::kNetMacTableMax> sorted{};

    AddressSet() = default;
    explicit AddressSet(const NetMacTable& table) noexcept;
    [[nodiscard]] bool has(std::uint64_t address) const noexcept {
      return all || std::binary_search(sorted.begin(), sorted.begin() + count, address);
    }
  };

  [[nodiscard]] static std::uint64_t to_number(const NetMac& mac) noexcept;
  // `tag` holds the four bytes of a tag; the last two are the VLAN's id and priority.
  [[nodiscard]] bool has_vlan(std::uint32_t tag) const noexcept {
    const std::uint32_t id = (tag >> 8U & 0xf00U) | tag >> 24U;
    return (vlans_[id / 64U] >> (id % 64U) & 1U) != 0;
  }

  // What is looked at for a usual frame comes first.
  bool everything_;
  bool broadcast_;
  bool has_rss_;
  std::uint16_t pairs_;
  std::uint64_t own_address_;  // kNoAddress: matches nothing
  std::array<std::uint64_t, 64> vlans_;
  AddressSet unicast_;
  AddressSet multicast_;
  NetRssTable rss_;
};

}  // namespace ringway
