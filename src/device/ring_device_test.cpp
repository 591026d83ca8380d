#include "device/ring_device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ringway {
namespace {

// A thread that gets round to its messages when the test says so.
class Later final : public Executor {
 public:
  void post(std::move_only_function<void()> message) override { messages_.push_back(std::move(message)); }
  [[nodiscard]] bool is_current() const noexcept override { return true; }
  [[nodiscard]] std::size_t waiting() const { return messages_.size(); }
  void run() {
    for (std::deque<std::move_only_function<void()>> all = std::exchange(messages_, {}); auto& message : all) {
      message();
    }
  }

 private:
  std::deque<std::move_only_function<void()>> messages_;
};

class Calls final : public vhost_user::FrontEndPort {
 public:
  std::vector<std::uint32_t> of_rings;

  int config_changes = 0;

  bool notify_config_change() override {
    ++config_changes;
    return false;
  }
  bool send_vring_call(std::uint32_t index) override {
    of_rings.push_back(index);
    return true;
  }
  bool send_vring_error(std::uint32_t /*index*/) override { return true; }
  void warn(const std::string& /*text*/) override {}
  void give_up(const std::string& /*reason*/) override {}
};

// Without rings: only what it gives to them.
class NoDevice final : public RingDevice {
 public:
  explicit NoDevice(Executor& control) : RingDevice(control) {}
  using RingDevice::check_config_part;
  using RingDevice::copy_config;
  using RingDevice::notify_config_change;
  using RingDevice::require_offered;
  using RingDevice::surroundings;

  [[nodiscard]] std::string name() const override { return "none"; }
  [[nodiscard]] std::uint64_t features() const override { return 0b101; }
  [[nodiscard]] std::uint64_t queue_num_reply() const override { return 0; }
  [[nodiscard]] bool offers_inband() const override { return true; }
  [[nodiscard]] bool offers_inflight() const override { return false; }
  [[nodiscard]] Result<> set_features(std::uint64_t /*acked*/) override { return {}; }
  [[nodiscard]] Result<> get_config(std::uint32_t /*offset*/, std::span<std::byte> /*out*/) override { return {}; }
  [[nodiscard]] Result<> set_config(std::uint32_t /*offset*/, std::span<const std::byte> /*in*/,
                                    vhost_user::Done<> done) override {
    done({});
    return {};
  }

 protected:
  [[nodiscard]] Result<> start_queue(std::uint32_t /*index*/, vhost_user::RingStart /*start*/,
                                     std::shared_ptr<const RegionMap> /*map*/, std::shared_ptr<DirtyLog> /*log*/,
                                     WorkerContext& /*context*/) override {
    return {};
  }
  void forget_driver() override {}
  void release(vhost_user::Done<> done) override { done({}); }
};

// A ring may call a million times while the control thread has other things to do.
TEST(RingDevice, OneInbandCallOfEachRingIsOnItsWayAtMost) {
  Later control;
  NoDevice device(control);
  Calls port;
  device.attach(port);
  RingQueue::Surroundings first = device.surroundings(0, {});
  RingQueue::Surroundings second = device.surroundings(1, {});
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(first.send_inband_call(0), i == 0);
    EXPECT_EQ(second.send_inband_call(1), i == 0);
  }
  EXPECT_EQ(control.waiting(), 2U);
  control.run();
  EXPECT_EQ(port.of_rings, (std::vector<std::uint32_t>{0, 1}));
  // A call that comes after that is a call of its own.
  EXPECT_TRUE(first.send_inband_call(0));
  control.run();
  EXPECT_EQ(port.of_rings, (std::vector<std::uint32_t>{0, 1, 0}));
  // One that finds no session leaves the next session its calls.
  EXPECT_TRUE(first.send_inband_call(0));
  device.detach([](Result<>) {});
  control.run();
  EXPECT_EQ(port.of_rings.size(), 3U);
  device.attach(port);
  EXPECT_TRUE(first.send_inband_call(0));
  control.run();
  EXPECT_EQ(port.of_rings.size(), 4U);
  device.detach([](Result<>) {});
  control.run();
}

// What a front-end acknowledges beyond the offer is refused by the session; here it would be a fault of ours.
TEST(RingDeviceDeathTest, FeaturesThatAreNotOfferedNeverCome) {
  Later control;
  const NoDevice device(control);
  device.require_offered(0);
  device.require_offered(0b101);
  EXPECT_DEATH(device.require_offered(0b10111), "internal error");
}

TEST(RingDevice, PartsOfTheConfigurationLieWithinIt) {
  const std::array<std::byte, 4> whole = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  std::array<std::byte, 2> part{};
  EXPECT_TRUE(NoDevice::copy_config(whole, 2, part));
  EXPECT_EQ(part, (std::array{std::byte{3}, std::byte{4}}));
  EXPECT_TRUE(NoDevice::copy_config(whole, 4, std::span<std::byte>()));
  for (const std::uint32_t offset : {3U, 4U, 5U, UINT32_MAX}) {
    EXPECT_FALSE(NoDevice::copy_config(whole, offset, part)) << offset;
  }
  const Result<> outside = NoDevice::check_config_part(4, 3, 2);
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.error().message, "the configuration space has 4 bytes; 2 at offset 3 are outside");
}

TEST(RingDevice, AChangeOfTheConfigurationIsToldToASessionOnly) {
  Later control;
  NoDevice device(control);
  Calls port;
  device.notify_config_change();
  device.attach(port);
  device.notify_config_change();
  EXPECT_EQ(port.config_changes, 1);
  device.detach([](Result<>) {});
  device.notify_config_change();
  EXPECT_EQ(port.config_changes, 1);
  control.run();
}

}  // namespace
}  // namespace ringway
