#include "ring/ring_layout.hpp"

#include <fmt/core.h>

#include <bit>

#include "base/limits.hpp"

namespace ringway {

namespace {

Result<std::byte*> resolve_area(const RegionMap& map, const char* name, UserAddress address, std::size_t bytes,
                                std::size_t alignment) {
  if (address.value % alignment != 0) {
    return fail(fmt::format("the {} at {:#x} must be aligned to {} bytes", name, address.value, alignment));
  }
  std::byte* host = map.from_user(address, bytes);
  if (host == nullptr) {
    return fail(
        fmt::format("the {} at {:#x} ({} bytes) is not within one memory region; the front-end must send the region "
                    "that holds it first",
                    name, address.value, bytes));
  }
  if (std::bit_cast<std::uintptr_t>(host) % alignment != 0) {
    return fail(fmt::format("the {} at {:#x} lies in a memory region whose own address is not aligned to {} bytes", name,
                            address.value, alignment));
  }
  return host;
}

}  // namespace

RingAreaBytes ring_area_bytes(std::uint32_t size, bool packed) noexcept {
  const std::size_t entries = size;
  if (packed) {
    return {.descriptor = entries * 16, .driver = 4, .device = 4};
  }
  // The event index words are counted in even where EVENT_IDX was not negotiated, as all known drivers allocate them.
  return {.descriptor = entries * 16, .driver = 6 + entries * 2, .device = 6 + entries * 8};
}

Result<RingLayout> RingLayout::resolve(const RegionMap& map, const RingAddresses& addresses, std::uint32_t size,
                                       bool packed) {
  if (size == 0 || size > limits::kRingSizeMax) {
    return fail(fmt::format("a ring of {} descriptors is not possible, it must have 1 to {}", size, limits::kRingSizeMax));
  }
  if (!packed && !std::has_single_bit(size)) {
    return fail(fmt::format("a split ring of {} descriptors is not possible, the size must be a power of two", size));
  }
  const RingAreaBytes bytes = ring_area_bytes(size, packed);
  const char* driver_name = packed ? "driver event area" : "avail ring";
  const char* device_name = packed ? "device event area" : "used ring";
  RingLayout layout;
  layout.size = size;
  RW_TRY_ASSIGN(layout.descriptor_area, resolve_area(map, packed ? "descriptor ring" : "descriptor table",
                                                     addresses.descriptor_area, bytes.descriptor, 16));
  RW_TRY_ASSIGN(layout.driver_area, resolve_area(map, driver_name, addresses.driver_area, bytes.driver, packed ? 4 : 2));
  RW_TRY_ASSIGN(layout.device_area, resolve_area(map, device_name, addresses.device_area, bytes.device, 4));
  return layout;
}

}  // namespace ringway
