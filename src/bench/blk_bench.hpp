// The block workload: drives any vhost-user-blk back-end in a closed loop and says what rate, latency and CPU cost it got.
//
// One thread per queue, or fewer that serve several queues each. A thread keeps `depth` requests in flight on each of its
// queues; when one completes it sends the next at once, and publishes once per batch of completions.
//
// Writes, where the workload has any, overwrite the disk's contents within the given range.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.hpp"
#include "base/time.hpp"
#include "driver/shared_memory.hpp"
#include "metrics/latency_histogram.hpp"

namespace ringway {

enum class BlkBenchPattern : std::uint8_t { sequential, random };

struct BlkBenchOptions {
  std::string socket_path = {};
  Duration patience = Duration::seconds(5);  // for the socket to appear

  // The workload.
  std::uint32_t read_percent = 100;  // 100: reads only, 0: writes only
  BlkBenchPattern pattern = BlkBenchPattern::random;
  std::uint32_t block_bytes = 4096;  // of one request; a multiple of 512 and of the disk's logical block
  std::uint32_t segments = 1;        // buffers that a request's data is split into
  std::uint32_t depth = 32;          // requests in flight on each queue
  std::uint32_t queues = 1;
  std::uint32_t threads = 0;       // driver threads; 0: one per queue
  std::uint64_t offset_bytes = 0;  // where on the disk the workload plays
  std::uint64_t range_bytes = 0;   // 0: to the disk's end (with `verify`: 256 MiB at most)
  std::uint64_t seed = 1;

  // How long: by time, or until a number of requests.
  Duration warm_up = Duration::milliseconds(500);  // not measured
  Duration runtime = Duration::seconds(5);
  // If not 0: exactly so many are sent and measured, over all threads, unless `runtime` ends before. The warm-up's are
  // others.
  std::uint64_t requests = 0;

  // How the driver waits for completions: spinning on the ring with calls suppressed, or asleep on the call eventfd as a
  // guest's driver does.
  bool sleeping = false;

  // Fills each block with a pattern of its number and of how often it was written, checks it on each read, and reads all of
  // the range back at the end. Each queue has its own part of the range. Costs the driver's side more than the requests do:
  // the rates are then no measure of the back-end. Refused on a read-only disk.
  bool verify = false;

  // Latency is measured for every Nth request. A clock read costs some 25 ns, more than a request does at depth on a fast
  // back-end. 0: all up to depth 4 and of fewer than 2000 requests, else one in 16.
  std::uint32_t latency_every = 0;

  // The rings. What the back-end doesn't offer isn't used; the result says what was.
  std::uint32_t queue_size = 0;  // 0: the least power of two that holds the depth, 128 at least
  bool packed = false;
  bool indirect = true;
  bool event_index = true;
  bool in_order = false;

  MemoryPages pages = MemoryPages::small;
  std::vector<int> driver_cpus;  // thread i runs on driver_cpus[i % size]; empty: where the scheduler puts it
  pid_t backend_pid = 0;         // whose CPU time is reported; 0: the process that listens on the socket

  bool json = false;  // for run_blk_bench: what it prints
  // Told once, on a thread of its own, when the back-end lets us wait longer than half a second for a session.
  std::function<void(std::string_view)> on_wait = {};
};

struct BlkBenchResult {
  // Over the measured time. Rates and latency are those of requests that ended well; costs are per answer of either kind.
  std::uint64_t requests = 0;    // that ended well
  std::uint64_t failed = 0;      // status not OK
  std::uint64_t mismatched = 0;  // blocks that `verify` found wrong
  double seconds = 0;
  double iops = 0;
  double megabytes_per_second = 0;  // 10⁶ bytes

  // Latency from publish to reap, of every `latency_every`th request.
  std::uint32_t latency_every = 1;
  LatencyHistogram latency;

  // CPU, over the measured time.
  double driver_cpu_seconds = 0;   // of the driver threads
  double driver_run_delay = 0;     // part of the time that the one which had it worst was ready to run without a CPU
  double backend_cpu_seconds = 0;  // of all of the back-end's process; negative if it couldn't be read
  pid_t backend_pid = 0;

  // Notifications, over the measured time.
  std::uint64_t kicks = 0;  // eventfd writes of ours
  std::uint64_t calls = 0;  // eventfd writes of the back-end
  std::uint64_t sleeps = 0;

  // What was negotiated.
  bool packed = false, indirect = false, event_index = false, in_order = false;
  std::uint32_t queue_size = 0;
  std::uint32_t threads = 0;
};

// Errors: options that are impossible or don't go together, whatever the disk is.
[[nodiscard]] Result<> check_blk_bench_options(const BlkBenchOptions& options);

// Errors: what connect_backend() says; options that don't go together; a back-end that stops answering (10 s without a
// completion) or closes the connection.
[[nodiscard]] Result<> measure_blk(const BlkBenchOptions& options, BlkBenchResult& result);

void print_blk_bench(const BlkBenchOptions& options, const BlkBenchResult& result, std::ostream& out);
[[nodiscard]] nlohmann::json blk_bench_json(const BlkBenchOptions& options, const BlkBenchResult& result);

// Measures and prints (text or one JSON object). Returns the exit code: 0; 1 if it couldn't be measured, a request failed,
// or a block was wrong. Errors: as report_error.hpp says.
int run_blk_bench(const BlkBenchOptions& options, std::ostream& out);

}  // namespace ringway
