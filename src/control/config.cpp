// Theory of operation: each source of options (the --disk text, TOML, JSON) is turned into pairs of key and text, and one
// table, kDiskKeys, turns such a pair into a member of DiskOptions or into an error. So a key exists everywhere or nowhere,
// and its rules and its wording are the same wherever it was written.

#include "control/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "base/limits.hpp"
#include "policy/poll_policy.hpp"

namespace ringway {
namespace {

// The largest configuration file that is read; a larger one is a mistake (an image given as --config).
constexpr std::size_t kConfigBytesMax = std::size_t{4} << 20U;

template <typename T>
std::optional<T> parse_number(std::string_view text, int base = 10) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<bool> parse_switch(std::string_view text) {
  if (text == "on" || text == "true" || text == "yes") {
    return true;
  }
  if (text == "off" || text == "false" || text == "no") {
    return false;
  }
  return std::nullopt;
}

// One key of a disk.
struct DiskKey {
  std::string_view name;
  bool is_switch;  // may stand without a value, for "on"
  std::string_view allowed;
  std::string_view help;
  bool (*set)(DiskOptions&, std::string_view value);  // false: not allowed
  std::string (*get)(const DiskOptions&);             // the value as text
};

template <bool DiskOptions::* Member>
constexpr DiskKey switch_key(std::string_view name, std::string_view help) {
  return {name,
          true,
          "on or off",
          help,
          [](DiskOptions& disk, std::string_view value) {
            const std::optional<bool> on = parse_switch(value);
            disk.*Member = on.value_or(false);
            return on.has_value();
          },
          [](const DiskOptions& disk) -> std::string { return disk.*Member ? "on" : "off"; }};
}

template <std::string DiskOptions::* Member>
bool set_text(DiskOptions& disk, std::string_view value) {
  disk.*Member = value;
  return !value.empty() && value.find('\0') == std::string_view::npos;
}

template <std::string DiskOptions::* Member>
std::string get_text(const DiskOptions& disk) {
  return disk.*Member;
}

bool set_name(DiskOptions& disk, std::string_view value) {
  disk.name = value;
  return is_disk_name(value);
}

bool set_serial(DiskOptions& disk, std::string_view value) {
  disk.serial = value;
  return !value.empty() && value.size() <= limits::kBlkIdBytes &&
         std::ranges::all_of(value, [](char c) { return c >= ' ' && c <= '~'; });
}

bool set_queues(DiskOptions& disk, std::string_view value) {
  disk.queues = parse_number<std::uint32_t>(value).value_or(0);
  return disk.queues >= 1 && disk.queues <= limits::kBlkQueuesMax;
}

bool set_engine(DiskOptions& disk, std::string_view value) {
  const Result<BlkEngine> engine = parse_blk_engine(value);
  disk.engine = engine.value_or(BlkEngine::automatic);
  return engine.has_value();
}

bool set_block_size(DiskOptions& disk, std::string_view value) {
  disk.block_bytes = parse_number<std::uint32_t>(value).value_or(0);
  return disk.block_bytes >= 512 && disk.block_bytes <= 65536 && std::has_single_bit(disk.block_bytes);
}

bool set_mode(DiskOptions& disk, std::string_view value) {
  const std::optional<std::uint32_t> mode = parse_number<std::uint32_t>(value, 8);
  disk.mode = mode.value_or(0);
  return mode.has_value() && value.size() >= 3 && value.size() <= 4 && *mode <= 0777 && (*mode & 0600U) == 0600U;
}

constexpr std::array kDiskKeys = {
    DiskKey{"path", false, "a file, a block device, ram:<size> or null:<size>",
            "the image: a file, a block device, ram:64M or null:10G (required)", set_text<&DiskOptions::path>,
            get_text<&DiskOptions::path>},
    DiskKey{"socket", false, "the path of a Unix socket", "where the VMM finds the disk (required)",
            set_text<&DiskOptions::socket>, get_text<&DiskOptions::socket>},
    DiskKey{"name", false, "1 to 64 letters, digits, '-', '_' and '.', not starting with '.'",
            "what logs, reports and `ringway ctl` call it (default: the file's name)", set_name,
            get_text<&DiskOptions::name>},
    DiskKey{"queues", false, "a number from 1 to 64", "request queues; as many as the guest has CPUs is plenty (default: 1)",
            set_queues, [](const DiskOptions& disk) { return fmt::to_string(disk.queues); }},
    switch_key<&DiskOptions::read_only>("ro", "the guest may not write (default: off)"),
    DiskKey{"serial", false, "1 to 20 printable ASCII characters", "the serial number that the guest sees", set_serial,
            get_text<&DiskOptions::serial>},
    DiskKey{"engine", false, "auto, io_uring, threads or inline",
            "how the image is read and written (default: auto, by a probe)", set_engine,
            [](const DiskOptions& disk) -> std::string { return to_string(disk.engine); }},
    switch_key<&DiskOptions::connect>("connect", "connect to the socket instead of listening on it (default: off)"),
    switch_key<&DiskOptions::direct>("direct", "bypass the host's page cache where the file system can (default: on)"),
    switch_key<&DiskOptions::registered>(
        "registered",
        "register guest memory with io_uring: may lower CPU for large requests (measure), and all of it stays in RAM. NEVER "
        "with ballooning, free page reporting or virtio-mem in the VMM: they would silently corrupt guest data (default: "
        "off)"),
    switch_key<&DiskOptions::packed>("packed", "offer packed rings (default: on)"),
    switch_key<&DiskOptions::in_order>("in-order", "offer in-order completion (default: off)"),
    switch_key<&DiskOptions::inband>("inband", "offer notifications by message instead of eventfd (default: off)"),
    switch_key<&DiskOptions::write_cache>("write-cache", "start in write-back mode; off: write-through (default: on)"),
    DiskKey{"block-size", false, "a power of two from 512 to 65536", "logical block in bytes (default: what the image has)",
            set_block_size,
            [](const DiskOptions& disk) { return disk.block_bytes == 0 ? "" : fmt::to_string(disk.block_bytes); }},
    DiskKey{"mode", false, "octal permissions from 0600 to 0777 that let the owner read and write",
            "permissions of the socket (default: 0600)", set_mode,
            [](const DiskOptions& disk) { return fmt::format("{:04o}", disk.mode); }},
    DiskKey{"faults", false, "a list of faults such as short=1/3,eio=1/100,delay=500us,hang@1M",
            "for tests: makes the image misbehave", set_text<&DiskOptions::faults>, get_text<&DiskOptions::faults>},
};

const DiskKey* find_disk_key(std::string_view name) {
  const auto* key = std::ranges::find(kDiskKeys, name, &DiskKey::name);
  return key == kDiskKeys.end() ? nullptr : key;
}

std::vector<std::string_view> disk_key_names() {
  std::vector<std::string_view> names;
  std::ranges::transform(kDiskKeys, std::back_inserter(names), &DiskKey::name);
  return names;
}

std::unexpected<Error> unknown_key(std::string_view key, const std::vector<std::string_view>& known,
                                   std::string_view where) {
  return fail(fmt::format("unknown key '{}' {}{}; allowed: {}", key, where, suggestion(key, known), fmt::join(known, ", ")));
}

std::unexpected<Error> bad_value(std::string_view key, std::string_view value, std::string_view allowed) {
  return fail(fmt::format("{}: '{}' is not allowed; give {}", key, value, allowed));
}

// `value` is absent for a key that stands alone.
Result<> set_disk_key(DiskOptions& disk, std::string_view name, std::optional<std::string_view> value) {
  const DiskKey* key = find_disk_key(name);
  if (key == nullptr) {
    return unknown_key(name, disk_key_names(), "of a disk");
  }
  if (!value && !key->is_switch) {
    return fail(fmt::format("{}: a value is missing; give {}=<value>, {}", name, name, key->allowed));
  }
  if (!key->set(disk, value.value_or("on"))) {
    return bad_value(name, value.value_or("on"), key->allowed);
  }
  return {};
}

Result<> check_complete(const DiskOptions& disk) {
  if (disk.path.empty()) {
    return fail("a disk needs path=<image>: a file, a block device, ram:<size> or null:<size>");
  }
  if (disk.socket.empty()) {
    return fail(fmt::format("the disk '{}' needs socket=<path>, the Unix socket where the VMM finds it", disk.path));
  }
  return {};
}

// Splits at single commas; two of them stand for one within a value.
std::vector<std::string> split_options(std::string_view text) {
  std::vector<std::string> parts(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      parts.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      parts.back() += ',';
      ++i;
    } else {
      parts.emplace_back();
    }
  }
  return parts;
}

// `--disk disk.img`, `--disk /srv/a=b.img,socket=s`: the first part is no key but the image itself.
bool starts_with_an_image(std::string_view part) {
  const std::string_view key = part.substr(0, part.find('='));
  return find_disk_key(key) == nullptr && (key.size() == part.size() || key.find('/') != std::string_view::npos) &&
         !key.empty() && suggestion(key, disk_key_names()).empty();
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// --- TOML ---

class TomlReader {
 public:
  explicit TomlReader(const std::string& file) : file_(file) {}

  Result<ServeConfig> read(const toml::table& root) {
    ServeConfig config;
    RW_TRY(check_keys(root, {"workers", "api", "stop-deadline", "disk"}, "at the top level"));
    if (const toml::node* node = root.get("stop-deadline")) {
      RW_TRY(take<Duration>(*node, "stop-deadline", parse_duration, config.stop_deadline));
    }
    if (const toml::node* node = root.get("workers")) {
      RW_TRY(read_workers(*node, config.workers));
    }
    if (const toml::node* node = root.get("api")) {
      RW_TRY(read_api(*node, config));
    }
    if (const toml::node* node = root.get("disk")) {
      RW_TRY(read_disks(*node, config.disks));
    }
    return config;
  }

  [[nodiscard]] std::unexpected<Error> fail_at(const toml::source_region& source, std::string_view message) const {
    return fail(fmt::format("{}:{}:{}: {}", file_, source.begin.line, source.begin.column, message));
  }

 private:
  Result<> check_keys(const toml::table& table, const std::vector<std::string_view>& known, std::string_view where) {
    for (const auto& [key, node] : table) {
      if (std::ranges::find(known, key.str()) == known.end()) {
        return fail_at(key.source(), unknown_key(key.str(), known, where).error().message);
      }
    }
    return {};
  }

  // A string, an integer or a boolean as the text that it would have in --disk.
  Result<std::string> scalar(const toml::node& node, std::string_view key) {
    if (const auto* text = node.as_string()) {
      return text->get();
    }
    if (const auto* number = node.as_integer()) {
      // mode = 0o660 is octal to the reader, so it is given back as octal.
      return key == "mode" ? fmt::format("{:04o}", number->get()) : fmt::to_string(number->get());
    }
    if (const auto* flag = node.as_boolean()) {
      return flag->get() ? "on" : "off";
    }
    return fail_at(node.source(), fmt::format("{}: give a string, a whole number, or true or false", key));
  }

  template <typename T, typename Parse>
  Result<> take(const toml::node& node, std::string_view key, Parse parse, T& target) {
    RW_TRY_ASSIGN(const std::string text, scalar(node, key));
    Result<T> value = parse(text);
    if (!value) {
      return fail_at(node.source(), fmt::format("{}: {}", key, value.error().message));
    }
    target = std::move(*value);
    return {};
  }

  Result<const toml::table*> table_of(const toml::node& node, std::string_view key) {
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      return fail_at(node.source(), fmt::format("'{}' must be a table, written as [{}]", key, key));
    }
    return table;
  }

  Result<> read_workers(const toml::node& node, WorkerPoolOptions& workers) {
    RW_TRY_ASSIGN(const toml::table* table, table_of(node, "workers"));
    RW_TRY(check_keys(*table, {"count", "cpus", "poll", "engine"}, "in [workers]"));
    if (const toml::node* count = table->get("count")) {
      RW_TRY(take<std::uint32_t>(*count, "count", parse_workers, workers.workers));
    }
    if (const toml::node* cpus = table->get("cpus")) {
      RW_TRY(read_cpus(*cpus, workers.cpus));
    }
    if (const toml::node* poll = table->get("poll")) {
      RW_TRY_ASSIGN(workers.poll, scalar(*poll, "poll"));
      if (const Result<PollPolicy> policy = parse_poll_policy(workers.poll); !policy) {
        return fail_at(poll->source(), fmt::format("poll: {}", policy.error().message));
      }
    }
    if (const toml::node* engine = table->get("engine")) {
      RW_TRY(take<LoopEngine>(*engine, "engine", parse_loop_engine, workers.engine));
    }
    return {};
  }

  Result<> read_cpus(const toml::node& node, std::vector<int>& cpus) {
    const toml::array* list = node.as_array();
    if (list == nullptr) {
      return take<std::vector<int>>(node, "cpus", parse_cpus, cpus);
    }
    cpus.clear();
    for (const toml::node& item : *list) {
      std::vector<int> some;
      RW_TRY(take<std::vector<int>>(item, "cpus", parse_cpus, some));
      cpus.insert(cpus.end(), some.begin(), some.end());
    }
    return {};
  }

  Result<> read_api(const toml::node& node, ServeConfig& config) {
    RW_TRY_ASSIGN(const toml::table* table, table_of(node, "api"));
    RW_TRY(check_keys(*table, {"socket"}, "in [api]"));
    if (const toml::node* socket = table->get("socket")) {
      RW_TRY_ASSIGN(config.api_socket, scalar(*socket, "socket"));
      if (config.api_socket.empty()) {
        return fail_at(socket->source(), "socket: '' is not allowed; give the path of a Unix socket, or \"off\"");
      }
    }
    return {};
  }

  Result<> read_disks(const toml::node& node, std::vector<DiskOptions>& disks) {
    const toml::array* list = node.as_array();
    if (list == nullptr || !list->is_homogeneous(toml::node_type::table)) {
      return fail_at(node.source(), "disks are written as [[disk]], with two brackets, once for each disk");
    }
    for (const toml::node& item : *list) {
      DiskOptions disk;
      for (const auto& [key, value] : *item.as_table()) {
        if (find_disk_key(key.str()) == nullptr) {
          return fail_at(key.source(), unknown_key(key.str(), disk_key_names(), "of a disk").error().message);
        }
        RW_TRY_ASSIGN(const std::string text, scalar(value, key.str()));
        if (Result<> set = set_disk_key(disk, key.str(), text); !set) {
          return fail_at(value.source(), set.error().message);
        }
      }
      if (Result<> complete = check_complete(disk); !complete) {
        return fail_at(item.source(), complete.error().message);
      }
      disks.push_back(std::move(disk));
    }
    return {};
  }

  static Result<std::uint32_t> parse_workers(std::string_view text) {
    const std::uint32_t count = parse_number<std::uint32_t>(text).value_or(0);
    if (count < 1 || count > limits::kWorkersMax) {
      return fail(fmt::format("'{}' is not allowed; give a number from 1 to {}", text, limits::kWorkersMax));
    }
    return count;
  }

  const std::string& file_;
};

}  // namespace

