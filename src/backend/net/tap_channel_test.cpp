#include "backend/net/tap_channel.hpp"

#include <gmock/gmock.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <climits>
#include <numeric>
#include <set>

#include "backend/net/test_tap.hpp"
#include "request/test_frames.hpp"

namespace ringway {
namespace {

using test::Frames;
using test::HostSide;
using test::numbered_frame;
using test::Octets;
using test::OpenPair;
using test::run;
using test::soon;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using Received = NetChannel::Received;

struct Engines {
  const char* name;
  BatchedEngine io;
  LoopEngine loop;
};

std::vector<std::uint32_t> numbers_from(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

Octets tcp_frame(std::size_t payload_bytes) {
  return test::make_frame({.payload_bytes = payload_bytes}).bytes;
}

constexpr std::uint64_t kAllTcp =
    spec::kNetGuestCsum | spec::kNetGuestTso4 | spec::kNetGuestTso6 | spec::kNetGuestEcn | spec::kNetGuestUfo;

class TapChannelTest : public testing::TestWithParam<Engines> {
 protected:
  void SetUp() override {
    if (!test::enter_own_network().empty()) {
      GTEST_SKIP() << test::enter_own_network();
    }
    auto made = make_loop(GetParam().loop);
    if (!made) {
      GTEST_SKIP() << made.error().message;
    }
    loop_ = std::move(*made);
  }

  // The interface, all of whose pairs are open; the first is enabled.
  void open(const std::string& name, std::uint32_t pairs = 1, std::size_t header_bytes = spec::kNetHeaderBytes) {
    auto device = TapDevice::open({.name = name, .pairs = pairs, .mtu = kTapMtuMax});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    open(std::make_unique<TapPort>(std::move(*device), GetParam().io), header_bytes);
  }
  void open(std::unique_ptr<TapPort> port, std::size_t header_bytes = spec::kNetHeaderBytes) {
    port_ = std::move(port);
    for (std::uint32_t i = 0; i < port_->info().pairs_max; ++i) {
      pairs_.push_back(std::make_unique<OpenPair>(*port_, *loop_, i));
      pairs_.back()->receiver.header_bytes = header_bytes;
      pairs_.back()->channel->set_guest(0, header_bytes);
    }
    pair().channel->set_enabled(true);
    turn();
  }
  OpenPair& pair(std::size_t index = 0) { return *pairs_[index]; }
  NetChannel& channel() { return *pair().channel; }
  test::PlainReceiver& receiver() { return pair().receiver; }
  void turn() { static_cast<void>(loop_->poll(clock_now())); }
  void wait() { static_cast<void>(loop_->wait(clock_now(), clock_now() + Duration::seconds(5))); }
  [[nodiscard]] int fd(std::uint32_t index = 0) { return port_->device().fd(index); }

  std::unique_ptr<Loop> loop_;
  std::unique_ptr<TapPort> port_;
  std::vector<std::unique_ptr<OpenPair>> pairs_;
};
INSTANTIATE_TEST_SUITE_P(, TapChannelTest,
                         testing::Values(Engines{"uring", BatchedEngine::automatic, LoopEngine::io_uring},
                                         Engines{"plain", BatchedEngine::plain, LoopEngine::epoll}),
                         [](const auto& engines) { return engines.param.name; });

// --- From the guest ---

TEST_P(TapChannelTest, WhatIsSentComesOutInOrderAndWhole) {
  open("tx0");
  HostSide host("tx0");
  std::uint32_t next = 0;
  for (const std::uint32_t count : {1U, 3U, 4U, 32U, 40U}) {
    for (const std::size_t bytes :
         {std::size_t{60}, std::size_t{1514}, std::size_t{2036}, std::size_t{2037}, std::size_t{9000}}) {
      for (const std::size_t pieces : {std::size_t{1}, std::size_t{7}}) {
        const Frames frames = Frames::numbered(next, count, bytes, pieces);
        ASSERT_EQ(channel().send(frames.get()), count);
        for (std::uint32_t i = 0; i < count; ++i) {
          const auto out = host.receive();
          ASSERT_TRUE(out.has_value());
          ASSERT_EQ(*out, frames.bytes(i)) << count << " of " << bytes;
        }
        next += count;
      }
    }
  }
  EXPECT_FALSE(host.receive().has_value());
}

TEST_P(TapChannelTest, AFrameOfMorePiecesThanACallTakesIsSent) {
  open("tx1");
  HostSide host("tx1");
  const Frames frames = Frames::numbered(1, 3, 4000, 2000);
  ASSERT_EQ(channel().send(frames.get()), 3U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto out = host.receive();
    ASSERT_TRUE(out.has_value());
    EXPECT_EQ(*out, frames.bytes(i));
  }
}

TEST_P(TapChannelTest, EachSizeOfHeaderCarriesItsOffloads) {
  std::uint32_t number = 0;
  for (const std::size_t bytes : {spec::kNetHeaderLegacyBytes, spec::kNetHeaderBytes, spec::kNetHeaderHashBytes}) {
    pairs_.clear();
    port_.reset();
    open("hdr0", 1, bytes);
    HostSide host("hdr0", true);
    const Octets tcp = tcp_frame(4000);
    spec::NetHeader header{};
    header.flags = spec::kNetHdrNeedsCsum;
    header.gso_type = spec::kNetGsoTcpv4;
    header.gso_size = 1000;
    header.hdr_len = 54;
    header.csum_start = 34;
    header.csum_offset = 16;
    const Frames gso({tcp}, 3, header);
    ASSERT_EQ(channel().send(gso.get()), 1U);
    spec::NetHeader seen{};
    const auto out = host.receive(&seen);
    ASSERT_TRUE(out.has_value());
    EXPECT_EQ(out->size(), tcp.size());
    EXPECT_EQ(seen.gso_type, spec::kNetGsoTcpv4);
    EXPECT_EQ(seen.gso_size, 1000);
    EXPECT_EQ(seen.csum_start, 34);

    host.send(numbered_frame(++number));
    ASSERT_EQ(channel().receive(10), Received::all);
    ASSERT_EQ(receiver().got.size(), 1U);
    EXPECT_EQ(receiver().got[0].frame, numbered_frame(number));
  }
}

TEST_P(TapChannelTest, FramesForAnInterfaceThatIsDownAreDroppedAndCounted) {
  open("down0");
  ASSERT_TRUE(run("ip link set down0 down"));
  EXPECT_EQ(channel().send(Frames::numbered(0, 5).get()), 5U);
  EXPECT_EQ(pair().counters.dropped_down.get(), 5U);
  EXPECT_EQ(channel().receive(10), Received::all);
  ASSERT_TRUE(run("ip link set down0 up"));
  HostSide host("down0");
  EXPECT_EQ(channel().send(Frames::numbered(5, 5).get()), 5U);
  EXPECT_EQ(pair().counters.dropped_down.get(), 5U);
  EXPECT_EQ(host.receive_numbers(), numbers_from(5, 5));
  host.send(numbered_frame(77));
  turn();
  EXPECT_EQ(channel().receive(10), Received::all);
  EXPECT_THAT(receiver().numbers(), ElementsAre(77));
  EXPECT_EQ(pair().counters.dropped_error.get(), 0U);
}

TEST_P(TapChannelTest, AFrameThatTheKernelRefusesCostsOnlyItself) {
  open("bad0");
  HostSide host("bad0");
  spec::NetHeader bad{};
  bad.flags = spec::kNetHdrNeedsCsum;
  bad.csum_start = 60000;
  const Frames good = Frames::numbered(0, 6);
  const Frames refused({numbered_frame(99)}, 1, bad);
  std::vector<NetFrame> mixed(good.get().begin(), good.get().end());
  mixed[2] = refused.get()[0];
  EXPECT_EQ(channel().send(mixed), 6U);
  EXPECT_EQ(pair().counters.dropped_error.get(), 1U);
  EXPECT_THAT(host.receive_numbers(), ElementsAre(0, 1, 3, 4, 5));
}

// What the interface sends on is held by a queue of the bridge's other port, and counts for the tap until it has gone.
TEST_P(TapChannelTest, AFullTapIsWaitedForAndNothingIsLostOrOvertaken) {
  ASSERT_TRUE(
      run("ip link add brf type bridge && ip link set brf up && ip link add veth0 type veth peer name veth1 && "
          "ip link set veth0 up master brf && ip link set veth1 up"));
  if (!run("tc qdisc add dev veth0 root tbf rate 20mbit burst 3000 limit 10000000 2> /dev/null")) {
    GTEST_SKIP() << "there is no queue that holds packets (tc, sch_tbf)";
  }
  for (const bool limited_before : {true, false}) {
    pairs_.clear();
    port_.reset();
    // Only a queue that is attached can be limited: so before we have it, or when the pair is enabled.
    int room = 50'000;
    const int given = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    ifreq request{};
    std::strcpy(request.ifr_name, "full0");
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_MULTI_QUEUE;
    ASSERT_EQ(::ioctl(given, TUNSETIFF, &request), 0);
    if (limited_before) {
      ASSERT_EQ(::ioctl(given, TUNSETSNDBUF, &room), 0);
    }
    auto device = TapDevice::open({.fds = {given}, .bridge = "brf"});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    EXPECT_EQ((*device)->takes_all(), !limited_before);
    ASSERT_TRUE(run("ip link set full0 up"));
    open(std::make_unique<TapPort>(std::move(*device), GetParam().io));
    HostSide far("veth1");
    EXPECT_EQ(channel().send(Frames::numbered(0, 1, 1000).get()), 1U);
    if (!limited_before) {
      ASSERT_EQ(::ioctl(fd(), TUNSETSNDBUF, &room), 0);
    }
    const std::uint32_t count = 500;
    const Frames frames = Frames::numbered(1, count, 1000);
    std::size_t done = 0;
    int waits = 0;
    while (done < count) {
      const std::size_t batch = std::min<std::size_t>(32, count - done);
      const std::size_t sent = channel().send(frames.get().subspan(done, batch));
      done += sent;
      if (sent < batch) {
        const int before = pair().sender.wakes;
        ASSERT_TRUE(soon([&] {
          turn();
          return pair().sender.wakes > before;
        }));
        ++waits;
      }
    }
    EXPECT_GT(waits, 0) << (limited_before ? "limited before" : "limited later");
    EXPECT_EQ(pair().counters.full.get(), static_cast<std::uint64_t>(waits));
    std::vector<std::uint32_t> seen;
    EXPECT_TRUE(soon([&] {
      for (const std::uint32_t number : far.receive_numbers()) {
        seen.push_back(number);
      }
      return seen.size() + pair().counters.dropped_error.get() == count + 1;
    })) << seen.size();
    for (std::size_t i = 1; i < seen.size(); ++i) {
      ASSERT_LT(seen[i - 1], seen[i]);
    }
    if (limited_before) {
      EXPECT_EQ(pair().counters.dropped_error.get(), 0U);
    }
  }
  pairs_.clear();
  ASSERT_TRUE(run("ip link del brf && ip link del veth0"));
}

// A pipe with room for a page stands in for a tap, since what it refuses depends on the length.
class TapChannelPipeTest : public TapChannelTest {
 protected:
  void SetUp() override {
    TapChannelTest::SetUp();
    int fds[2];
    ASSERT_EQ(::pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    reader_.reset(fds[0]);
    std::vector<UniqueFd> queues;
    queues.emplace_back(fds[1]);
    ASSERT_EQ(::fcntl(fds[1], F_SETPIPE_SZ, 4096), 4096);
    port_ = std::make_unique<TapPort>(std::make_unique<TapDevice>("pipe", std::move(queues), TapDevice::Abilities{}),
                                      GetParam().io);
    if (loop_) {
      pairs_.push_back(std::make_unique<OpenPair>(*port_, *loop_));
    }
  }
  std::size_t send(const std::vector<std::size_t>& sizes) {
    std::vector<Octets> frames;
    for (const std::size_t bytes : sizes) {
      frames.push_back(numbered_frame(0, bytes));
    }
    return channel().send(Frames(std::move(frames)).get());
  }
  // What went through, with headers of 12 bytes; and waits for the channel to see that there is room.
  ssize_t empty() {
    char bytes[8192];
    const ssize_t got = ::read(reader_.get(), bytes, sizeof bytes);
    EXPECT_TRUE(soon([&] {
      turn();
      return pair().sender.wakes > 0;
    }));
    return got;
  }
  UniqueFd reader_;
};
INSTANTIATE_TEST_SUITE_P(, TapChannelPipeTest,
                         testing::Values(Engines{"uring", BatchedEngine::automatic, LoopEngine::io_uring},
                                         Engines{"plain", BatchedEngine::plain, LoopEngine::epoll}),
                         [](const auto& engines) { return engines.param.name; });

TEST_P(TapChannelPipeTest, ARefusedFrameThatWasOvertakenIsDroppedAndNoneAfterIt) {
  const bool overtaken = GetParam().io == BatchedEngine::automatic;
  EXPECT_EQ(send({2000, 2100, 100, 2000, 2001}), overtaken ? 3U : 1U);
  EXPECT_EQ(pair().counters.dropped_error.get(), overtaken ? 1U : 0U);
  EXPECT_EQ(pair().counters.full.get(), 1U);
  EXPECT_EQ(empty(), overtaken ? 2012 + 112 : 2012);
  EXPECT_EQ(send({2000, 2100, 100, 100, 100}), 1U) << "the short ones wait behind the one that is refused";
  EXPECT_EQ(pair().counters.dropped_error.get(), overtaken ? 1U : 0U);
}

TEST_P(TapChannelPipeTest, AfterARefusalNoneIsOvertaken) {
  EXPECT_EQ(send({2000, 2100, 2100, 2100, 2100}), 1U);
  EXPECT_EQ(empty(), 2012);
  EXPECT_EQ(send({2000, 2100, 100, 100, 100}), 1U);
  EXPECT_EQ(pair().counters.dropped_error.get(), 0U);
  EXPECT_EQ(pair().counters.full.get(), 2U);
}

// --- To the guest ---

TEST_P(TapChannelTest, FramesAreReadInPlaceAndInOrder) {
  open("rx0");
  HostSide host("rx0");
  receiver().pieces = 5;
  receiver().landing_bytes = 2000;
  for (std::uint32_t i = 0; i < 200; ++i) {
    host.send(numbered_frame(i, 60 + i * 7));
  }
  turn();
  EXPECT_GT(receiver().wakes, 0);
  EXPECT_EQ(channel().receive(1000), Received::all);
  ASSERT_EQ(receiver().numbers(), numbers_from(0, 200));
  for (std::uint32_t i = 0; i < 200; ++i) {
    EXPECT_EQ(receiver().got[i].frame, numbered_frame(i, 60 + i * 7));
  }
  EXPECT_GT(std::ranges::count(receiver().places(), 'p'), 190);
}

TEST_P(TapChannelTest, ALonePacketCostsOneCall) {
  open("rx1");
  HostSide host("rx1");
  for (std::uint32_t i = 0; i < 40; ++i) {
    host.send(numbered_frame(i));
  }
  ASSERT_EQ(channel().receive(1000), Received::all);
  host.send(numbered_frame(40));
  turn();
  ASSERT_EQ(channel().receive(1000), Received::all);
  for (std::uint32_t i = 41; i < 50; ++i) {
    host.send(numbered_frame(i));
    turn();
    const std::uint64_t lends = receiver().lends;
    const std::uint64_t asked = receiver().asked;
    ASSERT_EQ(channel().receive(1000), Received::all);
    EXPECT_EQ(receiver().lends - lends, 1U);
    EXPECT_EQ(receiver().asked - asked, 2U) << "one for the frame, and one that finds nothing";
  }
  EXPECT_EQ(receiver().numbers(), numbers_from(0, 50));
}

TEST_P(TapChannelTest, NothingIsAskedOfAnEmptyQueue) {
  open("rx2");
  HostSide host("rx2");
  ASSERT_EQ(channel().receive(10), Received::all);
  const std::uint64_t lends = receiver().lends;
  ASSERT_EQ(channel().receive(10), Received::all);
  EXPECT_EQ(receiver().lends, lends);
  receiver().wakes = 0;
  host.send(numbered_frame(1));
  EXPECT_TRUE(soon([&] {
    turn();
    return receiver().wakes > 0;
  }));
  ASSERT_EQ(channel().receive(10), Received::all);
  EXPECT_THAT(receiver().numbers(), ElementsAre(1));
}

TEST_P(TapChannelTest, TheBudgetIsKept) {
  open("rx3");
  HostSide host("rx3");
  for (std::uint32_t i = 0; i < 100; ++i) {
    host.send(numbered_frame(i));
  }
  EXPECT_EQ(channel().receive(1), Received::budget);
  EXPECT_EQ(receiver().got.size(), 1U);
  EXPECT_EQ(channel().receive(50), Received::budget);
  EXPECT_EQ(receiver().got.size(), 51U);
  EXPECT_EQ(channel().receive(50), Received::all);
  EXPECT_EQ(receiver().numbers(), numbers_from(0, 100));
}

TEST_P(TapChannelTest, ALongFrameAmongShortOnesIsNotCut) {
  open("rx4");
  HostSide host("rx4");
  receiver().landing_bytes = 500;
  const std::vector<std::size_t> sizes{60, 60, 60, 60, 60, 60, 60, 9000, 60, 487, 488, 489, 60, 1514};
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    host.send(numbered_frame(i, sizes[i]));
  }
  EXPECT_EQ(channel().receive(1000), Received::all);
  ASSERT_EQ(receiver().numbers(), numbers_from(0, sizes.size()));
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(receiver().got[i].frame, numbered_frame(i, sizes[i])) << i;
    EXPECT_TRUE(12 + sizes[i] <= 500 || !receiver().got[i].in_place);
  }
  EXPECT_EQ(receiver().places().substr(0, 8), "pppppppc");
  EXPECT_EQ(pair().counters.receive_errors.get(), 0U);
}

TEST_P(TapChannelTest, WhatIsAskedForFollowsTheFrames) {
  open("rx5");
  HostSide host("rx5");
  const auto receive_one = [&](std::size_t bytes) {
    host.send(numbered_frame(0, bytes));
    turn();
    EXPECT_EQ(channel().receive(10), Received::all);
    return receiver().got.back().in_place;
  };
  EXPECT_FALSE(receive_one(65000)) << "unexpected";
  EXPECT_TRUE(receive_one(65000));
  EXPECT_TRUE(receive_one(60));
  EXPECT_FALSE(receive_one(65000)) << "a little less was expected";
  for (int i = 0; i < 100; ++i) {
    receive_one(60);
  }
  EXPECT_FALSE(receive_one(9000)) << "it should have been forgotten";
}

TEST_P(TapChannelTest, FramesThatTheGuestDoesNotWantAreLeftOut) {
  open("rx6");
  HostSide host("rx6");
  std::set<std::uint32_t> asked;
  receiver().wanted = [&](std::span<const std::byte, 18> head) {
    std::uint32_t number = 0;
    std::memcpy(&number, head.data() + 14, sizeof number);
    EXPECT_TRUE(asked.insert(number).second) << "asked twice: it would be counted twice";
    return number % 5 != 3;
  };
  receiver().landing_bytes = 40;  // so that some are judged that lie in two places
  for (std::uint32_t i = 0; i < 8; ++i) {
    host.send(numbered_frame(i));
  }
  EXPECT_EQ(channel().receive(100), Received::all);
  EXPECT_THAT(receiver().numbers(), ElementsAre(0, 1, 2, 4, 5, 6, 7));
  receiver().landing_bytes = 0;
  receiver().got.clear();
  for (std::uint32_t i = 10; i < 20; ++i) {
    host.send(numbered_frame(i));
  }
  turn();
  EXPECT_EQ(channel().receive(100), Received::all);
  EXPECT_THAT(receiver().numbers(), ElementsAre(10, 11, 12, 14, 15, 16, 17, 19));
  EXPECT_EQ(receiver().places().substr(0, 4), "pppc");
  for (const auto& one : receiver().got) {
    EXPECT_EQ(one.frame, numbered_frame(test::number_of(one.frame)));
  }
}

TEST_P(TapChannelTest, WithoutBuffersNothingIsReadAndNothingIsLost) {
  open("rx7");
  HostSide host("rx7");
  receiver().buffers = 0;
  for (std::uint32_t i = 0; i < 100; ++i) {
    host.send(numbered_frame(i));
  }
  EXPECT_EQ(channel().receive(1000), Received::no_buffers);
  receiver().buffers = 3;
  EXPECT_EQ(channel().receive(1000), Received::no_buffers);
  EXPECT_EQ(receiver().got.size(), 3U);
  receiver().buffers = 1000;
  EXPECT_EQ(channel().receive(1000), Received::all);
  EXPECT_EQ(receiver().numbers(), numbers_from(0, 100));
}

TEST_P(TapChannelTest, FramesThatWereReadAndFoundNoBuffersAreKept) {
  open("rx8");
  HostSide host("rx8");
  receiver().landing_bytes = 50;  // each is longer: all go by copy
  for (std::uint32_t i = 0; i < 64; ++i) {
    host.send(numbered_frame(i));
  }
  // Landings are lent for more frames than deliver() then finds buffers for.
  for (std::size_t buffers = 1; receiver().got.size() < 64; ++buffers) {
    receiver().buffers = 20;
    receiver().wanted = [&, left = buffers](std::span<const std::byte, 18>) mutable {
      receiver().buffers = std::min(receiver().buffers, left);
      return true;
    };
    const Received received = channel().receive(1000);
    ASSERT_TRUE(received == Received::no_buffers || receiver().got.size() == 64);
  }
  EXPECT_EQ(receiver().numbers(), numbers_from(0, 64));
  for (const auto& one : receiver().got) {
    EXPECT_EQ(one.frame, numbered_frame(test::number_of(one.frame)));
  }
  EXPECT_EQ(receiver().overruns, 0U);
}

TEST_P(TapChannelTest, LandingsOfVeryManyPiecesAndOfMoreThanAFrameServe) {
  open("rx9");
  HostSide host("rx9");
  receiver().landing_bytes = 5000;
  receiver().pieces = 2500;
  for (std::uint32_t i = 0; i < 8; ++i) {
    host.send(numbered_frame(i, 4000));
  }
  EXPECT_EQ(channel().receive(100), Received::all);
  receiver().landing_bytes = 1 << 20;
  receiver().pieces = 1;
  for (std::uint32_t i = 8; i < 16; ++i) {
    host.send(numbered_frame(i, 4000));
  }
  turn();
  EXPECT_EQ(channel().receive(100), Received::all);
  ASSERT_EQ(receiver().numbers(), numbers_from(0, 16));
  for (std::uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(receiver().got[i].frame, numbered_frame(i, 4000));
  }
  EXPECT_EQ(receiver().places().substr(8), "pppppppp");
}

TEST_P(TapChannelTest, TheGuestGetsOnlyTheOffloadsThatItCanTake) {
  open("gso0");
  HostSide host("gso0", true);
  const Octets tcp = tcp_frame(8000);
  spec::NetHeader header{};
  header.flags = spec::kNetHdrNeedsCsum;
  header.gso_type = spec::kNetGsoTcpv4;
  header.gso_size = 1000;
  header.hdr_len = 54;
  header.csum_start = 34;
  header.csum_offset = 16;

  host.send(tcp, header);
  ASSERT_EQ(channel().receive(100), Received::all);
  EXPECT_EQ(receiver().got.size(), 8U) << "the kernel cuts it";
  for (const auto& one : receiver().got) {
    EXPECT_EQ(one.header[0] & spec::kNetHdrNeedsCsum, 0);
    EXPECT_EQ(one.header[1], spec::kNetGsoNone);
    EXPECT_EQ(one.frame.size(), 1054U);
  }

  receiver().got.clear();
  channel().set_guest(kAllTcp, spec::kNetHeaderBytes);
  host.send(tcp, header);
  turn();
  ASSERT_EQ(channel().receive(100), Received::all);
  ASSERT_EQ(receiver().got.size(), 1U);
  EXPECT_EQ(receiver().got[0].header[0], spec::kNetHdrNeedsCsum);
  EXPECT_EQ(receiver().got[0].header[1], spec::kNetGsoTcpv4);
  EXPECT_EQ(receiver().got[0].frame, tcp);
}

TEST_P(TapChannelTest, FramesFromBeforeTheOffloadsChangedGoWhereTheyAreMadeUpFor) {
  open("gso1");
  channel().set_guest(kAllTcp, spec::kNetHeaderBytes);
  HostSide host("gso1", true);
  const Octets tcp = tcp_frame(8000);
  spec::NetHeader header{};
  header.flags = spec::kNetHdrNeedsCsum;
  header.gso_type = spec::kNetGsoTcpv4;
  header.gso_size = 1000;
  header.hdr_len = 54;
  header.csum_start = 34;
  header.csum_offset = 16;
  receiver().landing_bytes = 10000;
  host.send(tcp, header);
  channel().set_guest(spec::kNetGuestCsum, spec::kNetHeaderBytes);
  turn();
  ASSERT_EQ(channel().receive(100), Received::all);
  ASSERT_EQ(receiver().places(), "c");
  EXPECT_EQ(receiver().got[0].header[1], spec::kNetGsoTcpv4);
  EXPECT_EQ(receiver().got[0].frame, tcp);
}

// What a header says was in the guest's hands before it was copied.
TEST_P(TapChannelTest, AHeaderThatTheGuestHasChangedIsNotBelieved) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd kernel(fds[1]);
  std::vector<UniqueFd> queues;
  queues.emplace_back(fds[0]);
  port_ = std::make_unique<TapPort>(std::make_unique<TapDevice>("sockets", std::move(queues), TapDevice::Abilities{}),
                                    GetParam().io);
  pairs_.push_back(std::make_unique<OpenPair>(*port_, *loop_));
  channel().set_enabled(true);
  receiver().landing_bytes = 40;
  const auto arrive = [&](spec::NetHeader header) {
    Octets bytes(12);
    std::memcpy(bytes.data(), &header, 12);
    const Octets frame = numbered_frame(1, 100);
    bytes.insert(bytes.end(), frame.begin(), frame.end());
    EXPECT_EQ(::send(kernel.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    turn();
    receiver().got.clear();
    EXPECT_EQ(channel().receive(10), Received::all);
    return receiver().got.size();
  };
  const auto checksum = [](unsigned start, unsigned offset) {
    spec::NetHeader header{};
    header.flags = spec::kNetHdrNeedsCsum;
    header.csum_start = static_cast<std::uint16_t>(start);
    header.csum_offset = static_cast<std::uint16_t>(offset);
    return header;
  };
  const auto gso = [&](unsigned type, unsigned size) {
    spec::NetHeader header = checksum(34, 16);
    header.gso_type = static_cast<std::uint8_t>(type);
    header.gso_size = static_cast<std::uint16_t>(size);
    return header;
  };
  EXPECT_EQ(arrive({}), 1U);
  EXPECT_EQ(arrive(checksum(34, 64)), 1U);
  EXPECT_EQ(arrive(gso(spec::kNetGsoTcpv4 | spec::kNetGsoEcn, 100)), 1U);
  EXPECT_EQ(arrive(gso(spec::kNetGsoUdpL4, 100)), 1U);
  EXPECT_EQ(pair().counters.receive_errors.get(), 0U);
  spec::NetHeader no_checksum{};
  no_checksum.gso_type = spec::kNetGsoTcpv4;
  no_checksum.gso_size = 100;
  EXPECT_EQ(arrive(no_checksum), 0U);
  EXPECT_EQ(arrive(checksum(34, 65)), 0U);
  EXPECT_EQ(arrive(checksum(65535, 65535)), 0U);
  EXPECT_EQ(arrive(checksum(33, 0)), 0U);
  EXPECT_EQ(arrive(gso(spec::kNetGsoTcpv4, 0)), 0U);
  EXPECT_EQ(arrive(gso(spec::kNetGsoUdp | spec::kNetGsoEcn, 100)), 0U);
  EXPECT_EQ(arrive(gso(2, 100)), 0U);
  EXPECT_EQ(pair().counters.receive_errors.get(), 7U);
}

// --- Pairs and interface ---

TEST_P(TapChannelTest, FramesGoToThePairsInUse) {
  open("mq0", 3);
  HostSide host("mq0");
  const auto flood = [&] {
    for (auto& each : pairs_) {
      each->receiver.got.clear();
    }
    for (unsigned port = 0; port < 60; ++port) {
      Octets udp = test::make_frame({.udp = true, .payload_bytes = 20}).bytes;
      test::put16(udp, 34, 1000 + port);
      host.send(udp);
    }
    turn();
    for (auto& each : pairs_) {
      EXPECT_EQ(each->channel->receive(1000), Received::all);
    }
  };
  flood();
  EXPECT_EQ(pair(0).receiver.got.size(), 60U) << "the others are not in use";
  pair(1).channel->set_enabled(true);
  pair(2).channel->set_enabled(true);
  EXPECT_GT(pair(2).receiver.wakes, 0);
  flood();
  for (auto& each : pairs_) {
    EXPECT_GT(each->receiver.got.size(), 0U);
  }
  EXPECT_EQ(pair(0).receiver.got.size() + pair(1).receiver.got.size() + pair(2).receiver.got.size(), 60U);
  pair(0).channel->set_enabled(false);
  pair(1).channel->set_enabled(false);
  flood();
  EXPECT_EQ(pair(2).receiver.got.size(), 60U);
  // A pair that receives nothing may still send.
  EXPECT_EQ(pair(1).channel->send(Frames::numbered(5, 5).get()), 5U);
  EXPECT_EQ(host.receive_numbers(), numbers_from(5, 5));
}

TEST_P(TapChannelTest, WhatCameForNobodyIsNotDeliveredLater) {
  ASSERT_TRUE(run("ip tuntap add dev old0 mode tap && ip link set old0 up"));
  auto device = TapDevice::open({.name = "old0"});
  ASSERT_TRUE(device.has_value()) << device.error().message;
  HostSide host("old0");
  for (std::uint32_t i = 0; i < 40; ++i) {
    host.send(numbered_frame(i));
  }
  open(std::make_unique<TapPort>(std::move(*device), GetParam().io));
  host.send(numbered_frame(40));
  EXPECT_EQ(channel().receive(1000), Received::all);
  EXPECT_THAT(receiver().numbers(), ElementsAre(40));
  channel().set_enabled(false);
  host.send(numbered_frame(41));
  turn();
  EXPECT_EQ(channel().receive(1000), Received::all);
  channel().set_enabled(true);
  host.send(numbered_frame(42));
  EXPECT_EQ(channel().receive(1000), Received::all);
  EXPECT_THAT(receiver().numbers(), ElementsAre(40, 42));
  pairs_.clear();
  port_.reset();
  ASSERT_TRUE(run("ip link del old0"));
}

TEST_P(TapChannelTest, FramesKeptForAPairThatIsNotUsedAnyMoreCountAsOverruns) {
  open("keep0");
  HostSide host("keep0");
  receiver().landing_bytes = 40;
  receiver().wanted = [&](std::span<const std::byte, 18>) {
    receiver().buffers = 0;
    return true;
  };
  for (std::uint32_t i = 0; i < 2; ++i) {
    host.send(numbered_frame(i));
  }
  EXPECT_EQ(channel().receive(100), Received::no_buffers);
  channel().set_enabled(false);
  EXPECT_EQ(receiver().overruns, 2U);
  receiver().buffers = 10;
  channel().set_enabled(true);
  EXPECT_EQ(channel().receive(100), Received::all);
  EXPECT_THAT(receiver().got, IsEmpty());
}

TEST_P(TapChannelTest, AnInterfaceThatHasGoneCostsNothing) {
  open("gone0", 2);
  pair(1).channel->set_enabled(true);
  receiver().wakes = 0;
  ASSERT_TRUE(run("ip link del gone0"));
  for (int i = 0; i < 5; ++i) {
    turn();
    EXPECT_EQ(channel().receive(100), Received::all);
    EXPECT_EQ(pair(1).channel->receive(100), Received::all);
    EXPECT_EQ(channel().send(Frames::numbered(0, 10).get()), 10U);
  }
  EXPECT_EQ(pair().counters.dropped_down.get(), 50U);
  EXPECT_LE(pair().counters.receive_errors.get(), 2U);
  EXPECT_LE(receiver().wakes, 1);
  // Nothing is ready again and again.
  const std::uint64_t sleeps = loop_->sleeps();
  static_cast<void>(loop_->wait(clock_now(), clock_now() + Duration::milliseconds(20)));
  EXPECT_EQ(loop_->sleeps(), sleeps + 1);
  channel().set_guest(kAllTcp, spec::kNetHeaderBytes);
  channel().set_enabled(false);
  channel().set_enabled(true);
  EXPECT_EQ(channel().receive(100), Received::all);
}

TEST_P(TapChannelTest, ASleepingWorkerIsWokenByAFrame) {
  open("sleep0");
  HostSide host("sleep0");
  ASSERT_EQ(channel().receive(10), Received::all);
  turn();
  receiver().wakes = 0;
  host.send(numbered_frame(1));
  wait();
  EXPECT_GT(receiver().wakes, 0);
  ASSERT_EQ(channel().receive(10), Received::all);
  EXPECT_THAT(receiver().numbers(), ElementsAre(1));
}

TEST_P(TapChannelTest, OnlyPairsThatThereAreCanBeOpened) {
  open("open0", 2);
  test::PlainReceiver receiver;
  test::PlainSender sender;
  NetChannelCounters counters;
  const auto third =
      port_->open_channel({.index = 2, .loop = *loop_, .receiver = receiver, .sender = sender, .counters = counters});
  ASSERT_FALSE(third.has_value());
  EXPECT_THAT(third.error().message, testing::HasSubstr("has 2 queues"));
  EXPECT_EQ(port_->info().kind, "tap");
  EXPECT_EQ(port_->info().mtu_max, kTapMtuMax);
}

TEST_P(TapChannelTest, AnOrdinaryUserSendsAndReceivesOnAPreparedTap) {
  ASSERT_TRUE(run("ip tuntap add dev user0 mode tap user 65534 multi_queue && ip link set user0 up"));
  HostSide host("user0");
  test::in_child([&] {
    static_cast<void>(loop_.release());  // its ring is the parent's, and its memory isn't here
    auto made = make_loop(GetParam().loop);
    ASSERT_TRUE(made.has_value());
    loop_ = std::move(*made);
    ASSERT_EQ(::setgid(65534), 0);
    ASSERT_EQ(::setuid(65534), 0);
    auto device = TapDevice::open({.name = "user0", .pairs = 2});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    open(std::make_unique<TapPort>(std::move(*device), GetParam().io));
    channel().set_guest(kAllTcp, spec::kNetHeaderBytes);
    ASSERT_EQ(channel().send(Frames::numbered(0, 8).get()), 8U);
    host.send(numbered_frame(9));
    ASSERT_EQ(channel().receive(100), Received::all);
    EXPECT_THAT(receiver().numbers(), ElementsAre(9));
    pairs_.clear();
  });
  EXPECT_EQ(host.receive_numbers(), numbers_from(0, 8));
  ASSERT_TRUE(run("ip link del user0"));
}

}  // namespace
}  // namespace ringway
