#include "bench/dataplane_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "bench/median.hpp"

namespace ringway {
namespace {

double middle_of(std::span<const DataplaneCell> rounds, double DataplaneCell::* figure) {
  std::vector<double> values;
  values.reserve(rounds.size());
  std::ranges::transform(rounds, std::back_inserter(values), figure);
  return median(std::move(values));
}

const DataplaneEntry* find_baseline(const DataplaneTable& table, const DataplaneEntry& entry) {
  const auto found = std::ranges::find_if(table.entries, [&](const DataplaneEntry& other) {
    return other.placement == table.baseline && other.pattern == entry.pattern && other.jobs == entry.jobs;
  });
  return found == table.entries.end() ? nullptr : &*found;
}

double change_pct(double value, double before) {
  return before > 0 ? 100 * (value / before - 1) : 0;
}

// With its baseline, which is in `table`.
struct Compared {
  const DataplaneEntry* entry;
  const DataplaneEntry* baseline;
  DataplaneChange change;
};

std::vector<Compared> compare_all(const DataplaneTable& table) {
  std::vector<Compared> all;
  for (const DataplaneEntry& entry : table.entries) {
    const DataplaneEntry* const baseline = find_baseline(table, entry);
    if (baseline == nullptr || entry.placement == table.baseline) {
      continue;
    }
    const DataplaneCell& now = entry.median;
    const DataplaneCell& before = baseline->median;
    all.push_back({.entry = &entry,
                   .baseline = baseline,
                   .change = {.placement = entry.placement,
                              .pattern = entry.pattern,
                              .jobs = entry.jobs,
                              .throughput_pct = change_pct(now.megabytes_per_second, before.megabytes_per_second),
                              .cpu_pct = change_pct(now.backend_us_per_megabyte, before.backend_us_per_megabyte),
                              .total_cpu_pct = change_pct(now.backend_us_per_megabyte + now.driver_us_per_megabyte,
                                                          before.backend_us_per_megabyte + before.driver_us_per_megabyte)}});
  }
  return all;
}

}  // namespace

DataplaneEntry dataplane_entry(std::string placement, std::string_view pattern, std::uint32_t jobs,
                               std::span<const DataplaneCell> rounds) {
  RW_CHECK(!rounds.empty());
  const auto [least, most] = std::ranges::minmax_element(rounds, {}, &DataplaneCell::megabytes_per_second);
  return {.placement = std::move(placement),
          .pattern = pattern,
          .jobs = jobs,
          .median = {.megabytes_per_second = middle_of(rounds, &DataplaneCell::megabytes_per_second),
                     .backend_us_per_megabyte = middle_of(rounds, &DataplaneCell::backend_us_per_megabyte),
                     .driver_us_per_megabyte = middle_of(rounds, &DataplaneCell::driver_us_per_megabyte)},
          .rate_least = least->megabytes_per_second,
          .rate_most = most->megabytes_per_second};
}

std::vector<DataplaneChange> dataplane_changes(const DataplaneTable& table) {
  std::vector<DataplaneChange> changes;
  for (Compared& compared : compare_all(table)) {
    changes.push_back(std::move(compared.change));
  }
  return changes;
}

std::string dataplane_text(const DataplaneTable& table) {
  std::string text = table.title + "\n";
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{:<16} {:>4}  {:<8} {:>8} {:>17} {:>10} {:>10}   {:>9} {:>9} {:>9}\n", "pattern", "jobs", "workers",
                 "MB/s", "least-most", "CPU us/MB", "driver's", "rate", "CPU/MB", "both's");
  const std::vector<Compared> compared = compare_all(table);
  for (const DataplaneEntry& entry : table.entries) {
    const DataplaneCell& cell = entry.median;
    fmt::format_to(out, "{:<16} {:>4}  {:<8} {:>8.1f} {:>8.1f}-{:<8.1f} {:>10.1f} {:>10.1f}", entry.pattern, entry.jobs,
                   entry.placement, cell.megabytes_per_second, entry.rate_least, entry.rate_most,
                   cell.backend_us_per_megabyte, cell.driver_us_per_megabyte);
    if (const auto found = std::ranges::find(compared, &entry, &Compared::entry); found != compared.end()) {
      const DataplaneChange& change = found->change;
      fmt::format_to(out, "   {:>+8.1f}% {:>+8.1f}% {:>+8.1f}%", change.throughput_pct, change.cpu_pct,
                     change.total_cpu_pct);
    }
    text += '\n';
  }
  return text;
}

std::string dataplane_csv(const DataplaneTable& table) {
  std::string text =
      "workers,pattern,jobs,throughput_pct,cpu_pct,total_cpu_pct,mb_per_s,cpu_us_per_mb,driver_us_per_mb,"
      "baseline_mb_per_s,baseline_cpu_us_per_mb,baseline_driver_us_per_mb\n";
  const auto out = std::back_inserter(text);
  for (const Compared& compared : compare_all(table)) {
    const DataplaneChange& change = compared.change;
    const DataplaneCell& now = compared.entry->median;
    const DataplaneCell& before = compared.baseline->median;
    fmt::format_to(out, "{},{},{},{:.1f},{:.2f},{:.2f},{:.1f},{:.1f},{:.1f},{:.1f},{:.1f},{:.1f}\n", change.placement,
                   change.pattern, change.jobs, change.throughput_pct, change.cpu_pct, change.total_cpu_pct,
                   now.megabytes_per_second, now.backend_us_per_megabyte, now.driver_us_per_megabyte,
                   before.megabytes_per_second, before.backend_us_per_megabyte, before.driver_us_per_megabyte);
  }
  return text;
}

nlohmann::json dataplane_json(const DataplaneTable& table) {
  nlohmann::json entries = nlohmann::json::array();
  for (const DataplaneEntry& entry : table.entries) {
    const DataplaneCell& cell = entry.median;
    entries.push_back({{"workers", entry.placement},
                       {"pattern", entry.pattern},
                       {"jobs", entry.jobs},
                       {"megabytes_per_second", cell.megabytes_per_second},
                       {"megabytes_per_second_least", entry.rate_least},
                       {"megabytes_per_second_most", entry.rate_most},
                       {"backend_us_per_megabyte", cell.backend_us_per_megabyte},
                       {"driver_us_per_megabyte", cell.driver_us_per_megabyte}});
  }
  nlohmann::json changes = nlohmann::json::array();
  for (const DataplaneChange& change : dataplane_changes(table)) {
    changes.push_back({{"workers", change.placement},
                       {"pattern", change.pattern},
                       {"jobs", change.jobs},
                       {"throughput_pct", change.throughput_pct},
                       {"cpu_pct", change.cpu_pct},
                       {"total_cpu_pct", change.total_cpu_pct}});
  }
  return {{"title", table.title}, {"baseline", table.baseline}, {"rows", entries}, {"changes", changes}};
}

}  // namespace ringway
