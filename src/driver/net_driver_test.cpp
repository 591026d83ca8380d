#include "driver/net_driver.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "driver/test_net_backend.hpp"
#include "driver/test_net_driver.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

using Mischief = NetBackendPeer::Mischief;

constexpr std::uint64_t kAllControl = spec::kNetCtrlVq | spec::kNetCtrlRx | spec::kNetCtrlVlan | spec::kNetCtrlRxExtra |
                                      spec::kNetGuestAnnounce | spec::kNetMq | spec::kNetCtrlMacAddr | spec::kNetStatus |
                                      spec::kNetCtrlGuestOffloads | spec::kNetNotfCoal | spec::kNetVqNotfCoal |
                                      spec::kNetRss | spec::kNetMac;

spec::NetConfig config_of(std::uint16_t pairs) {
  spec::NetConfig config{};
  std::memcpy(config.mac, "\x52\x54\x00\x01\x02\x03", sizeof config.mac);
  config.status = spec::kNetStatusLinkUp;
  config.max_virtqueue_pairs = pairs;
  return config;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  }
  return text;
}

std::vector<std::byte> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::byte> frame(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    frame[i] = static_cast<std::byte>(i * 31 + i / 256 + seed * 17);
  }
  return frame;
}

// --- without a back-end ---

TEST(NetFeatures, AreLeftOutWithWhatTheyRequire) {
  using namespace spec;
  EXPECT_EQ(net_features_with_requirements(kNetDriverFeatures, false), kNetDriverFeatures);
  EXPECT_EQ(net_features_with_requirements(kNetGuestTso4 | kNetGuestEcn | kNetMac, false), kNetMac);
  EXPECT_EQ(net_features_with_requirements(kNetGuestCsum | kNetGuestTso6 | kNetGuestEcn, false),
            kNetGuestCsum | kNetGuestTso6 | kNetGuestEcn);
  EXPECT_EQ(net_features_with_requirements(kNetCsum | kNetHostUfo | kNetHostEcn, false), kNetCsum | kNetHostUfo);
  EXPECT_EQ(net_features_with_requirements(kNetMq | kNetRss | kNetHashReport | kNetMrgRxbuf, false), kNetMrgRxbuf);
  EXPECT_EQ(net_features_with_requirements(kNetMq | kNetCtrlRx, true), kNetMq);
}

TEST(NetFeatures, SayHowLongTheHeaderIs) {
  EXPECT_EQ(net_header_bytes(0), 10U);
  EXPECT_EQ(net_header_bytes(spec::kNetMrgRxbuf), 12U);
  EXPECT_EQ(net_header_bytes(spec::kFeatureVersion1), 12U);
  EXPECT_EQ(net_header_bytes(spec::kFeatureVersion1 | spec::kNetHashReport), 20U);
}

TEST(NetDriver, SaysWhatIsWrongWithItsOptions) {
  const std::string nowhere = "/nowhere/net.sock";
  EXPECT_FALSE(NetDriver::create({.socket_path = nowhere, .pairs = 0}));
  EXPECT_FALSE(NetDriver::create({.socket_path = nowhere, .pairs = 129}));
  EXPECT_FALSE(NetDriver::create({.socket_path = nowhere, .queue_size = 1}));
  EXPECT_FALSE(NetDriver::create({.socket_path = nowhere, .receive_buffers = 0}));
  EXPECT_FALSE(NetDriver::create({.socket_path = nowhere, .receive_buffer_bytes = 33}));
  EXPECT_FALSE(NetDriver::create({.socket_path = nowhere, .packed = true, .legacy = true}));
  const auto absent = NetDriver::create({.socket_path = nowhere, .patience = {}});
  ASSERT_FALSE(absent);
  EXPECT_NE(absent.error().message.find(nowhere), std::string::npos) << absent.error().message;
}

// --- every layout ---

struct Layout {
  const char* name;
  bool packed = false;
  bool indirect = false;
  bool event_index = false;
  bool in_order = false;
  bool mergeable = false;
  bool header_apart = false;
  bool legacy = false;
  bool hash = false;
};

