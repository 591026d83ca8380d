// Turns descriptors that were read from guest memory into a Chain. Shared by both ring layouts.
//
// Owner: a pop() on the stack of one worker. Framing carries no meaning (virtio 1.3 §2.6.4): a chain is one stream of
// readable bytes followed by one of writable bytes. Hence an empty buffer among others is skipped, as the kernel's vhost
// does (QEMU stops the device instead); a chain in which nothing at all has bytes is a fault.
//
// A faulty descriptor doesn't end the walk, since the request layer wants to say "I/O error" in the status byte, which is
// the last byte of the last writable buffer. The first fault is kept, and from there on nothing is translated any more: the
// walk only remembers where the last writable byte is, and finish() translates that one. (A chain may name as many buffers
// as there are descriptors, each of which may cross as many regions as there are; whoever translated all of them, though
// none can be used, would be held up by one chain for a fifth of a second.) If that byte isn't mapped, or the walk lost
// track of the tail, finish() leaves no writable segment at all: then nobody mistakes the end of a data buffer for the
// status.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "guest/access.hpp"
#include "guest/region_map.hpp"
#include "ring/chain.hpp"
#include "ring/spec.hpp"

namespace ringway {

// The most descriptors that an indirect table may have. The specification bounds a chain by the ring's size; drivers are
// known to build longer tables on small rings (case 30), so only the layout's own bound is enforced.
inline constexpr std::uint32_t kIndirectEntriesMax = limits::kRingSizeMax;
inline constexpr std::uint32_t kDescriptorBytes = 16;

// Reads a descriptor once, by two words. REQUIRES: `at` is aligned to 8.
template <typename Descriptor>
[[nodiscard]] inline Descriptor read_descriptor(const std::byte* at) noexcept {
  static_assert(sizeof(Descriptor) == kDescriptorBytes);
  return std::bit_cast<Descriptor>(std::array{guest::load<std::uint64_t>(at), guest::load<std::uint64_t>(at + 8)});
}
// Writes one, for what the device can't see yet. REQUIRES: `at` is aligned to 8.
template <typename Descriptor>
inline void write_descriptor(std::byte* at, const Descriptor& descriptor) noexcept {
  const auto words = std::bit_cast<std::array<std::uint64_t, 2>>(descriptor);
  guest::store(at, words[0]);
  guest::store(at + 8, words[1]);
}

// Reads the 16 bytes at a guest address that may be misaligned or lie across a region border. The number of pieces they lie
// in, 0 if unmapped.
[[nodiscard]] std::uint32_t read_descriptor_anywhere(const RegionMap& map, GuestAddress address,
                                                     std::array<std::uint64_t, 2>& out) noexcept;
// RegionMap::translate for the builder: the new count, or 0 and the fault.
[[nodiscard]] std::size_t append_pieces(const RegionMap& map, std::uint64_t address, std::uint32_t bytes,
                                        std::span<iovec> segments, std::size_t count, ChainFault& fault) noexcept;

// Its functions are forced inline: only then do the counters live in registers while a chain is walked.
class ChainBuilder {
 public:
  // `hint` is the ring's.
  ChainBuilder(const RegionMap& map, Chain& chain, RegionHint& hint) noexcept
      : map_(map), chain_(chain), segments_(chain.storage().data()), hint_(hint), near_(&map.near(hint)) {}

  // One buffer.
  [[gnu::always_inline]] inline void add(std::uint64_t address, std::uint32_t bytes, bool is_writable) noexcept {
    if (RW_UNLIKELY(bytes == 0)) {
      return;
    }
    if (RW_UNLIKELY(!is_writable && writable_begun_)) {
      set_fault(ChainFault::readable_after_writable);
      return;
    }
    std::byte* const host =
        RW_LIKELY(count_ < room_) ? map_.contiguous(GuestAddress{address}, bytes, near_, hint_) : nullptr;
    if (RW_LIKELY(host != nullptr)) {
      segments_[count_] = iovec{host, bytes};
      ++count_;
    } else if (!add_slowly(address, bytes)) {
      if (is_writable) {
        writable_begun_ = true;
        writable_bytes_ += bytes;
        move_tail(address, bytes);
      }
      return;
    }
    if (is_writable) {
      writable_begun_ = true;
      writable_bytes_ += bytes;
    } else {
      readable_ = count_;
      readable_bytes_ += bytes;
    }
  }

