// The event loop in virtual time, for tests of workers and policies: nothing sleeps, no descriptor is real, and what happens
// when is scripted. Two runs of one script are the same, event for event.
//
// Owner: one thread; wake() too, since there is only one. Descriptors are names only, and any number will do.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "loop/loop.hpp"
#include "loop/timer_set.hpp"
#include "loop/watch_table.hpp"

namespace ringway {

class SimulatedLoop final : public Loop {
 public:
  explicit SimulatedLoop(Instant start = Instant{}) : now_(start) {}

  // --- The script ---

  // The virtual clock: what the thread under test takes for `now`.
  [[nodiscard]] Instant now() const noexcept { return now_; }
  // The thread computes for that long. Scripted events of that time happen; handlers run at the next poll() or wait().
  void advance(Duration duration);
  // An edge on the descriptor's watches, collected by the next poll() or wait(). Nothing if nobody watches it for `events`.
  void make_ready(int fd, std::uint32_t events);
  // `event` happens at `when` (or at once, if that is past), between the handlers of the thread, in the order of times and
  // then of these calls. It may script further events.
  void at(Instant when, std::move_only_function<void()> event);

  // True if the last wait() would have slept for ever: no deadline, no timer, nothing scripted. It returned at once instead.
  [[nodiscard]] bool stalled() const noexcept { return stalled_; }
  // The virtual time spent in wait().
  [[nodiscard]] Duration slept() const noexcept { return slept_; }

  // --- Loop ---

  [[nodiscard]] Result<WatchId> watch(int fd, std::uint32_t events, FdHandler& handler) override;
  void unwatch(WatchId watch) noexcept override;
  void set_timer(TimerHandler& timer, Instant when) override;
  void cancel_timer(TimerHandler& timer) noexcept override;
  // A `now` ahead of the virtual clock moves it there.
  std::uint32_t poll(Instant now) noexcept override;
  // Moves the clock to whatever comes first: a scripted event that makes something ready or wakes, a timer, the deadline.
  std::uint32_t wait(Instant now, Instant deadline, Instant* woke = nullptr) noexcept override;
  void wake() noexcept override { woken_ = true; }
  [[nodiscard]] std::uint64_t sleeps() const noexcept override { return sleeps_; }
  // Always 0: the kernel has no part in this.
  [[nodiscard]] std::uint64_t system_calls() const noexcept override { return 0; }

 private:
  [[nodiscard]] Instant next_event() const noexcept {
    return script_.empty() ? Instant::never() : script_.begin()->first.first;
  }
  void move_clock(Instant to);
  std::uint32_t dispatch() noexcept;

  Instant now_;
  WatchTable watches_;
  TimerSet timers_;
  std::multimap<int, WatchId> watches_of_fd_;
  std::vector<std::pair<WatchId, std::uint32_t>> ready_;
  std::map<std::pair<Instant, std::uint64_t>, std::move_only_function<void()>> script_;  // by time, then by order of at()
  std::uint64_t script_sequence_ = 0;
  std::uint64_t sleeps_ = 0;
  Duration slept_;
  bool woken_ = false;
  bool stalled_ = false;
};

}  // namespace ringway