class NetDriverLayout : public testing::TestWithParam<Layout> {
 protected:
  NetDriverLayout() : peer_({.features = spec::kNetMrgRxbuf | spec::kNetHashReport | spec::kNetCtrlVq}) {}
  std::unique_ptr<NetDriver> connect(NetDriverOptions options) {
    const Layout& layout = GetParam();
    options.socket_path = peer_.socket_path();
    options.packed = layout.packed;
    options.indirect = layout.indirect;
    options.event_index = layout.event_index;
    options.in_order = layout.in_order;
    options.mergeable = layout.mergeable;
    options.legacy = layout.legacy;
    options.receive_header_apart = options.transmit_header_apart = layout.header_apart;
    options.features = layout.hash ? kNetDriverFeatures : kNetDriverFeatures & ~spec::kNetHashReport;
    return connect_net_driver(options);
  }
  NetBackendPeer peer_;
};

TEST_P(NetDriverLayout, FramesComeBackAsTheyWereSent) {
  const auto driver = connect({.queue_size = 64, .receive_buffers = 48});
  ASSERT_TRUE(driver);
  const Layout& layout = GetParam();
  EXPECT_EQ(driver->mergeable(), layout.mergeable);
  EXPECT_EQ(driver->header_bytes(), layout.hash ? 20U : layout.legacy && !layout.mergeable ? 10U : 12U);
  EXPECT_EQ(driver->negotiated().features & ~spec::kFeatureProtocolFeatures, peer_.acked());
  NetDriverPair& pair = driver->pair(0);
  EXPECT_EQ(pair.rx.fill(), layout.header_apart ? 32U : 48U) << "as many as the ring has descriptors for";

  spec::NetHeader header{};
  header.flags = spec::kNetHdrNeedsCsum;
  header.csum_start = 34;
  header.csum_offset = 16;
  for (std::uint32_t round = 0; round < 300; ++round) {
    const std::vector<std::byte> sent = pattern(14 + round * 7 % 2000, round);
    const std::uint32_t buffer = round % 256;
    std::memcpy(pair.tx.buffer(buffer).host, sent.data(), sent.size());
    pair.tx.set_header(buffer, header);
    const NetDriverTransmitQueue::Frame frame{.buffer = buffer, .bytes = static_cast<std::uint32_t>(sent.size())};
    ASSERT_EQ(pair.tx.transmit({&frame, 1}), 1U);
    pair.tx.publish_and_kick();
    NetDriverFrame received;
    ASSERT_TRUE(await_frame(pair, received));
    ASSERT_EQ(bytes_of(received), sent) << round;
    EXPECT_EQ(received.header.flags, header.flags);
    EXPECT_EQ(received.header.csum_offset, header.csum_offset);
    EXPECT_EQ(received.header.num_buffers, driver->header_bytes() >= 12 ? 1 : 0);
    EXPECT_EQ(received.header.hash_value, layout.hash ? NetBackendPeer::kHashValue : 0);
    pair.rx.give_back({&received, 1});
    pair.rx.fill();
    ASSERT_EQ(await_transmitted(pair.tx), buffer);
  }
  EXPECT_EQ(pair.rx.faults(), NetDriverReceiveQueue::Faults{});
  EXPECT_EQ(pair.tx.counters().bad_used, 0U);
  EXPECT_EQ(peer_.dropped(), 0U);
}

