#include "vhost_user/backend_session.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>

#include <chrono>
#include <semaphore>
#include <thread>

#include "base/test_limit.hpp"
#include "base/test_soon.hpp"
#include "completion/inflight_queue.hpp"
#include "vhost_user/inflight_region.hpp"
#include "vhost_user/test_session.hpp"

namespace ringway::vhost_user {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::uint64_t kBit30 = spec::kFeatureProtocolFeatures;

class SessionTest : public ::testing::Test, protected SessionBench {};

// --- features

TEST_F(SessionTest, FeaturesOfDeviceAreOfferedWithThoseOfTheSession) {
  connect();
  EXPECT_EQ(get(Request::get_features), device.offered | kBit30 | spec::kFeatureLogAll);
  EXPECT_EQ(get(Request::get_protocol_features), kAllProtocolFeatures | kProtocolInbandNotifications);
  EXPECT_EQ(get(Request::get_queue_num), 4U);
  EXPECT_EQ(get(Request::get_max_mem_slots), limits::kMemorySlotsMax);
}

TEST_F(SessionTest, DeviceDecidesOnInflightAndInband) {
  device.inband = false;
  device.inflight = false;
  connect();
  EXPECT_EQ(get(Request::get_protocol_features), kAllProtocolFeatures & ~kProtocolInflightShmfd);
}

TEST_F(SessionTest, LegacyBitsAreToleratedAndKeptFromTheDevice) {
  connect();
  negotiate(0, kProtocolReplyAck);
  const std::uint64_t acked = spec::kFeatureVersion1 | kBit30 | spec::bit(24) | spec::bit(27) | spec::bit(26);
  EXPECT_EQ(ask(Request::set_features, acked), 0U);
  EXPECT_EQ(device.calls.back(), fmt::format("set_features {:#x}", spec::kFeatureVersion1));
}

TEST_F(SessionTest, BitThatIsNotOfferedIsRefused) {
  connect();
  negotiate(0, kProtocolReplyAck);
  for (const unsigned bit : {5U, 33U, 38U, 40U, 63U}) {
    EXPECT_EQ(ask(Request::set_features, spec::kFeatureVersion1 | spec::bit(bit)), 1U) << bit;
  }
  EXPECT_EQ(session->faults(Fault::bad_value), 5U);
  EXPECT_EQ(device.count("set_features"), 1U) << "only the one of the set-up";
  EXPECT_FALSE(ended);
}

TEST_F(SessionTest, RefusalThatCannotBeSaidEndsTheSessionAndNamesTheBit) {
  connect();
  send(Request::set_features, bytes_of(spec::bit(33)));
  ASSERT_TRUE(ended);
  EXPECT_THAT(*ended, HasSubstr("SET_FEATURES"));
  EXPECT_THAT(*ended, HasSubstr("bit 33"));
  EXPECT_THAT(device.calls, Contains("detach"));
}

TEST_F(SessionTest, ProtocolFeatureThatIsNotOfferedIsRefused) {
  connect();
  negotiate(0, kProtocolReplyAck);
  EXPECT_EQ(ask(Request::set_protocol_features, kProtocolReplyAck | kProtocolPagefault), 1U);
  EXPECT_EQ(ask(Request::set_protocol_features, kProtocolReplyAck | kProtocolMq), 0U);
}

TEST_F(SessionTest, ReplyAckCountsFromTheMessageThatNegotiatesItEvenIfNobodyAskedForTheFeatures) {
  connect();
  EXPECT_EQ(ask(Request::set_owner, std::span<const std::byte>{}), std::nullopt) << "not negotiated yet";
  EXPECT_EQ(ask(Request::set_protocol_features, kProtocolReplyAck), 0U);
  EXPECT_EQ(ask(Request::set_owner, std::span<const std::byte>{}), 0U);
}

TEST_F(SessionTest, InbandWithoutItsCompanionsClosesTheConnection) {
  connect();
  send(Request::set_protocol_features, bytes_of(kProtocolInbandNotifications | kProtocolReplyAck));
  ASSERT_TRUE(ended);
  EXPECT_THAT(*ended, HasSubstr("BACKEND_REQ"));
}

TEST_F(SessionTest, FeaturesOfARunningRingCannotChangeButLoggingCan) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  EXPECT_EQ(ask(Request::set_features, spec::kFeatureVersion1 | kBit30 | spec::kFeatureEventIdx), 1U);
  EXPECT_EQ(ask(Request::set_features, spec::kFeatureVersion1 | kBit30 | spec::kFeatureLogAll), 0U);
  EXPECT_EQ(session->faults(Fault::bad_order), 1U);
  EXPECT_EQ(device.running.size(), 1U);
}

// --- replies: one for each message (cases/blk 41)

struct ReplyCase {
  Request request;
  std::vector<std::byte> payload;
  int fds;
  std::size_t reply_bytes;
};

template <typename T>
std::vector<std::byte> copy_of(const T& value) {
  const std::span<const std::byte> bytes = bytes_of(value);
  return {bytes.begin(), bytes.end()};
}

TEST_F(SessionTest, EveryMessageWithNeedReplyIsAnsweredExactlyOnce) {
  const VringState state{.index = 0, .num = 0};
  const VringState size{.index = 0, .num = 64};
  const VringAddress address = ring_address(0);
  const std::uint64_t number = kVringNoFd;
  std::vector<std::byte> config(12 + 4);
  config[4] = std::byte{4};
  const std::vector<ReplyCase> cases = {
      {Request::get_features, {}, 0, 8},
      {Request::set_owner, {}, 0, 8},
      {Request::reset_owner, {}, 0, 8},
      {Request::set_mem_table, copy_of(std::uint64_t{0}), 0, 8},
      {Request::set_log_base, copy_of(LogDescription{.bytes = 4096, .offset = 0}), 1, 8},
      {Request::set_log_fd, {}, 1, 8},
      {Request::set_vring_num, copy_of(size), 0, 8},
      {Request::set_vring_addr, copy_of(address), 0, 8},
      {Request::set_vring_base, copy_of(state), 0, 8},
      {Request::get_vring_base, copy_of(state), 0, 8},
      {Request::set_vring_call, copy_of(number), 0, 8},
      {Request::set_vring_err, copy_of(number), 0, 8},
      {Request::set_vring_kick, copy_of(number), 0, 8},
      {Request::get_protocol_features, {}, 0, 8},
      {Request::get_queue_num, {}, 0, 8},
      {Request::set_vring_enable, copy_of(state), 0, 8},
      {Request::send_rarp, copy_of(number), 0, 8},
      {Request::net_set_mtu, copy_of(number), 0, 8},
      {Request::iotlb_msg, copy_of(address), 0, 8},
      {Request::set_vring_endian, copy_of(state), 0, 8},
      {Request::get_config, config, 0, 16},
      {Request::set_config, config, 0, 8},
      {Request::create_crypto_session, config, 0, 0},
      {Request::close_crypto_session, copy_of(number), 0, 8},
      {Request::postcopy_advise, {}, 0, 8},
      {Request::postcopy_listen, {}, 0, 8},
      {Request::postcopy_end, {}, 0, 8},
      {Request::get_inflight_fd,
       copy_of(InflightDescription{.mmap_bytes = 0, .mmap_offset = 0, .queue_count = 1, .queue_size = 64}), 0, 24},
      {Request::gpu_set_socket, {}, 1, 8},
      {Request::vring_kick, copy_of(state), 0, 8},
      {Request::get_max_mem_slots, {}, 0, 8},
      {Request::set_status, copy_of(std::uint64_t{1}), 0, 8},
      {Request::get_status, {}, 0, 8},
      {Request::get_shared_object, config, 0, 8},
      {Request::set_device_state_fd, copy_of(state), 1, 8},
      {Request::check_device_state, {}, 0, 8},
      {Request::get_shmem_config, {}, 0, 0},
      {Request::reset_device, {}, 0, 8},
  };
  connect();
  negotiate();
  for (const ReplyCase& test : cases) {
    SCOPED_TRACE(to_string(test.request));
    send(test.request, test.payload, std::vector<int>(static_cast<std::size_t>(test.fds), memory.get()),
         kVersion | kFlagNeedReply);
    const std::optional<Message> reply = answer();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->header.request, static_cast<std::uint32_t>(test.request));
    EXPECT_EQ(reply->header.flags, kVersion | kFlagReply);
    EXPECT_EQ(reply->payload.size(), test.reply_bytes);
    EXPECT_FALSE(answer()) << "a second answer";
    ASSERT_FALSE(ended) << *ended;
  }
}

