// Stage (3) for network cards: what a card's frames go to and come from. A port is what its options name (a tap, a switch,
// null, …); a channel is the end of it that serves one queue pair on that pair's worker.
//
// Everything of a channel happens at once: when send() or receive() returns, no frame is under way and no memory of the
// guest is in use. So frames need no slot, ring memory no pin, and a stop nothing to wait for; what a kernel can do only
// later (a full tap) is left in the guest's ring until then.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.hpp"
#include "loop/loop.hpp"
#include "metrics/counter.hpp"
#include "request/net_frame.hpp"

namespace ringway {

// Room in the guest's receive buffers for one frame. The header of the pair's size comes first.
struct NetLanding {
  std::span<iovec> pieces;
  std::uint32_t bytes = 0;  // sum over `pieces`
};

// The receive queue of a pair, as its channel sees it. On the pair's worker.
class NetReceiver {
 public:
  enum class Delivery : std::uint8_t {
    done,        // the guest has it, or it was dropped for a reason that time doesn't mend, and counted
    no_buffers,  // the guest gave none, or not enough: nothing was taken. receive() is called again when it may have more
  };

  // Copies frames to the guest, in their order, as long as it has buffers: how many it is done with. Their headers are as
  // the sender gave them: what the guest didn't negotiate is made up for. May be called at any time on the worker's thread.
  [[nodiscard]] virtual std::size_t deliver(std::span<const NetFrame> frames) noexcept = 0;
  [[nodiscard]] Delivery deliver(const NetFrame& frame) noexcept {
    return deliver(std::span(&frame, 1)) == 1 ? Delivery::done : Delivery::no_buffers;
  }
  // How many frames deliver() would not take for lack of room, and the channel dropped therefore.
  virtual void count_overruns(std::uint64_t frames) noexcept = 0;

  // To have the kernel write frames where they belong: as many landings of at least `bytes` (header included; less only if
  // the guest's single buffers are smaller and can't be merged) as there are buffers for, landings.size() at most. Then,
  // before anything else is called, land() with the lengths of the frames (header included) in the first lengths.size() of
  // them; the others go back as if they had never been lent.
  [[nodiscard]] virtual std::size_t lend(std::span<NetLanding> landings, std::uint32_t bytes) noexcept = 0;
  virtual void land(std::span<const std::uint32_t> lengths) noexcept = 0;
  // Whether the guest wants a frame that begins with these bytes (NetReceiveFilter::kHeadBytes). Only if filters(): else it
  // wants all.
  [[nodiscard]] virtual bool filters() const noexcept = 0;
  [[nodiscard]] virtual bool wants(std::span<const std::byte, 18> head) noexcept = 0;

  // The channel may have frames: receive() is called in this turn or the next one.
  virtual void wake() noexcept = 0;

 protected:
  ~NetReceiver() = default;
};

// The transmit queue of a pair, as its channel sees it.
class NetSender {
 public:
  // After a send() that took less than all: it may take more now.
  virtual void wake() noexcept = 0;

 protected:
  ~NetSender() = default;
};

// What happened to frames in one pair's channel, whatever became of it. Written by its worker, read by anyone.
struct NetChannelCounters {
  Counter dropped_down;    // sent by the guest while the port was down (no carrier, or the interface is gone)
  Counter dropped_error;   // the kernel refused a frame for good
  Counter full;            // times that the port took no more, and the guest had to wait
  Counter receive_errors;  // reads that failed
};

class NetChannel {
 public:
  enum class Received : std::uint8_t {
    all,         // there are no more: the channel calls wake() when there are
    budget,      // as many as it was asked for; there may be more
    no_buffers,  // stopped by the receiver's lack of them
  };

  NetChannel() = default;
  NetChannel(const NetChannel&) = delete;
  NetChannel& operator=(const NetChannel&) = delete;
  virtual ~NetChannel() = default;

  // Sends frames in their order, and returns how many it is done with; those that it drops count in. Fewer than all: the
  // port is full, and the channel calls NetSender::wake() when it may go on.
  [[nodiscard]] virtual std::size_t send(std::span<const NetFrame> frames) noexcept = 0;
  // Gives frames to the receiver, `budget` at most.
  [[nodiscard]] virtual Received receive(std::uint32_t budget) noexcept = 0;
  // What the guest can take now: a subset of the offloads (spec::kNetGuest…) and of the header sizes that its device
  // offered.
  virtual void set_guest(std::uint64_t guest_offloads, std::size_t header_bytes) noexcept = 0;
  // Whether the guest uses the pair at all. Nothing is received for one that it doesn't.
  virtual void set_enabled(bool enabled) noexcept = 0;
};

// What a port can do, for the device's features and configuration.
struct NetPortInfo {
  std::string kind;                  // "tap", "null", …; for people
  std::uint32_t pairs_max = 1;       // channels that can be open at a time
  std::uint32_t mtu_max = 65535;     // the largest that frames may have
  std::uint64_t host_offloads = 0;   // spec::kNetHost… (and kNetCsum) that it takes from the guest
  std::uint64_t guest_offloads = 0;  // spec::kNetGuest… that it can make use of
  bool borrows = false;              // its channels keep frames beyond their send(), and give them back in any order
};

class NetPort {
 public:
  virtual ~NetPort() = default;  // REQUIRES: no channel is open

  // Control thread. Constant.
  [[nodiscard]] virtual const NetPortInfo& info() const noexcept = 0;

  // On the worker's thread. What is referred to outlives the channel. Pair numbers count from 0, and each is open once.
  struct Pair {
    std::uint32_t index = 0;
    Loop& loop;
    NetReceiver& receiver;
    NetSender& sender;
    NetChannelCounters& counters;
  };
  [[nodiscard]] virtual Result<std::unique_ptr<NetChannel>> open_channel(const Pair& pair) = 0;
};

}  // namespace ringway
