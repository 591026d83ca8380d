#include "control/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

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

json ring_json(const RingStats& ring) {
  return {{"running", ring.running},
          {"enabled", ring.enabled},
          {"broken", ring.broken},
          {"kicks", ring.kicks},
          {"calls", ring.calls},
          {"calls_coalesced", ring.calls_coalesced},
          {"calls_suppressed", ring.calls_suppressed},
          {"calls_dropped", ring.calls_dropped},
          {"ring_faults", ring.ring_faults},
          {"lost_kicks", ring.lost_kicks},
          {"batches", ring.batches},
          {"memory_lost", ring.memory_lost}};
}

// By name, without `none`.
template <typename Refusal, std::size_t N>
json refused_json(const std::array<std::uint64_t, N>& counts) {
  json refused = json::object();
  for (std::size_t i = 1; i < N; ++i) {
    refused[to_string(static_cast<Refusal>(i))] = counts[i];
  }
  return refused;
}

json queue_json(const BlkDeviceStats::Queue& queue) {
  json requests = json::object();
  json failed = json::object();
  for (std::size_t i = 0; i < kBlkOpcodes; ++i) {
    const char* name = to_string(static_cast<BlkOpcode>(i));
    requests[name] = queue.requests[i];
    failed[name] = queue.failed[i];
  }
  json object = ring_json(queue);
  object.update({{"index", queue.index},
                 {"worker", queue.worker},
                 {"requests", std::move(requests)},
                 {"in_flight", queue.in_flight},
                 {"oldest_in_flight_ns", static_cast<std::uint64_t>(std::max<std::int64_t>(0, queue.oldest_in_flight.ns))},
                 {"failed", std::move(failed)},
                 {"refused", refused_json<BlkRefusal>(queue.refused)},
                 {"bytes_in", queue.bytes_in},
                 {"bytes_out", queue.bytes_out},
                 {"starved", queue.starved}});
  return object;
}

json receive_json(const NetDeviceStats::Receive& receive) {
  json object = ring_json(receive);
  object.update({{"frames", receive.frames},
                 {"bytes", receive.bytes},
                 {"gso_frames", receive.gso_frames},
                 {"made_up_for", {{"checksums_completed", receive.checksums_completed}, {"segmented", receive.segmented}}},
                 {"filtered", receive.filtered},
                 {"bad_buffers", receive.bad_buffers},
                 {"dropped",
                  {{"too_long", receive.dropped_too_long},
                   {"no_buffers", receive.dropped_no_buffers},
                   {"unsegmentable", receive.dropped_unsegmentable},
                   {"disabled", receive.dropped_disabled}}}});
  return object;
}

json transmit_json(const NetDeviceStats::Transmit& transmit) {
  json object = ring_json(transmit);
  object.update({{"frames", transmit.frames},
                 {"bytes", transmit.bytes},
                 {"gso_frames", transmit.gso_frames},
                 {"discarded", transmit.discarded},
                 {"refused", refused_json<NetRefusal>(transmit.refused)}});
  return object;
}

json channel_json(const NetChannelStats& channel) {
  return {{"dropped_down", channel.dropped_down},
          {"dropped_error", channel.dropped_error},
          {"full", channel.full},
          {"receive_errors", channel.receive_errors}};
}

