#include "device/blk_slot.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/prng.hpp"

namespace ringway {
namespace {

struct Holder {
  BlkSlotShare share;
  std::vector<BlkSlot*> slots;

  // As many as the pool gives, `most` at most.
  std::size_t take_from(BlkSlotPool& pool, std::size_t most = SIZE_MAX) {
    std::size_t taken = 0;
    for (; taken < most && pool.has_room(share); ++taken) {
      slots.push_back(&pool.take(share));
    }
    return taken;
  }
  void give_back_to(BlkSlotPool& pool, std::size_t count) {
    for (; count > 0; --count) {
      pool.give(*slots.back(), share);
      slots.pop_back();
    }
  }
};

TEST(BlkSlotPool, AloneADeviceGetsItsReserveAndHalfOfTheRest) {
  BlkSlotPool pool(100, 1);
  ASSERT_TRUE(pool.admit());
  Holder alone;
  EXPECT_EQ(alone.take_from(pool), limits::kReservedSlots + 50);
  alone.give_back_to(pool, alone.slots.size());
  EXPECT_EQ(alone.take_from(pool), limits::kReservedSlots + 50);
}

TEST(BlkSlotPool, HoweverManyHangEachOtherOneHasItsReserve) {
  BlkSlotPool pool;
  std::vector<Holder> hung(limits::kDevicesMax - 1);
  for (Holder& each : hung) {
    ASSERT_TRUE(pool.admit());
    EXPECT_GE(each.take_from(pool), limits::kReservedSlots);
  }
  ASSERT_TRUE(pool.admit());
  EXPECT_FALSE(pool.admit());
  Holder last;
  EXPECT_EQ(last.take_from(pool), limits::kReservedSlots);
  EXPECT_FALSE(pool.take_replenished());
  // Its own slots are what it may wait for; the others gain nothing by their coming back.
  last.give_back_to(pool, 1);
  EXPECT_TRUE(pool.take_replenished());
  EXPECT_TRUE(pool.has_room(last.share));
  EXPECT_TRUE(std::ranges::none_of(hung, [&](const Holder& each) { return pool.has_room(each.share); }));
  last.give_back_to(pool, 1);
  EXPECT_FALSE(pool.take_replenished());
}

TEST(BlkSlotPool, WhatComesBackIsForWhoHoldsLeast) {
  BlkSlotPool pool(64, 2);
  Holder first;
  Holder second;
  ASSERT_TRUE(pool.admit() && pool.admit());
  EXPECT_EQ(first.take_from(pool), limits::kReservedSlots + 32);
  EXPECT_EQ(second.take_from(pool), limits::kReservedSlots + 16);
  first.give_back_to(pool, 16);
  EXPECT_TRUE(pool.take_replenished());
  EXPECT_FALSE(pool.take_replenished());
  EXPECT_EQ(second.take_from(pool), 8U);
  // A reserve that has gone is free for the next device; nothing else is.
  second.give_back_to(pool, second.slots.size());
  pool.dismiss(second.share);
  EXPECT_TRUE(pool.admit());
  EXPECT_FALSE(pool.admit());
}

// Never more than there is, never one twice, and always the reserve.
TEST(BlkSlotPool, AnyOrderOfTakingAndGiving) {
  BlkSlotPool pool(200, 8);
  std::vector<Holder> holders(8);
  for ([[maybe_unused]] Holder& each : holders) {
    ASSERT_TRUE(pool.admit());
  }
  Prng random(1);
  for (int step = 0; step < 5000; ++step) {
    Holder& one = holders[random.below(holders.size())];
    const std::size_t amount = random.below(2 * limits::kReservedSlots) + 1;
    if (random.below(2) == 0) {
      const std::size_t held = one.slots.size();
      const std::size_t taken = one.take_from(pool, amount);
      ASSERT_TRUE(taken == amount || held + taken >= limits::kReservedSlots);
    } else {
      one.give_back_to(pool, std::min(amount, one.slots.size()));
    }
    std::set<const BlkSlot*> in_use;
    std::size_t held = 0;
    std::size_t shared = 0;
    for (const Holder& each : holders) {
      ASSERT_EQ(each.share.held, each.slots.size());
      in_use.insert(each.slots.begin(), each.slots.end());
      held += each.slots.size();
      shared += std::max<std::size_t>(each.slots.size(), limits::kReservedSlots) - limits::kReservedSlots;
    }
    ASSERT_EQ(in_use.size(), held);
    ASSERT_LE(shared, 200U);
  }
}

TEST(BlkSlotPool, EachSlotHasSegmentsOfItsOwn) {
  BlkSlotPool pool(4, 1, 1);
  ASSERT_TRUE(pool.admit());
  Holder holder;
  ASSERT_EQ(holder.take_from(pool), limits::kReservedSlots + 2);
  std::set<const iovec*> starts;
  for (BlkSlot* slot : holder.slots) {
    const std::span<iovec> segments = pool.segments(*slot, limits::kLongSegments);
    ASSERT_EQ(segments.size(), limits::kLongSegments);
    std::ranges::fill(segments, iovec{});  // a sanitizer sees it if they aren't there
    starts.insert(segments.data());
  }
  EXPECT_EQ(starts.size(), holder.slots.size());
  // The wide ones are lent, and come back with the slot.
  EXPECT_EQ(pool.segments(*holder.slots.back(), limits::kLongSegments + 1).size(), limits::kChainSegmentsMax);
  EXPECT_TRUE(pool.segments(*holder.slots.front(), limits::kLongSegments + 1).empty());
  holder.give_back_to(pool, 1);
  EXPECT_EQ(pool.segments(*holder.slots.front(), limits::kLongSegments + 1).size(), limits::kChainSegmentsMax);
}

}  // namespace
}  // namespace ringway
