#include "request/net_hash.hpp"

#include <gtest/gtest.h>

#include <arpa/inet.h>

#include <cstring>
#include <string>

#include "request/test_frames.hpp"
#include "request/test_hash_vectors.hpp"

namespace ringway {
namespace {

constexpr std::uint32_t kAllTypes = kNetHashTypesAll;

NetHash hash_of(const test::Bytes& frame, std::uint32_t types, const NetHashKey& key = NetHashKey(test::kHashVectorKey)) {
  const auto head = std::as_bytes(std::span(frame));
  return net_hash(key, types, net_dissect(head, static_cast<std::uint32_t>(frame.size())), head);
}

TEST(NetHash, TheVerificationSuiteOfMicrosoft) {
  for (const bool udp : {false, true}) {
    for (const unsigned tags : {0U, 1U, 2U}) {
      for (const test::HashVector& vector : test::kHashVectors4) {
        const test::Bytes frame = test::frame_of(vector, {.udp = udp, .tags = tags, .ip_option_bytes = 4 * tags});
        EXPECT_EQ(hash_of(frame, spec::kNetHashTypeIpv4).value, vector.ip_hash);
        const NetHash ports = hash_of(frame, kAllTypes);
        EXPECT_EQ(ports.value, vector.ports_hash);
        EXPECT_EQ(ports.report, udp ? spec::kNetHashReportUdpv4 : spec::kNetHashReportTcpv4);
      }
      for (const test::HashVector& vector : test::kHashVectors6) {
        const test::Bytes frame = test::frame_of(vector, {.ipv6 = true, .udp = udp, .tags = tags});
        EXPECT_EQ(hash_of(frame, spec::kNetHashTypeIpv6).value, vector.ip_hash);
        const NetHash ports = hash_of(frame, kAllTypes);
        EXPECT_EQ(ports.value, vector.ports_hash);
        EXPECT_EQ(ports.report, udp ? spec::kNetHashReportUdpv6 : spec::kNetHashReportTcpv6);
      }
    }
  }
}

TEST(NetHash, EqualsTheDefinitionForKeysOfEachLength) {
  Prng prng(1);
  for (std::size_t key_bytes = 0; key_bytes <= 44; ++key_bytes) {
    test::Bytes key(key_bytes);
    test::Bytes input(prng.below(kNetHashInputBytesMax + 1));
    for (std::uint8_t& byte : key) {
      byte = static_cast<std::uint8_t>(prng.next());
    }
    for (std::uint8_t& byte : input) {
      byte = static_cast<std::uint8_t>(prng.next());
    }
    EXPECT_EQ(NetHashKey(key).hash(std::as_bytes(std::span(input))), test::slow_toeplitz(key, input));
  }
  const test::Bytes input(kNetHashInputBytesMax, 0xff);
  EXPECT_EQ(NetHashKey().hash(std::as_bytes(std::span(input))), 0U) << "no key";
}

// §5.1.6.4.3: the most precise enabled type, in the specification's order, for each combination of types.
TEST(NetHash, EachCombinationOfTypesGivesTheReportOfTheSpecification) {
  for (const bool ipv6 : {false, true}) {
    for (const int transport : {0, 1, 2}) {  // neither, TCP, UDP
      for (const std::size_t extension : {0U, 8U, 24U}) {
        test::ShapedFrame frame =
            test::make_frame({.ipv6 = ipv6, .udp = transport == 2, .ip_option_bytes = extension, .payload_bytes = 60});
        if (transport == 0) {
          frame.bytes[ipv6 ? (extension == 0 ? frame.l3 + 6 : frame.l3 + 40) : frame.l3 + 9] = 1;  // ICMP
        }
        for (std::uint32_t types = 0; types <= kAllTypes; ++types) {
          const auto on = [&](std::uint16_t report) { return (types >> (report - 1U) & 1U) != 0; };
          std::uint16_t expected = 0;
          if (!ipv6) {
            expected = transport == 1 && on(2) ? 2 : transport == 2 && on(3) ? 3 : on(1) ? 1 : 0;
          } else {
            if (extension != 0) {
              expected = transport == 1 && on(8) ? 8 : transport == 2 && on(9) ? 9 : on(7) ? 7 : 0;
            }
            if (expected == 0) {
              expected = transport == 1 && on(5) ? 5 : transport == 2 && on(6) ? 6 : on(4) ? 4 : 0;
            }
          }
          const NetHash hash = hash_of(frame.bytes, types);
          ASSERT_EQ(hash.report, expected) << ipv6 << ' ' << transport << ' ' << extension << ' ' << types;
          test::Bytes input;
          const auto from = frame.bytes.begin() + static_cast<long>(frame.l3 + (ipv6 ? 8 : 12));
          input.insert(input.end(), from, from + (ipv6 ? 32 : 8));
          if (expected != 1 && expected != 4 && expected != 7) {
            const auto ports = frame.bytes.begin() + static_cast<long>(frame.l4);
            input.insert(input.end(), ports, ports + 4);
          }
          ASSERT_EQ(hash.value, expected == 0 ? 0 : test::slow_toeplitz(test::kHashVectorKey, input));
        }
      }
    }
  }
}

TEST(NetHash, ExTypesTakeTheHomeAddressAndTheAddressOfARoutingHeaderOfType2) {
  const test::HashVector& vector = test::kHashVectors6[0];
  // IPv6, Destination Options with a Home Address, a routing header of type 2, TCP. The outer addresses are others.
  test::ShapedFrame plain = test::make_frame({.ipv6 = true, .payload_bytes = 10});
  test::Bytes frame(plain.bytes.begin(), plain.bytes.begin() + static_cast<long>(plain.l3 + 40));
  frame[plain.l3 + 6] = 60;
  test::Bytes home(16);
  test::Bytes final(16);
  ASSERT_EQ(::inet_pton(AF_INET6, vector.source, home.data()), 1);
  ASSERT_EQ(::inet_pton(AF_INET6, vector.destination, final.data()), 1);
  test::append(frame, {43, 2, 1, 2, 0, 0, 201, 16});  // PadN of 4 bytes, then the option
  frame.insert(frame.end(), home.begin(), home.end());
  test::append(frame, {6, 2, 2, 1, 0, 0, 0, 0});
  frame.insert(frame.end(), final.begin(), final.end());
  const std::size_t l4 = frame.size();
  frame.insert(frame.end(), plain.bytes.begin() + static_cast<long>(plain.l4), plain.bytes.end());
  test::put16(frame, plain.l3 + 4, frame.size() - plain.l3 - 40);
  test::put16(frame, l4, vector.source_port);
  test::put16(frame, l4 + 2, vector.destination_port);

  const NetHash ports = hash_of(frame, spec::kNetHashTypeTcpEx | spec::kNetHashTypeIpEx | spec::kNetHashTypeTcpv6);
  EXPECT_EQ(ports.report, spec::kNetHashReportTcpv6Ex);
  EXPECT_EQ(ports.value, vector.ports_hash);
  const NetHash addresses = hash_of(frame, spec::kNetHashTypeIpEx);
  EXPECT_EQ(addresses.report, spec::kNetHashReportIpv6Ex);
  EXPECT_EQ(addresses.value, vector.ip_hash);
  // Without an _EX type the header's own addresses count.
  const NetHash outer = hash_of(frame, spec::kNetHashTypeIpv6);
  EXPECT_EQ(outer.report, spec::kNetHashReportIpv6);
  EXPECT_EQ(outer.value, test::slow_toeplitz(test::kHashVectorKey, std::span(plain.bytes).subspan(plain.l3 + 8, 32)));
}

TEST(NetHash, AllFragmentsOfAPacketHashAlikeByAddress) {
  for (const bool udp : {false, true}) {
    test::ShapedFrame frame = test::make_frame({.udp = udp, .payload_bytes = 64});
    const std::uint32_t expected = hash_of(frame.bytes, spec::kNetHashTypeIpv4).value;
    for (const unsigned field : {0x2000U, 0x2001U, 0x0001U, 0x1fffU}) {
      test::put16(frame.bytes, frame.l3 + 6, field);
      const NetHash hash = hash_of(frame.bytes, kAllTypes);
      EXPECT_EQ(hash.report, spec::kNetHashReportIpv4);
      EXPECT_EQ(hash.value, expected);
    }
  }
}

TEST(NetHash, AFrameInPiecesHasTheHashOfTheWhole) {
  const NetHashKey key(test::kHashVectorKey);
  for (const bool ipv6 : {false, true}) {
    const test::HashVector& vector = ipv6 ? test::kHashVectors6[1] : test::kHashVectors4[1];
    // Longer than what is looked at.
    test::Bytes frame = test::frame_of(vector, {.ipv6 = ipv6, .tags = 2, .payload_bytes = 1000});
    for (const std::size_t step : {1U, 7U, 33U, 2000U}) {
      std::vector<iovec> pieces;
      for (std::size_t at = 0; at < frame.size(); at += step) {
        pieces.push_back({.iov_base = frame.data() + at, .iov_len = std::min(step, frame.size() - at)});
      }
      const auto bytes = static_cast<std::uint32_t>(frame.size());
      EXPECT_EQ(net_hash(key, kAllTypes, NetCursor(pieces), bytes).value, vector.ports_hash) << step;
      EXPECT_EQ(net_hash(key, 0, NetCursor(pieces), bytes).report, spec::kNetHashReportNone);
    }
  }
}

TEST(NetHash, WhatIsNotIpIsUnclassified) {
  test::Bytes arp = test::make_frame({}).bytes;
  test::put16(arp, 12, kEtherTypeArp);
  EXPECT_EQ(hash_of(arp, kAllTypes).report, spec::kNetHashReportNone);
  test::put16(arp, 12, 0x88cc);
  EXPECT_EQ(hash_of(arp, kAllTypes).report, spec::kNetHashReportNone);
  EXPECT_EQ(hash_of({}, kAllTypes).report, spec::kNetHashReportNone);
  const test::Bytes whole = test::make_frame({}).bytes;
  EXPECT_EQ(hash_of(test::Bytes(whole.begin(), whole.begin() + 33), kAllTypes).report, spec::kNetHashReportNone);
}

}  // namespace
}  // namespace ringway
