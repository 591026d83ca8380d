#include "bench/dataplane_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ringway {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

DataplaneEntry entry_of(const char* placement, std::string_view pattern, std::uint32_t jobs, const DataplaneCell& cell) {
  return dataplane_entry(placement, pattern, jobs, std::vector{cell});
}

DataplaneTable a_table() {
  return {
      .title = "2 disks",
      .baseline = "per-disk",
      .entries = {entry_of("per-disk", "random-read", 1, {100, 50, 30}), entry_of("one", "random-read", 1, {110, 40, 32}),
                  entry_of("per-disk", "random-read", 2, {200, 50, 30}), entry_of("one", "random-read", 2, {150, 55, 30})}};
}

TEST(DataplaneEntry, IsTheMedianOfEachFigureAndTheSpread) {
  const DataplaneEntry entry =
      dataplane_entry("one", "random-read", 4, std::vector<DataplaneCell>{{3, 10, 7}, {1, 30, 8}, {2, 20, 9}});
  EXPECT_EQ(entry.placement, "one");
  EXPECT_EQ(entry.jobs, 4U);
  EXPECT_EQ(entry.median.megabytes_per_second, 2);
  EXPECT_EQ(entry.median.backend_us_per_megabyte, 20);
  EXPECT_EQ(entry.median.driver_us_per_megabyte, 8);
  EXPECT_EQ(entry.rate_least, 1);
  EXPECT_EQ(entry.rate_most, 3);
  EXPECT_EQ(dataplane_entry("one", "x", 1, std::vector<DataplaneCell>{{1, 0, 0}, {4, 0, 0}}).median.megabytes_per_second,
            2.5);
}

TEST(DataplaneChanges, AreAgainstTheBaselineOfTheSameJobs) {
  const std::vector<DataplaneChange> changes = dataplane_changes(a_table());
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].jobs, 1U);
  EXPECT_NEAR(changes[0].throughput_pct, 10, 1e-9);
  EXPECT_NEAR(changes[0].cpu_pct, -20, 1e-9);
  EXPECT_NEAR(changes[0].total_cpu_pct, -10, 1e-9);
  EXPECT_EQ(changes[1].jobs, 2U);
  EXPECT_NEAR(changes[1].throughput_pct, -25, 1e-9);
  EXPECT_NEAR(changes[1].cpu_pct, 10, 1e-9);
}

TEST(DataplaneChanges, LeaveOutWhatHasNoBaseline) {
  DataplaneTable table = a_table();
  table.entries.push_back(entry_of("one", "random-write", 1, {1, 1, 1}));
  EXPECT_EQ(dataplane_changes(table).size(), 2U);
  // A baseline that moved nothing is nothing to compare with.
  table.entries.push_back(entry_of("per-disk", "random-write", 1, {0, 0, 0}));
  EXPECT_EQ(dataplane_changes(table).back().throughput_pct, 0);
}

TEST(DataplaneTable, HasTheSameFiguresInEachForm) {
  const DataplaneTable table = a_table();
  const std::string csv = dataplane_csv(table);
  EXPECT_THAT(csv, StartsWith("workers,pattern,jobs,throughput_pct,cpu_pct,"));
  EXPECT_THAT(csv, HasSubstr("\none,random-read,1,10.0,-20.00,-10.00,110.0,40.0,32.0,100.0,50.0,30.0\n"));
  EXPECT_THAT(csv, Not(HasSubstr("\nper-disk,")));
  const std::string text = dataplane_text(table);
  EXPECT_THAT(text, StartsWith("2 disks\n"));
  EXPECT_THAT(text, HasSubstr("+10.0%"));
  const nlohmann::json json = dataplane_json(table);
  EXPECT_EQ(json.at("rows").size(), 4U);
  EXPECT_EQ(json.at("rows").at(0).at("workers"), "per-disk");
  EXPECT_EQ(json.at("changes").at(1).at("jobs"), 2);
}

}  // namespace
}  // namespace ringway
