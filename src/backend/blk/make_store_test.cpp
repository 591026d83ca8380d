#include "backend/blk/make_store.hpp"

#include <gmock/gmock.h>

#include "backend/blk/store_test_support.hpp"

namespace ringway {
namespace {

using test::TemporaryDirectory;
using testing::HasSubstr;

void expect_error(const BlkStoreOptions& options, const std::string& text) {
  const auto choice = make_blk_store(options);
  ASSERT_FALSE(choice.has_value());
  EXPECT_THAT(choice.error().message, HasSubstr(text));
}

TEST(ParseSize, units_are_powers_of_1024) {
  EXPECT_EQ(*parse_size("512"), 512U);
  EXPECT_EQ(*parse_size("64K"), 65536U);
  EXPECT_EQ(*parse_size("10m"), 10U << 20U);
  EXPECT_EQ(*parse_size("2G"), 2ULL << 30U);
  EXPECT_EQ(*parse_size("1T"), 1ULL << 40U);
}

TEST(ParseSize, nonsense_is_refused) {
  for (const char* const text :
       {"", "K", "-1", "1.5G", "12Q", "1KB", " 1", "99999999999999999999", "9999999T", "8388608T", "0x10"}) {
    EXPECT_FALSE(parse_size(text).has_value()) << text;
  }
}

TEST(ParseEngine, names) {
  EXPECT_EQ(*parse_blk_engine("auto"), BlkEngine::automatic);
  EXPECT_EQ(*parse_blk_engine("io_uring"), BlkEngine::io_uring);
  EXPECT_EQ(*parse_blk_engine("threads"), BlkEngine::threads);
  EXPECT_EQ(*parse_blk_engine("inline"), BlkEngine::inline_);
  EXPECT_FALSE(parse_blk_engine("aio").has_value());
  for (const BlkEngine engine : {BlkEngine::automatic, BlkEngine::io_uring, BlkEngine::threads, BlkEngine::inline_}) {
    EXPECT_EQ(*parse_blk_engine(to_string(engine)), engine);
  }
}

TEST(MakeStore, memory_disks_by_size) {
  const auto null = make_blk_store({.path = "null:1G"});
  ASSERT_TRUE(null.has_value());
  EXPECT_EQ(null->store->info().capacity_bytes, 1ULL << 30U);
  EXPECT_EQ(null->store->info().engine, "null");
  const auto ram = make_blk_store({.path = "ram:1M", .read_only = true, .block_bytes = 4096});
  ASSERT_TRUE(ram.has_value());
  EXPECT_EQ(ram->store->info().block_bytes, 4096U);
  EXPECT_TRUE(ram->store->info().read_only);
  EXPECT_EQ(ram->store->info().discard_granularity_bytes, 0U);
  expect_error({.path = "ram:1000"}, "multiple of its block size");
  expect_error({.path = "ram:0"}, "multiple of its block size");
  expect_error({.path = "null:lots"}, "is not a size");
  expect_error({.path = "ram:1M", .engine = BlkEngine::threads}, "no engine to choose");
  expect_error({.path = "ram:1M", .block_bytes = 1000}, "block size 1000");
}

TEST(MakeStore, errors_say_what_to_do) {
  TemporaryDirectory directory(".");
  expect_error({.path = directory.path() + "/missing"}, "truncate -s");
  expect_error({.path = directory.path()}, "is a directory");
  expect_error({.path = "/dev/null"}, "neither a regular file nor a block device");
  expect_error({.path = directory.make_file("empty", 0)}, "less than one block");
  const std::string file = directory.make_file("disk", 1U << 20U);
  expect_error({.path = file, .engine = BlkEngine::io_uring, .loop_has_uring = false}, "have no io_uring");
  expect_error({.path = file, .faults = "eio=2/1"}, "fraction");
  expect_error({.path = "ram:1M", .faults = "short=1/2"}, "a file's");
}

TEST(MakeStore, a_file_without_write_permission_needs_ro) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "root may write everything";
  }
  TemporaryDirectory directory(".");
  const std::string file = directory.make_file("disk", 1U << 20U);
  ASSERT_EQ(::chmod(file.c_str(), 0400), 0);
  expect_error({.path = file}, "add 'ro'");
  EXPECT_TRUE(make_blk_store({.path = file, .read_only = true}).has_value());
}

