#include "device/blk_queue.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "guest/access.hpp"
#include "ring/spec.hpp"

namespace ringway {

namespace {

// The most requests that one pump takes.
constexpr std::uint64_t kTakenMax = static_cast<std::uint64_t>(limits::kPumpBudget / limits::kPumpRequestCost) + 1;

BlkSlot& slot_of(BlkOperation& operation) {
  static_assert(offsetof(BlkSlot, operation) == 0);
  return reinterpret_cast<BlkSlot&>(operation);
}

}  // namespace

Result<> BlkQueue::start(WorkerContext& context, BlkChannel& channel, vhost_user::RingStart start,
                         std::shared_ptr<const RegionMap> map, std::shared_ptr<DirtyLog> log) {
  RW_TRY(begin(context, std::move(start), std::move(map), std::move(log)));
  channel_ = &channel;
  in_turn_ = {};  // of its former life, which ended before its turn did
  return {};
}

Queue::Pumped BlkQueue::pump(WorkerContext& context) noexcept {
  check_memory();
  if (RW_UNLIKELY(!can_pop())) {
    allowance = 0;
    return Pumped::inactive;
  }
  // What one chain costs isn't known before it is read, and the longest costs the budget of many turns. The queue then sits
  // out as many; what it didn't use is not saved up.
  budget_ += limits::kPumpBudget;
  std::uint32_t may_take = UINT32_MAX;
  if (RW_UNLIKELY(allowance != 0)) {
    may_take = std::exchange(allowance, 0);
  } else if (RW_UNLIKELY(!disk_.slots->waiting.empty())) {
    const Pumped queued = queue_up(context);
    budget_ = std::min(budget_, 0);
    return queued;
  }
  const bool woken = may_take != UINT32_MAX;
  // One of the requests may be due to be followed.
  const bool follows = context.stages.near(kTakenMax);
  std::uint32_t taken = 0;
  while (RW_LIKELY(budget_ > 0 && may_take > taken)) {
    if (RW_UNLIKELY(!context.slots.has_room(*disk_.slots))) {
      counters_.starved.add();
      context.note_starved(*this, *disk_.slots, woken && taken == 0);
      return end_pump(context, taken, follows, Pumped::starved);
    }
    const PopStatus status = next_chain(context.chain);
    if (RW_UNLIKELY(status == PopStatus::ring_fault)) {
      break_ring();
      return end_pump(context, taken, follows, Pumped::inactive);
    }
    if (status == PopStatus::empty) {
      return end_pump(context, taken, follows, taken != 0 ? Pumped::some : Pumped::nothing);
    }
    ++taken;
    budget_ -= limits::kPumpRequestCost + static_cast<std::int32_t>(context.chain.cost());
    serve(context, context.slots.take(*disk_.slots), status, follows);
    budget_ -= static_cast<std::int32_t>(channel_->take_copied() / limits::kPumpBytesPerUnit);
  }
  if (RW_UNLIKELY(may_take == taken)) {
    context.wait_again(*this, *disk_.slots);
    return end_pump(context, taken, follows, Pumped::starved);
  }
  return end_pump(context, taken, follows, Pumped::budget);
}

inline Queue::Pumped BlkQueue::end_pump(WorkerContext& context, std::uint32_t taken, bool follows, Pumped result) noexcept {
  if (taken != 0) {
    channel_->end_of_batch();
    if (!follows) {
      static_cast<void>(context.stages.due(taken));  // it isn't
    }
  }
  budget_ = std::min(budget_, 0);
  pumped();
  return result;
}

// Others of the device wait for slots, and it isn't this queue's turn.
Queue::Pumped BlkQueue::queue_up(WorkerContext& context) noexcept {
  if (!has_work()) {
    return Pumped::nothing;
  }
  counters_.starved.add();
  context.note_starved(*this, *disk_.slots);
  return Pumped::starved;
}

inline void BlkQueue::serve(WorkerContext& context, BlkSlot& slot, PopStatus status, bool follows) noexcept {
  const Chain& chain = context.chain;
  slot.chain = chain.id();
  slot.popped = context.now;
  slot.traced = nullptr;
  if (RW_UNLIKELY(follows)) {
    slot.traced = context.stages.due() ? follow() : nullptr;
  }
  slot.pinned = pin();
  BlkOperation& operation = slot.operation;
  const std::span<iovec> storage = context.slots.segments(slot, chain.readable().size() + chain.writable().size());
  const BlkParsed parsed = parse_blk_request(chain, status == PopStatus::chain_fault, limits_, storage, operation.request);
  if (RW_UNLIKELY(parsed.refusal != BlkRefusal::none)) {
    refuse(slot, parsed);
    return;
  }
  operation.completions = this;
  if (RW_UNLIKELY(follows) && slot.traced != nullptr) {
    note_parsed(context, slot);
  }
  if (RW_UNLIKELY(operation.request.opcode == BlkOpcode::get_id)) {
    answer_id(operation);
    return;
  }
  channel_->submit(operation);
}

void BlkQueue::note_parsed(WorkerContext& context, const BlkSlot& slot) noexcept {
  const BlkRequest& request = slot.operation.request;
  StageRecord& record = slot.traced->record;
  record.kind = request.opcode == BlkOpcode::in    ? TracedKind::read
                : request.opcode == BlkOpcode::out ? TracedKind::write
                                                   : TracedKind::other;
  record.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(request.bytes, UINT32_MAX));
  context.stages.stamp<Stage::parsed>(*slot.traced);
  context.stages.prepare(*slot.traced);
}

