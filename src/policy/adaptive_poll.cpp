// Theory of operation. Time is cut at the ends of the histograms' buckets, counted from the idle point. An Outlook holds for
// each end the probability that nothing has come by then (`quiet`): the product of that of each quick source and that of the
// others' mean rate, as if sources were independent. Closed loops are not, but what ties them (a request that waits for
// another) lies in the gaps that were measured. best_spin() walks over the ends once and keeps the best.
//
// Why not a window for each source and the longest of them, as others do: the window of a source that has just paused would
// go on for every wake-up of its neighbours. Here a source that waits longer than it ever did adds nothing.
//
// A bucket is half a power of two wide. Regular sources are taken to come evenly within two deviations of their mean
// instead, or a service time of 100 us would look like anything between 98 and 131.
#include "policy/adaptive_poll.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace ringway {

namespace {

constexpr float kPrice = 0.5F;  // of a nanosecond of processor time, in nanoseconds of latency
constexpr float kShadowPriceMax = 64.0F;
constexpr float kOddShare = 1.0F / 16;  // of what a spin is worth, for the odd gap
constexpr Duration kPricePeriod = Duration::milliseconds(10);
// A regular source comes within one spread of when it is due but for this share, most of which comes within two.
constexpr float kLate = 1.0F / 16;
constexpr float kVeryLate = 1.0F / 8;  // of those

// A spinning worker asks again so soon after a decision's time is up.
constexpr Duration kAskedWithin = Duration::microseconds(100);

// A source leaves after this many of its mean gaps, within these bounds.
constexpr std::int64_t kGapsUntilLeft = 8;
constexpr std::int64_t kLeavesAfterMin = Duration::milliseconds(1).ns;
constexpr std::int64_t kLeavesAfterMax = Duration::milliseconds(16).ns;

constexpr std::uint32_t kPressurePermille = 100;
constexpr Duration kHoldMin = Duration::milliseconds(100);
constexpr Duration kHoldMax = Duration::seconds(2);
constexpr std::int64_t kHoldsUntilForgiven = 8;

constexpr std::size_t kStepsMax = 25;  // bucket ends up to 1 ms
static_assert(GapStatistics::start_of(kStepsMax) >= AdaptivePoll::kMaxMax.ns);

constexpr std::int64_t at_least_0(Duration duration) {
  return std::max<std::int64_t>(duration.ns, 0);
}
// A cost, whatever was measured.
constexpr std::int64_t in_range(Duration cost) {
  return std::clamp<std::int64_t>(cost.ns, 0, Duration::seconds(1).ns);
}

constexpr std::array<float, GapStatistics::kBuckets> kPartOfBucket = [] {
  std::array<float, GapStatistics::kBuckets> part{};
  for (std::size_t bucket = 0; bucket + 1 < part.size(); ++bucket) {
    part[bucket] = 1.0F / static_cast<float>(GapStatistics::start_of(bucket + 1) - GapStatistics::start_of(bucket));
  }
  part.back() = 1.0F / static_cast<float>(GapStatistics::start_of(part.size() - 1));  // as if it ended there
  return part;
}();

}  // namespace

// When a regular source is expected.
struct AdaptivePoll::Due {
  bool is_regular = false;
  std::int64_t in = INT64_MAX;  // ns from now
  std::int64_t spread = 0;      // either way
};

// What may happen from the idle point on.
struct AdaptivePoll::Outlook {
  std::array<float, kStepsMax> quiet;  // nothing has come by the end of step i
  std::size_t steps = 0;
  std::size_t quick = 0;  // sources in `quiet`
  float rate = 0;         // of the others, per ns
  float saving_rate = 0;  // of the others: what they save per ns
  // The savings of all sources, each as often as it comes within the last step.
  float saving_sum = 0;
  float chance_sum = 0;
  std::int64_t learn_until = 0;  // ns from now: for the sake of sources of which little is known
  Due due;                       // of the regular source that comes first, far off or not
  float due_weight = 0;

  // Both give the probability that the source comes within the last step.
  [[nodiscard]] float add_histogram(const GapStatistics& gaps, std::int64_t age) noexcept;
  [[nodiscard]] float add_regular(const Due& due_time) noexcept;
  void add_rate() noexcept;
  void add_saving(float saving, float chance) noexcept {
    saving_sum += saving * chance;
    chance_sum += chance;
  }
  [[nodiscard]] float saving() const noexcept { return chance_sum > 0 ? saving_sum / chance_sum : 0; }
};

struct AdaptivePoll::Plan {
  float value = 0;         // ns
  std::int64_t until = 0;  // ns from now; 0: there is no plan that is worth more than nothing
};

