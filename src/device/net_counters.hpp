// What is counted of a network card's queues. Single-writer counters of the owning worker, read by anyone.
#pragma once

#include <array>
#include <cstdint>

#include "backend/net/net_port.hpp"
#include "metrics/counter.hpp"
#include "request/net_control.hpp"
#include "request/net_frame.hpp"

namespace ringway {

struct NetTransmitCounters {
  Counter frames, bytes;                      // taken by the port, from the Ethernet header on
  Counter gso_frames;                         // of them
  Counter discarded;                          // sent while the queue was disabled, or the link down
  std::array<Counter, kNetRefusals> refused;  // by NetRefusal
};

struct NetReceiveCounters {
  Counter frames, bytes;          // as the guest got them, from the Ethernet header on
  Counter gso_frames;             // of them
  Counter checksums_completed;    // in software, for a guest without GUEST_CSUM
  Counter segmented;              // GSO frames cut in software
  Counter filtered;               // not wanted by the guest, or the link was down
  Counter dropped_too_long;       // longer than a buffer that can't be merged, or than all buffers of the ring
  Counter dropped_no_buffers;     // the guest had none
  Counter dropped_unsegmentable;  // GSO that the guest can't take, and that can't be cut
  Counter dropped_disabled;       // the pair isn't in use
  Counter bad_buffers;            // chains that were no receive buffers
};

// A copy of NetChannelCounters.
struct NetChannelStats {
  std::uint64_t dropped_down = 0, dropped_error = 0, full = 0, receive_errors = 0;
  std::array<std::uint64_t, kSwitchDrops> switch_dropped{};
  std::uint64_t flooded = 0, lent = 0, copied = 0, rings = 0;

  [[nodiscard]] static NetChannelStats of(const NetChannelCounters& counters) noexcept {
    NetChannelStats stats{.dropped_down = counters.dropped_down.get(),
                          .dropped_error = counters.dropped_error.get(),
                          .full = counters.full.get(),
                          .receive_errors = counters.receive_errors.get(),
                          .switch_dropped = {},
                          .flooded = counters.flooded.get(),
                          .lent = counters.lent.get(),
                          .copied = counters.copied.get(),
                          .rings = counters.rings.get()};
    for (std::size_t i = 0; i < kSwitchDrops; ++i) {
      stats.switch_dropped[i] = counters.switch_dropped[i].get();
    }
    return stats;
  }
};

struct NetControlCounters {
  Counter commands;                                  // answered with OK
  std::array<Counter, kNetControlRefusals> refused;  // by NetControlRefusal
};

}  // namespace ringway
