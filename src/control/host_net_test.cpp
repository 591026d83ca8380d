// Network cards of a host, beside its disks: a guest's driver over a real socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <span>
#include <thread>

#include "control/host.hpp"
#include "control/test_host.hpp"
#include "driver/test_driver.hpp"
#include "driver/test_net_driver.hpp"

namespace ringway {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<NetDriver> connect_card(const std::string& socket, bool packed = false, std::uint32_t pairs = 1) {
  NetDriverOptions options;
  options.socket_path = socket;
  options.packed = packed;
  options.pairs = pairs;
  std::unique_ptr<NetDriver> driver = connect_net_driver(options);
  for (std::uint32_t i = 0; driver != nullptr && i < pairs; ++i) {
    driver->pair(i).rx.fill();
  }
  return driver;
}

std::vector<std::byte> frame_of(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> frame(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    frame[i] = static_cast<std::byte>(i * 7 + i / 256 + seed);
  }
  return frame;
}

NetStatus status_of(TestHost& host, const std::string& name) {
  const HostResult<NetStatus> status = host.call([&](Host& h) { return h.net(name); });
  EXPECT_TRUE(status) << status.error().message;
  return status.value_or(NetStatus{});
}

class HostNet : public ::testing::TestWithParam<bool> {};  // packed rings

TEST_P(HostNet, ServesACardToADriver) {
  const TestDirectory directory;
  TestHost host({}, {}, {test_net(directory.file("n.sock"))});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  {
    const auto driver = connect_card(directory.file("n.sock"), GetParam());
    ASSERT_NE(driver, nullptr);
    EXPECT_EQ(driver->negotiated().has(spec::kFeatureRingPacked), GetParam());
    std::uint64_t bytes = 0;
    for (const std::size_t length : {60U, 61U, 1000U, 1514U}) {
      EXPECT_TRUE(echo_once(driver->pair(0), frame_of(length, 1))) << length;
      bytes += length;
    }
    const NetStatus status = status_of(host, "loop");
    EXPECT_EQ(status.state, DeviceState::serving);
    EXPECT_TRUE(status.connected);
    EXPECT_EQ(status.port.kind, "loop");
    EXPECT_EQ(mac_text(status.mac), mac_text(status.options.mac));
    EXPECT_TRUE(std::ranges::equal(driver->config().mac, status.mac));
    const std::vector<NetStats> stats = host.call([](Host& h) { return h.net_stats(); });
    ASSERT_EQ(stats.size(), 1U);
    EXPECT_EQ(stats[0].stats.pairs[0].transmit.frames, 4U);
    EXPECT_EQ(stats[0].stats.pairs[0].transmit.bytes, bytes);
    EXPECT_EQ(stats[0].stats.pairs[0].receive.frames, 4U);
    EXPECT_EQ(stats[0].stats.pairs[0].receive.bytes, bytes);
  }
  EXPECT_EQ(host.quit(), HostEnd::clean);
  EXPECT_THAT(host.report(), HasSubstr("net 'loop'"));
  EXPECT_FALSE(std::filesystem::exists(directory.file("n.sock")));
}

TEST_P(HostNet, EachPairGetsBackWhatItSent) {
  const TestDirectory directory;
  NetOptions net = test_net(directory.file("n.sock"), "n");
  net.queues = 3;
  HostOptions options;
  options.workers.workers = 2;
  TestHost host(options, {}, {net});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_card(directory.file("n.sock"), GetParam(), 3);
  ASSERT_NE(driver, nullptr);
  ASSERT_NE(driver->control(), nullptr);
  EXPECT_EQ(driver->pairs_offered(), 3U);
  const auto set = driver->control()->set_pairs(3);
  ASSERT_TRUE(set && set->ok());
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(echo_once(driver->pair(i), frame_of(500, i))) << i;
  }
  EXPECT_EQ(status_of(host, "n").pairs, 3U);
  const NetDeviceStats stats = host.call([](Host& h) { return h.net_stats(); })[0].stats;
  ASSERT_TRUE(stats.control.has_value());
  EXPECT_EQ(stats.control->commands, 1U);
  EXPECT_NE(stats.pairs[0].worker, stats.pairs[1].worker);
  EXPECT_EQ(host.quit(), HostEnd::clean);
}

