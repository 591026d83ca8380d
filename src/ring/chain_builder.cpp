#include "ring/chain_builder.hpp"

#include <algorithm>

namespace ringway {

std::uint32_t read_descriptor_anywhere(const RegionMap& map, GuestAddress address,
                                       std::array<std::uint64_t, 2>& out) noexcept {
  std::array<iovec, kDescriptorBytes> pieces;  // at worst each byte lies in a region of its own
  std::size_t count = 0;
  if (!map.translate(address, kDescriptorBytes, pieces, count)) {
    return 0;
  }
  std::array<std::byte, kDescriptorBytes> bytes;
  std::size_t filled = 0;
  for (const iovec& piece : std::span(pieces).first(count)) {
    guest::copy(bytes.data() + filled, static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
    filled += piece.iov_len;
  }
  out = std::bit_cast<std::array<std::uint64_t, 2>>(bytes);
  return static_cast<std::uint32_t>(count);
}

bool ChainBuilder::translate(std::uint64_t address, std::uint32_t bytes, bool is_writable) noexcept {
  if (fault_ != ChainFault::none) {
    return false;
  }
  const RegionMap::Region* near = &map_.near(hint_);
  std::byte* const host = kept_.next != kept_.end ? map_.contiguous(GuestAddress{address}, bytes, near, hint_) : nullptr;
  use_region(kept_, *near);
  if (host != nullptr) {
    begin_writing(kept_, is_writable);
    append(kept_, host, bytes);
    return true;
  }
  const std::span<iovec> room = chain_.storage().first(limits::kChainSegmentsMax);
  const auto before = static_cast<std::size_t>(kept_.next - segments_);
  std::size_t count = before;
  if (!map_.translate(GuestAddress{address}, bytes, room, count)) {
    cost_ += static_cast<std::uint32_t>(map_.regions().size());  // at most; it ends the translating anyway
    // A range gives at most one piece per region, so with that much room left it was not for want of room.
    set_fault(kept_, room.size() - before >= map_.regions().size() && room.size() != before ? ChainFault::unmapped
                                                                                            : ChainFault::too_many_segments);
    return false;
  }
  begin_writing(kept_, is_writable);
  cost_ += static_cast<std::uint32_t>(count - before - 1);
  kept_.next = segments_ + count;
  kept_.bytes += bytes;
  return true;
}

void ChainBuilder::add_slowly(std::uint64_t address, std::uint32_t bytes, bool is_writable) noexcept {
  if (bytes == 0) {
    return;
  }
  if (!is_writable && kept_.writing) {
    set_fault(kept_, ChainFault::readable_after_writable);
    return;
  }
  if (!translate(address, bytes, is_writable) && is_writable) {
    begin_writing(kept_, is_writable);
    kept_.bytes += bytes;
    tail_address_ = address + (bytes - 1);
    tail_ = tail_address_ >= address ? Tail::moved : Tail::lost;
  }
}

void ChainBuilder::add_entry(std::uint64_t address, std::uint32_t bytes, std::uint16_t flags) noexcept {
  if ((flags & spec::kDescIndirect) != 0) {
    lose_tail(kept_, ChainFault::bad_indirect);
    return;
  }
  add_slowly(address, bytes, (flags & spec::kDescWrite) != 0);
}

bool ChainBuilder::read_entry(std::uint64_t table, std::uint32_t index, std::array<std::uint64_t, 2>& out) noexcept {
  const std::uint64_t address = table + std::uint64_t{index} * kDescriptorBytes;
  const std::uint32_t pieces = read_descriptor_anywhere(map_, GuestAddress{address}, out);
  if (pieces == 0) {
    lose_tail(kept_, ChainFault::bad_indirect);
    return false;
  }
  cost_ += pieces - 1;
  return true;
}

const std::byte* ChainBuilder::find_table(std::uint64_t address, std::uint32_t bytes) noexcept {
  const RegionMap::Region* near = &map_.near(hint_);
  static_cast<void>(map_.contiguous(GuestAddress{address}, bytes, near, hint_));
  use_region(kept_, *near);
  return table_at(kept_, address, bytes);
}

void ChainBuilder::add_split_table_slowly(std::uint64_t address, std::uint32_t bytes) noexcept {
  if (!is_table(bytes)) {
    lose_tail(kept_, ChainFault::bad_indirect);
    return;
  }
  const std::uint32_t entries = bytes / kDescriptorBytes;
  std::uint32_t index = 0;
  for (std::uint32_t taken = 1;; ++taken) {
    ++cost_;
    std::array<std::uint64_t, 2> words;
    if (!read_entry(address, index, words)) {
      return;
    }
    const auto descriptor = std::bit_cast<spec::Descriptor>(words);
    add_entry(descriptor.address, descriptor.length, descriptor.flags);
    if ((descriptor.flags & spec::kDescNext) == 0) {
      return;
    }
    index = descriptor.next;
    if (index >= entries || taken == entries) {
      lose_tail(kept_, ChainFault::bad_indirect);
      return;
    }
  }
}

void ChainBuilder::add_packed_table_slowly(std::uint64_t address, std::uint32_t bytes) noexcept {
  if (!is_table(bytes)) {
    lose_tail(kept_, ChainFault::bad_indirect);
    return;
  }
  const std::uint32_t entries = bytes / kDescriptorBytes;
  cost_ += entries;
  for (std::uint32_t index = 0; index < entries; ++index) {
    std::array<std::uint64_t, 2> words;
    if (!read_entry(address, index, words)) {
      return;
    }
    const auto descriptor = std::bit_cast<spec::PackedDescriptor>(words);
    add_entry(descriptor.address, descriptor.length, descriptor.flags);
  }
}

bool ChainBuilder::finish_tail() noexcept {
  std::byte* const last = tail_ == Tail::moved ? map_.contiguous(GuestAddress{tail_address_}, 1) : nullptr;
  if (last == nullptr) {
    kept_.next = segments_ + readable_;
    return false;
  }
  *kept_.next = iovec{last, 1};
  ++kept_.next;
  return true;
}

}  // namespace ringway
