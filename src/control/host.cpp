// Theory of operation
//
// A device is opening → serving → removing → gone, be it a disk or a network card; what differs between those is in
// served_disk.cpp and served_net.cpp. `opening` exists only for add_disk() and add_net(): a thread of its own opens what is
// served (an open() on a dead network file system takes for ever). A resize runs on such a thread too, while the disk is
// serving. `removing` ends when the endpoint says that the device is detached and no such thread is left; the device is
// destroyed by a message posted from there, since it must not die within its own endpoint's callback.
//
// Draining is the removal of all devices. Its timer bounds it: what is left then is a store that hangs, or an image that is
// still being opened or resized. Nothing of such a device may be freed: the kernel may yet write into guest memory through
// its mappings, and its threads can't be joined. So the whole daemon object is abandoned (see ~Host).

#include "control/host.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>

#include "base/check.hpp"
#include "base/foreign.hpp"
#include "control/api.hpp"
#include "control/report.hpp"
#include "control/served_disk.hpp"
#include "control/served_net.hpp"
#include "control/switches.hpp"
#include "guest/sigbus.hpp"
#include "loop/clock.hpp"
#include "loop/epoll_loop.hpp"
#include "loop/mailbox.hpp"
#include "vhost_user/endpoint.hpp"

namespace ringway {
namespace {

// A device with 64 queues holds about 200 descriptors (kick, call and error of each), and one for each piece of its guest's
// memory, up to 509.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
      spdlog::warn("can't raise RLIMIT_NOFILE to {}: {}", limit.rlim_max,
                   std::error_code(errno, std::generic_category()).message());
    }
  }
}

// Signals that come so close together are one: GNU timeout sends SIGTERM to its child and to the group, a terminal SIGINT to
// all of a pipeline, some of whose members pass it on.
constexpr Duration kOneSignal = Duration::milliseconds(100);

// Where address space is limited (ulimit -v), guests may have most of it. Each thread that allocates or frees would reserve
// 64 MiB for a heap of its own.
void share_heaps_in_a_small_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    static_cast<void>(mallopt(M_ARENA_MAX, 2));
  }
}

HostError refuse(HostRefusal refusal, std::string message) {
  return {refusal, std::move(message)};
}

// A timer that runs a function.
class FunctionTimer final : public TimerHandler {
 public:
  FunctionTimer(Loop& loop, std::move_only_function<void()> function) : loop_(loop), function_(std::move(function)) {}
  FunctionTimer(const FunctionTimer&) = delete;
  FunctionTimer& operator=(const FunctionTimer&) = delete;
  ~FunctionTimer() override { cancel(); }

  void set(Instant when) { loop_.set_timer(*this, when); }
  void cancel() noexcept { loop_.cancel_timer(*this); }
  void on_timer(Instant /*now*/) noexcept override { function_(); }

 private:
  Loop& loop_;
  std::move_only_function<void()> function_;
};

// What is told of a device of some kind, and of that kind only.
template <typename Kind>
using StatusOf = std::conditional_t<std::is_same_v<Kind, ServedDisk>, DiskStatus, NetStatus>;

void fill_in(const ServedDisk& disk, DiskStatus& status) {
  status.store = disk.device()->store_info();
  status.engine_reason = disk.engine_reason();
  status.serial = disk.device()->serial();
  status.oldest_in_flight = disk.device()->oldest_in_flight();
}

void fill_in(const ServedNet& net, NetStatus& status) {
  status.port = net.port_info();
  if (net.device() == nullptr) {
    status.pairs = net.queues();
    return;
  }
  const NetDriverState& driver = net.device()->driver_state();
  status.link = net.device()->link();
  status.mac = driver.mac;
  status.pairs = driver.pairs;
}

}  // namespace

const char* to_string(DeviceState state) noexcept {
  switch (state) {
    case DeviceState::opening:
      return "opening";
    case DeviceState::serving:
      return "serving";
    case DeviceState::removing:
      return "removing";
  }
  return "?";
}

class Host::Daemon {
 public:
  static Result<std::unique_ptr<Daemon>> create(HostOptions options);
  Daemon() = default;
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  ~Daemon();
  Result<> start_api(Host& host);

  Result<> add_at_start(std::vector<std::unique_ptr<ServedDevice>> devices);
  void add(std::unique_ptr<ServedDevice> device, std::move_only_function<void(HostResult<std::string>)> done);
  void remove(const std::string& name, std::move_only_function<void(HostResult<>)> done);
  void resize_disk(const std::string& name, std::uint64_t bytes,
                   std::move_only_function<void(HostResult<std::uint64_t>)> done);
  HostResult<> set_link(const std::string& name, bool up);
  // Kind is ServedDisk or ServedNet.
  template <typename Kind>
  HostResult<StatusOf<Kind>> status(const std::string& name) const;
  template <typename Kind>
  std::vector<StatusOf<Kind>> statuses() const;
  HostResult<DeviceKind> kind_of(const std::string& name) const;
  std::vector<DiskStats> disk_stats() const { return stats<ServedDisk>(final_disk_stats_); }
  std::vector<NetStats> net_stats() const { return stats<ServedNet>(final_net_stats_); }
  std::string stats_report() const;
  Tracing& tracing() { return *tracing_; }
  Result<> set_poll(const std::string& text) { return workers_->set_poll(text); }
  std::map<std::uint32_t, std::string> device_numbers() const;
  HostEnd run();
  void quit(const std::string& reason);
  void quit_now(const std::string& reason);

