// Two threads on one ring: the protocols by which each side goes to sleep must lose no wake-up. Here "sleep" is a spin on a
// flag that only the other side's notification sets, so a lost one shows as a hang, which the deadline of rounds turns into
// a failure.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "ring/device_ring.hpp"
#include "ring/driver_ring.hpp"
#include "ring/ring_test_support.hpp"

namespace ringway::testing {
namespace {

struct Case {
  bool packed;
  bool event_index;
};

class RingRace : public ::testing::TestWithParam<Case> {};

constexpr std::uint64_t kSpinsMax = 200'000'000;

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
  const Case parameter = GetParam();
  const RingFeatures features{.packed = parameter.packed, .indirect = true, .event_index = parameter.event_index};
  RingMemory memory(4, parameter.packed);
  DriverRing driver({.layout = memory.layout,
                     .features = features,
                     .indirect_tables = memory.host(memory.tables),
                     .indirect_address = memory.tables,
                     .indirect_entries = RingMemory::kTableEntries});
  DeviceRing device(memory.layout, features, parameter.packed ? kPackedBaseInitial : kSplitBaseInitial);
#ifdef RINGWAY_TSAN
  constexpr std::uint64_t kRounds = 30'000;
#else
  constexpr std::uint64_t kRounds = 500'000;
#endif
  std::atomic<bool> kicked{false};
  std::atomic<bool> called{false};
  std::atomic<bool> failed{false};

  std::thread device_thread([&] {
    Chain chain;
    device.suppress_kicks();
    for (std::uint64_t done = 0; done < kRounds && !failed;) {
      std::uint32_t popped = 0;
      while (device.pop(*memory.map, chain) == PopStatus::chain) {
        // The buffer holds the number of the round, written by the driver before it published: data ordering.
        const auto value = guest::load<std::uint64_t>(static_cast<const std::byte*>(chain.readable()[0].iov_base));
        guest::store(static_cast<std::byte*>(chain.writable()[0].iov_base), value + 1);
        device.push_used(chain.id(), 8);
        ++popped;
      }
      done += popped;
      if (popped != 0) {
        device.publish();
        if (device.should_call()) {
          called.store(true, std::memory_order_release);
        }
        continue;
      }
      if (device.ring_fault() != RingFault::none) {
        failed = true;
        break;
      }
      if (!device.arm_kicks() && !await(kicked)) {
        failed = true;
      }
      device.suppress_kicks();
    }
  });

  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  driver.suppress_calls();
  while (received < kRounds && !failed) {
    const std::uint64_t burst = 1 + sent % 3;
    for (std::uint64_t i = 0; i < burst && sent < kRounds; ++i) {
      const GuestAddress at{memory.data.value + (sent % 8) * 64};
      const std::array<DriverBuffer, 2> buffers{
          DriverBuffer{.address = at, .bytes = 8},
          DriverBuffer{.address = GuestAddress{at.value + 8}, .bytes = 8, .device_writable = true}};
      if (driver.free_descriptors() == 0) {
        break;
      }
      guest::store(memory.host(at), sent);
      ASSERT_TRUE(driver.add(buffers, sent));
      ++sent;
    }
    if (driver.publish()) {
      kicked.store(true, std::memory_order_release);
    }
    UsedElement used;
    bool any = false;
    while (driver.take_used(used)) {
      any = true;
      const GuestAddress at{memory.data.value + (used.token % 8) * 64 + 8};
      if (guest::load<std::uint64_t>(memory.host(at)) != used.token + 1 || used.token != received) {
        failed = true;
      }
      ++received;
    }
    if (any || (sent < kRounds && driver.free_descriptors() != 0 && sent % 2 == 0)) {
      continue;
    }
    if (driver.in_flight() != 0) {
      if (!driver.arm_calls() && !await(called)) {
        failed = true;
      }
      driver.suppress_calls();
    }
  }
  EXPECT_FALSE(driver.broken());
  EXPECT_EQ(received, kRounds);
  EXPECT_FALSE(failed);
  kicked = true;
  device_thread.join();
}

INSTANTIATE_TEST_SUITE_P(Layouts, RingRace,
                         ::testing::Values(Case{false, false}, Case{false, true}, Case{true, false}, Case{true, true}),
                         [](const auto& parameter) {
                           return std::string(parameter.param.packed ? "Packed" : "Split") +
                                  (parameter.param.event_index ? "EventIndex" : "Flags");
                         });

}  // namespace
}  // namespace ringway::testing
