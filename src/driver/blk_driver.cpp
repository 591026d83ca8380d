// How the pieces lie. Region 0 of the shared memory holds, for each queue: the ring's three areas, each on pages of its own
// (so that what the driver writes and what the device writes never share a line), the indirect tables, the request slots
// and the ranges of DISCARD and its like; then, unless there are data regions, the data buffers. A request's slot number is
// what the ring carries as its token; the caller's token stays in private memory, where a back-end can't change it.
#include "driver/blk_driver.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/limits.hpp"

namespace ringway {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kConfigBytesClassic = 60;  // up to write_zeroes_may_unmap: what back-ends without SECURE ERASE know

bool device_writes(std::uint32_t type) {
  return type == spec::kBlkTypeIn || type == spec::kBlkTypeGetId || type == spec::kBlkTypeGetLifetime;
}

std::size_t buffer_alignment(std::size_t bytes) {
  return bytes % kPage == 0 ? kPage : std::size_t{64};
}

// Header, data and status.
std::uint32_t indirect_entries(const BlkDriverOptions& options) {
  return options.segments_max + 2;
}

Result<> check_options(const BlkDriverOptions& options) {
  if (options.queues == 0 || options.queues > limits::kQueuesPerDeviceMax) {
    return fail(fmt::format("a driver has 1 to {} queues, not {}", limits::kQueuesPerDeviceMax, options.queues));
  }
  if (options.requests_per_queue == 0 || options.segments_max == 0) {
    return fail("a queue needs at least one request slot, and a request at least one segment");
  }
  return {};
}

}  // namespace

// --- the queue: hot path ---

bool BlkDriverQueue::submit(const BlkDriverRequest& request) noexcept {
  RW_DCHECK(request.data.size() + 3 <= chain_.size());
  RW_DCHECK(request.ranges.size() <= kBlkDriverRangesMax);
  if (free_count_ == 0) {
    return false;
  }
  const std::uint32_t index = free_slots_[free_count_ - 1];
  Slot& slot = slots_[index];
  const std::uint64_t slot_address = slots_guest_.value + std::uint64_t{index} * sizeof(Slot);
  slot.header = {.type = request.type, .reserved = 0, .sector = request.sector};
  slot.status = kStatusUntouched;

  DriverBuffer* next = chain_.data();
  *next++ = {GuestAddress{slot_address}, sizeof(spec::BlkRequestHeader), false};
  if (RW_UNLIKELY(!request.ranges.empty())) {
    const std::size_t first = std::size_t{index} * kBlkDriverRangesMax;
    std::copy(request.ranges.begin(), request.ranges.end(), ranges_ + first);
    *next++ = {GuestAddress{ranges_guest_.value + first * sizeof(spec::BlkRange)},
               static_cast<std::uint32_t>(request.ranges.size_bytes()), false};
  }
  const bool writable = device_writes(request.type);
  for (const DriverBuffer& segment : request.data) {
    *next++ = {segment.address, segment.bytes, writable};
  }
  *next++ = {GuestAddress{slot_address + offsetof(Slot, status)}, 1, true};
  if (!ring_->add({chain_.data(), next}, index)) {
    return false;
  }
  --free_count_;
  tokens_[index] = request.token;
  slot_use_[index] = SlotUse::request;
  return true;
}

bool BlkDriverQueue::submit_chain(std::span<const DriverBuffer> chain, std::uint64_t token) noexcept {
  if (free_count_ == 0) {
    return false;
  }
  const std::uint32_t index = free_slots_[free_count_ - 1];
  if (!ring_->add(chain, index)) {
    return false;
  }
  --free_count_;
  tokens_[index] = token;
  slot_use_[index] = SlotUse::chain;
  return true;
}

std::size_t BlkDriverQueue::reap(std::span<BlkCompletion> completions) noexcept {
  std::size_t count = 0;
  UsedElement used;
  while (count < completions.size() && ring_->take_used(used)) {
    if (RW_UNLIKELY(used.token >= slot_count_ || slot_use_[used.token] == SlotUse::free)) {
      ++counters_.bad_used;
      continue;
    }
    const auto index = static_cast<std::uint32_t>(used.token);
    BlkCompletion& completion = completions[count++];
    completion.token = tokens_[index];
    completion.written_bytes = used.written_bytes;
    // Ordered by the ring's acquire of the used index (pairs with the device's release of it, §2.7.13).
    completion.status = slot_use_[index] == SlotUse::request
                            ? std::atomic_ref<std::uint8_t>(slots_[index].status).load(std::memory_order_relaxed)
                            : kStatusUntouched;
    slot_use_[index] = SlotUse::free;
    free_slots_[free_count_++] = index;
  }
  return count;
}

void BlkDriverQueue::forget_in_flight() noexcept {
  free_count_ = 0;
  for (std::uint32_t index = slot_count_; index-- > 0;) {
    slot_use_[index] = SlotUse::free;
    free_slots_[free_count_++] = index;
  }
}

// --- the session ---

