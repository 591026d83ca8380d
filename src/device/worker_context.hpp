// What a queue sees of the worker that owns it: the turn's time, the loop, scratch memory, the pool of request slots, and
// the lists by which queues and their worker find each other. A worker owns one; only its thread touches it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/time.hpp"
#include "device/blk_slot.hpp"
#include "loop/executor.hpp"
#include "loop/loop.hpp"
#include "notify/event_fd.hpp"
#include "ring/chain.hpp"

namespace ringway {

struct WorkerContext;

// A virtqueue in the hands of a worker. The worker calls in this order in one turn: pump() of each active queue, then
// publish() of each queue with finished requests.
class Queue {
 public:
  enum class Pumped : std::uint8_t {
    nothing,   // the ring was empty
    some,      // took requests until the ring was empty
    budget,    // took as many as it may in one turn; there may be more
    starved,   // stopped for want of a slot or by a full store; whoever gives one back activates the queue again
    inactive,  // not to be pumped any more (stopping, disabled, broken)
  };
  virtual Pumped pump(WorkerContext& context) noexcept = 0;
  // Publishes finished requests and notifies the driver once if it asked for that.
  virtual void publish() noexcept = 0;
  // Asks for kicks and looks again: true if there is work already (the queue stays active).
  [[nodiscard]] virtual bool arm() noexcept = 0;
  // Takes kicks back while the queue is polled. Called when an idle queue becomes active.
  virtual void suppress() noexcept = 0;
  // The safety look of about once a second (hard-points 9), on queues that are armed and idle. True if a kick was lost: the
  // queue has been unserved for two looks.
  [[nodiscard]] virtual bool look() noexcept = 0;

  // The driver gave no kick descriptor and asks to be polled instead.
  [[nodiscard]] virtual bool wants_polling() const noexcept = 0;

  // --- for WorkerContext ---
  bool is_active = false;     // in `active`
  bool has_finished = false;  // in `finished`
  bool is_starved = false;    // in `starved`

 protected:
  ~Queue() = default;
};

struct WorkerContext {
  WorkerContext(std::uint32_t worker_index, Loop& worker_loop, Executor& mailbox)
      : index(worker_index), loop(worker_loop), executor(mailbox) {}

  const std::uint32_t index;  // of the worker, from 0
  Loop& loop;
  Executor& executor;  // this worker's mailbox
  Instant now;         // the turn's one clock read
  Chain chain;         // scratch: the chain being parsed
  BlkSlotPool slots;
  StuckWriteGuard stuck_write;

  // The worker walks these by index; forget() leaves a null behind in the first three, which the walk skips and drops.
  std::vector<Queue*> active;    // pumped every turn
  std::vector<Queue*> finished;  // with used elements to publish
  std::vector<Queue*> starved;   // waiting for a slot
  std::vector<Queue*> running;   // every started ring, for the safety look

  // Makes a queue part of the turns. Idempotent.
  void activate(Queue& queue) {
    if (!queue.is_active) {
      queue.is_active = true;
      active.push_back(&queue);
    }
  }
  void note_finished(Queue& queue) {
    if (!queue.has_finished) {
      queue.has_finished = true;
      finished.push_back(&queue);
    }
  }
  void note_starved(Queue& queue) {
    if (!queue.is_starved) {
      queue.is_starved = true;
      starved.push_back(&queue);
    }
  }
  // Forgets a queue that has been stopped.
  void forget(Queue& queue);
};

// What the control side needs of a worker.
struct WorkerPort {
  std::uint32_t index = 0;
  WorkerContext* context = nullptr;  // touch only from messages posted to `executor`
  Executor* executor = nullptr;
};

}  // namespace ringway
