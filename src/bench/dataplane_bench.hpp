// Many disks and a growing number of jobs, by several placements of the disks on workers: rate, and processor time per MB.
// Each job has one disk and one request in flight on it; the disks without a job are connected and idle. The driver sleeps
// until it is called, as a guest's does; each of its threads serves many jobs.
//
// Overwrites the disks' contents.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "bench/dataplane_table.hpp"

namespace ringway {

inline constexpr std::uint32_t kDataplaneDisksMax = 256;  // DriverQueue::kQueuesWaitedMax: one thread may have them all

struct DataplaneTarget {
  std::vector<std::string> socket_paths;  // of each disk
  pid_t backend_pid = 0;
};

struct DataplaneBenchOptions {
  std::vector<std::string> placements = {};  // as `start` understands them; the first one is the baseline
  std::vector<std::uint32_t> jobs = {};      // each up to the number of disks
  std::uint32_t rounds = 3;
  Duration warm_up = Duration::milliseconds(100);  // of each run
  Duration runtime = Duration::milliseconds(500);  // of each run
  std::uint32_t driver_threads = 1;                // at most; never more than jobs
  std::vector<int> driver_cpus = {};               // thread i runs on driver_cpus[i % size]; empty: anywhere
  // Starts a back-end with the disks placed like that; the one before may end, its drivers are gone. REQUIRES: set.
  std::function<Result<DataplaneTarget>(std::string_view placement)> start = {};
  // Told what is measured next; may be empty.
  std::function<void(std::string_view)> on_progress = {};
};

// The table, without a title. Each round starts every placement anew, in an order that turns round with each round, and
// writes its disks once before it measures. Errors: what `start` and the driver say; a request that failed; no completion
// for 10 s.
[[nodiscard]] Result<DataplaneTable> measure_dataplane(const DataplaneBenchOptions& options);

}  // namespace ringway
