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

struct BlkQueueCounters {
  std::array<Counter, kBlkOpcodes> requests;  // completed with OK, by opcode
  std::array<Counter, kBlkOpcodes> failed;    // completed with IOERR or UNSUPP by the store
  std::array<Counter, kBlkRefusals> refused;  // never reached the store, by reason
  Counter bytes_in, bytes_out;                // read by the guest, written by the guest
  Counter kicks;                              // wake-ups by the driver
  Counter calls;                              // notifications sent
  Counter calls_suppressed;                   // batches published that the driver didn't want to hear of
  Counter calls_dropped;                      // the call fd was full or broken
  Counter ring_faults;                        // the ring was stopped for one
  Counter lost_kicks;                         // found by the safety look
  Counter batches;                            // publishes
  Counter starved;                            // turns that ended for want of a slot
  Counter memory_lost;                        // requests dropped because guest memory was truncated
};

// Per device and worker.
struct BlkLatency {
  LatencyHistogram read, write, other;  // popped → completed, ns, by turns' clock reads
};

}  // namespace ringway
