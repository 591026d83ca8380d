// `ringway check net` finds nothing in a back-end that is right, and each fault in one that is wrong.
#include "bench/net_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/test_net_peer.hpp"

namespace ringway {
namespace {

using testing::HasSubstr;
using Fault = NetPeerFault;

struct Checked {
  int code = 0;
  nlohmann::json report;

  [[nodiscard]] std::set<std::string> with(const std::string& outcome) const {
    std::set<std::string> names;
    for (const nlohmann::json& rule : report.value("rules", nlohmann::json::array())) {
      if (rule.at("outcome") == outcome) {
        names.insert(rule.at("rule"));
      }
    }
    return names;
  }
};

Checked check_peer(const FaultyNetPeer& peer, const std::string& only, Duration answer_limit,
                   NetCheckPort port = NetCheckPort::loop) {
  NetCheckOptions options;
  options.socket_path = peer.socket_path();
  options.answer_limit = answer_limit;
  options.port = port;
  options.only = only;
  options.json = true;
  std::ostringstream out;
  Checked checked;
  checked.code = run_net_check(options, out);
  checked.report = nlohmann::json::parse(out.str(), nullptr, false);
  EXPECT_TRUE(checked.report.is_object()) << out.str();
  return checked;
}

// Also finds out by itself that the peer returns frames.
TEST(NetCheck, FindsNoFaultInABackendThatIsRight) {
  const FaultyNetPeer peer(Fault::none);
  const Checked checked = check_peer(peer, "", Duration::seconds(20), NetCheckPort::unknown);
  EXPECT_EQ(checked.code, 0);
  EXPECT_THAT(checked.with("FAIL"), testing::IsEmpty()) << checked.report.dump(1);
  EXPECT_THAT(checked.with("SKIP"), testing::ElementsAre("packed: coalescing", "split: coalescing"));
}

struct Finds {
  Fault fault;
  std::string rule;
};

class NetCheckFinds : public testing::TestWithParam<Finds> {};

TEST_P(NetCheckFinds, TheFault) {
  const FaultyNetPeer peer(GetParam().fault);
  const Checked checked = check_peer(peer, GetParam().rule, Duration::milliseconds(300));
  EXPECT_EQ(checked.code, 1) << checked.report.dump(1);
  EXPECT_THAT(checked.with("FAIL"), testing::Contains(GetParam().rule)) << checked.report.dump(1);
}

std::string name_of_case(const testing::TestParamInfo<Finds>& info) {
  std::string name;
  for (const char c : info.param.rule) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name + "_" + std::to_string(static_cast<int>(info.param.fault));
}

INSTANTIATE_TEST_SUITE_P(Session, NetCheckFinds,
                         testing::Values(Finds{Fault::baseless_feature, "features fit together"},
                                         Finds{Fault::group_address, "configuration is plausible"},
                                         Finds{Fault::config_ignores_offset, "configuration in pieces"},
                                         Finds{Fault::second_region_is_lost, "several memory regions"},
                                         Finds{Fault::second_region_is_lost, "memory slots"},
                                         Finds{Fault::keeps_old_memory, "memory table replaced"},
                                         Finds{Fault::dies_of_hang_ups, "reconnects with frames in flight"}),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(Frames, NetCheckFinds,
                         testing::Values(Finds{Fault::tx_used_length, "split: used length of a transmit chain"},
                                         Finds{Fault::header_always_12, "length of the header"},
                                         Finds{Fault::zero_num_buffers, "split: plain receive buffers"},
                                         Finds{Fault::zero_num_buffers, "packed: mergeable receive buffers"},
                                         Finds{Fault::one_num_buffers, "split: mergeable receive buffers"},
                                         Finds{Fault::part_of_a_frame, "split: too few receive buffers"},
                                         Finds{Fault::header_in_first, "packed: any framing of what is sent"},
                                         Finds{Fault::header_into_first, "split: any framing of receive buffers"},
                                         Finds{Fault::loses_frames, "split: frames come once and in order"},
                                         Finds{Fault::duplicates_frames, "split: frames come once and in order"},
                                         Finds{Fault::swaps_frames, "packed: frames come once and in order"},
                                         Finds{Fault::dies_of_short_chains, "split: transmit chain shorter than the header"},
                                         Finds{Fault::dies_of_short_chains, "split: header without a frame"},
                                         Finds{Fault::dies_of_empty_descriptors, "split: descriptors of no bytes"},
                                         Finds{Fault::dies_of_long_frames, "split: frame that is too long"},
                                         Finds{Fault::writes_what_is_read, "split: writable buffer in a transmit queue"},
                                         Finds{Fault::writes_readable, "split: readable buffer in a receive queue"},
                                         Finds{Fault::writes_behind, "packed: receive buffers that are too small"},
                                         Finds{Fault::dies_of_bad_chains, "split: buffer in memory that isn't shared"},
                                         Finds{Fault::keeps_checksum, "split: partial checksum is completed"},
                                         Finds{Fault::dies_of_offloads, "split: offloads that make no sense"}),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(Rings, NetCheckFinds,
                         testing::Values(Finds{Fault::always_calls, "split: no call while suppressed"},
                                         Finds{Fault::never_calls, "packed: a call when asked for"},
                                         Finds{Fault::calls_at_each_element, "split: event index crossing"},
                                         Finds{Fault::never_asks_for_kicks, "split: an idle ring wakes by a kick"},
                                         Finds{Fault::always_calls, "split: calls of a receive queue"},
                                         Finds{Fault::never_calls, "split: calls of a receive queue"},
                                         Finds{Fault::always_calls, "packed: without event index"},
                                         Finds{Fault::calls_for_receive_only, "split: a call when asked for"},
                                         Finds{Fault::forgets_receive_ring, "split: receive buffers that come late"},
                                         Finds{Fault::base_is_off, "split: GET_VRING_BASE is exact"},
                                         Finds{Fault::receive_base_is_off, "packed: GET_VRING_BASE of a receive queue"},
                                         Finds{Fault::loses_at_stop, "split: stop and start"},
                                         Finds{Fault::goes_on_at_old_place, "split: all rings begun anew"},
                                         Finds{Fault::ignores_early_kicks, "split: kick before enable"},
                                         Finds{Fault::sends_when_disabled, "split: disabled transmit ring"},
                                         Finds{Fault::keeps_when_disabled, "packed: disabled transmit ring"},
                                         Finds{Fault::receives_when_disabled, "split: disabled receive ring"},
                                         Finds{Fault::stays_disabled, "split: disabled and enabled again"},
                                         Finds{Fault::second_pair_is_dead, "split: every pair serves"},
                                         Finds{Fault::large_rings_are_dead, "split: ring sizes"}),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Commands, NetCheckFinds,
    testing::Values(Finds{Fault::grants_all, "split: unknown commands"}, Finds{Fault::refuses_all, "split: receive modes"},
                    Finds{Fault::no_used_length, "split: receive modes"}, Finds{Fault::mute, "split: receive modes"},
                    Finds{Fault::refuses_all, "split: MAC tables"}, Finds{Fault::mac_is_not_shown, "split: MAC address"},
                    Finds{Fault::refuses_all, "split: VLANs"}, Finds{Fault::refuses_all, "split: announcement"},
                    Finds{Fault::grants_all, "packed: number of pairs"}, Finds{Fault::refuses_all, "split: number of pairs"},
                    Finds{Fault::takes_any_offload, "split: guest offloads"},
                    Finds{Fault::grants_all, "split: truncated commands"},
                    Finds{Fault::grants_all, "split: commands that were not negotiated"},
                    Finds{Fault::header_of_command_in_first, "split: any framing of commands"},
                    Finds{Fault::answers_without_room, "split: command chains that make no sense"},
                    Finds{Fault::forgets_commands, "split: many commands"}),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(Hashes, NetCheckFinds,
                         testing::Values(Finds{Fault::hashes_backwards, "split: hash reports"},
                                         Finds{Fault::reports_unasked, "packed: hash reports"},
                                         Finds{Fault::grants_all, "split: hash reports"},
                                         Finds{Fault::forgets_table, "split: RSS places frames"},
                                         Finds{Fault::hashes_backwards, "packed: RSS places frames"},
                                         Finds{Fault::takes_any_table, "split: RSS"},
                                         Finds{Fault::refuses_all, "packed: RSS"}),
                         name_of_case);

TEST(NetCheck, SkipsWhatTheBackendCannotShow) {
  const FaultyNetPeer peer(Fault::none);
  const Checked checked = check_peer(peer, "receive buffers", Duration::seconds(20), NetCheckPort::silent);
  EXPECT_EQ(checked.code, 0);
  EXPECT_THAT(checked.with("PASS"), testing::IsEmpty());
  EXPECT_THAT(checked.report.dump(), HasSubstr("needs a back-end that returns frames to their sender (see --port)"));
}

TEST(NetCheck, ListsItsRulesWithoutABackend) {
  NetCheckOptions options;
  options.list = true;
  options.only = "CHECKSUM";
  std::ostringstream out;
  EXPECT_EQ(run_net_check(options, out), 0);
  EXPECT_EQ(out.str(), "partial checksum is completed [virtio 5.1.6.4.1]\n");
  options.only = "bananas";
  EXPECT_EQ(run_net_check(options, out), 2);
}

TEST(NetCheck, WithoutABackendIsAnErrorOfItsOwn) {
  NetCheckOptions options;
  options.socket_path = "/nowhere/net.sock";
  options.patience = {};
  options.json = true;
  std::ostringstream out;
  EXPECT_EQ(run_net_check(options, out), 2);
  EXPECT_THAT(out.str(), HasSubstr("nothing is at '/nowhere/net.sock'"));
}

}  // namespace
}  // namespace ringway
