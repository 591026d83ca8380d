// What the network driver itself costs: its queues by turns with a device that does nothing but take chains and return them,
// on one thread. On a machine shared with others times say little and instructions a lot. Build it with
// `ninja net_driver_bench`, of a RelWithDebInfo build without RINGWAY_DEBUG_CHECKS; then, for split or packed, and a burst:
//
//     valgrind --tool=callgrind --toggle-collect='*drive_*' ./net_driver_bench split 32
//
// Frames are of 64 bytes, headers in front of them. The times that it prints are the driver's.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "driver/net_driver.hpp"
#include "driver/test_net_backend.hpp"
#include "guest/mapping.hpp"
#include "loop/clock.hpp"
#include "ring/device_ring.hpp"

namespace ringway {
namespace {

constexpr std::uint32_t kFrameBytes = 64;
constexpr std::uint32_t kBenchRing = 1024;
constexpr std::uint32_t kBurstMax = 256;
constexpr std::uint64_t kPackets = 100'000;

struct NetBench {
  NetBench(bool packed, std::uint32_t packets_in_burst) : burst(packets_in_burst) {
    driver = *NetDriver::create({.socket_path = peer.socket_path(),
                                 .packed = packed,
                                 .queue_size = kBenchRing,
                                 .receive_buffers = kBenchRing,
                                 .transmit_buffers = kBenchRing,
                                 .enable_pairs = false});  // so that the peer leaves the rings to us
    const SharedMemory::Region& region = driver->memory().regions()[0];
    const UserAddress user{reinterpret_cast<std::uintptr_t>(region.host)};
    map = *RegionMap::create({*Mapping::create(region.fd.get(), region.guest, user, region.bytes, 0)});
    for (std::uint32_t i = 0; i < kBurstMax; ++i) {
      frames.push_back({.buffer = i, .bytes = kFrameBytes});
    }
  }
  [[nodiscard]] DeviceRing device_ring(DriverQueue& queue) const {
    return {queue.ring().layout(), driver->negotiated().ring, driver->initial_base()};
  }

  NetBackendPeer peer{{.features = spec::kNetMrgRxbuf}};
  std::unique_ptr<NetDriver> driver;
  std::shared_ptr<const RegionMap> map;
  std::uint32_t burst;
  std::vector<NetDriverTransmitQueue::Frame> frames;
  std::array<std::uint64_t, kBurstMax> tokens{};
  std::array<NetDriverFrame, kBurstMax> received;
};

// A device that takes what there is, up to `most`, and returns it: a receive queue's with a header of one buffer.
std::uint64_t serve(const NetBench& bench, DeviceRing& ring, Chain& chain, bool receive, std::uint64_t most) {
  std::uint64_t count = 0;
  while (count < most && ring.pop(*bench.map, chain) == PopStatus::chain) {
    if (receive) {
      spec::NetHeader header{};
      header.num_buffers = 1;
      std::memcpy(chain.writable().front().iov_base, &header, spec::kNetHeaderBytes);
    }
    ring.push_used(chain.id(), receive ? spec::kNetHeaderBytes + kFrameBytes : 0);
    ++count;
  }
  if (count != 0) {
    ring.publish();
  }
  return count;
}

// The driver's halves, as functions that a profile shows. Return how many packets are done.
[[gnu::noinline]] std::uint64_t drive_transmit(NetBench& bench) {
  NetDriverTransmitQueue& tx = bench.driver->pair(0).tx;
  static_cast<void>(tx.transmit({bench.frames.data(), bench.burst}));
  tx.publish_and_kick();
  return tx.reap_transmitted({bench.tokens.data(), bench.burst});
}

[[gnu::noinline]] std::uint64_t drive_receive(NetBench& bench) {
  NetDriverReceiveQueue& rx = bench.driver->pair(0).rx;
  const std::size_t count = rx.receive({bench.received.data(), bench.burst});
  rx.give_back({bench.received.data(), count});
  rx.fill();
  return count;
}

void run(NetBench& bench) {
  Chain chain;
  for (const bool receive : {false, true}) {
    NetDriverPair& pair = bench.driver->pair(0);
    DeviceRing ring = bench.device_ring(receive ? static_cast<DriverQueue&>(pair.rx) : pair.tx);
    ring.suppress_kicks();
    std::uint64_t done = 0;
    Duration spent{};
    while (done < kPackets) {
      const Instant before = clock_now();
      done += receive ? drive_receive(bench) : drive_transmit(bench);
      spent = spent + (clock_now() - before);
      static_cast<void>(serve(bench, ring, chain, receive, bench.burst));
    }
    fmt::print("{}: {} packets, {:.1f} ns each\n", receive ? "receive" : "transmit", done,
               static_cast<double>(spent.ns) / static_cast<double>(done));
  }
}

}  // namespace
}  // namespace ringway

int main(int argument_count, char** arguments) {
  const std::vector<std::string_view> words(arguments + 1, arguments + argument_count);
  std::uint32_t burst = 0;
  if (words.size() != 2 || (words[0] != "split" && words[0] != "packed") ||
      std::from_chars(words[1].data(), words[1].data() + words[1].size(), burst).ec != std::errc{} || burst < 1 ||
      burst > ringway::kBurstMax) {
    fmt::print(stderr, "usage: net_driver_bench split|packed <burst, 1 to {}>\n", ringway::kBurstMax);
    return EXIT_FAILURE;
  }
  ringway::NetBench bench(words[0] == "packed", burst);
  ringway::run(bench);
  return EXIT_SUCCESS;
}
