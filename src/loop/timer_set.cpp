// A handler's `timer_place_` says where its entry lies: kNotSet, an index into the heap, or kDeferred + an index into the
// list of timers that were set while firing. Each move of an entry goes through place(), which keeps that true.
#include "loop/timer_set.hpp"

#include "base/check.hpp"

namespace ringway {

namespace {

constexpr std::size_t kDeferred = std::size_t{1} << 48U;

}  // namespace

TimerSet::~TimerSet() {
  for (const Entry& entry : heap_) {
    entry.timer->timer_place_ = TimerHandler::kNotSet;
  }
  for (const Entry& entry : deferred_) {
    entry.timer->timer_place_ = TimerHandler::kNotSet;
  }
}

void TimerSet::set(TimerHandler& timer, Instant when) {
  cancel(timer);
  const Entry entry{.when = when, .sequence = sequence_++, .timer = &timer};
  if (firing_) {
    timer.timer_place_ = kDeferred + deferred_.size();
    deferred_.push_back(entry);
  } else {
    push(entry);
  }
}

void TimerSet::cancel(TimerHandler& timer) noexcept {
  const std::size_t place = timer.timer_place_;
  if (place == TimerHandler::kNotSet) {
    return;
  }
  if (place >= kDeferred) {
    remove_from_deferred(place - kDeferred);
  } else {
    remove_from_heap(place);
  }
}

std::uint32_t TimerSet::fire(Instant now) noexcept {
  if (heap_.empty() || heap_.front().when > now) {
    return 0;
  }
  RW_CHECK(!firing_);
  firing_ = true;
  std::uint32_t fired = 0;
  while (!heap_.empty() && heap_.front().when <= now) {
    TimerHandler& timer = *heap_.front().timer;
    remove_from_heap(0);
    timer.on_timer(now);
    ++fired;
  }
  firing_ = false;
  for (const Entry& entry : deferred_) {
    push(entry);
  }
  deferred_.clear();
  return fired;
}

void TimerSet::push(Entry entry) {
  heap_.push_back(entry);
  place(heap_.size() - 1, entry);
  sift_up(heap_.size() - 1);
}

void TimerSet::remove_from_heap(std::size_t index) noexcept {
  RW_CHECK(index < heap_.size());
  heap_[index].timer->timer_place_ = TimerHandler::kNotSet;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (index < heap_.size()) {
    place(index, last);
    sift_up(index);
    sift_down(last.timer->timer_place_);
  }
}

void TimerSet::remove_from_deferred(std::size_t index) noexcept {
  RW_CHECK(index < deferred_.size());
  deferred_[index].timer->timer_place_ = TimerHandler::kNotSet;
  deferred_[index] = deferred_.back();
  deferred_.pop_back();
  if (index < deferred_.size()) {
    deferred_[index].timer->timer_place_ = kDeferred + index;
  }
}

void TimerSet::place(std::size_t index, const Entry& entry) noexcept {
  heap_[index] = entry;
  entry.timer->timer_place_ = index;
}

void TimerSet::sift_up(std::size_t index) noexcept {
  const Entry entry = heap_[index];
  while (index > 0) {
    const std::size_t parent = (index - 1) / 2;
    if (!entry.before(heap_[parent])) {
      break;
    }
    place(index, heap_[parent]);
    index = parent;
  }
  place(index, entry);
}

void TimerSet::sift_down(std::size_t index) noexcept {
  const Entry entry = heap_[index];
  for (;;) {
    std::size_t child = index * 2 + 1;
    if (child >= heap_.size()) {
      break;
    }
    if (child + 1 < heap_.size() && heap_[child + 1].before(heap_[child])) {
      ++child;
    }
    if (!heap_[child].before(entry)) {
      break;
    }
    place(index, heap_[child]);
    index = child;
  }
  place(index, entry);
}

}  // namespace ringway
