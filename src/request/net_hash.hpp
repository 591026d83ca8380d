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
#include "request/net_pieces.hpp"
#include "ring/spec.hpp"

namespace ringway {

// Two IPv6 addresses and two ports.
inline constexpr std::size_t kNetHashInputBytesMax = 36;
static_assert(kNetHashInputBytesMax + 4 == spec::kNetRssKeyBytesMax, "each bit of the input meets 32 bits of the key");

inline constexpr std::uint32_t kNetHashTypesPlain = spec::kNetHashTypeIpv4 | spec::kNetHashTypeTcpv4 |
                                                    spec::kNetHashTypeUdpv4 | spec::kNetHashTypeIpv6 |
                                                    spec::kNetHashTypeTcpv6 | spec::kNetHashTypeUdpv6;
inline constexpr std::uint32_t kNetHashTypesAll =
    kNetHashTypesPlain | spec::kNetHashTypeIpEx | spec::kNetHashTypeTcpEx | spec::kNetHashTypeUdpEx;

class NetHashKey {
 public:
  // A key shorter than 40 bytes is continued with zeros; of a longer one the first 40 bytes count. No key: all hashes are 0.
  NetHashKey() = default;
  explicit NetHashKey(std::span<const std::uint8_t> key) noexcept;

  // What a byte adds to the hash, by its place in the input.
  struct ByteTable {
    std::array<std::uint32_t, 16> low;   // by the low four bits
    std::array<std::uint32_t, 16> high;  // and the high ones
  };
  using Tables = std::array<ByteTable, kNetHashInputBytesMax>;
  [[nodiscard]] const Tables& tables() const noexcept { return tables_; }

  // REQUIRES: at most kNetHashInputBytesMax bytes.
  [[nodiscard]] std::uint32_t hash(std::span<const std::byte> input) const noexcept;

 private:
  Tables tables_ = {};
};

// What of a frame is hashed.
struct NetHashInput {
  std::uint16_t report = spec::kNetHashReportNone;  // as NetHash's
  std::size_t count = 0;
  std::array<std::byte, kNetHashInputBytesMax> bytes;  // only the first `count` mean something
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
// The first half of that.
void net_hash_input(std::uint32_t types, const NetLayers& layers, std::span<const std::byte> head,
                    NetHashInput& out) noexcept;
// Of a frame of `bytes` bytes that begins at `frame`, and may change meanwhile: its first bytes are read once.
[[nodiscard]] NetHash net_hash(const NetHashKey& key, std::uint32_t types, NetCursor frame, std::uint32_t bytes) noexcept;

}  // namespace ringway
