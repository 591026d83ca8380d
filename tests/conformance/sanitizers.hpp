// What a sanitizer makes meaningless, in one place: both AddressSanitizer and ThreadSanitizer keep freed memory, shadow
// every mapping, take time of their own and have an operator new of their own. Everything else that a test says holds with
// them too.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RINGWAY_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RINGWAY_SANITIZED 1
#endif
#endif
#ifndef RINGWAY_SANITIZED
#define RINGWAY_SANITIZED 0
#endif

namespace ringway::conformance {

inline constexpr bool kMemoryIsOurs = !RINGWAY_SANITIZED;  // bounds on memory and mappings mean something
inline constexpr bool kTimeIsOurs = !RINGWAY_SANITIZED;    // so do costs per request

}  // namespace ringway::conformance
