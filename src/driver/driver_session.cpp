#include "driver/driver_session.hpp"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

constexpr std::size_t kAreaPage = 4096;
constexpr std::size_t kAreasOfRing = 4;  // three of the ring and the indirect tables, each on pages of its own

}  // namespace

namespace {

// Which any disk has that tells its guest anything.
constexpr std::uint64_t kDiskHas = spec::kBlkSegMax | spec::kBlkBlkSize;
constexpr std::uint64_t kPlainCardHas = spec::kNetMac | spec::kNetStatus;
// No block device has anything at these bits.
constexpr std::uint64_t kCardsHave =
    spec::kNetCtrlRx | spec::kNetCtrlVlan | spec::kNetGuestAnnounce | spec::kNetMq | spec::kNetCtrlMacAddr;

}  // namespace

bool is_network_card(std::uint64_t offered) noexcept {
  return (offered & kCardsHave) != 0 || ((offered & kPlainCardHas) == kPlainCardHas && (offered & kDiskHas) == 0);
}

bool is_disk(std::uint64_t offered) noexcept {
  return !is_network_card(offered) && (offered & kDiskHas) == kDiskHas;
}

Result<> DriverSession::open(bool start) {
  if (session_options_.queue_size < 2 || session_options_.queue_size > limits::kRingSizeMax) {
    return fail(fmt::format("a queue has 2 to {} descriptors, not {}", limits::kRingSizeMax, session_options_.queue_size));
  }
  RW_TRY(open_session());
  RW_TRY(lay_out());
  RW_TRY(send_memory());
  RW_TRY(set_up_inflight());
  if (start) {
    for (const auto& queue : queues_) {
      RW_TRY(start_queue(queue->index(), initial_base(), queue->enabled_));
    }
  }
  return {};
}

Result<> DriverSession::open_session() {
  RW_TRY_ASSIGN(auto front_end, vhost_user::FrontEnd::connect(session_options_.socket_path, session_options_.patience));
  front_end_.emplace(std::move(front_end));
  return negotiate();
}

Result<> DriverSession::negotiate() {
  using namespace vhost_user;
  RW_TRY_ASSIGN(negotiated_.offered, front_end_->get_features());
  if (!session_options_.legacy && (negotiated_.offered & spec::kFeatureVersion1) == 0) {
    return fail("the back-end doesn't offer VIRTIO_F_VERSION_1: it is older than this driver can use");
  }
  if ((negotiated_.offered & spec::kFeatureProtocolFeatures) == 0) {
    return fail("the back-end offers no protocol features, so it can't tell how many queues it has, nor its configuration");
  }
  RW_TRY_ASSIGN(negotiated_.protocol_offered, front_end_->get_protocol_features());
  negotiated_.protocol_features = negotiated_.protocol_offered & session_options_.protocol_features;
  RW_TRY(front_end_->set_protocol_features(negotiated_.protocol_features));
  RW_TRY(front_end_->set_owner());
  negotiated_.queues_offered = 1;
  if (negotiated_.has_protocol(kProtocolMq)) {
    RW_TRY_ASSIGN(negotiated_.queues_offered, front_end_->get_queue_num());
  }
  if (negotiated_.has_protocol(kProtocolBackendReq)) {
    RW_TRY(front_end_->set_backend_req_fd());
  }
  RW_TRY_ASSIGN(std::uint64_t wanted, choose_features());
  wanted |= spec::kFeatureVersion1 | spec::kFeatureProtocolFeatures;
  wanted |= session_options_.packed ? spec::kFeatureRingPacked : 0;
  wanted |= session_options_.indirect ? spec::kFeatureIndirectDesc : 0;
  wanted |= session_options_.event_index ? spec::kFeatureEventIdx : 0;
  wanted |= session_options_.in_order ? spec::kFeatureInOrder : 0;
  wanted &= session_options_.legacy ? UINT32_MAX : ~std::uint64_t{0};
  negotiated_.features = negotiated_.offered & wanted;
  negotiated_.ring = {.packed = negotiated_.has(spec::kFeatureRingPacked),
                      .indirect = negotiated_.has(spec::kFeatureIndirectDesc),
                      .event_index = negotiated_.has(spec::kFeatureEventIdx),
                      .in_order = negotiated_.has(spec::kFeatureInOrder)};
  const std::uint32_t size = session_options_.queue_size;
  if (!negotiated_.ring.packed && (size & (size - 1)) != 0) {
    return fail(fmt::format("a split ring's size is a power of two, not {}", size));
  }
  return front_end_->set_features(negotiated_.features);
}

