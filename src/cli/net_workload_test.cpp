// `ringway bench net` and `ringway check net`, as a user runs them: against ringway's own ports.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/test_shell.hpp"
#include "control/test_host.hpp"

namespace ringway {
namespace {

using ::testing::HasSubstr;

struct CommandEnd {
  int status = -1;
  std::string text;  // stdout, or with `errors` both
};

// The words of `line` contain nothing that a shell takes for its own.
CommandEnd run_command(const std::string& line, bool errors = false) {
  auto [status, text] = run_in_shell(fmt::format("{} {} {}", RINGWAY_PROGRAM, line, errors ? "2>&1" : ""));
  return {.status = status, .text = std::move(text)};
}

nlohmann::json json_of(const CommandEnd& end) {
  nlohmann::json json = nlohmann::json::parse(end.text, nullptr, false);
  EXPECT_TRUE(json.is_object()) << end.text;
  return json;
}

// --- bench net ---

constexpr const char* kShort = "--time 100ms --warm-up 20ms --json";

TEST(BenchNet, OfItselfInEachDirection) {
  for (const std::string rings :
       {"", " --packed --in-order --no-mergeable", " --wait sleep --no-indirect --no-event-index"}) {
    for (const std::string direction : {"tx", "rx", "echo"}) {
      const CommandEnd end = run_command(fmt::format("bench net --self --direction {}{} {}", direction, rings, kShort));
      ASSERT_EQ(end.status, 0) << direction << rings << ": " << end.text;
      const nlohmann::json json = json_of(end);
      EXPECT_EQ(json.at("workload").at("direction"), direction);
      const nlohmann::json& row = json.at("rows").at(0);
      EXPECT_GT(row.at(direction == "tx" ? "sent" : "received").get<std::uint64_t>(), 0U) << end.text;
      EXPECT_EQ(row.at("faults"), 0);
      EXPECT_GT(row.at("cpu").at("backend_seconds").get<double>(), 0) << end.text;
      if (direction == "echo") {
        EXPECT_EQ(row.at("numbered").at("lost"), 0) << end.text;
        EXPECT_EQ(row.at("numbered").at("reordered"), 0) << end.text;
        EXPECT_GT(row.at("latency_ns").at("p99.9").get<std::int64_t>(), 0);
      } else {
        EXPECT_FALSE(row.contains("numbered")) << end.text;  // nobody knows
      }
    }
  }
}

TEST(BenchNet, APortSaysWhichDirectionIsMeant) {
  for (const auto& [port, direction] :
       {std::pair{"null", "tx"}, {"loop", "echo"}, {"source", "rx"}, {"source=1000", "rx"}}) {
    const CommandEnd end = run_command(fmt::format("bench net --self --port {} {}", port, kShort));
    ASSERT_EQ(end.status, 0) << end.text;
    EXPECT_EQ(json_of(end).at("workload").at("direction"), direction) << port;
  }
}

TEST(BenchNet, ARowForEachSizeAndEveryPair) {
  const CommandEnd end =
      run_command(fmt::format("bench net --self --direction rx --size 64,1514,9000 --pairs 2 --threads 1 {}", kShort));
  ASSERT_EQ(end.status, 0) << end.text;
  const nlohmann::json json = json_of(end);
  ASSERT_EQ(json.at("rows").size(), 3U);
  EXPECT_EQ(json.at("rows").at(1).at("frame_bytes"), 1514);  // what came
  const CommandEnd table =
      run_command("bench net --self --port loop --size 64,512 --pairs 2 --time 50ms --warm-up 0s --depth 8 --burst 8");
  EXPECT_EQ(table.status, 0);
  EXPECT_THAT(table.text,
              HasSubstr("echo, 8 in flight in bursts of 8 on 2 queue pair(s), 2 driver thread(s) polling; split"));
  EXPECT_THAT(table.text, HasSubstr("\n    512 "));
}

TEST(BenchNet, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"bench net", "ringway: bench net: give either --socket <path> of a back-end, or --self\n"},
      {"bench net --self --size 64,59",
       "ringway: --size: '59' is not allowed; give bytes of a frame from 60 to 65549, one or several such as 64,512,1514\n"},
      {"bench net --self --size 64,", "ringway: --size: '' is not allowed; "},
      {"bench net --socket s --direction rx --size 64",
       "ringway: --size: in rx it is the back-end that chooses the length of its frames; leave it out\n"},
      {"bench net --self --direction both", "ringway: --direction: 'both' is not allowed; give tx, rx or echo\n"},
      {"bench net --self --burst 200", "ringway: a burst of 200 is more than the 128 frames in flight; "},
      {"bench net --self --port tpa=tap0", "ringway: --port: unknown key 'tpa' of a network card (did you mean 'tap'?)"},
      {"bench net --self --port source --size 10000", "ringway: --port: source: "},
      {"bench net --port null --socket s", "ringway: --port requires --self\n"}};
  for (const auto& [line, message] : cases) {
    const CommandEnd end = run_command(line, true);
    EXPECT_EQ(end.status, 2) << line;
    EXPECT_THAT(end.text, testing::StartsWith(message)) << line;
  }
  const CommandEnd silent = run_command("bench net --self --port null --direction echo --time 300ms --warm-up 0s", true);
  EXPECT_EQ(silent.status, 1);
  EXPECT_THAT(silent.text, HasSubstr("ringway: none of the frames came back"));
}