TEST_P(NetDriverLayout, FramesInPiecesAndBatchesKeepTheirOrder) {
  const auto driver = connect({.queue_size = 64, .receive_buffers = 32});
  ASSERT_TRUE(driver);
  NetDriverPair& pair = driver->pair(0);
  pair.rx.fill();
  std::uint32_t next = 0;
  std::uint32_t expected = 0;
  const spec::NetHeader header{};
  while (expected < 2000) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      const SharedBlock block = pair.tx.buffer(next % 128);
      const std::vector<std::byte> bytes = pattern(100, next);
      std::memcpy(block.host, bytes.data(), bytes.size());
      const std::array<DriverBuffer, 3> pieces{DriverBuffer{block.guest, 1},
                                               DriverBuffer{GuestAddress{block.guest.value + 1}, 60},
                                               DriverBuffer{GuestAddress{block.guest.value + 61}, 39}};
      ASSERT_TRUE(pair.tx.transmit(header, pieces, 1'000'000'000'000 + next));
      ++next;
    }
    pair.tx.publish_and_kick();
    std::array<NetDriverFrame, 5> frames;
    for (std::uint32_t got = 0; got < 8;) {
      const std::size_t count = pair.rx.receive(frames);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(bytes_of(frames[i]), pattern(100, expected));
        ++expected;
      }
      got += static_cast<std::uint32_t>(count);
      pair.rx.give_back({frames.data(), count});
      pair.rx.fill();
      ASSERT_TRUE(count != 0 || pair.wait(clock_now() + kNetTestLimit));
    }
    for (std::uint32_t i = 0; i < 8; ++i) {
      ASSERT_EQ(await_transmitted(pair.tx), 1'000'000'000'000 + next - 8 + i);
    }
  }
  EXPECT_EQ(pair.tx.in_flight(), 0U);
}

TEST_P(NetDriverLayout, LongFramesAreMergedOrDroppedByTheDevice) {
  const auto driver =
      connect({.queue_size = 64, .receive_buffers = 16, .receive_buffer_bytes = 512, .transmit_buffer_bytes = 9000});
  ASSERT_TRUE(driver);
  NetDriverPair& pair = driver->pair(0);
  pair.rx.fill();
  const std::uint32_t header = driver->header_bytes();
  for (const std::uint32_t bytes :
       {512 - header - 1, 512 - header, 512 - header + 1, 1024 - header, 3000U, 14U, 16 * 512 - header}) {
    const std::vector<std::byte> sent = pattern(bytes, bytes);
    std::memcpy(pair.tx.buffer(3).host, sent.data(), sent.size());
    const NetDriverTransmitQueue::Frame frame{.buffer = 3, .bytes = bytes};
    const std::uint64_t dropped = peer_.dropped();
    ASSERT_EQ(pair.tx.transmit({&frame, 1}), 1U);
    pair.tx.publish_and_kick();
    ASSERT_EQ(await_transmitted(pair.tx), 3U);
    NetDriverFrame received;
    if (!GetParam().mergeable && header + bytes > 512) {
      EXPECT_EQ(peer_.dropped(), dropped + 1);
      EXPECT_EQ(pair.rx.receive({&received, 1}), 0U);
      continue;
    }
    ASSERT_TRUE(await_frame(pair, received));
    EXPECT_EQ(bytes_of(received), sent);
    EXPECT_EQ(received.buffers, (header + bytes + 511) / 512);
    EXPECT_EQ(received.pieces.size(), received.buffers);
    EXPECT_EQ(pair.rx.free_buffers(), 0U);
    pair.rx.give_back({&received, 1});
    EXPECT_EQ(pair.rx.free_buffers(), received.buffers);
    EXPECT_EQ(pair.rx.fill(), received.buffers);
  }
}

TEST_P(NetDriverLayout, FramesLieInRegionsOfTheirOwn) {
  const auto driver = connect({.queue_size = 64, .receive_buffers = 32, .scratch_bytes = 4096, .scratch_regions = 2});
  ASSERT_TRUE(driver);
  ASSERT_EQ(driver->memory().regions().size(), 3U);
  NetDriverPair& pair = driver->pair(0);
  pair.rx.fill();
  for (const std::size_t region : {1U, 2U}) {
    const Result<SharedBlock> block = driver->memory().allocate(4096, 64, region);
    ASSERT_TRUE(block) << block.error().message;
    const std::vector<std::byte> sent = pattern(1000, static_cast<std::uint32_t>(region));
    std::memcpy(block->host, sent.data(), sent.size());
    const DriverBuffer piece{block->guest, 1000};
    ASSERT_TRUE(pair.tx.transmit(spec::NetHeader{}, {&piece, 1}, region));
    pair.tx.publish_and_kick();
    NetDriverFrame received;
    ASSERT_TRUE(await_frame(pair, received));
    EXPECT_EQ(bytes_of(received), sent);
    pair.rx.give_back({&received, 1});
    EXPECT_EQ(await_transmitted(pair.tx), region);
  }
}