  [[nodiscard]] Mailbox& mailbox() { return *mailbox_; }
  [[nodiscard]] Loop& loop() { return *loop_; }
  [[nodiscard]] const WorkerPool& workers() const { return *workers_; }
  [[nodiscard]] bool ending() const { return ending_; }
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] bool abandoned() const { return ended_ && end_ != HostEnd::clean; }
  // Nobody will join the threads that hang with their images.
  void detach_helpers() {
    for (const auto& [name, device] : devices_) {
      if (device->helper.joinable()) {
        device->helper.detach();
      }
    }
  }

 private:
  struct Device {
    std::unique_ptr<ServedDevice> served;
    DeviceState state = DeviceState::opening;
    std::unique_ptr<vhost_user::Endpoint> endpoint;  // ends before the device
    std::thread helper;                              // while it opens or resizes the image
    bool detached = false;                           // gone but for its helper
    std::vector<std::move_only_function<void(HostResult<>)>> removers;
    std::unique_ptr<FunctionTimer> patience;  // of the removers
  };

  class SignalWatch final : public FdHandler {
   public:
    explicit SignalWatch(Daemon& daemon) : daemon_(daemon) {}
    SignalWatch(const SignalWatch&) = delete;
    SignalWatch& operator=(const SignalWatch&) = delete;
    ~SignalWatch() override;
    Result<> start();
    void on_ready(std::uint32_t events) noexcept override;

   private:
    void on_signal(int number);
    Daemon& daemon_;
    UniqueFd fd_;
    WatchId watch_;
    sigset_t previous_mask_{};
    bool masked_ = false;
  };

  explicit Daemon(HostOptions options) : options_(std::move(options)) {}

  // `kind` is what was asked for; absent: any. Names those that there are, as far as a person would read on.
  HostError no_such_device(const std::string& name, std::optional<DeviceKind> kind) const;
  // Null: there is none of that kind.
  template <typename Kind>
  Kind* find(const std::string& name) const;
  template <typename Kind, typename Stats>
  std::vector<Stats> stats(const std::vector<Stats>& final_stats) const;
  HostResult<> admit(ServedDevice& device);  // gives it a name
  std::string unique_name(const std::string& wanted) const;
  std::vector<ServedDevice::Holding> held_by_others(const ServedDevice& asking) const;
  Result<> open(ServedDevice& device, const std::vector<ServedDevice::Holding>& held) const;
  Result<> create_device(ServedDevice& device);
  Result<> create_endpoint(Device& device);
  void start_serving(Device& device);
  void on_opened(const std::string& name, Result<> opened, std::move_only_function<void(HostResult<std::string>)> done);
  void on_resized(const std::string& name, const Result<BlkStoreInfo>& info,
                  std::move_only_function<void(HostResult<std::uint64_t>)> done);
  void start_removal(Device& device);
  void flush_workers(const std::string& name);
  void on_detached(const std::string& name);
  void answer_removers(Device& device, const HostResult<>& result);
  // Of the devices, or of those that are being served only.
  [[nodiscard]] std::string counts_text(bool serving_only) const;
  void warn_of_descriptor_limit();
  void end_if_drained();
  void on_drain_deadline();
  void finish(HostEnd end);
  void report() const;
  void watch_workers() {
    workers_->look();
    tracing_->look(clock_now());
    watchdog_->set(clock_now() + limits::kStuckWritePeriod);
  }

  HostOptions options_;
  std::unique_ptr<EpollLoop> loop_;
  std::unique_ptr<Mailbox> mailbox_;  // workers and openers post to it
  std::unique_ptr<WorkerPool> workers_;
  std::optional<Tracing> tracing_;
  Switches switches_;
  std::unique_ptr<SignalWatch> signals_;
  std::map<std::string, std::unique_ptr<Device>> devices_;
  std::unique_ptr<FunctionTimer> drain_timer_;
  std::unique_ptr<FunctionTimer> watchdog_;
  std::unique_ptr<ApiServer> api_;
  std::vector<DiskStats> final_disk_stats_;  // of what was drained at the end
  std::vector<NetStats> final_net_stats_;
  std::uint32_t next_worker_ = 0;
  std::uint64_t descriptors_missing_ = 0;  // as the log has it
  bool ending_ = false;
  Instant ending_since_;
  bool ended_ = false;
  HostEnd end_ = HostEnd::clean;
};

// --- life ---

