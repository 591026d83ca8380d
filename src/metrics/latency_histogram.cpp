#include "metrics/latency_histogram.hpp"

#include <algorithm>
#include <cmath>

namespace ringway {

void LatencyHistogram::merge(const LatencyHistogram& other) noexcept {
  for (std::size_t index = 0; index < kBuckets; ++index) {
    if (const std::uint64_t records = other.buckets_[index].get(); records != 0) {
      buckets_[index].add(records);
    }
  }
  count_.add(other.count_.get());
  sum_ns_.add(other.sum_ns_.get());
  const std::uint64_t theirs = other.maximum_ns_.get();
  if (theirs > maximum_ns_.get()) {
    maximum_ns_.add(theirs - maximum_ns_.get());
  }
}

Duration LatencyHistogram::mean() const noexcept {
  const std::uint64_t records = count_.get();
  return {records == 0 ? 0 : static_cast<std::int64_t>(sum_ns_.get() / records)};
}

Duration LatencyHistogram::percentile(double quantile) const noexcept {
  // The total is summed from the buckets, not taken from count_: a reader beside the writer must not look for a rank that
  // the buckets don't hold yet.
  std::uint64_t total = 0;
  for (const Counter& bucket : buckets_) {
    total += bucket.get();
  }
  if (total == 0) {
    return {};
  }
  const double share = std::clamp(quantile, 0.0, 1.0);
  const auto rank =
      std::clamp<std::uint64_t>(static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(total))), 1, total);
  std::uint64_t seen = 0;
  for (std::size_t index = 0; index < kBuckets; ++index) {
    seen += buckets_[index].get();
    if (seen >= rank) {
      const std::uint64_t largest = maximum_ns_.get();
      const std::uint64_t end = bucket_end(index);
      return {static_cast<std::int64_t>(largest != 0 ? std::min(end, largest) : end)};
    }
  }
  return maximum();
}

}  // namespace ringway
