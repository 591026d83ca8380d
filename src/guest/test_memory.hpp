// Files of guest memory for tests and fuzzers. Not part of the product.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "base/unique_fd.hpp"

namespace ringway::test {

inline constexpr std::uint64_t kPage = 4096;

// A memfd of `bytes`, as a front-end would send it.
[[nodiscard]] inline UniqueFd memory_file(std::uint64_t bytes) {
  UniqueFd fd(::memfd_create("guest-memory", MFD_CLOEXEC));
  RW_CHECK(fd && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  return fd;
}

inline void truncate(const UniqueFd& fd, std::uint64_t bytes) {
  RW_CHECK(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
}

}  // namespace ringway::test
