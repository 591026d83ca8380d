// For tests: a network back-end made by hand on a thread of its own, that sends each pair's frames back to it. It does what
// it is told, right or wrong, so that a driver can be tried against both; and shares no code with the device.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/fence.hpp"
#include "guest/access.hpp"
#include "loop/clock.hpp"
#include "loop/epoll_loop.hpp"
#include "ring/device_ring.hpp"
#include "ring/spec.hpp"
#include "vhost_user/device.hpp"
#include "vhost_user/endpoint.hpp"

namespace ringway {

class NetBackendPeer final : private vhost_user::Device, private FdHandler {
 public:
  enum class Mischief : std::uint8_t {
    none,
    used_short,          // receive: a used length below the header's
    used_long,           // receive: a used length beyond the buffer's
    zero_num_buffers,    // receive: as some devices left it
    num_buffers_beyond,  // receive: one more than there are
    mute,                // control: no answer
  };
  struct Options {
    std::uint64_t features = 0;  // beside VERSION_1, and what rings have
    spec::NetConfig config{};
    std::uint32_t rings = 3;
    std::uint64_t queue_num = 1;  // GET_QUEUE_NUM
  };
  static constexpr std::uint64_t kRingFeatures = spec::kFeatureVersion1 | spec::kFeatureRingPacked |
                                                 spec::kFeatureIndirectDesc | spec::kFeatureEventIdx | spec::kFeatureInOrder;
  static constexpr std::uint32_t kHashValue = 0x12345678;

  explicit NetBackendPeer(const Options& options) : options_(options) {
    std::string pattern = std::filesystem::temp_directory_path() / "ringway-net-peer-XXXXXX";
    RW_CHECK(mkdtemp(pattern.data()) != nullptr);
    directory_ = pattern;
    socket_path_ = pattern + "/net.sock";
    thread_ = std::thread([this] { run(); });
    ready_.wait();
  }
  NetBackendPeer(const NetBackendPeer&) = delete;
  NetBackendPeer& operator=(const NetBackendPeer&) = delete;
  ~NetBackendPeer() override {
    order([this] { stop_ = true; });
    thread_.join();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  [[nodiscard]] const std::string& socket_path() const { return socket_path_; }
  void misbehave(Mischief mischief) { mischief_ = mischief; }
  // What a command on the control queue is answered with.
  void answer_commands(std::uint8_t ack) { ack_ = ack; }
  void announce_config(const spec::NetConfig& config) {
    order([this, config] {
      options_.config = config;
      RW_CHECK(front_end_ != nullptr && front_end_->notify_config_change());
    });
  }

  // Readable bytes of each command, in order.
  [[nodiscard]] std::vector<std::vector<std::byte>> commands() {
    const std::lock_guard guard(mutex_);
    return commands_;
  }
  [[nodiscard]] std::uint64_t acked() const { return acked_; }
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }
  [[nodiscard]] std::vector<std::uint32_t> started() {
    const std::lock_guard guard(mutex_);
    return started_;
  }

 private:
  struct Ring {
    vhost_user::RingStart start;
    std::unique_ptr<DeviceRing> ring;
    WatchId watch;
  };

  void run() {
    const auto loop = std::move(*EpollLoop::create());
    auto endpoint = *vhost_user::Endpoint::create({.path = socket_path_}, *loop, *this);
    loop_ = loop.get();
    ready_.count_down();
    while (!stop_) {
      run_orders();
      bool busy = serve();
      for (auto& [index, ring] : rings_) {
        busy |= !busy && ring.start.enabled && ring.ring->arm_kicks();
      }
      const Instant now = clock_now();
      if (busy) {
        loop->poll(now);
      } else {
        loop->wait(now, now + Duration::milliseconds(20));
      }
      for (auto& [index, ring] : rings_) {
        ring.ring->suppress_kicks();
      }
    }
    bool closed = false;
    endpoint->close([&closed] { closed = true; });
    while (!closed) {
      loop->wait(clock_now(), clock_now() + Duration::milliseconds(20));
    }
  }
  // Has the peer's thread do something. The loop is woken under the lock, since the order may be the one that ends it.
  void order(std::function<void()> what) {
    const std::lock_guard guard(mutex_);
    orders_.push_back(std::move(what));
    loop_->wake();
  }
  void run_orders() {
    std::deque<std::function<void()>> orders;
    {
      const std::lock_guard guard(mutex_);
      orders.swap(orders_);
    }
    for (const auto& what : orders) {
      what();
    }
  }

