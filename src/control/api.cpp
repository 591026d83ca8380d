// Theory of operation: libmicrohttpd runs without threads and without a listening socket. The control loop watches our
// listening socket (we accept, so that a stranger is turned away before a byte of his is read) and a timer for
// libmicrohttpd's time-outs. Its epoll descriptor is watched by a thread of ours that only poll()s it and posts. The loop's
// own epoll must not: for each epoll_ctl() on an epoll that is within another the kernel takes one lock of the whole
// machine, which any process can keep. A request is read whole (bounded), routed once, and either answered at once or
// suspended until its answer comes; a suspended connection costs nothing and is resumed by the answer.
//
// A Request is owned by libmicrohttpd's connection (from its first callback to request_completed) and by the answers under
// way, so an answer that comes after the client has gone, or after the server, finds an object and does nothing.

#include "control/api.hpp"

#include <fmt/format.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/unique_fd.hpp"
#include "control/api_socket.hpp"
#include "control/config.hpp"
#include "control/host.hpp"
#include "control/log_sink.hpp"
#include "control/report.hpp"
#include "control/trace_report.hpp"
#include "loop/clock.hpp"
#include "vhost_user/socket_log.hpp"

namespace ringway {
namespace {

using nlohmann::json;

constexpr std::size_t kConnectionMemoryBytes = std::size_t{32} << 10U;  // headers of one request
constexpr int kBodyDepthMax = 16;     // objects and arrays within one another; a legal request has one
constexpr unsigned kRunsPerTurn = 8;  // of libmicrohttpd: a client that pipelines for ever doesn't hold the control thread
// After a poll() that failed.
constexpr std::chrono::milliseconds kPollPause{100};

struct Answer {
  unsigned status = MHD_HTTP_OK;
  json body;
  const char* allow = nullptr;  // with 405
  bool quits = false;           // the host ends when this was sent
};

Answer failure(unsigned status, const std::string& message) {
  return {.status = status, .body = {{"error", message}}};
}

unsigned status_of(HostRefusal refusal) {
  switch (refusal) {
    case HostRefusal::not_found:
      return MHD_HTTP_NOT_FOUND;
    case HostRefusal::conflict:
      return MHD_HTTP_CONFLICT;
    case HostRefusal::not_possible:
      return MHD_HTTP_UNPROCESSABLE_CONTENT;
    case HostRefusal::ending:
      return MHD_HTTP_SERVICE_UNAVAILABLE;
    case HostRefusal::pending:
      return MHD_HTTP_ACCEPTED;
  }
  return MHD_HTTP_INTERNAL_SERVER_ERROR;
}

Answer failure(const HostError& error) {
  return failure(status_of(error.refusal), error.message);
}

class Server;

struct Request {
  Server* server = nullptr;  // null when the server or the connection has gone
  MHD_Connection* connection = nullptr;
  std::string body;
  bool too_large = false;
  bool routed = false;
  bool suspended = false;
  std::optional<Answer> answer;
};
using RequestPointer = std::shared_ptr<Request>;

class Server final : public ApiServer, private FdHandler {
 public:
  Server(ApiSocket socket, Host& host) : socket_(std::move(socket)), host_(host), http_timer_(*this), accept_timer_(*this) {}
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() override;
  Result<> start();

  // An answer that came later. Control thread.
  void resume(Request& request);

 private:
  class HttpTimer final : public TimerHandler {
   public:
    explicit HttpTimer(Server& server) : server_(server) {}
    void on_timer(Instant /*now*/) noexcept override { server_.run(); }

   private:
    Server& server_;
  };
  // The thread that poll()s libmicrohttpd's descriptor. It asks for one run at a time, and looks again after that.
  class HttpWatch {
   public:
    HttpWatch() = default;
    HttpWatch(const HttpWatch&) = delete;
    HttpWatch& operator=(const HttpWatch&) = delete;
    ~HttpWatch() { stop(); }

    Result<> start(int fd, Server& server);
    // Afterwards the server isn't asked any more.
    void stop() noexcept;

