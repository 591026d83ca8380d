#include "driver/driver_queue.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace {

constexpr std::size_t kRingAreaAlignment = 4096;

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

}  // namespace

void DriverQueue::kick() noexcept {
  ++counters_.kicks;
  const std::uint64_t one = 1;
  // EAGAIN would say that the counter is at its end: then a kick is pending, which is all we want.
  static_cast<void>(!write(kick_.get(), &one, sizeof one));
}

bool DriverQueue::wait(Instant deadline) noexcept {
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

bool DriverQueue::wait_any(std::span<DriverQueue* const> queues, Instant deadline) noexcept {
  RW_CHECK(queues.size() <= kQueuesWaitedMax);
  bool ready = false;
  for (DriverQueue* queue : queues) {
    ready |= queue->ring_->arm_calls();
  }
  if (!ready) {
    std::array<pollfd, kQueuesWaitedMax> entries;  // NOLINT(cppcoreguidelines-pro-type-member-init): only a part is used
    for (std::size_t i = 0; i < queues.size(); ++i) {
      entries[i] = {.fd = queues[i]->call_.get(), .events = POLLIN, .revents = 0};
      ++queues[i]->counters_.waits;
    }
    const timespec timeout = time_until(deadline);
    ready = ppoll(entries.data(), queues.size(), &timeout, nullptr) > 0;
    for (std::size_t i = 0; i < queues.size(); ++i) {
      if (entries[i].revents != 0) {
        queues[i]->take_calls();
      }
    }
  }
  for (DriverQueue* queue : queues) {
    queue->ring_->suppress_calls();
    ready |= queue->ring_->has_used();
  }
  return ready;
}

std::uint64_t DriverQueue::take_calls() noexcept {
  std::uint64_t calls = 0;
  if (read(call_.get(), &calls, sizeof calls) != sizeof calls) {
    return 0;
  }
  counters_.calls += calls;
  return calls;
}

DriverQueue::Counters DriverQueue::counters() noexcept {
  take_calls();
  return counters_;
}

Result<> DriverQueue::lay_out(std::uint32_t index, std::uint32_t size, RingFeatures features, std::uint32_t indirect_entries,
                              SharedMemory& memory) {
  index_ = index;
  const DriverRing::AreaBytes areas = DriverRing::area_bytes(size, features.packed);
  RW_TRY_ASSIGN(const SharedBlock descriptors, memory.allocate(areas.descriptor, kRingAreaAlignment));
  RW_TRY_ASSIGN(const SharedBlock driver_area, memory.allocate(areas.driver, kRingAreaAlignment));
  RW_TRY_ASSIGN(const SharedBlock device_area, memory.allocate(areas.device, kRingAreaAlignment));
  ring_options_.layout = {
      .size = size, .descriptor_area = descriptors.host, .driver_area = driver_area.host, .device_area = device_area.host};
  ring_options_.features = features;
  if (features.indirect && indirect_entries != 0) {
    ring_options_.indirect_entries = indirect_entries;
    const std::size_t bytes = std::size_t{size} * indirect_entries * kDescriptorBytes;
    RW_TRY_ASSIGN(const SharedBlock tables, memory.allocate(bytes, kRingAreaAlignment));
    ring_options_.indirect_tables = tables.host;
    ring_options_.indirect_address = tables.guest;
  }
  ring_ = std::make_unique<DriverRing>(ring_options_);
  ring_->suppress_calls();

  RW_TRY_ASSIGN(kick_, make_eventfd());
  RW_TRY_ASSIGN(call_, make_eventfd());
  RW_TRY_ASSIGN(error_, make_eventfd());
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  epoll_event interest{.events = EPOLLIN | EPOLLET, .data = {.u64 = 0}};
  if (!epoll_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, call_.get(), &interest) != 0) {
    return fail_errno(errno, "cannot watch a queue's call eventfd with epoll");
  }
  return {};
}

void DriverQueue::reset_ring() {
  ring_ = std::make_unique<DriverRing>(ring_options_);  // clears the ring's memory
  ring_->suppress_calls();
  forget_in_flight();
}

}  // namespace ringway
