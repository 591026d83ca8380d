#include "policy/poll_policy.hpp"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "base/check.hpp"

namespace ringway {

namespace {

constexpr std::string_view kAllowed =
    "allowed are never, always, fixed (50us) and fixed=TIME, e.g. fixed=20us, from 1ns to 1s; grow_shrink and "
    "grow_shrink=max=32us,grow=2,shrink=0; adaptive and adaptive=max=200us,budget=10%";

struct Unit {
  std::string_view name;
  std::int64_t nanoseconds;
};

constexpr Unit kUnits[] = {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};

std::unexpected<Error> refuse(std::string_view text, std::string_view why) {
  return fail(fmt::format("poll policy \"{}\": {}; {}", text, why, kAllowed));
}

struct NumberWithUnit {
  std::int64_t number = 0;
  std::string_view unit;
};

// `what` is the subject of the error's sentence.
Result<NumberWithUnit> parse_number(std::string_view text, std::string_view what, std::string_view part) {
  NumberWithUnit parsed;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), parsed.number);
  if (error == std::errc::result_out_of_range) {
    return refuse(text, fmt::format("{} is out of range", what));
  }
  if (error != std::errc{}) {
    return refuse(text, fmt::format("{} must start with a whole number", what));
  }
  parsed.unit = part.substr(static_cast<std::size_t>(end - part.data()));
  return parsed;
}

Result<Duration> parse_time(std::string_view text, std::string_view time, Duration min, Duration max) {
  RW_TRY_ASSIGN(const NumberWithUnit parsed, parse_number(text, "the time", time));
  if (parsed.unit.empty()) {
    return refuse(text, "the time needs a unit (ns, us, ms or s)");
  }
  for (const Unit& unit : kUnits) {
    if (unit.name != parsed.unit) {
      continue;
    }
    Duration duration;
    if (__builtin_mul_overflow(parsed.number, unit.nanoseconds, &duration.ns) || duration < min || duration > max) {
      return refuse(text, "the time is out of range");
    }
    return duration;
  }
  return refuse(text, fmt::format("there is no unit \"{}\" (ns, us, ms or s)", parsed.unit));
}

struct NumberRange {
  std::int64_t min;
  std::int64_t max;
  std::string_view unit;  // or nothing
};

Result<std::uint32_t> parse_count(std::string_view text, std::string_view name, std::string_view value,
                                  const NumberRange& range) {
  RW_TRY_ASSIGN(const NumberWithUnit parsed, parse_number(text, name, value));
  if (parsed.unit != range.unit || parsed.number < range.min || parsed.number > range.max) {
    return refuse(text, fmt::format("{} must be {}{} to {}{}", name, range.min, range.unit, range.max, range.unit));
  }
  return static_cast<std::uint32_t>(parsed.number);
}

// Takes "name=value" off the front of a list with commas.
struct Setting {
  std::string_view name;
  std::string_view value;
};

Setting take_setting(std::string_view& list) {
  const std::size_t comma = list.find(',');
  const std::string_view part = list.substr(0, comma);
  list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
  const std::size_t equals = part.find('=');
  return {.name = part.substr(0, equals),
          .value = equals == std::string_view::npos ? std::string_view{} : part.substr(equals + 1)};
}

Result<PollPolicy> parse_fixed(std::string_view text, std::string_view time) {
  RW_TRY_ASSIGN(const Duration window, parse_time(text, time, FixedPoll::kWindowMin, FixedPoll::kWindowMax));
  return PollPolicy(FixedPoll(window));
}

Result<PollPolicy> parse_grow_shrink(std::string_view text, std::string_view list) {
  constexpr std::int64_t kFactorMax = GrowShrinkPoll::kFactorMax;
  GrowShrinkPoll::Options options;
  do {
    const Setting setting = take_setting(list);
    if (setting.name == "max") {
      RW_TRY_ASSIGN(options.max, parse_time(text, setting.value, GrowShrinkPoll::kMaxMin, GrowShrinkPoll::kMaxMax));
    } else if (setting.name == "grow") {
      RW_TRY_ASSIGN(options.grow, parse_count(text, "grow", setting.value, {.min = 0, .max = kFactorMax, .unit = ""}));
      if (options.grow == 1) {
        return refuse(text, "grow=1 would never grow; 0 is the default, 2");
      }
    } else if (setting.name == "shrink") {
      RW_TRY_ASSIGN(options.shrink, parse_count(text, "shrink", setting.value, {.min = 0, .max = kFactorMax, .unit = ""}));
    } else {
      return refuse(text, fmt::format("there is no setting \"{}\"", setting.name));
    }
  } while (!list.empty());
  return PollPolicy(GrowShrinkPoll(options));
}

