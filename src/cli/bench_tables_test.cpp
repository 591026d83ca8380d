// `ringway bench polling` and `ringway bench dataplane`, as a user runs them, for moments.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/test_shell.hpp"
#include "control/test_host.hpp"

namespace ringway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The exit status, and stdout (with `errors` stderr too). The words of `line` contain nothing that a shell takes for its
// own.
std::pair<int, std::string> run_table_bench(const std::string& line, bool errors = false) {
  return run_in_shell(fmt::format("{} bench {} {}", RINGWAY_PROGRAM, line, errors ? "2>&1" : ""));
}

nlohmann::json table_of(const std::string& line) {
  const auto [status, text] = run_table_bench(line + " --json");
  EXPECT_EQ(status, 0) << text;
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  EXPECT_TRUE(json.is_object()) << text;
  return json;
}

constexpr const char* kMoment = "--rounds 1 --time 10ms --warm-up 1ms";

TEST(BenchPolling, QuickMeasuresItsWindowsAndEachPolicy) {
  const nlohmann::json json = table_of(fmt::format("polling --quick --store ram {}", kMoment));
  const nlohmann::json& store = json.at("stores").at(0);
  EXPECT_EQ(store.at("store"), "ram");
  std::vector<std::string> names;
  for (const nlohmann::json& row : store.at("rows")) {
    names.push_back(row.at("poll"));
    EXPECT_GT(row.at("iops"), 0.0) << names.back();
    EXPECT_GT(row.at("p99_us"), 0.0) << names.back();
  }
  EXPECT_THAT(names, ::testing::ElementsAre("0", "1", "64", "1024", "4096", "8192", "16384", "32768", "131072", "never",
                                            "always", "grow_shrink", "adaptive"));
  EXPECT_GT(store.at("verdict").at("adaptive_iops_of_always"), 0.0);
}

TEST(BenchPolling, ADelayIsTheLeastThatARequestTakes) {
  const nlohmann::json json = table_of(fmt::format("polling --store ram,delay=300 --rows always {}", kMoment));
  EXPECT_EQ(json.at("stores").at(1).at("store"), "delay=300");
  EXPECT_GE(json.at("stores").at(1).at("rows").at(0).at("p50_us"), 300.0);
}

TEST(BenchPolling, OfAFileInRowsOfCsv) {
  const TestDirectory directory;
  const std::string image = directory.file("disk.img");
  std::ofstream(image) << std::string(1U << 20U, 'x');
  const auto [status, text] =
      run_table_bench(fmt::format("polling --store file={} --rows unset,4096 {} --csv", image, kMoment));
  EXPECT_EQ(status, 0);
  EXPECT_THAT(text, StartsWith("series,poll_max_ns,iops,"));
  EXPECT_THAT(text, HasSubstr(fmt::format("\nfile={},unset,", image)));
  EXPECT_THAT(text, HasSubstr(fmt::format("\nfile={},4096,", image)));
  EXPECT_EQ(std::ranges::count(text, '\n'), 3);
}

TEST(BenchPolling, RefusesWhatItCantMeasure) {
  for (const auto& [options, says] : {std::pair{"--store disk.img", "--store: 'disk.img' is not allowed; give ram, file="},
                                      {"--store ram,", "--store: '' is not allowed"},
                                      {"--store delay=0", "--store: delay: '0' is not allowed"},
                                      {"--store delay=1ms", "--store: delay: '1ms' is not allowed"},
                                      {"--rows 5us", "--rows: '5us' is not allowed; give unset, a window"},
                                      {"--time 1ms", "--time: '1ms' is not allowed; give at least 10ms"},
                                      {"--rounds 0", "--rounds: '0' is not allowed"}}) {
    const auto [status, text] = run_table_bench(fmt::format("polling {}", options), true);
    EXPECT_EQ(status, 2) << options;
    EXPECT_THAT(text, HasSubstr(says)) << options;
  }
  const auto [status, text] = run_table_bench("polling --store file=/nowhere.img --rows never", true);
  EXPECT_EQ(status, 1);
  EXPECT_THAT(text, HasSubstr("store file=/nowhere.img, never: "));
}

TEST(BenchDataplane, EachPlacementServesEachWorkload) {
  const nlohmann::json json = table_of(fmt::format("dataplane --disks 4 --disk-size 256K --jobs 1,4 {}", kMoment));
  EXPECT_EQ(json.at("baseline"), "per-disk");
  EXPECT_EQ(json.at("rows").size(), 4U * 2U * 3U);
  EXPECT_EQ(json.at("changes").size(), 4U * 2U * 2U);
  for (const nlohmann::json& row : json.at("rows")) {
    EXPECT_GT(row.at("megabytes_per_second"), 0.0) << row;
    EXPECT_GE(row.at("backend_us_per_megabyte"), 0.0) << row;
  }
  EXPECT_EQ(json.at("rows").back().at("pattern"), "random-write");
  EXPECT_EQ(json.at("rows").back().at("jobs"), 4);
  EXPECT_EQ(json.at("rows").back().at("workers"), "per-cpu");
}

TEST(BenchDataplane, LeavesNoFilesBehind) {
  const TestDirectory directory;
  const auto [status, text] = run_table_bench(
      fmt::format("dataplane --disks 2 --disk-size 128K --jobs 2 --dir {} {} --csv", directory.file(""), kMoment));
  EXPECT_EQ(status, 0);
  EXPECT_THAT(text, StartsWith("workers,pattern,jobs,throughput_pct,cpu_pct,"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 1 + 4 * 2);
  EXPECT_TRUE(std::filesystem::is_empty(directory.file("")));
}

TEST(BenchDataplane, RefusesWhatItCantMeasure) {
  for (const auto& [options, says] :
       {std::pair{"--jobs 129", "--jobs: '129' is not allowed; give whole numbers from 1 to 128"},
        {"--jobs 4,2", "--jobs: 2 doesn't follow 4"},
        {"--disks 257", "--disks: '257' is not allowed"},
        {"--disk-size 64K", "--disk-size: '64K' is not allowed; give at least 128K"},
        {"--disk-size 129K", "--disk-size: '129K' is not allowed"},
        {"--poll sometimes", "--poll: "},
        {"--dir /nowhere", "--dir: "}}) {
    const auto [status, text] = run_table_bench(fmt::format("dataplane {}", options), true);
    EXPECT_EQ(status, 2) << options;
    EXPECT_THAT(text, HasSubstr(says)) << options;
  }
}

}  // namespace
}  // namespace ringway
