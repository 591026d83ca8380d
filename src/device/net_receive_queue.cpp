#include "device/net_receive_queue.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "guest/access.hpp"
#include "request/net_checksum.hpp"
#include "request/net_pieces.hpp"

namespace ringway {

Result<> NetReceiveQueue::start(WorkerContext& context, NetChannel& channel, NetScratch& scratch,
                                vhost_user::RingStart start, std::shared_ptr<const RegionMap> map,
                                std::shared_ptr<DirtyLog> log) {
  channel_ = &channel;
  scratch_ = &scratch;
  starved_ = has_more_ = false;
  shortage_ = {};
  buffer_bytes_ = UINT32_MAX;
  return begin(context, std::move(start), std::move(map), std::move(log));
}

void NetReceiveQueue::on_state() noexcept {
  const bool received = std::exchange(receives_, can_pop() && pair_ < rules_->pairs);
  if (channel_ != nullptr) {
    channel_->set_enabled(receives_);
  }
  if (!receives_) {
    starved_ = has_more_ = false;
  } else if (!received) {
    context().activate(*this);
  }
}

Queue::Pumped NetReceiveQueue::pump(WorkerContext& /*its scratch is known*/) noexcept {
  check_memory();
  if (RW_UNLIKELY(!receives_)) {
    return Pumped::inactive;
  }
  starved_ = has_more_ = false;
  enter_turn();
  StageRecorder& stages = context().stages;
  const std::uint64_t began = stages.near(limits::kNetPumpFrames) ? StageClock::now() : 0;
  const std::uint64_t before = counters_.frames.get();
  const NetChannel::Received received = channel_->receive(limits::kNetPumpFrames);
  if (RW_UNLIKELY(!receives_)) {  // a ring fault meanwhile
    return Pumped::inactive;
  }
  if (stages.due(counters_.frames.get() - before)) {
    note_received(began);
  }
  pumped();
  if (received == NetChannel::Received::budget || RW_UNLIKELY(budget_ <= 0)) {
    has_more_ = true;
    return Pumped::budget;
  }
  starved_ = received == NetChannel::Received::no_buffers;
  return counters_.frames.get() != before ? Pumped::some : Pumped::nothing;
}

// The first frame of the batch; what lies between its being there and its being in the guest's buffers is the port's.
void NetReceiveQueue::note_received(std::uint64_t began) noexcept {
  if (TracedRequest* const followed = follow(); followed != nullptr) {
    followed->record.kind = TracedKind::receive;
    followed->record.ticks[static_cast<std::size_t>(Stage::popped)] = began;
    context().stages.complete(*followed);
  }
}

bool NetReceiveQueue::arm() noexcept {
  return awaits_kick() || channel_->arm();
}

// A queue that lacks buffers is not helped by more frames: it waits for the driver.
void NetReceiveQueue::wake() noexcept {
  if (receives_ && !starved_) {
    context().activate(*this);
  }
}

bool NetReceiveQueue::wants(std::span<const std::byte, NetReceiveFilter::kHeadBytes> head) noexcept {
  if (rules_->accept(head)) {
    return true;
  }
  counters_.filtered.add();
  return false;
}

// ---------------------------------------------------------------- buffers

bool NetReceiveQueue::take_buffer() noexcept {
  Chain& chain = scratch_->receive_chain;
  while (RW_LIKELY(budget_ > 0)) {
    const PopStatus status = next_fresh_chain(chain);
    if (RW_UNLIKELY(status != PopStatus::chain && status != PopStatus::chain_fault)) {
      if (status == PopStatus::ring_fault) {
        break_ring();
      }
      return false;
    }
    budget_ -= static_cast<std::int32_t>(chain.cost());
    if (RW_LIKELY(status == PopStatus::chain && chain.readable().empty())) {
      scratch_->buffers[buffer_count_++] = {
          .chain = chain.id(),
          .bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(chain.writable_bytes(), UINT32_MAX)),
          .first_segment = chain.position()};
      buffer_bytes_ = scratch_->buffers[buffer_count_ - 1].bytes;
      chain.keep();
      return true;
    }
    // No receive buffer: it goes back empty. But not before the buffers that are held already, which may yet have to go back
    // as if they had not been popped. So it is one of those that the frame is merged in; or comes first next time.
    budget_ -= limits::kPumpRequestCost;
    if (buffer_count_ != 0 && rules_->mergeable) {
      scratch_->buffers[buffer_count_++] = {.chain = chain.id(), .bytes = 0, .first_segment = chain.position()};
      return true;
    }
    if (buffer_count_ != 0) {
      unpop(chain.id());
      return false;
    }
    counters_.bad_buffers.add();
    complete_fresh(chain.id(), 0);
    note_finished();
  }
  return false;
}

