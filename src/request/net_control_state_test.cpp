#include "request/net_control_state.hpp"

#include <gtest/gtest.h>

#include <string>

#include "base/prng.hpp"
#include "request/test_net_control.hpp"
#include "ring/device_ring.hpp"
#include "ring/driver_ring.hpp"
#include "ring/ring_test_support.hpp"

namespace ringway {
namespace {

using testing::ControlChain;
using testing::ControlText;
using testing::mac_of;
using testing::macs_of;
using testing::RssText;

constexpr std::uint16_t kPairs = 4;
constexpr std::uint32_t kHashTypes = 0x1ff;
constexpr std::uint64_t kOffloads = spec::kNetGuestCsum | spec::kNetGuestTso4 | spec::kNetGuestTso6 | spec::kNetGuestEcn |
                                    spec::kNetGuestUfo | spec::kNetGuestUso4 | spec::kNetGuestUso6;
constexpr std::uint64_t kAll = kOffloads | spec::kNetCtrlGuestOffloads | spec::kNetMac | spec::kNetCtrlVq |
                               spec::kNetCtrlRx | spec::kNetCtrlVlan | spec::kNetCtrlRxExtra | spec::kNetGuestAnnounce |
                               spec::kNetMq | spec::kNetCtrlMacAddr | spec::kNetVqNotfCoal | spec::kNetNotfCoal |
                               spec::kNetHashReport | spec::kNetRss;

NetControlLimits limits_of(std::uint16_t pairs) {
  NetControlLimits limits;
  limits.pairs_max = pairs;
  limits.hash_types = kHashTypes;
  limits.enabled_queues.set();  // the control queue and what lies behind it too, to be found out by number
  return limits;
}

// A driver and what it has set, command by command.
class NetControlStateTest : public ::testing::Test {
 protected:
  NetControlRefusal apply(const NetCommand& command) {
    const NetDriverState before = state_;
    outcome_ = apply_net_command(command, features_, limits_, state_);
    if (outcome_.refusal != NetControlRefusal::none) {
      EXPECT_EQ(state_, before) << "a refused command changed something";
      EXPECT_EQ(outcome_.answer, NetCoalescing{});
    }
    return outcome_.refusal;
  }
  void expect_taken(const NetCommand& command) { EXPECT_EQ(to_string(apply(command)), std::string("none")); }
  void expect_refused(const NetCommand& command, NetControlRefusal refusal) {
    EXPECT_EQ(to_string(apply(command)), std::string(to_string(refusal)));
  }
  // With all features but these it is refused; with the same alone it is taken.
  void expect_needs(const NetCommand& command, std::uint64_t feature) {
    const NetDriverState before = state_;
    features_ = kAll & ~feature;
    expect_refused(command, NetControlRefusal::not_negotiated);
    features_ = feature;
    expect_taken(command);
    features_ = kAll;
    state_ = before;
  }
  NetCoalescing get(std::uint16_t queue) {
    expect_taken(NetGetQueueCoalescing{queue});
    return outcome_.answer;
  }

