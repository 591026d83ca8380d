// The subcommands of `ringway`. Each function adds one to the command line; when that one is chosen its callback runs and
// sets `exit_code`: 0; 1 for a failure, with one line on stderr; 2 for a bad command line; 3 and 4 of `serve` as its help
// says.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace ringway::cli {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

void add_serve(CLI::App& app, int& exit_code);
void add_ctl(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_check(CLI::App& app, int& exit_code);
void add_sim(CLI::App& app, int& exit_code);
void add_trace(CLI::App& app, int& exit_code);

// `text` as a part of the API's paths. Names come from the command line, so whatever isn't plain is escaped.
[[nodiscard]] std::string url_part(std::string_view text);

// "ringway: <message>" on stderr.
void print_error(std::string_view message);

// The error of a parser as that of an option: "--cpus: 'x' is not allowed; …".
template <typename T>
[[nodiscard]] Result<T> of_option(std::string_view option, Result<T> result) {
  if (!result) {
    result.error().message = std::string(option) + ": " + result.error().message;
  }
  return result;
}

}  // namespace ringway::cli