  // The indirect table of a split ring: linked by `next` inside the table (§2.7.5.3).
  [[gnu::always_inline]] inline void add_split_table(std::uint64_t address, std::uint32_t bytes) noexcept {
    const std::uint32_t entries = bytes / kDescriptorBytes;
    const std::byte* table = check_table(address, bytes);
    if (RW_UNLIKELY(table == nullptr)) {
      return;
    }
    std::uint32_t index = 0;
    for (std::uint32_t taken = 1;; ++taken) {
      spec::Descriptor descriptor;
      if (RW_UNLIKELY(!read_entry(table, address, index, descriptor))) {
        cost_ += taken;
        return;
      }
      add_entry(descriptor.address, descriptor.length, descriptor.flags);
      if ((descriptor.flags & spec::kDescNext) == 0) {
        cost_ += taken;
        return;
      }
      index = descriptor.next;
      if (RW_UNLIKELY(index >= entries || taken == entries)) {
        cost_ += taken;
        lose_tail(ChainFault::bad_indirect);
        return;
      }
    }
  }

  // The indirect table of a packed ring: all entries in their order; only WRITE has a meaning there (§2.8.8).
  [[gnu::always_inline]] inline void add_packed_table(std::uint64_t address, std::uint32_t bytes) noexcept {
    const std::uint32_t entries = bytes / kDescriptorBytes;
    const std::byte* table = check_table(address, bytes);
    if (RW_UNLIKELY(table == nullptr)) {
      return;
    }
    cost_ += entries;
    for (std::uint32_t index = 0; index < entries; ++index) {
      spec::PackedDescriptor descriptor;
      if (RW_UNLIKELY(!read_entry(table, address, index, descriptor))) {
        return;
      }
      add_entry(descriptor.address, descriptor.length, descriptor.flags);
    }
  }

  // A fault after which the chain's last writable buffer is not known, unless a later one follows.
  [[gnu::always_inline]] inline void lose_tail(ChainFault fault) noexcept {
    set_fault(fault);
    tail_ = Tail::lost;
  }

  // Fills the chain. The first fault, or none.
  [[nodiscard, gnu::always_inline]] inline ChainFault finish(ChainId id) noexcept {
    if (RW_UNLIKELY(count_ == 0)) {
      set_fault(ChainFault::zero_length);
    }
    if (RW_UNLIKELY(tail_ != Tail::last_segment)) {
      finish_tail();
    }
    chain_.assign(id, count_, readable_, readable_bytes_, writable_bytes_);
    chain_.set_cost(id.descriptors + cost_);
    return fault_;
  }

 private:
  // Where the last writable byte is.
  enum class Tail : std::uint8_t {
    last_segment,  // the end of the last writable segment, if there is any
    moved,         // at tail_address_, in a buffer that was left out
    lost,
  };

  [[gnu::always_inline]] inline void set_fault(ChainFault fault) noexcept {
    if (fault_ == ChainFault::none) {
      fault_ = fault;
    }
    room_ = 0;  // from now on each buffer takes the slow way, and is left out there
  }

  // A buffer that doesn't lie in one region, or comes after a fault. False if it is left out.
  [[nodiscard, gnu::always_inline]] inline bool add_slowly(std::uint64_t address, std::uint32_t bytes) noexcept {
    if (fault_ != ChainFault::none) {
      return false;
    }
    ChainFault fault = ChainFault::none;
    const std::size_t count =
        append_pieces(map_, address, bytes, chain_.storage().first(limits::kChainSegmentsMax), count_, fault);
    if (count == 0) {
      cost_ += static_cast<std::uint32_t>(map_.regions().size());  // at most; it ends the translating anyway
      set_fault(fault);
      return false;
    }
    cost_ += static_cast<std::uint32_t>(count - count_ - 1);
    count_ = count;
    return true;
  }

