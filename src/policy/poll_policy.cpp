#include "policy/poll_policy.hpp"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "base/check.hpp"

namespace ringway {

namespace {

constexpr std::string_view kAllowed =
    "allowed are never, always, fixed (50us) and fixed=TIME, e.g. fixed=20us, from 1ns to 1s";

struct Unit {
  std::string_view name;
  std::int64_t nanoseconds;
};

constexpr Unit kUnits[] = {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};

std::unexpected<Error> refuse(std::string_view text, std::string_view why) {
  return fail(fmt::format("poll policy \"{}\": {}; {}", text, why, kAllowed));
}

Result<PollPolicy> parse_fixed(std::string_view text, std::string_view time) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(time.data(), time.data() + time.size(), number);
  if (error == std::errc::result_out_of_range) {
    return refuse(text, "the time is out of range");
  }
  if (error != std::errc{}) {
    return refuse(text, "the time must start with a whole number");
  }
  const std::string_view unit_name = time.substr(static_cast<std::size_t>(end - time.data()));
  if (unit_name.empty()) {
    return refuse(text, "the time needs a unit (ns, us, ms or s)");
  }
  for (const Unit& unit : kUnits) {
    if (unit.name != unit_name) {
      continue;
    }
    Duration window;
    if (__builtin_mul_overflow(number, unit.nanoseconds, &window.ns) || window < FixedPoll::kWindowMin ||
        window > FixedPoll::kWindowMax) {
      return refuse(text, "the time is out of range");
    }
    return PollPolicy(FixedPoll(window));
  }
  return refuse(text, fmt::format("there is no unit \"{}\" (ns, us, ms or s)", unit_name));
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
  }
  std::unreachable();
}

std::string PollPolicy::to_string() const {
  return std::visit(TextOf{}, policy_);
}

Result<PollPolicy> parse_poll_policy(std::string_view text) {
  constexpr std::string_view kFixedEquals = "fixed=";
  if (text == "never") {
    return PollPolicy(NeverPoll{});
  }
  if (text == "always") {
    return PollPolicy(AlwaysPoll{});
  }
  if (text == "fixed") {
    return PollPolicy(FixedPoll{});
  }
  if (text.starts_with(kFixedEquals)) {
    return parse_fixed(text, text.substr(kFixedEquals.size()));
  }
  return refuse(text, "there is no such policy");
}

}  // namespace ringway
