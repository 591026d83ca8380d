// What one sender can have under way to other workers: frames that stay until the last of their receivers is done with them,
// and parcels, one for each receiver. All of it is there from the start; when it is used up frames are dropped.
//
// Owner: the sender's worker. Others only read frames and parcels, between SwitchInbox's put() and put().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "backend/net/net_port.hpp"
#include "backend/net/switch_frame.hpp"
#include "backend/net/switch_inbox.hpp"
#include "base/limits.hpp"

namespace ringway {

class SwitchChannel;
class SwitchPool;
class SwitchSeat;

inline constexpr std::size_t kSwitchSeatsMax = limits::kWorkersMax;

struct SwitchPassed {
  explicit SwitchPassed(std::span<iovec> pieces) : frame(pieces) {}

  SwitchFrame frame;
  NetLoan loan{};
  bool lent = false;          // there is a loan: pieces of the frame lie in the sender's memory
  bool wide = false;          // has room for the longest list
  std::uint16_t parcels = 0;  // under way. The owner's
};

struct SwitchParcel final : SwitchLink {
  SwitchPassed* passed = nullptr;
  SwitchPool* home = nullptr;
  std::uint16_t seat = 0;  // where it is sent to, and there to
  std::uint16_t port = 0;
  std::uint16_t pair = 0;
  std::uint32_t generation = 0;  // of that port
};

class SwitchPool {
 public:
  static constexpr std::size_t kFrames = 256;    // as many as a usual ring has
  static constexpr std::size_t kPieces = 24;     // of each: Linux has 19 at most, and one is the copied beginning
  static constexpr std::size_t kWideFrames = 4;  // beside those, for lists of any length
  static constexpr std::size_t kParcels = 512;   // a broadcast takes many
  static constexpr std::uint16_t kCredit = 192;  // of them to one worker, so that a slow one leaves some to the others

  explicit SwitchPool(SwitchSeat& seat);
  SwitchPool(const SwitchPool&) = delete;
  SwitchPool& operator=(const SwitchPool&) = delete;
  ~SwitchPool() = default;

  [[nodiscard]] SwitchSeat& seat() const noexcept { return seat_; }
  SwitchChannel* channel = nullptr;  // whose it is; a pool outlives its channel while parcels are under way

  // Null if there is none.
  [[nodiscard]] SwitchPassed* take_frame(std::size_t pieces) noexcept;
  void put_frame(SwitchPassed& passed) noexcept { (passed.wide ? wide_ : frames_).push_back(&passed); }
  [[nodiscard]] bool has_credit(std::uint16_t seat) const noexcept { return under_way_[seat] < kCredit; }
  [[nodiscard]] SwitchParcel* take_parcel(std::uint16_t seat) noexcept;
  void put_parcel(SwitchParcel& parcel) noexcept {
    --under_way_[parcel.seat];
    parcels_.push_back(&parcel);
  }
  [[nodiscard]] bool all_home() const noexcept { return parcels_.size() == kParcels; }

 private:
  SwitchSeat& seat_;
  std::unique_ptr<iovec[]> pieces_;
  std::deque<SwitchPassed> all_frames_;
  std::unique_ptr<SwitchParcel[]> all_parcels_;
  // Those at home, the one that came last on top: it is still in the cache.
  std::vector<SwitchPassed*> frames_;
  std::vector<SwitchPassed*> wide_;
  std::vector<SwitchParcel*> parcels_;
  std::array<std::uint16_t, kSwitchSeatsMax> under_way_{};  // by seat
};

}  // namespace ringway
