#include "trace/stage_recorder.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace ringway {
namespace {

// What two queues are known by.
constexpr char kOne = 0;
constexpr char kOther = 0;

std::vector<StageRecord> taken(StageStream& stream) {
  std::vector<StageRecord> records;
  stream.take(records, SIZE_MAX);
  return records;
}

TracedRequest* follow(StageRecorder& recorder, const void* owner, std::uint64_t kicked = 0) {
  return recorder.due() ? recorder.begin(owner, 7, 3, kicked) : nullptr;
}

TEST(StageClock, KeepsTimeWithTheOtherClock) {
  const Instant before = StageClock::instant(StageClock::now());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const Instant after = StageClock::instant(StageClock::now());
  EXPECT_GE((after - before).ns, 19'900'000);
  EXPECT_LT((after - before).ns, 10'000'000'000);
  const std::uint64_t ticks = StageClock::now();
  const Instant there = StageClock::instant(ticks);
  EXPECT_LT((StageClock::instant(StageClock::ticks(there)) - there).ns, 1000);
  EXPECT_GT((StageClock::instant(StageClock::ticks(there)) - there).ns, -1000);
}

TEST(StageRecorder, FollowsOneInSoMany) {
  StageRecorder recorder(0);
  for (const std::uint32_t every : {1U, 2U, 7U, 1024U}) {
    recorder.set_every(every);
    std::uint32_t followed = 0;
    for (std::uint32_t i = 0; i < 10 * every; ++i) {
      if (TracedRequest* request = follow(recorder, &kOne)) {
        ++followed;
        recorder.drop(*request);
      }
    }
    EXPECT_EQ(followed, 10U) << every;
  }
  recorder.set_every(0);
  for (int i = 0; i < 100'000; ++i) {
    EXPECT_FALSE(recorder.due());
  }
}

TEST(StageRecorder, FollowsOneInSoManyOfBatches) {
  StageRecorder recorder(0);
  recorder.set_every(100);
  int followed = 0;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(recorder.due(0));
    if (recorder.due(32)) {
      EXPECT_TRUE(recorder.near(32)) << "a batch is due only if it could be known before";
      recorder.drop(*recorder.begin(&kOne, 1, 1, 0));
      ++followed;
    }
  }
  EXPECT_EQ(followed, 250) << "four batches of 32 hold the hundredth";
}

TEST(StageRecorder, ARequestHasTheStagesThatItPassed) {
  StageRecorder recorder(5);
  const auto stream = std::make_shared<StageStream>(16);
  recorder.set_stream(stream);
  recorder.set_every(1);
  TracedRequest* request = follow(recorder, &kOne, StageClock::now());
  ASSERT_NE(request, nullptr);
  request->record.kind = TracedKind::read;
  request->record.bytes = 4096;
  recorder.stamp<Stage::parsed>(*request);
  recorder.prepare(*request);
  const std::uint64_t prepared = request->record.at(Stage::submitted);
  recorder.submitted();
  EXPECT_FALSE(recorder.has_prepared());
  EXPECT_GT(request->record.at(Stage::submitted), prepared) << "with the turn's others";
  recorder.complete(*request);
  recorder.settle();
  EXPECT_TRUE(taken(*stream).empty()) << "it isn't published";
  recorder.published(&kOther);
  recorder.called(&kOne);
  recorder.settle();
  EXPECT_TRUE(taken(*stream).empty()) << "another queue did, and a call before it isn't its own";
  recorder.published(&kOne);
  recorder.called(&kOne);
  recorder.called(&kOne);
  recorder.settle();
  const std::vector<StageRecord> records = taken(*stream);
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].device, 7U);
  EXPECT_EQ(records[0].queue, 3U);
  EXPECT_EQ(records[0].worker, 5U);
  EXPECT_EQ(records[0].bytes, 4096U);
  std::uint64_t before = 0;
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    EXPECT_GT(records[0].ticks[stage], before) << to_string(static_cast<Stage>(stage));
    before = records[0].ticks[stage];
  }
  const auto& read = recorder.histograms().of[static_cast<std::size_t>(TracedKind::read)];
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    EXPECT_EQ(read[stage].count(), 1U) << stage;
  }
  std::uint64_t sum = 0;
  for (std::size_t stage = 1; stage < kStages; ++stage) {
    sum += read[stage].sum_ns();
  }
  EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(read[0].sum_ns()), 7.0) << "the intervals are the whole";
}

