// Any header over any frame in any pieces, while another thread may change them: what the parser accepts lies within the
// chain, what is found in the frame lies within what was gathered, and what is copied, completed or cut comes out whole.
//
// Input: a Framing, then either the bytes of header and frame, or (kShaped) a Shape and three bytes for each byte of it that
// is changed. A shaped frame gets past the first look at its headers.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "base/prng.hpp"
#include "request/net_checksum.hpp"
#include "request/net_frame.hpp"
#include "request/net_hash.hpp"
#include "request/net_layers.hpp"
#include "request/net_segments.hpp"
#include "request/test_frames.hpp"

namespace {

using namespace ringway;
using test::Bytes;

constexpr unsigned kShaped = 1;
constexpr unsigned kChanging = 2;  // by the other thread
constexpr unsigned kChainFault = 4;
constexpr unsigned kWritable = 8;
constexpr unsigned kLittleRoom = 16;
constexpr unsigned kPartial = 32;
constexpr std::array<std::size_t, 3> kHeaderBytes = {10, 12, 20};

struct Framing {
  std::uint64_t seed;
  std::uint8_t flags;
  std::uint8_t header_kind;
  std::uint8_t piece_max;  // 0: one piece
  std::uint8_t offloads;   // CSUM, and the six HOST_… bits
  std::uint16_t mtu;
  std::uint16_t hash_types;
};
struct Shape {
  spec::NetHeader header;
  std::uint8_t ip;  // bit 0: IPv6, bit 1: UDP, bits 2 and 3: tags, from 4 on: options
  std::uint8_t tcp_options;
  std::uint16_t payload_bytes;
};

// Changes bytes of what is lent to it, until it is taken back.
class Changer {
 public:
  Changer() : thread_([this](const std::stop_token& stop) { run(stop); }) {}
  Changer(const Changer&) = delete;
  Changer& operator=(const Changer&) = delete;
  ~Changer() {
    thread_.request_stop();
    lend(&nothing_);
  }

  void lend(const std::vector<iovec>* pieces) {
    lent_.store(pieces);
    lent_.notify_one();
  }
  void take_back() {
    lent_.store(nullptr);
    while (busy_.load()) {
      std::this_thread::yield();
    }
  }

 private:
  void run(const std::stop_token& stop) {
    Prng prng(1);
    while (!stop.stop_requested()) {
      lent_.wait(nullptr);
      busy_.store(true);  // before the second look: whoever takes back sees one or the other
      const std::vector<iovec>* const pieces = lent_.load();
      if (pieces != nullptr && !pieces->empty()) {
        for (int i = 0; i < 64; ++i) {
          // Mostly where the headers are.
          const iovec& piece = (*pieces)[prng.below(std::min<std::size_t>(pieces->size(), prng.chance(1, 8) ? 4096 : 24))];
          auto* const at = static_cast<std::uint8_t*>(piece.iov_base) +
                           prng.below(std::min<std::size_t>(piece.iov_len, prng.chance(1, 8) ? 65536 : 80));
          __atomic_store_n(at, static_cast<std::uint8_t>(prng.next()), __ATOMIC_RELAXED);
        }
      }
      busy_.store(false);
    }
  }

