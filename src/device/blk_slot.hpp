// Request slots: one per request in flight, from a bounded pool per worker, not one per ring entry: idle rings cost nothing,
// and a hostile guest can't make us allocate.
//
// A disk that hangs never gives its slots back, and any number of disks may hang. So each device has a reserve of its own on
// each of its workers (limits::kReservedSlots), which nobody else can take. Beyond that it draws on what all devices of the
// worker share (limits::kSlotsPerWorker), as long as it holds no more of that than it leaves to the others: one hanging disk
// takes half of it, a second one half of the rest, and in the end all hold about the same.
//
// The pool is as large as all of that together, but a slot's memory is touched only when it is first needed, and the slot
// given back last is taken first: what counts is how many requests were ever in flight at the same time.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "backend/blk/blk_store.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/time.hpp"
#include "ring/chain.hpp"

namespace ringway {

class Queue;
struct TracedRequest;  // trace/stage_recorder.hpp

struct PinnedMap;  // device/ring_queue.hpp

struct WideSegments {
  std::unique_ptr<iovec[]> segments = std::make_unique_for_overwrite<iovec[]>(limits::kChainSegmentsMax);
};

// Ordered so that a request of one or two segments touches the first lines of it only.
struct alignas(64) BlkSlot {
  BlkOperation operation;  // first: a completion finds its slot by it
  ChainId chain;
  PinnedMap* pinned = nullptr;
  Instant popped;
  TracedRequest* traced = nullptr;  // if it is followed
  WideSegments* wide = nullptr;     // borrowed from the pool when the inline segments don't suffice
  std::array<iovec, limits::kInlineSegments> segments;
};

// What one device holds of one worker's pool. Worker-owned.
struct BlkSlotShare {
  std::uint32_t held = 0;
  std::vector<Queue*> waiting;  // queues of the device that went without, in the order of their turns; by WorkerContext
};

class BlkSlotPool {
 public:
  explicit BlkSlotPool(std::size_t shared = limits::kSlotsPerWorker, std::size_t devices = limits::kDevicesMax,
                       std::size_t wide = limits::kWideSegmentsPerWorker);
  BlkSlotPool(const BlkSlotPool&) = delete;
  BlkSlotPool& operator=(const BlkSlotPool&) = delete;
  ~BlkSlotPool() = default;

  // A device comes, and has a reserve from now on; false if there are as many as the pool was made for.
  [[nodiscard]] bool admit() noexcept;
  // It goes. REQUIRES: it holds nothing.
  void dismiss(const BlkSlotShare& share) noexcept;

  [[nodiscard]] bool has_room(const BlkSlotShare& share) const noexcept {
    return RW_LIKELY(share.held < limits::kReservedSlots) || share.held - limits::kReservedSlots < shared_left_;
  }
  // How many slots could be taken one after the other, if nobody else took any.
  [[nodiscard]] std::uint32_t room(const BlkSlotShare& share) const noexcept {
    const std::uint32_t reserved = share.held < limits::kReservedSlots ? limits::kReservedSlots - share.held : 0;
    const std::uint32_t beyond = share.held + reserved - limits::kReservedSlots;  // held of what is shared
    // Each one makes what it holds larger by one, and what it leaves smaller.
    return reserved + (shared_left_ > beyond ? (shared_left_ - beyond + 1) / 2 : 0);
  }
  // REQUIRES: has_room(share). The one given back last comes first, so it is warm.
  [[nodiscard]] BlkSlot& take(BlkSlotShare& share) noexcept {
    RW_DCHECK(has_room(share));
    if (RW_UNLIKELY(share.held >= limits::kReservedSlots)) {
      --shared_left_;
    }
    ++share.held;
    if (RW_UNLIKELY(free_.empty())) {
      return take_fresh();
    }
    BlkSlot* slot = free_.back();
    free_.pop_back();
    return *slot;
  }
  void give(BlkSlot& slot, BlkSlotShare& share) noexcept {
    if (RW_UNLIKELY(slot.wide != nullptr)) {
      free_wide_.push_back(slot.wide);  // capacity was reserved
      slot.wide = nullptr;
    }
    free_.push_back(&slot);
    // Below its reserve a device neither waits itself nor has anything that another one could wait for.
    if (RW_UNLIKELY(share.held >= limits::kReservedSlots)) {
      shared_left_ += share.held != limits::kReservedSlots ? 1 : 0;
      replenished_ = true;
    }
    --share.held;
  }
  // True if has_room() may have become true for any device since the last call.
  [[nodiscard]] bool take_replenished() noexcept { return std::exchange(replenished_, false); }
  [[nodiscard]] bool replenished() const noexcept { return replenished_; }
  // Makes take_replenished() true: what was set aside for somebody may have been left.
  void note_replenished() noexcept { replenished_ = true; }
  // Room for `count` segments: the slot's own, which is enough for whoever keeps to seg_max, or a borrowed wide one; empty
  // when there is none of those left at the moment.
  [[nodiscard]] std::span<iovec> segments(BlkSlot& slot, std::size_t count) noexcept;

 private:
  struct Free {
    void operator()(BlkSlot* slots) const noexcept { ::operator delete(slots, std::align_val_t{alignof(BlkSlot)}); }
  };

  [[nodiscard]] BlkSlot& take_fresh() noexcept;

  std::size_t capacity_;
  std::size_t devices_left_;
  std::size_t fresh_ = 0;  // slots from here on were never used and don't exist yet
  std::unique_ptr<BlkSlot, Free> slots_;
  std::unique_ptr<iovec[]> long_segments_;  // kLongSegments for each slot; pages that nobody needed are never touched
  std::vector<BlkSlot*> free_;
  std::uint32_t shared_left_;  // of what all devices share
  bool replenished_ = false;
  std::vector<WideSegments> wide_;
  std::vector<WideSegments*> free_wide_;
};

}  // namespace ringway
