// Row 48: guest memory that is one piece to the guest and several to us. And guest memory that is registered with io_uring.
#include <gmock/gmock.h>

#include <atomic>

#include "tests/conformance/support.hpp"

namespace ringway::conformance {
namespace {

struct Edges {
  const char* name;
  bool packed;
  bool slots;  // ADD_MEM_REG instead of one table
};

void PrintTo(const Edges& each, std::ostream* out) {
  *out << each.name;
}

// Four regions of 16 KiB that follow each other in the guest's addresses, in the opposite order of how they were made, so
// that what follows a region where it is mapped is never what the guest means.
class RegionEdges : public testing::TestWithParam<Edges> {
 protected:
  static constexpr std::uint64_t kGuest = std::uint64_t{1} << 40U;
  static constexpr std::size_t kRegions = 4, kRegionBytes = 16384, kBytes = kRegions * kRegionBytes;

  void open(const std::string& path) {
    const std::string socket = directory_.file("a" + std::to_string(++serial_));
    host_ = std::make_unique<TestHost>(HostOptions{}, std::vector{test_disk(path, socket, "a")});
    ASSERT_TRUE(host_->started()) << host_->started().error().message;
    BlkDriverOptions wanted{.socket_path = socket, .packed = GetParam().packed};
    wanted.requests_per_queue = kRegions;
    wanted.buffer_bytes = kRegionBytes;
    wanted.data_regions = kRegions;
    wanted.segments_max = 4;
    wanted.memory_slots = GetParam().slots;
    wanted.start = false;
    driver_ = connect_driver(wanted);
    ASSERT_NE(driver_, nullptr);
    const auto old_table = driver_->memory_table();
    ASSERT_EQ(old_table.size(), 1 + kRegions);
    auto table = old_table;
    for (std::size_t i = 0; i < kRegions; ++i) {
      ASSERT_EQ(table[1 + i].bytes, kRegionBytes);
      table[1 + i].guest_address = kGuest + (kRegions - 1 - i) * kRegionBytes;
    }
    if (GetParam().slots) {
      for (std::size_t i = 1; i <= kRegions; ++i) {
        ASSERT_TRUE(driver_->front_end().rem_mem_reg(old_table[i]));
        ASSERT_TRUE(driver_->front_end().add_mem_reg(table[i]));
      }
    } else {
      ASSERT_TRUE(driver_->front_end().set_mem_table(table));
    }
    ASSERT_TRUE(driver_->start_queue(0, driver_->initial_base()));
  }

  // The four regions as the guest sees them.
  [[nodiscard]] std::byte& at(std::size_t offset) const {
    return driver_->memory().regions()[kRegions - offset / kRegionBytes].host[offset % kRegionBytes];
  }
  void put(std::size_t offset, std::span<const std::byte> bytes) const {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      at(offset + i) = bytes[i];
    }
  }
  [[nodiscard]] std::vector<std::byte> all() const {
    std::vector<std::byte> bytes(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) {
      bytes[i] = at(i);
    }
    return bytes;
  }
  static DriverBuffer buffer(std::size_t offset, std::size_t bytes, bool device_writable) {
    return {GuestAddress{kGuest + offset}, static_cast<std::uint32_t>(bytes), device_writable};
  }
  BlkCompletion serve(std::span<const DriverBuffer> chain) {
    EXPECT_TRUE(driver_->queue(0).submit_chain(chain, 7));
    driver_->queue(0).publish_and_kick();
    const BlkCompletion completion = await_completion(driver_->queue(0));
    EXPECT_EQ(completion.token, 7U);
    return completion;
  }
  void header(std::size_t offset, std::uint32_t type, std::uint64_t sector) const {
    const spec::BlkRequestHeader header{.type = type, .reserved = 0, .sector = sector};
    put(offset, std::as_bytes(std::span(&header, 1)));
  }

