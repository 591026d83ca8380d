// Stage (2) for network cards: what a driver transmits becomes a value, or a counted reason for refusal (virtio 1.3
// §5.1.6.2).
//
// Pure: reads the first bytes of the chain (once, into the value) and nothing else of guest memory; no system call, no heap.
// A test can build a NetFrame without a ring and without a VM.
//
// What is wrong with a header either costs the frame or only the offload that it asks for:
//   - A driver that didn't negotiate CSUM may leave anything in the header (§5.1.6.2: its frames are complete), so the
//   header
//     is not even read: the frame is sent without offload. The same goes for flags that the device doesn't know or that
//     have no meaning here (DATA_VALID, RSC_INFO): they are taken out, §5.1.6.2.2. A sender's claim that a checksum is right
//     is never passed on.
//   - A frame that relies on an offload which can't be given is of no use to any receiver: a checksum that was left to us
//   and
//     lies outside the frame, or a frame to be cut which doesn't say how. Such a frame is dropped, and counted.
// hdr_len is only a hint, held to the frame's length and used by nobody here.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "ring/chain.hpp"
#include "ring/spec.hpp"

namespace ringway {

inline constexpr std::uint32_t kEthernetHeaderBytes = 14;
inline constexpr std::uint32_t kVlanTagBytes = 4;
// The largest packet of IPv6 without jumbograms, behind an Ethernet header with two tags.
inline constexpr std::uint32_t kNetGsoFrameBytesMax = kEthernetHeaderBytes + 2 * kVlanTagBytes + 40 + 65535;
// No checksum of a transport protocol begins before this: an Ethernet header and the shortest IP header. Below it are the
// MAC addresses and tags by which a frame has been judged when its checksum is completed, which must not change them.
// IP addresses may lie above it: whoever judges by those compares csum_start with NetLayers::l4_offset.
inline constexpr std::uint32_t kNetChecksumStartMin = kEthernetHeaderBytes + 20;

// Why a frame was not sent. Each is counted by name, per queue. The chain is returned with length 0, as every sent one is.
enum class NetRefusal : std::uint8_t {
  none,
  bad_chain,             // the ring found a chain fault (unmapped buffer, loop in an indirect table, …)
  writable_part,         // a buffer that the device should write: nothing is written when sending
  short_header,          // fewer bytes than a header
  short_frame,           // fewer bytes behind it than an Ethernet header
  long_frame,            // more than the largest frame, with or without GSO
  too_many_segments,     // no room for that many pieces
  bad_checksum_range,    // NEEDS_CSUM: the field lies outside the frame, or the range begins before any transport header
  bad_gso_type,          // unknown, or ECN with what is not TCP
  gso_not_negotiated,    // a type, or ECN, without its feature bit
  no_gso_size,           // GSO with a segment size of 0
  gso_without_checksum,  // GSO without NEEDS_CSUM
};
inline constexpr std::size_t kNetRefusals = 12;
[[nodiscard]] const char* to_string(NetRefusal refusal) noexcept;

struct NetFrame {
  // Our copy, checked. Only NEEDS_CSUM is left of the flags; csum_start and csum_offset are 0 without it, gso_size without
  // GSO; num_buffers and the hash are 0. So this is also a right header for a tap or a receiver with the same offloads.
  spec::NetHeader header;
  std::span<const iovec> data;  // from the Ethernet header on; the sender's memory, which may change at any time
  std::uint32_t bytes = 0;      // sum over `data`
};

// What a frame is checked against. A plain value, made once after negotiation.
struct NetFrameLimits {
  bool checksum = false;        // CSUM; if not, headers are not looked at
  bool ecn = false;             // HOST_ECN
  std::uint8_t gso_types = 0;   // one bit for each kNetGso… type
  std::uint32_t bytes_max = 0;  // of a frame, from its Ethernet header on
  std::uint32_t gso_bytes_max = kNetGsoFrameBytesMax;
};
// `mtu` leaves room for two VLAN tags, which an MTU doesn't count. Of HOST_TSO4 and so on nothing is left without CSUM.
[[nodiscard]] NetFrameLimits net_frame_limits(std::uint64_t features, std::uint32_t mtu) noexcept;

// `chain` may come from PopStatus::chain_fault, and be framed in any way (§2.7.4). `header_bytes` is what was negotiated:
// 10, 12 or 20. `storage` receives the pieces of the frame and has to live as long as `out`; the chain doesn't. `out` is
// valid only with NetRefusal::none.
[[nodiscard]] NetRefusal parse_net_frame(const Chain& chain, bool chain_fault, std::size_t header_bytes,
                                         const NetFrameLimits& limits, std::span<iovec> storage, NetFrame& out) noexcept;
// The same for a chain that is a single buffer, and one piece of storage.
[[nodiscard]] NetRefusal parse_net_frame(const ChainBuffer& buffer, std::size_t header_bytes, const NetFrameLimits& limits,
                                         iovec& storage, NetFrame& out) noexcept;

}  // namespace ringway