std::string suggestion(std::string_view word, const std::vector<std::string_view>& known) {
  std::string_view best;
  std::size_t best_distance = std::min<std::size_t>(3, word.size());  // more than two slips is another word
  for (const std::string_view candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best.empty() ? "" : fmt::format(" (did you mean '{}'?)", best);
}

Result<DiskOptions> parse_disk(std::string_view text, std::string_view before) {
  DiskOptions disk;
  std::set<std::string, std::less<>> seen;
  if (const std::string image = split_options(text).front(); starts_with_an_image(image)) {
    const bool has_socket = text.find(",socket=") != std::string_view::npos;
    return fail(fmt::format("'{}' has no key; write {}path={}{}", image, before, text,
                            has_socket ? "" : ",socket=/run/vm1-disk.sock"));
  }
  for (const std::string& part : split_options(text)) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    if (key.empty()) {
      return fail(part.empty() ? fmt::format("'{}' has an empty part; separate key=value pairs by single commas", text)
                               : fmt::format("'{}' has no key; write key=value", part));
    }
    std::optional<std::string_view> value;
    if (equals != std::string::npos) {
      value = std::string_view(part).substr(equals + 1);
    }
    RW_TRY(set_disk_key(disk, key, value));
    if (!seen.insert(key).second) {
      return fail(fmt::format("'{}' is given twice", key));
    }
  }
  RW_TRY(check_complete(disk));
  return disk;
}

