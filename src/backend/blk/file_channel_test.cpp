// What becomes of guest memory that the kernel couldn't use, over a channel whose calls the test answers. What holds for
// every channel is in store_test.cpp.
#include "backend/blk/file_channel.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "backend/blk/store_test_support.hpp"
#include "guest/mapping.hpp"
#include "guest/test_memory.hpp"

namespace ringway {
namespace {

using test::kPage;
using test::TestRequest;

class HandChannel final : public FileChannel {
 public:
  explicit HandChannel(BlkChannelCounters& counters) : FileChannel({}, counters) {}
  void answer_all(std::int32_t result) {
    for (FileOperation* const operation : std::exchange(calls_, {})) {
      on_result(*operation, result);
    }
  }

 private:
  [[nodiscard]] std::int32_t start(FileOperation& operation) noexcept override {
    calls_.push_back(&operation);
    return kPending;
  }

  std::vector<FileOperation*> calls_;
};

// A guest's memory as one file, which is sparse: what is touched of it takes room.
class LostMemory : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 16U << 20U;

  [[nodiscard]] std::uint64_t pages_touched() const {
    struct stat status{};
    EXPECT_EQ(::fstat(file_.get(), &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512 / kPage;
  }
  [[nodiscard]] iovec piece(std::uint64_t offset, std::uint64_t bytes) const {
    return {.iov_base = memory_->data() + offset, .iov_len = bytes};
  }
  void submit(TestRequest& request, std::vector<iovec> segments) {
    request.data(BlkOpcode::in, 0, std::move(segments));
    request.submit(channel_);
  }

  const UniqueFd file_ = test::memory_file(kBytes);
  const std::shared_ptr<Mapping> memory_ = *Mapping::create(file_.get(), GuestAddress{0}, UserAddress{0}, kBytes, 0);
  BlkChannelCounters counters_;
  HandChannel channel_{counters_};
};

TEST_F(LostMemory, OnlyTheLastPageOfEachSegmentIsLookedAt) {
  TestRequest request;
  submit(request, {piece(0, kBytes / 2), piece(kBytes / 2, kBytes / 2)});
  channel_.answer_all(-EFAULT);
  EXPECT_LE(pages_touched(), 2U);
  EXPECT_FALSE(memory_->poisoned());
}

TEST_F(LostMemory, TruncationIsFoundInWhicheverSegmentItIs) {
  test::truncate(file_, kBytes - kPage);
  TestRequest request;
  submit(request, {piece(0, 512), piece(kPage, kBytes - kPage), piece(512, 512)});
  channel_.answer_all(-EFAULT);
  EXPECT_TRUE(memory_->poisoned());
  EXPECT_EQ(counters_.failures[static_cast<std::size_t>(BlkFailure::guest_memory)].get(), 1U);
}

TEST_F(LostMemory, RequestsThatFailTogetherAreLookedAtOnce) {
  std::vector<TestRequest> together(64);
  for (std::uint64_t i = 0; i < together.size(); ++i) {
    submit(together[i], {piece(i * kPage, kPage)});
  }
  channel_.answer_all(-EFAULT);
  EXPECT_LE(pages_touched(), 1U);
  EXPECT_EQ(counters_.failures[static_cast<std::size_t>(BlkFailure::guest_memory)].get(), together.size());
  // Who comes later is looked at again.
  test::truncate(file_, 0);
  TestRequest later;
  submit(later, {piece(0, kPage)});
  channel_.answer_all(-EFAULT);
  EXPECT_TRUE(memory_->poisoned());
}

}  // namespace
}  // namespace ringway
