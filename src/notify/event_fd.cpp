#include "notify/event_fd.hpp"

#include <unistd.h>

#include <cerrno>

namespace ringway {

EventFd::Sent EventFd::signal(StuckWriteGuard& guard) noexcept {
  if (!fd_) {
    return Sent::none;
  }
  const std::uint64_t one = 1;
  guard.enter();
  const ssize_t written = ::write(fd_.get(), &one, sizeof one);
  const int code = errno;
  guard.leave();
  if (written == static_cast<ssize_t>(sizeof one)) {
    return Sent::sent;
  }
  if (written < 0 && code == EAGAIN) {
    return Sent::already_signalled;
  }
  // EINTR comes only from the watchdog, after the write has hung for long; a part of 8 bytes is a stream out of step.
  const bool held = written < 0 && code == EINTR;
  if (held && fd_.holdings() != nullptr) {
    fd_.holdings()->note_harm();
  }
  fd_.reset();
  return held ? Sent::held : Sent::broken;
}

}  // namespace ringway
