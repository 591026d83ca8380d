// The implementation of net_bench.hpp. (A file named *_bench.cpp would be a micro-benchmark to the build.)
//
// A NetBenchThread goes over its pairs in turns. In tx and rx the clock is read every 64 turns only; in echo once in each
// turn that sends a burst or finds one back, however many frames that has. A frame costs no clock read, no allocation and no
// branch on what kind of run it is: each direction has a turn of its own.
//
// Echo times a frame by its number: the time of its burst stands in a table of twice the depth, which is enough since no
// more than `depth` numbers are on their way. A frame that doesn't come back would block the window for ever. When nothing
// has come for kGiveUp, all that are on their way count as lost, and the window opens again.
#include "bench/net_bench.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>
#include <ostream>
#include <tuple>

#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "base/fence.hpp"
#include "bench/bench_threads.hpp"
#include "bench/connect_backend.hpp"
#include "bench/process_cpu.hpp"
#include "bench/report_error.hpp"
#include "driver/net_driver.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

constexpr Duration kNetStallLimit = Duration::seconds(10);
constexpr Duration kNetLookPeriod = Duration::milliseconds(50);  // a sleeping thread wakes at least so often
constexpr Duration kGiveUp = Duration::milliseconds(100);        // without a frame back, while some are on their way
constexpr std::uint32_t kNetTurnsPerLook = 64;
constexpr std::uint32_t kBurstMax = 256;
constexpr std::uint32_t kHeaderRoom = 20;  // of the longest virtio header

using Frame = NetDriverTransmitQueue::Frame;

struct PairWork {
  NetDriverPair* pair = nullptr;
  std::uint32_t flow = 0;
  std::vector<Frame> idle;        // transmit buffers that may be written; a stack
  std::uint64_t next_number = 0;  // of the next frame sent
  std::uint64_t sent = 0;         // used by the device
  std::uint64_t received = 0;
  std::uint64_t received_bytes = 0;
  std::vector<std::int64_t> sent_ns;  // echo: by number, modulo the size
  std::unique_ptr<NetArrivals> arrivals;
  Instant last_arrival;
  std::uint64_t received_seen = 0;  // at the last look
};

// What is read at both ends of the measured part.
struct NetSnapshot {
  Instant time;
  std::uint64_t sent = 0, received = 0, received_bytes = 0;
  std::uint64_t unnumbered = 0, stale = 0;
  NetSequence::Counts numbered;
  DriverQueue::Counters notifications;
  Duration cpu, backend_cpu;
};

class NetBenchThread {
 public:
  NetBenchThread(const NetBenchOptions& options, NetDriver& driver, std::uint32_t frame_bytes, std::uint16_t run)
      : options_(options), driver_(driver), frame_bytes_(frame_bytes), run_(run) {}

  void add_pair(std::uint32_t index);
  void watch_backend(pid_t pid) { backend_pid_ = pid; }

  [[nodiscard]] static Result<> prepare() { return {}; }
  // Runs, and waits for what is on its way.
  [[nodiscard]] Result<> run();

  [[nodiscard]] const NetSnapshot& begin() const { return begin_; }
  [[nodiscard]] const NetSnapshot& end() const { return end_; }
  [[nodiscard]] const NetSequence::Counts& final_counts() const { return final_counts_; }
  [[nodiscard]] std::uint64_t faults() const;
  [[nodiscard]] const LatencyHistogram& latency() const { return *latency_; }

 private:
  template <bool (NetBenchThread::*kTurn)(PairWork&) noexcept>
  [[nodiscard]] Result<> go_round();
  [[nodiscard]] bool transmit_turn(PairWork& work) noexcept;
  [[nodiscard]] bool receive_turn(PairWork& work) noexcept;
  [[nodiscard]] bool echo_turn(PairWork& work) noexcept;
  [[nodiscard]] bool reap(PairWork& work) noexcept;
  void send_burst(PairWork& work) noexcept;
  [[nodiscard]] Instant turn_time() noexcept {
    if (!turn_time_valid_) {
      turn_time_ = clock_now();
      turn_time_valid_ = true;
    }
    return turn_time_;
  }
  void look_at_clock(Instant now);
  void give_up_lost(Instant now);
  [[nodiscard]] Result<> check_alive(Instant now);
  void wait(Instant now);
  [[nodiscard]] bool on_the_way() const;
  [[nodiscard]] NetSequence::Counts numbered() const;
  [[nodiscard]] NetSnapshot snapshot(bool at_end);

  const NetBenchOptions& options_;
  NetDriver& driver_;
  std::uint32_t frame_bytes_;
  std::uint16_t run_;
  std::vector<PairWork> pairs_;
  std::vector<DriverQueue*> waited_;  // asleep
  pid_t backend_pid_ = 0;