Result<std::unique_ptr<Host::Daemon>> Host::Daemon::create(HostOptions options) {
  raise_descriptor_limit();
  share_heaps_in_a_small_address_space();
  // A front-end that goes away in the middle of our reply is no reason to die.
  std::signal(SIGPIPE, SIG_IGN);
  // A write beyond a limit on file sizes (ulimit -f, LimitFSIZE=) is that guest's I/O error, not our end.
  std::signal(SIGXFSZ, SIG_IGN);
  RW_TRY(sigbus::install());

  std::unique_ptr<Daemon> daemon(new Daemon(std::move(options)));
  RW_TRY_ASSIGN(daemon->loop_, EpollLoop::create());
  daemon->mailbox_ = std::make_unique<Mailbox>(*daemon->loop_);
  if (daemon->options_.handle_signals) {
    // Before the first thread is started: they inherit the mask.
    daemon->signals_ = std::make_unique<SignalWatch>(*daemon);
    RW_TRY(daemon->signals_->start());
  }
  RW_TRY_ASSIGN(daemon->workers_, WorkerPool::create(daemon->options_.workers));
  daemon->tracing_.emplace(daemon->workers_->ports());
  Daemon* self = daemon.get();
  daemon->drain_timer_ = std::make_unique<FunctionTimer>(*daemon->loop_, [self] { self->on_drain_deadline(); });
  daemon->watchdog_ = std::make_unique<FunctionTimer>(*daemon->loop_, [self] { self->watch_workers(); });
  self->watch_workers();
  return daemon;
}

Result<> Host::Daemon::start_api(Host& host) {
  if (!options_.api_socket.empty()) {
    RW_TRY_ASSIGN(api_, ApiServer::create(options_.api_socket, host));
  }
  return {};
}

Host::Daemon::~Daemon() {
  RW_CHECK(devices_.empty());
  api_.reset();
  workers_.reset();  // joins the threads, which may still post
  if (mailbox_) {
    mailbox_->close();
  }
}

HostEnd Host::Daemon::run() {
  RW_CHECK(mailbox_->is_current());
  while (!ended_) {
    loop_->wait(clock_now(), Instant::never());
    mailbox_->drain();
  }
  api_.reset();
  return end_;
}

void Host::Daemon::quit(const std::string& reason) {
  if (ending_) {
    return;
  }
  ending_ = true;
  if (std::ranges::any_of(devices_, [](const auto& entry) { return entry.second->state == DeviceState::serving; })) {
    spdlog::info("{}: closing {}", reason, counts_text(true));
  }
  drain_timer_->set(clock_now() + options_.stop_deadline);
  for (const auto& [name, device] : devices_) {
    if (device->state == DeviceState::serving) {
      start_removal(*device);
    }
  }
  end_if_drained();
  ending_since_ =
      clock_now();  // not before: closing many devices takes a while, and a signal that came meanwhile is no second
}

void Host::Daemon::quit_now(const std::string& reason) {
  ending_ = true;
  spdlog::warn("{}: ending at once", reason);
  finish(devices_.empty() ? HostEnd::clean : HostEnd::forced);
}

void Host::Daemon::end_if_drained() {
  if (ending_ && devices_.empty()) {
    finish(HostEnd::clean);
  }
}

void Host::Daemon::on_drain_deadline() {
  const std::int64_t waited = options_.stop_deadline.ns / 1'000'000;
  for (const auto& [name, device] : devices_) {
    const std::string label = device->served->label();
    const std::string origin = device->served->origin();
    if (device->state == DeviceState::opening) {
      spdlog::error("{}: opening '{}' still takes after {} ms; giving it up", label, origin, waited);
    } else if (device->detached) {
      spdlog::error("{}: resizing '{}' still takes after {} ms; giving it up", label, origin, waited);
    } else {
      spdlog::error("{}: '{}' hasn't finished its requests after {} ms; giving it up", label, origin, waited);
    }
  }
  finish(HostEnd::hung);
}

void Host::Daemon::finish(HostEnd end) {
  if (!ended_) {
    ended_ = true;
    end_ = end;
    drain_timer_->cancel();
  }
}

// --- signals ---

Result<> Host::Daemon::SignalWatch::start() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    // What a parent chose to ignore stays ignored (nohup, and shells that start jobs in the background).
    struct sigaction current{};
    if (number == SIGTERM || sigaction(number, nullptr, &current) != 0 || current.sa_handler != SIG_IGN) {
      sigaddset(&set, number);
    }
  }
  if (const int code = pthread_sigmask(SIG_BLOCK, &set, &previous_mask_); code != 0) {
    return fail_errno(code, "can't block signals");
  }
  masked_ = true;
  fd_.reset(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_) {
    return fail_errno(errno, "can't create a signalfd");
  }
  RW_TRY_ASSIGN(watch_, daemon_.loop_->watch(fd_.get(), EPOLLIN, *this));
  return {};
}

