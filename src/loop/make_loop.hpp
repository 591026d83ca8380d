// Choosing an engine for a loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "loop/loop.hpp"

namespace ringway {

enum class LoopEngine : std::uint8_t { automatic, io_uring, epoll };

struct LoopChoice {
  LoopEngine engine = LoopEngine::epoll;
  std::string reason;  // one line for the log: why this one
};

// Tries whether this process may use io_uring with the features we need, and says why not (the kernel too old, the sysctl
// kernel.io_uring_disabled, seccomp, RLIMIT_MEMLOCK). The engine of the answer is never `automatic`; when io_uring was
// wanted and can't be had it is epoll, and make_loop(io_uring) would fail with the same reason. Any thread.
[[nodiscard]] LoopChoice probe_loop_engine(LoopEngine wanted);

// REQUIRES: called on the thread that will own the loop (SINGLE_ISSUER). `entries`: submission queue size.
// Errors: the engine asked for can't be had; the text says what to change.
[[nodiscard]] Result<std::unique_ptr<Loop>> make_loop(LoopEngine engine, std::uint32_t entries = 1024);

}  // namespace ringway
