// `ringway ctl` as an operator types it, in a shell, against a daemon in this process.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/test_shell.hpp"
#include "control/api.hpp"
#include "control/test_host.hpp"

namespace ringway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Ctl : public ::testing::Test {
 protected:
  Ctl() { options_.api_socket = directory_.file("api.sock"); }
  void start(std::vector<DiskOptions> disks = {}, std::vector<NetOptions> nets = {}) {
    host_ = std::make_unique<TestHost>(options_, std::move(disks), std::move(nets));
    ASSERT_TRUE(host_->started()) << host_->started().error().message;
  }
  // `line` is the shell's; the exit status, and stdout and stderr together.
  static std::pair<int, std::string> run(const std::string& line) {
    return run_in_shell(fmt::format("{} {} 2>&1", RINGWAY_PROGRAM, line));
  }
  std::pair<int, std::string> ctl(const std::string& line) const {
    return run(fmt::format("ctl --api {} {}", options_.api_socket, line));
  }

  TestDirectory directory_;
  HostOptions options_;
  std::unique_ptr<TestHost> host_;
};

TEST_F(Ctl, WhatIsEmptyIsNotLeftOut) {
  start({test_disk("null:1M", directory_.file("a.sock"), "a")});
  for (const auto& [line, what, command] :
       std::vector<std::tuple<std::string, std::string, std::string>>{{"remove ''", "name", " remove"},
                                                                      {"resize ''", "name", " resize"},
                                                                      {"resize a ''", "size", " resize"},
                                                                      {"link '' up", "name", " link"},
                                                                      {"stats ''", "name", " stats"}}) {
    EXPECT_EQ(ctl(line),
              std::make_pair(2, fmt::format("ringway: {}: it is empty\nTry `ringway ctl{} --help`.\n", what, command)))
        << line;
  }
  EXPECT_EQ(run("ctl --api '' list"),
            std::make_pair(2, std::string("ringway: --api: it is empty\nTry `ringway ctl list --help`.\n")));
  EXPECT_EQ(run("ctl --api= list"), std::make_pair(2, std::string("ringway: --api: it is empty\n")));
}

TEST_F(Ctl, WhatOtherProgramsCallACommand) {
  for (const auto& [typed, meant] : {std::pair{"rm data", "remove"},
                                     {"del data", "remove"},
                                     {"delete data", "remove"},
                                     {"ls", "list"},
                                     {"create path=a,socket=b", "add"},
                                     {"stop", "quit"}}) {
    const auto [status, text] = ctl(typed);
    const std::string word = std::string(typed).substr(0, std::string_view(typed).find(' '));
    EXPECT_EQ(status, 2);
    EXPECT_THAT(text,
                StartsWith(fmt::format("ringway: unknown command '{}' (did you mean '{}'?); there are ", word, meant)));
  }
  // Only ctl has them.
  EXPECT_THAT(run("rm").second, Not(HasSubstr("did you mean")));
  EXPECT_THAT(ctl("bananas").second, Not(HasSubstr("did you mean")));
}

TEST_F(Ctl, TimeOutsAreOfAtLeastAMillisecond) {
  for (const char* timeout : {"0s", "999us", "0ms"}) {
    EXPECT_EQ(ctl(fmt::format("list --timeout {}", timeout)),
              std::make_pair(2, fmt::format("ringway: --timeout: '{}' is not allowed; give at least 1ms\n", timeout)));
  }
  EXPECT_EQ(ctl("list --timeout 1ms").first, 1);  // nobody is there
}

TEST_F(Ctl, StatsOfOneDevice) {
  start({test_disk("null:1M", directory_.file("a.sock"), "a"), test_disk("null:1M", directory_.file("b.sock"), "b")},
        {test_net(directory_.file("n.sock"), "n")});
  EXPECT_THAT(ctl("stats").second, StartsWith("disk 'a'\n"));
  const auto [status, disk] = ctl("stats b");
  EXPECT_EQ(status, 0);
  EXPECT_THAT(disk, StartsWith("disk 'b'\n"));
  EXPECT_THAT(disk, Not(HasSubstr("net 'n'")));
  EXPECT_THAT(ctl("stats n").second, StartsWith("net 'n'\n"));
  EXPECT_EQ(ctl("stats z"), std::make_pair(1, std::string("ringway: there is no device 'z'; there are: a, b, n\n")));
  const nlohmann::json json = nlohmann::json::parse(ctl("--json stats b").second, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["name"], "b");
}

TEST_F(Ctl, ABusyDaemonSaysSo) {
  start();
  std::vector<UniqueFd> idle;
  for (unsigned i = 0; i < kApiConnectionsMax; ++i) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, options_.api_socket.data(), options_.api_socket.size());
    idle.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(idle.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_EQ(ctl("list"),
            std::make_pair(
                1, std::string("ringway: the daemon is busy: it serves 32 connections to its API at once; try again\n")));
}

