#include "driver/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.hpp"

namespace ringway {
namespace {

constexpr std::size_t kSmallPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20U;
// Above 4 GiB, where a PC's guest has its high memory, and far apart, so that regions never touch by chance.
constexpr std::uint64_t kFirstGuestAddress = std::uint64_t{1} << 32U;
constexpr std::uint64_t kHole = std::uint64_t{1} << 30U;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

Result<SharedMemory::Region> map_region(std::size_t wanted, GuestAddress guest, MemoryPages pages) {
  const std::size_t page = pages == MemoryPages::small ? kSmallPage : kHugePage;
  SharedMemory::Region region;
  region.bytes = round_up(wanted == 0 ? 1 : wanted, page);
  region.guest = guest;
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (pages == MemoryPages::huge ? MFD_HUGETLB : 0U);
  region.fd = UniqueFd(memfd_create("ringway-driver", flags));
  if (!region.fd) {
    return fail_errno(errno, "cannot create memory to share with the back-end (memfd_create)");
  }
  if (ftruncate(region.fd.get(), static_cast<off_t>(region.bytes)) != 0) {
    return fail_errno(errno, fmt::format("cannot size the shared memory to {} bytes", region.bytes));
  }
  if (fcntl(region.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    return fail_errno(errno, "cannot seal the shared memory against shrinking");
  }
  void* mapped = mmap(nullptr, region.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region.fd.get(), 0);
  if (mapped == MAP_FAILED) {
    const int code = errno;
    return fail_errno(code,
                      pages == MemoryPages::huge
                          ? fmt::format("cannot map {} bytes in huge pages; raise /proc/sys/vm/nr_hugepages", region.bytes)
                          : fmt::format("cannot map {} bytes of shared memory", region.bytes));
  }
  region.host = static_cast<std::byte*>(mapped);
  if (pages == MemoryPages::transparent) {
    // Only a wish: a kernel that refuses gives small pages, which are right too.
    static_cast<void>(madvise(mapped, region.bytes, MADV_HUGEPAGE));
  }
  return region;
}

}  // namespace

Result<SharedMemory> SharedMemory::create(std::span<const std::size_t> region_bytes, MemoryPages pages) {
  SharedMemory memory;
  std::uint64_t guest = kFirstGuestAddress;
  for (const std::size_t bytes : region_bytes) {
    RW_TRY_ASSIGN(auto region, map_region(bytes, GuestAddress{guest}, pages));
    guest = round_up(guest + region.bytes, kHole) + kHole;
    memory.regions_.push_back(std::move(region));
  }
  return memory;
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    unmap();
    regions_ = std::move(other.regions_);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  unmap();
}

void SharedMemory::unmap() noexcept {
  for (Region& region : regions_) {
    munmap(region.host, region.bytes);
  }
  regions_.clear();
}

Result<SharedBlock> SharedMemory::allocate(std::size_t bytes, std::size_t alignment, std::size_t region_index) {
  RW_CHECK(alignment != 0 && (alignment & (alignment - 1)) == 0 && alignment <= kSmallPage);
  if (region_index >= regions_.size()) {
    return fail(fmt::format("no shared memory region {}; there are {}", region_index, regions_.size()));
  }
  Region& region = regions_[region_index];
  const std::size_t start = round_up(region.used, alignment);
  if (start > region.bytes || bytes > region.bytes - start) {
    return fail(
        fmt::format("shared memory region {} of {} bytes has no room for {} more", region_index, region.bytes, bytes));
  }
  region.used = start + bytes;
  return SharedBlock{region.host + start, GuestAddress{region.guest.value + start}, bytes};
}

}  // namespace ringway
