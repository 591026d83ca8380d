// One front-end goes mad; its neighbour on the same worker, and this process, don't notice.
//
// The neighbour reads one block after the other, verified, for as long as the attacks last. Afterwards this process must
// hold as many descriptors, mappings and as much memory as before.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>

#include "base/prng.hpp"
#include "tests/conformance/support.hpp"

namespace ringway::conformance {
namespace {

using vhost_user::FrontEnd;
using vhost_user::Request;

// Reads and checks until told to stop.
class Neighbour {
 public:
  explicit Neighbour(const std::string& socket) : driver_(connect_driver(socket)) {
    write_pattern(driver_->queue(0), kBlocks);
    thread_ = std::thread([this] { run(); });
  }
  ~Neighbour() { stop(); }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;
  void stop() {
    stop_ = true;
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  [[nodiscard]] std::size_t reads() const { return reads_; }
  [[nodiscard]] std::size_t bad() const { return bad_; }
  // After stop().
  [[nodiscard]] Duration slowest(std::size_t from, std::size_t to) const {
    return Duration{*std::max_element(at(from), at(to))};
  }
  [[nodiscard]] Duration median(std::size_t from, std::size_t to) const {
    std::vector<std::int64_t> sorted(at(from), at(to));
    std::ranges::sort(sorted);
    return Duration{sorted[sorted.size() / 2]};
  }

 private:
  static constexpr std::uint32_t kBlocks = 64;
  [[nodiscard]] std::vector<std::int64_t>::const_iterator at(std::size_t index) const {
    return latencies_.begin() + static_cast<std::ptrdiff_t>(index);
  }
  void run() {
    BlkDriverQueue& queue = driver_->queue(0);
    for (std::uint32_t i = 0; !stop_; i = (i + 1) % kBlocks) {
      std::memset(queue.buffer(0).host, 0, kBlock);
      const Instant began = clock_now();
      const BlkCompletion completion = transfer(queue, spec::kBlkTypeIn, i * kBlockSectors);
      latencies_.push_back((clock_now() - began).ns);
      bad_ += completion.status != spec::kBlkStatusOk || !holds(queue.buffer(0).host, kBlock, i) ? 1 : 0;
      ++reads_;
    }
  }

  std::unique_ptr<BlkDriver> driver_;
  std::vector<std::int64_t> latencies_;  // of the thread until stop()
  std::atomic<bool> stop_{false};
  std::atomic<std::size_t> reads_{0}, bad_{0};
  std::thread thread_;
};

class Hostile : public testing::Test {
 protected:
  void SetUp() override {
    DiskOptions mad = test_disk(directory_.image("mad.img", 4 << 20), directory_.file("mad"), "mad");
    mad.queues = 2;
    host_ =
        std::make_unique<TestHost>(HostOptions{}, std::vector{mad, test_disk("ram:1M", directory_.file("good"), "good")});
    ASSERT_TRUE(host_->started()) << host_->started().error().message;
    neighbour_ = std::make_unique<Neighbour>(directory_.file("good"));
    // Whatever is made once is made before we look.
    well_behaved();
    ASSERT_TRUE(eventually([&] { return neighbour_->reads() >= 200; }));
    calm_ = neighbour_->reads();
    before_ = holdings();
  }
  void TearDown() override {
    if (neighbour_ == nullptr) {
      return;
    }
    const std::size_t end = neighbour_->reads();
    ASSERT_TRUE(eventually([&] { return !connected(*host_, "mad"); }));
    well_behaved();
    expect_nothing_held_since(before_);
    // At least some reads lie in the time of the attacks.
    ASSERT_TRUE(eventually([&] { return neighbour_->reads() > end; }));
    neighbour_->stop();
    EXPECT_EQ(neighbour_->bad(), 0U);
    EXPECT_LT(neighbour_->slowest(calm_, end + 1).ns, 1'000'000'000);
    // The worker is shared, so the mad one may have its share of time; an order of magnitude is ample.
    EXPECT_LT(neighbour_->median(calm_, end + 1).ns, 20 * neighbour_->median(0, calm_).ns + 10'000'000);
  }
  // One of its reads waited with the worker, and is over when a later one is.
  void forgive_the_neighbour() {
    const std::size_t seen = neighbour_->reads();
    ASSERT_TRUE(eventually([&] { return neighbour_->reads() > seen + 1; }));
    calm_ = neighbour_->reads();
  }
  // The attacked disk serves a sane front-end.
  void well_behaved() {
    const auto driver = connect_driver(directory_.file("mad"));
    ASSERT_NE(driver, nullptr);
    EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
    driver->disconnect();
    ASSERT_TRUE(eventually([&] { return !connected(*host_, "mad"); }));
  }
  [[nodiscard]] std::unique_ptr<BlkDriver> mad(bool packed = false) const {
    return connect_driver(
        BlkDriverOptions{.socket_path = directory_.file("mad"), .packed = packed, .queues = 2, .segments_max = 4});
  }
  [[nodiscard]] Result<FrontEnd> raw() const { return FrontEnd::connect(directory_.file("mad"), kLimit); }

  // Replies that nobody looks at must not fill the socket.
  static void drain(int socket) {
    std::array<std::byte, 4096> bytes{};
    alignas(cmsghdr) std::array<char, 256> control{};
    for (;;) {
      iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      if (::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0) {
        return;
      }
      for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
        for (std::size_t i = 0; i < (each->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(each) + i * sizeof(int), sizeof fd);
          ::close(fd);
        }
      }
    }
  }