void BlkQueue::note_finished(const BlkSlot& slot, std::uint8_t status) noexcept {
  slot.traced->record.failed = status != spec::kBlkStatusOk;
  if (may_complete()) {
    context().stages.complete(*slot.traced);
  } else {
    context().stages.drop(*slot.traced);
  }
}

void BlkQueue::refuse(BlkSlot& slot, const BlkParsed& parsed) noexcept {
  counters_.refused[static_cast<std::size_t>(parsed.refusal)].add();
  finish(slot, parsed.status_address, parsed.status, parsed.used_length, {});
}

void BlkQueue::answer_id(BlkOperation& operation) noexcept {
  std::array<std::byte, limits::kBlkIdBytes> id{};
  std::memcpy(id.data(), disk_.serial->data(), std::min(disk_.serial->size(), id.size()));
  std::size_t copied = 0;
  for (const iovec& segment : operation.request.data) {
    const std::size_t bytes = std::min(segment.iov_len, id.size() - copied);
    guest::copy(static_cast<std::byte*>(segment.iov_base), id.data() + copied, bytes);
    copied += bytes;
  }
  operation.request.bytes = copied;
  operation.status = spec::kBlkStatusOk;
  on_complete(operation);
}

void BlkQueue::on_complete(BlkOperation& operation) noexcept {
  BlkSlot& slot = slot_of(operation);
  const BlkRequest& request = operation.request;
  const auto opcode = static_cast<std::size_t>(request.opcode);
  // One clock read a turn: what began in this one has no duration yet.
  const bool in_turn = slot.popped == context().now;
  if (in_turn) {
    context().note_timed(*this);
  }
  const auto took = [&](LatencyHistogram& latency, std::uint32_t& count_in_turn) {
    if (in_turn) {
      ++count_in_turn;
    } else {
      latency.record(context().now - slot.popped);
    }
  };
  if (RW_LIKELY(operation.status == spec::kBlkStatusOk)) {
    counters_.requests[opcode].add();
  } else {
    counters_.failed[opcode].add();
  }
  if (request.opcode == BlkOpcode::in) {
    counters_.bytes_in.add(request.bytes);
    took(disk_.latency->read, in_turn_.reads);
  } else if (request.opcode == BlkOpcode::out) {
    counters_.bytes_out.add(request.bytes);
    took(disk_.latency->write, in_turn_.writes);
  } else {
    took(disk_.latency->other, in_turn_.others);
  }
  // All of the data, whether the request failed half-way or not.
  const bool writes = request.opcode == BlkOpcode::in || request.opcode == BlkOpcode::get_id;
  finish(slot, request.status, operation.status, blk_used_length(request, operation.status),
         writes ? request.data : std::span<const iovec>{});
}

void BlkQueue::turn_ended(Duration length) noexcept {
  const InTurn ended = std::exchange(in_turn_, {});
  if (ended.reads != 0) {
    disk_.latency->read.record(length, ended.reads);
  }
  if (ended.writes != 0) {
    disk_.latency->write.record(length, ended.writes);
  }
  if (ended.others != 0) {
    disk_.latency->other.record(length, ended.others);
  }
}

inline void BlkQueue::finish(BlkSlot& slot, std::byte* status_address, std::uint8_t status, std::uint32_t used_length,
                             std::span<const iovec> data) noexcept {
  if (RW_UNLIKELY(slot.traced != nullptr)) {
    note_finished(slot, status);
  }
  if (may_complete()) {
    if (RW_LIKELY(status_address != nullptr)) {
      guest::store(status_address, status);
    }
    if (RW_UNLIKELY(log() != nullptr)) {
      log_written(*slot.pinned->map, data, status_address);
    }
    complete(slot.chain, used_length);
  }
  PinnedMap& pinned = *slot.pinned;
  context().slots.give(slot, *disk_.slots);
  ended(pinned);
}

// Segments may overlap: a request can name more memory than the guest has, again and again. Then all of it is marked once.
// So one request costs no more than that, and the queue is charged for it: one unit for each word of the log.
void BlkQueue::log_written(const RegionMap& map, std::span<const iovec> data, const std::byte* status_address) noexcept {
  constexpr std::uint64_t kBytesPerUnit = DirtyLog::kPageBytes * 64;
  constexpr std::int64_t kDebtMax = 1 << 30;
  std::uint64_t data_bytes = 0;
  for (const iovec& segment : data) {
    data_bytes += segment.iov_len;
  }
  std::uint64_t memory_bytes = 0;
  for (const RegionMap::Region& region : map.regions()) {
    memory_bytes += region.bytes;
  }
  std::uint64_t cost = 0;
  if (RW_LIKELY(data_bytes <= memory_bytes)) {
    for (const iovec& segment : data) {
      log()->mark(map, static_cast<const std::byte*>(segment.iov_base), segment.iov_len);
    }
    cost = data.size() + data_bytes / kBytesPerUnit;
  } else {
    for (const RegionMap::Region& region : map.regions()) {
      log()->mark(region.guest, region.bytes);
    }
    cost = data.size() + memory_bytes / kBytesPerUnit;
  }
  if (status_address != nullptr) {
    log()->mark(map, status_address, 1);
  }
  budget_ = static_cast<std::int32_t>(std::max(budget_ - static_cast<std::int64_t>(cost), -kDebtMax));
}

}  // namespace ringway
