// Theory of operation. A heap of events (requests that arrive, completions of the store) and the worker's own time, which is
// ahead of the events that it hasn't looked for yet. Each turn delivers the events up to now, then serves. A worker that
// spins jumps to the turn that sees the next event instead of making each empty one.
//
// Why no events for the worker: it is the only thing here that takes time, and a loop reads like the one it stands for.
#include "sim/poll_sim.hpp"

#include <algorithm>
#include <deque>
#include <queue>
#include <utility>

#include "base/check.hpp"

namespace ringway {

namespace {

struct SimQueue {
  SimQueue(const SimSource& what, std::uint64_t seed) : spec(what), prng(seed) {}

  const SimSource& spec;
  Gap gap;  // copies: they keep state
  Gap service;
  Prng prng;
  PollSource source;
  std::deque<Instant> ring;       // requests, by when they arrived
  std::deque<Instant> done;       // completed by the store
  std::deque<Instant> in_flight;  // of a script: its completions name no request
  std::uint32_t in_flight_count = 0;
  std::size_t early = 0;         // completions of a script whose requests the worker hasn't seen yet
  bool has_completions = false;  // in the script
  bool is_scanned = false;       // looked at in each turn, kicks suppressed
  bool is_signalled = false;
  bool is_listed = false;  // in the policy's list
  LatencyHistogram latency;
};

struct Event {
  Instant at;
  std::uint64_t order = 0;  // of making, so that equal times have an order
  SimQueue* queue = nullptr;
  bool is_completion = false;
  Instant arrived;  // completion: of its request

  bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
};

class PollSim {
 public:
  PollSim(PollPolicy policy, const PollSimOptions& options) : policy_(policy), options_(options), prng_(options.seed) {
    RW_CHECK(options.warm_up < options.length);
    for (const SimSource& source : options.sources) {
      start(queues_.emplace_back(source, prng_.next()));
    }
  }

  PollSimResult run();

 private:
  void start(SimQueue& queue);
  void push(Instant at, SimQueue& queue, bool is_completion, Instant arrived = {});
  void deliver();
  void signal(SimQueue& queue);
  [[nodiscard]] bool serve_all();
  [[nodiscard]] bool serve(SimQueue& queue, Instant turn);
  void pump(SimQueue& queue);
  void publish(SimQueue& queue);
  void feed(SimQueue& queue, bool worked, Instant turn);
  [[nodiscard]] std::uint32_t pressure_at(Instant turn);
  [[nodiscard]] PollDecision decide(bool worked, Instant turn);
  void drop_unwanted();
  void spin_until(Instant until);
  [[nodiscard]] bool arm();
  void sleep(Instant until);
  void note_progress();
  void start_measuring();

  void spend(Duration time) { now_ = now_ + time; }

  PollPolicy policy_;
  const PollSimOptions& options_;
  const SimCosts& costs_ = options_.costs;
  Prng prng_;
  std::deque<SimQueue> queues_;  // which stay where they are
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0;

  Instant now_;
  Instant last_work_ = Instant::never();
  Duration late_;  // the wake-up that this turn comes after
  std::vector<SimQueue*> scanned_;
  std::vector<SimQueue*> signalled_;
  std::vector<PollSource*> listed_;
  std::vector<SimQueue*> listed_queues_;
  std::vector<SimQueue*> serving_;  // scratch

  Duration slept_;
  Duration driver_cpu_;
  std::uint64_t wakeups_ = 0;
  std::uint64_t kicks_ = 0;
  LatencyHistogram latency_;

  // Whether the worker was awake for most of the last few milliseconds.
  bool is_busy_ = false;
  Instant busy_since_;
  Duration slept_then_;

