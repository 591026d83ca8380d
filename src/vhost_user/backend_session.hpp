// One front-end's connection: the vhost-user back-end state machine.
//
// Owner: the control thread; lives from accept (or connect) to the end of its device's detach. Reads messages without ever
// blocking: half a message waits for its other half while other sessions go on; a message that needs workers stops the
// reading of this socket until it is answered.
//
// Faults of the front-end (unknown id, wrong size, bad number, missing or stray fd, an order that makes no sense) are
// counted by reason and answered by an error reply where the protocol has one (REPLY_ACK, or the message's own reply form);
// where it has none, or where framing itself is broken, the session ends with one log line that names message, value and
// limit. Only what was never offered and wants no reply is passed over. Every fd that arrives is owned from the moment of
// recvmsg, so none leaks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/foreign.hpp"
#include "loop/loop.hpp"
#include "vhost_user/device.hpp"
#include "vhost_user/socket_log.hpp"

namespace ringway::vhost_user {

// Why a message was refused, or a session ended.
enum class Fault : std::uint8_t {
  framing,          // not this protocol: version, payload size, a reply instead of a request, half a message at the end
  unknown_message,  // an id that the specification doesn't have
  not_offered,      // a message of a feature that this device doesn't offer
  bad_size,         // a payload of the wrong size
  bad_fds,          // missing, surplus or unusable file descriptors
  bad_value,        // a number out of its range
  bad_order,        // not now: the ring runs already
  failed,           // our side: no memory, a mapping that the kernel refuses, a device that didn't manage it in time
};
inline constexpr std::size_t kFaultCount = 8;
[[nodiscard]] const char* to_string(Fault fault) noexcept;

class BackendSession {
 public:
  // What the front-end sends belongs to the holdings of its socket. `ended` is called once, when the socket is closed and
  // the device is detached (from the loop, not from within another call of the session); the owner then destroys the
  // session, in that call or later. Not destroyed before that. `log` is the socket's; null: one of its own.
  static std::unique_ptr<BackendSession> create(ForeignFd socket, Loop& loop, Device& device,
                                                std::move_only_function<void(std::string reason)> ended,
                                                std::shared_ptr<SocketLog> log = nullptr);
  virtual ~BackendSession() = default;
  // Ends the session as if the front-end had gone (daemon shutdown, device removal); `ended` follows.
  virtual void close(std::string reason) = 0;
  [[nodiscard]] virtual std::uint64_t messages() const = 0;
  [[nodiscard]] virtual std::uint64_t refused() const = 0;
  [[nodiscard]] virtual std::uint64_t faults(Fault fault) const = 0;
};

}  // namespace ringway::vhost_user
