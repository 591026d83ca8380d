// io_uring constants newer than the liburing we build with (2.3). Each is used only where the kernel says that it knows it,
// by a feature bit or by its list of operations.
#pragma once

#include <liburing.h>

#include <cstdint>

namespace ringway::uring {

// IORING_ENTER_NO_IOWAIT, IORING_FEAT_NO_IOWAIT (Linux 6.15): a thread that sleeps in io_uring_enter isn't counted as
// waiting for I/O. Without it an idle worker shows up as 100 % iowait and as pressure in /proc/pressure/io.
inline constexpr std::uint32_t kEnterNoIowait = 1U << 7U;
inline constexpr std::uint32_t kFeatureNoIowait = 1U << 17U;

// IORING_OP_READV_FIXED, IORING_OP_WRITEV_FIXED (Linux 6.15): a vector whose segments all lie in one registered buffer.
inline constexpr std::uint8_t kOpReadvFixed = 60;
inline constexpr std::uint8_t kOpWritevFixed = 61;

#ifdef IORING_ENTER_NO_IOWAIT
static_assert(kEnterNoIowait == IORING_ENTER_NO_IOWAIT);
#endif
#ifdef IORING_FEAT_NO_IOWAIT
static_assert(kFeatureNoIowait == IORING_FEAT_NO_IOWAIT);
#endif

}  // namespace ringway::uring
