// The one full fence of the project.
//
// A store to one location and a later load of another may be reordered by the CPU; where our protocol with the guest needs
// them ordered (publish used, then read its suppression; arm kicks, then look at the ring again), this is the fence, and the
// line above each call names its partner in the driver.
//
// g++ 12 rejects std::atomic_thread_fence under -fsanitize=thread with -Werror (ThreadSanitizer doesn't model it), so that
// build uses a sequentially consistent read-modify-write, which orders the same way on x86-64 and on AArch64 with LSE/LL-SC
// full-barrier RMW. No data ordering rests on it alone: indices are also published with release and read with acquire.
#pragma once

#include <atomic>

#if defined(__SANITIZE_THREAD__)
#define RINGWAY_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RINGWAY_TSAN 1
#endif
#endif

namespace ringway {

inline void full_fence() noexcept {
#ifdef RINGWAY_TSAN
  static std::atomic<int> location{0};
  location.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Tells the CPU that this is a spin loop: saves power, and leaves the sibling hyper-thread its share.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ringway