  [[gnu::always_inline]] inline void move_tail(std::uint64_t address, std::uint32_t bytes) noexcept {
    tail_address_ = address + (bytes - 1);
    tail_ = tail_address_ >= address ? Tail::moved : Tail::lost;
  }

  // After a fault, when the tail is not the end of the last segment.
  [[gnu::always_inline]] inline void finish_tail() noexcept {
    std::byte* const last = tail_ == Tail::moved ? map_.contiguous(GuestAddress{tail_address_}, 1, near_, hint_) : nullptr;
    if (last == nullptr) {
      count_ = readable_;
      writable_bytes_ = 0;
      return;
    }
    segments_[count_] = iovec{last, 1};
    ++count_;
  }

  // The table's host memory; `kScattered` if it must be read entry by entry; nullptr (and the fault) if it can't be used.
  [[nodiscard, gnu::always_inline]] inline const std::byte* check_table(std::uint64_t address,
                                                                        std::uint32_t bytes) noexcept {
    if (RW_UNLIKELY(bytes == 0 || bytes % kDescriptorBytes != 0 || bytes / kDescriptorBytes > kIndirectEntriesMax)) {
      lose_tail(ChainFault::bad_indirect);
      return nullptr;
    }
    const std::byte* table = map_.contiguous(GuestAddress{address}, bytes, near_, hint_);
    if (RW_UNLIKELY(table == nullptr || std::bit_cast<std::uintptr_t>(table) % sizeof(std::uint64_t) != 0)) {
      return &kScattered;
    }
    return table;
  }

  template <typename Descriptor>
  [[nodiscard, gnu::always_inline]] inline bool read_entry(const std::byte* table, std::uint64_t address,
                                                           std::uint32_t index, Descriptor& out) noexcept {
    if (RW_LIKELY(table != &kScattered)) {
      out = read_descriptor<Descriptor>(table + std::size_t{index} * kDescriptorBytes);
      return true;
    }
    std::array<std::uint64_t, 2> words;
    const std::uint32_t pieces =
        read_descriptor_anywhere(map_, GuestAddress{address + std::uint64_t{index} * kDescriptorBytes}, words);
    if (pieces == 0) {
      lose_tail(ChainFault::bad_indirect);
      return false;
    }
    cost_ += pieces - 1;
    out = std::bit_cast<Descriptor>(words);
    return true;
  }

  [[gnu::always_inline]] inline void add_entry(std::uint64_t address, std::uint32_t bytes, std::uint16_t flags) noexcept {
    if (RW_UNLIKELY((flags & spec::kDescIndirect) != 0)) {
      lose_tail(ChainFault::bad_indirect);  // tables don't nest
      return;
    }
    add(address, bytes, (flags & spec::kDescWrite) != 0);
  }

  static constexpr std::byte kScattered{};

  const RegionMap& map_;
  Chain& chain_;
  iovec* segments_;
  RegionHint& hint_;
  const RegionMap::Region* near_;
  std::size_t count_ = 0;
  std::size_t readable_ = 0;
  std::uint64_t readable_bytes_ = 0;
  std::uint64_t writable_bytes_ = 0;
  std::size_t room_ = limits::kChainSegmentsMax;  // segments that the quick way may fill: none after a fault
  std::uint64_t tail_address_ = 0;
  std::uint32_t cost_ = 0;  // but for the ring's own descriptors: see Chain::cost()
  bool writable_begun_ = false;
  Tail tail_ = Tail::last_segment;
  ChainFault fault_ = ChainFault::none;
};

}  // namespace ringway
