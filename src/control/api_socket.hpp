// The listening Unix socket of the local API. Its path is guarded as those of the disks are (vhost_user/socket_lock.hpp): a
// stale one is replaced, that of a running instance never.
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "vhost_user/socket_lock.hpp"

namespace ringway {

class ApiSocket {
 public:
  // Listening, non-blocking, with mode 0600 from the first moment.
  // Errors: the path too long, its directory missing or not writable, another instance, something there that is no socket.
  [[nodiscard]] static Result<ApiSocket> create(const std::string& path);
  ApiSocket(const ApiSocket&) = delete;
  ApiSocket& operator=(const ApiSocket&) = delete;
  ApiSocket(ApiSocket&&) = default;
  ApiSocket& operator=(ApiSocket&&) = delete;
  ~ApiSocket();

  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  ApiSocket(std::string path, vhost_user::SocketLock lock, UniqueFd socket);

  std::string path_;
  vhost_user::SocketLock lock_;
  UniqueFd socket_;  // empty after a move
};

// Where the API is when nobody says otherwise: ringway.sock in $RUNTIME_DIRECTORY (systemd's); else, unless we are root, in
// $XDG_RUNTIME_DIR; else in /run.
[[nodiscard]] std::string default_api_path();
// Where a client looks for one, in this order: the above, the login session's, /run/ringway.sock, and where a unit with
// RuntimeDirectory=ringway has it.
[[nodiscard]] std::vector<std::string> api_places();

}  // namespace ringway
