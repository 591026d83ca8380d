#include "device/blk_device.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.hpp"
#include "device/blk_queue.hpp"

namespace ringway {

struct BlkDevice::PerWorker final : BlkFailureListener {
  explicit PerWorker(BlkDevice& of) : device(of) { counters.listener = this; }
  PerWorker(const PerWorker&) = delete;
  PerWorker& operator=(const PerWorker&) = delete;
  ~PerWorker() override = default;

  // Once for each kind, so not on the path of requests. A worker doesn't log itself: the log may block.
  void on_first_failure(BlkFailure failure, int code) noexcept override {
    device.control().post([to = &device, failure, code] { to->log_failure(failure, code); });
  }

  BlkDevice& device;
  BlkChannelCounters counters;  // of all channels that there were
  std::unique_ptr<BlkChannel> channel;
  BlkLatency latency;
  BlkSlotShare slots;  // admitted while the channel is open
};

Result<std::unique_ptr<BlkDevice>> BlkDevice::create(BlkDeviceOptions options, std::unique_ptr<BlkStore> store,
                                                     std::span<const WorkerPort> workers, std::uint32_t first_worker,
                                                     Executor& control) {
  if (options.queues == 0 || options.queues > limits::kBlkQueuesMax) {
    return fail("disk '" + options.name + "': queues=" + std::to_string(options.queues) + " must be between 1 and " +
                std::to_string(limits::kBlkQueuesMax));
  }
  if (options.serial.size() > limits::kBlkIdBytes) {
    return fail("disk '" + options.name + "': serial '" + options.serial + "' is longer than the " +
                std::to_string(limits::kBlkIdBytes) + " characters that a guest can see");
  }
  if (workers.empty()) {
    return fail("disk '" + options.name + "': there is no worker to serve it");
  }
  if (options.serial.empty()) {
    options.serial = store->default_serial();
    if (options.serial.empty()) {
      options.serial = options.name.substr(0, limits::kBlkIdBytes);
    }
  }
  return std::unique_ptr<BlkDevice>(new BlkDevice(std::move(options), std::move(store), workers, first_worker, control));
}

BlkDevice::BlkDevice(BlkDeviceOptions options, std::unique_ptr<BlkStore> store, std::span<const WorkerPort> workers,
                     std::uint32_t first_worker, Executor& control)
    : RingDevice(control),
      options_(std::move(options)),
      store_(std::move(store)),
      info_(store_->info()),
      writeback_(options_.write_cache) {
  per_worker_.resize(workers.size());
  for (std::uint32_t i = 0; i < options_.queues; ++i) {
    const WorkerPort& port = workers[(first_worker + i) % workers.size()];
    auto& mine = per_worker_[(first_worker + i) % workers.size()];
    if (mine == nullptr) {
      mine = std::make_unique<PerWorker>(*this);
    }
    homes_.push_back(mine.get());
    queues_.push_back(std::make_unique<BlkQueue>(
        surroundings(i, options_.stop_deadline),
        BlkQueue::Disk{.serial = &options_.serial, .latency = &mine->latency, .slots = &mine->slots}));
    queues_.back()->set_limits(request_limits());
    add_queue(*queues_.back(), port);
  }
}

BlkDevice::~BlkDevice() {
  RW_CHECK(std::ranges::all_of(per_worker_, [](const auto& each) { return each == nullptr || each->channel == nullptr; }));
}

std::string BlkDevice::serial() const {
  return options_.serial;
}

// ---------------------------------------------------------------- what it offers

std::uint64_t BlkDevice::features() const {
  const BlkStoreInfo& store = info_;
  std::uint64_t bits = spec::kFeatureVersion1 | spec::kFeatureIndirectDesc | spec::kFeatureEventIdx |
                       spec::kFeatureRingReset | spec::kFeatureLogAll | spec::kBlkSegMax | spec::kBlkBlkSize |
                       spec::kBlkTopology | spec::kBlkFlush | spec::kBlkConfigWce | spec::kBlkMq;
  bits |= options_.packed ? spec::kFeatureRingPacked : 0;
  bits |= options_.in_order ? spec::kFeatureInOrder : 0;
  if (store.read_only) {
    bits |= spec::kBlkRo;
  } else {
    bits |= store.discard_granularity_bytes != 0 ? spec::kBlkDiscard : 0;
    bits |= store.write_zeroes ? spec::kBlkWriteZeroes : 0;
    bits |= store.secure_erase ? spec::kBlkSecureErase : 0;
  }
  return bits;
}

spec::BlkConfig BlkDevice::config() const {
  const BlkStoreInfo& store = info_;
  const auto sectors = [](std::uint64_t bytes) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes / spec::kSectorBytes, UINT32_MAX));
  };
  const std::uint32_t range_max =
      std::min(sectors(store.discard_bytes_max), static_cast<std::uint32_t>(limits::kBlkRangeSectorsMax));
  const std::uint32_t alignment = std::max(sectors(store.discard_granularity_bytes), sectors(store.block_bytes));
  spec::BlkConfig config{};
  config.capacity = store.capacity_bytes / spec::kSectorBytes;
  config.seg_max = limits::kBlkSegmentsMax;
  config.blk_size = store.block_bytes;
  for (std::uint32_t block = store.block_bytes; block < store.physical_block_bytes; block *= 2) {
    ++config.topology.physical_block_exp;
  }
  config.topology.min_io_size =
      static_cast<std::uint16_t>(std::min<std::uint32_t>(store.minimum_io_bytes / store.block_bytes, UINT16_MAX));
  config.topology.opt_io_size = store.optimal_io_bytes / store.block_bytes;
  config.writeback = writeback_ ? 1 : 0;
  config.num_queues = static_cast<std::uint16_t>(options_.queues);
  config.max_discard_sectors = range_max;
  config.max_discard_seg = limits::kBlkRangesMax;
  config.discard_sector_alignment = alignment;
  config.max_write_zeroes_sectors = range_max;
  config.max_write_zeroes_seg = limits::kBlkRangesMax;
  config.write_zeroes_may_unmap = store.discard_granularity_bytes != 0 ? 1 : 0;
  config.max_secure_erase_sectors = range_max;
  config.max_secure_erase_seg = limits::kBlkRangesMax;
  config.secure_erase_sector_alignment = alignment;
  return config;
}

