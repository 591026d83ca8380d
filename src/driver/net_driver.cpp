// How the pieces lie. The one region of shared memory holds, for each queue: the ring's areas and indirect tables, then
// receive buffers, or transmit buffers and header cells. What the ring carries as its token is the number of a buffer or
// cell; the ring keeps tokens privately, and the caller's too, where they aren't the same.
#include "driver/net_driver.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "guest/access.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

constexpr std::size_t kBufferPage = 4096;
constexpr std::uint32_t kLine = 64;
constexpr std::uint32_t kFrameBytesMin = 14;  // Ethernet's header
constexpr std::uint32_t kControlTableEntries = NetDriverControlQueue::kPartsMax + 3;

constexpr std::uint32_t round_up_to_line(std::uint32_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

// Room before a buffer's frame, for the header; and how far buffers lie apart.
std::uint32_t receive_stride(const NetDriverOptions& options) {
  return kLine + round_up_to_line(options.receive_buffer_bytes);
}
std::uint32_t transmit_stride(const NetDriverOptions& options) {
  return kLine + round_up_to_line(options.transmit_buffer_bytes);
}

Result<> check_net_options(const NetDriverOptions& options) {
  if (options.pairs == 0 || options.pairs > limits::kQueuesPerDeviceMax / 2) {
    return fail(
        fmt::format("a network driver has 1 to {} queue pairs, not {}", limits::kQueuesPerDeviceMax / 2, options.pairs));
  }
  if (options.receive_buffers == 0 || options.transmit_buffers == 0) {
    return fail("a queue pair needs at least one receive and one transmit buffer");
  }
  if (options.receive_buffer_bytes < spec::kNetHeaderHashBytes + kFrameBytesMin ||
      options.transmit_buffer_bytes < kFrameBytesMin) {
    return fail(fmt::format("a receive buffer has at least {} bytes and a transmit buffer {}, not {} and {}",
                            spec::kNetHeaderHashBytes + kFrameBytesMin, kFrameBytesMin, options.receive_buffer_bytes,
                            options.transmit_buffer_bytes));
  }
  if (options.legacy && options.packed) {
    return fail("a packed ring needs VERSION_1, which a legacy driver doesn't have");
  }
  return {};
}

// §5.1.3.1. Any of the required bits will do.
struct Requirement {
  std::uint64_t features;
  std::uint64_t required;
};
constexpr Requirement kRequirements[] = {
    {spec::kNetGuestTso4 | spec::kNetGuestTso6 | spec::kNetGuestUfo | spec::kNetGuestUso4 | spec::kNetGuestUso6,
     spec::kNetGuestCsum},
    {spec::kNetGuestEcn, spec::kNetGuestTso4 | spec::kNetGuestTso6},
    {spec::kNetHostTso4 | spec::kNetHostTso6 | spec::kNetHostUfo | spec::kNetHostUso, spec::kNetCsum},
    {spec::kNetHostEcn, spec::kNetHostTso4 | spec::kNetHostTso6},
    {spec::kNetCtrlRx | spec::kNetCtrlVlan | spec::kNetCtrlRxExtra | spec::kNetGuestAnnounce | spec::kNetCtrlMacAddr |
         spec::kNetCtrlGuestOffloads | spec::kNetNotfCoal | spec::kNetVqNotfCoal | spec::kNetHashReport | spec::kNetRss,
     spec::kNetCtrlVq},
};

template <typename T>
std::span<const std::byte> raw(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

std::uint64_t net_features_with_requirements(std::uint64_t features, bool mq_by_front_end) {
  for (const Requirement& requirement : kRequirements) {  // ordered: what is required comes first
    if ((features & requirement.required) == 0) {
      features &= ~requirement.features;
    }
  }
  if ((features & spec::kNetCtrlVq) == 0 && !mq_by_front_end) {
    features &= ~spec::kNetMq;
  }
  return features;
}

std::uint32_t net_header_bytes(std::uint64_t features) {
  if ((features & spec::kNetHashReport) != 0) {
    return spec::kNetHeaderHashBytes;
  }
  return (features & (spec::kFeatureVersion1 | spec::kNetMrgRxbuf)) != 0 ? spec::kNetHeaderBytes
                                                                         : spec::kNetHeaderLegacyBytes;
}

// --- transmit: hot path ---

std::size_t NetDriverTransmitQueue::transmit(std::span<const Frame> frames) noexcept {
  if (header_apart_) {
    return transmit_header_apart(frames);
  }
  std::size_t count = 0;
  for (const Frame& frame : frames) {
    RW_DCHECK(frame.bytes <= buffer_bytes_);
    const std::uint64_t at = frames_guest_.value + std::uint64_t{frame.buffer} * stride_ - header_bytes_;
    const DriverBuffer whole{.address = GuestAddress{at}, .bytes = header_bytes_ + frame.bytes};
    if (!ring_->add({&whole, 1}, frame.buffer)) {
      break;
    }
    ++count;
  }
  return count;
}

std::size_t NetDriverTransmitQueue::transmit_header_apart(std::span<const Frame> frames) noexcept {
  std::size_t count = 0;
  for (const Frame& frame : frames) {
    RW_DCHECK(frame.bytes <= buffer_bytes_);
    const std::uint64_t at = frames_guest_.value + std::uint64_t{frame.buffer} * stride_;
    const std::array<DriverBuffer, 2> parts{
        DriverBuffer{.address = GuestAddress{at - header_bytes_}, .bytes = header_bytes_},
        DriverBuffer{.address = GuestAddress{at}, .bytes = frame.bytes}};
    if (!ring_->add(parts, frame.buffer)) {
      break;
    }
    ++count;
  }
  return count;
}

bool NetDriverTransmitQueue::transmit(const spec::NetHeader& header, std::span<const DriverBuffer> pieces,
                                      std::uint64_t token) noexcept {
  RW_DCHECK(pieces.size() < chain_.size());
  if (free_count_ == 0) {
    return false;
  }
  const std::size_t at = std::size_t{free_cells_[free_count_ - 1]} * kCellBytes;
  std::memcpy(cells_ + at, &header, header_bytes_);
  chain_[0] = {.address = GuestAddress{cells_guest_.value + at}, .bytes = header_bytes_};
  std::ranges::copy(pieces, chain_.begin() + 1);
  return transmit_chain({chain_.data(), pieces.size() + 1}, token);
}

bool NetDriverTransmitQueue::transmit_chain(std::span<const DriverBuffer> chain, std::uint64_t token) noexcept {
  if (free_count_ == 0) {
    return false;
  }
  const std::uint32_t cell = free_cells_[free_count_ - 1];
  if (!ring_->add(chain, kCellToken | cell)) {
    return false;
  }
  --free_count_;
  tokens_[cell] = token;
  return true;
}

std::size_t NetDriverTransmitQueue::reap_transmitted(std::span<std::uint64_t> tokens) noexcept {
  std::size_t count = 0;
  UsedElement used;
  while (count < tokens.size() && ring_->take_used(used)) {
    if ((used.token & kCellToken) == 0) {
      tokens[count++] = used.token;
    } else {
      const auto cell = static_cast<std::uint32_t>(used.token);
      free_cells_[free_count_++] = cell;
      tokens[count++] = tokens_[cell];
    }
    counters_.bad_used += used.written_bytes != 0 ? 1 : 0;  // it had nothing to write to
  }
  return count;
}

SharedBlock NetDriverTransmitQueue::buffer(std::uint32_t index) const noexcept {
  const std::size_t offset = std::size_t{index} * stride_;
  return {.host = frames_ + offset, .guest = GuestAddress{frames_guest_.value + offset}, .bytes = buffer_bytes_};
}

void NetDriverTransmitQueue::set_header(std::uint32_t buffer, const spec::NetHeader& header) noexcept {
  std::memcpy(frames_ + std::size_t{buffer} * stride_ - header_bytes_, &header, header_bytes_);
}

void NetDriverTransmitQueue::forget_in_flight() noexcept {
  free_count_ = static_cast<std::uint32_t>(free_cells_.size());
  std::iota(free_cells_.rbegin(), free_cells_.rend(), 0U);
}

Result<> NetDriverTransmitQueue::lay_out_buffers(const NetDriverOptions& options, std::uint32_t header_bytes,
                                                 SharedMemory& memory) {
  header_bytes_ = header_bytes;
  buffer_bytes_ = options.transmit_buffer_bytes;
  stride_ = transmit_stride(options);
  header_apart_ = options.transmit_header_apart;
  RW_TRY_ASSIGN(const SharedBlock buffers, memory.allocate(std::size_t{options.transmit_buffers} * stride_, kBufferPage));
  frames_ = buffers.host + kLine;
  frames_guest_ = GuestAddress{buffers.guest.value + kLine};
  RW_TRY_ASSIGN(const SharedBlock cells, memory.allocate(options.queue_size * kCellBytes, kBufferPage));
  cells_ = cells.host;
  cells_guest_ = cells.guest;
  free_cells_.resize(options.queue_size);
  tokens_.resize(options.queue_size);
  chain_.resize(std::size_t{options.pieces_max} + 1);
  forget_in_flight();
  return {};
}

// --- receive: hot path ---

bool NetDriverReceiveQueue::post(std::uint32_t index) noexcept {
  const std::uint64_t at = buffers_guest_.value + std::uint64_t{index} * stride_;
  if (RW_LIKELY(!header_apart_)) {
    const DriverBuffer whole{.address = GuestAddress{at}, .bytes = buffer_bytes_, .device_writable = true};
    return ring_->add({&whole, 1}, index);
  }
  const std::array<DriverBuffer, 2> parts{
      DriverBuffer{.address = GuestAddress{at}, .bytes = header_bytes_, .device_writable = true},
      DriverBuffer{
          .address = GuestAddress{at + header_bytes_}, .bytes = buffer_bytes_ - header_bytes_, .device_writable = true}};
  return ring_->add(parts, index);
}

std::uint32_t NetDriverReceiveQueue::fill() noexcept {
  const std::uint32_t before = free_count_;
  while (free_count_ != 0 && post(free_[free_count_ - 1])) {
    --free_count_;
  }
  publish_and_kick();
  return before - free_count_;
}

std::size_t NetDriverReceiveQueue::receive(std::span<NetDriverFrame> frames) noexcept {
  std::size_t count = 0;
  iovec* next = pieces_.data();
  UsedElement used;
  while (count < frames.size() && ring_->take_used(used)) {
    const auto index = static_cast<std::uint32_t>(used.token);
    const std::uint32_t bytes = used.written_bytes - header_bytes_;
    if (RW_UNLIKELY(bytes > buffer_bytes_ - header_bytes_)) {  // or less than the header: then it has wrapped
      ++faults_.bad_length;
      ++counters_.bad_used;
      free_[free_count_++] = index;
      continue;
    }
    NetDriverFrame& frame = frames[count];
    std::byte* at = buffer(index);
    frame.header = {};
    auto* header = reinterpret_cast<std::byte*>(&frame.header);
    if (RW_LIKELY(header_bytes_ == spec::kNetHeaderBytes)) {
      guest::copy(header, at, spec::kNetHeaderBytes);  // of a constant size: a move or two
    } else {
      guest::copy(header, at, header_bytes_);
    }
    frame.bytes = bytes;
    frame.first = index;
    frame.buffers = 1;
    frame.pieces = {next, 1};
    *next++ = {.iov_base = at + header_bytes_, .iov_len = bytes};
    if (mergeable_ && RW_UNLIKELY(frame.header.num_buffers != 1) && !take_others(frame, next)) {
      continue;
    }
    ++count;
  }
  return count;
}

bool NetDriverReceiveQueue::take_others(NetDriverFrame& frame, iovec*& next) noexcept {
  if (frame.header.num_buffers == 0) {
    ++faults_.no_num_buffers;
    return true;
  }
  std::uint32_t last = frame.first;
  UsedElement used;
  bool good = true;
  while (frame.buffers < frame.header.num_buffers) {
    if (!ring_->take_used(used)) {
      // They would have to be there: the device makes them used together with the first one (§5.1.6.4.1).
      ++faults_.missing_buffers;
      good = false;
      break;
    }
    const auto index = static_cast<std::uint32_t>(used.token);
    const std::uint32_t bytes = used.written_bytes;
    if (bytes == 0 || bytes > buffer_bytes_) {
      ++faults_.bad_length;
      ++counters_.bad_used;
      good = false;
    }
    next_[last] = index;
    last = index;
    ++frame.buffers;
    frame.bytes += bytes;
    *next++ = {.iov_base = buffer(index), .iov_len = bytes};
  }
  frame.pieces = {frame.pieces.data(), frame.buffers};
  if (!good) {
    next = const_cast<iovec*>(frame.pieces.data());
    free_buffers_of(frame);
  }
  return good;
}

void NetDriverReceiveQueue::free_buffers_of(const NetDriverFrame& frame) noexcept {
  std::uint32_t index = frame.first;
  for (std::uint32_t left = frame.buffers; left > 1; --left) {
    free_[free_count_++] = index;
    index = next_[index];
  }
  free_[free_count_++] = index;
}

void NetDriverReceiveQueue::give_back(std::span<const NetDriverFrame> frames) noexcept {
  for (const NetDriverFrame& frame : frames) {
    RW_DCHECK(free_count_ + frame.buffers <= free_.size());
    free_buffers_of(frame);
  }
}

void NetDriverReceiveQueue::forget_in_flight() noexcept {
  free_count_ = static_cast<std::uint32_t>(free_.size());
  std::iota(free_.rbegin(), free_.rend(), 0U);
}

Result<> NetDriverReceiveQueue::lay_out_buffers(const NetDriverOptions& options, std::uint32_t header_bytes, bool mergeable,
                                                SharedMemory& memory) {
  header_bytes_ = header_bytes;
  buffer_bytes_ = options.receive_buffer_bytes;
  stride_ = receive_stride(options);
  mergeable_ = mergeable;
  header_apart_ = options.receive_header_apart;
  RW_TRY_ASSIGN(const SharedBlock buffers, memory.allocate(std::size_t{options.receive_buffers} * stride_, kBufferPage));
  buffers_ = buffers.host + kLine - header_bytes;
  buffers_guest_ = GuestAddress{buffers.guest.value + kLine - header_bytes};
  free_.resize(options.receive_buffers);
  next_.resize(options.receive_buffers);
  pieces_.resize(options.receive_buffers);
  forget_in_flight();
  return {};
}

// --- the control queue ---

Result<UsedElement> NetDriverControlQueue::await_used() {
  const Instant deadline = clock_now() + patience_;
  UsedElement used;
  while (!ring_->take_used(used)) {
    if (ring_->broken()) {
      return fail("the control queue is broken: the device returned a chain that it wasn't given");
    }
    if (!wait(deadline) && clock_now() >= deadline) {
      return fail("the device didn't answer a command on the control queue in time");
    }
  }
  return used;
}

NetDriverControlQueue::Answer NetDriverControlQueue::command(std::uint8_t control_class, std::uint8_t command,
                                                             std::span<const std::span<const std::byte>> data,
                                                             std::span<std::byte> out) {
  std::size_t data_bytes = 0;
  for (const std::span<const std::byte> part : data) {
    data_bytes += part.size();
  }
  if (data.size() > kPartsMax || data_bytes + out.size() > kDataBytesMax) {
    return fail(fmt::format("a command may have {} parts and {} bytes, not {} and {}", kPartsMax, kDataBytesMax, data.size(),
                            data_bytes + out.size()));
  }
  if (ring_->in_flight() != 0) {
    RW_TRY(await_used());  // of a command that was given up
  }
  std::array<DriverBuffer, kControlTableEntries> chain;
  std::size_t count = 0;
  std::size_t end = 0;
  const auto append = [&](std::size_t bytes, bool device_writable) {
    std::byte* at = block_.host + end;
    if (bytes != 0) {
      chain[count++] = {.address = GuestAddress{block_.guest.value + end},
                        .bytes = static_cast<std::uint32_t>(bytes),
                        .device_writable = device_writable};
    }
    end += bytes;
    return at;
  };
  const spec::NetCtrlHeader header{.control_class = control_class, .command = command};
  std::memcpy(append(sizeof header, false), &header, sizeof header);
  for (const std::span<const std::byte> part : data) {
    std::byte* at = append(part.size(), false);
    std::ranges::copy(part, at);
  }
  std::byte* written = append(out.size(), true);
  std::byte* ack = append(1, true);
  *ack = std::byte{NetDriverAnswer::kAckUntouched};
  if (!ring_->add({chain.data(), count}, 0)) {
    return fail("the control queue is broken, or too small for the command");
  }
  publish_and_kick();
  RW_TRY_ASSIGN(const UsedElement used, await_used());
  if (!out.empty()) {
    guest::copy(out.data(), written, out.size());
  }
  NetDriverAnswer answer{.ack = 0, .written_bytes = used.written_bytes};
  answer.ack = guest::load<std::uint8_t>(ack);
  return answer;
}

NetDriverControlQueue::Answer NetDriverControlQueue::set_pairs(std::uint16_t pairs) {
  const std::array parts{raw(pairs)};
  return command(spec::kNetCtrlClassMq, spec::kNetCtrlMqVqPairsSet, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::set_rx_mode(std::uint8_t mode, bool on) {
  const std::uint8_t value = on ? 1 : 0;
  const std::array parts{raw(value)};
  return command(spec::kNetCtrlClassRx, mode, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::set_mac_tables(std::span<const Mac> unicast,
                                                                    std::span<const Mac> multicast) {
  const auto unicast_count = static_cast<std::uint32_t>(unicast.size());
  const auto multicast_count = static_cast<std::uint32_t>(multicast.size());
  std::vector<std::byte> tables[2];
  const auto append = [](std::vector<std::byte>& table, std::span<const std::byte> bytes) {
    table.insert(table.end(), bytes.begin(), bytes.end());
  };
  append(tables[0], raw(unicast_count));
  append(tables[0], std::as_bytes(unicast));
  append(tables[1], raw(multicast_count));
  append(tables[1], std::as_bytes(multicast));
  const std::array<std::span<const std::byte>, 2> parts{tables[0], tables[1]};
  return command(spec::kNetCtrlClassMac, spec::kNetCtrlMacTableSet, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::set_mac(const Mac& mac) {
  const std::array parts{raw(mac)};
  return command(spec::kNetCtrlClassMac, spec::kNetCtrlMacAddrSet, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::add_vlan(std::uint16_t id) {
  const std::array parts{raw(id)};
  return command(spec::kNetCtrlClassVlan, spec::kNetCtrlVlanAdd, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::delete_vlan(std::uint16_t id) {
  const std::array parts{raw(id)};
  return command(spec::kNetCtrlClassVlan, spec::kNetCtrlVlanDel, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::acknowledge_announce() {
  return command(spec::kNetCtrlClassAnnounce, spec::kNetCtrlAnnounceAck);
}

NetDriverControlQueue::Answer NetDriverControlQueue::set_offloads(std::uint64_t offloads) {
  const std::array parts{raw(offloads)};
  return command(spec::kNetCtrlClassGuestOffloads, spec::kNetCtrlGuestOffloadsSet, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::configure_rss(const Rss& rss) {
  const struct {
    std::uint32_t hash_types;
    std::uint16_t mask;
    std::uint16_t unclassified;
  } head{.hash_types = rss.hash_types,
         .mask = static_cast<std::uint16_t>(rss.table.size() - 1),
         .unclassified = rss.unclassified};
  static_assert(sizeof head == 8);
  const auto key_bytes = static_cast<std::uint8_t>(rss.key.size());
  const std::array<std::span<const std::byte>, 5> parts{raw(head), std::as_bytes(rss.table), raw(rss.transmit_queues),
                                                        raw(key_bytes), rss.key};
  return command(spec::kNetCtrlClassMq, spec::kNetCtrlMqRssConfig, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::configure_hash(std::uint32_t hash_types,
                                                                    std::span<const std::byte> key) {
  const std::array<std::uint16_t, 4> reserved{};
  const auto key_bytes = static_cast<std::uint8_t>(key.size());
  const std::array<std::span<const std::byte>, 4> parts{raw(hash_types), raw(reserved), raw(key_bytes), key};
  return command(spec::kNetCtrlClassMq, spec::kNetCtrlMqHashConfig, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::set_transmit_coalescing(const Coalescing& coalescing) {
  const std::array parts{raw(coalescing)};
  return command(spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalTxSet, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::set_receive_coalescing(const Coalescing& coalescing) {
  const std::array parts{raw(coalescing)};
  return command(spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalRxSet, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::set_queue_coalescing(std::uint16_t queue,
                                                                          const Coalescing& coalescing) {
  const std::array<std::uint16_t, 2> which{queue, 0};
  const std::array parts{raw(which), raw(coalescing)};
  return command(spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalVqSet, parts);
}

NetDriverControlQueue::Answer NetDriverControlQueue::get_queue_coalescing(std::uint16_t queue, Coalescing& coalescing) {
  const std::array<std::uint16_t, 2> which{queue, 0};
  const std::array parts{raw(which)};
  return command(spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalVqGet, parts,
                 std::as_writable_bytes(std::span(&coalescing, 1)));
}

Result<> NetDriverControlQueue::lay_out_buffers(SharedMemory& memory) {
  RW_TRY_ASSIGN(block_, memory.allocate(kDataBytesMax + kBufferPage, kBufferPage));
  return {};
}

// --- the session ---

NetDriver::NetDriver(const NetDriverOptions& options)
    : DriverSession({.socket_path = options.socket_path,
                     .patience = options.patience,
                     .packed = options.packed,
                     .indirect = options.indirect,
                     .event_index = options.event_index,
                     .in_order = options.in_order,
                     .legacy = options.legacy,
                     .protocol_features = options.protocol_features,
                     .queue_size = options.queue_size,
                     .pages = options.pages,
                     .memory_slots = options.memory_slots}),
      options_(options) {}

Result<std::unique_ptr<NetDriver>> NetDriver::create(const NetDriverOptions& options) {
  RW_TRY(check_net_options(options));
  std::unique_ptr<NetDriver> driver(new NetDriver(options));
  RW_TRY(driver->open(options.start));
  return driver;
}

Result<std::uint64_t> NetDriver::choose_features() {
  if (is_disk(negotiated().offered)) {
    return fail("the back-end is a disk, by the features that it offers, and no network card: use the command for disks");
  }
  std::uint64_t wanted = options_.features & negotiated().offered;
  wanted &= options_.mergeable ? ~std::uint64_t{0} : ~spec::kNetMrgRxbuf;
  const bool has_config = negotiated().has_protocol(vhost_user::kProtocolConfig);
  const bool control = options_.control_queue && has_config;
  wanted &= control ? ~std::uint64_t{0} : ~spec::kNetCtrlVq;
  wanted = net_features_with_requirements(wanted, !control);
  const std::uint32_t pairs_before = std::exchange(pairs_offered_, 1);
  if (has_config) {
    RW_TRY(read_config());
  }
  if ((wanted & (spec::kNetMq | spec::kNetRss)) != 0) {
    pairs_offered_ = has_config ? config_.max_virtqueue_pairs : static_cast<std::uint32_t>(negotiated().queues_offered);
  }
  if (options_.pairs > pairs_offered_) {
    return fail(fmt::format("the back-end has {} queue pairs, {} were asked for{}", pairs_offered_, options_.pairs,
                            (wanted & spec::kNetMq) == 0 ? " (VIRTIO_NET_F_MQ was not negotiated)" : ""));
  }
  if (!pairs_.empty() && pairs_offered_ != pairs_before) {
    return fail(
        fmt::format("the back-end has {} queue pairs, before the reconnect it had {}", pairs_offered_, pairs_before));
  }
  return wanted;
}

Result<> NetDriver::read_config() {
  // A back-end may refuse to give more than it knows, which is what its features need.
  const std::uint64_t offered = negotiated().offered;
  std::size_t bytes = offsetof(spec::NetConfig, status);
  const auto extend = [&](std::uint64_t features, std::size_t end) { bytes = (offered & features) != 0 ? end : bytes; };
  extend(spec::kNetStatus, offsetof(spec::NetConfig, max_virtqueue_pairs));
  extend(spec::kNetMq | spec::kNetRss, offsetof(spec::NetConfig, mtu));
  extend(spec::kNetMtu, offsetof(spec::NetConfig, speed));
  extend(spec::kNetSpeedDuplex, offsetof(spec::NetConfig, rss_max_key_size));
  extend(spec::kNetRss | spec::kNetHashReport, sizeof(spec::NetConfig));
  RW_TRY_ASSIGN(const auto config, get_config(bytes, bytes));
  config_ = {};
  config_bytes_ = static_cast<std::uint32_t>(bytes);
  std::memcpy(&config_, config.data(), bytes);
  return {};
}

bool NetDriver::link_up() const {
  return !negotiated().has(spec::kNetStatus) || config_bytes_ == 0 || (config_.status & spec::kNetStatusLinkUp) != 0;
}

bool NetDriver::announce_wanted() const {
  return negotiated().has(spec::kNetGuestAnnounce | spec::kNetStatus) && (config_.status & spec::kNetStatusAnnounce) != 0;
}

// §5.1.2: behind all pairs that the device has, whether the driver uses them or not.
std::uint32_t NetDriver::control_index() const {
  return (negotiated().features & (spec::kNetMq | spec::kNetRss)) != 0 ? 2 * pairs_offered_ : 2;
}

Result<> NetDriver::lay_out() {
  const bool control = negotiated().has(spec::kNetCtrlVq);
  std::size_t pair_bytes = ring_bytes(2) + std::size_t{options_.receive_buffers} * receive_stride(options_);
  pair_bytes += ring_bytes(options_.pieces_max + 1) + std::size_t{options_.transmit_buffers} * transmit_stride(options_);
  pair_bytes += (std::size_t{options_.queue_size} + 1) * kLine + 4 * kBufferPage;
  const std::size_t control_bytes =
      control ? ring_bytes(kControlTableEntries) + NetDriverControlQueue::kDataBytesMax + 2 * kBufferPage : 0;
  std::vector<std::size_t> regions(std::size_t{1} + options_.scratch_regions, options_.scratch_bytes);
  regions[0] = options_.pairs * pair_bytes + control_bytes + kBufferPage;
  regions[0] += options_.scratch_regions == 0 ? options_.scratch_bytes : 0;
  RW_TRY(share_memory(regions));
  for (std::uint32_t pair = 0; pair < options_.pairs; ++pair) {
    RW_TRY(lay_out_pair(pair));
  }
  if (control) {
    if (control_index() >= limits::kQueuesPerDeviceMax) {
      return fail(
          fmt::format("with {} queue pairs the control queue has a number that vhost-user can't carry", pairs_offered_));
    }
    std::unique_ptr<NetDriverControlQueue> queue(new NetDriverControlQueue());
    control_ = queue.get();
    RW_TRY(add_queue(std::move(queue), control_index(), kControlTableEntries));
    RW_TRY(control_->lay_out_buffers(memory()));
  }
  return {};
}

Result<> NetDriver::lay_out_pair(std::uint32_t pair) {
  std::unique_ptr<NetDriverReceiveQueue> rx(new NetDriverReceiveQueue());
  std::unique_ptr<NetDriverTransmitQueue> tx(new NetDriverTransmitQueue());
  pairs_.push_back({.rx = *rx, .tx = *tx});
  RW_TRY(add_queue(std::move(rx), 2 * pair, options_.receive_header_apart ? 2 : 0, options_.enable_pairs));
  RW_TRY(pairs_.back().rx.lay_out_buffers(options_, header_bytes(), mergeable(), memory()));
  RW_TRY(add_queue(std::move(tx), 2 * pair + 1, options_.pieces_max + 1, options_.enable_pairs));
  return pairs_.back().tx.lay_out_buffers(options_, header_bytes(), memory());
}

Result<> NetDriver::enable_pair(std::uint32_t index, bool enable) {
  RW_TRY(enable_queue(pairs_[index].rx.index(), enable));
  return enable_queue(pairs_[index].tx.index(), enable);
}

}  // namespace ringway
