// A poll window for each source that doubles and collapses: what QEMU 10 documents for its event loops (poll-max-ns,
// poll-grow, poll-shrink), as a baseline and for who wants the behaviour that he knows.
//
// Goal: a window just long enough for the sources that are quick. Inputs: PollSample's `worked`, `active` and
// active_sources. When a source brings work, the time that the worker had waited since its last work decides: up to the
// source's window, keep it; longer than `max`, divide it by `shrink` (0: to zero); else multiply it by `grow` (0: by 2),
// from 4 us on. The worker spins for the longest window of all. A source leaves after 7 s without work, and its window stays
// until then.
//
// State: the windows (PollSource::window) and when the wait began. Absurd input: a clock that goes back makes a wait of 0.
// Parameters: max 32,768 ns (1 ns to 1 s), grow 0, 2…1000, shrink 0…1000 (shrink 1 never shrinks).
//
// Owner: the worker whose turns are sampled. Copyable.
#pragma once

#include <cstdint>

#include "base/time.hpp"
#include "policy/poll_sample.hpp"

namespace ringway {

class GrowShrinkPoll {
 public:
  struct Options {
    Duration max = Duration::nanoseconds(32'768);
    std::uint32_t grow = 2;    // 0 is 2
    std::uint32_t shrink = 0;  // 0: to zero at once
  };
  static constexpr Duration kMaxMin = Duration::nanoseconds(1);
  static constexpr Duration kMaxMax = Duration::seconds(1);
  static constexpr std::uint32_t kFactorMax = 1000;

  GrowShrinkPoll() : GrowShrinkPoll(Options{}) {}
  // REQUIRES: the ranges above.
  explicit GrowShrinkPoll(const Options& options);
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] PollDecision decide(const PollSample& sample, Instant now) noexcept;

 private:
  void adjust(Duration& window, Duration waited) const noexcept;

  Options options_;
  Duration own_window_;                       // when sources aren't told one by one
  Instant waiting_since_ = Instant::never();  // the first empty turn since work; never(): the last turn worked
};

}  // namespace ringway
