// Theory of operation.
//
// The data is a memfd, mapped shared: pages come into being when they are written, and punching a hole gives them back.
//
// Growing while workers copy: the file gets longer and is mapped once more as a whole; the new address replaces the old in
// one atomic store. Both mappings show the same pages, so a worker that still uses the old one is right; old mappings are
// kept until the store ends (they cost address space only). Shrinking never makes the file shorter, since that would be a
// SIGBUS for a worker in the middle of a copy: the tail is punched instead, and reads as zeroes should the disk grow again.
#include "backend/blk/ram_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.hpp"
#include "base/unique_fd.hpp"
#include "guest/access.hpp"
#include "ring/spec.hpp"

namespace ringway {
namespace {

// The longest range of one DISCARD or WRITE ZEROES: the worker does it itself, at some 5 GB/s, so this bounds what a guest
// can hold up its neighbours by.
constexpr std::uint64_t kRangeBytesMax = 8ULL << 20U;

struct Memory {
  UniqueFd fd;
  std::atomic<std::byte*> data{nullptr};
};

class RamChannel final : public BlkChannel {
 public:
  explicit RamChannel(const Memory& memory) : memory_(memory) {}

  void submit(BlkOperation& operation) noexcept override { complete(operation, execute(operation.request)); }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return 0; }
  void cancel_all() noexcept override {}

 private:
  std::uint8_t execute(const BlkRequest& request) noexcept {
    // Acquire: pairs with the release store in RamStore::map(), whose mapping must be there before its address is used.
    std::byte* const data = memory_.data.load(std::memory_order_acquire);
    switch (request.opcode) {
      case BlkOpcode::in: {
        const std::byte* from = data + request.offset;
        for (const iovec& segment : request.data) {
          guest::copy(static_cast<std::byte*>(segment.iov_base), from, segment.iov_len);
          from += segment.iov_len;
        }
        return spec::kBlkStatusOk;
      }
      case BlkOpcode::out: {
        std::byte* to = data + request.offset;
        for (const iovec& segment : request.data) {
          guest::copy(to, static_cast<const std::byte*>(segment.iov_base), segment.iov_len);
          to += segment.iov_len;
        }
        return spec::kBlkStatusOk;
      }
      case BlkOpcode::flush:
        return spec::kBlkStatusOk;
      case BlkOpcode::get_id:
        return spec::kBlkStatusUnsupported;
      case BlkOpcode::discard:
      case BlkOpcode::write_zeroes:
      case BlkOpcode::secure_erase:
        return clear_ranges(request, data);
    }
    return spec::kBlkStatusUnsupported;
  }

  std::uint8_t clear_ranges(const BlkRequest& request, std::byte* data) noexcept {
    for (std::size_t i = 0; i < request.range_count; ++i) {
      const BlkRequestRange& range = request.ranges[i];
      if (range.bytes == 0) {
        continue;
      }
      const bool keep_pages = request.opcode == BlkOpcode::write_zeroes && !range.unmap;
      // Erasing overwrites before it frees: a freed page keeps its bytes until somebody else gets it.
      if (keep_pages || request.opcode == BlkOpcode::secure_erase) {
        std::memset(data + range.offset, 0, range.bytes);
      }
      if (!keep_pages && ::fallocate(memory_.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                     static_cast<off_t>(range.offset), static_cast<off_t>(range.bytes)) != 0) {
        counters_.fallbacks.add();
        std::memset(data + range.offset, 0, range.bytes);
      }
    }
    return spec::kBlkStatusOk;
  }

  const Memory& memory_;
};

class RamStore final : public BlkStore {
 public:
  explicit RamStore(const RamStoreOptions& options) {
    info_.engine = "ram";
    info_.block_bytes = options.block_bytes;
    info_.physical_block_bytes = std::max<std::uint32_t>(options.block_bytes, kPageBytes);
    info_.read_only = options.read_only;
    if (!options.read_only) {
      info_.discard_granularity_bytes = std::max<std::uint64_t>(options.block_bytes, kPageBytes);
      info_.discard_bytes_max = kRangeBytesMax;
      info_.write_zeroes = info_.secure_erase = true;
    }
  }
  RamStore(const RamStore&) = delete;
  RamStore& operator=(const RamStore&) = delete;
  ~RamStore() override {
    for (const auto& [address, bytes] : mappings_) {
      ::munmap(address, bytes);
    }
  }

  [[nodiscard]] Result<> create(std::uint64_t bytes) {
    memory_.fd.reset(::memfd_create("ringway-ram-disk", MFD_CLOEXEC));
    if (!memory_.fd) {
      return fail_errno(errno, "memfd_create for a RAM disk");
    }
    return map(bytes);
  }

  [[nodiscard]] const BlkStoreInfo& info() const noexcept override { return info_; }
  [[nodiscard]] Result<> refresh() override { return {}; }
  [[nodiscard]] Result<> resize(std::uint64_t bytes) override {
    if (bytes == 0 || bytes % info_.block_bytes != 0) {
      return fail(fmt::format("can't resize a RAM disk to {} bytes: give a multiple of its block size, {}", bytes,
                              info_.block_bytes));
    }
    if (bytes > mapped_bytes_) {
      RW_TRY(map(bytes));
    }
    if (bytes < info_.capacity_bytes &&
        ::fallocate(memory_.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(bytes),
                    static_cast<off_t>(info_.capacity_bytes - bytes)) != 0) {
      return fail_errno(errno, "free the tail of a RAM disk");
    }
    info_.capacity_bytes = bytes;
    return {};
  }
  [[nodiscard]] Result<std::unique_ptr<BlkChannel>> open_channel(Loop& /*loop*/) override {
    return std::make_unique<RamChannel>(memory_);
  }
  [[nodiscard]] std::string default_serial() const override { return {}; }  // nothing that lasts

 private:
  static constexpr std::uint32_t kPageBytes = 4096;

  [[nodiscard]] Result<> map(std::uint64_t bytes) {
    if (::ftruncate(memory_.fd.get(), static_cast<off_t>(bytes)) != 0) {
      return fail_errno(errno, fmt::format("give a RAM disk {} bytes", bytes));
    }
    void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory_.fd.get(), 0);
    if (address == MAP_FAILED) {
      return fail_errno(errno, fmt::format("map {} bytes for a RAM disk", bytes));
    }
    mappings_.emplace_back(address, bytes);
    mapped_bytes_ = info_.capacity_bytes = bytes;
    // Release: pairs with the acquire load in RamChannel::execute().
    memory_.data.store(static_cast<std::byte*>(address), std::memory_order_release);
    return {};
  }

  BlkStoreInfo info_;
  Memory memory_;
  std::uint64_t mapped_bytes_ = 0;
  std::vector<std::pair<void*, std::size_t>> mappings_;
};

}  // namespace

Result<std::unique_ptr<BlkStore>> make_ram_store(const RamStoreOptions& options) {
  RW_CHECK(options.capacity_bytes > 0 && options.capacity_bytes % options.block_bytes == 0);
  auto store = std::make_unique<RamStore>(options);
  RW_TRY(store->create(options.capacity_bytes));
  return store;
}

}  // namespace ringway
