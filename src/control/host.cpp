// Theory of operation
//
// A disk is opening → serving → removing → gone. `opening` exists only for add_disk(): a thread of its own makes the store
// (an open() on a dead network file system takes for ever) and posts it. A resize runs on such a thread too, while the disk
// is serving. `removing` ends when the endpoint says that the device is detached and no such thread is left; the disk is
// destroyed by a message posted from there, since it must not die within its own endpoint's callback.
//
// Draining is the removal of all disks. Its timer bounds it: what is left then is a store that hangs, or an image that is
// still being opened or resized. Nothing of such a disk may be freed: the kernel may yet write into guest memory through its
// mappings, and its threads can't be joined. So the whole daemon object is abandoned (see ~Host).

#include "control/host.hpp"

#include <fmt/format.h>
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
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "base/check.hpp"
#include "base/foreign.hpp"
#include "control/api.hpp"
#include "control/report.hpp"
#include "guest/sigbus.hpp"
#include "loop/clock.hpp"
#include "loop/epoll_loop.hpp"
#include "loop/mailbox.hpp"
#include "vhost_user/endpoint.hpp"

namespace ringway {
namespace {

// A disk with 64 queues holds about 200 descriptors (kick, call and error of each), and one for each piece of its guest's
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

// A disk and its image, for who looks at images on another thread.
struct HeldImage {
  std::string disk, path;
};

// An image that a disk of ours holds already is locked by "this process itself", which doesn't say which one. Blocks on slow
// storage.
Result<BlkStoreChoice> open_store(const BlkStoreOptions& options, const std::vector<HeldImage>& held) {
  Result<BlkStoreChoice> choice = make_blk_store(options);
  if (choice || !is_file_image(options.path)) {
    return choice;
  }
  const auto holder = std::ranges::find_if(held, [&](const HeldImage& image) {
    std::error_code ignored;
    return std::filesystem::equivalent(image.path, options.path, ignored);
  });
  if (holder != held.end()) {
    choice.error().message += fmt::format("; disk '{}' of this process serves it", holder->disk);
  }
  return choice;
}

// Where address space is limited (ulimit -v), guests may have most of it. Each thread that allocates or frees would reserve
// 64 MiB for a heap of its own.
void share_heaps_in_a_small_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    static_cast<void>(mallopt(M_ARENA_MAX, 2));
  }
}

void warn_of_descriptor_limit() {
  const auto [wanted, possible] = ForeignHoldings::divided();
  if (wanted > possible) {
    spdlog::warn(
        "the limit of open files leaves {} to front-ends, and the disks may need {}: one of them may find too few when "
        "others "
        "have taken many; raise the limit (ulimit -Hn, systemd: LimitNOFILE=) by {}, or serve fewer disks",
        possible, wanted, wanted - possible);
  }
}

BlkStoreOptions store_options(const DiskOptions& disk, bool has_uring) {
  BlkStoreOptions options;
  options.path = disk.path;
  options.read_only = disk.read_only;
  options.direct = disk.direct;
  options.block_bytes = disk.block_bytes;
  options.engine = disk.engine;
  options.loop_has_uring = has_uring;
  options.registered = disk.registered;
  options.faults = disk.faults;
  return options;
}

// Two spellings of one path are one socket.
std::string normal_path(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  return ignored ? path : absolute.lexically_normal().string();
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

}  // namespace