  // --- the data path ---
  bool serve() {
    bool worked = false;
    for (auto& [index, ring] : rings_) {
      if (!ring.start.enabled) {
        continue;
      }
      if (index == control_index()) {
        worked |= serve_control(ring);
      } else if (index % 2 == 1) {
        worked |= echo(ring, index - 1);
      }
    }
    return worked;
  }
  [[nodiscard]] std::uint32_t control_index() const {
    if ((acked_ & spec::kNetCtrlVq) == 0) {
      return UINT32_MAX;
    }
    return (acked_ & (spec::kNetMq | spec::kNetRss)) != 0 ? 2U * options_.config.max_virtqueue_pairs : 2;
  }
  [[nodiscard]] std::size_t header_bytes() const {
    if ((acked_ & spec::kNetHashReport) != 0) {
      return 20;
    }
    return (acked_ & (spec::kFeatureVersion1 | spec::kNetMrgRxbuf)) != 0 ? 12 : 10;
  }
  static std::vector<std::byte> gather(const Chain& chain) {
    std::vector<std::byte> bytes;
    for (const iovec& piece : chain.readable()) {
      const auto* first = static_cast<const std::byte*>(piece.iov_base);
      bytes.insert(bytes.end(), first, first + piece.iov_len);
    }
    return bytes;
  }
  static void scatter(std::span<const std::byte> bytes, const Chain& chain) {
    for (const iovec& piece : chain.writable()) {
      const std::size_t part = std::min(bytes.size(), piece.iov_len);
      guest::copy(static_cast<std::byte*>(piece.iov_base), bytes.data(), part);
      bytes = bytes.subspan(part);
    }
  }
  static void publish(Ring& ring) {
    ring.ring->publish();
    bool call = ring.ring->should_call();
    if (!call && ring.ring->must_settle()) {
      full_fence();  // pairs with the driver's between what it asks for and its look at the ring
      call = ring.ring->settle_call();
    }
    if (call && ring.start.call) {
      const std::uint64_t one = 1;
      static_cast<void>(!write(ring.start.call.get(), &one, sizeof one));
    }
  }

  bool echo(Ring& tx, std::uint32_t rx_index) {
    const auto rx = rings_.find(rx_index);
    Chain chain;
    bool worked = false;
    while (tx.ring->pop(*map_, chain) == PopStatus::chain) {
      worked = true;
      std::vector<std::byte> frame = gather(chain);
      const ChainId id = chain.id();
      if (rx == rings_.end() || !rx->second.start.enabled || !deliver(rx->second, std::move(frame))) {
        ++dropped_;
      }
      tx.ring->push_used(id, 0);
      publish(tx);
    }
    return worked;
  }
  // The frame with its header, into as many buffers as it takes.
  bool deliver(Ring& rx, std::vector<std::byte> frame) {
    struct Target {
      ChainId id;
      std::uint32_t bytes;
    };
    Chain chain;
    std::vector<Target> targets;
    std::vector<std::vector<iovec>> places;
    std::size_t room = 0;
    const bool mergeable = (acked_ & spec::kNetMrgRxbuf) != 0;
    while (room < frame.size() && (mergeable || targets.empty()) && rx.ring->pop(*map_, chain) == PopStatus::chain) {
      const auto bytes = static_cast<std::uint32_t>(std::min<std::size_t>(chain.writable_bytes(), frame.size() - room));
      targets.push_back({.id = chain.id(), .bytes = bytes});
      places.emplace_back(chain.writable().begin(), chain.writable().end());
      room += chain.writable_bytes();
    }
    if (room < frame.size()) {
      for (auto target = targets.rbegin(); target != targets.rend(); ++target) {
        rx.ring->unpop(target->id);
      }
      return false;
    }
    const Mischief mischief = mischief_;
    if (header_bytes() >= 12) {
      auto num_buffers = static_cast<std::uint16_t>(targets.size());
      num_buffers = mischief == Mischief::zero_num_buffers ? 0 : num_buffers;
      num_buffers = static_cast<std::uint16_t>(num_buffers + (mischief == Mischief::num_buffers_beyond ? 1 : 0));
      std::memcpy(frame.data() + offsetof(spec::NetHeader, num_buffers), &num_buffers, sizeof num_buffers);
    }
    if (header_bytes() == 20) {
      std::memcpy(frame.data() + offsetof(spec::NetHeader, hash_value), &kHashValue, sizeof kHashValue);
    }
    std::span<const std::byte> rest = frame;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      for (const iovec& place : places[i]) {
        const std::size_t part = std::min(rest.size(), place.iov_len);
        guest::copy(static_cast<std::byte*>(place.iov_base), rest.data(), part);
        rest = rest.subspan(part);
      }
      std::uint32_t bytes = targets[i].bytes;
      bytes = mischief == Mischief::used_short ? static_cast<std::uint32_t>(header_bytes() - 1) : bytes;
      bytes = mischief == Mischief::used_long ? 1'000'000 : bytes;
      rx.ring->push_used(targets[i].id, bytes);
    }
    publish(rx);
    return true;
  }
  bool serve_control(Ring& ring) {
    if (mischief_ == Mischief::mute) {
      return false;
    }
    Chain chain;
    bool worked = false;
    while (ring.ring->pop(*map_, chain) == PopStatus::chain) {
      worked = true;
      std::vector<std::byte> answer(chain.writable_bytes(), std::byte{0x5a});
      RW_CHECK(!answer.empty());
      answer.back() = std::byte{ack_.load()};
      scatter(answer, chain);
      {
        const std::lock_guard guard(mutex_);
        commands_.push_back(gather(chain));
      }
      ring.ring->push_used(chain.id(), static_cast<std::uint32_t>(answer.size()));
      publish(ring);
    }
    return worked;
  }

