// Queues without threads: pumped by the test, over the simulated loop and the null store. What needs workers, sessions and
// real stores is tested in worker/, control/ and tests/conformance.
#include "device/blk_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "backend/blk/null_store.hpp"
#include "backend/blk/ram_store.hpp"
#include "device/test_guest.hpp"
#include "device/worker_context.hpp"
#include "guest/access.hpp"
#include "guest/dirty_log.hpp"
#include "guest/test_memory.hpp"
#include "loop/simulated_loop.hpp"

namespace ringway::testing {
namespace {

constexpr std::uint32_t kRingSize = 256;
constexpr std::uint64_t kDiskBytes = 1U << 30U;

// A guest with one split ring, written by hand (what a hostile driver makes is no work for a decent one), and its queue.
class Ring {
 public:
  // With `inband_call` its driver is called so, after each batch.
  Ring(WorkerContext& context, BlkChannel& channel, BlkSlotShare& slots, std::uint64_t memory_bytes,
       std::move_only_function<bool(std::uint32_t)> inband_call = {})
      : guest_({{.address = 0, .bytes = memory_bytes}}),
        context_(context),
        is_inband_(inband_call != nullptr),
        queue_({.stop_deadline = Duration::seconds(1),
                .send_inband_call = std::move(inband_call),
                .on_stall = [this](std::uint32_t, std::uint32_t requests,
                                   Duration age) { stalls.emplace_back(requests, age); }},
               {.serial = &serial_, .latency = &latency_, .slots = &slots}) {
    const RingAreaBytes areas = ring_area_bytes(kRingSize, false);
    descriptors_ = guest_.take(areas.descriptor);
    avail_ = guest_.take(areas.driver);
    used_ = guest_.take(areas.device);
    start(channel);
  }
  ~Ring() { detach(); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void start(BlkChannel& channel, std::uint32_t base = 0) {
    vhost_user::RingStart start;
    start.base = base;
    start.size = kRingSize;
    start.addresses = {
        .descriptor_area = Guest::user(descriptors_), .driver_area = Guest::user(avail_), .device_area = Guest::user(used_)};
    start.features.indirect = true;
    start.features.event_index = !is_inband_;
    start.inband_call = is_inband_;
    start.enabled = true;
    queue_.set_limits({.capacity_bytes = kDiskBytes, .block_bytes = spec::kSectorBytes});
    RW_CHECK(queue_.start(context_, channel, std::move(start), guest_.map(), nullptr).has_value());
  }
  void detach() {
    queue_.detach([](const Result<>& /*never fails*/) {});
  }

  // An indirect table that reads `entries - 2` times as many bytes into one buffer.
  [[nodiscard]] GuestAddress read_table(std::uint32_t entries, std::uint32_t bytes = spec::kSectorBytes) {
    const GuestAddress table = guest_.take(std::uint64_t{entries} * sizeof(spec::Descriptor));
    const GuestAddress header = guest_.take(sizeof(spec::BlkRequestHeader) + 1);
    const GuestAddress data = guest_.take(bytes);
    for (std::uint32_t i = 0; i < entries; ++i) {
      spec::Descriptor descriptor{.address = data.value,
                                  .length = bytes,
                                  .flags = spec::kDescNext | spec::kDescWrite,
                                  .next = static_cast<std::uint16_t>(i + 1)};
      if (i == 0) {
        descriptor = {
            .address = header.value, .length = sizeof(spec::BlkRequestHeader), .flags = spec::kDescNext, .next = 1};
      } else if (i + 1 == entries) {
        descriptor.address = header.value + sizeof(spec::BlkRequestHeader);
        descriptor.length = 1;
        descriptor.flags = spec::kDescWrite;
      }
      guest_.put(table, std::uint64_t{i} * sizeof descriptor, descriptor);
    }
    return table;
  }
  // An indirect table in which nothing has any bytes.
  [[nodiscard]] GuestAddress empty_table(std::uint32_t entries) {
    const GuestAddress table = read_table(entries);
    for (std::uint32_t i = 0; i < entries; ++i) {
      guest_.put(table, std::uint64_t{i} * sizeof(spec::Descriptor) + offsetof(spec::Descriptor, length), std::uint32_t{0});
    }
    return table;
  }
  // Makes the chain of that table available `count` times.
  void submit(GuestAddress table, std::uint32_t entries, std::uint32_t count = 1) {
    for (; count > 0; --count, ++submitted_) {
      const auto head = static_cast<std::uint16_t>(submitted_ % kRingSize);
      guest_.put(descriptors_, head * sizeof(spec::Descriptor),
                 spec::Descriptor{.address = table.value,
                                  .length = static_cast<std::uint32_t>(entries * sizeof(spec::Descriptor)),
                                  .flags = spec::kDescIndirect,
                                  .next = 0});
      guest_.put(avail_, 4 + head * sizeof(std::uint16_t), head);
    }
    guest::store_release(guest_.host(avail_) + 2, static_cast<std::uint16_t>(submitted_));
  }
  [[nodiscard]] Queue::Pumped turn() {
    const Queue::Pumped pumped = queue_.pump(context_);
    queue_.publish();
    return pumped;
  }
  [[nodiscard]] std::uint16_t used() const { return guest::load_acquire<std::uint16_t>(guest_.host(used_) + 2); }
  [[nodiscard]] const BlkQueueCounters& counters() const { return queue_.counters(); }
  [[nodiscard]] RingStats ring_stats() const { return queue_.ring_stats(); }
  [[nodiscard]] std::uint64_t reads() const { return counters().requests[static_cast<std::size_t>(BlkOpcode::in)].get(); }
  [[nodiscard]] std::uint32_t submitted() const { return submitted_; }
  void kick() { queue_.kick(); }
  void safety_look(Instant now) {
    context_.now = now;
    static_cast<void>(queue_.look());
  }
  std::vector<std::pair<std::uint32_t, Duration>> stalls;  // what the queue told of requests in flight
  void set_log(std::shared_ptr<DirtyLog> log) { queue_.set_log(std::move(log)); }
  // Of a table of read_table().
  void shorten_header(GuestAddress table) { guest_.put(table, offsetof(spec::Descriptor, length), std::uint32_t{8}); }
  [[nodiscard]] GuestAddress header_of(GuestAddress table) const { return address_in(table, 0); }
  [[nodiscard]] GuestAddress data_of(GuestAddress table) const { return address_in(table, 1); }
  [[nodiscard]] const LatencyHistogram& read_latency() const { return latency_.read; }

 private:
  [[nodiscard]] GuestAddress address_in(GuestAddress table, std::uint32_t entry) const {
    return GuestAddress{guest::load<std::uint64_t>(guest_.host(table) + entry * sizeof(spec::Descriptor))};
  }

  Guest guest_;
  WorkerContext& context_;
  const bool is_inband_;
  GuestAddress descriptors_, avail_, used_;
  const std::string serial_ = "test";
  BlkLatency latency_;
  BlkQueue queue_;
  std::uint32_t submitted_ = 0;
};

// What a disk has on one worker: a channel and a share of the slots.
struct Share {
  Share(WorkerContext& worker, std::unique_ptr<BlkStore> its_store) : context(worker), store(std::move(its_store)) {
    channel = *store->open_channel(context.loop, counters);
    RW_CHECK(context.slots.admit());
  }
  ~Share() {
    channel.reset();
    context.slots.dismiss(slots);
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  WorkerContext& context;
  BlkChannelCounters counters;
  std::unique_ptr<BlkStore> store;
  std::unique_ptr<BlkChannel> channel;
  BlkSlotShare slots;
};

// A disk of one queue.
class Disk : private Share, public Ring {
 public:
  Disk(WorkerContext& worker, std::uint64_t memory_bytes,
       std::unique_ptr<BlkStore> its_store = make_null_store({.capacity_bytes = kDiskBytes}))
      : Share(worker, std::move(its_store)), Ring(worker, *channel, slots, memory_bytes) {}
  using Ring::counters;
  void start_again(std::uint32_t base) { start(*channel, base); }
};

// A slow disk: it holds what it is given, and completes the oldest ones when the test says so.
class HeldChannel final : public BlkChannel {
 public:
  using BlkChannel::BlkChannel;
  void submit(BlkOperation& operation) noexcept override { held_.push_back(&operation); }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return static_cast<std::uint32_t>(held_.size()); }
  void finish(std::size_t count) {
    for (; count > 0 && !held_.empty(); --count) {
      BlkOperation* const oldest = held_.front();
      held_.pop_front();
      complete(*oldest, spec::kBlkStatusOk);
    }
  }

