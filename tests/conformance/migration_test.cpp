// The dirty log: every page that the device changes has its bit, and no page that it only read has one.
#include <sys/mman.h>

#include <atomic>

#include "guest/dirty_log.hpp"
#include "tests/conformance/support.hpp"

namespace ringway::conformance {
namespace {

class DirtyLogTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Rings, DirtyLogTest, testing::Bool(),
                         [](const auto& each) { return each.param ? "packed" : "split"; });

TEST_P(DirtyLogTest, EveryChangedPageAndNoOther) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:4M", directory.file("a"), "a")});
  BlkDriverOptions wanted{.socket_path = directory.file("a"), .packed = GetParam(), .indirect = true};
  wanted.protocol_features |= vhost_user::kProtocolLogShmfd;
  wanted.start = false;
  const auto driver = connect(wanted);
  ASSERT_NE(driver, nullptr);
  const SharedMemory::Region& region = driver->memory().regions()[0];
  const std::uint64_t last_page = (region.guest.value + region.bytes) / kBlock;
  const std::size_t bitmap_bytes = (last_page / 8 + kBlock) / kBlock * kBlock;
  const UniqueFd bitmap_fd(memfd_create("bitmap", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(bitmap_fd.get(), static_cast<off_t>(bitmap_bytes)), 0);
  auto* const bitmap =
      static_cast<std::uint8_t*>(mmap(nullptr, bitmap_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, bitmap_fd.get(), 0));
  ASSERT_NE(bitmap, MAP_FAILED);
  const auto marked = [&](GuestAddress address) {
    const std::uint64_t page = address.value / kBlock;
    return (std::atomic_ref<std::uint8_t>(bitmap[page / 8]).load() >> page % 8 & 1U) != 0;
  };
  const auto guest_of = [&](const std::byte* at) {
    return GuestAddress{region.guest.value + static_cast<std::uint64_t>(at - region.host)};
  };

  BlkDriverQueue& queue = driver->queue(0);
  const RingLayout& layout = queue.ring().layout();
  ASSERT_TRUE(driver->start_queue(0, driver->initial_base()));
  ASSERT_TRUE(driver->front_end().set_log_base(bitmap_bytes, 0, bitmap_fd.get()));
  // The guest runs already: logging is turned on as live migration does it.
  ASSERT_TRUE(driver->front_end().set_features(driver->negotiated().features | spec::kFeatureLogAll));
  ASSERT_TRUE(driver->front_end().set_vring_addr({.index = 0,
                                                  .flags = 1,
                                                  .descriptor = reinterpret_cast<std::uintptr_t>(layout.descriptor_area),
                                                  .used = reinterpret_cast<std::uintptr_t>(layout.device_area),
                                                  .available = reinterpret_cast<std::uintptr_t>(layout.driver_area),
                                                  .log = guest_of(layout.device_area).value}));
  std::vector<std::byte> before(region.host, region.host + region.bytes);
  fill(queue.buffer(5).host, kBlock, 5);
  std::memcpy(before.data() + (queue.buffer(5).host - region.host), queue.buffer(5).host, kBlock);
  ASSERT_EQ(transfer(queue, spec::kBlkTypeOut, 8, 5).status, spec::kBlkStatusOk);
  EXPECT_FALSE(marked(queue.buffer(5).guest)) << "a page that was only read";
  ASSERT_EQ(transfer(queue, spec::kBlkTypeIn, 8, 9).status, spec::kBlkStatusOk);
  EXPECT_TRUE(marked(queue.buffer(9).guest));
  ASSERT_EQ(transfer(queue, spec::kBlkTypeGetId, 0, 11, 20).status, spec::kBlkStatusOk);
  EXPECT_TRUE(marked(queue.buffer(11).guest));
  EXPECT_TRUE(marked(guest_of(GetParam() ? layout.descriptor_area : layout.device_area)));
  EXPECT_FALSE(marked(queue.buffer(20).guest));
  // All pages at once: whatever differs, apart from what the driver itself wrote (its rings' areas and request slots are
  // beside what the device writes, so only the data buffers are compared strictly).
  for (std::uint32_t i = 0; i < driver->options().requests_per_queue; ++i) {
    const std::byte* const now = queue.buffer(i).host;
    const bool changed = std::memcmp(now, before.data() + (now - region.host), kBlock) != 0;
    EXPECT_TRUE(!changed || marked(queue.buffer(i).guest)) << "buffer " << i;
  }
  // Off again: the running ring stops marking.
  ASSERT_TRUE(driver->front_end().set_features(driver->negotiated().features));
  std::memset(bitmap, 0, bitmap_bytes);
  ASSERT_EQ(transfer(queue, spec::kBlkTypeIn, 8, 30).status, spec::kBlkStatusOk);
  EXPECT_TRUE(std::ranges::all_of(std::span(bitmap, bitmap_bytes), [](std::uint8_t byte) { return byte == 0; }));
  munmap(bitmap, bitmap_bytes);
}

// A request that is in flight when logging starts is logged when it ends.
TEST_P(DirtyLogTest, RequestInFlightWhenLoggingStarts) {
  const TestDirectory directory;
  DiskOptions disk = test_disk("ram:4M", directory.file("a"), "a");
  disk.faults = "delay=300ms";
  TestHost host({}, {disk});
  BlkDriverOptions wanted{.socket_path = directory.file("a"), .packed = GetParam()};
  wanted.protocol_features |= vhost_user::kProtocolLogShmfd;
  const auto driver = connect(wanted);
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  const SharedMemory::Region& region = driver->memory().regions()[0];
  const std::size_t bitmap_bytes = ((region.guest.value + region.bytes) / kBlock / 8 + kBlock) / kBlock * kBlock;
  const UniqueFd bitmap_fd(memfd_create("bitmap", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(bitmap_fd.get(), static_cast<off_t>(bitmap_bytes)), 0);
  submit(queue, spec::kBlkTypeIn, 0, 3);
  queue.publish_and_kick();
  ASSERT_TRUE(driver->front_end().set_log_base(bitmap_bytes, 0, bitmap_fd.get()));
  ASSERT_TRUE(driver->front_end().set_features(driver->negotiated().features | spec::kFeatureLogAll));
  ASSERT_TRUE(await_ok(queue, 1));
  const std::uint64_t page = queue.buffer(3).guest.value / kBlock;
  std::uint8_t byte = 0;
  ASSERT_EQ(pread(bitmap_fd.get(), &byte, 1, static_cast<off_t>(page / 8)), 1);
  EXPECT_EQ(byte >> page % 8 & 1, 1);
}

}  // namespace
}  // namespace ringway::conformance
