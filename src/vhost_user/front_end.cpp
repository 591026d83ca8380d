#include "vhost_user/front_end.hpp"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "loop/clock.hpp"

namespace ringway::vhost_user {

namespace {

constexpr Duration kConnectPause = Duration::milliseconds(10);

int milliseconds_until(Instant deadline) {
  const std::int64_t ns = (deadline - clock_now()).ns;
  // Rounded up, so that the last wait doesn't become a spin.
  return ns <= 0 ? 0 : static_cast<int>((ns + 999'999) / 1'000'000);
}

// Waits until `socket` is ready for `events`. Errors: ETIMEDOUT.
Result<> wait_for(int socket, short events, Instant deadline, const char* what) {
  for (;;) {
    pollfd entry{.fd = socket, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, milliseconds_until(deadline));
    if (ready > 0) {
      return {};
    }
    if (ready == 0) {
      return fail_errno(ETIMEDOUT, what);
    }
    if (errno != EINTR) {
      return fail_errno(errno, what);
    }
  }
}

Result<Message> receive_from(int socket, MessageReader& reader, Instant deadline, const char* what) {
  for (;;) {
    switch (reader.read(socket)) {
      case MessageReader::Status::complete:
        return reader.take();
      case MessageReader::Status::incomplete:
        RW_TRY(wait_for(socket, POLLIN, deadline, what));
        break;
      case MessageReader::Status::closed:
        return fail_errno(ECONNRESET, fmt::format("{}: the other side has closed the connection", what));
      case MessageReader::Status::broken:
        return fail(reader.error());
    }
  }
}

Result<> send_to(int socket, std::span<const std::byte> bytes, std::span<const int> fds, Instant deadline) {
  while (!bytes.empty()) {
    RW_TRY_ASSIGN(const std::size_t sent, send_some(socket, bytes, fds));
    if (sent == 0) {
      RW_TRY(wait_for(socket, POLLOUT, deadline, "the back-end doesn't read its socket"));
      continue;
    }
    bytes = bytes.subspan(sent);
    fds = {};
  }
  return {};
}

}  // namespace

Result<FrontEnd> FrontEnd::connect(const std::string& path, Duration patience) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return fail(fmt::format("socket path {} is longer than {} bytes", path, sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const Instant deadline = clock_now() + patience;
  for (;;) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket) {
      return fail_errno(errno, "no socket");
    }
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      return FrontEnd(std::move(socket));
    }
    const int code = errno;
    const bool may_come = code == ENOENT || code == ECONNREFUSED || code == EAGAIN || code == EINTR;
    if (!may_come || clock_now() >= deadline) {
      return fail_errno(code, fmt::format("can't connect to {}", path));
    }
    static_cast<void>(::poll(nullptr, 0, static_cast<int>(kConnectPause.ns / 1'000'000)));
  }
}

Result<> FrontEnd::send_bytes(std::span<const std::byte> bytes, std::span<const int> fds) {
  return send_to(socket_.get(), bytes, fds, clock_now() + kReplyTimeout);
}

Result<> FrontEnd::send(std::uint32_t request, std::uint32_t flags, std::span<const std::byte> payload,
                        std::span<const int> fds) {
  return send_bytes(encode(request, flags, payload), fds);
}

Result<Message> FrontEnd::receive(Duration timeout) {
  return receive_from(socket_.get(), reader_, clock_now() + timeout, "no message from the back-end");
}

Result<> FrontEnd::send_request(Request request, std::uint32_t flags, std::span<const std::byte> payload,
                                std::span<const int> fds) {
  Result<> sent = send(static_cast<std::uint32_t>(request), flags, payload, fds);
  if (!sent) {
    sent.error().message = fmt::format("{}: {}", to_string(request), sent.error().message);
  }
  return sent;
}

Result<Message> FrontEnd::ask(Request request, std::span<const std::byte> payload, std::span<const int> fds) {
  RW_TRY(send_request(request, kVersion, payload, fds));
  Result<Message> answer = receive();
  if (!answer) {
    answer.error().message = fmt::format("{}: {}", to_string(request), answer.error().message);
    return answer;
  }
  if (answer->header.request != static_cast<std::uint32_t>(request) || (answer->header.flags & kFlagReply) == 0) {
    return fail(fmt::format("{}: answered by message {} with flags {:#x}", to_string(request), answer->header.request,
                            answer->header.flags));
  }
  return answer;
}

Result<> FrontEnd::tell(Request request, std::span<const std::byte> payload, std::span<const int> fds) {
  if ((protocol_features_ & kProtocolReplyAck) == 0) {
    return send_request(request, kVersion, payload, fds);
  }
  RW_TRY(send_request(request, kVersion | kFlagNeedReply, payload, fds));
  Result<Message> answer = receive();
  if (!answer) {
    return fail_errno(answer.error().code, fmt::format("{}: {}", to_string(request), answer.error().message));
  }
  const std::optional<std::uint64_t> value = decode<std::uint64_t>(answer->payload);
  if (answer->header.request != static_cast<std::uint32_t>(request) || !value) {
    return fail(fmt::format("{}: not acknowledged but answered by message {} of {} bytes", to_string(request),
                            answer->header.request, answer->payload.size()));
  }
  if (*value != 0) {
    return fail(fmt::format("{}: refused by the back-end", to_string(request)));
  }
  return {};
}

Result<std::uint64_t> FrontEnd::ask_value(Request request) {
  RW_TRY_ASSIGN(const Message answer, ask(request, {}));
  const std::optional<std::uint64_t> value = decode<std::uint64_t>(answer.payload);
  if (!value) {
    return fail(fmt::format("{}: answered by {} bytes instead of 8", to_string(request), answer.payload.size()));
  }
  return *value;
}

Result<std::uint64_t> FrontEnd::get_features() {
  return ask_value(Request::get_features);
}

Result<> FrontEnd::set_features(std::uint64_t bits) {
  return tell(Request::set_features, bytes_of(bits));
}

Result<std::uint64_t> FrontEnd::get_protocol_features() {
  return ask_value(Request::get_protocol_features);
}

Result<> FrontEnd::set_protocol_features(std::uint64_t bits) {
  // Whether this message itself is acknowledged depends on what it negotiates; so it doesn't ask.
  RW_TRY(send_request(Request::set_protocol_features, kVersion, bytes_of(bits), {}));
  protocol_features_ = bits;
  return {};
}

Result<> FrontEnd::set_owner() {
  return tell(Request::set_owner, {});
}

Result<> FrontEnd::reset_owner() {
  return tell(Request::reset_owner, {});
}

Result<> FrontEnd::reset_device() {
  return tell(Request::reset_device, {});
}

Result<> FrontEnd::set_mem_table(std::span<const Region> regions) {
  if (regions.size() > limits::kFdsPerMessageMax) {
    return fail(fmt::format("{} regions don't fit into one SET_MEM_TABLE (at most {}): use add_mem_reg", regions.size(),
                            limits::kFdsPerMessageMax));
  }
  struct Table {
    std::uint32_t count;
    std::uint32_t padding;
    std::array<MemoryRegion, limits::kFdsPerMessageMax> regions;
  } table{};
  std::array<int, limits::kFdsPerMessageMax> fds{};
  table.count = static_cast<std::uint32_t>(regions.size());
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const Region& region = regions[i];
    table.regions[i] = {.guest_address = region.guest_address,
                        .bytes = region.bytes,
                        .user_address = region.user_address,
                        .mmap_offset = region.mmap_offset};
    fds[i] = region.fd;
  }
  const std::size_t bytes = offsetof(Table, regions) + regions.size() * sizeof(MemoryRegion);
  return tell(Request::set_mem_table, bytes_of(table).first(bytes), std::span(fds).first(regions.size()));
}

