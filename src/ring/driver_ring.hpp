// The driver's side of a virtqueue, split or packed: what a guest does, for the driver library and the tests.
//
// Owner: one thread. The ring's memory and all buffers lie in memory that is shared with the device; addresses given here
// are guest addresses, since that is what descriptors hold. The layout is chosen once; hot functions are inline, and free of
// allocation.
//
// The device is not trusted either: what can be kept privately (links, lengths, tokens) is, and a used element that names no
// chain in flight breaks the ring (`broken()`), after which it gives nothing more.
//
// Memory order: the mirror image of what split_ring.hpp and packed_ring.hpp say, whose fences name their partners here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/check.hpp"
#include "base/fence.hpp"
#include "guest/access.hpp"
#include "guest/address.hpp"
#include "ring/chain_builder.hpp"
#include "ring/packed_ring.hpp"
#include "ring/ring_layout.hpp"
#include "ring/spec.hpp"

namespace ringway {

struct DriverBuffer {
  GuestAddress address;
  std::uint32_t bytes = 0;
  bool device_writable = false;
};

struct UsedElement {
  std::uint64_t token = 0;  // what add() was given
  std::uint32_t written_bytes = 0;
};

class DriverRing {
 public:
  using AreaBytes = RingAreaBytes;
  [[nodiscard]] static AreaBytes area_bytes(std::uint32_t size, bool packed) { return ring_area_bytes(size, packed); }

  // Initialises the ring's memory. `indirect_tables`, if not null, is shared memory at `indirect_address` for one table of
  // `indirect_entries` descriptors per ring entry; chains of 2 … indirect_entries buffers then use it.
  struct Options {
    RingLayout layout{};
    RingFeatures features{};
    std::byte* indirect_tables = nullptr;
    GuestAddress indirect_address{};
    std::uint32_t indirect_entries = 0;
    // Go on with a ring that has nothing in flight instead of initialising it: split, from the indices that stand in memory;
    // packed, from `restart_base` (as GET_VRING_BASE gives it), since a packed ring's memory doesn't tell.
    bool restart = false;
    std::uint32_t restart_base = kPackedBaseInitial;
  };
  explicit DriverRing(const Options& options);
  DriverRing(const DriverRing&) = delete;
  DriverRing& operator=(const DriverRing&) = delete;
  ~DriverRing() = default;

  // Queues a chain (device-readable buffers first). False when the ring has no room. Not visible before publish() (packed:
  // before publish(), or after an earlier publish() that had nothing to show; never half of a chain).
  // REQUIRES: buffers not empty.
  [[nodiscard]] bool add(std::span<const DriverBuffer> buffers, std::uint64_t token) noexcept;
  // Makes added chains available to the device; true if it asked for a kick (full fence inside).
  [[nodiscard]] bool publish() noexcept;

  // Takes one used element; false if none. With IN_ORDER, elements that the device skipped in a batch are given one by one,
  // each with all its writable bytes.
  [[nodiscard]] bool take_used(UsedElement& out) noexcept;
  [[nodiscard]] bool has_used() const noexcept;

  void suppress_calls() noexcept;
  // Asks for a call at the next used element (`after` more elements with event index: the driver of Linux asks for 3/4 of
  // what is in flight in some modes; in a packed ring that is an estimate if chains differ in their descriptors), then looks
  // again: true if one is there already.
  [[nodiscard]] bool arm_calls(std::uint32_t after = 1) noexcept;
  // The same by place, for those who know what they are going to submit: asks for a call when the place `places` beyond the
  // next one is used. A place is an element of a split ring, a descriptor of a packed one. Without event index: the next.
  [[nodiscard]] bool arm_calls_at(std::uint32_t places) noexcept;

  [[nodiscard]] std::uint32_t free_descriptors() const noexcept { return free_; }
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return in_flight_; }
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  [[nodiscard]] const RingLayout& layout() const noexcept { return layout_; }

 private:
  // By head (split) or buffer id (packed).
  struct Slot {
    std::uint64_t token = 0;
    std::uint64_t writable_bytes = 0;  // counted only with IN_ORDER
    std::uint16_t descriptors = 0;     // 0: not in flight
    std::uint16_t last = 0;            // split: the chain's last descriptor
  };

