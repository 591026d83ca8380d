#include "device/blk_slot.hpp"

#include <type_traits>

namespace ringway {

static_assert(std::is_trivially_destructible_v<BlkSlot>, "the pool frees their memory and nothing else");

BlkSlotPool::BlkSlotPool(std::size_t shared, std::size_t devices, std::size_t wide)
    : capacity_(shared + limits::kReservedSlots * devices),
      devices_left_(devices),
      slots_(static_cast<BlkSlot*>(::operator new(capacity_ * sizeof(BlkSlot), std::align_val_t{alignof(BlkSlot)}))),
      long_segments_(std::make_unique_for_overwrite<iovec[]>(capacity_ * limits::kLongSegments)),
      shared_left_(static_cast<std::uint32_t>(shared)),
      wide_(wide) {
  free_.reserve(capacity_);
  free_wide_.reserve(wide);
  for (WideSegments& segments : wide_) {
    free_wide_.push_back(&segments);
  }
}

bool BlkSlotPool::admit() noexcept {
  if (devices_left_ == 0) {
    return false;
  }
  --devices_left_;
  return true;
}

void BlkSlotPool::dismiss(const BlkSlotShare& share) noexcept {
  RW_CHECK(share.held == 0 && share.waiting.empty());
  ++devices_left_;
}

BlkSlot& BlkSlotPool::take_fresh() noexcept {
  // Reserves and shared slots add up to the capacity, so whoever has room finds a slot.
  RW_CHECK(fresh_ < capacity_);
  return *new (slots_.get() + fresh_++) BlkSlot;
}

std::span<iovec> BlkSlotPool::segments(BlkSlot& slot, std::size_t count) noexcept {
  if (RW_LIKELY(count <= slot.segments.size())) {
    return slot.segments;
  }
  if (count <= limits::kLongSegments) {
    const auto index = static_cast<std::size_t>(&slot - slots_.get());
    return {&long_segments_[index * limits::kLongSegments], limits::kLongSegments};
  }
  if (free_wide_.empty()) {
    return {};
  }
  slot.wide = free_wide_.back();
  free_wide_.pop_back();
  return {slot.wide->segments.get(), limits::kChainSegmentsMax};
}

}  // namespace ringway
