// What is counted of a network card's queues. Single-writer counters of the owning worker, read by anyone.
#pragma once

#include <array>

#include "metrics/counter.hpp"
#include "request/net_control.hpp"
#include "request/net_frame.hpp"

namespace ringway {

struct NetTransmitCounters {
  Counter frames, bytes;                      // taken by the port, from the Ethernet header on
  Counter gso_frames;                         // of them
  Counter discarded;                          // sent while the queue was disabled
  std::array<Counter, kNetRefusals> refused;  // by NetRefusal
};

struct NetReceiveCounters {
  Counter frames, bytes;          // as the guest got them, from the Ethernet header on
  Counter gso_frames;             // of them
  Counter checksums_completed;    // in software, for a guest without GUEST_CSUM
  Counter segmented;              // GSO frames cut in software
  Counter filtered;               // not wanted by the guest
  Counter dropped_too_long;       // longer than a buffer that can't be merged, or than all buffers of the ring
  Counter dropped_no_buffers;     // the guest had none
  Counter dropped_unsegmentable;  // GSO that the guest can't take, and that can't be cut
  Counter dropped_disabled;       // the pair isn't in use
  Counter bad_buffers;            // chains that were no receive buffers
};

struct NetControlCounters {
  Counter commands;                                  // answered with OK
  std::array<Counter, kNetControlRefusals> refused;  // by NetControlRefusal
};

}  // namespace ringway
