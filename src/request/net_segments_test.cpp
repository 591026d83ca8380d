#include "request/net_segments.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "request/test_frames.hpp"

namespace ringway {
namespace {

struct GsoFrame {
  test::ShapedFrame shaped;
  test::Pieces pieces;
  NetFrame frame;

  GsoFrame(const test::FrameShape& shape, std::uint8_t gso_type, std::size_t gso_size, std::size_t piece_max = 4096)
      : GsoFrame(test::make_frame(shape, 7), shape.udp, gso_type, gso_size, piece_max) {}
  GsoFrame(test::ShapedFrame made, bool udp, std::uint8_t gso_type, std::size_t gso_size, std::size_t piece_max)
      : shaped(std::move(made)), pieces(shaped.bytes, 11, piece_max) {
    frame.header = {};
    frame.header.flags = spec::kNetHdrNeedsCsum;
    frame.header.gso_type = gso_type;
    frame.header.gso_size = static_cast<std::uint16_t>(gso_size);
    frame.header.csum_start = static_cast<std::uint16_t>(shaped.l4);
    frame.header.csum_offset = udp ? 6 : 16;
    frame.data = pieces.list();
    frame.bytes = static_cast<std::uint32_t>(shaped.bytes.size());
  }
};

// Copies each segment into pieces of its own; checks what can be said of any.
std::vector<test::Bytes> cut(const NetFrame& frame, NetSegmentOptions options = {}, std::size_t piece_max = 700) {
  NetSegmenter segmenter;
  const NetSegmentRefusal refusal = segmenter.start(frame, options);
  EXPECT_EQ(refusal, NetSegmentRefusal::none) << to_string(refusal);
  std::vector<test::Bytes> out;
  std::size_t longest = 0;
  for (NetSegment segment; segmenter.next(segment);) {
    EXPECT_EQ(segment.bytes, segment.head.size() + segment.payload_bytes);
    longest = std::max<std::size_t>(longest, segment.bytes);
    const test::Pieces to(test::Bytes(segment.bytes), out.size(), piece_max);
    net_copy_segment(segment, NetCursor(to.list()));
    out.push_back(to.joined());
    EXPECT_EQ(segment.header.flags, options.partial_checksums && segment.header.csum_start != 0 ? 1 : 0);
    EXPECT_EQ(segment.header.gso_type, 0);
  }
  EXPECT_EQ(out.size(), segmenter.segments());
  EXPECT_EQ(longest, segmenter.segment_bytes_max());
  return out;
}

NetSegmentRefusal refusal_of(const NetFrame& frame) {
  NetSegmenter segmenter;
  const NetSegmentRefusal refusal = segmenter.start(frame, {});
  NetSegment segment;
  EXPECT_EQ(segmenter.next(segment), refusal == NetSegmentRefusal::none);
  return refusal;
}

// All of the header but what has to differ.
void zero(test::Bytes& bytes, std::initializer_list<std::pair<std::size_t, std::size_t>> places) {
  for (const auto& [at, count] : places) {
    std::fill_n(bytes.begin() + static_cast<long>(at), count, std::uint8_t{0});
  }
}

void expect_same_headers(const test::SeenFrame& seen, const test::ShapedFrame& sent, bool udp) {
  const test::Bytes whole(sent.bytes.begin(), sent.bytes.begin() + static_cast<long>(sent.payload));
  const auto part = [&](std::size_t from, std::size_t to) {
    return test::Bytes(whole.begin() + static_cast<long>(from), whole.begin() + static_cast<long>(to));
  };
  EXPECT_EQ(seen.before_l3, part(0, sent.l3));
  test::Bytes ip = part(sent.l3, sent.l4);
  test::Bytes seen_ip = seen.ip_header;
  ASSERT_EQ(ip.size(), seen_ip.size());
  for (test::Bytes* one : {&ip, &seen_ip}) {
    if (seen.ipv6) {
      zero(*one, {{4, 2}});
    } else {
      zero(*one, {{2, 4}, {10, 2}});
    }
  }
  EXPECT_EQ(ip, seen_ip);
  test::Bytes l4 = part(sent.l4, sent.payload);
  test::Bytes seen_l4 = seen.l4_header;
  ASSERT_EQ(l4.size(), seen_l4.size());
  for (test::Bytes* one : {&l4, &seen_l4}) {
    if (udp) {
      zero(*one, {{4, 4}});
    } else {
      zero(*one, {{4, 4}, {13, 1}, {16, 2}});
    }
  }
  EXPECT_EQ(l4, seen_l4);
}

struct Sizes {
  std::size_t payload;
  std::size_t gso_size;
  std::size_t segments;
};
constexpr std::array<Sizes, 13> kSizes = {{{0, 1448, 1},
                                           {1, 1448, 1},
                                           {1447, 1448, 1},
                                           {1448, 1448, 1},
                                           {1449, 1448, 2},
                                           {2896, 1448, 2},
                                           {2897, 1448, 3},
                                           {65000, 1448, 45},
                                           {10, 1, 10},
                                           {1366, 1, 1366},
                                           {999, 7, 143},
                                           {100, 65535, 1},
                                           {60001, 30001, 2}}};

TEST(NetSegments, TcpComesBackWhole) {
  for (const bool ipv6 : {false, true}) {
    for (const unsigned tags : {0U, 2U}) {
      for (const std::size_t options : {0U, 40U}) {
        for (const bool partial : {false, true}) {
          for (const Sizes& sizes : kSizes) {
            const test::FrameShape shape = {.ipv6 = ipv6,
                                            .tags = tags,
                                            .ip_option_bytes = options,
                                            .tcp_option_bytes = options,
                                            .tcp_flags = 0xd9,  // CWR, ECE, ACK, PSH, FIN
                                            .sequence = 0xffffff00,
                                            .ip_id = 0xfffe,
                                            .payload_bytes = sizes.payload};
            const GsoFrame gso(shape, ipv6 ? spec::kNetGsoTcpv6 : spec::kNetGsoTcpv4, sizes.gso_size, 1 + sizes.payload / 3);
            const auto segments = cut(gso.frame, {.partial_checksums = partial});
            ASSERT_EQ(segments.size(), sizes.segments);
            test::Bytes payload;
            for (std::size_t i = 0; i < segments.size(); ++i) {
              const test::SeenFrame seen = test::look_at(segments[i], partial);
              ASSERT_EQ(seen.fault, "") << i;
              ASSERT_NO_FATAL_FAILURE(expect_same_headers(seen, gso.shaped, false));
              EXPECT_EQ(test::get32(seen.l4_header, 4), static_cast<std::uint32_t>(0xffffff00 + payload.size()));
              const bool first = i == 0;
              const bool last = i + 1 == segments.size();
              EXPECT_EQ(seen.l4_header[13], 0x50U | (first ? 0x80U : 0U) | (last ? 0x09U : 0U));
              EXPECT_EQ(seen.payload.size() == sizes.gso_size || last, true);
              if (!ipv6) {
                EXPECT_EQ(seen.ip_id, (0xfffe + i) & 0xffffU);
              }
              payload.insert(payload.end(), seen.payload.begin(), seen.payload.end());
            }
            EXPECT_TRUE(std::equal(payload.begin(), payload.end(),
                                   gso.shaped.bytes.begin() + static_cast<long>(gso.shaped.payload),
                                   gso.shaped.bytes.end()));
          }
        }
      }
    }
  }
}

TEST(NetSegments, UdpSegmentsAreDatagramsOfTheirOwn) {
  for (const bool ipv6 : {false, true}) {
    for (const bool partial : {false, true}) {
      for (const Sizes& sizes : kSizes) {
        const GsoFrame gso({.ipv6 = ipv6, .udp = true, .tags = 1, .payload_bytes = sizes.payload}, spec::kNetGsoUdpL4,
                           std::min<std::size_t>(sizes.gso_size, 65000));
        const auto segments = cut(gso.frame, {.partial_checksums = partial});
        ASSERT_EQ(segments.size(), sizes.segments);
        test::Bytes payload;
        for (std::size_t i = 0; i < segments.size(); ++i) {
          const test::SeenFrame seen = test::look_at(segments[i], partial);
          ASSERT_EQ(seen.fault, "") << i;
          ASSERT_NO_FATAL_FAILURE(expect_same_headers(seen, gso.shaped, true));
          EXPECT_EQ(ipv6 ? 0x1234 + i : seen.ip_id, 0x1234 + i);
          payload.insert(payload.end(), seen.payload.begin(), seen.payload.end());
        }
        EXPECT_TRUE(std::equal(payload.begin(), payload.end(),
                               gso.shaped.bytes.begin() + static_cast<long>(gso.shaped.payload), gso.shaped.bytes.end()));
      }
    }
  }
}

// UFO: put together again, the fragments are the datagram, with its checksum right.
TEST(NetSegments, UdpFragmentsAreOneDatagramAgain) {
  for (const bool ipv6 : {false, true}) {
    for (const bool partial : {false, true}) {
      for (const std::size_t gso_size : {8U, 15U, 16U, 1480U, 1487U, 65528U, 65535U}) {
        for (const std::size_t payload_bytes : {0U, 1U, 8U, 1472U, 1473U, 2953U, 10000U, 65507U}) {
          const std::size_t chunk = gso_size & ~std::size_t{7};
          const std::size_t expected = std::max<std::size_t>(1, (payload_bytes + 8 + chunk - 1) / chunk);
          if (expected > limits::kNetSegmentsMax) {
            continue;
          }
          const GsoFrame gso({.ipv6 = ipv6, .udp = true, .payload_bytes = payload_bytes}, spec::kNetGsoUdp, gso_size);
          const auto segments = cut(gso.frame, {.partial_checksums = partial, .fragment_id = 0xdeadbeef});
          ASSERT_EQ(segments.size(), expected);
          test::Bytes datagram;
          test::SeenFrame first;
          for (std::size_t i = 0; i < segments.size(); ++i) {
            const test::SeenFrame seen = test::look_at(segments[i]);
            ASSERT_EQ(seen.fault, "") << i;
            if (i == 0) {
              first = seen;
            }
            EXPECT_EQ(seen.protocol, 17U);
            EXPECT_EQ(seen.is_fragment, segments.size() > 1);
            EXPECT_EQ(seen.more_fragments, i + 1 < segments.size());
            EXPECT_EQ(seen.fragment_offset, datagram.size());
            EXPECT_EQ(ipv6 ? seen.fragment_id : seen.ip_id, !ipv6 ? 0x1234U : segments.size() > 1 ? 0xdeadbeefU : 0U);
            EXPECT_TRUE(seen.l4_bytes.size() == chunk || i + 1 == segments.size());
            datagram.insert(datagram.end(), seen.l4_bytes.begin(), seen.l4_bytes.end());
          }
          // As a receiver puts it together, with the first fragment's header.
          test::Bytes whole = first.before_l3;
          whole.insert(whole.end(), first.ip_header.begin(), first.ip_header.end());
          const std::size_t l3 = first.before_l3.size();
          if (ipv6) {
            test::put16(whole, l3 + 4, datagram.size());
            whole[l3 + 6] = 17;
          } else {
            test::put16(whole, l3 + 2, first.ip_header.size() + datagram.size());
            test::put16(whole, l3 + 6, 0);
            test::put16(whole, l3 + 10, 0);
            test::put16(whole, l3 + 10, ~test::slow_sum(std::span(whole).subspan(l3)) & 0xffffU);
          }
          whole.insert(whole.end(), datagram.begin(), datagram.end());
          const test::SeenFrame seen = test::look_at(whole);
          ASSERT_EQ(seen.fault, "");
          EXPECT_TRUE(std::equal(seen.payload.begin(), seen.payload.end(),
                                 gso.shaped.bytes.begin() + static_cast<long>(gso.shaped.payload), gso.shaped.bytes.end()));
          EXPECT_EQ(seen.payload.size(), payload_bytes);
        }
      }
    }
  }
}

TEST(NetSegments, PiecesOfOneByteOnBothSides) {
  for (const bool udp : {false, true}) {
    const GsoFrame gso({.udp = udp, .payload_bytes = 333}, udp ? spec::kNetGsoUdpL4 : spec::kNetGsoTcpv4, 101, 1);
    for (const test::Bytes& segment : cut(gso.frame, {}, 1)) {
      EXPECT_EQ(test::look_at(segment).fault, "");
    }
  }
}

// cases/net.md O5: some drivers leave no length, or none of the frame's, in the headers and in the sum of the pseudo header.
TEST(NetSegments, WhatADriverLeftInLengthsAndChecksumsDoesNotMatter) {
  for (const bool ipv6 : {false, true}) {
    test::ShapedFrame made = test::make_frame({.ipv6 = ipv6, .payload_bytes = 3000});
    test::put16(made.bytes, made.l3 + (ipv6 ? 4 : 2), 0);
    test::put16(made.bytes, made.l4 + 16, 0xabcd);
    if (!ipv6) {
      test::put16(made.bytes, made.l3 + 10, 0x5555);
    }
    const GsoFrame gso(made, false, ipv6 ? spec::kNetGsoTcpv6 : spec::kNetGsoTcpv4, 1000, 5000);
    const auto segments = cut(gso.frame);
    ASSERT_EQ(segments.size(), 3U);
    for (const test::Bytes& segment : segments) {
      EXPECT_EQ(test::look_at(segment).fault, "");
    }
  }
}

TEST(NetSegments, AnEmptyUdpLengthIsFilledIn) {
  for (const std::uint8_t type : {spec::kNetGsoUdp, spec::kNetGsoUdpL4}) {
    test::ShapedFrame made = test::make_frame({.udp = true, .payload_bytes = 3000});
    const GsoFrame right(made, true, type, 1000, 5000);
    test::put16(made.bytes, made.l4 + 4, 0);
    const GsoFrame empty(made, true, type, 1000, 5000);
    EXPECT_EQ(cut(empty.frame), cut(right.frame));
  }
}

TEST(NetSegments, TheEcnBitChangesNothing) {
  const test::FrameShape shape = {.tcp_flags = 0xd0, .payload_bytes = 3000};
  const GsoFrame with(shape, spec::kNetGsoTcpv4 | spec::kNetGsoEcn, 1000);
  const GsoFrame without(shape, spec::kNetGsoTcpv4, 1000);
  EXPECT_EQ(cut(with.frame), cut(without.frame));
}

TEST(NetSegments, HeadersHaveToBeWhatTheTypeSays) {
  const std::vector<std::uint8_t> types = {spec::kNetGsoTcpv4, spec::kNetGsoTcpv6, spec::kNetGsoUdp, spec::kNetGsoUdpL4};
  for (const bool ipv6 : {false, true}) {
    for (const bool udp : {false, true}) {
      for (const std::uint8_t type : types) {
        const GsoFrame gso({.ipv6 = ipv6, .udp = udp, .payload_bytes = 3000}, type, 1000);
        const bool right = udp ? type == spec::kNetGsoUdp || type == spec::kNetGsoUdpL4
                               : type == (ipv6 ? spec::kNetGsoTcpv6 : spec::kNetGsoTcpv4);
        EXPECT_EQ(refusal_of(gso.frame), right ? NetSegmentRefusal::none : NetSegmentRefusal::wrong_headers);
      }
    }
  }
  GsoFrame plain({.payload_bytes = 3000}, spec::kNetGsoNone, 0);
  EXPECT_EQ(refusal_of(plain.frame), NetSegmentRefusal::not_gso);
  test::ShapedFrame fragment = test::make_frame({.payload_bytes = 3000});
  test::put16(fragment.bytes, fragment.l3 + 6, 0x2000);
  EXPECT_EQ(refusal_of(GsoFrame(fragment, false, spec::kNetGsoTcpv4, 1000, 5000).frame), NetSegmentRefusal::wrong_headers);
  test::ShapedFrame arp = test::make_frame({.payload_bytes = 3000});
  test::put16(arp.bytes, 12, 0x0806);
  EXPECT_EQ(refusal_of(GsoFrame(arp, false, spec::kNetGsoTcpv4, 1000, 5000).frame), NetSegmentRefusal::wrong_headers);
}

TEST(NetSegments, TheChecksumHasToBeThatOfTheTransportHeader) {
  GsoFrame gso({.payload_bytes = 3000}, spec::kNetGsoTcpv4, 1000);
  for (const int start : {-1, 1}) {
    GsoFrame other({.payload_bytes = 3000}, spec::kNetGsoTcpv4, 1000);
    other.frame.header.csum_start = static_cast<std::uint16_t>(other.frame.header.csum_start + start);
    EXPECT_EQ(refusal_of(other.frame), NetSegmentRefusal::wrong_checksum);
  }
  gso.frame.header.csum_offset = 6;
  EXPECT_EQ(refusal_of(gso.frame), NetSegmentRefusal::wrong_checksum);
  gso.frame.header.csum_offset = 16;
  EXPECT_EQ(refusal_of(gso.frame), NetSegmentRefusal::none);
}

TEST(NetSegments, SizesAtTheirEdges) {
  // IPv4: the longest segment has a total length of 65535.
  EXPECT_EQ(refusal_of(GsoFrame({.payload_bytes = 65495}, spec::kNetGsoTcpv4, 65535).frame), NetSegmentRefusal::none);
  test::ShapedFrame longer = test::make_frame({.payload_bytes = 65496});
  test::put16(longer.bytes, longer.l3 + 2, 0);
  EXPECT_EQ(refusal_of(GsoFrame(longer, false, spec::kNetGsoTcpv4, 65535, 9000).frame), NetSegmentRefusal::bad_size);
  EXPECT_EQ(refusal_of(GsoFrame(longer, false, spec::kNetGsoTcpv4, 65495, 9000).frame), NetSegmentRefusal::none);
  // IPv6: a payload of 65535 without the header.
  EXPECT_EQ(refusal_of(GsoFrame({.ipv6 = true, .payload_bytes = 65515}, spec::kNetGsoTcpv6, 65535).frame),
            NetSegmentRefusal::none);
  test::ShapedFrame longer6 = test::make_frame({.ipv6 = true, .payload_bytes = 65516});
  test::put16(longer6.bytes, longer6.l3 + 4, 0);
  EXPECT_EQ(refusal_of(GsoFrame(longer6, false, spec::kNetGsoTcpv6, 65535, 9000).frame), NetSegmentRefusal::bad_size);
  // Fragments: the whole datagram counts, and each has at least 8 bytes.
  EXPECT_EQ(refusal_of(GsoFrame({.udp = true, .payload_bytes = 65507}, spec::kNetGsoUdp, 1480).frame),
            NetSegmentRefusal::none);
  test::ShapedFrame datagram = test::make_frame({.udp = true, .payload_bytes = 65508});
  test::put16(datagram.bytes, datagram.l3 + 2, 0);
  EXPECT_EQ(refusal_of(GsoFrame(datagram, true, spec::kNetGsoUdp, 1480, 9000).frame), NetSegmentRefusal::bad_size);
  for (const std::size_t gso_size : {1U, 7U}) {
    EXPECT_EQ(refusal_of(GsoFrame({.udp = true, .payload_bytes = 100}, spec::kNetGsoUdp, gso_size).frame),
              NetSegmentRefusal::bad_size);
  }
  EXPECT_EQ(refusal_of(GsoFrame({.ipv6 = true, .udp = true, .payload_bytes = 65527}, spec::kNetGsoUdp, 65528).frame),
            NetSegmentRefusal::bad_size)
      << "a fragment header and 65528 bytes";
  // The number of segments.
  EXPECT_EQ(refusal_of(GsoFrame({.payload_bytes = limits::kNetSegmentsMax}, spec::kNetGsoTcpv4, 1).frame),
            NetSegmentRefusal::none);
  EXPECT_EQ(refusal_of(GsoFrame({.payload_bytes = limits::kNetSegmentsMax + 1}, spec::kNetGsoTcpv4, 1).frame),
            NetSegmentRefusal::too_many_segments);
}

TEST(NetSegments, Ipv6ExtensionHeaders) {
  EXPECT_EQ(
      refusal_of(
          GsoFrame({.ipv6 = true, .udp = true, .ip_option_bytes = 8, .payload_bytes = 3000}, spec::kNetGsoUdp, 1000).frame),
      NetSegmentRefusal::extension_headers);
  // A head of which 256 bytes don't show the transport header.
  EXPECT_EQ(
      refusal_of(GsoFrame({.ipv6 = true, .ip_option_bytes = 240, .payload_bytes = 3000}, spec::kNetGsoTcpv6, 1000).frame),
      NetSegmentRefusal::wrong_headers);
  EXPECT_EQ(
      refusal_of(GsoFrame({.ipv6 = true, .ip_option_bytes = 176, .payload_bytes = 3000}, spec::kNetGsoTcpv6, 1000).frame),
      NetSegmentRefusal::none);
  // A routing header (here of type 0) in the place of the options.
  test::ShapedFrame routed = test::make_frame({.ipv6 = true, .ip_option_bytes = 24, .payload_bytes = 3000});
  routed.bytes[routed.l3 + 6] = 43;
  routed.bytes[routed.l3 + 42] = 0;
  routed.bytes[routed.l3 + 43] = 1;
  EXPECT_EQ(refusal_of(GsoFrame(routed, false, spec::kNetGsoTcpv6, 1000, 5000).frame), NetSegmentRefusal::routed_on);
}

TEST(NetSegments, ASegmenterIsUsedAgain) {
  NetSegmenter segmenter;
  const GsoFrame good({.payload_bytes = 3000}, spec::kNetGsoTcpv4, 1000);
  const GsoFrame bad({.payload_bytes = 3000}, spec::kNetGsoTcpv6, 1000);
  NetSegment segment;
  ASSERT_EQ(segmenter.start(good.frame, {}), NetSegmentRefusal::none);
  ASSERT_TRUE(segmenter.next(segment));
  EXPECT_EQ(segmenter.start(bad.frame, {}), NetSegmentRefusal::wrong_headers);
  EXPECT_FALSE(segmenter.next(segment));
  EXPECT_EQ(segmenter.segments(), 0U);
  ASSERT_EQ(segmenter.start(good.frame, {}), NetSegmentRefusal::none);
  int count = 0;
  while (segmenter.next(segment)) {
    ++count;
  }
  EXPECT_EQ(count, 3);
}

TEST(NetSegments, EachRefusalHasAName) {
  for (std::size_t i = 0; i < kNetSegmentRefusals; ++i) {
    EXPECT_NE(to_string(static_cast<NetSegmentRefusal>(i)), std::string("unknown")) << i;
  }
  EXPECT_EQ(to_string(static_cast<NetSegmentRefusal>(kNetSegmentRefusals)), std::string("unknown"));
}

}  // namespace
}  // namespace ringway
