#include "control/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace ringway {
namespace {

using nlohmann::json;

// Columns as wide as their widest cell; the first is aligned left, as are all others that were asked to.
class Table {
 public:
  explicit Table(std::vector<std::string> header, std::size_t left_columns = 1) : left_columns_(left_columns) {
    rows_.push_back(std::move(header));
  }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] bool empty() const { return rows_.size() == 1; }
  [[nodiscard]] std::string text(std::string_view indent = "") const {
    std::vector<std::size_t> widths(rows_.front().size());
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        widths[i] = std::max(widths[i], row[i].size());
      }
    }
    std::string out;
    for (const auto& row : rows_) {
      std::string line(indent);
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string_view gap = i == 0 ? "" : "  ";
        line += i < left_columns_ ? fmt::format("{}{:<{}}", gap, row[i], widths[i])
                                  : fmt::format("{}{:>{}}", gap, row[i], widths[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  std::size_t left_columns_;
  std::vector<std::vector<std::string>> rows_;
};

// The JSON of another process may lack anything, so nothing here throws: an absent or odd value is zero or "-".
std::uint64_t number(const json& object, std::string_view key) {
  if (!object.is_object()) {
    return 0;
  }
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

std::string text(const json& object, std::string_view key) {
  if (!object.is_object()) {
    return "-";
  }
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "-";
}

bool flag(const json& object, std::string_view key) {
  if (!object.is_object()) {
    return false;
  }
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

const json& member(const json& object, std::string_view key) {
  static const json null;
  if (!object.is_object()) {
    return null;
  }
  const auto found = object.find(key);
  return found != object.end() ? *found : null;
}

std::string count_text(std::uint64_t count) {
  return fmt::to_string(count);
}

std::string unit_text(double value, std::string_view unit) {
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : (value < 99.95 ? 1 : 0), unit);
}

std::string ratio_text(std::uint64_t numerator, std::uint64_t denominator) {
  return denominator == 0 ? "-" : fmt::format("{:.1f}", static_cast<double>(numerator) / static_cast<double>(denominator));
}

json latency_json(const BlkDeviceStats::Latency& latency) {
  const auto nanoseconds = [](Duration duration) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, duration.ns));
  };
  return {{"count", latency.count},
          {"p50_ns", nanoseconds(latency.p50)},
          {"p99_ns", nanoseconds(latency.p99)},
          {"p999_ns", nanoseconds(latency.p999)},
          {"max_ns", nanoseconds(latency.maximum)}};
}

json queue_json(const BlkDeviceStats::Queue& queue) {
  json requests = json::object();
  json failed = json::object();
  for (std::size_t i = 0; i < kBlkOpcodes; ++i) {
    const char* name = to_string(static_cast<BlkOpcode>(i));
    requests[name] = queue.requests[i];
    failed[name] = queue.failed[i];
  }
  json refused = json::object();
  for (std::size_t i = 1; i < kBlkRefusals; ++i) {  // 0 is `none`
    refused[to_string(static_cast<BlkRefusal>(i))] = queue.refused[i];
  }
  return {{"index", queue.index},
          {"worker", queue.worker},
          {"running", queue.running},
          {"enabled", queue.enabled},
          {"broken", queue.broken},
          {"requests", std::move(requests)},
          {"failed", std::move(failed)},
          {"refused", std::move(refused)},
          {"bytes_in", queue.bytes_in},
          {"bytes_out", queue.bytes_out},
          {"kicks", queue.kicks},
          {"calls", queue.calls},
          {"calls_suppressed", queue.calls_suppressed},
          {"calls_dropped", queue.calls_dropped},
          {"ring_faults", queue.ring_faults},
          {"lost_kicks", queue.lost_kicks},
          {"batches", queue.batches},
          {"starved", queue.starved},
          {"memory_lost", queue.memory_lost}};
}

