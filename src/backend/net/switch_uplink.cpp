#include "backend/net/switch_uplink.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "request/net_checksum.hpp"
#include "request/net_pieces.hpp"

namespace ringway {
namespace {

constexpr std::uint32_t kReceivedAtATime = 128;

// What is left of the header that stands before a frame from outside, as NetFrame has it. False: it contradicts itself.
bool settle_outside_header(spec::NetHeader& header, std::uint32_t frame_bytes) noexcept {
  const bool partial = (header.flags & spec::kNetHdrNeedsCsum) != 0;
  const auto type = static_cast<std::uint8_t>(header.gso_type & ~spec::kNetGsoEcn);
  if (!partial) {
    const bool whole = type == spec::kNetGsoNone;
    header = {};
    return whole;
  }
  header = {.flags = spec::kNetHdrNeedsCsum,
            .gso_type = header.gso_type,
            .hdr_len = static_cast<std::uint16_t>(std::min<std::uint32_t>(header.hdr_len, frame_bytes)),
            .gso_size = type == spec::kNetGsoNone ? std::uint16_t{0} : header.gso_size,
            .csum_start = header.csum_start,
            .csum_offset = header.csum_offset,
            .num_buffers = 0,
            .hash_value = 0,
            .hash_report = 0,
            .padding_reserved = 0};
  return (type == spec::kNetGsoNone || header.gso_size != 0) && header.csum_start >= kNetChecksumStartMin &&
         std::uint32_t{header.csum_start} + header.csum_offset + sizeof(std::uint16_t) <= frame_bytes;
}

// What a port has to offer for a frame of that kind; ~0 if there is none.
std::uint64_t offload_of(std::uint8_t gso_type) noexcept {
  const std::uint64_t ecn = (gso_type & spec::kNetGsoEcn) != 0 ? spec::kNetHostEcn : 0;
  switch (gso_type & ~spec::kNetGsoEcn) {
    case spec::kNetGsoNone:
      return 0;
    case spec::kNetGsoTcpv4:
      return spec::kNetHostTso4 | ecn;
    case spec::kNetGsoTcpv6:
      return spec::kNetHostTso6 | ecn;
    case spec::kNetGsoUdp:
      return spec::kNetHostUfo;
    case spec::kNetGsoUdpL4:
      return spec::kNetHostUso;
    default:
      return ~std::uint64_t{0};
  }
}

}  // namespace

Result<std::unique_ptr<SwitchUplink>> SwitchUplink::open(NetPort& outside, NetPort& inside, std::uint32_t pair, Loop& loop) {
  auto uplink = std::unique_ptr<SwitchUplink>(new SwitchUplink(loop));
  const auto opened = [&]() -> Result<> {
    RW_TRY_ASSIGN(uplink->outside_, outside.open_channel({.index = pair,
                                                          .loop = loop,
                                                          .receiver = uplink->inward_,
                                                          .sender = uplink->inward_,
                                                          .counters = uplink->outside_counters_}));
    RW_TRY_ASSIGN(uplink->inside_, inside.open_channel({.index = pair,
                                                        .loop = loop,
                                                        .receiver = uplink->outward_,
                                                        .sender = uplink->outward_,
                                                        .counters = uplink->inside_counters_}));
    return {};
  }();
  if (!opened) {
    uplink->stop(nullptr);
    return std::unexpected(opened.error());
  }
  uplink->takes_ = outside.info().host_offloads;
  uplink->outside_->set_guest(outside.info().guest_offloads, kHeaderBytes);
  uplink->inside_->set_guest(inside.info().guest_offloads, kHeaderBytes);
  uplink->outside_->set_enabled(true);
  uplink->inside_->set_enabled(true);
  uplink->schedule();
  return uplink;
}

SwitchUplink::SwitchUplink(Loop& loop)
    : loop_(loop), memory_(std::make_unique_for_overwrite<std::byte[]>((kBuffers + 1) * kBufferBytes)) {
  free_.reserve(kBuffers);
  for (std::size_t i = kBuffers; i > 0; --i) {
    free_.push_back(static_cast<std::uint16_t>(i - 1));
  }
}

SwitchUplink::~SwitchUplink() {
  RW_CHECK(stopping_ && free_.size() == kBuffers);
  inside_.reset();
  outside_.reset();
  unschedule();
}

void SwitchUplink::stop(std::move_only_function<void()> idle) {
  stopping_ = true;
  idle_ = std::move(idle);
  if (outside_ != nullptr) {
    outside_->set_enabled(false);
  }
  if (inside_ != nullptr) {
    inside_->set_enabled(false);
  }
  if (idle_ && free_.size() == kBuffers) {
    std::exchange(idle_, nullptr)();
  }
}

// ---------------------------------------------------------------- turns

void SwitchUplink::schedule() noexcept {
  if (!scheduled_ && !stopping_) {
    scheduled_ = true;
    loop_.set_timer(*this, Instant{});  // in the loop's next look
  }
}

void SwitchUplink::unschedule() noexcept {
  scheduled_ = false;
  loop_.cancel_timer(*this);
}

void SwitchUplink::on_timer(Instant /*now*/) noexcept {
  scheduled_ = false;
  if (stopping_) {
    if (idle_ && free_.size() == kBuffers) {
      std::exchange(idle_, nullptr)();
    }
    return;
  }
  const NetChannel::Received in = outside_->receive(kReceivedAtATime);
  const NetChannel::Received out = inside_->receive(kReceivedAtATime);
  if (in == NetChannel::Received::budget || out == NetChannel::Received::budget || inside_->arm() || outside_->arm()) {
    schedule();
  }
}

// ---------------------------------------------------------------- from outside

std::size_t SwitchUplink::Inward::lend(std::span<NetLanding> landings, std::uint32_t /*each is the longest*/) noexcept {
  SwitchUplink& up = uplink_;
  up.landing_count_ = std::min({landings.size(), up.free_.size(), up.landing_.size()});
  for (std::size_t i = 0; i < up.landing_count_; ++i) {
    const std::uint16_t index = up.free_[up.free_.size() - 1 - i];
    up.landing_[i] = index;
    up.pieces_[i] = {.iov_base = up.buffer(index), .iov_len = kBufferBytes};
    landings[i] = {.pieces = {&up.pieces_[i], 1}, .bytes = kBufferBytes};
  }
  return up.landing_count_;
}

void SwitchUplink::Inward::land(std::span<const std::uint32_t> lengths) noexcept {
  SwitchUplink& up = uplink_;
  up.landing_count_ = 0;
  up.free_.resize(up.free_.size() - lengths.size());
  up.send_inward(std::span(up.landing_).first(lengths.size()), lengths);
}

// From memory that is not ours to lend.
std::size_t SwitchUplink::Inward::deliver(std::span<const NetFrame> frames) noexcept {
  std::size_t done = 0;
  while (done < frames.size() && !uplink_.free_.empty()) {
    uplink_.take_copy(frames[done++]);
  }
  return done;
}

void SwitchUplink::take_copy(const NetFrame& frame) noexcept {
  const std::uint16_t index = free_.back();
  free_.pop_back();
  std::memcpy(buffer(index), &frame.header, kHeaderBytes);
  const auto bytes =
      static_cast<std::uint32_t>(NetCursor(frame.data).read({buffer(index) + kHeaderBytes, kBufferBytes - kHeaderBytes}));
  const std::uint32_t length = static_cast<std::uint32_t>(kHeaderBytes) + bytes;
  send_inward({&index, 1}, {&length, 1});
}

void SwitchUplink::send_inward(std::span<const std::uint16_t> filled, std::span<const std::uint32_t> lengths) noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < filled.size(); ++i) {
    std::byte* const at = buffer(filled[i]);
    NetFrame& frame = frames_[count];
    frame = {.header = {}, .data = {&pieces_[count], 1}, .bytes = lengths[i] - static_cast<std::uint32_t>(kHeaderBytes)};
    std::memcpy(&frame.header, at, kHeaderBytes);
    if (!settle_outside_header(frame.header, frame.bytes)) {
      counters_.bad_headers.add();
      free_.push_back(filled[i]);
      continue;
    }
    pieces_[count] = {.iov_base = at + kHeaderBytes, .iov_len = frame.bytes};
    sending_[count++] = filled[i];
  }
  lent_ = 0;
  counters_.frames_in.add(count);
  // A switch takes all.
  const std::size_t sent = inside_->send(std::span(frames_).first(count));
  RW_DCHECK(sent == count);
  counters_.dropped_full.add(count - sent);
  for (std::size_t i = 0; i < count; ++i) {
    if ((lent_ >> i & 1U) == 0) {
      free_.push_back(sending_[i]);
    }
  }
}

