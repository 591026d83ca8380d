#include "bench/polling_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "bench/median.hpp"

namespace ringway {
namespace {

constexpr std::uint64_t kWindowNsMax = 1'000'000'000;
constexpr double kNearBest = 0.95;

PollingRow window_row(std::uint64_t ns) {
  return {.name = fmt::to_string(ns), .policy = ns == 0 ? "never" : fmt::format("fixed={}ns", ns), .window_ns = ns};
}

double median_of(std::span<const PollingCell> rounds, double (*figure)(const PollingCell&)) {
  std::vector<double> values;
  values.reserve(rounds.size());
  std::ranges::transform(rounds, std::back_inserter(values), figure);
  return median(std::move(values));
}

const PollingLine* find_line(const PollingSeries& series, std::string_view name) {
  const auto found = std::ranges::find(series.lines, name, [](const PollingLine& line) { return line.row.name; });
  return found == series.lines.end() ? nullptr : &*found;
}

std::optional<double> ratio(double part, double whole) {
  return whole > 0 ? std::optional(part / whole) : std::nullopt;
}

std::string verdict_text(const PollingVerdict& verdict) {
  std::string text;
  const auto out = std::back_inserter(text);
  const auto figure = [](std::optional<double> value) { return value ? fmt::format("{:.3f}", *value) : std::string("-"); };
  if (verdict.adaptive_of_always || verdict.adaptive_of_never) {
    fmt::format_to(out, "  adaptive: {} x the IOPS of always, {} x never's; {} x never's IOPS per CPU second (both)\n",
                   figure(verdict.adaptive_of_always), figure(verdict.adaptive_of_never),
                   figure(verdict.adaptive_per_cpu_of_never));
  }
  if (verdict.worst_of_best) {
    fmt::format_to(out, "  windows:  from {} ns on within {:.0f} % of the best; the least of them ({} ns) has {} x\n",
                   verdict.needed_window, 100 * (1 - kNearBest), verdict.worst_window, figure(verdict.worst_of_best));
  }
  return text;
}

nlohmann::json verdict_json(const PollingVerdict& verdict) {
  nlohmann::json json = nlohmann::json::object();
  const auto put = [&json](const char* key, std::optional<double> value) {
    if (value) {
      json[key] = *value;
    }
  };
  put("adaptive_iops_of_always", verdict.adaptive_of_always);
  put("adaptive_iops_of_never", verdict.adaptive_of_never);
  put("adaptive_iops_per_cpu_second_of_never", verdict.adaptive_per_cpu_of_never);
  put("worst_window_iops_of_best", verdict.worst_of_best);
  if (verdict.worst_of_best) {
    json["needed_window"] = verdict.needed_window;
    json["worst_window"] = verdict.worst_window;
  }
  return json;
}

}  // namespace

Result<PollingRow> parse_polling_row(std::string_view name) {
  if (name == "unset") {
    return PollingRow{.name = "unset", .policy = "never"};
  }
  for (const std::string_view policy : {"never", "always", "grow_shrink", "adaptive"}) {
    if (name == policy) {
      return PollingRow{.name = std::string(policy), .policy = std::string(policy)};
    }
  }
  std::uint64_t ns = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), ns);
  if (error != std::errc{} || end != name.data() + name.size() || ns > kWindowNsMax) {
    return fail(
        fmt::format("'{}' is not allowed; give unset, a window in nanoseconds up to {}, never, always, grow_shrink "
                    "or adaptive",
                    name, kWindowNsMax));
  }
  return window_row(ns);
}

std::vector<PollingRow> polling_rows(bool quick) {
  std::vector<PollingRow> rows;
  if (quick) {
    for (const std::uint64_t ns : {0, 1, 64, 1024, 4096, 8192, 16384, 32768, 131072}) {
      rows.push_back(window_row(ns));
    }
  } else {
    rows.push_back({.name = "unset", .policy = "never"});
    rows.push_back(window_row(0));
    for (std::uint64_t ns = 1; ns <= 131'072; ns *= 2) {
      rows.push_back(window_row(ns));
    }
  }
  for (const char* policy : {"never", "always", "grow_shrink", "adaptive"}) {
    rows.push_back({.name = policy, .policy = policy});
  }
  return rows;
}

double PollingCell::per_worker_second() const {
  return ratio(iops, worker_user + worker_system).value_or(0);
}

double PollingCell::per_cpu_second() const {
  return ratio(iops, worker_user + worker_system + driver).value_or(0);
}

PollingLine polling_line(const PollingRow& row, std::span<const PollingCell> rounds) {
  RW_CHECK(!rounds.empty());
  PollingLine line{.row = row};
  line.median = {.iops = median_of(rounds, [](const PollingCell& cell) { return cell.iops; }),
                 .p50_us = median_of(rounds, [](const PollingCell& cell) { return cell.p50_us; }),
                 .p99_us = median_of(rounds, [](const PollingCell& cell) { return cell.p99_us; }),
                 .worker_user = median_of(rounds, [](const PollingCell& cell) { return cell.worker_user; }),
                 .worker_system = median_of(rounds, [](const PollingCell& cell) { return cell.worker_system; }),
                 .driver = median_of(rounds, [](const PollingCell& cell) { return cell.driver; })};
  line.per_worker_second = median_of(rounds, [](const PollingCell& cell) { return cell.per_worker_second(); });
  line.per_cpu_second = median_of(rounds, [](const PollingCell& cell) { return cell.per_cpu_second(); });
  const auto [least, most] = std::ranges::minmax_element(rounds, {}, &PollingCell::iops);
  line.iops_least = least->iops;
  line.iops_most = most->iops;
  return line;
}

