// Three ways to a session, one state machine. An endpoint is *idle* (waiting for a front-end: by a watch on the listening
// socket, or by a timer that tries to connect), *serving* (a session exists), or *closing*. Only an idle endpoint accepts or
// connects; what arrives while it serves waits in the kernel's backlog, and is looked for when the session has ended.
#include "vhost_user/endpoint.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "loop/clock.hpp"
#include "vhost_user/backend_session.hpp"
#include "vhost_user/socket_lock.hpp"
#include "vhost_user/socket_log.hpp"

namespace ringway::vhost_user {

namespace {

// Who opens one session after the other, as `ringway check` does, has the next one waiting each time.
constexpr Duration kToldOfWaitingPause = Duration::seconds(60);
constexpr Duration kFirstPause = Duration::milliseconds(10);
constexpr Duration kLongestPause = Duration::seconds(1);
// After a session that held up a worker, doubled with each further one: what it did to its neighbours it may try again. A
// session that did no harm for so long as the longest one makes up for that.
constexpr Duration kFirstPenalty = Duration::seconds(2);
constexpr Duration kLongestPenalty = Duration::seconds(256);
// While the device's front-ends hold all descriptors that they may, nobody else is let in; looked at so often.
constexpr Duration kFullPause = Duration::milliseconds(100);
// What a session lets go, or has left behind, may wait for a thread that couldn't be had; looked at so often while there is
// one, and afterwards until nothing waits.
constexpr Duration kLettingGoPause = Duration::seconds(2);
// Front-ends that wait for the first one to be drained. Few, but a restarting VMM may knock more than once.
constexpr int kBacklog = 8;

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<UniqueFd> listen_at(const std::string& path, std::uint32_t mode) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) {
    return fail_errno(errno, "no socket");
  }
  // The path gets the socket's own mode, less the umask; so it is never more open than asked for, not even for a moment.
  if (::fchmod(socket.get(), mode) != 0) {
    return fail_errno(errno, fmt::format("mode {:o} can't be set on socket {}", mode, path));
  }
  const sockaddr_un address = address_of(path);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return fail_errno(errno, fmt::format("socket {} can't be made: check that the directory exists and is writable", path));
  }
  if (::chmod(path.c_str(), mode) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    const int code = errno;
    ::unlink(path.c_str());
    return fail_errno(code, fmt::format("can't listen on socket {}", path));
  }
  return socket;
}

class SocketEndpoint final : public Endpoint, private FdHandler, private TimerHandler {
 public:
  SocketEndpoint(EndpointOptions options, Loop& loop, Device& device)
      : options_(std::move(options)), loop_(loop), device_(device) {}
  SocketEndpoint(const SocketEndpoint&) = delete;
  SocketEndpoint& operator=(const SocketEndpoint&) = delete;
  ~SocketEndpoint() override;

  Result<> open();
  void close(std::move_only_function<void()> done) override;
  [[nodiscard]] bool connected() const override { return session_ != nullptr; }
  [[nodiscard]] std::uint64_t sessions() const override { return sessions_; }
  [[nodiscard]] std::uint64_t refused() const override { return refused_ + (session_ != nullptr ? session_->refused() : 0); }

 private:
  class LettingGo final : public TimerHandler {
   public:
    explicit LettingGo(SocketEndpoint& endpoint) : endpoint_(endpoint) {}
    void on_timer(Instant now) noexcept override {
      if (ForeignHoldings::try_again() || endpoint_.session_ != nullptr) {
        endpoint_.loop_.set_timer(*this, now + kLettingGoPause);
      }
    }

   private:
    SocketEndpoint& endpoint_;
  };

  Result<> open_inherited();
  Result<> watch_listener();
  void on_ready(std::uint32_t events) noexcept override;
  void on_timer(Instant now) noexcept override;
  void find_front_end();
  void accept_front_end();
  void connect_to_front_end();
  void try_again_later();
  void begin_session(UniqueFd socket);
  void end_session();
  void stop_listening();
  [[nodiscard]] std::string place() const;

