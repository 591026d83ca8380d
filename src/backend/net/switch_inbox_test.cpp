#include "backend/net/switch_inbox.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

namespace ringway {
namespace {

using Put = SwitchInbox::Put;

struct Item : SwitchLink {
  int producer = 0;
  int number = 0;
};

SwitchLinks links_of(std::initializer_list<Item*> items) {
  SwitchLinks links;
  for (Item* item : items) {
    links.add(*item);
  }
  return links;
}
std::vector<int> numbers(SwitchLink* link) {
  std::vector<int> all;
  for (; link != nullptr; link = link->next) {
    all.push_back(static_cast<Item*>(link)->number);
  }
  return all;
}

TEST(SwitchInbox, GivesEverythingInOrder) {
  SwitchInbox inbox;
  EXPECT_EQ(inbox.open(), nullptr);
  std::array<Item, 5> items;
  for (int i = 0; i < 5; ++i) {
    items[static_cast<std::size_t>(i)].number = i;
  }
  EXPECT_EQ(inbox.put(links_of({&items[0], &items[1], &items[2]}), true), Put::taken);
  EXPECT_EQ(inbox.put(links_of({&items[3], &items[4]}), false), Put::taken);
  EXPECT_EQ(numbers(inbox.take()), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(inbox.take(), nullptr);
}

TEST(SwitchInbox, RingsOnceForAWaitingOwnerAndOnlyIfItIsUrgent) {
  SwitchInbox inbox;
  static_cast<void>(inbox.open());
  std::array<Item, 4> items;
  EXPECT_TRUE(inbox.arm());
  EXPECT_TRUE(inbox.arm());
  EXPECT_EQ(inbox.put(links_of({&items[0]}), false), Put::taken);
  EXPECT_EQ(inbox.put(links_of({&items[1]}), true), Put::ring);
  EXPECT_EQ(inbox.put(links_of({&items[2]}), true), Put::taken);
  EXPECT_FALSE(inbox.arm()) << "there is something";
  EXPECT_EQ(numbers(inbox.take()).size(), 3U);
  EXPECT_EQ(inbox.put(links_of({&items[3]}), true), Put::taken) << "it is being looked at";
}

TEST(SwitchInbox, ClosedItTakesOnlyWhatComesHome) {
  SwitchInbox inbox;
  std::array<Item, 3> items;
  EXPECT_EQ(inbox.put(links_of({&items[0]}), true), Put::closed);
  static_cast<void>(inbox.open());
  EXPECT_TRUE(inbox.arm());
  EXPECT_EQ(inbox.close(), nullptr);
  EXPECT_EQ(inbox.put(links_of({&items[0]}), true), Put::closed);
  EXPECT_EQ(inbox.put(links_of({&items[1]}), true, true), Put::taken);
  EXPECT_EQ(inbox.put(links_of({&items[2]}), false, true), Put::taken);
  EXPECT_EQ(numbers(inbox.open()).size(), 2U);
}

// The owner sleeps whenever it may, and only a ring wakes it: one that got lost would leave it asleep for ever.
TEST(SwitchInbox, NoWakeUpIsLostAndOrderIsKept) {
  constexpr int kProducers = 2;
  constexpr int kItems = 40'000;
  SwitchInbox inbox;
  static_cast<void>(inbox.open());
  std::counting_semaphore bell(0);
  std::atomic<std::uint64_t> rings{0};
  std::array<std::unique_ptr<Item[]>, kProducers> items;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    items[static_cast<std::size_t>(p)] = std::make_unique<Item[]>(kItems);
    producers.emplace_back([&, p] {
      Item* own = items[static_cast<std::size_t>(p)].get();
      for (int i = 0; i < kItems;) {
        SwitchLinks links;
        for (int batch = 0; batch <= i % 3 && i < kItems; ++batch, ++i) {
          own[i].producer = p;
          own[i].number = i;
          links.add(own[i]);
        }
        if (inbox.put(links, true) == Put::ring) {
          rings.fetch_add(1, std::memory_order_relaxed);
          bell.release();
        }
        if (i % 64 == 0) {
          std::this_thread::yield();
        }
      }
    });
  }
  std::array<int, kProducers> next{};
  std::uint64_t sleeps = 0;
  for (int taken = 0; taken < kProducers * kItems;) {
    SwitchLink* link = inbox.take();
    if (link == nullptr) {
      if (inbox.arm()) {
        ++sleeps;
        bell.acquire();
      }
      continue;
    }
    for (; link != nullptr; link = link->next, ++taken) {
      const auto& item = static_cast<const Item&>(*link);
      ASSERT_EQ(item.number, next[static_cast<std::size_t>(item.producer)]++);
    }
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  EXPECT_EQ(rings.load(), sleeps) << "each sleep is ended by one ring";
}

}  // namespace
}  // namespace ringway
