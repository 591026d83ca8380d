#include "request/net_control.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.hpp"
#include "guest/access.hpp"

namespace ringway {
namespace {

using spec::kNetCtrlClassAnnounce;
using spec::kNetCtrlClassGuestOffloads;
using spec::kNetCtrlClassMac;
using spec::kNetCtrlClassMq;
using spec::kNetCtrlClassNotfCoal;
using spec::kNetCtrlClassRx;
using spec::kNetCtrlClassVlan;

// Reads the device-readable part of a chain from its start on, whatever its framing.
class ControlReader {
 public:
  explicit ControlReader(const Chain& chain) noexcept : segments_(chain.readable()), left_(chain.readable_bytes()) {}

  [[nodiscard]] std::uint64_t left() const noexcept { return left_; }

  // Copies the next `bytes` bytes into our memory; false, and nothing read, if fewer are left.
  [[nodiscard]] bool take(void* to, std::size_t bytes) noexcept {
    if (bytes > left_) {
      return false;
    }
    std::byte* target = static_cast<std::byte*>(to);
    advance(bytes, [&target](const std::byte* from, std::size_t piece) {
      guest::copy(target, from, piece);
      target += piece;
    });
    return true;
  }
  // REQUIRES: as many are left.
  void skip(std::uint64_t bytes) noexcept {
    RW_DCHECK(bytes <= left_);
    advance(bytes, [](const std::byte*, std::size_t) {});
  }
  // Takes a value that has to be all that is left.
  template <typename T>
  [[nodiscard]] bool take_last(T& to) noexcept {
    return left_ == sizeof(T) && take(&to, sizeof(T));
  }

 private:
  template <typename Visit>
  void advance(std::uint64_t bytes, const Visit& visit) noexcept {
    left_ -= bytes;
    while (bytes > 0) {
      RW_DCHECK(!segments_.empty());
      const iovec& segment = segments_.front();
      const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, segment.iov_len - skip_));
      visit(static_cast<const std::byte*>(segment.iov_base) + skip_, piece);
      bytes -= piece;
      skip_ += piece;
      if (skip_ == segment.iov_len) {
        segments_ = segments_.subspan(1);
        skip_ = 0;
      }
    }
  }

  std::span<const iovec> segments_;
  std::uint64_t left_;
  std::size_t skip_ = 0;  // of the first segment
};

#pragma pack(push, 1)
struct RssHeadWire {
  std::uint32_t hash_types;
  std::uint16_t indirection_table_mask;
  std::uint16_t unclassified_queue;
};
struct RssTailWire {
  std::uint16_t max_tx_vq;
  std::uint8_t hash_key_length;
};
struct HashConfigWire {
  std::uint32_t hash_types;
  std::uint16_t reserved[4];
  std::uint8_t hash_key_length;
};
struct CoalescingQueueWire {
  std::uint16_t vq_index;
  std::uint16_t reserved;
};
struct CoalescingVqWire {
  CoalescingQueueWire queue;
  NetCoalescing coalescing;
};
#pragma pack(pop)
static_assert(sizeof(RssHeadWire) == 8 && sizeof(RssTailWire) == 3 && sizeof(HashConfigWire) == 13);
static_assert(sizeof(CoalescingQueueWire) == 4 && sizeof(CoalescingVqWire) == 12);

NetControlRefusal parse_rx(std::uint8_t mode, ControlReader reader, NetCommand& out) noexcept {
  if (mode > spec::kNetCtrlRxNobcast) {
    return NetControlRefusal::unknown_command;
  }
  std::uint8_t on = 0;
  if (!reader.take_last(on)) {
    return NetControlRefusal::bad_length;
  }
  out = NetSetRxMode{.mode = mode, .on = on != 0};
  return NetControlRefusal::none;
}

