// The whole daemon as one object: a control loop, workers, and disks and network cards by name. `ringway serve` is a thin
// shell around it; a VMM that wants its back-end inside the process can use it in the same way.
//
// Threads: create(), run() and every call but executor().post() and quit() belong to one thread, the control thread. It
// never waits: images and interfaces are opened by short-lived threads, sockets are non-blocking, and what needs workers is
// answered later. Other threads reach the host by executor().post().
//
// Life: create → add_devices / add_disk / add_net … → run() until quit() → destroy. quit() drains: every endpoint stops
// accepting and closes its session, every device waits for its requests in flight. A store that hangs can't be waited for
// (the kernel may write into guest memory at any later time, hard limit of direct I/O), so run() then ends with
// HostEnd::hung after the stop deadline, and the memory and the threads behind that disk are given up, never freed: the
// process should end soon.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "control/disk_options.hpp"
#include "control/net_options.hpp"
#include "control/tracing.hpp"
#include "device/blk_device.hpp"
#include "device/net_device.hpp"
#include "device/net_uplink.hpp"
#include "loop/executor.hpp"
#include "loop/loop.hpp"
#include "worker/worker_pool.hpp"

namespace ringway {

struct HostOptions {
  WorkerPoolOptions workers;
  Duration stop_deadline = limits::kStopDeadline;  // of one ring (GET_VRING_BASE) and of the drain at the end
  // SIGTERM, SIGINT, SIGHUP: drain; a second one, 100 ms later or more: end at once. SIGUSR1: on_report. Blocks them in the
  // calling thread, and so in all threads that it starts. An embedding process leaves this off.
  bool handle_signals = false;
  // Path of the local API's socket; empty: none. It is served from the first turn of run() on.
  std::string api_socket;
  // Called on SIGUSR1 with Host::stats_report(); without it the report goes to the log.
  std::function<void(const std::string& report)> on_report;
};

enum class DeviceState : std::uint8_t { opening, serving, removing };
[[nodiscard]] const char* to_string(DeviceState state) noexcept;

struct DeviceStatus {
  DeviceState state = DeviceState::opening;
  bool connected = false;
  std::uint64_t sessions = 0;
  std::uint64_t acked_features = 0;
};

struct DiskStatus : DeviceStatus {
  DiskOptions options;        // with its name
  BlkStoreInfo store;         // valid unless opening, and
  std::string engine_reason;  // why this engine, and
  std::string serial;
  Duration oldest_in_flight;  // of its requests, at least: RingStats::oldest_in_flight
};

struct NetStatus : DeviceStatus {
  NetOptions options;       // with its name and address
  NetPortInfo port;         // valid unless opening, and
  bool link = true;         // as the guest is shown it, and
  NetMac mac{};             // that it has now: the guest may set one, and
  std::uint32_t pairs = 1;  // that the guest uses, if it has said so
};

struct DiskStats {
  std::string name;
  BlkDeviceStats stats;
};

struct NetStats {
  std::string name;
  NetDeviceStats stats;                  // of a card
  std::optional<NetUplinkStats> uplink;  // of an uplink, which has nothing else
};

// How a request to the host failed, for who has to tell a client's fault from the environment's (the API's status codes).
enum class HostRefusal : std::uint8_t {
  not_found,     // no device of that name
  conflict,      // the name, the socket, the image or the interface is taken, or the device is being opened or removed
  not_possible,  // the environment said no: the text says what and why
  ending,        // quit() was called
  pending,       // not refused: it goes on, but takes longer than the stop deadline
};
struct HostError {
  HostRefusal refusal = HostRefusal::not_possible;
  std::string message;
};
template <typename T = void>
using HostResult = std::expected<T, HostError>;

enum class HostEnd : std::uint8_t {
  clean,   // all drained
  hung,    // a store didn't answer within the stop deadline; each such device was named in the log
  forced,  // the second signal, or quit_now()
};

class Host {
 public:
  // Raises RLIMIT_NOFILE to its hard limit, ignores SIGPIPE and SIGXFSZ, installs the SIGBUS handler, starts the workers.
  // Errors: as WorkerPool::create; the API's socket is taken by another instance or can't be made.
  [[nodiscard]] static Result<std::unique_ptr<Host>> create(HostOptions options);
  // Quits and drains first if run() hasn't done so.
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  [[nodiscard]] Executor& executor() noexcept;
  [[nodiscard]] Loop& loop() noexcept;