TEST_F(SessionTest, NeedReplyWithoutReplyAckGetsNoAcknowledgement) {
  connect();
  negotiate(spec::kFeatureVersion1 | kBit30, kProtocolConfig);
  send(Request::set_vring_num, bytes_of(VringState{.index = 0, .num = 64}), {}, kVersion | kFlagNeedReply);
  EXPECT_FALSE(answer());
  send(Request::get_features, {}, {}, kVersion | kFlagNeedReply);
  EXPECT_TRUE(answer());
  EXPECT_FALSE(answer());
  EXPECT_FALSE(ended);
}

// --- ring life, in the orders of real front-ends

struct Order {
  const char* name;
  std::uint64_t virtio;
  std::uint64_t protocol;  // 0: SET_PROTOCOL_FEATURES isn't sent
  std::vector<std::string> messages;
  std::string start;  // what the device must be told, once
  std::string enable;
};

class OrderTest : public ::testing::TestWithParam<Order>, protected SessionBench {
 protected:
  void play(const std::string& message) {
    if (message == "mem") {
      give_memory();
    } else if (message == "slot") {
      struct {
        std::uint64_t padding = 0;
        MemoryRegion region{.guest_address = 0, .bytes = kMemoryBytes, .user_address = kUserBase, .mmap_offset = 0};
      } payload;
      send(Request::add_mem_reg, bytes_of(payload), {memory.get()});
    } else if (message == "features") {
      send(Request::set_features, bytes_of(GetParam().virtio));
    } else if (message == "num") {
      send(Request::set_vring_num, bytes_of(VringState{.index = 0, .num = 128}));
    } else if (message == "base") {
      send(Request::set_vring_base, bytes_of(VringState{.index = 0, .num = 3}));
    } else if (message == "addr") {
      send(Request::set_vring_addr, bytes_of(ring_address(0)));
    } else if (message == "addr+log") {
      send(Request::set_vring_addr, bytes_of(ring_address(0, 1)));
    } else if (message == "kick") {
      give_fd(Request::set_vring_kick, 0);
    } else if (message == "call") {
      give_fd(Request::set_vring_call, 0);
    } else if (message == "nocall") {
      send(Request::set_vring_call, bytes_of(kVringNoFd));
    } else if (message == "err") {
      give_fd(Request::set_vring_err, 0);
    } else if (message == "enable") {
      send(Request::set_vring_enable, bytes_of(VringState{.index = 0, .num = 1}));
    } else if (message == "vring_kick") {
      send(Request::vring_kick, bytes_of(VringState{.index = 0, .num = 0}));
    } else if (message == "status") {
      send(Request::set_status, bytes_of(std::uint64_t{7}));
    } else {
      FAIL() << message;
    }
  }
};

TEST_P(OrderTest, StartsTheRingOnceAndEnablesIt) {
  connect();
  const Order& order = GetParam();
  send(Request::set_owner, {});
  if (order.protocol != 0) {
    send(Request::set_protocol_features, bytes_of(order.protocol));
  }
  for (const std::string& message : order.messages) {
    play(message);
    ASSERT_FALSE(ended) << message << ": " << *ended;
  }
  EXPECT_EQ(device.count("start "), 1U);
  EXPECT_THAT(device.calls, Contains(order.start));
  if (!order.enable.empty()) {
    EXPECT_THAT(device.calls, Contains(order.enable));
  }
  EXPECT_EQ(device.count("enable"), order.enable.empty() ? 0U : 1U);
  EXPECT_EQ(session->refused(), 0U);
}

INSTANTIATE_TEST_SUITE_P(
    FrontEnds, OrderTest,
    ::testing::Values(
        Order{"Qemu72",
              spec::kFeatureVersion1 | kBit30,
              SessionBench::kAllProtocolFeatures,
              {"call", "features", "mem", "num", "base", "addr", "kick", "call", "enable", "status"},
              "start 0 size=128 base=3 enabled=false kick=true call=true error=false packed=false",
              "enable 0 true"},
        // Before 7.2: bit 30 isn't acknowledged for disks, and nothing is ever enabled.
        Order{"QemuBefore72",
              spec::kFeatureVersion1,
              kProtocolMq | kProtocolConfig | kProtocolReplyAck,
              {"call", "features", "mem", "num", "base", "addr", "kick", "call"},
              "start 0 size=128 base=3 enabled=true kick=true call=true error=false packed=false",
              ""},
        Order{"Qemu10Packed",
              spec::kFeatureVersion1 | kBit30 | spec::kFeatureRingPacked,
              SessionBench::kAllProtocolFeatures,
              {"call", "features", "status", "slot", "num", "base", "addr", "kick", "err", "enable", "call", "status"},
              "start 0 size=128 base=3 enabled=false kick=true call=true error=false packed=true",
              "enable 0 true"},
        Order{"CloudHypervisor",
              spec::kFeatureVersion1 | kBit30,
              kProtocolConfig | kProtocolMq | kProtocolConfigureMemSlots | kProtocolReplyAck | kProtocolInflightShmfd,
              {"features", "mem", "num", "addr", "base", "call", "kick", "enable"},
              "start 0 size=128 base=3 enabled=false kick=true call=true error=false packed=false",
              "enable 0 true"},
        Order{"Firecracker",
              spec::kFeatureVersion1 | kBit30,
              kProtocolConfig,
              {"features", "mem", "num", "addr", "base", "call", "kick", "enable"},
              "start 0 size=128 base=3 enabled=false kick=true call=true error=false packed=false",
              "enable 0 true"},
        Order{"UmlInband",
              spec::kFeatureVersion1 | kBit30,
              kProtocolReplyAck | kProtocolBackendReq | kProtocolConfig | kProtocolInbandNotifications,
              {"features", "mem", "num", "base", "addr", "enable", "vring_kick"},
              "start 0 size=128 base=3 enabled=true kick=false call=false error=false packed=false inband",
              ""},
        Order{"UmlWithEvents",
              spec::kFeatureVersion1 | kBit30,
              kProtocolReplyAck | kProtocolBackendReq | kProtocolConfig,
              {"features", "mem", "call", "num", "base", "addr", "kick", "enable"},
              "start 0 size=128 base=3 enabled=false kick=true call=true error=false packed=false",
              "enable 0 true"},
        Order{"DpdkVirtioUser",
              spec::kFeatureVersion1 | kBit30,
              kProtocolMq | kProtocolReplyAck | kProtocolStatus,
              {"call", "features", "mem", "num", "base", "addr", "kick", "enable", "status"},
              "start 0 size=128 base=3 enabled=false kick=true call=true error=false packed=false",
              "enable 0 true"},
        Order{"DpdkPollingDriver",
              spec::kFeatureVersion1 | kBit30,
              kProtocolMq | kProtocolReplyAck | kProtocolStatus,
              {"nocall", "features", "mem", "num", "base", "addr", "kick", "enable"},
              "start 0 size=128 base=3 enabled=false kick=true call=false error=false packed=false",
              "enable 0 true"},
        Order{"Libblkio",
              spec::kFeatureVersion1 | kBit30,
              kProtocolConfig | kProtocolMq,
              {"features", "mem", "num", "addr", "base", "kick", "call", "enable"},
              "start 0 size=128 base=3 enabled=false kick=true call=false error=false packed=false",
              "enable 0 true"},
        Order{"EnabledBeforeItStarts",
              spec::kFeatureVersion1 | kBit30,
              kProtocolMq,
              {"features", "enable", "mem", "num", "base", "addr", "kick"},
              "start 0 size=128 base=3 enabled=true kick=true call=false error=false packed=false",
              ""},
        Order{"MemoryLast",
              spec::kFeatureVersion1 | kBit30,
              kProtocolMq,
              {"features", "num", "base", "addr", "kick", "call", "enable", "mem"},
              "start 0 size=128 base=3 enabled=true kick=true call=true error=false packed=false",
              ""}),
    [](const auto& order) { return order.param.name; });

