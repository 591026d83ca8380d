#include "sim/poll_trace.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ringway {
namespace {

using testing::HasSubstr;

TEST(ParsePollTrace, ReadsRequestsAndCompletionsOfSeveralSources) {
  const auto trace = parse_poll_trace(
      "time_ns,source,kind\r\n"
      "# recorded by hand\n"
      "5000,vda.0,request\n"
      "\n"
      "6000,vdb.0\n"
      "9500,vda.0,completion");
  ASSERT_TRUE(trace.has_value()) << trace.error().message;
  ASSERT_EQ(trace->sources.size(), 2U);
  EXPECT_EQ(trace->sources[0].name, "vda.0");
  ASSERT_EQ(trace->sources[0].script.size(), 2U);
  EXPECT_EQ(trace->sources[0].script[0].at.ns, 0);
  EXPECT_FALSE(trace->sources[0].script[0].is_completion);
  EXPECT_EQ(trace->sources[0].script[1].at.ns, 4500);
  EXPECT_TRUE(trace->sources[0].script[1].is_completion);
  ASSERT_EQ(trace->sources[1].script.size(), 1U);
  EXPECT_EQ(trace->sources[1].script[0].at.ns, 1000);
  EXPECT_GT(trace->length.ns, 4500);
}

TEST(ParsePollTrace, RefusesWithTheLineAndWhatShouldBeThere) {
  struct Row {
    const char* text;
    const char* reason;
  };
  const Row rows[] = {
      {"", "gaps.csv holds no event"},
      {"time_ns,source\n", "gaps.csv holds no event"},
      {"1000,vda\nsoon,vda\n", "gaps.csv:2: \"soon\" is no time"},
      {"1.5,vda\n", "gaps.csv:1: \"1.5\" is no time"},
      {"-1,vda\n", "gaps.csv:1: \"-1\" is no time"},
      {"99999999999999999999,vda\n", "is no time"},
      {"1000\n", "gaps.csv:1: the source is missing"},
      {"1000,\n", "gaps.csv:1: the source is missing"},
      {"1000,vda,kick\n", "gaps.csv:1: there is no kind \"kick\""},
      {"1000,vda,request,4096\n", "gaps.csv:1: more than three fields"},
      {"1000,vda\n# sorted?\n999,vda\n", "gaps.csv:3: 999 is before the time of line 1; sort"},
      {"1,vda\ntime_ns,source\n", "gaps.csv:2: \"time_ns\" is no time"},
      {"0,vda\n9000000000000000000,vda\n", "gaps.csv:2: the events span more than a year"},
  };
  for (const Row& row : rows) {
    const auto trace = parse_poll_trace(row.text, "gaps.csv");
    ASSERT_FALSE(trace.has_value()) << row.text;
    EXPECT_THAT(trace.error().message, HasSubstr(row.reason)) << row.text;
  }
}

// 500 requests, 40 us apart, of a store that takes 10 us.
std::string regular_trace() {
  std::string text;
  for (int i = 0; i < 500; ++i) {
    text += fmt::format("{},disk,request\n{},disk,completion\n", 1'000'000 + i * 40'000, 1'010'000 + i * 40'000);
  }
  return text;
}

TEST(ReplayPollTrace, GivesEachPolicyItsLatencyAndProcessorTime) {
  const auto trace = parse_poll_trace(regular_trace());
  ASSERT_TRUE(trace.has_value());
  const std::vector<PollPolicy> policies = all_poll_policies();
  const std::vector<PollReplayRow> rows = replay_poll_trace(*trace, policies);
  ASSERT_EQ(rows.size(), 5U);
  for (const PollReplayRow& row : rows) {
    EXPECT_EQ(row.result.requests, 500U) << row.policy;
  }
  const PollSimResult& never = rows[0].result;
  const PollSimResult& always = rows[1].result;
  const PollSimResult& adaptive = rows[4].result;
  EXPECT_EQ(rows[4].policy, PollPolicy(AdaptivePoll{}).to_string());
  EXPECT_EQ(never.outcome.productive_spin_ns, 0U);
  EXPECT_GE(never.wakeups, 900U);
  EXPECT_EQ(always.wakeups, 0U);
  EXPECT_GT(always.worker_share(), 0.99);
  EXPECT_LT(always.p50.ns, 12'000);
  EXPECT_GT(never.p50.ns, 15'000);
  EXPECT_LT(adaptive.p50.ns, 12'000);
  EXPECT_LT(adaptive.worker_share(), 0.6);
}

TEST(ReplayPollTrace, ACompletionBeforeItsRequestWasSeenIsNotLost) {
  // The worker sleeps when both come, and the store was quicker than the wake-up.
  const auto trace = parse_poll_trace("0,disk,completion\n1000000,disk,request\n1001000,disk,completion\n");
  ASSERT_TRUE(trace.has_value());
  const PollPolicy policies[] = {NeverPoll{}};
  const std::vector<PollReplayRow> rows = replay_poll_trace(*trace, policies);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].result.requests, 1U);
}

TEST(ReplayPollTrace, TableHasARowForEachPolicy) {
  const auto trace = parse_poll_trace(regular_trace());
  ASSERT_TRUE(trace.has_value());
  const std::vector<PollPolicy> policies = all_poll_policies();
  const std::string table = poll_replay_table(replay_poll_trace(*trace, policies));
  EXPECT_THAT(table, HasSubstr("policy"));
  for (const PollPolicy& policy : policies) {
    EXPECT_THAT(table, HasSubstr("\n" + policy.to_string() + " "));
  }
  EXPECT_EQ(std::ranges::count(table, '\n'), 6);
}

}  // namespace
}  // namespace ringway
