#include "device/blk_slot.hpp"

namespace ringway {

BlkSlotPool::BlkSlotPool(std::size_t slots, std::size_t wide)
    : slots_(std::make_unique<BlkSlot[]>(slots)),
      long_segments_(std::make_unique_for_overwrite<iovec[]>(slots * limits::kLongSegments)),
      wide_(wide) {
  free_.reserve(slots);
  for (std::size_t i = slots; i > 0; --i) {
    free_.push_back(&slots_[i - 1]);
  }
  free_wide_.reserve(wide);
  for (WideSegments& segments : wide_) {
    free_wide_.push_back(&segments);
  }
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
