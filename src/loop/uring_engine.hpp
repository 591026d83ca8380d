// Submitting I/O on a loop's io_uring.
//
// user_data is a slot of a table and a generation: a completion whose generation is stale is dropped, so an
// operation that was given up can never be taken for a newer one.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.hpp"

namespace ringway {

// One operation in flight. The object belongs to who submitted it and must stay alive until on_completion() was called,
// which is exactly once for every sqe (the kernel may touch the buffers until then).
class UringOperation {
 public:
  // `result` is cqe->res: bytes, or a negative errno.
  virtual void on_completion(std::int32_t result) noexcept = 0;

 protected:
  ~UringOperation() = default;
};

class UringEngine {
 public:
  virtual ~UringEngine() = default;

  // A prepared, empty submission entry for `operation`; fill it with the io_uring_prep_… functions (which keep user_data),
  // no other call between. It goes to the kernel with the next poll() or wait(). Flushes by itself when the queue is full;
  // nullptr only if the kernel takes nothing at that moment or the table of operations is full (then retry next turn).
  [[nodiscard]] virtual io_uring_sqe* prepare(UringOperation& operation) noexcept = 0;

  // Hands over what was prepared so far, without waiting and without completions being handled: for who has a long batch
  // and a device that idles meanwhile. A system call.
  virtual void submit() noexcept = 0;

  // A slot in the ring's table of registered files (IOSQE_FIXED_FILE), or an error when there is none left (use the plain
  // fd then). Released when nothing in flight uses it.
  [[nodiscard]] virtual Result<int> register_file(int fd) = 0;
  virtual void unregister_file(int slot) noexcept = 0;

  // A slot in the ring's table of registered buffers (IORING_OP_READ_FIXED and the like), over memory that is now resident
  // and stays so. Pins the pages on the calling thread: some 50 ms for each GiB that is resident already, seconds for what
  // is not. At most 1 GiB at a time. Errors: RLIMIT_MEMLOCK, no slot, memory that has gone.
  [[nodiscard]] virtual Result<int> register_buffer(std::span<std::byte> memory) = 0;
  // No entry prepared from now on may use it; what is in flight may, and so may entries that were prepared but not yet
  // handed to the kernel: those are handed over first (a system call if there are any).
  virtual void unregister_buffer(int slot) noexcept = 0;
  // Whether the kernel takes vectors over registered buffers (uring::kOpReadvFixed, kOpWritevFixed).
  [[nodiscard]] virtual bool has_vectored_fixed() const noexcept = 0;

  // Operations in flight.
  [[nodiscard]] virtual std::uint32_t in_flight() const noexcept = 0;
};

}  // namespace ringway