bool take_mac_table(ControlReader& reader, NetMacTable& out) noexcept {
  std::uint32_t entries = 0;
  if (!reader.take(&entries, sizeof entries)) {
    return false;
  }
  const std::uint64_t bytes = std::uint64_t{entries} * spec::kMacBytes;
  if (bytes > reader.left()) {
    return false;
  }
  if (entries > limits::kNetMacTableMax) {
    out.all = true;
    reader.skip(bytes);
    return true;
  }
  out.count = static_cast<std::uint8_t>(entries);
  return reader.take(out.entries.data(), static_cast<std::size_t>(bytes));
}

NetControlRefusal parse_mac(std::uint8_t command, ControlReader reader, NetCommand& out) noexcept {
  if (command == spec::kNetCtrlMacTableSet) {
    NetSetMacTables& tables = out.emplace<NetSetMacTables>();
    const bool complete = take_mac_table(reader, tables.unicast) && take_mac_table(reader, tables.multicast);
    return complete && reader.left() == 0 ? NetControlRefusal::none : NetControlRefusal::bad_length;
  }
  if (command == spec::kNetCtrlMacAddrSet) {
    return reader.take_last(out.emplace<NetSetMac>().mac) ? NetControlRefusal::none : NetControlRefusal::bad_length;
  }
  return NetControlRefusal::unknown_command;
}

NetControlRefusal parse_vlan(std::uint8_t command, ControlReader reader, NetCommand& out) noexcept {
  if (command != spec::kNetCtrlVlanAdd && command != spec::kNetCtrlVlanDel) {
    return NetControlRefusal::unknown_command;
  }
  NetSetVlan& vlan = out.emplace<NetSetVlan>();
  vlan.member = command == spec::kNetCtrlVlanAdd;
  return reader.take_last(vlan.id) ? NetControlRefusal::none : NetControlRefusal::bad_length;
}

NetControlRefusal parse_announce(std::uint8_t command, ControlReader reader, NetCommand& out) noexcept {
  if (command != spec::kNetCtrlAnnounceAck) {
    return NetControlRefusal::unknown_command;
  }
  out = NetAckAnnounce{};
  return reader.left() == 0 ? NetControlRefusal::none : NetControlRefusal::bad_length;
}

// The key, which ends both commands that have one.
NetControlRefusal take_key(ControlReader& reader, std::uint8_t bytes, NetHashing& out) noexcept {
  if (bytes > out.key.size()) {
    return NetControlRefusal::bad_value;
  }
  if (reader.left() != bytes || !reader.take(out.key.data(), bytes)) {
    return NetControlRefusal::bad_length;
  }
  out.key_bytes = bytes;
  return NetControlRefusal::none;
}

NetControlRefusal parse_rss(ControlReader reader, NetConfigureRss& out) noexcept {
  RssHeadWire head{};
  if (!reader.take(&head, sizeof head)) {
    return NetControlRefusal::bad_length;
  }
  if (head.indirection_table_mask >= limits::kNetRssTableMax) {
    return NetControlRefusal::bad_value;
  }
  const std::size_t table_bytes = (std::size_t{head.indirection_table_mask} + 1) * sizeof(std::uint16_t);
  RssTailWire tail{};
  if (!reader.take(out.table.pairs.data(), table_bytes) || !reader.take(&tail, sizeof tail)) {
    return NetControlRefusal::bad_length;
  }
  out.hashing.types = head.hash_types;
  out.table.mask = head.indirection_table_mask;
  out.table.unclassified_pair = head.unclassified_queue;
  out.transmit_pairs = tail.max_tx_vq;
  return take_key(reader, tail.hash_key_length, out.hashing);
}

NetControlRefusal parse_hash(ControlReader reader, NetConfigureHash& out) noexcept {
  // `reserved` is ignored, though it should be zeros: older Linux drivers have the number of their queue pairs in it.
  HashConfigWire head{};
  if (!reader.take(&head, sizeof head)) {
    return NetControlRefusal::bad_length;
  }
  out.hashing.types = head.hash_types;
  return take_key(reader, head.hash_key_length, out.hashing);
}

