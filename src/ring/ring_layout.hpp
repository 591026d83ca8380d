// Where the parts of a ring lie, and what was negotiated for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.hpp"
#include "guest/region_map.hpp"

namespace ringway {

struct RingFeatures {
  bool packed = false;
  bool indirect = false;
  bool event_index = false;
  bool in_order = false;
};

// The addresses of SET_VRING_ADDR, as sent. Kept raw and resolved again for each new memory table.
struct RingAddresses {
  UserAddress descriptor_area;
  UserAddress driver_area;  // split: avail ring; packed: driver event suppression
  UserAddress device_area;  // split: used ring; packed: device event suppression
};

// Sizes of the three areas for a ring of `size` descriptors.
struct RingAreaBytes {
  std::size_t descriptor = 0;
  std::size_t driver = 0;
  std::size_t device = 0;
};
[[nodiscard]] RingAreaBytes ring_area_bytes(std::uint32_t size, bool packed) noexcept;

// The base of a ring that was never used, for front-ends that don't send SET_VRING_BASE: index 0 and, in a packed ring, both
// wrap counters at 1 (virtio 1.3 §2.8.1).
inline constexpr std::uint32_t kSplitBaseInitial = 0;
inline constexpr std::uint32_t kPackedBaseInitial = 0x8000'8000;

struct RingLayout {
  std::uint32_t size = 0;  // descriptors
  std::byte* descriptor_area = nullptr;
  std::byte* driver_area = nullptr;
  std::byte* device_area = nullptr;

  // Translates and checks: size 1…32768 and a power of two if split; alignment 16/2/4 (split) or 16/4/4 (packed); each
  // part whole within one region. The error says which value was wrong and what would be right.
  [[nodiscard]] static Result<RingLayout> resolve(const RegionMap& map, const RingAddresses& addresses, std::uint32_t size,
                                                  bool packed);
};

enum class PopStatus : std::uint8_t { empty, chain, chain_fault, ring_fault };

// Up to three byte ranges of ring memory (host addresses) that were written; bytes == 0 ends the list.
struct WrittenRange {
  struct Piece {
    const std::byte* first = nullptr;
    std::size_t bytes = 0;
  };
  Piece pieces[3];
};

}  // namespace ringway
