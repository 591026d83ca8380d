// What the tests of net_control* and its fuzz target share: the bytes of commands, and chains made of them.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "request/net_control.hpp"

namespace ringway::testing {

// The device-readable bytes of a command.
class ControlText {
 public:
  ControlText() = default;
  ControlText(std::uint8_t control_class, std::uint8_t command) { put(control_class).put(command); }

  template <std::unsigned_integral T>
  ControlText& put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(value >> (8 * i) & 0xffU));
    }
    return *this;
  }
  ControlText& mac(const NetMac& mac) {
    for (const std::uint8_t byte : mac) {
      put(byte);
    }
    return *this;
  }
  ControlText& macs(const std::vector<NetMac>& macs) {
    put(static_cast<std::uint32_t>(macs.size()));
    for (const NetMac& one : macs) {
      mac(one);
    }
    return *this;
  }
  ControlText& bytes(std::size_t count, std::uint8_t value) {
    bytes_.insert(bytes_.end(), count, std::byte{value});
    return *this;
  }
  ControlText& resize(std::size_t count) {
    bytes_.resize(count, std::byte{0});
    return *this;
  }
  [[nodiscard]] const std::vector<std::byte>& get() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// A chain whose segments each stand alone in memory, between canaries.
class ControlChain {
 public:
  static constexpr std::byte kUntouched{0xc5};

  // The readable part is cut into pieces of `piece` bytes, the last may be shorter; `writable` are the sizes of the others.
  ControlChain(const ControlText& text, std::size_t piece, std::initializer_list<std::size_t> writable) {
    cut(text, piece);
    for (const std::size_t bytes : writable) {
      append(std::vector<std::byte>(bytes, kUntouched), true);
    }
  }
  ControlChain(const ControlText& text, std::initializer_list<std::size_t> writable)
      : ControlChain(text, std::max<std::size_t>(text.get().size(), 1), writable) {}

  [[nodiscard]] const Chain& chain() const { return chain_; }
  // All writable bytes in their order.
  [[nodiscard]] std::vector<std::byte> written() const {
    std::vector<std::byte> bytes;
    for (const iovec& segment : chain_.writable()) {
      const auto* const first = static_cast<const std::byte*>(segment.iov_base);
      bytes.insert(bytes.end(), first, first + segment.iov_len);
    }
    return bytes;
  }
  [[nodiscard]] bool canaries_intact() const {
    const auto intact = [](std::byte value) { return value == kUntouched; };
    return std::ranges::all_of(memory_, [&](const auto& block) {
      return std::all_of(block.begin(), block.begin() + kGuard, intact) &&
             std::all_of(block.end() - kGuard, block.end(), intact);
    });
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 8;

  void cut(const ControlText& text, std::size_t piece) {
    const std::vector<std::byte>& all = text.get();
    for (std::size_t at = 0; at < all.size(); at += piece) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(at);
      append({first, first + static_cast<std::ptrdiff_t>(std::min(piece, all.size() - at))}, false);
    }
  }
  void append(const std::vector<std::byte>& bytes, bool is_writable) {
    RW_CHECK(!bytes.empty());
    std::vector<std::byte> block(bytes.size() + 2 * kGuard, kUntouched);
    std::copy(bytes.begin(), bytes.end(), block.begin() + kGuard);
    memory_.push_back(std::move(block));
    chain_.storage()[chain_.count()++] = {memory_.back().data() + kGuard, bytes.size()};
    chain_.account(is_writable, bytes.size());
  }

  std::vector<std::vector<std::byte>> memory_;  // moving a vector leaves its bytes where they are
  Chain chain_;
};

// A unicast address, or with `group` a multicast address, for each number.
inline NetMac mac_of(std::uint32_t number, bool group = false) {
  return {static_cast<std::uint8_t>(group ? 0x33 : 0x52), 0x54,
          static_cast<std::uint8_t>(number >> 24U),       static_cast<std::uint8_t>(number >> 16U),
          static_cast<std::uint8_t>(number >> 8U),        static_cast<std::uint8_t>(number)};
}

inline std::vector<NetMac> macs_of(std::size_t count, bool group = false) {
  std::vector<NetMac> macs;
  for (std::uint32_t i = 0; i < count; ++i) {
    macs.push_back(mac_of(i + 1, group));
  }
  return macs;
}

// RSS_CONFIG as it stands on the wire, with nothing checked.
struct RssText {
  std::uint32_t types = spec::kNetHashTypeIpv4 | spec::kNetHashTypeTcpv4;
  std::uint16_t mask = 3;
  std::uint16_t unclassified = 0;
  std::vector<std::uint16_t> table = {0, 1, 2, 3};
  std::uint16_t max_tx_vq = 4;
  std::uint8_t key_length = 40;
  std::size_t key_bytes = 40;

  [[nodiscard]] ControlText text() const {
    ControlText text(spec::kNetCtrlClassMq, spec::kNetCtrlMqRssConfig);
    text.put(types).put(mask).put(unclassified);
    for (const std::uint16_t entry : table) {
      text.put(entry);
    }
    text.put(max_tx_vq).put(key_length).bytes(key_bytes, 0x6d);
    return text;
  }
};

}  // namespace ringway::testing
