#include "control/log_sink.hpp"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <atomic>

namespace ringway {
namespace {

// Relaxed: a count, which nothing is ordered by.
std::atomic<std::uint64_t> lines_dropped{0};

}  // namespace

void LogSink::sink_it_(const spdlog::details::log_msg& message) {
  flush_();
  const auto drop = [this] {
    ++dropped_;
    lines_dropped.fetch_add(1, std::memory_order_relaxed);
  };
  if (!unsent_.empty()) {
    drop();
    return;
  }
  spdlog::memory_buf_t text;
  if (dropped_ != 0) {
    const std::string notice = fmt::format("{} line{} of the log went unread and {} lost", dropped_,
                                           dropped_ == 1 ? "" : "s", dropped_ == 1 ? "is" : "are");
    formatter_->format({message.time, {}, message.logger_name, spdlog::level::warn, notice}, text);
  }
  formatter_->format(message, text);
  const std::string_view lines(text.data(), text.size());
  const std::size_t written = output_.write(lines);
  if (written == 0) {
    drop();
    return;
  }
  dropped_ = 0;
  unsent_ = lines.substr(written);
}

void LogSink::flush_() {
  unsent_.erase(0, output_.write(unsent_));
}

std::shared_ptr<spdlog::sinks::sink> make_stderr_sink() {
  if (StandardOutput(STDERR_FILENO).has_reader()) {
    return std::make_shared<LogSink>(STDERR_FILENO);
  }
  return std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
}

std::uint64_t log_lines_dropped() noexcept {
  return lines_dropped.load(std::memory_order_relaxed);
}

}  // namespace ringway
