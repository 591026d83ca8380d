// For tests and fuzzers of this folder: a device that records what a session asks of it, and a real session on a socket
// pair, stepped by an epoll loop in the test's own thread.
#pragma once

#include <dirent.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "loop/clock.hpp"
#include "loop/epoll_loop.hpp"
#include "ring/spec.hpp"
#include "vhost_user/backend_session.hpp"
#include "vhost_user/front_end.hpp"

namespace ringway::vhost_user {

// Keeps rings, fds and memory as a real device does, but serves nothing. With `hold` set, calls that take a `done` are not
// answered until release().
class RecordingDevice final : public Device {
 public:
  std::vector<std::string> calls;  // what the session asked for, in order
  bool hold = false;
  bool inband = true;
  bool inflight = true;
  std::uint64_t offered = spec::kFeatureVersion1 | spec::kFeatureRingPacked | spec::kFeatureEventIdx |
                          spec::kFeatureIndirectDesc | spec::kBlkFlush;
  std::uint32_t rings = 4;
  std::optional<Error> next_failure;  // of the next call with a `done`
  std::uint32_t base_when_stopped = 7;
  std::array<std::byte, 60> config{};

  FrontEndPort* port = nullptr;
  std::map<std::uint32_t, RingStart> running;
  std::shared_ptr<const RegionMap> map;
  std::shared_ptr<DirtyLog> log;
  int attached = 0;

  // Answers what is held now, the oldest first; what the answers bring about is held again.
  void release() {
    std::deque<std::move_only_function<void()>> answers = std::exchange(held_, {});
    for (std::move_only_function<void()>& answer : answers) {
      answer();
    }
  }
  [[nodiscard]] std::size_t held() const { return held_.size(); }
  [[nodiscard]] std::size_t count(const std::string& prefix) const {
    std::size_t found = 0;
    for (const std::string& call : calls) {
      found += call.starts_with(prefix) ? 1 : 0;
    }
    return found;
  }

  [[nodiscard]] std::string name() const override { return "recorder"; }
  [[nodiscard]] std::uint64_t features() const override { return offered; }
  [[nodiscard]] std::uint32_t ring_count() const override { return rings; }
  [[nodiscard]] std::uint64_t queue_num_reply() const override { return rings; }
  [[nodiscard]] std::uint32_t ring_size_max() const override { return 1024; }
  [[nodiscard]] bool offers_inband() const override { return inband; }
  [[nodiscard]] bool offers_inflight() const override { return inflight; }

  void attach(FrontEndPort& front_end) override {
    RW_CHECK(port == nullptr);
    port = &front_end;
    ++attached;
    calls.emplace_back("attach");
  }
  void detach(Done<> done) override {
    RW_CHECK(port != nullptr);
    port = nullptr;
    calls.emplace_back("detach");
    answer([this, done = std::move(done)]() mutable {
      running.clear();
      map.reset();
      log.reset();
      done({});
    });
  }

