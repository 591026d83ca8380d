#include "request/net_filter.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/prng.hpp"
#include "request/test_net_control.hpp"

namespace ringway {
namespace {

using testing::mac_of;
using testing::macs_of;

constexpr NetMac kBroadcast = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
constexpr NetMac kOwn = {0x52, 0x54, 0x00, 0x12, 0x34, 0x56};
constexpr NetMac kOther = {0x52, 0x54, 0x00, 0x12, 0x34, 0x57};
constexpr NetMac kAllNodes = {0x33, 0x33, 0x00, 0x00, 0x00, 0x01};
constexpr NetMac kGroup = {0x01, 0x00, 0x5e, 0x01, 0x02, 0x03};
constexpr std::uint64_t kFiltering = spec::kNetMac | spec::kNetCtrlVq | spec::kNetCtrlRx | spec::kNetCtrlRxExtra;
constexpr std::uint64_t kFilteringVlans = kFiltering | spec::kNetCtrlVlan;

using HeadArray = std::array<std::byte, NetReceiveFilter::kHeadBytes>;

HeadArray head_of(const NetMac& destination, std::uint16_t protocol = 0x0800, std::uint16_t tag = 0) {
  HeadArray head{};
  std::memcpy(head.data(), destination.data(), destination.size());
  std::fill_n(head.begin() + 6, 6, std::byte{0xaa});
  head[12] = static_cast<std::byte>(protocol >> 8U);
  head[13] = static_cast<std::byte>(protocol);
  head[14] = static_cast<std::byte>(tag >> 8U);
  head[15] = static_cast<std::byte>(tag);
  head[16] = std::byte{0x08};
  return head;
}

bool accepts(const NetDriverState& state, const NetMac& destination, std::uint64_t features = kFiltering) {
  return NetReceiveFilter(state, features).accepts(head_of(destination));
}
bool accepts_vlan(const NetDriverState& state, std::uint16_t tag, std::uint64_t features = kFilteringVlans,
                  std::uint16_t protocol = 0x8100) {
  return NetReceiveFilter(state, features).accepts(head_of(kOwn, protocol, tag));
}

// As Linux leaves it when a card is brought up: nothing but its own address, broadcasts and what it lists.
NetDriverState usual_state() {
  NetDriverState state = NetDriverState::after_reset(kFiltering, kOwn);
  state.promiscuous = false;
  state.multicast.count = 1;
  state.multicast.entries[0] = kAllNodes;
  return state;
}

TEST(NetFilterTest, a_driver_gets_its_own_listed_and_broadcast_frames) {
  const NetDriverState state = usual_state();
  EXPECT_TRUE(accepts(state, kOwn));
  EXPECT_TRUE(accepts(state, kBroadcast));
  EXPECT_TRUE(accepts(state, kAllNodes));
  EXPECT_FALSE(accepts(state, kOther));
  EXPECT_FALSE(accepts(state, kGroup));
}

TEST(NetFilterTest, each_byte_of_an_address_counts) {
  for (std::size_t bit = 0; bit < 48; ++bit) {
    for (const NetMac& listed : {kOwn, kAllNodes}) {
      NetMac near = listed;
      near[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
      EXPECT_FALSE(accepts(usual_state(), near)) << bit;
    }
  }
}

TEST(NetFilterTest, all_is_accepted_until_the_driver_says_otherwise) {
  const NetDriverState state = NetDriverState::after_reset(kFilteringVlans, kOwn);
  for (const NetMac& destination : {kOwn, kOther, kGroup, kBroadcast}) {
    EXPECT_TRUE(accepts(state, destination, kFilteringVlans));
  }
  EXPECT_TRUE(accepts_vlan(state, 5));
}

TEST(NetFilterTest, promiscuous_overrides_what_is_suppressed) {
  NetDriverState state = usual_state();
  state.no_broadcast = state.no_multicast = state.no_unicast = true;
  for (const NetMac& destination : {kOwn, kOther, kGroup, kAllNodes, kBroadcast}) {
    EXPECT_FALSE(accepts(state, destination));
  }
  state.promiscuous = true;
  for (const NetMac& destination : {kOwn, kOther, kGroup, kAllNodes, kBroadcast}) {
    EXPECT_TRUE(accepts(state, destination));
  }
}

TEST(NetFilterTest, all_modes_open_one_kind_and_suppression_closes_it_again) {
  NetDriverState state = usual_state();
  state.all_multicast = true;
  EXPECT_TRUE(accepts(state, kGroup));
  EXPECT_FALSE(accepts(state, kOther));
  state.no_multicast = true;
  EXPECT_FALSE(accepts(state, kGroup));
  EXPECT_FALSE(accepts(state, kAllNodes));
  EXPECT_TRUE(accepts(state, kBroadcast)) << "suppressed multicast is not to touch broadcasts";

  state = usual_state();
  state.all_multicast = true;
  state.no_broadcast = true;
  EXPECT_FALSE(accepts(state, kBroadcast));
  EXPECT_TRUE(accepts(state, kGroup));

  state = usual_state();
  state.all_unicast = true;
  EXPECT_TRUE(accepts(state, kOther));
  EXPECT_FALSE(accepts(state, kGroup));
  state.no_unicast = true;
  EXPECT_FALSE(accepts(state, kOther));
  EXPECT_FALSE(accepts(state, kOwn));
  EXPECT_TRUE(accepts(state, kBroadcast));
}

TEST(NetFilterTest, a_table_that_overflowed_means_all_of_its_kind) {
  NetDriverState state = usual_state();
  state.unicast.all = true;
  EXPECT_TRUE(accepts(state, kOther));
  EXPECT_FALSE(accepts(state, kGroup));
  state = usual_state();
  state.multicast = {.all = true};
  EXPECT_TRUE(accepts(state, kGroup));
  EXPECT_FALSE(accepts(state, kOther));
  state.no_multicast = true;
  EXPECT_FALSE(accepts(state, kGroup));
}

TEST(NetFilterTest, without_ctrl_rx_every_address_is_accepted) {
  NetDriverState state = usual_state();
  EXPECT_TRUE(accepts(state, kOther, spec::kNetMac));
  EXPECT_TRUE(accepts(state, kGroup, spec::kNetMac));
  state.promiscuous = true;
  EXPECT_TRUE(accepts(state, kOther, 0));
}

TEST(NetFilterTest, what_is_suppressed_is_so_without_ctrl_rx_too) {
  NetDriverState state = NetDriverState::after_reset(spec::kNetCtrlRxExtra, kOwn);
  state.no_unicast = state.no_broadcast = true;
  EXPECT_FALSE(accepts(state, kOwn, spec::kNetCtrlRxExtra));
  EXPECT_FALSE(accepts(state, kBroadcast, spec::kNetCtrlRxExtra));
  EXPECT_TRUE(accepts(state, kGroup, spec::kNetCtrlRxExtra));
}

TEST(NetFilterTest, without_a_known_address_every_unicast_frame_is_accepted) {
  NetDriverState state = usual_state();
  state.mac_known = false;
  EXPECT_TRUE(accepts(state, kOther));
  EXPECT_FALSE(accepts(state, kGroup));
  state.no_unicast = true;
  EXPECT_FALSE(accepts(state, kOther));
}

TEST(NetFilterTest, tables_are_exact_at_every_size) {
  Prng prng(1);
  for (std::size_t count = 0; count <= limits::kNetMacTableMax; ++count) {
    NetDriverState state = usual_state();
    std::set<NetMac> listed;
    for (const bool group : {false, true}) {
      NetMacTable& table = group ? state.multicast : state.unicast;
      table = {};
      table.count = static_cast<std::uint8_t>(count);
      for (std::size_t i = 0; i < count; ++i) {
        table.entries[i] = mac_of(static_cast<std::uint32_t>(prng.below(200)), group);
        listed.insert(table.entries[i]);
      }
    }
    const NetReceiveFilter filter(state, kFiltering);
    for (const bool group : {false, true}) {
      for (std::uint32_t number = 0; number < 200; ++number) {
        const NetMac mac = mac_of(number, group);
        ASSERT_EQ(filter.accepts(head_of(mac)), listed.contains(mac)) << count << " " << number << " " << group;
      }
    }
    EXPECT_TRUE(filter.accepts(head_of(kOwn)));
  }
}

// A group's address in the table for unicast is not looked for there, and the other way round.
TEST(NetFilterTest, each_table_is_for_its_own_kind) {
  NetDriverState state = usual_state();
  state.unicast = {.count = 1};
  state.unicast.entries[0] = kGroup;
  state.multicast.entries[0] = kOther;
  EXPECT_FALSE(accepts(state, kGroup));
  EXPECT_FALSE(accepts(state, kOther));
}

TEST(NetFilterTest, vlans_are_filtered_one_by_one) {
  NetDriverState state = usual_state();
  std::set<std::uint16_t> members = {1, 63, 64, 2048, 4095};
  for (const std::uint16_t id : members) {
    state.vlans[id / 64U] |= std::uint64_t{1} << (id % 64U);
  }
  const NetReceiveFilter filter(state, kFilteringVlans);
  for (std::uint32_t tag = 0; tag < 0x10000; ++tag) {
    const auto id = static_cast<std::uint16_t>(tag & 0xfffU);
    const bool wanted = id == 0 || members.contains(id);
    ASSERT_EQ(filter.accepts(head_of(kOwn, 0x8100, static_cast<std::uint16_t>(tag))), wanted) << tag;
  }
  EXPECT_FALSE(filter.accepts(head_of(kOther, 0x8100, 1))) << "a VLAN of ours makes no address ours";
  EXPECT_FALSE(filter.accepts(head_of(kBroadcast, 0x8100, 2)));
  EXPECT_TRUE(filter.accepts(head_of(kBroadcast, 0x8100, 1)));
}

TEST(NetFilterTest, only_customer_tags_are_looked_at) {
  const NetDriverState state = usual_state();
  EXPECT_FALSE(accepts_vlan(state, 5));
  EXPECT_TRUE(accepts_vlan(state, 5, kFilteringVlans, 0x88a8));
  EXPECT_TRUE(accepts_vlan(state, 5, kFilteringVlans, 0x0800));
  EXPECT_TRUE(accepts_vlan(state, 5, kFilteringVlans, 0x0081));
}

TEST(NetFilterTest, vlans_are_all_accepted_without_ctrl_vlan) {
  EXPECT_TRUE(accepts_vlan(usual_state(), 5, kFiltering));
}

TEST(NetFilterTest, before_the_first_vlan_tagged_frames_are_dropped_unless_promiscuous) {
  NetDriverState state = usual_state();
  EXPECT_FALSE(accepts_vlan(state, 5));
  EXPECT_TRUE(accepts_vlan(state, 0xe000)) << "a priority and no VLAN";
  state.promiscuous = true;
  EXPECT_TRUE(accepts_vlan(state, 5));
  // Without CTRL_RX nobody asked for all frames.
  EXPECT_FALSE(accepts_vlan(state, 5, spec::kNetMac | spec::kNetCtrlVlan));
  EXPECT_TRUE(accepts(state, kOther, spec::kNetMac | spec::kNetCtrlVlan));
}

TEST(NetFilterTest, without_rss_a_frame_goes_where_its_flow_is_steered) {
  NetDriverState state = usual_state();
  state.pairs = 3;
  const NetReceiveFilter filter(state, kFiltering);
  EXPECT_EQ(filter.select_pair(0xffffffff, spec::kNetHashReportIpv4), 0);
  for (const std::uint16_t steered : {0, 1, 2}) {
    EXPECT_EQ(filter.select_pair(7, spec::kNetHashReportNone, steered), steered);
  }
  for (const std::uint16_t steered : {3, 4, 0xffff}) {
    EXPECT_EQ(filter.select_pair(7, spec::kNetHashReportNone, steered), 0) << "a pair that is not in use";
  }
}

TEST(NetFilterTest, rss_chooses_by_hash_and_the_rest_by_default) {
  NetDriverState state = usual_state();
  state.pairs = 1;
  NetRssTable& table = state.rss.emplace();
  table.mask = 127;
  table.unclassified_pair = 5;
  for (std::uint16_t i = 0; i < 128; ++i) {
    table.pairs[i] = i / 2;
  }
  const NetReceiveFilter filter(state, kFiltering);
  for (const std::uint32_t hash : {0U, 1U, 127U, 128U, 0xffffffffU, 0x12345678U}) {
    EXPECT_EQ(filter.select_pair(hash, spec::kNetHashReportTcpv6, 3), (hash & 127U) / 2);
    EXPECT_EQ(filter.select_pair(hash, spec::kNetHashReportNone, 3), 5);
  }
}

}  // namespace
}  // namespace ringway
