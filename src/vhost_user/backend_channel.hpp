// The second socket of a connection, on which the back-end makes requests (SET_BACKEND_REQ_FD): the configuration has
// changed, a ring's call or error, if those go in-band.
//
// Owner: the control thread. Never blocks. With REPLY_ACK each request asks for an answer; answers are read as they come and
// thrown away, but for one use: while a request is unanswered, the same request is not sent again but remembered, and sent
// once more when the answer is in. So a front-end that doesn't answer costs bounded memory, and none that answers late
// misses a call. Faults end the channel, not the session.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "loop/loop.hpp"
#include "vhost_user/codec.hpp"

namespace ringway::vhost_user {

class BackendChannel final : private FdHandler {
 public:
  // `with_replies`: REPLY_ACK is negotiated. Errors: the loop can't watch the socket.
  static Result<std::unique_ptr<BackendChannel>> create(ForeignFd socket, Loop& loop, bool with_replies);
  BackendChannel(const BackendChannel&) = delete;
  BackendChannel& operator=(const BackendChannel&) = delete;
  ~BackendChannel() override;

  // True if the request was sent, or will be as soon as the one before it is answered. False: the channel is dead, or full
  // with no answer to wait for.
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

  BackendChannel(ForeignFd socket, Loop& loop, bool with_replies)
      : loop_(loop), socket_(std::move(socket)), with_replies_(with_replies), reader_(socket_.holdings()) {}

  void on_ready(std::uint32_t events) noexcept override;
  bool request(Note note);
  bool send(Note note);
  void send_waiting();
  void fail_channel(const std::string& reason);

  Loop& loop_;
  ForeignFd socket_;
  WatchId watch_;
  const bool with_replies_;
  MessageReader reader_;
  std::deque<Note> unanswered_;  // in the order sent, which is the order of the answers
  std::set<Note> waiting_;       // to be sent when their like is answered, or when the socket has room
};

}  // namespace ringway::vhost_user
