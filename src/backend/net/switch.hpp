// A switch between network cards of this process: an Ethernet bridge with VLANs (IEEE 802.1Q), whose ports are NetPorts.
//
// Theory of operation
//   The control thread makes a switch and attaches ports to it; what a port may send and receive is fixed then. Each queue
//   pair of a port has a channel on its own worker. A frame is judged where it is sent (SwitchFrame), its source is learned
//   (SwitchTable), and it goes to the port of its destination, or to all of its VLAN. On one worker it is copied from guest
//   to guest at once. To another worker it is lent: it stays in the sender's ring and memory until that worker has copied
//   it to its guest and given it back (SwitchSeat, SwitchPool). There is no lock, no memory from the heap and no system call
//   for a frame; a worker that sleeps is woken once for a batch.
//
// Why nobody is ever given a frame that has gone
//   Nothing that two workers share is freed before the switch is: places of ports (SwitchFabric) and seats of workers stay
//   and are used again. A channel is touched by its own worker only; a parcel names port and pair, and is looked up on that
//   worker when it is there. If the channel has been closed meanwhile, or the place belongs to another port now (its
//   generation tells), it goes back. So ports may come and go under traffic, with no grace period to wait for, and what a
//   sender knew of a port when it sent may be out of date without harm: who may receive is judged again by the receiver's
//   channel, by rules that are its own.
//
// Why a ring that stops doesn't wait long
//   What is lent is in an inbox or in a channel's queue. An inbox is looked at in each turn of its worker, and if the worker
//   sleeps it is woken. A queue is emptied, at 128 frames a turn, or given back as a whole as soon as its pair is disabled,
//   stopped or closed. A receiver without buffers loses the frame. Nobody waits for anybody.
//
// When more comes than goes, frames are dropped, each counted by its reason (SwitchDrop): a sender is never held up by one
// receiver. Bounded are what a sender has under way (SwitchPool::kFrames), of that what is with one worker (kCredit), and
// what waits for one receiver (SwitchChannel::kQueuedMax).
//
// A flow is sent by one pair and received by one pair, in order: the one on which the receiver has itself sent last for that
// flow, as with the kernel's tap; until it has, one chosen by the flow's hash among the pairs that are enabled. A receiver
// with RSS has said itself which pair it is (SwitchSteering).
//
// Not here: spanning trees (a switch has no loops but those made outside), multicast groups (they go to all of the VLAN).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/net/net_port.hpp"
#include "backend/net/switch_frame.hpp"
#include "base/result.hpp"
#include "base/time.hpp"
#include "request/net_control.hpp"

namespace ringway {

class SwitchFabric;

struct SwitchOptions {
  std::string name = {};                     // for messages
  std::size_t addresses = 8192;              // that are known at a time; a power of two
  std::uint32_t addresses_per_port = 1024;   // of them, at most
  Duration ageing = Duration::seconds(300);  // an address that sends nothing is forgotten after that
  std::optional<std::uint64_t> secret = {};  // where addresses go in the table; for tests. Else the kernel gives one
};

struct SwitchPortOptions {
  std::uint32_t pairs_max = 128;
  // Frames without a tag are in this VLAN. Without `trunk`, it is the only one, and 1 if nothing is said; frames with
  // another tag are dropped. With it, frames without a tag are dropped if nothing is said.
  std::optional<std::uint16_t> vlan = {};
  std::vector<std::uint16_t> trunk = {};  // VLANs whose frames have tags here
  bool isolated = false;                  // exchanges frames only with ports that aren't
  std::vector<NetMac> macs = {};          // the only source addresses; empty: any
  bool checks_ip = false;                 // also of IP and ARP:
  std::vector<NetIpv4> ipv4 = {};
  std::vector<NetIpv6> ipv6 = {};  // with the link-local one
};

struct SwitchStats {
  std::size_t workers = 0;                    // that have or had channels
  std::uint64_t strays = 0;                   // frames that were under way to a channel when it was closed
  std::vector<std::uint32_t> addresses = {};  // known, by port, in the order in which places are used
};

// Owner: the control thread.
class Switch {
 public:
  // Errors: options out of range; each says what it should be.
  [[nodiscard]] static Result<std::unique_ptr<Switch>> create(const SwitchOptions& options);
  Switch(const Switch&) = delete;
  Switch& operator=(const Switch&) = delete;
  ~Switch();

  // The port is detached when it is destroyed, which is on the control thread, too; it may be after the switch. Errors:
  // VLANs or addresses that can't be, or all 256 ports are attached.
  [[nodiscard]] Result<std::unique_ptr<NetPort>> attach(const SwitchPortOptions& options);

  [[nodiscard]] const std::string& name() const noexcept;
  [[nodiscard]] SwitchStats stats() const;

 private:
  explicit Switch(std::shared_ptr<SwitchFabric> fabric);

  std::shared_ptr<SwitchFabric> fabric_;  // shared with the ports
};

}  // namespace ringway
