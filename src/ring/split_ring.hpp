// The device's side of a split virtqueue (virtio 1.3 §2.7). Used through DeviceRing; the contract stands there.
//
// Theory of operation. `next_avail_` is the index of the next entry of the avail ring that we shall take; `avail_seen_` the
// driver's index when we last looked, so that a batch reads it once. `next_used_` runs ahead of what is published until
// publish() stores it with release. All indices are free-running 16-bit numbers; ring positions are index & (size − 1).
//
// The used index is adopted from the ring's memory at the start, since SET_VRING_BASE carries only the avail index; a driver
// that reset its ring in between has zeroed it.
//
// What each side orders against what:
//   driver: descriptors, avail entry → (release) avail idx      device: (acquire) avail idx → entry, descriptors
//   device: buffer data, used element → (release) used idx      driver: (acquire) used idx → element, data
//   driver: avail idx → full fence → read avail event or flags  device: avail event or flags → full fence → read avail idx
//   device: used idx → full fence → read used event or flags    driver: used event or flags → full fence → read used idx
//           (the caller's, before settle_call())
// ("flags" of the last two lines: what asks for no kicks stands in the used ring, what asks for no calls in the avail ring.)
// In the last two lines each side stores, fences and then loads what the other one stored. At least one of them sees the
// other's store, so a notification is sent, or the sleeper finds the work by himself, or both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.hpp"
#include "base/fence.hpp"
#include "guest/access.hpp"
#include "guest/region_map.hpp"
#include "ring/chain.hpp"
#include "ring/chain_builder.hpp"
#include "ring/ring_layout.hpp"
#include "ring/spec.hpp"
#include "ring/used_order.hpp"

namespace ringway {

class SplitRing {
 public:
  SplitRing(const RingLayout& layout, RingFeatures features, std::uint32_t base);

  [[nodiscard]] PopStatus pop(const RegionMap& map, Chain& chain) noexcept;
  [[nodiscard]] std::size_t pop_buffers(const RegionMap& map, bool writable, std::span<ChainBuffer> out) noexcept;
  [[nodiscard]] PopStatus reread(std::uint16_t head, const RegionMap& map, Chain& chain) noexcept;
  void unpop(ChainId id) noexcept;
  void push_used(ChainId id, std::uint32_t written_bytes) noexcept;
  [[nodiscard]] bool has_unpublished() const noexcept { return next_used_ != published_used_; }
  [[nodiscard]] std::uint32_t unpublished() const noexcept {
    return static_cast<std::uint16_t>(next_used_ - published_used_);
  }
  void publish() noexcept;
  [[nodiscard]] bool should_call() noexcept;
  [[nodiscard]] bool must_settle() const noexcept { return uncalled_ != 0; }
  [[nodiscard]] bool settle_call() noexcept;
  void suppress_kicks() noexcept;
  [[nodiscard]] bool arm_kicks(ChainCount beyond) noexcept;
  [[nodiscard]] bool has_work() const noexcept;
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return in_flight_; }
  [[nodiscard]] std::uint32_t base() const noexcept { return next_avail_; }
  [[nodiscard]] std::uint16_t used_index() const noexcept { return published_used_; }
  [[nodiscard]] RingFault ring_fault() const noexcept { return ring_fault_; }
  [[nodiscard]] ChainFault chain_fault() const noexcept { return chain_fault_; }
  void move_to(const RingLayout& layout) noexcept;
  [[nodiscard]] const RingLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] WrittenRange take_written() noexcept;

 private:
  // How many heads ahead of the one being popped the hints run. Each stage reads what the stage before it has fetched.
  static constexpr std::uint16_t kDescriptorsAhead = 8;
  static constexpr std::uint16_t kTablesAhead = 4;
  // A table is found by its descriptor, so that must be here by then. Depths tried with all of it flushed from the caches
  // (blk_queue_bench, depth 32): 8 and 4 serve a request in 312 (tables) and 210 (direct) ticks, none at all in 460 and 379,
  // equal ones in up to 440. With warm caches they make a difference of 3 to 4 %.
  static_assert(kDescriptorsAhead >= 2 * kTablesAhead);

  static constexpr std::size_t kFlags = 0;    // of the avail and of the used ring
  static constexpr std::size_t kIndex = 2;    // likewise
  static constexpr std::size_t kEntries = 4;  // likewise

  [[nodiscard]] std::uint32_t mask() const noexcept { return layout_.size - 1; }
  [[nodiscard]] const std::byte* avail_entry(std::uint16_t index) const noexcept {
    return layout_.driver_area + kEntries + std::size_t{index & mask()} * sizeof(std::uint16_t);
  }
  [[nodiscard]] std::byte* used_entry(std::uint16_t index) const noexcept {
    return layout_.device_area + kEntries + std::size_t{index & mask()} * sizeof(spec::UsedElementWire);
  }
  [[nodiscard]] const std::byte* used_event() const noexcept {
    return layout_.driver_area + kEntries + std::size_t{layout_.size} * sizeof(std::uint16_t);
  }
  [[nodiscard]] std::byte* avail_event() const noexcept {
    return layout_.device_area + kEntries + std::size_t{layout_.size} * sizeof(spec::UsedElementWire);
  }

  // Looks at the driver's index. chain: there is something to take.
  [[nodiscard]] PopStatus look() noexcept;
  [[nodiscard]] spec::Descriptor descriptor_at(std::uint32_t index) const noexcept {
    return read_descriptor<spec::Descriptor>(layout_.descriptor_area + std::size_t{index} * kDescriptorBytes);
  }
  [[nodiscard]] PopStatus walk(std::uint32_t head, const RegionMap& map, Chain& chain) noexcept;
  PopStatus stop(RingFault fault) noexcept;
  void emit_used(ChainId id, std::uint32_t written_bytes) noexcept;
  [[nodiscard]] bool call_wanted() const noexcept;
  void prefetch(const RegionMap& map) noexcept;
  void prefetch_descriptor(std::uint16_t index) const noexcept;
  void prefetch_table(std::uint16_t index, const RegionMap& map) noexcept;

  RingLayout layout_;
  bool event_index_;
  bool indirect_;
  bool kicks_armed_ = true;  // what the memory of a new ring says
  std::uint16_t next_avail_ = 0;
  std::uint16_t avail_seen_ = 0;
  std::uint16_t next_used_ = 0;
  std::uint16_t published_used_ = 0;
  std::uint32_t uncalled_ = 0;     // elements published that it isn't settled whether to call for
  std::uint32_t in_flight_ = 0;    // chains popped and not pushed
  std::uint32_t outstanding_ = 0;  // chains popped and not published: those, the held back, and the unpublished ones
  std::uint32_t unlogged_ = 0;     // elements published since take_written()
  bool event_unlogged_ = false;    // the avail event or the flags were written since then
  RingFault ring_fault_ = RingFault::none;
  ChainFault chain_fault_ = ChainFault::none;
  RegionHint near_;
  UsedOrder order_;
};

