// A virtio-net device: configuration space and features (virtio 1.3 §5.1), what its driver has set by control commands, its
// port, and what its workers have of them.
//
// Owner: control thread; its life is that of any RingDevice.
//
// Rings: receive and transmit queue of pair 0, of pair 1, …, then the control queue. Without MQ (and RSS) a driver has only
// the first pair and finds the control queue behind that (§5.1.2), so for such a driver the order is changed.
//
// A pair is used while its receive ring runs and is enabled, and, if the driver's control queue is ours to serve, as long as
// the driver has asked for that many pairs. That makes all three ways right in which front-ends drive multi-queue: those
// that answer the control queue themselves enable and disable rings instead.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/net/net_port.hpp"
#include "device/net_counters.hpp"
#include "device/ring_device.hpp"
#include "request/net_control_state.hpp"
#include "ring/spec.hpp"

namespace ringway {

class NetControlQueue;
class NetReceiveQueue;
class NetTransmitQueue;
struct NetReceiveRules;

struct NetDeviceOptions {
  std::string name = {};  // for logs and the API; unique in the process
  NetMac mac{};           // all zeros: made from the name, the same each time
  std::uint32_t pairs = 1;
  std::uint16_t mtu = 0;  // offered to the driver; 0: not (it then takes 1500)
  bool packed = true;     // offer RING_PACKED
  bool in_order = false;  // offer IN_ORDER
  bool inband = false;    // offer INBAND_NOTIFICATIONS
  bool mergeable = true;  // offer MRG_RXBUF
  bool offloads = true;   // offer checksum and segmentation offloads
  bool control = true;    // offer CTRL_VQ and what goes with it
  bool hashes = true;     // with it HASH_REPORT, and RSS if there are several pairs and the port can steer
  std::uint32_t speed_mbits = spec::kNetSpeedUnknown;
  Duration stop_deadline = limits::kStopDeadline;
};

// A copy of everything countable.
struct NetDeviceStats {
  struct Receive : RingStats {
    std::uint64_t frames = 0, bytes = 0, gso_frames = 0, checksums_completed = 0, segmented = 0, filtered = 0,
                  dropped_too_long = 0, dropped_no_buffers = 0, dropped_unsegmentable = 0, dropped_disabled = 0,
                  bad_buffers = 0;
  };
  struct Transmit : RingStats {
    std::uint64_t frames = 0, bytes = 0, gso_frames = 0, discarded = 0;
    std::array<std::uint64_t, kNetRefusals> refused{};
  };
  struct Pair {
    std::uint32_t worker = 0;
    Receive receive;
    Transmit transmit;
    NetChannelStats port;
  };
  std::vector<Pair> pairs;
  struct Control : RingStats {
    std::uint64_t commands = 0;
    std::array<std::uint64_t, kNetControlRefusals> refused{};
  };
  std::optional<Control> control;  // absent: the card has no such queue
};

class NetDevice final : public RingDevice {
 public:
  // `workers` are dealt to pairs round robin from `first_worker` on; the control queue goes with the first pair.
  // Errors: no pair or more than the port or the protocol has, an MTU out of range, a group address as MAC, no worker.
  [[nodiscard]] static Result<std::unique_ptr<NetDevice>> create(NetDeviceOptions options, std::unique_ptr<NetPort> port,
                                                                 std::span<const WorkerPort> workers,
                                                                 std::uint32_t first_worker, Executor& control);
  NetDevice(const NetDevice&) = delete;
  NetDevice& operator=(const NetDevice&) = delete;
  ~NetDevice() override;

  [[nodiscard]] const NetDeviceOptions& options() const { return options_; }
  [[nodiscard]] const NetPortInfo& port_info() const { return net_port_->info(); }
  // What the driver has set.
  [[nodiscard]] const NetDriverState& driver_state() const { return state_; }
  [[nodiscard]] std::uint64_t acked_features() const { return acked_; }
  [[nodiscard]] NetDeviceStats stats() const;

  // The cable: shown to the driver if it negotiated STATUS. Frames go through all the same.
  void set_link(bool up);
  [[nodiscard]] bool link() const { return link_; }

  // --- vhost_user::Device ---
  [[nodiscard]] std::string name() const override { return options_.name; }
  [[nodiscard]] std::uint64_t features() const override;
  [[nodiscard]] std::uint64_t queue_num_reply() const override { return options_.pairs; }
  [[nodiscard]] bool offers_inband() const override { return options_.inband; }
  [[nodiscard]] bool offers_inflight() const override { return false; }
  [[nodiscard]] Result<> set_features(std::uint64_t acked) override;
  [[nodiscard]] Result<> get_config(std::uint32_t offset, std::span<std::byte> out) override;
  [[nodiscard]] Result<> set_config(std::uint32_t offset, std::span<const std::byte> in, vhost_user::Done<> done) override;

 private:
  struct Pair;  // one pair's queues and channel, touched by its worker only

  NetDevice(NetDeviceOptions options, std::unique_ptr<NetPort> port, std::span<const WorkerPort> workers,
            std::uint32_t first_worker, Executor& control);
  [[nodiscard]] spec::NetConfig config() const;
  [[nodiscard]] bool has_control() const { return control_queue_ != nullptr; }
  // Gives the queues what the driver has negotiated and set; `done` when all of them go by it.
  void tell_queues(vhost_user::Done<> done);
  void order_rings();
  void carry_out(const NetCommand& command);
  void answer(const NetControlOutcome& outcome);
  [[nodiscard]] bool steers() const;
  // Supported_hash_types of the configuration space.
  [[nodiscard]] std::uint32_t hash_types() const;
  // Has the port spread frames as the driver has said.
  [[nodiscard]] Result<> steer_port();
  void forget_steering();

  // --- RingDevice ---
  [[nodiscard]] Result<> start_queue(std::uint32_t index, vhost_user::RingStart start, std::shared_ptr<const RegionMap> map,
                                     std::shared_ptr<DirtyLog> log, WorkerContext& context) override;
  void forget_driver() override;
  void release(vhost_user::Done<> done) override;

  NetDeviceOptions options_;
  std::unique_ptr<NetPort> net_port_;
  NetMac mac_;  // that it has from us
  std::uint64_t acked_ = 0;
  NetDriverState state_;
  std::optional<NetSteering> steering_;  // as the port knows it
  bool link_ = true;
  bool control_started_ = false;
  bool control_is_behind_first_pair_ = false;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::unique_ptr<NetControlQueue> control_queue_;
};

}  // namespace ringway
