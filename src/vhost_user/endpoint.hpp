// Where front-ends find a device: a listening Unix socket, or one that we connect to.
//
// Owner: control thread. One session at a time; a second front-end stays in the backlog until the first session is drained.
// Any number of reconnects. A stale socket path is replaced, a live one never: a lock file `<path>.lock`
// tells them apart. A connecting endpoint tries again with growing pauses (to about 1 s).
// After a front-end that the device gave up on, the next one waits some seconds, and minutes if that repeats.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "loop/loop.hpp"
#include "vhost_user/device.hpp"

namespace ringway::vhost_user {

struct EndpointOptions {
  std::string path;
  bool connect = false;       // we are the client of the socket (QEMU: server=on)
  std::uint32_t mode = 0600;  // of a listening socket's path
  int inherited_fd = -1;      // a listening or connected socket that was handed to us instead of a path; becomes ours
};

class Endpoint {
 public:
  // Errors: a path too long for a socket address, a directory that doesn't exist or isn't writable, a live socket there, an
  // inherited descriptor that is no stream socket. (That nobody listens where we connect to is no error: we wait.)
  static Result<std::unique_ptr<Endpoint>> create(const EndpointOptions& options, Loop& loop, Device& device);
  // REQUIRES: close() is done, or no session was ever begun.
  virtual ~Endpoint() = default;
  // Stops accepting, ends the session, removes the socket; `done` when the device is detached (from the loop, not from
  // within this call; it may destroy the endpoint).
  virtual void close(std::move_only_function<void()> done) = 0;
  [[nodiscard]] virtual bool connected() const = 0;
  [[nodiscard]] virtual std::uint64_t sessions() const = 0;  // since the start
  // Messages that sessions refused, since the start.
  [[nodiscard]] virtual std::uint64_t refused() const = 0;
};

}  // namespace ringway::vhost_user
