// One suite for both layouts: each rule of the device's side as a test of its own. The driver is RawDriver where the rule is
// about what a driver must not do, and DriverRing where both sides keep the rules.
#include "ring/device_ring.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "ring/driver_ring.hpp"
#include "ring/ring_test_support.hpp"

namespace ringway::testing {
namespace {

using ::testing::ElementsAre;

constexpr std::uint16_t kWrite = spec::kDescWrite;
constexpr std::uint16_t kNext = spec::kDescNext;
constexpr std::uint16_t kIndirect = spec::kDescIndirect;
constexpr std::uint64_t kNowhere = 0x4000'0000'0000;

class DeviceRingTest : public ::testing::TestWithParam<bool> {
 protected:
  // Whether the driver is called for what was published.
  [[nodiscard]] bool calls() {
    full_fence();
    return device_->should_call() || device_->settle_call();
  }
  static constexpr std::uint32_t kSize = 16;

  DeviceRingTest() { start({.indirect = true, .event_index = true}); }

  void start(RingFeatures features, std::uint32_t size = kSize) {
    features.packed = packed();
    features_ = features;
    memory_.emplace(size, packed());
    raw_.emplace(memory_->layout, packed());
    device_.emplace(memory_->layout, features, packed() ? kPackedBaseInitial : kSplitBaseInitial);
    // DriverRing initialises the memory too, which is zero already.
    driver_.emplace(DriverRing::Options{.layout = memory_->layout, .features = features});
  }

  [[nodiscard]] static bool packed() { return GetParam(); }
  [[nodiscard]] PopStatus pop() { return device_->pop(*memory_->map, chain_); }
  [[nodiscard]] std::uint64_t data(std::uint64_t offset = 0) const { return memory_->data.value + offset; }
  [[nodiscard]] std::vector<iovec> readable() const { return {chain_.readable().begin(), chain_.readable().end()}; }
  [[nodiscard]] std::vector<iovec> writable() const { return {chain_.writable().begin(), chain_.writable().end()}; }
  // Matches the host memory of a guest range.
  [[nodiscard]] auto at(std::uint64_t address, std::size_t bytes) const {
    return ::testing::AllOf(::testing::Field(&iovec::iov_base, static_cast<void*>(memory_->host(GuestAddress{address}))),
                            ::testing::Field(&iovec::iov_len, bytes));
  }
  // Writes one entry of an indirect table anywhere in guest memory, by bytes.
  void put_entry(std::uint64_t table, std::uint32_t index, RawDescriptor raw, std::uint16_t next = 0) const {
    const std::uint64_t address = table + std::uint64_t{index} * 16;
    std::array<std::uint64_t, 2> words;
    if (packed()) {
      words = std::bit_cast<decltype(words)>(
          spec::PackedDescriptor{.address = raw.address, .length = raw.bytes, .id = 0, .flags = raw.flags});
    } else {
      words = std::bit_cast<decltype(words)>(
          spec::Descriptor{.address = raw.address, .length = raw.bytes, .flags = raw.flags, .next = next});
    }
    const auto bytes = std::bit_cast<std::array<std::byte, 16>>(words);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      *memory_->host(GuestAddress{address + i}) = bytes[i];
    }
  }
  // A table of a readable, a readable and a writable buffer.
  void put_usual_table(std::uint64_t table) const {
    put_entry(table, 0, {data(0), 16, kNext}, 1);
    put_entry(table, 1, {data(64), 100, kNext}, 2);
    put_entry(table, 2, {data(256), 1, kWrite});
  }
  void expect_usual_chain() const {
    EXPECT_THAT(readable(), ElementsAre(at(data(0), 16), at(data(64), 100)));
    EXPECT_THAT(writable(), ElementsAre(at(data(256), 1)));
    EXPECT_EQ(chain_.readable_bytes(), 116U);
    EXPECT_EQ(chain_.writable_bytes(), 1U);
  }
  void expect_ring_fault(RingFault fault) {
    EXPECT_EQ(pop(), PopStatus::ring_fault);
    EXPECT_EQ(device_->ring_fault(), fault) << to_string(device_->ring_fault());
    // It stays so, and nobody is told that there is work.
    EXPECT_EQ(pop(), PopStatus::ring_fault);
    EXPECT_FALSE(device_->has_work());
    EXPECT_FALSE(device_->arm_kicks());
    EXPECT_EQ(device_->in_flight(), 0U);
  }
  void expect_chain_fault(ChainFault fault) {
    EXPECT_EQ(pop(), PopStatus::chain_fault);
    EXPECT_EQ(device_->chain_fault(), fault) << to_string(device_->chain_fault());
    EXPECT_EQ(device_->ring_fault(), RingFault::none);
    EXPECT_EQ(device_->in_flight(), 1U);
  }
  // After a chain fault the ring goes on with the next chain.
  void expect_ring_goes_on() {
    raw_->offer({{data(), 16, 0}, {data(512), 1, kWrite}});
    ASSERT_EQ(pop(), PopStatus::chain);
    EXPECT_THAT(readable(), ElementsAre(at(data(), 16)));
    EXPECT_THAT(writable(), ElementsAre(at(data(512), 1)));
  }
  // One chain of one readable byte through the well-behaved driver, up to being popped.
  void add_one(std::uint64_t token = 1) {
    const DriverBuffer buffer{.address = GuestAddress{data()}, .bytes = 1};
    ASSERT_TRUE(driver_->add({&buffer, 1}, token));
  }
  void pass_one() {
    add_one();
    static_cast<void>(driver_->publish());
    ASSERT_EQ(pop(), PopStatus::chain);
    device_->push_used(chain_.id(), 0);
    device_->publish();
  }
  bool take_one() {
    UsedElement used;
    return driver_->take_used(used);
  }

  RingFeatures features_;
  std::optional<RingMemory> memory_;
  std::optional<RawDriver> raw_;
  std::optional<DriverRing> driver_;
  std::optional<DeviceRing> device_;
  Chain chain_;
};

// --- chains ---

// Around the ring several times, with chains of one to three descriptors, with and without IN_ORDER.
TEST_P(DeviceRingTest, UnpoppedChainsComeAgain) {
  for (const bool in_order : {false, true}) {
    start({.event_index = true, .in_order = in_order});
    std::uint64_t token = 0;
    std::uint64_t reaped = 0;
    for (std::uint32_t round = 0; round < 100; ++round) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        std::array<DriverBuffer, 3> buffers;
        buffers.fill({.address = GuestAddress{data()}, .bytes = 1 + i});
        ASSERT_TRUE(driver_->add(std::span(buffers).first(1 + (round + i) % 3), ++token));
      }
      static_cast<void>(driver_->publish());
      const std::uint32_t base = device_->base();
      std::vector<ChainId> popped;
      for (std::uint32_t i = 0; i < 4; ++i) {
        ASSERT_EQ(pop(), PopStatus::chain);
        popped.push_back(chain_.id());
      }
      ASSERT_EQ(pop(), PopStatus::empty);
      if (!in_order || round % 2 == 0) {
        device_->push_used(popped[0], 1);
      }
      const std::uint32_t back = 1 + round % 3;
      for (std::uint32_t i = 0; i < back; ++i) {
        device_->unpop(popped[3 - i]);
      }
      EXPECT_TRUE(device_->has_work());
      EXPECT_NE(device_->base(), base);
      for (std::uint32_t i = 4 - back; i < 4; ++i) {
        ASSERT_EQ(pop(), PopStatus::chain);
        EXPECT_EQ(chain_.id().head, popped[i].head);
        EXPECT_EQ(chain_.id().descriptors, popped[i].descriptors);
        EXPECT_EQ(chain_.readable_bytes(), (1 + i) * popped[i].descriptors);
      }
      for (std::uint32_t i = (!in_order || round % 2 == 0) ? 1 : 0; i < 4; ++i) {
        device_->push_used(popped[i], 1);
      }
      device_->publish();
      EXPECT_EQ(device_->in_flight(), 0U);
      UsedElement used;
      while (driver_->take_used(used)) {
        EXPECT_EQ(used.token, ++reaped);
      }
    }
    EXPECT_EQ(reaped, token);
  }
}

