// The implementation of blk_bench.hpp. (A file named *_bench.cpp would be a micro-benchmark to the build.)
//
// One BenchThread drives some queues, in passes. An ordinary run has one, the timed one, whose measured part begins when the
// warm-up is over; with `verify` a pass that writes every block goes before it and a pass that reads every block comes
// after. With a number of requests the warm-up is a pass of its own, which ends with nothing in flight: what is measured is
// then just these requests, sent and completed, and not those that the warm-up had in flight.
//
// The clock is read once per turn in which a measured request completes or is sent, and every 64 turns besides: that is how
// the end of the time is seen. Rates are requests over the time between the two reads that bound the measured part, so a
// late look does not bend them.
#include "bench/blk_bench.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <ostream>

#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "base/fence.hpp"
#include "base/prng.hpp"
#include "bench/bench_threads.hpp"
#include "bench/connect_backend.hpp"
#include "bench/process_cpu.hpp"
#include "bench/report_error.hpp"
#include "driver/blk_driver.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

constexpr Duration kStallLimit = Duration::seconds(10);
constexpr Duration kLookPeriod = Duration::seconds(1);  // a sleeping thread wakes at least so often to see the end
constexpr std::uint64_t kVerifyRangeMax = 256ULL << 20U;
constexpr std::uint32_t kTurnsPerLook = 64;
constexpr std::size_t kReapBatch = 64;

// What a block's 8-byte words hold after `generation` writes (0: never written by us).
std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t block, std::uint32_t generation, std::uint64_t word) {
  return (seed ^ (block << 20U) ^ (std::uint64_t{generation} << 56U)) + (word + 1) * 0x9e3779b97f4a7c15ULL;
}

struct RequestSlot {
  std::vector<DriverBuffer> segments;
  std::byte* data = nullptr;
  std::int64_t sent_ns = 0;  // 0: not measured
  std::uint64_t block = 0;
  bool write = false;
};

struct QueueWork {
  BlkDriverQueue* queue = nullptr;
  std::vector<RequestSlot> slots;
  std::uint64_t first_block = 0;  // of this queue's part of the range
  std::uint64_t blocks = 0;
  std::uint64_t cursor = 0;  // of sequential runs and passes
  // With verify, by block: how often it was written, and whether a request is in flight on it.
  std::vector<std::uint8_t> generation;
  std::vector<std::uint8_t> busy;
};

enum class Pass : std::uint8_t { fill, warm_up, timed, read_back };

// What is read at both ends of the measured part.
struct Snapshot {
  Instant time;
  std::uint64_t requests = 0, failed = 0;
  BlkDriverQueue::Counters notifications;
  Duration cpu, run_delay, backend_cpu;
};

class BenchThread {
 public:
  BenchThread(const BlkBenchOptions& options, BlkDriver& driver, std::uint32_t number, std::uint32_t latency_every)
      : options_(options),
        driver_(driver),
        latency_every_(latency_every),
        sectors_per_block_(options.block_bytes / spec::kSectorBytes),
        random_(options.seed * 1'000'003 + number) {}

  void add_queue(BlkDriverQueue& queue, std::uint64_t first_block, std::uint64_t blocks);
  void limit_requests(std::uint64_t requests) { requests_max_ = requests; }
  void watch_backend(pid_t pid) { backend_pid_ = pid; }

  // Fills (verify).
  [[nodiscard]] Result<> prepare();
  // Runs, and reads back (verify).
  [[nodiscard]] Result<> run();

  [[nodiscard]] const Snapshot& begin() const { return begin_; }
  [[nodiscard]] const Snapshot& end() const { return end_; }
  [[nodiscard]] const LatencyHistogram& latency() const { return *latency_; }
  [[nodiscard]] std::uint64_t mismatched() const { return mismatched_; }

