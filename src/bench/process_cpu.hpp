// CPU time that a process or one of its threads has used, read from /proc. For the benches: both sides of a connection are
// measured by the same clock, the scheduler's own.
#pragma once

#include <sys/types.h>

#include "base/result.hpp"
#include "base/time.hpp"

namespace ringway {

// Of all threads of `pid`, those that have ended included. The scheduler's nanoseconds where /proc/<pid>/task/*/schedstat
// gives them (behind by up to one tick for a running thread), else /proc/<pid>/stat in clock ticks (10 ms).
// A busy-polling process is always at one core per polling thread: its figure says what it holds, not what the work costs.
[[nodiscard]] Result<Duration> process_cpu_time(pid_t pid);

// Of one thread of this process (gettid()).
[[nodiscard]] Result<Duration> thread_cpu_time(pid_t thread);

// How long that thread was ready to run and had no CPU: its run delay. Errors: a kernel without schedstat.
[[nodiscard]] Result<Duration> thread_run_delay(pid_t thread);

}  // namespace ringway
