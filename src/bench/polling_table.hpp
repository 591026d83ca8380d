// The table of `bench polling`: what each way to poll gives, store by store. Medians over rounds, and what follows from
// them. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.hpp"

namespace ringway {

// One way to poll.
struct PollingRow {
  std::string name;    // "unset", a window in nanoseconds, or the name of a policy
  std::string policy;  // as parse_poll_policy() takes it
  std::optional<std::uint64_t> window_ns = {};

  bool operator==(const PollingRow&) const = default;
};

// "unset" (the published tables' word for no polling), a window in nanoseconds up to a second (0 polls as little), or never,
// always, grow_shrink, adaptive. Errors tell what is allowed.
[[nodiscard]] Result<PollingRow> parse_polling_row(std::string_view name);
// unset, the windows 0, 1, 2, 4 … 131072 (`quick`: eight of them), and the four policies.
[[nodiscard]] std::vector<PollingRow> polling_rows(bool quick);

// What one run measured. Processor time as a share of one CPU.
struct PollingCell {
  double iops = 0;
  double p50_us = 0;
  double p99_us = 0;
  double worker_user = 0;
  double worker_system = 0;
  double driver = 0;

  // Requests per second of processor time: of the worker alone, and of worker and driver. 0 if there was none.
  [[nodiscard]] double per_worker_second() const;
  [[nodiscard]] double per_cpu_second() const;
};

struct PollingLine {
  PollingRow row;
  PollingCell median = {};  // each figure for itself
  double per_worker_second = 0;
  double per_cpu_second = 0;
  double iops_least = 0;
  double iops_most = 0;
};
// REQUIRES: rounds isn't empty.
[[nodiscard]] PollingLine polling_line(const PollingRow& row, std::span<const PollingCell> rounds);

struct PollingSeries {
  std::string store;  // as it was asked for
  std::vector<PollingLine> lines;
};

// What the policies are held to. A value is absent when a row that it needs was not measured.
struct PollingVerdict {
  std::optional<double> adaptive_of_always;         // IOPS
  std::optional<double> adaptive_of_never;          // IOPS
  std::optional<double> adaptive_per_cpu_of_never;  // IOPS per CPU second, worker and driver
  // The needed window is the shortest one with 0.95 of the best window's IOPS; the worst is the one with the fewest IOPS
  // among those that aren't shorter.
  std::string needed_window, worst_window;
  std::optional<double> worst_of_best;
};
[[nodiscard]] PollingVerdict polling_verdict(const PollingSeries& series);

[[nodiscard]] std::string polling_text(std::span<const PollingSeries> table);
// Begins with the columns of the published tables: series,poll_max_ns,iops.
[[nodiscard]] std::string polling_csv(std::span<const PollingSeries> table);
[[nodiscard]] nlohmann::json polling_json(std::span<const PollingSeries> table);

}  // namespace ringway
