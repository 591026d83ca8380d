// What the tests of a network card's queues share: a ring with a driver of any kind, and a port in the test's hands.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/net/net_port.hpp"
#include "base/check.hpp"
#include "device/test_guest.hpp"
#include "guest/access.hpp"
#include "request/net_pieces.hpp"
#include "request/test_frames.hpp"
#include "ring/driver_ring.hpp"
#include "vhost_user/device.hpp"

namespace ringway::testing {

using test::Bytes;

struct RingKind {
  bool packed = false;
  bool in_order = false;
  bool event_index = true;
  bool indirect = false;
};
inline void PrintTo(const RingKind& kind, std::ostream* to) {
  *to << (kind.packed ? "packed" : "split") << (kind.in_order ? " in_order" : "") << (kind.event_index ? " event_index" : "")
      << (kind.indirect ? " indirect" : "");
}
inline std::vector<RingKind> all_ring_kinds() {
  std::vector<RingKind> kinds;
  for (unsigned bits = 0; bits < 16; ++bits) {
    kinds.push_back({.packed = (bits & 1U) != 0,
                     .in_order = (bits & 2U) != 0,
                     .event_index = (bits & 4U) != 0,
                     .indirect = (bits & 8U) != 0});
  }
  return kinds;
}

// A ring in a guest's memory, and the driver's end of it.
class TestRing {
 public:
  TestRing(Guest& guest, RingKind kind, std::uint32_t size, std::uint32_t table_entries = 64) : kind_(kind), size_(size) {
    const RingAreaBytes areas = ring_area_bytes(size, kind.packed);
    addresses_ = {.descriptor_area = Guest::user(guest.take(areas.descriptor)),
                  .driver_area = Guest::user(guest.take(areas.driver)),
                  .device_area = Guest::user(guest.take(areas.device))};
    const GuestAddress tables =
        kind.indirect ? guest.take(std::uint64_t{size} * table_entries * kDescriptorBytes) : GuestAddress{};
    driver_.emplace(DriverRing::Options{.layout = layout(guest),
                                        .features = features(),
                                        .indirect_tables = kind.indirect ? guest.host(tables) : nullptr,
                                        .indirect_address = tables,
                                        .indirect_entries = kind.indirect ? table_entries : 0});
  }

  [[nodiscard]] RingFeatures features() const {
    return {
        .packed = kind_.packed, .indirect = kind_.indirect, .event_index = kind_.event_index, .in_order = kind_.in_order};
  }
  [[nodiscard]] RingLayout layout(const Guest& guest) const {
    return *RingLayout::resolve(*guest.map(), addresses_, size_, kind_.packed);
  }
  [[nodiscard]] vhost_user::RingStart start() const { return start(kind_.packed ? kPackedBaseInitial : kSplitBaseInitial); }
  [[nodiscard]] vhost_user::RingStart start(std::uint32_t base) const {
    vhost_user::RingStart start;
    start.size = size_;
    start.addresses = addresses_;
    start.features = features();
    start.base = base;
    start.enabled = true;
    return start;
  }
  // Where a ring that began at its beginning is after so many chains and descriptors that are used again.
  [[nodiscard]] std::uint32_t base_after(std::uint32_t chains, std::uint32_t descriptors) const {
    if (!kind_.packed) {
      return chains;
    }
    PackedPosition at = PackedPosition::decode(static_cast<std::uint16_t>(kPackedBaseInitial));
    at.advance(descriptors, size_);
    return at.encode() | std::uint32_t{at.encode()} << 16U;
  }
  [[nodiscard]] DriverRing& driver() { return *driver_; }
  [[nodiscard]] std::vector<UsedElement> take_used() {
    std::vector<UsedElement> all;
    UsedElement used;
    while (driver_->take_used(used)) {
      all.push_back(used);
    }
    return all;
  }
  [[nodiscard]] RingKind kind() const { return kind_; }
  [[nodiscard]] std::uint32_t size() const { return size_; }

