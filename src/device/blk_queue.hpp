// One virtqueue of a disk in the hands of its worker: stages (1) to (5) wired together.
//
// Owner: the worker; every method runs on its thread (the device posts them). The object lives as long as its device.
//
// States of the ring:
//   stopped ── start() ──▶ running ── stop() / detach() ──▶ stopping ── last completion ──▶ stopped
//                                        └── the deadline passes ──▶ abandoned ── last completion ──▶ stopped
// While stopping, nothing is popped; what was popped completes and is published. An abandoned ring is not touched any more:
// its session was told of the failure, so late completions only give back their slots; the memory that the kernel may
// still write to stays pinned by them, since direct I/O can't be cancelled. `enabled` and `broken` are apart from that: a
// disabled ring keeps running without being popped, and a broken one (a ring fault, or its memory vanished) waits for its
// stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "completion/inflight_queue.hpp"
#include "device/blk_counters.hpp"
#include "device/worker_context.hpp"
#include "guest/dirty_log.hpp"
#include "notify/event_fd.hpp"
#include "ring/device_ring.hpp"
#include "vhost_user/device.hpp"

namespace ringway {

class BlkQueue final : public Queue, public BlkCompletions, private FdHandler, private TimerHandler {
 public:
  template <typename T = void>
  using Done = std::move_only_function<void(Result<T>)>;

  // What a queue needs from its device for good.
  struct Surroundings {
    std::uint32_t index = 0;
    const std::string* serial = nullptr;  // outlives the queue, constant
    BlkLatency* latency = nullptr;        // of this device on this worker
    BlkSlotShare* slots = nullptr;        // of this device on this worker
    Duration stop_deadline = {};
    // Called on the worker's thread; reaches the front-end by way of the control thread.
    std::move_only_function<void(std::uint32_t)> send_inband_call = {};
    std::move_only_function<void(std::uint32_t)> send_inband_error = {};
    std::move_only_function<void(std::uint32_t)> on_held_write = {};  // the session can't go on
  };
  explicit BlkQueue(Surroundings surroundings) : around_(std::move(surroundings)) {}
  BlkQueue(const BlkQueue&) = delete;
  BlkQueue& operator=(const BlkQueue&) = delete;
  ~BlkQueue() override = default;

  [[nodiscard]] Result<> start(WorkerContext& context, BlkChannel& channel, vhost_user::RingStart start,
                               std::shared_ptr<const RegionMap> map, std::shared_ptr<DirtyLog> log,
                               const BlkRequestLimits& limits);
  // `done` once everything popped has completed and is published; an error after the stop deadline.
  void stop(Done<std::uint32_t> done);
  // As stop(), without a deadline, and forgets descriptors, memory and log. Also right for a stopped queue.
  void detach(Done<> done);
  void enable(bool enabled);
  // `done` once no request is pinned to a map with a region that `map` lacks; an error after the stop deadline.
  void set_memory(std::shared_ptr<const RegionMap> map, Done<> done);
  void set_log(std::shared_ptr<DirtyLog> log) { log_ = std::move(log); }
  void set_limits(const BlkRequestLimits& limits) { limits_ = limits; }
  void set_call(ForeignFd call);
  [[nodiscard]] Result<> set_kick(ForeignFd kick);
  void set_error(ForeignFd error) { error_.set(std::move(error)); }
  [[nodiscard]] Result<> set_addresses(const RingAddresses& addresses, bool log, GuestAddress log_address);
  void kick();

