// A virtio-blk device: configuration space and features (virtio 1.3 §5.2), its store, and what its workers have of both.
//
// Owner: control thread; its life is that of any RingDevice.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/blk/blk_store.hpp"
#include "device/blk_counters.hpp"
#include "device/ring_device.hpp"
#include "ring/spec.hpp"

namespace ringway {

class BlkQueue;

struct BlkDeviceOptions {
  std::string name = {};    // for logs and the API; unique in the process
  std::string serial = {};  // GET_ID; empty: the store's default
  std::uint32_t queues = 1;
  bool packed = true;       // offer RING_PACKED
  bool in_order = false;    // offer IN_ORDER
  bool inband = false;      // offer INBAND_NOTIFICATIONS
  bool write_cache = true;  // the write-back default that CONFIG_WCE starts with
  Duration stop_deadline = limits::kStopDeadline;
};

// A copy of everything countable, for `serve`'s report, the API and `ctl`.
struct BlkDeviceStats {
  struct Queue : RingStats {
    std::uint32_t index = 0;
    std::uint32_t worker = 0;
    std::array<std::uint64_t, kBlkOpcodes> requests{}, failed{};
    std::array<std::uint64_t, kBlkRefusals> refused{};
    std::uint64_t bytes_in = 0, bytes_out = 0, starved = 0;
  };
  std::vector<Queue> queues;
  struct Latency {
    std::uint64_t count = 0;
    Duration p50, p99, p999, maximum;
  };
  Latency read, write, other;
  // Over all workers and sessions; what each means: BlkChannelCounters.
  struct Store {
    std::uint64_t short_transfers = 0, retries = 0, bounced = 0, held_back = 0, syncs = 0, registered = 0, fallbacks = 0;
    std::array<std::uint64_t, kBlkFailures> failures{};  // what the guest saw as IOERR
  } store;
};

class BlkDevice final : public RingDevice {
 public:
  // `workers` are dealt to queues round robin from `first_worker` on. `control` is the control thread's executor.
  // Errors: a serial longer than 20 bytes, more queues than limits::kBlkQueuesMax or none, no worker.
  [[nodiscard]] static Result<std::unique_ptr<BlkDevice>> create(BlkDeviceOptions options, std::unique_ptr<BlkStore> store,
                                                                 std::span<const WorkerPort> workers,
                                                                 std::uint32_t first_worker, Executor& control);
  BlkDevice(const BlkDevice&) = delete;
  BlkDevice& operator=(const BlkDevice&) = delete;
  ~BlkDevice() override;

  [[nodiscard]] const BlkDeviceOptions& options() const { return options_; }
  [[nodiscard]] const BlkStoreInfo& store_info() const { return info_; }
  [[nodiscard]] std::string serial() const;
  [[nodiscard]] BlkDeviceStats stats() const;
  [[nodiscard]] std::uint64_t acked_features() const { return acked_; }

  // Changes the size of the backing store (`bytes` > 0), or only looks at it again (0). A file system that hangs hangs this
  // too, so it may run on any thread, but on one at a time. The size holds once the result was given to adopt().
  [[nodiscard]] Result<BlkStoreInfo> resize_store(std::uint64_t bytes);
  // The second half: queues and front-end are told if the size changed.
  void adopt(const BlkStoreInfo& info);

  // --- vhost_user::Device ---
  [[nodiscard]] std::string name() const override { return options_.name; }
  [[nodiscard]] std::uint64_t features() const override;
  [[nodiscard]] std::uint64_t queue_num_reply() const override { return options_.queues; }
  [[nodiscard]] bool offers_inband() const override { return options_.inband; }
  [[nodiscard]] bool offers_inflight() const override { return true; }
  [[nodiscard]] Result<> set_features(std::uint64_t acked) override;
  [[nodiscard]] Result<> get_config(std::uint32_t offset, std::span<std::byte> out) override;
  [[nodiscard]] Result<> set_config(std::uint32_t offset, std::span<const std::byte> in, vhost_user::Done<> done) override;

 private:
  BlkDevice(BlkDeviceOptions options, std::unique_ptr<BlkStore> store, std::span<const WorkerPort> workers,
            std::uint32_t first_worker, Executor& control);
  [[nodiscard]] spec::BlkConfig config() const;
  [[nodiscard]] BlkRequestLimits request_limits() const;
  // `done` when every queue parses by them.
  void set_limits(vhost_user::Done<> done);

  // --- RingDevice ---
  [[nodiscard]] Result<> start_queue(std::uint32_t index, vhost_user::RingStart start, std::shared_ptr<const RegionMap> map,
                                     std::shared_ptr<DirtyLog> log, WorkerContext& context) override;
  void prepare_memory(const std::shared_ptr<const RegionMap>& map) override;
  void forget_driver() override;
  void release(vhost_user::Done<> done) override;

  struct PerWorker;  // the store's channel, what is counted and the share of slots, touched by that worker only
  void log_failure(BlkFailure failure, int code);

  [[nodiscard]] Result<> open_channel(PerWorker& home, WorkerContext& context);

  BlkDeviceOptions options_;
  std::unique_ptr<BlkStore> store_;
  BlkStoreInfo info_;  // a copy: the store's own may be changing on another thread
  std::uint64_t acked_ = 0;
  bool writeback_ = true;
  std::array<bool, kBlkFailures> failure_logged_{};
  std::vector<std::unique_ptr<PerWorker>> per_worker_;  // by worker; null where no queue of ours lives
  std::vector<PerWorker*> homes_;                       // by queue
  std::vector<std::unique_ptr<BlkQueue>> queues_;
};

}  // namespace ringway
