// The only way to hand work to another thread: a message, run by the owner at a turn's boundary.
#pragma once

#include <functional>

namespace ringway {

class Executor {
 public:
  virtual ~Executor() = default;

  // Any thread; never blocks on the owner, may allocate. Messages of one sender run in order. A message that is posted to
  // an executor that has ended is destroyed without being run.
  virtual void post(std::move_only_function<void()> message) = 0;
  // True on the owner's thread.
  [[nodiscard]] virtual bool is_current() const noexcept = 0;
};

}  // namespace ringway
