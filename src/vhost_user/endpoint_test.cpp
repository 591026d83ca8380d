#include "vhost_user/endpoint.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/test_limit.hpp"
#include "base/test_soon.hpp"
#include "vhost_user/test_session.hpp"

namespace ringway::vhost_user {
namespace {

using ::testing::HasSubstr;

class EndpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "ringway-endpoint-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = (directory_ / "s").string();
  }
  void TearDown() override {
    if (endpoint_ != nullptr) {
      close();
    }
    std::filesystem::remove_all(directory_);
  }

  void listen() {
    Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::create({.path = path_}, *loop_, device_);
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    endpoint_ = std::move(*endpoint);
  }
  void step() {
    int quiet = 0;
    while (quiet < 2) {
      quiet = loop_->poll(clock_now()) == 0 ? quiet + 1 : 0;
    }
  }
  // Runs the loop until `condition` holds; false if it doesn't within 10 s.
  template <typename Condition>
  bool run_until(Condition condition) {
    const Instant deadline = clock_now() + Duration::seconds(10);
    while (!condition()) {
      if (clock_now() >= deadline) {
        return false;
      }
      loop_->wait(clock_now(), clock_now() + Duration::milliseconds(100));
    }
    return true;
  }
  void close() {
    bool closed = false;
    endpoint_->close([&closed] { closed = true; });
    EXPECT_TRUE(run_until([&] { return closed; }));
    endpoint_.reset();
  }
  FrontEnd connect() { return std::move(*FrontEnd::connect(path_, Duration{})); }
  // True if the session at the other end answers.
  bool is_served(FrontEnd& front) {
    if (!front.send(static_cast<std::uint32_t>(Request::get_features), kVersion, {})) {
      return false;
    }
    step();
    return front.receive(Duration{}).has_value();
  }
  // Starts ring 0. What its session holds; null if something went wrong.
  std::shared_ptr<ForeignHoldings> start_ring(FrontEnd& front) {
    const UniqueFd memory = make_memory(SessionBench::kMemoryBytes);
    const UniqueFd event = make_event();
    const FrontEnd::Region region{.guest_address = 0,
                                  .bytes = SessionBench::kMemoryBytes,
                                  .user_address = SessionBench::kUserBase,
                                  .mmap_offset = 0,
                                  .fd = memory.get()};
    static_cast<void>(is_served(front));
    const bool sent = front.set_features(spec::kFeatureVersion1) && front.set_mem_table({&region, 1}) &&
                      front.set_vring_num(0, 16) &&
                      front.set_vring_addr({.index = 0,
                                            .flags = 0,
                                            .descriptor = SessionBench::kUserBase,
                                            .used = SessionBench::kUserBase + 8192,
                                            .available = SessionBench::kUserBase + 4096,
                                            .log = 0}) &&
                      front.set_vring_call(0, event.get()) && front.set_vring_kick(0, event.get());
    step();
    return sent && device_.running.contains(0) ? device_.running.at(0).call.holdings() : nullptr;
  }
  static UniqueFd listener_at(const std::string& path, int type = SOCK_STREAM) {
    UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    RW_CHECK(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    if (type == SOCK_STREAM) {
      RW_CHECK(::listen(socket.get(), 4) == 0);
    }
    return socket;
  }

  std::filesystem::path directory_;
  std::string path_;
  RecordingDevice device_;
  std::unique_ptr<EpollLoop> loop_ = *EpollLoop::create();
  std::unique_ptr<Endpoint> endpoint_;
};

TEST_F(EndpointTest, ListensWithTheModeAskedForAndLeavesNothingBehind) {
  const mode_t umask_before = ::umask(077);
  Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::create({.path = path_, .mode = 0660}, *loop_, device_);
  ::umask(umask_before);
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  endpoint_ = std::move(*endpoint);
  struct stat found{};
  ASSERT_EQ(::stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0660U);
  FrontEnd front = connect();
  EXPECT_TRUE(is_served(front));
  EXPECT_TRUE(endpoint_->connected());
  close();
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(EndpointTest, SecondFrontEndWaitsUntilTheFirstIsDrained) {
  listen();
  device_.hold = true;
  std::optional<FrontEnd> first = connect();
  FrontEnd second = connect();
  EXPECT_TRUE(is_served(*first));
  EXPECT_FALSE(is_served(second));
  first.reset();
  step();
  EXPECT_FALSE(second.receive(Duration{})) << "the first one's requests are still in flight";
  EXPECT_EQ(device_.attached, 1);
  device_.release();
  step();
  EXPECT_TRUE(second.receive(Duration{}));
  EXPECT_EQ(device_.attached, 2);
  EXPECT_EQ(endpoint_->sessions(), 2U);
  device_.hold = false;
}

// cases/blk 57, cases/net L13
TEST_F(EndpointTest, FrontEndMayComeBackAThousandTimes) {
  listen();
  const std::size_t before = count_open_fds();
  for (int i = 0; i < 1000; ++i) {
    FrontEnd front = connect();
    ASSERT_TRUE(is_served(front)) << i;
  }
  step();
  EXPECT_EQ(endpoint_->sessions(), 1000U);
  // Closed on another thread (base/foreign.hpp).
  static_cast<void>(test::soon([&] { return count_open_fds() <= before; }));
  EXPECT_LE(count_open_fds(), before);
}

TEST_F(EndpointTest, StaleSocketIsReplaced) {
  listener_at(path_).reset();
  ASSERT_TRUE(std::filesystem::exists(path_));
  listen();
  FrontEnd front = connect();
  EXPECT_TRUE(is_served(front));
}

TEST_F(EndpointTest, LockFileOfADeadProcessIsNoObstacle) {
  std::ofstream(path_ + ".lock").put('x');
  listen();
}

TEST_F(EndpointTest, LiveSocketOfOursIsNeverReplaced) {
  listen();
  RecordingDevice other;
  const Result<std::unique_ptr<Endpoint>> second = Endpoint::create({.path = path_}, *loop_, other);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().message, "socket " + path_ + " is in use: this process itself holds " + path_ + ".lock");
  FrontEnd front = connect();
  EXPECT_TRUE(is_served(front));
}

TEST_F(EndpointTest, TheProcessThatHoldsTheLockIsNamed) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const std::string lock_path = path_ + ".lock";
  const pid_t holder = ::fork();
  if (holder == 0) {
    const int lock = ::open(lock_path.c_str(), O_RDWR | O_CREAT, 0600);
    const char locked = ::prctl(PR_SET_NAME, "the-holder") == 0 && ::flock(lock, LOCK_EX | LOCK_NB) == 0 ? 'y' : 'n';
    static_cast<void>(!::write(writing.get(), &locked, 1));
    ::pause();
    ::_exit(0);
  }
  char locked = 'n';
  ASSERT_EQ(::read(reading.get(), &locked, 1), 1);
  ASSERT_EQ(locked, 'y');
  const Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::create({.path = path_}, *loop_, device_);
  ASSERT_FALSE(endpoint);
  EXPECT_THAT(
      endpoint.error().message,
      ::testing::AnyOf("socket " + path_ + " is in use: pid " + std::to_string(holder) + " (the-holder) holds " + lock_path,
                       // Where the file system has device numbers of its own.
                       "socket " + path_ + " is in use: another process holds " + lock_path));
  EXPECT_EQ(::kill(holder, SIGKILL), 0);
  EXPECT_EQ(::waitpid(holder, nullptr, 0), holder);
}