NetLoan SwitchUplink::Inward::lend(std::size_t /*frame*/) noexcept {
  RW_CHECK(false);  // a port that isn't a switch has no need to
  return {};
}

NetLoan SwitchUplink::Outward::lend(std::size_t frame) noexcept {
  uplink_.lent_ |= 1U << frame;
  return {.chain = {.head = uplink_.sending_[frame], .descriptors = 0}, .memory = nullptr};
}

void SwitchUplink::Outward::give_back(std::span<const NetLoan> loans) noexcept {
  SwitchUplink& up = uplink_;
  const bool waited = up.free_.empty();
  for (const NetLoan& loan : loans) {
    up.free_.push_back(loan.chain.head);
  }
  if (waited) {
    up.schedule();
  }
  if (up.idle_ && up.free_.size() == kBuffers) {
    // Not from here: the switch is still at it.
    up.scheduled_ = true;
    up.loop_.set_timer(up, Instant{});
  }
}

// ---------------------------------------------------------------- to the outside

std::size_t SwitchUplink::Outward::deliver(std::span<const NetFrame> frames) noexcept {
  std::size_t done = 0;
  while (done < frames.size() && uplink_.send_outward(frames[done])) {
    ++done;
  }
  return done;
}

// False: there is no room outside.
bool SwitchUplink::send_outward(const NetFrame& frame) noexcept {
  const std::uint64_t needed =
      offload_of(frame.header.gso_type) | ((frame.header.flags & spec::kNetHdrNeedsCsum) != 0 ? spec::kNetCsum : 0);
  if ((takes_ & needed) != needed) {
    send_cut(frame);
    return true;
  }
  if (outside_->send({&frame, 1}) == 0) {
    return false;
  }
  counters_.frames_out.add();
  return true;
}

