#include <fmt/core.h>

#include <cstdio>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"

namespace ringway::cli {

void print_error(std::string_view message) {
  fmt::print(stderr, "ringway: {}\n", message);
}

}  // namespace ringway::cli

int main(int argc, char** argv) {
  CLI::App app("Gives virtual machines their disks and network cards over vhost-user, and measures whoever does.",
               "ringway");
  app.set_version_flag("--version", "ringway " RINGWAY_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  app.footer(
      "Start here:\n"
      "  truncate -s 1G disk.img\n"
      "  ringway serve --disk path=disk.img,socket=/tmp/disk.sock     serve a disk until Ctrl-C\n"
      "  ringway serve --net tap=tap0,socket=/tmp/net.sock            serve a network card (root, or a tap made by it)\n"
      "  ringway ctl stats                                            look at it from another terminal\n"
      "  ringway bench blk --self                                     what this machine can do\n"
      "  ringway check blk --socket /tmp/disk.sock                    does a back-end keep to the rules?\n"
      "\nringway <command> --help tells more.");
  int exit_code = 0;
  ringway::cli::add_serve(app, exit_code);
  ringway::cli::add_ctl(app, exit_code);
  ringway::cli::add_bench(app, exit_code);
  ringway::cli::add_check(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error);  // --help, --version
    }
    ringway::cli::print_error(ringway::cli::command_line_error(app, error));
    return ringway::cli::kExitUsage;
  }
  return exit_code;
}
