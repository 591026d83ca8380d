#include "vhost_user/inflight_region.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "completion/inflight_queue.hpp"

namespace ringway::vhost_user {

namespace {

Result<> check_numbers(std::uint32_t queue_count, std::uint32_t queue_size, const InflightLimits& limits) {
  if (queue_count == 0 || queue_count > limits.queue_count_max) {
    return fail(
        fmt::format("an in-flight region of {} queues, but this device has 1 to {}", queue_count, limits.queue_count_max));
  }
  if (queue_size == 0 || queue_size > limits.queue_size_max) {
    return fail(fmt::format("an in-flight region for queues of {} entries, but 1 to {} are possible", queue_size,
                            limits.queue_size_max));
  }
  return {};
}

Result<std::shared_ptr<const InflightMapping>> map_region(int fd, std::shared_ptr<ForeignHoldings> holdings,
                                                          std::uint64_t bytes, std::uint64_t offset,
                                                          std::uint16_t queue_count, std::uint16_t queue_size, bool packed) {
  RW_TRY_ASSIGN(std::shared_ptr<Mapping> memory,
                Mapping::create_for(Mapping::Purpose::inflight_region, fd, bytes, offset, std::move(holdings)));
  auto mapping = std::make_shared<InflightMapping>();
  mapping->memory = std::move(memory);
  mapping->queue_count = queue_count;
  mapping->queue_size = queue_size;
  mapping->packed = packed;
  return mapping;
}

}  // namespace

Result<NewInflight> create_inflight(std::uint16_t queue_count, std::uint16_t queue_size, bool packed,
                                    const InflightLimits& limits, std::shared_ptr<ForeignHoldings> holdings) {
  RW_TRY(check_numbers(queue_count, queue_size, limits));
  const std::uint64_t bytes = queue_count * InflightQueue::bytes_per_queue(queue_size, packed);
  NewInflight region;
  region.fd.reset(::memfd_create("ringway-inflight", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!region.fd) {
    return fail_errno(errno, "no memory file for the in-flight region");
  }
  if (::ftruncate(region.fd.get(), static_cast<off_t>(bytes)) != 0) {
    return fail_errno(errno, fmt::format("no memory file of {} bytes for the in-flight region", bytes));
  }
  // The front-end gets this file too, and must not be able to shorten it under our workers.
  if (::fcntl(region.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail_errno(errno, "the in-flight region can't be sealed");
  }
  RW_TRY_ASSIGN(region.mapping, map_region(region.fd.get(), std::move(holdings), bytes, 0, queue_count, queue_size, packed));
  region.description.mmap_bytes = bytes;
  region.description.queue_count = queue_count;
  region.description.queue_size = queue_size;
  return region;
}

Result<std::shared_ptr<const InflightMapping>> adopt_inflight(const ForeignFd& fd, const InflightDescription& description,
                                                              bool packed, const InflightLimits& limits) {
  RW_TRY(check_numbers(description.queue_count, description.queue_size, limits));
  const std::uint64_t needed = description.queue_count * InflightQueue::bytes_per_queue(description.queue_size, packed);
  if (description.mmap_bytes < needed) {
    return fail(fmt::format("an in-flight region of {} bytes, but {} queues of {} entries need {}", description.mmap_bytes,
                            description.queue_count, description.queue_size, needed));
  }
  // No more is mapped than is used: what the front-end claims beyond that need not exist.
  return map_region(fd.get(), fd.holdings(), needed, description.mmap_offset, description.queue_count,
                    description.queue_size, packed);
}

void forget_inflight(const InflightMapping& region) noexcept {
  for (std::uint16_t i = 0; i < region.queue_count; ++i) {
    InflightQueue::forget(*region.memory, i, region.queue_size, region.packed);
  }
}

}  // namespace ringway::vhost_user