TEST_F(SessionTest, StopAnswersTheBaseAndTheNextKickStartsFromIt) {
  connect();
  negotiate();
  give_memory();
  start_ring(2);
  send(Request::set_vring_enable, bytes_of(VringState{.index = 2, .num = 1}));
  device.base_when_stopped = 41;
  EXPECT_EQ(stop_ring(2), 41U);
  EXPECT_TRUE(device.running.empty());
  give_fd(Request::set_vring_kick, 2);
  EXPECT_EQ(device.calls.back(), "start 2 size=256 base=41 enabled=true kick=true call=false error=false packed=false");
}

TEST_F(SessionTest, StopOfARingThatNeverRanAnswersItsBaseAndItDoesNotStartLater) {
  connect();
  negotiate();
  describe_ring(1, 256, 9);
  give_fd(Request::set_vring_kick, 1);
  EXPECT_EQ(stop_ring(1), 9U);
  give_memory();
  EXPECT_EQ(device.count("start"), 0U);
  EXPECT_EQ(device.count("stop"), 0U);
}

TEST_F(SessionTest, FailedStopClosesTheConnectionInsteadOfAnswering) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  device.next_failure = Error{.code = 0, .message = "the store hangs"};
  EXPECT_EQ(stop_ring(0), std::nullopt);
  ASSERT_TRUE(ended);
  EXPECT_THAT(*ended, HasSubstr("the store hangs"));
}

TEST_F(SessionTest, FrontEndIsToldAtOnceOfAFailedStopEvenIfDetachingTakesLong) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  device.next_failure = Error{.code = 0, .message = "the store hangs"};
  device.hold = true;
  send(Request::get_vring_base, bytes_of(VringState{.index = 0, .num = 0}));
  device.release();  // the stop's failure; the detach is held then
  step();
  EXPECT_EQ(device.held(), 1U);
  EXPECT_FALSE(ended);
  const Result<Message> message = front->receive(Duration{});
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().code, ECONNRESET);
}

TEST_F(SessionTest, SocketStaysOpenUntilTheDeviceIsDetached) {
  connect();
  negotiate();
  device.hold = true;
  session->close("test");
  step();
  EXPECT_EQ(device.held(), 1U);
  const Result<Message> early = front->receive(Duration{});
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, ETIMEDOUT) << "closing promises that the memory is no longer touched";
  device.release();
  step();
  EXPECT_EQ(ended, "test");
  EXPECT_EQ(front->receive(Duration{}).error().code, ECONNRESET);
}

TEST_F(SessionTest, RunningRingTakesNewFdsAndAddresses) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  device.calls.clear();
  give_fd(Request::set_vring_call, 0);
  send(Request::set_vring_call, bytes_of(kVringNoFd));
  give_fd(Request::set_vring_kick, 0);
  give_fd(Request::set_vring_err, 0);
  send(Request::set_vring_addr, bytes_of(ring_address(0, 1)));
  EXPECT_THAT(device.calls, ElementsAre("set_call 0 true", "set_call 0 false", "set_kick 0 true", "set_error 0 true",
                                        "set_addresses 0 log=true@0x5000"));
}

TEST_F(SessionTest, RunningRingKeepsItsSizeAndBase) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  EXPECT_EQ(ask(Request::set_vring_enable, VringState{.index = 0, .num = 1}), 0U);
  EXPECT_EQ(ask(Request::set_vring_num, VringState{.index = 0, .num = 64}), 1U);
  EXPECT_EQ(ask(Request::set_vring_base, VringState{.index = 0, .num = 1}), 1U);
  VringAddress nowhere = ring_address(0);
  nowhere.used = 0x1000;
  EXPECT_EQ(ask(Request::set_vring_addr, nowhere), 1U);
  EXPECT_EQ(device.running.at(0).size, 256U);
  EXPECT_EQ(session->faults(Fault::bad_order), 2U);
}

// What User Mode Linux sends when a driver is unbound and another bound: no GET_VRING_BASE, and the call before the size.
TEST_F(SessionTest, DisabledRingIsStoppedBySettingItUpAnew) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  EXPECT_EQ(ask(Request::set_vring_enable, VringState{.index = 0, .num = 1}), 0U);
  EXPECT_EQ(ask(Request::set_vring_enable, VringState{.index = 0, .num = 0}), 0U);
  device.calls.clear();
  give_fd(Request::set_vring_call, 0);
  EXPECT_EQ(ask(Request::set_vring_num, VringState{.index = 0, .num = 64}), 0U);
  EXPECT_EQ(ask(Request::set_vring_base, VringState{.index = 0, .num = 0}), 0U);
  EXPECT_FALSE(device.running.contains(0));
  give_fd(Request::set_vring_kick, 0);
  ASSERT_TRUE(device.running.contains(0));
  EXPECT_EQ(device.running.at(0).size, 64U);
  EXPECT_EQ(device.running.at(0).base, 0U);
  EXPECT_TRUE(static_cast<bool>(device.running.at(0).call));
}

// net L32
TEST_F(SessionTest, RefusedRingSizeNamesValueAndLimit) {
  for (const std::uint32_t size : {0U, 3U, 1025U, 65536U}) {
    connect();
    negotiate(spec::kFeatureVersion1 | kBit30, kProtocolReplyAck);
    EXPECT_EQ(ask(Request::set_vring_num, VringState{.index = 1, .num = size}), 1U) << size;
    send(Request::set_vring_num, bytes_of(VringState{.index = 1, .num = size}));
    ASSERT_TRUE(ended) << size;
    EXPECT_THAT(*ended, HasSubstr(fmt::format("ring 1: size {}", size)));
    EXPECT_THAT(*ended, HasSubstr("1024"));
    finish();
  }
}

