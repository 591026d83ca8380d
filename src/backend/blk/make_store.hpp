// From an operator's words to a store.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "backend/blk/blk_store.hpp"
#include "backend/blk/image_file.hpp"
#include "base/result.hpp"

namespace ringway {

enum class BlkEngine : std::uint8_t {
  automatic,  // by probe: io_uring, unless it is forbidden or would hand each call to kernel threads
  io_uring,
  threads,
  inline_,  // read and written by the worker itself; only for files in memory (tmpfs, ramfs), where nothing can hang
};
// "auto", "io_uring", "threads", "inline".
[[nodiscard]] const char* to_string(BlkEngine engine) noexcept;
// Takes those, and "automatic" and "uring".
[[nodiscard]] Result<BlkEngine> parse_blk_engine(std::string_view text);

struct BlkStoreOptions {
  std::string path{};  // a file or block device; or "ram:<size>", "null:<size>" (sizes as 64M, 10G)
  bool read_only = false;
  bool direct = true;             // O_DIRECT where the file system has it
  bool create_lock = true;        // take an OFD lock on the image: exclusive, or shared if read-only
  std::uint32_t block_bytes = 0;  // 0: from the store
  BlkEngine engine = BlkEngine::automatic;
  bool loop_has_uring = true;  // what the workers' loops are
  bool registered = false;     // register guest memory with the workers' io_urings (registered_memory.hpp)
  std::string faults{};  // for tests: wraps the store by the fault-injecting decorator (grammar: faulty_store.hpp), e.g.
                         // "short=1/3,eio=1/100,delay=500us,hang@1M"
};

struct BlkStoreChoice {
  std::unique_ptr<BlkStore> store;
  std::string reason;            // one line for the log: which engine, and why
  std::optional<ImageId> image;  // what has been opened; none: it is in no file
};

// Any thread that may block: it opens files and asks file systems; waits some seconds for the lock of a process that was
// just killed. Errors say what to do: missing file, no permission, a directory, size of zero or no multiple of the block
// size, image locked by another process (which), engine that can't work here.
[[nodiscard]] Result<BlkStoreChoice> make_blk_store(const BlkStoreOptions& options);

// "512", "64K", "10M", "2G", "1T" (powers of 1024) in bytes.
[[nodiscard]] Result<std::uint64_t> parse_size(std::string_view text);

}  // namespace ringway
