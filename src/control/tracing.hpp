// The host's side of following requests through their stages: how many are followed, what the workers' histograms hold, and
// whole records for one client at a time.
//
// Owner: control thread. The workers outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/time.hpp"
#include "device/worker_context.hpp"
#include "trace/stage.hpp"
#include "trace/stage_stream.hpp"

namespace ringway {

// Of one kind of request and one interval, over all workers since they started.
struct StageTimes {
  std::uint64_t count = 0;
  Duration mean, p50, p99;
};

struct TraceStatus {
  std::uint32_t every = 0;    // one in so many requests is followed; 0: none
  bool records = false;       // somebody takes records
  std::uint64_t missed = 0;   // not followed though due, since too many were
  std::uint64_t dropped = 0;  // records that nobody took in time
  // By TracedKind; index 0: the whole of a request; s: from the stage before to Stage s.
  std::array<std::array<StageTimes, kStages>, kTracedKinds> times{};
};

class Tracing {
 public:
  // A client that takes no records for so long has gone: records end, and as many are followed as before.
  static constexpr Duration kLease = Duration::seconds(5);
  static constexpr std::size_t kRecordsPerWorker = 16384;
  static constexpr std::uint32_t kEveryMax = 1'000'000'000;

  explicit Tracing(std::span<const WorkerPort> workers) : workers_(workers) {}

  // `records`: whether they are kept for take(), from now on.
  void set(std::uint32_t every, bool records, Instant now);
  // What has come since the last call, `most` at a time.
  [[nodiscard]] std::vector<StageRecord> take(std::size_t most, Instant now);
  [[nodiscard]] TraceStatus status() const;
  // About once a second.
  void look(Instant now);

 private:
  void set_every(std::uint32_t every);
  void set_records(bool records);

  const std::span<const WorkerPort> workers_;
  std::vector<std::shared_ptr<StageStream>> streams_;  // by worker, while records are kept
  std::uint32_t every_ = StageRecorder::kEveryDefault;
  std::uint32_t every_before_ = 0;  // the client came
  Instant taken_ = {};
  std::size_t next_ = 0;  // the worker whose records are taken first
};

}  // namespace ringway
