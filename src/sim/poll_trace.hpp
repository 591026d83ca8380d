// A recorded sequence of work, and what each poll policy would have made of it.
//
// The file: one event a line, in order of time, "time_ns,source" or "time_ns,source,kind"; kind is "request" (also if it is
// left out: the driver made one available) or "completion" (the store finished one). Times in whole nanoseconds of any
// clock. Lines that start with # and empty ones are skipped, and so is a first line that starts with "time_ns".
//
//     time_ns,source,kind
//     1000,vda.0,request
//     9500,vda.0,completion
//
// The replay is open: events keep their times, whatever the policy does. A driver that waits for its completions would have
// sent later or sooner, so rates can't be told from it; latency and processor time can. Of a source without completions
// each request completes at once.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "policy/poll_policy.hpp"
#include "sim/poll_sim.hpp"

namespace ringway {

struct PollTrace {
  std::vector<SimSource> sources;  // with scripts; times from 0
  Duration length;                 // a little more than the last event's time
};

// Errors begin with "file:line: " and say what should be there; `file` is only for them.
[[nodiscard]] Result<PollTrace> parse_poll_trace(std::string_view text, std::string_view file = "trace");

struct PollReplayRow {
  std::string policy;
  PollSimResult result;
};

// One row for each policy, in their order.
[[nodiscard]] std::vector<PollReplayRow> replay_poll_trace(const PollTrace& trace, std::span<const PollPolicy> policies,
                                                           const SimCosts& costs = {});
// Those that there are, each with its defaults.
[[nodiscard]] std::vector<PollPolicy> all_poll_policies();
// For a terminal: a head and a line for each row.
[[nodiscard]] std::string poll_replay_table(std::span<const PollReplayRow> rows);

}  // namespace ringway
