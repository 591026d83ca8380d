// What an operator says of any device, be it a disk or a network card. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ringway {

enum class DeviceKind : std::uint8_t { disk, net };
[[nodiscard]] const char* to_string(DeviceKind kind) noexcept;

// Where options are written, so that an error shows them as they are written there.
enum class Notation : std::uint8_t { option, toml, json };
// `key` with `value`: socket=<path>, socket = "<path>", "socket": "<path>"; without a value, the switch that is on: null,
// null = true, "null": true.
[[nodiscard]] std::string written(Notation notation, std::string_view key, std::string_view value = "");
[[nodiscard]] std::string written_off(Notation notation, std::string_view key);

struct DeviceOptions {
  std::string socket;         // of the vhost-user front-end
  std::string name;           // in logs, reports and the API; empty: from what is served, made unique by the host
  bool connect = false;       // we connect to the socket, on which the front-end listens
  bool packed = true;         // offer packed rings
  bool in_order = false;      // offer in-order completion
  bool inband = false;        // offer notifications by message
  std::uint32_t mode = 0600;  // of the socket's path

  bool operator==(const DeviceOptions&) const = default;
};

// Names stand in URLs, log lines and tables.
inline constexpr std::size_t kDeviceNameBytesMax = 64;
[[nodiscard]] bool is_device_name(std::string_view name) noexcept;

// `word` with every character that a name may not have replaced by '-', short enough for a suffix that makes it unique;
// `otherwise` if nothing is left.
[[nodiscard]] std::string device_name_from(std::string_view word, std::string_view otherwise);

// Two spellings of one path are one socket.
[[nodiscard]] std::string normal_socket_path(const std::string& path);

}  // namespace ringway
