// Guest memory as one immutable snapshot: guest address → checked host memory.
//
// A new snapshot is made on the control thread by SET_MEM_TABLE, ADD_MEM_REG and REM_MEM_REG; workers hold the one that they
// were given until they are told otherwise, and each request in flight pins the one that it was translated with.
// `translate` is the only way from a guest's number to memory (so an IOTLB can come later).
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "base/result.hpp"
#include "guest/address.hpp"
#include "guest/mapping.hpp"

namespace ringway {

// Where a map was hit last, for who translates one address after another: nearly all of a guest's buffers lie in one region.
// A guess: any value goes with any map, a wrong one only costs the search. One for each ring, so no map is ever written to.
struct RegionHint {
  std::uint32_t index = 0;
};

class RegionMap {
 public:
  struct Region {
    GuestAddress guest;
    std::uint64_t bytes = 0;
    UserAddress user;
    std::byte* host = nullptr;
    std::shared_ptr<Mapping> mapping;

    // Host memory of [address, address + length) if all of it, and any, lies here; else nullptr.
    [[nodiscard, gnu::always_inline]] inline std::byte* host_of(std::uint64_t address, std::uint64_t length) const noexcept {
      const std::uint64_t offset = address - guest.value;
      // With a length of 0 the left side of the second comparison is larger than any.
      return offset < bytes && length - 1 < bytes - offset ? host + offset : nullptr;
    }
  };

  RegionMap() = default;
  // Errors: two regions overlap by guest address; a region wraps around the address space.
  [[nodiscard]] static Result<std::shared_ptr<const RegionMap>> create(std::vector<std::shared_ptr<Mapping>> mappings);

  // Sorted by guest address.
  [[nodiscard]] std::span<const Region> regions() const { return {regions_.data(), count_}; }

  // Host memory of [address, address + bytes) if it lies within one region, else nullptr. bytes == 0 gives nullptr.
  [[nodiscard]] std::byte* contiguous(GuestAddress address, std::uint64_t bytes) const noexcept;

  // The region that a hint means.
  [[nodiscard]] const Region& near(RegionHint hint) const noexcept {
    return regions_[RW_LIKELY(hint.index < count_) ? hint.index : count_];
  }
  // contiguous() for a walk: looks at `near` first, and on a miss moves `near` and `hint` to the region found.
  // REQUIRES: `near` is of this map.
  [[nodiscard, gnu::always_inline]] inline std::byte* contiguous(GuestAddress address, std::uint64_t bytes,
                                                                 const Region*& near, RegionHint& hint) const noexcept;

  // Appends the host pieces of [address, address + bytes) to `out` from index `count` on and advances `count`. Adjacent
  // regions give one piece each. False, with `count` unchanged, if any byte is unmapped, the range wraps, bytes is 0,
  // or `out` has no room.
  [[nodiscard]] bool translate(GuestAddress address, std::uint64_t bytes, std::span<iovec> out,
                               std::size_t& count) const noexcept;

  // Host memory of a ring, whose parts SET_VRING_ADDR gives as addresses of the front-end's own space. Within one region.
  [[nodiscard]] std::byte* from_user(UserAddress address, std::uint64_t bytes) const noexcept;

  // The guest address of a pointer that this map gave out. For the dirty log; linear in the number of regions.
  // Nothing if the pointer is not of this map.
  [[nodiscard]] bool guest_address_of(const std::byte* host, GuestAddress& out) const noexcept;

  // True if the memory behind any region was found truncated.
  [[nodiscard]] bool poisoned() const noexcept;

  // True if every mapping of this map is also in `newer`, so that requests pinned to this one needn't end before a reply
  // says that the old table is gone.
  [[nodiscard]] bool survives_in(const RegionMap& newer) const noexcept;

 private:
  [[nodiscard]] const Region* find(GuestAddress address) const noexcept;
  void search_near(GuestAddress address, const Region*& near, RegionHint& hint) const noexcept;

  std::vector<Region> regions_ = std::vector<Region>(1);  // and an empty one at the end, which a walk may begin with
  std::size_t count_ = 0;
};

// Few VMs have more than three or four regions, so the search is linear up to a handful and binary beyond.
inline const RegionMap::Region* RegionMap::find(GuestAddress address) const noexcept {
  const Region* first = regions_.data();
  std::size_t count = count_;
  while (count > 4) {
    const std::size_t half = count / 2;
    if (first[half].guest.value <= address.value) {
      first += half;
      count -= half;
    } else {
      count = half;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (address.value - first[i].guest.value < first[i].bytes) {
      return &first[i];
    }
  }
  return nullptr;
}

inline std::byte* RegionMap::contiguous(GuestAddress address, std::uint64_t bytes) const noexcept {
  const Region* region = find(address);
  if (region == nullptr || bytes == 0) {
    return nullptr;
  }
  const std::uint64_t offset = address.value - region->guest.value;
  if (bytes > region->bytes - offset) {
    return nullptr;
  }
  return region->host + offset;
}

inline std::byte* RegionMap::contiguous(GuestAddress address, std::uint64_t bytes, const Region*& near,
                                        RegionHint& hint) const noexcept {
  std::uint64_t offset = address.value - near->guest.value;
  if (RW_UNLIKELY(offset >= near->bytes)) {
    search_near(address, near, hint);
    offset = address.value - near->guest.value;
    if (offset >= near->bytes) {
      return nullptr;
    }
  }
  // With bytes == 0 the left side is larger than any.
  return RW_LIKELY(bytes - 1 < near->bytes - offset) ? near->host + offset : nullptr;
}

}  // namespace ringway
