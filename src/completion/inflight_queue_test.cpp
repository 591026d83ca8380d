// A crash is an object that goes away in the middle of its work, and another one that opens the same memory. What the rings
// do meanwhile is written here by hand, so that a crash can come between any two steps. The whole of it, with processes that
// are really killed, is in tests/conformance.
#include "completion/inflight_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace ringway {
namespace {

constexpr std::uint16_t kSize = 8;

// One ring's memory and its part of the region.
class Crash : public testing::Test {
 protected:
  [[nodiscard]] InflightQueue open(bool packed, bool in_order, std::optional<std::uint16_t> used_index = {}) {
    auto queue = InflightQueue::open(region_, {.queue_index = 0,
                                               .queue_size = kSize,
                                               .ring_size = kSize,
                                               .used_index = used_index.value_or(packed ? 0x8000 : 0),
                                               .packed = packed,
                                               .in_order = in_order});
    EXPECT_TRUE(queue) << (queue ? "" : queue.error().message);
    return std::move(*queue);
  }
  [[nodiscard]] std::vector<std::uint16_t> heads(std::span<const InflightQueue::Pending> pending) {
    std::vector<std::uint16_t> all;
    for (const InflightQueue::Pending& each : pending) {
      all.push_back(each.head);
    }
    return all;
  }
  // The buffer ids of what a successor has to serve.
  [[nodiscard]] std::vector<std::uint16_t> ids(std::span<const InflightQueue::Pending> pending) {
    std::vector<std::uint16_t> all;
    for (const InflightQueue::Pending& each : pending) {
      all.push_back(each.descriptors.back().id);
    }
    return all;
  }

  // Split: what the driver sees.
  void publish_split(std::uint16_t used_index) { std::memcpy(device_area_ + 2, &used_index, sizeof used_index); }

  // Packed: a chain of one descriptor for each buffer id.
  static void pop(InflightQueue& queue, std::uint16_t id, std::uint16_t descriptors = 1) {
    std::vector<spec::PackedDescriptor> chain(descriptors,
                                              spec::PackedDescriptor{.address = id, .length = 1, .id = id, .flags = 0});
    queue.popped({.head = id, .descriptors = descriptors}, chain);
  }
  void write_flags(std::uint16_t index, std::uint16_t flags) {
    std::memcpy(
        descriptor_area_ + std::size_t{index} * sizeof(spec::PackedDescriptor) + offsetof(spec::PackedDescriptor, flags),
        &flags, sizeof flags);
  }

  [[nodiscard]] std::uint16_t flags_of(std::uint16_t index) const {
    std::uint16_t flags = 0;
    std::memcpy(
        &flags,
        descriptor_area_ + std::size_t{index} * sizeof(spec::PackedDescriptor) + offsetof(spec::PackedDescriptor, flags),
        sizeof flags);
    return flags;
  }

