// Bytes → operations of a driver and a device on one split ring, one packed ring and the model. For a well-behaved driver
// all three must agree on every answer; with hostile edits of the ring's memory in between, the device's side must survive:
// bounded work, and never a segment outside guest memory. Used by the fuzz target and, with random bytes, by a test.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/check.hpp"
#include "ring/device_ring.hpp"
#include "ring/driver_ring.hpp"
#include "ring/ring_model.hpp"
#include "ring/ring_test_support.hpp"

namespace ringway::testing {

class ByteSource {
 public:
  explicit ByteSource(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return next_ >= bytes_.size(); }
  std::uint8_t byte() { return empty() ? std::uint8_t{0} : bytes_[next_++]; }
  std::uint32_t below(std::uint32_t bound) {
    const std::uint32_t low = byte();
    const std::uint32_t value = bound > 256 ? low | (std::uint32_t{byte()} << 8U) : low;
    return bound == 0 ? 0 : value % bound;
  }
  std::uint64_t word() {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < 8; ++i) {
      value |= std::uint64_t{byte()} << (8 * i);
    }
    return value;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t next_ = 0;
};

// One layout: driver and device on memory of their own.
struct RingPair {
  RingPair(std::uint32_t size, const RingFeatures& features)
      : memory(size, features.packed),
        driver({.layout = memory.layout,
                .features = features,
                .indirect_tables = memory.host(memory.tables),
                .indirect_address = memory.tables,
                .indirect_entries = RingMemory::kTableEntries}),
        device(memory.layout, features, features.packed ? kPackedBaseInitial : kSplitBaseInitial) {}

  RingMemory memory;
  DriverRing driver;
  DeviceRing device;
  Chain chain;
  std::unordered_map<std::uint64_t, ChainId> in_flight;  // by token
};

// The token travels in the guest as the address of the chain's first buffer, so that a popped chain can be recognised.
class Differential {
 public:
  explicit Differential(ByteSource& source)
      : source_(source),
        features_(features(source.byte())),
        size_(1U << source.below(5)),  // small, so that full rings and laps are common
        model_(size_, features_.indirect, RingMemory::kTableEntries, features_.event_index, features_.in_order),
        split_(size_, with_layout(false)),
        packed_(size_, with_layout(true)) {
    // Fresh memory asks for all notifications in one layout and for the first one in the other.
    for (RingPair* pair : {&split_, &packed_}) {
      pair->driver.suppress_calls();
      pair->device.suppress_kicks();
    }
  }

  void run() {
    while (!source_.empty()) {
      step(source_.byte() % 10);
    }
  }

 private:
  static RingFeatures features(std::uint8_t bits) {
    return {.packed = false, .indirect = (bits & 1U) != 0, .event_index = (bits & 2U) != 0, .in_order = (bits & 4U) != 0};
  }
  [[nodiscard]] RingFeatures with_layout(bool packed) const {
    RingFeatures result = features_;
    result.packed = packed;
    return result;
  }

  void step(unsigned operation) {
    switch (operation) {
      case 0:
      case 1:
        add();
        break;
      case 2:
        publish_avail();
        break;
      case 3:
      case 4:
        pop();
        break;
      case 5:
        complete();
        break;
      case 6:
        publish_used();
        break;
      case 7:
        take_used();
        break;
      case 8:
        driver_notifications();
        break;
      default:
        device_notifications();
        break;
    }
  }

  void add() {
    const std::uint64_t token = ++last_token_;
    const std::uint32_t count = 1 + source_.below(RingMemory::kTableEntries + 2);
    const std::uint32_t readable = source_.below(count + 1);
    std::vector<ModelBuffer> buffers;
    for (std::uint32_t i = 0; i < count; ++i) {
      // Offsets into the data area of each memory; the first one names the token.
      const std::uint64_t offset = i == 0 ? token % RingMemory::kDataBytes : source_.below(4096);
      const std::uint32_t bytes = i == 0 ? 1 : 1 + source_.below(4096);
      buffers.push_back({.address = offset, .bytes = bytes, .writable = i >= readable});
    }
    const bool accepted = model_.add(buffers, token);
    for (RingPair* pair : {&split_, &packed_}) {
      std::vector<DriverBuffer> given;
      for (const ModelBuffer& buffer : buffers) {
        given.push_back({.address = GuestAddress{pair->memory.data.value + buffer.address},
                         .bytes = buffer.bytes,
                         .device_writable = buffer.writable});
      }
      RW_CHECK(pair->driver.add(given, token) == accepted);
    }
  }

  static void check_wanted(std::optional<bool> wanted, bool got) { RW_CHECK(!wanted.has_value() || *wanted == got); }

