// What idle disks cost, and what a request costs: counted, or in CPU time of the workers, never in time on the wall, so that
// a loaded machine changes nothing.
#include <liburing.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <map>
#include <set>

#include "loop/io_uring_loop.hpp"
#include "tests/conformance/allocations.hpp"
#include "tests/conformance/support.hpp"

namespace ringway::conformance {
namespace {

std::vector<WorkerStats> workers_of(TestHost& host) {
  return host.call([](Host& h) { return h.worker_stats(); });
}

HostOptions with_workers(std::uint32_t workers) {
  HostOptions options;
  options.workers.workers = workers;
  return options;
}

// Keeps the test on the first CPU that it may use and gives the last one to the worker, so that the scheduler's choice of
// places, which changes what a wake-up costs by a third, is the same for both sides of a comparison.
class Apart {
 public:
  Apart() {
    CPU_ZERO(&before_);
    EXPECT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &before_)) {
        cpus.push_back(cpu);
      }
    }
    test_ = cpus.front();
    worker_ = cpus.back();
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;
  ~Apart() { EXPECT_EQ(sched_setaffinity(0, sizeof before_, &before_), 0); }

  // Call when the hosts run: threads start where their parent may be.
  void begin() const {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(test_, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  [[nodiscard]] HostOptions host() const {
    HostOptions options;
    options.workers.cpus = {worker_};
    return options;
  }

 private:
  cpu_set_t before_{};
  int test_ = 0, worker_ = 0;
};

// ---------------------------------------------------------------- many disks, all connected

class Crowd {
 public:
  static constexpr std::uint32_t kDisks = limits::kDevicesMax, kQueues = 8;

  explicit Crowd(const TestDirectory& directory, const HostOptions& options = {}) : host_(options, disks(directory)) {
    if (!host_.started()) {
      ADD_FAILURE() << host_.started().error().message;
      return;
    }
    for (std::uint32_t i = 0; i < kDisks; ++i) {
      BlkDriverOptions wanted{.socket_path = directory.file(std::to_string(i)), .queues = kQueues};
      wanted.requests_per_queue = 4;
      drivers_.push_back(connect_driver(wanted));
    }
  }
  [[nodiscard]] bool complete() const {
    return drivers_.size() == kDisks && std::ranges::none_of(drivers_, [](const auto& each) { return each == nullptr; });
  }
  [[nodiscard]] TestHost& host() { return host_; }
  [[nodiscard]] BlkDriver& driver(std::uint32_t index) { return *drivers_[index]; }

  // Takes all calls that have been made: the one that each start owes, and those of requests. True once none is on its way.
  [[nodiscard]] bool calls_are_taken() {
    return eventually([&] {
      std::map<std::string, BlkDeviceStats> all;
      for (DiskStats& disk : host_.call([](Host& h) { return h.stats(); })) {
        all.emplace(disk.name, std::move(disk.stats));
      }
      for (std::uint32_t i = 0; i < kDisks; ++i) {
        for (std::uint32_t queue = 0; queue < kQueues; ++queue) {
          const std::uint64_t made = all.at("d" + std::to_string(i)).queues[queue].calls;
          if (made == 0 || drivers_[i]->queue(queue).counters().calls != made) {
            return false;
          }
        }
      }
      return true;
    });
  }
  // Lets time pass in which no driver may be called.
  void expect_silence(Duration span) {
    std::vector<pollfd> calls;
    for (const auto& driver : drivers_) {
      for (std::uint32_t queue = 0; queue < kQueues; ++queue) {
        calls.push_back({.fd = driver->queue(queue).call_fd(), .events = POLLIN, .revents = 0});
      }
    }
    EXPECT_EQ(::poll(calls.data(), calls.size(), static_cast<int>(span.ns / 1'000'000)), 0) << "a call without a reason";
  }

 private:
  static std::vector<DiskOptions> disks(const TestDirectory& directory) {
    std::vector<DiskOptions> disks;
    for (std::uint32_t i = 0; i < kDisks; ++i) {
      const std::string name = std::to_string(i);
      disks.push_back(test_disk(directory.image(name + ".img", 1 << 20), directory.file(name), "d" + name));
      disks.back().queues = kQueues;
    }
    return disks;
  }
  TestHost host_;
  std::vector<std::unique_ptr<BlkDriver>> drivers_;
};

// The rings that workers share with the kernel, as far as they are mapped.
std::uint64_t uring_kib() {
  std::ifstream smaps("/proc/self/smaps");
  std::uint64_t sum = 0;
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') < line.find(' ') && line.find(" r") != std::string::npos) {
      inside = line.find("[io_uring]") != std::string::npos;
    } else if (inside && line.starts_with("Size:")) {
      sum += std::stoull(line.substr(5));
    }
  }
  return sum;
}

