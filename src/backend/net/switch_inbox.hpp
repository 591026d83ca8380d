// Where a worker finds what others pass to it: parcels that they own, taken all at once.
//
// Any number of threads put, one takes. Lock-free, and nothing is allocated: the links are in the parcels. All that
// threads agree on is one word: the newest parcel, and two bits, `waiting` (the owner may be asleep: whoever puts something
// urgent takes the bit away and rings for it) and `closed`. So there is no order of two stores and loads to be argued about,
// and no fence: either the owner's arm() comes before a put() in that word's one history, and the put() rings; or it comes
// behind it, and fails.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/check.hpp"

namespace ringway {

struct alignas(8) SwitchLink {
  SwitchLink* next = nullptr;
};

// A list that is being put together, for one put().
struct SwitchLinks {
  SwitchLink* newest = nullptr;
  SwitchLink* oldest = nullptr;

  [[nodiscard]] bool empty() const noexcept { return newest == nullptr; }
  void add(SwitchLink& link) noexcept {
    link.next = newest;
    newest = &link;
    if (oldest == nullptr) {
      oldest = &link;
    }
  }
};

class SwitchInbox {
 public:
  enum class Put : std::uint8_t {
    taken,
    ring,    // and the owner has to be woken, by this one caller
    closed,  // not taken
  };
  SwitchInbox() = default;
  SwitchInbox(const SwitchInbox&) = delete;
  SwitchInbox& operator=(const SwitchInbox&) = delete;
  ~SwitchInbox() = default;

  // Any thread. What isn't urgent lies there until the owner looks or something urgent comes. Closed, it takes only `home`
  // (what the owner has lent itself), and rings for nobody. REQUIRES: not empty.
  [[nodiscard]] Put put(const SwitchLinks& links, bool urgent, bool home = false) noexcept {
    std::uintptr_t old = word_.load(std::memory_order_relaxed);
    while (true) {
      if ((old & kClosed) != 0 && !home) {
        return Put::closed;
      }
      const bool rings = urgent && (old & kWaiting) != 0;
      links.oldest->next = link_of(old);
      const std::uintptr_t wanted =
          reinterpret_cast<std::uintptr_t>(links.newest) | (old & kBits & ~(rings ? kWaiting : std::uintptr_t{0}));
      // release: pairs with take(), which reads what the parcels hold.
      if (word_.compare_exchange_weak(old, wanted, std::memory_order_release, std::memory_order_relaxed)) {
        return rings ? Put::ring : Put::taken;
      }
    }
  }

  // --- the owner; it begins closed ---
  // Everything, the oldest first; not waiting any more. One load when there is nothing and nobody waits. REQUIRES: open.
  [[nodiscard]] SwitchLink* take() noexcept {
    const std::uintptr_t word = word_.load(std::memory_order_relaxed);
    RW_DCHECK((word & kClosed) == 0);
    if (RW_LIKELY(word == 0)) {
      return nullptr;
    }
    return take_from(0);
  }
  // From here whoever puts something urgent rings. False if there is something already.
  [[nodiscard]] bool arm() noexcept {
    std::uintptr_t old = word_.load(std::memory_order_relaxed);
    while (true) {
      if (link_of(old) != nullptr) {
        return false;
      }
      if ((old & kWaiting) != 0 || word_.compare_exchange_weak(old, old | kWaiting, std::memory_order_relaxed)) {
        return true;
      }
    }
  }
  // Everything, the oldest first.
  [[nodiscard]] SwitchLink* open() noexcept { return take_from(0); }
  [[nodiscard]] SwitchLink* close() noexcept { return take_from(kClosed); }

 private:
  static constexpr std::uintptr_t kWaiting = 1;
  static constexpr std::uintptr_t kClosed = 2;
  static constexpr std::uintptr_t kBits = kWaiting | kClosed;

  [[nodiscard]] static SwitchLink* link_of(std::uintptr_t word) noexcept {
    return reinterpret_cast<SwitchLink*>(word & ~kBits);  // NOLINT(performance-no-int-to-ptr): two bits ride on it
  }
  [[nodiscard]] SwitchLink* take_from(std::uintptr_t state) noexcept {
    // acquire: pairs with put().
    SwitchLink* from = link_of(word_.exchange(state, std::memory_order_acquire));
    SwitchLink* turned = nullptr;
    while (from != nullptr) {
      SwitchLink* const next = from->next;
      from->next = turned;
      turned = from;
      from = next;
    }
    return turned;
  }

  alignas(64) std::atomic<std::uintptr_t> word_{kClosed};
};

}  // namespace ringway
