// A switch and its ports. Most tests have all workers on their own thread; what crosses workers does so all the same.
#include "backend/net/switch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <latch>
#include <new>
#include <numeric>
#include <thread>

#include "backend/net/switch_channel.hpp"
#include "backend/net/switch_pool.hpp"
#include "backend/net/test_switch.hpp"
#include "base/limits.hpp"
#include "base/prng.hpp"
#include "request/net_hash.hpp"
#include "request/test_hash_vectors.hpp"

namespace {

std::atomic<std::uint64_t> allocations{0};

}  // namespace

// Counts what the program allocates, for the test that wants none of it. (The compiler can't see that both ends match.)
#pragma GCC diagnostic push
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif
void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}
#pragma GCC diagnostic pop

namespace ringway {
namespace {

using test::Bytes;
using test::kEverybody;
using test::mac;
using test::number_in;
using test::plain_frame;
using test::tagged;
using test::TestCard;
using test::TestWorker;

std::unique_ptr<Switch> make_switch(SwitchOptions options = {}) {
  options.name = "lan0";
  options.secret = 1;
  return *Switch::create(options);
}

std::size_t got(TestCard& card) {
  return std::exchange(card->got, {}).size();
}

// Whether receivers are on the sender's worker or on another one is the same to them.
class SwitchPorts : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] TestWorker& here() { return one_; }
  [[nodiscard]] TestWorker& there() { return GetParam() ? other_ : one_; }
  std::unique_ptr<NetPort> port(const SwitchPortOptions& options = {}) { return *switch_->attach(options); }
  static void turns(std::initializer_list<TestCard*> cards) {
    for (int i = 0; i < 2; ++i) {
      for (TestCard* card : cards) {
        card->turn();
      }
    }
  }
  // Sends it, and lets it arrive.
  static void pass(TestCard& from, const Bytes& frame, std::initializer_list<TestCard*> to) {
    from.send({frame});
    turns(to);
    from.turn();
  }

  TestWorker one_;
  TestWorker other_;
  std::unique_ptr<Switch> switch_ = make_switch();
};
INSTANTIATE_TEST_SUITE_P(Workers, SwitchPorts, ::testing::Values(false, true),
                         [](const auto& of) { return of.param ? "two" : "one"; });

TEST_P(SwitchPorts, UnknownGoesToAllAndKnownToOne) {
  const auto pa = port();
  const auto pb = port();
  const auto pc = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  TestCard c(*pc, there());
  pass(a, plain_frame(mac(2), mac(1)), {&b, &c});
  EXPECT_EQ(got(b), 1U);
  EXPECT_EQ(got(c), 1U);
  pass(b, plain_frame(mac(1), mac(2)), {&a, &c});
  EXPECT_EQ(got(a), 1U);
  EXPECT_EQ(got(c), 0U) << "where mac 1 is was learned";
  const Bytes frame = plain_frame(mac(2), mac(1), 1500, 77);
  a.send({frame});
  turns({&b, &c});
  ASSERT_EQ(b->got.size(), 1U);
  EXPECT_EQ(b->got[0].bytes, frame);
  EXPECT_EQ(c->got.size(), 0U);
  EXPECT_EQ(a->got.size(), 0U);
  got(b);
  // Groups are for everybody, and never learned: a group as a source is not even a frame.
  pass(a, plain_frame(kEverybody, mac(1)), {&b, &c});
  pass(a, plain_frame({0x33, 0x33, 0, 0, 0, 1}, mac(1)), {&b, &c});
  EXPECT_EQ(got(b), 2U);
  EXPECT_EQ(got(c), 2U);
  pass(c, plain_frame(mac(1), {0x33, 0x33, 0, 0, 0, 1}), {&a, &b});
  EXPECT_EQ(got(a), 0U);
  EXPECT_EQ(c->dropped(SwitchDrop::malformed), 1U);
  pass(a, plain_frame({0x01, 0x80, 0xc2, 0, 0, 0x0e}, mac(1)), {&b, &c});
  EXPECT_EQ(got(b), 0U);
  EXPECT_EQ(a->dropped(SwitchDrop::reserved), 1U);
  // To oneself.
  pass(a, plain_frame(mac(1), mac(1)), {&b, &c});
  EXPECT_EQ(got(b) + got(c) + got(a), 0U);
  EXPECT_EQ(a->dropped(SwitchDrop::unreachable), 1U);
}

TEST_P(SwitchPorts, AddressesMoveAndAge) {
  const auto pa = port();
  const auto pb = port();
  const auto pc = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  TestCard c(*pc, there());
  pass(b, plain_frame(kEverybody, mac(9)), {&a, &c});
  pass(c, plain_frame(kEverybody, mac(3)), {&a, &b});
  got(a), got(b), got(c);
  pass(a, plain_frame(mac(9), mac(1)), {&b, &c});
  EXPECT_EQ(got(b), 1U);
  EXPECT_EQ(got(c), 0U);
  pass(c, plain_frame(kEverybody, mac(9)), {&a, &b});
  got(a), got(b);
  pass(a, plain_frame(mac(9), mac(1)), {&b, &c});
  EXPECT_EQ(got(b), 0U);
  EXPECT_EQ(got(c), 1U);
  // Five minutes later, by the worker's clock.
  here().poll(clock_now() + Duration::seconds(302));
  pass(a, plain_frame(mac(9), mac(1)), {&b, &c});
  EXPECT_EQ(got(b), 1U);
  EXPECT_EQ(got(c), 1U);
}

TEST_P(SwitchPorts, AnAccessPortHasOneVlanAndNoTags) {
  const auto pa = port({.vlan = 10});
  const auto pb = port({.vlan = 10});
  const auto pc = port({.vlan = 20});
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  TestCard c(*pc, there());
  const Bytes frame = plain_frame(kEverybody, mac(1));
  pass(a, frame, {&b, &c});
  EXPECT_EQ(got(b), 1U);
  EXPECT_EQ(got(c), 0U);
  // The same address is another one there.
  pass(c, plain_frame(kEverybody, mac(2)), {&a, &b});
  pass(a, plain_frame(mac(2), mac(1)), {&b, &c});
  EXPECT_EQ(got(b), 1U);
  EXPECT_EQ(got(c), 0U);
  // A tag that only tells a priority is none.
  a.send({tagged(frame, 0xe000)});
  turns({&b, &c});
  ASSERT_EQ(b->got.size(), 1U);
  EXPECT_EQ(b->got[0].bytes, frame);
  got(b);
  for (const std::uint16_t tag : {10, 20}) {
    pass(a, tagged(frame, tag), {&b, &c});
  }
  EXPECT_EQ(got(b) + got(c), 0U);
  EXPECT_EQ(a->dropped(SwitchDrop::vlan), 2U);
}