// As many disks as a process may have, all connected, none used.
TEST(Cost, Row068_IdleDisksCostNextToNothing) {
  const TestDirectory directory;
  const std::uint64_t anonymous_before = status_kib("RssAnon"), rings_before = uring_kib();
  Crowd crowd(directory);
  ASSERT_TRUE(crowd.complete());
  for (std::uint32_t i = 0; i < Crowd::kDisks; ++i) {
    ASSERT_EQ(transfer(crowd.driver(i).queue(i % Crowd::kQueues), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  }
  ASSERT_TRUE(crowd.calls_are_taken());
  const std::vector<WorkerStats> before = workers_of(crowd.host());
  const Instant began = clock_now();
  crowd.expect_silence(Duration::seconds(3));
  const std::vector<WorkerStats> after = workers_of(crowd.host());
  const double seconds = static_cast<double>((clock_now() - began).ns) * 1e-9;
  double cpu = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double wake_ups = static_cast<double>(after[i].sleeps - before[i].sleeps) / seconds;
    const double share = static_cast<double>(after[i].cpu_ns - before[i].cpu_ns) * 1e-9 / seconds;
    std::printf("idle, %u disks x %u queues: worker %zu wakes %.1f times a second and takes %.3f %% of a core\n",
                Crowd::kDisks, Crowd::kQueues, i, wake_ups, share * 100);
    EXPECT_LE(wake_ups, 10.0);
    cpu += share;
  }
  // The rings are looked at all the same, or a kick that got lost would be lost for good.
  EXPECT_GT(after[0].sleeps, before[0].sleeps);
  EXPECT_LT(cpu, 0.01);
  // The drivers' own memory is in this too; what they share, as guests do, isn't.
  const std::uint64_t anonymous = status_kib("RssAnon") - anonymous_before, rings = uring_kib() - rings_before;
  std::printf("idle, %u disks x %u queues: %.1f MiB of private memory (drivers included), %.1f MiB of io_uring rings\n",
              Crowd::kDisks, Crowd::kQueues, static_cast<double>(anonymous) / 1024, static_cast<double>(rings) / 1024);
  if (kMemoryIsOurs) {
    EXPECT_LT((anonymous + rings) * 1024, 100'000'000U);
  }
}

TEST(Cost, Row032_IdsAreUniqueAndShortBuffersGetTheirBeginning) {
  const TestDirectory directory;
  Crowd crowd(directory);
  ASSERT_TRUE(crowd.complete());
  std::set<std::string> ids;
  for (std::uint32_t i = 0; i < Crowd::kDisks; ++i) {
    BlkDriverQueue& queue = crowd.driver(i).queue(0);
    ASSERT_EQ(transfer(queue, spec::kBlkTypeGetId, 0, 0, 20).status, spec::kBlkStatusOk);
    const std::string id(reinterpret_cast<const char*>(queue.buffer(0).host), 20);
    EXPECT_TRUE(ids.insert(id).second) << "disk " << i << " has the id of another: " << id;
    std::memset(queue.buffer(0).host, 0xee, 20);
    ASSERT_EQ(transfer(queue, spec::kBlkTypeGetId, 0, 0, 7).written_bytes, 8U);
    EXPECT_EQ(std::memcmp(queue.buffer(0).host, id.data(), 7), 0);
    EXPECT_EQ(queue.buffer(0).host[7], std::byte{0xee});
    if (i % 16 == 0) {
      // The same in the next session.
      ASSERT_TRUE(crowd.driver(i).reconnect(BlkDriver::Rings::reset));
      ASSERT_EQ(transfer(queue, spec::kBlkTypeGetId, 0, 0, 20).status, spec::kBlkStatusOk);
      EXPECT_EQ(std::memcmp(queue.buffer(0).host, id.data(), 20), 0);
    }
  }
}

double quantile(std::vector<double> values, double part) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size()));
  std::ranges::nth_element(values, place);
  return *place;
}
// Of many short rounds, what the work takes: what else runs on the machine makes rounds dearer, and a few cheaper (a part of
// the worker's turn fell between two of them).
double low(const std::vector<double>& rounds) {
  return quantile(rounds, 0.1);
}

