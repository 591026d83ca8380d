// What the command line takes, and what it says of a line that it can't take. CLI11's own sentences name neither what is
// allowed nor what was probably meant.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace ringway::cli {

struct NumberRange {
  std::uint64_t least = 0;
  std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
};

// For Option::transform(): a whole number in decimal digits. Other spellings (0x10, 1e3, 1.5) are refused, and leading
// zeros taken away, because CLI11 would read them as octal.
[[nodiscard]] CLI::Validator whole_number(NumberRange range);
// For Option::check(): one of these words.
[[nodiscard]] CLI::Validator one_of(std::vector<std::string> words);

// The whole message for a line that `app` couldn't parse: what is wrong, the name that was probably meant, and where help
// is.
[[nodiscard]] std::string command_line_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace ringway::cli
