// Checks of our own state. A failed check is a bug of ours and ends the process with its place in the source; nothing that
// a guest, a front-end or the host sends may reach one (those faults are counted or returned, see base/result.hpp).
#pragma once

namespace ringway {

[[noreturn]] void check_failed(const char* expression, const char* file, int line) noexcept;

}  // namespace ringway

// In every build. Not for the data path's inner loops.
#define RW_CHECK(expression) \
  (static_cast<bool>(expression) ? void(0) : ::ringway::check_failed(#expression, __FILE__, __LINE__))

// In debug, sanitizer and fuzz builds: for the data path.
#ifdef RINGWAY_DEBUG_CHECKS
#define RW_DCHECK(expression) RW_CHECK(expression)
#else
#define RW_DCHECK(expression) static_cast<void>(sizeof(!(expression)))
#endif

#define RW_LIKELY(expression) __builtin_expect(static_cast<bool>(expression), 1)
#define RW_UNLIKELY(expression) __builtin_expect(static_cast<bool>(expression), 0)