// A tag of another kind in front, which receivers take off if it has no number, hides no VLAN that the sender isn't in.
TEST_P(SwitchPorts, ATagWithoutANumberHidesNoOther) {
  const auto pa = port({.vlan = 10});
  const auto pt = port({.vlan = 10, .trunk = {20}});
  TestCard a(*pa, here());
  TestCard t(*pt, there());
  const Bytes frame = plain_frame(kEverybody, mac(1));
  Bytes service = tagged(tagged(frame, 20), 0);
  test::put16(service, 12, 0x88a8);
  for (const Bytes& each : {service, tagged(service, 0), tagged(tagged(frame, 20), 0)}) {
    a.send({each});
    turns({&t});
  }
  EXPECT_EQ(got(t), 0U);
  service = tagged(tagged(frame, 20), 7);
  test::put16(service, 12, 0x88a8);
  a.send({service});
  turns({&t});
  EXPECT_EQ(got(t), 1U) << "what has a number is nobody's business";
}

TEST_P(SwitchPorts, ATrunkTellsVlansByTags) {
  const auto pt = port({.vlan = 30, .trunk = {10, 20}});
  const auto pu = port({.trunk = {10}});
  const auto pa = port({.vlan = 10});
  const auto pb = port({.vlan = 20});
  const auto pn = port({.vlan = 30});
  TestCard t(*pt, here());
  TestCard u(*pu, there());
  TestCard a(*pa, there());
  TestCard b(*pb, there());
  TestCard n(*pn, there());
  const Bytes frame = plain_frame(kEverybody, mac(1), 700);
  const auto expect = [&](TestCard& card, const std::vector<Bytes>& frames) {
    ASSERT_EQ(card->got.size(), frames.size());
    for (std::size_t i = 0; i < frames.size(); ++i) {
      EXPECT_EQ(card->got[i].bytes, frames[i]);
    }
    card->got.clear();
  };
  t.send({tagged(frame, 0x600a), tagged(frame, 20), frame, tagged(frame, 30), tagged(frame, 40)});
  turns({&u, &a, &b, &n});
  t.turn();
  expect(u, {tagged(frame, 0x600a)});  // with its priority
  expect(a, {frame});
  expect(b, {frame});
  expect(n, {frame, frame});
  EXPECT_EQ(t->dropped(SwitchDrop::vlan), 1U);
  for (TestCard* each : {&a, &b, &n}) {
    each->send({frame});
    turns({&t, &u, &a, &b, &n});
  }
  expect(t, {tagged(frame, 10), tagged(frame, 20), frame});
  expect(u, {tagged(frame, 10)});
  u.send({frame});
  turns({&t, &a});
  EXPECT_EQ(u->dropped(SwitchDrop::vlan), 1U) << "no native VLAN";
  expect(t, {});
  // A second tag must not become the first one: it names a VLAN that its sender may not be in.
  t.send({tagged(tagged(frame, 77), 30), tagged(tagged(frame, 20), 10)});
  turns({&u, &a, &b, &n});
  expect(u, {tagged(tagged(frame, 20), 10)});
  expect(a, {});
  expect(n, {});
  t.turn();
  EXPECT_EQ(n->dropped(SwitchDrop::vlan), 1U);
}

TEST_P(SwitchPorts, OffloadsMoveWithTheTag) {
  const auto pt = port({.trunk = {10}});
  const auto pu = port({.trunk = {10}});
  const auto pa = port({.vlan = 10});
  const auto pb = port({.vlan = 10});
  TestCard t(*pt, here());
  TestCard u(*pu, there());
  TestCard a(*pa, there());
  TestCard b(*pb, here());
  const test::ShapedFrame shaped = test::make_frame({.payload_bytes = 4000});
  spec::NetHeader header{};
  header.flags = spec::kNetHdrNeedsCsum;
  header.gso_type = spec::kNetGsoTcpv4;
  header.gso_size = 1000;
  header.hdr_len = static_cast<std::uint16_t>(shaped.payload);
  header.csum_start = static_cast<std::uint16_t>(shaped.l4);
  header.csum_offset = 16;
  b.send({shaped.bytes}, header, 1000);
  turns({&t, &u, &a});
  ASSERT_EQ(a->got.size(), 1U);
  EXPECT_EQ(a->got[0].bytes, shaped.bytes);
  EXPECT_EQ(a->got[0].header.csum_start, shaped.l4);
  for (TestCard* trunk : {&t, &u}) {
    ASSERT_EQ((*trunk)->got.size(), 1U);
    const auto& seen = (*trunk)->got[0];
    EXPECT_EQ(seen.bytes, tagged(shaped.bytes, 10));
    EXPECT_EQ(seen.header.csum_start, shaped.l4 + 4);
    EXPECT_EQ(seen.header.hdr_len, shaped.payload + 4);
    EXPECT_EQ(seen.header.gso_size, 1000);
  }
  a->got.clear();
  header.csum_start = static_cast<std::uint16_t>(header.csum_start + 4);
  header.hdr_len = static_cast<std::uint16_t>(header.hdr_len + 4);
  t.send({tagged(shaped.bytes, 10)}, header);
  turns({&u, &a});
  ASSERT_EQ(a->got.size(), 1U);
  EXPECT_EQ(a->got[0].bytes, shaped.bytes);
  EXPECT_EQ(a->got[0].header.csum_start, shaped.l4);
  EXPECT_EQ(a->got[0].header.hdr_len, shaped.payload);
  // With a tag before it there is no room for an IP header.
  header.gso_type = 0;
  header.gso_size = 0;
  header.csum_start = kNetChecksumStartMin;
  t.send({tagged(shaped.bytes, 10)}, header);
  EXPECT_EQ(t->dropped(SwitchDrop::malformed), 1U);
}