NetControlRefusal parse_mq(std::uint8_t command, ControlReader reader, NetCommand& out) noexcept {
  switch (command) {
    case spec::kNetCtrlMqVqPairsSet:
      return reader.take_last(out.emplace<NetSetPairs>().pairs) ? NetControlRefusal::none : NetControlRefusal::bad_length;
    case spec::kNetCtrlMqRssConfig:
      return parse_rss(reader, out.emplace<NetConfigureRss>());
    case spec::kNetCtrlMqHashConfig:
      return parse_hash(reader, out.emplace<NetConfigureHash>());
    default:
      return NetControlRefusal::unknown_command;
  }
}

NetControlRefusal parse_offloads(std::uint8_t command, ControlReader reader, NetCommand& out) noexcept {
  if (command != spec::kNetCtrlGuestOffloadsSet) {
    return NetControlRefusal::unknown_command;
  }
  return reader.take_last(out.emplace<NetSetOffloads>().offloads) ? NetControlRefusal::none : NetControlRefusal::bad_length;
}

NetControlRefusal parse_coalescing(std::uint8_t command, ControlReader reader, NetCommand& out) noexcept {
  switch (command) {
    case spec::kNetCtrlNotfCoalTxSet:
    case spec::kNetCtrlNotfCoalRxSet: {
      NetSetCoalescing& set = out.emplace<NetSetCoalescing>();
      set.transmit = command == spec::kNetCtrlNotfCoalTxSet;
      return reader.take_last(set.coalescing) ? NetControlRefusal::none : NetControlRefusal::bad_length;
    }
    case spec::kNetCtrlNotfCoalVqSet: {
      CoalescingVqWire wire{};
      if (!reader.take_last(wire)) {
        return NetControlRefusal::bad_length;
      }
      out = NetSetQueueCoalescing{.queue = wire.queue.vq_index, .coalescing = wire.coalescing};
      return NetControlRefusal::none;
    }
    case spec::kNetCtrlNotfCoalVqGet: {
      CoalescingQueueWire wire{};
      if (!reader.take_last(wire)) {
        return NetControlRefusal::bad_length;
      }
      out = NetGetQueueCoalescing{.queue = wire.vq_index};
      return NetControlRefusal::none;
    }
    default:
      return NetControlRefusal::unknown_command;
  }
}

NetControlRefusal parse_by_class(spec::NetCtrlHeader header, ControlReader reader, NetCommand& out) noexcept {
  switch (header.control_class) {
    case kNetCtrlClassRx:
      return parse_rx(header.command, reader, out);
    case kNetCtrlClassMac:
      return parse_mac(header.command, reader, out);
    case kNetCtrlClassVlan:
      return parse_vlan(header.command, reader, out);
    case kNetCtrlClassAnnounce:
      return parse_announce(header.command, reader, out);
    case kNetCtrlClassMq:
      return parse_mq(header.command, reader, out);
    case kNetCtrlClassGuestOffloads:
      return parse_offloads(header.command, reader, out);
    case kNetCtrlClassNotfCoal:
      return parse_coalescing(header.command, reader, out);
    default:
      return NetControlRefusal::unknown_command;
  }
}

// The first `bytes` bytes of the writable part. REQUIRES: as many are there, and not more than a reply has.
NetControlReply reply_of(std::span<const iovec> writable, std::size_t bytes) noexcept {
  NetControlReply reply;
  reply.bytes = static_cast<std::uint8_t>(bytes);
  reply.used_length = reply.bytes;
  for (const iovec& segment : writable) {
    const std::size_t piece = std::min(bytes, segment.iov_len);
    if (piece > 0) {
      reply.segments[reply.count++] = {segment.iov_base, piece};
      bytes -= piece;
    }
    if (bytes == 0) {
      break;
    }
  }
  RW_DCHECK(bytes == 0);
  return reply;
}

