// A card's receive queue without threads: frames are given to it as a port does it.
#include "device/net_receive_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <vector>

#include "device/test_net_queue.hpp"
#include "guest/dirty_log.hpp"
#include "guest/sigbus.hpp"
#include "guest/test_memory.hpp"
#include "loop/simulated_loop.hpp"
#include "request/test_hash_vectors.hpp"

namespace ringway::testing {
namespace {

using Delivery = NetReceiver::Delivery;
using Received = NetChannel::Received;

constexpr std::uint64_t kReceiveMemory = 16U << 20U;
constexpr std::uint64_t kOffMap = 1ULL << 40U;
constexpr std::uint64_t kAllOffloads = spec::kNetGuestCsum | spec::kNetGuestTso4 | spec::kNetGuestTso6;

class NetReceive : public ::testing::TestWithParam<RingKind> {
 protected:
  static constexpr std::uint32_t kSize = 64;

  // What the driver found in its buffers.
  struct Got {
    spec::NetHeader header{};
    Bytes bytes;
    std::vector<std::uint32_t> lengths;  // of the used elements
  };
  struct Setting {
    bool mergeable = true;
    std::size_t header_bytes = spec::kNetHeaderBytes;
    std::uint64_t guest_offloads = kAllOffloads;
    std::uint32_t pairs = 1;
    NetDriverState state = NetDriverState::after_reset(0, {2, 0, 0, 0, 0, 1});
    std::uint64_t features = 0;
    std::uint32_t hash_types = 0;  // with the key of test_hash_vectors.hpp
  };

  NetReceive() {
    set({});
    start();
  }
  ~NetReceive() override {
    queue_.detach([](const Result<>& /*never fails*/) {});
    queue_.forget_channel();
  }