Result<PollPolicy> parse_adaptive(std::string_view text, std::string_view list) {
  AdaptivePoll::Options options;
  do {
    const Setting setting = take_setting(list);
    if (setting.name == "max") {
      RW_TRY_ASSIGN(options.max, parse_time(text, setting.value, AdaptivePoll::kMaxMin, AdaptivePoll::kMaxMax));
    } else if (setting.name == "budget") {
      RW_TRY_ASSIGN(const std::uint32_t percent,
                    parse_count(text, "budget", setting.value, {.min = 1, .max = 100, .unit = "%"}));
      options.budget_permille = percent * 10;
    } else {
      return refuse(text, fmt::format("there is no setting \"{}\"", setting.name));
    }
  } while (!list.empty());
  return PollPolicy(AdaptivePoll(options));
}

std::string time_text(Duration duration) {
  // The largest unit that gives a whole number.
  const Unit* best = &kUnits[0];
  for (const Unit& unit : kUnits) {
    if (duration.ns % unit.nanoseconds == 0) {
      best = &unit;
    }
  }
  return fmt::format("{}{}", duration.ns / best->nanoseconds, best->name);
}

struct TextOf {
  std::string operator()(const NeverPoll&) const { return "never"; }
  std::string operator()(const AlwaysPoll&) const { return "always"; }
  std::string operator()(const FixedPoll& policy) const { return "fixed=" + time_text(policy.window()); }
  std::string operator()(const GrowShrinkPoll& policy) const {
    const GrowShrinkPoll::Options& options = policy.options();
    return fmt::format("grow_shrink=max={},grow={},shrink={}", time_text(options.max), options.grow, options.shrink);
  }
  std::string operator()(const AdaptivePoll& policy) const {
    const AdaptivePoll::Options& options = policy.options();
    return fmt::format("adaptive=max={},budget={}%", time_text(options.max), options.budget_permille / 10);
  }
};

}  // namespace

FixedPoll::FixedPoll(Duration window) : window_(window) {
  RW_CHECK(window >= kWindowMin && window <= kWindowMax);
}

std::string_view to_string(PollReason reason) {
  switch (reason) {
    case PollReason::worked:
      return "worked";
    case PollReason::policy_never:
      return "policy_never";
    case PollReason::policy_always:
      return "policy_always";
    case PollReason::within_window:
      return "within_window";
    case PollReason::window_elapsed:
      return "window_elapsed";
    case PollReason::nothing_active:
      return "nothing_active";
    case PollReason::expected_soon:
      return "expected_soon";
    case PollReason::learning:
      return "learning";
    case PollReason::not_worth_it:
      return "not_worth_it";
    case PollReason::due_later:
      return "due_later";
    case PollReason::budget_spent:
      return "budget_spent";
    case PollReason::pressure:
      return "pressure";
  }
  std::unreachable();
}

std::string PollPolicy::to_string() const {
  return std::visit(TextOf{}, policy_);
}

Result<PollPolicy> parse_poll_policy(std::string_view text) {
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  if (equals == std::string_view::npos) {
    if (name == "never") {
      return PollPolicy(NeverPoll{});
    }
    if (name == "always") {
      return PollPolicy(AlwaysPoll{});
    }
    if (name == "fixed") {
      return PollPolicy(FixedPoll{});
    }
    if (name == "grow_shrink") {
      return PollPolicy(GrowShrinkPoll{});
    }
    if (name == "adaptive") {
      return PollPolicy(AdaptivePoll{});
    }
  } else {
    const std::string_view settings = text.substr(equals + 1);
    if (settings.ends_with(',')) {
      return refuse(text, "nothing follows the last comma");
    }
    if (name == "fixed") {
      return parse_fixed(text, settings);
    }
    if (name == "grow_shrink") {
      return parse_grow_shrink(text, settings);
    }
    if (name == "adaptive") {
      return parse_adaptive(text, settings);
    }
  }
  return refuse(text, "there is no such policy");
}

}  // namespace ringway
