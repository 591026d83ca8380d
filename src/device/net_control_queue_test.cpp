// A card's control queue without threads: the test answers for the device.
#include "device/net_control_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "device/test_net_queue.hpp"
#include "guest/test_memory.hpp"
#include "loop/simulated_loop.hpp"
#include "request/test_net_control.hpp"

namespace ringway::testing {
namespace {

constexpr std::uint8_t kUnanswered = 0x5a;

class NetControlRing : public ::testing::TestWithParam<RingKind> {
 protected:
  NetControlRing() {
    RW_CHECK(queue_.start(context_, ring_.start(), guest_.map(), nullptr).has_value());
    std::memset(guest_.host(reply_), kUnanswered, 64);
  }
  ~NetControlRing() override {
    if (asked_.size() > answered_) {
      answer(NetControlRefusal::none);
    }
    queue_.detach([](const Result<>& /*never fails*/) {});
  }

  // A command with an answer of so many bytes, by default the ack alone. Each has its place for the answer.
  void submit(const ControlText& text, std::uint32_t reply_bytes = 1) {
    const GuestAddress at{text_.value + added_ % 16 * 256};
    RW_CHECK(text.get().size() <= 256);
    std::ranges::copy(text.get(), guest_.host(at));
    std::vector<DriverBuffer> buffers{{.address = at, .bytes = static_cast<std::uint32_t>(text.get().size())}};
    if (reply_bytes != 0) {
      buffers.push_back({.address = reply_of(added_), .bytes = reply_bytes, .device_writable = true});
    }
    RW_CHECK(ring_.driver().add(buffers, added_++));
    static_cast<void>(ring_.driver().publish());
  }
  [[nodiscard]] GuestAddress reply_of(std::uint64_t number) const { return {reply_.value + number % 16 * 16}; }
  [[nodiscard]] std::uint8_t reply_byte(std::uint64_t number, std::size_t at = 0) const {
    return read_guest(guest_, reply_of(number), 16)[at];
  }
  void answer(NetControlRefusal refusal, const NetCoalescing& coalescing = {}) {
    ++answered_;
    queue_.answer({.refusal = refusal, .answer = coalescing});
  }
  [[nodiscard]] Queue::Pumped turn() {
    const Queue::Pumped pumped = queue_.pump(context_);
    queue_.publish();
    return pumped;
  }
  void expect_used(const std::vector<std::uint32_t>& lengths) {
    queue_.publish();
    std::vector<std::uint32_t> got;
    for (const UsedElement& used : ring_.take_used()) {
      EXPECT_EQ(used.token, used_++);
      got.push_back(used.written_bytes);
    }
    EXPECT_EQ(got, lengths);
  }
  [[nodiscard]] static ControlText promiscuous(bool on) {
    return ControlText(spec::kNetCtrlClassRx, spec::kNetCtrlRxPromisc).put(static_cast<std::uint8_t>(on));
  }
  [[nodiscard]] std::uint64_t refused(NetControlRefusal refusal) const {
    return queue_.counters().refused[static_cast<std::size_t>(refusal)].get();
  }