TEST_P(HostNet, ASourceFillsWhatBuffersThereAre) {
  const TestDirectory directory;
  NetOptions net = test_net(directory.file("n.sock"), "n");
  net.loop = false;
  net.source_bytes = 300;
  TestHost host({}, {}, {net});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_card(directory.file("n.sock"), GetParam());
  ASSERT_NE(driver, nullptr);
  for (int i = 0; i < 2000; ++i) {
    NetDriverFrame frame;
    ASSERT_TRUE(await_frame(driver->pair(0), frame)) << i;
    ASSERT_EQ(frame.bytes, 300U);
    driver->pair(0).rx.give_back({&frame, 1});
    driver->pair(0).rx.fill();
  }
  EXPECT_GE(host.call([](Host& h) { return h.net_stats(); })[0].stats.pairs[0].receive.frames, 2000U);
  // It ends in the middle of that.
  EXPECT_EQ(host.quit(), HostEnd::clean);
}

INSTANTIATE_TEST_SUITE_P(Rings, HostNet, ::testing::Bool(),
                         [](const auto& rings) { return rings.param ? std::string("packed") : std::string("split"); });

TEST(HostNets, NamesAndSocketsAreUniqueOverDisksAndCards) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("null:1M", directory.file("d.sock"), "a"), test_disk("null:1M", directory.file("e.sock"))},
                {test_net(directory.file("n.sock"), "n")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const HostResult<std::string> name = host.add(test_net(directory.file("x.sock"), "a"));
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().refusal, HostRefusal::conflict);
  EXPECT_EQ(name.error().message, "net 'a': there is a disk of that name already; choose another name=");
  EXPECT_EQ(host.add(test_disk("null:1M", directory.file("x.sock"), "n")).error().message,
            "disk 'n': there is a net of that name already; choose another name=");
  const HostResult<std::string> socket = host.add(test_net(directory.file("./d.sock"), "b"));
  ASSERT_FALSE(socket);
  EXPECT_EQ(socket.error().message, "net 'b': the socket '" + directory.file("./d.sock") + "' belongs to disk 'a' already");
  // Made unique over both.
  NetOptions null = test_net(directory.file("x.sock"));
  null.loop = false;
  null.null = true;
  EXPECT_EQ(host.add(null).value_or("-"), "null-2");

  EXPECT_EQ(host.call([](Host& h) { return h.disk("n"); }).error().message, "there is no disk 'n', but a net of that name");
  EXPECT_EQ(host.call([](Host& h) { return h.net("a"); }).error().message, "there is no net 'a', but a disk of that name");
  EXPECT_EQ(host.call([](Host& h) { return h.net("z"); }).error().message, "there is no net 'z'; there are: n, null-2");
  EXPECT_EQ(host.remove("z").error().message, "there is no device 'z'; there are: a, n, null, null-2");
  EXPECT_EQ(host.call([](Host& h) { return h.kind_of("n"); }).value_or(DeviceKind::disk), DeviceKind::net);
  EXPECT_EQ(host.resize("n", 0).error().message, "there is no disk 'n', but a net of that name");
}

TEST(HostNets, AnErrorOfTheDeviceNamesItOnce) {
  const TestDirectory directory;
  NetOptions net = test_net(directory.file("n.sock"), "n");
  net.queues = 1000;
  TestHost host({}, {test_disk("null:1M", directory.file("d.sock"), "d")}, {net});
  ASSERT_FALSE(host.started());
  EXPECT_THAT(host.started().error().message, ::testing::StartsWith("net 'n': queues=1000 must be between 1 and "));
  EXPECT_FALSE(std::filesystem::exists(directory.file("d.sock"))) << "no socket stands before all devices are there";
}

