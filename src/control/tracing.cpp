#include "control/tracing.hpp"

#include <algorithm>
#include <utility>

namespace ringway {
namespace {

StageTimes times_of(const std::array<std::uint64_t, StageHistogram::kBuckets>& buckets, std::uint64_t sum_ns) {
  StageTimes times;
  for (const std::uint64_t bucket : buckets) {
    times.count += bucket;
  }
  if (times.count == 0) {
    return times;
  }
  times.mean.ns = static_cast<std::int64_t>(sum_ns / times.count);
  const auto rank = [&](std::uint64_t percent) {
    const std::uint64_t wanted = (times.count * percent + 99) / 100;
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      seen += buckets[i];
      if (seen >= wanted) {
        return Duration{static_cast<std::int64_t>(StageHistogram::bucket_end(i))};
      }
    }
    return Duration{};
  };
  times.p50 = rank(50);
  times.p99 = rank(99);
  return times;
}

}  // namespace

void Tracing::set(std::uint32_t every, bool records, Instant now) {
  if (records && streams_.empty()) {
    every_before_ = every_;
  }
  taken_ = now;
  set_records(records);
  set_every(every);
}

void Tracing::set_every(std::uint32_t every) {
  every_ = every;
  for (const WorkerPort& worker : workers_) {
    worker.executor->post([context = worker.context, every] { context->stages.set_every(every); });
  }
}

void Tracing::set_records(bool records) {
  if (records != streams_.empty()) {
    return;
  }
  streams_.clear();
  for (const WorkerPort& worker : workers_) {
    const std::shared_ptr<StageStream> stream = records ? std::make_shared<StageStream>(kRecordsPerWorker) : nullptr;
    if (records) {
      streams_.push_back(stream);
    }
    worker.executor->post([context = worker.context, stream] { context->stages.set_stream(stream); });
  }
}

std::vector<StageRecord> Tracing::take(std::size_t most, Instant now) {
  taken_ = now;
  std::vector<StageRecord> records;
  for (std::size_t i = 0; i < streams_.size() && records.size() < most; ++i) {
    streams_[(next_ + i) % streams_.size()]->take(records, most - records.size());
  }
  ++next_;
  return records;
}

void Tracing::look(Instant now) {
  if (!streams_.empty() && now - taken_ > kLease) {
    set_records(false);
    set_every(every_before_);
  }
}

TraceStatus Tracing::status() const {
  TraceStatus status{.every = every_, .records = !streams_.empty()};
  for (const auto& stream : streams_) {
    status.dropped += stream->dropped();
  }
  for (const WorkerPort& worker : workers_) {
    status.missed += worker.context->stages.missed();
  }
  for (std::size_t kind = 0; kind < kTracedKinds; ++kind) {
    for (std::size_t interval = 0; interval < kStages; ++interval) {
      std::array<std::uint64_t, StageHistogram::kBuckets> buckets{};
      std::uint64_t sum_ns = 0;
      for (const WorkerPort& worker : workers_) {
        const StageHistogram& histogram = worker.context->stages.histograms().of[kind][interval];
        sum_ns += histogram.sum_ns();
        for (std::size_t i = 0; i < buckets.size(); ++i) {
          buckets[i] += histogram.bucket_count(i);
        }
      }
      status.times[kind][interval] = times_of(buckets, sum_ns);
    }
  }
  return status;
}

}  // namespace ringway
