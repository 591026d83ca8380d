// A disk in memory: sparse, gone at the end of the process.
//
// All channels copy to and from one shared mapping, on the worker itself; nothing can block. Concurrent accesses that
// overlap are the guest's own business, as on any disk: bytes of either may be seen.
#pragma once

#include <memory>

#include "backend/blk/blk_store.hpp"
#include "base/result.hpp"

namespace ringway {

struct RamStoreOptions {
  std::uint64_t capacity_bytes = 0;
  std::uint32_t block_bytes = 512;
  bool read_only = false;
};

// REQUIRES: capacity_bytes is a multiple of block_bytes and not 0. Errors: no address space for that size.
[[nodiscard]] Result<std::unique_ptr<BlkStore>> make_ram_store(const RamStoreOptions& options);

}  // namespace ringway