// Of a chain with a fault the last writable byte is known, and whether it is the only one.
NetControlReply reply_of_fault(const Chain& chain) noexcept {
  const iovec& last = chain.writable().back();
  RW_DCHECK(last.iov_len > 0);
  NetControlReply reply;
  reply.segments[0] = {static_cast<std::byte*>(last.iov_base) + (last.iov_len - 1), 1};
  reply.count = 1;
  reply.bytes = 1;
  reply.used_length = chain.writable_bytes() == 1 ? 1 : 0;
  return reply;
}

}  // namespace

NetControlParsed parse_net_control(const Chain& chain, bool chain_fault) noexcept {
  NetControlParsed parsed;
  if (chain.writable().empty()) {
    parsed.refusal = chain_fault ? NetControlRefusal::bad_chain : NetControlRefusal::no_reply;
    return parsed;
  }
  if (chain_fault) {
    parsed.refusal = NetControlRefusal::bad_chain;
    parsed.reply = reply_of_fault(chain);
    return parsed;
  }

  ControlReader reader(chain);
  spec::NetCtrlHeader header{};
  if (!reader.take(&header, sizeof header)) {
    parsed.refusal = NetControlRefusal::short_header;
    parsed.reply = reply_of(chain.writable(), 1);
    return parsed;
  }
  parsed.refusal = parse_by_class(header, reader, parsed.command);
  const bool has_answer = header.control_class == kNetCtrlClassNotfCoal && header.command == spec::kNetCtrlNotfCoalVqGet;
  const std::size_t wanted = has_answer ? NetControlReply::kBytesMax : 1;
  const std::size_t room = static_cast<std::size_t>(std::min<std::uint64_t>(wanted, chain.writable_bytes()));
  if (room < wanted && parsed.refusal == NetControlRefusal::none) {
    parsed.refusal = NetControlRefusal::bad_length;
  }
  parsed.reply = reply_of(chain.writable(), room);
  if (parsed.refusal != NetControlRefusal::none) {
    parsed.command = std::monostate{};
  }
  return parsed;
}

std::uint32_t write_net_control_reply(const NetControlReply& reply, NetControlRefusal refusal,
                                      const NetCoalescing& answer) noexcept {
  RW_DCHECK(reply.count > 0 && reply.bytes <= NetControlReply::kBytesMax);
  std::array<std::byte, NetControlReply::kBytesMax> text{};
  if (reply.bytes == NetControlReply::kBytesMax) {
    std::memcpy(text.data(), &answer, sizeof answer);
  }
  text[reply.bytes - 1U] = std::byte{refusal == NetControlRefusal::none ? spec::kNetAckOk : spec::kNetAckErr};
  const std::byte* from = text.data();
  for (std::size_t i = 0; i < reply.count; ++i) {
    const iovec& segment = reply.segments[i];
    guest::copy(static_cast<std::byte*>(segment.iov_base), from, segment.iov_len);
    from += segment.iov_len;
  }
  return reply.used_length;
}

const char* to_string(NetControlRefusal refusal) noexcept {
  switch (refusal) {
    case NetControlRefusal::none:
      return "none";
    case NetControlRefusal::bad_chain:
      return "bad_chain";
    case NetControlRefusal::no_reply:
      return "no_reply";
    case NetControlRefusal::short_header:
      return "short_header";
    case NetControlRefusal::unknown_command:
      return "unknown_command";
    case NetControlRefusal::bad_length:
      return "bad_length";
    case NetControlRefusal::not_negotiated:
      return "not_negotiated";
    case NetControlRefusal::bad_value:
      return "bad_value";
    case NetControlRefusal::queue_not_enabled:
      return "queue_not_enabled";
    case NetControlRefusal::port_failed:
      return "port_failed";
  }
  return "unknown";
}

}  // namespace ringway