  std::uint64_t features_ = kAll;
  NetControlLimits limits_ = limits_of(kPairs);
  NetDriverState state_ = NetDriverState::after_reset(kAll, mac_of(1));
  NetControlOutcome outcome_;
};

NetConfigureRss configure_rss(const RssText& text) {
  const ControlChain guest(text.text(), {1});
  return std::get<NetConfigureRss>(parse_net_control(guest.chain(), false).command);
}

NetConfigureHash configure_hash(std::uint32_t types, std::uint8_t key_bytes) {
  NetConfigureHash command;
  command.hashing.types = types;
  command.hashing.key_bytes = key_bytes;
  std::fill_n(command.hashing.key.begin(), key_bytes, std::uint8_t{0x5a});
  return command;
}

TEST_F(NetControlStateTest, after_a_reset_all_is_as_the_specification_says) {
  EXPECT_TRUE(state_.promiscuous);
  EXPECT_EQ(state_.unicast, NetMacTable{});
  EXPECT_EQ(state_.multicast, NetMacTable{});
  EXPECT_EQ(state_.mac, mac_of(1));
  EXPECT_TRUE(state_.mac_known);
  EXPECT_EQ(state_.vlans, (std::array<std::uint64_t, 64>{}));
  EXPECT_EQ(state_.pairs, 1);
  EXPECT_FALSE(state_.rss.has_value());
  EXPECT_EQ(state_.hashing, NetHashing{});
  EXPECT_EQ(state_.guest_offloads, kOffloads);
  EXPECT_EQ(state_.coalescing, (std::array<NetCoalescing, 256>{}));
  EXPECT_FALSE(NetDriverState::after_reset(0, mac_of(1)).mac_known);
  EXPECT_EQ(NetDriverState::after_reset(spec::kNetGuestCsum | spec::kNetCsum, mac_of(1)).guest_offloads,
            spec::kNetGuestCsum);
}

// cases N8
TEST_F(NetControlStateTest, each_command_needs_its_feature_and_no_other) {
  expect_needs(NetSetRxMode{spec::kNetCtrlRxPromisc, false}, spec::kNetCtrlRx);
  expect_needs(NetSetRxMode{spec::kNetCtrlRxAllmulti, true}, spec::kNetCtrlRx);
  for (const std::uint8_t mode :
       {spec::kNetCtrlRxAlluni, spec::kNetCtrlRxNomulti, spec::kNetCtrlRxNouni, spec::kNetCtrlRxNobcast}) {
    expect_needs(NetSetRxMode{mode, true}, spec::kNetCtrlRxExtra);
  }
  expect_needs(NetSetMacTables{}, spec::kNetCtrlRx);
  expect_needs(NetSetMac{mac_of(9)}, spec::kNetCtrlMacAddr);
  expect_needs(NetSetVlan{5, true}, spec::kNetCtrlVlan);
  expect_needs(NetSetVlan{5, false}, spec::kNetCtrlVlan);
  expect_needs(NetAckAnnounce{}, spec::kNetGuestAnnounce);
  expect_needs(NetSetPairs{2}, spec::kNetMq);
  expect_needs(configure_rss({}), spec::kNetRss);
  expect_needs(configure_hash(1, 40), spec::kNetHashReport);
  expect_needs(NetSetOffloads{0}, spec::kNetCtrlGuestOffloads);
  expect_needs(NetSetCoalescing{true, {1, 2}}, spec::kNetNotfCoal);
  expect_needs(NetSetCoalescing{false, {1, 2}}, spec::kNetNotfCoal);
  expect_needs(NetSetQueueCoalescing{0, {1, 2}}, spec::kNetVqNotfCoal);
  expect_needs(NetGetQueueCoalescing{0}, spec::kNetVqNotfCoal);
  expect_refused(std::monostate{}, NetControlRefusal::unknown_command);
  expect_refused(NetSetRxMode{6, true}, NetControlRefusal::unknown_command);
}

TEST_F(NetControlStateTest, each_receive_mode_turns_its_own_flag) {
  using Flag = bool NetDriverState::*;
  const std::array<Flag, 6> flags = {&NetDriverState::promiscuous, &NetDriverState::all_multicast,
                                     &NetDriverState::all_unicast, &NetDriverState::no_multicast,
                                     &NetDriverState::no_unicast,  &NetDriverState::no_broadcast};
  expect_taken(NetSetRxMode{spec::kNetCtrlRxPromisc, false});
  const NetDriverState none = state_;
  for (std::uint8_t mode = 0; mode < flags.size(); ++mode) {
    NetDriverState expected = none;
    expected.*flags[mode] = true;
    expect_taken(NetSetRxMode{mode, true});
    EXPECT_EQ(state_, expected);
    expect_taken(NetSetRxMode{mode, false});
    EXPECT_EQ(state_, none);
  }
}

TEST_F(NetControlStateTest, tables_of_addresses_replace_each_other) {
  NetSetMacTables tables;
  tables.unicast.count = 2;
  tables.unicast.entries[1] = mac_of(3);
  tables.multicast.all = true;
  expect_taken(tables);
  EXPECT_EQ(state_.unicast, tables.unicast);
  EXPECT_EQ(state_.multicast, tables.multicast);
  expect_taken(NetSetMacTables{});
  EXPECT_EQ(state_, NetDriverState::after_reset(kAll, mac_of(1)));
}

TEST_F(NetControlStateTest, the_address_is_one_that_a_station_can_have) {
  expect_refused(NetSetMac{mac_of(1, true)}, NetControlRefusal::bad_value);
  expect_refused(NetSetMac{NetMac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}, NetControlRefusal::bad_value);
  expect_refused(NetSetMac{NetMac{}}, NetControlRefusal::bad_value);
  state_.mac_known = false;
  expect_taken(NetSetMac{mac_of(9)});
  EXPECT_EQ(state_.mac, mac_of(9));
  EXPECT_TRUE(state_.mac_known);
}

TEST_F(NetControlStateTest, vlans_come_and_go_one_by_one) {
  for (const std::uint16_t id : {0, 1, 63, 64, 4094, 4095}) {
    EXPECT_FALSE(state_.has_vlan(id));
    expect_taken(NetSetVlan{id, true});
    expect_taken(NetSetVlan{id, true});
    EXPECT_TRUE(state_.has_vlan(id));
  }
  expect_taken(NetSetVlan{63, false});
  expect_taken(NetSetVlan{63, false});
  for (std::uint16_t id = 0; id < 4096; ++id) {
    EXPECT_EQ(state_.has_vlan(id), id == 0 || id == 1 || id == 64 || id == 4094 || id == 4095) << id;
  }
  for (const std::uint16_t id : {4096, 4097, 0x8001, 0xffff}) {
    expect_refused(NetSetVlan{id, true}, NetControlRefusal::bad_value);
    expect_refused(NetSetVlan{id, false}, NetControlRefusal::bad_value);
  }
}

TEST_F(NetControlStateTest, announce_ack_clears_what_the_device_set) {
  expect_taken(NetAckAnnounce{});
  state_.announce_pending = true;
  expect_taken(NetAckAnnounce{});
  EXPECT_FALSE(state_.announce_pending);
}

TEST_F(NetControlStateTest, pairs_lie_between_one_and_what_there_is) {
  for (const std::uint16_t pairs : {1, 2, 3, 4, 1}) {
    expect_taken(NetSetPairs{pairs});
    EXPECT_EQ(state_.pairs, pairs);
    EXPECT_EQ(net_receiving_pairs(state_), pairs);
  }
  for (const std::uint16_t pairs : {0, 5, 0x8000, 0xffff}) {
    expect_refused(NetSetPairs{pairs}, NetControlRefusal::bad_value);
  }
  EXPECT_EQ(net_pairs_available(spec::kNetMq, 4), 4);
  EXPECT_EQ(net_pairs_available(spec::kNetRss, 4), 4);
  EXPECT_EQ(net_pairs_available(kAll & ~(spec::kNetMq | spec::kNetRss), 4), 1);
}

TEST_F(NetControlStateTest, rss_sets_table_hash_and_pairs) {
  const RssText text{.unclassified = 3, .table = {3, 0, 1, 0}, .max_tx_vq = 2};
  expect_taken(configure_rss(text));
  ASSERT_TRUE(state_.rss.has_value());
  EXPECT_EQ(state_.rss->mask, 3);
  EXPECT_EQ(state_.rss->unclassified_pair, 3);
  EXPECT_EQ(state_.rss->pairs[0], 3);
  EXPECT_EQ(state_.hashing.types, text.types);
  EXPECT_EQ(state_.hashing.key_bytes, 40);
  EXPECT_EQ(state_.pairs, 2);
  EXPECT_EQ(net_receiving_pairs(state_), 4);
  expect_taken(configure_rss({.mask = 1, .unclassified = 0, .table = {0, 1}}));
  EXPECT_EQ(net_receiving_pairs(state_), 2);
}

// cases CVE-2024-6505
TEST_F(NetControlStateTest, rss_that_names_queues_that_do_not_exist_is_refused) {
  for (std::uint16_t bad : {4, 5, 8, 0x7fff, 0x8000, 0x8001, 0xffff}) {
    for (std::size_t entry = 0; entry < 4; ++entry) {
      RssText text;
      text.table[entry] = bad;
      expect_refused(configure_rss(text), NetControlRefusal::bad_value);
    }
    expect_refused(configure_rss({.unclassified = bad}), NetControlRefusal::bad_value);
    expect_refused(configure_rss({.max_tx_vq = bad == 4 ? std::uint16_t{5} : bad}), NetControlRefusal::bad_value);
  }
  expect_refused(configure_rss({.max_tx_vq = 0}), NetControlRefusal::bad_value);
  limits_ = limits_of(1);
  expect_refused(configure_rss({}), NetControlRefusal::bad_value);
  expect_taken(configure_rss({.mask = 0, .table = {0}, .max_tx_vq = 1}));
}

TEST_F(NetControlStateTest, rss_tables_are_a_power_of_two) {
  for (std::uint16_t mask = 0; mask < 128; ++mask) {
    const RssText text{.mask = mask, .table = std::vector<std::uint16_t>(std::size_t{mask} + 1, 0)};
    const bool power = (mask & (mask + 1U)) == 0;
    EXPECT_EQ(apply(configure_rss(text)), power ? NetControlRefusal::none : NetControlRefusal::bad_value) << mask;
  }
  NetConfigureRss too_long = configure_rss({});
  too_long.table.mask = 255;
  expect_refused(too_long, NetControlRefusal::bad_value);
}

TEST_F(NetControlStateTest, hash_types_are_among_the_offered_and_have_a_key) {
  limits_.hash_types = 0x3f;
  expect_refused(configure_rss({.types = 0x40}), NetControlRefusal::bad_value);
  expect_refused(configure_hash(0x41, 40), NetControlRefusal::bad_value);
  expect_refused(configure_hash(0x80000001, 40), NetControlRefusal::bad_value);
  expect_refused(configure_hash(0x3f, 0), NetControlRefusal::bad_value);
  expect_refused(configure_rss({.key_length = 0, .key_bytes = 0}), NetControlRefusal::bad_value);
  expect_taken(configure_rss({.types = 0, .key_length = 0, .key_bytes = 0}));
  expect_taken(configure_hash(0x3f, 40));
  expect_taken(configure_hash(0x3f, 1));
  EXPECT_EQ(state_.hashing, configure_hash(0x3f, 1).hashing);
  expect_taken(configure_hash(0, 0));
  EXPECT_EQ(state_.hashing, NetHashing{});
}

TEST_F(NetControlStateTest, the_last_multiqueue_command_counts) {
  expect_taken(NetSetPairs{3});
  expect_taken(configure_rss({.max_tx_vq = 2}));
  expect_taken(configure_hash(1, 40));
  EXPECT_FALSE(state_.rss.has_value());
  EXPECT_EQ(state_.pairs, 2);
  expect_taken(configure_rss({}));
  expect_taken(NetSetPairs{3});
  EXPECT_FALSE(state_.rss.has_value());
  expect_taken(configure_rss({}));
  EXPECT_NE(state_.hashing, configure_hash(1, 40).hashing);
  expect_taken(configure_hash(1, 40));
  expect_taken(NetSetPairs{4});
  EXPECT_EQ(state_.pairs, 4);
  EXPECT_FALSE(state_.rss.has_value());
  EXPECT_EQ(state_.hashing, configure_hash(1, 40).hashing) << "a change of pairs ended hash reports";
}

TEST_F(NetControlStateTest, offloads_are_among_the_negotiated) {
  features_ = spec::kNetCtrlGuestOffloads | spec::kNetGuestCsum | spec::kNetGuestTso4 | spec::kNetCsum;
  for (std::size_t bit = 0; bit < 64; ++bit) {
    const std::uint64_t offload = std::uint64_t{1} << bit;
    const bool good = offload == spec::kNetGuestCsum || offload == spec::kNetGuestTso4;
    EXPECT_EQ(apply(NetSetOffloads{offload}), good ? NetControlRefusal::none : NetControlRefusal::bad_value) << bit;
  }
  features_ = kAll;
  expect_taken(NetSetOffloads{kOffloads});
  EXPECT_EQ(state_.guest_offloads, kOffloads);
  expect_taken(NetSetOffloads{0});
  EXPECT_EQ(state_.guest_offloads, 0U);
  expect_refused(NetSetOffloads{kOffloads | spec::kNetHostTso4}, NetControlRefusal::bad_value);
}

TEST_F(NetControlStateTest, offloads_without_what_they_need_are_not_used) {
  EXPECT_EQ(net_usable_offloads(kOffloads), kOffloads);
  EXPECT_EQ(net_usable_offloads(kOffloads & ~spec::kNetGuestCsum), 0U);
  EXPECT_EQ(net_usable_offloads(spec::kNetGuestCsum | spec::kNetGuestEcn | spec::kNetGuestUso4),
            spec::kNetGuestCsum | spec::kNetGuestUso4);
  const std::uint64_t with_ecn = spec::kNetGuestCsum | spec::kNetGuestEcn | spec::kNetGuestTso6;
  EXPECT_EQ(net_usable_offloads(with_ecn), with_ecn);
  EXPECT_EQ(net_usable_offloads(0), 0U);
}

// cases S8, and the example in the specification: two pairs, commands 1 to 6.
TEST_F(NetControlStateTest, the_last_coalescing_of_a_queue_counts_whatever_set_it) {
  limits_ = limits_of(2);
  expect_taken(NetSetCoalescing{false, {1, 10}});
  EXPECT_EQ(get(0), (NetCoalescing{1, 10}));
  EXPECT_EQ(get(2), (NetCoalescing{1, 10}));
  EXPECT_EQ(get(1), NetCoalescing{});
  EXPECT_EQ(get(3), NetCoalescing{});
  expect_taken(NetSetQueueCoalescing{0, {2, 20}});
  EXPECT_EQ(get(0), (NetCoalescing{2, 20}));
  EXPECT_EQ(get(2), (NetCoalescing{1, 10}));
  expect_taken(NetSetQueueCoalescing{1, {3, 30}});
  EXPECT_EQ(get(1), (NetCoalescing{3, 30}));
  EXPECT_EQ(get(3), NetCoalescing{});
  expect_taken(NetSetCoalescing{true, {4, 40}});
  EXPECT_EQ(get(1), (NetCoalescing{4, 40}));
  EXPECT_EQ(get(3), (NetCoalescing{4, 40}));
  EXPECT_EQ(get(0), (NetCoalescing{2, 20}));
}

TEST_F(NetControlStateTest, coalescing_is_only_of_enabled_receive_and_transmit_queues) {
  for (const std::uint16_t queue : {8, 9, 254, 255, 256, 257, 0x7fff, 0xffff}) {
    expect_refused(NetSetQueueCoalescing{queue, {1, 1}}, NetControlRefusal::queue_not_enabled);
    expect_refused(NetGetQueueCoalescing{queue}, NetControlRefusal::queue_not_enabled);
  }
  limits_.enabled_queues.reset(5);
  expect_refused(NetSetQueueCoalescing{5, {1, 1}}, NetControlRefusal::queue_not_enabled);
  expect_refused(NetGetQueueCoalescing{5}, NetControlRefusal::queue_not_enabled);
  expect_taken(NetSetQueueCoalescing{7, {1, 1}});
  // Without MQ and RSS the third queue is the control queue.
  features_ = kAll & ~(spec::kNetMq | spec::kNetRss);
  expect_taken(NetSetQueueCoalescing{1, {1, 1}});
  expect_refused(NetSetQueueCoalescing{2, {1, 1}}, NetControlRefusal::queue_not_enabled);
  features_ = kAll;
  for (const std::uint16_t pairs : {128, 0x8000, 0xffff}) {
    limits_ = limits_of(pairs);
    expect_taken(NetSetQueueCoalescing{255, {1, 1}});
    expect_taken(NetSetCoalescing{true, {2, 2}});
    EXPECT_EQ(get(255), (NetCoalescing{2, 2}));
    expect_refused(NetSetQueueCoalescing{256, {1, 1}}, NetControlRefusal::queue_not_enabled);
  }
}

TEST_F(NetControlStateTest, a_queue_that_was_disabled_has_the_default_again) {
  expect_taken(NetSetQueueCoalescing{2, {7, 7}});
  expect_taken(NetSetQueueCoalescing{3, {7, 7}});
  reset_net_queue(state_, 2);
  reset_net_queue(state_, 3);
  EXPECT_EQ(get(2), NetCoalescing{});
  EXPECT_EQ(get(3), NetCoalescing{});
  expect_taken(NetSetCoalescing{false, {1, 10}});
  expect_taken(NetSetCoalescing{true, {2, 20}});
  expect_taken(NetSetQueueCoalescing{2, {7, 7}});
  expect_taken(NetSetQueueCoalescing{3, {8, 8}});
  reset_net_queue(state_, 2);
  EXPECT_EQ(get(2), (NetCoalescing{1, 10}));
  EXPECT_EQ(get(3), (NetCoalescing{8, 8}));
  reset_net_queue(state_, 3);
  EXPECT_EQ(get(3), (NetCoalescing{2, 20}));
  const NetDriverState before = state_;
  reset_net_queue(state_, 256);
  EXPECT_EQ(state_, before);
}

// --- Saving and loading ---

// A state in which nothing is as after a reset.
NetDriverState full_state() {
  NetDriverState state = NetDriverState::after_reset(kAll, mac_of(1));
  const NetControlLimits limits = limits_of(kPairs);
  const auto apply = [&](const NetCommand& command) {
    EXPECT_EQ(apply_net_command(command, kAll, limits, state).refusal, NetControlRefusal::none);
  };
  apply(NetSetRxMode{spec::kNetCtrlRxPromisc, false});
  for (std::uint8_t mode = 1; mode < 6; ++mode) {
    apply(NetSetRxMode{mode, true});
  }
  NetSetMacTables tables;
  tables.unicast.count = 64;
  std::ranges::copy(macs_of(64), tables.unicast.entries.begin());
  tables.multicast.all = true;
  apply(tables);
  apply(NetSetMac{mac_of(2)});
  for (const std::uint16_t id : {0, 5, 4095}) {
    apply(NetSetVlan{id, true});
  }
  apply(configure_rss({.unclassified = 1, .table = {3, 2, 1, 0}, .max_tx_vq = 3}));
  apply(NetSetOffloads{spec::kNetGuestCsum});
  apply(NetSetCoalescing{true, {1, 2}});
  apply(NetSetCoalescing{false, {3, 4}});
  apply(NetSetQueueCoalescing{7, {5, 6}});
  state.announce_pending = true;
  return state;
}

class NetStateFormTest : public ::testing::Test {
 protected:
  using Bytes = std::array<std::byte, kNetDriverStateBytes>;