TEST_P(SwitchPorts, IsolatedPortsReachOnlyTheOthers) {
  const auto pa = port({.isolated = true});
  const auto pb = port({.isolated = true});
  const auto pu = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  TestCard u(*pu, there());
  pass(a, plain_frame(kEverybody, mac(1)), {&b, &u});
  pass(b, plain_frame(kEverybody, mac(2)), {&a, &u});
  EXPECT_EQ(got(a) + got(b), 0U);
  EXPECT_EQ(got(u), 2U);
  pass(a, plain_frame(mac(2), mac(1)), {&b, &u});
  EXPECT_EQ(got(b), 0U);
  EXPECT_EQ(a->dropped(SwitchDrop::isolated), 1U);
  pass(u, plain_frame(mac(2), mac(3)), {&a, &b});
  EXPECT_EQ(got(b), 1U);
}

TEST_P(SwitchPorts, OnlyItsOwnAddressesMayBeSources) {
  const auto pa = port({.macs = {mac(1), mac(7)}, .checks_ip = true, .ipv4 = {{10, 0, 0, 1}}, .ipv6 = {}});
  const auto pb = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  const auto passes = [&](Bytes frame, const NetMac& from, const spec::NetHeader& header = {}) {
    std::ranges::copy(kEverybody, frame.begin());
    std::ranges::copy(from, frame.begin() + 6);
    a.send({frame}, header);
    turns({&b});
    a.turn();
    return got(b) == 1;
  };
  EXPECT_TRUE(passes(plain_frame(kEverybody, mac(1)), mac(1)));
  EXPECT_TRUE(passes(plain_frame(kEverybody, mac(1)), mac(7)));
  EXPECT_FALSE(passes(plain_frame(kEverybody, mac(1)), mac(2)));
  EXPECT_EQ(a->dropped(SwitchDrop::spoofed_mac), 1U);
  // IPv4 from 10.0.0.1, and from somebody else.
  Bytes ip = test::make_frame({}).bytes;
  EXPECT_TRUE(passes(ip, mac(1)));
  ip[14 + 15] = 9;
  EXPECT_FALSE(passes(ip, mac(1)));
  EXPECT_EQ(a->dropped(SwitchDrop::spoofed_ip), 1U);
  Bytes broken = test::make_frame({}).bytes;
  broken[14] = 0x65;
  EXPECT_FALSE(passes(broken, mac(1))) << "what isn't IP after all";
  // IPv6, which it has no address for; and with one.
  EXPECT_FALSE(passes(test::make_frame({.ipv6 = true}).bytes, mac(1)));
  // ARP: the sender's addresses are in it.
  Bytes arp = plain_frame(kEverybody, mac(1));
  test::put16(arp, 12, 0x0806);
  const NetMac own = mac(1);
  std::ranges::copy(own, arp.begin() + 14 + 8);
  std::ranges::copy(std::array<std::uint8_t, 4>{10, 0, 0, 1}, arp.begin() + 14 + 14);
  EXPECT_TRUE(passes(arp, mac(1)));
  EXPECT_FALSE(passes(arp, mac(7))) << "its own, but not the frame's";
  arp[14 + 17] = 9;
  EXPECT_FALSE(passes(arp, mac(1)));
  arp[14 + 17] = 1;
  EXPECT_TRUE(passes(arp, mac(1)));
  // Behind more tags than are looked behind, which a receiver takes off if they have no number.
  Bytes hidden = ip;
  for (int tags = 1; tags <= 6; ++tags) {
    hidden = tagged(hidden, 0);
    EXPECT_FALSE(passes(hidden, mac(1))) << tags;
    Bytes service = hidden;
    test::put16(service, 12, 0x88a8);
    EXPECT_FALSE(passes(service, mac(1))) << tags;
  }
  // A checksum that would be written over the address that was judged.
  spec::NetHeader over{};
  over.flags = spec::kNetHdrNeedsCsum;
  over.csum_start = 34;
  EXPECT_FALSE(passes(arp, mac(1), over));
  const test::ShapedFrame options = test::make_frame({.ip_option_bytes = 12});
  spec::NetHeader header{};
  header.flags = spec::kNetHdrNeedsCsum;
  header.csum_offset = 16;
  header.csum_start = static_cast<std::uint16_t>(options.l4);
  EXPECT_TRUE(passes(options.bytes, mac(1), header));
  header.csum_start = static_cast<std::uint16_t>(options.l4 - 12);
  EXPECT_FALSE(passes(options.bytes, mac(1), header));
}

TEST_P(SwitchPorts, OnlyItsOwnIpv6AddressesMayBeSources) {
  NetIpv6 own;
  std::iota(own.begin(), own.end(), std::uint8_t{0xfe});
  const auto pa = port({.checks_ip = true, .ipv6 = {own}});
  const auto pb = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  const auto passes = [&](const Bytes& frame) {
    a.send({frame});
    turns({&b});
    return got(b) == 1;
  };
  Bytes frame = test::make_frame({.ipv6 = true}).bytes;
  EXPECT_TRUE(passes(frame));
  frame[14 + 8 + 15] ^= 1;
  EXPECT_FALSE(passes(frame));
  // A neighbour advertisement from its own address, for its own and for another one.
  frame[14 + 8 + 15] ^= 1;
  frame[14 + 6] = 58;
  frame[14 + 40] = 136;
  std::ranges::copy(own, frame.begin() + 14 + 40 + 8);
  EXPECT_TRUE(passes(frame));
  frame[14 + 40 + 8] ^= 1;
  EXPECT_FALSE(passes(frame));
  // Not by a checksum that the receiver writes over what was judged, either.
  frame[14 + 40 + 8] ^= 1;
  spec::NetHeader over{};
  over.flags = spec::kNetHdrNeedsCsum;
  over.csum_start = 14 + 40 + 8;
  over.csum_offset = 14;
  a.send({frame}, over);
  turns({&b});
  EXPECT_EQ(got(b), 0U);
  frame[14 + 40 + 8] ^= 1;
  // Looking for who else has the address it is going to use.
  frame[14 + 40] = 135;
  std::fill_n(frame.begin() + 14 + 8, 16, std::uint8_t{0});
  EXPECT_TRUE(passes(frame));
  frame[14 + 40] = 128;
  EXPECT_FALSE(passes(frame));
  EXPECT_EQ(a->dropped(SwitchDrop::spoofed_ip), 4U);
}

