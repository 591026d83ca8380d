// Request slots: one per request in flight, from a bounded pool per worker (hard-points 17).
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/blk/blk_store.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/time.hpp"
#include "guest/region_map.hpp"
#include "ring/chain.hpp"

namespace ringway {

// One memory table as a queue knows it, with the requests that were translated by it. Worker-owned.
struct PinnedMap {
  std::shared_ptr<const RegionMap> map;
  std::uint32_t pins = 0;
};

struct WideSegments {
  std::unique_ptr<iovec[]> segments = std::make_unique_for_overwrite<iovec[]>(limits::kChainSegmentsMax);
};

// Ordered so that a request of one or two segments touches the first lines of it only.
struct alignas(64) BlkSlot {
  BlkOperation operation;  // first: a completion finds its slot by it
  ChainId chain;
  PinnedMap* pinned = nullptr;
  Instant popped;
  WideSegments* wide = nullptr;  // borrowed from the pool when the inline segments don't suffice
  std::array<iovec, limits::kInlineSegments> segments;
};

class BlkSlotPool {
 public:
  explicit BlkSlotPool(std::size_t slots = limits::kSlotsPerWorker, std::size_t wide = limits::kWideSegmentsPerWorker);

  // nullptr when all are in flight. The one given back last comes first, so it is warm.
  [[nodiscard]] BlkSlot* take() noexcept {
    if (free_.empty()) {
      return nullptr;
    }
    BlkSlot* slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give(BlkSlot& slot) noexcept {
    if (RW_UNLIKELY(slot.wide != nullptr)) {
      free_wide_.push_back(slot.wide);  // capacity was reserved
      slot.wide = nullptr;
    }
    free_.push_back(&slot);
  }
  // Room for `count` segments: the slot's own, which is enough for whoever keeps to seg_max, or a borrowed wide one; empty
  // when there is none of those left at the moment.
  [[nodiscard]] std::span<iovec> segments(BlkSlot& slot, std::size_t count) noexcept;
  [[nodiscard]] std::size_t available() const noexcept { return free_.size(); }
  [[nodiscard]] std::size_t wide_available() const noexcept { return free_wide_.size(); }

 private:
  std::unique_ptr<BlkSlot[]> slots_;
  std::unique_ptr<iovec[]> long_segments_;  // kLongSegments for each slot; pages that nobody needed are never touched
  std::vector<BlkSlot*> free_;
  std::vector<WideSegments> wide_;
  std::vector<WideSegments*> free_wide_;
};

}  // namespace ringway