Result<DiskOptions> disk_from_json(const nlohmann::json& object) {
  if (!object.is_object()) {
    return fail(R"(a disk is a JSON object such as {"path": "/srv/disk.img", "socket": "/run/vm1-disk.sock"})");
  }
  DiskOptions disk;
  for (const auto& [key, value] : object.items()) {
    std::string text;
    if (value.is_string()) {
      text = value.get<std::string>();
    } else if (value.is_boolean()) {
      text = value.get<bool>() ? "on" : "off";
    } else if (value.is_number_integer()) {
      text = value.dump();
    } else if (find_disk_key(key) != nullptr) {
      return fail(fmt::format("{}: give a string, a whole number, or true or false", key));
    }
    RW_TRY(set_disk_key(disk, key, text));
  }
  RW_TRY(check_complete(disk));
  if (is_file_image(disk.path) && !disk.path.starts_with('/')) {
    return bad_value("path", disk.path, "an absolute path: the daemon doesn't share your working directory");
  }
  if (!disk.socket.starts_with('/')) {
    return bad_value("socket", disk.socket, "an absolute path: the daemon doesn't share your working directory");
  }
  return disk;
}

nlohmann::json disk_to_json(const DiskOptions& disk) {
  nlohmann::json object = nlohmann::json::object();
  const DiskOptions defaults;
  for (const DiskKey& key : kDiskKeys) {
    if (std::string value = key.get(disk); value != key.get(defaults)) {
      object[std::string(key.name)] = std::move(value);
    }
  }
  return object;
}

