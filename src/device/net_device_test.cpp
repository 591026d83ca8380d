// The whole card in one thread: its queues on a worker whose turns the test takes, its port in the test's hands.
#include "device/net_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/net/simple_ports.hpp"
#include "device/test_net_queue.hpp"
#include "loop/simulated_loop.hpp"
#include "request/net_hash.hpp"
#include "request/test_hash_vectors.hpp"
#include "request/test_net_control.hpp"

namespace ringway::testing {
namespace {

constexpr std::uint64_t kCardMemory = 64U << 20U;
constexpr std::uint32_t kCardRing = 64;

class ConfigListener final : public vhost_user::FrontEndPort {
 public:
  int config_changes = 0;
  bool notify_config_change() override {
    ++config_changes;
    return true;
  }
  bool send_vring_call(std::uint32_t /*index*/) override { return true; }
  bool send_vring_error(std::uint32_t /*index*/) override { return true; }
  void warn(const std::string& /*text*/) override {}
  void give_up(const std::string& /*reason*/) override {}
};

// Shows the test what is open.
class ScriptedPort final : public NetPort {
 public:
  struct Opened {
    NetReceiver* receiver = nullptr;
    ScriptedChannel* channel = nullptr;
  };
  // What it was told last, and how often; or what it answers instead.
  struct Steered {
    std::optional<NetSteering> by;
    int times = 0;
    bool fails = false;
    std::function<void()> on_told;
  };
  explicit ScriptedPort(std::map<std::uint32_t, Opened>& open, std::uint32_t pairs_max = 128, Steered* steered = nullptr)
      : open_(open), steered_(steered) {
    info_.steering_types = steered == nullptr ? 0 : kNetHashTypesPlain;
    info_.kind = "scripted";
    info_.pairs_max = pairs_max;
    info_.mtu_max = 9000;
    info_.host_offloads = spec::kNetCsum | spec::kNetHostTso4;
    info_.guest_offloads = spec::kNetGuestCsum | spec::kNetGuestTso4;
  }
  [[nodiscard]] const NetPortInfo& info() const noexcept override { return info_; }
  [[nodiscard]] Result<> steer(const std::optional<NetSteering>& by) override {
    if (steered_->fails) {
      return fail("it has gone");
    }
    steered_->by = by;
    ++steered_->times;
    if (steered_->on_told) {
      steered_->on_told();
    }
    return {};
  }
  [[nodiscard]] Result<std::unique_ptr<NetChannel>> open_channel(const Pair& pair) override {
    auto channel = std::make_unique<Channel>(open_, pair.index);
    RW_CHECK(!open_.contains(pair.index));
    open_[pair.index] = {.receiver = &pair.receiver, .channel = &channel->script};
    return channel;
  }

 private:
  struct Channel final : NetChannel {
    Channel(std::map<std::uint32_t, Opened>& open, std::uint32_t pair) : all(open), index(pair) {}
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;
    ~Channel() override { all.erase(index); }
    [[nodiscard]] std::size_t send(std::span<const NetFrame> frames) noexcept override { return script.send(frames); }
    [[nodiscard]] Received receive(std::uint32_t budget) noexcept override { return script.receive(budget); }
    void set_guest(std::uint64_t offloads, std::size_t header_bytes) noexcept override {
      script.set_guest(offloads, header_bytes);
    }
    void set_enabled(bool enabled) noexcept override { script.set_enabled(enabled); }
    ScriptedChannel script;
    std::map<std::uint32_t, Opened>& all;
    std::uint32_t index;
  };

  std::map<std::uint32_t, Opened>& open_;
  Steered* steered_;
  NetPortInfo info_;
};

// Messages wait until the test delivers them, as between threads.
class Waiting final : public Executor {
 public:
  void post(std::move_only_function<void()> message) override { messages_.push_back(std::move(message)); }
  [[nodiscard]] bool is_current() const noexcept override { return true; }
  bool run_one() {
    if (messages_.empty()) {
      return false;
    }
    const auto message = std::make_shared<std::move_only_function<void()>>(std::move(messages_.front()));
    messages_.pop_front();
    (*message)();
    return true;
  }

 private:
  std::deque<std::move_only_function<void()>> messages_;
};

class NetCard : public ::testing::TestWithParam<RingKind> {
 protected:
  static constexpr std::uint64_t kBase = spec::kFeatureVersion1 | spec::kFeatureEventIdx | spec::kNetMrgRxbuf |
                                         spec::kNetMac | spec::kNetStatus | spec::kNetCtrlVq | spec::kNetCtrlRx |
                                         spec::kNetCtrlMacAddr;

  ~NetCard() override {
    if (card_ != nullptr) {
      detach();
    }
  }

