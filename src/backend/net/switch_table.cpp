#include "backend/net/switch_table.hpp"

#include <bit>
#include <cstring>

#include "base/check.hpp"

namespace ringway {
namespace {

// port | second, and a bit that makes it differ from 0.
constexpr std::uint64_t value_of(std::uint16_t port, std::uint32_t second) noexcept {
  return std::uint64_t{1} << 63U | std::uint64_t{port} << 32U | second;
}
constexpr std::uint16_t port_of(std::uint64_t value) noexcept {
  return static_cast<std::uint16_t>(value >> 32U);
}
constexpr std::uint32_t second_of(std::uint64_t value) noexcept {
  return static_cast<std::uint32_t>(value);
}

}  // namespace

std::uint64_t switch_mac(std::span<const std::byte, spec::kMacBytes> bytes) noexcept {
  std::uint64_t mac = 0;
  std::memcpy(&mac, bytes.data(), bytes.size());
  return mac;
}

SwitchTable::SwitchTable(const Options& options)
    : mask_(options.entries - 1),
      per_port_(options.entries_per_port),
      ageing_(options.ageing_seconds),
      secret_(options.secret),
      entries_(std::make_unique<Entry[]>(options.entries)),
      taken_(std::make_unique<std::atomic<std::uint32_t>[]>(kPortsMax)) {
  RW_CHECK(std::has_single_bit(options.entries) && options.entries >= kProbes);
}

std::size_t SwitchTable::place_of(SwitchKey key) const noexcept {
  std::uint64_t hash = (key.word ^ secret_) * 0x9e3779b97f4a7c15ULL;
  hash ^= hash >> 32U;
  hash = (hash ^ std::rotl(secret_, 29)) * 0xd6e8feb86659fd93ULL;
  return static_cast<std::size_t>(hash >> 32U);
}

bool SwitchTable::expired(std::uint64_t value, std::uint32_t second) const noexcept {
  // Negative if another worker's second has begun already.
  const auto age = static_cast<std::int32_t>(second - second_of(value));
  return age > 0 && static_cast<std::uint32_t>(age) > ageing_;
}

std::uint16_t SwitchTable::find(SwitchKey key, std::uint32_t second) const noexcept {
  const std::size_t first = place_of(key);
  for (std::size_t i = 0; i < kProbes; ++i) {
    const Entry& entry = entries_[(first + i) & mask_];
    // Both acquire: pair with the stores of fill(), so that a value of the entry's next use comes with its key.
    if (entry.key.load(std::memory_order_acquire) != key.word) {
      continue;
    }
    const std::uint64_t value = entry.value.load(std::memory_order_acquire);
    if (value != 0 && !expired(value, second) && entry.key.load(std::memory_order_relaxed) == key.word) {
      return port_of(value);
    }
  }
  return kNowhere;
}

SwitchTable::Learned SwitchTable::learn(SwitchKey key, std::uint16_t port, std::uint32_t second) noexcept {
  const std::size_t first = place_of(key);
  for (std::size_t i = 0; i < kProbes; ++i) {
    Entry& entry = entries_[(first + i) & mask_];
    if (entry.key.load(std::memory_order_acquire) == key.word) {
      return meet(entry, port, second);
    }
  }
  return insert(key, port, second);
}

SwitchTable::Learned SwitchTable::meet(Entry& entry, std::uint16_t port, std::uint32_t second) noexcept {
  std::uint64_t value = entry.value.load(std::memory_order_acquire);
  const std::uint64_t wanted = value_of(port, second);
  if (RW_LIKELY(value == wanted) || value == 0) {
    return Learned::known;
  }
  if (port_of(value) == port) {
    // Once a second. Whoever was faster said the same, or made it another's.
    static_cast<void>(entry.value.compare_exchange_strong(value, wanted, std::memory_order_acq_rel));
    return Learned::known;
  }
  if (!reserve(port)) {
    return Learned::refused;
  }
  if (!entry.value.compare_exchange_strong(value, wanted, std::memory_order_acq_rel)) {
    unreserve(port);
    return Learned::refused;
  }
  unreserve(port_of(value));
  return Learned::moved;
}

SwitchTable::Learned SwitchTable::insert(SwitchKey key, std::uint16_t port, std::uint32_t second) noexcept {
  sweep(second);
  const std::uint64_t wanted = value_of(port, second);
  const std::size_t first = place_of(key);
  const bool has_room = reserve(port);
  Entry* oldest = nullptr;  // of the port's own
  std::uint64_t oldest_value = 0;
  for (std::size_t i = 0; i < kProbes; ++i) {
    Entry& entry = entries_[(first + i) & mask_];
    const std::uint64_t value = entry.value.load(std::memory_order_acquire);
    if (value == 0) {
      std::uint64_t empty = 0;
      // The key claims an entry that is empty; the value follows.
      if (has_room && entry.key.compare_exchange_strong(empty, key.word, std::memory_order_acq_rel)) {
        entry.value.store(wanted, std::memory_order_release);  // pairs with find()
        return Learned::added;
      }
    } else if (expired(value, second)) {
      if (has_room && claim(entry, value)) {
        unreserve(port_of(value));
        fill(entry, key, wanted);
        return Learned::added;
      }
    } else if (port_of(value) == port &&
               (oldest == nullptr || static_cast<std::int32_t>(second_of(value) - second_of(oldest_value)) < 0)) {
      oldest = &entry;
      oldest_value = value;
    }
  }
  if (has_room) {
    unreserve(port);
  }
  if (oldest == nullptr || !claim(*oldest, oldest_value)) {
    return Learned::refused;
  }
  fill(*oldest, key, wanted);
  return Learned::added;
}

bool SwitchTable::claim(Entry& entry, std::uint64_t value) noexcept {
  return entry.value.compare_exchange_strong(value, 0, std::memory_order_acq_rel);
}

void SwitchTable::fill(Entry& entry, SwitchKey key, std::uint64_t value) noexcept {
  // Both release: pair with find().
  entry.key.store(key.word, std::memory_order_release);
  entry.value.store(value, std::memory_order_release);
}

bool SwitchTable::reserve(std::uint16_t port) noexcept {
  if (taken_[port].fetch_add(1, std::memory_order_relaxed) < per_port_) {
    return true;
  }
  unreserve(port);
  return false;
}

void SwitchTable::sweep(std::uint32_t second) noexcept {
  const std::size_t first = swept_.fetch_add(kSweep, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kSweep; ++i) {
    Entry& entry = entries_[(first + i) & mask_];
    const std::uint64_t value = entry.value.load(std::memory_order_acquire);
    if (value != 0 && expired(value, second) && claim(entry, value)) {
      unreserve(port_of(value));
      fill(entry, SwitchKey{}, 0);
    }
  }
}

void SwitchTable::forget(std::uint16_t port) noexcept {
  for (std::size_t i = 0; i <= mask_; ++i) {
    std::uint64_t value = entries_[i].value.load(std::memory_order_acquire);
    while (value != 0 && port_of(value) == port) {
      if (claim(entries_[i], value)) {
        unreserve(port);
        fill(entries_[i], SwitchKey{}, 0);
        break;
      }
      value = entries_[i].value.load(std::memory_order_acquire);
    }
  }
}

}  // namespace ringway
