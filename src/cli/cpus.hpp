// The CPUs that this process may run on.
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace ringway::cli {

// Those of sched_getaffinity().
[[nodiscard]] std::vector<int> allowed_cpus();

// Errors: one of them can't be had, with the list of those that can. Tried on a thread that ends here, since a process may
// leave the mask it was started with (taskset), but not its cpuset.
[[nodiscard]] Result<> check_cpus(const std::vector<int>& cpus);

// parse_cpus() and check_cpus() for an option.
[[nodiscard]] Result<std::vector<int>> take_cpus(const char* option, const std::string& text);

}  // namespace ringway::cli
