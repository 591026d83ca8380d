// What is counted per queue and per device. Single-writer counters of the owning worker, read by anyone
// (metrics/counter.hpp).
#pragma once

#include <array>
#include <cstdint>

#include "metrics/counter.hpp"
#include "metrics/latency_histogram.hpp"
#include "request/blk_request.hpp"
#include "ring/chain.hpp"

namespace ringway {

// Beside RingCounters.
struct BlkQueueCounters {
  std::array<Counter, kBlkOpcodes> requests;  // completed with OK, by opcode
  std::array<Counter, kBlkOpcodes> failed;    // completed with IOERR or UNSUPP by the store
  std::array<Counter, kBlkRefusals> refused;  // never reached the store, by reason
  Counter bytes_in, bytes_out;                // read by the guest, written by the guest
  Counter starved;                            // turns that ended for want of a slot
};

// Per device and worker.
struct BlkLatency {
  LatencyHistogram read, write, other;  // popped → completed, ns, by turns' clock reads
};

}  // namespace ringway