  void set(const Setting& setting) {
    setting_ = setting;
    const NetReceiveFilter filter(setting.state, setting.features);
    queue_.set_rules(std::make_shared<const NetReceiveRules>(NetReceiveRules{.filter = filter,
                                                                             .filters = !filter.accepts_everything(),
                                                                             .mergeable = setting.mergeable,
                                                                             .header_bytes = setting.header_bytes,
                                                                             .guest_offloads = setting.guest_offloads,
                                                                             .pairs = setting.pairs,
                                                                             .hash_types = setting.hash_types,
                                                                             .hash_key = NetHashKey(test::kHashVectorKey)}));
  }
  void start() { start(ring_.start()); }
  void start(vhost_user::RingStart start, std::shared_ptr<DirtyLog> log = nullptr) {
    start.log_used_ring = log != nullptr;
    RW_CHECK(queue_.start(context_, channel_, scratch_, std::move(start), guest_.map(), std::move(log)).has_value());
  }
  // A chain of buffers of these sizes.
  void post(const std::vector<std::uint32_t>& sizes) {
    std::vector<DriverBuffer> buffers;
    for (const std::uint32_t size : sizes) {
      buffers.push_back({.address = guest_.take(size), .bytes = size, .device_writable = true});
    }
    post_buffers(buffers);
  }
  void post_buffers(const std::vector<DriverBuffer>& buffers) {
    RW_CHECK(ring_.driver().add(buffers, chains_.size()));
    chains_.push_back(buffers);
    static_cast<void>(ring_.driver().publish());
  }
  void post_many(std::size_t count, std::uint32_t size) {
    for (std::size_t i = 0; i < count; ++i) {
      post({size});
    }
  }
  [[nodiscard]] std::vector<UsedElement> take_used() {
    queue_.publish();
    return ring_.take_used();
  }
  // The bytes that the device wrote to a chain.
  [[nodiscard]] Bytes written(const UsedElement& used) const {
    Bytes all;
    for (const DriverBuffer& buffer : chains_[used.token]) {
      const Bytes part =
          read_guest(guest_, buffer.address, std::min<std::size_t>(buffer.bytes, used.written_bytes - all.size()));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  // As a driver reads them: so many buffers for a frame as its header says.
  [[nodiscard]] std::vector<Got> received() {
    std::vector<Got> all;
    const std::vector<UsedElement> used = take_used();
    for (std::size_t i = 0; i < used.size();) {
      Got got;
      Bytes bytes = written(used[i]);
      if (bytes.size() < setting_.header_bytes) {
        ADD_FAILURE() << "a used buffer of " << bytes.size() << " bytes";
        ++i;
        continue;
      }
      std::memcpy(&got.header, bytes.data(), setting_.header_bytes);
      got.lengths.push_back(used[i].written_bytes);
      const std::size_t buffers = setting_.header_bytes < spec::kNetHeaderBytes ? 1 : got.header.num_buffers;
      for (++i; got.lengths.size() < buffers && i < used.size(); ++i) {
        const Bytes more = written(used[i]);
        bytes.insert(bytes.end(), more.begin(), more.end());
        got.lengths.push_back(used[i].written_bytes);
      }
      EXPECT_EQ(got.lengths.size(), buffers);
      got.bytes.assign(bytes.begin() + static_cast<std::ptrdiff_t>(setting_.header_bytes), bytes.end());
      all.push_back(std::move(got));
    }
    return all;
  }
  [[nodiscard]] Delivery deliver(const TestFrame& frame) { return queue_.deliver(frame.get()); }
  [[nodiscard]] Queue::Pumped turn() {
    const Queue::Pumped pumped = queue_.pump(context_);
    queue_.publish();
    return pumped;
  }
  // As the kernel fills a landing.
  static std::uint32_t fill(const NetLanding& landing, std::span<const std::uint8_t> bytes) {
    NetCursor(std::span<const iovec>(landing.pieces)).write(std::as_bytes(bytes));
    return static_cast<std::uint32_t>(bytes.size());
  }
  // A frame as the kernel writes it: with a header of its own before it.
  [[nodiscard]] Bytes with_header(const Bytes& frame, const spec::NetHeader& header = {}) const {
    Bytes all(setting_.header_bytes);
    std::memcpy(all.data(), &header, setting_.header_bytes);
    std::ranges::copy(frame, std::back_inserter(all));
    return all;
  }
  [[nodiscard]] const NetReceiveCounters& counters() const { return queue_.counters(); }

  Guest guest_{{{.address = 0, .bytes = kReceiveMemory}}};
  SimulatedLoop loop_;
  SameThread executor_;
  WorkerContext context_{0, loop_, executor_};
  NetScratch scratch_;
  ScriptedChannel channel_;
  NetReceiveQueue queue_{{.stop_deadline = Duration::seconds(1)}, 0};
  TestRing ring_{guest_, GetParam(), kSize};
  Setting setting_;
  std::vector<std::vector<DriverBuffer>> chains_;
};

// The used length is what was written, header and data, and num_buffers is at least 1 wherever there is such a field.
TEST_P(NetReceive, HeadersOfAllSizes) {
  for (const std::size_t header_bytes : {10U, 12U, 20U}) {
    for (const bool mergeable : {false, true}) {
      if (header_bytes == 10 && mergeable) {
        continue;
      }
      set({.mergeable = mergeable, .header_bytes = header_bytes});
      const auto alone = static_cast<std::uint32_t>(header_bytes);
      post({2048});
      post({alone, 2036});
      post({4, 4, alone, 2036});
      post({100, 2000});
      for (unsigned i = 0; i < 4; ++i) {
        const TestFrame frame(pattern(60 + 400 * i, i), {}, i == 3 ? 7 : SIZE_MAX);
        ASSERT_EQ(deliver(frame), Delivery::done);
        const std::vector<Got> got = received();
        ASSERT_EQ(got.size(), 1U);
        EXPECT_EQ(got[0].bytes, frame.bytes());
        EXPECT_EQ(got[0].lengths, std::vector<std::uint32_t>{static_cast<std::uint32_t>(header_bytes) + frame.get().bytes});
        EXPECT_EQ(got[0].header.num_buffers, header_bytes == 10 ? 0 : 1);
        EXPECT_EQ(got[0].header.flags, 0);
        EXPECT_EQ(got[0].header.hash_report, 0);
      }
    }
  }
  EXPECT_EQ(counters().frames.get(), 20U);
}

TEST_P(NetReceive, FramesAreMergedFromSeveralBuffers) {
  post_many(8, 256);
  const TestFrame frame(pattern(1000, 3), {}, 333);
  ASSERT_EQ(deliver(frame), Delivery::done);
  const TestFrame exact(pattern(2 * 256 - 12, 4));
  ASSERT_EQ(deliver(exact), Delivery::done);
  const std::vector<Got> got = received();
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0].bytes, frame.bytes());
  EXPECT_EQ(got[0].lengths, (std::vector<std::uint32_t>{256, 256, 256, 244}));
  EXPECT_EQ(got[1].bytes, exact.bytes());
  EXPECT_EQ(got[1].lengths, (std::vector<std::uint32_t>{256, 256}));
  EXPECT_EQ(counters().bytes.get(), 1500U);
}

// Buffers may be shorter than a header.
TEST_P(NetReceive, HeadersMayCrossBuffers) {
  post_many(40, 5);
  const TestFrame frame(pattern(61, 3));
  ASSERT_EQ(deliver(frame), Delivery::done);
  const std::vector<UsedElement> used = take_used();
  ASSERT_EQ(used.size(), 15U);
  Bytes all;
  for (const UsedElement& each : used) {
    const Bytes part = written(each);
    all.insert(all.end(), part.begin(), part.end());
  }
  EXPECT_EQ(all[10], 15);  // num_buffers
  EXPECT_EQ(Bytes(all.begin() + 12, all.end()), frame.bytes());
}

// Too long for a buffer that can't be merged: dropped and counted, and the buffer is still there.
TEST_P(NetReceive, FramesThatDontFitAreDropped) {
  set({.mergeable = false});
  post({512});
  EXPECT_EQ(deliver(TestFrame(pattern(501, 1))), Delivery::done);
  EXPECT_TRUE(take_used().empty());
  EXPECT_EQ(counters().dropped_too_long.get(), 1U);
  const TestFrame fits(pattern(500, 2));
  EXPECT_EQ(deliver(fits), Delivery::done);
  EXPECT_EQ(received().at(0).bytes, fits.bytes());
  EXPECT_EQ(deliver(fits), Delivery::no_buffers);
}

// All buffers of a full ring together are too few: there won't be more, so the frame can't be waited for.
TEST_P(NetReceive, FramesLongerThanAllBuffersOfTheRing) {
  post_many(kSize, 64);
  EXPECT_EQ(deliver(TestFrame(pattern(kSize * 64, 1))), Delivery::done);
  EXPECT_EQ(counters().dropped_too_long.get(), 1U);
  // One that fits takes them all.
  const TestFrame fits(pattern(kSize * 64 - 12, 2));
  EXPECT_EQ(deliver(fits), Delivery::done);
  const std::vector<Got> got = received();
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].bytes, fits.bytes());
  EXPECT_EQ(got[0].header.num_buffers, kSize);
  // With a part of them used and not given back yet, more may come.
  post_many(kSize, 64);
  EXPECT_EQ(deliver(TestFrame(pattern(60, 3))), Delivery::done);
  EXPECT_EQ(deliver(TestFrame(pattern(kSize * 64 - 12, 4))), Delivery::no_buffers);
}

