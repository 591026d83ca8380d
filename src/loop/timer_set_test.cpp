// Compares the heap with a plain list over random operations; the loop's suite has the cases by name.
#include "loop/timer_set.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "base/prng.hpp"

namespace ringway {
namespace {

class RecordingTimer final : public TimerHandler {
 public:
  void on_timer(Instant now) noexcept override { fired->emplace_back(this, now); }
  std::vector<std::pair<RecordingTimer*, Instant>>* fired = nullptr;
};

TEST(TimerSet, AgreesWithAListThatIsSearched) {
  Prng prng(11);
  std::vector<std::pair<RecordingTimer*, Instant>> fired;
  std::deque<RecordingTimer> timers(50);
  for (RecordingTimer& timer : timers) {
    timer.fired = &fired;
  }
  TimerSet set;
  struct Expected {
    std::int64_t when = 0;
    std::uint64_t order = 0;
  };
  std::map<RecordingTimer*, Expected> model;
  std::uint64_t order = 0;
  std::int64_t now = 0;
  for (int step = 0; step < 50'000; ++step) {
    RecordingTimer& timer = timers[prng.below(timers.size())];
    switch (prng.below(4)) {
      case 0:
      case 1: {
        // Few distinct times, so that equal deadlines are common.
        const std::int64_t when = now + static_cast<std::int64_t>(prng.below(20));
        set.set(timer, Instant{when});
        model[&timer] = {when, order++};
        break;
      }
      case 2:
        set.cancel(timer);
        model.erase(&timer);
        break;
      default: {
        now += static_cast<std::int64_t>(prng.below(4));
        std::vector<std::pair<Expected, RecordingTimer*>> due;
        for (const auto& [each, expected] : model) {
          if (expected.when <= now) {
            due.emplace_back(expected, each);
          }
        }
        std::sort(due.begin(), due.end(), [](const auto& a, const auto& b) {
          return std::pair(a.first.when, a.first.order) < std::pair(b.first.when, b.first.order);
        });
        fired.clear();
        ASSERT_EQ(set.fire(Instant{now}), due.size());
        ASSERT_EQ(fired.size(), due.size());
        for (std::size_t i = 0; i < due.size(); ++i) {
          ASSERT_EQ(fired[i].first, due[i].second) << "step " << step;
          model.erase(due[i].second);
        }
        break;
      }
    }
    std::int64_t next = Instant::never().ns;
    for (const auto& [each, expected] : model) {
      next = std::min(next, expected.when);
    }
    ASSERT_EQ(set.next().ns, next) << "step " << step;
  }
}

TEST(TimerSet, HandlerOutlivingItsSetIsFree) {
  RecordingTimer timer;
  std::vector<std::pair<RecordingTimer*, Instant>> fired;
  timer.fired = &fired;
  {
    TimerSet set;
    set.set(timer, Instant{5});
  }
  TimerSet other;
  other.set(timer, Instant{7});
  EXPECT_EQ(other.fire(Instant{7}), 1U);
}

TEST(TimerSetDeathTest, DestroyingASetTimerIsCaught) {
#ifndef RINGWAY_DEBUG_CHECKS
  GTEST_SKIP() << "checked with RINGWAY_DEBUG_CHECKS only";
#else
  TimerSet set;
  EXPECT_DEATH(
      {
        RecordingTimer timer;
        set.set(timer, Instant{5});
      },
      "timer_place_");
#endif
}

}  // namespace
}  // namespace ringway
