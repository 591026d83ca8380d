// Notifications, enable state, and what a queue may do to its neighbours.
#include <atomic>

#include "tests/conformance/support.hpp"

namespace ringway::conformance {
namespace {

class RingTest : public testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] BlkDriverOptions options(const std::string& socket) const {
    return {.socket_path = socket, .packed = GetParam()};
  }
  const TestDirectory directory_;
  const std::string socket_ = directory_.file("a.sock");
};
INSTANTIATE_TEST_SUITE_P(Rings, RingTest, testing::Bool(), [](const auto& each) { return each.param ? "packed" : "split"; });

TEST_P(RingTest, Row002_KickBeforeEnableIsNotLost) {
  TestHost host({}, {test_disk("ram:1M", socket_, "a")});
  BlkDriverOptions wanted = options(socket_);
  wanted.start = false;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->start_queue(0, driver->initial_base(), false));
  BlkDriverQueue& queue = driver->queue(0);
  submit(queue, spec::kBlkTypeIn, 0, 0);
  static_cast<void>(queue.ring().publish());
  queue.kick();
  // The kick has surely been seen, and nothing been served.
  ASSERT_TRUE(eventually([&] { return stats_of(host, "a").queues[0].kicks > 0; }));
  EXPECT_FALSE(queue.has_completion());
  ASSERT_TRUE(driver->front_end().set_vring_enable(0, true));
  EXPECT_TRUE(await_ok(queue, 1));
}

TEST_P(RingTest, Row003_RingWithWorkIsServedAtStartAndCalledOnceWithoutAKick) {
  TestHost host({}, {test_disk("ram:1M", socket_, "a")});
  BlkDriverOptions wanted = options(socket_);
  wanted.start = false;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  submit(queue, spec::kBlkTypeIn, 0, 0);
  static_cast<void>(queue.ring().publish());
  // Calls are suppressed by the ring: the call that comes is the one that a start owes.
  ASSERT_TRUE(driver->start_queue(0, driver->initial_base()));
  EXPECT_TRUE(eventually([&] { return queue.take_calls() > 0; }));
  EXPECT_TRUE(await_ok(queue, 1));
}

TEST_P(RingTest, Row007_BothHandshakesEndInARunningRing) {
  TestHost host({}, {test_disk("ram:1M", socket_, "a")});
  for (const bool protocol_features : {true, false}) {
    BlkDriverOptions wanted = options(socket_);
    wanted.start = false;
    const auto driver = connect_driver(wanted);
    ASSERT_NE(driver, nullptr);
    // A front-end that doesn't acknowledge PROTOCOL_FEATURES never sends SET_VRING_ENABLE.
    const std::uint64_t features = driver->negotiated().features & ~(protocol_features ? 0 : spec::kFeatureProtocolFeatures);
    ASSERT_TRUE(driver->front_end().set_features(features));
    ASSERT_TRUE(driver->start_queue(0, driver->initial_base(), protocol_features));
    EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  }
}

// Old QEMU enables rings before it starts them.
TEST_P(RingTest, Row007_EnableBeforeStart) {
  TestHost host({}, {test_disk("ram:1M", socket_, "a")});
  BlkDriverOptions wanted = options(socket_);
  wanted.start = false;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->front_end().set_vring_enable(0, true));
  ASSERT_TRUE(driver->start_queue(0, driver->initial_base(), false));
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
}

// The ring's start position is the specification's default when SET_VRING_BASE never came.
TEST(Notification, Row008_EventIndexHoldsWithoutSetVringBase) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a")});
  const auto driver = connect_driver(BlkDriverOptions{.socket_path = directory.file("a"), .start = false});
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->negotiated().ring.event_index);
  BlkDriverQueue& queue = driver->queue(0);
  const RingLayout& layout = queue.ring().layout();
  vhost_user::FrontEnd& front = driver->front_end();
  ASSERT_TRUE(front.set_vring_num(0, layout.size));
  ASSERT_TRUE(front.set_vring_addr(driver->vring_address(0)));
  ASSERT_TRUE(front.set_vring_call(0, queue.call_fd()));
  ASSERT_TRUE(front.set_vring_kick(0, queue.kick_fd()));
  ASSERT_TRUE(front.set_vring_enable(0, true));
  ASSERT_TRUE(eventually([&] { return queue.take_calls() > 0; }));  // the one that the start owes
  // Suppressed: used_event stands just behind us.
  for (std::uint32_t i = 0; i < 8; ++i) {
    submit(queue, spec::kBlkTypeIn, i, i);
  }
  queue.publish_and_kick();
  BlkCompletion done[8];
  std::size_t count = 0;
  ASSERT_TRUE(eventually([&] {
    count += queue.reap(std::span(done).subspan(count));
    return count == 8;
  }));
  // Asked for.
  ASSERT_FALSE(queue.ring().arm_calls());
  submit(queue, spec::kBlkTypeIn, 0, 0);
  queue.publish_and_kick();
  EXPECT_TRUE(eventually([&] { return queue.take_calls() > 0; }));
  const BlkDeviceStats stats = stats_of(host, "a");
  EXPECT_EQ(stats.queues[0].calls, 2U);
  EXPECT_GE(stats.queues[0].calls_suppressed, 1U);
}

