// Theory of operation: each source of options (the text of --disk or --net, TOML, JSON) is turned into pairs of key and
// text, and one table for each kind of device turns such a pair into a member of its options or into an error. So a key
// exists everywhere or nowhere, and its rules and its wording are the same wherever it was written. What disks and network
// cards have in common is written once, as templates over their options.

#include "control/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "backend/blk/faulty_store.hpp"
#include "backend/net/simple_ports.hpp"
#include "base/limits.hpp"
#include "policy/poll_policy.hpp"

namespace ringway {
namespace {

// The largest configuration file that is read; a larger one is a mistake (an image given as --config). A thousand devices
// with all their keys fit.
constexpr std::size_t kConfigBytesMax = std::size_t{1} << 20U;
// A shorter one is no wait for anything; as its error says.
constexpr Duration kStopDeadlineMin = Duration::milliseconds(1);
// Of a dotted key, as in a.b.c = 1. Each part is a table within the one before, and the parser takes them apart by
// recursion: a long enough key would overflow the stack. Ours have two.
constexpr std::size_t kKeyPartsMax = 16;

constexpr std::string_view kDurationAllowed = "a number with its unit (ns, us, ms or s), such as 5s or 500ms";
constexpr std::string_view kCpusAllowed = "CPU numbers such as 0,2 or 4-7";

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

enum class ValueKind : std::uint8_t {
  text,
  number,
  on_off,            // in --disk and --net it may stand without a value, for "on"
  number_or_on_off,  // as well
  octal,             // text, or in TOML a number that is written in octal
  text_or_off,       // text, among which "off" is a word of its own
  number_list,       // text, or in TOML also a number or a list of numbers and texts
};
bool may_stand_alone(ValueKind kind) {
  return kind == ValueKind::on_off || kind == ValueKind::number_or_on_off;
}

struct Key {
  std::string_view name;
  ValueKind kind;
  std::string_view allowed;
  std::string_view example;  // as TOML and JSON write it
  bool (*takes)(std::string_view text);
};

// One key of a device that is described by `Options`.
template <typename Options>
struct OptionKey : Key {
  std::string_view help;
  bool (*set)(Options&, std::string_view value);  // false: not allowed
  std::string (*get)(const Options&);             // the value as text
};
using DiskKey = OptionKey<DiskOptions>;
using NetKey = OptionKey<NetOptions>;

template <typename Options, auto Set>
bool takes(std::string_view text) {
  Options scratch;
  return Set(scratch, text);
}

template <typename Options, auto Member>
bool set_switch(Options& options, std::string_view value) {
  const std::optional<bool> on = parse_switch(value);
  options.*Member = on.value_or(false);
  return on.has_value();
}

template <typename Options, auto Member>
constexpr OptionKey<Options> switch_key(std::string_view name, std::string_view help) {
  return {{name, ValueKind::on_off, "on, off, true, false, yes or no", "true", takes<Options, set_switch<Options, Member>>},
          help,
          set_switch<Options, Member>,
          [](const Options& options) -> std::string { return options.*Member ? "on" : "off"; }};
}

template <typename Options, auto Member>
bool set_text(Options& options, std::string_view value) {
  options.*Member = value;
  return !value.empty() && value.find('\0') == std::string_view::npos;
}

template <typename Options, auto Member>
std::string get_text(const Options& options) {
  return options.*Member;
}

// --- what disks and network cards have in common ---

template <typename Options>
bool set_name(Options& options, std::string_view value) {
  options.name = value;
  return is_device_name(value);
}

template <typename Options>
bool set_mode(Options& options, std::string_view value) {
  const std::optional<std::uint32_t> mode = parse_number<std::uint32_t>(value, 8);
  options.mode = mode.value_or(0);
  return mode.has_value() && value.size() >= 3 && value.size() <= 4 && *mode <= 0777 && (*mode & 0600U) == 0600U;
}

template <typename Options>
constexpr OptionKey<Options> socket_key(std::string_view example, std::string_view help) {
  constexpr auto kSet = set_text<Options, &Options::socket>;
  return {{"socket", ValueKind::text, "the path of a Unix socket", example, takes<Options, kSet>},
          help,
          kSet,
          get_text<Options, &Options::socket>};
}

template <typename Options>
constexpr OptionKey<Options> name_key(std::string_view example, std::string_view help) {
  return {{"name", ValueKind::text, "1 to 64 letters, digits, '-', '_' and '.', not starting with '.'", example,
           takes<Options, set_name<Options>>},
          help,
          set_name<Options>,
          get_text<Options, &Options::name>};
}

template <typename Options>
constexpr OptionKey<Options> kConnectKey =
    switch_key<Options, &Options::connect>("connect", "connect to the socket instead of listening on it (default: off)");
template <typename Options>
constexpr OptionKey<Options> kPackedKey =
    switch_key<Options, &Options::packed>("packed", "offer packed rings (default: on)");
template <typename Options>
constexpr OptionKey<Options> kInOrderKey = switch_key<Options, &Options::in_order>(
    "in-order", std::is_same_v<Options, NetOptions> ? "offer in-order completion (default: on)"
                                                    : "offer in-order completion (default: off)");
template <typename Options>
constexpr OptionKey<Options> kInbandKey =
    switch_key<Options, &Options::inband>("inband", "offer notifications by message instead of eventfd (default: off)");
template <typename Options>
constexpr OptionKey<Options> kModeKey = {
    {"mode", ValueKind::octal, "octal permissions from 0600 to 0777 that let the owner read and write", R"("0660")",
     takes<Options, set_mode<Options>>},
    "permissions of the socket (default: 0600)",
    set_mode<Options>,
    [](const Options& options) { return fmt::format("{:04o}", options.mode); }};

// --- disks ---

bool set_serial(DiskOptions& disk, std::string_view value) {
  disk.serial = value;
  return !value.empty() && value.size() <= limits::kBlkIdBytes &&
         std::ranges::all_of(value, [](char c) { return c >= ' ' && c <= '~'; });
}
static_assert(limits::kBlkIdBytes == 20);

bool set_disk_queues(DiskOptions& disk, std::string_view value) {
  disk.queues = parse_number<std::uint32_t>(value).value_or(0);
  return disk.queues >= 1 && disk.queues <= limits::kBlkQueuesMax;
}
static_assert(limits::kBlkQueuesMax == 64);  // as the keys' texts say; and so with the other ones

bool set_faults(DiskOptions& disk, std::string_view value) {
  return parse_blk_faults(value) && set_text<DiskOptions, &DiskOptions::faults>(disk, value);
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

constexpr std::array kDiskKeys = {
    DiskKey{{"path", ValueKind::text, "a file, a block device, ram:<size> or null:<size>", R"("/srv/vm1.img")",
             takes<DiskOptions, set_text<DiskOptions, &DiskOptions::path>>},
            "the image: a file, a block device, ram:64M or null:10G (required)",
            set_text<DiskOptions, &DiskOptions::path>,
            get_text<DiskOptions, &DiskOptions::path>},
    socket_key<DiskOptions>(R"("/run/vm1-disk.sock")", "where the VMM finds the disk (required)"),
    name_key<DiskOptions>(R"("vm1")", "what logs, reports and `ringway ctl` call it (default: the file's name)"),
    DiskKey{{"queues", ValueKind::number, "a number from 1 to 64", "4", takes<DiskOptions, set_disk_queues>},
            "request queues; as many as the guest has CPUs is plenty (default: 1)",
            set_disk_queues,
            [](const DiskOptions& disk) { return fmt::to_string(disk.queues); }},
    switch_key<DiskOptions, &DiskOptions::read_only>("ro", "the guest may not write (default: off)"),
    DiskKey{
        {"serial", ValueKind::text, "1 to 20 printable ASCII characters", R"("VM1-ROOT")", takes<DiskOptions, set_serial>},
        "the serial number that the guest sees",
        set_serial,
        get_text<DiskOptions, &DiskOptions::serial>},
    DiskKey{{"engine", ValueKind::text, "auto (or automatic), io_uring (or uring), threads or inline", R"("threads")",
             takes<DiskOptions, set_engine>},
            "how the image is read and written: auto (by a probe, the default), io_uring, threads, or inline (by the worker "
            "itself: "
            "only for files on tmpfs)",
            set_engine,
            [](const DiskOptions& disk) -> std::string { return to_string(disk.engine); }},
    kConnectKey<DiskOptions>,
    switch_key<DiskOptions, &DiskOptions::direct>("direct",
                                                  "bypass the host's page cache where the file system can (default: on)"),
    switch_key<DiskOptions, &DiskOptions::registered>(
        "registered",
        "register guest memory with io_uring: may lower CPU for large requests (measure), and all of it stays in RAM. NEVER "
        "with ballooning, free page reporting or virtio-mem in the VMM: they would silently corrupt guest data (default: "
        "off)"),
    kPackedKey<DiskOptions>,
    kInOrderKey<DiskOptions>,
    kInbandKey<DiskOptions>,
    switch_key<DiskOptions, &DiskOptions::write_cache>("write-cache",
                                                       "start in write-back mode; off: write-through (default: on)"),
    DiskKey{
        {"block-size", ValueKind::number, "a power of two from 512 to 65536", "4096", takes<DiskOptions, set_block_size>},
        "logical block in bytes (default: what the image has)",
        set_block_size,
        [](const DiskOptions& disk) { return disk.block_bytes == 0 ? "" : fmt::to_string(disk.block_bytes); }},
    kModeKey<DiskOptions>,
    DiskKey{{"faults", ValueKind::text, "a list of faults such as short=1/3,eio=1/100,delay=500us,hang@1M", R"("eio=1/100")",
             takes<DiskOptions, set_faults>},
            "for tests: makes the image misbehave: one or several of eio=1/100, delay=500us, hang, short=1/3, eagain=1/10 "
            "and seed=7; the "
            "first three may name a kind and a place: eio=1/2:out@4K. Their commas are written twice",
            set_faults,
            get_text<DiskOptions, &DiskOptions::faults>},
};

// --- network cards ---

constexpr std::string_view kInterfaceAllowed =
    "the name of an interface: 1 to 15 ASCII characters without spaces, '/', ':' and '%', and neither '.' nor '..'";

template <std::string NetOptions::* Member>
bool set_interface(NetOptions& net, std::string_view value) {
  constexpr std::size_t kBytesMax = 15;  // IFNAMSIZ less the end
  net.*Member = value;
  // The kernel would take bytes beyond ASCII; what they are called depends on everybody's encoding.
  return !value.empty() && value.size() <= kBytesMax && value != "." && value != ".." &&
         std::ranges::all_of(value, [](unsigned char c) { return c > ' ' && c < 0x7f && c != '/' && c != ':' && c != '%'; });
}

template <std::string NetOptions::* Member>
constexpr NetKey interface_key(std::string_view name, std::string_view example, std::string_view help) {
  return {{name, ValueKind::text, kInterfaceAllowed, example, takes<NetOptions, set_interface<Member>>},
          help,
          set_interface<Member>,
          get_text<NetOptions, Member>};
}

bool set_switch_name(NetOptions& net, std::string_view value) {
  net.on_switch = value;
  return is_device_name(value);
}

bool set_fds(NetOptions& net, std::string_view value) {
  net.fds.clear();
  while (true) {
    const std::size_t colon = value.find_first_of(":,");  // a list in TOML comes with commas
    const std::optional<int> fd = parse_number<int>(value.substr(0, colon));
    if (!fd || *fd <= 2 || std::ranges::find(net.fds, *fd) != net.fds.end() ||
        net.fds.size() == limits::kNetPairsWithoutControlMax) {
      return false;
    }
    net.fds.push_back(*fd);
    if (colon == std::string_view::npos) {
      return true;
    }
    value.remove_prefix(colon + 1);
  }
}

bool set_source(NetOptions& net, std::string_view value) {
  const std::optional<bool> on = parse_switch(value);
  const std::uint32_t bytes = parse_number<std::uint32_t>(value).value_or(0);
  net.source_bytes = on ? (*on ? kSourceFrameBytesMin : 0) : bytes;
  return on || (bytes >= kSourceFrameBytesMin && bytes <= kSourceFrameBytesMax);
}
static_assert(kSourceFrameBytesMin == 60 && kSourceFrameBytesMax == 9014);

bool set_pairs(NetOptions& net, std::string_view value) {
  net.queues = parse_number<std::uint32_t>(value).value_or(0);
  return net.queues >= 1 && net.queues <= limits::kNetPairsWithoutControlMax;
}
static_assert(limits::kNetPairsWithoutControlMax == 128);

bool set_mac(NetOptions& net, std::string_view value) {
  const Result<NetMac> mac = parse_mac(value);
  net.mac = mac.value_or(NetMac{});
  return mac.has_value();
}

bool set_vlan(NetOptions& net, std::string_view value) {
  net.vlan = parse_number<std::uint16_t>(value).value_or(0);
  return net.vlan >= 1 && net.vlan <= 4094;
}

bool set_trunk(NetOptions& net, std::string_view value) {
  Result<std::vector<std::uint16_t>> vlans = parse_vlans(value);
  net.trunk = vlans ? std::move(*vlans) : std::vector<std::uint16_t>{};
  return vlans.has_value();
}

bool set_addresses(NetOptions& net, std::string_view value) {
  return parse_addresses(value, net).has_value();
}

bool set_mtu(NetOptions& net, std::string_view value) {
  net.mtu = parse_number<std::uint32_t>(value).value_or(0);
  return net.mtu >= 68 && net.mtu <= 65535;
}

bool set_speed(NetOptions& net, std::string_view value) {
  net.speed_mbits = parse_number<std::uint32_t>(value).value_or(0);
  return net.speed_mbits >= 1 && net.speed_mbits <= 0x7fffffff;
}

constexpr std::array kNetKeys = {
    interface_key<&NetOptions::tap>("tap", R"("tap0")",
                                    "port: a tap interface of the host; it is made if there is none and CAP_NET_ADMIN is "
                                    "there"),
    NetKey{{"fds", ValueKind::number_list, "different descriptors beyond 2, one for each pair, such as 3 or 3:4", "[3, 4]",
            takes<NetOptions, set_fds>},
           "port: a tap by open descriptors of its queues that the daemon inherits, such as 3:4",
           set_fds,
           [](const NetOptions& net) { return fmt::format("{}", fmt::join(net.fds, ":")); }},
    switch_key<NetOptions, &NetOptions::null>("null", "port: takes every frame, never has one"),
    switch_key<NetOptions, &NetOptions::loop>("loop", "port: gives every frame back to the pair that sent it"),
    NetKey{{"source", ValueKind::number_or_on_off, "on, off, or the length of a frame from 60 to 9014", "1500",
            takes<NetOptions, set_source>},
           "port: always has a frame, of 60 bytes or as many as are given",
           set_source,
           [](const NetOptions& net) { return net.source_bytes == 0 ? "off" : fmt::to_string(net.source_bytes); }},
    NetKey{{"switch", ValueKind::text, "a name of letters, digits, '-', '_' and '.', 64 bytes at most", R"("lan0")",
            takes<NetOptions, set_switch_name>},
           "port: the switch of that name (switch=lan0) between cards of this process, which is there as long as one of "
           "them is. "
           "With a tap instead of a socket: joins the two",
           set_switch_name,
           get_text<NetOptions, &NetOptions::on_switch>},
    socket_key<NetOptions>(R"("/run/vm1-net.sock")", "where the VMM finds the card (required, but for an uplink)"),
    name_key<NetOptions>(R"("vm1-net")", "what logs, reports and `ringway ctl` call it (default: the interface's name)"),
    NetKey{{"queues", ValueKind::number, "a number from 1 to 128", "4", takes<NetOptions, set_pairs>},
           "pairs of a receive and a transmit queue; as many as the guest has CPUs is plenty (default: 1)",
           set_pairs,
           [](const NetOptions& net) { return net.queues == 0 ? "" : fmt::to_string(net.queues); }},
    NetKey{{"mac", ValueKind::text, "six bytes in hexadecimal such as 52:54:00:12:34:56, of which the first is even",
            R"("52:54:00:12:34:56")", takes<NetOptions, set_mac>},
           "the card's address (default: made from name, socket and this host's machine-id, the same each time)",
           set_mac,
           [](const NetOptions& net) { return net.mac == NetMac{} ? "" : mac_text(net.mac); }},
    NetKey{{"mtu", ValueKind::number, "a number from 68 to 65535", "9000", takes<NetOptions, set_mtu>},
           "that the guest is told, and that of the tap (default: neither)",
           set_mtu,
           [](const NetOptions& net) { return net.mtu == 0 ? "" : fmt::to_string(net.mtu); }},
    interface_key<&NetOptions::bridge>("bridge", R"("br0")", "a bridge of the host that the tap is made a port of"),
    NetKey{{"vlan", ValueKind::number, "a number from 1 to 4094", "10", takes<NetOptions, set_vlan>},
           "of a switch: the VLAN of frames without a tag (default: 1; with trunk: none, they are dropped)",
           set_vlan,
           [](const NetOptions& net) { return net.vlan == 0 ? "" : fmt::to_string(net.vlan); }},
    NetKey{{"trunk", ValueKind::number_list, "different numbers from 1 to 4094, such as 10+20 or 10-19+30", "[10, 20]",
            takes<NetOptions, set_trunk>},
           "of a switch: the VLANs whose frames have tags here, such as 10+20 or 10-19+30",
           set_trunk,
           [](const NetOptions& net) { return vlans_text(net.trunk); }},
    switch_key<NetOptions, &NetOptions::isolated>(
        "isolated", "of a switch: exchanges frames only with cards and uplinks that aren't isolated"),
    switch_key<NetOptions, &NetOptions::checks_mac>("mac-check",
                                                    "of a switch: frames from other addresses than mac are dropped"),
    NetKey{{"ip", ValueKind::number_list, "IP addresses such as 10.0.0.2 or 10.0.0.2+2001:db8::2", R"("10.0.0.2")",
            takes<NetOptions, set_addresses>},
           "of a switch: frames from other IP addresses, and ARP for them, are dropped",
           set_addresses,
           addresses_text},
    kConnectKey<NetOptions>,
    kPackedKey<NetOptions>,
    kInOrderKey<NetOptions>,
    kInbandKey<NetOptions>,
    switch_key<NetOptions, &NetOptions::mergeable>("mergeable", "offer receive buffers that are merged (default: on)"),
    switch_key<NetOptions, &NetOptions::offloads>("offloads", "offer offloads of checksums and segmentation (default: on)"),
    switch_key<NetOptions, &NetOptions::control>("control",
                                                 "offer a control queue, and filters and addresses by it (default: on)"),
    NetKey{{"speed", ValueKind::number, "megabits a second from 1 to 2147483647", "10000", takes<NetOptions, set_speed>},
           "that the guest is told, in Mbit/s; nothing is limited by it (default: unknown)",
           set_speed,
           [](const NetOptions& net) {
             return net.speed_mbits == spec::kNetSpeedUnknown ? "" : fmt::to_string(net.speed_mbits);
           }},
    kModeKey<NetOptions>,
};

// --- a device of either kind ---

template <typename Options>
struct Described;
template <>
struct Described<DiskOptions> {
  static constexpr const auto& kKeys = kDiskKeys;
  static constexpr std::string_view kNoun = "disk";
  static constexpr std::string_view kMainKey = "path";  // that a word without a key is probably meant for
  static constexpr std::string_view kExampleSocket = "/run/vm1-disk.sock";
  static constexpr std::string_view kJsonExample = R"({"path": "/srv/disk.img", "socket": "/run/vm1-disk.sock"})";
};
template <>
struct Described<NetOptions> {
  static constexpr const auto& kKeys = kNetKeys;
  static constexpr std::string_view kNoun = "network card";
  static constexpr std::string_view kMainKey = "tap";
  static constexpr std::string_view kExampleSocket = "/run/vm1-net.sock";
  static constexpr std::string_view kJsonExample = R"({"tap": "tap0", "socket": "/run/vm1-net.sock"})";
};

template <typename Options>
const OptionKey<Options>* find_key(std::string_view name) {
  const auto* key = std::ranges::find(Described<Options>::kKeys, name, &Key::name);
  return key == Described<Options>::kKeys.end() ? nullptr : key;
}

template <typename Options>
std::vector<std::string_view> key_names() {
  std::vector<std::string_view> names;
  std::ranges::transform(Described<Options>::kKeys, std::back_inserter(names), &Key::name);
  return names;
}

// `remark`, if there is one, tells more than the key that was probably meant.
std::unexpected<Error> unknown_key(std::string_view key, const std::vector<std::string_view>& known, std::string_view where,
                                   const std::string& remark = "") {
  return fail(fmt::format("unknown key '{}' {}{}; allowed: {}", key, where, remark.empty() ? suggestion(key, known) : remark,
                          fmt::join(known, ", ")));
}

std::unexpected<Error> bad_value(std::string_view key, std::string_view value, std::string_view allowed) {
  return fail(fmt::format("{}: '{}' is not allowed; give {}", key, value, allowed));
}

template <typename Options>
std::unexpected<Error> unknown_key_of(std::string_view key, const std::string& remark = "") {
  using Other = std::conditional_t<std::is_same_v<Options, DiskOptions>, NetOptions, DiskOptions>;
  return unknown_key(key, key_names<Options>(), fmt::format("of a {}", Described<Options>::kNoun),
                     find_key<Other>(key) != nullptr ? fmt::format(" (a {} has it)", Described<Other>::kNoun) : remark);
}

// `value` is absent for a key that stands alone.
template <typename Options>
Result<> set_key(Options& options, std::string_view name, std::optional<std::string_view> value) {
  const OptionKey<Options>* key = find_key<Options>(name);
  if (key == nullptr) {
    return unknown_key_of<Options>(name);
  }
  if (!value && !may_stand_alone(key->kind)) {
    return fail(fmt::format("{}: a value is missing; give {}=<value>, {}", name, name, key->allowed));
  }
  if (!key->set(options, value.value_or("on"))) {
    return bad_value(name, value.value_or("on"), key->allowed);
  }
  return {};
}

// A value that is not of its key's type.
struct WrongValue {
  std::string given;      // as it is written
  std::string_view what;  // "a number"
  bool is_scalar = true;
};

std::string_view without_quotes(std::string_view text) {
  return text.size() > 1 && text.starts_with('"') && text.ends_with('"') ? text.substr(1, text.size() - 2) : text;
}

// The value that was probably meant, as TOML and JSON write it.
std::string right_form(const Key& key, const WrongValue& wrong) {
  const std::string_view text = without_quotes(wrong.given);
  if (key.kind == ValueKind::on_off && (key.takes(text) || text == "0" || text == "1")) {
    return parse_switch(text).value_or(text == "1") ? "true" : "false";
  }
  if (const std::optional<bool> on = parse_switch(text); on && key.kind == ValueKind::number_or_on_off) {
    return *on ? "true" : "false";
  }
  if (const std::optional<bool> on = parse_switch(text); on && key.kind == ValueKind::text_or_off) {
    return *on ? std::string(key.example) : R"("off")";
  }
  if (!wrong.is_scalar || !key.takes(text)) {
    return std::string(key.example);
  }
  const std::optional<std::uint64_t> number = parse_number<std::uint64_t>(text);
  const bool is_number = key.kind == ValueKind::number || key.kind == ValueKind::number_or_on_off;
  return is_number && number ? fmt::to_string(*number) : fmt::format("\"{}\"", text);
}

std::string allowed_in_a_file(const Key& key) {
  if (key.kind == ValueKind::number_or_on_off) {
    constexpr std::string_view kText = "on, off";
    return fmt::format("true, false{}", key.allowed.substr(kText.size()));
  }
  return std::string(key.kind == ValueKind::on_off ? "true or false" : key.allowed);
}

std::string wrong_in_toml(const Key& key, const WrongValue& wrong) {
  const std::string form = right_form(key, wrong);
  if (key.kind == ValueKind::text_or_off && parse_switch(without_quotes(wrong.given)).value_or(false)) {
    return fmt::format("{0}: {1} doesn't say where; give {2}, written {0} = {3}, or leave the key out for the default path",
                       key.name, wrong.given, key.allowed, form);
  }
  std::string octal;
  if (key.kind == ValueKind::octal) {
    std::string_view digits = without_quotes(form);
    digits.remove_prefix(digits.starts_with('0') ? 1 : 0);
    octal = fmt::format("{} = 0o{} or ", key.name, digits);
  }
  return fmt::format("{}: {} is {}; give {}, written {}{} = {}", key.name, wrong.given, wrong.what, allowed_in_a_file(key),
                     octal, key.name, form);
}

// Strings are taken for all keys: they are what to_json() writes.
Result<std::string> text_of_json(const Key& key, const nlohmann::json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_boolean() && may_stand_alone(key.kind)) {
    return value.get<bool>() ? "on" : "off";
  }
  if (value.is_number_integer() && (key.kind == ValueKind::number || key.kind == ValueKind::number_or_on_off)) {
    return value.dump();
  }
  if (key.kind == ValueKind::number_list && (value.is_array() || value.is_number_integer())) {
    std::string text;
    for (const auto& item : value.is_array() ? value : nlohmann::json::array({value})) {
      if (!item.is_string() && !item.is_number_integer()) {
        return fail(fmt::format("{}: {} stands in its list; give {}, written \"{}\": {}", key.name, item.type_name(),
                                key.allowed, key.name, key.example));
      }
      text += (text.empty() ? "" : ",") + (item.is_string() ? item.get<std::string>() : item.dump());
    }
    return text;
  }
  WrongValue wrong;
  if (value.is_array()) {
    wrong = {"[...]", "a list", false};
  } else if (value.is_object()) {
    wrong = {"{...}", "an object", false};
  } else {
    wrong = {value.dump(),
             value.is_boolean()          ? "a boolean"
             : value.is_number_integer() ? "a number"
             : value.is_number()         ? "a fraction"
                                         : "no value",
             !value.is_null()};
  }
  return fail(fmt::format("{}: {} is {}; give {}, written \"{}\": {}", key.name, wrong.given, wrong.what,
                          allowed_in_a_file(key), key.name, right_form(key, wrong)));
}

std::unexpected<Error> needs_socket(std::string_view noun, std::string_view name, Notation notation) {
  return fail(fmt::format("the {} '{}' needs {}, the Unix socket where the VMM finds it", noun, name,
                          written(notation, "socket", "<path>")));
}

Result<> check_complete(const DiskOptions& disk, Notation notation) {
  if (disk.path.empty()) {
    return fail(fmt::format("a disk needs {}: a file, a block device, ram:<size> or null:<size>",
                            written(notation, "path", "<image>")));
  }
  if (disk.socket.empty()) {
    return needs_socket("disk", disk.path, notation);
  }
  if (const Result<> size = check_memory_size(disk); !size) {
    return fail(fmt::format("path: {}", size.error().message));
  }
  return {};
}

Result<> check_complete(const NetOptions& net, Notation notation) {
  RW_TRY(check_port(net, notation));
  if (net.socket.empty() && !net.is_uplink()) {
    return needs_socket("network card", default_net_name(net), notation);
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
bool starts_without_a_key(std::string_view part, const DiskOptions& /*kind*/) {
  const std::string_view key = part.substr(0, part.find('='));
  return find_key<DiskOptions>(key) == nullptr && find_key<NetOptions>(key) == nullptr &&
         (key.size() == part.size() || key.find('/') != std::string_view::npos) && !key.empty() &&
         suggestion(key, key_names<DiskOptions>()).empty();
}

// `--net tap0`. Names of interfaces are short and near to much; a slip is looked for only in what may stand alone.
bool starts_without_a_key(std::string_view part, const NetOptions& /*kind*/) {
  std::vector<std::string_view> alone;
  for (const NetKey& key : kNetKeys) {
    if (may_stand_alone(key.kind)) {
      alone.push_back(key.name);
    }
  }
  return part.find('=') == std::string_view::npos && find_key<NetOptions>(part) == nullptr &&
         find_key<DiskOptions>(part) == nullptr && takes<NetOptions, set_interface<&NetOptions::tap>>(part) &&
         suggestion(part, alone).empty();
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

Result<std::uint32_t> parse_workers(std::string_view text) {
  const std::uint32_t count = parse_number<std::uint32_t>(text).value_or(0);
  if (count < 1 || count > limits::kWorkersMax) {
    return fail(fmt::format("'{}' is not allowed; give a number from 1 to {}", text, limits::kWorkersMax));
  }
  return count;
}

// A key of the file that belongs to no device.
struct HostKey : Key {
  std::string_view section;  // as it stands in brackets; empty: the top level
  std::string_view option;   // of the command line, which says the same
  Result<> (*set)(ServeConfig&, std::string_view text);
};

template <auto Parse, auto Member>
Result<> set_host(ServeConfig& config, std::string_view text) {
  RW_TRY_ASSIGN(std::invoke(Member, config), Parse(text));
  return {};
}

template <auto Set>
constexpr HostKey host_key(std::string_view section, std::string_view name, std::string_view option, ValueKind kind,
                           std::string_view allowed, std::string_view example) {
  constexpr auto kTakes = [](std::string_view text) {
    ServeConfig scratch;
    return Set(scratch, text).has_value();
  };
  return {{name, kind, allowed, example, kTakes}, section, option, Set};
}

std::vector<int>& cpus_of(ServeConfig& config) {
  return config.workers.cpus;
}
std::string& poll_of(ServeConfig& config) {
  return config.workers.poll;
}
LoopEngine& loop_of(ServeConfig& config) {
  return config.workers.engine;
}

constexpr std::array kHostKeys = {
    host_key<set_host<parse_stop_deadline, &ServeConfig::stop_deadline>>("", "stop-deadline", "--stop-deadline",
                                                                         ValueKind::text, kDurationAllowed, R"("5s")"),
    host_key<set_host<parse_workers, &ServeConfig::worker_count>>("workers", "count", "--workers", ValueKind::number,
                                                                  "a number from 1 to 256", "2"),
    host_key<set_host<parse_cpus, cpus_of>>("workers", "cpus", "--cpus", ValueKind::number_list, kCpusAllowed, "[2, 3]"),
    host_key<set_host<parse_poll, poll_of>>("workers", "poll", "--poll", ValueKind::text,
                                            "adaptive, never, always, grow_shrink, or a time such as fixed=50us",
                                            R"("fixed=50us")"),
    host_key<set_host<parse_loop_engine, loop_of>>("workers", "loop", "--loop", ValueKind::text, "auto, io_uring or epoll",
                                                   R"("auto")"),
    host_key<set_host<parse_api_socket, &ServeConfig::api_socket>>("api", "socket", "--api", ValueKind::text_or_off,
                                                                   R"(the path of a Unix socket, or "off")",
                                                                   R"("/run/ringway.sock")"),
};
static_assert(limits::kWorkersMax == 256);
constexpr std::array<std::string_view, 4> kSections = {"workers", "api", "disk", "net"};

// What may stand in a section that is no device's.
std::vector<std::string_view> host_key_names(std::string_view section) {
  std::vector<std::string_view> names;
  for (const HostKey& key : kHostKeys) {
    if (key.section == section) {
      names.push_back(key.name);
    }
  }
  if (section.empty()) {
    names.insert(names.end(), kSections.begin(), kSections.end());
  }
  return names;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlanks);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// `section` as it stands in brackets; empty: the top level.
const Key* find_toml_key(std::string_view section, std::string_view name) {
  if (section == "disk") {
    return find_key<DiskOptions>(name);
  }
  if (section == "net") {
    return find_key<NetOptions>(name);
  }
  const auto* key =
      std::ranges::find_if(kHostKeys, [&](const HostKey& each) { return each.section == section && each.name == name; });
  return key == kHostKeys.end() ? nullptr : key;
}

// Where a key belongs that stands in a section without one of that name, as words behind the error; empty: nowhere.
std::string right_place(std::string_view section, std::string_view name) {
  if (section == "workers" && name == "engine") {
    return " (the engine of the workers' loops is called 'loop', as in --loop; that of an image belongs into its [[disk]])";
  }
  if (name == "log" || name == "no-disks" || name == "config") {
    return fmt::format(" (the command line only has it: --{})", name);
  }
  if (section.empty() && name == "engine") {
    return " (that of an image belongs into its [[disk]], or is --engine for all of them; that of the workers' loops is "
           "'loop' in [workers])";
  }
  std::vector<std::string> places;
  for (const HostKey& key : kHostKeys) {
    if (key.name == name) {
      places.push_back(key.section.empty() ? "at the top, before the first [section]" : fmt::format("in [{}]", key.section));
    }
  }
  // A device's own error tells of the other kind of device.
  if (section != "disk" && section != "net") {
    for (const std::string_view kind : {"disk", "net"}) {
      if (find_toml_key(kind, name) != nullptr) {
        places.push_back(fmt::format("in a [[{}]]", kind));
      }
    }
  }
  return places.empty() ? "" : fmt::format(" (it belongs {})", fmt::join(places, " or "));
}

// What is wrong with a line that isn't TOML, if it is a value of ours in another notation: a path without quotes, `ro = on`,
// `mode = 0660`. Absent: something else, for which the parser has better words.
std::optional<std::string> explain_line(std::string_view toml_text, std::size_t line_number) {
  std::string_view line;
  std::string_view section;
  std::string_view rest = toml_text;
  for (std::size_t number = 1; number <= line_number; ++number) {
    const std::size_t end = rest.find('\n');
    line = trimmed(rest.substr(0, end));
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    if (line.starts_with('[')) {
      section = line.substr(0, line.find(']'));
      section = trimmed(section.substr(std::min(section.size(), section.find_first_not_of('['))));
    }
  }
  const std::size_t equals = line.find('=');
  if (equals == std::string_view::npos) {
    return std::nullopt;
  }
  const Key* key = find_toml_key(section, trimmed(line.substr(0, equals)));
  const std::string_view value = trimmed(line.substr(equals + 1, line.find('#', equals) - equals - 1));
  if (key == nullptr || value.find_first_of("\"'[]{}\\") != std::string_view::npos || value.starts_with('=')) {
    return std::nullopt;
  }
  if (value.empty()) {
    return fmt::format("{}: a value is missing; give {}, written {} = {}", key->name, allowed_in_a_file(*key), key->name,
                       key->example);
  }
  if (toml::parse(fmt::format("value = {}", value))) {
    return std::nullopt;  // something else is wrong with the line, such as a key that was given before
  }
  const bool is_text =
      key->kind == ValueKind::text || key->kind == ValueKind::text_or_off || key->kind == ValueKind::number_list;
  return wrong_in_toml(*key, {std::string(value), is_text ? "not in quotes" : "not a value in TOML"});
}

// Where the string ends that begins at `begin`: behind its quotes, or at the end of a line that it may not go beyond.
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  const char quote = text[begin];
  const std::string three(3, quote);
  const bool many_lines = text.substr(begin).starts_with(three);
  for (std::size_t i = begin + (many_lines ? 3 : 1); i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (many_lines && text.substr(i).starts_with(three)) {
      const std::size_t end = std::min(text.find_first_not_of(quote, i), text.size());
      return std::min(end, i + 5);  // it may end in two quotes of its own
    } else if (!many_lines && (text[i] == quote || text[i] == '\n')) {
      return text[i] == quote ? i + 1 : i;
    }
  }
  return text.size();
}

// Where a dotted key goes beyond kKeyPartsMax; absent: nowhere. Where the text is no TOML, the parser gets no further, so
// what is found behind doesn't matter.
std::optional<std::size_t> end_of_too_long_key(std::string_view text) {
  std::size_t parts = 1;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = end_of_string(text, i);
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    parts = c == '.' ? parts + 1 : std::string_view("\n=,[]{}").find(c) != std::string_view::npos ? 1 : parts;
    if (parts > kKeyPartsMax) {
      return i;
    }
    ++i;
  }
  return std::nullopt;
}

WrongValue describe(const toml::node& node) {
  if (node.is_array()) {
    return {"[...]", "a list", false};
  }
  if (node.is_table()) {
    return {"{...}", "a table", false};
  }
  std::ostringstream given;
  node.visit([&given](const auto& value) { given << value; });
  if (node.is_string()) {
    // Not as toml++ would write it, which chooses its own quotes.
    return {fmt::format("\"{}\"", node.as_string()->get()), "a string"};
  }
  return {given.str(), node.is_integer()          ? "a number"
                       : node.is_floating_point() ? "a fraction"
                       : node.is_boolean()        ? "a boolean"
                                                  : "a date or time"};
}

class TomlReader {
 public:
  explicit TomlReader(const std::string& file) : file_(file) {}

  Result<ServeConfig> read(const toml::table& root) {
    ServeConfig config;
    RW_TRY(read_section(root, "", "at the top level", config));
    for (const auto& [section, where] : {std::pair{"workers", "in [workers]"}, {"api", "in [api]"}}) {
      if (const toml::node* node = root.get(section)) {
        RW_TRY_ASSIGN(const toml::table* table, table_of(*node, section));
        RW_TRY(read_section(*table, section, where, config));
      }
    }
    if (const toml::node* node = root.get("disk")) {
      RW_TRY(read_devices(*node, "disk", config.disks));
    }
    if (const toml::node* node = root.get("net")) {
      RW_TRY(read_devices(*node, "net", config.nets));
    }
    return config;
  }

  [[nodiscard]] std::unexpected<Error> fail_at(const toml::source_region& source, std::string_view message) const {
    return fail(fmt::format("{}: {}", place_of(source), message));
  }

 private:
  [[nodiscard]] std::string place_of(const toml::source_region& source) const {
    return fmt::format("{}:{}:{}", file_, source.begin.line, source.begin.column);
  }

  Result<> check_keys(const toml::table& table, std::string_view section, std::string_view where) {
    const std::vector<std::string_view> known = host_key_names(section);
    for (const auto& [key, node] : table) {
      if (std::ranges::find(known, key.str()) == known.end()) {
        return fail_at(key.source(), unknown_key(key.str(), known, where, right_place(section, key.str())).error().message);
      }
    }
    return {};
  }

  // A value of the key's type as the text that it would have in --disk or --net.
  Result<std::string> scalar(const toml::node& node, const Key& key) {
    if (const auto* text = node.as_string();
        text != nullptr && key.kind != ValueKind::number && !may_stand_alone(key.kind)) {
      return text->get();
    }
    if (const auto* flag = node.as_boolean(); flag != nullptr && may_stand_alone(key.kind)) {
      return flag->get() ? "on" : "off";
    }
    if (const auto* list = node.as_array(); list != nullptr && key.kind == ValueKind::number_list) {
      return joined(*list, key);
    }
    WrongValue wrong = describe(node);
    if (const auto* number = node.as_integer()) {
      if (key.kind == ValueKind::number || key.kind == ValueKind::number_or_on_off || key.kind == ValueKind::number_list) {
        return fmt::to_string(number->get());
      }
      if (key.kind == ValueKind::octal) {
        if (number->flags() == toml::value_flags::format_as_octal) {
          return fmt::format("{:04o}", number->get());
        }
        wrong.what = "not octal";
      }
    }
    return fail_at(node.source(), wrong_in_toml(key, wrong));
  }

  Result<std::string> joined(const toml::array& list, const Key& key) {
    std::string text;
    for (const toml::node& item : list) {
      if (item.is_array()) {
        return fail_at(item.source(), wrong_in_toml(key, describe(item)));
      }
      RW_TRY_ASSIGN(const std::string part, scalar(item, key));
      text += (text.empty() ? "" : ",") + part;
    }
    return text;
  }

  Result<const toml::table*> table_of(const toml::node& node, std::string_view key) {
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      return fail_at(node.source(), fmt::format("'{}' must be a table, written as [{}]", key, key));
    }
    return table;
  }

  // The keys of a section that is no device's. `where` says so in errors.
  Result<> read_section(const toml::table& table, std::string_view section, std::string_view where, ServeConfig& config) {
    RW_TRY(check_keys(table, section, where));
    for (const HostKey& key : kHostKeys) {
      const toml::node* node = key.section == section ? table.get(key.name) : nullptr;
      if (node == nullptr) {
        continue;
      }
      RW_TRY_ASSIGN(const std::string text, scalar(*node, key));
      if (const Result<> set = key.set(config, text); !set) {
        return fail_at(node->source(), fmt::format("{}: {}", key.name, set.error().message));
      }
      if (key.name == "cpus") {
        config.cpus_place = place_of(node->source());
      }
    }
    return {};
  }

  template <typename Options>
  Result<> read_devices(const toml::node& node, std::string_view section, std::vector<Options>& devices) {
    const toml::array* list = node.as_array();
    if (list == nullptr || !list->is_homogeneous(toml::node_type::table)) {
      return fail_at(node.source(), fmt::format("{0}s are written as [[{1}]], with two brackets, once for each {0}",
                                                Described<Options>::kNoun, section));
    }
    for (const toml::node& item : *list) {
      RW_TRY_ASSIGN(Options device, read_device<Options>(*item.as_table(), section));
      devices.push_back(std::move(device));
    }
    return {};
  }

  template <typename Options>
  Result<Options> read_device(const toml::table& table, std::string_view section) {
    Options device;
    for (const auto& [key, value] : table) {
      const OptionKey<Options>* known = find_key<Options>(key.str());
      if (known == nullptr) {
        return fail_at(key.source(), unknown_key_of<Options>(key.str(), right_place(section, key.str())).error().message);
      }
      RW_TRY_ASSIGN(const std::string text, scalar(value, *known));
      if (Result<> set = set_key(device, key.str(), text); !set) {
        return fail_at(value.source(), set.error().message);
      }
    }
    if (Result<> complete = check_complete(device, Notation::toml); !complete) {
      // Where the value stands that it is about, if it is about one.
      const std::string& message = complete.error().message;
      const toml::node* about = table.get(std::string_view(message).substr(0, message.find(": ")));
      return fail_at(about != nullptr ? about->source() : table.source(), message);
    }
    return device;
  }

  const std::string& file_;
};

// --- the text of an option, and JSON ---

template <typename Options>
Result<Options> parse_device(std::string_view text, std::string_view before) {
  Options device;
  std::set<std::string, std::less<>> seen;
  if (const std::string value = split_options(text).front(); starts_without_a_key(value, device)) {
    const bool has_socket = text.find(",socket=") != std::string_view::npos;
    return fail(fmt::format("'{}' has no key; write {}{}={}{}", value, before, Described<Options>::kMainKey, text,
                            has_socket ? "" : fmt::format(",socket={}", Described<Options>::kExampleSocket)));
  }
  for (const std::string& part : split_options(text)) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string_view bare = trimmed(key);
    if (bare.empty()) {
      return fail(trimmed(part).empty()
                      ? fmt::format("'{}' has an empty part; separate key=value pairs by single commas", text)
                      : fmt::format("'{}' has no key; write key=value", part));
    }
    if (bare != key) {
      const std::string_view rest = equals == std::string::npos ? "" : std::string_view(part).substr(equals + 1);
      return fail(fmt::format("'{}' has a space beside its key; write {}{}{}, with commas and no spaces between the pairs",
                              part, bare, equals == std::string::npos ? "" : "=", trimmed(rest)));
    }
    std::optional<std::string_view> value;
    if (equals != std::string::npos) {
      value = std::string_view(part).substr(equals + 1);
    }
    RW_TRY(set_key(device, key, value));
    if (!seen.insert(key).second) {
      return fail(fmt::format("'{}' is given twice", key));
    }
  }
  RW_TRY(check_complete(device, Notation::option));
  return device;
}

std::unexpected<Error> not_absolute(std::string_view key, std::string_view path) {
  return bad_value(key, path, "an absolute path: the daemon doesn't share your working directory");
}

template <typename Options>
Result<Options> device_from_json(const nlohmann::json& object) {
  if (!object.is_object()) {
    return fail(
        fmt::format("a {} is a JSON object such as {}", Described<Options>::kNoun, Described<Options>::kJsonExample));
  }
  Options device;
  for (const auto& [key, value] : object.items()) {
    const OptionKey<Options>* known = find_key<Options>(key);
    if (known == nullptr) {
      return unknown_key_of<Options>(key);
    }
    RW_TRY_ASSIGN(const std::string text, text_of_json(*known, value));
    RW_TRY(set_key(device, key, text));
  }
  RW_TRY(check_complete(device, Notation::json));
  if (!device.socket.empty() && !device.socket.starts_with('/')) {
    return not_absolute("socket", device.socket);
  }
  return device;
}

template <typename Options>
nlohmann::json to_json(const Options& device) {
  nlohmann::json object = nlohmann::json::object();
  const Options defaults;
  for (const OptionKey<Options>& key : Described<Options>::kKeys) {
    if (std::string value = key.get(device); value != key.get(defaults)) {
      object[std::string(key.name)] = std::move(value);
    }
  }
  return object;
}

template <typename Options>
std::string keys_help() {
  std::string help;
  for (const OptionKey<Options>& key : Described<Options>::kKeys) {
    help += fmt::format("  {:<12} {}\n", key.name, key.help);
  }
  return help;
}

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
  return parse_device<DiskOptions>(text, before);
}