  const TestDirectory directory_;
  int serial_ = 0;
  std::unique_ptr<TestHost> host_;
  std::unique_ptr<BlkDriver> driver_;
};
INSTANTIATE_TEST_SUITE_P(Tables, RegionEdges,
                         testing::Values(Edges{"split_table", false, false}, Edges{"split_slots", false, true},
                                         Edges{"packed_table", true, false}, Edges{"packed_slots", true, true}),
                         [](const auto& each) { return each.param.name; });

TEST_P(RegionEdges, Row048_RequestsOverRegionEdgesAreSplitRight) {
  // The first edge lies in the header, the second in the data, the third between data and status, which are one descriptor.
  constexpr std::size_t kHeader = kRegionBytes - 7, kStatus = 3 * kRegionBytes;
  struct Data {
    std::size_t offset, bytes;
  };
  for (const std::string& path : {std::string("ram:1M"), directory_.image("a.img", 1 << 20)}) {
    ASSERT_NO_FATAL_FAILURE(open(path));
    // Aligned as for direct I/O, over one and over two edges; and at odd places, as no disk likes it.
    for (const Data& data : {Data{2 * kRegionBytes - 4096, 8192}, Data{2 * kRegionBytes - 512, kRegionBytes + 512},
                             Data{2 * kRegionBytes - 99, 4096}, Data{2 * kRegionBytes - 1, kRegionBytes + 1 - 2 * 512},
                             Data{3 * kRegionBytes - 512, 512}}) {
      SCOPED_TRACE(path + ": data of " + std::to_string(data.bytes) + " at " + std::to_string(data.offset));
      const std::size_t bytes = data.bytes / 512 * 512;
      for (std::size_t i = 0; i < kBytes; ++i) {
        at(i) = static_cast<std::byte>(i * 7 + i / 251);
      }
      const std::vector<std::byte> original = all();
      const bool beside_status = data.offset + bytes == kStatus;
      const std::size_t status = kStatus + (beside_status ? 0 : kRegionBytes - 1);
      // Out, and nothing but the status is written.
      header(kHeader, spec::kBlkTypeOut, 8);
      const std::vector<std::byte> before_out = all();
      ASSERT_EQ(serve(std::array{buffer(kHeader, 16, false), buffer(data.offset, bytes, false), buffer(status, 1, true)})
                    .written_bytes,
                1U);
      ASSERT_EQ(at(status), std::byte{spec::kBlkStatusOk});
      std::vector<std::byte> expected = before_out;
      expected[status] = std::byte{spec::kBlkStatusOk};
      ASSERT_TRUE(all() == expected);
      // And back into memory that holds something else.
      for (std::size_t i = 0; i < kBytes; ++i) {
        at(i) = std::byte{0x5c};
      }
      header(kHeader, spec::kBlkTypeIn, 8);
      expected = all();
      std::copy_n(original.begin() + static_cast<std::ptrdiff_t>(data.offset), bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(data.offset));
      expected[status] = std::byte{spec::kBlkStatusOk};
      std::vector<DriverBuffer> chain{buffer(kHeader, 16, false)};
      if (beside_status) {
        chain.push_back(buffer(data.offset, bytes + 1, true));
      } else {
        chain.push_back(buffer(data.offset, bytes, true));
        chain.push_back(buffer(status, 1, true));
      }
      ASSERT_EQ(serve(chain).written_bytes, bytes + 1);
      ASSERT_TRUE(all() == expected) << "what was read, or a byte beside it, is wrong";
    }
  }
}

// A buffer that begins in the last region and ends in the hole behind it.
TEST_P(RegionEdges, Row048_BufferIntoAHoleIsAnErrorAndTouchesNothing) {
  for (const std::string& path : {std::string("ram:1M"), directory_.image("a.img", 1 << 20)}) {
    ASSERT_NO_FATAL_FAILURE(open(path));
    for (const std::uint32_t type : {spec::kBlkTypeIn, spec::kBlkTypeOut}) {
      SCOPED_TRACE(path + ", type " + std::to_string(type));
      for (std::size_t i = 0; i < kBytes; ++i) {
        at(i) = std::byte{0x33};
      }
      header(0, type, 0);
      std::vector<std::byte> expected = all();
      static_cast<void>(serve(
          std::array{buffer(0, 16, false), buffer(kBytes - 512, 1024, type == spec::kBlkTypeIn), buffer(64, 1, true)}));
      EXPECT_NE(at(64), std::byte{spec::kBlkStatusOk});
      expected[64] = at(64);
      EXPECT_TRUE(all() == expected);
      // The next request is served.
      header(0, spec::kBlkTypeFlush, 0);
      static_cast<void>(serve(std::array{buffer(0, 16, false), buffer(64, 1, true)}));
      EXPECT_EQ(at(64), std::byte{spec::kBlkStatusOk});
    }
  }
}

// --- registered=on ---

bool workers_have_uring() {
  TestHost host;
  return host.started() && host.call([](Host& h) { return h.workers().has_uring(); });
}

class Registered : public testing::TestWithParam<bool> {
 protected:
  static constexpr std::uint32_t kDepth = 16, kBytes = 16384;
  static constexpr std::uint64_t kSectors = kBytes / spec::kSectorBytes;

