// Stage (3) for network cards: what a card's frames go to and come from. A port is what its options name (a tap, a switch,
// null, …); a channel is the end of it that serves one queue pair on that pair's worker.
//
// As a rule everything of a channel happens at once: when send() or receive() returns, no frame is under way and no memory
// of the guest is in use. So frames need no slot, ring memory no pin, and a stop nothing to wait for; what a kernel can do
// only later (a full tap) is left in the guest's ring until then. The exception is a switch whose other end is on another
// worker: it borrows the frame (NetSender::lend()), and gives it back within that worker's next turn.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.hpp"
#include "loop/loop.hpp"
#include "metrics/counter.hpp"
#include "request/net_control.hpp"
#include "request/net_frame.hpp"
#include "ring/chain.hpp"

namespace ringway {

struct PinnedMap;

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

  // Whether deliver() takes nothing more in this turn, however many buffers there are: what it says "no_buffers" to now may
  // go in the next turn.
  [[nodiscard]] virtual bool spent() const noexcept { return false; }

  // The channel may have frames: receive() is called in this turn or the next one.
  virtual void wake() noexcept = 0;

 protected:
  ~NetReceiver() = default;
};

// By what a transmit queue knows a frame again that it has lent.
struct NetLoan {
  ChainId chain;
  PinnedMap* memory = nullptr;
};

// The transmit queue of a pair, as its channel sees it.
class NetSender {
 public:
  // After a send() that took less than all: it may take more now.
  virtual void wake() noexcept = 0;
  // Within send(), of a frame that it was given and counts as done with: the channel keeps it. Its pieces may be read, by
  // any thread, until it is given back; its header and the list of pieces are gone when send() returns. While a frame is
  // lent its chain is in flight and its memory pinned: a stop of the ring waits for it, so give it back soon. Once a frame.
  [[nodiscard]] virtual NetLoan lend(std::size_t frame) noexcept = 0;
  // On the worker's thread, in any order; within the same send() too.
  virtual void give_back(std::span<const NetLoan> loans) noexcept = 0;

 protected:
  ~NetSender() = default;
};

// Why a switch didn't pass a frame on. A frame for several ports counts once for each that doesn't get it.
enum class SwitchDrop : std::uint8_t {
  none,
  malformed,     // a group address as source, a tag that isn't all there, or a checksum range that no tag leaves room for
  reserved,      // to an address that no bridge forwards (01:80:c2:00:00:0x, IEEE 802.1Q table 8-1)
  vlan,          // a tag that the port doesn't have, no tag where it has no native VLAN, or a receiver outside the VLAN
  spoofed_mac,   // a source address that isn't the port's
  spoofed_ip,    // a source address of IP or ARP that isn't the port's
  isolated,      // from an isolated port to another one
  unreachable,   // the port of that address isn't receiving, or it is the sender's own
  pool_empty,    // too many frames of this sender are on their way to other workers
  credit_spent,  // too many of them to that one worker
  inbox_full,    // too many frames wait for this receiver
};
inline constexpr std::size_t kSwitchDrops = 11;
[[nodiscard]] const char* to_string(SwitchDrop drop) noexcept;

// What happened to frames in one pair's channel, whatever became of it. Written by its worker, read by anyone.
struct NetChannelCounters {
  Counter dropped_down;    // sent by the guest while the port was down (no carrier, or the interface is gone)
  Counter dropped_error;   // the kernel refused a frame for good
  Counter full;            // times that the port took no more, and the guest had to wait
  Counter receive_errors;  // reads that failed
  // Of a switch: what was dropped, by SwitchDrop; all but the last by the sender, but for a VLAN or isolation that the
  // receiver finds violated.
  std::array<Counter, kSwitchDrops> switch_dropped;
  Counter flooded;  // frames sent to all ports of a VLAN
  Counter lent;     // frames passed to other workers where they lie, and
  Counter copied;   // those small enough to be copied first
  Counter rings;    // sleeping workers that were woken
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
  // Before the pair's receive queue stops calling receive() on its own: from here the channel calls NetReceiver::wake() when
  // it has something. True if it has already, and then no wake() need come. A channel that always calls it needs no more.
  [[nodiscard]] virtual bool arm() noexcept { return false; }
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
  std::uint32_t steering_types = 0;  // spec::kNetHashType… by which it can choose the pair of a frame; 0: none (steer())
};

// Receive-side scaling: the pair of a frame by its hash (virtio 1.3 §5.1.6.5.6).
struct NetSteering {
  NetHashing hashing;
  NetRssTable table;
  bool operator==(const NetSteering&) const = default;
};

class NetPort {
 public:
  virtual ~NetPort() = default;  // REQUIRES: no channel is open

  // Control thread. Constant.
  [[nodiscard]] virtual const NetPortInfo& info() const noexcept = 0;

  // Control thread. Frames that arrive from its return on are for the pairs that `by` names, whatever pair sends; those for
  // a pair that is not enabled are dropped. Without a value, and at first, the port chooses in its own way. Frames under way
  // meanwhile may go by parts of both. REQUIRES: info().steering_types has the hash's types. Errors: the kernel's, with
  // nothing changed.
  [[nodiscard]] virtual Result<> steer(const std::optional<NetSteering>& by) {
    return by ? fail("this port can't choose queue pairs by hash") : Result<>{};
  }

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
