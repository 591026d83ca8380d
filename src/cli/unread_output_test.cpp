// `ringway serve` under a supervisor that has stopped reading what it writes.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "control/api_client.hpp"
#include "control/test_host.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

using ::testing::HasSubstr;

// A pipe that is full, and from which nobody reads until drain().
class FullPipe {
 public:
  FullPipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    reading_.reset(ends[0]);
    writing_.reset(ends[1]);
    const std::string page(4096, '\n');
    while (write(writing_.get(), page.data(), page.size()) > 0) {
    }
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(fcntl(writing_.get(), F_SETFL, 0), 0);
  }
  [[nodiscard]] int writing() const { return writing_.get(); }
  [[nodiscard]] std::string drain() const {
    std::string all;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(reading_.get(), buffer, sizeof buffer)) > 0;) {
      all.append(buffer, static_cast<std::size_t>(got));
    }
    return all;
  }

 private:
  UniqueFd reading_, writing_;
};

class UnreadOutput : public ::testing::Test {
 protected:
  // Both pipes are full from the first line on.
  void start() {
    std::string program = RINGWAY_PROGRAM;
    std::string serve = "serve";
    std::string api_option = "--api=" + api_;
    std::string disk = "--disk=path=null:1M,socket=" + directory_.file("a.sock");
    char* argv[] = {program.data(), serve.data(), api_option.data(), disk.data(), nullptr};
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out_.writing(), STDOUT_FILENO);
      dup2(err_.writing(), STDERR_FILENO);
      execv(program.c_str(), argv);
      _exit(127);
    }
    const Instant deadline = clock_now() + Duration::seconds(20);
    while (!api_request(api_, "GET", "/v1/version", {}, Duration::seconds(2)) && clock_now() < deadline) {
    }
  }
  ~UnreadOutput() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  nlohmann::json ask(std::string_view method, std::string_view target, std::string_view body = {}) {
    const Result<ApiReply> reply = api_request(api_, method, target, body, Duration::seconds(10));
    EXPECT_TRUE(reply) << reply.error().message;
    return reply ? nlohmann::json::parse(reply->body, nullptr, false) : nlohmann::json();
  }
  // Its exit status, if it ends in time.
  int wait(Duration patience) {
    const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    pollfd watched{.fd = process.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&watched, 1, static_cast<int>(patience.ns / 1'000'000)), 1) << "it doesn't end";
    if (watched.revents == 0) {
      return -1;
    }
    int status = 0;
    EXPECT_EQ(waitpid(std::exchange(pid_, -1), &status, 0) > 0, true);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  TestDirectory directory_;
  const std::string api_ = directory_.file("api.sock");
  FullPipe out_, err_;
  pid_t pid_ = -1;
};

TEST_F(UnreadOutput, TheDaemonServesAndEndsBySigtermAllTheSame) {
  start();
  EXPECT_EQ(ask("GET", "/v1/devices").size(), 1U);
  kill(pid_, SIGUSR1);
  EXPECT_EQ(ask("GET", "/v1/devices").size(), 1U);
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(Duration::seconds(10)), 0);
}

TEST_F(UnreadOutput, WhatIsLostIsTold) {
  start();
  EXPECT_GT(ask("GET", "/v1/log").value("lines_dropped", 0), 0);
  static_cast<void>(err_.drain());
  const nlohmann::json disk = {{"path", "null:1M"}, {"socket", directory_.file("b.sock")}, {"name", "b"}};
  EXPECT_EQ(ask("POST", "/v1/disks", disk.dump()).value("name", ""), "b");
  const std::string log = err_.drain();
  EXPECT_THAT(log, HasSubstr(" of the log went unread and "));
  EXPECT_THAT(log, HasSubstr("disk 'b'"));
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(Duration::seconds(10)), 0);
}

// What can't be told can't hold up the end either.
TEST_F(UnreadOutput, AnErrorAtTheStart) {
  std::string program = RINGWAY_PROGRAM;
  std::string bananas = "bananas";
  char* argv[] = {program.data(), bananas.data(), nullptr};
  pid_ = fork();
  if (pid_ == 0) {
    dup2(err_.writing(), STDERR_FILENO);
    execv(program.c_str(), argv);
    _exit(127);
  }
  EXPECT_EQ(wait(Duration::seconds(10)), 2);
}

}  // namespace
}  // namespace ringway