  Guest guest_{{{.address = 0, .bytes = 4U << 20U}}};
  SimulatedLoop loop_;
  SameThread executor_;
  WorkerContext context_{0, loop_, executor_};
  std::vector<NetCommand> asked_;
  std::size_t answered_ = 0;
  NetControlQueue queue_{{.stop_deadline = Duration::seconds(1)},
                         [this](const NetCommand& command) { asked_.push_back(command); }};
  TestRing ring_{guest_, GetParam(), 64};
  GuestAddress text_ = guest_.take(16 * 256);
  GuestAddress reply_ = guest_.take(16 * 16);
  std::uint64_t added_ = 0;
  std::uint64_t used_ = 0;
};

TEST_P(NetControlRing, CommandsAreAskedOneAtATime) {
  submit(promiscuous(true));
  submit(promiscuous(false));
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  ASSERT_EQ(asked_.size(), 1U);
  EXPECT_EQ(asked_[0], NetCommand(NetSetRxMode{.mode = spec::kNetCtrlRxPromisc, .on = true}));
  expect_used({});
  queue_.kick();
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  EXPECT_EQ(asked_.size(), 1U);
  context_.active.clear();
  queue_.is_active = false;
  EXPECT_FALSE(queue_.look()) << "it waits for the device, not for a kick";
  EXPECT_FALSE(queue_.look());
  answer(NetControlRefusal::none);
  EXPECT_TRUE(queue_.is_active);
  expect_used({1});
  EXPECT_EQ(reply_byte(0), spec::kNetAckOk);
  EXPECT_EQ(reply_byte(1), kUnanswered);
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  answer(NetControlRefusal::not_negotiated);
  expect_used({1});
  EXPECT_EQ(reply_byte(1), spec::kNetAckErr);
  EXPECT_EQ(queue_.counters().commands.get(), 1U);
  EXPECT_EQ(refused(NetControlRefusal::not_negotiated), 1U);
  EXPECT_EQ(turn(), Queue::Pumped::nothing);
}

TEST_P(NetControlRing, WhatIsNoCommandIsRefusedHere) {
  submit(ControlText(77, 0).put(std::uint8_t{1}));                      // no such class
  submit(ControlText(spec::kNetCtrlClassRx, spec::kNetCtrlRxPromisc));  // no data
  submit(promiscuous(true), 0);                                         // no room for the answer
  submit(ControlText().put(std::uint8_t{0}));                           // half a header
  submit(promiscuous(true));
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  EXPECT_EQ(asked_.size(), 1U);
  answer(NetControlRefusal::none);
  expect_used({1, 1, 0, 1, 1});
  EXPECT_EQ(reply_byte(0), spec::kNetAckErr);
  EXPECT_EQ(reply_byte(1), spec::kNetAckErr);
  EXPECT_EQ(reply_byte(3), spec::kNetAckErr);
  EXPECT_EQ(reply_byte(4), spec::kNetAckOk);
  EXPECT_EQ(refused(NetControlRefusal::unknown_command), 1U);
  EXPECT_EQ(refused(NetControlRefusal::bad_length), 1U);
  EXPECT_EQ(refused(NetControlRefusal::no_reply), 1U);
  EXPECT_EQ(refused(NetControlRefusal::short_header), 1U);
}

TEST_P(NetControlRing, AnAnswerBeforeTheAck) {
  submit(ControlText(spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalVqGet).put(std::uint16_t{1}).put(std::uint16_t{0}),
         9);
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  ASSERT_EQ(asked_.size(), 1U);
  answer(NetControlRefusal::none, {.max_packets = 7, .max_usecs = 9});
  expect_used({9});
  EXPECT_EQ(reply_byte(0, 0), 7);
  EXPECT_EQ(reply_byte(0, 4), 9);
  EXPECT_EQ(reply_byte(0, 8), spec::kNetAckOk);
}

// A stop waits for the answer, which may come late, and then the command is done.
TEST_P(NetControlRing, AStopWhileOneIsAsked) {
  submit(promiscuous(true));
  submit(promiscuous(true));
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  std::optional<std::uint32_t> base;
  queue_.stop([&](Result<std::uint32_t> result) { base = *result; });
  EXPECT_FALSE(base.has_value());
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  answer(NetControlRefusal::none);
  ASSERT_TRUE(base.has_value());
  const std::uint32_t chain = GetParam().indirect ? 1 : 2;
  EXPECT_EQ(*base, ring_.base_after(1, chain));
  EXPECT_EQ(asked_.size(), 1U);
  expect_used({1});
  // Detached in the middle of the other one.
  RW_CHECK(queue_.start(context_, ring_.start(*base), guest_.map(), nullptr).has_value());
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  bool detached = false;
  queue_.detach([&](const Result<>& /*never fails*/) { detached = true; });
  EXPECT_FALSE(detached);
  answer(NetControlRefusal::none);
  EXPECT_TRUE(detached);
  expect_used({1});
}

// The device doesn't answer before the deadline: the ring isn't touched any more when it does.
TEST_P(NetControlRing, AnAnswerAfterTheDeadline) {
  submit(promiscuous(true));
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  bool failed = false;
  queue_.stop([&](Result<std::uint32_t> result) { failed = !result.has_value(); });
  loop_.advance(Duration::seconds(2));
  static_cast<void>(loop_.poll(loop_.now()));
  EXPECT_TRUE(failed);
  answer(NetControlRefusal::none);
  EXPECT_EQ(reply_byte(0), kUnanswered);
  expect_used({});
}

// Commands that are refused cost their budget, however long their chains are.
TEST_P(NetControlRing, ATurnIsBounded) {
  if (!GetParam().indirect) {
    GTEST_SKIP() << "such chains don't fit into the ring";
  }
  constexpr std::uint32_t kEntries = 1000;
  TestRing ring(guest_, GetParam(), 64, kEntries);
  NetControlQueue queue({}, [](const NetCommand& /*none is good*/) { FAIL(); });
  RW_CHECK(queue.start(context_, ring.start(), guest_.map(), nullptr).has_value());
  std::vector<DriverBuffer> chain(kEntries, {.address = text_, .bytes = 1});
  chain.back() = {.address = reply_, .bytes = 1, .device_writable = true};
  for (std::uint64_t i = 0; i < 6; ++i) {
    RW_CHECK(ring.driver().add(chain, i));
  }
  static_cast<void>(ring.driver().publish());
  EXPECT_EQ(queue.pump(context_), Queue::Pumped::budget);
  queue.publish();
  EXPECT_EQ(ring.take_used().size(), 3U);
  EXPECT_EQ(queue.pump(context_), Queue::Pumped::budget);
  queue.publish();
  EXPECT_EQ(ring.take_used().size(), 2U) << "it had overdrawn";
  queue.detach([](const Result<>& /*never fails*/) {});
}

// More than 16 bits count.
TEST_P(NetControlRing, SeventyThousandCommands) {
  for (std::uint32_t i = 0; i < 70'000; ++i) {
    submit(i % 3 == 2 ? ControlText(99, 1) : promiscuous(i % 2 != 0));
    static_cast<void>(turn());
    if (asked_.size() > answered_) {
      answer(i % 3 == 1 ? NetControlRefusal::bad_value : NetControlRefusal::none);
      queue_.publish();
    }
    const std::vector<UsedElement> used = ring_.take_used();
    ASSERT_EQ(used.size(), 1U) << i;
    ASSERT_EQ(used[0].token, i);
    ASSERT_EQ(used[0].written_bytes, 1U);
    ASSERT_EQ(reply_byte(i), i % 3 == 0 ? spec::kNetAckOk : spec::kNetAckErr) << i;
    std::memset(guest_.host(reply_of(i)), kUnanswered, 1);
  }
  EXPECT_EQ(queue_.counters().commands.get(), 23'334U);
}

TEST_P(NetControlRing, TheAnswerIsInTheDirtyLog) {
  const UniqueFd fd = test::memory_file(4096);
  const std::shared_ptr<DirtyLog> log = *DirtyLog::create(fd.get(), 4096, 0);
  queue_.set_log(log);
  submit(promiscuous(true));
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  answer(NetControlRefusal::none);
  const std::uint64_t page = reply_.value / DirtyLog::kPageBytes;
  EXPECT_EQ(std::to_integer<unsigned>(log->mapping().data()[page / 8]) >> page % 8 & 1U, 1U);
  expect_used({1});
}

INSTANTIATE_TEST_SUITE_P(Rings, NetControlRing, ::testing::ValuesIn(all_ring_kinds()));

}  // namespace
}  // namespace ringway::testing
