// A bounded pool of threads for system calls that may block: where io_uring can't be used.
//
// Threads start as work needs them and stay. Calls that can take very long (fsync, fallocate) are `slow`; only a few of them
// run at a time, so that a store which hangs in them leaves threads for reads and writes.
//
// A worker starts them, yet they run where the thread that made the pool may run: a worker may be pinned to a CPU, where its
// threads would wait for it while it spins.
#pragma once

#include <sched.h>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/result.hpp"

namespace ringway {

class IoTask {
 public:
  // On a thread of the pool. The task may be destroyed or used again as soon as it has told its owner.
  virtual void run_task() noexcept = 0;

  IoTask* next_task = nullptr;  // the pool's from push() until run_task()
  bool slow_task = false;

 protected:
  ~IoTask() = default;
};

// First in, first out; links through next_task.
class IoTaskQueue {
 public:
  [[nodiscard]] bool empty() const { return first_ == nullptr; }
  void push(IoTask& task);
  IoTask* pop();
  bool remove(IoTask& task);

 private:
  IoTask* first_ = nullptr;
  IoTask* last_ = nullptr;
};

class IoThreads {
 public:
  struct Limits {
    unsigned threads = 16;
    unsigned slow = 4;  // fewer than threads
  };

  // Not on a worker's thread, see above.
  explicit IoThreads(Limits limits);
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;
  // Waits for what runs. REQUIRES: nothing is queued.
  ~IoThreads();

  // So that there is one in any case. Errors: the system gives no thread.
  [[nodiscard]] Result<> start_first();
  // Takes all tasks of `tasks`, under one lock. Any thread.
  void push(IoTaskQueue& tasks) noexcept;
  // True if the task had not been started; it is then the caller's again.
  [[nodiscard]] bool remove(IoTask& task) noexcept;

 private:
  void work() noexcept;
  IoTask* take();
  bool start_thread() noexcept;

  const Limits limits_;
  cpu_set_t cpus_{};         // of all threads,
  bool cpus_known_ = false;  // unless the machine has more than such a set can tell
  std::mutex mutex_;         // guards all below
  std::condition_variable work_came_;
  IoTaskQueue quick_;
  IoTaskQueue slow_;
  unsigned queued_ = 0;
  unsigned idle_ = 0;
  unsigned slow_running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ringway
