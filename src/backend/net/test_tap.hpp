// For tests of taps: a network namespace of the process's own, the other side of an interface, and a guest made of plain
// memory. Not part of the product.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/net/net_port.hpp"
#include "backend/net/tap_port.hpp"
#include "base/test_soon.hpp"
#include "base/unique_fd.hpp"
#include "loop/clock.hpp"
#include "loop/make_loop.hpp"

namespace ringway::test {

using Octets = std::vector<std::uint8_t>;

// Moves this process to a network namespace of its own, with a /sys that shows it, once. Returns why not, or nothing.
inline const std::string& enter_own_network() {
  static const std::string why_not = [] {
    if (::access("/dev/net/tun", R_OK | W_OK) != 0) {
      return std::string("there is no /dev/net/tun that this user may open");
    }
    if (::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) {
      return std::string("no network namespace can be made (CAP_NET_ADMIN, CAP_SYS_ADMIN): ") + std::strerror(errno);
    }
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0) {
      return std::string("no /sys of the new network namespace can be mounted: ") + std::strerror(errno);
    }
    if (std::system("ip -V > /dev/null 2>&1") != 0) {
      return std::string("there is no ip (iproute2)");
    }
    // So that the host sends nothing of its own accord.
    return std::system("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6") == 0 ? std::string{}
                                                                                     : std::string("IPv6 can't be disabled");
  }();
  return why_not;
}

[[nodiscard]] inline bool run(const std::string& command) {
  return std::system(command.c_str()) == 0;
}

// Runs the body in a child; its failures are this test's.
template <typename Body>
void in_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// An Ethernet frame of `bytes` bytes with a number in it, of a protocol that the host has no use for.
inline Octets numbered_frame(std::uint32_t number, std::size_t bytes = 60) {
  Octets frame(bytes);
  frame[0] = 0x02;  // an address that is nobody's, so that a bridge has one port to send it to
  frame[6] = 0x02;
  frame[11] = 1;
  frame[12] = 0x88;  // for local experiments, IEEE 802
  frame[13] = 0xb5;
  std::memcpy(frame.data() + 14, &number, sizeof number);
  for (std::size_t i = 18; i < bytes; ++i) {
    frame[i] = static_cast<std::uint8_t>(i * 7 + number);
  }
  return frame;
}
inline std::uint32_t number_of(const Octets& frame) {
  std::uint32_t number = 0;
  std::memcpy(&number, frame.data() + 14, sizeof number);
  return number;
}

// The host's side of an interface: what the guest sent comes out here, and what is sent here goes to the guest.
class HostSide {
 public:
  explicit HostSide(const std::string& interface, bool with_header = false) : header_bytes_(with_header ? 10 : 0) {
    socket_.reset(::socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_ALL)));
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const int one = 1;
    const int room = 16 << 20;
    static_cast<void>(::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room));
    static_cast<void>(::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room));
    EXPECT_EQ(::setsockopt(socket_.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one), 0);
    if (with_header) {
      EXPECT_EQ(::setsockopt(socket_.get(), SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one), 0);
    }
  }
  void send(const Octets& frame, const spec::NetHeader& header = {}) {
    iovec pieces[2] = {{const_cast<spec::NetHeader*>(&header), header_bytes_},
                       {const_cast<std::uint8_t*>(frame.data()), frame.size()}};
    msghdr message{};
    message.msg_iov = pieces + (header_bytes_ == 0 ? 1 : 0);
    message.msg_iovlen = header_bytes_ == 0 ? 1 : 2;
    EXPECT_EQ(::sendmsg(socket_.get(), &message, 0), static_cast<ssize_t>(header_bytes_ + frame.size()))
        << std::strerror(errno);
  }
  // The next frame, if there is one.
  std::optional<Octets> receive(spec::NetHeader* header = nullptr) {
    Octets bytes(70'000);
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (got < 0) {
      return std::nullopt;
    }
    if (header != nullptr) {
      std::memcpy(header, bytes.data(), header_bytes_);
    }
    bytes.resize(static_cast<std::size_t>(got));
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header_bytes_));
    return bytes;
  }
  std::vector<std::uint32_t> receive_numbers() {
    std::vector<std::uint32_t> numbers;
    while (const auto frame = receive()) {
      if ((*frame)[12] == 0x88 && (*frame)[13] == 0xb5) {
        numbers.push_back(number_of(*frame));
      }
    }
    return numbers;
  }

 private:
  std::size_t header_bytes_;
  UniqueFd socket_;
};

// A guest's receive queue: `buffers` frames fit, each landing in memory of `landing_bytes` bytes cut into `pieces`.
class PlainReceiver final : public NetReceiver {
 public:
  struct Got {
    Octets header;
    Octets frame;
    bool in_place;
  };

  std::size_t buffers = SIZE_MAX;
  std::size_t header_bytes = spec::kNetHeaderBytes;
  std::uint32_t landing_bytes = 0;  // 0: as many as are asked for
  std::size_t pieces = 1;
  bool keeps = true;  // false: frames are counted only
  std::function<bool(std::span<const std::byte, 18>)> wanted;

  std::vector<Got> got;
  std::uint64_t count = 0;
  std::uint64_t overruns = 0;
  std::uint64_t asked = 0;  // landings lent
  std::uint64_t lends = 0;
  int wakes = 0;

