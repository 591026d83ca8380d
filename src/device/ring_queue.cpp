#include "device/ring_queue.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/fence.hpp"
#include "guest/sigbus.hpp"

namespace ringway {

// ---------------------------------------------------------------- starting and stopping

Result<> RingQueue::begin(WorkerContext& context, vhost_user::RingStart start, std::shared_ptr<const RegionMap> map,
                          std::shared_ptr<DirtyLog> log) {
  around_.index = start.index;
  if (!may_begin()) {
    return fail("ring " + std::to_string(around_.index) +
                " can't start: what was in flight in its previous life has not ended yet; stop it and wait, or detach");
  }
  RW_TRY_ASSIGN(const RingLayout layout, RingLayout::resolve(*map, start.addresses, start.size, start.features.packed));
  RW_CHECK(!completes_in_order_ || start.inflight == nullptr);
  start.features.in_order = start.features.in_order && !completes_in_order_;
  DeviceRing ring(layout, start.features, start.base);
  if (start.inflight != nullptr) {
    RW_TRY_ASSIGN(inflight_, InflightQueue::open({start.inflight, start.inflight->memory.get()},
                                                 {.queue_index = static_cast<std::uint16_t>(around_.index),
                                                  .queue_size = start.inflight->queue_size,
                                                  .ring_size = start.size,
                                                  .used_index = ring.used_index(),
                                                  .packed = start.features.packed,
                                                  .in_order = start.features.in_order}));
  } else {
    inflight_ = {};
  }
  context_ = &context;
  ring_.emplace(std::move(ring));
  use_map(std::move(map));
  log_ = std::move(log);
  addresses_ = start.addresses;
  log_used_ring_ = start.log_used_ring;
  log_guest_address_ = start.log_guest_address;
  inband_call_ = start.inband_call;
  call_.set(std::move(start.call));
  error_.set(std::move(start.error));
  broken_ = false;
  enabled_ = start.enabled;
  unserved_since_ = kServed;
  sigbus_epoch_ = sigbus::epoch();
  if (inflight_.enabled()) {
    replay_ = inflight_.recover(layout);
    if (inflight_.taken_over()) {
      // A front-end can't know how far its lost back-end had read, whether anything was in flight or not. It gives the used
      // index as base, or for a packed ring whatever it knew last. What was taken beyond the used index is what is served
      // again now; the next chain comes after that.
      if (ring_->packed()) {
        ring_.emplace(layout, start.features, inflight_.recovered_base(replay_, start.size).value_or(start.base));
      } else {
        ring_.emplace(layout, start.features, ring_->used_index() + static_cast<std::uint32_t>(replay_.size()));
      }
    }
    if (ring_->packed()) {
      ring_->keep_descriptors();
    }
    std::ranges::reverse(replay_);
  }
  state_ = State::running;
  context.running.push_back(this);
  if (auto watched = set_kick(std::move(start.kick)); !watched) {
    become_stopped();
    return watched;
  }
  // A driver that was waiting when its previous back-end went would wait for ever (conformance row 3).
  owe_call_ = true;
  context.note_finished(*this);
  context.activate(*this);
  note_state();
  return {};
}

void RingQueue::stop(Done<std::uint32_t> done) {
  if (state_ == State::stopped) {
    done(fail("ring " + std::to_string(around_.index) + " is not running"));
    return;
  }
  state_ = State::stopping;
  note_state();
  drop_kick();
  stop_done_ = std::move(done);
  context_->loop.set_timer(*this, context_->now + around_.stop_deadline);
  after_completion();
}

void RingQueue::detach(Done<> done) {
  detach_done_ = std::move(done);
  stop_done_ = nullptr;
  memory_done_ = nullptr;
  if (state_ != State::stopped) {
    context_->loop.cancel_timer(*this);
    state_ = State::stopping;
    note_state();
    drop_kick();
  }
  after_completion();
}

void RingQueue::reset(Done<> done) {
  resetting_ = true;
  detach(std::move(done));
}

void RingQueue::after_completion() noexcept {
  if (RW_LIKELY(state_ == State::running && !memory_done_)) {
    return;
  }
  if (memory_done_ && old_maps_drained()) {
    context_->loop.cancel_timer(*this);
    awaited_map_ = nullptr;
    std::exchange(memory_done_, nullptr)({});
  }
  if (in_flight_ != 0) {
    return;
  }
  if (state_ == State::stopping) {
    // The last batch must be out before anyone is told that the ring has stopped.
    publish();
    full_fence();
    settle();
    const std::uint32_t base = ring_ ? ring_->base() : lost_base_;
    // From now on the front-end knows the ring's place, and may begin another ring with the same region. What it can't know
    // stays in the region: chains that were lost with the ring's memory, or not yet served again.
    if (stop_done_ && ring_ && replay_.empty()) {
      inflight_.clear();
    }
    become_stopped();
    if (stop_done_) {
      std::exchange(stop_done_, nullptr)(base);
    }
  }
  if (detach_done_ && state_ == State::stopped) {
    // Not before: what was in flight when the reset came was still to be noted as done.
    if (std::exchange(resetting_, false)) {
      inflight_.clear();
    }
    maps_.clear();
    pinned_ = nullptr;
    log_ = nullptr;
    call_.set({});
    error_.set({});
    inflight_ = {};
    enabled_ = false;
    note_state();
    std::exchange(detach_done_, nullptr)({});
  }
}

void RingQueue::become_stopped() noexcept {
  context_->loop.cancel_timer(*this);
  context_->forget(*this);
  drop_kick();
  ring_.reset();
  replay_.clear();
  state_ = State::stopped;
  broken_ = false;
  owe_call_ = false;
  stall_told_ = false;
  shown_in_flight_.store(0, std::memory_order_relaxed);
  shown_oldest_ns_.store(0, std::memory_order_relaxed);
  note_state();
}

void RingQueue::on_timer(Instant) noexcept {
  // The disk hangs. From here on the ring is not ours to write to: the session is told, and fails.
  if (stop_done_) {
    ring_.reset();
    std::exchange(stop_done_,
                  nullptr)(fail("ring " + std::to_string(around_.index) + ": " + std::to_string(in_flight_) +
                                " requests are still in flight after the stop deadline; the device's other end hangs"));
  }
  if (memory_done_) {
    awaited_map_ = nullptr;
    std::exchange(memory_done_, nullptr)(
        fail("ring " + std::to_string(around_.index) + ": requests are still in flight in memory that was to be unmapped"));
  }
}

void RingQueue::enable(bool enabled) {
  enabled_ = enabled;
  note_state();
  if (can_pop()) {
    context_->activate(*this);  // a kick may have come while it was disabled (conformance row 2)
  }
}

// ---------------------------------------------------------------- descriptors, memory, log

Result<> RingQueue::set_kick(ForeignFd kick) {
  drop_kick();
  kick_fd_ = std::move(kick);
  if (state_ != State::running) {
    return {};
  }
  if (kick_fd_) {
    RW_TRY_ASSIGN(kick_watch_, context_->loop.watch(kick_fd_.get(), EPOLLIN, *this));
    context_->activate(*this);
  } else {
    context_->note_polled(*this);
  }
  return {};
}

void RingQueue::drop_kick() noexcept {
  if (kick_watch_) {
    context_->loop.unwatch(kick_watch_);
    kick_watch_ = {};
  }
  kick_fd_.reset();
}

void RingQueue::set_call(ForeignFd call) {
  call_.set(std::move(call));
  if (state_ == State::running) {
    owe_call_ = true;
    context_->note_finished(*this);
  }
}

Result<> RingQueue::set_addresses(const RingAddresses& addresses, bool log, GuestAddress log_address) {
  if (ring_) {
    RW_TRY_ASSIGN(const RingLayout layout,
                  RingLayout::resolve(*pinned_->map, addresses, ring_->layout().size, ring_->packed()));
    ring_->move_to(layout);
  }
  addresses_ = addresses;
  log_used_ring_ = log;
  log_guest_address_ = log_address;
  return {};
}

void RingQueue::use_map(std::shared_ptr<const RegionMap> map) {
  if (pinned_ != nullptr) {
    pinned_->closed = context_->now;
  }
  std::erase_if(maps_, [](const std::unique_ptr<PinnedMap>& old) { return old->pins == 0; });
  maps_.push_back(std::make_unique<PinnedMap>(PinnedMap{.map = std::move(map)}));
  pinned_ = maps_.back().get();
}

bool RingQueue::old_maps_drained() const {
  return std::ranges::all_of(maps_, [this](const std::unique_ptr<PinnedMap>& each) {
    return each->pins == 0 || each->map->survives_in(*awaited_map_);
  });
}

void RingQueue::set_memory(std::shared_ptr<const RegionMap> map, Done<> done) {
  if (state_ == State::stopped && in_flight_ == 0) {
    maps_.clear();
    pinned_ = nullptr;
    done({});
    return;
  }
  if (ring_) {
    auto layout = RingLayout::resolve(*map, addresses_, ring_->layout().size, ring_->packed());
    if (layout) {
      ring_->move_to(*layout);
    } else {
      // The ring's own memory is gone (conformance row 47). What is in flight can't be published any more.
      break_for("its own memory isn't in the new memory table");
      lost_base_ = ring_->base();
      ring_.reset();
    }
  }
  use_map(map);
  awaited_map_ = std::move(map);
  memory_done_ = std::move(done);
  context_->loop.set_timer(*this, context_->now + around_.stop_deadline);
  after_completion();
}

// ---------------------------------------------------------------- the data path

PopStatus RingQueue::next_replayed(Chain& chain) noexcept {
  const InflightQueue::Pending pending = std::move(replay_.back());
  replay_.pop_back();
  const PopStatus status = ring_->packed() ? ring_->restore_packed(pending.descriptors, *pinned_->map, chain)
                                           : ring_->reread_split(pending.head, *pinned_->map, chain);
  if (status == PopStatus::chain || status == PopStatus::chain_fault) {
    inflight_.repopped(chain.id());
  }
  return status;
}

void RingQueue::publish() noexcept {
  if (RW_UNLIKELY(!ring_.has_value())) {
    return;
  }
  check_memory();
  if (ring_->has_unpublished()) {
    inflight_.publishing(ring_->unpublished(), ring_->used_index());
    ring_->publish();
    inflight_.published(ring_->used_index());
    ring_counters_.batches.add();
    context_->stages.published(owner());
  }
  if (RW_UNLIKELY(log_ != nullptr && log_used_ring_)) {
    for (const WrittenRange::Piece& piece : ring_->take_written().pieces) {
      log_ring_piece(piece);
    }
  }
  if (ring_->should_call() || owe_call_) {
    owe_call_ = false;
    signal_call();
  } else if (ring_->must_settle()) {
    context_->note_unsettled(*this);
  }
}

void RingQueue::settle() noexcept {
  if (RW_UNLIKELY(!ring_.has_value() || !ring_->must_settle())) {
    return;
  }
  if (RW_UNLIKELY(ring_->settle_call())) {
    signal_call();
  } else {
    ring_counters_.calls_suppressed.add();
  }
}

// log_guest_address names the used ring of a split ring; a packed one is written where its descriptors are.
void RingQueue::log_ring_piece(const WrittenRange::Piece& piece) noexcept {
  if (piece.bytes == 0) {
    return;
  }
  if (ring_->packed()) {
    log_->mark(*pinned_->map, piece.first, piece.bytes);
    return;
  }
  const auto offset = static_cast<std::uint64_t>(piece.first - ring_->layout().device_area);
  log_->mark(GuestAddress{log_guest_address_.value + offset}, piece.bytes);
}

void RingQueue::signal_call() noexcept {
  if (RW_UNLIKELY(inband_call_)) {
    (around_.send_inband_call(around_.index) ? ring_counters_.calls : ring_counters_.calls_coalesced).add();
    context_->stages.called(owner());
    return;
  }
  switch (call_.signal(context_->stuck_write)) {
    case EventFd::Sent::sent:
      ring_counters_.calls.add();
      context_->stages.called(owner());
      break;
    case EventFd::Sent::already_signalled:
    case EventFd::Sent::broken:
      ring_counters_.calls_dropped.add();
      break;
    case EventFd::Sent::held:
      ring_counters_.calls_dropped.add();
      around_.on_held_write(around_.index);
      break;
    case EventFd::Sent::none:  // the driver polls
      break;
  }
}

void RingQueue::find_lost_memory() noexcept {
  sigbus_epoch_ = sigbus::epoch();
  // A dirty log that vanished would let a migration miss pages; the queue stops as well.
  const bool lost = std::ranges::any_of(maps_, [](const auto& each) { return each->map->poisoned(); }) ||
                    (log_ != nullptr && log_->poisoned());
  if (!broken_ && lost && state_ != State::stopped) {
    ring_counters_.memory_lost.add();
    break_for("guest memory was truncated by its owner");
  }
}

namespace {

const char* explain(RingFault fault) noexcept {
  switch (fault) {
    case RingFault::avail_jump:
      return "its driver made more available than the ring has descriptors";
    case RingFault::bad_head:
      return "its driver gave the number of a descriptor that the ring doesn't have";
    case RingFault::loop:
      return "its driver made a chain that is longer than the ring";
    case RingFault::none:
    case RingFault::unmapped:
      break;
  }
  return "its memory is gone";
}

}  // namespace

void RingQueue::break_ring() noexcept {
  break_for(explain(ring_->ring_fault()));
}

void RingQueue::break_for(const char* why) noexcept {
  if (broken_) {
    return;
  }
  broken_ = true;
  ring_counters_.ring_faults.add();
  note_state();
  around_.on_broken(around_.index, why);
  if (inband_call_ && !error_.present()) {
    around_.send_inband_error(around_.index);
  } else if (error_.signal(context_->stuck_write) == EventFd::Sent::held) {
    around_.on_held_write(around_.index);
  }
}

// ---------------------------------------------------------------- waking

void RingQueue::on_ready(std::uint32_t) noexcept {
  kick();
}

void RingQueue::kick() {
  ring_counters_.kicks.add();
  if (can_pop()) {
    kicked_ = StageClock::now();
    context_->activate(*this);
    suppress();
  }
}

bool RingQueue::arm_for(ChainCount beyond) noexcept {
  return can_pop() && (ring_->arm_kicks(beyond) || !replay_.empty());
}

void RingQueue::suppress() noexcept {
  if (can_pop()) {
    ring_->suppress_kicks();
  }
}

bool RingQueue::look() noexcept {
  check_memory();
  if (watches_in_flight_) {
    look_at_in_flight();
  }
  if (!can_pop() || is_active || is_starved || !awaits_kick() || !ring_->has_work()) {
    unserved_since_ = kServed;
    return false;
  }
  // Two looks at a busy queue can both find it between a chain and its kick. What was served meanwhile tells.
  const std::uint64_t progress = ring_counters_.kicks.get() + ring_counters_.batches.get();
  if (unserved_since_ != progress) {
    unserved_since_ = progress;
    return false;
  }
  unserved_since_ = kServed;
  ring_counters_.lost_kicks.add();
  return true;
}

// What began since the last look is told apart by being pinned to a map of its own, so a request costs nothing for being
// watched.
void RingQueue::look_at_in_flight() noexcept {
  Duration oldest;
  for (const std::unique_ptr<PinnedMap>& each : maps_) {
    if (each.get() != pinned_ && each->pins != 0) {
      oldest = std::max(oldest, context_->now - each->closed);
    }
  }
  if (oldest == Duration{} && pinned_ != nullptr && pinned_->pins != 0) {
    pin_anew();
  }
  shown_in_flight_.store(in_flight_, std::memory_order_relaxed);
  shown_oldest_ns_.store(oldest.ns, std::memory_order_relaxed);
  if ((oldest >= limits::kStall) != stall_told_) {
    stall_told_ = !stall_told_;
    around_.on_stall(around_.index, in_flight_, stall_told_ ? oldest : Duration{});
  }
}

// What begins from now on is pinned to the same map, under another count.
void RingQueue::pin_anew() {
  const auto drained =
      std::ranges::find_if(maps_, [this](const auto& each) { return each.get() != pinned_ && each->pins == 0; });
  if (drained == maps_.end()) {
    maps_.push_back(std::make_unique<PinnedMap>());
  } else {
    std::rotate(drained, drained + 1, maps_.end());
  }
  *maps_.back() = {.map = pinned_->map};
  pinned_->closed = context_->now;
  pinned_ = maps_.back().get();
}

RingStats RingQueue::ring_stats() const {
  const RingCounters& from = ring_counters_;
  return {.in_flight = shown_in_flight_.load(std::memory_order_relaxed),
          .oldest_in_flight = {shown_oldest_ns_.load(std::memory_order_relaxed)},
          .running = running(),
          .enabled = enabled(),
          .broken = broken(),
          .kicks = from.kicks.get(),
          .calls = from.calls.get(),
          .calls_coalesced = from.calls_coalesced.get(),
          .calls_suppressed = from.calls_suppressed.get(),
          .calls_dropped = from.calls_dropped.get(),
          .ring_faults = from.ring_faults.get(),
          .lost_kicks = from.lost_kicks.get(),
          .batches = from.batches.get(),
          .memory_lost = from.memory_lost.get()};
}

// After each change of what it reads.
void RingQueue::note_state() noexcept {
  was_enabled_ = state_ != State::stopped && (was_enabled_ || enabled_);
  can_pop_ = state_ == State::running && !broken_ && (enabled_ || (served_when_disabled_ && was_enabled_));
  shown_running_.store(state_ == State::running, std::memory_order_relaxed);
  shown_enabled_.store(enabled_, std::memory_order_relaxed);
  shown_broken_.store(broken_, std::memory_order_relaxed);
  on_state();
}

}  // namespace ringway
