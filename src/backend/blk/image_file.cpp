#include "backend/blk/image_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <string_view>

namespace ringway {
namespace {

ImageId id_of(const struct stat& file) {
  return S_ISBLK(file.st_mode) ? ImageId{.block_device = true, .device = file.st_rdev, .inode = 0}
                               : ImageId{.block_device = false, .device = file.st_dev, .inode = file.st_ino};
}

void add_note(ImageFile& image, std::string_view note) {
  image.notes += fmt::format("{}{}", image.notes.empty() ? "" : "; ", note);
}

// "pid 17 (qemu-system-x86)" for each process that has the file open. The kernel doesn't say who holds an OFD lock (it
// belongs to an open file, not to a process), but a holder must have the file open.
std::string processes_with_open_file(const struct stat& file) {
  std::string names;
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(::opendir("/proc"), ::closedir);
  while (processes != nullptr) {
    const dirent* const process = ::readdir(processes.get());
    if (process == nullptr) {
      break;
    }
    int pid = 0;
    const std::string_view name(process->d_name);
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc{}) {
      continue;
    }
    const std::string directory = fmt::format("/proc/{}/fd", pid);
    const std::unique_ptr<DIR, int (*)(DIR*)> files(::opendir(directory.c_str()), ::closedir);
    // Our own process has the file open once for this very attempt.
    int wanted = pid == ::getpid() ? 2 : 1;
    while (files != nullptr && wanted > 0) {
      const dirent* const entry = ::readdir(files.get());
      if (entry == nullptr) {
        break;
      }
      struct stat other{};
      if (::fstatat(::dirfd(files.get()), entry->d_name, &other, 0) == 0 && other.st_dev == file.st_dev &&
          other.st_ino == file.st_ino) {
        --wanted;
      }
    }
    if (wanted == 0) {
      std::string command;
      std::ifstream comm(fmt::format("/proc/{}/comm", pid));
      std::getline(comm, command);
      names += pid == ::getpid() ? fmt::format("{}this process itself", names.empty() ? "" : ", ")
                                 : fmt::format("{}pid {} ({})", names.empty() ? "" : ", ", pid, command);
    }
  }
  return names;
}

Result<> lock(const ImageFile& image, const struct stat& file) {
  struct flock whole{};
  whole.l_type = image.read_only ? F_RDLCK : F_WRLCK;
  whole.l_whence = SEEK_SET;
  // A process that was killed may still hold its lock when nobody sees it any more: the kernel keeps the file open until the
  // process's io_uring has ended, and until then writes of it may still reach the image. So a holder without a name is
  // waited for.
  constexpr int kTries = 150;
  constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 20'000'000};
  std::string holders;
  for (int tries = 0; holders.empty() && tries < kTries; ++tries) {
    if (::fcntl(image.fd.get(), F_OFD_SETLK, &whole) == 0) {
      return {};
    }
    if (errno != EAGAIN && errno != EACCES) {
      return fail_errno(
          errno,
          fmt::format("lock '{}' (its file system may have no record locks; put the image on one that has)", image.path));
    }
    holders = processes_with_open_file(file);
    if (holders.empty()) {
      ::nanosleep(&kPause, nullptr);
    }
  }
  return fail(fmt::format("'{}' is locked by {}: stop that first, or open it read-only on both sides", image.path,
                          holders.empty() ? "another process" : holders));
}

std::uint64_t read_number(const std::string& path) {
  std::uint64_t value = 0;
  std::ifstream(path) >> value;
  return value;
}

Result<> learn_block_device(ImageFile& image, const struct stat& file) {
  int sector_bytes = 0;
  unsigned physical = 0, minimum = 0, optimal = 0;
  int read_only = 0;
  if (::ioctl(image.fd.get(), BLKSSZGET, &sector_bytes) != 0) {
    return fail_errno(errno, fmt::format("ask block device '{}' for its sector size", image.path));
  }
  if (!image.read_only && ::ioctl(image.fd.get(), BLKROGET, &read_only) == 0 && read_only != 0) {
    return fail(fmt::format("block device '{}' is set read-only: add 'ro', or 'blockdev --setrw' it", image.path));
  }
  image.offset_alignment = static_cast<std::uint32_t>(sector_bytes);
  image.memory_alignment = static_cast<std::uint32_t>(sector_bytes);
  image.physical_block_bytes =
      ::ioctl(image.fd.get(), BLKPBSZGET, &physical) == 0 && physical != 0 ? physical : image.offset_alignment;
  image.minimum_io_bytes = ::ioctl(image.fd.get(), BLKIOMIN, &minimum) == 0 ? minimum : 0;
  image.optimal_io_bytes = ::ioctl(image.fd.get(), BLKIOOPT, &optimal) == 0 ? optimal : 0;
  const std::string queue = fmt::format("/sys/dev/block/{}:{}/queue", major(file.st_rdev), minor(file.st_rdev));
  // A partition's limits are its disk's.
  const std::string limits = ::access(queue.c_str(), F_OK) == 0
                                 ? queue
                                 : fmt::format("/sys/dev/block/{}:{}/../queue", major(file.st_rdev), minor(file.st_rdev));
  if (read_number(limits + "/discard_max_bytes") != 0) {
    image.discard_granularity_bytes =
        std::max<std::uint64_t>(read_number(limits + "/discard_granularity"), image.offset_alignment);
    image.can_punch = true;
  }
  return {};
}

