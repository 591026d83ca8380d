// One disk as an operator describes it: on the command line, in the configuration file, or by the local API. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/blk/make_store.hpp"
#include "base/result.hpp"
#include "control/device_options.hpp"

namespace ringway {

struct DiskOptions : DeviceOptions {
  std::string path;    // a file, a block device, "ram:<size>" or "null:<size>"
  std::string serial;  // empty: the store's default
  std::uint32_t queues = 1;
  BlkEngine engine = BlkEngine::automatic;
  bool read_only = false;
  bool direct = true;       // O_DIRECT where the file system has it
  bool registered = false;  // register guest memory with io_uring
  bool write_cache = true;
  std::uint32_t block_bytes = 0;  // 0: what the store says
  std::string faults;             // for tests: see BlkStoreOptions::faults

  bool operator==(const DiskOptions&) const = default;
};

// What a disk is called that was given no name: the file's name without its extension; for "ram:…" and "null:…" the word
// before the colon.
[[nodiscard]] std::string default_disk_name(const std::string& path);

// Errors: "ram:…" or "null:…" with a size that no such disk can have. Of files it says nothing.
[[nodiscard]] Result<> check_memory_size(const DiskOptions& disk);

// True for images that are files or devices, false for "ram:…" and "null:…".
[[nodiscard]] bool is_file_image(std::string_view path) noexcept;

}  // namespace ringway
