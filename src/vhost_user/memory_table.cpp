#include "vhost_user/memory_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/limits.hpp"

namespace ringway::vhost_user {

Result<std::shared_ptr<Mapping>> MemoryTable::map_region(const MemoryRegion& region, const ForeignFd& fd) const {
  const GuestAddress guest{region.guest_address};
  const UserAddress user{region.user_address};
  RW_TRY_ASSIGN(const Mapping::Identity identity,
                Mapping::identify(fd.get(), guest, user, region.bytes, region.mmap_offset));
  for (const std::shared_ptr<Mapping>& mapping : mappings_) {
    // A mapping whose file was truncated is backed by anonymous memory now: it no longer shows what the guest sees.
    if (mapping->identity() == identity && !mapping->poisoned()) {
      return mapping;
    }
  }
  return Mapping::create(fd.get(), guest, user, region.bytes, region.mmap_offset, fd.holdings());
}

Result<> MemoryTable::commit(std::vector<std::shared_ptr<Mapping>> mappings) {
  std::uint64_t bytes = 0;  // no overflow: each of them is mapped
  for (const std::shared_ptr<Mapping>& mapping : mappings) {
    bytes += mapping->identity().bytes;
  }
  if (bytes > limits::kGuestBytesMax) {
    return fail(fmt::format("a guest with {} bytes of memory; {} TiB are possible", bytes, limits::kGuestBytesMax >> 40U));
  }
  RW_TRY_ASSIGN(map_, RegionMap::create(mappings));
  mappings_ = std::move(mappings);
  return {};
}

Result<> MemoryTable::set(std::span<const MemoryRegion> regions, std::span<const ForeignFd> fds) {
  RW_CHECK(regions.size() == fds.size());
  std::vector<std::shared_ptr<Mapping>> mappings;
  mappings.reserve(regions.size());
  for (std::size_t i = 0; i < regions.size(); ++i) {
    RW_TRY_ASSIGN(std::shared_ptr<Mapping> mapping, map_region(regions[i], fds[i]));
    mappings.push_back(std::move(mapping));
  }
  return commit(std::move(mappings));
}

Result<> MemoryTable::add(const MemoryRegion& region, const ForeignFd& fd) {
  if (mappings_.size() >= limits::kMemorySlotsMax) {
    return fail(fmt::format("all {} memory slots are taken", limits::kMemorySlotsMax));
  }
  RW_TRY_ASSIGN(std::shared_ptr<Mapping> mapping, map_region(region, fd));
  std::vector<std::shared_ptr<Mapping>> mappings = mappings_;
  mappings.push_back(std::move(mapping));
  return commit(std::move(mappings));
}

Result<> MemoryTable::remove(const MemoryRegion& region) {
  std::vector<std::shared_ptr<Mapping>> mappings = mappings_;
  const auto found = std::ranges::find_if(mappings, [&region](const std::shared_ptr<Mapping>& mapping) {
    const Mapping::Identity& identity = mapping->identity();
    return identity.guest.value == region.guest_address && identity.user.value == region.user_address &&
           identity.bytes == region.bytes;
  });
  if (found == mappings.end()) {
    return fail(fmt::format("no memory slot has guest address {:#x}, user address {:#x} and {:#x} bytes",
                            region.guest_address, region.user_address, region.bytes));
  }
  mappings.erase(found);
  return commit(std::move(mappings));
}

void MemoryTable::clear() {
  mappings_.clear();
  map_ = std::make_shared<const RegionMap>();
}

}  // namespace ringway::vhost_user