TEST(BenchNet, HelpTeaches) {
  const CommandEnd help = run_command("bench net --help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.text, HasSubstr("ringway bench net --self --port loop --depth 1 --burst 1"));
  EXPECT_THAT(help.text, HasSubstr("--direction"));
}

// --- check net: our own conformance, by the check that judges others ---

class CheckNet : public ::testing::Test {
 protected:
  // What the check says of a card that is served as `net` says.
  nlohmann::json check(NetOptions net, const std::string& more, int expected_status) {
    net.socket = directory_.file("n.sock");
    net.in_order = true;
    const TestHost host({}, {}, {net});
    if (!host.started()) {
      ADD_FAILURE() << host.started().error().message;
      return {};
    }
    const CommandEnd end = run_command(fmt::format("check net --socket {} --json {}", net.socket, more));
    EXPECT_EQ(end.status, expected_status) << end.text;
    return json_of(end);
  }
  static std::vector<std::string> rules(const nlohmann::json& report, const char* outcome) {
    std::vector<std::string> names;
    for (const nlohmann::json& rule : report.at("rules")) {
      if (rule.at("outcome") == outcome) {
        names.push_back(rule.at("rule"));
      }
    }
    return names;
  }

  TestDirectory directory_;
};

TEST_F(CheckNet, FindsNoFaultInALoop) {
  NetOptions net;
  net.loop = true;
  net.queues = 3;
  net.mtu = 9000;
  const nlohmann::json report = check(net, "", 0);
  EXPECT_THAT(rules(report, "FAIL"), testing::IsEmpty());
  EXPECT_THAT(rules(report, "SKIP"), testing::ElementsAre("split: RSS", "split: RSS places frames", "split: coalescing",
                                                          "packed: RSS", "packed: RSS places frames", "packed: coalescing"));
  EXPECT_GT(report.at("passed").get<int>(), 100);
}

TEST_F(CheckNet, FindsNoFaultInALoopOfOnePairWithoutControlQueue) {
  NetOptions net;
  net.loop = true;
  net.control = false;
  net.offloads = false;
  net.mergeable = false;
  const nlohmann::json report = check(net, "", 0);
  EXPECT_THAT(rules(report, "FAIL"), testing::IsEmpty());
  EXPECT_THAT(rules(report, "SKIP"), testing::Contains("split: mergeable receive buffers"));
}

TEST_F(CheckNet, FindsNoFaultInANullPort) {
  NetOptions net;
  net.null = true;
  const nlohmann::json report = check(net, "", 0);
  EXPECT_THAT(rules(report, "FAIL"), testing::IsEmpty());
  EXPECT_THAT(rules(report, "SKIP"), testing::Contains("split: plain receive buffers"));
  EXPECT_THAT(rules(report, "PASS"), testing::Contains("split: any framing of what is sent"));
}

TEST_F(CheckNet, FindsNoFaultInASource) {
  NetOptions net;
  net.source_bytes = 300;
  const nlohmann::json report = check(net, "", 0);
  EXPECT_THAT(rules(report, "FAIL"), testing::IsEmpty());
  EXPECT_THAT(rules(report, "PASS"), testing::Contains("packed: receive buffers that come late"));
}

// Told that a null port returns frames, it has to find that it doesn't.
TEST_F(CheckNet, FindsThatFramesDoNotComeBack) {
  NetOptions net;
  net.null = true;
  const nlohmann::json report = check(net, "--port loop --answer-limit 200ms --only 'split: plain receive buffers'", 1);
  EXPECT_EQ(report.at("failed"), 1);
}

// A socket of the other kind: its features tell, and nothing is tried on it.
TEST_F(CheckNet, ADiskIsNoNetworkCardAndTheOtherWayRound) {
  DiskOptions disk;
  disk.path = "ram:4M";
  disk.socket = directory_.file("d.sock");
  NetOptions net;
  net.null = true;
  net.control = false;
  net.offloads = false;
  net.mergeable = false;
  net.socket = directory_.file("n.sock");
  const TestHost host({}, {disk}, {net});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  for (const char* command : {"check net", "bench net --time 100ms"}) {
    const CommandEnd end = run_command(fmt::format("{} --socket {}", command, disk.socket), true);
    EXPECT_NE(end.status, 0) << command;
    EXPECT_THAT(end.text, HasSubstr("the back-end is a disk")) << command;
  }
  for (const char* command : {"check blk", "bench blk --time 100ms"}) {
    const CommandEnd end = run_command(fmt::format("{} --socket {}", command, net.socket), true);
    EXPECT_NE(end.status, 0) << command;
    EXPECT_THAT(end.text, HasSubstr("the back-end is a network card")) << command;
  }
}

TEST_F(CheckNet, ListsItsRulesAndTeaches) {
  EXPECT_THAT(run_command("check net --list").text, HasSubstr("mergeable receive buffers [virtio 5.1.6.4.1]\n"));
  EXPECT_THAT(run_command("check blk --list").text, HasSubstr("GET_ID is stable and 20 bytes [virtio 5.2.6]\n"));
  EXPECT_THAT(run_command("check net --help").text, HasSubstr("ringway check net --list"));
  const CommandEnd neither = run_command("check net", true);
  EXPECT_EQ(neither.status, 2);
  EXPECT_EQ(neither.text, "ringway: check net: give either --socket <path> of a back-end, or --list\n");
  const CommandEnd port = run_command("check net --socket s --port null", true);
  EXPECT_EQ(port.status, 2);
  EXPECT_THAT(port.text, HasSubstr("--port: 'null' is not allowed; give auto, loop, source or silent"));
}

}  // namespace
}  // namespace ringway
