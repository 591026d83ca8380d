// How the pieces lie. Region 0 of the shared memory holds, for each queue: the ring's three areas, each on pages of its own
// (so that what the driver writes and what the device writes never share a line), the indirect tables, the request slots
// and the ranges of DISCARD and its like; then, unless there are data regions, the data buffers. A request's slot number is
// what the ring carries as its token; the caller's token stays in private memory, where a back-end can't change it.
#include "driver/blk_driver.hpp"

#include <fmt/core.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kConfigBytesClassic = 60;  // up to write_zeroes_may_unmap: what back-ends without SECURE ERASE know

bool device_writes(std::uint32_t type) {
  return type == spec::kBlkTypeIn || type == spec::kBlkTypeGetId || type == spec::kBlkTypeGetLifetime;
}

timespec time_until(Instant deadline) {
  const std::int64_t left = std::max<std::int64_t>((deadline - clock_now()).ns, 0);
  return {.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
}

Result<UniqueFd> make_eventfd() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) {
    return fail_errno(errno, "cannot create an eventfd for a queue's notifications");
  }
  return fd;
}

std::size_t buffer_alignment(std::size_t bytes) {
  return bytes % kPage == 0 ? kPage : std::size_t{64};
}

Result<> check_options(const BlkDriverOptions& options) {
  if (options.queues == 0 || options.queues > limits::kQueuesPerDeviceMax) {
    return fail(fmt::format("a driver has 1 to {} queues, not {}", limits::kQueuesPerDeviceMax, options.queues));
  }
  if (options.queue_size < 2 || options.queue_size > limits::kRingSizeMax) {
    return fail(fmt::format("a queue has 2 to {} descriptors, not {}", limits::kRingSizeMax, options.queue_size));
  }
  if (options.requests_per_queue == 0 || options.segments_max == 0) {
    return fail("a queue needs at least one request slot, and a request at least one segment");
  }
  return {};
}

}  // namespace

// --- the queue: hot path ---

BlkDriverQueue::~BlkDriverQueue() = default;

bool BlkDriverQueue::submit(const BlkDriverRequest& request) noexcept {
  RW_DCHECK(request.data.size() + 3 <= chain_.size());
  RW_DCHECK(request.ranges.size() <= kBlkDriverRangesMax);
  if (free_count_ == 0) {
    return false;
  }
  const std::uint32_t index = free_slots_[free_count_ - 1];
  Slot& slot = slots_[index];
  const std::uint64_t slot_address = slots_guest_.value + std::uint64_t{index} * sizeof(Slot);
  slot.header = {.type = request.type, .reserved = 0, .sector = request.sector};
  slot.status = kStatusUntouched;

  DriverBuffer* next = chain_.data();
  *next++ = {GuestAddress{slot_address}, sizeof(spec::BlkRequestHeader), false};
  if (RW_UNLIKELY(!request.ranges.empty())) {
    const std::size_t first = std::size_t{index} * kBlkDriverRangesMax;
    std::copy(request.ranges.begin(), request.ranges.end(), ranges_ + first);
    *next++ = {GuestAddress{ranges_guest_.value + first * sizeof(spec::BlkRange)},
               static_cast<std::uint32_t>(request.ranges.size_bytes()), false};
  }
  const bool writable = device_writes(request.type);
  for (const DriverBuffer& segment : request.data) {
    *next++ = {segment.address, segment.bytes, writable};
  }
  *next++ = {GuestAddress{slot_address + offsetof(Slot, status)}, 1, true};
  if (!ring_->add({chain_.data(), next}, index)) {
    return false;
  }
  --free_count_;
  tokens_[index] = request.token;
  slot_use_[index] = SlotUse::request;
  return true;
}

bool BlkDriverQueue::submit_chain(std::span<const DriverBuffer> chain, std::uint64_t token) noexcept {
  if (free_count_ == 0) {
    return false;
  }
  const std::uint32_t index = free_slots_[free_count_ - 1];
  if (!ring_->add(chain, index)) {
    return false;
  }
  --free_count_;
  tokens_[index] = token;
  slot_use_[index] = SlotUse::chain;
  return true;
}

void BlkDriverQueue::publish_and_kick() noexcept {
  if (ring_->publish()) {
    kick();
  }
}

void BlkDriverQueue::kick() noexcept {
  ++counters_.kicks;
  const std::uint64_t one = 1;
  // EAGAIN would say that the counter is at its end: then a kick is pending, which is all we want.
  static_cast<void>(!write(kick_.get(), &one, sizeof one));
}

