// What a queue sees of the worker that owns it: the turn's time, the loop, scratch memory, the pool of request slots, and
// the lists by which queues and their worker find each other. A worker owns one; only its thread touches it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/time.hpp"
#include "device/blk_slot.hpp"
#include "device/net_scratch.hpp"
#include "loop/executor.hpp"
#include "loop/loop.hpp"
#include "notify/event_fd.hpp"
#include "policy/poll_source.hpp"
#include "ring/chain.hpp"
#include "trace/stage_recorder.hpp"

namespace ringway {

struct WorkerContext;

// A virtqueue in the hands of a worker, which calls in this order in one turn: pump() of each active queue, settle() of each
// queue that published since the last settle(), publish() of each queue with finished requests; and then, if it is about to
// sleep, settle() of those, and arm() of each active queue. turn_ended() comes last, of a turn that did something. Between
// two turns, from the loop: look(), and what the queue itself watches (its kicks, completions of its store).
class Queue {
 public:
  enum class Pumped : std::uint8_t {
    nothing,   // the ring was empty
    some,      // took requests until the ring was empty
    budget,    // took as many as it may in one turn; there may be more
    starved,   // stopped for want of a slot; active again when its device may have one
    inactive,  // not to be pumped any more (stopping, disabled, broken)
  };
  virtual Pumped pump(WorkerContext& context) noexcept = 0;
  // Publishes finished requests and notifies the driver if it has asked for that already. A queue that stops does it itself.
  virtual void publish() noexcept = 0;
  // A full fence after that publish(): notifies the driver if it asked at the same moment. As with publish().
  virtual void settle() noexcept = 0;
  // Asks for kicks and looks again: true if there is work already. Then the worker calls suppress(), and the queue stays
  // active; else it is idle from here on.
  [[nodiscard]] virtual bool arm() noexcept = 0;
  // Takes kicks back while the queue is polled. Called by the worker behind arm(), and by an idle queue that was kicked.
  virtual void suppress() noexcept = 0;
  // The safety look of about once a second, on queues that are armed and idle. True if a kick was lost: the queue has been
  // unserved for two looks (after one the kick may still be on its way).
  [[nodiscard]] virtual bool look() noexcept = 0;

  // At the end of a turn in which note_timed() was called for it, unless it was forgotten since.
  virtual void turn_ended(Duration /*length*/) noexcept {}

  // Whether requests are under way that end by themselves.
  [[nodiscard]] virtual bool has_in_flight() const noexcept = 0;
  // The driver gave no kick descriptor and asks to be polled instead. Asked of the queues in WorkerContext::polled.
  [[nodiscard]] virtual bool wants_polling() const noexcept = 0;

  // --- for WorkerContext ---
  bool is_active = false;     // in `active`
  bool has_finished = false;  // in `finished`
  bool is_unsettled = false;  // in `unsettled`
  bool is_starved = false;    // waits in its device's share
  bool is_polled = false;     // in `polled`
  bool is_timed = false;      // in `timed`
  bool is_source = false;     // in `sources`
  // Not 0: it has waited for slots, and this many have been set aside for its next pump(), which takes no more and leaves 0.
  std::uint32_t allowance = 0;
  PollSource source;  // what poll policies remember of it

 protected:
  ~Queue() = default;
};

struct WorkerContext {
  WorkerContext(std::uint32_t worker_index, Loop& worker_loop, Executor& mailbox)
      : index(worker_index), loop(worker_loop), executor(mailbox), stages(worker_index) {}

  const std::uint32_t index;  // of the worker, from 0
  Loop& loop;
  Executor& executor;  // this worker's mailbox
  Instant now;         // the turn's one clock read
  Chain chain;         // scratch: the chain being parsed
  BlkSlotPool slots;
  std::unique_ptr<NetScratch> net;  // from the first network card on
  StuckWriteGuard stuck_write;
  StageRecorder stages;  // owners are Queues

  // A queue may be forgotten while one of these is walked: forget() leaves a null in its place, which the walk skips and
  // drops. `active` may grow meanwhile, too.
  std::vector<Queue*> active;     // pumped every turn
  std::vector<Queue*> finished;   // with used elements to publish
  std::vector<Queue*> unsettled;  // published since the last settle_published(); their drivers may have asked for a call
  std::vector<Queue*> timed;      // with requests that have begun and ended in this turn, so that only its end tells how
                                  // long they took
  // And from these, which nothing walks that could forget one, it is taken out.
  std::vector<Queue*> running;  // every started ring, for the safety look
  std::vector<Queue*> polled;   // those that were given no kick descriptor: few, as each sleep asks all of them
  // Queues whose work poll policies count on, and their sources in the same order. Those that turns don't pump are asleep
  // beside a worker that is awake, or have only completions to come.
  std::vector<Queue*> source_queues;
  std::vector<PollSource*> sources;
  bool keeps_sources = false;          // those two lists, for a policy that goes by them; by set_keeps_sources()
  Duration late = {};                  // how long ago what this turn finds may have come: not 0 in the turn after a sleep
  std::vector<BlkSlotShare*> starved;  // of devices with queues that wait for a slot

