// Which pair of a port gets a frame, where the port's guest has said so (receive-side scaling, virtio 1.3 §5.1.6.5.6).
//
// Written by the control thread while any worker reads, without a lock and without a copy: each word is an atomic of its
// own. So a frame that is on its way while the guest changes its table may be placed by parts of both, which is one more
// place where the guest could have had it; the pair is always one that ports can have. It is never freed while the switch
// lives.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backend/net/net_port.hpp"
#include "backend/net/switch_frame.hpp"
#include "request/net_hash.hpp"

namespace ringway {

class SwitchSteering {
 public:
  // Control thread.
  void set(const NetSteering& by) noexcept;
  // Any worker.
  [[nodiscard]] std::uint16_t choose(SwitchFrame& frame) const noexcept;

 private:
  using Halves = std::array<std::atomic<std::uint32_t>, 32>;  // NetHashKey::ByteTable: low, then high

  // relaxed, all of them: see above. What was set before steer() returned is seen by who finds this in SwitchPlace.
  std::atomic<std::uint32_t> types_{0};
  std::atomic<std::uint16_t> mask_{0};
  std::atomic<std::uint16_t> unclassified_{0};
  std::array<std::atomic<std::uint16_t>, limits::kNetRssTableMax> pairs_{};
  std::array<Halves, kNetHashInputBytesMax> tables_{};
};

}  // namespace ringway