Result<ServeConfig> parse_config(std::string_view toml_text, const std::string& file) {
  TomlReader reader(file);
  const toml::parse_result parsed = toml::parse(toml_text, file);
  if (!parsed) {
    return reader.fail_at(parsed.error().source(), parsed.error().description());
  }
  return reader.read(parsed.table());
}

Result<ServeConfig> load_config(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    return fail_errno(errno, fmt::format("can't open the configuration file '{}'", path));
  }
  std::string text(kConfigBytesMax + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad() || (stream.fail() && !stream.eof())) {
    return fail_errno(errno == 0 ? EIO : errno, fmt::format("can't read the configuration file '{}'", path));
  }
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kConfigBytesMax) {
    return fail(fmt::format("'{}' is larger than {} MiB: that is no configuration file", path, kConfigBytesMax >> 20U));
  }
  return parse_config(text, path);
}

Result<std::vector<int>> parse_cpus(std::string_view text) {
  constexpr int kCpuMax = 4095;  // beyond any kernel's NR_CPUS of today; bounds what "0-999999999" could ask for
  constexpr std::string_view kAllowed = "CPU numbers such as 0,2 or 4-7";
  std::vector<int> cpus;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t dash = part.find('-');
    const std::optional<int> first = parse_number<int>(part.substr(0, dash));
    const std::optional<int> last = dash == std::string_view::npos ? first : parse_number<int>(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *first > *last || *last > kCpuMax) {
      return fail(fmt::format("'{}' is not allowed; give {}", text, kAllowed));
    }
    for (int cpu = *first; cpu <= *last; ++cpu) {
      cpus.push_back(cpu);
    }
    if (comma == std::string_view::npos) {
      return cpus;
    }
    rest.remove_prefix(comma + 1);
  }
}