// The last descriptors of a ring of longer chains stay free.
TEST_P(NetReceive, FramesLongerThanAllChainsOfTheRing) {
  if (GetParam().indirect) {
    GTEST_SKIP() << "a chain takes one descriptor";
  }
  for (std::uint32_t i = 0; i < kSize / 3; ++i) {
    post({16, 16, 16});
  }
  EXPECT_EQ(deliver(TestFrame(pattern(2000, 1))), Delivery::done);
  EXPECT_EQ(counters().dropped_too_long.get(), 1U);
}

// What the channel holds is asked for again only when there are more buffers than were too few, and nothing spins meanwhile.
TEST_P(NetReceive, AShortageIsSleptOut) {
  const TestFrame frame(pattern(1000, 1));
  std::uint32_t left = 1;
  channel_.on_receive = [&](std::uint32_t /*budget*/) {
    while (left > 0) {
      if (deliver(frame) == Delivery::no_buffers) {
        return Received::no_buffers;
      }
      --left;
    }
    return Received::all;
  };
  // As a worker does it: pumped, and asked to sleep; so many times until it does.
  const auto run = [&] {
    std::uint32_t turns = 0;
    for (bool more = true; more; ++turns) {
      static_cast<void>(turn());
      more = queue_.is_active && queue_.arm();
      if (!more) {
        queue_.is_active = false;
        context_.active.clear();
      }
      RW_CHECK(turns < 100);
    }
    return turns;
  };
  ASSERT_TRUE(queue_.is_active);
  EXPECT_EQ(run(), 1U);
  EXPECT_EQ(channel_.receive_calls, 1U);
  const auto add = [&] {
    const std::vector<DriverBuffer> buffer{{.address = guest_.take(256), .bytes = 256, .device_writable = true}};
    RW_CHECK(ring_.driver().add(buffer, chains_.size()));
    chains_.push_back(buffer);
    return ring_.driver().publish();
  };
  // The first buffer is asked for: there was none.
  EXPECT_TRUE(add());
  queue_.kick();
  EXPECT_EQ(run(), 1U);
  // One is too few. The safety look must not find a lost kick there.
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(queue_.look());
  }
  EXPECT_EQ(queue_.ring_counters().lost_kicks.get(), 0U);
  // More frames are no help.
  queue_.wake();
  EXPECT_FALSE(queue_.is_active);
  EXPECT_EQ(channel_.receive_calls, 2U);
  EXPECT_TRUE(add());
  queue_.kick();
  EXPECT_EQ(run(), 1U);
  EXPECT_TRUE(add());
  // A kick that is lost here is found.
  EXPECT_FALSE(queue_.look());
  EXPECT_TRUE(queue_.look());
  EXPECT_EQ(queue_.ring_counters().lost_kicks.get(), 1U);
  queue_.kick();
  EXPECT_EQ(run(), 1U);
  EXPECT_TRUE(add());
  queue_.kick();
  EXPECT_EQ(run(), 1U);
  EXPECT_EQ(left, 0U);
  EXPECT_EQ(received().at(0).bytes, frame.bytes());
  // With no frame to come, buffers are nobody's business.
  const std::uint32_t calls = channel_.receive_calls;
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(add());
    EXPECT_FALSE(queue_.look());
  }
  EXPECT_EQ(channel_.receive_calls, calls);
  left = 1;
  queue_.wake();
  EXPECT_TRUE(queue_.is_active);
}

// A channel with more than one turn's frames keeps the worker awake; and a queue that is out of use doesn't.
TEST_P(NetReceive, MoreThanATurnsFramesKeepTheWorkerAwake) {
  const TestFrame frame(pattern(60, 1));
  post_many(4, 2048);
  channel_.on_receive = [&](std::uint32_t /*budget*/) {
    return deliver(frame) == Delivery::done ? Received::budget : Received::no_buffers;
  };
  EXPECT_EQ(turn(), Queue::Pumped::budget);
  EXPECT_TRUE(queue_.arm());
  set({.pairs = 0});
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  context_.active.clear();
  queue_.is_active = false;
  EXPECT_FALSE(queue_.arm());
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(queue_.look()) << "no kick was lost";
  }
  set({});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(turn(), Queue::Pumped::budget);
  }
  EXPECT_EQ(turn(), Queue::Pumped::nothing);
  EXPECT_FALSE(queue_.arm());
  EXPECT_EQ(queue_.ring_counters().lost_kicks.get(), 0U);
}

// Buffers that are none come back empty: before the frame if they are first, in its middle if they are there.
// What has come for a channel meanwhile keeps the worker awake; and is no lost kick.
TEST_P(NetReceive, TheChannelIsAskedBeforeASleep) {
  static_cast<void>(turn());
  channel_.has_work = true;
  EXPECT_TRUE(queue_.arm());
  channel_.has_work = false;
  EXPECT_FALSE(queue_.arm());
  queue_.is_active = false;
  context_.active.clear();
  post({256});
  channel_.has_work = true;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(queue_.look());
  }
  EXPECT_EQ(queue_.ring_counters().lost_kicks.get(), 0U);
}

