#include "backend/net/tap_channel.hpp"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "guest/access.hpp"
#include "loop/clock.hpp"
#include "request/net_filter.hpp"
#include "request/net_pieces.hpp"

namespace ringway {
namespace {

constexpr std::size_t kPieces =
    std::max(limits::kNetTransmitSegments, limits::kNetReceiveSegments) + 2 * BatchedIo::kCallsMax;
constexpr Duration kRetryAfter = Duration::milliseconds(1);

constexpr std::uint32_t gso_bit(std::uint8_t type) {
  return 1U << type;
}

// Whether a failure means that there is nothing to read or write any more, for good.
bool means_gone(std::int32_t result) noexcept {
  return result == -EBADFD || result == -EBADF || result == -ENODEV || result == -ENXIO;
}
// Whether a read that failed has used up a frame, so that there may be others.
bool used_a_frame(std::int32_t result) noexcept {
  return result == -EFAULT || result == -EINVAL || result == -EMSGSIZE || result == -ENOMEM;
}

// The kernel's header lay in memory of a guest before it was copied, so it may hold anything. False: it contradicts itself.
bool settle_header(spec::NetHeader& header, std::uint32_t frame_bytes) noexcept {
  header.num_buffers = 0;
  header.hash_value = 0;
  header.hash_report = 0;
  header.padding_reserved = 0;
  header.flags &= spec::kNetHdrNeedsCsum;
  const std::uint8_t type = header.gso_type & static_cast<std::uint8_t>(~spec::kNetGsoEcn);
  if (header.flags == 0) {
    const bool plain = header.gso_type == spec::kNetGsoNone;
    header = {};
    return plain;
  }
  const bool known =
      type == spec::kNetGsoTcpv4 || type == spec::kNetGsoTcpv6 ||
      (type == header.gso_type && (type == spec::kNetGsoNone || type == spec::kNetGsoUdp || type == spec::kNetGsoUdpL4));
  const bool cut = type != spec::kNetGsoNone;
  if (!cut) {
    header.gso_size = 0;
  }
  header.hdr_len = static_cast<std::uint16_t>(std::min<std::uint32_t>(header.hdr_len, frame_bytes));
  return known && (!cut || header.gso_size != 0) && header.csum_start >= kNetChecksumStartMin &&
         std::uint32_t{header.csum_start} + header.csum_offset + sizeof(std::uint16_t) <= frame_bytes;
}

}  // namespace

Result<std::unique_ptr<TapChannel>> TapChannel::open(const NetPort::Pair& pair, TapDevice& device, BatchedEngine engine) {
  std::unique_ptr<TapChannel> channel(new TapChannel(pair, device, engine));
  RW_TRY_ASSIGN(channel->readable_watch_, pair.loop.watch(channel->fd_, EPOLLIN, channel->readable_));
  return channel;
}

TapChannel::TapChannel(const NetPort::Pair& pair, TapDevice& device, BatchedEngine engine)
    : device_(device),
      pair_(pair.index),
      fd_(device.fd(pair.index)),
      engine_(engine),
      loop_(pair.loop),
      receiver_(pair.receiver),
      sender_(pair.sender),
      counters_(pair.counters),
      pieces_(std::make_unique_for_overwrite<iovec[]>(kPieces)),
      // Two megabytes that take room only where they are written to: usually never.
      slots_(std::make_unique_for_overwrite<std::byte[]>((kBatch + 1) * kFrameBytesMax)),
      outgoing_(std::make_unique_for_overwrite<std::byte[]>(kBatch * kCopiedBytesMax)) {}

TapChannel::~TapChannel() {
  set_enabled(false);
  stop_watching_for_room();
  if (readable_watch_) {
    loop_.unwatch(readable_watch_);
  }
}

void TapChannel::set_guest(std::uint64_t guest_offloads, std::size_t header_bytes) noexcept {
  const auto has = [guest_offloads](std::uint64_t offload) { return (guest_offloads & offload) == offload; };
  if (header_bytes != header_bytes_) {
    // A driver other than the one that frames were kept for.
    drop_gathered();
    header_bytes_ = header_bytes;
  }
  takes_checksum_ = has(spec::kNetGuestCsum);
  takes_ecn_ = has(spec::kNetGuestEcn);
  takes_gso_ = gso_bit(spec::kNetGsoNone) | (has(spec::kNetGuestTso4) ? gso_bit(spec::kNetGsoTcpv4) : 0U) |
               (has(spec::kNetGuestTso6) ? gso_bit(spec::kNetGsoTcpv6) : 0U) |
               (has(spec::kNetGuestUfo) ? gso_bit(spec::kNetGsoUdp) : 0U) |
               (has(spec::kNetGuestUso4 | spec::kNetGuestUso6) ? gso_bit(spec::kNetGsoUdpL4) : 0U);
  if (gone_) {
    return;
  }
  if (const Result<> result = device_.set_guest(guest_offloads, header_bytes); !result) {
    spdlog::error("{}; its pair {} carries no more frames", result.error().message, pair_);
    note_gone(0);
  }
}

void TapChannel::set_enabled(bool enabled) noexcept {
  if (std::exchange(enabled_, enabled) == enabled) {
    return;
  }
  if (!enabled) {
    may_have_frames_ = false;
    drop_gathered();
  }
  bool had_been_attached = false;
  if (!gone_) {
    if (const Result<bool> result = device_.set_attached(pair_, enabled)) {
      had_been_attached = *result;
    } else {
      spdlog::error("{}; its pair {} carries no more frames", result.error().message, pair_);
      note_gone(0);
    }
  }
  if (enabled && !gone_) {
    if (had_been_attached) {
      discard_queued();
    }
    may_have_frames_ = true;
    receiver_.wake();
  }
}

void TapChannel::drop_gathered() noexcept {
  receiver_.count_overruns(gathered_count_ - gathered_done_);
  gathered_count_ = gathered_done_ = 0;
}

BatchedIo& TapChannel::io() noexcept {
  if (!io_) {
    io_.emplace(fd_, engine_);
    writes_in_order_ = !device_.takes_all();
  }
  return *io_;
}

// Frames that came for nobody while the queue was attached all the same.
void TapChannel::discard_queued() noexcept {
  constexpr int kFramesMax = 16384;  // more than any queue of a tap is long, usually 500 or 1000
  for (int i = 0; i < kFramesMax; ++i) {
    if (::read(fd_, slot(0), kFrameBytesMax) < 0) {
      return;
    }
  }
}

void TapChannel::on_readable(std::uint32_t /*events*/) noexcept {
  if (enabled_ && !gone_) {
    may_have_frames_ = true;
    receiver_.wake();
  }
}

void TapChannel::note_gone(std::int32_t error) noexcept {
  if (std::exchange(gone_, true)) {
    return;
  }
  if (error != 0 && device_.is_first_to_miss_it()) {
    spdlog::warn("the interface {} has gone ({}): the guest's frames are dropped until its card is made anew",
                 device_.name(), std::strerror(-error));
  }
  may_have_frames_ = false;
  stop_watching_for_room();
  if (readable_watch_) {
    loop_.unwatch(std::exchange(readable_watch_, {}));
  }
}

// --- From the guest ---

void TapChannel::on_writable(std::uint32_t /*events*/) noexcept {
  stop_watching_for_room();
  sender_.wake();
}

// To watch it is also to look at it once more: room that came since it was refused is seen.
void TapChannel::watch_for_room() noexcept {
  if (writable_watch_) {
    return;
  }
  if (Result<WatchId> watch = loop_.watch(fd_, EPOLLOUT, writable_)) {
    writable_watch_ = *watch;
  } else {
    loop_.set_timer(retry_, clock_now() + kRetryAfter);
  }
}

void TapChannel::stop_watching_for_room() noexcept {
  loop_.cancel_timer(retry_);
  if (writable_watch_) {
    loop_.unwatch(std::exchange(writable_watch_, {}));
  }
}

std::size_t TapChannel::send(std::span<const NetFrame> frames) noexcept {
  std::size_t done = 0;
  while (done < frames.size()) {
    if (gone_) {
      counters_.dropped_down.add(frames.size() - done);
      return frames.size();
    }
    const std::size_t count = prepare_writes(frames.subspan(done));
    const std::size_t settled = settle_writes(count);
    done += settled;
    if (settled < count) {
      counters_.full.add();
      watch_for_room();
      break;
    }
  }
  return done;
}

// Fills calls_, and returns how many.
std::size_t TapChannel::prepare_writes(std::span<const NetFrame> frames) noexcept {
  std::size_t count = 0;
  std::size_t used = 0;
  bool long_slot_used = false;
  for (const NetFrame& frame : frames.first(std::min(frames.size(), kBatch))) {
    const std::size_t bytes = header_bytes_ + frame.bytes;
    const std::size_t pieces = 1 + frame.data.size();
    const bool copied = bytes <= kCopiedBytesMax;
    const bool gathered = !copied && pieces > kPiecesMax;
    RW_DCHECK(bytes <= kFrameBytesMax);
    if ((gathered && std::exchange(long_slot_used, true)) || used + pieces > kPieces) {
      break;
    }
    const std::span<iovec> to(pieces_.get() + used, copied || gathered ? 1 : pieces);
    if (to.size() == 1) {
      std::byte* const memory = copied ? outgoing_.get() + count * kCopiedBytesMax : slot(kBatch);
      std::memcpy(memory, &frame.header, header_bytes_);
      NetCursor(frame.data).read({memory + header_bytes_, frame.bytes});
      to[0] = {.iov_base = memory, .iov_len = bytes};
    } else {
      // The kernel only reads it.
      to[0] = {.iov_base = const_cast<spec::NetHeader*>(&frame.header), .iov_len = header_bytes_};
      std::ranges::copy(frame.data, to.begin() + 1);
    }
    used += to.size();
    calls_[count++] = {.pieces = to};
  }
  return count;
}

// Writes, and returns how many frames are done with.
std::size_t TapChannel::settle_writes(std::size_t count) noexcept {
  const std::span<BatchedCall> calls(calls_.data(), count);
  BatchedIo& tap = io();
  if (writes_in_order_) {
    tap.write_in_order(calls);
  } else {
    static_cast<void>(tap.write(calls));
  }
  std::size_t done = count;
  while (done > 0 && calls[done - 1].result == -EAGAIN) {
    --done;
  }
  // The queue may refuse frames, then: someone has limited how much may be under way since we asked. A frame that was
  // refused before another one went would come late if it were tried again, so it is given up; and from now on none is
  // overtaken.
  writes_in_order_ = writes_in_order_ || done < count;
  for (const BatchedCall& call : calls.first(done)) {
    if (RW_LIKELY(call.result >= 0)) {
      continue;
    }
    if (means_gone(call.result)) {
      note_gone(call.result);
    }
    if (gone_ || call.result == -EIO || call.result == -ENETDOWN) {
      counters_.dropped_down.add();
    } else {
      writes_in_order_ = writes_in_order_ || call.result == -EAGAIN;
      counters_.dropped_error.add();
    }
  }
  return done;
}

// --- To the guest ---

NetChannel::Received TapChannel::receive(std::uint32_t budget) noexcept {
  std::uint32_t given = 0;
  while (true) {
    if (!deliver_gathered()) {
      return Received::no_buffers;
    }
    if (!may_have_frames_) {
      return Received::all;
    }
    if (given >= budget) {
      return Received::budget;
    }
    const std::size_t lent =
        receiver_.lend(std::span(landings_).first(std::min<std::size_t>(batch_, budget - given)), expected_bytes_);
    if (lent == 0) {
      return Received::no_buffers;
    }
    const std::size_t asked = prepare_reads(lent);
    given += take_batch(io().read(std::span(calls_).first(asked)));
  }
}

// Fills calls_ for landings_, `max` at most, and returns how many.
std::size_t TapChannel::prepare_reads(std::size_t max) noexcept {
  std::size_t used = 0;
  std::size_t count = 0;
  for (; count < max && used + 2 <= kPieces; ++count) {
    // No more than a frame can have, and than a call may have pieces; and room for one of ours.
    const std::span<iovec> to(pieces_.get() + used, std::min(kPieces - used, kPiecesMax));
    const NetLanding& landing = landings_[count];
    std::span<iovec> guest = to.first(1);
    std::uint32_t bytes = 0;
    if (RW_LIKELY(landing.pieces.size() == 1 && landing.pieces[0].iov_len < kFrameBytesMax)) {
      guest[0] = landing.pieces[0];
      bytes = static_cast<std::uint32_t>(guest[0].iov_len);
    } else {
      guest = NetCursor(landing.pieces).list(kFrameBytesMax, to.first(to.size() - 1));
      for (const iovec& piece : guest) {
        bytes += static_cast<std::uint32_t>(piece.iov_len);
      }
    }
    std::size_t pieces = guest.size();
    if (bytes < kFrameBytesMax) {
      to[pieces++] = {.iov_base = slot(count) + bytes, .iov_len = kFrameBytesMax - bytes};
    }
    used += pieces;
    readings_[count] = {.guest = guest, .guest_bytes = bytes};
    calls_[count] = {.pieces = to.first(pieces)};
  }
  return count;
}

// What becomes of the frames that were read into calls_. Returns how many there were.
std::uint32_t TapChannel::take_batch(std::span<const std::uint8_t> order) noexcept {
  std::array<std::uint32_t, kBatch> lengths;
  std::size_t landed = 0;
  std::uint32_t used = 0;
  std::uint32_t longest = 0;
  bool in_place = true;
  gathered_count_ = gathered_done_ = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t call = order[i];
    const std::int32_t result = calls_[call].result;
    if (result < 0) {
      in_place = false;
      may_have_frames_ = used_a_frame(result);
      used += used_a_frame(result) ? 1 : 0;
      if (result != -EAGAIN) {
        counters_.receive_errors.add();
      }
      if (means_gone(result)) {
        note_gone(result);
      }
      continue;
    }
    ++used;
    may_have_frames_ = !gone_;
    longest = std::max(longest, static_cast<std::uint32_t>(result));
    const Arrived arrived = judge(call);
    in_place = in_place && arrived == Arrived::in_place && call == i;
    if (in_place) {
      lengths[landed++] = static_cast<std::uint32_t>(result);
    } else if (arrived == Arrived::bad) {
      counters_.receive_errors.add();
    } else if (arrived != Arrived::unwanted) {
      gather(call);
    }
  }
  receiver_.land(std::span(lengths).first(landed));
  adapt(order.size(), used, longest);
  return used;
}

