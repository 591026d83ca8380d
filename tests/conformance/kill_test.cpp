// What is killed: the front-end with requests in flight, the back-end with requests in flight, the store.
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <future>
#include <optional>
#include <random>

#include "tests/conformance/support.hpp"

namespace ringway::conformance {
namespace {

// The life of a back-end that has taken requests and will never answer those that touch block 0; and the one after it.
std::string hanging(const TestDirectory& directory) {
  return "path=" + directory.file("a.img") + ",socket=" + directory.file("a") + ",in-order,faults=hang@0";
}
std::string sane(const TestDirectory& directory) {
  return "path=" + directory.file("a.img") + ",socket=" + directory.file("a") + ",in-order";
}

// What a VMM does for its guest once the back-end is back: everything again. How far the lost one had come it can't know, so
// the base is that of the ring's last start: the in-flight region has to tell.
void hand_over(vhost_user::FrontEnd& front, BlkDriver& driver, const vhost_user::FrontEnd::Inflight& inflight) {
  ASSERT_TRUE(front.set_protocol_features(driver.negotiated().protocol_features));
  ASSERT_TRUE(front.set_features(driver.negotiated().features));
  ASSERT_TRUE(front.set_mem_table(driver.memory_table()));
  ASSERT_TRUE(front.set_inflight_fd(inflight.description, inflight.fd.get()));
  BlkDriverQueue& queue = driver.queue(0);
  const RingLayout& layout = queue.ring().layout();
  ASSERT_TRUE(front.set_vring_num(0, layout.size));
  ASSERT_TRUE(front.set_vring_base(0, driver.initial_base()));
  ASSERT_TRUE(front.set_vring_addr(driver.vring_address(0)));
  ASSERT_TRUE(front.set_vring_call(0, queue.call_fd()));
  ASSERT_TRUE(front.set_vring_kick(0, queue.kick_fd()));
  ASSERT_TRUE(front.set_vring_enable(0, true));
}

// Row 34: the front-end hangs up with 256 requests in flight.
TEST(Kill, Row034_MemoryStaysMappedUntilTheLastCompletionAndNothingIsWrittenAfterTheClose) {
  const TestDirectory directory;
  DiskOptions disk = test_disk(directory.image("a.img", 4 << 20), directory.file("a"), "a");
  disk.faults = "delay=400ms";
  TestHost host({}, {disk});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  BlkDriverOptions wanted{.socket_path = directory.file("a")};
  wanted.queue_size = 256;
  wanted.requests_per_queue = 256;
  auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  struct stat of_memory{};
  ASSERT_EQ(fstat(driver->memory().regions()[0].fd.get(), &of_memory), 0);
  const std::string inode = " " + std::to_string(of_memory.st_ino) + " ";
  ASSERT_EQ(mappings_with(inode), 2);  // the driver's and the host's
  BlkDriverQueue& queue = driver->queue(0);
  const SharedMemory::Region& region = driver->memory().regions()[0];
  std::memset(queue.buffer(0).host, 0xaa, kBlock);
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::memset(queue.buffer(i).host, 0xaa, kBlock);
    submit(queue, spec::kBlkTypeIn, i * kBlockSectors, i);
  }
  queue.publish_and_kick();
  // The avail index of the back-end is not to be seen; that it takes no kick more says that it has taken all.
  ASSERT_TRUE(eventually([&] { return stats_of(host, "a").queues[0].kicks > 0; }));
  ASSERT_EQ(::shutdown(driver->front_end().socket(), SHUT_WR), 0);
  // While a completion is still to come, the mapping is there; between the last one and our close it may go. So what was
  // reaped after it was first seen missing must be all that ever comes.
  std::vector<BlkCompletion> done(256);
  std::size_t completed = 0;
  std::optional<std::size_t> completed_without_mapping;
  ASSERT_TRUE(eventually([&] {
    const bool mapped = mappings_with(inode) == 2;
    completed += queue.reap(done);
    if (!mapped && !completed_without_mapping) {
      completed_without_mapping = completed;
    }
    return driver->peer_closed();
  }));
  // The guest uses its pages for something else. Nothing may change them.
  const std::vector<std::byte> at_close(region.host, region.host + region.bytes);
  EXPECT_TRUE(eventually([&] { return !connected(host, "a"); }));
  EXPECT_TRUE(eventually([&] { return mappings_with(inode) == 1; }));
  // A second session's whole life passes; the first one's requests would have come by then.
  {
    const auto second = connect_driver(directory.file("a"));
    ASSERT_NE(second, nullptr);
    EXPECT_EQ(transfer(second->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  }
  EXPECT_EQ(std::memcmp(at_close.data(), region.host, region.bytes), 0);
  // What was taken was finished before the close.
  completed += queue.reap(done);
  if (completed_without_mapping) {
    EXPECT_EQ(*completed_without_mapping, completed);
  }
  const BlkDeviceStats stats = stats_of(host, "a");
  EXPECT_EQ(completed + 1, stats.queues[0].requests[static_cast<std::size_t>(BlkOpcode::in)]);
}

TEST(Kill, Row058_ResetOfAHungDeviceEndsInBoundedTimeAndMemoryStaysMapped) {
  const TestDirectory directory;
  DiskOptions hung = test_disk("ram:1M", directory.file("a"), "a");
  hung.faults = "hang@0";
  HostOptions options;
  options.stop_deadline = Duration::milliseconds(100);
  TestHost host(options, {hung, test_disk("ram:1M", directory.file("b"), "b")});
  const auto driver = connect_driver(directory.file("a"));
  const auto other = connect_driver(directory.file("b"));
  ASSERT_TRUE(driver && other);
  struct stat of_memory{};
  ASSERT_EQ(fstat(driver->memory().regions()[0].fd.get(), &of_memory), 0);
  const std::string inode = " " + std::to_string(of_memory.st_ino) + " ";
  submit(driver->queue(0), spec::kBlkTypeIn, 0, 0);
  submit(driver->queue(0), spec::kBlkTypeIn, kBlockSectors, 1);
  driver->queue(0).publish_and_kick();
  ASSERT_TRUE(await_ok(driver->queue(0), 1));  // so the first one hangs
  std::future<Result<>> reset = std::async(std::launch::async, [&] { return driver->front_end().reset_device(); });
  while (reset.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    ASSERT_EQ(transfer(other->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  }
  EXPECT_FALSE(reset.get());
  EXPECT_TRUE(driver->peer_closed());
  EXPECT_EQ(mappings_with(inode), 2) << "the kernel may still write there";
  EXPECT_EQ(host.quit(), HostEnd::hung);
}

// A table without the memory of requests in flight is not acknowledged while they last.
TEST(Kill, Row045_MemoryIsNotTakenAwayUnderAHungRequest) {
  const TestDirectory directory;
  DiskOptions hung = test_disk("ram:1M", directory.file("a"), "a");
  hung.faults = "hang@0";
  HostOptions options;
  options.stop_deadline = Duration::milliseconds(100);
  TestHost host(options, {hung});
  BlkDriverOptions wanted{.socket_path = directory.file("a")};
  wanted.data_regions = 1;
  wanted.memory_slots = true;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  submit(driver->queue(0), spec::kBlkTypeIn, 0, 0);
  submit(driver->queue(0), spec::kBlkTypeIn, kBlockSectors, 1);
  driver->queue(0).publish_and_kick();
  ASSERT_TRUE(await_ok(driver->queue(0), 1));
  EXPECT_FALSE(driver->front_end().rem_mem_reg(driver->memory_table()[1]));
  EXPECT_EQ(host.quit(), HostEnd::hung);
}

// Row 53, 56: the back-end dies with requests in flight; the in-flight region tells the next one.
TEST(Kill, Row053_SplitRequestsInFlightCompleteAfterTheBackEndWasKilled) {
  const TestDirectory directory;
  directory.image("a.img", 1 << 20);
  Backend backend(hanging(directory));
  BlkDriverOptions wanted{.socket_path = directory.file("a"), .patience = kLimit};
  wanted.inflight = true;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  // Block 0 hangs, the others don't: these complete out of order before the kill.
  for (std::uint32_t i = 0; i < 16; ++i) {
    fill(queue.buffer(i).host, kBlock, i);
    submit(queue, i < 8 ? spec::kBlkTypeIn : spec::kBlkTypeOut, i < 8 ? 0 : i * kBlockSectors, i);
  }
  queue.publish_and_kick();
  std::vector<bool> completed(16, false);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const BlkCompletion completion = await_completion(queue);
    ASSERT_LT(completion.token, 16U);
    completed[completion.token] = true;
  }
  backend.kill();
  ASSERT_TRUE(driver->peer_closed());
  backend.start(sane(directory));
  ASSERT_TRUE(driver->reconnect());
  for (std::uint32_t i = 0; i < 8; ++i) {
    const BlkCompletion completion = await_completion(queue);
    ASSERT_LT(completion.token, 16U) << "request " << i << " of those in flight was lost";
    EXPECT_FALSE(completed[completion.token]) << "served twice: " << completion.token;
    EXPECT_EQ(completion.status, spec::kBlkStatusOk);
    completed[completion.token] = true;
  }
  EXPECT_EQ(queue.in_flight(), 0U);
  for (std::uint32_t i = 8; i < 16; ++i) {
    ASSERT_EQ(transfer(queue, spec::kBlkTypeIn, i * kBlockSectors, 0).status, spec::kBlkStatusOk);
    EXPECT_TRUE(holds(queue.buffer(0).host, kBlock, i));
  }
}

// BlkDriver doesn't resume packed rings, since most back-ends can't; the test does.
TEST(Kill, Row053_PackedRequestsInFlightCompleteAfterTheBackEndWasKilled) {
  const TestDirectory directory;
  directory.image("a.img", 1 << 20);
  Backend backend(hanging(directory));
  BlkDriverOptions wanted{.socket_path = directory.file("a"), .patience = kLimit, .packed = true, .start = false};
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->negotiated().ring.packed);
  auto inflight = driver->front_end().get_inflight_fd(1, 128);
  ASSERT_TRUE(inflight) << inflight.error().message;
  ASSERT_TRUE(driver->front_end().set_inflight_fd(inflight->description, inflight->fd.get()));
  ASSERT_TRUE(driver->start_queue(0, driver->initial_base()));
  BlkDriverQueue& queue = driver->queue(0);
  for (std::uint32_t i = 0; i < 9; ++i) {
    submit(queue, spec::kBlkTypeIn, i < 8 ? 0 : kBlockSectors, i);
  }
  queue.publish_and_kick();
  ASSERT_EQ(await_completion(queue).token, 8U);  // so the eight before it are in flight
  backend.kill();
  backend.start(sane(directory));
  auto connected_again = vhost_user::FrontEnd::connect(directory.file("a"), kLimit);
  ASSERT_TRUE(connected_again) << connected_again.error().message;
  hand_over(*connected_again, *driver, *inflight);
  std::vector<bool> completed(9, false);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const BlkCompletion completion = await_completion(queue);
    ASSERT_LT(completion.token, 8U) << "request " << i << " of those in flight was lost";
    EXPECT_FALSE(completed[completion.token]);
    EXPECT_EQ(completion.status, spec::kBlkStatusOk);
    completed[completion.token] = true;
  }
  EXPECT_EQ(transfer(queue, spec::kBlkTypeIn, kBlockSectors).status, spec::kBlkStatusOk);
}

// The same with IN_ORDER: what was served out of order was held back, so it is served again; and it comes in order.
class KillInOrder : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Rings, KillInOrder, testing::Bool(),
                         [](const auto& each) { return each.param ? "packed" : "split"; });

TEST_P(KillInOrder, Row053_RequestsInFlightCompleteOnceAndInOrder) {
  const TestDirectory directory;
  directory.image("a.img", 1 << 20);
  Backend backend(hanging(directory));
  BlkDriverOptions wanted{
      .socket_path = directory.file("a"), .patience = kLimit, .packed = GetParam(), .in_order = true, .start = false};
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->negotiated().ring.in_order);
  ASSERT_EQ(driver->negotiated().ring.packed, GetParam());
  auto inflight = driver->front_end().get_inflight_fd(1, 128);
  ASSERT_TRUE(inflight) << inflight.error().message;
  ASSERT_TRUE(driver->front_end().set_inflight_fd(inflight->description, inflight->fd.get()));
  ASSERT_TRUE(driver->start_queue(0, driver->initial_base()));
  BlkDriverQueue& queue = driver->queue(0);
  // Four are done before the kill. The fifth hangs; the writes behind it reach the image, but not the guest.
  constexpr std::uint32_t kRequests = 16, kDone = 4;
  const auto is_write = [](std::uint32_t i) { return i > kDone; };
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    fill(queue.buffer(i).host, kBlock, i);
    submit(queue, is_write(i) ? spec::kBlkTypeOut : spec::kBlkTypeIn, i == kDone ? 0 : (i + 1) * kBlockSectors, i);
  }
  queue.publish_and_kick();
  for (std::uint32_t i = 0; i < kDone; ++i) {
    ASSERT_EQ(await_completion(queue).token, i);
  }
  EXPECT_FALSE(queue.has_completion());
  backend.kill();
  ASSERT_FALSE(queue.has_completion()) << "a request went past one that hung";
  backend.start(sane(directory));
  auto front = vhost_user::FrontEnd::connect(directory.file("a"), kLimit);
  ASSERT_TRUE(front) << front.error().message;
  hand_over(*front, *driver, *inflight);
  for (std::uint32_t i = kDone; i < kRequests; ++i) {
    const BlkCompletion completion = await_completion(queue);
    ASSERT_EQ(completion.token, i) << "lost, repeated, or out of order";
    EXPECT_EQ(completion.status, spec::kBlkStatusOk);
  }
  EXPECT_EQ(queue.in_flight(), 0U);
  EXPECT_FALSE(queue.ring().broken());
  EXPECT_EQ(queue.counters().bad_used, 0U);
  for (std::uint32_t i = kDone + 1; i < kRequests; ++i) {
    ASSERT_EQ(transfer(queue, spec::kBlkTypeIn, (i + 1) * kBlockSectors).status, spec::kBlkStatusOk);
    EXPECT_TRUE(holds(queue.buffer(0).host, kBlock, i)) << "block " << i + 1;
  }
}