json store_json(const BlkDeviceStats::Store& store) {
  json failures = json::object();
  for (std::size_t i = 0; i < kBlkFailures; ++i) {
    failures[to_string(static_cast<BlkFailure>(i))] = store.failures[i];
  }
  return {{"short_transfers", store.short_transfers},
          {"retries", store.retries},
          {"bounced", store.bounced},
          {"held_back", store.held_back},
          {"syncs", store.syncs},
          {"registered", store.registered},
          {"fallbacks", store.fallbacks},
          {"failures", std::move(failures)}};
}

std::uint64_t sum(const json& counts) {
  std::uint64_t total = 0;
  if (counts.is_object()) {
    for (const auto& [key, value] : counts.items()) {
      total += value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
    }
  }
  return total;
}

std::string queue_state(const json& queue) {
  if (flag(queue, "broken")) {
    return "broken";
  }
  if (!flag(queue, "running")) {
    return "stopped";
  }
  return flag(queue, "enabled") ? "running" : "disabled";
}

// "out_of_range 3, short_header 1" over all objects, of a member that counts by name.
std::string named_counts(const json& objects, std::string_view key) {
  std::vector<std::pair<std::string, std::uint64_t>> totals;
  for (const json& object : objects) {
    const json& counts = member(object, key);
    if (!counts.is_object()) {
      continue;
    }
    for (const auto& [name, value] : counts.items()) {
      auto found = std::ranges::find(totals, name, &std::pair<std::string, std::uint64_t>::first);
      if (found == totals.end()) {
        found = totals.emplace(totals.end(), name, 0);
      }
      found->second += value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
    }
  }
  std::string line;
  for (const auto& [name, count] : totals) {
    if (count != 0) {
      line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, count);
    }
  }
  return line;
}

