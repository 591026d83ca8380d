// Stage (2) for the control queue of a network card: a validated chain becomes a command, or a counted reason for refusal
// (virtio 1.3 §5.1.6.5). What a command then changes is in net_control_state.hpp.
//
// Pure: reads guest memory once, into the command, and writes nothing but the answer in write_net_control_reply(). A test
// can build a command without a ring.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "base/limits.hpp"
#include "ring/chain.hpp"
#include "ring/spec.hpp"

namespace ringway {

// As in a frame: the first byte goes over the wire first.
using NetMac = std::array<std::uint8_t, spec::kMacBytes>;

// Why a command was answered with ERR (or not at all). Each is counted by name, per device.
enum class NetControlRefusal : std::uint8_t {
  none,
  bad_chain,          // the ring found a chain fault (unmapped buffer, loop in an indirect table, …)
  no_reply,           // no writable byte for the answer: the chain is returned with length 0
  short_header,       // fewer than 2 readable bytes
  unknown_command,    // a class, or a command of a class, that we don't know
  bad_length,         // less or more data than the command has
  not_negotiated,     // without the feature bit that the command needs
  bad_value,          // a VLAN, count, queue, hash type or offload that there isn't, or not in this device
  queue_not_enabled,  // coalescing of a queue that is no receive or transmit queue, or not enabled
  port_failed,        // what carries the frames could not do it
};
inline constexpr std::size_t kNetControlRefusals = 10;
[[nodiscard]] const char* to_string(NetControlRefusal refusal) noexcept;

// One of the two tables of MAC_TABLE_SET.
struct NetMacTable {
  std::uint8_t count = 0;
  bool all = false;  // more than fit were listed: none is kept
  std::array<NetMac, limits::kNetMacTableMax> entries{};
  bool operator==(const NetMacTable&) const = default;
};

// The hash over addresses and ports: for RSS, and for hash_report in the header.
struct NetHashing {
  std::uint32_t types = 0;  // spec::kNetHashType…; none: no frame is hashed
  std::uint8_t key_bytes = 0;
  std::array<std::uint8_t, spec::kNetRssKeyBytesMax> key{};  // zeros behind key_bytes
  bool operator==(const NetHashing&) const = default;
};

// The receive queue by hash. Entries are queue pairs, counted from 0 (the wire's rss_rq_id are the virtqueue indices 0, 2,
// 4, … halved, which is the same).
struct NetRssTable {
  std::uint16_t mask = 0;               // of the hash; entries less one
  std::uint16_t unclassified_pair = 0;  // of frames that have no hash
  std::array<std::uint16_t, limits::kNetRssTableMax> pairs{};
  bool operator==(const NetRssTable&) const = default;
};

// When used buffers are notified; with a zero in either: after each frame.
struct NetCoalescing {
  std::uint32_t max_packets = 0;
  std::uint32_t max_usecs = 0;
  bool operator==(const NetCoalescing&) const = default;
};
static_assert(sizeof(NetCoalescing) == 8, "as it stands on the wire (struct virtio_net_ctrl_coal)");

// --- The commands. Their values are the driver's, and not yet looked at beyond what it takes to find their ends. ---

struct NetSetRxMode {
  std::uint8_t mode = 0;  // spec::kNetCtrlRx…, one of the six
  bool on = false;        // any byte but 0, as elsewhere
  bool operator==(const NetSetRxMode&) const = default;
};
struct NetSetMacTables {
  NetMacTable unicast;
  NetMacTable multicast;
  bool operator==(const NetSetMacTables&) const = default;
};
struct NetSetMac {
  NetMac mac{};
  bool operator==(const NetSetMac&) const = default;
};
struct NetSetVlan {
  std::uint16_t id = 0;
  bool member = false;
  bool operator==(const NetSetVlan&) const = default;
};
struct NetAckAnnounce {
  bool operator==(const NetAckAnnounce&) const = default;
};
struct NetSetPairs {
  std::uint16_t pairs = 0;
  bool operator==(const NetSetPairs&) const = default;
};
struct NetConfigureRss {
  NetHashing hashing;
  NetRssTable table;  // the first mask + 1 entries are given; mask is below limits::kNetRssTableMax
  std::uint16_t transmit_pairs = 0;
  bool operator==(const NetConfigureRss&) const = default;
};
struct NetConfigureHash {
  NetHashing hashing;
  bool operator==(const NetConfigureHash&) const = default;
};
struct NetSetOffloads {
  std::uint64_t offloads = 0;  // bits as the features of the same names
  bool operator==(const NetSetOffloads&) const = default;
};
struct NetSetCoalescing {
  bool transmit = false;  // of all transmit queues; else of all receive queues
  NetCoalescing coalescing;
  bool operator==(const NetSetCoalescing&) const = default;
};
struct NetSetQueueCoalescing {
  std::uint16_t queue = 0;  // index of the virtqueue
  NetCoalescing coalescing;
  bool operator==(const NetSetQueueCoalescing&) const = default;
};
struct NetGetQueueCoalescing {
  std::uint16_t queue = 0;
  bool operator==(const NetGetQueueCoalescing&) const = default;
};

// monostate: none, the chain was refused.
using NetCommand = std::variant<std::monostate, NetSetRxMode, NetSetMacTables, NetSetMac, NetSetVlan, NetAckAnnounce,
                                NetSetPairs, NetConfigureRss, NetConfigureHash, NetSetOffloads, NetSetCoalescing,
                                NetSetQueueCoalescing, NetGetQueueCoalescing>;

// Where the answer goes, in guest memory. All of it is written, so that the used length is true.
struct NetControlReply {
  static constexpr std::size_t kBytesMax = sizeof(NetCoalescing) + 1;
  std::array<iovec, kBytesMax> segments{};  // of one byte at least
  std::uint8_t count = 0;                   // 0: nothing can be answered, the chain is returned with length 0
  std::uint8_t bytes = 0;                   // sum over the segments; the last one is the ack
  std::uint8_t used_length = 0;             // once the answer is written
};

struct NetControlParsed {
  NetControlRefusal refusal = NetControlRefusal::none;
  NetControlReply reply;
  NetCommand command;
};

// Reads each byte of the command at most once. `chain` may come from PopStatus::chain_fault: then only the place for the ack
// is looked for; it is the last writable byte that could be translated.
//
// The chain may be framed in any way (§2.7.4). The ack is the first writable byte, and what follows is left alone. Only
// VQ_GET has an answer beside it: by struct virtio_net_ctrl the pair belongs to the data, so it comes first and the ack is
// the ninth byte. Without room for the pair the ack is the last writable byte; that is answered with bad_length.
//
// Time and memory are bounded by the chain's segments and by what a NetCommand holds: longer tables of addresses are passed
// over, longer RSS tables and keys refused.
[[nodiscard]] NetControlParsed parse_net_control(const Chain& chain, bool chain_fault) noexcept;

// Writes the ack, and before it `answer` where the command has one (a NetCoalescing of zeros if it failed). Returns the
// used length. REQUIRES: reply.count > 0.
std::uint32_t write_net_control_reply(const NetControlReply& reply, NetControlRefusal refusal,
                                      const NetCoalescing& answer) noexcept;

}  // namespace ringway