// A guest whose back-end comes and goes: a driver with a region, and the front-end of each life after the first.
struct RingKind {
  const char* name;
  bool packed;
  bool indirect;  // else three descriptors a request
  bool in_order;
};
class KillAnyRing : public testing::TestWithParam<RingKind> {
 protected:
  static constexpr std::uint32_t kBlocks = 16;

  // Blocks hold their pattern.
  [[nodiscard]] std::string disk(const std::string& faults) const {
    return "path=" + directory_.file("a.img") + ",socket=" + directory_.file("a") + ",in-order" + faults;
  }
  void SetUp() override {
    std::vector<std::byte> image(std::size_t{kBlocks} * kBlock);
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      fill(image.data() + std::size_t{block} * kBlock, kBlock, block);
    }
    std::ofstream(directory_.file("a.img"), std::ios::binary)
        .write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
  }
  void connect() {
    driver_ = connect_driver({.socket_path = directory_.file("a"),
                              .patience = kLimit,
                              .packed = GetParam().packed,
                              .indirect = GetParam().indirect,
                              .in_order = GetParam().in_order,
                              .protocol_features = kBlkDriverProtocolFeatures | vhost_user::kProtocolResetDevice,
                              .start = false});
    ASSERT_NE(driver_, nullptr);
    ASSERT_EQ(driver_->negotiated().ring.packed, GetParam().packed);
    ASSERT_EQ(driver_->negotiated().ring.indirect, GetParam().indirect);
    ASSERT_EQ(driver_->negotiated().ring.in_order, GetParam().in_order);
    auto inflight = driver_->front_end().get_inflight_fd(1, 128);
    ASSERT_TRUE(inflight) << inflight.error().message;
    inflight_.emplace(std::move(*inflight));
    ASSERT_TRUE(driver_->front_end().set_inflight_fd(inflight_->description, inflight_->fd.get()));
    ASSERT_TRUE(driver_->start_queue(0, driver_->initial_base()));
  }
  void connect_again() {
    auto front = vhost_user::FrontEnd::connect(directory_.file("a"), kLimit);
    ASSERT_TRUE(front) << front.error().message;
    front_.emplace(std::move(*front));
    hand_over(*front_, *driver_, *inflight_);
  }
  void read(std::uint32_t block, std::uint32_t slot) {
    BlkDriverQueue& queue = driver_->queue(0);
    std::memset(queue.buffer(slot).host, 0xaa, kBlock);
    submit(queue, spec::kBlkTypeIn, block * kBlockSectors, slot);
  }
  // One read after the other.
  void read_alone(std::uint32_t count) {
    BlkDriverQueue& queue = driver_->queue(0);
    for (std::uint32_t i = 0; i < count; ++i) {
      read(i % kBlocks, i % 2);
      queue.publish_and_kick();
      const BlkCompletion completion = await_completion(queue);
      ASSERT_EQ(completion.token, i % 2) << "read " << i;
      ASSERT_EQ(completion.status, spec::kBlkStatusOk);
      ASSERT_TRUE(holds(queue.buffer(i % 2).host, kBlock, i % kBlocks)) << "read " << i;
    }
  }
  void expect_nothing_odd() {
    EXPECT_EQ(driver_->queue(0).in_flight(), 0U);
    EXPECT_FALSE(driver_->queue(0).ring().broken());
    EXPECT_EQ(driver_->queue(0).counters().bad_used, 0U);
  }

  TestDirectory directory_;
  std::unique_ptr<BlkDriver> driver_;
  std::optional<vhost_user::FrontEnd::Inflight> inflight_;
  std::optional<vhost_user::FrontEnd> front_;
};
INSTANTIATE_TEST_SUITE_P(Rings, KillAnyRing,
                         testing::Values(RingKind{"split", false, true, false},
                                         RingKind{"split_direct", false, false, false},
                                         RingKind{"packed", true, true, false},
                                         RingKind{"packed_direct", true, false, false},
                                         RingKind{"packed_in_order", true, true, true}),
                         [](const auto& each) { return each.param.name; });

