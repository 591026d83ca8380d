#include "backend/net/batched_io.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "backend/net/test_tap.hpp"
#include "base/unique_fd.hpp"

namespace ringway {
namespace {

using test::in_child;
using testing::Each;
using testing::ElementsAre;

// A pair of non-blocking descriptors that keep messages apart, as a tap does.
std::pair<UniqueFd, UniqueFd> make_sockets() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// A pipe of one page: what it takes depends on the length, so that a call behind a refused one may be let through.
std::pair<UniqueFd, UniqueFd> make_small_pipe() {
  int fds[2];
  EXPECT_EQ(::pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
  EXPECT_EQ(::fcntl(fds[1], F_SETPIPE_SZ, 4096), 4096);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Calls with messages of their own: "<number>" filled to a length, in two pieces unless the length is 1.
class Calls {
 public:
  explicit Calls(const std::vector<std::size_t>& lengths) : texts_(lengths.size()), pieces_(lengths.size()) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      texts_[i] = std::string(lengths[i], static_cast<char>('a' + i));
      const std::size_t half = lengths[i] / 2;
      pieces_[i] = {iovec{texts_[i].data(), half}, iovec{texts_[i].data() + half, lengths[i] - half}};
      calls.push_back({.pieces = half == 0 ? std::span(pieces_[i]).subspan(1) : std::span(pieces_[i])});
    }
  }
  [[nodiscard]] std::string text(std::size_t i) const {
    return texts_[i].substr(0, static_cast<std::size_t>(std::max(calls[i].result, 0)));
  }
  [[nodiscard]] std::vector<std::int32_t> results() const {
    std::vector<std::int32_t> results;
    for (const BatchedCall& call : calls) {
      results.push_back(call.result);
    }
    return results;
  }
  std::vector<BatchedCall> calls;

 private:
  std::vector<std::string> texts_;
  std::vector<std::array<iovec, 2>> pieces_;
};

class BatchedIoTest : public testing::TestWithParam<BatchedEngine> {};
INSTANTIATE_TEST_SUITE_P(, BatchedIoTest, testing::Values(BatchedEngine::automatic, BatchedEngine::plain),
                         [](const auto& engine) { return engine.param == BatchedEngine::plain ? "plain" : "automatic"; });

TEST_P(BatchedIoTest, WritesAndReadsInOrder) {
  auto [here, there] = make_sockets();
  BatchedIo out(here.get(), GetParam());
  BatchedIo in(there.get(), GetParam());
  EXPECT_FALSE(GetParam() == BatchedEngine::plain && out.uses_ring());
  for (const std::size_t count : {std::size_t{1}, BatchedIo::kRingCallsMin - 1, BatchedIo::kRingCallsMin, std::size_t{9}}) {
    std::vector<std::size_t> lengths(count);
    std::iota(lengths.begin(), lengths.end(), std::size_t{1});
    Calls sent(lengths);
    EXPECT_EQ(out.write(sent.calls).size(), count);
    Calls received(std::vector<std::size_t>(count, 100));
    const auto order = in.read(received.calls);
    ASSERT_EQ(order.size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(order[i], i);
      EXPECT_EQ(sent.calls[i].result, static_cast<std::int32_t>(i + 1));
      EXPECT_EQ(received.text(i), sent.text(i));
    }
  }
}

TEST_P(BatchedIoTest, TakesItsMostAgainAndAgain) {
  auto [here, there] = make_sockets();
  const int room = 1 << 20;
  ASSERT_EQ(::setsockopt(here.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
  BatchedIo out(here.get(), GetParam());
  BatchedIo in(there.get(), GetParam());
  for (int round = 0; round < 100; ++round) {
    Calls sent(std::vector<std::size_t>(BatchedIo::kCallsMax, 7));
    static_cast<void>(out.write(sent.calls));
    ASSERT_THAT(sent.results(), Each(7));
    Calls received(std::vector<std::size_t>(BatchedIo::kCallsMax, 64));
    static_cast<void>(in.read(received.calls));
    ASSERT_THAT(received.results(), Each(7));
  }
}

TEST_P(BatchedIoTest, NothingToReadIsAnAnswer) {
  auto [here, there] = make_sockets();
  BatchedIo in(there.get(), GetParam());
  ASSERT_EQ(::send(here.get(), "hello", 5, 0), 5);
  Calls received(std::vector<std::size_t>(5, 10));
  EXPECT_THAT(in.read(received.calls), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(received.results(), ElementsAre(5, -EAGAIN, -EAGAIN, -EAGAIN, -EAGAIN));
}

TEST_P(BatchedIoTest, BadMemoryFailsThatCallOnly) {
  auto [here, there] = make_sockets();
  BatchedIo out(here.get(), GetParam());
  Calls sent({5, 5, 5, 5, 5});
  iovec nowhere[2] = {{reinterpret_cast<void*>(8), 3}, {reinterpret_cast<void*>(8), 2}};
  sent.calls[1].pieces = nowhere;
  sent.calls[3].pieces = std::span(nowhere).first(1);
  static_cast<void>(out.write(sent.calls));
  EXPECT_THAT(sent.results(), ElementsAre(5, -EFAULT, 5, -EFAULT, 5));
}

TEST_P(BatchedIoTest, WriteInOrderLetsNoneOvertakeARefusedOne) {
  auto [reader, writer] = make_small_pipe();
  BatchedIo out(writer.get(), GetParam());
  Calls sent({3000, 2000, 500, 100, 10});
  out.write_in_order(sent.calls);
  EXPECT_THAT(sent.results(), ElementsAre(3000, -EAGAIN, -EAGAIN, -EAGAIN, -EAGAIN));
}

// Why there is write_in_order(), and why a caller of write() looks behind a refusal.
TEST(BatchedIo, ARefusedWriteMayBeOvertaken) {
  auto [reader, writer] = make_small_pipe();
  BatchedIo out(writer.get());
  if (!out.uses_ring()) {
    GTEST_SKIP() << "no io_uring here";
  }
  Calls sent({3000, 2000, 500, 100, 10});
  static_cast<void>(out.write(sent.calls));
  EXPECT_THAT(sent.results(), ElementsAre(3000, -EAGAIN, 500, 100, 10));
}

TEST(BatchedIo, NothingHoldsTheDescriptorAfterwards) {
  auto [reader, writer] = make_small_pipe();
  {
    BatchedIo out(writer.get());
    Calls sent({1, 1, 1, 1});
    static_cast<void>(out.write(sent.calls));
  }
  writer.reset();
  char bytes[8];
  EXPECT_EQ(::read(reader.get(), bytes, sizeof bytes), 4);
  EXPECT_EQ(::read(reader.get(), bytes, sizeof bytes), 0);  // the end: EAGAIN if somebody could still write
}

// From now on the call with this number fails with EPERM in this process.
bool forbid(int system_call) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(system_call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(BatchedIo, WithoutIoUringItIsALoop) {
  in_child([] {
    ASSERT_TRUE(forbid(SYS_io_uring_setup));
    auto [here, there] = make_sockets();
    BatchedIo out(here.get());
    EXPECT_FALSE(out.uses_ring());
    Calls sent({5, 5, 5, 5, 5});
    static_cast<void>(out.write(sent.calls));
    EXPECT_THAT(sent.results(), Each(5));
  });
}

TEST(BatchedIo, ARingThatIsTakenAwayIsReplacedByALoop) {
  in_child([] {
    auto [here, there] = make_sockets();
    BatchedIo out(here.get());
    ASSERT_TRUE(forbid(SYS_io_uring_enter));
    for (int round = 0; round < 2; ++round) {
      Calls sent({5, 5, 5, 5, 5});
      EXPECT_THAT(out.write(sent.calls), ElementsAre(0, 1, 2, 3, 4));
      EXPECT_THAT(sent.results(), Each(5));
      EXPECT_FALSE(out.uses_ring());
    }
    char bytes[8];
    int messages = 0;
    while (::recv(there.get(), bytes, sizeof bytes, 0) == 5) {
      ++messages;
    }
    EXPECT_EQ(messages, 10);
  });
}

}  // namespace
}  // namespace ringway
