#include "guest/region_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/limits.hpp"
#include "base/prng.hpp"
#include "guest/sigbus.hpp"
#include "guest/test_memory.hpp"

namespace ringway {
namespace {

using test::kPage;
using test::memory_file;
using ::testing::HasSubstr;

using Mappings = std::vector<std::shared_ptr<Mapping>>;

std::shared_ptr<Mapping> memory_at(std::uint64_t guest, std::uint64_t bytes, std::uint64_t user = 0) {
  auto mapping = Mapping::create_anonymous(GuestAddress{guest}, UserAddress{user}, bytes);
  RW_CHECK(mapping.has_value());
  return *mapping;
}

std::shared_ptr<const RegionMap> map_of(Mappings mappings) {
  auto map = RegionMap::create(std::move(mappings));
  RW_CHECK(map.has_value());
  return *map;
}

class Translation : public ::testing::Test {
 protected:
  // Two regions that touch in the guest, 0x10000 to 0x12000 and on to 0x15000, a hole, and one at 0x20000. The kernel maps
  // from the top downwards, so making them in this order leaves the neighbours apart or in reverse order on the host.
  std::shared_ptr<Mapping> low_ = memory_at(0x10000, 2 * kPage, 0xa0000);
  std::shared_ptr<Mapping> between_ = memory_at(0x40000, kPage);
  std::shared_ptr<Mapping> high_ = memory_at(0x12000, 3 * kPage, 0xc0000);
  std::shared_ptr<Mapping> apart_ = memory_at(0x20000, kPage, 0xe0000);
  std::shared_ptr<const RegionMap> map_ = map_of({apart_, high_, low_});

  std::array<iovec, 4> pieces_{};
  std::size_t count_ = 0;

