// A queue pair of a switch's port, on that pair's worker.
//
// send() judges each frame once (SwitchFrame), learns where its source is, and gives it to the ports that it is for: at
// once, by NetReceiver::deliver(), if the pair that is to have it is on this worker, too; else as a parcel to the other
// worker's seat, with a frame up to 256 bytes copied into it and a longer one lent. A batch is one operation on each other
// inbox.
//
// What comes as a parcel is queued for receive(), which delivers it on this thread and gives the parcel back, whatever came
// of it. A pair that isn't enabled gives it back at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/net/net_port.hpp"
#include "backend/net/switch_fabric.hpp"
#include "backend/net/switch_seat.hpp"

namespace ringway {

class SwitchChannel final : public NetChannel {
 public:
  static constexpr std::size_t kQueuedMax = 512;  // parcels for one receiver

  // Errors: those of SwitchFabric::seat_of() and SwitchSeat::join().
  [[nodiscard]] static Result<std::unique_ptr<SwitchChannel>> open(const NetPort::Pair& pair, SwitchFabric& fabric,
                                                                   SwitchFabric::Attached port,
                                                                   std::shared_ptr<const SwitchRules> rules);
  SwitchChannel(const SwitchChannel&) = delete;
  SwitchChannel& operator=(const SwitchChannel&) = delete;
  // REQUIRES: nothing is lent; the sender's ring has stopped.
  ~SwitchChannel() override;

  [[nodiscard]] std::size_t send(std::span<const NetFrame> frames) noexcept override;
  [[nodiscard]] Received receive(std::uint32_t budget) noexcept override;
  [[nodiscard]] bool arm() noexcept override { return queued_count_ != 0 || !seat_.arm(); }
  // The receiver makes up for what its guest can't take.
  void set_guest(std::uint64_t /*guest_offloads*/, std::size_t /*header_bytes*/) noexcept override {}
  void set_enabled(bool enabled) noexcept override;

  // --- for the seat ---
  [[nodiscard]] std::uint16_t port() const noexcept { return port_.port; }
  [[nodiscard]] std::uint32_t generation() const noexcept { return port_.generation; }
  [[nodiscard]] std::uint16_t pair() const noexcept { return pair_; }
  [[nodiscard]] bool enabled() const noexcept { return enabled_; }
  void wake() noexcept { receiver_.wake(); }
  // False: it won't be received, which is counted.
  [[nodiscard]] bool queue_up(SwitchParcel& parcel) noexcept;
  void give_back(std::span<const NetLoan> loans) noexcept {
    loans_ -= loans.size();
    sender_.give_back(loans);
  }

 private:
  // Within one send(): what the frame before was found to need, since frames often come in a row.
  struct Memory {
    SwitchKey source;
    SwitchKey destination;
    std::uint16_t port = SwitchTable::kNowhere;
  };

  SwitchChannel(const NetPort::Pair& pair, SwitchFabric& fabric, SwitchFabric::Attached port,
                std::shared_ptr<const SwitchRules> rules, SwitchSeat& seat);
  void forward(SwitchFrame& frame, Memory& memory, std::uint32_t second) noexcept;
  void flood(SwitchFrame& frame) noexcept;
  // Gives the frame to a port, or says why not.
  [[nodiscard]] SwitchDrop give(SwitchFrame& frame, std::uint16_t port) noexcept;
  [[nodiscard]] SwitchDrop post(SwitchFrame& frame, std::uint16_t seat, std::uint16_t port, std::uint16_t pair,
                                std::uint32_t generation) noexcept;
  // After all receivers of the frame in passing_.
  void seal(std::size_t frame) noexcept;
  // A frame for this pair, on its thread. False: it stays, as the receiver takes nothing more in this turn.
  [[nodiscard]] bool accept(const SwitchFrame& frame, bool may_wait) noexcept;
  void give_up_queued() noexcept;
  void count(SwitchDrop drop) noexcept { counters_.switch_dropped[static_cast<std::size_t>(drop)].add(); }

  SwitchFabric& fabric_;
  SwitchPlace& place_;
  SwitchSeat& seat_;
  const SwitchFabric::Attached port_;
  const std::uint16_t pair_;
  const std::shared_ptr<const SwitchRules> rules_;
  NetReceiver& receiver_;
  NetSender& sender_;
  NetChannelCounters& counters_;
  SwitchPool* pool_ = nullptr;
  std::size_t loans_ = 0;  // under way
  bool enabled_ = false;
  SwitchPassed* passing_ = nullptr;  // the frame at hand, if it goes to other workers
  SwitchLink* queued_ = nullptr;     // the oldest
  SwitchLink* queued_last_ = nullptr;
  std::size_t queued_count_ = 0;
};

}  // namespace ringway