TEST_P(NetReceive, ChainsThatAreNoBuffers) {
  const GuestAddress memory = guest_.take(4096);
  const auto post_bad = [&] {
    post_buffers({{.address = memory, .bytes = 100}});                                                            // readable
    post_buffers({{.address = GuestAddress{kOffMap}, .bytes = 100, .device_writable = true}});                    // unmapped
    post_buffers({{.address = memory, .bytes = 0, .device_writable = true}});                                     // empty
    post_buffers({{.address = memory, .bytes = 64}, {.address = memory, .bytes = 64, .device_writable = true}});  // mixed
  };
  post_bad();
  EXPECT_EQ(deliver(TestFrame(pattern(60, 0))), Delivery::no_buffers);
  std::vector<UsedElement> used = take_used();
  ASSERT_EQ(used.size(), 4U);
  for (const UsedElement& each : used) {
    EXPECT_EQ(each.written_bytes, 0U);
  }
  EXPECT_EQ(counters().bad_buffers.get(), 4U);
  // In the middle of one that is merged.
  post({200});
  post_bad();
  post({200});
  post_bad();
  const TestFrame frame(pattern(300, 1));
  EXPECT_EQ(deliver(frame), Delivery::done);
  const std::vector<Got> got = received();
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].bytes, frame.bytes());
  EXPECT_EQ(got[0].lengths, (std::vector<std::uint32_t>{200, 0, 0, 0, 0, 112}));
  EXPECT_EQ(counters().bad_buffers.get(), 8U);
  // Behind the last one they wait for the next frame; too few buffers leave all as it was, and count nothing twice.
  EXPECT_EQ(deliver(frame), Delivery::no_buffers);
  EXPECT_EQ(take_used().size(), 4U);
  post({100});
  post_bad();
  EXPECT_EQ(deliver(frame), Delivery::no_buffers);
  EXPECT_EQ(deliver(frame), Delivery::no_buffers);
  EXPECT_TRUE(take_used().empty());
  EXPECT_EQ(counters().bad_buffers.get(), 12U);
  // Without merging they come first in any case.
  set({.mergeable = false});
  post({500});
  const TestFrame small(pattern(80, 2));
  EXPECT_EQ(deliver(small), Delivery::done);
  EXPECT_EQ(deliver(frame), Delivery::done);
  used = take_used();
  ASSERT_EQ(used.size(), 6U);
  EXPECT_EQ(used[0].written_bytes, 92U);
  EXPECT_EQ(used[5].written_bytes, 312U);
  EXPECT_EQ(counters().bad_buffers.get(), 16U);
}

// ---------------------------------------------------------------- in place

TEST_P(NetReceive, LandingsOfOneBufferEach) {
  for (const bool mergeable : {false, true}) {
    set({.mergeable = mergeable});
    post_many(6, 2048);
    std::array<NetLanding, 8> landings;
    ASSERT_EQ(queue_.lend(std::span(landings).first(5), 1526), 5U);
    std::vector<std::uint32_t> lengths;
    std::vector<Bytes> frames;
    for (unsigned i = 0; i < 3; ++i) {
      EXPECT_EQ(landings[i].bytes, 2048U);
      frames.push_back(pattern(60 + 500 * i, i));
      lengths.push_back(fill(landings[i], with_header(frames[i])));
    }
    queue_.land(lengths);
    const std::vector<Got> got = received();
    ASSERT_EQ(got.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(got[i].bytes, frames[i]);
      EXPECT_EQ(got[i].header.num_buffers, 1);
      EXPECT_EQ(got[i].lengths, std::vector<std::uint32_t>{lengths[i]});
    }
    // The rest was never lent: it is there, and comes in the same order.
    ASSERT_EQ(queue_.lend(landings, 1526), 3U);
    queue_.land({});
    const TestFrame frame(pattern(100, 7));
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(deliver(frame), Delivery::done);
    }
    EXPECT_EQ(received().size(), 3U);
    EXPECT_EQ(queue_.lend(landings, 1526), 0U);
    EXPECT_EQ(deliver(frame), Delivery::no_buffers);
  }
  EXPECT_EQ(counters().frames.get(), 12U);
}

TEST_P(NetReceive, OneLandingOfManyBuffers) {
  post_many(10, 500);
  std::array<NetLanding, 4> landings;
  ASSERT_EQ(queue_.lend(landings, 1526), 1U);
  EXPECT_GE(landings[0].bytes, 1526U);
  EXPECT_EQ(to_bytes(landings[0].pieces).size(), landings[0].bytes);
  const Bytes frame = pattern(900, 1);  // needs two of the four
  queue_.land(std::array{fill(landings[0], with_header(frame))});
  std::vector<Got> got = received();
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].bytes, frame);
  EXPECT_EQ(got[0].header.num_buffers, 2);
  EXPECT_EQ(got[0].lengths, (std::vector<std::uint32_t>{500, 412}));
  // The two that were left over, and the others.
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(deliver(TestFrame(frame.size() > 400 ? pattern(400, 2) : frame)), Delivery::done);
  }
  EXPECT_EQ(received().size(), 8U);
}

// Fewer buffers than the frame that is expected: what there is, since the next one may be short.
TEST_P(NetReceive, ALandingMayBeShort) {
  post_many(2, 500);
  std::array<NetLanding, 4> landings;
  ASSERT_EQ(queue_.lend(landings, 1526), 1U);
  EXPECT_EQ(landings[0].bytes, 1000U);
  const Bytes frame = pattern(60, 1);
  queue_.land(std::array{fill(landings[0], with_header(frame))});
  EXPECT_EQ(received().at(0).bytes, frame);
  set({.mergeable = false});
  ASSERT_EQ(queue_.lend(landings, 1526), 1U);
  EXPECT_EQ(landings[0].bytes, 500U);
  queue_.land({});
  EXPECT_TRUE(take_used().empty());
}