  void make(NetDeviceOptions options) { make(std::move(options), std::make_unique<ScriptedPort>(open_)); }
  void make(NetDeviceOptions options, std::unique_ptr<NetPort> port) {
    options.name = options.name.empty() ? "card" : options.name;
    options.in_order = GetParam().in_order;
    const std::vector<WorkerPort> workers{{.index = 0, .context = &context_, .executor = &worker_}};
    auto made = NetDevice::create(std::move(options), std::move(port), workers, 0, control_);
    RW_CHECK(made.has_value());
    card_ = std::move(*made);
    attach();
  }
  void attach() {
    card_->attach(listener_);
    settle([&](auto done) { card_->set_memory(guest_.map(), std::move(done)); });
  }
  void detach() {
    settle([&](auto done) { card_->detach(std::move(done)); });
    rings_.clear();
  }
  // Delivers messages and takes turns, as a worker that never polls, until it may sleep.
  void run() {
    for (int turns = 0; turns < 1000; ++turns) {
      bool any = false;
      while (worker_.run_one() || control_.run_one()) {
        any = true;
      }
      context_.now = context_.now + Duration::microseconds(10);
      static_cast<void>(context_.pump_active());
      context_.settle_published();
      context_.publish_finished();
      context_.settle_published();
      std::erase_if(context_.active, [&](Queue* queue) {
        if (queue != nullptr && queue->arm()) {
          queue->suppress();
          any = true;
          return false;
        }
        if (queue != nullptr) {
          queue->is_active = false;
        }
        return true;
      });
      if (!any) {
        return;
      }
    }
    ADD_FAILURE() << "the worker doesn't come to rest";
  }
  Result<> settle(const std::function<void(vhost_user::Done<>)>& call) {
    std::optional<Result<>> result;
    call([&](Result<> answer) { result = std::move(answer); });
    run();
    RW_CHECK(result.has_value());
    return std::move(*result);
  }
  void negotiate(std::uint64_t features) {
    features |= GetParam().packed ? spec::kFeatureRingPacked : 0;
    features |= GetParam().in_order ? spec::kFeatureInOrder : 0;
    RW_CHECK((features & ~card_->features()) == 0);
    ASSERT_TRUE(card_->set_features(features).has_value());
    run();
  }
  Result<> start(std::uint32_t index, bool enabled = true) {
    auto& ring = rings_[index];
    ring = std::make_unique<TestRing>(guest_, GetParam(), kCardRing);
    return restart(index, enabled);
  }
  Result<> restart(std::uint32_t index, bool enabled = true, std::optional<std::uint32_t> base = {}) {
    vhost_user::RingStart start = base ? rings_[index]->start(*base) : rings_[index]->start();
    start.index = index;
    start.enabled = enabled;
    return settle([&](auto done) { card_->start_ring(std::move(start), std::move(done)); });
  }
  std::uint32_t stop(std::uint32_t index) {
    std::optional<std::uint32_t> base;
    card_->stop_ring(index, [&](Result<std::uint32_t> result) { base = *result; });
    run();
    RW_CHECK(base.has_value());
    return *base;
  }
  void enable(std::uint32_t index, bool enabled) {
    EXPECT_TRUE(settle([&](auto done) { card_->enable_ring(index, enabled, std::move(done)); }).has_value());
  }
  // Sends a command on the ring of that index, and returns its ack; nothing if it got none.
  std::optional<std::uint8_t> command(std::uint32_t index, const ControlText& text) {
    const GuestAddress at = guest_.take(text.get().size() + 1);
    std::ranges::copy(text.get(), guest_.host(at));
    const auto bytes = static_cast<std::uint32_t>(text.get().size());
    const GuestAddress ack{at.value + bytes};
    DriverRing& driver = rings_.at(index)->driver();
    RW_CHECK(driver.add(
        std::vector<DriverBuffer>{{.address = at, .bytes = bytes}, {.address = ack, .bytes = 1, .device_writable = true}},
        0));
    static_cast<void>(driver.publish());
    card_->kick(index);
    run();
    if (rings_[index]->take_used().size() != 1) {
      return {};
    }
    return read_guest(guest_, ack, 1)[0];
  }
  static ControlText set_pairs(std::uint16_t pairs) {
    return ControlText(spec::kNetCtrlClassMq, spec::kNetCtrlMqVqPairsSet).put(pairs);
  }
  void post(std::uint32_t index, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const DriverBuffer buffer{.address = guest_.take(2048), .bytes = 2048, .device_writable = true};
      RW_CHECK(rings_.at(index)->driver().add({&buffer, 1}, i));
    }
    static_cast<void>(rings_.at(index)->driver().publish());
    card_->kick(index);
    run();
  }
  std::size_t used(std::uint32_t index) { return rings_.at(index)->take_used().size(); }
  // Which pairs the port may give frames to.
  std::string receiving() const {
    std::string all;
    for (const auto& [pair, opened] : open_) {
      all += opened.channel->enabled ? std::to_string(pair) + " " : "";
    }
    return all;
  }
  spec::NetConfig config() {
    spec::NetConfig config{};
    EXPECT_TRUE(card_->get_config(0, std::as_writable_bytes(std::span(&config, 1))).has_value());
    return config;
  }

