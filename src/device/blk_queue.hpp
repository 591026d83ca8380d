// One virtqueue of a disk in the hands of its worker: stages (1) to (5) wired together. Its life is RingQueue's.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "device/blk_counters.hpp"
#include "device/ring_queue.hpp"

namespace ringway {

class BlkQueue final : public RingQueue, public BlkCompletions {
 public:
  // What a queue shares with the others of its disk.
  struct Disk {
    const std::string* serial = nullptr;  // outlives the queue, constant
    BlkLatency* latency = nullptr;        // of this device on this worker
    BlkSlotShare* slots = nullptr;        // of this device on this worker
  };
  BlkQueue(Surroundings surroundings, Disk disk) : RingQueue(std::move(surroundings)), disk_(disk) { watch_in_flight(); }
  ~BlkQueue() override = default;

  [[nodiscard]] Result<> start(WorkerContext& context, BlkChannel& channel, vhost_user::RingStart start,
                               std::shared_ptr<const RegionMap> map, std::shared_ptr<DirtyLog> log);
  // Holds for requests that are popped from then on, in this life of the ring and the next ones.
  void set_limits(const BlkRequestLimits& limits) { limits_ = limits; }

  // Any thread.
  [[nodiscard]] const BlkQueueCounters& counters() const { return counters_; }

  // --- Queue ---
  Pumped pump(WorkerContext& context) noexcept override;

  void turn_ended(Duration length) noexcept override;

  // --- BlkCompletions ---
  void on_complete(BlkOperation& operation) noexcept override;

 private:
  [[nodiscard]] Pumped end_pump(WorkerContext& context, std::uint32_t taken, bool follows, Pumped result) noexcept;
  [[nodiscard]] Pumped queue_up(WorkerContext& context) noexcept;
  void serve(WorkerContext& context, BlkSlot& slot, PopStatus status, bool follows) noexcept;
  // Of a request that is followed.
  [[gnu::cold, gnu::noinline]] void note_parsed(WorkerContext& context, const BlkSlot& slot) noexcept;
  [[gnu::cold, gnu::noinline]] void note_finished(const BlkSlot& slot, std::uint8_t status) noexcept;
  void refuse(BlkSlot& slot, const BlkParsed& parsed) noexcept;
  void answer_id(BlkOperation& operation) noexcept;
  // Gives a chain back to the driver (unless the ring is gone) and the slot to the pool.
  // `data`: what else of guest memory may have been written for it.
  void finish(BlkSlot& slot, std::byte* status_address, std::uint8_t status, std::uint32_t used_length,
              std::span<const iovec> data) noexcept;
  void log_written(const RegionMap& map, std::span<const iovec> data, const std::byte* status_address) noexcept;

  const Disk disk_;
  BlkChannel* channel_ = nullptr;
  std::int32_t budget_ = 0;  // between pumps 0, or negative: overdrawn, and owed to the neighbours
  BlkRequestLimits limits_;
  // Requests that ended in the turn in which they began: their time is the turn's, and is recorded at its end.
  struct InTurn {
    std::uint32_t reads = 0, writes = 0, others = 0;
  };
  InTurn in_turn_;
  BlkQueueCounters counters_;
};

}  // namespace ringway
