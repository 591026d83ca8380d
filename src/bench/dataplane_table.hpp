// The table of `bench dataplane`: many disks, a growing number of jobs, and what it costs to serve them by shared workers
// instead of one worker for each disk. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace ringway {

// What each job does, one request at a time.
struct DataplaneWorkload {
  std::string_view name;
  bool sequential = false;
  bool write = false;
  std::uint32_t block_bytes = 0;
};
// The published ones: 128 KiB sequential, 8 KiB random.
inline constexpr std::array<DataplaneWorkload, 4> kDataplaneWorkloads = {
    {{.name = "sequential-read", .sequential = true, .write = false, .block_bytes = 128U << 10U},
     {.name = "sequential-write", .sequential = true, .write = true, .block_bytes = 128U << 10U},
     {.name = "random-read", .sequential = false, .write = false, .block_bytes = 8U << 10U},
     {.name = "random-write", .sequential = false, .write = true, .block_bytes = 8U << 10U}}};

// What one run measured.
struct DataplaneCell {
  double megabytes_per_second = 0;     // 10⁶ bytes
  double backend_us_per_megabyte = 0;  // processor time of the back-end
  double driver_us_per_megabyte = 0;   // and of the driver
};

// One placement's figures for a workload and a number of jobs: medians over rounds.
struct DataplaneEntry {
  std::string placement;
  std::string_view pattern;
  std::uint32_t jobs = 0;
  DataplaneCell median = {};
  double rate_least = 0;  // MB/s
  double rate_most = 0;
};
// REQUIRES: rounds isn't empty.
[[nodiscard]] DataplaneEntry dataplane_entry(std::string placement, std::string_view pattern, std::uint32_t jobs,
                                             std::span<const DataplaneCell> rounds);

// Against the baseline of the same workload and jobs, in per cent. More processor time per MB is worse.
struct DataplaneChange {
  std::string placement;
  std::string_view pattern;
  std::uint32_t jobs = 0;
  double throughput_pct = 0;
  double cpu_pct = 0;        // of the back-end
  double total_cpu_pct = 0;  // of back-end and driver
};

struct DataplaneTable {
  std::string title;                    // what was measured, for the text
  std::string baseline;                 // a placement
  std::vector<DataplaneEntry> entries;  // in the order to be shown; of each workload and number of jobs one per placement
};

// Of each entry that is no baseline's, in their order. Those without a baseline beside them are left out.
[[nodiscard]] std::vector<DataplaneChange> dataplane_changes(const DataplaneTable& table);

[[nodiscard]] std::string dataplane_text(const DataplaneTable& table);
// The changes, with the columns of the published table, pattern,jobs,throughput_pct,cpu_pct, and the figures behind them;
// first the placement.
[[nodiscard]] std::string dataplane_csv(const DataplaneTable& table);
[[nodiscard]] nlohmann::json dataplane_json(const DataplaneTable& table);

}  // namespace ringway