  Guest guest_{{{.address = 0, .bytes = kCardMemory}}};
  SimulatedLoop loop_;
  Waiting worker_;
  Waiting control_;
  WorkerContext context_{0, loop_, worker_};
  std::map<std::uint32_t, ScriptedPort::Opened> open_;
  ConfigListener listener_;
  std::unique_ptr<NetDevice> card_;
  std::map<std::uint32_t, std::unique_ptr<TestRing>> rings_;
};

TEST_P(NetCard, OffersWhatItsOptionsSay) {
  make({.pairs = 4, .mtu = 1400});
  EXPECT_EQ(card_->ring_count(), 9U);
  EXPECT_EQ(card_->queue_num_reply(), 4U) << "front-ends expect pairs";
  EXPECT_FALSE(card_->offers_inflight());
  std::uint64_t features = card_->features();
  for (const std::uint64_t bit :
       {spec::kFeatureVersion1, spec::kNetMq, spec::kNetMtu, spec::kNetCtrlVq, spec::kNetCsum, spec::kNetHostTso4,
        spec::kNetGuestTso4, spec::kNetMrgRxbuf, spec::kNetCtrlGuestOffloads, spec::kNetStatus, spec::kNetMac}) {
    EXPECT_NE(features & bit, 0U) << bit;
  }
  EXPECT_EQ(features & (spec::kNetHostTso6 | spec::kNetSpeedDuplex), 0U);
  EXPECT_EQ(config().max_virtqueue_pairs, 4);
  EXPECT_EQ(config().mtu, 1400);
  EXPECT_EQ(config().status, spec::kNetStatusLinkUp);
  EXPECT_EQ(config().mac[0] & 3, 2) << "a local address, and not a group";
  detach();
  make({.pairs = 1, .mergeable = false, .offloads = false, .control = false, .speed_mbits = 10000});
  EXPECT_EQ(card_->ring_count(), 2U);
  features = card_->features();
  EXPECT_EQ(features & (spec::kNetMq | spec::kNetCtrlVq | spec::kNetCtrlRx | spec::kNetCsum | spec::kNetGuestCsum |
                        spec::kNetMrgRxbuf | spec::kNetMtu | spec::kNetCtrlGuestOffloads),
            0U);
  EXPECT_NE(features & spec::kNetSpeedDuplex, 0U);
  EXPECT_FALSE(card_->stats().control.has_value());
  EXPECT_EQ(config().speed, 10000U);
  EXPECT_EQ(config().duplex, spec::kNetDuplexFull);
  spec::NetConfig beyond{};
  EXPECT_FALSE(card_->get_config(1, std::as_writable_bytes(std::span(&beyond, 1))).has_value());
  EXPECT_FALSE(card_->get_config(UINT32_MAX, std::as_writable_bytes(std::span(&beyond, 1))).has_value());
  EXPECT_FALSE(card_->set_config(0, {}, [](Result<>) {}).has_value());
}

TEST_P(NetCard, CantBeMadeOfWhatThereIsNot) {
  const auto fails = [&](const NetDeviceOptions& options, std::uint32_t pairs_max, const std::string& word) {
    const std::vector<WorkerPort> workers{{.index = 0, .context = &context_, .executor = &worker_}};
    auto made = NetDevice::create(options, std::make_unique<ScriptedPort>(open_, pairs_max), workers, 0, control_);
    return !made.has_value() && made.error().message.find(word) != std::string::npos;
  };
  EXPECT_TRUE(fails({.pairs = 0}, 128, "queues=0"));
  EXPECT_TRUE(fails({.pairs = 128}, 128, "127"));
  EXPECT_TRUE(fails({.pairs = 3}, 2, "between 1 and 2"));
  EXPECT_TRUE(fails({.mtu = 67}, 2, "68"));
  EXPECT_TRUE(fails({.mtu = 9001}, 2, "9000"));
  EXPECT_TRUE(fails({.mac = {1, 2, 3, 4, 5, 6}}, 2, "group"));
}

// A driver with a control queue says how many pairs it uses; one at first.
TEST_P(NetCard, PairsByTheControlQueue) {
  make({.pairs = 4});
  negotiate(kBase | spec::kNetMq);
  for (std::uint32_t index = 0; index < 9; ++index) {
    ASSERT_TRUE(start(index).has_value()) << index;
  }
  EXPECT_EQ(receiving(), "0 ");
  EXPECT_EQ(command(8, set_pairs(3)), spec::kNetAckOk);
  EXPECT_EQ(receiving(), "0 1 2 ");
  EXPECT_EQ(card_->driver_state().pairs, 3);
  EXPECT_EQ(command(8, set_pairs(5)), spec::kNetAckErr);
  EXPECT_EQ(command(8, set_pairs(0)), spec::kNetAckErr);
  EXPECT_EQ(receiving(), "0 1 2 ");
  // A ring that is disabled is not used all the same.
  enable(2, false);
  EXPECT_EQ(receiving(), "0 2 ");
  enable(2, true);
  EXPECT_EQ(command(8, set_pairs(1)), spec::kNetAckOk);
  EXPECT_EQ(receiving(), "0 ");
  const NetDeviceStats stats = card_->stats();
  ASSERT_TRUE(stats.control.has_value());
  EXPECT_EQ(stats.control->commands, 2U);
  EXPECT_EQ(stats.control->refused[static_cast<std::size_t>(NetControlRefusal::bad_value)], 2U);
  EXPECT_TRUE(stats.pairs[3].receive.running);
}

// A front-end that serves the control queue by itself enables rings instead.
TEST_P(NetCard, PairsByEnabledRings) {
  make({.pairs = 4});
  negotiate(kBase | spec::kNetMq);
  for (std::uint32_t index = 0; index < 8; ++index) {
    ASSERT_TRUE(start(index, index < 2).has_value());
  }
  EXPECT_EQ(receiving(), "0 ");
  enable(2, true);
  enable(3, true);
  EXPECT_EQ(receiving(), "0 1 ");
  enable(6, true);
  EXPECT_EQ(receiving(), "0 1 3 ");
  enable(2, false);
  EXPECT_EQ(receiving(), "0 3 ");
}

// Without MQ the control queue follows the first pair, wherever the others would be.
TEST_P(NetCard, WithoutMqTheControlQueueIsTheThirdRing) {
  make({.pairs = 4});
  negotiate(kBase);
  ASSERT_TRUE(start(0).has_value());
  ASSERT_TRUE(start(1).has_value());
  ASSERT_TRUE(start(2).has_value());
  for (const std::uint32_t index : {3U, 4U, 8U}) {
    EXPECT_FALSE(start(index).has_value()) << index;
  }
  EXPECT_EQ(command(2, ControlText(spec::kNetCtrlClassRx, spec::kNetCtrlRxPromisc).put(std::uint8_t{0})), spec::kNetAckOk);
  EXPECT_FALSE(card_->driver_state().promiscuous);
  EXPECT_EQ(command(2, set_pairs(1)), spec::kNetAckErr) << "not negotiated";
  EXPECT_EQ(receiving(), "0 ");
  // The next driver has MQ.
  static_cast<void>(settle([&](auto done) { card_->reset(std::move(done)); }));
  negotiate(kBase | spec::kNetMq);
  ASSERT_TRUE(start(8).has_value());
  ASSERT_TRUE(start(2).has_value());
  EXPECT_EQ(command(8, set_pairs(2)), spec::kNetAckOk);
  EXPECT_EQ(receiving(), "1 ");
}

TEST_P(NetCard, OnePairWithoutMq) {
  make({.pairs = 1});
  negotiate(kBase);
  for (std::uint32_t index = 0; index < 3; ++index) {
    ASSERT_TRUE(start(index).has_value());
  }
  EXPECT_EQ(command(2, ControlText(spec::kNetCtrlClassRx, spec::kNetCtrlRxPromisc).put(std::uint8_t{0})), spec::kNetAckOk);
  // Classes that were not negotiated, and one that doesn't exist, are answered too.
  EXPECT_EQ(command(2, ControlText(spec::kNetCtrlClassVlan, spec::kNetCtrlVlanAdd).put(std::uint16_t{5})), spec::kNetAckErr);
  EXPECT_EQ(command(2, ControlText(spec::kNetCtrlClassRx, spec::kNetCtrlRxNobcast).put(std::uint8_t{1})), spec::kNetAckErr);
  EXPECT_EQ(command(2, ControlText(200, 0)), spec::kNetAckErr);
}

// 8 pairs are offered and all their rings run; the driver uses one, and has all frames there. The others stop at once.
TEST_P(NetCard, FramesGoToPairsInUseOnly) {
  make({.pairs = 8}, make_source_port({}));
  negotiate(kBase | spec::kNetMq);
  ASSERT_TRUE(start(16).has_value());
  for (std::uint32_t index = 0; index < 16; ++index) {
    ASSERT_TRUE(start(index).has_value());
  }
  for (std::uint32_t pair = 0; pair < 8; ++pair) {
    post(2 * pair, kCardRing / 2);
  }
  run();
  for (std::uint32_t pair = 0; pair < 8; ++pair) {
    EXPECT_EQ(used(2 * pair), pair == 0 ? kCardRing / 2 : 0) << pair;
  }
  EXPECT_EQ(command(16, set_pairs(2)), spec::kNetAckOk);
  run();
  EXPECT_EQ(used(2), kCardRing / 2) << "without a further kick";
  EXPECT_EQ(used(4), 0U);
  static_cast<void>(stop(14));
  static_cast<void>(stop(2));
}

TEST_P(NetCard, FramesGoRoundByTheLoop) {
  make({.pairs = 2}, make_loop_port());
  negotiate(kBase | spec::kNetMq);
  for (std::uint32_t index = 0; index < 4; ++index) {
    ASSERT_TRUE(start(index).has_value());
  }
  post(2, 4);
  const GuestAddress at = guest_.take(12 + 60);
  std::memset(guest_.host(at), 0, 12);
  std::ranges::copy(std::as_bytes(std::span<const std::uint8_t>(pattern(60, 1))), guest_.host(at) + 12);
  const DriverBuffer buffer{.address = at, .bytes = 72};
  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(rings_[3]->driver().add({&buffer, 1}, i));
  }
  static_cast<void>(rings_[3]->driver().publish());
  card_->kick(3);
  run();
  EXPECT_EQ(used(3), 5U);
  EXPECT_EQ(used(2), 4U);
  const NetDeviceStats stats = card_->stats();
  EXPECT_EQ(stats.pairs[1].transmit.frames, 5U);
  EXPECT_EQ(stats.pairs[1].receive.frames, 4U);
  EXPECT_EQ(stats.pairs[1].receive.dropped_no_buffers, 1U);
  EXPECT_EQ(stats.pairs[0].receive.frames, 0U);
}

