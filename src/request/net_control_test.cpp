#include "request/net_control.hpp"

#include <gtest/gtest.h>

#include <string>

#include "request/test_net_control.hpp"

namespace ringway {
namespace {

using testing::ControlChain;
using testing::ControlText;
using testing::mac_of;
using testing::macs_of;
using testing::RssText;

// What each good command is, and how it has to be understood.
struct Sample {
  const char* name;
  ControlText text;
  NetCommand command;
  std::size_t answer_bytes = 1;
};

NetMacTable table_of(std::size_t count, bool group) {
  NetMacTable table;
  table.count = static_cast<std::uint8_t>(count);
  std::ranges::copy(macs_of(count, group), table.entries.begin());
  return table;
}

NetHashing hashing_of(std::uint32_t types, std::size_t key_bytes) {
  NetHashing hashing;
  hashing.types = types;
  hashing.key_bytes = static_cast<std::uint8_t>(key_bytes);
  std::fill_n(hashing.key.begin(), key_bytes, std::uint8_t{0x6d});
  return hashing;
}

NetRssTable rss_of(const RssText& text) {
  NetRssTable table;
  table.mask = text.mask;
  table.unclassified_pair = text.unclassified;
  std::ranges::copy(text.table, table.pairs.begin());
  return table;
}

RssText full_rss() {
  RssText rss;
  rss.mask = 127;
  rss.table.clear();
  for (std::uint16_t i = 0; i < 128; ++i) {
    rss.table.push_back(i % 4);
  }
  rss.unclassified = 2;
  return rss;
}

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (std::uint8_t mode = 0; mode <= spec::kNetCtrlRxNobcast; ++mode) {
    all.push_back({"rx off", ControlText(spec::kNetCtrlClassRx, mode).put(std::uint8_t{0}), NetSetRxMode{mode, false}});
    all.push_back({"rx on", ControlText(spec::kNetCtrlClassRx, mode).put(std::uint8_t{1}), NetSetRxMode{mode, true}});
  }
  for (const auto& [unicast, multicast] : {std::pair{0U, 0U}, {1U, 0U}, {0U, 1U}, {3U, 5U}, {64U, 64U}}) {
    all.push_back({"mac tables",
                   ControlText(spec::kNetCtrlClassMac, spec::kNetCtrlMacTableSet)
                       .macs(macs_of(unicast))
                       .macs(macs_of(multicast, true)),
                   NetSetMacTables{table_of(unicast, false), table_of(multicast, true)}});
  }
  all.push_back({"mac", ControlText(spec::kNetCtrlClassMac, spec::kNetCtrlMacAddrSet).mac(mac_of(7)), NetSetMac{mac_of(7)}});
  all.push_back({"vlan add", ControlText(spec::kNetCtrlClassVlan, spec::kNetCtrlVlanAdd).put(std::uint16_t{0x0ffe}),
                 NetSetVlan{0x0ffe, true}});
  all.push_back({"vlan del", ControlText(spec::kNetCtrlClassVlan, spec::kNetCtrlVlanDel).put(std::uint16_t{0x0102}),
                 NetSetVlan{0x0102, false}});
  all.push_back({"announce", ControlText(spec::kNetCtrlClassAnnounce, spec::kNetCtrlAnnounceAck), NetAckAnnounce{}});
  all.push_back({"pairs", ControlText(spec::kNetCtrlClassMq, spec::kNetCtrlMqVqPairsSet).put(std::uint16_t{0x0304}),
                 NetSetPairs{0x0304}});
  for (const RssText& rss : {RssText{}, full_rss()}) {
    all.push_back({"rss", rss.text(), NetConfigureRss{hashing_of(rss.types, 40), rss_of(rss), rss.max_tx_vq}});
  }
  const RssText no_hash{.types = 0, .mask = 0, .table = {0}, .max_tx_vq = 1, .key_length = 0, .key_bytes = 0};
  all.push_back({"rss off", no_hash.text(), NetConfigureRss{hashing_of(0, 0), rss_of(no_hash), 1}});
  all.push_back({"hash",
                 ControlText(spec::kNetCtrlClassMq, spec::kNetCtrlMqHashConfig)
                     .put(std::uint32_t{0x3f})
                     .bytes(8, 0)
                     .put(std::uint8_t{16})
                     .bytes(16, 0x6d),
                 NetConfigureHash{hashing_of(0x3f, 16)}});
  all.push_back(
      {"offloads",
       ControlText(spec::kNetCtrlClassGuestOffloads, spec::kNetCtrlGuestOffloadsSet).put(std::uint64_t{0x0102030405060708}),
       NetSetOffloads{0x0102030405060708}});
  for (const bool transmit : {true, false}) {
    all.push_back(
        {"coalescing",
         ControlText(spec::kNetCtrlClassNotfCoal, transmit ? spec::kNetCtrlNotfCoalTxSet : spec::kNetCtrlNotfCoalRxSet)
             .put(std::uint32_t{15})
             .put(std::uint32_t{0x01020304}),
         NetSetCoalescing{transmit, {15, 0x01020304}}});
  }
  all.push_back({"queue coalescing",
                 ControlText(spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalVqSet)
                     .put(std::uint16_t{5})
                     .put(std::uint16_t{0xffff})  // reserved: MUST be ignored
                     .put(std::uint32_t{15})
                     .put(std::uint32_t{10}),
                 NetSetQueueCoalescing{5, {15, 10}}});
  all.push_back({"queue coalescing get",
                 ControlText(spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalVqGet)
                     .put(std::uint16_t{5})
                     .put(std::uint16_t{0xffff}),
                 NetGetQueueCoalescing{5}, 9});
  return all;
}

std::string refusal_of(const ControlChain& guest) {
  return to_string(parse_net_control(guest.chain(), false).refusal);
}

// Parses, answers OK with a known pair, and looks at every byte that the guest sees.
void expect_taken(const Sample& sample, const ControlChain& guest) {
  const NetControlParsed parsed = parse_net_control(guest.chain(), false);
  ASSERT_EQ(to_string(parsed.refusal), std::string("none"));
  EXPECT_EQ(parsed.command, sample.command);
  const NetCoalescing answer{0x44332211, 0x88776655};
  EXPECT_EQ(write_net_control_reply(parsed.reply, parsed.refusal, answer), sample.answer_bytes);
  std::vector<std::byte> expected = guest.written();
  for (std::size_t i = 0; i + 1 < sample.answer_bytes; ++i) {
    expected[i] = static_cast<std::byte>(0x11 * (i + 1));
  }
  expected[sample.answer_bytes - 1] = std::byte{spec::kNetAckOk};
  EXPECT_EQ(guest.written(), expected);
  EXPECT_TRUE(std::all_of(expected.begin() + static_cast<std::ptrdiff_t>(sample.answer_bytes), expected.end(),
                          [](std::byte value) { return value == ControlChain::kUntouched; }));
  EXPECT_TRUE(guest.canaries_intact());
}

// An ERR is written where the ack belongs, zeros before it, and nothing else.
void expect_error(const ControlText& text, std::initializer_list<std::size_t> writable, NetControlRefusal refusal,
                  std::size_t answer_bytes = 1) {
  const ControlChain guest(text, writable);
  const NetControlParsed parsed = parse_net_control(guest.chain(), false);
  EXPECT_EQ(to_string(parsed.refusal), std::string(to_string(refusal)));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(parsed.command));
  EXPECT_EQ(write_net_control_reply(parsed.reply, parsed.refusal, {}), answer_bytes);
  std::vector<std::byte> expected(guest.written().size(), ControlChain::kUntouched);
  std::fill_n(expected.begin(), answer_bytes - 1, std::byte{0});
  expected[answer_bytes - 1] = std::byte{spec::kNetAckErr};
  EXPECT_EQ(guest.written(), expected);
  EXPECT_TRUE(guest.canaries_intact());
}

