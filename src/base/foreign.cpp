#include "base/foreign.hpp"

#include <fcntl.h>
#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>

namespace ringway {

void ForeignHoldings::let_go(std::move_only_function<void()> end) noexcept {
  {
    const std::lock_guard lock(mutex_);
    ends_.push_back(std::move(end));
    if (std::exchange(running_, true)) {
      return;
    }
  }
  // Signals are for the threads that expect them. What is blocked here is inherited.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    // Nobody waits for it: who does, waits for the front-end. It owns what it touches.
    std::thread([self = shared_from_this()] {
      pthread_setname_np(pthread_self(), "rw-letting-go");
      self->run();
    }).detach();
  } catch (const std::system_error&) {
    run();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ForeignHoldings::run() noexcept {
  for (;;) {
    std::vector<std::move_only_function<void()>> ends;
    {
      const std::lock_guard lock(mutex_);
      if (ends_.empty()) {
        running_ = false;
        return;
      }
      ends.swap(ends_);
    }
    for (auto& end : ends) {
      end();
      end = nullptr;
    }
  }
}

ForeignFd::ForeignFd(UniqueFd fd, std::shared_ptr<ForeignHoldings> holdings) noexcept
    : fd_(std::move(fd)), holdings_(std::move(holdings)) {
  if (fd_ && holdings_ != nullptr) {
    holdings_->count_descriptor();
  }
}

ForeignFd& ForeignFd::operator=(ForeignFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
    holdings_ = std::move(other.holdings_);
  }
  return *this;
}

ForeignFd ForeignFd::duplicate() const {
  return {UniqueFd(fd_ ? ::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0) : -1), holdings_};
}

void ForeignFd::reset() noexcept {
  if (!fd_ || holdings_ == nullptr) {
    fd_.reset();
    return;
  }
  ForeignHoldings& holdings = *holdings_;
  holdings.let_go([fd = std::move(fd_), counted = std::exchange(holdings_, nullptr)]() mutable {
    fd.reset();
    counted->discount_descriptor();
  });
}

}  // namespace ringway