  bool translate(std::uint64_t address, std::uint64_t bytes) {
    return map_->translate(GuestAddress{address}, bytes, pieces_, count_);
  }
};

TEST_F(Translation, WithinOneRegionIsOnePiece) {
  ASSERT_TRUE(translate(0x12345, 0x100));
  ASSERT_EQ(count_, 1U);
  EXPECT_EQ(pieces_[0].iov_base, high_->data() + 0x345);
  EXPECT_EQ(pieces_[0].iov_len, 0x100U);
  EXPECT_EQ(map_->contiguous(GuestAddress{0x12345}, 0x100), high_->data() + 0x345);
}

TEST_F(Translation, AcrossAdjacentRegionsIsOnePieceEach) {
  ASSERT_NE(low_->data() + low_->bytes(), high_->data()) << "the test needs mappings that are apart on the host";
  ASSERT_TRUE(translate(0x11ff0, 0x30));
  ASSERT_EQ(count_, 2U);
  EXPECT_EQ(pieces_[0].iov_base, low_->data() + 0x1ff0);
  EXPECT_EQ(pieces_[0].iov_len, 0x10U);
  EXPECT_EQ(pieces_[1].iov_base, high_->data());
  EXPECT_EQ(pieces_[1].iov_len, 0x20U);
  EXPECT_EQ(map_->contiguous(GuestAddress{0x11ff0}, 0x30), nullptr);
  EXPECT_EQ(map_->contiguous(GuestAddress{0x11ff0}, 0x10), low_->data() + 0x1ff0);
}

TEST_F(Translation, TheWholeOfBothNeighboursAndNotAByteMore) {
  ASSERT_TRUE(translate(0x10000, 5 * kPage));
  EXPECT_EQ(count_, 2U);
  count_ = 0;
  EXPECT_FALSE(translate(0x10000, 5 * kPage + 1));
  EXPECT_FALSE(translate(0xffff, 5 * kPage));
  EXPECT_FALSE(translate(0x15000, 1));
  EXPECT_FALSE(translate(0x1ffff, 2));
  EXPECT_EQ(count_, 0U);
}

TEST_F(Translation, AppendsBehindWhatIsThere) {
  ASSERT_TRUE(translate(0x20000, 1));
  ASSERT_TRUE(translate(0x11fff, 2));
  ASSERT_EQ(count_, 3U);
  EXPECT_EQ(pieces_[0].iov_base, apart_->data());
  EXPECT_EQ(pieces_[1].iov_base, low_->data() + 0x1fff);
  EXPECT_EQ(pieces_[2].iov_base, high_->data());
  ASSERT_TRUE(translate(0x20001, 1));
  EXPECT_FALSE(translate(0x20002, 1));  // no room
  EXPECT_EQ(count_, 4U);
}

TEST_F(Translation, NoRoomForTheSecondPieceLeavesTheCount) {
  count_ = 3;
  EXPECT_FALSE(translate(0x11fff, 2));
  EXPECT_EQ(count_, 3U);
}

TEST_F(Translation, EmptyRangesAreRefused) {
  EXPECT_FALSE(translate(0x10000, 0));
  EXPECT_EQ(map_->contiguous(GuestAddress{0x10000}, 0), nullptr);
  EXPECT_EQ(map_->from_user(UserAddress{0xa0000}, 0), nullptr);
}

TEST_F(Translation, RangesThatWrapAreRefused) {
  EXPECT_FALSE(translate(0x11000, UINT64_MAX));
  EXPECT_FALSE(translate(0x11000, UINT64_MAX - 0x11000 + 1));  // ends with the address space
  EXPECT_FALSE(translate(UINT64_MAX, 2));
  EXPECT_FALSE(translate(UINT64_MAX - 0xf, 0x12000));  // would come around into the low region
  EXPECT_EQ(map_->contiguous(GuestAddress{0x11000}, UINT64_MAX), nullptr);
  EXPECT_EQ(map_->contiguous(GuestAddress{UINT64_MAX}, 0x10002), nullptr);
  EXPECT_EQ(map_->from_user(UserAddress{0xa0001}, UINT64_MAX), nullptr);
  EXPECT_EQ(count_, 0U);
}

TEST_F(Translation, RingsAreFoundByTheFrontEndsAddress) {
  EXPECT_EQ(map_->from_user(UserAddress{0xc0010}, 3 * kPage - 0x10), high_->data() + 0x10);
  EXPECT_EQ(map_->from_user(UserAddress{0xc0010}, 3 * kPage - 0xf), nullptr);
  EXPECT_EQ(map_->from_user(UserAddress{0xbffff}, 1), nullptr);
  EXPECT_EQ(map_->from_user(UserAddress{0x12000}, 1), nullptr);
}

TEST_F(Translation, HostPointersLeadBackToTheGuest) {
  GuestAddress address;
  ASSERT_TRUE(map_->guest_address_of(high_->data() + 3 * kPage - 1, address));
  EXPECT_EQ(address.value, 0x14fffU);
  ASSERT_TRUE(map_->guest_address_of(low_->data(), address));
  EXPECT_EQ(address.value, 0x10000U);
  EXPECT_FALSE(map_->guest_address_of(between_->data(), address));
  EXPECT_FALSE(map_->guest_address_of(nullptr, address));
}

TEST_F(Translation, AnyHintGivesTheSameAndIsPutRight) {
  for (const std::uint32_t guess : {0U, 1U, 2U, 3U, 4U, UINT32_MAX}) {
    for (const std::uint64_t address : {0x10000U, 0x11fffU, 0x12000U, 0x14fffU, 0x20000U, 0x15000U, 0xffffU}) {
      for (const std::uint64_t bytes : {0U, 1U, 2U, 0x3000U}) {
        RegionHint hint{guess};
        const RegionMap::Region* near = &map_->near(hint);
        std::byte* const expected = map_->contiguous(GuestAddress{address}, bytes);
        EXPECT_EQ(map_->contiguous(GuestAddress{address}, bytes, near, hint), expected);
        if (expected != nullptr) {
          EXPECT_EQ(near, &map_->near(hint));
          EXPECT_EQ(near->host + (address - near->guest.value), expected);
        }
      }
    }
  }
  const RegionMap empty;
  RegionHint hint{7};
  const RegionMap::Region* near = &empty.near(hint);
  EXPECT_EQ(empty.contiguous(GuestAddress{0}, 1, near, hint), nullptr);
}

TEST(RegionMap, WithoutRegionsHasNoMemory) {
  const auto map = map_of({});
  std::array<iovec, 1> piece{};
  std::size_t count = 0;
  EXPECT_FALSE(map->translate(GuestAddress{0}, 1, piece, count));
  EXPECT_EQ(map->contiguous(GuestAddress{0}, 1), nullptr);
  EXPECT_EQ(map->from_user(UserAddress{0}, 1), nullptr);
  EXPECT_FALSE(map->poisoned());
}

TEST(RegionMap, LastPageOfTheAddressSpaceTranslates) {
  const auto memory = memory_at(UINT64_MAX - kPage + 1, kPage);
  const auto map = map_of({memory});
  std::array<iovec, 2> pieces{};
  std::size_t count = 0;
  ASSERT_TRUE(map->translate(GuestAddress{UINT64_MAX - kPage + 1}, kPage, pieces, count));
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(map->contiguous(GuestAddress{UINT64_MAX}, 1), memory->data() + kPage - 1);
  EXPECT_EQ(map->contiguous(GuestAddress{UINT64_MAX}, 2), nullptr);
  EXPECT_FALSE(map->translate(GuestAddress{UINT64_MAX}, 2, pieces, count));
}

TEST(RegionMap, RefusesRegionsThatOverlap) {
  const auto base = memory_at(0x10000, 2 * kPage);
  const auto refusal = [&base](std::uint64_t guest, std::uint64_t bytes) {
    const auto map = RegionMap::create({base, memory_at(guest, bytes)});
    return map.has_value() ? "no error" : map.error().message;
  };
  EXPECT_THAT(refusal(0x10000, 2 * kPage), HasSubstr("overlap"));
  EXPECT_THAT(refusal(0x11fff, 1), HasSubstr("0x10000 and 0x11fff overlap"));
  EXPECT_THAT(refusal(0xf000, kPage + 1), HasSubstr("overlap"));
  EXPECT_THAT(refusal(0xf000, 4 * kPage), HasSubstr("overlap"));
  EXPECT_THAT(refusal(0xf000, kPage), "no error");
  EXPECT_THAT(refusal(0x12000, kPage), "no error");
}

TEST(RegionMap, HoldsAllSlotsAndFindsEachEdge) {
  constexpr std::uint64_t kStride = 3 * kPage;
  Mappings mappings;
  Prng prng(509);
  for (std::uint64_t i = 0; i < limits::kMemorySlotsMax; ++i) {
    const auto place = static_cast<std::ptrdiff_t>(prng.below(mappings.size() + 1));
    // Every third region touches the one after it.
    mappings.insert(mappings.begin() + place, memory_at((i + 1) * kStride, i % 3 == 0 ? kStride : kPage));
  }
  const auto map = map_of(mappings);
  ASSERT_EQ(map->regions().size(), 509U);
  std::array<iovec, 2> pieces{};
  for (std::uint64_t i = 0; i < limits::kMemorySlotsMax; ++i) {
    const RegionMap::Region& region = map->regions()[i];
    ASSERT_EQ(region.guest.value, (i + 1) * kStride) << "sorted";
    const std::uint64_t end = region.guest.value + region.bytes;
    EXPECT_EQ(map->contiguous(region.guest, region.bytes), region.host);
    EXPECT_EQ(map->contiguous(GuestAddress{end - 1}, 1), region.host + region.bytes - 1);
    std::size_t count = 0;
    const bool neighbour = i % 3 == 0 && i + 1 < limits::kMemorySlotsMax;
    EXPECT_EQ(map->translate(GuestAddress{end - 1}, 2, pieces, count), neighbour) << i;
    EXPECT_EQ(count, neighbour ? 2U : 0U);
  }
  EXPECT_EQ(map->contiguous(GuestAddress{kStride - 1}, 1), nullptr);

  mappings.push_back(memory_at(0, kPage));
  EXPECT_THAT(RegionMap::create(mappings).error().message, HasSubstr("510 regions is too long"));
}

// With PROT_NONE pages on both sides a byte too far would end the test. The kernel places neighbouring mappings side by
// side, so one of a few has neighbours that are ours to protect, or free.
TEST(RegionMap, TouchesNothingOutsideTheMapping) {
  constexpr std::uint64_t kBytes = 4 * kPage;
  Mappings candidates;
  for (int i = 0; i < 16; ++i) {
    candidates.push_back(memory_at(0x10000, kBytes));
  }
  std::set<const Mapping*> spoiled;  // those that have a protected page themselves
  const auto protect = [&](std::byte* page) {
    for (const auto& other : candidates) {
      if (page >= other->data() && page < other->data() + other->bytes()) {
        spoiled.insert(other.get());
        return ::mprotect(page, kPage, PROT_NONE) == 0;
      }
    }
    return ::mmap(page, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == page;
  };
  bool done = false;
  for (std::size_t i = 0; i < candidates.size() && !done; ++i) {
    const std::shared_ptr<Mapping> memory = candidates[i];
    if (spoiled.contains(memory.get()) || !protect(memory->data() - kPage) || !protect(memory->data() + kBytes)) {
      continue;
    }
    done = true;
    const auto map = map_of({memory});
    for (std::uint64_t address = 0x10000 - 64; address <= 0x10000 + kBytes + 64; ++address) {
      for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{64}, kPage, kBytes, kBytes + 1}) {
        std::array<iovec, 4> pieces{};
        std::size_t count = 0;
        if (map->translate(GuestAddress{address}, bytes, pieces, count)) {
          ASSERT_EQ(count, 1U);
          auto* first = static_cast<volatile char*>(pieces[0].iov_base);
          first[0] = 1;
          first[pieces[0].iov_len - 1] = 1;
        }
        if (std::byte* at = map->contiguous(GuestAddress{address}, bytes); at != nullptr) {
          ASSERT_EQ(at, pieces[0].iov_base);
        }
      }
    }
  }
  EXPECT_TRUE(done) << "no mapping with neighbours to protect";
}

TEST(RegionMap, KeepsItsMappingsAlive) {
  std::weak_ptr<Mapping> watched;
  std::shared_ptr<const RegionMap> map;
  {
    const auto memory = memory_at(0x10000, kPage);
    watched = memory;
    map = map_of({memory});
  }
  ASSERT_FALSE(watched.expired());
  map->contiguous(GuestAddress{0x10000}, 1)[0] = std::byte{1};
  map.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(RegionMap, SurvivesWhereEveryMappingIsKept) {
  const auto a = memory_at(0x10000, kPage);
  const auto b = memory_at(0x20000, kPage);
  const auto c = memory_at(0x30000, kPage);
  const auto a_again = memory_at(0x10000, kPage);  // another mapping at the same place isn't the same memory
  const auto old = map_of({a, b});
  EXPECT_TRUE(old->survives_in(*old));
  EXPECT_TRUE(old->survives_in(*map_of({c, b, a})));
  EXPECT_FALSE(old->survives_in(*map_of({a, c})));
  EXPECT_FALSE(old->survives_in(*map_of({a_again, b})));
  EXPECT_TRUE(map_of({})->survives_in(*old));
}

TEST(RegionMap, IsPoisonedByAnyOfItsRegions) {
  const auto a = memory_at(0x10000, kPage);
  const auto b = memory_at(0x20000, kPage);
  const auto both = map_of({a, b});
  const auto only_a = map_of({a});
  EXPECT_FALSE(both->poisoned());
  ASSERT_TRUE(sigbus::poison(b->data() + kPage - 1));
  EXPECT_TRUE(both->poisoned());
  EXPECT_FALSE(only_a->poisoned());
}

}  // namespace
}  // namespace ringway
