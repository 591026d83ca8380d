// Every way to a store, on every kind of file that this machine has, held to the same tests.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <new>
#include <optional>
#include <set>

#include "backend/blk/store_test_support.hpp"
#include "base/prng.hpp"

namespace {

std::atomic<std::uint64_t> allocations{0};

}  // namespace

// Counts what the program allocates, for the tests that want none of it. (The compiler can't see that both ends match.)
#pragma GCC diagnostic push
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif
void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}
#pragma GCC diagnostic pop

namespace ringway {
namespace {

using test::execute;
using test::GuestBuffer;
using test::run_until;
using test::TestRequest;

constexpr std::uint64_t kDiskBytes = 8U << 20U;

enum class Backing : std::uint8_t { memory, ext4, tmpfs, loop_4k };

struct Way {
  const char* name;
  Backing backing;
  BlkEngine engine;
  LoopEngine loop;
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}

constexpr Way kWays[] = {
    {"ram", Backing::memory, BlkEngine::automatic, LoopEngine::epoll},
    {"io_uring_disk", Backing::ext4, BlkEngine::io_uring, LoopEngine::io_uring},
    {"io_uring_tmpfs", Backing::tmpfs, BlkEngine::io_uring, LoopEngine::io_uring},
    {"io_uring_loop4k", Backing::loop_4k, BlkEngine::io_uring, LoopEngine::io_uring},
    {"threads_disk", Backing::ext4, BlkEngine::threads, LoopEngine::epoll},
    {"threads_disk_uring_loop", Backing::ext4, BlkEngine::threads, LoopEngine::io_uring},
    {"threads_tmpfs", Backing::tmpfs, BlkEngine::threads, LoopEngine::epoll},
    {"threads_loop4k", Backing::loop_4k, BlkEngine::threads, LoopEngine::epoll},
    {"inline_tmpfs", Backing::tmpfs, BlkEngine::inline_, LoopEngine::epoll},
};

class StoreTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const Way& way = GetParam();
    if (way.loop == LoopEngine::io_uring && probe_loop_engine(LoopEngine::automatic).engine != LoopEngine::io_uring) {
      GTEST_SKIP() << "no io_uring here: " << probe_loop_engine(LoopEngine::automatic).reason;
    }
    auto loop = make_loop(way.loop);
    ASSERT_TRUE(loop.has_value()) << loop.error().message;
    loop_ = std::move(*loop);
    options_.path = "ram:8M";
    if (way.backing != Backing::memory) {
      // The build directory stands for a disk; on most machines its file system has direct I/O.
      directory_.emplace(way.backing == Backing::tmpfs ? "/dev/shm" : ".");
      file_ = options_.path = directory_->make_file("disk", kDiskBytes);
    }
    if (way.backing == Backing::loop_4k) {
      device_.emplace(file_);
      if (device_->path().empty()) {
        GTEST_SKIP() << "no loop device of 4096-byte sectors can be made here (losetup -b 4096)";
      }
      options_.path = device_->path();
    }
    options_.engine = way.engine;
    options_.loop_has_uring = way.loop == LoopEngine::io_uring;
    open();
  }

  void open(const std::string& faults = "") {
    channel_.reset();
    store_.reset();
    options_.faults = faults;
    auto choice = make_blk_store(options_);
    ASSERT_TRUE(choice.has_value()) << choice.error().message;
    store_ = std::move(choice->store);
    reason_ = choice->reason;
    auto channel = store_->open_channel(*loop_, counters_);
    ASSERT_TRUE(channel.has_value()) << channel.error().message;
    channel_ = std::move(*channel);
  }
  void drain() {
    channel_->end_of_batch();
    run_until(*loop_, [&] { return channel_->in_flight() == 0; });
  }

