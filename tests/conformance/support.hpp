// What the conformance tests share: a real Host with real sockets, workers and stores in this process, and drivers that play
// guests against it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "control/test_host.hpp"
#include "driver/blk_driver.hpp"
#include "loop/clock.hpp"

namespace ringway::conformance {

// For what must happen; long, because the machine may be loaded. Nothing waits for it to pass.
inline constexpr Duration kLimit = Duration::seconds(30);
inline constexpr std::uint32_t kBlock = 4096;
inline constexpr std::uint64_t kBlockSectors = kBlock / spec::kSectorBytes;

inline std::unique_ptr<BlkDriver> connect(const BlkDriverOptions& options) {
  Result<std::unique_ptr<BlkDriver>> driver = BlkDriver::create(options);
  EXPECT_TRUE(driver) << (driver ? std::string() : driver.error().message);
  return driver ? std::move(*driver) : nullptr;
}
inline std::unique_ptr<BlkDriver> connect(const std::string& socket) {
  return connect(BlkDriverOptions{.socket_path = socket});
}

// True as soon as `condition` holds; false if it doesn't in time.
template <typename Condition>
bool eventually(Condition condition, Duration limit = kLimit) {
  const Instant deadline = clock_now() + limit;
  while (!condition()) {
    if (clock_now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

inline DriverBuffer data_of(BlkDriverQueue& queue, std::uint32_t slot, std::uint32_t bytes = kBlock) {
  return {.address = queue.buffer(slot).guest, .bytes = bytes, .device_writable = true};
}

// Queues one request with the data buffer `slot`; the token is the slot.
inline void submit(BlkDriverQueue& queue, std::uint32_t type, std::uint64_t sector, std::uint32_t slot,
                   std::uint32_t bytes = kBlock) {
  const DriverBuffer data = data_of(queue, slot, bytes);
  const bool has_data = type != spec::kBlkTypeFlush;
  ASSERT_TRUE(queue.submit({.type = type,
                            .sector = sector,
                            .token = slot,
                            .data = has_data ? std::span(&data, 1) : std::span<const DriverBuffer>{},
                            .ranges = {}}));
}

// One completion; its token is ~0 if none comes.
inline BlkCompletion await(BlkDriverQueue& queue, Duration limit = kLimit) {
  const Instant deadline = clock_now() + limit;
  BlkCompletion completion{.token = ~std::uint64_t{0}, .written_bytes = 0, .status = kStatusUntouched};
  while (queue.reap({&completion, 1}) == 0 && clock_now() < deadline) {
    static_cast<void>(queue.wait(deadline));
  }
  return completion;
}

// `count` completions, all OK.
inline bool await_ok(BlkDriverQueue& queue, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const BlkCompletion completion = await(queue);
    if (completion.status != spec::kBlkStatusOk) {
      ADD_FAILURE() << "completion " << i << " of " << count << ": token " << completion.token << ", status "
                    << unsigned{completion.status};
      return false;
    }
  }
  return true;
}

inline BlkCompletion transfer(BlkDriverQueue& queue, std::uint32_t type, std::uint64_t sector, std::uint32_t slot = 0,
                              std::uint32_t bytes = kBlock) {
  submit(queue, type, sector, slot, bytes);
  queue.publish_and_kick();
  return await(queue);
}

inline void fill(std::byte* at, std::size_t bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = (seed + 1) * 0x9e3779b97f4a7c15ULL + i;
    std::memcpy(at + i, &word, 8);
  }
}
inline bool holds(const std::byte* at, std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> expected(bytes);
  fill(expected.data(), bytes, seed);
  return std::memcmp(at, expected.data(), bytes) == 0;
}

// Writes block i with fill(i).
inline void write_pattern(BlkDriverQueue& queue, std::uint32_t blocks) {
  for (std::uint32_t i = 0; i < blocks; ++i) {
    fill(queue.buffer(0).host, kBlock, i);
    ASSERT_EQ(transfer(queue, spec::kBlkTypeOut, i * kBlockSectors).status, spec::kBlkStatusOk);
  }
}

inline BlkDeviceStats stats_of(TestHost& host, const std::string& name) {
  for (DiskStats& disk : host.call([](Host& h) { return h.stats(); })) {
    if (disk.name == name) {
      return std::move(disk.stats);
    }
  }
  ADD_FAILURE() << "no disk " << name;
  BlkDeviceStats none;
  none.queues.resize(1);
  return none;
}
inline bool connected(TestHost& host, const std::string& name) {
  const auto status = host.call([&](Host& h) { return h.disk(name); });
  return status && status->connected;
}

// What this process holds.
struct Holdings {
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t mappings = 0;
  std::uint64_t anonymous_kib = 0;
};
inline std::uint64_t status_kib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) {
      return std::stoull(line.substr(line.find(':') + 1));
    }
  }
  return 0;
}
inline std::ptrdiff_t mappings_with(const std::string& text) {
  std::ifstream maps("/proc/self/maps");
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find(text) != std::string::npos ? 1 : 0;
  }
  return count;
}
inline Holdings holdings() {
  const std::filesystem::directory_iterator each("/proc/self/fd");
  return {.descriptors = std::distance(begin(each), end(each)),
          .mappings = mappings_with(""),
          .anonymous_kib = status_kib("RssAnon")};
}

}  // namespace ringway::conformance
