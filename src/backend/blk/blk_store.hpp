// Stage (3) for disks: the submit/reap contract between a queue and what holds the data.
//
// A BlkStore is one disk image: made, asked and resized on the control thread. Each worker that serves the disk opens one
// BlkChannel, on its own thread, and submits operations to it. A store never looks at rings or chains; it sees bytes and
// segments of guest memory, which stay mapped until the operation has completed. GET_ID is the device's own; a store answers
// it with UNSUPP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "loop/loop.hpp"
#include "metrics/counter.hpp"
#include "request/blk_request.hpp"

namespace ringway {

struct BlkOperation;

// Who is told of a completion. Called on the worker's thread; from within submit() for what is done at once, else from
// within Loop::poll()/wait().
class BlkCompletions {
 public:
  virtual void on_complete(BlkOperation& operation) noexcept = 0;

 protected:
  ~BlkCompletions() = default;
};

// One request on its way through a store. Owned by the queue's slot pool; the store may hold a pointer from submit() until
// on_complete().
struct BlkOperation {
  BlkRequest request;
  BlkCompletions* completions = nullptr;
  std::uint8_t status = 0;       // set by the store before on_complete(): spec::kBlkStatus…
  BlkOperation* next = nullptr;  // the store's, from submit() until on_complete(): its queue of held-back operations
};

// What a channel went through; written by its worker, read by anyone.
struct BlkChannelCounters {
  Counter short_transfers;  // the kernel moved less than was asked; resumed
  Counter retries;          // EAGAIN and EINTR
  Counter bounced;          // requests whose segments were not aligned for direct I/O
  Counter held_back;        // requests that had to wait for a resource of the channel
  Counter syncs;            // fsync calls; FLUSHes that shared one are not counted
  Counter fallbacks;        // ranges where the backing can't discard or zero by itself
  // What the guest saw as IOERR:
  Counter no_space;      // ENOSPC, EDQUOT
  Counter guest_faults;  // EFAULT: the guest's memory had gone
  Counter end_of_file;   // the file had become shorter
  Counter cancelled;     // ended by cancel_all()
  Counter io_errors;     // EIO and every other one
};

class BlkChannel {
 public:
  virtual ~BlkChannel() = default;  // REQUIRES: in_flight() == 0

  // Takes the operation and completes it exactly once with a status. Never blocks the worker on slow storage. May hold an
  // operation back while it lacks a resource of its own, and then starts it by itself later.
  // On an error that the guest sees as IOERR nothing is lost silently: counters() tells errno classes apart.
  virtual void submit(BlkOperation& operation) noexcept = 0;
  // After the last submit() of a turn, before the loop submits: for stores that gather a batch of their own.
  virtual void end_of_batch() noexcept {}

  // Operations that are not completed yet.
  [[nodiscard]] virtual std::uint32_t in_flight() const noexcept = 0;
  // Tries to end early what is in flight (a ring is being stopped): queued work is dropped with IOERR, kernel work is
  // cancelled where the kernel can (direct I/O can't). Completions still arrive through on_complete(), some of them before
  // this returns.
  virtual void cancel_all() noexcept = 0;

  [[nodiscard]] virtual const BlkChannelCounters& counters() const noexcept { return counters_; }

 protected:
  static void complete(BlkOperation& operation, std::uint8_t status) noexcept {
    operation.status = status;
    operation.completions->on_complete(operation);
  }

  BlkChannelCounters counters_;
};

struct BlkStoreInfo {
  std::string engine;                // "io_uring", "threads", "inline", "ram", "null", "faulty+…"; for people
  std::uint64_t capacity_bytes = 0;  // multiple of block_bytes; a longer file's rest is not shown (and a log line says so)
  std::uint32_t block_bytes = 512;   // logical block: smallest unit of an access
  std::uint32_t physical_block_bytes = 512;
  std::uint32_t minimum_io_bytes = 0, optimal_io_bytes = 0;  // 0: unknown
  std::uint64_t discard_granularity_bytes = 0;               // 0: can't discard
  std::uint64_t discard_bytes_max = 0;                       // of one range
  bool read_only = false;
  bool write_zeroes = false;
  bool secure_erase = false;
};

class BlkStore {
 public:
  virtual ~BlkStore() = default;  // REQUIRES: no channel is open

  // Control thread. Constant but for capacity_bytes, which refresh() and resize() change.
  [[nodiscard]] virtual const BlkStoreInfo& info() const noexcept = 0;
  // Looks at the backing file or device again; the new info().capacity_bytes holds for requests parsed from then on.
  [[nodiscard]] virtual Result<> refresh() = 0;
  // Changes the backing size where that is ours to do (a file, RAM); else an error that says how.
  [[nodiscard]] virtual Result<> resize(std::uint64_t bytes) = 0;

  // On the worker's thread. `loop` outlives the channel.
  [[nodiscard]] virtual Result<std::unique_ptr<BlkChannel>> open_channel(Loop& loop) = 0;
  // The serial number for GET_ID (20 bytes, NUL-padded) is the device's; a store only offers a stable default, e.g. from
  // the file's identity. At most limits::kBlkIdBytes characters.
  [[nodiscard]] virtual std::string default_serial() const = 0;
};

}  // namespace ringway