Host::Daemon::SignalWatch::~SignalWatch() {
  if (watch_) {
    daemon_.loop_->unwatch(watch_);
  }
  if (masked_) {
    pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
  }
}

void Host::Daemon::SignalWatch::on_ready(std::uint32_t /*events*/) noexcept {
  signalfd_siginfo info{};
  while (read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    on_signal(static_cast<int>(info.ssi_signo));
  }
}

void Host::Daemon::SignalWatch::on_signal(int number) {
  if (number == SIGUSR1) {
    daemon_.report();
    return;
  }
  if (!daemon_.ending_) {
    daemon_.quit(fmt::format("SIG{}", sigabbrev_np(number)));
  } else if (clock_now() - daemon_.ending_since_ >= kOneSignal) {
    daemon_.quit_now(fmt::format("a second SIG{}", sigabbrev_np(number)));
  }
}

void Host::Daemon::report() const {
  const std::string text = stats_report();
  if (options_.on_report) {
    options_.on_report(text);
  } else {
    spdlog::info("{}", text);
  }
}

// --- adding ---

std::string Host::Daemon::unique_name(const std::string& wanted) const {
  std::string name = wanted;
  for (unsigned suffix = 2; devices_.contains(name); ++suffix) {
    name = fmt::format("{}-{}", wanted, suffix);
  }
  return name;
}

std::vector<ServedDevice::Holding> Host::Daemon::held_by_others(const ServedDevice& asking) const {
  std::vector<ServedDevice::Holding> held;
  for (const auto& [name, device] : devices_) {
    const ServedDevice& served = *device->served;
    if (&served == &asking || served.device() == nullptr) {
      continue;
    }
    if (const std::optional<ImageId> image = served.image()) {
      held.push_back({served.label(), *image, served.holds_exclusively()});
    }
  }
  return held;
}

HostResult<> Host::Daemon::admit(ServedDevice& device) {
  if (ending_) {
    return std::unexpected(refuse(HostRefusal::ending, "the daemon is ending"));
  }
  if (devices_.size() >= limits::kDevicesMax) {
    return std::unexpected(
        refuse(HostRefusal::not_possible,
               fmt::format("there are {} already, the most that one process serves; start another", counts_text(false))));
  }
  if (device.name().empty()) {
    device.set_name(unique_name(device.default_name()));
  } else if (const auto other = devices_.find(device.name()); other != devices_.end()) {
    return std::unexpected(refuse(HostRefusal::conflict,
                                  fmt::format("{}: there is a {} of that name already; choose another name=", device.label(),
                                              to_string(other->second->served->kind()))));
  }
  const std::string& given_socket = device.options().socket;
  const std::string socket = given_socket.empty() ? "" : normal_socket_path(given_socket);
  for (const auto& [name, other] : devices_) {
    const ServedDevice& served = *other->served;
    if (!socket.empty() && normal_socket_path(served.options().socket) == socket) {
      return std::unexpected(
          refuse(HostRefusal::conflict, fmt::format("{}: the socket '{}' belongs to {} already", device.label(),
                                                    device.options().socket, served.label())));
    }
    if ((device.holds_exclusively() || served.holds_exclusively()) && served.kind() == device.kind() &&
        !device.holds().empty() && served.holds() == device.holds()) {
      return std::unexpected(
          refuse(HostRefusal::conflict,
                 fmt::format("{}: '{}' belongs to {} already: remove that first{}", device.label(), device.origin(),
                             served.label(), device.kind() == DeviceKind::disk ? ", or give both ro" : "")));
    }
  }
  if (!socket.empty() && !options_.api_socket.empty() && normal_socket_path(options_.api_socket) == socket) {
    return std::unexpected(refuse(
        HostRefusal::conflict,
        fmt::format("{}: the socket '{}' is that of the API; choose another", device.label(), device.options().socket)));
  }
  return {};
}

namespace {

// With the device's name.
Error error_of(const ServedDevice& device, const Error& error) {
  return {error.code, fmt::format("{}: {}", device.label(), error.message)};
}

}  // namespace

// Any thread: see ServedDevice::open().
Result<> Host::Daemon::open(ServedDevice& device, const std::vector<ServedDevice::Holding>& held) const {
  if (Result<> opened = device.open(workers_->has_uring(), held); !opened) {
    return std::unexpected(error_of(device, opened.error()));
  }
  return {};
}

Result<> Host::Daemon::create_device(ServedDevice& device) {
  RW_TRY(device.create_device({.workers = *workers_,
                               .switches = switches_,
                               .first_worker = next_worker_,
                               .stop_deadline = options_.stop_deadline,
                               .control = *mailbox_}));
  // The next device's first queue goes to the worker after this one's last.
  next_worker_ = static_cast<std::uint32_t>((next_worker_ + device.queues()) % workers_->ports().size());
  return {};
}

