#include "request/net_layers.hpp"

#include <gtest/gtest.h>

#include <memory>

#include "base/limits.hpp"
#include "request/test_frames.hpp"

namespace ringway {
namespace {

// In a block of its own that ends with the last byte of the head.
NetLayers dissect(std::span<const std::uint8_t> bytes, std::size_t head = limits::kNetHeadBytesMax) {
  head = std::min(head, bytes.size());
  const auto block = std::make_unique<std::uint8_t[]>(head);
  std::copy_n(bytes.begin(), head, block.get());
  return net_dissect(std::as_bytes(std::span(block.get(), head)), static_cast<std::uint32_t>(bytes.size()));
}

TEST(NetLayers, EachShapeIsFoundWhereItIs) {
  for (const bool ipv6 : {false, true}) {
    for (const bool udp : {false, true}) {
      for (const unsigned tags : {0U, 1U, 2U}) {
        for (const std::size_t ip_options : {0U, 8U, 40U}) {
          for (const std::size_t tcp_options : {0U, 12U, 40U}) {
            const test::FrameShape shape = {
                .ipv6 = ipv6, .udp = udp, .tags = tags, .ip_option_bytes = ip_options, .tcp_option_bytes = tcp_options};
            const test::ShapedFrame frame = test::make_frame(shape);
            const NetLayers layers = dissect(frame.bytes);
            EXPECT_EQ(layers.tags, tags);
            for (unsigned tag = 0; tag < tags; ++tag) {
              EXPECT_EQ(layers.tci[tag], 0x2000U + 100 + tag);
            }
            EXPECT_EQ(layers.ether_type, ipv6 ? kEtherTypeIpv6 : kEtherTypeIpv4);
            EXPECT_EQ(layers.l3, ipv6 ? NetLayer3::ipv6 : NetLayer3::ipv4);
            EXPECT_EQ(layers.l4, udp ? NetLayer4::udp : NetLayer4::tcp);
            EXPECT_EQ(layers.protocol, udp ? kIpProtocolUdp : kIpProtocolTcp);
            EXPECT_EQ(layers.l3_offset, frame.l3);
            EXPECT_EQ(layers.l4_offset, frame.l4);
            EXPECT_EQ(layers.payload_offset, frame.payload);
            EXPECT_EQ(layers.l3_bytes, frame.bytes.size() - frame.l3);
            EXPECT_EQ(layers.source_offset, frame.l3 + (ipv6 ? 8 : 12));
            EXPECT_EQ(layers.destination_offset, frame.l3 + (ipv6 ? 24 : 16));
            EXPECT_EQ(layers.source_port, 0x9c41);
            EXPECT_EQ(layers.destination_port, 443);
            EXPECT_EQ(layers.extension_headers, ipv6 && ip_options != 0);
            EXPECT_FALSE(layers.fragment || layers.headers_cut || layers.routed_on);
            EXPECT_EQ(layers.home_address_offset, 0);
          }
        }
      }
    }
  }
}

TEST(NetLayers, NoByteIsReadThatIsNotThere) {
  for (const bool ipv6 : {false, true}) {
    for (const bool udp : {false, true}) {
      const test::ShapedFrame frame =
          test::make_frame({.ipv6 = ipv6, .udp = udp, .tags = 2, .ip_option_bytes = 16, .tcp_option_bytes = 8});
      for (std::size_t head = 0; head <= frame.bytes.size(); ++head) {
        const NetLayers cut = dissect(frame.bytes, head);  // not more was gathered
        EXPECT_EQ(cut.l4 != NetLayer4::none, head >= frame.payload) << head;
        EXPECT_EQ(cut.l3 != NetLayer3::other, head >= (ipv6 ? frame.l3 + 40 : frame.l4)) << head;
        EXPECT_EQ(cut.headers_cut, ipv6 && head >= frame.l3 + 40 && head < frame.l4) << head;
        const NetLayers ended = dissect(std::span(frame.bytes).first(head));  // the frame ends there
        EXPECT_EQ(ended.l3 != NetLayer3::other, head == frame.bytes.size()) << head << ": its length says more";
      }
    }
  }
}

TEST(NetLayers, ArpAndOthersAreTakenAsSuch) {
  test::Bytes frame = test::make_frame({}).bytes;
  test::put16(frame, 12, kEtherTypeArp);
  EXPECT_EQ(dissect(frame).l3, NetLayer3::arp);
  EXPECT_EQ(dissect(frame).l3_offset, 14);
  for (const unsigned type : {0x0000U, 0x05dcU, 0x88ccU, 0x8035U, 0x0801U, 0xffffU}) {
    test::put16(frame, 12, type);
    EXPECT_EQ(dissect(frame).l3, NetLayer3::other);
    EXPECT_EQ(dissect(frame).ether_type, type);
  }
}

TEST(NetLayers, AThirdTagIsNotLookedInto) {
  const test::ShapedFrame frame = test::make_frame({.tags = 3});
  const NetLayers layers = dissect(frame.bytes);
  EXPECT_EQ(layers.tags, 2);
  EXPECT_EQ(layers.ether_type, kEtherTypeVlan);
  EXPECT_EQ(layers.l3, NetLayer3::other);
}

TEST(NetLayers, ContradictionsOfIpv4) {
  const test::ShapedFrame good = test::make_frame({.ip_option_bytes = 4});
  const auto changed = [&](std::size_t at, std::size_t number) {
    test::Bytes bytes = good.bytes;
    test::put16(bytes, good.l3 + at, number);
    return dissect(bytes);
  };
  const std::size_t total = good.bytes.size() - good.l3;
  EXPECT_EQ(changed(0, 0x5600).l3, NetLayer3::other) << "version";
  EXPECT_EQ(changed(0, 0x4400).l3, NetLayer3::other) << "a header of 16 bytes";
  EXPECT_EQ(changed(2, total).l4, NetLayer4::tcp);
  EXPECT_EQ(changed(2, total + 1).l3, NetLayer3::other) << "longer than the frame";
  EXPECT_EQ(changed(2, 0xffff).l3, NetLayer3::other);
  EXPECT_EQ(changed(2, 23).l3, NetLayer3::other) << "shorter than its header";
  EXPECT_EQ(changed(2, 24).l3, NetLayer3::ipv4);
  EXPECT_EQ(changed(2, 24).l4, NetLayer4::none);
  EXPECT_EQ(changed(2, 43).l4, NetLayer4::none);
  EXPECT_EQ(changed(2, 44).l4, NetLayer4::tcp);
  EXPECT_EQ(changed(2, 0).l3_bytes, total) << "left to the device";
  EXPECT_EQ(changed(2, 0).l4, NetLayer4::tcp);
  EXPECT_EQ(changed(6, 0x2000).l4, NetLayer4::none);
  EXPECT_TRUE(changed(6, 0x2000).more_fragments);
  EXPECT_TRUE(changed(6, 0x1fff).fragment);
  EXPECT_EQ(changed(6, 0x1fff).fragment_offset, 65528);
  EXPECT_FALSE(changed(6, 0xc000).fragment) << "don't fragment, and the reserved bit";
}

TEST(NetLayers, ATcpHeaderHasToBeCompleteAndOfASize) {
  const test::ShapedFrame good = test::make_frame({.payload_bytes = 8});
  for (unsigned words = 0; words < 16; ++words) {
    test::Bytes bytes = good.bytes;
    bytes[good.l4 + 12] = static_cast<std::uint8_t>(words << 4U);
    const NetLayers layers = dissect(bytes);
    EXPECT_EQ(layers.l4, words >= 5 && words <= 7 ? NetLayer4::tcp : NetLayer4::none) << words;
    if (layers.l4 == NetLayer4::tcp) {
      EXPECT_EQ(layers.payload_offset, good.l4 + std::size_t{4} * words);
    }
  }
}

// IPv6 with the given extension headers, each {type, bytes from its second on}, then UDP.
test::Bytes extended(const std::vector<std::pair<unsigned, test::Bytes>>& headers) {
  const test::ShapedFrame plain = test::make_frame({.ipv6 = true, .udp = true, .payload_bytes = 12});
  test::Bytes bytes(plain.bytes.begin(), plain.bytes.begin() + static_cast<long>(plain.l4));
  std::size_t next = plain.l3 + 6;
  for (const auto& [type, rest] : headers) {
    bytes[next] = static_cast<std::uint8_t>(type);
    next = bytes.size();
    bytes.push_back(0);
    bytes.insert(bytes.end(), rest.begin(), rest.end());
  }
  bytes[next] = 17;
  bytes.insert(bytes.end(), plain.bytes.begin() + static_cast<long>(plain.l4), plain.bytes.end());
  test::put16(bytes, plain.l3 + 4, bytes.size() - plain.l4);
  return bytes;
}

const test::Bytes kEmptyOptions = {0, 1, 4, 0, 0, 0, 0};

TEST(NetLayers, ExtensionHeadersAreSteppedOverUpToALimit) {
  const test::Bytes authentication = {4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9};
  const NetLayers layers = dissect(extended({{0, kEmptyOptions}, {60, kEmptyOptions}, {51, authentication}}));
  EXPECT_EQ(layers.l4, NetLayer4::udp);
  EXPECT_TRUE(layers.extension_headers);
  EXPECT_EQ(layers.l4_offset, 14 + 40 + 8 + 8 + 24);
  for (const std::size_t count : {limits::kNetExtensionHeadersMax, limits::kNetExtensionHeadersMax + 1}) {
    const NetLayers many = dissect(extended(std::vector(count, std::pair<unsigned, test::Bytes>(60, kEmptyOptions))));
    EXPECT_EQ(many.l3, NetLayer3::ipv6);
    EXPECT_EQ(many.l4, count == limits::kNetExtensionHeadersMax ? NetLayer4::udp : NetLayer4::none);
    EXPECT_EQ(many.headers_cut, count > limits::kNetExtensionHeadersMax);
  }
  // A length of 255 units, far behind what is there.
  EXPECT_TRUE(dissect(extended({{60, {255, 1, 4, 0, 0, 0, 0}}})).headers_cut);
  // No next header.
  EXPECT_EQ(dissect(extended({{59, kEmptyOptions}})).l4, NetLayer4::none);
}

TEST(NetLayers, FragmentsOfIpv6) {
  const auto fragment = [](std::uint8_t high, std::uint8_t low) {
    return dissect(extended({{44, {0, high, low, 0, 0, 0, 1}}}));
  };
  EXPECT_EQ(fragment(0, 0).l4, NetLayer4::udp) << "the only one";
  EXPECT_FALSE(fragment(0, 0).fragment);
  EXPECT_EQ(fragment(0, 1).l4, NetLayer4::none);
  EXPECT_TRUE(fragment(0, 1).more_fragments);
  EXPECT_EQ(fragment(0, 1).l4_offset, 14 + 40 + 8);
  EXPECT_TRUE(fragment(0xff, 0xf8).fragment);
  EXPECT_EQ(fragment(0xff, 0xf8).fragment_offset, 65528);
}

TEST(NetLayers, RoutingHeadersAndHomeAddresses) {
  test::Bytes type2 = {2, 2, 1, 0, 0, 0, 0};
  type2.resize(type2.size() + 16, 7);
  EXPECT_EQ(dissect(extended({{43, type2}})).final_address_offset, 14 + 40 + 8);
  EXPECT_FALSE(dissect(extended({{43, type2}})).routed_on);
  type2[2] = 0;  // no segments left
  EXPECT_EQ(dissect(extended({{43, type2}})).final_address_offset, 0);
  type2[1] = 4;
  EXPECT_FALSE(dissect(extended({{43, type2}})).routed_on);
  type2[2] = 1;
  EXPECT_TRUE(dissect(extended({{43, type2}})).routed_on);
  EXPECT_TRUE(dissect(extended({{43, {0, 2, 1, 0, 0, 0, 0}}})).routed_on) << "too short for an address";
  test::Bytes half = {1, 2, 1, 0, 0, 0, 0};
  half.resize(half.size() + 8);
  EXPECT_TRUE(dissect(extended({{43, half}})).routed_on) << "and here for a half of it";
  EXPECT_EQ(dissect(extended({{43, half}})).final_address_offset, 0);

  test::Bytes home = {2, 1, 2, 0, 0, 201, 16};
  home.resize(home.size() + 16, 9);
  EXPECT_EQ(dissect(extended({{60, home}})).home_address_offset, 14 + 40 + 8);
  home[6] = 15;
  EXPECT_EQ(dissect(extended({{60, home}})).home_address_offset, 0) << "a wrong size";
  test::Bytes late = {2, 0, 0, 0, 0, 0, 0, 0, 201, 16};  // its address would lie behind the header
  late.resize(23, 0);
  EXPECT_EQ(dissect(extended({{60, late}})).home_address_offset, 0);
  test::Bytes at_end = {0, 0, 0, 0, 0, 0, 201};  // an option without a length
  EXPECT_EQ(dissect(extended({{60, at_end}})).home_address_offset, 0);
}

TEST(NetLayers, RandomHeadsKeepAllOffsetsInside) {
  Prng prng(5);
  for (int round = 0; round < 200000; ++round) {
    test::ShapedFrame frame = test::make_frame({.ipv6 = prng.chance(1, 2),
                                                .udp = prng.chance(1, 2),
                                                .tags = static_cast<unsigned>(prng.below(3)),
                                                .ip_option_bytes = 8 * prng.below(4),
                                                .payload_bytes = prng.below(30)});
    for (std::uint64_t flips = prng.below(6); flips > 0; --flips) {
      frame.bytes[12 + prng.below(frame.bytes.size() - 12)] = static_cast<std::uint8_t>(prng.next());
    }
    const std::size_t head = prng.below(frame.bytes.size() + 1);
    const NetLayers layers = dissect(frame.bytes, head);
    if (layers.l3 == NetLayer3::ipv4 || layers.l3 == NetLayer3::ipv6) {
      ASSERT_LE(layers.destination_offset + (layers.l3 == NetLayer3::ipv4 ? 4U : 16U), head);
      ASSERT_LE(layers.l3_offset + layers.l3_bytes, frame.bytes.size());
    }
    if (layers.l4 != NetLayer4::none) {
      ASSERT_LE(layers.payload_offset, head);
      ASSERT_GE(layers.payload_offset - layers.l4_offset, layers.l4 == NetLayer4::tcp ? 20 : 8);
    }
    if (layers.home_address_offset != 0) {
      ASSERT_LE(layers.home_address_offset + 16U, head);
    }
    if (layers.final_address_offset != 0) {
      ASSERT_LE(layers.final_address_offset + 16U, head);
    }
  }
}

}  // namespace
}  // namespace ringway
