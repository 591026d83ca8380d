// Stage (3) for disks: the submit/reap contract between a queue and what holds the data.
//
// A BlkStore is one disk image: made, asked and resized on the control thread. Each worker that serves the disk opens one
// BlkChannel, on its own thread, and submits operations to it. A store never looks at rings or chains; it sees bytes and
// segments of guest memory, which stay mapped until the operation has completed. GET_ID is the device's own; a store answers
// it with UNSUPP.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/result.hpp"
#include "guest/region_map.hpp"
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

// Why the guest saw IOERR, which doesn't tell.
enum class BlkFailure : std::uint8_t {
  no_space,      // ENOSPC, EDQUOT
  guest_memory,  // EFAULT: the guest's memory had gone
  end_of_file,   // the file had become shorter
  io,            // EIO and every other one
};
inline constexpr std::size_t kBlkFailures = 4;
// "no_space", "guest_memory", …
[[nodiscard]] const char* to_string(BlkFailure failure) noexcept;

// Who is told of the first failure of each kind, since the counters don't keep the errno.
class BlkFailureListener {
 public:
  BlkFailureListener() = default;
  BlkFailureListener(const BlkFailureListener&) = delete;
  BlkFailureListener& operator=(const BlkFailureListener&) = delete;
  virtual ~BlkFailureListener() = default;

  // On the worker's thread, before the request's completion. `code` is the errno; 0 for end_of_file.
  virtual void on_first_failure(BlkFailure failure, int code) noexcept = 0;
};

// What the channels of one disk on one worker went through, one after the other: it outlives them. Written by the worker,
// read by anyone.
struct BlkChannelCounters {
  Counter short_transfers;                     // the kernel moved less than was asked; resumed
  Counter retries;                             // EAGAIN and EINTR
  Counter bounced;                             // requests whose segments were not aligned for direct I/O
  Counter held_back;                           // requests that had to wait for a resource of the channel
  Counter syncs;                               // fsync calls; FLUSHes that shared one are not counted
  Counter registered;                          // transfers from and to registered memory
  Counter fallbacks;                           // ranges where the backing can't discard or zero by itself
  std::array<Counter, kBlkFailures> failures;  // what the guest saw as IOERR
  BlkFailureListener* listener = nullptr;      // outlives the channels; set before the first one is opened

  void add_failure(BlkFailure failure, int code) noexcept;
};

class BlkChannel {
 public:
  explicit BlkChannel(BlkChannelCounters& counters) : counters_(counters) {}
  BlkChannel(const BlkChannel&) = delete;
  BlkChannel& operator=(const BlkChannel&) = delete;
  virtual ~BlkChannel() = default;  // REQUIRES: in_flight() == 0

  // Takes the operation and completes it exactly once with a status. Never blocks the worker on slow storage. May hold an
  // operation back while it lacks a resource of its own, and then starts it by itself later.
  // On an error that the guest sees as IOERR nothing is lost silently: the counters tell kinds of errno apart.
  virtual void submit(BlkOperation& operation) noexcept = 0;
  // After the last submit() of a turn, before the loop submits: for stores that gather a batch of their own.
  virtual void end_of_batch() noexcept {}

  // Operations that are not completed yet.
  [[nodiscard]] virtual std::uint32_t in_flight() const noexcept = 0;
  // The guest memory that operations submitted from now on lie in, for stores that prepare it; nullptr: none. What was given
  // before and is not in `map` is let go of when this returns, but for operations still in flight.
  virtual void use_memory(const std::shared_ptr<const RegionMap>& /*map*/) {}

  // Bytes that submit() itself has copied, or cleared, since the last call: the worker's own time, by which a queue finds
  // its turn shortened. A channel spreads what is longer than limits::kCopySliceBytes over the turns of its loop, one slice
  // in each; those aren't counted here.
  [[nodiscard]] std::uint64_t take_copied() noexcept { return std::exchange(copied_, 0); }

 protected:
  static void complete(BlkOperation& operation, std::uint8_t status) noexcept {
    operation.status = status;
    operation.completions->on_complete(operation);
  }

  BlkChannelCounters& counters_;
  std::uint64_t copied_ = 0;
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

  // On the worker's thread. `loop` and `counters` outlive the channel; what `counters` holds already goes on.
  [[nodiscard]] virtual Result<std::unique_ptr<BlkChannel>> open_channel(Loop& loop, BlkChannelCounters& counters) = 0;
  // The serial number for GET_ID (20 bytes, NUL-padded) is the device's; a store only offers a stable default, e.g. from
  // the file's identity. At most limits::kBlkIdBytes characters.
  [[nodiscard]] virtual std::string default_serial() const = 0;
};

}  // namespace ringway
