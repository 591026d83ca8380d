// What the driver of a network card has set by control commands, as one plain value (virtio 1.3 §5.1.6.5).
//
// Owner: whoever serves the control queue; others get a NetReceiveFilter or a copy. Nothing here does anything: the device
// compares the state before and after a command and tells ports, queues and the configuration space.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "request/net_control.hpp"

namespace ringway {

// What the device has; doesn't change while a driver uses it, but for the enabled queues.
struct NetControlLimits {
  std::uint16_t pairs_max = 1;   // max_virtqueue_pairs of the configuration space
  std::uint32_t hash_types = 0;  // supported_hash_types of the configuration space
  // By index of the virtqueue. "Enabled" as in §5.1.6.5.9: set up by the driver and not reset, whether or not its pair is in
  // use.
  std::bitset<limits::kQueuesPerDeviceMax> enabled_queues;
};

struct NetDriverState {
  // As the device is after a reset, and once `features` are negotiated. `mac` is what the configuration space holds.
  [[nodiscard]] static NetDriverState after_reset(std::uint64_t features, const NetMac& mac) noexcept;

  // All frames are wanted until the driver says otherwise. The specification is silent about the state after a reset; QEMU
  // and the kernel's tap start like this, and there are drivers that accept CTRL_RX and never send a command of it.
  bool promiscuous = true;
  bool all_multicast = false;
  bool all_unicast = false;
  bool no_multicast = false;
  bool no_unicast = false;
  bool no_broadcast = false;
  NetMacTable unicast;
  NetMacTable multicast;

  // The address that the card has: of the configuration space, or what MAC_ADDR_SET made of it.
  NetMac mac{};
  // The driver has it from us or told us. Not so with a driver that has not negotiated F_MAC (then it makes one up) and has
  // not sent MAC_ADDR_SET: then no frame can be said not to be for it.
  bool mac_known = false;

  // Bit n of word n / 64: VLAN n. Empty after a reset, as the specification says and QEMU does: with CTRL_VLAN negotiated
  // tagged frames are not wanted before the first VLAN_ADD, but for those that are wanted because all are (promiscuous).
  // Without CTRL_VLAN nobody looks here.
  std::array<std::uint64_t, 64> vlans{};
  [[nodiscard]] bool has_vlan(std::uint16_t id) const noexcept { return (vlans[id / 64U % 64U] >> (id % 64U) & 1U) != 0; }

  // Pairs 0 … pairs - 1 may be used for sending, and for receiving where there is no table. RSS_CONFIG sets it too, from
  // max_tx_vq: "the same effect as VQ_PAIRS_SET" (linux/virtio_net.h).
  std::uint16_t pairs = 1;
  // Set by RSS_CONFIG; VQ_PAIRS_SET and HASH_CONFIG go back to automatic steering (the last command counts, §5.1.6.5.5).
  std::optional<NetRssTable> rss;
  // Of the last RSS_CONFIG or HASH_CONFIG; a change of pairs leaves hash reports as they are.
  NetHashing hashing;

  // spec::kNetGuest…: what the driver takes from us. All that were negotiated until it says otherwise.
  std::uint64_t guest_offloads = 0;

  // By index of the virtqueue: even ones receive. The defaults are of the last RX_SET and TX_SET, and what a queue has after
  // it was disabled.
  std::array<NetCoalescing, limits::kQueuesPerDeviceMax> coalescing{};
  NetCoalescing receive_default;
  NetCoalescing transmit_default;

  // VIRTIO_NET_S_ANNOUNCE of the configuration space: set by the device after a migration, if GUEST_ANNOUNCE was negotiated;
  // cleared by the driver's command.
  bool announce_pending = false;

  bool operator==(const NetDriverState&) const = default;
};

struct NetControlOutcome {
  NetControlRefusal refusal = NetControlRefusal::none;  // none: OK, else ERR
  NetCoalescing answer;                                 // of VQ_GET; else, and after a refusal, zeros
};

// Carries a command out on `state`, all of it or, with a refusal, nothing. `features` are the negotiated ones.
// Time is bounded by the number of queues. A monostate (there is none after a good parse) is an unknown command.
[[nodiscard]] NetControlOutcome apply_net_command(const NetCommand& command, std::uint64_t features,
                                                  const NetControlLimits& limits, NetDriverState& state) noexcept;

// A queue was disabled (queue reset, or by the front-end): it has the default coalescing when it comes back. Any index may
// be given.
void reset_net_queue(NetDriverState& state, std::size_t queue) noexcept;

// The pairs that a driver with these features can have at all: without MQ and RSS only the first, whatever the device has.
[[nodiscard]] std::uint16_t net_pairs_available(std::uint64_t features, std::uint16_t pairs_max) noexcept;
// How many pairs, from the first, may receive: a table may name more than send.
[[nodiscard]] std::uint16_t net_receiving_pairs(const NetDriverState& state) noexcept;
// The guest offloads less those whose requirement the driver has switched off (§5.1.3.1): no TSO, UFO or USO without CSUM,
// no ECN without TSO. A tap refuses such sets.
[[nodiscard]] std::uint64_t net_usable_offloads(std::uint64_t guest_offloads) noexcept;

// For a migration (DEVICE_STATE): little-endian, of a fixed length, with a version and a checksum.
inline constexpr std::size_t kNetDriverStateBytes = 3688;
[[nodiscard]] std::array<std::byte, kNetDriverStateBytes> save_net_state(const NetDriverState& state) noexcept;
// `bytes` is not trusted: what is no state that save_net_state() could have written, or one that a driver with these
// features could not have brought this device to, is an error.
[[nodiscard]] Result<NetDriverState> load_net_state(std::span<const std::byte> bytes, std::uint64_t features,
                                                    const NetControlLimits& limits);

}  // namespace ringway