TEST_P(NetDriverLayout, RingsResumeAfterAReconnect) {
  const auto driver = connect({.queue_size = 64, .receive_buffers = 20});
  ASSERT_TRUE(driver);
  NetDriverPair& pair = driver->pair(0);
  pair.rx.fill();
  for (std::uint32_t round = 0; round < 12; ++round) {
    ASSERT_TRUE(echo_once(pair, pattern(60 + round, round)));
    const bool reset = round % 2 == 1;
    const auto again = driver->reconnect(reset ? NetDriver::Rings::reset : NetDriver::Rings::resume);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(pair.rx.posted(), reset || GetParam().packed ? 0U : 20U);
    pair.rx.fill();
    EXPECT_EQ(pair.rx.posted(), 20U);
  }
}

TEST_P(NetDriverLayout, RingsStopAtTheirBaseAndGoOn) {
  const auto driver = connect({.queue_size = 32, .receive_buffers = 10});
  ASSERT_TRUE(driver);
  NetDriverPair& pair = driver->pair(0);
  pair.rx.fill();
  for (std::uint32_t round = 1; round <= 5; ++round) {
    for (std::uint32_t i = 0; i < 11; ++i) {
      ASSERT_TRUE(echo_once(pair, pattern(100, round * 16 + i)));
    }
    for (const std::uint32_t index : {0U, 1U}) {
      const auto base = driver->stop_queue(index);
      ASSERT_TRUE(base) << base.error().message;
      if (index == 1 && !GetParam().packed) {
        EXPECT_EQ(*base, round * 11);
      }
      ASSERT_TRUE(driver->start_queue(index, *base));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , NetDriverLayout,
    testing::Values(Layout{.name = "split_plain"}, Layout{.name = "split_legacy", .legacy = true},
                    Layout{.name = "split_legacy_mergeable", .mergeable = true, .legacy = true},
                    Layout{.name = "split_linux", .indirect = true, .event_index = true, .mergeable = true},
                    Layout{.name = "split_header_apart", .indirect = false, .event_index = true, .header_apart = true},
                    Layout{.name = "split_hash", .indirect = true, .event_index = true, .mergeable = true, .hash = true},
                    Layout{.name = "split_in_order", .indirect = true, .in_order = true, .mergeable = true},
                    Layout{.name = "packed_plain", .packed = true},
                    Layout{.name = "packed_linux", .packed = true, .indirect = true, .event_index = true, .mergeable = true},
                    Layout{.name = "packed_header_apart", .packed = true, .mergeable = true, .header_apart = true},
                    Layout{.name = "packed_in_order", .packed = true, .in_order = true, .mergeable = true, .hash = true}),
    [](const auto& instance) { return instance.param.name; });

// --- faults of the device ---

struct Fault {
  const char* name;
  Mischief mischief;
  NetDriverReceiveQueue::Faults counted;
  bool delivered;
};

class NetDriverFault : public testing::TestWithParam<Fault> {};

TEST_P(NetDriverFault, IsCountedAndCostsNoBuffer) {
  NetBackendPeer peer({.features = spec::kNetMrgRxbuf});
  const auto driver = connect_net_driver({.socket_path = peer.socket_path(), .receive_buffers = 32});
  ASSERT_TRUE(driver);
  NetDriverPair& pair = driver->pair(0);
  pair.rx.fill();
  peer.misbehave(GetParam().mischief);
  const NetDriverTransmitQueue::Frame frame{.buffer = 0, .bytes = 100};
  ASSERT_EQ(pair.tx.transmit({&frame, 1}), 1U);
  pair.tx.publish_and_kick();
  ASSERT_EQ(await_transmitted(pair.tx), 0U);  // the device had delivered it by then
  NetDriverFrame received;
  ASSERT_EQ(pair.rx.receive({&received, 1}), GetParam().delivered ? 1U : 0U);
  EXPECT_EQ(pair.rx.faults(), GetParam().counted);
  if (GetParam().delivered) {
    EXPECT_EQ(received.bytes, 100U);
    pair.rx.give_back({&received, 1});
  }
  peer.misbehave(Mischief::none);
  EXPECT_EQ(pair.rx.free_buffers() + pair.rx.posted(), 32U);
  pair.rx.fill();
  for (std::uint32_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(echo_once(pair, pattern(1000, i)));
  }
  EXPECT_EQ(pair.rx.faults(), GetParam().counted);
}

INSTANTIATE_TEST_SUITE_P(
    , NetDriverFault,
    testing::Values(Fault{"used_short", Mischief::used_short, {.bad_length = 1}, false},
                    Fault{"used_long", Mischief::used_long, {.bad_length = 1}, false},
                    Fault{"zero_num_buffers", Mischief::zero_num_buffers, {.no_num_buffers = 1}, true},
                    Fault{"num_buffers_beyond", Mischief::num_buffers_beyond, {.missing_buffers = 1}, false}),
    [](const auto& instance) { return instance.param.name; });

// --- pairs ---

TEST(NetDriverPairs, FramesStayInTheirPair) {
  NetBackendPeer peer({.features = kAllControl, .config = config_of(8), .rings = 17, .queue_num = 8});
  const auto driver = connect_net_driver({.socket_path = peer.socket_path(), .pairs = 3});
  ASSERT_TRUE(driver);
  EXPECT_EQ(driver->pairs_offered(), 8U);
  EXPECT_EQ(driver->pair_count(), 3U);
  ASSERT_NE(driver->control(), nullptr);
  EXPECT_EQ(driver->control()->index(), 16U) << "behind all that the device has";
  EXPECT_EQ(peer.started(), (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 16}));
  EXPECT_TRUE(driver->control()->set_pairs(3)->ok());
  for (std::uint32_t round = 0; round < 30; ++round) {
    NetDriverPair& pair = driver->pair(round % 3);
    pair.rx.fill();
    ASSERT_TRUE(echo_once(pair, pattern(200, round)));
    NetDriverFrame none;
    EXPECT_EQ(driver->pair((round + 1) % 3).rx.receive({&none, 1}), 0U);
  }
}

TEST(NetDriverPairs, DisabledOnesWaitForTheFrontEnd) {
  NetBackendPeer peer({.features = kAllControl, .config = config_of(2), .rings = 5, .queue_num = 2});
  const auto driver = connect_net_driver({.socket_path = peer.socket_path(), .pairs = 2, .enable_pairs = false});
  ASSERT_TRUE(driver);
  EXPECT_TRUE(driver->control()->set_pairs(2)->ok()) << "the control queue is enabled";
  NetDriverPair& pair = driver->pair(1);
  pair.rx.fill();
  const NetDriverTransmitQueue::Frame frame{.buffer = 7, .bytes = 64};
  ASSERT_EQ(pair.tx.transmit({&frame, 1}), 1U);
  pair.tx.publish_and_kick();
  EXPECT_FALSE(pair.wait(clock_now() + Duration::milliseconds(50)));
  ASSERT_TRUE(driver->enable_pair(1, true));
  NetDriverFrame received;
  ASSERT_TRUE(await_frame(pair, received));
  EXPECT_EQ(received.bytes, 64U);
  pair.rx.give_back({&received, 1});
  ASSERT_EQ(await_transmitted(pair.tx), 7U);
  ASSERT_TRUE(driver->reconnect(NetDriver::Rings::reset));
  pair.rx.fill();
  EXPECT_TRUE(echo_once(pair, pattern(64, 1))) << "enabled again";
  driver->pair(0).rx.fill();
  const NetDriverTransmitQueue::Frame other{.buffer = 0, .bytes = 64};
  ASSERT_EQ(driver->pair(0).tx.transmit({&other, 1}), 1U);
  driver->pair(0).tx.publish_and_kick();
  EXPECT_FALSE(driver->pair(0).wait(clock_now() + Duration::milliseconds(50))) << "that one wasn't";
}

TEST(NetDriverPairs, MoreThanThereAreIsAnError) {
  NetBackendPeer peer({.features = kAllControl, .config = config_of(2), .rings = 5, .queue_num = 2});
  const auto driver = NetDriver::create({.socket_path = peer.socket_path(), .pairs = 3});
  ASSERT_FALSE(driver);
  EXPECT_NE(driver.error().message.find("has 2 queue pairs, 3"), std::string::npos) << driver.error().message;
  NetBackendPeer single({.features = spec::kNetMac});
  const auto other = NetDriver::create({.socket_path = single.socket_path(), .pairs = 2});
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("VIRTIO_NET_F_MQ"), std::string::npos) << other.error().message;
}