// There are only those in scratch, and they are too few. If the ring has no room for another one the driver waits for these
// to be used, and there will never be more.
NetReceiveQueue::Taken NetReceiveQueue::shortage() noexcept {
  shortage_ = {};
  std::uint32_t descriptors = 0;
  std::uint32_t longest = 0;
  for (std::size_t i = 0; i < buffer_count_; ++i) {
    const ChainId chain = scratch_->buffers[i].chain;
    shortage_.add(chain);
    descriptors += chain.descriptors;
    longest = std::max<std::uint32_t>(longest, chain.descriptors);
  }
  untake(0);
  const bool all = receives_ && budget_ > 0 && descriptors + longest > ring_size();
  return all ? Taken::too_long : Taken::no_buffers;
}

NetReceiveQueue::Taken NetReceiveQueue::take_buffers(std::uint32_t bytes) noexcept {
  std::uint64_t room = buffer_count_ == 0 ? 0 : scratch_->buffers[0].bytes;
  while (room < bytes && (rules_->mergeable || buffer_count_ == 0)) {
    if (RW_UNLIKELY(buffer_count_ == scratch_->buffers.size() || !scratch_->receive_chain.can_keep())) {
      untake(0);
      return Taken::too_long;
    }
    if (!take_buffer()) {
      return shortage();
    }
    room += scratch_->buffers[buffer_count_ - 1].bytes;
  }
  if (RW_UNLIKELY(room < bytes)) {
    untake(0);
    return Taken::too_long;
  }
  return Taken::enough;
}

void NetReceiveQueue::untake(std::size_t kept) noexcept {
  while (buffer_count_ > kept) {
    unpop(scratch_->buffers[--buffer_count_].chain);
  }
  forget_buffers();
}

void NetReceiveQueue::forget_buffers() noexcept {
  buffer_count_ = 0;
  scratch_->receive_chain.let_go();
}

std::span<iovec> NetReceiveQueue::pieces_from(std::size_t first) noexcept {
  Chain& chain = scratch_->receive_chain;
  const std::size_t begin = scratch_->buffers[first].first_segment;
  return {&chain.segment(begin), chain.position() - begin};
}

void NetReceiveQueue::use_buffers(std::size_t first, std::size_t count, std::uint32_t bytes) noexcept {
  if (RW_UNLIKELY(log() != nullptr)) {
    std::size_t left = bytes;
    for (const iovec& piece : pieces_from(first)) {
      const std::size_t written = std::min(left, piece.iov_len);
      log()->mark(map(), static_cast<const std::byte*>(piece.iov_base), written);
      left -= written;
      if (left == 0) {
        break;
      }
    }
  }
  std::uint32_t left = bytes;
  for (std::size_t i = first; i < first + count; ++i) {
    const NetScratch::Buffer& buffer = scratch_->buffers[i];
    const std::uint32_t used = std::min(left, buffer.bytes);
    if (RW_UNLIKELY(used == 0)) {
      counters_.bad_buffers.add();
    }
    complete_fresh(buffer.chain, used);
    left -= used;
  }
  note_finished();
}

