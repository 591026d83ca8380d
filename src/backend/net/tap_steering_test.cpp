// The kernel's choice of queues by a program of ours, against what the same hash says in our own code. Needs what loading a
// program needs (CAP_BPF, CAP_NET_ADMIN).
#include "backend/net/tap_steering.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/net/test_tap.hpp"
#include "base/limits.hpp"
#include "base/prng.hpp"
#include "request/test_hash_vectors.hpp"

namespace ringway {
namespace {

using test::HostSide;
using test::Octets;

constexpr std::uint32_t kQueueCount = 8;

NetSteering steering_of(std::uint32_t types, std::uint16_t pairs, std::uint16_t unclassified) {
  NetSteering by;
  by.hashing.types = types;
  by.hashing.key_bytes = test::kHashVectorKey.size();
  std::ranges::copy(test::kHashVectorKey, by.hashing.key.begin());
  by.table.mask = 127;
  by.table.unclassified_pair = unclassified;
  for (std::uint16_t i = 0; i < 128; ++i) {
    by.table.pairs[i] = static_cast<std::uint16_t>(i * 5 % pairs);
  }
  return by;
}

std::uint16_t pair_by_hash(const NetSteering& by, const Octets& frame) {
  static const NetHashKey key(test::kHashVectorKey);
  const auto all = std::as_bytes(std::span(frame));
  const auto head = all.first(std::min(all.size(), limits::kNetHeadBytesMax));
  const NetHash hash = net_hash(key, by.hashing.types, net_dissect(head, static_cast<std::uint32_t>(all.size())), head);
  return hash.report == spec::kNetHashReportNone ? by.table.unclassified_pair : by.table.pairs[hash.value & by.table.mask];
}

// ---------------------------------------------------------------- the program alone

// It runs as one of a kind that the kernel lets run on a frame that it is given.
class TapSteeringProgram : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = TapSteering::load();
    if (!loaded) {
      GTEST_SKIP() << loaded.error().message;
    }
    steering_ = std::move(*loaded);
    const std::vector<bpf_insn> code = tap_steering_program(steering_->map());
    bpf_attr attributes{};
    attributes.prog_type = BPF_PROG_TYPE_SCHED_CLS;
    attributes.insns = reinterpret_cast<std::uintptr_t>(code.data());
    attributes.insn_cnt = static_cast<std::uint32_t>(code.size());
    attributes.license = reinterpret_cast<std::uintptr_t>("Apache-2.0");
    program_.reset(static_cast<int>(::syscall(SYS_bpf, BPF_PROG_LOAD, &attributes, sizeof attributes)));
    if (!program_) {
      GTEST_SKIP() << "can't load a program to try: " << std::strerror(errno);
    }
    for (std::uint32_t i = 0; i < queues_.size(); ++i) {
      queues_[i] = (i * 3 + 1) % kQueueCount;  // where the kernel counts the pairs' queues
    }
  }
  void set(const NetSteering& by) {
    by_ = by;
    const Result<> result = steering_->set(by, queues_);
    ASSERT_TRUE(result) << result.error().message;
  }
  [[nodiscard]] std::uint32_t run(const Octets& frame) const {
    bpf_attr attributes{};
    attributes.test.prog_fd = static_cast<std::uint32_t>(program_.get());
    attributes.test.data_in = reinterpret_cast<std::uintptr_t>(frame.data());
    attributes.test.data_size_in = static_cast<std::uint32_t>(frame.size());
    attributes.test.repeat = 1;
    EXPECT_EQ(::syscall(SYS_bpf, BPF_PROG_TEST_RUN, &attributes, sizeof attributes), 0)
        << std::strerror(errno) << ", " << frame.size() << " bytes";
    return attributes.test.retval;
  }
  [[nodiscard]] std::uint32_t expected(const Octets& frame) const { return queues_[pair_by_hash(by_, frame)]; }

  std::unique_ptr<TapSteering> steering_;
  UniqueFd program_;
  std::array<std::uint32_t, kQueueCount> queues_{};
  NetSteering by_;
};

TEST_F(TapSteeringProgram, HashesTheVectorsOfMicrosoft) {
  // Only the lowest bits of a hash are seen; the other tests see others, by other tables.
  for (const bool udp : {false, true}) {
    for (const unsigned tags : {0U, 1U, 2U}) {
      set(steering_of(TapSteering::kTypes, kQueueCount, 3));
      for (const test::HashVector& vector : test::kHashVectors4) {
        const Octets frame = test::frame_of(vector, {.udp = udp, .tags = tags});
        EXPECT_EQ(run(frame), queues_[by_.table.pairs[vector.ports_hash & 127U]]);
      }
      for (const test::HashVector& vector : test::kHashVectors6) {
        const Octets frame = test::frame_of(vector, {.ipv6 = true, .udp = udp, .tags = tags});
        EXPECT_EQ(run(frame), queues_[by_.table.pairs[vector.ports_hash & 127U]]);
      }
      set(steering_of(spec::kNetHashTypeIpv4 | spec::kNetHashTypeIpv6, kQueueCount, 3));
      for (const test::HashVector& vector : test::kHashVectors4) {
        EXPECT_EQ(run(test::frame_of(vector, {.udp = udp, .tags = tags})), queues_[by_.table.pairs[vector.ip_hash & 127U]]);
      }
    }
  }
}

