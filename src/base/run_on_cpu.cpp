#include "base/run_on_cpu.hpp"

#include <pthread.h>
#include <sched.h>

#include <cstddef>
#include <string>

namespace ringway {

Result<> run_on_cpu(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < 0 || cpu >= CPU_SETSIZE) {
    return fail("CPU " + std::to_string(cpu) + " doesn't exist");
  }
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (const int code = pthread_setaffinity_np(pthread_self(), sizeof set, &set); code != 0) {
    return fail_errno(code, "can't run on CPU " + std::to_string(cpu) +
                                "; choose from those that this process is allowed (Cpus_allowed_list in /proc/self/status)");
  }
  return {};
}

}  // namespace ringway
