// What the host knows, as JSON for the API and as tables for people. The tables are made from the JSON, so `ringway ctl`
// shows what `ringway serve` shows. Pure.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "control/host.hpp"

namespace ringway {

[[nodiscard]] nlohmann::json disk_status_json(const DiskStatus& disk);
[[nodiscard]] nlohmann::json net_status_json(const NetStatus& net);
[[nodiscard]] nlohmann::json disk_stats_json(const DiskStats& disk);
[[nodiscard]] nlohmann::json net_stats_json(const NetStats& net);
// One array of both.
[[nodiscard]] nlohmann::json stats_json(const std::vector<DiskStats>& disks, const std::vector<NetStats>& nets);
[[nodiscard]] nlohmann::json worker_stats_json(const WorkerStats& worker);

// Each takes the array that GET /v1/devices, /v1/stats or /v1/workers answers; what is missing in it shows as 0 or "-".
[[nodiscard]] std::string devices_table(const nlohmann::json& devices);
[[nodiscard]] std::string stats_table(const nlohmann::json& stats);
[[nodiscard]] std::string workers_table(const nlohmann::json& workers);

// "1 disk", "2 disks and 1 network card"
[[nodiscard]] std::string devices_text(std::size_t disks, std::size_t nets);
// "512 B", "64.0 KiB", "10.0 GiB"
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);
// "850 ns", "12.3 us", "4.56 ms", "1.20 s"
[[nodiscard]] std::string time_text(std::uint64_t nanoseconds);

}  // namespace ringway
