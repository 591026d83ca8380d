// Requests, configuration, memory, lifecycle and idling of disks, as a driver sees them.
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>

#include <atomic>
#include <map>

#include "base/prng.hpp"
#include "tests/conformance/support.hpp"

namespace ringway::conformance {
namespace {

// Row 15, through the guest-visible path. Stand-in: the file store's short transfers are made below its channel.
TEST(Disk, Row015_ShortTransfersAreInvisible) {
  const TestDirectory directory;
  for (const BlkEngine engine : {BlkEngine::io_uring, BlkEngine::threads}) {
    DiskOptions disk = test_disk(directory.image("a.img", 16 << 20), directory.file("a"), "a");
    disk.engine = engine;
    disk.faults = "short=1/2,eagain=1/10";
    TestHost host({}, {disk});
    if (!host.started()) {
      EXPECT_EQ(engine, BlkEngine::io_uring) << host.started().error().message;
      continue;
    }
    BlkDriverOptions wanted{.socket_path = directory.file("a")};
    wanted.buffer_bytes = 65536;
    wanted.requests_per_queue = 16;
    const auto driver = connect_driver(wanted);
    ASSERT_NE(driver, nullptr);
    BlkDriverQueue& queue = driver->queue(0);
    for (const std::uint32_t type : {spec::kBlkTypeOut, spec::kBlkTypeIn}) {
      for (std::uint32_t i = 0; i < 16; ++i) {
        if (type == spec::kBlkTypeOut) {
          fill(queue.buffer(i).host, 65536, i);
        } else {
          std::memset(queue.buffer(i).host, 0, 65536);
        }
        submit(queue, type, std::uint64_t{i} * 128, i, 65536);
      }
      queue.publish_and_kick();
      ASSERT_TRUE(await_ok(queue, 16));
    }
    for (std::uint32_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(holds(queue.buffer(i).host, 65536, i)) << i;
    }
  }
}

TEST(Disk, Row018_UsedLengthCountsWhatWasWritten) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a")});
  const auto driver = connect_driver(directory.file("a"));
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  EXPECT_EQ(transfer(queue, spec::kBlkTypeIn, 0).written_bytes, kBlock + 1);
  EXPECT_EQ(transfer(queue, spec::kBlkTypeOut, 0).written_bytes, 1U);
  EXPECT_EQ(transfer(queue, spec::kBlkTypeFlush, 0).written_bytes, 1U);
  EXPECT_EQ(transfer(queue, spec::kBlkTypeGetId, 0, 0, 20).written_bytes, 21U);
  const BlkCompletion beyond = transfer(queue, spec::kBlkTypeOut, 1 << 20);
  EXPECT_EQ(beyond.status, spec::kBlkStatusIoErr);
  EXPECT_EQ(beyond.written_bytes, 1U);
}

TEST(Disk, Row025_FlushIsNeverAnErrorWhateverWasNegotiated) {
  const TestDirectory directory;
  DiskOptions read_only = test_disk(directory.image("ro.img", 1 << 20), directory.file("ro"), "ro");
  read_only.read_only = true;
  TestHost host({}, {test_disk("ram:1M", directory.file("rw"), "rw"), read_only});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  for (const char* socket : {"rw", "ro"}) {
    for (const std::uint64_t features :
         {kBlkDriverFeatures, kBlkDriverFeatures & ~(spec::kBlkFlush | spec::kBlkConfigWce)}) {
      const auto driver = connect_driver(BlkDriverOptions{.socket_path = directory.file(socket), .features = features});
      ASSERT_NE(driver, nullptr);
      EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeFlush, 0).status, spec::kBlkStatusOk);
    }
  }
}