// ---------------------------------------------------------------- by copy

std::array<std::byte, NetReceiveFilter::kHeadBytes> NetReceiveQueue::head_of(const NetFrame& frame) noexcept {
  std::array<std::byte, NetReceiveFilter::kHeadBytes> head{};
  NetCursor(frame.data).read(head);
  return head;
}

// The sender left it to us, and the driver doesn't take it so.
bool NetReceiveQueue::completes_checksum(const spec::NetHeader& header) const noexcept {
  return (header.flags & spec::kNetHdrNeedsCsum) != 0 && (rules_->guest_offloads & spec::kNetGuestCsum) == 0;
}

// A frame that is to be cut.
bool NetReceiveQueue::can_take(const spec::NetHeader& header) const noexcept {
  std::uint64_t needed = 0;
  switch (header.gso_type & ~spec::kNetGsoEcn) {
    case spec::kNetGsoTcpv4:
      needed = spec::kNetGuestTso4;
      break;
    case spec::kNetGsoTcpv6:
      needed = spec::kNetGuestTso6;
      break;
    case spec::kNetGsoUdp:
      needed = spec::kNetGuestUfo;
      break;
    case spec::kNetGsoUdpL4:
      needed = spec::kNetGuestUso4 | spec::kNetGuestUso6;
      break;
    default:
      return false;
  }
  if ((header.gso_type & spec::kNetGsoEcn) != 0) {
    needed |= spec::kNetGuestEcn;
  }
  return (rules_->guest_offloads & needed) == needed;
}

std::size_t NetReceiveQueue::deliver(std::span<const NetFrame> frames) noexcept {
  if (RW_UNLIKELY(!receives_)) {
    counters_.dropped_disabled.add(frames.size());
    return frames.size();
  }
  enter_turn();
  std::size_t done = 0;
  for (; done < frames.size(); ++done) {
    done += put_plain(frames.subspan(done));
    if (done == frames.size() || put(frames[done]) == Delivery::no_buffers) {
      break;
    }
  }
  return done;
}

// From one piece to one buffer, and as it is.
[[gnu::always_inline]] inline bool NetReceiveQueue::is_plain(const NetFrame& frame,
                                                             std::uint32_t header_bytes) const noexcept {
  const NetReceiveRules& rules = *rules_;
  if (frame.data.size() != 1 || header_bytes + frame.bytes > buffer_bytes_) {
    return false;
  }
  if (RW_UNLIKELY((frame.header.flags | frame.header.gso_type) != 0) &&
      (completes_checksum(frame.header) || (frame.header.gso_type != spec::kNetGsoNone && !can_take(frame.header)))) {
    return false;
  }
  return !rules.filters || rules.accept(head_of(frame));
}

namespace {

// From registers: what is loaded from memory where smaller pieces of it were just stored has to wait until all earlier
// stores are done, and those to the guest's buffers are slow (90 % of the time of a flood of small frames).
[[gnu::always_inline]] inline void write_plain_header(std::byte* at, const spec::NetHeader& header) noexcept {
  constexpr std::uint32_t kOneBuffer = 1U << 16U;
  std::uint64_t start = 0;  // flags to csum_start
  std::memcpy(&start, &header, sizeof start);
  const std::uint32_t end = header.csum_offset | kOneBuffer;
  static_assert(sizeof start + sizeof end == spec::kNetHeaderBytes);
  guest::copy(at, reinterpret_cast<const std::byte*>(&start), sizeof start);
  guest::copy(at + sizeof start, reinterpret_cast<const std::byte*>(&end), sizeof end);
}

}  // namespace

// The rule, which is all that most frames need: those at the front that are plain, and find a buffer each. The buffers of
// all of them are on their way to this CPU's cache before the first one is written.
std::size_t NetReceiveQueue::put_plain(std::span<const NetFrame> frames) noexcept {
  if (RW_UNLIKELY(rules_->header_bytes != spec::kNetHeaderBytes || log() != nullptr || budget_ <= 0)) {
    return put_plain_hashed(frames);
  }
  return put_plain_with(frames, spec::kNetHeaderBytes);
}