  std::uint64_t failures(BlkFailure failure) const { return counters_.failures[static_cast<std::size_t>(failure)].get(); }
  std::uint8_t write(std::uint64_t offset, const GuestBuffer& buffer) {
    TestRequest request;
    return execute(*loop_, *channel_, request.data(BlkOpcode::out, offset, buffer));
  }
  std::uint8_t read(std::uint64_t offset, const GuestBuffer& buffer) {
    TestRequest request;
    return execute(*loop_, *channel_, request.data(BlkOpcode::in, offset, buffer));
  }
  std::uint8_t clear(BlkOpcode opcode, std::vector<BlkRequestRange> ranges) {
    TestRequest request;
    return execute(*loop_, *channel_, request.ranges(opcode, ranges));
  }
  bool in_file() const { return GetParam().backing != Backing::memory; }
  std::uint32_t block() const { return store_->info().block_bytes; }

  void check_model(std::uint64_t seed, int rounds);

  std::optional<test::TemporaryDirectory> directory_;
  std::optional<test::LoopDevice> device_;
  std::string file_;
  std::unique_ptr<Loop> loop_;
  BlkStoreOptions options_;
  std::unique_ptr<BlkStore> store_;
  std::string reason_;
  BlkChannelCounters counters_;
  std::unique_ptr<BlkChannel> channel_;
};

INSTANTIATE_TEST_SUITE_P(Ways, StoreTest, testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(StoreTest, what_was_written_is_read_back) {
  GuestBuffer written(128U << 10U), read_back(128U << 10U);
  written.fill(0x1122334455667788);
  ASSERT_EQ(write(4096, written), spec::kBlkStatusOk);
  ASSERT_EQ(read(4096, read_back), spec::kBlkStatusOk);
  EXPECT_TRUE(read_back.all_words_are(0x1122334455667788));
  GuestBuffer before(4096);
  ASSERT_EQ(read(0, before), spec::kBlkStatusOk);
  EXPECT_TRUE(before.all_words_are(0));
}

TEST_P(StoreTest, what_was_written_is_in_the_file) {
  if (!in_file()) {
    GTEST_SKIP() << "no file behind it";
  }
  GuestBuffer written(8192);
  written.fill(42);
  TestRequest request;
  ASSERT_EQ(execute(*loop_, *channel_, request.data(BlkOpcode::out, 8192, written).durable()), spec::kBlkStatusOk);
  channel_.reset();
  store_.reset();
  GuestBuffer plain(8192);
  const UniqueFd fd(::open(options_.path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::pread(fd.get(), plain.data(), plain.size(), 8192), 8192);
  EXPECT_TRUE(plain.all_words_are(42));
}

TEST_P(StoreTest, row_10_64_requests_in_one_batch_all_complete) {
  GuestBuffer buffer(64U << 10U);
  std::vector<TestRequest> requests(64);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].data(BlkOpcode::in, i * 4096, std::vector<iovec>{{buffer.data() + i % 16 * 4096, 4096}}).submit(*channel_);
  }
  drain();
  for (const TestRequest& request : requests) {
    EXPECT_EQ(request.completions(), 1U);
    EXPECT_EQ(request.status(), spec::kBlkStatusOk);
  }
}

TEST_P(StoreTest, last_block_and_many_segments_beyond_iov_max) {
  const std::size_t segments = 1500;
  GuestBuffer written(segments * block()), read_back(segments * block());
  std::vector<iovec> from, to;
  for (std::size_t i = 0; i < segments; ++i) {
    const std::uint64_t word = i + 1;
    for (std::size_t at = 0; at < block(); at += sizeof word) {
      std::memcpy(written.data() + i * block() + at, &word, sizeof word);
    }
    from.push_back({written.data() + i * block(), block()});
    to.push_back({read_back.data() + i * block(), block()});
  }
  const std::uint64_t offset = store_->info().capacity_bytes - segments * block();
  TestRequest out, in;
  ASSERT_EQ(execute(*loop_, *channel_, out.data(BlkOpcode::out, offset, from)), spec::kBlkStatusOk);
  ASSERT_EQ(execute(*loop_, *channel_, in.data(BlkOpcode::in, offset, to)), spec::kBlkStatusOk);
  EXPECT_EQ(std::memcmp(written.data(), read_back.data(), written.size()), 0);
}

