// Following the requests of a host: from the ring to the report.
#include "control/tracing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "control/test_host.hpp"
#include "control/trace_report.hpp"
#include "driver/test_driver.hpp"
#include "driver/test_net_driver.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

using ::testing::HasSubstr;

// All that were followed; waits for so many.
std::vector<StageRecord> take(TestHost& host, std::size_t at_least) {
  std::vector<StageRecord> all;
  const Instant deadline = clock_now() + kNetTestLimit;
  while (all.size() < at_least && clock_now() < deadline) {
    const std::vector<StageRecord> some = host.call([](Host& h) { return h.take_trace(1000); });
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// What a driver measures of a request by its own clock holds all of the request's stages, and not much more: the two
// notifications, and that the test runs on a busy machine.
TEST(HostTrace, StagesLieWithinWhatTheDriverMeasures) {
  const TestDirectory directory;
  HostOptions options;
  options.workers.poll = "never";  // a worker that spins sees no kick
  TestHost host(options, {test_disk("ram:1M", directory.file("d.sock"), "vm1")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_driver(directory.file("d.sock"));
  ASSERT_NE(driver, nullptr);
  host.call([](Host& h) {
    h.set_trace(1, true);
    return 0;
  });
  ASSERT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);  // all workers know
  ASSERT_TRUE(eventually([&] {
    static_cast<void>(transfer(driver->queue(0), spec::kBlkTypeIn, 0));
    return !host.call([](Host& h) { return h.take_trace(1000); }).empty();
  }));
  constexpr std::int64_t kClocksDiffer = 20'000;
  int kicked = 0;
  for (int i = 0; i < 20; ++i) {
    const std::uint32_t type = i % 2 == 0 ? spec::kBlkTypeIn : spec::kBlkTypeOut;
    const Instant begin = clock_now();
    ASSERT_EQ(transfer(driver->queue(0), type, 0).status, spec::kBlkStatusOk);
    const Instant end = clock_now();
    // A record ends with the worker's next turn, which the next request begins.
    static_cast<void>(transfer(driver->queue(0), spec::kBlkTypeFlush, 0));
    std::vector<StageRecord> records;
    const auto its_own = [&](const StageRecord& each) {
      return each.kind != TracedKind::other && StageClock::instant(each.at(Stage::published)).ns >= begin.ns;
    };
    ASSERT_TRUE(eventually([&] {
      records = take(host, 1);
      return std::ranges::any_of(records, its_own);
    }));
    const auto found = std::ranges::find_if(records, its_own);
    EXPECT_EQ(found->kind, i % 2 == 0 ? TracedKind::read : TracedKind::write);
    EXPECT_EQ(found->queue, 0);
    EXPECT_FALSE(found->failed);
    const std::array<Instant, kStages> instants = instants_of(*found);
    kicked += found->passed(Stage::kicked) ? 1 : 0;  // unless the worker was awake still
    std::int64_t before = begin.ns - kClocksDiffer;
    for (const Stage stage : {Stage::popped, Stage::parsed, Stage::submitted, Stage::completed, Stage::published}) {
      ASSERT_TRUE(found->passed(stage)) << to_string(stage);
      const std::int64_t at = instants[static_cast<std::size_t>(stage)].ns;
      EXPECT_GE(at, before) << to_string(stage);
      before = at;
    }
    EXPECT_LE(before, end.ns + kClocksDiffer);
  }
  EXPECT_GT(kicked, 0);
  const TraceStatus status = host.call([](Host& h) { return h.trace_status(); });
  EXPECT_EQ(status.every, 1U);
  EXPECT_TRUE(status.records);
  EXPECT_GE(status.times[static_cast<std::size_t>(TracedKind::read)][0].count, 10U);
  EXPECT_GT(status.times[static_cast<std::size_t>(TracedKind::read)][0].mean.ns, 0);
  EXPECT_EQ(host.quit(), HostEnd::clean);
}

TEST(HostTrace, FramesAreFollowedToo) {
  const TestDirectory directory;
  TestHost host({}, {}, {test_net(directory.file("n.sock"), "card")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  NetDriverOptions options;
  options.socket_path = directory.file("n.sock");
  const auto driver = connect_net_driver(options);
  ASSERT_NE(driver, nullptr);
  driver->pair(0).rx.fill();
  host.call([](Host& h) {
    h.set_trace(1, true);
    return 0;
  });
  std::vector<StageRecord> records;
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(echo_once(driver->pair(0), std::vector<std::byte>(200, std::byte{2})));
    const std::vector<StageRecord> some = host.call([](Host& h) { return h.take_trace(1000); });
    records.insert(records.end(), some.begin(), some.end());
    return std::ranges::any_of(records, [](const StageRecord& each) { return each.kind == TracedKind::transmit; });
  }));
  const auto found = std::ranges::find(records, TracedKind::transmit, &StageRecord::kind);
  EXPECT_EQ(found->bytes, 200U);
  for (const Stage stage : {Stage::popped, Stage::parsed, Stage::submitted, Stage::completed, Stage::published}) {
    EXPECT_TRUE(found->passed(stage)) << to_string(stage);
  }
  const auto names = host.call([](Host& h) { return h.device_numbers(); });
  ASSERT_TRUE(names.contains(found->device));
  EXPECT_EQ(names.at(found->device), "card");
}

// A client that was killed leaves nothing running.
TEST(HostTrace, RecordsEndWithoutAClient) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("null:1M", directory.file("d.sock"), "vm1")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const TraceStatus status = host.call([](Host& h) {
    Tracing tracing(h.workers().ports());
    const Instant now = clock_now();
    tracing.set(77, false, now);
    tracing.set(1, true, now);
    static_cast<void>(tracing.take(1, now + Duration::seconds(3)));
    tracing.look(now + Duration::seconds(7));
    EXPECT_TRUE(tracing.status().records);
    tracing.look(now + Duration::seconds(9));
    return tracing.status();
  });
  EXPECT_FALSE(status.records);
  EXPECT_EQ(status.every, 77U);
}

TEST(TraceReport, TellsWhatEachIntervalTook) {
  TracedSpan read{.device = "vm1",
                  .queue = 1,
                  .worker = 0,
                  .kind = "read",
                  .failed = false,
                  .bytes = 4096,
                  .at = {1000, 2000, 2500, 2500, 12500, 13500, 16000}};
  TracedSpan polled = read;
  polled.at = {0, 3000, 3500, 3500, 5500, 6500, 0};
  const std::vector<TracedSpan> spans{read, polled};
  EXPECT_EQ(read.whole().ns, 15000);
  EXPECT_EQ(polled.whole().ns, 3500);
  EXPECT_EQ(stage_table(spans),
            "read 'vm1'\n"
            "  interval         count       mean        p50        p99    share\n"
            "  waited               1    1000 ns    1000 ns    1000 ns    5.4 %\n"
            "  parsing              2     500 ns     500 ns     500 ns    5.4 %\n"
            "  submitting           2       0 ns       0 ns       0 ns    0.0 %\n"
            "  serving              2    6000 ns    2000 ns    10.0 us   64.9 %\n"
            "  publishing           2    1000 ns    1000 ns    1000 ns   10.8 %\n"
            "  calling              1    2500 ns    2500 ns    2500 ns   13.5 %\n"
            "  whole                2    9250 ns    3500 ns    15.0 us  100.0 %\n");
  const nlohmann::json timeline = nlohmann::json::parse(chrome_timeline(spans));
  std::set<std::size_t> tracks;
  double whole = 0;
  for (const auto& event : timeline["traceEvents"]) {
    if (event["ph"] == "X" && event["cat"] == "request") {
      tracks.insert(event["tid"].get<std::size_t>());
      whole += event["dur"].get<double>();
    }
  }
  EXPECT_EQ(tracks.size(), 2U) << "they overlap";
  EXPECT_DOUBLE_EQ(whole, 18.5);
  EXPECT_EQ(nlohmann::json::parse(chrome_timeline({}))["traceEvents"].size(), 0U);
}

TEST(TraceReport, RecordsGoThereAndBack) {
  StageRecord record{
      .device = 3, .queue = 2, .kind = TracedKind::write, .failed = true, .bytes = 512, .worker = 1, .ticks = {}};
  record.ticks[1] = StageClock::now();
  record.ticks[5] = record.ticks[1] + 1'000'000;
  const auto spans = spans_of_json(trace_records_json({record}, {{3, "vm1"}}));
  ASSERT_TRUE(spans) << spans.error().message;
  ASSERT_EQ(spans->size(), 1U);
  EXPECT_EQ((*spans)[0].device, "vm1");
  EXPECT_EQ((*spans)[0].kind, "write");
  EXPECT_TRUE((*spans)[0].failed);
  EXPECT_EQ((*spans)[0].bytes, 512U);
  EXPECT_NEAR(static_cast<double>((*spans)[0].whole().ns), static_cast<double>(StageClock::duration(1'000'000).ns), 1000.0);
  for (const char* bad : {"{}", "[1]", "[{}]", R"([{"device": "a", "kind": "read", "ns": [1]}])",
                          R"([{"device": 1, "kind": "read", "ns": [0,0,0,0,0,0,0]}])"}) {
    EXPECT_FALSE(spans_of_json(nlohmann::json::parse(bad))) << bad;
  }
}

}  // namespace
}  // namespace ringway
