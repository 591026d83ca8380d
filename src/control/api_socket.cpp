#include "control/api_socket.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace ringway {
namespace {

constexpr int kBacklog = 32;

Result<UniqueFd> listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());  // its length was checked by SocketLock
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // On Linux a socket's path is created with the mode of the unbound socket, so it is never open to others, not even
  // shortly.
  if (!listener || fchmod(listener.get(), 0600) != 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail_errno(errno, fmt::format("can't make the socket {}", path));
  }
  if (listen(listener.get(), kBacklog) != 0) {
    const int code = errno;
    unlink(path.c_str());
    return fail_errno(code, fmt::format("can't listen on the socket {}", path));
  }
  return listener;
}

}  // namespace

ApiSocket::ApiSocket(std::string path, vhost_user::SocketLock lock, UniqueFd socket)
    : path_(std::move(path)), lock_(std::move(lock)), socket_(std::move(socket)) {}

ApiSocket::~ApiSocket() {
  if (socket_) {
    unlink(path_.c_str());  // before the lock goes, so never a successor's
  }
}

Result<ApiSocket> ApiSocket::create(const std::string& path) {
  constexpr std::string_view kAdvice = "choose another path for the API, or run without one (--api <path>, --api off)";
  Result<vhost_user::SocketLock> lock = vhost_user::SocketLock::take(path);
  if (!lock) {
    return std::unexpected(Error{lock.error().code, fmt::format("local API: {}; {}", lock.error().message, kAdvice)});
  }
  Result<UniqueFd> listener = listen_at(path);
  if (!listener) {
    return std::unexpected(
        Error{listener.error().code, fmt::format("local API: {}; {}", listener.error().message, kAdvice)});
  }
  return ApiSocket(path, std::move(*lock), std::move(*listener));
}

std::string default_api_path() {
  // What root serves is the system's, though root may have a login session.
  for (const char* variable : {"RUNTIME_DIRECTORY", geteuid() == 0 ? nullptr : "XDG_RUNTIME_DIR"}) {
    const char* value = variable == nullptr ? nullptr : std::getenv(variable);
    if (value != nullptr && *value == '/') {
      // systemd separates several directories by colons.
      const std::string directories = value;
      return directories.substr(0, directories.find(':')) + "/ringway.sock";
    }
  }
  return "/run/ringway.sock";
}

std::vector<std::string> api_places() {
  std::vector<std::string> places{default_api_path()};
  for (const char* place : {"/run/ringway.sock", "/run/ringway/ringway.sock"}) {
    if (std::ranges::find(places, place) == places.end()) {
      places.emplace_back(place);
    }
  }
  return places;
}

}  // namespace ringway