TEST_P(StoreTest, misaligned_segments_bounce_and_wait_for_their_turn) {
  // More of them at once than there are bounce buffers, each longer than one.
  constexpr std::size_t kBytes = 80U << 10U;
  constexpr std::size_t kRequests = 40;
  std::vector<GuestBuffer> buffers;
  std::vector<TestRequest> requests(kRequests);
  for (const BlkOpcode opcode : {BlkOpcode::out, BlkOpcode::in}) {
    buffers.clear();
    for (std::size_t i = 0; i < kRequests; ++i) {
      buffers.emplace_back(kBytes, 3);
      if (opcode == BlkOpcode::out) {
        buffers[i].fill(i + 100);
      }
      std::vector<iovec> segments{{buffers[i].data(), 100}, {buffers[i].data() + 100, kBytes - 100}};
      requests[i].data(opcode, i * kBytes / 4096 * 4096, segments).submit(*channel_);
    }
    drain();
    for (std::size_t i = 0; i < kRequests; ++i) {
      EXPECT_EQ(requests[i].status(), spec::kBlkStatusOk);
      EXPECT_TRUE(buffers[i].all_words_are(i + 100)) << to_string(opcode) << i;
    }
  }
}

TEST_P(StoreTest, a_flush_that_comes_while_one_runs_gets_a_new_one_which_is_shared) {
  std::vector<TestRequest> flushes(20);
  for (TestRequest& flush : flushes) {
    flush.flush().submit(*channel_);
  }
  drain();
  for (const TestRequest& flush : flushes) {
    EXPECT_EQ(flush.completions(), 1U);
    EXPECT_EQ(flush.status(), spec::kBlkStatusOk);
  }
  if (GetParam().engine == BlkEngine::io_uring || GetParam().engine == BlkEngine::threads) {
    EXPECT_EQ(counters_.syncs.get(), 2U);
  }
}

TEST_P(StoreTest, row_15_short_transfers_and_eagain_are_resumed_at_the_right_place) {
  if (!in_file()) {
    GTEST_SKIP() << "makes no system calls";
  }
  open("short=1/2,eagain=1/5,seed=3");
  for (const std::size_t shift : {0U, 1U}) {  // the second bounces with direct I/O
    for (const std::size_t segment_bytes : {std::size_t{block()}, std::size_t{3} * block(), std::size_t{64} * block()}) {
      const std::size_t bytes = segment_bytes * 40;
      if (bytes > kDiskBytes) {
        continue;
      }
      GuestBuffer written(bytes, shift), read_back(bytes, shift);
      Prng prng(bytes + shift);
      std::vector<iovec> from, to;
      for (std::size_t at = 0; at < bytes; at += 8) {
        const std::uint64_t word = prng.next();
        std::memcpy(written.data() + at, &word, sizeof word);
      }
      for (std::size_t at = 0; at < bytes; at += segment_bytes) {
        from.push_back({written.data() + at, segment_bytes});
        to.push_back({read_back.data() + at, segment_bytes});
      }
      TestRequest out, in;
      ASSERT_EQ(execute(*loop_, *channel_, out.data(BlkOpcode::out, 0, from)), spec::kBlkStatusOk);
      ASSERT_EQ(execute(*loop_, *channel_, in.data(BlkOpcode::in, 0, to)), spec::kBlkStatusOk);
      ASSERT_EQ(std::memcmp(written.data(), read_back.data(), bytes), 0);
    }
  }
  EXPECT_GT(counters_.short_transfers.get(), 0U);
  EXPECT_GT(counters_.retries.get(), 0U);
}