inline PopStatus SplitRing::stop(RingFault fault) noexcept {
  ring_fault_ = fault;
  avail_seen_ = next_avail_;  // so that each later pop() ends in look(), and is refused there
  return PopStatus::ring_fault;
}

inline PopStatus SplitRing::look() noexcept {
  if (RW_UNLIKELY(ring_fault_ != RingFault::none)) {
    return PopStatus::ring_fault;
  }
  // Pairs with the driver's release store of (or its write barrier before) avail idx, §2.7.13.3: the entries and descriptors
  // up to that index are visible to us afterwards.
  const auto seen = guest::load_acquire<std::uint16_t>(layout_.driver_area + kIndex);
  if (seen == next_avail_) {
    return PopStatus::empty;
  }
  // A driver can have as many chains outstanding as it has descriptors, and those that it can't know to be used count in.
  const auto ready = static_cast<std::uint16_t>(seen - next_avail_);
  if (RW_UNLIKELY(ready + outstanding_ > layout_.size)) {
    return stop(RingFault::avail_jump);
  }
  avail_seen_ = seen;
  for (std::uint16_t i = 1; i < kDescriptorsAhead && i < ready; ++i) {
    prefetch_descriptor(static_cast<std::uint16_t>(next_avail_ + i));
  }
  return PopStatus::chain;
}

inline PopStatus SplitRing::walk(std::uint32_t head, const RegionMap& map, Chain& chain) noexcept {
  ChainBuilder builder(map, chain, near_);
  ChainBuilder::Cursor at = builder.begin();
  std::uint32_t index = head;
  std::uint32_t taken = 1;
  for (;; ++taken) {
    const spec::Descriptor descriptor = descriptor_at(index);
    if ((descriptor.flags & spec::kDescIndirect) != 0) {
      // A table may follow direct buffers but must come last; WRITE has no meaning on it (§2.7.5.3.2).
      if (RW_UNLIKELY(!indirect_ || (descriptor.flags & spec::kDescNext) != 0)) {
        builder.lose_tail(at, ChainFault::bad_indirect);
      } else {
        builder.add_split_table(at, descriptor.address, descriptor.length);
      }
    } else {
      builder.add(at, descriptor.address, descriptor.length, (descriptor.flags & spec::kDescWrite) != 0);
    }
    if ((descriptor.flags & spec::kDescNext) == 0) {
      break;
    }
    index = descriptor.next;
    if (RW_UNLIKELY(taken == layout_.size)) {
      return stop(RingFault::loop);
    }
    if (RW_UNLIKELY(index >= layout_.size)) {
      return stop(RingFault::bad_head);
    }
  }
  chain_fault_ = builder.finish(
      at, ChainId{.head = static_cast<std::uint16_t>(head), .descriptors = static_cast<std::uint16_t>(taken)});
  ++in_flight_;
  ++outstanding_;
  if (RW_UNLIKELY(order_.active())) {
    order_.popped(chain.id());
  }
  return RW_LIKELY(chain_fault_ == ChainFault::none) ? PopStatus::chain : PopStatus::chain_fault;
}

