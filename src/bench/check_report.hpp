// What `ringway check` says, whatever the device: a verdict for each rule, on a line of its own or as JSON, and their sum.
// Private to the checks.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/result.hpp"

namespace ringway::check {

enum class Outcome : std::uint8_t { pass, fail, skip };

struct Verdict {
  Outcome outcome = Outcome::pass;
  std::string seen;  // what was seen, or why it was skipped
};
[[nodiscard]] Verdict pass(std::string seen);
[[nodiscard]] Verdict failed(std::string seen);
[[nodiscard]] Verdict skip(std::string why);

class Report {
 public:
  struct Options {
    std::string_view only;  // part of the names of rules that are wanted, whatever the case of its letters; empty: all
    bool json = false;
  };
  Report(const Options& options, std::ostream& out) : options_(options), out_(out) {}

  // Whether a rule of this name was asked for.
  [[nodiscard]] bool wants(std::string_view name);
  void add(const std::string& name, const char* where, const Verdict& verdict);
  // Rules that are left out all together, as one: a line, but no object.
  void leave_out(const char* rules, const char* where, const std::string& why);
  // Prints the sum. The exit code: 0 if no rule failed, 1 if one did, 2 if no rule has the name that was asked for.
  [[nodiscard]] int end();

 private:
  Options options_;
  std::ostream& out_;
  nlohmann::json list_ = nlohmann::json::array();
  std::size_t passed_ = 0, failed_ = 0, skipped_ = 0;
  bool any_ = false;
};

// "split: used length of a read": of a rule that is tried with each layout of a ring, else its name alone.
template <typename Rule>
[[nodiscard]] std::string name_of(const Rule& rule, bool packed) {
  return std::string(rule.each_layout ? (packed ? "packed: " : "split: ") : "") + rule.name;
}

// All rules for the context's layout of rings; `judge` runs one.
template <typename Rule, typename Context, typename Judge>
void run_rules(std::span<const Rule> rules, const Context& context, Report& report, const Judge& judge) {
  for (const Rule& rule : rules) {
    if (context.packed && !rule.each_layout) {
      continue;
    }
    if (const std::string name = name_of(rule, context.packed); report.wants(name)) {
      const Result<Verdict> verdict = judge(rule, context);
      report.add(name, rule.where, verdict ? *verdict : failed(verdict.error().message));
    }
  }
}

// A line or an object for each rule, without a back-end.
struct Listed {
  const char* name;
  const char* where;
  bool each_layout;
};
int list_rules(std::span<const Listed> rules, const Report::Options& options, std::ostream& out);

}  // namespace ringway::check