  // The end of the warm-up.
  bool is_measuring_ = false;
  Instant measured_since_;
  Duration slept_before_;
  Duration driver_cpu_before_;
  std::uint64_t wakeups_before_ = 0;
  std::uint64_t kicks_before_ = 0;
  PollOutcome outcome_before_;
  // The current tenth of a second.
  Instant window_start_;
  std::uint64_t window_unproductive_ = 0;
  double unproductive_worst_ = 0;
};

// ---------------------------------------------------------------- the drivers and the store

void PollSim::start(SimQueue& queue) {
  const SimSource& spec = queue.spec;
  if (!spec.script.empty()) {
    for (const SimEvent& event : spec.script) {
      queue.has_completions |= event.is_completion;
      push(event.at, queue, event.is_completion);
    }
    return;
  }
  RW_CHECK(spec.gap);
  queue.gap = spec.gap;
  queue.service = spec.service;
  for (std::uint32_t i = 0; i < std::max(spec.depth, 1U); ++i) {
    push(spec.first, queue, false);
  }
}

void PollSim::push(Instant at, SimQueue& queue, bool is_completion, Instant arrived) {
  if (at != Instant::never()) {
    events_.push({.at = at, .order = order_++, .queue = &queue, .is_completion = is_completion, .arrived = arrived});
  }
}

void PollSim::signal(SimQueue& queue) {
  if (!queue.is_signalled) {
    queue.is_signalled = true;
    signalled_.push_back(&queue);
  }
}

// Everything that has happened by now.
void PollSim::deliver() {
  while (!events_.empty() && events_.top().at <= now_) {
    const Event event = events_.top();
    events_.pop();
    SimQueue& queue = *event.queue;
    if (event.is_completion) {
      if (!queue.has_completions) {
        queue.done.push_back(event.arrived);
        signal(queue);
      } else if (!queue.in_flight.empty()) {
        queue.done.push_back(queue.in_flight.front());
        queue.in_flight.pop_front();
        signal(queue);
      } else if (queue.early < queue.ring.size()) {
        ++queue.early;
      }
      continue;
    }
    queue.ring.push_back(event.at);
    if (!queue.is_scanned && !queue.is_signalled) {
      driver_cpu_ = driver_cpu_ + costs_.notification.kick_cpu;
      ++kicks_;
      signal(queue);
    }
    if (queue.gap && queue.spec.depth == 0) {
      push(event.at + queue.gap(event.at, queue.prng), queue, false);
    }
  }
}

// ---------------------------------------------------------------- the worker's turn

bool PollSim::serve_all() {
  const Instant turn = now_;
  serving_ = scanned_;
  for (SimQueue* queue : signalled_) {
    queue->is_signalled = false;
    if (!queue->is_scanned) {
      serving_.push_back(queue);
    }
  }
  signalled_.clear();
  bool worked = false;
  for (SimQueue* queue : serving_) {
    if (!queue->is_scanned) {  // suppress its kicks from now on
      queue->is_scanned = true;
      scanned_.push_back(queue);
    }
    worked |= serve(*queue, turn);
  }
  return worked;
}

bool PollSim::serve(SimQueue& queue, Instant turn) {
  const bool worked = !queue.ring.empty() || !queue.done.empty();
  feed(queue, worked, turn);
  if (worked) {
    pump(queue);
    publish(queue);
  }
  return worked;
}

void PollSim::feed(SimQueue& queue, bool worked, Instant turn) {
  if (!worked) {
    queue.source.idle(turn, queue.in_flight_count != 0);
    return;
  }
  queue.source.found(Instant{turn.ns - late_.ns});
  if (!queue.is_listed) {
    queue.is_listed = true;
    listed_.push_back(&queue.source);
    listed_queues_.push_back(&queue);
  }
}

void PollSim::pump(SimQueue& queue) {
  while (!queue.ring.empty()) {
    const Instant arrived = queue.ring.front();
    queue.ring.pop_front();
    spend(costs_.pump);
    if (queue.service) {
      ++queue.in_flight_count;
      push(now_ + queue.service(now_, queue.prng), queue, true, arrived);
      continue;
    }
    ++queue.in_flight_count;
    if (!queue.has_completions) {
      spend(queue.spec.inline_service);
      queue.done.push_back(arrived);
    } else if (queue.early != 0) {
      --queue.early;
      queue.done.push_back(arrived);
    } else {
      queue.in_flight.push_back(arrived);
    }
  }
}

void PollSim::publish(SimQueue& queue) {
  if (queue.done.empty()) {
    return;
  }
  const std::size_t finished = queue.done.size();
  const bool is_awake = now_ < queue.done.front() + costs_.driver_awake_for;
  for (; !queue.done.empty(); queue.done.pop_front()) {
    spend(costs_.finish);
    --queue.in_flight_count;
    if (is_measuring_) {
      queue.latency.record(now_ - queue.done.front());
      latency_.record(now_ - queue.done.front());
    }
  }
  if (!queue.gap) {
    return;  // a script tells nothing of its driver
  }
  Instant awake = now_;
  if (!is_awake) {
    driver_cpu_ = driver_cpu_ + costs_.driver_wake_cpu;
    awake = now_ + costs_.driver_wake_latency;
  }
  spend(costs_.call);
  for (std::size_t i = 0; i < finished; ++i) {
    driver_cpu_ = driver_cpu_ + costs_.driver_work;
    if (queue.spec.depth != 0) {
      push(awake + costs_.driver_work + queue.gap(awake, queue.prng), queue, false);
    }
  }
}

std::uint32_t PollSim::pressure_at(Instant turn) {
  constexpr Duration kMeasured = Duration::milliseconds(5);
  if (const Duration passed = turn - busy_since_; passed >= kMeasured) {
    is_busy_ = (slept_ - slept_then_).ns * 4 < passed.ns;
    busy_since_ = turn;
    slept_then_ = slept_;
  }
  std::uint32_t pressure = 0;
  for (const SimPressure& phase : options_.pressure) {
    if (phase.from <= turn && turn < phase.until && (is_busy_ || !phase.only_if_busy)) {
      pressure = std::max(pressure, phase.permille);
    }
  }
  return pressure;
}

PollDecision PollSim::decide(bool worked, Instant turn) {
  const PollSample sample{.worked = worked,
                          .last_work = last_work_,
                          .active_sources = static_cast<std::uint32_t>(listed_.size()),
                          .active = listed_,
                          .pressure_permille = pressure_at(turn),
                          .process_budget_permille = options_.process_budget_permille,
                          .costs = costs_.notification};
  const PollDecision decision = policy_.decide(sample, turn);
  if (options_.on_decision) {
    options_.on_decision(sample, turn, decision);
  }
  return decision;
}

// What the policy has marked in a turn that found all rings empty: sources off the list, rings out of the turn and armed.
void PollSim::drop_unwanted() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < listed_.size(); ++i) {
    if (listed_[i]->has_left()) {
      listed_queues_[i]->is_listed = false;
      continue;
    }
    listed_[kept] = listed_[i];
    listed_queues_[kept++] = listed_queues_[i];
  }
  listed_.resize(kept);
  listed_queues_.resize(kept);
  std::erase_if(scanned_, [](SimQueue* queue) {
    if (!queue->source.has_left() && queue->source.worth_scanning()) {
      return false;
    }
    queue->is_scanned = false;
    return true;
  });
}