// What only a switch's channels count.
json switch_json(const NetChannelStats& channel) {
  return {{"dropped", refused_json<SwitchDrop>(channel.switch_dropped)},
          {"passed",
           {{"flooded", channel.flooded}, {"lent", channel.lent}, {"copied", channel.copied}, {"rings", channel.rings}}}};
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

// "3", or "3 (12.0 s)" if the oldest of them takes long.
std::string in_flight_text(const json& queue) {
  const std::uint64_t oldest_ns = number(queue, "oldest_in_flight_ns");
  const std::string count = count_text(number(queue, "in_flight"));
  constexpr std::uint64_t kLongNs = 1'000'000'000;
  return oldest_ns < kLongNs ? count : fmt::format("{} ({})", count, time_text(oldest_ns));
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

// Of one ring, what anybody may count; `finished` is what a batch is made of.
std::vector<std::string> event_columns() {
  return {"kicks",       "calls",      "coalesced", "suppressed", "dropped",
          "ring faults", "lost kicks", "batches",   "mean batch", "memory lost"};
}
std::vector<std::string> events_of(const json& ring, std::uint64_t finished) {
  return {count_text(number(ring, "kicks")),
          count_text(number(ring, "calls")),
          count_text(number(ring, "calls_coalesced")),
          count_text(number(ring, "calls_suppressed")),
          count_text(number(ring, "calls_dropped")),
          count_text(number(ring, "ring_faults")),
          count_text(number(ring, "lost_kicks")),
          count_text(number(ring, "batches")),
          ratio_text(finished, number(ring, "batches")),
          count_text(number(ring, "memory_lost"))};
}

// "  <title>: …\n" of the counts that aren't zero.
void add_counts(std::string& out, std::string_view title, const json& objects, std::string_view key) {
  if (const std::string counts = named_counts(objects, key); !counts.empty()) {
    out += fmt::format("  {}: {}\n", title, counts);
  }
}

void add_switch_counts(std::string& out, const json& pairs) {
  json switches = json::array();
  for (const json& pair : pairs) {
    switches.push_back(member(pair, "switch"));
  }
  add_counts(out, "switch", switches, "passed");
  add_counts(out, "switch dropped", switches, "dropped");
}

std::string uplink_section(const json& net) {
  std::string out = fmt::format("net '{}' (uplink)\n", text(net, "name"));
  Table frames({"pair", "worker", "in frames", "out frames", "cut", "bad headers", "no room", "uncuttable"});
  const json& pairs = member(net, "uplink");
  for (const json& pair : pairs) {
    frames.add({count_text(number(pair, "index")), count_text(number(pair, "worker")), count_text(number(pair, "frames_in")),
                count_text(number(pair, "frames_out")), count_text(number(pair, "cut")),
                count_text(number(pair, "bad_headers")), count_text(number(pair, "dropped_full")),
                count_text(number(pair, "dropped_uncuttable"))});
  }
  out += frames.text("  ");
  add_counts(out, "port", pairs, "port");
  add_switch_counts(out, pairs);
  return out;
}

std::string net_section(const json& net) {
  if (member(net, "uplink").is_array()) {
    return uplink_section(net);
  }
  std::string out = fmt::format("net '{}'\n", text(net, "name"));
  Table frames({"pair", "worker", "receive", "transmit", "received", "in frames", "gso", "dropped", "sent", "in frames",
                "gso", "refused"});
  std::vector<std::string> columns = event_columns();
  columns.insert(columns.begin(), "ring");
  Table events(columns);
  const auto add_events = [&](std::string name, const json& ring, std::uint64_t finished) {
    std::vector<std::string> row = events_of(ring, finished);
    row.insert(row.begin(), std::move(name));
    events.add(std::move(row));
  };
  json receives = json::array();
  json transmits = json::array();
  for (const json& pair : member(net, "pairs")) {
    const json& receive = receives.emplace_back(member(pair, "receive"));
    const json& transmit = transmits.emplace_back(member(pair, "transmit"));
    const std::string index = count_text(number(pair, "index"));
    const std::uint64_t refused = sum(member(transmit, "refused"));
    frames.add({index, count_text(number(pair, "worker")), queue_state(receive), queue_state(transmit),
                bytes_text(number(receive, "bytes")), count_text(number(receive, "frames")),
                count_text(number(receive, "gso_frames")), count_text(sum(member(receive, "dropped"))),
                bytes_text(number(transmit, "bytes")), count_text(number(transmit, "frames")),
                count_text(number(transmit, "gso_frames")), count_text(refused)});
    add_events(index + " rx", receive, number(receive, "frames"));
    add_events(index + " tx", transmit, number(transmit, "frames") + number(transmit, "discarded") + refused);
  }
  const json& control = member(net, "control");
  if (control.is_object()) {
    add_events("control", control, number(control, "commands") + sum(member(control, "refused")));
  }
  out += frames.text("  ") + events.text("  ");
  add_counts(out, "received with software", receives, "made_up_for");
  add_counts(out, "receive dropped", receives, "dropped");
  for (const auto& [title, key, objects] : {std::tuple{"receive filtered", "filtered", &receives},
                                            {"bad receive buffers", "bad_buffers", &receives},
                                            {"transmit discarded", "discarded", &transmits}}) {
    std::uint64_t total = 0;
    for (const json& object : *objects) {
      total += number(object, key);
    }
    if (total != 0) {
      out += fmt::format("  {}: {}\n", title, total);
    }
  }
  add_counts(out, "transmit refused", transmits, "refused");
  add_counts(out, "port", member(net, "pairs"), "port");
  add_switch_counts(out, member(net, "pairs"));
  if (number(control, "commands") != 0) {
    out += fmt::format("  control commands: {}\n", number(control, "commands"));
  }
  add_counts(out, "control refused", json::array({control}), "refused");
  return out;
}

std::string disk_section(const json& disk) {
  const json& queues = member(disk, "queues");
  std::string out = fmt::format("disk '{}'\n", text(disk, "name"));

  Table requests({"queue", "worker", "state", "in flight", "read", "written", "in", "out", "flush", "get_id", "discard",
                  "write_zeroes", "secure_erase", "failed", "refused"});
  std::vector<std::string> columns = event_columns();
  columns.insert(columns.begin(), "queue");
  columns.insert(columns.end() - 1, "starved");
  Table events(columns);
  for (const json& queue : queues) {
    const json& done = member(queue, "requests");
    requests.add({count_text(number(queue, "index")), count_text(number(queue, "worker")), queue_state(queue),
                  in_flight_text(queue), bytes_text(number(queue, "bytes_in")), bytes_text(number(queue, "bytes_out")),
                  count_text(number(done, "in")), count_text(number(done, "out")), count_text(number(done, "flush")),
                  count_text(number(done, "get_id")), count_text(number(done, "discard")),
                  count_text(number(done, "write_zeroes")), count_text(number(done, "secure_erase")),
                  count_text(sum(member(queue, "failed"))), count_text(sum(member(queue, "refused")))});
    const std::uint64_t finished = sum(done) + sum(member(queue, "failed")) + sum(member(queue, "refused"));
    std::vector<std::string> row = events_of(queue, finished);
    row.insert(row.begin(), count_text(number(queue, "index")));
    row.insert(row.end() - 1, count_text(number(queue, "starved")));
    events.add(std::move(row));
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
    add_counts(out, kind, queues, kind);
  }
  // What went on below the queues; only what isn't zero.
  add_counts(out, "store", json::array({disk}), "store");
  add_counts(out, "store failures", json::array({member(disk, "store")}), "failures");
  return out;
}

}  // namespace

std::string devices_text(std::size_t disks, std::size_t nets) {
  std::string text;
  if (disks != 0 || nets == 0) {
    text = fmt::format("{} disk{}", disks, disks == 1 ? "" : "s");
  }
  if (nets != 0) {
    text += fmt::format("{}{} network card{}", text.empty() ? "" : " and ", nets, nets == 1 ? "" : "s");
  }
  return text;
}

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

namespace {

json device_status_json(DeviceKind kind, const DeviceOptions& options, const DeviceStatus& device, std::uint32_t queues) {
  json object = {{"kind", to_string(kind)},          {"name", options.name}, {"socket", options.socket},
                 {"state", to_string(device.state)}, {"queues", queues},     {"connect", options.connect}};
  if (device.state != DeviceState::opening) {
    object.update(
        {{"connected", device.connected},
         {"sessions", device.sessions},
         {"acked_features", fmt::format("{:#x}", device.acked_features)}});  // 64 bits don't fit a JSON number everywhere
  }
  return object;
}

}  // namespace

json disk_status_json(const DiskStatus& disk) {
  json object = device_status_json(DeviceKind::disk, disk.options, disk, disk.options.queues);
  object["path"] = disk.options.path;
  if (disk.state != DeviceState::opening) {
    object.update({{"capacity", disk.store.capacity_bytes},
                   {"block_size", disk.store.block_bytes},
                   {"read_only", disk.store.read_only},
                   {"engine", disk.store.engine},
                   {"engine_reason", disk.engine_reason},
                   {"serial", disk.serial},
                   {"oldest_in_flight_ns", static_cast<std::uint64_t>(disk.oldest_in_flight.ns)}});
  }
  return object;
}

json net_status_json(const NetStatus& net) {
  json object = device_status_json(DeviceKind::net, net.options, net, net.options.pairs());
  object["port"] = port_text(net.options);
  if (net.options.is_uplink()) {
    return object;
  }
  if (net.state != DeviceState::opening) {
    object.update({{"mac", mac_text(net.mac)},
                   {"link", net.link ? "up" : "down"},
                   {"mtu", net.options.mtu},
                   {"pairs_in_use", net.pairs},
                   {"host_offloads", fmt::format("{:#x}", net.port.host_offloads)},
                   {"guest_offloads", fmt::format("{:#x}", net.port.guest_offloads)}});
  }
  return object;
}

json disk_stats_json(const DiskStats& disk) {
  json queues = json::array();
  for (const BlkDeviceStats::Queue& queue : disk.stats.queues) {
    queues.push_back(queue_json(queue));
  }
  return {{"kind", to_string(DeviceKind::disk)},
          {"name", disk.name},
          {"queues", std::move(queues)},
          {"store", store_json(disk.stats.store)},
          {"latency",
           {{"read", latency_json(disk.stats.read)},
            {"write", latency_json(disk.stats.write)},
            {"other", latency_json(disk.stats.other)}}}};
}

json uplink_stats_json(const NetStats& net) {
  json pairs = json::array();
  for (const NetUplinkStats::Pair& pair : net.uplink->pairs) {
    pairs.push_back({{"index", pairs.size()},
                     {"worker", pair.worker},
                     {"frames_in", pair.frames_in},
                     {"frames_out", pair.frames_out},
                     {"cut", pair.cut},
                     {"bad_headers", pair.bad_headers},
                     {"dropped_full", pair.dropped_full},
                     {"dropped_uncuttable", pair.dropped_uncuttable},
                     {"port", channel_json(pair.outside)},
                     {"switch", switch_json(pair.inside)}});
  }
  return {{"kind", to_string(DeviceKind::net)}, {"name", net.name}, {"uplink", std::move(pairs)}};
}

json net_stats_json(const NetStats& net) {
  if (net.uplink) {
    return uplink_stats_json(net);
  }
  json pairs = json::array();
  for (const NetDeviceStats::Pair& pair : net.stats.pairs) {
    pairs.push_back({{"index", pairs.size()},
                     {"worker", pair.worker},
                     {"receive", receive_json(pair.receive)},
                     {"transmit", transmit_json(pair.transmit)},
                     {"port", channel_json(pair.port)},
                     {"switch", switch_json(pair.port)}});
  }
  json object = {{"kind", to_string(DeviceKind::net)}, {"name", net.name}, {"pairs", std::move(pairs)}};
  if (net.stats.control) {
    json& control = object["control"] = ring_json(*net.stats.control);
    control["commands"] = net.stats.control->commands;
    control["refused"] = refused_json<NetControlRefusal>(net.stats.control->refused);
  }
  return object;
}

json stats_json(const std::vector<DiskStats>& disks, const std::vector<NetStats>& nets) {
  json all = json::array();
  std::ranges::transform(disks, std::back_inserter(all), disk_stats_json);
  std::ranges::transform(nets, std::back_inserter(all), net_stats_json);
  return all;
}

json worker_stats_json(const WorkerStats& worker) {
  return {{"index", worker.index},
          {"engine", worker.engine},
          {"turns", worker.turns},
          {"productive_turns", worker.productive_turns},
          {"productive_ns", worker.productive_ns},
          {"sleeps", worker.sleeps},
          {"system_calls", worker.system_calls},
          {"cpu_ns", worker.cpu_ns},
          {"pressure_permille", worker.pressure_permille},
          {"poll",
           {{"policy", worker.policy},
            {"productive_spin_ns", worker.poll.productive_spin_ns},
            {"unproductive_spin_ns", worker.poll.unproductive_spin_ns},
            {"wakeups_avoided", worker.poll.wakeups_avoided},
            {"sleeps", worker.poll.sleeps},
            {"misses", worker.poll.misses}}}};
}

std::string devices_table(const json& devices) {
  Table disks({"name", "state", "size", "queues", "engine", "front-end", "path", "socket"}, 8);
  Table nets({"name", "state", "port", "pairs", "link", "front-end", "address", "socket"}, 8);
  for (const json& device : devices) {
    const std::string queues = count_text(number(device, "queues"));
    const std::string front_end = flag(device, "connected") ? "connected" : "none";
    if (text(device, "kind") == to_string(DeviceKind::net)) {
      nets.add({text(device, "name"), text(device, "state"), text(device, "port"), queues, text(device, "link"), front_end,
                text(device, "mac"), text(device, "socket")});
      continue;
    }
    const bool known = member(device, "capacity").is_number();
    const std::uint64_t oldest_ns = number(device, "oldest_in_flight_ns");
    const std::string stalled =
        oldest_ns < static_cast<std::uint64_t>(limits::kStall.ns) ? "" : ", stalled for " + time_text(oldest_ns);
    disks.add({text(device, "name"), text(device, "state") + stalled,
               known ? bytes_text(number(device, "capacity")) + (flag(device, "read_only") ? " ro" : "") : "-", queues,
               text(device, "engine"), front_end, text(device, "path"), text(device, "socket")});
  }
  if (nets.empty()) {
    return disks.text();
  }
  return (disks.empty() ? "" : disks.text() + "\n") + nets.text();
}

std::string stats_table(const json& stats) {
  std::string out;
  for (const json& device : stats) {
    out += text(device, "kind") == to_string(DeviceKind::net) ? net_section(device) : disk_section(device);
  }
  return out;
}

std::string workers_table(const json& workers) {
  Table table({"worker", "engine", "poll", "turns", "productive", "productive time", "CPU time", "spun for work", "in vain",
               "sleeps", "system calls"},
              3);
  for (const json& worker : workers) {
    table.add({count_text(number(worker, "index")), text(worker, "engine"), text(member(worker, "poll"), "policy"),
               count_text(number(worker, "turns")), count_text(number(worker, "productive_turns")),
               time_text(number(worker, "productive_ns")), time_text(number(worker, "cpu_ns")),
               time_text(number(member(worker, "poll"), "productive_spin_ns")),
               time_text(number(member(worker, "poll"), "unproductive_spin_ns")), count_text(number(worker, "sleeps")),
               count_text(number(worker, "system_calls"))});
  }
  return table.text();
}

}  // namespace ringway
