// Guest memory registered with a real io_uring.
#include "backend/blk/registered_memory.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include "backend/blk/store_test_support.hpp"
#include "guest/mapping.hpp"
#include "loop/io_uring_loop.hpp"

namespace ringway {
namespace {

using test::execute;
using test::run_until;
using test::TestRequest;

constexpr std::size_t kPiece = RegisteredMemory::kPieceBytes;
constexpr std::uint64_t kLowBytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t kHighBytes = 2 * kPiece + 8192;  // two pieces and a bit

std::shared_ptr<Mapping> anonymous(std::uint64_t guest, std::uint64_t bytes) {
  auto mapping = Mapping::create_anonymous(GuestAddress{guest}, UserAddress{guest}, bytes);
  EXPECT_TRUE(mapping.has_value());
  return *mapping;
}

class RegisteredMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loop = IoUringLoop::create();
    if (!loop) {
      GTEST_SKIP() << loop.error().message;
    }
    loop_ = std::move(*loop);
    low_ = anonymous(0, kLowBytes);
    high_ = anonymous(std::uint64_t{4} << 30U, kHighBytes);
    map_ = *RegionMap::create({low_, high_});
  }
  void settle(const RegisteredMemory& memory) {
    run_until(*loop_, [&] { return memory.settled(); });
  }
  static int find(const RegisteredMemory& memory, std::byte* first, std::size_t bytes) {
    const iovec segment{first, bytes};
    return memory.find({&segment, 1});
  }

  std::unique_ptr<IoUringLoop> loop_;
  IoThreads threads_{IoThreads::Limits{}};
  BlkChannelCounters counters_;
  std::shared_ptr<Mapping> low_, high_;
  std::shared_ptr<const RegionMap> map_;
};

