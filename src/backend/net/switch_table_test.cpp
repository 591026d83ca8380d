#include "backend/net/switch_table.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/prng.hpp"

namespace ringway {
namespace {

using Learned = SwitchTable::Learned;

constexpr SwitchTable::Options kSmall{.entries = 64, .entries_per_port = 16, .ageing_seconds = 300, .secret = 7};

SwitchKey key(std::uint64_t mac, std::uint16_t vlan = 1) {
  return SwitchKey::of(vlan, mac << 8U);
}

TEST(SwitchTable, AnAddressIsWhereItWasSeenInItsVlan) {
  SwitchTable table(kSmall);
  EXPECT_EQ(table.find(key(1), 0), SwitchTable::kNowhere);
  EXPECT_EQ(table.learn(key(1), 3, 0), Learned::added);
  EXPECT_EQ(table.learn(key(1), 3, 0), Learned::known);
  EXPECT_EQ(table.find(key(1), 0), 3);
  EXPECT_EQ(table.find(key(1, 2), 0), SwitchTable::kNowhere);
  EXPECT_EQ(table.learn(key(1, 2), 4, 0), Learned::added);
  EXPECT_EQ(table.find(key(1), 0), 3);
  EXPECT_EQ(table.find(key(1, 2), 0), 4);
}

TEST(SwitchTable, AnAddressMoves) {
  SwitchTable table(kSmall);
  static_cast<void>(table.learn(key(1), 3, 0));
  EXPECT_EQ(table.learn(key(1), 5, 0), Learned::moved);
  EXPECT_EQ(table.find(key(1), 0), 5);
  EXPECT_EQ(table.taken(3), 0U);
  EXPECT_EQ(table.taken(5), 1U);
}

TEST(SwitchTable, WhoSendsNothingIsForgottenAndWhoSendsIsNot) {
  SwitchTable table(kSmall);
  static_cast<void>(table.learn(key(1), 3, 1000));
  static_cast<void>(table.learn(key(2), 3, 1000));
  static_cast<void>(table.learn(key(2), 3, 1200));
  EXPECT_EQ(table.find(key(1), 1300), 3);
  EXPECT_EQ(table.find(key(1), 1301), SwitchTable::kNowhere);
  EXPECT_EQ(table.find(key(2), 1500), 3);
  // One worker's second may not have begun yet on another.
  static_cast<void>(table.learn(key(4), 3, 2000));
  EXPECT_EQ(table.find(key(4), 1999), 3);
}

TEST(SwitchTable, AFloodFromOnePortDisplacesNobodyElse) {
  SwitchTable table(kSmall);
  std::vector<std::uint64_t> known;
  for (std::uint64_t mac = 1; mac <= 12; ++mac) {
    if (table.learn(key(mac), 1, 0) == Learned::added) {
      known.push_back(mac);
    }
  }
  ASSERT_GE(known.size(), 8U);
  for (std::uint64_t mac = 1000; mac < 100'000; ++mac) {
    static_cast<void>(table.learn(key(mac), 2, 1));
  }
  EXPECT_LE(table.taken(2), kSmall.entries_per_port);
  for (const std::uint64_t mac : known) {
    EXPECT_EQ(table.find(key(mac), 1), 1) << mac;
    // Nor by pretending to be them, beyond what it may have.
    static_cast<void>(table.learn(key(mac), 2, 1));
  }
  EXPECT_LE(table.taken(2), kSmall.entries_per_port);
  EXPECT_GE(table.taken(2), 4U) << "its own newest addresses it may have";
}

TEST(SwitchTable, WhatHasExpiredMakesRoom) {
  SwitchTable table(kSmall);
  for (std::uint64_t mac = 1; mac <= 1000; ++mac) {
    static_cast<void>(table.learn(key(mac), 1, 0));
  }
  const std::uint32_t before = table.taken(1);
  ASSERT_GE(before, 8U);
  // Others find the places of what is expired empty again.
  for (std::uint64_t mac = 2001; mac <= 2016; ++mac) {
    static_cast<void>(table.learn(key(mac), 2, 1000));
  }
  EXPECT_LT(table.taken(1), before);
  EXPECT_GE(table.taken(2), 12U);
}

TEST(SwitchTable, APortThatGoesIsForgotten) {
  SwitchTable table(kSmall);
  for (std::uint64_t mac = 1; mac <= 10; ++mac) {
    static_cast<void>(table.learn(key(mac), static_cast<std::uint16_t>(mac % 2), 0));
  }
  table.forget(1);
  EXPECT_EQ(table.taken(1), 0U);
  for (std::uint64_t mac = 1; mac <= 10; ++mac) {
    EXPECT_NE(table.find(key(mac), 0), 1);
  }
}

// Each address is learned for one port only, or for one of two: nobody may ever be told of a third.
TEST(SwitchTable, ThreadsThatLearnAtOnceLeaveItWhole) {
  SwitchTable table({.entries = 64, .entries_per_port = 24, .ageing_seconds = 3, .secret = 11});
  constexpr int kRounds = 60'000;
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> found{0};
  const auto work = [&](std::uint16_t port) {
    Prng prng(port);
    for (int round = 0; round < kRounds; ++round) {
      const auto second = static_cast<std::uint32_t>(round / 1000);
      const std::uint64_t mac = prng.below(60);
      // The last 20 addresses are everybody's.
      const std::uint64_t own = mac < 40 ? mac / 2 * 2 + port : mac;
      static_cast<void>(table.learn(key(own + 1), port, second));
      const std::uint64_t asked = prng.below(60);
      const std::uint16_t at = table.find(key(asked + 1), second);
      if (at != SwitchTable::kNowhere) {
        found.fetch_add(1, std::memory_order_relaxed);
        wrong.fetch_add(at > 1 || (asked < 40 && at != asked % 2) ? 1 : 0, std::memory_order_relaxed);
      }
    }
  };
  std::thread other(work, std::uint16_t{1});
  work(0);
  other.join();
  // A key that is found with the value of the entry's next life takes a reader that was held up between two loads.
  EXPECT_LE(wrong.load(), found.load() / 1000);
  EXPECT_GT(found.load(), 1000U);
  EXPECT_LE(table.taken(0), 24U);
  EXPECT_LE(table.taken(1), 24U);
  // What ports are said to have is what there is.
  std::uint32_t there = 0;
  for (std::uint64_t mac = 0; mac < 60; ++mac) {
    there += table.find(key(mac + 1), kRounds / 1000 - 1) != SwitchTable::kNowhere ? 1 : 0;
  }
  EXPECT_GE(table.taken(0) + table.taken(1), there);
  table.forget(0);
  table.forget(1);
  EXPECT_EQ(table.taken(0), 0U);
  EXPECT_EQ(table.taken(1), 0U);
}

}  // namespace
}  // namespace ringway
