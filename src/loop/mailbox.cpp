#include "loop/mailbox.hpp"

#include <utility>

#include "base/check.hpp"

namespace ringway {

Mailbox::Mailbox(Loop& loop) : loop_(loop), owner_(std::this_thread::get_id()) {}

Mailbox::~Mailbox() {
  close();
}

void Mailbox::post(std::move_only_function<void()> message) {
  // A message that isn't accepted dies with the parameter, after the lock is released: what it owns may post in turn.
  const std::lock_guard lock(mutex_);
  if (!accepting_) {
    return;
  }
  incoming_.push_back(std::move(message));
  if (incoming_.size() > 1) {
    return;  // the sender of the first one has done the rest
  }
  // Both seq_cst: pair with prepare_to_sleep(); the store alone also with the acquire load of drain().
  has_mail_.store(true, std::memory_order_seq_cst);
  if (may_sleep_.load(std::memory_order_seq_cst)) {
    loop_.wake();
  }
}

void Mailbox::close() noexcept {
  if (closed_) {
    return;
  }
  closed_ = true;
  std::vector<std::move_only_function<void()>> unrun;
  {
    const std::lock_guard lock(mutex_);
    accepting_ = false;
    unrun.swap(incoming_);
  }
}

std::size_t Mailbox::run_mail() {
  RW_CHECK(is_current());
  RW_CHECK(!draining_);
  draining_ = true;
  {
    const std::lock_guard lock(mutex_);
    running_.swap(incoming_);
    // Relaxed: ordered by the mutex for the senders, and we are its only other reader.
    has_mail_.store(false, std::memory_order_relaxed);
  }
  std::size_t count = 0;
  for (auto& message : running_) {
    if (closed_) {
      break;
    }
    message();
    message = nullptr;  // what it owns is released before the next one runs
    ++count;
  }
  running_.clear();
  draining_ = false;
  return count;
}

}  // namespace ringway
