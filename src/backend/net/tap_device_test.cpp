#include "backend/net/tap_device.hpp"

#include <gmock/gmock.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include "backend/net/test_tap.hpp"

namespace ringway {
namespace {

using test::in_child;
using test::run;
using testing::HasSubstr;

constexpr unsigned kNobody = 65534;

class TapDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::enter_own_network().empty()) {
      GTEST_SKIP() << test::enter_own_network();
    }
  }
};

void expect_error(const TapOptions& options, const std::string& text) {
  const auto device = TapDevice::open(options);
  ASSERT_FALSE(device.has_value()) << text;
  EXPECT_THAT(device.error().message, HasSubstr(text));
}

void become_nobody() {
  ASSERT_EQ(::setgid(kNobody), 0);
  ASSERT_EQ(::setuid(kNobody), 0);
}

// A queue as a VMM or a script would open it.
int open_queue(const std::string& name, int flags) {
  const int fd = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = static_cast<short>(flags);
  EXPECT_EQ(::ioctl(fd, TUNSETIFF, &request), 0) << std::strerror(errno);
  return fd;
}
constexpr int kTapFlags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;

std::uint32_t flags_of(int fd) {
  ifreq request{};
  EXPECT_EQ(::ioctl(fd, TUNGETIFF, &request), 0);
  return static_cast<unsigned short>(request.ifr_flags);
}

TEST(TapOptions, NonsenseIsRefusedBeforeAnythingIsOpened) {
  expect_error({}, "needs the name");
  expect_error({.name = "sixteen-bytes-xy"}, "too long");
  expect_error({.name = "a/b"}, "can't be the name");
  expect_error({.name = "tap%d"}, "can't be the name");
  expect_error({.name = "."}, "can't be the name");
  expect_error({.name = "t0", .pairs = 0}, "can't have 0 queues");
  expect_error({.name = "t0", .pairs = 128}, "1 to 127");
  expect_error({.name = "t0", .fds = {3}}, "not by both");
  expect_error({.fds = {3, 4}, .pairs = 3}, "3 pairs need as many descriptors");
  expect_error({.name = "t0", .mtu = 67}, "68 to 65521");
  expect_error({.name = "t0", .mtu = 65522}, "68 to 65521");
}

TEST(TapOffloads, OnlyWhatHasAllThatItNeedsIsAskedOfTheKernel) {
  EXPECT_EQ(to_tun_offloads(0), 0U);
  EXPECT_EQ(to_tun_offloads(spec::kNetGuestTso4 | spec::kNetGuestUfo), 0U);
  EXPECT_EQ(to_tun_offloads(spec::kNetGuestCsum | spec::kNetGuestEcn), unsigned{TUN_F_CSUM});
  EXPECT_EQ(to_tun_offloads(spec::kNetGuestCsum | spec::kNetGuestTso6 | spec::kNetGuestEcn),
            unsigned{TUN_F_CSUM | TUN_F_TSO6 | TUN_F_TSO_ECN});
  EXPECT_EQ(to_tun_offloads(spec::kNetGuestCsum | spec::kNetGuestUso4), unsigned{TUN_F_CSUM});
  EXPECT_EQ(to_tun_offloads(spec::kNetGuestCsum | spec::kNetGuestUso4 | spec::kNetGuestUso6), TUN_F_CSUM | 0x60U);
  EXPECT_EQ(to_tun_offloads(spec::kNetGuestCsum | spec::kNetGuestTso4 | spec::kNetGuestUfo),
            unsigned{TUN_F_CSUM | TUN_F_TSO4 | TUN_F_UFO});
}

TEST_F(TapDeviceTest, AnInterfaceThatIsMissingIsMadeAndGoesAgain) {
  {
    const auto device = TapDevice::open({.name = "made0", .pairs = 2, .mtu = 9000});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    EXPECT_TRUE((*device)->abilities().made);
    EXPECT_TRUE((*device)->abilities().multi_queue);
    EXPECT_TRUE((*device)->takes_all());
    EXPECT_EQ((*device)->pairs(), 2U);
    const auto link = (*device)->link();
    ASSERT_TRUE(link.has_value()) << link.error().message;
    EXPECT_TRUE(link->up);
    EXPECT_EQ(link->mtu, 9000U);
    EXPECT_EQ(flags_of((*device)->fd(0)) & IFF_PERSIST, 0U);
  }
  EXPECT_EQ(::if_nametoindex("made0"), 0U);
}

