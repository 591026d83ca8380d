// A histogram of latencies in nanoseconds: log-linear buckets, 32 to each power of two, so that a percentile is read at most
// 1/32 (3.1 %) too high and never too low. About 10 kB; record() is a handful of instructions and never allocates.
//
// One writer (the thread that owns it); anyone may read or merge from it at any time: each counter is a relaxed load and
// store (metrics/counter.hpp). A reader that runs beside the writer sees each counter true, but not all of one instant.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/time.hpp"
#include "metrics/counter.hpp"

namespace ringway {

class LatencyHistogram {
 public:
  // Longer latencies count as this one (18 minutes); negative ones, which only a broken clock can give, as zero.
  static constexpr std::int64_t kLargestNs = (std::int64_t{1} << 40U) - 1;

  void record(Duration latency, std::uint64_t count = 1) noexcept {
    const std::uint64_t ns = clamp(latency);
    buckets_[bucket_of(ns)].add(count);
    count_.add(count);
    sum_ns_.add(ns * count);
    if (ns > maximum_ns_.get()) {
      maximum_ns_.add(ns - maximum_ns_.get());
    }
  }

  // Adds what `other` holds. The caller is this histogram's writer.
  void merge(const LatencyHistogram& other) noexcept;

  [[nodiscard]] std::uint64_t count() const noexcept { return count_.get(); }
  // Exact, not read off a bucket. Zero when nothing was recorded.
  [[nodiscard]] Duration maximum() const noexcept { return {static_cast<std::int64_t>(maximum_ns_.get())}; }
  [[nodiscard]] Duration mean() const noexcept;
  // The latency that a share `quantile` (0…1; else clamped) of the records did not exceed, by nearest rank. Zero when
  // nothing was recorded.
  [[nodiscard]] Duration percentile(double quantile) const noexcept;

  // For exporters: how many buckets there are, the largest value that bucket `index` holds, and its records.
  static constexpr unsigned kSubBits = 5;
  static constexpr std::size_t kBuckets = (40 - kSubBits + 1) << kSubBits;
  [[nodiscard]] static constexpr std::uint64_t bucket_end(std::size_t index) noexcept {
    const std::size_t row = index >> kSubBits;
    const std::uint64_t column = index & (kPerRow - 1);
    return row == 0 ? column : ((kPerRow + column + 1) << (row - 1)) - 1;
  }
  [[nodiscard]] static constexpr std::size_t bucket_of(std::uint64_t ns) noexcept {
    if (ns < kPerRow) {
      return static_cast<std::size_t>(ns);
    }
    const unsigned shift = static_cast<unsigned>(std::bit_width(ns)) - kSubBits - 1;
    return ((std::size_t{shift} + 1) << kSubBits) + static_cast<std::size_t>((ns >> shift) - kPerRow);
  }
  [[nodiscard]] std::uint64_t bucket_count(std::size_t index) const noexcept { return buckets_[index].get(); }

 private:
  static constexpr std::uint64_t kPerRow = std::uint64_t{1} << kSubBits;

  [[nodiscard]] static constexpr std::uint64_t clamp(Duration latency) noexcept {
    return latency.ns < 0 ? 0 : static_cast<std::uint64_t>(latency.ns < kLargestNs ? latency.ns : kLargestNs);
  }

  std::array<Counter, kBuckets> buckets_{};
  Counter count_, sum_ns_, maximum_ns_;
};

static_assert(LatencyHistogram::bucket_of(static_cast<std::uint64_t>(LatencyHistogram::kLargestNs)) ==
              LatencyHistogram::kBuckets - 1);

}  // namespace ringway