void PollSim::spin_until(Instant until) {
  const Duration pass{costs_.pass.ns + costs_.scan.ns * static_cast<std::int64_t>(scanned_.size())};
  Instant target = std::min(until, Instant{} + options_.length);
  if (!events_.empty()) {
    target = std::min(target, events_.top().at);
  }
  const std::int64_t passes = std::max<std::int64_t>(1, ((target - now_).ns + pass.ns - 1) / pass.ns);
  spend(Duration{passes * pass.ns});
}

// False: there is work after all.
bool PollSim::arm() {
  deliver();
  for (const SimQueue* queue : scanned_) {
    if (!queue->ring.empty()) {
      return false;
    }
  }
  if (!signalled_.empty()) {
    return false;
  }
  for (SimQueue* queue : scanned_) {
    queue->is_scanned = false;
    queue->source.idle(now_, queue->in_flight_count != 0);
  }
  scanned_.clear();
  return true;
}

void PollSim::sleep(Instant until) {
  const Instant event = events_.empty() ? Instant::never() : events_.top().at;
  const Instant called = std::min({event, until, Instant{} + options_.length});
  const auto jitter = static_cast<std::int64_t>(prng_.below(2 * static_cast<std::uint64_t>(costs_.wake_jitter.ns) + 1));
  const Duration latency{costs_.notification.wake_latency.ns + costs_.wake_extra.ns - costs_.wake_jitter.ns + jitter};
  const Instant awake = std::max(called, now_) + latency;
  // What the wake-up takes of the processor is part of what it takes of the time, or not: it is counted once.
  slept_ = slept_ + (awake - now_) + Duration{-costs_.notification.wake_cpu.ns};
  now_ = awake;
  ++wakeups_;
  late_ = event <= until ? costs_.notification.wake_latency : Duration{};
  deliver();
  if (event > until) {
    // Awake for what the policy expects: its rings are scanned again.
    for (SimQueue* queue : listed_queues_) {
      if (!queue->is_scanned && queue->source.worth_scanning()) {
        queue->is_scanned = true;
        scanned_.push_back(queue);
      }
    }
  }
}