 private:
  [[nodiscard]] Result<> drive(Pass pass);
  [[nodiscard]] bool turn(QueueWork& work) noexcept;
  [[nodiscard]] bool send(QueueWork& work, std::uint32_t slot_number) noexcept;
  [[nodiscard]] bool choose(QueueWork& work, RequestSlot& slot) noexcept;
  void prepare_verified(QueueWork& work, RequestSlot& slot) noexcept;
  void check_verified(QueueWork& work, RequestSlot& slot, bool ok) noexcept;
  void look_at_clock(Instant now);
  [[nodiscard]] Result<> check_alive(Instant now);
  void wait(Instant now);
  [[nodiscard]] Snapshot snapshot(bool at_end) const;
  [[nodiscard]] bool measured_next() noexcept {
    if (--until_measured_ == 0) {
      until_measured_ = latency_every_;
      return true;
    }
    return false;
  }

  const BlkBenchOptions& options_;
  BlkDriver& driver_;
  std::uint32_t latency_every_;
  std::uint32_t until_measured_ = 1;
  std::uint32_t sectors_per_block_;
  Prng random_;
  std::vector<QueueWork> queues_;
  std::vector<DriverQueue*> raw_queues_;
  std::optional<std::uint64_t> requests_max_;  // of the timed pass
  pid_t backend_pid_ = 0;

  Pass pass_ = Pass::timed;
  bool stopping_ = false;
  bool measuring_ = false;
  std::uint64_t in_flight_ = 0;
  std::uint64_t sent_ = 0;      // in this pass
  std::uint64_t requests_ = 0;  // that ended well, since the thread's start
  std::uint64_t failed_ = 0;
  std::uint64_t mismatched_ = 0;
  std::array<BlkCompletion, kReapBatch> completions_;  // scratch of turn(), which mustn't clear it for each look
  Instant turn_time_;                                  // the turn's clock read, if it had one
  bool turn_time_valid_ = false;
  Instant warm_until_, run_until_;
  std::uint64_t answers_seen_ = 0;
  Instant last_progress_;
  Snapshot begin_, end_;
  std::unique_ptr<LatencyHistogram> latency_ = std::make_unique<LatencyHistogram>();
};

void BenchThread::add_queue(BlkDriverQueue& queue, std::uint64_t first_block, std::uint64_t blocks) {
  QueueWork work;
  work.queue = &queue;
  work.first_block = first_block;
  work.blocks = blocks;
  work.slots.resize(options_.depth);
  const std::uint32_t per_segment = options_.block_bytes / options_.segments;
  for (std::uint32_t number = 0; number < options_.depth; ++number) {
    const SharedBlock buffer = queue.buffer(number);
    work.slots[number].data = buffer.host;
    for (std::uint32_t segment = 0; segment < options_.segments; ++segment) {
      const std::uint32_t start = segment * per_segment;
      const std::uint32_t bytes = segment + 1 == options_.segments ? options_.block_bytes - start : per_segment;
      work.slots[number].segments.push_back({GuestAddress{buffer.guest.value + start}, bytes, false});
    }
    // Touched now, so that the first requests don't pay for page faults.
    std::memset(buffer.host, 0x5a, options_.block_bytes);
  }
  if (options_.verify) {
    work.generation.resize(blocks);
    work.busy.resize(blocks);
  }
  queues_.push_back(std::move(work));
  raw_queues_.push_back(&queue);
}

Result<> BenchThread::prepare() {
  return options_.verify ? drive(Pass::fill) : Result<>();
}

Result<> BenchThread::run() {
  if (requests_max_ && options_.warm_up.ns > 0) {
    RW_TRY(drive(Pass::warm_up));
  }
  RW_TRY(drive(Pass::timed));
  return options_.verify ? drive(Pass::read_back) : Result<>();
}