TEST_P(StoreTest, row_27_write_zeroes_and_discard_work_or_fall_back) {
  GuestBuffer ones(64U << 10U), read_back(64U << 10U);
  ones.fill(~0ULL);
  for (const bool unmap : {false, true}) {
    ASSERT_EQ(write(0, ones), spec::kBlkStatusOk);
    ASSERT_EQ(clear(BlkOpcode::write_zeroes,
                    {{.offset = 0, .bytes = 16384, .unmap = unmap}, {.offset = 20480, .bytes = block(), .unmap = unmap}}),
              spec::kBlkStatusOk);
    ASSERT_EQ(read(0, read_back), spec::kBlkStatusOk);
    EXPECT_EQ(read_back.word(0), 0U);
    EXPECT_EQ(read_back.word(16376), 0U);
    EXPECT_EQ(read_back.word(16384), ~0ULL);
    EXPECT_EQ(read_back.word(20480), 0U);
    EXPECT_EQ(read_back.word(20480 + block()), ~0ULL);
  }
  ASSERT_EQ(write(0, ones), spec::kBlkStatusOk);
  EXPECT_EQ(clear(BlkOpcode::discard, {{.offset = 0, .bytes = block()}, {.offset = 4096, .bytes = 32768}}),
            spec::kBlkStatusOk);
  ASSERT_EQ(read(36864, read_back), spec::kBlkStatusOk);
  EXPECT_EQ(read_back.word(0), ~0ULL);
  // Durable ones end with a sync.
  TestRequest request;
  EXPECT_EQ(execute(*loop_, *channel_, request.ranges(BlkOpcode::write_zeroes, {{.offset = 0, .bytes = 4096}}).durable()),
            spec::kBlkStatusOk);
}

TEST_P(StoreTest, long_write_zeroes_by_writing) {
  GuestBuffer ones(6U << 20U), read_back(6U << 20U);
  ones.fill(~0ULL);
  ASSERT_EQ(write(0, ones), spec::kBlkStatusOk);
  ASSERT_EQ(clear(BlkOpcode::write_zeroes, {{.offset = 4096, .bytes = (5U << 20U)}, {.offset = 0, .bytes = 0}}),
            spec::kBlkStatusOk);
  ASSERT_EQ(read(0, read_back), spec::kBlkStatusOk);
  EXPECT_EQ(read_back.word(4088), ~0ULL);
  for (std::size_t at = 4096; at < 4096 + (5U << 20U); at += 8) {
    ASSERT_EQ(read_back.word(at), 0U) << at;
  }
  EXPECT_EQ(read_back.word(4096 + (5U << 20U)), ~0ULL);
}

TEST_P(StoreTest, row_29_granularity_is_the_backing_s_and_discard_frees_space) {
  const BlkStoreInfo& info = store_->info();
  if (GetParam().backing == Backing::ext4 || GetParam().backing == Backing::tmpfs) {
    struct statvfs volume{};
    ASSERT_EQ(::statvfs(file_.c_str(), &volume), 0);
    EXPECT_EQ(info.discard_granularity_bytes, volume.f_frsize);
  }
  ASSERT_GT(info.discard_granularity_bytes, 0U);
  EXPECT_GT(info.discard_bytes_max, 0U);
  if (!in_file()) {
    return;
  }
  GuestBuffer ones(4U << 20U);
  ones.fill(~0ULL);
  TestRequest flush;
  ASSERT_EQ(write(0, ones), spec::kBlkStatusOk);
  ASSERT_EQ(execute(*loop_, *channel_, flush.flush()), spec::kBlkStatusOk);
  struct stat before{}, after{};
  ASSERT_EQ(::stat(file_.c_str(), &before), 0);
  ASSERT_EQ(clear(BlkOpcode::discard, {{.offset = 0, .bytes = 4U << 20U}}), spec::kBlkStatusOk);
  ASSERT_EQ(::stat(file_.c_str(), &after), 0);
  EXPECT_GE(before.st_blocks - after.st_blocks, (3 << 20) / 512);
  EXPECT_EQ(after.st_size, before.st_size);
}

// What each byte of a block may be: the last value, or, while requests overlap, any value of theirs (a transfer may be cut
// anywhere, so not even words are whole then).
class Model {
 public:
  explicit Model(std::size_t blocks) : blocks_(blocks) {}

