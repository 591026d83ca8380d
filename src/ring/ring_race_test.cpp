// Two threads on one ring: neither side's data nor its wake-ups may get lost.
//
// One test lets both sides run and sleep as they like. "Sleep" is a spin on a flag that only the other side's notification
// sets, so a lost one shows as a hang, which a bound on the spinning turns into a failure. The others are litmus tests: both
// sides do their half of one protocol at the same moment, and in each round one of them must have seen the other.
//
// What they can see was tried by taking out each ordering in turn, on x86-64 (two CPUs of a virtual machine, busy with other
// work). The full fences (publish and arm, of device and driver, split and packed; of the device's publish it is the one
// before settle_call()): the litmus tests fail without any one of them, by 2 to 400 lost notifications in 300,000 of those
// rounds (kMeetings is a third more); how many depends on get_ready(), without which hardly any were lost. There is no other
// reordering on x86, so what acquire and release are for can only be seen by ThreadSanitizer, in the data that
// NoWakeUpIsLostByEitherSide moves by plain copies. It reports a race when any one of these is weakened to relaxed: the
// device's store of what is used and load of what is available, and the driver's store of what is available, split and
// packed; the driver's load of what is used in a packed ring. The one in a split ring (DriverRing::next_element) went
// unnoticed: full_fence(), which is a read-modify-write of one word in that build, orders the two threads as well.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "base/fence.hpp"
#include "base/prng.hpp"
#include "ring/device_ring.hpp"
#include "ring/driver_ring.hpp"
#include "ring/ring_test_support.hpp"

namespace ringway::testing {
namespace {

struct Case {
  bool packed;
  bool event_index;
};

constexpr std::uint64_t kSpinsMax = 200'000'000;

class RingRace : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr std::uint32_t kSize = 4;

  [[nodiscard]] static RingFeatures features() {
    return {.packed = GetParam().packed, .indirect = true, .event_index = GetParam().event_index};
  }
  // The chain of round `number`: eight bytes for the device to read and eight for it to write.
  [[nodiscard]] GuestAddress data_of(std::uint64_t number) const { return {memory_.data.value + number % 8 * 64}; }
  void add(std::uint64_t number) {
    const GuestAddress at = data_of(number);
    const std::array<DriverBuffer, 2> buffers{
        DriverBuffer{.address = at, .bytes = 8},
        DriverBuffer{.address = GuestAddress{at.value + 8}, .bytes = 8, .device_writable = true}};
    ASSERT_TRUE(driver_.add(buffers, number));
  }

  RingMemory memory_{kSize, GetParam().packed};
  DriverRing driver_{{.layout = memory_.layout,
                      .features = features(),
                      .indirect_tables = memory_.host(memory_.tables),
                      .indirect_address = memory_.tables,
                      .indirect_entries = RingMemory::kTableEntries}};
  DeviceRing device_{memory_.layout, features(), GetParam().packed ? kPackedBaseInitial : kSplitBaseInitial};
};

// Plain accesses, as those to a request's data are: what orders them is the ring alone, and ThreadSanitizer can see whether
// it does.
std::uint64_t read_data(const std::byte* from) {
  std::uint64_t value = 0;
  guest::copy(reinterpret_cast<std::byte*>(&value), from, sizeof value);
  return value;
}
void write_data(std::byte* to, std::uint64_t value) {
  guest::copy(to, reinterpret_cast<const std::byte*>(&value), sizeof value);
}

// Waits for a notification. False if it never comes.
bool await(std::atomic<bool>& notified) {
  for (std::uint64_t spins = 0; !notified.exchange(false, std::memory_order_acquire); ++spins) {
    if (spins == kSpinsMax) {
      return false;
    }
    if (spins % 64 == 63) {
      std::this_thread::yield();  // two threads may have to share one CPU
    } else {
      spin_pause();
    }
  }
  return true;
}

TEST_P(RingRace, NoWakeUpIsLostByEitherSide) {
#ifdef RINGWAY_TSAN
  constexpr std::uint64_t kRounds = 5'000;
#else
  constexpr std::uint64_t kRounds = 100'000;
#endif
  std::atomic<bool> kicked{false};
  std::atomic<bool> called{false};
  std::atomic<bool> failed{false};

  std::thread device_thread([&] {
    Chain chain;
    device_.suppress_kicks();
    for (std::uint64_t done = 0; done < kRounds && !failed;) {
      std::uint32_t popped = 0;
      while (device_.pop(*memory_.map, chain) == PopStatus::chain) {
        // The buffer holds the number of the round, written by the driver before it published: data ordering.
        const std::uint64_t value = read_data(static_cast<const std::byte*>(chain.readable()[0].iov_base));
        write_data(static_cast<std::byte*>(chain.writable()[0].iov_base), value + 1);
        device_.push_used(chain.id(), 8);
        ++popped;
      }
      done += popped;
      // As a worker does it: what was published in one turn is settled in the next, before anything else is published.
      if (device_.must_settle()) {
        full_fence();
        if (device_.settle_call()) {
          called.store(true, std::memory_order_release);
        }
      }
      if (popped != 0) {
        device_.publish();
        if (device_.should_call()) {
          called.store(true, std::memory_order_release);
        }
        continue;
      }
      if (device_.ring_fault() != RingFault::none) {
        failed = true;
        break;
      }
      if (!device_.arm_kicks() && !await(kicked)) {
        failed = true;
      }
      device_.suppress_kicks();
    }
    // The last one too.
    if (device_.must_settle()) {
      full_fence();
      if (device_.settle_call()) {
        called.store(true, std::memory_order_release);
      }
    }
  });

  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  driver_.suppress_calls();
  while (received < kRounds && !failed) {
    const std::uint64_t burst = 1 + sent % 3;
    for (std::uint64_t i = 0; i < burst && sent < kRounds; ++i) {
      if (driver_.free_descriptors() == 0) {
        break;
      }
      write_data(memory_.host(data_of(sent)), sent);
      add(sent);
      ++sent;
    }
    if (driver_.publish()) {
      kicked.store(true, std::memory_order_release);
    }
    UsedElement used;
    bool any = false;
    while (driver_.take_used(used)) {
      any = true;
      if (read_data(memory_.host(data_of(used.token)) + 8) != used.token + 1 || used.token != received) {
        failed = true;
      }
      ++received;
    }
    if (any || (sent < kRounds && driver_.free_descriptors() != 0 && sent % 2 == 0)) {
      continue;
    }
    if (driver_.in_flight() != 0) {
      if (!driver_.arm_calls() && !await(called)) {
        failed = true;
      }
      driver_.suppress_calls();
    }
  }
  EXPECT_FALSE(driver_.broken());
  EXPECT_EQ(received, kRounds);
  EXPECT_FALSE(failed);
  kicked = true;
  device_thread.join();
}

// Two threads that leave the starting line together, as nearly as they can; and in between each has the ring for itself.
class StartingLine {
 public:
  // Both call it; returns when both have. Release and acquire: what either did before is seen by the other afterwards.
  void meet() {
    const std::uint64_t mine = arrived_.fetch_add(1, std::memory_order_acq_rel) + 1;
    const std::uint64_t both = mine + mine % 2;
    for (std::uint64_t spins = 1; arrived_.load(std::memory_order_acquire) < both; ++spins) {
      if (spins % 4096 == 0) {
        std::this_thread::yield();
      }
    }
  }