  // --- vhost_user::Device ---
  [[nodiscard]] std::string name() const override { return "net peer"; }
  [[nodiscard]] std::uint64_t features() const override { return options_.features | kRingFeatures; }
  [[nodiscard]] std::uint32_t ring_count() const override { return options_.rings; }
  [[nodiscard]] std::uint64_t queue_num_reply() const override { return options_.queue_num; }
  [[nodiscard]] std::uint32_t ring_size_max() const override { return 1024; }
  [[nodiscard]] bool offers_inband() const override { return false; }
  [[nodiscard]] bool offers_inflight() const override { return false; }
  void attach(vhost_user::FrontEndPort& port) override { front_end_ = &port; }
  void detach(vhost_user::Done<> done) override {
    front_end_ = nullptr;
    while (!rings_.empty()) {
      drop(rings_.begin()->first);
    }
    map_.reset();
    done({});
  }
  Result<> set_features(std::uint64_t acked) override {
    acked_ = acked;
    return {};
  }
  Result<> get_config(std::uint32_t offset, std::span<std::byte> out) override {
    if (offset > sizeof options_.config || out.size() > sizeof options_.config - offset) {
      return fail("beyond the configuration");
    }
    std::memcpy(out.data(), reinterpret_cast<const std::byte*>(&options_.config) + offset, out.size());
    return {};
  }
  Result<> set_config(std::uint32_t, std::span<const std::byte>, vhost_user::Done<>) override { return fail("read-only"); }
  void set_memory(std::shared_ptr<const RegionMap> map, vhost_user::Done<> done) override {
    map_ = std::move(map);
    done({});
  }
  void set_log(std::shared_ptr<DirtyLog>, vhost_user::Done<> done) override { done({}); }
  void start_ring(vhost_user::RingStart start, vhost_user::Done<> done) override {
    const std::uint32_t index = start.index;
    const auto layout = RingLayout::resolve(*map_, start.addresses, start.size, start.features.packed);
    if (!layout) {
      done(std::unexpected(layout.error()));
      return;
    }
    Ring ring{.start = std::move(start), .ring = nullptr, .watch = {}};
    ring.ring = std::make_unique<DeviceRing>(*layout, ring.start.features, ring.start.base);
    ring.ring->suppress_kicks();
    ring.watch = *loop_->watch(ring.start.kick.get(), EPOLLIN, *this);
    rings_.emplace(index, std::move(ring));
    {
      const std::lock_guard guard(mutex_);
      started_.push_back(index);
    }
    done({});
  }
  void stop_ring(std::uint32_t index, vhost_user::Done<std::uint32_t> done) override {
    const std::uint32_t base = rings_.at(index).ring->base();
    drop(index);
    done(base);
  }
  void enable_ring(std::uint32_t index, bool enabled, vhost_user::Done<> done) override {
    rings_.at(index).start.enabled = enabled;
    done({});
  }
  void set_call(std::uint32_t index, ForeignFd call, vhost_user::Done<> done) override {
    rings_.at(index).start.call = std::move(call);
    done({});
  }
  void set_kick(std::uint32_t, ForeignFd, vhost_user::Done<> done) override { done({}); }
  void set_error(std::uint32_t, ForeignFd, vhost_user::Done<> done) override { done({}); }
  void set_addresses(std::uint32_t, RingAddresses, bool, GuestAddress, vhost_user::Done<> done) override { done({}); }
  void kick(std::uint32_t) override {}
  void reset(vhost_user::Done<> done) override { done({}); }
  void on_ready(std::uint32_t) noexcept override {}  // the loop has woken: serve() looks at all rings
  void drop(std::uint32_t index) {
    loop_->unwatch(rings_.at(index).watch);
    rings_.erase(index);
  }

  Options options_;
  std::string directory_, socket_path_;
  std::thread thread_;
  std::latch ready_{1};
  EpollLoop* loop_ = nullptr;  // set before ready_
  std::atomic<Mischief> mischief_{Mischief::none};
  std::atomic<std::uint8_t> ack_{spec::kNetAckOk};
  std::atomic<std::uint64_t> acked_{0};
  std::atomic<std::uint64_t> dropped_{0};
  std::mutex mutex_;  // of what follows
  std::deque<std::function<void()>> orders_;
  std::vector<std::vector<std::byte>> commands_;
  std::vector<std::uint32_t> started_;
  // Its thread's.
  bool stop_ = false;
  vhost_user::FrontEndPort* front_end_ = nullptr;
  std::shared_ptr<const RegionMap> map_;
  std::map<std::uint32_t, Ring> rings_;
};

}  // namespace ringway
