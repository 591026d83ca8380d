// The outside of a switch: a port of the host (a tap, as a rule) and one of a switch, joined pair by pair on the workers,
// with no guest in between (SwitchUplink).
//
// Owner: control thread. Create after the workers run; destroy before they end, and after detach() has answered.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/net/net_port.hpp"
#include "base/result.hpp"
#include "device/net_counters.hpp"
#include "device/worker_context.hpp"
#include "loop/executor.hpp"
#include "vhost_user/device.hpp"

namespace ringway {

struct NetUplinkOptions {
  std::string name = {};  // for messages
  std::uint32_t pairs = 1;
};

// A copy of everything countable.
struct NetUplinkStats {
  struct Pair {
    std::uint32_t worker = 0;
    std::uint64_t frames_in = 0, frames_out = 0;  // from outside, and to it
    std::uint64_t cut = 0, bad_headers = 0, dropped_full = 0, dropped_uncuttable = 0;
    NetChannelStats outside, inside;
  };
  std::vector<Pair> pairs;
};

class NetUplink {
 public:
  // Pairs are dealt to `workers` round robin from `first_worker` on; `opened`, on the control thread, has the outcome when
  // all are open. After an error the uplink still has to be detached.
  // Errors of create(): no pair, or more than either port has; no worker.
  [[nodiscard]] static Result<std::unique_ptr<NetUplink>> create(NetUplinkOptions options, std::unique_ptr<NetPort> outside,
                                                                 std::unique_ptr<NetPort> inside,
                                                                 std::span<const WorkerPort> workers,
                                                                 std::uint32_t first_worker, Executor& control,
                                                                 vhost_user::Done<> opened);
  NetUplink(const NetUplink&) = delete;
  NetUplink& operator=(const NetUplink&) = delete;
  ~NetUplink();

  // `done`, on the control thread, when nothing of it is left on the workers: after what other workers have borrowed is
  // back.
  void detach(vhost_user::Done<> done);

  [[nodiscard]] const NetPortInfo& outside_info() const noexcept { return outside_->info(); }
  [[nodiscard]] std::uint32_t pairs() const noexcept { return static_cast<std::uint32_t>(pairs_.size()); }
  [[nodiscard]] NetUplinkStats stats() const;

 private:
  struct Pair;

  NetUplink(NetUplinkOptions options, std::unique_ptr<NetPort> outside, std::unique_ptr<NetPort> inside, Executor& control);
  void open_pairs(vhost_user::Done<> opened);

  const NetUplinkOptions options_;
  Executor& control_;
  // The inside is given up first: what comes in then has nowhere to go.
  const std::unique_ptr<NetPort> outside_;
  const std::unique_ptr<NetPort> inside_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  bool detaching_ = false;  // the workers may take what was opened away
};

}  // namespace ringway
