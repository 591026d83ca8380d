#include "control/net_options.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

namespace ringway {
namespace {

NetOptions card(std::string name, std::string socket) {
  NetOptions net;
  net.loop = true;
  net.name = std::move(name);
  net.socket = std::move(socket);
  return net;
}

TEST(NetMacText, GoesThereAndBack) {
  constexpr NetMac kMac = {0x52, 0x54, 0x00, 0xab, 0x0f, 0xff};
  EXPECT_EQ(mac_text(kMac), "52:54:00:ab:0f:ff");
  for (const char* text : {"52:54:00:ab:0f:ff", "52-54-00-AB-0F-FF"}) {
    const Result<NetMac> mac = parse_mac(text);
    ASSERT_TRUE(mac) << text;
    EXPECT_EQ(*mac, kMac);
  }
}

TEST(NetMacText, WhatIsNoAddressOfOneCardIsRefused) {
  for (const char* text : {"", "52:54:00:ab:0f", "52:54:00:ab:0f:f", "52:54:00:ab:0f:ff:00", "5254.00ab.0fff",
                           "52:54:00:ab:0f:fg", "52:54:00:ab:0f:-1", "+2:54:00:ab:0f:01", "52 54 00 ab 0f ff",
                           "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"}) {
    EXPECT_FALSE(parse_mac(text)) << text;
  }
}

// Two cards, two sockets, two hosts: another address each; the same card, the same address.
TEST(DefaultMac, IsTheCardsOwnOnEachHost) {
  std::set<NetMac> seen;
  unsigned cards = 0;
  for (const char* host : {"", "6e0b0a6a4c3f4b0f9d5a1d2e3f405162", "6e0b0a6a4c3f4b0f9d5a1d2e3f405163"}) {
    for (int i = 0; i < 200; ++i) {
      for (const char* directory : {"/run", "/run/vms"}) {
        const NetOptions net = card(fmt::format("vm{}", i), fmt::format("{}/vm{}.sock", directory, i));
        const NetMac mac = default_mac(net, host);
        EXPECT_EQ(mac[0] & 3, 2) << "a local address of one card";
        EXPECT_EQ(mac, default_mac(net, host));
        seen.insert(mac);
        ++cards;
      }
    }
  }
  EXPECT_EQ(seen.size(), cards);
  EXPECT_NE(default_mac(card("ab", "c"), ""), default_mac(card("a", "bc"), ""));
}

TEST(NetName, IsThatOfTheInterfaceOrThePort) {
  NetOptions net;
  net.tap = "tap@7";
  EXPECT_EQ(default_net_name(net), "tap-7");
  net = {};
  net.fds = {3, 4};
  EXPECT_EQ(default_net_name(net), "tap");
  EXPECT_EQ(port_text(net), "tap of descriptors 3:4");
  net = {};
  net.source_bytes = 60;
  EXPECT_EQ(default_net_name(net), "source");
  EXPECT_EQ(default_net_name(card("", "s")), "loop");
}

TEST(NetName, IsThatOfTheSwitchOrOfAnUplinksInterface) {
  NetOptions net;
  net.on_switch = "lan0";
  EXPECT_EQ(default_net_name(net), "lan0");
  EXPECT_EQ(port_text(net), "switch lan0");
  EXPECT_FALSE(net.is_uplink());
  net.tap = "tap7";
  EXPECT_EQ(default_net_name(net), "tap7");
  EXPECT_EQ(port_text(net), "tap tap7 on switch lan0");
  EXPECT_TRUE(net.is_uplink());
}

TEST(NetVlans, GoThereAndBack) {
  for (const char* text : {"1", "4094", "10+20", "10-12+4000", "5+4+3"}) {
    const Result<std::vector<std::uint16_t>> vlans = parse_vlans(text);
    ASSERT_TRUE(vlans) << text;
    EXPECT_EQ(vlans_text(*vlans), text);
  }
  EXPECT_EQ(parse_vlans("10-12+4000").value(), (std::vector<std::uint16_t>{10, 11, 12, 4000}));
  for (const char* text :
       {"", "0", "4095", "70000", "10+", "+10", "10++11", "12-10", "10-", "-10", "a", "10 ", "5+5", "1-4094+7"}) {
    EXPECT_FALSE(parse_vlans(text)) << text;
  }
}

TEST(NetAddresses, GoThereAndBack) {
  NetOptions net;
  ASSERT_TRUE(parse_addresses("10.0.0.2+2001:db8::2+10.0.0.3", net));
  EXPECT_TRUE(net.checks_ip);
  EXPECT_EQ(net.ipv4, (std::vector<NetIpv4>{{10, 0, 0, 2}, {10, 0, 0, 3}}));
  EXPECT_EQ(net.ipv6.size(), 1U);
  EXPECT_EQ(addresses_text(net), "10.0.0.2+10.0.0.3+2001:db8::2");
  for (const char* text : {"", "10.0.0", "10.0.0.256", "10.0.0.2+", "fe80::g", "10.0.0.2 ", "10.0.0.2/24"}) {
    NetOptions scratch;
    EXPECT_FALSE(parse_addresses(text, scratch)) << text;
  }
}

TEST(NetPorts, WhatBelongsToASwitchNeedsOne) {
  NetOptions net = card("n", "/s");
  net.vlan = 7;
  EXPECT_EQ(check_port(net).error().message, "vlan: only a port of a switch has that, and the port of this card is loop");
  net.loop = false;
  net.on_switch = "lan0";
  EXPECT_TRUE(check_port(net));
}

// A tap and a switch are joined only if there is no guest to be meant.
TEST(NetPorts, AnUplinkHasNoSocket) {
  NetOptions net;
  net.on_switch = "lan0";
  net.tap = "tap0";
  EXPECT_TRUE(check_port(net));
  net.checks_mac = true;
  EXPECT_EQ(check_port(net).error().message,
            "mac-check: what comes by an uplink is from many addresses; check the cards instead");
  net.checks_mac = false;
  net.socket = "/s";
  EXPECT_EQ(
      check_port(net).error().message,
      "a network card has one port for its frames: leave tap or switch out; or leave socket out, and the two are joined");
}

TEST(NetPairs, AreAsManyAsDescriptorsUnlessTheyAreGiven) {
  NetOptions net;
  EXPECT_EQ(net.pairs(), 1U);
  net.fds = {3, 4, 5};
  EXPECT_EQ(net.pairs(), 3U);
  EXPECT_TRUE(check_port(net));
  net.queues = 2;
  const Result<> other = check_port(net);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().message, "queues: 2 given with 3 descriptors in fds; give one descriptor for each pair");
}

}  // namespace
}  // namespace ringway
