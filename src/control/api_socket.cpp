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
#include <optional>

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

// The first one that the environment names.
std::optional<std::string> directory_in(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value != '/') {
    return std::nullopt;
  }
  // systemd separates several directories by colons.
  const std::string directories = value;
  return directories.substr(0, directories.find(':'));
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
  std::optional<std::string> directory = directory_in("RUNTIME_DIRECTORY");
  // What root serves is the system's, though root may have a login session.
  if (!directory && geteuid() != 0) {
    directory = directory_in("XDG_RUNTIME_DIR");
  }
  return directory.value_or("/run") + "/ringway.sock";
}

std::vector<std::string> api_places() {
  std::vector<std::string> places{default_api_path()};
  const std::string session = geteuid() == 0 ? "/run" : directory_in("XDG_RUNTIME_DIR").value_or("/run");
  for (const std::string& place :
       {session + "/ringway.sock", std::string("/run/ringway.sock"), std::string("/run/ringway/ringway.sock")}) {
    if (std::ranges::find(places, place) == places.end()) {
      places.push_back(place);
    }
  }
  return places;
}

}  // namespace ringway