  void SetUp() override {
    if (!workers_have_uring()) {
      GTEST_SKIP() << "no io_uring here";
    }
    DiskOptions disk = test_disk(directory_.image("a.img", std::uintmax_t{kDepth} * kBytes), directory_.file("a.sock"), "a");
    disk.engine = BlkEngine::io_uring;
    disk.registered = true;
    host_ = std::make_unique<TestHost>(HostOptions{}, std::vector{disk});
    ASSERT_TRUE(host_->started()) << host_->started().error().message;
    BlkDriverOptions wanted{.socket_path = disk.socket, .packed = GetParam()};
    wanted.requests_per_queue = kDepth;
    wanted.buffer_bytes = kBytes;
    wanted.data_regions = 2;
    wanted.segments_max = 2;
    driver_ = connect_driver(wanted);
    ASSERT_NE(driver_, nullptr);
    ASSERT_EQ(driver_->negotiated().ring.packed, GetParam());
  }
  [[nodiscard]] std::uint64_t registered() { return stats_of(*host_, "a").store.registered; }
  // Block `slot`, from or to the two halves of the buffer `slot` in the wrong order: two segments.
  void submit_swapped(BlkDriverQueue& queue, std::uint32_t type, std::uint32_t slot) {
    const GuestAddress first = queue.buffer(slot).guest;
    const std::array data{DriverBuffer{{first.value + kBytes / 2}, kBytes / 2, true}, DriverBuffer{first, kBytes / 2, true}};
    ASSERT_TRUE(queue.submit({.type = type, .sector = slot * kSectors, .token = slot, .data = data, .ranges = {}}));
  }
  // Until both regions with data are registered: their pages are prepared beside the requests.
  void await_registered() {
    ASSERT_TRUE(eventually([&] {
      const std::uint64_t before = registered();
      for (const std::uint32_t slot : {0U, 1U}) {
        EXPECT_EQ(transfer(driver_->queue(0), spec::kBlkTypeIn, 0, slot, kBytes).status, spec::kBlkStatusOk);
      }
      return registered() == before + 2;
    }));
  }

