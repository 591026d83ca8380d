// For tests of the Toeplitz hash: Microsoft's verification suite, and the definition. Not part of the product.
#pragma once

#include <arpa/inet.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.hpp"
#include "request/test_frames.hpp"

namespace ringway::test {

// The key and the results of Microsoft's "Verifying the RSS Hash Calculation".
inline constexpr std::array<std::uint8_t, 40> kHashVectorKey = {
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
    0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};
struct HashVector {
  const char* destination;
  std::uint16_t destination_port;
  const char* source;
  std::uint16_t source_port;
  std::uint32_t ip_hash;
  std::uint32_t ports_hash;
};
inline constexpr std::array<HashVector, 5> kHashVectors4 = {{
    {"161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e8fc2, 0x51ccc178},
    {"65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718262a, 0xc626b0ea},
    {"12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0a5de, 0x5c2b394a},
    {"209.142.163.6", 2217, "38.27.205.30", 48228, 0x82989176, 0xafc7327f},
    {"202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d1809c5, 0x10e828a2},
}};
inline constexpr std::array<HashVector, 3> kHashVectors6 = {{
    {"3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc18cd5, 0x40207d3d},
    {"ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c461c, 0xdde51bbf},
    {"fe80::200:f8ff:fe21:67cf", 38024, "3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, 0x4b61e985, 0x02d1feef},
}};

// Bit by bit, as the definition has it.
inline std::uint32_t slow_toeplitz(std::span<const std::uint8_t> key, std::span<const std::uint8_t> input) {
  std::uint32_t hash = 0;
  const auto key_bit = [&](std::size_t bit) { return bit / 8 < key.size() ? key[bit / 8] >> (7 - bit % 8) & 1U : 0U; };
  for (std::size_t bit = 0; bit < input.size() * 8; ++bit) {
    if ((input[bit / 8] >> (7 - bit % 8) & 1U) != 0) {
      for (std::size_t i = 0; i < 32; ++i) {
        hash ^= key_bit(bit + i) << (31 - i);
      }
    }
  }
  return hash;
}

// A packet of that flow; TCP or UDP.
inline Bytes frame_of(const HashVector& vector, const FrameShape& shape) {
  ShapedFrame frame = make_frame(shape);
  const std::size_t addresses = frame.l3 + (shape.ipv6 ? 8 : 12);
  const std::size_t bytes = shape.ipv6 ? 16 : 4;
  const int family = shape.ipv6 ? AF_INET6 : AF_INET;
  RW_CHECK(::inet_pton(family, vector.source, frame.bytes.data() + addresses) == 1);
  RW_CHECK(::inet_pton(family, vector.destination, frame.bytes.data() + addresses + bytes) == 1);
  put16(frame.bytes, frame.l4, vector.source_port);
  put16(frame.bytes, frame.l4 + 2, vector.destination_port);
  return frame.bytes;
}

}  // namespace ringway::test