  Result<> set_features(std::uint64_t acked) override {
    calls.push_back(fmt::format("set_features {:#x}", acked));
    return {};
  }
  Result<> get_config(std::uint32_t offset, std::span<std::byte> out) override {
    if (offset > config.size() || out.size() > config.size() - offset) {
      return fail("beyond the configuration");
    }
    std::copy_n(config.begin() + offset, out.size(), out.begin());
    return {};
  }
  Result<> set_config(std::uint32_t offset, std::span<const std::byte> in, Done<> done) override {
    if (offset > config.size() || in.size() > config.size() - offset) {
      return fail("beyond the configuration");
    }
    std::copy(in.begin(), in.end(), config.begin() + offset);
    calls.push_back(fmt::format("set_config {} {}", offset, in.size()));
    finish(std::move(done));
    return {};
  }
  void set_memory(std::shared_ptr<const RegionMap> new_map, Done<> done) override {
    calls.push_back(fmt::format("set_memory {}", new_map->regions().size()));
    map = std::move(new_map);
    finish(std::move(done));
  }
  void set_log(std::shared_ptr<DirtyLog> new_log, Done<> done) override {
    calls.push_back(fmt::format("set_log {}", new_log != nullptr ? "on" : "off"));
    log = std::move(new_log);
    finish(std::move(done));
  }
  void start_ring(RingStart start, Done<> done) override {
    RW_CHECK(!running.contains(start.index));
    calls.push_back(fmt::format("start {} size={} base={} enabled={} kick={} call={} error={} packed={}{}{}", start.index,
                                start.size, start.base, start.enabled, static_cast<bool>(start.kick),
                                static_cast<bool>(start.call), static_cast<bool>(start.error), start.features.packed,
                                start.inband_call ? " inband" : "", start.inflight != nullptr ? " inflight" : ""));
    const std::uint32_t index = start.index;
    running.emplace(index, std::move(start));
    if (next_failure) {
      running.erase(index);
    }
    finish(std::move(done));
  }
  void stop_ring(std::uint32_t index, Done<std::uint32_t> done) override {
    RW_CHECK(running.contains(index));
    calls.push_back(fmt::format("stop {}", index));
    Result<std::uint32_t> result = base_when_stopped;
    if (next_failure) {
      result = std::unexpected(*std::exchange(next_failure, std::nullopt));
    }
    answer([this, index, done = std::move(done), result = std::move(result)]() mutable {
      running.erase(index);
      done(std::move(result));
    });
  }
  void enable_ring(std::uint32_t index, bool enabled, Done<> done) override {
    RW_CHECK(running.contains(index));
    calls.push_back(fmt::format("enable {} {}", index, enabled));
    finish(std::move(done));
  }
  void set_call(std::uint32_t index, ForeignFd fd, Done<> done) override {
    calls.push_back(fmt::format("set_call {} {}", index, static_cast<bool>(fd)));
    running.at(index).call = std::move(fd);
    finish(std::move(done));
  }
  void set_kick(std::uint32_t index, ForeignFd fd, Done<> done) override {
    calls.push_back(fmt::format("set_kick {} {}", index, static_cast<bool>(fd)));
    running.at(index).kick = std::move(fd);
    finish(std::move(done));
  }
  void set_error(std::uint32_t index, ForeignFd fd, Done<> done) override {
    calls.push_back(fmt::format("set_error {} {}", index, static_cast<bool>(fd)));
    running.at(index).error = std::move(fd);
    finish(std::move(done));
  }
  void set_addresses(std::uint32_t index, RingAddresses addresses, bool with_log, GuestAddress log_address,
                     Done<> done) override {
    calls.push_back(fmt::format("set_addresses {} log={}@{:#x}", index, with_log, log_address.value));
    running.at(index).addresses = addresses;
    finish(std::move(done));
  }
  void kick(std::uint32_t index) override {
    RW_CHECK(running.contains(index));
    calls.push_back(fmt::format("kick {}", index));
  }
  void reset(Done<> done) override {
    calls.emplace_back("reset");
    running.clear();
    finish(std::move(done));
  }

 private:
  void finish(Done<> done) {
    Result<> result;
    if (next_failure) {
      result = std::unexpected(*std::exchange(next_failure, std::nullopt));
    }
    answer([done = std::move(done), result = std::move(result)]() mutable { done(std::move(result)); });
  }
  void answer(std::move_only_function<void()> now) {
    if (hold) {
      held_.push_back(std::move(now));
    } else {
      now();
    }
  }