 private:
  std::deque<BlkOperation*> held_;
};

// What such a disk has on one worker.
struct HeldShare {
  explicit HeldShare(WorkerContext& worker) : context(worker) { RW_CHECK(context.slots.admit()); }
  ~HeldShare() { context.slots.dismiss(slots); }
  HeldShare(const HeldShare&) = delete;
  HeldShare& operator=(const HeldShare&) = delete;

  WorkerContext& context;
  BlkChannelCounters counters;
  HeldChannel channel{counters};
  BlkSlotShare slots;
};

// One of one queue.
class HeldDisk : private HeldShare, public Ring {
 public:
  HeldDisk(WorkerContext& worker, std::uint64_t memory_bytes)
      : HeldShare(worker), Ring(worker, channel, slots, memory_bytes) {}
  using HeldShare::channel;
};

class BlkQueueTurn : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kLongest = limits::kRingSizeMax;  // descriptors of one indirect table

  SimulatedLoop loop_;
  SameThread executor_;
  WorkerContext context_{0, loop_, executor_};
};

// With one clock read a turn, only the turn's end tells how long they took.
TEST_F(BlkQueueTurn, RequestsThatEndInTheirTurnTookAsLongAsIt) {
  Disk disk(context_, 1U << 20U);
  disk.submit(disk.read_table(3), 3, 3);
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  EXPECT_EQ(disk.reads(), 3U);
  EXPECT_EQ(disk.read_latency().count(), 0U);
  context_.end_turn(Duration::microseconds(5));
  EXPECT_EQ(disk.read_latency().count(), 3U);
  EXPECT_EQ(disk.read_latency().maximum(), Duration::microseconds(5));
  EXPECT_EQ(disk.read_latency().mean(), Duration::microseconds(5));
  context_.end_turn(Duration::microseconds(7));
  EXPECT_EQ(disk.read_latency().count(), 3U);
}

TEST_F(BlkQueueTurn, WhatEndedInTheTurnThatAStopCameInIsNotTimedByALaterTurn) {
  Disk disk(context_, 1U << 20U);
  disk.submit(disk.read_table(3), 3, 5);
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  disk.detach();
  context_.end_turn(Duration::microseconds(5));
  EXPECT_EQ(disk.read_latency().count(), 0U);
  disk.start_again(5);
  disk.submit(disk.read_table(3), 3, 1);
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  context_.end_turn(Duration::microseconds(900));
  EXPECT_EQ(disk.read_latency().count(), 1U);
}

TEST_F(BlkQueueTurn, TakesSoManyOrdinaryRequests) {
  Disk disk(context_, 1U << 20U);
  const GuestAddress table = disk.read_table(3);
  disk.submit(table, 3, 200);
  EXPECT_EQ(disk.turn(), Queue::Pumped::budget);
  // 13 for each request, 1 for the descriptor in the ring and 3 for those of the table.
  EXPECT_EQ(disk.used(), limits::kPumpBudget / 17 + 1);
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  EXPECT_EQ(disk.used(), 200U);
  EXPECT_EQ(disk.turn(), Queue::Pumped::nothing);
  // What wasn't used is not saved up.
  disk.submit(table, 3, 256);
  EXPECT_EQ(disk.turn(), Queue::Pumped::budget);
  EXPECT_EQ(disk.used() - 200, limits::kPumpBudget / 17 + 1);
}

// A guest sends the longest chains that there are, as many as its ring holds. Its neighbour has one request a turn, and
// waits for no more than one of those chains; over some turns each of them counts as what it is.
TEST_F(BlkQueueTurn, LongestChainsDelayANeighbourByOneOfThem) {
  Disk hostile(context_, 2U << 20U);
  Disk neighbour(context_, 1U << 20U);
  const GuestAddress longest = hostile.read_table(kLongest);
  const GuestAddress ordinary = neighbour.read_table(3);
  hostile.submit(longest, kLongest, kRingSize);
  constexpr std::uint32_t kTurns = 64;
  std::uint32_t at_once = 0;
  for (std::uint16_t turn = 1; turn <= kTurns; ++turn) {
    const std::uint16_t before = hostile.used();
    ASSERT_EQ(hostile.turn(), Queue::Pumped::budget);  // there is more: it stays active
    at_once = std::max<std::uint32_t>(at_once, hostile.used() - before);
    neighbour.submit(ordinary, 3);
    static_cast<void>(neighbour.turn());
    ASSERT_EQ(neighbour.used(), turn);
  }
  EXPECT_EQ(at_once, 1U);
  // The budget of those turns, and one overdraft.
  const std::uint64_t served = std::uint64_t{hostile.used()} * kLongest;
  EXPECT_LE(served, std::uint64_t{kTurns} * limits::kPumpBudget + kLongest);
  EXPECT_GE(served, std::uint64_t{kTurns} * limits::kPumpBudget - kLongest);
  // They were real requests, not refused ones.
  EXPECT_EQ(hostile.reads(), hostile.used());
}

// Descriptors count that were read, not segments that came of them.
TEST_F(BlkQueueTurn, EmptyDescriptorsCountAsWell) {
  Disk hostile(context_, 2U << 20U);
  const GuestAddress table = hostile.empty_table(kLongest);
  hostile.submit(table, kLongest, kRingSize);
  EXPECT_EQ(hostile.turn(), Queue::Pumped::budget);
  EXPECT_EQ(hostile.used(), 1U);
  EXPECT_EQ(hostile.turn(), Queue::Pumped::budget);
  EXPECT_EQ(hostile.used(), 1U);
}

// Where the worker copies by itself, bytes count too.
TEST_F(BlkQueueTurn, CopiedBytesShortenATurn) {
  Disk disk(context_, 1U << 20U, *make_ram_store({.capacity_bytes = kDiskBytes}));
  constexpr std::uint32_t kBytes = 128U << 10U;
  constexpr auto kCost = static_cast<std::int32_t>(kBytes / limits::kPumpBytesPerUnit) + 17;
  disk.submit(disk.read_table(3, kBytes), 3, 200);
  EXPECT_EQ(disk.turn(), Queue::Pumped::budget);
  EXPECT_EQ(disk.used(), limits::kPumpBudget / kCost + 1);
}

// A guest asks a disk in memory for as much as a request may ask for, several times over. Its neighbours, on another disk
// and on the same one, wait for one slice in each turn and no more.
TEST_F(BlkQueueTurn, HugeCopiesDelayNeighboursByOneSlice) {
  constexpr std::uint32_t kHuge = 4;  // requests
  constexpr std::uint32_t kSlices = 24;
  Share disk(context_, *make_ram_store({.capacity_bytes = kDiskBytes}));
  Ring hostile(context_, *disk.channel, disk.slots, 2U << 20U);
  Ring beside(context_, *disk.channel, disk.slots, 1U << 20U);
  Disk neighbour(context_, 1U << 20U, *make_ram_store({.capacity_bytes = kDiskBytes}));
  hostile.submit(hostile.read_table(kSlices + 2, limits::kCopySliceBytes), kSlices + 2, kHuge);
  const GuestAddress beside_read = beside.read_table(3);
  const GuestAddress neighbour_read = neighbour.read_table(3);
  EXPECT_EQ(hostile.turn(), Queue::Pumped::some);
  for (std::uint16_t slice = 0; slice < kHuge * kSlices; ++slice) {
    ASSERT_EQ(hostile.used(), slice / kSlices);
    ASSERT_EQ(disk.channel->in_flight(), kHuge - slice / kSlices);
    beside.submit(beside_read, 3);
    static_cast<void>(beside.turn());
    ASSERT_EQ(beside.used(), slice + 1);
    neighbour.submit(neighbour_read, 3);
    static_cast<void>(neighbour.turn());
    ASSERT_EQ(neighbour.used(), slice + 1);
    EXPECT_EQ(loop_.poll(loop_.now()), 1U);
    static_cast<void>(hostile.turn());
  }
  EXPECT_EQ(hostile.used(), kHuge);
  EXPECT_EQ(hostile.reads(), kHuge);
  EXPECT_EQ(loop_.poll(loop_.now()), 0U) << "nothing is left to do";
}

// Queues that hold more requests than one disk is given slots: each gets its part, whoever came first.
class BlkQueueShare : public BlkQueueTurn, public ::testing::WithParamInterface<std::uint32_t> {
 protected:
  static constexpr std::size_t kQueues = 8;
  static constexpr std::uint32_t kDepth = 128;

