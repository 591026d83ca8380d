// The device's side of a packed virtqueue (virtio 1.3 §2.8). Used through DeviceRing; the contract stands there.
//
// Theory of operation. One ring of descriptors serves both directions. The driver makes a descriptor available by setting
// its AVAIL bit to its wrap counter and USED to the inverse; we give it back by setting both to ours. `next_avail_` and
// `next_used_` are positions, each with the wrap counter of its lap (which starts at 1 and flips at the ring's end, so that
// the size need not be a power of two). `outstanding_` counts the descriptors that were popped and not yet published as
// used.
//
// A batch of used elements becomes visible as a whole: all elements but the first are written at once, the first one's word
// is held back until publish() stores it with release. The driver looks at elements strictly in ring order, so it can't get
// past the first one before it is there.
//
// What each side orders against what:
//   driver: descriptors → (release) flags of the chain's first one    device: (acquire) those flags → the chain
//   device: data, elements → (release) word of the batch's first one  driver: (acquire) its flags → elements, data
//   driver: flags of a chain → full fence → device event area         device: device event area → full fence → flags
//   device: used element → full fence → driver event area             driver: driver event area → full fence → flags
//           (the caller's, before settle_call())
// The last two lines are those of the split ring, with one 32-bit word in the place of an event index or flags.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
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

// A position in a packed ring together with the wrap counter of its lap.
struct PackedPosition {
  std::uint16_t index = 0;
  bool wrap = true;

  void advance(std::uint32_t descriptors, std::uint32_t size) noexcept {
    std::uint32_t next = index + descriptors;
    if (next >= size) {
      next -= size;
      wrap = !wrap;
    }
    index = static_cast<std::uint16_t>(next);
  }
  void go_back(std::uint32_t descriptors, std::uint32_t size) noexcept {
    if (descriptors > index) {
      index = static_cast<std::uint16_t>(index + size - descriptors);
      wrap = !wrap;
    } else {
      index = static_cast<std::uint16_t>(index - descriptors);
    }
  }
  // As in the event areas and in SET_VRING_BASE: 15 bits of index, the wrap counter above.
  [[nodiscard]] std::uint16_t encode() const noexcept { return static_cast<std::uint16_t>(index | (wrap ? 0x8000U : 0U)); }
  [[nodiscard]] static PackedPosition decode(std::uint16_t value) noexcept {
    return {.index = static_cast<std::uint16_t>(value & 0x7fffU), .wrap = (value & 0x8000U) != 0};
  }
  // The flags of a descriptor that is available, or used, in this lap.
  [[nodiscard]] std::uint16_t avail_flags() const noexcept { return wrap ? spec::kPackedDescAvail : spec::kPackedDescUsed; }
  [[nodiscard]] std::uint16_t used_flags() const noexcept {
    return wrap ? static_cast<std::uint16_t>(spec::kPackedDescAvail | spec::kPackedDescUsed) : std::uint16_t{0};
  }
};
inline constexpr std::uint16_t kPackedStateFlags = spec::kPackedDescAvail | spec::kPackedDescUsed;

// An event area is read and written as one word, so that offset and flags belong together.
[[nodiscard]] constexpr std::uint32_t event_word(std::uint16_t offset_wrap, std::uint16_t flags) noexcept {
  return offset_wrap | (std::uint32_t{flags} << 16U);
}
// Whether an event area asks for a notification now that `fresh` descriptors up to (not including) `now` were given.
[[nodiscard]] inline bool packed_event_wanted(std::uint32_t word, bool event_index, PackedPosition now, std::uint32_t fresh,
                                              std::uint32_t size) noexcept {
  const auto flags = static_cast<std::uint16_t>(word >> 16U);
  if (flags != spec::kEventFlagsDesc || !event_index) {
    return flags != spec::kEventFlagsDisable;
  }
  const PackedPosition event = PackedPosition::decode(static_cast<std::uint16_t>(word));
  // How far behind `now` the event lies; not behind at all if it is in this lap and not reached yet.
  const std::int32_t behind =
      std::int32_t{now.index} - std::int32_t{event.index} + (now.wrap == event.wrap ? 0 : static_cast<std::int32_t>(size));
  return behind > 0 && behind <= static_cast<std::int32_t>(fresh);
}

class PackedRing {
 public:
  PackedRing(const RingLayout& layout, RingFeatures features, std::uint32_t base);

