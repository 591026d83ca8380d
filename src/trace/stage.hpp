// The stages of a request's life in Ringway, and what is known of one request that was followed. Plain values.
//
// The same stages are those of a network card's frames. What a request didn't pass is absent: no kick if its ring was
// polled, no call if its driver polls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringway {

enum class Stage : std::uint8_t {
  kicked,     // the worker saw the driver's kick
  popped,     // its chain was read from the ring (a frame from the port: it was there)
  parsed,     // it is a request
  submitted,  // it was given to the store or port; to a kernel, with the turn's others
  completed,  // and came back
  published,  // the driver can see it in the used ring
  called,     // the driver was notified
};
inline constexpr std::size_t kStages = 7;
[[nodiscard]] constexpr std::string_view to_string(Stage stage) noexcept {
  constexpr std::array<std::string_view, kStages> kNames{"kicked",    "popped",    "parsed", "submitted",
                                                         "completed", "published", "called"};
  return kNames[static_cast<std::size_t>(stage)];
}

enum class TracedKind : std::uint8_t { read, write, other, transmit, receive };
inline constexpr std::size_t kTracedKinds = 5;
[[nodiscard]] constexpr std::string_view to_string(TracedKind kind) noexcept {
  constexpr std::array<std::string_view, kTracedKinds> kNames{"read", "write", "other", "transmit", "receive"};
  return kNames[static_cast<std::size_t>(kind)];
}

struct StageRecord {
  std::uint32_t device = 0;  // RingDevice::number()
  std::uint16_t queue = 0;   // of the device
  TracedKind kind = TracedKind::other;
  bool failed = false;
  std::uint32_t bytes = 0;
  std::uint32_t worker = 0;
  // By Stage, in ticks of the StageClock. 0: it didn't pass that one.
  std::array<std::uint64_t, kStages> ticks{};

  [[nodiscard]] bool passed(Stage stage) const noexcept { return ticks[static_cast<std::size_t>(stage)] != 0; }
  [[nodiscard]] std::uint64_t at(Stage stage) const noexcept { return ticks[static_cast<std::size_t>(stage)]; }
  // Its first and last stage.
  [[nodiscard]] std::uint64_t first() const noexcept {
    for (const std::uint64_t tick : ticks) {
      if (tick != 0) {
        return tick;
      }
    }
    return 0;
  }
  [[nodiscard]] std::uint64_t last() const noexcept {
    std::uint64_t latest = 0;
    for (const std::uint64_t tick : ticks) {
      latest = tick > latest ? tick : latest;
    }
    return latest;
  }
};

}  // namespace ringway
