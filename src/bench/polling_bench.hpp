// Polling windows and policies compared, in the manner of the published tables: 4 KiB sequential reads at depth 1, by a
// driver that sleeps on its call eventfd as a guest's does, against a back-end with one worker.
//
// Rounds go over the rows one after the other, the first one from the front, the next from the back, so that what drifts
// with time hits all rows alike. Each run has a back-end of its own, which has learnt nothing before.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "bench/polling_table.hpp"

namespace ringway {

struct PollingTarget {
  std::string socket_path;
  pid_t backend_pid = 0;
};

struct PollingBenchOptions {
  std::vector<std::string> stores = {};  // as `start` understands them
  std::vector<PollingRow> rows = {};
  std::uint32_t rounds = 3;
  Duration warm_up = Duration::milliseconds(200);  // of each run
  Duration runtime = Duration::seconds(1);         // of each run
  std::vector<int> driver_cpus = {};               // empty: where the scheduler puts the driver
  // Starts a back-end with that store and policy; the one before may end. REQUIRES: set.
  std::function<Result<PollingTarget>(std::string_view store, const PollingRow& row)> start = {};
  // Told what is measured next; may be empty.
  std::function<void(std::string_view)> on_progress = {};
};

// One series for each store. Errors: what `start` and measure_blk() say, with the row; a request that failed.
[[nodiscard]] Result<std::vector<PollingSeries>> measure_polling(const PollingBenchOptions& options);

}  // namespace ringway
