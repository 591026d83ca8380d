// A receive queue of a network card (virtio 1.3 §5.1.6.3) in the hands of its worker: frames of a port become used buffers.
// Its life is RingQueue's.
//
// The guest's buffers are always there to be popped, so the ring is no work by itself: the queue is active while its channel
// may have frames, and asks for kicks only when it lacks buffers for one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/net/net_port.hpp"
#include "device/net_counters.hpp"
#include "device/net_scratch.hpp"
#include "device/ring_queue.hpp"
#include "request/net_filter.hpp"
#include "request/net_hash.hpp"

namespace ringway {

// What a driver has negotiated and set, as its receive queues need it. Immutable.
struct NetReceiveRules {
  NetReceiveFilter filter;
  bool link = true;        // down: nothing arrives
  bool filters = false;    // something may be refused
  bool mergeable = false;  // MRG_RXBUF
  std::size_t header_bytes = spec::kNetHeaderBytes;
  std::uint64_t guest_offloads = 0;  // spec::kNetGuest…
  std::uint32_t pairs = 1;           // in use, if their rings run
  std::uint32_t hash_types = 0;      // spec::kNetHashType… that are reported, in headers of 20 bytes
  NetHashKey hash_key = {};          // for them

  [[nodiscard]] bool accept(NetReceiveFilter::Head head) const noexcept { return link && filter.accepts(head); }
};

class NetReceiveQueue final : public RingQueue, public NetReceiver {
 public:
  NetReceiveQueue(Surroundings surroundings, std::uint32_t pair) : RingQueue(std::move(surroundings)), pair_(pair) {
    complete_in_order();
  }
  ~NetReceiveQueue() override = default;

  // `channel` is open as long as the ring is not stopped, and `scratch` is the worker's.
  [[nodiscard]] Result<> start(WorkerContext& context, NetChannel& channel, NetScratch& scratch, vhost_user::RingStart start,
                               std::shared_ptr<const RegionMap> map, std::shared_ptr<DirtyLog> log);
  // Holds for frames that are delivered from then on. Before the first start.
  void set_rules(std::shared_ptr<const NetReceiveRules> rules) {
    rules_ = std::move(rules);
    on_state();
  }
  // The channel is about to be closed. REQUIRES: the ring is stopped.
  void forget_channel() noexcept { channel_ = nullptr; }

  // Any thread.
  [[nodiscard]] const NetReceiveCounters& counters() const { return counters_; }

  // --- Queue ---
  Pumped pump(WorkerContext& context) noexcept override;
  [[nodiscard]] bool arm() noexcept override;

  // --- NetReceiver ---
  using NetReceiver::deliver;
  [[nodiscard]] std::size_t deliver(std::span<const NetFrame> frames) noexcept override;
  void count_overruns(std::uint64_t frames) noexcept override { counters_.dropped_no_buffers.add(frames); }
  [[nodiscard]] std::size_t lend(std::span<NetLanding> landings, std::uint32_t bytes) noexcept override;
  void land(std::span<const std::uint32_t> lengths) noexcept override;
  [[nodiscard]] bool filters() const noexcept override { return rules_->filters; }
  [[nodiscard]] bool wants(std::span<const std::byte, NetReceiveFilter::kHeadBytes> head) noexcept override;
  [[nodiscard]] bool spent() const noexcept override { return context().now == turn_ && budget_ <= 0; }
  void wake() noexcept override;

 private:
  // Not while there are only as many buffers as were too few.
  [[nodiscard]] bool awaits_kick() noexcept override { return has_more_ || (starved_ && arm_for(shortage_)); }
  void on_state() noexcept override;
  [[gnu::cold, gnu::noinline]] void note_received(std::uint64_t began) noexcept;

