// Addresses of a guest: numbers until a RegionMap has translated them.
#pragma once

#include <compare>
#include <cstdint>

namespace ringway {

// A guest-physical address, as it stands in a descriptor. Never converts to a pointer by itself.
struct GuestAddress {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const GuestAddress&) const = default;
};

// An address in the front-end's own address space, as SET_VRING_ADDR carries it.
struct UserAddress {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const UserAddress&) const = default;
};

}  // namespace ringway