TEST_P(NetReceive, LandingsOfMixedBuffers) {
  const GuestAddress memory = guest_.take(4096);
  post({2048});
  post({1000, 1000});
  post({300});
  post({300});
  post({2048});
  std::array<NetLanding, 8> landings;
  ASSERT_EQ(queue_.lend(landings, 1526), 2U);
  queue_.land(std::array{fill(landings[0], with_header(pattern(100, 1))), fill(landings[1], with_header(pattern(1300, 2)))});
  // Small ones first: they make up one landing, with the large one in it.
  ASSERT_EQ(queue_.lend(landings, 1526), 1U);
  EXPECT_EQ(landings[0].bytes, 2648U);
  queue_.land(std::array{fill(landings[0], with_header(pattern(500, 3)))});
  std::vector<Got> got = received();
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(got[1].bytes, pattern(1300, 2));
  EXPECT_EQ(got[2].bytes, pattern(500, 3));
  EXPECT_EQ(got[2].lengths, (std::vector<std::uint32_t>{300, 212}));
  // A chain that is none: among landings it ends them, and goes back first the next time.
  post_buffers({{.address = memory, .bytes = 100}});
  post({2048});
  ASSERT_EQ(queue_.lend(landings, 1526), 1U);
  queue_.land({});
  EXPECT_EQ(counters().bad_buffers.get(), 0U);
  ASSERT_EQ(queue_.lend(landings, 1526), 1U);
  queue_.land(std::array{fill(landings[0], with_header(pattern(100, 4)))});
  ASSERT_EQ(queue_.lend(landings, 1526), 1U);
  queue_.land(std::array{fill(landings[0], with_header(pattern(100, 5)))});
  const std::vector<UsedElement> used = take_used();
  ASSERT_EQ(used.size(), 3U);
  EXPECT_EQ(used[0].written_bytes, 112U);
  EXPECT_EQ(used[1].written_bytes, 0U);
  EXPECT_EQ(used[2].written_bytes, 112U);
  EXPECT_EQ(counters().bad_buffers.get(), 1U);
}

// Headers that a kernel wrote are the guest's, but for the number of buffers and what it must not be told.
TEST_P(NetReceive, HeadersThatTheKernelWrote) {
  const test::ShapedFrame frame = test::make_frame({.payload_bytes = 1000});
  spec::NetHeader header = tcp_header(frame, 0);
  std::array<NetLanding, 1> landings;
  for (const std::size_t header_bytes : {10U, 12U, 20U}) {
    set({.mergeable = header_bytes != 10, .header_bytes = header_bytes});
    header.num_buffers = 777;
    header.hash_report = 5;
    post({2048});
    ASSERT_EQ(queue_.lend(landings, 1526), 1U);
    queue_.land(std::array{fill(landings[0], with_header(frame.bytes, header))});
    const std::vector<Got> got = received();
    ASSERT_EQ(got.size(), 1U);
    EXPECT_EQ(got[0].header.flags, spec::kNetHdrNeedsCsum);
    EXPECT_EQ(got[0].header.csum_start, frame.l4);
    EXPECT_EQ(got[0].header.num_buffers, header_bytes == 10 ? 0 : 1);
    EXPECT_EQ(got[0].header.hash_report, 0);
    EXPECT_EQ(got[0].bytes, frame.bytes);
  }
  // "This checksum is right" is for drivers with GUEST_CSUM only.
  header = {};
  header.flags = spec::kNetHdrDataValid;
  for (const bool checksums : {true, false}) {
    set({.guest_offloads = checksums ? spec::kNetGuestCsum : 0});
    post({2048});
    ASSERT_EQ(queue_.lend(landings, 1526), 1U);
    queue_.land(std::array{fill(landings[0], with_header(frame.bytes, header))});
    EXPECT_EQ(received().at(0).header.flags, checksums ? spec::kNetHdrDataValid : 0);
  }
}

// ---------------------------------------------------------------- hash reports

// By whichever way a frame comes: as it is, in pieces, to be completed, to be cut, and where the kernel wrote it.
TEST_P(NetReceive, HashesAreReported) {
  const Setting reporting{.header_bytes = 20, .guest_offloads = 0, .hash_types = kNetHashTypesAll};
  set(reporting);
  for (const bool ipv6 : {false, true}) {
    const test::HashVector& vector = ipv6 ? test::kHashVectors6[0] : test::kHashVectors4[0];
    const std::uint16_t report = ipv6 ? spec::kNetHashReportTcpv6 : spec::kNetHashReportTcpv4;
    const auto expect_reported = [&](std::size_t frames) {
      const std::vector<Got> got = received();
      EXPECT_EQ(got.size(), frames);
      for (const Got& each : got) {
        EXPECT_EQ(each.header.hash_value, vector.ports_hash);
        EXPECT_EQ(each.header.hash_report, report);
        EXPECT_EQ(each.header.padding_reserved, 0);
      }
    };
    test::ShapedFrame shaped = test::make_frame({.ipv6 = ipv6, .payload_bytes = 2900});
    shaped.bytes = test::frame_of(vector, {.ipv6 = ipv6, .payload_bytes = 2900});
    const Bytes plain = test::frame_of(vector, {.ipv6 = ipv6});
    post_many(3, 2048);
    ASSERT_EQ(deliver(TestFrame(plain)), Delivery::done);
    ASSERT_EQ(deliver(TestFrame(plain, {}, 3)), Delivery::done);
    ASSERT_EQ(deliver(TestFrame(plain, tcp_header(shaped, 0))), Delivery::done);
    expect_reported(3);
    post_many(3, 2048);
    ASSERT_EQ(deliver(TestFrame(shaped.bytes, tcp_header(shaped, 1000, ipv6))), Delivery::done);
    expect_reported(3);
    post_many(4, 50);
    ASSERT_EQ(deliver(TestFrame(plain)), Delivery::done);
    expect_reported(1);
    std::array<NetLanding, 2> landings;
    post({2048});
    post({11, 5, 9, 3000});
    ASSERT_EQ(queue_.lend(landings, 500), 2U);
    queue_.land(std::array{fill(landings[0], with_header(plain)), fill(landings[1], with_header(shaped.bytes))});
    expect_reported(2);
  }
  // A batch: each has its own.
  post_many(5, 2048);
  std::vector<std::unique_ptr<TestFrame>> owners;
  std::vector<NetFrame> batch;
  for (const test::HashVector& vector : test::kHashVectors4) {
    owners.push_back(std::make_unique<TestFrame>(test::frame_of(vector, {.udp = true})));
    batch.push_back(owners.back()->get());
  }
  ASSERT_EQ(queue_.deliver(batch), batch.size());
  const std::vector<Got> got = received();
  ASSERT_EQ(got.size(), batch.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].header.hash_value, test::kHashVectors4[i].ports_hash);
    EXPECT_EQ(got[i].header.hash_report, spec::kNetHashReportUdpv4);
    EXPECT_EQ(got[i].bytes, owners[i]->bytes());
  }
}