BlkDriver::BlkDriver(const BlkDriverOptions& options)
    : DriverSession({.socket_path = options.socket_path,
                     .patience = options.patience,
                     .packed = options.packed,
                     .indirect = options.indirect,
                     .event_index = options.event_index,
                     .in_order = options.in_order,
                     .protocol_features = options.protocol_features,
                     .queue_size = options.queue_size,
                     .pages = options.pages,
                     .memory_slots = options.memory_slots,
                     .inflight = options.inflight}),
      options_(options) {}

Result<std::unique_ptr<BlkDriver>> BlkDriver::create(const BlkDriverOptions& options) {
  RW_TRY(check_options(options));
  std::unique_ptr<BlkDriver> driver(new BlkDriver(options));
  RW_TRY(driver->open(options.start));
  return driver;
}

Result<std::uint64_t> BlkDriver::choose_features() {
  if (is_network_card(negotiated().offered)) {
    return fail(
        "the back-end is a network card, by the features that it offers, and no disk: use the command for network cards");
  }
  if (!negotiated().has_protocol(vhost_user::kProtocolConfig)) {
    return fail("the back-end doesn't offer VHOST_USER_PROTOCOL_F_CONFIG; is it a block device?");
  }
  if (options_.queues > negotiated().queues_offered) {
    return fail(fmt::format(
        "{} queues were asked for, and the back-end has {}; ask for fewer, or give it more (of ringway: queues=)",
        options_.queues, negotiated().queues_offered));
  }
  RW_TRY(read_config());
  return options_.features;
}

Result<> BlkDriver::read_config() {
  // A back-end may refuse to give more than it knows, and only those with SECURE ERASE surely know the last fields.
  const bool whole = (negotiated().offered & (spec::kBlkSecureErase | spec::kBlkLifetime)) != 0;
  RW_TRY_ASSIGN(const auto bytes,
                get_config(whole ? sizeof(spec::BlkConfig) : kConfigBytesClassic, sizeof config_.capacity));
  config_ = {};
  config_bytes_ = static_cast<std::uint32_t>(std::min(bytes.size(), sizeof config_));
  std::memcpy(&config_, bytes.data(), config_bytes_);
  return {};
}

std::uint32_t BlkDriver::block_bytes() const {
  return negotiated().has(spec::kBlkBlkSize) && config_.blk_size != 0 ? config_.blk_size : spec::kSectorBytes;
}

Result<> BlkDriver::lay_out() {
  const std::size_t slots = options_.requests_per_queue;
  const std::size_t alignment = buffer_alignment(options_.buffer_bytes);
  const std::size_t padded_buffer = (options_.buffer_bytes + alignment - 1) / alignment * alignment;
  const std::size_t data = slots * padded_buffer;
  const std::size_t control = ring_bytes(indirect_entries(options_)) +
                              slots * (sizeof(BlkDriverQueue::Slot) + kBlkDriverRangesMax * sizeof(spec::BlkRange)) +
                              4 * kPage;
  std::vector<std::size_t> sizes{options_.queues * control + options_.scratch_bytes + kPage};
  if (options_.data_regions == 0) {
    sizes[0] += options_.queues * (data + kPage);
  } else {
    const std::size_t buffers = options_.queues * slots;
    const std::size_t per_region = (buffers + options_.data_regions - 1) / options_.data_regions;
    sizes.insert(sizes.end(), options_.data_regions, per_region * padded_buffer);
  }
  RW_TRY(share_memory(sizes));
  for (std::uint32_t index = 0; index < options_.queues; ++index) {
    RW_TRY(lay_out_queue(index));
  }
  return {};
}

Result<> BlkDriver::lay_out_queue(std::uint32_t index) {
  RW_TRY(add_queue(std::unique_ptr<BlkDriverQueue>(new BlkDriverQueue()), index, indirect_entries(options_)));
  BlkDriverQueue& of = queue(index);
  of.slot_count_ = options_.requests_per_queue;
  RW_TRY_ASSIGN(const SharedBlock slots, memory().allocate(of.slot_count_ * sizeof(BlkDriverQueue::Slot), kPage));
  of.slots_ = new (slots.host) BlkDriverQueue::Slot[of.slot_count_]{};
  of.slots_guest_ = slots.guest;
  const std::size_t range_count = std::size_t{of.slot_count_} * kBlkDriverRangesMax;
  RW_TRY_ASSIGN(const SharedBlock ranges, memory().allocate(range_count * sizeof(spec::BlkRange), kPage));
  of.ranges_ = new (ranges.host) spec::BlkRange[range_count];
  of.ranges_guest_ = ranges.guest;

  of.free_slots_.resize(of.slot_count_);
  of.tokens_.resize(of.slot_count_);
  of.slot_use_.resize(of.slot_count_);
  of.chain_.resize(std::size_t{options_.segments_max} + 3);
  of.forget_in_flight();

  for (std::uint32_t slot = 0; slot < of.slot_count_; ++slot) {
    const std::uint32_t number = index * of.slot_count_ + slot;
    const std::size_t region = options_.data_regions == 0 ? 0 : 1 + number % options_.data_regions;
    RW_TRY_ASSIGN(const SharedBlock buffer,
                  memory().allocate(options_.buffer_bytes, buffer_alignment(options_.buffer_bytes), region));
    of.buffers_.push_back(buffer);
  }
  return {};
}

}  // namespace ringway
