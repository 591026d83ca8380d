// Numbered frames, and what became of them: how `ringway bench net` counts loss, duplicates and reordering from nothing but
// what arrives.
//
// A frame is valid UDP over IPv4 (198.18.0.1 to 198.18.0.2, the range for benchmarks of RFC 2544, port 49152 + pair to 9),
// so that anything between two benches passes it on. Its UDP checksum is zero, which IPv4 allows: then a frame differs from
// the one before in its number only, and costs one store.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "ring/spec.hpp"

namespace ringway {

// What a frame says of itself, right behind its UDP header.
struct NetFrameLabel {
  std::uint32_t magic = kMagic;
  std::uint16_t run = 0;   // of the sender: tells its frames from those that an earlier run left on the way
  std::uint16_t flow = 0;  // the pair that it was sent on
  std::uint64_t number = 0;

  static constexpr std::uint32_t kMagic = 0x52574e42;  // "RWNB"
};
static_assert(sizeof(NetFrameLabel) == 16);

inline constexpr std::size_t kNetLabelOffset = 14 + 20 + 8;  // Ethernet, IPv4, UDP
inline constexpr std::uint32_t kNetNumberedBytesMin = 60;    // the least that Ethernet has, without its check sequence
inline constexpr std::uint32_t kNetNumberedBytesMax = 65535 + 14;
static_assert(kNetLabelOffset + sizeof(NetFrameLabel) <= kNetNumberedBytesMin);

using NetFrameMac = std::array<std::uint8_t, spec::kMacBytes>;

// A whole frame with number 0 into `frame`, whose size is the frame's.
// REQUIRES: kNetNumberedBytesMin <= frame.size() <= kNetNumberedBytesMax.
void write_numbered_frame(std::span<std::byte> frame, const NetFrameMac& to, const NetFrameLabel& label) noexcept;

// Gives a frame of write_numbered_frame() another number.
inline void set_frame_number(std::byte* frame, std::uint64_t number) noexcept {
  std::memcpy(frame + kNetLabelOffset + offsetof(NetFrameLabel, number), &number, sizeof number);
}

// False if the frame, of which `frame` is the start, is none of ours.
[[nodiscard]] inline bool read_frame_label(std::span<const std::byte> frame, NetFrameLabel& out) noexcept {
  if (frame.size() < kNetLabelOffset + sizeof out) {
    return false;
  }
  std::memcpy(&out, frame.data() + kNetLabelOffset, sizeof out);
  return out.magic == NetFrameLabel::kMagic;
}

// One flow's numbers, from 0 on, as they arrive. Loss is what is missing below the highest number seen: a late frame takes
// its part of that back. Frames later than kWindow numbers can't be told from duplicates, and count as those.
class NetSequence {
 public:
  static constexpr std::uint64_t kWindow = 8192;

  struct Counts {
    std::uint64_t received = 0;  // each number once
    std::uint64_t lost = 0;
    std::uint64_t duplicated = 0;
    std::uint64_t reordered = 0;  // came after a higher number
    bool operator==(const Counts&) const = default;
  };

  void arrived(std::uint64_t number) noexcept {
    if (RW_LIKELY(number == next_)) {
      advance(number);
      return;
    }
    out_of_order(number);
  }
  // All numbers below `end` were sent, and what hasn't come of them by now won't.
  void end_at(std::uint64_t end) noexcept;
  // The flow begins in the middle, as for who comes to a sender that runs already: nothing below `number` is missing.
  void begin_at(std::uint64_t number) noexcept { next_ = number; }

  // All numbers below have arrived or count as lost.
  [[nodiscard]] std::uint64_t next() const noexcept { return next_; }
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

 private:
  static constexpr std::size_t kWords = kWindow / 64;

  void advance(std::uint64_t number) noexcept {
    if (number % 64 == 0) {
      seen_[number / 64 % kWords] = 0;
    }
    seen_[number / 64 % kWords] |= std::uint64_t{1} << (number % 64);
    next_ = number + 1;
    ++counts_.received;
  }
  void skip_to(std::uint64_t number) noexcept;
  void out_of_order(std::uint64_t number) noexcept;

  std::uint64_t next_ = 0;
  Counts counts_;
  std::array<std::uint64_t, kWords> seen_{};  // of the last kWindow numbers below next_
};

// What a receiver gets, from whichever senders: a sequence for each flow. All memory is taken at the start.
class NetArrivals {
 public:
  // Only frames of this run count, those of others as stale; 0: each flow's own, from the first frame of it on.
  NetArrivals(std::uint32_t flows, std::uint16_t run) : run_(run), flows_(flows) {}

  // The sequence that the frame counted in, or null.
  NetSequence* take(std::span<const std::byte> frame) noexcept {
    NetFrameLabel label;
    return take(frame, label);
  }
  NetSequence* take(std::span<const std::byte> frame, NetFrameLabel& label) noexcept {
    if (RW_UNLIKELY(!read_frame_label(frame, label))) {
      ++unnumbered_;
      return nullptr;
    }
    if (RW_UNLIKELY(label.flow >= flows_.size())) {
      ++stale_;
      return nullptr;
    }
    Flow& flow = flows_[label.flow];
    if (RW_UNLIKELY(label.run != (run_ != 0 ? run_ : flow.run)) && !adopt(flow, label)) {
      ++stale_;
      return nullptr;
    }
    flow.sequence.arrived(label.number);
    return &flow.sequence;
  }

  [[nodiscard]] std::uint64_t unnumbered() const noexcept { return unnumbered_; }
  [[nodiscard]] std::uint64_t stale() const noexcept { return stale_; }
  // Of all flows.
  [[nodiscard]] NetSequence::Counts counts() const noexcept;
  [[nodiscard]] NetSequence& flow(std::uint32_t index) noexcept { return flows_[index].sequence; }

 private:
  struct Flow {
    std::uint16_t run = 0;
    NetSequence sequence;
  };
  [[nodiscard]] bool adopt(Flow& flow, const NetFrameLabel& label) const noexcept;

  std::uint16_t run_;
  std::vector<Flow> flows_;
  std::uint64_t unnumbered_ = 0;
  std::uint64_t stale_ = 0;
};

}  // namespace ringway
