// The control queue of a network card (virtio 1.3 §5.1.6.5) in the hands of its worker: commands go to the device, which
// lives on the control thread, one at a time, and come back as answers. Its life is RingQueue's.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "device/net_counters.hpp"
#include "device/ring_queue.hpp"
#include "request/net_control.hpp"
#include "request/net_control_state.hpp"

namespace ringway {

class NetControlQueue final : public RingQueue {
 public:
  // Called on the worker's thread; answer() has to be called there for each, sooner or later.
  using Ask = std::move_only_function<void(NetCommand)>;
  NetControlQueue(Surroundings surroundings, Ask ask) : RingQueue(std::move(surroundings)), ask_(std::move(ask)) {}
  ~NetControlQueue() override = default;

  [[nodiscard]] Result<> start(WorkerContext& context, vhost_user::RingStart start, std::shared_ptr<const RegionMap> map,
                               std::shared_ptr<DirtyLog> log);
  // REQUIRES: a command was asked about.
  void answer(const NetControlOutcome& outcome) noexcept;

  // Any thread.
  [[nodiscard]] const NetControlCounters& counters() const { return counters_; }

  // --- Queue ---
  Pumped pump(WorkerContext& context) noexcept override;

 private:
  [[nodiscard]] bool awaits_kick() noexcept override { return asked_ == nullptr; }
  void reply(ChainId chain, const NetControlReply& reply, const RegionMap& map, const NetControlOutcome& outcome) noexcept;

  Ask ask_;
  // The command that the device is asked about; nothing is popped meanwhile.
  PinnedMap* asked_ = nullptr;
  ChainId asked_chain_;
  NetControlReply asked_reply_;
  std::int32_t budget_ = 0;  // left over by the last pump(); negative: overdrawn, and owed to the neighbours
  NetControlCounters counters_;
};

}  // namespace ringway
