// Theory of operation
//
// What the front-end says about a region (size, offset, fd) is hostile. Before anything is mapped:
//  - no sum may overflow: guest address + size, front-end address + size, file offset + size;
//  - the fd must be a regular file (memfd, POSIX shared memory, hugetlbfs and disk files are; a pipe, a device or a
//    socket would have no size to check), and long enough *now*. It may shrink later: that is guest/sigbus.cpp's part;
//  - it must be memory, or lie on a local file system that is mounted where we see it. On FUSE a page fault waits for
//    another process, which may be the attacker's, for as long as that process likes, and so would every device of the
//    worker that took it; a network's server is no better. Even fstat and fstatfs ask that process. So the kind of file is
//    found out first, by calls that never ask: F_GET_SEALS answers for tmpfs and hugetlbfs alone, and for the rest the
//    number of the mount (statx(), from Linux 5.8 on; before it such files are refused) leads to its line in mountinfo. A
//    mount that we don't see is refused: whoever has a user namespace can make one.
//
// mmap wants the offset to be a multiple of the page, and hugetlbfs offset and length to be multiples of the huge page. A
// region need not be: QEMU's region above the 4 GiB hole starts in the middle of the file. So the mapping covers the pages
// around the region, and data() points into it. The bytes around are never handed out: RegionMap knows data() and bytes()
// only.
//
// MAP_NORESERVE: the front-end has reserved its huge pages, a second reservation would fail or halve the pool.
// MADV_DONTDUMP: a core dump of ours must not hold (or be as large as) every guest's memory.
// The table of guest/sigbus.cpp knows the mapping before anybody can touch it, and forgets it before munmap, since the
// kernel may give the address to the next mmap at once.

#include "guest/mapping.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "guest/sigbus.hpp"

namespace ringway {
namespace {

// Types of file systems, or beginnings of them, whose answer depends on another process or machine.
constexpr std::array<std::string_view, 7> kRemoteTypes = {"fuse", "virtiofs", "nfs", "cifs", "smb", "9p", "ceph"};

std::size_t system_page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// True if the last byte of [begin, begin + bytes) still has an address. REQUIRES: bytes > 0.
bool fits(std::uint64_t begin, std::uint64_t bytes) {
  return bytes - 1 <= std::numeric_limits<std::uint64_t>::max() - begin;
}

const char* name_of(Mapping::Purpose purpose) {
  switch (purpose) {
    case Mapping::Purpose::guest_memory:
      return "guest memory";
    case Mapping::Purpose::dirty_log:
      return "the dirty log";
    case Mapping::Purpose::inflight_region:
      return "the in-flight region";
  }
  return "?";
}

// Without an article.
std::string describe(Mapping::Purpose purpose, const Mapping::Identity& region) {
  switch (purpose) {
    case Mapping::Purpose::guest_memory:
      return fmt::format("guest memory region at {:#x} of {} bytes", region.guest.value, region.bytes);
    case Mapping::Purpose::dirty_log:
      return fmt::format("dirty log of {} bytes", region.bytes);
    case Mapping::Purpose::inflight_region:
      return fmt::format("in-flight region of {} bytes", region.bytes);
  }
  return "?";
}

Result<> check_range(Mapping::Purpose purpose, const Mapping::Identity& region) {
  if (region.bytes == 0) {
    return fail(fmt::format("{} is empty", describe(purpose, region)));
  }
  if (!fits(region.guest.value, region.bytes) || !fits(region.user.value, region.bytes)) {
    return fail(fmt::format("{} wraps around the address space (front-end address {:#x})", describe(purpose, region),
                            region.user.value));
  }
  return {};
}

// The type of the file system of mount number `mount`; empty if that isn't in our mount namespace.
std::string type_of_mount(std::uint64_t mount) {
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::uint64_t number = 0;
    const std::size_t separator = line.find(" - ");
    if (fields >> number && number == mount && separator != std::string::npos) {
      const std::size_t begin = separator + 3;
      return line.substr(begin, line.find(' ', begin) - begin);
    }
  }
  return "";
}

// Refuses files whose page faults could wait for somebody. Asks the kernel only, never the file system.
Result<> check_file_system(Mapping::Purpose purpose, int fd) {
  if (::fcntl(fd, F_GET_SEALS) >= 0) {
    return {};
  }
  if (errno != EINVAL) {
    return fail_errno(errno, fmt::format("cannot look at the file of {}, descriptor {}", name_of(purpose), fd));
  }
  // What the kernel knows, without asking a server. Not from fdinfo: to describe a descriptor there the kernel takes locks
  // that its owner may keep (epoll), and lists every record lock on the file.
  struct statx known{};
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_MNT_ID, &known) != 0) {
    return fail_errno(errno, fmt::format("cannot look at the file of {}, descriptor {}", name_of(purpose), fd));
  }
  if (!S_ISREG(known.stx_mode)) {
    return fail(fmt::format("{} is not on a regular file; use shared memory, a memfd or hugetlbfs", name_of(purpose)));
  }
  if ((known.stx_mask & STATX_MNT_ID) == 0) {
    return fail(
        fmt::format("{} is not shared memory, and this kernel (before Linux 5.8) doesn't tell which file system it is on; "
                    "use shared memory, a memfd or hugetlbfs",
                    name_of(purpose)));
  }
  const std::string type = type_of_mount(known.stx_mnt_id);
  if (type.empty()) {
    return fail(
        fmt::format("{} is neither shared memory nor a file on a file system that is mounted here; "
                    "use shared memory, a memfd or hugetlbfs",
                    name_of(purpose)));
  }
  for (const std::string_view remote : kRemoteTypes) {
    if (type.starts_with(remote)) {
      return fail(
          fmt::format("{} is on a file system of type {}, which could stall us; "
                      "use shared memory, a memfd or hugetlbfs",
                      name_of(purpose), type));
    }
  }
  return {};
}

