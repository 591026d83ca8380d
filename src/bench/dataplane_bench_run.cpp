// The implementation of dataplane_bench.hpp. (A file named *_bench.cpp would be a micro-benchmark to the build.)
#include "bench/dataplane_bench.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "base/prng.hpp"
#include "bench/bench_threads.hpp"
#include "bench/process_cpu.hpp"
#include "driver/blk_driver.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

constexpr Duration kSilenceMax = Duration::seconds(10);
constexpr Duration kSleepMax = Duration::seconds(1);  // so that the end of the time is seen
constexpr std::uint32_t kBufferBytes = 128U << 10U;   // the longest block of the workloads

struct DataplaneJob {
  BlkDriver* driver = nullptr;
  std::uint64_t blocks = 0;
  std::uint64_t cursor = 0;
};

// What is read at both ends of the measured part.
struct DataplaneMark {
  Instant time = {};
  std::uint64_t requests = 0;
  Duration cpu = {};      // of the driver's thread
  Duration backend = {};  // of the whole process
};

// Some jobs on one thread. Either fills their disks once, or plays the workload for a time.
class DataplaneThread {
 public:
  DataplaneThread(const DataplaneWorkload& workload, const DataplaneBenchOptions& options, std::uint64_t seed)
      : workload_(workload), options_(options), random_(seed) {}

  void add(BlkDriver& driver) {
    jobs_.push_back(
        {.driver = &driver, .blocks = driver.capacity_sectors() * spec::kSectorBytes / workload_.block_bytes, .cursor = 0});
    queues_.push_back(&driver.queue(0));
  }
  void fill_only() { filling_ = true; }
  void watch_backend(pid_t pid) { backend_pid_ = pid; }

  [[nodiscard]] Result<> prepare() { return {}; }
  [[nodiscard]] Result<> run();

  [[nodiscard]] const DataplaneMark& begin() const { return begin_; }
  [[nodiscard]] const DataplaneMark& end() const { return end_; }

 private:
  [[nodiscard]] bool turn(DataplaneJob& job) noexcept;
  void send(DataplaneJob& job) noexcept;
  void look_at_time(Instant now);
  [[nodiscard]] DataplaneMark mark() const;
  [[nodiscard]] Result<> wait(Instant now);

  const DataplaneWorkload& workload_;
  const DataplaneBenchOptions& options_;
  Prng random_;
  std::vector<DataplaneJob> jobs_;
  std::vector<DriverQueue*> queues_;
  pid_t backend_pid_ = 0;
  bool filling_ = false;

  bool measuring_ = false;
  bool stopping_ = false;
  std::uint64_t in_flight_ = 0, requests_ = 0, failed_ = 0;
  Instant warm_until_, run_until_, last_progress_;
  DataplaneMark begin_, end_;
};

Result<> DataplaneThread::run() {
  last_progress_ = clock_now();
  warm_until_ = last_progress_ + options_.warm_up;
  for (DataplaneJob& job : jobs_) {
    send(job);
  }
  while (in_flight_ > 0) {
    bool progress = false;
    for (DataplaneJob& job : jobs_) {
      progress |= turn(job);
    }
    const Instant now = clock_now();
    look_at_time(now);
    if (progress) {
      last_progress_ = now;
    } else {
      RW_TRY(wait(now));
    }
  }
  return failed_ == 0 ? Result<>() : fail(fmt::format("{} of {} requests failed", failed_, requests_ + failed_));
}

bool DataplaneThread::turn(DataplaneJob& job) noexcept {
  std::array<BlkCompletion, 1> completion;
  if (job.driver->queue(0).reap(completion) == 0) {
    return false;
  }
  ++(completion[0].status == spec::kBlkStatusOk ? requests_ : failed_);
  --in_flight_;
  if (!stopping_) {
    send(job);
  }
  return true;
}

