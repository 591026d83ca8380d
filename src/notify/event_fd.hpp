// Stage (5): telling the other side, through a descriptor that it gave us.
//
// Owner: the worker that owns the queue. The descriptor is hostile: an eventfd at its maximum, or a full
// socket (UML's call fd is a stream socket), would block a write for ever. It was made non-blocking on receipt, but the peer
// shares the open file and may clear that flag at any time; a StuckWriteGuard lets the control thread see and free a worker
// that hangs in such a write. And it may let as many wait for the descriptor as it likes, all of whom the write has to wake:
// so a worker times one write of about 64, and all for a while once one was long. Both are harm, after which nothing more is
// written for that front-end (ForeignHoldings::note_harm()): it has one such write, not one for each of its rings.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/foreign.hpp"
#include "base/time.hpp"

namespace ringway {

// One per worker: whether it is in a write to a peer's descriptor. Whoever finds it there may interrupt it: only a write
// that hangs can be interrupted, and none would hang if the peer hadn't made the descriptor blocking again.
struct StuckWriteGuard {
  // Relaxed: a look that comes too early or too late finds another write, or none.
  std::atomic<bool> writing{false};

  void enter() noexcept { writing.store(true, std::memory_order_relaxed); }
  void leave() noexcept { writing.store(false, std::memory_order_relaxed); }

  // The worker's own: which writes are timed. For the others no clock is read.
  [[nodiscard]] bool time_this_one() noexcept { return --until_timed == 0; }
  void note_timed(Duration cpu, Instant now) noexcept;
  std::uint32_t until_timed = 1;  // writes, that one included
  Instant all_timed_until;
};

class EventFd {
 public:
  enum class Sent : std::uint8_t {
    sent,
    already_signalled,  // EAGAIN: the peer hasn't taken the last one yet, so it will look
    broken,             // the peer is gone; the descriptor was dropped
    held,  // the peer held the write until the watchdog freed us, or made it cost too much, or its front-end has
           // done so before: it means harm, its session must end; the descriptor was dropped
    none,  // there is no descriptor
  };

  void set(ForeignFd fd) noexcept { fd_ = std::move(fd); }
  [[nodiscard]] bool present() const noexcept { return static_cast<bool>(fd_); }
  // Writes exactly 8 bytes. One system call.
  Sent signal(StuckWriteGuard& guard) noexcept;

 private:
  [[nodiscard]] bool harmed() const noexcept { return fd_.holdings() != nullptr && fd_.holdings()->harmed(); }

  ForeignFd fd_;
};

}  // namespace ringway
