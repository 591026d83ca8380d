#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "base/plain_text.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "control/standard_output.hpp"

namespace ringway::cli {

void print_error(std::string_view message) {
  // Where nobody reads it, the program must end all the same.
  constexpr Duration kPatience = Duration::seconds(1);
  StandardOutput(STDERR_FILENO).write(fmt::format("ringway: {}\n", plain_text(message)), kPatience);
}

namespace {

// "--api" of "--api=". CLI11 would take the next word for the value, which may be the command.
std::string option_with_empty_value(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.size() > 3 && word.starts_with("--") && word.find('=') == word.size() - 1) {
      return std::string(word.substr(0, word.size() - 1));
    }
  }
  return {};
}

// Adds what a command of `ctl` is called here to the message about one that is called so elsewhere.
std::string with_usual_name(const CLI::App& app, std::string message) {
  constexpr std::array kCalledElsewhere = {
      std::pair{"delete", "remove"}, std::pair{"del", "remove"},    std::pair{"rm", "remove"},
      std::pair{"ls", "list"},       std::pair{"show", "list"},     std::pair{"status", "list"},
      std::pair{"create", "add"},    std::pair{"new", "add"},       std::pair{"stop", "quit"},
      std::pair{"exit", "quit"},     std::pair{"shutdown", "quit"}, std::pair{"metrics", "stats"}};
  if (app.got_subcommand("ctl")) {
    for (const auto& [elsewhere, here] : kCalledElsewhere) {
      const std::string unknown = fmt::format("unknown command '{}'", elsewhere);
      if (message.starts_with(unknown + ";")) {
        message.insert(unknown.size(), fmt::format(" (did you mean '{}'?)", here));
      }
    }
  }
  return message;
}

}  // namespace

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
      "  ringway trace                                                and see where its requests' time goes\n"
      "  ringway bench blk --self                                     what this machine can do\n"
      "  ringway check blk --socket /tmp/disk.sock                    does a back-end keep to the rules?\n"
      "\nringway <command> --help tells more.");
  int exit_code = 0;
  ringway::cli::add_serve(app, exit_code);
  ringway::cli::add_ctl(app, exit_code);
  ringway::cli::add_trace(app, exit_code);
  ringway::cli::add_bench(app, exit_code);
  ringway::cli::add_check(app, exit_code);
  ringway::cli::add_sim(app, exit_code);
  if (const std::string option = ringway::cli::option_with_empty_value(argc, argv); !option.empty()) {
    ringway::cli::print_error(fmt::format("{}: it is empty", option));
    return ringway::cli::kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error);  // --help, --version
    }
    ringway::cli::print_error(ringway::cli::with_usual_name(app, ringway::cli::command_line_error(app, error)));
    return ringway::cli::kExitUsage;
  }
  return exit_code;
}
