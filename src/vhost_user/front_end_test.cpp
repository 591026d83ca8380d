// The typed front-end against a real session, which runs on a thread of its own as a daemon's control thread would.
#include "vhost_user/front_end.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "vhost_user/test_session.hpp"

namespace ringway::vhost_user {
namespace {

class FrontEndTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto [ours, theirs] = make_socket_pair();
    front_.emplace(std::move(ours));
    thread_ = std::jthread(
        [this, socket = std::move(theirs)](const std::stop_token& /*stop*/) mutable { serve(std::move(socket)); });
  }
  void TearDown() override {
    front_.reset();  // ends the session, and the thread with it
    thread_.join();
  }

  void serve(UniqueFd socket) {
    const std::unique_ptr<EpollLoop> loop = *EpollLoop::create();
    bool over = false;
    std::unique_ptr<BackendSession> session =
        BackendSession::create(std::move(socket), *loop, device_, [&over](const std::string&) { over = true; });
    while (!over) {
      loop->wait(clock_now(), Instant::never());
      // The only way in from the test's thread.
      if (notify_.exchange(false)) {
        EXPECT_TRUE(device_.port->notify_config_change());
      }
    }
  }
  void negotiate() {
    ASSERT_TRUE(front_->set_owner());
    const Result<std::uint64_t> features = front_->get_features();
    ASSERT_TRUE(features) << features.error().message;
    const Result<std::uint64_t> protocol = front_->get_protocol_features();
    ASSERT_TRUE(protocol) << protocol.error().message;
    ASSERT_TRUE(front_->set_protocol_features(*protocol & ~kProtocolInbandNotifications));
    ASSERT_TRUE(front_->set_features(spec::kFeatureVersion1 | spec::kFeatureProtocolFeatures));
  }
  [[nodiscard]] FrontEnd::Region region(std::uint64_t number) const {
    return {.guest_address = number << 20U,
            .bytes = SessionBench::kMemoryBytes,
            .user_address = SessionBench::kUserBase + (number << 20U),
            .mmap_offset = 0,
            .fd = memory_.get()};
  }

  UniqueFd memory_ = make_memory(SessionBench::kMemoryBytes);
  RecordingDevice device_;  // of the serving thread, until it has ended
  std::optional<FrontEnd> front_;
  std::atomic<bool> notify_{false};
  std::jthread thread_;
};

TEST_F(FrontEndTest, RunsARingFromHandshakeToStop) {
  negotiate();
  const std::array regions = {region(0), region(1)};
  ASSERT_TRUE(front_->set_mem_table(regions));
  ASSERT_TRUE(front_->set_vring_num(0, 128));
  ASSERT_TRUE(front_->set_vring_base(0, 5));
  ASSERT_TRUE(front_->set_vring_addr(SessionBench::ring_address(0)));
  const UniqueFd call = make_event();
  const UniqueFd kick = make_event();
  ASSERT_TRUE(front_->set_vring_call(0, call.get()));
  ASSERT_TRUE(front_->set_vring_err(0, -1));
  ASSERT_TRUE(front_->set_vring_kick(0, kick.get()));
  ASSERT_TRUE(front_->set_vring_enable(0, true));
  const Result<std::uint32_t> base = front_->get_vring_base(0);
  ASSERT_TRUE(base) << base.error().message;
  EXPECT_EQ(*base, 7U);
  ASSERT_TRUE(front_->set_status(15));
  EXPECT_EQ(*front_->get_status(), 15);
  ASSERT_TRUE(front_->reset_device());
}

TEST_F(FrontEndTest, AsksForNumbersConfigMemoryAndInflight) {
  negotiate();
  EXPECT_EQ(*front_->get_queue_num(), 4U);
  EXPECT_EQ(*front_->get_max_mem_slots(), limits::kMemorySlotsMax);
  ASSERT_TRUE(front_->add_mem_reg(region(3)));
  ASSERT_TRUE(front_->rem_mem_reg(region(3)));
  EXPECT_FALSE(front_->rem_mem_reg(region(3)));
  const std::array bytes = {std::byte{1}, std::byte{2}};
  ASSERT_TRUE(front_->set_config(8, bytes));
  const Result<std::vector<std::byte>> config = front_->get_config(8, 2);
  ASSERT_TRUE(config);
  EXPECT_TRUE(std::ranges::equal(*config, bytes));
  EXPECT_FALSE(front_->get_config(59, 2));
  Result<FrontEnd::Inflight> inflight = front_->get_inflight_fd(4, 128);
  ASSERT_TRUE(inflight) << inflight.error().message;
  ASSERT_TRUE(front_->set_inflight_fd(inflight->description, inflight->fd.get()));
  EXPECT_FALSE(front_->get_inflight_fd(5, 128));
  const UniqueFd log = make_memory(4096);
  ASSERT_TRUE(front_->set_log_base(4096, 0, log.get()));
  EXPECT_FALSE(front_->set_log_base(8192, 0, log.get()));
}

TEST_F(FrontEndTest, RefusalNamesTheMessage) {
  negotiate();
  const Result<> refused = front_->set_vring_num(0, 3);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("SET_VRING_NUM"), std::string::npos) << refused.error().message;
}

TEST_F(FrontEndTest, HearsOfAConfigChangeAndAnswers) {
  negotiate();
  ASSERT_TRUE(front_->set_backend_req_fd());
  for (int i = 0; i < 3; ++i) {
    notify_ = true;
    ASSERT_TRUE(front_->get_features()) << "wakes the serving thread";
    const Result<Message> request = front_->receive_backend_request(Duration::seconds(10));
    ASSERT_TRUE(request) << request.error().message;
    EXPECT_EQ(request->header.request, static_cast<std::uint32_t>(BackendRequest::config_change_msg));
  }
  EXPECT_FALSE(front_->receive_backend_request(Duration{}));
}

TEST_F(FrontEndTest, BackEndThatHangsUpIsAnErrorAndNoSignal) {
  ASSERT_TRUE(front_->send_bytes(std::vector<std::byte>(12, std::byte{0xff})));
  const Result<std::uint64_t> features = front_->get_features();
  ASSERT_FALSE(features);
  const Result<std::uint64_t> again = front_->get_features();
  ASSERT_FALSE(again);
}

TEST(FrontEndConnect, SocketThatNeverAppearsIsAnErrorThatNamesIt) {
  const Result<FrontEnd> front = FrontEnd::connect("/nonexistent/socket", Duration::milliseconds(20));
  ASSERT_FALSE(front);
  EXPECT_NE(front.error().message.find("/nonexistent/socket"), std::string::npos);
}

}  // namespace
}  // namespace ringway::vhost_user