[[gnu::noinline]] std::size_t NetReceiveQueue::put_plain_hashed(std::span<const NetFrame> frames) noexcept {
  if (rules_->header_bytes != spec::kNetHeaderHashBytes || log() != nullptr || budget_ <= 0) {
    return 0;
  }
  return put_plain_with(frames, spec::kNetHeaderHashBytes);
}

[[gnu::always_inline]] inline std::size_t NetReceiveQueue::put_plain_with(std::span<const NetFrame> frames,
                                                                          const std::uint32_t header_bytes) noexcept {
  RW_DCHECK(buffer_count_ == 0);
  std::size_t plain = 0;
  while (plain < std::min(frames.size(), limits::kNetBatch) && is_plain(frames[plain], header_bytes)) {
    ++plain;
  }
  if (plain == 0) {
    return 0;
  }
  const std::span<ChainBuffer> buffers =
      std::span(scratch_->plain_buffers).first(next_fresh_buffers(true, std::span(scratch_->plain_buffers).first(plain)));
  for (const ChainBuffer& buffer : buffers) {
    guest::prefetch_for_write(buffer.at);
    guest::prefetch_for_write(buffer.at + guest::kCacheLineBytes);
  }
  std::size_t done = 0;
  std::uint64_t bytes = 0;
  std::uint64_t gso = 0;
  for (; done < buffers.size(); ++done) {
    const ChainBuffer& buffer = buffers[done];
    const NetFrame& frame = frames[done];
    const std::uint32_t whole = header_bytes + frame.bytes;
    buffer_bytes_ = buffer.bytes;
    if (RW_UNLIKELY(whole > buffer.bytes)) {
      break;
    }
    write_plain_header(buffer.at, frame.header);
    guest::copy(buffer.at + header_bytes, static_cast<const std::byte*>(frame.data.front().iov_base), frame.bytes);
    bytes += frame.bytes;
    if (RW_UNLIKELY(frame.header.gso_type != spec::kNetGsoNone)) {
      ++gso;
    }
  }
  if (RW_UNLIKELY(header_bytes == spec::kNetHeaderHashBytes)) {
    write_hashes(buffers.first(done), frames);
  }
  // Apart from the copies: the lines of the used ring are the driver's as well, and stores leave the CPU in their order.
  for (std::size_t i = 0; i < done; ++i) {
    complete_fresh(buffers[i].chain, header_bytes + frames[i].bytes);
  }
  for (std::size_t left = buffers.size(); left > done; --left) {
    unpop(buffers[left - 1].chain);
  }
  if (done != 0) {
    note_finished();
    counters_.frames.add(done);
    counters_.bytes.add(bytes);
    counters_.gso_frames.add(gso);
    budget_ -= static_cast<std::int32_t>(done + bytes / limits::kPumpBytesPerUnit);
  }
  return done;
}

[[gnu::noinline]] NetHash NetReceiveQueue::compute_hash(const NetCursor& frame, std::uint32_t bytes) const noexcept {
  return net_hash(rules_->hash_key, rules_->hash_types, frame, bytes);
}

// Of frames that have been copied, behind the shorter header.
[[gnu::noinline]] void NetReceiveQueue::write_hashes(std::span<const ChainBuffer> buffers,
                                                     std::span<const NetFrame> frames) const noexcept {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const NetHash hash = hash_of(NetCursor(frames[i].data), frames[i].bytes);
    const std::uint64_t words = hash.value | std::uint64_t{hash.report} << 32U;
    static_assert(spec::kNetHeaderBytes + sizeof words == spec::kNetHeaderHashBytes);
    guest::copy(buffers[i].at + spec::kNetHeaderBytes, reinterpret_cast<const std::byte*>(&words), sizeof words);
  }
}

