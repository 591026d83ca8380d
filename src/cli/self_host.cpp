#include "cli/self_host.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "cli/commands.hpp"
#include "cli/cpus.hpp"
#include "control/config.hpp"
#include "control/host.hpp"

namespace ringway::cli {
namespace {

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written <= 0 && errno != EINTR) {
      return;
    }
    text.remove_prefix(written > 0 ? static_cast<std::size_t>(written) : 0);
  }
}

// The pipe carries "+" when the socket stands, or the error.
[[noreturn]] void run_child(const SelfHostOptions& options, UniqueFd pipe) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  auto logger = spdlog::stderr_color_mt("ringway");
  logger->set_level(spdlog::level::warn);  // the bench's own output is what counts
  spdlog::set_default_logger(std::move(logger));
  const auto serve = [&]() -> Result<HostEnd> {
    HostOptions host_options;
    host_options.workers = options.workers;
    host_options.handle_signals = true;
    RW_TRY_ASSIGN(const std::unique_ptr<Host> host, Host::create(std::move(host_options)));
    std::vector<NetOptions> nets;
    if (options.net) {
      nets.push_back(*options.net);
    }
    RW_TRY(host->add_devices(options.disks, std::move(nets)));
    write_all(pipe.get(), "+");
    pipe.reset();
    const HostEnd end = host->run();
    if (end != HostEnd::clean) {
      std::_Exit(1);
    }
    return end;
  };
  const Result<HostEnd> served = serve();
  if (!served) {
    write_all(pipe.get(), served.error().message);
  }
  std::_Exit(served ? 0 : 1);
}

}  // namespace

Result<WorkerPoolOptions> self_workers(const SelfArguments& arguments, std::vector<int>& driver_cpus) {
  WorkerPoolOptions workers;
  RW_TRY_ASSIGN(workers.engine, of_option("--loop", parse_loop_engine(arguments.loop)));
  RW_TRY_ASSIGN(workers.poll, of_option("--poll", parse_poll(arguments.poll)));
  // Driver and worker apart, where there are two CPUs: the last is the worker's, since the first tends to have the
  // interrupts.
  const std::vector<int> cpus = allowed_cpus();
  if (!arguments.worker_cpus.empty()) {
    RW_TRY_ASSIGN(workers.cpus, take_cpus("--worker-cpus", arguments.worker_cpus));
  } else if (cpus.size() > 1) {
    workers.cpus = {cpus.back()};
  }
  workers.workers = static_cast<std::uint32_t>(std::max<std::size_t>(1, workers.cpus.size()));
  if (driver_cpus.empty() && cpus.size() > 1) {
    driver_cpus.assign(cpus.begin(), cpus.end() - 1);
  }
  return workers;
}

Result<std::unique_ptr<SelfHost>> SelfHost::start(const SelfHostOptions& options) {
  std::unique_ptr<SelfHost> self(new SelfHost);
  std::string directory = (std::filesystem::temp_directory_path() / "ringway-self-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) {
    return fail_errno(errno, fmt::format("can't make a directory '{}' for the socket", directory));
  }
  self->directory_ = directory;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return fail_errno(errno, "can't create a pipe");
  }
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  self->child_ = fork();
  if (self->child_ < 0) {
    return fail_errno(errno, "can't fork");
  }
  if (self->child_ == 0) {
    reading.reset();
    SelfHostOptions child_options = options;
    for (std::size_t i = 0; i < child_options.disks.size(); ++i) {
      child_options.disks[i].socket = self->socket_path(i);
    }
    if (child_options.net) {
      child_options.net->socket = self->socket_path();
    }
    run_child(child_options, std::move(writing));
  }
  writing.reset();
  std::string said;
  char buffer[1024];
  for (ssize_t got = 0; (got = read(reading.get(), buffer, sizeof buffer)) != 0;) {
    if (got < 0 && errno != EINTR) {
      break;
    }
    said.append(buffer, got > 0 ? static_cast<std::size_t>(got) : 0);
    if (said == "+") {
      return self;
    }
  }
  return fail(said.empty() ? "the back-end's process ended before it was ready" : said);
}

std::string SelfHost::socket_path(std::size_t disk) const {
  return fmt::format("{}/{}.sock", directory_, disk);
}

SelfHost::~SelfHost() {
  if (child_ > 0) {
    kill(child_, SIGTERM);
    while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

}  // namespace ringway::cli
