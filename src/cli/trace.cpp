// `ringway trace`: where the microseconds of a running daemon's requests go.

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "control/api_client.hpp"
#include "control/config.hpp"
#include "control/trace_report.hpp"
#include "loop/clock.hpp"

namespace ringway::cli {
namespace {

using nlohmann::json;

struct TraceArguments {
  std::string api;
  std::string time = "5s";
  std::uint32_t every = 1;
  std::string slower_than;
  std::string device;
  std::string timeline;
  bool as_json = false;
  bool no_records = false;
};

constexpr std::size_t kSpansMax = 4'000'000;
constexpr Duration kBetweenLooks = Duration::milliseconds(50);

volatile std::sig_atomic_t interrupted = 0;

Result<json> ask(const TraceArguments& arguments, std::string_view method, std::string_view target, const json& body = {}) {
  RW_TRY_ASSIGN(const ApiReply reply, api_request(arguments.api, method, target, body.is_null() ? "" : body.dump()));
  json answer = json::parse(reply.body, nullptr, false);
  if (reply.status >= 400 || answer.is_discarded()) {
    const bool has_error = answer.is_object() && answer.contains("error") && answer["error"].is_string();
    return fail(has_error ? answer["error"].get<std::string>()
                          : fmt::format("the daemon answered with status {}", reply.status));
  }
  return answer;
}

struct Taken {
  std::vector<TracedSpan> spans;
  std::uint64_t too_fast = 0;  // for --slower-than
  std::uint64_t too_many = 0;  // beyond kSpansMax
  bool ended = false;          // the daemon gives no more: another client has taken over, or we were away for too long
  std::uint64_t dropped = 0;   // by the daemon
};

Result<> take_spans(const TraceArguments& arguments, Duration least, Taken& taken) {
  RW_TRY_ASSIGN(const json answer, ask(arguments, "GET", "/v1/trace/records"));
  if (!answer.is_object() || !answer.contains("records")) {
    return fail("the daemon's answer holds no records; are both of one version?");
  }
  RW_TRY_ASSIGN(std::vector<TracedSpan> spans, spans_of_json(answer["records"]));
  taken.dropped = answer.value("dropped", std::uint64_t{0});
  taken.ended = !answer.value("following", true);
  for (TracedSpan& span : spans) {
    if (!arguments.device.empty() && span.device != arguments.device) {
      continue;
    }
    if (span.whole() < least) {
      ++taken.too_fast;
    } else if (taken.spans.size() == kSpansMax) {
      ++taken.too_many;
    } else {
      taken.spans.push_back(std::move(span));
    }
  }
  return {};
}

Result<Taken> follow(const TraceArguments& arguments, Duration time, Duration least) {
  RW_TRY_ASSIGN(const json before, ask(arguments, "GET", "/v1/trace"));
  if (before.value("records", false)) {
    return fail(
        "somebody else takes this daemon's records; let that one end first (it does by itself 5 s after its client)");
  }
  RW_TRY(ask(arguments, "POST", "/v1/trace", {{"every", arguments.every}, {"records", true}}));
  struct sigaction interrupt{};
  interrupt.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &interrupt, nullptr);
  Taken taken;
  Result<> outcome;
  const Instant end = clock_now() + time;
  while (outcome && !taken.ended && interrupted == 0 && clock_now() < end) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(kBetweenLooks, end - clock_now()).ns));
    outcome = take_spans(arguments, least, taken);
  }
  if (taken.ended) {
    return taken;  // it isn't ours to end
  }
  const Result<json> ended =
      ask(arguments, "POST", "/v1/trace", {{"every", before.value("every", std::uint64_t{0})}, {"records", false}});
  RW_TRY(std::move(outcome));
  RW_TRY(ended);
  return taken;
}