// User Mode Linux gives 0 as the base of a new packed ring, which by the letter is the start of an even lap.
TEST_P(DeviceRingTest, BaseOfZeroIsANewRingUnlessALapWasUsed) {
  for (const std::uint32_t filled : {0U, 1U, kSize}) {
    start({.event_index = true});
    for (std::uint32_t i = 0; i < filled; ++i) {
      add_one(i);
    }
    static_cast<void>(driver_->publish());
    device_.emplace(memory_->layout, features_, 0);
    for (std::uint32_t i = filled; i < kSize; ++i) {
      add_one(i);
    }
    static_cast<void>(driver_->publish());
    for (std::uint32_t i = 0; i < kSize; ++i) {
      ASSERT_EQ(pop(), PopStatus::chain) << i << " of " << filled;
      device_->push_used(chain_.id(), 0);
    }
    device_->publish();
    while (take_one()) {
    }
    if (!packed()) {
      continue;
    }
    // A lap is over: now 0 is where it goes on.
    ASSERT_EQ(device_->base(), 0U);
    if (filled != 0) {
      add_one();
      static_cast<void>(driver_->publish());
    }
    device_.emplace(memory_->layout, features_, 0);
    if (filled == 0) {
      EXPECT_EQ(pop(), PopStatus::empty);
      add_one();
      static_cast<void>(driver_->publish());
    }
    EXPECT_EQ(pop(), PopStatus::chain);
  }
}

// Who waits for more buffers than there are is not woken by those, but by the first one more.
TEST_P(DeviceRingTest, ArmsForMoreThanIsThere) {
  for (const bool event_index : {false, true}) {
    start({.event_index = event_index});
    for (std::uint32_t round = 0; round < 40; ++round) {
      add_one();
      add_one();
      static_cast<void>(driver_->publish());
      ChainCount found;
      std::vector<ChainId> popped;
      while (pop() == PopStatus::chain) {
        popped.push_back(chain_.id());
        found.add(chain_.id());
      }
      ASSERT_EQ(found.chains, 2);
      device_->unpop(popped[1]);
      device_->unpop(popped[0]);
      EXPECT_FALSE(device_->arm_kicks(found));
      add_one();
      EXPECT_TRUE(driver_->publish()) << "the kick that was asked for";
      EXPECT_TRUE(device_->arm_kicks(found)) << "found without the kick";
      device_->suppress_kicks();
      for (std::uint32_t i = 0; i < 3; ++i) {
        ASSERT_EQ(pop(), PopStatus::chain);
        device_->push_used(chain_.id(), 0);
      }
      device_->publish();
      while (take_one()) {
      }
    }
  }
}

TEST_P(DeviceRingTest, UnpoppedChainOfABrokenRingLeavesItBroken) {
  if (packed()) {
    GTEST_SKIP() << "RawDriver makes no bad buffer ids";
  }
  raw_->offer({{data(), 16, 0}});
  ASSERT_EQ(pop(), PopStatus::chain);
  const std::uint32_t base = device_->base();
  const ChainId id = chain_.id();
  raw_->offer_head(kSize + 1);
  ASSERT_EQ(pop(), PopStatus::ring_fault);
  device_->unpop(id);
  EXPECT_NE(device_->base(), base);
  EXPECT_EQ(device_->in_flight(), 0U);
  EXPECT_EQ(pop(), PopStatus::ring_fault);
  EXPECT_FALSE(device_->has_work());
}

TEST_P(DeviceRingTest, KeptChainsStayAndFollowEachOther) {
  chain_ = Chain(64);
  for (std::uint64_t i = 0; i < 3; ++i) {
    raw_->offer({{data(i * 512), 16, kWrite | kNext}, {data(i * 512 + 100), 32, kWrite}});
  }
  std::vector<std::span<const iovec>> kept;
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(chain_.can_keep());
    ASSERT_EQ(pop(), PopStatus::chain);
    kept.push_back(chain_.writable());
    chain_.keep();
  }
  for (std::uint64_t i = 0; i < 3; ++i) {
    EXPECT_THAT(kept[i], ElementsAre(at(data(i * 512), 16), at(data(i * 512 + 100), 32)));
    EXPECT_EQ(kept[i].data(), kept[0].data() + i * 2);
  }
  chain_.let_go();
  raw_->offer({{data(), 1, kWrite}});
  ASSERT_EQ(pop(), PopStatus::chain);
  EXPECT_EQ(chain_.writable().data(), kept[0].data());
}

TEST_P(DeviceRingTest, NewRingIsEmpty) {
  EXPECT_EQ(pop(), PopStatus::empty);
  EXPECT_FALSE(device_->has_work());
  EXPECT_EQ(device_->in_flight(), 0U);
  EXPECT_EQ(device_->base(), packed() ? kPackedBaseInitial : kSplitBaseInitial);
}

TEST_P(DeviceRingTest, DirectChainGivesItsBuffersInOrder) {
  raw_->offer({{data(0), 16, 0}, {data(64), 100, 0}, {data(256), 1, kWrite}});
  ASSERT_EQ(pop(), PopStatus::chain);
  expect_usual_chain();
  EXPECT_EQ(chain_.id().descriptors, 3U);
  EXPECT_EQ(pop(), PopStatus::empty);
}

TEST_P(DeviceRingTest, ChainWithoutReadableOrWithoutWritableBuffers) {
  raw_->offer({{data(0), 16, 0}});
  raw_->offer({{data(64), 100, kWrite}});
  ASSERT_EQ(pop(), PopStatus::chain);
  EXPECT_THAT(readable(), ElementsAre(at(data(0), 16)));
  EXPECT_TRUE(chain_.writable().empty());
  ASSERT_EQ(pop(), PopStatus::chain);
  EXPECT_TRUE(chain_.readable().empty());
  EXPECT_THAT(writable(), ElementsAre(at(data(64), 100)));
}

TEST_P(DeviceRingTest, ChainMayFillTheRingAndLieAcrossItsEnd) {
  raw_->offer({{data(), 1, 0}});
  ASSERT_EQ(pop(), PopStatus::chain);
  device_->push_used(chain_.id(), 0);
  device_->publish();
  raw_->offer(std::vector<RawDescriptor>(kSize, RawDescriptor{data(8), 8, 0}));
  ASSERT_EQ(pop(), PopStatus::chain);
  EXPECT_EQ(chain_.readable().size(), kSize);
  EXPECT_EQ(chain_.id().descriptors, kSize);
}

TEST_P(DeviceRingTest, BufferAcrossRegionsGivesAPieceOfEach) {
  const std::uint64_t border = memory_->border.value;
  raw_->offer({{border - 10, 30, kWrite}});
  ASSERT_EQ(pop(), PopStatus::chain);
  EXPECT_THAT(writable(), ElementsAre(at(border - 10, 10), at(border, 20)));
  EXPECT_EQ(chain_.writable_bytes(), 30U);
}

