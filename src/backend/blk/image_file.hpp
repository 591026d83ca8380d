// Opening the file or block device behind a disk, and learning what it can do.
//
// Control thread only: these calls may block on slow storage.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace ringway {

struct ImageFileOptions {
  std::string path{};
  bool read_only = false;
  bool direct = true;  // where the file system has it and the block size allows it
  bool lock = true;
  std::uint32_t block_bytes = 0;  // 0: the smallest that works
};

// Which file or block device it is, under whatever name.
struct ImageId {
  bool block_device = false;
  dev_t device = 0;  // of the file system; of a block device, its own
  ino_t inode = 0;   // 0 for a block device

  bool operator==(const ImageId&) const = default;
};

struct ImageFile {
  UniqueFd fd;
  ImageId id;
  std::string path{};
  bool read_only = false;
  bool block_device = false;
  bool in_memory = false;  // tmpfs, ramfs: no call can wait for a device
  bool nowait = false;     // RWF_NOWAIT works, so io_uring needs no kernel thread to read and write it
  bool direct = false;     // O_DIRECT is set
  bool can_punch = false;
  std::uint32_t memory_alignment = 1;  // of each segment's address, for direct I/O
  std::uint32_t offset_alignment = 1;  // of each segment's length and of the file offset, for direct I/O
  std::uint32_t block_bytes = 512;
  std::uint32_t physical_block_bytes = 512;
  std::uint32_t minimum_io_bytes = 0, optimal_io_bytes = 0;
  std::uint64_t discard_granularity_bytes = 0;
  std::string serial;  // from the identity of the file
  std::string notes;   // for the log: why not direct, and the like; may be empty
};

[[nodiscard]] Result<ImageFile> open_image_file(const ImageFileOptions& options);

// Of what is at the path now; none if nothing can be learnt of it. Any thread that may block.
[[nodiscard]] std::optional<ImageId> image_id_at(const std::string& path);

struct ImageSize {
  std::uint64_t capacity_bytes = 0;  // whole blocks
  std::uint64_t rest_bytes = 0;      // beyond them, not shown
};

// The size now. Error: less than one block.
[[nodiscard]] Result<ImageSize> image_size(const ImageFile& image);

}  // namespace ringway
