#include "backend/net/switch_seat.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "backend/net/switch_channel.hpp"
#include "base/check.hpp"
#include "loop/clock.hpp"

namespace ringway {

Result<std::unique_ptr<SwitchSeat>> SwitchSeat::create(SwitchFabric& fabric, std::uint16_t index, Loop& loop) {
  UniqueFd bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) {
    return fail_errno(errno, "switch '" + fabric.name + "' needs one descriptor for each worker");
  }
  return std::unique_ptr<SwitchSeat>(new SwitchSeat(fabric, index, loop, std::move(bell)));
}

SwitchSeat::SwitchSeat(SwitchFabric& fabric, std::uint16_t index, Loop& loop, UniqueFd bell)
    : fabric_(fabric),
      index_(index),
      loop_(loop),
      bell_(std::move(bell)),
      pieces_(std::make_unique_for_overwrite<iovec[]>(2 * kFramePieces + 1)),
      entering_(std::span(pieces_.get(), kFramePieces)) {}

// ---------------------------------------------------------------- any thread

void SwitchSeat::ring() const noexcept {
  const std::uint64_t one = 1;
  // It can only fail if the counter is full, and then it is ready.
  static_cast<void>(!::write(bell_.get(), &one, sizeof one));
}

bool SwitchSeat::put(const SwitchLinks& parcels, bool& rings) noexcept {
  switch (inbox_.put(parcels, true)) {
    case SwitchInbox::Put::closed:
      return false;
    case SwitchInbox::Put::ring:
      rings = true;
      ring();
      break;
    case SwitchInbox::Put::taken:
      break;
  }
  return true;
}

void SwitchSeat::give_back(const SwitchLinks& parcels, bool lent) noexcept {
  if (inbox_.put(parcels, lent, true) == SwitchInbox::Put::ring) {
    ring();
  }
}

// ---------------------------------------------------------------- channels

Result<> SwitchSeat::join(SwitchChannel& channel) {
  if (channels_.empty()) {
    RW_TRY_ASSIGN(watch_, loop_.watch(bell_.get(), EPOLLIN, *this));
    on_timer(clock_now());
    sort(inbox_.open());
    rest();
  }
  std::unique_ptr<Row>& row = rows_[channel.port()];
  if (row == nullptr) {
    row = std::make_unique<Row>();
  }
  RW_CHECK((*row)[channel.pair()] == nullptr);
  (*row)[channel.pair()] = &channel;
  channels_.push_back(&channel);
  return {};
}

void SwitchSeat::part(SwitchChannel& channel) noexcept {
  std::erase(channels_, &channel);
  (*rows_[channel.port()])[channel.pair()] = nullptr;
  if (channels_.empty()) {
    sort(inbox_.close());
    loop_.unwatch(std::exchange(watch_, {}));
    loop_.cancel_timer(*this);
  }
}

SwitchPool& SwitchSeat::pool_for(SwitchChannel& channel) {
  const auto found =
      std::ranges::find_if(pools_, [](const auto& pool) { return pool->channel == nullptr && pool->all_home(); });
  SwitchPool& pool = found != pools_.end() ? **found : *pools_.emplace_back(std::make_unique<SwitchPool>(*this));
  pool.channel = &channel;
  return pool;
}

// ---------------------------------------------------------------- what comes

void SwitchSeat::on_ready(std::uint32_t /*events*/) noexcept {
  collect();
  // From here an active queue looks, as long as its worker polls.
  const auto receiving = std::ranges::find_if(channels_, [](const SwitchChannel* each) { return each->enabled(); });
  if (receiving != channels_.end()) {
    (*receiving)->wake();
  } else if (watch_) {
    rest();
  }
}

void SwitchSeat::on_timer(Instant now) noexcept {
  fabric_.tell(now);
  loop_.set_timer(*this, now + Duration::seconds(1));
}

void SwitchSeat::sort(SwitchLink* parcels) noexcept {
  SwitchHomeward homeward;
  while (parcels != nullptr) {
    auto& parcel = static_cast<SwitchParcel&>(*parcels);
    parcels = parcels->next;
    if (&parcel.home->seat() == this) {
      take_back(parcel);
      continue;
    }
    SwitchChannel* const to = channel(parcel.port, parcel.pair);
    if (to == nullptr || to->generation() != parcel.generation) {
      strays_.add();
      homeward.add(parcel);
    } else if (!to->queue_up(parcel)) {
      homeward.add(parcel);
    }
  }
  settle();
}

void SwitchSeat::take_back(SwitchParcel& parcel) noexcept {
  SwitchPassed& passed = *parcel.passed;
  SwitchPool& pool = *parcel.home;
  pool.put_parcel(parcel);
  if (--passed.parcels != 0) {
    return;
  }
  if (passed.lent) {
    // Its ring waits for it, so its channel is there.
    if (lender_ != pool.channel || loan_count_ == kLoans) {
      settle();
      lender_ = pool.channel;
    }
    loans_[loan_count_++] = passed.loan;
  }
  pool.put_frame(passed);
}

void SwitchSeat::settle() noexcept {
  if (loan_count_ != 0) {
    lender_->give_back(std::span(loans_).first(std::exchange(loan_count_, 0)));
  }
}

// ---------------------------------------------------------------- what goes

void SwitchSeat::add_outgoing(SwitchParcel& parcel) noexcept {
  SwitchLinks& to = outgoing_[parcel.seat];
  if (to.empty()) {
    touched_[touched_count_++] = parcel.seat;
  }
  to.add(parcel);
}

std::uint32_t SwitchSeat::dispatch() noexcept {
  std::uint32_t woken = 0;
  for (; touched_count_ != 0; --touched_count_) {
    const std::uint16_t to = touched_[touched_count_ - 1];
    const SwitchLinks parcels = std::exchange(outgoing_[to], {});
    bool rings = false;
    if (!fabric_.seat(to).put(parcels, rings)) {
      // Its last channel has just been closed.
      for (SwitchLink* link = parcels.newest; link != nullptr;) {
        auto& parcel = static_cast<SwitchParcel&>(*link);
        link = link->next;
        strays_.add();
        take_back(parcel);
      }
      settle();
    }
    woken += rings ? 1 : 0;
  }
  return woken;
}

}  // namespace ringway