// ---------------------------------------------------------------- the run

void PollSim::start_measuring() {
  is_measuring_ = true;
  measured_since_ = now_;
  slept_before_ = slept_;
  driver_cpu_before_ = driver_cpu_;
  wakeups_before_ = wakeups_;
  kicks_before_ = kicks_;
  outcome_before_ = policy_.outcome();
}

void PollSim::note_progress() {
  if (!is_measuring_ && now_ >= Instant{} + options_.warm_up) {
    start_measuring();
  }
  const Duration window = now_ - window_start_;
  if (window >= Duration::milliseconds(100)) {
    const std::uint64_t unproductive = policy_.outcome().unproductive_spin_ns;
    unproductive_worst_ = std::max(
        unproductive_worst_, static_cast<double>(unproductive - window_unproductive_) / static_cast<double>(window.ns));
    window_unproductive_ = unproductive;
    window_start_ = now_;
  }
}

PollSimResult PollSim::run() {
  while (now_ < Instant{} + options_.length) {
    note_progress();
    deliver();
    const Instant turn = now_;  // a worker reads the clock between two turns
    const bool worked = serve_all();
    late_ = {};
    if (worked) {
      last_work_ = turn;
    }
    const PollDecision decision = decide(worked, turn);
    if (!worked) {
      drop_unwanted();
    }
    if (decision.action == PollAction::sleep && arm()) {
      sleep(decision.until);
    } else if (!worked) {
      spin_until(decision.action == PollAction::spin ? decision.until : now_);
    } else {
      spend(costs_.pass);
    }
  }
  if (!is_measuring_) {
    start_measuring();
  }
  PollSimResult result;
  result.length = now_ - measured_since_;
  result.requests = latency_.count();
  result.rate =
      result.length.ns == 0 ? 0 : static_cast<double>(result.requests) * 1e9 / static_cast<double>(result.length.ns);
  result.mean = latency_.mean();
  result.p50 = latency_.percentile(0.5);
  result.p99 = latency_.percentile(0.99);
  result.worker_cpu = result.length - (slept_ - slept_before_);
  result.driver_cpu = driver_cpu_ - driver_cpu_before_;
  result.wakeups = wakeups_ - wakeups_before_;
  result.kicks = kicks_ - kicks_before_;
  const PollOutcome& outcome = policy_.outcome();
  result.outcome = {.productive_spin_ns = outcome.productive_spin_ns - outcome_before_.productive_spin_ns,
                    .unproductive_spin_ns = outcome.unproductive_spin_ns - outcome_before_.unproductive_spin_ns,
                    .wakeups_avoided = outcome.wakeups_avoided - outcome_before_.wakeups_avoided,
                    .sleeps = outcome.sleeps - outcome_before_.sleeps,
                    .misses = outcome.misses - outcome_before_.misses};
  result.unproductive_worst = unproductive_worst_;
  for (const SimQueue& queue : queues_) {
    result.sources.push_back({.name = queue.spec.name,
                              .requests = queue.latency.count(),
                              .mean = queue.latency.mean(),
                              .p50 = queue.latency.percentile(0.5),
                              .p99 = queue.latency.percentile(0.99)});
  }
  return result;
}

}  // namespace

PollSimResult simulate_poll(PollPolicy policy, const PollSimOptions& options) {
  return PollSim(policy, options).run();
}

}  // namespace ringway
