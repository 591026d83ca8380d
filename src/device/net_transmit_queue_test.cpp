// A card's transmit queue without threads: pumped by the test, over the simulated loop and a port in the test's hands.
#include "device/net_transmit_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "device/test_net_queue.hpp"
#include "guest/sigbus.hpp"
#include "loop/simulated_loop.hpp"

namespace ringway::testing {
namespace {

constexpr std::uint64_t kTransmitMemory = 8U << 20U;
constexpr std::uint64_t kUnmapped = 1ULL << 40U;

class NetTransmit : public ::testing::TestWithParam<RingKind> {
 protected:
  static constexpr std::uint32_t kSize = 256;

  explicit NetTransmit(bool borrows = false) : queue_({.stop_deadline = Duration::seconds(1)}, borrows) {
    rules_.limits = net_frame_limits(spec::kNetCsum | spec::kNetHostTso4, 1500);
    queue_.set_rules(rules_);
  }
  ~NetTransmit() override {
    queue_.detach([](const Result<>& /*never fails*/) {});
  }

  void start(bool enabled = true) { start(ring_.start(), enabled); }
  void start(vhost_user::RingStart start, bool enabled = true) {
    start.enabled = enabled;
    RW_CHECK(queue_.start(context_, channel_, scratch_, std::move(start), guest_.map(), nullptr).has_value());
  }
  [[nodiscard]] Queue::Pumped turn() {
    const Queue::Pumped pumped = queue_.pump(context_);
    queue_.publish();
    return pumped;
  }
  // A header of the size that was negotiated, and a frame behind it, in buffers of these sizes (0: all that is left).
  void add(std::span<const std::uint8_t> frame, const std::vector<std::size_t>& sizes = {0},
           const spec::NetHeader& header = {}) {
    Bytes all(rules_.header_bytes + frame.size());
    std::memcpy(all.data(), &header, rules_.header_bytes);
    std::ranges::copy(frame, all.begin() + static_cast<std::ptrdiff_t>(rules_.header_bytes));
    add_chain(all, sizes);
  }
  void add_chain(std::span<const std::uint8_t> all, const std::vector<std::size_t>& sizes = {0}) {
    const GuestAddress at = guest_.take(all.size());
    std::ranges::copy(std::as_bytes(all), guest_.host(at));
    std::vector<DriverBuffer> buffers;
    std::size_t done = 0;
    for (const std::size_t size : sizes) {
      const std::size_t bytes = size == 0 ? all.size() - done : size;
      buffers.push_back({.address = GuestAddress{at.value + done}, .bytes = static_cast<std::uint32_t>(bytes)});
      done += bytes;
    }
    RW_CHECK(done == all.size());
    add_buffers(buffers);
  }
  void add_buffers(const std::vector<DriverBuffer>& buffers) {
    RW_CHECK(ring_.driver().add(buffers, added_++));
    descriptors_ += GetParam().indirect && buffers.size() > 1 ? 1 : static_cast<std::uint32_t>(buffers.size());
  }
  bool publish() { return ring_.driver().publish(); }
  // The next used elements are these many, in order, of no length.
  void expect_used(std::size_t count) {
    const std::vector<UsedElement> used = ring_.take_used();
    EXPECT_EQ(used.size(), count);
    for (const UsedElement& element : used) {
      EXPECT_EQ(element.token, used_++);
      EXPECT_EQ(element.written_bytes, 0U);
    }
  }
  [[nodiscard]] std::uint32_t stop() {
    std::optional<std::uint32_t> base;
    queue_.stop([&](Result<std::uint32_t> result) { base = *result; });
    RW_CHECK(base.has_value());
    return *base;
  }
  [[nodiscard]] std::uint64_t refused(NetRefusal refusal) const {
    return queue_.counters().refused[static_cast<std::size_t>(refusal)].get();
  }