TEST_F(SessionTest, PackedRingMayHaveAnySize) {
  connect();
  negotiate(spec::kFeatureVersion1 | kBit30 | spec::kFeatureRingPacked);
  EXPECT_EQ(ask(Request::set_vring_num, VringState{.index = 1, .num = 3}), 0U);
  EXPECT_EQ(ask(Request::set_vring_base, VringState{.index = 1, .num = 0x8001'8001}), 0U);
}

TEST_F(SessionTest, MisalignedRingIsRefusedNotWaitedFor) {
  connect();
  negotiate();
  give_memory();
  send(Request::set_vring_num, bytes_of(VringState{.index = 0, .num = 256}));
  VringAddress address = ring_address(0);
  address.descriptor += 8;
  send(Request::set_vring_addr, bytes_of(address));
  const UniqueFd event = make_event();
  EXPECT_EQ(ask(Request::set_vring_kick, std::uint64_t{0}, {event.get()}), 1U);
  EXPECT_EQ(ask(Request::set_vring_enable, VringState{.index = 0, .num = 1}), 0U) << "the next message is not blamed";
  EXPECT_EQ(device.count("start"), 0U);
}

TEST_F(SessionTest, EnableFollowsTheMessageOverStops) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  send(Request::set_vring_enable, bytes_of(VringState{.index = 0, .num = 1}));
  send(Request::set_vring_enable, bytes_of(VringState{.index = 0, .num = 1}));
  send(Request::set_vring_enable, bytes_of(VringState{.index = 0, .num = 0}));
  EXPECT_EQ(device.count("enable 0 true"), 1U) << "no change, no call";
  EXPECT_EQ(device.count("enable 0 false"), 1U);
  EXPECT_EQ(ask(Request::set_vring_enable, VringState{.index = 0, .num = 2}), 1U);
}

// A front-end that forgets bit 30 during migration doesn't enable what it has disabled.
TEST_F(SessionTest, SetFeaturesLeavesTheEnableStateAlone) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  start_ring(1);
  send(Request::set_vring_enable, bytes_of(VringState{.index = 0, .num = 1}));
  send(Request::set_vring_enable, bytes_of(VringState{.index = 1, .num = 0}));
  device.calls.clear();
  EXPECT_EQ(ask(Request::set_features, spec::kFeatureVersion1 | spec::kFeatureLogAll), 0U);
  EXPECT_EQ(ask(Request::set_features, spec::kFeatureVersion1 | spec::kFeatureLogAll | kBit30), 0U);
  EXPECT_EQ(device.count("enable"), 0U);
}

TEST_F(SessionTest, FirstSetFeaturesIsRefusedWhileARingRuns) {
  connect();
  send(Request::set_protocol_features, bytes_of(kProtocolReplyAck));
  give_memory();
  start_ring(0);
  EXPECT_EQ(device.count("start 0 size=256 base=0 enabled=false"), 1U);
  EXPECT_EQ(ask(Request::set_features, std::uint64_t{0}), 1U) << "features can't come first while a ring runs";
}

TEST_F(SessionTest, KickAndCallAreMadeNonBlocking) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  const RingStart& ring = device.running.at(0);
  EXPECT_NE(::fcntl(ring.kick.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(ring.call.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(SessionTest, VringFdAndItsFlagMustAgree) {
  connect();
  negotiate();
  const UniqueFd event = make_event();
  for (const Request request : {Request::set_vring_kick, Request::set_vring_call, Request::set_vring_err}) {
    EXPECT_EQ(ask(request, std::uint64_t{0}), 1U) << "no fd, no flag";
    EXPECT_EQ(ask(request, kVringNoFd, {event.get()}), 1U) << "fd and flag";
    EXPECT_EQ(ask(request, std::uint64_t{0}, {event.get(), event.get()}), 1U) << "two fds";
    EXPECT_EQ(ask(request, std::uint64_t{4}, {event.get()}), 1U) << "no such ring";
  }
  EXPECT_EQ(session->faults(Fault::bad_fds), 9U);
  EXPECT_EQ(session->faults(Fault::bad_value), 3U);
}

// --- in-band

// net L31
TEST_F(SessionTest, InbandKicksReachTheDeviceAndCallsGoOverTheChannel) {
  connect();
  negotiate(spec::kFeatureVersion1 | kBit30,
            kProtocolReplyAck | kProtocolBackendReq | kProtocolConfig | kProtocolInbandNotifications);
  auto [ours, theirs] = make_socket_pair();
  EXPECT_EQ(ask(Request::set_backend_req_fd, std::span<const std::byte>{}, {theirs.get()}), 0U);
  theirs.reset();
  give_memory();
  describe_ring(0);
  send(Request::set_vring_enable, bytes_of(VringState{.index = 0, .num = 1}));
  EXPECT_EQ(device.count("start"), 0U);
  EXPECT_EQ(ask(Request::vring_kick, VringState{.index = 0, .num = 0}), 0U);
  EXPECT_EQ(ask(Request::vring_kick, VringState{.index = 0, .num = 0}), 0U);
  EXPECT_EQ(device.count("start"), 1U);
  EXPECT_EQ(device.count("kick 0"), 2U) << "the first kick, which starts the ring, isn't lost";

  MessageReader reader;
  ASSERT_TRUE(device.port->send_vring_call(0));
  ASSERT_EQ(reader.read(ours.get()), MessageReader::Status::complete);
  const Message call = reader.take();
  EXPECT_EQ(call.header.request, static_cast<std::uint32_t>(BackendRequest::vring_call));
  EXPECT_EQ(call.header.flags, kVersion) << "an answer would have to be read";
  EXPECT_EQ(decode<VringState>(call.payload)->index, 0U);
  ASSERT_TRUE(device.port->send_vring_error(0));
  ASSERT_EQ(reader.read(ours.get()), MessageReader::Status::complete);
  EXPECT_EQ(reader.take().header.request, static_cast<std::uint32_t>(BackendRequest::vring_err));
}

// Neither is the channel ever read, nor does it grow: what the socket has no room for is sent once when it has.
TEST_F(SessionTest, ConfigChangeNeedsAChannelAndDoesNotBlock) {
  connect();
  negotiate(spec::kFeatureVersion1 | kBit30,
            kProtocolReplyAck | kProtocolBackendReq | kProtocolConfig | kProtocolInbandNotifications);
  EXPECT_FALSE(device.port->notify_config_change());
  auto [ours, theirs] = make_socket_pair();
  EXPECT_EQ(ask(Request::set_backend_req_fd, std::span<const std::byte>{}, {theirs.get()}), 0U);
  theirs.reset();
  constexpr int kSent = 100'000;
  for (int i = 0; i < kSent; ++i) {
    ASSERT_TRUE(device.port->notify_config_change());
  }
  ASSERT_TRUE(device.port->send_vring_error(0));
  // What the front-end sends there stays there.
  ASSERT_TRUE(send_some(ours.get(), std::vector<std::byte>(12, std::byte{0xff}), {}));
  step();
  MessageReader reader;
  int config_changes = 0;
  int errors = 0;
  while (errors == 0) {
    while (reader.read(ours.get()) == MessageReader::Status::complete) {
      const std::uint32_t request = reader.take().header.request;
      config_changes += request == static_cast<std::uint32_t>(BackendRequest::config_change_msg) ? 1 : 0;
      errors += request == static_cast<std::uint32_t>(BackendRequest::vring_err) ? 1 : 0;
    }
    ASSERT_LT(config_changes, kSent);
    step();
  }
  EXPECT_GT(config_changes, 1);
  EXPECT_EQ(errors, 1);
  EXPECT_TRUE(device.port->notify_config_change());
  ours.reset();
  step();
  EXPECT_FALSE(device.port->notify_config_change());
  EXPECT_FALSE(ended);
}

TEST_F(SessionTest, ChannelMustBeAUnixSocket) {
  connect();
  negotiate();
  const UniqueFd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(ask(Request::set_backend_req_fd, std::span<const std::byte>{}, {tcp.get()}), 0U);
  EXPECT_NE(ask(Request::set_backend_req_fd, std::span<const std::byte>{}, {memory.get()}), 0U);
}

// --- memory

struct SlotPayload {
  std::uint64_t padding = 0;
  MemoryRegion region{};
};

SlotPayload slot(std::uint64_t number, std::uint64_t bytes = 4096) {
  return {.region = {.guest_address = number << 20U,
                     .bytes = bytes,
                     .user_address = SessionBench::kUserBase + (number << 20U),
                     .mmap_offset = 0}};
}

TEST_F(SessionTest, AllSlotsCanBeTakenAndTheNextOneIsRefused) {
  connect();
  negotiate();
  for (std::uint64_t i = 0; i < limits::kMemorySlotsMax; ++i) {
    ASSERT_EQ(ask(Request::add_mem_reg, slot(i), {memory.get()}), 0U) << i;
  }
  EXPECT_EQ(ask(Request::add_mem_reg, slot(limits::kMemorySlotsMax), {memory.get()}), 1U);
  EXPECT_EQ(device.map->regions().size(), limits::kMemorySlotsMax);
  EXPECT_EQ(ask(Request::rem_mem_reg, slot(100)), 0U);
  EXPECT_EQ(ask(Request::add_mem_reg, slot(limits::kMemorySlotsMax), {memory.get()}), 0U);
}

// cases/blk 43
TEST_F(SessionTest, TenThousandAddsAndRemovesLeakNothing) {
  connect();
  negotiate();
  const std::size_t before = count_open_fds();
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_EQ(ask(Request::add_mem_reg, slot(1), {memory.get()}), 0U) << i;
    // With the fd that some front-ends send along.
    ASSERT_EQ(ask(Request::rem_mem_reg, slot(1), i % 2 == 0 ? std::vector<int>{memory.get()} : std::vector<int>{}), 0U) << i;
  }
  EXPECT_EQ(count_open_fds(), before);
  EXPECT_TRUE(device.map->regions().empty());
}

TEST_F(SessionTest, SlotIsRemovedByItsAddressesAndSizeOnly) {
  connect();
  negotiate();
  ASSERT_EQ(ask(Request::add_mem_reg, slot(1), {memory.get()}), 0U);
  EXPECT_EQ(ask(Request::rem_mem_reg, slot(1, 8192)), 1U) << "other size";
  EXPECT_EQ(ask(Request::rem_mem_reg, slot(2)), 1U) << "other address";
  SlotPayload other_offset = slot(1);
  other_offset.region.mmap_offset = 0x7000;
  EXPECT_EQ(ask(Request::rem_mem_reg, other_offset), 0U);
  EXPECT_EQ(ask(Request::rem_mem_reg, slot(1)), 1U) << "already gone";
}

TEST_F(SessionTest, DuplicateSlotIsRefused) {
  connect();
  negotiate();
  ASSERT_EQ(ask(Request::add_mem_reg, slot(1), {memory.get()}), 0U);
  EXPECT_EQ(ask(Request::add_mem_reg, slot(1), {memory.get()}), 1U);
  EXPECT_EQ(device.map->regions().size(), 1U);
}

TEST_F(SessionTest, SlotPayloadOfOldFrontEndsIsFourBytesShorter) {
  connect();
  negotiate();
  const SlotPayload payload = slot(1);
  EXPECT_EQ(ask(Request::add_mem_reg, bytes_of(payload).first(36), {memory.get()}), 0U);
  EXPECT_EQ(ask(Request::rem_mem_reg, bytes_of(payload).first(36)), 0U);
  for (const std::size_t bytes : {std::size_t{35}, std::size_t{37}, std::size_t{39}}) {
    EXPECT_EQ(ask(Request::add_mem_reg, bytes_of(payload).first(bytes), {memory.get()}), 1U) << bytes;
  }
}

struct TablePayload {
  std::uint32_t count = 0;
  std::uint32_t padding = 0;
  std::array<MemoryRegion, 8> regions{};
};

TEST_F(SessionTest, FixedSizeTableOfUmlIsTaken) {
  connect();
  negotiate();
  TablePayload table{.count = 1};
  table.regions[0] = slot(0).region;
  EXPECT_EQ(ask(Request::set_mem_table, table, {memory.get()}), 0U);
  EXPECT_EQ(device.map->regions().size(), 1U);
}

TEST_F(SessionTest, TableMustHoldItsRegionsAndTheirFds) {
  connect();
  negotiate();
  TablePayload table{.count = 2};
  table.regions[0] = slot(0).region;
  table.regions[1] = slot(1).region;
  EXPECT_EQ(ask(Request::set_mem_table, table, {memory.get()}), 1U) << "an fd too few";
  EXPECT_EQ(ask(Request::set_mem_table, table, {memory.get(), memory.get(), memory.get()}), 1U) << "one too many";
  EXPECT_EQ(ask(Request::set_mem_table, bytes_of(table).first(8 + 2 * 32 - 1), {memory.get(), memory.get()}), 1U);
  table.count = 9;
  EXPECT_EQ(ask(Request::set_mem_table, table, {memory.get()}), 1U);
  table.count = 0xffff'ffff;
  EXPECT_EQ(ask(Request::set_mem_table, table, {memory.get()}), 1U);
  table.count = 2;
  table.regions[1].guest_address = 0;
  EXPECT_EQ(ask(Request::set_mem_table, table, {memory.get(), memory.get()}), 1U) << "overlap";
  table.regions[1] = slot(1, 2 * kMemoryBytes).region;
  EXPECT_EQ(ask(Request::set_mem_table, table, {memory.get(), memory.get()}), 1U) << "file too short";
  EXPECT_EQ(device.count("set_memory"), 0U);
  EXPECT_FALSE(ended);
}

TEST_F(SessionTest, UnchangedRegionKeepsItsMappingOverANewTable) {
  connect();
  negotiate();
  give_memory();
  const std::shared_ptr<const RegionMap> before = device.map;
  give_memory();
  EXPECT_TRUE(before->survives_in(*device.map));
  EXPECT_EQ(before->regions()[0].host, device.map->regions()[0].host);
  const UniqueFd other = std::exchange(memory, make_memory(kMemoryBytes));
  give_memory();
  EXPECT_FALSE(before->survives_in(*device.map));
}

// cases/blk 47
TEST_F(SessionTest, TableChangeWhileRingsRunIsAnsweredWhenTheDeviceIsDone) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  device.hold = true;
  send(Request::add_mem_reg, bytes_of(slot(16)), {memory.get()}, kVersion | kFlagNeedReply);
  send(Request::get_features, {});
  EXPECT_FALSE(answer()) << "neither this message nor the next one is answered yet";
  EXPECT_EQ(session->messages(), 10U) << "the next one isn't even read";
  device.hold = false;
  device.release();
  const std::optional<Message> first = answer();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->header.request, static_cast<std::uint32_t>(Request::add_mem_reg));
  const std::optional<Message> second = answer();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->header.request, static_cast<std::uint32_t>(Request::get_features));
}