Result<> learn_regular_file(ImageFile& image, const struct stat& file) {
  struct statfs system{};
  struct statvfs volume{};
  if (::fstatfs(image.fd.get(), &system) != 0 || ::fstatvfs(image.fd.get(), &volume) != 0) {
    return fail_errno(errno, fmt::format("ask for the file system of '{}'", image.path));
  }
  const auto magic = static_cast<unsigned long>(system.f_type);
  image.in_memory = magic == TMPFS_MAGIC || magic == RAMFS_MAGIC;
  const auto block = static_cast<std::uint64_t>(volume.f_frsize != 0 ? volume.f_frsize : 4096);
  image.physical_block_bytes = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(std::bit_floor(block), 512, 65536));
  // Beyond the end there is nothing to lose: this asks without changing anything.
  const auto beyond = static_cast<off_t>((static_cast<std::uint64_t>(file.st_size) / block + 1) * block);
  if (!image.read_only &&
      ::fallocate(image.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, beyond, static_cast<off_t>(block)) == 0) {
    image.can_punch = true;
    image.discard_granularity_bytes = block;
  }
  return {};
}

std::unique_ptr<std::byte, void (*)(void*)> aligned_buffer(std::size_t bytes) {
  return {static_cast<std::byte*>(std::aligned_alloc(bytes, bytes)), std::free};
}

constexpr std::uint32_t kProbeBytes = 65536;  // aligned for whatever there is

// Sets O_DIRECT and finds the alignment that it wants; without success the file stays buffered.
void learn_direct(ImageFile& image, bool wanted, std::uint32_t block_bytes_wanted) {
  const int flags = ::fcntl(image.fd.get(), F_GETFL);
  if (!wanted) {
    add_note(image, "buffered, as asked for");
    return;
  }
  if (image.in_memory) {
    return;
  }
  if (::fcntl(image.fd.get(), F_SETFL, flags | O_DIRECT) != 0) {
    add_note(image, "buffered: its file system has no direct I/O");
    return;
  }
  std::uint32_t memory = 0, offset = 0;
#ifdef STATX_DIOALIGN
  struct statx extended{};
  if (::statx(image.fd.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &extended) == 0 &&
      (extended.stx_mask & STATX_DIOALIGN) != 0) {
    memory = extended.stx_dio_mem_align;
    offset = extended.stx_dio_offset_align;
    if (offset == 0) {
      static_cast<void>(::fcntl(image.fd.get(), F_SETFL, flags));
      add_note(image, "buffered: its file system has no direct I/O for this file");
      return;
    }
  }
#endif
  if (offset == 0 && image.block_device) {
    memory = offset = image.offset_alignment;
  }
  const auto buffer = aligned_buffer(kProbeBytes);
  for (std::uint32_t bytes = 512; offset == 0 && bytes <= 4096; bytes *= 2) {
    if (::pread(image.fd.get(), buffer.get(), bytes, 0) >= 0) {
      memory = offset = bytes;
    }
  }
  memory = std::max<std::uint32_t>(std::bit_ceil(memory), 1);
  offset = std::bit_ceil(std::max<std::uint32_t>(offset, 1));
  if (offset > 65536 || (block_bytes_wanted != 0 && offset > block_bytes_wanted)) {
    static_cast<void>(::fcntl(image.fd.get(), F_SETFL, flags));
    add_note(image, fmt::format("buffered: direct I/O would need blocks of {} bytes", offset));
    return;
  }
  image.direct = true;
  image.memory_alignment = memory;
  image.offset_alignment = offset;
}

bool probe_nowait(const ImageFile& image) {
  const auto buffer = aligned_buffer(kProbeBytes);
  const iovec segment{buffer.get(), std::max<std::uint32_t>(image.block_bytes, image.offset_alignment)};
  return ::preadv2(image.fd.get(), &segment, 1, 0, RWF_NOWAIT) >= 0 || errno != EOPNOTSUPP;
}

// What can be done about a path where nothing is. A device can't be made as a file can: truncate would leave a file in /dev,
// in memory.
std::string missing_advice(const std::string& path) {
  return path.starts_with("/dev/") && !path.starts_with("/dev/shm/")
             ? " (no such device; 'lsblk -p' lists the block devices)"
             : fmt::format(" (create it first, e.g. 'truncate -s 10G {}')", path);
}

