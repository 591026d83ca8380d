#include "loop/mailbox.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "loop/clock.hpp"
#include "loop/make_loop.hpp"
#include "loop/simulated_loop.hpp"

namespace ringway {
namespace {

std::unique_ptr<Loop> make(LoopEngine engine) {
  auto loop = make_loop(engine, 64);
  EXPECT_TRUE(loop.has_value()) << loop.error().message;
  return std::move(*loop);
}

TEST(Mailbox, RunsMessagesInOrderAndLaterOnesInTheNextTurn) {
  SimulatedLoop loop;
  Mailbox mailbox(loop);
  std::vector<int> ran;
  mailbox.post([&] {
    ran.push_back(1);
    mailbox.post([&] { ran.push_back(3); });
  });
  mailbox.post([&] { ran.push_back(2); });
  EXPECT_EQ(mailbox.drain(), 2U);
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  EXPECT_EQ(mailbox.drain(), 1U);
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(mailbox.drain(), 0U);
}

TEST(Mailbox, MessageIsReleasedBeforeTheNextOneRuns) {
  SimulatedLoop loop;
  Mailbox mailbox(loop);
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> observed = held;
  bool released_in_time = false;
  mailbox.post([held = std::move(held)] {});
  mailbox.post([&] { released_in_time = observed.expired(); });
  mailbox.drain();
  EXPECT_TRUE(released_in_time);
}

TEST(Mailbox, MessagesAfterCloseAreDestroyedUnrun) {
  SimulatedLoop loop;
  Mailbox mailbox(loop);
  auto before = std::make_shared<int>(0);
  auto after = std::make_shared<int>(0);
  const std::weak_ptr<int> before_observed = before;
  const std::weak_ptr<int> after_observed = after;
  bool ran = false;
  mailbox.post([&ran, before = std::move(before)] { ran = true; });
  mailbox.close();
  mailbox.close();
  EXPECT_TRUE(before_observed.expired());
  mailbox.post([&ran, after = std::move(after)] { ran = true; });
  EXPECT_TRUE(after_observed.expired());
  EXPECT_EQ(mailbox.drain(), 0U);
  EXPECT_FALSE(ran);
}

TEST(Mailbox, MessageThatClosesEndsTheBatchBehindIt) {
  SimulatedLoop loop;
  Mailbox mailbox(loop);
  bool ran = false;
  auto behind = std::make_shared<int>(0);
  const std::weak_ptr<int> observed = behind;
  mailbox.post([&] { mailbox.close(); });
  mailbox.post([&ran, behind = std::move(behind)] { ran = true; });
  EXPECT_EQ(mailbox.drain(), 1U);
  EXPECT_FALSE(ran);
  EXPECT_TRUE(observed.expired());
}

// What is destroyed unrun may itself post, from its destructor: no lock may be held then.
TEST(Mailbox, DestroyedMessageMayPost) {
  SimulatedLoop loop;
  Mailbox mailbox(loop);
  struct PostsWhenDestroyed {
    Mailbox* mailbox;
    explicit PostsWhenDestroyed(Mailbox* m) : mailbox(m) {}
    PostsWhenDestroyed(const PostsWhenDestroyed&) = delete;
    PostsWhenDestroyed& operator=(const PostsWhenDestroyed&) = delete;
    ~PostsWhenDestroyed() {
      mailbox->post([] {});
    }
  };
  mailbox.post([p = std::make_unique<PostsWhenDestroyed>(&mailbox)] {});
  mailbox.close();
  mailbox.post([p = std::make_unique<PostsWhenDestroyed>(&mailbox)] {});
  EXPECT_EQ(mailbox.drain(), 0U);
}

TEST(Mailbox, TellsItsOwnersThread) {
  SimulatedLoop loop;
  Mailbox mailbox(loop);
  EXPECT_TRUE(mailbox.is_current());
  bool elsewhere = true;
  std::thread([&] { elsewhere = mailbox.is_current(); }).join();
  EXPECT_FALSE(elsewhere);
}

// An awake owner costs its senders no wake-up; one that is about to sleep gets one, or is told not to sleep.
TEST(Mailbox, WakesOnlyAnOwnerThatMaySleep) {
  SimulatedLoop loop;
  Mailbox mailbox(loop);
  const auto would_sleep = [&] {
    loop.wait(loop.now(), Instant::never());
    return loop.stalled();
  };
  mailbox.post([] {});  // not told anything yet: the careful answer
  EXPECT_FALSE(would_sleep());
  mailbox.drain();

  mailbox.awake();
  mailbox.post([] {});
  EXPECT_TRUE(would_sleep()) << "an awake owner was woken";
  EXPECT_FALSE(mailbox.prepare_to_sleep()) << "there is mail";
  mailbox.drain();
  EXPECT_TRUE(mailbox.prepare_to_sleep());
  mailbox.post([] {});
  EXPECT_FALSE(would_sleep()) << "a sleeping owner was not woken";
}

class MailboxOverLoop : public testing::TestWithParam<LoopEngine> {};
INSTANTIATE_TEST_SUITE_P(Engines, MailboxOverLoop, testing::Values(LoopEngine::epoll, LoopEngine::io_uring),
                         [](const auto& suite) { return suite.param == LoopEngine::epoll ? "epoll" : "io_uring"; });

// The sleep protocol under contention: a wake-up that is lost hangs the owner until the deadline, which fails the test.
TEST_P(MailboxOverLoop, NoMessageIsLostBetweenSpinningAndSleeping) {
  auto loop = make(GetParam());
  Mailbox mailbox(*loop);
  constexpr int kSenders = 3;
  constexpr int kMessages = 5000;
  std::vector<int> last(kSenders, -1);
  int received = 0;
  bool in_order = true;
  std::vector<std::thread> senders;
  for (int sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([&, sender] {
      for (int i = 0; i < kMessages; ++i) {
        mailbox.post([&, sender, i] {
          in_order = in_order && last[static_cast<std::size_t>(sender)] == i - 1;
          last[static_cast<std::size_t>(sender)] = i;
          ++received;
        });
        if (i % 64 == 0) {
          std::this_thread::yield();
        }
      }
    });
  }
  const Instant deadline = clock_now() + Duration::seconds(20);
  int turn = 0;
  while (received < kSenders * kMessages && clock_now() < deadline) {
    mailbox.drain();
    if (++turn % 3 == 0 && received < kSenders * kMessages && mailbox.prepare_to_sleep()) {
      loop->wait(clock_now(), deadline);
    } else {
      loop->poll(clock_now());
    }
    mailbox.awake();
  }
  for (std::thread& sender : senders) {
    sender.join();
  }
  EXPECT_EQ(received, kSenders * kMessages);
  EXPECT_TRUE(in_order);
  EXPECT_LT(clock_now(), deadline);
}

TEST_P(MailboxOverLoop, SendersMayOutliveTheLoopButNotTheMailbox) {
  auto loop = make(GetParam());
  auto mailbox = std::make_unique<Mailbox>(*loop);
  std::atomic<bool> stop{false};
  std::atomic<int> posted{0};
  std::thread sender([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      mailbox->post([] {});
      posted.fetch_add(1, std::memory_order_relaxed);
      std::this_thread::yield();
    }
  });
  while (posted.load(std::memory_order_relaxed) < 100) {
    mailbox->drain();
  }
  mailbox->close();
  loop.reset();
  const int at_close = posted.load(std::memory_order_relaxed);
  while (posted.load(std::memory_order_relaxed) < at_close + 100) {
    std::this_thread::yield();
  }
  stop.store(true, std::memory_order_relaxed);
  sender.join();
}

}  // namespace
}  // namespace ringway
