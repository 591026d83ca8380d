#include "control/api_client.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "base/unique_fd.hpp"
#include "control/api_socket.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

constexpr std::size_t kReplyBytesMax = std::size_t{64} << 20U;  // 128 disks of 64 queues come to about 10 MiB

// Of each call from now on. The kernel takes zero for no limit.
void set_patience(int connection, Duration patience) {
  const std::int64_t us = std::max<std::int64_t>(patience.ns / 1'000, 1);
  const timeval time{.tv_sec = us / 1'000'000, .tv_usec = us % 1'000'000};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

// As an operator would write it.
std::string patience_text(Duration patience) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  return patience.ns % kSecond == 0 ? fmt::format("{} s", patience.ns / kSecond)
                                    : fmt::format("{} ms", patience.ns / 1'000'000);
}

// Errors: ENOENT: nobody is there; EACCES: it isn't ours to use.
Result<UniqueFd> connect_to(const std::string& path, Duration timeout) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return fail(fmt::format("'{}' is no path of a Unix socket: it has {} bytes, allowed are 1 to {}", path, path.size(),
                            sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection) {
    return fail_errno(errno, "can't create a socket");
  }
  set_patience(connection.get(), timeout);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED) {
      return std::unexpected(Error{
          ENOENT,
          fmt::format("no ringway answers at '{}'; start one with `ringway serve`, or name its socket with --api", path)});
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return fail(
          fmt::format("the daemon at '{}' doesn't accept connections: is it stopped or hung? (see its log, and the state of "
                      "its process)",
                      path));
    }
    if (errno == EACCES) {
      return std::unexpected(Error{
          EACCES,
          fmt::format("'{}': permission denied; only root and the user that the daemon runs as may use the API", path)});
    }
    return fail_errno(errno, fmt::format("can't connect to '{}'", path));
  }
  return connection;
}

// Where a daemon may be that was started without --api, by us or by the system.
Result<UniqueFd> find_daemon(Duration timeout) {
  const std::vector<std::string> places = api_places();
  std::optional<Error> not_ours;
  for (const std::string& place : places) {
    Result<UniqueFd> connection = connect_to(place, timeout);
    if (connection || (connection.error().code != ENOENT && connection.error().code != EACCES)) {
      return connection;
    }
    if (connection.error().code == EACCES && !not_ours) {
      not_ours = std::move(connection.error());
    }
  }
  if (not_ours) {
    return std::unexpected(std::move(*not_ours));
  }
  return fail(fmt::format("no ringway answers at {}; start one with `ringway serve`, or name its socket with --api",
                          fmt::join(places, " or ")));
}

// The value of a header of `head`, whose lines end in CRLF.
std::optional<std::string_view> header(std::string_view head, std::string_view name) {
  std::size_t at = head.find("\r\n");
  while (at != std::string_view::npos && at + 2 < head.size()) {
    const std::size_t start = at + 2;
    at = head.find("\r\n", start);
    const std::string_view line = head.substr(start, at - start);
    const std::size_t colon = line.find(':');
    if (colon == name.size() && std::ranges::equal(line.substr(0, colon), name, [](unsigned char a, unsigned char b) {
          return std::tolower(a) == std::tolower(b);
        })) {
      std::string_view value = line.substr(colon + 1);
      value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
      return value;
    }
  }
  return std::nullopt;
}

}  // namespace

Result<ApiReply> api_request(const std::string& path, std::string_view method, std::string_view target,
                             std::string_view body, Duration timeout) {
  const Instant deadline = clock_now() + timeout;
  RW_TRY_ASSIGN(const UniqueFd connection, path.empty() ? find_daemon(timeout) : connect_to(path, timeout));
  const std::string request = fmt::format(
      "{} {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: "
      "{}\r\n\r\n{}",
      method, target, body.size(), body);
  std::string_view unsent = request;
  while (!unsent.empty()) {
    set_patience(connection.get(), deadline - clock_now());
    const ssize_t sent = send(connection.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0) {
      break;  // it may have answered before it closed (a refusal)
    }
    unsent.remove_prefix(static_cast<std::size_t>(sent));
  }
  // The daemon closes after its answer, as we asked.
  std::string reply;
  while (reply.size() < kReplyBytesMax) {
    char buffer[16384];
    const Duration left = deadline - clock_now();
    set_patience(connection.get(), left);
    const ssize_t got = recv(connection.get(), buffer, sizeof buffer, 0);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (left.ns <= 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))) {
      return fail(
          fmt::format("'{}' hasn't answered within {}: is the daemon stopped or hung?", path, patience_text(timeout)));
    }
    if (got <= 0) {
      break;
    }
    reply.append(buffer, static_cast<std::size_t>(got));
  }
  if (reply.empty()) {
    return fail(fmt::format(
        "'{}' closed the connection without an answer: it is no ringway's API, or the daemon is just ending", path));
  }
  constexpr std::string_view kVersion = "HTTP/1.1 ";
  const std::size_t head_end = reply.find("\r\n\r\n");
  ApiReply result;
  if (head_end == std::string::npos || !reply.starts_with(kVersion) || reply.size() < kVersion.size() + 3 ||
      std::from_chars(reply.data() + kVersion.size(), reply.data() + kVersion.size() + 3, result.status).ec != std::errc{}) {
    return fail(fmt::format("what '{}' answers is no HTTP: no ringway's API is there", path));
  }
  result.body = reply.substr(head_end + 4);
  std::size_t length = 0;
  if (const auto value = header(std::string_view(reply).substr(0, head_end + 2), "content-length")) {
    std::from_chars(value->data(), value->data() + value->size(), length);
  }
  if (result.body.size() < length) {
    return fail(fmt::format("the answer from '{}' breaks off after {} of {} bytes", path, result.body.size(), length));
  }
  return result;
}

}  // namespace ringway