  using NetReceiver::deliver;
  [[nodiscard]] std::size_t deliver(std::span<const NetFrame> frames) noexcept override {
    EXPECT_EQ(lent_, 0U) << "deliver() before land()";
    const std::size_t taken = std::min(frames.size(), buffers);
    buffers -= taken;
    count += taken;
    for (const NetFrame& frame : frames.first(taken)) {
      keep(frame);
    }
    return taken;
  }
  void keep(const NetFrame& frame) {
    Got one{.header = Octets(header_bytes), .frame = {}, .in_place = false};
    std::memcpy(one.header.data(), &frame.header, header_bytes);
    for (const iovec& piece : frame.data) {
      const auto* bytes = static_cast<const std::uint8_t*>(piece.iov_base);
      one.frame.insert(one.frame.end(), bytes, bytes + piece.iov_len);
    }
    EXPECT_EQ(one.frame.size(), frame.bytes);
    got.push_back(std::move(one));
  }
  void count_overruns(std::uint64_t frames) noexcept override { overruns += frames; }
  [[nodiscard]] std::size_t lend(std::span<NetLanding> landings, std::uint32_t bytes) noexcept override {
    EXPECT_EQ(lent_, 0U) << "lend() before land()";
    lent_ = std::min(landings.size(), buffers);
    ++lends;
    asked += lent_;
    const std::uint32_t size = landing_bytes != 0 ? landing_bytes : bytes;
    for (std::size_t i = 0; i < lent_; ++i) {
      if (memory_[i].size() != size) {
        memory_[i].assign(size, std::byte{0xee});
      }
      pieces_[i].clear();
      const std::size_t step = std::max<std::size_t>(size / pieces, 1);
      for (std::size_t at = 0; at < size; at += step) {
        pieces_[i].push_back({.iov_base = memory_[i].data() + at, .iov_len = std::min<std::size_t>(step, size - at)});
      }
      landings[i] = {.pieces = pieces_[i], .bytes = size};
    }
    return lent_;
  }
  void land(std::span<const std::uint32_t> lengths) noexcept override {
    EXPECT_LE(lengths.size(), lent_);
    count += lengths.size();
    for (std::size_t i = 0; keeps && i < lengths.size(); ++i) {
      EXPECT_LE(lengths[i], memory_[i].size());
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(memory_[i].data());
      got.push_back({.header = Octets(bytes, bytes + header_bytes),
                     .frame = Octets(bytes + header_bytes, bytes + lengths[i]),
                     .in_place = true});
    }
    buffers -= lengths.size();
    lent_ = 0;
  }
  [[nodiscard]] bool filters() const noexcept override { return wanted != nullptr; }
  [[nodiscard]] bool wants(std::span<const std::byte, 18> head) noexcept override { return wanted(head); }
  void wake() noexcept override { ++wakes; }

  [[nodiscard]] std::vector<std::uint32_t> numbers() const {
    std::vector<std::uint32_t> numbers;
    for (const Got& one : got) {
      numbers.push_back(number_of(one.frame));
    }
    return numbers;
  }
  [[nodiscard]] std::string places() const {  // 'p' in place, 'c' by copy
    std::string places;
    for (const Got& one : got) {
      places += one.in_place ? 'p' : 'c';
    }
    return places;
  }

 private:
  std::size_t lent_ = 0;
  std::array<std::vector<std::byte>, 32> memory_;
  std::array<std::vector<iovec>, 32> pieces_;
};

class PlainSender final : public NetSender {
 public:
  int wakes = 0;
  void wake() noexcept override { ++wakes; }
  [[nodiscard]] NetLoan lend(std::size_t /*frame*/) noexcept override {
    ADD_FAILURE() << "a tap needs no frame longer than its send()";
    return {};
  }
  void give_back(std::span<const NetLoan> /*none*/) noexcept override {}
};

// Frames as a transmit queue hands them over, in memory of their own.
class Frames {
 public:
  explicit Frames(std::vector<Octets> frames, std::size_t pieces = 1, const spec::NetHeader& header = {})
      : bytes_(std::move(frames)), pieces_(bytes_.size()), frames_(bytes_.size()) {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const std::size_t size = bytes_[i].size();
      const std::size_t step = std::max<std::size_t>(size / pieces, 1);
      for (std::size_t at = 0; at < size; at += step) {
        pieces_[i].push_back({.iov_base = bytes_[i].data() + at, .iov_len = std::min(step, size - at)});
      }
      frames_[i] = {.header = header, .data = pieces_[i], .bytes = static_cast<std::uint32_t>(size)};
    }
  }
  static Frames numbered(std::uint32_t first, std::uint32_t count, std::size_t bytes = 60, std::size_t pieces = 1) {
    std::vector<Octets> frames;
    for (std::uint32_t i = 0; i < count; ++i) {
      frames.push_back(numbered_frame(first + i, bytes));
    }
    return Frames(std::move(frames), pieces);
  }
  [[nodiscard]] std::span<const NetFrame> get() const { return frames_; }
  [[nodiscard]] const Octets& bytes(std::size_t i) const { return bytes_[i]; }

 private:
  std::vector<Octets> bytes_;
  std::vector<std::vector<iovec>> pieces_;
  std::vector<NetFrame> frames_;
};

// One pair of a port, opened.
struct OpenPair {
  OpenPair(NetPort& port, Loop& loop, std::uint32_t index = 0) {
    auto opened =
        port.open_channel({.index = index, .loop = loop, .receiver = receiver, .sender = sender, .counters = counters});
    EXPECT_TRUE(opened.has_value()) << opened.error().message;
    channel = std::move(*opened);
  }
  PlainReceiver receiver;
  PlainSender sender;
  NetChannelCounters counters;
  std::unique_ptr<NetChannel> channel;
};

}  // namespace ringway::test
