// What is logged about one socket: not more lines than somebody would read. Who connects and hangs up ten thousand times a
// second, or sends nonsense in each of his sessions, would otherwise fill the disk that the log is on.
//
// Owner: the control thread. One for each endpoint, and its sessions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/time.hpp"

namespace ringway::vhost_user {

// How many lines may be written, and how many weren't.
class LineBudget {
 public:
  static constexpr std::uint32_t kLines = 40;  // in each
  static constexpr Duration kPeriod = Duration::seconds(10);

  // True if another line may be written at `now`; if not, it is counted.
  [[nodiscard]] bool may_write(Instant now) noexcept;
  // How many weren't, since the last call.
  [[nodiscard]] std::uint64_t take_left_out() noexcept { return std::exchange(left_out_, 0); }

 private:
  Instant began_;
  std::uint32_t lines_ = 0;
  std::uint64_t left_out_ = 0;
};

class SocketLog {
 public:
  explicit SocketLog(std::string device) : device_(std::move(device)) {}
  SocketLog(const SocketLog&) = delete;
  SocketLog& operator=(const SocketLog&) = delete;
  // Says how many of the lines that it has left out are still to be told of.
  ~SocketLog() { tell_left_out(); }

  void info(const std::string& text);
  void warn(const std::string& text);

 private:
  [[nodiscard]] bool may_write(LineBudget& budget);
  void tell_left_out();

  const std::string device_;
  // Apart, so that who connects often can't keep warnings out.
  LineBudget infos_;
  LineBudget warnings_;
};

}  // namespace ringway::vhost_user