NetReceiver::Delivery NetReceiveQueue::put(const NetFrame& frame) noexcept {
  if (rules_->filters && !wants(head_of(frame))) {
    return Delivery::done;
  }
  if (RW_UNLIKELY(frame.header.gso_type != spec::kNetGsoNone) && !can_take(frame.header)) {
    return put_segments(frame);
  }
  return put_pieces(frame.header, frame.data, frame.bytes, completes_checksum(frame.header));
}

NetReceiver::Delivery NetReceiveQueue::put_pieces(const spec::NetHeader& header, std::span<const iovec> data,
                                                  std::uint32_t bytes, bool completes) noexcept {
  const auto header_bytes = static_cast<std::uint32_t>(rules_->header_bytes);
  const std::uint32_t whole = header_bytes + bytes;
  switch (take_buffers(whole)) {
    case Taken::enough:
      break;
    case Taken::no_buffers:
      return Delivery::no_buffers;
    case Taken::too_long:
      counters_.dropped_too_long.add();
      return Delivery::done;
  }
  const std::span<const iovec> to = pieces_from(0);
  write_header(to, completes ? spec::NetHeader{} : header, buffer_count_, hash_of(NetCursor(data), bytes));
  NetCursor behind_header(to, header_bytes);
  if (completes) {
    counters_.checksums_completed.add();
    net_copy_completing(behind_header, data, bytes, header.csum_start, header.csum_offset);
  } else {
    NetCursor from(data);
    static_cast<void>(net_copy(behind_header, from, bytes));
  }
  use_buffers(0, buffer_count_, whole);
  forget_buffers();
  count_received(bytes, header.gso_type);
  return Delivery::done;
}

// A frame that the guest can't take whole. If the buffers run out on the way the rest of it is lost: what was delivered
// can't be taken back, and TCP sends the rest again.
NetReceiver::Delivery NetReceiveQueue::put_segments(const NetFrame& frame) noexcept {
  NetSegmenter& segmenter = scratch_->segmenter;
  const NetSegmentOptions options{.partial_checksums = (rules_->guest_offloads & spec::kNetGuestCsum) != 0,
                                  .fragment_id = ++fragment_id_};
  if (segmenter.start(frame, options) != NetSegmentRefusal::none) {
    counters_.dropped_unsegmentable.add();
    return Delivery::done;
  }
  const auto header_bytes = static_cast<std::uint32_t>(rules_->header_bytes);
  // As Linux has it when it cuts a frame: all parts have the hash of the whole, by which its queue was chosen. It differs
  // from their own only where a UDP packet becomes fragments.
  const NetHash hash = hash_of(NetCursor(frame.data), frame.bytes);
  bool first = true;
  for (NetSegment segment; segmenter.next(segment); first = false) {
    const Taken taken = take_buffers(header_bytes + segment.bytes);
    if (taken == Taken::no_buffers && first) {
      return Delivery::no_buffers;
    }
    if (taken != Taken::enough) {
      (taken == Taken::too_long ? counters_.dropped_too_long : counters_.dropped_no_buffers).add();
      return Delivery::done;
    }
    const std::span<const iovec> to = pieces_from(0);
    write_header(to, segment.header, buffer_count_, hash);
    NetCursor behind_header(to, header_bytes);
    net_copy_segment(segment, behind_header);
    use_buffers(0, buffer_count_, header_bytes + segment.bytes);
    forget_buffers();
    count_received(segment.bytes, spec::kNetGsoNone);
  }
  counters_.segmented.add();
  return Delivery::done;
}

void NetReceiveQueue::write_header(std::span<const iovec> to, const spec::NetHeader& header, std::size_t buffers,
                                   const NetHash& hash) noexcept {
  const spec::NetHeader ours = header_of(header, buffers, hash);
  NetCursor(to).write(std::as_bytes(std::span(&ours, 1)).first(rules_->header_bytes));
}

