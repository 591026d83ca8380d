// From an operator's words to options: the syntax of --disk and --net, the configuration file (TOML) and the JSON of the
// local API, which share one table of keys for each kind of device.
//
// Pure but for load_config(), which reads a file. Every error names the key, the value, and what is allowed; in TOML also
// the line and the column. An unknown key is refused, with the key that was probably meant.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "control/disk_options.hpp"
#include "control/host.hpp"
#include "control/net_options.hpp"

namespace ringway {

// Everything that `ringway serve` takes from its configuration file. The command line overrides and adds.
struct ServeConfig {
  WorkerPoolOptions workers;                  // their number comes from settle_workers()
  std::string cpus_place;                     // "host.toml:3:8", where the file names workers.cpus; empty: it doesn't
  std::optional<std::uint32_t> worker_count;  // absent: not said
  std::string api_socket;                     // empty: the default path; "off": none
  Duration stop_deadline = limits::kStopDeadline;
  std::vector<DiskOptions> disks;
  std::vector<NetOptions> nets;
};

// "path=disk.img,socket=/run/vm1.sock,queues=4,ro": keys separated by commas; a comma within a value is written twice. A
// switch may stand alone (`ro`) or with on or off (`direct=off`). `before` is what stands before the text where it is typed
// ("--disk "): the error for a bare image path shows the whole as it should be.
[[nodiscard]] Result<DiskOptions> parse_disk(std::string_view text, std::string_view before = "");
// "tap=tap0,socket=/run/vm1-net.sock,queues=4" in the same way.
[[nodiscard]] Result<NetOptions> parse_net(std::string_view text, std::string_view before = "");

// {"path": "/srv/disk.img", "socket": "/run/vm1.sock", "queues": 4, "ro": true}. The paths must be absolute, since the
// daemon's working directory means nothing to a client.
[[nodiscard]] Result<DiskOptions> disk_from_json(const nlohmann::json& object);
// {"tap": "tap0", "socket": "/run/vm1-net.sock", "queues": 4}. Without `fds`: a client has no descriptors here.
[[nodiscard]] Result<NetOptions> net_from_json(const nlohmann::json& object);
// The keys that differ from their defaults, so that …_from_json() gives the same options again.
[[nodiscard]] nlohmann::json disk_to_json(const DiskOptions& disk);
[[nodiscard]] nlohmann::json net_to_json(const NetOptions& net);

// `file` only names the text in errors.
[[nodiscard]] Result<ServeConfig> parse_config(std::string_view toml_text, const std::string& file);
[[nodiscard]] Result<ServeConfig> load_config(const std::string& path);

// Sets workers.workers, when every source has said what it wants: `worker_count`, or else one for each CPU, or else one.
// More workers than CPUs take them in turn. Errors: fewer workers than CPUs, one of which would then be named for nothing.
[[nodiscard]] Result<> settle_workers(ServeConfig& config);

// "0,2,4-7". Errors: a CPU that is named twice.
[[nodiscard]] Result<std::vector<int>> parse_cpus(std::string_view text);
// The other way. REQUIRES: `cpus` ascends.
[[nodiscard]] std::string cpus_text(const std::vector<int>& cpus);
// "5s", "500ms", "50us", "200ns"
[[nodiscard]] Result<Duration> parse_duration(std::string_view text);
// A duration of at least 1 ms.
[[nodiscard]] Result<Duration> parse_stop_deadline(std::string_view text);
// What parse_poll_policy() takes, as it was given. Errors: its own, and for "50us" what was probably meant.
[[nodiscard]] Result<std::string> parse_poll(std::string_view text);
// "/run/ringway.sock", or "off". Errors: another word for a switch, which would be a file of that name.
[[nodiscard]] Result<std::string> parse_api_socket(std::string_view text);
// "auto", "io_uring", "epoll"
[[nodiscard]] Result<LoopEngine> parse_loop_engine(std::string_view text);

// The keys of the configuration file that belong to no device, each with its section and the option of the command line
// that says the same, one a line: for --help.
[[nodiscard]] std::string host_keys_help();
// The keys of a device with what each takes and does, in the same way.
[[nodiscard]] std::string disk_keys_help();
[[nodiscard]] std::string net_keys_help();

// The one of `known` that `word` is probably a slip of, as " (did you mean 'queues'?)"; empty when none is near.
[[nodiscard]] std::string suggestion(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace ringway
