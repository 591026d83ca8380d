// Where the daemon's log goes: stderr, without waiting for whoever reads it.
//
// A line that a pipe or a socket doesn't take at once is dropped, and counted; as soon as it takes one again, that one is
// preceded by how many are missing. A line is never cut.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "control/standard_output.hpp"

namespace ringway {

// Any thread.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // `fd` stays the caller's, and open for as long as this object is.
  explicit LogSink(int fd) : output_(fd) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override;

 private:
  StandardOutput output_;
  std::string unsent_;         // the rest of a line that was begun
  std::uint64_t dropped_ = 0;  // lines, since the last that was written
};

// A LogSink if stderr is a pipe or a socket, otherwise spdlog's, which has colours on a terminal.
[[nodiscard]] std::shared_ptr<spdlog::sinks::sink> make_stderr_sink();

// Lines that all sinks of the process have dropped. Any thread.
[[nodiscard]] std::uint64_t log_lines_dropped() noexcept;

}  // namespace ringway
