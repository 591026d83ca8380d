#include "vhost_user/codec.hpp"

#include <fmt/core.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <utility>

#include "base/check.hpp"
#include "loop/clock.hpp"

namespace ringway::vhost_user {

namespace {

// Room for as many fds as the kernel lets anybody send at once (SCM_MAX_FD). What doesn't fit it would close itself, on the
// thread that reads, however long that takes.
constexpr std::size_t kFdsAtOnceMax = 253;
constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int) * kFdsAtOnceMax);

// Takes ownership of every fd in the control data, whatever else is wrong with it.
void collect_fds(msghdr& header, std::vector<ForeignFd>& fds, const std::shared_ptr<ForeignHoldings>& holdings) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr; control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      fds.emplace_back(UniqueFd(fd), holdings);
    }
  }
}

// sendmsg() or recvmsg(), or -errno. Each wakes whoever waits at the other end, and how many those are is the other end's
// choice.
template <typename Call>
ssize_t uninterrupted(ForeignHoldings* holdings, Call call) {
  const Duration before = holdings != nullptr ? thread_cpu_time(pthread_self()) : Duration{};
  ssize_t moved = -1;
  do {
    moved = call();
  } while (moved < 0 && errno == EINTR);
  moved = moved < 0 ? -errno : moved;
  if (holdings != nullptr) {
    holdings->charge(thread_cpu_time(pthread_self()) - before, clock_now());
  }
  return moved;
}

}  // namespace

long MessageReader::receive(int socket, std::byte* destination, std::size_t bytes) {
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control;
  iovec piece{.iov_base = destination, .iov_len = bytes};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t got =
      uninterrupted(holdings_.get(), [&] { return ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT); });
  if (got < 0) {
    return got;
  }
  collect_fds(header, message_.fds, holdings_);
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    message_.fds_lost = true;
  }
  return got;
}

bool MessageReader::header_is_sound() {
  std::memcpy(&message_.header, header_.data(), sizeof(Header));
  const Header& header = message_.header;
  const char* name = to_string(Request{header.request});
  if ((header.flags & kVersionMask) != kVersion) {
    error_ = fmt::format("{} (id {}) has protocol version {}, only version {} exists", name, header.request,
                         header.flags & kVersionMask, kVersion);
    return false;
  }
  if (header.payload_bytes > limits::kMessagePayloadMax) {
    error_ = fmt::format("{} (id {}) announces a payload of {} bytes, at most {} are accepted", name, header.request,
                         header.payload_bytes, limits::kMessagePayloadMax);
    return false;
  }
  message_.payload.resize(header.payload_bytes);
  return true;
}

MessageReader::Status MessageReader::read(int socket) {
  if (!error_.empty()) {
    return Status::broken;
  }
  for (;;) {
    const bool in_header = header_bytes_ < sizeof(Header);
    if (!in_header && payload_bytes_ == message_.payload.size()) {
      return Status::complete;
    }
    std::byte* destination = in_header ? header_.data() + header_bytes_ : message_.payload.data() + payload_bytes_;
    const std::size_t wanted = in_header ? sizeof(Header) - header_bytes_ : message_.payload.size() - payload_bytes_;
    const std::size_t had = message_.fds.size();
    const long got = receive(socket, destination, wanted);
    if (got == -EAGAIN) {
      return Status::incomplete;
    }
    if (got == 0 || got == -ECONNRESET) {
      return Status::closed;
    }
    if (got < 0) {
      error_ = fail_errno(static_cast<int>(-got), "the socket can't be read").error().message;
      return Status::broken;
    }
    if (message_.fds.size() > limits::kFdsPerMessageMax) {
      error_ = fmt::format("a message with {} descriptors, at most {} are accepted", message_.fds.size(),
                           limits::kFdsPerMessageMax);
      return Status::broken;
    }
    // After each part that brought some: fds may come beside every byte of a message. Those that nobody has closed yet count
    // as well, of earlier connections too: who lets each close() wait doesn't get more and more of them. Who sends none is
    // not stopped, though others have left less than he has already.
    if (message_.fds.size() != had && holdings_ != nullptr && holdings_->descriptors() > holdings_->descriptors_max()) {
      error_ =
          fmt::format("{} descriptors of this front-end are open or still being closed, {} may be (is ulimit -n too low?)",
                      holdings_->descriptors(), holdings_->descriptors_max());
      return Status::broken;
    }
    if (!in_header) {
      payload_bytes_ += static_cast<std::size_t>(got);
      continue;
    }
    header_bytes_ += static_cast<std::size_t>(got);
    if (header_bytes_ == sizeof(Header) && !header_is_sound()) {
      return Status::broken;
    }
  }
}

Message MessageReader::take() {
  RW_CHECK(header_bytes_ == sizeof(Header) && payload_bytes_ == message_.payload.size());
  header_bytes_ = 0;
  payload_bytes_ = 0;
  return std::exchange(message_, Message{});
}

std::vector<std::byte> encode(std::uint32_t request, std::uint32_t flags, std::span<const std::byte> payload) {
  const Header header{.request = request, .flags = flags, .payload_bytes = static_cast<std::uint32_t>(payload.size())};
  std::vector<std::byte> bytes(sizeof(Header) + payload.size());
  std::memcpy(bytes.data(), &header, sizeof(Header));
  if (!payload.empty()) {
    std::memcpy(bytes.data() + sizeof(Header), payload.data(), payload.size());
  }
  return bytes;
}

Result<std::size_t> send_some(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                              ForeignHoldings* holdings) {
  RW_CHECK(fds.size() <= limits::kFdsPerMessageMax);
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  // sendmsg only reads what the vector points at; its interface predates const.
  iovec piece{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  const ssize_t sent = uninterrupted(holdings, [&] { return ::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT); });
  if (sent >= 0) {
    return static_cast<std::size_t>(sent);
  }
  if (sent == -EAGAIN) {
    return std::size_t{0};
  }
  return fail_errno(static_cast<int>(-sent), "the socket can't be written");
}

}  // namespace ringway::vhost_user
