#include "bench/check_report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <ostream>
#include <utility>

#include "bench/report_error.hpp"

namespace ringway::check {
namespace {

const char* outcome_name(Outcome outcome) {
  return outcome == Outcome::pass ? "PASS" : outcome == Outcome::fail ? "FAIL" : "SKIP";
}

// Whatever the case of their letters.
bool has(std::string_view name, std::string_view part) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  return !std::ranges::search(name, part, same).empty() || part.empty();
}

}  // namespace

Verdict pass(std::string seen) {
  return {Outcome::pass, std::move(seen)};
}
Verdict failed(std::string seen) {
  return {Outcome::fail, std::move(seen)};
}
Verdict skip(std::string why) {
  return {Outcome::skip, std::move(why)};
}

bool Report::wants(std::string_view name) {
  const bool wanted = has(name, options_.only);
  any_ = any_ || wanted;
  return wanted;
}

void Report::add(const std::string& name, const char* where, const Verdict& verdict) {
  (verdict.outcome == Outcome::pass ? passed_ : verdict.outcome == Outcome::fail ? failed_ : skipped_)++;
  if (options_.json) {
    list_.push_back({{"rule", name}, {"outcome", outcome_name(verdict.outcome)}, {"seen", verdict.seen}, {"where", where}});
  } else {
    out_ << fmt::format("{}  {} - {} [{}]\n", outcome_name(verdict.outcome), name, verdict.seen, where) << std::flush;
  }
}

void Report::leave_out(const char* rules, const char* where, const std::string& why) {
  ++skipped_;
  if (!options_.json) {
    out_ << fmt::format("SKIP  {} - {} [{}]\n", rules, why, where);
  }
}

int Report::end() {
  if (!any_) {
    report_error(
        fmt::format("no rule that applies to this back-end has '{}' in its name; --list names all of them", options_.only),
        options_.json, out_);
    return 2;
  }
  if (options_.json) {
    const nlohmann::json sum = {{"rules", list_}, {"passed", passed_}, {"failed", failed_}, {"skipped", skipped_}};
    out_ << sum.dump(2) << '\n';
  } else {
    out_ << fmt::format("{} passed, {} failed, {} skipped\n", passed_, failed_, skipped_);
  }
  return failed_ == 0 ? 0 : 1;
}

int list_rules(std::span<const Listed> rules, const Report::Options& options, std::ostream& out) {
  nlohmann::json list = nlohmann::json::array();
  bool any = false;
  for (const Listed& rule : rules) {
    if (!has(rule.name, options.only)) {
      continue;
    }
    any = true;
    if (options.json) {
      list.push_back({{"rule", rule.name}, {"where", rule.where}, {"each_layout", rule.each_layout}});
    } else {
      out << fmt::format("{} [{}]{}\n", rule.name, rule.where, rule.each_layout ? "" : ", once");
    }
  }
  if (!any) {
    report_error(fmt::format("no rule has '{}' in its name", options.only), options.json, out);
    return 2;
  }
  if (options.json) {
    out << nlohmann::json{{"rules", list}}.dump(2) << '\n';
  }
  return 0;
}

}  // namespace ringway::check