  void begin(std::size_t first, std::size_t count, std::optional<std::uint8_t> value, bool is_hint) {
    for (std::size_t i = first; i < first + count; ++i) {
      Block& block = blocks_[i];
      ++block.active;
      if (value) {
        block.group.insert(*value);
        block.allowed.insert(*value);
        block.overwritten = block.overwritten || !is_hint;
      }
    }
  }
  void end(std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) {
      Block& block = blocks_[i];
      // With the last of an overlapping group the older values are gone.
      if (--block.active == 0 && !block.group.empty()) {
        if (block.overwritten) {
          block.allowed = block.group;
        }
        block.group.clear();
        block.overwritten = false;
      }
    }
  }
  bool allows(std::size_t block, std::uint8_t value) const { return blocks_[block].allowed.contains(value); }

 private:
  struct Block {
    std::set<std::uint8_t> allowed{0};
    std::set<std::uint8_t> group;
    unsigned active = 0;
    bool overwritten = false;
  };
  std::vector<Block> blocks_;
};

void StoreTest::check_model(std::uint64_t seed, int rounds) {
  constexpr std::size_t kBlocks = 64;
  constexpr std::size_t kDepth = 6;
  struct Running {
    TestRequest request;
    GuestBuffer buffer{17U * 4096, 1};
    std::byte* data = nullptr;  // in buffer: at an odd address, or page-aligned
    std::size_t first = 0, count = 0;
    bool reads = false;
    bool in_use = false;
  };
  Prng prng(seed);
  Model model(kBlocks);
  std::array<Running, kDepth> running;
  std::uint8_t next_value = 1;
  const auto reap = [&](Running& one) {
    if (!one.in_use || one.request.pending()) {
      return;
    }
    one.in_use = false;
    ASSERT_EQ(one.request.status(), spec::kBlkStatusOk);
    for (std::size_t at = 0; one.reads && at < one.count * block(); at += 1) {
      const std::size_t at_block = one.first + at / block();
      const auto byte = std::to_integer<std::uint8_t>(one.data[at]);
      ASSERT_TRUE(model.allows(at_block, byte)) << "block " << at_block << " holds " << unsigned{byte} << ", seed " << seed;
    }
    model.end(one.first, one.count);
  };
  for (int round = 0; round < rounds; ++round) {
    for (Running& one : running) {
      reap(one);
      if (HasFatalFailure()) {
        return;
      }
      if (one.in_use) {
        continue;
      }
      one.first = prng.below(kBlocks);
      one.count = 1 + prng.below(std::min<std::size_t>(16, kBlocks - one.first));
      const std::uint64_t offset = one.first * block(), bytes = one.count * block();
      const std::uint64_t kind = prng.below(8);
      one.reads = kind < 3;
      one.in_use = true;
      if (kind < 6) {
        std::vector<iovec> segments;
        const bool odd = prng.chance(1, 3);
        const std::size_t unit = odd ? 1 : block();
        one.data = one.buffer.data() + (odd ? 0 : 4095);
        const std::size_t length = one.count * block();
        for (std::size_t at = 0; at < length;) {
          const std::size_t piece = std::min(length - at, unit * (1 + prng.below(3 * block() / unit)));
          segments.push_back({one.data + at, piece});
          at += piece;
        }
        const std::uint8_t value = one.reads ? 0 : next_value;
        if (!one.reads) {
          next_value = static_cast<std::uint8_t>(next_value == UINT8_MAX ? 1 : next_value + 1);
          std::memset(one.data, value, length);
        }
        model.begin(one.first, one.count, one.reads ? std::nullopt : std::optional<std::uint8_t>(value), false);
        one.request.data(one.reads ? BlkOpcode::in : BlkOpcode::out, offset, segments);
      } else {
        const bool discard = kind == 6;
        model.begin(one.first, one.count, 0, discard);
        one.request.ranges(discard ? BlkOpcode::discard : BlkOpcode::write_zeroes,
                           {{.offset = offset, .bytes = bytes, .unmap = !discard && prng.chance(1, 2)}});
      }
      one.request.submit(*channel_);
    }
    channel_->end_of_batch();
    loop_->poll(clock_now());
    if (std::ranges::all_of(running, [](const Running& one) { return one.request.pending(); })) {
      run_until(*loop_,
                [&] { return std::ranges::any_of(running, [](const Running& one) { return !one.request.pending(); }); });
    }
  }
  drain();
  for (Running& one : running) {
    reap(one);
  }
  GuestBuffer all(kBlocks * block());
  ASSERT_EQ(read(0, all), spec::kBlkStatusOk);
  for (std::size_t at = 0; at < all.size(); ++at) {
    ASSERT_TRUE(model.allows(at / block(), std::to_integer<std::uint8_t>(all.data()[at])))
        << "block " << at / block() << ", seed " << seed;
  }
}