// A device that has been made has sent its first messages to the workers, even if nobody can ever connect to it.
TEST(HostNets, ACardWithoutASocketLeavesNothingBehind) {
  const TestDirectory directory;
  TestHost failed({}, {}, {test_net(directory.file("n.sock"), "n"), test_net(directory.file("missing/m.sock"), "m")});
  ASSERT_FALSE(failed.started());
  EXPECT_THAT(failed.started().error().message, ::testing::StartsWith("net 'm': "));
  EXPECT_FALSE(std::filesystem::exists(directory.file("n.sock")));

  TestHost host;
  ASSERT_TRUE(host.started()) << host.started().error().message;
  for (int i = 0; i < 20; ++i) {
    const HostResult<std::string> added = host.add(test_net(directory.file("missing/m.sock"), "m"));
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().refusal, HostRefusal::not_possible);
  }
  EXPECT_TRUE(host.add(test_net(directory.file("m.sock"), "m"))) << "the name is free";
  EXPECT_EQ(host.quit(), HostEnd::clean);
}

TEST(HostNets, TheLinkIsShownToTheGuest) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("null:1M", directory.file("d.sock"), "d")}, {test_net(directory.file("n.sock"), "n")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_card(directory.file("n.sock"));
  ASSERT_NE(driver, nullptr);
  EXPECT_TRUE(driver->link_up());
  for (const bool up : {false, true}) {
    EXPECT_TRUE(host.call([&](Host& h) { return h.set_link("n", up); }));
    ASSERT_TRUE(driver->read_config());
    EXPECT_EQ(driver->link_up(), up);
    EXPECT_EQ(status_of(host, "n").link, up);
  }
  const HostResult<> disk = host.call([](Host& h) { return h.set_link("d", false); });
  ASSERT_FALSE(disk);
  EXPECT_EQ(disk.error().refusal, HostRefusal::not_found);
}