void NetReceiveQueue::count_received(std::uint32_t frame_bytes, std::uint8_t gso_type) noexcept {
  counters_.frames.add();
  counters_.bytes.add(frame_bytes);
  budget_ -= static_cast<std::int32_t>(frame_bytes / limits::kPumpBytesPerUnit);
  if (gso_type != spec::kNetGsoNone) {
    counters_.gso_frames.add();
  }
}

// ---------------------------------------------------------------- in place

// Either each landing is one buffer, or there is a single landing of several: buffers that a frame left over could not go
// back if frames behind it had come.
std::size_t NetReceiveQueue::lend(std::span<NetLanding> landings, std::uint32_t bytes) noexcept {
  if (landings.empty() || !receives_) {
    return 0;
  }
  enter_turn();
  RW_DCHECK(buffer_count_ == 0);
  shortage_ = {};
  while (buffer_count_ < landings.size() && scratch_->receive_chain.can_keep() && take_buffer()) {
    const NetScratch::Buffer& newest = scratch_->buffers[buffer_count_ - 1];
    if (newest.bytes < bytes && rules_->mergeable) {
      if (buffer_count_ > 1) {
        // Not of this kind; it will be the first of its own next time.
        scratch_->receive_chain.let_go(newest.first_segment);
        unpop(newest.chain);
        --buffer_count_;
        break;
      }
      std::uint64_t room = newest.bytes;
      while (room < bytes && buffer_count_ < scratch_->buffers.size() && scratch_->receive_chain.can_keep() &&
             take_buffer()) {
        room += scratch_->buffers[buffer_count_ - 1].bytes;
      }
      landings[0] = {.pieces = pieces_from(0),
                     .bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(room, UINT32_MAX))};
      return 1;
    }
    landings[buffer_count_ - 1] = {.pieces = pieces_from(buffer_count_ - 1), .bytes = newest.bytes};
  }
  return buffer_count_;
}

void NetReceiveQueue::land(std::span<const std::uint32_t> lengths) noexcept {
  std::size_t used = 0;
  for (const std::uint32_t length : lengths) {
    RW_DCHECK(length >= rules_->header_bytes + kEthernetHeaderBytes);
    std::size_t count = 0;
    for (std::uint64_t room = 0; room < length; ++count) {
      RW_DCHECK(used + count < buffer_count_);
      room += scratch_->buffers[used + count].bytes;
    }
    NetCursor at(pieces_from(used));
    std::uint8_t flags_and_type[2] = {};
    NetCursor(at).read(std::as_writable_bytes(std::span(flags_and_type)));
    const bool checksums = (rules_->guest_offloads & spec::kNetGuestCsum) != 0;
    if (!checksums && flags_and_type[0] != 0) {
      // A kernel says of a checksum that it is right whether it was asked or not; this driver must not be told.
      const std::byte none{};
      NetCursor(at).write({&none, 1});
    }
    if (rules_->header_bytes >= spec::kNetHeaderBytes) {
      spec::NetHeader tail{};  // number of buffers and hash
      tail.num_buffers = static_cast<std::uint16_t>(count);
      if (RW_UNLIKELY(rules_->hash_types != 0)) {
        NetCursor frame(at);
        frame.advance(rules_->header_bytes);
        const NetHash hash = hash_of(frame, length - static_cast<std::uint32_t>(rules_->header_bytes));
        tail.hash_value = hash.value;
        tail.hash_report = hash.report;
      }
      NetCursor behind(at);
      behind.advance(spec::kNetHeaderLegacyBytes);
      behind.write(std::as_bytes(std::span(&tail, 1))
                       .subspan(spec::kNetHeaderLegacyBytes, rules_->header_bytes - spec::kNetHeaderLegacyBytes));
    }
    use_buffers(used, count, length);
    count_received(length - static_cast<std::uint32_t>(rules_->header_bytes), flags_and_type[1]);
    used += count;
  }
  untake(used);
}

}  // namespace ringway