  // Makes a queue part of the turns. Idempotent.
  void activate(Queue& queue) { enter(active, queue, queue.is_active); }
  void note_finished(Queue& queue) { enter(finished, queue, queue.has_finished); }
  // The queue waits for a slot, behind those of its device that do so already; before them (`first`) if it was its turn and
  // it found none.
  void note_starved(Queue& queue, BlkSlotShare& share, bool first = false) {
    if (queue.is_starved) {
      return;
    }
    queue.is_starved = true;
    if (share.waiting.empty()) {
      starved.push_back(&share);
    }
    share.waiting.insert(first ? share.waiting.begin() : share.waiting.end(), &queue);
  }
  // The queue has used its allowance, and goes behind the others.
  void wait_again(Queue& queue, BlkSlotShare& share) {
    note_starved(queue, share);
    if (slots.has_room(share)) {
      slots.note_replenished();
    }
  }
  // Activates the queues of each device that may have slots again. Between two turns; costs a branch unless slots came back
  // that somebody may have waited for.
  //
  // What has come back is divided evenly among the waiting; if there are more of them than slots, the first ones get one
  // each. They are pumped before all others, and the others of their device then queue up behind those that still wait: who
  // has just given slots back must not take them again before the rest had some.
  void wake_starved() {
    if (RW_UNLIKELY(slots.take_replenished()) && !starved.empty()) {
      wake_who_has_room();
    }
  }
  // True if the next wake_starved() may find somebody to activate.
  [[nodiscard]] bool may_wake_starved() const { return slots.replenished() && !starved.empty(); }
  // One turn's pumping: each active queue once. True if any of them had work.
  [[nodiscard]] bool pump_active() noexcept;
  // And publishing: each queue that finished requests.
  void publish_finished() noexcept;
  void note_timed(Queue& queue) { enter(timed, queue, queue.is_timed); }
  // The turn took so long.
  void end_turn(Duration length) noexcept {
    for (Queue* queue : timed) {
      if (queue != nullptr) {
        queue->is_timed = false;
        queue->turn_ended(length);
      }
    }
    timed.clear();
  }
  // For poll policies: an empty look at the queue, or work that it has after that. Nothing if it is so already.
  void note_idle(Queue& queue) noexcept {
    if (RW_UNLIKELY(keeps_sources && !queue.source.is_waiting())) {
      queue.source.idle(now, queue.has_in_flight());
      enter_source(queue);
    }
  }
  void note_found(Queue& queue) noexcept {
    if (RW_UNLIKELY(keeps_sources && queue.source.is_waiting())) {
      queue.source.found(now + Duration{-late.ns});
      enter_source(queue);
    }
  }
  // After a decision of the policy for a turn without work: what it doesn't count on leaves the sources, and rings that
  // aren't worth a look are armed and leave the turns.
  void settle_sources() noexcept;
  void set_keeps_sources(bool keeps) noexcept;
  // After a sleep that ended since work is due: its rings are looked at again.
  void activate_sources() noexcept;
  void note_polled(Queue& queue) { enter(polled, queue, queue.is_polled); }
  void note_unsettled(Queue& queue) { enter(unsettled, queue, queue.is_unsettled); }
  // One fence for all queues, and after a pump rather than at once: by then the publishing store has long left the CPU, and
  // the fence waits for nothing. Before each publish_finished(), and before a sleep.
  void settle_published() noexcept {
    if (RW_LIKELY(!unsettled.empty())) {
      settle_each();
    }
  }
  // Forgets a queue that has been stopped. What it had for turn_ended() is lost with its place there; it forgets that itself
  // before it begins again.
  void forget(Queue& queue);

 private:
  // Puts the queue on a list, unless it is there, as its flag tells.
  static void enter(std::vector<Queue*>& list, Queue& queue, bool& is_there) {
    if (!is_there) {
      is_there = true;
      list.push_back(&queue);
    }
  }
  void enter_source(Queue& queue) {
    if (!queue.is_source) {
      queue.is_source = true;
      source_queues.push_back(&queue);
      sources.push_back(&queue.source);
    }
  }
  void wake_who_has_room();
  void settle_each() noexcept;

  std::vector<Queue*> woken_;  // scratch
};

// What the control side needs of a worker.
struct WorkerPort {
  std::uint32_t index = 0;
  WorkerContext* context = nullptr;  // touch only from messages posted to `executor`
  Executor* executor = nullptr;
};

}  // namespace ringway
