#include "control/standard_output.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <thread>

#include "control/test_host.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

struct Ends {
  UniqueFd reading, writing;
};

Ends make_pipe() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Ends make_socket() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string read_to_the_end(int fd) {
  std::string all;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(fd, buffer, sizeof buffer)) > 0;) {
    all.append(buffer, static_cast<std::size_t>(got));
  }
  return all;
}

constexpr std::size_t kMuch = std::size_t{8} << 20U;  // more than any pipe or socket takes

// Whoever waits here waits for ever: nobody reads.
TEST(StandardOutput, AReaderThatHasStoppedHoldsUpNobody) {
  for (Ends& ends : std::array{make_pipe(), make_socket()}) {
    StandardOutput output(ends.writing.get());
    EXPECT_TRUE(output.has_reader());
    const std::string much(kMuch, 'x');
    const std::size_t written = output.write(much);
    EXPECT_GT(written, 0U);
    EXPECT_LT(written, kMuch);
    EXPECT_EQ(output.write("line\n"), 0U);
    const Instant start = clock_now();
    EXPECT_EQ(output.write("line\n", Duration::milliseconds(20)), 0U);
    EXPECT_GE((clock_now() - start).ns, Duration::milliseconds(20).ns);
    // Others may share the open file; its flags are theirs too.
    EXPECT_EQ(fcntl(ends.writing.get(), F_GETFL) & O_NONBLOCK, 0);
    ends.writing.reset();
  }
}

// As a daemon under another user than whoever made its pipe: it can't open that again.
TEST(StandardOutput, APipeThatCannotBeOpenedAgainHoldsUpNobodyEither) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can play another user";
  }
  const Ends ends = make_pipe();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    if (setresuid(65534, 65534, 65534) != 0) {
      _exit(1);
    }
    StandardOutput output(ends.writing.get());
    const std::string much(kMuch, 'x');
    const std::size_t written = output.write(much, Duration::milliseconds(20));
    _exit(written > 0 && written < kMuch && output.write("line\n") == 0 ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "14: it waits for ever";
}

TEST(StandardOutput, AReaderThatIsSlowGetsAllWithinPatience) {
  for (Ends& ends : std::array{make_pipe(), make_socket()}) {
    std::string got;
    std::thread reader([&] { got = read_to_the_end(ends.reading.get()); });
    const std::string much(kMuch, 'x');
    EXPECT_EQ(StandardOutput(ends.writing.get()).write(much, Duration::seconds(60)), kMuch);
    ends.writing.reset();
    reader.join();
    EXPECT_TRUE(got == much);
  }
}

TEST(StandardOutput, AReaderThatHasGoneEndsIt) {
  std::signal(SIGPIPE, SIG_IGN);
  for (Ends& ends : std::array{make_pipe(), make_socket()}) {
    StandardOutput output(ends.writing.get());
    ends.reading.reset();
    EXPECT_EQ(output.write("line\n", Duration::seconds(60)), 0U);
    EXPECT_EQ(StandardOutput(ends.writing.get()).write("line\n", Duration::seconds(60)), 0U);
  }
}

TEST(StandardOutput, AFileTakesAll) {
  const TestDirectory directory;
  const std::string path = directory.file("log");
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  StandardOutput output(file.get());
  EXPECT_FALSE(output.has_reader());
  EXPECT_EQ(output.write(std::string(kMuch, 'x')), kMuch);
  EXPECT_EQ(std::filesystem::file_size(path), kMuch);
  EXPECT_FALSE(StandardOutput(-1).has_reader());
  EXPECT_EQ(StandardOutput(-1).write("x"), 0U);
}

}  // namespace
}  // namespace ringway
