// Cuts a GSO frame into frames that fit the wire, for a receiver that can't take it whole (virtio 1.3 §5.1.6.2): TCP over
// IPv4 and IPv6, UDP segments (UDP_L4) of both, and UDP datagrams as IP fragments (UDP, the legacy UFO).
//
// Pure. The payload stays where it is: each segment is a head of ours and a place in the sender's memory. What is decided on
// is a copy of the frame's first bytes, taken once by `start`; lengths come from the frame's pieces, never from the headers.
//
//     NetSegmenter segmenter;
//     if (segmenter.start(frame, options) == NetSegmentRefusal::none) {
//       for (NetSegment segment; segmenter.next(segment);) { net_copy_segment(segment, room_for_it); }
//     }
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/limits.hpp"
#include "request/net_checksum.hpp"
#include "request/net_frame.hpp"
#include "request/net_layers.hpp"
#include "request/net_pieces.hpp"
#include "ring/spec.hpp"

namespace ringway {

// Why a frame can't be cut. Such a frame is of use only to a receiver that takes it as it is.
enum class NetSegmentRefusal : std::uint8_t {
  none,
  not_gso,            // its gso_type is none
  wrong_headers,      // they are not what the gso_type says, not complete within the first 256 bytes, or a fragment's
  wrong_checksum,     // csum_start and csum_offset don't name the checksum of the transport header
  routed_on,          // IPv6 with a routing header whose final destination, part of the checksum, isn't known
  extension_headers,  // IPv6 fragments behind extension headers
  bad_size,           // a segment longer than IP can say, or a fragment of less than 8 bytes
  too_many_segments,  // more than limits::kNetSegmentsMax
};
inline constexpr std::size_t kNetSegmentRefusals = 8;
[[nodiscard]] const char* to_string(NetSegmentRefusal refusal) noexcept;

struct NetSegmentOptions {
  bool partial_checksums = false;  // the receiver has GUEST_CSUM: checksums are left to it
  std::uint32_t fragment_id = 0;   // of IPv6 fragments: not soon again between the same two hosts
};

struct NetSegment {
  spec::NetHeader header = {};  // what stands before it: NEEDS_CSUM and where, if the checksum was left partial; else all 0
  std::span<std::byte> head;    // Ethernet, IP and transport headers; in the segmenter, until its next call
  NetCursor payload;            // what follows is the next `payload_bytes` bytes of it, in the sender's memory
  std::uint32_t payload_bytes = 0;
  std::uint32_t bytes = 0;  // of head and payload
  // The checksum is the caller's to complete: `sum` is that of the pseudo header and the transport header. Continued with
  // the payload, as it is copied, its checksum() goes to checksum_offset in `head`.
  bool complete_checksum = false;
  std::uint16_t checksum_offset = 0;
  NetSum sum;
};

// Copies the whole segment, and completes its checksum if that is to be done. Changes `segment.head`.
// REQUIRES: `to` has room for segment.bytes.
void net_copy_segment(NetSegment& segment, NetCursor to) noexcept;

// One thread's scratch memory, used again for each frame.
class NetSegmenter {
 public:
  NetSegmenter() = default;
  NetSegmenter(const NetSegmenter&) = delete;  // segments point into it
  NetSegmenter& operator=(const NetSegmenter&) = delete;
  ~NetSegmenter() = default;

  // `frame` has to be one that parse_net_frame accepted, and its pieces have to stay. For IP fragments this reads the whole
  // payload, since the first of them already carries the checksum of all.
  [[nodiscard]] NetSegmentRefusal start(const NetFrame& frame, const NetSegmentOptions& options) noexcept;
  // All that `next` will give, known in advance so that the work can be charged for.
  [[nodiscard]] std::uint32_t segments() const noexcept { return count_; }
  // The longest of them.
  [[nodiscard]] std::uint32_t segment_bytes_max() const noexcept { return segment_bytes_max_; }
  // False when there are no more. A refused frame has none.
  [[nodiscard]] bool next(NetSegment& out) noexcept;

 private:
  static constexpr std::size_t kFragmentHeaderBytes = 8;

  [[nodiscard]] NetSegmentRefusal check(const NetFrame& frame) const noexcept;
  [[nodiscard]] NetSegmentRefusal plan(const NetFrame& frame) noexcept;
  [[nodiscard]] NetSum pseudo_header() const noexcept;
  void prepare_fragments(std::uint32_t fragment_id) noexcept;
  void write_ip(std::uint32_t l4_bytes, std::uint32_t fragment_offset, bool more_fragments) noexcept;
  void write_tcp(std::uint32_t payload_offset, bool first, bool last) noexcept;
  void finish_checksum(NetSegment& out, std::uint32_t l4_bytes) noexcept;
  void put(std::size_t at, std::uint16_t number) noexcept;
  void put(std::size_t at, std::uint32_t number) noexcept;
  [[nodiscard]] std::uint16_t number(std::size_t at) const noexcept;

  std::array<std::byte, limits::kNetHeadBytesMax + kFragmentHeaderBytes> head_;
  NetLayers layers_;
  NetCursor payload_;
  NetSum pseudo_header_;
  std::uint32_t payload_bytes_ = 0;  // of the whole frame
  std::uint32_t payload_done_ = 0;
  std::uint32_t chunk_bytes_ = 0;  // of payload in a segment; of UDP header and payload in a fragment
  std::uint32_t count_ = 0;
  std::uint32_t index_ = 0;
  std::uint32_t segment_bytes_max_ = 0;
  std::uint32_t sequence_ = 0;
  std::uint16_t ip_id_ = 0;
  std::uint8_t tcp_flags_ = 0;
  bool fragments_ = false;  // IP fragments, not segments
  bool partial_ = false;
  std::uint16_t l4_header_bytes_ = 0;
};

}  // namespace ringway
