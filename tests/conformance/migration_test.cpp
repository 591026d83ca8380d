// The dirty log: every page that the device changes has its bit, and no page that it only read has one.
#include <sys/mman.h>

#include <atomic>
#include <set>

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
  const auto driver = connect_driver(wanted);
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

// The same over all pages: the marked ones are exactly those that the device writes. The header lies on a page of its own,
// which the device only reads, and so does the status, which it writes.
TEST_P(DirtyLogTest, MarkedPagesAreThoseThatTheDeviceWritesTheRingsIncluded) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:4M", directory.file("a"), "a")});
  for (const bool event_index : {true, false}) {
    SCOPED_TRACE(event_index ? "event index" : "flags");
    BlkDriverOptions wanted{
        .socket_path = directory.file("a"), .packed = GetParam(), .event_index = event_index, .scratch_bytes = 2 * kBlock};
    wanted.protocol_features |= vhost_user::kProtocolLogShmfd;
    wanted.start = false;
    const auto driver = connect_driver(wanted);
    ASSERT_NE(driver, nullptr);
    ASSERT_EQ(driver->negotiated().ring.event_index, event_index);
    const Result<SharedBlock> header = driver->memory().allocate(kBlock, kBlock);
    const Result<SharedBlock> status = driver->memory().allocate(kBlock, kBlock);
    ASSERT_TRUE(header && status);
    const SharedMemory::Region& region = driver->memory().regions()[0];
    const std::uint64_t first_page = region.guest.value / kBlock, pages = region.bytes / kBlock;
    const std::size_t bitmap_bytes = ((first_page + pages) / 8 + kBlock) / kBlock * kBlock;
    const UniqueFd bitmap_fd(memfd_create("bitmap", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(bitmap_fd.get(), static_cast<off_t>(bitmap_bytes)), 0);

    ASSERT_TRUE(driver->start_queue(0, driver->initial_base()));
    BlkDriverQueue& queue = driver->queue(0);
    const RingLayout& layout = queue.ring().layout();
    const auto page_of = [&](const std::byte* at) { return static_cast<std::uint64_t>(at - region.host) / kBlock; };
    ASSERT_TRUE(driver->front_end().set_log_base(bitmap_bytes, 0, bitmap_fd.get()));
    ASSERT_TRUE(driver->front_end().set_features(driver->negotiated().features | spec::kFeatureLogAll));
    ASSERT_TRUE(driver->front_end().set_vring_addr(
        {.index = 0,
         .flags = 1,
         .descriptor = reinterpret_cast<std::uintptr_t>(layout.descriptor_area),
         .used = reinterpret_cast<std::uintptr_t>(layout.device_area),
         .available = reinterpret_cast<std::uintptr_t>(layout.driver_area),
         .log = region.guest.value + static_cast<std::uint64_t>(layout.device_area - region.host)}));

    struct Step {
      std::uint32_t type;
      std::uint32_t slot;
      std::uint32_t bytes;
    };
    for (const Step& step : {Step{spec::kBlkTypeOut, 2, kBlock}, Step{spec::kBlkTypeIn, 5, kBlock},
                             Step{spec::kBlkTypeGetId, 9, 20}, Step{spec::kBlkTypeFlush, 11, 0}}) {
      const spec::BlkRequestHeader request{.type = step.type, .reserved = 0, .sector = 0};
      std::memcpy(header->host, &request, sizeof request);
      status->host[0] = std::byte{kStatusUntouched};
      const bool device_writes = step.type == spec::kBlkTypeIn || step.type == spec::kBlkTypeGetId;
      std::vector<DriverBuffer> chain{{header->guest, sizeof request, false}};
      if (step.bytes != 0) {
        chain.push_back({queue.buffer(step.slot).guest, step.bytes, device_writes});
      }
      chain.push_back({status->guest, 1, true});
      ASSERT_TRUE(queue.submit_chain(chain, step.slot));
      queue.publish_and_kick();
      ASSERT_EQ(await_completion(queue).token, step.slot);
      ASSERT_EQ(status->host[0], std::byte{spec::kBlkStatusOk}) << "type " << step.type;
    }
    // What was written after the last batch, as the wish for a kick is, is in the log once the ring has stopped.
    ASSERT_TRUE(driver->stop_queue(0));

    std::set<std::uint64_t> expected{page_of(queue.buffer(5).host), page_of(queue.buffer(9).host), page_of(status->host),
                                     page_of(layout.device_area)};
    if (GetParam()) {
      expected.insert(page_of(layout.descriptor_area));  // where a packed ring's used elements are
    }
    std::vector<std::uint8_t> bitmap(bitmap_bytes);
    ASSERT_EQ(pread(bitmap_fd.get(), bitmap.data(), bitmap_bytes, 0), static_cast<ssize_t>(bitmap_bytes));
    std::set<std::uint64_t> marked;
    for (std::uint64_t page = 0; page < bitmap_bytes * 8; ++page) {
      if ((bitmap[page / 8] >> page % 8 & 1U) != 0) {
        marked.insert(page - first_page);
      }
    }
    EXPECT_EQ(marked, expected);
  }
}

// A request that is in flight when logging starts is logged when it ends.
TEST_P(DirtyLogTest, RequestInFlightWhenLoggingStarts) {
  const TestDirectory directory;
  // On a machine so slow that the request has completed before the log was on, it must take longer.
  for (const char* delay : {"delay=300ms", "delay=3s", "delay=20s"}) {
    DiskOptions disk = test_disk("ram:4M", directory.file("a"), "a");
    disk.faults = delay;
    TestHost host({}, {disk});
    BlkDriverOptions wanted{.socket_path = directory.file("a"), .packed = GetParam()};
    wanted.protocol_features |= vhost_user::kProtocolLogShmfd;
    const auto driver = connect_driver(wanted);
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
    const bool in_flight = !queue.has_completion();
    ASSERT_TRUE(await_ok(queue, 1));
    if (!in_flight) {
      continue;
    }
    const std::uint64_t page = queue.buffer(3).guest.value / kBlock;
    std::uint8_t byte = 0;
    ASSERT_EQ(pread(bitmap_fd.get(), &byte, 1, static_cast<off_t>(page / 8)), 1);
    EXPECT_EQ(byte >> page % 8 & 1, 1);
    return;
  }
  FAIL() << "the log was never on in time";
}

}  // namespace
}  // namespace ringway::conformance
