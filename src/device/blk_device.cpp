#include "device/blk_device.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "device/blk_queue.hpp"

namespace ringway {

namespace {

// A reply that a worker gives to the control thread: runs `done` there with the result.
template <typename T>
void answer(Executor& control, vhost_user::Done<T> done, Result<T> result) {
  control.post([done = std::move(done), result = std::move(result)]() mutable { done(std::move(result)); });
}

// `done`, as a callback that a worker may call: it takes the result to the control thread.
template <typename T>
vhost_user::Done<T> answer_on(Executor& control, vhost_user::Done<T> done) {
  return
      [&control, done = std::move(done)](Result<T> result) mutable { answer(control, std::move(done), std::move(result)); };
}

// Bits that a transport or an old driver may acknowledge although nobody offered them.
constexpr std::uint64_t kToleratedLegacy = spec::kFeatureNotifyOnEmpty | spec::kFeatureAnyLayout;

}  // namespace

struct BlkDevice::PerWorker {
  std::unique_ptr<BlkChannel> channel;
  BlkLatency latency;
  std::uint32_t in_flight = 0;
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
    : options_(std::move(options)), store_(std::move(store)), control_(control), writeback_(options_.write_cache) {
  per_worker_.resize(workers.size());
  for (std::uint32_t i = 0; i < options_.queues; ++i) {
    const WorkerPort& port = workers[(first_worker + i) % workers.size()];
    workers_.push_back(port);
    auto& mine = per_worker_[(first_worker + i) % workers.size()];
    if (mine == nullptr) {
      mine = std::make_unique<PerWorker>();
    }
    homes_.push_back(mine.get());
    queues_.push_back(std::make_unique<BlkQueue>(BlkQueue::Surroundings{
        .index = i,
        .serial = &options_.serial,
        .latency = &mine->latency,
        .device_in_flight = &mine->in_flight,
        .stop_deadline = options_.stop_deadline,
        .send_inband_call =
            [this](std::uint32_t index) {
              control_.post([this, index] {
                if (port_ != nullptr) {
                  static_cast<void>(port_->send_vring_call(index));
                }
              });
            },
        .send_inband_error =
            [this](std::uint32_t index) {
              control_.post([this, index] {
                if (port_ != nullptr) {
                  static_cast<void>(port_->send_vring_error(index));
                }
              });
            },
    }));
  }
}

BlkDevice::~BlkDevice() {
  RW_CHECK(port_ == nullptr);
  RW_CHECK(std::ranges::all_of(per_worker_, [](const auto& each) { return each == nullptr || each->channel == nullptr; }));
}

std::string BlkDevice::serial() const {
  return options_.serial;
}

// ---------------------------------------------------------------- what it offers

std::uint64_t BlkDevice::features() const {
  const BlkStoreInfo& store = store_->info();
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
  const BlkStoreInfo& store = store_->info();
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
  const spec::BlkConfig whole = config();
  if (offset > sizeof whole || out.size() > sizeof whole - offset) {
    return fail("configuration space of a disk has " + std::to_string(sizeof whole) + " bytes; " +
                std::to_string(out.size()) + " at offset " + std::to_string(offset) + " are outside");
  }
  std::memcpy(out.data(), reinterpret_cast<const std::byte*>(&whole) + offset, out.size());
  return {};
}

// Only `writeback` may be written (§5.2.5.2). Some front-ends write the whole structure back; the other bytes are ignored.
Result<> BlkDevice::set_config(std::uint32_t offset, std::span<const std::byte> in) {
  constexpr std::uint32_t kWriteback = offsetof(spec::BlkConfig, writeback);
  if (offset > sizeof(spec::BlkConfig) || in.size() > sizeof(spec::BlkConfig) - offset) {
    return fail("configuration space of a disk has " + std::to_string(sizeof(spec::BlkConfig)) + " bytes; " +
                std::to_string(in.size()) + " at offset " + std::to_string(offset) + " are outside");
  }
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
  post_limits();
  return {};
}

BlkRequestLimits BlkDevice::request_limits() const {
  const BlkStoreInfo& store = store_->info();
  // A driver that can neither flush nor switch the cache relies on every write being stable (hard-points 12).
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

void BlkDevice::post_limits() {
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    workers_[i].executor->post([queue = queues_[i].get(), limits = request_limits()] { queue->set_limits(limits); });
  }
}

Result<> BlkDevice::resize(std::uint64_t bytes) {
  const std::uint64_t before = store_->info().capacity_bytes;
  if (bytes != 0) {
    RW_TRY(store_->resize(bytes));
  } else {
    RW_TRY(store_->refresh());
  }
  if (store_->info().capacity_bytes != before) {
    post_limits();  // the new range is readable before the guest hears of it
    if (port_ != nullptr) {
      static_cast<void>(port_->notify_config_change());
    }
  }
  return {};
}

// ---------------------------------------------------------------- session messages

Result<> BlkDevice::set_features(std::uint64_t acked) {
  const std::uint64_t illegal = acked & ~(features() | kToleratedLegacy | spec::kFeatureProtocolFeatures);
  if (illegal != 0) {
    return fail("feature bits were acknowledged that this disk doesn't offer");
  }
  acked_ = acked;
  post_limits();
  return {};
}

void BlkDevice::on_each_queue(std::move_only_function<void(BlkQueue&, vhost_user::Done<>)> body, vhost_user::Done<> done) {
  // Shared by the messages; `left` is counted down on the control thread only.
  struct Round {
    std::move_only_function<void(BlkQueue&, vhost_user::Done<>)> body;
    vhost_user::Done<> done;
    std::size_t left = 0;
    Result<> result;
  };
  auto round = std::make_shared<Round>();
  round->body = std::move(body);
  round->done = std::move(done);
  round->left = queues_.size();
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    workers_[i].executor->post([this, round, queue = queues_[i].get()] {
      round->body(*queue, answer_on<void>(control_, [round](Result<> result) {
        if (!result) {
          round->result = std::move(result);
        }
        if (--round->left == 0) {
          round->done(std::move(round->result));
        }
      }));
    });
  }
}

void BlkDevice::set_memory(std::shared_ptr<const RegionMap> map, vhost_user::Done<> done) {
  map_ = map;
  on_each_queue([map = std::move(map)](BlkQueue& queue, vhost_user::Done<> each) { queue.set_memory(map, std::move(each)); },
                std::move(done));
}

void BlkDevice::set_log(std::shared_ptr<DirtyLog> log, vhost_user::Done<> done) {
  log_ = std::move(log);
  on_each_queue(
      [log = log_](BlkQueue& queue, vhost_user::Done<> each) {
        queue.set_log(log);
        each({});
      },
      std::move(done));
}

void BlkDevice::start_ring(vhost_user::RingStart start, vhost_user::Done<> done) {
  const std::uint32_t index = start.index;
  RW_CHECK(index < queues_.size());
  if (map_ == nullptr) {
    done(fail("ring " + std::to_string(index) + " can't start: there is no memory table"));
    return;
  }
  workers_[index].executor->post([this, index, start = std::move(start), map = map_, log = log_, limits = request_limits(),
                                  done = std::move(done)]() mutable {
    PerWorker& home = *homes_[index];
    WorkerContext& context = *workers_[index].context;
    if (home.channel == nullptr) {
      auto channel = store_->open_channel(context.loop);
      if (!channel) {
        answer<void>(control_, std::move(done), std::unexpected(std::move(channel).error()));
        return;
      }
      home.channel = std::move(*channel);
    }
    answer<void>(control_, std::move(done),
                 queues_[index]->start(context, *home.channel, std::move(start), std::move(map), std::move(log), limits));
  });
}

void BlkDevice::stop_ring(std::uint32_t index, vhost_user::Done<std::uint32_t> done) {
  on_queue(index, [done = answer_on<std::uint32_t>(control_, std::move(done))](BlkQueue& queue) mutable {
    queue.stop(std::move(done));
  });
}

void BlkDevice::on_queue(std::uint32_t index, std::move_only_function<void(BlkQueue&)> body) {
  RW_CHECK(index < queues_.size());
  workers_[index].executor->post([queue = queues_[index].get(), body = std::move(body)]() mutable { body(*queue); });
}

void BlkDevice::enable_ring(std::uint32_t index, bool enabled, vhost_user::Done<> done) {
  on_queue(index, [enabled, done = answer_on<void>(control_, std::move(done))](BlkQueue& queue) mutable {
    queue.enable(enabled);
    done({});
  });
}

void BlkDevice::set_call(std::uint32_t index, UniqueFd call, vhost_user::Done<> done) {
  on_queue(index, [call = std::move(call), done = answer_on<void>(control_, std::move(done))](BlkQueue& queue) mutable {
    queue.set_call(std::move(call));
    done({});
  });
}

void BlkDevice::set_kick(std::uint32_t index, UniqueFd kick, vhost_user::Done<> done) {
  on_queue(index, [kick = std::move(kick), done = answer_on<void>(control_, std::move(done))](BlkQueue& queue) mutable {
    done(queue.set_kick(std::move(kick)));
  });
}

void BlkDevice::set_error(std::uint32_t index, UniqueFd error, vhost_user::Done<> done) {
  on_queue(index, [error = std::move(error), done = answer_on<void>(control_, std::move(done))](BlkQueue& queue) mutable {
    queue.set_error(std::move(error));
    done({});
  });
}

void BlkDevice::set_addresses(std::uint32_t index, RingAddresses addresses, bool log, GuestAddress log_address,
                              vhost_user::Done<> done) {
  on_queue(index, [addresses, log, log_address, done = answer_on<void>(control_, std::move(done))](BlkQueue& queue) mutable {
    done(queue.set_addresses(addresses, log, log_address));
  });
}

void BlkDevice::kick(std::uint32_t index) {
  on_queue(index, [](BlkQueue& queue) { queue.kick(); });
}

void BlkDevice::reset(vhost_user::Done<> done) {
  // The rings stop as for a detach, but the front-end's memory, descriptors and feature bits stay with the session.
  on_each_queue(
      [](BlkQueue& queue, vhost_user::Done<> each) {
        queue.clear_inflight();
        queue.detach(std::move(each));
      },
      [this, done = std::move(done)](Result<> result) mutable {
        writeback_ = options_.write_cache;
        done(std::move(result));
      });
}

void BlkDevice::detach(vhost_user::Done<> done) {
  port_ = nullptr;
  on_each_queue([](BlkQueue& queue, vhost_user::Done<> each) { queue.detach(std::move(each)); },
                [this, done = std::move(done)](Result<>) mutable {
                  map_ = nullptr;
                  log_ = nullptr;
                  acked_ = 0;
                  writeback_ = options_.write_cache;
                  close_channels(std::move(done));
                });
}

// Each on the thread that opened it. Every queue is idle.
void BlkDevice::close_channels(vhost_user::Done<> done) {
  auto left = std::make_shared<std::size_t>(queues_.size());
  auto finished = std::make_shared<vhost_user::Done<>>(std::move(done));
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    workers_[i].executor->post([this, i, left, finished] {
      homes_[i]->channel.reset();  // once for all queues of a worker; the others find it gone
      control_.post([left, finished] {
        if (--*left == 0) {
          (*finished)({});
        }
      });
    });
  }
}