TEST_P(RingTest, Row010_OneKickServesAllRequestsOfAFile) {
  DiskOptions disk = test_disk(directory_.image("a.img", 1 << 20), socket_, "a");
  disk.engine = BlkEngine::io_uring;
  TestHost host({}, {disk});
  if (!host.started()) {
    GTEST_SKIP() << "no io_uring here: " << host.started().error().message;
  }
  const auto driver = connect_driver(options(socket_));
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  for (std::uint32_t i = 0; i < 64; ++i) {
    submit(queue, spec::kBlkTypeIn, i * kBlockSectors, i);
  }
  static_cast<void>(queue.ring().publish());
  queue.kick();
  EXPECT_TRUE(await_ok(queue, 64));
  EXPECT_EQ(queue.counters().kicks, 1U);
}

TEST_P(RingTest, Row011_MalformedChainsComeBackWithLengthZero) {
  TestHost host({}, {test_disk("ram:1M", socket_, "a")});
  const auto driver = connect_driver(options(socket_));
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  const DriverBuffer lone{.address = queue.buffer(0).guest, .bytes = 8, .device_writable = false};
  // More than the ring has, so that every descriptor must come back.
  for (std::uint32_t i = 0; i < 2 * driver->options().queue_size; ++i) {
    ASSERT_TRUE(queue.submit_chain({&lone, 1}, i));
    queue.publish_and_kick();
    const BlkCompletion completion = await_completion(queue);
    ASSERT_EQ(completion.token, i);
    ASSERT_EQ(completion.written_bytes, 0U);
  }
  EXPECT_EQ(transfer(queue, spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
}

TEST(Notification, Row013_AvailIndexBeyondTheRingStopsIt) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a"), test_disk("ram:1M", directory.file("b"), "b")});
  const auto driver = connect_driver(directory.file("a"));
  const auto other = connect_driver(directory.file("b"));
  ASSERT_TRUE(driver && other);
  BlkDriverQueue& queue = driver->queue(0);
  ASSERT_EQ(transfer(queue, spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  const std::uint64_t before = status_kib("RssAnon");
  const auto jump = static_cast<std::uint16_t>(1 + driver->options().queue_size + 1);
  guest::store_release(queue.ring().layout().driver_area + 2, jump);
  queue.kick();
  std::uint64_t error = 0;
  EXPECT_TRUE(eventually([&] { return ::read(queue.error_fd(), &error, sizeof error) == sizeof error; }));
  EXPECT_TRUE(stats_of(host, "a").queues[0].broken);
  EXPECT_EQ(stats_of(host, "a").queues[0].ring_faults, 1U);
  expect_memory_kept(before, 8192);
  EXPECT_EQ(transfer(other->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  // A new session starts as new.
  ASSERT_TRUE(driver->reconnect(BlkDriver::Rings::reset));
  EXPECT_EQ(transfer(queue, spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
}

// Every message must be answered while the data path runs at full rate: neither side waits for the other's lock.
TEST(Notification, Row004_MessagesAreAnsweredUnderFullLoad) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("null:1M", directory.file("a"), "a")});
  const auto driver = connect_driver(directory.file("a"));
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> served{0}, bad{0};
  std::thread load([&] {
    for (std::uint32_t i = 0; i < 64; ++i) {
      submit(queue, spec::kBlkTypeIn, i * kBlockSectors, i);
    }
    queue.publish_and_kick();
    std::array<BlkCompletion, 64> done;
    while (!stop || queue.in_flight() != 0) {
      const std::size_t count = queue.reap(done);
      for (std::size_t i = 0; i < count; ++i) {
        bad += done[i].status != spec::kBlkStatusOk ? 1 : 0;
        if (!stop) {
          submit(queue, spec::kBlkTypeIn, 0, static_cast<std::uint32_t>(done[i].token));
        }
      }
      served += count;
      if (count != 0) {
        queue.publish_and_kick();
      } else if (!queue.wait(clock_now() + kLimit)) {
        bad += 1'000'000;
        return;
      }
    }
  });
  ASSERT_TRUE(eventually([&] { return served > 1000; }));
  const auto table = driver->memory_table();
  Duration slowest;
  const auto answered = [&](auto message) {
    const Instant began = clock_now();
    const bool ok = message().has_value();
    slowest = std::max(slowest, clock_now() - began);
    return ok;
  };
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t before = served;
    ASSERT_TRUE(answered([&] { return driver->front_end().set_mem_table(table); }));
    ASSERT_TRUE(answered([&] { return driver->front_end().set_vring_call(0, queue.call_fd()); }));
    // The data path goes on beside every message.
    ASSERT_TRUE(eventually([&] { return served > before; })) << "after message pair " << i;
  }
  EXPECT_LT(slowest.ns, 1'000'000'000);
  stop = true;
  load.join();
  EXPECT_EQ(bad, 0U);
}

// A driver that keeps to seg_max is served at any depth: the store is slow, so all of these are in flight at once.
TEST_P(RingTest, Row030_LongChainsAtDepthAreServed) {
  DiskOptions disk = test_disk("ram:64M", socket_, "a");
  disk.faults = "delay=50ms";
  TestHost host({}, {disk});
  BlkDriverOptions wanted = options(socket_);
  wanted.queue_size = 256;
  wanted.requests_per_queue = 64;
  wanted.segments_max = 126;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  ASSERT_EQ(driver->config().seg_max, 126U);
  BlkDriverQueue& queue = driver->queue(0);
  std::vector<DriverBuffer> data;
  for (std::uint32_t i = 0; i < 126; ++i) {
    // Every second one half a page, so that they can't be taken for one long segment.
    data.push_back({.address = queue.buffer(i % 64).guest, .bytes = i % 2 == 0 ? 512U : 1024U, .device_writable = true});
  }
  for (std::uint32_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(queue.submit({.type = spec::kBlkTypeIn, .sector = 0, .token = i, .data = data, .ranges = {}}));
  }
  queue.publish_and_kick();
  EXPECT_TRUE(await_ok(queue, 64));
}

// A hung disk takes all the requests in flight that it can get, on as many queues as it can have. Its neighbour on the same
// worker goes on.
TEST(Notification, Row058_HungQueuesLeaveRequestSlotsToTheirNeighbour) {
  const TestDirectory directory;
  DiskOptions hung = test_disk("ram:1M", directory.file("a"), "a");
  hung.queues = 16;
  hung.faults = "hang";
  HostOptions options;
  options.stop_deadline = Duration::milliseconds(200);
  TestHost host(options, {hung, test_disk("ram:1M", directory.file("b"), "b")});
  const auto driver = connect_driver(BlkDriverOptions{.socket_path = directory.file("a"), .queues = 16});
  const auto other = connect_driver(directory.file("b"));
  ASSERT_TRUE(driver && other);
  for (std::uint32_t i = 0; i < 16; ++i) {
    for (std::uint32_t slot = 0; slot < 128; ++slot) {
      submit(driver->queue(i), spec::kBlkTypeIn, 0, slot);
    }
    driver->queue(i).publish_and_kick();
  }
  ASSERT_TRUE(eventually([&] { return stats_of(host, "a").queues[15].starved > 0; }));
  for (std::uint32_t slot = 0; slot < 32; ++slot) {
    submit(other->queue(0), spec::kBlkTypeIn, 0, slot);
  }
  other->queue(0).publish_and_kick();
  EXPECT_TRUE(await_ok(other->queue(0), 32));
  // Control goes on too, and the hung disk's stop ends: by the end of the connection.
  EXPECT_TRUE(host.add(test_disk("ram:1M", directory.file("c"), "c")));
  const Instant began = clock_now();
  EXPECT_FALSE(driver->stop_queue(0));
  EXPECT_TRUE(eventually([&] { return driver->peer_closed(); }));
  EXPECT_LT((clock_now() - began).ns, 5'000'000'000);
  EXPECT_EQ(transfer(other->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  EXPECT_EQ(host.quit(), HostEnd::hung);
}

// 64 requests in flight all the time; every completion is replaced at once, as a guest's driver does it: one publish, and
// so one possible kick, for each.
class Depth64 {
 public:
  Depth64(const TestDirectory& directory, const char* poll)
      : host_(options(poll), {test_disk("ram:1M", directory.file("a"), "a")}),
        driver_(connect_driver(directory.file("a"))) {}

  void run(std::uint64_t requests) {
    ASSERT_NE(driver_, nullptr);
    BlkDriverQueue& queue = driver_->queue(0);
    for (std::uint32_t i = 0; i < 64; ++i) {
      submit(queue, spec::kBlkTypeIn, i * kBlockSectors, i);
    }
    queue.publish_and_kick();
    const Instant deadline = clock_now() + kLimit;
    for (std::uint64_t submitted = 64, served = 0; served < requests && clock_now() < deadline;) {
      BlkCompletion done;
      if (queue.reap({&done, 1}) == 0) {
        continue;
      }
      ++served;
      ASSERT_EQ(done.status, spec::kBlkStatusOk);
      if (submitted < requests) {
        submit(queue, spec::kBlkTypeIn, 0, static_cast<std::uint32_t>(done.token));
        queue.publish_and_kick();
        ++submitted;
      }
    }
    ASSERT_EQ(queue.in_flight(), 0U);
  }
  // The ring as it is now asks for a kick with the next request: the worker has gone through it and is done.
  [[nodiscard]] bool kick_is_wanted() {
    const RingLayout& layout = driver_->queue(0).ring().layout();
    // Split ring with EVENT_IDX: avail idx, and the avail event behind the used elements.
    const std::size_t event = 4 + std::size_t{layout.size} * sizeof(spec::UsedElementWire);
    return guest::load_acquire<std::uint16_t>(layout.device_area + event) ==
           guest::load<std::uint16_t>(layout.driver_area + 2);
  }
  [[nodiscard]] BlkDriver* driver() { return driver_.get(); }
  [[nodiscard]] std::uint64_t kicks() { return driver_->queue(0).counters().kicks; }
  [[nodiscard]] WorkerStats worker() {
    return host_.call([](Host& h) { return h.worker_stats(); })[0];
  }
  [[nodiscard]] BlkDeviceStats::Queue queue() { return stats_of(host_, "a").queues[0]; }

 private:
  static HostOptions options(const char* poll) {
    HostOptions options;
    options.workers.poll = poll;
    return options;
  }
  TestHost host_;
  std::unique_ptr<BlkDriver> driver_;
};

TEST(Notification, Row071_KicksAreRareAtDepthWhilePolled) {
  const TestDirectory directory;
  Depth64 load(directory, "always");
  constexpr std::uint64_t kRequests = 20'000;
  load.run(kRequests);
  EXPECT_LT(load.kicks(), kRequests / 100);
}

// A worker that doesn't poll sleeps as soon as it has nothing to do, is woken by one kick, and wants none while it is awake.
// How often it sleeps at depth is the machine's doing: once for each request, or hardly ever. So what is held against each
// other is counted, and none of it is a time.
TEST(Notification, Row071_EachKickWakesASleepingWorkerWithoutPolling) {
  const TestDirectory directory;
  Depth64 load(directory, "never");
  ASSERT_NE(load.driver(), nullptr);
  ASSERT_TRUE(load.driver()->negotiated().ring.event_index);
  const WorkerStats before = load.worker();
  constexpr std::uint64_t kRequests = 20'000;
  load.run(kRequests);
  ASSERT_FALSE(HasFatalFailure());
  const std::uint64_t kicks_at_depth = load.kicks();
  // One at a time, and each only when the worker has asked for a kick: so each takes one.
  constexpr std::uint64_t kAlone = 200;
  for (std::uint64_t i = 0; i < kAlone; ++i) {
    ASSERT_TRUE(eventually([&] { return load.kick_is_wanted(); })) << "request " << i;
    ASSERT_EQ(transfer(load.driver()->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  }
  EXPECT_EQ(load.kicks() - kicks_at_depth, kAlone);
  EXPECT_EQ(load.queue().lost_kicks, 0U) << "served by the look once a second, not by its kick";
  // Idle, it sleeps: all that wakes it is the timer for that look.
  const std::uint64_t sleeps_before_rest = load.worker().sleeps;
  EXPECT_TRUE(eventually([&] { return load.worker().sleeps >= sleeps_before_rest + 2; })) << "it never sleeps";
  const WorkerStats after = load.worker();
  const std::uint64_t sleeps = after.sleeps - before.sleeps;
  const std::uint64_t turns = after.turns - before.turns;
  const std::uint64_t idle_turns = turns - (after.productive_turns - before.productive_turns);
  std::printf(
      "depth 64 without polling: %llu kicks for %llu requests; with those alone %llu kicks, %llu sleeps, %llu turns "
      "(%llu idle)\n",
      static_cast<unsigned long long>(kicks_at_depth), static_cast<unsigned long long>(kRequests),
      static_cast<unsigned long long>(load.kicks()), static_cast<unsigned long long>(sleeps),
      static_cast<unsigned long long>(turns), static_cast<unsigned long long>(idle_turns));
  // A turn asks for one kick at most, at its end. (The two: turns at the edges of what was counted.)
  EXPECT_LE(load.kicks(), turns + 2) << "kicks that the worker, being awake, had no use for";
  // After a turn that found nothing it sleeps; one that spins has many of them for each sleep.
  EXPECT_LE(idle_turns, sleeps + 2) << "the worker spun";
}

}  // namespace
}  // namespace ringway::conformance
