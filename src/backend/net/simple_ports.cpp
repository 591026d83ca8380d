#include "backend/net/simple_ports.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "request/net_checksum.hpp"
#include "request/net_layers.hpp"

namespace ringway {
namespace {

constexpr std::uint64_t kAllHostOffloads =
    spec::kNetCsum | spec::kNetHostTso4 | spec::kNetHostTso6 | spec::kNetHostEcn | spec::kNetHostUfo | spec::kNetHostUso;
constexpr std::uint64_t kAllGuestOffloads = spec::kNetGuestCsum | spec::kNetGuestTso4 | spec::kNetGuestTso6 |
                                            spec::kNetGuestEcn | spec::kNetGuestUfo | spec::kNetGuestUso4 |
                                            spec::kNetGuestUso6;

template <typename Channel>
class SimplePort final : public NetPort {
 public:
  explicit SimplePort(std::string kind, Channel prototype = {}) : prototype_(std::move(prototype)) {
    info_.kind = std::move(kind);
    info_.pairs_max = limits::kNetPairsWithoutControlMax;
    info_.host_offloads = kAllHostOffloads;
    info_.guest_offloads = kAllGuestOffloads;
  }
  [[nodiscard]] const NetPortInfo& info() const noexcept override { return info_; }
  [[nodiscard]] Result<std::unique_ptr<NetChannel>> open_channel(const Pair& pair) override {
    return std::make_unique<typename Channel::Open>(prototype_, pair);
  }

 private:
  NetPortInfo info_;
  Channel prototype_;
};

// What the simple channels have in common: they have no use for what the guest can take.
class SimpleChannel : public NetChannel {
 public:
  void set_guest(std::uint64_t /*guest_offloads*/, std::size_t /*header_bytes*/) noexcept override {}
  void set_enabled(bool /*enabled*/) noexcept override {}
  [[nodiscard]] Received receive(std::uint32_t /*budget*/) noexcept override { return Received::all; }
};

struct Null {
  class Open final : public SimpleChannel {
   public:
    Open(const Null& /*all alike*/, const NetPort::Pair& /*nobody is told*/) {}
    [[nodiscard]] std::size_t send(std::span<const NetFrame> frames) noexcept override { return frames.size(); }
  };
};

struct Echo {
  class Open final : public SimpleChannel {
   public:
    Open(const Echo& /*all alike*/, const NetPort::Pair& pair) : receiver_(pair.receiver) {}
    [[nodiscard]] std::size_t send(std::span<const NetFrame> frames) noexcept override {
      // A long frame may lack room where a shorter one behind it doesn't.
      for (std::size_t done = receiver_.deliver(frames); done != frames.size();
           done += receiver_.deliver(frames.subspan(done))) {
        receiver_.count_overruns(1);
        ++done;
      }
      return frames.size();
    }

   private:
    NetReceiver& receiver_;
  };
};

struct Source {
  std::uint32_t frame_bytes = 0;

  class Open final : public SimpleChannel {
   public:
    Open(const Source& source, const NetPort::Pair& pair)
        : receiver_(pair.receiver), bytes_(make_frame(source.frame_bytes, pair.index)) {
      piece_ = {.iov_base = bytes_.data(), .iov_len = bytes_.size()};
      for (NetFrame& frame : frames_) {
        frame.data = {&piece_, 1};
        frame.bytes = source.frame_bytes;
      }
      receiver_.wake();
    }
    [[nodiscard]] std::size_t send(std::span<const NetFrame> frames) noexcept override { return frames.size(); }
    [[nodiscard]] Received receive(std::uint32_t budget) noexcept override {
      while (budget != 0) {
        const std::size_t wanted = std::min<std::size_t>(budget, frames_.size());
        if (receiver_.deliver(std::span(frames_).first(wanted)) != wanted) {
          return Received::no_buffers;
        }
        budget -= static_cast<std::uint32_t>(wanted);
      }
      return Received::budget;
    }

   private:
    static std::vector<std::byte> make_frame(std::uint32_t frame_bytes, std::uint32_t pair);

    NetReceiver& receiver_;
    std::vector<std::byte> bytes_;
    iovec piece_{};
    std::array<NetFrame, limits::kNetBatch> frames_{};  // all the same
  };
};

void put_number(std::vector<std::byte>& frame, std::size_t at, std::uint16_t number) {
  frame[at] = static_cast<std::byte>(number >> 8U);
  frame[at + 1] = static_cast<std::byte>(number);
}

std::vector<std::byte> Source::Open::make_frame(std::uint32_t frame_bytes, std::uint32_t pair) {
  constexpr std::size_t kIp = kEthernetHeaderBytes;
  constexpr std::size_t kUdp = kIp + 20;
  constexpr std::uint16_t kDiscardPort = 9;
  constexpr std::uint16_t kFirstSourcePort = 49152;  // of those for private use
  std::vector<std::byte> frame(frame_bytes);
  std::fill_n(frame.begin(), spec::kMacBytes, std::byte{0xff});
  frame[spec::kMacBytes] = std::byte{0x02};  // a local address of the sender's
  put_number(frame, 12, kEtherTypeIpv4);
  frame[kIp] = std::byte{0x45};
  put_number(frame, kIp + 2, static_cast<std::uint16_t>(frame_bytes - kIp));
  frame[kIp + 8] = std::byte{64};
  frame[kIp + 9] = std::byte{kIpProtocolUdp};
  constexpr std::array kAddresses{std::byte{198}, std::byte{18}, std::byte{0}, std::byte{1},
                                  std::byte{198}, std::byte{18}, std::byte{0}, std::byte{2}};
  std::ranges::copy(kAddresses, frame.begin() + kIp + 12);
  NetSum sum;
  sum.add(std::span(frame).subspan(kIp, 20));
  const std::uint16_t checksum = sum.checksum();
  std::memcpy(frame.data() + kIp + 10, &checksum, sizeof checksum);
  put_number(frame, kUdp, static_cast<std::uint16_t>(kFirstSourcePort + pair));
  put_number(frame, kUdp + 2, kDiscardPort);
  put_number(frame, kUdp + 4, static_cast<std::uint16_t>(frame_bytes - kUdp));
  return frame;  // without a checksum of UDP's own, which IPv4 allows
}

}  // namespace

std::unique_ptr<NetPort> make_null_port() {
  return std::make_unique<SimplePort<Null>>("null");
}

std::unique_ptr<NetPort> make_loop_port() {
  return std::make_unique<SimplePort<Echo>>("loop");
}

std::unique_ptr<NetPort> make_source_port(const SourcePortOptions& options) {
  RW_CHECK(options.frame_bytes >= kSourceFrameBytesMin && options.frame_bytes <= kSourceFrameBytesMax);
  return std::make_unique<SimplePort<Source>>("source", Source{.frame_bytes = options.frame_bytes});
}

}  // namespace ringway