TEST_F(EndpointTest, LiveSocketOfAnotherProgramIsNeverReplaced) {
  const UniqueFd other = listener_at(path_);
  const Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::create({.path = path_}, *loop_, device_);
  ASSERT_FALSE(endpoint);
  EXPECT_THAT(endpoint.error().message, HasSubstr("in use"));
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".lock"));
}

TEST_F(EndpointTest, FileThatIsNoSocketIsNeverReplaced) {
  std::ofstream(path_) << "precious";
  const Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::create({.path = path_}, *loop_, device_);
  ASSERT_FALSE(endpoint);
  EXPECT_THAT(endpoint.error().message, HasSubstr("not a socket"));
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(EndpointTest, PathErrorsSayWhatToDo) {
  const Result<std::unique_ptr<Endpoint>> no_directory =
      Endpoint::create({.path = (directory_ / "nowhere/s").string()}, *loop_, device_);
  ASSERT_FALSE(no_directory);
  EXPECT_THAT(no_directory.error().message, HasSubstr("directory"));
  const Result<std::unique_ptr<Endpoint>> too_long = Endpoint::create({.path = std::string(108, 'x')}, *loop_, device_);
  ASSERT_FALSE(too_long);
  EXPECT_THAT(too_long.error().message, HasSubstr("107"));
}

TEST_F(EndpointTest, ConnectsWhenTheFrontEndListensAndAgainAfterItHasGone) {
  Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::create({.path = path_, .connect = true}, *loop_, device_);
  ASSERT_TRUE(endpoint);
  endpoint_ = std::move(*endpoint);
  step();
  EXPECT_FALSE(endpoint_->connected()) << "nobody listens yet";
  const UniqueFd listener = listener_at(path_);
  for (int round = 1; round <= 3; ++round) {
    const auto expected = static_cast<std::uint64_t>(round);
    ASSERT_TRUE(run_until([&] { return endpoint_->connected() && endpoint_->sessions() == expected; })) << round;
    FrontEnd front(UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    EXPECT_TRUE(is_served(front));
    // The front-end goes here.
  }
}

TEST_F(EndpointTest, InheritedListenerServesWhoKnockedBefore) {
  UniqueFd listener = listener_at(path_);
  FrontEnd front = connect();
  Result<std::unique_ptr<Endpoint>> endpoint =
      Endpoint::create({.path = {}, .inherited_fd = listener.release()}, *loop_, device_);
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  endpoint_ = std::move(*endpoint);
  EXPECT_TRUE(is_served(front));
  close();
  EXPECT_TRUE(std::filesystem::exists(path_)) << "its path is not ours to remove";
}

TEST_F(EndpointTest, InheritedConnectionIsServedOnce) {
  auto [ours, theirs] = make_socket_pair();
  Result<std::unique_ptr<Endpoint>> endpoint =
      Endpoint::create({.path = {}, .inherited_fd = theirs.release()}, *loop_, device_);
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  endpoint_ = std::move(*endpoint);
  {
    FrontEnd front(std::move(ours));
    EXPECT_TRUE(is_served(front));
  }
  step();
  EXPECT_FALSE(endpoint_->connected());
  EXPECT_EQ(endpoint_->sessions(), 1U);
}

TEST_F(EndpointTest, InheritedDescriptorThatIsNoStreamSocketIsRefused) {
  EXPECT_FALSE(Endpoint::create({.path = {}, .inherited_fd = make_event().release()}, *loop_, device_));
  UniqueFd datagram(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  EXPECT_FALSE(Endpoint::create({.path = {}, .inherited_fd = datagram.release()}, *loop_, device_));
}

// A front-end that held up a worker is followed by a pause, though it has hung up before that was known; whoever knocks in
// it is served after it, at any kind of listener.
TEST_F(EndpointTest, HarmIsFollowedByAPause) {
  for (const bool inherited : {false, true}) {
    SCOPED_TRACE(inherited);
    if (inherited) {
      Result<std::unique_ptr<Endpoint>> endpoint =
          Endpoint::create({.path = {}, .inherited_fd = listener_at(path_).release()}, *loop_, device_);
      ASSERT_TRUE(endpoint);
      endpoint_ = std::move(*endpoint);
    } else {
      listen();
    }
    std::optional<FrontEnd> front = connect();
    const std::shared_ptr<ForeignHoldings> holdings = start_ring(*front);
    ASSERT_NE(holdings, nullptr);
    device_.hold = true;
    const Instant before = clock_now();
    front.reset();
    step();
    holdings->note_harm();  // the worker is free again, and says so before it says that the ring is gone
    device_.hold = false;
    device_.release();
    step();
    FrontEnd next = connect();
    EXPECT_FALSE(is_served(next));
    EXPECT_TRUE(run_until([&] { return endpoint_->connected(); }));
    EXPECT_GE((clock_now() - before).ns, Duration::seconds(2).ns);
    close();
    std::filesystem::remove(path_);
  }
}

// A session may be long, and let nothing else go.
TEST_F(EndpointTest, WhatFoundNoThreadIsLetGoDuringTheSession) {
  if (!test::NoThreads::kPossible) {
    GTEST_SKIP() << "a sanitizer has no room for a limit on address space";
  }
  listen();
  FrontEnd front = connect();
  const std::shared_ptr<ForeignHoldings> holdings = start_ring(front);
  ASSERT_NE(holdings, nullptr);
  std::atomic<bool> gone{false};
  bool waits = false;
  {
    const test::NoThreads limit;
    // The other lane's thread has just let the memory's descriptor go, and is still there.
    holdings->let_go(ForeignHoldings::Lane::unbounded, [&gone] { gone = true; });
    waits = ForeignHoldings::try_again();
  }
  if (!waits) {
    ASSERT_TRUE(run_until([&] { return gone.load(); }));
    GTEST_SKIP() << "a limit on address space keeps nobody from a thread here";
  }
  EXPECT_TRUE(run_until([&] { return gone.load(); }));
  EXPECT_TRUE(endpoint_->connected());
}

TEST_F(EndpointTest, CloseWaitsForTheDeviceAndMayDestroyTheEndpoint) {
  listen();
  FrontEnd front = connect();
  EXPECT_TRUE(is_served(front));
  device_.hold = true;
  bool closed = false;
  endpoint_->close([&] {
    closed = true;
    endpoint_.reset();
  });
  EXPECT_FALSE(std::filesystem::exists(path_)) << "no new front-end can come";
  step();
  EXPECT_FALSE(closed);
  device_.release();
  step();
  EXPECT_TRUE(closed);
}

}  // namespace
}  // namespace ringway::vhost_user