void DataplaneThread::send(DataplaneJob& job) noexcept {
  if (filling_ && job.cursor == job.blocks) {
    return;
  }
  std::uint64_t block = 0;
  if (workload_.sequential) {
    block = job.cursor++;
    if (job.cursor == job.blocks && !filling_) {
      job.cursor = 0;
    }
  } else {
    block = random_.below(job.blocks);
  }
  BlkDriverQueue& queue = job.driver->queue(0);
  const DriverBuffer data{queue.buffer(0).guest, workload_.block_bytes, false};
  const bool room = queue.submit({.type = workload_.write ? spec::kBlkTypeOut : spec::kBlkTypeIn,
                                  .sector = block * (workload_.block_bytes / spec::kSectorBytes),
                                  .token = 0,
                                  .data = std::span(&data, 1),
                                  .ranges = {}});
  RW_CHECK(room);  // one in flight
  ++in_flight_;
  queue.publish_and_kick();
}

void DataplaneThread::look_at_time(Instant now) {
  if (filling_ || stopping_) {
    return;
  }
  if (!measuring_ && now >= warm_until_) {
    begin_ = mark();
    begin_.time = clock_now();  // reading /proc takes a while, which isn't measured
    run_until_ = begin_.time + options_.runtime;
    measuring_ = true;
  } else if (measuring_ && now >= run_until_) {
    end_ = mark();
    end_.time = now;
    stopping_ = true;
  }
}

DataplaneMark DataplaneThread::mark() const {
  DataplaneMark mark{.requests = requests_, .cpu = thread_cpu_time(gettid()).value_or(Duration{})};
  if (backend_pid_ > 0) {
    mark.backend = process_cpu_time(backend_pid_).value_or(Duration{-1});
  }
  return mark;
}