   private:
    // Shared with the message that is on its way.
    struct Shared {
      Server* server = nullptr;  // of the control thread; null after stop()
      std::atomic<bool> has_run{false};
      std::atomic<bool> stopped{false};
    };
    const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
    UniqueFd stop_event_;
    std::thread thread_;
  };
  // Looks at the listening socket again after accept() failed: its edge is spent then.
  class AcceptTimer final : public TimerHandler {
   public:
    explicit AcceptTimer(Server& server) : server_(server) {}
    void on_timer(Instant /*now*/) noexcept override { server_.on_ready(EPOLLIN); }

   private:
    Server& server_;
  };

  void on_ready(std::uint32_t events) noexcept override;  // the listening socket
  void admit(UniqueFd client);
  [[nodiscard]] bool is_full() const;
  void run() noexcept;

  static MHD_Result on_request(void* self, MHD_Connection* connection, const char* url, const char* method,
                               const char* version, const char* upload, size_t* upload_bytes, void** request);
  static void on_completed(void* self, MHD_Connection* connection, void** request, MHD_RequestTerminationCode code);
  MHD_Result handle(MHD_Connection* connection, std::string_view url, std::string_view method, std::string_view upload,
                    size_t* upload_bytes, void** context);
  MHD_Result send(Request& request);

  // Sets request->answer, now or later.
  void route(const RequestPointer& request, std::string_view url, std::string_view method);
  // Of what is only read and needs no body; none: there is nothing of that kind at `url`.
  [[nodiscard]] std::optional<Answer> read_only(std::string_view url) const;
  [[nodiscard]] Answer stats_of(const std::string& name) const;
  // `kind` is of the collection that is asked; absent: all devices.
  void route_collection(const RequestPointer& request, std::optional<DeviceKind> kind, std::string_view method);
  void route_device(const RequestPointer& request, std::optional<DeviceKind> kind, std::string_view rest,
                    std::string_view method);
  void add(const RequestPointer& request, DeviceKind kind);
  void remove(const RequestPointer& request, const std::string& name);
  void resize(const RequestPointer& request, const std::string& name);
  void set_link(const RequestPointer& request, const std::string& name);
  void set_trace(const RequestPointer& request);
  void set_poll(const RequestPointer& request);
  [[nodiscard]] Answer trace_records();
  [[nodiscard]] Answer list(std::optional<DeviceKind> kind) const;
  [[nodiscard]] Answer status(DeviceKind kind, const std::string& name) const;

  ApiSocket socket_;
  vhost_user::SocketLog log_{"local API"};  // any process may be refused as often as it likes
  Host& host_;
  HttpTimer http_timer_;
  HttpWatch http_watch_;
  AcceptTimer accept_timer_;
  MHD_Daemon* http_ = nullptr;
  WatchId listen_watch_;
  bool running_ = false;
  bool run_again_ = false;
  bool closing_ = false;
  std::unordered_set<RequestPointer> requests_;
};

// The object of a body; an absent one is an empty object. What is nested too deep is never built: the JSON library takes
// stack for each level of what it writes.
Result<json> parse_body(const std::string& body) {
  if (body.empty()) {
    return json::object();
  }
  bool too_deep = false;
  std::optional<std::string> given_twice;
  std::vector<std::unordered_set<std::string>> keys;  // of the objects that are open
  const auto look = [&](int depth, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      too_deep = too_deep || depth >= kBodyDepthMax;
    }
    if (too_deep) {
      return false;
    }
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      given_twice = value.get<std::string>();
    }
    return true;
  };
  json parsed = json::parse(body, look, false);
  if (too_deep) {
    return fail(fmt::format("the body is nested deeper than {} levels", kBodyDepthMax));
  }
  if (!parsed.is_object()) {
    return fail("the body is not a JSON object");
  }
  if (given_twice) {
    return fail(fmt::format("the key '{}' is given twice", *given_twice));
  }
  return parsed;
}

Answer method_not_allowed(const char* allow) {
  Answer answer = failure(MHD_HTTP_METHOD_NOT_ALLOWED, fmt::format("method not allowed here; allowed: {}", allow));
  answer.allow = allow;
  return answer;
}

