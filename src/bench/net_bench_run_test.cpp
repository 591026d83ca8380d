// The network bench against a back-end whose faults are known: what it counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>

#include <nlohmann/json.hpp>

#include "bench/net_bench.hpp"
#include "bench/test_net_peer.hpp"

namespace ringway {
namespace {

using testing::HasSubstr;

NetBenchOptions bench_of(const FaultyNetPeer& peer, NetBenchDirection direction) {
  NetBenchOptions options;
  options.target.socket_path = peer.socket_path();
  options.direction = direction;
  options.warm_up = {};
  options.runtime = Duration::milliseconds(200);
  options.depth = 32;
  options.burst = 8;
  return options;
}

struct Measured {
  Result<> outcome;
  std::unique_ptr<NetBenchResult> result = std::make_unique<NetBenchResult>();
};

Measured measure(const NetBenchOptions& options, std::uint32_t frame_bytes = 64) {
  Measured measured;
  measured.outcome = measure_net(options, frame_bytes, *measured.result);
  EXPECT_TRUE(measured.outcome) << measured.outcome.error().message;
  return measured;
}

TEST(NetBench, CountsEveryFrameThatComesBack) {
  const FaultyNetPeer peer(NetPeerFault::none);
  for (const bool packed : {false, true}) {
    for (const bool sleeping : {false, true}) {
      for (const std::uint32_t bytes : {60U, 1514U, 9000U}) {
        NetBenchOptions options = bench_of(peer, NetBenchDirection::echo);
        options.packed = packed;
        options.sleeping = sleeping;
        options.pairs = 2;
        options.threads = sleeping ? 1 : 2;
        options.mergeable = !packed;
        const Measured measured = measure(options, bytes);
        const NetBenchResult& result = *measured.result;
        EXPECT_GT(result.received, 0U);
        EXPECT_GE(result.numbered.received, result.received);  // and what was on its way at the end
        EXPECT_EQ(result.numbered.lost, 0U);
        EXPECT_EQ(result.numbered.duplicated, 0U);
        EXPECT_EQ(result.numbered.reordered, 0U);
        EXPECT_EQ(result.unnumbered, 0U);
        EXPECT_EQ(result.receive_faults, 0U);
        EXPECT_EQ(result.packed, packed);
        EXPECT_GT(result.frames_per_second, 0);
        EXPECT_NEAR(result.gigabits_per_second, result.frames_per_second * bytes * 8e-9, result.gigabits_per_second * 0.01);
        // Those that were sent before the time began are taken too, as are those that come after it has ended.
        EXPECT_GE(result.latency.count() + 2 * options.depth * options.pairs, result.received);
        EXPECT_GT(result.latency.percentile(0.5).ns, 0);
      }
    }
  }
}

// The peer loses, doubles or holds back each hundredth frame.
TEST(NetBench, TellsLossDuplicatesAndReordering) {
  const auto share = [](NetPeerFault fault) {
    const FaultyNetPeer peer(fault);
    return measure(bench_of(peer, NetBenchDirection::echo)).result->numbered;
  };
  const NetSequence::Counts lost = share(NetPeerFault::loses_frames);
  EXPECT_NEAR(static_cast<double>(lost.lost), static_cast<double>(lost.received) / 99, 33);
  EXPECT_EQ(lost.duplicated + lost.reordered, 0U);
  const NetSequence::Counts doubled = share(NetPeerFault::duplicates_frames);
  EXPECT_NEAR(static_cast<double>(doubled.duplicated), static_cast<double>(doubled.received) / 100, 2);
  EXPECT_EQ(doubled.lost + doubled.reordered, 0U);
  const NetSequence::Counts swapped = share(NetPeerFault::swaps_frames);
  EXPECT_NEAR(static_cast<double>(swapped.reordered), static_cast<double>(swapped.received) / 100, 2);
  EXPECT_EQ(swapped.duplicated, 0U);
}

TEST(NetBench, SaysThatNothingCame) {
  const FaultyNetPeer peer(NetPeerFault::second_region_is_lost);
  std::ostringstream out;
  NetBenchOptions receiving = bench_of(peer, NetBenchDirection::rx);
  receiving.json = true;
  EXPECT_EQ(run_net_bench(receiving, out), 1);
  EXPECT_THAT(out.str(), HasSubstr("no frame came: the back-end has nothing to send"));
  NetBenchOptions options = bench_of(peer, NetBenchDirection::tx);
  options.json = true;
  out.str("");
  EXPECT_EQ(run_net_bench(options, out), 0) << out.str();
  const nlohmann::json json = nlohmann::json::parse(out.str());
  EXPECT_GT(json.at("rows").at(0).at("sent").get<std::uint64_t>(), 0U);
  EXPECT_FALSE(json.at("rows").at(0).contains("numbered"));
}

TEST(NetBench, UsedBuffersThatMakeNoSenseFailIt) {
  const FaultyNetPeer peer(NetPeerFault::zero_num_buffers);
  std::ostringstream out;
  EXPECT_EQ(run_net_bench(bench_of(peer, NetBenchDirection::echo), out), 1);
  EXPECT_THAT(out.str(), HasSubstr("`ringway check net` says more"));
}

TEST(NetBench, OneRowForEachLength) {
  const FaultyNetPeer peer(NetPeerFault::none);
  NetBenchOptions options = bench_of(peer, NetBenchDirection::echo);
  options.frame_bytes = {64, 512};
  std::ostringstream out;
  EXPECT_EQ(run_net_bench(options, out), 0);
  EXPECT_THAT(out.str(), HasSubstr("  bytes    frames/s"));
  EXPECT_THAT(out.str(), HasSubstr("\n     64 "));
  EXPECT_THAT(out.str(), HasSubstr("\n    512 "));
}

TEST(NetBench, RefusesWhatIsImpossible) {
  const auto error = [](auto change) {
    NetBenchOptions options;
    change(options);
    const Result<> checked = check_net_bench_options(options);
    return checked ? std::string() : checked.error().message;
  };
  EXPECT_EQ(error([](NetBenchOptions&) {}), "");
  EXPECT_EQ(error([](NetBenchOptions& o) { o.frame_bytes = {64, 59}; }),
            "frames of 59 bytes are not possible; give 60 to 65549");
  EXPECT_THAT(error([](NetBenchOptions& o) { o.burst = 129; }), HasSubstr("a burst of 129 is more than the 128 frames"));
  EXPECT_THAT(error([](NetBenchOptions& o) { o.threads = 2; }), HasSubstr("2 threads for 1 queue pairs"));
  EXPECT_THAT(error([](NetBenchOptions& o) { o.queue_size = 64; }), HasSubstr("can't hold 128 frames"));
  EXPECT_THAT(error([](NetBenchOptions& o) { o.receive_buffer_bytes = 64; }), HasSubstr("give 128 at least"));
  const FaultyNetPeer peer(NetPeerFault::none);
  NetBenchOptions options = bench_of(peer, NetBenchDirection::echo);
  options.in_order = true;
  options.json = true;
  std::ostringstream out;
  EXPECT_EQ(run_net_bench(options, out), 1);
  EXPECT_THAT(out.str(), HasSubstr("doesn't offer in-order completion"));
}

}  // namespace
}  // namespace ringway