TEST_P(KillAnyRing, Row053_IdleRingGoesOnAfterACrashAndAfterAHangUp) {
  Backend backend(disk(""));
  connect();
  read_alone(150);  // beyond the ring's end
  backend.kill();
  backend.start(disk(""));
  connect_again();
  read_alone(1);  // a part that is taken over and hardly used
  backend.kill();
  backend.start(disk(""));
  connect_again();
  read_alone(170);
  // The back-end lives on, the front-end begins another session.
  front_.reset();
  connect_again();
  read_alone(150);
  // A stop is told, and the ring begins anew in the same region.
  ASSERT_TRUE(front_->get_vring_base(0));
  driver_->reset_queue(0);
  ASSERT_TRUE(front_->set_vring_base(0, driver_->initial_base()));
  ASSERT_TRUE(front_->set_vring_call(0, driver_->queue(0).call_fd()));
  ASSERT_TRUE(front_->set_vring_kick(0, driver_->queue(0).kick_fd()));
  read_alone(5);
  expect_nothing_odd();
}

// Requests overtake each other and others are taken all the while, when the kill comes.
TEST_P(KillAnyRing, Row053_EachRequestCompletesOnceWhateverTheKillInterrupts) {
  constexpr std::uint32_t kDepth = 32, kLives = 6, kReadsInALife = 300;
  const std::string slow = disk(",faults=delay=2ms@0,,delay=1ms@4096,,delay=300us@8192");
  Backend backend(slow);
  connect();
  BlkDriverQueue& queue = driver_->queue(0);
  std::minstd_rand random(GetParam().packed ? 7 : 11);
  std::array<std::optional<std::uint32_t>, kDepth> block_of{};  // by slot; none: not in flight
  const auto start = [&](std::uint32_t slot) {
    // Half of them are slow.
    const auto number = static_cast<std::uint32_t>(random());
    block_of[slot] = number % 2 == 0 ? number / 2 % 3 : number / 2 % kBlocks;
    read(*block_of[slot], slot);
  };
  const auto take = [&] {
    const BlkCompletion completion = await_completion(queue);
    ASSERT_LT(completion.token, kDepth) << "a request was lost";
    const auto slot = static_cast<std::uint32_t>(completion.token);
    ASSERT_TRUE(block_of[slot]) << "a request came twice";
    ASSERT_EQ(completion.status, spec::kBlkStatusOk);
    ASSERT_TRUE(holds(queue.buffer(slot).host, kBlock, *block_of[slot])) << "never served";
    block_of[slot].reset();
  };
  for (std::uint32_t slot = 0; slot < kDepth; ++slot) {
    start(slot);
  }
  queue.publish_and_kick();
  for (std::uint32_t life = 0; life < kLives; ++life) {
    // Not at the same point of each life.
    for (std::uint32_t i = 0; i < kReadsInALife + life * 7; ++i) {
      take();
      if (HasFatalFailure()) {
        return;
      }
      for (std::uint32_t slot = 0; slot < kDepth; ++slot) {
        if (!block_of[slot]) {
          start(slot);
        }
      }
      queue.publish_and_kick();
    }
    backend.kill();
    backend.start(slow);
    connect_again();
    if (HasFatalFailure()) {
      return;
    }
  }
  while (queue.in_flight() != 0) {
    take();
    if (HasFatalFailure()) {
      return;
    }
  }
  EXPECT_TRUE(std::ranges::none_of(block_of, [](const auto& each) { return each.has_value(); }));
  read_alone(10);
  expect_nothing_odd();
}