 private:
  alignas(128) std::atomic<std::uint64_t> arrived_{0};
};

// Makes a reordering likely to show. A store waits for its cache line, which the other side has as well now; a later load
// finds its own line here, and so an old value. And each waits some cycles (up to a few hundred nanoseconds, short ones more
// often), so that the two meet in every way.
void get_ready(const RingLayout& layout, Prng& random) {
  for (const std::byte* area : {layout.descriptor_area, layout.driver_area, layout.device_area}) {
    static_cast<void>(guest::load<std::uint32_t>(area));
  }
  const std::uint64_t at_most = std::uint64_t{1} << random.below(12);
  for (std::uint64_t i = random.below(at_most); i != 0; --i) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

#ifdef RINGWAY_TSAN
constexpr std::uint64_t kMeetings = 20'000;
#else
constexpr std::uint64_t kMeetings = 400'000;
#endif

// The device publishes while the driver, about to sleep, asks for a call: one of them must see the other.
TEST_P(RingRace, PublishingDeviceAndArmingDriverSeeOneAnother) {
  StartingLine line;
  bool called = false;
  std::thread device_thread([&] {
    Prng random(1);
    Chain chain;
    for (std::uint64_t i = 0; i < kMeetings; ++i) {
      line.meet();  // a chain is available
      if (device_.pop(*memory_.map, chain) == PopStatus::chain) {
        device_.push_used(chain.id(), 8);
      }
      line.meet();
      get_ready(memory_.layout, random);
      device_.publish();
      called = device_.should_call();
      if (device_.must_settle()) {
        full_fence();
        called = device_.settle_call();
      }
      line.meet();
    }
  });
  Prng random(2);
  std::uint64_t lost = 0;
  for (std::uint64_t i = 0; i < kMeetings; ++i) {
    driver_.suppress_calls();
    add(i);
    static_cast<void>(driver_.publish());
    line.meet();
    line.meet();
    get_ready(memory_.layout, random);
    const bool found = driver_.arm_calls();
    line.meet();
    lost += called || found ? 0 : 1;
    UsedElement used;
    EXPECT_TRUE(driver_.take_used(used));
  }
  device_thread.join();
  EXPECT_EQ(lost, 0U) << "calls, of " << kMeetings;
}

// The driver makes a chain available while the device, about to sleep, asks for a kick.
TEST_P(RingRace, PublishingDriverAndArmingDeviceSeeOneAnother) {
  StartingLine line;
  bool kicked = false;
  std::uint64_t lost = 0;
  std::thread device_thread([&] {
    Prng random(1);
    Chain chain;
    for (std::uint64_t i = 0; i < kMeetings; ++i) {
      device_.suppress_kicks();
      line.meet();
      get_ready(memory_.layout, random);
      const bool found = device_.arm_kicks();
      line.meet();
      lost += kicked || found ? 0 : 1;
      if (device_.pop(*memory_.map, chain) == PopStatus::chain) {
        device_.push_used(chain.id(), 8);
      }
      device_.publish();
      line.meet();
    }
  });
  Prng random(2);
  driver_.suppress_calls();
  for (std::uint64_t i = 0; i < kMeetings; ++i) {
    add(i);
    line.meet();
    get_ready(memory_.layout, random);
    kicked = driver_.publish();
    line.meet();
    line.meet();
    UsedElement used;
    EXPECT_TRUE(driver_.take_used(used));
  }
  device_thread.join();
  EXPECT_EQ(lost, 0U) << "kicks, of " << kMeetings;
}

INSTANTIATE_TEST_SUITE_P(Layouts, RingRace,
                         ::testing::Values(Case{false, false}, Case{false, true}, Case{true, false}, Case{true, true}),
                         [](const auto& parameter) {
                           return std::string(parameter.param.packed ? "Packed" : "Split") +
                                  (parameter.param.event_index ? "EventIndex" : "Flags");
                         });

}  // namespace
}  // namespace ringway::testing