  static constexpr std::size_t kFlags = 0;
  static constexpr std::size_t kIndex = 2;
  static constexpr std::size_t kEntries = 4;
  static constexpr std::size_t kHighWord = 8;

  [[nodiscard]] std::byte* descriptor_at(std::uint32_t index) const noexcept {
    return layout_.descriptor_area + std::size_t{index} * kDescriptorBytes;
  }
  [[nodiscard]] std::byte* avail_entry(std::uint32_t index) const noexcept {
    return layout_.driver_area + kEntries + std::size_t{index & (layout_.size - 1)} * sizeof(std::uint16_t);
  }
  [[nodiscard]] std::byte* used_entry(std::uint32_t index) const noexcept {
    return layout_.device_area + kEntries + std::size_t{index & (layout_.size - 1)} * sizeof(spec::UsedElementWire);
  }
  [[nodiscard]] std::byte* used_event() const noexcept {
    return layout_.driver_area + kEntries + std::size_t{layout_.size} * sizeof(std::uint16_t);
  }
  [[nodiscard]] const std::byte* avail_event() const noexcept {
    return layout_.device_area + kEntries + std::size_t{layout_.size} * sizeof(spec::UsedElementWire);
  }

  void fill_table(std::uint32_t table, std::span<const DriverBuffer> buffers) noexcept;
  void occupy(std::uint32_t id, std::span<const DriverBuffer> buffers, std::uint64_t token,
              std::uint32_t descriptors) noexcept;
  void release(std::uint32_t id) noexcept;
  void add_split(std::span<const DriverBuffer> buffers, std::uint64_t token, bool in_table) noexcept;
  void add_packed(std::span<const DriverBuffer> buffers, std::uint64_t token, bool in_table) noexcept;
  void put_packed(std::uint32_t position_in_batch, std::uint64_t address, std::uint32_t bytes, std::uint16_t id,
                  std::uint16_t flags) noexcept;
  // The next element that the device wrote: its chain and length.
  [[nodiscard]] bool next_element(std::uint32_t& id, std::uint32_t& written_bytes) noexcept;
  void step_over(std::uint32_t descriptors) noexcept;
  [[nodiscard]] bool take_in_order(UsedElement& out) noexcept;

  RingLayout layout_;
  bool packed_;
  bool event_index_;
  bool in_order_;
  bool broken_ = false;
  bool calls_armed_ = true;
  std::byte* indirect_tables_;
  GuestAddress indirect_address_;
  std::uint32_t indirect_entries_;
  std::uint32_t free_;           // descriptors
  std::uint32_t in_flight_ = 0;  // chains
  std::uint32_t in_flight_descriptors_ = 0;
  std::uint32_t added_ = 0;  // since publish(): chains (split) or descriptors (packed)
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<std::uint16_t[]> next_;  // split: links of the free list and of chains; packed: links of free ids
  std::uint32_t free_head_ = 0;
  std::uint32_t free_tail_ = 0;

  // split
  std::uint16_t next_avail_ = 0;
  std::uint16_t next_used_ = 0;
  std::uint16_t used_seen_ = 0;
  // packed
  PackedPosition avail_;
  PackedPosition used_;
  PackedPosition batch_first_;
  std::uint64_t batch_first_word_ = 0;
  // IN_ORDER: the chains in flight, oldest first; the element that the device wrote last, if it stands for a batch.
  std::unique_ptr<std::uint16_t[]> order_;
  std::uint32_t order_first_ = 0;
  bool batch_open_ = false;
  std::uint32_t batch_id_ = 0;
  std::uint32_t batch_bytes_ = 0;
};

