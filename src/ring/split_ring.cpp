#include "ring/split_ring.hpp"

#include <algorithm>

namespace ringway {

SplitRing::SplitRing(const RingLayout& layout, RingFeatures features, std::uint32_t base)
    : layout_(layout), event_index_(features.event_index), indirect_(features.indirect) {
  if (features.packed) {
    return;  // DeviceRing holds both layouts; the other one is in use
  }
  next_avail_ = avail_seen_ = static_cast<std::uint16_t>(base);
  next_used_ = published_used_ = guest::load<std::uint16_t>(layout_.device_area + kIndex);
  if (features.in_order) {
    order_ = UsedOrder(layout.size);
  }
}

void SplitRing::move_to(const RingLayout& layout) noexcept {
  RW_DCHECK(layout.size == layout_.size);
  layout_ = layout;
}

WrittenRange SplitRing::take_written() noexcept {
  WrittenRange range;
  std::size_t piece = 0;
  const auto add = [&](const std::byte* first, const std::byte* end) {
    range.pieces[piece++] = {.first = first, .bytes = static_cast<std::size_t>(end - first)};
  };
  const std::byte* const start = layout_.device_area;
  const std::byte* const entries = start + kEntries;
  const std::byte* const event = avail_event();
  const std::byte* const end = event + sizeof(std::uint16_t);
  if (unlogged_ >= layout_.size) {
    add(start, end);
  } else if (unlogged_ != 0) {
    const std::byte* const from = used_entry(static_cast<std::uint16_t>(published_used_ - unlogged_));
    const std::byte* const to = used_entry(published_used_);
    if (from < to) {
      add(start, entries);
      add(from, to);
      if (event_unlogged_) {
        add(event, end);
      }
    } else {  // past the end of the ring: its start adjoins the index, its end the event word
      add(start, to);
      add(from, end);
    }
  } else if (event_unlogged_) {
    add(start, entries);  // the flags, where they are used instead of the event
    add(event, end);
  }
  unlogged_ = 0;
  event_unlogged_ = false;
  return range;
}

}  // namespace ringway
