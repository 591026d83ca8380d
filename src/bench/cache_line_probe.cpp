#include "bench/cache_line_probe.hpp"

#include <fmt/core.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ostream>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/fence.hpp"
#include "bench/report_error.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

constexpr std::uint64_t kBatches = 100;
constexpr std::uint64_t kTripsPerBatch = 1000;  // 0.1 to 0.6 ms: shorter than a time slice, so some batches run undisturbed
constexpr std::size_t kBatchesLeast = 5;
constexpr Duration kPatience = Duration::seconds(2);

struct alignas(128) Line {
  std::atomic<std::uint64_t> value{0};
};

// What the two threads share besides the line that is measured. `line` counts up: the asker stores odd values, the answerer
// even.
struct Pair {
  Line line;
  alignas(128) std::atomic<bool> stop{false};
  std::atomic<bool> pinned{false};
};

bool pin_this_thread(int cpu) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(static_cast<unsigned>(cpu), &cpus);
  return pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus) == 0;
}

void answer(Pair& pair, int cpu) {
  pair.pinned.store(pin_this_thread(cpu), std::memory_order_relaxed);
  // Release/acquire on the one word pairs with ask()'s; `pinned` travels with the first of them.
  std::uint64_t seen = 2;
  pair.line.value.store(seen, std::memory_order_release);
  while (true) {
    const std::uint64_t value = pair.line.value.load(std::memory_order_acquire);
    if (value != seen) {
      seen = value + 1;
      pair.line.value.store(seen, std::memory_order_release);
    } else if (pair.stop.load(std::memory_order_relaxed)) {
      return;
    } else {
      spin_pause();
    }
  }
}

// True when the other side answered before the deadline; the clock is looked at only every so often.
bool await(Line& line, std::uint64_t wanted, Instant deadline) {
  for (std::uint64_t spins = 1; line.value.load(std::memory_order_acquire) != wanted; ++spins) {
    if (spins % 65536 == 0) {
      if (clock_now() > deadline) {
        return false;
      }
      std::this_thread::yield();
    }
  }
  return true;
}

Result<CacheLineRoundTrip> summary(std::vector<std::int64_t> batches) {
  std::sort(batches.begin(), batches.end());
  return CacheLineRoundTrip{.median = {batches[batches.size() / 2]}, .minimum = {batches.front()}};
}

Result<CacheLineRoundTrip> ask(Pair& pair, int cpu) {
  if (!pin_this_thread(cpu)) {
    return fail(fmt::format("cannot run on CPU {}; see /proc/self/status, Cpus_allowed_list", cpu));
  }
  const Instant deadline = clock_now() + kPatience;
  if (!await(pair.line, 2, deadline)) {
    return fail("the second thread of the cache-line probe never ran");
  }
  if (!pair.pinned.load(std::memory_order_relaxed)) {
    return fail("cannot run on the second CPU of the cache-line probe; see /proc/self/status, Cpus_allowed_list");
  }
  std::vector<std::int64_t> batches;
  std::uint64_t value = 2;
  for (std::uint64_t batch = 0; batch < kBatches; ++batch) {
    const Instant start = clock_now();
    for (std::uint64_t trip = 0; trip < kTripsPerBatch; ++trip) {
      pair.line.value.store(value + 1, std::memory_order_release);
      value += 2;
      if (!await(pair.line, value, deadline)) {
        // On a machine that is busy with other things a few batches must do.
        return batches.size() >= kBatchesLeast
                   ? summary(std::move(batches))
                   : fail("the cache-line probe's threads hardly ever ran at the same time; are the CPUs busy?");
      }
    }
    batches.push_back((clock_now() - start).ns / static_cast<std::int64_t>(kTripsPerBatch));
  }
  return summary(std::move(batches));
}

}  // namespace

Result<CacheLineRoundTrip> measure_cache_line_round_trip(int first_cpu, int second_cpu) {
  if (first_cpu < 0 || second_cpu < 0 || first_cpu >= CPU_SETSIZE || second_cpu >= CPU_SETSIZE || first_cpu == second_cpu) {
    return fail(fmt::format("the cache-line probe needs two different CPUs, not {} and {}", first_cpu, second_cpu));
  }
  Pair pair;
  Result<CacheLineRoundTrip> result;
  std::thread second([&] { answer(pair, second_cpu); });
  // A thread of its own, so that the caller's affinity stays as it is.
  std::thread first([&] { result = ask(pair, first_cpu); });
  first.join();
  pair.stop.store(true, std::memory_order_relaxed);
  second.join();
  return result;
}

int run_cache_line_probe(int first_cpu, int second_cpu, bool json, std::ostream& out) {
  const Result<CacheLineRoundTrip> result = measure_cache_line_round_trip(first_cpu, second_cpu);
  if (!result) {
    report_error(result.error().message, json, out);
    return 1;
  }
  if (json) {
    out << nlohmann::json{{"cpus", {first_cpu, second_cpu}},
                          {"median_ns", result->median.ns},
                          {"minimum_ns", result->minimum.ns}}
               .dump()
        << '\n';
  } else {
    out << fmt::format("cache line from CPU {} to CPU {} and back: {} ns (best batch {} ns)\n", first_cpu, second_cpu,
                       result->median.ns, result->minimum.ns);
  }
  return 0;
}

}  // namespace ringway