TEST_F(SessionTest, FrontEndThatGoesWhileItsMessageIsHandledIsDetachedOnceAfterIt) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  device.hold = true;
  send(Request::get_vring_base, bytes_of(VringState{.index = 0, .num = 0}));
  front.reset();
  step();
  EXPECT_EQ(device.count("detach"), 0U) << "calls of one session never overlap";
  device.release();
  step();
  EXPECT_EQ(device.count("detach"), 1U);
  EXPECT_FALSE(ended) << "not before the device is detached";
  device.release();
  step();
  EXPECT_TRUE(ended);
  EXPECT_EQ(device.count("detach"), 1U);
}

TEST_F(SessionTest, FailedTableChangeIsRefused) {
  connect();
  negotiate();
  give_memory();
  device.next_failure = Error{.code = 0, .message = "requests on the old memory take too long"};
  EXPECT_EQ(ask(Request::add_mem_reg, slot(16), {memory.get()}), 1U);
  EXPECT_EQ(session->faults(Fault::failed), 1U);
}

// --- configuration space (cases/blk 35)

TEST_F(SessionTest, EveryOffsetAndLengthOfConfigIsEchoedOrRefusedWithAnEmptyPayload) {
  connect();
  negotiate();
  const auto fill = [this] {
    for (std::size_t i = 0; i < device.config.size(); ++i) {
      device.config[i] = static_cast<std::byte>(i + 1);
    }
  };
  fill();
  for (std::uint32_t offset = 0; offset <= 260; offset += 13) {
    for (std::uint32_t bytes = 0; bytes <= 260; bytes += 5) {
      std::vector<std::byte> payload(12 + bytes);
      const ConfigHeader header{.offset = offset, .bytes = bytes, .flags = 0};
      std::memcpy(payload.data(), &header, sizeof(header));
      send(Request::get_config, payload);
      const std::optional<Message> reply = answer();
      ASSERT_TRUE(reply) << offset << " " << bytes;
      if (offset + bytes <= device.config.size()) {
        ASSERT_EQ(reply->payload.size(), payload.size()) << offset << " " << bytes;
        EXPECT_TRUE(std::equal(reply->payload.begin() + 12, reply->payload.end(), device.config.begin() + offset));
      } else {
        ASSERT_TRUE(reply->payload.empty()) << offset << " " << bytes;
      }
      const std::optional<std::uint64_t> written = ask(Request::set_config, std::span<const std::byte>(payload));
      ASSERT_EQ(written, offset + bytes <= device.config.size() ? 0U : 1U) << offset << " " << bytes;
      fill();
    }
  }
  EXPECT_FALSE(ended);
}

