// What a front-end makes this process hold, and how it is let go.
//
// The last close() of a descriptor that came from somebody else may take as long as that somebody likes: a file on FUSE
// waits for its server, a TCP socket lingers, a Unix socket closes whatever was sent through it and never read. The end of
// guest memory takes its time by sheer size. Neither the control thread nor a worker may wait for that, and the wait for one
// front-end must not be one for the others. So everything of that kind belongs to a ForeignHoldings, one for each device,
// and ends on a thread of its own, which exists only while there is something to let go and a second longer. What is held is
// counted, so that one front-end can't take all descriptors or all address space of the process.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/time.hpp"
#include "base/unique_fd.hpp"

namespace ringway {

// Any thread may use it. Shared by all that belongs to it and by the threads that let go.
class ForeignHoldings : public std::enable_shared_from_this<ForeignHoldings> {
  struct Private {};

 public:
  // How long the end of something may take, and so behind what else it may wait.
  enum class Lane : std::uint8_t {
    bounded,    // as its size: memory, and the files that it is in
    unbounded,  // as whoever is at the other end likes
  };

  // For a device with so many rings. On a thread that may run on all CPUs that the process has: those that let go inherit
  // that, and not the one CPU of a worker.
  [[nodiscard]] static std::shared_ptr<ForeignHoldings> create(std::uint32_t rings = 1) {
    return std::make_shared<ForeignHoldings>(Private{}, rings);
  }
  ForeignHoldings(Private /*by create() only*/, std::uint32_t rings);
  ForeignHoldings(const ForeignHoldings&) = delete;
  ForeignHoldings& operator=(const ForeignHoldings&) = delete;
  ~ForeignHoldings();

  // Runs `end` soon, after those of its lane that came before it, on a thread that may wait. If no thread can be had (a
  // limit on tasks), when something is let go the next time, or by try_again().
  void let_go(Lane lane, std::move_only_function<void()> end) noexcept;
  // For all holdings of the process: true if something still waits for a thread. Call from time to time after a session's
  // end. Any thread.
  static bool try_again() noexcept;

  // Descriptors and mapped bytes, those included that are still being let go. Relaxed: bounds, which nothing is ordered by.
  [[nodiscard]] std::uint32_t descriptors() const noexcept { return descriptors_.load(std::memory_order_relaxed); }
  // How many there may be. So many as a session needs (all rings, and memory in a few dozen pieces) are each device's own,
  // whatever others hold, or as many of these as ulimit -n lets everybody have; beyond that half of what others leave, up to
  // limits::kForeignFdsMax.
  [[nodiscard]] std::uint32_t descriptors_max() const noexcept;
  // Whether ulimit -n is enough for what is each device's own, of all holdings that there are now.
  struct DescriptorBudget {
    std::uint64_t wanted = 0;
    std::uint64_t possible = 0;
  };
  [[nodiscard]] static DescriptorBudget descriptor_budget() noexcept;
  [[nodiscard]] std::uint64_t mapped_bytes() const noexcept { return mapped_bytes_.load(std::memory_order_relaxed); }
  void count_descriptor() noexcept;
  void discount_descriptor() noexcept;
  void count_mapped(std::uint64_t bytes) noexcept { mapped_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void discount_mapped(std::uint64_t bytes) noexcept { mapped_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  // The front-end has held up a worker on purpose (notify/event_fd.hpp). Noted here because the session that did it may be
  // over before the worker is free again. Relaxed: who asks has had an answer from that worker. Nothing more is written for
  // who has done so, until his session is over and its endpoint takes the note.
  void note_harm() noexcept { harmed_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool harmed() const noexcept { return harmed_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool take_harm() noexcept;
  // A system call on one of these descriptors took so much CPU time (not time on the wall: others may have had that). Notes
  // harm, and is true, if that and what came before it are more than chance: at least half of the last 16 calls were long,
  // and so for some tens of milliseconds; or, however many others come between, long ones take a quarter of a thread. Any
  // thread; of two at the same moment one isn't counted.
  bool charge(Duration cpu, Instant now) noexcept;
  // A call that wakes somebody takes some microseconds. This may be an interrupt or two that came meanwhile.
  static constexpr Duration kOrdinaryCall = Duration::microseconds(250);

 private:
  friend struct ForeignHoldingsRegistry;
  struct Work {
    std::condition_variable came;
    std::vector<std::move_only_function<void()>> ends;
    bool served = false;  // a thread will look at `ends` again
  };
  void serve(Work& work) noexcept;
  void run(Work& work) noexcept;
  // Starts the threads that couldn't be started. True if one still can't.
  bool serve_what_waits() noexcept;

  // CPU time of long calls. It is excused as time passes, but so many times slower.
  struct Account {
    Instant excused_at;
    void add(Duration cpu, std::int64_t slower, Instant now) noexcept;
    [[nodiscard]] bool exceeds(Duration cpu, std::int64_t slower, Instant now) const noexcept;
  };

  const cpu_set_t cpus_;
  const std::uint32_t own_descriptors_;  // see descriptors_max()
  std::atomic<std::uint32_t> descriptors_{0};
  std::atomic<std::uint64_t> mapped_bytes_{0};
  std::atomic<bool> harmed_{false};
  std::mutex calls_mutex_;        // guards the next three
  std::uint16_t long_calls_ = 0;  // of the last 16, the newest in bit 0
  Account one_after_another_;     // since there was none among 16
  Account among_others_;
  std::mutex mutex_;  // guards work_
  std::array<Work, 2> work_;
};

// A descriptor that came from a front-end, or that leads to one. As UniqueFd, but let go by its holdings; without holdings,
// closed at once: that is for descriptors of our own making which take the place of a front-end's.
class ForeignFd {
 public:
  ForeignFd() = default;
  ForeignFd(UniqueFd fd, std::shared_ptr<ForeignHoldings> holdings = nullptr) noexcept;  // NOLINT(*-explicit-*): see above
  ForeignFd(ForeignFd&&) noexcept = default;
  ForeignFd& operator=(ForeignFd&& other) noexcept;
  ForeignFd(const ForeignFd&) = delete;
  ForeignFd& operator=(const ForeignFd&) = delete;
  ~ForeignFd() { reset(); }

  [[nodiscard]] int get() const { return fd_.get(); }
  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(fd_); }
  [[nodiscard]] const std::shared_ptr<ForeignHoldings>& holdings() const { return holdings_; }
  // Another descriptor of the same open file, with the same holdings; empty if the process has no room for it.
  [[nodiscard]] ForeignFd duplicate() const;
  void reset() noexcept;
  // close(), however long it takes: for a thread that lets go.
  void close_here() noexcept;

 private:
  UniqueFd fd_;
  std::shared_ptr<ForeignHoldings> holdings_;
};

}  // namespace ringway