Result<struct stat> stat_of(Mapping::Purpose purpose, int fd) {
  RW_TRY(check_file_system(purpose, fd));
  struct stat status{};
  if (::fstat(fd, &status) != 0) {
    return fail_errno(errno, fmt::format("cannot look at the file of {}, descriptor {}", name_of(purpose), fd));
  }
  return status;
}

// Checks that the file has all of `region`.
Result<> check_file(const struct stat& status, Mapping::Purpose purpose, const Mapping::Identity& region) {
  if (!S_ISREG(status.st_mode)) {
    return fail(
        fmt::format("{} is not on a regular file; use shared memory, a memfd or hugetlbfs", describe(purpose, region)));
  }
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  if (region.file_offset > file_bytes || region.bytes > file_bytes - region.file_offset) {
    return fail(fmt::format("{} starts at offset {} of a file that has only {} bytes", describe(purpose, region),
                            region.file_offset, file_bytes));
  }
  return {};
}

// The page size that mmap wants for the file.
Result<std::size_t> page_bytes_of(int fd, Mapping::Purpose purpose, const Mapping::Identity& region) {
  struct statfs file_system{};
  if (::fstatfs(fd, &file_system) != 0) {
    return fail_errno(errno, fmt::format("cannot look at the file system of the {}", describe(purpose, region)));
  }
  return file_system.f_type == HUGETLBFS_MAGIC ? static_cast<std::size_t>(file_system.f_bsize) : system_page_bytes();
}

// Rounds up to a multiple of `page`, a power of two. False if that is no length that mmap could take.
bool round_up(std::uint64_t bytes, std::size_t page, std::size_t& out) {
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - page) {
    return false;
  }
  out = static_cast<std::size_t>((bytes + page - 1) & ~(std::uint64_t{page} - 1));
  return true;
}

// Address space that all mappings of the process take. Relaxed: nothing else is ordered by it.
std::atomic<std::uint64_t> mapped_bytes{0};

// Address space that the process has now. 0 if that can't be told.
std::uint64_t size_of_process() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  statm >> pages;
  return pages * system_page_bytes();
}

// What guests may have of it. A limit that was set for the process (ulimit -v) leaves a quarter for ourselves: at least what
// we have when the first guest comes, the stacks of two threads that let go for each device (base/foreign.hpp), and some
// heap for what devices and sessions need later.
std::uint64_t possible_bytes() {
  constexpr std::uint64_t kForThreads = limits::kDevicesMax * 2 * (std::uint64_t{256 + 4} << 10U);
  constexpr std::uint64_t kForHeap = std::uint64_t{128} << 20U;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return limits::kMappedBytesMax;
  }
  const std::uint64_t ours = std::max<std::uint64_t>(limit.rlim_cur / 4, size_of_process() + kForThreads + kForHeap);
  return std::min<std::uint64_t>(limit.rlim_cur - std::min<std::uint64_t>(ours, limit.rlim_cur), limits::kMappedBytesMax);
}

std::uint64_t mappable_bytes() {
  static const std::uint64_t bytes = possible_bytes();
  return bytes;
}

