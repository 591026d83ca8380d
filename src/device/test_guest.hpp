// What the tests and the bench of a queue share: a guest's memory without a guest, and an executor without threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "guest/mapping.hpp"
#include "guest/region_map.hpp"
#include "loop/executor.hpp"

namespace ringway::testing {

// What crosses threads in the daemon is done at once here.
class SameThread final : public Executor {
 public:
  void post(std::move_only_function<void()> message) override { message(); }
  [[nodiscard]] bool is_current() const noexcept override { return true; }
};

// Memory in some regions, and pages of the last one to be handed out.
class Guest {
 public:
  struct Place {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };
  explicit Guest(const std::vector<Place>& places) : next_(places.back().address) {
    std::vector<std::shared_ptr<Mapping>> mappings;
    for (const Place& place : places) {
      mappings.push_back(
          *Mapping::create_anonymous(GuestAddress{place.address}, UserAddress{kUser + place.address}, place.bytes));
    }
    map_ = *RegionMap::create(std::move(mappings));
  }

  [[nodiscard]] GuestAddress take(std::uint64_t bytes) {
    const GuestAddress address{next_};
    RW_CHECK(map_->contiguous(address, bytes) != nullptr);
    next_ += (bytes + 4095) & ~std::uint64_t{4095};
    return address;
  }
  template <typename T>
  void put(GuestAddress at, std::uint64_t offset, T value) {
    std::memcpy(host(at) + offset, &value, sizeof value);
  }
  [[nodiscard]] std::byte* host(GuestAddress address) const { return map_->contiguous(address, 1); }
  [[nodiscard]] static UserAddress user(GuestAddress address) { return UserAddress{kUser + address.value}; }
  [[nodiscard]] const std::shared_ptr<const RegionMap>& map() const { return map_; }

 private:
  static constexpr std::uint64_t kUser = 0x7000'0000'0000;
  std::shared_ptr<const RegionMap> map_;
  std::uint64_t next_;
};

}  // namespace ringway::testing
