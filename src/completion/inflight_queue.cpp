#include "completion/inflight_queue.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "guest/access.hpp"

namespace ringway {

namespace {

// The specification's structures, by offset: they are written field by field in a given order. The packed header's 29 bytes
// are padded to the alignment of its descriptors.
namespace header {
constexpr std::size_t kVersion = 8, kDescNum = 10;
constexpr std::size_t kSplitLastBatchHead = 12, kSplitUsedIdx = 14, kSplitBytes = 16;
constexpr std::size_t kPackedFreeHead = 12, kPackedOldFreeHead = 14, kPackedUsedIdx = 16, kPackedOldUsedIdx = 18,
                      kPackedUsedWrap = 20, kPackedOldUsedWrap = 21, kPackedBytes = 32;
constexpr std::uint16_t kOurVersion = 1;
}  // namespace header

namespace split {  // DescStateSplit
constexpr std::size_t kInflight = 0, kNext = 6, kCounter = 8, kBytes = 16;
}
namespace packed {  // DescStatePacked
constexpr std::size_t kInflight = 0, kNext = 2, kLast = 4, kNum = 6, kCounter = 8, kId = 16, kFlags = 18, kLength = 20,
                      kAddress = 24, kBytes = 32;
}

constexpr std::size_t kAlignment = 64;

// Release: whoever takes up the region after a crash sees the stores in the order in which they stand here. The partner is
// the recovery of the next process, which starts long after; what matters is that neither compiler nor CPU reorders them.
template <typename T>
void put(std::byte* at, T value) noexcept {
  guest::store_release(at, value);
}
template <typename T>
T get(const std::byte* at) noexcept {
  return guest::load<T>(at);
}

// Packed: entries of the descriptor ring that the chains occupy.
std::size_t descriptors_of(std::span<const InflightQueue::Pending> pending) noexcept {
  std::size_t descriptors = 0;
  for (const InflightQueue::Pending& each : pending) {
    descriptors += each.descriptors.size();
  }
  return descriptors;
}

}  // namespace

std::size_t InflightQueue::bytes_per_queue(std::uint32_t queue_size, bool packed_layout) {
  const std::size_t bytes = packed_layout ? header::kPackedBytes + std::size_t{queue_size} * packed::kBytes
                                          : header::kSplitBytes + std::size_t{queue_size} * split::kBytes;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::byte* InflightQueue::entry(std::uint32_t index) const noexcept {
  RW_DCHECK(index < size_);
  return packed_ ? first_ + header::kPackedBytes + std::size_t{index} * packed::kBytes
                 : first_ + header::kSplitBytes + std::size_t{index} * split::kBytes;
}

Result<InflightQueue> InflightQueue::open(std::shared_ptr<Mapping> memory, const Options& options) {
  const std::size_t part = bytes_per_queue(options.queue_size, options.packed);
  const std::size_t offset = part * options.queue_index;
  if (options.queue_size == 0 || options.ring_size > options.queue_size || offset + part > memory->bytes()) {
    return fail("the in-flight region (" + std::to_string(memory->bytes()) + " bytes, laid out for rings of " +
                std::to_string(options.queue_size) + ") has no room for ring " + std::to_string(options.queue_index) +
                " of " + std::to_string(options.ring_size) + " descriptors");
  }
  InflightQueue queue;
  queue.first_ = memory->data() + offset;
  queue.memory_ = std::move(memory);
  queue.size_ = options.queue_size;
  queue.packed_ = options.packed;
  queue.in_order_ = options.in_order;
  queue.batch_.reserve(options.queue_size);
  if (options.packed) {
    queue.next_.resize(options.queue_size);
    queue.entry_of_id_.resize(options.queue_size);
    queue.last_of_.resize(options.queue_size);
  }
  if (options.in_order) {
    queue.order_.resize(options.queue_size);
  }
  const auto version = get<std::uint16_t>(queue.first_ + header::kVersion);
  if (version == 0) {
    queue.initialise(options.used_index);
  } else if (version != header::kOurVersion || get<std::uint16_t>(queue.first_ + header::kDescNum) != options.queue_size) {
    return fail("the in-flight region of ring " + std::to_string(options.queue_index) + " has version " +
                std::to_string(version) + " and " + std::to_string(get<std::uint16_t>(queue.first_ + header::kDescNum)) +
                " entries; expected version 1 and " + std::to_string(options.queue_size) + " entries");
  } else {
    queue.taken_over_ = true;
  }
  return queue;
}

void InflightQueue::initialise(std::uint16_t used_index) noexcept {
  for (std::uint32_t i = 0; i < size_; ++i) {
    put<std::uint8_t>(entry(i), 0);
    if (packed_) {
      next_[i] = static_cast<std::uint16_t>(i + 1);
      put<std::uint16_t>(entry(i) + packed::kNext, next_[i]);
    }
  }
  free_head_ = 0;
  put<std::uint16_t>(first_ + header::kDescNum, size_);
  if (packed_) {
    put<std::uint16_t>(first_ + header::kPackedFreeHead, 0);
    put<std::uint16_t>(first_ + header::kPackedOldFreeHead, 0);
    const PackedPosition used = PackedPosition::decode(used_index);
    put<std::uint16_t>(first_ + header::kPackedUsedIdx, used.index);
    put<std::uint16_t>(first_ + header::kPackedOldUsedIdx, used.index);
    put<std::uint8_t>(first_ + header::kPackedUsedWrap, used.wrap ? 1 : 0);
    put<std::uint8_t>(first_ + header::kPackedOldUsedWrap, used.wrap ? 1 : 0);
  } else {
    put<std::uint16_t>(first_ + header::kSplitLastBatchHead, 0);
    put<std::uint16_t>(first_ + header::kSplitUsedIdx, used_index);
  }
  put<std::uint16_t>(first_ + header::kVersion, header::kOurVersion);
}

void InflightQueue::clear() noexcept {
  if (!enabled()) {
    return;
  }
  put<std::uint16_t>(first_ + header::kVersion, 0);
  // Not every back-end that may take the region over looks at the version first.
  for (std::uint32_t i = 0; i < size_; ++i) {
    put<std::uint8_t>(entry(i), 0);
  }
  *this = InflightQueue();
}

void InflightQueue::forget(const Mapping& memory, std::uint16_t queue_index, std::uint32_t queue_size,
                           bool packed_layout) noexcept {
  const std::size_t offset = bytes_per_queue(queue_size, packed_layout) * queue_index;
  RW_CHECK(offset + header::kPackedBytes <= memory.bytes());
  put<std::uint16_t>(memory.data() + offset + header::kVersion, 0);
}

// ---------------------------------------------------------------- taking and giving back

void InflightQueue::note_order(ChainId id) noexcept {
  // Full: more than the region can hold. The ring's own bound makes that impossible for a ring of its size, however much a
  // region claims to be in flight; should it come all the same, none of those that are there may be lost.
  if (in_order_ && order_count_ < order_.size()) {
    order_[(order_first_ + order_count_) % order_.size()] = id;
    ++order_count_;
  }
}

void InflightQueue::note_popped(ChainId id, std::span<const spec::PackedDescriptor> descriptors) noexcept {
  note_order(id);
  if (packed_) {
    note_popped_packed(id, descriptors);
    return;
  }
  std::byte* at = entry(id.head);
  put<std::uint64_t>(at + split::kCounter, counter_++);
  put<std::uint8_t>(at + split::kInflight, 1);
}

void InflightQueue::note_popped_packed(ChainId id, std::span<const spec::PackedDescriptor> descriptors) noexcept {
  const std::uint16_t head = free_head_;
  if (head >= size_ || descriptors.empty() || id.head >= size_) {
    return;  // more than the region can hold; the ring's own bound makes it impossible for a ring of its size
  }
  std::byte* at = entry(head);
  put<std::uint16_t>(at + packed::kNum, 0);
  put<std::uint64_t>(at + packed::kCounter, counter_++);
  put<std::uint8_t>(at + packed::kInflight, 1);
  entry_of_id_[id.head] = head;
  std::uint16_t count = 0;
  for (const spec::PackedDescriptor& descriptor : descriptors) {
    const std::uint16_t index = free_head_;
    if (index >= size_) {
      break;
    }
    last_of_[head] = index;
    put<std::uint16_t>(at + packed::kLast, index);
    put<std::uint16_t>(at + packed::kNum, ++count);
    std::byte* copy = entry(index);
    put<std::uint64_t>(copy + packed::kAddress, descriptor.address);
    put<std::uint32_t>(copy + packed::kLength, descriptor.length);
    put<std::uint16_t>(copy + packed::kFlags, descriptor.flags);
    put<std::uint16_t>(copy + packed::kId, descriptor.id);
    free_head_ = next_[index];
    put<std::uint16_t>(first_ + header::kPackedFreeHead, free_head_);
  }
  put<std::uint16_t>(first_ + header::kPackedOldFreeHead, free_head_);
}

void InflightQueue::repopped(ChainId id) noexcept {
  if (!enabled()) {
    return;
  }
  note_order(id);
  if (packed_ && repopped_ < recovered_.size() && id.head < size_) {
    entry_of_id_[id.head] = recovered_[repopped_++];
  }
}

void InflightQueue::note_used(ChainId id) noexcept {
  if (id.head < size_ && batch_.size() < batch_.capacity()) {
    batch_.push_back(packed_ ? entry_of_id_[id.head] : id.head);
  }
}

void InflightQueue::prepare(std::uint32_t amount, std::uint16_t used_index) noexcept {
  while (in_order_ && amount != 0 && order_count_ != 0) {
    const ChainId oldest = order_[order_first_];
    const std::uint32_t covers = packed_ ? oldest.descriptors : 1;
    note_used(oldest);
    order_first_ = (order_first_ + 1) % order_.size();
    --order_count_;
    amount -= std::min(amount, covers);
  }
  if (!packed_) {
    for (const std::uint16_t head : batch_) {
      put<std::uint16_t>(entry(head) + split::kNext, get<std::uint16_t>(first_ + header::kSplitLastBatchHead));
      put<std::uint16_t>(first_ + header::kSplitLastBatchHead, head);
    }
    return;
  }
  for (const std::uint16_t head : batch_) {
    const std::uint16_t last = last_of_[head];
    next_[last] = free_head_;
    put<std::uint16_t>(entry(last) + packed::kNext, free_head_);
    free_head_ = head;
    put<std::uint16_t>(first_ + header::kPackedFreeHead, head);
  }
  const PackedPosition used = PackedPosition::decode(used_index);
  put<std::uint16_t>(first_ + header::kPackedUsedIdx, used.index);
  put<std::uint8_t>(first_ + header::kPackedUsedWrap, used.wrap ? 1 : 0);
}

void InflightQueue::commit(std::uint16_t used_index) noexcept {
  for (const std::uint16_t index : batch_) {
    put<std::uint8_t>(entry(index), 0);  // `inflight` is the first byte in both layouts
  }
  batch_.clear();
  if (packed_) {
    put<std::uint16_t>(first_ + header::kPackedOldFreeHead, free_head_);
    put<std::uint16_t>(first_ + header::kPackedOldUsedIdx, get<std::uint16_t>(first_ + header::kPackedUsedIdx));
    put<std::uint8_t>(first_ + header::kPackedOldUsedWrap, get<std::uint8_t>(first_ + header::kPackedUsedWrap));
  } else {
    put<std::uint16_t>(first_ + header::kSplitUsedIdx, used_index);
  }
}

// ---------------------------------------------------------------- after a crash

// Packed: where the used elements of what was published end.
PackedPosition InflightQueue::used_position() const noexcept {
  return {.index = get<std::uint16_t>(first_ + header::kPackedUsedIdx),
          .wrap = get<std::uint8_t>(first_ + header::kPackedUsedWrap) != 0};
}

std::optional<std::uint32_t> InflightQueue::recovered_base(std::span<const Pending> pending,
                                                           std::uint32_t ring_size) const noexcept {
  RW_DCHECK(packed_);
  const PackedPosition used = used_position();
  const std::size_t taken = descriptors_of(pending);
  if (used.index >= ring_size || taken > ring_size) {
    return std::nullopt;
  }
  PackedPosition avail = used;
  avail.advance(static_cast<std::uint32_t>(taken), ring_size);
  return avail.encode() | (std::uint32_t{used.encode()} << 16U);
}

std::vector<InflightQueue::Pending> InflightQueue::recover(const RingLayout& layout) {
  std::vector<Pending> pending;
  if (!enabled()) {
    return pending;
  }
  packed_ ? recover_packed(layout, pending) : recover_split(layout, pending);
  // By counter; the head decides where a front-end claims the same counter twice.
  std::ranges::sort(pending, {}, [](const Pending& each) { return std::pair(each.counter, each.head); });
  counter_ = pending.empty() ? 0 : pending.back().counter + 1;
  recovered_.clear();
  for (const Pending& each : pending) {
    recovered_.push_back(each.head);
  }
  repopped_ = 0;
  return pending;
}

void InflightQueue::recover_split(const RingLayout& layout, std::vector<Pending>& pending) {
  const auto published = guest::load_acquire<std::uint16_t>(layout.device_area + 2);  // used idx
  const auto committed = get<std::uint16_t>(first_ + header::kSplitUsedIdx);
  // The last batch had reached the driver, but the process died before it could say so here.
  const auto batch = static_cast<std::uint16_t>(published - committed);
  std::uint32_t index = get<std::uint16_t>(first_ + header::kSplitLastBatchHead);
  for (std::uint32_t i = 0; i < batch && i < size_ && index < size_; ++i) {
    put<std::uint8_t>(entry(index), 0);
    index = get<std::uint16_t>(entry(index) + split::kNext);
  }
  put<std::uint16_t>(first_ + header::kSplitUsedIdx, published);
  for (std::uint32_t head = 0; head < std::min<std::uint32_t>(size_, layout.size); ++head) {
    if (get<std::uint8_t>(entry(head) + split::kInflight) == 1) {
      pending.push_back({.head = static_cast<std::uint16_t>(head),
                         .descriptors = {},
                         .counter = get<std::uint64_t>(entry(head) + split::kCounter)});
    }
  }
}

void InflightQueue::recover_packed(const RingLayout& layout, std::vector<Pending>& pending) {
  const auto move = [this](std::size_t to_index, std::size_t from_index, std::size_t to_wrap, std::size_t from_wrap,
                           std::size_t to_free, std::size_t from_free) {
    put<std::uint16_t>(first_ + to_free, get<std::uint16_t>(first_ + from_free));
    put<std::uint16_t>(first_ + to_index, get<std::uint16_t>(first_ + from_index));
    put<std::uint8_t>(first_ + to_wrap, get<std::uint8_t>(first_ + from_wrap));
  };
  const auto old_used = get<std::uint16_t>(first_ + header::kPackedOldUsedIdx);
  const bool wrap = get<std::uint8_t>(first_ + header::kPackedOldUsedWrap) != 0;
  // A batch of the whole ring moves the wrap counter alone.
  const bool batch = old_used != get<std::uint16_t>(first_ + header::kPackedUsedIdx) ||
                     wrap != (get<std::uint8_t>(first_ + header::kPackedUsedWrap) != 0);
  if (batch && old_used < layout.size) {
    const auto flags =
        guest::load_acquire<std::uint16_t>(layout.descriptor_area + std::size_t{old_used} * sizeof(spec::PackedDescriptor) +
                                           offsetof(spec::PackedDescriptor, flags));
    const std::uint16_t available = wrap ? spec::kPackedDescAvail : spec::kPackedDescUsed;
    if ((flags & (spec::kPackedDescAvail | spec::kPackedDescUsed)) != available) {
      // The batch had reached the driver: commit it.
      move(header::kPackedOldUsedIdx, header::kPackedUsedIdx, header::kPackedOldUsedWrap, header::kPackedUsedWrap,
           header::kPackedOldFreeHead, header::kPackedFreeHead);
    }
  }
  // Whatever is newer than the old values never happened.
  move(header::kPackedUsedIdx, header::kPackedOldUsedIdx, header::kPackedUsedWrap, header::kPackedOldUsedWrap,
       header::kPackedFreeHead, header::kPackedOldFreeHead);

  for (std::uint32_t i = 0; i < size_; ++i) {
    next_[i] = get<std::uint16_t>(entry(i) + packed::kNext);
  }
  free_head_ = get<std::uint16_t>(first_ + header::kPackedFreeHead);
  std::uint32_t index = free_head_;
  for (std::uint32_t i = 0; i < size_ && index < size_; ++i, index = next_[index]) {
    put<std::uint8_t>(entry(index), 0);
  }
  // A chain that claims an entry of an earlier one, or one of its own again, ends there: all chains together have no more
  // descriptors than the part has entries.
  std::vector<bool> claimed(size_);
  for (std::uint32_t head = 0; head < size_; ++head) {
    if (get<std::uint8_t>(entry(head) + packed::kInflight) != 1) {
      continue;
    }
    Pending chain{.head = static_cast<std::uint16_t>(head),
                  .descriptors = {},
                  .counter = get<std::uint64_t>(entry(head) + packed::kCounter)};
    const std::uint32_t count = std::min<std::uint32_t>(get<std::uint16_t>(entry(head) + packed::kNum), size_);
    std::uint32_t at = head;
    for (std::uint32_t i = 0; i < count && at < size_ && !claimed[at]; ++i, at = next_[at]) {
      claimed[at] = true;
      last_of_[head] = static_cast<std::uint16_t>(at);
      chain.descriptors.push_back({.address = get<std::uint64_t>(entry(at) + packed::kAddress),
                                   .length = get<std::uint32_t>(entry(at) + packed::kLength),
                                   .id = get<std::uint16_t>(entry(at) + packed::kId),
                                   .flags = get<std::uint16_t>(entry(at) + packed::kFlags)});
    }
    if (!chain.descriptors.empty()) {
      pending.push_back(std::move(chain));
    }
  }
  take_back_elements(layout, pending);
}

// A packed ring's used elements stand in the ring as soon as they are written; of a batch only the first one's flags are
// held back. If our predecessor died in between, those behind the first must not look used: the driver would take them once
// it gets there, and the next recovery would take them for a batch that was published.
void InflightQueue::take_back_elements(const RingLayout& layout, std::span<const Pending> pending) noexcept {
  PackedPosition at = used_position();
  std::size_t taken = descriptors_of(pending);
  if (at.index >= layout.size || taken > layout.size) {
    return;
  }
  for (; taken != 0; --taken, at.advance(1, layout.size)) {
    std::byte* const flags = layout.descriptor_area + std::size_t{at.index} * sizeof(spec::PackedDescriptor) +
                             offsetof(spec::PackedDescriptor, flags);
    if ((guest::load<std::uint16_t>(flags) & kPackedStateFlags) == at.used_flags()) {
      guest::store(flags, at.avail_flags());
    }
  }
}

}  // namespace ringway
