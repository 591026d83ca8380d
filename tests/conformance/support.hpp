// What the conformance tests share: a real Host with real sockets, workers and stores in this process, and drivers that play
// guests against it.
#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "control/test_host.hpp"
#include "driver/test_driver.hpp"
#include "tests/conformance/sanitizers.hpp"

namespace ringway::conformance {

inline constexpr Duration kLimit = kTestLimit;
inline constexpr std::uint32_t kBlock = 4096;
inline constexpr std::uint64_t kBlockSectors = kBlock / spec::kSectorBytes;

// `count` completions, all OK.
inline bool await_ok(BlkDriverQueue& queue, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const BlkCompletion completion = await_completion(queue);
    if (completion.status != spec::kBlkStatusOk) {
      ADD_FAILURE() << "completion " << i << " of " << count << ": token " << completion.token << ", status "
                    << unsigned{completion.status};
      return false;
    }
  }
  return true;
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
// This process holds no more private memory than before, but for `allowed_kib`.
inline void expect_memory_kept(std::uint64_t before_kib, std::uint64_t allowed_kib) {
  if (kMemoryIsOurs) {
    EXPECT_LT(status_kib("RssAnon"), before_kib + allowed_kib);
  }
}
// The allowance is for what the C library keeps; descriptors must all be back, when what a front-end had us hold has been
// let go (base/foreign.hpp).
inline void expect_nothing_held_since(const Holdings& before) {
  static_cast<void>(eventually([&] { return holdings().descriptors <= before.descriptors; }));
  const Holdings after = holdings();
  EXPECT_LE(after.descriptors, before.descriptors);
  if (kMemoryIsOurs) {
    // Of each thread that lets go the C library keeps a stack and an arena.
    EXPECT_LE(after.mappings, before.mappings + 40);
  }
  expect_memory_kept(before.anonymous_kib, 16384);
}

// A back-end in a process of its own (main.cpp), so that it can be killed.
class Backend {
 public:
  explicit Backend(const std::string& disk) { start(disk); }
  ~Backend() { kill(); }
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  // The disk as `ringway serve --disk` takes it.
  void start(std::string disk) {
    std::string program = "/proc/self/exe", option = "--serve";
    char* arguments[] = {program.data(), option.data(), disk.data(), nullptr};
    ASSERT_EQ(posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  }
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace ringway::conformance
