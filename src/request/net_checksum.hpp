// The internet checksum (RFC 1071) over bytes wherever they lie, and the completion of one that a sender left to its device
// (virtio 1.3 §5.1.6.2: csum_start, csum_offset). Pure; fast without instructions that not every host has.
//
// Sums are kept in the byte order of memory, in which the sum of 16-bit words comes out the same but for a swap of its two
// bytes: what `folded` and `checksum` return is stored as it is. They are equal modulo 65535 to what a sum in network order
// gives, with 0 only for bytes that are all 0.
#pragma once

#include <sys/uio.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "request/net_pieces.hpp"

namespace ringway {

class NetSum {
 public:
  // Appends bytes to what has been summed; after an odd number of bytes the next one is the second of its word.
  void add(std::span<const std::byte> bytes) noexcept;
  // The same with the next `bytes` bytes of pieces, or as many as there are.
  void add(NetCursor& from, std::size_t bytes) noexcept;
  // Copies the next `bytes` bytes, or as many as both sides have, and sums what was copied; returns how many. The sum is of
  // what stands in `to` right after its part was copied.
  std::size_t copy(NetCursor& to, NetCursor& from, std::size_t bytes) noexcept;
  // A word that stands in memory as it is given (a folded sum, for instance). Needs no even place: it is its own.
  void add_stored(std::uint16_t word) noexcept { sum_ += word; }
  // A number that the wire has in network order.
  void add_number(std::uint16_t number) noexcept { sum_ += std::byteswap(number); }
  void add_number(std::uint32_t number) noexcept { sum_ += std::byteswap(number); }  // 2^16 ≡ 1: both halves at once

  // The sum as a word to be stored: a partial checksum.
  [[nodiscard]] std::uint16_t folded() const noexcept;
  // The checksum of all that was added, never 0: UDP means "none" by that (RFC 768), and to all others 0xffff is as good.
  [[nodiscard]] std::uint16_t checksum() const noexcept {
    const auto complement = static_cast<std::uint16_t>(~folded());
    return complement == 0 ? std::uint16_t{0xffff} : complement;
  }

 private:
  std::uint64_t sum_ = 0;  // far from overflowing: at most 16 bits for each piece
  bool odd_ = false;
};

// Copies a frame of `bytes` bytes and completes its checksum on the way, in the copy. Nothing is written to `from`.
// REQUIRES: both sides have that many bytes; csum_start + csum_offset + 2 <= bytes (parse_net_frame has seen to that).
void net_copy_completing(NetCursor to, std::span<const iovec> from, std::size_t bytes, std::size_t csum_start,
                         std::size_t csum_offset) noexcept;

}  // namespace ringway