std::size_t BlkDriverQueue::reap(std::span<BlkCompletion> completions) noexcept {
  std::size_t count = 0;
  UsedElement used;
  while (count < completions.size() && ring_->take_used(used)) {
    if (RW_UNLIKELY(used.token >= slot_count_ || slot_use_[used.token] == SlotUse::free)) {
      ++counters_.bad_used;
      continue;
    }
    const auto index = static_cast<std::uint32_t>(used.token);
    BlkCompletion& completion = completions[count++];
    completion.token = tokens_[index];
    completion.written_bytes = used.written_bytes;
    // Ordered by the ring's acquire of the used index (pairs with the device's release of it, §2.7.13).
    completion.status = slot_use_[index] == SlotUse::request
                            ? std::atomic_ref<std::uint8_t>(slots_[index].status).load(std::memory_order_relaxed)
                            : kStatusUntouched;
    slot_use_[index] = SlotUse::free;
    free_slots_[free_count_++] = index;
  }
  return count;
}

bool BlkDriverQueue::wait(Instant deadline) noexcept {
  if (ring_->arm_calls()) {
    ring_->suppress_calls();
    return true;
  }
  ++counters_.waits;
  const timespec timeout = time_until(deadline);
  epoll_event event{};
  const int ready = epoll_pwait2(epoll_.get(), &event, 1, &timeout, nullptr);
  ring_->suppress_calls();
  return ready > 0 || ring_->has_used();
}

bool BlkDriverQueue::wait_any(std::span<BlkDriverQueue* const> queues, Instant deadline) noexcept {
  constexpr std::size_t kQueuesMax = 256;
  RW_CHECK(queues.size() <= kQueuesMax);
  bool ready = false;
  for (BlkDriverQueue* queue : queues) {
    ready |= queue->ring_->arm_calls();
  }
  if (!ready) {
    pollfd entries[kQueuesMax];
    for (std::size_t i = 0; i < queues.size(); ++i) {
      entries[i] = {.fd = queues[i]->call_.get(), .events = POLLIN, .revents = 0};
      ++queues[i]->counters_.waits;
    }
    const timespec timeout = time_until(deadline);
    ready = ppoll(entries, queues.size(), &timeout, nullptr) > 0;
    for (std::size_t i = 0; i < queues.size(); ++i) {
      if (entries[i].revents != 0) {
        queues[i]->take_calls();
      }
    }
  }
  for (BlkDriverQueue* queue : queues) {
    queue->ring_->suppress_calls();
    ready |= queue->ring_->has_used();
  }
  return ready;
}

std::uint64_t BlkDriverQueue::take_calls() noexcept {
  std::uint64_t calls = 0;
  if (read(call_.get(), &calls, sizeof calls) != sizeof calls) {
    return 0;
  }
  counters_.calls += calls;
  return calls;
}

BlkDriverQueue::Counters BlkDriverQueue::counters() noexcept {
  take_calls();
  return counters_;
}

void BlkDriverQueue::forget_in_flight() noexcept {
  free_count_ = 0;
  for (std::uint32_t index = slot_count_; index-- > 0;) {
    slot_use_[index] = SlotUse::free;
    free_slots_[free_count_++] = index;
  }
}

// --- the session ---

Result<std::unique_ptr<BlkDriver>> BlkDriver::create(const BlkDriverOptions& options) {
  RW_TRY(check_options(options));
  std::unique_ptr<BlkDriver> driver(new BlkDriver(options));
  RW_TRY(driver->open_session());
  RW_TRY(driver->lay_out());
  RW_TRY(driver->send_memory());
  RW_TRY(driver->set_up_inflight());
  if (options.start) {
    for (std::uint32_t index = 0; index < driver->queue_count(); ++index) {
      RW_TRY(driver->start_queue(index, driver->initial_base()));
    }
  }
  return driver;
}

BlkDriver::~BlkDriver() = default;

Result<> BlkDriver::open_session() {
  RW_TRY_ASSIGN(auto front_end, vhost_user::FrontEnd::connect(options_.socket_path, options_.patience));
  front_end_.emplace(std::move(front_end));
  return negotiate();
}

