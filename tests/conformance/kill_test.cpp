// What is killed: the front-end with requests in flight, the back-end with requests in flight, the store.
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <future>

#include "tests/conformance/support.hpp"

extern char** environ;

namespace ringway::conformance {
namespace {

// A back-end in a process of its own (main.cpp), so that it can be killed.
class Backend {
 public:
  explicit Backend(const std::string& disk) : disk_(disk) { start(); }
  ~Backend() { kill(); }
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  void start() {
    std::string program = "/proc/self/exe", option = "--serve", disk = disk_;
    char* arguments[] = {program.data(), option.data(), disk.data(), nullptr};
    ASSERT_EQ(posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  }
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

 private:
  std::string disk_;
  pid_t pid_ = -1;
};

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
  auto driver = connect(wanted);
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
  // Until our close the mapping is there.
  bool always_mapped = true;
  ASSERT_TRUE(eventually([&] {
    const bool mapped = mappings_with(inode) == 2;
    const bool closed = driver->peer_closed();
    always_mapped = always_mapped && (mapped || closed);
    return closed;
  }));
  EXPECT_TRUE(always_mapped);
  // The guest uses its pages for something else. Nothing may change them.
  const std::vector<std::byte> at_close(region.host, region.host + region.bytes);
  EXPECT_TRUE(eventually([&] { return !connected(host, "a"); }));
  EXPECT_EQ(mappings_with(inode), 1);
  // A second session's whole life passes; the first one's requests would have come by then.
  {
    const auto second = connect(directory.file("a"));
    ASSERT_NE(second, nullptr);
    EXPECT_EQ(transfer(second->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  }
  EXPECT_EQ(std::memcmp(at_close.data(), region.host, region.bytes), 0);
  // What was taken was finished before the close.
  std::vector<BlkCompletion> done(256);
  const std::size_t count = queue.reap(done);
  const BlkDeviceStats stats = stats_of(host, "a");
  EXPECT_EQ(count + 1, stats.queues[0].requests[static_cast<std::size_t>(BlkOpcode::in)]);
}

TEST(Kill, Row058_ResetOfAHungDeviceEndsInBoundedTimeAndMemoryStaysMapped) {
  const TestDirectory directory;
  DiskOptions hung = test_disk("ram:1M", directory.file("a"), "a");
  hung.faults = "hang@0";
  HostOptions options;
  options.stop_deadline = Duration::milliseconds(100);
  TestHost host(options, {hung, test_disk("ram:1M", directory.file("b"), "b")});
  const auto driver = connect(directory.file("a"));
  const auto other = connect(directory.file("b"));
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
  const auto driver = connect(wanted);
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
  Backend backend("path=" + directory.file("a.img") + ",socket=" + directory.file("a") + ",faults=delay=300ms@0");
  BlkDriverOptions wanted{.socket_path = directory.file("a"), .patience = kLimit};
  wanted.inflight = true;
  const auto driver = connect(wanted);
  ASSERT_NE(driver, nullptr);
  BlkDriverQueue& queue = driver->queue(0);
  // Block 0 takes long, the others don't: these complete out of order before the kill.
  for (std::uint32_t i = 0; i < 16; ++i) {
    fill(queue.buffer(i).host, kBlock, i);
    submit(queue, i < 8 ? spec::kBlkTypeIn : spec::kBlkTypeOut, i < 8 ? 0 : i * kBlockSectors, i);
  }
  queue.publish_and_kick();
  std::vector<bool> completed(16, false);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const BlkCompletion completion = await(queue);
    ASSERT_LT(completion.token, 16U);
    completed[completion.token] = true;
  }
  backend.kill();
  ASSERT_TRUE(driver->peer_closed());
  backend.start();
  ASSERT_TRUE(driver->reconnect());
  for (std::uint32_t i = 0; i < 8; ++i) {
    const BlkCompletion completion = await(queue);
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

// The driver can't go on with a packed ring by itself: the position is told as a VMM that kept it would.
TEST(Kill, Row053_PackedRequestsInFlightCompleteAfterTheBackEndWasKilled) {
  const TestDirectory directory;
  directory.image("a.img", 1 << 20);
  Backend backend("path=" + directory.file("a.img") + ",socket=" + directory.file("a") + ",faults=delay=300ms@0");
  BlkDriverOptions wanted{.socket_path = directory.file("a"), .patience = kLimit, .packed = true, .start = false};
  const auto driver = connect(wanted);
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
  ASSERT_EQ(await(queue).token, 8U);  // so the eight before it are in flight
  backend.kill();
  backend.start();
  auto connected_again = vhost_user::FrontEnd::connect(directory.file("a"), kLimit);
  ASSERT_TRUE(connected_again) << connected_again.error().message;
  vhost_user::FrontEnd& front = *connected_again;
  ASSERT_TRUE(front.set_protocol_features(driver->negotiated().protocol_features));
  ASSERT_TRUE(front.set_features(driver->negotiated().features));
  ASSERT_TRUE(front.set_mem_table(driver->memory_table()));
  ASSERT_TRUE(front.set_inflight_fd(inflight->description, inflight->fd.get()));
  const RingLayout& layout = queue.ring().layout();
  ASSERT_TRUE(front.set_vring_num(0, layout.size));
  // Nine indirect descriptors were made available, one was used; no wrap yet.
  ASSERT_TRUE(front.set_vring_base(0, (0x8000U | 9U) | (0x8000U | 1U) << 16U));
  ASSERT_TRUE(front.set_vring_addr({.index = 0,
                                    .flags = 0,
                                    .descriptor = reinterpret_cast<std::uintptr_t>(layout.descriptor_area),
                                    .used = reinterpret_cast<std::uintptr_t>(layout.device_area),
                                    .available = reinterpret_cast<std::uintptr_t>(layout.driver_area),
                                    .log = 0}));
  ASSERT_TRUE(front.set_vring_call(0, queue.call_fd()));
  ASSERT_TRUE(front.set_vring_kick(0, queue.kick_fd()));
  ASSERT_TRUE(front.set_vring_enable(0, true));
  std::vector<bool> completed(9, false);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const BlkCompletion completion = await(queue);
    ASSERT_LT(completion.token, 8U) << "request " << i << " of those in flight was lost";
    EXPECT_FALSE(completed[completion.token]);
    EXPECT_EQ(completion.status, spec::kBlkStatusOk);
    completed[completion.token] = true;
  }
  EXPECT_EQ(transfer(queue, spec::kBlkTypeIn, kBlockSectors).status, spec::kBlkStatusOk);
}

TEST(Kill, Row054_EntriesOfAGuestThatWasRebootedAreDropped) {
  const TestDirectory directory;
  directory.image("a.img", 1 << 20);
  Backend backend("path=" + directory.file("a.img") + ",socket=" + directory.file("a") + ",faults=delay=300ms@0");
  BlkDriverOptions wanted{.socket_path = directory.file("a"), .patience = kLimit};
  wanted.start = false;
  const auto driver = connect(wanted);
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
  ASSERT_EQ(await(queue).token, 8U);
  backend.kill();
  backend.start();
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
  start(1);  // not enabled
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

TEST(Kill, Row056_DeathDuringGetVringBaseIsAnError) {
  const TestDirectory directory;
  Backend backend("path=ram:1M,socket=" + directory.file("a") + ",faults=hang");
  const auto driver = connect(BlkDriverOptions{.socket_path = directory.file("a"), .patience = kLimit});
  ASSERT_NE(driver, nullptr);
  submit(driver->queue(0), spec::kBlkTypeIn, 0, 0);
  driver->queue(0).publish_and_kick();
  std::future<Result<std::uint32_t>> base = std::async(std::launch::async, [&] { return driver->stop_queue(0); });
  backend.kill();
  EXPECT_FALSE(base.get());
}

TEST(Kill, Row052_EndOfTheHostHangsUpAndItsSuccessorServes) {
  const TestDirectory directory;
  const std::vector<DiskOptions> disks{test_disk(directory.image("a.img", 1 << 20), directory.file("a"), "a")};
  auto host = std::make_unique<TestHost>(HostOptions{}, disks);
  const auto driver = connect(directory.file("a"));
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