// --- life ---

// As the library does it. But a NUL would end the name before its end, and "b%00junk" be the device b: that one stays as it
// is, the name of nothing.
std::size_t unescape(void* /*none*/, MHD_Connection* /*connection*/, char* text) {
  return std::strstr(text, "%00") != nullptr ? std::strlen(text) : MHD_http_unescape(text);
}

Result<> Server::start() {
  // No MHD_USE_ERROR_LOG: what a client does wrong is answered, not logged.
  http_ = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr, nullptr,
                           &Server::on_request, this,                                   //
                           MHD_OPTION_NOTIFY_COMPLETED, &Server::on_completed, this,    //
                           MHD_OPTION_CONNECTION_LIMIT, kApiConnectionsMax,             //
                           MHD_OPTION_CONNECTION_TIMEOUT, kApiIdleSeconds,              //
                           MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionMemoryBytes,  //
                           MHD_OPTION_UNESCAPE_CALLBACK, &unescape, nullptr,            //
                           MHD_OPTION_END);
  if (http_ == nullptr) {
    return fail_errno(errno, "can't start the local API's HTTP server");
  }
  const MHD_DaemonInfo* info = MHD_get_daemon_info(http_, MHD_DAEMON_INFO_EPOLL_FD);
  if (info == nullptr || info->epoll_fd < 0) {
    return fail("the local API needs a libmicrohttpd that was built with epoll");
  }
  RW_TRY(http_watch_.start(info->epoll_fd, *this));
  RW_TRY_ASSIGN(listen_watch_, host_.loop().watch(socket_.fd(), EPOLLIN, *this));
  return {};
}

