// `ringway sim poll`, as a user runs it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/test_shell.hpp"
#include "control/test_host.hpp"

namespace ringway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The exit status, and stdout and stderr together.
std::pair<int, std::string> run_sim(const std::string& line) {
  return run_in_shell(fmt::format("{} sim {} 2>&1", RINGWAY_PROGRAM, line));
}

class SimPoll : public ::testing::Test {
 protected:
  std::string trace(const std::string& text) {
    const std::string path = directory_.file("gaps.csv");
    std::ofstream(path) << text;
    return path;
  }
  // 300 requests, 40 us apart, of a store that takes 10 us.
  std::string regular_trace() {
    std::string text = "time_ns,source,kind\n";
    for (int i = 0; i < 300; ++i) {
      text += fmt::format("{},vda.0,request\n{},vda.0,completion\n", 1'000 + i * 40'000, 11'000 + i * 40'000);
    }
    return trace(text);
  }

  TestDirectory directory_;
};

TEST_F(SimPoll, TableHasARowForEachPolicy) {
  const auto [status, text] = run_sim("poll --trace " + regular_trace());
  EXPECT_EQ(status, 0);
  EXPECT_THAT(text, StartsWith("policy "));
  for (const char* policy : {"\nnever ", "\nalways ", "\nfixed=", "\ngrow_shrink=", "\nadaptive="}) {
    EXPECT_THAT(text, HasSubstr(policy));
  }
  EXPECT_EQ(std::ranges::count(text, '\n'), 6);
}

TEST_F(SimPoll, JsonSaysLatencyAndProcessorTime) {
  const auto [status, text] = run_sim("poll --json --trace " + regular_trace());
  EXPECT_EQ(status, 0);
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(json.is_object()) << text;
  EXPECT_EQ(json.at("sources"), 1);
  const nlohmann::json& never = json.at("policies").at(0);
  const nlohmann::json& always = json.at("policies").at(1);
  EXPECT_EQ(never.at("policy"), "never");
  EXPECT_EQ(never.at("requests"), 300);
  EXPECT_EQ(always.at("requests"), 300);
  EXPECT_GT(never.at("p50_ns"), always.at("p50_ns"));
  EXPECT_LT(never.at("worker_cpu_pct"), always.at("worker_cpu_pct"));
  EXPECT_EQ(always.at("wakeups"), 0);
}

TEST_F(SimPoll, ErrorsNameFileAndLine) {
  const std::string path = trace("1000,vda.0\nsoon,vda.0\n");
  EXPECT_EQ(run_sim("poll --trace " + path),
            std::make_pair(1, fmt::format("ringway: {}:2: \"soon\" is no time in whole nanoseconds; expected "
                                          "time_ns,source[,kind], e.g. 1000,vda.0,request\n",
                                          path)));
  EXPECT_THAT(run_sim("poll --trace " + trace("")),
              ::testing::Pair(1, StartsWith(fmt::format("ringway: {} holds no event; ", path))));
  EXPECT_EQ(run_sim("poll --trace " + directory_.file("none.csv")),
            std::make_pair(1, fmt::format("ringway: --trace: can't read '{}': No such file or directory\n",
                                          directory_.file("none.csv"))));
  EXPECT_EQ(run_sim("poll --trace " + directory_.file("")),
            std::make_pair(1, fmt::format("ringway: --trace: can't read '{}': Is a directory\n", directory_.file(""))));
}

TEST_F(SimPoll, HelpShowsTheFormatByAnExampleThatWorks) {
  const auto [status, help] = run_sim("poll --help");
  EXPECT_EQ(status, 0);
  const std::size_t begin = help.find("  time_ns,source,kind\n");
  ASSERT_NE(begin, std::string::npos) << help;
  std::string example = help.substr(begin, help.find("\n\n", begin) + 1 - begin);
  std::erase(example, ' ');
  const auto [replayed, text] = run_sim("poll --json --trace " + trace(example));
  EXPECT_EQ(replayed, 0) << text;
  EXPECT_EQ(nlohmann::json::parse(text, nullptr, false).at("policies").at(0).at("requests"), 2);
}

TEST_F(SimPoll, ATraceIsNeeded) {
  const auto [status, text] = run_sim("poll");
  EXPECT_EQ(status, 2);
  EXPECT_THAT(text, HasSubstr("--trace is missing"));
}

}  // namespace
}  // namespace ringway
