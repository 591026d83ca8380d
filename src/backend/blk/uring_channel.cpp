// Over the loop's io_uring, straight to and from guest memory: one submission for all that a turn collected; a long batch
// goes in several.
#include <liburing.h>

#include <algorithm>
#include <optional>

#include "backend/blk/file_store.hpp"
#include "backend/blk/registered_memory.hpp"
#include "loop/clock.hpp"
#include "loop/io_uring_compat.hpp"
#include "loop/uring_engine.hpp"

namespace ringway {
namespace {

class UringChannel final : public FileChannel, private TimerHandler {
 public:
  UringChannel(const Options& options, Loop& loop, BlkChannelCounters& counters, UringEngine& engine)
      : FileChannel(options, counters), loop_(loop), engine_(engine), direct_(options.direct), target_fd_(options.fd) {
    if (options.registering != nullptr) {
      memory_.emplace(loop, engine, *options.registering, options.disk);
    }
    // A registered file saves a reference count per request; without a free slot the plain fd does.
    if (const Result<int> slot = engine_.register_file(options.fd)) {
      target_fd_ = *slot;
      registered_ = true;
    }
  }
  UringChannel(const UringChannel&) = delete;
  UringChannel& operator=(const UringChannel&) = delete;
  ~UringChannel() override {
    if (registered_) {
      engine_.unregister_file(target_fd_);
    }
    loop_.cancel_timer(*this);
  }

  void end_of_batch() noexcept override {
    submit_held_back();
    prepared_ = 0;  // the loop submits now
  }
  void use_memory(const std::shared_ptr<const RegionMap>& map) override {
    if (memory_) {
      memory_->use(map);
    }
  }

 private:
  static constexpr Duration kRetryAfter = Duration::milliseconds(1);
  static constexpr std::uint32_t kPreparedLeast = 4;           // fewer aren't worth a system call
  static constexpr std::size_t kTransferBytesMax = 1U << 30U;  // an entry's length is 32 bits wide

  [[nodiscard]] std::int32_t start(FileOperation& operation) noexcept override {
    if (!held_back_.empty() || !try_start(operation)) {
      held_back_.push(operation);
      loop_.set_timer(*this, clock_now() + kRetryAfter);
      return kPending;
    }
    // A device must not idle while a batch for it is put together, and the busier it is the larger batches may be: what was
    // prepared goes ahead once it is more than a third of all. With 32 reads of 4 KiB at a time a disk that ends them all
    // together gave 74 k/s by one submission for all, which took 50 us to prepare, and 85 k/s so. What comes from the page
    // cache is copied by this thread in any case.
    ++prepared_;
    if (direct_ && prepared_ >= kPreparedLeast && 3 * prepared_ > in_flight()) {
      engine_.submit();
      prepared_ = 0;
    }
    return kPending;
  }

  bool try_start(FileOperation& operation) noexcept {
    io_uring_sqe* const sqe = engine_.prepare(operation);
    if (sqe == nullptr) {
      return false;
    }
    const FileCall& call = operation.call;
    if (RW_UNLIKELY(memory_.has_value()) && prepare_fixed(*sqe, call)) {
      use_registered_file(*sqe);
      return true;
    }
    switch (call.kind) {
      case FileCall::Kind::read:
        if (call.segment_count == 1) {
          io_uring_prep_read(sqe, target_fd_, call.segments->iov_base, length_of(*call.segments), call.offset);
        } else {
          io_uring_prep_readv(sqe, target_fd_, call.segments, call.segment_count, call.offset);
        }
        break;
      case FileCall::Kind::write:
        if (call.segment_count == 1) {
          io_uring_prep_write(sqe, target_fd_, call.segments->iov_base, length_of(*call.segments), call.offset);
        } else {
          io_uring_prep_writev(sqe, target_fd_, call.segments, call.segment_count, call.offset);
        }
        sqe->rw_flags = call.durable ? RWF_DSYNC : 0;
        break;
      case FileCall::Kind::sync:
        io_uring_prep_fsync(sqe, target_fd_, IORING_FSYNC_DATASYNC);
        break;
      case FileCall::Kind::fallocate:
        io_uring_prep_fallocate(sqe, target_fd_, call.mode, static_cast<off_t>(call.offset), static_cast<off_t>(call.bytes));
        break;
    }
    use_registered_file(*sqe);
    return true;
  }

  void use_registered_file(io_uring_sqe& sqe) const noexcept {
    if (registered_) {
      sqe.flags |= IOSQE_FIXED_FILE;
    }
  }

  // A transfer from or to registered memory. False, and nothing prepared, if it is none.
  [[nodiscard]] bool prepare_fixed(io_uring_sqe& sqe, const FileCall& call) noexcept {
    const bool read = call.kind == FileCall::Kind::read;
    if (!read && call.kind != FileCall::Kind::write) {
      return false;
    }
    const bool vector = call.segment_count != 1;
    if (vector && !engine_.has_vectored_fixed()) {
      return false;
    }
    const int slot = memory_->find({call.segments, call.segment_count});
    if (slot == RegisteredMemory::kNone) {
      return false;
    }
    if (vector) {
      io_uring_prep_rw(read ? uring::kOpReadvFixed : uring::kOpWritevFixed, &sqe, target_fd_, call.segments,
                       call.segment_count, call.offset);
    } else {
      io_uring_prep_rw(read ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED, &sqe, target_fd_, call.segments->iov_base,
                       length_of(*call.segments), call.offset);
    }
    counters_.registered.add();
    sqe.buf_index = static_cast<std::uint16_t>(slot);
    sqe.rw_flags = call.durable ? RWF_DSYNC : 0;
    return true;
  }

  static unsigned length_of(const iovec& segment) {
    return static_cast<unsigned>(std::min(segment.iov_len, kTransferBytesMax));
  }

  void submit_held_back() noexcept {
    while (!held_back_.empty()) {
      FileOperation& operation = *held_back_.pop();
      if (!try_start(operation)) {
        // Back to the front would keep the order, but no order is promised.
        held_back_.push(operation);
        loop_.set_timer(*this, clock_now() + kRetryAfter);
        return;
      }
    }
  }

  void on_timer(Instant /*now*/) noexcept override { submit_held_back(); }

  Loop& loop_;
  UringEngine& engine_;
  const bool direct_;
  std::uint32_t prepared_ = 0;  // since the last submission
  int target_fd_;               // a slot of the registered files, or the fd
  bool registered_ = false;
  std::optional<RegisteredMemory> memory_;
  Fifo<FileOperation> held_back_;  // while the ring takes no more
};

}  // namespace

Result<std::unique_ptr<BlkChannel>> make_uring_channel(const FileChannel::Options& options, Loop& loop,
                                                       BlkChannelCounters& counters) {
  UringEngine* const engine = loop.uring();
  if (engine == nullptr) {
    return fail("engine io_uring: this worker's loop has no io_uring; use engine=threads, or let the loops use io_uring");
  }
  return std::make_unique<UringChannel>(options, loop, counters, *engine);
}

}  // namespace ringway