Result<> Host::Daemon::create_endpoint(Device& device) {
  if (device.served->device() == nullptr) {
    return {};
  }
  const DeviceOptions& wanted = device.served->options();
  vhost_user::EndpointOptions options;
  options.path = wanted.socket;
  options.connect = wanted.connect;
  options.mode = wanted.mode;
  Result<std::unique_ptr<vhost_user::Endpoint>> endpoint =
      vhost_user::Endpoint::create(options, *loop_, *device.served->device());
  if (!endpoint) {
    return std::unexpected(error_of(*device.served, endpoint.error()));
  }
  device.endpoint = std::move(*endpoint);
  return {};
}

void Host::Daemon::start_serving(Device& device) {
  device.state = DeviceState::serving;
  const DeviceOptions& options = device.served->options();
  if (device.endpoint == nullptr) {
    spdlog::info("{}: {}", device.served->label(), device.served->summary());
    return;
  }
  spdlog::info("{}: {}, {} {}", device.served->label(), device.served->summary(), options.connect ? "connects to" : "socket",
               options.socket);
}

// Each device that is added makes it a little worse; said again when it is twice as bad.
void Host::Daemon::warn_of_descriptor_limit() {
  const auto [wanted, possible] = ForeignHoldings::descriptor_budget();
  if (wanted <= possible || wanted - possible < 2 * descriptors_missing_) {
    return;
  }
  descriptors_missing_ = wanted - possible;
  spdlog::warn(
      "the limit of open files leaves {} to front-ends, and the devices may need {}: one of them may find too few when "
      "others have taken many; raise the limit (ulimit -Hn, systemd: LimitNOFILE=) by {}, or serve fewer devices",
      possible, wanted, descriptors_missing_);
}

Result<> Host::Daemon::add_at_start(std::vector<std::unique_ptr<ServedDevice>> devices) {
  std::vector<std::string> names;
  const auto add_all = [&]() -> Result<> {
    for (std::unique_ptr<ServedDevice>& served : devices) {
      if (HostResult<> admitted = admit(*served); !admitted) {
        return fail(admitted.error().message);
      }
      RW_TRY(open(*served, held_by_others(*served)));
      RW_TRY(create_device(*served));
      const std::string name = served->name();
      names.push_back(name);
      auto device = std::make_unique<Device>();
      device->served = std::move(served);
      devices_.emplace(name, std::move(device));
    }
    for (const std::string& name : names) {
      RW_TRY(create_endpoint(*devices_.at(name)));
    }
    return {};
  };
  Result<> added = add_all();
  for (const std::string& name : names) {
    if (added) {
      start_serving(*devices_.at(name));
    } else {
      start_removal(*devices_.at(name));  // ~Host lets it end
    }
  }
  warn_of_descriptor_limit();
  return added;
}

void Host::Daemon::add(std::unique_ptr<ServedDevice> served, std::move_only_function<void(HostResult<std::string>)> done) {
  if (HostResult<> admitted = admit(*served); !admitted) {
    done(std::unexpected(admitted.error()));
    return;
  }
  auto device = std::make_unique<Device>();
  device->served = std::move(served);
  ServedDevice& opened = *device->served;
  // Shared, so that it is still here to be answered when the thread can't be started.
  auto answer = std::make_shared<std::move_only_function<void(HostResult<std::string>)>>(std::move(done));
  try {
    // What the thread touches is there until on_opened() has joined it, unless the daemon is abandoned.
    device->helper = std::thread([this, &opened, held = held_by_others(opened), answer] {
      mailbox_->post([this, name = opened.name(), answer, result = open(opened, held)]() mutable {
        on_opened(name, std::move(result), std::move(*answer));
      });
    });
  } catch (const std::system_error& error) {
    (*answer)(
        std::unexpected(refuse(HostRefusal::not_possible, fmt::format("{}: can't start a thread to open '{}': {}",
                                                                      opened.label(), opened.origin(), error.what()))));
    return;
  }
  devices_.emplace(opened.name(), std::move(device));
}

void Host::Daemon::on_opened(const std::string& name, Result<> opened,
                             std::move_only_function<void(HostResult<std::string>)> done) {
  Device& device = *devices_.at(name);
  device.helper.join();  // it has nothing left to do
  Result<> made = std::move(opened);
  if (made && !ending_) {
    made = create_device(*device.served);
    if (made) {
      made = create_endpoint(device);
    }
  }
  if (made && !ending_) {
    start_serving(device);
    warn_of_descriptor_limit();
    done(name);
    return;
  }
  HostError error =
      ending_ ? refuse(HostRefusal::ending, "the daemon is ending")
              : refuse(made.error().code == EBUSY ? HostRefusal::conflict : HostRefusal::not_possible, made.error().message);
  if (device.served->is_made()) {
    device.removers.emplace_back([done = std::move(done), error = std::move(error)](const HostResult<>& /*gone*/) mutable {
      done(std::unexpected(std::move(error)));
    });
    start_removal(device);
    return;
  }
  devices_.erase(name);
  done(std::unexpected(std::move(error)));
  end_if_drained();
}