TEST_F(SessionTest, ConfigSizeMustMatchThePayload) {
  connect();
  negotiate();
  std::vector<std::byte> payload(12 + 8);
  const ConfigHeader header{.offset = 0xffff'fff0, .bytes = 8, .flags = 0};
  std::memcpy(payload.data(), &header, sizeof(header));
  EXPECT_EQ(ask(Request::set_config, std::span<const std::byte>(payload)), 1U) << "offset + size wraps";
  const ConfigHeader longer{.offset = 0, .bytes = 9, .flags = 0};
  std::memcpy(payload.data(), &longer, sizeof(longer));
  EXPECT_EQ(ask(Request::set_config, std::span<const std::byte>(payload)), 1U);
  const ConfigHeader flags{.offset = 0, .bytes = 8, .flags = 2};
  std::memcpy(payload.data(), &flags, sizeof(flags));
  EXPECT_EQ(ask(Request::set_config, std::span<const std::byte>(payload)), 1U);
}

// --- dirty log

TEST_F(SessionTest, LoggingIsOnWhileBothTheLogAndTheBitAreThere) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  const UniqueFd log = make_memory(4096);
  // With LOG_SHMFD the reply comes without being asked for.
  send(Request::set_log_base, bytes_of(LogDescription{.bytes = 4096, .offset = 0}), {log.get()});
  const std::optional<Message> reply = answer();
  ASSERT_TRUE(reply);
  EXPECT_EQ(decode<std::uint64_t>(reply->payload), 0U);
  EXPECT_EQ(device.count("set_log"), 0U) << "LOG_ALL is not acknowledged yet";
  EXPECT_EQ(ask(Request::set_features, spec::kFeatureVersion1 | kBit30 | spec::kFeatureLogAll), 0U);
  EXPECT_NE(device.log, nullptr);
  const std::shared_ptr<DirtyLog> first = device.log;
  EXPECT_EQ(ask(Request::set_log_base, LogDescription{.bytes = 4096, .offset = 0}, {log.get()}), 0U);
  EXPECT_NE(device.log, first) << "a new log replaces the old one";
  EXPECT_EQ(ask(Request::set_features, spec::kFeatureVersion1 | kBit30), 0U);
  EXPECT_EQ(device.log, nullptr);
  EXPECT_EQ(device.count("set_features"), 1U) << "only the log changed";
}

// A front-end may know what it does; but a migration that loses pages is worth a line.
TEST_F(SessionTest, LogThatIsTooSmallForTheMemoryIsWarnedOf) {
  connect();
  negotiate();
  give_memory();
  const UniqueFd log = make_memory(4096);
  const auto warns = [&](std::uint64_t bytes) {
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    EXPECT_EQ(ask(Request::set_log_base, LogDescription{.bytes = bytes, .offset = 0}, {log.get()}), 0U);
    return testing::internal::GetCapturedStderr() + testing::internal::GetCapturedStdout();
  };
  EXPECT_THAT(warns(1), testing::HasSubstr("what lies beyond isn't logged"));
  EXPECT_THAT(warns(4096), testing::Not(testing::HasSubstr("what lies beyond")));
}

TEST_F(SessionTest, LogThatItsFileCannotHoldIsRefused) {
  connect();
  negotiate();
  const UniqueFd log = make_memory(4096);
  EXPECT_EQ(ask(Request::set_log_base, LogDescription{.bytes = 8192, .offset = 0}, {log.get()}), 1U);
  EXPECT_EQ(ask(Request::set_log_base, LogDescription{.bytes = 4096, .offset = ~0ULL}, {log.get()}), 1U);
  EXPECT_EQ(ask(Request::set_log_base, LogDescription{.bytes = 4096, .offset = 0}), 1U) << "no fd";
  EXPECT_FALSE(ended);
}

// --- in-flight region

constexpr InflightDescription inflight_of(std::uint16_t queues, std::uint16_t size, std::uint64_t bytes = 0) {
  return {.mmap_bytes = bytes, .mmap_offset = 0, .queue_count = queues, .queue_size = size};
}

TEST(InflightRegion, SizeOfOneQueueIsTheSpecifications) {
  EXPECT_EQ(InflightQueue::bytes_per_queue(128, false), (16 + 128 * 16 + 63) / 64 * 64);
  EXPECT_EQ(InflightQueue::bytes_per_queue(128, true), (32 + 128 * 32 + 63) / 64 * 64);
  EXPECT_EQ(InflightQueue::bytes_per_queue(1, false), 64U);
}

TEST(InflightRegion, WhatItsFileCannotHoldIsNamed) {
  const ForeignFd file(make_memory(4096));
  InflightDescription beyond = inflight_of(1, 128, 4096);
  beyond.mmap_offset = 4096;
  const auto refused = adopt_inflight(file, beyond, false, {.queue_count_max = 1, .queue_size_max = 128});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "in-flight region of 2112 bytes starts at offset 4096 of a file that has only 4096 bytes");
}

TEST_F(SessionTest, InflightRegionIsMadeSealedAndGoesToTheRings) {
  connect();
  negotiate();
  give_memory();
  send(Request::get_inflight_fd, bytes_of(inflight_of(4, 256)));
  std::optional<Message> reply = answer();
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->fds.size(), 1U);
  const InflightDescription description = *decode<InflightDescription>(reply->payload);
  EXPECT_EQ(description.mmap_bytes, 4 * InflightQueue::bytes_per_queue(256, false));
  EXPECT_EQ(::ftruncate(reply->fds[0].get(), 0), -1) << "the front-end must not be able to truncate it";
  EXPECT_EQ(ask(Request::set_inflight_fd, description, {reply->fds[0].get()}), 0U);
  start_ring(0);
  EXPECT_THAT(device.calls.back(), ::testing::EndsWith("inflight"));
}

// cases/net CVE-2021-3839
TEST_F(SessionTest, InflightNumbersOutOfRangeAreRefused) {
  connect();
  negotiate();
  const UniqueFd region = make_memory(1U << 20U);
  const std::uint64_t enough = 1U << 20U;
  const std::size_t before = count_open_fds();
  for (const InflightDescription& bad :
       {inflight_of(0, 128, enough), inflight_of(5, 128, enough), inflight_of(65535, 128, enough), inflight_of(1, 0, enough),
        inflight_of(1, 1025, enough), inflight_of(4, 128, 1),
        inflight_of(1, 128, InflightQueue::bytes_per_queue(128, false) - 1)}) {
    EXPECT_EQ(ask(Request::set_inflight_fd, bad, {region.get()}), 1U) << bad.queue_count << " " << bad.queue_size;
    EXPECT_FALSE(ended);
  }
  InflightDescription beyond = inflight_of(4, 128, enough);
  beyond.mmap_offset = enough;
  EXPECT_EQ(ask(Request::set_inflight_fd, beyond, {region.get()}), 1U);
  EXPECT_EQ(count_open_fds(), before);
  for (const InflightDescription& bad : {inflight_of(0, 128), inflight_of(5, 128), inflight_of(65535, 128)}) {
    send(Request::get_inflight_fd, bytes_of(bad));
    const std::optional<Message> reply = answer();
    ASSERT_TRUE(reply);
    EXPECT_EQ(decode<InflightDescription>(reply->payload)->mmap_bytes, 0U);
    EXPECT_TRUE(reply->fds.empty());
  }
}

// CVE-2020-10726, CVE-2022-0669
TEST_F(SessionTest, RepeatedInflightRequestsLeakNothing) {
  connect();
  negotiate();
  send(Request::get_inflight_fd, bytes_of(inflight_of(4, 256)));
  ASSERT_TRUE(answer());
  const std::size_t before = count_open_fds();
  for (int i = 0; i < 1000; ++i) {
    send(Request::get_inflight_fd, bytes_of(inflight_of(4, 256)),
         i % 2 == 0 ? std::vector<int>{} : std::vector{memory.get()});
    ASSERT_TRUE(answer()) << i;
  }
  EXPECT_EQ(count_open_fds(), before);
}

// --- owner, reset, status

