#include "metrics/latency_histogram.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/prng.hpp"

namespace ringway {
namespace {

TEST(LatencyHistogram, EmptyAnswersZero) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0U);
  EXPECT_EQ(histogram.maximum().ns, 0);
  EXPECT_EQ(histogram.mean().ns, 0);
  EXPECT_EQ(histogram.percentile(0.99).ns, 0);
}

TEST(LatencyHistogram, BucketsAreContiguousAndEndWhereTheNextBegins) {
  for (std::size_t index = 0; index + 1 < LatencyHistogram::kBuckets; ++index) {
    const std::uint64_t end = LatencyHistogram::bucket_end(index);
    ASSERT_EQ(LatencyHistogram::bucket_of(end), index);
    ASSERT_EQ(LatencyHistogram::bucket_of(end + 1), index + 1);
  }
}

TEST(LatencyHistogram, ValuesBelow32AreExact) {
  LatencyHistogram histogram;
  for (std::int64_t ns = 1; ns <= 31; ++ns) {
    histogram.record(Duration::nanoseconds(ns));
  }
  EXPECT_EQ(histogram.percentile(0.5).ns, 16);
  EXPECT_EQ(histogram.percentile(1.0).ns, 31);
  EXPECT_EQ(histogram.percentile(0.0).ns, 1);
}

TEST(LatencyHistogram, PercentilesAreNeverLowAndAtMostOne32ndHigh) {
  Prng random(7);
  auto histogram = std::make_unique<LatencyHistogram>();
  std::vector<std::int64_t> values;
  for (int i = 0; i < 20000; ++i) {
    const auto ns = static_cast<std::int64_t>(random.next() >> (24 + random.below(40)));
    const std::int64_t clamped = std::min(ns, LatencyHistogram::kLargestNs);
    values.push_back(clamped);
    histogram->record(Duration::nanoseconds(ns));
  }
  std::sort(values.begin(), values.end());
  for (const double quantile : {0.001, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<std::size_t>(quantile * static_cast<double>(values.size()) + 0.999999);
    const std::int64_t exact = values[std::max<std::size_t>(rank, 1) - 1];
    const std::int64_t read = histogram->percentile(quantile).ns;
    EXPECT_GE(read, exact) << quantile;
    EXPECT_LE(read, exact + exact / 32 + 1) << quantile;
  }
  EXPECT_EQ(histogram->maximum().ns, values.back());
}

TEST(LatencyHistogram, ClampsNegativeAndHugeValues) {
  LatencyHistogram histogram;
  histogram.record(Duration::nanoseconds(-5));
  histogram.record(Duration{INT64_MAX});
  EXPECT_EQ(histogram.count(), 2U);
  EXPECT_EQ(histogram.percentile(0.5).ns, 0);
  EXPECT_EQ(histogram.maximum().ns, LatencyHistogram::kLargestNs);
}

TEST(LatencyHistogram, MergeEqualsRecordingInOne) {
  LatencyHistogram first, second, together;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const Duration latency = Duration::nanoseconds(i * i);
    (i % 3 == 0 ? first : second).record(latency);
    together.record(latency);
  }
  first.merge(second);
  EXPECT_EQ(first.count(), together.count());
  EXPECT_EQ(first.mean(), together.mean());
  EXPECT_EQ(first.maximum(), together.maximum());
  for (std::size_t index = 0; index < LatencyHistogram::kBuckets; ++index) {
    ASSERT_EQ(first.bucket_count(index), together.bucket_count(index));
  }
}

}  // namespace
}  // namespace ringway