  [[nodiscard]] std::size_t pop_buffers(const RegionMap& map, bool writable, std::span<ChainBuffer> out) noexcept;
  [[nodiscard]] PopStatus pop(const RegionMap& map, Chain& chain) noexcept;
  // Walks a chain from copies of its descriptors, as the in-flight region keeps them.
  [[nodiscard]] PopStatus restore(std::span<const spec::PackedDescriptor> descriptors, const RegionMap& map,
                                  Chain& chain) noexcept;
  // From now on pop() keeps copies of the ring's descriptors of the chain popped last, for the in-flight region. Allocates.
  void keep_descriptors();
  [[nodiscard]] std::span<const spec::PackedDescriptor> last_descriptors() const noexcept {
    return {kept_.get(), kept_ == nullptr ? 0 : kept_count_};
  }
  void unpop(ChainId id) noexcept;
  void push_used(ChainId id, std::uint32_t written_bytes) noexcept;
  [[nodiscard]] bool has_unpublished() const noexcept { return unpublished_ != 0; }
  [[nodiscard]] std::uint32_t unpublished() const noexcept { return unpublished_; }
  void publish() noexcept;
  [[nodiscard]] bool should_call() noexcept;
  [[nodiscard]] bool must_settle() const noexcept { return uncalled_ != 0; }
  [[nodiscard]] bool settle_call() noexcept;
  void suppress_kicks() noexcept;
  [[nodiscard]] bool arm_kicks(ChainCount beyond) noexcept;
  [[nodiscard]] bool has_work() const noexcept;
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return in_flight_; }
  [[nodiscard]] std::uint32_t base() const noexcept {
    return next_avail_.encode() | (std::uint32_t{next_used_.encode()} << 16U);
  }
  [[nodiscard]] std::uint16_t used_index() const noexcept { return next_used_.encode(); }
  [[nodiscard]] RingFault ring_fault() const noexcept { return ring_fault_; }
  [[nodiscard]] ChainFault chain_fault() const noexcept { return chain_fault_; }
  void move_to(const RingLayout& layout) noexcept;
  [[nodiscard]] const RingLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] WrittenRange take_written() noexcept;

 private:
  static constexpr std::size_t kHighWord = 8;            // length, id and flags of a descriptor
  static constexpr std::uint32_t kDescriptorsAhead = 8;  // how far ahead of the one being popped the cache is warmed

  [[nodiscard]] std::byte* descriptor_at(std::uint32_t index) const noexcept {
    return layout_.descriptor_area + std::size_t{index} * kDescriptorBytes;
  }
  // Acquire pairs with the driver's release store of (or its write barrier before) these flags, §2.8.21.1. The whole word is
  // loaded, as our own driver stores it: ThreadSanitizer pairs accesses of one address only.
  [[nodiscard]] bool available(PackedPosition at) const noexcept {
    const auto word = guest::load_acquire<std::uint64_t>(descriptor_at(at.index) + kHighWord);
    return (word >> 48U & kPackedStateFlags) == at.avail_flags();
  }
  // Takes the descriptors that `next()` gives, `room` at most. False, with the ring stopped, on a ring fault.
  template <typename Next>
  [[nodiscard]] PopStatus walk(Next next, std::uint32_t room, const RegionMap& map, Chain& chain) noexcept;
  PopStatus stop(RingFault fault) noexcept {
    ring_fault_ = fault;
    return PopStatus::ring_fault;
  }
  void emit_used(ChainId id, std::uint32_t written_bytes) noexcept;
  [[nodiscard]] bool call_wanted() const noexcept;

  RingLayout layout_;
  bool event_index_;
  bool indirect_;
  bool kicks_armed_ = true;  // what the memory of a new ring says
  PackedPosition next_avail_;
  PackedPosition next_used_;
  PackedPosition batch_first_;          // of the batch that isn't published yet
  std::uint64_t batch_first_word_ = 0;  // what will be stored there
  std::uint32_t outstanding_ = 0;       // descriptors
  std::uint32_t recoverable_ = 0;       // those of them that belong to chains of an earlier life, not restored yet
  std::uint32_t in_flight_ = 0;         // chains
  std::uint32_t unpublished_ = 0;       // descriptors that the elements since the last publish() cover
  std::uint32_t uncalled_ = 0;          // descriptors published that it isn't settled whether to call for
  std::uint32_t unlogged_ = 0;          // descriptors published since take_written()
  bool event_unlogged_ = false;
  RingFault ring_fault_ = RingFault::none;
  ChainFault chain_fault_ = ChainFault::none;
  RegionHint near_;
  UsedOrder order_;
  std::unique_ptr<spec::PackedDescriptor[]> kept_;
  std::uint32_t kept_count_ = 0;
};