Result<> open_file(ImageFile& image, struct stat& file) {
  if (::stat(image.path.c_str(), &file) != 0) {
    const int code = errno;
    return fail_errno(code, fmt::format("open '{}'{}", image.path, code == ENOENT ? missing_advice(image.path) : ""));
  }
  if (S_ISDIR(file.st_mode)) {
    return fail(fmt::format("'{}' is a directory: name a file or a block device", image.path));
  }
  image.block_device = S_ISBLK(file.st_mode);
  if (!image.block_device && !S_ISREG(file.st_mode)) {
    return fail(fmt::format("'{}' is neither a regular file nor a block device", image.path));
  }
  // O_EXCL on a block device: nobody may have it mounted, or open in the same way, while a guest writes to it.
  const int access = image.read_only ? O_RDONLY : (image.block_device ? O_RDWR | O_EXCL : O_RDWR);
  image.fd.reset(::open(image.path.c_str(), access | O_CLOEXEC | O_NOCTTY));
  if (image.fd) {
    return ::fstat(image.fd.get(), &file) == 0 ? Result<>{} : fail_errno(errno, fmt::format("stat '{}'", image.path));
  }
  const int code = errno;
  if (code == EBUSY) {
    return fail_errno(code, fmt::format("open '{}' for writing (it is mounted or used by another program)", image.path));
  }
  if (!image.read_only && (code == EACCES || code == EROFS || code == EPERM)) {
    return fail_errno(
        code,
        fmt::format("open '{}' for reading and writing (give this user the right to write it, or add 'ro')", image.path));
  }
  return fail_errno(code, fmt::format("open '{}'", image.path));
}

}  // namespace

namespace {

// Whoever gives us an image of another format wants its contents served, not the file; and the guest's first write would
// ruin it. Only a warning, since what a raw image begins with is up to its guest.
void warn_of_other_formats(const ImageFile& image) {
  struct Format {
    std::string_view name, beginning;
  };
  constexpr std::array<Format, 4> kFormats{{{"qcow2", "QFI\xfb"}, {"VMDK", "KDMV"}, {"VHDX", "vhdxfile"}, {"VDI", "<<< "}}};
  constexpr std::size_t kPage = 4096;
  alignas(kPage) std::array<char, kPage> first{};
  const ssize_t bytes = ::pread(image.fd.get(), first.data(), first.size(), 0);
  const std::string_view beginning(first.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  for (const Format& format : kFormats) {
    if (beginning.starts_with(format.beginning)) {
      spdlog::warn(
          "'{}' looks like a {} image, and is served as a raw one, byte for byte: the guest will see the wrong contents and "
          "may ruin it. Stop, and convert it with 'qemu-img convert -O raw'",
          image.path, format.name);
    }
  }
}

}  // namespace

Result<ImageFile> open_image_file(const ImageFileOptions& options) {
  ImageFile image;
  image.path = options.path;
  image.read_only = options.read_only;
  struct stat file{};
  RW_TRY(open_file(image, file));
  image.id = id_of(file);
  if (options.lock) {
    RW_TRY(lock(image, file));
  }
  RW_TRY(image.block_device ? learn_block_device(image, file) : learn_regular_file(image, file));
  const std::uint32_t sector_bytes = image.block_device ? image.offset_alignment : 512;
  learn_direct(image, options.direct, options.block_bytes);
  const std::uint32_t smallest = image.direct ? std::max(sector_bytes, image.offset_alignment) : sector_bytes;
  image.block_bytes = options.block_bytes != 0 ? options.block_bytes : std::max<std::uint32_t>(smallest, 512);
  if (image.block_bytes < sector_bytes) {
    return fail(fmt::format("'{}' has sectors of {} bytes, so a block size of {} is not possible: give {} or more",
                            image.path, sector_bytes, image.block_bytes, sector_bytes));
  }
  image.physical_block_bytes = std::max(image.physical_block_bytes, image.block_bytes);
  if (image.discard_granularity_bytes != 0) {
    image.discard_granularity_bytes = std::max<std::uint64_t>(image.discard_granularity_bytes, image.block_bytes);
  }
  warn_of_other_formats(image);
  image.nowait = probe_nowait(image);
  const bool device = image.block_device;
  image.serial = fmt::format("rw{:x}-{:x}", (device ? file.st_rdev : file.st_dev) & 0xffffffU, device ? 0 : file.st_ino);
  image.serial.resize(std::min<std::size_t>(image.serial.size(), 20));
  return image;
}

std::optional<ImageId> image_id_at(const std::string& path) {
  struct stat file{};
  return ::stat(path.c_str(), &file) == 0 ? std::optional(id_of(file)) : std::nullopt;
}

Result<ImageSize> image_size(const ImageFile& image) {
  std::uint64_t bytes = 0;
  if (image.block_device) {
    if (::ioctl(image.fd.get(), BLKGETSIZE64, &bytes) != 0) {
      return fail_errno(errno, fmt::format("ask block device '{}' for its size", image.path));
    }
  } else {
    struct stat file{};
    if (::fstat(image.fd.get(), &file) != 0) {
      return fail_errno(errno, fmt::format("ask for the size of '{}'", image.path));
    }
    bytes = static_cast<std::uint64_t>(file.st_size);
  }
  if (bytes < image.block_bytes) {
    return fail(fmt::format("'{}' has {} bytes, less than one block of {}: give it a size, e.g. 'truncate -s 10G {}'",
                            image.path, bytes, image.block_bytes, image.path));
  }
  return ImageSize{.capacity_bytes = bytes - bytes % image.block_bytes, .rest_bytes = bytes % image.block_bytes};
}

}  // namespace ringway