// What was in flight when the reset came is still noted as done, and then the region is void.
TEST_P(KillAnyRing, Row054_RegionIsVoidAfterAResetWithRequestsInFlight) {
  Backend backend(disk(",faults=delay=50ms@0"));
  connect();
  for (std::uint32_t slot = 0; slot < 8; ++slot) {
    read(0, slot);
  }
  read(1, 8);
  driver_->queue(0).publish_and_kick();
  if (!GetParam().in_order) {
    ASSERT_EQ(await_completion(driver_->queue(0)).token, 8U);  // so the others were taken
  }
  ASSERT_TRUE(driver_->front_end().reset_device());
  driver_->reset_queue(0);
  vhost_user::FrontEnd& front = driver_->front_end();
  hand_over(front, *driver_, *inflight_);
  read_alone(150);
  expect_nothing_odd();
}

// The guest was rebooted after its ring was started again (`started`), or before.
void expect_entries_are_dropped(bool started) {
  const TestDirectory directory;
  directory.image("a.img", 1 << 20);
  Backend backend(hanging(directory));
  BlkDriverOptions wanted{.socket_path = directory.file("a"), .patience = kLimit};
  wanted.start = false;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  auto inflight = driver->front_end().get_inflight_fd(1, 128);
  ASSERT_TRUE(inflight);
  ASSERT_TRUE(driver->front_end().set_inflight_fd(inflight->description, inflight->fd.get()));
  ASSERT_TRUE(driver->start_queue(0, driver->initial_base()));
  BlkDriverQueue& queue = driver->queue(0);
  for (std::uint32_t i = 0; i < 9; ++i) {
    submit(queue, spec::kBlkTypeIn, i < 8 ? 0 : kBlockSectors, i);
  }
  queue.publish_and_kick();
  ASSERT_EQ(await_completion(queue).token, 8U);
  backend.kill();
  backend.start(sane(directory));
  // Comes back with the region and the old rings; then the guest resets the device.
  driver->disconnect();
  auto session = vhost_user::FrontEnd::connect(directory.file("a"), kLimit);
  ASSERT_TRUE(session);
  ASSERT_TRUE(session->set_protocol_features(driver->negotiated().protocol_features | vhost_user::kProtocolResetDevice));
  ASSERT_TRUE(session->set_features(driver->negotiated().features));
  ASSERT_TRUE(session->set_mem_table(driver->memory_table()));
  ASSERT_TRUE(session->set_inflight_fd(inflight->description, inflight->fd.get()));
  const RingLayout layout = queue.ring().layout();  // a copy: reset_queue() makes a new ring
  const auto start = [&](std::uint32_t base) {
    ASSERT_TRUE(session->set_vring_num(0, layout.size));
    ASSERT_TRUE(session->set_vring_base(0, base));
    ASSERT_TRUE(session->set_vring_addr({.index = 0,
                                         .flags = 0,
                                         .descriptor = reinterpret_cast<std::uintptr_t>(layout.descriptor_area),
                                         .used = reinterpret_cast<std::uintptr_t>(layout.device_area),
                                         .available = reinterpret_cast<std::uintptr_t>(layout.driver_area),
                                         .log = 0}));
    ASSERT_TRUE(session->set_vring_call(0, queue.call_fd()));
    ASSERT_TRUE(session->set_vring_kick(0, queue.kick_fd()));
  };
  if (started) {
    start(1);  // not enabled
  }
  ASSERT_TRUE(session->reset_device());
  driver->reset_queue(0);
  ASSERT_TRUE(session->set_features(driver->negotiated().features));
  ASSERT_TRUE(session->set_inflight_fd(inflight->description, inflight->fd.get()));
  start(0);
  ASSERT_TRUE(session->set_vring_enable(0, true));
  for (std::uint32_t i = 0; i < 32; ++i) {
    ASSERT_EQ(transfer(queue, spec::kBlkTypeIn, kBlockSectors, i).token, i);
  }
  EXPECT_FALSE(queue.ring().broken());
  EXPECT_EQ(queue.counters().bad_used, 0U);
}

