#include "backend/blk/io_threads.hpp"

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <system_error>

#include "base/check.hpp"

namespace ringway {

void IoTaskQueue::push(IoTask& task) {
  task.next_task = nullptr;
  (last_ == nullptr ? first_ : last_->next_task) = &task;
  last_ = &task;
}

IoTask* IoTaskQueue::pop() {
  IoTask* const task = first_;
  if (task != nullptr) {
    first_ = task->next_task;
    last_ = first_ == nullptr ? nullptr : last_;
    task->next_task = nullptr;
  }
  return task;
}

bool IoTaskQueue::remove(IoTask& task) {
  IoTask* before = nullptr;
  for (IoTask* at = first_; at != nullptr; before = at, at = at->next_task) {
    if (at == &task) {
      (before == nullptr ? first_ : before->next_task) = task.next_task;
      last_ = last_ == &task ? before : last_;
      task.next_task = nullptr;
      return true;
    }
  }
  return false;
}

IoThreads::IoThreads(Limits limits) : limits_(limits), cpus_known_(::sched_getaffinity(0, sizeof cpus_, &cpus_) == 0) {
  RW_CHECK(limits.slow > 0 && limits.slow < limits.threads);
  threads_.reserve(limits.threads);
}

IoThreads::~IoThreads() {
  {
    const std::lock_guard lock(mutex_);
    RW_CHECK(quick_.empty() && slow_.empty());
    stop_ = true;
  }
  work_came_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

Result<> IoThreads::start_first() {
  const std::lock_guard lock(mutex_);
  if (threads_.empty() && !start_thread()) {
    return fail_errno(EAGAIN, "start a thread for disk I/O (raise the limit of processes: ulimit -u, TasksMax)");
  }
  return {};
}

bool IoThreads::start_thread() noexcept {
  // A new thread inherits the mask of its creator: signals are the control thread's business.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigdelset(&all, SIGBUS);
  ::sigdelset(&all, SIGSEGV);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    threads_.emplace_back([this] { work(); });
    // From here, so that it moves at once, without a turn on our CPU. It fails if none of those CPUs is allowed any more
    // (a cpuset was changed); the kernel has chosen some by itself then.
    if (cpus_known_) {
      static_cast<void>(::pthread_setaffinity_np(threads_.back().native_handle(), sizeof cpus_, &cpus_));
    }
    ++idle_;  // on its way; work() counts itself out when it takes a task
  } catch (const std::system_error&) {
    started = false;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void IoThreads::push(IoTaskQueue& tasks) noexcept {
  unsigned pushed = 0;
  {
    const std::lock_guard lock(mutex_);
    while (IoTask* const task = tasks.pop()) {
      (task->slow_task ? slow_ : quick_).push(*task);
      ++pushed;
    }
    queued_ += pushed;
    while (idle_ < queued_ && threads_.size() < limits_.threads && start_thread()) {
    }
  }
  if (pushed == 1) {
    work_came_.notify_one();
  } else if (pushed > 1) {
    work_came_.notify_all();
  }
}

bool IoThreads::remove(IoTask& task) noexcept {
  const std::lock_guard lock(mutex_);
  const bool removed = (task.slow_task ? slow_ : quick_).remove(task);
  queued_ -= removed ? 1 : 0;
  return removed;
}

IoTask* IoThreads::take() {
  if (!slow_.empty() && slow_running_ < limits_.slow) {
    ++slow_running_;
    --queued_;
    return slow_.pop();
  }
  IoTask* const task = quick_.pop();
  queued_ -= task != nullptr ? 1 : 0;
  return task;
}

void IoThreads::work() noexcept {
  ::pthread_setname_np(::pthread_self(), "ringway-io");
  std::unique_lock lock(mutex_);
  for (;;) {
    IoTask* const task = take();
    if (task == nullptr) {
      if (stop_) {
        return;
      }
      work_came_.wait(lock);
      continue;
    }
    --idle_;
    const bool slow = task->slow_task;  // the task is its owner's again once it has run
    lock.unlock();
    task->run_task();
    lock.lock();
    ++idle_;
    slow_running_ -= slow ? 1 : 0;
  }
}

}  // namespace ringway
