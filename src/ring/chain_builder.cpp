#include "ring/chain_builder.hpp"

#include <algorithm>

namespace ringway {

std::uint32_t read_descriptor_anywhere(const RegionMap& map, GuestAddress address,
                                       std::array<std::uint64_t, 2>& out) noexcept {
  std::array<iovec, kDescriptorBytes> pieces;  // at worst each byte lies in a region of its own
  std::size_t count = 0;
  if (!map.translate(address, kDescriptorBytes, pieces, count)) {
    return 0;
  }
  std::array<std::byte, kDescriptorBytes> bytes;
  std::size_t filled = 0;
  for (const iovec& piece : std::span(pieces).first(count)) {
    guest::copy(bytes.data() + filled, static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
    filled += piece.iov_len;
  }
  out = std::bit_cast<std::array<std::uint64_t, 2>>(bytes);
  return static_cast<std::uint32_t>(count);
}

std::size_t append_pieces(const RegionMap& map, std::uint64_t address, std::uint32_t bytes, std::span<iovec> segments,
                          std::size_t count, ChainFault& fault) noexcept {
  if (map.translate(GuestAddress{address}, bytes, segments, count)) {
    return count;
  }
  // A range gives at most one piece per region, so with that much room left it was not for want of room.
  fault = segments.size() - count >= map.regions().size() && segments.size() != count ? ChainFault::unmapped
                                                                                      : ChainFault::too_many_segments;
  return 0;
}

}  // namespace ringway