TEST_F(Ctl, HelpTellsTheExitStatuses) {
  EXPECT_THAT(run("ctl --help").second, HasSubstr("Exit status: 0 "));
}

TEST_F(Ctl, PollIsChangedWhileWorkersRun) {
  start({test_disk("null:1M", directory_.file("a.sock"), "a")});
  EXPECT_EQ(ctl("poll fixed=20us"), std::make_pair(0, std::string("workers poll fixed=20us\n")));
  EXPECT_THAT(ctl("workers").second, HasSubstr("  fixed=20us  "));
  const auto [status, text] = ctl("poll sometimes");
  EXPECT_EQ(status, 1);
  EXPECT_THAT(text, StartsWith("ringway: poll: poll policy \"sometimes\""));
  EXPECT_EQ(ctl("poll ''").first, 2);
}

// A daemon's requests, followed by another process.
class Trace : public Ctl {
 protected:
  std::pair<int, std::string> trace(const std::string& line) const {
    return run(fmt::format("trace --api {} {}", options_.api_socket, line));
  }
};

TEST_F(Trace, ShowsWhereTheTimeOfRequestsGoes) {
  const std::string socket = directory_.file("a.sock");
  start({test_disk("ram:1M", socket, "vm1")});
  const std::string timeline = directory_.file("t.json");
  const std::string load = fmt::format("{} bench blk --socket {} --depth 4 --warm-up 0s --time 2s", RINGWAY_PROGRAM, socket);
  const std::string follow =
      fmt::format("{} trace --api {} --time 500ms --every 7 --timeline {}", RINGWAY_PROGRAM, options_.api_socket, timeline);
  const std::string text = run_in_shell(fmt::format("{} > /dev/null 2>&1 & sleep 0.5; {} 2>&1; wait", load, follow)).second;
  EXPECT_THAT(text, StartsWith("read 'vm1'\n  interval "));
  for (const char* interval : {"\n  parsing ", "\n  submitting ", "\n  serving ", "\n  publishing ", "\n  whole "}) {
    EXPECT_THAT(text, HasSubstr(interval));
  }
  EXPECT_THAT(text, HasSubstr("opens in https://ui.perfetto.dev"));
  const nlohmann::json events = nlohmann::json::parse(std::ifstream(timeline), nullptr, false);
  ASSERT_TRUE(events.is_object());
  EXPECT_GT(events["traceEvents"].size(), 10U);
  // Afterwards as many are followed as before, and the histograms know of them.
  const TraceStatus status = host_->call([](Host& h) { return h.trace_status(); });
  EXPECT_EQ(status.every, StageRecorder::kEveryDefault);
  EXPECT_FALSE(status.records);
  EXPECT_THAT(trace("--so-far").second, StartsWith("read of all devices\n"));
}

TEST_F(Trace, SaysWhatIsWrong) {
  start({test_disk("null:1M", directory_.file("a.sock"), "vm1")});
  EXPECT_EQ(trace("--time 50ms"), std::make_pair(0, std::string("no request was followed within 50ms\n")));
  EXPECT_EQ(trace("--so-far"), std::make_pair(0, std::string("nothing was followed yet\n")));
  EXPECT_EQ(trace("--time soon").first, 2);
  EXPECT_EQ(trace("--every 0").first, 2);
  EXPECT_EQ(trace("--time 10s --device vm2"),
            std::make_pair(1, std::string("ringway: there is no device 'vm2'; there are: vm1\n")));
  EXPECT_EQ(trace("--time 10s --timeline /nowhere/t.json"),
            std::make_pair(1, std::string("ringway: can't write '/nowhere/t.json': No such file or directory\n")));
  const auto [status, text] = run("trace --api /nowhere.sock");
  EXPECT_EQ(status, 1);
  // A recording of earlier survives a mistyped path.
  const std::string timeline = directory_.file("kept.json");
  std::ofstream(timeline) << "kept";
  EXPECT_EQ(run("trace --api /nowhere.sock --timeline " + timeline).first, 1);
  std::string kept;
  std::ifstream(timeline) >> kept;
  EXPECT_EQ(kept, "kept");
  for (const char* const following : {"--device vm1", "--slower-than 1ms", "--time 1s", "--timeline t.json", "--every 2"}) {
    EXPECT_EQ(trace(std::string("--so-far ") + following).first, 2) << following;
  }
  EXPECT_THAT(text, StartsWith("ringway: no ringway answers at '/nowhere.sock'"));
  // One client at a time.
  host_->call([](Host& h) {
    h.set_trace(1, true);
    return 0;
  });
  EXPECT_EQ(trace("--time 10ms").first, 1);
}

}  // namespace
}  // namespace ringway
