// Choosing an engine, also where io_uring is forbidden: by a real seccomp filter in a child process. The sysctl is global to
// the machine, so its texts are checked from given facts.
#include "loop/make_loop.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <string>

#include "loop/clock.hpp"
#include "loop/io_uring_refusal.hpp"
#include "loop/uring_engine.hpp"

namespace ringway {
namespace {

using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

// From here on `call` fails with `error` in this process.
bool forbid_system_call(long call, int error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(filter), .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Runs `body` in a child process; an empty string from it is success, anything else the failure's text.
AssertionResult in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) {
    return AssertionFailure() << "no pipe";
  }
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const std::string text = body();
    static_cast<void>(!write(ends[1], text.data(), text.size()));
    _exit(text.empty() ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return AssertionSuccess();
  }
  return AssertionFailure() << "child ended with status " << status << ": " << text;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// What must hold where `call` fails with `error`, and the probe's reason must contain `words`.
std::string check_forbidden(long call, int error, std::string_view words) {
  if (!forbid_system_call(call, error)) {
    return "can't install the seccomp filter";
  }
  const LoopChoice choice = probe_loop_engine(LoopEngine::automatic);
  if (choice.engine != LoopEngine::epoll) {
    return "io_uring was chosen though it is forbidden";
  }
  if (!contains(choice.reason, words) || !contains(choice.reason, "epoll")) {
    return "unclear reason: " + choice.reason;
  }
  const auto forced = make_loop(LoopEngine::io_uring);
  if (forced.has_value() || !contains(forced.error().message, words)) {
    return "io_uring was forced, and the error isn't told: " + (forced.has_value() ? "" : forced.error().message);
  }
  auto loop = make_loop(LoopEngine::automatic);
  if (!loop.has_value()) {
    return loop.error().message;
  }
  if ((*loop)->uring() != nullptr) {
    return "the automatic choice isn't epoll";
  }
  (*loop)->wake();
  (*loop)->wait(clock_now(), clock_now() + Duration::seconds(20));
  return "";
}

TEST(MakeLoop, SeccompWithoutIoUringSetupGivesEpollAndSaysWhy) {
  EXPECT_TRUE(in_child([] { return check_forbidden(SYS_io_uring_setup, EPERM, "seccomp"); }));
}

TEST(MakeLoop, SeccompWithoutIoUringEnterGivesEpollAndSaysWhy) {
  EXPECT_TRUE(in_child([] { return check_forbidden(SYS_io_uring_enter, EPERM, "io_uring_enter"); }));
}

TEST(MakeLoop, SeccompWithoutIoUringRegisterGivesEpollAndSaysWhy) {
  EXPECT_TRUE(in_child([] { return check_forbidden(SYS_io_uring_register, EPERM, "io_uring_register"); }));
}

TEST(MakeLoop, KernelWithoutIoUringGivesEpollAndSaysWhy) {
  EXPECT_TRUE(in_child([] { return check_forbidden(SYS_io_uring_setup, ENOSYS, "without io_uring"); }));
}

TEST(MakeLoop, EpollWorksWhereNanosecondTimeoutsAreForbidden) {
  for (const int error : {ENOSYS, EPERM}) {
    EXPECT_TRUE(in_child([error]() -> std::string {
      if (!forbid_system_call(SYS_epoll_pwait2, error)) {
        return "can't install the seccomp filter";
      }
      auto loop = make_loop(LoopEngine::epoll);
      if (!loop.has_value()) {
        return loop.error().message;
      }
      const Instant deadline = clock_now() + Duration::microseconds(1500);
      (*loop)->wait(clock_now(), deadline);
      if (clock_now() < deadline) {
        return "the sleep was cut short";
      }
      (*loop)->wake();
      (*loop)->poll(clock_now());
      const std::uint64_t sleeps = (*loop)->sleeps();
      (*loop)->wait(clock_now(), Instant::never());
      return (*loop)->sleeps() == sleeps ? "" : "a wake-up was lost";
    })) << "errno "
        << error;
  }
}

TEST(MakeLoop, NoDescriptorsLeftIsAnErrorThatNamesTheLimit) {
#if defined(__has_feature)
#if __has_feature(undefined_behavior_sanitizer)
  GTEST_SKIP()
      << "UBSan's check of virtual tables opens a pipe to find out whether memory is readable, and takes its failure "
         "for a wild pointer";
#endif
#endif
  EXPECT_TRUE(in_child([]() -> std::string {
    const rlimit none{.rlim_cur = 3, .rlim_max = 3};
    // Descriptors 0 to 2 are open, and the pipe to the parent lies above the limit already.
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) {
      return "setrlimit failed";
    }
    for (const LoopEngine engine : {LoopEngine::epoll, LoopEngine::io_uring, LoopEngine::automatic}) {
      const auto loop = make_loop(engine);
      if (loop.has_value()) {
        return "a loop without descriptors";
      }
      if (!contains(loop.error().message, "open files")) {
        return "unclear: " + loop.error().message;
      }
    }
    return "";
  }));
}

TEST(MakeLoop, FewDescriptorsLeaveIoUringWithASmallFileTable) {
  EXPECT_TRUE(in_child([]() -> std::string {
    const rlimit few{.rlim_cur = 24, .rlim_max = 24};
    if (setrlimit(RLIMIT_NOFILE, &few) != 0) {
      return "setrlimit failed";
    }
    auto loop = make_loop(LoopEngine::io_uring);
    if (!loop.has_value()) {
      return loop.error().message;
    }
    const auto slot = (*loop)->uring()->register_file(0);
    return slot.has_value() ? "" : slot.error().message;
  }));
}

TEST(MakeLoop, ChoosesIoUringHereAndEpollWhenAsked) {
  const LoopChoice automatic = probe_loop_engine(LoopEngine::automatic);
  EXPECT_EQ(automatic.engine, LoopEngine::io_uring) << automatic.reason;
  EXPECT_TRUE(contains(automatic.reason, kernel_release()));
  EXPECT_EQ(probe_loop_engine(LoopEngine::epoll).engine, LoopEngine::epoll);
  auto loop = make_loop(LoopEngine::automatic);
  ASSERT_TRUE(loop.has_value()) << loop.error().message;
  EXPECT_NE((*loop)->uring(), nullptr);
}

TEST(IoUringRefusal, TextNamesTheCauseAndTheRemedy) {
  struct Row {
    RefusalFacts facts;
    const char* cause;
    const char* remedy;
  };
  const auto facts = [](int error, std::optional<int> setting, std::optional<std::uint64_t> memlock) {
    return RefusalFacts{.error = error,
                        .call = "io_uring_setup",
                        .disabled_setting = setting,
                        .memlock_bytes = memlock,
                        .release = "5.10.0-test"};
  };
  const Row rows[] = {
      {facts(EPERM, 2, {}), "io_uring_disabled = 2", "set it to 0"},
      {facts(EPERM, 1, {}), "io_uring_disabled = 1", "io_uring_group"},
      {facts(EPERM, 0, {}), "seccomp", "allow io_uring_setup"},
      {facts(EPERM, {}, {}), "seccomp", "allow io_uring_setup"},
      {facts(EACCES, {}, {}), "security module", "allow io_uring_setup"},
      {facts(ENOSYS, {}, {}), "5.10.0-test", "without io_uring"},
      {facts(EINVAL, {}, {}), "5.10.0-test", "5.19"},
      {facts(ENOMEM, {}, 65536), "RLIMIT_MEMLOCK is 64 KiB", "ulimit -l"},
      {facts(ENOMEM, {}, {}), "unlimited", "control group"},
      {facts(EMFILE, {}, {}), "descriptor", "ulimit -n"},
      {facts(EIO, {}, {}), "io_uring_setup failed", "Input/output error"},
  };
  for (const Row& row : rows) {
    const std::string text = explain_io_uring_refusal(row.facts);
    EXPECT_TRUE(contains(text, row.cause) && contains(text, row.remedy)) << text;
    EXPECT_FALSE(text.ends_with(".") || text.ends_with("\n"));
  }
}

}  // namespace
}  // namespace ringway