TEST_P(SwitchPorts, WithoutBuffersFramesAreLostAndNobodyWaits) {
  const auto pa = port();
  const auto pb = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  b->buffers = 3;
  std::vector<Bytes> frames;
  for (std::uint32_t i = 0; i < 8; ++i) {
    frames.push_back(plain_frame(kEverybody, mac(1), 1000, i));
  }
  a.send(frames);
  turns({&b, &a});
  EXPECT_EQ(b->got.size(), 3U);
  EXPECT_EQ(b->overruns, 5U);
  EXPECT_EQ(a->loans, 0U);
}

TEST_P(SwitchPorts, WhatWasJudgedIsWhatArrives) {
  const auto pa = port({.macs = {mac(1)}});
  const auto pb = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  a.send({plain_frame(kEverybody, mac(1), 1000)});
  if (GetParam()) {
    // It is lent, and the guest changes it on the way.
    std::ranges::copy(mac(66), a.memory()[0].begin() + 6);
    turns({&b});
  }
  ASSERT_EQ(b->got.size(), 1U);
  EXPECT_TRUE(std::equal(b->got[0].bytes.begin() + 6, b->got[0].bytes.begin() + 12, mac(1).begin()));
}

TEST_P(SwitchPorts, APairThatIsOffGetsNothing) {
  const auto pa = port();
  const auto pb = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  pass(b, plain_frame(kEverybody, mac(2)), {&a});
  b.channel().set_enabled(false);
  a.send({plain_frame(mac(2), mac(1), 1000), plain_frame(kEverybody, mac(1), 1000)});
  there().poll();
  here().poll();
  EXPECT_EQ(b->got.size(), 0U);
  EXPECT_EQ(a->loans, 0U);
  EXPECT_EQ(a->dropped(SwitchDrop::unreachable), 1U);
  b.channel().set_enabled(true);
  pass(a, plain_frame(mac(2), mac(1), 1000), {&b});
  EXPECT_EQ(b->got.size(), 1U);
}

TEST_P(SwitchPorts, AFlowComesBackToThePairThatSendsIt) {
  const auto pa = port();
  const auto pb = port();
  TestCard a(*pa, here());
  std::vector<std::unique_ptr<TestCard>> b;
  for (std::uint32_t pair = 0; pair < 4; ++pair) {
    b.push_back(std::make_unique<TestCard>(*pb, pair % 2 == 0 ? here() : there(), pair));
  }
  const auto flow = [](bool back, unsigned port, bool ipv6) {
    Bytes frame = test::make_frame({.ipv6 = ipv6}).bytes;
    std::ranges::copy(mac(back ? 1 : 2), frame.begin());
    std::ranges::copy(mac(back ? 2 : 1), frame.begin() + 6);
    const std::size_t l4 = ipv6 ? 54 : 34;
    test::put16(frame, l4, 1000 + port);
    test::put16(frame, l4 + 2, 80);
    if (back) {
      const std::size_t source = ipv6 ? 22 : 26;
      const std::size_t bytes = ipv6 ? 16 : 4;
      const auto at = [&](std::size_t offset) { return frame.begin() + static_cast<std::ptrdiff_t>(offset); };
      std::swap_ranges(at(source), at(source + bytes), at(source + bytes));
      std::swap_ranges(at(l4), at(l4 + 2), at(l4 + 2));
    }
    return frame;
  };
  const auto receiver = [&](const Bytes& frame) {
    a.send({frame});
    std::size_t at = 99;
    for (std::size_t pair = 0; pair < 4; ++pair) {
      b[pair]->turn();
      for (std::size_t i = got(*b[pair]); i > 0; --i) {
        at = at == 99 ? pair : 98;
      }
    }
    return at;
  };
  std::array<std::size_t, 4> spread{};
  for (unsigned port = 0; port < 64; ++port) {
    const Bytes frame = flow(false, port, port % 2 == 1);
    const std::size_t first = receiver(frame);
    ASSERT_LT(first, 4U);
    ++spread[first];
    EXPECT_EQ(receiver(frame), first) << "a flow stays";
    const std::size_t other = (first + 1) % 4;
    b[other]->send({flow(true, port, port % 2 == 1)});
    EXPECT_EQ(receiver(frame), other) << "and goes where it is sent from";
    b[other]->channel().set_enabled(false);
    EXPECT_NE(receiver(frame), other);
    b[other]->channel().set_enabled(true);
  }
  for (const std::size_t count : spread) {
    EXPECT_GE(count, 4U) << "and flows are spread";
  }
}

