// The timers of one loop: a binary heap by deadline in which each handler knows its place, so that setting, moving and
// cancelling are logarithmic and allocate only while the number of timers grows.
//
// Owner: the loop's thread. Time is an argument; no clock is read here.
#pragma once

#include <cstdint>
#include <vector>

#include "base/time.hpp"
#include "loop/loop.hpp"

namespace ringway {

class TimerSet {
 public:
  TimerSet() = default;
  TimerSet(const TimerSet&) = delete;
  TimerSet& operator=(const TimerSet&) = delete;
  // Timers that are still set are forgotten, not fired.
  ~TimerSet();

  void set(TimerHandler& timer, Instant when);
  void cancel(TimerHandler& timer) noexcept;

  // When the next one is due; Instant::never() if there is none.
  [[nodiscard]] Instant next() const noexcept { return heap_.empty() ? Instant::never() : heap_.front().when; }

  // Fires what is due at `now`, in the order of deadlines and, among equal ones, of their setting. A timer that a handler
  // sets is not fired in the same call even when it is due already, so that this ends. Returns how many were fired.
  std::uint32_t fire(Instant now) noexcept;

 private:
  struct Entry {
    Instant when;
    std::uint64_t sequence = 0;
    TimerHandler* timer = nullptr;
    [[nodiscard]] bool before(const Entry& other) const noexcept {
      return when != other.when ? when < other.when : sequence < other.sequence;
    }
  };

  void push(Entry entry);
  void remove_from_heap(std::size_t index) noexcept;
  void remove_from_deferred(std::size_t index) noexcept;
  void place(std::size_t index, const Entry& entry) noexcept;
  void sift_up(std::size_t index) noexcept;
  void sift_down(std::size_t index) noexcept;

  std::vector<Entry> heap_;
  std::vector<Entry> deferred_;  // set by handlers while fire() runs
  std::uint64_t sequence_ = 0;
  bool firing_ = false;
};

}  // namespace ringway