PollingVerdict polling_verdict(const PollingSeries& series) {
  PollingVerdict verdict;
  const PollingLine* const never = find_line(series, "never");
  const PollingLine* const always = find_line(series, "always");
  if (const PollingLine* const adaptive = find_line(series, "adaptive")) {
    if (always != nullptr) {
      verdict.adaptive_of_always = ratio(adaptive->median.iops, always->median.iops);
    }
    if (never != nullptr) {
      verdict.adaptive_of_never = ratio(adaptive->median.iops, never->median.iops);
      verdict.adaptive_per_cpu_of_never = ratio(adaptive->per_cpu_second, never->per_cpu_second);
    }
  }
  std::vector<const PollingLine*> windows;
  for (const PollingLine& line : series.lines) {
    if (line.row.window_ns) {
      windows.push_back(&line);
    }
  }
  std::ranges::sort(windows, {}, [](const PollingLine* line) { return *line->row.window_ns; });
  const auto iops = [](const PollingLine* line) { return line->median.iops; };
  const auto best = std::ranges::max_element(windows, {}, iops);
  if (windows.size() < 2 || iops(*best) <= 0) {
    return verdict;
  }
  const auto needed =
      std::ranges::find_if(windows, [&](const PollingLine* line) { return iops(line) >= kNearBest * iops(*best); });
  const auto worst =
      std::min_element(needed, windows.end(), [&](const PollingLine* a, const PollingLine* b) { return iops(a) < iops(b); });
  verdict.needed_window = (*needed)->row.name;
  verdict.worst_window = (*worst)->row.name;
  verdict.worst_of_best = ratio(iops(*worst), iops(*best));
  return verdict;
}

std::string polling_text(std::span<const PollingSeries> table) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const PollingSeries& series : table) {
    fmt::format_to(out, "store {}: 4 KiB sequential reads, depth 1, a driver that sleeps\n", series.store);
    fmt::format_to(out, "  {:<12} {:>8} {:>17} {:>8} {:>8} {:>6} {:>6} {:>7} {:>11} {:>11}\n", "poll", "IOPS", "least-most",
                   "p50_us", "p99_us", "user%", "sys%", "driver%", "IOPS/CPU-s", "with driver");
    for (const PollingLine& line : series.lines) {
      const PollingCell& cell = line.median;
      fmt::format_to(
          out, "  {:<12} {:>8.0f} {:>8.0f}-{:<8.0f} {:>8.2f} {:>8.2f} {:>6.1f} {:>6.1f} {:>7.1f} {:>11.0f} {:>11.0f}\n",
          line.row.name, cell.iops, line.iops_least, line.iops_most, cell.p50_us, cell.p99_us, 100 * cell.worker_user,
          100 * cell.worker_system, 100 * cell.driver, line.per_worker_second, line.per_cpu_second);
    }
    text += verdict_text(polling_verdict(series));
  }
  return text;
}

std::string polling_csv(std::span<const PollingSeries> table) {
  std::string text =
      "series,poll_max_ns,iops,iops_least,iops_most,p50_us,p99_us,worker_user_pct,worker_sys_pct,driver_pct,"
      "iops_per_worker_cpu_s,iops_per_cpu_s\n";
  const auto out = std::back_inserter(text);
  for (const PollingSeries& series : table) {
    for (const PollingLine& line : series.lines) {
      const PollingCell& cell = line.median;
      fmt::format_to(out, "{},{},{:.0f},{:.0f},{:.0f},{:.2f},{:.2f},{:.2f},{:.2f},{:.2f},{:.0f},{:.0f}\n", series.store,
                     line.row.name, cell.iops, line.iops_least, line.iops_most, cell.p50_us, cell.p99_us,
                     100 * cell.worker_user, 100 * cell.worker_system, 100 * cell.driver, line.per_worker_second,
                     line.per_cpu_second);
    }
  }
  return text;
}

nlohmann::json polling_json(std::span<const PollingSeries> table) {
  nlohmann::json stores = nlohmann::json::array();
  for (const PollingSeries& series : table) {
    nlohmann::json rows = nlohmann::json::array();
    for (const PollingLine& line : series.lines) {
      const PollingCell& cell = line.median;
      rows.push_back({{"poll", line.row.name},
                      {"policy", line.row.policy},
                      {"iops", cell.iops},
                      {"iops_least", line.iops_least},
                      {"iops_most", line.iops_most},
                      {"p50_us", cell.p50_us},
                      {"p99_us", cell.p99_us},
                      {"worker_user_pct", 100 * cell.worker_user},
                      {"worker_sys_pct", 100 * cell.worker_system},
                      {"driver_pct", 100 * cell.driver},
                      {"iops_per_worker_cpu_second", line.per_worker_second},
                      {"iops_per_cpu_second", line.per_cpu_second}});
    }
    stores.push_back({{"store", series.store}, {"rows", rows}, {"verdict", verdict_json(polling_verdict(series))}});
  }
  return {{"stores", stores}};
}

}  // namespace ringway
