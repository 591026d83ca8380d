// Several readv() or writev() on one descriptor for about the price of one system call: a small io_uring of its own, all of
// whose operations have ended when a call returns. Where io_uring is forbidden it is a plain loop, with the same results.
//
// Owner: one thread, which creates, uses and destroys it (SINGLE_ISSUER). Takes about 20 KiB in the kernel, one descriptor
// and 50 us to make. docs/design-notes/net-batched-io.md says why it isn't the worker's ring.
#pragma once

#include <liburing.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ringway {

struct BatchedCall {
  std::span<const iovec> pieces;  // IOV_MAX at most; stays as it is until the call has returned
  std::int32_t result = 0;        // bytes, or a negative errno
};

enum class BatchedEngine : std::uint8_t {
  automatic,  // io_uring where the kernel lets us
  plain,
};

class BatchedIo {
 public:
  static constexpr std::size_t kCallsMax = 32;
  // Fewer than so many are cheaper as single system calls.
  static constexpr std::size_t kRingCallsMin = 4;

  // REQUIRES: `fd` is non-blocking and has FMODE_NOWAIT in the kernel (taps, pipes, sockets), so that nothing waits; it
  // stays open as long as this.
  explicit BatchedIo(int fd, BatchedEngine engine = BatchedEngine::automatic);
  BatchedIo(const BatchedIo&) = delete;
  BatchedIo& operator=(const BatchedIo&) = delete;
  ~BatchedIo();

  // Carry the calls out one after the other, kCallsMax at most, and return their indices in the order in which they were
  // done: what was read first comes first. A call that is refused for now (EAGAIN) doesn't hold up those behind it, and one
  // of them may be let through. Without a system call of their own they may also all count as refused.
  [[nodiscard]] std::span<const std::uint8_t> read(std::span<BatchedCall> calls) noexcept;
  [[nodiscard]] std::span<const std::uint8_t> write(std::span<BatchedCall> calls) noexcept;
  // As write(), a system call each: after the first refused one all others count as refused, and none was done.
  void write_in_order(std::span<BatchedCall> calls) noexcept;

  [[nodiscard]] bool uses_ring() const noexcept { return ring_open_; }

 private:
  enum class Direction : std::uint8_t { in, out };

  bool open_ring() noexcept;
  void close_ring() noexcept;
  std::span<const std::uint8_t> run(Direction direction, std::span<BatchedCall> calls) noexcept;
  void run_plain(Direction direction, std::span<BatchedCall> calls, std::size_t first) noexcept;
  std::size_t submit(std::size_t count) noexcept;
  void reap(std::span<BatchedCall> calls, std::size_t count) noexcept;

  int fd_;
  bool file_registered_ = false;
  std::array<std::uint8_t, kCallsMax> order_{};
  io_uring ring_{};
  bool ring_open_;  // last: making the ring sets what stands before
};

}  // namespace ringway