inline PopStatus SplitRing::pop(const RegionMap& map, Chain& chain) noexcept {
  if (avail_seen_ == next_avail_) {
    const PopStatus status = look();
    if (status != PopStatus::chain) {
      return status;
    }
  }
  const std::uint32_t head = guest::load<std::uint16_t>(avail_entry(next_avail_));
  if (RW_UNLIKELY(head >= layout_.size)) {
    return stop(RingFault::bad_head);
  }
  prefetch(map);
  const PopStatus status = walk(head, map, chain);
  if (RW_LIKELY(status != PopStatus::ring_fault)) {
    ++next_avail_;
  }
  return status;
}

// No hints: nothing in a round depends on the one before, so the CPU itself has the descriptors of several on their way.
inline std::size_t SplitRing::pop_buffers(const RegionMap& map, bool writable, std::span<ChainBuffer> out) noexcept {
  if (RW_UNLIKELY(order_.active())) {
    return 0;
  }
  const auto ready = [this] { return static_cast<std::uint16_t>(avail_seen_ - next_avail_); };
  if (ready() < out.size() && look() != PopStatus::chain) {
    return 0;
  }
  const RegionMap::Region& region = map.near(near_);
  const std::uint16_t wanted = writable ? spec::kDescWrite : std::uint16_t{0};
  const std::size_t most = std::min<std::size_t>(out.size(), ready());
  std::size_t count = 0;
  for (; count < most; ++count) {
    const auto head = guest::load<std::uint16_t>(avail_entry(static_cast<std::uint16_t>(next_avail_ + count)));
    if (RW_UNLIKELY(head >= layout_.size)) {
      break;
    }
    const spec::Descriptor descriptor = descriptor_at(head);
    std::byte* const at = region.host_of(descriptor.address, descriptor.length);
    if ((descriptor.flags & kBufferFlags) != wanted || at == nullptr) {
      break;
    }
    out[count] = {.at = at, .bytes = descriptor.length, .chain = {.head = head, .descriptors = 1}};
  }
  next_avail_ = static_cast<std::uint16_t>(next_avail_ + count);
  in_flight_ += static_cast<std::uint32_t>(count);
  outstanding_ += static_cast<std::uint32_t>(count);
  return count;
}

inline void SplitRing::unpop(ChainId /*the newest*/) noexcept {
  RW_DCHECK(in_flight_ != 0);
  if (RW_UNLIKELY(ring_fault_ != RingFault::none)) {
    --avail_seen_;  // see stop()
  }
  --next_avail_;
  --in_flight_;
  --outstanding_;
  if (RW_UNLIKELY(order_.active())) {
    order_.unpopped();
  }
}

inline PopStatus SplitRing::reread(std::uint16_t head, const RegionMap& map, Chain& chain) noexcept {
  if (RW_UNLIKELY(ring_fault_ != RingFault::none)) {
    return PopStatus::ring_fault;
  }
  if (RW_UNLIKELY(outstanding_ >= layout_.size)) {
    return stop(RingFault::avail_jump);
  }
  if (RW_UNLIKELY(head >= layout_.size)) {
    return stop(RingFault::bad_head);
  }
  return walk(head, map, chain);
}

// The hints read ring memory that the driver may change meanwhile; nothing is decided on what they read, it only names cache
// lines, and a table's address is checked against the region map before it is touched.
inline void SplitRing::prefetch_descriptor(std::uint16_t index) const noexcept {
  const std::uint32_t head = guest::load<std::uint16_t>(avail_entry(index)) & mask();
  __builtin_prefetch(layout_.descriptor_area + std::size_t{head} * kDescriptorBytes);
}

inline void SplitRing::prefetch_table(std::uint16_t index, const RegionMap& map) noexcept {
  const std::uint32_t head = guest::load<std::uint16_t>(avail_entry(index)) & mask();
  const std::byte* descriptor = layout_.descriptor_area + std::size_t{head} * kDescriptorBytes;
  const auto address = guest::load<std::uint64_t>(descriptor);
  // For a direct chain this is the request's header, which will be wanted as well.
  const RegionMap::Region* near = &map.near(near_);
  const std::byte* table = map.contiguous(GuestAddress{address}, kDescriptorBytes, near, near_);
  if (table != nullptr) {
    __builtin_prefetch(table);
  }
}

