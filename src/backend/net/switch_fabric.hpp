// What all workers see of a switch: its ports, who is where, and where to put what is for others.
//
// Nothing here is ever freed while the switch lives: ports come and go, their places are used again. So whoever reads a
// place that is being given up or taken reads words that are old, new, or some of each, but always words of this switch.
// What he decides by them is where to send a frame, never whether it may be received: that is for the receiver's own channel
// to say, which knows its rules from an immutable copy (SwitchChannel).
//
// Control thread: attach() and detach(). Any worker: the rest.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/net/switch_frame.hpp"
#include "backend/net/switch_pool.hpp"
#include "backend/net/switch_steering.hpp"
#include "backend/net/switch_table.hpp"
#include "base/limits.hpp"
#include "base/time.hpp"
#include "loop/loop.hpp"

namespace ringway {

inline constexpr std::size_t kSwitchPortsMax = SwitchTable::kPortsMax;
inline constexpr std::uint32_t kSwitchPairsMax = limits::kNetPairsWithoutControlMax;

// A port as other workers see it.
class SwitchPlace {
 public:
  static constexpr std::uint16_t kNoPair = 0xffff;

  // --- control thread ---
  void take(const SwitchRules& rules, std::uint32_t generation) noexcept;
  void leave() noexcept { generation_.store(0, std::memory_order_release); }
  void steer_by(const std::optional<NetSteering>& by);

  // --- the pairs' workers ---
  void set_seat(std::uint32_t pair, std::uint16_t seat) noexcept { seats_[pair].store(seat, std::memory_order_relaxed); }
  void set_enabled(std::uint32_t pair, bool enabled) noexcept {
    std::atomic<std::uint64_t>& word = enabled_[pair / 64U];
    const std::uint64_t bit = std::uint64_t{1} << (pair % 64U);
    // release: pairs with choose(), which then finds the seat.
    if (enabled) {
      word.fetch_or(bit, std::memory_order_release);
    } else {
      word.fetch_and(~bit, std::memory_order_release);
    }
  }
  // The pair sends that flow, so it is to receive what belongs to it (as with the kernel's tap).
  void steer(std::uint32_t flow, std::uint16_t pair) noexcept {
    std::atomic<std::uint32_t>& entry = steering_[flow % kSteered];
    const std::uint32_t wanted = entry_of(flow, pair);
    if (entry.load(std::memory_order_relaxed) != wanted) {
      entry.store(wanted, std::memory_order_relaxed);
    }
  }

  // --- any worker ---
  [[nodiscard]] std::uint32_t generation() const noexcept {
    return generation_.load(std::memory_order_acquire);  // pairs with take()
  }
  [[nodiscard]] bool isolated() const noexcept { return isolated_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has(std::uint16_t vlan) const noexcept {
    return (vlans_[vlan / 64U].load(std::memory_order_relaxed) >> (vlan % 64U) & 1U) != 0;
  }
  // Several pairs, among which the one that sends a flow is to receive it.
  [[nodiscard]] bool learns_flows() const noexcept {
    const std::uint64_t low = enabled_[0].load(std::memory_order_relaxed);
    return ((low & (low - 1)) != 0 || enabled_[1].load(std::memory_order_relaxed) != 0) &&
           told_.load(std::memory_order_relaxed) == nullptr;
  }
  // The pair that gets the frame; kNoPair if none is enabled, or not the one that the guest has said.
  [[nodiscard]] std::uint16_t choose(SwitchFrame& frame) const noexcept;
  [[nodiscard]] std::uint16_t seat(std::uint16_t pair) const noexcept {
    return seats_[pair].load(std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] bool is_enabled(std::uint16_t pair) const noexcept {
    return (enabled_[pair / 64U].load(std::memory_order_acquire) >> (pair % 64U) & 1U) != 0;  // pairs with set_enabled()
  }

  static constexpr std::size_t kSteered = 512;
  // Part of the flow that isn't told by the entry's place, and the pair plus 1, so that no entry is 0.
  [[nodiscard]] static std::uint32_t entry_of(std::uint32_t flow, std::uint16_t pair) noexcept {
    return (flow & 0xffff0000U) | (pair + 1U);
  }

  std::atomic<std::uint32_t> generation_{0};  // of the port that has the place; 0: nobody
  std::atomic<bool> isolated_{false};
  std::array<std::atomic<std::uint64_t>, kSwitchPairsMax / 64> enabled_{};  // pairs that receive
  std::array<std::atomic<std::uint64_t>, 64> vlans_{};
  std::array<std::atomic<std::uint16_t>, kSwitchPairsMax> seats_{};
  std::array<std::atomic<std::uint32_t>, kSteered> steering_{};
  std::atomic<const SwitchSteering*> told_{nullptr};  // null: the guest has not said
  std::unique_ptr<SwitchSteering> own_told_;          // from the first time on
};

class SwitchFabric {
 public:
  SwitchFabric(std::string switch_name, const SwitchTable::Options& addresses);
  SwitchFabric(const SwitchFabric&) = delete;
  SwitchFabric& operator=(const SwitchFabric&) = delete;
  ~SwitchFabric();

  const std::string name;  // for messages
  SwitchTable table;

  // --- control thread ---
  struct Attached {
    std::uint16_t port = 0;
    std::uint32_t generation = 0;
  };
  // Errors: all places are taken.
  [[nodiscard]] Result<Attached> attach(const SwitchRules& rules);
  // REQUIRES: none of the port's channels is open.
  void detach(std::uint16_t port) noexcept;

  // --- any worker ---
  // REQUIRES: the port is attached, or has been.
  [[nodiscard]] SwitchPlace& place(std::uint16_t port) const noexcept { return *places_[port]; }
  // Calls `each` for the number of every port.
  template <typename Each>
  void for_each_port(Each each) const noexcept {
    for (std::size_t i = 0; i < attached_.size(); ++i) {
      // acquire: pairs with attach(), which has made the place.
      for (std::uint64_t left = attached_[i].load(std::memory_order_acquire); left != 0; left &= left - 1) {
        each(static_cast<std::uint16_t>(i * 64 + static_cast<std::size_t>(std::countr_zero(left))));
      }
    }
  }
  [[nodiscard]] SwitchSeat& seat(std::uint16_t index) const noexcept {
    return *seats_[index].load(std::memory_order_acquire);  // pairs with seat_of()
  }
  // The seat of the worker that has this loop; made if it isn't there. Takes a lock, when a channel opens.
  [[nodiscard]] Result<SwitchSeat*> seat_of(Loop& loop);
  // Calls `each` for every seat.
  template <typename Each>
  void for_each_seat(Each each) const {
    const std::lock_guard lock(mutex_);
    for (const auto& seat : own_seats_) {
      each(*seat);
    }
  }

  // The age of addresses is counted in seconds, which each worker that has channels here tells about once in a second.
  [[nodiscard]] std::uint32_t second() const noexcept { return second_.load(std::memory_order_relaxed); }
  void tell(Instant now) noexcept;

 private:
  std::array<std::unique_ptr<SwitchPlace>, kSwitchPortsMax> places_;
  std::array<std::atomic<std::uint64_t>, kSwitchPortsMax / 64> attached_{};
  std::uint32_t last_generation_ = 0;
  std::atomic<std::uint32_t> second_{0};
  std::array<std::atomic<SwitchSeat*>, kSwitchSeatsMax> seats_{};
  mutable std::mutex mutex_;  // guards own_seats_
  std::vector<std::unique_ptr<SwitchSeat>> own_seats_;
};

}  // namespace ringway