namespace {

struct RegionPayload {
  std::uint64_t padding;
  MemoryRegion region;
};

RegionPayload region_payload(const FrontEnd::Region& region) {
  return {.padding = 0,
          .region = {.guest_address = region.guest_address,
                     .bytes = region.bytes,
                     .user_address = region.user_address,
                     .mmap_offset = region.mmap_offset}};
}

}  // namespace

Result<> FrontEnd::add_mem_reg(const Region& region) {
  const RegionPayload payload = region_payload(region);
  return tell(Request::add_mem_reg, bytes_of(payload), std::span(&region.fd, 1));
}

Result<> FrontEnd::rem_mem_reg(const Region& region) {
  const RegionPayload payload = region_payload(region);
  return tell(Request::rem_mem_reg, bytes_of(payload));
}

Result<std::uint64_t> FrontEnd::get_max_mem_slots() {
  return ask_value(Request::get_max_mem_slots);
}

Result<std::uint64_t> FrontEnd::get_queue_num() {
  return ask_value(Request::get_queue_num);
}

Result<> FrontEnd::set_vring_num(std::uint32_t index, std::uint32_t size) {
  const VringState state{.index = index, .num = size};
  return tell(Request::set_vring_num, bytes_of(state));
}

Result<> FrontEnd::set_vring_base(std::uint32_t index, std::uint32_t base) {
  const VringState state{.index = index, .num = base};
  return tell(Request::set_vring_base, bytes_of(state));
}

