#include "control/host.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/test_host.hpp"
#include "driver/test_driver.hpp"

namespace ringway {
namespace {

using ::testing::HasSubstr;

// Submits a read of `sector` without waiting for it.
void submit_read(BlkDriverQueue& queue, std::uint64_t sector, std::uint32_t slot = 0) {
  submit(queue, spec::kBlkTypeIn, sector, slot);
  queue.publish_and_kick();
}

std::uint8_t read_once(BlkDriverQueue& queue, std::uint64_t sector) {
  return transfer(queue, spec::kBlkTypeIn, sector).status;
}

TEST(Host, ServesADiskToADriver) {
  const TestDirectory directory;
  TestHost host({}, {test_disk(directory.image("a.img", 1 << 20), directory.file("a.sock"))});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  {
    const auto driver = connect_driver(directory.file("a.sock"));
    ASSERT_NE(driver, nullptr);
    EXPECT_EQ(driver->capacity_sectors(), 2048U);
    EXPECT_EQ(read_once(driver->queue(0), 8), spec::kBlkStatusOk);
    const DiskStatus status = *host.call([](Host& h) { return h.disk("a"); });
    EXPECT_EQ(status.state, DeviceState::serving);
    EXPECT_TRUE(status.connected);
    EXPECT_EQ(status.sessions, 1U);
    const std::vector<DiskStats> stats = host.call([](Host& h) { return h.stats(); });
    ASSERT_EQ(stats.size(), 1U);
    EXPECT_EQ(stats[0].stats.queues[0].requests[static_cast<std::size_t>(BlkOpcode::in)], 1U);
    EXPECT_EQ(stats[0].stats.queues[0].bytes_in, 4096U);
  }
  EXPECT_EQ(host.quit(), HostEnd::clean);
  EXPECT_THAT(host.report(), HasSubstr("disk 'a'"));
  EXPECT_THAT(host.report(), HasSubstr("4.0 KiB"));
  EXPECT_FALSE(std::filesystem::exists(directory.file("a.sock")));
}

TEST(Host, NamesAreFromThePathAndMadeUnique) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("null:1M", directory.file("1")), test_disk("null:1M", directory.file("2")),
                     test_disk("null:1M", directory.file("3"), "null-2"), test_disk("null:2M", directory.file("4"))});
  // The third wanted a name that the second has been given.
  ASSERT_FALSE(host.started());
  EXPECT_EQ(host.started().error().message, "disk 'null-2': there is a disk of that name already; choose another name=");

  TestHost second({}, {test_disk("null:1M", directory.file("1")), test_disk("null:1M", directory.file("2")),
                       test_disk("null:2M", directory.file("4"))});
  ASSERT_TRUE(second.started()) << second.started().error().message;
  std::vector<std::string> names;
  for (const DiskStatus& disk : second.call([](Host& h) { return h.disks(); })) {
    names.push_back(disk.options.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"null", "null-2", "null-3"}));
}

// Row 57: whoever can connect is served.
TEST(Host, NoSocketStandsBeforeAllImagesAreOpen) {
  const TestDirectory directory;
  const auto before = std::filesystem::last_write_time(directory.file("."));
  TestHost host({}, {test_disk("null:1M", directory.file("a.sock"), "a"),
                     test_disk(directory.file("missing.img"), directory.file("b.sock"), "b")});
  ASSERT_FALSE(host.started());
  EXPECT_EQ(host.started().error().message, "disk 'b': open '" + directory.file("missing.img") +
                                                "' (create it first, e.g. 'truncate -s 10G " +
                                                directory.file("missing.img") + "'): No such file or directory");
  // Had it been made and removed again, the directory would have another time of change than that of the first look.
  EXPECT_EQ(std::filesystem::last_write_time(directory.file(".")), before);
}

TEST(Host, AFailedStartTakesItsSocketsAway) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("null:1M", directory.file("a.sock"), "a"),
                     test_disk("null:1M", directory.file("missing/b.sock"), "b")});
  ASSERT_FALSE(host.started());
  EXPECT_THAT(host.started().error().message, HasSubstr("disk 'b': "));
  EXPECT_THAT(host.started().error().message, HasSubstr("check that the directory exists and is writable"));
  EXPECT_FALSE(std::filesystem::exists(directory.file("a.sock")));
}

TEST(Host, ASocketIsOneDisksOnly) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("null:1M", directory.file("a.sock"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const HostResult<std::string> added = host.add(test_disk("null:1M", directory.file("./a.sock"), "b"));
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().refusal, HostRefusal::conflict);
  EXPECT_EQ(added.error().message, "disk 'b': the socket '" + directory.file("./a.sock") + "' belongs to disk 'a' already");
}