TEST(NetDriverPairs, AreTheFrontEndsAffairWithoutOurControlQueue) {
  NetBackendPeer peer({.features = kAllControl, .config = config_of(4), .rings = 9, .queue_num = 4});
  const auto driver = connect_net_driver({.socket_path = peer.socket_path(), .control_queue = false, .pairs = 4});
  ASSERT_TRUE(driver);
  EXPECT_EQ(driver->control(), nullptr);
  EXPECT_TRUE(driver->negotiated().has(spec::kNetMq));
  EXPECT_FALSE(driver->negotiated().has(spec::kNetCtrlVq));
  EXPECT_FALSE(driver->negotiated().has(spec::kNetCtrlRx));
  EXPECT_EQ(peer.started().size(), 8U);
}

TEST(NetDriverPairs, AreCountedByGetQueueNumWithoutAConfiguration) {
  NetBackendPeer peer({.features = kAllControl, .config = config_of(9), .rings = 9, .queue_num = 4});
  const auto driver = connect_net_driver({.socket_path = peer.socket_path(),
                                          .protocol_features = kNetDriverProtocolFeatures & ~vhost_user::kProtocolConfig,
                                          .pairs = 2});
  ASSERT_TRUE(driver);
  EXPECT_EQ(driver->pairs_offered(), 4U);
  EXPECT_EQ(driver->config_bytes(), 0U);
  EXPECT_EQ(driver->control(), nullptr) << "such back-ends offer one that they don't serve";
  EXPECT_TRUE(driver->link_up());
  driver->pair(1).rx.fill();
  EXPECT_TRUE(echo_once(driver->pair(1), pattern(64, 1)));
}