Result<std::uint32_t> FrontEnd::get_vring_base(std::uint32_t index) {
  const VringState asked{.index = index, .num = 0};
  RW_TRY_ASSIGN(const Message answer, ask(Request::get_vring_base, bytes_of(asked)));
  const std::optional<VringState> state = decode<VringState>(answer.payload);
  if (!state || state->index != index) {
    return fail(fmt::format("GET_VRING_BASE of ring {}: not answered by the state of that ring", index));
  }
  return state->num;
}

Result<> FrontEnd::set_vring_addr(const VringAddress& address) {
  return tell(Request::set_vring_addr, bytes_of(address));
}

Result<> FrontEnd::set_vring_fd(Request request, std::uint32_t index, int fd) {
  const std::uint64_t value = index | (fd < 0 ? kVringNoFd : 0);
  return tell(request, bytes_of(value), fd < 0 ? std::span<const int>{} : std::span(&fd, 1));
}

Result<> FrontEnd::set_vring_kick(std::uint32_t index, int fd) {
  return set_vring_fd(Request::set_vring_kick, index, fd);
}

Result<> FrontEnd::set_vring_call(std::uint32_t index, int fd) {
  return set_vring_fd(Request::set_vring_call, index, fd);
}

Result<> FrontEnd::set_vring_err(std::uint32_t index, int fd) {
  return set_vring_fd(Request::set_vring_err, index, fd);
}

Result<> FrontEnd::set_vring_enable(std::uint32_t index, bool enable) {
  const VringState state{.index = index, .num = enable ? 1U : 0U};
  return tell(Request::set_vring_enable, bytes_of(state));
}

Result<> FrontEnd::vring_kick(std::uint32_t index) {
  const VringState state{.index = index, .num = 0};
  return tell(Request::vring_kick, bytes_of(state));
}

Result<std::vector<std::byte>> FrontEnd::get_config(std::uint32_t offset, std::uint32_t bytes) {
  const ConfigHeader header{.offset = offset, .bytes = bytes, .flags = 0};
  std::vector<std::byte> payload(sizeof(header) + bytes);
  std::memcpy(payload.data(), &header, sizeof(header));
  RW_TRY_ASSIGN(const Message answer, ask(Request::get_config, payload));
  if (answer.payload.size() != payload.size()) {
    return fail(fmt::format(
        "GET_CONFIG of {} bytes at {}: {}", bytes, offset,
        answer.payload.empty() ? "refused by the back-end" : "answered by a payload of another size than was asked for"));
  }
  return std::vector<std::byte>(answer.payload.begin() + sizeof(header), answer.payload.end());
}

