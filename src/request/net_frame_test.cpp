#include "request/net_frame.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "request/test_frames.hpp"

namespace ringway {
namespace {

constexpr std::uint64_t kAllOffloads =
    spec::kNetCsum | spec::kNetHostTso4 | spec::kNetHostTso6 | spec::kNetHostEcn | spec::kNetHostUfo | spec::kNetHostUso;

// A chain over pieces of their own.
struct Transmitted {
  test::Pieces pieces;
  Chain chain;

  Transmitted& readable(std::span<const std::uint8_t> bytes) {
    pieces.add(bytes);
    chain.storage()[chain.count()++] = pieces.list().back();
    chain.account(false, bytes.size());
    return *this;
  }
  Transmitted& writable(std::size_t bytes) {
    pieces.add(test::Bytes(bytes));
    chain.storage()[chain.count()++] = pieces.list().back();
    chain.account(true, bytes);
    return *this;
  }
};

struct Parsed {
  NetRefusal refusal;
  NetFrame frame;
  std::vector<iovec> storage;

  test::Bytes bytes() const {
    test::Bytes all;
    for (const iovec& piece : frame.data) {
      EXPECT_GT(piece.iov_len, 0U);
      const auto* const from = static_cast<const std::uint8_t*>(piece.iov_base);
      all.insert(all.end(), from, from + piece.iov_len);
    }
    return all;
  }
};

Parsed parse(const Chain& chain, std::size_t header_bytes = 12,
             const NetFrameLimits& limits = net_frame_limits(kAllOffloads, 1500), std::size_t room = 64) {
  Parsed parsed;
  parsed.storage.resize(room);
  parsed.refusal = parse_net_frame(chain, false, header_bytes, limits, parsed.storage, parsed.frame);
  return parsed;
}

test::Bytes header_of(const spec::NetHeader& header, std::size_t bytes = 12) {
  test::Bytes out(bytes);
  std::memcpy(out.data(), &header, bytes);
  return out;
}

test::Bytes numbered(std::size_t bytes) {
  test::Bytes out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<std::uint8_t>(i * 7);
  }
  return out;
}

// What a header over a frame of `frame_bytes` comes to.
NetRefusal judge(const spec::NetHeader& header, std::size_t frame_bytes,
                 const NetFrameLimits& limits = net_frame_limits(kAllOffloads, 1500)) {
  Transmitted sent;
  sent.readable(header_of(header)).readable(test::Bytes(frame_bytes));
  return parse(sent.chain, 12, limits).refusal;
}

TEST(NetFrame, HeaderMayBeCutInAnyTwoPlaces) {
  const spec::NetHeader header{.flags = spec::kNetHdrNeedsCsum,
                               .gso_type = spec::kNetGsoTcpv4,
                               .hdr_len = 54,
                               .gso_size = 1448,
                               .csum_start = 34,
                               .csum_offset = 16,
                               .num_buffers = 77,
                               .hash_value = 0x12345678,
                               .hash_report = 3,
                               .padding_reserved = 9};
  for (const std::size_t header_bytes : {10U, 12U, 20U}) {
    test::Bytes all = header_of(header, header_bytes);
    const test::Bytes body = numbered(80);
    all.insert(all.end(), body.begin(), body.end());
    for (std::size_t first = 1; first < header_bytes + 4; ++first) {
      for (std::size_t second = first; second < header_bytes + 4; ++second) {
        Transmitted sent;
        sent.readable(std::span(all).first(first));
        if (second > first) {
          sent.readable(std::span(all).subspan(first, second - first));
        }
        sent.readable(std::span(all).subspan(second));
        const Parsed parsed = parse(sent.chain, header_bytes);
        ASSERT_EQ(parsed.refusal, NetRefusal::none) << header_bytes << ' ' << first << ' ' << second;
        ASSERT_EQ(parsed.bytes(), body);
        ASSERT_EQ(parsed.frame.bytes, body.size());
        EXPECT_EQ(parsed.frame.header.flags, spec::kNetHdrNeedsCsum);
        EXPECT_EQ(parsed.frame.header.gso_type, spec::kNetGsoTcpv4);
        EXPECT_EQ(parsed.frame.header.hdr_len, 54);
        EXPECT_EQ(parsed.frame.header.gso_size, 1448);
        EXPECT_EQ(parsed.frame.header.csum_start, 34);
        EXPECT_EQ(parsed.frame.header.csum_offset, 16);
        EXPECT_EQ(parsed.frame.header.num_buffers, 0) << "has no meaning when sending";
        EXPECT_EQ(parsed.frame.header.hash_value, 0U);
        EXPECT_EQ(parsed.frame.header.hash_report, 0);
        EXPECT_EQ(parsed.frame.header.padding_reserved, 0);
      }
    }
  }
}

// cases/net.md CVE-2022-2132: a header over many descriptors, and chains of 0 bytes to one frame.
TEST(NetFrame, OneByteAPieceIsParsedAndShortChainsAreRefused) {
  const test::Bytes body = numbered(20);
  for (const std::size_t header_bytes : {10U, 12U, 20U}) {
    test::Bytes all = header_of({}, header_bytes);
    all.insert(all.end(), body.begin(), body.end());
    for (std::size_t bytes = 0; bytes <= all.size(); ++bytes) {
      Transmitted bytewise;
      Transmitted whole;
      for (std::size_t i = 0; i < bytes; ++i) {
        bytewise.readable(std::span(all).subspan(i, 1));
      }
      if (bytes > 0) {
        whole.readable(std::span(all).first(bytes));
      }
      const NetRefusal expected = bytes < header_bytes        ? NetRefusal::short_header
                                  : bytes < header_bytes + 14 ? NetRefusal::short_frame
                                                              : NetRefusal::none;
      for (const Chain* chain : {&bytewise.chain, &whole.chain}) {
        const Parsed parsed = parse(*chain, header_bytes);
        ASSERT_EQ(parsed.refusal, expected) << header_bytes << ' ' << bytes;
        if (expected == NetRefusal::none) {
          EXPECT_EQ(parsed.bytes(), test::Bytes(body.begin(), body.begin() + static_cast<long>(bytes - header_bytes)));
        }
      }
    }
  }
}

TEST(NetFrame, AFaultyChainAndAWritablePartAreRefused) {
  Transmitted sent;
  sent.readable(header_of({})).readable(numbered(60));
  NetFrame frame;
  std::vector<iovec> storage(8);
  const NetFrameLimits limits = net_frame_limits(kAllOffloads, 1500);
  EXPECT_EQ(parse_net_frame(sent.chain, true, 12, limits, storage, frame), NetRefusal::bad_chain);
  EXPECT_EQ(parse_net_frame(sent.chain, false, 12, limits, storage, frame), NetRefusal::none);
  sent.writable(1);
  EXPECT_EQ(parse_net_frame(sent.chain, false, 12, limits, storage, frame), NetRefusal::writable_part);
  Transmitted only_writable;
  only_writable.writable(2000);
  EXPECT_EQ(parse(only_writable.chain).refusal, NetRefusal::writable_part);
}

TEST(NetFrame, StorageHasToHoldAllPieces) {
  const test::Bytes all(12 + 64);
  for (const bool header_apart : {false, true}) {
    Transmitted sent;
    sent.readable(std::span(all).first(header_apart ? 12 : 13));
    for (std::size_t at = header_apart ? 12 : 13; at < 60; at += 8) {
      sent.readable(std::span(all).subspan(at, 8));
    }
    const std::size_t pieces = sent.chain.readable().size() - (header_apart ? 1 : 0);
    EXPECT_EQ(parse(sent.chain, 12, net_frame_limits(0, 1500), pieces).refusal, NetRefusal::none);
    EXPECT_EQ(parse(sent.chain, 12, net_frame_limits(0, 1500), pieces - 1).refusal, NetRefusal::too_many_segments);
    EXPECT_EQ(parse(sent.chain, 12, net_frame_limits(0, 1500), 0).refusal, NetRefusal::too_many_segments);
  }
  Transmitted bytewise;
  for (std::size_t i = 0; i < 40; ++i) {
    bytewise.readable(std::span(all).first(1));
  }
  EXPECT_EQ(parse(bytewise.chain, 12, net_frame_limits(0, 1500), 28).refusal, NetRefusal::none);
  EXPECT_EQ(parse(bytewise.chain, 12, net_frame_limits(0, 1500), 27).refusal, NetRefusal::too_many_segments);
}

// cases/net.md O8: an MTU leaves room for the Ethernet header and two tags, and not for a byte more.
TEST(NetFrame, LengthsAreHeldToTheMtuAndWithGsoTo64KiB) {
  for (const std::uint32_t mtu : {68U, 1500U, 9000U, 65535U}) {
    const NetFrameLimits limits = net_frame_limits(kAllOffloads, mtu);
    EXPECT_EQ(judge({}, mtu + 22, limits), NetRefusal::none);
    EXPECT_EQ(judge({}, mtu + 23, limits), NetRefusal::long_frame);
  }
  const spec::NetHeader gso{.flags = 1,
                            .gso_type = spec::kNetGsoTcpv6,
                            .hdr_len = 0,
                            .gso_size = 1400,
                            .csum_start = 54,
                            .csum_offset = 16,
                            .num_buffers = 0,
                            .hash_value = 0,
                            .hash_report = 0,
                            .padding_reserved = 0};
  EXPECT_EQ(judge(gso, kNetGsoFrameBytesMax), NetRefusal::none);
  EXPECT_EQ(judge(gso, kNetGsoFrameBytesMax + 1), NetRefusal::long_frame);
  // A chain of up to 128 GiB can be described.
  Chain chain;
  chain.reset({});
  std::byte some{};
  chain.storage()[0] = {.iov_base = &some, .iov_len = 1};
  chain.count() = 1;
  chain.account(false, 32768ULL << 32U);
  EXPECT_EQ(parse(chain).refusal, NetRefusal::long_frame);
}

// cases/net.md CVE-2024-11614: csum_start and csum_offset at their edges.
TEST(NetFrame, ChecksumFieldHasToLieInTheFrameBehindAnyIpHeader) {
  const auto judge_range = [](unsigned start, unsigned offset, std::size_t bytes) {
    spec::NetHeader header{};
    header.flags = spec::kNetHdrNeedsCsum;
    header.csum_start = static_cast<std::uint16_t>(start);
    header.csum_offset = static_cast<std::uint16_t>(offset);
    return judge(header, bytes, net_frame_limits(kAllOffloads, 65535));
  };
  EXPECT_EQ(judge_range(34, 16, 52), NetRefusal::none);
  EXPECT_EQ(judge_range(34, 16, 51), NetRefusal::bad_checksum_range);
  EXPECT_EQ(judge_range(34, 17, 52), NetRefusal::bad_checksum_range);
  EXPECT_EQ(judge_range(35, 16, 52), NetRefusal::bad_checksum_range);
  EXPECT_EQ(judge_range(34, 0, 36), NetRefusal::none);
  EXPECT_EQ(judge_range(33, 0, 100), NetRefusal::bad_checksum_range) << "would rewrite what frames are judged by";
  EXPECT_EQ(judge_range(0, 6, 100), NetRefusal::bad_checksum_range) << "would rewrite the source address";
  for (const unsigned start : {0x7fffU, 0xfffeU, 0xffffU}) {
    for (const unsigned offset : {0U, 1U, 0x7fffU, 0x8000U, 0xfffeU, 0xffffU}) {
      EXPECT_EQ(judge_range(start, offset, 1514), NetRefusal::bad_checksum_range);
      const bool fits = start + offset + 2 <= 65535 + 22;
      EXPECT_EQ(judge_range(start, offset, 65535 + 22), fits ? NetRefusal::none : NetRefusal::bad_checksum_range);
    }
  }
}

TEST(NetFrame, WithoutNeedsCsumTheRangeIsNotLookedAt) {
  spec::NetHeader header{};
  header.csum_start = 0xffff;
  header.csum_offset = 0xffff;
  header.gso_size = 0xffff;
  header.hdr_len = 0xffff;
  Transmitted sent;
  sent.readable(header_of(header)).readable(numbered(60));
  const Parsed parsed = parse(sent.chain);
  ASSERT_EQ(parsed.refusal, NetRefusal::none);
  EXPECT_EQ(parsed.frame.header.csum_start, 0);
  EXPECT_EQ(parsed.frame.header.csum_offset, 0);
  EXPECT_EQ(parsed.frame.header.gso_size, 0);
  EXPECT_EQ(parsed.frame.header.hdr_len, 0);
}

// cases/net.md O4: nobody is told that a checksum is right because its sender says so.
TEST(NetFrame, FlagsThatAreUnknownOrNotForSendingAreTakenOut) {
  for (unsigned flags = 0; flags < 256; ++flags) {
    spec::NetHeader header{};
    header.flags = static_cast<std::uint8_t>(flags);
    header.csum_start = 34;
    header.csum_offset = 6;
    Transmitted sent;
    sent.readable(header_of(header)).readable(numbered(60));
    const Parsed parsed = parse(sent.chain);
    ASSERT_EQ(parsed.refusal, NetRefusal::none);
    EXPECT_EQ(parsed.frame.header.flags, flags & 1U);
  }
}

TEST(NetFrame, ADriverWithoutCsumMayLeaveAnythingInTheHeader) {
  Transmitted sent;
  sent.readable(test::Bytes(12, 0xff)).readable(numbered(60));
  const Parsed parsed = parse(sent.chain, 12, net_frame_limits(kAllOffloads & ~spec::kNetCsum, 1500));
  ASSERT_EQ(parsed.refusal, NetRefusal::none);
  const spec::NetHeader none{};
  EXPECT_EQ(std::memcmp(&parsed.frame.header, &none, sizeof none), 0);
  EXPECT_EQ(parsed.bytes(), numbered(60));
}

TEST(NetFrame, EachGsoTypeNeedsItsFeature) {
  const std::vector<std::pair<std::uint8_t, std::uint64_t>> known = {{spec::kNetGsoTcpv4, spec::kNetHostTso4},
                                                                     {spec::kNetGsoTcpv6, spec::kNetHostTso6},
                                                                     {spec::kNetGsoUdp, spec::kNetHostUfo},
                                                                     {spec::kNetGsoUdpL4, spec::kNetHostUso}};
  for (unsigned type = 1; type < 256; ++type) {
    spec::NetHeader header{};
    header.flags = spec::kNetHdrNeedsCsum;
    header.gso_type = static_cast<std::uint8_t>(type);
    header.gso_size = 1400;
    header.csum_start = 34;
    header.csum_offset = 6;
    const bool ecn = (type & 0x80U) != 0;
    const auto found =
        std::ranges::find(known, static_cast<std::uint8_t>(type & 0x7fU), [](const auto& one) { return one.first; });
    const bool tcp = found != known.end() && (found->first == spec::kNetGsoTcpv4 || found->first == spec::kNetGsoTcpv6);
    if (found == known.end() || (ecn && !tcp)) {
      EXPECT_EQ(judge(header, 100), NetRefusal::bad_gso_type) << type;
      continue;
    }
    EXPECT_EQ(judge(header, 100), NetRefusal::none) << type;
    const auto without = [&](std::uint64_t feature) {
      return judge(header, 100, net_frame_limits(kAllOffloads & ~feature, 1500));
    };
    EXPECT_EQ(without(found->second), NetRefusal::gso_not_negotiated) << type;
    EXPECT_EQ(without(kAllOffloads & ~(spec::kNetCsum | spec::kNetHostEcn | found->second)), NetRefusal::none) << type;
    EXPECT_EQ(without(spec::kNetHostEcn), ecn ? NetRefusal::gso_not_negotiated : NetRefusal::none) << type;
    header.gso_size = 0;
    EXPECT_EQ(judge(header, 100), NetRefusal::no_gso_size);
    header.gso_size = 0xffff;
    EXPECT_EQ(judge(header, 100), NetRefusal::none);
    header.flags = 0;
    EXPECT_EQ(judge(header, 100), NetRefusal::gso_without_checksum);
  }
}

TEST(NetFrame, HeaderLengthIsAHintHeldToTheFrame) {
  for (const unsigned hint : {0U, 54U, 60U, 61U, 0xffffU}) {
    spec::NetHeader header{};
    header.flags = spec::kNetHdrNeedsCsum;
    header.hdr_len = static_cast<std::uint16_t>(hint);
    header.gso_size = 1400;
    header.csum_start = 34;
    header.csum_offset = 6;
    Transmitted sent;
    sent.readable(header_of(header)).readable(numbered(60));
    const Parsed parsed = parse(sent.chain);
    ASSERT_EQ(parsed.refusal, NetRefusal::none);
    EXPECT_EQ(parsed.frame.header.hdr_len, std::min(hint, 60U));
    EXPECT_EQ(parsed.frame.header.gso_size, 0) << "nothing is to be cut";
  }
}

// cases/net.md CVE-2024-11614, its second half: what was checked is what is used, however often the sender changes it.
TEST(NetFrame, AHeaderThatChangesMeanwhileIsEitherRefusedOrInRange) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the race is the case";
#else
  for (const std::size_t piece : {12U, 5U}) {
    spec::NetHeader good{};
    good.flags = spec::kNetHdrNeedsCsum;
    good.csum_start = 34;
    good.csum_offset = 16;
    Transmitted sent;
    const test::Bytes header = header_of(good);
    for (std::size_t at = 0; at < header.size(); at += piece) {
      sent.readable(std::span(header).subspan(at, std::min(piece, header.size() - at)));
    }
    sent.readable(test::Bytes(60));
    std::atomic<bool> stop = false;
    std::thread changer([&] {
      // The high byte of csum_start: 34 or 0xff22.
      const iovec& holder = sent.pieces.list()[7 / piece];
      auto* const at = static_cast<std::uint8_t*>(holder.iov_base) + 7 % piece;
      while (!stop.load(std::memory_order_relaxed)) {
        __atomic_store_n(at, std::uint8_t{0xff}, __ATOMIC_RELAXED);
        __atomic_store_n(at, std::uint8_t{0}, __ATOMIC_RELAXED);
      }
    });
    NetFrame frame;
    std::vector<iovec> storage(8);
    const NetFrameLimits limits = net_frame_limits(kAllOffloads, 1500);
    for (int i = 0; i < 200000; ++i) {
      const NetRefusal refusal = parse_net_frame(sent.chain, false, 12, limits, storage, frame);
      if (refusal == NetRefusal::none) {
        ASSERT_EQ(frame.header.csum_start, 34);
      } else {
        ASSERT_EQ(refusal, NetRefusal::bad_checksum_range);
      }
    }
    stop = true;
    changer.join();
  }
#endif
}

TEST(NetFrame, EachRefusalHasAName) {
  for (std::size_t i = 0; i < kNetRefusals; ++i) {
    EXPECT_NE(to_string(static_cast<NetRefusal>(i)), std::string("unknown")) << i;
  }
  EXPECT_EQ(to_string(static_cast<NetRefusal>(kNetRefusals)), std::string("unknown"));
}

}  // namespace
}  // namespace ringway
