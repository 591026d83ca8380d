// One queue of a tap as the channel of a queue pair.
//
// Frames to the guest are read straight into its buffers, several in one system call, with memory of ours behind each so
// that a longer frame than was expected isn't cut. As long as frames come in order and as they are wanted they stay where
// they were read; from the first other one on those of that call are handed over by copy (deliver()). The kernel is never
// asked for a frame that the guest has no buffer for.
//
// A channel starts disabled: nothing is received; what is sent goes out all the same. Owner: the worker that opened it.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "backend/net/batched_io.hpp"
#include "backend/net/net_port.hpp"
#include "backend/net/tap_device.hpp"
#include "base/limits.hpp"
#include "loop/loop.hpp"

namespace ringway {

class TapChannel final : public NetChannel {
 public:
  // Errors: the loop can't watch the queue.
  [[nodiscard]] static Result<std::unique_ptr<TapChannel>> open(const NetPort::Pair& pair, TapDevice& device,
                                                                BatchedEngine engine);
  TapChannel(const TapChannel&) = delete;
  TapChannel& operator=(const TapChannel&) = delete;
  ~TapChannel() override;

  [[nodiscard]] std::size_t send(std::span<const NetFrame> frames) noexcept override;
  [[nodiscard]] Received receive(std::uint32_t budget) noexcept override;
  void set_guest(std::uint64_t guest_offloads, std::size_t header_bytes) noexcept override;
  void set_enabled(bool enabled) noexcept override;

 private:
  static constexpr std::size_t kBatch = BatchedIo::kCallsMax;
  static constexpr std::size_t kPiecesMax = 1024;  // of one call: IOV_MAX
  // Written from a copy in one piece, which is cheaper for us and the kernel than a vector.
  static constexpr std::size_t kCopiedBytesMax = 2048;
  static constexpr std::size_t kFrameBytesMax = 68U << 10U;  // header and all, in pages
  static constexpr std::uint32_t kExpectedBytesFirst = spec::kNetHeaderBytes + kEthernetHeaderBytes + 1500;
  static_assert(kFrameBytesMax >= kNetGsoFrameBytesMax + sizeof(spec::NetHeader));
  static_assert(kBatch == limits::kNetBatch);

  // Calls `channel` on an edge of one of its two watches.
  struct Edge final : FdHandler {
    Edge(TapChannel& owner, void (TapChannel::*function)(std::uint32_t) noexcept) : channel(owner), handler(function) {}
    void on_ready(std::uint32_t events) noexcept override { (channel.*handler)(events); }
    TapChannel& channel;
    void (TapChannel::*handler)(std::uint32_t) noexcept;
  };
  struct Retry final : TimerHandler {
    explicit Retry(TapChannel& owner) : channel(owner) {}
    void on_timer(Instant /*now*/) noexcept override { channel.on_writable(0); }
    TapChannel& channel;
  };
  // A frame that is to be delivered from our memory: slot `slot`, header first.
  struct Gathered {
    std::uint8_t slot;
    std::uint32_t bytes;
  };
  // Where a read goes.
  struct Reading {
    std::span<const iovec> guest;  // the guest's part, and
    std::uint32_t guest_bytes;     // its length; what is more goes to the slot, behind room for that part
  };
  enum class Arrived : std::uint8_t { in_place, to_copy, unwanted, bad };

  TapChannel(const NetPort::Pair& pair, TapDevice& device, BatchedEngine engine);

  void on_readable(std::uint32_t events) noexcept;
  void on_writable(std::uint32_t events) noexcept;
  void watch_for_room() noexcept;
  void stop_watching_for_room() noexcept;
  void note_gone(std::int32_t error) noexcept;
  void drop_gathered() noexcept;
  void discard_queued() noexcept;
  [[nodiscard]] BatchedIo& io() noexcept;

  std::size_t prepare_writes(std::span<const NetFrame> frames) noexcept;
  std::size_t settle_writes(std::size_t count) noexcept;

  std::size_t prepare_reads(std::size_t max) noexcept;
  std::uint32_t take_batch(std::span<const std::uint8_t> order) noexcept;
  Arrived judge(std::size_t call) noexcept;
  void gather(std::size_t call) noexcept;
  bool deliver_gathered() noexcept;
  bool make_frame(const Gathered& gathered, iovec& piece, NetFrame& frame) const noexcept;
  void adapt(std::size_t asked, std::size_t came, std::uint32_t longest) noexcept;
  [[nodiscard]] std::byte* slot(std::size_t index) const noexcept { return slots_.get() + index * kFrameBytesMax; }

  TapDevice& device_;
  const std::uint32_t pair_;
  const int fd_;
  const BatchedEngine engine_;
  Loop& loop_;
  NetReceiver& receiver_;
  NetSender& sender_;
  NetChannelCounters& counters_;

  Edge readable_{*this, &TapChannel::on_readable};
  Edge writable_{*this, &TapChannel::on_writable};
  Retry retry_{*this};
  WatchId readable_watch_;
  WatchId writable_watch_;

  std::optional<BatchedIo> io_;  // from the first use on
  bool enabled_ = false;
  bool gone_ = false;  // the interface is no more, or can't be used
  bool may_have_frames_ = false;
  bool writes_in_order_ = false;  // one call each: the queue may refuse a frame
  std::size_t header_bytes_ = spec::kNetHeaderBytes;
  bool takes_checksum_ = false;  // the guest takes a partial checksum,
  std::uint32_t takes_gso_ = 0;  // and of each bit n frames of the GSO type n,
  bool takes_ecn_ = false;       // with ECN
  std::size_t batch_ = 2;        // reads in one call
  std::uint32_t expected_bytes_ = kExpectedBytesFirst;

  // Frames that were read and don't lie in the guest's buffers. Nothing is read before they are delivered.
  std::array<Gathered, kBatch> gathered_{};
  std::size_t gathered_count_ = 0;
  std::size_t gathered_done_ = 0;

  std::array<BatchedCall, kBatch> calls_{};
  std::array<NetLanding, kBatch> landings_{};
  std::array<Reading, kBatch> readings_{};
  std::unique_ptr<iovec[]> pieces_;        // of the calls
  std::unique_ptr<std::byte[]> slots_;     // kBatch for frames to the guest, then one for a frame of too many pieces
  std::unique_ptr<std::byte[]> outgoing_;  // kBatch of kCopiedBytesMax
};

}  // namespace ringway