// Of what has no hash, and of what the driver doesn't want hashed, nothing is reported, whatever was there before.
TEST_P(NetReceive, WhatHasNoHashIsReportedAsSuch) {
  const Bytes tcp = test::frame_of(test::kHashVectors4[0], {});
  const auto report_of = [&](std::uint32_t types, const Bytes& frame, bool lands) {
    set({.header_bytes = 20, .hash_types = types});
    const GuestAddress at = guest_.take(2048);
    std::memset(guest_.host(at), 0xff, 2048);
    post_buffers({{.address = at, .bytes = 2048, .device_writable = true}});
    if (lands) {
      std::array<NetLanding, 1> landing;
      EXPECT_EQ(queue_.lend(landing, 500), 1U);
      queue_.land(std::array{fill(landing[0], with_header(frame))});
    } else {
      EXPECT_EQ(deliver(TestFrame(frame)), Delivery::done);
    }
    const Got got = received().at(0);
    return std::pair{got.header.hash_report, got.header.hash_value};
  };
  const std::pair<std::uint16_t, std::uint32_t> none{spec::kNetHashReportNone, 0};
  for (const bool lands : {false, true}) {
    EXPECT_EQ(report_of(kNetHashTypesAll, pattern(60, 1), lands), none);
    EXPECT_EQ(report_of(0, tcp, lands), none);
    EXPECT_EQ(report_of(kNetHashTypesAll & ~(spec::kNetHashTypeIpv4 | spec::kNetHashTypeTcpv4), tcp, lands), none);
    EXPECT_EQ(report_of(spec::kNetHashTypeIpv4, tcp, lands),
              std::pair(spec::kNetHashReportIpv4, test::kHashVectors4[0].ip_hash));
  }
}

// ---------------------------------------------------------------- what the driver can't take, or doesn't want

TEST_P(NetReceive, PartialChecksumsAreCompleted) {
  for (const bool ipv6 : {false, true}) {
    for (const std::uint32_t buffer : {2048U, 100U}) {
      set({.guest_offloads = 0});
      const test::ShapedFrame shaped = test::make_frame({.ipv6 = ipv6, .payload_bytes = 333});
      const TestFrame frame(shaped.bytes, tcp_header(shaped, 0), 50);
      post_many(5, buffer);
      ASSERT_EQ(deliver(frame), Delivery::done);
      const std::vector<Got> got = received();
      ASSERT_EQ(got.size(), 1U);
      EXPECT_EQ(got[0].header.flags, 0);
      EXPECT_EQ(got[0].header.csum_start, 0);
      EXPECT_EQ(test::look_at(got[0].bytes).fault, "");
      EXPECT_NE(test::look_at(shaped.bytes).fault, "");
      // Use up the rest.
      while (deliver(TestFrame(pattern(60, 1))) == Delivery::done) {
      }
      static_cast<void>(take_used());
    }
  }
  EXPECT_EQ(counters().checksums_completed.get(), 4U);
  // A driver that takes it completes it by itself.
  set({});
  const test::ShapedFrame shaped = test::make_frame({});
  post({2048});
  ASSERT_EQ(deliver(TestFrame(shaped.bytes, tcp_header(shaped, 0))), Delivery::done);
  const std::vector<Got> got = received();
  EXPECT_EQ(got.at(0).header.flags, spec::kNetHdrNeedsCsum);
  EXPECT_EQ(got.at(0).bytes, shaped.bytes);
}

