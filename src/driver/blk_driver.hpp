// A virtio-blk driver in user space over a vhost-user front-end (virtio 1.3 §5.2, vhost-user.rst): what a guest and its VMM
// do together, against any back-end. For the benches, `ringway check` and tests.
//
// Threads: BlkDriver (the session) belongs to one thread; each BlkDriverQueue to the one thread that drives it, which may be
// another. The session's calls that touch a queue (stop, start, reconnect) need that thread to be out of it.
//
// Hot path (submit, publish_and_kick, reap): no heap, no clock, no lock; a system call only where the back-end asked for a
// kick. A request costs the driver one private cache line that it shares with the back-end: header and status lie together,
// as they do in Linux, so that a request moves one line there and back besides the ring's own and the data.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "base/unique_fd.hpp"
#include "driver/shared_memory.hpp"
#include "ring/driver_ring.hpp"
#include "ring/spec.hpp"
#include "vhost_user/front_end.hpp"

namespace ringway {

// Every virtio-blk bit that this driver can use.
inline constexpr std::uint64_t kBlkDriverFeatures = spec::kBlkSizeMax | spec::kBlkSegMax | spec::kBlkGeometry |
                                                    spec::kBlkRo | spec::kBlkBlkSize | spec::kBlkFlush | spec::kBlkTopology |
                                                    spec::kBlkConfigWce | spec::kBlkMq | spec::kBlkDiscard |
                                                    spec::kBlkWriteZeroes | spec::kBlkSecureErase;
// Every protocol feature that it can use.
inline constexpr std::uint64_t kBlkDriverProtocolFeatures =
    vhost_user::kProtocolMq | vhost_user::kProtocolReplyAck | vhost_user::kProtocolBackendReq | vhost_user::kProtocolConfig |
    vhost_user::kProtocolInflightShmfd | vhost_user::kProtocolConfigureMemSlots;

struct BlkDriverOptions {
  std::string socket_path = {};
  Duration patience = Duration::seconds(5);  // for the socket to appear

  // Wishes: taken where the back-end offers them. BlkDriver::negotiated() says what came of them.
  bool packed = false;
  bool indirect = true;
  bool event_index = true;
  bool in_order = false;
  std::uint64_t features = kBlkDriverFeatures;
  std::uint64_t protocol_features = kBlkDriverProtocolFeatures;

  // Demands: an error if the back-end can't.
  std::uint32_t queues = 1;
  std::uint32_t queue_size = 128;  // descriptors; a power of two unless packed

  std::uint32_t requests_per_queue = 128;  // in flight at most; without indirect descriptors the ring may allow fewer
  std::uint32_t segments_max = 1;          // data buffers of one request; sizes the indirect tables
  std::size_t buffer_bytes = 4096;         // of each request's own data buffer, see BlkDriverQueue::buffer()
  std::size_t scratch_bytes = 0;           // more shared memory, for BlkDriver::memory().allocate()

  MemoryPages pages = MemoryPages::small;
  std::uint32_t data_regions = 0;  // 0: all in one region; n: data buffers in n further regions, dealt round robin
  bool memory_slots = false;       // ADD_MEM_REG for each region instead of one SET_MEM_TABLE
  bool inflight = false;           // keeps an in-flight region through reconnects, where the back-end has it
  bool start = true;               // start and enable all queues; else start_queue() does
};

struct BlkDriverNegotiated {
  std::uint64_t offered = 0;   // GET_FEATURES
  std::uint64_t features = 0;  // what we acknowledged
  std::uint64_t protocol_offered = 0;
  std::uint64_t protocol_features = 0;
  std::uint64_t queues_offered = 1;  // GET_QUEUE_NUM, 1 without MQ
  RingFeatures ring;
  [[nodiscard]] bool has(std::uint64_t bits) const { return (features & bits) == bits; }
};

struct BlkDriverRequest {
  std::uint32_t type = spec::kBlkTypeIn;
  std::uint64_t sector = 0;
  std::uint64_t token = 0;                  // comes back in the completion
  std::span<const DriverBuffer> data = {};  // at most segments_max; who writes them is set by the type, not taken from here
  std::span<const spec::BlkRange> ranges = {};  // of DISCARD, WRITE ZEROES, SECURE ERASE: at most kBlkDriverRangesMax
};
inline constexpr std::size_t kBlkDriverRangesMax = 64;

struct BlkCompletion {
  std::uint64_t token = 0;
  std::uint32_t written_bytes = 0;  // the used length, as the device gave it
  std::uint8_t status = 0;          // kStatusUntouched if the device wrote none
};
inline constexpr std::uint8_t kStatusUntouched = 0xee;

class BlkDriverQueue {
 public:
  BlkDriverQueue(const BlkDriverQueue&) = delete;
  BlkDriverQueue& operator=(const BlkDriverQueue&) = delete;
  ~BlkDriverQueue();

