#include "worker/worker_pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <optional>
#include <thread>

#include "base/check.hpp"
#include "base/fence.hpp"
#include "loop/clock.hpp"
#include "loop/mailbox.hpp"
#include "metrics/counter.hpp"

namespace ringway {

namespace {

// A queue without a kick descriptor asks to be polled; its worker sleeps no longer than this between two looks.
constexpr Duration kPollingPause = Duration::microseconds(100);

// Interrupts a worker's system call. Ignored by default and used for nothing else here.
constexpr int kInterruptSignal = SIGURG;

// A turn that finds nothing takes less time than a clock read, which would double the time until the next look. So while
// spinning the clock is read once in so many turns; time is then late by less than a microsecond.
constexpr std::uint32_t kIdleTurnsPerClockRead = 8;

[[nodiscard]] Result<> pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < 0 || cpu >= CPU_SETSIZE) {
    return fail("CPU " + std::to_string(cpu) + " doesn't exist");
  }
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (const int code = pthread_setaffinity_np(pthread_self(), sizeof set, &set); code != 0) {
    return fail_errno(code, "a worker can't run on CPU " + std::to_string(cpu) +
                                "; choose from the CPUs that this process is allowed (taskset -p)");
  }
  return {};
}

}  // namespace

// One thread. Its turn is the design's: mail, completions and kicks, pump, publish, then spin or sleep.
class WorkerPool::Worker final : private TimerHandler {
 public:
  Worker(std::uint32_t index, LoopEngine engine, PollPolicy policy, std::optional<int> cpu)
      : index_(index), engine_(engine), policy_(policy), cpu_(cpu) {}

  // Starts the thread and waits until its loop stands.
  [[nodiscard]] Result<> start() {
    std::promise<Result<>> started;
    std::future<Result<>> outcome = started.get_future();
    thread_ = std::thread([this, started = std::move(started)]() mutable { main(std::move(started)); });
    thread_handle_ = thread_.native_handle();
    Result<> result = outcome.get();
    if (!result) {
      thread_.join();
    }
    return result;
  }
  void end() {
    if (thread_.joinable()) {
      mailbox_->post([this] { ending_ = true; });
      thread_.join();
    }
  }

  [[nodiscard]] WorkerPort port() { return {.index = index_, .context = &*context_, .executor = &*mailbox_}; }
  [[nodiscard]] bool has_uring() const { return has_uring_; }
  [[nodiscard]] WorkerStats stats() const;
  void free_stuck_write();

 private:
  void main(std::promise<Result<>> started);
  void turn() noexcept;
  void end_productive_turn(Duration length) noexcept {
    productive_turns_.add();
    productive_ns_.add(static_cast<std::uint64_t>(length.ns));
    context_->end_turn(length);
  }
  [[nodiscard]] bool arm_active() noexcept;
  void sleep() noexcept;
  void on_timer(Instant now) noexcept override;  // the safety look

  const std::uint32_t index_;
  const LoopEngine engine_;
  PollPolicy policy_;
  const std::optional<int> cpu_;
  std::thread thread_;
  pthread_t thread_handle_{};

  // Made and used on the thread.
  std::unique_ptr<Loop> loop_;
  std::optional<Mailbox> mailbox_;
  std::optional<WorkerContext> context_;
  bool has_uring_ = false;
  bool ending_ = false;
  std::uint32_t events_ = 0;      // handled by the loop since the last turn
  std::uint32_t idle_turns_ = 0;  // one after the other
  Instant last_work_;
  std::size_t safety_next_ = 0;  // position in context_->running of the next safety look
  bool safety_set_ = false;

  Counter turns_, productive_turns_, productive_ns_;
};

void WorkerPool::Worker::main(std::promise<Result<>> started) {
  pthread_setname_np(pthread_self(), ("ringway-w" + std::to_string(index_)).c_str());
  if (cpu_) {
    if (auto pinned = pin_to(*cpu_); !pinned) {
      started.set_value(std::move(pinned));
      return;
    }
  }
  auto loop = make_loop(engine_);
  if (!loop) {
    started.set_value(std::unexpected(std::move(loop).error()));
    return;
  }
  loop_ = std::move(*loop);
  mailbox_.emplace(*loop_);
  context_.emplace(index_, *loop_, *mailbox_);
  has_uring_ = loop_->uring() != nullptr;
  context_->now = clock_now();
  started.set_value({});
  while (!ending_) {
    turn();
  }
  RW_CHECK(context_->running.empty());
  // The loop belongs to this thread, its end included; the mailbox stays for late senders, who find it closed.
  mailbox_->close();
  context_.reset();
  loop_.reset();
}

void WorkerPool::Worker::turn() noexcept {
  WorkerContext& context = *context_;
  const bool mail = mailbox_->drain() != 0;
  if (ending_) {
    return;
  }
  if (!safety_set_ && !context.running.empty()) {
    safety_set_ = true;
    loop_->set_timer(*this, context.now + limits::kSafetyStep);
  }
  context.wake_starved();
  const bool pumped = context.pump_active();
  context.settle_published();
  context.stages.settle();
  context.publish_finished();
  const bool worked = pumped || mail || events_ != 0;
  turns_.add();
  if (worked) {
    last_work_ = context.now;
  }
  const auto active = static_cast<std::uint32_t>(context.active.size());
  const PollDecision decision =
      policy_.decide({.worked = worked, .last_work = last_work_, .active_sources = active}, context.now);
  const Instant began = context.now;
  const bool stay_awake = decision.action == PollAction::spin || context.may_wake_starved();
  if (!stay_awake) {
    context.settle_published();
  }
  if (stay_awake || !arm_active()) {
    if (worked) {
      context.now = clock_now();
      idle_turns_ = 0;
      end_productive_turn(context.now - began);
    } else {
      spin_pause();
      if (++idle_turns_ % kIdleTurnsPerClockRead == 0) {
        context.now = clock_now();
      }
    }
    if (context.stages.has_prepared()) {
      context.stages.submitted();
    }
    events_ = loop_->poll(context.now);
    return;
  }
  if (context.stages.has_prepared()) {
    context.stages.submitted();
  }
  if (worked) {
    context.now = clock_now();  // which the sleep leaves as it is if something has come already
    end_productive_turn(context.now - began);
  }
  sleep();
}

