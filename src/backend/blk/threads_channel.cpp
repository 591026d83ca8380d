// Over a pool of threads: for hosts that forbid io_uring, and for files where io_uring would only hand the work to kernel
// threads. The worker collects a turn's calls, pushes them under one lock, and is told of results by an eventfd.
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "backend/blk/file_store.hpp"

namespace ringway {
namespace {

class ThreadsChannel final : public FileChannel, private FdHandler {
 public:
  ThreadsChannel(const Options& options, IoThreads& threads, Loop& loop, BlkChannelCounters& counters)
      : FileChannel(options, counters), threads_(threads), loop_(loop) {}
  ThreadsChannel(const ThreadsChannel&) = delete;
  ThreadsChannel& operator=(const ThreadsChannel&) = delete;
  ~ThreadsChannel() override {
    loop_.unwatch(watch_);
    // The last thread may have handed over its result but not yet written the eventfd. Acquire: pairs with the release in
    // on_task_done(), after which that thread doesn't touch this object any more.
    while (telling_.load(std::memory_order_acquire) != 0) {
      ::sched_yield();
    }
  }

  [[nodiscard]] Result<> open() {
    RW_TRY(threads_.start_first());
    event_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event_) {
      return fail_errno(errno, "eventfd for a disk's threads (raise the limit of open files: ulimit -n)");
    }
    RW_TRY_ASSIGN(watch_, loop_.watch(event_.get(), EPOLLIN, *this));
    return {};
  }

  void end_of_batch() noexcept override {
    if (!batch_.empty()) {
      threads_.push(batch_);
    }
  }

  void on_task_done(FileOperation& operation) noexcept override {
    // Before the operation can be seen as done: the channel may go away once it is.
    telling_.fetch_add(1, std::memory_order_relaxed);
    FileOperation* head = done_.load(std::memory_order_relaxed);
    do {
      operation.next = head;
      // Release: pairs with the acquire exchange in on_ready(), which reads operation.result and what precedes it.
    } while (!done_.compare_exchange_weak(head, &operation, std::memory_order_release, std::memory_order_relaxed));
    if (head == nullptr) {
      const std::uint64_t one = 1;
      // The eventfd is ours and can't be full: it is reset in on_ready().
      static_cast<void>(!::write(event_.get(), &one, sizeof one));
    }
    // Release: pairs with the acquire load in the destructor.
    telling_.fetch_sub(1, std::memory_order_release);
  }

 private:
  [[nodiscard]] std::int32_t start(FileOperation& operation) noexcept override {
    batch_.push(operation);
    return kPending;
  }

  void on_ready(std::uint32_t /*events*/) noexcept override {
    std::uint64_t ignored = 0;
    static_cast<void>(!::read(event_.get(), &ignored, sizeof ignored));
    // Acquire: pairs with the release in on_task_done().
    FileOperation* newest_first = done_.exchange(nullptr, std::memory_order_acquire);
    FileOperation* oldest_first = nullptr;
    while (newest_first != nullptr) {
      FileOperation* const operation = newest_first;
      newest_first = operation->next;
      operation->next = oldest_first;
      oldest_first = operation;
    }
    while (oldest_first != nullptr) {
      FileOperation& operation = *oldest_first;
      oldest_first = operation.next;
      operation.next = nullptr;
      on_result(operation, operation.result);
    }
    end_of_batch();
  }

  IoThreads& threads_;
  Loop& loop_;
  UniqueFd event_;
  WatchId watch_;
  IoTaskQueue batch_;
  std::atomic<FileOperation*> done_{nullptr};
  std::atomic<std::uint32_t> telling_{0};
};

}  // namespace

Result<std::unique_ptr<BlkChannel>> make_threads_channel(const FileChannel::Options& options, IoThreads& threads, Loop& loop,
                                                         BlkChannelCounters& counters) {
  auto channel = std::make_unique<ThreadsChannel>(options, threads, loop, counters);
  RW_TRY(channel->open());
  return channel;
}

}  // namespace ringway
