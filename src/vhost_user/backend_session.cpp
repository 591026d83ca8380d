// Theory of operation.
//
// The session is a loop of: read one message, look it up in kRules, check payload size and number of fds against its rule,
// call its handler. A handler ends, at once or much later, in exactly one of acknowledge(), reply() and refuse(); until then
// `busy_` is set and no further message is read. Handlers that need several asynchronous steps of the device (a new memory
// table, then the start of each ring that waited for it) pass on from one to the next by the `done` that the device calls.
//
// A ring is *complete* when it has a size, addresses that the memory table covers, and a kick: an fd, or the word that there
// is none and that we poll, or (in-band) a first VRING_KICK. Front-ends differ in the order in which they send these, so
// after each message that may complete a ring, start_ready_rings() starts whatever has become complete. The fds then belong
// to the device. GET_VRING_BASE stops a ring; its size, addresses and enable state are kept, its fds are not, and the next
// kick starts it again.
//
// Enable state: what SET_VRING_ENABLE said last. A ring about which it never said anything is enabled if the front-end has
// sent SET_FEATURES without VHOST_USER_F_PROTOCOL_FEATURES (it knows no SET_VRING_ENABLE then), else disabled.
//
// The end: whatever the reason, end() stops the reading; when no message is being handled, the device is detached; when it
// is, the socket is closed and `ended` posted. The socket stays open until then because closing it promises that nothing
// of the front-end's memory is touched any more, but for two exceptions, where the front-end's waiting must
// be bounded and the close is not a promise but a failure: the device has just failed to stop in time, or detaching takes
// longer than kStopDeadline.
#include "vhost_user/backend_session.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "loop/clock.hpp"
#include "ring/spec.hpp"
#include "vhost_user/backend_channel.hpp"
#include "vhost_user/codec.hpp"
#include "vhost_user/inflight_region.hpp"
#include "vhost_user/memory_table.hpp"

namespace ringway::vhost_user {

const char* to_string(Fault fault) noexcept {
  switch (fault) {
    case Fault::framing:
      return "framing";
    case Fault::unknown_message:
      return "unknown_message";
    case Fault::not_offered:
      return "not_offered";
    case Fault::bad_size:
      return "bad_size";
    case Fault::bad_fds:
      return "bad_fds";
    case Fault::bad_value:
      return "bad_value";
    case Fault::bad_order:
      return "bad_order";
    case Fault::failed:
      return "failed";
  }
  return "?";
}

namespace {

// Messages of one session in one turn of the loop, so that a front-end that floods us delays the others by little.
constexpr int kMessagesPerTurn = 32;
// And its CPU time: what each message costs may be the front-end's choice.
constexpr Duration kTimePerTurn = Duration::milliseconds(5);
// Log lines about faults of one session; beyond that only every doubling of the number is reported.
constexpr std::uint64_t kFaultLinesMax = 16;
// VHOST_USER_MAX_CONFIG_SIZE: what front-ends allow for a configuration space.
constexpr std::uint32_t kConfigBytesMax = 256;
// The specification's structure, which is padded at its end by some front-ends and not by others.
constexpr std::uint32_t kInflightPayloadMin = 20;
constexpr std::uint32_t kInflightPayloadMax = 24;
constexpr std::uint32_t kRegionPayload = 40;  // 8 bytes of padding, then the region
// QEMU before 8.0 announces 4 bytes less and so cuts off the upper half of mmap_offset.
constexpr std::uint32_t kRegionPayloadOld = 36;
constexpr std::uint32_t kTableHeaderBytes = 8;
constexpr std::uint64_t kStatusMax = 0xff;
constexpr std::uint32_t kVringAddressLog = 1;  // VHOST_VRING_F_LOG

// Acknowledged by front-ends that still speak the legacy interface; they ask nothing of a device.
constexpr std::uint64_t kToleratedFeatures = spec::kFeatureNotifyOnEmpty | spec::kFeatureAnyLayout;

// "bits 3, 17" for a message to a person.
std::string name_bits(std::uint64_t bits) {
  std::string text = std::popcount(bits) == 1 ? "bit" : "bits";
  for (unsigned number = 0; number < 64; ++number) {
    if ((bits >> number & 1U) != 0) {
      text += fmt::format("{} {}", text.size() > 4 ? "," : "", number);
    }
  }
  return text;
}

// Which descriptors may be written to, read from or asked anything: eventfds and Unix sockets, by which all front-ends
// notify. Everything else can hang whoever touches it, O_NONBLOCK or not, in a sleep that only SIGKILL ends: a file may lie
// on a file system whose server is the attacker (FUSE); and pipes and TCP sockets have locks that a system call of his own
// keeps for as long as it faults on a page of such a file. The link in /proc names the kind without asking the file system,
// which fstat() would, and SO_DOMAIN takes no lock.
Result<> check_kind(int fd) {
  std::array<char, 64> kind{};
  const ssize_t bytes = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), kind.data(), kind.size());
  if (bytes < 0) {
    return fail_errno(errno, "can't tell what kind of file descriptor it is (is /proc mounted?)");
  }
  const std::string_view name(kind.data(), static_cast<std::size_t>(bytes));
  if (name == "anon_inode:[eventfd]") {
    return {};
  }
  int domain = 0;
  socklen_t domain_bytes = sizeof domain;
  if (name.starts_with("socket:[") && ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_bytes) == 0 &&
      domain == AF_UNIX) {
    return {};
  }
  return fail("a file descriptor that is no eventfd and no Unix socket");
}

// True if both descriptors are sockets with names and `fd` is the other end of `session`, or of another connection through
// the same path. Holding that end open ourselves, we would never hear that the front-end has gone. Only against mistakes: an
// end without a name, or one that lies in another socket's queue, isn't seen; who does that holds on to his own device.
bool is_other_end(int fd, int session) {
  using Name = std::pair<sockaddr_un, socklen_t>;
  const auto name = [](int socket, auto ask) {
    Name found{{}, sizeof(sockaddr_un)};
    const bool known = ask(socket, reinterpret_cast<sockaddr*>(&found.first), &found.second) == 0 &&
                       found.first.sun_family == AF_UNIX && found.second > sizeof(sa_family_t);
    found.second = known ? std::min<socklen_t>(found.second, sizeof(sockaddr_un)) : 0;
    return found;
  };
  const auto same = [](const Name& a, const Name& b) {
    return a.second != 0 && a.second == b.second && std::memcmp(&a.first, &b.first, a.second) == 0;
  };
  return same(name(fd, ::getpeername), name(session, ::getsockname)) ||
         same(name(fd, ::getsockname), name(session, ::getpeername));
}

// Not by F_GETFL and F_SETFL: what the owner of the open file changes between the two would be set back, and O_ASYNC is a
// flag for which the kernel takes the socket's lock.
Result<> make_nonblocking(int fd) {
  int on = 1;
  if (::ioctl(fd, FIONBIO, &on) != 0) {
    return fail_errno(errno, "O_NONBLOCK can't be set on its file descriptor");
  }
  return {};
}

struct Ring {
  std::uint32_t size = 0;  // 0: not told
  std::optional<VringAddress> address;
  std::uint32_t base = 0;
  ForeignFd kick;  // the fds wait here until the ring starts
  ForeignFd call;
  ForeignFd error;
  bool kick_given = false;      // by fd, by the word that there is none, or in-band
  bool call_given = false;      // by fd or by the word that there is none
  bool kicked = false;          // an in-band kick that must not be lost
  std::optional<bool> enabled;  // what SET_VRING_ENABLE said
  bool started = false;
  bool started_enabled = false;
};

