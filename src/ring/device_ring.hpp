// The device's side of a virtqueue, split (virtio 1.3 §2.7) or packed (§2.8), behind one set of names.
//
// Owner: one worker. Lifetime: from the ring's start to its stop. The layout is chosen once at the start; each call then
// takes a branch that is always predicted, and the bodies inline (split_ring.hpp, packed_ring.hpp).
//
// A turn of a queue:
//     while (pop(map, chain) == PopStatus::chain) { … push_used(id, bytes); }
//     publish();
//     if (should_call()) → signal the call eventfd
// and before sleeping: if (arm_kicks()) → work came meanwhile, go on; afterwards suppress_kicks() again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "guest/region_map.hpp"
#include "ring/chain.hpp"
#include "ring/packed_ring.hpp"
#include "ring/split_ring.hpp"

namespace ringway {

class DeviceRing {
 public:
  // `layout` was validated by RingLayout::resolve. `base` is the value of SET_VRING_BASE, in the form that the
  // vhost-user specification gives for the layout; kSplitBaseInitial or kPackedBaseInitial if none was sent. Allocates if
  // IN_ORDER was negotiated.
  DeviceRing(const RingLayout& layout, RingFeatures features, std::uint32_t base)
      : packed_layout_(features.packed), split_(layout, features, base), packed_(layout, features, base) {}

  // Takes the next chain. On chain_fault the chain's id is valid (and whatever was translated before the fault stays in
  // `chain`, so that a status byte may still be found); on ring_fault the ring must be stopped.
  [[nodiscard]] PopStatus pop(const RegionMap& map, Chain& chain) noexcept {
    return packed_layout_ ? packed_.pop(map, chain) : split_.pop(map, chain);
  }
  // Takes chains as pop() would, several at a time, as long as they are the simplest there are: one buffer, all of it
  // readable or (`writable`) writable, in the region of memory where the last one was. Returns how many; those behind them,
  // or that there are none, is for pop() to find out. With IN_ORDER and in-flight regions there are never any.
  [[nodiscard]] std::size_t pop_buffers(const RegionMap& map, bool writable, std::span<ChainBuffer> out) noexcept {
    return packed_layout_ ? packed_.pop_buffers(map, writable, out) : split_.pop_buffers(map, writable, out);
  }
  // Takes a pop() back, of the chain popped last among those not yet taken back; that may be done with several, newest
  // first. The next pop() gives it again. Not for chains that an in-flight region knows of.
  void unpop(ChainId id) noexcept { packed_layout_ ? packed_.unpop(id) : split_.unpop(id); }
  // Take up a chain that was popped in an earlier life of the device and is named by the in-flight region. Call before the
  // first pop(), in the order in which the chains were popped. Split: the descriptors still stand in the ring. Packed: used
  // elements may have overwritten them, so copies are needed.
  [[nodiscard]] PopStatus reread_split(std::uint16_t head, const RegionMap& map, Chain& chain) noexcept {
    return split_.reread(head, map, chain);
  }
  [[nodiscard]] PopStatus restore_packed(std::span<const spec::PackedDescriptor> descriptors, const RegionMap& map,
                                         Chain& chain) noexcept {
    return packed_.restore(descriptors, map, chain);
  }
  // Packed only: makes pop() keep copies of the ring descriptors of the chain popped last. Allocates.
  void keep_descriptors() { packed_.keep_descriptors(); }
  [[nodiscard]] std::span<const spec::PackedDescriptor> last_descriptors() const noexcept {
    return packed_.last_descriptors();
  }