// A disk that uses it.
class RegisteredDiskTest : public RegisteredMemoryTest {
 protected:
  void SetUp() override {
    RegisteredMemoryTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    const std::string path = directory_.make_file("disk", std::uint64_t{1} << 20U);
    auto choice = make_blk_store({.path = path, .engine = BlkEngine::io_uring, .registered = true});
    ASSERT_TRUE(choice.has_value()) << choice.error().message;
    store_ = std::move(choice->store);
    auto opened = store_->open_channel(*loop_, counters_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    channel_ = std::move(*opened);
    channel_->use_memory(map_);
  }

  test::TemporaryDirectory directory_{"."};
  std::unique_ptr<BlkStore> store_;
  std::unique_ptr<BlkChannel> channel_;
};

TEST_F(RegisteredMemoryTest, FindsWhatLiesInOnePiece) {
  RegisteredMemory memory(*loop_, *loop_, threads_, "disk");
  memory.use(map_);
  EXPECT_EQ(find(memory, high_->data(), 4096), RegisteredMemory::kNone) << "a worker doesn't wait for it";
  settle(memory);
  EXPECT_EQ(memory.registered_bytes(), kLowBytes + kHighBytes);

  const int first = find(memory, high_->data(), 4096);
  EXPECT_NE(first, RegisteredMemory::kNone);
  EXPECT_EQ(find(memory, high_->data(), kPiece), first);
  EXPECT_EQ(find(memory, high_->data() + kPiece - 1, 1), first);
  EXPECT_NE(find(memory, high_->data() + kPiece, 1), first);
  EXPECT_EQ(find(memory, high_->data() + kPiece - 1, 2), RegisteredMemory::kNone) << "in two pieces";
  EXPECT_NE(find(memory, high_->data() + kHighBytes - 8192, 8192), RegisteredMemory::kNone) << "the bit at the end";
  EXPECT_EQ(find(memory, high_->data() + kHighBytes - 8192, 8193), RegisteredMemory::kNone) << "beyond it";
  EXPECT_NE(find(memory, low_->data() + kLowBytes - 1, 1), RegisteredMemory::kNone) << "another region";
  EXPECT_EQ(find(memory, reinterpret_cast<std::byte*>(&memory), 1), RegisteredMemory::kNone) << "no guest memory";

  const std::array<iovec, 2> together{iovec{high_->data() + 4096, 512}, iovec{high_->data(), 512}};
  EXPECT_EQ(memory.find(together), first);
  const std::array<iovec, 2> apart{iovec{high_->data(), 512}, iovec{low_->data(), 512}};
  EXPECT_EQ(memory.find(apart), RegisteredMemory::kNone);
}

TEST_F(RegisteredMemoryTest, ANewTableKeepsWhatStaysAndDropsWhatGoes) {
  RegisteredMemory memory(*loop_, *loop_, threads_, "disk");
  memory.use(map_);
  settle(memory);
  const int kept = find(memory, high_->data(), 1);

  const std::shared_ptr<Mapping> added = anonymous(std::uint64_t{8} << 30U, 4096);
  memory.use(*RegionMap::create({high_, added}));
  EXPECT_EQ(memory.registered_bytes(), kHighBytes) << "at once, before anybody is told that the memory is free";
  EXPECT_EQ(find(memory, high_->data(), 1), kept);
  EXPECT_EQ(find(memory, low_->data(), 1), RegisteredMemory::kNone);
  settle(memory);
  EXPECT_NE(find(memory, added->data(), 4096), RegisteredMemory::kNone);

  memory.use(nullptr);
  EXPECT_EQ(memory.registered_bytes(), 0U);
  EXPECT_EQ(find(memory, high_->data(), 1), RegisteredMemory::kNone);
}

TEST_F(RegisteredMemoryTest, EndsWhileAPieceIsBeingPrepared) {
  {
    RegisteredMemory memory(*loop_, *loop_, threads_, "disk");
    memory.use(map_);
    memory.use(*RegionMap::create({high_}));
  }
  RegisteredMemory again(*loop_, *loop_, threads_, "disk");
  again.use(map_);
  settle(again);
  EXPECT_EQ(again.registered_bytes(), kLowBytes + kHighBytes);
}

// In a process of its own, without the right to lock memory beyond the limit.
TEST_F(RegisteredMemoryTest, GoesOnWithoutWhereTheLimitOfLockedMemoryIsReached) {
  const auto in_child = [this]() -> int {
    const rlimit limit{.rlim_cur = 2 * kLowBytes, .rlim_max = 2 * kLowBytes};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0)) {
      return 2;
    }
    auto loop = IoUringLoop::create({.entries = 8});
    if (!loop) {
      return 3;
    }
    IoThreads threads{IoThreads::Limits{}};
    RegisteredMemory memory(**loop, **loop, threads, "disk");
    memory.use(map_);
    while (!memory.settled()) {
      const Instant now = clock_now();
      (*loop)->wait(now, now + Duration::milliseconds(100));
    }
    const bool as_expected = memory.registered_bytes() == kLowBytes &&
                             find(memory, low_->data(), 512) != RegisteredMemory::kNone &&
                             find(memory, high_->data(), 512) == RegisteredMemory::kNone;
    return as_expected ? 0 : 4;
  };
  EXPECT_EXIT(::_exit(in_child()), testing::ExitedWithCode(0), "");
}

// In a process of its own, where no thread can be started.
TEST_F(RegisteredMemoryTest, GivesUpWhereThereIsNoThread) {
  const auto in_child = [this]() -> int {
    const rlimit limit{.rlim_cur = 0, .rlim_max = 0};
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0 || (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0)) {
      return 2;
    }
    auto loop = IoUringLoop::create({.entries = 8});
    if (!loop) {
      return 3;
    }
    IoThreads threads{IoThreads::Limits{}};
    if (threads.start_first()) {
      return 4;
    }
    RegisteredMemory memory(**loop, **loop, threads, "disk");
    memory.use(map_);
    // Settled, so no timer asks for ever whether a task is done that nobody will do.
    const Instant now = clock_now();
    const std::uint32_t handled = (*loop)->wait(now, now + Duration::milliseconds(20));
    return memory.settled() && handled == 0 && find(memory, low_->data(), 512) == RegisteredMemory::kNone ? 0 : 5;
  };
  EXPECT_EXIT(::_exit(in_child()), testing::ExitedWithCode(0), "");
}