  const EndpointOptions options_;
  Loop& loop_;
  Device& device_;
  std::optional<SocketLock> lock_;
  // All that a front-end makes us hold, from one session to the next. The listener too: in its backlog may be descriptors
  // that were sent to it.
  const std::shared_ptr<ForeignHoldings> holdings_ = ForeignHoldings::create(device_.ring_count());
  ForeignFd listener_;
  const std::shared_ptr<SocketLog> log_ = std::make_shared<SocketLog>(device_.name());
  Instant told_of_waiting_ = {INT64_MIN};  // when it was last said that another one waits
  WatchId watch_;
  LettingGo letting_go_{*this};
  Duration pause_ = kFirstPause;
  Duration penalty_ = kFirstPenalty;
  Instant not_before_;  // no front-end is taken earlier
  Instant began_;       // the session
  std::unique_ptr<BackendSession> session_;
  std::uint64_t sessions_ = 0;
  std::uint64_t refused_ = 0;
  bool closing_ = false;
  std::move_only_function<void()> closed_;
};

SocketEndpoint::~SocketEndpoint() {
  RW_CHECK(session_ == nullptr);
  loop_.cancel_timer(*this);
  loop_.cancel_timer(letting_go_);
  stop_listening();
}

std::string SocketEndpoint::place() const {
  return options_.inherited_fd >= 0 ? fmt::format("inherited descriptor {}", options_.inherited_fd)
                                    : fmt::format("socket {}", options_.path);
}

Result<> SocketEndpoint::open() {
  if (options_.inherited_fd >= 0) {
    return open_inherited();
  }
  sockaddr_un address{};
  if (options_.path.empty() || options_.path.size() >= sizeof(address.sun_path)) {
    return fail(fmt::format("socket path \"{}\" has {} bytes, 1 to {} are possible", options_.path, options_.path.size(),
                            sizeof(address.sun_path) - 1));
  }
  if (options_.connect) {
    loop_.set_timer(*this, Instant{});
    return {};
  }
  RW_TRY_ASSIGN(lock_, SocketLock::take(options_.path));
  RW_TRY_ASSIGN(UniqueFd listener, listen_at(options_.path, options_.mode));
  listener_ = ForeignFd(std::move(listener), holdings_);
  return watch_listener();
}

Result<> SocketEndpoint::open_inherited() {
  UniqueFd socket(options_.inherited_fd);
  int type = 0;
  int listening = 0;
  socklen_t bytes = sizeof(int);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_TYPE, &type, &bytes) != 0) {
    return fail_errno(errno, fmt::format("{} is not a socket", place()));
  }
  if (type != SOCK_STREAM) {
    return fail(fmt::format("{} is not a stream socket", place()));
  }
  bytes = sizeof(int);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) != 0) {
    return fail_errno(errno, fmt::format("{}: can't tell whether it listens", place()));
  }
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return fail_errno(errno, fmt::format("{}: can't set its flags", place()));
  }
  if (listening != 0) {
    listener_ = ForeignFd(std::move(socket), holdings_);
    return watch_listener();
  }
  begin_session(std::move(socket));
  return {};
}

Result<> SocketEndpoint::watch_listener() {
  RW_TRY_ASSIGN(watch_, loop_.watch(listener_.get(), EPOLLIN, *this));
  // Who knocked at an inherited listener before the watch need not be an edge.
  loop_.set_timer(*this, Instant{});
  return {};
}

void SocketEndpoint::on_ready(std::uint32_t /*events*/) noexcept {
  find_front_end();
}

void SocketEndpoint::on_timer(Instant /*now*/) noexcept {
  if (closed_ != nullptr && session_ == nullptr) {
    // It may destroy us.
    std::move_only_function<void()> closed = std::exchange(closed_, nullptr);
    return closed();
  }
  find_front_end();
}