  const TestDirectory directory_;
  std::unique_ptr<TestHost> host_;
  std::unique_ptr<BlkDriver> driver_;
};
INSTANTIATE_TEST_SUITE_P(Rings, Registered, testing::Bool(),
                         [](const auto& each) { return each.param ? "packed" : "split"; });

TEST_P(Registered, DataIsRightAndGoesThroughRegisteredMemory) {
  ASSERT_NO_FATAL_FAILURE(await_registered());
  BlkDriverQueue& queue = driver_->queue(0);
  const std::uint64_t before = registered();
  for (std::uint32_t i = 0; i < kDepth; ++i) {
    fill(queue.buffer(i).host, kBytes, i);
    submit(queue, spec::kBlkTypeOut, i * kSectors, i, kBytes);
  }
  queue.publish_and_kick();
  ASSERT_TRUE(await_ok(queue, kDepth));
  for (std::uint32_t i = 0; i < kDepth; ++i) {
    std::memset(queue.buffer(i).host, 0, kBytes);
    submit_swapped(queue, spec::kBlkTypeIn, i);
  }
  queue.publish_and_kick();
  ASSERT_TRUE(await_ok(queue, kDepth));
  std::vector<std::byte> expected(kBytes);
  for (std::uint32_t i = 0; i < kDepth; ++i) {
    fill(expected.data(), kBytes, i);
    std::rotate(expected.begin(), expected.begin() + kBytes / 2, expected.end());
    EXPECT_EQ(std::memcmp(queue.buffer(i).host, expected.data(), kBytes), 0) << "block " << i;
  }
  // The writes in any case; the vectors only where the kernel can.
  EXPECT_GE(registered(), before + kDepth);
  // It is in the file, and not only in memory that the kernel holds.
  driver_.reset();
  EXPECT_EQ(host_->quit(), HostEnd::clean);
  std::ifstream file(directory_.file("a.img"), std::ios::binary);
  for (std::uint32_t i = 0; i < kDepth; ++i) {
    std::vector<char> bytes(kBytes);
    ASSERT_TRUE(file.read(bytes.data(), kBytes));
    EXPECT_TRUE(holds(reinterpret_cast<const std::byte*>(bytes.data()), kBytes, i)) << "block " << i;
  }
}

// As a VMM does when it plugs memory: the table comes anew while the rings run. What is in flight still has its memory.
TEST_P(Registered, TheMemoryTableIsReplacedUnderLoad) {
  ASSERT_NO_FATAL_FAILURE(await_registered());
  constexpr int kTables = 50;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> served{0};
  // Writes and reads each block again and again; the contents change with each round.
  std::thread guest([&] {
    BlkDriverQueue& queue = driver_->queue(0);
    for (std::uint64_t round = 1; !stop.load(std::memory_order_relaxed) && !HasFailure(); ++round) {
      for (const std::uint32_t type : {spec::kBlkTypeOut, spec::kBlkTypeIn}) {
        for (std::uint32_t i = 0; i < kDepth; ++i) {
          std::memset(queue.buffer(i).host, 0, kBytes);
          if (type == spec::kBlkTypeOut) {
            fill(queue.buffer(i).host, kBytes, round * kDepth + i);
          }
          submit(queue, type, i * kSectors, i, kBytes);
        }
        queue.publish_and_kick();
        if (!await_ok(queue, kDepth)) {
          return;
        }
      }
      for (std::uint32_t i = 0; i < kDepth; ++i) {
        EXPECT_TRUE(holds(queue.buffer(i).host, kBytes, round * kDepth + i)) << "round " << round << ", block " << i;
      }
      served.fetch_add(2 * kDepth, std::memory_order_relaxed);
    }
  });
  for (int i = 0; i < kTables && !HasFailure(); ++i) {
    const std::uint64_t served_before = served.load(std::memory_order_relaxed);
    const std::uint64_t registered_before = registered();
    EXPECT_TRUE(driver_->front_end().set_mem_table(driver_->memory_table()));
    // Every other time at once again, before the new memory is registered.
    EXPECT_TRUE(i % 2 == 0 || eventually([&] {
                  return HasFailure() || (served.load(std::memory_order_relaxed) > served_before &&
                                          registered() > registered_before + kDepth);
                }));
  }
  stop.store(true, std::memory_order_relaxed);
  guest.join();
  const BlkDeviceStats stats = stats_of(*host_, "a");
  EXPECT_EQ(stats.store.failures, (std::array<std::uint64_t, kBlkFailures>{}));
  EXPECT_EQ(host_->quit(), HostEnd::clean);
}

TEST(RegisteredOption, IsRefusedWhereItCouldDoNothing) {
  const TestDirectory directory;
  const std::string image = directory.image("a.img", 1 << 20);
  const auto refusal = [&](const std::string& path, BlkEngine engine, LoopEngine loop) {
    HostOptions options;
    options.workers.engine = loop;
    DiskOptions disk = test_disk(path, directory.file("a.sock"), "a");
    disk.engine = engine;
    disk.registered = true;
    const TestHost host(options, {disk});
    return host.started() ? std::string("(none)") : host.started().error().message;
  };
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(refusal(image, BlkEngine::threads, LoopEngine::automatic),
              AllOf(HasSubstr("registered=on"), HasSubstr("only engine io_uring"), HasSubstr("threads: asked for")));
  EXPECT_THAT(refusal(image, BlkEngine::automatic, LoopEngine::epoll),
              AllOf(HasSubstr("registered=on"), HasSubstr("only engine io_uring"), HasSubstr("have no io_uring")));
  EXPECT_THAT(refusal("ram:1M", BlkEngine::automatic, LoopEngine::automatic),
              AllOf(HasSubstr("ram:1M"), HasSubstr("no use of registered memory")));
  EXPECT_FALSE(std::filesystem::exists(directory.file("a.sock")));
}

}  // namespace
}  // namespace ringway::conformance
