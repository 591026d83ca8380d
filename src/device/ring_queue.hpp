// A virtqueue's life in the hands of its worker: start and stop, memory, log, notifications. What a device does with the
// chains is its own: BlkQueue serves requests.
//
// Owner: the worker; every method runs on its thread (the device posts them). The object lives as long as its device.
//
// States of the ring:
//   stopped ── begin() ──▶ running ── stop() / detach() ──▶ stopping ── last completion ──▶ stopped
//                                        └── the deadline passes ──▶ abandoned ── last completion ──▶ stopped
// While stopping, nothing is popped; what was popped completes and is published. An abandoned ring is not touched any more:
// its session was told of the failure, so late completions only give back what they hold; the memory that the kernel may
// still write to stays pinned by them, since direct I/O can't be cancelled. `enabled` and `broken` are apart from that: a
// disabled ring keeps running without being popped, and a broken one (a ring fault, or its memory vanished) waits for its
// stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "completion/inflight_queue.hpp"
#include "device/worker_context.hpp"
#include "guest/dirty_log.hpp"
#include "guest/region_map.hpp"
#include "guest/sigbus.hpp"
#include "metrics/counter.hpp"
#include "notify/event_fd.hpp"
#include "ring/device_ring.hpp"
#include "vhost_user/device.hpp"

namespace ringway {

// Of any virtqueue. Single-writer counters of the owning worker, read by anyone (metrics/counter.hpp).
struct RingCounters {
  Counter kicks;             // wake-ups by the driver
  Counter calls;             // notifications sent
  Counter calls_coalesced;   // not sent in-band, since the one before is on its way still
  Counter calls_suppressed;  // batches published that the driver didn't want to hear of
  Counter calls_dropped;     // the call fd was full or broken
  Counter ring_faults;       // the ring was stopped for one
  Counter lost_kicks;        // found by the safety look
  Counter batches;           // publishes
  Counter memory_lost;       // times that the ring stopped because guest memory was truncated
};

// A copy of them, and how the ring is.
struct RingStats {
  // As of the last safety look, up to a second ago, and only for queues that watch it. The oldest has been in flight for so
  // long at least, and for up to two seconds more.
  std::uint32_t in_flight = 0;
  Duration oldest_in_flight = {};
  bool running = false, enabled = false, broken = false;
  std::uint64_t kicks = 0, calls = 0, calls_coalesced = 0, calls_suppressed = 0, calls_dropped = 0, ring_faults = 0,
                lost_kicks = 0, batches = 0, memory_lost = 0;
};

// One memory table as a queue knows it, with what was translated by it and isn't over. Worker-owned. A queue that watches
// what is in flight has several of the same table: each for what began within a second or two.
struct PinnedMap {
  std::shared_ptr<const RegionMap> map;
  std::uint32_t pins = 0;
  Instant closed = Instant::never();  // since then another one is pinned instead
};

class RingQueue : public Queue, private FdHandler, private TimerHandler {
 public:
  template <typename T = void>
  using Done = std::move_only_function<void(Result<T>)>;

  // What a queue needs from its device for good.
  struct Surroundings {
    std::uint32_t device = 0;  // RingDevice::number()
    std::uint32_t index = 0;   // until begin() says otherwise
    Duration stop_deadline = {};
    // Called on the worker's thread; each reaches the front-end by way of the control thread.
    std::move_only_function<bool(std::uint32_t)> send_inband_call = {};  // false: one is on its way still
    std::move_only_function<void(std::uint32_t)> send_inband_error = {};
    std::move_only_function<void(std::uint32_t, const char*)> on_broken = [](auto...) {};  // and why, in words that last
    std::move_only_function<void(std::uint32_t)> on_held_write = {};                       // the session can't go on
    // For queues that watch it: so many are in flight, the oldest for so long; 0: they go on.
    std::move_only_function<void(std::uint32_t, std::uint32_t, Duration)> on_stall = [](auto...) {};
  };
  explicit RingQueue(Surroundings surroundings) : around_(std::move(surroundings)) {}
  RingQueue(const RingQueue&) = delete;
  RingQueue& operator=(const RingQueue&) = delete;
  ~RingQueue() override = default;

  // `done` once everything popped has completed and is published; an error after the stop deadline.
  void stop(Done<std::uint32_t> done);
  // As stop(), without a deadline, and forgets descriptors, memory and log. Also right for a stopped queue.
  void detach(Done<> done);
  // The device is reset: as detach(), and what the in-flight region says of the ring is void when it is done.
  void reset(Done<> done);
  void enable(bool enabled);
  // `done` once nothing is pinned to a map with a region that `map` lacks; an error after the stop deadline.
  void set_memory(std::shared_ptr<const RegionMap> map, Done<> done);
  void set_log(std::shared_ptr<DirtyLog> log) { log_ = std::move(log); }
  void set_call(ForeignFd call);
  [[nodiscard]] Result<> set_kick(ForeignFd kick);
  void set_error(ForeignFd error) { error_.set(std::move(error)); }
  [[nodiscard]] Result<> set_addresses(const RingAddresses& addresses, bool log, GuestAddress log_address);
  void kick();

