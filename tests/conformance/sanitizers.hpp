// What a sanitizer makes meaningless, in one place: AddressSanitizer keeps freed memory and shadows every mapping, so bounds
// on memory don't hold with it; both it and ThreadSanitizer take time of their own and have an operator new of their own.
// Everything else that a test says holds with them too.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define RINGWAY_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RINGWAY_ADDRESS_SANITIZER 1
#endif
#endif
#ifndef RINGWAY_ADDRESS_SANITIZER
#define RINGWAY_ADDRESS_SANITIZER 0
#endif

#if RINGWAY_ADDRESS_SANITIZER || defined(__SANITIZE_THREAD__)
#define RINGWAY_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RINGWAY_SANITIZED 1
#endif
#endif
#ifndef RINGWAY_SANITIZED
#define RINGWAY_SANITIZED 0
#endif

namespace ringway::conformance {

inline constexpr bool kMemoryIsOurs = !RINGWAY_ADDRESS_SANITIZER;  // bounds on memory and mappings mean something
inline constexpr bool kTimeIsOurs = !RINGWAY_SANITIZED;            // so do costs per request

}  // namespace ringway::conformance
