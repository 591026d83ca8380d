// What the poll policies promise, in virtual time: rates, latencies and processor time under loads that look like guests'.
#include "sim/poll_sim.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ringway {
namespace {

Duration us(std::int64_t n) {
  return Duration::microseconds(n);
}

PollSimResult run(std::string_view policy, const PollSimOptions& options) {
  const auto parsed = parse_poll_policy(policy);
  EXPECT_TRUE(parsed.has_value()) << policy;
  return simulate_poll(parsed.value_or(PollPolicy{}), options);
}

PollSimOptions only(SimSource source) {
  PollSimOptions options;
  options.sources.push_back(std::move(source));
  return options;
}

// A driver that sends its next request as soon as it has been woken up by the last one.
SimSource depth_one(Gap service = {}) {
  return {.name = "disk", .gap = constant_gap({}), .depth = 1, .service = std::move(service)};
}

// ---------------------------------------------------------------- the simulation itself

TEST(PollSim, LatencyAndProcessorTimeOfNeverAndAlwaysAreTheSumOfTheirParts) {
  PollSimOptions options = only({.name = "open", .gap = constant_gap(us(100)), .first = Instant{50'000}});
  options.costs.wake_jitter = {};
  const PollSimResult never = run("never", options);
  // Wake-up, pump, store, finish.
  EXPECT_EQ(never.sources.at(0).mean.ns, 7'000 + 500 + 1'000 + 500);
  EXPECT_NEAR(static_cast<double>(never.requests), 9'000, 1);
  EXPECT_NEAR(static_cast<double>(never.wakeups), 9'000, 1);
  EXPECT_NEAR(static_cast<double>(never.kicks), 9'000, 1);
  // Per request: wake-up, pump, store, finish, call, one turn behind the work.
  EXPECT_NEAR(static_cast<double>(never.worker_cpu.ns) / 9'000, 4'600 + 2'000 + 2'600, 150);
  EXPECT_NEAR(static_cast<double>(never.driver_cpu.ns) / 9'000, 16'000 + 1'000 + 2'600, 50);
  const PollSimResult always = run("always", options);
  EXPECT_LE(always.sources.at(0).mean.ns, 2'000 + 75);
  EXPECT_EQ(always.kicks, 0U);
  EXPECT_NEAR(always.worker_share(), 1, 0.001);
  EXPECT_NEAR(always.productive_share(), 0.953, 0.005);
}

TEST(PollSim, SameOptionsGiveTheSameRun) {
  PollSimOptions options = only({.name = "open", .gap = poisson_gap(us(20)), .service = uniform_gap(us(5), us(50))});
  const PollSimResult first = run("adaptive", options);
  const PollSimResult second = run("adaptive", options);
  EXPECT_EQ(first.requests, second.requests);
  EXPECT_EQ(first.worker_cpu, second.worker_cpu);
  EXPECT_EQ(first.outcome, second.outcome);
  options.seed = 2;
  EXPECT_NE(run("adaptive", options).worker_cpu, first.worker_cpu);
}

TEST(PollSim, DepthBoundsWhatIsInFlight) {
  PollSimOptions options = only({.name = "deep", .gap = constant_gap({}), .depth = 8, .service = constant_gap(us(100))});
  const PollSimResult result = run("always", options);
  // 8 requests in (100 us + wake-up + work of the driver + turn), by Little's law.
  EXPECT_NEAR(result.rate, 8 / 112e-6, 8 / 112e-6 * 0.1);
}

// ---------------------------------------------------------------- depth 1

TEST(PollSimDepthOne, AdaptiveIsAsFastAsAlwaysOnRamAndOnTenMicroseconds) {
  for (const std::int64_t service : {0, 10}) {
    const PollSimOptions options = only(depth_one(service == 0 ? Gap{} : uniform_gap(us(service - 1), us(service + 1))));
    const PollSimResult never = run("never", options);
    const PollSimResult always = run("always", options);
    const PollSimResult adaptive = run("adaptive", options);
    EXPECT_GE(adaptive.rate, 0.97 * always.rate) << service;
    EXPECT_GE(adaptive.rate, 1.45 * never.rate) << service;
    // Productive time, as it is counted for each peer that spins: what remains if the empty turns are taken off.
    const auto productive = [](const PollSimResult& result) {
      const auto spun = static_cast<std::int64_t>(result.outcome.productive_spin_ns + result.outcome.unproductive_spin_ns);
      return static_cast<double>(result.requests) / static_cast<double>((result.worker_cpu + result.driver_cpu).ns - spun);
    };
    EXPECT_GE(productive(adaptive), 0.90 * productive(never)) << service;
  }
}

TEST(PollSimDepthOne, AdaptiveCostsLittleMoreProcessorTimePerRequestThanNever) {
  const PollSimOptions ram = only(depth_one());
  EXPECT_GE(run("adaptive", ram).per_cpu_second(), 0.90 * run("never", ram).per_cpu_second());
  PollSimOptions thread = ram;
  thread.costs.driver_wake_cpu = Duration::nanoseconds(4'600);
  EXPECT_GE(run("adaptive", thread).per_cpu_second(), 0.90 * run("never", thread).per_cpu_second());
  // Two waits of 10 us instead of two wake-ups of 4.6 us: 0.898 is what `always` has too, and what any policy must pay that
  // waits awake for each request.
  const PollSimOptions ten = only(depth_one(uniform_gap(us(9), us(11))));
  EXPECT_GE(run("adaptive", ten).per_cpu_second(), 0.89 * run("never", ten).per_cpu_second());
}

TEST(PollSimDepthOne, NoFixedWindowThatIsLongEnoughFallsBehind) {
  for (const std::int64_t service : {0, 10}) {
    const PollSimOptions options = only(depth_one(service == 0 ? Gap{} : uniform_gap(us(service - 1), us(service + 1))));
    std::vector<double> rates;
    for (std::int64_t window_ns = 16'384; window_ns <= 131'072; window_ns *= 2) {
      rates.push_back(run(fmt::format("fixed={}ns", window_ns), options).rate);
    }
    EXPECT_GE(std::ranges::min(rates), 0.95 * std::ranges::max(rates)) << service;
  }
}

TEST(PollSimDepthOne, SlowStoresAreSleptForAndMetAwake) {
  for (const std::int64_t service : {20, 30, 50, 80, 100, 200}) {
    const PollSimOptions options =
        only(depth_one(uniform_gap(Duration{service * 970}, Duration{service * 1'030})));  // within 3 %
    const PollSimResult always = run("always", options);
    const PollSimResult adaptive = run("adaptive", options);
    EXPECT_GE(adaptive.rate, 0.97 * always.rate) << service;
    EXPECT_LE(adaptive.worker_share(), 0.65) << service;
    EXPECT_LE(adaptive.unproductive_share(), 0.02) << service;
  }
  const PollSimOptions slow = only(depth_one(uniform_gap(us(97), us(103))));
  EXPECT_LE(run("adaptive", slow).worker_share(), 0.25);
}

TEST(PollSimDepthOne, WakeUpsThatTakeLongerThanToldCostNoMoreThanSleeping) {
  for (const std::int64_t service : {30, 80}) {
    PollSimOptions options = only(depth_one(uniform_gap(Duration{service * 900}, Duration{service * 1'100})));
    options.costs.wake_extra = us(25);
    options.costs.wake_jitter = us(6);
    const PollSimResult never = run("never", options);
    const PollSimResult adaptive = run("adaptive", options);
    EXPECT_GE(adaptive.rate, never.rate) << service;
    EXPECT_LE(adaptive.unproductive_share(), 0.12) << service;
  }
}

// Who is answered within a few microseconds sends the next request at once, who isn't sleeps deeply and sends it 30 us
// later: as long as both sleep each has a reason to.
TEST(PollSimDepthOne, WorkerAndDriverDoNotSleepBecauseTheOtherDoes) {
  PollSimOptions options = only({.name = "disk", .gap = uniform_gap({}, us(6)), .depth = 1});
  options.costs.driver_wake_latency = us(30);
  options.costs.driver_awake_for = us(8);
  options.costs.driver_work = us(3);
  options.costs.notification.wake_latency = us(20);
  options.costs.wake_jitter = us(5);
  options.warm_up = Duration::milliseconds(400);
  options.pressure = {{.from = Instant{120'000'000}, .until = Instant{140'000'000}}};  // makes the worker sleep once
  const PollSimResult never = run("never", options);
  const PollSimResult always = run("always", options);
  const PollSimResult adaptive = run("adaptive", options);
  EXPECT_GE(always.rate, 5 * never.rate);
  EXPECT_GE(adaptive.rate, 0.97 * always.rate);
  EXPECT_GE(adaptive.per_cpu_second(), never.per_cpu_second());
}

// ---------------------------------------------------------------- neighbours

SimSource slow_disk() {
  return {.name = "slow", .gap = uniform_gap(us(200), us(800)), .service = uniform_gap(us(60), us(120))};
}

TEST(PollSimNeighbours, ASlowDiskDoesNotSlowAFastGuestDown) {
  SimSource fast{.name = "fast", .gap = uniform_gap({}, us(2)), .depth = 1};
  PollSimOptions options = only(fast);
  const PollSimResult alone = run("adaptive", options);
  options.sources.push_back(slow_disk());
  const PollSimResult both = run("adaptive", options);
  EXPECT_LE(both.sources.at(0).p50.ns, alone.sources.at(0).p50.ns * 11 / 10);
  EXPECT_GE(both.sources.at(0).requests, alone.sources.at(0).requests * 95 / 100);
}

TEST(PollSimNeighbours, AFastGuestThatPausesLeavesNoPollingBehindForASlowDisk) {
  // 1 to 10 us between requests, for 1 ms in 51.
  SimSource fast{.name = "fast", .gap = on_off_gap(uniform_gap(us(1), us(10)), us(1'000), us(50'000))};
  PollSimOptions options = only(fast);
  options.length = Duration::seconds(3);
  const PollSimResult alone = run("adaptive", options);
  options.sources.push_back(slow_disk());
  const PollSimResult grow_shrink = run("grow_shrink", options);
  const PollSimResult adaptive = run("adaptive", options);
  EXPECT_LE(adaptive.sources.at(0).p50.ns, alone.sources.at(0).p50.ns * 11 / 10);
  EXPECT_LE(adaptive.sources.at(0).p50, grow_shrink.sources.at(0).p50);
  EXPECT_LE(adaptive.sources.at(1).p50, grow_shrink.sources.at(1).p50);
  EXPECT_LE(static_cast<double>(adaptive.worker_cpu.ns), 0.70 * static_cast<double>(grow_shrink.worker_cpu.ns));
}

TEST(PollSimNeighbours, IdleDisksCostABusyOneNothing) {
  PollSimOptions options =
      only({.name = "busy", .gap = constant_gap({}), .depth = 1, .service = uniform_gap(us(9), us(11))});
  const double alone = run("adaptive", options).rate;
  for (std::int64_t i = 0; i < 127 * 8; ++i) {  // each has had one request
    options.sources.push_back({.name = "idle", .gap = no_more(), .first = Instant{i * 5'000}});
  }
  EXPECT_GE(run("adaptive", options).rate, 0.95 * alone);
  // The load is one that shows it: `always` goes on looking at each of them.
  EXPECT_LE(run("always", options).rate, 0.85 * alone);
}

TEST(PollSimNeighbours, IdleDisksCostNothing) {
  PollSimOptions options;
  options.length = Duration::seconds(3);
  for (std::int64_t i = 0; i < 128; ++i) {  // each is looked at about once a second
    options.sources.push_back({.name = "idle", .gap = constant_gap(Duration::seconds(1)), .first = Instant{i * 7'000'000}});
  }
  const PollSimResult result = run("adaptive", options);
  EXPECT_GE(result.requests, 256U);
  EXPECT_LT(result.worker_share(), 0.01);
}

TEST(PollSimNeighbours, ManySlowSourcesTogetherAreWorthPolling) {
  PollSimOptions options;
  for (int i = 0; i < 50; ++i) {
    options.sources.push_back({.name = "slow", .gap = poisson_gap(us(500))});
  }
  EXPECT_LE(run("adaptive", options).mean.ns, run("always", options).mean.ns * 11 / 10);
  EXPECT_GE(run("never", options).mean.ns, run("always", options).mean.ns * 15 / 10);
}

// ---------------------------------------------------------------- the budget

struct Load {
  std::string name;
  SimSource source;
};

std::vector<Load> all_loads() {
  std::vector<Load> loads;
  for (const std::int64_t gap : {5, 8, 10, 15, 20, 25, 30, 40, 50, 70, 100, 150, 200, 300, 500}) {
    loads.push_back({fmt::format("constant {} us", gap), {.name = "c", .gap = constant_gap(us(gap))}});
    loads.push_back({fmt::format("poisson {} us", gap), {.name = "p", .gap = poisson_gap(us(gap))}});
    loads.push_back({fmt::format("poisson {} us, store 30 us", gap),
                     {.name = "s", .gap = poisson_gap(us(gap)), .service = uniform_gap(us(10), us(50))}});
  }
  for (const std::int64_t on : {20, 50, 100, 1'000, 10'000}) {
    for (const std::int64_t off : {50, 100, 1'000, 5'000}) {
      loads.push_back({fmt::format("bursts {}/{} us of 5 us", on, off),
                       {.name = "b", .gap = on_off_gap(constant_gap(us(5)), us(on), us(off))}});
      loads.push_back({fmt::format("bursts {}/{} us of poisson 10 us", on, off),
                       {.name = "b", .gap = on_off_gap(poisson_gap(us(10)), us(on), us(off))}});
    }
  }
  for (const std::int64_t period : {200, 2'000, 20'000}) {
    loads.push_back({fmt::format("5 and 500 us, {} us each", period),
                     {.name = "t", .gap = two_phase_gap(constant_gap(us(5)), constant_gap(us(500)), us(period))}});
    loads.push_back({fmt::format("8 and 25 us, {} us each", period),
                     {.name = "t", .gap = two_phase_gap(poisson_gap(us(8)), constant_gap(us(25)), us(period))}});
  }
  loads.push_back(
      {"10 or 60 us", {.name = "m", .gap = [](Instant, Prng& prng) { return prng.chance(6, 10) ? us(10) : us(60); }}});
  loads.push_back(
      {"2 or 40 us", {.name = "m", .gap = [](Instant, Prng& prng) { return prng.chance(1, 2) ? us(2) : us(40); }}});
  return loads;
}

TEST(PollSimBudget, UnproductiveSpinStaysWithinIt) {
  for (const Load& load : all_loads()) {
    PollSimOptions options = only(load.source);
    options.length = Duration::milliseconds(600);
    const PollSimResult result = run("adaptive", options);
    EXPECT_LE(result.unproductive_share(), 0.12) << load.name;
    EXPECT_LE(result.unproductive_worst, 0.125) << load.name;  // any tenth of a second, the first one too
  }
}

TEST(PollSimBudget, ASmallerOneHoldsTooAndTheProcessMayMakeItSmaller) {
  const SimSource bursts{.name = "b", .gap = on_off_gap(poisson_gap(us(10)), us(100), us(100))};
  PollSimOptions options = only(bursts);
  const double ten = run("adaptive", options).unproductive_share();
  EXPECT_GE(ten, 0.04);  // a load that would like more
  EXPECT_LE(run("adaptive=budget=2%", options).unproductive_share(), 0.025);
  options.process_budget_permille = 20;
  EXPECT_LE(run("adaptive", options).unproductive_share(), 0.025);
}

TEST(PollSimBudget, AdaptiveIsNeverMuchWorseThanTheBestOfTheOthers) {
  // The cost that the policy is to keep low: a nanosecond of latency counts as two of processor time.
  const auto cost = [](const PollSimResult& result) {
    return static_cast<double>(result.mean.ns) * static_cast<double>(result.requests) +
           0.5 * static_cast<double>((result.worker_cpu + result.driver_cpu).ns);
  };
  for (const Load& load : all_loads()) {
    PollSimOptions options = only(load.source);
    options.length = Duration::milliseconds(400);
    double best = 1e300;
    for (const char* policy : {"never", "always", "fixed=8us", "fixed=20us", "fixed=50us", "grow_shrink"}) {
      best = std::min(best, cost(run(policy, options)));
    }
    EXPECT_LE(cost(run("adaptive", options)), 1.15 * best) << load.name;
  }
}

// ---------------------------------------------------------------- pressure

// How often, in each of its tenths of a second, a run decided to spin for more than the turn behind the work.
std::vector<int> spins_per_tenth(PollSimOptions options) {
  std::vector<int> spins(static_cast<std::size_t>(options.length.ns / 100'000'000) + 1, 0);
  options.on_decision = [&spins](const PollSample&, Instant now, const PollDecision& decision) {
    if (decision.action == PollAction::spin && decision.reason != PollReason::worked) {
      ++spins.at(static_cast<std::size_t>(now.ns / 100'000'000));
    }
  };
  static_cast<void>(run("adaptive", options));
  return spins;
}

TEST(PollSimPressure, SpinningEndsAtOnceStaysAwayAndComesBack) {
  PollSimOptions options = only({.name = "open", .gap = constant_gap(us(10))});
  options.length = Duration::milliseconds(1'000);
  options.pressure = {{.from = Instant{300'000'000}, .until = Instant{500'000'000}}};
  std::int64_t last_spin = 0;
  options.on_decision = [&](const PollSample&, Instant now, const PollDecision& decision) {
    if (decision.action == PollAction::spin && now.ns < 400'000'000) {
      last_spin = now.ns;
    }
  };
  const PollSimResult result = run("adaptive", options);
  EXPECT_LE(last_spin, 300'000'000 + 200'000);
  EXPECT_GE(last_spin, 299'000'000);
  EXPECT_GE(result.wakeups, 10'000U);
  const std::vector<int> spins = spins_per_tenth(options);
  EXPECT_GE(spins[2], 9'000);
  EXPECT_EQ(spins[4], 0);
  EXPECT_LE(spins[5], 5);  // held for a tenth of a second more
  EXPECT_GE(spins[7], 9'000);
}

TEST(PollSimPressure, AHogThatOnlySpinningKeepsWaitingHasTheProcessorNearlyAlone) {
  PollSimOptions options = only({.name = "open", .gap = constant_gap(us(18))});
  options.length = Duration::seconds(12);
  options.pressure = {{.from = Instant{1'000'000'000}, .until = Instant{9'000'000'000}, .only_if_busy = true}};
  const std::vector<int> spins = spins_per_tenth(options);
  EXPECT_GE(spins[5], 5'000);
  int during = 0;
  for (std::size_t tenth = 10; tenth < 90; ++tenth) {
    during += spins[tenth];
  }
  // Of 55,000 in a second: it tries again now and then, and less and less often.
  EXPECT_LE(during, 80 * 5'500 / 50);
  EXPECT_GE(during, 500);
  EXPECT_GE(spins[119], 5'000);
}

// ---------------------------------------------------------------- steadiness

TEST(PollSimSteady, AConstantLoadIsServedTheSameWayAllTheTime) {
  for (const std::int64_t gap : {5, 10, 20, 30, 40, 50, 100, 200, 500}) {
    PollSimOptions options = only({.name = "open", .gap = constant_gap(us(gap))});
    options.length = Duration::milliseconds(500);
    // How it is waited for: the first decision behind the work tells.
    std::vector<PollReason> firsts;
    bool is_behind_work = false;
    options.on_decision = [&](const PollSample& sample, Instant now, const PollDecision& decision) {
      if (is_behind_work && !sample.worked && now.ns > 100'000'000) {
        firsts.push_back(decision.reason);
      }
      is_behind_work = sample.worked;
    };
    static_cast<void>(run("adaptive", options));
    int changes = 0;
    for (std::size_t i = 1; i < firsts.size(); ++i) {
      changes += firsts[i] != firsts[i - 1] ? 1 : 0;
    }
    EXPECT_GE(firsts.size(), 700U) << gap;
    EXPECT_LE(changes, 4) << gap;
  }
}

TEST(PollSimSteady, ASourceThatEndsLeavesNothingBehind) {
  PollSimOptions options = only({.name = "busy", .gap = on_off_gap(constant_gap(us(5)), us(50'000), Duration::seconds(10))});
  options.warm_up = us(60'000);
  const PollSimResult result = run("adaptive", options);
  EXPECT_EQ(result.outcome.unproductive_spin_ns, 0U);
  EXPECT_LE(result.wakeups, 1U);
  EXPECT_LT(result.worker_share(), 0.0001);
}

}  // namespace
}  // namespace ringway
