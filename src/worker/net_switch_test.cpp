// Network cards on a switch, as they are served: real workers, sessions and drivers. The test's thread is the guests'.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/net/switch.hpp"
#include "device/net_device.hpp"
#include "driver/test_net_driver.hpp"
#include "loop/clock.hpp"
#include "loop/epoll_loop.hpp"
#include "loop/mailbox.hpp"
#include "vhost_user/endpoint.hpp"
#include "worker/worker_pool.hpp"

namespace ringway {
namespace {

struct Way {
  const char* name;
  std::uint32_t workers;
  const char* poll;
  LoopEngine engine;
};

// A host with a switch, and cards on it, each on the next worker. Everything but the drivers is on the control thread.
class Host {
  template <typename Body>
  auto on_control(Body body) {
    std::promise<decltype(body())> result;
    mailbox_->post([&] { result.set_value(body()); });
    return result.get_future().get();
  }

 public:
  Host(const Way& way, std::uint32_t cards, std::uint32_t pairs = 1) {
    std::string pattern = std::filesystem::temp_directory_path() / "ringway-switch-XXXXXX";
    RW_CHECK(mkdtemp(pattern.data()) != nullptr);
    directory_ = pattern;
    std::promise<void> ready;
    thread_ = std::thread([&] {
      loop_ = *EpollLoop::create();
      mailbox_.emplace(*loop_);
      pool_ = *WorkerPool::create({.workers = way.workers, .engine = way.engine, .poll = way.poll});
      switch_ = *Switch::create({.name = "lan0"});
      for (std::uint32_t i = 0; i < cards; ++i) {
        cards_.push_back(make_card(i, pairs));
      }
      ready.set_value();
      while (!done_) {
        loop_->wait(clock_now(), Instant::never());
        mailbox_->drain();
      }
    });
    ready.get_future().wait();
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() {
    mailbox_->post([this] { close_cards(0, [this] { done_ = true; }); });
    thread_.join();
    cards_.clear();
    pool_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  [[nodiscard]] std::string socket(std::uint32_t card) const { return directory_ + "/" + std::to_string(card); }
  [[nodiscard]] NetDeviceStats stats(std::uint32_t card) {
    return on_control([&] { return cards_[card]->device->stats(); });
  }
  [[nodiscard]] SwitchStats switch_stats() {
    return on_control([&] { return switch_->stats(); });
  }
  void set_link(std::uint32_t card, bool up) {
    on_control([&] {
      cards_[card]->device->set_link(up);
      return 0;
    });
  }
  // The card goes, with its port, and another one comes in its place.
  void replace(std::uint32_t card) {
    std::promise<void> replaced;
    mailbox_->post([&] {
      cards_[card]->endpoint->close([&, card] {
        mailbox_->post([&, card] {
          cards_[card].reset();
          cards_[card] = make_card(card, 1);
          replaced.set_value();
        });
      });
    });
    replaced.get_future().wait();
  }
  [[nodiscard]] std::unique_ptr<NetDriver> connect(std::uint32_t card, bool packed = false, std::uint32_t pairs = 1) {
    NetDriverOptions options;
    options.socket_path = socket(card);
    options.packed = packed;
    options.pairs = pairs;
    options.in_order = packed || card == 0;
    options.control_queue = false;
    options.transmit_buffer_bytes = 16384;
    std::unique_ptr<NetDriver> driver = connect_net_driver(options);
    for (std::uint32_t i = 0; driver != nullptr && i < pairs; ++i) {
      driver->pair(i).rx.fill();
    }
    return driver;
  }

 private:
  struct Card {
    std::unique_ptr<NetDevice> device;
    std::unique_ptr<vhost_user::Endpoint> endpoint;
  };

  [[nodiscard]] std::unique_ptr<Card> make_card(std::uint32_t index, std::uint32_t pairs) {
    auto card = std::make_unique<Card>();
    card->device = *NetDevice::create({.name = std::to_string(index), .pairs = pairs, .in_order = true, .control = false},
                                      *switch_->attach({}), pool_->ports(), index, *mailbox_);
    card->endpoint = *vhost_user::Endpoint::create({.path = socket(index)}, *loop_, *card->device);
    return card;
  }
  void close_cards(std::size_t from, std::function<void()> done) {
    if (from == cards_.size()) {
      done();
      return;
    }
    cards_[from]->endpoint->close(
        [this, from, done = std::move(done)] { mailbox_->post([this, from, done] { close_cards(from + 1, done); }); });
  }
  std::string directory_;
  std::unique_ptr<EpollLoop> loop_;
  std::optional<Mailbox> mailbox_;
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<Switch> switch_;
  std::vector<std::unique_ptr<Card>> cards_;
  bool done_ = false;
  std::thread thread_;
};

using Octets = std::vector<std::byte>;

// To everybody, from a card by its number.
Octets frame_of(std::uint32_t from, std::size_t bytes, std::uint32_t number, int to = -1) {
  Octets frame(bytes, std::byte{0xff});
  if (to >= 0) {
    std::fill_n(frame.begin(), 5, std::byte{2});
    frame[5] = static_cast<std::byte>(to);
  }
  std::fill_n(frame.begin() + 6, 5, std::byte{2});
  frame[11] = static_cast<std::byte>(from);
  frame[12] = std::byte{0x88};
  frame[13] = std::byte{0xb5};
  std::memcpy(frame.data() + 14, &number, sizeof number);
  for (std::size_t i = 18; i < bytes; ++i) {
    frame[i] = static_cast<std::byte>(i * 5 + number);
  }
  return frame;
}

bool put(NetDriverTransmitQueue& queue, std::uint32_t buffer, const Octets& frame) {
  std::memcpy(queue.buffer(buffer).host, frame.data(), frame.size());
  const NetDriverTransmitQueue::Frame one{.buffer = buffer, .bytes = static_cast<std::uint32_t>(frame.size())};
  return queue.transmit({&one, 1}) == 1;
}

void expect_arrives(NetDriver& from, NetDriver& to, const Octets& frame) {
  NetDriverPair& pair = from.pair(0);
  ASSERT_TRUE(put(pair.tx, 0, frame));
  pair.tx.publish_and_kick();
  NetDriverFrame received;
  ASSERT_TRUE(await_frame(to.pair(0), received));
  EXPECT_EQ(bytes_of(received), frame);
  to.pair(0).rx.give_back({&received, 1});
  to.pair(0).rx.fill();
  EXPECT_EQ(await_transmitted(pair.tx), 0U);
}

class NetSwitch : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, NetSwitch,
                         ::testing::Values(Way{"one_worker", 1, "never", LoopEngine::automatic},
                                           Way{"two_workers", 2, "never", LoopEngine::automatic},
                                           Way{"two_polling", 2, "fixed=100us", LoopEngine::automatic},
                                           Way{"two_adaptive", 2, "adaptive", LoopEngine::automatic},
                                           Way{"two_epoll", 2, "adaptive", LoopEngine::epoll}),
                         [](const auto& way) { return way.param.name; });

// As if a cable were pulled out, whatever the guest makes of what it is shown.
TEST_P(NetSwitch, NothingPassesACardWhoseLinkIsDown) {
  Host host(GetParam(), 2);
  const auto a = host.connect(0);
  const auto b = host.connect(1);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  ASSERT_NO_FATAL_FAILURE(expect_arrives(*a, *b, frame_of(0, 60, 1)));
  host.set_link(1, false);
  const auto send = [](NetDriver& from, std::uint32_t number) {
    NetDriverPair& pair = from.pair(0);
    ASSERT_TRUE(put(pair.tx, 0, frame_of(number % 2, 60, number)));
    pair.tx.publish_and_kick();
    ASSERT_EQ(await_transmitted(pair.tx), 0U);
  };
  ASSERT_NO_FATAL_FAILURE(send(*a, 2));
  ASSERT_NO_FATAL_FAILURE(send(*b, 3));
  host.set_link(1, true);
  // The first that arrive are those of afterwards.
  ASSERT_NO_FATAL_FAILURE(expect_arrives(*a, *b, frame_of(0, 60, 4)));
  ASSERT_NO_FATAL_FAILURE(expect_arrives(*b, *a, frame_of(1, 60, 5)));
  EXPECT_EQ(host.stats(1).pairs[0].receive.filtered, 1U);
  EXPECT_EQ(host.stats(1).pairs[0].transmit.discarded, 1U);
}

TEST_P(NetSwitch, GuestsReachEachOther) {
  Host host(GetParam(), 2);
  for (const bool packed : {false, true}) {
    const auto a = host.connect(0, packed);
    const auto b = host.connect(1, packed);
    ASSERT_TRUE(a != nullptr && b != nullptr);
    std::uint32_t number = 0;
    for (int round = 0; round < 20; ++round) {
      for (const std::size_t bytes : {60U, 256U, 257U, 1514U, 9000U}) {
        expect_arrives(*a, *b, frame_of(10, bytes, number++, 11));
        expect_arrives(*b, *a, frame_of(11, bytes, number++, 10));
      }
    }
  }
}

// Pings that sleep in between: a wake-up that is lost shows as a second until the safety look, or for ever.
TEST_P(NetSwitch, NobodySleepsThroughAFrame) {
  Host host(GetParam(), 2);
  const auto a = host.connect(0);
  const auto b = host.connect(1);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  expect_arrives(*a, *b, frame_of(10, 60, 0));
  for (std::uint32_t number = 1; number <= 500; ++number) {
    expect_arrives(*a, *b, frame_of(10, number % 2 == 0 ? 100 : 1000, number));
    expect_arrives(*b, *a, frame_of(11, number % 3 == 0 ? 100 : 1000, number));
  }
  for (std::uint32_t card = 0; card < 2; ++card) {
    EXPECT_EQ(host.stats(card).pairs[0].receive.lost_kicks, 0U);
    EXPECT_EQ(host.stats(card).pairs[0].transmit.lost_kicks, 0U);
  }
}

// A guest that sends all the time, on a thread of its own, and wants each of its buffers back.
class Flood {
 public:
  Flood(NetDriver& driver, std::uint32_t from) : driver_(driver) {
    thread_ = std::thread([this, from] {
      NetDriverTransmitQueue& tx = driver_.pair(0).tx;
      std::vector<std::uint64_t> tokens(64);
      std::uint32_t free = 64;
      std::uint32_t next = 0;
      const auto reap = [&] {
        const std::size_t reaped = tx.reap_transmitted(tokens);
        free += static_cast<std::uint32_t>(reaped);
        sent_ += reaped;
        return reaped != 0;
      };
      for (std::uint32_t i = 0; i < 64; ++i) {
        std::memcpy(tx.buffer(i).host, frame_of(from, 1500, i).data(), 1500);
      }
      while (!stop_.load(std::memory_order_relaxed)) {
        while (free > 0) {
          const NetDriverTransmitQueue::Frame one{.buffer = next, .bytes = next % 4 == 0 ? 90U : 1500U};
          if (tx.transmit({&one, 1}) != 1) {
            break;
          }
          next = (next + 1) % 64;
          --free;
        }
        tx.publish_and_kick();
        if (!reap()) {
          static_cast<void>(tx.wait(clock_now() + Duration::milliseconds(5)));
        }
      }
      const Instant deadline = clock_now() + kNetTestLimit;
      while (free < 64 && clock_now() < deadline) {
        if (!reap()) {
          static_cast<void>(tx.wait(clock_now() + Duration::milliseconds(5)));
        }
      }
      lost_ = 64 - free;
    });
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;
  ~Flood() {
    if (thread_.joinable()) {
      static_cast<void>(stop());
    }
  }
  // How many buffers never came back.
  [[nodiscard]] std::uint32_t stop() {
    stop_ = true;
    thread_.join();
    return lost_;
  }
  [[nodiscard]] std::uint64_t sent() const { return sent_; }

 private:
  NetDriver& driver_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> sent_{0};
  std::uint32_t lost_ = 0;
  std::thread thread_;
};

TEST_P(NetSwitch, RingsStopAndStartWhileFramesAreLent) {
  Host host(GetParam(), 3);
  const auto a = host.connect(0);
  const auto c = host.connect(2);
  ASSERT_TRUE(a != nullptr && c != nullptr);
  Flood flood(*a, 10);
  for (int round = 0; round < 10; ++round) {
    const auto b = host.connect(1, round % 2 == 1);
    ASSERT_NE(b, nullptr);
    Flood back(*b, 11);
    const std::uint64_t before = flood.sent();
    const Instant deadline = clock_now() + kNetTestLimit;
    while (flood.sent() < before + 200 && clock_now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(back.stop(), 0U);
    // A receiver's ring, while frames come; and a sender's, with frames on their way: put, and not waited for.
    for (std::uint32_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(put(b->pair(0).tx, i, frame_of(11, 1500, i)));
    }
    b->pair(0).tx.publish_and_kick();
    for (const std::uint32_t ring : {1U, 0U}) {
      const Instant asked = clock_now();
      const auto base = b->stop_queue(ring);
      ASSERT_TRUE(base) << base.error().message;
      EXPECT_LT((clock_now() - asked).ns, limits::kStopDeadline.ns);
      ASSERT_TRUE(b->start_queue(ring, *base));
    }
  }
  EXPECT_EQ(flood.stop(), 0U) << "buffers are missing";
  EXPECT_GT(host.stats(0).pairs[0].transmit.frames, 1000U);
}

TEST_P(NetSwitch, CardsComeAndGoUnderTraffic) {
  Host host(GetParam(), 3);
  const auto a = host.connect(0);
  const auto c = host.connect(2);
  ASSERT_TRUE(a != nullptr && c != nullptr);
  Flood one(*a, 10);
  Flood other(*c, 12);
  for (int round = 0; round < 10; ++round) {
    auto b = host.connect(1);
    ASSERT_NE(b, nullptr);
    NetDriverFrame frame;
    ASSERT_TRUE(await_frame(b->pair(0), frame));
    b.reset();
    host.replace(1);
  }
  EXPECT_EQ(one.stop(), 0U);
  EXPECT_EQ(other.stop(), 0U);
  EXPECT_LE(host.switch_stats().workers, 2U);
}

}  // namespace
}  // namespace ringway
