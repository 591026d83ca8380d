// The memory that a driver shares with the back-end: what the RAM of a guest is to a real one.
//
// One or several regions, each a memfd of its own (sealed against shrinking, so that a back-end needn't fear SIGBUS). Guest
// addresses are chosen here: region i starts at a place of its own with a hole before it, so that a back-end that takes
// guest addresses for offsets fails at once. Blocks are handed out from the front of a region and never given back: a driver
// allocates once, at its start.
//
// Owner: one thread while allocating; the memory itself belongs to whoever was given the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "guest/address.hpp"

namespace ringway {

enum class MemoryPages : std::uint8_t {
  small,        // 4 KiB
  transparent,  // asks for huge pages (madvise); whether they come depends on
                // /sys/kernel/mm/transparent_hugepage/shmem_enabled
  huge,         // 2 MiB pages of hugetlbfs; an error if /proc/sys/vm/nr_hugepages doesn't provide them
};

struct SharedBlock {
  std::byte* host = nullptr;
  GuestAddress guest;
  std::size_t bytes = 0;
};

class SharedMemory {
 public:
  struct Region {
    UniqueFd fd;
    std::byte* host = nullptr;
    GuestAddress guest;
    std::size_t bytes = 0;
    std::size_t used = 0;
  };

  // `region_bytes` has one entry per region; each is rounded up to the page size.
  static Result<SharedMemory> create(std::span<const std::size_t> region_bytes, MemoryPages pages);
  SharedMemory(SharedMemory&&) noexcept = default;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  // Zeroed memory of region `region`. `alignment` is a power of two up to the page size. Fails when the region is full.
  [[nodiscard]] Result<SharedBlock> allocate(std::size_t bytes, std::size_t alignment, std::size_t region = 0);

  [[nodiscard]] std::span<const Region> regions() const { return regions_; }

 private:
  SharedMemory() = default;
  void unmap() noexcept;

  std::vector<Region> regions_;
};

}  // namespace ringway
