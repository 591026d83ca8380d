#include "backend/net/switch_fabric.hpp"

#include <algorithm>
#include <utility>

#include "backend/net/switch_seat.hpp"

namespace ringway {

void SwitchPlace::take(const SwitchRules& rules, std::uint32_t generation) noexcept {
  isolated_.store(rules.isolated, std::memory_order_relaxed);
  for (std::size_t i = 0; i < vlans_.size(); ++i) {
    vlans_[i].store(rules.vlans.members[i], std::memory_order_relaxed);
  }
  for (std::atomic<std::uint32_t>& entry : steering_) {
    entry.store(0, std::memory_order_relaxed);
  }
  told_.store(nullptr, std::memory_order_relaxed);
  generation_.store(generation, std::memory_order_release);  // pairs with generation()
}

void SwitchPlace::steer_by(const std::optional<NetSteering>& by) {
  if (!by) {
    told_.store(nullptr, std::memory_order_relaxed);  // what was told stays where it is, for who has just looked
    return;
  }
  if (own_told_ == nullptr) {
    own_told_ = std::make_unique<SwitchSteering>();
  }
  own_told_->set(*by);
  told_.store(own_told_.get(), std::memory_order_release);  // pairs with choose()
}

std::uint16_t SwitchPlace::choose(SwitchFrame& frame) const noexcept {
  if (const SwitchSteering* const told = told_.load(std::memory_order_acquire); told != nullptr) {  // pairs with steer_by()
    const std::uint16_t pair = told->choose(frame);
    return is_enabled(pair) ? pair : kNoPair;
  }
  // acquire: pairs with set_enabled().
  std::uint64_t low = enabled_[0].load(std::memory_order_acquire);
  std::uint64_t high = enabled_[1].load(std::memory_order_acquire);
  const auto few = static_cast<unsigned>(std::popcount(low));
  const unsigned all = few + static_cast<unsigned>(std::popcount(high));
  if (all == 0) {
    return kNoPair;
  }
  if (all == 1) {
    return static_cast<std::uint16_t>(low != 0 ? std::countr_zero(low) : 64 + std::countr_zero(high));
  }
  const std::uint32_t flow = frame.flow();
  const std::uint32_t entry = steering_[flow % kSteered].load(std::memory_order_relaxed);
  const auto steered = static_cast<std::uint16_t>((entry & 0xffffU) - 1U);
  if (entry != 0 && entry == entry_of(flow, steered) &&
      ((steered < 64 ? low >> steered : high >> (steered - 64U)) & 1U) != 0) {
    return steered;
  }
  unsigned wanted = flow % all;
  unsigned base = 0;
  std::uint64_t word = low;
  if (wanted >= few) {
    wanted -= few;
    base = 64;
    word = high;
  }
  for (; wanted != 0; --wanted) {
    word &= word - 1;
  }
  return static_cast<std::uint16_t>(base + static_cast<unsigned>(std::countr_zero(word)));
}

SwitchFabric::SwitchFabric(std::string switch_name, const SwitchTable::Options& addresses)
    : name(std::move(switch_name)), table(addresses) {}

SwitchFabric::~SwitchFabric() = default;

Result<SwitchFabric::Attached> SwitchFabric::attach(const SwitchRules& rules) {
  for (std::size_t i = 0; i < kSwitchPortsMax; ++i) {
    std::atomic<std::uint64_t>& word = attached_[i / 64];
    const std::uint64_t bit = std::uint64_t{1} << (i % 64);
    if ((word.load(std::memory_order_relaxed) & bit) != 0) {
      continue;
    }
    if (places_[i] == nullptr) {
      places_[i] = std::make_unique<SwitchPlace>();
    }
    last_generation_ = last_generation_ == UINT32_MAX ? 1 : last_generation_ + 1;
    places_[i]->take(rules, last_generation_);
    word.fetch_or(bit, std::memory_order_release);  // pairs with for_each_port()
    return Attached{.port = static_cast<std::uint16_t>(i), .generation = last_generation_};
  }
  return fail("switch '" + name + "' has " + std::to_string(kSwitchPortsMax) + " ports, and no more; detach one first");
}

void SwitchFabric::detach(std::uint16_t port) noexcept {
  attached_[port / 64].fetch_and(~(std::uint64_t{1} << (port % 64)), std::memory_order_relaxed);
  places_[port]->leave();
  table.forget(port);
}

Result<SwitchSeat*> SwitchFabric::seat_of(Loop& loop) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(own_seats_, [&](const auto& seat) { return &seat->loop() == &loop; });
  if (found != own_seats_.end()) {
    return found->get();
  }
  if (own_seats_.size() == kSwitchSeatsMax) {
    return fail("switch '" + name + "' is on " + std::to_string(kSwitchSeatsMax) + " workers already, the most that it can");
  }
  const auto index = static_cast<std::uint16_t>(own_seats_.size());
  RW_TRY_ASSIGN(std::unique_ptr<SwitchSeat> seat, SwitchSeat::create(*this, index, loop));
  own_seats_.push_back(std::move(seat));
  seats_[index].store(own_seats_.back().get(), std::memory_order_release);  // pairs with seat()
  return own_seats_.back().get();
}

void SwitchFabric::tell(Instant now) noexcept {
  const auto second = static_cast<std::uint32_t>(now.ns / Duration::seconds(1).ns);
  if (static_cast<std::int32_t>(second - second_.load(std::memory_order_relaxed)) > 0) {
    second_.store(second, std::memory_order_relaxed);
  }
}

}  // namespace ringway