// What a guest says by RSS holds for each frame, whichever pair sends: by a hash over what its receiver will find.
TEST_P(SwitchPorts, RssPlacesFramesByTheGuestsTable) {
  const auto pa = port({.trunk = {7, 8}});
  const auto pb = port({.vlan = 7});
  TestCard a(*pa, here());
  std::vector<std::unique_ptr<TestCard>> b;
  for (std::uint32_t pair = 0; pair < 4; ++pair) {
    b.push_back(std::make_unique<TestCard>(*pb, pair % 2 == 0 ? here() : there(), pair));
  }
  EXPECT_EQ(pb->info().steering_types, kNetHashTypesAll);
  NetSteering by;
  by.hashing.types = kNetHashTypesAll & ~spec::kNetHashTypeUdpv6;
  by.hashing.key_bytes = test::kHashVectorKey.size();
  std::ranges::copy(test::kHashVectorKey, by.hashing.key.begin());
  by.table.mask = 15;
  by.table.unclassified_pair = 2;
  for (std::uint16_t i = 0; i < 16; ++i) {
    by.table.pairs[i] = i * 3 % 4;
  }
  const NetHashKey key(test::kHashVectorKey);
  const auto expected = [&](const Bytes& frame) -> std::size_t {
    const auto all = std::as_bytes(std::span(frame));
    const auto head = all.first(std::min(all.size(), limits::kNetHeadBytesMax));
    const NetHash hash = net_hash(key, by.hashing.types, net_dissect(head, static_cast<std::uint32_t>(all.size())), head);
    return hash.report == spec::kNetHashReportNone ? by.table.unclassified_pair : by.table.pairs[hash.value & by.table.mask];
  };
  const auto receiver = [&](const Bytes& frame) {
    a.send({tagged(frame, 7)}, {}, 100);
    std::size_t at = 99;
    for (std::size_t pair = 0; pair < 4; ++pair) {
      b[pair]->turn();
      for (std::size_t i = got(*b[pair]); i > 0; --i) {
        at = at == 99 ? pair : 98;
      }
    }
    a.turn();
    return at;
  };
  ASSERT_TRUE(pb->steer(by).has_value());
  std::array<std::size_t, 4> spread{};
  for (unsigned port = 0; port < 64; ++port) {
    for (unsigned shape = 0; shape < 16; ++shape) {
      const bool ipv6 = (shape & 1U) != 0;
      // With options the headers end behind what a switch copies of a long frame.
      const std::size_t options = (shape & 4U) == 0 ? 0 : ipv6 ? 72 : 40;
      test::ShapedFrame frame = test::make_frame({.ipv6 = ipv6,
                                                  .udp = (shape & 2U) != 0,
                                                  .ip_option_bytes = options,
                                                  .tcp_option_bytes = (shape & 4U) == 0 ? 0U : 40U,
                                                  .payload_bytes = (shape & 8U) == 0 ? 10U : 1000U});
      std::ranges::copy(kEverybody, frame.bytes.begin());
      test::put16(frame.bytes, frame.l4, 1000 + port);
      const std::size_t pair = receiver(frame.bytes);
      ASSERT_EQ(pair, expected(frame.bytes)) << shape;
      ++spread[pair];
      if (port == 0) {
        Bytes back = frame.bytes;
        std::ranges::copy(mac(5), back.begin() + 6);
        b[(pair + 1) % 4]->send({back});
        a.turn();
        EXPECT_EQ(receiver(frame.bytes), pair) << "wherever it is sent from";
      }
    }
  }
  EXPECT_EQ(receiver(plain_frame(kEverybody, mac(1))), 2U) << "without a hash";
  for (const std::size_t count : spread) {
    EXPECT_GE(count, 100U);
  }
  // For a pair that is off: lost, and not somebody else's.
  Bytes frame = test::frame_of(test::kHashVectors4[0], {});
  std::ranges::copy(kEverybody, frame.begin());
  const std::size_t pair = expected(frame);
  EXPECT_EQ(receiver(frame), pair);
  b[pair]->channel().set_enabled(false);
  EXPECT_EQ(receiver(frame), 99U);
  b[pair]->channel().set_enabled(true);
  EXPECT_EQ(receiver(frame), pair);
  // Changed, and ended.
  for (std::uint16_t& entry : by.table.pairs) {
    entry = 3;
  }
  ASSERT_TRUE(pb->steer(by).has_value());
  EXPECT_EQ(receiver(frame), 3U);
  ASSERT_TRUE(pb->steer({}).has_value());
  Bytes back = plain_frame(kEverybody, mac(2));
  Bytes there_and = plain_frame(mac(2), mac(1));
  b[1]->send({back});
  a.turn();
  std::ranges::copy(mac(1), back.begin());
  b[1]->send({back});
  EXPECT_EQ(receiver(there_and), 1U) << "the flow's own pair again";
}

// ---------------------------------------------------------------- across workers

class SwitchWorkers : public SwitchPorts {};
INSTANTIATE_TEST_SUITE_P(Two, SwitchWorkers, ::testing::Values(true), [](const auto&) { return "workers"; });

TEST_P(SwitchWorkers, LongFramesAreLentAndShortOnesCopied) {
  const auto pa = port();
  const auto pb = port();
  const auto pc = port();
  EXPECT_TRUE(pa->info().borrows);
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  TestCard c(*pc, there());
  a.send({plain_frame(kEverybody, mac(1), 256, 1), plain_frame(kEverybody, mac(1), 257, 2),
          plain_frame(kEverybody, mac(1), 9000, 3)},
         {}, 100);
  EXPECT_EQ(a->lent, (std::vector<std::uint16_t>{1, 2}));
  EXPECT_EQ(a->loans, 2U);
  a.turn();
  EXPECT_EQ(a->loans, 2U);
  b.turn();
  a.turn();
  EXPECT_EQ(a->loans, 2U) << "the other receiver hasn't had them yet";
  c.turn();
  a.turn();
  EXPECT_EQ(a->loans, 0U);
  EXPECT_EQ(a->counters.lent.get(), 2U);
  EXPECT_EQ(a->counters.copied.get(), 1U);
  ASSERT_EQ(b->got.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(b->got[i].bytes, a.memory()[i]);
    EXPECT_EQ(c->got[i].bytes, a.memory()[i]);
  }
}

// A frame in more pieces than there is usually room for.
TEST_P(SwitchWorkers, AnyNumberOfPieces) {
  const auto pa = port();
  const auto pb = port({.trunk = {1}});
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  const Bytes frame = plain_frame(kEverybody, mac(1), 2000);
  a.send({frame}, {}, 1);
  b.turn();
  ASSERT_EQ(b->got.size(), 1U);
  EXPECT_EQ(b->got[0].bytes, tagged(frame, 1));
  std::vector<Bytes> many(SwitchPool::kWideFrames + 1, frame);
  a.turn();
  a.send(many, {}, 10);
  EXPECT_EQ(a->dropped(SwitchDrop::pool_empty), 1U);
  b.turn();
  a.turn();
  EXPECT_EQ(b->got.size(), 1 + SwitchPool::kWideFrames);
  EXPECT_EQ(a->loans, 0U);
}

TEST_P(SwitchWorkers, WhoSleepsIsWokenOnceAndWhoLooksIsNot) {
  const auto pa = port();
  const auto pb = port();
  const auto pc = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  TestCard c(*pc, there());
  a.turn();
  b.turn();
  c.turn();
  std::vector<Bytes> batch(8, plain_frame(kEverybody, mac(1), 100));
  a.send(batch);
  a.send(batch);
  EXPECT_EQ(a->counters.rings.get(), 1U);
  b->woken = c->woken = false;
  there().poll();
  EXPECT_TRUE(b->woken);
  EXPECT_TRUE(c->woken);
  // From here b looks.
  static_cast<void>(b.channel().receive(128));
  static_cast<void>(c.channel().receive(128));
  a.send(batch);
  EXPECT_EQ(a->counters.rings.get(), 1U);
  EXPECT_TRUE(b.channel().arm()) << "not without what has come";
  b.pump();
  c.pump();
  EXPECT_EQ(b->got.size(), 24U);
  EXPECT_EQ(c->got.size(), 24U);
  EXPECT_FALSE(b.channel().arm());
  a.send(batch);
  EXPECT_EQ(a->counters.rings.get(), 2U);
}

