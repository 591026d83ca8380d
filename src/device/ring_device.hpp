// What any device is to a session: its virtqueues, and the messages between the control thread and the workers that own
// them. What is said in those queues is the subclass's.
//
// Owner: control thread. Create after the workers run; destroy before they end, after a detach() has answered that was
// called when nobody used the device any more: messages to workers may be on their way even if no session was ever there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "device/ring_queue.hpp"
#include "device/worker_context.hpp"
#include "loop/executor.hpp"
#include "vhost_user/device.hpp"

namespace ringway {

class RingDevice : public vhost_user::Device {
 public:
  RingDevice(const RingDevice&) = delete;
  RingDevice& operator=(const RingDevice&) = delete;
  ~RingDevice() override;

  // By which records of its requests name it; no other device of this process has it, or had.
  [[nodiscard]] std::uint32_t number() const { return number_; }
  [[nodiscard]] bool attached() const { return port_ != nullptr; }
  // Of all its queues: RingStats::oldest_in_flight.
  [[nodiscard]] Duration oldest_in_flight() const;

  // --- vhost_user::Device ---
  [[nodiscard]] std::uint32_t ring_count() const final { return static_cast<std::uint32_t>(queues_.size()); }
  [[nodiscard]] std::uint32_t ring_size_max() const final { return limits::kRingSizeMax; }
  void attach(vhost_user::FrontEndPort& port) final { port_ = &port; }
  void detach(vhost_user::Done<> done) final;
  void set_memory(std::shared_ptr<const RegionMap> map, vhost_user::Done<> done) final;
  void set_log(std::shared_ptr<DirtyLog> log, vhost_user::Done<> done) final;
  void start_ring(vhost_user::RingStart start, vhost_user::Done<> done) final;
  void stop_ring(std::uint32_t index, vhost_user::Done<std::uint32_t> done) final;
  void enable_ring(std::uint32_t index, bool enabled, vhost_user::Done<> done) final;
  void set_call(std::uint32_t index, ForeignFd call, vhost_user::Done<> done) final;
  void set_kick(std::uint32_t index, ForeignFd kick, vhost_user::Done<> done) final;
  void set_error(std::uint32_t index, ForeignFd error, vhost_user::Done<> done) final;
  void set_addresses(std::uint32_t index, RingAddresses addresses, bool log, GuestAddress log_address,
                     vhost_user::Done<> done) final;
  void kick(std::uint32_t index) final;
  void reset(vhost_user::Done<> done) final;

 protected:
  // `control` is the control thread's executor.
  explicit RingDevice(Executor& control);

  // For the queue of that index, which add_queue() then gets.
  [[nodiscard]] RingQueue::Surroundings surroundings(std::uint32_t index, Duration stop_deadline);
  // In the order of their indices, before the first message. The queue is the subclass's, and is no more after its detach.
  void add_queue(RingQueue& queue, const WorkerPort& worker);
  // For a device whose rings stand in another order for some drivers. REQUIRES: neither of them runs.
  void swap_rings(std::uint32_t one, std::uint32_t other);

  // --- what the subclass's messages come to ---
  // Of what the session acknowledges: it has refused, or masked, what the device doesn't offer (vhost_user::Device).
  void require_offered(std::uint64_t acked) const { RW_CHECK((acked & ~features()) == 0); }
  // Of a configuration space of so many bytes. Errors: some of the part lie outside.
  [[nodiscard]] static Result<> check_config_part(std::size_t whole_bytes, std::uint32_t offset, std::size_t part_bytes);
  // get_config() of a structure of spec.hpp.
  template <typename Config>
  [[nodiscard]] static Result<> copy_config(const Config& whole, std::uint32_t offset, std::span<std::byte> out) {
    RW_TRY(check_config_part(sizeof whole, offset, out.size()));
    std::ranges::copy(std::as_bytes(std::span(&whole, 1)).subspan(offset, out.size()), out.begin());
    return {};
  }
  // The driver is to read its configuration again, if there is one.
  void notify_config_change();

  // --- what the subclass does ---
  // On the queue's worker: RingQueue::begin() with what the device has for it.
  [[nodiscard]] virtual Result<> start_queue(std::uint32_t index, vhost_user::RingStart start,
                                             std::shared_ptr<const RegionMap> map, std::shared_ptr<DirtyLog> log,
                                             WorkerContext& context) = 0;
  // Before the queues hear of a new memory table: `map` is what they will acknowledge.
  virtual void prepare_memory(const std::shared_ptr<const RegionMap>& /*map*/) {}
  // Every queue has stopped, by RESET_DEVICE or for a detach; what the driver had set is void.
  virtual void forget_driver() = 0;
  // The session is over: lets go of what the workers hold for the device. `done` comes behind every message that the device
  // has sent to a worker by then, forget_driver()'s too: it may be destroyed after that.
  virtual void release(vhost_user::Done<> done) = 0;

  [[nodiscard]] Executor& control() const { return control_; }
  [[nodiscard]] const WorkerPort& worker_of(std::uint32_t index) const { return workers_[index]; }
  void on_queue(std::uint32_t index, std::move_only_function<void(RingQueue&)> body);
  // Runs `body(queue, done)` on the owner of each queue, and `done` on the control thread after the last.
  void on_each_queue(std::move_only_function<void(RingQueue&, vhost_user::Done<>)> body, vhost_user::Done<> done);

 private:
  void tell_front_end(std::move_only_function<void(vhost_user::FrontEndPort&)> what);

  const std::uint32_t number_;
  Executor& control_;
  vhost_user::FrontEndPort* port_ = nullptr;
  std::vector<RingQueue*> queues_;
  std::vector<WorkerPort> workers_;  // by queue
  std::shared_ptr<const RegionMap> map_;
  std::shared_ptr<DirtyLog> log_;  // in force: the session gives it only while LOG_ALL is acknowledged
};

}  // namespace ringway
