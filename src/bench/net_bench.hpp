// The network workload: drives any vhost-user-net back-end with numbered frames (net_sequence.hpp), and says what rate,
// loss, latency and CPU cost it got.
//
// One thread per queue pair, or fewer that serve several pairs each. What a thread does:
//   tx    keeps `depth` frames in the transmit ring; sends the next `burst` as soon as so many have come back.
//   rx    takes frames and gives their buffers back. Loss is known if the frames are numbered, as another bench's are.
//   echo  keeps `depth` frames on their way to a back-end that returns them to the pair that sent them, and times each.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.hpp"
#include "base/time.hpp"
#include "bench/net_sequence.hpp"
#include "driver/shared_memory.hpp"
#include "metrics/latency_histogram.hpp"

namespace ringway {

enum class NetBenchDirection : std::uint8_t { tx, rx, echo };
[[nodiscard]] const char* to_string(NetBenchDirection direction) noexcept;

// Whom one run is against.
struct NetBenchTarget {
  std::string socket_path = {};
  pid_t backend_pid = 0;  // whose CPU time is reported; 0: the process that listens on the socket
};

struct NetBenchOptions {
  NetBenchTarget target = {};
  // Gives the target of a run with frames of this length instead, for who starts a back-end for each. No thread of the bench
  // runs meanwhile.
  std::function<Result<NetBenchTarget>(std::uint32_t frame_bytes)> find_target = {};
  Duration patience = Duration::seconds(5);  // for the socket to appear

  // The workload.
  NetBenchDirection direction = NetBenchDirection::tx;
  std::vector<std::uint32_t> frame_bytes = {64};  // from the Ethernet header on, without check sequence; a run for each
  std::uint32_t pairs = 1;
  std::uint32_t threads = 0;  // driver threads; 0: one per pair
  std::uint32_t depth = 128;  // tx, echo: frames in flight of each pair
  std::uint32_t burst = 32;   // tx, echo: frames that are sent at a time; rx: taken at a time at most

  Duration warm_up = Duration::milliseconds(500);  // not measured
  Duration runtime = Duration::seconds(5);

  // How the driver waits: spinning on the rings with calls suppressed, or asleep on the call eventfds as a guest's driver
  // does.
  bool sleeping = false;

  // The rings. What the back-end doesn't offer isn't used; the result says what was.
  std::uint32_t queue_size = 0;  // 0: as the depth needs, 256 at least
  bool packed = false;
  bool indirect = true;
  bool event_index = true;
  bool in_order = false;
  bool mergeable = true;
  std::uint32_t receive_buffer_bytes = 0;  // header included; 0: 2048, or what the longest frame needs without mergeable

  MemoryPages pages = MemoryPages::small;
  std::vector<int> driver_cpus = {};  // thread i runs on driver_cpus[i % size]; empty: where the scheduler puts it

  bool json = false;  // for run_net_bench: what it prints
  // Told once, on a thread of its own, when the back-end lets us wait longer than half a second for a session.
  std::function<void(std::string_view)> on_wait = {};
};

// One run, with frames of one length. Counts are of the measured time unless they say otherwise.
struct NetBenchResult {
  std::uint32_t frame_bytes = 0;  // that we sent; rx: mean of what came
  double seconds = 0;
  std::uint64_t sent = 0;          // came back as used from the transmit ring
  std::uint64_t received = 0;      // frames that arrived, whosever
  double frames_per_second = 0;    // tx: sent; rx and echo: received
  double gigabits_per_second = 0;  // of frames: 10⁹ bits, without preamble, gap and check sequence

  // What arrived of numbered frames since the measured time began, until the last one that was on its way then had come back
  // or was given up.
  NetSequence::Counts numbered;
  std::uint64_t unnumbered = 0;      // frames that bear no number of a bench's
  std::uint64_t stale = 0;           // numbered by an earlier run
  std::uint64_t receive_faults = 0;  // used buffers of whatever kind that make no sense

  LatencyHistogram latency;  // echo: from the publishing of a frame's burst to the look that found it back

  // CPU, over the measured time.
  double driver_cpu_seconds = 0;   // of the driver threads
  double backend_cpu_seconds = 0;  // of all of the back-end's process; negative if it couldn't be read
  pid_t backend_pid = 0;

  // Notifications, over the measured time.
  std::uint64_t kicks = 0;  // eventfd writes of ours
  std::uint64_t calls = 0;  // eventfd writes of the back-end
  std::uint64_t sleeps = 0;

  // What was negotiated.
  bool packed = false, indirect = false, event_index = false, in_order = false, mergeable = false;
  std::uint32_t queue_size = 0;
  std::uint32_t threads = 0;
};

// Errors: options that are impossible or don't go together, whatever the back-end is.
[[nodiscard]] Result<> check_net_bench_options(const NetBenchOptions& options);

// One run. Errors: what connect_backend() says; options that the back-end can't fulfil; a back-end that stops taking frames
// (10 s), that closes the connection, or that has sent no frame where frames were to come.
[[nodiscard]] Result<> measure_net(const NetBenchOptions& options, std::uint32_t frame_bytes, NetBenchResult& result);

using NetBenchResults = std::vector<std::unique_ptr<NetBenchResult>>;
// A paragraph for one result, a table for several.
void print_net_bench(const NetBenchOptions& options, const NetBenchResults& results, std::ostream& out);
[[nodiscard]] nlohmann::json net_bench_json(const NetBenchOptions& options, const NetBenchResults& results);

// Measures each length and prints (text or one JSON object). Returns the exit code: 0; 1 if it couldn't be measured, or used
// buffers made no sense. Loss is a figure, and no failure. Errors: as report_error.hpp says.
int run_net_bench(const NetBenchOptions& options, std::ostream& out);

}  // namespace ringway
