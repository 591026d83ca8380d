// What a poll policy is told, and what it answers. See poll_policy.hpp for the contract.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/time.hpp"
#include "policy/poll_source.hpp"

namespace ringway {

// What a sleep costs over finding the same work awake, as measured on this machine, or these defaults (a nested virtual
// machine with two processors; published figures are 5 to 15 us). Negative values count as 0.
struct PollCosts {
  Duration wake_latency = Duration::nanoseconds(7'000);  // from the event to the worker's first instruction
  Duration wake_cpu = Duration::nanoseconds(4'600);      // the worker's processor time for one sleep and wake-up
  Duration kick_cpu = Duration::nanoseconds(2'600);      // the driver's processor time for a kick
};

struct PollSample {
  bool worked = false;                   // this turn found work
  Instant last_work = Instant::never();  // the end of the last turn that found work; never(): there was none
  std::uint32_t active_sources = 0;      // rings and stores that could bring work without a system call of ours

  // Those sources one by one: each that has had work and not left since (PollSource::has_left), also while its ring is
  // armed. Empty: the policy goes by active_sources, and counts all of them as one source. The policy keeps no pointer.
  std::span<PollSource* const> active = {};
  // The larger of: the share of the last few milliseconds in which the worker could have run and was not given a processor
  // (run delay), and in which its cgroup was throttled; in thousandths.
  std::uint32_t pressure_permille = 0;
  // How much spinning in vain the process grants this worker now, in thousandths of a processor. The policy's own budget
  // holds too.
  std::uint32_t process_budget_permille = 1000;
  PollCosts costs = {};
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
  expected_soon,   // work is likely enough to come that waiting awake is worth its processor time
  learning,        // too little is known of a source; waits awake for as long as a sleep would cost
  not_worth_it,    // waiting awake would cost more than it brings
  due_later,       // work is expected at a certain time: sleeps until shortly before
  budget_spent,    // waiting awake would pay, but too much of it was in vain lately
  pressure,        // others want the processor
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

}  // namespace ringway
