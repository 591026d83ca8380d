#include "notify/event_fd.hpp"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

namespace ringway {
namespace {

UniqueFd make_event() {
  return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

UniqueFd another(const UniqueFd& fd) {
  return UniqueFd(::dup(fd.get()));
}

// Its other rings' calls wait behind one another otherwise, each for as long as the watchdog lets it.
TEST(EventFd, NothingIsWrittenForAFrontEndThatHasDoneHarm) {
  const auto mad = ForeignHoldings::create();
  const auto good = ForeignHoldings::create();
  const UniqueFd of_mad = make_event();
  const UniqueFd of_good = make_event();
  StuckWriteGuard guard;
  EventFd call;
  EventFd of_neighbour;
  call.set({another(of_mad), mad});
  of_neighbour.set({another(of_good), good});
  EXPECT_EQ(call.signal(guard), EventFd::Sent::sent);
  std::uint64_t calls = 0;
  ASSERT_EQ(::read(of_mad.get(), &calls, sizeof calls), static_cast<ssize_t>(sizeof calls));
  mad->note_harm();
  EXPECT_EQ(call.signal(guard), EventFd::Sent::held) << "or nobody ends the session";
  EXPECT_FALSE(call.present());
  EXPECT_EQ(::read(of_mad.get(), &calls, sizeof calls), -1);
  EXPECT_EQ(of_neighbour.signal(guard), EventFd::Sent::sent);
  EXPECT_EQ(call.signal(guard), EventFd::Sent::none);
}

// So many wait for the descriptor that each write takes long.
TEST(EventFd, WritesThatWakeAMultitudeAreHarm) {
  constexpr std::size_t kEpolls = 200, kCopies = 200;
  const auto holdings = ForeignHoldings::create();
  const UniqueFd event = make_event();
  std::vector<UniqueFd> copies(kCopies);
  std::vector<UniqueFd> epolls;
  for (UniqueFd& copy : copies) {
    copy = another(event);
  }
  for (std::size_t i = 0; i < kEpolls; ++i) {
    epolls.emplace_back(::epoll_create1(EPOLL_CLOEXEC));
    for (const UniqueFd& copy : copies) {
      epoll_event wanted{};
      wanted.events = EPOLLIN | EPOLLET;
      if (::epoll_ctl(epolls.back().get(), EPOLL_CTL_ADD, copy.get(), &wanted) != 0) {
        GTEST_SKIP() << "too few descriptors or epoll watches here: " << errno;
      }
    }
  }
  StuckWriteGuard guard;
  EventFd call;
  call.set({another(event), holdings});
  guard.until_timed = 64;  // it is found out without a look at the first one
  EventFd::Sent sent = EventFd::Sent::sent;
  for (int i = 0; i < 2000 && sent == EventFd::Sent::sent; ++i) {
    sent = call.signal(guard);
  }
  EXPECT_EQ(sent, EventFd::Sent::held);
  EXPECT_TRUE(holdings->harmed());
  EXPECT_FALSE(call.present());
}

TEST(EventFd, WritesOfAnOrdinaryDriverAreNoHarmWhenAllAreTimed) {
  const auto holdings = ForeignHoldings::create();
  const UniqueFd event = make_event();
  StuckWriteGuard guard;
  guard.all_timed_until = Instant::never();
  EventFd call;
  call.set({another(event), holdings});
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(call.signal(guard), EventFd::Sent::sent);
    ASSERT_EQ(guard.until_timed, 1U);
  }
}

TEST(StuckWriteGuard, TimesOneOfManyAndAllForAWhileAfterALongOne) {
  StuckWriteGuard guard;
  Instant now = Instant{} + Duration::seconds(1000);
  std::uint32_t timed = 0;
  for (std::uint32_t write = 0; write < 6400; ++write) {
    if (guard.time_this_one()) {
      ++timed;
      guard.note_timed(Duration::nanoseconds(800 + 7 * static_cast<std::int64_t>(write)), now);
    }
  }
  EXPECT_GE(timed, 70U);
  EXPECT_LE(timed, 200U);
  while (!guard.time_this_one()) {
  }
  guard.note_timed(Duration::milliseconds(1), now);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(guard.time_this_one());
    now = now + Duration::seconds(1);
    guard.note_timed(Duration::microseconds(1), now);
  }
  EXPECT_TRUE(guard.time_this_one());
  now = now + Duration::seconds(10);
  guard.note_timed(Duration::microseconds(1), now);
  EXPECT_FALSE(guard.time_this_one());
}

}  // namespace
}  // namespace ringway