  BlkQueueShare() {
    for (std::size_t i = 0; i < kQueues; ++i) {
      rings_.push_back(std::make_unique<Ring>(context_, share_.channel, share_.slots, 1U << 20U));
      tables_.push_back(rings_.back()->read_table(3));
    }
  }

  // As a worker does it; the disk finishes as many as the test's parameter says.
  void turn() {
    context_.wake_starved();
    static_cast<void>(context_.pump_active());
    context_.publish_finished();
    share_.channel.finish(GetParam());
  }
  void fill(std::size_t which) {
    Ring& ring = *rings_[which];
    const auto outstanding = static_cast<std::uint16_t>(ring.submitted() - ring.used());
    if (outstanding < kDepth) {
      ring.submit(tables_[which], 3, kDepth - outstanding);
      ring.kick();
    }
  }

  HeldShare share_{context_};
  std::vector<std::unique_ptr<Ring>> rings_;
  std::vector<GuestAddress> tables_;
};

TEST_P(BlkQueueShare, SaturatedQueuesAreServedAlike) {
  constexpr std::uint64_t kRequests = 32'000;
  std::uint64_t all = 0;
  while (all < kRequests) {
    all = 0;
    for (std::size_t i = 0; i < kQueues; ++i) {
      fill(i);
      all += rings_[i]->reads();
    }
    turn();
  }
  ASSERT_TRUE(kQueues * kDepth > share_.slots.held) << "there was nothing to compete for";
  const std::uint64_t mean = all / kQueues;
  for (const auto& ring : rings_) {
    EXPECT_GE(ring->reads(), mean * 3 / 4);
    EXPECT_LE(ring->reads(), mean * 5 / 4);
  }
  // Nobody is forgotten when it becomes quiet: kicks are over, so who waits must be woken.
  for (std::uint32_t turns = 0; turns < kQueues * kDepth + 16; ++turns) {
    turn();
  }
  context_.publish_finished();
  for (const auto& ring : rings_) {
    EXPECT_EQ(ring->reads(), ring->submitted());
  }
  EXPECT_TRUE(context_.starved.empty());
}

// A queue that asks for little among such ones waits for a turn of its own, not for the end of the load.
TEST_P(BlkQueueShare, ModestQueueAmongGreedyOnes) {
  Ring& modest = *rings_.back();
  std::uint32_t waited = 0;
  std::uint32_t longest = 0;
  for (std::uint32_t turns = 0; turns < 4'000; ++turns) {
    for (std::size_t i = 0; i + 1 < kQueues; ++i) {
      fill(i);
    }
    if (modest.reads() == modest.submitted()) {
      modest.submit(tables_.back(), 3);
      modest.kick();
      waited = 0;
    }
    turn();
    longest = std::max(longest, ++waited);
  }
  // One round of those that wait already, then all that the disk held before it.
  EXPECT_LE(longest, (kQueues + share_.slots.held) / GetParam() + kQueues + 2);
  share_.channel.finish(kQueues * kDepth);
  for (std::uint32_t turns = 0; turns < kQueues * kDepth + 16; ++turns) {
    turn();
  }
}

INSTANTIATE_TEST_SUITE_P(FinishedPerTurn, BlkQueueShare, ::testing::Values(1U, 7U, 200U));

// What the control thread hadn't passed on yet when the next one came reaches the driver as one call.
TEST_F(BlkQueueTurn, ACallThatIsOnItsWayStillIsCountedAsCoalesced) {
  Share share(context_, make_null_store({.capacity_bytes = kDiskBytes}));
  bool is_on_its_way = false;
  Ring ring(context_, *share.channel, share.slots, 1U << 20U, [&](std::uint32_t) { return !is_on_its_way; });
  const GuestAddress table = ring.read_table(3);
  for (int batch = 0; batch < 5; ++batch) {
    is_on_its_way = batch >= 2;
    ring.submit(table, 3);
    static_cast<void>(ring.turn());
  }
  const RingStats stats = ring.ring_stats();
  EXPECT_EQ(stats.batches, 5U);
  EXPECT_EQ(stats.calls, 2U);
  EXPECT_EQ(stats.calls_coalesced, 3U);
  EXPECT_EQ(stats.calls_dropped + stats.calls_suppressed, 0U);
  EXPECT_TRUE(stats.running && stats.enabled && !stats.broken);
}

// The log of a migration, over `memory_bytes` of a guest.
class Log {
 public:
  explicit Log(std::uint64_t memory_bytes) {
    const std::uint64_t bytes = memory_bytes / DirtyLog::kPageBytes / 8;
    log_ = *DirtyLog::create(test::memory_file(bytes).get(), bytes, 0);
  }
  [[nodiscard]] const std::shared_ptr<DirtyLog>& log() const { return log_; }
  [[nodiscard]] bool marks(GuestAddress address) const {
    const std::uint64_t page = address.value / DirtyLog::kPageBytes;
    return (log_->mapping().data()[page / 8] >> (page % 8) & std::byte{1}) != std::byte{0};
  }
  [[nodiscard]] std::uint64_t pages() const {
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < log_->mapping().bytes(); ++i) {
      count += static_cast<std::uint64_t>(std::popcount(std::to_integer<unsigned>(log_->mapping().data()[i])));
    }
    return count;
  }