TEST_P(NetReceive, FramesAreCutForWhoCantTakeThemWhole) {
  for (const bool ipv6 : {false, true}) {
    for (const bool checksums : {false, true}) {
      set({.guest_offloads = checksums ? spec::kNetGuestCsum : 0});
      const test::ShapedFrame shaped = test::make_frame({.ipv6 = ipv6, .payload_bytes = 5000});
      const TestFrame frame(shaped.bytes, tcp_header(shaped, 1000, ipv6), 700);
      EXPECT_EQ(deliver(frame), Delivery::no_buffers);
      post_many(12, 600);
      ASSERT_EQ(deliver(frame), Delivery::done);
      const std::vector<Got> got = received();
      ASSERT_EQ(got.size(), 5U);
      Bytes payload;
      for (const Got& each : got) {
        const test::SeenFrame seen = test::look_at(each.bytes, checksums);
        EXPECT_EQ(seen.fault, "");
        EXPECT_EQ(each.header.flags, checksums ? spec::kNetHdrNeedsCsum : 0);
        EXPECT_EQ(each.header.gso_type, spec::kNetGsoNone);
        EXPECT_EQ(each.header.num_buffers, 2);
        payload.insert(payload.end(), seen.payload.begin(), seen.payload.end());
      }
      EXPECT_EQ(payload, Bytes(shaped.bytes.begin() + static_cast<std::ptrdiff_t>(shaped.payload), shaped.bytes.end()));
      // Two were left: the first segment goes, the others are lost.
      ASSERT_EQ(deliver(frame), Delivery::done);
      EXPECT_EQ(received().size(), 1U);
    }
  }
  EXPECT_EQ(counters().segmented.get(), 4U);
  EXPECT_EQ(counters().dropped_no_buffers.get(), 4U);
  EXPECT_EQ(counters().frames.get(), 24U);
  EXPECT_EQ(counters().gso_frames.get(), 0U);
  // Whole for who can take it; one type is not the other.
  set({.guest_offloads = spec::kNetGuestCsum | spec::kNetGuestTso4});
  for (const bool ipv6 : {false, true}) {
    const test::ShapedFrame shaped = test::make_frame({.ipv6 = ipv6, .payload_bytes = 3000});
    post_many(4, 2048);
    ASSERT_EQ(deliver(TestFrame(shaped.bytes, tcp_header(shaped, 1000, ipv6))), Delivery::done);
    EXPECT_EQ(received().size(), ipv6 ? 3U : 1U);
  }
  EXPECT_EQ(counters().gso_frames.get(), 1U);
  // What says that it is to be cut and can't be.
  Bytes rubbish = pattern(3000, 3);
  const test::ShapedFrame shaped = test::make_frame({.payload_bytes = 3000});
  ASSERT_EQ(deliver(TestFrame(rubbish, tcp_header(shaped, 1000, true))), Delivery::done);
  EXPECT_EQ(counters().dropped_unsegmentable.get(), 1U);
}

TEST_P(NetReceive, UnwantedFramesAreFiltered) {
  Setting setting;
  setting.features = spec::kNetCtrlRx | spec::kNetMac;
  setting.state = NetDriverState::after_reset(setting.features, {2, 0, 0, 0, 0, 1});
  setting.state.promiscuous = false;
  set(setting);
  EXPECT_TRUE(queue_.filters());
  post_many(4, 2048);
  Bytes mine = pattern(60, 1);
  std::ranges::copy(Bytes{2, 0, 0, 0, 0, 1}, mine.begin());
  Bytes other = mine;
  other[5] = 2;
  ASSERT_EQ(deliver(TestFrame(other, {}, 5)), Delivery::done);
  ASSERT_EQ(deliver(TestFrame(mine, {}, 5)), Delivery::done);
  ASSERT_EQ(deliver(TestFrame(other)), Delivery::done);
  std::vector<Got> got = received();
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].bytes, mine);
  EXPECT_EQ(counters().filtered.get(), 2U);
  set({});
  EXPECT_FALSE(queue_.filters());
  ASSERT_EQ(deliver(TestFrame(other)), Delivery::done);
  EXPECT_EQ(received().size(), 1U);
}

// A pair that the driver doesn't use, or a ring that is disabled, gets nothing; its buffers stay.
TEST_P(NetReceive, NothingForAPairThatIsNotInUse) {
  post_many(4, 2048);
  EXPECT_TRUE(channel_.enabled);
  set({.pairs = 0});
  EXPECT_FALSE(channel_.enabled);
  std::array<NetLanding, 1> landings;
  const TestFrame frame(pattern(60, 1));
  EXPECT_EQ(deliver(frame), Delivery::done);
  EXPECT_EQ(queue_.lend(landings, 100), 0U);
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  EXPECT_EQ(channel_.receive_calls, 0U);
  context_.active.clear();
  queue_.is_active = false;
  queue_.wake();
  EXPECT_FALSE(queue_.is_active);
  set({});
  EXPECT_TRUE(queue_.is_active) << "the channel may have frames for it";
  EXPECT_TRUE(channel_.enabled);
  queue_.enable(false);
  EXPECT_FALSE(channel_.enabled);
  EXPECT_EQ(deliver(frame), Delivery::done);
  EXPECT_EQ(counters().dropped_disabled.get(), 2U);
  EXPECT_TRUE(take_used().empty());
  queue_.enable(true);
  EXPECT_EQ(deliver(frame), Delivery::done);
  EXPECT_EQ(received().size(), 1U);
  // Stopped, and started where it was.
  std::optional<std::uint32_t> base;
  queue_.stop([&](Result<std::uint32_t> result) { base = *result; });
  EXPECT_FALSE(channel_.enabled);
  EXPECT_EQ(base, ring_.base_after(1, 1));
  EXPECT_EQ(deliver(frame), Delivery::done);
  EXPECT_EQ(counters().dropped_disabled.get(), 3U);
  start(ring_.start(*base));
  EXPECT_TRUE(channel_.enabled);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(deliver(frame), Delivery::done);
  }
  EXPECT_EQ(received().size(), 3U);
  EXPECT_EQ(deliver(frame), Delivery::no_buffers);
  EXPECT_FALSE(queue_.spent()) << "it is the guest that has none";
}

// ---------------------------------------------------------------- work in one turn