TEST(HostNets, RemovalHangsUpOnTheFrontEnd) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("null:1M", directory.file("d.sock"), "d")},
                {test_net(directory.file("n.sock"), "n"), test_net(directory.file("m.sock"), "m")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto n = connect_card(directory.file("n.sock"));
  const auto m = connect_card(directory.file("m.sock"));
  const auto disk = connect_driver(directory.file("d.sock"));
  ASSERT_TRUE(n && m && disk);
  EXPECT_TRUE(echo_once(n->pair(0), frame_of(64, 0)));
  EXPECT_TRUE(host.remove("n"));
  EXPECT_TRUE(eventually([&] { return n->peer_closed(); }));
  EXPECT_FALSE(std::filesystem::exists(directory.file("n.sock")));
  EXPECT_EQ(host.call([](Host& h) { return h.net("n"); }).error().refusal, HostRefusal::not_found);
  EXPECT_TRUE(echo_once(m->pair(0), frame_of(64, 0)));
  EXPECT_EQ(transfer(disk->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  // Name and socket can be had again, by a disk too.
  EXPECT_TRUE(host.add(test_disk("null:2M", directory.file("n.sock"), "n")));
  EXPECT_EQ(host.quit(), HostEnd::clean);
}

// Cards come and go while one carries traffic: nothing of them stays behind.
TEST(HostNets, CardsComeAndGoBesideTraffic) {
  const TestDirectory directory;
  HostOptions options;
  options.workers.workers = 2;
  TestHost host(options, {}, {test_net(directory.file("n.sock"), "n")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_card(directory.file("n.sock"));
  ASSERT_NE(driver, nullptr);
  const auto descriptors = [] {
    const std::filesystem::directory_iterator each("/proc/self/fd");
    return std::distance(begin(each), end(each));
  };
  std::ptrdiff_t before = 0;
  for (unsigned i = 0; i < 32; ++i) {
    NetOptions other = test_net(directory.file("m.sock"), "m");
    other.queues = 2;
    const HostResult<std::string> added = host.add(other);
    ASSERT_TRUE(added) << added.error().message;
    {
      const auto guest = connect_card(directory.file("m.sock"));
      ASSERT_NE(guest, nullptr);
      ASSERT_TRUE(echo_once(guest->pair(0), frame_of(200, i)));
      ASSERT_TRUE(host.remove("m"));
    }
    ASSERT_TRUE(echo_once(driver->pair(0), frame_of(300, i)));
    if (i == 0) {
      before = descriptors();
    }
  }
  EXPECT_TRUE(eventually([&] { return descriptors() <= before; })) << descriptors() << ", not " << before;
  EXPECT_EQ(host.quit(), HostEnd::clean);
}

TEST(HostNets, AnAddressStaysTheSameUnlessItIsGiven) {
  const TestDirectory directory;
  NetOptions given = test_net(directory.file("g.sock"), "g");
  given.mac = {0x52, 0x54, 0, 1, 2, 3};
  const std::vector<NetOptions> nets = {test_net(directory.file("n.sock"), "n"), test_net(directory.file("m.sock"), "m"),
                                        given};
  std::array<std::vector<NetMac>, 2> seen;
  for (std::vector<NetMac>& macs : seen) {
    TestHost host({}, {}, nets);
    ASSERT_TRUE(host.started()) << host.started().error().message;
    for (const NetStatus& net : host.call([](Host& h) { return h.nets(); })) {
      macs.push_back(net.mac);
    }
  }
  EXPECT_EQ(seen[0], seen[1]);
  ASSERT_EQ(seen[0].size(), 3U);
  EXPECT_EQ(seen[0][0], given.mac);  // "g" is the first by name
  EXPECT_NE(seen[0][1], seen[0][2]);
}

NetOptions on_switch(std::string socket, std::string name, std::string lan = "lan0") {
  NetOptions net = test_net(std::move(socket), std::move(name));
  net.loop = false;
  net.on_switch = std::move(lan);
  return net;
}

// To `to`, from `from`; of a protocol that nobody has a use for.
std::vector<std::byte> frame_between(const NetMac& from, const NetMac& to, std::size_t bytes, unsigned seed) {
  std::vector<std::byte> frame = frame_of(bytes, seed);
  std::ranges::copy(std::as_bytes(std::span(to)), frame.begin());
  std::ranges::copy(std::as_bytes(std::span(from)), frame.begin() + 6);
  frame[12] = std::byte{0x88};
  frame[13] = std::byte{0xb5};
  return frame;
}

bool send_frame(NetDriver& driver, const std::vector<std::byte>& frame) {
  auto& tx = driver.pair(0).tx;
  std::ranges::copy(frame, static_cast<std::byte*>(tx.buffer(0).host));
  tx.set_header(0, {});
  const NetDriverTransmitQueue::Frame one{.buffer = 0, .bytes = static_cast<std::uint32_t>(frame.size())};
  if (tx.transmit({&one, 1}) != 1) {
    return false;
  }
  tx.publish_and_kick();
  return await_transmitted(tx) == 0U;
}

// What comes next; empty: nothing.
std::vector<std::byte> receive_frame(NetDriver& driver) {
  NetDriverFrame frame;
  if (!await_frame(driver.pair(0), frame)) {
    return {};
  }
  std::vector<std::byte> bytes = bytes_of(frame);
  driver.pair(0).rx.give_back({&frame, 1});
  driver.pair(0).rx.fill();
  return bytes;
}

// Cards of one switch reach each other, those of another don't; and a switch outlives all of its cards but the last.
TEST(HostNets, CardsOfASwitchReachEachOther) {
  const TestDirectory directory;
  HostOptions options;
  options.workers.workers = 2;
  TestHost host(options, {},
                {on_switch(directory.file("a.sock"), "a"), on_switch(directory.file("b.sock"), "b"),
                 on_switch(directory.file("c.sock"), "c", "lan1")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto a = connect_card(directory.file("a.sock"));
  const auto c = connect_card(directory.file("c.sock"));
  ASSERT_TRUE(a && c);
  const NetMac mac_a = status_of(host, "a").mac;
  const NetMac mac_b = status_of(host, "b").mac;
  EXPECT_EQ(status_of(host, "a").port.kind, "switch");
  for (unsigned life = 0; life < 3; ++life) {
    {
      const auto b = connect_card(directory.file("b.sock"));
      ASSERT_NE(b, nullptr);
      for (const std::size_t bytes : {60U, 1514U}) {
        const auto there = frame_between(mac_a, mac_b, bytes, life);
        ASSERT_TRUE(send_frame(*a, there));
        EXPECT_EQ(receive_frame(*b), there);
        const auto back = frame_between(mac_b, mac_a, bytes, life + 7);
        ASSERT_TRUE(send_frame(*b, back));
        EXPECT_EQ(receive_frame(*a), back);
      }
    }
    ASSERT_TRUE(host.remove("b"));
    ASSERT_TRUE(host.add(on_switch(directory.file("b.sock"), "b")));
  }
  const std::vector<NetStats> stats = host.call([](Host& h) { return h.net_stats(); });
  EXPECT_GT(stats[0].stats.pairs[0].port.lent, 0U) << "a and b are on two workers";
  EXPECT_EQ(stats[2].stats.pairs[0].receive.frames, 0U) << "c is on another switch";
  EXPECT_EQ(host.quit(), HostEnd::clean);
}

TEST(HostNets, ASwitchDropsWhatACardMayNotSend) {
  const TestDirectory directory;
  NetOptions checked = on_switch(directory.file("a.sock"), "a");
  checked.checks_mac = true;
  checked.vlan = 9;
  NetOptions trunk = on_switch(directory.file("b.sock"), "b");
  trunk.trunk = {9, 10};
  TestHost host({}, {}, {checked, trunk, on_switch(directory.file("c.sock"), "c")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto a = connect_card(directory.file("a.sock"));
  const auto b = connect_card(directory.file("b.sock"));
  const auto c = connect_card(directory.file("c.sock"));
  ASSERT_TRUE(a && b && c);
  constexpr NetMac kEverybody = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  constexpr NetMac kOther = {2, 0, 0, 0, 0, 99};
  ASSERT_TRUE(send_frame(*a, frame_between(kOther, kEverybody, 60, 0)));
  const auto good = frame_between(status_of(host, "a").mac, kEverybody, 60, 1);
  ASSERT_TRUE(send_frame(*a, good));
  const std::vector<std::byte> tagged = receive_frame(*b);
  ASSERT_EQ(tagged.size(), 64U);
  EXPECT_EQ(tagged[12], std::byte{0x81});
  EXPECT_EQ(tagged[15], std::byte{9});
  EXPECT_TRUE(std::ranges::equal(std::span(tagged).subspan(16), std::span(good).subspan(12)));
  const std::vector<NetStats> stats = host.call([](Host& h) { return h.net_stats(); });
  EXPECT_EQ(stats[0].stats.pairs[0].port.switch_dropped[static_cast<std::size_t>(SwitchDrop::spoofed_mac)], 1U);
  EXPECT_EQ(stats[2].stats.pairs[0].receive.frames, 0U) << "it isn't in VLAN 9";
  EXPECT_EQ(host.quit(), HostEnd::clean);
  EXPECT_THAT(host.report(), HasSubstr("switch dropped: spoofed_mac 1"));
}

// In a network namespace of its own, as below. The far end is a card on another tap of the same bridge.
TEST(HostNets, AnUplinkJoinsASwitchAndATap) {
  std::thread([] {
    if (unshare(CLONE_NEWNET) != 0 || !std::filesystem::exists("/dev/net/tun")) {
      GTEST_SKIP() << "no network namespace or no tap here (needs root)";
    }
    const TestDirectory directory;
    ASSERT_EQ(std::system("ip link add br7 type bridge mcast_snooping 0 && ip link set br7 up"), 0);
    NetOptions uplink;
    uplink.on_switch = "lan0";
    uplink.tap = "tap7";
    uplink.bridge = "br7";
    NetOptions far_card = test_net(directory.file("far.sock"), "far");
    far_card.loop = false;
    far_card.tap = "tap8";
    far_card.bridge = "br7";
    HostOptions options;
    options.workers.workers = 2;
    TestHost host(options, {}, {on_switch(directory.file("a.sock"), "a"), uplink, far_card});
    ASSERT_TRUE(host.started()) << host.started().error().message;
    ASSERT_EQ(std::system("ip link set tap7 up && ip link set tap8 up"), 0);
    const auto a = connect_card(directory.file("a.sock"));
    const auto far = connect_card(directory.file("far.sock"));
    ASSERT_TRUE(a && far);
    constexpr NetMac kA = {2, 0, 0, 0, 0, 1};
    constexpr NetMac kFar = {2, 0, 0, 0, 0, 2};
    const auto arrives = [](NetDriver& from, NetDriver& to, const std::vector<std::byte>& frame) {
      // A port of a bridge takes a moment to forward.
      for (int tries = 0; tries < 100; ++tries) {
        if (!send_frame(from, frame)) {
          return false;
        }
        NetDriverFrame got;
        for (int looks = 0; looks < 50; ++looks) {
          if (to.pair(0).rx.receive({&got, 1}) == 1) {
            const bool same = bytes_of(got) == frame;
            to.pair(0).rx.give_back({&got, 1});
            to.pair(0).rx.fill();
            if (same) {
              return true;
            }
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
      return false;
    };
    EXPECT_TRUE(arrives(*a, *far, frame_between(kA, kFar, 60, 1)));
    for (unsigned i = 0; i < 50; ++i) {
      EXPECT_TRUE(arrives(*far, *a, frame_between(kFar, kA, 1000 + i, i)));
      EXPECT_TRUE(arrives(*a, *far, frame_between(kA, kFar, 1000 + i, i + 100)));
    }
    const NetStatus status = status_of(host, "tap7");
    EXPECT_EQ(status.port.kind, "tap");
    EXPECT_FALSE(status.connected);
    const HostResult<> link = host.call([](Host& h) { return h.set_link("tap7", false); });
    ASSERT_FALSE(link);
    EXPECT_EQ(link.error().message, "net 'tap7' is an uplink: no guest sees its link");
    const HostResult<std::string> again = host.add(uplink);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().refusal, HostRefusal::conflict);
    EXPECT_TRUE(host.remove("tap7"));
    EXPECT_TRUE(host.add(uplink)) << "it can be had again";
    EXPECT_EQ(host.quit(), HostEnd::clean);
    EXPECT_THAT(host.report(), HasSubstr("net 'tap7' (uplink)"));
  }).join();
}

// In a network namespace of its own, which a thread and those that it starts may have.
TEST(HostNets, ATapIsOneCardsOnly) {
  std::thread([] {
    if (unshare(CLONE_NEWNET) != 0) {
      GTEST_SKIP() << "no network namespace here (needs root)";
    }
    const TestDirectory directory;
    NetOptions tap = test_net(directory.file("t.sock"));
    tap.loop = false;
    tap.tap = "tap7";
    tap.mtu = 1400;
    TestHost host({}, {}, {tap});
    if (!host.started() && std::filesystem::exists("/dev/net/tun")) {
      FAIL() << host.started().error().message;
    }
    if (!host.started()) {
      GTEST_SKIP() << host.started().error().message;
    }
    NetOptions second = tap;
    second.socket = directory.file("u.sock");
    second.name = "second";
    const HostResult<std::string> added = host.add(second);
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().refusal, HostRefusal::conflict);
    EXPECT_EQ(added.error().message, "net 'second': 'tap tap7' belongs to net 'tap7' already: remove that first");
    second.tap = "tap8";
    second.bridge = "nobridge";
    const HostResult<std::string> bridge = host.add(second);
    ASSERT_FALSE(bridge);
    EXPECT_EQ(bridge.error().refusal, HostRefusal::not_possible);
    EXPECT_THAT(bridge.error().message, ::testing::StartsWith("net 'second': there is no bridge nobridge"));
    const auto driver = connect_card(directory.file("t.sock"));
    ASSERT_NE(driver, nullptr);
    EXPECT_EQ(driver->config().mtu, 1400);
    const std::vector<std::byte> frame = frame_of(64, 2);
    std::memcpy(driver->pair(0).tx.buffer(0).host, frame.data(), frame.size());
    driver->pair(0).tx.set_header(0, {});
    ASSERT_EQ(driver->pair(0).tx.transmit(
                  std::array{std::remove_reference_t<decltype(driver->pair(0).tx)>::Frame{.buffer = 0, .bytes = 64}}),
              1U);
    driver->pair(0).tx.publish_and_kick();
    EXPECT_EQ(await_transmitted(driver->pair(0).tx), 0U);
    EXPECT_EQ(host.call([](Host& h) { return h.net_stats(); })[0].stats.pairs[0].transmit.frames, 1U);
    EXPECT_TRUE(host.remove("tap7"));
    second = tap;
    EXPECT_TRUE(host.add(second)) << "the interface can be had again";
    EXPECT_EQ(host.quit(), HostEnd::clean);
  }).join();
}

}  // namespace
}  // namespace ringway
