#include "cli/arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "control/config.hpp"

namespace ringway::cli {
namespace {

// "a, b or c"
std::string enumerate(const std::vector<std::string>& words, std::string_view last_joint) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += i == 0 ? "" : i + 1 == words.size() ? fmt::format(" {} ", last_joint) : ", ";
    text += words[i];
  }
  return text;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// The long options that may stand behind `app`, with their dashes.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* level = &app; level != nullptr; level = level->get_fallthrough() ? level->get_parent() : nullptr) {
    for (const CLI::Option* option : level->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
      }
    }
  }
  return names;
}

std::string meant(const std::string& word, const std::vector<std::string>& known) {
  return suggestion(word, {known.begin(), known.end()});
}

struct Chosen {
  const CLI::App* app;
  std::string command;  // as it is typed
};

// The command as far as it was understood, so that the advice fits.
Chosen chosen_command(const CLI::App& app) {
  Chosen chosen{&app, app.get_name()};
  while (!chosen.app->get_subcommands().empty()) {
    chosen.app = chosen.app->get_subcommands().front();
    chosen.command += " " + chosen.app->get_name();
  }
  return chosen;
}

// What other programs of the kind call an option of ours.
constexpr auto kOtherWords = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"--seconds", "--time"},
    {"--duration", "--time"},
    {"--runtime", "--time"},
    {"--ramp-time", "--warm-up"},
    {"--iodepth", "--depth"},
    {"--bs", "--block-size"},
    {"--rw", "--workload"},
    {"--numjobs", "--threads"},
    {"--timeout", "--stop-deadline"},
    {"--timeout", "--answer-limit"},
    {"--log-level", "--log"},
});

std::string meant_option(const std::string& word, const std::vector<std::string>& known) {
  for (const auto& [other, ours] : kOtherWords) {
    if (word == other && std::ranges::find(known, ours) != known.end()) {
      return fmt::format(" (did you mean '{}'?)", ours);
    }
  }
  return meant(word, known);
}

// `word` is the first that nobody took.
std::string unexpected_word(const Chosen& chosen, const std::string& word) {
  const std::vector<std::string> options = option_names(*chosen.app);
  const std::vector<std::string> commands = command_names(*chosen.app);
  if (word.starts_with('-')) {
    const std::string name = word.substr(0, word.find('='));
    if (std::ranges::find(options, name) != options.end()) {
      return fmt::format("{} belongs behind the command: {} {}", name, chosen.command, name);
    }
    const std::string near = meant_option(name, options);
    return fmt::format(
        "unknown option '{}'{}", name,
        near.empty() && !commands.empty() ? fmt::format("; a command comes first: {}", enumerate(commands, "or")) : near);
  }
  if (!commands.empty()) {
    return fmt::format("unknown command '{}'{}; there are {}", word, meant(word, commands), enumerate(commands, "and"));
  }
  const std::string as_option = "--" + word.substr(0, word.find('='));
  std::string hint;
  if (std::ranges::find(options, as_option) != options.end()) {
    hint = fmt::format(" (did you mean '{}'?)", as_option);
  } else if (word.find('=') != std::string::npos && std::ranges::find(options, "--disk") != options.end()) {
    hint = "; the key=value pairs of one device are one word, with commas and no spaces between them";
  }
  return fmt::format("unexpected argument '{}'{}", word, hint);
}

std::string explain(const CLI::App& app, const Chosen& chosen, const CLI::ParseError& error) {
  std::string text = error.what();
  const bool is_required = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (is_required || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    // A slip in a required option or command leaves a word over, which says more than what is missing.
    if (const std::vector<std::string> left_over = app.remaining(true); !left_over.empty()) {
      return unexpected_word(chosen, left_over.front());
    }
    if (const std::vector<std::string> commands = command_names(*chosen.app); is_required && !commands.empty()) {
      return fmt::format("a command is missing: {}", enumerate(commands, "or"));
    }
  }
  constexpr std::string_view kIsRequired = " is required";
  if (is_required && text.ends_with(kIsRequired)) {
    const std::string footer = chosen.app->get_footer();  // of --help, which has a paragraph of examples
    const std::size_t examples = footer.find("Example");
    return fmt::format(
        "{} is missing{}{}", text.substr(0, text.size() - kIsRequired.size()), examples == std::string::npos ? "" : "\n",
        examples == std::string::npos ? "" : footer.substr(examples, footer.find("\n\n", examples) - examples));
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const std::string name = text.substr(0, text.find(": "));
    if (text.ends_with(" missing")) {
      return fmt::format("{}: a value is missing", name);
    }
    if (text.find("At Most 1 ") != std::string::npos) {
      return fmt::format("{}: given more than once", name);
    }
  }
  return text;
}

}  // namespace

CLI::Validator whole_number(NumberRange range) {
  const auto take = [range](std::string& text) -> std::string {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < range.least || value > range.most) {
      return fmt::format("'{}' is not allowed; give a whole number from {} to {}", text, range.least, range.most);
    }
    text = fmt::to_string(value);
    return {};
  };
  return {take, ""};
}

CLI::Validator one_of(std::vector<std::string> words) {
  const auto take = [words = std::move(words)](std::string& text) -> std::string {
    return std::ranges::find(words, text) != words.end()
               ? ""
               : fmt::format("'{}' is not allowed; give {}", text, enumerate(words, "or"));
  };
  return {take, ""};
}

std::string command_line_error(const CLI::App& app, const CLI::ParseError& error) {
  const Chosen chosen = chosen_command(app);
  return fmt::format("{}\nTry `{} --help`.", explain(app, chosen, error), chosen.command);
}

}  // namespace ringway::cli
