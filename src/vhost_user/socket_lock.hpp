// Who owns a socket path: a lock file beside it, `<path>.lock`, held as long as the socket is served.
//
// A socket file stays behind when its process dies, and looks like a live one. The lock tells them apart: the kernel lets go
// of it with the process. A socket that someone serves without such a lock (another program) is found by connecting to it.
#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace ringway::vhost_user {

class SocketLock {
 public:
  // Takes the lock and removes a stale socket at `path`. Errors: the path is served by another process or by us already,
  // something there isn't a socket, the directory doesn't exist or isn't writable.
  [[nodiscard]] static Result<SocketLock> take(const std::string& path);

  SocketLock() = default;
  SocketLock(const SocketLock&) = delete;
  SocketLock& operator=(const SocketLock&) = delete;
  SocketLock(SocketLock&&) noexcept = default;
  SocketLock& operator=(SocketLock&&) noexcept = default;
  ~SocketLock();

 private:
  SocketLock(std::string lock_path, UniqueFd fd) : lock_path_(std::move(lock_path)), fd_(std::move(fd)) {}

  std::string lock_path_;
  UniqueFd fd_;
};

}  // namespace ringway::vhost_user
