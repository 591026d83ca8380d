// Messages to and from a stream socket: 12 bytes of header, a payload, and file descriptors beside them (SCM_RIGHTS).
//
// Used by both ends of a connection, on whichever thread owns it. Nothing here blocks: a socket that has only half a message
// leaves the other half for the next call, at any byte. Every fd that arrives is owned from the moment of recvmsg, has
// close-on-exec set, and belongs to the reader's holdings.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/foreign.hpp"
#include "base/limits.hpp"
#include "base/result.hpp"
#include "vhost_user/messages.hpp"

namespace ringway::vhost_user {

struct Message {
  Header header;
  std::vector<std::byte> payload;
  std::vector<ForeignFd> fds;
  // More fds came than this process has room for: the surplus is gone, so `fds` can't be trusted to be what the sender
  // meant.
  bool fds_lost = false;
};

// Puts messages together from what a socket gives.
class MessageReader {
 public:
  explicit MessageReader(std::shared_ptr<ForeignHoldings> holdings = nullptr) : holdings_(std::move(holdings)) {}

  enum class Status : std::uint8_t {
    complete,    // take() gives the message
    incomplete,  // the socket has no more for now (EAGAIN)
    closed,      // the peer has closed it; in_message() tells whether in the middle of a message
    broken,      // not this protocol, more fds than a message may carry or the holdings may have, or a system error: error()
                 // says what; the stream can't be read any further
  };

  // Reads up to the end of one message, and nothing beyond it. `socket` may be blocking or not.
  [[nodiscard]] Status read(int socket);
  // REQUIRES: read() answered `complete`. Ready for the next message afterwards.
  [[nodiscard]] Message take();

  [[nodiscard]] bool in_message() const { return header_bytes_ > 0; }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  [[nodiscard]] long receive(int socket, std::byte* destination, std::size_t bytes);
  [[nodiscard]] bool header_is_sound();

  std::shared_ptr<ForeignHoldings> holdings_;
  std::array<std::byte, sizeof(Header)> header_{};
  std::size_t header_bytes_ = 0;
  std::size_t payload_bytes_ = 0;
  Message message_;
  std::string error_;
};

// Header and payload as they stand on the wire.
[[nodiscard]] std::vector<std::byte> encode(std::uint32_t request, std::uint32_t flags, std::span<const std::byte> payload);

// Sends without blocking, with `fds` beside the first byte. Returns how many bytes the socket took: 0 if it is full (then no
// fd went either). Never raises SIGPIPE. What it costs beyond the ordinary is charged to `holdings`, unless they are null.
// Errors: the socket's own, EPIPE among them.
[[nodiscard]] Result<std::size_t> send_some(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                                            ForeignHoldings* holdings = nullptr);

// A wire structure from the first bytes of a payload that may be longer; nothing if it is shorter.
template <typename T>
[[nodiscard]] std::optional<T> decode(std::span<const std::byte> payload) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (payload.size() < sizeof(T)) {
    return std::nullopt;
  }
  T value;
  std::memcpy(&value, payload.data(), sizeof(T));
  return value;
}

template <typename T>
[[nodiscard]] std::span<const std::byte> bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace ringway::vhost_user
