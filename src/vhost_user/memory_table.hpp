// The guest's memory as the front-end has described it so far: by one table (SET_MEM_TABLE) or slot by slot (ADD_MEM_REG,
// REM_MEM_REG), up to 509 regions.
//
// Owner: the control thread. Each change makes a new immutable RegionMap; a region that is the same as before keeps its
// Mapping, so that rings on it need not be drained. A change that fails leaves the table as it was.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "guest/region_map.hpp"
#include "vhost_user/messages.hpp"

namespace ringway::vhost_user {

class MemoryTable {
 public:
  MemoryTable() : map_(std::make_shared<const RegionMap>()) {}

  // Replaces the whole table. REQUIRES: as many fds as regions.
  [[nodiscard]] Result<> set(std::span<const MemoryRegion> regions, std::span<const ForeignFd> fds);
  [[nodiscard]] Result<> add(const MemoryRegion& region, const ForeignFd& fd);
  // The region is found by guest address, user address and size, as the specification wants it; its offset is ignored.
  [[nodiscard]] Result<> remove(const MemoryRegion& region);
  void clear();

  // Never null.
  [[nodiscard]] const std::shared_ptr<const RegionMap>& map() const { return map_; }
  [[nodiscard]] std::size_t slots() const { return mappings_.size(); }

 private:
  [[nodiscard]] Result<std::shared_ptr<Mapping>> map_region(const MemoryRegion& region, const ForeignFd& fd) const;
  [[nodiscard]] Result<> commit(std::vector<std::shared_ptr<Mapping>> mappings);

  std::vector<std::shared_ptr<Mapping>> mappings_;
  std::shared_ptr<const RegionMap> map_;
};

}  // namespace ringway::vhost_user
