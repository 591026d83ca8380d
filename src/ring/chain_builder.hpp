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

// By these a chain is known to be a single buffer, and of which direction.
inline constexpr std::uint16_t kBufferFlags = spec::kDescNext | spec::kDescIndirect | spec::kDescWrite;

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

// The part of a walk that each descriptor changes is a Cursor: a local variable of whoever walks, which no function outside
// that one ever sees the address of, so that it lives in registers. The builder holds the rest. What is out of the ordinary
// (another region, a fault) goes through functions that aren't inline, and then the builder keeps the cursor meanwhile.
class ChainBuilder {
 public:
  class Cursor {
   private:
    friend class ChainBuilder;
    std::uint64_t region_guest, region_bytes;  // the region that is looked in first
    std::byte* region_host;
    iovec* next;          // where the next segment goes
    const iovec* end;     // of the room for them; `next` after a fault, so that each buffer takes the slow way from then on
    std::uint64_t bytes;  // of all buffers so far: of those left out, only writable ones count
    bool writing;         // since the first writable buffer
  };

  // `hint` is the ring's.
  ChainBuilder(const RegionMap& map, Chain& chain, RegionHint& hint) noexcept
      : map_(map), chain_(chain), segments_(chain.storage().data()), hint_(hint) {}

  [[nodiscard, gnu::always_inline]] inline Cursor begin() const noexcept {
    Cursor at;
    use_region(at, map_.near(hint_));
    at.next = segments_;
    at.end = segments_ + limits::kChainSegmentsMax;
    at.bytes = 0;
    at.writing = false;
    return at;
  }

  // One buffer.
  [[gnu::always_inline]] inline void add(Cursor& at, std::uint64_t address, std::uint32_t bytes, bool is_writable) noexcept {
    const std::uint64_t offset = address - at.region_guest;
    // With bytes == 0 the left side of the second comparison is larger than any.
    if (RW_UNLIKELY(offset >= at.region_bytes || std::uint64_t{bytes} - 1 >= at.region_bytes - offset || at.next == at.end ||
                    (at.writing && !is_writable))) {
      kept_ = at;
      add_slowly(address, bytes, is_writable);
      at = kept_;
      return;
    }
    begin_writing(at, is_writable);
    append(at, at.region_host + offset, bytes);
  }

  // The indirect table of a split ring: linked by `next` inside the table (§2.7.5.3).
  [[gnu::always_inline]] inline void add_split_table(Cursor& at, std::uint64_t address, std::uint32_t bytes) noexcept {
    const std::byte* table = table_at(at, address, bytes);
    if (RW_UNLIKELY(table == nullptr)) {
      kept_ = at;
      table = find_table(address, bytes);
      if (table == nullptr) {
        add_split_table_slowly(address, bytes);
        at = kept_;
        return;
      }
      at = kept_;
    }
    const std::uint32_t entries = bytes / kDescriptorBytes;
    std::uint32_t index = 0;
    std::uint32_t taken = 1;
    for (;; ++taken) {
      const auto descriptor = read_descriptor<spec::Descriptor>(table + std::size_t{index} * kDescriptorBytes);
      if (RW_UNLIKELY((descriptor.flags & spec::kDescIndirect) != 0)) {
        lose_tail(at, ChainFault::bad_indirect);  // tables don't nest
      } else {
        add(at, descriptor.address, descriptor.length, (descriptor.flags & spec::kDescWrite) != 0);
      }
      if ((descriptor.flags & spec::kDescNext) == 0) {
        break;
      }
      index = descriptor.next;
      if (RW_UNLIKELY(index >= entries || taken == entries)) {
        lose_tail(at, ChainFault::bad_indirect);
        break;
      }
    }
    cost_ += taken;
  }

  // The indirect table of a packed ring: all entries in their order; only WRITE has a meaning there (§2.8.8).
  [[gnu::always_inline]] inline void add_packed_table(Cursor& at, std::uint64_t address, std::uint32_t bytes) noexcept {
    const std::byte* table = table_at(at, address, bytes);
    if (RW_UNLIKELY(table == nullptr)) {
      kept_ = at;
      table = find_table(address, bytes);
      if (table == nullptr) {
        add_packed_table_slowly(address, bytes);
        at = kept_;
        return;
      }
      at = kept_;
    }
    cost_ += bytes / kDescriptorBytes;
    for (const std::byte* const end = table + bytes; table != end; table += kDescriptorBytes) {
      const auto descriptor = read_descriptor<spec::PackedDescriptor>(table);
      if (RW_UNLIKELY((descriptor.flags & spec::kDescIndirect) != 0)) {
        lose_tail(at, ChainFault::bad_indirect);
      } else {
        add(at, descriptor.address, descriptor.length, (descriptor.flags & spec::kDescWrite) != 0);
      }
    }
  }

