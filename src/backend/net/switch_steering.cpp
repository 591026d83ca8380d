#include "backend/net/switch_steering.hpp"

#include <algorithm>
#include <span>

namespace ringway {

void SwitchSteering::set(const NetSteering& by) noexcept {
  const NetHashKey key(std::span(by.hashing.key).first(by.hashing.key_bytes));
  for (std::size_t byte = 0; byte < tables_.size(); ++byte) {
    const NetHashKey::ByteTable& from = key.tables()[byte];
    for (std::size_t half = 0; half < from.low.size(); ++half) {
      tables_[byte][half].store(from.low[half], std::memory_order_relaxed);
      tables_[byte][half + from.low.size()].store(from.high[half], std::memory_order_relaxed);
    }
  }
  types_.store(by.hashing.types, std::memory_order_relaxed);
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    pairs_[i].store(by.table.pairs[i], std::memory_order_relaxed);
  }
  mask_.store(by.table.mask, std::memory_order_relaxed);
  unclassified_.store(by.table.unclassified_pair, std::memory_order_relaxed);
}

std::uint16_t SwitchSteering::choose(SwitchFrame& frame) const noexcept {
  NetHashInput input;
  frame.take_hash_input(types_.load(std::memory_order_relaxed), input);
  if (input.report == spec::kNetHashReportNone) {
    return unclassified_.load(std::memory_order_relaxed);
  }
  std::uint32_t hash = 0;
  for (std::size_t i = 0; i < input.count; ++i) {
    const auto byte = std::to_integer<std::size_t>(input.bytes[i]);
    hash ^= tables_[i][byte & 15U].load(std::memory_order_relaxed) ^
            tables_[i][16U + (byte >> 4U)].load(std::memory_order_relaxed);
  }
  return pairs_[hash & mask_.load(std::memory_order_relaxed)].load(std::memory_order_relaxed);
}

}  // namespace ringway