float AdaptivePoll::Outlook::add_histogram(const GapStatistics& gaps, std::int64_t age) noexcept {
  constexpr std::size_t kBuckets = GapStatistics::kBuckets;
  std::array<float, kBuckets + 1> longer;
  std::uint32_t sum = 0;
  longer[kBuckets] = 0;
  for (std::size_t bucket = kBuckets; bucket-- > 0;) {
    sum += gaps.weight(bucket);
    longer[bucket] = static_cast<float>(sum);
  }
  if (age < GapStatistics::start_of(1) / 2) {
    const float scale = 1.0F / longer[0];
    for (std::size_t i = 0; i < steps; ++i) {
      quiet[i] *= longer[i + 1] * scale;
    }
    return 1 - longer[steps] * scale;
  }
  const auto longer_than = [&](std::int64_t ns) {
    const std::size_t bucket = GapStatistics::bucket_of(ns);
    const float into = static_cast<float>(ns - GapStatistics::start_of(bucket)) * kPartOfBucket[bucket];
    return longer[bucket + 1] + (longer[bucket] - longer[bucket + 1]) * std::max(0.0F, 1.0F - into);
  };
  const float now = longer_than(age);
  if (now <= 0) {
    return 0;  // it never waited so long: nothing tells when it comes
  }
  const float scale = 1.0F / now;
  float still = 1;
  for (std::size_t i = 0; i < steps; ++i) {
    still = longer_than(age + GapStatistics::start_of(i + 1)) * scale;
    quiet[i] *= still;
  }
  return 1 - still;
}

float AdaptivePoll::Outlook::add_regular(const Due& due_time) noexcept {
  const auto middle = static_cast<float>(due_time.in);
  const float part = 1.0F / static_cast<float>(due_time.spread);
  const auto later_than = [&](float ns) {
    const float spreads = (ns - middle) * part;
    return spreads < 1 ? std::clamp(0.5F - 0.5F * spreads, kLate, 1.0F) : kLate * std::clamp(2 - spreads, kVeryLate, 1.0F);
  };
  const float scale = 1.0F / later_than(0);
  float still = 1;
  for (std::size_t i = 0; i < steps; ++i) {
    still = later_than(static_cast<float>(GapStatistics::start_of(i + 1))) * scale;
    quiet[i] *= still;
  }
  return 1 - still;
}

void AdaptivePoll::Outlook::add_rate() noexcept {
  float none = 1;
  for (std::size_t i = 0; i < steps; ++i) {
    none /= 1.0F + rate * static_cast<float>(GapStatistics::start_of(i + 1) - GapStatistics::start_of(i));
    quiet[i] *= none;
  }
  add_saving(saving_rate / rate, 1 - none);
}

AdaptivePoll::AdaptivePoll(const Options& options) : options_(options) {
  RW_CHECK(options.max >= kMaxMin && options.max <= kMaxMax);
  RW_CHECK(options.budget_permille >= 10 && options.budget_permille <= 1000);
  while (steps_ < kStepsMax && GapStatistics::start_of(steps_) < options.max.ns) {
    ++steps_;
  }
}

void AdaptivePoll::check_invariants() const noexcept {
  RW_CHECK(tokens_ <= kTokensMax.ns * 1000);
  RW_CHECK(shadow_price_ >= 0 && shadow_price_ <= kShadowPriceMax);
  RW_CHECK(in_vain_.ns >= 0 && hold_.ns >= 0 && hold_ <= kHoldMax);
  RW_CHECK(spinning_since_ == Instant::never() || spinning_since_ <= last_);
}

PollDecision AdaptivePoll::decide(const PollSample& sample, Instant now) noexcept {
  now = std::max(now, last_);
  pass_time(sample, now);
  feed_own(sample, now);
  const bool is_held = under_pressure(sample, now);
  if (sample.worked) {
    end_spin(false, now);
    standing_ = {.action = PollAction::spin, .until = now, .reason = PollReason::worked};
    if (is_held) {
      standing_ = {.action = PollAction::sleep, .until = Instant::never(), .reason = PollReason::pressure};
    }
    return standing_;
  }
  if (standing_.action == PollAction::spin && now < standing_.until && !is_held) {
    return standing_;
  }
  standing_ = choose(sample, now);
  const bool wants_spin = standing_.action == PollAction::spin || standing_.reason == PollReason::due_later;
  if (wants_spin && (is_held || tokens_ <= 0)) {
    standing_ = {.action = PollAction::sleep,
                 .until = Instant::never(),
                 .reason = is_held ? PollReason::pressure : PollReason::budget_spent};
  }
  if (standing_.action == PollAction::sleep) {
    end_spin(true, now);
  } else {
    spinning_since_ = std::min(spinning_since_, now);
    spin_end_ = standing_.until;
  }
#ifdef RINGWAY_DEBUG_CHECKS
  check_invariants();
#endif
  return standing_;
}

