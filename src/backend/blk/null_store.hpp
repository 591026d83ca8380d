// A disk that does nothing: every request succeeds at once. For measuring everything but a store.
//
// Reads leave the guest's buffer as it was (as other null block devices do by default), so it is no disk to keep anything
// on, and what a guest reads is what its buffer held before.
#pragma once

#include <memory>

#include "backend/blk/blk_store.hpp"

namespace ringway {

struct NullStoreOptions {
  std::uint64_t capacity_bytes = 0;
  std::uint32_t block_bytes = 512;
  bool read_only = false;
};

// REQUIRES: capacity_bytes is a multiple of block_bytes and not 0.
[[nodiscard]] std::unique_ptr<BlkStore> make_null_store(const NullStoreOptions& options);

}  // namespace ringway
