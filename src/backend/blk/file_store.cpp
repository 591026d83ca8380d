#include "backend/blk/file_store.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>

#include "ring/spec.hpp"

namespace ringway {
namespace {

// Of one range, where the worker itself clears it.
constexpr std::uint64_t kInlineRangeBytesMax = 8ULL << 20U;

struct Choice {
  BlkEngine engine;
  std::string reason;
};

// Deterministic: from what the file is and what the kernel answers. A measurement would choose differently from one start to
// the next.
Result<Choice> choose(const ImageFile& image, BlkEngine wanted, bool loop_has_uring) {
  switch (wanted) {
    case BlkEngine::io_uring:
      if (!loop_has_uring) {
        return fail(fmt::format(
            "engine=io_uring for '{}': the workers' loops have no io_uring (they were told to use epoll, or io_uring is "
            "forbidden: sysctl kernel.io_uring_disabled, seccomp); use --loop auto, allow it, or use engine=threads",
            image.path));
      }
      return Choice{wanted, image.nowait
                                ? "asked for"
                                : "asked for, though this file system makes it use kernel threads for every request"};
    case BlkEngine::threads:
      return Choice{wanted, "asked for"};
    case BlkEngine::inline_:
      if (!image.in_memory) {
        return fail(
            fmt::format("engine=inline for '{}': only files in memory (tmpfs, ramfs) can be served so, since a slow disk "
                        "would stop the whole worker; leave engine= out, or use engine={}",
                        image.path, loop_has_uring ? "io_uring or threads" : "threads"));
      }
      return Choice{wanted, "asked for"};
    case BlkEngine::automatic:
      break;
  }
  if (image.in_memory) {
    return Choice{BlkEngine::inline_, "the file is in memory, nothing there can block the worker"};
  }
  if (!loop_has_uring) {
    return Choice{BlkEngine::threads, "the workers' loops have no io_uring"};
  }
  if (!image.nowait) {
    return Choice{BlkEngine::threads, "io_uring would hand every request to kernel threads (the file has no RWF_NOWAIT)"};
  }
  return Choice{BlkEngine::io_uring, "the kernel reads and writes it without threads"};
}

class FileStore final : public BlkStore {
 public:
  FileStore(ImageFile image, BlkEngine engine, bool registered, const FileFaults& faults)
      : image_(std::move(image)), engine_(engine), registered_(registered), faults_(faults) {
    info_.engine = to_string(engine);
    info_.block_bytes = image_.block_bytes;
    info_.physical_block_bytes = image_.physical_block_bytes;
    info_.minimum_io_bytes = image_.minimum_io_bytes;
    info_.optimal_io_bytes = image_.optimal_io_bytes;
    info_.read_only = image_.read_only;
    if (!image_.read_only) {
      info_.discard_granularity_bytes = image_.discard_granularity_bytes;
      info_.discard_bytes_max =
          engine == BlkEngine::inline_ ? kInlineRangeBytesMax : limits::kBlkRangeSectorsMax * spec::kSectorBytes;
      info_.write_zeroes = true;
    }
  }

  [[nodiscard]] const BlkStoreInfo& info() const noexcept override { return info_; }

  [[nodiscard]] Result<> refresh() override {
    RW_TRY(check_path());
    RW_TRY_ASSIGN(const ImageSize size, image_size(image_));
    info_.capacity_bytes = size.capacity_bytes;
    return {};
  }

  [[nodiscard]] Result<> resize(std::uint64_t bytes) override {
    if (image_.block_device) {
      return fail(fmt::format(
          "'{}' is a block device: resize it by its own means (lvextend, blockdev), then refresh the disk", image_.path));
    }
    if (image_.read_only) {
      return fail(fmt::format("'{}' is open read-only and can't be resized", image_.path));
    }
    if (bytes == 0 || bytes % image_.block_bytes != 0) {
      return fail(fmt::format("can't resize '{}' to {} bytes: give a multiple of its block size, {}", image_.path, bytes,
                              image_.block_bytes));
    }
    RW_TRY(check_path());
    if (::ftruncate(image_.fd.get(), static_cast<off_t>(bytes)) != 0) {
      return fail_errno(errno, fmt::format("resize '{}' to {} bytes", image_.path, bytes));
    }
    return refresh();
  }

  [[nodiscard]] Result<std::unique_ptr<BlkChannel>> open_channel(Loop& loop, BlkChannelCounters& counters) override {
    const FileChannel::Options options{.fd = image_.fd.get(),
                                       .read_only = image_.read_only,
                                       .direct = image_.direct,
                                       .can_punch = image_.can_punch,
                                       .memory_alignment = image_.memory_alignment,
                                       .offset_alignment = image_.offset_alignment,
                                       .faults = faults_,
                                       .registering = registered_ ? &threads_ : nullptr,
                                       .disk = image_.path};
    switch (engine_) {
      case BlkEngine::io_uring:
        return make_uring_channel(options, loop, counters);
      case BlkEngine::threads:
        return make_threads_channel(options, threads_, loop, counters);
      default:
        return make_inline_channel(options, loop, counters);
    }
  }

  [[nodiscard]] std::string default_serial() const override { return image_.serial; }

 private:
  // Whoever asks about the image means the file at its path.
  [[nodiscard]] Result<> check_path() const {
    if (image_.block_device) {
      return {};
    }
    if (image_id_at(image_.path) == image_.id) {
      return {};
    }
    return fail(fmt::format(
        "'{}' is not the file any more that the disk serves, which has been moved or deleted: what the guest writes goes "
        "there, and a deleted file is lost at the end. Copy the disk from within the guest, or put the file back",
        image_.path));
  }

  const ImageFile image_;
  const BlkEngine engine_;
  const bool registered_;
  const FileFaults faults_;
  BlkStoreInfo info_;
  IoThreads threads_{IoThreads::Limits{}};  // starts none until a channel needs one
};

}  // namespace

Result<BlkStoreChoice> make_file_store(const FileStoreOptions& options) {
  RW_TRY_ASSIGN(ImageFile image, open_image_file(options.image));
  RW_TRY_ASSIGN(const ImageSize size, image_size(image));
  if (size.rest_bytes != 0) {
    image.notes += fmt::format("{}the last {} bytes of the file are no whole block and are not shown",
                               image.notes.empty() ? "" : "; ", size.rest_bytes);
  }
  RW_TRY_ASSIGN(const Choice choice, choose(image, options.engine, options.loop_has_uring));
  std::string reason = fmt::format("{}: {}{}{}{}", to_string(choice.engine), choice.reason,
                                   image.direct ? "; direct I/O" : "", image.notes.empty() ? "" : "; ", image.notes);
  if (options.registered && choice.engine != BlkEngine::io_uring) {
    return fail(fmt::format("registered=on for '{}': only engine io_uring has registered memory, and this disk has {}",
                            image.path, reason));
  }
  const std::string path = image.path;
  const ImageId id = image.id;
  auto store = std::make_unique<FileStore>(std::move(image), choice.engine, options.registered, options.faults);
  RW_TRY(store->refresh());
  if (options.registered) {
    spdlog::warn(
        "'{}': registered=on: switch off everything in the VMM that gives guest memory back to the host (balloon, free page "
        "reporting, virtio-mem): the kernel would go on with the old pages, and the guest's data would be corrupted "
        "silently",
        path);
  }
  return BlkStoreChoice{.store = std::move(store), .reason = std::move(reason), .image = id};
}

}  // namespace ringway