  // Offsets in the saved form, as written down apart from the code.
  static constexpr std::size_t kOffloadsAt = 16;
  static constexpr std::size_t kVlansAt = 24;
  static constexpr std::size_t kHashTypesAt = 536;
  static constexpr std::size_t kFlagsAt = 540;
  static constexpr std::size_t kPairsAt = 542;
  static constexpr std::size_t kRssMaskAt = 544;
  static constexpr std::size_t kRssUnclassifiedAt = 546;
  static constexpr std::size_t kRssPairsAt = 548;
  static constexpr std::size_t kDefaultsAt = 804;
  static constexpr std::size_t kCoalescingAt = 820;
  static constexpr std::size_t kUnicastAt = 2868;
  static constexpr std::size_t kMacAt = 3640;
  static constexpr std::size_t kKeyBytesAt = 3646;

  static Bytes sealed(Bytes bytes) {
    std::uint64_t sum = 0xcbf29ce484222325ULL;
    for (std::size_t i = 16; i < bytes.size(); ++i) {
      sum = (sum ^ std::to_integer<std::uint64_t>(bytes[i])) * 0x100000001b3ULL;
    }
    std::memcpy(bytes.data() + 8, &sum, sizeof sum);
    return bytes;
  }
  static std::string error_of(std::span<const std::byte> bytes, std::uint64_t features = kAll,
                              std::uint16_t pairs = kPairs) {
    const Result<NetDriverState> state = load_net_state(bytes, features, limits_of(pairs));
    return state.has_value() ? "" : state.error().message;
  }
  template <typename T>
  static void expect_refused_with(std::size_t at, T value, const char* what) {
    Bytes bytes = save_net_state(full_state());
    std::memcpy(bytes.data() + at, &value, sizeof value);
    EXPECT_NE(error_of(sealed(bytes)).find(what), std::string::npos) << at << ": " << error_of(sealed(bytes));
  }
};

TEST_F(NetStateFormTest, what_is_saved_is_loaded) {
  for (const NetDriverState& state : {full_state(), NetDriverState::after_reset(kAll, mac_of(1))}) {
    const Result<NetDriverState> loaded = load_net_state(save_net_state(state), kAll, limits_of(kPairs));
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    EXPECT_EQ(*loaded, state);
  }
  const NetDriverState none = NetDriverState::after_reset(0, NetMac{});
  EXPECT_EQ(error_of(save_net_state(none), 0, 1), "");
}

TEST_F(NetStateFormTest, the_form_does_not_change_unnoticed) {
  const Bytes bytes = save_net_state(full_state());
  EXPECT_EQ(sealed(bytes), bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "RNST\x01\x00\x00\x00", 8), 0);
  const auto word = [&bytes](std::size_t at) {
    std::uint16_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  EXPECT_EQ(word(kOffloadsAt), spec::kNetGuestCsum);
  EXPECT_EQ(word(kVlansAt), 0x21);
  EXPECT_EQ(word(kHashTypesAt), 3);
  EXPECT_EQ(word(kFlagsAt), 0x1fe);
  EXPECT_EQ(word(kPairsAt), 3);
  EXPECT_EQ(word(kRssMaskAt), 3);
  EXPECT_EQ(word(kRssUnclassifiedAt), 1);
  EXPECT_EQ(word(kRssPairsAt), 3);
  EXPECT_EQ(word(kDefaultsAt), 3);
  EXPECT_EQ(word(kCoalescingAt + 7 * 8), 5);
  EXPECT_EQ(word(kUnicastAt), 64);
  EXPECT_EQ(word(kMacAt), 0x5452);
  EXPECT_EQ(word(kKeyBytesAt), 0x6d28);
}

TEST_F(NetStateFormTest, every_length_but_one_is_refused) {
  const Bytes bytes = save_net_state(full_state());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_NE(error_of(std::span(bytes).first(length)), "");
  }
  std::vector<std::byte> longer(bytes.begin(), bytes.end());
  longer.push_back(std::byte{0});
  EXPECT_NE(error_of(longer), "");
}

TEST_F(NetStateFormTest, every_damaged_byte_is_noticed) {
  Bytes bytes = save_net_state(full_state());
  for (std::byte& byte : bytes) {
    byte ^= std::byte{0x10};
    const auto at = &byte - bytes.data();
    ASSERT_NE(error_of(bytes), "") << at;
    ASSERT_TRUE(at < 8 || error_of(bytes).find("checksum") != std::string::npos) << at << ": " << error_of(bytes);
    byte ^= std::byte{0x10};
  }
  EXPECT_EQ(error_of(bytes), "");
}

TEST_F(NetStateFormTest, values_that_no_driver_could_have_set_are_refused) {
  expect_refused_with(0, 0x4f4f4f4fU, "not of this program");
  expect_refused_with(4, std::uint16_t{2}, "version 2");
  expect_refused_with(6, std::uint16_t{1}, "doesn't write");
  expect_refused_with(kOffloadsAt, spec::kNetHostTso4, "offloads");
  expect_refused_with(kHashTypesAt, 0x200U, "hash types");
  expect_refused_with(kFlagsAt, std::uint16_t{0x3fe}, "doesn't write");
  expect_refused_with(kFlagsAt, std::uint16_t{0x17e}, "doesn't write");  // no table, and one is there
  expect_refused_with(kPairsAt, std::uint16_t{0}, "queue pairs");
  expect_refused_with(kPairsAt, std::uint16_t{5}, "queue pairs");
  expect_refused_with(kRssMaskAt, std::uint16_t{2}, "RSS");
  expect_refused_with(kRssMaskAt, std::uint16_t{255}, "RSS");
  expect_refused_with(kRssMaskAt, std::uint16_t{0xffff}, "RSS");
  expect_refused_with(kRssUnclassifiedAt, std::uint16_t{4}, "RSS");
  expect_refused_with(kRssPairsAt + 6, std::uint16_t{4}, "RSS");
  expect_refused_with(kRssPairsAt + 8, std::uint16_t{1}, "doesn't write");  // behind the table's end
  expect_refused_with(kCoalescingAt + 8 * 8, std::uint32_t{1}, "coalescing");
  expect_refused_with(kUnicastAt, std::uint8_t{65}, "doesn't write");
  expect_refused_with(kUnicastAt, std::uint8_t{63}, "doesn't write");
  expect_refused_with(kUnicastAt + 1, std::uint8_t{2}, "doesn't write");
  expect_refused_with(kMacAt, std::uint8_t{0x53}, "address");
  expect_refused_with(kKeyBytesAt, std::uint8_t{41}, "hash types");
  expect_refused_with(kKeyBytesAt, std::uint8_t{0}, "hash types");
  expect_refused_with(kNetDriverStateBytes - 1, std::uint8_t{1}, "doesn't write");
}

TEST_F(NetStateFormTest, a_state_that_the_device_here_could_not_be_in_is_refused) {
  const Bytes bytes = save_net_state(full_state());
  EXPECT_NE(error_of(bytes, kAll, 2), "");
  for (const std::uint64_t feature :
       {spec::kNetGuestCsum, spec::kNetCtrlRx, spec::kNetCtrlVlan, spec::kNetCtrlRxExtra, spec::kNetGuestAnnounce,
        spec::kNetNotfCoal, spec::kNetRss, spec::kNetCtrlGuestOffloads}) {
    EXPECT_NE(error_of(bytes, kAll & ~feature), "") << feature;
  }
  NetDriverState hashing = NetDriverState::after_reset(kAll, mac_of(1));
  hashing.hashing = configure_hash(1, 40).hashing;
  EXPECT_EQ(error_of(save_net_state(hashing), kAll & ~spec::kNetRss), "");
  EXPECT_NE(error_of(save_net_state(hashing), kAll & ~(spec::kNetRss | spec::kNetHashReport)), "");
  NetDriverState coalescing = NetDriverState::after_reset(kAll, mac_of(1));
  coalescing.coalescing[0] = {1, 1};
  EXPECT_EQ(error_of(save_net_state(coalescing), kAll & ~spec::kNetNotfCoal), "");
  EXPECT_NE(error_of(save_net_state(coalescing), kAll & ~(spec::kNetNotfCoal | spec::kNetVqNotfCoal)), "");
}

// --- Over real rings ---

// cases R3, R6: indices wrap, each command is answered with a length of 1, and the state is that of the last one.
class NetControlRingTest : public ::testing::TestWithParam<bool> {};

TEST_P(NetControlRingTest, seventy_thousand_commands_are_all_answered) {
  const bool packed = GetParam();
  testing::RingMemory memory(64, packed);
  const RingFeatures features{.packed = packed};
  DriverRing driver({.layout = memory.layout, .features = features});
  DeviceRing device(memory.layout, features, packed ? kPackedBaseInitial : kSplitBaseInitial);
  Chain chain;
  NetDriverState state = NetDriverState::after_reset(kAll, mac_of(1));
  const NetControlLimits limits = limits_of(kPairs);
  const GuestAddress ack{memory.data.value + 4096};
  for (std::uint32_t i = 0; i < 70'000; ++i) {
    const bool good = i % 3 != 0;
    const ControlText text =
        good ? ControlText(spec::kNetCtrlClassMac, spec::kNetCtrlMacAddrSet).mac(mac_of(i)) : ControlText(9, 9);
    const auto bytes = static_cast<std::uint32_t>(text.get().size());
    std::memcpy(memory.host(memory.data, bytes), text.get().data(), bytes);
    *memory.host(ack) = std::byte{0xee};
    std::vector<DriverBuffer> buffers = {{.address = memory.data, .bytes = 2},
                                         {.address = ack, .bytes = 1, .device_writable = true}};
    if (good) {
      buffers.insert(buffers.begin() + 1, {.address = GuestAddress{memory.data.value + 2}, .bytes = bytes - 2});
    }
    ASSERT_TRUE(driver.add(buffers, i));
    static_cast<void>(driver.publish());

    ASSERT_EQ(device.pop(*memory.map, chain), PopStatus::chain);
    const NetControlParsed parsed = parse_net_control(chain, false);
    NetControlRefusal refusal = parsed.refusal;
    if (refusal == NetControlRefusal::none) {
      refusal = apply_net_command(parsed.command, kAll, limits, state).refusal;
    }
    device.push_used(chain.id(), write_net_control_reply(parsed.reply, refusal, {}));
    device.publish();

    UsedElement used;
    ASSERT_TRUE(driver.take_used(used));
    ASSERT_EQ(used.token, i);
    ASSERT_EQ(used.written_bytes, 1U);
    ASSERT_EQ(*memory.host(ack), std::byte{good ? spec::kNetAckOk : spec::kNetAckErr});
    if (good) {
      ASSERT_EQ(state.mac, mac_of(i));
    }
  }
  EXPECT_FALSE(driver.broken());
}

// cases R3: a descriptor whose next is out of range, and a chain without an ack; the next command is served as ever.
TEST_P(NetControlRingTest, bad_chains_are_finished_and_the_next_is_served) {
  const bool packed = GetParam();
  testing::RingMemory memory(64, packed);
  testing::RawDriver driver(memory.layout, packed);
  DeviceRing device(memory.layout, {.packed = packed}, packed ? kPackedBaseInitial : kSplitBaseInitial);
  Chain chain;
  const std::uint64_t data = memory.data.value;
  const ControlText text = ControlText(spec::kNetCtrlClassMq, spec::kNetCtrlMqVqPairsSet).put(std::uint16_t{2});
  std::memcpy(memory.host(memory.data, 4), text.get().data(), 4);

  driver.offer({{.address = data, .bytes = 4}});  // no ack
  ASSERT_EQ(device.pop(*memory.map, chain), PopStatus::chain);
  EXPECT_EQ(parse_net_control(chain, false).reply.count, 0);
  device.push_used(chain.id(), 0);

  driver.offer({{.address = 0xdead'0000'0000, .bytes = 4}, {.address = data + 64, .bytes = 1, .flags = spec::kDescWrite}});
  ASSERT_EQ(device.pop(*memory.map, chain), PopStatus::chain_fault);
  const NetControlParsed faulty = parse_net_control(chain, true);
  EXPECT_EQ(faulty.refusal, NetControlRefusal::bad_chain);
  ASSERT_EQ(faulty.reply.count, 1);
  EXPECT_EQ(faulty.reply.segments[0].iov_base, memory.host(GuestAddress{data + 64}));
  device.push_used(chain.id(), write_net_control_reply(faulty.reply, faulty.refusal, {}));
  EXPECT_EQ(*memory.host(GuestAddress{data + 64}), std::byte{spec::kNetAckErr});

  driver.offer({{.address = data, .bytes = 4}, {.address = data + 64, .bytes = 1, .flags = spec::kDescWrite}});
  ASSERT_EQ(device.pop(*memory.map, chain), PopStatus::chain);
  EXPECT_EQ(parse_net_control(chain, false).command, NetCommand(NetSetPairs{2}));
}

INSTANTIATE_TEST_SUITE_P(Layouts, NetControlRingTest, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "packed" : "split"; });

}  // namespace
}  // namespace ringway