TEST_P(NetCard, FeaturesStayWhileRingsRun) {
  make({.pairs = 2});
  negotiate(kBase);
  const std::uint64_t acked = card_->acked_features();
  for (const std::uint32_t index : {0U, 1U, 2U}) {  // the control queue too: its place depends on them
    ASSERT_TRUE(start(index).has_value());
    EXPECT_FALSE(card_->set_features(acked | spec::kNetMq).has_value());
    EXPECT_FALSE(card_->set_features(acked & ~spec::kNetMrgRxbuf).has_value());
    EXPECT_TRUE(card_->set_features(acked | spec::kFeatureLogAll).has_value());
    EXPECT_TRUE(card_->set_features(acked).has_value());
    run();
    static_cast<void>(stop(index));
  }
  EXPECT_TRUE(card_->set_features(acked & ~spec::kNetMrgRxbuf).has_value());
  run();
}

// A migration turns the log on and off; what the driver had set stays.
TEST_P(NetCard, LogAllLeavesTheDriversStateAlone) {
  make({.pairs = 2});
  negotiate(kBase | spec::kNetMq);
  for (std::uint32_t index = 0; index < 5; ++index) {
    ASSERT_TRUE(start(index).has_value());
  }
  EXPECT_EQ(command(4, set_pairs(2)), spec::kNetAckOk);
  const NetDriverState state = card_->driver_state();
  ASSERT_TRUE(card_->set_features(card_->acked_features() | spec::kFeatureLogAll).has_value());
  run();
  EXPECT_EQ(card_->driver_state(), state);
  EXPECT_EQ(receiving(), "0 1 ");
  // Nor does a pause of the guest: its rings stop, and start where they were with the same features.
  std::map<std::uint32_t, std::uint32_t> bases;
  for (std::uint32_t index = 0; index < 5; ++index) {
    bases[index] = stop(index);
  }
  EXPECT_EQ(receiving(), "");
  ASSERT_TRUE(card_->set_features(card_->acked_features()).has_value());
  for (std::uint32_t index = 0; index < 5; ++index) {
    ASSERT_TRUE(restart(index, true, bases[index]).has_value());
  }
  EXPECT_EQ(receiving(), "0 1 ");
  EXPECT_EQ(command(4, set_pairs(1)), spec::kNetAckOk);
}

