// The implementation of polling_bench.hpp. (A file named *_bench.cpp would be a micro-benchmark to the build.)
#include "bench/polling_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "base/check.hpp"
#include "bench/blk_bench.hpp"

namespace ringway {
namespace {

// What a process has used so far, in clock ticks. Sampled by the kernel's tick, so coarse, but it tells user from system.
struct CpuTicks {
  std::uint64_t user = 0, system = 0;
};

CpuTicks read_cpu_ticks(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  // The name in field 2 may hold anything; behind its last bracket are the state, field 3, and user and system time, 14 and
  // 15.
  const std::size_t bracket = text.rfind(')');
  CpuTicks ticks;
  if (bracket != std::string::npos) {
    std::istringstream rest(text.substr(bracket + 1));
    std::string skipped;
    for (int field = 3; field < 14; ++field) {
      rest >> skipped;
    }
    rest >> ticks.user >> ticks.system;
  }
  return ticks;
}

BlkBenchOptions workload_of(const PollingBenchOptions& options, const PollingTarget& target) {
  BlkBenchOptions workload;
  workload.socket_path = target.socket_path;
  workload.backend_pid = target.backend_pid;
  workload.pattern = BlkBenchPattern::sequential;
  workload.block_bytes = 4096;
  workload.depth = 1;
  workload.sleeping = true;
  workload.warm_up = options.warm_up;
  workload.runtime = options.runtime;
  workload.driver_cpus = options.driver_cpus;
  return workload;
}

double us_of(Duration duration) {
  return static_cast<double>(duration.ns) * 1e-3;
}

Result<PollingCell> measure_cell(const PollingBenchOptions& options, const std::string& store, const PollingRow& row) {
  RW_TRY_ASSIGN(const PollingTarget target, options.start(store, row));
  const CpuTicks before = read_cpu_ticks(target.backend_pid);
  const auto result = std::make_unique<BlkBenchResult>();
  RW_TRY(measure_blk(workload_of(options, target), *result));
  const CpuTicks after = read_cpu_ticks(target.backend_pid);
  if (result->failed != 0) {
    return fail(fmt::format("{} of {} requests failed", result->failed, result->requests + result->failed));
  }
  if (result->seconds <= 0 || result->backend_cpu_seconds < 0) {
    return fail("the processor time of the back-end can't be read");
  }
  // The warm-up's ticks are among them: it does the same as what follows.
  const std::uint64_t ticks = (after.user - before.user) + (after.system - before.system);
  const double user_part = ticks == 0 ? 0 : static_cast<double>(after.user - before.user) / static_cast<double>(ticks);
  const double worker = result->backend_cpu_seconds / result->seconds;
  return PollingCell{.iops = result->iops,
                     .p50_us = us_of(result->latency.percentile(0.5)),
                     .p99_us = us_of(result->latency.percentile(0.99)),
                     .worker_user = worker * user_part,
                     .worker_system = worker * (1 - user_part),
                     .driver = result->driver_cpu_seconds / result->seconds};
}

Result<PollingSeries> measure_series(const PollingBenchOptions& options, const std::string& store) {
  std::vector<std::vector<PollingCell>> cells(options.rows.size());
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < options.rows.size(); ++i) {
      const std::size_t number = round % 2 == 0 ? i : options.rows.size() - 1 - i;
      const PollingRow& row = options.rows[number];
      if (options.on_progress) {
        options.on_progress(fmt::format("store {}, round {} of {}, {}", store, round + 1, options.rounds, row.name));
      }
      Result<PollingCell> cell = measure_cell(options, store, row);
      if (!cell) {
        return fail(fmt::format("store {}, {}: {}", store, row.name, cell.error().message));
      }
      cells[number].push_back(*cell);
    }
  }
  PollingSeries series{.store = store, .lines = {}};
  for (std::size_t i = 0; i < options.rows.size(); ++i) {
    series.lines.push_back(polling_line(options.rows[i], cells[i]));
  }
  return series;
}

}  // namespace

Result<std::vector<PollingSeries>> measure_polling(const PollingBenchOptions& options) {
  RW_CHECK(options.start && options.rounds > 0);
  std::vector<PollingSeries> table;
  for (const std::string& store : options.stores) {
    RW_TRY_ASSIGN(PollingSeries series, measure_series(options, store));
    table.push_back(std::move(series));
  }
  return table;
}

}  // namespace ringway
