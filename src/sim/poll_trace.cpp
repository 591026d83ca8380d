#include "sim/poll_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>

namespace ringway {

namespace {

// Where the policy may show what it does after the last event.
constexpr Duration kTail = Duration::milliseconds(1);
// As long as a script may be: Instant has room for much more, but nobody has recorded a year.
constexpr Duration kLengthMax = Duration::seconds(std::int64_t{366} * 24 * 3600);

struct Position {
  std::string_view file;
  std::size_t line = 0;
};

std::unexpected<Error> refuse(const Position& position, std::string_view why) {
  return fail(
      fmt::format("{}:{}: {}; expected time_ns,source[,kind], e.g. 1000,vda.0,request", position.file, position.line, why));
}

std::string_view take_until(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  const std::string_view taken = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  return taken;
}

struct Line {
  std::int64_t time_ns = 0;
  std::string_view source;
  bool is_completion = false;
};

Result<Line> parse_line(std::string_view text, const Position& position) {
  if (std::ranges::count(text, ',') > 2) {
    return refuse(position, "more than three fields");
  }
  Line line;
  const std::string_view time = take_until(text, ',');
  const auto [end, error] = std::from_chars(time.data(), time.data() + time.size(), line.time_ns);
  if (error != std::errc{} || end != time.data() + time.size() || line.time_ns < 0) {
    return refuse(position, fmt::format("\"{}\" is no time in whole nanoseconds", time));
  }
  line.source = take_until(text, ',');
  if (line.source.empty()) {
    return refuse(position, "the source is missing");
  }
  const std::string_view kind = text;
  line.is_completion = kind == "completion";
  if (!kind.empty() && kind != "request" && !line.is_completion) {
    return refuse(position, fmt::format("there is no kind \"{}\" (request or completion)", kind));
  }
  return line;
}

bool is_skipped(std::string_view line, std::size_t number) {
  return line.empty() || line.starts_with('#') || (number == 1 && line.starts_with("time_ns"));
}

}  // namespace

Result<PollTrace> parse_poll_trace(std::string_view text, std::string_view file) {
  PollTrace trace;
  std::map<std::string, std::size_t, std::less<>> index_of;
  std::int64_t first = -1;
  std::int64_t last = 0;
  std::size_t last_line = 0;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line_text = take_until(text, '\n');
    if (line_text.ends_with('\r')) {
      line_text.remove_suffix(1);
    }
    if (is_skipped(line_text, number)) {
      continue;
    }
    const Position position{.file = file, .line = number};
    RW_TRY_ASSIGN(const Line line, parse_line(line_text, position));
    if (first < 0) {
      first = line.time_ns;
    } else if (line.time_ns < last) {
      return refuse(position,
                    fmt::format("{} is before the time of line {}; sort the file by time", line.time_ns, last_line));
    }
    if (line.time_ns - first > kLengthMax.ns) {
      return refuse(position, "the events span more than a year");
    }
    last = line.time_ns;
    last_line = number;
    const auto [entry, is_new] = index_of.try_emplace(std::string(line.source), trace.sources.size());
    if (is_new) {
      trace.sources.push_back({.name = entry->first, .inline_service = {}});
    }
    trace.sources[entry->second].script.push_back({.at = Instant{last - first}, .is_completion = line.is_completion});
  }
  if (trace.sources.empty()) {
    return fail(fmt::format("{} holds no event; expected lines of time_ns,source[,kind], e.g. 1000,vda.0,request", file));
  }
  trace.length = Duration{last - first} + kTail;
  return trace;
}

std::vector<PollReplayRow> replay_poll_trace(const PollTrace& trace, std::span<const PollPolicy> policies,
                                             const SimCosts& costs) {
  const PollSimOptions options{.sources = trace.sources, .costs = costs, .length = trace.length, .warm_up = {}};
  std::vector<PollReplayRow> rows;
  rows.reserve(policies.size());
  for (const PollPolicy& policy : policies) {
    rows.push_back({.policy = policy.to_string(), .result = simulate_poll(policy, options)});
  }
  return rows;
}

std::vector<PollPolicy> all_poll_policies() {
  return {NeverPoll{}, AlwaysPoll{}, FixedPoll{}, GrowShrinkPoll{}, AdaptivePoll{}};
}

std::string poll_replay_table(std::span<const PollReplayRow> rows) {
  std::size_t width = std::string_view("policy").size();
  for (const PollReplayRow& row : rows) {
    width = std::max(width, row.policy.size());
  }
  std::string table;
  const auto out = std::back_inserter(table);
  fmt::format_to(out, "{:<{}} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>9} {:>9} {:>7}\n", "policy", width, "requests",
                 "mean_us", "p50_us", "p99_us", "cpu_%", "spin+_%", "spin-_%", "wakeups", "avoided", "misses");
  for (const PollReplayRow& row : rows) {
    const PollSimResult& result = row.result;
    const auto us = [](Duration duration) { return static_cast<double>(duration.ns) / 1000; };
    fmt::format_to(out, "{:<{}} {:>9} {:>9.2f} {:>9.2f} {:>9.2f} {:>7.2f} {:>7.2f} {:>7.2f} {:>9} {:>9} {:>7}\n", row.policy,
                   width, result.requests, us(result.mean), us(result.p50), us(result.p99), 100 * result.worker_share(),
                   100 * result.productive_share(), 100 * result.unproductive_share(), result.wakeups,
                   result.outcome.wakeups_avoided, result.outcome.misses);
  }
  return table;
}

}  // namespace ringway