inline void DriverRing::fill_table(std::uint32_t table, std::span<const DriverBuffer> buffers) noexcept {
  std::byte* at = indirect_tables_ + std::size_t{table} * indirect_entries_ * kDescriptorBytes;
  const std::size_t count = buffers.size();
  for (std::size_t i = 0; i < count; ++i, at += kDescriptorBytes) {
    const DriverBuffer& buffer = buffers[i];
    const std::uint16_t write = buffer.device_writable ? spec::kDescWrite : std::uint16_t{0};
    if (packed_) {
      write_descriptor(
          at, spec::PackedDescriptor{.address = buffer.address.value, .length = buffer.bytes, .id = 0, .flags = write});
    } else {
      const bool more = i + 1 != count;
      write_descriptor(at, spec::Descriptor{.address = buffer.address.value,
                                            .length = buffer.bytes,
                                            .flags = static_cast<std::uint16_t>(write | (more ? spec::kDescNext : 0U)),
                                            .next = static_cast<std::uint16_t>(more ? i + 1 : 0)});
    }
  }
}

inline void DriverRing::occupy(std::uint32_t id, std::span<const DriverBuffer> buffers, std::uint64_t token,
                               std::uint32_t descriptors) noexcept {
  Slot& slot = slots_[id];
  slot.token = token;
  slot.descriptors = static_cast<std::uint16_t>(descriptors);
  if (RW_UNLIKELY(in_order_)) {
    slot.writable_bytes = 0;
    for (const DriverBuffer& buffer : buffers) {
      slot.writable_bytes += buffer.device_writable ? buffer.bytes : 0;
    }
    std::uint32_t end = order_first_ + in_flight_;
    end = end >= layout_.size ? end - layout_.size : end;
    order_[end] = static_cast<std::uint16_t>(id);
  }
  free_ -= descriptors;
  in_flight_descriptors_ += descriptors;
  ++in_flight_;
}

inline void DriverRing::release(std::uint32_t id) noexcept {
  Slot& slot = slots_[id];
  const std::uint32_t last = packed_ ? id : slot.last;
  const bool was_empty = packed_ ? in_flight_ == layout_.size : free_ == 0;
  if (was_empty) {
    free_head_ = id;
    free_tail_ = last;
  } else if (in_order_) {
    // With IN_ORDER descriptors must be used in ring order (§2.7.9), so the free ones are taken first in, first out.
    next_[free_tail_] = static_cast<std::uint16_t>(id);
    free_tail_ = last;
  } else {
    // Last in, first out: that descriptor's cache line is warm on both sides.
    next_[last] = static_cast<std::uint16_t>(free_head_);
    free_head_ = id;
  }
  free_ += slot.descriptors;
  in_flight_descriptors_ -= slot.descriptors;
  --in_flight_;
  slot.descriptors = 0;
}

inline void DriverRing::add_split(std::span<const DriverBuffer> buffers, std::uint64_t token, bool in_table) noexcept {
  const std::uint32_t head = free_head_;
  if (in_table) {
    fill_table(head, buffers);
    write_descriptor(
        descriptor_at(head),
        spec::Descriptor{.address = indirect_address_.value + std::uint64_t{head} * indirect_entries_ * kDescriptorBytes,
                         .length = static_cast<std::uint32_t>(buffers.size()) * kDescriptorBytes,
                         .flags = spec::kDescIndirect,
                         .next = 0});
    slots_[head].last = static_cast<std::uint16_t>(head);
    free_head_ = next_[head];
    occupy(head, buffers, token, 1);
  } else {
    std::uint32_t index = head;
    std::uint32_t last = head;
    const std::size_t count = buffers.size();
    for (std::size_t i = 0; i < count; ++i) {
      const DriverBuffer& buffer = buffers[i];
      const bool more = i + 1 != count;
      const std::uint32_t following = next_[index];
      write_descriptor(
          descriptor_at(index),
          spec::Descriptor{.address = buffer.address.value,
                           .length = buffer.bytes,
                           .flags = static_cast<std::uint16_t>((buffer.device_writable ? spec::kDescWrite : 0U) |
                                                               (more ? spec::kDescNext : 0U)),
                           .next = static_cast<std::uint16_t>(more ? following : 0)});
      last = index;
      index = following;
    }
    slots_[head].last = static_cast<std::uint16_t>(last);
    free_head_ = index;
    occupy(head, buffers, token, static_cast<std::uint32_t>(count));
  }
  guest::store(avail_entry(next_avail_), static_cast<std::uint16_t>(head));
  ++next_avail_;
  ++added_;
}