Result<> FrontEnd::set_config(std::uint32_t offset, std::span<const std::byte> bytes, std::uint32_t flags) {
  const ConfigHeader header{.offset = offset, .bytes = static_cast<std::uint32_t>(bytes.size()), .flags = flags};
  std::vector<std::byte> payload(sizeof(header) + bytes.size());
  std::memcpy(payload.data(), &header, sizeof(header));
  if (!bytes.empty()) {
    std::memcpy(payload.data() + sizeof(header), bytes.data(), bytes.size());
  }
  return tell(Request::set_config, payload);
}

Result<> FrontEnd::set_log_base(std::uint64_t bytes, std::uint64_t offset, int fd) {
  const LogDescription description{.bytes = bytes, .offset = offset};
  if ((protocol_features_ & kProtocolLogShmfd) == 0) {
    return tell(Request::set_log_base, bytes_of(description), std::span(&fd, 1));
  }
  // LOG_SHMFD gives this message a reply of its own. Back-ends differ in what it holds; a number that isn't 0 is a refusal
  // in ours.
  RW_TRY_ASSIGN(const Message answer, ask(Request::set_log_base, bytes_of(description), std::span(&fd, 1)));
  if (decode<std::uint64_t>(answer.payload).value_or(0) != 0) {
    return fail("SET_LOG_BASE: refused by the back-end");
  }
  return {};
}

Result<FrontEnd::Inflight> FrontEnd::get_inflight_fd(std::uint16_t queue_count, std::uint16_t queue_size) {
  const InflightDescription asked{.mmap_bytes = 0, .mmap_offset = 0, .queue_count = queue_count, .queue_size = queue_size};
  RW_TRY_ASSIGN(Message answer, ask(Request::get_inflight_fd, bytes_of(asked)));
  const std::optional<InflightDescription> description = decode<InflightDescription>(answer.payload);
  if (!description || description->mmap_bytes == 0 || answer.fds.size() != 1) {
    return fail(
        fmt::format("GET_INFLIGHT_FD for {} queues of {} entries: refused by the back-end", queue_count, queue_size));
  }
  return Inflight{.description = *description, .fd = std::move(answer.fds[0])};
}

Result<> FrontEnd::set_inflight_fd(const InflightDescription& description, int fd) {
  return tell(Request::set_inflight_fd, bytes_of(description), std::span(&fd, 1));
}

Result<> FrontEnd::set_status(std::uint8_t status) {
  const std::uint64_t value = status;
  return tell(Request::set_status, bytes_of(value));
}

Result<std::uint8_t> FrontEnd::get_status() {
  RW_TRY_ASSIGN(const std::uint64_t value, ask_value(Request::get_status));
  return static_cast<std::uint8_t>(value);
}

Result<> FrontEnd::set_backend_req_fd() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return fail_errno(errno, "no socket pair for the back-end's channel");
  }
  channel_.reset(ends[0]);
  channel_reader_ = MessageReader{};
  const UniqueFd theirs(ends[1]);
  const int fd = theirs.get();
  return tell(Request::set_backend_req_fd, {}, std::span(&fd, 1));
}

Result<Message> FrontEnd::receive_backend_request(Duration timeout) {
  const Instant deadline = clock_now() + timeout;
  RW_TRY_ASSIGN(Message message,
                receive_from(channel_.get(), channel_reader_, deadline, "no request on the back-end's channel"));
  if ((message.header.flags & kFlagNeedReply) != 0) {
    const std::uint64_t success = 0;
    RW_TRY(send_to(channel_.get(), encode(message.header.request, kVersion | kFlagReply, bytes_of(success)), {}, deadline));
  }
  return message;
}

}  // namespace ringway::vhost_user