// cases/net L25
TEST_F(SessionTest, ResetOwnerKeepsTheState) {
  connect();
  negotiate();
  give_memory();
  describe_ring(0);
  EXPECT_EQ(ask(Request::reset_owner, std::span<const std::byte>{}), 0U);
  give_fd(Request::set_vring_kick, 0);
  EXPECT_EQ(device.count("start 0 size=256"), 1U);
  EXPECT_EQ(device.count("reset"), 0U);
}

TEST_F(SessionTest, ResetDeviceForgetsTheRingsAndKeepsTheMemory) {
  connect();
  negotiate();
  give_memory();
  start_ring(0);
  EXPECT_EQ(ask(Request::reset_device, std::span<const std::byte>{}), 0U);
  EXPECT_EQ(device.count("reset"), 1U);
  give_fd(Request::set_vring_kick, 0);
  EXPECT_EQ(device.count("start"), 1U) << "the ring has neither size nor addresses any more";
  send(Request::set_features, bytes_of(spec::kFeatureVersion1 | kBit30));
  start_ring(0);
  EXPECT_EQ(device.count("start"), 2U) << "the memory table is the connection's";
}

TEST_F(SessionTest, StatusIsKeptAndZeroResets) {
  connect();
  negotiate();
  EXPECT_EQ(get(Request::get_status), 0U);
  EXPECT_EQ(ask(Request::set_status, std::uint64_t{0xf}), 0U);
  EXPECT_EQ(get(Request::get_status), 0xfU);
  EXPECT_EQ(ask(Request::set_status, std::uint64_t{0x100}), 1U);
  EXPECT_EQ(ask(Request::set_status, std::uint64_t{0}), 0U);
  EXPECT_EQ(get(Request::get_status), 0U);
  EXPECT_EQ(device.count("reset"), 1U);
}

// --- hostile front-ends

// cases/blk 64
TEST_F(SessionTest, EveryIdInEveryStateIsAnsweredOrEndsOnlyItsSession) {
  for (int state = 0; state < 5; ++state) {
    for (std::uint32_t id = 0; id <= 255; ++id) {
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, std::size_t{40}}) {
        SCOPED_TRACE(fmt::format("state {} id {} payload {}", state, id, bytes));
        connect();
        if (state > 0) {
          negotiate();
        }
        if (state > 1) {
          give_memory();
        }
        if (state > 2) {
          start_ring(0);
        }
        if (state > 3) {
          static_cast<void>(stop_ring(0));
        }
        static_cast<void>(front->send(id, kVersion | kFlagNeedReply, std::vector<std::byte>(bytes)));
        const bool answered = answer().has_value();
        // SET_PROTOCOL_FEATURES of 0 takes REPLY_ACK back, so that it has no answer itself.
        const bool revokes = Request{id} == Request::set_protocol_features && bytes == 8;
        if (state > 0 && !revokes) {
          ASSERT_TRUE(answered || ended) << "neither an answer nor an end";
        }
        finish();
        ASSERT_EQ(device.count("attach"), device.count("detach"));
        device.calls.clear();
      }
    }
  }
}

TEST_F(SessionTest, PayloadsOneByteOffAreRefused) {
  connect();
  negotiate();
  struct {
    Request request;
    std::size_t bytes;
  } const cases[] = {{Request::set_features, 8},     {Request::set_protocol_features, 8},
                     {Request::set_vring_num, 8},    {Request::set_vring_addr, 40},
                     {Request::set_vring_base, 8},   {Request::set_vring_kick, 8},
                     {Request::set_vring_call, 8},   {Request::set_vring_err, 8},
                     {Request::set_vring_enable, 8}, {Request::set_status, 8},
                     {Request::vring_kick, 8},       {Request::rem_mem_reg, 40}};
  for (const auto& test : cases) {
    for (const std::size_t bytes : {test.bytes - 1, test.bytes + 1}) {
      EXPECT_EQ(ask(test.request, std::span<const std::byte>(std::vector<std::byte>(bytes))), 1U)
          << to_string(test.request) << " " << bytes;
    }
  }
  EXPECT_EQ(session->faults(Fault::bad_size), 2 * std::size(cases));
}

TEST_F(SessionTest, StrayFdsOnEveryMessageAreClosed) {
  const UniqueFd event = make_event();
  connect();
  negotiate();
  finish();
  const std::size_t before = count_open_fds();
  for (std::uint32_t id = 1; id <= 50; ++id) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{8}}) {
      connect();
      negotiate();
      static_cast<void>(
          front->send(id, kVersion | kFlagNeedReply, std::vector<std::byte>(8), std::vector<int>(count, event.get())));
      step();
      finish();
      ASSERT_EQ(count_open_fds(), before) << "message " << id << " with " << count;
    }
  }
}

// One whose close() waits is followed by as many as may be open, and by no more: in this session and in the next.
TEST_F(SessionTest, DescriptorsThatCannotBeClosedAreBounded) {
  std::binary_semaphore may_close{0};
  holdings = ForeignHoldings::create();
  holdings->let_go(ForeignHoldings::Lane::unbounded, [&] { may_close.acquire(); });
  const UniqueFd event = make_event();
  for (int round = 0; round < 2; ++round) {
    connect();
    negotiate();
    for (std::uint32_t i = 0; i < 2 * limits::kForeignFdsMax && !ended; ++i) {
      send(Request::set_vring_call, bytes_of(std::uint64_t{0}), {event.get()});
    }
    ASSERT_TRUE(ended);
    EXPECT_THAT(*ended, HasSubstr("descriptors of this front-end are open or still being closed"));
    EXPECT_LE(holdings->descriptors(), limits::kForeignFdsMax + 16);
    finish();
  }
  may_close.release();
  static_cast<void>(test::soon([&] { return holdings->descriptors() == 0; }, std::chrono::seconds(10)));
  EXPECT_EQ(holdings->descriptors(), 0U);
  connect();
  negotiate();
  EXPECT_EQ(ask(Request::set_vring_call, bytes_of(std::uint64_t{0}), {event.get()}), 0U);
  finish();
  holdings = nullptr;
}

// What others take must not end a session that takes nothing more.
TEST_F(SessionTest, OnlyNewDescriptorsAreTooMany) {
  const test::OpenFilesLimit limit(1024);
  if (!limit.set()) {
    GTEST_SKIP() << "the hard limit is too low";
  }
  holdings = ForeignHoldings::create();
  connect();
  negotiate();
  const std::uint32_t own = holdings->descriptors();
  while (holdings->descriptors() <= holdings->descriptors_max()) {
    holdings->count_descriptor();
  }
  const std::uint32_t others = holdings->descriptors() - own;
  EXPECT_TRUE(get(Request::get_features));
  EXPECT_FALSE(ended);
  const UniqueFd event = make_event();
  send(Request::set_vring_call, bytes_of(std::uint64_t{0}), {event.get()});
  ASSERT_TRUE(ended);
  EXPECT_THAT(*ended, HasSubstr("descriptors of this front-end are open or still being closed"));
  finish();
  EXPECT_TRUE(test::soon([&] { return holdings->descriptors() == others; }, std::chrono::seconds(10)));
  holdings = nullptr;
}

TEST_F(SessionTest, ManyRingsThatWereHeldUpAreOneFault) {
  connect();
  negotiate();
  device.hold = true;
  FrontEndPort* const port = device.port;
  for (int ring = 0; ring < 64; ++ring) {
    port->give_up("held up");
  }
  EXPECT_EQ(session->faults(Fault::bad_fds), 1U);
  finish();
}

