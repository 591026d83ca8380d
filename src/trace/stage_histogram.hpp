// How long requests of each kind took from one stage to the next, and as a whole. One writer; anyone may read.
//
// Coarser than LatencyHistogram, since a worker has one for each kind and interval: 8 buckets to each power of two, so a
// percentile is read at most 1/8 too high.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/time.hpp"
#include "metrics/counter.hpp"
#include "trace/stage.hpp"

namespace ringway {

class StageHistogram {
 public:
  static constexpr unsigned kSubBits = 3;
  static constexpr std::size_t kBuckets = (36 - kSubBits + 1) << kSubBits;  // to 68 s; what is longer counts as that
  void record(Duration time) noexcept {
    const auto ns = static_cast<std::uint64_t>(time.ns < 0 ? 0 : time.ns);
    buckets_[bucket_of(ns)].add();
    count_.add();
    sum_ns_.add(ns);
  }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_.get(); }
  [[nodiscard]] std::uint64_t sum_ns() const noexcept { return sum_ns_.get(); }
  [[nodiscard]] std::uint64_t bucket_count(std::size_t bucket) const noexcept { return buckets_[bucket].get(); }

  [[nodiscard]] static constexpr std::size_t bucket_of(std::uint64_t ns) noexcept {
    constexpr std::uint64_t kPerRow = std::uint64_t{1} << kSubBits;
    if (ns < kPerRow) {
      return static_cast<std::size_t>(ns);
    }
    const unsigned shift = static_cast<unsigned>(std::bit_width(ns)) - kSubBits - 1;
    const std::size_t bucket = ((std::size_t{shift} + 1) << kSubBits) + static_cast<std::size_t>((ns >> shift) - kPerRow);
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }
  // The largest value that the bucket holds, in ns.
  [[nodiscard]] static constexpr std::uint64_t bucket_end(std::size_t bucket) noexcept {
    constexpr std::uint64_t kPerRow = std::uint64_t{1} << kSubBits;
    const std::size_t row = bucket >> kSubBits;
    const std::uint64_t column = bucket & (kPerRow - 1);
    return row == 0 ? column : ((kPerRow + column + 1) << (row - 1)) - 1;
  }

 private:
  std::array<Counter, kBuckets> buckets_{};
  Counter count_, sum_ns_;
};

// Index 0: the whole, from the first stage that a request passed to its last. Index s: from the stage before s that it
// passed to s.
struct StageHistograms {
  std::array<std::array<StageHistogram, kStages>, kTracedKinds> of{};

  void record(const StageRecord& record) noexcept;
};

}  // namespace ringway