Result<> BlkDevice::get_config(std::uint32_t offset, std::span<std::byte> out) {
  return copy_config(config(), offset, out);
}

// Only `writeback` may be written (§5.2.5.2). Some front-ends write the whole structure back; the other bytes are ignored.
Result<> BlkDevice::set_config(std::uint32_t offset, std::span<const std::byte> in, vhost_user::Done<> done) {
  constexpr std::uint32_t kWriteback = offsetof(spec::BlkConfig, writeback);
  RW_TRY(check_config_part(sizeof(spec::BlkConfig), offset, in.size()));
  if (offset > kWriteback || offset + in.size() <= kWriteback) {
    return fail("only the field writeback (offset " + std::to_string(kWriteback) +
                ") of a disk's configuration can be written");
  }
  if ((acked_ & spec::kBlkConfigWce) == 0) {
    return fail("the field writeback can be written only after CONFIG_WCE was negotiated");
  }
  const auto value = static_cast<std::uint8_t>(in[kWriteback - offset]);
  if (value > 1) {
    return fail("writeback = " + std::to_string(value) + " must be 0 or 1");
  }
  writeback_ = value == 1;
  // A write that the driver submits after our answer must find write-through in force.
  set_limits(std::move(done));
  return {};
}

BlkRequestLimits BlkDevice::request_limits() const {
  const BlkStoreInfo& store = info_;
  // A driver that can neither flush nor switch the cache relies on every write being stable.
  const bool can_flush = (acked_ & (spec::kBlkFlush | spec::kBlkConfigWce)) != 0;
  return {
      .capacity_bytes = store.capacity_bytes,
      .block_bytes = store.block_bytes,
      .discard_bytes_max =
          std::min<std::uint64_t>(store.discard_bytes_max, limits::kBlkRangeSectorsMax * spec::kSectorBytes),
      .read_only = store.read_only,
      .write_through = !writeback_ || !can_flush,
      .discard = (acked_ & spec::kBlkDiscard) != 0,
      .write_zeroes = (acked_ & spec::kBlkWriteZeroes) != 0,
      .secure_erase = (acked_ & spec::kBlkSecureErase) != 0,
  };
}

void BlkDevice::set_limits(vhost_user::Done<> done) {
  on_each_queue(
      [limits = request_limits()](RingQueue& queue, vhost_user::Done<> each) {
        static_cast<BlkQueue&>(queue).set_limits(limits);
        each({});
      },
      std::move(done));
}

Result<BlkStoreInfo> BlkDevice::resize_store(std::uint64_t bytes) {
  if (bytes != 0) {
    RW_TRY(store_->resize(bytes));
  } else {
    RW_TRY(store_->refresh());
  }
  return store_->info();
}

void BlkDevice::adopt(const BlkStoreInfo& info) {
  const std::uint64_t before = info_.capacity_bytes;
  info_ = info;
  if (info_.capacity_bytes != before) {
    // The guest may use the new range once it hears of it, so every worker must have heard before.
    set_limits([this](const Result<>&) { notify_config_change(); });
  }
}

// ---------------------------------------------------------------- session messages

Result<> BlkDevice::set_features(std::uint64_t acked) {
  require_offered(acked);
  acked_ = acked;
  set_limits([](Result<>) {});
  return {};
}

// Before the queues acknowledge it: what they promise holds for the memory that the store has prepared, too.
void BlkDevice::prepare_memory(const std::shared_ptr<const RegionMap>& map) {
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    worker_of(i).executor->post([home = homes_[i], map] {
      if (home->channel != nullptr) {
        home->channel->use_memory(map);
      }
    });
  }
}