// For what was copied nobody is woken to hear that it arrived; for what was lent its guest waits.
TEST_P(SwitchWorkers, TheSenderIsWokenForWhatItLent) {
  const auto pa = port();
  const auto pb = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  for (const bool lent : {false, true}) {
    a.turn();
    a->woken = false;
    a.send({plain_frame(kEverybody, mac(1), lent ? 1000 : 100)});
    a->woken = false;
    EXPECT_FALSE(a.channel().arm());
    b.turn();
    here().poll();
    EXPECT_EQ(a->woken, lent);
  }
  EXPECT_EQ(a->loans, 0U);
}

// It is woken by its bell alone, whatever its queues are allowed to do.
TEST_P(SwitchWorkers, LoansComeBackToAndFromPairsThatAreOff) {
  const auto pa = port();
  const auto pb = port();
  TestCard a(*pa, here(), 0, false);
  TestCard b(*pb, there());
  a.send({plain_frame(kEverybody, mac(1), 1000)});
  EXPECT_EQ(a->loans, 1U);
  b.channel().set_enabled(false);
  there().poll();
  here().poll();
  EXPECT_EQ(a->loans, 0U);
  EXPECT_EQ(b->got.size(), 0U);
  // What is queued already goes back, too.
  b.channel().set_enabled(true);
  a.send({plain_frame(kEverybody, mac(1), 1000)});
  there().poll();
  here().poll();
  EXPECT_EQ(a->loans, 1U);
  b.channel().set_enabled(false);
  here().poll();
  EXPECT_EQ(a->loans, 0U);
  EXPECT_EQ(b->dropped(SwitchDrop::unreachable), 2U);
  // The queue that looked is the one that is turned off: from there its bell is all there is.
  a.channel().set_enabled(true);
  b.channel().set_enabled(true);
  a.send({plain_frame(kEverybody, mac(1), 1000)});
  static_cast<void>(a.channel().receive(128));
  static_cast<void>(b.channel().receive(0));
  a.channel().set_enabled(false);
  b.channel().set_enabled(false);
  here().poll();
  there().poll();
  EXPECT_EQ(a->loans, 0U);
}

TEST_P(SwitchWorkers, AChannelThatClosesGivesEverythingBack) {
  for (const bool queued : {false, true}) {
    const auto pa = port();
    auto pb = port();
    TestCard a(*pa, here());
    auto b = std::make_unique<TestCard>(*pb, there());
    a.send({plain_frame(kEverybody, mac(1), 1000), plain_frame(kEverybody, mac(1), 100)});
    if (queued) {
      there().poll();
    }
    b->close();
    here().poll();
    EXPECT_EQ(a->loans, 0U);
    // And to a seat that has closed nothing can go any more.
    pb.reset();
    a.send({plain_frame(kEverybody, mac(1), 1000)});
    EXPECT_EQ(a->loans, 0U);
  }
  EXPECT_EQ(switch_->stats().workers, 2U);
}

// A sender whose copies are still under way goes, and so does its port; another one takes its place.
TEST_P(SwitchWorkers, ASenderMayGoBeforeItsFramesArrive) {
  const auto pb = port();
  TestCard b(*pb, there());
  for (int round = 0; round < 3; ++round) {
    const auto pa = port();
    TestCard a(*pa, here());
    a.send({plain_frame(kEverybody, mac(1), 100)});
    a.close();
  }
  b.turn();
  EXPECT_EQ(b->got.size(), 3U);
  const auto pa = port();
  TestCard a(*pa, here());
  a.send({plain_frame(kEverybody, mac(1), 100)});
  b.turn();
  EXPECT_EQ(b->got.size(), 4U);
}

// A frame for a port that has gone doesn't reach the one that has come in its place.
TEST_P(SwitchWorkers, APlaceThatIsUsedAgainIsAnotherPort) {
  const auto pa = port();
  auto pb = port();
  TestCard a(*pa, here());
  const auto pk = port({.vlan = 99});
  TestCard k(*pk, there());  // keeps the seat open
  auto b = std::make_unique<TestCard>(*pb, there());
  a.send({plain_frame(kEverybody, mac(1), 1000)});
  b->close();
  pb.reset();
  pb = port();
  TestCard c(*pb, there());
  turns({&c, &k, &a});
  EXPECT_EQ(c->got.size(), 0U);
  EXPECT_EQ(a->loans, 0U);
  EXPECT_EQ(switch_->stats().strays, 1U);
  pass(a, plain_frame(kEverybody, mac(1), 1000), {&c});
  EXPECT_EQ(c->got.size(), 1U);
}

TEST_P(SwitchWorkers, WhatIsUnderWayIsBounded) {
  const auto pa = port();
  const auto pb = port();
  const auto pc = port();
  TestWorker third;
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  TestCard c(*pc, third);
  pass(b, plain_frame(kEverybody, mac(2)), {&a, &c});
  pass(c, plain_frame(kEverybody, mac(3)), {&a, &b});
  got(b);
  const auto send = [&](std::size_t count, const NetMac& to) {
    for (std::size_t i = 0; i < count; ++i) {
      a.send({plain_frame(to, mac(1), 100)});
    }
  };
  // One worker doesn't look.
  send(300, mac(2));
  EXPECT_EQ(a->counters.copied.get(), SwitchPool::kCredit);
  EXPECT_EQ(a->dropped(SwitchDrop::credit_spent), 300U - SwitchPool::kCredit);
  // Another one still gets its frames.
  send(10, mac(3));
  c.turn();
  EXPECT_GE(got(c), 10U);
  // Nor does that one, and the pool is empty.
  a.turn();
  send(300, mac(3));
  EXPECT_EQ(a->dropped(SwitchDrop::pool_empty), 300U - (SwitchPool::kFrames - SwitchPool::kCredit));
  for (int i = 0; i < 3; ++i) {
    b.turn();
    c.turn();
    a.turn();
  }
  EXPECT_EQ(got(b), SwitchPool::kCredit);
  send(1, mac(2));
  b.turn();
  EXPECT_EQ(got(b), 1U);
}