TEST_P(StoreTest, row_28_overlapping_writes_discards_and_zeroes_lose_nothing) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    check_model(seed, 150);
    ASSERT_FALSE(HasFatalFailure());
    // The next seed's model starts from zeroes.
    ASSERT_EQ(clear(BlkOpcode::write_zeroes, {{.offset = 0, .bytes = 64U * block()}}), spec::kBlkStatusOk);
  }
}

TEST_P(StoreTest, row_28_with_short_transfers) {
  if (!in_file()) {
    GTEST_SKIP() << "makes no system calls";
  }
  open("short=1/3,eagain=1/10,seed=5");
  check_model(11, 150);
}

// A listener that remembers what it is told.
class ToldFailures final : public BlkFailureListener {
 public:
  void on_first_failure(BlkFailure failure, int code) noexcept override { told.emplace_back(failure, code); }
  std::vector<std::pair<BlkFailure, int>> told;
};

TEST_P(StoreTest, the_first_failure_of_each_kind_is_told_once_and_counts_outlive_the_channel) {
  if (!in_file() || GetParam().backing == Backing::loop_4k) {
    GTEST_SKIP() << "no file that could be shortened";
  }
  ToldFailures listener;
  counters_.listener = &listener;
  ASSERT_EQ(::truncate(file_.c_str(), 4096), 0);
  GuestBuffer buffer(4096);
  TestRequest request;
  for (int session = 0; session < 2; ++session) {
    auto channel = store_->open_channel(*loop_, counters_);
    ASSERT_TRUE(channel.has_value()) << channel.error().message;
    EXPECT_EQ(execute(*loop_, **channel, request.data(BlkOpcode::in, 65536, buffer)), spec::kBlkStatusIoErr);
  }
  EXPECT_EQ(failures(BlkFailure::end_of_file), 2U);
  EXPECT_EQ(listener.told, (std::vector<std::pair<BlkFailure, int>>{{BlkFailure::end_of_file, 0}}));
}

TEST_P(StoreTest, guest_memory_that_is_gone_gives_ioerr) {
  if (!in_file()) {
    GTEST_SKIP() << "copies by itself: a SIGBUS, see guest/sigbus.hpp";
  }
  void* const gone = ::mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  for (const BlkOpcode opcode : {BlkOpcode::in, BlkOpcode::out}) {
    TestRequest request;
    EXPECT_EQ(execute(*loop_, *channel_, request.data(opcode, 0, std::vector<iovec>{{gone, 4096}})), spec::kBlkStatusIoErr);
  }
  EXPECT_EQ(failures(BlkFailure::guest_memory), 2U);
  ::munmap(gone, 8192);
}

TEST_P(StoreTest, reading_beyond_a_file_that_was_shortened_gives_ioerr) {
  if (!in_file() || GetParam().backing == Backing::loop_4k) {
    GTEST_SKIP() << "no file that could be shortened";
  }
  ASSERT_EQ(::truncate(file_.c_str(), 4096 + 100), 0);
  GuestBuffer buffer(8192);
  EXPECT_EQ(read(0, buffer), spec::kBlkStatusIoErr);
  EXPECT_EQ(read(65536, buffer), spec::kBlkStatusIoErr);
  EXPECT_EQ(failures(BlkFailure::end_of_file), 2U);
  ASSERT_TRUE(store_->refresh().has_value());
  EXPECT_EQ(store_->info().capacity_bytes, (4096U + 100) / block() * block());
}