// Names those that there are, as far as a person would read on.
HostError Host::Daemon::no_such_device(const std::string& name, std::optional<DeviceKind> kind) const {
  constexpr std::size_t kNamesMax = 16;
  if (const auto other = devices_.find(name); other != devices_.end()) {
    return refuse(HostRefusal::not_found, fmt::format("there is no {} '{}', but a {} of that name", to_string(*kind), name,
                                                      to_string(other->second->served->kind())));
  }
  std::vector<std::string> names;
  for (const auto& [other, device] : devices_) {
    if (!kind || device->served->kind() == *kind) {
      names.push_back(other);
    }
  }
  const std::string more = names.size() > kNamesMax ? fmt::format(" and {} more", names.size() - kNamesMax) : "";
  names.resize(std::min(names.size(), kNamesMax));
  return refuse(HostRefusal::not_found,
                fmt::format("there is no {} '{}'; {}{}{}", kind ? to_string(*kind) : "device", name,
                            names.empty() ? "none is served" : "there are: ", fmt::join(names, ", "), more));
}

template <typename Kind>
Kind* Host::Daemon::find(const std::string& name) const {
  const auto found = devices_.find(name);
  return found == devices_.end() ? nullptr : dynamic_cast<Kind*>(found->second->served.get());
}

std::string Host::Daemon::counts_text(bool serving_only) const {
  const auto count = [&](DeviceKind kind) {
    return static_cast<std::size_t>(std::ranges::count_if(devices_, [&](const auto& entry) {
      return entry.second->served->kind() == kind && (!serving_only || entry.second->state == DeviceState::serving);
    }));
  };
  return devices_text(count(DeviceKind::disk), count(DeviceKind::net));
}

// --- removing ---

void Host::Daemon::remove(const std::string& name, std::move_only_function<void(HostResult<>)> done) {
  const auto found = devices_.find(name);
  if (found == devices_.end()) {
    done(std::unexpected(no_such_device(name, {})));
    return;
  }
  Device& device = *found->second;
  if (device.state == DeviceState::opening) {
    done(std::unexpected(refuse(HostRefusal::conflict, fmt::format("{} is still being opened", device.served->label()))));
    return;
  }
  device.removers.push_back(std::move(done));
  if (device.state == DeviceState::serving) {
    start_removal(device);
  }
  if (device.patience == nullptr) {
    device.patience = std::make_unique<FunctionTimer>(*loop_, [this, &device] {
      answer_removers(device, std::unexpected(refuse(
                                  HostRefusal::pending,
                                  fmt::format("{}: its requests in flight are not finished yet; it goes when they are",
                                              device.served->label()))));
    });
  }
  device.patience->set(clock_now() + options_.stop_deadline);
}

void Host::Daemon::start_removal(Device& device) {
  device.state = DeviceState::removing;
  auto flush = [this, name = device.served->name()] { mailbox_->post([this, name] { flush_workers(name); }); };
  if (device.endpoint == nullptr) {
    flush();  // it could not be made
  } else {
    device.endpoint->close(std::move(flush));
  }
}

// No session is left, and perhaps there never was one. Messages to the workers may be on their way all the same (the first
// of a device, a resize); one more detach comes behind the last of them.
void Host::Daemon::flush_workers(const std::string& name) {
  devices_.at(name)->served->detach([this, name](const Result<>&) { mailbox_->post([this, name] { on_detached(name); }); });
}

void Host::Daemon::on_detached(const std::string& name) {
  const auto found = devices_.find(name);
  RW_CHECK(found != devices_.end());
  if (found->second->helper.joinable()) {
    found->second->detached = true;  // on_resized() comes back here
    return;
  }
  if (ending_) {
    if (const auto* disk = find<ServedDisk>(name)) {
      final_disk_stats_.push_back(disk->stats());
    } else if (const auto* net = find<ServedNet>(name)) {
      final_net_stats_.push_back(net->stats());
    }
  }
  const std::unique_ptr<Device> device = std::move(found->second);
  devices_.erase(found);
  if (device->endpoint != nullptr) {
    device->endpoint.reset();
    spdlog::info("{}: closed", device->served->label());
  } else if (device->served->is_made() && device->served->device() == nullptr) {
    spdlog::info("{}: closed", device->served->label());
  }
  device->served.reset();
  answer_removers(*device, {});
  end_if_drained();
}

void Host::Daemon::answer_removers(Device& device, const HostResult<>& result) {
  for (auto& remover : std::exchange(device.removers, {})) {
    remover(result);
  }
}

// --- resizing ---