void SwitchUplink::send_cut(const NetFrame& frame) noexcept {
  std::byte* const at = buffer(kBuffers);
  iovec piece{.iov_base = at, .iov_len = kBufferBytes};
  const auto send = [&](const spec::NetHeader& header, std::uint32_t bytes) {
    piece.iov_len = bytes;
    const NetFrame part{.header = header, .data = {&piece, 1}, .bytes = bytes};
    const bool sent = outside_->send({&part, 1}) == 1;
    (sent ? counters_.frames_out : counters_.dropped_full).add();
    return sent;
  };
  if (frame.header.gso_type == spec::kNetGsoNone) {
    net_copy_completing(NetCursor({&piece, 1}), frame.data, frame.bytes, frame.header.csum_start, frame.header.csum_offset);
    static_cast<void>(send({}, frame.bytes));
    return;
  }
  const NetSegmentOptions options{.partial_checksums = (takes_ & spec::kNetCsum) != 0, .fragment_id = ++fragment_id_};
  if (segmenter_.start(frame, options) != NetSegmentRefusal::none) {
    counters_.dropped_uncuttable.add();
    return;
  }
  counters_.cut.add();
  for (NetSegment segment; segmenter_.next(segment);) {
    piece.iov_len = kBufferBytes;
    net_copy_segment(segment, NetCursor({&piece, 1}));
    if (!send(segment.header, segment.bytes)) {
      break;  // the rest of it would be of no use
    }
  }
}

}  // namespace ringway
