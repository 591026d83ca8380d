#include "backend/blk/faulty_store.hpp"

#include "backend/blk/store_test_support.hpp"

namespace ringway {
namespace {

using test::execute;
using test::GuestBuffer;
using test::run_until;
using test::TestRequest;

class FaultyStoreTest : public testing::Test {
 protected:
  void open(const std::string& faults) {
    auto loop = make_loop(LoopEngine::epoll);
    ASSERT_TRUE(loop.has_value());
    loop_ = std::move(*loop);
    auto plain = make_blk_store({.path = "ram:4M"});
    ASSERT_TRUE(plain.has_value());
    auto parsed = parse_blk_faults(faults);
    ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
    store_ = make_faulty_store(std::move(plain->store), *parsed);
    auto channel = store_->open_channel(*loop_, counters_);
    ASSERT_TRUE(channel.has_value());
    channel_ = std::move(*channel);
  }

  std::unique_ptr<Loop> loop_;
  std::unique_ptr<FaultyStore> store_;
  BlkChannelCounters counters_;
  std::unique_ptr<BlkChannel> channel_;
  GuestBuffer buffer_{4096};
};

TEST(ParseFaults, items_with_and_without_narrowing) {
  const auto faults = parse_blk_faults("short=1/3,eagain=1/10,eio=1/100,delay=500us:flush,hang@1M,eio=1/2:out@4K,seed=9");
  ASSERT_TRUE(faults.has_value()) << faults.error().message;
  EXPECT_EQ(faults->file.short_denominator, 3U);
  EXPECT_EQ(faults->file.again_denominator, 10U);
  EXPECT_EQ(faults->seed, 9U);
  ASSERT_EQ(faults->requests.size(), 4U);
  EXPECT_EQ(faults->requests[0].denominator, 100U);
  EXPECT_EQ(faults->requests[1].delay, Duration::microseconds(500));
  EXPECT_EQ(faults->requests[1].opcode, BlkOpcode::flush);
  EXPECT_EQ(faults->requests[2].touching, 1U << 20U);
  EXPECT_EQ(faults->requests[3].opcode, BlkOpcode::out);
  EXPECT_EQ(faults->requests[3].touching, 4096U);
}

TEST(ParseFaults, nonsense_is_refused) {
  for (const char* const text : {"eio=1/0", "eio=1", "eio=3/2", "delay", "delay=5", "delay=5h", "hang@x", "eio:sync", "foo",
                                 "seed=x", "short", ",", "delay=-1ms"}) {
    EXPECT_FALSE(parse_blk_faults(text).has_value()) << text;
  }
}

TEST_F(FaultyStoreTest, eio_hits_only_what_it_names) {
  open("eio:out@8192");
  TestRequest hit, beside, other_kind;
  EXPECT_EQ(execute(*loop_, *channel_, hit.data(BlkOpcode::out, 8192, buffer_)), spec::kBlkStatusIoErr);
  EXPECT_EQ(execute(*loop_, *channel_, beside.data(BlkOpcode::out, 4096, buffer_)), spec::kBlkStatusOk);
  EXPECT_EQ(execute(*loop_, *channel_, other_kind.data(BlkOpcode::in, 8192, buffer_)), spec::kBlkStatusOk);
  EXPECT_EQ(store_->info().engine, "faulty+ram");
}

TEST_F(FaultyStoreTest, row_26_a_slow_flush_holds_up_no_other_request) {
  open("delay=100ms:flush");
  TestRequest flush;
  flush.flush().submit(*channel_);
  for (int i = 0; i < 100; ++i) {
    TestRequest read;
    ASSERT_EQ(execute(*loop_, *channel_, read.data(BlkOpcode::in, 0, buffer_)), spec::kBlkStatusOk);
  }
  EXPECT_TRUE(flush.pending());
  EXPECT_EQ(channel_->in_flight(), 1U);
  run_until(*loop_, [&] { return !flush.pending(); });
  EXPECT_EQ(flush.status(), spec::kBlkStatusOk);
}

TEST_F(FaultyStoreTest, hung_requests_wait_for_release) {
  open("hang@0");
  TestRequest hung, passes;
  hung.data(BlkOpcode::in, 0, buffer_).submit(*channel_);
  EXPECT_EQ(execute(*loop_, *channel_, passes.data(BlkOpcode::in, 4096, buffer_)), spec::kBlkStatusOk);
  EXPECT_TRUE(hung.pending());
  EXPECT_EQ(channel_->in_flight(), 1U);
  store_->release();
  run_until(*loop_, [&] { return !hung.pending(); });
  EXPECT_EQ(hung.status(), spec::kBlkStatusOk);
  TestRequest after;
  EXPECT_EQ(execute(*loop_, *channel_, after.data(BlkOpcode::in, 0, buffer_)), spec::kBlkStatusOk);
}

TEST_F(FaultyStoreTest, the_same_seed_gives_the_same_choices) {
  std::vector<std::uint8_t> runs[2];
  for (auto& run : runs) {
    channel_.reset();
    open("eio=1/3,seed=4");
    for (int i = 0; i < 60; ++i) {
      TestRequest request;
      run.push_back(execute(*loop_, *channel_, request.data(BlkOpcode::in, 0, buffer_)));
    }
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(std::count(runs[0].begin(), runs[0].end(), spec::kBlkStatusIoErr), 0);
  EXPECT_NE(std::count(runs[0].begin(), runs[0].end(), spec::kBlkStatusOk), 0);
}

}  // namespace
}  // namespace ringway