  alignas(64) std::byte descriptor_area_[kSize * sizeof(spec::PackedDescriptor)]{};
  alignas(64) std::byte driver_area_[64]{};
  alignas(64) std::byte device_area_[128]{};
  const RingLayout layout_{
      .size = kSize, .descriptor_area = descriptor_area_, .driver_area = driver_area_, .device_area = device_area_};
  std::shared_ptr<Mapping> region_ = *Mapping::create_anonymous(GuestAddress{0}, UserAddress{0}, 4096);
};

using Heads = std::vector<std::uint16_t>;

TEST_F(Crash, SplitServesWhatWasNotUsedInTheOrderOfTaking) {
  InflightQueue queue = open(false, false);
  for (const std::uint16_t head : {5, 2, 7}) {
    queue.popped({.head = head, .descriptors = 1}, {});
  }
  queue.pushed({.head = 2, .descriptors = 1});
  queue.publishing(1, 0);
  publish_split(1);
  queue.published(1);
  queue = open(false, false);
  EXPECT_EQ(heads(queue.recover(layout_)), (Heads{5, 7}));
}

// In order, what is done but held back still counts as in flight: its used element was never seen.
TEST_F(Crash, SplitInOrderServesAgainWhatWasHeldBack) {
  InflightQueue queue = open(false, true);
  for (const std::uint16_t head : {5, 2, 7}) {
    queue.popped({.head = head, .descriptors = 1}, {});
  }
  queue.pushed({.head = 7, .descriptors = 1});
  queue.pushed({.head = 2, .descriptors = 1});
  queue = open(false, true);
  EXPECT_EQ(heads(queue.recover(layout_)), (Heads{5, 2, 7}));

  // The successor takes them up in that order, and the first two are done.
  for (const std::uint16_t head : {5, 2, 7}) {
    queue.repopped({.head = head, .descriptors = 1});
  }
  queue.pushed({.head = 2, .descriptors = 1});
  queue.pushed({.head = 5, .descriptors = 1});
  queue.publishing(2, 0);
  {
    // It dies before the driver sees them …
    InflightQueue third = open(false, true);
    EXPECT_EQ(heads(third.recover(layout_)), (Heads{5, 2, 7}));
  }
  // … or after, before it could say so here …
  publish_split(2);
  {
    const auto copy = region_;
    std::vector<std::byte> kept(copy->data(), copy->data() + copy->bytes());
    InflightQueue third = open(false, true);
    EXPECT_EQ(heads(third.recover(layout_)), (Heads{7}));
    std::memcpy(copy->data(), kept.data(), kept.size());
  }
  // … or with all said.
  queue.published(2);
  queue = open(false, true);
  EXPECT_EQ(heads(queue.recover(layout_)), (Heads{7}));
}

TEST_F(Crash, PackedInOrderBeforeAndAfterTheBatchWasSeen) {
  constexpr std::uint16_t kUsed = spec::kPackedDescAvail | spec::kPackedDescUsed;
  for (const bool seen : {false, true}) {
    region_ = *Mapping::create_anonymous(GuestAddress{0}, UserAddress{0}, 4096);
    InflightQueue queue = open(true, true);
    pop(queue, 3, 2);
    pop(queue, 0);
    pop(queue, 6);
    write_flags(0, spec::kPackedDescAvail);
    queue.pushed({.head = 0, .descriptors = 1});
    queue.pushed({.head = 3, .descriptors = 2});
    queue.publishing(3, 0x8000U | 3U);
    if (seen) {
      write_flags(0, kUsed);
    }
    queue = open(true, true);
    const auto pending = queue.recover(layout_);
    EXPECT_EQ(ids(pending), seen ? (Heads{6}) : (Heads{3, 0, 6})) << "seen: " << seen;
    // Four descriptors were taken in all, in either case.
    EXPECT_EQ(queue.recovered_base(pending, kSize).value_or(0) & 0xffffU, 0x8000U | 4U);
    EXPECT_EQ(queue.recovered_base(pending, kSize).value_or(0) >> 16U, seen ? 0x8003U : 0x8000U);
  }
}

// The used position comes back to where it was; only the wrap counter tells that a batch was on its way.
TEST_F(Crash, PackedBatchOfTheWholeRing) {
  InflightQueue queue = open(true, false);
  for (std::uint16_t id = 0; id < kSize; ++id) {
    pop(queue, id);
    queue.pushed({.head = id, .descriptors = 1});
  }
  queue.publishing(kSize, 0);  // index 0 of the next lap
  write_flags(0, spec::kPackedDescAvail | spec::kPackedDescUsed);
  queue = open(true, false);
  const auto pending = queue.recover(layout_);
  EXPECT_TRUE(pending.empty());
  EXPECT_EQ(queue.recovered_base(pending, kSize), 0U);  // index 0 and wrap counter 0, twice
  // And it goes on.
  pop(queue, 4);
  queue = open(true, false);
  EXPECT_EQ(ids(queue.recover(layout_)), (Heads{4}));
}

TEST_F(Crash, PackedPositionsWrap) {
  InflightQueue queue = open(true, false);
  for (std::uint16_t id = 0; id < 6; ++id) {
    pop(queue, id);
    queue.pushed({.head = id, .descriptors = 1});
  }
  queue.publishing(6, 0x8000U | 6U);
  write_flags(0, spec::kPackedDescAvail | spec::kPackedDescUsed);
  queue.published(0x8000U | 6U);
  pop(queue, 1, 3);
  queue = open(true, false);
  const auto pending = queue.recover(layout_);
  ASSERT_EQ(ids(pending), (Heads{1}));
  EXPECT_EQ(queue.recovered_base(pending, kSize), (0x8006U << 16U) | 1U);
  // Numbers that no ring of that size can have.
  EXPECT_EQ(queue.recovered_base(pending, 4), std::nullopt);
}

TEST_F(Crash, AResetLeavesNothingToServe) {
  for (const bool packed : {false, true}) {
    region_ = *Mapping::create_anonymous(GuestAddress{0}, UserAddress{0}, 4096);
    InflightQueue queue = open(packed, true);
    packed ? pop(queue, 1) : queue.popped({.head = 1, .descriptors = 1}, {});
    queue.clear();
    EXPECT_FALSE(queue.enabled());
    queue = open(packed, true);
    EXPECT_FALSE(queue.taken_over());
    EXPECT_TRUE(queue.recover(layout_).empty());
  }
}

// Chains are popped between a completion and its publication. None of them may be given what the completed one still needs.
TEST_F(Crash, ChainsPoppedBeforeTheBatchIsPublishedAreKeptApartFromIt) {
  enum class Died : std::uint8_t { before_publishing, before_it_was_seen, before_commit, after_commit };
  constexpr std::uint16_t kFirst = 3, kSecond = 5, kThird = 6;
  for (const bool packed : {false, true}) {
    for (const Died died : {Died::before_publishing, Died::before_it_was_seen, Died::before_commit, Died::after_commit}) {
      region_ = *Mapping::create_anonymous(GuestAddress{0}, UserAddress{0}, 4096);
      publish_split(0);
      write_flags(0, spec::kPackedDescAvail);
      InflightQueue queue = open(packed, false);
      const auto take = [&](std::uint16_t id, std::uint16_t descriptors) {
        packed ? pop(queue, id, descriptors) : queue.popped({.head = id, .descriptors = descriptors}, {});
      };
      take(kFirst, 2);
      take(kSecond, 1);
      queue.pushed({.head = kFirst, .descriptors = 2});
      take(kThird, 3);
      const std::uint16_t used = packed ? 0x8002 : 1;
      if (died != Died::before_publishing) {
        queue.publishing(packed ? 2 : 1, used);
      }
      if (died >= Died::before_commit) {
        publish_split(1);
        write_flags(0, spec::kPackedDescAvail | spec::kPackedDescUsed);
      }
      if (died == Died::after_commit) {
        queue.published(used);
      }
      queue = open(packed, false);
      EXPECT_TRUE(queue.taken_over());
      const auto pending = queue.recover(layout_);
      const Heads expected = died >= Died::before_commit ? Heads{kSecond, kThird} : Heads{kFirst, kSecond, kThird};
      EXPECT_EQ(packed ? ids(pending) : heads(pending), expected)
          << "packed " << packed << ", died " << static_cast<int>(died);
      if (packed) {
        const std::uint32_t used_half = died >= Died::before_commit ? 0x8002 : 0x8000;
        EXPECT_EQ(queue.recovered_base(pending, kSize), 0x8006U | used_half << 16U);
      }
    }
  }
}

// Nothing in flight: the part alone says where a packed ring stands, and a new part is told it by the one who opens it.
TEST_F(Crash, PackedPlaceOfAnIdleRing) {
  InflightQueue queue = open(true, false, 5);  // index 5 of a lap with wrap counter 0
  EXPECT_FALSE(queue.taken_over());
  EXPECT_EQ(queue.recovered_base(queue.recover(layout_), kSize), 5U | 5U << 16U);
  queue = open(true, false, 0x8000);
  EXPECT_TRUE(queue.taken_over());
  EXPECT_EQ(queue.recovered_base(queue.recover(layout_), kSize), 5U | 5U << 16U);
  pop(queue, 1, 4);
  queue.pushed({.head = 1, .descriptors = 4});
  write_flags(5, spec::kPackedDescUsed);
  queue.publishing(4, 0x8001);
  write_flags(5, 0);
  queue.published(0x8001);
  queue = open(true, false, 0x8000);
  EXPECT_EQ(queue.recovered_base(queue.recover(layout_), kSize), 0x8001U | 0x8001U << 16U);
}

// Of a batch that was never published the first element alone was held back; the driver would find the others in its way.
TEST_F(Crash, PackedElementsOfABatchThatWasNotPublishedAreTakenBack) {
  constexpr std::uint16_t kUsed = spec::kPackedDescAvail | spec::kPackedDescUsed;
  InflightQueue queue = open(true, false);
  for (std::uint16_t id = 0; id < 4; ++id) {
    pop(queue, id);
    write_flags(id, spec::kPackedDescAvail);
  }
  for (std::uint16_t id = 1; id < 4; ++id) {
    queue.pushed({.head = id, .descriptors = 1});
  }
  write_flags(1, kUsed);
  write_flags(2, kUsed);
  write_flags(7, kUsed);  // of an earlier lap, as far as this test can tell: not ours to change
  queue = open(true, false);
  EXPECT_EQ(ids(queue.recover(layout_)), (Heads{0, 1, 2, 3}));
  for (const std::uint16_t index : {1, 2}) {
    EXPECT_EQ(flags_of(index), spec::kPackedDescAvail) << "descriptor " << index;
  }
  EXPECT_EQ(flags_of(7), kUsed);
}

// However much is said to be in flight: the chains that the queue has room for keep their order.
TEST_F(Crash, MoreChainsThanTheRegionHasEntriesOverwriteNone) {
  for (const bool replayed : {false, true}) {
    region_ = *Mapping::create_anonymous(GuestAddress{0}, UserAddress{0}, 4096);
    publish_split(0);
    InflightQueue queue = open(false, true);
    for (std::uint16_t head = 0; head < kSize; ++head) {
      queue.popped({.head = head, .descriptors = 1}, {});
    }
    queue = open(false, true);
    ASSERT_EQ(queue.recover(layout_).size(), kSize);
    for (std::uint16_t head = 0; head < kSize; ++head) {
      queue.repopped({.head = head, .descriptors = 1});
    }
    for (const std::uint16_t surplus : {3, 5, 5}) {
      replayed ? queue.repopped({.head = surplus, .descriptors = 1}) : queue.popped({.head = surplus, .descriptors = 1}, {});
    }
    queue.publishing(2, 0);
    publish_split(2);
    queue.published(2);
    queue.publishing(100, 0);  // and it ends
    queue = open(false, true);
    auto left = heads(queue.recover(layout_));
    std::ranges::sort(left);
    EXPECT_EQ(left, (Heads{2, 3, 4, 5, 6, 7})) << replayed;
  }
}

// Each of its entries begins a chain, it says, and each chain goes through all of them.
TEST_F(Crash, PackedChainsThatShareEntriesHoldNoMoreThanTheRing) {
  constexpr std::size_t kHeader = 32, kEntry = 32, kNext = 2, kNum = 6;
  InflightQueue queue = open(true, false);
  for (std::uint16_t id = 0; id < kSize; ++id) {
    pop(queue, id);
  }
  for (std::uint16_t i = 0; i < kSize; ++i) {
    const auto next = static_cast<std::uint16_t>((i + 1) % kSize);
    std::memcpy(region_->data() + kHeader + i * kEntry + kNext, &next, sizeof next);
    std::memcpy(region_->data() + kHeader + i * kEntry + kNum, &kSize, sizeof kSize);
  }
  queue = open(true, false);
  const auto pending = queue.recover(layout_);
  ASSERT_EQ(heads(pending), (Heads{0}));
  EXPECT_EQ(pending.front().descriptors.size(), kSize);
}

}  // namespace
}  // namespace ringway