// ---------------------------------------------------------------- figures

BlkDeviceStats BlkDevice::stats() const {
  BlkDeviceStats stats;
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    const BlkQueue& queue = *queues_[i];
    const BlkQueueCounters& from = queue.counters();
    BlkDeviceStats::Queue to;
    to.index = i;
    to.worker = workers_[i].index;
    to.running = queue.running();
    to.enabled = queue.enabled();
    to.broken = queue.broken();
    for (std::size_t k = 0; k < kBlkOpcodes; ++k) {
      to.requests[k] = from.requests[k].get();
      to.failed[k] = from.failed[k].get();
    }
    for (std::size_t k = 0; k < kBlkRefusals; ++k) {
      to.refused[k] = from.refused[k].get();
    }
    to.bytes_in = from.bytes_in.get();
    to.bytes_out = from.bytes_out.get();
    to.kicks = from.kicks.get();
    to.calls = from.calls.get();
    to.calls_suppressed = from.calls_suppressed.get();
    to.calls_dropped = from.calls_dropped.get();
    to.ring_faults = from.ring_faults.get();
    to.lost_kicks = from.lost_kicks.get();
    to.batches = from.batches.get();
    to.starved = from.starved.get();
    to.memory_lost = from.memory_lost.get();
    stats.queues.push_back(to);
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
