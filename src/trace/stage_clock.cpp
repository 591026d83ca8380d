// Theory of operation: two moments at which both clocks were read give the length of a tick. The first one is the program's
// start; the second one is read anew each time somebody asks, until it is a second later; from then on the length stands.
// What workers use is one word, a fixed-point factor, so that they take no lock and do no division.

#include "trace/stage_clock.hpp"

#include <atomic>
#include <fstream>
#include <string>

namespace ringway {
namespace {

struct Moment {
  std::uint64_t ns = 0;
  std::uint64_t ticks = 0;
};

__extension__ using Wide = unsigned __int128;

constexpr unsigned kFractionBits = 32;
constexpr std::uint64_t kGoodNs = 1'000'000'000;
constexpr std::uint64_t kFirstLookNs = 1'000'000;

}  // namespace

std::uint64_t StageClock::monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

bool StageClock::counts() noexcept {
#if defined(__x86_64__)
  std::string source;
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/available_clocksource");
  // What the kernel has found to be unreliable isn't among them. Under a hypervisor its own clock may be the one in use,
  // which is made of the same counter.
  std::getline(file, source);
  return source.find("tsc") != std::string::npos;
#else
  return true;
#endif
}

const bool StageClock::counts_ = StageClock::counts();

namespace {

Moment moment() noexcept {
  Moment now;
  timespec read{};
  // Around the other clock, so that the error is half of what one read takes.
  const std::uint64_t before = StageClock::now();
  clock_gettime(CLOCK_MONOTONIC, &read);
  const std::uint64_t after = StageClock::now();
  now.ns = static_cast<std::uint64_t>(read.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(read.tv_nsec);
  now.ticks = before + (after - before) / 2;
  return now;
}

const Moment kStart = moment();

// ns a tick, as a fixed-point number; 0: not measured yet. And how long after the start it was measured.
std::atomic<std::uint64_t> factor{0};
std::atomic<std::uint64_t> measured_ns{0};

std::uint64_t nanoseconds_a_tick() noexcept {
  const std::uint64_t known = factor.load(std::memory_order_relaxed);
  if (known != 0 && measured_ns.load(std::memory_order_relaxed) >= kGoodNs) [[likely]] {
    return known;
  }
  Moment now = moment();
  while (now.ns - kStart.ns < kFirstLookNs) {
    now = moment();  // a millisecond, once, in a program that has just begun
  }
  const std::uint64_t length = now.ticks == kStart.ticks
                                   ? std::uint64_t{1} << kFractionBits
                                   : static_cast<std::uint64_t>((static_cast<Wide>(now.ns - kStart.ns) << kFractionBits) /
                                                                (now.ticks - kStart.ticks));
  factor.store(length, std::memory_order_relaxed);
  measured_ns.store(now.ns - kStart.ns, std::memory_order_relaxed);
  return length;
}

}  // namespace

Duration StageClock::duration(std::uint64_t ticks) noexcept {
  return {static_cast<std::int64_t>((static_cast<Wide>(ticks) * nanoseconds_a_tick()) >> kFractionBits)};
}

Instant StageClock::instant(std::uint64_t ticks) noexcept {
  const bool later = ticks >= kStart.ticks;
  const std::int64_t away = duration(later ? ticks - kStart.ticks : kStart.ticks - ticks).ns;
  return {static_cast<std::int64_t>(kStart.ns) + (later ? away : -away)};
}

std::array<Instant, kStages> instants_of(const StageRecord& record) noexcept {
  const std::uint64_t first = record.first();
  const Instant begin = StageClock::instant(first);
  std::array<Instant, kStages> instants{};
  for (std::size_t i = 0; i < kStages; ++i) {
    const std::uint64_t ticks = record.ticks[i];
    if (ticks != 0) {
      instants[i] = begin + (ticks > first ? StageClock::duration(ticks - first) : Duration{});
    }
  }
  return instants;
}

std::uint64_t StageClock::ticks(Instant instant) noexcept {
  const auto ns = static_cast<std::uint64_t>(instant.ns);
  const bool later = ns >= kStart.ns;
  const std::uint64_t away = later ? ns - kStart.ns : kStart.ns - ns;
  const auto ticks = static_cast<std::uint64_t>((static_cast<Wide>(away) << kFractionBits) / nanoseconds_a_tick());
  return later ? kStart.ticks + ticks : kStart.ticks - ticks;
}

}  // namespace ringway