// Before sleeping: asks every active queue's driver for kicks and looks again. The idle ones leave the list. False if there
// is work after all.
bool WorkerPool::Worker::arm_active() noexcept {
  WorkerContext& context = *context_;
  std::size_t kept = 0;
  for (Queue* queue : context.active) {
    if (queue == nullptr) {
      continue;
    }
    if (queue->arm()) {
      queue->suppress();
      context.active[kept++] = queue;
    } else {
      queue->is_active = false;
    }
  }
  context.active.resize(kept);
  return kept == 0;
}

void WorkerPool::Worker::sleep() noexcept {
  WorkerContext& context = *context_;
  Instant deadline = Instant::never();
  const bool must_look = std::ranges::any_of(context.polled, [](const Queue* queue) { return queue->wants_polling(); });
  if (must_look) {
    deadline = context.now + kPollingPause;
  }
  if (mailbox_->prepare_to_sleep()) {
    events_ = loop_->wait(context.now, deadline, &context.now);
  } else {
    events_ = loop_->poll(context.now);
  }
  mailbox_->awake();
  if (must_look) {
    for (Queue* queue : context.polled) {
      if (queue->wants_polling()) {
        context.activate(*queue);
      }
    }
  }
}

// Looks at an eighth of the running rings, so that each is seen about once a second.
void WorkerPool::Worker::on_timer(Instant now) noexcept {
  WorkerContext& context = *context_;
  const std::size_t rings = context.running.size();
  if (rings == 0) {
    safety_set_ = false;
    return;
  }
  constexpr std::size_t kSteps = static_cast<std::size_t>(limits::kSafetyPeriod.ns / limits::kSafetyStep.ns);
  for (std::size_t looked = 0; looked < (rings + kSteps - 1) / kSteps; ++looked) {
    safety_next_ = safety_next_ + 1 < rings ? safety_next_ + 1 : 0;
    Queue* queue = context.running[safety_next_];
    if (queue->look()) {
      context.activate(*queue);
    }
  }
  loop_->set_timer(*this, now + limits::kSafetyStep);
}

WorkerStats WorkerPool::Worker::stats() const {
  WorkerStats stats{.index = index_,
                    .turns = turns_.get(),
                    .productive_turns = productive_turns_.get(),
                    .productive_ns = productive_ns_.get(),
                    .sleeps = loop_->sleeps(),
                    .system_calls = loop_->system_calls(),
                    .cpu_ns = static_cast<std::uint64_t>(thread_cpu_time(thread_handle_).ns),
                    .engine = has_uring_ ? "io_uring" : "epoll"};
  return stats;
}

// Without regard to how long it has been there: a peer who lets each write go before the next look, and holds the next one,
// would otherwise have all of the worker's time.
void WorkerPool::Worker::free_stuck_write() {
  if (context_->stuck_write.writing.load(std::memory_order_relaxed)) {
    static_cast<void>(pthread_kill(thread_handle_, kInterruptSignal));
  }
}

// ---------------------------------------------------------------- the pool

Result<std::unique_ptr<WorkerPool>> WorkerPool::create(const WorkerPoolOptions& options) {
  if (options.workers == 0 || options.workers > limits::kWorkersMax) {
    return fail("workers=" + std::to_string(options.workers) + " must be between 1 and " +
                std::to_string(limits::kWorkersMax));
  }
  RW_TRY_ASSIGN(const PollPolicy policy, parse_poll_policy(options.poll));
  const LoopChoice choice = probe_loop_engine(options.engine);
  // Not SA_RESTART: the signal's only purpose is that a write ends with EINTR.
  struct sigaction interrupt{};
  interrupt.sa_handler = [](int) {};
  static_cast<void>(sigaction(kInterruptSignal, &interrupt, nullptr));
  auto pool = std::unique_ptr<WorkerPool>(new WorkerPool);
  pool->engine_reason_ = choice.reason;
  for (std::uint32_t i = 0; i < options.workers; ++i) {
    std::optional<int> cpu;
    if (!options.cpus.empty()) {
      cpu = options.cpus[i % options.cpus.size()];
    }
    auto worker = std::make_unique<Worker>(i, choice.engine, policy, cpu);
    RW_TRY(worker->start());
    pool->workers_.push_back(std::move(worker));
    pool->ports_.push_back(pool->workers_.back()->port());
  }
  return pool;
}

WorkerPool::~WorkerPool() {
  for (auto& worker : workers_) {
    worker->end();
  }
}

bool WorkerPool::has_uring() const {
  return !workers_.empty() && workers_.front()->has_uring();
}

void WorkerPool::free_stuck_writes() {
  for (const auto& worker : workers_) {
    worker->free_stuck_write();
  }
}

std::vector<WorkerStats> WorkerPool::stats() const {
  std::vector<WorkerStats> all;
  all.reserve(workers_.size());
  for (const auto& worker : workers_) {
    all.push_back(worker->stats());
  }
  return all;
}

}  // namespace ringway