// A store in memory is done before the turn's others are submitted.
TEST(StageRecorder, OneThatCompletesAtOnceWasSubmittedBefore) {
  StageRecorder recorder(0);
  recorder.set_every(1);
  TracedRequest* a = follow(recorder, &kOne);
  TracedRequest* b = follow(recorder, &kOne);
  TracedRequest* c = follow(recorder, &kOne);
  for (TracedRequest* each : {a, b, c}) {
    recorder.prepare(*each);
  }
  recorder.complete(*a);
  recorder.drop(*b);
  const std::uint64_t of_a = a->record.at(Stage::submitted);
  recorder.submitted();
  EXPECT_EQ(a->record.at(Stage::submitted), of_a);
  EXPECT_GT(c->record.at(Stage::submitted), a->record.at(Stage::completed));
  EXPECT_FALSE(recorder.has_prepared());
}

TEST(StageRecorder, WhatAQueueLeavesBehindIsFreeAgain) {
  StageRecorder recorder(0);
  recorder.set_every(1);
  for (int life = 0; life < 3; ++life) {
    for (std::size_t i = 0; i < StageRecorder::kRequests; ++i) {
      TracedRequest* request = follow(recorder, &kOne);
      ASSERT_NE(request, nullptr) << life << " " << i;
      recorder.complete(*request);
    }
    EXPECT_EQ(follow(recorder, &kOne), nullptr);
    recorder.forget(&kOne);
  }
  EXPECT_EQ(recorder.missed(), 3U);
}

TEST(StageStream, WhatDoesNotFitIsCounted) {
  StageStream stream(4);
  for (std::uint32_t i = 0; i < 7; ++i) {
    stream.put({.device = i});
  }
  EXPECT_EQ(stream.dropped(), 3U);
  std::vector<StageRecord> records;
  stream.take(records, 3);
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[2].device, 2U);
  stream.put({.device = 9});
  records = taken(stream);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].device, 3U);
  EXPECT_EQ(records[1].device, 9U);
}

TEST(StageStream, TwoThreads) {
  StageStream stream(64);
  constexpr std::uint32_t kRecords = 200'000;
  std::thread writer([&] {
    for (std::uint32_t i = 1; i <= kRecords; ++i) {
      stream.put({.device = i, .bytes = ~i});
    }
  });
  std::uint32_t last = 0;
  std::uint64_t seen = 0;
  std::vector<StageRecord> records;
  while (seen + stream.dropped() < kRecords) {
    records.clear();
    stream.take(records, 16);
    for (const StageRecord& record : records) {
      EXPECT_GT(record.device, last);
      EXPECT_EQ(record.bytes, ~record.device);
      last = record.device;
    }
    seen += records.size();
  }
  writer.join();
  EXPECT_EQ(seen + stream.dropped(), kRecords);
  EXPECT_TRUE(taken(stream).empty());
}

TEST(StageHistogram, BucketsHoldWhatTheySay) {
  for (std::uint64_t ns = 0; ns < 5000; ++ns) {
    const std::size_t bucket = StageHistogram::bucket_of(ns);
    EXPECT_LE(ns, StageHistogram::bucket_end(bucket));
    EXPECT_TRUE(bucket == 0 || ns > StageHistogram::bucket_end(bucket - 1)) << ns;
  }
  EXPECT_EQ(StageHistogram::bucket_of(UINT64_MAX), StageHistogram::kBuckets - 1);
}

}  // namespace
}  // namespace ringway
