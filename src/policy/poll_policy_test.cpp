// Table and property tests of the baseline policies, and a closed loop with simulated arrivals in virtual time.
#include "policy/poll_policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.hpp"

namespace ringway {
namespace {

constexpr Instant kNow{1'000'000};

PollPolicy parsed(std::string_view text) {
  auto policy = parse_poll_policy(text);
  EXPECT_TRUE(policy.has_value()) << text;
  return policy.value_or(PollPolicy{});
}

TEST(PollPolicyTable, GivesTheDecisionOfEachRow) {
  struct Row {
    const char* policy;
    PollSample sample;
    PollDecision expected;
  };
  const Instant recent{kNow.ns - 49'999};
  const Instant just_elapsed{kNow.ns - 50'000};
  const Instant future{kNow.ns + 7'000};
  const Row rows[] = {
      {"never",
       {.worked = true, .last_work = kNow, .active_sources = 1},
       {PollAction::sleep, Instant::never(), PollReason::policy_never}},
      {"never",
       {.worked = false, .last_work = kNow, .active_sources = 1},
       {PollAction::sleep, Instant::never(), PollReason::policy_never}},
      {"always",
       {.worked = false, .last_work = Instant::never(), .active_sources = 0},
       {PollAction::spin, Instant::never(), PollReason::policy_always}},
      {"always",
       {.worked = true, .last_work = kNow, .active_sources = 1},
       {PollAction::spin, Instant::never(), PollReason::policy_always}},
      {"fixed=50us",
       {.worked = true, .last_work = kNow, .active_sources = 1},
       {PollAction::spin, Instant{kNow.ns + 50'000}, PollReason::worked}},
      {"fixed=50us",
       {.worked = false, .last_work = recent, .active_sources = 1},
       {PollAction::spin, Instant{recent.ns + 50'000}, PollReason::within_window}},
      {"fixed=50us",
       {.worked = false, .last_work = just_elapsed, .active_sources = 1},
       {PollAction::sleep, Instant::never(), PollReason::window_elapsed}},
      {"fixed=50us",
       {.worked = false, .last_work = recent, .active_sources = 0},
       {PollAction::sleep, Instant::never(), PollReason::nothing_active}},
      {"fixed=50us",
       {.worked = false, .last_work = Instant::never(), .active_sources = 3},
       {PollAction::sleep, Instant::never(), PollReason::nothing_active}},
      // Work stamped later than `now`: as if it had been now, so the window can't stretch.
      {"fixed=50us",
       {.worked = false, .last_work = future, .active_sources = 1},
       {PollAction::spin, Instant{kNow.ns + 50'000}, PollReason::within_window}},
  };
  for (const Row& row : rows) {
    PollPolicy policy = parsed(row.policy);
    const PollDecision decision = policy.decide(row.sample, kNow);
    EXPECT_EQ(decision, row.expected) << row.policy << ": " << to_string(decision.reason) << " instead of "
                                      << to_string(row.expected.reason);
  }
}

TEST(PollPolicyProperty, FixedLooksOnceMoreAfterWorkAndNeitherSpinsPastItsWindow) {
  Prng prng(20);
  PollPolicy fixed = parsed("fixed=50us");
  PollPolicy never = parsed("never");
  for (int i = 0; i < 100'000; ++i) {
    // Extremes of every field, among ordinary values.
    const Instant now{static_cast<std::int64_t>(prng.chance(1, 50) ? INT64_MAX - prng.below(3) : prng.below(1'000'000'000))};
    const Instant last{prng.chance(1, 20) ? INT64_MAX : static_cast<std::int64_t>(prng.below(1'000'000'000))};
    const PollSample sample{.worked = prng.chance(1, 2),
                            .last_work = last,
                            .active_sources = prng.chance(1, 10) ? UINT32_MAX : static_cast<std::uint32_t>(prng.below(3))};
    const PollDecision decision = fixed.decide(sample, now);
    if (sample.worked) {
      ASSERT_EQ(decision.action, PollAction::spin);
    }
    ASSERT_EQ(never.decide(sample, now).action, PollAction::sleep);
    if (decision.action == PollAction::spin) {
      ASSERT_GE(decision.until, now);
      ASSERT_LE(decision.until, now + Duration::microseconds(50));
    }
  }
}

TEST(PollPolicyProperty, StandingClockKeepsSpinningAndAMovingOneEndsIt) {
  PollPolicy policy = parsed("fixed=1us");
  const PollSample idle{.worked = false, .last_work = kNow, .active_sources = 1};
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(policy.decide(idle, kNow).action, PollAction::spin);
  }
  EXPECT_EQ(policy.decide(idle, kNow + Duration::nanoseconds(999)).action, PollAction::spin);
  EXPECT_EQ(policy.decide(idle, kNow + Duration::nanoseconds(1000)).action, PollAction::sleep);
}

// One worker, arrivals every `gap`, each served in one turn of `turn`; a sleep costs `wake` before the next turn.
struct Outcome {
  std::int64_t spun_ns = 0;
  std::int64_t latency_ns_max = 0;
  int sleeps = 0;
};

Outcome run_closed_loop(PollPolicy policy, std::int64_t gap_ns, int arrivals) {
  constexpr std::int64_t kTurn = 200;
  constexpr std::int64_t kWake = 7'000;
  Outcome outcome;
  std::int64_t now = 0;
  Instant last_work = Instant::never();
  for (int served = 0; served < arrivals;) {
    const std::int64_t next_arrival = (served + 1) * gap_ns;
    const bool worked = next_arrival <= now;
    now += kTurn;
    if (worked) {
      outcome.latency_ns_max = std::max(outcome.latency_ns_max, now - next_arrival);
      last_work = Instant{now};
      ++served;
    } else {
      outcome.spun_ns += kTurn;
    }
    const PollDecision decision =
        policy.decide({.worked = worked, .last_work = last_work, .active_sources = 1}, Instant{now});
    if (decision.action == PollAction::sleep) {
      ++outcome.sleeps;
      now = std::max(now, (served + 1) * gap_ns) + kWake;
    }
  }
  return outcome;
}

TEST(PollPolicyClosedLoop, NeverPaysAWakeUpForEachArrivalAndNoSpin) {
  const Outcome outcome = run_closed_loop(parsed("never"), 40'000, 1000);
  EXPECT_GE(outcome.sleeps, 1000);
  EXPECT_GE(outcome.latency_ns_max, 7'000);
  EXPECT_LE(outcome.spun_ns, 400);
}

TEST(PollPolicyClosedLoop, FixedCatchesArrivalsWithinItsWindow) {
  // The first arrival finds the worker asleep, since there was no work before; none of the later ones does.
  const Outcome outcome = run_closed_loop(parsed("fixed=50us"), 40'000, 1000);
  EXPECT_EQ(outcome.sleeps, 1);
}

TEST(PollPolicyClosedLoop, FixedSpinsOneWindowPerArrivalThatComesLater) {
  const Outcome outcome = run_closed_loop(parsed("fixed=50us"), 1'000'000, 100);
  EXPECT_EQ(outcome.sleeps, 100);
  EXPECT_NEAR(static_cast<double>(outcome.spun_ns), 99 * 50'000.0, 99 * 400.0);
}

TEST(PollPolicyClosedLoop, AlwaysNeverSleepsAndServesWithinTwoTurns) {
  const Outcome outcome = run_closed_loop(parsed("always"), 1'000'000, 100);
  EXPECT_EQ(outcome.sleeps, 0);
  EXPECT_LE(outcome.latency_ns_max, 400);
}

TEST(PollPolicyClosedLoop, AdaptiveSpinsForQuickArrivalsAndNotForSlowOnes) {
  EXPECT_LE(run_closed_loop(parsed("adaptive"), 10'000, 1'000).sleeps, 5);
  const Outcome slow = run_closed_loop(parsed("adaptive"), 2'000'000, 1'000);
  EXPECT_GE(slow.sleeps, 1'000);
  EXPECT_LE(slow.spun_ns, 1'000 * 2'000);
}

TEST(PollPolicyClosedLoop, GrowShrinkSpinsForWhatFitsItsWindowAndNotForOthers) {
  EXPECT_LE(run_closed_loop(parsed("grow_shrink"), 20'000, 1'000).sleeps, 10);
  EXPECT_GE(run_closed_loop(parsed("grow_shrink"), 100'000, 1'000).sleeps, 1'000);
}

TEST(PollPolicyOutcome, CountsWhatCameOfEachDecision) {
  PollPolicy policy = parsed("fixed=50us");
  const auto at = [](std::int64_t us) { return Instant{1'000'000'000 + us * 1'000}; };
  Instant last_work = at(0);
  const auto turn = [&](bool worked, std::int64_t us) {
    last_work = worked ? at(us) : last_work;
    return policy.decide({.worked = worked, .last_work = last_work, .active_sources = 1}, at(us)).action;
  };
  static_cast<void>(turn(true, 0));
  static_cast<void>(turn(false, 1));
  static_cast<void>(turn(false, 20));
  static_cast<void>(turn(true, 30));  // 29 us well spent
  static_cast<void>(turn(false, 32));
  EXPECT_EQ(turn(false, 80), PollAction::sleep);  // 48 us in vain
  static_cast<void>(turn(true, 95));              // and so soon that the sleep was a pity
  static_cast<void>(turn(false, 96));
  EXPECT_EQ(turn(false, 150), PollAction::sleep);  // 54 us
  static_cast<void>(turn(true, 1'000));            // that sleep was right
  const PollOutcome expected{
      .productive_spin_ns = 29'000, .unproductive_spin_ns = 102'000, .wakeups_avoided = 1, .sleeps = 2, .misses = 1};
  EXPECT_EQ(policy.outcome(), expected);
}

TEST(PollPolicyOutcome, AClockThatGoesBackAddsNothing) {
  PollPolicy policy = parsed("always");
  static_cast<void>(policy.decide({.worked = false, .last_work = kNow, .active_sources = 1}, kNow));
  static_cast<void>(policy.decide({.worked = true, .last_work = kNow, .active_sources = 1}, Instant{kNow.ns - 500}));
  EXPECT_EQ(policy.outcome().productive_spin_ns, 0U);
  EXPECT_EQ(policy.outcome().wakeups_avoided, 1U);
}

TEST(ParsePollPolicy, ReadsWhatToStringWrites) {
  for (const char* text : {"never", "always", "fixed=1ns", "fixed=50us", "fixed=1500us", "fixed=2ms", "fixed=1s",
                           "grow_shrink=max=32768ns,grow=2,shrink=0", "grow_shrink=max=1ms,grow=0,shrink=2",
                           "adaptive=max=200us,budget=10%", "adaptive=max=1ms,budget=100%"}) {
    EXPECT_EQ(parsed(text).to_string(), text);
  }
  EXPECT_EQ(parsed("grow_shrink").to_string(), "grow_shrink=max=32768ns,grow=2,shrink=0");
  EXPECT_EQ(parsed("grow_shrink=shrink=4").to_string(), "grow_shrink=max=32768ns,grow=2,shrink=4");
  EXPECT_EQ(parsed("adaptive").to_string(), "adaptive=max=200us,budget=10%");
  EXPECT_EQ(parsed("adaptive=budget=3%").to_string(), "adaptive=max=200us,budget=3%");
  EXPECT_EQ(parsed("adaptive=max=20us").to_string(), "adaptive=max=20us,budget=10%");
  EXPECT_EQ(parsed("fixed").to_string(), "fixed=50us");
  EXPECT_EQ(parsed("fixed=2000ns").to_string(), "fixed=2us");
}

TEST(ParsePollPolicy, RefusesWithAReasonAndWhatIsAllowed) {
  struct Row {
    const char* text;
    const char* reason;
  };
  const Row rows[] = {
      {"", "no such policy"},
      {"sometimes", "no such policy"},
      {"Never", "no such policy"},
      {"never ", "no such policy"},
      {"fixed=", "must start with a whole number"},
      {"fixed=us", "must start with a whole number"},
      {"fixed= 5us", "must start with a whole number"},
      {"fixed=50", "needs a unit"},
      {"fixed=50 us", "no unit \" us\""},
      {"fixed=1.5us", "no unit \".5us\""},
      {"fixed=50m", "no unit \"m\""},
      {"fixed=0us", "out of range"},
      {"fixed=-1us", "out of range"},
      {"fixed=1001ms", "out of range"},
      {"fixed=9223372036854775807s", "out of range"},
      {"fixed=99999999999999999999ns", "out of range"},
      {"never=1us", "no such policy"},
      {"grow_shrink=", "no setting \"\""},
      {"grow_shrink=32us", "no setting \"32us\""},
      {"grow_shrink=max", "the time must start with a whole number"},
      {"grow_shrink=max=2s", "out of range"},
      {"grow_shrink=grow=1", "would never grow"},
      {"grow_shrink=shrink=1001", "shrink must be 0 to 1000"},
      {"grow_shrink=shrink=2,", "nothing follows the last comma"},
      {"grow_shrink=max=1us,,grow=2", "no setting \"\""},
      {"adaptive=budget=10", "budget must be 1% to 100%"},
      {"adaptive=budget=0%", "budget must be 1% to 100%"},
      {"adaptive=budget=101%", "budget must be 1% to 100%"},
      {"adaptive=max=2ms", "out of range"},
      {"adaptive=max=999ns", "out of range"},
      {"adaptive=window=5us", "no setting \"window\""},
  };
  for (const Row& row : rows) {
    const auto policy = parse_poll_policy(row.text);
    ASSERT_FALSE(policy.has_value()) << row.text;
    EXPECT_NE(policy.error().message.find(row.reason), std::string::npos) << row.text << ": " << policy.error().message;
    EXPECT_NE(policy.error().message.find("fixed=TIME"), std::string::npos) << policy.error().message;
  }
}

}  // namespace
}  // namespace ringway
