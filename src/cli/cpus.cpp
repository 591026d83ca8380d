#include "cli/cpus.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <thread>

#include "base/run_on_cpu.hpp"
#include "cli/commands.hpp"
#include "control/config.hpp"

namespace ringway::cli {
std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) {
        cpus.push_back(cpu);
      }
    }
  }
  return cpus;
}

Result<> check_cpus(const std::vector<int>& cpus) {
  int refused = -1;
  std::thread([&] {
    for (const int cpu : cpus) {
      if (!run_on_cpu(cpu)) {
        refused = cpu;
        return;
      }
    }
  }).join();
  if (refused >= 0) {
    return fail(fmt::format("CPU {} is not allowed for this process; it may run on {}", refused, cpus_text(allowed_cpus())));
  }
  return {};
}

Result<std::vector<int>> take_cpus(const char* option, const std::string& text) {
  RW_TRY_ASSIGN(std::vector<int> cpus, of_option(option, parse_cpus(text)));
  RW_TRY(of_option(option, check_cpus(cpus)));
  return cpus;
}

}  // namespace ringway::cli
