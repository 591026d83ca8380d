#include "device/net_device.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "device/net_control_queue.hpp"
#include "device/net_receive_queue.hpp"
#include "device/net_transmit_queue.hpp"
#include "request/net_hash.hpp"

namespace ringway {

namespace {

constexpr std::uint32_t kMtuMin = 68;  // of IPv4 (RFC 791)
constexpr std::uint8_t kGroupAddress = 1;
constexpr std::uint8_t kLocalAddress = 2;

// A name's own local address. (FNV-1a, which is the same wherever and whenever it is built.)
NetMac mac_of_name(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  NetMac mac{};
  std::memcpy(mac.data(), &hash, mac.size());
  mac[0] = static_cast<std::uint8_t>((mac[0] & ~kGroupAddress) | kLocalAddress);
  return mac;
}

std::size_t header_bytes_of(std::uint64_t features) {
  if ((features & spec::kNetHashReport) != 0) {
    return spec::kNetHeaderHashBytes;
  }
  return (features & (spec::kFeatureVersion1 | spec::kNetMrgRxbuf)) != 0 ? spec::kNetHeaderBytes
                                                                         : spec::kNetHeaderLegacyBytes;
}

}  // namespace

struct NetDevice::Pair {
  std::uint32_t index = 0;
  std::unique_ptr<NetReceiveQueue> receive;
  std::unique_ptr<NetTransmitQueue> transmit;
  NetChannelCounters counters;

