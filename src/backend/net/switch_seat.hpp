// What a switch has on one worker: the inbox by which other workers reach its channels there, the bell that wakes it, and
// memory for the frame at hand.
//
// The inbox is one for all channels of the worker, so a batch for several of them wakes it once, and an idle channel costs
// no look. It is looked at by every channel whose receive queue is active (SwitchChannel::receive()). Before the last of
// these queues leaves the worker's turns it arms the inbox (NetChannel::arm()); from then on whoever puts something urgent
// writes to an eventfd that the worker's loop watches, as it watches kicks: one system call for the sender, none for the
// worker, whose sleep ends with it. A mailbox would take a lock and memory for each message, and Loop::wake() doesn't say
// what for.
//
// A seat lives as long as its switch, so one may put something at any time; it is closed while no channel is open there, and
// then takes only what its own channels have lent. Owner: the worker, but for the functions that say otherwise.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/net/switch_fabric.hpp"
#include "backend/net/switch_frame.hpp"
#include "backend/net/switch_inbox.hpp"
#include "backend/net/switch_pool.hpp"
#include "base/unique_fd.hpp"
#include "loop/loop.hpp"
#include "metrics/counter.hpp"

namespace ringway {

class SwitchSeat final : private FdHandler, private TimerHandler {
 public:
  // Errors: no descriptor is left.
  [[nodiscard]] static Result<std::unique_ptr<SwitchSeat>> create(SwitchFabric& fabric, std::uint16_t index, Loop& loop);
  SwitchSeat(const SwitchSeat&) = delete;
  SwitchSeat& operator=(const SwitchSeat&) = delete;
  ~SwitchSeat() override = default;

  // --- any thread ---
  [[nodiscard]] const Loop& loop() const noexcept { return loop_; }
  [[nodiscard]] std::uint16_t index() const noexcept { return index_; }
  // Passes parcels on. Returns whether they were taken; `rings` is set if the worker had to be woken.
  [[nodiscard]] bool put(const SwitchLinks& parcels, bool& rings) noexcept;
  // Gives back parcels that this seat's channels have sent. Only what was lent is worth waking somebody for.
  void give_back(const SwitchLinks& parcels, bool lent) noexcept;
  [[nodiscard]] std::uint64_t strays() const noexcept { return strays_.get(); }  // frames for a channel that had gone

  // --- the worker ---
  // Opens the seat with its first channel. Errors: the loop can't watch the bell.
  [[nodiscard]] Result<> join(SwitchChannel& channel);
  void part(SwitchChannel& channel) noexcept;
  [[nodiscard]] SwitchPool& pool_for(SwitchChannel& channel);
  [[nodiscard]] SwitchChannel* channel(std::uint16_t port, std::uint16_t pair) const noexcept {
    return rows_[port] == nullptr ? nullptr : (*rows_[port])[pair];
  }

  // Hands out what has come, and wakes the queues that it is for.
  void collect() noexcept {
    if (SwitchLink* parcels = inbox_.take(); RW_UNLIKELY(parcels != nullptr)) {
      sort(parcels);
    }
  }
  // False: there is something to collect.
  [[nodiscard]] bool arm() noexcept { return inbox_.arm(); }
  // Has the inbox looked at though perhaps no queue will: armed, or by a ring of our own.
  void rest() noexcept {
    if (!inbox_.arm()) {
      ring();
    }
  }
  // The parcel is at home again. With the last one of a frame that was lent its sender is told, at the latest in settle().
  void take_back(SwitchParcel& parcel) noexcept;
  void settle() noexcept;

  // What a send() puts together. There is one at a time.
  [[nodiscard]] SwitchFrame& entering() noexcept { return entering_; }
  [[nodiscard]] std::span<iovec> storage() noexcept { return {pieces_.get() + kFramePieces, kFramePieces + 1}; }
  void add_outgoing(SwitchParcel& parcel) noexcept;
  // Returns how many workers had to be woken.
  [[nodiscard]] std::uint32_t dispatch() noexcept;

 private:
  static constexpr std::size_t kFramePieces = limits::kNetTransmitSegments + 1;
  static constexpr std::size_t kLoans = 32;  // given back at a time
  using Row = std::array<SwitchChannel*, kSwitchPairsMax>;

  SwitchSeat(SwitchFabric& fabric, std::uint16_t index, Loop& loop, UniqueFd bell);
  void on_ready(std::uint32_t events) noexcept override;
  void on_timer(Instant now) noexcept override;
  void ring() const noexcept;
  void sort(SwitchLink* parcels) noexcept;

  SwitchFabric& fabric_;
  const std::uint16_t index_;
  Loop& loop_;  // only while a channel is open
  const UniqueFd bell_;
  WatchId watch_;
  std::vector<SwitchChannel*> channels_;
  std::array<std::unique_ptr<Row>, kSwitchPortsMax> rows_;  // by port
  std::vector<std::unique_ptr<SwitchPool>> pools_;          // those whose channel has gone serve the next one
  Counter strays_;

  std::unique_ptr<iovec[]> pieces_;  // of entering_, and storage()
  SwitchFrame entering_;
  std::array<SwitchLinks, kSwitchSeatsMax> outgoing_{};   // by seat
  std::array<std::uint16_t, kSwitchSeatsMax> touched_{};  // those that aren't empty
  std::size_t touched_count_ = 0;
  SwitchChannel* lender_ = nullptr;  // of loans_
  std::array<NetLoan, kLoans> loans_{};
  std::size_t loan_count_ = 0;

  SwitchInbox inbox_;
};

// Gives parcels back to whoever sent them, those of one seat at a time.
class SwitchHomeward {
 public:
  SwitchHomeward() = default;
  SwitchHomeward(const SwitchHomeward&) = delete;
  SwitchHomeward& operator=(const SwitchHomeward&) = delete;
  ~SwitchHomeward() { flush(); }

  void add(SwitchParcel& parcel) noexcept {
    SwitchSeat& home = parcel.home->seat();
    if (&home != home_) {
      flush();
      home_ = &home;
    }
    lent_ = lent_ || parcel.passed->lent;
    parcels_.add(parcel);
  }
  void flush() noexcept {
    if (!parcels_.empty()) {
      home_->give_back(parcels_, lent_);
      parcels_ = {};
      lent_ = false;
    }
  }

 private:
  SwitchSeat* home_ = nullptr;
  SwitchLinks parcels_;
  bool lent_ = false;
};

}  // namespace ringway