  Guest guest_{{{.address = 0, .bytes = kTransmitMemory}}};
  SimulatedLoop loop_;
  SameThread executor_;
  WorkerContext context_{0, loop_, executor_};
  NetScratch scratch_;
  ScriptedChannel channel_;
  NetTransmitRules rules_;
  NetTransmitQueue queue_;
  TestRing ring_{guest_, GetParam(), kSize};
  std::uint64_t added_ = 0;
  std::uint64_t used_ = 0;
  std::uint32_t descriptors_ = 0;
};

TEST_P(NetTransmit, HeadersOfAllSizesInAnyFraming) {
  for (const std::size_t header_bytes : {10U, 12U, 20U}) {
    rules_.header_bytes = header_bytes;
    queue_.set_rules(rules_);
    if (used_ == 0) {
      start();
    }
    channel_.sent.clear();
    std::vector<Bytes> frames;
    const std::vector<std::vector<std::size_t>> framings{{0},    {header_bytes, 0},        {header_bytes, 14, 0},
                                                         {1, 0}, {header_bytes + 5, 1, 0}, {header_bytes - 1, 2, 0}};
    for (const std::vector<std::size_t>& sizes : framings) {
      frames.push_back(pattern(60 + 7 * frames.size(), static_cast<unsigned>(frames.size())));
      add(frames.back(), sizes);
    }
    std::vector<std::size_t> bytewise(header_bytes, 1);
    bytewise.push_back(0);
    frames.push_back(pattern(1514, 9));
    add(frames.back(), bytewise);
    publish();
    EXPECT_EQ(turn(), Queue::Pumped::some);
    ASSERT_EQ(channel_.sent.size(), frames.size());
    for (std::size_t i = 0; i < frames.size(); ++i) {
      EXPECT_EQ(channel_.sent[i].bytes, frames[i]) << i;
      EXPECT_EQ(channel_.sent[i].header.flags, 0);
    }
    expect_used(frames.size());
  }
  EXPECT_EQ(queue_.counters().frames.get(), 21U);
  EXPECT_EQ(turn(), Queue::Pumped::nothing);
}

TEST_P(NetTransmit, OffloadsGoAlong) {
  start();
  const test::ShapedFrame frame = test::make_frame({.payload_bytes = 4000});
  add(frame.bytes, {0}, tcp_header(frame, 1000));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  ASSERT_EQ(channel_.sent.size(), 1U);
  EXPECT_EQ(channel_.sent[0].header.gso_size, 1000);
  EXPECT_EQ(channel_.sent[0].header.csum_start, frame.l4);
  EXPECT_EQ(queue_.counters().gso_frames.get(), 1U);
  EXPECT_EQ(queue_.counters().bytes.get(), frame.bytes.size());
  expect_used(1);
}

// What can't be sent comes back among the rest, in its place, with length 0.
TEST_P(NetTransmit, RefusedFramesAreCountedAndReturnedInOrder) {
  start();
  const Bytes good = pattern(100, 1);
  const GuestAddress room = guest_.take(4096);
  add(good);
  add_chain(Bytes(11));  // shorter than a header
  add(good, {12, 0});
  add_chain(Bytes(12 + 13));  // shorter than an Ethernet header behind it
  add_buffers({{.address = room, .bytes = 200}, {.address = room, .bytes = 64, .device_writable = true}});
  add(good);
  add(pattern(1514 + 9, 2));  // more than two tags longer than the MTU
  add_buffers({{.address = GuestAddress{kUnmapped}, .bytes = 100}});
  add(good, {13, 0});
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  EXPECT_EQ(channel_.sent.size(), 4U);
  expect_used(9);
  EXPECT_EQ(refused(NetRefusal::short_header), 1U);
  EXPECT_EQ(refused(NetRefusal::short_frame), 1U);
  EXPECT_EQ(refused(NetRefusal::writable_part), 1U);
  EXPECT_EQ(refused(NetRefusal::long_frame), 1U);
  EXPECT_EQ(refused(NetRefusal::bad_chain), 1U);
  EXPECT_EQ(queue_.counters().frames.get(), 4U);
  // Refused ones alone are no reason to call the port.
  const std::size_t calls = channel_.batches.size();
  add_chain(Bytes(3));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  expect_used(1);
  EXPECT_EQ(channel_.batches.size(), calls);
}

// What a full port left comes again, once, and nothing else does meanwhile.
TEST_P(NetTransmit, AFullPortLeavesTheRestInTheRing) {
  start();
  std::vector<Bytes> frames;
  for (unsigned i = 0; i < 10; ++i) {
    frames.push_back(pattern(60 + i, i));
    add(frames.back(), {12, 0});
  }
  publish();
  channel_.room = 3;
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  expect_used(3);
  queue_.kick();
  EXPECT_EQ(turn(), Queue::Pumped::inactive) << "a kick is no news from the port";
  EXPECT_EQ(channel_.batches.size(), 1U);
  channel_.room = 0;
  queue_.wake();
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  channel_.room = 5;
  queue_.wake();
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  expect_used(5);
  channel_.room = 100;
  queue_.wake();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  expect_used(2);
  ASSERT_EQ(channel_.sent.size(), frames.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ(channel_.sent[i].bytes, frames[i]) << i;
  }
  EXPECT_EQ(queue_.counters().frames.get(), frames.size());
}

TEST_P(NetTransmit, ARefusedFrameBeforeAndBehindAFullPort) {
  start();
  add(pattern(60, 0));
  add_chain(Bytes(5));  // done with the first one
  add(pattern(60, 1));
  add_chain(Bytes(5));  // has to wait behind the second one
  add(pattern(60, 2));
  publish();
  channel_.room = 1;
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  expect_used(2);
  EXPECT_EQ(refused(NetRefusal::short_header), 1U);
  channel_.room = 100;
  queue_.wake();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  expect_used(3);
  EXPECT_EQ(refused(NetRefusal::short_header), 2U);
  EXPECT_EQ(channel_.sent.size(), 3U);
}

// A stop while the port is full tells where the port had got to, and a start from there sends the rest.
TEST_P(NetTransmit, AStopWhileThePortIsFullLosesNothing) {
  start();
  const std::vector<std::size_t> framing{12, 20, 0};
  for (unsigned i = 0; i < 8; ++i) {
    add(pattern(60 + i, i), framing);
  }
  publish();
  channel_.room = 3;
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  const std::uint32_t base = stop();
  EXPECT_EQ(base, ring_.base_after(3, descriptors_ / 8 * 3));
  queue_.wake();  // comes late
  start(ring_.start(base));
  channel_.room = 100;
  EXPECT_EQ(turn(), Queue::Pumped::some);
  expect_used(8);
  ASSERT_EQ(channel_.sent.size(), 8U);
  for (unsigned i = 0; i < 8; ++i) {
    EXPECT_EQ(channel_.sent[i].bytes, pattern(60 + i, i));
  }
}

// vhost-user: a disabled ring of a card transmits nothing, and what is in it is thrown away. But not before it was ever
// enabled: then the driver hasn't begun.
TEST_P(NetTransmit, ADisabledQueueDiscards) {
  start(false);
  add(pattern(60, 0));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  expect_used(0);
  queue_.enable(true);
  EXPECT_EQ(turn(), Queue::Pumped::some);
  expect_used(1);
  EXPECT_EQ(channel_.sent.size(), 1U);
  queue_.enable(false);
  add(pattern(60, 1));
  add_chain(Bytes(5));
  add(pattern(60, 2));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  expect_used(3);
  EXPECT_EQ(channel_.sent.size(), 1U);
  EXPECT_EQ(queue_.counters().discarded.get(), 2U);
  EXPECT_EQ(queue_.counters().frames.get(), 1U) << "what was discarded was not sent";
  EXPECT_EQ(queue_.counters().bytes.get(), 60U);
  // The next life of the ring begins anew.
  const std::uint32_t base = stop();
  start(ring_.start(base), false);
  add(pattern(60, 3));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  expect_used(0);
}

TEST_P(NetTransmit, ATurnIsBounded) {
  start();
  for (std::uint32_t i = 0; i < kSize; ++i) {
    add(pattern(60, i));
  }
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::budget);
  constexpr std::size_t kOneTurn = limits::kPumpBudget / (limits::kPumpRequestCost + 1) + 1;
  expect_used(kOneTurn);
  EXPECT_EQ(turn(), Queue::Pumped::some);
  expect_used(kSize - kOneTurn);
  EXPECT_EQ(channel_.sent.size(), kSize);
  EXPECT_LE(std::ranges::max(channel_.batches), limits::kNetBatch);
}

// Long frames take time by their bytes, and those that may have to be cut by how small they want it.
TEST_P(NetTransmit, LongAndCutFramesShortenATurn) {
  start();
  constexpr std::size_t kPayload = 60000;
  const test::ShapedFrame frame = test::make_frame({.payload_bytes = kPayload});
  const auto cost = [&](std::uint32_t segment) {
    return limits::kPumpRequestCost + 1 + frame.bytes.size() / limits::kPumpBytesPerUnit + frame.bytes.size() / segment;
  };
  for (int i = 0; i < 12; ++i) {
    add(frame.bytes, {0}, tcp_header(frame, 1448));
  }
  for (int i = 0; i < 6; ++i) {
    add(frame.bytes, {0}, tcp_header(frame, 60));
  }
  publish();
  std::size_t of_1448 = 0;
  std::size_t turns = 0;
  for (Queue::Pumped pumped = Queue::Pumped::budget; pumped == Queue::Pumped::budget; ++turns) {
    pumped = turn();
    const std::size_t taken = ring_.take_used().size();
    if (turns == 0) {
      of_1448 = taken;
    }
    ASSERT_LE(taken, limits::kPumpBudget / cost(1448) + 1);
  }
  EXPECT_EQ(of_1448, limits::kPumpBudget / cost(1448) + 1);
  EXPECT_EQ(channel_.sent.size(), 18U);
  EXPECT_GE(turns, (12 * cost(1448) + 6 * cost(60)) / limits::kPumpBudget);
}

TEST_P(NetTransmit, ABatchOfMorePiecesThanScratchHolds) {
  if (!GetParam().indirect) {
    GTEST_SKIP() << "such chains don't fit into the ring";
  }
  Guest guest({{.address = 0, .bytes = kTransmitMemory}});
  constexpr std::uint32_t kEntries = 3000;
  TestRing ring(guest, GetParam(), 16, kEntries);
  RW_CHECK(queue_.start(context_, channel_, scratch_, ring.start(), guest.map(), nullptr).has_value());
  const GuestAddress header = guest.take(12);
  const GuestAddress data = guest.take(4096);
  const auto chain = [&](std::size_t pieces) {
    std::vector<DriverBuffer> buffers{{.address = header, .bytes = 12}};
    for (std::size_t i = 0; i < pieces; ++i) {
      buffers.push_back({.address = GuestAddress{data.value + i % 4096}, .bytes = 1});
    }
    return buffers;
  };
  constexpr std::size_t kSegments = limits::kNetTransmitSegments;
  static_assert(kEntries > kSegments + 1 && kSegments + 1 > 1522);
  // Five that share the scratch by twos, and one with too many pieces for a frame and for scratch.
  for (std::uint64_t i = 0; i < 5; ++i) {
    RW_CHECK(ring.driver().add(chain(900), i));
  }
  RW_CHECK(ring.driver().add(chain(kSegments + 1), 5));
  RW_CHECK(ring.driver().add(chain(900), 6));
  static_cast<void>(ring.driver().publish());
  std::vector<UsedElement> used;
  for (int i = 0; i < 10; ++i) {
    static_cast<void>(turn());
    std::ranges::copy(ring.take_used(), std::back_inserter(used));
  }
  ASSERT_EQ(used.size(), 7U);
  for (std::uint64_t i = 0; i < used.size(); ++i) {
    EXPECT_EQ(used[i].token, i);
  }
  EXPECT_EQ(channel_.sent.size(), 6U);
  for (const ScriptedChannel::Sent& frame : channel_.sent) {
    EXPECT_EQ(frame.bytes.size(), 900U);
  }
  std::uint64_t all_refused = 0;
  for (std::size_t i = 0; i < kNetRefusals; ++i) {
    all_refused += queue_.counters().refused[i].get();
  }
  EXPECT_EQ(all_refused, 1U);
  queue_.detach([](const Result<>& /*never fails*/) {});
}

// The longest chains there are: one overdraws the budget, which the queue then sits out.
TEST_P(NetTransmit, LongestChainsAreSatOut) {
  if (!GetParam().indirect) {
    GTEST_SKIP() << "such chains don't fit into the ring";
  }
  Guest guest({{.address = 0, .bytes = kTransmitMemory}});
  constexpr std::uint32_t kEntries = 30000;
  TestRing ring(guest, GetParam(), 4, kEntries);
  RW_CHECK(queue_.start(context_, channel_, scratch_, ring.start(), guest.map(), nullptr).has_value());
  const std::vector<DriverBuffer> longest(kEntries, {.address = guest.take(1), .bytes = 1});
  RW_CHECK(ring.driver().add(longest, 0) && ring.driver().add(longest, 1));
  static_cast<void>(ring.driver().publish());
  std::uint32_t turns = 0;
  for (Queue::Pumped pumped = Queue::Pumped::budget; pumped == Queue::Pumped::budget; ++turns) {
    pumped = turn();
    EXPECT_LE(ring.take_used().size(), 1U);
  }
  EXPECT_GE(turns, kEntries / limits::kPumpBudget);
  EXPECT_EQ(refused(NetRefusal::too_many_segments), 2U);
  queue_.detach([](const Result<>& /*never fails*/) {});
}

// What came before it is sent; then the ring is left alone until it is stopped.
TEST_P(NetTransmit, ARingFault) {
  start();
  add(pattern(60, 0));
  add(pattern(60, 1));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  expect_used(2);
  add(pattern(60, 2));
  publish();
  // The driver makes more available than it has, or names a buffer that there isn't.
  const RingLayout layout = ring_.layout(guest_);
  if (GetParam().packed) {
    std::byte* const at = layout.descriptor_area + 3 * kDescriptorBytes;
    guest::store(at, std::uint64_t{0});
    guest::store(at + 8, std::uint64_t{spec::kPackedDescAvail} << 48U | std::uint64_t{60000} << 32U | 64U);
  } else {
    guest::store(layout.driver_area + 4 + 3 * sizeof(std::uint16_t), std::uint16_t{60000});
    guest::store_release(layout.driver_area + 2, std::uint16_t{4});
  }
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  expect_used(1);
  EXPECT_EQ(channel_.sent.size(), 3U);
  EXPECT_TRUE(queue_.broken());
  EXPECT_EQ(queue_.ring_counters().ring_faults.get(), 1U);
  queue_.wake();
  queue_.kick();
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  static_cast<void>(stop());
}

TEST_P(NetTransmit, MemoryThatIsGoneStopsTheRing) {
  start();
  add(pattern(60, 0));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  ASSERT_TRUE(sigbus::poison(guest_.host(GuestAddress{0})));
  add(pattern(60, 1));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  EXPECT_TRUE(queue_.broken());
  EXPECT_EQ(queue_.ring_counters().memory_lost.get(), 1U);
  EXPECT_EQ(channel_.sent.size(), 1U);
}

// Nothing to do, and nothing lost: the ring goes to sleep, and the next frame's kick is asked for.
TEST_P(NetTransmit, SleepsAndWakesByAKick) {
  start();
  EXPECT_EQ(turn(), Queue::Pumped::nothing);
  EXPECT_FALSE(queue_.arm());
  add(pattern(60, 0));
  EXPECT_TRUE(publish());
  queue_.kick();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  add(pattern(60, 1));
  EXPECT_FALSE(publish()) << "while it is pumped nobody need kick";
  EXPECT_TRUE(queue_.arm());
  EXPECT_EQ(turn(), Queue::Pumped::some);
  // A full port is waited for, not the driver: the safety look finds nothing lost.
  channel_.room = 0;
  add(pattern(60, 2));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  context_.active.clear();
  queue_.is_active = false;
  EXPECT_FALSE(queue_.look());
  EXPECT_FALSE(queue_.look());
  EXPECT_FALSE(queue_.look());
  EXPECT_EQ(queue_.ring_counters().lost_kicks.get(), 0U);
}

// Each look at a busy ring may fall between a frame and its kick. Only one that stays unserved from one look to the next has
// lost it.
TEST_P(NetTransmit, ALookBetweenAFrameAndItsKickFindsNothingLost) {
  start();
  const auto send_to_a_sleeper = [&] {
    EXPECT_FALSE(queue_.arm());
    context_.active.clear();
    queue_.is_active = false;
    add(pattern(60, 0));
    EXPECT_TRUE(publish());
    EXPECT_FALSE(queue_.look());
  };
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(turn(), i == 0 ? Queue::Pumped::nothing : Queue::Pumped::some);
    send_to_a_sleeper();
    queue_.kick();
  }
  EXPECT_EQ(turn(), Queue::Pumped::some);
  send_to_a_sleeper();
  EXPECT_EQ(queue_.ring_counters().lost_kicks.get(), 0U);
  EXPECT_TRUE(queue_.look());
  EXPECT_EQ(queue_.ring_counters().lost_kicks.get(), 1U);
}