void SocketEndpoint::find_front_end() {
  if (closing_ || (session_ == nullptr && clock_now() < not_before_)) {
    return;
  }
  if (session_ == nullptr && holdings_->descriptors() > holdings_->descriptors_max()) {
    static_cast<void>(ForeignHoldings::try_again());
    loop_.set_timer(*this, clock_now() + kFullPause);
    return;
  }
  if (session_ != nullptr) {
    // Called without need as well (a timer, a late event of the front-end that is being served), so the backlog decides.
    pollfd backlog{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    const Instant now = clock_now();
    if (listener_ && now - told_of_waiting_ >= kToldOfWaitingPause && ::poll(&backlog, 1, 0) == 1) {
      told_of_waiting_ = now;
      log_->info(fmt::format("{}: another front-end has connected and waits: a socket serves one at a time", place()));
    }
    return;
  }
  if (listener_) {
    accept_front_end();
  } else if (options_.inherited_fd < 0) {
    connect_to_front_end();
  }
}

void SocketEndpoint::accept_front_end() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      return begin_session(std::move(socket));
    }
    if (errno == EINTR || errno == ECONNABORTED) {
      continue;
    }
    if (errno != EAGAIN) {
      // Out of descriptors or memory. The front-end stays in the backlog, and that is no new edge.
      log_->warn(fmt::format("{}: a front-end can't be accepted: {}", place(), std::strerror(errno)));
      try_again_later();
    }
    return;
  }
}

void SocketEndpoint::connect_to_front_end() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = address_of(options_.path);
  if (socket && ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return begin_session(std::move(socket));
  }
  if (pause_ == kFirstPause) {
    log_->info(fmt::format("{}: no front-end there yet ({}), waiting", place(), std::strerror(errno)));
  }
  try_again_later();
}

void SocketEndpoint::try_again_later() {
  loop_.set_timer(*this, clock_now() + pause_);
  pause_ = std::min(pause_ + pause_, kLongestPause);
}

void SocketEndpoint::begin_session(UniqueFd socket) {
  ++sessions_;
  began_ = clock_now();
  log_->info(fmt::format("{}: a front-end has connected", place()));
  loop_.set_timer(letting_go_, began_ + kLettingGoPause);
  session_ = BackendSession::create(
      ForeignFd(std::move(socket), holdings_), loop_, device_,
      [this](const std::string& /*logged by it*/) { end_session(); }, log_);
}

void SocketEndpoint::end_session() {
  refused_ += session_->refused();
  // A peer that hangs up without a word would otherwise make us connect in a tight loop.
  if (session_->messages() > 0) {
    pause_ = kFirstPause;
  }
  session_.reset();
  const Instant now = clock_now();
  loop_.set_timer(letting_go_, now + kLettingGoPause);
  if (now - began_ >= kLongestPenalty) {
    penalty_ = kFirstPenalty;
  }
  const bool harmful = holdings_->take_harm();
  if (harmful) {
    not_before_ = now + penalty_;
    log_->warn(fmt::format("{}: the next front-end is served in {} s", place(), penalty_.ns / Duration::seconds(1).ns));
    penalty_ = std::min(penalty_ + penalty_, kLongestPenalty);
  }
  if (harmful && !closing_ && (listener_ || options_.inherited_fd < 0)) {
    loop_.set_timer(*this, not_before_);
  } else if (closing_ || listener_) {
    loop_.set_timer(*this, Instant{});
  } else if (options_.inherited_fd < 0) {
    try_again_later();
  }
}

void SocketEndpoint::stop_listening() {
  if (watch_) {
    loop_.unwatch(std::exchange(watch_, {}));
  }
  if (listener_ && lock_) {
    ::unlink(options_.path.c_str());
  }
  listener_.reset();
  lock_.reset();
}

void SocketEndpoint::close(std::move_only_function<void()> done) {
  RW_CHECK(!closing_);
  closing_ = true;
  closed_ = std::move(done);
  stop_listening();
  if (session_ != nullptr) {
    loop_.cancel_timer(*this);
    session_->close("closed by us");
  } else {
    loop_.set_timer(*this, Instant{});
  }
}

}  // namespace

Result<std::unique_ptr<Endpoint>> Endpoint::create(const EndpointOptions& options, Loop& loop, Device& device) {
  auto endpoint = std::make_unique<SocketEndpoint>(options, loop, device);
  RW_TRY(endpoint->open());
  return endpoint;
}

}  // namespace ringway::vhost_user
