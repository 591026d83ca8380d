// Records of one worker on their way to whoever asked for them. One thread puts, one takes; what doesn't fit is dropped and
// counted.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.hpp"
#include "metrics/counter.hpp"
#include "trace/stage.hpp"

namespace ringway {

class StageStream {
 public:
  // REQUIRES: `records` is a power of two.
  explicit StageStream(std::size_t records)
      : mask_(records - 1), records_(std::make_unique_for_overwrite<StageRecord[]>(records)) {
    RW_CHECK(std::has_single_bit(records));
  }
  StageStream(const StageStream&) = delete;
  StageStream& operator=(const StageStream&) = delete;
  ~StageStream() = default;

  // --- the worker ---
  void put(const StageRecord& record) noexcept {
    const std::uint64_t end = end_.load(std::memory_order_relaxed);
    // acquire: pairs with take(), which has read what stood there.
    if (end - begin_.load(std::memory_order_acquire) > mask_) {
      dropped_.add();
      return;
    }
    records_[end & mask_] = record;
    end_.store(end + 1, std::memory_order_release);  // pairs with take()
  }

  // --- the other thread ---
  // Appends what has come to `to`, `most` at a time.
  void take(std::vector<StageRecord>& to, std::size_t most) {
    std::uint64_t begin = begin_.load(std::memory_order_relaxed);
    const std::uint64_t end = end_.load(std::memory_order_acquire);  // pairs with put()
    for (; begin != end && most != 0; ++begin, --most) {
      to.push_back(records_[begin & mask_]);
    }
    begin_.store(begin, std::memory_order_release);  // pairs with put()
  }
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_.get(); }  // any thread

 private:
  const std::uint64_t mask_;
  const std::unique_ptr<StageRecord[]> records_;
  alignas(64) std::atomic<std::uint64_t> end_{0};
  Counter dropped_;
  alignas(64) std::atomic<std::uint64_t> begin_{0};
};

}  // namespace ringway