RingAddresses ring_addresses(const VringAddress& address) {
  return {.descriptor_area = UserAddress{address.descriptor},
          .driver_area = UserAddress{address.available},
          .device_area = UserAddress{address.used}};
}

class Session final : public BackendSession, private FdHandler, private FrontEndPort {
 public:
  Session(ForeignFd socket, Loop& loop, Device& device, std::move_only_function<void(std::string reason)> ended,
          std::shared_ptr<SocketLog> log);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() override;

  void start();
  void close(std::string reason) override { end(std::move(reason)); }
  [[nodiscard]] std::uint64_t messages() const override { return messages_; }
  [[nodiscard]] std::uint64_t refused() const override { return refused_; }
  [[nodiscard]] std::uint64_t faults(Fault fault) const override { return faults_[static_cast<std::size_t>(fault)]; }

 private:
  // How a message that fails is answered.
  enum class Refusal : std::uint8_t {
    ack,           // by REPLY_ACK if that is due; else the session ends
    end,           // it has a reply, but none that says "no": the session ends
    value,         // by its own reply, one number, which isn't 0
    empty,         // by its own reply, without a payload
    no_inflight,   // by its own reply: a region of 0 bytes
    device_state,  // by its own reply: an error, and no fd comes with it
  };
  struct Rule {
    Request request;
    std::uint32_t payload_min;
    std::uint32_t payload_max;
    std::size_t fds_min;
    std::size_t fds_max;
    Refusal refusal;
    void (Session::*handler)(Message&);  // null: never offered
  };
  static const std::array<Rule, 44> kRules;

  class Timer final : public TimerHandler {
   public:
    Timer(Session& session, void (Session::*action)()) : session_(session), action_(action) {}
    void on_timer(Instant /*now*/) noexcept override { (session_.*action_)(); }

   private:
    Session& session_;
    void (Session::*action_)();
  };

  // --- the socket ---
  [[nodiscard]] bool harmed() const { return socket_.holdings() != nullptr && socket_.holdings()->harmed(); }
  void on_ready(std::uint32_t events) noexcept override;
  void on_next_turn();
  void on_detach_deadline();
  void on_reset_deadline();
  void pump();
  void take_message(Message message);
  void send(std::span<const std::byte> payload, int fd);
  void flush();
  [[nodiscard]] bool watch(std::uint32_t events);

  // --- the end of a message: exactly one of these ---
  void acknowledge();
  void reply(std::span<const std::byte> payload, int fd = -1);
  void reply_value(std::uint64_t value) { reply(bytes_of(value)); }
  void refuse(Fault fault, const std::string& text);
  void finish_message();

  void count_fault(Fault fault, const std::string& text);
  [[nodiscard]] std::string describe_message() const;
  [[nodiscard]] bool acknowledgement_due() const;

  // --- the end of the session ---
  void end(std::string reason);
  void settle();
  void detach();

  // --- handlers ---
  void get_features(Message& message);
  void set_features(Message& message);
  void get_protocol_features(Message& message);
  void set_protocol_features(Message& message);
  void note_owner(Message& message);
  void set_mem_table(Message& message);
  void add_mem_reg(Message& message);
  void rem_mem_reg(Message& message);
  void get_max_mem_slots(Message& message);
  void get_queue_num(Message& message);
  void set_log_base(Message& message);
  void warn_of_unlogged_memory(std::uint64_t log_bytes);
  void set_log_fd(Message& message);
  void set_vring_num(Message& message);
  void set_vring_base(Message& message);
  void get_vring_base(Message& message);
  void set_vring_addr(Message& message);
  void set_vring_kick(Message& message);
  void set_vring_call(Message& message);
  void set_vring_err(Message& message);
  void set_vring_enable(Message& message);
  void vring_kick(Message& message);
  void set_backend_req_fd(Message& message);
  void get_config(Message& message);
  void set_config(Message& message);
  void get_inflight_fd(Message& message);
  void set_inflight_fd(Message& message);
  void reset_device(Message& message);
  void set_status(Message& message);
  void get_status(Message& message);

  // --- steps of handlers ---
  [[nodiscard]] std::uint64_t offered_features() const;
  [[nodiscard]] std::uint64_t offered_protocol_features() const;
  [[nodiscard]] bool packed() const { return (features_ & spec::kFeatureRingPacked) != 0; }
  [[nodiscard]] bool inband() const { return (protocol_features_ & kProtocolInbandNotifications) != 0; }
  [[nodiscard]] bool ring_enabled(const Ring& ring) const;
  void with_stopped_ring(std::uint32_t index, const char* what, std::move_only_function<void(Ring&)> next);
  void take_ring_size(Ring& ring, const VringState& state);
  [[nodiscard]] InflightLimits inflight_limits() const {
    return {.queue_count_max = device_.ring_count(), .queue_size_max = device_.ring_size_max()};
  }
  // The ring that a message names, or null when it was refused.
  [[nodiscard]] Ring* find_ring(std::uint32_t index);
  // What SET_VRING_KICK, CALL and ERR say.
  struct VringFd {
    std::uint32_t index;
    Ring& ring;
    ForeignFd fd;  // empty: the word that there is none
  };
  // Nothing if the message was refused.
  [[nodiscard]] std::optional<VringFd> take_vring_fd(Message& message);
  [[nodiscard]] std::optional<MemoryRegion> decode_region(const Message& message);
  void apply_memory();
  void apply_log(std::move_only_function<void()> next);
  void enable_implied_rings(std::uint32_t from);
  void start_ready_rings(std::uint32_t from = 0);
  [[nodiscard]] Result<bool> may_start(std::uint32_t index);
  [[nodiscard]] RingStart make_start(std::uint32_t index);
  void reset(std::uint64_t status);
  // A `done` after which the message is acknowledged, or refused.
  [[nodiscard]] Done<> acknowledge_when_done();

  // --- FrontEndPort ---
  bool notify_config_change() override;
  bool send_vring_call(std::uint32_t index) override;
  bool send_vring_error(std::uint32_t index) override;
  void warn(const std::string& text) override { log_->warn(text); }
  void give_up(const std::string& reason) override;

  Loop& loop_;
  Device& device_;
  const std::shared_ptr<SocketLog> log_;
  std::move_only_function<void(std::string reason)> ended_;
  ForeignFd socket_;
  WatchId watch_;
  MessageReader reader_;
  std::vector<std::byte> output_;  // of a reply that the socket had no room for; nothing is read until it is gone
  std::size_t output_sent_ = 0;
  bool told_of_memory_ = false;
  ForeignFd output_fd_;
  Timer next_turn_;
  Timer detach_deadline_;
  Timer reset_deadline_;

  // The message in hand.
  bool busy_ = false;
  Header header_;
  const Rule* rule_ = nullptr;

  bool pumping_ = false;
  bool ending_ = false;
  bool detaching_ = false;
  bool detached_ = false;
  std::string reason_;

  std::uint64_t features_ = 0;  // virtio bits that are in force
  bool features_seen_ = false;
  bool protocol_features_acked_ = false;  // bit 30 of SET_FEATURES
  std::uint64_t protocol_features_ = 0;
  MemoryTable memory_;
  std::shared_ptr<DirtyLog> log_base_;
  bool log_all_ = false;
  std::shared_ptr<DirtyLog> log_in_force_;
  std::shared_ptr<const InflightMapping> inflight_;
  std::unique_ptr<BackendChannel> channel_;
  std::uint64_t status_ = 0;
  std::vector<Ring> rings_;

