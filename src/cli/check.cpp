// `ringway check blk`: does a back-end keep to the specifications?

#include <iostream>

#include "bench/blk_check.hpp"
#include "cli/commands.hpp"
#include "control/config.hpp"

namespace ringway::cli {

void add_check(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BlkCheckOptions>();
  auto answer_limit = std::make_shared<std::string>("5s");
  CLI::App* check = app.add_subcommand("check", "Check a back-end's conformance");
  check->require_subcommand(1);
  CLI::App* blk = check->add_subcommand("blk", "Any vhost-user-blk back-end, a line per rule");
  blk->add_option("--socket,-s", options->socket_path, "The back-end's socket")->required()->type_name("PATH");
  blk->add_flag("--write", options->allow_writes,
                "Check the rules of writing too: they overwrite the disk's first and last megabyte");
  blk->add_option("--only", options->only, "Only the rules whose name contains this")->type_name("TEXT");
  blk->add_option("--answer-limit", *answer_limit, "A request that takes longer counts as never answered")
      ->capture_default_str()
      ->type_name("TIME");
  blk->add_flag("--json", options->json, "One JSON object instead of text");
  blk->footer(
      "Example:\n"
      "  ringway serve --disk path=ram:64M,socket=/tmp/a.sock &\n"
      "  ringway check blk --socket /tmp/a.sock --write");
  blk->callback([options, answer_limit, &exit_code] {
    const Result<Duration> limit = of_option("--answer-limit", parse_duration(*answer_limit));
    if (!limit) {
      print_error(limit.error().message);
      exit_code = kExitUsage;
      return;
    }
    options->answer_limit = *limit;
    options->on_wait = print_error;
    exit_code = run_blk_check(*options, std::cout);
  });
}

}  // namespace ringway::cli
