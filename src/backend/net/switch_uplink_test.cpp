// An uplink of a switch, to a port in the test's hands.
#include "backend/net/switch_uplink.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "backend/net/test_switch.hpp"

namespace ringway {
namespace {

using test::Bytes;
using test::kEverybody;
using test::mac;
using test::plain_frame;
using test::tagged;
using test::TestCard;
using test::TestWorker;

// What is outside: takes `room` frames, and has those of `frames`, headers first.
struct Outside {
  NetPortInfo info{.kind = "outside"};
  std::size_t room = SIZE_MAX;
  std::vector<std::pair<spec::NetHeader, Bytes>> sent;
  std::deque<Bytes> frames;
  bool by_copy = false;
  bool enabled = false;
  NetReceiver* receiver = nullptr;
};
class OutsidePort final : public NetPort {
 public:
  explicit OutsidePort(Outside& outside) : outside_(outside) {}
  [[nodiscard]] const NetPortInfo& info() const noexcept override { return outside_.info; }
  [[nodiscard]] Result<std::unique_ptr<NetChannel>> open_channel(const Pair& pair) override {
    outside_.receiver = &pair.receiver;
    return std::make_unique<Channel>(outside_);
  }

 private:
  struct Channel final : NetChannel {
    explicit Channel(Outside& of) : outside(of) {}
    [[nodiscard]] std::size_t send(std::span<const NetFrame> frames) noexcept override {
      const std::size_t taken = std::min(outside.room, frames.size());
      for (const NetFrame& frame : frames.first(taken)) {
        outside.sent.emplace_back(frame.header, test::joined(frame.data));
      }
      outside.room -= taken;
      return taken;
    }
    [[nodiscard]] Received receive(std::uint32_t /*budget*/) noexcept override {
      while (!outside.frames.empty()) {
        const Bytes& frame = outside.frames.front();
        if (outside.by_copy) {
          iovec piece{.iov_base = outside.frames.front().data() + 12, .iov_len = frame.size() - 12};
          NetFrame whole{.header = {}, .data = {&piece, 1}, .bytes = static_cast<std::uint32_t>(piece.iov_len)};
          std::memcpy(&whole.header, frame.data(), 12);
          if (outside.receiver->deliver(whole) == NetReceiver::Delivery::no_buffers) {
            return Received::no_buffers;
          }
        } else {
          std::array<NetLanding, 4> landings;
          if (outside.receiver->lend(landings, 1514) == 0) {
            return Received::no_buffers;
          }
          RW_CHECK(landings[0].pieces.size() == 1 && landings[0].bytes >= frame.size());
          std::ranges::copy(std::as_bytes(std::span(frame)), static_cast<std::byte*>(landings[0].pieces[0].iov_base));
          const auto length = static_cast<std::uint32_t>(frame.size());
          outside.receiver->land({&length, 1});
        }
        outside.frames.pop_front();
      }
      return Received::all;
    }
    void set_guest(std::uint64_t /*offloads*/, std::size_t header_bytes) noexcept override { RW_CHECK(header_bytes == 12); }
    void set_enabled(bool enabled) noexcept override { outside.enabled = enabled; }
    Outside& outside;
  };
  Outside& outside_;
};

class SwitchUplinkTest : public ::testing::Test {
 protected:
  void open(const SwitchPortOptions& options = {}) {
    inside_ = *switch_->attach(options);
    uplink_ = *SwitchUplink::open(port_, *inside_, 0, here_.loop());
    here_.poll();
  }
  ~SwitchUplinkTest() override {
    bool idle = false;
    uplink_->stop([&] { idle = true; });
    for (int i = 0; i < 10 && !idle; ++i) {
      there_.poll();
      here_.poll();
    }
    EXPECT_TRUE(idle);
    uplink_.reset();
    EXPECT_FALSE(outside_.enabled);
  }
  void arrive(const Bytes& frame, spec::NetHeader header = {}) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&header);
    Bytes all(bytes, bytes + 12);
    all.insert(all.end(), frame.begin(), frame.end());
    outside_.frames.push_back(all);
    outside_.receiver->wake();
    here_.poll();
  }

  TestWorker here_;
  TestWorker there_;
  std::unique_ptr<Switch> switch_ = *Switch::create({.name = "lan0"});
  Outside outside_;
  OutsidePort port_{outside_};
  std::unique_ptr<NetPort> inside_;
  std::unique_ptr<SwitchUplink> uplink_;
};