  std::uint64_t messages_ = 0;
  std::uint64_t refused_ = 0;
  std::array<std::uint64_t, kFaultCount> faults_{};
};

// Every message of the specification. Sizes that front-ends vary in are ranges; a surplus in a fixed-size memory table is
// looked at by its handler.
constexpr std::uint32_t kAny = limits::kMessagePayloadMax;
const std::array<Session::Rule, 44> Session::kRules = {{
    {Request::get_features, 0, 0, 0, 0, Refusal::end, &Session::get_features},
    {Request::set_features, 8, 8, 0, 0, Refusal::ack, &Session::set_features},
    {Request::set_owner, 0, 8, 0, 0, Refusal::ack, &Session::note_owner},
    // Deprecated, and what it should do was never agreed on: like others we pass over it, so that no state is lost.
    {Request::reset_owner, 0, 8, 0, 0, Refusal::ack, &Session::note_owner},
    {Request::set_mem_table, kTableHeaderBytes, kAny, 0, limits::kFdsPerMessageMax, Refusal::ack, &Session::set_mem_table},
    {Request::set_log_base, 8, 16, 0, 1, Refusal::ack, &Session::set_log_base},
    {Request::set_log_fd, 0, 8, 0, 1, Refusal::ack, &Session::set_log_fd},
    {Request::set_vring_num, 8, 8, 0, 0, Refusal::ack, &Session::set_vring_num},
    {Request::set_vring_addr, 40, 40, 0, 0, Refusal::ack, &Session::set_vring_addr},
    {Request::set_vring_base, 8, 8, 0, 0, Refusal::ack, &Session::set_vring_base},
    {Request::get_vring_base, 8, 8, 0, 0, Refusal::end, &Session::get_vring_base},
    {Request::set_vring_kick, 8, 8, 0, 1, Refusal::ack, &Session::set_vring_kick},
    {Request::set_vring_call, 8, 8, 0, 1, Refusal::ack, &Session::set_vring_call},
    {Request::set_vring_err, 8, 8, 0, 1, Refusal::ack, &Session::set_vring_err},
    {Request::get_protocol_features, 0, 0, 0, 0, Refusal::end, &Session::get_protocol_features},
    {Request::set_protocol_features, 8, 8, 0, 0, Refusal::ack, &Session::set_protocol_features},
    {Request::get_queue_num, 0, 0, 0, 0, Refusal::end, &Session::get_queue_num},
    {Request::set_vring_enable, 8, 8, 0, 0, Refusal::ack, &Session::set_vring_enable},
    {Request::send_rarp, 0, kAny, 0, 0, Refusal::ack, nullptr},
    {Request::net_set_mtu, 0, kAny, 0, 0, Refusal::ack, nullptr},
    {Request::set_backend_req_fd, 0, 8, 1, 1, Refusal::ack, &Session::set_backend_req_fd},
    {Request::iotlb_msg, 0, kAny, 0, 0, Refusal::value, nullptr},
    {Request::set_vring_endian, 0, kAny, 0, 0, Refusal::ack, nullptr},
    {Request::get_config, sizeof(ConfigHeader), kAny, 0, 0, Refusal::empty, &Session::get_config},
    {Request::set_config, sizeof(ConfigHeader), kAny, 0, 0, Refusal::ack, &Session::set_config},
    {Request::create_crypto_session, 0, kAny, 0, 0, Refusal::empty, nullptr},
    {Request::close_crypto_session, 0, kAny, 0, 0, Refusal::ack, nullptr},
    {Request::postcopy_advise, 0, kAny, 0, 0, Refusal::value, nullptr},
    {Request::postcopy_listen, 0, kAny, 0, 0, Refusal::ack, nullptr},
    {Request::postcopy_end, 0, kAny, 0, 0, Refusal::value, nullptr},
    {Request::get_inflight_fd, kInflightPayloadMin, kInflightPayloadMax, 0, 0, Refusal::no_inflight,
     &Session::get_inflight_fd},
    {Request::set_inflight_fd, kInflightPayloadMin, kInflightPayloadMax, 1, 1, Refusal::ack, &Session::set_inflight_fd},
    {Request::gpu_set_socket, 0, kAny, 0, 1, Refusal::ack, nullptr},
    {Request::reset_device, 0, 0, 0, 0, Refusal::ack, &Session::reset_device},
    {Request::vring_kick, 8, 8, 0, 0, Refusal::ack, &Session::vring_kick},
    {Request::get_max_mem_slots, 0, 0, 0, 0, Refusal::end, &Session::get_max_mem_slots},
    {Request::add_mem_reg, kRegionPayloadOld, kRegionPayload, 1, 1, Refusal::ack, &Session::add_mem_reg},
    // Some front-ends send the region's fd along, which the specification lets us take: it is closed.
    {Request::rem_mem_reg, kRegionPayloadOld, kRegionPayload, 0, 1, Refusal::ack, &Session::rem_mem_reg},
    {Request::set_status, 8, 8, 0, 0, Refusal::ack, &Session::set_status},
    {Request::get_status, 0, 0, 0, 0, Refusal::end, &Session::get_status},
    {Request::get_shared_object, 0, kAny, 0, 0, Refusal::value, nullptr},
    {Request::set_device_state_fd, 0, kAny, 0, 1, Refusal::device_state, nullptr},
    {Request::check_device_state, 0, kAny, 0, 0, Refusal::value, nullptr},
    {Request::get_shmem_config, 0, kAny, 0, 0, Refusal::empty, nullptr},
}};

Session::Session(ForeignFd socket, Loop& loop, Device& device, std::move_only_function<void(std::string reason)> ended,
                 std::shared_ptr<SocketLog> log)
    : loop_(loop),
      device_(device),
      log_(std::move(log)),
      ended_(std::move(ended)),
      socket_(std::move(socket)),
      reader_(socket_.holdings()),
      next_turn_(*this, &Session::on_next_turn),
      detach_deadline_(*this, &Session::on_detach_deadline),
      reset_deadline_(*this, &Session::on_reset_deadline),
      rings_(device.ring_count()) {
  RW_CHECK(device.ring_count() <= limits::kQueuesPerDeviceMax);
}

Session::~Session() {
  // The device would call into a session that is no more.
  RW_CHECK(detached_);
  loop_.cancel_timer(next_turn_);
  loop_.cancel_timer(detach_deadline_);
  loop_.cancel_timer(reset_deadline_);
}

void Session::start() {
  device_.attach(*this);
  if (watch(EPOLLIN)) {
    // What has come before the watch need not be an edge.
    loop_.set_timer(next_turn_, Instant{});
  }
}

// ---------------------------------------------------------------------------------------------------- the socket

bool Session::watch(std::uint32_t events) {
  if (watch_) {
    loop_.unwatch(std::exchange(watch_, {}));
  }
  Result<WatchId> watch = loop_.watch(socket_.get(), events, *this);
  if (!watch) {
    end(watch.error().message);
    return false;
  }
  watch_ = *watch;
  return true;
}

void Session::on_ready(std::uint32_t events) noexcept {
  if (!output_.empty()) {
    flush();
  }
  if (busy_ && (events & (EPOLLHUP | EPOLLERR)) != 0) {
    // Nobody is left to be answered. The message in hand is brought to its end all the same.
    end("the front-end has gone while its message was being handled");
  }
  pump();
}