inline void DriverRing::put_packed(std::uint32_t position_in_batch, std::uint64_t address, std::uint32_t bytes,
                                   std::uint16_t id, std::uint16_t flags) noexcept {
  std::byte* at = descriptor_at(avail_.index);
  guest::store(at, address);
  const std::uint64_t word =
      bytes | (std::uint64_t{id} << 32U) | (std::uint64_t{flags | std::uint32_t{avail_.avail_flags()}} << 48U);
  if (position_in_batch == 0) {
    batch_first_ = avail_;  // written last, by publish(): the device doesn't get past it
    batch_first_word_ = word;
  } else {
    guest::store(at + kHighWord, word);
  }
  avail_.advance(1, layout_.size);
}

inline void DriverRing::add_packed(std::span<const DriverBuffer> buffers, std::uint64_t token, bool in_table) noexcept {
  const std::uint32_t id = free_head_;
  free_head_ = next_[id];
  if (in_table) {
    fill_table(id, buffers);
    put_packed(added_, indirect_address_.value + std::uint64_t{id} * indirect_entries_ * kDescriptorBytes,
               static_cast<std::uint32_t>(buffers.size()) * kDescriptorBytes, static_cast<std::uint16_t>(id),
               spec::kDescIndirect);
    ++added_;
    occupy(id, buffers, token, 1);
    return;
  }
  const std::size_t count = buffers.size();
  for (std::size_t i = 0; i < count; ++i) {
    const DriverBuffer& buffer = buffers[i];
    put_packed(added_, buffer.address.value, buffer.bytes, static_cast<std::uint16_t>(id),
               static_cast<std::uint16_t>((buffer.device_writable ? spec::kDescWrite : 0U) |
                                          (i + 1 != count ? spec::kDescNext : 0U)));
    ++added_;
  }
  occupy(id, buffers, token, static_cast<std::uint32_t>(count));
}

inline bool DriverRing::add(std::span<const DriverBuffer> buffers, std::uint64_t token) noexcept {
  RW_DCHECK(!buffers.empty());
  const bool in_table = buffers.size() >= 2 && buffers.size() <= indirect_entries_;
  if (RW_UNLIKELY(free_ < (in_table ? 1 : buffers.size()) || broken_)) {
    return false;
  }
  packed_ ? add_packed(buffers, token, in_table) : add_split(buffers, token, in_table);
  return true;
}

inline bool DriverRing::publish() noexcept {
  if (added_ == 0) {
    return false;
  }
  const std::uint32_t fresh = added_;
  added_ = 0;
  if (packed_) {
    // Pairs with the device's acquire load of these flags: the chain's other descriptors and the rest of the batch before
    // it.
    guest::store_release(descriptor_at(batch_first_.index) + kHighWord, batch_first_word_);
    // Between that store and the load below. Partner: the device's full fence in PackedRing::arm_kicks.
    full_fence();
    return packed_event_wanted(guest::load<std::uint32_t>(layout_.device_area), event_index_, avail_, fresh, layout_.size);
  }
  // Pairs with the device's acquire load of avail idx: entries and descriptors before it.
  guest::store_release(layout_.driver_area + kIndex, next_avail_);
  // Between that store and the load below. Partner: the device's full fence in SplitRing::arm_kicks.
  full_fence();
  if (!event_index_) {
    return (guest::load<std::uint16_t>(layout_.device_area + kFlags) & spec::kUsedNoNotify) == 0;
  }
  const auto event = guest::load<std::uint16_t>(avail_event());
  return static_cast<std::uint16_t>(next_avail_ - event - 1) < fresh;
}

inline bool DriverRing::has_used() const noexcept {
  if (RW_UNLIKELY(broken_)) {
    return false;
  }
  if (RW_UNLIKELY(batch_open_)) {
    return true;
  }
  if (packed_) {
    // Pairs with the device's release store of the batch's first word: elements and data before it.
    const auto word = guest::load_acquire<std::uint64_t>(descriptor_at(used_.index) + kHighWord);
    // Something must be in flight: descriptors that were never available can look used in the first lap.
    return (word >> 48U & kPackedStateFlags) == used_.used_flags() && in_flight_ != 0;
  }
  // Pairs with the device's release store of used idx: elements and data before it.
  return used_seen_ != next_used_ || guest::load_acquire<std::uint16_t>(layout_.device_area + kIndex) != next_used_;
}

