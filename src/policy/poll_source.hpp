// What a poll policy remembers of one source of work: a ring that its driver fills, with what the store does for it.
//
// The mechanism embeds one in each queue, tells it of two changes, and lists it in PollSample::active:
//   idle(now, in_flight)  an empty look at the source, the first since it had work; also when its ring is armed for a sleep.
//   found(arrived)        it had work again: requests in the ring, or completions of its own.
// Both do nothing if the source is in that state already, so a busy queue, which has work in each turn, pays a branch.
//
// Gaps between the two are kept apart by whether requests were in flight when the source went idle. With nothing in flight
// the gap is the driver's (at depth 1 its think time), with something in flight it is that until the next completion or the
// next request, whichever is first: at depth 1 the store's service time, and what counts for a wait at any depth.
//
// A gap that a sleep ended looks longer than it was by the time that the wake-up took, and a policy that never spins would
// never see the short gaps for which spinning pays. So `arrived` is when the work came, as far as can be known: `now` of the
// turn, or PollCosts::wake_latency earlier if the turn is the first after a sleep that an event ended.
//
// Owner: the queue's worker; a queue that moves takes it along. Trivially copyable, never allocates. Absurd input: a time
// before the last one counts as a gap of 0; gaps longer than GapStatistics::kLongest as that.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/time.hpp"

namespace ringway {

// A mean and a mean deviation that one odd value doesn't upset: it moves the mean by an eighth of itself at most.
// Nanoseconds.
class RobustMean {
 public:
  static constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  static constexpr std::uint8_t kSamplesKnown = 16;

  // REQUIRES: 0 <= value <= kLargest.
  void add(std::int64_t value) noexcept;
  // False: too few values to go by.
  [[nodiscard]] bool is_known() const noexcept { return samples_ >= kSamplesKnown; }
  [[nodiscard]] std::int64_t mean() const noexcept { return mean_; }
  [[nodiscard]] std::int64_t deviation() const noexcept { return deviation_; }
  // Deviations are short beside the mean.
  [[nodiscard]] bool is_steady() const noexcept { return is_known() && std::int64_t{deviation_} * 12 <= mean_; }

  void check_invariants() const noexcept;

 private:
  std::int32_t mean_ = 0;
  std::int32_t deviation_ = 0;
  std::uint8_t samples_ = 0;  // stops at kSamplesKnown
};

// How long the gaps are: a decaying histogram of two buckets to each power of two, from 256 ns to 8.4 ms and one for all
// above; and a mean with a mean deviation, which are exact enough to wake up just before an event that comes regularly.
class GapStatistics {
 public:
  static constexpr std::size_t kBuckets = 32;
  static constexpr std::int64_t kLongestNs = RobustMean::kLargest;

  // The shortest gap of bucket `bucket`, in nanoseconds: 0, 256, 384, 512, 768, 1024, … The next one's is its end.
  [[nodiscard]] static constexpr std::int64_t start_of(std::size_t bucket) noexcept {
    return bucket == 0 ? 0 : static_cast<std::int64_t>((256 + 128 * ((bucket - 1) & 1U)) << ((bucket - 1) / 2));
  }
  [[nodiscard]] static constexpr std::size_t bucket_of(std::int64_t ns) noexcept {
    if (ns < 256) {
      return 0;
    }
    const auto power = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(ns))) - 1;
    const std::size_t bucket = 1 + 2 * std::size_t{power - 8} + ((static_cast<std::uint64_t>(ns) >> (power - 1)) & 1U);
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }

  void add(std::int64_t gap_ns) noexcept {
    const std::int64_t gap = gap_ns < 0 ? 0 : (gap_ns < kLongestNs ? gap_ns : kLongestNs);
    if (total_ > kTotalMax - kWeight) {
      halve();
    }
    weight_[bucket_of(gap)] += kWeight;
    total_ += kWeight;
    mean_.add(gap);
  }

  [[nodiscard]] bool is_known() const noexcept { return mean_.is_known(); }
  [[nodiscard]] const RobustMean& mean() const noexcept { return mean_; }
  [[nodiscard]] std::uint32_t weight(std::size_t bucket) const noexcept { return weight_[bucket]; }
  // The sum of all weights. Zero: no gap was seen.
  [[nodiscard]] std::uint32_t total() const noexcept { return total_; }

  void check_invariants() const noexcept;

 private:
  // One gap weighs so much that halving rounds off little; 64 to 127 gaps are remembered, the older ones with less weight.
  static constexpr std::uint16_t kWeight = 512;
  static constexpr std::uint32_t kTotalMax = 0xffff;

  void halve() noexcept;

  std::array<std::uint16_t, kBuckets> weight_{};
  std::uint32_t total_ = 0;
  RobustMean mean_;
};