TEST_F(TapDeviceTest, LinkAndMtuFollowTheInterface) {
  const auto device = TapDevice::open({.name = "link0"});
  ASSERT_TRUE(device.has_value()) << device.error().message;
  ASSERT_TRUE(run("ip link set link0 down"));
  EXPECT_FALSE((*device)->link()->up);
  ASSERT_TRUE(run("ip link set link0 up mtu 1400"));
  EXPECT_TRUE((*device)->link()->up);
  EXPECT_EQ((*device)->link()->mtu, 1400U);
  ASSERT_TRUE((*device)->set_mtu(kTapMtuMax).has_value());
  ASSERT_TRUE((*device)->set_mtu(kTapMtuMin).has_value());
  EXPECT_EQ((*device)->link()->mtu, kTapMtuMin);
  EXPECT_FALSE((*device)->set_mtu(kTapMtuMax + 1).has_value());
  ASSERT_TRUE(run("ip link set link0 down && ip link set link0 name other0"));
  EXPECT_TRUE((*device)->link().has_value()) << "another name is the same interface";
  ASSERT_TRUE(run("ip link del other0"));
  const auto gone = (*device)->link();
  ASSERT_FALSE(gone.has_value());
  EXPECT_THAT(gone.error().message, HasSubstr("has gone"));
}

TEST_F(TapDeviceTest, AnInterfaceOfSomeoneElseStaysAsItIs) {
  ASSERT_TRUE(run("ip tuntap add dev keep0 mode tap multi_queue"));
  {
    const auto device = TapDevice::open({.name = "keep0", .pairs = 3});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    EXPECT_FALSE((*device)->abilities().made);
    EXPECT_FALSE((*device)->link()->up) << "nobody has set it up, and it isn't ours";
    EXPECT_NE(flags_of((*device)->fd(0)) & IFF_PERSIST, 0U);
  }
  EXPECT_NE(::if_nametoindex("keep0"), 0U);
  ASSERT_TRUE(run("ip link del keep0"));
}

TEST_F(TapDeviceTest, OneQueueServesOnePair) {
  ASSERT_TRUE(run("ip tuntap add dev single0 mode tap"));
  expect_error({.name = "single0", .pairs = 2}, "made with one queue");
  const auto device = TapDevice::open({.name = "single0"});
  ASSERT_TRUE(device.has_value()) << device.error().message;
  EXPECT_FALSE((*device)->abilities().multi_queue);
  expect_error({.name = "single0"}, "in use by another process");
  ASSERT_TRUE(run("ip link del single0"));
}

TEST_F(TapDeviceTest, OtherKindsAreRefusedByName) {
  expect_error({.name = "lo"}, "is no tap");
  ASSERT_TRUE(run("ip tuntap add dev tun0 mode tun"));
  expect_error({.name = "tun0"}, "but a tun");
  ASSERT_TRUE(run("ip link del tun0"));
}

TEST_F(TapDeviceTest, ThereAreOnlySoManyQueues) {
  const auto first = TapDevice::open({.name = "many0", .pairs = 127});
  const auto second = TapDevice::open({.name = "many0", .pairs = 127});
  ASSERT_TRUE(first.has_value() && second.has_value());
  expect_error({.name = "many0", .pairs = 3}, "has no room for queue 2");
}

TEST_F(TapDeviceTest, OrdinaryUsersNeedAPreparedTap) {
  ASSERT_TRUE(run("ip tuntap add dev mine0 mode tap user 65534 multi_queue && ip link set mine0 up mtu 1600"));
  ASSERT_TRUE(run("ip tuntap add dev theirs0 mode tap user 1 multi_queue"));
  ASSERT_TRUE(run("ip link add br0 type bridge"));
  in_child([] {
    become_nobody();
    const auto device = TapDevice::open({.name = "mine0", .pairs = 2, .mtu = 1600});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    EXPECT_NE((*device)->abilities().guest_offloads, 0U);
    EXPECT_TRUE((*device)->link()->up);
    expect_error({.name = "mine0", .mtu = 1500}, "ip link set mine0 mtu 1500");
    expect_error({.name = "theirs0"}, "belongs to another user");
    expect_error({.name = "missing0", .pairs = 2}, "ip tuntap add dev missing0 mode tap user 65534 multi_queue");
    expect_error({.name = "mine0", .bridge = "br0"}, "ip link set mine0 master br0");
  });
  ASSERT_TRUE(run("ip link set mine0 master br0"));
  in_child([] {
    become_nobody();
    EXPECT_TRUE(TapDevice::open({.name = "mine0", .bridge = "br0"}).has_value()) << "it is there already";
  });
  ASSERT_TRUE(run("ip link del mine0 && ip link del theirs0 && ip link del br0"));
}