TEST_P(StoreTest, resize_shows_the_new_size_and_zeroes) {
  if (GetParam().backing == Backing::loop_4k) {
    const auto resized = store_->resize(kDiskBytes * 2);
    ASSERT_FALSE(resized.has_value());
    EXPECT_NE(resized.error().message.find("block device"), std::string::npos);
    return;
  }
  ASSERT_TRUE(store_->resize(2 * kDiskBytes).has_value());
  EXPECT_EQ(store_->info().capacity_bytes, 2 * kDiskBytes);
  GuestBuffer ones(4096), read_back(4096);
  ones.fill(~0ULL);
  ASSERT_EQ(read(2 * kDiskBytes - 4096, read_back), spec::kBlkStatusOk);
  EXPECT_TRUE(read_back.all_words_are(0));
  ASSERT_EQ(write(2 * kDiskBytes - 4096, ones), spec::kBlkStatusOk);
  // What was cut off doesn't come back.
  ASSERT_TRUE(store_->resize(kDiskBytes).has_value());
  ASSERT_TRUE(store_->resize(2 * kDiskBytes).has_value());
  ASSERT_EQ(read(2 * kDiskBytes - 4096, read_back), spec::kBlkStatusOk);
  EXPECT_TRUE(read_back.all_words_are(0));
  EXPECT_FALSE(store_->resize(kDiskBytes + 1).has_value());
}

// Else the file at its path would be meant, and the one that is served be changed.
TEST_P(StoreTest, an_image_that_was_replaced_is_not_resized) {
  if (!in_file() || GetParam().backing == Backing::loop_4k) {
    GTEST_SKIP() << "no file that could be replaced";
  }
  const std::string kept = file_ + ".kept";
  ASSERT_EQ(::rename(file_.c_str(), kept.c_str()), 0);
  EXPECT_FALSE(store_->refresh().has_value());
  ASSERT_EQ(::close(::open(file_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
  const auto resized = store_->resize(2 * kDiskBytes);
  ASSERT_FALSE(resized.has_value());
  EXPECT_NE(resized.error().message.find("is not the file any more"), std::string::npos);
  EXPECT_EQ(store_->info().capacity_bytes, kDiskBytes);
  ASSERT_EQ(::rename(kept.c_str(), file_.c_str()), 0);
  EXPECT_TRUE(store_->resize(2 * kDiskBytes).has_value());
}

TEST_P(StoreTest, no_heap_once_it_runs) {
  GuestBuffer buffer(64U << 10U), odd(64U << 10U, 1);
  std::vector<TestRequest> requests(32);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    switch (i % 4) {
      case 0:
        requests[i].data(BlkOpcode::in, i * 4096, buffer);
        break;
      case 1:
        requests[i].data(BlkOpcode::out, i * 4096, odd);
        break;
      case 2:
        requests[i].ranges(BlkOpcode::write_zeroes, {{.offset = 0, .bytes = 8192}});
        break;
      default:
        requests[i].flush();
        break;
    }
  }
  std::uint64_t before = 0;
  for (int round = 0; round < 6; ++round) {
    if (round == 3) {
      before = allocations.load();  // the first rounds start threads and grow tables
    }
    for (TestRequest& request : requests) {
      request.submit(*channel_);
    }
    drain();
  }
  EXPECT_EQ(allocations.load() - before, 0U);
}

TEST_P(StoreTest, the_log_line_names_the_engine_and_a_reason) {
  EXPECT_EQ(reason_.rfind(store_->info().engine + ": ", 0), 0U) << reason_;
  EXPECT_GT(reason_.size(), store_->info().engine.size() + 5);
  EXPECT_LE(store_->default_serial().size(), limits::kBlkIdBytes);
  // What lasts has a name of its own; a RAM disk is named by its device.
  EXPECT_EQ(store_->default_serial().empty(), store_->info().engine == "ram");
}

}  // namespace
}  // namespace ringway
