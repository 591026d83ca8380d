// `ringway sim poll`: what each poll policy would have made of a recorded sequence of work, in virtual time.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/unique_fd.hpp"
#include "cli/commands.hpp"
#include "sim/poll_trace.hpp"

namespace ringway::cli {
namespace {

struct SimPollArguments {
  std::string trace;
  bool json = false;
};

Result<PollTrace> load_trace(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::vector<char> buffer(std::size_t{1} << 16U);
  ssize_t got = fd ? read(fd.get(), buffer.data(), buffer.size()) : -1;
  for (; got > 0; got = read(fd.get(), buffer.data(), buffer.size())) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  if (got < 0) {
    return fail_errno(errno, fmt::format("--trace: can't read '{}'", path));
  }
  return parse_poll_trace(text, path);
}

nlohmann::json replay_json(const PollTrace& trace, const std::vector<PollReplayRow>& rows) {
  nlohmann::json policies = nlohmann::json::array();
  for (const PollReplayRow& row : rows) {
    const PollSimResult& result = row.result;
    policies.push_back({{"policy", row.policy},
                        {"requests", result.requests},
                        {"mean_ns", result.mean.ns},
                        {"p50_ns", result.p50.ns},
                        {"p99_ns", result.p99.ns},
                        {"worker_cpu_ns", result.worker_cpu.ns},
                        {"worker_cpu_pct", 100 * result.worker_share()},
                        {"productive_spin_ns", result.outcome.productive_spin_ns},
                        {"unproductive_spin_ns", result.outcome.unproductive_spin_ns},
                        {"wakeups", result.wakeups},
                        {"wakeups_avoided", result.outcome.wakeups_avoided},
                        {"misses", result.outcome.misses}});
  }
  return {{"length_ns", trace.length.ns}, {"sources", trace.sources.size()}, {"policies", policies}};
}

int sim_poll(const SimPollArguments& arguments) {
  const Result<PollTrace> trace = load_trace(arguments.trace);
  if (!trace) {
    print_error(trace.error().message);
    return kExitFailure;
  }
  const std::vector<PollPolicy> policies = all_poll_policies();
  const std::vector<PollReplayRow> rows = replay_poll_trace(*trace, policies);
  std::cout << (arguments.json ? replay_json(*trace, rows).dump(2) + "\n" : poll_replay_table(rows));
  return 0;
}

}  // namespace

void add_sim(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<SimPollArguments>();
  CLI::App* sim = app.add_subcommand("sim", "Try policies in virtual time");
  sim->require_subcommand(1);
  sim->footer("ringway sim poll --help tells what a recording looks like.");
  CLI::App* poll = sim->add_subcommand("poll", "What each poll policy would have made of recorded work");
  poll->add_option("--trace", arguments->trace, "The recording, see below")->required()->type_name("FILE");
  poll->add_flag("--json", arguments->json, "One JSON object instead of a table");
  poll->footer(
      "The file has one event a line, in order of time:\n"
      "  time_ns,source[,kind]\n"
      "time_ns is in whole nanoseconds of any clock; source is a name, such as a disk's queue; kind is request (the driver "
      "made\n"
      "one available; also if left out) or completion (the store finished one). Of a source without completions each "
      "request\n"
      "completes at once. Empty lines, lines that start with #, and a first line that starts with time_ns are skipped:\n"
      "  time_ns,source,kind\n"
      "  1000,vda.0,request\n"
      "  9500,vda.0,completion\n"
      "  41000,vda.0,request\n"
      "  49300,vda.0,completion\n\n"
      "A row for each policy: requests, their latency, cpu_% of the worker's processor, spin+_% spun until work came and\n"
      "spin-_% spun in vain, wake-ups, wake-ups avoided, and misses (sleeps that ended so soon that spinning was cheaper).\n"
      "Events keep their times whatever the policy does, so rates can't be told from it. What a wake-up and a request cost "
      "are\n"
      "the simulation's own figures (src/sim/poll_sim.hpp).\n\n"
      "Example:\n"
      "  ringway sim poll --trace gaps.csv\n"
      "\nExit status: 0 replayed; 1 the file can't be read or isn't in that form; 2 bad options.");
  poll->callback([arguments, &exit_code] { exit_code = sim_poll(*arguments); });
}

}  // namespace ringway::cli
