// Ports without a host interface: for measuring, for tests, and to look at a guest's card alone.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/net/net_port.hpp"

namespace ringway {

// Takes every frame and drops it; never has one.
[[nodiscard]] std::unique_ptr<NetPort> make_null_port();

// Gives every frame back to the pair that sent it.
[[nodiscard]] std::unique_ptr<NetPort> make_loop_port();

// Drops what is sent, and always has a frame for whoever has buffers: UDP from 198.18.0.1 to 198.18.0.2 (the range for
// benchmarks, RFC 2544), with a different source port for each pair, and the broadcast address as its destination.
inline constexpr std::uint32_t kSourceFrameBytesMin = 60;
inline constexpr std::uint32_t kSourceFrameBytesMax = 9014;
struct SourcePortOptions {
  std::uint32_t frame_bytes = kSourceFrameBytesMin;  // from the Ethernet header on, without its check sequence
};
[[nodiscard]] std::unique_ptr<NetPort> make_source_port(const SourcePortOptions& options);

}  // namespace ringway