  bool measuring_ = false;
  bool stopping_ = false;
  Instant turn_time_;
  bool turn_time_valid_ = false;
  Instant warm_until_, run_until_;
  std::uint64_t progress_seen_ = 0;
  Instant last_progress_;
  NetSnapshot begin_, end_;
  NetSequence::Counts final_counts_;
  std::array<std::uint64_t, kBurstMax> tokens_;  // scratch of a turn, which mustn't clear it each time
  std::array<NetDriverFrame, kBurstMax> frames_;
  std::unique_ptr<LatencyHistogram> latency_ = std::make_unique<LatencyHistogram>();
};

void NetBenchThread::add_pair(std::uint32_t index) {
  PairWork work;
  work.pair = &driver_.pair(index);
  work.flow = index;
  const bool sends = options_.direction != NetBenchDirection::rx;
  const bool receives = options_.direction != NetBenchDirection::tx;
  if (sends) {
    NetFrameMac to{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    if (options_.direction == NetBenchDirection::echo && driver_.negotiated().has(spec::kNetMac)) {
      std::ranges::copy(driver_.config().mac, to.begin());  // so that no filter keeps it from coming back
    }
    const std::uint32_t buffers = driver_.options().transmit_buffers;
    for (std::uint32_t i = buffers; i > 0; --i) {
      const NetFrameLabel label{.run = run_, .flow = static_cast<std::uint16_t>(index)};
      write_numbered_frame({work.pair->tx.buffer(i - 1).host, frame_bytes_}, to, label);
      work.idle.push_back({.buffer = i - 1, .bytes = frame_bytes_});
    }
    work.sent_ns.resize(std::bit_ceil(2 * std::size_t{options_.depth}));
  }
  if (receives) {
    const bool own = options_.direction == NetBenchDirection::echo;
    work.arrivals =
        std::make_unique<NetArrivals>(own ? options_.pairs : limits::kQueuesPerDeviceMax / 2, own ? run_ : std::uint16_t{0});
    waited_.push_back(&work.pair->rx);
  } else {
    waited_.push_back(&work.pair->tx);
  }
  pairs_.push_back(std::move(work));
}

Result<> NetBenchThread::run() {
  const Instant now = clock_now();
  last_progress_ = now;
  warm_until_ = now + options_.warm_up;
  run_until_ = warm_until_ + options_.runtime;
  for (PairWork& work : pairs_) {
    work.last_arrival = now;
    if (work.arrivals != nullptr) {
      static_cast<void>(work.pair->rx.fill());
    }
  }
  look_at_clock(now);
  switch (options_.direction) {
    case NetBenchDirection::tx:
      RW_TRY(go_round<&NetBenchThread::transmit_turn>());
      break;
    case NetBenchDirection::rx:
      RW_TRY(go_round<&NetBenchThread::receive_turn>());
      break;
    case NetBenchDirection::echo:
      RW_TRY(go_round<&NetBenchThread::echo_turn>());
      break;
  }
  final_counts_ = numbered();
  return {};
}

template <bool (NetBenchThread::*kTurn)(PairWork&) noexcept>
Result<> NetBenchThread::go_round() {
  std::uint32_t turns = 0;
  Instant now = turn_time();
  while (!stopping_ || on_the_way()) {
    turn_time_valid_ = false;
    bool progress = false;
    for (PairWork& work : pairs_) {
      progress |= (this->*kTurn)(work);
    }
    if (++turns % kNetTurnsPerLook == 0 || (options_.sleeping && !progress)) {
      now = turn_time();
      look_at_clock(now);
      give_up_lost(now);
      RW_TRY(check_alive(now));
    }
    if (!progress) {
      options_.sleeping ? wait(now) : spin_pause();
    }
  }
  return {};
}

// Takes back what the device has sent. True if there was anything.
bool NetBenchThread::reap(PairWork& work) noexcept {
  const std::size_t count = work.pair->tx.reap_transmitted(tokens_);
  for (std::size_t i = 0; i < count; ++i) {
    work.idle.push_back({.buffer = static_cast<std::uint32_t>(tokens_[i]), .bytes = frame_bytes_});
  }
  work.sent += count;
  return count != 0;
}

void NetBenchThread::send_burst(PairWork& work) noexcept {
  const std::span<const Frame> burst = std::span(work.idle).last(options_.burst);
  std::uint64_t number = work.next_number;
  for (const Frame& frame : burst) {
    set_frame_number(work.pair->tx.buffer(frame.buffer).host, number++);
  }
  const std::size_t taken = work.pair->tx.transmit(burst);
  RW_CHECK(taken == burst.size());  // measure_net() made the ring large enough
  work.next_number = number;
  work.idle.resize(work.idle.size() - burst.size());
}

bool NetBenchThread::transmit_turn(PairWork& work) noexcept {
  bool progress = reap(work);
  while (!stopping_ && work.idle.size() >= options_.burst) {
    send_burst(work);
    work.pair->tx.publish_and_kick();
    progress = true;
  }
  return progress;
}

bool NetBenchThread::receive_turn(PairWork& work) noexcept {
  const std::size_t count = work.pair->rx.receive(std::span(frames_).first(options_.burst));
  if (count == 0) {
    return false;
  }
  for (const NetDriverFrame& frame : std::span(frames_).first(count)) {
    work.received_bytes += frame.bytes;
    const iovec& first = frame.pieces.front();
    static_cast<void>(work.arrivals->take({static_cast<const std::byte*>(first.iov_base), first.iov_len}));
  }
  work.received += count;
  work.pair->rx.give_back(std::span(frames_).first(count));
  static_cast<void>(work.pair->rx.fill());
  return true;
}

bool NetBenchThread::echo_turn(PairWork& work) noexcept {
  const std::size_t count = work.pair->rx.receive(std::span(frames_).first(options_.burst));
  if (count != 0) {
    const std::int64_t now = turn_time().ns;
    const std::size_t mask = work.sent_ns.size() - 1;
    // Frames of one burst that are back in one turn have one latency: recorded together.
    std::int64_t stamp = 0;
    std::uint64_t same = 0;
    for (const NetDriverFrame& frame : std::span(frames_).first(count)) {
      work.received_bytes += frame.bytes;
      const iovec& first = frame.pieces.front();
      NetFrameLabel label;
      if (work.arrivals->take({static_cast<const std::byte*>(first.iov_base), first.iov_len}, label) == nullptr) {
        continue;
      }
      if (RW_UNLIKELY(label.number + mask < work.next_number)) {
        continue;  // given up long ago; another number has its place
      }
      const std::int64_t sent = work.sent_ns[label.number & mask];
      if (sent != stamp && same != 0 && measuring_) {
        latency_->record({now - stamp}, same);
        same = 0;
      }
      same = sent == stamp ? same + 1 : 1;
      stamp = sent;
    }
    if (same != 0 && measuring_) {
      latency_->record({now - stamp}, same);
    }
    work.received += count;
    work.pair->rx.give_back(std::span(frames_).first(count));
    static_cast<void>(work.pair->rx.fill());
  }
  bool progress = reap(work) || count != 0;
  const std::uint64_t returned = work.arrivals->flow(work.flow).next();
  while (!stopping_ && work.idle.size() >= options_.burst &&
         work.next_number + options_.burst <= returned + options_.depth) {
    const std::int64_t now = turn_time().ns;
    const std::size_t mask = work.sent_ns.size() - 1;
    for (std::uint32_t i = 0; i < options_.burst; ++i) {
      work.sent_ns[(work.next_number + i) & mask] = now;
    }
    send_burst(work);
    work.pair->tx.publish_and_kick();
    progress = true;
  }
  return progress;
}

void NetBenchThread::look_at_clock(Instant now) {
  if (stopping_) {
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

void NetBenchThread::give_up_lost(Instant now) {
  if (options_.direction != NetBenchDirection::echo) {
    return;
  }
  for (PairWork& work : pairs_) {
    NetSequence& sequence = work.arrivals->flow(work.flow);
    if (work.received != work.received_seen || sequence.next() == work.next_number || work.pair->tx.in_flight() != 0) {
      work.received_seen = work.received;
      work.last_arrival = now;
    } else if (now - work.last_arrival > kGiveUp) {
      sequence.end_at(work.next_number);
    }
  }
}

// The next frames can't be sent, or none of ours has come back.
Result<> NetBenchThread::check_alive(Instant now) {
  std::uint64_t progress = 0;
  for (const PairWork& work : pairs_) {
    progress += work.sent + work.received;
  }
  if (progress != progress_seen_) {
    progress_seen_ = progress;
    last_progress_ = now;
    return {};
  }
  if (now - last_progress_ < Duration::seconds(1)) {
    return {};
  }
  if (driver_.peer_closed()) {
    return fail("the back-end closed the connection");
  }
  if (options_.direction != NetBenchDirection::rx && now - last_progress_ > kNetStallLimit) {
    return fail(fmt::format("the back-end has taken no frame for {} s; {} are in the ring",
                            kNetStallLimit.ns / 1'000'000'000, pairs_.front().pair->tx.in_flight()));
  }
  return {};
}

void NetBenchThread::wait(Instant now) {
  const Instant deadline = std::min(now + kNetLookPeriod, measuring_ || stopping_ ? now + kNetLookPeriod : warm_until_);
  static_cast<void>(waited_.size() == 1 ? waited_.front()->wait(std::max(deadline, now + Duration::milliseconds(1)))
                                        : DriverQueue::wait_any(waited_, deadline));
}

bool NetBenchThread::on_the_way() const {
  return options_.direction != NetBenchDirection::rx && std::ranges::any_of(pairs_, [this](const PairWork& work) {
           return work.pair->tx.in_flight() != 0 || (options_.direction == NetBenchDirection::echo &&
                                                     work.arrivals->flow(work.flow).next() < work.next_number);
         });
}

NetSequence::Counts NetBenchThread::numbered() const {
  NetSequence::Counts sum;
  for (const PairWork& work : pairs_) {
    if (work.arrivals != nullptr) {
      const NetSequence::Counts counts = work.arrivals->counts();
      sum.received += counts.received;
      sum.lost += counts.lost;
      sum.duplicated += counts.duplicated;
      sum.reordered += counts.reordered;
    }
  }
  return sum;
}

std::uint64_t NetBenchThread::faults() const {
  std::uint64_t faults = 0;
  for (const PairWork& work : pairs_) {
    const NetDriverReceiveQueue::Faults& each = work.pair->rx.faults();
    faults += each.bad_length + each.no_num_buffers + each.missing_buffers + work.pair->tx.counters().bad_used +
              (work.pair->tx.ring().broken() ? 1 : 0) + (work.pair->rx.ring().broken() ? 1 : 0);
  }
  return faults;
}

NetSnapshot NetBenchThread::snapshot(bool at_end) {
  NetSnapshot shot;
  // The clock comes last at the start and first at the end: the reading of /proc is outside of the measured time.
  if (at_end) {
    shot.time = clock_now();
  }
  for (PairWork& work : pairs_) {
    shot.sent += work.sent;
    shot.received += work.received;
    shot.received_bytes += work.received_bytes;
    if (work.arrivals != nullptr) {
      shot.unnumbered += work.arrivals->unnumbered();
      shot.stale += work.arrivals->stale();
    }
    for (DriverQueue* queue : {static_cast<DriverQueue*>(&work.pair->rx), static_cast<DriverQueue*>(&work.pair->tx)}) {
      const DriverQueue::Counters counters = queue->counters();
      shot.notifications.kicks += counters.kicks;
      shot.notifications.calls += counters.calls;
      shot.notifications.waits += counters.waits;
    }
  }
  shot.numbered = numbered();
  shot.cpu = thread_cpu_time(gettid()).value_or(Duration{});
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

std::uint32_t buffer_bytes_of(const NetBenchOptions& options, std::uint32_t frame_bytes) {
  if (options.receive_buffer_bytes != 0) {
    return options.receive_buffer_bytes;
  }
  constexpr std::uint32_t kUsual = 2048;
  return options.mergeable ? kUsual : std::max(kUsual, frame_bytes + kHeaderRoom);
}

NetDriverOptions net_driver_options(const NetBenchOptions& options, const NetBenchTarget& target,
                                    std::uint32_t frame_bytes) {
  NetDriverOptions driver;
  driver.socket_path = target.socket_path;
  driver.patience = options.patience;
  driver.packed = options.packed;
  driver.indirect = options.indirect;
  driver.event_index = options.event_index;
  driver.in_order = options.in_order;
  driver.mergeable = options.mergeable;
  // No offload: each frame is one on the wire, as it stands. And no control queue where one pair needs none.
  driver.features = spec::kNetMac | spec::kNetMtu | spec::kNetMrgRxbuf | spec::kNetStatus | spec::kNetMq |
                    (options.pairs > 1 ? spec::kNetCtrlVq : 0);
  driver.control_queue = options.pairs > 1;
  driver.pairs = options.pairs;
  driver.receive_buffer_bytes = buffer_bytes_of(options, frame_bytes);
  const bool receives = options.direction != NetBenchDirection::tx;
  const bool sends = options.direction != NetBenchDirection::rx;
  const std::uint32_t each = (frame_bytes + kHeaderRoom + driver.receive_buffer_bytes - 1) / driver.receive_buffer_bytes;
  const std::uint64_t wanted = std::uint64_t{options.depth} * (options.direction == NetBenchDirection::echo ? each : 1);
  driver.queue_size = options.queue_size != 0
                          ? options.queue_size
                          : static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                std::bit_ceil(std::max<std::uint64_t>(wanted, 256)), limits::kRingSizeMax));
  driver.receive_buffers = receives ? driver.queue_size : 1;
  // In echo a frame can be back before its buffer is.
  driver.transmit_buffers = !sends ? 1 : options.direction == NetBenchDirection::echo ? driver.queue_size : options.depth;
  driver.transmit_buffer_bytes = std::max(frame_bytes, kNetNumberedBytesMin);
  driver.pieces_max = 1;
  driver.pages = options.pages;
  return driver;
}

Result<> use_pairs(NetDriver& driver, std::uint32_t pairs) {
  if (pairs == 1 || driver.control() == nullptr) {
    return {};
  }
  RW_TRY_ASSIGN(const NetDriverAnswer answer, driver.control()->set_pairs(static_cast<std::uint16_t>(pairs)));
  if (!answer.ok()) {
    return fail(fmt::format("the back-end refused to use {} queue pairs", pairs));
  }
  return {};
}

// What the rings must hold, now that it is known what they are.
Result<> check_fit(const NetBenchOptions& options, std::uint32_t frame_bytes, const NetDriver& driver) {
  const std::uint32_t buffer = driver.options().receive_buffer_bytes;
  const std::uint32_t whole = frame_bytes + driver.header_bytes();
  if (options.direction == NetBenchDirection::tx) {
    return {};
  }
  if (!driver.mergeable() && buffer < whole) {
    return fail(
        fmt::format("a frame of {} bytes and its header don't fit a receive buffer of {}, and buffers aren't "
                    "mergeable; give larger ones",
                    frame_bytes, buffer));
  }
  const std::uint64_t needed = std::uint64_t{options.depth} * ((whole + buffer - 1) / buffer);
  if (options.direction == NetBenchDirection::echo && needed > driver.options().queue_size) {
    return fail(
        fmt::format("{} frames of {} bytes in flight take {} receive buffers, and a ring has {}; lower the depth, or "
                    "raise the size of the queue or of the buffers",
                    options.depth, frame_bytes, needed, driver.options().queue_size));
  }
  return {};
}

double per_second(std::uint64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

void collect_runs(const std::vector<std::unique_ptr<NetBenchThread>>& threads, const NetBenchOptions& options,
                  NetBenchResult& result) {
  bool backend_known = false;
  double backend_cpu = 0;
  double bytes_per_second = 0;
  std::uint64_t received_bytes = 0;
  for (const auto& thread : threads) {
    const NetSnapshot& begin = thread->begin();
    const NetSnapshot& end = thread->end();
    const double seconds = static_cast<double>((end.time - begin.time).ns) * 1e-9;
    const std::uint64_t sent = end.sent - begin.sent;
    const std::uint64_t received = end.received - begin.received;
    const std::uint64_t bytes = end.received_bytes - begin.received_bytes;
    const bool sends = options.direction == NetBenchDirection::tx;
    result.sent += sent;
    result.received += received;
    received_bytes += bytes;
    result.frames_per_second += per_second(sends ? sent : received, seconds);
    bytes_per_second += per_second(sends ? sent * result.frame_bytes : bytes, seconds);
    result.seconds = std::max(result.seconds, seconds);
    const NetSequence::Counts& last = thread->final_counts();
    result.numbered.received += last.received - begin.numbered.received;
    result.numbered.duplicated += last.duplicated - begin.numbered.duplicated;
    result.numbered.reordered += last.reordered - begin.numbered.reordered;
    // A frame that counted as lost when the time began may have come since.
    result.numbered.lost += last.lost - std::min(last.lost, begin.numbered.lost);
    result.unnumbered += end.unnumbered - begin.unnumbered;
    result.stale += end.stale - begin.stale;
    result.receive_faults += thread->faults();
    result.driver_cpu_seconds += static_cast<double>((end.cpu - begin.cpu).ns) * 1e-9;
    result.kicks += end.notifications.kicks - begin.notifications.kicks;
    result.calls += end.notifications.calls - begin.notifications.calls;
    result.sleeps += end.notifications.waits - begin.notifications.waits;
    result.latency.merge(thread->latency());
    if (begin.backend_cpu.ns >= 0 && end.backend_cpu.ns >= 0) {
      backend_known = true;
      backend_cpu = static_cast<double>((end.backend_cpu - begin.backend_cpu).ns) * 1e-9;
    }
  }
  if (options.direction == NetBenchDirection::rx && result.received != 0) {
    result.frame_bytes = static_cast<std::uint32_t>(received_bytes / result.received);
  }
  result.gigabits_per_second = bytes_per_second * 8e-9;
  result.backend_cpu_seconds = backend_known ? backend_cpu : -1;
}

// A run without a single frame would be reported as a rate of 0, which says too little.
Result<> check_frames_came(const NetBenchOptions& options, const NetBenchResult& result) {
  if (options.direction == NetBenchDirection::echo && result.numbered.received == 0) {
    return fail(
        fmt::format("none of the frames came back ({} others did): the back-end returns nothing to its sender. Give "
                    "one that does, such as --net loop of ringway, or measure --direction tx",
                    result.unnumbered + result.stale));
  }
  if (options.direction == NetBenchDirection::rx && result.received == 0) {
    return fail(
        "no frame came: the back-end has nothing to send. Give one that does, such as --net source of ringway, or "
        "send it some from the other side");
  }
  return {};
}

// Another one for each run of this process, and most likely of another process.
std::uint16_t next_run() {
  static std::atomic<std::uint32_t> runs{0};
  const auto start = static_cast<std::uint32_t>(clock_now().ns >> 20);
  const auto run = static_cast<std::uint16_t>(start + static_cast<std::uint32_t>(getpid()) * 31 + runs.fetch_add(1));
  return run == 0 ? std::uint16_t{1} : run;
}

}  // namespace

const char* to_string(NetBenchDirection direction) noexcept {
  return direction == NetBenchDirection::tx ? "tx" : direction == NetBenchDirection::rx ? "rx" : "echo";
}

Result<> check_net_bench_options(const NetBenchOptions& options) {
  if (options.frame_bytes.empty()) {
    return fail("give at least one length of frames");
  }
  for (const std::uint32_t bytes : options.frame_bytes) {
    if (bytes < kNetNumberedBytesMin || bytes > kNetNumberedBytesMax) {
      return fail(fmt::format("frames of {} bytes are not possible; give {} to {}", bytes, kNetNumberedBytesMin,
                              kNetNumberedBytesMax));
    }
  }
  if (options.pairs == 0 || options.threads > options.pairs) {
    return fail(
        fmt::format("{} threads for {} queue pairs: give at least one pair, and a thread no more than there are pairs",
                    options.threads, options.pairs));
  }
  if (options.depth == 0 || options.depth > limits::kRingSizeMax) {
    return fail(fmt::format("a depth of {} is not possible; give 1 to {}", options.depth, limits::kRingSizeMax));
  }
  if (options.burst == 0 || options.burst > kBurstMax) {
    return fail(fmt::format("a burst of {} is not possible; give 1 to {}", options.burst, kBurstMax));
  }
  if (options.direction != NetBenchDirection::rx && options.burst > options.depth) {
    return fail(fmt::format("a burst of {} is more than the {} frames in flight; give a smaller one, or more depth",
                            options.burst, options.depth));
  }
  if (options.queue_size != 0 && options.depth > options.queue_size && options.direction != NetBenchDirection::rx) {
    return fail(fmt::format("a ring of {} descriptors can't hold {} frames; raise the queue size", options.queue_size,
                            options.depth));
  }
  constexpr std::uint32_t kBufferBytesMin = 128;  // a label must lie in one piece
  if (options.receive_buffer_bytes != 0 && options.receive_buffer_bytes < kBufferBytesMin) {
    return fail(fmt::format("receive buffers of {} bytes are too small; give {} at least", options.receive_buffer_bytes,
                            kBufferBytesMin));
  }
  return {};
}

Result<> measure_net(const NetBenchOptions& options, std::uint32_t frame_bytes, NetBenchResult& result) {
  RW_TRY(check_net_bench_options(options));
  NetBenchTarget target = options.target;
  if (options.find_target) {
    RW_TRY_ASSIGN(target, options.find_target(frame_bytes));
  }
  RW_TRY_ASSIGN(const std::unique_ptr<NetDriver> driver,
                connect_backend(net_driver_options(options, target, frame_bytes), options.on_wait));
  const RingFeatures ring = driver->negotiated().ring;
  result.frame_bytes = frame_bytes;
  result.packed = ring.packed;
  result.indirect = ring.indirect;
  result.event_index = ring.event_index;
  result.in_order = ring.in_order;
  result.mergeable = driver->mergeable();
  result.queue_size = driver->options().queue_size;
  for (const auto& [wanted, got, what] : {std::tuple{options.packed, ring.packed, "packed rings"},
                                          std::tuple{options.in_order, ring.in_order, "in-order completion"}}) {
    if (wanted && !got) {
      return fail(fmt::format("the back-end doesn't offer {}; leave that option out to measure what it has", what));
    }
  }
  RW_TRY(check_fit(options, frame_bytes, *driver));
  RW_TRY(use_pairs(*driver, options.pairs));
  result.threads = options.threads != 0 ? options.threads : options.pairs;
  result.backend_pid = target.backend_pid != 0 ? target.backend_pid : driver->backend_pid().value_or(0);

  const std::uint16_t run = next_run();
  std::vector<std::unique_ptr<NetBenchThread>> threads;
  for (std::uint32_t number = 0; number < result.threads; ++number) {
    auto thread = std::make_unique<NetBenchThread>(options, *driver, frame_bytes, run);
    for (std::uint32_t pair = number; pair < options.pairs; pair += result.threads) {
      thread->add_pair(pair);
    }
    threads.push_back(std::move(thread));
  }
  threads.front()->watch_backend(result.backend_pid);
  RW_TRY(run_bench_threads(threads, options.driver_cpus));
  collect_runs(threads, options, result);
  return check_frames_came(options, result);
}

namespace {

double in_microseconds(Duration duration) {
  return static_cast<double>(duration.ns) * 1e-3;
}

double per_frame(double total, const NetBenchOptions& options, const NetBenchResult& result) {
  const std::uint64_t frames = options.direction == NetBenchDirection::tx ? result.sent : result.received;
  return frames == 0 ? 0 : total / static_cast<double>(frames);
}

bool knows_loss(const NetBenchResult& result) {
  return result.numbered.received != 0;
}

std::string workload_text(const NetBenchOptions& options, const NetBenchResult& result) {
  const std::string sending = options.direction == NetBenchDirection::rx
                                  ? std::string()
                                  : fmt::format(", {} in flight in bursts of {}", options.depth, options.burst);
  return fmt::format("{}{} on {} queue pair(s), {} driver thread(s) {}", to_string(options.direction), sending,
                     options.pairs, result.threads, options.sleeping ? "sleeping until called" : "polling");
}

std::string ring_text(const NetBenchResult& result) {
  return fmt::format("{}, {} descriptors{}{}{}{}", result.packed ? "packed" : "split", result.queue_size,
                     result.indirect ? ", indirect" : "", result.event_index ? ", event index" : "",
                     result.in_order ? ", in order" : "", result.mergeable ? ", mergeable buffers" : "");
}

void print_one(const NetBenchOptions& options, const NetBenchResult& result, std::ostream& out) {
  out << fmt::format("{}, {} bytes\n", workload_text(options, result), result.frame_bytes);
  out << fmt::format("  ring     {}\n", ring_text(result));
  out << fmt::format("  rate     {:.0f} frames/s, {:.2f} Gbit/s over {:.2f} s\n", result.frames_per_second,
                     result.gigabits_per_second, result.seconds);
  out << fmt::format("  frames   sent {}, received {}", result.sent, result.received);
  if (options.direction == NetBenchDirection::tx) {
    out << "; what became of them isn't seen from here\n";
  } else if (!knows_loss(result)) {
    out << "; none bears a number, so loss isn't known\n";
  } else {
    const double all = static_cast<double>(result.numbered.received + result.numbered.lost);
    out << fmt::format("; lost {} ({:.4f} %), duplicated {}, reordered {}", result.numbered.lost,
                       100 * static_cast<double>(result.numbered.lost) / all, result.numbered.duplicated,
                       result.numbered.reordered);
    out << (result.unnumbered + result.stale == 0 ? std::string("\n")
                                                  : fmt::format(", others' {}\n", result.unnumbered + result.stale));
  }
  if (options.direction == NetBenchDirection::echo) {
    out << fmt::format("  latency  p50 {:.2f} us, p99 {:.2f}, p99.9 {:.2f}, max {:.2f}, mean {:.2f} (there and back)\n",
                       in_microseconds(result.latency.percentile(0.5)), in_microseconds(result.latency.percentile(0.99)),
                       in_microseconds(result.latency.percentile(0.999)), in_microseconds(result.latency.maximum()),
                       in_microseconds(result.latency.mean()));
  }
  out << fmt::format("  CPU      driver {:.2f} s ({:.0f} ns a frame)", result.driver_cpu_seconds,
                     per_frame(result.driver_cpu_seconds * 1e9, options, result));
  if (result.backend_cpu_seconds >= 0) {
    out << fmt::format("; back-end (pid {}) {:.2f} s ({:.0f} ns a frame, idle polling included if it polls)\n",
                       result.backend_pid, result.backend_cpu_seconds,
                       per_frame(result.backend_cpu_seconds * 1e9, options, result));
  } else {
    out << "; the back-end's can't be read (give its pid)\n";
  }
  out << fmt::format("  notified kicks {} ({:.4f} a frame), calls {} ({:.4f} a frame), sleeps {}\n", result.kicks,
                     per_frame(static_cast<double>(result.kicks), options, result), result.calls,
                     per_frame(static_cast<double>(result.calls), options, result), result.sleeps);
  if (result.receive_faults != 0) {
    out << fmt::format("  faults   {} used buffers make no sense; `ringway check net` says more\n", result.receive_faults);
  }
}

void print_table(const NetBenchOptions& options, const NetBenchResults& results, std::ostream& out) {
  const bool echo = options.direction == NetBenchDirection::echo;
  out << workload_text(options, *results.front()) << "; " << ring_text(*results.front()) << '\n';
  out << fmt::format("{:>7} {:>11} {:>8} {:>10} {:>8}", "bytes", "frames/s", "Gbit/s", "lost", "lost %");
  out << (echo ? fmt::format(" {:>9} {:>9} {:>9}", "p50 us", "p99 us", "p99.9 us") : std::string());
  out << fmt::format(" {:>10} {:>12} {:>8} {:>8}\n", "driver ns", "back-end ns", "kicks/fr", "calls/fr");
  for (const auto& each : results) {
    const NetBenchResult& result = *each;
    const double all = static_cast<double>(result.numbered.received + result.numbered.lost);
    out << fmt::format("{:>7} {:>11.0f} {:>8.2f}", result.frame_bytes, result.frames_per_second, result.gigabits_per_second);
    out << (knows_loss(result) ? fmt::format(" {:>10} {:>8.4f}", result.numbered.lost,
                                             100 * static_cast<double>(result.numbered.lost) / all)
                               : fmt::format(" {:>10} {:>8}", "-", "-"));
    if (echo) {
      out << fmt::format(" {:>9.2f} {:>9.2f} {:>9.2f}", in_microseconds(result.latency.percentile(0.5)),
                         in_microseconds(result.latency.percentile(0.99)),
                         in_microseconds(result.latency.percentile(0.999)));
    }
    out << fmt::format(" {:>10.1f}", per_frame(result.driver_cpu_seconds * 1e9, options, result));
    out << (result.backend_cpu_seconds >= 0
                ? fmt::format(" {:>12.1f}", per_frame(result.backend_cpu_seconds * 1e9, options, result))
                : fmt::format(" {:>12}", "-"));
    out << fmt::format(" {:>8.4f} {:>8.4f}\n", per_frame(static_cast<double>(result.kicks), options, result),
                       per_frame(static_cast<double>(result.calls), options, result));
  }
}

nlohmann::json row_json(const NetBenchOptions& options, const NetBenchResult& result) {
  nlohmann::json json = {{"frame_bytes", result.frame_bytes},
                         {"seconds", result.seconds},
                         {"frames_per_second", result.frames_per_second},
                         {"gigabits_per_second", result.gigabits_per_second},
                         {"sent", result.sent},
                         {"received", result.received},
                         {"unnumbered", result.unnumbered},
                         {"stale", result.stale},
                         {"faults", result.receive_faults},
                         {"cpu",
                          {{"driver_seconds", result.driver_cpu_seconds},
                           {"driver_ns_per_frame", per_frame(result.driver_cpu_seconds * 1e9, options, result)}}},
                         {"notifications", {{"kicks", result.kicks}, {"calls", result.calls}, {"sleeps", result.sleeps}}}};
  if (knows_loss(result)) {
    json["numbered"] = {{"received", result.numbered.received},
                        {"lost", result.numbered.lost},
                        {"duplicated", result.numbered.duplicated},
                        {"reordered", result.numbered.reordered}};
  }
  if (options.direction == NetBenchDirection::echo) {
    json["latency_ns"] = {{"measured", result.latency.count()},           {"mean", result.latency.mean().ns},
                          {"p50", result.latency.percentile(0.5).ns},     {"p99", result.latency.percentile(0.99).ns},
                          {"p99.9", result.latency.percentile(0.999).ns}, {"max", result.latency.maximum().ns}};
  }
  if (result.backend_cpu_seconds >= 0) {
    json["cpu"]["backend_pid"] = result.backend_pid;
    json["cpu"]["backend_seconds"] = result.backend_cpu_seconds;
    json["cpu"]["backend_ns_per_frame"] = per_frame(result.backend_cpu_seconds * 1e9, options, result);
  }
  return json;
}

}  // namespace

void print_net_bench(const NetBenchOptions& options, const NetBenchResults& results, std::ostream& out) {
  if (results.size() == 1) {
    print_one(options, *results.front(), out);
  } else {
    print_table(options, results, out);
  }
}

nlohmann::json net_bench_json(const NetBenchOptions& options, const NetBenchResults& results) {
  const NetBenchResult& first = *results.front();
  nlohmann::json json = {{"workload",
                          {{"direction", to_string(options.direction)},
                           {"pairs", options.pairs},
                           {"threads", first.threads},
                           {"burst", options.burst},
                           {"driver", options.sleeping ? "sleeping" : "polling"}}},
                         {"ring",
                          {{"layout", first.packed ? "packed" : "split"},
                           {"indirect", first.indirect},
                           {"event_index", first.event_index},
                           {"in_order", first.in_order},
                           {"mergeable", first.mergeable}}}};
  if (options.direction != NetBenchDirection::rx) {
    json["workload"]["depth"] = options.depth;
  }
  for (const auto& result : results) {
    json["rows"].push_back(row_json(options, *result));
    json["rows"].back()["descriptors"] = result->queue_size;
  }
  return json;
}

int run_net_bench(const NetBenchOptions& options, std::ostream& out) {
  NetBenchResults results;
  for (const std::uint32_t bytes : options.frame_bytes) {
    results.push_back(std::make_unique<NetBenchResult>());
    if (const Result<> outcome = measure_net(options, bytes, *results.back()); !outcome) {
      report_error(outcome.error().message, options.json, out);
      return 1;
    }
  }
  if (options.json) {
    out << net_bench_json(options, results).dump(2) << '\n';
  } else {
    print_net_bench(options, results, out);
  }
  return std::ranges::any_of(results, [](const auto& result) { return result->receive_faults != 0; }) ? 1 : 0;
}

}  // namespace ringway