Result<> Server::HttpWatch::start(int fd, Server& server) {
  stop_event_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event_) {
    return fail_errno(errno, "no eventfd for the local API (is the limit of open files too low?)");
  }
  shared_->server = &server;
  // Signals are for the threads that expect them. What is blocked here is inherited.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<> started;
  try {
    thread_ = std::thread([fd, stop = stop_event_.get(), shared = shared_, &control = server.host_.executor()] {
      pthread_setname_np(pthread_self(), "ringway-api");
      std::array<pollfd, 2> watched{pollfd{.fd = fd, .events = POLLIN, .revents = 0},
                                    pollfd{.fd = stop, .events = POLLIN, .revents = 0}};
      while (!shared->stopped) {
        const int ready = poll(watched.data(), watched.size(), -1);
        if (ready < 0 && errno != EINTR) {
          // Short of memory, or of descriptors allowed. Nobody is told: the next try may succeed.
          std::this_thread::sleep_for(kPollPause);
        }
        if (ready <= 0 || watched[0].revents == 0) {
          continue;
        }
        shared->has_run = false;
        control.post([shared] {
          if (shared->server != nullptr) {
            shared->server->run();
          }
          shared->has_run = true;
          shared->has_run.notify_one();
        });
        // stop() sets it as well, behind `stopped`.
        while (!shared->stopped && !shared->has_run) {
          shared->has_run.wait(false);
        }
      }
    });
  } catch (const std::system_error& error) {
    started = fail(fmt::format("no thread for the local API: {}", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void Server::HttpWatch::stop() noexcept {
  if (!thread_.joinable()) {
    return;
  }
  shared_->server = nullptr;
  shared_->stopped = true;
  shared_->has_run = true;
  shared_->has_run.notify_one();
  const std::uint64_t one = 1;
  static_cast<void>(!write(stop_event_.get(), &one, sizeof one));
  thread_.join();
}

Server::~Server() {
  closing_ = true;
  host_.loop().cancel_timer(http_timer_);
  host_.loop().cancel_timer(accept_timer_);
  if (listen_watch_) {
    host_.loop().unwatch(listen_watch_);
  }
  http_watch_.stop();
  if (http_ == nullptr) {
    return;
  }
  // libmicrohttpd must not be stopped while a connection is suspended.
  for (const RequestPointer& request : requests_) {
    if (request->suspended) {
      request->answer = failure(MHD_HTTP_SERVICE_UNAVAILABLE, "the daemon has ended");
      request->suspended = false;
      MHD_resume_connection(request->connection);
    }
  }
  // Sends those answers, and what else stands in buffers.
  for (unsigned i = 0; i < kRunsPerTurn; ++i) {
    MHD_run(http_);
  }
  MHD_stop_daemon(http_);
  http_ = nullptr;
  for (const RequestPointer& request : requests_) {
    request->server = nullptr;
  }
}

// --- connections ---

// To a client that gets no connection of libmicrohttpd. A fresh socket's buffer takes it whole; if not, he gets less.
void answer_at_once(int client, std::string_view status, const std::string& message) {
  const std::string body = json{{"error", message}}.dump();
  const std::string reply =
      fmt::format("HTTP/1.1 {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                  status, body.size(), body);
  static_cast<void>(::send(client, reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

bool Server::is_full() const {
  const MHD_DaemonInfo* info = MHD_get_daemon_info(http_, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
  return info != nullptr && info->num_connections >= kApiConnectionsMax;
}

void Server::on_ready(std::uint32_t /*events*/) noexcept {
  while (true) {
    UniqueFd client(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client) {
      if (errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      if (errno != EAGAIN) {
        // Out of descriptors, say.
        log_.warn(fmt::format("can't accept a connection: {}", std::error_code(errno, std::generic_category()).message()));
        host_.loop().set_timer(accept_timer_, clock_now() + Duration::seconds(1));
      }
      return;
    }
    admit(std::move(client));
  }
}

void Server::admit(UniqueFd client) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || (peer.uid != 0 && peer.uid != geteuid())) {
    answer_at_once(client.get(), "403 Forbidden",
                   fmt::format("only root and the user that the daemon runs as (uid {}) may use this API", geteuid()));
    log_.warn(fmt::format("turned away process {} of uid {}", peer.pid, peer.uid));
    return;
  }
  if (is_full()) {
    run();  // it may not have seen yet that some have hung up
  }
  if (is_full()) {
    answer_at_once(
        client.get(), "503 Service Unavailable",
        fmt::format("the daemon is busy: it serves {} connections to its API at once; try again", kApiConnectionsMax));
    log_.warn(fmt::format("refused a connection; {} are served at once", kApiConnectionsMax));
    return;
  }
  sockaddr address{};
  address.sa_family = AF_UNIX;
  // It owns the descriptor from here, and closes it when it fails.
  if (MHD_add_connection(http_, client.release(), &address, sizeof address) != MHD_YES) {
    log_.warn("lost a connection: the HTTP library can't take it (out of memory?)");
  }
  run();
}

void Server::run() noexcept {
  if (running_) {
    run_again_ = true;
    return;
  }
  running_ = true;
  for (unsigned i = 0; i < kRunsPerTurn; ++i) {
    run_again_ = false;
    MHD_run(http_);
    MHD_UNSIGNED_LONG_LONG left = 0;
    if (!run_again_ && (MHD_get_timeout(http_, &left) != MHD_YES || left != 0)) {
      break;
    }
  }
  running_ = false;
  MHD_UNSIGNED_LONG_LONG milliseconds = 0;
  if (run_again_) {
    host_.loop().set_timer(http_timer_, clock_now());
  } else if (MHD_get_timeout(http_, &milliseconds) == MHD_YES) {
    host_.loop().set_timer(http_timer_, clock_now() + Duration::milliseconds(static_cast<std::int64_t>(milliseconds)));
  } else {
    host_.loop().cancel_timer(http_timer_);
  }
}

// --- requests ---

MHD_Result Server::on_request(void* self, MHD_Connection* connection, const char* url, const char* method,
                              const char* /*version*/, const char* upload, size_t* upload_bytes, void** request) {
  return static_cast<Server*>(self)->handle(connection, url, method, {upload, *upload_bytes}, upload_bytes, request);
}

MHD_Result Server::handle(MHD_Connection* connection, std::string_view url, std::string_view method, std::string_view upload,
                          size_t* upload_bytes, void** context) {
  if (*context == nullptr) {
    auto fresh = std::make_shared<Request>();
    fresh->server = this;
    fresh->connection = connection;
    *context = fresh.get();
    requests_.insert(std::move(fresh));
    return MHD_YES;
  }
  Request& request = *static_cast<Request*>(*context);
  if (*upload_bytes != 0) {
    // What is too long is read to its end, unkept, so that the client gets its answer and not a broken pipe.
    request.too_large = request.too_large || request.body.size() + upload.size() > kApiBodyBytesMax;
    if (!request.too_large) {
      request.body += upload;
    }
    *upload_bytes = 0;
    return MHD_YES;
  }
  if (!request.routed) {
    request.routed = true;
    if (closing_) {  // nothing may be suspended any more
      request.answer = failure(MHD_HTTP_SERVICE_UNAVAILABLE, "the daemon has ended");
      return send(request);
    }
    const auto found = std::ranges::find_if(requests_, [&](const RequestPointer& each) { return each.get() == &request; });
    route(*found, url, method);
  }
  if (!request.answer) {
    request.suspended = true;
    MHD_suspend_connection(connection);
    return MHD_YES;
  }
  return send(request);
}

void Server::resume(Request& request) {
  if (request.suspended) {
    request.suspended = false;
    MHD_resume_connection(request.connection);
    run();
  }
}

MHD_Result Server::send(Request& request) {
  // Names and paths are bytes; what is no UTF-8 in them must not make an answer impossible.
  const std::string body = request.answer->body.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  // libmicrohttpd only reads it (the flag says copy), though it takes a pointer to non-const.
  MHD_Response* response =
      MHD_create_response_from_buffer(body.size(), const_cast<char*>(body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) {
    return MHD_NO;
  }
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json");
  if (request.answer->allow != nullptr) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, request.answer->allow);
  }
  const MHD_Result queued = MHD_queue_response(request.connection, request.answer->status, response);
  MHD_destroy_response(response);
  return queued;
}

void Server::on_completed(void* self, MHD_Connection* /*connection*/, void** context, MHD_RequestTerminationCode /*code*/) {
  auto& server = *static_cast<Server*>(self);
  auto* request = static_cast<Request*>(*context);
  if (request == nullptr) {
    return;
  }
  *context = nullptr;
  if (request->answer && request->answer->quits) {
    server.host_.quit("asked by the local API");
  }
  request->server = nullptr;
  request->connection = nullptr;
  std::erase_if(server.requests_, [&](const RequestPointer& each) { return each.get() == request; });
}

// --- routes ---

void finish(const RequestPointer& request, Answer answer) {
  request->answer = std::move(answer);
  if (request->server != nullptr) {
    request->server->resume(*request);
  }
}

struct Collection {
  std::string_view path;
  std::optional<DeviceKind> kind;
};
constexpr std::array kCollections = {Collection{"/v1/devices", {}}, Collection{"/v1/disks", DeviceKind::disk},
                                     Collection{"/v1/nets", DeviceKind::net}};

void Server::route(const RequestPointer& request, std::string_view url, std::string_view method) {
  if (request->too_large) {
    request->answer = failure(MHD_HTTP_CONTENT_TOO_LARGE, fmt::format("the body is larger than {} bytes", kApiBodyBytesMax));
    return;
  }
  for (const Collection& collection : kCollections) {
    if (url == collection.path) {
      route_collection(request, collection.kind, method);
      return;
    }
    const std::size_t bytes = collection.path.size();
    if (url.starts_with(collection.path) && url.size() > bytes + 1 && url[bytes] == '/') {
      route_device(request, collection.kind, url.substr(bytes + 1), method);
      return;
    }
  }
  if (url == "/v1/workers" && method == "POST") {
    set_poll(request);
    return;
  }
  if (url == "/v1/trace" && method == "POST") {
    set_trace(request);
    return;
  }
  if (url == "/v1/trace") {
    request->answer =
        method == "GET" ? Answer{.body = trace_status_json(host_.trace_status())} : method_not_allowed("GET, POST");
    return;
  }
  if (url == "/v1/trace/records") {
    request->answer = method == "GET" ? trace_records() : method_not_allowed("GET");
    return;
  }
  if (std::optional<Answer> answer = read_only(url)) {
    request->answer = method == "GET" ? std::move(answer) : method_not_allowed(url == "/v1/workers" ? "GET, POST" : "GET");
  } else if (url == "/v1/quit") {
    request->answer = method == "POST" ? Answer{.status = MHD_HTTP_ACCEPTED, .body = {{"quitting", true}}, .quits = true}
                                       : method_not_allowed("POST");
  } else {
    request->answer = failure(MHD_HTTP_NOT_FOUND,
                              fmt::format("there is nothing at '{}'; try /v1/devices, /v1/disks, /v1/nets, any of them with "
                                          "/<name>, /v1/stats, /v1/stats/<name>, /v1/trace, /v1/trace/records, /v1/workers, "
                                          "/v1/log, /v1/version or /v1/quit",
                                          url));
  }
}

std::optional<Answer> Server::read_only(std::string_view url) const {
  constexpr std::string_view kStatsOf = "/v1/stats/";
  if (url == "/v1/version") {
    return Answer{.body = {{"version", RINGWAY_VERSION}}};
  }
  if (url == "/v1/log") {
    return Answer{.body = {{"lines_dropped", log_lines_dropped()}}};
  }
  if (url == "/v1/workers") {
    Answer answer{.body = json::array()};
    std::ranges::transform(host_.worker_stats(), std::back_inserter(answer.body), worker_stats_json);
    return answer;
  }
  if (url == "/v1/stats") {
    return Answer{.body = stats_json(host_.stats(), host_.net_stats())};
  }
  if (url.starts_with(kStatsOf) && url.size() > kStatsOf.size()) {
    return stats_of(std::string(url.substr(kStatsOf.size())));
  }
  return std::nullopt;
}

Answer Server::stats_of(const std::string& name) const {
  const HostResult<DeviceKind> kind = host_.kind_of(name);
  if (!kind) {
    return failure(kind.error());
  }
  if (*kind == DeviceKind::disk) {
    const std::vector<DiskStats> disks = host_.stats();
    if (const auto found = std::ranges::find(disks, name, &DiskStats::name); found != disks.end()) {
      return {.body = disk_stats_json(*found)};
    }
  } else {
    const std::vector<NetStats> nets = host_.net_stats();
    if (const auto found = std::ranges::find(nets, name, &NetStats::name); found != nets.end()) {
      return {.body = net_stats_json(*found)};
    }
  }
  return failure(MHD_HTTP_CONFLICT,
                 fmt::format("{} '{}' is still being opened: it has no counters yet", to_string(*kind), name));
}

void Server::route_collection(const RequestPointer& request, std::optional<DeviceKind> kind, std::string_view method) {
  if (method == "GET") {
    request->answer = list(kind);
  } else if (method == "POST" && kind) {
    add(request, *kind);
  } else {
    request->answer = method_not_allowed(kind ? "GET, POST" : "GET");
  }
}

void Server::route_device(const RequestPointer& request, std::optional<DeviceKind> kind, std::string_view rest,
                          std::string_view method) {
  const std::size_t slash = rest.find('/');
  const std::string name(rest.substr(0, slash));
  const std::string_view action = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  if (slash == std::string_view::npos) {
    if (method != "GET" && method != "DELETE") {
      request->answer = method_not_allowed("GET, DELETE");
      return;
    }
    const HostResult<DeviceKind> found = host_.kind_of(name);
    if (!found) {
      request->answer = kind ? status(*kind, name) : failure(found.error());
    } else if (method == "GET" || (kind && kind != *found)) {
      request->answer = status(kind.value_or(*found), name);
    } else {
      remove(request, name);
    }
  } else if ((action == "resize" && kind == DeviceKind::disk) || (action == "link" && kind == DeviceKind::net)) {
    if (method != "POST") {
      request->answer = method_not_allowed("POST");
    } else if (action == "resize") {
      resize(request, name);
    } else {
      set_link(request, name);
    }
  } else if (!kind) {
    request->answer = failure(
        MHD_HTTP_NOT_FOUND, fmt::format("'{}' is asked of /v1/disks/{} (resize) or /v1/nets/{} (link)", action, name, name));
  } else {
    request->answer = failure(MHD_HTTP_NOT_FOUND, fmt::format("a {} has no '{}'; try {}", to_string(*kind), action,
                                                              kind == DeviceKind::disk ? "resize" : "link"));
  }
}

Answer Server::list(std::optional<DeviceKind> kind) const {
  Answer answer{.body = json::array()};
  if (kind != DeviceKind::net) {
    std::ranges::transform(host_.disks(), std::back_inserter(answer.body), disk_status_json);
  }
  if (kind != DeviceKind::disk) {
    std::ranges::transform(host_.nets(), std::back_inserter(answer.body), net_status_json);
  }
  return answer;
}

Answer Server::status(DeviceKind kind, const std::string& name) const {
  if (kind == DeviceKind::disk) {
    const HostResult<DiskStatus> disk = host_.disk(name);
    return disk ? Answer{.body = disk_status_json(*disk)} : failure(disk.error());
  }
  const HostResult<NetStatus> net = host_.net(name);
  return net ? Answer{.body = net_status_json(*net)} : failure(net.error());
}

void Server::add(const RequestPointer& request, DeviceKind kind) {
  const auto done = [request](HostResult<std::string> added) {
    finish(request, added ? Answer{.status = MHD_HTTP_CREATED, .body = {{"name", *added}}} : failure(added.error()));
  };
  const auto add_to_host = [&]() -> Result<> {
    RW_TRY_ASSIGN(const json body, parse_body(request->body));
    if (kind == DeviceKind::disk) {
      RW_TRY_ASSIGN(DiskOptions disk, disk_from_json(body));
      host_.add_disk(std::move(disk), done);
    } else {
      RW_TRY_ASSIGN(NetOptions net, net_from_json(body));
      host_.add_net(std::move(net), done);
    }
    return {};
  };
  if (const Result<> understood = add_to_host(); !understood) {
    request->answer = failure(MHD_HTTP_BAD_REQUEST, understood.error().message);
  }
}

void Server::remove(const RequestPointer& request, const std::string& name) {
  host_.remove_device(name, [request, name](HostResult<> removed) {
    if (removed) {
      finish(request, Answer{.body = {{"removed", name}}});
    } else if (removed.error().refusal == HostRefusal::pending) {
      finish(request,
             Answer{.status = MHD_HTTP_ACCEPTED, .body = {{"removing", name}, {"reason", removed.error().message}}});
    } else {
      finish(request, failure(removed.error()));
    }
  });
}

void Server::set_link(const RequestPointer& request, const std::string& name) {
  const Result<json> body = parse_body(request->body);
  if (!body || body->size() != 1 || !body->contains("up") || !body->at("up").is_boolean()) {
    request->answer = failure(MHD_HTTP_BAD_REQUEST,
                              body ? R"(give {"up": true} or {"up": false}: the state of the link)" : body.error().message);
    return;
  }
  const bool up = body->at("up").get<bool>();
  const HostResult<> set = host_.set_link(name, up);
  request->answer = set ? Answer{.body = {{"name", name}, {"link", up ? "up" : "down"}}} : failure(set.error());
}

void Server::set_poll(const RequestPointer& request) {
  const Result<json> body = parse_body(request->body);
  if (!body || body->size() != 1 || !body->contains("poll") || !body->at("poll").is_string()) {
    request->answer = failure(MHD_HTTP_BAD_REQUEST,
                              body ? R"(give {"poll": "adaptive"} or another policy of --poll)" : body.error().message);
    return;
  }
  const std::string policy = body->at("poll").get<std::string>();
  const Result<> set = host_.set_poll(policy);
  request->answer = set ? Answer{.body = {{"poll", policy}}} : failure(MHD_HTTP_BAD_REQUEST, "poll: " + set.error().message);
}

void Server::set_trace(const RequestPointer& request) {
  const Result<json> body = parse_body(request->body);
  const bool right = body && body->contains("every") && body->at("every").is_number_unsigned() &&
                     body->at("every").get<std::uint64_t>() <= Tracing::kEveryMax &&
                     (!body->contains("records") || body->at("records").is_boolean()) &&
                     body->size() == (body->contains("records") ? 2U : 1U);
  if (!right) {
    request->answer =
        failure(MHD_HTTP_BAD_REQUEST,
                body ? fmt::format(R"(give {{"every": N}}: one in N requests is followed, from 1 (all) to {}, or )"
                                   R"(0 (none); and "records": true to take them from /v1/trace/records)",
                                   Tracing::kEveryMax)
                     : body.error().message);
    return;
  }
  host_.set_trace(body->at("every").get<std::uint32_t>(), body->value("records", false));
  request->answer = Answer{.body = trace_status_json(host_.trace_status())};
}

Answer Server::trace_records() {
  constexpr std::size_t kRecordsMax = 65536;  // about 15 MiB
  const std::vector<StageRecord> records = host_.take_trace(kRecordsMax);
  const TraceStatus status = host_.trace_status();
  return {.body = {{"records", trace_records_json(records, host_.device_numbers())},
                   {"following", status.records},
                   {"dropped", status.dropped}}};
}

struct Resize {
  std::uint64_t bytes = 0;  // 0: whatever the image has
  bool shrink = false;
};
Result<Resize> parse_resize(const std::string& body) {
  RW_TRY_ASSIGN(const json object, parse_body(body));
  Resize wanted;
  for (const auto& [key, value] : object.items()) {
    if (key == "shrink" && value.is_boolean()) {
      wanted.shrink = value.get<bool>();
      continue;
    }
    if (key != "size") {
      return fail(fmt::format("unknown key '{}'; allowed: size, and shrink (true or false)", key));
    }
    if (value.is_number_unsigned()) {
      wanted.bytes = value.get<std::uint64_t>();
    } else if (Result<std::uint64_t> size = value.is_string() ? parse_size(value.get<std::string>()) : fail(""); size) {
      wanted.bytes = *size;
    } else {
      return fail(
          fmt::format("size: {} is not allowed; give bytes, or a whole number with K, M, G, T or P, such as \"2G\"; 0 or "
                      "none only looks at the image again",
                      value.dump(-1, ' ', false, json::error_handler_t::replace)));
    }
  }
  return wanted;
}

void Server::resize(const RequestPointer& request, const std::string& name) {
  const Result<Resize> wanted = parse_resize(request->body);
  if (!wanted) {
    request->answer = failure(MHD_HTTP_BAD_REQUEST, wanted.error().message);
    return;
  }
  // A typing error mustn't cost a guest its data.
  const HostResult<DiskStatus> disk = host_.disk(name);
  if (disk && wanted->bytes != 0 && wanted->bytes < disk->store.capacity_bytes && !wanted->shrink) {
    request->answer =
        failure(MHD_HTTP_CONFLICT, fmt::format("disk '{}' has {}; what lies beyond {} would be lost. If that is meant, "
                                               "say shrink (ctl resize --shrink)",
                                               name, bytes_text(disk->store.capacity_bytes), bytes_text(wanted->bytes)));
    return;
  }
  host_.resize_disk(name, wanted->bytes, [request, name](HostResult<std::uint64_t> capacity) {
    finish(request, capacity ? Answer{.body = {{"name", name}, {"capacity", *capacity}}} : failure(capacity.error()));
  });
}

}  // namespace

Result<std::unique_ptr<ApiServer>> ApiServer::create(const std::string& path, Host& host) {
  RW_TRY_ASSIGN(ApiSocket socket, ApiSocket::create(path));
  auto server = std::make_unique<Server>(std::move(socket), host);
  RW_TRY(server->start());
  return server;
}

}  // namespace ringway