Result<> BlkDriver::negotiate() {
  using namespace vhost_user;
  RW_TRY_ASSIGN(negotiated_.offered, front_end_->get_features());
  if ((negotiated_.offered & spec::kFeatureVersion1) == 0) {
    return fail("the back-end doesn't offer VIRTIO_F_VERSION_1: it is older than this driver can use");
  }
  if ((negotiated_.offered & spec::kFeatureProtocolFeatures) == 0) {
    return fail("the back-end offers no protocol features, so it can't tell its configuration (capacity)");
  }
  RW_TRY_ASSIGN(negotiated_.protocol_offered, front_end_->get_protocol_features());
  negotiated_.protocol_features = negotiated_.protocol_offered & options_.protocol_features;
  if ((negotiated_.protocol_features & kProtocolConfig) == 0) {
    return fail("the back-end doesn't offer VHOST_USER_PROTOCOL_F_CONFIG; is it a block device?");
  }
  RW_TRY(front_end_->set_protocol_features(negotiated_.protocol_features));
  RW_TRY(front_end_->set_owner());
  negotiated_.queues_offered = 1;
  if ((negotiated_.protocol_features & kProtocolMq) != 0) {
    RW_TRY_ASSIGN(negotiated_.queues_offered, front_end_->get_queue_num());
  }
  if (options_.queues > negotiated_.queues_offered) {
    return fail(fmt::format("the back-end has {} queues, {} were asked for", negotiated_.queues_offered, options_.queues));
  }
  if ((negotiated_.protocol_features & kProtocolBackendReq) != 0) {
    RW_TRY(front_end_->set_backend_req_fd());
  }
  std::uint64_t wanted = options_.features | spec::kFeatureVersion1 | spec::kFeatureProtocolFeatures;
  wanted |= options_.packed ? spec::kFeatureRingPacked : 0;
  wanted |= options_.indirect ? spec::kFeatureIndirectDesc : 0;
  wanted |= options_.event_index ? spec::kFeatureEventIdx : 0;
  wanted |= options_.in_order ? spec::kFeatureInOrder : 0;
  negotiated_.features = negotiated_.offered & wanted;
  negotiated_.ring = {.packed = negotiated_.has(spec::kFeatureRingPacked),
                      .indirect = negotiated_.has(spec::kFeatureIndirectDesc),
                      .event_index = negotiated_.has(spec::kFeatureEventIdx),
                      .in_order = negotiated_.has(spec::kFeatureInOrder)};
  if (!negotiated_.ring.packed && (options_.queue_size & (options_.queue_size - 1)) != 0) {
    return fail(fmt::format("a split ring's size is a power of two, not {}", options_.queue_size));
  }
  RW_TRY(read_config());
  return front_end_->set_features(negotiated_.features);
}

Result<> BlkDriver::read_config() {
  // A back-end may refuse to give more than it knows, and only those with SECURE ERASE surely know the last fields.
  const bool whole = (negotiated_.offered & (spec::kBlkSecureErase | spec::kBlkLifetime)) != 0;
  RW_TRY_ASSIGN(auto bytes, front_end_->get_config(0, whole ? sizeof(spec::BlkConfig) : kConfigBytesClassic));
  if (bytes.size() < sizeof config_.capacity) {
    return fail(fmt::format("the back-end gave only {} bytes of its configuration", bytes.size()));
  }
  config_ = {};
  config_bytes_ = static_cast<std::uint32_t>(std::min(bytes.size(), sizeof config_));
  std::memcpy(&config_, bytes.data(), config_bytes_);
  return {};
}

std::uint32_t BlkDriver::block_bytes() const {
  return negotiated_.has(spec::kBlkBlkSize) && config_.blk_size != 0 ? config_.blk_size : spec::kSectorBytes;
}

Result<> BlkDriver::lay_out() {
  const DriverRing::AreaBytes areas = DriverRing::area_bytes(options_.queue_size, negotiated_.ring.packed);
  const std::size_t slots = options_.requests_per_queue;
  const std::size_t tables = negotiated_.ring.indirect
                                 ? std::size_t{options_.queue_size} * (options_.segments_max + 2) * sizeof(spec::Descriptor)
                                 : 0;
  const std::size_t alignment = buffer_alignment(options_.buffer_bytes);
  const std::size_t padded_buffer = (options_.buffer_bytes + alignment - 1) / alignment * alignment;
  const std::size_t data = slots * padded_buffer;
  const std::size_t control = areas.descriptor + areas.driver + areas.device + tables +
                              slots * (sizeof(BlkDriverQueue::Slot) + kBlkDriverRangesMax * sizeof(spec::BlkRange)) +
                              8 * kPage;
  std::vector<std::size_t> sizes{options_.queues * control + options_.scratch_bytes + kPage};
  if (options_.data_regions == 0) {
    sizes[0] += options_.queues * (data + kPage);
  } else {
    const std::size_t buffers = options_.queues * slots;
    const std::size_t per_region = (buffers + options_.data_regions - 1) / options_.data_regions;
    sizes.insert(sizes.end(), options_.data_regions, per_region * padded_buffer);
  }
  RW_TRY_ASSIGN(auto memory, SharedMemory::create(sizes, options_.pages));
  memory_.emplace(std::move(memory));
  for (std::uint32_t index = 0; index < options_.queues; ++index) {
    RW_TRY_ASSIGN(auto queue, lay_out_queue(index));
    queues_.push_back(std::move(queue));
  }
  return {};
}