Result<> BenchThread::drive(Pass pass) {
  pass_ = pass;
  stopping_ = false;
  measuring_ = false;
  sent_ = 0;
  until_measured_ = 1;
  for (QueueWork& work : queues_) {
    work.cursor = 0;
  }
  Instant now = clock_now();
  last_progress_ = now;
  const bool is_warm = pass == Pass::timed && requests_max_;
  warm_until_ = is_warm ? now : now + options_.warm_up;
  run_until_ = warm_until_ + options_.runtime;
  turn_time_ = now;
  turn_time_valid_ = true;
  look_at_clock(now);
  // Slot by slot, so that fewer requests than slots are spread over the queues.
  for (std::uint32_t slot = 0; slot < options_.depth; ++slot) {
    for (QueueWork& work : queues_) {
      static_cast<void>(send(work, slot));
    }
  }
  for (const QueueWork& work : queues_) {
    work.queue->publish_and_kick();
  }
  std::uint32_t turns = 0;
  while (in_flight_ > 0) {
    turn_time_valid_ = false;
    bool progress = false;
    for (QueueWork& work : queues_) {
      progress |= turn(work);
    }
    if (turn_time_valid_ || ++turns % kTurnsPerLook == 0) {
      now = turn_time_valid_ ? turn_time_ : clock_now();
      look_at_clock(now);
      RW_TRY(check_alive(now));
    }
    if (!progress) {
      options_.sleeping ? wait(now) : spin_pause();
    }
  }
  if (measuring_) {
    // Ended with its last request.
    end_ = snapshot(true);
    measuring_ = false;
  }
  return {};
}

// Reaps a batch of one queue, sends as many again, publishes once. True if there was anything.
bool BenchThread::turn(QueueWork& work) noexcept {
  const std::size_t count = work.queue->reap(completions_);
  if (count == 0) {
    return false;
  }
  for (const BlkCompletion& completion : std::span(completions_).first(count)) {
    RequestSlot& slot = work.slots[completion.token];
    const bool ok = completion.status == spec::kBlkStatusOk;
    ++(ok ? requests_ : failed_);
    --in_flight_;
    if (slot.sent_ns != 0) {
      if (!turn_time_valid_) {
        turn_time_ = clock_now();
        turn_time_valid_ = true;
      }
      // A refusal says nothing of how long a read or write takes.
      if (measuring_ && ok) {
        latency_->record(turn_time_ - Instant{slot.sent_ns});
      }
    }
    if (options_.verify) {
      check_verified(work, slot, ok);
    }
    if (!stopping_) {
      static_cast<void>(send(work, static_cast<std::uint32_t>(completion.token)));
    }
  }
  work.queue->publish_and_kick();
  return true;
}

bool BenchThread::send(QueueWork& work, std::uint32_t slot_number) noexcept {
  RequestSlot& slot = work.slots[slot_number];
  if (!choose(work, slot)) {
    return false;
  }
  if (options_.verify) {
    prepare_verified(work, slot);
  }
  slot.sent_ns = 0;
  if (measured_next()) {
    if (!turn_time_valid_) {
      turn_time_ = clock_now();
      turn_time_valid_ = true;
    }
    slot.sent_ns = turn_time_.ns;
  }
  const bool room = work.queue->submit({.type = slot.write ? spec::kBlkTypeOut : spec::kBlkTypeIn,
                                        .sector = slot.block * sectors_per_block_,
                                        .token = slot_number,
                                        .data = slot.segments,
                                        .ranges = {}});
  // measure_blk() made the ring large enough for the depth.
  RW_CHECK(room);
  ++in_flight_;
  ++sent_;
  return true;
}