TEST(Kill, Row054_EntriesOfAGuestThatWasRebootedAreDropped) {
  for (const bool started : {true, false}) {
    SCOPED_TRACE(started);
    expect_entries_are_dropped(started);
  }
}

TEST(Kill, Row056_DeathDuringGetVringBaseIsAnError) {
  const TestDirectory directory;
  Backend backend("path=ram:1M,socket=" + directory.file("a") + ",faults=hang@0");
  const auto driver = connect_driver(BlkDriverOptions{.socket_path = directory.file("a"), .patience = kLimit});
  ASSERT_NE(driver, nullptr);
  submit(driver->queue(0), spec::kBlkTypeIn, 0, 0);
  submit(driver->queue(0), spec::kBlkTypeIn, kBlockSectors, 1);
  driver->queue(0).publish_and_kick();
  ASSERT_EQ(await_completion(driver->queue(0)).token, 1U);  // so the first one hangs
  std::future<Result<std::uint32_t>> base = std::async(std::launch::async, [&] { return driver->stop_queue(0); });
  // The ring takes nothing more once the stop has begun: a request that stays where it is says that the message was read
  // and reached the ring's worker. It is then waiting for the disk.
  ASSERT_TRUE(eventually([&] {
    submit(driver->queue(0), spec::kBlkTypeIn, kBlockSectors, 2);
    driver->queue(0).publish_and_kick();
    if (!eventually([&] { return driver->queue(0).has_completion(); }, Duration::milliseconds(200))) {
      return true;
    }
    EXPECT_EQ(await_completion(driver->queue(0)).token, 2U);
    return false;
  }));
  EXPECT_NE(base.wait_for(std::chrono::seconds(0)), std::future_status::ready) << "answered with a request in flight";
  backend.kill();
  EXPECT_FALSE(base.get());
}

TEST(Kill, Row052_EndOfTheHostHangsUpAndItsSuccessorServes) {
  const TestDirectory directory;
  const std::vector<DiskOptions> disks{test_disk(directory.image("a.img", 1 << 20), directory.file("a"), "a")};
  auto host = std::make_unique<TestHost>(HostOptions{}, disks);
  const auto driver = connect_driver(directory.file("a"));
  ASSERT_NE(driver, nullptr);
  ASSERT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  EXPECT_EQ(host->quit(), HostEnd::clean);
  EXPECT_TRUE(driver->peer_closed());
  submit(driver->queue(0), spec::kBlkTypeIn, 0, 0);  // while nobody is there
  driver->queue(0).publish_and_kick();
  host = std::make_unique<TestHost>(HostOptions{}, disks);
  ASSERT_TRUE(driver->reconnect());
  EXPECT_TRUE(await_ok(driver->queue(0), 1));
}

}  // namespace
}  // namespace ringway::conformance
