// Counts what this program's threads take from the heap: main.cpp replaces operator new.
#pragma once

#include <cstdint>

namespace ringway::conformance {

// Calls of operator new by the calling thread since it began. Not counted in builds with a sanitizer, which has an operator
// new of its own.
[[nodiscard]] std::uint64_t allocations_of_this_thread() noexcept;

}  // namespace ringway::conformance
