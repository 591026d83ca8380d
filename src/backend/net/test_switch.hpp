// What the tests and the bench of a switch share: cards without rings, and workers that are a loop and no more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/net/net_port.hpp"
#include "backend/net/switch.hpp"
#include "base/check.hpp"
#include "loop/clock.hpp"
#include "loop/epoll_loop.hpp"
#include "request/test_frames.hpp"

namespace ringway::test {

inline Bytes joined(std::span<const iovec> pieces) {
  Bytes all;
  for (const iovec& piece : pieces) {
    const auto* const from = static_cast<const std::uint8_t*>(piece.iov_base);
    all.insert(all.end(), from, from + piece.iov_len);
  }
  return all;
}

// One queue pair of a card: what its guest gets, and what its channel borrowed.
class TestPair final : public NetReceiver, public NetSender {
 public:
  struct Got {
    spec::NetHeader header;
    Bytes bytes;
    std::size_t pieces;
  };
  std::size_t buffers = SIZE_MAX;  // the guest has
  std::size_t turn = SIZE_MAX;     // it takes in this turn
  bool keeps = true;               // false: frames are only counted
  std::vector<Got> got;
  std::uint64_t count = 0;
  std::uint64_t overruns = 0;
  bool woken = false;                // its receive queue is active
  std::vector<std::uint16_t> lent;   // frames by number, in the order in which they were lent,
  std::vector<std::uint16_t> given;  // and given back
  std::uint64_t loans = 0;           // under way
  NetChannelCounters counters;

  [[nodiscard]] std::uint64_t dropped(SwitchDrop why) const {
    return counters.switch_dropped[static_cast<std::size_t>(why)].get();
  }

  // --- NetReceiver ---
  using NetReceiver::deliver;
  [[nodiscard]] std::size_t deliver(std::span<const NetFrame> frames) noexcept override {
    const std::size_t taken = std::min({frames.size(), buffers, turn});
    buffers -= taken;
    turn -= taken;
    count += taken;
    for (const NetFrame& frame : frames.first(keeps ? taken : 0)) {
      got.push_back({.header = frame.header, .bytes = joined(frame.data), .pieces = frame.data.size()});
      RW_CHECK(got.back().bytes.size() == frame.bytes);
    }
    return taken;
  }
  void count_overruns(std::uint64_t frames) noexcept override { overruns += frames; }
  [[nodiscard]] std::size_t lend(std::span<NetLanding> /*none*/, std::uint32_t /*bytes*/) noexcept override { return 0; }
  void land(std::span<const std::uint32_t> /*none*/) noexcept override {}
  [[nodiscard]] bool filters() const noexcept override { return false; }
  [[nodiscard]] bool wants(std::span<const std::byte, 18> /*head*/) noexcept override { return true; }
  [[nodiscard]] bool spent() const noexcept override { return turn == 0; }
  void wake() noexcept override { woken = true; }

  // --- NetSender ---
  [[nodiscard]] NetLoan lend(std::size_t frame) noexcept override {
    ++loans;
    if (keeps) {
      lent.push_back(static_cast<std::uint16_t>(frame));
    }
    return {.chain = {.head = static_cast<std::uint16_t>(frame), .descriptors = 1}, .memory = nullptr};
  }
  void give_back(std::span<const NetLoan> back) noexcept override {
    loans -= back.size();
    for (const NetLoan& loan : back) {
      if (keeps) {
        given.push_back(loan.chain.head);
      }
    }
  }
};

// A worker, in the test's hands. One of its own thread, or several of one.
class TestWorker {
 public:
  [[nodiscard]] Loop& loop() { return *loop_; }
  // What has happened meanwhile.
  void poll(Instant now = clock_now()) { loop_->poll(now); }

 private:
  std::unique_ptr<EpollLoop> loop_ = *EpollLoop::create();
};

// A card with one pair, or one pair of a card.
class TestCard {
 public:
  TestCard(NetPort& port, TestWorker& worker, std::uint32_t pair = 0, bool enabled = true) : worker_(&worker) {
    channel_ = *port.open_channel(
        {.index = pair, .loop = worker.loop(), .receiver = pair_, .sender = pair_, .counters = pair_.counters});
    channel_->set_enabled(enabled);
    pair_.woken = enabled;
  }
  TestCard(const TestCard&) = delete;
  TestCard& operator=(const TestCard&) = delete;
  ~TestCard() {
    if (channel_ != nullptr) {
      close();
    }
  }

  TestPair* operator->() { return &pair_; }
  [[nodiscard]] NetChannel& channel() { return *channel_; }
  // As a device does it, the ring has stopped before: what was lent has come back.
  void close() {
    if (pair_.loans != 0) {
      static_cast<void>(channel_->receive(0));
    }
    channel_.reset();
  }

  // Frames that begin with these bytes, in pieces of at most `piece_max`.
  void send(const std::vector<Bytes>& frames, const spec::NetHeader& header = {}, std::size_t piece_max = SIZE_MAX) {
    memory_ = frames;
    std::vector<std::vector<iovec>> pieces(frames.size());
    std::vector<NetFrame> all;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      for (std::size_t at = 0; at < memory_[i].size(); at += std::min(piece_max, memory_[i].size() - at)) {
        pieces[i].push_back({.iov_base = memory_[i].data() + at, .iov_len = std::min(piece_max, memory_[i].size() - at)});
      }
      all.push_back({.header = header, .data = pieces[i], .bytes = static_cast<std::uint32_t>(memory_[i].size())});
    }
    RW_CHECK(channel_->send(all) == all.size());
  }
  // The memory of the frames that were sent last.
  [[nodiscard]] std::vector<Bytes>& memory() { return memory_; }

  // A turn of its worker, as far as this pair goes. Afterwards it sleeps, unless there is something.
  void turn() {
    worker_->poll();
    pump();
  }
  void pump() {
    pair_.woken = false;
    static_cast<void>(channel_->receive(128));
    if (!channel_->arm()) {
      return;
    }
    pair_.woken = true;
  }

 private:
  TestWorker* worker_;
  TestPair pair_;
  std::vector<Bytes> memory_;
  std::unique_ptr<NetChannel> channel_;
};

inline NetMac mac(unsigned number) {
  return {0x02, 0, 0, 0, static_cast<std::uint8_t>(number >> 8U), static_cast<std::uint8_t>(number)};
}
inline constexpr NetMac kEverybody{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

// A frame of no protocol that anybody knows, with a number behind its type.
inline Bytes plain_frame(const NetMac& to, const NetMac& from, std::size_t bytes = 60, std::uint32_t number = 0) {
  Bytes frame(to.begin(), to.end());
  frame.insert(frame.end(), from.begin(), from.end());
  append16(frame, 0x88b5);  // for experiments
  append16(frame, number >> 16U);
  append16(frame, number & 0xffffU);
  while (frame.size() < bytes) {
    frame.push_back(static_cast<std::uint8_t>(frame.size() * 7 + number));
  }
  return frame;
}
inline std::uint32_t number_in(const Bytes& frame) {
  return get32(frame, 14);
}
inline Bytes tagged(const Bytes& frame, std::uint16_t tag) {
  Bytes all(frame.begin(), frame.begin() + 12);
  append16(all, 0x8100);
  append16(all, tag);
  all.insert(all.end(), frame.begin() + 12, frame.end());
  return all;
}

}  // namespace ringway::test
