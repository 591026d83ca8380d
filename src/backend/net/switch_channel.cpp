#include "backend/net/switch_channel.hpp"

#include <utility>

#include "base/check.hpp"

namespace ringway {

Result<std::unique_ptr<SwitchChannel>> SwitchChannel::open(const NetPort::Pair& pair, SwitchFabric& fabric,
                                                           SwitchFabric::Attached port,
                                                           std::shared_ptr<const SwitchRules> rules) {
  RW_TRY_ASSIGN(SwitchSeat* const seat, fabric.seat_of(pair.loop));
  auto channel = std::unique_ptr<SwitchChannel>(new SwitchChannel(pair, fabric, port, std::move(rules), *seat));
  RW_TRY(seat->join(*channel));
  channel->pool_ = &seat->pool_for(*channel);
  channel->place_.set_seat(pair.index, seat->index());
  return channel;
}

SwitchChannel::SwitchChannel(const NetPort::Pair& pair, SwitchFabric& fabric, SwitchFabric::Attached port,
                             std::shared_ptr<const SwitchRules> rules, SwitchSeat& seat)
    : fabric_(fabric),
      place_(fabric.place(port.port)),
      seat_(seat),
      port_(port),
      pair_(static_cast<std::uint16_t>(pair.index)),
      rules_(std::move(rules)),
      receiver_(pair.receiver),
      sender_(pair.sender),
      counters_(pair.counters) {}

SwitchChannel::~SwitchChannel() {
  if (pool_ == nullptr) {
    return;  // it has never joined
  }
  RW_CHECK(loans_ == 0);
  set_enabled(false);
  pool_->channel = nullptr;
  seat_.part(*this);
}

void SwitchChannel::set_enabled(bool enabled) noexcept {
  if (std::exchange(enabled_, enabled) == enabled) {
    return;
  }
  place_.set_enabled(pair_, enabled);
  if (!enabled) {
    give_up_queued();
    // This pair's queue may have been the one that looked.
    seat_.rest();
  }
}

// ---------------------------------------------------------------- from the guest

std::size_t SwitchChannel::send(std::span<const NetFrame> frames) noexcept {
  SwitchFrame& frame = seat_.entering();
  Memory memory;
  const std::uint32_t second = fabric_.second();
  bool lends = false;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const SwitchDrop drop = frame.enter(frames[i], *rules_);
    if (RW_UNLIKELY(drop != SwitchDrop::none)) {
      count(drop);
      continue;
    }
    forward(frame, memory, second);
    if (passing_ != nullptr) {
      seal(i);
      lends = true;
    }
  }
  if (lends) {
    counters_.rings.add(seat_.dispatch());
    if (enabled_) {
      receiver_.wake();  // to look for what comes back
    }
  }
  return frames.size();
}

void SwitchChannel::forward(SwitchFrame& frame, Memory& memory, std::uint32_t second) noexcept {
  const SwitchKey source = SwitchKey::of(frame.vlan(), frame.source());
  if (source != memory.source) {
    static_cast<void>(fabric_.table.learn(source, port_.port, second));
    memory.source = source;
  }
  if (place_.learns_flows()) {
    place_.steer(frame.flow(), pair_);
  }
  const SwitchKey destination = SwitchKey::of(frame.vlan(), frame.destination());
  if (destination != memory.destination) {
    const bool group = (frame.destination() & 1U) != 0;
    memory.port = group ? SwitchTable::kNowhere : fabric_.table.find(destination, second);
    memory.destination = destination;
  }
  if (RW_UNLIKELY(memory.port == SwitchTable::kNowhere)) {
    flood(frame);
  } else if (const SwitchDrop drop = give(frame, memory.port); RW_UNLIKELY(drop != SwitchDrop::none)) {
    count(drop);
  }
}

void SwitchChannel::flood(SwitchFrame& frame) noexcept {
  counters_.flooded.add();
  fabric_.for_each_port([&](std::uint16_t port) {
    switch (const SwitchDrop drop = give(frame, port)) {
      case SwitchDrop::pool_empty:
      case SwitchDrop::credit_spent:
        count(drop);
        break;
      default:  // it has it, or it isn't among those who should
        break;
    }
  });
}

