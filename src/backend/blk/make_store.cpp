#include "backend/blk/make_store.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "backend/blk/faulty_store.hpp"
#include "backend/blk/file_store.hpp"
#include "backend/blk/null_store.hpp"
#include "backend/blk/ram_store.hpp"

namespace ringway {
namespace {

Result<std::uint64_t> memory_size(std::string_view text, std::uint32_t block_bytes) {
  RW_TRY_ASSIGN(const std::uint64_t bytes, parse_size(text));
  if (bytes == 0 || bytes % block_bytes != 0) {
    return fail(
        fmt::format("a disk of '{}' can't be made: its size must be a multiple of its block size, {}", text, block_bytes));
  }
  return bytes;
}

// Memory is taken as the guest writes, so such a disk works, until the kernel kills somebody for what is missing.
void warn_of_more_than_there_is(const std::string& path, std::uint64_t bytes) {
  const auto pages = static_cast<std::uint64_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L));
  const std::uint64_t memory = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (memory != 0 && bytes > memory) {
    spdlog::warn(
        "'{}' is more than this machine's memory, {} MiB: a guest that fills it has the kernel end this process or others; "
        "make it smaller, or use a file",
        path, memory >> 20U);
  }
}

Result<BlkStoreChoice> make_plain_store(const BlkStoreOptions& options, const FileFaults& faults) {
  const std::uint32_t block_bytes = options.block_bytes == 0 ? 512 : options.block_bytes;
  const bool null = options.path.starts_with("null:");
  if (!null && !options.path.starts_with("ram:")) {
    return make_file_store({.image = {.path = options.path,
                                      .read_only = options.read_only,
                                      .direct = options.direct,
                                      .lock = options.create_lock,
                                      .block_bytes = options.block_bytes},
                            .engine = options.engine,
                            .loop_has_uring = options.loop_has_uring,
                            .registered = options.registered,
                            .faults = faults});
  }
  if (options.engine != BlkEngine::automatic) {
    return fail(fmt::format("'{}' has no engine to choose: it is not in a file", options.path));
  }
  if (options.registered) {
    return fail(fmt::format("'{}' makes no use of registered memory: it is not in a file", options.path));
  }
  if (faults.short_numerator != 0 || faults.again_numerator != 0) {
    return fail(fmt::format("faults 'short' and 'eagain' are a file's; '{}' makes no system calls", options.path));
  }
  RW_TRY_ASSIGN(const std::uint64_t bytes,
                memory_size(std::string_view(options.path).substr(options.path.find(':') + 1), block_bytes));
  BlkStoreChoice choice;
  if (null) {
    choice.reason = "null: completes everything at once, keeps nothing";
    choice.store = make_null_store({.capacity_bytes = bytes, .block_bytes = block_bytes, .read_only = options.read_only});
  } else {
    choice.reason = "ram: in this process's memory, gone when it ends";
    warn_of_more_than_there_is(options.path, bytes);
    RW_TRY_ASSIGN(choice.store,
                  make_ram_store({.capacity_bytes = bytes, .block_bytes = block_bytes, .read_only = options.read_only}));
  }
  return choice;
}

}  // namespace

Result<BlkStoreChoice> make_blk_store(const BlkStoreOptions& options) {
  if (options.block_bytes != 0 &&
      (options.block_bytes < 512 || options.block_bytes > 65536 || !std::has_single_bit(options.block_bytes))) {
    return fail(fmt::format("block size {} is not possible: give 512, 1024, … up to 65536", options.block_bytes));
  }
  RW_TRY_ASSIGN(const BlkFaults faults, parse_blk_faults(options.faults));
  RW_TRY_ASSIGN(BlkStoreChoice choice, make_plain_store(options, faults.file));
  if (!options.faults.empty()) {
    choice.store = make_faulty_store(std::move(choice.store), faults);
    choice.reason += fmt::format("; with faults '{}'", options.faults);
  }
  return choice;
}

const char* to_string(BlkEngine engine) noexcept {
  switch (engine) {
    case BlkEngine::automatic:
      return "auto";
    case BlkEngine::io_uring:
      return "io_uring";
    case BlkEngine::threads:
      return "threads";
    case BlkEngine::inline_:
      return "inline";
  }
  return "unknown";
}

Result<BlkEngine> parse_blk_engine(std::string_view text) {
  if (text == "auto" || text == "automatic") {
    return BlkEngine::automatic;
  }
  if (text == "io_uring" || text == "uring") {
    return BlkEngine::io_uring;
  }
  if (text == "threads") {
    return BlkEngine::threads;
  }
  if (text == "inline") {
    return BlkEngine::inline_;
  }
  return fail(fmt::format("unknown engine '{}': give auto, io_uring, threads or inline", text));
}

Result<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t number = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [rest, error] = std::from_chars(begin, end, number);
  const std::string_view unit(rest, end);
  constexpr std::string_view kUnits = "KMGTP";
  const std::size_t power = unit.size() == 1 ? kUnits.find(unit.front() & ~0x20) : std::string_view::npos;
  if (error != std::errc{} || (!unit.empty() && power == std::string_view::npos)) {
    return fail(fmt::format("'{}' is not a size: give a number of bytes, or one with K, M, G, T (powers of 1024)", text));
  }
  std::uint64_t bytes = 0;
  const unsigned shift = unit.empty() ? 0 : 10 * (static_cast<unsigned>(power) + 1);
  if (__builtin_mul_overflow(number, std::uint64_t{1} << shift, &bytes) || bytes > INT64_MAX) {
    return fail(fmt::format("'{}' is more than a file can have", text));
  }
  return bytes;
}

}  // namespace ringway