// ---------------------------------------------------------------- frames that are lent

class NetTransmitLending : public NetTransmit {
 protected:
  NetTransmitLending() : NetTransmit(true) {}
};
INSTANTIATE_TEST_SUITE_P(Rings, NetTransmitLending, ::testing::ValuesIn(all_ring_kinds()));

// Tokens of used elements, in the order of their use.
std::vector<std::uint64_t> tokens_of(const std::vector<UsedElement>& used) {
  std::vector<std::uint64_t> tokens;
  for (const UsedElement& element : used) {
    tokens.push_back(element.token);
  }
  return tokens;
}

TEST_P(NetTransmitLending, LentFramesAreUsedWhenTheyAreGivenBack) {
  start();
  std::vector<NetLoan> loans;
  channel_.on_sent = [&](std::size_t frame) {
    if (frame != 1) {
      loans.push_back(queue_.lend(frame));
    }
  };
  add_chain(Bytes(3));  // refused, so that frames and chains don't count alike
  for (unsigned i = 0; i < 3; ++i) {
    add(pattern(100, i));
  }
  add_chain(Bytes(3));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  ASSERT_EQ(loans.size(), 2U);
  // With IN_ORDER nothing is used before what was popped earlier.
  EXPECT_EQ(tokens_of(ring_.take_used()),
            GetParam().in_order ? (std::vector<std::uint64_t>{0}) : (std::vector<std::uint64_t>{0, 2, 4}));
  EXPECT_EQ(queue_.counters().frames.get(), 3U);
  EXPECT_EQ(refused(NetRefusal::short_header), 2U);
  queue_.give_back(std::span(loans).last(1));
  EXPECT_TRUE(queue_.has_finished);
  queue_.publish();
  EXPECT_EQ(tokens_of(ring_.take_used()),
            GetParam().in_order ? (std::vector<std::uint64_t>{}) : (std::vector<std::uint64_t>{3}));
  queue_.give_back(std::span(loans).first(1));
  queue_.publish();
  EXPECT_EQ(tokens_of(ring_.take_used()),
            GetParam().in_order ? (std::vector<std::uint64_t>{1, 2, 3, 4}) : (std::vector<std::uint64_t>{1}));
  // In the same send(), too.
  channel_.on_sent = [&](std::size_t frame) {
    const NetLoan loan = queue_.lend(frame);
    queue_.give_back({&loan, 1});
  };
  add(pattern(100, 9));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  EXPECT_EQ(tokens_of(ring_.take_used()), (std::vector<std::uint64_t>{5}));
}