void Session::on_next_turn() {
  if (!detached_) {
    pump();
    return;
  }
  // `ended` may destroy us.
  std::move_only_function<void(std::string)> ended = std::exchange(ended_, nullptr);
  std::string reason = std::move(reason_);
  ended(std::move(reason));
}

void Session::pump() {
  if (pumping_) {
    return;
  }
  pumping_ = true;
  int budget = kMessagesPerTurn;
  const Duration began = thread_cpu_time(pthread_self());
  bool more = true;
  while (more && !busy_ && !ending_ && !harmed()) {
    if (!output_.empty()) {
      break;
    }
    if (budget-- == 0 || thread_cpu_time(pthread_self()) - began > kTimePerTurn) {
      loop_.set_timer(next_turn_, Instant{});
      break;
    }
    switch (reader_.read(socket_.get())) {
      case MessageReader::Status::complete:
        take_message(reader_.take());
        break;
      case MessageReader::Status::incomplete:
        more = false;
        break;
      case MessageReader::Status::closed:
        if (reader_.in_message()) {
          count_fault(Fault::framing, "the front-end has gone in the middle of a message");
        }
        end("the front-end has closed the connection");
        break;
      case MessageReader::Status::broken:
        count_fault(Fault::framing, reader_.error());
        end(reader_.error());
        break;
    }
  }
  pumping_ = false;
  // Also by the last message: there may be no next one.
  if (harmed()) {
    give_up("its descriptors held up our threads: one was made blocking again, or very many wait for it");
  }
  settle();
}

void Session::take_message(Message message) {
  ++messages_;
  busy_ = true;
  header_ = message.header;
  const auto rule = std::ranges::find(kRules, Request{header_.request}, &Rule::request);
  rule_ = rule == kRules.end() ? nullptr : &*rule;
  if ((header_.flags & kFlagReply) != 0) {
    const std::string text = fmt::format("{} has the reply flag, but we have asked for nothing", describe_message());
    count_fault(Fault::framing, text);
    end(text);
    return finish_message();
  }
  if (rule_ == nullptr) {
    return refuse(Fault::unknown_message, "no such message");
  }
  if (rule_->handler == nullptr) {
    return refuse(Fault::not_offered, "not offered");
  }
  if (header_.payload_bytes < rule_->payload_min || header_.payload_bytes > rule_->payload_max) {
    return refuse(Fault::bad_size, fmt::format("a payload of {} bytes, {} to {} are expected", header_.payload_bytes,
                                               rule_->payload_min, rule_->payload_max));
  }
  if (message.fds_lost || message.fds.size() < rule_->fds_min || message.fds.size() > rule_->fds_max) {
    return refuse(Fault::bad_fds,
                  fmt::format("{} file descriptors{}, {} to {} are expected", message.fds.size(),
                              message.fds_lost ? " and more that could not be taken" : "", rule_->fds_min, rule_->fds_max));
  }
  (this->*rule_->handler)(message);
}