// Tokens for the time that has gone by, and a new shadow price now and then.
void AdaptivePoll::pass_time(const PollSample& sample, Instant now) noexcept {
  const std::int64_t budget = std::min(options_.budget_permille, sample.process_budget_permille);
  if (last_.ns == INT64_MIN) {
    priced_ = now;
  } else {
    const std::int64_t passed = std::min((now - last_).ns, Duration::seconds(1).ns);
    tokens_ = std::min(tokens_ + passed * budget, kTokensMax.ns * 1000);
  }
  last_ = now;
  const Duration period = now - priced_;
  if (period < kPricePeriod) {
    return;
  }
  // Up by how far the budget is exceeded, down steadily: by 1 in an eighth of a second.
  constexpr float kUp = 8;  // in a period, for a whole processor too much
  constexpr float kDownPerNs = 8e-9F;
  const auto ns = static_cast<float>(period.ns);
  const float excess = static_cast<float>(in_vain_.ns) / ns - static_cast<float>(budget) / 1000;
  const float change = excess > 0 ? kUp * excess : -kDownPerNs * ns;
  shadow_price_ = std::clamp(shadow_price_ + change, 0.0F, kShadowPriceMax);
  in_vain_ = {};
  priced_ = now;
}

void AdaptivePoll::end_spin(bool in_vain, Instant now) noexcept {
  if (spinning_since_ == Instant::never()) {
    return;
  }
  if (in_vain) {
    // A worker that is asked much later than it wanted was kept from running, and spun no longer.
    const Duration lost = std::min(now, spin_end_ + kAskedWithin) - spinning_since_;
    in_vain_ = in_vain_ + lost;
    tokens_ -= lost.ns * 1000;
  }
  spinning_since_ = Instant::never();
}

bool AdaptivePoll::under_pressure(const PollSample& sample, Instant now) noexcept {
  if (sample.pressure_permille >= kPressurePermille) {
    if (now >= hold_until_) {
      const bool is_again = now < hold_until_ + Duration{hold_.ns * kHoldsUntilForgiven};
      hold_ = is_again ? std::min(Duration{hold_.ns * 2}, kHoldMax) : kHoldMin;
    }
    hold_until_ = now + hold_;
  }
  return now < hold_until_;
}

// All sources as one, for who doesn't tell them one by one.
void AdaptivePoll::feed_own(const PollSample& sample, Instant now) noexcept {
  if (!sample.active.empty()) {
    return;
  }
  if (!sample.worked) {
    own_.idle(now, false);
  } else if (standing_.action == PollAction::sleep) {
    own_.found(now + Duration{-in_range(sample.costs.wake_latency)});
  } else {
    own_.found(now);
  }
}

PollDecision AdaptivePoll::choose(const PollSample& sample, Instant now) const noexcept {
  Outlook outlook;
  outlook.steps = steps_;
  outlook.quiet.fill(1);
  if (sample.active.empty() && sample.active_sources == 0) {
    return {.action = PollAction::sleep, .until = Instant::never(), .reason = PollReason::nothing_active};
  }
  if (sample.active.empty()) {
    PollSource own = own_;
    look_at(own, sample.costs, now, outlook);
  }
  for (PollSource* source : sample.active) {
    look_at(*source, sample.costs, now, outlook);
  }
  if (outlook.rate > 0) {
    outlook.add_rate();
  }
  const Plan spin = best_spin(outlook);
  const Plan nap = best_nap(outlook, sample.costs);
  const std::int64_t learn = std::min(outlook.learn_until, options_.max.ns);
  if (learn > 0 && learn >= spin.until) {
    return {.action = PollAction::spin, .until = now + Duration{learn}, .reason = PollReason::learning};
  }
  if (nap.value > spin.value) {
    return {.action = PollAction::sleep, .until = now + Duration{nap.until}, .reason = PollReason::due_later};
  }
  if (spin.until > 0) {
    return {.action = PollAction::spin, .until = now + Duration{spin.until}, .reason = PollReason::expected_soon};
  }
  return {.action = PollAction::sleep, .until = Instant::never(), .reason = PollReason::not_worth_it};
}

// By its gaps, or by its period if that is the steadier one.
AdaptivePoll::Due AdaptivePoll::due_of(const PollSource& source, std::int64_t age, Instant now) noexcept {
  constexpr std::int64_t kSpreadMin = 100;
  const RobustMean& gap = source.gaps().mean();
  Due due;
  if (gap.is_steady()) {
    due = {.is_regular = true, .in = gap.mean() - age, .spread = std::max(2 * gap.deviation(), kSpreadMin)};
  }
  const RobustMean& period = source.period();
  if (!source.in_flight() && period.is_steady() && (!gap.is_steady() || period.deviation() < gap.deviation())) {
    due = {.is_regular = true,
           .in = period.mean() - at_least_0(now - source.last_arrival()),
           .spread = std::max(2 * period.deviation(), kSpreadMin)};
  }
  return due;
}

