// When a worker that found nothing to do should look again at once (spin) and when it should sleep.
//
// Goal: the lowest latency for the processor time that the operator has agreed to. The policies here are the baselines that
// others are measured against: `never` spends no time spinning, `always` never sleeps, `fixed` spins for a set time after
// the last work. Adaptive ones join PollPolicy as further alternatives, with the same two structs.
//
// Inputs (PollSample): taken once per turn of the worker, times in nanoseconds of the clock that `now` comes from.
// State: none in these three; a later policy keeps its own within its class.
// Invariants: a decision depends on the sample, `now` and the policy's state only. No clock, system call, allocation, lock
// or log. A sleep after a turn that found work is not blind: before it, the worker asks each active queue's driver for kicks
// and looks at its ring once more, so a policy needn't ask for that look by a spin. Absurd input: last_work in the future (a
// clock that stood still, or a worker that stamped it late) counts as "just now"; a worker that never had work, last_work =
// never(), or no active source sleeps, except with `always`.
//
// Owner: the worker whose turns are sampled. Copyable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/result.hpp"
#include "base/time.hpp"

namespace ringway {

struct PollSample {
  bool worked = false;                   // this turn found work
  Instant last_work = Instant::never();  // the end of the last turn that found work; never(): there was none
  std::uint32_t active_sources = 0;      // rings and stores that could bring work without a system call of ours
};

enum class PollAction : std::uint8_t { spin, sleep };

// Why, for traces and counters. One list for all policies.
enum class PollReason : std::uint8_t {
  worked,          // the turn found work
  policy_never,    // `never`: no spinning
  policy_always,   // `always`: no sleeping
  within_window,   // the last work is recent enough
  window_elapsed,  // it is not
  nothing_active,  // no source could bring anything
};

struct PollDecision {
  PollAction action = PollAction::sleep;
  // spin: the policy needn't be asked again before, as long as no turn finds work. sleep: the latest time to wake up for the
  // policy's own sake. never(): no limit.
  Instant until = Instant::never();
  PollReason reason = PollReason::policy_never;

  bool operator==(const PollDecision&) const = default;
};

static_assert(std::is_trivially_copyable_v<PollSample> && std::is_trivially_copyable_v<PollDecision>);

[[nodiscard]] std::string_view to_string(PollReason reason);

// Sleeps after every turn. With I/O to submit, that is one system call for both.
class NeverPoll {
 public:
  [[nodiscard]] PollDecision decide(const PollSample& sample, Instant now) noexcept;
};

// Spins for ever, also with nothing active: for a processor that is given to the worker.
class AlwaysPoll {
 public:
  [[nodiscard]] PollDecision decide(const PollSample& sample, Instant now) noexcept;
};

// Spins until `window` has gone by since the last work.
class FixedPoll {
 public:
  // Default 50 us: the published baseline's window. 1 ns to 1 s.
  static constexpr Duration kWindowDefault = Duration::microseconds(50);
  static constexpr Duration kWindowMin = Duration::nanoseconds(1);
  static constexpr Duration kWindowMax = Duration::seconds(1);

  // REQUIRES: kWindowMin <= window <= kWindowMax.
  explicit FixedPoll(Duration window = kWindowDefault);
  [[nodiscard]] Duration window() const noexcept { return window_; }
  [[nodiscard]] PollDecision decide(const PollSample& sample, Instant now) noexcept;

 private:
  Duration window_;
};

// The policy of one worker, chosen at run time; the call is a jump on the variant's index, and inlines.
class PollPolicy {
 public:
  using Alternatives = std::variant<NeverPoll, AlwaysPoll, FixedPoll>;

  PollPolicy() = default;  // never
  template <typename Policy>
    requires std::is_constructible_v<Alternatives, Policy>
  explicit(false) PollPolicy(Policy policy) : policy_(std::move(policy)) {}

  [[nodiscard]] PollDecision decide(const PollSample& sample, Instant now) noexcept {
    return std::visit([&](auto& policy) noexcept { return policy.decide(sample, now); }, policy_);
  }

  // The form that parse_poll_policy() reads back.
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] const Alternatives& alternatives() const noexcept { return policy_; }

 private:
  Alternatives policy_;
};

// "never", "always", "fixed" (the default window) or "fixed=50us"; units ns, us, ms, s. Errors tell what is allowed.
[[nodiscard]] Result<PollPolicy> parse_poll_policy(std::string_view text);

// --- The decisions themselves, here so that they inline into the worker's turn ---

inline PollDecision NeverPoll::decide(const PollSample& /*sample*/, Instant /*now*/) noexcept {
  return {.action = PollAction::sleep, .until = Instant::never(), .reason = PollReason::policy_never};
}

inline PollDecision AlwaysPoll::decide(const PollSample& /*sample*/, Instant /*now*/) noexcept {
  return {.action = PollAction::spin, .until = Instant::never(), .reason = PollReason::policy_always};
}

inline PollDecision FixedPoll::decide(const PollSample& sample, Instant now) noexcept {
  if (sample.worked) {
    return {.action = PollAction::spin, .until = now + window_, .reason = PollReason::worked};
  }
  if (sample.active_sources == 0 || sample.last_work == Instant::never()) {
    return {.action = PollAction::sleep, .until = Instant::never(), .reason = PollReason::nothing_active};
  }
  const Instant start = sample.last_work < now ? sample.last_work : now;
  const Instant end = start + window_;
  if (now < end) {
    return {.action = PollAction::spin, .until = end, .reason = PollReason::within_window};
  }
  return {.action = PollAction::sleep, .until = Instant::never(), .reason = PollReason::window_elapsed};
}

}  // namespace ringway