  void publish_avail() {
    const std::optional<bool> wanted = model_.publish_avail();
    check_wanted(wanted, split_.driver.publish());
    check_wanted(wanted, packed_.driver.publish());
  }

  void pop() {
    const bool has_work = model_.has_work();
    const std::optional<RingModel::ModelChain> expected = model_.pop();
    for (RingPair* pair : {&split_, &packed_}) {
      RW_CHECK(pair->device.has_work() == has_work);
      const PopStatus status = pair->device.pop(*pair->memory.map, pair->chain);
      RW_CHECK(status == (expected.has_value() ? PopStatus::chain : PopStatus::empty));
      if (!expected.has_value()) {
        continue;
      }
      std::vector<ModelBuffer> got;
      const std::byte* data = pair->memory.host(pair->memory.data);
      const auto take = [&](std::span<const iovec> segments, bool writable) {
        for (const iovec& segment : segments) {
          got.push_back({.address = static_cast<std::uint64_t>(static_cast<const std::byte*>(segment.iov_base) - data),
                         .bytes = static_cast<std::uint32_t>(segment.iov_len),
                         .writable = writable});
        }
      };
      take(pair->chain.readable(), false);
      take(pair->chain.writable(), true);
      RW_CHECK(got == expected->buffers);
      RW_CHECK(pair->chain.id().descriptors == expected->descriptors);
      pair->in_flight.emplace(expected->token, pair->chain.id());
    }
    if (expected.has_value()) {
      popped_.push_back(expected->token);
    }
  }

  void complete() {
    if (popped_.empty()) {
      return;
    }
    const std::size_t which = source_.below(static_cast<std::uint32_t>(popped_.size()));
    const std::uint64_t token = popped_[which];
    popped_.erase(popped_.begin() + static_cast<std::ptrdiff_t>(which));
    const std::uint32_t written = source_.below(5000);
    model_.push_used(token, written);
    for (RingPair* pair : {&split_, &packed_}) {
      pair->device.push_used(pair->in_flight.at(token), written);
      pair->in_flight.erase(token);
      RW_CHECK(pair->device.has_unpublished() == model_.has_unpublished());
      RW_CHECK(pair->device.in_flight() == popped_.size());
    }
  }

  void publish_used() {
    model_.publish_used();
    const std::optional<bool> wanted = model_.should_call();
    for (RingPair* pair : {&split_, &packed_}) {
      // The log must name every byte that publishing changed, no matter what happened since the last time.
      pair->device.publish();
      full_fence();
      check_wanted(wanted, pair->device.should_call() || pair->device.settle_call());
      RW_CHECK(!pair->device.must_settle());
    }
  }

  void take_used() {
    const std::optional<RingModel::ModelUsed> expected = model_.take_used();
    for (RingPair* pair : {&split_, &packed_}) {
      UsedElement used;
      RW_CHECK(pair->driver.has_used() == expected.has_value());
      RW_CHECK(pair->driver.take_used(used) == expected.has_value());
      RW_CHECK(!pair->driver.broken());
      if (expected.has_value()) {
        RW_CHECK(used.token == expected->token && used.written_bytes == expected->written_bytes);
      }
    }
  }

  void driver_notifications() {
    if (source_.below(2) == 0) {
      model_.calls.suppress();
      split_.driver.suppress_calls();
      packed_.driver.suppress_calls();
      return;
    }
    const bool used = model_.arm_calls();
    RW_CHECK(split_.driver.arm_calls() == used);
    RW_CHECK(packed_.driver.arm_calls() == used);
  }

  void device_notifications() {
    if (source_.below(2) == 0) {
      model_.kicks.suppress();
      split_.device.suppress_kicks();
      packed_.device.suppress_kicks();
      return;
    }
    const bool work = model_.arm_kicks();
    RW_CHECK(split_.device.arm_kicks() == work);
    RW_CHECK(packed_.device.arm_kicks() == work);
  }

  ByteSource& source_;
  RingFeatures features_;
  std::uint32_t size_;
  RingModel model_;
  RingPair split_;
  RingPair packed_;
  std::vector<std::uint64_t> popped_;  // tokens in flight, oldest first
  std::uint64_t last_token_ = 0;
};

// A driver that keeps the rules for a while and edits any byte of the ring or of its tables in between.
class Hostile {
 public:
  explicit Hostile(ByteSource& source)
      : source_(source), features_(features(source.byte())), size_(1U << source.below(5)), pair_(size_, features_) {}

  void run() {
    while (!source_.empty()) {
      step(source_.byte() % 8);
    }
    RW_CHECK(pair_.device.in_flight() == popped_.size());
  }

