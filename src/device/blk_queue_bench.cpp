// The data path without a second thread: a driver's ring and a worker's queue, stepped by turns over the simulated loop and
// the null store. On a machine shared with others times say little and instructions a lot; and callgrind, which runs threads
// one at a time, would count the spinning of two. Build it with `ninja blk_queue_bench`, of a RelWithDebInfo build without
// RINGWAY_DEBUG_CHECKS; then, for split or packed, direct or table, and a depth:
//
//     valgrind --tool=callgrind --toggle-collect='*drive_steps*' ./blk_queue_bench split table 32
//
// gives the instructions of so many requests as it says, of both sides; callgrind_annotate --inclusive=yes tells them apart.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "backend/blk/null_store.hpp"
#include "base/check.hpp"
#include "device/blk_queue.hpp"
#include "device/test_guest.hpp"
#include "device/worker_context.hpp"
#include "loop/simulated_loop.hpp"
#include "ring/driver_ring.hpp"

namespace ringway {
namespace {

using testing::Guest;
using testing::SameThread;

constexpr std::uint32_t kRingSize = 256;
constexpr std::uint32_t kDataBytes = 4096;
constexpr std::uint64_t kRequests = 100'000;
constexpr std::uint64_t kWarmUp = 1'000;
constexpr std::uint64_t kDiskBytes = 1U << 30U;

// Guest memory as a small VM on QEMU has it: below the 640 KiB hole, above it, and above 4 GiB, where ring and buffers lie.
const std::vector<Guest::Place> kMemory{{.address = 0, .bytes = 640U << 10U},
                                        {.address = 1U << 20U, .bytes = 1U << 20U},
                                        {.address = std::uint64_t{4} << 30U, .bytes = 16U << 20U}};

struct Request {
  std::array<DriverBuffer, 3> buffers;
};

struct Bench {
  Bench(bool packed, bool table, std::uint32_t request_depth) : depth(request_depth) {
    const RingAreaBytes areas = ring_area_bytes(kRingSize, packed);
    const RingAddresses addresses{.descriptor_area = Guest::user(guest.take(areas.descriptor)),
                                  .driver_area = Guest::user(guest.take(areas.driver)),
                                  .device_area = Guest::user(guest.take(areas.device))};
    const RingFeatures features{.packed = packed, .indirect = true, .event_index = true};
    constexpr std::uint32_t kTableEntries = 4;
    const GuestAddress tables = guest.take(std::uint64_t{kRingSize} * kTableEntries * kDescriptorBytes);
    driver = std::make_unique<DriverRing>(
        DriverRing::Options{.layout = *RingLayout::resolve(*guest.map(), addresses, kRingSize, packed),
                            .features = features,
                            .indirect_tables = table ? guest.host(tables) : nullptr,
                            .indirect_address = tables,
                            .indirect_entries = table ? kTableEntries : 0});
    for (std::uint32_t i = 0; i < depth; ++i) {
      const GuestAddress header = guest.take(sizeof(spec::BlkRequestHeader) + 1);
      guest::store(guest.host(header), std::uint64_t{spec::kBlkTypeIn});
      guest::store(guest.host(header) + 8, std::uint64_t{i} * (kDataBytes / spec::kSectorBytes));
      requests.push_back({{DriverBuffer{.address = header, .bytes = sizeof(spec::BlkRequestHeader)},
                           DriverBuffer{.address = guest.take(kDataBytes), .bytes = kDataBytes, .device_writable = true},
                           DriverBuffer{.address = GuestAddress{header.value + sizeof(spec::BlkRequestHeader)},
                                        .bytes = 1,
                                        .device_writable = true}}});
    }
    channel = *store->open_channel(loop, counters);
    vhost_user::RingStart start;
    start.size = kRingSize;
    start.addresses = addresses;
    start.features = features;
    start.base = packed ? kPackedBaseInitial : kSplitBaseInitial;
    start.enabled = true;
    queue->set_limits({.capacity_bytes = kDiskBytes, .block_bytes = spec::kSectorBytes});
    const Result<> started = queue->start(context, *channel, std::move(start), guest.map(), nullptr);
    RW_CHECK(started.has_value());
    queue->suppress();
    driver->suppress_calls();
  }

  Guest guest{kMemory};
  std::uint32_t depth;
  SimulatedLoop loop;
  SameThread executor;
  WorkerContext context{0, loop, executor};
  std::unique_ptr<BlkStore> store = make_null_store({.capacity_bytes = kDiskBytes});
  BlkChannelCounters counters;
  std::unique_ptr<BlkChannel> channel;
  std::string serial = "bench";
  BlkLatency latency;
  BlkSlotShare slots;
  std::unique_ptr<BlkQueue> queue = std::make_unique<BlkQueue>(
      RingQueue::Surroundings{}, BlkQueue::Disk{.serial = &serial, .latency = &latency, .slots = &slots});
  std::unique_ptr<DriverRing> driver;
  std::vector<Request> requests;
};

// The two sides, as functions that a profile shows.
[[gnu::noinline]] void submit_batch(Bench& bench) {
  for (std::uint32_t i = 0; i < bench.depth; ++i) {
    RW_CHECK(bench.driver->add(bench.requests[i].buffers, i));
  }
  static_cast<void>(bench.driver->publish());
}

[[gnu::noinline]] void serve_batch(Bench& bench) {
  static_cast<void>(bench.queue->pump(bench.context));
  bench.context.settle_published();
  bench.context.stages.settle();
  bench.queue->publish();
  bench.context.end_turn({1000});
}

[[gnu::noinline]] std::uint64_t reap_batch(Bench& bench) {
  std::uint64_t reaped = 0;
  UsedElement used;
  while (bench.driver->take_used(used)) {
    ++reaped;
  }
  return reaped;
}

std::uint64_t step(Bench& bench) {
  submit_batch(bench);
  serve_batch(bench);
  return reap_batch(bench);
}

[[gnu::noinline]] std::uint64_t drive_steps(Bench& bench, std::uint64_t requests) {
  std::uint64_t done = 0;
  while (done < requests) {
    const std::uint64_t reaped = step(bench);
    RW_CHECK(reaped == bench.depth);
    done += reaped;
  }
  return done;
}

int run(bool packed, bool table, std::uint32_t depth) {
  const auto bench = std::make_unique<Bench>(packed, table, depth);
  for (std::uint64_t done = 0; done < kWarmUp;) {
    done += step(*bench);
  }
  const std::uint64_t done = drive_steps(*bench, kRequests);
  fmt::print("{} {} depth {}: {} requests\n", packed ? "packed" : "split", table ? "table" : "direct", depth, done);
  // As a device ends it.
  bench->queue->detach([](const Result<>& /*never fails*/) {});
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace ringway

int main(int argument_count, char** arguments) {
  const std::vector<std::string_view> words(arguments + 1, arguments + argument_count);
  std::uint32_t depth = 0;
  if (words.size() != 3 || (words[0] != "split" && words[0] != "packed") || (words[1] != "direct" && words[1] != "table") ||
      std::from_chars(words[2].data(), words[2].data() + words[2].size(), depth).ec != std::errc{} || depth < 1 ||
      depth > ringway::kRingSize / 4) {
    fmt::print(stderr, "usage: blk_queue_bench split|packed direct|table <depth, 1 to {}>\n", ringway::kRingSize / 4);
    return EXIT_FAILURE;
  }
  return ringway::run(words[0] == "packed", words[1] == "table", depth);
}
