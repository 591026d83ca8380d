// A disk on real workers, without a session: the test is the front-end, and its thread the control thread.
#include "device/blk_device.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <latch>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backend/blk/null_store.hpp"
#include "base/test_soon.hpp"
#include "guest/mapping.hpp"
#include "loop/clock.hpp"
#include "loop/epoll_loop.hpp"
#include "loop/mailbox.hpp"
#include "worker/worker_pool.hpp"

namespace ringway {
namespace {

constexpr std::uint32_t kRingSize = 128;
constexpr std::uint64_t kMemoryBytes = 1U << 20U;
constexpr UserAddress kUser{0x7000'0000'0000};

class BlkDeviceMemory : public testing::Test {
 protected:
  BlkDeviceMemory() : mailbox_(*loop_) {
    device_ = *BlkDevice::create({.name = "a", .queues = 4}, make_null_store({.capacity_bytes = 1U << 20U}), pool_->ports(),
                                 0, mailbox_);
  }
  ~BlkDeviceMemory() override {
    if (device_ == nullptr) {
      return;
    }
    wait_for([this](auto done) { device_->detach(std::move(done)); });
    device_.reset();
    pool_.reset();  // before the mailbox, as a host does it
  }

  // A memory table that notes which thread it ends on.
  std::shared_ptr<const RegionMap> table() {
    auto map = *RegionMap::create({*Mapping::create_anonymous(GuestAddress{0}, kUser, kMemoryBytes)});
    const RegionMap* const raw = map.get();
    ++made_;
    return {raw, [this, map = std::move(map)](const RegionMap*) mutable {
              EXPECT_EQ(map.use_count(), 1);
              map = nullptr;
              const std::lock_guard lock(mutex_);
              ends_.push_back(std::this_thread::get_id());
            }};
  }
  // Runs the control thread until `start(done)` has called its done.
  template <typename Start>
  void wait_for(Start start) {
    std::optional<Result<>> result;
    start([&result](Result<> outcome) { result = std::move(outcome); });
    run_until([&] { return result.has_value(); });
    EXPECT_TRUE(*result) << result->error().message;
  }
  template <typename Condition>
  void run_until(Condition condition) {
    const Instant deadline = clock_now() + Duration::seconds(30);
    while (!condition()) {
      ASSERT_LT(clock_now().ns, deadline.ns) << "nothing more happens";
      loop_->wait(clock_now(), deadline);
      mailbox_.drain();
    }
  }
  void start_rings() {
    const RingAreaBytes areas = ring_area_bytes(kRingSize, false);
    for (std::uint32_t i = 0; i < device_->ring_count(); ++i) {
      const std::uint64_t at = kUser.value + std::uint64_t{i} * 16384;
      vhost_user::RingStart start;
      start.index = i;
      start.size = kRingSize;
      start.addresses = {.descriptor_area = UserAddress{at},
                         .driver_area = UserAddress{at + areas.descriptor},
                         .device_area = UserAddress{at + 8192}};
      start.enabled = true;
      wait_for([&](auto done) { device_->start_ring(std::move(start), std::move(done)); });
    }
  }
  std::size_t ended() {
    const std::lock_guard lock(mutex_);
    return ends_.size();
  }

