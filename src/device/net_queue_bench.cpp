// The data path of a network card without a second thread: a driver's rings and a worker's queues, stepped by turns over the
// simulated loop. Instructions say more than times on a machine shared with others (see blk_queue_bench.cpp). Build it with
// `ninja net_queue_bench`, of a RelWithDebInfo build without RINGWAY_DEBUG_CHECKS; then, for split or packed, what it does,
// whether buffers can be merged (or hashes are reported as well), the bytes of a frame, and frames in a turn:
//
//     valgrind --tool=callgrind --toggle-collect='*serve_batch*' ./net_queue_bench split transmit mergeable 64 32
//
// gives the instructions of the device for so many frames as it says; with '*drive_steps*' those of both sides.
//
//   transmit  the driver's frames go to a port that drops them
//   receive   a port has frames for whoever gives it buffers
//   loop      the driver's frames come back to it
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "backend/net/simple_ports.hpp"
#include "base/check.hpp"
#include "device/net_receive_queue.hpp"
#include "device/net_transmit_queue.hpp"
#include "device/test_guest.hpp"
#include "device/worker_context.hpp"
#include "loop/simulated_loop.hpp"
#include "ring/driver_ring.hpp"

namespace ringway {
namespace {

using testing::Guest;
using testing::SameThread;

constexpr std::uint32_t kRingSize = 256;
constexpr std::uint32_t kBufferBytes = 2048;
constexpr std::uint64_t kFrames = 100'000;
constexpr std::uint64_t kWarmUp = 1'000;

// Guest memory as a small VM on QEMU has it: below the 640 KiB hole, above it, and above 4 GiB, where rings and buffers lie.
const std::vector<Guest::Place> kMemory{{.address = 0, .bytes = 640U << 10U},
                                        {.address = 1U << 20U, .bytes = 1U << 20U},
                                        {.address = std::uint64_t{4} << 30U, .bytes = 16U << 20U}};

enum class Work : std::uint8_t { transmit, receive, loop };

// Has as many frames as it is told, of one kind.
class Supply final : public NetChannel {
 public:
  Supply(NetReceiver& receiver, std::uint32_t bytes) : receiver_(receiver), bytes_(bytes) {
    constexpr std::uint32_t kUdpBytesMin = 42;
    if (bytes >= kUdpBytesMin) {
      // UDP over IPv4, as far as a hash looks at it.
      const std::uint32_t total = bytes - 14;
      const auto put = [this](std::size_t at, std::uint32_t byte) { bytes_[at] = static_cast<std::byte>(byte); };
      put(12, 0x08);
      put(14, 0x45);
      put(16, total >> 8U);
      put(17, total);
      put(23, 17);
    }
    piece_ = {.iov_base = bytes_.data(), .iov_len = bytes_.size()};
    frames_.fill({.header = {}, .data = {&piece_, 1}, .bytes = bytes});
  }
  std::uint32_t left = 0;
  [[nodiscard]] std::size_t send(std::span<const NetFrame> frames) noexcept override { return frames.size(); }
  [[nodiscard]] Received receive(std::uint32_t /*budget*/) noexcept override {
    while (left > 0) {
      const std::size_t wanted = std::min<std::size_t>(left, frames_.size());
      const std::size_t taken = receiver_.deliver(std::span(frames_).first(wanted));
      left -= static_cast<std::uint32_t>(taken);
      if (taken != wanted) {
        return Received::no_buffers;
      }
    }
    return Received::all;
  }
  void set_guest(std::uint64_t /*offloads*/, std::size_t /*header_bytes*/) noexcept override {}
  void set_enabled(bool /*enabled*/) noexcept override {}