Result<NetOptions> parse_net(std::string_view text, std::string_view before) {
  return parse_device<NetOptions>(text, before);
}

Result<DiskOptions> disk_from_json(const nlohmann::json& object) {
  RW_TRY_ASSIGN(DiskOptions disk, device_from_json<DiskOptions>(object));
  if (is_file_image(disk.path) && !disk.path.starts_with('/')) {
    return not_absolute("path", disk.path);
  }
  return disk;
}

Result<NetOptions> net_from_json(const nlohmann::json& object) {
  if (object.is_object() && object.contains("fds")) {
    return fail("fds: those are descriptors of the daemon's process; only its own command line and file can name them");
  }
  return device_from_json<NetOptions>(object);
}

nlohmann::json disk_to_json(const DiskOptions& disk) {
  return to_json(disk);
}

nlohmann::json net_to_json(const NetOptions& net) {
  return to_json(net);
}

Result<ServeConfig> parse_config(std::string_view toml_text, const std::string& file) {
  TomlReader reader(file);
  if (const std::optional<std::size_t> end = end_of_too_long_key(toml_text)) {
    return fail(fmt::format("{}:{}: a key of more than {} parts; no key has so many dots", file,
                            1 + std::ranges::count(toml_text.substr(0, *end), '\n'), kKeyPartsMax));
  }
  const toml::parse_result parsed = toml::parse(toml_text, file);
  if (!parsed) {
    return reader.fail_at(
        parsed.error().source(),
        explain_line(toml_text, parsed.error().source().begin.line).value_or(std::string(parsed.error().description())));
  }
  return reader.read(parsed.table());
}

