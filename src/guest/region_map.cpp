#include "guest/region_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.hpp"
#include "base/limits.hpp"

namespace ringway {

Result<std::shared_ptr<const RegionMap>> RegionMap::create(std::vector<std::shared_ptr<Mapping>> mappings) {
  if (mappings.size() > limits::kMemorySlotsMax) {
    return fail(fmt::format("a memory table of {} regions is too long, at most {} are supported", mappings.size(),
                            limits::kMemorySlotsMax));
  }
  auto map = std::make_shared<RegionMap>();
  map->regions_.clear();
  map->regions_.reserve(mappings.size() + 1);
  for (std::shared_ptr<Mapping>& mapping : mappings) {
    RW_CHECK(mapping != nullptr);
    const Mapping::Identity& identity = mapping->identity();
    map->regions_.push_back(Region{.guest = identity.guest,
                                   .bytes = identity.bytes,
                                   .user = identity.user,
                                   .host = mapping->data(),
                                   .mapping = std::move(mapping)});
  }
  std::sort(map->regions_.begin(), map->regions_.end(), [](const Region& a, const Region& b) { return a.guest < b.guest; });
  map->count_ = map->regions_.size();
  map->regions_.emplace_back();
  for (std::size_t i = 0; i < map->count_; ++i) {
    const Region& region = map->regions_[i];
    if (region.bytes == 0 || region.bytes - 1 > std::numeric_limits<std::uint64_t>::max() - region.guest.value) {
      return fail(fmt::format("guest memory region at {:#x} of {} bytes is empty or wraps around the address space",
                              region.guest.value, region.bytes));
    }
    if (i > 0 && region.guest.value - map->regions_[i - 1].guest.value < map->regions_[i - 1].bytes) {
      return fail(fmt::format("guest memory regions at {:#x} and {:#x} overlap", map->regions_[i - 1].guest.value,
                              region.guest.value));
    }
  }
  return map;
}

void RegionMap::search_near(GuestAddress address, const Region*& near, RegionHint& hint) const noexcept {
  if (const Region* found = find(address); found != nullptr) {
    near = found;
    hint.index = static_cast<std::uint32_t>(found - regions_.data());
  }
}

bool RegionMap::translate(GuestAddress address, std::uint64_t bytes, std::span<iovec> out,
                          std::size_t& count) const noexcept {
  if (bytes == 0 || bytes - 1 > std::numeric_limits<std::uint64_t>::max() - address.value) {
    return false;
  }
  std::size_t next = count;
  while (bytes > 0) {
    const Region* region = find(address);
    if (region == nullptr || next >= out.size()) {
      return false;
    }
    const std::uint64_t offset = address.value - region->guest.value;
    const std::uint64_t piece = std::min(bytes, region->bytes - offset);
    out[next++] = iovec{.iov_base = region->host + offset, .iov_len = static_cast<std::size_t>(piece)};
    address.value += piece;  // wraps to 0 only when nothing is left
    bytes -= piece;
  }
  count = next;
  return true;
}

std::byte* RegionMap::from_user(UserAddress address, std::uint64_t bytes) const noexcept {
  if (bytes == 0) {
    return nullptr;
  }
  for (const Region& region : regions()) {
    const std::uint64_t offset = address.value - region.user.value;
    if (offset < region.bytes && bytes <= region.bytes - offset) {
      return region.host + offset;
    }
  }
  return nullptr;
}

bool RegionMap::guest_address_of(const std::byte* host, GuestAddress& out) const noexcept {
  const auto value = reinterpret_cast<std::uintptr_t>(host);
  for (const Region& region : regions()) {
    const std::uint64_t offset = value - reinterpret_cast<std::uintptr_t>(region.host);
    if (offset < region.bytes) {
      out = GuestAddress{region.guest.value + offset};
      return true;
    }
  }
  return false;
}

bool RegionMap::poisoned() const noexcept {
  return std::ranges::any_of(regions(), [](const Region& region) { return region.mapping->poisoned(); });
}

bool RegionMap::survives_in(const RegionMap& newer) const noexcept {
  return std::ranges::all_of(regions(), [&newer](const Region& region) {
    const Region* same = newer.find(region.guest);
    return same != nullptr && same->mapping == region.mapping;
  });
}

}  // namespace ringway
