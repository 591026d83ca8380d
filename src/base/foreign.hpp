// What a front-end makes this process hold, and how it is let go.
//
// The last close() of a descriptor that came from somebody else may take as long as that somebody likes: a file on FUSE
// waits for its server, a TCP socket lingers, a Unix socket closes whatever was sent through it and never read. The end of
// guest memory takes its time by sheer size. Neither the control thread nor a worker may wait for that, and the wait for one
// front-end must not be one for the others. So everything of that kind belongs to a ForeignHoldings, one for each device,
// and ends on a thread of its own, which exists only while there is something to let go. What is held is counted, so that
// one front-end can't take all descriptors or all address space of the process.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"

namespace ringway {

// Any thread may use it. Shared by all that belongs to it and by the thread that lets go.
class ForeignHoldings : public std::enable_shared_from_this<ForeignHoldings> {
  struct Private {};

 public:
  [[nodiscard]] static std::shared_ptr<ForeignHoldings> create() { return std::make_shared<ForeignHoldings>(Private{}); }
  explicit ForeignHoldings(Private /*by create() only*/) {}
  ForeignHoldings(const ForeignHoldings&) = delete;
  ForeignHoldings& operator=(const ForeignHoldings&) = delete;
  ~ForeignHoldings() = default;

  // Runs `end` soon, after those that came before it, on a thread that may wait. If no thread can be had, here and now.
  void let_go(std::move_only_function<void()> end) noexcept;

  // Descriptors and mapped bytes, those included that are still being let go. Relaxed: bounds, which nothing is ordered by.
  [[nodiscard]] std::uint32_t descriptors() const noexcept { return descriptors_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t mapped_bytes() const noexcept { return mapped_bytes_.load(std::memory_order_relaxed); }
  void count_descriptor() noexcept { descriptors_.fetch_add(1, std::memory_order_relaxed); }
  void discount_descriptor() noexcept { descriptors_.fetch_sub(1, std::memory_order_relaxed); }
  void count_mapped(std::uint64_t bytes) noexcept { mapped_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void discount_mapped(std::uint64_t bytes) noexcept { mapped_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  void run() noexcept;

  std::atomic<std::uint32_t> descriptors_{0};
  std::atomic<std::uint64_t> mapped_bytes_{0};
  std::mutex mutex_;
  std::vector<std::move_only_function<void()>> ends_;  // guarded by mutex_
  bool running_ = false;                               // guarded by mutex_: a thread will look at ends_ again
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

 private:
  UniqueFd fd_;
  std::shared_ptr<ForeignHoldings> holdings_;
};

}  // namespace ringway