// What one request at a time costs its worker, by rounds.
class DepthOne {
 public:
  DepthOne(TestHost& host, BlkDriverQueue& queue) : host_(host), queue_(queue) {}
  void round(std::uint32_t requests) {
    const WorkerStats before = workers_of(host_)[0];
    const Instant began = clock_now();
    for (std::uint32_t i = 0; i < requests; ++i) {
      ASSERT_EQ(transfer(queue_, spec::kBlkTypeIn, i % 256 * kBlockSectors).status, spec::kBlkStatusOk);
    }
    const auto elapsed = static_cast<double>((clock_now() - began).ns);
    const WorkerStats after = workers_of(host_)[0];
    cpu_ns_.push_back(static_cast<double>(after.cpu_ns - before.cpu_ns) / requests);
    system_calls_.push_back(static_cast<double>(after.system_calls - before.system_calls) / requests);
    rates_.push_back(requests / elapsed * 1e9);
  }
  [[nodiscard]] double cpu_ns() const { return low(cpu_ns_); }
  [[nodiscard]] double system_calls() const { return low(system_calls_); }
  [[nodiscard]] double rate() const { return quantile(rates_, 0.5); }

 private:
  TestHost& host_;
  BlkDriverQueue& queue_;
  std::vector<double> cpu_ns_, system_calls_, rates_;
};

// A busy disk beside 127 idle ones keeps at least 95 % of its rate: a request costs its worker at most 1/0.95 of what it
// does when the disk is alone, and not one system call more. Rounds alternate, so that both meet the same machine, and go on
// while noise hides the answer. (What this is for costs many times as much: a look at each queue in each turn.)
TEST(Cost, Row067_IdleNeighboursDoNotSlowABusyDisk) {
  const TestDirectory directory, other_directory;
  DiskOptions single = test_disk(other_directory.image("a.img", 1 << 20), other_directory.file("a"), "a");
  const Apart apart;
  TestHost alone_host(apart.host(), {single});
  ASSERT_TRUE(alone_host.started()) << alone_host.started().error().message;
  const auto alone_driver = connect_driver(other_directory.file("a"));
  Crowd crowd(directory, apart.host());
  ASSERT_TRUE(alone_driver != nullptr && crowd.complete());
  ASSERT_NO_FATAL_FAILURE(apart.begin());
  DepthOne alone(alone_host, alone_driver->queue(0)), beside(crowd.host(), crowd.driver(77).queue(3));
  constexpr std::uint32_t kRounds = 300, kRoundsMax = 6000, kRequests = 32;
  const auto as_cheap = [&] { return beside.cpu_ns() <= alone.cpu_ns() / 0.95; };
  for (std::uint32_t round = 0; round < kRounds || (kTimeIsOurs && round < kRoundsMax && (round % 100 != 0 || !as_cheap()));
       ++round) {
    ASSERT_NO_FATAL_FAILURE(alone.round(kRequests));
    ASSERT_NO_FATAL_FAILURE(beside.round(kRequests));
  }
  std::printf(
      "depth 1: alone %.0f ns of CPU, %.2f system calls (median %.0f/s); beside %u idle disks %.0f ns, %.2f "
      "(median %.0f/s)\n",
      alone.cpu_ns(), alone.system_calls(), alone.rate(), Crowd::kDisks - 1, beside.cpu_ns(), beside.system_calls(),
      beside.rate());
  // The safety looks, eight a second, are not the request's.
  EXPECT_LE(beside.system_calls(), alone.system_calls() * 1.02 + 0.02);
  if (kTimeIsOurs) {
    EXPECT_TRUE(as_cheap());
  }
  EXPECT_EQ(stats_of(crowd.host(), "d77").queues[3].lost_kicks, 0U);
}

// ---------------------------------------------------------------- sleeping

// Threads that wait for I/O now, over the whole machine. Others may add to it; nobody can take away from it.
std::uint64_t waiting_for_io() {
  std::ifstream stat("/proc/stat");
  for (std::string word; stat >> word;) {
    if (word == "procs_blocked") {
      std::uint64_t value = 0;
      stat >> value;
      return value;
    }
  }
  return 0;
}
std::uint64_t least_waiting_for_io() {
  std::uint64_t least = UINT64_MAX;
  for (int i = 0; i < 200; ++i) {
    least = std::min(least, waiting_for_io());
    std::this_thread::yield();
  }
  return least;
}