  // Writes a used element, which the driver sees after publish(). With IN_ORDER an element is held back here until those of
  // all chains popped before it were pushed, so a publish() may then have nothing to publish.
  void push_used(ChainId id, std::uint32_t written_bytes) noexcept {
    packed_layout_ ? packed_.push_used(id, written_bytes) : split_.push_used(id, written_bytes);
  }
  // True if there are elements that a publish() would show to the driver.
  [[nodiscard]] bool has_unpublished() const noexcept {
    return packed_layout_ ? packed_.has_unpublished() : split_.has_unpublished();
  }
  // How many: elements (split), or the descriptors that they cover (packed).
  [[nodiscard]] std::uint32_t unpublished() const noexcept {
    return packed_layout_ ? packed_.unpublished() : split_.unpublished();
  }
  void publish() noexcept { packed_layout_ ? packed_.publish() : split_.publish(); }
  // After publish(): whether the driver asked to be told. True is an answer. False may be old news: a driver that goes to
  // sleep at this moment may not see what was published, nor we that it asks. So for as long as must_settle(), a full fence
  // has to follow, and then settle_call(). That is two steps because the fence waits until the driver's CPU has given up the
  // line that was published, some hundred cycles; later it finds the work done, and one will do for all rings.
  [[nodiscard]] bool should_call() noexcept { return packed_layout_ ? packed_.should_call() : split_.should_call(); }
  [[nodiscard]] bool must_settle() const noexcept { return packed_layout_ ? packed_.must_settle() : split_.must_settle(); }
  // REQUIRES: a full_fence() since the last publish(). The answer is the last word on all that was published. Partner of
  // that fence: the driver's, between its store of what it asks for and its second look at the ring (§2.7.10, §2.8.22).
  [[nodiscard]] bool settle_call() noexcept { return packed_layout_ ? packed_.settle_call() : split_.settle_call(); }

  void suppress_kicks() noexcept { packed_layout_ ? packed_.suppress_kicks() : split_.suppress_kicks(); }
  // Asks the driver for kicks, then (full fence) looks again: true if there is a chain to pop already. With `beyond`: for
  // who has found that many chains available, and needs more than those.
  [[nodiscard]] bool arm_kicks(ChainCount beyond = {}) noexcept {
    return packed_layout_ ? packed_.arm_kicks(beyond) : split_.arm_kicks(beyond);
  }
  [[nodiscard]] bool has_work() const noexcept { return packed_layout_ ? packed_.has_work() : split_.has_work(); }

  // Chains popped and not yet pushed as used.
  [[nodiscard]] std::uint32_t in_flight() const noexcept {
    return packed_layout_ ? packed_.in_flight() : split_.in_flight();
  }
  // The value for GET_VRING_BASE.
  [[nodiscard]] std::uint32_t base() const noexcept { return packed_layout_ ? packed_.base() : split_.base(); }
  // As the in-flight region keeps it. Split: the published used index. Packed: where the next used element goes, unpublished
  // ones counted in, with the wrap counter in bit 15; so before a publish() it tells where that one will end.
  [[nodiscard]] std::uint16_t used_index() const noexcept {
    return packed_layout_ ? packed_.used_index() : split_.used_index();
  }
  // Valid after pop() answered ring_fault / chain_fault.
  [[nodiscard]] RingFault ring_fault() const noexcept { return packed_layout_ ? packed_.ring_fault() : split_.ring_fault(); }
  [[nodiscard]] ChainFault chain_fault() const noexcept {
    return packed_layout_ ? packed_.chain_fault() : split_.chain_fault();
  }

  // The same ring after a memory table was replaced: the parts' host addresses may have moved.
  void move_to(const RingLayout& layout) noexcept { packed_layout_ ? packed_.move_to(layout) : split_.move_to(layout); }
  [[nodiscard]] bool packed() const noexcept { return packed_layout_; }
  [[nodiscard]] const RingLayout& layout() const noexcept { return packed_layout_ ? packed_.layout() : split_.layout(); }
  // Bytes of the used ring (split) or descriptor ring and device event area (packed) that were changed since the last
  // take_written(), for the dirty log. Elements count from their publish() on, so call it after that.
  [[nodiscard]] WrittenRange take_written() noexcept {
    return packed_layout_ ? packed_.take_written() : split_.take_written();
  }

 private:
  bool packed_layout_;
  SplitRing split_;
  PackedRing packed_;
};

}  // namespace ringway