  // Queues a request; the device sees it at publish_and_kick(). False if the ring or the slots are full.
  [[nodiscard]] bool submit(const BlkDriverRequest& request) noexcept;
  // Queues a chain as it is, for those who frame requests their own way. Its completion comes with status kStatusUntouched:
  // the caller knows where the status is.
  [[nodiscard]] bool submit_chain(std::span<const DriverBuffer> chain, std::uint64_t token) noexcept;
  void publish_and_kick() noexcept;
  // Takes what is complete, up to completions.size(); returns how many.
  [[nodiscard]] std::size_t reap(std::span<BlkCompletion> completions) noexcept;
  [[nodiscard]] bool has_completion() const noexcept { return ring_->has_used(); }

  // Sleeps on the call eventfd until something may be complete; false at the deadline. Between waits calls are suppressed.
  [[nodiscard]] bool wait(Instant deadline) noexcept;
  // The same over several queues of one thread.
  [[nodiscard]] static bool wait_any(std::span<BlkDriverQueue* const> queues, Instant deadline) noexcept;

  // Data buffer `index` of requests_per_queue: buffer_bytes, page-aligned where buffer_bytes is a multiple of the page.
  [[nodiscard]] SharedBlock buffer(std::uint32_t index) const noexcept { return buffers_[index]; }
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return slot_count_ - free_count_; }
  [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
  [[nodiscard]] DriverRing& ring() noexcept { return *ring_; }

  // For those who play with the notifications themselves.
  void kick() noexcept;
  [[nodiscard]] int kick_fd() const noexcept { return kick_.get(); }
  [[nodiscard]] int call_fd() const noexcept { return call_.get(); }
  [[nodiscard]] int error_fd() const noexcept { return error_.get(); }
  // Calls that came and were not yet counted: reads the eventfd's counter. (wait() leaves it alone; wait_any() counts them.)
  std::uint64_t take_calls() noexcept;

  struct Counters {
    std::uint64_t kicks = 0;     // eventfd writes
    std::uint64_t calls = 0;     // counted by the call eventfd, not wake-ups
    std::uint64_t waits = 0;     // times that we slept
    std::uint64_t bad_used = 0;  // used elements that named no request in flight
  };
  // Reads what is left in the call eventfd too.
  [[nodiscard]] Counters counters() noexcept;

 private:
  friend class BlkDriver;

  // What the device reads and writes of one request. One cache line.
  struct alignas(64) Slot {
    spec::BlkRequestHeader header;
    std::uint8_t status;
    std::uint8_t unused[47];
  };
  static_assert(sizeof(Slot) == 64);

  BlkDriverQueue() = default;
  [[nodiscard]] std::uint32_t take_slot() noexcept { return free_slots_[--free_count_]; }
  void give_slot_back(std::uint32_t slot) noexcept { free_slots_[free_count_++] = slot; }
  void forget_in_flight() noexcept;

  std::unique_ptr<DriverRing> ring_;
  Slot* slots_ = nullptr;  // shared memory
  GuestAddress slots_guest_;
  spec::BlkRange* ranges_ = nullptr;  // kBlkDriverRangesMax for each slot; shared memory
  GuestAddress ranges_guest_;
  std::uint32_t slot_count_ = 0;
  std::uint32_t free_count_ = 0;
  std::vector<std::uint32_t> free_slots_;  // a stack: the line used last is the warmest
  std::vector<std::uint64_t> tokens_;      // by slot
  enum class SlotUse : std::uint8_t { free, request, chain };
  std::vector<SlotUse> slot_use_;
  std::vector<DriverBuffer> chain_;  // scratch of submit()
  std::vector<SharedBlock> buffers_;
  DriverRing::Options ring_options_;  // to lay the ring out again after a reset
  std::uint32_t index_ = 0;
  UniqueFd kick_, call_, error_;
  UniqueFd epoll_;  // edge-triggered on call_, so that a wake-up is one system call and not two
  Counters counters_;
};

class BlkDriver {
 public:
  // Connects, negotiates, lays out the memory, and (options.start) starts the queues. Errors say what the back-end lacks.
  static Result<std::unique_ptr<BlkDriver>> create(const BlkDriverOptions& options);
  BlkDriver(const BlkDriver&) = delete;
  BlkDriver& operator=(const BlkDriver&) = delete;
  ~BlkDriver();