// One front-end may have half of what the others leave. Called on the control thread alone, so nothing comes in between;
// what is being let go only makes room.
bool reserve_address_space(std::uint64_t bytes, ForeignHoldings* holdings) {
  const std::uint64_t all = mapped_bytes.load(std::memory_order_relaxed);
  const std::uint64_t own = holdings == nullptr ? 0 : std::min(holdings->mapped_bytes(), all);
  const std::uint64_t possible = mappable_bytes();
  const std::uint64_t left = possible - std::min(all - own, possible);
  const std::uint64_t share = holdings == nullptr ? left : left / 2;
  if (bytes > share || own > share - bytes) {
    return false;
  }
  mapped_bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (holdings != nullptr) {
    holdings->count_mapped(bytes);
  }
  return true;
}

void release_address_space(std::uint64_t bytes, ForeignHoldings* holdings) {
  mapped_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  if (holdings != nullptr) {
    holdings->discount_mapped(bytes);
  }
}

// In pieces: each takes the lock that mmap() and the page faults of the whole process need, and taking a terabyte's pages
// out of the page tables is minutes of work.
constexpr std::size_t kUnmapPieceBytes = std::size_t{64} << 20U;

void unmap(void* address, std::size_t bytes, std::size_t page_bytes, ForeignHoldings* holdings) {
  const std::size_t piece = std::max(kUnmapPieceBytes, page_bytes);
  for (std::size_t done = 0; done < bytes; done += piece) {
    // Only a shorter munmap() depends on it.
    static_cast<void>(::madvise(static_cast<std::byte*>(address) + done, std::min(piece, bytes - done), MADV_DONTNEED));
  }
  if (::munmap(address, bytes) == 0) {
    release_address_space(bytes, holdings);
    return;
  }
  // Zeroes that the kernel merged with those of a neighbour must be split off, which takes one more kernel mapping than
  // vm.max_map_count may allow. Then the address range stays, but not the memory.
  RW_CHECK(errno == ENOMEM);
}

}  // namespace

// Maps `length` bytes (whole pages) and enters them into the table; the region starts `skip` bytes behind.
Result<> Mapping::map(int fd, int flags, std::uint64_t aligned_offset, std::size_t length, std::size_t skip,
                      std::size_t page_bytes) {
  RW_TRY(sigbus::install());
  if (!reserve_address_space(length, holdings_.get())) {
    const std::uint64_t all = mappable_bytes();
    return fail(
        fmt::format("cannot map the {}: a guest may have half of the {} MiB of address space that other guests leave "
                    "of {} MiB; is a limit set (ulimit -v)?",
                    describe(purpose_, identity_),
                    (all - std::min(mapped_bytes.load(std::memory_order_relaxed), all)) >> 20U, all >> 20U));
  }
  page_bytes_ = page_bytes;
  void* address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | flags, fd,
                         static_cast<off_t>(aligned_offset));
  if (address == MAP_FAILED) {
    const int error = errno;
    release_address_space(length, holdings_.get());
    return fail_errno(error,
                      fmt::format("cannot map the {}{}", describe(purpose_, identity_),
                                  error == ENOMEM ? " (is vm.max_map_count or the address space limit too low?)" : ""));
  }
  mmap_address_ = address;
  mmap_bytes_ = length;
  static_cast<void>(::madvise(address, length, MADV_DONTDUMP));  // only a smaller core dump depends on it
  sigbus_slot_ = sigbus::add(address, length, page_bytes);
  if (sigbus_slot_ < 0) {
    return fail(fmt::format("cannot map the {}: too many regions are mapped; attach fewer devices to this process",
                            describe(purpose_, identity_)));
  }
  data_ = static_cast<std::byte*>(address) + skip;
  return {};
}

Result<std::shared_ptr<Mapping>> Mapping::create(int fd, GuestAddress guest, UserAddress user, std::uint64_t bytes,
                                                 std::uint64_t file_offset, std::shared_ptr<ForeignHoldings> holdings) {
  return create(Purpose::guest_memory, fd, {.file_offset = file_offset, .bytes = bytes, .guest = guest, .user = user},
                std::move(holdings));
}

Result<std::shared_ptr<Mapping>> Mapping::create_for(Purpose purpose, int fd, std::uint64_t bytes, std::uint64_t file_offset,
                                                     std::shared_ptr<ForeignHoldings> holdings) {
  return create(purpose, fd, {.file_offset = file_offset, .bytes = bytes, .guest = {}, .user = {}}, std::move(holdings));
}

