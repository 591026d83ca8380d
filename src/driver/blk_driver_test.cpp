#include "driver/blk_driver.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "driver/storage_daemon_peer.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

constexpr Duration kLimit = Duration::seconds(10);

// Waits for one completion; a token of ~0 says that none came.
BlkCompletion await(BlkDriverQueue& queue) {
  const Instant deadline = clock_now() + kLimit;
  BlkCompletion completion{.token = ~std::uint64_t{0}};
  while (queue.reap({&completion, 1}) == 0 && clock_now() < deadline) {
    static_cast<void>(queue.wait(deadline));
  }
  return completion;
}

TEST(SharedMemory, RegionsLieApartAndAreZeroed) {
  const std::array<std::size_t, 3> sizes{4096, 1, 10000};
  auto memory = SharedMemory::create(sizes, MemoryPages::small);
  ASSERT_TRUE(memory) << memory.error().message;
  ASSERT_EQ(memory->regions().size(), 3U);
  EXPECT_EQ(memory->regions()[2].bytes, 12288U);
  for (std::size_t i = 1; i < 3; ++i) {
    const auto& before = memory->regions()[i - 1];
    EXPECT_GT(memory->regions()[i].guest.value, before.guest.value + before.bytes);
  }
  const auto block = memory->allocate(100, 64, 2);
  ASSERT_TRUE(block);
  EXPECT_EQ(block->host[99], std::byte{0});
  EXPECT_EQ(block->guest.value - memory->regions()[2].guest.value,
            static_cast<std::uint64_t>(block->host - memory->regions()[2].host));
}

TEST(SharedMemory, RefusesWhatDoesNotFit) {
  const std::array<std::size_t, 1> sizes{4096};
  auto memory = SharedMemory::create(sizes, MemoryPages::small);
  ASSERT_TRUE(memory);
  EXPECT_TRUE(memory->allocate(4000, 1));
  EXPECT_FALSE(memory->allocate(97, 1));
  EXPECT_FALSE(memory->allocate(SIZE_MAX, 1));
  EXPECT_FALSE(memory->allocate(1, 1, 1));
}

TEST(BlkDriver, SaysWhatIsWrongWithItsOptions) {
  EXPECT_FALSE(BlkDriver::create({.socket_path = "/nowhere", .queues = 0}));
  EXPECT_FALSE(BlkDriver::create({.socket_path = "/nowhere", .queue_size = 1}));
  const auto absent = BlkDriver::create({.socket_path = "/nowhere/blk.sock", .patience = {}});
  ASSERT_FALSE(absent);
  EXPECT_NE(absent.error().message.find("/nowhere/blk.sock"), std::string::npos) << absent.error().message;
}

class BlkDriverInterop : public testing::Test {
 protected:
  void serve(std::uint64_t file_bytes, unsigned queues = 2, bool writable = true) {
    peer_ = StorageDaemonPeer::start(file_bytes, queues, writable);
    if (!peer_) {
      GTEST_SKIP() << StorageDaemonPeer::kMissing;
    }
  }
  std::unique_ptr<BlkDriver> connect(BlkDriverOptions options) {
    options.socket_path = peer_->socket_path();
    auto driver = BlkDriver::create(options);
    EXPECT_TRUE(driver) << (driver ? "" : driver.error().message);
    return driver ? std::move(*driver) : nullptr;
  }
  std::unique_ptr<StorageDaemonPeer> peer_;
};

