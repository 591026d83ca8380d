#include "vhost_user/socket_log.hpp"

#include <spdlog/spdlog.h>

#include "loop/clock.hpp"

namespace ringway::vhost_user {

bool LineBudget::may_write(Instant now) noexcept {
  if (now - began_ >= kPeriod) {
    began_ = now;
    lines_ = 0;
  }
  if (lines_ < kLines) {
    ++lines_;
    return true;
  }
  ++left_out_;
  return false;
}

void SocketLog::info(const std::string& text) {
  if (may_write(infos_)) {
    spdlog::info("{}: {}", device_, text);
  }
}

void SocketLog::warn(const std::string& text) {
  if (may_write(warnings_)) {
    spdlog::warn("{}: {}", device_, text);
  }
}

bool SocketLog::may_write(LineBudget& budget) {
  const bool may = budget.may_write(clock_now());
  if (may) {
    tell_left_out();
  }
  return may;
}

void SocketLog::tell_left_out() {
  if (const std::uint64_t lines = infos_.take_left_out() + warnings_.take_left_out(); lines != 0) {
    spdlog::warn("{}: {} more lines about its socket were left out ({} of news and as many warnings in {} s are written)",
                 device_, lines, LineBudget::kLines, LineBudget::kPeriod.ns / Duration::seconds(1).ns);
  }
}

}  // namespace ringway::vhost_user