const char* to_string(DiskState state) noexcept {
  switch (state) {
    case DiskState::opening:
      return "opening";
    case DiskState::serving:
      return "serving";
    case DiskState::removing:
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

  Result<> add_disks(std::vector<DiskOptions> disks);
  void add_disk(DiskOptions disk, std::move_only_function<void(HostResult<std::string>)> done);
  void remove_disk(const std::string& name, std::move_only_function<void(HostResult<>)> done);
  void resize_disk(const std::string& name, std::uint64_t bytes,
                   std::move_only_function<void(HostResult<std::uint64_t>)> done);
  std::vector<DiskStatus> disks() const;
  HostResult<DiskStatus> disk(const std::string& name) const;
  std::vector<DiskStats> stats() const;
  std::string stats_report() const;
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
    for (const auto& entry : disks_) {
      if (entry.second->helper.joinable()) {
        entry.second->helper.detach();
      }
    }
  }

 private:
  struct Disk {
    DiskOptions options;
    DiskState state = DiskState::opening;
    std::string engine_reason;
    std::unique_ptr<BlkDevice> device;
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
    Instant ending_since_;  // by a signal
    UniqueFd fd_;
    WatchId watch_;
    sigset_t previous_mask_{};
    bool masked_ = false;
  };

  explicit Daemon(HostOptions options) : options_(std::move(options)) {}

  HostError no_such_disk(const std::string& name) const;
  HostResult<> admit(DiskOptions& disk);  // gives it a name
  std::string unique_name(const std::string& wanted) const;
  std::vector<HeldImage> held_images() const;
  Result<> create_device(Disk& disk, BlkStoreChoice choice);
  Result<> create_endpoint(Disk& disk);
  void start_serving(Disk& disk);
  void on_opened(const std::string& name, Result<BlkStoreChoice> choice,
                 std::move_only_function<void(HostResult<std::string>)> done);
  void on_resized(const std::string& name, const Result<BlkStoreInfo>& info,
                  std::move_only_function<void(HostResult<std::uint64_t>)> done);
  void start_removal(Disk& disk);
  void flush_workers(const std::string& name);
  void on_detached(const std::string& name);
  void answer_removers(Disk& disk, const HostResult<>& result);
  void end_if_drained();
  void on_drain_deadline();
  void finish(HostEnd end);
  void report() const;
  void watch_workers() {
    workers_->free_stuck_writes();
    watchdog_->set(clock_now() + limits::kStuckWritePeriod);
  }

  HostOptions options_;
  std::unique_ptr<EpollLoop> loop_;
  std::unique_ptr<Mailbox> mailbox_;  // workers and openers post to it
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<SignalWatch> signals_;
  std::map<std::string, std::unique_ptr<Disk>> disks_;
  std::unique_ptr<FunctionTimer> drain_timer_;
  std::unique_ptr<FunctionTimer> watchdog_;
  std::unique_ptr<ApiServer> api_;
  std::vector<DiskStats> final_stats_;  // of disks that were drained at the end
  std::uint32_t next_worker_ = 0;
  bool ending_ = false;
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
  RW_CHECK(disks_.empty());
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
  if (!disks_.empty()) {
    spdlog::info("{}: closing {} disk{}", reason, disks_.size(), disks_.size() == 1 ? "" : "s");
  }
  drain_timer_->set(clock_now() + options_.stop_deadline);
  for (const auto& [name, disk] : disks_) {
    if (disk->state == DiskState::serving) {
      start_removal(*disk);
    }
  }
  end_if_drained();
}

void Host::Daemon::quit_now(const std::string& reason) {
  ending_ = true;
  spdlog::warn("{}: ending at once", reason);
  finish(disks_.empty() ? HostEnd::clean : HostEnd::forced);
}

void Host::Daemon::end_if_drained() {
  if (ending_ && disks_.empty()) {
    finish(HostEnd::clean);
  }
}

