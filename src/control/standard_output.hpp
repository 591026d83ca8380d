// Writes to stdout or stderr without waiting for whoever reads them. A reader of a pipe or a socket that has stopped reading
// would otherwise hold up the thread that writes for as long as it likes, be it the control thread, which serves all
// sessions and sees SIGTERM. Files and terminals are written to as usual.
//
// The descriptor's flags are left alone: other processes may share it. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/time.hpp"
#include "base/unique_fd.hpp"

namespace ringway {

class StandardOutput {
 public:
  // `fd` stays the caller's, and open for as long as this object is.
  explicit StandardOutput(int fd) noexcept;

  // True if a reader can hold up who writes: a pipe or a socket.
  [[nodiscard]] bool has_reader() const noexcept { return kind_ != Kind::other; }
  // Returns how many bytes of `text` were written: all, or what could be until waiting had taken `patience` altogether, or
  // until an error (the reader has gone).
  std::size_t write(std::string_view text, Duration patience = {}) noexcept;

 private:
  enum class Kind : std::uint8_t { pipe, socket, other };

  // As write(2); -1 with EAGAIN rather than waiting.
  [[nodiscard]] std::ptrdiff_t try_write(std::string_view text) const noexcept;

  const int fd_;
  const Kind kind_;
  UniqueFd own_;  // the same pipe, opened again so that only we don't wait for it; empty where that isn't possible
};

}  // namespace ringway