template <typename Next>
inline PopStatus PackedRing::walk(Next next, std::uint32_t room, const RegionMap& map, Chain& chain) noexcept {
  ChainBuilder builder(map, chain, near_);
  ChainBuilder::Cursor at = builder.begin();
  std::uint32_t taken = 0;
  spec::PackedDescriptor descriptor;
  do {
    if (RW_UNLIKELY(taken == room)) {
      return stop(RingFault::loop);
    }
    descriptor = next(taken);
    if (RW_UNLIKELY(kept_ != nullptr)) {
      kept_[taken] = descriptor;
    }
    ++taken;
    if ((descriptor.flags & spec::kDescIndirect) != 0) {
      // A table comes alone or after direct buffers, never before others (§2.8.7). The walk must find the chain's end
      // anyway, or the next chain's place would be lost.
      if (RW_UNLIKELY(!indirect_ || (descriptor.flags & spec::kDescNext) != 0)) {
        builder.lose_tail(at, ChainFault::bad_indirect);
      } else {
        builder.add_packed_table(at, descriptor.address, descriptor.length);
      }
    } else {
      builder.add(at, descriptor.address, descriptor.length, (descriptor.flags & spec::kDescWrite) != 0);
    }
  } while ((descriptor.flags & spec::kDescNext) != 0);
  // The buffer id is that of the last descriptor (§2.8.6).
  if (RW_UNLIKELY(descriptor.id >= layout_.size)) {
    return stop(RingFault::bad_head);
  }
  chain_fault_ = builder.finish(at, ChainId{.head = descriptor.id, .descriptors = static_cast<std::uint16_t>(taken)});
  kept_count_ = taken;
  ++in_flight_;
  if (RW_UNLIKELY(order_.active())) {
    order_.popped(chain.id());
  }
  return RW_LIKELY(chain_fault_ == ChainFault::none) ? PopStatus::chain : PopStatus::chain_fault;
}

inline PopStatus PackedRing::pop(const RegionMap& map, Chain& chain) noexcept {
  if (RW_UNLIKELY(ring_fault_ != RingFault::none)) {
    return PopStatus::ring_fault;
  }
  if (!available(next_avail_)) {
    return PopStatus::empty;
  }
  // All descriptors are out, so there is none that the driver could have made available.
  if (RW_UNLIKELY(outstanding_ >= layout_.size)) {
    return stop(RingFault::avail_jump);
  }
  std::uint32_t ahead = next_avail_.index + kDescriptorsAhead;
  ahead = ahead >= layout_.size ? ahead - layout_.size : ahead;
  __builtin_prefetch(descriptor_at(ahead < layout_.size ? ahead : 0));
  // The flags were read once for the decision that the chain is available; all else is decided on these second words alone.
  const auto next = [this](std::uint32_t taken) noexcept {
    std::uint32_t index = next_avail_.index + taken;
    index = index >= layout_.size ? index - layout_.size : index;
    return read_descriptor<spec::PackedDescriptor>(descriptor_at(index));
  };
  const PopStatus status = walk(next, layout_.size - outstanding_, map, chain);
  if (RW_LIKELY(status != PopStatus::ring_fault)) {
    outstanding_ += chain.id().descriptors;
    next_avail_.advance(chain.id().descriptors, layout_.size);
  }
  return status;
}

inline std::size_t PackedRing::pop_buffers(const RegionMap& map, bool writable, std::span<ChainBuffer> out) noexcept {
  if (RW_UNLIKELY(order_.active() || kept_ != nullptr || ring_fault_ != RingFault::none)) {
    return 0;
  }
  const RegionMap::Region& region = map.near(near_);
  const std::uint16_t wanted = writable ? spec::kDescWrite : std::uint16_t{0};
  const std::size_t most = std::min<std::size_t>(out.size(), layout_.size - outstanding_);
  PackedPosition position = next_avail_;
  std::size_t count = 0;
  for (; count < most && available(position); ++count) {
    // As in pop(): decided on this second read alone.
    const auto descriptor = read_descriptor<spec::PackedDescriptor>(descriptor_at(position.index));
    std::byte* const at = region.host_of(descriptor.address, descriptor.length);
    if ((descriptor.flags & kBufferFlags) != wanted || at == nullptr || RW_UNLIKELY(descriptor.id >= layout_.size)) {
      break;
    }
    out[count] = {.at = at, .bytes = descriptor.length, .chain = {.head = descriptor.id, .descriptors = 1}};
    position.advance(1, layout_.size);
  }
  next_avail_ = position;
  in_flight_ += static_cast<std::uint32_t>(count);
  outstanding_ += static_cast<std::uint32_t>(count);
  return count;
}