inline bool DriverRing::next_element(std::uint32_t& id, std::uint32_t& written_bytes) noexcept {
  if (packed_) {
    if (!has_used()) {
      return false;
    }
    const auto word = guest::load<std::uint64_t>(descriptor_at(used_.index) + kHighWord);
    written_bytes = static_cast<std::uint32_t>(word);
    id = static_cast<std::uint16_t>(word >> 32U);
  } else {
    if (used_seen_ == next_used_) {
      // Pairs with the device's release store of used idx, as in has_used().
      used_seen_ = guest::load_acquire<std::uint16_t>(layout_.device_area + kIndex);
      if (used_seen_ == next_used_) {
        return false;
      }
    }
    const std::byte* entry = used_entry(next_used_);
    id = guest::load<std::uint32_t>(entry);
    written_bytes = guest::load<std::uint32_t>(entry + offsetof(spec::UsedElementWire, length));
  }
  if (RW_UNLIKELY(id >= layout_.size || slots_[id].descriptors == 0)) {
    broken_ = true;
    return false;
  }
  return true;
}

inline void DriverRing::step_over(std::uint32_t descriptors) noexcept {
  if (packed_) {
    used_.advance(descriptors, layout_.size);
  } else {
    ++next_used_;
  }
}

inline bool DriverRing::take_used(UsedElement& out) noexcept {
  if (RW_UNLIKELY(in_order_ || broken_)) {
    return take_in_order(out);
  }
  std::uint32_t id = 0;
  if (!next_element(id, out.written_bytes)) {
    return false;
  }
  out.token = slots_[id].token;
  step_over(slots_[id].descriptors);
  release(id);
  return true;
}

inline void DriverRing::suppress_calls() noexcept {
  if (!calls_armed_) {
    return;
  }
  calls_armed_ = false;
  if (packed_) {
    guest::store(layout_.driver_area, event_word(0, spec::kEventFlagsDisable));
  } else if (event_index_) {
    // The element just taken is the one that the device takes longest to reach again.
    guest::store(used_event(), static_cast<std::uint16_t>(next_used_ - 1));
  } else {
    guest::store(layout_.driver_area + kFlags, spec::kAvailNoInterrupt);
  }
}

inline bool DriverRing::arm_calls(std::uint32_t after) noexcept {
  RW_DCHECK(after >= 1);
  std::uint32_t places = after - 1;
  if (packed_ && places != 0) {
    const std::uint64_t descriptors = in_flight_ == 0 ? 0 : std::uint64_t{places} * in_flight_descriptors_ / in_flight_;
    const std::uint64_t at_most = in_flight_ == 0 ? 0 : in_flight_descriptors_ - 1;  // in this lap, and sure to be reached
    places = static_cast<std::uint32_t>(descriptors < at_most ? descriptors : at_most);
  }
  return arm_calls_at(places);
}

inline bool DriverRing::arm_calls_at(std::uint32_t places) noexcept {
  RW_DCHECK(places < layout_.size);
  calls_armed_ = true;
  if (packed_) {
    if (event_index_) {
      PackedPosition event = used_;
      event.advance(places, layout_.size);
      guest::store(layout_.driver_area, event_word(event.encode(), spec::kEventFlagsDesc));
    } else {
      guest::store(layout_.driver_area, event_word(0, spec::kEventFlagsEnable));
    }
  } else if (event_index_) {
    guest::store(used_event(), static_cast<std::uint16_t>(next_used_ + places));
  } else {
    guest::store(layout_.driver_area + kFlags, std::uint16_t{0});
  }
  // Between the store above and the load in has_used(). Partner: the device's full fence before settle_call() of SplitRing
  // and PackedRing.
  full_fence();
  return has_used();
}

}  // namespace ringway