// --- the control queue ---

class NetDriverControl : public testing::TestWithParam<bool> {
 protected:
  NetDriverControl() : peer_({.features = kAllControl, .config = config_of(2), .rings = 5, .queue_num = 2}) {
    driver_ = connect_net_driver({.socket_path = peer_.socket_path(), .packed = GetParam(), .indirect = !GetParam()});
  }
  // What the device read of a command that it acknowledged; its writable part was the ack alone.
  std::string sent(const NetDriverControlQueue::Answer& answer) {
    EXPECT_TRUE(answer) << (answer ? "" : answer.error().message);
    if (!answer) {
      return {};
    }
    EXPECT_EQ(answer->ack, spec::kNetAckOk);
    EXPECT_EQ(answer->written_bytes, 1U);
    return hex(peer_.commands().back());
  }
  NetBackendPeer peer_;
  std::unique_ptr<NetDriver> driver_;
};

TEST_P(NetDriverControl, CommandsAreAsTheSpecificationHasThem) {
  ASSERT_TRUE(driver_);
  NetDriverControlQueue& control = *driver_->control();
  EXPECT_EQ(sent(control.set_pairs(2)),
            "0400"
            "0200");
  EXPECT_EQ(sent(control.set_rx_mode(spec::kNetCtrlRxPromisc, true)),
            "0000"
            "01");
  EXPECT_EQ(sent(control.set_rx_mode(spec::kNetCtrlRxNobcast, false)),
            "0005"
            "00");
  const std::array<NetDriverControlQueue::Mac, 2> macs{NetDriverControlQueue::Mac{1, 2, 3, 4, 5, 6},
                                                       {0x33, 0x33, 0, 0, 0, 1}};
  EXPECT_EQ(sent(control.set_mac_tables(macs, {})),
            "0100"
            "02000000"
            "010203040506"
            "333300000001"
            "00000000");
  EXPECT_EQ(sent(control.set_mac_tables({}, {&macs[1], 1})),
            "0100"
            "00000000"
            "01000000"
            "333300000001");
  EXPECT_EQ(sent(control.set_mac(macs[0])),
            "0101"
            "010203040506");
  EXPECT_EQ(sent(control.add_vlan(100)),
            "0200"
            "6400");
  EXPECT_EQ(sent(control.delete_vlan(4094)),
            "0201"
            "fe0f");
  EXPECT_EQ(sent(control.acknowledge_announce()), "0300");
  EXPECT_EQ(sent(control.set_offloads(spec::kNetGuestCsum | spec::kNetGuestUso4)),
            "0500"
            "0200000000004000");
  const std::array<std::uint16_t, 4> table{0, 1, 1, 0};
  const std::array<std::byte, 3> key{std::byte{0xaa}, std::byte{0xbb}, std::byte{0xcc}};
  EXPECT_EQ(
      sent(control.configure_rss({.hash_types = 0x3f, .table = table, .unclassified = 1, .transmit_queues = 2, .key = key})),
      "0401"
      "3f000000"
      "0300"
      "0100"
      "0000010001000000"
      "0200"
      "03"
      "aabbcc");
  EXPECT_EQ(sent(control.configure_hash(0x12, key)),
            "0402"
            "12000000"
            "0000000000000000"
            "03"
            "aabbcc");
  EXPECT_EQ(sent(control.set_transmit_coalescing({.max_packets = 32, .max_usecs = 64})),
            "0600"
            "20000000"
            "40000000");
  EXPECT_EQ(sent(control.set_receive_coalescing({.max_packets = 1, .max_usecs = 2})),
            "0601"
            "01000000"
            "02000000");
  EXPECT_EQ(sent(control.set_queue_coalescing(3, {.max_packets = 1, .max_usecs = 2})),
            "0602"
            "0300"
            "0000"
            "01000000"
            "02000000");
}

