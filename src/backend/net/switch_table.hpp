// Which port of a switch an address was last seen behind, for each VLAN.
//
// Shared by all workers: no lock, no waiting. An entry is two atomic words. Of a change the value goes first, to 0, which
// claims the entry for the one who did it: everybody else passes over an entry without a value. A reader that finds the key,
// a value, and the same key again may still be shown the entry's next use if that has the same key; a wrong port for one
// frame is what that costs, and the receiving port judges each frame by itself.
//
// A flood of addresses from one port can't make the others' be forgotten. A new address takes a place that is empty, has
// expired, or is its own port's; and a port has so many places and no more. The places of an address are few, and which ones
// they are depends on a secret, so nobody can fill those of a given address on purpose.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.hpp"
#include "request/net_control.hpp"

namespace ringway {

// A VLAN and a MAC, as one word that is never 0.
struct SwitchKey {
  std::uint64_t word = 0;

  [[nodiscard]] static SwitchKey of(std::uint16_t vlan, std::uint64_t mac) noexcept {
    return {std::uint64_t{1} << 63U | std::uint64_t{vlan} << 48U | mac};
  }
  bool operator==(const SwitchKey&) const = default;
};
// The six bytes as a number, the first one lowest.
[[nodiscard]] std::uint64_t switch_mac(std::span<const std::byte, spec::kMacBytes> bytes) noexcept;

class SwitchTable {
 public:
  static constexpr std::uint16_t kNowhere = 0xffff;
  static constexpr std::size_t kPortsMax = 256;
  static constexpr std::size_t kProbes = 8;  // places that an address may have: two lines of the cache

  struct Options {
    std::size_t entries = 8192;             // a power of two
    std::uint32_t entries_per_port = 1024;  // at most
    std::uint32_t ageing_seconds = 300;     // after which an address that sent nothing is forgotten (IEEE 802.1Q §8.8.3)
    std::uint64_t secret = 0;
  };
  explicit SwitchTable(const Options& options);

  // Time is a counter of seconds that may differ by one among workers.
  [[nodiscard]] std::uint16_t find(SwitchKey key, std::uint32_t second) const noexcept;

  enum class Learned : std::uint8_t { known, added, moved, refused };
  // `key` was seen as a source behind `port`. Writes nothing if that is what the entry says already.
  Learned learn(SwitchKey key, std::uint16_t port, std::uint32_t second) noexcept;

  // Forgets what is behind a port. REQUIRES: nobody learns for that port meanwhile.
  void forget(std::uint16_t port) noexcept;

  // Places that a port has taken; those that have expired are among them until somebody needs them.
  [[nodiscard]] std::uint32_t taken(std::uint16_t port) const noexcept {
    return taken_[port].load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t size() const noexcept { return mask_ + 1; }

 private:
  struct Entry {
    std::atomic<std::uint64_t> key{0};    // 0: empty
    std::atomic<std::uint64_t> value{0};  // 0: nobody's business but of whom it was changed by
  };
  static constexpr std::size_t kSweep = 8;  // entries looked at for each address that is new

  [[nodiscard]] std::size_t place_of(SwitchKey key) const noexcept;
  [[nodiscard]] bool expired(std::uint64_t value, std::uint32_t second) const noexcept;
  [[nodiscard]] bool reserve(std::uint16_t port) noexcept;
  void unreserve(std::uint16_t port) noexcept { taken_[port].fetch_sub(1, std::memory_order_relaxed); }
  // Empties expired entries, a few at a time, so that their ports may take others.
  void sweep(std::uint32_t second) noexcept;
  [[nodiscard]] Learned meet(Entry& entry, std::uint16_t port, std::uint32_t second) noexcept;
  [[nodiscard]] Learned insert(SwitchKey key, std::uint16_t port, std::uint32_t second) noexcept;
  // Takes an entry from what it held, as `value` says. False if somebody was faster.
  [[nodiscard]] static bool claim(Entry& entry, std::uint64_t value) noexcept;
  static void fill(Entry& entry, SwitchKey key, std::uint64_t value) noexcept;

  const std::size_t mask_;
  const std::uint32_t per_port_;
  const std::uint32_t ageing_;
  const std::uint64_t secret_;
  std::unique_ptr<Entry[]> entries_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> taken_;  // by port
  std::atomic<std::size_t> swept_{0};
};

}  // namespace ringway
