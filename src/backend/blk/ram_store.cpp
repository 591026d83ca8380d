// Theory of operation.
//
// The data is a memfd, mapped shared: pages come into being when they are written, and punching a hole gives them back.
//
// Growing while workers copy: the file gets longer and is mapped once more as a whole; the new address replaces the old in
// one atomic store. Both mappings show the same pages, so a worker that still uses the old one is right; old mappings are
// kept until the store ends (they cost address space only). Shrinking never makes the file shorter, since that would be a
// SIGBUS for a worker in the middle of a copy: the tail is punched instead, and reads as zeroes should the disk grow again.
//
// The worker copies itself, and a guest may ask for gigabytes at once. So a request longer than a slice waits in a list, and
// a timer that is always due does one slice of the first one in each turn of the loop; in between the worker serves its
// other queues, and short requests of this disk too.
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

#include "backend/blk/fifo.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/unique_fd.hpp"
#include "guest/access.hpp"
#include "ring/spec.hpp"

namespace ringway {
namespace {

// The longest range of one DISCARD or WRITE ZEROES. The worker does it itself, at some 5 GB/s.
constexpr std::uint64_t kRangeBytesMax = 8ULL << 20U;

struct Memory {
  UniqueFd fd;
  std::atomic<std::byte*> data{nullptr};
};

class RamChannel final : public BlkChannel, private TimerHandler {
 public:
  RamChannel(const Memory& memory, Loop& loop, BlkChannelCounters& counters)
      : BlkChannel(counters), memory_(memory), loop_(loop) {}
  RamChannel(const RamChannel&) = delete;
  RamChannel& operator=(const RamChannel&) = delete;
  ~RamChannel() override {
    RW_CHECK(in_flight_ == 0);
    loop_.cancel_timer(*this);
  }

  void submit(BlkOperation& operation) noexcept override {
    const std::uint64_t bytes = bytes_of(operation.request);
    if (RW_UNLIKELY(bytes > limits::kCopySliceBytes)) {
      ++in_flight_;
      sliced_.push(operation);
      loop_.set_timer(*this, Instant{});
      return;
    }
    Place place;
    copied_ += bytes;
    complete(operation, execute(operation.request, place, bytes));
  }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return in_flight_; }

 private:
  // How far a request has come.
  struct Place {
    std::size_t part = 0;    // its segment, or its range,
    std::uint64_t skip = 0;  // what is done of that,
    std::uint64_t done = 0;  // and of the whole
  };

  // That the worker will touch.
  static std::uint64_t bytes_of(const BlkRequest& request) noexcept {
    switch (request.opcode) {
      case BlkOpcode::in:
      case BlkOpcode::out:
        return request.bytes;
      case BlkOpcode::flush:
      case BlkOpcode::get_id:
        return 0;
      case BlkOpcode::discard:
      case BlkOpcode::write_zeroes:
      case BlkOpcode::secure_erase:
        break;
    }
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < request.range_count; ++i) {
      bytes += request.ranges[i].bytes;
    }
    return bytes;
  }

  void on_timer(Instant /*now*/) noexcept override {
    BlkOperation* const operation = sliced_.front();
    if (operation == nullptr) {
      return;
    }
    const std::uint64_t bytes = bytes_of(operation->request);
    const std::uint64_t slice = std::min(bytes - place_.done, limits::kCopySliceBytes);
    const std::uint8_t status = execute(operation->request, place_, slice);
    if (place_.done == bytes) {
      place_ = {};
      sliced_.pop();
      --in_flight_;
      complete(*operation, status);
    }
    if (!sliced_.empty()) {
      loop_.set_timer(*this, Instant{});
    }
  }

  // The next `bytes` of the request. The status is good for when they were the last ones.
  std::uint8_t execute(const BlkRequest& request, Place& place, std::uint64_t bytes) noexcept {
    // Acquire: pairs with the release store in RamStore::map(), whose mapping must be there before its address is used.
    std::byte* const data = memory_.data.load(std::memory_order_acquire);
    switch (request.opcode) {
      case BlkOpcode::in: {
        const std::byte* from = data + request.offset + place.done;
        walk(request.data, place, bytes, [&from](std::byte* segment, std::size_t piece) noexcept {
          guest::copy(segment, from, piece);
          from += piece;
        });
        return spec::kBlkStatusOk;
      }
      case BlkOpcode::out: {
        std::byte* to = data + request.offset + place.done;
        walk(request.data, place, bytes, [&to](const std::byte* segment, std::size_t piece) noexcept {
          guest::copy(to, segment, piece);
          to += piece;
        });
        return spec::kBlkStatusOk;
      }
      case BlkOpcode::flush:
        return spec::kBlkStatusOk;
      case BlkOpcode::get_id:
        return spec::kBlkStatusUnsupported;
      case BlkOpcode::discard:
      case BlkOpcode::write_zeroes:
      case BlkOpcode::secure_erase:
        clear_ranges(request, place, bytes, data);
        return spec::kBlkStatusOk;
    }
    return spec::kBlkStatusUnsupported;
  }

  // Calls copy(address, bytes) for the next `bytes` of the segments.
  template <typename Copy>
  static void walk(std::span<const iovec> segments, Place& place, std::uint64_t bytes, Copy copy) noexcept {
    while (bytes > 0) {
      const iovec& segment = segments[place.part];
      const std::uint64_t piece = std::min<std::uint64_t>(segment.iov_len - place.skip, bytes);
      copy(static_cast<std::byte*>(segment.iov_base) + place.skip, piece);
      advance(place, piece, segment.iov_len);
      bytes -= piece;
    }
  }
  static void advance(Place& place, std::uint64_t bytes, std::uint64_t part_bytes) noexcept {
    place.done += bytes;
    place.skip += bytes;
    if (place.skip == part_bytes) {
      ++place.part;
      place.skip = 0;
    }
  }

  void clear_ranges(const BlkRequest& request, Place& place, std::uint64_t bytes, std::byte* data) noexcept {
    while (bytes > 0) {
      const BlkRequestRange& range = request.ranges[place.part];
      const std::uint64_t piece = std::min(range.bytes - place.skip, bytes);
      if (piece > 0) {
        clear(request, range, range.offset + place.skip, piece, data);
      }
      advance(place, piece, range.bytes);
      bytes -= piece;
    }
  }

  void clear(const BlkRequest& request, const BlkRequestRange& range, std::uint64_t offset, std::uint64_t bytes,
             std::byte* data) noexcept {
    const bool keep_pages = request.opcode == BlkOpcode::write_zeroes && !range.unmap;
    // Erasing overwrites before it frees: a freed page keeps its bytes until somebody else gets it.
    if (keep_pages || request.opcode == BlkOpcode::secure_erase) {
      std::memset(data + offset, 0, bytes);
    }
    if (!keep_pages && ::fallocate(memory_.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                                   static_cast<off_t>(bytes)) != 0) {
      counters_.fallbacks.add();
      std::memset(data + offset, 0, bytes);
    }
  }

  const Memory& memory_;
  Loop& loop_;
  std::uint32_t in_flight_ = 0;
  Fifo<BlkOperation> sliced_;
  Place place_;  // of the first of them
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
  [[nodiscard]] Result<std::unique_ptr<BlkChannel>> open_channel(Loop& loop, BlkChannelCounters& counters) override {
    return std::make_unique<RamChannel>(memory_, loop, counters);
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
