// What a turn costs, for both engines: an idle poll, submitting and reaping no-ops, and waking a sleeper.
// Prints one line per figure, in nanoseconds: the best and the median of many short rounds, since on a shared machine the
// best is the cost and the median is the neighbours.
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/fence.hpp"
#include "base/unique_fd.hpp"
#include "loop/clock.hpp"
#include "loop/epoll_loop.hpp"
#include "loop/io_uring_loop.hpp"

namespace ringway {
namespace {

constexpr std::size_t kRounds = 301;

struct Times {
  double best = 0;
  double median = 0;
};

Times summarise(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return {.best = times.front(), .median = times[times.size() / 2]};
}

template <typename Round>
Times measure(std::int64_t operations, const Round& round) {
  std::vector<double> times;
  for (std::size_t i = 0; i < kRounds; ++i) {
    const Instant start = clock_now();
    round();
    times.push_back(static_cast<double>((clock_now() - start).ns) / static_cast<double>(operations));
  }
  return summarise(std::move(times));
}

void print(std::string_view engine, std::string_view what, Times times) {
  fmt::print("{:<10} {:<54} best {:>9.1f} ns, median {:>9.1f} ns\n", engine, what, times.best, times.median);
  static_cast<void>(std::fflush(stdout));
}

class NoOperation final : public UringOperation {
 public:
  void on_completion(std::int32_t /*result*/) noexcept override {}
};

class NoHandler final : public FdHandler {
 public:
  void on_ready(std::uint32_t /*events*/) noexcept override {}
};

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  static_cast<void>(pthread_setaffinity_np(pthread_self(), sizeof set, &set));
}

void measure_idle(std::string_view engine, Loop& loop) {
  const UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  NoHandler handler;
  const auto watch = loop.watch(event.get(), EPOLLIN, handler);
  const Instant now = clock_now();
  loop.poll(now);
  constexpr int kPolls = 500;
  print(engine, "idle poll()", measure(kPolls, [&] {
          for (int i = 0; i < kPolls; ++i) {
            loop.poll(now);
          }
        }));
  const std::uint64_t one = 1;
  constexpr int kEvents = 200;
  print(engine, "write to a watched eventfd + poll() that handles it", measure(kEvents, [&] {
          for (int i = 0; i < kEvents; ++i) {
            static_cast<void>(!write(event.get(), &one, sizeof one));
            loop.poll(now);
          }
        }));
  loop.unwatch(*watch);
}

void measure_batches(std::string_view engine, Loop& loop) {
  const Instant now = clock_now();
  for (const int batch : {1, 32}) {
    constexpr int kTurns = 50;
    std::vector<NoOperation> operations(static_cast<std::size_t>(batch));
    print(engine, fmt::format("submit + reap of a NOP, batches of {}", batch), measure(kTurns * batch, [&] {
            for (int turn = 0; turn < kTurns; ++turn) {
              for (NoOperation& operation : operations) {
                io_uring_prep_nop(loop.uring()->prepare(operation));
              }
              loop.poll(now);
            }
          }));
  }
}

// From before the write until the sleeper runs again. The writer waits until the sleeper is in the kernel, as nearly as the
// sleep counter tells, and then a little.
void measure_wakeup(std::string_view engine, const std::function<std::unique_ptr<Loop>()>& make, int sleeper_cpu) {
  const UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::atomic<Loop*> ready{nullptr};
  std::atomic<std::int64_t> woken_at{0};
  std::atomic<bool> stop{false};
  std::thread sleeper([&] {
    pin_to(sleeper_cpu);
    const std::unique_ptr<Loop> loop = make();
    NoHandler handler;
    const auto watch = loop->watch(event.get(), EPOLLIN, handler);
    loop->poll(clock_now());
    ready.store(loop.get(), std::memory_order_release);
    while (!stop.load(std::memory_order_acquire)) {
      if (loop->wait(clock_now(), Instant::never()) != 0) {
        woken_at.store(clock_now().ns, std::memory_order_release);
      }
    }
    loop->unwatch(*watch);
  });
  Loop* loop = nullptr;
  while ((loop = ready.load(std::memory_order_acquire)) == nullptr) {
    std::this_thread::yield();
  }
  constexpr int kWakes = 1000;
  std::vector<double> times;
  std::uint64_t sleeps = 0;
  for (int i = 0; i < kWakes; ++i) {
    while (loop->sleeps() == sleeps) {
      std::this_thread::yield();
    }
    sleeps = loop->sleeps();
    const Instant settled = clock_now() + Duration::microseconds(20);
    while (clock_now() < settled) {
      spin_pause();
    }
    woken_at.store(0, std::memory_order_relaxed);
    const std::uint64_t one = 1;
    const Instant start = clock_now();
    static_cast<void>(!write(event.get(), &one, sizeof one));
    std::int64_t end = 0;
    while ((end = woken_at.load(std::memory_order_acquire)) == 0) {
      spin_pause();
    }
    times.push_back(static_cast<double>(end - start.ns));
  }
  stop.store(true, std::memory_order_release);
  loop->wake();
  sleeper.join();
  print(engine, fmt::format("wait() woken by an eventfd, sleeper on CPU {}", sleeper_cpu), summarise(std::move(times)));
}

int run() {
  pin_to(0);
  const auto make_epoll = []() -> std::unique_ptr<Loop> { return std::move(*EpollLoop::create()); };
  const auto make_io_uring = []() -> std::unique_ptr<Loop> { return std::move(*IoUringLoop::create()); };
  const auto possible = IoUringLoop::create();
  {
    const auto epoll = make_epoll();
    measure_idle("epoll", *epoll);
  }
  measure_wakeup("epoll", make_epoll, 1);
  if (!possible.has_value()) {
    fmt::print("io_uring: {}\n", possible.error().message);
    return 0;
  }
  {
    const auto io_uring = make_io_uring();
    measure_idle("io_uring", *io_uring);
    measure_batches("io_uring", *io_uring);
  }
  measure_wakeup("io_uring", make_io_uring, 1);
  return 0;
}

}  // namespace
}  // namespace ringway

int main() {
  return ringway::run();
}