  [[nodiscard]] const BlkDriverNegotiated& negotiated() const { return negotiated_; }
  [[nodiscard]] const spec::BlkConfig& config() const { return config_; }
  // Bytes of the configuration that the back-end gave; those beyond read as zero in config().
  [[nodiscard]] std::uint32_t config_bytes() const { return config_bytes_; }
  [[nodiscard]] Result<> read_config();
  [[nodiscard]] std::uint64_t capacity_sectors() const { return config_.capacity; }
  [[nodiscard]] std::uint32_t block_bytes() const;  // blk_size where offered, else 512
  [[nodiscard]] bool read_only() const { return negotiated_.has(spec::kBlkRo); }

  [[nodiscard]] std::uint32_t queue_count() const { return static_cast<std::uint32_t>(queues_.size()); }
  [[nodiscard]] BlkDriverQueue& queue(std::uint32_t index) { return *queues_[index]; }

  // GET_VRING_BASE: the back-end has finished with the ring when this returns; the value in the form of the specification.
  [[nodiscard]] Result<std::uint32_t> stop_queue(std::uint32_t index);
  // Where the parts of a queue's ring are, as SET_VRING_ADDR wants it.
  [[nodiscard]] vhost_user::VringAddress vring_address(std::uint32_t index) const;
  // Sends the ring's parameters and enables it. `base` is what stop_queue() returned, or initial_base() for a ring that is
  // new.
  [[nodiscard]] Result<> start_queue(std::uint32_t index, std::uint32_t base, bool enable = true);
  // Both wrap counters of a new packed ring are 1 (vhost-user.rst, "Vring state").
  [[nodiscard]] std::uint32_t initial_base() const { return negotiated_.ring.packed ? 0x80008000U : 0U; }
  // Lays a stopped ring out anew, as a guest's driver does after a device reset; what was in flight is forgotten.
  void reset_queue(std::uint32_t index);

  // Drops the session and begins another with the same memory.
  enum class Rings : std::uint8_t {
    resume,  // as a VMM does when its back-end was restarted: split rings go on at their used index, so that what was in
             // flight is served (again). A packed ring's position only the lost back-end knew: those are reset.
    reset,   // as a guest does that was rebooted meanwhile
  };
  // Rings are reset once the new session is open: a back-end that serves one session at a time no longer writes by then.
  // With options.inflight the region goes along with rings that are resumed; those that are reset get a new one. After an
  // error (and after disconnect()) there is no session: only reconnect(), peer_closed() and what concerns queues and memory
  // may be called.
  [[nodiscard]] Result<> reconnect(Rings rings = Rings::resume);
  // Only the first half of it: the socket is closed; queues keep their memory.
  void disconnect();

  // Waits for the back-end's message that the configuration changed, then reads it again.
  [[nodiscard]] Result<> wait_config_change(Duration patience);

  // The process behind the socket (SO_PEERCRED: the one that called listen()).
  [[nodiscard]] Result<pid_t> backend_pid() const;
  // True if the back-end has closed the connection, or there is none.
  [[nodiscard]] bool peer_closed() const;

  [[nodiscard]] vhost_user::FrontEnd& front_end() { return *front_end_; }
  [[nodiscard]] SharedMemory& memory() { return *memory_; }
  [[nodiscard]] const BlkDriverOptions& options() const { return options_; }
  // What SET_MEM_TABLE carries for the regions of memory().
  [[nodiscard]] std::vector<vhost_user::FrontEnd::Region> memory_table() const;

 private:
  explicit BlkDriver(const BlkDriverOptions& options) : options_(options) {}

  [[nodiscard]] Result<> open_session();
  [[nodiscard]] Result<> negotiate();
  [[nodiscard]] Result<> send_memory();
  [[nodiscard]] Result<> lay_out();
  [[nodiscard]] Result<std::unique_ptr<BlkDriverQueue>> lay_out_queue(std::uint32_t index);
  [[nodiscard]] Result<> set_up_inflight();

  BlkDriverOptions options_;
  BlkDriverNegotiated negotiated_;
  spec::BlkConfig config_{};
  std::uint32_t config_bytes_ = 0;
  std::optional<vhost_user::FrontEnd> front_end_;
  std::optional<SharedMemory> memory_;
  std::optional<vhost_user::FrontEnd::Inflight> inflight_;
  std::vector<std::unique_ptr<BlkDriverQueue>> queues_;
};

}  // namespace ringway