 private:
  static RingFeatures features(std::uint8_t bits) {
    return {.packed = (bits & 8U) != 0,
            .indirect = (bits & 1U) != 0,
            .event_index = (bits & 2U) != 0,
            .in_order = (bits & 4U) != 0};
  }

  void step(unsigned operation) {
    switch (operation) {
      case 0:
        add();
        break;
      case 1:
        static_cast<void>(pair_.driver.publish());
        break;
      case 2:
      case 3:
        pop();
        break;
      case 4:
        if (!popped_.empty()) {
          const std::size_t which = source_.below(static_cast<std::uint32_t>(popped_.size()));
          pair_.device.push_used(popped_[which], source_.byte());
          popped_.erase(popped_.begin() + static_cast<std::ptrdiff_t>(which));
        }
        break;
      case 5: {
        pair_.device.publish();
        if (!pair_.device.should_call() && source_.byte() % 2 == 0) {
          full_fence();
          static_cast<void>(pair_.device.settle_call());
        }
        const WrittenRange range = pair_.device.take_written();
        for (const WrittenRange::Piece& piece : range.pieces) {
          RW_CHECK(piece.bytes == 0 ||
                   pair_.memory.holds({.iov_base = const_cast<std::byte*>(piece.first), .iov_len = piece.bytes}));
        }
        UsedElement used;
        static_cast<void>(pair_.driver.take_used(used));
        break;
      }
      case 6:
        source_.below(2) == 0 ? pair_.device.suppress_kicks() : static_cast<void>(pair_.device.arm_kicks());
        break;
      default:
        edit();
        break;
    }
  }

  void add() {
    std::vector<DriverBuffer> buffers(1 + source_.below(RingMemory::kTableEntries + 2));
    for (DriverBuffer& buffer : buffers) {
      buffer.address = GuestAddress{pair_.memory.border.value - 4096 + source_.below(8192)};
      buffer.bytes = source_.below(4096);
      buffer.device_writable = source_.below(2) != 0;
    }
    static_cast<void>(pair_.driver.add(buffers, 0));
  }

  void pop() {
    switch (pair_.device.pop(*pair_.memory.map, pair_.chain)) {
      case PopStatus::empty:
        break;
      case PopStatus::ring_fault:
        RW_CHECK(pair_.device.ring_fault() != RingFault::none);
        break;
      case PopStatus::chain_fault:
        RW_CHECK(pair_.device.chain_fault() != ChainFault::none);
        [[fallthrough]];
      case PopStatus::chain:
        std::uint64_t bytes = 0;
        for (const std::span<const iovec> list : {pair_.chain.readable(), pair_.chain.writable()}) {
          for (const iovec& segment : list) {
            RW_CHECK(segment.iov_len != 0 && pair_.memory.holds(segment));
            bytes += segment.iov_len;
          }
        }
        // A fault leaves buffers out, but they count.
        RW_CHECK(bytes <= pair_.chain.readable_bytes() + pair_.chain.writable_bytes());
        RW_CHECK(pair_.device.chain_fault() != ChainFault::none ||
                 bytes == pair_.chain.readable_bytes() + pair_.chain.writable_bytes());
        popped_.push_back(pair_.chain.id());
        break;
    }
  }

  void edit() {
    // Mostly the ring itself, in words as a driver would write them, and small values that come near to being right.
    const std::uint64_t range = pair_.memory.data.value - RingMemory::kGuest;
    const std::uint64_t bytes = source_.below(2) == 0 ? pair_.memory.ring_bytes : range;
    const std::uint64_t offset = source_.below(static_cast<std::uint32_t>(bytes / 2)) * 2;
    std::byte* at = pair_.memory.first->data() + offset;
    switch (source_.below(4)) {
      case 0:
        guest::store(at, static_cast<std::uint16_t>(source_.below(64)));
        break;
      case 1:
        guest::store(at, static_cast<std::uint16_t>(source_.word()));
        break;
      case 2:
        guest::store(at, static_cast<std::uint16_t>(guest::load<std::uint16_t>(at) ^ (1U << source_.below(16))));
        break;
      default: {
        const std::uint64_t word = source_.word();
        guest::copy(at, std::bit_cast<std::array<std::byte, 8>>(word).data(), std::min<std::uint64_t>(8, bytes - offset));
        break;
      }
    }
  }

  ByteSource& source_;
  RingFeatures features_;
  std::uint32_t size_;
  RingPair pair_;
  std::vector<ChainId> popped_;
};

// The first byte chooses the kind of driver.
inline void run_ring_bytes(std::span<const std::uint8_t> bytes) {
  ByteSource source(bytes);
  if ((source.byte() & 1U) == 0) {
    Differential(source).run();
  } else {
    Hostile(source).run();
  }
}

}  // namespace ringway::testing
