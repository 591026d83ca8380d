// A frame on its way through a switch: what it is judged by on its way in, and the two forms in which it leaves.
//
// The sender's memory may change at any time, so a frame's beginning is copied once; that copy is judged, and that copy is
// what receivers get, whatever the sender has made of the original meanwhile. Only the rest is passed where it lies.
//
// A tag is no matter of the payload: without one the frame is [copy][rest…], with one [addresses and tag][copy, from the
// type on][rest…]. Either can be had at any time, by several receivers at once.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/net/net_port.hpp"
#include "backend/net/switch_table.hpp"
#include "request/net_control.hpp"
#include "request/net_hash.hpp"
#include "request/net_layers.hpp"

namespace ringway {

inline constexpr std::uint16_t kVlanMax = 4094;

// The VLANs of a port.
struct SwitchVlans {
  bool trunk = false;        // frames have tags
  std::uint16_t native = 0;  // the VLAN of frames without one; 0: there is none
  std::array<std::uint64_t, 64> members{};

  void add(std::uint16_t vlan) noexcept { members[vlan / 64U] |= std::uint64_t{1} << (vlan % 64U); }
  [[nodiscard]] bool has(std::uint16_t vlan) const noexcept { return (members[vlan / 64U] >> (vlan % 64U) & 1U) != 0; }
};

using NetIpv4 = std::array<std::uint8_t, 4>;
using NetIpv6 = std::array<std::uint8_t, 16>;

// What a port lets in and out. Immutable.
struct SwitchRules {
  SwitchVlans vlans;
  bool isolated = false;
  std::vector<std::uint64_t> macs;  // as switch_mac() has them, sorted; empty: any
  bool checks_ip = false;           // only these, sorted, as sources:
  std::vector<NetIpv4> ipv4;
  std::vector<NetIpv6> ipv6;
};

class SwitchFrame {
 public:
  static constexpr std::size_t kWholeBytesMax = 256;  // a frame up to this length is copied as a whole,
  static constexpr std::size_t kHeadBytes = 128;      // a longer one up to here
  static constexpr std::size_t kPiecesBefore = 2;     // of a form, before those of the sender

  // `pieces` is where the list goes, and lives as long as it. One for the copy, and as many as frames have.
  explicit SwitchFrame(std::span<iovec> pieces) noexcept : pieces_(pieces) {}
  SwitchFrame(const SwitchFrame&) = delete;
  SwitchFrame& operator=(const SwitchFrame&) = delete;
  ~SwitchFrame() = default;

  // Takes a frame in from the port of those rules. With a reason not to pass it on nothing else is valid.
  [[nodiscard]] SwitchDrop enter(const NetFrame& frame, const SwitchRules& rules) noexcept;
  // Makes this the same frame. REQUIRES: room for its pieces.
  void assign(const SwitchFrame& other) noexcept;

  // Whether a port of these rules may have it.
  [[nodiscard]] SwitchDrop may_leave(const SwitchRules& rules) const noexcept {
    // A tag behind the one that was taken off must not come to be the first: it may name a VLAN that the sender isn't in.
    if (RW_UNLIKELY(!rules.vlans.has(vlan_) || (tagged_twice_ && !leaves_tagged(rules)))) {
      return SwitchDrop::vlan;
    }
    return RW_UNLIKELY(from_isolated_ && rules.isolated) ? SwitchDrop::isolated : SwitchDrop::none;
  }
  // As that port sends it. `storage` is for the list of a form that isn't at hand, and holds as many pieces as frames have
  // and kPiecesBefore more; it and this frame live as long as the result.
  [[nodiscard]] NetFrame leave(const SwitchRules& rules, std::span<iovec> storage) const noexcept {
    return leaves_tagged(rules) ? tagged(storage) : untagged();
  }

  [[nodiscard]] std::uint16_t vlan() const noexcept { return vlan_; }
  [[nodiscard]] std::uint64_t destination() const noexcept { return switch_mac(std::span(head_).first<spec::kMacBytes>()); }
  [[nodiscard]] std::uint64_t source() const noexcept {
    return switch_mac(std::span(head_).subspan<spec::kMacBytes, spec::kMacBytes>());
  }
  // The same in both directions of a flow; of fragments, and of what has no ports, by the addresses.
  [[nodiscard]] std::uint32_t flow() noexcept;
  // What RSS hashes of it, as its receiver will find it, by the kNetHashType… of `types`.
  void take_hash_input(std::uint32_t types, NetHashInput& out) noexcept;
  // Whether nothing of it lies in the sender's memory.
  [[nodiscard]] bool is_whole() const noexcept { return pieces_used_ == 1; }
  [[nodiscard]] std::size_t pieces() const noexcept { return pieces_used_; }

 private:
  [[nodiscard]] bool leaves_tagged(const SwitchRules& rules) const noexcept {
    return rules.vlans.trunk && rules.vlans.native != vlan_;
  }
  [[nodiscard]] SwitchDrop untag(const SwitchRules& rules) noexcept;
  [[nodiscard]] bool is_from(const SwitchRules& rules) noexcept;
  [[nodiscard]] bool owns_ip(const SwitchRules& rules, const NetLayers& layers) const noexcept;
  [[nodiscard]] bool owns_ipv6(const SwitchRules& rules, const NetLayers& layers) const noexcept;
  [[nodiscard]] std::span<const std::byte> head() const noexcept { return std::span(head_).first(head_bytes_); }
  // Of head(). Until the next enter().
  [[nodiscard]] const NetLayers& layers() noexcept {
    if (!has_layers_) {
      layers_ = net_dissect(head(), bytes_);
      has_layers_ = true;
    }
    return layers_;
  }
  [[nodiscard]] NetFrame untagged() const noexcept {
    return {.header = header_, .data = pieces_.first(pieces_used_), .bytes = bytes_};
  }
  [[nodiscard]] NetFrame tagged(std::span<iovec> storage) const noexcept;

  std::span<iovec> pieces_;  // of the untagged form
  std::uint32_t pieces_used_ = 0;
  std::uint32_t bytes_ = 0;   // of the untagged form
  spec::NetHeader header_{};  // before the untagged form
  std::uint32_t flow_ = 0;
  bool has_flow_ = false;
  bool has_layers_ = false;  // never of a copy (assign())
  bool from_isolated_ = false;
  bool tagged_twice_ = false;
  std::uint16_t vlan_ = 0;
  std::uint16_t priority_ = 0;  // the tag's upper four bits, where they stand in it
  std::uint16_t head_bytes_ = 0;
  std::array<std::byte, 2 * spec::kMacBytes + kVlanTagBytes> tag_head_;  // addresses and tag
  std::array<std::byte, kWholeBytesMax> head_;                           // from the addresses on, without tag
  NetLayers layers_;
};

}  // namespace ringway
