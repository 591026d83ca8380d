#include "device/net_transmit_queue.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.hpp"
#include "guest/access.hpp"

namespace ringway {

namespace {

// What a frame takes of the queue's budget. One that may have to be cut counts for each of its segments: how many that are
// is up to the driver.
std::int32_t cost_of(const NetFrame& frame) noexcept {
  std::uint32_t cost = frame.bytes / static_cast<std::uint32_t>(limits::kPumpBytesPerUnit);
  if (RW_UNLIKELY(frame.header.gso_size != 0)) {
    cost += std::min(frame.bytes / frame.header.gso_size, limits::kNetSegmentsMax);
  }
  return static_cast<std::int32_t>(cost);
}

}  // namespace

Result<> NetTransmitQueue::start(WorkerContext& context, NetChannel& channel, NetScratch& scratch,
                                 vhost_user::RingStart start, std::shared_ptr<const RegionMap> map,
                                 std::shared_ptr<DirtyLog> log) {
  RW_TRY(begin(context, std::move(start), std::move(map), std::move(log)));
  channel_ = &channel;
  scratch_ = &scratch;
  blocked_ = false;
  budget_ = 0;
  return {};
}

void NetTransmitQueue::wake() noexcept {
  blocked_ = false;
  if (can_pop()) {
    context().activate(*this);
  }
}

Queue::Pumped NetTransmitQueue::pump(WorkerContext& context) noexcept {
  check_memory();
  if (RW_UNLIKELY(!can_pop() || blocked_)) {
    return Pumped::inactive;
  }
  // As with disks: the longest chain costs the budget of many turns, and the queue then sits them out.
  budget_ = std::min(budget_, 0) + limits::kPumpBudget;
  bool took = false;
  while (RW_LIKELY(budget_ > 0)) {
    const std::uint64_t began = context.stages.near(limits::kNetBatch) ? StageClock::now() : 0;
    const Gathered gathered = gather(context.chain);
    took = took || chain_count_ != 0;
    TracedRequest* const followed = context.stages.due(frame_count_) ? follow() : nullptr;
    if (RW_UNLIKELY(followed != nullptr)) {
      note_gathered(context, *followed, began);
    }
    const bool sent = send();
    if (RW_UNLIKELY(followed != nullptr)) {
      context.stages.complete(*followed);
    }
    pumped();
    if (RW_UNLIKELY(!sent)) {
      blocked_ = true;
      return Pumped::inactive;
    }
    if (gathered == Gathered::empty) {
      return took ? Pumped::some : Pumped::nothing;
    }
    if (RW_UNLIKELY(gathered == Gathered::ring_fault)) {
      break_ring();
      return Pumped::inactive;
    }
  }
  return Pumped::budget;
}

// Its first frame stands for the batch.
void NetTransmitQueue::note_gathered(WorkerContext& context, TracedRequest& followed, std::uint64_t began) noexcept {
  followed.record.kind = TracedKind::transmit;
  followed.record.bytes = scratch_->frames[0].bytes;
  followed.record.ticks[static_cast<std::size_t>(Stage::popped)] = began;
  context.stages.stamp<Stage::parsed>(followed);
  context.stages.stamp<Stage::submitted>(followed);
}

NetLoan NetTransmitQueue::lend(std::size_t frame) noexcept {
  RW_DCHECK(borrows_ && frame < frame_count_ && (lent_ >> frame & 1U) == 0);
  lent_ |= 1U << frame;
  std::size_t chain = frame;
  if (RW_UNLIKELY(frame_count_ != chain_count_)) {
    // Refused chains stand between the frames'.
    chain = 0;
    for (std::size_t frames = 0;; ++chain) {
      if (scratch_->chains[chain].refusal == NetRefusal::none && frames++ == frame) {
        break;
      }
    }
  }
  return {.chain = scratch_->chains[chain].chain, .memory = pin()};
}

void NetTransmitQueue::give_back(std::span<const NetLoan> loans) noexcept {
  if (may_complete()) {
    for (const NetLoan& loan : loans) {
      complete_fresh(loan.chain, 0);
    }
    note_finished();
  }
  // The last one may stop the ring, so nothing comes behind these.
  for (const NetLoan& loan : loans) {
    ended(*loan.memory);
  }
}

NetTransmitQueue::Gathered NetTransmitQueue::gather(Chain& chain) noexcept {
  NetScratch& scratch = *scratch_;
  std::span<iovec> segments(scratch.segments.get(), limits::kNetTransmitSegments);
  std::size_t chains = 0;
  std::size_t frames = 0;
  std::uint64_t bytes = 0;
  std::uint64_t gso = 0;
  std::int32_t budget = budget_;
  Gathered gathered = Gathered::full;
  const auto note = [&] [[gnu::always_inline]] (ChainId id, NetRefusal refusal, const NetFrame& frame) {
    scratch.chains[chains++] = {.chain = id, .refusal = refusal};
    if (RW_LIKELY(refusal == NetRefusal::none)) {
      segments = segments.subspan(frame.data.size());
      bytes += frame.bytes;
      if (RW_UNLIKELY(frame.header.gso_type != spec::kNetGsoNone)) {
        ++gso;
      }
      budget -= cost_of(frame);
      ++frames;
    }
  };
  while (chains < limits::kNetBatch && RW_LIKELY(budget > 0)) {
    // Chains of one buffer, which most are with many drivers.
    const std::size_t most = std::min({limits::kNetBatch - chains, segments.size(),
                                       static_cast<std::size_t>(budget / (limits::kPumpRequestCost + 1) + 1)});
    const std::size_t popped = next_fresh_buffers(false, std::span(scratch.sent_buffers).first(most));
    for (std::size_t i = 0; i < popped; ++i) {
      guest::prefetch(scratch.sent_buffers[i].at);
    }
    for (std::size_t i = 0; i < popped; ++i) {
      const ChainBuffer& buffer = scratch.sent_buffers[i];
      if (RW_UNLIKELY(budget <= 0)) {  // long frames
        for (std::size_t left = popped; left > i; --left) {
          unpop(scratch.sent_buffers[left - 1].chain);
        }
        break;
      }
      NetFrame& frame = scratch.frames[frames];
      const NetRefusal refusal = parse_net_frame(buffer, rules_.header_bytes, rules_.limits, segments[0], frame);
      budget -= limits::kPumpRequestCost + 1;
      note(buffer.chain, refusal, frame);
    }
    if (popped != 0 && (popped == most || budget <= 0)) {
      continue;
    }
    const PopStatus status = next_fresh_chain(chain);
    if (status == PopStatus::empty) {
      gathered = Gathered::empty;
      break;
    }
    if (RW_UNLIKELY(status == PopStatus::ring_fault)) {
      gathered = Gathered::ring_fault;
      break;
    }
    budget -= limits::kPumpRequestCost + static_cast<std::int32_t>(chain.cost());
    if (RW_UNLIKELY(chain.readable().size() > segments.size() && frames != 0)) {
      unpop(chain.id());  // it begins the next batch
      break;
    }
    NetFrame& frame = scratch.frames[frames];
    const NetRefusal refusal =
        parse_net_frame(chain, status == PopStatus::chain_fault, rules_.header_bytes, rules_.limits, segments, frame);
    note(chain.id(), refusal, frame);
  }
  chain_count_ = chains;
  frame_count_ = frames;
  frame_bytes_ = bytes;
  gso_count_ = gso;
  budget_ = budget;
  return gathered;
}

bool NetTransmitQueue::send() noexcept {
  const std::size_t chains = chain_count_;
  if (chains == 0) {
    return true;
  }
  std::size_t sent = frame_count_;
  const bool discards = !enabled() || !rules_.link;
  lent_ = 0;
  if (sent != 0 && RW_LIKELY(!discards)) {
    sent = channel_->send(std::span(scratch_->frames).first(sent));
  }
  note_finished();
  if (RW_UNLIKELY(sent != chains || discards || lent_ != 0)) {
    return settle_sent(sent, discards);
  }
  for (std::size_t i = 0; i < chains; ++i) {
    complete_fresh(scratch_->chains[i].chain, 0);
  }
  counters_.frames.add(chains);
  counters_.bytes.add(frame_bytes_);
  counters_.gso_frames.add(gso_count_);
  return true;
}

bool NetTransmitQueue::settle_sent(std::size_t sent, bool discarded) noexcept {
  std::size_t frames = 0;
  std::size_t done = 0;
  for (; done < chain_count_; ++done) {
    const NetScratch::Sent& chain = scratch_->chains[done];
    if (chain.refusal != NetRefusal::none) {
      counters_.refused[static_cast<std::size_t>(chain.refusal)].add();
    } else if (frames == sent) {
      break;
    } else {
      const NetFrame& frame = scratch_->frames[frames++];
      if (discarded) {
        counters_.discarded.add();
      } else {
        counters_.frames.add();
        counters_.bytes.add(frame.bytes);
        counters_.gso_frames.add(frame.header.gso_type != spec::kNetGsoNone ? 1 : 0);
      }
    }
    const bool lent = chain.refusal == NetRefusal::none && (lent_ >> (frames - 1) & 1U) != 0;
    if (!lent) {
      complete_fresh(chain.chain, 0);
    }
  }
  for (std::size_t left = chain_count_; left > done; --left) {
    unpop(scratch_->chains[left - 1].chain);
  }
  return done == chain_count_;
}

}  // namespace ringway