TEST_P(NetCard, AResetForgetsTheDriver) {
  make({.mac = {2, 3, 4, 5, 6, 7}, .pairs = 2});
  negotiate(kBase | spec::kNetMq);
  for (std::uint32_t index = 0; index < 5; ++index) {
    ASSERT_TRUE(start(index).has_value());
  }
  const NetMac own{2, 9, 9, 9, 9, 9};
  EXPECT_EQ(command(4, ControlText(spec::kNetCtrlClassMac, spec::kNetCtrlMacAddrSet).mac(own)), spec::kNetAckOk);
  EXPECT_EQ(config().mac[1], 9);
  EXPECT_EQ(command(4, set_pairs(2)), spec::kNetAckOk);
  EXPECT_TRUE(settle([&](auto done) { card_->reset(std::move(done)); }).has_value());
  EXPECT_EQ(config().mac[1], 3);
  EXPECT_EQ(card_->acked_features(), 0U);
  EXPECT_EQ(card_->driver_state().pairs, 1);
  EXPECT_EQ(receiving(), "");
  EXPECT_EQ(open_.size(), 2U) << "the session goes on";
  // The next driver has no control queue of ours, so its rings decide.
  negotiate(kBase | spec::kNetMq);
  for (std::uint32_t index = 0; index < 4; ++index) {
    ASSERT_TRUE(start(index).has_value());
  }
  EXPECT_EQ(receiving(), "0 1 ");
}

