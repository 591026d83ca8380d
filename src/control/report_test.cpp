#include "control/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ringway {
namespace {

using ::testing::HasSubstr;

TEST(Report, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(std::uint64_t{10} << 30U), "10.0 GiB");
  EXPECT_EQ(bytes_text(UINT64_MAX), "16384.0 PiB");
}

TEST(Report, Times) {
  EXPECT_EQ(time_text(0), "0 ns");
  EXPECT_EQ(time_text(999), "999 ns");
  EXPECT_EQ(time_text(1'000), "1.00 us");
  EXPECT_EQ(time_text(12'345), "12.3 us");
  EXPECT_EQ(time_text(123'456), "123 us");
  EXPECT_EQ(time_text(4'560'000), "4.56 ms");
  EXPECT_EQ(time_text(1'200'000'000), "1.20 s");
}

DiskStats two_queues() {
  DiskStats disk;
  disk.name = "vm1";
  disk.stats.queues.resize(2);
  BlkDeviceStats::Queue& queue = disk.stats.queues[0];
  queue.running = true;
  queue.enabled = true;
  queue.requests[static_cast<std::size_t>(BlkOpcode::in)] = 90;
  queue.failed[static_cast<std::size_t>(BlkOpcode::out)] = 6;
  queue.refused[static_cast<std::size_t>(BlkRefusal::out_of_range)] = 4;
  queue.in_flight = 3;
  queue.oldest_in_flight = Duration::seconds(12);
  queue.batches = 10;
  queue.bytes_in = 90 * 4096;
  queue.kicks = 5;
  queue.calls = 3;
  queue.calls_coalesced = 7;
  disk.stats.queues[1].index = 1;
  disk.stats.queues[1].worker = 1;
  disk.stats.queues[1].broken = true;
  disk.stats.queues[1].ring_faults = 1;
  disk.stats.read.count = 90;
  disk.stats.read.p50 = Duration::microseconds(10);
  disk.stats.read.p99 = Duration::microseconds(20);
  disk.stats.read.p999 = Duration::microseconds(30);
  disk.stats.read.maximum = Duration::microseconds(40);
  disk.stats.store.registered = 80;
  disk.stats.store.syncs = 3;
  disk.stats.store.failures[static_cast<std::size_t>(BlkFailure::no_space)] = 2;
  disk.stats.store.failures[static_cast<std::size_t>(BlkFailure::io)] = 4;
  return disk;
}

TEST(Report, StatsTable) {
  const std::string table = stats_table(nlohmann::json::array({disk_stats_json(two_queues())}));
  EXPECT_EQ(
      table,
      "disk 'vm1'\n"
      "  queue  worker    state   in flight       read  written  in  out  flush  get_id  discard  write_zeroes  "
      "secure_erase  failed  "
      "refused\n"
      "  0           0  running  3 (12.0 s)  360.0 KiB      0 B  90    0      0       0        0             0             "
      "0       6    "
      "    4\n"
      "  1           1   broken           0        0 B      0 B   0    0      0       0        0             0             "
      "0       0    "
      "    0\n"
      "  queue  kicks  calls  coalesced  suppressed  dropped  ring faults  lost kicks  batches  mean batch  starved  memory "
      "lost\n"
      "  0          5      3          7           0        0            0           0       10        10.0        0        "
      "    0\n"
      "  1          0      0          0           0        0            1           0        0           -        0        "
      "    0\n"
      "  latency  count      p50      p99    p99.9      max\n"
      "  read        90  10.0 us  20.0 us  30.0 us  40.0 us\n"
      "  failed: out 6\n"
      "  refused: out_of_range 4\n"
      "  store: registered 80, syncs 3\n"
      "  store failures: io 4, no_space 2\n");
}

NetStats two_pairs() {
  NetStats net;
  net.name = "tap0";
  net.stats.pairs.resize(2);
  NetDeviceStats::Pair& pair = net.stats.pairs[0];
  pair.receive.running = true;
  pair.receive.enabled = true;
  pair.receive.frames = 30;
  pair.receive.bytes = 3072;
  pair.receive.gso_frames = 2;
  pair.receive.segmented = 1;
  pair.receive.checksums_completed = 4;
  pair.receive.filtered = 7;
  pair.receive.bad_buffers = 1;
  pair.receive.dropped_no_buffers = 5;
  pair.receive.dropped_disabled = 1;
  pair.receive.batches = 10;
  pair.receive.kicks = 3;
  pair.transmit.running = true;
  pair.transmit.frames = 20;
  pair.transmit.bytes = 2048;
  pair.transmit.discarded = 3;
  pair.transmit.refused[1] = 2;
  pair.transmit.batches = 5;
  pair.port.dropped_down = 6;
  pair.port.full = 8;
  net.stats.pairs[1].worker = 1;
  net.stats.pairs[1].transmit.broken = true;
  NetDeviceStats::Control& control = net.stats.control.emplace(NetDeviceStats::Control{});
  control.running = true;
  control.enabled = true;
  control.commands = 4;
  control.batches = 5;
  control.refused[static_cast<std::size_t>(NetControlRefusal::bad_value)] = 1;
  return net;
}

TEST(Report, StatsTableOfANetworkCard) {
  EXPECT_EQ(stats_table(stats_json({}, {two_pairs()})),
            "net 'tap0'\n"
            "  pair  worker  receive  transmit  received  in frames  gso  dropped     sent  in frames  gso  refused\n"
            "  0          0  running  disabled   3.0 KiB         30    2        6  2.0 KiB         20    0        2\n"
            "  1          1  stopped    broken       0 B          0    0        0      0 B          0    0        0\n"
            "  ring     kicks  calls  coalesced  suppressed  dropped  ring faults  lost kicks  batches  mean batch  memory "
            "lost\n"
            "  0 rx         3      0          0           0        0            0           0       10         3.0        "
            "    0\n"
            "  0 tx         0      0          0           0        0            0           0        5         5.0        "
            "    0\n"
            "  1 rx         0      0          0           0        0            0           0        0           -        "
            "    0\n"
            "  1 tx         0      0          0           0        0            0           0        0           -        "
            "    0\n"
            "  control      0      0          0           0        0            0           0        5         1.0        "
            "    0\n"
            "  received with software: checksums_completed 4, segmented 1\n"
            "  receive dropped: disabled 1, no_buffers 5\n"
            "  receive filtered: 7\n"
            "  bad receive buffers: 1\n"
            "  transmit discarded: 3\n"
            "  transmit refused: " +
                std::string(to_string(NetRefusal{1})) +
                " 2\n"
                "  port: dropped_down 6, full 8\n"
                "  control commands: 4\n"
                "  control refused: bad_value 1\n");
}

TEST(Report, ACardWithoutAControlQueueShowsNone) {
  NetStats net = two_pairs();
  net.stats.control.reset();
  EXPECT_FALSE(net_stats_json(net).contains("control"));
  EXPECT_THAT(stats_table(stats_json({}, {net})), ::testing::Not(HasSubstr("control")));
}

TEST(Report, DevicesAreCountedInWords) {
  EXPECT_EQ(devices_text(0, 0), "0 disks");
  EXPECT_EQ(devices_text(1, 0), "1 disk");
  EXPECT_EQ(devices_text(0, 1), "1 network card");
  EXPECT_EQ(devices_text(2, 3), "2 disks and 3 network cards");
}

TEST(Report, EveryRefusalAndFailureHasAName) {
  const nlohmann::json net = net_stats_json(two_pairs());
  EXPECT_EQ(net["pairs"][0]["transmit"]["refused"].size(), kNetRefusals - 1);
  EXPECT_EQ(net["control"]["refused"].size(), kNetControlRefusals - 1);
  EXPECT_FALSE(net["pairs"][0]["transmit"]["refused"].contains("unknown"));
  EXPECT_FALSE(net["control"]["refused"].contains("unknown"));
  const nlohmann::json refused = disk_stats_json(two_queues())["queues"][0]["refused"];
  EXPECT_EQ(refused.size(), kBlkRefusals - 1);
  EXPECT_FALSE(refused.contains("unknown"));
  const nlohmann::json failures = disk_stats_json(two_queues())["store"]["failures"];
  EXPECT_EQ(failures.size(), kBlkFailures);
  EXPECT_FALSE(failures.contains("unknown"));
}

TEST(Report, TablesBearAnyJson) {
  for (const char* text :
       {"null", "[]", "{}", "[1]", "[null]", "[[]]", R"([{"queues": 3}])", R"([{"queues": [1, "x", {}], "latency": 7}])",
        R"([{"name": 5, "queues": [{"requests": [], "failed": "x", "refused": {"a": -1}}]}])", "\"x\"",
        R"([{"kind": "net"}])",
        R"([{"kind": "net", "pairs": [1, null, {"receive": 3, "port": []}], "control": {"refused": "x"}}])"}) {
    const nlohmann::json stats = nlohmann::json::parse(text);
    EXPECT_NO_THROW({
      static_cast<void>(stats_table(stats));
      static_cast<void>(devices_table(stats));
      static_cast<void>(workers_table(stats));
    }) << text;
  }
  EXPECT_THAT(devices_table(nlohmann::json::parse(R"([{}, {"kind": "net"}])")), HasSubstr("-"));
}

TEST(Report, ADiskThatStallsIsListedAsSuch) {
  DiskStatus disk;
  disk.options.name = "a";
  disk.state = DeviceState::serving;
  const auto list = [&](Duration oldest) {
    disk.oldest_in_flight = oldest;
    return devices_table(nlohmann::json::array({disk_status_json(disk)}));
  };
  EXPECT_THAT(list(Duration::seconds(4)), ::testing::Not(HasSubstr("stalled")));
  EXPECT_THAT(list(Duration::seconds(12)), HasSubstr("serving, stalled for 12.0 s"));
}

}  // namespace
}  // namespace ringway
