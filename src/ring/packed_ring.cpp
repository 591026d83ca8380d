#include "ring/packed_ring.hpp"

namespace ringway {

namespace {

// Whether any lap of the ring was ever used: the device sets USED in the first one (and each odd one) where the used
// elements go, and the driver leaves it set where it makes descriptors available in the next. Which descriptors that are
// depends on how long the chains were, so all are looked at.
bool is_new(const RingLayout& layout) {
  for (std::uint32_t i = 0; i < layout.size; ++i) {
    const std::byte* const descriptor = layout.descriptor_area + std::size_t{i} * kDescriptorBytes;
    const auto flags = guest::load<std::uint16_t>(descriptor + offsetof(spec::PackedDescriptor, flags));
    if ((flags & spec::kPackedDescUsed) != 0) {
      return false;
    }
  }
  return true;
}

// A base of zero says "index 0, both wrap counters 0": the start of an even lap. User Mode Linux sends it for a ring that
// was never used, whose counters are 1 (virtio 1.3 §2.8.1). DPDK's virtio-user knows only the half of the position that is
// to be made available next, so its new ring looks like one that is in flight as a whole.
std::uint32_t adopt_base(const RingLayout& layout, std::uint32_t base) {
  constexpr std::uint32_t kHalfOfInitial = kPackedBaseInitial & 0xffffU;
  return (base == 0 || base == kHalfOfInitial) && is_new(layout) ? kPackedBaseInitial : base;
}

}  // namespace

PackedRing::PackedRing(const RingLayout& layout, RingFeatures features, std::uint32_t base)
    : layout_(layout), event_index_(features.event_index), indirect_(features.indirect) {
  if (!features.packed) {
    return;  // DeviceRing holds both layouts; the other one is in use
  }
  base = adopt_base(layout, base);
  next_avail_ = PackedPosition::decode(static_cast<std::uint16_t>(base));
  next_used_ = PackedPosition::decode(static_cast<std::uint16_t>(base >> 16U));
  // A position beyond the ring is the front-end's fault and would be ours to dereference.
  if (next_avail_.index >= layout_.size) {
    next_avail_.index = 0;
  }
  if (next_used_.index >= layout_.size) {
    next_used_.index = 0;
  }
  // Descriptors between the two positions belong to chains taken in an earlier life. If the two contradict each other (used
  // ahead of avail), the avail position stands.
  const std::int32_t distance = std::int32_t{next_avail_.index} - std::int32_t{next_used_.index} +
                                (next_avail_.wrap == next_used_.wrap ? 0 : static_cast<std::int32_t>(layout_.size));
  if (distance < 0 || distance > static_cast<std::int32_t>(layout_.size)) {
    next_used_ = next_avail_;
  } else {
    outstanding_ = recoverable_ = static_cast<std::uint32_t>(distance);
  }
  if (features.in_order) {
    order_ = UsedOrder(layout.size);
  }
}

void PackedRing::keep_descriptors() {
  if (kept_ == nullptr) {
    kept_ = std::make_unique<spec::PackedDescriptor[]>(layout_.size);
    kept_count_ = 0;
  }
}

// The chains of an earlier life lie between the two positions of the base, so no position moves; and they can't have more
// descriptors than lie there, whatever the in-flight region says.
PopStatus PackedRing::restore(std::span<const spec::PackedDescriptor> descriptors, const RegionMap& map,
                              Chain& chain) noexcept {
  if (ring_fault_ != RingFault::none) {
    return PopStatus::ring_fault;
  }
  if (descriptors.empty() || descriptors.size() > recoverable_) {
    return stop(RingFault::loop);
  }
  const auto next = [descriptors](std::uint32_t taken) noexcept { return descriptors[taken]; };
  const PopStatus status = walk(next, static_cast<std::uint32_t>(descriptors.size()), map, chain);
  if (status != PopStatus::ring_fault) {
    recoverable_ -= chain.id().descriptors;
  }
  return status;
}

void PackedRing::move_to(const RingLayout& layout) noexcept {
  RW_DCHECK(layout.size == layout_.size);
  layout_ = layout;
}

WrittenRange PackedRing::take_written() noexcept {
  WrittenRange range;
  std::size_t piece = 0;
  const auto add = [&](std::uint32_t first, std::uint32_t count) {
    range.pieces[piece++] = {.first = descriptor_at(first), .bytes = std::size_t{count} * kDescriptorBytes};
  };
  if (unlogged_ >= layout_.size) {
    add(0, layout_.size);
  } else if (unlogged_ != 0) {
    // Up to the first element that isn't published yet.
    const std::uint32_t end = unpublished_ != 0 ? batch_first_.index : next_used_.index;
    if (unlogged_ <= end) {
      add(end - unlogged_, unlogged_);
    } else {
      const std::uint32_t before_wrap = unlogged_ - end;
      add(layout_.size - before_wrap, before_wrap);
      if (end != 0) {
        add(0, end);
      }
    }
  }
  if (event_unlogged_) {
    range.pieces[piece++] = {.first = layout_.device_area, .bytes = sizeof(spec::EventSuppression)};
  }
  unlogged_ = 0;
  event_unlogged_ = false;
  return range;
}

}  // namespace ringway
