#include "bench/net_sequence.hpp"

#include <algorithm>

namespace ringway {
namespace {

constexpr std::size_t kIpOffset = 14;
constexpr std::size_t kIpBytes = 20;
constexpr std::size_t kUdpOffset = kIpOffset + kIpBytes;
constexpr std::uint16_t kFirstSourcePort = 49152;  // of those for private use
constexpr std::uint16_t kDiscardPort = 9;

void put(std::span<std::byte> frame, std::size_t at, std::size_t number) noexcept {
  frame[at] = static_cast<std::byte>(number >> 8U);
  frame[at + 1] = static_cast<std::byte>(number);
}

// RFC 1071, of an even number of bytes.
std::uint16_t internet_checksum(std::span<const std::byte> bytes) noexcept {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    sum += std::to_integer<std::uint32_t>(bytes[i]) << 8U | std::to_integer<std::uint32_t>(bytes[i + 1]);
  }
  while (sum > 0xffff) {
    sum = (sum & 0xffff) + (sum >> 16U);
  }
  return static_cast<std::uint16_t>(~sum);
}

}  // namespace

void write_numbered_frame(std::span<std::byte> frame, const NetFrameMac& to, const NetFrameLabel& label) noexcept {
  RW_CHECK(frame.size() >= kNetNumberedBytesMin && frame.size() <= kNetNumberedBytesMax);
  std::ranges::fill(frame, std::byte{0});
  std::memcpy(frame.data(), to.data(), to.size());
  constexpr std::array<std::uint8_t, spec::kMacBytes> kFrom{0x02, 0x52, 0x57, 0, 0, 0};  // a local address
  std::memcpy(frame.data() + to.size(), kFrom.data(), kFrom.size());
  put(frame, 12, 0x0800);
  frame[kIpOffset] = std::byte{0x45};
  put(frame, kIpOffset + 2, frame.size() - kIpOffset);
  frame[kIpOffset + 8] = std::byte{64};  // time to live
  frame[kIpOffset + 9] = std::byte{17};  // UDP
  constexpr std::array<std::uint8_t, 8> kAddresses{198, 18, 0, 1, 198, 18, 0, 2};
  std::memcpy(frame.data() + kIpOffset + 12, kAddresses.data(), kAddresses.size());
  put(frame, kIpOffset + 10, internet_checksum(frame.subspan(kIpOffset, kIpBytes)));
  put(frame, kUdpOffset, static_cast<std::uint16_t>(kFirstSourcePort + label.flow));
  put(frame, kUdpOffset + 2, kDiscardPort);
  put(frame, kUdpOffset + 4, frame.size() - kUdpOffset);
  std::memcpy(frame.data() + kNetLabelOffset, &label, sizeof label);
}

// Numbers from next_ on are missing, until `number`.
void NetSequence::skip_to(std::uint64_t number) noexcept {
  counts_.lost += number - next_;
  // Words that are entered are of numbers long gone; the one that next_ is in holds some of the last ones too.
  std::uint64_t word = (next_ + 63) / 64;
  const std::uint64_t last = number / 64;
  word = last >= kWords ? std::max(word, last - kWords + 1) : word;
  for (; word <= last; ++word) {
    seen_[word % kWords] = 0;
  }
  next_ = number;
}

void NetSequence::out_of_order(std::uint64_t number) noexcept {
  if (number > next_) {
    skip_to(number);
    seen_[number / 64 % kWords] |= std::uint64_t{1} << (number % 64);
    next_ = number + 1;
    ++counts_.received;
    return;
  }
  std::uint64_t& word = seen_[number / 64 % kWords];
  const std::uint64_t bit = std::uint64_t{1} << (number % 64);
  // The oldest word is shared with numbers that are beyond the window.
  if (next_ - number > kWindow - 64 || (word & bit) != 0 || counts_.lost == 0) {
    ++counts_.duplicated;
    return;
  }
  word |= bit;
  ++counts_.received;
  ++counts_.reordered;
  --counts_.lost;
}

void NetSequence::end_at(std::uint64_t end) noexcept {
  if (end > next_) {
    skip_to(end);
  }
}

bool NetArrivals::adopt(Flow& flow, const NetFrameLabel& label) const noexcept {
  if (run_ != 0 || flow.run != 0 || label.run == 0) {
    return false;
  }
  flow.run = label.run;
  flow.sequence.begin_at(label.number);
  return true;
}

NetSequence::Counts NetArrivals::counts() const noexcept {
  NetSequence::Counts sum;
  for (const Flow& flow : flows_) {
    const NetSequence::Counts& counts = flow.sequence.counts();
    sum.received += counts.received;
    sum.lost += counts.lost;
    sum.duplicated += counts.duplicated;
    sum.reordered += counts.reordered;
  }
  return sum;
}

}  // namespace ringway