 private:
  NetReceiver& receiver_;
  std::vector<std::byte> bytes_;
  iovec piece_{};
  std::array<NetFrame, limits::kNetBatch> frames_{};
};

// One direction: its ring, and buffers that are posted again and again.
struct Ring {
  Ring(Guest& guest, bool is_packed, bool receives, std::uint32_t bytes, std::uint32_t batch) : packed(is_packed) {
    const RingAreaBytes areas = ring_area_bytes(kRingSize, packed);
    addresses = {.descriptor_area = Guest::user(guest.take(areas.descriptor)),
                 .driver_area = Guest::user(guest.take(areas.driver)),
                 .device_area = Guest::user(guest.take(areas.device))};
    driver = std::make_unique<DriverRing>(DriverRing::Options{
        .layout = *RingLayout::resolve(*guest.map(), addresses, kRingSize, packed), .features = features()});
    for (std::uint32_t i = 0; i < batch; ++i) {
      buffers.push_back({.address = guest.take(bytes), .bytes = bytes, .device_writable = receives});
    }
    driver->suppress_calls();
  }
  [[nodiscard]] RingFeatures features() const { return {.packed = packed, .indirect = true, .event_index = true}; }
  [[nodiscard]] vhost_user::RingStart start() const {
    vhost_user::RingStart start;
    start.size = kRingSize;
    start.addresses = addresses;
    start.features = features();
    start.base = packed ? kPackedBaseInitial : kSplitBaseInitial;
    start.enabled = true;
    return start;
  }
  void post() {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      RW_CHECK(driver->add({&buffers[i], 1}, i));
    }
    static_cast<void>(driver->publish());
  }
  [[nodiscard]] std::uint64_t reap() {
    std::uint64_t reaped = 0;
    for (UsedElement used; driver->take_used(used);) {
      ++reaped;
    }
    return reaped;
  }

