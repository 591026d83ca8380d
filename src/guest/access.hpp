// How guest memory is touched. Only guest/ and ring/ (and the copies in backend/) go through it.
//
// The other side may change any byte at any time. So a word that we decide on is read exactly once, into a local, by a
// load that the compiler may not repeat (a plain memcpy into a local may legally be fetched twice); and bulk data is
// copied by guest::copy, whose barriers keep the compiler from re-reading the source later.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.hpp"

namespace ringway::guest {

static_assert(std::endian::native == std::endian::little, "virtio fields are little-endian and used as they are");

template <typename T>
[[nodiscard]] inline bool is_aligned(const std::byte* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(T) == 0;
}

// One load or store of a naturally aligned word, relaxed where the name says nothing else.
// REQUIRES: `address` aligned to sizeof(T), which the caller has checked when it translated the ring.
template <typename T>
[[nodiscard]] inline T load(const std::byte* address) noexcept {
  RW_DCHECK(is_aligned<T>(address));
  return __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_RELAXED);
}
template <typename T>
[[nodiscard]] inline T load_acquire(const std::byte* address) noexcept {
  RW_DCHECK(is_aligned<T>(address));
  return __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE);
}
template <typename T>
inline void store(std::byte* address, T value) noexcept {
  RW_DCHECK(is_aligned<T>(address));
  __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_RELAXED);
}
template <typename T>
inline void store_release(std::byte* address, T value) noexcept {
  RW_DCHECK(is_aligned<T>(address));
  __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_RELEASE);
}

// Copies bytes from or to guest memory once; the result of a copy from the guest is then ours and doesn't change.
inline void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

inline constexpr std::size_t kCacheLineBytes = 64;
// A hint that the cache line at `address` will be read. Any address is right.
inline void prefetch(const std::byte* address) noexcept {
  __builtin_prefetch(address);
}
// A hint that the cache line at `address` will be written as a whole or in part: several at a time are then fetched for
// writing while one would be. Any address is right.
inline void prefetch_for_write(const std::byte* address) noexcept {
#if defined(__x86_64__)
  // What __builtin_prefetch makes of it without a compiler option fetches the line for reading, and the store would have to
  // ask for it again. CPUs that don't know the instruction take it for a no-op.
  asm volatile("prefetchw %0" : : "m"(*address));
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace ringway::guest
