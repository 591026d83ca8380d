// One worker and its sources in virtual time, run by a poll policy.
//
// The model is a worker's turn: look at each ring that is scanned and at what was signalled, serve, publish, ask the policy;
// to sleep is to arm the rings, look once more, and wait for an event or the decision's time. An arrival in an armed ring
// costs its driver a kick; an event that finds the worker asleep waits for the wake-up.
//
// Drivers are open (they send whatever happens) or closed: each of `depth` requests is sent again after its completion, the
// driver's wake-up and a think time. Everything in nanoseconds of virtual time from 0.
//
// Not thread-safe, allocates; a second of a busy ring takes about 20 ms.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/time.hpp"
#include "metrics/latency_histogram.hpp"
#include "policy/poll_policy.hpp"
#include "sim/gaps.hpp"

namespace ringway {

struct SimCosts {
  PollCosts notification = {};  // told to the policy too
  // A wake-up takes up to this much more or less, evenly spread.
  Duration wake_jitter = Duration::nanoseconds(1'000);
  Duration wake_extra = {};                      // and always this much longer than the policy is told
  Duration pass = Duration::nanoseconds(60);     // of an empty turn
  Duration scan = Duration::nanoseconds(15);     // of one more empty ring in it
  Duration pump = Duration::nanoseconds(500);    // from a ring to the store, per request
  Duration finish = Duration::nanoseconds(500);  // from the store to the ring, per request
  Duration call = Duration::nanoseconds(2'600);  // to notify a driver that sleeps, per queue and turn
  // The driver: a guest's halted processor, and what it does between a completion and its next request. A driver that is a
  // thread here takes 4.6 us of processor time to wake up instead.
  Duration driver_wake_latency = Duration::nanoseconds(7'000);
  Duration driver_wake_cpu = Duration::nanoseconds(16'000);
  Duration driver_work = Duration::nanoseconds(1'000);
  // A driver that is answered sooner than this after its request hasn't gone to sleep yet (or its processor not): it sees
  // the answer at once.
  Duration driver_awake_for = {};
};

struct SimEvent {
  Instant at;
  bool is_completion = false;  // of the store, for a request of the same source; else a request of the driver
};

struct SimSource {
  std::string name = {};
  // Open drivers: from one request to the next. Closed ones: think time on top of SimCosts::driver_work.
  Gap gap = {};
  std::uint32_t depth = 0;  // 0: open
  // The store's time for a request, during which the worker is free. Empty: the store answers within the pump, which then
  // takes `inline_service` longer.
  Gap service = {};
  Duration inline_service = Duration::microseconds(1);
  Instant first = {};  // request
  std::vector<SimEvent> script =
      {};  // instead of all the above, in order of time; completions without a request are ignored
};

// The worker's processor is wanted by others, which the policy is told of as pressure.
struct SimPressure {
  Instant from;
  Instant until;
  std::uint32_t permille = 500;
  // Only while the worker was awake for more than three quarters of the last 5 ms: one that sleeps is let in when it wakes
  // up.
  bool only_if_busy = false;
};

struct PollSimOptions {
  std::vector<SimSource> sources = {};
  SimCosts costs = {};
  Duration length = Duration::seconds(1);
  Duration warm_up = Duration::milliseconds(100);  // not counted in the results
  std::vector<SimPressure> pressure = {};
  std::uint32_t process_budget_permille = 1000;
  std::uint64_t seed = 1;
  // Called for each decision, e.g. to record it.
  std::function<void(const PollSample&, Instant, const PollDecision&)> on_decision = {};
};

struct PollSimSource {
  std::string name = {};
  std::uint64_t requests = 0;
  Duration mean;  // latency: from the request in the ring to its completion there
  Duration p50;
  Duration p99;
};

struct PollSimResult {
  Duration length;  // warm-up excluded, as in all that follows
  std::uint64_t requests = 0;
  double rate = 0;  // requests per second
  Duration mean;    // latency over all sources
  Duration p50;
  Duration p99;
  Duration worker_cpu;
  Duration driver_cpu;
  std::uint64_t wakeups = 0;
  std::uint64_t kicks = 0;
  PollOutcome outcome;
  // The largest share of a tenth of a second that was spun in vain.
  double unproductive_worst = 0;
  std::vector<PollSimSource> sources;

  [[nodiscard]] double worker_share() const { return share(worker_cpu.ns); }
  [[nodiscard]] double unproductive_share() const { return share(static_cast<std::int64_t>(outcome.unproductive_spin_ns)); }
  [[nodiscard]] double productive_share() const { return share(static_cast<std::int64_t>(outcome.productive_spin_ns)); }
  // Requests per second of processor time, of the worker and the drivers together.
  [[nodiscard]] double per_cpu_second() const {
    const std::int64_t ns = (worker_cpu + driver_cpu).ns;
    return ns == 0 ? 0 : static_cast<double>(requests) * 1e9 / static_cast<double>(ns);
  }

 private:
  [[nodiscard]] double share(std::int64_t ns) const {
    return length.ns == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(length.ns);
  }
};

// REQUIRES: warm_up < length; a gap for each source without a script.
[[nodiscard]] PollSimResult simulate_poll(PollPolicy policy, const PollSimOptions& options);

}  // namespace ringway
