#include "policy/grow_shrink_poll.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.hpp"

namespace ringway {
namespace {

// One source that waits `gap` each time; gives how long the policy would spin for it after `rounds` of that.
Duration window_after(GrowShrinkPoll& policy, PollSource& source, Duration gap, int rounds, Instant& now) {
  PollSource* const active[] = {&source};
  Duration window;
  for (int i = 0; i <= rounds; ++i) {
    source.idle(now, false);
    const PollDecision decision = policy.decide({.worked = false, .active_sources = 1, .active = active}, now);
    window = decision.action == PollAction::spin ? decision.until - now : Duration{};
    if (i < rounds) {
      now = now + gap;
      source.found(now);
      EXPECT_EQ(policy.decide({.worked = true, .active_sources = 1, .active = active}, now).action, PollAction::spin);
    }
  }
  return window;
}

TEST(GrowShrinkPoll, DoublesFromFourMicrosecondsUntilTheGapFits) {
  struct Row {
    int rounds;
    std::int64_t window_ns;
  };
  const Row rows[] = {{0, 0}, {1, 4'000}, {2, 8'000}, {3, 16'000}, {4, 32'000}, {5, 32'000}, {50, 32'000}};
  for (const Row& row : rows) {
    GrowShrinkPoll policy;
    PollSource source;
    Instant now{1'000'000};
    EXPECT_EQ(window_after(policy, source, Duration::microseconds(20), row.rounds, now).ns, row.window_ns) << row.rounds;
  }
}

TEST(GrowShrinkPoll, ShrinksByItsFactorOrToNothing) {
  struct Row {
    std::uint32_t shrink;
    std::int64_t window_ns;
  };
  const Row rows[] = {{0, 0}, {1, 32'000}, {2, 16'000}, {4, 8'000}};
  for (const Row& row : rows) {
    GrowShrinkPoll policy({.shrink = row.shrink});
    PollSource source;
    Instant now{1'000'000};
    static_cast<void>(window_after(policy, source, Duration::microseconds(20), 10, now));
    EXPECT_EQ(window_after(policy, source, Duration::microseconds(100), 1, now).ns, row.window_ns) << row.shrink;
  }
}

TEST(GrowShrinkPoll, NoWindowIsLongerThanMax) {
  GrowShrinkPoll policy({.max = Duration::microseconds(10), .grow = 1'000});
  PollSource source;
  Instant now{1'000'000};
  EXPECT_EQ(window_after(policy, source, Duration::microseconds(9), 20, now), Duration::microseconds(10));
}

TEST(GrowShrinkPoll, SpinsForTheLongestWindowAndSleepsBehindIt) {
  PollSource quick;
  PollSource slow;
  GrowShrinkPoll policy;
  PollSource* const active[] = {&slow, &quick};
  quick.window = Duration::microseconds(16);
  const Instant now{5'000'000};
  quick.idle(now, false);
  slow.idle(now, false);
  const PollSample idle{.worked = false, .active_sources = 2, .active = active};
  const PollDecision spin{PollAction::spin, now + Duration::microseconds(16), PollReason::within_window};
  EXPECT_EQ(policy.decide(idle, now), spin);
  EXPECT_EQ(policy.decide(idle, now + Duration::nanoseconds(15'999)), spin);
  EXPECT_EQ(policy.decide(idle, now + Duration::microseconds(16)).action, PollAction::sleep);
  EXPECT_EQ(policy.decide(idle, now + Duration::microseconds(16)).reason, PollReason::window_elapsed);
}

TEST(GrowShrinkPoll, SourceLeavesAfterSevenSecondsAndItsWindowWithIt) {
  PollSource source;
  GrowShrinkPoll policy;
  PollSource* const active[] = {&source};
  source.window = Duration::microseconds(16);
  source.idle(Instant{0}, false);
  const PollSample idle{.worked = false, .active_sources = 1, .active = active};
  static_cast<void>(policy.decide(idle, Instant{6'999'000'000}));
  EXPECT_FALSE(source.has_left());
  EXPECT_EQ(source.window, Duration::microseconds(16));
  static_cast<void>(policy.decide(idle, Instant{7'000'000'001}));
  EXPECT_TRUE(source.has_left());
  EXPECT_EQ(source.window, Duration{});
}

TEST(GrowShrinkPoll, WithoutSourcesOneByOneItKeepsOneWindowForAll) {
  GrowShrinkPoll policy;
  Instant now{1'000'000};
  for (int i = 0; i < 5; ++i) {
    static_cast<void>(policy.decide({.worked = false, .active_sources = 3}, now));
    now = now + Duration::microseconds(20);
    static_cast<void>(policy.decide({.worked = true, .active_sources = 3}, now));
  }
  const PollDecision decision = policy.decide({.worked = false, .active_sources = 3}, now);
  EXPECT_EQ(decision.action, PollAction::spin);
  EXPECT_EQ(decision.until, now + Duration::microseconds(32));
  EXPECT_EQ(policy.decide({.worked = false, .active_sources = 0}, now).reason, PollReason::nothing_active);
}

TEST(GrowShrinkPollProperty, NeverSpinsPastMaxWhateverItIsTold) {
  Prng prng(7);
  GrowShrinkPoll policy;
  std::vector<PollSource> sources(3);
  PollSource* const active[] = {&sources[0], &sources[1], &sources[2]};
  for (int i = 0; i < 100'000; ++i) {
    const Instant now{prng.chance(1, 30) ? static_cast<std::int64_t>(prng.next()) : i * 1'000};
    PollSource& source = sources[prng.below(3)];
    if (prng.chance(1, 2)) {
      source.idle(now, prng.chance(1, 2));
    } else {
      source.found(now);
    }
    const bool worked = prng.chance(1, 2);
    const PollDecision decision = policy.decide({.worked = worked, .active_sources = 3, .active = active}, now);
    if (decision.action == PollAction::spin) {
      ASSERT_GE(decision.until, now);
      ASSERT_LE(decision.until, now + Duration::nanoseconds(32'768));
    }
  }
}

}  // namespace
}  // namespace ringway
