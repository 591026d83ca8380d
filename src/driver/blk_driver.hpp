// A virtio-blk driver in user space over a vhost-user front-end (virtio 1.3 §5.2, vhost-user.rst): what a guest and its VMM
// do together, against any back-end. For the benches, `ringway check` and tests. Threads: see driver_session.hpp.
//
// Hot path (submit, publish_and_kick, reap): no heap, no clock, no lock; a system call only where the back-end asked for a
// kick. A request costs the driver one private cache line that it shares with the back-end: header and status lie together,
// as they do in Linux, so that a request moves one line there and back besides the ring's own and the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "driver/driver_session.hpp"
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

class BlkDriverQueue final : public DriverQueue {
 public:
  // Queues a request; the device sees it at publish_and_kick(). False if the ring or the slots are full.
  [[nodiscard]] bool submit(const BlkDriverRequest& request) noexcept;
  // Queues a chain as it is, for those who frame requests their own way. Its completion comes with status kStatusUntouched:
  // the caller knows where the status is.
  [[nodiscard]] bool submit_chain(std::span<const DriverBuffer> chain, std::uint64_t token) noexcept;
  // Takes what is complete, up to completions.size(); returns how many.
  [[nodiscard]] std::size_t reap(std::span<BlkCompletion> completions) noexcept;
  [[nodiscard]] bool has_completion() const noexcept { return ring_->has_used(); }

  // Data buffer `index` of requests_per_queue: buffer_bytes, page-aligned where buffer_bytes is a multiple of the page.
  [[nodiscard]] SharedBlock buffer(std::uint32_t index) const noexcept { return buffers_[index]; }
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return slot_count_ - free_count_; }

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
  void forget_in_flight() noexcept override;

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
};

class BlkDriver final : public DriverSession {
 public:
  // Connects, negotiates, lays out the memory, and (options.start) starts the queues. Errors say what the back-end lacks.
  static Result<std::unique_ptr<BlkDriver>> create(const BlkDriverOptions& options);

  [[nodiscard]] const BlkDriverOptions& options() const { return options_; }
  [[nodiscard]] const spec::BlkConfig& config() const { return config_; }
  // Bytes of the configuration that the back-end gave; those beyond read as zero in config().
  [[nodiscard]] std::uint32_t config_bytes() const { return config_bytes_; }
  [[nodiscard]] Result<> read_config() override;
  [[nodiscard]] std::uint64_t capacity_sectors() const { return config_.capacity; }
  [[nodiscard]] std::uint32_t block_bytes() const;  // blk_size where offered, else 512
  [[nodiscard]] bool read_only() const { return negotiated().has(spec::kBlkRo); }

  [[nodiscard]] BlkDriverQueue& queue(std::uint32_t index) { return static_cast<BlkDriverQueue&>(queue_at(index)); }

 private:
  explicit BlkDriver(const BlkDriverOptions& options);

  [[nodiscard]] Result<std::uint64_t> choose_features() override;
  [[nodiscard]] Result<> lay_out() override;
  [[nodiscard]] Result<> lay_out_queue(std::uint32_t index);

  BlkDriverOptions options_;
  spec::BlkConfig config_{};
  std::uint32_t config_bytes_ = 0;
};

}  // namespace ringway
