#include "request/net_hash.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/limits.hpp"

namespace ringway {
namespace {

constexpr std::size_t kPortsBytes = 4;

// The types of one kind of packet, from the most to the least precise.
struct TypeChoice {
  std::uint16_t tcp;
  std::uint16_t udp;
  std::uint16_t ip;  // all as hash_report has them
};
constexpr TypeChoice kIpv4Choice = {spec::kNetHashReportTcpv4, spec::kNetHashReportUdpv4, spec::kNetHashReportIpv4};
constexpr TypeChoice kIpv6Choice = {spec::kNetHashReportTcpv6, spec::kNetHashReportUdpv6, spec::kNetHashReportIpv6};
constexpr TypeChoice kIpv6ExChoice = {spec::kNetHashReportTcpv6Ex, spec::kNetHashReportUdpv6Ex, spec::kNetHashReportIpv6Ex};

// §5.1.6.4.4: each type's bit is 1 << (report - 1).
bool enabled(std::uint32_t types, std::uint16_t report) noexcept {
  return (types & (1U << (report - 1U))) != 0;
}

std::uint16_t choose(const TypeChoice& choice, std::uint32_t types, NetLayer4 l4) noexcept {
  if (l4 == NetLayer4::tcp && enabled(types, choice.tcp)) {
    return choice.tcp;
  }
  if (l4 == NetLayer4::udp && enabled(types, choice.udp)) {
    return choice.udp;
  }
  return enabled(types, choice.ip) ? choice.ip : spec::kNetHashReportNone;
}

}  // namespace

NetHashKey::NetHashKey(std::span<const std::uint8_t> key) noexcept {
  std::array<std::uint8_t, spec::kNetRssKeyBytesMax> padded = {};
  std::copy_n(key.begin(), std::min(key.size(), padded.size()), padded.begin());
  for (std::size_t byte = 0; byte < tables_.size(); ++byte) {
    // The 40 bits of the key that meet this byte; its first bit, the highest, meets the first 32 of them.
    std::uint64_t window = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      window = window << 8U | padded[byte + i];
    }
    ByteTable& table = tables_[byte];
    for (std::size_t half = 0; half < 16; ++half) {
      for (unsigned bit = 0; bit < 4; ++bit) {
        if ((half >> bit & 1U) != 0) {
          table.low[half] ^= static_cast<std::uint32_t>(window >> (bit + 1U));
          table.high[half] ^= static_cast<std::uint32_t>(window >> (bit + 5U));
        }
      }
    }
  }
}

std::uint32_t NetHashKey::hash(std::span<const std::byte> input) const noexcept {
  RW_DCHECK(input.size() <= tables_.size());
  std::uint32_t hash = 0;
  for (std::size_t i = 0; i < input.size(); ++i) {
    const auto byte = std::to_integer<std::size_t>(input[i]);
    hash ^= tables_[i].low[byte & 15U] ^ tables_[i].high[byte >> 4U];
  }
  return hash;
}

void net_hash_input(std::uint32_t types, const NetLayers& layers, std::span<const std::byte> head,
                    NetHashInput& out) noexcept {
  out.report = spec::kNetHashReportNone;
  out.count = 0;
  if (layers.l3 != NetLayer3::ipv4 && layers.l3 != NetLayer3::ipv6) {
    return;
  }
  std::size_t source = layers.source_offset;
  std::size_t destination = layers.destination_offset;
  const bool ipv4 = layers.l3 == NetLayer3::ipv4;
  std::uint16_t report = spec::kNetHashReportNone;
  if (layers.extension_headers) {
    report = choose(kIpv6ExChoice, types, layers.l4);
    if (report != spec::kNetHashReportNone) {
      source = layers.home_address_offset != 0 ? layers.home_address_offset : source;
      destination = layers.final_address_offset != 0 ? layers.final_address_offset : destination;
    }
  }
  if (report == spec::kNetHashReportNone) {
    report = choose(ipv4 ? kIpv4Choice : kIpv6Choice, types, layers.l4);
  }
  if (report == spec::kNetHashReportNone) {
    return;
  }
  const std::size_t address_bytes = ipv4 ? 4 : 16;
  RW_DCHECK(std::max(source, destination) + address_bytes <= head.size());
  std::memcpy(out.bytes.data(), head.data() + source, address_bytes);
  std::memcpy(out.bytes.data() + address_bytes, head.data() + destination, address_bytes);
  out.count = 2 * address_bytes;
  if (report != spec::kNetHashReportIpv4 && report != spec::kNetHashReportIpv6 && report != spec::kNetHashReportIpv6Ex) {
    std::memcpy(out.bytes.data() + out.count, head.data() + layers.l4_offset, kPortsBytes);
    out.count += kPortsBytes;
  }
  out.report = report;
}

NetHash net_hash(const NetHashKey& key, std::uint32_t types, const NetLayers& layers,
                 std::span<const std::byte> head) noexcept {
  NetHashInput input;
  net_hash_input(types, layers, head, input);
  return {.value = key.hash(std::span(input.bytes).first(input.count)), .report = input.report};
}

NetHash net_hash(const NetHashKey& key, std::uint32_t types, NetCursor frame, std::uint32_t bytes) noexcept {
  std::array<std::byte, limits::kNetHeadBytesMax> memory;
  const std::size_t wanted = std::min<std::size_t>(memory.size(), bytes);
  const std::span<const std::byte> head = std::span(memory).first(frame.read(std::span(memory).first(wanted)));
  return net_hash(key, types, net_dissect(head, bytes), head);
}

}  // namespace ringway
