#include "policy/poll_source.hpp"

#include <algorithm>
#include <cstdlib>

#include "base/check.hpp"

namespace ringway {

static_assert(GapStatistics::start_of(1) == 256 && GapStatistics::start_of(2) == 384 && GapStatistics::start_of(3) == 512);
static_assert(GapStatistics::start_of(GapStatistics::kBuckets - 1) == 256 << 15);

void GapStatistics::halve() noexcept {
  total_ = 0;
  for (std::uint16_t& weight : weight_) {
    weight = static_cast<std::uint16_t>(weight >> 1U);
    total_ += weight;
  }
}

void RobustMean::add(std::int64_t value) noexcept {
  constexpr std::int64_t kShare = 8;       // of a new value in the mean
  constexpr std::int64_t kFreeStep = 256;  // so that a mean near 0 can rise
  if (samples_ == 0) {
    mean_ = static_cast<std::int32_t>(value);
    deviation_ = static_cast<std::int32_t>(value / 2);
  } else {
    const std::int64_t step_max = std::max<std::int64_t>(mean_, kFreeStep);
    const std::int64_t step = std::clamp(value - mean_, -step_max, step_max);
    mean_ = static_cast<std::int32_t>(std::min(mean_ + step / kShare, kLargest));
    deviation_ = static_cast<std::int32_t>(deviation_ + (std::abs(step) - deviation_) / kShare);
  }
  samples_ = static_cast<std::uint8_t>(std::min<int>(samples_ + 1, kSamplesKnown));
}

void RobustMean::check_invariants() const noexcept {
  RW_CHECK(mean_ >= 0 && mean_ <= kLargest && deviation_ >= 0 && deviation_ <= kLargest);
  RW_CHECK(samples_ <= kSamplesKnown);
}

void GapStatistics::check_invariants() const noexcept {
  std::uint32_t sum = 0;
  for (const std::uint16_t weight : weight_) {
    sum += weight;
  }
  RW_CHECK(sum == total_ && total_ <= kTotalMax);
  mean_.check_invariants();
}

}  // namespace ringway
