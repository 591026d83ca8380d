#include "loop/make_loop.hpp"

#include <fmt/format.h>

#include "loop/epoll_loop.hpp"
#include "loop/io_uring_loop.hpp"
#include "loop/io_uring_refusal.hpp"

namespace ringway {

LoopChoice probe_loop_engine(LoopEngine wanted) {
  if (wanted == LoopEngine::epoll) {
    return {.engine = LoopEngine::epoll, .reason = "epoll, as asked for"};
  }
  // The real thing, thrown away again: nothing else tells all that a kernel, a sysctl and a seccomp filter may object to.
  const auto trial = IoUringLoop::create();
  if (!trial.has_value()) {
    return {.engine = LoopEngine::epoll, .reason = "epoll, since io_uring can't be had: " + trial.error().message};
  }
  return {.engine = LoopEngine::io_uring,
          .reason = fmt::format("io_uring on kernel {}{}", kernel_release(),
                                (*trial)->deferred_task_work() ? "" : ", without deferred task work (6.1 has it)")};
}

Result<std::unique_ptr<Loop>> make_loop(LoopEngine engine, std::uint32_t entries) {
  if (engine != LoopEngine::epoll) {
    auto loop = IoUringLoop::create({.entries = entries});
    if (loop.has_value()) {
      return std::unique_ptr<Loop>(std::move(*loop));
    }
    if (engine == LoopEngine::io_uring) {
      return fail("the io_uring engine was asked for, but " + loop.error().message + "; or use the epoll engine");
    }
  }
  RW_TRY_ASSIGN(std::unique_ptr<Loop> loop, EpollLoop::create());
  return loop;
}

}  // namespace ringway
