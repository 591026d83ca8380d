#include "control/trace_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

namespace ringway {
namespace {

using nlohmann::json;

// What the time up to a stage was spent on.
constexpr std::array<std::string_view, kStages> kIntervals{"whole",   "waited",     "parsing", "submitting",
                                                           "serving", "publishing", "calling"};

std::string time_text(double ns) {
  return ns < 9'995       ? fmt::format("{:.0f} ns", ns)
         : ns < 9'995'000 ? fmt::format("{:.1f} us", ns / 1e3)
                          : fmt::format("{:.1f} ms", ns / 1e6);
}

std::string row(std::string_view interval, std::uint64_t count, double mean, double p50, double p99, double share) {
  return fmt::format("  {:<10}  {:>10}  {:>9}  {:>9}  {:>9}  {:>5.1f} %\n", interval, count, time_text(mean), time_text(p50),
                     time_text(p99), 100 * share);
}
std::string header() {
  return fmt::format("  {:<10}  {:>10}  {:>9}  {:>9}  {:>9}  {:>7}\n", "interval", "count", "mean", "p50", "p99", "share");
}

struct Interval {
  std::vector<std::int64_t> times;
  [[nodiscard]] double mean() const {
    double sum = 0;
    for (const std::int64_t time : times) {
      sum += static_cast<double>(time);
    }
    return times.empty() ? 0 : sum / static_cast<double>(times.size());
  }
  // REQUIRES: sorted.
  [[nodiscard]] double percentile(std::size_t percent) const {
    return times.empty() ? 0 : static_cast<double>(times[(times.size() * percent + 99) / 100 - 1]);
  }
};

struct Group {
  std::array<Interval, kStages> intervals;
};

std::map<std::pair<std::string, std::string>, Group> grouped(const std::vector<TracedSpan>& spans) {
  std::map<std::pair<std::string, std::string>, Group> groups;
  for (const TracedSpan& span : spans) {
    Group& group = groups[{span.device, span.kind}];
    group.intervals[0].times.push_back(span.whole().ns);
    std::int64_t before = 0;
    for (std::size_t stage = 0; stage < kStages; ++stage) {
      if (span.at[stage] == 0) {
        continue;
      }
      if (before != 0) {
        group.intervals[stage].times.push_back(std::max<std::int64_t>(span.at[stage] - before, 0));
      }
      before = std::max(before, span.at[stage]);
    }
  }
  for (auto& [name, group] : groups) {
    for (Interval& interval : group.intervals) {
      std::ranges::sort(interval.times);
    }
  }
  return groups;
}

// Of the whole, over all requests of the group.
double share_of(const Interval& interval, const Interval& whole) {
  const double all = whole.mean() * static_cast<double>(whole.times.size());
  return all == 0 ? 0 : interval.mean() * static_cast<double>(interval.times.size()) / all;
}

std::uint64_t number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

}  // namespace

Duration TracedSpan::whole() const {
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (const std::int64_t time : at) {
    first = first == 0 ? time : first;
    last = std::max(last, time);
  }
  return {last - first};
}

json trace_status_json(const TraceStatus& status) {
  json kinds = json::object();
  for (std::size_t kind = 0; kind < kTracedKinds; ++kind) {
    json& intervals = kinds[std::string(to_string(static_cast<TracedKind>(kind)))] = json::object();
    for (std::size_t i = 0; i < kStages; ++i) {
      const StageTimes& times = status.times[kind][i];
      const std::string_view name = i == 0 ? "whole" : to_string(static_cast<Stage>(i));
      intervals[std::string(name)] = {{"count", times.count},
                                      {"mean_ns", static_cast<std::uint64_t>(times.mean.ns)},
                                      {"p50_ns", static_cast<std::uint64_t>(times.p50.ns)},
                                      {"p99_ns", static_cast<std::uint64_t>(times.p99.ns)}};
    }
  }
  return {{"every", status.every},
          {"records", status.records},
          {"missed", status.missed},
          {"dropped", status.dropped},
          {"stages", std::move(kinds)}};
}

json trace_records_json(const std::vector<StageRecord>& records, const std::map<std::uint32_t, std::string>& names) {
  json all = json::array();
  for (const StageRecord& record : records) {
    const auto name = names.find(record.device);
    json times = json::array();
    for (const Instant at : instants_of(record)) {
      times.push_back(at.ns);
    }
    all.push_back({{"device", name != names.end() ? name->second : fmt::format("#{}", record.device)},
                   {"queue", record.queue},
                   {"worker", record.worker},
                   {"kind", to_string(record.kind)},
                   {"failed", record.failed},
                   {"bytes", record.bytes},
                   {"ns", std::move(times)}});
  }
  return all;
}

Result<std::vector<TracedSpan>> spans_of_json(const json& records) {
  if (!records.is_array()) {
    return fail("the daemon's records are no list");
  }
  std::vector<TracedSpan> spans;
  for (const json& record : records) {
    TracedSpan span;
    const auto times = record.is_object() ? record.find("ns") : record.end();
    if (!record.is_object() || times == record.end() || !times->is_array() || times->size() != kStages ||
        !record.contains("device") || !record["device"].is_string() || !record.contains("kind") ||
        !record["kind"].is_string()) {
      return fail("a record of the daemon isn't what this program expects; are both of one version?");
    }
    span.device = record["device"].get<std::string>();
    span.kind = record["kind"].get<std::string>();
    span.queue = static_cast<std::uint32_t>(number(record, "queue"));
    span.worker = static_cast<std::uint32_t>(number(record, "worker"));
    span.bytes = number(record, "bytes");
    span.failed = record.contains("failed") && record["failed"].is_boolean() && record["failed"].get<bool>();
    for (std::size_t i = 0; i < kStages; ++i) {
      span.at[i] = (*times)[i].is_number_integer() ? (*times)[i].get<std::int64_t>() : 0;
    }
    spans.push_back(std::move(span));
  }
  return spans;
}

std::string stage_table(const std::vector<TracedSpan>& spans) {
  std::string out;
  for (const auto& [name, group] : grouped(spans)) {
    out += fmt::format("{}{} '{}'\n{}", out.empty() ? "" : "\n", name.second, name.first, header());
    for (std::size_t i = 1; i <= kStages; ++i) {
      const Interval& interval = group.intervals[i % kStages];  // the whole is the last line
      if (!interval.times.empty()) {
        out += row(kIntervals[i % kStages], interval.times.size(), interval.mean(), interval.percentile(50),
                   interval.percentile(99), share_of(interval, group.intervals[0]));
      }
    }
  }
  return out;
}

json stage_table_json(const std::vector<TracedSpan>& spans) {
  json all = json::array();
  for (const auto& [name, group] : grouped(spans)) {
    json intervals = json::object();
    for (std::size_t i = 0; i < kStages; ++i) {
      const Interval& interval = group.intervals[i];
      intervals[std::string(kIntervals[i])] = {{"count", interval.times.size()},
                                               {"mean_ns", interval.mean()},
                                               {"p50_ns", interval.percentile(50)},
                                               {"p99_ns", interval.percentile(99)},
                                               {"share", share_of(interval, group.intervals[0])}};
    }
    all.push_back({{"device", name.first}, {"kind", name.second}, {"intervals", std::move(intervals)}});
  }
  return all;
}

std::string trace_status_table(const json& status) {
  std::string out;
  const auto stages = status.find("stages");
  if (stages == status.end() || !stages->is_object()) {
    return out;
  }
  for (const auto& [kind, intervals] : stages->items()) {
    const json& whole = intervals.value("whole", json::object());
    const double all = static_cast<double>(number(whole, "count")) * static_cast<double>(number(whole, "mean_ns"));
    if (all == 0) {
      continue;
    }
    out += fmt::format("{}{} of all devices\n{}", out.empty() ? "" : "\n", kind, header());
    for (std::size_t i = 1; i <= kStages; ++i) {
      const std::string key(i == kStages ? "whole" : to_string(static_cast<Stage>(i)));
      const json times = intervals.value(key, json::object());
      const double count = static_cast<double>(number(times, "count"));
      const auto mean = static_cast<double>(number(times, "mean_ns"));
      if (count != 0) {
        out += row(kIntervals[i % kStages], number(times, "count"), mean, static_cast<double>(number(times, "p50_ns")),
                   static_cast<double>(number(times, "p99_ns")), count * mean / all);
      }
    }
  }
  return out;
}

std::string chrome_timeline(const std::vector<TracedSpan>& spans) {
  std::vector<const TracedSpan*> in_order;
  in_order.reserve(spans.size());
  for (const TracedSpan& span : spans) {
    in_order.push_back(&span);
  }
  const auto begin_of = [](const TracedSpan* span) {
    const auto* first = std::ranges::find_if(span->at, [](std::int64_t time) { return time != 0; });
    return first == span->at.end() ? 0 : *first;
  };
  std::ranges::sort(in_order, {}, begin_of);
  const std::int64_t zero = in_order.empty() ? 0 : begin_of(in_order.front());
  // Requests of one queue overlap; those that do are on lanes of their own.
  std::map<std::tuple<std::uint32_t, std::string, std::uint32_t>, std::vector<std::int64_t>> lanes;
  std::map<std::tuple<std::uint32_t, std::string, std::uint32_t, std::size_t>, std::size_t> tracks;
  std::string out = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n";
  std::map<std::uint32_t, bool> workers;
  std::string separator;
  const auto add = [&](const json& event) {
    out += separator + event.dump(-1, ' ', false, json::error_handler_t::replace);
    separator = ",\n";
  };
  const auto micros = [](std::int64_t ns) { return static_cast<double>(ns) / 1e3; };
  for (const TracedSpan* span : in_order) {
    const std::int64_t begin = begin_of(span);
    std::vector<std::int64_t>& ends = lanes[{span->worker, span->device, span->queue}];
    std::size_t lane = 0;
    while (lane < ends.size() && ends[lane] > begin) {
      ++lane;
    }
    if (lane == ends.size()) {
      ends.push_back(0);
    }
    ends[lane] = begin + span->whole().ns;
    const auto [track, is_new] = tracks.try_emplace({span->worker, span->device, span->queue, lane}, tracks.size() + 1);
    if (!std::exchange(workers[span->worker], true)) {
      add({{"ph", "M"},
           {"name", "process_name"},
           {"pid", span->worker + 1},
           {"tid", 0},
           {"args", {{"name", fmt::format("worker {}", span->worker)}}}});
    }
    if (is_new) {
      add({{"ph", "M"},
           {"name", "thread_name"},
           {"pid", span->worker + 1},
           {"tid", track->second},
           {"args",
            {{"name",
              fmt::format("{} queue {}{}", span->device, span->queue, lane == 0 ? "" : fmt::format(" (+{})", lane))}}}});
    }
    add({{"ph", "X"},
         {"name", span->kind},
         {"cat", "request"},
         {"pid", span->worker + 1},
         {"tid", track->second},
         {"ts", micros(begin - zero)},
         {"dur", micros(span->whole().ns)},
         {"args", {{"bytes", span->bytes}, {"failed", span->failed}}}});
    std::int64_t before = 0;
    for (std::size_t stage = 0; stage < kStages; ++stage) {
      const std::int64_t at = span->at[stage];
      if (at == 0) {
        continue;
      }
      if (before != 0 && at > before) {
        add({{"ph", "X"},
             {"name", kIntervals[stage]},
             {"cat", "interval"},
             {"pid", span->worker + 1},
             {"tid", track->second},
             {"ts", micros(before - zero)},
             {"dur", micros(at - before)}});
      }
      before = std::max(before, at);
    }
  }
  return out + "\n]}\n";
}

}  // namespace ringway