void Host::Daemon::on_drain_deadline() {
  for (const auto& [name, disk] : disks_) {
    if (disk->state == DiskState::opening) {
      spdlog::error("disk '{}': opening '{}' still takes after {} ms; giving it up", name, disk->options.path,
                    options_.stop_deadline.ns / 1'000'000);
    } else if (disk->detached) {
      spdlog::error("disk '{}': resizing '{}' still takes after {} ms; giving it up", name, disk->options.path,
                    options_.stop_deadline.ns / 1'000'000);
    } else {
      spdlog::error("disk '{}': '{}' hasn't finished its requests after {} ms; giving it up", name, disk->options.path,
                    options_.stop_deadline.ns / 1'000'000);
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
  const Instant now = clock_now();
  if (!daemon_.ending_) {
    ending_since_ = now;
    daemon_.quit(fmt::format("SIG{}", sigabbrev_np(number)));
  } else if (now - ending_since_ >= kOneSignal) {
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
  for (unsigned suffix = 2; disks_.contains(name); ++suffix) {
    name = fmt::format("{}-{}", wanted, suffix);
  }
  return name;
}

std::vector<HeldImage> Host::Daemon::held_images() const {
  std::vector<HeldImage> held;
  for (const auto& [name, disk] : disks_) {
    if (is_file_image(disk->options.path)) {
      held.push_back({name, disk->options.path});
    }
  }
  return held;
}

HostResult<> Host::Daemon::admit(DiskOptions& disk) {
  if (ending_) {
    return std::unexpected(refuse(HostRefusal::ending, "the daemon is ending"));
  }
  if (disks_.size() >= limits::kDevicesMax) {
    return std::unexpected(
        refuse(HostRefusal::not_possible, fmt::format("there are {} disks already, the most that one process "
                                                      "serves; start another",
                                                      disks_.size())));
  }
  if (disk.name.empty()) {
    disk.name = unique_name(default_disk_name(disk.path));
  } else if (disks_.contains(disk.name)) {
    return std::unexpected(
        refuse(HostRefusal::conflict,
               fmt::format("disk '{}': there is a disk of that name already; choose another name=", disk.name)));
  }
  const std::string socket = normal_path(disk.socket);
  for (const auto& [name, other] : disks_) {
    if (normal_path(other->options.socket) == socket) {
      return std::unexpected(
          refuse(HostRefusal::conflict,
                 fmt::format("disk '{}': the socket '{}' belongs to disk '{}' already", disk.name, disk.socket, name)));
    }
  }
  return {};
}

Result<> Host::Daemon::create_device(Disk& disk, BlkStoreChoice choice) {
  BlkDeviceOptions options;
  options.name = disk.options.name;
  options.serial = disk.options.serial;
  options.queues = disk.options.queues;
  options.packed = disk.options.packed;
  options.in_order = disk.options.in_order;
  options.inband = disk.options.inband;
  options.write_cache = disk.options.write_cache;
  options.stop_deadline = options_.stop_deadline;
  RW_TRY_ASSIGN(disk.device,
                BlkDevice::create(std::move(options), std::move(choice.store), workers_->ports(), next_worker_, *mailbox_));
  disk.engine_reason = std::move(choice.reason);
  // The next disk's first queue goes to the worker after this one's last.
  next_worker_ = static_cast<std::uint32_t>((next_worker_ + disk.options.queues) % workers_->ports().size());
  return {};
}

Result<> Host::Daemon::create_endpoint(Disk& disk) {
  vhost_user::EndpointOptions options;
  options.path = disk.options.socket;
  options.connect = disk.options.connect;
  options.mode = disk.options.mode;
  RW_TRY_ASSIGN(disk.endpoint, vhost_user::Endpoint::create(options, *loop_, *disk.device));
  return {};
}

void Host::Daemon::start_serving(Disk& disk) {
  disk.state = DiskState::serving;
  const BlkStoreInfo& store = disk.device->store_info();
  spdlog::info("disk '{}': {}, {}{}, {} queue{}, engine {} ({}), {} {}", disk.options.name, disk.options.path,
               bytes_text(store.capacity_bytes), store.read_only ? " read-only" : "", disk.options.queues,
               disk.options.queues == 1 ? "" : "s", store.engine, disk.engine_reason,
               disk.options.connect ? "connects to" : "socket", disk.options.socket);
}

Result<> Host::Daemon::add_disks(std::vector<DiskOptions> disks) {
  std::vector<std::string> names;
  const auto add_all = [&]() -> Result<> {
    for (DiskOptions& options : disks) {
      if (HostResult<> admitted = admit(options); !admitted) {
        return fail(admitted.error().message);
      }
      auto disk = std::make_unique<Disk>();
      disk->options = options;
      Result<BlkStoreChoice> choice = open_store(store_options(options, workers_->has_uring()), held_images());
      Result<> made = choice ? create_device(*disk, std::move(*choice)) : std::unexpected(choice.error());
      if (!made) {
        return std::unexpected(Error{made.error().code, fmt::format("disk '{}': {}", options.name, made.error().message)});
      }
      names.push_back(options.name);
      disks_.emplace(options.name, std::move(disk));
    }
    for (const std::string& name : names) {
      if (Result<> made = create_endpoint(*disks_.at(name)); !made) {
        return std::unexpected(Error{made.error().code, fmt::format("disk '{}': {}", name, made.error().message)});
      }
    }
    return {};
  };
  Result<> added = add_all();
  for (const std::string& name : names) {
    if (added) {
      start_serving(*disks_.at(name));
    } else if (Disk& disk = *disks_.at(name); disk.endpoint == nullptr) {
      disks_.erase(name);
    } else {
      start_removal(disk);  // ~Host lets it end
    }
  }
  warn_of_descriptor_limit();
  return added;
}

void Host::Daemon::add_disk(DiskOptions options, std::move_only_function<void(HostResult<std::string>)> done) {
  if (HostResult<> admitted = admit(options); !admitted) {
    done(std::unexpected(admitted.error()));
    return;
  }
  auto disk = std::make_unique<Disk>();
  disk->options = options;
  // Shared, so that it is still here to be answered when the thread can't be started.
  auto answer = std::make_shared<std::move_only_function<void(HostResult<std::string>)>>(std::move(done));
  try {
    // The thread touches nothing of ours but the mailbox, which outlives it unless the daemon is abandoned.
    disk->helper = std::thread(
        [this, name = options.name, store = store_options(options, workers_->has_uring()), held = held_images(), answer] {
          mailbox_->post([this, name, answer, choice = open_store(store, held)]() mutable {
            on_opened(name, std::move(choice), std::move(*answer));
          });
        });
  } catch (const std::system_error& error) {
    (*answer)(
        std::unexpected(refuse(HostRefusal::not_possible, fmt::format("disk '{}': can't start a thread to open '{}': {}",
                                                                      options.name, options.path, error.what()))));
    return;
  }
  disks_.emplace(options.name, std::move(disk));
}

void Host::Daemon::on_opened(const std::string& name, Result<BlkStoreChoice> choice,
                             std::move_only_function<void(HostResult<std::string>)> done) {
  Disk& disk = *disks_.at(name);
  disk.helper.join();  // it has nothing left to do
  Result<> made = choice ? Result<>{} : std::unexpected(choice.error());
  if (made && !ending_) {
    made = create_device(disk, std::move(*choice));
    if (made) {
      made = create_endpoint(disk);
    }
  }
  if (made && !ending_) {
    start_serving(disk);
    warn_of_descriptor_limit();
    done(name);
    return;
  }
  HostError error = ending_ ? refuse(HostRefusal::ending, "the daemon is ending")
                            : refuse(HostRefusal::not_possible, fmt::format("disk '{}': {}", name, made.error().message));
  disks_.erase(name);
  done(std::unexpected(std::move(error)));
  end_if_drained();
}

// Names those that there are, as far as a person would read on.
HostError Host::Daemon::no_such_disk(const std::string& name) const {
  constexpr std::size_t kNamesMax = 16;
  std::string names;
  std::size_t named = 0;
  for (const auto& [other, disk] : disks_) {
    if (named == kNamesMax) {
      names += fmt::format(" and {} more", disks_.size() - named);
      break;
    }
    names += (named++ == 0 ? "" : ", ") + other;
  }
  return refuse(HostRefusal::not_found,
                fmt::format("there is no disk '{}'; {}", name, names.empty() ? "none is served" : "there are: " + names));
}

// --- removing ---

void Host::Daemon::remove_disk(const std::string& name, std::move_only_function<void(HostResult<>)> done) {
  const auto found = disks_.find(name);
  if (found == disks_.end()) {
    done(std::unexpected(no_such_disk(name)));
    return;
  }
  Disk& disk = *found->second;
  if (disk.state == DiskState::opening) {
    done(std::unexpected(refuse(HostRefusal::conflict, fmt::format("disk '{}' is still being opened", name))));
    return;
  }
  disk.removers.push_back(std::move(done));
  if (disk.state == DiskState::serving) {
    start_removal(disk);
  }
  if (disk.patience == nullptr) {
    disk.patience = std::make_unique<FunctionTimer>(*loop_, [this, &disk] {
      answer_removers(disk, std::unexpected(refuse(
                                HostRefusal::pending,
                                fmt::format("disk '{}': its requests in flight are not finished yet; it goes when they are",
                                            disk.options.name))));
    });
  }
  disk.patience->set(clock_now() + options_.stop_deadline);
}

void Host::Daemon::start_removal(Disk& disk) {
  disk.state = DiskState::removing;
  disk.endpoint->close([this, name = disk.options.name] { mailbox_->post([this, name] { flush_workers(name); }); });
}

// No session is left, and perhaps there never was one. Messages to the workers may be on their way all the same (a resize);
// one more detach comes behind the last of them.
void Host::Daemon::flush_workers(const std::string& name) {
  disks_.at(name)->device->detach([this, name](const Result<>&) { mailbox_->post([this, name] { on_detached(name); }); });
}

void Host::Daemon::on_detached(const std::string& name) {
  const auto found = disks_.find(name);
  RW_CHECK(found != disks_.end());
  if (found->second->helper.joinable()) {
    found->second->detached = true;  // on_resized() comes back here
    return;
  }
  const std::unique_ptr<Disk> disk = std::move(found->second);
  disks_.erase(found);
  if (ending_) {
    final_stats_.push_back({name, disk->device->stats()});
  }
  disk->endpoint.reset();
  disk->device.reset();
  spdlog::info("disk '{}': closed", name);
  answer_removers(*disk, {});
  end_if_drained();
}

void Host::Daemon::answer_removers(Disk& disk, const HostResult<>& result) {
  for (auto& remover : std::exchange(disk.removers, {})) {
    remover(result);
  }
}

// --- resizing ---

void Host::Daemon::resize_disk(const std::string& name, std::uint64_t bytes,
                               std::move_only_function<void(HostResult<std::uint64_t>)> done) {
  const auto found = disks_.find(name);
  if (found == disks_.end()) {
    done(std::unexpected(no_such_disk(name)));
    return;
  }
  Disk& disk = *found->second;
  if (disk.state != DiskState::serving || disk.helper.joinable()) {
    done(std::unexpected(refuse(HostRefusal::conflict,
                                disk.state == DiskState::serving
                                    ? fmt::format("disk '{}' is being resized already", name)
                                    : fmt::format("disk '{}' is {}, so it can't be resized", name, to_string(disk.state)))));
    return;
  }
  // Shared, so that it is still here to be answered when the thread can't be started.
  auto answer = std::make_shared<std::move_only_function<void(HostResult<std::uint64_t>)>>(std::move(done));
  try {
    // The device stays while its helper runs.
    disk.helper = std::thread([this, name, bytes, device = disk.device.get(), answer] {
      mailbox_->post(
          [this, name, answer, info = device->resize_store(bytes)] { on_resized(name, info, std::move(*answer)); });
    });
  } catch (const std::system_error& error) {
    (*answer)(
        std::unexpected(refuse(HostRefusal::not_possible, fmt::format("disk '{}': can't start a thread to resize '{}': {}",
                                                                      name, disk.options.path, error.what()))));
  }
}

void Host::Daemon::on_resized(const std::string& name, const Result<BlkStoreInfo>& info,
                              std::move_only_function<void(HostResult<std::uint64_t>)> done) {
  Disk& disk = *disks_.at(name);
  disk.helper.join();  // it has nothing left to do
  if (!info) {
    done(std::unexpected(refuse(HostRefusal::not_possible, fmt::format("disk '{}': {}", name, info.error().message))));
  } else if (disk.state != DiskState::serving) {
    done(std::unexpected(refuse(HostRefusal::conflict, fmt::format("disk '{}' is {} by now", name, to_string(disk.state)))));
  } else {
    const std::uint64_t before = disk.device->store_info().capacity_bytes;
    disk.device->adopt(*info);
    if (info->capacity_bytes != before) {
      spdlog::info("disk '{}': {} instead of {}", name, bytes_text(info->capacity_bytes), bytes_text(before));
    }
    done(info->capacity_bytes);
  }
  if (disk.detached) {
    on_detached(name);
  }
}

// --- asking ---

HostResult<DiskStatus> Host::Daemon::disk(const std::string& name) const {
  const auto found = disks_.find(name);
  if (found == disks_.end()) {
    return std::unexpected(no_such_disk(name));
  }
  const Disk& disk = *found->second;
  DiskStatus status;
  status.options = disk.options;
  status.state = disk.state;
  if (disk.device != nullptr) {
    status.store = disk.device->store_info();
    status.engine_reason = disk.engine_reason;
    status.serial = disk.device->serial();
    status.acked_features = disk.device->acked_features();
  }
  if (disk.endpoint != nullptr) {
    status.connected = disk.endpoint->connected();
    status.sessions = disk.endpoint->sessions();
  }
  return status;
}

std::vector<DiskStatus> Host::Daemon::disks() const {
  std::vector<DiskStatus> all;
  all.reserve(disks_.size());
  for (const auto& entry : disks_) {
    all.push_back(*disk(entry.first));
  }
  return all;
}

std::vector<DiskStats> Host::Daemon::stats() const {
  std::vector<DiskStats> all = final_stats_;
  for (const auto& [name, disk] : disks_) {
    if (disk->device != nullptr) {
      all.push_back({name, disk->device->stats()});
    }
  }
  std::ranges::sort(all, {}, &DiskStats::name);
  return all;
}

std::string Host::Daemon::stats_report() const {
  nlohmann::json disks = nlohmann::json::array();
  for (const DiskStats& disk : stats()) {
    disks.push_back(disk_stats_json(disk));
  }
  nlohmann::json workers = nlohmann::json::array();
  for (const WorkerStats& worker : workers_->stats()) {
    workers.push_back(worker_stats_json(worker));
  }
  return stats_table(disks) + workers_table(workers);
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
Result<> Host::add_disks(std::vector<DiskOptions> disks) {
  return daemon_->add_disks(std::move(disks));
}

void Host::add_disk(DiskOptions disk, std::move_only_function<void(HostResult<std::string>)> done) {
  daemon_->add_disk(std::move(disk), std::move(done));
}

void Host::remove_disk(const std::string& name, std::move_only_function<void(HostResult<>)> done) {
  daemon_->remove_disk(name, std::move(done));
}

void Host::resize_disk(const std::string& name, std::uint64_t bytes,
                       std::move_only_function<void(HostResult<std::uint64_t>)> done) {
  daemon_->resize_disk(name, bytes, std::move(done));
}

std::vector<DiskStatus> Host::disks() const {
  return daemon_->disks();
}
HostResult<DiskStatus> Host::disk(const std::string& name) const {
  return daemon_->disk(name);
}
std::vector<DiskStats> Host::stats() const {
  return daemon_->stats();
}
std::vector<WorkerStats> Host::worker_stats() const {
  return daemon_->workers().stats();
}
const WorkerPool& Host::workers() const noexcept {
  return daemon_->workers();
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