std::string cpus_text(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ",";
    text += last == i ? fmt::to_string(cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]);
    i = last + 1;
  }
  return text;
}

Result<Duration> parse_duration(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 4> kUnits = {
      {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}}};
  for (const auto& [unit, nanoseconds] : kUnits) {
    if (!text.ends_with(unit)) {
      continue;
    }
    const std::optional<std::int64_t> count = parse_number<std::int64_t>(text.substr(0, text.size() - unit.size()));
    std::int64_t ns = 0;
    if (count && *count >= 0 && !__builtin_mul_overflow(*count, nanoseconds, &ns)) {
      return Duration{ns};
    }
  }
  return fail(fmt::format("'{}' is not allowed; give a number with its unit, such as 5s, 500ms or 50us", text));
}

Result<LoopEngine> parse_loop_engine(std::string_view text) {
  if (text == "auto") {
    return LoopEngine::automatic;
  }
  if (text == "io_uring") {
    return LoopEngine::io_uring;
  }
  if (text == "epoll") {
    return LoopEngine::epoll;
  }
  return fail(fmt::format("'{}' is not allowed; give auto, io_uring or epoll", text));
}

std::string disk_keys_help() {
  std::string help;
  for (const DiskKey& key : kDiskKeys) {
    help += fmt::format("  {:<12} {}\n", key.name, key.help);
  }
  return help;
}

}  // namespace ringway
