// One validated descriptor chain: what stage (1) hands to stage (2).
//
// Every descriptor was read once, checked and translated; what is left are host pieces, the device-readable ones first.
// A Chain is scratch memory of one worker, filled by `pop` and used up before the next one: a request copies what it keeps.
// Whoever handles several chains at a time may also keep() one: then the next is built behind it, until let_go().
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/check.hpp"
#include "base/limits.hpp"

namespace ringway {

// How a used element names its chain. Both ring layouts fill it; nobody else needs to look inside.
struct ChainId {
  std::uint16_t head = 0;         // split: index of the head descriptor; packed: the buffer id
  std::uint16_t descriptors = 0;  // ring entries that the chain occupies (packed: how far the used position moves)
};

// So many chains one after the other, and the ring entries that they occupy.
struct ChainCount {
  std::uint16_t chains = 0;
  std::uint16_t descriptors = 0;
  void add(ChainId id) noexcept {
    ++chains;
    descriptors = static_cast<std::uint16_t>(descriptors + id.descriptors);
  }
};

// Why a chain can't be used. Only that chain is finished; the ring goes on.
enum class ChainFault : std::uint8_t {
  none,
  unmapped,     // a buffer, or a part of it, is not in guest memory
  zero_length,  // no buffer of the chain has any bytes (single empty buffers among others are skipped)
  readable_after_writable,
  bad_indirect,  // an indirect table of a wrong size, nested, looping, not in guest memory, combined with NEXT, or not
                 // negotiated
  too_many_segments,
};

// Why a ring can't be used any further: it stops, its error fd is signalled.
enum class RingFault : std::uint8_t {
  none,
  avail_jump,  // the driver made more available than the ring has descriptors
  bad_head,    // a descriptor index beyond the ring, or a buffer id beyond it
  loop,        // a chain longer than the ring, or (packed) longer than what can still be free
  unmapped,    // the memory of the ring itself is gone
};

[[nodiscard]] const char* to_string(ChainFault fault) noexcept;
[[nodiscard]] const char* to_string(RingFault fault) noexcept;

// A chain of a single buffer.
struct ChainBuffer {
  std::byte* at = nullptr;
  std::uint32_t bytes = 0;  // not 0
  ChainId chain;
};

class Chain {
 public:
  // Kept chains, together, have at most `kept_segments` segments before the last one is kept.
  explicit Chain(std::size_t kept_segments = 0)
      : segments_(std::make_unique_for_overwrite<iovec[]>(kStorage + kept_segments)),
        first_(segments_.get()),
        keep_before_(first_ + kept_segments) {}

  [[nodiscard]] ChainId id() const { return id_; }
  // After PopStatus::chain_fault both lists hold what had been translated before the fault, and writable() is either empty
  // or ends in the last byte that the chain offers for writing: a status byte may be written there.
  [[nodiscard]] std::span<const iovec> readable() const { return {first_, readable_}; }
  [[nodiscard]] std::span<const iovec> writable() const { return {first_ + readable_, count_ - readable_}; }
  [[nodiscard]] std::uint64_t readable_bytes() const { return readable_bytes_; }
  // After a fault: of the writable buffers that were left out as well; 0 if writable() is empty.
  [[nodiscard]] std::uint64_t writable_bytes() const { return writable_bytes_; }
  // What it took to make it: 1 for each descriptor that was read, empty and faulty ones too, and 1 for each region more than
  // one that a buffer or a table's entry was looked for in.
  [[nodiscard]] std::uint32_t cost() const { return cost_; }

  // The lists that readable() and writable() have given stay as they are while further chains are popped, and may be changed
  // by who has kept them. The segments of chains that are kept one after the other follow each other without a gap. There is
  // room for another pop() only while can_keep().
  void keep() { first_ += count_; }
  [[nodiscard]] bool can_keep() const { return first_ < keep_before_; }
  // Those kept from there on are kept no longer.
  void let_go(std::size_t position = 0) { first_ = segments_.get() + position; }
  // Where the next chain begins; with segment() the way to what was kept.
  [[nodiscard]] std::size_t position() const { return static_cast<std::size_t>(first_ - segments_.get()); }
  [[nodiscard]] iovec& segment(std::size_t position) { return segments_[position]; }

  // --- for ring/ and tests ---
  void reset(ChainId id) {
    id_ = id;
    count_ = readable_ = 0;
    readable_bytes_ = writable_bytes_ = 0;
    cost_ = 0;
  }
  void set_cost(std::uint32_t cost) { cost_ = cost; }
  void set_id(ChainId id) { id_ = id; }
  // One more than a chain may have: where the status byte of one with too many goes.
  static constexpr std::size_t kStorage = limits::kChainSegmentsMax + 1;
  [[nodiscard]] std::span<iovec> storage() {
    RW_DCHECK(first_ <= keep_before_);
    return {first_, kStorage};
  }
  [[nodiscard]] std::size_t& count() { return count_; }
  // Accounts for the segments that were appended since `first`.
  void account(bool is_writable, std::uint64_t bytes) {
    if (is_writable) {
      writable_bytes_ += bytes;
    } else {
      readable_ = count_;
      readable_bytes_ += bytes;
    }
  }
  [[nodiscard]] bool has_writable() const { return count_ != readable_; }
  // Everything at once: `count` segments of storage(), of which the first `readable` are device-readable.
  void assign(ChainId id, std::size_t count, std::size_t readable, std::uint64_t readable_bytes,
              std::uint64_t writable_bytes) {
    id_ = id;
    count_ = count;
    readable_ = readable;
    readable_bytes_ = readable_bytes;
    writable_bytes_ = writable_bytes;
  }

 private:
  std::unique_ptr<iovec[]> segments_;
  iovec* first_;        // of this chain
  iovec* keep_before_;  // kept chains begin before this
  std::size_t count_ = 0;
  std::size_t readable_ = 0;  // the first `readable_` segments are device-readable
  std::uint64_t readable_bytes_ = 0;
  std::uint64_t writable_bytes_ = 0;
  ChainId id_;
  std::uint32_t cost_ = 0;
};

}  // namespace ringway