TEST(NetControlTest, every_command_is_taken_in_every_framing) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    const std::size_t bytes = sample.text.get().size();
    for (std::size_t piece = 1; piece <= std::min<std::size_t>(bytes, 70); ++piece) {
      SCOPED_TRACE(piece);
      expect_taken(sample, ControlChain(sample.text, piece, {sample.answer_bytes}));
    }
    expect_taken(sample, ControlChain(sample.text, bytes, {sample.answer_bytes}));
    expect_taken(sample, ControlChain(sample.text, 2, {sample.answer_bytes, 1}));
    expect_taken(sample, ControlChain(sample.text, 2, {sample.answer_bytes + 7}));
    expect_taken(sample, ControlChain(sample.text, 2, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
    expect_taken(sample, ControlChain(sample.text, 2, {8, 1}));
    expect_taken(sample, ControlChain(sample.text, 2, {3, 5, 2}));
  }
}

TEST(NetControlTest, any_other_length_is_an_error) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    const std::size_t bytes = sample.text.get().size();
    for (std::size_t shorter = 2; shorter < bytes; ++shorter) {
      ControlText text = sample.text;
      expect_error(text.resize(shorter), {sample.answer_bytes}, NetControlRefusal::bad_length, sample.answer_bytes);
    }
    for (const std::size_t more : {1, 2, 6, 4096}) {
      ControlText text = sample.text;
      expect_error(text.resize(bytes + more), {sample.answer_bytes}, NetControlRefusal::bad_length, sample.answer_bytes);
    }
  }
}

