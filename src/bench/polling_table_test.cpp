#include "bench/polling_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ringway {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;
using testing::Optional;
using testing::StartsWith;

PollingLine line_with(const char* name, double iops, double per_cpu_second = 0) {
  PollingLine line{.row = *parse_polling_row(name)};
  line.median.iops = iops;
  line.per_cpu_second = per_cpu_second;
  return line;
}

TEST(PollingRows, AreThoseOfThePublishedSeriesAndThePolicies) {
  const std::vector<PollingRow> rows = polling_rows(false);
  ASSERT_EQ(rows.size(), 2U + 18U + 4U);
  EXPECT_EQ(rows[0], (PollingRow{.name = "unset", .policy = "never"}));
  EXPECT_EQ(rows[1], (PollingRow{.name = "0", .policy = "never", .window_ns = 0}));
  EXPECT_EQ(rows[2], (PollingRow{.name = "1", .policy = "fixed=1ns", .window_ns = 1}));
  EXPECT_EQ(rows[19].name, "131072");
  EXPECT_EQ(rows.back().name, "adaptive");
}

TEST(PollingRows, AreFoundByTheirNames) {
  for (const bool quick : {false, true}) {
    for (const PollingRow& row : polling_rows(quick)) {
      EXPECT_EQ(*parse_polling_row(row.name), row) << row.name;
    }
  }
}

TEST(PollingRows, RefuseWhatIsNoWindowAndNoPolicy) {
  for (const char* name : {"", "1us", "-1", "1000000001", "99999999999999999999", "Never", "fixed"}) {
    const Result<PollingRow> row = parse_polling_row(name);
    ASSERT_FALSE(row) << name;
    EXPECT_THAT(row.error().message, StartsWith(std::string("'") + name + "' is not allowed; give unset, a window"));
  }
  EXPECT_TRUE(parse_polling_row("1000000000"));
}

TEST(PollingLine, IsTheMedianOfEachFigureAndTheSpread) {
  const std::vector<PollingCell> rounds = {
      {.iops = 300, .p50_us = 1, .p99_us = 9, .worker_user = 0.5, .worker_system = 0.1, .driver = 0.4},
      {.iops = 100, .p50_us = 3, .p99_us = 7, .worker_user = 0.2, .worker_system = 0.3, .driver = 0.5},
      {.iops = 200, .p50_us = 2, .p99_us = 8, .worker_user = 0.3, .worker_system = 0.2, .driver = 0.3}};
  const PollingLine line = polling_line(*parse_polling_row("4096"), rounds);
  EXPECT_EQ(line.row.name, "4096");
  EXPECT_EQ(line.median.iops, 200);
  EXPECT_EQ(line.median.p50_us, 2);
  EXPECT_EQ(line.median.p99_us, 8);
  EXPECT_EQ(line.median.worker_user, 0.3);
  EXPECT_EQ(line.median.worker_system, 0.2);
  EXPECT_EQ(line.median.driver, 0.4);
  EXPECT_EQ(line.iops_least, 100);
  EXPECT_EQ(line.iops_most, 300);
  EXPECT_DOUBLE_EQ(line.per_worker_second, 400);  // of 500, 200 and 400
  EXPECT_DOUBLE_EQ(line.per_cpu_second, 250);     // of 300, 100 and 250
}

TEST(PollingLine, OfAnEvenNumberOfRoundsIsTheMeanOfTheMiddle) {
  const std::vector<PollingCell> rounds = {{.iops = 100}, {.iops = 400}, {.iops = 200}, {.iops = 220}};
  const PollingLine line = polling_line(*parse_polling_row("always"), rounds);
  EXPECT_EQ(line.median.iops, 210);
  EXPECT_EQ(line.per_worker_second, 0) << "no processor time, no rate per second of it";
}

TEST(PollingVerdict, HoldsAdaptiveAgainstAlwaysAndNever) {
  const PollingSeries series{
      .store = "ram", .lines = {line_with("never", 100, 50), line_with("always", 200, 40), line_with("adaptive", 190, 45)}};
  const PollingVerdict verdict = polling_verdict(series);
  EXPECT_THAT(verdict.adaptive_of_always, Optional(DoubleNear(0.95, 1e-9)));
  EXPECT_THAT(verdict.adaptive_of_never, Optional(DoubleNear(1.9, 1e-9)));
  EXPECT_THAT(verdict.adaptive_per_cpu_of_never, Optional(DoubleNear(0.9, 1e-9)));
  EXPECT_EQ(verdict.worst_of_best, std::nullopt);
}

TEST(PollingVerdict, FindsTheHoleBehindTheNeededWindow) {
  // In another order than by window: it is the window that counts.
  const PollingSeries series{.store = "ram",
                             .lines = {line_with("32768", 205), line_with("0", 100), line_with("4096", 110),
                                       line_with("8192", 470), line_with("16384", 465)}};
  const PollingVerdict verdict = polling_verdict(series);
  EXPECT_EQ(verdict.needed_window, "8192");
  EXPECT_EQ(verdict.worst_window, "32768");
  EXPECT_THAT(verdict.worst_of_best, Optional(DoubleNear(205.0 / 470, 1e-9)));
  EXPECT_EQ(verdict.adaptive_of_always, std::nullopt);
}

TEST(PollingVerdict, ShorterWindowsThanTheNeededOneAreNoHoles) {
  const PollingSeries series{.store = "ram", .lines = {line_with("0", 100), line_with("1", 90), line_with("8192", 470)}};
  const PollingVerdict verdict = polling_verdict(series);
  EXPECT_EQ(verdict.needed_window, "8192");
  EXPECT_THAT(verdict.worst_of_best, Optional(1.0));
}

TEST(PollingVerdict, SaysNothingOfRowsThatMeasuredNothing) {
  const PollingSeries series{.store = "ram", .lines = {line_with("0", 0), line_with("1", 0), line_with("adaptive", 5)}};
  const PollingVerdict verdict = polling_verdict(series);
  EXPECT_EQ(verdict.worst_of_best, std::nullopt);
  EXPECT_EQ(verdict.adaptive_of_never, std::nullopt);
}

TEST(PollingTable, HasTheSameFiguresInEachForm) {
  const std::vector<PollingCell> rounds = {
      {.iops = 12345, .p50_us = 80.5, .p99_us = 91.25, .worker_user = 0.125, .worker_system = 0.25, .driver = 0.125}};
  const std::vector<PollingSeries> table = {
      {.store = "delay=10",
       .lines = {polling_line(*parse_polling_row("unset"), rounds), polling_line(*parse_polling_row("4096"), rounds)}}};
  const std::string csv = polling_csv(table);
  EXPECT_THAT(csv, StartsWith("series,poll_max_ns,iops,"));
  EXPECT_THAT(csv, HasSubstr("\ndelay=10,unset,12345,12345,12345,80.50,91.25,12.50,25.00,12.50,32920,24690\n"));
  const std::string text = polling_text(table);
  EXPECT_THAT(text, StartsWith("store delay=10: "));
  EXPECT_THAT(text, HasSubstr(" 12345 "));
  const nlohmann::json json = polling_json(table);
  const nlohmann::json& row = json.at("stores").at(0).at("rows").at(1);
  EXPECT_EQ(row.at("poll"), "4096");
  EXPECT_EQ(row.at("policy"), "fixed=4096ns");
  EXPECT_EQ(row.at("worker_sys_pct"), 25.0);
  EXPECT_EQ(row.at("iops_per_cpu_second"), 24690.0);
}

}  // namespace
}  // namespace ringway