// Frames of all shapes, right ones and such that had bytes changed or were cut off.
TEST_F(TapSteeringProgram, SaysWhatOurOwnHashSays) {
  Prng prng(7);
  constexpr std::array kOptions{0U, 8U, 24U, 40U};
  for (int round = 0; round < 60; ++round) {
    const auto types = static_cast<std::uint32_t>(round == 0 ? TapSteering::kTypes : prng.below(TapSteering::kTypes + 1));
    set(steering_of(types, kQueueCount, static_cast<std::uint16_t>(prng.below(kQueueCount))));
    for (int i = 0; i < 300; ++i) {
      const bool ipv6 = prng.below(2) != 0;
      test::ShapedFrame shaped = test::make_frame({.ipv6 = ipv6,
                                                   .udp = prng.below(2) != 0,
                                                   .tags = static_cast<unsigned>(prng.below(3)),
                                                   .ip_option_bytes = kOptions[prng.below(4)],
                                                   .tcp_option_bytes = prng.below(2) * 12,
                                                   .payload_bytes = prng.below(300)},
                                                  prng.next());
      Octets& frame = shaped.bytes;
      for (std::size_t at = shaped.l3 + (ipv6 ? 8 : 12); at < shaped.l3 + (ipv6 ? 40 : 20); ++at) {
        frame[at] = static_cast<std::uint8_t>(prng.next());
      }
      test::put16(frame, shaped.l4, prng.next());
      ASSERT_EQ(run(frame), expected(frame)) << round << ' ' << i;
      // Where it matters most: of the types, lengths, kinds, flags.
      for (int change = 0; change < 4; ++change) {
        Octets changed = frame;
        for (std::uint64_t bytes = prng.below(3) + 1; bytes > 0; --bytes) {
          const std::size_t at = 12 + prng.below(std::min<std::size_t>(frame.size() - 12, 90));
          constexpr std::array<std::uint8_t, 12> kKinds{0, 6, 17, 43, 44, 51, 60, 0x81, 0x08, 0x86, 0xdd, 0x45};
          changed[at] = prng.below(2) != 0 ? kKinds[prng.below(kKinds.size())] : static_cast<std::uint8_t>(prng.next());
        }
        if (prng.below(3) == 0) {
          changed.resize(std::max<std::size_t>(14, prng.below(changed.size() + 1)));
        }
        // The kernel gives a program no frame whose type promises more than there is.
        const std::size_t type = test::get16(changed, 12);
        if (changed.size() < 54 && (type == 0x0800 || type == 0x86dd)) {
          continue;
        }
        ASSERT_EQ(run(changed), expected(changed)) << round << ' ' << i << ' ' << change;
      }
    }
  }
}

TEST_F(TapSteeringProgram, GoesThroughAsManyExtensionHeadersAsWeDo) {
  set(steering_of(TapSteering::kTypes, kQueueCount, 1));
  for (std::size_t count = 0; count <= limits::kNetExtensionHeadersMax + 2; ++count) {
    for (const std::uint8_t kind :
         {std::uint8_t{0}, std::uint8_t{43}, std::uint8_t{44}, std::uint8_t{51}, std::uint8_t{60}}) {
      for (unsigned port = 0; port < 40; ++port) {
        const test::ShapedFrame plain = test::make_frame({.ipv6 = true, .payload_bytes = 200});
        Octets frame(plain.bytes.begin(), plain.bytes.begin() + static_cast<std::ptrdiff_t>(plain.l4));
        frame[plain.l3 + 6] = count == 0 ? 6 : kind;
        for (std::size_t i = 1; i <= count; ++i) {
          const Octets header{i == count ? std::uint8_t{6} : kind, 0, 0, 0, 1, 2, 3, 4};
          frame.insert(frame.end(), header.begin(), header.end());
        }
        const std::size_t l4 = frame.size();
        frame.insert(frame.end(), plain.bytes.begin() + static_cast<std::ptrdiff_t>(plain.l4), plain.bytes.end());
        test::put16(frame, plain.l3 + 4, frame.size() - plain.l4);
        test::put16(frame, l4, 1000 + port);
        ASSERT_EQ(run(frame), expected(frame)) << count << " of kind " << int{kind};
      }
    }
  }
}

// ---------------------------------------------------------------- a real tap

class TapSteeringTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kPairs = 4;

  void SetUp() override {
    if (!test::enter_own_network().empty()) {
      GTEST_SKIP() << test::enter_own_network();
    }
    if (const auto loaded = TapSteering::load(); !loaded) {
      GTEST_SKIP() << loaded.error().message;
    }
    auto made = make_tap_port({.name = "rss0", .pairs = kPairs});
    ASSERT_TRUE(made.has_value()) << made.error().message;
    port_ = std::move(*made);
    loop_ = *make_loop(LoopEngine::epoll);
    for (std::uint32_t i = 0; i < kPairs; ++i) {
      pairs_.push_back(std::make_unique<test::OpenPair>(*port_, *loop_, i));
    }
    host_.emplace("rss0");
  }
  void enable(std::uint32_t pair, bool enabled) { pairs_[pair]->channel->set_enabled(enabled); }
  // Where each of a number of flows arrives, as far as it does.
  std::array<std::vector<Octets>, kPairs> flood() {
    for (unsigned port = 0; port < 40; ++port) {
      for (unsigned kind = 0; kind < 6; ++kind) {
        test::ShapedFrame frame = test::make_frame(
            {.ipv6 = kind % 2 == 1, .udp = kind / 2 == 1, .tags = kind == 5 ? 1U : 0U, .payload_bytes = 20});
        if (kind == 4) {
          test::put16(frame.bytes, 12, 0x88b5);
        }
        test::put16(frame.bytes, frame.l4, 1000 + port);
        host_->send(frame.bytes);
      }
    }
    return take();
  }
  std::array<std::vector<Octets>, kPairs> take() {
    loop_->poll(clock_now());
    std::array<std::vector<Octets>, kPairs> arrived;
    for (std::uint32_t i = 0; i < kPairs; ++i) {
      static_cast<void>(pairs_[i]->channel->receive(10'000));
      for (const auto& got : std::exchange(pairs_[i]->receiver.got, {})) {
        arrived[i].push_back(got.frame);
      }
    }
    return arrived;
  }
  static constexpr std::size_t kFlood = 240;

  std::unique_ptr<TapPort> port_;
  std::unique_ptr<Loop> loop_;
  std::vector<std::unique_ptr<test::OpenPair>> pairs_;
  std::optional<HostSide> host_;
};

void expect_placed(const NetSteering& by, std::span<const std::vector<Octets>> arrived, std::size_t frames) {
  std::size_t count = 0;
  for (std::size_t pair = 0; pair < arrived.size(); ++pair) {
    count += arrived[pair].size();
    for (const Octets& frame : arrived[pair]) {
      EXPECT_EQ(pair_by_hash(by, frame), pair);
    }
  }
  EXPECT_EQ(count, frames);
}

TEST_F(TapSteeringTest, EachFlowArrivesWhereTheTableSays) {
  EXPECT_EQ(port_->info().steering_types, TapSteering::kTypes);
  // Queues come and go in any order before, by which the kernel counts them.
  for (const std::uint32_t pair : {2U, 0U, 3U, 1U}) {
    enable(pair, true);
  }
  enable(0, false);
  enable(0, true);
  enable(3, false);
  for (const std::uint16_t unclassified : std::array<std::uint16_t, 3>{0, 1, 2}) {
    const NetSteering by = steering_of(TapSteering::kTypes, 3, unclassified);
    ASSERT_TRUE(port_->steer(by).has_value());
    const auto arrived = flood();
    expect_placed(by, arrived, kFlood);
    EXPECT_GT(arrived[0].size(), 20U);
    EXPECT_GT(arrived[1].size(), 20U);
    EXPECT_GT(arrived[2].size(), 20U);
  }
}

TEST_F(TapSteeringTest, WhatIsForAPairThatIsOffIsLostAndNotSomebodyElses) {
  for (std::uint32_t pair = 0; pair < kPairs; ++pair) {
    enable(pair, true);
  }
  const NetSteering by = steering_of(TapSteering::kTypes, 4, 0);
  ASSERT_TRUE(port_->steer(by).has_value());
  const std::size_t second = flood()[1].size();
  EXPECT_GT(second, 0U);
  enable(1, false);
  const auto without = flood();
  EXPECT_EQ(without[1].size(), 0U);
  expect_placed(by, without, kFlood - second);
  enable(1, true);
  EXPECT_EQ(take()[1].size(), 0U) << "what came meanwhile came for nobody";
  expect_placed(by, flood(), kFlood);
  // Without a table the pairs that are in use get everything again.
  enable(1, false);
  ASSERT_TRUE(port_->steer({}).has_value());
  const auto automatic = flood();
  EXPECT_EQ(automatic[1].size(), 0U);
  EXPECT_EQ(automatic[0].size() + automatic[2].size() + automatic[3].size(), kFlood);
  enable(1, true);
  EXPECT_EQ(take()[1].size(), 0U);
}

TEST_F(TapSteeringTest, ATapThatHasGoneSaysSo) {
  ASSERT_TRUE(port_->steer(steering_of(TapSteering::kTypes, 4, 0)).has_value());
  ASSERT_TRUE(test::run("ip link del rss0"));
  EXPECT_FALSE(port_->steer(steering_of(TapSteering::kTypes, 2, 0)).has_value() && port_->steer({}).has_value());
}

TEST_F(TapSteeringTest, OneQueueHasNothingToChoose) {
  auto one = make_tap_port({.name = "rss1"});
  ASSERT_TRUE(one.has_value()) << one.error().message;
  EXPECT_EQ((*one)->info().steering_types, 0U);
}

}  // namespace
}  // namespace ringway