// A session's end closes what it had open, even with a command on its way; the next one finds the card as new.
TEST_P(NetCard, DetachAndReconnect) {
  make({.pairs = 2});
  for (int session = 0; session < 3; ++session) {
    negotiate(session == 1 ? kBase : kBase | spec::kNetMq);
    const std::uint32_t control = session == 1 ? 2 : 4;
    for (std::uint32_t index = 0; index <= control; ++index) {
      ASSERT_TRUE(start(index).has_value()) << session << " " << index;
    }
    EXPECT_EQ(open_.size(), session == 1 ? 1U : 2U);
    EXPECT_EQ(open_.at(0).channel->header_bytes, 12U);
    EXPECT_EQ(command(control, ControlText(spec::kNetCtrlClassRx, spec::kNetCtrlRxPromisc).put(std::uint8_t{0})),
              spec::kNetAckOk);
    // One more, which the detach meets half-way.
    const GuestAddress at = guest_.take(4);
    const DriverBuffer text{.address = at, .bytes = 3};
    const DriverBuffer ack{.address = GuestAddress{at.value + 3}, .bytes = 1, .device_writable = true};
    ASSERT_TRUE(rings_[control]->driver().add(std::vector<DriverBuffer>{text, ack}, 0));
    static_cast<void>(rings_[control]->driver().publish());
    card_->kick(control);
    static_cast<void>(worker_.run_one());
    static_cast<void>(context_.pump_active());
    detach();
    EXPECT_TRUE(open_.empty());
    EXPECT_TRUE(context_.running.empty());
    EXPECT_EQ(card_->driver_state(), NetDriverState::after_reset(0, card_->driver_state().mac));
    attach();
  }
}

TEST_P(NetCard, TheLinkIsShownAndTold) {
  make({});
  card_->set_link(true);
  EXPECT_EQ(listener_.config_changes, 0);
  card_->set_link(false);
  EXPECT_EQ(listener_.config_changes, 1);
  EXPECT_EQ(config().status & spec::kNetStatusLinkUp, 0);
  card_->set_link(true);
  EXPECT_EQ(listener_.config_changes, 2);
  EXPECT_EQ(config().status & spec::kNetStatusLinkUp, spec::kNetStatusLinkUp);
  // Without a session there is nobody to tell.
  detach();
  card_->set_link(false);
  EXPECT_EQ(listener_.config_changes, 2);
}

// What the port hears of the driver: 10 bytes of header for an old one, and offloads only with what they need.
TEST_P(NetCard, ThePortKnowsWhatTheGuestTakes) {
  if (GetParam().packed || GetParam().in_order) {
    GTEST_SKIP() << "these are of VERSION_1";
  }
  make({});
  negotiate(spec::kNetMac);
  ASSERT_TRUE(start(0).has_value());
  EXPECT_EQ(open_.at(0).channel->header_bytes, 10U);
  EXPECT_EQ(open_.at(0).channel->guest_offloads, 0U);
  static_cast<void>(stop(0));
  negotiate(kBase | spec::kNetCtrlGuestOffloads | spec::kNetGuestCsum | spec::kNetGuestTso4);
  ASSERT_TRUE(start(0).has_value());
  ASSERT_TRUE(start(1).has_value());
  ASSERT_TRUE(start(2).has_value());
  EXPECT_EQ(open_.at(0).channel->header_bytes, 12U);
  EXPECT_EQ(open_.at(0).channel->guest_offloads, spec::kNetGuestCsum | spec::kNetGuestTso4);
  EXPECT_EQ(command(2, ControlText(spec::kNetCtrlClassGuestOffloads, spec::kNetCtrlGuestOffloadsSet)
                           .put(std::uint64_t{spec::kNetGuestTso4})),
            spec::kNetAckOk);
  EXPECT_EQ(open_.at(0).channel->guest_offloads, 0U) << "no TSO without CSUM";
}

// ---------------------------------------------------------------- hashes

TEST_P(NetCard, HashesAreOfferedWithTheControlQueueAndRssByWhoCanSteer) {
  constexpr std::uint64_t kBoth = spec::kNetHashReport | spec::kNetRss;
  ScriptedPort::Steered steered;
  make({.pairs = 4});
  EXPECT_EQ(card_->features() & kBoth, spec::kNetHashReport) << "its port can't steer";
  EXPECT_EQ(config().supported_hash_types, kNetHashTypesAll);
  EXPECT_EQ(config().rss_max_key_size, 40);
  EXPECT_EQ(config().rss_max_indirection_table_length, 0);
  detach();
  make({.pairs = 4, .control = false}, std::make_unique<ScriptedPort>(open_, 128, &steered));
  EXPECT_EQ(card_->features() & kBoth, 0U);
  EXPECT_EQ(config().supported_hash_types, 0U);
  detach();
  make({.pairs = 4, .hashes = false}, std::make_unique<ScriptedPort>(open_, 128, &steered));
  EXPECT_EQ(card_->features() & kBoth, 0U);
  EXPECT_EQ(config().rss_max_key_size, 0);
  detach();
  make({.pairs = 1}, std::make_unique<ScriptedPort>(open_, 128, &steered));
  EXPECT_EQ(card_->features() & kBoth, spec::kNetHashReport) << "there is nothing to choose";
  detach();
  make({.pairs = 4}, std::make_unique<ScriptedPort>(open_, 128, &steered));
  EXPECT_EQ(card_->features() & kBoth, kBoth);
  EXPECT_EQ(config().supported_hash_types, kNetHashTypesPlain) << "those by which the port can steer";
  EXPECT_EQ(config().rss_max_indirection_table_length, 128);
  negotiate(kBase | spec::kNetMq | spec::kNetHashReport);
  EXPECT_EQ(config().rss_max_indirection_table_length, 0) << "a field of RSS";
  negotiate(kBase | spec::kNetRss);
  EXPECT_EQ(config().rss_max_indirection_table_length, 128);
}

