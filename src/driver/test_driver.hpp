// For tests: a driver that does one thing at a time and says in the test's output what went wrong.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <thread>

#include "driver/blk_driver.hpp"
#include "loop/clock.hpp"

namespace ringway {

// For what must happen; long, because the machine may be loaded. Nothing waits for it to pass.
inline constexpr Duration kTestLimit = Duration::seconds(30);

inline std::unique_ptr<BlkDriver> connect_driver(const BlkDriverOptions& options) {
  Result<std::unique_ptr<BlkDriver>> driver = BlkDriver::create(options);
  EXPECT_TRUE(driver) << (driver ? std::string() : driver.error().message);
  return driver ? std::move(*driver) : nullptr;
}
inline std::unique_ptr<BlkDriver> connect_driver(const std::string& socket) {
  return connect_driver(BlkDriverOptions{.socket_path = socket});
}

// Queues one request with the data buffer `slot` (a flush has none); the token is the slot.
inline void submit(BlkDriverQueue& queue, std::uint32_t type, std::uint64_t sector, std::uint32_t slot = 0,
                   std::uint32_t bytes = 4096) {
  const DriverBuffer data{.address = queue.buffer(slot).guest, .bytes = bytes, .device_writable = true};
  const bool has_data = type != spec::kBlkTypeFlush;
  ASSERT_TRUE(queue.submit({.type = type,
                            .sector = sector,
                            .token = slot,
                            .data = has_data ? std::span(&data, 1) : std::span<const DriverBuffer>{},
                            .ranges = {}}));
}

// Takes one completion. If none comes in time the test has failed, and the token is ~0.
inline BlkCompletion await_completion(BlkDriverQueue& queue, Duration limit = kTestLimit) {
  const Instant deadline = clock_now() + limit;
  BlkCompletion completion{.token = ~std::uint64_t{0}, .written_bytes = 0, .status = kStatusUntouched};
  while (queue.reap({&completion, 1}) == 0) {
    if (!queue.wait(deadline) && clock_now() >= deadline) {
      ADD_FAILURE() << "no completion on queue " << queue.index() << ", " << queue.in_flight() << " in flight";
      break;
    }
  }
  return completion;
}

// One request from start to end.
inline BlkCompletion transfer(BlkDriverQueue& queue, std::uint32_t type, std::uint64_t sector, std::uint32_t slot = 0,
                              std::uint32_t bytes = 4096) {
  submit(queue, type, sector, slot, bytes);
  queue.publish_and_kick();
  return await_completion(queue);
}

// True as soon as `condition` holds; false if it doesn't in time.
template <typename Condition>
bool eventually(Condition condition, Duration limit = kTestLimit) {
  const Instant deadline = clock_now() + limit;
  while (!condition()) {
    if (clock_now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

}  // namespace ringway
