#include "control/disk_options.hpp"

#include <fmt/format.h>

#include <filesystem>

namespace ringway {

bool is_file_image(std::string_view path) noexcept {
  return !path.starts_with("ram:") && !path.starts_with("null:");
}

Result<> check_memory_size(const DiskOptions& disk) {
  if (is_file_image(disk.path)) {
    return {};
  }
  const std::size_t colon = disk.path.find(':');
  const std::uint32_t block_bytes = disk.block_bytes == 0 ? 512 : disk.block_bytes;
  const Result<std::uint64_t> bytes = parse_size(std::string_view(disk.path).substr(colon + 1));
  if (!bytes || *bytes == 0 || *bytes % block_bytes != 0) {
    return fail(fmt::format(
        "'{}' is not allowed; give a size that is a multiple of the block size, {}, and less than 8 EiB: a number "
        "of bytes, or one with K, M, G, T or P, such as {}:64M",
        disk.path, block_bytes, disk.path.substr(0, colon)));
  }
  return {};
}

std::string default_disk_name(const std::string& path) {
  return device_name_from(is_file_image(path) ? std::filesystem::path(path).stem().string() : path.substr(0, path.find(':')),
                          "disk");
}

}  // namespace ringway