  // Any thread.
  [[nodiscard]] const RingCounters& ring_counters() const { return ring_counters_; }
  [[nodiscard]] RingStats ring_stats() const;
  [[nodiscard]] bool running() const { return shown_running_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool enabled() const { return shown_enabled_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool broken() const { return shown_broken_.load(std::memory_order_relaxed); }

  // --- Queue ---
  void publish() noexcept final;
  void settle() noexcept final;
  [[nodiscard]] bool arm() noexcept override { return arm_for(ChainCount{}); }
  void suppress() noexcept final;
  [[nodiscard]] bool look() noexcept final;
  [[nodiscard]] bool has_in_flight() const noexcept final { return in_flight_ != 0; }
  [[nodiscard]] bool wants_polling() const noexcept final { return can_pop() && !kick_fd_ && !inband_call_; }

 protected:
  // --- for the device's start ---
  [[nodiscard]] Result<> begin(WorkerContext& context, vhost_user::RingStart start, std::shared_ptr<const RegionMap> map,
                               std::shared_ptr<DirtyLog> log);
  [[nodiscard]] bool may_begin() const noexcept { return state_ == State::stopped && in_flight_ == 0; }

  // --- for pump(): check_memory(), can_pop(), then next_chain() until it gives none ---
  // The memory behind a mapping may have been truncated while the ring or a batch was read or written. Looked at by each
  // pump, publish and safety look, so that a ring which reads as empty since it vanished is found as well.
  void check_memory() noexcept {
    if (RW_UNLIKELY(sigbus::epoch() != sigbus_epoch_)) {
      find_lost_memory();
    }
  }
  [[nodiscard]] bool can_pop() const noexcept { return can_pop_; }
  // Whether a ring that is disabled after it has been enabled is served all the same, as vhost-user has it for what a card
  // transmits: it is to be thrown away. Before the first start.
  void serve_when_disabled() noexcept { served_when_disabled_ = true; }
  // What is in flight is to end soon: counted in RingStats, and told of if it doesn't. Before the first start.
  void watch_in_flight() noexcept { watches_in_flight_ = true; }
  // Of a queue that gives its chains back in the order in which it took them, whatever was negotiated (and offers no
  // in-flight region): then the ring needn't see to IN_ORDER. Before the first start.
  void complete_in_order() noexcept { completes_in_order_ = true; }
  // What an earlier life of the device had taken, then what is available.
  [[nodiscard]] PopStatus next_chain(Chain& chain) noexcept {
    if (RW_UNLIKELY(!replay_.empty())) {
      return next_replayed(chain);
    }
    const PopStatus status = ring_->pop(*pinned_->map, chain);
    if (status == PopStatus::chain || status == PopStatus::chain_fault) {
      inflight_.popped(chain.id(), ring_->last_descriptors());
    }
    return status;
  }
  [[nodiscard]] bool has_work() const noexcept { return !replay_.empty() || ring_->has_work(); }
  // --- for queues that handle many short chains at a time and offer no in-flight region ---
  // next_chain(), which then is only this.
  [[nodiscard]] PopStatus next_fresh_chain(Chain& chain) noexcept { return ring_->pop(*pinned_->map, chain); }
  // As DeviceRing::pop_buffers().
  [[nodiscard]] std::size_t next_fresh_buffers(bool writable, std::span<ChainBuffer> out) noexcept {
    return ring_->pop_buffers(*pinned_->map, writable, out);
  }
  // complete(), less note_finished(), which has to follow once.
  void complete_fresh(ChainId chain, std::uint32_t used_length) noexcept { ring_->push_used(chain, used_length); }
  void note_finished() noexcept { context_->note_finished(*this); }
  // Takes next_fresh_chain() back, newest first: as DeviceRing::unpop().
  void unpop(ChainId chain) noexcept { ring_->unpop(chain); }
  // arm(), for who has found `beyond` available and needs more.
  [[nodiscard]] bool arm_for(ChainCount beyond) noexcept;
  // For the safety look: whether the idle queue waits for nothing but a kick. Asked while it can_pop().
  [[nodiscard]] virtual bool awaits_kick() noexcept { return true; }
  // After each change of what can_pop() says, and of others that don't change it.
  virtual void on_state() noexcept {}
  // After a ring fault.
  void break_ring() noexcept;

  // In descriptors. REQUIRES: can_pop().
  [[nodiscard]] std::uint32_t ring_size() const noexcept { return ring_->layout().size; }
  // The map that chains are translated by now.
  [[nodiscard]] const RegionMap& map() const noexcept { return *pinned_->map; }

  // --- for what is in flight longer than a pump(): pin() when it begins, complete() or not, ended() ---
  // The map that chains are translated by now: it, and the ring's stop, wait for what is pinned.
  [[nodiscard]] PinnedMap* pin() noexcept {
    ++pinned_->pins;
    ++in_flight_;
    return pinned_;
  }
  // False: the ring is abandoned or its memory gone, and nothing may be written for its chains any more.
  [[nodiscard]] bool may_complete() const noexcept { return RW_LIKELY(ring_.has_value()); }
  // Gives a chain back to the driver. REQUIRES: may_complete(), which holds throughout a pump().
  void complete(ChainId chain, std::uint32_t used_length) noexcept {
    inflight_.pushed(chain);
    ring_->push_used(chain, used_length);
    context_->note_finished(*this);
  }
  // The last word on what pin() began; it may stop the ring.
  void ended(PinnedMap& pinned) noexcept {
    --pinned.pins;
    --in_flight_;
    if (RW_UNLIKELY(state_ != State::running || memory_done_)) {
      after_completion();
    }
  }
  // --- for stages: the first request, frame or batch of a pump since then was announced by a kick ---
  void pumped() noexcept { kicked_ = 0; }
  // After StageRecorder::due(); null: not after all. It is stamped `popped`.
  [[nodiscard]] TracedRequest* follow() noexcept {
    return context_->stages.begin(owner(), around_.device, static_cast<std::uint16_t>(around_.index), kicked_);
  }
  [[nodiscard]] DirtyLog* log() const noexcept { return log_.get(); }
  [[nodiscard]] WorkerContext& context() const noexcept { return *context_; }
  [[nodiscard]] std::uint32_t index() const noexcept { return around_.index; }

 private:
  enum class State : std::uint8_t { stopped, running, stopping };

  void on_ready(std::uint32_t events) noexcept override;  // the kick fd
  void on_timer(Instant now) noexcept override;           // the stop deadline

  [[nodiscard]] PopStatus next_replayed(Chain& chain) noexcept;
  void log_ring_piece(const WrittenRange::Piece& piece) noexcept;
  void find_lost_memory() noexcept;
  void break_for(const char* why) noexcept;
  void signal_call() noexcept;
  void after_completion() noexcept;
  void become_stopped() noexcept;
  [[nodiscard]] const void* owner() const noexcept { return static_cast<const Queue*>(this); }
  void use_map(std::shared_ptr<const RegionMap> map);
  void look_at_in_flight() noexcept;
  void pin_anew();
  [[nodiscard]] bool old_maps_drained() const;
  void drop_kick() noexcept;
  void note_state() noexcept;

  Surroundings around_;
  WorkerContext* context_ = nullptr;  // while not stopped

  // --- the hot part ---
  std::optional<DeviceRing> ring_;
  PinnedMap* pinned_ = nullptr;  // the newest of maps_
  State state_ = State::stopped;
  bool can_pop_ = false;  // by all of these; see note_state()
  bool enabled_ = false;
  bool was_enabled_ = false;
  bool served_when_disabled_ = false;
  bool completes_in_order_ = false;
  bool broken_ = false;
  bool owe_call_ = false;  // signal once whatever the driver's suppression says: after start and a new call fd
  bool inband_call_ = false;
  bool log_used_ring_ = false;
  std::uint32_t in_flight_ = 0;
  std::uint64_t sigbus_epoch_ = 0;
  std::uint64_t kicked_ = 0;  // when a kick was seen that no pump has followed yet, by the StageClock
  InflightQueue inflight_;
  std::vector<InflightQueue::Pending> replay_;  // taken by an earlier life of the device; newest first
  EventFd call_;
  EventFd error_;
  RingCounters ring_counters_;
  std::shared_ptr<DirtyLog> log_;

  // --- the rest ---
  std::vector<std::unique_ptr<PinnedMap>> maps_;  // all that something is pinned to, and the current one (last)
  RingAddresses addresses_;
  GuestAddress log_guest_address_;
  static constexpr std::uint64_t kServed = UINT64_MAX;
  std::uint64_t unserved_since_ = kServed;  // kicks and batches as of the last safety look, if it found chains waiting
  bool resetting_ = false;                  // with detach_done_
  bool watches_in_flight_ = false;
  bool stall_told_ = false;
  std::uint32_t lost_base_ = 0;  // of a running ring whose memory was taken away
  ForeignFd kick_fd_;
  WatchId kick_watch_;
  // What waits for completions. A session asks for one thing at a time, so one of these at most.
  Done<std::uint32_t> stop_done_;
  Done<> detach_done_;
  Done<> memory_done_;
  std::shared_ptr<const RegionMap> awaited_map_;  // with memory_done_: maps that don't survive in it must drain
  std::atomic<bool> shown_running_{false}, shown_enabled_{false}, shown_broken_{false};
  std::atomic<std::uint32_t> shown_in_flight_{0};
  std::atomic<std::int64_t> shown_oldest_ns_{0};
};

}  // namespace ringway