TEST_F(BlkDriverInterop, ReadsWhatItWroteThroughRegionsAndSegments) {
  serve(16U << 20U);
  if (IsSkipped()) {
    return;
  }
  const auto driver = connect({.queues = 2, .segments_max = 4, .buffer_bytes = 8192, .data_regions = 3});
  ASSERT_TRUE(driver);
  EXPECT_EQ(driver->capacity_sectors(), (16U << 20U) / 512);
  EXPECT_EQ(driver->backend_pid().value_or(0), peer_->pid());
  for (std::uint32_t index = 0; index < 2; ++index) {
    BlkDriverQueue& queue = driver->queue(index);
    const SharedBlock out = queue.buffer(1), in = queue.buffer(2);
    for (std::size_t i = 0; i < 8192; ++i) {
      out.host[i] = static_cast<std::byte>(i * 7 + index);
    }
    const std::array<DriverBuffer, 2> from{DriverBuffer{out.guest, 512}, {GuestAddress{out.guest.value + 512}, 7680}};
    const std::array<DriverBuffer, 4> to{DriverBuffer{in.guest, 100},
                                         {GuestAddress{in.guest.value + 100}, 3996},
                                         {GuestAddress{in.guest.value + 4096}, 4095},
                                         {GuestAddress{in.guest.value + 8191}, 1}};
    ASSERT_TRUE(queue.submit({.type = spec::kBlkTypeOut, .sector = 16, .token = 77, .data = from, .ranges = {}}));
    queue.publish_and_kick();
    const BlkCompletion written = await(queue);
    EXPECT_EQ(written.token, 77U);
    EXPECT_EQ(written.status, spec::kBlkStatusOk);
    EXPECT_EQ(written.written_bytes, 1U);
    ASSERT_TRUE(queue.submit({.type = spec::kBlkTypeIn, .sector = 16, .token = 78, .data = to, .ranges = {}}));
    queue.publish_and_kick();
    const BlkCompletion read = await(queue);
    EXPECT_EQ(read.token, 78U);
    EXPECT_EQ(read.status, spec::kBlkStatusOk);
    EXPECT_EQ(read.written_bytes, 8193U);
    EXPECT_EQ(std::memcmp(out.host, in.host, 8192), 0);
  }
}

TEST_F(BlkDriverInterop, RangesFlushIdAndRefusals) {
  serve(16U << 20U);
  if (IsSkipped()) {
    return;
  }
  const auto driver = connect({});
  ASSERT_TRUE(driver);
  BlkDriverQueue& queue = driver->queue(0);
  const spec::BlkRange range{.sector = 8, .sectors = 8, .flags = 0};
  const DriverBuffer id{queue.buffer(0).guest, 20};
  const DriverBuffer data{queue.buffer(1).guest, 512};
  struct Case {
    BlkDriverRequest request;
    std::uint8_t status;
  };
  const Case cases[] = {
      {{.type = spec::kBlkTypeWriteZeroes, .data = {}, .ranges = {&range, 1}}, spec::kBlkStatusOk},
      {{.type = spec::kBlkTypeDiscard, .data = {}, .ranges = {&range, 1}}, spec::kBlkStatusOk},
      {{.type = spec::kBlkTypeFlush, .data = {}, .ranges = {}}, spec::kBlkStatusOk},
      {{.type = spec::kBlkTypeGetId, .data = {&id, 1}, .ranges = {}}, spec::kBlkStatusOk},
      {{.type = spec::kBlkTypeIn, .sector = 1U << 20U, .data = {&data, 1}, .ranges = {}}, spec::kBlkStatusIoErr},
      {{.type = 99, .data = {}, .ranges = {}}, spec::kBlkStatusUnsupported},
  };
  for (const Case& one : cases) {
    ASSERT_TRUE(queue.submit(one.request));
    queue.publish_and_kick();
    EXPECT_EQ(await(queue).status, one.status) << "type " << one.request.type;
  }
}

TEST_F(BlkDriverInterop, RefusesMoreThanItsSlotsAndGetsThemAllBack) {
  serve(0);
  if (IsSkipped()) {
    return;
  }
  const auto driver = connect({.queue_size = 64, .requests_per_queue = 8});
  ASSERT_TRUE(driver);
  BlkDriverQueue& queue = driver->queue(0);
  for (int round = 0; round < 100; ++round) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      const DriverBuffer data{queue.buffer(i).guest, 4096};
      ASSERT_TRUE(queue.submit({.token = i, .data = {&data, 1}, .ranges = {}}));
    }
    EXPECT_FALSE(queue.submit({.token = 8, .data = {}, .ranges = {}}));
    EXPECT_EQ(queue.in_flight(), 8U);
    queue.publish_and_kick();
    std::uint32_t tokens = 0;
    for (int i = 0; i < 8; ++i) {
      tokens |= 1U << (await(queue).token & 31U);
    }
    ASSERT_EQ(tokens, 0xffU);
  }
  EXPECT_EQ(queue.counters().bad_used, 0U);
  EXPECT_EQ(queue.in_flight(), 0U);
}

