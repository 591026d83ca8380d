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
