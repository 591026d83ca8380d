#include "control/served_disk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "control/report.hpp"

namespace ringway {

Result<> ServedDisk::open(bool workers_have_uring, const std::vector<Holding>& held) {
  // Its lock would say so too, but not which disk it is: to the lock that is "this process itself". By any name of the file.
  const std::optional<ImageId> wanted = is_file_image(options_.path) ? image_id_at(options_.path) : std::nullopt;
  const auto holder = std::ranges::find_if(
      held, [&](const Holding& holding) { return (holding.exclusively || holds_exclusively()) && holding.image == wanted; });
  if (holder != held.end()) {
    return std::unexpected(Error{EBUSY, fmt::format("'{}' belongs to {} already: remove that first, or give both ro",
                                                    options_.path, holder->device)});
  }
  BlkStoreOptions options;
  options.path = options_.path;
  options.read_only = options_.read_only;
  options.direct = options_.direct;
  options.block_bytes = options_.block_bytes;
  options.engine = options_.engine;
  options.loop_has_uring = workers_have_uring;
  options.registered = options_.registered;
  options.faults = options_.faults;
  RW_TRY_ASSIGN(choice_, make_blk_store(options));
  return {};
}

Result<> ServedDisk::create_device(const Surroundings& surroundings) {
  BlkDeviceOptions options;
  options.name = options_.name;
  options.serial = options_.serial;
  options.queues = options_.queues;
  options.packed = options_.packed;
  options.in_order = options_.in_order;
  options.inband = options_.inband;
  options.write_cache = options_.write_cache;
  options.stop_deadline = surroundings.stop_deadline;
  RW_TRY_ASSIGN(device_, BlkDevice::create(std::move(options), std::move(choice_.store), surroundings.workers.ports(),
                                           surroundings.first_worker, surroundings.control));
  return {};
}

std::string ServedDisk::summary() const {
  const BlkStoreInfo& store = device_->store_info();
  return fmt::format("{}, {}{}, {} queue{}, engine {} ({})", options_.path, bytes_text(store.capacity_bytes),
                     store.read_only ? " read-only" : "", options_.queues, options_.queues == 1 ? "" : "s", store.engine,
                     engine_reason());
}

}  // namespace ringway
