// Frames for tests and fuzzers: made from a description, laid out in pieces, and judged by code that is slow, plain and
// shares nothing with the product's. Not part of the product.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/prng.hpp"

namespace ringway::test {

using Bytes = std::vector<std::uint8_t>;

inline void append(Bytes& to, std::initializer_list<unsigned> bytes) {
  for (const unsigned byte : bytes) {
    to.push_back(static_cast<std::uint8_t>(byte));
  }
}
inline void append16(Bytes& to, std::size_t number) {
  append(to, {static_cast<unsigned>(number >> 8U & 255U), static_cast<unsigned>(number & 255U)});
}
inline std::size_t get16(std::span<const std::uint8_t> bytes, std::size_t at) {
  return std::size_t{bytes[at]} << 8U | bytes[at + 1];
}
inline std::uint32_t get32(std::span<const std::uint8_t> bytes, std::size_t at) {
  return static_cast<std::uint32_t>(get16(bytes, at) << 16U | get16(bytes, at + 2));
}
inline void put16(std::span<std::uint8_t> bytes, std::size_t at, std::size_t number) {
  bytes[at] = static_cast<std::uint8_t>(number >> 8U);
  bytes[at + 1] = static_cast<std::uint8_t>(number);
}

// The sum of RFC 1071, byte by byte in the order of the network.
inline std::size_t slow_sum(std::span<const std::uint8_t> bytes, std::size_t sum = 0) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    sum += i % 2 == 0 ? std::size_t{bytes[i]} << 8U : bytes[i];
    sum = (sum & 0xffffU) + (sum >> 16U);
  }
  return sum;
}

// What a frame is made of. The default is a small TCP packet over IPv4.
struct FrameShape {
  bool ipv6 = false;
  bool udp = false;
  unsigned tags = 0;
  std::size_t ip_option_bytes = 0;  // IPv4: a multiple of 4; IPv6: of a Destination Options header, a multiple of 8
  std::size_t tcp_option_bytes = 0;
  unsigned tcp_flags = 0x18;
  std::uint32_t sequence = 0x01020304;
  unsigned ip_id = 0x1234;
  std::size_t payload_bytes = 100;
};

struct ShapedFrame {
  Bytes bytes;
  std::size_t l3 = 0;
  std::size_t l4 = 0;
  std::size_t payload = 0;
};

// The transport checksum is left partial, as a driver with CSUM leaves it.
inline ShapedFrame make_frame(const FrameShape& shape, std::uint64_t seed = 1) {
  ShapedFrame frame;
  Bytes& out = frame.bytes;
  append(out, {0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2});
  for (unsigned tag = 0; tag < shape.tags; ++tag) {
    append16(out, tag + 1 < shape.tags ? 0x88a8 : 0x8100);
    append16(out, 0x2000U + 100 + tag);
  }
  append16(out, shape.ipv6 ? 0x86dd : 0x0800);
  frame.l3 = out.size();
  const std::size_t l4_header = shape.udp ? 8 : 20 + shape.tcp_option_bytes;
  const std::size_t l4_bytes = l4_header + shape.payload_bytes;
  const unsigned protocol = shape.udp ? 17 : 6;
  std::size_t sum = protocol + l4_bytes;
  if (shape.ipv6) {
    append(out, {0x60, 0, 0, 0});
    append16(out, shape.ip_option_bytes + l4_bytes);
    append(out, {shape.ip_option_bytes != 0 ? 60U : protocol, 64});
    for (unsigned i = 0; i < 32; ++i) {
      append(out, {0xfe + i});
    }
    sum = slow_sum(std::span(out).last(32), sum);
    if (shape.ip_option_bytes != 0) {  // one PadN option
      append(out, {protocol, static_cast<unsigned>(shape.ip_option_bytes / 8 - 1), 1,
                   static_cast<unsigned>(shape.ip_option_bytes - 4)});
      out.resize(out.size() + shape.ip_option_bytes - 4);
    }
  } else {
    append(out, {static_cast<unsigned>(0x45 + shape.ip_option_bytes / 4), 0});
    append16(out, 20 + shape.ip_option_bytes + l4_bytes);
    append16(out, shape.ip_id);
    append(out, {0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 200, 250});
    sum = slow_sum(std::span(out).last(8), sum);
    out.resize(out.size() + shape.ip_option_bytes, 1);  // NOPs
    const std::span header = std::span(out).subspan(frame.l3);
    put16(header, 10, ~slow_sum(header) & 0xffffU);
  }
  frame.l4 = out.size();
  append(out, {0x9c, 0x41, 0x01, 0xbb});
  if (shape.udp) {
    append16(out, l4_bytes);
    append16(out, sum);
  } else {
    append16(out, shape.sequence >> 16U);
    append16(out, shape.sequence & 0xffffU);
    append(out, {9, 8, 7, 6, static_cast<unsigned>((20 + shape.tcp_option_bytes) / 4 << 4U), shape.tcp_flags, 1, 0});
    append16(out, sum);
    append(out, {0, 0});
    out.resize(out.size() + shape.tcp_option_bytes, 1);
  }
  frame.payload = out.size();
  Prng prng(seed);
  for (std::size_t i = 0; i < shape.payload_bytes; ++i) {
    out.push_back(static_cast<std::uint8_t>(prng.next()));
  }
  return frame;
}

