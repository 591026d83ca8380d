// Decisions of the adaptive policy at single idle points. What they add up to is in sim/poll_sim_test.cpp.
#include "policy/adaptive_poll.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.hpp"

namespace ringway {
namespace {

constexpr Duration microseconds(std::int64_t n) {
  return Duration::microseconds(n);
}

// A source that has waited for each of `gaps_ns` in turn, many times, and waits again since `now`.
PollSource source_with(const std::vector<std::int64_t>& gaps_ns, bool in_flight, Instant now) {
  PollSource source;
  Instant time{};
  for (int i = 0; i < 200; ++i) {
    source.idle(time, in_flight);
    time = time + Duration{gaps_ns[static_cast<std::size_t>(i) % gaps_ns.size()]};
    source.found(time);
    time = time + microseconds(1);
  }
  // Time goes on behind the last event, so that the period, too, is what it was.
  const Duration shift = now - time;
  PollSource shifted;
  time = Instant{} + shift;
  for (int i = 0; i < 200; ++i) {
    shifted.idle(time, in_flight);
    time = time + Duration{gaps_ns[static_cast<std::size_t>(i) % gaps_ns.size()]};
    shifted.found(time);
    time = time + microseconds(1);
  }
  shifted.idle(now, in_flight);
  return shifted;
}

constexpr Instant kIdlePoint{10'000'000'000};

PollDecision decide_for(PollSource& source, Instant now = kIdlePoint) {
  AdaptivePoll policy;
  PollSource* const active[] = {&source};
  return policy.decide({.active_sources = 1, .active = active}, now);
}

TEST(AdaptivePollTable, DecidesByWhatIsKnownOfTheSource) {
  struct Row {
    const char* name;
    std::vector<std::int64_t> gaps_ns;
    bool in_flight;
    PollAction action;
    PollReason reason;
    std::int64_t until_min_ns;  // 0: never()
    std::int64_t until_max_ns;
  };
  const Row rows[] = {
      {"think time of 8 us", {8'000}, false, PollAction::spin, PollReason::expected_soon, 8'000, 12'288},
      {"store of 10 us", {9'500, 10'500}, true, PollAction::spin, PollReason::expected_soon, 10'500, 16'384},
      {"5 to 15 us", {5'000, 8'000, 11'000, 15'000}, false, PollAction::spin, PollReason::expected_soon, 15'000, 16'384},
      {"now and then 2 ms",
       {5'000, 8'000, 5'000, 2'000'000},
       false,
       PollAction::spin,
       PollReason::expected_soon,
       8'000,
       8'192},
      {"store of 100 us", {99'000, 101'000}, true, PollAction::sleep, PollReason::due_later, 80'000, 92'000},
      {"every millisecond", {999'000}, false, PollAction::sleep, PollReason::due_later, 985'000, 992'000},
      {"60 to 140 us", {60'000, 100'000, 80'000, 140'000}, true, PollAction::sleep, PollReason::not_worth_it, 0, 0},
      {"milliseconds", {1'000'000, 3'000'000, 9'000'000}, false, PollAction::sleep, PollReason::not_worth_it, 0, 0},
  };
  for (const Row& row : rows) {
    PollSource source = source_with(row.gaps_ns, row.in_flight, kIdlePoint);
    const PollDecision decision = decide_for(source);
    EXPECT_EQ(decision.action, row.action) << row.name;
    EXPECT_EQ(to_string(decision.reason), to_string(row.reason)) << row.name;
    if (row.until_max_ns == 0) {
      EXPECT_EQ(decision.until, Instant::never()) << row.name;
    } else {
      EXPECT_GE((decision.until - kIdlePoint).ns, row.until_min_ns) << row.name;
      EXPECT_LE((decision.until - kIdlePoint).ns, row.until_max_ns) << row.name;
    }
  }
}

TEST(AdaptivePoll, WithNothingThatCouldComeItSleeps) {
  AdaptivePoll policy;
  const PollDecision expected{PollAction::sleep, Instant::never(), PollReason::nothing_active};
  EXPECT_EQ(policy.decide({.active_sources = 0}, kIdlePoint), expected);
}

TEST(AdaptivePoll, SpinsForAnUnknownSourceAsLongAsASleepIsWorth) {
  PollSource source;
  source.idle(kIdlePoint, true);
  // (7 us + 4.6 us / 2) x 2, and for a driver half of its 2.6 us too.
  EXPECT_EQ(decide_for(source), (PollDecision{PollAction::spin, kIdlePoint + Duration{18'600}, PollReason::learning}));
  PollSource of_driver;
  of_driver.idle(kIdlePoint, false);
  EXPECT_EQ(decide_for(of_driver), (PollDecision{PollAction::spin, kIdlePoint + Duration{21'200}, PollReason::learning}));
  EXPECT_EQ(decide_for(of_driver, kIdlePoint + Duration{21'200}).reason, PollReason::not_worth_it);
}

TEST(AdaptivePoll, AsleepForARegularStoreItSpinsFromWhenItWakesUntilTheStoreIsOverdue) {
  PollSource source = source_with({99'000, 101'000}, true, kIdlePoint);
  PollSource* const active[] = {&source};
  const PollSample idle{.active_sources = 1, .active = active};
  AdaptivePoll policy;
  const PollDecision nap = policy.decide(idle, kIdlePoint);
  ASSERT_EQ(nap.reason, PollReason::due_later);
  const Instant awake = nap.until + microseconds(7);
  const PollDecision spin = policy.decide(idle, awake);
  EXPECT_EQ(spin.reason, PollReason::expected_soon);
  EXPECT_GE(spin.until, kIdlePoint + microseconds(101));
  EXPECT_LE(spin.until, kIdlePoint + microseconds(106));
  EXPECT_EQ(policy.decide(idle, kIdlePoint + microseconds(106)).action, PollAction::sleep);
}

TEST(AdaptivePoll, AnOverdueStoreIsNotWaitedForAndHidesNoOther) {
  PollSource overdue = source_with({99'000, 101'000}, true, kIdlePoint);
  const Instant now = kIdlePoint + microseconds(120);
  PollSource regular = source_with({99'000, 101'000}, true, now);
  AdaptivePoll policy;
  PollSource* const active[] = {&overdue, &regular};
  EXPECT_EQ(policy.decide({.active_sources = 1, .active = std::span(active).first(1)}, now).reason,
            PollReason::not_worth_it);
  EXPECT_EQ(policy.decide({.active_sources = 2, .active = active}, now).reason, PollReason::due_later);
}

TEST(AdaptivePoll, AskedBeforeItsTimeIsUpItAnswersTheSame) {
  PollSource source = source_with({8'000}, false, kIdlePoint);
  PollSource* const active[] = {&source};
  const PollSample idle{.active_sources = 1, .active = active};
  AdaptivePoll policy;
  const PollDecision first = policy.decide(idle, kIdlePoint);
  ASSERT_EQ(first.action, PollAction::spin);
  for (std::int64_t ns = 100; ns < (first.until - kIdlePoint).ns; ns += 100) {
    ASSERT_EQ(policy.decide(idle, kIdlePoint + Duration{ns}), first);
  }
  EXPECT_EQ(policy.decide(idle, first.until).action, PollAction::sleep);
}

TEST(AdaptivePoll, ASourceThatWaitsLongerThanItEverDidIsNotWaitedForAwake) {
  PollSource source = source_with({5'000, 8'000, 11'000}, false, kIdlePoint);
  EXPECT_EQ(decide_for(source, kIdlePoint + microseconds(60)).reason, PollReason::not_worth_it);
}

TEST(AdaptivePoll, ASlowNeighbourChangesNothingForAFastSource) {
  PollSource fast = source_with({5'000, 8'000, 11'000}, false, kIdlePoint);
  PollSource slow = source_with({200'000, 500'000, 800'000}, false, kIdlePoint);
  const PollDecision alone = decide_for(fast);
  AdaptivePoll policy;
  PollSource* const active[] = {&slow, &fast};
  EXPECT_EQ(policy.decide({.active_sources = 2, .active = active}, kIdlePoint), alone);
}

TEST(AdaptivePoll, ManySlowSourcesTogetherAreSpunFor) {
  std::vector<PollSource> sources(100, source_with({200'000, 500'000, 800'000}, false, kIdlePoint));
  std::vector<PollSource*> active;
  for (PollSource& source : sources) {
    active.push_back(&source);
  }
  AdaptivePoll policy;
  EXPECT_EQ(policy.decide({.active_sources = 100, .active = active}, kIdlePoint).reason, PollReason::expected_soon);
  EXPECT_EQ(
      policy.decide({.active_sources = 5, .active = std::span(active).first(5)}, kIdlePoint + microseconds(300)).reason,
      PollReason::not_worth_it);
}

TEST(AdaptivePoll, WeightsSayWhoseLatencyMatters) {
  PollSource source = source_with({5'000, 8'000, 11'000}, false, kIdlePoint);
  EXPECT_EQ(decide_for(source).action, PollAction::spin);
  EXPECT_TRUE(source.worth_scanning());
  source.weight_permille = 100;
  EXPECT_EQ(decide_for(source).action, PollAction::sleep);
  source.weight_permille = 0;
  EXPECT_EQ(decide_for(source).action, PollAction::sleep);
  EXPECT_FALSE(source.worth_scanning());
  PollSource slower = source_with({25'000, 28'000, 31'000, 38'000}, false, kIdlePoint);
  EXPECT_EQ(decide_for(slower).action, PollAction::sleep);
  slower.weight_permille = 5'000;
  EXPECT_EQ(decide_for(slower).action, PollAction::spin);
}

// A hundred gaps are remembered: what is rarer than one of them isn't known, and costs little to wait for.
TEST(AdaptivePoll, AnOddGapIsWaitedForAsLongAsASleepWouldCost) {
  PollSource quick = source_with({1'500, 2'000, 2'500}, false, kIdlePoint);
  const PollDecision decision = decide_for(quick);
  EXPECT_EQ(decision.action, PollAction::spin);
  EXPECT_GE(decision.until, kIdlePoint + microseconds(10));
  EXPECT_LE(decision.until, kIdlePoint + microseconds(12));
  // Of these one in four is long, which is not odd.
  PollSource mixed = source_with({1'500, 2'000, 2'500, 500'000}, false, kIdlePoint);
  EXPECT_LT(decide_for(mixed).until, kIdlePoint + microseconds(4));
}

TEST(AdaptivePoll, WhatIsALittleLateIsNotLost) {
  PollSource steady = source_with({2'000, 2'010, 1'990}, false, kIdlePoint);
  EXPECT_EQ(decide_for(steady, kIdlePoint + Duration{2'300}).action, PollAction::spin);
  EXPECT_EQ(decide_for(steady, kIdlePoint + microseconds(20)).action, PollAction::sleep);
}

TEST(AdaptivePoll, ASourceLeavesAfterEightOfItsGapsUnlessTheStoreOwesItOne) {
  PollSource source = source_with({300'000, 200'000, 400'000}, false, kIdlePoint);
  static_cast<void>(decide_for(source, kIdlePoint + microseconds(2'000)));
  EXPECT_FALSE(source.has_left());
  static_cast<void>(decide_for(source, kIdlePoint + microseconds(3'000)));
  EXPECT_TRUE(source.has_left());
  PollSource stuck = source_with({300'000, 200'000, 400'000}, true, kIdlePoint);
  static_cast<void>(decide_for(stuck, kIdlePoint + Duration::seconds(5)));
  EXPECT_FALSE(stuck.has_left());
}

TEST(AdaptivePoll, ARingThatIsTooSlowToWaitForIsNotWorthScanning) {
  PollSource slow = source_with({500'000, 900'000, 2'000'000}, false, kIdlePoint);
  static_cast<void>(decide_for(slow));
  EXPECT_FALSE(slow.worth_scanning());
  PollSource fast = source_with({5'000}, false, kIdlePoint);
  static_cast<void>(decide_for(fast));
  EXPECT_TRUE(fast.worth_scanning());
}

TEST(AdaptivePoll, SpinningInVainEndsWithItsBudget) {
  // A source that always seems about to bring something, and doesn't.
  AdaptivePoll policy;
  std::int64_t in_vain = 0;
  bool was_spent = false;
  Instant now = kIdlePoint;
  for (int i = 0; i < 20'000; ++i) {
    PollSource source;
    source.idle(now, false);
    PollSource* const active[] = {&source};
    const PollSample idle{.active_sources = 1, .active = active};
    PollDecision decision = policy.decide(idle, now);
    if (decision.action == PollAction::spin) {
      in_vain += (decision.until - now).ns;
      now = decision.until;
      decision = policy.decide(idle, now);
    }
    ASSERT_EQ(decision.action, PollAction::sleep);
    was_spent |= decision.reason == PollReason::budget_spent;
    now = now + microseconds(20);
  }
  const double share = static_cast<double>(in_vain) / static_cast<double>((now - kIdlePoint).ns);
  EXPECT_TRUE(was_spent);
  EXPECT_LE(share, 0.105);
  EXPECT_GE(share, 0.08);
}

TEST(AdaptivePoll, ShadowPriceRisesWithLossesAndFallsWithoutThem) {
  AdaptivePoll policy;
  PollSource source = source_with({5'000, 8'000, 11'000}, false, kIdlePoint);
  PollSource* const active[] = {&source};
  const PollSample idle{.active_sources = 1, .active = active};
  Instant now = kIdlePoint;
  EXPECT_EQ(policy.shadow_price(), 0);
  // The source is told anew each time: it always seems to have gone idle just now.
  for (int i = 0; i < 2'000 && policy.shadow_price() == 0; ++i) {
    source = source_with({5'000, 8'000, 11'000}, false, now);
    const PollDecision spin = policy.decide(idle, now);
    now = spin.action == PollAction::spin ? spin.until : now + microseconds(5);
    static_cast<void>(policy.decide(idle, now));
    now = now + microseconds(5);
  }
  EXPECT_GT(policy.shadow_price(), 0);
  for (int i = 0; i < 2'000; ++i) {
    now = now + Duration::milliseconds(1);
    static_cast<void>(policy.decide({.worked = true, .active_sources = 1, .active = active}, now));
  }
  EXPECT_EQ(policy.shadow_price(), 0);
}

TEST(AdaptivePoll, PressureEndsTheSpinAtOnceAndHoldsItOffLongerEachTime) {
  PollSource source = source_with({8'000}, false, kIdlePoint);
  PollSource* const active[] = {&source};
  AdaptivePoll policy;
  const PollSample idle{.active_sources = 1, .active = active};
  PollSample pressed = idle;
  pressed.pressure_permille = 500;
  PollSample pressed_and_worked = pressed;
  pressed_and_worked.worked = true;
  const auto spins_at = [&](Instant now) {
    source = source_with({8'000}, false, now);
    return policy.decide(idle, now).action == PollAction::spin;
  };
  ASSERT_EQ(policy.decide(idle, kIdlePoint).action, PollAction::spin);
  const PollDecision ended = policy.decide(pressed, kIdlePoint + Duration{100});
  EXPECT_EQ(ended, (PollDecision{PollAction::sleep, Instant::never(), PollReason::pressure}));
  EXPECT_EQ(policy.decide(pressed_and_worked, kIdlePoint + Duration{200}).reason, PollReason::pressure);
  Instant now = kIdlePoint + Duration{200};
  EXPECT_FALSE(spins_at(now + Duration::milliseconds(99)));
  EXPECT_TRUE(spins_at(now + Duration::milliseconds(101)));
  // Soon again: twice as long.
  now = now + Duration::milliseconds(110);
  EXPECT_EQ(policy.decide(pressed, now).action, PollAction::sleep);
  EXPECT_FALSE(spins_at(now + Duration::milliseconds(199)));
  EXPECT_TRUE(spins_at(now + Duration::milliseconds(201)));
  // Long after: forgiven.
  now = now + Duration::seconds(10);
  EXPECT_EQ(policy.decide(pressed, now).action, PollAction::sleep);
  EXPECT_TRUE(spins_at(now + Duration::milliseconds(101)));
}

TEST(AdaptivePoll, NoHoldIsLongerThanTwoSeconds) {
  PollSource source = source_with({8'000}, false, kIdlePoint);
  PollSource* const active[] = {&source};
  AdaptivePoll policy;
  Instant now = kIdlePoint;
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(policy.decide({.active_sources = 1, .active = active, .pressure_permille = UINT32_MAX}, now));
    now = now + Duration::milliseconds(2'001);
    source = source_with({8'000}, false, now);
    ASSERT_EQ(policy.decide({.active_sources = 1, .active = active}, now).action, PollAction::spin);
  }
}

TEST(AdaptivePoll, WithoutSourcesOneByOneItLearnsOfAllTogether) {
  AdaptivePoll policy;
  Instant now = kIdlePoint;
  const PollSample idle{.active_sources = 4};
  const PollSample worked{.worked = true, .active_sources = 4};
  const auto after_gaps_of = [&](Duration gap) {
    for (int i = 0; i < 200; ++i) {
      static_cast<void>(policy.decide(idle, now));
      now = now + gap;
      static_cast<void>(policy.decide(worked, now));
    }
    return policy.decide(idle, now).action;
  };
  EXPECT_EQ(after_gaps_of(microseconds(8)), PollAction::spin);
  EXPECT_EQ(after_gaps_of(Duration::milliseconds(3)), PollAction::sleep);
}

TEST(AdaptivePollProperty, KeepsWithinItsBoundsWhateverItIsTold) {
  Prng prng(11);
  AdaptivePoll policy({.max = microseconds(150), .budget_permille = 50});
  std::vector<PollSource> sources(8);
  std::vector<PollSource*> active;
  for (PollSource& source : sources) {
    active.push_back(&source);
  }
  const auto any = [&] { return static_cast<std::int64_t>(prng.next() >> prng.below(64)); };
  Instant now{};
  Instant latest{INT64_MIN};
  for (int i = 0; i < 200'000; ++i) {
    now = prng.chance(1, 100) ? Instant{any() * (prng.chance(1, 2) ? 1 : -1)} : now + Duration{any() & 0xffff};
    if (i % 1'000 == 0) {
      policy = AdaptivePoll({.max = microseconds(150), .budget_permille = 50});  // as the clock has reached its end
      latest = Instant{INT64_MIN};
      now = Instant{i};
    }
    PollSource& source = sources[prng.below(8)];
    source.weight_permille = prng.chance(1, 50) ? UINT32_MAX : 1'000;
    prng.chance(1, 2) ? source.idle(now, prng.chance(1, 2)) : source.found(now);
    PollSample sample{.worked = prng.chance(1, 3),
                      .last_work = Instant{any()},
                      .active_sources = static_cast<std::uint32_t>(any()),
                      .active = std::span(active).first(prng.below(9)),
                      .pressure_permille = prng.chance(1, 1'000) ? UINT32_MAX : 0,
                      .process_budget_permille = static_cast<std::uint32_t>(any())};
    if (prng.chance(1, 20)) {
      sample.costs = {.wake_latency = {any()}, .wake_cpu = {-any()}, .kick_cpu = {any()}};
    }
    const PollDecision decision = policy.decide(sample, now);
    policy.check_invariants();
    latest = std::max(latest, now);
    ASSERT_GE(decision.until, latest);
    if (decision.action == PollAction::spin) {
      ASSERT_LE(decision.until, latest + microseconds(150));
    }
  }
}

TEST(AdaptivePollProperty, AStandingClockIsNoTimeAtAll) {
  PollSource source = source_with({8'000}, false, kIdlePoint);
  PollSource* const active[] = {&source};
  AdaptivePoll policy;
  const PollDecision first = policy.decide({.active_sources = 1, .active = active}, kIdlePoint);
  for (int i = 0; i < 1'000; ++i) {
    ASSERT_EQ(policy.decide({.active_sources = 1, .active = active}, kIdlePoint), first);
  }
  EXPECT_EQ(policy.decide({.active_sources = 1, .active = active}, Instant{-5}), first);  // nor is one that goes back
}

}  // namespace
}  // namespace ringway