Result<> DataplaneThread::wait(Instant now) {
  if (now - last_progress_ > kSilenceMax) {
    return fail(fmt::format("no request completed for {} s; {} are in flight", kSilenceMax.ns / 1'000'000'000, in_flight_));
  }
  if (now - last_progress_ > kSleepMax &&
      std::ranges::any_of(jobs_, [](const DataplaneJob& job) { return job.driver->peer_closed(); })) {
    return fail("the back-end closed a connection with requests in flight");
  }
  const Instant deadline = now + kSleepMax;
  // Woken or not, the rings are looked at next.
  static_cast<void>(queues_.size() == 1 ? queues_.front()->wait(deadline) : DriverQueue::wait_any(queues_, deadline));
  return {};
}

// ---------------------------------------------------------------- around the threads

using Drivers = std::vector<std::unique_ptr<BlkDriver>>;

Result<Drivers> connect_all(const DataplaneTarget& target) {
  Drivers drivers;
  for (const std::string& path : target.socket_paths) {
    BlkDriverOptions options;
    options.socket_path = path;
    options.queue_size = 4;
    options.requests_per_queue = 1;
    options.buffer_bytes = kBufferBytes;
    RW_TRY_ASSIGN(std::unique_ptr<BlkDriver> driver, BlkDriver::create(options));
    if (driver->capacity_sectors() * spec::kSectorBytes < kBufferBytes) {
      return fail(fmt::format("the disk at '{}' is too small; it needs {} bytes", path, kBufferBytes));
    }
    drivers.push_back(std::move(driver));
  }
  return drivers;
}

// One thread's jobs are every n-th disk of the first `jobs`.
std::vector<std::unique_ptr<DataplaneThread>> make_threads(const DataplaneBenchOptions& options,
                                                           const DataplaneWorkload& workload, const Drivers& drivers,
                                                           std::size_t jobs) {
  const std::size_t count = std::min<std::size_t>(std::max(options.driver_threads, 1U), jobs);
  std::vector<std::unique_ptr<DataplaneThread>> threads;
  for (std::size_t number = 0; number < count; ++number) {
    auto thread = std::make_unique<DataplaneThread>(workload, options, number + 1);
    for (std::size_t disk = number; disk < jobs; disk += count) {
      thread->add(*drivers[disk]);
    }
    threads.push_back(std::move(thread));
  }
  return threads;
}

Result<DataplaneCell> measure_jobs(const DataplaneBenchOptions& options, const DataplaneWorkload& workload,
                                   const Drivers& drivers, std::uint32_t jobs, pid_t backend) {
  const auto threads = make_threads(options, workload, drivers, jobs);
  threads.front()->watch_backend(backend);
  RW_TRY(run_bench_threads(threads, options.driver_cpus));
  double rate = 0;        // MB/s
  double driver_cpu = 0;  // seconds per second
  for (const auto& thread : threads) {
    const double seconds = static_cast<double>((thread->end().time - thread->begin().time).ns) * 1e-9;
    const std::uint64_t requests = thread->end().requests - thread->begin().requests;
    rate += static_cast<double>(requests * workload.block_bytes) * 1e-6 / seconds;
    driver_cpu += static_cast<double>((thread->end().cpu - thread->begin().cpu).ns) * 1e-9 / seconds;
  }
  const DataplaneMark& begin = threads.front()->begin();
  const DataplaneMark& end = threads.front()->end();
  if (begin.backend.ns < 0 || end.backend.ns < 0) {
    return fail("the processor time of the back-end can't be read");
  }
  const double backend_cpu =
      static_cast<double>((end.backend - begin.backend).ns) / static_cast<double>((end.time - begin.time).ns);
  return DataplaneCell{.megabytes_per_second = rate,
                       .backend_us_per_megabyte = rate > 0 ? backend_cpu * 1e6 / rate : 0,
                       .driver_us_per_megabyte = rate > 0 ? driver_cpu * 1e6 / rate : 0};
}

// So that memory and files are there when they are measured.
Result<> fill_disks(const DataplaneBenchOptions& options, const Drivers& drivers) {
  static constexpr DataplaneWorkload kFill{.name = "fill", .sequential = true, .write = true, .block_bytes = kBufferBytes};
  const auto threads = make_threads(options, kFill, drivers, drivers.size());
  for (const auto& thread : threads) {
    thread->fill_only();
  }
  return run_bench_threads(threads, options.driver_cpus);
}

using PlaceOfCell = std::tuple<std::string_view, std::uint32_t, std::string>;  // pattern, jobs, placement
using CellsByPlace = std::map<PlaceOfCell, std::vector<DataplaneCell>>;

Result<> measure_placement(const DataplaneBenchOptions& options, const std::string& placement, CellsByPlace& cells) {
  RW_TRY_ASSIGN(const DataplaneTarget target, options.start(placement));
  RW_TRY_ASSIGN(const Drivers drivers, connect_all(target));
  RW_TRY(fill_disks(options, drivers));
  for (const DataplaneWorkload& workload : kDataplaneWorkloads) {
    for (const std::uint32_t jobs : options.jobs) {
      if (jobs == 0 || jobs > drivers.size()) {
        return fail(fmt::format("{} jobs need as many disks, and there are {}", jobs, drivers.size()));
      }
      RW_TRY_ASSIGN(const DataplaneCell cell, measure_jobs(options, workload, drivers, jobs, target.backend_pid));
      cells[{workload.name, jobs, placement}].push_back(cell);
    }
  }
  return {};
}

}  // namespace

Result<DataplaneTable> measure_dataplane(const DataplaneBenchOptions& options) {
  RW_CHECK(options.start && options.rounds > 0 && !options.placements.empty());
  CellsByPlace cells;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < options.placements.size(); ++i) {
      const std::string& placement = options.placements[round % 2 == 0 ? i : options.placements.size() - 1 - i];
      if (options.on_progress) {
        options.on_progress(fmt::format("round {} of {}, workers {}", round + 1, options.rounds, placement));
      }
      if (const Result<> measured = measure_placement(options, placement, cells); !measured) {
        return fail(fmt::format("workers {}: {}", placement, measured.error().message));
      }
    }
  }
  DataplaneTable table{.title = {}, .baseline = options.placements.front(), .entries = {}};
  for (const DataplaneWorkload& workload : kDataplaneWorkloads) {
    for (const std::uint32_t jobs : options.jobs) {
      for (const std::string& placement : options.placements) {
        table.entries.push_back(dataplane_entry(placement, workload.name, jobs, cells.at({workload.name, jobs, placement})));
      }
    }
  }
  return table;
}

}  // namespace ringway