// Bytes in blocks of their own, so that AddressSanitizer sees each step out of one.
class Pieces {
 public:
  Pieces() = default;
  // Cut at random, into pieces of 1 to `piece_max` bytes.
  Pieces(std::span<const std::uint8_t> bytes, std::uint64_t seed, std::size_t piece_max) {
    Prng prng(seed);
    while (!bytes.empty()) {
      const std::size_t size = std::min<std::size_t>(bytes.size(), 1 + prng.below(piece_max));
      add(bytes.first(size));
      bytes = bytes.subspan(size);
    }
  }
  void add(std::span<const std::uint8_t> bytes) {
    blocks_.push_back(std::make_unique<std::uint8_t[]>(bytes.size()));
    std::copy(bytes.begin(), bytes.end(), blocks_.back().get());
    list_.push_back({.iov_base = blocks_.back().get(), .iov_len = bytes.size()});
  }
  [[nodiscard]] std::span<const iovec> list() const { return list_; }
  [[nodiscard]] Bytes joined() const {
    Bytes all;
    for (const iovec& piece : list_) {
      const auto* const from = static_cast<const std::uint8_t*>(piece.iov_base);
      all.insert(all.end(), from, from + piece.iov_len);
    }
    return all;
  }

 private:
  std::vector<std::unique_ptr<std::uint8_t[]>> blocks_;
  std::vector<iovec> list_;
};

// What a receiver sees in a frame.
struct SeenFrame {
  std::string fault;  // empty: all lengths and checksums are right
  Bytes before_l3;    // Ethernet header and tags
  Bytes ip_header;    // with IPv6 extension headers, without a fragment header
  bool ipv6 = false;
  unsigned protocol = 0;
  std::size_t ip_id = 0;
  std::uint32_t fragment_id = 0;
  bool is_fragment = false, more_fragments = false;
  std::size_t fragment_offset = 0;
  std::size_t l4 = 0;
  Bytes l4_bytes;  // of a fragment: its part
  // Of TCP or UDP:
  Bytes l4_header;
  Bytes payload;
};

// `partial` says that the transport checksum may be the sum of the pseudo header only.
inline SeenFrame look_at(std::span<const std::uint8_t> frame, bool partial = false) {
  SeenFrame seen;
  const auto fail = [&](const char* what) {
    seen.fault = what;
    return seen;
  };
  std::size_t at = 12;
  while (at + 2 <= frame.size() && (get16(frame, at) == 0x8100 || get16(frame, at) == 0x88a8)) {
    at += 4;
  }
  if (at + 2 + 20 > frame.size()) {
    return fail("too short for IP");
  }
  seen.ipv6 = get16(frame, at) == 0x86dd;
  at += 2;
  seen.before_l3.assign(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(at));
  const std::span<const std::uint8_t> packet = frame.subspan(at);
  std::size_t sum = 0;
  std::size_t header = 0;
  if (seen.ipv6) {
    if (packet.size() < 40 || packet[0] >> 4U != 6 || get16(packet, 4) + 40 != packet.size()) {
      return fail("IPv6 length");
    }
    seen.protocol = packet[6];
    sum = slow_sum(packet.subspan(8, 32));
    header = 40;
    seen.ip_header.assign(packet.begin(), packet.begin() + 40);
    while (seen.protocol == 60 || seen.protocol == 44) {
      const std::size_t bytes = seen.protocol == 44 ? 8 : 8 * (std::size_t{packet[header + 1]} + 1);
      if (seen.protocol == 44) {
        seen.is_fragment = true;
        seen.fragment_offset = get16(packet, header + 2) & 0xfff8U;
        seen.more_fragments = (packet[header + 3] & 1U) != 0;
        seen.fragment_id = get32(packet, header + 4);
        if (packet[header + 1] != 0 || (packet[header + 3] & 6U) != 0) {
          return fail("reserved bits of a fragment header");
        }
      } else {
        seen.ip_header.insert(seen.ip_header.end(), packet.begin() + static_cast<std::ptrdiff_t>(header),
                              packet.begin() + static_cast<std::ptrdiff_t>(header + bytes));
      }
      seen.protocol = packet[header];
      header += bytes;
    }
  } else {
    header = 4U * (packet[0] & 15U);
    if (packet[0] >> 4U != 4 || header < 20 || header > packet.size() || get16(packet, 2) != packet.size()) {
      return fail("IPv4 length");
    }
    if (slow_sum(packet.first(header)) != 0xffff) {
      return fail("IPv4 checksum");
    }
    seen.protocol = packet[9];
    sum = slow_sum(packet.subspan(12, 8));
    seen.ip_header.assign(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(header));
    seen.ip_id = get16(packet, 4);
    seen.more_fragments = (packet[6] & 0x20U) != 0;
    seen.fragment_offset = (get16(packet, 6) & 0x1fffU) * 8;
    seen.is_fragment = seen.more_fragments || seen.fragment_offset != 0;
  }
  seen.l4 = at + header;
  const std::span<const std::uint8_t> l4 = packet.subspan(header);
  seen.l4_bytes.assign(l4.begin(), l4.end());
  if (seen.is_fragment) {
    return seen;
  }
  const bool udp = seen.protocol == 17;
  const std::size_t l4_header = udp ? 8 : 4U * (l4[12] >> 4U);
  if (l4.size() < l4_header || (udp && get16(l4, 4) != l4.size())) {
    return fail("transport length");
  }
  const std::size_t field = udp ? 6 : 16;
  sum = slow_sum({}, sum + seen.protocol + l4.size());
  sum = (sum & 0xffffU) + (sum >> 16U);
  if (partial ? get16(l4, field) != sum : slow_sum(l4, sum) != 0xffff || get16(l4, field) == 0) {
    return fail(partial ? "partial checksum" : "transport checksum");
  }
  seen.l4_header.assign(l4.begin(), l4.begin() + static_cast<std::ptrdiff_t>(l4_header));
  seen.payload.assign(l4.begin() + static_cast<std::ptrdiff_t>(l4_header), l4.end());
  return seen;
}

}  // namespace ringway::test