TEST_F(BlkDriverInterop, StopsAtTheExactBaseAndGoesOn) {
  serve(0);
  if (IsSkipped()) {
    return;
  }
  const auto driver = connect({});
  ASSERT_TRUE(driver);
  BlkDriverQueue& queue = driver->queue(0);
  const DriverBuffer data{queue.buffer(0).guest, 4096};
  for (std::uint32_t round = 1; round <= 3; ++round) {
    for (std::uint32_t i = 0; i < 10; ++i) {
      ASSERT_TRUE(queue.submit({.token = i, .data = {&data, 1}, .ranges = {}}));
      queue.publish_and_kick();
      ASSERT_EQ(await(queue).token, i);
    }
    const auto base = driver->stop_queue(0);
    ASSERT_TRUE(base) << base.error().message;
    EXPECT_EQ(*base, round * 10);
    ASSERT_TRUE(driver->start_queue(0, *base));
  }
}

TEST_F(BlkDriverInterop, ReconnectsAndResumesWhereTheRingStood) {
  serve(0);
  if (IsSkipped()) {
    return;
  }
  const auto driver = connect({});
  ASSERT_TRUE(driver);
  BlkDriverQueue& queue = driver->queue(0);
  const DriverBuffer data{queue.buffer(0).guest, 4096};
  for (std::uint32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(queue.submit({.token = i, .data = {&data, 1}, .ranges = {}}));
    queue.publish_and_kick();
    ASSERT_EQ(await(queue).token, i);
    if (i % 5 == 4) {
      const auto again = driver->reconnect(i == 9 ? BlkDriver::Rings::reset : BlkDriver::Rings::resume);
      ASSERT_TRUE(again) << again.error().message;
    }
  }
}

TEST_F(BlkDriverInterop, WaitEndsAtItsDeadlineAndNoticesADeadPeer) {
  serve(0);
  if (IsSkipped()) {
    return;
  }
  const auto driver = connect({});
  ASSERT_TRUE(driver);
  BlkDriverQueue& queue = driver->queue(0);
  const Instant deadline = clock_now() + Duration::milliseconds(20);
  while (queue.wait(deadline)) {  // the call that some back-ends send when a ring starts
  }
  EXPECT_GE(clock_now(), deadline);
  EXPECT_FALSE(driver->peer_closed());
  peer_->stop();
  EXPECT_TRUE(driver->peer_closed());
}

TEST_F(BlkDriverInterop, WaitAnyWakesForEitherQueue) {
  serve(0);
  if (IsSkipped()) {
    return;
  }
  const auto driver = connect({.queues = 2});
  ASSERT_TRUE(driver);
  const std::array<DriverQueue*, 2> queues{&driver->queue(0), &driver->queue(1)};
  for (std::uint64_t round = 0; round < 50; ++round) {
    BlkDriverQueue& busy = driver->queue(round % 2);
    const DriverBuffer data{busy.buffer(0).guest, 4096};
    ASSERT_TRUE(busy.submit({.token = round, .data = {&data, 1}, .ranges = {}}));
    busy.publish_and_kick();
    BlkCompletion completion;
    const Instant deadline = clock_now() + kLimit;
    while (busy.reap({&completion, 1}) == 0 && clock_now() < deadline) {
      static_cast<void>(BlkDriverQueue::wait_any(queues, deadline));
    }
    ASSERT_EQ(completion.token, round);
  }
}

}  // namespace
}  // namespace ringway