TEST_P(NetTransmitLending, AFullPortBehindLentFrames) {
  start();
  std::vector<NetLoan> loans;
  channel_.on_sent = [&](std::size_t frame) { loans.push_back(queue_.lend(frame)); };
  channel_.room = 2;
  for (unsigned i = 0; i < 4; ++i) {
    add(pattern(100, i));
  }
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  channel_.room = 10;
  queue_.wake();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  ASSERT_EQ(loans.size(), 4U);
  queue_.give_back(loans);
  queue_.publish();
  expect_used(4);
}

TEST_P(NetTransmitLending, AStopWaitsForWhatIsLent) {
  start();
  std::vector<NetLoan> loans;
  channel_.on_sent = [&](std::size_t frame) { loans.push_back(queue_.lend(frame)); };
  add(pattern(100, 1));
  add(pattern(100, 2));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  std::optional<std::uint32_t> base;
  queue_.stop([&](Result<std::uint32_t> result) { base = *result; });
  queue_.give_back(std::span(loans).first(1));
  EXPECT_FALSE(base.has_value());
  queue_.give_back(std::span(loans).last(1));
  ASSERT_TRUE(base.has_value());
  EXPECT_EQ(*base, ring_.base_after(2, descriptors_));
  expect_used(2);
}

TEST_P(NetTransmitLending, MemoryThatIsTakenAwayWaitsForWhatIsLent) {
  start();
  std::vector<NetLoan> loans;
  channel_.on_sent = [&](std::size_t frame) { loans.push_back(queue_.lend(frame)); };
  add(pattern(100, 1));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  const Guest other({{.address = 0, .bytes = kTransmitMemory}});
  bool gone = false;
  queue_.set_memory(other.map(), [&](const Result<>& result) { gone = result.has_value(); });
  EXPECT_FALSE(gone);
  queue_.give_back(loans);
  EXPECT_TRUE(gone);
}

// A ring that was given up on is not written to any more, but what is lent still comes back.
TEST_P(NetTransmitLending, LoansOutliveTheStopDeadline) {
  start();
  std::vector<NetLoan> loans;
  channel_.on_sent = [&](std::size_t frame) { loans.push_back(queue_.lend(frame)); };
  add(pattern(100, 1));
  publish();
  EXPECT_EQ(turn(), Queue::Pumped::some);
  bool failed = false;
  queue_.stop([&](const Result<std::uint32_t>& result) { failed = !result.has_value(); });
  loop_.wait(loop_.now(), loop_.now() + Duration::seconds(2));
  EXPECT_TRUE(failed);
  queue_.give_back(loans);
  EXPECT_FALSE(queue_.running());
  EXPECT_TRUE(ring_.take_used().empty());
}

INSTANTIATE_TEST_SUITE_P(Rings, NetTransmit, ::testing::ValuesIn(all_ring_kinds()));

}  // namespace
}  // namespace ringway::testing