SwitchDrop SwitchChannel::give(SwitchFrame& frame, std::uint16_t port) noexcept {
  SwitchPlace& to = fabric_.place(port);
  const std::uint32_t generation = to.generation();
  if (port == port_.port || generation == 0) {
    return SwitchDrop::unreachable;
  }
  if (!to.has(frame.vlan())) {
    return SwitchDrop::vlan;
  }
  if (rules_->isolated && to.isolated()) {
    return SwitchDrop::isolated;
  }
  const std::uint16_t pair = to.choose(frame);
  if (RW_UNLIKELY(pair == SwitchPlace::kNoPair)) {
    return SwitchDrop::unreachable;
  }
  const std::uint16_t seat = to.seat(pair);
  if (seat != seat_.index()) {
    return post(frame, seat, port, pair, generation);
  }
  SwitchChannel* const channel = seat_.channel(port, pair);
  if (RW_UNLIKELY(channel == nullptr)) {
    return SwitchDrop::unreachable;
  }
  static_cast<void>(channel->accept(frame, false));
  return SwitchDrop::none;
}

SwitchDrop SwitchChannel::post(SwitchFrame& frame, std::uint16_t seat, std::uint16_t port, std::uint16_t pair,
                               std::uint32_t generation) noexcept {
  if (RW_UNLIKELY(!pool_->has_credit(seat))) {
    return SwitchDrop::credit_spent;
  }
  if (passing_ == nullptr) {
    passing_ = pool_->take_frame(frame.pieces());
    if (RW_UNLIKELY(passing_ == nullptr)) {
      return SwitchDrop::pool_empty;
    }
    passing_->frame.assign(frame);
  }
  SwitchParcel* const parcel = pool_->take_parcel(seat);
  if (RW_UNLIKELY(parcel == nullptr)) {
    return SwitchDrop::pool_empty;
  }
  parcel->passed = passing_;
  parcel->port = port;
  parcel->pair = pair;
  parcel->generation = generation;
  ++passing_->parcels;
  seat_.add_outgoing(*parcel);
  return SwitchDrop::none;
}

void SwitchChannel::seal(std::size_t frame) noexcept {
  SwitchPassed& passed = *std::exchange(passing_, nullptr);
  if (passed.parcels == 0) {
    pool_->put_frame(passed);
  } else if (passed.frame.is_whole()) {
    counters_.copied.add();
  } else {
    passed.loan = sender_.lend(frame);
    ++loans_;
    passed.lent = true;
    counters_.lent.add();
  }
}

// ---------------------------------------------------------------- to the guest

bool SwitchChannel::accept(const SwitchFrame& frame, bool may_wait) noexcept {
  if (const SwitchDrop drop = frame.may_leave(*rules_); RW_UNLIKELY(drop != SwitchDrop::none)) {
    count(drop);
    return true;
  }
  if (RW_UNLIKELY(receiver_.deliver(frame.leave(*rules_, seat_.storage())) == NetReceiver::Delivery::no_buffers)) {
    if (may_wait && receiver_.spent()) {
      return false;
    }
    receiver_.count_overruns(1);
  }
  return true;
}

bool SwitchChannel::queue_up(SwitchParcel& parcel) noexcept {
  if (!enabled_ || queued_count_ == kQueuedMax) {
    count(enabled_ ? SwitchDrop::inbox_full : SwitchDrop::unreachable);
    return false;
  }
  parcel.next = nullptr;
  (queued_ == nullptr ? queued_ : queued_last_->next) = &parcel;
  queued_last_ = &parcel;
  ++queued_count_;
  receiver_.wake();
  return true;
}

NetChannel::Received SwitchChannel::receive(std::uint32_t budget) noexcept {
  seat_.collect();
  SwitchHomeward homeward;
  for (; queued_ != nullptr; --budget) {
    if (budget == 0) {
      return Received::budget;
    }
    auto& parcel = static_cast<SwitchParcel&>(*queued_);
    queued_ = queued_->next;
    --queued_count_;
    if (RW_UNLIKELY(!accept(parcel.passed->frame, true))) {
      parcel.next = queued_;
      queued_last_ = queued_ == nullptr ? &parcel : queued_last_;
      queued_ = &parcel;
      ++queued_count_;
      return Received::budget;
    }
    homeward.add(parcel);
  }
  return Received::all;
}

void SwitchChannel::give_up_queued() noexcept {
  SwitchHomeward homeward;
  while (queued_ != nullptr) {
    auto& parcel = static_cast<SwitchParcel&>(*queued_);
    queued_ = queued_->next;
    count(SwitchDrop::unreachable);
    homeward.add(parcel);
  }
  queued_count_ = 0;
}

}  // namespace ringway
