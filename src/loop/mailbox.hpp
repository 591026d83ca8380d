// The one way from thread to thread: messages posted by any thread, run by the owner between two turns of its loop.
//
// Owner: the thread that constructs it, which also owns the loop. The mailbox must outlive those who post to it, and the
// loop must live until close() has returned; after that the loop is not touched any more.
//
// An owner that only sleeps in its loop needs nothing but drain() once a turn. One that also spins saves its senders a
// system call for each message: it says awake() when it starts to spin and prepare_to_sleep() before each wait():
//
//   mailbox.drain();
//   ...
//   if (must_sleep && mailbox.prepare_to_sleep()) loop.wait(now, deadline); else loop.poll(now);
//   mailbox.awake();
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "loop/executor.hpp"
#include "loop/loop.hpp"

namespace ringway {

class Mailbox final : public Executor {
 public:
  explicit Mailbox(Loop& loop);
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  ~Mailbox() override;

  void post(std::move_only_function<void()> message) override;
  [[nodiscard]] bool is_current() const noexcept override { return std::this_thread::get_id() == owner_; }

  // Owner, once a turn: runs what was posted before the call, and returns how many ran. A message that posts to this mailbox
  // is answered in the next turn, so this ends. One load when there is no mail.
  std::size_t drain() {
    // acquire: pairs with the store in post(). The mutex orders the messages themselves.
    return has_mail_.load(std::memory_order_acquire) ? run_mail() : 0;
  }

  // Owner, before a wait(): from here each post() wakes the loop. False if there is mail already: don't sleep, drain.
  [[nodiscard]] bool prepare_to_sleep() noexcept {
    // Both seq_cst, as are the two of post(): either we see the mail here or the sender sees that we may sleep.
    may_sleep_.store(true, std::memory_order_seq_cst);
    return !has_mail_.load(std::memory_order_seq_cst);
  }
  // Owner, when it will look for mail by itself: from here post() needs no system call.
  void awake() noexcept { may_sleep_.store(false, std::memory_order_relaxed); }

  // Owner: from here messages are destroyed without being run, those too that were posted before or that stand behind the
  // one which calls this. Ends for good; a second call does nothing.
  void close() noexcept;

 private:
  std::size_t run_mail();

  Loop& loop_;
  const std::thread::id owner_;
  std::mutex mutex_;  // guards incoming_ and accepting_; held over wake(), so that no wake-up comes after close()
  std::vector<std::move_only_function<void()>> incoming_;
  bool accepting_ = true;
  std::vector<std::move_only_function<void()>> running_;  // the owner's, kept for its capacity
  bool closed_ = false;                                   // the owner's
  bool draining_ = false;                                 // the owner's
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> may_sleep_{true};
};

}  // namespace ringway
