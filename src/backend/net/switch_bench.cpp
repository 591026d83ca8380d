// What a switch costs for a frame: from send() until the receiver has it and the sender has its memory back. Receivers copy
// frames as a guest's queue does, without a ring. Build it with `ninja switch_bench` of a RelWithDebInfo build without
// RINGWAY_DEBUG_CHECKS.
//
//   copy     the receiver alone, called by the sender: what no switch can save
//   one      both ends on one worker
//   passed   each end on its own worker, but both on this thread: the work of both, without the way between two CPUs
//   two      each end on its own worker, thread and CPU, as many frames under way as the pool has
//
// Rounds of the first three take turns, and medians are given, since the machine is shared with others.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/net/switch.hpp"
#include "backend/net/test_switch.hpp"
#include "guest/access.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

using test::mac;
using test::plain_frame;
using test::TestWorker;

constexpr std::size_t kBatch = 32;
constexpr std::size_t kBatches = 64;  // in a round
constexpr std::size_t kRounds = 301;

// A guest's queue pair without a ring.
class Guest final : public NetReceiver, public NetSender {
 public:
  Guest() : memory_(std::size_t{256} << 11U) {}
  NetChannelCounters counters;
  std::uint64_t got = 0;
  std::uint64_t loans = 0;

  using NetReceiver::deliver;
  [[nodiscard]] std::size_t deliver(std::span<const NetFrame> frames) noexcept override {
    for (const NetFrame& frame : frames) {
      std::byte* to = memory_.data() + (got++ % 256 << 11U);
      for (const iovec& piece : frame.data) {
        guest::copy(to, static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
        to += piece.iov_len;
      }
    }
    return frames.size();
  }
  void count_overruns(std::uint64_t /*none*/) noexcept override {}
  [[nodiscard]] std::size_t lend(std::span<NetLanding> /*none*/, std::uint32_t /*bytes*/) noexcept override { return 0; }
  void land(std::span<const std::uint32_t> /*none*/) noexcept override {}
  [[nodiscard]] bool filters() const noexcept override { return false; }
  [[nodiscard]] bool wants(std::span<const std::byte, 18> /*head*/) noexcept override { return true; }
  void wake() noexcept override {}
  [[nodiscard]] NetLoan lend(std::size_t /*frame*/) noexcept override {
    ++loans;
    return {};
  }
  void give_back(std::span<const NetLoan> back) noexcept override { loans -= back.size(); }

 private:
  std::vector<std::byte> memory_;
};

struct Card {
  Card(Switch& lan, TestWorker& worker)
      : port(*lan.attach({})),
        channel(*port->open_channel(
            {.index = 0, .loop = worker.loop(), .receiver = guest, .sender = guest, .counters = guest.counters})) {
    channel->set_enabled(true);
  }
  Guest guest;
  std::unique_ptr<NetPort> port;
  std::unique_ptr<NetChannel> channel;
};

struct Batch {
  explicit Batch(std::size_t bytes, unsigned to, unsigned from) {
    for (std::size_t i = 0; i < kBatch; ++i) {
      memory[i] = plain_frame(mac(to), mac(from), bytes, static_cast<std::uint32_t>(i));
      pieces[i] = {.iov_base = memory[i].data(), .iov_len = bytes};
      frames[i] = {.header = {}, .data = {&pieces[i], 1}, .bytes = static_cast<std::uint32_t>(bytes)};
    }
  }
  std::array<test::Bytes, kBatch> memory;
  std::array<iovec, kBatch> pieces;
  std::array<NetFrame, kBatch> frames;
};

void introduce(Card& card, unsigned number) {
  const Batch hello(60, 999, number);
  static_cast<void>(card.channel->send(std::span(hello.frames).first(1)));
}

template <typename Body>
double ns_per_frame(Body body) {
  const Instant began = clock_now();
  for (std::size_t i = 0; i < kBatches; ++i) {
    body();
  }
  return static_cast<double>((clock_now() - began).ns) / (kBatch * kBatches);
}

double median(std::vector<double>& of) {
  std::ranges::nth_element(of, of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2));
  return of[of.size() / 2];
}

void on_one_thread(std::size_t bytes) {
  const auto lan = *Switch::create({.name = "bench"});
  TestWorker here;
  TestWorker there;
  Card a(*lan, here);
  Card b(*lan, here);
  Card c(*lan, there);
  introduce(b, 2);
  introduce(c, 3);
  static_cast<void>(a.channel->receive(128));
  static_cast<void>(c.channel->receive(128));
  const Batch near(bytes, 2, 1);
  const Batch far(bytes, 3, 1);
  std::vector<double> copy;
  std::vector<double> one;
  std::vector<double> passed;
  for (std::size_t round = 0; round < kRounds; ++round) {
    copy.push_back(ns_per_frame([&] {
      for (const NetFrame& frame : near.frames) {
        static_cast<void>(b.guest.deliver(frame));
      }
    }));
    one.push_back(ns_per_frame([&] { static_cast<void>(a.channel->send(near.frames)); }));
    passed.push_back(ns_per_frame([&] {
      static_cast<void>(a.channel->send(far.frames));
      static_cast<void>(c.channel->receive(128));
      static_cast<void>(a.channel->receive(128));
    }));
  }
  fmt::print("{:5} bytes: copy {:6.1f}  one {:6.1f}  passed {:6.1f} ns a frame\n", bytes, median(copy), median(one),
             median(passed));
}

void on_two_threads(std::size_t bytes) {
  const auto lan = *Switch::create({.name = "bench"});
  std::atomic<std::uint32_t> ready{0};
  std::atomic<bool> done{false};
  std::uint64_t got = 0;
  std::thread receiver([&] {
    TestWorker worker;
    Card b(*lan, worker);
    introduce(b, 2);
    ready.fetch_add(1);
    while (!done.load(std::memory_order_relaxed)) {
      static_cast<void>(b.channel->receive(128));
    }
    got = b.guest.got;
    ready.fetch_add(1);
  });
  while (ready.load() == 0) {
    std::this_thread::yield();
  }
  std::uint64_t sent = 0;
  std::uint64_t lost = 0;
  const Instant began = clock_now();
  {
    TestWorker worker;
    Card a(*lan, worker);
    const Batch batch(bytes, 2, 1);
    const auto dropped = [&] {
      return a.guest.counters.switch_dropped[static_cast<std::size_t>(SwitchDrop::credit_spent)].get();
    };
    while (clock_now() - began < Duration::milliseconds(500)) {
      const std::uint64_t before = dropped();
      for (int i = 0; i < 16; ++i) {
        static_cast<void>(a.channel->send(batch.frames));
        static_cast<void>(a.channel->receive(128));
        sent += kBatch;
      }
      if (dropped() != before) {
        std::this_thread::yield();  // who can't send faster than the other receives gives it the CPU, if they share one
      }
    }
    while (a.guest.loans != 0) {
      static_cast<void>(a.channel->receive(128));
    }
    lost = dropped();
    done = true;
  }
  const Duration took = clock_now() - began;
  receiver.join();
  fmt::print("{:5} bytes: two {:6.1f} ns a frame received; {} of {} dropped\n", bytes,
             static_cast<double>(took.ns) / static_cast<double>(got), lost, sent);
}

int run() {
  for (const std::size_t bytes : {64, 256, 257, 1514}) {
    on_one_thread(bytes);
  }
  for (const std::size_t bytes : {64, 256, 257, 1514}) {
    on_two_threads(bytes);
  }
  return 0;
}

}  // namespace
}  // namespace ringway

int main() {
  return ringway::run();
}