 private:
  RingKind kind_;
  std::uint32_t size_;
  RingAddresses addresses_;
  std::optional<DriverRing> driver_;
};

inline Bytes to_bytes(std::span<const iovec> pieces) {
  Bytes all;
  for (const iovec& piece : pieces) {
    const auto* const from = static_cast<const std::uint8_t*>(piece.iov_base);
    all.insert(all.end(), from, from + piece.iov_len);
  }
  return all;
}
inline Bytes read_guest(const Guest& guest, GuestAddress at, std::size_t bytes) {
  Bytes all(bytes);
  std::copy_n(reinterpret_cast<const std::uint8_t*>(guest.host(at)), bytes, all.begin());
  return all;
}
inline Bytes pattern(std::size_t bytes, unsigned seed) {
  Bytes all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    all[i] = static_cast<std::uint8_t>(seed * 37 + i * 11 + i / 251);
  }
  return all;
}

// The header of a TCP frame whose checksum is left partial, and which is to be cut if gso_size isn't 0.
inline spec::NetHeader tcp_header(const test::ShapedFrame& frame, std::uint16_t gso_size, bool ipv6 = false) {
  spec::NetHeader header{};
  header.flags = spec::kNetHdrNeedsCsum;
  header.csum_start = static_cast<std::uint16_t>(frame.l4);
  header.csum_offset = 16;
  if (gso_size != 0) {
    header.gso_type = ipv6 ? spec::kNetGsoTcpv6 : spec::kNetGsoTcpv4;
    header.gso_size = gso_size;
    header.hdr_len = static_cast<std::uint16_t>(frame.payload);
  }
  return header;
}

// A channel that does what the test says.
class ScriptedChannel final : public NetChannel {
 public:
  struct Sent {
    spec::NetHeader header;
    Bytes bytes;
  };
  std::size_t room = std::numeric_limits<std::size_t>::max();  // frames that it still takes
  std::vector<Sent> sent;
  std::vector<std::size_t> batches;          // frames that it was shown at a time
  std::function<void(std::size_t)> on_sent;  // within send(), of each frame by its number
  std::function<Received(std::uint32_t)> on_receive;
  bool has_work = false;  // what arm() says
  std::uint32_t receive_calls = 0;
  bool enabled = false;
  std::uint64_t guest_offloads = 0;
  std::size_t header_bytes = 0;

  [[nodiscard]] std::size_t send(std::span<const NetFrame> frames) noexcept override {
    batches.push_back(frames.size());
    const std::size_t taken = std::min(room, frames.size());
    for (const NetFrame& frame : frames.first(taken)) {
      sent.push_back({.header = frame.header, .bytes = to_bytes(frame.data)});
      RW_CHECK(sent.back().bytes.size() == frame.bytes);
      if (on_sent) {
        on_sent(static_cast<std::size_t>(&frame - frames.data()));
      }
    }
    room -= taken;
    return taken;
  }
  [[nodiscard]] Received receive(std::uint32_t budget) noexcept override {
    ++receive_calls;
    return on_receive ? on_receive(budget) : Received::all;
  }
  [[nodiscard]] bool arm() noexcept override { return has_work; }
  void set_guest(std::uint64_t offloads, std::size_t its_header_bytes) noexcept override {
    guest_offloads = offloads;
    header_bytes = its_header_bytes;
  }
  void set_enabled(bool on) noexcept override { enabled = on; }
};

// A frame of the test's own, in one piece or several.
class TestFrame {
 public:
  explicit TestFrame(Bytes bytes, spec::NetHeader header = {}, std::size_t piece_max = SIZE_MAX) : bytes_(std::move(bytes)) {
    for (std::size_t at = 0; at < bytes_.size();) {
      const std::size_t piece = std::min(piece_max, bytes_.size() - at);
      pieces_.push_back({.iov_base = bytes_.data() + at, .iov_len = piece});
      at += piece;
    }
    frame_ = {.header = header, .data = pieces_, .bytes = static_cast<std::uint32_t>(bytes_.size())};
  }
  TestFrame(const TestFrame&) = delete;
  TestFrame& operator=(const TestFrame&) = delete;
  [[nodiscard]] const NetFrame& get() const { return frame_; }
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
  std::vector<iovec> pieces_;
  NetFrame frame_;
};

}  // namespace ringway::testing
