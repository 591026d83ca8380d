// The Toeplitz hash that spreads flows over receive queues (RSS) and is reported to the driver (virtio 1.3 §5.1.6.4.3).
//
// Pure. A key is prepared once, when the driver sets it, into a table of what each half of each input byte adds; 4.6 KB, a
// seventh of the first cache, where a table of whole bytes would fill all of it and drive out what the frames need.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "request/net_layers.hpp"
#include "ring/spec.hpp"

namespace ringway {

// Two IPv6 addresses and two ports.
inline constexpr std::size_t kNetHashInputBytesMax = 36;
static_assert(kNetHashInputBytesMax + 4 == spec::kNetRssKeyBytesMax, "each bit of the input meets 32 bits of the key");

class NetHashKey {
 public:
  // A key shorter than 40 bytes is continued with zeros; of a longer one the first 40 bytes count. No key: all hashes are 0.
  NetHashKey() = default;
  explicit NetHashKey(std::span<const std::uint8_t> key) noexcept;

  // REQUIRES: at most kNetHashInputBytesMax bytes.
  [[nodiscard]] std::uint32_t hash(std::span<const std::byte> input) const noexcept;

 private:
  struct ByteTable {
    std::array<std::uint32_t, 16> low;   // by the low four bits
    std::array<std::uint32_t, 16> high;  // and the high ones
  };
  std::array<ByteTable, kNetHashInputBytesMax> tables_ = {};
};

struct NetHash {
  std::uint32_t value = 0;
  std::uint16_t report = spec::kNetHashReportNone;  // what was hashed; none: the packet is unclassified
};

// `types` are the enabled kNetHashType… bits; `layers` are those of `head` (net_dissect). By the specification's text the
// _EX types concern only packets with extension headers. All fragments of a packet hash alike, by their addresses, so that
// they stay on one queue.
[[nodiscard]] NetHash net_hash(const NetHashKey& key, std::uint32_t types, const NetLayers& layers,
                               std::span<const std::byte> head) noexcept;

}  // namespace ringway
