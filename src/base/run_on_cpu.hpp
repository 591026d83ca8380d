// Where a thread runs.
#pragma once

#include "base/result.hpp"

namespace ringway {

// Of the calling thread, from now on. Errors: there is no such CPU, or this process can't have it.
[[nodiscard]] Result<> run_on_cpu(int cpu);

}  // namespace ringway
