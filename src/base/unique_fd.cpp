#include "base/unique_fd.hpp"

#include <unistd.h>

namespace ringway {

void UniqueFd::reset(int fd) noexcept {
  const int old = std::exchange(fd_, fd);
  if (old >= 0 && old != fd) {
    static_cast<void>(::close(old));
  }
}

}  // namespace ringway
