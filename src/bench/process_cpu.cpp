#include "bench/process_cpu.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "base/unique_fd.hpp"

namespace ringway {
namespace {

Result<std::string> read_small_file(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    return fail_errno(errno, fmt::format("cannot open {}", path));
  }
  char text[1024];
  const ssize_t bytes = read(fd.get(), text, sizeof text);
  if (bytes < 0) {
    return fail_errno(errno, fmt::format("cannot read {}", path));
  }
  return std::string(text, static_cast<std::size_t>(bytes));
}

// The number at the start of `text` after `skip` further fields.
Result<std::int64_t> field(std::string_view text, unsigned skip, const std::string& path) {
  for (; skip > 0; --skip) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) {
      return fail(fmt::format("{} has fewer fields than expected", path));
    }
    text.remove_prefix(space + 1);
  }
  std::int64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
    return fail(fmt::format("{} doesn't hold a number where one is expected", path));
  }
  return value;
}

// Its first number: time on a CPU; its second: run delay.
Result<Duration> schedstat_time(const std::string& directory, unsigned which = 0) {
  const std::string path = directory + "/schedstat";
  RW_TRY_ASSIGN(const std::string text, read_small_file(path));
  RW_TRY_ASSIGN(const std::int64_t ns, field(text, which, path));
  return Duration::nanoseconds(ns);
}

Result<Duration> stat_time(const std::string& directory) {
  const std::string path = directory + "/stat";
  RW_TRY_ASSIGN(const std::string text, read_small_file(path));
  // The name in field 2 may hold spaces and brackets; what follows its last bracket is regular: state is field 3, utime 14.
  const std::size_t bracket = text.rfind(')');
  if (bracket == std::string::npos || bracket + 2 > text.size()) {
    return fail(fmt::format("{} isn't in the expected form", path));
  }
  const std::string_view rest = std::string_view(text).substr(bracket + 2);
  RW_TRY_ASSIGN(const std::int64_t user, field(rest, 11, path));
  RW_TRY_ASSIGN(const std::int64_t system, field(rest, 12, path));
  return Duration::nanoseconds((user + system) * (1'000'000'000 / sysconf(_SC_CLK_TCK)));
}

}  // namespace

Result<Duration> process_cpu_time(pid_t pid) {
  const std::string directory = fmt::format("/proc/{}", pid);
  RW_TRY_ASSIGN(const Duration by_ticks, stat_time(directory));
  Duration by_threads;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(directory + "/task", error)) {
    // A thread may end between the listing and the read; the ticks below still count it.
    if (const Result<Duration> time = schedstat_time(task.path().string()); time) {
      by_threads = by_threads + *time;
    }
  }
  // Live threads only, but exact; or all threads, but coarse. The larger misses less.
  return std::max(by_threads, by_ticks);
}

Result<Duration> thread_cpu_time(pid_t thread) {
  const std::string directory = fmt::format("/proc/self/task/{}", thread);
  if (Result<Duration> time = schedstat_time(directory); time) {
    return time;
  }
  return stat_time(directory);
}

Result<Duration> thread_run_delay(pid_t thread) {
  return schedstat_time(fmt::format("/proc/self/task/{}", thread), 1);
}

}  // namespace ringway