// A table can change between the moment when a request is prepared and the one when it is handed to the kernel: a completion
// is handled, its request goes on with a further part, and then comes the message with the new table.
TEST_F(RegisteredDiskTest, ARequestThatIsPreparedSurvivesANewTable) {
  BlkChannel& channel = *channel_;
  TestRequest request;
  run_until(*loop_, [&] {
    EXPECT_EQ(execute(*loop_, channel, request.data(BlkOpcode::in, 0, {{low_->data(), 4096}})), spec::kBlkStatusOk);
    return counters_.registered.get() != 0;
  });
  const std::uint64_t before = counters_.registered.get();
  low_->data()[0] = std::byte{0x77};
  request.data(BlkOpcode::in, 0, {{low_->data(), 4096}}).submit(channel);
  channel.use_memory(nullptr);
  run_until(*loop_, [&] { return !request.pending(); });
  EXPECT_EQ(counters_.registered.get(), before + 1);
  EXPECT_EQ(request.status(), spec::kBlkStatusOk);
  EXPECT_EQ(low_->data()[0], std::byte{0});
}

TEST_F(RegisteredDiskTest, RequestsOfADiskUseItAndMoveTheRightBytes) {
  BlkChannel& channel = *channel_;

  std::byte* const guest = high_->data() + kPiece - 8192;  // the last pages of a piece, and the first of the next
  const auto transfer = [&](BlkOpcode opcode, std::vector<iovec> segments, bool durable = false) {
    TestRequest request;
    request.operation().request.durable = durable;
    return execute(*loop_, channel, request.data(opcode, 65536, std::move(segments)));
  };
  const auto fill = [](std::byte* at, std::uint8_t first, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
      at[i] = static_cast<std::byte>(first + i / 512);
    }
  };
  run_until(*loop_, [&] {
    EXPECT_EQ(transfer(BlkOpcode::in, {{guest, 4096}}), spec::kBlkStatusOk);
    return counters_.registered.get() != 0;
  });
  // One segment, out and in, in place and elsewhere.
  std::uint64_t before = counters_.registered.get();
  fill(guest, 7, 4096);
  EXPECT_EQ(transfer(BlkOpcode::out, {{guest, 4096}}, true), spec::kBlkStatusOk);
  EXPECT_EQ(transfer(BlkOpcode::in, {{guest + 4096, 4096}}), spec::kBlkStatusOk);
  EXPECT_EQ(std::memcmp(guest, guest + 4096, 4096), 0);
  EXPECT_EQ(counters_.registered.get(), before + 2);

  // A vector in one piece, where the kernel has that.
  before = counters_.registered.get();
  std::memset(guest, 0, 8192);
  EXPECT_EQ(transfer(BlkOpcode::in, {{guest + 4096, 1024}, {guest + 512, 3072}}), spec::kBlkStatusOk);
  EXPECT_EQ(guest[4096], std::byte{7});
  EXPECT_EQ(guest[512], std::byte{9}) << "the third sector";
  EXPECT_EQ(guest[0], std::byte{0});
  EXPECT_EQ(guest[512 + 3072], std::byte{0});
  EXPECT_EQ(counters_.registered.get(), before + (loop_->has_vectored_fixed() ? 1 : 0));

  // Across the border of two pieces, as one segment and as two: the ordinary way.
  before = counters_.registered.get();
  std::memset(guest, 0, 16384);
  EXPECT_EQ(transfer(BlkOpcode::in, {{guest + 6144, 4096}}), spec::kBlkStatusOk);
  EXPECT_EQ(guest[6144], std::byte{7});
  EXPECT_EQ(guest[6144 + 3584], std::byte{14}) << "the last sector, in the second piece";
  EXPECT_EQ(transfer(BlkOpcode::in, {{guest, 512}, {low_->data(), 3584}}), spec::kBlkStatusOk);
  EXPECT_EQ(low_->data()[0], std::byte{8});
  EXPECT_EQ(counters_.registered.get(), before);

  channel.use_memory(nullptr);
  EXPECT_EQ(transfer(BlkOpcode::in, {{guest, 4096}}), spec::kBlkStatusOk);
  EXPECT_EQ(guest[0], std::byte{7});
  EXPECT_EQ(counters_.registered.get(), before);
}

TEST(RegisteredMemory, IsRefusedWhereItCouldDoNothing) {
  EXPECT_FALSE(make_blk_store({.path = "ram:1M", .registered = true}).has_value());
  test::TemporaryDirectory directory(".");
  EXPECT_FALSE(make_blk_store({.path = directory.make_file("disk", 65536), .engine = BlkEngine::threads, .registered = true})
                   .has_value());
}

}  // namespace
}  // namespace ringway