  enum class Taken : std::uint8_t {
    enough,
    no_buffers,  // nothing was taken; `shortage_` says how many there were. Or the budget is used up
    too_long,    // nothing was taken: it would not fit if all buffers were there
  };
  // The budget is for a turn, whether frames are asked for or come from other queues' pumping.
  void enter_turn() noexcept {
    if (RW_UNLIKELY(context().now != turn_)) {
      turn_ = context().now;
      budget_ = std::min(budget_, 0) + limits::kNetReceiveBudget;
    }
  }
  // The next chain that is a receive buffer, behind those in scratch. False: there is none now, or the budget is used up.
  [[nodiscard]] bool take_buffer() noexcept;
  // Buffers for `bytes` bytes, header included, in scratch: buffer_count_ of them. One may be there already.
  [[nodiscard]] Taken take_buffers(std::uint32_t bytes) noexcept;
  [[nodiscard]] Taken shortage() noexcept;
  // Gives back to the ring all but the first `kept` of those.
  void untake(std::size_t kept) noexcept;
  void forget_buffers() noexcept;
  // All of scratch's segments from buffer `first` on.
  [[nodiscard]] std::span<iovec> pieces_from(std::size_t first) noexcept;
  // The first `count` buffers of scratch from `first` on hold a frame of `bytes` bytes, header included.
  void use_buffers(std::size_t first, std::size_t count, std::uint32_t bytes) noexcept;

  [[nodiscard]] bool can_take(const spec::NetHeader& header) const noexcept;
  [[nodiscard]] bool completes_checksum(const spec::NetHeader& header) const noexcept;
  [[nodiscard]] static std::array<std::byte, NetReceiveFilter::kHeadBytes> head_of(const NetFrame& frame) noexcept;
  [[nodiscard]] bool is_plain(const NetFrame& frame, std::uint32_t header_bytes) const noexcept;
  [[nodiscard]] std::size_t put_plain(std::span<const NetFrame> frames) noexcept;
  // The same for drivers to whom hashes are reported, apart from it so that it needn't know of them.
  [[nodiscard]] std::size_t put_plain_hashed(std::span<const NetFrame> frames) noexcept;
  [[nodiscard]] std::size_t put_plain_with(std::span<const NetFrame> frames, std::uint32_t header_bytes) noexcept;
  void write_hashes(std::span<const ChainBuffer> buffers, std::span<const NetFrame> frames) const noexcept;
  // Any frame.
  [[nodiscard]] Delivery put(const NetFrame& frame) noexcept;
  [[nodiscard]] Delivery put_pieces(const spec::NetHeader& header, std::span<const iovec> data, std::uint32_t bytes,
                                    bool completes) noexcept;
  [[nodiscard]] Delivery put_segments(const NetFrame& frame) noexcept;
  // What is reported of a frame; nothing unless the driver asked for it.
  [[nodiscard]] NetHash hash_of(const NetCursor& frame, std::uint32_t bytes) const noexcept {
    return RW_LIKELY(rules_->hash_types == 0) ? NetHash{} : compute_hash(frame, bytes);
  }
  [[nodiscard]] NetHash compute_hash(const NetCursor& frame, std::uint32_t bytes) const noexcept;
  // The header as it stands before a frame in so many buffers.
  [[nodiscard]] static spec::NetHeader header_of(const spec::NetHeader& header, std::size_t buffers,
                                                 const NetHash& hash) noexcept {
    spec::NetHeader ours = header;
    // Valid also without MRG_RXBUF, where it is always 1 (§5.1.6.4.1).
    ours.num_buffers = static_cast<std::uint16_t>(buffers);
    ours.hash_value = hash.value;
    ours.hash_report = hash.report;
    return ours;
  }
  void write_header(std::span<const iovec> to, const spec::NetHeader& header, std::size_t buffers,
                    const NetHash& hash) noexcept;
  void count_received(std::uint32_t frame_bytes, std::uint8_t gso_type) noexcept;

  const std::uint32_t pair_;
  std::shared_ptr<const NetReceiveRules> rules_;
  NetChannel* channel_ = nullptr;
  NetScratch* scratch_ = nullptr;
  std::size_t buffer_count_ = 0;             // in scratch, of the frame or the landings at hand
  bool receives_ = false;                    // frames are let in: the ring can be popped, and the driver uses the pair
  std::int32_t budget_ = 0;                  // left of this turn; negative: overdrawn, and owed to the neighbours
  std::uint32_t buffer_bytes_ = UINT32_MAX;  // of the last buffer that was seen: the next ones will be like it
  Instant turn_ = Instant::never();
  bool has_more_ = false;  // the channel may have frames beyond the last pump()'s budget
  bool starved_ = false;   // the channel has a frame, and the guest had no buffers for it
  ChainCount shortage_;    // it had only these
  std::uint32_t fragment_id_ = 0;
  NetReceiveCounters counters_;
};

}  // namespace ringway