TEST_F(TapDeviceTest, ItBecomesAPortOfABridge) {
  ASSERT_TRUE(run("ip link add br0 type bridge && ip link add br1 type bridge"));
  const auto device = TapDevice::open({.name = "port0", .bridge = "br0"});
  ASSERT_TRUE(device.has_value()) << device.error().message;
  EXPECT_TRUE(run("ip -o link show master br0 | grep -q port0"));
  EXPECT_TRUE(TapDevice::open({.name = "port0", .bridge = "br0"}).has_value());
  expect_error({.name = "port0", .bridge = "br1"}, "belongs to br0");
  expect_error({.name = "port1", .bridge = "br9"}, "there is no bridge br9");
  expect_error({.name = "port1", .bridge = "lo"}, "lo is no bridge");
  EXPECT_EQ(::if_nametoindex("port1"), 0U) << "what was made for nothing has gone";
  ASSERT_TRUE(run("ip link del br0 && ip link del br1"));
}

TEST_F(TapDeviceTest, DescriptorsThatWereGivenAreTakenOver) {
  const int first = open_queue("fds0", kTapFlags | IFF_MULTI_QUEUE);
  const int second = open_queue("fds0", kTapFlags | IFF_MULTI_QUEUE);
  expect_error({.fds = {first, first}, .pairs = 2}, "given twice");
  expect_error({.fds = {first, second}, .pairs = 2, .bridge = "br9"}, "no bridge br9");
  {
    const auto device = TapDevice::open({.fds = {first, second}});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    EXPECT_EQ((*device)->name(), "fds0");
    EXPECT_EQ((*device)->pairs(), 2U);
    EXPECT_NE(::fcntl((*device)->fd(1), F_GETFL) & O_NONBLOCK, 0);
    EXPECT_EQ(::fcntl(first, F_GETFD), -1) << "theirs are closed";
  }
  EXPECT_EQ(::if_nametoindex("fds0"), 0U);
}

TEST_F(TapDeviceTest, DescriptorsOfOtherThingsAreRefused) {
  const UniqueFd zero(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  const UniqueFd unattached(::open("/dev/net/tun", O_RDWR | O_CLOEXEC));
  const UniqueFd plain(open_queue("plain0", IFF_TAP | IFF_NO_PI));
  const UniqueFd one(open_queue("one0", kTapFlags | IFF_MULTI_QUEUE));
  const UniqueFd two(open_queue("two0", kTapFlags | IFF_MULTI_QUEUE));
  expect_error({.fds = {9999}}, "is not open");
  expect_error({.fds = {zero.get()}}, "is no tap");
  expect_error({.fds = {unattached.get()}}, "attached to no interface");
  expect_error({.fds = {plain.get()}}, "IFF_VNET_HDR are needed");
  expect_error({.fds = {one.get(), two.get()}}, "different interfaces (one0 and two0)");
  EXPECT_GE(::fcntl(one.get(), F_GETFD), 0) << "they stay the caller's";
}

TEST_F(TapDeviceTest, ADescriptorFromAnotherNamespaceServesWithoutItsName) {
  const int queue = open_queue("far0", kTapFlags | IFF_MULTI_QUEUE);
  in_child([queue] {
    ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
    expect_error({.fds = {queue}, .mtu = 1500}, "another network namespace");
    const auto device = TapDevice::open({.fds = {queue}});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    EXPECT_FALSE((*device)->link().has_value());
    EXPECT_TRUE((*device)->set_guest(spec::kNetGuestCsum, 12).has_value());
  });
  ::close(queue);
}

TEST_F(TapDeviceTest, OffloadsAndHeaderAreWhatTheGuestNegotiated) {
  const auto device = TapDevice::open({.name = "off0"});
  ASSERT_TRUE(device.has_value()) << device.error().message;
  constexpr std::uint64_t kTso = spec::kNetGuestCsum | spec::kNetGuestTso4 | spec::kNetGuestTso6 | spec::kNetGuestEcn;
  EXPECT_EQ((*device)->abilities().guest_offloads & kTso, kTso);
  EXPECT_NE((*device)->abilities().host_offloads & spec::kNetHostTso6, 0U);
  for (const int bytes : {10, 12, 20}) {
    ASSERT_TRUE((*device)->set_guest((*device)->abilities().guest_offloads, static_cast<std::size_t>(bytes)).has_value());
    int now = 0;
    ASSERT_EQ(::ioctl((*device)->fd(0), TUNGETVNETHDRSZ, &now), 0);
    EXPECT_EQ(now, bytes);
  }
  // What is told twice is told to the kernel once: what somebody else does meanwhile stays.
  int other = 10;
  ASSERT_EQ(::ioctl((*device)->fd(0), TUNSETVNETHDRSZ, &other), 0);
  ASSERT_TRUE((*device)->set_guest((*device)->abilities().guest_offloads, 20).has_value());
  ASSERT_EQ(::ioctl((*device)->fd(0), TUNGETVNETHDRSZ, &other), 0);
  EXPECT_EQ(other, 10);
}

}  // namespace
}  // namespace ringway