TEST_P(NetCard, RssIsCarriedOutByThePort) {
  ScriptedPort::Steered steered;
  make({.pairs = 4}, std::make_unique<ScriptedPort>(open_, 128, &steered));
  negotiate(kBase | spec::kNetMq | spec::kNetRss);
  for (std::uint32_t index = 0; index < 9; ++index) {
    ASSERT_TRUE(start(index).has_value());
  }
  EXPECT_EQ(receiving(), "0 ");
  EXPECT_EQ(steered.times, 0);
  std::string receiving_then;
  steered.on_told = [&] { receiving_then = receiving(); };
  EXPECT_EQ(command(8, RssText{.unclassified = 1, .table = {0, 2, 0, 2}, .max_tx_vq = 4}.text()), spec::kNetAckOk);
  EXPECT_EQ(receiving(), "0 1 2 ");
  EXPECT_EQ(receiving_then, "0 1 2 ") << "no frame comes to a pair that doesn't receive yet";
  ASSERT_TRUE(steered.by.has_value());
  EXPECT_EQ(steered.by->table.unclassified_pair, 1);
  EXPECT_EQ(steered.by->table.mask, 3);
  EXPECT_EQ(steered.by->table.pairs[3], 2);
  EXPECT_EQ(steered.by->hashing.types, RssText{}.types);
  EXPECT_EQ(steered.by->hashing.key[39], 0x6d);
  // Another command leaves it alone; what is refused, too.
  EXPECT_EQ(command(8, ControlText(spec::kNetCtrlClassRx, spec::kNetCtrlRxPromisc).put(std::uint8_t{0})), spec::kNetAckOk);
  EXPECT_EQ(command(8, RssText{.table = {0, 1, 2, 4}}.text()), spec::kNetAckErr);
  EXPECT_EQ(command(8, RssText{.unclassified = 4}.text()), spec::kNetAckErr);
  EXPECT_EQ(command(8, RssText{.types = spec::kNetHashTypeTcpEx}.text()), spec::kNetAckErr) << "not supported here";
  EXPECT_EQ(command(8, RssText{.mask = 2, .table = {0, 1, 2}}.text()), spec::kNetAckErr);
  EXPECT_EQ(command(8, RssText{.mask = 255, .table = std::vector<std::uint16_t>(256)}.text()), spec::kNetAckErr);
  EXPECT_EQ(command(8, RssText{.key_length = 41, .key_bytes = 41}.text()), spec::kNetAckErr);
  EXPECT_EQ(command(8, RssText{.key_length = 40, .key_bytes = 39}.text()), spec::kNetAckErr);
  EXPECT_EQ(steered.times, 1);
  EXPECT_EQ(receiving(), "0 1 2 ");
  // Pairs that go are taken from the port first.
  EXPECT_EQ(command(8, RssText{.mask = 0, .table = {0}, .max_tx_vq = 1}.text()), spec::kNetAckOk);
  EXPECT_EQ(receiving_then, "0 1 2 ");
  EXPECT_EQ(receiving(), "0 ");
  EXPECT_EQ(steered.times, 2);
  // The last command counts.
  EXPECT_EQ(command(8, set_pairs(4)), spec::kNetAckOk);
  EXPECT_FALSE(steered.by.has_value());
  EXPECT_EQ(steered.times, 3);
  EXPECT_EQ(receiving(), "0 1 2 3 ");
}