TEST(NetControlTest, a_header_that_is_not_there_is_an_error) {
  expect_error(ControlText{}, {1}, NetControlRefusal::short_header);
  expect_error(ControlText{}, {4, 4}, NetControlRefusal::short_header);
  expect_error(ControlText{}.put(std::uint8_t{0}), {1}, NetControlRefusal::short_header);
}

// cases N8
TEST(NetControlTest, unknown_classes_and_commands_are_errors) {
  constexpr std::array<int, 7> kCommands = {6, 2, 2, 1, 3, 1, 4};
  for (int control_class = 0; control_class < 256; ++control_class) {
    for (const int command : {0, 1, 2, 3, 4, 5, 6, 7, 8, 128, 255}) {
      const bool known = control_class < 7 && command < kCommands[static_cast<std::size_t>(control_class)];
      const ControlText text(static_cast<std::uint8_t>(control_class), static_cast<std::uint8_t>(command));
      const std::string refusal = refusal_of(ControlChain(text, {1}));
      ASSERT_EQ(refusal == "unknown_command", !known) << control_class << " " << command;
    }
  }
  expect_error(ControlText(7, 0).put(std::uint32_t{0}), {1}, NetControlRefusal::unknown_command);
  expect_error(ControlText(spec::kNetCtrlClassRx, 6).put(std::uint8_t{1}), {1}, NetControlRefusal::unknown_command);
}

// cases R3
TEST(NetControlTest, a_chain_without_room_for_the_ack_is_dropped) {
  for (const Sample& sample : samples()) {
    const ControlChain guest(sample.text, {});
    const NetControlParsed parsed = parse_net_control(guest.chain(), false);
    EXPECT_EQ(to_string(parsed.refusal), std::string("no_reply"));
    EXPECT_EQ(parsed.reply.count, 0);
    EXPECT_EQ(parsed.reply.used_length, 0);
    EXPECT_TRUE(std::holds_alternative<std::monostate>(parsed.command));
  }
}

// cases R3
TEST(NetControlTest, a_faulty_chain_is_answered_where_that_can_be_done) {
  const ControlText text(spec::kNetCtrlClassAnnounce, spec::kNetCtrlAnnounceAck);
  {
    const ControlChain guest(text, {1});
    const NetControlParsed parsed = parse_net_control(guest.chain(), true);
    EXPECT_EQ(to_string(parsed.refusal), std::string("bad_chain"));
    EXPECT_EQ(write_net_control_reply(parsed.reply, parsed.refusal, {}), 1U);
    EXPECT_EQ(guest.written(), std::vector<std::byte>{std::byte{spec::kNetAckErr}});
    EXPECT_TRUE(std::holds_alternative<std::monostate>(parsed.command));
  }
  {
    // What stands before the last byte may have been lost, so nothing can be promised of it.
    const ControlChain guest(text, {2, 3});
    const NetControlParsed parsed = parse_net_control(guest.chain(), true);
    EXPECT_EQ(write_net_control_reply(parsed.reply, parsed.refusal, {}), 0U);
    std::vector<std::byte> expected(5, ControlChain::kUntouched);
    expected.back() = std::byte{spec::kNetAckErr};
    EXPECT_EQ(guest.written(), expected);
  }
  const ControlChain guest(text, {});
  const NetControlParsed parsed = parse_net_control(guest.chain(), true);
  EXPECT_EQ(to_string(parsed.refusal), std::string("bad_chain"));
  EXPECT_EQ(parsed.reply.count, 0);
}

TEST(NetControlTest, vq_get_without_room_for_its_answer_is_an_error) {
  const ControlText text = ControlText(spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalVqGet).put(std::uint32_t{0});
  for (std::size_t room = 1; room < 9; ++room) {
    expect_error(text, {room}, NetControlRefusal::bad_length, room);
  }
  expect_error(text, {1, 2, 1}, NetControlRefusal::bad_length, 4);
}

