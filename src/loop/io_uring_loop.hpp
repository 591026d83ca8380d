// The event loop over io_uring: descriptors, timers and I/O in one ring, so that a turn is at most one system call and an
// empty turn none.
//
// Owner thread, lifetime and edge semantics: loop.hpp; submitting I/O: uring_engine.hpp. Created and destroyed on its
// owner's thread (SINGLE_ISSUER, registered ring descriptor). REQUIRES at destruction: no operation in flight.
#pragma once

#include <liburing.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/unique_fd.hpp"
#include "loop/loop.hpp"
#include "loop/timer_set.hpp"
#include "loop/uring_engine.hpp"
#include "loop/watch_table.hpp"
#include "metrics/counter.hpp"

namespace ringway {

struct IoUringOptions {
  std::uint32_t entries = 1024;           // of the submission queue, 1..32768; the kernel rounds up to a power of two
  std::uint32_t operations = 0;           // in flight at once; 0: four times the entries, at least 4096
  std::uint32_t completion_entries = 0;   // 0: twice the operations, so that overflow takes thousands of events in one turn
  std::uint32_t registered_files = 1024;  // slots asked for; less if RLIMIT_NOFILE is lower
  bool deferred_task_work = true;         // false: as on kernels before 6.1
};

class IoUringLoop final : public Loop, public UringEngine {
 public:
  // Errors: io_uring is not to be had; the text says why and what to change.
  [[nodiscard]] static Result<std::unique_ptr<IoUringLoop>> create(const IoUringOptions& options = {});
  IoUringLoop(const IoUringLoop&) = delete;
  IoUringLoop& operator=(const IoUringLoop&) = delete;
  ~IoUringLoop() override;

  // Loop
  [[nodiscard]] Result<WatchId> watch(int fd, std::uint32_t events, FdHandler& handler) override;
  void unwatch(WatchId watch) noexcept override;
  void set_timer(TimerHandler& timer, Instant when) override;
  void cancel_timer(TimerHandler& timer) noexcept override;
  std::uint32_t poll(Instant now) noexcept override;
  std::uint32_t wait(Instant now, Instant deadline, Instant* woke = nullptr) noexcept override;
  void wake() noexcept override;
  [[nodiscard]] UringEngine* uring() noexcept override { return this; }
  [[nodiscard]] std::uint64_t sleeps() const noexcept override { return sleeps_.get(); }
  [[nodiscard]] std::uint64_t system_calls() const noexcept override { return system_calls_.get(); }

  // UringEngine
  [[nodiscard]] io_uring_sqe* prepare(UringOperation& operation) noexcept override;
  void submit() noexcept override;
  [[nodiscard]] Result<int> register_file(int fd) override;
  void unregister_file(int slot) noexcept override;
  [[nodiscard]] Result<int> register_buffer(std::span<std::byte> memory) override;
  void unregister_buffer(int slot) noexcept override;
  [[nodiscard]] bool has_vectored_fixed() const noexcept override { return vectored_fixed_; }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return in_flight_; }

  // What the kernel gave us, for the log and for tests.
  [[nodiscard]] bool deferred_task_work() const noexcept { return (ring_.flags & IORING_SETUP_DEFER_TASKRUN) != 0; }
  [[nodiscard]] bool counts_as_iowait() const noexcept { return wait_flags_ == 0; }
  [[nodiscard]] std::uint32_t completion_entries() const noexcept { return ring_.cq.ring_entries; }
  // How often the kernel found the completion queue full (it keeps those completions, and hands them over later).
  [[nodiscard]] std::uint64_t overflows() const noexcept { return overflows_.get(); }

 private:
  // One submitted operation. 16 bytes, so four to a cache line.
  struct Slot {
    UringOperation* operation = nullptr;  // nullptr: free
    std::uint32_t generation = 0;
    std::uint32_t link = 0;  // free: the next free slot
  };

  IoUringLoop() = default;

  Result<> open_ring(const IoUringOptions& options);
  Result<> check_features();
  Result<> open_buffer_table();
  void allocate_tables(std::uint32_t operations);
  void register_with_kernel(std::uint32_t files);

  [[nodiscard]] std::uint32_t pending_submissions() const noexcept;
  [[nodiscard]] std::uint32_t kernel_flags() const noexcept;
  [[nodiscard]] bool completion_ready() const noexcept;
  [[nodiscard]] bool has_work_for_kernel() const noexcept;
  [[nodiscard]] io_uring_sqe* take_sqe() noexcept;
  int enter(std::uint32_t completions_wanted, std::uint32_t flags, const io_uring_getevents_arg* argument) noexcept;
  void enter_for_events() noexcept;
  void run_task_work() noexcept;

  bool arm(WatchId id) noexcept;
  bool arm_wake_event() noexcept;
  bool cancel_by_user_data(std::uint64_t user_data) noexcept;
  [[nodiscard]] bool has_unsubmitted() const noexcept {
    return wake_unarmed_ || !unsubmitted_arms_.empty() || !unsubmitted_disarms_.empty();
  }
  void retry_unsubmitted() noexcept;

  std::uint32_t reap() noexcept;
  std::uint32_t complete(std::uint64_t user_data, std::int32_t result, std::uint32_t flags) noexcept;
  bool complete_operation(std::uint64_t user_data, std::int32_t result, std::uint32_t flags) noexcept;
  bool complete_watch(WatchId id, std::int32_t result, std::uint32_t flags) noexcept;
  void complete_wake(std::uint32_t flags) noexcept;

  io_uring ring_{};
  std::uint32_t enter_flags_ = 0;  // with every io_uring_enter
  std::uint32_t wait_flags_ = 0;   // with those that may sleep
  bool open_ = false;              // ring_ is to be closed
  bool usable_ = false;            // the kernel has let us enter it

  std::vector<Slot> slots_;
  std::uint32_t free_slot_ = 0;
  std::uint32_t in_flight_ = 0;

  WatchTable watches_;
  TimerSet timers_;
  // What found the submission queue full with a kernel that took nothing: tried again each turn.
  std::vector<WatchId> unsubmitted_arms_;
  std::vector<WatchId> unsubmitted_disarms_;
  bool wake_unarmed_ = true;
  bool woken_ = false;  // a wake was seen that no wait() has returned for yet
  bool dispatching_ = false;

  std::vector<int> free_files_;
  std::vector<int> free_buffers_;
  bool buffers_open_ = false;    // the table exists; it is made when it is wanted
  bool vectored_fixed_ = false;  // the kernel has the operations
  UniqueFd wake_event_;

  Counter sleeps_;
  Counter system_calls_;
  Counter overflows_;
  // Written by wakers on other threads, so on a line of its own.
  alignas(64) std::atomic<bool> wake_pending_{false};
};

}  // namespace ringway
