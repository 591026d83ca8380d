// What a frame costs a tap's channel beside a bare loop of write() or read() on the same tap: with io_uring, and without it.
// Nanoseconds of CPU time of this thread for each frame, since the machine may be shared; the ways take turns, and the
// median of the rounds counts. Needs CAP_NET_ADMIN; works in a network namespace of its own.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/net/tap_port.hpp"
#include "base/check.hpp"
#include "base/unique_fd.hpp"
#include "loop/clock.hpp"
#include "loop/make_loop.hpp"

namespace ringway {
namespace {

constexpr std::size_t kBatch = 32;
constexpr std::size_t kRounds = 401;
constexpr std::size_t kHeader = spec::kNetHeaderBytes;

// Buffers of 2 KiB, always enough of them.
class Receiver final : public NetReceiver {
 public:
  std::uint64_t frames = 0;

  Receiver() : memory_(kBatch * kBytes) {
    for (std::size_t i = 0; i < kBatch; ++i) {
      pieces_[i] = {.iov_base = memory_.data() + i * kBytes, .iov_len = kBytes};
    }
  }
  [[nodiscard]] std::size_t deliver(std::span<const NetFrame> given) noexcept override {
    frames += given.size();
    return given.size();
  }
  void count_overruns(std::uint64_t /*frames*/) noexcept override {}
  [[nodiscard]] std::size_t lend(std::span<NetLanding> landings, std::uint32_t /*bytes*/) noexcept override {
    for (std::size_t i = 0; i < landings.size(); ++i) {
      landings[i] = {.pieces = {&pieces_[i], 1}, .bytes = kBytes};
    }
    return landings.size();
  }
  void land(std::span<const std::uint32_t> lengths) noexcept override { frames += lengths.size(); }
  [[nodiscard]] bool filters() const noexcept override { return false; }
  [[nodiscard]] bool wants(std::span<const std::byte, 18> /*head*/) noexcept override { return true; }
  void wake() noexcept override {}

 private:
  static constexpr std::size_t kBytes = 2048;
  std::vector<std::byte> memory_;
  std::array<iovec, kBatch> pieces_{};
};

class Sender final : public NetSender {
 public:
  void wake() noexcept override {}
  [[nodiscard]] NetLoan lend(std::size_t /*frame*/) noexcept override { return {}; }
  void give_back(std::span<const NetLoan> /*none*/) noexcept override {}
};

struct Tap {
  Tap(Loop& of, const std::string& name, BatchedEngine engine) : loop(of) {
    auto device = TapDevice::open({.name = name});
    if (!device) {
      fmt::print(stderr, "{}\n", device.error().message);
      std::exit(1);
    }
    port = std::make_unique<TapPort>(std::move(*device), engine);
    channel = std::move(
        *port->open_channel({.index = 0, .loop = loop, .receiver = receiver, .sender = sender, .counters = counters}));
    channel->set_guest(0, kHeader);
    channel->set_enabled(true);
    host.reset(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_ifindex = static_cast<int>(::if_nametoindex(name.c_str()));
    RW_CHECK(::bind(host.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  Loop& loop;
  Receiver receiver;
  Sender sender;
  NetChannelCounters counters;
  std::unique_ptr<TapPort> port;
  std::unique_ptr<NetChannel> channel;
  UniqueFd host;
};

struct Way {
  const char* name;
  std::function<double()> run;  // ns per frame
  std::vector<double> results{};
};

void compare(const std::string& what, std::vector<Way> ways) {
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (Way& way : ways) {
      way.results.push_back(way.run());
    }
  }
  std::vector<double> medians;
  for (Way& way : ways) {
    std::ranges::sort(way.results);
    medians.push_back(way.results[kRounds / 2]);
    fmt::print("{:<14} {:<12} {:6.0f} ns ({:.0f} to {:.0f})  {:4.2f} x\n", what, way.name, medians.back(),
               way.results[kRounds / 4], way.results[kRounds * 3 / 4], medians.front() / medians.back());
  }
}

double cost(std::size_t frames, const std::function<void()>& body) {
  const Instant before = clock_now();
  body();
  return static_cast<double>((clock_now() - before).ns) / static_cast<double>(frames);
}

void run(Tap& ring, Tap& plain, std::size_t bytes) {
  std::vector<std::byte> frame(kHeader + bytes);
  frame[kHeader] = std::byte{2};  // to nobody's address
  frame[kHeader + 12] = std::byte{0x88};
  frame[kHeader + 13] = std::byte{0xb5};
  iovec piece{.iov_base = frame.data() + kHeader, .iov_len = bytes};
  std::array<NetFrame, kBatch> frames{};
  frames.fill({.header = {}, .data = {&piece, 1}, .bytes = static_cast<std::uint32_t>(bytes)});

  constexpr std::size_t kSends = 12;
  const auto send_by = [&](Tap& tap) {
    return cost(kSends * kBatch, [&] {
      for (std::size_t i = 0; i < kSends; ++i) {
        RW_CHECK(tap.channel->send(frames) == kBatch);
      }
    });
  };
  const int fd = ring.port->device().fd(0);
  compare(fmt::format("send {}", bytes), {{"write()",
                                           [&] {
                                             return cost(kSends * kBatch, [&] {
                                               for (std::size_t i = 0; i < kSends * kBatch; ++i) {
                                                 RW_CHECK(::write(fd, frame.data(), frame.size()) > 0);
                                               }
                                             });
                                           }},
                                          {"io_uring", [&] { return send_by(ring); }},
                                          {"without", [&] { return send_by(plain); }}});

  constexpr std::size_t kQueued = 400;  // less than a tap's queue
  const auto receive_by = [&](Tap& tap, const std::function<void()>& empty) {
    for (std::size_t i = 0; i < kQueued; ++i) {
      RW_CHECK(::send(tap.host.get(), frame.data() + kHeader, bytes, 0) == static_cast<ssize_t>(bytes));
    }
    return cost(kQueued, empty);
  };
  std::vector<std::byte> to(2048);
  const auto by_channel = [&](Tap& tap) {
    return receive_by(tap, [&] {
      static_cast<void>(tap.loop.poll(clock_now()));  // for the edge
      const std::uint64_t before = tap.receiver.frames;
      while (tap.receiver.frames < before + kQueued) {
        static_cast<void>(tap.channel->receive(128));
      }
    });
  };
  compare(fmt::format("receive {}", bytes), {{"read()",
                                              [&] {
                                                return receive_by(ring, [&] {
                                                  std::size_t got = 0;
                                                  while (::read(fd, to.data(), to.size()) > 0) {
                                                    ++got;
                                                  }
                                                  RW_CHECK(got == kQueued);
                                                });
                                              }},
                                             {"io_uring", [&] { return by_channel(ring); }},
                                             {"without", [&] { return by_channel(plain); }}});
}

}  // namespace
}  // namespace ringway

int main() {
  using namespace ringway;
  if (::unshare(CLONE_NEWNET) != 0) {
    fmt::print(stderr, "a network namespace of its own needs CAP_SYS_ADMIN\n");
    return 1;
  }
  // So that the host sends nothing of its own accord.
  RW_CHECK(std::system("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6") == 0);
  auto loop = make_loop(LoopEngine::epoll);
  RW_CHECK(loop.has_value());
  Tap ring(**loop, "ring0", BatchedEngine::automatic);
  Tap plain(**loop, "plain0", BatchedEngine::plain);
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{1500}}) {
    run(ring, plain, bytes);
  }
  return 0;
}