  // Any thread.
  [[nodiscard]] const BlkQueueCounters& counters() const { return counters_; }
  [[nodiscard]] bool running() const { return shown_running_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool enabled() const { return shown_enabled_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool broken() const { return shown_broken_.load(std::memory_order_relaxed); }

  // --- Queue ---
  Pumped pump(WorkerContext& context) noexcept override;
  void publish() noexcept override;
  [[nodiscard]] bool arm() noexcept override;
  void suppress() noexcept override;
  [[nodiscard]] bool look() noexcept override;
  [[nodiscard]] bool wants_polling() const noexcept override { return can_pop() && !kick_fd_ && !inband_call_; }

  // --- BlkCompletions ---
  void on_complete(BlkOperation& operation) noexcept override;

 private:
  enum class State : std::uint8_t { stopped, running, stopping };

  void on_ready(std::uint32_t events) noexcept override;  // the kick fd
  void on_timer(Instant now) noexcept override;           // the stop deadline

  [[nodiscard]] bool can_pop() const { return state_ == State::running && enabled_ && !broken_; }
  [[nodiscard]] Pumped end_pump(bool took, Pumped result) noexcept;
  [[nodiscard]] Pumped queue_up(WorkerContext& context) noexcept;
  [[nodiscard]] PopStatus next_chain(WorkerContext& context) noexcept;
  [[nodiscard]] PopStatus next_replayed(WorkerContext& context) noexcept;
  void serve(WorkerContext& context, BlkSlot& slot, PopStatus status) noexcept;
  void refuse(BlkSlot& slot, const BlkParsed& parsed) noexcept;
  void answer_id(BlkOperation& operation) noexcept;
  // Gives a chain back to the driver (unless the ring is gone) and the slot to the pool.
  void finish(BlkSlot& slot, std::byte* status_address, std::uint8_t status, std::uint32_t used_length) noexcept;
  void log_written(const BlkSlot& slot, std::uint32_t used_length) noexcept;
  void log_ring_piece(const WrittenRange::Piece& piece) noexcept;
  void break_ring(RingFault fault) noexcept;
  void check_memory() noexcept;
  void signal_call() noexcept;
  void after_completion() noexcept;
  void become_stopped() noexcept;
  void pin(BlkSlot& slot) noexcept;
  void unpin(BlkSlot& slot) noexcept;
  void use_map(std::shared_ptr<const RegionMap> map);
  [[nodiscard]] bool old_maps_drained() const;
  void drop_kick() noexcept;
  void show() noexcept;

  Surroundings around_;
  WorkerContext* context_ = nullptr;  // while not stopped
  BlkChannel* channel_ = nullptr;

  // --- the hot part ---
  std::optional<DeviceRing> ring_;
  PinnedMap* pinned_ = nullptr;  // the newest of maps_
  State state_ = State::stopped;
  bool enabled_ = false;
  bool broken_ = false;
  bool owe_call_ = false;  // signal once whatever the driver's suppression says: after start and a new call fd
  bool inband_call_ = false;
  bool log_used_ring_ = false;
  std::uint8_t unserved_looks_ = 0;
  std::uint32_t in_flight_ = 0;
  std::int32_t budget_ = 0;  // left over by the last pump(); negative: overdrawn, and owed to the neighbours
  std::uint64_t sigbus_epoch_ = 0;
  BlkRequestLimits limits_;
  InflightQueue inflight_;
  std::vector<InflightQueue::Pending> replay_;  // taken by an earlier life of the device; newest first
  EventFd call_;
  EventFd error_;
  BlkQueueCounters counters_;
  std::shared_ptr<DirtyLog> log_;

  // --- the rest ---
  std::vector<std::unique_ptr<PinnedMap>> maps_;  // all that requests are pinned to, and the current one (last)
  RingAddresses addresses_;
  GuestAddress log_guest_address_;
  std::uint32_t lost_base_ = 0;  // of a running ring whose memory was taken away
  ForeignFd kick_fd_;
  WatchId kick_watch_;
  // What waits for completions. A session asks for one thing at a time, so one of these at most.
  Done<std::uint32_t> stop_done_;
  Done<> detach_done_;
  Done<> memory_done_;
  std::shared_ptr<const RegionMap> awaited_map_;  // with memory_done_: maps that don't survive in it must drain
  std::atomic<bool> shown_running_{false}, shown_enabled_{false}, shown_broken_{false};
};

}  // namespace ringway
