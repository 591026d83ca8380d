#include "policy/grow_shrink_poll.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace ringway {

namespace {

constexpr Duration kFirstWindow = Duration::nanoseconds(4'000);
constexpr Duration kLeavesAfter = Duration::seconds(7);

}  // namespace

GrowShrinkPoll::GrowShrinkPoll(const Options& options) : options_(options) {
  RW_CHECK(options.max >= kMaxMin && options.max <= kMaxMax);
  RW_CHECK(options.grow != 1 && options.grow <= kFactorMax && options.shrink <= kFactorMax);
}

void GrowShrinkPoll::adjust(Duration& window, Duration waited) const noexcept {
  if (waited <= window) {
    return;
  }
  if (waited > options_.max) {
    window.ns = options_.shrink == 0 ? 0 : window.ns / options_.shrink;
  } else if (window < options_.max) {
    const std::int64_t factor = options_.grow == 0 ? 2 : options_.grow;
    // Both are below 1 s x 1000.
    window = std::min(window.ns == 0 ? kFirstWindow : Duration{window.ns * factor}, options_.max);
  }
}

PollDecision GrowShrinkPoll::decide(const PollSample& sample, Instant now) noexcept {
  if (sample.worked) {
    const Duration waited = waiting_since_ < now ? now - waiting_since_ : Duration{};
    for (PollSource* source : sample.active) {
      if (source->take_fresh()) {
        adjust(source->window, waited);
      }
    }
    if (sample.active.empty()) {
      adjust(own_window_, waited);
    }
    waiting_since_ = Instant::never();
    return {.action = PollAction::spin, .until = now, .reason = PollReason::worked};
  }
  waiting_since_ = std::min(waiting_since_, now);
  if (sample.active.empty() && sample.active_sources == 0) {
    return {.action = PollAction::sleep, .until = Instant::never(), .reason = PollReason::nothing_active};
  }
  Duration window = sample.active.empty() ? own_window_ : Duration{};
  for (PollSource* source : sample.active) {
    if (source->is_waiting() && source->since() + kLeavesAfter < now) {
      source->window = {};
      source->leave();
    }
    window = std::max(window, source->window);
  }
  const Instant end = waiting_since_ + window;
  if (now < end) {
    return {.action = PollAction::spin, .until = end, .reason = PollReason::within_window};
  }
  return {.action = PollAction::sleep, .until = Instant::never(), .reason = PollReason::window_elapsed};
}

}  // namespace ringway