TapChannel::Arrived TapChannel::judge(std::size_t call) noexcept {
  const Reading& reading = readings_[call];
  const auto bytes = static_cast<std::uint32_t>(calls_[call].result);
  if (RW_UNLIKELY(bytes < header_bytes_ + kEthernetHeaderBytes)) {
    return Arrived::bad;
  }
  if (receiver_.filters()) {
    std::array<std::byte, NetReceiveFilter::kHeadBytes> head{};
    NetCursor cursor(calls_[call].pieces, header_bytes_);
    cursor.read(std::span(head).first(std::min<std::size_t>(head.size(), bytes - header_bytes_)));
    if (!receiver_.wants(head)) {
      return Arrived::unwanted;
    }
  }
  if (bytes > reading.guest_bytes) {
    return Arrived::to_copy;
  }
  // Only frames that were queued before the guest's offloads changed need more than it can take.
  std::array<std::byte, 2> start{};
  if (RW_LIKELY(reading.guest.front().iov_len >= start.size())) {
    guest::copy(start.data(), static_cast<const std::byte*>(reading.guest.front().iov_base), start.size());
  } else {
    NetCursor(reading.guest).read(start);
  }
  const auto flags = static_cast<std::uint8_t>(start[0]);
  const auto gso = static_cast<std::uint8_t>(start[1]);
  const auto type = static_cast<std::uint8_t>(gso & static_cast<std::uint8_t>(~spec::kNetGsoEcn));
  const bool checksum = (flags & spec::kNetHdrNeedsCsum) == 0 || takes_checksum_;
  const bool whole = type < 32 && (takes_gso_ >> type & 1U) != 0 && (gso == type || takes_ecn_);
  return checksum && whole ? Arrived::in_place : Arrived::to_copy;
}

