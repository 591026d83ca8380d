// When a worker that found nothing to do should look again at once (spin) and when it should sleep.
//
// Goal: the lowest latency for the processor time that the operator has agreed to. The policies here are the baselines that
// others are measured against: `never` spends no time spinning, `always` never sleeps, `fixed` spins for a set time after
// the last work. `grow_shrink` and `adaptive` have headers of their own.
//
// Inputs (PollSample): taken once per turn of the worker, times in nanoseconds of the clock that `now` comes from. decide()
// is called for each turn that found work, and for one that found nothing once the last decision's `until` has passed. Calls
// in between do no harm, and give the same decision.
// State: none in these three; the others keep their own within their class. PollPolicy counts what came of the decisions.
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
#include "policy/adaptive_poll.hpp"
#include "policy/grow_shrink_poll.hpp"
#include "policy/poll_sample.hpp"

namespace ringway {

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

// What came of the decisions so far: where a policy's regrets are. In nanoseconds and events since the start; they wrap.
struct PollOutcome {
  std::uint64_t productive_spin_ns = 0;    // ended by work
  std::uint64_t unproductive_spin_ns = 0;  // ended by a sleep
  std::uint64_t wakeups_avoided = 0;       // spins that ended by work
  std::uint64_t sleeps = 0;                // decisions to sleep; the worker may find work before it does
  std::uint64_t misses = 0;                // sleeps that ended so soon that spinning on would have been cheaper

  bool operator==(const PollOutcome&) const = default;
};

// The policy of one worker, chosen at run time; the call is a jump on the variant's index, and inlines.
class PollPolicy {
 public:
  using Alternatives = std::variant<NeverPoll, AlwaysPoll, FixedPoll, GrowShrinkPoll, AdaptivePoll>;

  PollPolicy() = default;  // never
  template <typename Policy>
    requires std::is_constructible_v<Alternatives, Policy>
  explicit(false) PollPolicy(Policy policy) : policy_(std::move(policy)) {}

  [[nodiscard]] PollDecision decide(const PollSample& sample, Instant now) noexcept {
    const PollDecision decision = std::visit([&](auto& policy) noexcept { return policy.decide(sample, now); }, policy_);
    count(sample, decision, now);
    return decision;
  }

  [[nodiscard]] const PollOutcome& outcome() const noexcept { return outcome_; }
  // Whether it goes by PollSample::active: for others nobody need keep that list.
  [[nodiscard]] bool goes_by_sources() const noexcept {
    return std::holds_alternative<GrowShrinkPoll>(policy_) || std::holds_alternative<AdaptivePoll>(policy_);
  }
  // The form that parse_poll_policy() reads back.
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] const Alternatives& alternatives() const noexcept { return policy_; }

 private:
  void count(const PollSample& sample, const PollDecision& decision, Instant now) noexcept;

  Alternatives policy_;
  PollOutcome outcome_;
  Instant spinning_since_ = Instant::never();  // the first empty turn of this spin
  Instant asleep_since_ = Instant::never();    // the last decision to sleep, if no work came since
};

// "never", "always", "fixed" (the default window) or "fixed=50us", "grow_shrink" or "grow_shrink=max=32us,grow=2,shrink=0",
// "adaptive" or "adaptive=max=200us,budget=10%", each part optional; units ns, us, ms, s. Errors tell what is allowed.
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

inline void PollPolicy::count(const PollSample& sample, const PollDecision& decision, Instant now) noexcept {
  const bool was_spinning = spinning_since_ != Instant::never();
  // A clock that goes back adds nothing.
  const auto spun = static_cast<std::uint64_t>(was_spinning && spinning_since_ < now ? (now - spinning_since_).ns : 0);
  if (sample.worked) {
    outcome_.productive_spin_ns += spun;
    outcome_.wakeups_avoided += was_spinning ? 1 : 0;
    spinning_since_ = Instant::never();
    if (asleep_since_ != Instant::never()) {
      const PollCosts& costs = sample.costs;
      outcome_.misses += now < asleep_since_ + costs.wake_latency + costs.wake_latency + costs.wake_cpu ? 1 : 0;
      asleep_since_ = Instant::never();
    }
  } else if (decision.action == PollAction::spin && !was_spinning) {
    spinning_since_ = now;
  }
  if (decision.action == PollAction::sleep) {
    outcome_.unproductive_spin_ns += sample.worked ? 0 : spun;
    outcome_.sleeps += 1;
    spinning_since_ = Instant::never();
    asleep_since_ = now;
  }
}

}  // namespace ringway