// The next block and direction. False when the pass has no more.
bool BenchThread::choose(QueueWork& work, RequestSlot& slot) noexcept {
  if (pass_ == Pass::timed && requests_max_ && sent_ == *requests_max_) {
    return false;
  }
  if (pass_ == Pass::fill || pass_ == Pass::read_back) {
    if (work.cursor == work.blocks) {
      return false;
    }
    slot.block = work.first_block + work.cursor++;
    slot.write = pass_ == Pass::fill;
    return true;
  }
  slot.write = options_.read_percent < 100 && random_.below(100) >= options_.read_percent;
  std::uint64_t index = 0;
  if (options_.pattern == BlkBenchPattern::random) {
    index = random_.below(work.blocks);
  } else {
    index = work.cursor;
    work.cursor = work.cursor + 1 == work.blocks ? 0 : work.cursor + 1;
  }
  if (options_.verify) {
    // There are more blocks than requests in flight (measure_blk() checks), so a free one is near.
    while (work.busy[index] != 0) {
      index = index + 1 == work.blocks ? 0 : index + 1;
    }
  }
  slot.block = work.first_block + index;
  return true;
}

void BenchThread::prepare_verified(QueueWork& work, RequestSlot& slot) noexcept {
  const std::uint64_t index = slot.block - work.first_block;
  work.busy[index] = 1;
  const std::size_t words = options_.block_bytes / sizeof(std::uint64_t);
  if (!slot.write) {
    // So that a read that doesn't fill its buffer can't pass.
    std::memset(slot.data, 0xdb, options_.block_bytes);
    return;
  }
  ++work.generation[index];
  for (std::size_t word = 0; word < words; ++word) {
    const std::uint64_t value = pattern_word(options_.seed, slot.block, work.generation[index], word);
    std::memcpy(slot.data + word * sizeof value, &value, sizeof value);
  }
}

void BenchThread::check_verified(QueueWork& work, RequestSlot& slot, bool ok) noexcept {
  const std::uint64_t index = slot.block - work.first_block;
  work.busy[index] = 0;
  if (slot.write || !ok) {
    return;
  }
  const std::size_t words = options_.block_bytes / sizeof(std::uint64_t);
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t value = 0;
    std::memcpy(&value, slot.data + word * sizeof value, sizeof value);
    if (value != pattern_word(options_.seed, slot.block, work.generation[index], word)) {
      ++mismatched_;
      return;
    }
  }
}

void BenchThread::look_at_clock(Instant now) {
  if (pass_ == Pass::warm_up) {
    stopping_ = now >= warm_until_;
  }
  if (pass_ != Pass::timed || stopping_) {
    return;
  }
  if (!measuring_ && now >= warm_until_) {
    begin_ = snapshot(false);
    measuring_ = true;
    // Reading /proc took time that isn't the back-end's: the run ends as much later.
    run_until_ = begin_.time + options_.runtime;
    turn_time_ = begin_.time;
  } else if (measuring_ && now >= run_until_) {
    end_ = snapshot(true);
    measuring_ = false;
    stopping_ = true;
  }
}

