#include "backend/net/batched_io.hpp"

#include <unistd.h>

#include <cerrno>

#include "base/check.hpp"

namespace ringway {
namespace {

void prepare(io_uring_sqe& sqe, int fd, bool in, std::span<const iovec> pieces) noexcept {
  // One piece needs no vector to be read by the kernel, which saves it an allocation.
  if (pieces.size() == 1) {
    const auto bytes = static_cast<unsigned>(pieces[0].iov_len);
    if (in) {
      io_uring_prep_read(&sqe, fd, pieces[0].iov_base, bytes, 0);
    } else {
      io_uring_prep_write(&sqe, fd, pieces[0].iov_base, bytes, 0);
    }
  } else if (in) {
    io_uring_prep_readv(&sqe, fd, pieces.data(), static_cast<unsigned>(pieces.size()), 0);
  } else {
    io_uring_prep_writev(&sqe, fd, pieces.data(), static_cast<unsigned>(pieces.size()), 0);
  }
  // O_NONBLOCK is not enough: io_uring would poll a descriptor that refuses, and try again when it is ready.
  sqe.rw_flags = RWF_NOWAIT;
}

std::int32_t perform(int fd, bool in, std::span<const iovec> pieces) noexcept {
  ssize_t result = 0;
  do {
    if (pieces.size() == 1) {
      result = in ? ::read(fd, pieces[0].iov_base, pieces[0].iov_len) : ::write(fd, pieces[0].iov_base, pieces[0].iov_len);
    } else {
      const int count = static_cast<int>(pieces.size());
      result = in ? ::readv(fd, pieces.data(), count) : ::writev(fd, pieces.data(), count);
    }
  } while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : static_cast<std::int32_t>(result);
}

}  // namespace

BatchedIo::BatchedIo(int fd, BatchedEngine engine)
    : fd_(fd), ring_open_(engine == BatchedEngine::automatic && open_ring()) {}

BatchedIo::~BatchedIo() {
  close_ring();
}

bool BatchedIo::open_ring() noexcept {
  const std::uint32_t oldest = IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN;  // Linux 5.19
  for (const std::uint32_t flags : {oldest | IORING_SETUP_SINGLE_ISSUER, oldest}) {
    io_uring_params params{};
    params.flags = flags;
    if (io_uring_queue_init_params(kCallsMax, &ring_, &params) == 0) {
      static_cast<void>(io_uring_ring_dontfork(&ring_));
      // Both only save time.
      static_cast<void>(io_uring_register_ring_fd(&ring_));
      file_registered_ = io_uring_register_files(&ring_, &fd_, 1) == 0;
      return true;
    }
  }
  return false;
}

void BatchedIo::close_ring() noexcept {
  if (!ring_open_) {
    return;
  }
  ring_open_ = false;
  // The kernel ends a ring later, in a thread of its own, and what was registered would stay open until then: a tap
  // attached, its interface in existence.
  if (file_registered_) {
    static_cast<void>(io_uring_unregister_files(&ring_));
  }
  io_uring_queue_exit(&ring_);
}

std::span<const std::uint8_t> BatchedIo::read(std::span<BatchedCall> calls) noexcept {
  return run(Direction::in, calls);
}

std::span<const std::uint8_t> BatchedIo::write(std::span<BatchedCall> calls) noexcept {
  return run(Direction::out, calls);
}

void BatchedIo::write_in_order(std::span<BatchedCall> calls) noexcept {
  run_plain(Direction::out, calls, 0);
}

std::span<const std::uint8_t> BatchedIo::run(Direction direction, std::span<BatchedCall> calls) noexcept {
  RW_DCHECK(calls.size() <= kCallsMax);
  std::size_t done = 0;
  if (ring_open_ && calls.size() >= kRingCallsMin) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
      RW_DCHECK(sqe != nullptr);  // the last call left the queue empty
      prepare(*sqe, file_registered_ ? 0 : fd_, direction == Direction::in, calls[i].pieces);
      sqe->flags |= file_registered_ ? IOSQE_FIXED_FILE : 0U;
      sqe->user_data = i;
    }
    done = submit(calls.size());
    reap(calls, done);
    if (done < calls.size()) {
      close_ring();  // a sandbox that came after it was made, or a host without memory: from now on without it
    }
  }
  run_plain(direction, calls, done);
  return std::span(order_).first(calls.size());
}

// Returns how many of the entries the kernel took. The others are withdrawn.
std::size_t BatchedIo::submit(std::size_t count) noexcept {
  std::size_t taken = 0;
  while (taken < count) {
    // With all done at once, as they should be, the kernel finds the completions there and doesn't wait.
    const int result = io_uring_submit_and_wait(&ring_, static_cast<unsigned>(count));
    if (result > 0) {
      taken += static_cast<std::size_t>(result);
    } else if (result != -EINTR) {
      break;
    }
  }
  return taken;
}

void BatchedIo::reap(std::span<BatchedCall> calls, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    io_uring_cqe* cqe = nullptr;
    while (io_uring_wait_cqe(&ring_, &cqe) == -EINTR) {
    }
    RW_CHECK(cqe != nullptr && cqe->user_data < calls.size());
    calls[cqe->user_data].result = cqe->res;
    order_[i] = static_cast<std::uint8_t>(cqe->user_data);
    io_uring_cqe_seen(&ring_, cqe);
  }
}

void BatchedIo::run_plain(Direction direction, std::span<BatchedCall> calls, std::size_t first) noexcept {
  bool refused = false;
  for (std::size_t i = first; i < calls.size(); ++i) {
    calls[i].result = refused ? -EAGAIN : perform(fd_, direction == Direction::in, calls[i].pieces);
    refused = refused || calls[i].result == -EAGAIN;
    order_[i] = static_cast<std::uint8_t>(i);
  }
}

}  // namespace ringway
