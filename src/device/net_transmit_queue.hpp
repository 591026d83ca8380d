// A transmit queue of a network card (virtio 1.3 §5.1.6.2) in the hands of its worker: what the driver makes available goes
// to the port in batches. Its life is RingQueue's.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/net/net_port.hpp"
#include "device/net_counters.hpp"
#include "device/net_scratch.hpp"
#include "device/ring_queue.hpp"
#include "request/net_frame.hpp"

namespace ringway {

// What was negotiated, as a transmit queue needs it.
struct NetTransmitRules {
  NetFrameLimits limits;
  bool link = true;  // down: what is sent goes nowhere
  std::size_t header_bytes = spec::kNetHeaderBytes;
};

class NetTransmitQueue final : public RingQueue, public NetSender {
 public:
  // Whether its port may borrow frames.
  explicit NetTransmitQueue(Surroundings surroundings, bool borrows = false)
      : RingQueue(std::move(surroundings)), borrows_(borrows) {
    serve_when_disabled();
    if (!borrows) {
      complete_in_order();
    }
  }
  ~NetTransmitQueue() override = default;

  // `channel` is open as long as the ring is not stopped, and `scratch` is the worker's.
  [[nodiscard]] Result<> start(WorkerContext& context, NetChannel& channel, NetScratch& scratch, vhost_user::RingStart start,
                               std::shared_ptr<const RegionMap> map, std::shared_ptr<DirtyLog> log);
  void set_rules(const NetTransmitRules& rules) { rules_ = rules; }

  // Any thread.
  [[nodiscard]] const NetTransmitCounters& counters() const { return counters_; }

  // --- Queue ---
  Pumped pump(WorkerContext& context) noexcept override;

  // --- NetSender ---
  void wake() noexcept override;
  [[nodiscard]] NetLoan lend(std::size_t frame) noexcept override;
  void give_back(std::span<const NetLoan> loans) noexcept override;

 private:
  [[nodiscard]] bool awaits_kick() noexcept override { return !blocked_; }
  enum class Gathered : std::uint8_t { full, empty, ring_fault };
  // Pops and parses into scratch: a batch, or what there is, or as much as the budget allows.
  [[nodiscard]] Gathered gather(Chain& chain) noexcept;
  // Gives what was gathered to the port. False if that took less than all; what it left was unpopped.
  [[nodiscard]] bool send() noexcept;
  [[gnu::cold, gnu::noinline]] void note_gathered(WorkerContext& context, TracedRequest& followed,
                                                  std::uint64_t began) noexcept;
  // Returns to the driver what was gathered, but for what is lent, up to the first frame that is not among the `sent` first.
  [[nodiscard]] bool settle_sent(std::size_t sent, bool discarded) noexcept;

  const bool borrows_;
  NetTransmitRules rules_;
  NetChannel* channel_ = nullptr;
  NetScratch* scratch_ = nullptr;
  std::size_t chain_count_ = 0;  // in scratch
  std::size_t frame_count_ = 0;
  std::uint64_t frame_bytes_ = 0;  // of those
  std::uint64_t gso_count_ = 0;    // among them
  std::uint32_t lent_ = 0;         // bit n: frame n was lent in the send() under way, or just over
  static_assert(limits::kNetBatch <= 32);
  std::int32_t budget_ = 0;  // left over by the last pump(); negative: overdrawn, and owed to the neighbours
  bool blocked_ = false;     // the port is full, and will wake us
  NetTransmitCounters counters_;
};

}  // namespace ringway
