#include "worker/worker_pool.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <optional>
#include <thread>

#include "base/check.hpp"
#include "base/fence.hpp"
#include "base/run_on_cpu.hpp"
#include "loop/clock.hpp"
#include "loop/mailbox.hpp"
#include "metrics/counter.hpp"
#include "worker/cpu_pressure.hpp"

namespace ringway {

namespace {

// A queue without a kick descriptor asks to be polled; its worker sleeps no longer than this between two looks.
constexpr Duration kPollingPause = Duration::microseconds(100);

// Interrupts a worker's system call. Ignored by default and used for nothing else here.
constexpr int kInterruptSignal = SIGURG;

// A turn that finds nothing takes less time than a clock read, which would double the time until the next look. So while
// spinning the clock is read once in so many turns; time is then late by less than a microsecond.
constexpr std::uint32_t kIdleTurnsPerClockRead = 8;

// How often a worker that is awake looks whether others want its CPU, and what it tells of its spinning.
constexpr Duration kPressurePeriod = Duration::milliseconds(4);

constexpr Duration kWorkedPeriod = Duration::microseconds(50);

// What a wake-up is taken to cost by how late timed ones are, at least; those later than CpuPressure::kWakeupMax were held
// up by others.
constexpr Duration kLatenessMin = Duration::microseconds(1);

// What all workers together may spin in vain, in thousandths of a CPU.
constexpr std::uint32_t kProcessBudgetPermille = 500;
constexpr std::uint32_t kProcessBudgetLeastPermille = 10;  // of one worker

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
  void set_process_budget(std::uint32_t permille) noexcept {
    process_budget_permille_.store(permille, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t spun_in_vain_ns() const noexcept { return spun_in_vain_ns_.get(); }
  void set_poll(const PollPolicy& policy) {
    mailbox_->post([this, policy] {
      tell_outcome();
      policy_ = policy;
      told_ = {};  // the new one counts from 0
      decision_ = {};
      context_->set_keeps_sources(policy_.goes_by_sources());
    });
  }

 private:
  void main(std::promise<Result<>> started);
  void turn() noexcept;
  void end_productive_turn(Duration length) noexcept {
    productive_turns_.add();
    productive_ns_.add(static_cast<std::uint64_t>(length.ns));
    context_->end_turn(length);
  }
  [[nodiscard]] bool arm_active() noexcept;
  // The policy's decision for this turn. It isn't asked again before the time that it said.
  void decide(bool worked) noexcept;
  void look_for_pressure() noexcept;
  void tell_outcome() noexcept;
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
  PollDecision decision_;
  Instant worked_until_;
  PollCosts costs_;
  RobustMean lateness_;  // of wake-ups at a time that was asked for
  UniqueFd schedule_stats_;
  Instant pressure_next_;
  CpuPressure pressure_;
  std::uint32_t pressure_permille_ = 0;
  std::atomic<std::uint32_t> process_budget_permille_{kProcessBudgetPermille};
  PollOutcome told_;
  std::size_t safety_next_ = 0;  // position in context_->running of the next safety look
  bool safety_set_ = false;

  Counter turns_, productive_turns_, productive_ns_;
  Counter spun_productively_ns_, spun_in_vain_ns_, wakeups_avoided_, poll_sleeps_, poll_misses_;
  std::atomic<std::uint32_t> shown_pressure_permille_{0};
};

void WorkerPool::Worker::main(std::promise<Result<>> started) {
  pthread_setname_np(pthread_self(), ("ringway-w" + std::to_string(index_)).c_str());
  // A sleep until a time ends at that time, and not up to 50 us later together with others.
  static_cast<void>(prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL));
  const std::string stats = "/proc/self/task/" + std::to_string(syscall(SYS_gettid)) + "/schedstat";
  schedule_stats_.reset(open(stats.c_str(), O_RDONLY | O_CLOEXEC));  // without it, no pressure is seen
  if (cpu_) {
    if (auto pinned = run_on_cpu(*cpu_); !pinned) {
      pinned.error().message = "a worker: " + pinned.error().message;
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
  context_->set_keeps_sources(policy_.goes_by_sources());
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
  context.late = {};
  decide(worked);
  const Instant began = context.now;
  const bool stay_awake = decision_.action == PollAction::spin || context.may_wake_starved();
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

void WorkerPool::Worker::decide(bool worked) noexcept {
  WorkerContext& context = *context_;
  // Turns with work that follow each other, with no decision on an empty one in between, are news now and then only.
  if (worked && decision_.reason == PollReason::worked && decision_.action == PollAction::spin &&
      context.now < worked_until_) {
    return;
  }
  // A turn that finds nothing reads no clock as a rule, so nothing has changed for the policy.
  if (!worked && decision_.action == PollAction::spin &&
      (context.now < std::min(decision_.until, pressure_next_) ||
       idle_turns_ % kIdleTurnsPerClockRead != kIdleTurnsPerClockRead - 1)) {
    return;
  }
  if (RW_UNLIKELY(context.now >= pressure_next_)) {
    look_for_pressure();
  }
  decision_ = policy_.decide({.worked = worked,
                              .last_work = last_work_,
                              .active_sources = static_cast<std::uint32_t>(context.active.size()),
                              .active = context.sources,
                              .pressure_permille = pressure_permille_,
                              .process_budget_permille = process_budget_permille_.load(std::memory_order_relaxed),
                              .costs = costs_},
                             context.now);
  if (worked) {
    worked_until_ = context.now + kWorkedPeriod;
  } else {
    context.settle_sources();
  }
}

// How long this thread was ready to run and something else ran on its CPU.
void WorkerPool::Worker::look_for_pressure() noexcept {
  const Instant now = context_->now;
  pressure_next_ = now + kPressurePeriod;
  tell_outcome();
  char text[96];
  const ssize_t bytes = schedule_stats_ ? pread(schedule_stats_.get(), text, sizeof text - 1, 0) : -1;
  if (bytes <= 0) {
    return;
  }
  text[bytes] = '\0';
  char* end = nullptr;
  static_cast<void>(std::strtoull(text, &end, 10));  // the time that it ran
  const std::uint64_t run_delay_ns = std::strtoull(end, nullptr, 10);
  pressure_permille_ = pressure_.update(now, run_delay_ns, loop_->sleeps());
  shown_pressure_permille_.store(pressure_permille_, std::memory_order_relaxed);
}

// For other threads. The policy's own figures are plain.
void WorkerPool::Worker::tell_outcome() noexcept {
  const PollOutcome outcome = policy_.outcome();
  spun_productively_ns_.add(outcome.productive_spin_ns - told_.productive_spin_ns);
  spun_in_vain_ns_.add(outcome.unproductive_spin_ns - told_.unproductive_spin_ns);
  wakeups_avoided_.add(outcome.wakeups_avoided - told_.wakeups_avoided);
  poll_sleeps_.add(outcome.sleeps - told_.sleeps);
  poll_misses_.add(outcome.misses - told_.misses);
  told_ = outcome;
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
      context.note_idle(*queue);
      queue->is_active = false;
    }
  }
  context.active.resize(kept);
  return kept == 0;
}

void WorkerPool::Worker::sleep() noexcept {
  WorkerContext& context = *context_;
  Instant deadline = decision_.until;
  const Instant due = deadline;
  const bool must_look = std::ranges::any_of(context.polled, [](const Queue* queue) { return queue->wants_polling(); });
  if (must_look) {
    deadline = std::min(deadline, context.now + kPollingPause);
  }
  if (mailbox_->prepare_to_sleep()) {
    const std::uint64_t sleeps = loop_->sleeps();
    events_ = loop_->wait(context.now, deadline, &context.now);
    if (loop_->sleeps() != sleeps) {
      if (context.now >= due) {
        lateness_.add(std::clamp<std::int64_t>((context.now - due).ns, 0, CpuPressure::kWakeupMax.ns));
        if (lateness_.is_known()) {
          costs_.wake_latency = {std::max(lateness_.mean(), kLatenessMin.ns)};
        }
        context.activate_sources();
      } else if (events_ != 0) {
        context.late = costs_.wake_latency;
      }
    }
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
                    .poll = {.productive_spin_ns = spun_productively_ns_.get(),
                             .unproductive_spin_ns = spun_in_vain_ns_.get(),
                             .wakeups_avoided = wakeups_avoided_.get(),
                             .sleeps = poll_sleeps_.get(),
                             .misses = poll_misses_.get()},
                    .pressure_permille = shown_pressure_permille_.load(std::memory_order_relaxed),
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
  pool->poll_ = policy.to_string();
  for (std::uint32_t i = 0; i < options.workers; ++i) {
    std::optional<int> cpu;
    if (!options.cpus.empty()) {
      cpu = options.cpus[i % options.cpus.size()];
    }
    auto worker = std::make_unique<Worker>(i, choice.engine, policy, cpu);
    RW_TRY(worker->start());
    pool->workers_.push_back(std::move(worker));
    pool->ports_.push_back(pool->workers_.back()->port());
    pool->spun_in_vain_.push_back(0);
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

void WorkerPool::look() {
  constexpr std::uint64_t kSpins = 10'000'000;  // ns since the last look, about 1 %
  std::uint32_t spinners = 0;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    workers_[i]->free_stuck_write();
    const std::uint64_t spun = workers_[i]->spun_in_vain_ns();
    spinners += spun - std::exchange(spun_in_vain_[i], spun) >= kSpins ? 1 : 0;
  }
  const std::uint32_t share = std::max(kProcessBudgetPermille / std::max(spinners, 1U), kProcessBudgetLeastPermille);
  for (const auto& worker : workers_) {
    worker->set_process_budget(share);
  }
}

Result<> WorkerPool::set_poll(const std::string& text) {
  RW_TRY_ASSIGN(const PollPolicy policy, parse_poll_policy(text));
  for (const auto& worker : workers_) {
    worker->set_poll(policy);
  }
  poll_ = policy.to_string();
  return {};
}

std::vector<WorkerStats> WorkerPool::stats() const {
  std::vector<WorkerStats> all;
  all.reserve(workers_.size());
  for (const auto& worker : workers_) {
    all.push_back(worker->stats());
    all.back().policy = poll_;
  }
  return all;
}

}  // namespace ringway
