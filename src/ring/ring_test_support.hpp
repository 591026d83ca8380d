// What the tests and the fuzz target of ring/ share: guest memory with the areas of one ring in it, and a driver that writes
// any descriptors it is told to, sensible or not.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "guest/access.hpp"
#include "guest/mapping.hpp"
#include "guest/region_map.hpp"
#include "ring/chain_builder.hpp"
#include "ring/packed_ring.hpp"
#include "ring/ring_layout.hpp"
#include "ring/spec.hpp"

namespace ringway::testing {

// Two regions, adjacent by guest address and not by host address. The first begins with the ring's areas and the indirect
// tables; the rest of it and the second are data.
class RingMemory {
 public:
  static constexpr std::uint64_t kGuest = 0x10'0000;
  static constexpr std::uint64_t kUser = 0x7000'0000'0000;
  static constexpr std::uint64_t kDataBytes = 0x1'0000;  // in the first region, up to the border
  static constexpr std::uint64_t kSecondBytes = 0x1'0000;
  static constexpr std::uint32_t kTableEntries = 8;

  RingMemory(std::uint32_t size, bool packed) {
    const RingAreaBytes areas = ring_area_bytes(size, packed);
    std::uint64_t end = 0;
    const auto take = [&end](std::uint64_t bytes) {
      const std::uint64_t offset = end;
      end = (end + bytes + 63) & ~std::uint64_t{63};
      return offset;
    };
    addresses.descriptor_area = UserAddress{kUser + take(areas.descriptor)};
    addresses.driver_area = UserAddress{kUser + take(areas.driver)};
    addresses.device_area = UserAddress{kUser + take(areas.device)};
    ring_bytes = end;
    tables = GuestAddress{kGuest + take(std::uint64_t{size} * kTableEntries * kDescriptorBytes)};
    end = (end + 4095) & ~std::uint64_t{4095};
    data = GuestAddress{kGuest + end};
    end += kDataBytes;
    border = GuestAddress{kGuest + end};
    first = value(Mapping::create_anonymous(GuestAddress{kGuest}, UserAddress{kUser}, end));
    second = value(Mapping::create_anonymous(border, UserAddress{kUser + 0x1'0000'0000}, kSecondBytes));
    map = value(RegionMap::create({first, second}));
    layout = value(RingLayout::resolve(*map, addresses, size, packed));
  }

  template <typename T>
  static T value(Result<T> result) {
    RW_CHECK(result.has_value());
    return std::move(*result);
  }

  [[nodiscard]] std::byte* host(GuestAddress address, std::uint64_t bytes = 1) const {
    return map->contiguous(address, bytes);
  }
  // Whether the bytes are guest memory, by the mappings themselves rather than by the code under test.
  [[nodiscard]] bool holds(const iovec& segment) const {
    for (const auto& mapping : {first, second}) {
      const auto start = std::bit_cast<std::uintptr_t>(mapping->data());
      const auto address = std::bit_cast<std::uintptr_t>(segment.iov_base);
      if (address >= start && segment.iov_len <= mapping->bytes() && address - start <= mapping->bytes() - segment.iov_len) {
        return true;
      }
    }
    return false;
  }

  RingAddresses addresses;
  std::uint64_t ring_bytes = 0;  // the first bytes of the first region are the ring's
  GuestAddress tables;
  GuestAddress data;
  GuestAddress border;
  std::shared_ptr<Mapping> first;
  std::shared_ptr<Mapping> second;
  std::shared_ptr<const RegionMap> map;
  RingLayout layout;
};

struct RawDescriptor {
  std::uint64_t address = 0;
  std::uint32_t bytes = 0;
  std::uint16_t flags = 0;  // kDescNext is added except to the last, unless `exact`
};

// Makes chains available with exactly the descriptors given. It takes ring entries in order and never looks at what is used.
class RawDriver {
 public:
  RawDriver(const RingLayout& layout, bool packed) : layout_(layout), packed_(packed) {}

  // Returns the id that a used element will carry.
  std::uint16_t offer(std::vector<RawDescriptor> descriptors, bool exact = false) {
    const std::uint16_t id =
        packed_ ? static_cast<std::uint16_t>(chains_ % layout_.size) : static_cast<std::uint16_t>(taken_ % layout_.size);
    const PackedPosition first = position_;
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
      RawDescriptor& raw = descriptors[i];
      if (!exact && i + 1 != descriptors.size()) {
        raw.flags |= spec::kDescNext;
      }
      if (packed_) {
        const auto flags = static_cast<std::uint16_t>(raw.flags | (i == 0 ? first_flags_hidden() : position_.avail_flags()));
        put(position_.index, spec::PackedDescriptor{.address = raw.address, .length = raw.bytes, .id = id, .flags = flags});
        if (i == 0) {
          first_flags_ = static_cast<std::uint16_t>(raw.flags | position_.avail_flags());
        }
        position_.advance(1, layout_.size);
      } else {
        put(taken_ % layout_.size, spec::Descriptor{.address = raw.address,
                                                    .length = raw.bytes,
                                                    .flags = raw.flags,
                                                    .next = static_cast<std::uint16_t>((taken_ + 1) % layout_.size)});
      }
      ++taken_;
    }
    ++chains_;
    if (packed_) {
      guest::store_release(layout_.descriptor_area + std::size_t{first.index} * kDescriptorBytes + 14, first_flags_);
    } else {
      offer_head(id);
    }
    return id;
  }
  // Split only.
  void offer_head(std::uint16_t head) {
    guest::store(layout_.driver_area + 4 + std::size_t{avail_ & (layout_.size - 1)} * 2, head);
    set_avail_index(static_cast<std::uint16_t>(avail_ + 1));
  }
  void set_avail_index(std::uint16_t index) {
    avail_ = index;
    guest::store_release(layout_.driver_area + 2, index);
  }
  template <typename Descriptor>
  void put(std::uint32_t index, const Descriptor& descriptor) {
    write_descriptor(layout_.descriptor_area + std::size_t{index} * kDescriptorBytes, descriptor);
  }

 private:
  [[nodiscard]] std::uint16_t first_flags_hidden() const { return position_.used_flags(); }

  RingLayout layout_;
  bool packed_;
  std::uint32_t taken_ = 0;
  std::uint32_t chains_ = 0;
  std::uint16_t avail_ = 0;
  std::uint16_t first_flags_ = 0;
  PackedPosition position_;
};

}  // namespace ringway::testing