class PollSource {
 public:
  // --- for the mechanism ---

  void idle(Instant now, bool in_flight) noexcept {
    if (!is_waiting_) {
      is_waiting_ = true;
      in_flight_ = in_flight;
      since_ = now;
    }
  }
  void found(Instant arrived) noexcept {
    if (is_waiting_) {
      is_waiting_ = false;
      is_fresh_ = true;
      has_left_ = false;
      gaps_[in_flight_ ? 1 : 0].add((arrived - since_).ns);
      if (!in_flight_) {
        if (arrived_ != Instant::never()) {
          period_.add(std::clamp<std::int64_t>((arrived - arrived_).ns, 0, RobustMean::kLargest));
        }
        arrived_ = arrived;
      }
    }
  }
  // The policy counts no longer on it: take it off the list until its next found(). Set by decide().
  [[nodiscard]] bool has_left() const noexcept { return has_left_; }
  // What a nanosecond of its latency is worth, in thousandths of one of others. 0: its rings are never waited for awake. May
  // be changed at any time.
  std::uint32_t weight_permille = 1000;
  // Its ring is worth a look in every turn. If not, arm it for kicks and look no more until one comes; it stays on the list.
  [[nodiscard]] bool worth_scanning() const noexcept { return worth_scanning_; }

  // --- for policies ---

  [[nodiscard]] bool is_waiting() const noexcept { return is_waiting_; }
  [[nodiscard]] bool in_flight() const noexcept { return in_flight_; }
  // Since when it waits; without meaning unless is_waiting().
  [[nodiscard]] Instant since() const noexcept { return since_; }
  // Of the state that it waits in.
  [[nodiscard]] const GapStatistics& gaps() const noexcept { return gaps_[in_flight_ ? 1 : 0]; }
  [[nodiscard]] const GapStatistics& gaps(bool with_requests_in_flight) const noexcept {
    return gaps_[with_requests_in_flight ? 1 : 0];
  }
  // From one end of a wait with nothing in flight to the next: steady for a driver that sends by a clock, whose gaps depend
  // on how late its last request was seen.
  [[nodiscard]] const RobustMean& period() const noexcept { return period_; }
  [[nodiscard]] Instant last_arrival() const noexcept { return arrived_; }
  // Whether found() came since the last call.
  [[nodiscard]] bool take_fresh() noexcept {
    const bool was_fresh = is_fresh_;
    is_fresh_ = false;
    return was_fresh;
  }
  void leave() noexcept { has_left_ = true; }
  void set_worth_scanning(bool worth) noexcept { worth_scanning_ = worth; }
  // `grow_shrink` keeps its window here.
  Duration window;

 private:
  Instant since_;
  std::array<GapStatistics, 2> gaps_;  // nothing in flight, something in flight
  RobustMean period_;
  Instant arrived_ = Instant::never();  // the last one that ended a wait with nothing in flight
  bool is_waiting_ = false;
  bool in_flight_ = false;
  bool is_fresh_ = false;
  bool has_left_ = false;
  bool worth_scanning_ = true;
};

static_assert(std::is_trivially_copyable_v<PollSource> && sizeof(PollSource) <= 256);

}  // namespace ringway
