#include "device/net_control_queue.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.hpp"

namespace ringway {

Result<> NetControlQueue::start(WorkerContext& context, vhost_user::RingStart start, std::shared_ptr<const RegionMap> map,
                                std::shared_ptr<DirtyLog> log) {
  return begin(context, std::move(start), std::move(map), std::move(log));
}

Queue::Pumped NetControlQueue::pump(WorkerContext& context) noexcept {
  check_memory();
  if (RW_UNLIKELY(!can_pop() || asked_ != nullptr)) {
    return Pumped::inactive;
  }
  budget_ = std::min(budget_, 0) + limits::kPumpBudget;
  bool took = false;
  while (budget_ > 0) {
    const PopStatus status = next_fresh_chain(context.chain);
    if (status == PopStatus::ring_fault) {
      break_ring();
      return Pumped::inactive;
    }
    if (status == PopStatus::empty) {
      return took ? Pumped::some : Pumped::nothing;
    }
    took = true;
    budget_ -= limits::kPumpRequestCost + static_cast<std::int32_t>(context.chain.cost());
    const NetControlParsed parsed = parse_net_control(context.chain, status == PopStatus::chain_fault);
    if (parsed.refusal == NetControlRefusal::none) {
      asked_ = pin();
      asked_chain_ = context.chain.id();
      asked_reply_ = parsed.reply;
      ask_(parsed.command);
      if (asked_ != nullptr) {
        return Pumped::inactive;
      }
      continue;
    }
    reply(context.chain.id(), parsed.reply, map(), {.refusal = parsed.refusal, .answer = {}});
  }
  return Pumped::budget;
}

void NetControlQueue::answer(const NetControlOutcome& outcome) noexcept {
  RW_CHECK(asked_ != nullptr);
  PinnedMap& pinned = *std::exchange(asked_, nullptr);
  if (may_complete()) {
    reply(asked_chain_, asked_reply_, *pinned.map, outcome);
    if (can_pop()) {
      context().activate(*this);
    }
  }
  ended(pinned);
}

void NetControlQueue::reply(ChainId chain, const NetControlReply& to, const RegionMap& of,
                            const NetControlOutcome& outcome) noexcept {
  if (outcome.refusal == NetControlRefusal::none) {
    counters_.commands.add();
  } else {
    counters_.refused[static_cast<std::size_t>(outcome.refusal)].add();
  }
  std::uint32_t used = 0;
  if (to.count != 0) {
    used = write_net_control_reply(to, outcome.refusal, outcome.answer);
    if (RW_UNLIKELY(log() != nullptr)) {
      for (const iovec& segment : std::span(to.segments).first(to.count)) {
        log()->mark(of, static_cast<const std::byte*>(segment.iov_base), segment.iov_len);
      }
    }
  }
  complete(chain, used);
}

}  // namespace ringway
