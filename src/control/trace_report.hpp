// Stages and records as JSON for the API, and as text and timelines for people.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "control/tracing.hpp"
#include "trace/stage.hpp"

namespace ringway {

[[nodiscard]] nlohmann::json trace_status_json(const TraceStatus& status);
// `names`: of devices, by number. Times in ns of CLOCK_MONOTONIC; 0: a stage that wasn't passed.
[[nodiscard]] nlohmann::json trace_records_json(const std::vector<StageRecord>& records,
                                                const std::map<std::uint32_t, std::string>& names);

// A record as a client has it.
struct TracedSpan {
  std::string device;
  std::uint32_t queue = 0;
  std::uint32_t worker = 0;
  std::string kind;
  bool failed = false;
  std::uint64_t bytes = 0;
  std::array<std::int64_t, kStages> at{};  // ns; 0: not passed

  [[nodiscard]] Duration whole() const;
};
// Errors: it is no such JSON.
[[nodiscard]] Result<std::vector<TracedSpan>> spans_of_json(const nlohmann::json& records);

// By device and kind: each interval's count, mean, p50, p99 and share of the whole, exact.
[[nodiscard]] std::string stage_table(const std::vector<TracedSpan>& spans);
[[nodiscard]] nlohmann::json stage_table_json(const std::vector<TracedSpan>& spans);
// What the histograms of the daemon hold.
[[nodiscard]] std::string trace_status_table(const nlohmann::json& status);
// In the format of Chrome's tracing, which Perfetto opens: a process for each worker, a track for each queue of a device
// (and more of them where requests overlap), a slice for each request with its intervals below it.
[[nodiscard]] std::string chrome_timeline(const std::vector<TracedSpan>& spans);

}  // namespace ringway
