// How the bytes of a frame are walked over where they lie: pieces of host memory (a guest's, as a rule), of any size and at
// any address. Pure, owned by nobody, valid as long as the pieces are.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "guest/access.hpp"

namespace ringway {

// A place in a list of pieces, moving forward. Empty pieces are skipped.
class NetCursor {
 public:
  NetCursor() = default;
  // Starts `skip` bytes behind the beginning of the first piece; at the end, if there are not that many.
  explicit NetCursor(std::span<const iovec> pieces, std::size_t skip = 0) noexcept : pieces_(pieces) { advance(skip); }

  // The next bytes that lie together, `max` at most; none only at the end or with a `max` of 0.
  [[nodiscard]] std::span<std::byte> take(std::size_t max) noexcept {
    while (!pieces_.empty()) {
      const iovec& piece = pieces_.front();
      const std::size_t left = piece.iov_len - offset_;
      if (left == 0) {
        pieces_ = pieces_.subspan(1);
        offset_ = 0;
        continue;
      }
      const std::span<std::byte> taken(static_cast<std::byte*>(piece.iov_base) + offset_, std::min(left, max));
      offset_ += taken.size();
      return taken;
    }
    return {};
  }
  void advance(std::size_t bytes) noexcept {
    while (bytes > 0) {
      const std::size_t taken = take(bytes).size();
      if (taken == 0) {
        return;
      }
      bytes -= taken;
    }
  }
  // Copies the next bytes into our memory; returns how many there were.
  std::size_t read(std::span<std::byte> to) noexcept {
    std::size_t done = 0;
    while (done < to.size()) {
      const std::span<const std::byte> taken = take(to.size() - done);
      if (taken.empty()) {
        break;
      }
      guest::copy(to.data() + done, taken.data(), taken.size());
      done += taken.size();
    }
    return done;
  }
  // The reverse; returns how many there was room for.
  std::size_t write(std::span<const std::byte> from) noexcept {
    std::size_t done = 0;
    while (done < from.size()) {
      const std::span<std::byte> taken = take(from.size() - done);
      if (taken.empty()) {
        break;
      }
      guest::copy(taken.data(), from.data() + done, taken.size());
      done += taken.size();
    }
    return done;
  }
  // Writes the next `bytes` bytes to `to` as pieces, as many as there are and as there is room for; returns the pieces.
  [[nodiscard]] std::span<iovec> list(std::size_t bytes, std::span<iovec> to) noexcept {
    std::size_t count = 0;
    while (bytes > 0 && count < to.size()) {
      const std::span<std::byte> taken = take(bytes);
      if (taken.empty()) {
        break;
      }
      to[count++] = {.iov_base = taken.data(), .iov_len = taken.size()};
      bytes -= taken.size();
    }
    return to.first(count);
  }

 private:
  std::span<const iovec> pieces_;
  std::size_t offset_ = 0;  // in the first one
};

// Copies `bytes` bytes, or as many as both sides have; returns how many.
inline std::size_t net_copy(NetCursor& to, NetCursor& from, std::size_t bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes) {
    const std::span<const std::byte> source = from.take(bytes - done);
    const std::size_t copied = to.write(source);
    done += copied;
    if (source.empty() || copied < source.size()) {
      break;
    }
  }
  return done;
}

}  // namespace ringway