void Host::Daemon::resize_disk(const std::string& name, std::uint64_t bytes,
                               std::move_only_function<void(HostResult<std::uint64_t>)> done) {
  const ServedDisk* disk = find<ServedDisk>(name);
  if (disk == nullptr) {
    done(std::unexpected(no_such_device(name, DeviceKind::disk)));
    return;
  }
  Device& device = *devices_.at(name);
  if (device.state != DeviceState::serving || device.helper.joinable()) {
    done(std::unexpected(refuse(HostRefusal::conflict, device.state == DeviceState::serving
                                                           ? fmt::format("disk '{}' is being resized already", name)
                                                           : fmt::format("disk '{}' is {}, so it can't be resized", name,
                                                                         to_string(device.state)))));
    return;
  }
  // Shared, so that it is still here to be answered when the thread can't be started.
  auto answer = std::make_shared<std::move_only_function<void(HostResult<std::uint64_t>)>>(std::move(done));
  try {
    // The device stays while its helper runs.
    device.helper = std::thread([this, name, bytes, resized = disk->device(), answer] {
      mailbox_->post(
          [this, name, answer, info = resized->resize_store(bytes)] { on_resized(name, info, std::move(*answer)); });
    });
  } catch (const std::system_error& error) {
    (*answer)(
        std::unexpected(refuse(HostRefusal::not_possible, fmt::format("disk '{}': can't start a thread to resize '{}': {}",
                                                                      name, disk->origin(), error.what()))));
  }
}

void Host::Daemon::on_resized(const std::string& name, const Result<BlkStoreInfo>& info,
                              std::move_only_function<void(HostResult<std::uint64_t>)> done) {
  Device& device = *devices_.at(name);
  device.helper.join();  // it has nothing left to do
  if (!info) {
    done(std::unexpected(refuse(HostRefusal::not_possible, fmt::format("disk '{}': {}", name, info.error().message))));
  } else if (device.state != DeviceState::serving) {
    done(std::unexpected(
        refuse(HostRefusal::conflict, fmt::format("disk '{}' is {} by now", name, to_string(device.state)))));
  } else {
    BlkDevice& disk = *find<ServedDisk>(name)->device();
    const std::uint64_t before = disk.store_info().capacity_bytes;
    disk.adopt(*info);
    if (info->capacity_bytes != before) {
      spdlog::info("disk '{}': {} instead of {}", name, bytes_text(info->capacity_bytes), bytes_text(before));
    }
    done(info->capacity_bytes);
  }
  if (device.detached) {
    on_detached(name);
  }
}

// --- asking ---

template <typename Kind>
HostResult<StatusOf<Kind>> Host::Daemon::status(const std::string& name) const {
  const Kind* served = find<Kind>(name);
  if (served == nullptr) {
    return std::unexpected(no_such_device(name, std::is_same_v<Kind, ServedDisk> ? DeviceKind::disk : DeviceKind::net));
  }
  const Device& device = *devices_.at(name);
  StatusOf<Kind> status;
  status.options = served->options();
  status.state = device.state;
  if (served->is_made()) {
    fill_in(*served, status);
  }
  if (served->device() != nullptr) {
    status.acked_features = served->device()->acked_features();
  }
  if (device.endpoint != nullptr) {
    status.connected = device.endpoint->connected();
    status.sessions = device.endpoint->sessions();
  }
  return status;
}

template <typename Kind>
std::vector<StatusOf<Kind>> Host::Daemon::statuses() const {
  std::vector<StatusOf<Kind>> all;
  for (const auto& entry : devices_) {
    if (find<Kind>(entry.first) != nullptr) {
      all.push_back(*status<Kind>(entry.first));
    }
  }
  return all;
}

HostResult<DeviceKind> Host::Daemon::kind_of(const std::string& name) const {
  const auto found = devices_.find(name);
  if (found == devices_.end()) {
    return std::unexpected(no_such_device(name, {}));
  }
  return found->second->served->kind();
}

template <typename Kind, typename Stats>
std::vector<Stats> Host::Daemon::stats(const std::vector<Stats>& final_stats) const {
  std::vector<Stats> all = final_stats;
  for (const auto& entry : devices_) {
    if (const Kind* served = find<Kind>(entry.first); served != nullptr && served->is_made()) {
      all.push_back(served->stats());
    }
  }
  std::ranges::sort(all, {}, &Stats::name);
  return all;
}

std::string Host::Daemon::stats_report() const {
  nlohmann::json workers = nlohmann::json::array();
  for (const WorkerStats& worker : workers_->stats()) {
    workers.push_back(worker_stats_json(worker));
  }
  return stats_table(stats_json(disk_stats(), net_stats())) + workers_table(workers);
}

std::map<std::uint32_t, std::string> Host::Daemon::device_numbers() const {
  std::map<std::uint32_t, std::string> names;
  for (const auto& [name, device] : devices_) {
    if (device->served->device() != nullptr) {
      names.emplace(device->served->device()->number(), name);
    }
  }
  return names;
}

// --- the cable ---