TEST_P(NetCard, APortThatCantSteerAnyMoreIsSaidSo) {
  ScriptedPort::Steered steered;
  make({.pairs = 4}, std::make_unique<ScriptedPort>(open_, 128, &steered));
  negotiate(kBase | spec::kNetMq | spec::kNetRss);
  for (std::uint32_t index = 0; index < 9; ++index) {
    ASSERT_TRUE(start(index).has_value());
  }
  steered.fails = true;
  EXPECT_EQ(command(8, RssText{}.text()), spec::kNetAckErr);
  EXPECT_FALSE(card_->driver_state().rss.has_value());
  EXPECT_EQ(receiving(), "0 ");
  EXPECT_EQ(card_->stats().control->refused[static_cast<std::size_t>(NetControlRefusal::port_failed)], 1U);
  steered.fails = false;
  EXPECT_EQ(command(8, RssText{}.text()), spec::kNetAckOk);
  EXPECT_EQ(receiving(), "0 1 2 3 ");
  steered.fails = true;
  EXPECT_EQ(command(8, RssText{.mask = 0, .table = {1}}.text()), spec::kNetAckErr) << "fewer pairs";
  EXPECT_EQ(receiving(), "0 1 2 3 ");
  EXPECT_EQ(command(8, set_pairs(1)), spec::kNetAckErr);
  EXPECT_TRUE(card_->driver_state().rss.has_value());
  // A reset can't be refused.
  EXPECT_TRUE(settle([&](auto done) { card_->reset(std::move(done)); }).has_value());
  EXPECT_TRUE(steered.by.has_value());
  steered.fails = false;
  negotiate(kBase | spec::kNetMq);
  EXPECT_FALSE(steered.by.has_value()) << "made up for by the next driver";
}

TEST_P(NetCard, AResetEndsSteering) {
  ScriptedPort::Steered steered;
  make({.pairs = 2}, std::make_unique<ScriptedPort>(open_, 128, &steered));
  for (const bool by_detach : {false, true}) {
    negotiate(kBase | spec::kNetRss);
    for (std::uint32_t index = 0; index < 5; ++index) {
      ASSERT_TRUE(start(index).has_value());
    }
    EXPECT_EQ(command(4, RssText{.mask = 1, .table = {0, 1}, .max_tx_vq = 2}.text()), spec::kNetAckOk);
    EXPECT_TRUE(steered.by.has_value());
    if (by_detach) {
      detach();
      attach();
    } else {
      EXPECT_TRUE(settle([&](auto done) { card_->reset(std::move(done)); }).has_value());
    }
    EXPECT_FALSE(steered.by.has_value());
  }
}

// Set by a command and seen in the next frame; with the header of 20 bytes from the negotiation on.
TEST_P(NetCard, HashReportsFollowTheCommand) {
  make({.pairs = 1});
  negotiate(kBase | spec::kNetHashReport);
  for (std::uint32_t index = 0; index < 3; ++index) {
    ASSERT_TRUE(start(index).has_value());
  }
  EXPECT_EQ(open_.at(0).channel->header_bytes, 20U);
  const TestFrame frame(test::frame_of(test::kHashVectors4[0], {}));
  const auto header_of_next = [&] {
    const GuestAddress at = guest_.take(2048);
    const DriverBuffer buffer{.address = at, .bytes = 2048, .device_writable = true};
    RW_CHECK(rings_.at(0)->driver().add({&buffer, 1}, 0));
    static_cast<void>(rings_.at(0)->driver().publish());
    context_.now = context_.now + Duration::microseconds(10);
    EXPECT_EQ(open_.at(0).receiver->deliver(frame.get()), NetReceiver::Delivery::done);
    run();
    EXPECT_EQ(used(0), 1U);
    spec::NetHeader header{};
    std::memcpy(&header, guest_.host(at), sizeof header);
    return header;
  };
  const auto config_of = [&](std::uint32_t types) {
    ControlText text(spec::kNetCtrlClassMq, spec::kNetCtrlMqHashConfig);
    text.put(types).put(std::uint64_t{0}).put(std::uint8_t{40});
    for (const std::uint8_t byte : test::kHashVectorKey) {
      text.put(byte);
    }
    return text;
  };
  EXPECT_EQ(header_of_next().hash_report, spec::kNetHashReportNone) << "no types at first";
  EXPECT_EQ(command(2, config_of(kNetHashTypesAll)), spec::kNetAckOk);
  const spec::NetHeader header = header_of_next();
  EXPECT_EQ(header.hash_report, spec::kNetHashReportTcpv4);
  EXPECT_EQ(header.hash_value, test::kHashVectors4[0].ports_hash);
  EXPECT_EQ(header.num_buffers, 1);
  EXPECT_EQ(command(2, config_of(kNetHashTypesAll + 1)), spec::kNetAckErr);
  EXPECT_EQ(header_of_next().hash_report, spec::kNetHashReportTcpv4);
  EXPECT_EQ(command(2, config_of(0)), spec::kNetAckOk);
  EXPECT_EQ(header_of_next().hash_report, spec::kNetHashReportNone);
  EXPECT_EQ(command(2, RssText{.mask = 0, .table = {0}, .max_tx_vq = 1}.text()), spec::kNetAckErr) << "not negotiated";
}

INSTANTIATE_TEST_SUITE_P(Rings, NetCard,
                         ::testing::Values(RingKind{}, RingKind{.packed = true}, RingKind{.in_order = true},
                                           RingKind{.packed = true, .in_order = true}));

}  // namespace
}  // namespace ringway::testing