  // A fault after which the chain's last writable buffer is not known, unless a later one follows.
  [[gnu::always_inline]] inline void lose_tail(Cursor& at, ChainFault fault) noexcept {
    set_fault(at, fault);
    tail_ = Tail::lost;
  }

  // Fills the chain. The first fault, or none.
  [[nodiscard, gnu::always_inline]] inline ChainFault finish(Cursor& at, ChainId id) noexcept {
    if (RW_UNLIKELY(at.next == segments_)) {
      set_fault(at, ChainFault::zero_length);
    }
    if (!at.writing) {
      end_reading(at);
    }
    std::uint64_t writable_bytes = at.bytes - readable_bytes_;
    if (RW_UNLIKELY(tail_ != Tail::last_segment)) {
      kept_ = at;
      if (!finish_tail()) {
        writable_bytes = 0;
      }
      at = kept_;
    }
    chain_.assign(id, static_cast<std::size_t>(at.next - segments_), readable_, readable_bytes_, writable_bytes);
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

  [[gnu::always_inline]] static inline void use_region(Cursor& at, const RegionMap::Region& region) noexcept {
    at.region_guest = region.guest.value;
    at.region_bytes = region.bytes;
    at.region_host = region.host;
  }
  [[gnu::always_inline]] static inline void append(Cursor& at, std::byte* host, std::uint32_t bytes) noexcept {
    *at.next = iovec{host, bytes};
    ++at.next;
    at.bytes += bytes;
  }
  [[gnu::always_inline]] inline void end_reading(const Cursor& at) noexcept {
    readable_ = static_cast<std::size_t>(at.next - segments_);
    readable_bytes_ = at.bytes;
  }
  [[gnu::always_inline]] inline void begin_writing(Cursor& at, bool is_writable) noexcept {
    if (is_writable && !at.writing) {
      end_reading(at);
      at.writing = true;
    }
  }
  [[gnu::always_inline]] inline void set_fault(Cursor& at, ChainFault fault) noexcept {
    if (fault_ == ChainFault::none) {
      fault_ = fault;
    }
    at.end = at.next;
  }

  // The table's host memory if it lies in the region at hand and can be read as it is; else nullptr.
  [[nodiscard, gnu::always_inline]] static inline const std::byte* table_at(const Cursor& at, std::uint64_t address,
                                                                            std::uint32_t bytes) noexcept {
    const std::uint64_t offset = address - at.region_guest;
    if (RW_UNLIKELY(offset >= at.region_bytes || std::uint64_t{bytes} - 1 >= at.region_bytes - offset || !is_table(bytes))) {
      return nullptr;
    }
    const std::byte* const table = at.region_host + offset;
    return RW_LIKELY(std::bit_cast<std::uintptr_t>(table) % sizeof(std::uint64_t) == 0) ? table : nullptr;
  }
  [[nodiscard]] static bool is_table(std::uint32_t bytes) noexcept {
    return bytes != 0 && bytes % kDescriptorBytes == 0 && bytes / kDescriptorBytes <= kIndirectEntriesMax;
  }

  // --- the slow ways: of what doesn't lie in the region at hand, or comes after a fault. All work on `kept_`. ---
  void add_slowly(std::uint64_t address, std::uint32_t bytes, bool is_writable) noexcept;
  // The table if it lies in any one region, which is then the one at hand, and can be read as it is; else nullptr.
  [[nodiscard]] const std::byte* find_table(std::uint64_t address, std::uint32_t bytes) noexcept;
  void add_split_table_slowly(std::uint64_t address, std::uint32_t bytes) noexcept;
  void add_packed_table_slowly(std::uint64_t address, std::uint32_t bytes) noexcept;
  // False, and a fault, if it can't be read.
  [[nodiscard]] bool read_entry(std::uint64_t table, std::uint32_t index, std::array<std::uint64_t, 2>& out) noexcept;
  void add_entry(std::uint64_t address, std::uint32_t bytes, std::uint16_t flags) noexcept;
  [[nodiscard]] bool translate(std::uint64_t address, std::uint32_t bytes, bool is_writable) noexcept;
  // After a fault, when the tail is not the end of the last segment. False if no writable segment is left.
  [[nodiscard]] bool finish_tail() noexcept;

  const RegionMap& map_;
  Chain& chain_;
  iovec* segments_;
  RegionHint& hint_;
  Cursor kept_;                       // while a slow way is taken
  std::size_t readable_ = 0;          // segments before the first writable one, and their bytes: from then on, or from
  std::uint64_t readable_bytes_ = 0;  // finish() on
  std::uint64_t tail_address_ = 0;
  std::uint32_t cost_ = 0;  // but for the ring's own descriptors: see Chain::cost()
  Tail tail_ = Tail::last_segment;
  ChainFault fault_ = ChainFault::none;
};

}  // namespace ringway