  // Names are unique over disks and network cards.
  //
  // Before run(): opens all images and interfaces first and only then makes the sockets, so that no front-end can connect to
  // a host that is about to fail; all or none. Blocks on slow storage.
  [[nodiscard]] Result<> add_devices(std::vector<DiskOptions> disks, std::vector<NetOptions> nets);
  [[nodiscard]] Result<> add_disks(std::vector<DiskOptions> disks) { return add_devices(std::move(disks), {}); }
  // Opens the image or interface on a thread of its own; `done` is called on the control thread with the device's name.
  void add_disk(DiskOptions disk, std::move_only_function<void(HostResult<std::string>)> done);
  void add_net(NetOptions net, std::move_only_function<void(HostResult<std::string>)> done);
  // The socket disappears and the session ends at once; `done` when nothing of the device is left, or with
  // HostRefusal::pending when that takes longer than the stop deadline (the removal goes on).
  void remove_device(const std::string& name, std::move_only_function<void(HostResult<>)> done);
  // `bytes` = 0: only looks at the image again. On a thread of its own, one at a time for each disk; `done` is called on the
  // control thread with the new capacity.
  void resize_disk(const std::string& name, std::uint64_t bytes,
                   std::move_only_function<void(HostResult<std::uint64_t>)> done);

  // The cable of a network card, as its guest is shown it.
  [[nodiscard]] HostResult<> set_link(const std::string& name, bool up);

  [[nodiscard]] std::vector<DiskStatus> disks() const;  // by name
  [[nodiscard]] HostResult<DiskStatus> disk(const std::string& name) const;
  [[nodiscard]] std::vector<NetStatus> nets() const;
  [[nodiscard]] HostResult<NetStatus> net(const std::string& name) const;
  [[nodiscard]] HostResult<DeviceKind> kind_of(const std::string& name) const;
  // Of the disks and network cards that are being served or removed, by name.
  [[nodiscard]] std::vector<DiskStats> stats() const;
  [[nodiscard]] std::vector<NetStats> net_stats() const;
  [[nodiscard]] std::vector<WorkerStats> worker_stats() const;
  [[nodiscard]] const WorkerPool& workers() const noexcept;

  // Changes the poll policy of all workers. Errors: as parse_poll_policy().
  [[nodiscard]] Result<> set_poll(const std::string& text);

  // How many requests are followed through their stages, and what that has shown.
  [[nodiscard]] TraceStatus trace_status() const;
  // `every`: one in so many, 0: none. `records`: for take_trace(), which has to be called at least each Tracing::kLease.
  void set_trace(std::uint32_t every, bool records);
  [[nodiscard]] std::vector<StageRecord> take_trace(std::size_t most);
  [[nodiscard]] std::map<std::uint32_t, std::string> device_numbers() const;  // names by RingDevice::number()

  // The tables for people: per device and queue, and the workers. After run() it holds the final counts.
  [[nodiscard]] std::string stats_report() const;

  // Serves until quit().
  [[nodiscard]] HostEnd run();
  // Any thread. Drains; run() returns after that. A second call does nothing.
  void quit(std::string reason);
  // Any thread. run() returns without draining.
  void quit_now(std::string reason);
  [[nodiscard]] bool ending() const noexcept;  // control thread

 private:
  class Daemon;
  explicit Host(std::unique_ptr<Daemon> daemon);

  std::unique_ptr<Daemon> daemon_;
};

}  // namespace ringway