// The channel finds it out when there is room in its socket again, with nobody asking it to send.
TEST_F(SessionTest, HarmThatTheChannelFindsWhenItGoesOnEndsTheSession) {
  holdings = ForeignHoldings::create();
  connect();
  negotiate(spec::kFeatureVersion1 | spec::kFeatureProtocolFeatures, kAllProtocolFeatures | kProtocolInbandNotifications);
  auto [ours, theirs] = make_socket_pair();
  const int small = 1;
  ASSERT_EQ(::setsockopt(theirs.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  send(Request::set_backend_req_fd, {}, {theirs.get()});
  std::array<std::byte, 256> filling{};
  while (::send(theirs.get(), filling.data(), filling.size(), MSG_DONTWAIT) > 0) {
  }
  ASSERT_TRUE(device.port->send_vring_call(0));
  step();
  ASSERT_FALSE(ended);
  holdings->note_harm();
  while (::recv(ours.get(), filling.data(), filling.size(), MSG_DONTWAIT) > 0) {
  }
  step();
  ASSERT_TRUE(ended);
  EXPECT_THAT(*ended, HasSubstr("held up our threads"));
  finish();
  holdings = nullptr;
}

// A socket with so many watches that whatever is sent or received at its other end wakes a multitude.
class Multitude {
 public:
  explicit Multitude(int socket) {
    constexpr std::size_t kEpolls = 200, kCopies = 200;
    for (std::size_t i = 0; i < kCopies; ++i) {
      copies_.emplace_back(::fcntl(socket, F_DUPFD_CLOEXEC, 0));
    }
    for (std::size_t i = 0; i < kEpolls && code_ == 0; ++i) {
      epolls_.emplace_back(::epoll_create1(EPOLL_CLOEXEC));
      for (const UniqueFd& copy : copies_) {
        epoll_event wanted{};
        wanted.events = EPOLLIN | EPOLLOUT | EPOLLET;
        if (::epoll_ctl(epolls_.back().get(), EPOLL_CTL_ADD, copy.get(), &wanted) != 0) {
          code_ = errno;
          break;
        }
      }
    }
  }
  // Not 0: there are too few descriptors or epoll watches here.
  [[nodiscard]] int code() const { return code_; }

 private:
  std::vector<UniqueFd> copies_;
  std::vector<UniqueFd> epolls_;
  int code_ = 0;
};

TEST_F(SessionTest, RepliesThatWakeAMultitudeEndTheSession) {
  holdings = ForeignHoldings::create();
  connect();
  negotiate();
  std::optional<Multitude> multitude(front->socket());
  if (multitude->code() != 0) {
    GTEST_SKIP() << "too few descriptors or epoll watches here: " << multitude->code();
  }
  for (int i = 0; i < 2000 && !ended; ++i) {
    static_cast<void>(get(Request::get_queue_num));
  }
  ASSERT_TRUE(ended);
  EXPECT_THAT(*ended, HasSubstr("held up our threads"));
  EXPECT_TRUE(holdings->harmed()) << "its endpoint is to hear of it";
  multitude.reset();
  finish();
  EXPECT_TRUE(test::soon([&] { return holdings->descriptors() == 0; }, std::chrono::seconds(10)));
  holdings = nullptr;
}

// The look at the socket that finds nothing more is the last one, perhaps for ever.
TEST_F(SessionTest, HarmByTheLastReadEndsTheSessionAtOnce) {
  holdings = ForeignHoldings::create();
  connect();
  negotiate();
  std::optional<Multitude> multitude(front->socket());
  if (multitude->code() != 0) {
    GTEST_SKIP() << "too few descriptors or epoll watches here: " << multitude->code();
  }
  const std::vector<std::byte> bytes =
      encode(static_cast<std::uint32_t>(Request::set_mem_table), kVersion, std::vector<std::byte>(4000));
  for (std::size_t i = 0; i < bytes.size() && !holdings->harmed(); ++i) {
    static_cast<void>(send_some(front->socket(), std::span(bytes).subspan(i, 1), {}));
    step();
  }
  ASSERT_TRUE(holdings->harmed());
  ASSERT_TRUE(ended);
  EXPECT_THAT(*ended, HasSubstr("held up our threads"));
  EXPECT_EQ(session->faults(Fault::bad_fds), 1U);
  multitude.reset();
  finish();
  holdings = nullptr;
}

// Descriptors may come beside each byte of a message that never ends.
TEST_F(SessionTest, UnfinishedMessageBringsNoMoreDescriptorsThanAWholeOne) {
  holdings = ForeignHoldings::create();
  const UniqueFd event = make_event();
  connect();
  negotiate();
  const std::vector<std::byte> bytes =
      encode(static_cast<std::uint32_t>(Request::set_mem_table), kVersion, std::vector<std::byte>(4000));
  const std::vector<int> fds(limits::kFdsPerMessageMax, event.get());
  for (std::size_t i = 0; i < 100 && !ended; ++i) {
    static_cast<void>(send_some(front->socket(), std::span(bytes).subspan(i, 1), fds));
    step();
  }
  EXPECT_TRUE(ended);
  EXPECT_LE(holdings->descriptors(), 3 * limits::kFdsPerMessageMax);
  finish();
  EXPECT_TRUE(test::soon([&] { return holdings->descriptors() == 0; }, std::chrono::seconds(10)));
  holdings = nullptr;
}

TEST_F(SessionTest, HalfAMessageDelaysNobodyAndIsFinishedLater) {
  connect();
  SessionBench other;
  other.connect();
  const std::vector<std::byte> bytes = encode(static_cast<std::uint32_t>(Request::get_features), kVersion, {});
  for (const std::byte byte : bytes) {
    EXPECT_FALSE(answer());
    EXPECT_TRUE(other.get(Request::get_features));
    ASSERT_TRUE(front->send_bytes(std::span(&byte, 1)));
  }
  EXPECT_TRUE(answer());
}

TEST_F(SessionTest, BrokenFramingEndsTheSession) {
  connect();
  ASSERT_TRUE(front->send_bytes(std::vector<std::byte>(12, std::byte{0xee})));
  step();
  ASSERT_TRUE(ended);
  EXPECT_EQ(session->faults(Fault::framing), 1U);
}

TEST_F(SessionTest, ReplyInsteadOfRequestEndsTheSession) {
  connect();
  negotiate();
  send(Request::get_features, {}, {}, kVersion | kFlagReply);
  ASSERT_TRUE(ended);
  EXPECT_EQ(session->faults(Fault::framing), 1U);
}

TEST_F(SessionTest, FrontEndThatNeverReadsItsRepliesStopsOnlyItself) {
  connect();
  negotiate();
  const std::vector<std::byte> request = encode(static_cast<std::uint32_t>(Request::get_features), kVersion, {});
  std::uint64_t sent = 0;
  int refused = 0;
  while (refused < 3) {
    const Result<std::size_t> taken = send_some(front->socket(), request, {});
    ASSERT_TRUE(taken);
    if (*taken == 0) {
      ++refused;
      step();
    } else {
      ASSERT_EQ(*taken, request.size());
      ++sent;
    }
  }
  EXPECT_LT(session->messages(), sent) << "reading has stopped, since writing can't go on";
  // As soon as the replies are read, all of them come.
  std::uint64_t answers = 0;
  while (answer()) {
    ++answers;
  }
  EXPECT_EQ(answers, sent);
  EXPECT_FALSE(ended);
}

TEST_F(SessionTest, FloodOfMessagesIsTakenInPortionsOfOneTurn) {
  connect();
  negotiate();
  const std::uint64_t before = session->messages();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(front->send(static_cast<std::uint32_t>(Request::set_owner), kVersion, {}));
  }
  loop->poll(clock_now());
  EXPECT_LT(session->messages() - before, 100U);
  step();
  EXPECT_EQ(session->messages() - before, 100U);
}

// cases/blk 57, cases/net L13
TEST_F(SessionTest, ThousandSessionsLeaveNothingBehind) {
  connect();
  negotiate();
  finish();
  const std::size_t before = count_open_fds();
  for (int i = 0; i < 1000; ++i) {
    connect();
    negotiate();
    give_memory();
    start_ring(0);
    if (i % 3 == 0) {
      ASSERT_TRUE(front->send_bytes(std::vector<std::byte>(5)));
    }
    ASSERT_TRUE(finish());
  }
  EXPECT_EQ(count_open_fds(), before);
  EXPECT_EQ(device.count("attach"), 1001U);
  EXPECT_EQ(device.count("detach"), 1001U);
}

}  // namespace
}  // namespace ringway::vhost_user