Result<> BlkDevice::start_queue(std::uint32_t index, vhost_user::RingStart start, std::shared_ptr<const RegionMap> map,
                                std::shared_ptr<DirtyLog> log, WorkerContext& context) {
  PerWorker& home = *homes_[index];
  RW_TRY(open_channel(home, context));
  home.channel->use_memory(map);
  return queues_[index]->start(context, *home.channel, std::move(start), std::move(map), std::move(log));
}

// On the worker. Once for all queues that live there.
Result<> BlkDevice::open_channel(PerWorker& home, WorkerContext& context) {
  if (home.channel != nullptr) {
    return {};
  }
  RW_TRY_ASSIGN(home.channel, store_->open_channel(context.loop, home.counters));
  if (!context.slots.admit()) {
    home.channel.reset();
    return fail("worker " + std::to_string(context.index) + " serves " + std::to_string(limits::kDevicesMax) +
                " disks already, the most that it has room for");
  }
  return {};
}

void BlkDevice::forget_driver() {
  acked_ = 0;
  writeback_ = options_.write_cache;
  set_limits([](const Result<>&) {});
}

// Each on the thread that opened it. Every queue is idle.
void BlkDevice::release(vhost_user::Done<> done) {
  auto left = std::make_shared<std::size_t>(queues_.size());
  auto finished = std::make_shared<vhost_user::Done<>>(std::move(done));
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    worker_of(i).executor->post([this, i, left, finished] {
      PerWorker& home = *homes_[i];
      if (home.channel != nullptr) {  // once for all queues of a worker; the others find it gone
        home.channel.reset();
        worker_of(i).context->slots.dismiss(home.slots);
      }
      control().post([left, finished] {
        if (--*left == 0) {
          (*finished)({});
        }
      });
    });
  }
}

// ---------------------------------------------------------------- figures

void BlkDevice::log_failure(BlkFailure failure, int code) {
  // Each worker tells its own first one.
  if (std::exchange(failure_logged_[static_cast<std::size_t>(failure)], true)) {
    return;
  }
  const auto reason = [&]() -> std::string {
    switch (failure) {
      case BlkFailure::end_of_file:
        return "the image ends before the disk does; was it truncated?";
      case BlkFailure::guest_memory:
        return "the guest's memory is gone: " + std::generic_category().message(code);
      case BlkFailure::no_space:
      case BlkFailure::io:
        return std::generic_category().message(code);
    }
    return {};
  };
  spdlog::warn(
      "disk '{}': a request failed in the image, the guest sees an I/O error: {} (the first one of kind {}; further "
      "ones are counted, see its statistics)",
      options_.name, reason(), to_string(failure));
}

BlkDeviceStats BlkDevice::stats() const {
  BlkDeviceStats stats;
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    const BlkQueue& queue = *queues_[i];
    const BlkQueueCounters& from = queue.counters();
    BlkDeviceStats::Queue& to = stats.queues.emplace_back(BlkDeviceStats::Queue{queue.ring_stats()});
    to.index = i;
    to.worker = worker_of(i).index;
    for (std::size_t k = 0; k < kBlkOpcodes; ++k) {
      to.requests[k] = from.requests[k].get();
      to.failed[k] = from.failed[k].get();
    }
    for (std::size_t k = 0; k < kBlkRefusals; ++k) {
      to.refused[k] = from.refused[k].get();
    }
    to.bytes_in = from.bytes_in.get();
    to.bytes_out = from.bytes_out.get();
    to.starved = from.starved.get();
  }
  for (const auto& each : per_worker_) {
    if (each != nullptr) {
      const BlkChannelCounters& from = each->counters;
      BlkDeviceStats::Store& to = stats.store;
      to.short_transfers += from.short_transfers.get();
      to.retries += from.retries.get();
      to.bounced += from.bounced.get();
      to.held_back += from.held_back.get();
      to.syncs += from.syncs.get();
      to.registered += from.registered.get();
      to.fallbacks += from.fallbacks.get();
      for (std::size_t k = 0; k < kBlkFailures; ++k) {
        to.failures[k] += from.failures[k].get();
      }
    }
  }
  const auto summary = [this](LatencyHistogram BlkLatency::* which) {
    LatencyHistogram all;
    for (const auto& each : per_worker_) {
      if (each != nullptr) {
        all.merge(each->latency.*which);
      }
    }
    return BlkDeviceStats::Latency{.count = all.count(),
                                   .p50 = all.percentile(0.5),
                                   .p99 = all.percentile(0.99),
                                   .p999 = all.percentile(0.999),
                                   .maximum = all.maximum()};
  };
  stats.read = summary(&BlkLatency::read);
  stats.write = summary(&BlkLatency::write);
  stats.other = summary(&BlkLatency::other);
  return stats;
}

}  // namespace ringway