Result<std::unique_ptr<BlkDriverQueue>> BlkDriver::lay_out_queue(std::uint32_t index) {
  std::unique_ptr<BlkDriverQueue> queue(new BlkDriverQueue());
  queue->index_ = index;
  queue->slot_count_ = options_.requests_per_queue;

  const DriverRing::AreaBytes areas = DriverRing::area_bytes(options_.queue_size, negotiated_.ring.packed);
  RW_TRY_ASSIGN(const SharedBlock descriptors, memory_->allocate(areas.descriptor, kPage));
  RW_TRY_ASSIGN(const SharedBlock driver_area, memory_->allocate(areas.driver, kPage));
  RW_TRY_ASSIGN(const SharedBlock device_area, memory_->allocate(areas.device, kPage));
  DriverRing::Options& ring = queue->ring_options_;
  ring.layout = {.size = options_.queue_size,
                 .descriptor_area = descriptors.host,
                 .driver_area = driver_area.host,
                 .device_area = device_area.host};
  ring.features = negotiated_.ring;
  if (negotiated_.ring.indirect) {
    ring.indirect_entries = options_.segments_max + 2;
    const std::size_t bytes = std::size_t{options_.queue_size} * ring.indirect_entries * sizeof(spec::Descriptor);
    RW_TRY_ASSIGN(const SharedBlock tables, memory_->allocate(bytes, kPage));
    ring.indirect_tables = tables.host;
    ring.indirect_address = tables.guest;
  }
  queue->ring_ = std::make_unique<DriverRing>(ring);
  queue->ring_->suppress_calls();

  RW_TRY_ASSIGN(const SharedBlock slots, memory_->allocate(queue->slot_count_ * sizeof(BlkDriverQueue::Slot), kPage));
  queue->slots_ = new (slots.host) BlkDriverQueue::Slot[queue->slot_count_]{};
  queue->slots_guest_ = slots.guest;
  const std::size_t range_count = std::size_t{queue->slot_count_} * kBlkDriverRangesMax;
  RW_TRY_ASSIGN(const SharedBlock ranges, memory_->allocate(range_count * sizeof(spec::BlkRange), kPage));
  queue->ranges_ = new (ranges.host) spec::BlkRange[range_count];
  queue->ranges_guest_ = ranges.guest;

  queue->free_slots_.resize(queue->slot_count_);
  queue->tokens_.resize(queue->slot_count_);
  queue->slot_use_.resize(queue->slot_count_);
  queue->chain_.resize(std::size_t{options_.segments_max} + 3);
  queue->forget_in_flight();

  for (std::uint32_t slot = 0; slot < queue->slot_count_; ++slot) {
    const std::uint32_t number = index * queue->slot_count_ + slot;
    const std::size_t region = options_.data_regions == 0 ? 0 : 1 + number % options_.data_regions;
    RW_TRY_ASSIGN(const SharedBlock buffer,
                  memory_->allocate(options_.buffer_bytes, buffer_alignment(options_.buffer_bytes), region));
    queue->buffers_.push_back(buffer);
  }

  RW_TRY_ASSIGN(queue->kick_, make_eventfd());
  RW_TRY_ASSIGN(queue->call_, make_eventfd());
  RW_TRY_ASSIGN(queue->error_, make_eventfd());
  queue->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  epoll_event interest{.events = EPOLLIN | EPOLLET, .data = {.u64 = 0}};
  if (!queue->epoll_ || epoll_ctl(queue->epoll_.get(), EPOLL_CTL_ADD, queue->call_.get(), &interest) != 0) {
    return fail_errno(errno, "cannot watch a queue's call eventfd with epoll");
  }
  return queue;
}