TEST_P(NetDriverControl, AnAnswerBesideTheAckIsHandedOut) {
  ASSERT_TRUE(driver_);
  NetDriverControlQueue::Coalescing coalescing;
  const auto answer = driver_->control()->get_queue_coalescing(2, coalescing);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->ack, spec::kNetAckOk);
  EXPECT_EQ(answer->written_bytes, 9U);
  EXPECT_EQ(coalescing, (NetDriverControlQueue::Coalescing{.max_packets = 0x5a5a5a5a, .max_usecs = 0x5a5a5a5a}));
  EXPECT_EQ(hex(peer_.commands().back()),
            "0603"
            "0200"
            "0000");
}

TEST_P(NetDriverControl, ARefusalIsAnAnswer) {
  ASSERT_TRUE(driver_);
  peer_.answer_commands(spec::kNetAckErr);
  const auto answer = driver_->control()->set_pairs(77);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_FALSE(answer->ok());
  EXPECT_EQ(answer->ack, spec::kNetAckErr);
}

TEST_P(NetDriverControl, ACommandThatIsNotAnsweredInTimeIsAnErrorAndTheNextWaitsForIt) {
  ASSERT_TRUE(driver_);
  NetDriverControlQueue& control = *driver_->control();
  control.set_patience(Duration::milliseconds(20));
  peer_.misbehave(Mischief::mute);
  EXPECT_FALSE(control.add_vlan(1));
  EXPECT_FALSE(control.add_vlan(2)) << "the first one's memory is still the device's";
  peer_.misbehave(Mischief::none);
  control.set_patience(kNetTestLimit);
  EXPECT_EQ(sent(control.add_vlan(3)),
            "0200"
            "0300");
  const auto commands = peer_.commands();
  ASSERT_EQ(commands.size(), 2U);
  EXPECT_EQ(hex(commands[0]),
            "0200"
            "0100");
}

TEST_P(NetDriverControl, TooMuchIsRefusedHere) {
  ASSERT_TRUE(driver_);
  const std::vector<std::byte> large(NetDriverControlQueue::kDataBytesMax);
  const std::array<std::span<const std::byte>, 1> most{large};
  EXPECT_TRUE(driver_->control()->command(9, 9, most));
  EXPECT_EQ(peer_.commands().back().size(), large.size() + 2);
  const std::array<std::span<const std::byte>, 2> more{large, std::span(large).first(1)};
  EXPECT_FALSE(driver_->control()->command(9, 9, more));
  const std::array<std::span<const std::byte>, NetDriverControlQueue::kPartsMax + 1> parts{};
  EXPECT_FALSE(driver_->control()->command(9, 9, parts));
}