  // Sends, and waits until the message was handled: a question behind it is answered, or the connection has ended. False
  // then.
  static bool attack(FrontEnd& front, std::uint32_t id, std::uint32_t flags, std::span<const std::byte> payload,
                     std::span<const int> fds) {
    drain(front.socket());
    if (!front.send(id, flags, payload, fds) ||
        !front.send(static_cast<std::uint32_t>(Request::get_queue_num), vhost_user::kVersion, {})) {
      return false;
    }
    pollfd entry{.fd = front.socket(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&entry, 1, 30'000), 1) << "message " << id << " hangs";
    return (entry.revents & POLLHUP) == 0;
  }

  const TestDirectory directory_;
  std::unique_ptr<TestHost> host_;
  std::unique_ptr<Neighbour> neighbour_;
  std::size_t calm_ = 0;
  Holdings before_;
};

// Rows 43, 64.
TEST_F(Hostile, Row064_EveryMessageInEveryStateWithAnySizeAndStrayFds) {
  enum class State { fresh, negotiated, running };
  Prng prng(64);
  const UniqueFd stray(eventfd(0, EFD_CLOEXEC));
  const std::array<int, 3> fds{stray.get(), stray.get(), stray.get()};
  std::vector<std::byte> payload(256);
  for (const State state : {State::fresh, State::negotiated, State::running}) {
    std::unique_ptr<BlkDriver> driver;
    std::optional<FrontEnd> session;
    const auto send = [&](std::uint32_t id, std::uint32_t flags, std::size_t bytes, std::size_t fd_count) {
      {
        if (state == State::running && driver == nullptr) {
          driver = mad(id % 2 != 0);
        } else if (state != State::running && !session) {
          auto fresh = raw();
          ASSERT_TRUE(fresh);
          session.emplace(std::move(*fresh));
          if (state == State::negotiated) {
            ASSERT_TRUE(session->get_features());
            ASSERT_TRUE(session->set_protocol_features(*session->get_protocol_features()));
          }
        }
        ASSERT_TRUE(driver != nullptr || session);
        FrontEnd& front = driver != nullptr ? driver->front_end() : *session;
        if (attack(front, id, flags, std::span(payload).first(bytes), std::span(fds).first(fd_count))) {
          return;
        }
        // The next message finds a session of its own.
        driver.reset();
        session.reset();
        return;
      }
    };
    for (std::uint32_t id = 0; id < 256; ++id) {
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, std::size_t{40}, std::size_t{256}}) {
        for (std::byte& each : payload) {
          each = prng.chance(1, 2) ? std::byte{0} : static_cast<std::byte>(prng.next());
        }
        send(id, vhost_user::kVersion | (prng.chance(1, 2) ? vhost_user::kFlagNeedReply : 0), bytes, prng.below(4));
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST_F(Hostile, Row064_EveryNumberAtItsEdges) {
  constexpr std::array<std::uint64_t, 14> kEdges{0,
                                                 1,
                                                 2,
                                                 7,
                                                 0x7f,
                                                 0xff,
                                                 0x7fff,
                                                 0x8000,
                                                 0xffff,
                                                 0x7fffffff,
                                                 0xffffffff,
                                                 0x7fffffffffffffff,
                                                 0xfffffffffffff000,
                                                 0xffffffffffffffff};
  const UniqueFd memory(memfd_create("edges", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 1 << 20), 0);
  const int fd = memory.get();
  // What is sent as 8-byte numbers, one of which is at an edge while the others are small.
  struct Shape {
    Request request;
    std::size_t numbers;
    bool with_fd;
  };
  constexpr std::array<Shape, 17> kShapes{{{Request::set_features, 1, false},
                                           {Request::set_mem_table, 5, true},
                                           {Request::set_log_base, 2, true},
                                           {Request::set_vring_num, 1, false},
                                           {Request::set_vring_addr, 5, false},
                                           {Request::set_vring_base, 1, false},
                                           {Request::get_vring_base, 1, false},
                                           {Request::set_vring_kick, 1, true},
                                           {Request::set_vring_call, 1, true},
                                           {Request::set_vring_err, 1, true},
                                           {Request::set_vring_enable, 1, false},
                                           {Request::get_config, 4, false},
                                           {Request::set_config, 4, false},
                                           {Request::get_inflight_fd, 3, false},
                                           {Request::set_inflight_fd, 3, true},
                                           {Request::add_mem_reg, 5, true},
                                           {Request::rem_mem_reg, 5, false}}};
  std::unique_ptr<BlkDriver> driver;
  for (const Shape& shape : kShapes) {
    for (std::size_t field = 0; field < 2 * shape.numbers; ++field) {
      for (const std::uint64_t edge : kEdges) {
        std::vector<std::byte> payload(shape.numbers * 8);
        for (std::size_t i = 0; i < shape.numbers; ++i) {
          const std::uint64_t small = shape.request == Request::set_mem_table && i == 0 ? 1 : i == 2 ? 4096 : 0;
          std::memcpy(payload.data() + i * 8, &small, 8);
        }
        // Numbers have 4 or 8 bytes: both are tried at each place of 4.
        const std::size_t width = field % 2 == 0 ? 8 : 4;
        std::memcpy(payload.data() + field * 4, &edge, width);
        if (driver == nullptr) {
          driver = mad(field % 2 != 0);
          ASSERT_NE(driver, nullptr);
        }
        if (!attack(driver->front_end(), static_cast<std::uint32_t>(shape.request),
                    vhost_user::kVersion | vhost_user::kFlagNeedReply, payload,
                    shape.with_fd ? std::span(&fd, 1) : std::span<const int>{})) {
          driver.reset();
        }
      }
    }
  }
}

TEST_F(Hostile, HalfMessagesAndSilence) {
  for (const std::size_t bytes : {1U, 11U, 12U, 13U, 50U}) {
    auto session = raw();
    ASSERT_TRUE(session);
    std::vector<std::byte> message = vhost_user::encode(static_cast<std::uint32_t>(Request::set_vring_addr),
                                                        vhost_user::kVersion, std::vector<std::byte>(40));
    ASSERT_TRUE(session->send_bytes(std::span(message).first(bytes)));
    const std::size_t seen = neighbour_->reads();
    ASSERT_TRUE(eventually([&] { return neighbour_->reads() > seen + 20; }));
  }
  // A header that announces 4 GiB.
  auto session = raw();
  ASSERT_TRUE(session);
  const vhost_user::Header huge{.request = 5, .flags = vhost_user::kVersion, .payload_bytes = 0xffffffff};
  ASSERT_TRUE(session->send_bytes(vhost_user::bytes_of(huge)));
  EXPECT_FALSE(session->receive(Duration::seconds(10)));
}

// Rings, tables and request headers change while they are read; chains lie, loop and point anywhere.
TEST_F(Hostile, RingsThatChangeWhileTheyAreRead) {
  for (const bool packed : {false, true}) {
    for (int round = 0; round < 12; ++round) {
      const auto driver = mad(packed);
      ASSERT_NE(driver, nullptr);
      const SharedMemory::Region& region = driver->memory().regions()[0];
      std::atomic<bool> stop{false};
      // Everything that lies before the data buffers: rings, tables, headers.
      const auto words = static_cast<std::size_t>(driver->queue(1).buffer(0).host - region.host) / 8;
      std::thread scribbler([&, round] {
        Prng prng(static_cast<std::uint64_t>(round) * 2 + (packed ? 1 : 0));
        auto* const memory = reinterpret_cast<std::uint64_t*>(region.host);
        while (!stop) {
          const std::uint64_t value = prng.chance(1, 2) ? prng.next() : region.guest.value + prng.below(region.bytes);
          std::atomic_ref(memory[prng.below(words)]).store(value, std::memory_order_relaxed);
        }
      });
      // The driver's own ring object is given up: kicks are all that is still needed.
      for (int i = 0; i < 40; ++i) {
        driver->queue(0).kick();
        driver->queue(1).kick();
        guest::store(driver->queue(0).ring().layout().driver_area + 2, static_cast<std::uint16_t>(i));
        const std::size_t seen = neighbour_->reads();
        ASSERT_TRUE(eventually([&] { return neighbour_->reads() > seen; }));
      }
      // Most of these end in a broken ring; all of them in a session that can be stopped.
      static_cast<void>(driver->front_end().get_vring_base(0));
      stop = true;
      scribbler.join();
    }
  }
}

// Split chains, one kind after the other, each of which must come back or stop the ring; never anything else.
TEST_F(Hostile, Row011_ChainsThatLie) {
  enum class Lie {
    self_loop,
    pair_loop,
    next_beyond,
    head_beyond,
    huge_length,
    wild_address,
    indirect_in_indirect,
    odd_table
  };
  for (const Lie lie : {Lie::self_loop, Lie::pair_loop, Lie::next_beyond, Lie::head_beyond, Lie::huge_length,
                        Lie::wild_address, Lie::indirect_in_indirect, Lie::odd_table}) {
    const auto driver = mad();
    ASSERT_NE(driver, nullptr);
    BlkDriverQueue& queue = driver->queue(0);
    const RingLayout& layout = queue.ring().layout();
    const std::uint64_t data = queue.buffer(0).guest.value;
    const auto put = [&](std::uint32_t index, spec::Descriptor descriptor) {
      write_descriptor(layout.descriptor_area + index * 16, descriptor);
    };
    std::uint16_t head = 0;
    bool stops = true;
    put(0, {.address = data, .length = 16, .flags = spec::kDescNext, .next = 1});
    switch (lie) {
      case Lie::self_loop:
        put(0, {.address = data, .length = 16, .flags = spec::kDescNext, .next = 0});
        break;
      case Lie::pair_loop:
        put(1, {.address = data, .length = 16, .flags = spec::kDescNext, .next = 0});
        break;
      case Lie::next_beyond:
        put(1, {.address = data, .length = 16, .flags = spec::kDescNext, .next = 40000});
        stops = false;  // whether it is the chain's fault or the ring's is the reader's choice; both answers are sane
        break;
      case Lie::head_beyond:
        head = 40000;
        break;
      case Lie::huge_length:
        put(1, {.address = data, .length = 0xffffffff, .flags = spec::kDescWrite, .next = 0});
        stops = false;
        break;
      case Lie::wild_address:
        put(1, {.address = ~std::uint64_t{0} - 5, .length = 512, .flags = spec::kDescWrite, .next = 0});
        stops = false;
        break;
      case Lie::indirect_in_indirect: {
        put(0, {.address = data, .length = 16, .flags = spec::kDescIndirect, .next = 0});
        const spec::Descriptor inner{.address = data, .length = 16, .flags = spec::kDescIndirect, .next = 0};
        write_descriptor(queue.buffer(0).host, inner);
        stops = false;
        break;
      }
      case Lie::odd_table:
        put(0, {.address = data, .length = 17, .flags = spec::kDescIndirect, .next = 0});
        stops = false;
        break;
    }
    guest::store(layout.driver_area + 4, head);
    guest::store_release(layout.driver_area + 2, std::uint16_t{1});
    queue.kick();
    bool error = false;
    bool used = false;
    EXPECT_TRUE(eventually([&] {
      std::uint64_t value = 0;
      error = error || ::read(queue.error_fd(), &value, sizeof value) == sizeof value;
      used = guest::load_acquire<std::uint16_t>(layout.device_area + 2) == 1;
      return error || used;
    })) << "lie "
        << static_cast<int>(lie);
    EXPECT_TRUE(!stops || error) << "lie " << static_cast<int>(lie);
  }
}

// A TCP socket whose close() waits two minutes for a peer that reads nothing.
UniqueFd socket_that_lingers(UniqueFd& peer) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  UniqueFd lingering(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const linger wait{.l_onoff = 1, .l_linger = 120};
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  static_cast<void>(::connect(lingering.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
  peer = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_EQ(::setsockopt(lingering.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait), 0);
  const std::vector<char> filling(1U << 20U);
  EXPECT_TRUE(eventually([&] { return ::send(lingering.get(), filling.data(), filling.size(), 0) < 0 && errno == EAGAIN; }));
  return lingering;
}

// Whatever becomes of a descriptor (refused, replaced on a running ring, left over at the session's end), its close() keeps
// nobody waiting.
TEST_F(Hostile, DescriptorsWhoseCloseWaits) {
  std::array<UniqueFd, 4> peers, senders;
  const Instant began = clock_now();
  {
    const auto driver = mad();
    ASSERT_NE(driver, nullptr);
    FrontEnd& front = driver->front_end();
    // A Unix socket in whose queue the other one lies.
    const auto give = [&](std::size_t i, std::uint32_t ring) {
      std::array<int, 2> ends{};
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
      senders[i] = UniqueFd(ends[0]);
      const UniqueFd carrier(ends[1]);
      const int lingering = socket_that_lingers(peers[i]).release();
      EXPECT_TRUE(vhost_user::send_some(senders[i].get(), std::array<std::byte, 1>{}, std::span(&lingering, 1)));
      ::close(lingering);
      return front.set_vring_call(ring, carrier.get()).has_value();
    };
    EXPECT_TRUE(give(0, 0));
    EXPECT_TRUE(give(1, 0)) << "the first one is replaced on the worker";
    EXPECT_FALSE(give(2, 77)) << "there is no such ring";
    EXPECT_FALSE(front.set_vring_call(0, socket_that_lingers(peers[2]).get())) << "nor is it one of the right kind";
    EXPECT_TRUE(front.get_features());
    EXPECT_TRUE(give(3, 1));
    const auto other = FrontEnd::connect(directory_.file("good"), kLimit);
    EXPECT_TRUE(other);
  }
  well_behaved();
  EXPECT_LT((clock_now() - began).ns, Duration::seconds(60).ns);
  const std::size_t seen = neighbour_->reads();
  EXPECT_TRUE(eventually([&] { return neighbour_->reads() > seen + 100; }));
  for (UniqueFd& peer : peers) {
    peer.reset();  // what lingers ends
  }
}

// A driver whose call descriptor holds the worker in a write: a full socket, made blocking again.
struct HoldUp {
  UniqueFd reader, writer;
  std::unique_ptr<BlkDriver> driver;
};
void hold_up_the_worker(HoldUp& of) {
  ASSERT_NE(of.driver, nullptr);
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  of.reader = UniqueFd(ends[0]);
  of.writer = UniqueFd(ends[1]);
  ASSERT_TRUE(of.driver->front_end().set_vring_call(0, of.writer.get()));
  const std::vector<char> filling(1U << 20U);
  while (::write(of.writer.get(), filling.data(), filling.size()) > 0 || ::write(of.writer.get(), filling.data(), 1) > 0) {
  }
  ASSERT_EQ(::fcntl(of.writer.get(), F_SETFL, 0), 0);
  // Which request finds the driver waiting for its call is a matter of luck; from then on none is completed.
  BlkDriverQueue& queue = of.driver->queue(0);
  std::array<BlkCompletion, 1> done;
  do {
    submit(queue, spec::kBlkTypeIn, 0);
    queue.publish_and_kick();
    const Instant deadline = clock_now() + Duration::milliseconds(400);
    while (!queue.has_completion() && clock_now() < deadline) {
      static_cast<void>(queue.wait(deadline));
    }
  } while (queue.reap(done) == 1);
}

// Who holds up the worker in a write once doesn't get to do it again.
TEST_F(Hostile, CallThatBlocksEndsTheSession) {
  HoldUp held{.reader = {}, .writer = {}, .driver = mad()};
  hold_up_the_worker(held);
  EXPECT_TRUE(eventually([&] {
    pollfd entry{.fd = held.driver->front_end().socket(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP) != 0;
  }));
  forgive_the_neighbour();
}

// Nor by hanging up before the worker is free again.
TEST_F(Hostile, CallThatBlocksIsFollowedByAPauseThoughItsSessionIsOver) {
  HoldUp held{.reader = {}, .writer = {}, .driver = mad()};
  hold_up_the_worker(held);
  held.driver.reset();
  const Instant began = clock_now();
  well_behaved();
  EXPECT_GT((clock_now() - began).ns, Duration::milliseconds(1990).ns);
  forgive_the_neighbour();
}

// Held by ourselves it would hide the front-end's death from us.
TEST_F(Hostile, ItsOwnEndOfTheConnectionIsRefused) {
  const auto driver = mad();
  ASSERT_NE(driver, nullptr);
  FrontEnd& front = driver->front_end();
  EXPECT_FALSE(front.set_vring_call(0, front.socket()));
  EXPECT_FALSE(front.set_vring_err(0, front.socket()));
  EXPECT_TRUE(front.get_features());
}

// The front-end truncates its memory while the kernel and we write to it. Rings and data are reached by pwrite() only here,
// since our own view of it would be gone too.
TEST_F(Hostile, MemoryTruncatedUnderUs) {
  for (int round = 0; round < 10; ++round) {
    const UniqueFd memory(memfd_create("truncated", MFD_CLOEXEC));
    constexpr std::uint64_t kBytes = 1 << 20;
    ASSERT_EQ(ftruncate(memory.get(), kBytes), 0);
    auto session = raw();
    ASSERT_TRUE(session);
    ASSERT_TRUE(session->set_protocol_features(vhost_user::kProtocolReplyAck));
    ASSERT_TRUE(session->set_features(spec::kFeatureVersion1 | spec::kFeatureProtocolFeatures));
    const FrontEnd::Region region{
        .guest_address = 0, .bytes = kBytes, .user_address = 0x10000000, .mmap_offset = 0, .fd = memory.get()};
    ASSERT_TRUE(session->set_mem_table({&region, 1}));
    const UniqueFd kick(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), error(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    // Descriptors at 0, avail at 0x2000, used at 0x3000, headers and status at 0x4000, data from 0x10000 on.
    for (std::uint16_t i = 0; i < 42; ++i) {
      const auto head = static_cast<std::uint16_t>(3 * i);
      const std::array<spec::Descriptor, 3> chain{
          {{.address = 0x4000U + i * 64U,
            .length = 16,
            .flags = spec::kDescNext,
            .next = static_cast<std::uint16_t>(head + 1)},
           {.address = 0x10000U + i * 0x4000U,
            .length = 0x4000,
            .flags = static_cast<std::uint16_t>(spec::kDescNext | spec::kDescWrite),
            .next = static_cast<std::uint16_t>(head + 2)},
           {.address = 0x4000U + i * 64U + 32, .length = 1, .flags = spec::kDescWrite, .next = 0}}};
      ASSERT_EQ(pwrite(memory.get(), chain.data(), sizeof chain, head * 16), static_cast<ssize_t>(sizeof chain));
      ASSERT_EQ(pwrite(memory.get(), &head, 2, 0x2004 + 2 * i), 2);
    }
    const std::uint16_t avail = 42;
    ASSERT_EQ(pwrite(memory.get(), &avail, 2, 0x2002), 2);
    ASSERT_TRUE(session->set_vring_num(0, 128));
    ASSERT_TRUE(session->set_vring_addr(
        {.index = 0, .flags = 0, .descriptor = 0x10000000, .used = 0x10003000, .available = 0x10002000, .log = 0}));
    ASSERT_TRUE(session->set_vring_err(0, error.get()));
    ASSERT_TRUE(session->set_vring_kick(0, kick.get()));
    ASSERT_TRUE(session->set_vring_enable(0, true));
    // Anywhere from at once to long after all are done; then everything, or only the data.
    const std::size_t seen = neighbour_->reads();
    ASSERT_TRUE(eventually([&] { return neighbour_->reads() >= seen + static_cast<std::size_t>(round) % 4; }));
    ASSERT_EQ(ftruncate(memory.get(), round % 3 == 0 ? 0x10000 : 0), 0);
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(kick.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    if (round % 3 != 0) {
      // The ring itself is gone: that is noticed and said.
      EXPECT_TRUE(eventually([&] {
        std::uint64_t value = 0;
        static_cast<void>(!::write(kick.get(), &one, sizeof one));
        return ::read(error.get(), &value, sizeof value) == sizeof value;
      }));
    }
  }
}

}  // namespace
}  // namespace ringway::conformance
