// Sessions: who is answered, and what a front-end meets while the back-end is restarted.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>

#include "tests/conformance/support.hpp"
#include "vhost_user/codec.hpp"

namespace ringway::conformance {
namespace {

using vhost_user::bytes_of;
using vhost_user::FrontEnd;
using vhost_user::Request;

template <typename T>
std::vector<std::byte> copy_of(const T& value) {
  const std::span<const std::byte> bytes = bytes_of(value);
  return {bytes.begin(), bytes.end()};
}

// Each message asks for an answer, and gets one: its own, or an acknowledgement, never both and never none. Also if the
// front-end has taken REPLY_ACK without asking what is offered.
TEST(Session, Row041_NeedReplyGetsExactlyOneAnswer) {
  struct Case {
    Request request;
    std::vector<std::byte> payload;
    bool with_fd;
  };
  const vhost_user::VringState state{.index = 0, .num = 0};
  const vhost_user::VringState size{.index = 0, .num = 64};
  const vhost_user::VringAddress address{.index = 0, .flags = 0, .descriptor = 0, .used = 0, .available = 0, .log = 0};
  const vhost_user::MemoryRegion region{
      .guest_address = 0, .bytes = 4096, .user_address = std::uint64_t{1} << 32U, .mmap_offset = 0};
  struct {
    std::uint64_t padding = 0;
    vhost_user::MemoryRegion region;
  } const slot{.region = region};
  const std::uint64_t no_fd = vhost_user::kVringNoFd;
  std::vector<std::byte> config(12 + 4);
  config[4] = std::byte{4};
  const std::vector<Case> cases = {
      {Request::get_features, {}, false},
      {Request::set_features, copy_of(spec::kFeatureVersion1 | spec::kFeatureProtocolFeatures), false},
      {Request::set_owner, {}, false},
      {Request::reset_owner, {}, false},
      {Request::set_mem_table, copy_of(std::uint64_t{0}), false},
      {Request::add_mem_reg, copy_of(slot), true},
      {Request::rem_mem_reg, copy_of(slot), false},
      {Request::set_log_base, copy_of(vhost_user::LogDescription{.bytes = 4096, .offset = 0}), true},
      {Request::set_log_fd, {}, true},
      {Request::set_vring_num, copy_of(size), false},
      {Request::set_vring_num, copy_of(vhost_user::VringState{.index = 0, .num = 63}), false},  // refused
      {Request::set_vring_addr, copy_of(address), false},
      {Request::set_vring_base, copy_of(state), false},
      {Request::get_vring_base, copy_of(state), false},
      {Request::set_vring_call, copy_of(no_fd), false},
      {Request::set_vring_err, copy_of(no_fd), false},
      {Request::set_vring_kick, copy_of(no_fd), false},
      {Request::get_protocol_features, {}, false},
      {Request::get_queue_num, {}, false},
      {Request::set_vring_enable, copy_of(state), false},
      {Request::send_rarp, copy_of(no_fd), false},
      {Request::net_set_mtu, copy_of(no_fd), false},
      {Request::iotlb_msg, copy_of(address), false},
      {Request::set_vring_endian, copy_of(state), false},
      {Request::get_config, config, false},
      {Request::set_config, config, false},
      {Request::create_crypto_session, config, false},
      {Request::close_crypto_session, copy_of(no_fd), false},
      {Request::postcopy_advise, {}, false},
      {Request::postcopy_listen, {}, false},
      {Request::postcopy_end, {}, false},
      {Request::get_inflight_fd,
       copy_of(vhost_user::InflightDescription{.mmap_bytes = 0, .mmap_offset = 0, .queue_count = 1, .queue_size = 64}),
       false},
      {Request::gpu_set_socket, {}, true},
      {Request::vring_kick, copy_of(state), false},
      {Request::get_max_mem_slots, {}, false},
      {Request::set_status, copy_of(std::uint64_t{1}), false},
      {Request::get_status, {}, false},
      {Request::get_shared_object, config, false},
      {Request::set_device_state_fd, copy_of(state), true},
      {Request::check_device_state, {}, false},
      {Request::get_shmem_config, {}, false},
      {Request::reset_device, {}, false},
  };
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a")});
  const UniqueFd memory(memfd_create("memory", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 4096), 0);
  const int fd = memory.get();
  for (const bool asked_what_is_offered : {true, false}) {
    SCOPED_TRACE(asked_what_is_offered ? "with GET_PROTOCOL_FEATURES" : "without GET_PROTOCOL_FEATURES");
    auto front = FrontEnd::connect(directory.file("a"), kLimit);
    ASSERT_TRUE(front) << front.error().message;
    if (asked_what_is_offered) {
      ASSERT_TRUE(front->get_features());
      ASSERT_TRUE(front->get_protocol_features());
    }
    const std::uint64_t wanted = kBlkDriverProtocolFeatures | vhost_user::kProtocolLogShmfd | vhost_user::kProtocolStatus |
                                 vhost_user::kProtocolResetDevice;
    ASSERT_TRUE(front->set_protocol_features(wanted));
    for (const Case& each : cases) {
      SCOPED_TRACE(vhost_user::to_string(each.request));
      const auto id = static_cast<std::uint32_t>(each.request);
      const auto next = static_cast<std::uint32_t>(Request::get_queue_num);
      ASSERT_TRUE(front->send(id, vhost_user::kVersion | vhost_user::kFlagNeedReply, each.payload,
                              each.with_fd ? std::span(&fd, 1) : std::span<const int>{}));
      ASSERT_TRUE(front->send(next, vhost_user::kVersion, {}));
      const auto answer = front->receive(kLimit);
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ(answer->header.request, id);
      EXPECT_EQ(answer->header.flags & vhost_user::kFlagReply, vhost_user::kFlagReply);
      // The next message's answer is the next that comes.
      const auto following = front->receive(kLimit);
      ASSERT_TRUE(following) << following.error().message;
      ASSERT_EQ(following->header.request, next) << "a second answer";
    }
    // Nor did one more come of the last.
    pollfd entry{.fd = front->socket(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&entry, 1, 0), 0);
  }
}

// Front-ends that knock all the time while the back-end is restarted again and again. Whoever gets in while it serves is
// answered. Whoever gets in just before the end is hung up on at once and may knock again. Nobody is left waiting.
TEST(Session, Row057_NobodyIsAcceptedAndLeftThroughRestarts) {
  const TestDirectory directory;
  const std::string socket = directory.file("a");
  std::atomic<std::uint32_t> life{0};  // odd: the back-end serves
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> answered{0}, hung_up{0}, stuck{0}, failed_while_serving{0};
  const auto knock = [&] {
    while (!stop) {
      const std::uint32_t before = life;
      bool served = false;
      if (auto front = FrontEnd::connect(socket, Duration{})) {
        const bool sent =
            front->send(static_cast<std::uint32_t>(Request::get_features), vhost_user::kVersion, {}).has_value();
        pollfd entry{.fd = front->socket(), .events = POLLIN, .revents = 0};
        if (sent && ::poll(&entry, 1, 30'000) != 1) {
          ++stuck;
        } else if (sent && front->receive(kLimit)) {
          served = true;
          ++answered;
        } else {
          ++hung_up;
        }
      } else {
        std::this_thread::yield();
      }
      failed_while_serving += !served && before % 2 == 1 && life == before ? 1 : 0;
    }
  };
  std::vector<std::thread> knockers;
  for (int i = 0; i < 3; ++i) {
    knockers.emplace_back(knock);
  }
  constexpr int kRestarts = kTimeIsOurs ? 200 : 40;
  for (int i = 0; i < kRestarts && stuck == 0; ++i) {
    TestHost host({}, {test_disk("ram:1M", socket, "a")});
    EXPECT_TRUE(host.started()) << host.started().error().message;
    const std::uint64_t so_far = answered;
    ++life;
    EXPECT_TRUE(eventually([&] { return answered > so_far + 3; })) << "restart " << i;
    ++life;
    EXPECT_EQ(host.quit(), HostEnd::clean);
  }
  stop = true;
  for (std::thread& knocker : knockers) {
    knocker.join();
  }
  std::printf("%d restarts: %llu front-ends answered, %llu hung up on at the end of a life\n", kRestarts,
              static_cast<unsigned long long>(answered), static_cast<unsigned long long>(hung_up));
  EXPECT_EQ(stuck, 0U);
  EXPECT_EQ(failed_while_serving, 0U);
}

// A limit on the size of files (ulimit -f) is met by a guest's write. It costs that request, and nothing else.
TEST(Limits, WriteBeyondTheFileSizeLimitIsAnIoError) {
  const TestDirectory directory;
  TestHost host({}, {test_disk(directory.image("a.img", 8 << 20), directory.file("a"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_driver(directory.file("a"));
  ASSERT_NE(driver, nullptr);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  BlkDriverQueue& queue = driver->queue(0);
  const std::uint8_t beyond = transfer(queue, spec::kBlkTypeOut, (4 << 20) / spec::kSectorBytes).status;
  const std::uint8_t within = transfer(queue, spec::kBlkTypeOut, 0).status;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(beyond, spec::kBlkStatusIoErr);
  EXPECT_EQ(within, spec::kBlkStatusOk);
}

// Only what front-ends notify by is taken for a ring: a file's own file system may never answer.
TEST(Descriptors, FilesAreRefusedAsKickCallAndError) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  const auto driver = connect_driver(directory.file("a"));
  ASSERT_NE(driver, nullptr);
  const UniqueFd file(::open(directory.image("plain", 4096).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file);
  EXPECT_FALSE(driver->front_end().set_vring_call(0, file.get()));
  EXPECT_FALSE(driver->front_end().set_vring_kick(0, file.get()));
  EXPECT_FALSE(driver->front_end().set_vring_err(0, file.get()));
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
}

// Sparse memory costs its owner nothing and us address space: one front-end can't take all of it.
TEST(Limits, OneGuestCannotTakeTheAddressSpace) {
  const TestDirectory directory;
  TestHost host({}, {test_disk("ram:1M", directory.file("a"), "a"), test_disk("ram:1M", directory.file("b"), "b")});
  ASSERT_TRUE(host.started()) << host.started().error().message;
  BlkDriverOptions wanted{.socket_path = directory.file("a")};
  wanted.memory_slots = true;
  const auto hostile = connect_driver(wanted);
  ASSERT_NE(hostile, nullptr);
  const UniqueFd file(memfd_create("sparse", MFD_CLOEXEC));
  constexpr std::uint64_t kFour = 4ULL << 40U, kFrom = 1ULL << 46U;
  ASSERT_EQ(ftruncate(file.get(), kFour), 0);
  std::uint32_t taken = 0;
  while (taken < 8) {
    const std::uint64_t at = kFrom + taken * kFour;
    if (!hostile->front_end().add_mem_reg(
            {.guest_address = at, .bytes = kFour, .user_address = at, .mmap_offset = 0, .fd = file.get()})) {
      break;
    }
    ++taken;
  }
  EXPECT_LT(taken, 4U) << "16 TiB, less what the driver has already";
  const auto other = connect_driver(directory.file("b"));
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(transfer(other->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  EXPECT_EQ(transfer(hostile->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
}

}  // namespace
}  // namespace ringway::conformance