Result<std::vector<std::byte>> DriverSession::get_config(std::size_t bytes, std::size_t least) {
  RW_TRY_ASSIGN(auto config, front_end_->get_config(0, static_cast<std::uint32_t>(bytes)));
  if (config.size() < least) {
    return fail(fmt::format("the back-end gave only {} bytes of its configuration", config.size()));
  }
  return config;
}

std::size_t DriverSession::ring_bytes(std::uint32_t indirect_entries) const {
  const std::uint32_t size = session_options_.queue_size;
  const DriverRing::AreaBytes areas = DriverRing::area_bytes(size, negotiated_.ring.packed);
  const std::size_t tables = negotiated_.ring.indirect ? std::size_t{size} * indirect_entries * sizeof(spec::Descriptor) : 0;
  return areas.descriptor + areas.driver + areas.device + tables + kAreasOfRing * kAreaPage;
}

Result<> DriverSession::share_memory(std::span<const std::size_t> region_bytes) {
  RW_TRY_ASSIGN(auto memory, SharedMemory::create(region_bytes, session_options_.pages));
  memory_.emplace(std::move(memory));
  return {};
}

Result<> DriverSession::add_queue(std::unique_ptr<DriverQueue> queue, std::uint32_t index, std::uint32_t indirect_entries,
                                  bool enable) {
  RW_CHECK(queues_.empty() || queues_.back()->index() < index);
  RW_TRY(queue->lay_out(index, session_options_.queue_size, negotiated_.ring, indirect_entries, *memory_));
  queue->enabled_ = enable;
  queues_.push_back(std::move(queue));
  return {};
}

DriverQueue& DriverSession::find(std::uint32_t index) const {
  const auto found = std::ranges::find(queues_, index, [](const auto& queue) { return queue->index(); });
  RW_CHECK(found != queues_.end());
  return **found;
}

std::vector<vhost_user::FrontEnd::Region> DriverSession::memory_table() const {
  std::vector<vhost_user::FrontEnd::Region> table;
  for (const SharedMemory::Region& region : memory_->regions()) {
    table.push_back({.guest_address = region.guest.value,
                     .bytes = region.bytes,
                     .user_address = reinterpret_cast<std::uintptr_t>(region.host),
                     .mmap_offset = 0,
                     .fd = region.fd.get()});
  }
  return table;
}

Result<> DriverSession::send_memory() {
  const std::vector<vhost_user::FrontEnd::Region> table = memory_table();
  if (!session_options_.memory_slots) {
    return front_end_->set_mem_table(table);
  }
  if (!negotiated_.has_protocol(vhost_user::kProtocolConfigureMemSlots)) {
    return fail("the back-end doesn't offer VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS");
  }
  for (const vhost_user::FrontEnd::Region& region : table) {
    RW_TRY(front_end_->add_mem_reg(region));
  }
  return {};
}

Result<> DriverSession::set_up_inflight() {
  if (!session_options_.inflight || !negotiated_.has_protocol(vhost_user::kProtocolInflightShmfd)) {
    return {};
  }
  if (!inflight_) {
    RW_TRY_ASSIGN(auto inflight, front_end_->get_inflight_fd(static_cast<std::uint16_t>(queues_.back()->index() + 1),
                                                             static_cast<std::uint16_t>(session_options_.queue_size)));
    inflight_.emplace(std::move(inflight));
  }
  return front_end_->set_inflight_fd(inflight_->description, inflight_->fd.get());
}