Result<> settle_workers(ServeConfig& config) {
  const std::size_t cpus = config.workers.cpus.size();
  const std::size_t workers = config.worker_count.value_or(static_cast<std::uint32_t>(std::max<std::size_t>(cpus, 1)));
  if (cpus > workers) {
    return fail(
        fmt::format("{} CPUs for {} worker{}: name as many CPUs as there are workers, or fewer, or leave the number of "
                    "workers out (--workers, or count in the file) and each CPU gets one",
                    cpus, workers, workers == 1 ? "" : "s"));
  }
  if (workers > limits::kWorkersMax) {
    return fail(
        fmt::format("{} CPUs would have a worker each, and {} workers are the most: name fewer", cpus, limits::kWorkersMax));
  }
  config.workers.workers = static_cast<std::uint32_t>(workers);
  return {};
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
  std::vector<int> cpus;
  std::vector<bool> seen(kCpuMax + 1);
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t dash = part.find('-');
    const std::optional<int> first = parse_number<int>(part.substr(0, dash));
    const std::optional<int> last = dash == std::string_view::npos ? first : parse_number<int>(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *first > *last || *last > kCpuMax) {
      return fail(fmt::format("'{}' is not allowed; give {}", text, kCpusAllowed));
    }
    for (int cpu = *first; cpu <= *last; ++cpu) {
      if (seen[static_cast<std::size_t>(cpu)]) {
        return fail(fmt::format("'{}' is not allowed; give each CPU once (CPU {} is there twice)", text, cpu));
      }
      seen[static_cast<std::size_t>(cpu)] = true;
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
  return fail(fmt::format("'{}' is not allowed; give {}", text, kDurationAllowed));
}

Result<Duration> parse_stop_deadline(std::string_view text) {
  RW_TRY_ASSIGN(const Duration deadline, parse_duration(text));
  if (deadline < kStopDeadlineMin) {
    return fail(fmt::format("'{}' is not allowed; give at least 1ms: the requests in flight need some time", text));
  }
  return deadline;
}

Result<std::string> parse_poll(std::string_view text) {
  if (const Result<PollPolicy> policy = parse_poll_policy(text); !policy) {
    // "50us", "50": the window alone.
    const std::string window = fmt::format("{}{}", text, parse_number<std::uint32_t>(text) ? "us" : "");
    const std::string fixed = fmt::format("fixed={}", window);
    return fail(policy.error().message +
                (parse_poll_policy(fixed) ? fmt::format(" (did you mean '{}'?)", fixed) : std::string()));
  }
  return std::string(text);
}

Result<std::string> parse_api_socket(std::string_view text) {
  if (text.empty()) {
    return fail(R"('' is not allowed; give the path of a Unix socket, or "off")");
  }
  if (const std::optional<bool> on = parse_switch(text); on && text != "off") {
    return fail(
        *on ? fmt::format("'{}' doesn't say where; give the path of a Unix socket, or nothing for the default path", text)
            : fmt::format("'{}' is not allowed; give off, or the path of a Unix socket", text));
  }
  return std::string(text);
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

std::string host_keys_help() {
  std::string help;
  for (const HostKey& key : kHostKeys) {
    const bool at_top = key.section.empty();
    help += fmt::format("  {:<17} as {}, such as {} = {}{}\n",
                        at_top ? std::string(key.name) : fmt::format("[{}] {}", key.section, key.name), key.option, key.name,
                        key.example, at_top ? "; before the first [section]" : "");
  }
  return help;
}

std::string disk_keys_help() {
  return keys_help<DiskOptions>();
}

std::string net_keys_help() {
  return keys_help<NetOptions>();
}

}  // namespace ringway
