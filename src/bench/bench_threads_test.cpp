#include "bench/bench_threads.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>

namespace ringway {
namespace {

struct Probe {
  std::atomic<int>& prepared;
  int all;
  bool fails = false;
  int prepared_when_run = -1;  // -1: it did not run

  Result<> prepare() {
    ++prepared;
    return fails ? Result<>(fail("no " + std::to_string(all))) : Result<>();
  }
  Result<> run() {
    prepared_when_run = prepared;
    return {};
  }
};

std::vector<std::unique_ptr<Probe>> probes(std::atomic<int>& prepared, int count) {
  std::vector<std::unique_ptr<Probe>> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(std::make_unique<Probe>(Probe{.prepared = prepared, .all = count}));
  }
  return all;
}

TEST(BenchThreads, NoneRunsBeforeAllAreReady) {
  std::atomic<int> prepared{0};
  const auto all = probes(prepared, 5);
  EXPECT_TRUE(run_bench_threads(all, {}));
  for (const auto& each : all) {
    EXPECT_EQ(each->prepared_when_run, 5);
  }
}

TEST(BenchThreads, WhoCantBeginIsToldOfAndTheOthersEnd) {
  std::atomic<int> prepared{0};
  const auto all = probes(prepared, 3);
  all[1]->fails = true;
  const Result<> result = run_bench_threads(all, {});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "no 3");
  EXPECT_EQ(all[0]->prepared_when_run, 3);
  EXPECT_EQ(all[1]->prepared_when_run, -1);
  EXPECT_EQ(all[2]->prepared_when_run, 3);
}

TEST(BenchThreads, ACpuThatCantBeHadIsAnError) {
  std::atomic<int> prepared{0};
  const auto all = probes(prepared, 2);
  const Result<> result = run_bench_threads(all, {CPU_SETSIZE});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "CPU 1024 doesn't exist");
  EXPECT_EQ(prepared, 0);
}

}  // namespace
}  // namespace ringway
