#include "control/standard_output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "loop/clock.hpp"

namespace ringway {
namespace {

// Another open file of the same pipe, with flags of its own.
UniqueFd reopen(int pipe) noexcept {
  char path[32];
  *fmt::format_to_n(path, sizeof path - 1, "/proc/self/fd/{}", pipe).out = '\0';
  return UniqueFd(::open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC));
}

// True if `fd` takes something within `patience`, or has an error to tell.
bool wait_for(int fd, Duration patience) noexcept {
  pollfd watched{.fd = fd, .events = POLLOUT, .revents = 0};
  const std::int64_t milliseconds = patience.ns / 1'000'000 + (patience.ns % 1'000'000 > 0 ? 1 : 0);
  return ::poll(&watched, 1, static_cast<int>(std::clamp<std::int64_t>(milliseconds, 0, INT_MAX))) > 0;
}

}  // namespace

StandardOutput::StandardOutput(int fd) noexcept
    : fd_(fd), kind_([fd] {
        struct stat status{};
        if (::fstat(fd, &status) != 0) {
          return Kind::other;
        }
        return S_ISFIFO(status.st_mode) ? Kind::pipe : (S_ISSOCK(status.st_mode) ? Kind::socket : Kind::other);
      }()) {
  if (kind_ == Kind::pipe) {
    own_ = reopen(fd);
  }
}

std::ptrdiff_t StandardOutput::try_write(std::string_view text) const noexcept {
  if (kind_ == Kind::socket) {
    return ::send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (own_ || kind_ == Kind::other) {
    return ::write(own_ ? own_.get() : fd_, text.data(), text.size());
  }
  // No /proc, or another user's pipe. One that says it has room takes so much at once, unless another process is quicker.
  if (!wait_for(fd_, Duration{})) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(fd_, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
}

std::size_t StandardOutput::write(std::string_view text, Duration patience) noexcept {
  const Instant deadline = clock_now() + patience;
  std::size_t written = 0;
  while (written < text.size()) {
    const std::ptrdiff_t bytes = try_write(text.substr(written));
    if (bytes >= 0) {
      written += static_cast<std::size_t>(bytes);
    } else if (errno == EAGAIN) {
      const Duration left = deadline - clock_now();
      if (left.ns <= 0 || !wait_for(fd_, left)) {
        break;
      }
    } else if (errno != EINTR) {
      break;
    }
  }
  return written;
}

}  // namespace ringway
