// Counters and histograms with one writer (the owning worker), read by anyone at any time. An increment is a relaxed load
// and store: with one writer nothing can come between, and a locked read-modify-write would cost each request some 20
// cycles.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringway {

class Counter {
 public:
  void add(std::uint64_t n = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace ringway