// Adds one source to the outlook, and notes in it whether it is still worth a look.
void AdaptivePoll::look_at(PollSource& source, const PollCosts& costs, Instant now, Outlook& outlook) const noexcept {
  if (source.has_left() || !source.is_waiting()) {
    return;
  }
  const GapStatistics& gaps = source.gaps();
  const std::int64_t age = at_least_0(now - source.since());
  const std::int64_t mean = gaps.mean().mean();
  if (!source.in_flight() && age > std::clamp(mean * kGapsUntilLeft, kLeavesAfterMin, kLeavesAfterMax)) {
    source.leave();
    return;
  }
  // What comes sooner than a wake-up can't be slept for: the histogram is exact enough, and doesn't take what is a little
  // late for lost.
  const Due due = mean > in_range(costs.wake_latency) ? due_of(source, age, now) : Due{};
  source.set_worth_scanning(source.weight_permille != 0 && (due.is_regular || mean <= 2 * options_.max.ns));
  const std::int64_t cpu = in_range(costs.wake_cpu) + (source.in_flight() ? 0 : in_range(costs.kick_cpu));
  const float weight = static_cast<float>(source.weight_permille) / 1000;
  const float saving = weight * (static_cast<float>(in_range(costs.wake_latency)) + kPrice * static_cast<float>(cpu));
  if (!gaps.is_known()) {
    outlook.learn_until = std::max(outlook.learn_until, static_cast<std::int64_t>(saving / kPrice) - age);
    return;
  }
  if (due.is_regular && due.in + due.spread > 0 && due.in < outlook.due.in) {
    outlook.due = due;
    outlook.due_weight = weight;
  }
  const bool is_quick = due.is_regular ? due.in - due.spread <= options_.max.ns : mean <= 2 * options_.max.ns;
  if (!is_quick || outlook.quick == kQuickMax) {
    const float rate = 1.0F / static_cast<float>(mean + 1);
    outlook.rate += rate;
    outlook.saving_rate += rate * saving;
    return;
  }
  ++outlook.quick;
  const float chance = due.is_regular ? outlook.add_regular(due) : outlook.add_histogram(gaps, age);
  outlook.add_saving(saving, chance);
  if (!due.is_regular && chance == 0) {
    // It never waited so long: the odd gap, as in best_spin().
    outlook.learn_until = std::max(outlook.learn_until, static_cast<std::int64_t>(saving) - age);
  }
}

AdaptivePoll::Plan AdaptivePoll::best_spin(const Outlook& outlook) const noexcept {
  Plan best;
  const float saving = outlook.saving();
  float spun = 0;  // expected, ns
  float before = 1;
  float quiet_then = 1;
  std::int64_t start = 0;
  for (std::size_t i = 0; i < outlook.steps; ++i) {
    const std::int64_t end = GapStatistics::start_of(i + 1);
    const float quiet = outlook.quiet[i];
    spun += static_cast<float>(end - start) * 0.5F * (before + quiet);
    const float value = saving * (1 - quiet) - kPrice * spun - shadow_price_ * static_cast<float>(end) * quiet;
    if (value > best.value) {
      best = {.value = value, .until = std::min(end, options_.max.ns)};
      quiet_then = quiet;
    }
    if (saving - kPrice * spun <= best.value) {
      break;  // what is spun from here on is more than what is left to gain
    }
    before = quiet;
    start = end;
  }
  // What is remembered of a source are a hundred gaps. If hardly one of them was longer, it costs next to nothing to wait
  // for the odd one as long as a sleep would cost, and a driver that is a little late for once isn't put to sleep by a
  // worker that is.
  if (best.until > 0 && quiet_then * saving * (kPrice + shadow_price_) <= kOddShare * best.value) {
    best.until = std::max(best.until, std::min(static_cast<std::int64_t>(saving), options_.max.ns));
  }
  return best;
}

// Sleep until shortly before a regular source is due, and spin then.
AdaptivePoll::Plan AdaptivePoll::best_nap(const Outlook& outlook, const PollCosts& costs) const noexcept {
  if (!outlook.due.is_regular) {
    return {};
  }
  const std::int64_t wake = in_range(costs.wake_latency);
  const std::int64_t margin = wake / 4;  // wake-ups differ
  const std::int64_t nap = outlook.due.in - outlook.due.spread - wake - margin;
  const std::int64_t spin_max = 2 * outlook.due.spread + margin;
  if (nap < wake || spin_max > options_.max.ns) {
    return {};
  }
  const auto spin = static_cast<float>(outlook.due.spread + margin);
  const float value = outlook.due_weight * static_cast<float>(wake) * (1 - kLate) - kPrice * spin -
                      shadow_price_ * kLate * static_cast<float>(spin_max);
  return {.value = value, .until = nap};
}

}  // namespace ringway
