// One disk as an operator describes it: on the command line, in the configuration file, or by the local API. A plain value.
#pragma once

#include <cstdint>
#include <string>

#include "backend/blk/make_store.hpp"
#include "base/result.hpp"

namespace ringway {

struct DiskOptions {
  std::string path;    // a file, a block device, "ram:<size>" or "null:<size>"
  std::string socket;  // of the vhost-user front-end
  std::string name;    // in logs, reports and the API; empty: from the path, made unique by the host
  std::string serial;  // empty: the store's default
  std::uint32_t queues = 1;
  BlkEngine engine = BlkEngine::automatic;
  bool read_only = false;
  bool connect = false;     // we connect to the socket, on which the front-end listens
  bool direct = true;       // O_DIRECT where the file system has it
  bool registered = false;  // register guest memory with io_uring
  bool packed = true;       // offer packed rings
  bool in_order = false;
  bool inband = false;
  bool write_cache = true;
  std::uint32_t block_bytes = 0;  // 0: what the store says
  std::uint32_t mode = 0600;      // of the socket's path
  std::string faults;             // for tests: see BlkStoreOptions::faults

  bool operator==(const DiskOptions&) const = default;
};

// What a disk is called that was given no name: the file's name without its extension, with every character that a name may
// not have replaced by '-'; for "ram:…" and "null:…" the word before the colon.
[[nodiscard]] std::string default_disk_name(const std::string& path);

// Names stand in URLs, log lines and tables.
inline constexpr std::size_t kDiskNameBytesMax = 64;
[[nodiscard]] bool is_disk_name(std::string_view name) noexcept;

// Errors: "ram:…" or "null:…" with a size that no such disk can have. Of files it says nothing.
[[nodiscard]] Result<> check_memory_size(const DiskOptions& disk);

// True for images that are files or devices, false for "ram:…" and "null:…".
[[nodiscard]] bool is_file_image(std::string_view path) noexcept;

}  // namespace ringway