// A thread that sleeps in an io_uring as it comes, which the kernel counts as waiting for I/O.
class PlainSleeper {
 public:
  PlainSleeper() : event_(eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::thread([this] {
      io_uring ring{};
      if (io_uring_queue_init(4, &ring, 0) != 0) {
        return;
      }
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring);
      io_uring_prep_poll_add(sqe, event_.get(), POLLIN);
      static_cast<void>(io_uring_submit_and_wait(&ring, 1));
      io_uring_queue_exit(&ring);
    });
  }
  ~PlainSleeper() {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(event_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
  }
  PlainSleeper(const PlainSleeper&) = delete;
  PlainSleeper& operator=(const PlainSleeper&) = delete;

 private:
  UniqueFd event_;
  std::thread thread_;
};

// The kernel's number is the machine's, and pressure is computed from it. But 32 sleeping workers would make it 32 at least
// at any time, whatever else happens. That it would be seen is shown first.
TEST(Cost, Row072_SleepingWorkersDoNotCountAsWaitingForIo) {
  const auto loop = IoUringLoop::create();
  if (!loop) {
    GTEST_SKIP() << "no io_uring here: " << loop.error().message;
  }
  if ((*loop)->counts_as_iowait()) {
    GTEST_SKIP() << "this kernel has no IORING_ENTER_NO_IOWAIT (6.15)";
  }
  constexpr std::uint32_t kSleepers = 32;
  {
    std::vector<std::unique_ptr<PlainSleeper>> sleepers;
    for (std::uint32_t i = 0; i < kSleepers; ++i) {
      sleepers.push_back(std::make_unique<PlainSleeper>());
    }
    if (!eventually([&] { return waiting_for_io() >= kSleepers; }, Duration::seconds(5))) {
      GTEST_SKIP() << "/proc/stat doesn't tell who waits for I/O here";
    }
  }
  const TestDirectory directory;
  DiskOptions disk = test_disk(directory.image("a.img", 1 << 20), directory.file("a"), "a");
  disk.queues = kSleepers;
  TestHost host(with_workers(kSleepers), {disk});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_driver(BlkDriverOptions{.socket_path = directory.file("a"), .queues = kSleepers});
  ASSERT_NE(driver, nullptr);
  for (std::uint32_t i = 0; i < kSleepers; ++i) {
    ASSERT_EQ(transfer(driver->queue(i), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  }
  for (const WorkerStats& worker : workers_of(host)) {
    ASSERT_EQ(worker.engine, "io_uring");
  }
  EXPECT_LT(least_waiting_for_io(), kSleepers);
}

// ---------------------------------------------------------------- one disk on two workers

class EightQueues {
 public:
  EightQueues(const TestDirectory& directory, std::uint32_t workers)
      : name_(std::to_string(workers)),
        host_(with_workers(workers), {disk(directory)}),
        depth_(kDepthPerWorker * workers),
        costs_(workers) {
    driver_ = connect_driver(BlkDriverOptions{.socket_path = directory.file(name_), .queues = kQueues});
  }
  void round() {
    const std::vector<WorkerStats> before = workers_of(host_);
    for (std::uint32_t i = 0; i < kQueues; ++i) {
      for (std::uint32_t slot = 0; slot < depth_; ++slot) {
        submit(driver_->queue(i), spec::kBlkTypeIn, slot * kBlockSectors, slot);
      }
      driver_->queue(i).publish_and_kick();
    }
    for (std::uint32_t i = 0; i < kQueues; ++i) {
      ASSERT_TRUE(await_ok(driver_->queue(i), depth_));
    }
    const std::vector<WorkerStats> after = workers_of(host_);
    constexpr double requests = kQueues * kDepthPerWorker;  // of each worker
    for (std::size_t i = 0; i < costs_.size(); ++i) {
      costs_[i].push_back(static_cast<double>(after[i].cpu_ns - before[i].cpu_ns) / requests);
    }
  }
  [[nodiscard]] bool ready() const { return driver_ != nullptr; }
  // CPU time of a request on that worker.
  [[nodiscard]] double ns_per_request(std::size_t worker) const { return low(costs_[worker]); }
  // Requests that all workers together can serve in a nanosecond if each has a CPU.
  [[nodiscard]] double capacity() const {
    double sum = 0;
    for (std::size_t worker = 0; worker < costs_.size(); ++worker) {
      sum += 1 / ns_per_request(worker);
    }
    return sum;
  }
  [[nodiscard]] std::map<std::uint32_t, std::uint64_t> requests_by_worker() {
    std::map<std::uint32_t, std::uint64_t> served;
    for (const auto& queue : stats_of(host_, name_).queues) {
      served[queue.worker] += queue.requests[static_cast<std::size_t>(BlkOpcode::in)];
    }
    return served;
  }
  static constexpr std::uint32_t kQueues = 8, kDepthPerWorker = 32;

 private:
  DiskOptions disk(const TestDirectory& directory) const {
    DiskOptions disk = test_disk("null:1M", directory.file(name_), name_);
    disk.queues = kQueues;
    return disk;
  }
  const std::string name_;
  TestHost host_;
  const std::uint32_t depth_;  // of each queue: a worker's part of a round is the same whatever their number
  std::unique_ptr<BlkDriver> driver_;
  std::vector<std::vector<double>> costs_;  // by worker, of each round
};

// Two workers carry N times what one does if the load is dealt to both and a request costs each what it costs the lone one.
// N is at least 2 × 0.8: no lock and no shared line between them eats the gain. By CPU time, since the driver needs CPUs
// too.
TEST(Cost, Row065_TwoWorkersCarryMoreThanOne) {
  const TestDirectory directory;
  EightQueues one(directory, 1), two(directory, 2);
  ASSERT_TRUE(one.ready() && two.ready());
  constexpr std::uint32_t kRounds = 200, kRoundsMax = 10'000;
  const auto gain = [&] { return two.capacity() / one.capacity(); };
  std::uint32_t rounds = 0;
  for (; rounds < kRounds || (kTimeIsOurs && rounds < kRoundsMax && (rounds % 100 != 0 || gain() < 1.6)); ++rounds) {
    ASSERT_NO_FATAL_FAILURE(one.round());
    ASSERT_NO_FATAL_FAILURE(two.round());
  }
  std::printf("8 queues: %.0f ns of CPU a request on one worker, %.0f and %.0f ns on two: %.2f times as many\n",
              one.ns_per_request(0), two.ns_per_request(0), two.ns_per_request(1), gain());
  if (kTimeIsOurs) {
    EXPECT_GE(gain(), 1.6);
  }
  const std::uint64_t half = std::uint64_t{rounds} * EightQueues::kQueues * EightQueues::kDepthPerWorker;
  EXPECT_EQ(two.requests_by_worker(), (std::map<std::uint32_t, std::uint64_t>{{0, half}, {1, half}}));
}

// ---------------------------------------------------------------- no heap

struct HeapCase {
  const char* name;
  BlkEngine engine;  // of a file; automatic: see `path`
  const char* path;  // empty: a file on the temporary directory's file system; "memory": a file in memory
  bool packed;
};

void PrintTo(const HeapCase& each, std::ostream* out) {
  *out << each.name;
}

class NoHeap : public testing::TestWithParam<HeapCase> {};
INSTANTIATE_TEST_SUITE_P(Stores, NoHeap,
                         testing::Values(HeapCase{"ram_split", BlkEngine::automatic, "ram:4M", false},
                                         HeapCase{"ram_packed", BlkEngine::automatic, "ram:4M", true},
                                         HeapCase{"null_split", BlkEngine::automatic, "null:4M", false},
                                         HeapCase{"null_packed", BlkEngine::automatic, "null:4M", true},
                                         HeapCase{"uring_split", BlkEngine::io_uring, "", false},
                                         HeapCase{"uring_packed", BlkEngine::io_uring, "", true},
                                         HeapCase{"threads_split", BlkEngine::threads, "", false},
                                         HeapCase{"threads_packed", BlkEngine::threads, "", true},
                                         HeapCase{"inline_split", BlkEngine::inline_, "memory", false},
                                         HeapCase{"inline_packed", BlkEngine::inline_, "memory", true}),
                         [](const auto& each) { return each.param.name; });

// From popping to the call: every kind of request, short and long, with an in-flight region, at depth 32.
TEST_P(NoHeap, WorkerAllocatesNothingPerRequest) {
  if (!kTimeIsOurs) {
    GTEST_SKIP() << "the sanitizer has an operator new of its own";
  }
  const TestDirectory directory;
  const UniqueFd memory(memfd_create("image", MFD_CLOEXEC));
  std::string path = GetParam().path;
  if (path.empty()) {
    path = directory.image("a.img", 4 << 20);
  } else if (path == "memory") {
    ASSERT_EQ(ftruncate(memory.get(), 4 << 20), 0);
    path = "/proc/self/fd/" + std::to_string(memory.get());
  }
  DiskOptions disk = test_disk(path, directory.file("a"), "a");
  disk.engine = GetParam().engine;
  TestHost host({}, {disk});
  if (!host.started()) {
    ASSERT_EQ(GetParam().engine, BlkEngine::io_uring) << host.started().error().message;
    GTEST_SKIP() << host.started().error().message;
  }
  BlkDriverOptions wanted{.socket_path = directory.file("a"), .packed = GetParam().packed};
  constexpr std::uint32_t kDepth = 32, kLongSegments = 100;
  wanted.requests_per_queue = kDepth;
  wanted.segments_max = kLongSegments;
  wanted.inflight = true;
  const auto driver = connect_driver(wanted);
  ASSERT_NE(driver, nullptr);
  ASSERT_EQ(driver->negotiated().ring.packed, GetParam().packed);
  BlkDriverQueue& queue = driver->queue(0);

  const auto batch = [&](std::uint32_t round) {
    for (std::uint32_t slot = 0; slot < kDepth; ++slot) {
      const std::uint32_t kind = (slot + round) % 16;
      const std::uint64_t sector = slot * kBlockSectors * 16;
      std::vector<DriverBuffer> data{{queue.buffer(slot).guest, kBlock, true}};
      spec::BlkRange range{.sector = sector, .sectors = 8, .flags = 0};
      BlkDriverRequest request{
          .type = slot % 2 == 0 ? spec::kBlkTypeIn : spec::kBlkTypeOut, .sector = sector, .token = slot, .data = data};
      if (kind == 0) {
        data.assign(kLongSegments, {queue.buffer(slot).guest, 512, true});
        request.data = data;
      } else if (kind == 1) {
        data[0].bytes = 20;
        request.type = spec::kBlkTypeGetId;
      } else if (kind == 2 && round % 8 == 0) {
        request = {.type = spec::kBlkTypeFlush, .token = slot};
      } else if (kind == 3 && round % 8 == 0) {
        request = {.type = spec::kBlkTypeWriteZeroes, .token = slot, .ranges = {&range, 1}};
      } else if (kind == 4 && round % 8 == 0) {
        request = {.type = spec::kBlkTypeDiscard, .token = slot, .ranges = {&range, 1}};
      }
      ASSERT_TRUE(queue.submit(request));
    }
    queue.publish_and_kick();
    for (std::uint32_t i = 0; i < kDepth; ++i) {
      const BlkCompletion completion = await_completion(queue);
      ASSERT_LT(completion.token, kDepth);
      // Not every file system can discard.
      ASSERT_NE(completion.status, spec::kBlkStatusIoErr) << "slot " << completion.token << " in round " << round;
    }
  };
  const auto allocations = [&] {
    std::promise<std::uint64_t> promise;
    auto future = promise.get_future();
    host.call([&](Host& h) {
      h.workers().ports()[0].executor->post([&] { promise.set_value(allocations_of_this_thread()); });
      return 0;
    });
    return future.get();
  };
  // Until everything has come once that comes ever: the safety look too, which is an eighth of a second's.
  const Instant warm = clock_now() + Duration{3 * limits::kSafetyStep.ns};
  std::uint32_t round = 0;
  for (; clock_now() < warm || round < 32; ++round) {
    ASSERT_NO_FATAL_FAILURE(batch(round));
  }
  const std::uint64_t before = allocations();
  ASSERT_GT(before, 0U) << "the worker made its loop: the counter must have seen that";
  constexpr std::uint32_t kRounds = 10'000 / kDepth + 1;
  for (const std::uint32_t end = round + kRounds; round < end; ++round) {
    ASSERT_NO_FATAL_FAILURE(batch(round));
  }
  EXPECT_EQ(allocations() - before, 0U) << "in " << kRounds * kDepth << " requests";
}

}  // namespace
}  // namespace ringway::conformance