Result<std::shared_ptr<Mapping>> Mapping::create(Purpose purpose, int fd, const Identity& wanted,
                                                 std::shared_ptr<ForeignHoldings> holdings) {
  RW_TRY(check_range(purpose, wanted));
  RW_TRY_ASSIGN(const struct stat status, stat_of(purpose, fd));
  RW_TRY(check_file(status, purpose, wanted));
  RW_TRY_ASSIGN(const std::size_t page_bytes, page_bytes_of(fd, purpose, wanted));

  const std::uint64_t skip = wanted.file_offset & (std::uint64_t{page_bytes} - 1);
  std::size_t length = 0;
  // The sum can't overflow: it is at most file offset + bytes, which is at most the file's size.
  if (!round_up(skip + wanted.bytes, page_bytes, length)) {
    return fail(fmt::format("{} is too large to map", describe(purpose, wanted)));
  }
  std::shared_ptr<Mapping> mapping(new Mapping);
  mapping->purpose_ = purpose;
  mapping->identity_ = wanted;
  mapping->identity_.device = status.st_dev;
  mapping->identity_.inode = status.st_ino;
  // Kept open: the last reference to a file's pages is then this one, which goes after the mapping and without its locks,
  // and never within the handler of SIGBUS.
  mapping->file_ = ForeignFd(UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), holdings);
  mapping->holdings_ = std::move(holdings);
  if (!mapping->file_) {
    return fail_errno(errno, fmt::format("cannot keep the file of the {}", describe(purpose, wanted)));
  }
  RW_TRY(mapping->map(fd, 0, wanted.file_offset - skip, length, static_cast<std::size_t>(skip), page_bytes));
  return mapping;
}

Result<std::shared_ptr<Mapping>> Mapping::create_anonymous(GuestAddress guest, UserAddress user, std::uint64_t bytes) {
  // No two pieces of anonymous memory are the same region: number them, on device 0 that no file has.
  static std::atomic<ino_t> next_inode{1};
  std::shared_ptr<Mapping> mapping(new Mapping);
  mapping->identity_ = Identity{.device = 0,
                                .inode = next_inode.fetch_add(1, std::memory_order_relaxed),
                                .file_offset = 0,
                                .bytes = bytes,
                                .guest = guest,
                                .user = user};
  RW_TRY(check_range(Purpose::guest_memory, mapping->identity_));
  std::size_t length = 0;
  if (!round_up(bytes, system_page_bytes(), length)) {
    return fail(fmt::format("{} is too large to map", describe(Purpose::guest_memory, mapping->identity_)));
  }
  RW_TRY(mapping->map(-1, MAP_ANONYMOUS, 0, length, 0, system_page_bytes()));
  return mapping;
}

Mapping::~Mapping() {
  if (sigbus_slot_ >= 0) {
    sigbus::remove(sigbus_slot_);
  }
  if (mmap_address_ == nullptr) {
    return;
  }
  auto end = [address = mmap_address_, bytes = mmap_bytes_, page_bytes = page_bytes_, holdings = holdings_,
              file = std::move(file_)]() mutable {
    unmap(address, bytes, page_bytes, holdings.get());
    file.close_here();
  };
  if (holdings_ != nullptr) {
    holdings_->let_go(ForeignHoldings::Lane::bounded, std::move(end));
  } else {
    end();
  }
}

Result<Mapping::Identity> Mapping::identify(int fd, GuestAddress guest, UserAddress user, std::uint64_t bytes,
                                            std::uint64_t file_offset) {
  RW_TRY_ASSIGN(const struct stat status, stat_of(Purpose::guest_memory, fd));
  return Identity{.device = status.st_dev,
                  .inode = status.st_ino,
                  .file_offset = file_offset,
                  .bytes = bytes,
                  .guest = guest,
                  .user = user};
}

bool Mapping::poisoned() const {
  return sigbus::poisoned(sigbus_slot_);
}

std::optional<std::string> address_space_warning() {
  const std::uint64_t possible = possible_bytes();
  if (possible / 2 >= limits::kSmallGuestBytes) {
    return std::nullopt;
  }
  rlimit limit{};
  static_cast<void>(::getrlimit(RLIMIT_AS, &limit));
  return fmt::format(
      "the limit of address space (ulimit -v) is {} MiB: what we don't need ourselves leaves {} MiB for the "
      "memory of a guest, less than a small one has ({} MiB); raise it, or take it away (ulimit -v unlimited)",
      limit.rlim_cur >> 20U, possible / 2 >> 20U, limits::kSmallGuestBytes >> 20U);
}

}  // namespace ringway
