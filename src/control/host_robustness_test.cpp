// What one disk of a host can do to the others.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "control/test_host.hpp"
#include "driver/test_driver.hpp"

namespace ringway {
namespace {

constexpr std::uint32_t kHungDisks = 64;
constexpr std::uint32_t kUsualDepth = 32;

// Stores that never complete take all that they can get of the one worker's request slots. A disk that comes later has as
// many requests in flight at the same time as ever: all but the last of them hang, and the last one completes.
TEST(HostRobustness, ManyHungDisksLeaveANeighbourItsUsualDepth) {
  const TestDirectory directory;
  std::vector<DiskOptions> disks;
  for (std::uint32_t i = 0; i < kHungDisks; ++i) {
    const std::string name = "hung" + std::to_string(i);
    disks.push_back(test_disk("ram:1M", directory.file(name), name));
    disks.back().faults = "hang";
  }
  disks.push_back(test_disk("ram:1M", directory.file("last"), "last"));
  disks.back().faults = "hang@0";
  HostOptions options;
  options.stop_deadline = Duration::milliseconds(200);
  TestHost host(options, std::move(disks));
  ASSERT_TRUE(host.started()) << host.started().error().message;

  std::vector<std::unique_ptr<BlkDriver>> drivers;
  for (std::uint32_t i = 0; i < kHungDisks; ++i) {
    drivers.push_back(
        connect_driver(BlkDriverOptions{.socket_path = directory.file("hung" + std::to_string(i)), .buffer_bytes = 512}));
    ASSERT_NE(drivers.back(), nullptr);
    BlkDriverQueue& queue = drivers.back()->queue(0);
    for (std::uint32_t slot = 0; slot < 128; ++slot) {
      submit(queue, spec::kBlkTypeIn, 0, slot, 512);
    }
    queue.publish_and_kick();
  }
  const auto starved = [&](const DiskStats& disk) { return disk.name != "last" && disk.stats.queues[0].starved != 0; };
  ASSERT_TRUE(eventually(
      [&] { return std::ranges::count_if(host.call([](Host& h) { return h.stats(); }), starved) >= kHungDisks - 10; }));

  const auto last = connect_driver(directory.file("last"));
  ASSERT_NE(last, nullptr);
  BlkDriverQueue& queue = last->queue(0);
  for (std::uint32_t slot = 0; slot < kUsualDepth; ++slot) {
    submit(queue, spec::kBlkTypeIn, slot + 1 < kUsualDepth ? 0 : 64, slot);
  }
  queue.publish_and_kick();
  EXPECT_EQ(await_completion(queue).token, kUsualDepth - 1);
  // And again: the slot came back to who it belongs to.
  for (std::uint32_t i = 0; i < 100; ++i) {
    ASSERT_EQ(transfer(queue, spec::kBlkTypeIn, 64, kUsualDepth).status, spec::kBlkStatusOk);
  }
  EXPECT_EQ(host.quit(), HostEnd::hung);
}

// Makes every change of a file's size hang in the kernel, as a dead file system would: a writer that holds the inode's lock
// while it waits for the page that it is to write.
class HeldFile {
 public:
  explicit HeldFile(const std::string& path) : file_(open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
    // Non-blocking: of a blocking one poll() only says POLLERR, and that at once.
    faults_.reset(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
    page_ = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uffdio_api api{};
    api.api = UFFD_API;
    uffdio_register range{};
    range.range = {.start = reinterpret_cast<std::uintptr_t>(page_), .len = kPage};
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (!faults_ || ioctl(faults_.get(), UFFDIO_API, &api) != 0 || ioctl(faults_.get(), UFFDIO_REGISTER, &range) != 0) {
      return;
    }
    writer_ = std::thread([this] { written_ = write(file_.get(), page_, kPage); });
    pollfd fault{.fd = faults_.get(), .events = POLLIN, .revents = 0};
    holds_ = poll(&fault, 1, 30'000) == 1 && fault.revents == POLLIN;
  }
  ~HeldFile() {
    release();
    munmap(page_, kPage);
  }
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  // False where user space may not wait for the kernel's page faults.
  [[nodiscard]] bool holds() const { return holds_; }
  void release() {
    if (writer_.joinable()) {
      uffdio_zeropage zero{};
      zero.range = {.start = reinterpret_cast<std::uintptr_t>(page_), .len = kPage};
      EXPECT_EQ(ioctl(faults_.get(), UFFDIO_ZEROPAGE, &zero), 0);
      writer_.join();
      EXPECT_EQ(written_, static_cast<ssize_t>(kPage));
    }
  }

 private:
  static constexpr std::size_t kPage = 4096;
  UniqueFd file_;
  UniqueFd faults_;
  void* page_ = nullptr;
  std::thread writer_;
  ssize_t written_ = 0;
  bool holds_ = false;
};

template <typename T>
bool is_ready(const std::future<T>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

TEST(HostRobustness, AResizeThatHangsHoldsUpNothingElse) {
  const TestDirectory directory;
  const std::string image = directory.image("a.img", 1 << 20);
  TestHost host({}, {test_disk(image, directory.file("a"), "a"), test_disk("ram:1M", directory.file("b"), "b")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  HeldFile held(image);
  if (!held.holds()) {
    GTEST_SKIP() << "no userfaultfd for kernel faults here (needs root, or vm.unprivileged_userfaultfd=1)";
  }
  auto resized = host.start_resizing("a", 2 << 20);
  // The control thread answers, and opens others; the disk itself is served.
  EXPECT_EQ(host.call([](Host& h) { return h.disk("a")->store.capacity_bytes; }), 1U << 20U);
  EXPECT_EQ(host.resize("b", 2 << 20).value_or(0), 2U << 20U);
  EXPECT_TRUE(host.add(test_disk("ram:1M", directory.file("c"), "c")));
  const auto driver = connect_driver(directory.file("b"));
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  const auto second = host.resize("a", 3 << 20);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().refusal, HostRefusal::conflict);
  EXPECT_EQ(second.error().message, "disk 'a' is being resized already");
  EXPECT_FALSE(is_ready(resized));

  held.release();
  EXPECT_EQ(resized.get().value_or(0), 2U << 20U);
  EXPECT_EQ(host.call([](Host& h) { return h.disk("a")->store.capacity_bytes; }), 2U << 20U);
  EXPECT_EQ(host.quit(), HostEnd::clean);
}

TEST(HostRobustness, ADiskGoesAfterItsResize) {
  const TestDirectory directory;
  const std::string image = directory.image("a.img", 1 << 20);
  TestHost host({}, {test_disk(image, directory.file("a"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  HeldFile held(image);
  if (!held.holds()) {
    GTEST_SKIP() << "no userfaultfd for kernel faults here (needs root, or vm.unprivileged_userfaultfd=1)";
  }
  auto resized = host.start_resizing("a", 2 << 20);
  auto removed = host.start_removing("a");
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(directory.file("a")); }));
  EXPECT_FALSE(is_ready(removed));
  held.release();
  EXPECT_TRUE(removed.get());
  EXPECT_EQ(resized.get().error().message, "disk 'a' is removing by now");
  EXPECT_EQ(host.quit(), HostEnd::clean);
}

TEST(HostRobustness, AResizeThatHangsDoesNotKeepTheHostFromEnding) {
  const TestDirectory directory;
  const std::string image = directory.image("a.img", 1 << 20);
  HostOptions options;
  options.stop_deadline = Duration::milliseconds(100);
  std::optional<HeldFile> held;  // let go after the host has ended
  TestHost host(options, {test_disk(image, directory.file("a"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  held.emplace(image);
  if (!held->holds()) {
    GTEST_SKIP() << "no userfaultfd for kernel faults here (needs root, or vm.unprivileged_userfaultfd=1)";
  }
  auto resized = host.start_resizing("a", 2 << 20);
  EXPECT_EQ(host.quit(), HostEnd::hung);
  EXPECT_FALSE(is_ready(resized));
}

}  // namespace
}  // namespace ringway
