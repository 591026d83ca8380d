// Spins when that is worth its processor time, by what is known of each source, and within a budget.
//
// Goal: at each idle point, the most of
//     saving x P(work comes within T)  -  price x E[time spun]  -  shadow price x (time spun in vain)
// over all T. `saving` is what a wake-up costs: its latency, and at the price of processor time the worker's and, where a
// driver is waited for, that of its kick. The price is half a nanosecond of latency for one of processor time. The shadow
// price is 0 until spinning in vain exceeds its budget, and then rises until it doesn't: what is left of the budget goes to
// the spins that bring the most for it. A bucket of tokens stands behind it, so that the budget holds from the first second
// on and not only in the long run.
//
// How likely work is: sources that were quick lately (at most kQuickMax of them) by the histogram of their gaps, given how
// long they wait already; all others by the mean rate that they add up to. If a source comes regularly and its time is far
// enough off, the policy sleeps until shortly before and spins then: a slow store costs its wake-up, but not its latency.
// For a source of which too little is known it spins for as long as the saving is worth: never more than double the cost of
// the better choice.
//
// Inputs: all of PollSample. If `active` is empty, all sources together are taken for one that the policy feeds itself.
// State: a shadow price, tokens, the decision that stands, the hold of the last pressure; O(1). Invariants: spinning in vain
// takes at most budget x time + kTokensMax + one spin of `max`; no spin starts under pressure, and after it none until it
// was absent for a while (100 ms to 2 s), longer each time it returns soon; a tenth of the time is pressure. A decision
// costs O(active). Absurd input: time that stands or goes back counts as no time; a million sources cost a million looks and
// the first quick ones count one by one; numbers out of their range are cut to it.
//
// Parameters: max 200 us (1 us to 1 ms), budget 10 % of a processor (1 to 100 %), both guesses that the closed loops of
// sim/poll_sim_test.cpp bear out for the costs of PollCosts.
//
// Owner: the worker whose turns are sampled. Copyable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/time.hpp"
#include "policy/poll_sample.hpp"
#include "policy/poll_source.hpp"

namespace ringway {

class AdaptivePoll {
 public:
  struct Options {
    Duration max = Duration::microseconds(200);  // no spin is longer
    std::uint32_t budget_permille = 100;         // of a processor, for spinning that ends in a sleep
  };
  static constexpr Duration kMaxMin = Duration::microseconds(1);
  static constexpr Duration kMaxMax = Duration::milliseconds(1);

  AdaptivePoll() : AdaptivePoll(Options{}) {}
  // REQUIRES: the ranges above.
  explicit AdaptivePoll(const Options& options);
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] PollDecision decide(const PollSample& sample, Instant now) noexcept;

  // Of a nanosecond spun in vain, on top of its price as processor time; for reports.
  [[nodiscard]] float shadow_price() const noexcept { return shadow_price_; }
  void check_invariants() const noexcept;

  // What spinning in vain may be saved up for, so that a burst may end with a few spins too many.
  static constexpr Duration kTokensMax = Duration::milliseconds(2);
  static constexpr std::size_t kQuickMax = 4;

 private:
  struct Due;
  struct Outlook;
  struct Plan;

  void pass_time(const PollSample& sample, Instant now) noexcept;
  void end_spin(bool in_vain, Instant now) noexcept;
  [[nodiscard]] bool under_pressure(const PollSample& sample, Instant now) noexcept;
  void feed_own(const PollSample& sample, Instant now) noexcept;
  [[nodiscard]] PollDecision choose(const PollSample& sample, Instant now) const noexcept;
  void look_at(PollSource& source, const PollCosts& costs, Instant now, Outlook& outlook) const noexcept;
  [[nodiscard]] static Due due_of(const PollSource& source, std::int64_t age, Instant now) noexcept;
  [[nodiscard]] Plan best_spin(const Outlook& outlook) const noexcept;
  [[nodiscard]] Plan best_nap(const Outlook& outlook, const PollCosts& costs) const noexcept;

  Options options_;
  std::size_t steps_ = 0;  // how many bucket ends are up to max
  PollSource own_;
  PollDecision standing_;
  Instant last_ = {INT64_MIN};                 // the latest time seen
  Instant spinning_since_ = Instant::never();  // never(): not spinning
  Instant spin_end_;                           // if spinning: the time of the last decision

  // Tokens count ns x thousandths of a processor.
  std::int64_t tokens_ = kTokensMax.ns * 1000 / 2;
  Duration in_vain_;              // since the shadow price was set last
  Instant priced_ = {INT64_MIN};  // when that was
  float shadow_price_ = 0;

  Instant hold_until_ = {INT64_MIN};
  Duration hold_;
};

}  // namespace ringway