std::string disk_section(const json& disk) {
  const json& queues = member(disk, "queues");
  std::string out = fmt::format("disk '{}'\n", text(disk, "name"));

  Table requests({"queue", "worker", "state", "read", "written", "in", "out", "flush", "get_id", "discard", "write_zeroes",
                  "secure_erase", "failed", "refused"});
  Table events({"queue", "kicks", "calls", "suppressed", "dropped", "ring faults", "lost kicks", "batches", "mean batch",
                "starved", "memory lost"});
  for (const json& queue : queues) {
    const json& done = member(queue, "requests");
    requests.add({count_text(number(queue, "index")), count_text(number(queue, "worker")), queue_state(queue),
                  bytes_text(number(queue, "bytes_in")), bytes_text(number(queue, "bytes_out")),
                  count_text(number(done, "in")), count_text(number(done, "out")), count_text(number(done, "flush")),
                  count_text(number(done, "get_id")), count_text(number(done, "discard")),
                  count_text(number(done, "write_zeroes")), count_text(number(done, "secure_erase")),
                  count_text(sum(member(queue, "failed"))), count_text(sum(member(queue, "refused")))});
    const std::uint64_t finished = sum(done) + sum(member(queue, "failed")) + sum(member(queue, "refused"));
    events.add({count_text(number(queue, "index")), count_text(number(queue, "kicks")), count_text(number(queue, "calls")),
                count_text(number(queue, "calls_suppressed")), count_text(number(queue, "calls_dropped")),
                count_text(number(queue, "ring_faults")), count_text(number(queue, "lost_kicks")),
                count_text(number(queue, "batches")), ratio_text(finished, number(queue, "batches")),
                count_text(number(queue, "starved")), count_text(number(queue, "memory_lost"))});
  }
  out += requests.text("  ") + events.text("  ");

  Table latency({"latency", "count", "p50", "p99", "p99.9", "max"});
  for (const char* kind : {"read", "write", "other"}) {
    const json& values = member(member(disk, "latency"), kind);
    if (number(values, "count") != 0) {
      latency.add({kind, count_text(number(values, "count")), time_text(number(values, "p50_ns")),
                   time_text(number(values, "p99_ns")), time_text(number(values, "p999_ns")),
                   time_text(number(values, "max_ns"))});
    }
  }
  if (!latency.empty()) {
    out += latency.text("  ");
  }
  for (const char* kind : {"failed", "refused"}) {
    if (const std::string counts = named_counts(queues, kind); !counts.empty()) {
      out += fmt::format("  {}: {}\n", kind, counts);
    }
  }
  // What went on below the queues; only what isn't zero.
  if (const std::string counts = named_counts(json::array({disk}), "store"); !counts.empty()) {
    out += fmt::format("  store: {}\n", counts);
  }
  if (const std::string counts = named_counts(json::array({member(disk, "store")}), "failures"); !counts.empty()) {
    out += fmt::format("  store failures: {}\n", counts);
  }
  return out;
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string time_text(std::uint64_t nanoseconds) {
  const double value = static_cast<double>(nanoseconds);
  if (nanoseconds < 1'000) {
    return fmt::format("{} ns", nanoseconds);
  }
  if (nanoseconds < 1'000'000) {
    return unit_text(value / 1e3, "us");
  }
  if (nanoseconds < 1'000'000'000) {
    return unit_text(value / 1e6, "ms");
  }
  return unit_text(value / 1e9, "s");
}

json disk_status_json(const DiskStatus& disk) {
  json object = {{"name", disk.options.name},      {"path", disk.options.path},     {"socket", disk.options.socket},
                 {"state", to_string(disk.state)}, {"queues", disk.options.queues}, {"connect", disk.options.connect}};
  if (disk.state != DiskState::opening) {
    object.update(
        {{"capacity", disk.store.capacity_bytes},
         {"block_size", disk.store.block_bytes},
         {"read_only", disk.store.read_only},
         {"engine", disk.store.engine},
         {"engine_reason", disk.engine_reason},
         {"serial", disk.serial},
         {"connected", disk.connected},
         {"sessions", disk.sessions},
         {"acked_features", fmt::format("{:#x}", disk.acked_features)}});  // 64 bits don't fit a JSON number everywhere
  }
  return object;
}

json disk_stats_json(const DiskStats& disk) {
  json queues = json::array();
  for (const BlkDeviceStats::Queue& queue : disk.stats.queues) {
    queues.push_back(queue_json(queue));
  }
  return {{"name", disk.name},
          {"queues", std::move(queues)},
          {"store", store_json(disk.stats.store)},
          {"latency",
           {{"read", latency_json(disk.stats.read)},
            {"write", latency_json(disk.stats.write)},
            {"other", latency_json(disk.stats.other)}}}};
}

json worker_stats_json(const WorkerStats& worker) {
  return {{"index", worker.index},
          {"engine", worker.engine},
          {"turns", worker.turns},
          {"productive_turns", worker.productive_turns},
          {"productive_ns", worker.productive_ns},
          {"sleeps", worker.sleeps},
          {"system_calls", worker.system_calls},
          {"cpu_ns", worker.cpu_ns}};
}

std::string disks_table(const json& disks) {
  Table table({"name", "state", "size", "queues", "engine", "front-end", "path", "socket"}, 8);
  for (const json& disk : disks) {
    const bool known = member(disk, "capacity").is_number();
    table.add({text(disk, "name"), text(disk, "state"),
               known ? bytes_text(number(disk, "capacity")) + (flag(disk, "read_only") ? " ro" : "") : "-",
               count_text(number(disk, "queues")), text(disk, "engine"), flag(disk, "connected") ? "connected" : "none",
               text(disk, "path"), text(disk, "socket")});
  }
  return table.text();
}

std::string stats_table(const json& stats) {
  std::string out;
  for (const json& disk : stats) {
    out += disk_section(disk);
  }
  return out;
}

std::string workers_table(const json& workers) {
  Table table({"worker", "engine", "turns", "productive", "productive time", "CPU time", "sleeps", "system calls"}, 2);
  for (const json& worker : workers) {
    table.add({count_text(number(worker, "index")), text(worker, "engine"), count_text(number(worker, "turns")),
               count_text(number(worker, "productive_turns")), time_text(number(worker, "productive_ns")),
               time_text(number(worker, "cpu_ns")), count_text(number(worker, "sleeps")),
               count_text(number(worker, "system_calls"))});
  }
  return table.text();
}

}  // namespace ringway