std::vector<vhost_user::FrontEnd::Region> BlkDriver::memory_table() const {
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

Result<> BlkDriver::send_memory() {
  const std::vector<vhost_user::FrontEnd::Region> table = memory_table();
  const bool slots = (negotiated_.protocol_features & vhost_user::kProtocolConfigureMemSlots) != 0;
  if (!options_.memory_slots) {
    return front_end_->set_mem_table(table);
  }
  if (!slots) {
    return fail("the back-end doesn't offer VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS");
  }
  for (const vhost_user::FrontEnd::Region& region : table) {
    RW_TRY(front_end_->add_mem_reg(region));
  }
  return {};
}

Result<> BlkDriver::set_up_inflight() {
  if (!options_.inflight || (negotiated_.protocol_features & vhost_user::kProtocolInflightShmfd) == 0) {
    return {};
  }
  if (!inflight_) {
    RW_TRY_ASSIGN(auto inflight, front_end_->get_inflight_fd(static_cast<std::uint16_t>(options_.queues),
                                                             static_cast<std::uint16_t>(options_.queue_size)));
    inflight_.emplace(std::move(inflight));
  }
  return front_end_->set_inflight_fd(inflight_->description, inflight_->fd.get());
}

Result<std::uint32_t> BlkDriver::stop_queue(std::uint32_t index) {
  return front_end_->get_vring_base(index);
}

vhost_user::VringAddress BlkDriver::vring_address(std::uint32_t index) const {
  const RingLayout& layout = queues_[index]->ring_options_.layout;
  return {.index = index,
          .flags = 0,
          .descriptor = reinterpret_cast<std::uintptr_t>(layout.descriptor_area),
          .used = reinterpret_cast<std::uintptr_t>(layout.device_area),
          .available = reinterpret_cast<std::uintptr_t>(layout.driver_area),
          .log = 0};
}

Result<> BlkDriver::start_queue(std::uint32_t index, std::uint32_t base, bool enable) {
  const BlkDriverQueue& queue = *queues_[index];
  RW_TRY(front_end_->set_vring_num(index, queue.ring_options_.layout.size));
  RW_TRY(front_end_->set_vring_base(index, base));
  RW_TRY(front_end_->set_vring_addr(vring_address(index)));
  RW_TRY(front_end_->set_vring_err(index, queue.error_.get()));
  RW_TRY(front_end_->set_vring_call(index, queue.call_.get()));
  RW_TRY(front_end_->set_vring_kick(index, queue.kick_.get()));
  if (!enable) {
    return {};
  }
  return front_end_->set_vring_enable(index, true);
}

void BlkDriver::reset_queue(std::uint32_t index) {
  BlkDriverQueue& queue = *queues_[index];
  const DriverRing::AreaBytes areas = DriverRing::area_bytes(options_.queue_size, negotiated_.ring.packed);
  const RingLayout& layout = queue.ring_options_.layout;
  std::memset(layout.descriptor_area, 0, areas.descriptor);
  std::memset(layout.driver_area, 0, areas.driver);
  std::memset(layout.device_area, 0, areas.device);
  queue.ring_ = std::make_unique<DriverRing>(queue.ring_options_);
  queue.ring_->suppress_calls();
  queue.forget_in_flight();
}

void BlkDriver::disconnect() {
  front_end_.reset();
}

Result<> BlkDriver::reconnect(Rings rings) {
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
  for (std::uint32_t index = 0; index < queue_count(); ++index) {
    std::uint32_t base = initial_base();
    if (reset) {
      reset_queue(index);
    } else {
      // struct virtq_used: flags, then idx (§2.7.8). The device that wrote it is gone, and with it any race.
      std::uint16_t used_index = 0;
      std::memcpy(&used_index, queues_[index]->ring_options_.layout.device_area + 2, sizeof used_index);
      base = used_index;
    }
    RW_TRY(start_queue(index, base));
    queues_[index]->kick();
  }
  return {};
}

Result<> BlkDriver::wait_config_change(Duration patience) {
  const Instant deadline = clock_now() + patience;
  while (true) {
    RW_TRY_ASSIGN(const auto message, front_end_->receive_backend_request(deadline - clock_now()));
    if (message.header.request == static_cast<std::uint32_t>(vhost_user::BackendRequest::config_change_msg)) {
      return read_config();
    }
  }
}

Result<pid_t> BlkDriver::backend_pid() const {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(front_end_->socket(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return fail_errno(errno, "cannot learn the back-end's process from its socket");
  }
  return peer.pid;
}

bool BlkDriver::peer_closed() const {
  if (!front_end_) {
    return true;
  }
  pollfd entry{.fd = front_end_->socket(), .events = POLLRDHUP, .revents = 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace ringway