Result<> BenchThread::check_alive(Instant now) {
  if (requests_ + failed_ != answers_seen_) {
    answers_seen_ = requests_ + failed_;
    last_progress_ = now;
    return {};
  }
  if (now - last_progress_ < kLookPeriod) {
    return {};
  }
  if (driver_.peer_closed()) {
    return fail(fmt::format("the back-end closed the connection with {} requests in flight", in_flight_));
  }
  if (now - last_progress_ > kStallLimit) {
    return fail(fmt::format("no request completed for {} s; {} are in flight", kStallLimit.ns / 1'000'000'000, in_flight_));
  }
  return {};
}

void BenchThread::wait(Instant now) {
  const Instant deadline = std::max(now, last_progress_) + kLookPeriod;
  const bool ready =
      raw_queues_.size() == 1 ? raw_queues_.front()->wait(deadline) : DriverQueue::wait_any(raw_queues_, deadline);
  if (!ready) {
    turn_time_ = clock_now();
    turn_time_valid_ = true;
  }
}

Snapshot BenchThread::snapshot(bool at_end) const {
  Snapshot shot;
  // The clock comes last at the start and first at the end: the reading of /proc is outside of the measured time.
  if (at_end) {
    shot.time = clock_now();
  }
  shot.requests = requests_;
  shot.failed = failed_;
  for (DriverQueue* queue : raw_queues_) {
    const DriverQueue::Counters counters = queue->counters();
    shot.notifications.kicks += counters.kicks;
    shot.notifications.calls += counters.calls;
    shot.notifications.waits += counters.waits;
  }
  shot.cpu = thread_cpu_time(gettid()).value_or(Duration{});
  shot.run_delay = thread_run_delay(gettid()).value_or(Duration{});
  shot.backend_cpu = Duration{-1};
  if (backend_pid_ > 0) {
    shot.backend_cpu = process_cpu_time(backend_pid_).value_or(Duration{-1});
  }
  if (!at_end) {
    shot.time = clock_now();
  }
  return shot;
}

// --- around the threads ---

std::uint32_t needed_descriptors(const BlkBenchOptions& options, bool indirect) {
  return options.depth * (indirect ? 1 : options.segments + 2);
}

BlkDriverOptions driver_options(const BlkBenchOptions& options) {
  BlkDriverOptions driver;
  driver.socket_path = options.socket_path;
  driver.patience = options.patience;
  driver.packed = options.packed;
  driver.indirect = options.indirect;
  driver.event_index = options.event_index;
  driver.in_order = options.in_order;
  driver.queues = options.queues;
  driver.queue_size = options.queue_size != 0
                          ? options.queue_size
                          : std::bit_ceil(std::max<std::uint32_t>(needed_descriptors(options, options.indirect), 128));
  driver.requests_per_queue = options.depth;
  driver.segments_max = options.segments;
  driver.buffer_bytes = options.block_bytes;
  driver.pages = options.pages;
  return driver;
}

struct Range {
  std::uint64_t first_block = 0, blocks = 0;
};

Result<Range> choose_range(const BlkBenchOptions& options, const BlkDriver& driver) {
  if (options.block_bytes % driver.block_bytes() != 0) {
    return fail(
        fmt::format("requests of {} bytes don't fit the disk's blocks of {}", options.block_bytes, driver.block_bytes()));
  }
  if (driver.read_only() && (options.verify || options.read_percent < 100)) {
    return fail("the disk is read-only; only reads without verify are possible");
  }
  const std::uint64_t capacity = driver.capacity_sectors() * spec::kSectorBytes;
  if (options.offset_bytes % options.block_bytes != 0 || options.offset_bytes >= capacity) {
    return fail(fmt::format("offset {} is no multiple of the block of {} bytes, or beyond the disk of {} bytes",
                            options.offset_bytes, options.block_bytes, capacity));
  }
  std::uint64_t bytes = capacity - options.offset_bytes;
  if (options.range_bytes != 0) {
    if (options.range_bytes > bytes) {
      return fail(fmt::format("a range of {} bytes from {} exceeds the disk of {}", options.range_bytes,
                              options.offset_bytes, capacity));
    }
    bytes = options.range_bytes;
  } else if (options.verify) {
    bytes = std::min(bytes, kVerifyRangeMax);
  }
  const Range range{options.offset_bytes / options.block_bytes, bytes / options.block_bytes};
  const std::uint64_t needed = options.verify ? std::uint64_t{options.queues} * (options.depth + 1) : options.queues;
  if (range.blocks < needed) {
    return fail(
        fmt::format("{} blocks of {} bytes are too few; this workload needs {}", range.blocks, options.block_bytes, needed));
  }
  return range;
}

void collect(const std::vector<std::unique_ptr<BenchThread>>& threads, const BlkBenchOptions& options,
             BlkBenchResult& result) {
  bool backend_known = false;
  double backend_cpu = 0;
  for (const auto& thread : threads) {
    const Snapshot& begin = thread->begin();
    const Snapshot& end = thread->end();
    const double seconds = static_cast<double>((end.time - begin.time).ns) * 1e-9;
    const std::uint64_t requests = end.requests - begin.requests;
    result.requests += requests;
    result.failed += end.failed - begin.failed;
    result.mismatched += thread->mismatched();
    result.iops += seconds > 0 ? static_cast<double>(requests) / seconds : 0;
    result.seconds = std::max(result.seconds, seconds);
    result.driver_cpu_seconds += static_cast<double>((end.cpu - begin.cpu).ns) * 1e-9;
    if (seconds > 0) {
      result.driver_run_delay =
          std::max(result.driver_run_delay, static_cast<double>((end.run_delay - begin.run_delay).ns) * 1e-9 / seconds);
    }
    result.kicks += end.notifications.kicks - begin.notifications.kicks;
    result.calls += end.notifications.calls - begin.notifications.calls;
    result.sleeps += end.notifications.waits - begin.notifications.waits;
    result.latency.merge(thread->latency());
    if (begin.backend_cpu.ns >= 0 && end.backend_cpu.ns >= 0) {
      backend_known = true;
      backend_cpu = static_cast<double>((end.backend_cpu - begin.backend_cpu).ns) * 1e-9;
    }
  }
  result.megabytes_per_second = result.iops * options.block_bytes * 1e-6;
  result.backend_cpu_seconds = backend_known ? backend_cpu : -1;
}

}  // namespace

Result<> check_blk_bench_options(const BlkBenchOptions& options) {
  if (options.block_bytes == 0 || options.block_bytes % spec::kSectorBytes != 0) {
    return fail(fmt::format("a block of {} bytes is no multiple of 512", options.block_bytes));
  }
  if (options.read_percent > 100) {
    return fail(fmt::format("{} % reads: give 0 to 100", options.read_percent));
  }
  if (options.depth == 0 || options.depth > limits::kRingSizeMax) {
    return fail(fmt::format("a depth of {} is not possible; give 1 to {}", options.depth, limits::kRingSizeMax));
  }
  if (options.segments == 0 || options.segments > options.block_bytes) {
    return fail(fmt::format("a block of {} bytes can't be split into {} segments", options.block_bytes, options.segments));
  }
  if (options.queues == 0 || options.threads > options.queues) {
    return fail(fmt::format("{} threads for {} queues: give at least one queue, and a thread no more than there are queues",
                            options.threads, options.queues));
  }
  if (options.verify && options.block_bytes % sizeof(std::uint64_t) != 0) {
    return fail("verify needs blocks of a multiple of 8 bytes");
  }
  return {};
}

Result<> measure_blk(const BlkBenchOptions& options, BlkBenchResult& result) {
  RW_TRY(check_blk_bench_options(options));
  RW_TRY_ASSIGN(const std::unique_ptr<BlkDriver> driver, connect_backend(driver_options(options), options.on_wait));
  const RingFeatures ring = driver->negotiated().ring;
  result.packed = ring.packed;
  result.indirect = ring.indirect;
  result.event_index = ring.event_index;
  result.in_order = ring.in_order;
  result.queue_size = driver->options().queue_size;
  for (const auto& [wanted, got, what] : {std::tuple{options.packed, ring.packed, "packed rings"},
                                          std::tuple{options.in_order, ring.in_order, "in-order completion"}}) {
    if (wanted && !got) {
      return fail(fmt::format("the back-end doesn't offer {}; leave that option out to measure what it has", what));
    }
  }
  if (const std::uint32_t most = driver->config().seg_max;
      (driver->negotiated().features & spec::kBlkSegMax) != 0 && options.segments > most) {
    return fail(fmt::format("--segments {}: the disk takes {} of a request", options.segments, most));
  }
  if (needed_descriptors(options, ring.indirect) > result.queue_size) {
    return fail(fmt::format("a ring of {} descriptors can't hold {} requests{}; raise the queue size", result.queue_size,
                            options.depth, ring.indirect ? "" : ", for indirect descriptors are not in use"));
  }
  RW_TRY_ASSIGN(const Range range, choose_range(options, *driver));
  const bool few = options.depth <= 4 || (options.requests != 0 && options.requests < 2000);
  result.latency_every = options.latency_every != 0 ? options.latency_every : few ? 1 : 16;
  result.threads = options.threads != 0 ? options.threads : options.queues;
  result.backend_pid = options.backend_pid != 0 ? options.backend_pid : driver->backend_pid().value_or(0);

  std::vector<std::unique_ptr<BenchThread>> threads;
  for (std::uint32_t number = 0; number < result.threads; ++number) {
    auto thread = std::make_unique<BenchThread>(options, *driver, number, result.latency_every);
    for (std::uint32_t queue = number; queue < options.queues; queue += result.threads) {
      const std::uint64_t first = range.blocks * queue / options.queues;
      const std::uint64_t last = range.blocks * (queue + 1) / options.queues;
      thread->add_queue(driver->queue(queue), range.first_block + first, last - first);
    }
    if (options.requests != 0) {
      thread->limit_requests(options.requests / result.threads + (number < options.requests % result.threads ? 1 : 0));
    }
    threads.push_back(std::move(thread));
  }
  threads.front()->watch_backend(result.backend_pid);

  RW_TRY(run_bench_threads(threads, options.driver_cpus));
  collect(threads, options, result);
  return {};
}

namespace {

const char* direction_name(std::uint32_t read_percent) {
  return read_percent == 100 ? "read" : read_percent == 0 ? "write" : "mixed";
}

const char* pattern_name(BlkBenchPattern pattern) {
  return pattern == BlkBenchPattern::random ? "random" : "sequential";
}

// Of the measured time. Less is what any machine that does something else now and then has.
constexpr double kStarved = 0.05;

double microseconds(Duration duration) {
  return static_cast<double>(duration.ns) * 1e-3;
}

double per_request(double total, std::uint64_t requests) {
  return requests == 0 ? 0 : total / static_cast<double>(requests);
}

}  // namespace

void print_blk_bench(const BlkBenchOptions& options, const BlkBenchResult& result, std::ostream& out) {
  const std::uint64_t answers = result.requests + result.failed;
  out << fmt::format("{} {}", pattern_name(options.pattern), direction_name(options.read_percent));
  if (options.read_percent != 0 && options.read_percent != 100) {
    out << fmt::format(" ({} % reads)", options.read_percent);
  }
  out << fmt::format(", {} bytes, depth {} on {} queue(s), {} driver thread(s) {}\n", options.block_bytes, options.depth,
                     options.queues, result.threads, options.sleeping ? "sleeping until called" : "polling");
  if (options.requests != 0 && options.requests < std::uint64_t{options.depth} * options.queues) {
    out << fmt::format("  note     {} requests are too few to reach that depth\n", options.requests);
  }
  out << fmt::format("  ring     {}, {} descriptors{}{}{}\n", result.packed ? "packed" : "split", result.queue_size,
                     result.indirect ? ", indirect" : "", result.event_index ? ", event index" : "",
                     result.in_order ? ", in order" : "");
  out << fmt::format("  rate     {:.0f} IOPS, {:.1f} MB/s over {:.2f} s; {} requests, {} failed\n", result.iops,
                     result.megabytes_per_second, result.seconds, result.requests, result.failed);
  out << fmt::format("  latency  p50 {:.2f} us, p99 {:.2f} us, p99.9 {:.2f} us, max {:.2f} us, mean {:.2f} us ({})\n",
                     microseconds(result.latency.percentile(0.5)), microseconds(result.latency.percentile(0.99)),
                     microseconds(result.latency.percentile(0.999)), microseconds(result.latency.maximum()),
                     microseconds(result.latency.mean()),
                     result.latency_every == 1 ? std::string("every request measured")
                                               : fmt::format("one request in {} measured", result.latency_every));
  out << fmt::format("  CPU      driver {:.2f} s ({:.0f} ns a request)", result.driver_cpu_seconds,
                     per_request(result.driver_cpu_seconds * 1e9, answers));
  if (result.backend_cpu_seconds >= 0) {
    out << fmt::format("; back-end (pid {}) {:.2f} s ({:.0f} ns a request, idle polling included if it polls)\n",
                       result.backend_pid, result.backend_cpu_seconds,
                       per_request(result.backend_cpu_seconds * 1e9, answers));
  } else {
    out << "; the back-end's can't be read (give its pid)\n";
  }
  out << fmt::format("  notified kicks {} ({:.4f} a request), calls {} ({:.4f} a request), sleeps {}\n", result.kicks,
                     per_request(static_cast<double>(result.kicks), answers), result.calls,
                     per_request(static_cast<double>(result.calls), answers), result.sleeps);
  if (result.driver_run_delay >= kStarved) {
    out << fmt::format(
        "  note     the driver waited {:.0f} % of the time for a CPU that others held: the rate is lower and the latency "
        "higher "
        "than the back-end's own; give it a CPU to itself (--cpus)\n",
        result.driver_run_delay * 100);
  }
  if (options.verify) {
    out << fmt::format("  verify   {} wrong block(s); the rates above include the checking\n", result.mismatched);
  }
}

nlohmann::json blk_bench_json(const BlkBenchOptions& options, const BlkBenchResult& result) {
  const std::uint64_t answers = result.requests + result.failed;
  nlohmann::json json = {{"workload",
                          {{"pattern", pattern_name(options.pattern)},
                           {"read_percent", options.read_percent},
                           {"block_bytes", options.block_bytes},
                           {"segments", options.segments},
                           {"depth", options.depth},
                           {"queues", options.queues},
                           {"threads", result.threads},
                           {"driver", options.sleeping ? "sleeping" : "polling"},
                           {"verify", options.verify}}},
                         {"ring",
                          {{"layout", result.packed ? "packed" : "split"},
                           {"descriptors", result.queue_size},
                           {"indirect", result.indirect},
                           {"event_index", result.event_index},
                           {"in_order", result.in_order}}},
                         {"requests", result.requests},
                         {"failed", result.failed},
                         {"mismatched", result.mismatched},
                         {"seconds", result.seconds},
                         {"iops", result.iops},
                         {"megabytes_per_second", result.megabytes_per_second},
                         {"latency_ns",
                          {{"measured", result.latency.count()},
                           {"measured_every", result.latency_every},
                           {"mean", result.latency.mean().ns},
                           {"p50", result.latency.percentile(0.5).ns},
                           {"p99", result.latency.percentile(0.99).ns},
                           {"p99.9", result.latency.percentile(0.999).ns},
                           {"max", result.latency.maximum().ns}}},
                         {"cpu",
                          {{"driver_seconds", result.driver_cpu_seconds},
                           {"driver_run_delay", result.driver_run_delay},
                           {"driver_ns_per_request", per_request(result.driver_cpu_seconds * 1e9, answers)}}},
                         {"notifications", {{"kicks", result.kicks}, {"calls", result.calls}, {"sleeps", result.sleeps}}}};
  if (result.backend_cpu_seconds >= 0) {
    json["cpu"]["backend_pid"] = result.backend_pid;
    json["cpu"]["backend_seconds"] = result.backend_cpu_seconds;
    json["cpu"]["backend_ns_per_request"] = per_request(result.backend_cpu_seconds * 1e9, answers);
  }
  return json;
}

int run_blk_bench(const BlkBenchOptions& options, std::ostream& out) {
  const auto result = std::make_unique<BlkBenchResult>();
  if (const Result<> outcome = measure_blk(options, *result); !outcome) {
    report_error(outcome.error().message, options.json, out);
    return 1;
  }
  if (options.json) {
    out << blk_bench_json(options, *result).dump(2) << '\n';
  } else {
    print_blk_bench(options, *result, out);
  }
  return result->failed == 0 && result->mismatched == 0 ? 0 : 1;
}

}  // namespace ringway
