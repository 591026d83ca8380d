// What a worker needs to handle frames, once for all network cards that it serves. Scratch: nothing in it outlives a pump().
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <memory>

#include "base/limits.hpp"
#include "request/net_frame.hpp"
#include "request/net_segments.hpp"
#include "ring/chain.hpp"

namespace ringway {

struct NetScratch {
  // --- a transmit queue's ---
  struct Sent {
    ChainId chain;
    NetRefusal refusal = NetRefusal::none;  // else its frame is not among `frames`
  };
  std::array<Sent, limits::kNetBatch> chains;      // as they were popped
  std::array<NetFrame, limits::kNetBatch> frames;  // of those
  std::array<ChainBuffer, limits::kNetBatch> sent_buffers;
  std::unique_ptr<iovec[]> segments = std::make_unique_for_overwrite<iovec[]>(limits::kNetTransmitSegments);

  // --- a receive queue's. Apart from the above, since one pair's frames may be delivered to another while they are sent ---
  struct Buffer {
    ChainId chain;
    std::uint32_t bytes = 0;
    std::size_t first_segment = 0;  // position in `receive_chain`
  };
  Chain receive_chain{limits::kNetReceiveSegments};
  std::array<Buffer, limits::kNetReceiveBuffers> buffers;
  std::array<ChainBuffer, limits::kNetBatch> plain_buffers;
  NetSegmenter segmenter;
};

}  // namespace ringway