void Session::send(std::span<const std::byte> payload, int fd) {
  if (ending_) {
    return;
  }
  std::vector<std::byte> bytes = encode(header_.request, kVersion | kFlagReply, payload);
  const std::span<const int> fds = fd >= 0 ? std::span(&fd, 1) : std::span<const int>{};
  const Result<std::size_t> sent = send_some(socket_.get(), bytes, fds, socket_.holdings().get());
  if (!sent) {
    end(sent.error().message);
    return;
  }
  if (*sent == bytes.size()) {
    return;
  }
  // The front-end doesn't read what it asked for. We wait for it to do so, and read nothing more meanwhile.
  output_ = std::move(bytes);
  output_sent_ = *sent;
  if (fd >= 0 && *sent == 0) {
    output_fd_ = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  if (watch(EPOLLIN | EPOLLOUT)) {
    flush();
  }
}

void Session::flush() {
  while (output_sent_ < output_.size()) {
    const int fd = output_fd_.get();
    const std::span<const int> fds = fd >= 0 ? std::span(&fd, 1) : std::span<const int>{};
    const Result<std::size_t> sent =
        send_some(socket_.get(), std::span(output_).subspan(output_sent_), fds, socket_.holdings().get());
    if (!sent) {
      output_.clear();
      output_sent_ = 0;
      output_fd_.reset();
      return end(sent.error().message);
    }
    if (*sent == 0) {
      return;
    }
    output_sent_ += *sent;
    output_fd_.reset();
  }
  output_.clear();
  output_sent_ = 0;
  if (!ending_) {
    static_cast<void>(watch(EPOLLIN));
  }
}

// ---------------------------------------------------------------------------------------------------- the end of a message

bool Session::acknowledgement_due() const {
  return (header_.flags & kFlagNeedReply) != 0 && (protocol_features_ & kProtocolReplyAck) != 0;
}

void Session::acknowledge() {
  if (acknowledgement_due()) {
    const std::uint64_t success = 0;
    send(bytes_of(success), -1);
  }
  finish_message();
}

void Session::reply(std::span<const std::byte> payload, int fd) {
  send(payload, fd);
  finish_message();
}

void Session::refuse(Fault fault, const std::string& text) {
  ++refused_;
  const std::string line = fmt::format("{}: {}", describe_message(), text);
  count_fault(fault, line);
  const Refusal form = rule_ == nullptr ? Refusal::ack : rule_->refusal;
  const std::uint64_t failure = 1;
  switch (form) {
    case Refusal::ack:
      if (acknowledgement_due()) {
        send(bytes_of(failure), -1);
      } else if (rule_ != nullptr && rule_->handler != nullptr) {
        end(line);
      }
      break;
    case Refusal::end:
      end(line);
      break;
    case Refusal::value:
      send(bytes_of(failure), -1);
      break;
    case Refusal::empty:
      send({}, -1);
      break;
    case Refusal::no_inflight: {
      const InflightDescription none{};
      send(bytes_of(none), -1);
      break;
    }
    case Refusal::device_state: {
      const std::uint64_t failure_without_fd = failure | kVringNoFd;
      send(bytes_of(failure_without_fd), -1);
      break;
    }
  }
  finish_message();
}

void Session::finish_message() {
  RW_CHECK(busy_);
  busy_ = false;
  rule_ = nullptr;
  // From within pump() this does nothing, and pump() goes on by itself; a deferred answer starts it again here.
  pump();
}

std::string Session::describe_message() const {
  return fmt::format("{} (id {})", to_string(Request{header_.request}), header_.request);
}

void Session::count_fault(Fault fault, const std::string& text) {
  ++faults_[static_cast<std::size_t>(fault)];
  std::uint64_t total = 0;
  for (const std::uint64_t count : faults_) {
    total += count;
  }
  if (total <= kFaultLinesMax) {
    log_->warn(text);
  } else if (std::has_single_bit(total)) {
    log_->warn(fmt::format("{} (fault {} of this session)", text, total));
  }
}

// ---------------------------------------------------------------------------------------------------- the session's end

void Session::end(std::string reason) {
  if (ending_) {
    return;
  }
  ending_ = true;
  reason_ = std::move(reason);
  if (watch_) {
    loop_.unwatch(std::exchange(watch_, {}));
  }
  settle();
}

// Detaches once the session is ending and no message is in hand.
void Session::settle() {
  if (ending_ && !busy_ && !pumping_ && !detaching_) {
    detach();
  }
}

void Session::detach() {
  detaching_ = true;
  loop_.set_timer(detach_deadline_, clock_now() + limits::kStopDeadline);
  device_.detach([this](const Result<>& /*never fails*/) {
    RW_CHECK(!detached_);
    detached_ = true;
    loop_.cancel_timer(detach_deadline_);
    rings_.clear();
    memory_.clear();
    log_base_.reset();
    log_in_force_.reset();
    inflight_.reset();
    channel_.reset();
    // The front-end sees the end now, and not only when what it left unread in the socket has been closed.
    ::shutdown(socket_.get(), SHUT_RDWR);
    socket_.reset();
    log_->info(fmt::format("session ended: {}", reason_));
    loop_.set_timer(next_turn_, Instant{});
  });
}

void Session::on_detach_deadline() {
  log_->warn(
      fmt::format("requests are still in flight {} s after the session's end; its memory stays mapped until they are done",
                  limits::kStopDeadline.ns / Duration::seconds(1).ns));
  ::shutdown(socket_.get(), SHUT_RDWR);
}

// ---------------------------------------------------------------------------------------------------- features

std::uint64_t Session::offered_features() const {
  return device_.features() | spec::kFeatureProtocolFeatures | spec::kFeatureLogAll;
}

std::uint64_t Session::offered_protocol_features() const {
  std::uint64_t offered = kProtocolMq | kProtocolLogShmfd | kProtocolReplyAck | kProtocolBackendReq | kProtocolConfig |
                          kProtocolResetDevice | kProtocolConfigureMemSlots | kProtocolStatus;
  if (device_.offers_inflight()) {
    offered |= kProtocolInflightShmfd;
  }
  if (device_.offers_inband()) {
    offered |= kProtocolInbandNotifications;
  }
  return offered;
}

void Session::get_features(Message& /*message*/) {
  reply_value(offered_features());
}

void Session::set_features(Message& message) {
  const std::uint64_t acked = *decode<std::uint64_t>(message.payload);
  const std::uint64_t illegal = acked & ~(offered_features() | kToleratedFeatures);
  if (illegal != 0) {
    return refuse(Fault::bad_value,
                  fmt::format("{} of {:#x} not offered (offered: {:#x})", name_bits(illegal), acked, offered_features()));
  }
  const std::uint64_t features = acked & device_.features() & ~(spec::kFeatureLogAll | spec::kFeatureProtocolFeatures);
  if (!features_seen_ || features != features_) {
    // Live migration sends SET_FEATURES to a running device, but with LOG_ALL as the only difference.
    const auto running = std::ranges::find(rings_, true, &Ring::started);
    if (running != rings_.end()) {
      return refuse(Fault::bad_order, fmt::format("{} can't change while ring {} runs", name_bits(features ^ features_),
                                                  running - rings_.begin()));
    }
    if (const Result<> set = device_.set_features(features); !set) {
      return refuse(Fault::failed, set.error().message);
    }
  }
  features_ = features;
  features_seen_ = true;
  protocol_features_acked_ = (acked & spec::kFeatureProtocolFeatures) != 0;
  log_all_ = (acked & spec::kFeatureLogAll) != 0;
  apply_log([this] { enable_implied_rings(0); });
}

// Logging is on while the front-end has both acknowledged LOG_ALL and given a log; either may come first.
void Session::apply_log(std::move_only_function<void()> next) {
  const std::shared_ptr<DirtyLog> wanted = log_all_ ? log_base_ : nullptr;
  if (wanted == log_in_force_) {
    return next();
  }
  log_in_force_ = wanted;
  device_.set_log(wanted, [this, next = std::move(next)](const Result<>& result) mutable {
    if (!result) {
      return refuse(Fault::failed, result.error().message);
    }
    next();
  });
}

bool Session::ring_enabled(const Ring& ring) const {
  return ring.enabled.value_or(features_seen_ && !protocol_features_acked_);
}

// "Upon receiving SET_FEATURES without VHOST_USER_F_PROTOCOL_FEATURES the back-end must enable all rings immediately", but
// what SET_VRING_ENABLE has said stands: some front-ends forget the bit during migration.
void Session::enable_implied_rings(std::uint32_t from) {
  for (std::uint32_t i = from; i < rings_.size(); ++i) {
    Ring& ring = rings_[i];
    if (ring.started && !ring.started_enabled && ring_enabled(ring)) {
      ring.started_enabled = true;
      device_.enable_ring(i, true, [this, i](const Result<>& result) {
        if (!result) {
          return refuse(Fault::failed, result.error().message);
        }
        enable_implied_rings(i + 1);
      });
      return;
    }
  }
  start_ready_rings();
}

void Session::get_protocol_features(Message& /*message*/) {
  reply_value(offered_protocol_features());
}

void Session::set_protocol_features(Message& message) {
  const std::uint64_t acked = *decode<std::uint64_t>(message.payload);
  const std::uint64_t illegal = acked & ~offered_protocol_features();
  if (illegal != 0) {
    return refuse(Fault::bad_value, fmt::format("{} of {:#x} not offered (offered: {:#x})", name_bits(illegal), acked,
                                                offered_protocol_features()));
  }
  constexpr std::uint64_t kNeededByInband = kProtocolBackendReq | kProtocolReplyAck;
  if ((acked & kProtocolInbandNotifications) != 0 && (acked & kNeededByInband) != kNeededByInband) {
    // The specification wants the connection closed, whether or not a reply could be sent.
    const std::string text = "INBAND_NOTIFICATIONS without BACKEND_REQ and REPLY_ACK";
    refuse(Fault::bad_value, text);
    return end(text);
  }
  protocol_features_ = acked;
  acknowledge();
}

void Session::note_owner(Message& /*message*/) {
  acknowledge();
}

void Session::get_queue_num(Message& /*message*/) {
  reply_value(device_.queue_num_reply());
}

// ---------------------------------------------------------------------------------------------------- memory

void Session::set_mem_table(Message& message) {
  const std::uint32_t count = *decode<std::uint32_t>(message.payload);
  if (count > limits::kFdsPerMessageMax) {
    return refuse(Fault::bad_value,
                  fmt::format("{} regions, at most {} fit into one message", count, limits::kFdsPerMessageMax));
  }
  // UML always sends the whole array, whatever `count` says.
  const std::size_t needed = kTableHeaderBytes + count * sizeof(MemoryRegion);
  if (message.payload.size() < needed) {
    return refuse(Fault::bad_size,
                  fmt::format("a payload of {} bytes, {} regions need {}", message.payload.size(), count, needed));
  }
  if (message.fds.size() != count) {
    return refuse(Fault::bad_fds, fmt::format("{} file descriptors for {} regions", message.fds.size(), count));
  }
  std::array<MemoryRegion, limits::kFdsPerMessageMax> regions{};
  std::memcpy(regions.data(), message.payload.data() + kTableHeaderBytes, count * sizeof(MemoryRegion));
  if (const Result<> set = memory_.set(std::span(regions).first(count), message.fds); !set) {
    return refuse(Fault::failed, set.error().message);
  }
  apply_memory();
}

std::optional<MemoryRegion> Session::decode_region(const Message& message) {
  if (message.payload.size() != kRegionPayload && message.payload.size() != kRegionPayloadOld) {
    refuse(Fault::bad_size, fmt::format("a payload of {} bytes, {} or {} are expected", message.payload.size(),
                                        kRegionPayloadOld, kRegionPayload));
    return std::nullopt;
  }
  MemoryRegion region{};
  std::memcpy(&region, message.payload.data() + kTableHeaderBytes, message.payload.size() - kTableHeaderBytes);
  return region;
}

void Session::add_mem_reg(Message& message) {
  const std::optional<MemoryRegion> region = decode_region(message);
  if (!region) {
    return;
  }
  if (const Result<> added = memory_.add(*region, message.fds[0]); !added) {
    return refuse(Fault::failed, added.error().message);
  }
  apply_memory();
}

void Session::rem_mem_reg(Message& message) {
  const std::optional<MemoryRegion> region = decode_region(message);
  if (!region) {
    return;
  }
  if (const Result<> removed = memory_.remove(*region); !removed) {
    return refuse(Fault::bad_value, removed.error().message);
  }
  apply_memory();
}

void Session::apply_memory() {
  device_.set_memory(memory_.map(), [this](const Result<>& result) {
    if (!result) {
      return refuse(Fault::failed, result.error().message);
    }
    start_ready_rings();
  });
}

void Session::get_max_mem_slots(Message& /*message*/) {
  reply_value(limits::kMemorySlotsMax);
}

// What is written beyond the bitmap's end goes unlogged, and the migrated guest would find old data there.
void Session::warn_of_unlogged_memory(std::uint64_t log_bytes) {
  std::uint64_t end = 0;
  for (const RegionMap::Region& region : memory_.map()->regions()) {
    end = std::max(end, region.guest.value + region.bytes);
  }
  const std::uint64_t bytes_needed = (end + 8 * DirtyLog::kPageBytes - 1) / (8 * DirtyLog::kPageBytes);
  if (log_bytes < bytes_needed) {
    log_->warn(
        fmt::format("the dirty log has {} bytes, and the guest's memory needs {}: what lies beyond isn't logged, a "
                    "migration would lose it",
                    log_bytes, bytes_needed));
  }
}

void Session::set_log_base(Message& message) {
  const std::optional<LogDescription> description = decode<LogDescription>(message.payload);
  if (!description || message.fds.empty()) {
    return refuse(Fault::bad_fds, "a log can only be given as shared memory: size, offset and a file descriptor");
  }
  Result<std::shared_ptr<DirtyLog>> log =
      DirtyLog::create(message.fds[0].get(), description->bytes, description->offset, socket_.holdings());
  if (!log) {
    return refuse(Fault::failed, log.error().message);
  }
  warn_of_unlogged_memory(description->bytes);
  log_base_ = std::move(*log);
  apply_log([this] {
    // With LOG_SHMFD this message has a reply of its own, asked for or not.
    if ((protocol_features_ & kProtocolLogShmfd) != 0) {
      return reply_value(0);
    }
    acknowledge();
  });
}

// The eventfd "may be used to inform the front-end that the log has been modified": an offer that we decline, by taking the
// message and closing the fd. A log under load has news in every turn, so a front-end looks at the bitmap by its own rounds
// and a signal would cost a system call per turn to wake nobody: QEMU never sends this message (nor does any front-end that
// we know), and other back-ends close the fd as well.
void Session::set_log_fd(Message& /*message*/) {
  acknowledge();
}

// ---------------------------------------------------------------------------------------------------- rings

Ring* Session::find_ring(std::uint32_t index) {
  if (index < rings_.size()) {
    return &rings_[index];
  }
  refuse(Fault::bad_value, fmt::format("ring {}, this device has {}", index, rings_.size()));
  return nullptr;
}

// User Mode Linux only disables its rings when a driver is unbound, and sets them up anew for the next one without a
// GET_VRING_BASE between. So a message that only a stopped ring takes stops a disabled one; a new life begins at base 0.
void Session::with_stopped_ring(std::uint32_t index, const char* what, std::move_only_function<void(Ring&)> next) {
  Ring* ring = find_ring(index);
  if (ring == nullptr) {
    return;
  }
  if (!ring->started) {
    return next(*ring);
  }
  if (ring_enabled(*ring)) {
    return refuse(Fault::bad_order, fmt::format("ring {} runs, its {} can't change", index, what));
  }
  device_.stop_ring(index, [this, index, next = std::move(next)](const Result<std::uint32_t>& base) mutable {
    Ring& stopped = rings_[index];
    stopped.started = false;
    if (!base) {
      return refuse(Fault::failed, fmt::format("ring {} could not be stopped: {}", index, base.error().message));
    }
    stopped.base = packed() ? kPackedBaseInitial : kSplitBaseInitial;
    stopped.kick_given = false;
    stopped.call_given = static_cast<bool>(stopped.call);
    next(stopped);
  });
}

void Session::set_vring_num(Message& message) {
  const VringState state = *decode<VringState>(message.payload);
  with_stopped_ring(state.index, "size", [this, state](Ring& ring) { take_ring_size(ring, state); });
}

void Session::take_ring_size(Ring& ring, const VringState& state) {
  if (state.num == 0 || state.num > device_.ring_size_max()) {
    return refuse(Fault::bad_value,
                  fmt::format("ring {}: size {} is not within 1 to {}", state.index, state.num, device_.ring_size_max()));
  }
  if (!packed() && !std::has_single_bit(state.num)) {
    return refuse(Fault::bad_value, fmt::format("ring {}: size {} of a split ring is not a power of two up to {}",
                                                state.index, state.num, device_.ring_size_max()));
  }
  ring.size = state.num;
  start_ready_rings();
}

void Session::set_vring_base(Message& message) {
  const VringState state = *decode<VringState>(message.payload);
  with_stopped_ring(state.index, "base", [this, state](Ring& ring) {
    if (!packed() && state.num > 0xffff) {
      return refuse(Fault::bad_value,
                    fmt::format("ring {}: base {:#x} of a split ring is above 0xffff", state.index, state.num));
    }
    ring.base = state.num;
    start_ready_rings();
  });
}

void Session::get_vring_base(Message& message) {
  const std::uint32_t index = decode<VringState>(message.payload)->index;
  Ring* ring = find_ring(index);
  if (ring == nullptr) {
    return;
  }
  if (!ring->started) {
    // A ring that waited for its memory waits no more.
    ring->kick.reset();
    ring->kick_given = false;
    ring->kicked = false;
    const VringState state{.index = index, .num = ring->base};
    return reply(bytes_of(state));
  }
  device_.stop_ring(index, [this, index](const Result<std::uint32_t>& base) {
    Ring& stopped = rings_[index];
    stopped.started = false;
    if (!base) {
      // The kernel may still write to the guest's memory: there is no honest answer but the end of the connection, and the
      // front-end mustn't wait for that until the store comes back.
      ::shutdown(socket_.get(), SHUT_RDWR);
      return refuse(Fault::failed, fmt::format("ring {} could not be stopped: {}", index, base.error().message));
    }
    stopped.base = *base;
    stopped.kick_given = false;
    stopped.call_given = false;
    stopped.call.reset();
    const VringState state{.index = index, .num = *base};
    reply(bytes_of(state));
  });
}

void Session::set_vring_addr(Message& message) {
  const VringAddress address = *decode<VringAddress>(message.payload);
  Ring* ring = find_ring(address.index);
  if (ring == nullptr) {
    return;
  }
  if (!ring->started) {
    ring->address = address;
    return start_ready_rings();
  }
  const Result<RingLayout> layout = RingLayout::resolve(*memory_.map(), ring_addresses(address), ring->size, packed());
  if (!layout) {
    return refuse(Fault::bad_value, fmt::format("ring {}: {}", address.index, layout.error().message));
  }
  ring->address = address;
  device_.set_addresses(address.index, ring_addresses(address), (address.flags & kVringAddressLog) != 0,
                        GuestAddress{address.log}, acknowledge_when_done());
}

std::optional<Session::VringFd> Session::take_vring_fd(Message& message) {
  const std::uint64_t value = *decode<std::uint64_t>(message.payload);
  const auto index = static_cast<std::uint32_t>(value & kVringIndexMask);
  const bool without_fd = (value & kVringNoFd) != 0;
  Ring* ring = find_ring(index);
  if (ring == nullptr) {
    return std::nullopt;
  }
  if (without_fd != message.fds.empty()) {
    refuse(Fault::bad_fds, fmt::format("ring {}: {}", index,
                                       without_fd ? "a file descriptor together with the word that there is none"
                                                  : "no file descriptor, and no word that there is none (bit 8)"));
    return std::nullopt;
  }
  if (without_fd) {
    return VringFd{index, *ring, {}};
  }
  Result<> usable = check_kind(message.fds[0].get());
  if (usable && is_other_end(message.fds[0].get(), socket_.get())) {
    usable = fail("a file descriptor that is the front-end's own end of this connection");
  }
  if (usable) {
    usable = make_nonblocking(message.fds[0].get());
  }
  if (!usable) {
    refuse(Fault::bad_fds, fmt::format("ring {}: {}", index, usable.error().message));
    return std::nullopt;
  }
  return VringFd{index, *ring, std::move(message.fds[0])};
}

void Session::set_vring_kick(Message& message) {
  std::optional<VringFd> given = take_vring_fd(message);
  if (!given) {
    return;
  }
  auto& [index, ring, fd] = *given;
  if (ring.started) {
    return device_.set_kick(index, std::move(fd), acknowledge_when_done());
  }
  ring.kick = std::move(fd);
  ring.kick_given = true;
  start_ready_rings();
}

void Session::set_vring_call(Message& message) {
  std::optional<VringFd> given = take_vring_fd(message);
  if (!given) {
    return;
  }
  auto& [index, ring, fd] = *given;
  ring.call_given = true;
  if (ring.started) {
    if (!ring_enabled(ring)) {
      // Perhaps meant for the ring's next life, see with_stopped_ring().
      ring.call = fd.duplicate();
    }
    return device_.set_call(index, std::move(fd), acknowledge_when_done());
  }
  ring.call = std::move(fd);
  acknowledge();
}

void Session::set_vring_err(Message& message) {
  std::optional<VringFd> given = take_vring_fd(message);
  if (!given) {
    return;
  }
  auto& [index, ring, fd] = *given;
  if (ring.started) {
    return device_.set_error(index, std::move(fd), acknowledge_when_done());
  }
  ring.error = std::move(fd);
  acknowledge();
}

void Session::set_vring_enable(Message& message) {
  const VringState state = *decode<VringState>(message.payload);
  Ring* ring = find_ring(state.index);
  if (ring == nullptr) {
    return;
  }
  if (state.num > 1) {
    return refuse(Fault::bad_value,
                  fmt::format("ring {}: {} is neither 0 (disable) nor 1 (enable)", state.index, state.num));
  }
  ring->enabled = state.num == 1;
  if (!ring->started || ring->started_enabled == *ring->enabled) {
    return acknowledge();
  }
  ring->started_enabled = *ring->enabled;
  device_.enable_ring(state.index, *ring->enabled, acknowledge_when_done());
}

void Session::vring_kick(Message& message) {
  if (!inband()) {
    return refuse(Fault::not_offered, "INBAND_NOTIFICATIONS is not negotiated");
  }
  const std::uint32_t index = decode<VringState>(message.payload)->index;
  Ring* ring = find_ring(index);
  if (ring == nullptr) {
    return;
  }
  if (ring->started) {
    device_.kick(index);
    return acknowledge();
  }
  ring->kick_given = true;
  ring->kicked = true;
  start_ready_rings();
}

Done<> Session::acknowledge_when_done() {
  return [this](const Result<>& result) {
    if (!result) {
      return refuse(Fault::failed, result.error().message);
    }
    acknowledge();
  };
}

// True if the ring is complete and its memory is there. An error if no memory could make its addresses good.
Result<bool> Session::may_start(std::uint32_t index) {
  const Ring& ring = rings_[index];
  if (ring.started || ring.size == 0 || !ring.address || !ring.kick_given) {
    return false;
  }
  const RingAddresses addresses = ring_addresses(*ring.address);
  const RegionMap& map = *memory_.map();
  const Result<RingLayout> layout = RingLayout::resolve(map, addresses, ring.size, packed());
  if (layout) {
    return true;
  }
  const bool unmapped = map.from_user(addresses.descriptor_area, 1) == nullptr ||
                        map.from_user(addresses.driver_area, 1) == nullptr ||
                        map.from_user(addresses.device_area, 1) == nullptr;
  if (!unmapped) {
    return fail(fmt::format("ring {}: {}", index, layout.error().message));
  }
  // Most front-ends send the memory first, so this is nearly always a VMM that shares none, and a disk that stays dead.
  if (!std::exchange(told_of_memory_, true)) {
    log_->warn(fmt::format(
        "ring {} can't start yet: {}. If the guest doesn't see its disk, start the VMM with shared memory "
        "(QEMU: -object memory-backend-memfd,share=on with -numa or -machine memory-backend; Cloud Hypervisor: --memory "
        "shared=on)",
        index, layout.error().message));
  }
  return false;
}

RingStart Session::make_start(std::uint32_t index) {
  Ring& ring = rings_[index];
  RingStart start;
  start.index = index;
  start.size = ring.size;
  start.addresses = ring_addresses(*ring.address);
  start.features = {.packed = packed(),
                    .indirect = (features_ & spec::kFeatureIndirectDesc) != 0,
                    .event_index = (features_ & spec::kFeatureEventIdx) != 0,
                    .in_order = (features_ & spec::kFeatureInOrder) != 0};
  start.base = ring.base;
  start.enabled = ring_enabled(ring);
  start.log_used_ring = (ring.address->flags & kVringAddressLog) != 0;
  start.log_guest_address = GuestAddress{ring.address->log};
  start.kick = std::move(ring.kick);
  start.call = std::move(ring.call);
  start.error = std::move(ring.error);
  start.inband_call = inband() && !ring.call_given;
  if (inflight_ != nullptr && index < inflight_->queue_count && ring.size <= inflight_->queue_size &&
      inflight_->packed == packed()) {
    start.inflight = inflight_;
  }
  return start;
}

// Starts whatever has become complete, one ring after the other, then acknowledges the message in hand.
void Session::start_ready_rings(std::uint32_t from) {
  for (std::uint32_t i = from; i < rings_.size(); ++i) {
    Ring& ring = rings_[i];
    const Result<bool> may = may_start(i);
    if (!may) {
      // Not tried again with each further message: the front-end has to send a new kick.
      ring.kick_given = false;
      ring.kick.reset();
      return refuse(Fault::bad_value, may.error().message);
    }
    if (!*may) {
      continue;
    }
    RingStart start = make_start(i);
    ring.started = true;
    ring.started_enabled = start.enabled;
    device_.start_ring(std::move(start), [this, i](const Result<>& result) {
      Ring& started = rings_[i];
      const bool kicked = std::exchange(started.kicked, false);
      if (!result) {
        started.started = false;
        started.kick_given = false;
        return refuse(Fault::failed, fmt::format("ring {}: {}", i, result.error().message));
      }
      if (kicked) {
        device_.kick(i);
      }
      start_ready_rings(i + 1);
    });
    return;
  }
  acknowledge();
}

// ---------------------------------------------------------------------------------------------------- the rest

void Session::set_backend_req_fd(Message& message) {
  if (const Result<> usable = check_kind(message.fds[0].get()); !usable) {
    return refuse(Fault::bad_fds, usable.error().message);
  }
  if (is_other_end(message.fds[0].get(), socket_.get())) {
    return refuse(Fault::bad_fds, "a file descriptor that is the front-end's own end of this connection");
  }
  // The session ends in the next turn: whoever asks the channel to send isn't to find it gone.
  Result<std::unique_ptr<BackendChannel>> channel =
      BackendChannel::create(std::move(message.fds[0]), loop_, log_, [this] { loop_.set_timer(next_turn_, Instant{}); });
  if (!channel) {
    return refuse(Fault::bad_fds, channel.error().message);
  }
  channel_ = std::move(*channel);
  acknowledge();
}

bool Session::notify_config_change() {
  return channel_ != nullptr && (protocol_features_ & kProtocolConfig) != 0 && channel_->notify_config_change();
}

// Each of its rings may say so: one fault.
void Session::give_up(const std::string& reason) {
  if (ending_) {
    return;
  }
  count_fault(Fault::bad_fds, reason);
  end(reason);
}

bool Session::send_vring_call(std::uint32_t index) {
  return channel_ != nullptr && inband() && channel_->vring_call(index);
}

bool Session::send_vring_error(std::uint32_t index) {
  return channel_ != nullptr && inband() && channel_->vring_err(index);
}

// The reply has the size of the request, or nothing in it.
void Session::get_config(Message& message) {
  const ConfigHeader config = *decode<ConfigHeader>(message.payload);
  if (config.bytes != message.payload.size() - sizeof(ConfigHeader)) {
    return refuse(Fault::bad_size, fmt::format("{} bytes of configuration in a payload that has room for {}", config.bytes,
                                               message.payload.size() - sizeof(ConfigHeader)));
  }
  if (config.offset > kConfigBytesMax || config.bytes > kConfigBytesMax - config.offset) {
    return refuse(Fault::bad_value, fmt::format("{} bytes of configuration at offset {}, it ends at {}", config.bytes,
                                                config.offset, kConfigBytesMax));
  }
  const std::span<std::byte> out = std::span(message.payload).subspan(sizeof(ConfigHeader));
  std::ranges::fill(out, std::byte{0});
  if (const Result<> read = device_.get_config(config.offset, out); !read) {
    return refuse(Fault::bad_value, read.error().message);
  }
  reply(message.payload);
}

void Session::set_config(Message& message) {
  const ConfigHeader config = *decode<ConfigHeader>(message.payload);
  if (config.bytes != message.payload.size() - sizeof(ConfigHeader)) {
    return refuse(Fault::bad_size, fmt::format("{} bytes of configuration in a payload that has {}", config.bytes,
                                               message.payload.size() - sizeof(ConfigHeader)));
  }
  if (config.flags > 1) {
    return refuse(Fault::bad_value, fmt::format("flags {:#x}, only 0 (write) and 1 (migration) exist", config.flags));
  }
  if (config.offset > kConfigBytesMax || config.bytes > kConfigBytesMax - config.offset) {
    return refuse(Fault::bad_value, fmt::format("{} bytes of configuration at offset {}, it ends at {}", config.bytes,
                                                config.offset, kConfigBytesMax));
  }
  const std::span<const std::byte> in = std::span(message.payload).subspan(sizeof(ConfigHeader));
  if (const Result<> written = device_.set_config(config.offset, in, acknowledge_when_done()); !written) {
    refuse(Fault::bad_value, written.error().message);
  }
}

namespace {

// The structure's padding may be missing on the wire.
InflightDescription decode_inflight(const Message& message) {
  InflightDescription description{};
  std::memcpy(&description, message.payload.data(), std::min(message.payload.size(), sizeof(description)));
  return description;
}

}  // namespace

void Session::get_inflight_fd(Message& message) {
  if (!device_.offers_inflight()) {
    return refuse(Fault::not_offered, "INFLIGHT_SHMFD is not offered");
  }
  const InflightDescription asked = decode_inflight(message);
  Result<NewInflight> region =
      create_inflight(asked.queue_count, asked.queue_size, packed(), inflight_limits(), socket_.holdings());
  if (!region) {
    return refuse(Fault::bad_value, region.error().message);
  }
  inflight_ = std::move(region->mapping);
  reply(bytes_of(region->description).first(message.payload.size()), region->fd.get());
}

void Session::set_inflight_fd(Message& message) {
  if (!device_.offers_inflight()) {
    return refuse(Fault::not_offered, "INFLIGHT_SHMFD is not offered");
  }
  Result<std::shared_ptr<const InflightMapping>> adopted =
      adopt_inflight(message.fds[0], decode_inflight(message), packed(), inflight_limits());
  if (!adopted) {
    return refuse(Fault::bad_value, adopted.error().message);
  }
  inflight_ = std::move(*adopted);
  acknowledge();
}

// The device and its rings become as new; the memory table, the protocol features and the channel are the connection's.
void Session::reset(std::uint64_t status) {
  loop_.set_timer(reset_deadline_, clock_now() + limits::kStopDeadline);
  device_.reset([this, status](const Result<>& result) {
    loop_.cancel_timer(reset_deadline_);
    if (!result) {
      return refuse(Fault::failed, result.error().message);
    }
    rings_ = std::vector<Ring>(rings_.size());
    features_ = 0;
    features_seen_ = false;
    protocol_features_acked_ = false;
    log_all_ = false;
    if (inflight_ != nullptr) {
      forget_inflight(*inflight_);
      inflight_.reset();
    }
    status_ = status;
    apply_log([this] { acknowledge(); });
  });
}

// A store that hangs can't be waited for: as for GET_VRING_BASE there is no honest answer but the end of the connection. The
// message in hand ends when the store comes back.
void Session::on_reset_deadline() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  end("the device could not be reset in time; the disk hangs");
}

void Session::reset_device(Message& /*message*/) {
  reset(0);
}

void Session::set_status(Message& message) {
  const std::uint64_t status = *decode<std::uint64_t>(message.payload);
  if (status > kStatusMax) {
    return refuse(Fault::bad_value, fmt::format("status {:#x} is above {:#x}", status, kStatusMax));
  }
  if (status == 0) {
    return reset(status);
  }
  status_ = status;
  acknowledge();
}

void Session::get_status(Message& /*message*/) {
  reply_value(status_);
}

}  // namespace

std::unique_ptr<BackendSession> BackendSession::create(ForeignFd socket, Loop& loop, Device& device,
                                                       std::move_only_function<void(std::string reason)> ended,
                                                       std::shared_ptr<SocketLog> log) {
  if (log == nullptr) {
    log = std::make_shared<SocketLog>(device.name());
  }
  auto session = std::make_unique<Session>(std::move(socket), loop, device, std::move(ended), std::move(log));
  session->start();
  return session;
}

}  // namespace ringway::vhost_user