HostResult<> Host::Daemon::set_link(const std::string& name, bool up) {
  const ServedNet* net = find<ServedNet>(name);
  if (net == nullptr) {
    return std::unexpected(no_such_device(name, DeviceKind::net));
  }
  if (devices_.at(name)->state != DeviceState::serving) {
    return std::unexpected(refuse(HostRefusal::conflict, fmt::format("net '{}' is {}, so its link can't be set", name,
                                                                     to_string(devices_.at(name)->state))));
  }
  if (net->device() == nullptr) {
    return std::unexpected(
        refuse(HostRefusal::conflict, fmt::format("net '{}' is an uplink: no guest sees its link", name)));
  }
  net->device()->set_link(up);
  return {};
}

// --- Host ---

Host::Host(std::unique_ptr<Daemon> daemon) : daemon_(std::move(daemon)) {}

Host::~Host() {
  if (!daemon_->ended()) {
    daemon_->quit("stopping");
    static_cast<void>(daemon_->run());
  }
  if (daemon_->abandoned()) {
    // Kept reachable, so that a leak checker can tell it from a leak.
    static auto* const abandoned = new std::vector<Daemon*>;
    daemon_->detach_helpers();
    abandoned->push_back(daemon_.release());
  }
}

Result<std::unique_ptr<Host>> Host::create(HostOptions options) {
  RW_TRY_ASSIGN(std::unique_ptr<Daemon> daemon, Daemon::create(std::move(options)));
  std::unique_ptr<Host> host(new Host(std::move(daemon)));
  RW_TRY(host->daemon_->start_api(*host));
  return host;
}

Executor& Host::executor() noexcept {
  return daemon_->mailbox();
}
Loop& Host::loop() noexcept {
  return daemon_->loop();
}
Result<> Host::add_devices(std::vector<DiskOptions> disks, std::vector<NetOptions> nets) {
  std::vector<std::unique_ptr<ServedDevice>> devices;
  devices.reserve(disks.size() + nets.size());
  for (DiskOptions& disk : disks) {
    devices.push_back(std::make_unique<ServedDisk>(std::move(disk)));
  }
  for (NetOptions& net : nets) {
    devices.push_back(std::make_unique<ServedNet>(std::move(net)));
  }
  return daemon_->add_at_start(std::move(devices));
}

void Host::add_disk(DiskOptions disk, std::move_only_function<void(HostResult<std::string>)> done) {
  daemon_->add(std::make_unique<ServedDisk>(std::move(disk)), std::move(done));
}

void Host::add_net(NetOptions net, std::move_only_function<void(HostResult<std::string>)> done) {
  daemon_->add(std::make_unique<ServedNet>(std::move(net)), std::move(done));
}

void Host::remove_device(const std::string& name, std::move_only_function<void(HostResult<>)> done) {
  daemon_->remove(name, std::move(done));
}

void Host::resize_disk(const std::string& name, std::uint64_t bytes,
                       std::move_only_function<void(HostResult<std::uint64_t>)> done) {
  daemon_->resize_disk(name, bytes, std::move(done));
}

HostResult<> Host::set_link(const std::string& name, bool up) {
  return daemon_->set_link(name, up);
}

std::vector<DiskStatus> Host::disks() const {
  return daemon_->statuses<ServedDisk>();
}
HostResult<DiskStatus> Host::disk(const std::string& name) const {
  return daemon_->status<ServedDisk>(name);
}
std::vector<NetStatus> Host::nets() const {
  return daemon_->statuses<ServedNet>();
}
HostResult<NetStatus> Host::net(const std::string& name) const {
  return daemon_->status<ServedNet>(name);
}
HostResult<DeviceKind> Host::kind_of(const std::string& name) const {
  return daemon_->kind_of(name);
}
std::vector<DiskStats> Host::stats() const {
  return daemon_->disk_stats();
}
std::vector<NetStats> Host::net_stats() const {
  return daemon_->net_stats();
}
std::vector<WorkerStats> Host::worker_stats() const {
  return daemon_->workers().stats();
}
const WorkerPool& Host::workers() const noexcept {
  return daemon_->workers();
}
Result<> Host::set_poll(const std::string& text) {
  return daemon_->set_poll(text);
}
TraceStatus Host::trace_status() const {
  return daemon_->tracing().status();
}
void Host::set_trace(std::uint32_t every, bool records) {
  daemon_->tracing().set(every, records, clock_now());
}
std::vector<StageRecord> Host::take_trace(std::size_t most) {
  return daemon_->tracing().take(most, clock_now());
}
std::map<std::uint32_t, std::string> Host::device_numbers() const {
  return daemon_->device_numbers();
}
std::string Host::stats_report() const {
  return daemon_->stats_report();
}
HostEnd Host::run() {
  return daemon_->run();
}

void Host::quit(std::string reason) {
  daemon_->mailbox().post([daemon = daemon_.get(), why = std::move(reason)] { daemon->quit(why); });
}

void Host::quit_now(std::string reason) {
  daemon_->mailbox().post([daemon = daemon_.get(), why = std::move(reason)] { daemon->quit_now(why); });
}

bool Host::ending() const noexcept {
  return daemon_->ending();
}

}  // namespace ringway