 private:
  std::shared_ptr<DirtyLog> log_;
};

constexpr std::uint64_t kLoggedMemory = 64U << 20U;
constexpr std::uint32_t kLoggedRead = 32U << 20U;
// One for each word of the log.
constexpr std::int32_t kLogCost = kLoggedRead / DirtyLog::kPageBytes / 64;

// It is refused before anything is parsed: its slot still holds what the one before was about.
TEST_F(BlkQueueTurn, OfARefusedRequestTheStatusIsLogged) {
  Disk disk(context_, kLoggedMemory);
  const GuestAddress good = disk.read_table(3);
  const GuestAddress bad = disk.read_table(3);
  disk.shorten_header(bad);
  disk.submit(good, 3);
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  const Log log(kLoggedMemory);
  disk.set_log(log.log());
  disk.submit(bad, 3);
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  EXPECT_EQ(disk.used(), 2U);
  EXPECT_TRUE(log.marks(disk.header_of(bad)));
  EXPECT_EQ(log.pages(), 1U);
  disk.submit(good, 3);
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  EXPECT_TRUE(log.marks(disk.header_of(good)) && log.marks(disk.data_of(good)));
  EXPECT_EQ(log.pages(), 3U);
}

TEST_F(BlkQueueTurn, WordsOfTheLogShortenATurn) {
  Disk disk(context_, kLoggedMemory);
  const Log log(kLoggedMemory);
  disk.set_log(log.log());
  disk.submit(disk.read_table(3, kLoggedRead), 3, 200);
  EXPECT_EQ(disk.turn(), Queue::Pumped::budget);
  EXPECT_EQ(disk.used(), limits::kPumpBudget / (17 + 1 + kLogCost) + 1);
}

// It names more memory than the guest has: all of that is marked, but once.
TEST_F(BlkQueueTurn, MemoryThatIsNamedAgainAndAgainIsLoggedOnce) {
  constexpr std::int32_t kSegments = 32;
  Disk disk(context_, kLoggedMemory);
  const Log log(kLoggedMemory);
  disk.set_log(log.log());
  disk.submit(disk.read_table(kSegments + 2, kLoggedRead), kSegments + 2, 200);
  EXPECT_EQ(disk.turn(), Queue::Pumped::budget);
  constexpr std::int32_t kCost = limits::kPumpRequestCost + kSegments + 3 + kSegments + 2 * kLogCost;
  EXPECT_EQ(disk.used(), limits::kPumpBudget / kCost + 1);
  EXPECT_EQ(log.pages(), kLoggedMemory / DirtyLog::kPageBytes);
}

// What hangs is seen once a second, and told of once; what follows it doesn't hide it.
TEST_F(BlkQueueTurn, ARequestThatHangsIsSeenAndTold) {
  HeldDisk disk(context_, 1U << 20U);
  const GuestAddress table = disk.read_table(3);
  disk.submit(table, 3, 2);
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  Instant now = Instant{} + Duration::seconds(100);
  const auto look_for = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      now = now + Duration::seconds(1);
      disk.safety_look(now);
    }
  };
  look_for(1);
  EXPECT_EQ(disk.ring_stats().in_flight, 2U);
  EXPECT_EQ(disk.ring_stats().oldest_in_flight, Duration{});
  disk.submit(table, 3);
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  look_for(4);
  EXPECT_EQ(disk.ring_stats().in_flight, 3U);
  EXPECT_EQ(disk.ring_stats().oldest_in_flight, Duration::seconds(4));
  EXPECT_TRUE(disk.stalls.empty());
  look_for(3);
  ASSERT_EQ(disk.stalls.size(), 1U);
  EXPECT_EQ(disk.stalls[0], std::pair(3U, Duration::seconds(5)));
  // The two oldest end; the one that came after them has been there for as long, but for one look.
  disk.channel.finish(2);
  look_for(1);
  EXPECT_EQ(disk.ring_stats().in_flight, 1U);
  EXPECT_EQ(disk.stalls.size(), 2U);
  EXPECT_EQ(disk.stalls[1].second, Duration{});
  look_for(5);
  ASSERT_EQ(disk.stalls.size(), 3U);
  EXPECT_EQ(disk.stalls[2].first, 1U);
  disk.channel.finish(1);
  look_for(1);
  EXPECT_EQ(disk.ring_stats().in_flight, 0U);
  EXPECT_EQ(disk.stalls.size(), 4U);
}

