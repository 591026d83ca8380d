// What a back-end session drives: one device with its rings. Implemented by device/; the session knows nothing of disks.
//
// Everything here runs on the control thread. A call that has to reach workers takes a `done` that is called later (or at
// once), on the control thread, exactly once; meanwhile the session reads no further message, so calls of
// one session never overlap. The session outlives every `done` it handed out; device and session end in this order:
// detach(done) … done → the session is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/foreign.hpp"
#include "base/result.hpp"
#include "guest/dirty_log.hpp"
#include "guest/region_map.hpp"
#include "ring/ring_layout.hpp"

namespace ringway::vhost_user {

template <typename T = void>
using Done = std::move_only_function<void(Result<T>)>;

// Where a device's rings stand in the region shared for crash recovery (INFLIGHT_SHMFD); mapped by the session.
struct InflightMapping {
  std::shared_ptr<Mapping> memory;
  std::uint16_t queue_count = 0;
  std::uint16_t queue_size = 0;
  bool packed = false;
};

// All that a ring needs to run, validated as far as a session can.
struct RingStart {
  std::uint32_t index = 0;
  std::uint32_t size = 0;
  RingAddresses addresses;
  RingFeatures features;
  std::uint32_t base = 0;
  bool enabled = false;
  bool log_used_ring = false;  // VHOST_VRING_F_LOG
  GuestAddress log_guest_address;
  ForeignFd kick;  // may be empty: polled by us, or in-band
  // May be empty: the driver polls, or in-band. Hostile: it was made non-blocking, but the peer can clear that flag.
  ForeignFd call;
  ForeignFd error;           // may be empty
  bool inband_call = false;  // call by VRING_CALL on the back-end channel
  std::shared_ptr<const InflightMapping> inflight;
};

// What a device may ask of the session that it is attached to. Control thread.
class FrontEndPort {
 public:
  // VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, if the front-end gave a channel; false if it couldn't be told.
  virtual bool notify_config_change() = 0;
  // VHOST_USER_BACKEND_VRING_CALL / VRING_ERR, for INBAND_NOTIFICATIONS.
  virtual bool send_vring_call(std::uint32_t index) = 0;
  virtual bool send_vring_error(std::uint32_t index) = 0;
  // For the log, whose lines are bounded for each socket: something of the front-end's, or its guest's, stopped working.
  virtual void warn(const std::string& text) = 0;
  // The front-end does what no session can go on with; ends the session.
  virtual void give_up(const std::string& reason) = 0;

 protected:
  ~FrontEndPort() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  // --- what it offers (constant while a session is attached) ---
  [[nodiscard]] virtual std::string name() const = 0;        // for log lines
  [[nodiscard]] virtual std::uint64_t features() const = 0;  // virtio and vhost bits, without PROTOCOL_FEATURES
  [[nodiscard]] virtual std::uint32_t ring_count() const = 0;
  [[nodiscard]] virtual std::uint64_t queue_num_reply() const = 0;  // GET_QUEUE_NUM: virtqueues (blk), pairs (net)
  [[nodiscard]] virtual std::uint32_t ring_size_max() const = 0;
  [[nodiscard]] virtual bool offers_inband() const = 0;
  [[nodiscard]] virtual bool offers_inflight() const = 0;

  // --- session life ---
  virtual void attach(FrontEndPort& port) = 0;
  // Stops every ring, drops call/kick/error fds, memory and log; `done` when neither a worker nor the kernel touches the
  // front-end's memory any more. Never fails, may take long: the next front-end waits. After it the device is as new,
  // but for what lives in its store.
  virtual void detach(Done<> done) = 0;

  // --- messages ---
  [[nodiscard]] virtual Result<> set_features(std::uint64_t acked) = 0;  // a subset of what is offered, legacy bits masked
  [[nodiscard]] virtual Result<> get_config(std::uint32_t offset, std::span<std::byte> out) = 0;
  // An error says that it can't be written so; `done` is not called then. Otherwise it is called when what was written holds
  // for every request that the driver makes available from then on.
  [[nodiscard]] virtual Result<> set_config(std::uint32_t offset, std::span<const std::byte> in, Done<> done) = 0;
  // `done` succeeds when no worker and no kernel I/O uses a mapping that `map` lacks; running rings go on with `map`.
  virtual void set_memory(std::shared_ptr<const RegionMap> map, Done<> done) = 0;
  virtual void set_log(std::shared_ptr<DirtyLog> log, Done<> done) = 0;  // null: none
  virtual void start_ring(RingStart start, Done<> done) = 0;
  // The base as GET_VRING_BASE wants it, with everything that was popped completed; or the bounded error.
  virtual void stop_ring(std::uint32_t index, Done<std::uint32_t> done) = 0;
  virtual void enable_ring(std::uint32_t index, bool enabled, Done<> done) = 0;
  virtual void set_call(std::uint32_t index, ForeignFd call, Done<> done) = 0;  // on a running ring
  virtual void set_kick(std::uint32_t index, ForeignFd kick, Done<> done) = 0;
  virtual void set_error(std::uint32_t index, ForeignFd error, Done<> done) = 0;
  virtual void set_addresses(std::uint32_t index, RingAddresses addresses, bool log, GuestAddress log_address,
                             Done<> done) = 0;  // on a running ring (migration turns its log flag on so)
  virtual void kick(std::uint32_t index) = 0;   // in-band
  // RESET_DEVICE, or status 0: device state only; rings stop, and what the in-flight region says of them is void.
  virtual void reset(Done<> done) = 0;
};

}  // namespace ringway::vhost_user
