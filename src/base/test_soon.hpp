// For tests of what another thread does by itself.
#pragma once

#include <chrono>
#include <thread>

namespace ringway::test {

// True as soon as `condition` holds; false if it doesn't within the limit.
template <typename Condition>
bool soon(Condition condition, std::chrono::milliseconds limit = std::chrono::seconds(5)) {
  for (auto waited = std::chrono::milliseconds(0); waited < limit && !condition(); ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

}  // namespace ringway::test