TEST_F(SwitchUplinkTest, FramesPassBothWays) {
  open();
  const auto pa = *switch_->attach({});
  const auto pb = *switch_->attach({});
  TestCard a(*pa, here_);
  TestCard b(*pb, there_);
  for (const bool by_copy : {false, true}) {
    outside_.by_copy = by_copy;
    for (const std::size_t bytes : {60U, 1514U}) {
      const Bytes in = plain_frame(kEverybody, mac(100), bytes);
      arrive(in);
      b.turn();
      ASSERT_EQ(a->got.size(), 1U);
      ASSERT_EQ(b->got.size(), 1U);
      EXPECT_EQ(a->got[0].bytes, in);
      EXPECT_EQ(b->got[0].bytes, in);
      a->got.clear();
      b->got.clear();
    }
  }
  EXPECT_TRUE(outside_.sent.empty());
  const Bytes out = plain_frame(mac(100), mac(1), 1000);
  a.send({out});
  ASSERT_EQ(outside_.sent.size(), 1U);
  EXPECT_EQ(outside_.sent[0].second, out);
  b.send({out});
  here_.poll();  // the bell
  here_.poll();
  EXPECT_EQ(outside_.sent.size(), 2U);
  b.turn();
  EXPECT_EQ(b->loans, 0U);
  EXPECT_EQ(a->got.size() + b->got.size(), 0U) << "where mac 100 is was learned";
  // A full interface loses frames, and holds up nobody.
  outside_.room = 0;
  a.send({out, out});
  EXPECT_EQ(uplink_->counters().dropped_full.get(), 2U);
  EXPECT_EQ(uplink_->counters().frames_in.get(), 4U);
  EXPECT_EQ(uplink_->counters().frames_out.get(), 2U);
}

TEST_F(SwitchUplinkTest, ATrunkToTheOutside) {
  open({.trunk = {10, 20}});
  const auto pa = *switch_->attach({.vlan = 20});
  TestCard a(*pa, here_);
  const Bytes frame = plain_frame(kEverybody, mac(1), 300);
  arrive(tagged(frame, 20));
  arrive(tagged(frame, 10));
  ASSERT_EQ(a->got.size(), 1U);
  EXPECT_EQ(a->got[0].bytes, frame);
  a.send({frame});
  ASSERT_EQ(outside_.sent.size(), 1U);
  EXPECT_EQ(outside_.sent[0].second, tagged(frame, 20));
}

// Another worker has borrowed all there is. What is outside waits there until it comes back.
TEST_F(SwitchUplinkTest, WithoutMemoryFramesWaitOutside) {
  open();
  const auto pb = *switch_->attach({});
  TestCard b(*pb, there_);
  for (std::uint32_t i = 0; i < 140; ++i) {
    arrive(plain_frame(kEverybody, mac(100), 1000, i));
  }
  EXPECT_EQ(outside_.frames.size(), 12U);
  b.turn();
  for (int i = 0; i < 3; ++i) {
    here_.poll();
  }
  EXPECT_EQ(outside_.frames.size(), 0U);
  b.turn();
  ASSERT_EQ(b->got.size(), 140U);
  for (std::uint32_t i = 0; i < 140; ++i) {
    EXPECT_EQ(test::number_in(b->got[i].bytes), i);
  }
}

TEST_F(SwitchUplinkTest, WhatTheOutsideCantTakeIsCut) {
  outside_.info.host_offloads = spec::kNetCsum | spec::kNetHostTso4;
  open();
  const auto pa = *switch_->attach({});
  TestCard a(*pa, here_);
  for (const bool ipv6 : {false, true}) {
    test::ShapedFrame shaped = test::make_frame({.ipv6 = ipv6, .payload_bytes = 2500});
    spec::NetHeader header{};
    header.flags = spec::kNetHdrNeedsCsum;
    header.gso_type = ipv6 ? spec::kNetGsoTcpv6 : spec::kNetGsoTcpv4;
    header.gso_size = 1000;
    header.csum_start = static_cast<std::uint16_t>(shaped.l4);
    header.csum_offset = 16;
    outside_.sent.clear();
    a.send({shaped.bytes}, header);
    if (!ipv6) {
      ASSERT_EQ(outside_.sent.size(), 1U);
      EXPECT_EQ(outside_.sent[0].second, shaped.bytes);
      continue;
    }
    ASSERT_EQ(outside_.sent.size(), 3U);
    Bytes payload;
    for (const auto& [its_header, bytes] : outside_.sent) {
      EXPECT_EQ(its_header.gso_type, 0);
      const test::SeenFrame seen = test::look_at(bytes, true);
      EXPECT_EQ(seen.fault, "");
      payload.insert(payload.end(), seen.payload.begin(), seen.payload.end());
    }
    EXPECT_TRUE(std::ranges::equal(payload, std::span(shaped.bytes).subspan(shaped.payload)));
  }
  EXPECT_EQ(uplink_->counters().cut.get(), 1U);
}

TEST_F(SwitchUplinkTest, HeadersThatContradictThemselvesAreDropped) {
  open();
  const auto pa = *switch_->attach({});
  TestCard a(*pa, here_);
  const Bytes frame = test::make_frame({}).bytes;
  spec::NetHeader header{};
  header.gso_type = spec::kNetGsoTcpv4;
  arrive(frame, header);
  header.flags = spec::kNetHdrNeedsCsum;
  header.csum_start = 34;
  header.csum_offset = 16;
  arrive(frame, header);
  header.gso_type = 0;
  header.csum_start = 60000;
  arrive(frame, header);
  EXPECT_EQ(uplink_->counters().bad_headers.get(), 3U);
  header.csum_start = 34;
  header.flags |= spec::kNetHdrDataValid;
  arrive(frame, header);
  ASSERT_EQ(a->got.size(), 1U);
  EXPECT_EQ(a->got[0].header.flags, spec::kNetHdrNeedsCsum);
}

}  // namespace
}  // namespace ringway