// A busy disk is no stall, however long it is busy.
TEST_F(BlkQueueTurn, ManyShortRequestsAreNotTakenForALongOne) {
  HeldDisk disk(context_, 1U << 20U);
  const GuestAddress table = disk.read_table(3);
  Instant now = Instant{} + Duration::seconds(100);
  for (int second = 0; second < 30; ++second) {
    disk.submit(table, 3, 8);
    EXPECT_EQ(disk.turn(), Queue::Pumped::some);
    disk.channel.finish(second == 0 ? 0 : 8);
    now = now + Duration::seconds(1);
    disk.safety_look(now);
    EXPECT_EQ(disk.ring_stats().in_flight, 8U);
    EXPECT_LE(disk.ring_stats().oldest_in_flight, Duration::seconds(1));
  }
  EXPECT_TRUE(disk.stalls.empty());
  disk.channel.finish(8);
}

// What completes between two turns is charged to the next ones.
TEST_F(BlkQueueTurn, WordsOfTheLogThatWereWrittenBetweenTurnsAreOwed) {
  constexpr std::uint32_t kRequests = 40;
  HeldDisk disk(context_, kLoggedMemory);
  const Log log(kLoggedMemory);
  disk.set_log(log.log());
  const GuestAddress table = disk.read_table(3, kLoggedRead);
  disk.submit(table, 3, kRequests);
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  disk.channel.finish(kRequests);
  disk.submit(table, 3);
  for (std::int32_t owed = kRequests * (kLogCost + 1); owed >= limits::kPumpBudget; owed -= limits::kPumpBudget) {
    EXPECT_EQ(disk.turn(), Queue::Pumped::budget);
    EXPECT_EQ(disk.channel.in_flight(), 0U);
  }
  EXPECT_EQ(disk.turn(), Queue::Pumped::some);
  EXPECT_EQ(disk.channel.in_flight(), 1U);
  disk.channel.finish(1);
}

}  // namespace
}  // namespace ringway::testing