TEST_P(SwitchWorkers, AReceiverThatHasHadItsTurnGoesOnInTheNext) {
  const auto pa = port();
  const auto pb = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  std::vector<Bytes> frames;
  for (std::uint32_t i = 0; i < 10; ++i) {
    frames.push_back(plain_frame(kEverybody, mac(1), 1000, i));
  }
  a.send(frames);
  there().poll();
  b->turn = 3;
  EXPECT_EQ(b.channel().receive(128), NetChannel::Received::budget);
  b->turn = SIZE_MAX;
  EXPECT_EQ(b.channel().receive(4), NetChannel::Received::budget);
  EXPECT_TRUE(b.channel().arm());
  EXPECT_EQ(b.channel().receive(128), NetChannel::Received::all);
  ASSERT_EQ(b->got.size(), 10U);
  for (std::uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(number_in(b->got[i].bytes), i);
  }
  EXPECT_EQ(b->overruns, 0U);
  here().poll();
  EXPECT_EQ(a->loans, 0U);
}

TEST_P(SwitchWorkers, NothingIsAllocatedForAFrame) {
  const auto pa = port();
  const auto pb = port({.trunk = {1}});
  const auto pc = port();
  TestCard a(*pa, here());
  TestCard b(*pb, there());
  TestCard c(*pc, here());
  for (TestCard* card : {&a, &b, &c}) {
    (*card)->keeps = false;
  }
  Bytes small = plain_frame(kEverybody, mac(1), 64);
  Bytes large = plain_frame(kEverybody, mac(1), 1500);
  std::array<iovec, 2> pieces{iovec{.iov_base = small.data(), .iov_len = small.size()},
                              iovec{.iov_base = large.data(), .iov_len = large.size()}};
  const std::array<NetFrame, 2> frames{NetFrame{.header = {}, .data = {&pieces[0], 1}, .bytes = 64},
                                       NetFrame{.header = {}, .data = {&pieces[1], 1}, .bytes = 1500}};
  const auto pass_some = [&] {
    for (int i = 0; i < 100; ++i) {
      small[11] = large[11] = static_cast<std::uint8_t>(i);  // from ever new addresses
      ASSERT_EQ(a.channel().send(frames), 2U);
      b.turn();
      a.turn();
    }
  };
  pass_some();
  const std::uint64_t before = allocations.load();
  pass_some();
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(b->count, 400U);
  EXPECT_EQ(c->count, 400U);
}

// ---------------------------------------------------------------- threads

// A worker with a thread: turns, and sleeps whenever it may. Its cards are made, used and closed there.
class Running {
 public:
  explicit Running(std::function<void(Running&)> begin, std::function<void(Running&)> each_turn,
                   std::function<void(Running&)> end)
      : thread_([this, begin = std::move(begin), each_turn = std::move(each_turn), end = std::move(end)] {
          begin(*this);
          while (!stop_.load(std::memory_order_acquire)) {
            each_turn(*this);
            // As a worker does it: only an active queue looks, and who has nothing arms and is idle.
            bool works = sends;
            for (TestCard* card : cards) {
              if ((*card)->woken) {
                static_cast<void>(card->channel().receive(128));
                (*card)->woken = card->channel().arm();
              }
              works = works || (*card)->woken;
            }
            if (works || has_more(*this)) {
              worker.poll();
            } else {
              worker.loop().wait(clock_now(), Instant::never());
            }
          }
          end(*this);
        }) {}
  void stop() {
    stop_.store(true, std::memory_order_release);
    worker.loop().wake();
    thread_.join();
  }