// Brings a frame together in its slot, before its landing goes back to the guest.
void TapChannel::gather(std::size_t call) noexcept {
  const Reading& reading = readings_[call];
  const auto bytes = static_cast<std::uint32_t>(calls_[call].result);
  NetCursor(reading.guest).read({slot(call), std::min(bytes, reading.guest_bytes)});
  gathered_[gathered_count_++] = {.slot = static_cast<std::uint8_t>(call), .bytes = bytes};
}

// False: the guest has no buffers for the next one, which stays.
bool TapChannel::deliver_gathered() noexcept {
  for (; gathered_done_ < gathered_count_; ++gathered_done_) {
    iovec piece{};
    NetFrame frame;
    if (!make_frame(gathered_[gathered_done_], piece, frame)) {
      counters_.receive_errors.add();
    } else if (receiver_.deliver(frame) == NetReceiver::Delivery::no_buffers) {
      return false;
    }
  }
  return true;
}

bool TapChannel::make_frame(const Gathered& gathered, iovec& piece, NetFrame& frame) const noexcept {
  std::byte* const start = slot(gathered.slot);
  frame.header = {};
  std::memcpy(&frame.header, start, std::min(header_bytes_, sizeof frame.header));
  frame.bytes = gathered.bytes - static_cast<std::uint32_t>(header_bytes_);
  piece = {.iov_base = start + header_bytes_, .iov_len = frame.bytes};
  frame.data = {&piece, 1};
  return settle_header(frame.header, frame.bytes);
}

// Enough reads to empty the queue in one call, and one that says that it is empty.
void TapChannel::adapt(std::size_t asked, std::size_t came, std::uint32_t longest) noexcept {
  constexpr std::size_t kReadsMin = 2;
  batch_ = came == asked ? std::min(std::max(batch_, 2 * asked), kBatch) : std::clamp(came + 1, kReadsMin, kBatch);
  if (longest > expected_bytes_) {
    expected_bytes_ = longest;
  } else if (came > 0) {
    // A large frame is expected again for some tens of calls: to lend too much costs less than to copy.
    expected_bytes_ -= (expected_bytes_ - longest) / 16;
  }
}

}  // namespace ringway
