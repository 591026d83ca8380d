// The second socket of a connection, on which the back-end makes requests (SET_BACKEND_REQ_FD): the configuration has
// changed, a ring's call or error, if those go in-band.
//
// Owner: the control thread. Never blocks, and never reads: both ends of the socket come from the front-end, which may keep
// the lock that every read of ours would sleep for. So no request asks for an answer, and what comes all the same stays
// where it is. While the socket is full, a request is remembered, once each, and sent when there is room again. So a
// front-end that doesn't read costs bounded memory, and none that reads late misses a call. Faults end the channel, not the
// session, unless they are harm.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/foreign.hpp"
#include "base/result.hpp"
#include "loop/loop.hpp"
#include "vhost_user/messages.hpp"
#include "vhost_user/socket_log.hpp"

namespace ringway::vhost_user {

class BackendChannel final : private FdHandler {
 public:
  // `on_harm` is called when a request held up the control thread (ForeignHoldings::harmed()), in the middle of whatever
  // sent it; it must not destroy the channel. Errors: the loop can't watch the socket. REQUIRES: a Unix socket.
  static Result<std::unique_ptr<BackendChannel>> create(ForeignFd socket, Loop& loop, std::shared_ptr<SocketLog> log,
                                                        std::move_only_function<void()> on_harm);
  BackendChannel(const BackendChannel&) = delete;
  BackendChannel& operator=(const BackendChannel&) = delete;
  ~BackendChannel() override;

  // True if the request was sent, or will be when the socket has room. False: the channel is dead.
  bool notify_config_change() { return request({BackendRequest::config_change_msg, 0}); }
  bool vring_call(std::uint32_t index) { return request({BackendRequest::vring_call, index}); }
  bool vring_err(std::uint32_t index) { return request({BackendRequest::vring_err, index}); }

  [[nodiscard]] bool alive() const { return static_cast<bool>(socket_); }

 private:
  struct Note {
    BackendRequest request;
    std::uint32_t index;  // of the ring, if it concerns one
    auto operator<=>(const Note&) const = default;
  };

  BackendChannel(ForeignFd socket, Loop& loop, std::shared_ptr<SocketLog> log, std::move_only_function<void()> on_harm)
      : loop_(loop), log_(std::move(log)), on_harm_(std::move(on_harm)), socket_(std::move(socket)) {}

  void on_ready(std::uint32_t events) noexcept override;
  bool request(Note note);
  [[nodiscard]] bool send(Note note);
  void fail_channel(const std::string& reason);

  Loop& loop_;
  const std::shared_ptr<SocketLog> log_;
  std::move_only_function<void()> on_harm_;
  ForeignFd socket_;
  WatchId watch_;
  std::set<Note> waiting_;  // for room in the socket
};

}  // namespace ringway::vhost_user
