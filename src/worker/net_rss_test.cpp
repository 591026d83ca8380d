// Hash reports and receive-side scaling as they are served: real workers, sessions and drivers, over a switch.
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
#include "request/test_hash_vectors.hpp"
#include "vhost_user/endpoint.hpp"
#include "worker/worker_pool.hpp"

namespace ringway {
namespace {

constexpr std::uint16_t kRssPairs = 4;

// Two cards on a switch: 0 sends, and 1 has several pairs and a control queue of ours.
class SteeredCards {
 public:
  explicit SteeredCards(std::uint32_t workers) {
    std::string pattern = std::filesystem::temp_directory_path() / "ringway-rss-XXXXXX";
    RW_CHECK(mkdtemp(pattern.data()) != nullptr);
    directory_ = pattern;
    std::promise<void> ready;
    thread_ = std::thread([this, workers, &ready] {
      loop_ = *EpollLoop::create();
      mailbox_.emplace(*loop_);
      pool_ = *WorkerPool::create({.workers = workers});
      switch_ = *Switch::create({.name = "lan0"});
      for (std::uint32_t i = 0; i < devices_.size(); ++i) {
        devices_[i] = *NetDevice::create({.name = std::to_string(i), .pairs = i == 0 ? 1U : kRssPairs, .control = i == 1},
                                         *switch_->attach({}), pool_->ports(), 0, *mailbox_);
        endpoints_[i] = *vhost_user::Endpoint::create({.path = socket(i)}, *loop_, *devices_[i]);
      }
      ready.set_value();
      while (!done_) {
        loop_->wait(clock_now(), Instant::never());
        mailbox_->drain();
      }
    });
    ready.get_future().wait();
  }
  SteeredCards(const SteeredCards&) = delete;
  SteeredCards& operator=(const SteeredCards&) = delete;
  ~SteeredCards() {
    mailbox_->post([this] {
      endpoints_[0]->close([this] { mailbox_->post([this] { endpoints_[1]->close([this] { done_ = true; }); }); });
    });
    thread_.join();
    endpoints_ = {};
    devices_ = {};
    pool_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  [[nodiscard]] std::unique_ptr<NetDriver> sender() { return connect({.socket_path = socket(0), .control_queue = false}); }
  [[nodiscard]] std::unique_ptr<NetDriver> receiver(bool packed, std::uint64_t without = 0) {
    return connect(
        {.socket_path = socket(1), .packed = packed, .features = kNetDriverFeatures & ~without, .pairs = kRssPairs});
  }

 private:
  [[nodiscard]] std::string socket(std::uint32_t card) const { return directory_ + "/" + std::to_string(card); }
  static std::unique_ptr<NetDriver> connect(const NetDriverOptions& options) {
    std::unique_ptr<NetDriver> driver = connect_net_driver(options);
    for (std::uint32_t i = 0; driver != nullptr && i < options.pairs; ++i) {
      driver->pair(i).rx.fill();
    }
    return driver;
  }

  std::string directory_;
  std::unique_ptr<EpollLoop> loop_;
  std::optional<Mailbox> mailbox_;
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<Switch> switch_;
  std::array<std::unique_ptr<NetDevice>, 2> devices_;
  std::array<std::unique_ptr<vhost_user::Endpoint>, 2> endpoints_;
  bool done_ = false;
  std::thread thread_;
};

std::span<const std::byte> hash_key() {
  return std::as_bytes(std::span(test::kHashVectorKey));
}

// Sends the frame, which must arrive whole on that pair; its header.
spec::NetHeader arrives_on(NetDriver& from, NetDriver& to, const test::Bytes& frame, std::uint32_t pair) {
  NetDriverTransmitQueue& tx = from.pair(0).tx;
  std::memcpy(tx.buffer(0).host, frame.data(), frame.size());
  const NetDriverTransmitQueue::Frame one{.buffer = 0, .bytes = static_cast<std::uint32_t>(frame.size())};
  EXPECT_EQ(tx.transmit({&one, 1}), 1U);
  tx.publish_and_kick();
  NetDriverFrame received;
  if (!await_frame(to.pair(pair), received)) {
    return {};
  }
  const std::span<const std::byte> sent = std::as_bytes(std::span(frame));
  EXPECT_EQ(bytes_of(received), std::vector<std::byte>(sent.begin(), sent.end()));
  to.pair(pair).rx.give_back({&received, 1});
  to.pair(pair).rx.fill();
  EXPECT_EQ(await_transmitted(tx), 0U);
  return received.header;
}

test::Bytes to_all(test::Bytes frame) {
  std::fill_n(frame.begin(), spec::kMacBytes, std::uint8_t{0xff});
  return frame;
}

class NetRss : public ::testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, NetRss, ::testing::Values(1U, 2U));

// Microsoft's vectors: reported as they are, and on the pair that the table names.
TEST_P(NetRss, FramesComeOnTheirPairWithTheirHash) {
  SteeredCards cards(GetParam());
  const auto from = cards.sender();
  for (const bool packed : {false, true}) {
    const auto to = cards.receiver(packed);
    ASSERT_TRUE(from != nullptr && to != nullptr);
    ASSERT_TRUE(to->negotiated().has(spec::kNetRss | spec::kNetHashReport | spec::kNetMq));
    EXPECT_EQ(to->header_bytes(), 20U);
    EXPECT_EQ(to->config().rss_max_key_size, 40);
    EXPECT_EQ(to->config().rss_max_indirection_table_length, 128);
    const std::uint32_t types = to->config().supported_hash_types;
    EXPECT_EQ(types, kNetHashTypesAll);
    EXPECT_EQ(arrives_on(*from, *to, to_all(test::frame_of(test::kHashVectors4[0], {})), 0).hash_report,
              spec::kNetHashReportNone)
        << "before any command";
    std::array<std::uint16_t, 128> table{};
    for (std::size_t i = 0; i < table.size(); ++i) {
      table[i] = static_cast<std::uint16_t>(i * 7 % kRssPairs);
    }
    const auto answer = to->control()->configure_rss(
        {.hash_types = types, .table = table, .unclassified = 2, .transmit_queues = kRssPairs, .key = hash_key()});
    ASSERT_TRUE(answer && answer->ok());
    for (const bool udp : {false, true}) {
      for (const test::HashVector& vector : test::kHashVectors4) {
        const spec::NetHeader header =
            arrives_on(*from, *to, to_all(test::frame_of(vector, {.udp = udp})), table[vector.ports_hash & 127U]);
        EXPECT_EQ(header.hash_value, vector.ports_hash);
        EXPECT_EQ(header.hash_report, udp ? spec::kNetHashReportUdpv4 : spec::kNetHashReportTcpv4);
      }
      for (const test::HashVector& vector : test::kHashVectors6) {
        const spec::NetHeader header = arrives_on(*from, *to, to_all(test::frame_of(vector, {.ipv6 = true, .udp = udp})),
                                                  table[vector.ports_hash & 127U]);
        EXPECT_EQ(header.hash_value, vector.ports_hash);
        EXPECT_EQ(header.hash_report, udp ? spec::kNetHashReportUdpv6 : spec::kNetHashReportTcpv6);
      }
    }
    test::Bytes other = to_all(test::frame_of(test::kHashVectors4[0], {}));
    test::put16(other, 12, 0x88b5);
    const spec::NetHeader header = arrives_on(*from, *to, other, 2);
    EXPECT_EQ(header.hash_report, spec::kNetHashReportNone);
    EXPECT_EQ(header.hash_value, 0U);
  }
}

// HASH_CONFIG: reports, and pairs as without RSS.
TEST_P(NetRss, HashesWithoutRss) {
  SteeredCards cards(GetParam());
  const auto from = cards.sender();
  const auto to = cards.receiver(false, spec::kNetRss);
  ASSERT_TRUE(from != nullptr && to != nullptr);
  ASSERT_FALSE(to->negotiated().has(spec::kNetRss));
  const auto answer = to->control()->configure_hash(spec::kNetHashTypeIpv4, hash_key());
  ASSERT_TRUE(answer && answer->ok());
  for (const test::HashVector& vector : test::kHashVectors4) {
    const spec::NetHeader header = arrives_on(*from, *to, to_all(test::frame_of(vector, {})), 0);
    EXPECT_EQ(header.hash_value, vector.ip_hash);
    EXPECT_EQ(header.hash_report, spec::kNetHashReportIpv4);
  }
}

// The table changes while others send by it: after each answer frames go by the new one.
TEST_P(NetRss, TheTableChangesUnderTraffic) {
  SteeredCards cards(GetParam());
  const auto from = cards.sender();
  const auto to = cards.receiver(false, spec::kNetHashReport);
  ASSERT_TRUE(from != nullptr && to != nullptr);
  std::atomic<bool> stop{false};
  const test::Bytes frame = to_all(test::frame_of(test::kHashVectors4[1], {}));
  std::thread flood([&] {
    NetDriverTransmitQueue& tx = from->pair(0).tx;
    std::array<std::uint64_t, 64> tokens{};
    for (std::uint32_t i = 0; i < tokens.size(); ++i) {
      std::memcpy(tx.buffer(i).host, frame.data(), frame.size());
    }
    std::uint32_t next = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      const NetDriverTransmitQueue::Frame one{.buffer = next, .bytes = static_cast<std::uint32_t>(frame.size())};
      next = (next + static_cast<std::uint32_t>(tx.transmit({&one, 1}))) % tokens.size();
      tx.publish_and_kick();
      if (tx.reap_transmitted(tokens) == 0) {
        static_cast<void>(tx.wait(clock_now() + Duration::milliseconds(1)));
      }
    }
  });
  std::array<NetDriverFrame, 64> frames;
  const auto drain = [&](std::uint32_t pair) {
    const std::size_t count = to->pair(pair).rx.receive(frames);
    to->pair(pair).rx.give_back(std::span(frames).first(count));
    to->pair(pair).rx.fill();
    return count;
  };
  for (std::uint16_t round = 0; round < 40; ++round) {
    const auto pair = static_cast<std::uint16_t>(round * 3 % kRssPairs);
    const std::vector<std::uint16_t> table(std::size_t{1} << (round % 8U), pair);
    const auto answer = to->control()->configure_rss(
        {.hash_types = kNetHashTypesAll, .table = table, .transmit_queues = 1, .key = hash_key().first(40 - round % 4U)});
    ASSERT_TRUE(answer && answer->ok()) << round;
    for (std::uint32_t i = 0; i < kRssPairs; ++i) {
      static_cast<void>(drain(i));
    }
    NetDriverFrame received;
    EXPECT_TRUE(await_frame(to->pair(pair), received)) << round;
    to->pair(pair).rx.give_back({&received, 1});
    to->pair(pair).rx.fill();
  }
  stop = true;
  flood.join();
}

}  // namespace
}  // namespace ringway
