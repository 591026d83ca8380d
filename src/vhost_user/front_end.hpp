// The front-end's side: what a VMM does. For the driver library, the benches, `ringway check` and tests. Blocking, one
// thread.
//
// Errors of the typed calls: the back-end refused (its answer was not 0), answered something else than was asked, didn't
// answer within kReplyTimeout, or has closed the connection. Fds that are passed in stay the caller's.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "base/unique_fd.hpp"
#include "vhost_user/codec.hpp"
#include "vhost_user/messages.hpp"

namespace ringway::vhost_user {

class FrontEnd {
 public:
  // Longer than a back-end may take to stop a ring whose store hangs.
  static constexpr Duration kReplyTimeout = Duration::seconds(10);

  // Connects (waiting up to `patience` for the socket to appear), or adopts a connected socket.
  static Result<FrontEnd> connect(const std::string& path, Duration patience = Duration::seconds(5));
  explicit FrontEnd(UniqueFd socket) : socket_(std::move(socket)) {}

  // --- raw, for tests that misbehave ---
  // Waits while the socket is full. `flags` includes the version.
  [[nodiscard]] Result<> send(std::uint32_t request, std::uint32_t flags, std::span<const std::byte> payload,
                              std::span<const int> fds = {});
  [[nodiscard]] Result<> send_bytes(std::span<const std::byte> bytes, std::span<const int> fds = {});
  // The next message, whole. Errors: none came in time, the back-end has closed the connection, it doesn't speak the
  // protocol.
  [[nodiscard]] Result<Message> receive(Duration timeout = kReplyTimeout);
  [[nodiscard]] int socket() const { return socket_.get(); }

  // --- typed: one call a message; with REPLY_ACK negotiated each waits for its answer ---
  [[nodiscard]] Result<std::uint64_t> get_features();
  [[nodiscard]] Result<> set_features(std::uint64_t bits);
  [[nodiscard]] Result<std::uint64_t> get_protocol_features();
  [[nodiscard]] Result<> set_protocol_features(std::uint64_t bits);
  [[nodiscard]] Result<> set_owner();
  [[nodiscard]] Result<> reset_owner();
  [[nodiscard]] Result<> reset_device();
  struct Region {
    std::uint64_t guest_address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t user_address = 0;
    std::uint64_t mmap_offset = 0;
    int fd = -1;
  };
  [[nodiscard]] Result<> set_mem_table(std::span<const Region> regions);
  [[nodiscard]] Result<> add_mem_reg(const Region& region);
  [[nodiscard]] Result<> rem_mem_reg(const Region& region);
  [[nodiscard]] Result<std::uint64_t> get_max_mem_slots();
  [[nodiscard]] Result<std::uint64_t> get_queue_num();
  [[nodiscard]] Result<> set_vring_num(std::uint32_t index, std::uint32_t size);
  [[nodiscard]] Result<> set_vring_base(std::uint32_t index, std::uint32_t base);
  [[nodiscard]] Result<std::uint32_t> get_vring_base(std::uint32_t index);
  [[nodiscard]] Result<> set_vring_addr(const VringAddress& address);
  [[nodiscard]] Result<> set_vring_kick(std::uint32_t index, int fd);  // -1: no fd
  [[nodiscard]] Result<> set_vring_call(std::uint32_t index, int fd);
  [[nodiscard]] Result<> set_vring_err(std::uint32_t index, int fd);
  [[nodiscard]] Result<> set_vring_enable(std::uint32_t index, bool enable);
  [[nodiscard]] Result<> vring_kick(std::uint32_t index);  // in-band
  [[nodiscard]] Result<std::vector<std::byte>> get_config(std::uint32_t offset, std::uint32_t bytes);
  [[nodiscard]] Result<> set_config(std::uint32_t offset, std::span<const std::byte> bytes, std::uint32_t flags = 0);
  [[nodiscard]] Result<> set_log_base(std::uint64_t bytes, std::uint64_t offset, int fd);
  struct Inflight {
    InflightDescription description{};
    ForeignFd fd;
  };
  [[nodiscard]] Result<Inflight> get_inflight_fd(std::uint16_t queue_count, std::uint16_t queue_size);
  [[nodiscard]] Result<> set_inflight_fd(const InflightDescription& description, int fd);
  [[nodiscard]] Result<> set_status(std::uint8_t status);
  [[nodiscard]] Result<std::uint8_t> get_status();
  // Gives the back-end its channel and keeps our end of it.
  [[nodiscard]] Result<> set_backend_req_fd();
  // Takes one request of the back-end from the channel and acknowledges it if it asks for that; an error if none comes in
  // time.
  [[nodiscard]] Result<Message> receive_backend_request(Duration timeout);

  [[nodiscard]] std::uint64_t protocol_features() const { return protocol_features_; }

 private:
  // Sends, and waits for the acknowledgement if REPLY_ACK is negotiated.
  [[nodiscard]] Result<> tell(Request request, std::span<const std::byte> payload, std::span<const int> fds = {});
  // Sends, and waits for the reply that the request has.
  [[nodiscard]] Result<Message> ask(Request request, std::span<const std::byte> payload, std::span<const int> fds = {});
  [[nodiscard]] Result<> send_request(Request request, std::uint32_t flags, std::span<const std::byte> payload,
                                      std::span<const int> fds);
  [[nodiscard]] Result<std::uint64_t> ask_value(Request request);
  [[nodiscard]] Result<> set_vring_fd(Request request, std::uint32_t index, int fd);

  UniqueFd socket_;
  MessageReader reader_;
  UniqueFd channel_;
  MessageReader channel_reader_;
  std::uint64_t protocol_features_ = 0;
};

}  // namespace ringway::vhost_user