  std::unique_ptr<EpollLoop> loop_ = *EpollLoop::create();
  Mailbox mailbox_;
  std::unique_ptr<WorkerPool> pool_ = *WorkerPool::create({.workers = 2});
  std::unique_ptr<BlkDevice> device_;
  std::size_t made_ = 0;
  std::mutex mutex_;
  std::vector<std::thread::id> ends_;
};

// Workers are the last to use a table that was replaced. It ends here all the same, and none is left over.
TEST_F(BlkDeviceMemory, TablesEndOnTheControlThread) {
  wait_for([&](auto done) { device_->set_memory(table(), std::move(done)); });
  start_rings();
  for (int round = 0; round < 50; ++round) {
    wait_for([&](auto done) { device_->set_memory(table(), std::move(done)); });
  }
  run_until([&] { return ended() == made_ - 1; });
  wait_for([&](auto done) { device_->reset(std::move(done)); });
  wait_for([&](auto done) { device_->set_memory(table(), std::move(done)); });
  wait_for([&](auto done) { device_->detach(std::move(done)); });
  run_until([&] { return ended() == made_; });
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(std::ranges::count(ends_, std::this_thread::get_id()), static_cast<std::ptrdiff_t>(made_));
}

// Messages that are still on their way when the workers end let go of what they carry.
TEST_F(BlkDeviceMemory, NothingIsLeftWhenWorkersEnd) {
  wait_for([&](auto done) { device_->set_memory(table(), std::move(done)); });
  start_rings();
  wait_for([&](auto done) { device_->set_memory(table(), std::move(done)); });
  wait_for([&](auto done) { device_->detach(std::move(done)); });
  device_.reset();
  pool_.reset();
  mailbox_.close();
  EXPECT_EQ(ended(), made_);
}

// The answer to SET_CONFIG promises that no write that is submitted after it still goes by the old cache mode.
TEST_F(BlkDeviceMemory, CacheModeIsAnsweredOnceEveryWorkerGoesByIt) {
  ASSERT_TRUE(device_->set_features(spec::kBlkConfigWce));
  std::latch held(1);
  pool_->ports()[1].executor->post([&held] { held.wait(); });
  const std::byte write_through{0};
  bool answered = false;
  ASSERT_TRUE(device_->set_config(offsetof(spec::BlkConfig, writeback), {&write_through, 1},
                                  [&answered](const Result<>&) { answered = true; }));
  // The other worker has done its part once it answers this, and everything it sent before has arrived here.
  std::optional<bool> answered_too_early;
  pool_->ports()[0].executor->post([&] { mailbox_.post([&] { answered_too_early = answered; }); });
  run_until([&] { return answered_too_early.has_value(); });
  EXPECT_FALSE(*answered_too_early);
  held.count_down();
  run_until([&] { return answered; });
}

class NotingPort final : public vhost_user::FrontEndPort {
 public:
  bool notify_config_change() override { return false; }
  bool send_vring_call(std::uint32_t /*index*/) override { return false; }
  bool send_vring_error(std::uint32_t /*index*/) override { return false; }
  void warn(const std::string& /*text*/) override {}
  void give_up(const std::string& /*reason*/) override { given_up = true; }

  bool given_up = false;
};

// Whoever was found to do harm elsewhere, with nothing to be read from its session: the next call ends that.
TEST_F(BlkDeviceMemory, ACallToAFrontEndThatHasDoneHarmEndsItsSession) {
  NotingPort port;
  device_->attach(port);
  ASSERT_TRUE(device_->set_features(0));
  const auto holdings = ForeignHoldings::create();
  auto mapping = *Mapping::create_anonymous(GuestAddress{0}, kUser, kMemoryBytes);
  std::byte* const memory = mapping->data();
  wait_for([&](auto done) { device_->set_memory(*RegionMap::create({mapping}), std::move(done)); });
  const RingAreaBytes areas = ring_area_bytes(kRingSize, false);
  const UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  vhost_user::RingStart start;
  start.size = kRingSize;
  start.addresses = {.descriptor_area = kUser,
                     .driver_area = UserAddress{kUser.value + areas.descriptor},
                     .device_area = UserAddress{kUser.value + 8192}};
  start.enabled = true;
  start.call = {UniqueFd(dup(event.get())), holdings};
  wait_for([&](auto done) { device_->start_ring(std::move(start), std::move(done)); });
  // A ring that starts calls once.
  std::uint64_t calls = 0;
  pollfd called{.fd = event.get(), .events = POLLIN, .revents = 0};
  ASSERT_TRUE(test::soon([&] { return poll(&called, 1, 0) == 1; }));
  ASSERT_EQ(read(event.get(), &calls, sizeof calls), static_cast<ssize_t>(sizeof calls));
  holdings->note_harm();
  // One flush: its header, then its status.
  struct Descriptor {
    std::uint64_t address;
    std::uint32_t bytes;
    std::uint16_t flags;
    std::uint16_t next;
  };
  const std::array<Descriptor, 2> chain{Descriptor{.address = 65536, .bytes = 16, .flags = 1, .next = 1},
                                        Descriptor{.address = 65552, .bytes = 1, .flags = 2, .next = 0}};
  memory[65536] = std::byte{4};
  std::memcpy(memory, chain.data(), sizeof chain);
  auto* const available_index = reinterpret_cast<std::uint16_t*>(memory + areas.descriptor + 2);
  std::atomic_ref(*available_index).store(1, std::memory_order_release);
  run_until([&] { return port.given_up; });
  EXPECT_EQ(read(event.get(), &calls, sizeof calls), -1);
}

}  // namespace
}  // namespace ringway