int trace(const TraceArguments& arguments) {
  const auto parsed = [&]() -> Result<std::pair<Duration, Duration>> {
    RW_TRY_ASSIGN(const Duration time, of_option("--time", parse_duration(arguments.time)));
    Duration least;
    if (!arguments.slower_than.empty()) {
      RW_TRY_ASSIGN(least, of_option("--slower-than", parse_duration(arguments.slower_than)));
    }
    return std::pair{time, least};
  }();
  if (!parsed) {
    print_error(parsed.error().message);
    return kExitUsage;
  }
  const auto failed = [](const Error& error) {
    print_error(error.message);
    return kExitFailure;
  };
  if (arguments.no_records) {
    const Result<json> status = ask(arguments, "GET", "/v1/trace");
    if (!status) {
      return failed(status.error());
    }
    const std::string table = trace_status_table(*status);
    fmt::print("{}", arguments.as_json ? status->dump(2) + "\n" : table.empty() ? "nothing was followed yet\n" : table);
    return 0;
  }
  // What can fail fails before the time that it takes, and leaves a recording of earlier alone.
  const std::string known = arguments.device.empty() ? "/v1/version" : "/v1/devices/" + url_part(arguments.device);
  if (const Result<json> answer = ask(arguments, "GET", known); !answer) {
    return failed(answer.error());
  }
  const auto cannot_write = [&] {
    return failed(fail_errno(errno, fmt::format("can't write '{}'", arguments.timeline)).error());
  };
  if (!arguments.timeline.empty() && !std::ofstream(arguments.timeline, std::ios::app)) {
    return cannot_write();
  }
  const Result<Taken> taken = follow(arguments, parsed->first, parsed->second);
  if (!taken) {
    return failed(taken.error());
  }
  if (!arguments.timeline.empty()) {
    std::ofstream timeline(arguments.timeline, std::ios::trunc);
    timeline << chrome_timeline(taken->spans);
    timeline.close();
    if (!timeline) {
      return cannot_write();
    }
  }
  if (arguments.as_json) {
    fmt::print("{}\n", json{{"requests", stage_table_json(taken->spans)},
                            {"followed", taken->spans.size()},
                            {"too_fast", taken->too_fast},
                            {"ended_early", taken->ended},
                            {"dropped", taken->dropped + taken->too_many}}
                           .dump(2, ' ', false, json::error_handler_t::replace));
    return taken->ended ? kExitFailure : 0;
  }
  if (taken->spans.empty()) {
    fmt::print("no request {}was followed {}\n", taken->too_fast != 0 ? "that was slow enough " : "",
               interrupted != 0 ? "until you stopped it" : "within " + arguments.time);
  }
  fmt::print("{}", stage_table(taken->spans));
  if (taken->too_fast != 0) {
    fmt::print("{} more took less than {}\n", taken->too_fast, arguments.slower_than);
  }
  if (taken->dropped + taken->too_many != 0) {
    fmt::print(
        "{} more were followed and dropped, since they came faster than they were taken: follow fewer (--every 100)\n",
        taken->dropped + taken->too_many);
  }
  if (!arguments.timeline.empty()) {
    fmt::print("'{}' opens in https://ui.perfetto.dev\n", arguments.timeline);
  }
  if (taken->ended) {
    print_error(
        "the daemon gave no more before the time was over: another client has changed what is followed, or this one was "
        "stopped for more than 5 s");
    return kExitFailure;
  }
  return 0;
}

}  // namespace

void add_trace(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<TraceArguments>();
  CLI::App* command = app.add_subcommand("trace", "See where the time of a running daemon's requests goes");
  command->add_option("--api", arguments->api, "Its API socket (default: where `ringway serve` puts it)")->type_name("PATH");
  command->add_option("--time", arguments->time, "How long to follow requests (default: 5s)")->type_name("TIME");
  command->add_option("--every", arguments->every, "Follow one request in so many (default: 1, all)")
      ->type_name("N")
      ->check(CLI::Range(1U, 1'000'000'000U));
  command->add_option("--slower-than", arguments->slower_than, "Only requests that took at least that long")
      ->type_name("TIME");
  command->add_option("--device", arguments->device, "Only the disk or network card of that name")->type_name("NAME");
  command->add_option("--timeline", arguments->timeline, "Write a timeline to that file, for Perfetto or chrome://tracing")
      ->type_name("FILE");
  CLI::Option* so_far = command->add_flag(
      "--so-far", arguments->no_records,
      "What the daemon has counted since its start: the one request in 1024 that it always follows, and what clients had it "
      "follow");
  for (const char* following : {"--time", "--every", "--slower-than", "--device", "--timeline"}) {
    so_far->excludes(command->get_option(following));
  }
  command->add_flag("--json", arguments->as_json, "JSON instead of tables");
  command->footer(
      "Intervals, each up to its stage:\n"
      "  waited      since the worker saw the kick (a polled ring has none)\n"
      "  parsing\n"
      "  submitting  to the store or port; where that is io_uring, with the turn's others to the kernel\n"
      "  serving     by the store or port\n"
      "  publishing  until the driver can see it\n"
      "  calling     until the driver was notified (one that polls isn't)\n"
      "\nExamples:\n"
      "  ringway trace\n"
      "  ringway trace --device vm1 --slower-than 100us --timeline slow.json\n"
      "  ringway trace --every 100 --time 60s --json\n"
      "\nThe same stages are probes in the program: perf list sdt, bpftrace -e 'usdt:ringway:stage_completed { … }'.\n"
      "\nExit status: 0 followed; 1 no daemon, or it failed; 2 bad options.");
  command->callback([arguments, &exit_code] { exit_code = trace(*arguments); });
}

}  // namespace ringway::cli