  bool packed;
  RingAddresses addresses;
  std::unique_ptr<DriverRing> driver;
  std::vector<DriverBuffer> buffers;
};

struct Bench {
  enum class Buffers : std::uint8_t { plain, mergeable, hashed };
  Bench(bool packed, Work its_work, Buffers buffers, std::uint32_t frame_bytes, std::uint32_t its_batch)
      : work(its_work),
        batch(its_batch),
        transmit_ring(guest, packed, false, header_bytes_of(buffers) + frame_bytes, batch),
        receive_ring(guest, packed, true, kBufferBytes, batch) {
    constexpr std::uint64_t kFeatures = spec::kNetCsum | spec::kNetHostTso4 | spec::kNetHostTso6;
    transmit.set_rules({.limits = net_frame_limits(kFeatures, 1500), .header_bytes = header_bytes_of(buffers)});
    const std::array<std::uint8_t, spec::kNetRssKeyBytesMax> key{1, 2, 3, 4, 5, 6, 7, 8};
    const NetDriverState state = NetDriverState::after_reset(0, {});
    receive.set_rules(std::make_shared<const NetReceiveRules>(
        NetReceiveRules{.filter = NetReceiveFilter(state, 0),
                        .filters = false,
                        .mergeable = buffers != Buffers::plain,
                        .header_bytes = header_bytes_of(buffers),
                        .guest_offloads = spec::kNetGuestCsum,
                        .pairs = 1,
                        .hash_types = buffers == Buffers::hashed ? kNetHashTypesAll : 0,
                        .hash_key = NetHashKey(key)}));
    if (work == Work::receive) {
      auto supply = std::make_unique<Supply>(receive, frame_bytes);
      frames = supply.get();
      channel = std::move(supply);
    } else {
      channel = *port->open_channel(
          {.index = 0, .loop = loop, .receiver = receive, .sender = transmit, .counters = channel_counters});
    }
    RW_CHECK(transmit.start(context, *channel, *scratch, transmit_ring.start(), guest.map(), nullptr).has_value());
    RW_CHECK(receive.start(context, *channel, *scratch, receive_ring.start(), guest.map(), nullptr).has_value());
    transmit.suppress();
    receive.suppress();
  }
  ~Bench() {
    transmit.detach([](const Result<>& /*never fails*/) {});
    receive.detach([](const Result<>& /*never fails*/) {});
    receive.forget_channel();
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  static std::uint32_t header_bytes_of(Buffers buffers) {
    return static_cast<std::uint32_t>(buffers == Buffers::hashed ? spec::kNetHeaderHashBytes : spec::kNetHeaderBytes);
  }

  Work work;
  std::uint32_t batch;
  Guest guest{kMemory};
  Ring transmit_ring;
  Ring receive_ring;
  SimulatedLoop loop;
  SameThread executor;
  WorkerContext context{0, loop, executor};
  std::unique_ptr<NetScratch> scratch = std::make_unique<NetScratch>();
  NetTransmitQueue transmit{{}};
  NetReceiveQueue receive{{}, 0};
  NetChannelCounters channel_counters;
  std::unique_ptr<NetPort> port = work == Work::loop ? make_loop_port() : make_null_port();
  std::unique_ptr<NetChannel> channel;
  Supply* frames = nullptr;
};

// The two sides, as functions that a profile shows.
[[gnu::noinline]] void submit_batch(Bench& bench) {
  if (bench.work != Work::receive) {
    bench.transmit_ring.post();
  }
  if (bench.work != Work::transmit) {
    bench.receive_ring.post();
  }
}

[[gnu::noinline]] void serve_batch(Bench& bench) {
  WorkerContext& context = bench.context;
  context.now = context.now + Duration::microseconds(10);
  if (bench.work == Work::receive) {
    bench.frames->left = bench.batch;
    bench.receive.wake();
  } else {
    context.activate(bench.transmit);
  }
  static_cast<void>(context.pump_active());
  context.settle_published();
  context.stages.settle();
  context.publish_finished();
}

[[gnu::noinline]] std::uint64_t reap_batch(Bench& bench) {
  const std::uint64_t transmitted = bench.transmit_ring.reap();
  const std::uint64_t received = bench.receive_ring.reap();
  RW_CHECK(transmitted == (bench.work == Work::receive ? 0 : bench.batch));
  RW_CHECK(received == (bench.work == Work::transmit ? 0 : bench.batch));
  return bench.batch;
}

std::uint64_t step(Bench& bench) {
  submit_batch(bench);
  serve_batch(bench);
  return reap_batch(bench);
}

[[gnu::noinline]] std::uint64_t drive_steps(Bench& bench, std::uint64_t frames) {
  std::uint64_t done = 0;
  while (done < frames) {
    done += step(bench);
  }
  return done;
}

struct Arguments {
  bool packed = false;
  Work work = Work::transmit;
  Bench::Buffers buffers = Bench::Buffers::plain;
  std::uint32_t frame_bytes = 0;
  std::uint32_t batch = 0;
};

bool parse_number(std::string_view word, std::uint32_t low, std::uint32_t high, std::uint32_t& out) {
  return std::from_chars(word.data(), word.data() + word.size(), out).ec == std::errc{} && out >= low && out <= high;
}

constexpr std::uint32_t kFrameBytesMin = 14;
constexpr std::uint32_t kFrameBytesMax = 1514;
constexpr std::uint32_t kBatchMax = 128;  // of one turn

bool parse(const std::vector<std::string_view>& words, Arguments& out) {
  constexpr std::array<std::string_view, 3> kWorks{"transmit", "receive", "loop"};
  if (words.size() != 5) {
    return false;
  }
  const auto* const work = std::ranges::find(kWorks, words[1]);
  out.packed = words[0] == "packed";
  out.work = static_cast<Work>(work - kWorks.begin());
  constexpr std::array<std::string_view, 3> kBuffers{"plain", "mergeable", "hashed"};
  const auto* const buffers = std::ranges::find(kBuffers, words[2]);
  out.buffers = static_cast<Bench::Buffers>(buffers - kBuffers.begin());
  return (out.packed || words[0] == "split") && work != kWorks.end() && buffers != kBuffers.end() &&
         parse_number(words[3], kFrameBytesMin, kFrameBytesMax, out.frame_bytes) &&
         parse_number(words[4], 1, kBatchMax, out.batch);
}

int run(const Arguments& arguments) {
  const auto bench =
      std::make_unique<Bench>(arguments.packed, arguments.work, arguments.buffers, arguments.frame_bytes, arguments.batch);
  for (std::uint64_t done = 0; done < kWarmUp;) {
    done += step(*bench);
  }
  fmt::print("{} frames\n", drive_steps(*bench, kFrames));
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace ringway

int main(int argument_count, char** words) {
  ringway::Arguments arguments;
  if (!ringway::parse({words + 1, words + argument_count}, arguments)) {
    fmt::print(
        stderr,
        "usage: net_queue_bench split|packed transmit|receive|loop plain|mergeable|hashed <bytes of a frame, {} to {}> "
        "<frames in a turn, 1 to {}>\n",
        ringway::kFrameBytesMin, ringway::kFrameBytesMax, ringway::kBatchMax);
    return EXIT_FAILURE;
  }
  return ringway::run(arguments);
}