TEST(NetControlTest, more_addresses_than_are_kept_mean_all) {
  for (const std::size_t count : {65U, 66U, 4096U}) {
    for (const std::size_t piece : {1U, 7U, 100000U}) {
      const ControlText text =
          ControlText(spec::kNetCtrlClassMac, spec::kNetCtrlMacTableSet).macs(macs_of(count)).macs(macs_of(2, true));
      const ControlChain guest(text, piece, {1});
      const NetControlParsed parsed = parse_net_control(guest.chain(), false);
      ASSERT_EQ(to_string(parsed.refusal), std::string("none"));
      NetMacTable all;
      all.all = true;
      EXPECT_EQ(parsed.command, NetCommand(NetSetMacTables{all, table_of(2, true)}));
    }
    const ControlText text =
        ControlText(spec::kNetCtrlClassMac, spec::kNetCtrlMacTableSet).macs(macs_of(64)).macs(macs_of(count, true));
    const NetControlParsed parsed = parse_net_control(ControlChain(text, {1}).chain(), false);
    const auto& tables = std::get<NetSetMacTables>(parsed.command);
    EXPECT_EQ(tables.unicast, table_of(64, false));
    EXPECT_TRUE(tables.multicast.all);
    EXPECT_EQ(tables.multicast.count, 0);
  }
}

TEST(NetControlTest, a_table_that_claims_more_addresses_than_there_are_is_an_error) {
  const std::uint8_t table_set = spec::kNetCtrlMacTableSet;
  for (const std::uint32_t claim : {2U, 65U, 0x2aaaaaabU, 0x80000000U, 0xffffffffU}) {
    expect_error(ControlText(spec::kNetCtrlClassMac, table_set).put(claim).mac(mac_of(1)).put(std::uint32_t{0}), {1},
                 NetControlRefusal::bad_length);
    expect_error(ControlText(spec::kNetCtrlClassMac, table_set).put(std::uint32_t{0}).put(claim).mac(mac_of(1)), {1},
                 NetControlRefusal::bad_length);
  }
  // 0x2aaaaaab * 6 is 2 modulo 2^32, and two bytes there are.
  expect_error(ControlText(spec::kNetCtrlClassMac, table_set).put(0x2aaaaaabU).bytes(2, 0).put(std::uint32_t{0}), {1},
               NetControlRefusal::bad_length);
}

TEST(NetControlTest, rss_tables_and_keys_that_are_too_long_are_errors) {
  for (const std::uint16_t mask : {128, 255, 0x7fff, 0xffff}) {
    RssText rss;
    rss.mask = mask;
    rss.table.assign(std::size_t{mask} + 1, 0);
    expect_error(rss.text(), {1}, NetControlRefusal::bad_value);
  }
  for (const std::uint8_t key : {41, 128, 255}) {
    RssText rss;
    rss.key_length = key;
    rss.key_bytes = key;
    expect_error(rss.text(), {1}, NetControlRefusal::bad_value);
    expect_error(ControlText(spec::kNetCtrlClassMq, spec::kNetCtrlMqHashConfig)
                     .put(std::uint32_t{1})
                     .bytes(8, 0)
                     .put(key)
                     .bytes(key, 1),
                 {1}, NetControlRefusal::bad_value);
  }
}

// Older Linux drivers have the number of their queue pairs in what is reserved.
TEST(NetControlTest, hash_config_ignores_what_is_reserved) {
  const ControlText text = ControlText(spec::kNetCtrlClassMq, spec::kNetCtrlMqHashConfig)
                               .put(std::uint32_t{1})
                               .bytes(8, 0xff)
                               .put(std::uint8_t{1})
                               .put(std::uint8_t{0x6d});
  const NetControlParsed parsed = parse_net_control(ControlChain(text, {1}).chain(), false);
  EXPECT_EQ(parsed.command, NetCommand(NetConfigureHash{hashing_of(1, 1)}));
}

TEST(NetControlTest, any_byte_but_zero_turns_a_mode_on) {
  const ControlText text = ControlText(spec::kNetCtrlClassRx, spec::kNetCtrlRxPromisc).put(std::uint8_t{0x80});
  const NetControlParsed parsed = parse_net_control(ControlChain(text, {1}).chain(), false);
  EXPECT_EQ(parsed.command, NetCommand(NetSetRxMode{spec::kNetCtrlRxPromisc, true}));
}

TEST(NetControlTest, refusals_have_names) {
  for (std::size_t i = 0; i < kNetControlRefusals; ++i) {
    EXPECT_STRNE(to_string(static_cast<NetControlRefusal>(i)), "unknown");
  }
  EXPECT_STREQ(to_string(static_cast<NetControlRefusal>(kNetControlRefusals)), "unknown");
}

}  // namespace
}  // namespace ringway