TEST_P(DeviceRingTest, EmptyBufferAmongOthersIsSkipped) {
  raw_->offer({{data(0), 16, 0}, {kNowhere, 0, 0}, {data(64), 8, kWrite}, {0, 0, 0}, {data(80), 8, kWrite}, {0, 0, kWrite}});
  ASSERT_EQ(pop(), PopStatus::chain);
  EXPECT_THAT(readable(), ElementsAre(at(data(0), 16)));
  EXPECT_THAT(writable(), ElementsAre(at(data(64), 8), at(data(80), 8)));
}

TEST_P(DeviceRingTest, ChainOfNothingButEmptyBuffersIsAFault) {
  raw_->offer({{data(), 0, 0}, {data(), 0, kWrite}});
  expect_chain_fault(ChainFault::zero_length);
  EXPECT_TRUE(chain_.writable().empty());
  expect_ring_goes_on();
}

TEST_P(DeviceRingTest, UnmappedReadableBufferIsLeftOutAndTheStatusIsFound) {
  raw_->offer({{data(0), 16, 0}, {kNowhere, 512, 0}, {data(256), 1, kWrite}});
  expect_chain_fault(ChainFault::unmapped);
  EXPECT_THAT(readable(), ElementsAre(at(data(0), 16)));
  EXPECT_THAT(writable(), ElementsAre(at(data(256), 1)));
  EXPECT_EQ(chain_.id().descriptors, 3U);
  expect_ring_goes_on();
}

TEST_P(DeviceRingTest, UnmappedWritableDataIsLeftOutAndTheStatusIsFound) {
  raw_->offer({{data(0), 16, 0}, {kNowhere, 512, kWrite}, {data(256), 1, kWrite}});
  expect_chain_fault(ChainFault::unmapped);
  EXPECT_THAT(writable(), ElementsAre(at(data(256), 1)));
  EXPECT_EQ(chain_.writable_bytes(), 513U) << "what is left out counts: the status isn't the first writable byte";
  expect_ring_goes_on();
}

TEST_P(DeviceRingTest, UnmappedLastWritableBufferLeavesNoWritableOnes) {
  raw_->offer({{data(0), 16, 0}, {data(64), 512, kWrite}, {kNowhere, 1, kWrite}});
  expect_chain_fault(ChainFault::unmapped);
  EXPECT_THAT(readable(), ElementsAre(at(data(0), 16)));
  EXPECT_TRUE(chain_.writable().empty());
  EXPECT_EQ(chain_.writable_bytes(), 0U);
  expect_ring_goes_on();
}

TEST_P(DeviceRingTest, BufferThatWrapsOrRunsOutOfMemoryIsUnmapped) {
  const std::uint64_t end = memory_->border.value + RingMemory::kSecondBytes;
  raw_->offer({{~std::uint64_t{0} - 10, 100, kWrite}});
  expect_chain_fault(ChainFault::unmapped);
  device_->push_used(chain_.id(), 0);
  raw_->offer({{end - 1, 2, kWrite}});
  expect_chain_fault(ChainFault::unmapped);
  device_->push_used(chain_.id(), 0);
  raw_->offer({{end - 1, 1, kWrite}});
  EXPECT_EQ(pop(), PopStatus::chain);
}

TEST_P(DeviceRingTest, ReadableAfterWritableIsAFaultAndTheStatusIsFound) {
  raw_->offer({{data(0), 16, 0}, {data(64), 8, kWrite}, {data(128), 8, 0}, {data(256), 1, kWrite}});
  expect_chain_fault(ChainFault::readable_after_writable);
  EXPECT_THAT(readable(), ElementsAre(at(data(0), 16)));
  EXPECT_THAT(writable(), ElementsAre(at(data(64), 8), at(data(256), 1)));
  expect_ring_goes_on();
}

TEST_P(DeviceRingTest, ReadableAfterAnUnmappedWritableIsAFaultToo) {
  raw_->offer({{kNowhere, 8, kWrite}, {data(128), 8, 0}});
  expect_chain_fault(ChainFault::unmapped);
  EXPECT_TRUE(chain_.readable().empty());
  EXPECT_TRUE(chain_.writable().empty());
}

// --- indirect tables ---

TEST_P(DeviceRingTest, IndirectTableGivesItsBuffers) {
  const std::uint64_t table = data(0x1000);
  put_usual_table(table);
  raw_->offer({{table, 48, static_cast<std::uint16_t>(kIndirect | kWrite)}});  // WRITE is to be ignored
  ASSERT_EQ(pop(), PopStatus::chain);
  expect_usual_chain();
  EXPECT_EQ(chain_.id().descriptors, 1U);
}

TEST_P(DeviceRingTest, DirectBuffersMayPrecedeATable) {
  const std::uint64_t table = data(0x1000);
  put_usual_table(table);
  raw_->offer({{data(1024), 4, 0}, {table, 48, kIndirect}});
  ASSERT_EQ(pop(), PopStatus::chain);
  EXPECT_THAT(readable(), ElementsAre(at(data(1024), 4), at(data(0), 16), at(data(64), 100)));
  EXPECT_EQ(chain_.id().descriptors, 2U);
}

TEST_P(DeviceRingTest, TableMayLieAcrossRegionsAndBeMisaligned) {
  for (const std::uint64_t before : {16U, 8U, 1U, 47U, 20U}) {
    const std::uint64_t table = memory_->border.value - before;
    put_usual_table(table);
    raw_->offer({{table, 48, kIndirect}});
    ASSERT_EQ(pop(), PopStatus::chain) << before;
    expect_usual_chain();
  }
  const std::uint64_t odd = data(0x1001);
  put_usual_table(odd);
  raw_->offer({{odd, 48, kIndirect}});
  ASSERT_EQ(pop(), PopStatus::chain);
  expect_usual_chain();
}

TEST_P(DeviceRingTest, TableMayBeLongerThanTheRing) {
  const std::uint64_t table = data(0x1000);
  constexpr std::uint32_t kEntries = 1024;
  for (std::uint32_t i = 0; i < kEntries; ++i) {
    put_entry(table, i, {data(i), 1, i + 1 == kEntries ? std::uint16_t{0} : kNext}, static_cast<std::uint16_t>(i + 1));
  }
  raw_->offer({{table, kEntries * 16, kIndirect}});
  ASSERT_EQ(pop(), PopStatus::chain);
  EXPECT_EQ(chain_.readable().size(), kEntries);
}

