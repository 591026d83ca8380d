#include "backend/net/switch_pool.hpp"

namespace ringway {

SwitchPool::SwitchPool(SwitchSeat& seat)
    : seat_(seat),
      pieces_(std::make_unique_for_overwrite<iovec[]>(kFrames * kPieces + kWideFrames * (limits::kNetTransmitSegments + 1))),
      all_parcels_(std::make_unique<SwitchParcel[]>(kParcels)) {
  frames_.reserve(kFrames);
  wide_.reserve(kWideFrames);
  parcels_.reserve(kParcels);
  iovec* pieces = pieces_.get();
  for (std::size_t i = 0; i < kFrames + kWideFrames; ++i) {
    const bool wide = i >= kFrames;
    const std::size_t room = wide ? limits::kNetTransmitSegments + 1 : kPieces;
    SwitchPassed& passed = all_frames_.emplace_back(std::span(pieces, room));
    passed.wide = wide;
    put_frame(passed);
    pieces += room;
  }
  for (std::size_t i = 0; i < kParcels; ++i) {
    all_parcels_[i].home = this;
    parcels_.push_back(&all_parcels_[i]);
  }
}

SwitchPassed* SwitchPool::take_frame(std::size_t pieces) noexcept {
  std::vector<SwitchPassed*>& from = pieces > kPieces ? wide_ : frames_;
  if (from.empty()) {
    return nullptr;
  }
  SwitchPassed* const passed = from.back();
  from.pop_back();
  passed->lent = false;
  passed->parcels = 0;
  return passed;
}

SwitchParcel* SwitchPool::take_parcel(std::uint16_t seat) noexcept {
  if (parcels_.empty()) {
    return nullptr;
  }
  SwitchParcel* const parcel = parcels_.back();
  parcels_.pop_back();
  parcel->seat = seat;
  ++under_way_[seat];
  return parcel;
}

}  // namespace ringway
