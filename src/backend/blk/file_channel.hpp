// What the three ways to a file (io_uring, threads, inline) have in common: how a request becomes system calls, how a
// partial result is resumed, what waits for what. A subclass only carries out one FileCall at a time.
//
// Owner: the worker that opened the channel.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/blk/blk_store.hpp"
#include "backend/blk/fifo.hpp"
#include "backend/blk/io_threads.hpp"
#include "base/limits.hpp"
#include "base/prng.hpp"
#include "loop/uring_engine.hpp"

namespace ringway {

class FileChannel;

// One system call on the image.
struct FileCall {
  enum class Kind : std::uint8_t { read, write, sync, fallocate };

  Kind kind = Kind::read;
  bool durable = false;             // write: RWF_DSYNC
  int mode = 0;                     // fallocate
  std::uint32_t segment_count = 0;  // read, write
  const iovec* segments = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Carries the call out, on the calling thread: bytes or 0, or a negative errno.
[[nodiscard]] std::int32_t perform(int fd, const FileCall& call) noexcept;

// A request on its way through the kernel: where it stands, and what the kernel reads until the call has completed.
class FileOperation final : public UringOperation, public IoTask {
 public:
  static constexpr std::size_t kWindowSegments = limits::kInlineSegments;
  enum class ZeroMethod : std::uint8_t { punch, zero_range, write };

  void on_completion(std::int32_t result) noexcept override;
  void run_task() noexcept override;

  FileChannel* channel = nullptr;
  BlkOperation* request = nullptr;  // nullptr for the channel's own sync
  FileOperation* next = nullptr;    // in the one list that it is in
  FileCall call;
  std::int32_t result = 0;  // threads: from the pool to the worker
  bool holds_discard_slot = false;
  ZeroMethod method = ZeroMethod::punch;
  std::uint16_t range = 0;  // discard and the like: the current one
  std::uint32_t retries = 0;
  std::uint32_t blamed_before = 0;  // the channel's blamed_ when the request began
  std::uint32_t segment = 0;        // in, out: the first one that is not done,
  std::uint64_t skip = 0;           // and what is done of it
  std::uint64_t done = 0;           // bytes of the request (in, out) or of the range (zeroes by writing)
  std::byte* bounce = nullptr;
  std::array<iovec, kWindowSegments> window;  // a part of the request, when its own segments can't be used as they are
};

// For tests: what a kernel may do and hardly ever does. Both are legal results that must be resumed.
struct FileFaults {
  std::uint32_t short_numerator = 0, short_denominator = 1;  // a transfer is cut to a random prefix
  std::uint32_t again_numerator = 0, again_denominator = 1;  // a call answers EAGAIN
  std::uint64_t seed = 1;
};

// Page-aligned memory of our own; takes room only where it was touched.
class PageMemory {
 public:
  explicit PageMemory(std::size_t bytes);
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  ~PageMemory();
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

class FileChannel : public BlkChannel {
 public:
  struct Options {
    int fd = -1;  // the store's
    bool read_only = false;
    bool direct = false;
    bool can_punch = true;
    std::uint32_t memory_alignment = 1;
    std::uint32_t offset_alignment = 1;
    FileFaults faults;
    IoThreads* registering = nullptr;  // io_uring: guest memory is to be registered, with the help of these threads
    std::string disk{};                // for log lines: the image
  };

  static constexpr std::size_t kOperations = limits::kSlotsPerWorker;  // in the kernel at a time
  static constexpr std::size_t kBounceBuffers = 16;
  static constexpr std::size_t kBounceBytes = 64U << 10U;
  static constexpr std::uint32_t kDiscardsMax = 2;  // in the kernel's worker pool, which other disks share: one that hangs
                                                    // in them must leave threads for the others

  FileChannel(const Options& options, BlkChannelCounters& counters);
  FileChannel(const FileChannel&) = delete;
  FileChannel& operator=(const FileChannel&) = delete;
  ~FileChannel() override;

  void submit(BlkOperation& operation) noexcept final;
  [[nodiscard]] std::uint32_t in_flight() const noexcept final { return in_flight_; }

  // The result of a call that start() left pending. On the worker.
  void on_result(FileOperation& operation, std::int32_t result) noexcept;
  // From any thread: the call of `operation` has returned operation.result. Only for threads.
  virtual void on_task_done(FileOperation& /*operation*/) noexcept {}
  [[nodiscard]] int fd() const { return options_.fd; }

 protected:
  static constexpr std::int32_t kPending = INT32_MIN;

  // Carries out operation.call. Either returns its result, or kPending and calls on_result() later.
  [[nodiscard]] virtual std::int32_t start(FileOperation& operation) noexcept = 0;

 private:
  enum class Step : std::uint8_t { go_on, finished };

  struct alignas(64) Slot {
    std::byte bytes[sizeof(FileOperation)];
  };

  // Resources.
  FileOperation* acquire_operation() noexcept;
  void release_operation(FileOperation& operation) noexcept;
  std::byte* acquire_bounce() noexcept;
  void serve_waiting() noexcept;

  // The life of a request.
  void begin(FileOperation& operation) noexcept;
  void run(FileOperation& operation) noexcept;
  [[nodiscard]] bool prepare(FileOperation& operation) noexcept;
  [[nodiscard]] Step advance(FileOperation& operation, std::int32_t result) noexcept;
  [[nodiscard]] Step advance_data(FileOperation& operation, std::uint64_t bytes) noexcept;
  [[nodiscard]] Step advance_ranges(FileOperation& operation, std::int32_t result) noexcept;
  [[nodiscard]] Step advance_sync(std::int32_t result) noexcept;
  [[nodiscard]] Step give_up(FileOperation& operation, int code) noexcept;
  void finish(FileOperation& operation, std::uint8_t status) noexcept;
  void finish_request(BlkOperation& request, std::uint8_t status) noexcept;
  void join_sync(BlkOperation& request) noexcept;

  void prepare_data(FileOperation& operation) noexcept;
  [[nodiscard]] bool prepare_range(FileOperation& operation) noexcept;
  void fill_window(FileOperation& operation, std::uint64_t limit) noexcept;
  void shorten(FileOperation& operation) noexcept;
  void copy_bounce(const FileOperation& operation, std::uint64_t bytes, bool to_guest) const noexcept;
  [[nodiscard]] bool aligned(const BlkRequest& request) const noexcept;

  const Options options_;
  Prng prng_;
  std::uint32_t in_flight_ = 0;
  std::uint32_t blamed_ = 0;  // times that guest memory was looked at after EFAULT
  bool serving_ = false;

  std::unique_ptr<Slot[]> slots_;  // constructed on first use, so that an idle channel takes no memory
  std::size_t slots_used_ = 0;
  Fifo<FileOperation> free_;
  Fifo<BlkOperation> waiting_;  // for an operation

  PageMemory bounce_memory_;
  std::array<std::byte*, kBounceBuffers> free_bounces_{};
  std::size_t free_bounce_count_ = 0;
  Fifo<FileOperation> waiting_for_bounce_;

  std::uint32_t discards_running_ = 0;
  Fifo<FileOperation> waiting_for_discard_;
  bool punch_works_ = true;
  bool zero_range_works_ = true;

  // FLUSH: one fsync at a time. It covers what had completed when it started, so a FLUSH that comes while one runs needs the
  // next one, which all that came meanwhile share.
  FileOperation sync_;
  bool sync_running_ = false;
  Fifo<BlkOperation> sync_current_;
  Fifo<BlkOperation> sync_next_;
};

}  // namespace ringway