inline void PackedRing::unpop(ChainId id) noexcept {
  RW_DCHECK(in_flight_ != 0 && outstanding_ >= id.descriptors);
  --in_flight_;
  outstanding_ -= id.descriptors;
  next_avail_.go_back(id.descriptors, layout_.size);
  if (RW_UNLIKELY(order_.active())) {
    order_.unpopped();
  }
}

inline void PackedRing::emit_used(ChainId id, std::uint32_t written_bytes) noexcept {
  RW_DCHECK(outstanding_ >= unpublished_ + id.descriptors);
  // WRITE says whether the length counts (§2.8.9).
  const auto flags =
      static_cast<std::uint16_t>(next_used_.used_flags() | (written_bytes != 0 ? spec::kDescWrite : std::uint16_t{0}));
  const std::uint64_t word = written_bytes | (std::uint64_t{id.head} << 32U) | (std::uint64_t{flags} << 48U);
  if (unpublished_ == 0) {
    batch_first_ = next_used_;
    batch_first_word_ = word;
  } else {
    guest::store(descriptor_at(next_used_.index) + kHighWord, word);
  }
  unpublished_ += id.descriptors;
  next_used_.advance(id.descriptors, layout_.size);
}

inline void PackedRing::push_used(ChainId id, std::uint32_t written_bytes) noexcept {
  RW_DCHECK(in_flight_ != 0);
  --in_flight_;
  if (RW_UNLIKELY(order_.active())) {
    order_.pushed(id, written_bytes, [this](ChainId turn, std::uint32_t bytes) noexcept { emit_used(turn, bytes); });
    return;
  }
  emit_used(id, written_bytes);
}

inline void PackedRing::publish() noexcept {
  if (unpublished_ == 0) {
    return;
  }
  // Pairs with the driver's acquire load of (or its read barrier after) the flags in this word, §2.8.22: the other elements
  // of the batch, and the data that was written to the buffers, are visible to it afterwards.
  guest::store_release(descriptor_at(batch_first_.index) + kHighWord, batch_first_word_);
  outstanding_ -= unpublished_;
  uncalled_ += unpublished_;
  unlogged_ += unpublished_;
  unpublished_ = 0;
}

inline bool PackedRing::call_wanted() const noexcept {
  const auto word = guest::load<std::uint32_t>(layout_.driver_area);
  const PackedPosition published = unpublished_ != 0 ? batch_first_ : next_used_;
  return packed_event_wanted(word, event_index_, published, uncalled_, layout_.size);
}

inline bool PackedRing::should_call() noexcept {
  if (uncalled_ == 0 || !call_wanted()) {
    return false;
  }
  uncalled_ = 0;
  return true;
}

inline bool PackedRing::settle_call() noexcept {
  const bool wanted = uncalled_ != 0 && call_wanted();
  uncalled_ = 0;
  return wanted;
}

inline void PackedRing::suppress_kicks() noexcept {
  if (!kicks_armed_) {
    return;
  }
  kicks_armed_ = false;
  event_unlogged_ = true;
  guest::store(layout_.device_area, event_word(0, spec::kEventFlagsDisable));
}

inline bool PackedRing::arm_kicks(ChainCount beyond) noexcept {
  kicks_armed_ = true;
  event_unlogged_ = true;
  PackedPosition awaited = next_avail_;
  awaited.advance(beyond.descriptors, layout_.size);
  guest::store(layout_.device_area,
               event_index_ ? event_word(awaited.encode(), spec::kEventFlagsDesc) : event_word(0, spec::kEventFlagsEnable));
  // Between the store above and the load of the next descriptor's flags. Partner: the driver's full fence between making a
  // descriptor available and its load of the device event area, §2.8.21.3.1.
  full_fence();
  if (RW_LIKELY(beyond.chains == 0)) {
    return has_work();
  }
  // Once all descriptors are out the awaited one is the first of those, and the driver has none to give.
  return ring_fault_ == RingFault::none && outstanding_ + beyond.descriptors < layout_.size && available(awaited);
}

inline bool PackedRing::has_work() const noexcept {
  return ring_fault_ == RingFault::none && available(next_avail_);
}

}  // namespace ringway