TEST(Host, AnImageIsNotServedTwiceForWriting) {
  const TestDirectory directory;
  const std::string image = directory.image("a.img", 1 << 20);
  TestHost host({}, {test_disk(image, directory.file("a.sock"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const HostResult<std::string> added = host.add(test_disk(image, directory.file("b.sock"), "b"));
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().refusal, HostRefusal::conflict);
  EXPECT_EQ(added.error().message,
            "disk 'b': '" + image + "' belongs to disk 'a' already: remove that first, or give both ro");
  // By another name too.
  std::filesystem::create_symlink(image, directory.file("link.img"));
  const HostResult<std::string> link = host.add(test_disk(directory.file("link.img"), directory.file("b.sock"), "b"));
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().refusal, HostRefusal::conflict);
  EXPECT_THAT(link.error().message, ::testing::EndsWith("belongs to disk 'a' already: remove that first, or give both ro"));
  // The name is free again.
  EXPECT_TRUE(host.add(test_disk("null:1M", directory.file("b.sock"), "b")));
}

// What is served is the file, wherever it is by now, and not whatever has its old name.
TEST(Host, AnImageIsKnownByItsFileAndNotByItsPath) {
  const TestDirectory directory;
  const std::string image = directory.image("a.img", 1 << 20);
  TestHost host({}, {test_disk(image, directory.file("a.sock"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const std::string moved = directory.file("moved.img");
  std::filesystem::rename(image, moved);
  const HostResult<std::string> same = host.add(test_disk(moved, directory.file("b.sock"), "b"));
  ASSERT_FALSE(same);
  EXPECT_EQ(same.error().refusal, HostRefusal::conflict);
  EXPECT_EQ(same.error().message,
            "disk 'b': '" + moved + "' belongs to disk 'a' already: remove that first, or give both ro");
  const HostResult<std::string> other =
      host.add(test_disk(directory.image("a.img", 2 << 20), directory.file("b.sock"), "b"));
  ASSERT_TRUE(other) << other.error().message;
  EXPECT_EQ(host.call([](Host& h) { return h.disk("b")->store.capacity_bytes; }), 2U << 20U);
  // Of this one it is known too by now.
  const HostResult<std::string> third = host.add(test_disk(image, directory.file("c.sock"), "c"));
  ASSERT_FALSE(third);
  EXPECT_THAT(third.error().message, HasSubstr("belongs to disk 'b' already"));
}

TEST(Host, RemovalHangsUpOnTheFrontEnd) {
  const TestDirectory directory;
  TestHost host({},
                {test_disk("null:1M", directory.file("a.sock"), "a"), test_disk("null:1M", directory.file("b.sock"), "b")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto a = connect_driver(directory.file("a.sock"));
  const auto b = connect_driver(directory.file("b.sock"));
  ASSERT_TRUE(a && b);
  EXPECT_EQ(read_once(a->queue(0), 0), spec::kBlkStatusOk);
  EXPECT_TRUE(host.remove("a"));
  EXPECT_TRUE(eventually([&] { return a->peer_closed(); }));
  EXPECT_FALSE(std::filesystem::exists(directory.file("a.sock")));
  EXPECT_EQ(host.call([](Host& h) { return h.disk("a"); }).error().refusal, HostRefusal::not_found);
  EXPECT_EQ(read_once(b->queue(0), 0), spec::kBlkStatusOk);
  // Name and socket can be had again.
  EXPECT_TRUE(host.add(test_disk("null:2M", directory.file("a.sock"), "a")));
}

TEST(Host, RemovalWaitsForRequestsInFlight) {
  const TestDirectory directory;
  DiskOptions slow = test_disk("ram:1M", directory.file("a.sock"), "a");
  slow.faults = "delay=300ms";
  TestHost host({}, {slow});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_driver(directory.file("a.sock"));
  ASSERT_NE(driver, nullptr);
  submit_read(driver->queue(0), 0);
  EXPECT_TRUE(host.remove("a"));
}

TEST(Host, AHungStoreDelaysItsOwnRemovalOnly) {
  const TestDirectory directory;
  DiskOptions hung = test_disk("ram:1M", directory.file("a.sock"), "a");
  hung.faults = "hang@0";
  HostOptions options;
  options.stop_deadline = Duration::milliseconds(100);
  TestHost host(options, {hung, test_disk("null:1M", directory.file("b.sock"), "b")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto a = connect_driver(directory.file("a.sock"));
  const auto b = connect_driver(directory.file("b.sock"));
  ASSERT_TRUE(a && b);
  submit_read(a->queue(0), 0);
  // A second read completes, so the first has surely reached the store.
  submit_read(a->queue(0), 64, 1);
  EXPECT_EQ(await_completion(a->queue(0)).token, 1U);

  const HostResult<> removed = host.remove("a");
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().refusal, HostRefusal::pending);
  EXPECT_EQ(removed.error().message, "disk 'a': its requests in flight are not finished yet; it goes when they are");
  EXPECT_EQ(host.call([](Host& h) { return h.disk("a")->state; }), DeviceState::removing);
  EXPECT_EQ(host.add(test_disk("null:1M", directory.file("c.sock"), "a")).error().refusal, HostRefusal::conflict);
  EXPECT_EQ(read_once(b->queue(0), 0), spec::kBlkStatusOk);
  // The end is bounded too, and says so.
  EXPECT_EQ(host.quit(), HostEnd::hung);
}

TEST(Host, ResizeReachesTheImageAndTheStatus) {
  const TestDirectory directory;
  const std::string image = directory.image("a.img", 1 << 20);
  TestHost host({}, {test_disk(image, directory.file("a.sock"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  EXPECT_EQ(host.resize("a", 2 << 20).value_or(0), 2U << 20U);
  EXPECT_EQ(std::filesystem::file_size(image), 2U << 20U);
  // Someone else makes it larger, and we look again.
  std::filesystem::resize_file(image, 3 << 20);
  EXPECT_EQ(host.resize("a", 0).value_or(0), 3U << 20U);
  EXPECT_EQ(host.call([](Host& h) { return h.disk("a")->store.capacity_bytes; }), 3U << 20U);
  const auto odd = host.resize("a", 1001);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().refusal, HostRefusal::not_possible);
  EXPECT_THAT(odd.error().message, HasSubstr("give a multiple of its block size"));
  EXPECT_EQ(host.resize("z", 0).error().message, "there is no disk 'z'; there are: a");
}

TEST(Host, AnUnknownNameIsAnsweredWithSomeOfThoseThatThereAre) {
  const TestDirectory directory;
  std::vector<DiskOptions> disks;
  std::string names;
  for (int i = 10; i < 28; ++i) {
    const std::string name = fmt::format("d{}", i);
    disks.push_back(test_disk("null:1M", directory.file(name + ".sock"), name));
    names += i < 26 ? (names.empty() ? "" : ", ") + name : "";
  }
  TestHost host({}, std::move(disks));
  ASSERT_TRUE(host.started()) << host.started().error().message;
  EXPECT_EQ(host.call([](Host& h) { return h.disk("z"); }).error().message,
            "there is no disk 'z'; there are: " + names + " and 2 more");
}

TEST(Host, NothingIsAddedWhileItEnds) {
  const TestDirectory directory;
  DiskOptions slow = test_disk("ram:1M", directory.file("a.sock"), "a");
  slow.faults = "delay=300ms";
  TestHost host({}, {slow});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_driver(directory.file("a.sock"));
  ASSERT_NE(driver, nullptr);
  submit_read(driver->queue(0), 0);
  std::promise<HostResult<std::string>> promise;
  auto future = promise.get_future();
  host.call([&](Host& h) {
    h.quit("the test");
    // Runs behind the quit, and long before the read is done.
    h.executor().post([&h, &promise, socket = directory.file("b.sock")] {
      h.add_disk(test_disk("null:1M", socket, "b"),
                 [&](HostResult<std::string> added) { promise.set_value(std::move(added)); });
    });
    return 0;
  });
  const HostResult<std::string> added = future.get();
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().refusal, HostRefusal::ending);
  EXPECT_EQ(host.join(), HostEnd::clean);
}

TEST(Host, AWorkerOptionThatIsWrongIsAnError) {
  HostOptions options;
  options.workers.poll = "sometimes";
  TestHost host(options);
  ASSERT_FALSE(host.started());
  EXPECT_THAT(host.started().error().message, HasSubstr("sometimes"));
}

// 64 disks come and go while one carries traffic: nothing of them stays behind.
TEST(Host, DisksComeAndGoBesideTraffic) {
  const TestDirectory directory;
  HostOptions options;
  options.workers.workers = 2;
  TestHost host(options, {test_disk("null:1M", directory.file("a.sock"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_driver(directory.file("a.sock"));
  ASSERT_NE(driver, nullptr);
  const auto descriptors = [] {
    const std::filesystem::directory_iterator each("/proc/self/fd");
    return std::distance(begin(each), end(each));
  };
  std::ptrdiff_t before = 0;
  for (int i = 0; i < 64; ++i) {
    DiskOptions disk = test_disk("ram:1M", directory.file("b.sock"), "b");
    disk.queues = 2;
    const HostResult<std::string> added = host.add(disk);
    ASSERT_TRUE(added) << added.error().message;
    {
      const auto other = connect_driver(directory.file("b.sock"));
      ASSERT_NE(other, nullptr);
      submit_read(other->queue(0), 0);
      ASSERT_TRUE(host.remove("b"));
    }
    ASSERT_EQ(read_once(driver->queue(0), 0), spec::kBlkStatusOk);
    if (i == 0) {
      before = descriptors();
    }
  }
  EXPECT_TRUE(eventually([&] { return descriptors() <= before; })) << descriptors() << ", not " << before;
  EXPECT_EQ(host.quit(), HostEnd::clean);
}

}  // namespace
}  // namespace ringway
