#include "control/device_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace ringway {
namespace {

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

}  // namespace

const char* to_string(DeviceKind kind) noexcept {
  return kind == DeviceKind::disk ? "disk" : "net";
}

std::string written(Notation notation, std::string_view key, std::string_view value) {
  switch (notation) {
    case Notation::option:
      return value.empty() ? std::string(key) : fmt::format("{}={}", key, value);
    case Notation::toml:
      return value.empty() ? fmt::format("{} = true", key) : fmt::format("{} = \"{}\"", key, value);
    case Notation::json:
      return value.empty() ? fmt::format("\"{}\": true", key) : fmt::format("\"{}\": \"{}\"", key, value);
  }
  return std::string(key);
}

std::string written_off(Notation notation, std::string_view key) {
  return notation == Notation::option ? fmt::format("{}=off", key)
         : notation == Notation::toml ? fmt::format("{} = false", key)
                                      : fmt::format("\"{}\": false", key);
}

bool is_device_name(std::string_view name) noexcept {
  // A name that starts with a dot could be "." or "..", which an HTTP client normalises away.
  return !name.empty() && name.size() <= kDeviceNameBytesMax && name.front() != '.' &&
         std::ranges::all_of(name, is_name_character);
}

std::string device_name_from(std::string_view word, std::string_view otherwise) {
  std::string name(word.substr(0, kDeviceNameBytesMax - 8));
  std::ranges::replace_if(name, [](char c) { return !is_name_character(c); }, '-');
  name.erase(0, name.find_first_not_of('.'));
  return name.empty() ? std::string(otherwise) : name;
}

std::string normal_socket_path(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  return ignored ? path : absolute.lexically_normal().string();
}

}  // namespace ringway
