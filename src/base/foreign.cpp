#include "base/foreign.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <system_error>
#include <thread>

#include "base/limits.hpp"

namespace ringway {

namespace {

// Of all front-ends. Relaxed: a bound.
std::atomic<std::uint32_t> all_descriptors{0};

// What front-ends may have of the process's table: all but what we open ourselves (images, rings, sockets, epoll). Asked for
// when the first front-end sends something, so after the limit was raised.
std::uint32_t descriptors_for_front_ends() {
  static const std::uint32_t count = [] {
    constexpr rlim_t kOwn = 512;
    rlimit limit{};
    const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
    const rlim_t soft = known ? limit.rlim_cur : 1024;
    return static_cast<std::uint32_t>(std::min<rlim_t>(soft > 2 * kOwn ? soft - kOwn : soft / 2, 1U << 30U));
  }();
  return count;
}

cpu_set_t allowed_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  static_cast<void>(::sched_getaffinity(0, sizeof cpus, &cpus));
  return cpus;
}

constexpr int kNiceness = 10;  // whoever serves goes first
constexpr std::chrono::seconds kLingers{1};

// Memory files alone have seals. Their close() frees memory and waits for nobody.
bool is_memory(int fd) {
  return ::fcntl(fd, F_GET_SEALS) >= 0;
}

}  // namespace

ForeignHoldings::ForeignHoldings(Private /*by create() only*/) noexcept : cpus_(allowed_cpus()) {}

std::uint32_t ForeignHoldings::descriptors_max() const noexcept {
  const std::uint32_t possible = descriptors_for_front_ends();
  const std::uint32_t all = all_descriptors.load(std::memory_order_relaxed);
  const std::uint32_t others = all - std::min(descriptors(), all);
  return std::min(limits::kForeignFdsMax, (possible - std::min(others, possible)) / 2);
}

void ForeignHoldings::count_descriptor() noexcept {
  descriptors_.fetch_add(1, std::memory_order_relaxed);
  all_descriptors.fetch_add(1, std::memory_order_relaxed);
}

void ForeignHoldings::discount_descriptor() noexcept {
  descriptors_.fetch_sub(1, std::memory_order_relaxed);
  all_descriptors.fetch_sub(1, std::memory_order_relaxed);
}

void ForeignHoldings::let_go(Lane lane, std::move_only_function<void()> end) noexcept {
  // What `end` owns may be the last that refers to us.
  const std::shared_ptr<ForeignHoldings> self = shared_from_this();
  Work& work = work_[static_cast<std::size_t>(lane)];
  {
    const std::lock_guard lock(mutex_);
    work.ends.push_back(std::move(end));
    if (std::exchange(work.served, true)) {
      work.came.notify_one();
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
    std::thread([self, &work] {
      pthread_setname_np(pthread_self(), "rw-letting-go");
      static_cast<void>(::pthread_setaffinity_np(pthread_self(), sizeof self->cpus_, &self->cpus_));
      static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness));
      self->run(work);
    }).detach();
  } catch (const std::system_error&) {
    // No thread to be had. Here nobody may wait: what there is waits for the next that is let go, and counts meanwhile.
    const std::lock_guard lock(mutex_);
    work.served = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ForeignHoldings::run(Work& work) noexcept {
  for (;;) {
    std::vector<std::move_only_function<void()>> ends;
    {
      std::unique_lock lock(mutex_);
      work.came.wait_for(lock, kLingers, [&work] { return !work.ends.empty(); });
      if (work.ends.empty()) {
        work.served = false;
        return;
      }
      ends.swap(work.ends);
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
  const auto lane = is_memory(fd_.get()) ? ForeignHoldings::Lane::bounded : ForeignHoldings::Lane::unbounded;
  ForeignHoldings& holdings = *holdings_;
  holdings.let_go(lane, [last = std::move(*this)]() mutable { last.close_here(); });
}

void ForeignFd::close_here() noexcept {
  const bool counted = fd_ && holdings_ != nullptr;
  fd_.reset();
  if (counted) {
    holdings_->discount_descriptor();
  }
}

}  // namespace ringway
