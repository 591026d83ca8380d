// A virtqueue as a driver in user space has it: the ring, its eventfds, and waiting for the device. What requests look like
// is the business of the classes that derive from it (blk_driver.hpp, net_driver.hpp).
//
// Owner: the one thread that drives it, which may be another than the session's (driver_session.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.hpp"
#include "base/time.hpp"
#include "base/unique_fd.hpp"
#include "driver/shared_memory.hpp"
#include "ring/driver_ring.hpp"

namespace ringway {

class DriverQueue {
 public:
  DriverQueue(const DriverQueue&) = delete;
  DriverQueue& operator=(const DriverQueue&) = delete;
  virtual ~DriverQueue() = default;

  // Shows the device what was added since, and kicks it if it asked for that.
  void publish_and_kick() noexcept {
    if (ring_->publish()) {
      kick();
    }
  }

  // Sleeps on the call eventfd until something may be used; false at the deadline. Between waits calls are suppressed.
  [[nodiscard]] bool wait(Instant deadline) noexcept;
  // The same over several queues of one thread: kQueuesWaitedMax at most.
  [[nodiscard]] static bool wait_any(std::span<DriverQueue* const> queues, Instant deadline) noexcept;
  static constexpr std::size_t kQueuesWaitedMax = 256;

  [[nodiscard]] std::uint32_t index() const noexcept { return index_; }  // of the virtqueue
  [[nodiscard]] DriverRing& ring() noexcept { return *ring_; }

  // For those who play with the notifications themselves.
  void kick() noexcept;
  [[nodiscard]] int kick_fd() const noexcept { return kick_.get(); }
  [[nodiscard]] int call_fd() const noexcept { return call_.get(); }
  [[nodiscard]] int error_fd() const noexcept { return error_.get(); }
  // Calls that came and were not yet counted: reads the eventfd's counter. (wait() leaves it alone; wait_any() counts them.)
  std::uint64_t take_calls() noexcept;

  struct Counters {
    std::uint64_t kicks = 0;     // eventfd writes
    std::uint64_t calls = 0;     // counted by the call eventfd, not wake-ups
    std::uint64_t waits = 0;     // times that we slept
    std::uint64_t bad_used = 0;  // used elements that make no sense
  };
  // Reads what is left in the call eventfd too.
  [[nodiscard]] Counters counters() noexcept;

 protected:
  DriverQueue() = default;
  // The ring was laid out anew: nothing is in flight any more.
  virtual void forget_in_flight() noexcept = 0;

  std::unique_ptr<DriverRing> ring_;
  Counters counters_;

 private:
  friend class DriverSession;

  [[nodiscard]] Result<> lay_out(std::uint32_t index, std::uint32_t size, RingFeatures features,
                                 std::uint32_t indirect_entries, SharedMemory& memory);
  void reset_ring();

  DriverRing::Options ring_options_;  // to lay the ring out again after a reset
  std::uint32_t index_ = 0;
  bool enabled_ = true;  // how the session (re)starts it
  UniqueFd kick_, call_, error_;
  UniqueFd epoll_;  // edge-triggered on call_, so that a wake-up is one system call and not two
};

}  // namespace ringway