  // --- on the worker ---
  [[nodiscard]] Result<> open_channel(NetPort& port, WorkerContext& context) {
    if (channel == nullptr) {
      RW_TRY_ASSIGN(
          channel,
          port.open_channel(
              {.index = index, .loop = context.loop, .receiver = *receive, .sender = *transmit, .counters = counters}));
      channel->set_guest(rules->guest_offloads, rules->header_bytes);
    }
    return {};
  }
  void set_rules(std::shared_ptr<const NetReceiveRules> next, const NetTransmitRules& transmit_rules) {
    rules = std::move(next);
    receive->set_rules(rules);
    transmit->set_rules(transmit_rules);
    if (channel != nullptr) {
      channel->set_guest(rules->guest_offloads, rules->header_bytes);
    }
  }
  std::unique_ptr<NetChannel> channel;
  std::shared_ptr<const NetReceiveRules> rules;
};

// ---------------------------------------------------------------- making one

Result<std::unique_ptr<NetDevice>> NetDevice::create(NetDeviceOptions options, std::unique_ptr<NetPort> port,
                                                     std::span<const WorkerPort> workers, std::uint32_t first_worker,
                                                     Executor& control) {
  const auto wrong = [&](const std::string& what) { return fail("net '" + options.name + "': " + what); };
  const NetPortInfo& info = port->info();
  const std::uint32_t most =
      std::min(info.pairs_max, options.control ? limits::kNetPairsMax : limits::kNetPairsWithoutControlMax);
  if (options.pairs == 0 || options.pairs > most) {
    return wrong("queues=" + std::to_string(options.pairs) + " must be between 1 and " + std::to_string(most) +
                 ", the most queue pairs that its port (" + info.kind + ") and vhost-user have");
  }
  if (options.mtu != 0 && (options.mtu < kMtuMin || options.mtu > info.mtu_max)) {
    return wrong("mtu=" + std::to_string(options.mtu) + " must be between " + std::to_string(kMtuMin) + " and " +
                 std::to_string(info.mtu_max) + ", the largest that its port (" + info.kind + ") can pass on");
  }
  if ((options.mac[0] & kGroupAddress) != 0) {
    return wrong("its MAC is a group address; the lowest bit of the first byte must be 0");
  }
  if (workers.empty()) {
    return wrong("there is no worker to serve it");
  }
  return std::unique_ptr<NetDevice>(new NetDevice(std::move(options), std::move(port), workers, first_worker, control));
}

NetDevice::NetDevice(NetDeviceOptions options, std::unique_ptr<NetPort> port, std::span<const WorkerPort> workers,
                     std::uint32_t first_worker, Executor& control)
    : RingDevice(control),
      options_(std::move(options)),
      net_port_(std::move(port)),
      mac_(options_.mac == NetMac{} ? mac_of_name(options_.name) : options_.mac),
      state_(NetDriverState::after_reset(0, mac_)) {
  for (std::uint32_t i = 0; i < options_.pairs; ++i) {
    const WorkerPort& worker = workers[(first_worker + i) % workers.size()];
    auto pair = std::make_unique<Pair>();
    pair->index = i;
    pair->receive = std::make_unique<NetReceiveQueue>(surroundings(2 * i, options_.stop_deadline), i);
    pair->transmit =
        std::make_unique<NetTransmitQueue>(surroundings(2 * i + 1, options_.stop_deadline), net_port_->info().borrows);
    add_queue(*pair->receive, worker);
    add_queue(*pair->transmit, worker);
    pairs_.push_back(std::move(pair));
  }
  if (options_.control) {
    const WorkerPort& worker = workers[first_worker % workers.size()];
    control_queue_ = std::make_unique<NetControlQueue>(
        surroundings(2 * options_.pairs, options_.stop_deadline),
        [this](NetCommand asked) { this->control().post([this, asked] { carry_out(asked); }); });
    add_queue(*control_queue_, worker);
  }
  tell_queues([](const Result<>&) {});
}

NetDevice::~NetDevice() {
  RW_CHECK(std::ranges::all_of(pairs_, [](const auto& each) { return each->channel == nullptr; }));
}

// ---------------------------------------------------------------- what it offers

std::uint64_t NetDevice::features() const {
  const NetPortInfo& info = net_port_->info();
  std::uint64_t bits = spec::kFeatureVersion1 | spec::kFeatureIndirectDesc | spec::kFeatureEventIdx |
                       spec::kFeatureRingReset | spec::kFeatureLogAll | spec::kNetMac | spec::kNetStatus;
  bits |= options_.packed ? spec::kFeatureRingPacked : 0;
  bits |= options_.in_order ? spec::kFeatureInOrder : 0;
  bits |= options_.mergeable ? spec::kNetMrgRxbuf : 0;
  bits |= options_.mtu != 0 ? spec::kNetMtu : 0;
  bits |= options_.speed_mbits != spec::kNetSpeedUnknown ? spec::kNetSpeedDuplex : 0;
  bits |= options_.pairs > 1 ? spec::kNetMq : 0;
  if (options_.offloads) {
    bits |= info.host_offloads | info.guest_offloads;
  }
  if (has_control()) {
    bits |= spec::kNetCtrlVq | spec::kNetCtrlRx | spec::kNetCtrlRxExtra | spec::kNetCtrlVlan | spec::kNetCtrlMacAddr |
            spec::kNetGuestAnnounce;
    bits |= options_.offloads ? spec::kNetCtrlGuestOffloads : 0;
    bits |= options_.hashes ? spec::kNetHashReport : 0;
    bits |= steers() ? spec::kNetRss : 0;
  }
  return bits;
}

bool NetDevice::steers() const {
  return options_.hashes && has_control() && options_.pairs > 1 && net_port_->info().steering_types != 0;
}

// The field is one for both features.
std::uint32_t NetDevice::hash_types() const {
  if (!options_.hashes || !has_control()) {
    return 0;
  }
  return steers() ? net_port_->info().steering_types : kNetHashTypesAll;
}

spec::NetConfig NetDevice::config() const {
  spec::NetConfig config{};
  std::ranges::copy(state_.mac, config.mac);
  config.status = static_cast<std::uint16_t>((link_ ? spec::kNetStatusLinkUp : 0) |
                                             (state_.announce_pending ? spec::kNetStatusAnnounce : 0));
  config.max_virtqueue_pairs = static_cast<std::uint16_t>(options_.pairs);
  config.mtu = options_.mtu;
  config.speed = options_.speed_mbits;
  config.supported_hash_types = hash_types();
  config.rss_max_key_size = config.supported_hash_types != 0 ? spec::kNetRssKeyBytesMax : 0;
  // Linux 6.1 sends HASH_CONFIG in a wrong form if there is a table though RSS was not negotiated.
  if (steers() && (acked_ == 0 || (acked_ & spec::kNetRss) != 0)) {
    config.rss_max_indirection_table_length = limits::kNetRssTableMax;
  }
  config.duplex = options_.speed_mbits != spec::kNetSpeedUnknown ? spec::kNetDuplexFull : spec::kNetDuplexUnknown;
  return config;
}

Result<> NetDevice::get_config(std::uint32_t offset, std::span<std::byte> out) {
  return copy_config(config(), offset, out);
}

Result<> NetDevice::set_config(std::uint32_t /*offset*/, std::span<const std::byte> /*in*/, vhost_user::Done<> /*done*/) {
  return fail("a driver can't write the configuration of a network card; its address is set by the control queue");
}

void NetDevice::set_link(bool up) {
  if (std::exchange(link_, up) != up) {
    tell_queues([](const Result<>&) {});
    notify_config_change();
  }
}

// ---------------------------------------------------------------- what the driver says

Result<> NetDevice::set_features(std::uint64_t acked) {
  require_offered(acked);
  const bool runs = (has_control() && control_queue_->running()) || std::ranges::any_of(pairs_, [](const auto& pair) {
                      return pair->receive->running() || pair->transmit->running();
                    });
  if (((acked ^ acked_) & ~spec::kFeatureLogAll) != 0) {
    if (runs) {
      return fail("features can't change while rings run; stop them or reset the device first");
    }
    state_ = NetDriverState::after_reset(acked, mac_);
    forget_steering();
  }
  acked_ = acked;
  order_rings();
  tell_queues([](const Result<>&) {});
  return {};
}

// Where the control queue is. No ring runs.
void NetDevice::order_rings() {
  const bool behind_first = has_control() && options_.pairs > 1 && (acked_ & (spec::kNetMq | spec::kNetRss)) == 0;
  if (behind_first != control_is_behind_first_pair_) {
    control_is_behind_first_pair_ = behind_first;
    swap_rings(2, 2 * options_.pairs);
  }
}

void NetDevice::tell_queues(vhost_user::Done<> done) {
  const NetReceiveFilter filter(state_, acked_);
  const bool reports = (acked_ & spec::kNetHashReport) != 0 && state_.hashing.types != 0;
  const auto rules = std::make_shared<const NetReceiveRules>(NetReceiveRules{
      .filter = filter,
      .link = link_,
      .filters = !link_ || !filter.accepts_everything(),
      .mergeable = (acked_ & spec::kNetMrgRxbuf) != 0,
      .header_bytes = header_bytes_of(acked_),
      .guest_offloads = net_usable_offloads(state_.guest_offloads),
      .pairs = control_started_ ? net_receiving_pairs(state_) : limits::kNetPairsWithoutControlMax,
      .hash_types = reports ? state_.hashing.types : 0,
      .hash_key = reports ? NetHashKey(std::span(state_.hashing.key).first(state_.hashing.key_bytes)) : NetHashKey()});
  const std::uint32_t mtu = (acked_ & spec::kNetMtu) != 0 ? options_.mtu : net_port_->info().mtu_max;
  const NetTransmitRules transmit{
      .limits = net_frame_limits(acked_, mtu), .link = link_, .header_bytes = header_bytes_of(acked_)};
  auto round = std::make_shared<std::pair<std::size_t, vhost_user::Done<>>>(pairs_.size(), std::move(done));
  for (const auto& pair : pairs_) {
    worker_of(2 * pair->index + 1).executor->post([this, to = pair.get(), rules, transmit, round] {
      to->set_rules(rules, transmit);
      control().post([round] {
        if (--round->first == 0) {
          round->second({});
        }
      });
    });
  }
}

void NetDevice::carry_out(const NetCommand& command) {
  NetControlLimits limits{
      .pairs_max = static_cast<std::uint16_t>(options_.pairs), .hash_types = hash_types(), .enabled_queues = {}};
  for (const auto& pair : pairs_) {
    const std::size_t receive_index = std::size_t{pair->index} * 2;
    limits.enabled_queues[receive_index] = pair->receive->running();
    limits.enabled_queues[receive_index + 1] = pair->transmit->running();
  }
  const NetDriverState before = state_;
  const NetControlOutcome outcome = apply_net_command(command, acked_, limits, state_);
  if (state_ == before) {
    answer(outcome);
    return;
  }
  const auto refuse = [this, name = options_.name](const Result<>& why) {
    spdlog::warn("net '{}': {}; the driver's command is refused", name, why.error().message);
    answer({.refusal = NetControlRefusal::port_failed, .answer = {}});
  };
  // What the driver was told to be done holds for each frame from then on. And no frame comes to a pair that doesn't
  // receive: pairs begin to before the port knows of them, and end after it has been told.
  if (net_receiving_pairs(state_) < net_receiving_pairs(before)) {
    if (const Result<> steered = steer_port(); !steered) {
      state_ = before;
      refuse(steered);
      return;
    }
    tell_queues([this, outcome](const Result<>& /*can't fail*/) { answer(outcome); });
    return;
  }
  tell_queues([this, outcome, before, refuse, acked = acked_](const Result<>& /*can't fail*/) {
    if (const Result<> steered = steer_port(); !steered) {
      state_ = acked_ == acked ? before : state_;  // else the driver has gone meanwhile
      tell_queues([refuse, steered](const Result<>& /*can't fail*/) { refuse(steered); });
      return;
    }
    answer(outcome);
  });
}

void NetDevice::answer(const NetControlOutcome& outcome) {
  worker_of(control_is_behind_first_pair_ ? 2 : 2 * options_.pairs).executor->post([this, outcome] {
    control_queue_->answer(outcome);
  });
}

// With the driver.
void NetDevice::forget_steering() {
  if (const Result<> steered = steer_port(); !steered) {
    spdlog::warn("net '{}': {}; frames are still spread as its last driver wanted", options_.name, steered.error().message);
  }
}

Result<> NetDevice::steer_port() {
  std::optional<NetSteering> wanted;
  if (state_.rss.has_value()) {
    wanted = {.hashing = state_.hashing, .table = *state_.rss};
  }
  if (wanted != steering_) {
    RW_TRY(net_port_->steer(wanted));
    steering_ = wanted;
  }
  return {};
}

// ---------------------------------------------------------------- rings

Result<> NetDevice::start_queue(std::uint32_t index, vhost_user::RingStart start, std::shared_ptr<const RegionMap> map,
                                std::shared_ptr<DirtyLog> log, WorkerContext& context) {
  if (has_control() && index == (control_is_behind_first_pair_ ? 2 : 2 * options_.pairs)) {
    control().post([this] {
      if (!std::exchange(control_started_, true)) {
        tell_queues([](const Result<>&) {});
      }
    });
    return control_queue_->start(context, std::move(start), std::move(map), std::move(log));
  }
  if (control_is_behind_first_pair_ && index >= 2) {
    return fail("ring " + std::to_string(index) + " can't start: without MQ there are two rings and the control queue");
  }
  Pair& pair = *pairs_[index / 2];
  if (context.net == nullptr) {
    context.net = std::make_unique<NetScratch>();
  }
  RW_TRY(pair.open_channel(*net_port_, context));
  if (index % 2 == 0) {
    return pair.receive->start(context, *pair.channel, *context.net, std::move(start), std::move(map), std::move(log));
  }
  return pair.transmit->start(context, *pair.channel, *context.net, std::move(start), std::move(map), std::move(log));
}

void NetDevice::forget_driver() {
  acked_ = 0;
  control_started_ = false;
  state_ = NetDriverState::after_reset(0, mac_);
  order_rings();
  forget_steering();
  tell_queues([](const Result<>&) {});
}

// Each on the thread that opened it. Every queue is idle.
void NetDevice::release(vhost_user::Done<> done) {
  auto round = std::make_shared<std::pair<std::size_t, vhost_user::Done<>>>(pairs_.size(), std::move(done));
  for (const auto& pair : pairs_) {
    worker_of(2 * pair->index + 1).executor->post([this, of = pair.get(), round] {
      of->receive->forget_channel();
      of->channel.reset();
      control().post([round] {
        if (--round->first == 0) {
          round->second({});
        }
      });
    });
  }
}

// ---------------------------------------------------------------- figures

NetDeviceStats NetDevice::stats() const {
  NetDeviceStats stats;
  for (const auto& pair : pairs_) {
    NetDeviceStats::Pair& to = stats.pairs.emplace_back();
    to.worker = worker_of(2 * pair->index + 1).index;
    static_cast<RingStats&>(to.receive) = pair->receive->ring_stats();
    static_cast<RingStats&>(to.transmit) = pair->transmit->ring_stats();
    const NetReceiveCounters& receive = pair->receive->counters();
    to.receive.frames = receive.frames.get();
    to.receive.bytes = receive.bytes.get();
    to.receive.gso_frames = receive.gso_frames.get();
    to.receive.checksums_completed = receive.checksums_completed.get();
    to.receive.segmented = receive.segmented.get();
    to.receive.filtered = receive.filtered.get();
    to.receive.dropped_too_long = receive.dropped_too_long.get();
    to.receive.dropped_no_buffers = receive.dropped_no_buffers.get();
    to.receive.dropped_unsegmentable = receive.dropped_unsegmentable.get();
    to.receive.dropped_disabled = receive.dropped_disabled.get();
    to.receive.bad_buffers = receive.bad_buffers.get();
    const NetTransmitCounters& transmit = pair->transmit->counters();
    to.transmit.frames = transmit.frames.get();
    to.transmit.bytes = transmit.bytes.get();
    to.transmit.gso_frames = transmit.gso_frames.get();
    to.transmit.discarded = transmit.discarded.get();
    for (std::size_t i = 0; i < kNetRefusals; ++i) {
      to.transmit.refused[i] = transmit.refused[i].get();
    }
    to.port = NetChannelStats::of(pair->counters);
  }
  if (has_control()) {
    NetDeviceStats::Control& to = stats.control.emplace(NetDeviceStats::Control{control_queue_->ring_stats()});
    to.commands = control_queue_->counters().commands.get();
    for (std::size_t i = 0; i < kNetControlRefusals; ++i) {
      to.refused[i] = control_queue_->counters().refused[i].get();
    }
  }
  return stats;
}

}  // namespace ringway
