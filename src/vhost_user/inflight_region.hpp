// The memory in which a back-end keeps track of the requests that it has taken, so that its successor can take them up again
// after a crash (INFLIGHT_SHMFD): how large it is, making one for GET_INFLIGHT_FD, and checking one of SET_INFLIGHT_FD.
// The layout of one queue's part is the specification's ("Inflight I/O tracking"); what is in it is the device's matter.
//
// Owner: control thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "vhost_user/device.hpp"
#include "vhost_user/messages.hpp"

namespace ringway::vhost_user {

struct InflightLimits {
  std::uint32_t queue_count_max = 0;
  std::uint32_t queue_size_max = 0;
};

struct NewInflight {
  InflightDescription description{};
  UniqueFd fd;
  std::shared_ptr<const InflightMapping> mapping;
};

// A zeroed region, sealed against truncation, whose mapping belongs to `holdings`. Errors: numbers outside of the limits, no
// memory.
[[nodiscard]] Result<NewInflight> create_inflight(std::uint16_t queue_count, std::uint16_t queue_size, bool packed,
                                                  const InflightLimits& limits, std::shared_ptr<ForeignHoldings> holdings);

// Maps what the front-end has kept. Errors: numbers outside of the limits, a region too small for them, a file shorter than
// the region.
[[nodiscard]] Result<std::shared_ptr<const InflightMapping>> adopt_inflight(const ForeignFd& fd,
                                                                            const InflightDescription& description,
                                                                            bool packed, const InflightLimits& limits);

// The device was reset: what the region says of rings that were not started is void as well.
void forget_inflight(const InflightMapping& region) noexcept;

}  // namespace ringway::vhost_user