TEST_P(NetDriverControl, MoreCommandsThanIndicesGoThrough) {
  ASSERT_TRUE(driver_);
  for (std::uint32_t i = 0; i < 1000; ++i) {  // some laps of the ring
    ASSERT_TRUE(driver_->control()->add_vlan(static_cast<std::uint16_t>(i))->ok());
  }
  EXPECT_EQ(driver_->control()->ring().in_flight(), 0U);
}

INSTANTIATE_TEST_SUITE_P(, NetDriverControl, testing::Bool(),
                         [](const auto& instance) { return instance.param ? "packed" : "split"; });

// --- configuration and notifications ---

TEST(NetDriverConfig, IsReadAndReadAgainWhenItChanges) {
  spec::NetConfig config = config_of(2);
  NetBackendPeer peer({.features = kAllControl, .config = config, .rings = 5, .queue_num = 2});
  const auto driver = connect_net_driver({.socket_path = peer.socket_path()});
  ASSERT_TRUE(driver);
  EXPECT_EQ(driver->config_bytes(), sizeof(spec::NetConfig));
  EXPECT_EQ(driver->config().mac[5], 3);
  EXPECT_TRUE(driver->link_up());
  EXPECT_FALSE(driver->announce_wanted());
  config.status = spec::kNetStatusAnnounce;
  peer.announce_config(config);
  ASSERT_TRUE(driver->wait_config_change(kNetTestLimit));
  EXPECT_FALSE(driver->link_up());
  EXPECT_TRUE(driver->announce_wanted());
  EXPECT_FALSE(driver->wait_config_change(Duration::milliseconds(10)));
}

TEST(NetDriverConfig, NoMoreIsAskedForThanTheFeaturesNeed) {
  NetBackendPeer peer({.features = spec::kNetMac | spec::kNetStatus, .config = config_of(1)});
  const auto driver = connect_net_driver({.socket_path = peer.socket_path()});
  ASSERT_TRUE(driver);
  EXPECT_EQ(driver->config_bytes(), offsetof(spec::NetConfig, max_virtqueue_pairs));
}

TEST(NetDriverNotifications, AWaitEndsAtItsDeadlineAndNoticesADeadPeer) {
  std::optional<NetBackendPeer> peer(std::in_place, NetBackendPeer::Options{});
  const auto driver = connect_net_driver({.socket_path = peer->socket_path()});
  ASSERT_TRUE(driver);
  const Instant deadline = clock_now() + Duration::milliseconds(20);
  while (driver->pair(0).wait(deadline)) {
  }
  EXPECT_GE(clock_now(), deadline);
  EXPECT_FALSE(driver->peer_closed());
  peer.reset();
  EXPECT_TRUE(driver->peer_closed());
}

TEST(NetDriverNotifications, AFullRingTakesWhatItCanAndGoesOn) {
  NetBackendPeer peer({});
  const auto driver = connect_net_driver(
      {.socket_path = peer.socket_path(), .queue_size = 16, .transmit_buffers = 64, .enable_pairs = false});
  ASSERT_TRUE(driver);
  NetDriverTransmitQueue& tx = driver->pair(0).tx;
  std::vector<NetDriverTransmitQueue::Frame> frames;
  for (std::uint32_t i = 0; i < 40; ++i) {
    frames.push_back({.buffer = i, .bytes = 60});
  }
  std::size_t done = tx.transmit(frames);
  EXPECT_EQ(done, 16U);
  EXPECT_EQ(tx.transmit(std::span(frames).subspan(done)), 0U);
  EXPECT_FALSE(tx.transmit({}, {}, 1)) << "neither is there room for others";
  ASSERT_TRUE(driver->enable_pair(0, true));
  tx.publish_and_kick();
  for (std::uint64_t expected = 0; expected < 40; ++expected) {
    ASSERT_EQ(await_transmitted(tx), expected);
    done += tx.transmit(std::span(frames).subspan(done));
    tx.publish_and_kick();
  }
  EXPECT_EQ(tx.in_flight(), 0U);
}

}  // namespace
}  // namespace ringway
