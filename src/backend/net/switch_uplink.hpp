// Joins a switch to what is outside: a queue pair of another port, a tap as a rule, and one of a port of the switch, on one
// worker, with no guest between them. What either has for its guest is sent by the other.
//
// Frames from outside are read into memory of ours, of which a switch may borrow some for other workers; when all is lent
// they wait outside. Frames to the outside that it can't take whole are cut. One that it has no room for is dropped, as by a
// guest without buffers. Several pairs are several uplinks, each on its worker.
//
// Runs from the loop's handlers alone, so it needs no queue in the worker's turns. Owner: the worker that opened it; both
// ports outlive it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/net/net_port.hpp"
#include "base/limits.hpp"
#include "loop/loop.hpp"
#include "request/net_segments.hpp"

namespace ringway {

struct SwitchUplinkCounters {
  Counter frames_in, frames_out;    // from outside, and to it
  Counter bad_headers;              // frames from outside that contradict themselves
  Counter dropped_full;             // to the outside, which had no room; or from it, which gave up
  Counter cut, dropped_uncuttable;  // frames that the outside can't take whole
};

class SwitchUplink final : private TimerHandler {
 public:
  // Errors: those of either port's open_channel().
  [[nodiscard]] static Result<std::unique_ptr<SwitchUplink>> open(NetPort& outside, NetPort& inside, std::uint32_t pair,
                                                                  Loop& loop);
  SwitchUplink(const SwitchUplink&) = delete;
  SwitchUplink& operator=(const SwitchUplink&) = delete;
  // REQUIRES: stop(), and what was lent is back.
  ~SwitchUplink() override;

  // Nothing is received from here on. What is lent comes back within the other workers' next turns; `idle`, if given, is
  // called then, from the loop or from within this call, and may destroy the uplink.
  void stop(std::move_only_function<void()> idle);

  // Any thread.
  [[nodiscard]] const SwitchUplinkCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] const NetChannelCounters& outside_counters() const noexcept { return outside_counters_; }
  [[nodiscard]] const NetChannelCounters& inside_counters() const noexcept { return inside_counters_; }

 private:
  static constexpr std::size_t kBuffers = 128;
  static constexpr std::size_t kBufferBytes = 68U << 10U;  // the longest frame, in pages; taken only where written to
  static constexpr std::size_t kHeaderBytes = spec::kNetHeaderBytes;
  static_assert(kBufferBytes >= kHeaderBytes + kNetGsoFrameBytesMax);

  // The guest that the outside sees.
  class Inward final : public NetReceiver, public NetSender {
   public:
    explicit Inward(SwitchUplink& uplink) : uplink_(uplink) {}
    using NetReceiver::deliver;
    [[nodiscard]] std::size_t deliver(std::span<const NetFrame> frames) noexcept override;
    void count_overruns(std::uint64_t frames) noexcept override { uplink_.counters_.dropped_full.add(frames); }
    [[nodiscard]] std::size_t lend(std::span<NetLanding> landings, std::uint32_t bytes) noexcept override;
    void land(std::span<const std::uint32_t> lengths) noexcept override;
    [[nodiscard]] bool filters() const noexcept override { return false; }
    [[nodiscard]] bool wants(std::span<const std::byte, 18> /*head*/) noexcept override { return true; }
    void wake() noexcept override { uplink_.schedule(); }
    // Of what we send outside nothing is lent.
    [[nodiscard]] NetLoan lend(std::size_t /*frame*/) noexcept override;
    void give_back(std::span<const NetLoan> /*none*/) noexcept override {}

   private:
    SwitchUplink& uplink_;
  };
  // The guest that the switch sees.
  class Outward final : public NetReceiver, public NetSender {
   public:
    explicit Outward(SwitchUplink& uplink) : uplink_(uplink) {}
    using NetReceiver::deliver;
    [[nodiscard]] std::size_t deliver(std::span<const NetFrame> frames) noexcept override;
    void count_overruns(std::uint64_t frames) noexcept override { uplink_.counters_.dropped_full.add(frames); }
    // A switch delivers.
    [[nodiscard]] std::size_t lend(std::span<NetLanding> /*none*/, std::uint32_t /*bytes*/) noexcept override { return 0; }
    void land(std::span<const std::uint32_t> /*none*/) noexcept override {}
    [[nodiscard]] bool filters() const noexcept override { return false; }
    [[nodiscard]] bool wants(std::span<const std::byte, 18> /*head*/) noexcept override { return true; }
    void wake() noexcept override { uplink_.schedule(); }
    [[nodiscard]] NetLoan lend(std::size_t frame) noexcept override;
    void give_back(std::span<const NetLoan> loans) noexcept override;

   private:
    SwitchUplink& uplink_;
  };

  explicit SwitchUplink(Loop& loop);
  void on_timer(Instant now) noexcept override;
  void schedule() noexcept;
  void unschedule() noexcept;
  [[nodiscard]] std::byte* buffer(std::size_t index) const noexcept { return memory_.get() + index * kBufferBytes; }
  // Sends the frames of buffers that were filled; those not lent then are free again.
  void send_inward(std::span<const std::uint16_t> filled, std::span<const std::uint32_t> lengths) noexcept;
  // REQUIRES: a buffer is free.
  void take_copy(const NetFrame& frame) noexcept;
  [[nodiscard]] bool send_outward(const NetFrame& frame) noexcept;
  void send_cut(const NetFrame& frame) noexcept;

  Loop& loop_;
  Inward inward_{*this};
  Outward outward_{*this};
  SwitchUplinkCounters counters_;
  NetChannelCounters outside_counters_;
  NetChannelCounters inside_counters_;
  std::unique_ptr<NetChannel> outside_;
  std::unique_ptr<NetChannel> inside_;
  std::uint64_t takes_ = 0;  // spec::kNetHost… that the outside takes
  bool scheduled_ = false;
  bool stopping_ = false;
  std::move_only_function<void()> idle_;

  std::unique_ptr<std::byte[]> memory_;  // of kBuffers, and one to cut frames into
  std::vector<std::uint16_t> free_;
  std::array<std::uint16_t, limits::kNetBatch> landing_{};  // buffers lent to the outside
  std::size_t landing_count_ = 0;
  std::array<iovec, limits::kNetBatch> pieces_{};
  std::array<NetFrame, limits::kNetBatch> frames_{};
  std::array<std::uint16_t, limits::kNetBatch> sending_{};  // buffers of frames_
  std::uint32_t lent_ = 0;                                  // bit n: sending_[n]
  static_assert(limits::kNetBatch <= 32);
  NetSegmenter segmenter_;
  std::uint32_t fragment_id_ = 0;
};

}  // namespace ringway
