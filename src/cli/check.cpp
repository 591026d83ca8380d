// `ringway check blk` and `ringway check net`: does a back-end keep to the specifications?

#include <iostream>

#include "bench/blk_check.hpp"
#include "bench/net_check.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "control/config.hpp"

namespace ringway::cli {
namespace {

// What all checks have.
template <typename Options>
struct CheckArguments {
  Options options;
  std::string answer_limit = "5s";
  std::string port = "auto";  // of a network card
};

constexpr const char* kCheckExits =
    "\n\nExit status: 0 no rule failed; 1 one did; 2 bad options, no rule of that name, or no session with the back-end.";

template <typename Options>
void add_check_options(CLI::App& check, CheckArguments<Options>& arguments) {
  Options& options = arguments.options;
  check.add_option("--socket,-s", options.socket_path, "The back-end's socket")->type_name("PATH");
  check.add_option("--only", options.only, "Only the rules whose name contains this")->type_name("TEXT");
  check.add_flag("--list", options.list, "Name the rules, and where they stand; needs no back-end");
  check.add_option("--answer-limit", arguments.answer_limit, "What takes longer counts as never answered")
      ->capture_default_str()
      ->type_name("TIME");
  check.add_flag("--json", options.json, "One JSON object instead of text");
}

template <typename Options>
int run_check(const char* name, CheckArguments<Options>& arguments, int (*run)(const Options&, std::ostream&)) {
  Options& options = arguments.options;
  if (options.list == !options.socket_path.empty()) {
    print_error(std::string(name) + ": give either --socket <path> of a back-end, or --list");
    return kExitUsage;
  }
  const Result<Duration> limit = of_option("--answer-limit", parse_duration(arguments.answer_limit));
  if (!limit) {
    print_error(limit.error().message);
    return kExitUsage;
  }
  options.answer_limit = *limit;
  options.on_wait = print_error;
  return run(options, std::cout);
}

void add_check_blk(CLI::App& check, int& exit_code) {
  auto arguments = std::make_shared<CheckArguments<BlkCheckOptions>>();
  CLI::App* blk = check.add_subcommand("blk", "Any vhost-user-blk back-end, a line per rule");
  add_check_options(*blk, *arguments);
  blk->add_flag("--write", arguments->options.allow_writes,
                "Check the rules of writing too: they overwrite the disk's first and last megabyte");
  blk->footer(
      "Example:\n"
      "  ringway serve --disk path=ram:64M,socket=/tmp/a.sock &\n"
      "  ringway check blk --socket /tmp/a.sock --write" +
      std::string(kCheckExits));
  blk->callback([arguments, &exit_code] { exit_code = run_check("check blk", *arguments, run_blk_check); });
}

NetCheckPort port_of(const std::string& word) {
  return word == "silent"   ? NetCheckPort::silent
         : word == "loop"   ? NetCheckPort::loop
         : word == "source" ? NetCheckPort::source
                            : NetCheckPort::unknown;
}

void add_check_net(CLI::App& check, int& exit_code) {
  auto arguments = std::make_shared<CheckArguments<NetCheckOptions>>();
  CLI::App* net = check.add_subcommand("net", "Any vhost-user-net back-end, a line per rule");
  add_check_options(*net, *arguments);
  net->add_option("--port", arguments->port,
                  "What the back-end does with frames: loop (returns each to the pair that sent it), source (sends its own "
                  "without end), silent (sends none), or auto (a frame is sent to find out)")
      ->capture_default_str()
      ->check(one_of({"auto", "loop", "source", "silent"}));
  net->footer(
      "Most is seen of a back-end that returns frames to their sender; rules that need more than this one does are skipped, "
      "each with\n"
      "the reason. Frames go out to whatever the card is connected to: broadcast UDP in 198.18.0.0/15, and some that make "
      "no "
      "sense.\n\n"
      "Examples:\n"
      "  ringway serve --net loop,socket=/tmp/n.sock &\n"
      "  ringway check net --socket /tmp/n.sock\n"
      "  ringway check net --socket /tmp/n.sock --only 'receive buffers'\n"
      "  ringway check net --list" +
      std::string(kCheckExits));
  net->callback([arguments, &exit_code] {
    arguments->options.port = port_of(arguments->port);
    exit_code = run_check("check net", *arguments, run_net_check);
  });
}

}  // namespace

void add_check(CLI::App& app, int& exit_code) {
  CLI::App* check = app.add_subcommand("check", "Check a back-end's conformance");
  check->require_subcommand(1);
  add_check_blk(*check, exit_code);
  add_check_net(*check, exit_code);
}

}  // namespace ringway::cli
