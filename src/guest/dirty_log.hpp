// The dirty log of live migration (vhost-user: SET_LOG_BASE, VHOST_F_LOG_ALL): a bitmap in memory shared with the
// front-end, one bit per 4 KiB page of guest-physical memory.
//
// Rule: the bit is set by an atomic OR after the data was written and before the used index that tells the guest about it is
// published: a page that the guest knows to be written is in the log. Any worker may mark; the object is shared, replaced as
// a whole.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.hpp"
#include "guest/address.hpp"
#include "guest/region_map.hpp"

namespace ringway {

class DirtyLog {
 public:
  static constexpr std::uint64_t kPageBytes = 4096;

  // Maps `bytes` of `fd` at `offset`. Errors: those of Mapping::create().
  [[nodiscard]] static Result<std::shared_ptr<DirtyLog>> create(int fd, std::uint64_t bytes, std::uint64_t offset,
                                                                std::shared_ptr<ForeignHoldings> holdings = nullptr);
  DirtyLog(const DirtyLog&) = delete;
  DirtyLog& operator=(const DirtyLog&) = delete;
  ~DirtyLog();

  // Marks every page that [address, address + bytes) touches. Pages beyond the bitmap are ignored and counted.
  void mark(GuestAddress address, std::uint64_t bytes) noexcept;
  // The same for host memory that `map` translated.
  void mark(const RegionMap& map, const std::byte* host, std::uint64_t bytes) noexcept;

  // Pages that were to be marked but have no bit, or host memory that isn't of the map given.
  [[nodiscard]] std::uint64_t outside() const noexcept;
  // True once the file of the bitmap was found truncated: its bits go nowhere, the migration must fail.
  [[nodiscard]] bool poisoned() const noexcept;
  // The bitmap, for tests that play the front-end in the same process.
  [[nodiscard]] const Mapping& mapping() const { return *mapping_; }

 private:
  DirtyLog() = default;

  // Marks pages first to last, both included, which have bits.
  void set_pages(std::uint64_t first, std::uint64_t last) noexcept;

  std::shared_ptr<Mapping> mapping_;
  std::uint64_t pages_ = 0;
  std::atomic<std::uint64_t> outside_{0};
};

}  // namespace ringway