  TestWorker worker;
  std::vector<TestCard*> cards;
  bool sends = false;                                                       // all the time
  std::function<bool(Running&)> has_more = [](Running&) { return false; };  // to send

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Two workers; on each a card that sends and receives, and sleeps while it waits for what it has lent.
TEST(SwitchThreads, FlowsStayInOrderAndNoLoanOrWakeUpIsLost) {
  constexpr std::uint32_t kFrames = 20'000;
  auto lan = make_switch();
  std::array<std::unique_ptr<NetPort>, 2> ports{*lan->attach({}), *lan->attach({})};
  struct Side {
    std::unique_ptr<TestCard> card;
    std::uint32_t sent = 0;
    std::uint32_t last = 0;
    std::uint64_t disorder = 0;
    std::uint64_t received = 0;
    std::uint64_t lost = 0;
    std::array<Bytes, 8> memory;
    std::array<iovec, 8> pieces{};
  };
  std::array<Side, 2> sides;
  std::latch ready(2);
  std::latch done(2);
  const auto run = [&](unsigned which) {
    Side& side = sides[which];
    return std::make_unique<Running>(
        [&, which](Running& worker) {
          side.card = std::make_unique<TestCard>(*ports[which], worker.worker);
          worker.cards = {side.card.get()};
          worker.has_more = [&side](Running&) { return side.sent < kFrames && (*side.card)->loans == 0; };
          ready.arrive_and_wait();
        },
        [&, which](Running&) {
          TestCard& card = *side.card;
          for (const auto& frame : card->got) {
            const std::uint32_t number = number_in(frame.bytes);
            side.disorder += number <= side.last ? 1 : 0;
            side.last = number;
            ++side.received;
          }
          card->got.clear();
          // Eight at a time, and the next ones when they are back: the turn between is spent asleep.
          if (card->loans == 0 && side.sent < kFrames) {
            std::array<NetFrame, 8> frames;
            for (std::size_t i = 0; i < 8; ++i) {
              side.memory[i] = plain_frame(kEverybody, mac(10 + which), 300 + side.sent % 64, side.sent + 1);
              ++side.sent;
              side.pieces[i] = {.iov_base = side.memory[i].data(), .iov_len = side.memory[i].size()};
              frames[i] = {
                  .header = {}, .data = {&side.pieces[i], 1}, .bytes = static_cast<std::uint32_t>(side.memory[i].size())};
            }
            RW_CHECK(card.channel().send(frames) == 8);
            if (side.sent == kFrames) {
              done.count_down();
            }
          }
        },
        [&](Running&) {});
  };
  auto one = run(0);
  auto other = run(1);
  done.wait();
  // Loans come home while both still run.
  one->stop();
  other->stop();
  for (std::size_t i = 0; i < 2; ++i) {
    Side& side = sides[i];
    EXPECT_EQ(side.disorder, 0U);
    EXPECT_GT(side.received, kFrames / 2);
    EXPECT_EQ((*side.card)->lent.size(), kFrames);
  }
  // Here everybody else has stopped; what was the last batch may still be under way.
  for (int i = 0; i < 3; ++i) {
    sides[0].card->turn();
    sides[1].card->turn();
  }
  for (Side& side : sides) {
    EXPECT_EQ((*side.card)->loans, 0U);
    side.card.reset();
  }
}

// Ports come and go on two workers while others send to everybody, without a pause and to each other.
TEST(SwitchThreads, PortsComeAndGoUnderTraffic) {
  auto lan = make_switch();
  constexpr std::size_t kSteady = 2;
  std::array<std::unique_ptr<NetPort>, kSteady> ports{*lan->attach({}), *lan->attach({})};
  std::array<std::unique_ptr<TestCard>, kSteady> steady;
  // What the control thread asks of a worker: one order at a time.
  std::array<std::atomic<NetPort*>, kSteady> opens{};
  std::array<std::atomic<bool>, kSteady> closes{};
  std::array<std::unique_ptr<TestCard>, kSteady> guests;
  std::array<std::uint64_t, kSteady> guests_got{};
  std::latch ready(kSteady);
  const auto run = [&](std::size_t which) {
    return std::make_unique<Running>(
        [&, which](Running& worker) {
          steady[which] = std::make_unique<TestCard>(*ports[which], worker.worker);
          (*steady[which])->keeps = false;
          worker.cards = {steady[which].get()};
          worker.sends = true;
          ready.arrive_and_wait();
        },
        [&, which, memory = plain_frame(kEverybody, mac(1), 600), prng = Prng(which)](Running& worker) mutable {
          if (NetPort* const port = opens[which].load(std::memory_order_acquire)) {
            guests[which] = std::make_unique<TestCard>(*port, worker.worker);
            (*guests[which])->keeps = false;
            worker.cards.push_back(guests[which].get());
            opens[which].store(nullptr, std::memory_order_release);
          }
          // Only a card whose ring has stopped is closed, as a device does it.
          if (closes[which].load(std::memory_order_acquire) && (*guests[which])->loans == 0) {
            worker.cards.pop_back();
            guests_got[which] += (*guests[which])->count;
            guests[which].reset();
            closes[which].store(false, std::memory_order_release);
          }
          iovec piece{.iov_base = memory.data(), .iov_len = memory.size()};
          const auto bytes = static_cast<std::uint32_t>(prng.chance(1, 2) ? 64 : memory.size());
          piece.iov_len = bytes;
          memory[11] = static_cast<std::uint8_t>(which + 1);
          memory[5] = memory[0] = prng.chance(1, 2) ? 0xff : 0x02;
          memory[5] = memory[0] == 0xff ? 0xff : static_cast<std::uint8_t>(prng.below(4));
          const NetFrame frame{.header = {}, .data = {&piece, 1}, .bytes = bytes};
          for (TestCard* card : worker.cards) {
            if (!closes[which].load(std::memory_order_relaxed) || card != guests[which].get()) {
              if ((*card)->loans < 64) {
                RW_CHECK(card->channel().send({&frame, 1}) == 1);
              }
            }
          }
        },
        [&, which](Running& worker) {
          // As for a stop: what is lent comes back.
          while ((*steady[which])->loans != 0) {
            worker.worker.poll();
            static_cast<void>(steady[which]->channel().receive(128));
          }
          steady[which].reset();
        });
  };
  auto one = run(0);
  auto other = run(1);
  for (int round = 0; round < 150; ++round) {
    std::array<std::unique_ptr<NetPort>, kSteady> come;
    for (std::size_t i = 0; i < kSteady; ++i) {
      come[i] = *lan->attach({.isolated = round % 3 == 0});
      opens[i].store(come[i].get(), std::memory_order_release);
    }
    for (std::size_t i = 0; i < kSteady; ++i) {
      while (opens[i].load(std::memory_order_acquire) != nullptr) {
        std::this_thread::yield();
      }
      closes[i].store(true, std::memory_order_release);
    }
    for (std::size_t i = 0; i < kSteady; ++i) {
      while (closes[i].load(std::memory_order_acquire)) {
        std::this_thread::yield();
      }
    }
  }
  // One after the other: what the first has lent comes back from the second, which still runs; and its channel closes under
  // the second one's traffic.
  one->stop();
  other->stop();
  EXPECT_GT(guests_got[0] + guests_got[1], 0U);
}

TEST(Switch, ErrorsSayWhatToChange) {
  const auto of_switch = [](const SwitchOptions& options) {
    const auto made = Switch::create(options);
    return made ? std::string("no error") : made.error().message;
  };
  EXPECT_NE(of_switch({.addresses = 1000}).find("power of two"), std::string::npos);
  EXPECT_NE(of_switch({.addresses_per_port = 0}).find("between 1 and"), std::string::npos);
  EXPECT_NE(of_switch({.ageing = {}}).find("a second at least"), std::string::npos);
  auto lan = make_switch();
  const auto of_port = [&](const SwitchPortOptions& options) {
    const auto made = lan->attach(options);
    return made ? std::string("no error") : made.error().message;
  };
  EXPECT_NE(of_port({.pairs_max = 129}).find("between 1 and 128"), std::string::npos);
  EXPECT_NE(of_port({.vlan = 0}).find("VLAN 0 must be"), std::string::npos);
  EXPECT_NE(of_port({.trunk = {10, 4095}}).find("VLAN 4095 must be"), std::string::npos);
  EXPECT_NE(of_port({.macs = {kEverybody}}).find("group address"), std::string::npos);
  EXPECT_NE(of_port({.ipv4 = {{10, 0, 0, 1}}}).find("isn't to check"), std::string::npos);
  std::vector<std::unique_ptr<NetPort>> ports;
  for (std::size_t i = 0; i < kSwitchPortsMax; ++i) {
    ports.push_back(*lan->attach({}));
  }
  EXPECT_NE(of_port({}).find("256 ports"), std::string::npos);
  ports.pop_back();
  EXPECT_EQ(of_port({}), "no error");
}

TEST(Switch, AFrameThatAnyReasonStopsHasItsName) {
  for (std::size_t i = 0; i < kSwitchDrops; ++i) {
    EXPECT_STRNE(to_string(static_cast<SwitchDrop>(i)), "");
  }
}

}  // namespace
}  // namespace ringway