  const std::vector<iovec> nothing_;
  std::atomic<const std::vector<iovec>*> lent_ = nullptr;
  std::atomic<bool> busy_ = false;
  std::jthread thread_;
};

struct Lent {
  Changer* changer;
  ~Lent() {
    if (changer != nullptr) {
      changer->take_back();
    }
  }
};

Bytes flat_of(const Framing& framing, std::span<const std::uint8_t> rest, std::size_t header_bytes) {
  Shape shape;
  if ((framing.flags & kShaped) == 0 || rest.size() < sizeof shape) {
    return {rest.begin(), rest.end()};
  }
  std::memcpy(&shape, rest.data(), sizeof shape);
  rest = rest.subspan(sizeof shape);
  const bool ipv6 = (shape.ip & 1U) != 0;
  const test::ShapedFrame frame =
      test::make_frame({.ipv6 = ipv6,
                        .udp = (shape.ip & 2U) != 0,
                        .tags = shape.ip >> 2U & 3U,
                        .ip_option_bytes = std::min<std::size_t>(8U * (shape.ip >> 4U), ipv6 ? 120 : 40),
                        .tcp_option_bytes = 4U * (shape.tcp_options % 11U),
                        // The longest are seldom worth their time.
                        .payload_bytes = framing.seed % 16 == 0 ? shape.payload_bytes : shape.payload_bytes % 8192U},
                       framing.seed);
  // Where the checksum really is, unless the input has something to say about it.
  if (shape.header.csum_start == 0) {
    shape.header.csum_start = static_cast<std::uint16_t>(frame.l4);
    shape.header.csum_offset = (shape.ip & 2U) != 0 ? 6 : 16;
  }
  Bytes flat(header_bytes);
  std::memcpy(flat.data(), &shape.header, header_bytes);
  flat.insert(flat.end(), frame.bytes.begin(), frame.bytes.end());
  for (; rest.size() >= 3; rest = rest.subspan(3)) {
    flat[header_bytes + (rest[0] | std::size_t{rest[1]} << 8U) % frame.bytes.size()] = rest[2];
  }
  return flat;
}

NetFrameLimits limits_of(const Framing& framing) {
  constexpr std::array<std::uint64_t, 6> kFeatures = {spec::kNetCsum,    spec::kNetHostTso4, spec::kNetHostTso6,
                                                      spec::kNetHostEcn, spec::kNetHostUfo,  spec::kNetHostUso};
  std::uint64_t features = 0;
  for (std::size_t i = 0; i < kFeatures.size(); ++i) {
    features |= (framing.offloads >> i & 1U) != 0 ? 0 : kFeatures[i];
  }
  return net_frame_limits(features, framing.mtu);
}

void check_frame(const NetFrame& frame, const NetFrameLimits& limits, std::size_t header_bytes,
                 std::span<const iovec> readable) {
  // The pieces are those of the chain, in order, without the header.
  NetCursor expected(readable);
  expected.advance(header_bytes);
  std::uint64_t bytes = 0;
  for (const iovec& piece : frame.data) {
    const std::span<const std::byte> there = expected.take(~std::size_t{0});
    RW_CHECK(piece.iov_base == there.data() && piece.iov_len == there.size());
    bytes += piece.iov_len;
  }
  RW_CHECK(expected.take(1).empty());
  const spec::NetHeader& header = frame.header;
  RW_CHECK(bytes == frame.bytes && bytes >= kEthernetHeaderBytes);
  RW_CHECK(bytes <= (header.gso_type != 0 ? limits.gso_bytes_max : limits.bytes_max));
  RW_CHECK(header.flags == 0 || (header.flags == spec::kNetHdrNeedsCsum && limits.checksum));
  RW_CHECK(header.flags != 0 || (header.csum_start == 0 && header.csum_offset == 0 && header.gso_type == 0));
  RW_CHECK(header.flags == 0 || std::uint64_t{header.csum_start} + header.csum_offset + 2 <= bytes);
  RW_CHECK(header.flags == 0 || header.csum_start >= kNetChecksumStartMin);
  RW_CHECK((header.gso_type == 0) == (header.gso_size == 0));
  RW_CHECK((header.gso_type & 0x7f) == 0 || (limits.gso_types >> (header.gso_type & 0x7fU) & 1U) != 0);
  RW_CHECK(header.hdr_len <= bytes && header.num_buffers == 0 && header.hash_value == 0 && header.hash_report == 0);
}

void check_layers(const NetFrame& frame, const Framing& framing, std::span<const std::uint8_t> key) {
  std::array<std::byte, limits::kNetHeadBytesMax> room;
  NetCursor cursor(frame.data);
  const std::size_t gathered = cursor.read(room);
  RW_CHECK(gathered == std::min<std::size_t>(frame.bytes, room.size()));
  // In a block that ends where the copy ends.
  const std::vector<std::byte> head(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(gathered));
  const NetLayers layers = net_dissect(head, frame.bytes);
  const bool ip = layers.l3 == NetLayer3::ipv4 || layers.l3 == NetLayer3::ipv6;
  if (ip) {
    RW_CHECK(layers.destination_offset + (layers.l3 == NetLayer3::ipv4 ? 4U : 16U) <= head.size());
    RW_CHECK(layers.l3_offset + layers.l3_bytes <= frame.bytes);
  }
  RW_CHECK(layers.l4 == NetLayer4::none || (ip && layers.payload_offset <= head.size() && !layers.fragment));
  const NetHash hash = net_hash(NetHashKey(key), framing.hash_types, layers, head);
  RW_CHECK(hash.report <= spec::kNetHashReportUdpv6Ex);
  RW_CHECK(hash.report == 0 || (framing.hash_types >> (hash.report - 1U) & 1U) != 0);
  RW_CHECK(hash.report == 0 || ip);
}

void check_completion(const NetFrame& frame, const Framing& framing) {
  const test::Pieces to(Bytes(frame.bytes), framing.seed + 1, 1 + framing.piece_max * 7U);
  net_copy_completing(NetCursor(to.list()), frame.data, frame.bytes, frame.header.csum_start, frame.header.csum_offset);
  if ((framing.flags & kChanging) != 0) {
    return;
  }
  Bytes expected;
  for (const iovec& piece : frame.data) {
    const auto* const from = static_cast<const std::uint8_t*>(piece.iov_base);
    expected.insert(expected.end(), from, from + piece.iov_len);
  }
  const std::size_t checksum = ~test::slow_sum(std::span(expected).subspan(frame.header.csum_start)) & 0xffffU;
  test::put16(expected, std::size_t{frame.header.csum_start} + frame.header.csum_offset, checksum == 0 ? 0xffff : checksum);
  RW_CHECK(to.joined() == expected);
}

void check_segments(const NetFrame& frame, const Framing& framing, const Bytes& flat_frame) {
  static NetSegmenter segmenter;
  const bool partial = (framing.flags & kPartial) != 0;
  const bool changing = (framing.flags & kChanging) != 0;
  const bool fragments = (frame.header.gso_type & 0x7f) == spec::kNetGsoUdp;
  if (segmenter.start(frame, {.partial_checksums = partial, .fragment_id = 7}) != NetSegmentRefusal::none) {
    NetSegment none;
    RW_CHECK(!segmenter.next(none));
    return;
  }
  Bytes payload;
  std::uint32_t count = 0;
  for (NetSegment segment; segmenter.next(segment); ++count) {
    RW_CHECK(segment.bytes == segment.head.size() + segment.payload_bytes);
    RW_CHECK(segment.bytes <= segmenter.segment_bytes_max());
    RW_CHECK(segment.payload_bytes <= frame.header.gso_size);
    const test::Pieces to(Bytes(segment.bytes), framing.seed + count, 1 + framing.piece_max * 5U);
    net_copy_segment(segment, NetCursor(to.list()));
    const Bytes copied = to.joined();
    payload.insert(payload.end(), copied.begin() + static_cast<std::ptrdiff_t>(segment.head.size()), copied.end());
    const NetLayers layers = net_dissect(std::as_bytes(std::span(copied)), segment.bytes);
    RW_CHECK(layers.l3 != NetLayer3::other && layers.l3_offset + layers.l3_bytes == segment.bytes);
    // The checksum is one of what was copied, so it is right even if the memory changed before.
    if (!layers.extension_headers && !(fragments && changing)) {
      RW_CHECK(test::look_at(copied, partial && !fragments).fault.empty());
    }
    RW_CHECK(count < segmenter.segments());
  }
  RW_CHECK(count == segmenter.segments() && count <= limits::kNetSegmentsMax);
  RW_CHECK(payload.size() < frame.bytes);
  if (!changing) {
    RW_CHECK(std::equal(payload.rbegin(), payload.rend(), flat_frame.rbegin()));
    const NetLayers layers = net_dissect(std::as_bytes(std::span(flat_frame)), frame.bytes);
    RW_CHECK(payload.size() == frame.bytes - layers.payload_offset);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  Framing framing;
  if (size < sizeof framing) {
    return 0;
  }
  std::memcpy(&framing, input, sizeof framing);
  const std::size_t header_bytes = kHeaderBytes[framing.header_kind % kHeaderBytes.size()];
  const Bytes flat = flat_of(framing, std::span(input, size).subspan(sizeof framing), header_bytes);

  const test::Pieces pieces(flat, framing.seed, framing.piece_max == 0 ? flat.size() + 1 : 1 + framing.piece_max * 3U);
  const std::vector<iovec> lent(pieces.list().begin(), pieces.list().end());
  static Chain chain;
  chain.reset({});
  for (const iovec& piece : lent) {
    if (chain.count() == Chain::kStorage - 1) {
      return 0;
    }
    chain.storage()[chain.count()++] = piece;
    chain.account(false, piece.iov_len);
  }
  std::byte writable{};
  if ((framing.flags & kWritable) != 0) {
    chain.storage()[chain.count()++] = {.iov_base = &writable, .iov_len = 1};
    chain.account(true, 1);
  }

  static Changer changer;
  const Lent lent_out{(framing.flags & kChanging) != 0 ? &changer : nullptr};
  if (lent_out.changer != nullptr) {
    changer.lend(&lent);
  }
  const NetFrameLimits limits = limits_of(framing);
  std::vector<iovec> storage((framing.flags & kLittleRoom) != 0 ? 4 : lent.size() + 1);
  NetFrame frame;
  const NetRefusal refusal =
      parse_net_frame(chain, (framing.flags & kChainFault) != 0, header_bytes, limits, storage, frame);
  RW_CHECK((framing.flags & (kChainFault | kWritable)) == 0 || refusal != NetRefusal::none);
  if (refusal != NetRefusal::none) {
    return 0;
  }
  RW_CHECK(frame.bytes == flat.size() - header_bytes);
  check_frame(frame, limits, header_bytes, lent);
  check_layers(frame, framing, std::span(input, std::min<std::size_t>(size, 40)));
  if (frame.header.flags != 0) {
    check_completion(frame, framing);
  }
  if (frame.header.gso_type != 0) {
    check_segments(frame, framing, Bytes(flat.begin() + static_cast<std::ptrdiff_t>(header_bytes), flat.end()));
  }
  return 0;
}