TEST(MakeStore, two_writers_are_refused_and_the_holder_named) {
  TemporaryDirectory directory(".");
  const std::string file = directory.make_file("disk", 1U << 20U);
  {
    const auto first = make_blk_store({.path = file});
    ASSERT_TRUE(first.has_value()) << first.error().message;
    expect_error({.path = file}, "locked by this process itself");
    expect_error({.path = file, .read_only = true}, "locked by");
    EXPECT_TRUE(make_blk_store({.path = file, .create_lock = false}).has_value());
  }
  const auto reader = make_blk_store({.path = file, .read_only = true});
  ASSERT_TRUE(reader.has_value());
  EXPECT_TRUE(make_blk_store({.path = file, .read_only = true}).has_value());
  expect_error({.path = file}, "locked by");
}

TEST(MakeStore, a_file_is_known_by_any_of_its_names) {
  TemporaryDirectory directory(".");
  const std::string file = directory.make_file("disk", 1U << 20U);
  const auto choice = make_blk_store({.path = file});
  ASSERT_TRUE(choice.has_value()) << choice.error().message;
  ASSERT_TRUE(choice->image.has_value());
  const std::string link = directory.path() + "/link", moved = directory.path() + "/moved";
  ASSERT_EQ(::symlink("disk", link.c_str()), 0);
  EXPECT_EQ(image_id_at(link), choice->image);
  ASSERT_EQ(::rename(file.c_str(), moved.c_str()), 0);
  EXPECT_EQ(image_id_at(moved), choice->image);
  EXPECT_EQ(image_id_at(file), std::nullopt);
  EXPECT_NE(image_id_at(directory.make_file("disk", 1U << 20U)), choice->image);
  EXPECT_EQ(make_blk_store({.path = "ram:1M"})->image, std::nullopt);
}

TEST(MakeStore, engine_follows_from_the_file_and_the_loop) {
  TemporaryDirectory memory("/dev/shm");
  const std::string in_memory = memory.make_file("disk", 1U << 20U);
  const auto automatic = make_blk_store({.path = in_memory});
  ASSERT_TRUE(automatic.has_value());
  EXPECT_EQ(automatic->store->info().engine, "inline");

  TemporaryDirectory disk(".");
  const std::string on_disk = disk.make_file("disk", 1U << 20U);
  const auto without_uring = make_blk_store({.path = on_disk, .loop_has_uring = false});
  ASSERT_TRUE(without_uring.has_value());
  EXPECT_NE(without_uring->store->info().engine, "io_uring");
}

TEST(MakeStore, a_longer_file_s_rest_is_not_shown) {
  TemporaryDirectory directory(".");
  const auto choice = make_blk_store({.path = directory.make_file("disk", (1U << 20U) + 700), .block_bytes = 4096});
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(choice->store->info().capacity_bytes, 1U << 20U);
  EXPECT_THAT(choice->reason, HasSubstr("700 bytes"));
}

TEST(MakeStore, read_only_file_refuses_writes_and_completes_flushes) {
  TemporaryDirectory directory(".");
  auto loop = make_loop(LoopEngine::epoll);
  ASSERT_TRUE(loop.has_value());
  auto choice = make_blk_store({.path = directory.make_file("disk", 1U << 20U),
                                .read_only = true,
                                .engine = BlkEngine::threads,
                                .loop_has_uring = false});
  ASSERT_TRUE(choice.has_value()) << choice.error().message;
  EXPECT_EQ(choice->store->info().discard_granularity_bytes, 0U);
  EXPECT_FALSE(choice->store->info().write_zeroes);
  BlkChannelCounters counters;
  auto channel = choice->store->open_channel(**loop, counters);
  ASSERT_TRUE(channel.has_value());
  test::GuestBuffer buffer(4096);
  test::TestRequest out, flush, in;
  EXPECT_EQ(execute(**loop, **channel, out.data(BlkOpcode::out, 0, buffer)), spec::kBlkStatusIoErr);
  EXPECT_EQ(execute(**loop, **channel, flush.flush()), spec::kBlkStatusOk);
  EXPECT_EQ(execute(**loop, **channel, in.data(BlkOpcode::in, 0, buffer)), spec::kBlkStatusOk);
  EXPECT_FALSE(choice->store->resize(2U << 20U).has_value());
}

}  // namespace
}  // namespace ringway