// Whatever the driver posts, a turn is bounded; who sends doesn't matter.
TEST_P(NetReceive, ATurnIsBounded) {
  if (!GetParam().indirect) {
    GTEST_SKIP() << "such chains don't fit into the ring";
  }
  Guest guest({{.address = 0, .bytes = kReceiveMemory}});
  constexpr std::uint32_t kEntries = 30000;
  TestRing ring(guest, GetParam(), 8, kEntries);
  std::optional<std::uint32_t> base;
  queue_.stop([&](Result<std::uint32_t> result) { base = *result; });
  RW_CHECK(queue_.start(context_, channel_, scratch_, ring.start(), guest.map(), nullptr).has_value());
  const std::vector<DriverBuffer> longest(kEntries, {.address = guest.take(1), .bytes = 1, .device_writable = true});
  for (std::uint64_t i = 0; i < 8; ++i) {
    RW_CHECK(ring.driver().add(longest, i));
  }
  static_cast<void>(ring.driver().publish());
  const TestFrame frame(pattern(60, 1));
  std::uint32_t done = 0;
  channel_.on_receive = [&](std::uint32_t budget) {
    for (std::uint32_t i = 0; i < budget; ++i) {
      if (deliver(frame) == Delivery::no_buffers) {
        return Received::no_buffers;
      }
      ++done;
    }
    return Received::budget;
  };
  EXPECT_EQ(turn(), Queue::Pumped::budget);
  EXPECT_EQ(done, 1U);
  // The rest of that turn: nothing for others that send to it.
  EXPECT_EQ(deliver(frame), Delivery::no_buffers);
  EXPECT_TRUE(queue_.spent());
  std::uint32_t turns = 1;
  while (done < 4) {
    context_.now = context_.now + Duration::microseconds(1);
    const std::uint32_t before = done;
    EXPECT_EQ(turn(), Queue::Pumped::budget);
    EXPECT_LE(done, before + 1);
    ++turns;
  }
  EXPECT_GE(turns, 3 * kEntries / limits::kNetReceiveBudget);
  queue_.detach([](const Result<>& /*never fails*/) {});
}

// ---------------------------------------------------------------- memory

// Each page that was written has its bit, and no other one.
TEST_P(NetReceive, TheDirtyLogHoldsWhatWasWritten) {
  const std::uint64_t log_bytes = kReceiveMemory / DirtyLog::kPageBytes / 8;
  const UniqueFd fd = test::memory_file(log_bytes);
  const std::shared_ptr<DirtyLog> log = *DirtyLog::create(fd.get(), log_bytes, 0);
  queue_.set_log(log);
  post({64, 5000, 5000});
  post({2048});
  post({300});
  post({300});
  post({5000});
  ASSERT_EQ(deliver(TestFrame(pattern(1000, 1))), Delivery::done);
  std::array<NetLanding, 3> landings;
  ASSERT_EQ(queue_.lend(landings, 2000), 1U);
  queue_.land(std::array{fill(landings[0], with_header(pattern(100, 2)))});
  ASSERT_EQ(queue_.lend(landings, 2000), 1U);
  queue_.land(std::array{fill(landings[0], with_header(pattern(4500, 3)))});
  ASSERT_EQ(take_used().size(), 5U);
  const std::set<std::uint64_t> expected{chains_[0][0].address.value, chains_[0][1].address.value,
                                         chains_[1][0].address.value, chains_[2][0].address.value,
                                         chains_[3][0].address.value, chains_[4][0].address.value};
  std::set<std::uint64_t> marked;
  for (std::uint64_t page = 0; page < log_bytes * 8; ++page) {
    if ((std::to_integer<unsigned>(log->mapping().data()[page / 8]) >> page % 8 & 1U) != 0) {
      marked.insert(page * DirtyLog::kPageBytes);
    }
  }
  EXPECT_EQ(marked, expected);
}

TEST_P(NetReceive, MemoryThatIsGoneStopsTheRing) {
  post_many(4, 2048);
  const TestFrame frame(pattern(60, 1));
  ASSERT_EQ(deliver(frame), Delivery::done);
  ASSERT_TRUE(sigbus::poison(guest_.host(GuestAddress{0})));
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  EXPECT_TRUE(queue_.broken());
  EXPECT_FALSE(channel_.enabled);
  EXPECT_EQ(queue_.ring_counters().memory_lost.get(), 1U);
  EXPECT_EQ(deliver(frame), Delivery::done);
  EXPECT_EQ(counters().dropped_disabled.get(), 1U);
  std::array<NetLanding, 1> landings;
  EXPECT_EQ(queue_.lend(landings, 100), 0U);
}

TEST_P(NetReceive, ARingFault) {
  post_many(2, 200);
  channel_.on_receive = [&](std::uint32_t /*budget*/) {
    const TestFrame frame(pattern(1000, 1));
    return deliver(frame) == Delivery::no_buffers ? Received::no_buffers : Received::all;
  };
  const RingLayout layout = ring_.layout(guest_);
  if (GetParam().packed) {
    std::byte* const at = layout.descriptor_area + 2 * kDescriptorBytes;
    guest::store(at, std::uint64_t{0});
    guest::store(at + 8, std::uint64_t{spec::kPackedDescAvail} << 48U | std::uint64_t{60000} << 32U | 64U);
  } else {
    guest::store(layout.driver_area + 4 + 2 * sizeof(std::uint16_t), std::uint16_t{60000});
    guest::store_release(layout.driver_area + 2, std::uint16_t{3});
  }
  EXPECT_EQ(turn(), Queue::Pumped::inactive);
  EXPECT_TRUE(queue_.broken());
  EXPECT_FALSE(channel_.enabled);
  EXPECT_FALSE(queue_.arm());
  EXPECT_FALSE(queue_.look());
  std::optional<std::uint32_t> base;
  queue_.stop([&](Result<std::uint32_t> result) { base = *result; });
  EXPECT_EQ(base, ring_.base_after(0, 0)) << "the buffers before it were given back";
}

INSTANTIATE_TEST_SUITE_P(Rings, NetReceive, ::testing::ValuesIn(all_ring_kinds()));

}  // namespace
}  // namespace ringway::testing
