// For tests: a network driver that does one thing at a time and says in the test's output what went wrong.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "driver/net_driver.hpp"
#include "loop/clock.hpp"

namespace ringway {

// For what must happen; long, because the machine may be loaded. Nothing waits for it to pass.
inline constexpr Duration kNetTestLimit = Duration::seconds(30);

inline std::unique_ptr<NetDriver> connect_net_driver(const NetDriverOptions& options) {
  Result<std::unique_ptr<NetDriver>> driver = NetDriver::create(options);
  EXPECT_TRUE(driver) << (driver ? std::string() : driver.error().message);
  return driver ? std::move(*driver) : nullptr;
}

inline std::vector<std::byte> bytes_of(const NetDriverFrame& frame) {
  std::vector<std::byte> bytes;
  for (const iovec& piece : frame.pieces) {
    const auto* first = static_cast<const std::byte*>(piece.iov_base);
    bytes.insert(bytes.end(), first, first + piece.iov_len);
  }
  return bytes;
}

// The next frame; its buffers are the caller's. If none comes in time the test has failed.
[[nodiscard]] inline bool await_frame(NetDriverPair& pair, NetDriverFrame& frame, Duration limit = kNetTestLimit) {
  const Instant deadline = clock_now() + limit;
  while (pair.rx.receive({&frame, 1}) == 0) {
    if (!pair.rx.wait(deadline) && clock_now() >= deadline) {
      ADD_FAILURE() << "no frame on queue " << pair.rx.index() << ", which has " << pair.rx.posted() << " buffers";
      return false;
    }
  }
  return true;
}

// The next token of what was transmitted; ~0 if the test has failed.
[[nodiscard]] inline std::uint64_t await_transmitted(NetDriverTransmitQueue& queue, Duration limit = kNetTestLimit) {
  const Instant deadline = clock_now() + limit;
  std::uint64_t token = ~std::uint64_t{0};
  while (queue.reap_transmitted({&token, 1}) == 0) {
    if (!queue.wait(deadline) && clock_now() >= deadline) {
      ADD_FAILURE() << "nothing was transmitted on queue " << queue.index() << ", " << queue.in_flight() << " in flight";
      break;
    }
  }
  return token;
}

// Sends a frame from transmit buffer 0, to a back-end that sends it back, and compares.
[[nodiscard]] inline bool echo_once(NetDriverPair& pair, const std::vector<std::byte>& bytes) {
  std::memcpy(pair.tx.buffer(0).host, bytes.data(), bytes.size());
  const NetDriverTransmitQueue::Frame frame{.buffer = 0, .bytes = static_cast<std::uint32_t>(bytes.size())};
  if (pair.tx.transmit({&frame, 1}) != 1) {
    return false;
  }
  pair.tx.publish_and_kick();
  NetDriverFrame received;
  if (await_transmitted(pair.tx) != 0 || !await_frame(pair, received)) {
    return false;
  }
  const bool same = bytes_of(received) == bytes;
  pair.rx.give_back({&received, 1});
  pair.rx.fill();
  return same;
}

}  // namespace ringway
