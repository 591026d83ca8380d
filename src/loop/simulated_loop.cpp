#include "loop/simulated_loop.hpp"

#include <sys/epoll.h>

#include <algorithm>

namespace ringway {

void SimulatedLoop::advance(Duration duration) {
  RW_CHECK(duration >= Duration{});
  move_clock(now_ + duration);
}

void SimulatedLoop::make_ready(int fd, std::uint32_t events) {
  const auto [first, last] = watches_of_fd_.equal_range(fd);
  for (auto each = first; each != last; ++each) {
    const WatchTable::Watch* watch = watches_.find(each->second);
    // Errors and hang-ups are reported whether asked for or not, as a kernel does.
    const std::uint32_t reported = events & (watch->events | EPOLLERR | EPOLLHUP);
    if (reported == 0) {
      continue;
    }
    const auto same = std::find_if(ready_.begin(), ready_.end(),
                                   [&](const auto& entry) { return entry.first.value == each->second.value; });
    if (same != ready_.end()) {
      same->second |= reported;
    } else {
      ready_.emplace_back(each->second, reported);
    }
  }
}

void SimulatedLoop::at(Instant when, std::move_only_function<void()> event) {
  script_.emplace(std::pair(std::max(when, now_), script_sequence_++), std::move(event));
}

Result<WatchId> SimulatedLoop::watch(int fd, std::uint32_t events, FdHandler& handler) {
  const WatchId id = watches_.add(fd, events, handler);
  watches_of_fd_.emplace(fd, id);
  return id;
}

void SimulatedLoop::unwatch(WatchId watch) noexcept {
  const WatchTable::Watch* found = watches_.find(watch);
  if (found == nullptr) {
    return;
  }
  const auto [first, last] = watches_of_fd_.equal_range(found->fd);
  watches_of_fd_.erase(std::find_if(first, last, [&](const auto& each) { return each.second.value == watch.value; }));
  watches_.remove(watch);
}

void SimulatedLoop::set_timer(TimerHandler& timer, Instant when) {
  timers_.set(timer, when);
}

void SimulatedLoop::cancel_timer(TimerHandler& timer) noexcept {
  timers_.cancel(timer);
}

std::uint32_t SimulatedLoop::poll(Instant now) noexcept {
  move_clock(std::max(now, now_));
  const std::uint32_t handled = dispatch();
  return handled + timers_.fire(now_);
}

std::uint32_t SimulatedLoop::wait(Instant now, Instant deadline, Instant* woke) noexcept {
  stalled_ = false;
  move_clock(std::max(now, now_));
  const Instant until = std::min(deadline, timers_.next());
  if (!woken_ && ready_.empty() && until > now_) {
    ++sleeps_;
    const Instant start = now_;
    // Event by event, since any of them may be what ends the sleep.
    while (!woken_ && ready_.empty() && std::min(until, next_event()) != Instant::never() && now_ < until) {
      move_clock(std::min(until, next_event()));
    }
    stalled_ = !woken_ && ready_.empty() && until == Instant::never();
    slept_ = slept_ + (now_ - start);
    if (woke != nullptr) {
      *woke = now_;
    }
  }
  woken_ = false;
  // A wake() from one of these handlers is for the next wait().
  const std::uint32_t handled = dispatch();
  return handled + timers_.fire(now_);
}

// Scripted events happen at their own times on the way.
void SimulatedLoop::move_clock(Instant to) {
  while (next_event() <= to && !script_.empty()) {
    now_ = std::max(now_, next_event());
    auto event = script_.extract(script_.begin());
    event.mapped()();
  }
  now_ = std::max(now_, to);
}

std::uint32_t SimulatedLoop::dispatch() noexcept {
  std::vector<std::pair<WatchId, std::uint32_t>> collected;
  collected.swap(ready_);
  std::uint32_t handled = 0;
  for (const auto& [id, events] : collected) {
    if (const WatchTable::Watch* watch = watches_.find(id); watch != nullptr) {
      watch->handler->on_ready(events);
      ++handled;
    }
  }
  return handled;
}

}  // namespace ringway