Result<std::uint32_t> DriverSession::stop_queue(std::uint32_t index) {
  return front_end_->get_vring_base(index);
}

vhost_user::VringAddress DriverSession::vring_address(std::uint32_t index) const {
  const RingLayout& layout = find(index).ring_options_.layout;
  return {.index = index,
          .flags = 0,
          .descriptor = reinterpret_cast<std::uintptr_t>(layout.descriptor_area),
          .used = reinterpret_cast<std::uintptr_t>(layout.device_area),
          .available = reinterpret_cast<std::uintptr_t>(layout.driver_area),
          .log = 0};
}

Result<> DriverSession::start_queue(std::uint32_t index, std::uint32_t base, bool enable) {
  DriverQueue& queue = find(index);
  RW_TRY(front_end_->set_vring_num(index, queue.ring_options_.layout.size));
  RW_TRY(front_end_->set_vring_base(index, base));
  RW_TRY(front_end_->set_vring_addr(vring_address(index)));
  RW_TRY(front_end_->set_vring_err(index, queue.error_.get()));
  RW_TRY(front_end_->set_vring_call(index, queue.call_.get()));
  RW_TRY(front_end_->set_vring_kick(index, queue.kick_.get()));
  queue.enabled_ = enable;
  return enable ? front_end_->set_vring_enable(index, true) : Result<>{};
}

Result<> DriverSession::enable_queue(std::uint32_t index, bool enable) {
  find(index).enabled_ = enable;
  return front_end_->set_vring_enable(index, enable);
}

void DriverSession::reset_queue(std::uint32_t index) {
  find(index).reset_ring();
}

void DriverSession::disconnect() {
  front_end_.reset();
}

Result<> DriverSession::reconnect(Rings rings) {
  const std::uint64_t features_before = negotiated_.features;
  disconnect();
  RW_TRY(open_session());
  if (negotiated_.features != features_before) {
    return fail(fmt::format("the back-end offers other features than before the reconnect ({:#x}, then {:#x})",
                            features_before, negotiated_.features));
  }
  RW_TRY(send_memory());
  const bool reset = negotiated_.ring.packed || rings == Rings::reset;
  if (reset) {
    inflight_.reset();  // it tells of rings that are no more
  }
  RW_TRY(set_up_inflight());
  for (const auto& queue : queues_) {
    std::uint32_t base = initial_base();
    if (reset) {
      queue->reset_ring();
    } else {
      // struct virtq_used: flags, then idx (§2.7.8). The device that wrote it is gone, and with it any race.
      std::uint16_t used_index = 0;
      std::memcpy(&used_index, queue->ring_options_.layout.device_area + 2, sizeof used_index);
      base = used_index;
    }
    RW_TRY(start_queue(queue->index(), base, queue->enabled_));
    queue->kick();
  }
  return {};
}

Result<> DriverSession::wait_config_change(Duration patience) {
  const Instant deadline = clock_now() + patience;
  while (true) {
    RW_TRY_ASSIGN(const auto message, front_end_->receive_backend_request(deadline - clock_now()));
    if (message.header.request == static_cast<std::uint32_t>(vhost_user::BackendRequest::config_change_msg)) {
      return read_config();
    }
  }
}

Result<pid_t> DriverSession::backend_pid() const {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(front_end_->socket(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return fail_errno(errno, "cannot learn the back-end's process from its socket");
  }
  return peer.pid;
}

bool DriverSession::peer_closed() const {
  if (!front_end_) {
    return true;
  }
  pollfd entry{.fd = front_end_->socket(), .events = POLLRDHUP, .revents = 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace ringway