  std::deque<std::move_only_function<void()>> held_;
};

inline std::pair<UniqueFd, UniqueFd> make_socket_pair() {
  std::array<int, 2> ends{};
  RW_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

inline UniqueFd make_memory(std::uint64_t bytes) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
  RW_CHECK(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  return fd;
}

inline UniqueFd make_event() {
  return UniqueFd(::eventfd(0, EFD_CLOEXEC));
}

inline std::size_t count_open_fds() {
  DIR* directory = ::opendir("/proc/self/fd");
  std::size_t count = 0;
  while (::readdir(directory) != nullptr) {
    ++count;
  }
  ::closedir(directory);
  return count;
}

// A front-end and a session on the two ends of a socket pair.
class SessionBench {
 public:
  static constexpr std::uint64_t kMemoryBytes = 1U << 20U;
  static constexpr std::uint64_t kUserBase = 0x7f00'0000'0000;
  static constexpr std::uint64_t kAllProtocolFeatures = kProtocolMq | kProtocolLogShmfd | kProtocolReplyAck |
                                                        kProtocolBackendReq | kProtocolConfig | kProtocolInflightShmfd |
                                                        kProtocolResetDevice | kProtocolConfigureMemSlots | kProtocolStatus;

  RecordingDevice device;
  std::unique_ptr<EpollLoop> loop = *EpollLoop::create();
  std::unique_ptr<BackendSession> session;
  std::optional<std::string> ended;
  std::optional<FrontEnd> front;
  std::shared_ptr<ForeignHoldings> holdings;  // null: what the front-end sends is closed at once
  UniqueFd memory = make_memory(kMemoryBytes);

  ~SessionBench() { finish(); }

  void connect() {
    auto [ours, theirs] = make_socket_pair();
    ended.reset();
    front.emplace(std::move(ours));
    session = BackendSession::create(ForeignFd(std::move(theirs), holdings), *loop, device,
                                     [this](std::string reason) { ended = std::move(reason); });
    step();
  }
  // Lets the session do all that it can do.
  void step() {
    int quiet = 0;
    while (quiet < 2) {
      quiet = loop->poll(clock_now()) == 0 ? quiet + 1 : 0;
    }
  }
  // Ends the session by our hanging up. True if it has ended.
  bool finish() {
    if (session == nullptr) {
      return true;
    }
    front.reset();
    step();
    device.hold = false;
    device.release();
    step();
    const bool over = ended.has_value();
    if (over) {
      session.reset();
    }
    RW_CHECK(over);
    return over;
  }

  // --- messages ---
  void send(Request request, std::span<const std::byte> payload, std::vector<int> fds = {}, std::uint32_t flags = kVersion) {
    // The session may have closed the connection; that shows in what the test expects next.
    static_cast<void>(front->send(static_cast<std::uint32_t>(request), flags, payload, fds));
    step();
  }
  std::optional<Message> answer() {
    step();
    Result<Message> message = front->receive(Duration{});
    return message ? std::optional(std::move(*message)) : std::nullopt;
  }
  // Sends with NEED_REPLY and gives the number that is answered; nothing if there is no answer, or more than one.
  std::optional<std::uint64_t> ask(Request request, std::span<const std::byte> payload, std::vector<int> fds = {}) {
    send(request, payload, std::move(fds), kVersion | kFlagNeedReply);
    const std::optional<Message> first = answer();
    if (!first || answer()) {
      return std::nullopt;
    }
    return decode<std::uint64_t>(first->payload);
  }
  template <typename T>
  std::optional<std::uint64_t> ask(Request request, const T& payload, std::vector<int> fds = {})
    requires(!std::is_convertible_v<const T&, std::span<const std::byte>>)
  {
    return ask(request, bytes_of(payload), std::move(fds));
  }
  std::optional<std::uint64_t> get(Request request) {
    send(request, {});
    const std::optional<Message> message = answer();
    return message ? decode<std::uint64_t>(message->payload) : std::nullopt;
  }

  // --- the common ways through the protocol ---
  void negotiate(std::uint64_t virtio = spec::kFeatureVersion1 | spec::kFeatureProtocolFeatures,
                 std::uint64_t protocol = kAllProtocolFeatures) {
    send(Request::set_owner, {});
    send(Request::set_protocol_features, bytes_of(protocol));
    send(Request::set_features, bytes_of(virtio));
  }
  void give_memory() {
    struct {
      std::uint32_t count = 1;
      std::uint32_t padding = 0;
      MemoryRegion region{.guest_address = 0, .bytes = kMemoryBytes, .user_address = kUserBase, .mmap_offset = 0};
    } table;
    send(Request::set_mem_table, bytes_of(table), {memory.get()});
  }
  static VringAddress ring_address(std::uint32_t index, std::uint32_t flags = 0) {
    const std::uint64_t base = kUserBase + 0x10000 * (index + 1ULL);
    return {.index = index,
            .flags = flags,
            .descriptor = base,
            .used = base + 0x8000,
            .available = base + 0x6000,
            .log = 0x5000};
  }
  void describe_ring(std::uint32_t index, std::uint32_t size = 256, std::uint32_t base = 0) {
    send(Request::set_vring_num, bytes_of(VringState{.index = index, .num = size}));
    send(Request::set_vring_base, bytes_of(VringState{.index = index, .num = base}));
    send(Request::set_vring_addr, bytes_of(ring_address(index)));
  }
  void give_fd(Request request, std::uint32_t index) {
    const UniqueFd event = make_event();
    send(request, bytes_of(std::uint64_t{index}), {event.get()});
  }
  void start_ring(std::uint32_t index, std::uint32_t size = 256) {
    describe_ring(index, size);
    give_fd(Request::set_vring_call, index);
    give_fd(Request::set_vring_kick, index);
  }
  std::optional<std::uint32_t> stop_ring(std::uint32_t index) {
    send(Request::get_vring_base, bytes_of(VringState{.index = index, .num = 0}));
    const std::optional<Message> message = answer();
    if (!message) {
      return std::nullopt;
    }
    const std::optional<VringState> state = decode<VringState>(message->payload);
    return state && state->index == index ? std::optional(state->num) : std::nullopt;
  }
};

}  // namespace ringway::vhost_user
