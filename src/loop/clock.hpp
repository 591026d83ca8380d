// The only reader of the clock (a test checks it). One read per turn of a loop, passed down as `now`.
#pragma once

#include <pthread.h>

#include "base/time.hpp"

namespace ringway {

// CLOCK_MONOTONIC. About 25 ns by the vDSO.
[[nodiscard]] Instant clock_now() noexcept;

// CPU time that a thread has used. Zero if the thread is gone.
[[nodiscard]] Duration thread_cpu_time(pthread_t thread) noexcept;

}  // namespace ringway