inline void SplitRing::prefetch(const RegionMap& map) noexcept {
  const auto ready = static_cast<std::uint16_t>(avail_seen_ - next_avail_);
  if (ready > kDescriptorsAhead) {
    prefetch_descriptor(static_cast<std::uint16_t>(next_avail_ + kDescriptorsAhead));
  }
  if (ready > kTablesAhead) {
    prefetch_table(static_cast<std::uint16_t>(next_avail_ + kTablesAhead), map);
  }
}

inline void SplitRing::emit_used(ChainId id, std::uint32_t written_bytes) noexcept {
  std::byte* entry = used_entry(next_used_);
  guest::store<std::uint32_t>(entry, id.head);
  guest::store<std::uint32_t>(entry + offsetof(spec::UsedElementWire, length), written_bytes);
  ++next_used_;
}

inline void SplitRing::push_used(ChainId id, std::uint32_t written_bytes) noexcept {
  RW_DCHECK(in_flight_ != 0);
  --in_flight_;
  if (RW_UNLIKELY(order_.active())) {
    order_.pushed(id, written_bytes, [this](ChainId turn, std::uint32_t bytes) noexcept { emit_used(turn, bytes); });
    return;
  }
  emit_used(id, written_bytes);
}

inline void SplitRing::publish() noexcept {
  const auto count = static_cast<std::uint16_t>(next_used_ - published_used_);
  if (count == 0) {
    return;
  }
  // Pairs with the driver's acquire load of (or its read barrier after) used idx, §2.7.14: the elements, and the data that
  // was written to the buffers, are visible to it afterwards.
  guest::store_release(layout_.device_area + kIndex, next_used_);
  published_used_ = next_used_;
  outstanding_ -= count;
  uncalled_ += count;
  unlogged_ += count;
}

inline bool SplitRing::call_wanted() const noexcept {
  if (!event_index_) {
    return (guest::load<std::uint16_t>(layout_.driver_area + kFlags) & spec::kAvailNoInterrupt) == 0;
  }
  const auto event = guest::load<std::uint16_t>(used_event());
  // The driver wants to hear when the element with index `event` is used: is it among those that it wasn't called for? 16
  // bits can't tell for a whole lap of the counter; then it certainly was.
  return static_cast<std::uint16_t>(published_used_ - event - 1) < uncalled_;
}

inline bool SplitRing::should_call() noexcept {
  if (uncalled_ == 0 || !call_wanted()) {
    return false;
  }
  uncalled_ = 0;
  return true;
}

inline bool SplitRing::settle_call() noexcept {
  const bool wanted = uncalled_ != 0 && call_wanted();
  uncalled_ = 0;
  return wanted;
}

inline void SplitRing::suppress_kicks() noexcept {
  if (!kicks_armed_) {
    return;
  }
  kicks_armed_ = false;
  event_unlogged_ = true;
  if (event_index_) {
    // The index just passed is the one that the driver takes longest to reach again. (Once in 65536 chains it does, and
    // sends a kick that nobody needed.)
    guest::store(avail_event(), static_cast<std::uint16_t>(next_avail_ - 1));
  } else {
    guest::store(layout_.device_area + kFlags, spec::kUsedNoNotify);
  }
}

inline bool SplitRing::arm_kicks(ChainCount beyond) noexcept {
  kicks_armed_ = true;
  event_unlogged_ = true;
  const auto awaited = static_cast<std::uint16_t>(next_avail_ + beyond.chains);
  if (event_index_) {
    guest::store(avail_event(), awaited);
  } else {
    guest::store(layout_.device_area + kFlags, std::uint16_t{0});
  }
  // Between the store above and the load of avail idx. Partner: the driver's full fence between its store of avail idx and
  // its load of avail event (or used flags), §2.7.13.4.1.
  full_fence();
  if (RW_LIKELY(beyond.chains == 0)) {
    return has_work();
  }
  const auto ready =
      static_cast<std::uint16_t>(guest::load_acquire<std::uint16_t>(layout_.driver_area + kIndex) - next_avail_);
  return ring_fault_ == RingFault::none && ready > beyond.chains;
}

inline bool SplitRing::has_work() const noexcept {
  // Acquire isn't needed for the answer; it makes what an answer of true promises hold for whoever looks at entries next.
  return avail_seen_ != next_avail_ ||
         (ring_fault_ == RingFault::none && guest::load_acquire<std::uint16_t>(layout_.driver_area + kIndex) != next_avail_);
}

}  // namespace ringway