// Stand-in for dm-delay: the fault decorator delays flushes.
TEST(Disk, Row026_SlowFlushDelaysNoNeighbour) {
  const TestDirectory directory;
  DiskOptions slow = test_disk("ram:1M", directory.file("a"), "a");
  slow.faults = "delay=500ms:flush";
  TestHost host({}, {slow, test_disk("ram:1M", directory.file("b"), "b")});
  const auto driver = connect_driver(directory.file("a"));
  const auto other = connect_driver(directory.file("b"));
  ASSERT_TRUE(driver && other);
  submit(driver->queue(0), spec::kBlkTypeFlush, 0, 0);
  driver->queue(0).publish_and_kick();
  std::size_t reads = 0;
  while (!driver->queue(0).has_completion()) {
    ASSERT_EQ(transfer(other->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
    ++reads;
  }
  EXPECT_GT(reads, 20U);  // a blocked worker would serve one
  EXPECT_TRUE(await_ok(driver->queue(0), 1));
}

TEST(Disk, Row036_ResizeIsSeenInEveryState) {
  const TestDirectory directory;
  TestHost host({}, {test_disk(directory.image("a.img", 1 << 20), directory.file("a"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto resize = [&](std::uint64_t mebibytes) { EXPECT_TRUE(host.resize("a", mebibytes << 20)); };
  constexpr std::uint64_t kSectorsPerMebibyte = 2048;
  resize(2);  // (a) nobody there
  auto driver = connect_driver(BlkDriverOptions{.socket_path = directory.file("a"), .start = false});
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(driver->capacity_sectors(), 2 * kSectorsPerMebibyte);
  resize(3);  // (b) a front-end, no running ring
  ASSERT_TRUE(driver->wait_config_change(kLimit));
  EXPECT_EQ(driver->capacity_sectors(), 3 * kSectorsPerMebibyte);
  ASSERT_TRUE(driver->start_queue(0, driver->initial_base()));
  BlkDriverQueue& queue = driver->queue(0);
  EXPECT_EQ(transfer(queue, spec::kBlkTypeIn, 3 * kSectorsPerMebibyte).status, spec::kBlkStatusIoErr);
  resize(4);  // (c) running
  ASSERT_TRUE(driver->wait_config_change(kLimit));
  EXPECT_EQ(driver->capacity_sectors(), 4 * kSectorsPerMebibyte);
  EXPECT_EQ(transfer(queue, spec::kBlkTypeIn, 4 * kSectorsPerMebibyte - 8).status, spec::kBlkStatusOk);
  resize(1);
  ASSERT_TRUE(driver->wait_config_change(kLimit));
  EXPECT_EQ(transfer(queue, spec::kBlkTypeIn, 2 * kSectorsPerMebibyte).status, spec::kBlkStatusIoErr);
  driver.reset();
  // (d) no channel to be told by
  driver =
      connect_driver(BlkDriverOptions{.socket_path = directory.file("a"),
                                      .protocol_features = kBlkDriverProtocolFeatures & ~vhost_user::kProtocolBackendReq});
  ASSERT_NE(driver, nullptr);
  resize(5);
  ASSERT_TRUE(driver->read_config());
  EXPECT_EQ(driver->capacity_sectors(), 5 * kSectorsPerMebibyte);
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 4 * kSectorsPerMebibyte).status, spec::kBlkStatusOk);
}

TEST(Disk, Row039_LegacyBitsAreToleratedAndRow040_UnknownOnesRefused) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a")});
  const auto driver = connect_driver(BlkDriverOptions{.socket_path = directory.file("a"), .start = false});
  ASSERT_NE(driver, nullptr);
  const std::uint64_t features = driver->negotiated().features;
  EXPECT_FALSE(driver->front_end().set_features(features | std::uint64_t{1} << 50U));
  for (const unsigned bit : {24U, 26U, 27U}) {
    EXPECT_TRUE(driver->front_end().set_features(features | std::uint64_t{1} << bit)) << bit;
  }
  ASSERT_TRUE(driver->start_queue(0, driver->initial_base()));
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
}

TEST(Disk, Row044_ThreeHundredSlots) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:4M", directory.file("a"), "a")});
  BlkDriverOptions wanted{.socket_path = directory.file("a")};
  wanted.requests_per_queue = 300;
  wanted.queue_size = 512;
  wanted.data_regions = 300;
  wanted.memory_slots = true;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  write_pattern(queue, 300);
  for (std::uint32_t i = 0; i < 300; ++i) {
    submit(queue, spec::kBlkTypeIn, i * kBlockSectors, i);
  }
  queue.publish_and_kick();
  ASSERT_TRUE(await_ok(queue, 300));
  for (std::uint32_t i = 0; i < 300; ++i) {
    EXPECT_TRUE(holds(queue.buffer(i).host, kBlock, i)) << i;
  }
}

TEST(Disk, Row045_HotplugUnderVerifyingLoad) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a")});
  BlkDriverOptions wanted{.socket_path = directory.file("a")};
  wanted.data_regions = 4;
  wanted.memory_slots = true;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  write_pattern(queue, 64);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> bad{0}, reads{0};
  std::thread load([&] {
    // Slots 0, 4, 8 … lie in the first data region, which stays.
    for (std::uint32_t i = 0; !stop; i = (i + 1) % 64) {
      const BlkCompletion completion = transfer(queue, spec::kBlkTypeIn, i * kBlockSectors, 4 * (i % 8));
      bad += completion.status != spec::kBlkStatusOk || !holds(queue.buffer(4 * (i % 8)).host, kBlock, i) ? 1 : 0;
      ++reads;
    }
  });
  const auto table = driver->memory_table();
  for (int i = 0; i < 300; ++i) {
    const auto& region = table[2 + static_cast<std::size_t>(i) % 3];
    ASSERT_TRUE(driver->front_end().rem_mem_reg(region));
    ASSERT_TRUE(driver->front_end().add_mem_reg(region));
  }
  ASSERT_TRUE(eventually([&] { return reads > 100; }));
  stop = true;
  load.join();
  EXPECT_EQ(bad, 0U);
  // What was plugged last serves.
  for (std::uint32_t slot = 0; slot < 8; ++slot) {
    EXPECT_EQ(transfer(queue, spec::kBlkTypeIn, slot * kBlockSectors, slot).status, spec::kBlkStatusOk);
    EXPECT_TRUE(holds(queue.buffer(slot).host, kBlock, slot));
  }
  EXPECT_EQ(stats_of(host, "a").queues[0].ring_faults, 0U);
}

TEST(Disk, Row047_RegionOfARingIsTakenAwayAndComesBack) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a")});
  BlkDriverOptions wanted{.socket_path = directory.file("a")};
  wanted.memory_slots = true;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(transfer(queue, spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  }
  const auto region = driver->memory_table()[0];
  ASSERT_TRUE(driver->front_end().rem_mem_reg(region));
  std::uint64_t error = 0;
  EXPECT_TRUE(eventually([&] { return ::read(queue.error_fd(), &error, sizeof error) == sizeof error; }));
  ASSERT_TRUE(driver->front_end().add_mem_reg(region));
  const Result<std::uint32_t> base = driver->stop_queue(0);
  ASSERT_TRUE(base);
  EXPECT_EQ(*base, 5U) << "where it stood, else requests are lost or served twice";
  ASSERT_TRUE(driver->start_queue(0, *base));
  EXPECT_EQ(transfer(queue, spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
}

TEST(Disk, Row047_RebootWithFewerQueuesLeavesTheOthersStopped) {
  const TestDirectory directory;
  DiskOptions disk = test_disk("ram:1M", directory.file("a"), "a");
  disk.queues = 8;
  TestHost host({}, {disk});
  const auto driver = connect_driver(BlkDriverOptions{.socket_path = directory.file("a"), .queues = 8});
  ASSERT_NE(driver, nullptr);
  for (std::uint32_t i = 0; i < 8; ++i) {
    ASSERT_EQ(transfer(driver->queue(i), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
    ASSERT_TRUE(driver->stop_queue(i));
    driver->reset_queue(i);
  }
  ASSERT_TRUE(driver->start_queue(0, driver->initial_base()));
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  const BlkDeviceStats stats = stats_of(host, "a");
  for (std::uint32_t i = 1; i < 8; ++i) {
    EXPECT_FALSE(stats.queues[i].running) << i;
  }
}

TEST(Disk, Row062_StopAndStartAtTheSameBaseLosesAndRepeatsNothing) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a")});
  for (const bool packed : {false, true}) {
    const auto driver = connect_driver(BlkDriverOptions{.socket_path = directory.file("a"), .packed = packed});
    ASSERT_NE(driver, nullptr);
    BlkDriverQueue& queue = driver->queue(0);
    for (int round = 0; round < 50; ++round) {
      for (std::uint32_t i = 0; i < 7; ++i) {
        submit(queue, spec::kBlkTypeIn, 0, i);
      }
      queue.publish_and_kick();
      const Result<std::uint32_t> base = driver->stop_queue(0);
      ASSERT_TRUE(base);
      ASSERT_TRUE(driver->start_queue(0, *base));
      queue.kick();
      ASSERT_TRUE(await_ok(queue, 7));
    }
    EXPECT_EQ(queue.in_flight(), 0U);
    EXPECT_EQ(queue.counters().bad_used, 0U);
  }
}

TEST(Disk, Row060_BackingThatIsGoneIsAnErrorNotAnEnd) {
  const TestDirectory directory;
  const std::string image = directory.image("a.img", 1 << 20);
  TestHost host({}, {test_disk(image, directory.file("a"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  std::filesystem::resize_file(image, 0);  // stand-in for a removed device: every access fails or finds nothing
  static_cast<void>(host.resize("a", 0));
  std::filesystem::remove(image);
  const auto driver = connect_driver(directory.file("a"));
  ASSERT_NE(driver, nullptr);
  EXPECT_NE(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, kStatusUntouched);
}

TEST(Disk, Row014_AttachAndDetachUnderLoadLeavesAnIdleProcess) {
  const TestDirectory directory;
  HostOptions options;
  options.workers.workers = 2;
  std::vector<DiskOptions> disks;
  for (int i = 0; i < 64; ++i) {
    disks.push_back(test_disk("ram:1M", directory.file(std::to_string(i)), "d" + std::to_string(i)));
    disks.back().queues = 2;
  }
  TestHost host(options, disks);
  constexpr int kRounds = kTimeIsOurs ? 1000 : 200;
  for (int round = 0; round < kRounds; ++round) {
    const auto driver =
        connect_driver(BlkDriverOptions{.socket_path = directory.file(std::to_string(round % 64)), .queues = 2});
    ASSERT_NE(driver, nullptr);
    for (std::uint32_t i = 0; i < 16; ++i) {
      submit(driver->queue(0), spec::kBlkTypeIn, 0, i);
      submit(driver->queue(1), spec::kBlkTypeIn, 0, i);
    }
    driver->queue(0).publish_and_kick();
    driver->queue(1).publish_and_kick();
    // Gone at any moment of that.
  }
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(eventually([&] { return !connected(host, "d" + std::to_string(i)); }));
  }
  // One that stays. It has nothing to do, and so nobody has: neither is it called, nor does a worker spin.
  const auto last = connect_driver(BlkDriverOptions{.socket_path = directory.file("0"), .queues = 2});
  ASSERT_NE(last, nullptr);
  std::array<pollfd, 2> calls{};
  for (std::uint32_t i = 0; i < 2; ++i) {
    calls[i] = {.fd = last->queue(i).call_fd(), .events = POLLIN, .revents = 0};
    ASSERT_TRUE(eventually([&] { return last->queue(i).take_calls() > 0; }));  // the one that each start owes
  }
  const auto cpu = [&] {
    std::uint64_t sum = 0;
    for (const WorkerStats& worker : host.call([](Host& h) { return h.worker_stats(); })) {
      sum += worker.cpu_ns;
    }
    return sum;
  };
  const std::uint64_t before = cpu();
  const Instant began = clock_now();
  EXPECT_EQ(::poll(calls.data(), calls.size(), 1000), 0) << "a call without a request";
  EXPECT_LT(static_cast<double>(cpu() - before), 0.01 * static_cast<double>((clock_now() - began).ns));
}

TEST(Disk, Row065_QueuesOfOneDiskAreDealtToAllWorkers) {
  const TestDirectory directory;
  DiskOptions disk = test_disk("null:1M", directory.file("a"), "a");
  disk.queues = 8;
  HostOptions options;
  options.workers.workers = 2;
  TestHost host(options, {disk});
  const auto driver = connect_driver(BlkDriverOptions{.socket_path = directory.file("a"), .queues = 8});
  ASSERT_NE(driver, nullptr);
  std::map<std::uint32_t, int> of_worker;
  for (std::uint32_t i = 0; i < 8; ++i) {
    ASSERT_EQ(transfer(driver->queue(i), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  }
  for (const auto& queue : stats_of(host, "a").queues) {
    ++of_worker[queue.worker];
    EXPECT_EQ(queue.requests[static_cast<std::size_t>(BlkOpcode::in)], 1U);
  }
  EXPECT_EQ(of_worker, (std::map<std::uint32_t, int>{{0, 4}, {1, 4}}));
}

TEST(Disk, WriteThroughIsSwitchedByTheConfiguration) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a")});
  const auto driver = connect_driver(directory.file("a"));
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->negotiated().has(spec::kBlkConfigWce));
  EXPECT_EQ(driver->config().writeback, 1);
  const std::byte off{0};
  ASSERT_TRUE(driver->front_end().set_config(offsetof(spec::BlkConfig, writeback), {&off, 1}));
  ASSERT_TRUE(driver->read_config());
  EXPECT_EQ(driver->config().writeback, 0);
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeOut, 0).status, spec::kBlkStatusOk);
  const std::byte two{2};
  EXPECT_FALSE(driver->front_end().set_config(offsetof(spec::BlkConfig, writeback), {&two, 1}));
}

// How much of a file the kernel still owes to the disk (cachestat, Linux 6.5). Nothing where it can't be told.
std::optional<std::uint64_t> unwritten_pages(int fd) {
  constexpr long kCachestat = 451;  // the same number on all architectures; the C library has no name for it yet
  struct {
    std::uint64_t offset = 0, bytes = 0;  // the whole file
  } range;
  struct {
    std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } pages{};
  if (::syscall(kCachestat, fd, &range, &pages, 0) != 0) {
    return std::nullopt;
  }
  return pages.dirty + pages.writeback;
}

// A disk that is written through has each write on its medium when the guest sees the status: no page of the file waits for
// the kernel's write-back then. With the write cache on, pages do wait, or this test would tell nothing.
class WriteThrough : public testing::TestWithParam<BlkEngine> {};
INSTANTIATE_TEST_SUITE_P(Engines, WriteThrough, testing::Values(BlkEngine::io_uring, BlkEngine::threads),
                         [](const auto& each) { return each.param == BlkEngine::io_uring ? "io_uring" : "threads"; });

TEST_P(WriteThrough, WritesAreOnTheDiskBeforeTheirStatus) {
  const TestDirectory directory;
  DiskOptions disk = test_disk(directory.image("a.img", 4 << 20), directory.file("a"), "a");
  disk.engine = GetParam();
  disk.direct = false;
  TestHost host({}, {disk});
  if (!host.started()) {
    ASSERT_EQ(GetParam(), BlkEngine::io_uring) << host.started().error().message;
    GTEST_SKIP() << host.started().error().message;
  }
  const UniqueFd image(::open(directory.file("a.img").c_str(), O_RDONLY | O_CLOEXEC));
  if (!unwritten_pages(image.get())) {
    GTEST_SKIP() << "this kernel doesn't tell which pages of a file are written (cachestat)";
  }
  std::uint64_t block = 0;
  const auto write_leaves = [&](BlkDriver& driver) {
    block = (block + 1) % 1024;
    fill(driver.queue(0).buffer(0).host, kBlock, block);
    EXPECT_EQ(transfer(driver.queue(0), spec::kBlkTypeOut, block * kBlockSectors).status, spec::kBlkStatusOk);
    return unwritten_pages(image.get()).value_or(~std::uint64_t{0});
  };
  const auto flush = [&](BlkDriver& driver) {
    EXPECT_EQ(transfer(driver.queue(0), spec::kBlkTypeFlush, 0).status, spec::kBlkStatusOk);
    return unwritten_pages(image.get()).value_or(~std::uint64_t{0});
  };
  auto driver = connect_driver(directory.file("a"));
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->negotiated().has(spec::kBlkConfigWce | spec::kBlkFlush));
  if (flush(*driver) != 0) {
    GTEST_SKIP() << "the file system of " << directory.file("a.img") << " has no disk behind it";
  }
  // The kernel may write back at any time; not each time.
  const auto cached = [&] { return eventually([&] { return write_leaves(*driver) > 0; }); };
  EXPECT_TRUE(cached());
  EXPECT_EQ(flush(*driver), 0U);
  const auto set_write_cache = [&](std::uint8_t on) {
    const std::byte value{on};
    return driver->front_end().set_config(offsetof(spec::BlkConfig, writeback), {&value, 1}).has_value();
  };
  ASSERT_TRUE(set_write_cache(0));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(write_leaves(*driver), 0U) << "write " << i;
  }
  ASSERT_TRUE(set_write_cache(1));
  EXPECT_TRUE(cached());
  EXPECT_EQ(flush(*driver), 0U);
  driver.reset();
  // A driver that can neither flush nor switch the cache relies on every write.
  driver = connect_driver(BlkDriverOptions{.socket_path = directory.file("a"),
                                           .features = kBlkDriverFeatures & ~(spec::kBlkFlush | spec::kBlkConfigWce)});
  ASSERT_NE(driver, nullptr);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(write_leaves(*driver), 0U) << "write " << i << " of a driver without FLUSH";
  }
}

}  // namespace
}  // namespace ringway::conformance
