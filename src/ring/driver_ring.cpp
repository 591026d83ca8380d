#include "ring/driver_ring.hpp"

#include <algorithm>
#include <cstring>

namespace ringway {

DriverRing::DriverRing(const Options& options)
    : layout_(options.layout),
      packed_(options.features.packed),
      event_index_(options.features.event_index),
      in_order_(options.features.in_order),
      indirect_tables_(options.indirect_tables),
      indirect_address_(options.indirect_address),
      indirect_entries_(options.features.indirect && options.indirect_tables != nullptr ? options.indirect_entries : 0),
      free_(options.layout.size),
      slots_(std::make_unique<Slot[]>(options.layout.size)),
      next_(std::make_unique<std::uint16_t[]>(options.layout.size)),
      free_tail_(options.layout.size - 1) {
  RW_CHECK(layout_.size != 0);
  for (std::uint32_t i = 0; i + 1 < layout_.size; ++i) {
    next_[i] = static_cast<std::uint16_t>(i + 1);
  }
  if (in_order_) {
    order_ = std::make_unique<std::uint16_t[]>(layout_.size);
  }
  if (options.restart) {
    if (packed_) {
      avail_ = PackedPosition::decode(static_cast<std::uint16_t>(options.restart_base));
      used_ = PackedPosition::decode(static_cast<std::uint16_t>(options.restart_base >> 16U));
      RW_CHECK(avail_.index < layout_.size && used_.index < layout_.size);
    } else {
      next_avail_ = guest::load<std::uint16_t>(layout_.driver_area + kIndex);
      next_used_ = used_seen_ = guest::load<std::uint16_t>(layout_.device_area + kIndex);
      if (in_order_) {
        free_head_ = next_avail_ & (layout_.size - 1);
        // A circle of the same links, begun elsewhere.
        next_[layout_.size - 1] = 0;
        free_tail_ = (free_head_ + layout_.size - 1) & (layout_.size - 1);
      }
    }
    return;
  }
  const AreaBytes bytes = area_bytes(layout_.size, packed_);
  std::memset(layout_.descriptor_area, 0, bytes.descriptor);
  std::memset(layout_.driver_area, 0, bytes.driver);
  std::memset(layout_.device_area, 0, bytes.device);
}

// The device may write one element for a batch: the id of the batch's last chain. All chains before it, oldest first, were
// used then, and completely (§2.7.9, §2.8.10). It comes at the place of the batch's first element; the places of the others
// are skipped.
bool DriverRing::take_in_order(UsedElement& out) noexcept {
  if (broken_) {
    return false;
  }
  if (!in_order_) {
    return false;
  }
  if (!batch_open_) {
    if (!next_element(batch_id_, batch_bytes_)) {
      return false;
    }
    batch_open_ = true;
  }
  if (in_flight_ == 0) {  // the batch's last chain was not among those in flight
    broken_ = true;
    return false;
  }
  const std::uint32_t id = order_[order_first_];
  order_first_ = order_first_ + 1 == layout_.size ? 0 : order_first_ + 1;
  const Slot& slot = slots_[id];
  out.token = slot.token;
  if (id == batch_id_) {
    batch_open_ = false;
    out.written_bytes = batch_bytes_;
  } else {
    out.written_bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(slot.writable_bytes, UINT32_MAX));
  }
  step_over(slot.descriptors);
  release(id);
  return true;
}

}  // namespace ringway