TEST_P(DeviceRingTest, BadTablesAreChainFaults) {
  const std::uint64_t table = data(0x1000);
  put_usual_table(table);
  const std::uint64_t end = memory_->border.value + RingMemory::kSecondBytes;
  const std::vector<RawDescriptor> bad{
      {table, 0, kIndirect},            // no entry
      {table, 47, kIndirect},           // not a multiple of a descriptor
      {kNowhere, 48, kIndirect},        // not in memory
      {end - 16, 32, kIndirect},        // half of it not in memory
      {table, 0xffff'fff0, kIndirect},  // too long for any chain
      {table, (kIndirectEntriesMax + 1) * 16, kIndirect},
  };
  put_entry(end - 16, 0, {data(0), 16, kNext}, 1);
  for (const RawDescriptor& descriptor : bad) {
    raw_->offer({descriptor});
    expect_chain_fault(ChainFault::bad_indirect);
    EXPECT_TRUE(chain_.writable().empty());
    device_->push_used(chain_.id(), 0);
    device_->publish();
  }
  expect_ring_goes_on();
}

TEST_P(DeviceRingTest, NestedTableIsAChainFaultAndALaterStatusIsFound) {
  const std::uint64_t table = data(0x1000);
  put_usual_table(table);
  put_entry(table, 1, {table, 48, static_cast<std::uint16_t>(kIndirect | kNext)}, 2);
  raw_->offer({{table, 48, kIndirect}});
  expect_chain_fault(ChainFault::bad_indirect);
  EXPECT_THAT(writable(), ElementsAre(at(data(256), 1)));
  expect_ring_goes_on();
}

TEST_P(DeviceRingTest, TableWithNextIsAChainFault) {
  const std::uint64_t table = data(0x1000);
  put_usual_table(table);
  raw_->offer({{table, 48, kIndirect}, {data(256), 1, kWrite}});
  expect_chain_fault(ChainFault::bad_indirect);
  EXPECT_THAT(writable(), ElementsAre(at(data(256), 1)));
  EXPECT_EQ(chain_.id().descriptors, 2U);
  expect_ring_goes_on();
}

TEST_P(DeviceRingTest, TableIsRefusedWhereNotNegotiated) {
  start({.indirect = false});
  const std::uint64_t table = data(0x1000);
  put_usual_table(table);
  raw_->offer({{table, 48, kIndirect}});
  expect_chain_fault(ChainFault::bad_indirect);
  expect_ring_goes_on();
}

TEST_P(DeviceRingTest, LinksInsideATable) {
  const std::uint64_t table = data(0x1000);
  if (packed()) {
    // NEXT and the id mean nothing there: all entries belong to the chain.
    put_entry(table, 0, {data(0), 16, 0});
    put_entry(table, 1, {data(64), 100, 0});
    put_entry(table, 2, {data(256), 1, static_cast<std::uint16_t>(kWrite | kNext)});
    raw_->offer({{table, 48, kIndirect}});
    ASSERT_EQ(pop(), PopStatus::chain);
    expect_usual_chain();
    return;
  }
  // Any order by `next`.
  put_entry(table, 0, {data(0), 16, kNext}, 2);
  put_entry(table, 2, {data(64), 100, kNext}, 1);
  put_entry(table, 1, {data(256), 1, kWrite});
  raw_->offer({{table, 48, kIndirect}});
  ASSERT_EQ(pop(), PopStatus::chain);
  expect_usual_chain();
  device_->push_used(chain_.id(), 0);
  // A link out of the table, and a circle.
  for (const std::uint16_t next : {std::uint16_t{3}, std::uint16_t{0xffff}, std::uint16_t{0}}) {
    put_entry(table, 1, {data(256), 1, static_cast<std::uint16_t>(kWrite | kNext)}, next);
    raw_->offer({{table, 48, kIndirect}});
    expect_chain_fault(ChainFault::bad_indirect);
    EXPECT_TRUE(chain_.writable().empty());
    device_->push_used(chain_.id(), 0);
  }
  expect_ring_goes_on();
}

TEST_P(DeviceRingTest, MoreSegmentsThanAChainHoldsIsAChainFault) {
  start({.indirect = true}, 128);
  // 127 direct buffers and a table of the longest length: its memory overlaps the data, which nobody reads here.
  const std::uint64_t needed = std::uint64_t{kIndirectEntriesMax} * 16;
  auto big = RingMemory::value(Mapping::create_anonymous(GuestAddress{0x8000'0000}, UserAddress{0x7100'0000'0000}, needed));
  memory_->map = RingMemory::value(RegionMap::create({memory_->first, memory_->second, big}));
  for (std::uint32_t i = 0; i < kIndirectEntriesMax; ++i) {
    put_entry(0x8000'0000, i,
              {data(), 1, i + 1 == kIndirectEntriesMax ? kWrite : static_cast<std::uint16_t>(kNext | kWrite)},
              static_cast<std::uint16_t>(i + 1));
  }
  std::vector<RawDescriptor> descriptors(127, RawDescriptor{data(), 1, 0});
  descriptors.push_back({0x8000'0000, static_cast<std::uint32_t>(needed), kIndirect});
  raw_->offer(descriptors);
  expect_chain_fault(ChainFault::too_many_segments);
  EXPECT_EQ(chain_.readable().size(), 127U);
  EXPECT_EQ(chain_.writable().size(), limits::kChainSegmentsMax - 127 + 1) << "and the status";
  EXPECT_EQ(chain_.writable_bytes(), kIndirectEntriesMax);
  EXPECT_THAT(chain_.writable().back(), at(data(), 1));
  EXPECT_EQ(chain_.cost(), 128 + kIndirectEntriesMax + memory_->map->regions().size());
}

TEST_P(DeviceRingTest, StatusIsTheLastByteOfABufferThatWasLeftOut) {
  // Data and status in one buffer behind a fault; and one that begins nowhere, but ends in memory.
  raw_->offer({{kNowhere, 16, 0}, {data(64), 513, kWrite}});
  expect_chain_fault(ChainFault::unmapped);
  EXPECT_THAT(writable(), ElementsAre(at(data(64 + 512), 1)));
  EXPECT_EQ(chain_.writable_bytes(), 513U);
  device_->push_used(chain_.id(), 0);
  raw_->offer({{data(0), 16, 0}, {RingMemory::kGuest - 16, 32, kWrite}});
  expect_chain_fault(ChainFault::unmapped);
  EXPECT_THAT(writable(), ElementsAre(at(RingMemory::kGuest + 15, 1)));
}

// Guest memory in as many adjacent regions as there can be, and a table of the longest length each of whose entries names
// all of them and one byte more. Each of them would take 509 looks to be found unusable.
TEST_P(DeviceRingTest, FaultyChainIsTranslatedUpToItsFirstFaultOnly) {
  constexpr std::uint64_t kPage = 4096;
  constexpr std::uint64_t kFirst = 0x8000'0000;
  constexpr std::uint64_t kAll = (limits::kMemorySlotsMax - 2) * kPage;
  constexpr std::uint64_t kTable = 0x9000'0000;
  constexpr std::uint64_t kTableBytes = std::uint64_t{kIndirectEntriesMax} * kDescriptorBytes;
  std::vector<std::shared_ptr<Mapping>> mappings{memory_->first};
  for (std::uint64_t at = 0; at < kAll; at += kPage) {
    mappings.push_back(
        RingMemory::value(Mapping::create_anonymous(GuestAddress{kFirst + at}, UserAddress{0x7100'0000'0000 + at}, kPage)));
  }
  mappings.push_back(
      RingMemory::value(Mapping::create_anonymous(GuestAddress{kTable}, UserAddress{0x7200'0000'0000}, kTableBytes)));
  memory_->map = RingMemory::value(RegionMap::create(std::move(mappings)));
  const auto fill = [&](std::uint32_t bytes) {
    for (std::uint32_t i = 0; i + 1 < kIndirectEntriesMax; ++i) {
      put_entry(kTable, i, {kFirst, bytes, static_cast<std::uint16_t>(kNext | kWrite)}, static_cast<std::uint16_t>(i + 1));
    }
    put_entry(kTable, kIndirectEntriesMax - 1, {data(), 1, kWrite});
  };
  fill(kAll + 1);
  raw_->offer({{kTable, kTableBytes, kIndirect}});
  expect_chain_fault(ChainFault::unmapped);
  EXPECT_THAT(writable(), ElementsAre(at(data(), 1)));
  EXPECT_EQ(chain_.cost(), 1 + kIndirectEntriesMax + limits::kMemorySlotsMax);
  device_->push_used(chain_.id(), 0);
  device_->publish();
  // Without the byte too much they can be used, until there are too many pieces. All that were found have been paid for.
  fill(kAll);
  raw_->offer({{kTable, kTableBytes, kIndirect}});
  expect_chain_fault(ChainFault::too_many_segments);
  constexpr std::size_t kPieces = limits::kMemorySlotsMax - 2;
  constexpr std::size_t kWhole = limits::kChainSegmentsMax / kPieces;
  EXPECT_EQ(chain_.writable().size(), kWhole * kPieces + 1);
  EXPECT_EQ(chain_.cost(), 1 + kIndirectEntriesMax + kWhole * (kPieces - 1) + limits::kMemorySlotsMax);
}

TEST_P(DeviceRingTest, BuffersAndEntriesAcrossRegionsCostMore) {
  const std::uint64_t border = memory_->border.value;
  raw_->offer({{data(0), 16, 0}, {0, 0, 0}, {border - 10, 30, kWrite}});
  ASSERT_EQ(pop(), PopStatus::chain);
  EXPECT_EQ(chain_.cost(), 4U);
  put_usual_table(border - 24);  // its second entry lies across the border
  raw_->offer({{border - 24, 48, kIndirect}});
  ASSERT_EQ(pop(), PopStatus::chain);
  expect_usual_chain();
  EXPECT_EQ(chain_.cost(), 1U + 3U + 1U);
}

// --- faults of the ring ---

TEST_P(DeviceRingTest, HeadOrIdBeyondTheRingStopsIt) {
  if (packed()) {
    raw_->put(0, spec::PackedDescriptor{.address = data(), .length = 1, .id = kSize, .flags = spec::kPackedDescAvail});
  } else {
    raw_->offer_head(kSize);
  }
  expect_ring_fault(RingFault::bad_head);
}

TEST_P(DeviceRingTest, LinkBeyondTheRingStopsIt) {
  if (packed()) {
    GTEST_SKIP() << "a packed ring has no links";
  }
  raw_->put(3, spec::Descriptor{.address = data(), .length = 1, .flags = kNext, .next = kSize});
  raw_->offer_head(3);
  expect_ring_fault(RingFault::bad_head);
}

TEST_P(DeviceRingTest, EndlessChainStopsTheRing) {
  raw_->offer(std::vector<RawDescriptor>(kSize, RawDescriptor{data(), 1, kNext}), true);
  expect_ring_fault(RingFault::loop);
}

TEST_P(DeviceRingTest, MoreAvailableThanTheRingHoldsStopsIt) {
  if (packed()) {
    // All descriptors are taken, and none was given back; the driver makes one available all the same.
    for (std::uint32_t i = 0; i < kSize; ++i) {
      raw_->offer({{data(), 1, 0}});
      ASSERT_EQ(pop(), PopStatus::chain);
    }
    EXPECT_EQ(pop(), PopStatus::empty);
    raw_->offer({{data(), 1, 0}});
    EXPECT_EQ(pop(), PopStatus::ring_fault);
    EXPECT_EQ(device_->ring_fault(), RingFault::avail_jump);
    return;
  }
  raw_->set_avail_index(kSize + 1);
  expect_ring_fault(RingFault::avail_jump);
}

TEST_P(DeviceRingTest, ChainsInFlightCountAgainstTheRingsSize) {
  raw_->offer({{data(), 1, 0}});
  ASSERT_EQ(pop(), PopStatus::chain);
  if (packed()) {
    raw_->offer(std::vector<RawDescriptor>(kSize, RawDescriptor{data(), 1, 0}));
    EXPECT_EQ(pop(), PopStatus::ring_fault);
    EXPECT_EQ(device_->ring_fault(), RingFault::loop);
  } else {
    raw_->set_avail_index(kSize + 1);
    EXPECT_EQ(pop(), PopStatus::ring_fault);
    EXPECT_EQ(device_->ring_fault(), RingFault::avail_jump);
  }
  EXPECT_EQ(device_->in_flight(), 1U);  // it still can be finished
  device_->push_used(chain_.id(), 0);
  device_->publish();
}

TEST_P(DeviceRingTest, RingThatIsFullIsNoFault) {
  for (std::uint32_t i = 0; i < kSize; ++i) {
    raw_->offer({{data(), 1, 0}});
  }
  for (std::uint32_t i = 0; i < kSize; ++i) {
    ASSERT_EQ(pop(), PopStatus::chain);
  }
  EXPECT_EQ(pop(), PopStatus::empty);
  EXPECT_EQ(device_->in_flight(), kSize);
}

// --- used elements ---

TEST_P(DeviceRingTest, UsedElementsArriveInTheOrderOfCompletion) {
  for (std::uint64_t token = 0; token < 3; ++token) {
    add_one(token);
  }
  static_cast<void>(driver_->publish());
  std::vector<ChainId> ids;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(pop(), PopStatus::chain);
    ids.push_back(chain_.id());
  }
  device_->push_used(ids[2], 30);
  device_->push_used(ids[0], 0);
  EXPECT_FALSE(driver_->has_used()) << "visible before publish";
  EXPECT_TRUE(device_->has_unpublished());
  device_->publish();
  EXPECT_FALSE(device_->has_unpublished());
  EXPECT_EQ(device_->in_flight(), 1U);
  device_->push_used(ids[1], 10);
  device_->publish();
  UsedElement used;
  for (const auto& [token, bytes] : {std::pair{2U, 30U}, std::pair{0U, 0U}, std::pair{1U, 10U}}) {
    ASSERT_TRUE(driver_->take_used(used));
    EXPECT_EQ(used.token, token);
    EXPECT_EQ(used.written_bytes, bytes);
  }
  EXPECT_FALSE(driver_->take_used(used));
}

TEST_P(DeviceRingTest, InOrderHoldsCompletionsBack) {
  start({.in_order = true});
  std::vector<ChainId> ids;
  for (std::uint64_t token = 0; token < 4; ++token) {
    add_one(token);
  }
  static_cast<void>(driver_->publish());
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(pop(), PopStatus::chain);
    ids.push_back(chain_.id());
  }
  device_->push_used(ids[2], 2);
  device_->push_used(ids[1], 1);
  EXPECT_FALSE(device_->has_unpublished());
  device_->publish();
  EXPECT_FALSE(calls());
  EXPECT_FALSE(driver_->has_used());
  device_->push_used(ids[0], 0);
  EXPECT_TRUE(device_->has_unpublished());
  device_->publish();
  UsedElement used;
  for (std::uint64_t token = 0; token < 3; ++token) {
    ASSERT_TRUE(driver_->take_used(used));
    EXPECT_EQ(used.token, token);
    EXPECT_EQ(used.written_bytes, token);
  }
  EXPECT_FALSE(driver_->take_used(used));
  device_->push_used(ids[3], 3);
  device_->publish();
  ASSERT_TRUE(driver_->take_used(used));
  EXPECT_EQ(used.token, 3U);
  EXPECT_EQ(device_->in_flight(), 0U);
}

TEST_P(DeviceRingTest, InOrderSurvivesADriverThatReusesAHeadInFlight) {
  start({.in_order = true});
  if (packed()) {
    for (std::uint16_t i = 0; i < 2; ++i) {
      raw_->put(i, spec::PackedDescriptor{.address = data(), .length = 1, .id = 5, .flags = spec::kPackedDescAvail});
    }
  } else {
    raw_->put(5, spec::Descriptor{.address = data(), .length = 1, .flags = 0, .next = 0});
    raw_->offer_head(5);
    raw_->offer_head(5);
  }
  ASSERT_EQ(pop(), PopStatus::chain);
  const ChainId first = chain_.id();
  ASSERT_EQ(pop(), PopStatus::chain);
  device_->push_used(chain_.id(), 1);
  device_->push_used(first, 2);
  device_->publish();
  EXPECT_EQ(device_->in_flight(), 0U);
  EXPECT_FALSE(device_->has_unpublished());
}

TEST_P(DeviceRingTest, IndicesWrapManyTimes) {
  UsedElement used;
  for (std::uint64_t token = 0; token < 150'000; ++token) {
    add_one(token);
    static_cast<void>(driver_->publish());
    ASSERT_EQ(pop(), PopStatus::chain);
    device_->push_used(chain_.id(), static_cast<std::uint32_t>(token));
    device_->publish();
    ASSERT_TRUE(driver_->take_used(used));
    ASSERT_EQ(used.token, token);
    ASSERT_EQ(used.written_bytes, token);
  }
}

TEST_P(DeviceRingTest, AnySizeWorks) {
  for (const std::uint32_t size : {1U, 2U, 3U, 7U, 100U, 256U, 1000U, 32767U, 32768U}) {
    if (!packed() && !std::has_single_bit(size)) {
      continue;
    }
    start({}, size);
    UsedElement used;
    for (int lap = 0; lap < 3; ++lap) {
      std::uint64_t token = 0;
      std::vector<ChainId> ids;
      while (driver_->free_descriptors() != 0) {
        add_one(token++);
      }
      ASSERT_EQ(token, size);
      static_cast<void>(driver_->publish());
      while (pop() == PopStatus::chain) {
        ids.push_back(chain_.id());
      }
      ASSERT_EQ(ids.size(), size) << to_string(device_->ring_fault());
      for (const ChainId id : ids) {
        device_->push_used(id, 1);
      }
      device_->publish();
      for (std::uint64_t i = 0; i < size; ++i) {
        ASSERT_TRUE(driver_->take_used(used));
        ASSERT_EQ(used.token, i);
      }
    }
  }
}

// --- notifications ---

TEST_P(DeviceRingTest, CallFollowsTheFlags) {
  start({.event_index = false});
  pass_one();
  EXPECT_TRUE(calls());
  EXPECT_FALSE(calls()) << "nothing new was published";
  driver_->suppress_calls();
  pass_one();
  EXPECT_FALSE(calls());
  EXPECT_TRUE(driver_->arm_calls()) << "elements are there already";
  pass_one();
  EXPECT_TRUE(calls());
}

// What was given after the last publish() is none of the driver's business yet.
TEST_P(DeviceRingTest, SettlingLooksAtWhatWasPublishedAlone) {
  driver_->suppress_calls();
  for (int i = 0; i < 4; ++i) {
    add_one();
  }
  static_cast<void>(driver_->publish());
  EXPECT_FALSE(driver_->arm_calls(2));
  for (int i = 1; i <= 4; ++i) {
    ASSERT_EQ(pop(), PopStatus::chain);
    device_->push_used(chain_.id(), 0);
    if (i % 2 == 0) {
      EXPECT_FALSE(device_->settle_call()) << i;
      continue;
    }
    device_->publish();
    // The second element is published with the third one.
    EXPECT_EQ(device_->should_call(), i == 3) << i;
    EXPECT_EQ(device_->must_settle(), i != 3) << i;
  }
}

TEST_P(DeviceRingTest, CallComesExactlyAtTheEventIndex) {
  driver_->suppress_calls();
  for (int round = 0; round < 3; ++round) {
    while (take_one()) {
    }
    // Wants to hear when the third element from here is used.
    for (int i = 0; i < 4; ++i) {
      add_one();
    }
    static_cast<void>(driver_->publish());
    EXPECT_FALSE(driver_->arm_calls(3));
    for (int i = 1; i <= 4; ++i) {
      ASSERT_EQ(pop(), PopStatus::chain);
      device_->push_used(chain_.id(), 0);
      device_->publish();
      EXPECT_EQ(calls(), i == 3) << i;
    }
    while (take_one()) {
    }
    // In a batch that passes it as well.
    EXPECT_FALSE(driver_->arm_calls(2));
    for (int i = 0; i < 4; ++i) {
      add_one();
    }
    static_cast<void>(driver_->publish());
    while (pop() == PopStatus::chain) {
      device_->push_used(chain_.id(), 0);
    }
    device_->publish();
    EXPECT_TRUE(calls());
  }
}

TEST_P(DeviceRingTest, KickFollowsWhatTheDeviceAskedFor) {
  for (const bool event_index : {false, true}) {
    start({.event_index = event_index});
    device_->suppress_kicks();
    add_one();
    EXPECT_FALSE(driver_->publish());
    EXPECT_TRUE(device_->arm_kicks()) << "work came meanwhile";
    ASSERT_EQ(pop(), PopStatus::chain);
    EXPECT_FALSE(device_->arm_kicks());
    add_one();
    EXPECT_TRUE(driver_->publish());
    if (event_index) {
      add_one();
      EXPECT_FALSE(driver_->publish()) << "the event has passed";
    }
    device_->suppress_kicks();
    add_one();
    EXPECT_FALSE(driver_->publish());
    EXPECT_FALSE(driver_->publish()) << "nothing was added";
  }
}

TEST_P(DeviceRingTest, SuppressedKicksStayAwayForMoreThanALap) {
  device_->suppress_kicks();
  for (int i = 0; i < 1000; ++i) {
    add_one();
    ASSERT_FALSE(driver_->publish()) << i;
    ASSERT_EQ(pop(), PopStatus::chain);
    device_->push_used(chain_.id(), 0);
    device_->publish();
    ASSERT_TRUE(take_one());
  }
}

// --- life cycle ---

TEST_P(DeviceRingTest, NextLifeGoesOnFromTheBase) {
  UsedElement used;
  std::uint64_t token = 0;
  for (int life = 0; life < 40; ++life) {
    for (int i = 0; i < 7; ++i) {
      add_one(++token);
      static_cast<void>(driver_->publish());
      ASSERT_EQ(pop(), PopStatus::chain);
      device_->push_used(chain_.id(), 0);
      device_->publish();
      ASSERT_TRUE(driver_->take_used(used));
      ASSERT_EQ(used.token, token);
    }
    const std::uint32_t base = device_->base();
    device_.emplace(memory_->layout, features_, base);
    EXPECT_EQ(device_->base(), base);
    EXPECT_EQ(pop(), PopStatus::empty);
  }
}

TEST_P(DeviceRingTest, BaseHasTheFormOfTheVhostUserSpecification) {
  for (std::uint32_t i = 0; i < kSize + 3; ++i) {
    pass_one();
    take_one();
  }
  add_one();
  static_cast<void>(driver_->publish());
  ASSERT_EQ(pop(), PopStatus::chain);
  if (packed()) {
    // One lap and 4 popped, one lap and 3 given back: both wrap counters are 0 now.
    EXPECT_EQ(device_->base(), 4U | (3U << 16U));
  } else {
    EXPECT_EQ(device_->base(), kSize + 4);
  }
}

// User Mode Linux sends base 0 for a new packed ring, though its wrap counters begin at 1.
TEST_P(DeviceRingTest, BaseOfZeroStartsANewRing) {
  device_.emplace(memory_->layout, features_, 0);
  pass_one();
  EXPECT_TRUE(take_one());
}

// DPDK's virtio-user sends only the avail half of it.
TEST_P(DeviceRingTest, HalfABaseStartsANewRing) {
  device_.emplace(memory_->layout, features_, packed() ? kPackedBaseInitial & 0xffffU : 0);
  pass_one();
  EXPECT_TRUE(take_one());
}

// The first descriptor may have been in the middle of a chain when the lap ended, and then no used element went there.
TEST_P(DeviceRingTest, BaseOfZeroGoesOnWhateverTheChainsWere) {
  const DriverBuffer buffer{.address = GuestAddress{data()}, .bytes = 1};
  const std::vector<DriverBuffer> chain(3, buffer);
  int stops = 0;
  for (std::uint32_t i = 0; i < 10 * kSize; ++i) {
    ASSERT_TRUE(driver_->add(chain, i));
    static_cast<void>(driver_->publish());
    ASSERT_EQ(pop(), PopStatus::chain);
    EXPECT_EQ(chain_.readable_bytes(), 3U);
    device_->push_used(chain_.id(), 0);
    device_->publish();
    ASSERT_TRUE(take_one());
    if (device_->base() == (packed() ? 0U : kSize)) {
      ++stops;
      device_.emplace(memory_->layout, features_, device_->base());
      ASSERT_EQ(pop(), PopStatus::empty);
    }
  }
  EXPECT_GE(stops, 1);
}

TEST_P(DeviceRingTest, PopsBuffersAsFarAsAnotherKindOfChain) {
  pass_one();  // from here on the ring knows the region
  ASSERT_TRUE(take_one());
  const auto add = [&](std::uint64_t token, std::vector<DriverBuffer> buffers) {
    ASSERT_TRUE(driver_->add(buffers, token));
  };
  const auto one = [&](std::uint64_t offset, std::uint32_t bytes, bool writable = false) {
    return DriverBuffer{.address = GuestAddress{data(offset)}, .bytes = bytes, .device_writable = writable};
  };
  add(10, {one(0, 1)});
  add(11, {one(64, 5)});
  add(12, {one(128, 7), one(256, 8)});
  add(13, {one(512, 9)});
  add(14, {one(640, 10, true)});
  static_cast<void>(driver_->publish());

  std::array<ChainBuffer, 8> out{};
  EXPECT_EQ(device_->pop_buffers(*memory_->map, true, out), 0U) << "the first one is readable";
  ASSERT_EQ(device_->pop_buffers(*memory_->map, false, out), 2U);
  EXPECT_EQ(out[0].at, memory_->host(GuestAddress{data(0)}));
  EXPECT_EQ(out[0].bytes, 1U);
  EXPECT_EQ(out[1].at, memory_->host(GuestAddress{data(64)}));
  EXPECT_EQ(out[1].bytes, 5U);
  EXPECT_EQ(device_->in_flight(), 2U);
  device_->push_used(out[0].chain, 0);
  device_->push_used(out[1].chain, 0);
  EXPECT_EQ(device_->pop_buffers(*memory_->map, false, out), 0U);
  ASSERT_EQ(pop(), PopStatus::chain);
  EXPECT_EQ(chain_.readable_bytes(), 15U);
  device_->push_used(chain_.id(), 0);
  ASSERT_EQ(device_->pop_buffers(*memory_->map, false, out), 1U);
  EXPECT_EQ(out[0].bytes, 9U);
  device_->push_used(out[0].chain, 0);
  EXPECT_EQ(device_->pop_buffers(*memory_->map, false, out), 0U) << "this one is writable";
  ASSERT_EQ(device_->pop_buffers(*memory_->map, true, out), 1U);
  device_->push_used(out[0].chain, 10);
  EXPECT_EQ(device_->pop_buffers(*memory_->map, true, out), 0U);
  EXPECT_EQ(pop(), PopStatus::empty);
  device_->publish();
  for (std::uint64_t token = 10; token < 15; ++token) {
    UsedElement used;
    ASSERT_TRUE(driver_->take_used(used));
    EXPECT_EQ(used.token, token);
  }
}

TEST_P(DeviceRingTest, PoppedBuffersGoBackAndComeAgain) {
  pass_one();
  ASSERT_TRUE(take_one());
  std::uint64_t next = 100;
  std::uint64_t expected = 100;
  std::array<ChainBuffer, 7> out{};
  for (int round = 0; round < 100; ++round) {
    while (next - expected < 11) {  // of 16, so that rounds begin anywhere
      add_one(next++);
    }
    static_cast<void>(driver_->publish());
    ASSERT_EQ(device_->pop_buffers(*memory_->map, false, out), out.size());
    const auto used = static_cast<std::size_t>(round % 7);
    for (std::size_t i = 0; i < used; ++i) {
      device_->push_used(out[i].chain, 0);
    }
    for (std::size_t i = out.size(); i > used; --i) {
      device_->unpop(out[i - 1].chain);
    }
    EXPECT_EQ(device_->in_flight(), 0U);
    device_->publish();
    for (std::size_t i = 0; i < used; ++i) {
      UsedElement element;
      ASSERT_TRUE(driver_->take_used(element));
      ASSERT_EQ(element.token, expected++);
    }
    ASSERT_FALSE(take_one());
  }
}

TEST_P(DeviceRingTest, WhatIsWrongWithABufferIsForPopToFind) {
  pass_one();
  ASSERT_TRUE(take_one());
  std::array<ChainBuffer, 4> out{};
  for (const RawDescriptor& wrong : {RawDescriptor{kNowhere, 16, 0}, RawDescriptor{data(), 0, 0}}) {
    start(features_);
    raw_->offer({wrong});
    EXPECT_EQ(device_->pop_buffers(*memory_->map, false, out), 0U);
    EXPECT_EQ(pop(), PopStatus::chain_fault);
  }
}

TEST_P(DeviceRingTest, BuffersOfARingInOrderArePoppedOneByOne) {
  start({.indirect = true, .event_index = true, .in_order = true});
  add_one();
  static_cast<void>(driver_->publish());
  std::array<ChainBuffer, 4> out{};
  EXPECT_EQ(device_->pop_buffers(*memory_->map, false, out), 0U);
  EXPECT_EQ(pop(), PopStatus::chain);
}

// And a base of 0 is what a packed ring has after one whole lap.
TEST_P(DeviceRingTest, BaseOfZeroAfterALapGoesOn) {
  for (std::uint32_t i = 0; i < kSize; ++i) {
    pass_one();
    ASSERT_TRUE(take_one());
  }
  ASSERT_EQ(device_->base(), packed() ? 0U : kSize);
  device_.emplace(memory_->layout, features_, device_->base());
  pass_one();
  EXPECT_TRUE(take_one());
}

TEST_P(DeviceRingTest, AbsurdBaseIsHarmless) {
  for (const std::uint32_t base : {0xffff'ffffU, 0x7fff'7fffU, kSize, kSize << 16U, 0x8005'0003U, 0x0003'8005U}) {
    device_.emplace(memory_->layout, features_, base);
    EXPECT_NE(pop(), PopStatus::chain) << "all descriptors are empty";
  }
}

TEST_P(DeviceRingTest, ChainsOfAnEarlierLifeAreTakenUpAgain) {
  for (std::uint64_t token = 0; token < 3; ++token) {
    add_one(token);
  }
  static_cast<void>(driver_->publish());
  device_->keep_descriptors();
  std::vector<ChainId> taken;
  std::vector<std::vector<spec::PackedDescriptor>> copies;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(pop(), PopStatus::chain);
    taken.push_back(chain_.id());
    copies.emplace_back(device_->last_descriptors().begin(), device_->last_descriptors().end());
  }
  const std::uint32_t base = device_->base();
  device_.emplace(memory_->layout, features_, base);
  EXPECT_EQ(pop(), PopStatus::empty);
  for (std::size_t i = 0; i < 3; ++i) {
    if (packed()) {
      ASSERT_EQ(copies[i].size(), 1U);
      ASSERT_EQ(device_->restore_packed(copies[i], *memory_->map, chain_), PopStatus::chain);
    } else {
      ASSERT_EQ(device_->reread_split(taken[i].head, *memory_->map, chain_), PopStatus::chain);
    }
    EXPECT_EQ(chain_.id().head, taken[i].head);
    EXPECT_THAT(readable(), ElementsAre(at(data(), 1)));
    device_->push_used(chain_.id(), 0);
  }
  device_->publish();
  UsedElement used;
  for (std::uint64_t token = 0; token < 3; ++token) {
    ASSERT_TRUE(driver_->take_used(used));
    EXPECT_EQ(used.token, token);
  }
  EXPECT_EQ(device_->in_flight(), 0U);
}

TEST_P(DeviceRingTest, InFlightRegionThatLiesIsAFault) {
  if (packed()) {
    // Nothing was in flight according to the base.
    const spec::PackedDescriptor copy{.address = data(), .length = 1, .id = 0, .flags = 0};
    EXPECT_EQ(device_->restore_packed({&copy, 1}, *memory_->map, chain_), PopStatus::ring_fault);
  } else {
    EXPECT_EQ(device_->reread_split(kSize, *memory_->map, chain_), PopStatus::ring_fault);
  }
}

TEST_P(DeviceRingTest, RingMovesToOtherHostMemory) {
  pass_one();
  take_one();
  add_one();
  static_cast<void>(driver_->publish());
  // The same guest memory at another host address: the whole first region is copied and mapped anew.
  auto moved = RingMemory::value(
      Mapping::create_anonymous(GuestAddress{RingMemory::kGuest}, UserAddress{RingMemory::kUser}, memory_->first->bytes()));
  std::memcpy(moved->data(), memory_->first->data(), memory_->first->bytes());
  auto map = RingMemory::value(RegionMap::create({moved, memory_->second}));
  const RingLayout layout = RingMemory::value(RingLayout::resolve(*map, memory_->addresses, memory_->layout.size, packed()));
  device_->move_to(layout);
  ASSERT_EQ(device_->pop(*map, chain_), PopStatus::chain);
  EXPECT_EQ(chain_.readable()[0].iov_base, moved->data() + (data() - RingMemory::kGuest));
  std::memset(memory_->first->data(), 0xff, memory_->ring_bytes);
  device_->push_used(chain_.id(), 0);
  device_->publish();
  EXPECT_EQ(device_->pop(*map, chain_), PopStatus::empty);
  EXPECT_EQ(device_->layout().descriptor_area, layout.descriptor_area);
}

TEST_P(DeviceRingTest, WrittenRangesNameEveryChangedByte) {
  const std::byte* ring = memory_->first->data();
  std::vector<std::byte> before(memory_->ring_bytes);
  driver_->suppress_calls();
  static_cast<void>(device_->take_written());
  std::uint64_t state = 1;
  for (int round = 0; round < 300; ++round) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto count = 1 + (state >> 33U) % kSize;
    for (std::uint64_t i = 0; i < count; ++i) {
      add_one();
    }
    static_cast<void>(driver_->publish());
    std::memcpy(before.data(), ring, before.size());
    if (round % 3 == 0) {
      device_->suppress_kicks();
    }
    while (pop() == PopStatus::chain) {
      device_->push_used(chain_.id(), static_cast<std::uint32_t>(round + 1));
    }
    device_->publish();
    if (round % 2 == 0) {
      static_cast<void>(device_->arm_kicks());
    }
    const WrittenRange range = device_->take_written();
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (ring[i] == before[i]) {
        continue;
      }
      const bool named = std::any_of(
          std::begin(range.pieces), std::end(range.pieces),
          [&](const WrittenRange::Piece& piece) { return &ring[i] >= piece.first && &ring[i] < piece.first + piece.bytes; });
      ASSERT_TRUE(named) << "byte " << i << " in round " << round;
    }
    EXPECT_EQ(device_->take_written().pieces[0].bytes, 0U) << "taken already";
    while (take_one()) {
    }
  }
}

// --- memory that changes while it is read ---

TEST_P(DeviceRingTest, ChainsStayInsideMemoryWhileDescriptorsChange) {
  const std::uint64_t table = data(0x1000);
  put_usual_table(table);
  // What one descriptor flips between: harmless, far too long, unmapped, a table, and a table that isn't there.
  const std::array<std::array<std::uint64_t, 2>, 6> faces = [&] {
    std::array<std::array<std::uint64_t, 2>, 6> result{};
    const std::array<RawDescriptor, 6> raw{{{data(), 16, 0},
                                            {data(), 0xffff'ffff, 0},
                                            {kNowhere, 16, kWrite},
                                            {table, 48, kIndirect},
                                            {memory_->border.value + RingMemory::kSecondBytes - 16, 64, kIndirect},
                                            {memory_->border.value - 8, 16, kWrite}}};
    for (std::size_t i = 0; i < raw.size(); ++i) {
      result[i] = packed() ? std::bit_cast<std::array<std::uint64_t, 2>>(spec::PackedDescriptor{
                                 .address = raw[i].address,
                                 .length = raw[i].bytes,
                                 .id = 0,
                                 .flags = static_cast<std::uint16_t>(raw[i].flags | spec::kPackedDescAvail)})
                           : std::bit_cast<std::array<std::uint64_t, 2>>(spec::Descriptor{
                                 .address = raw[i].address, .length = raw[i].bytes, .flags = raw[i].flags, .next = 0});
    }
    return result;
  }();
  std::byte* const descriptor = memory_->layout.descriptor_area;
  std::byte* const entry = memory_->host(GuestAddress{table + 16});
  guest::store(descriptor, faces[0][0]);
  guest::store(descriptor + 8, faces[0][1]);
  std::atomic<bool> stop{false};
  std::thread driver([&] {
    for (std::uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      const auto& face = faces[i % faces.size()];
      guest::store(descriptor + 8, face[1]);
      guest::store(descriptor, face[0]);
      // An entry of the table flips its length as well.
      guest::store(entry + 8, std::uint32_t{i % 2 == 0 ? 100U : 0xffff'0000U});
    }
  });
  if (!packed()) {
    raw_->offer_head(0);
  }
  for (int round = 0; round < 100'000; ++round) {
    // A new life reads the same descriptor again.
    device_.emplace(memory_->layout, features_, packed() ? kPackedBaseInitial : kSplitBaseInitial);
    const PopStatus status = pop();
    ASSERT_TRUE(status == PopStatus::chain || status == PopStatus::chain_fault);
    for (const std::span<const iovec> list : {chain_.readable(), chain_.writable()}) {
      for (const iovec& segment : list) {
        ASSERT_TRUE(segment.iov_len != 0 && memory_->holds(segment));
      }
    }
  }
  stop = true;
  driver.join();
}

INSTANTIATE_TEST_SUITE_P(Layouts, DeviceRingTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Packed" : "Split"; });

}  // namespace
}  // namespace ringway::testing
