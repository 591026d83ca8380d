#include "device/net_uplink.hpp"

#include <algorithm>
#include <utility>

#include "backend/net/switch_uplink.hpp"
#include "base/check.hpp"

namespace ringway {

namespace {

void count(const SwitchUplink& uplink, NetUplinkStats::Pair& to) noexcept {
  const SwitchUplinkCounters& counters = uplink.counters();
  to.frames_in = counters.frames_in.get();
  to.frames_out = counters.frames_out.get();
  to.cut = counters.cut.get();
  to.bad_headers = counters.bad_headers.get();
  to.dropped_full = counters.dropped_full.get();
  to.dropped_uncuttable = counters.dropped_uncuttable.get();
  to.outside = NetChannelStats::of(uplink.outside_counters());
  to.inside = NetChannelStats::of(uplink.inside_counters());
}

}  // namespace

struct NetUplink::Pair {
  WorkerPort worker;
  std::unique_ptr<SwitchUplink> uplink = nullptr;  // touched by the worker only
  const SwitchUplink* opened = nullptr;            // the same, for its counters, on the control thread
  NetUplinkStats::Pair last = {};                  // what was counted, since detach()
};

Result<std::unique_ptr<NetUplink>> NetUplink::create(NetUplinkOptions options, std::unique_ptr<NetPort> outside,
                                                     std::unique_ptr<NetPort> inside, std::span<const WorkerPort> workers,
                                                     std::uint32_t first_worker, Executor& control,
                                                     vhost_user::Done<> opened) {
  const auto wrong = [&](const std::string& what) { return fail("net '" + options.name + "': " + what); };
  const std::uint32_t most = std::min(outside->info().pairs_max, inside->info().pairs_max);
  if (options.pairs == 0 || options.pairs > most) {
    return wrong("queues=" + std::to_string(options.pairs) + " must be between 1 and " + std::to_string(most) +
                 ", the most that its ports (" + outside->info().kind + ", " + inside->info().kind + ") have");
  }
  if (workers.empty()) {
    return wrong("there is no worker to serve it");
  }
  const std::uint32_t pairs = options.pairs;
  auto uplink =
      std::unique_ptr<NetUplink>(new NetUplink(std::move(options), std::move(outside), std::move(inside), control));
  for (std::uint32_t i = 0; i < pairs; ++i) {
    uplink->pairs_.push_back(std::make_unique<Pair>(Pair{.worker = workers[(first_worker + i) % workers.size()]}));
  }
  uplink->open_pairs(std::move(opened));
  return uplink;
}

NetUplink::NetUplink(NetUplinkOptions options, std::unique_ptr<NetPort> outside, std::unique_ptr<NetPort> inside,
                     Executor& control)
    : options_(std::move(options)), control_(control), outside_(std::move(outside)), inside_(std::move(inside)) {}

NetUplink::~NetUplink() {
  RW_CHECK(std::ranges::all_of(pairs_, [](const auto& pair) { return pair->uplink == nullptr; }));
}

void NetUplink::open_pairs(vhost_user::Done<> opened) {
  struct Round {
    std::size_t left;
    Result<> outcome;
    vhost_user::Done<> opened;
  };
  auto round = std::make_shared<Round>(Round{.left = pairs_.size(), .outcome = {}, .opened = std::move(opened)});
  for (std::uint32_t index = 0; index < pairs_.size(); ++index) {
    Pair* const pair = pairs_[index].get();
    pair->worker.executor->post([this, index, pair, round] {
      auto made = SwitchUplink::open(*outside_, *inside_, index, pair->worker.context->loop);
      Result<> outcome;
      if (made) {
        pair->uplink = std::move(*made);
      } else {
        outcome = fail("net '" + options_.name + "': " + made.error().message);
      }
      control_.post([this, pair, round, uplink = pair->uplink.get(), outcome = std::move(outcome)]() mutable {
        pair->opened = detaching_ ? nullptr : uplink;
        if (!outcome) {
          round->outcome = std::move(outcome);
        }
        if (--round->left == 0) {
          round->opened(std::move(round->outcome));
        }
      });
    });
  }
}

void NetUplink::detach(vhost_user::Done<> done) {
  auto round = std::make_shared<std::pair<std::size_t, vhost_user::Done<>>>(pairs_.size(), std::move(done));
  detaching_ = true;
  for (const auto& each : pairs_) {
    Pair* const pair = each.get();
    if (const SwitchUplink* const uplink = std::exchange(pair->opened, nullptr); uplink != nullptr) {
      count(*uplink, pair->last);
    }
    pair->worker.executor->post([this, pair, round] {
      const auto gone = [this, pair, round] {
        NetUplinkStats::Pair last{};
        const bool was_open = pair->uplink != nullptr;
        if (was_open) {
          count(*pair->uplink, last);
          pair->uplink.reset();
        }
        control_.post([pair, round, last, was_open] {
          if (was_open) {
            pair->last = last;
          }
          if (--round->first == 0) {
            round->second({});
          }
        });
      };
      if (pair->uplink == nullptr) {
        gone();
      } else {
        pair->uplink->stop(gone);
      }
    });
  }
}

NetUplinkStats NetUplink::stats() const {
  NetUplinkStats stats;
  for (const auto& pair : pairs_) {
    NetUplinkStats::Pair& to = stats.pairs.emplace_back(pair->last);
    if (pair->opened != nullptr) {
      count(*pair->opened, to);
    }
    to.worker = pair->worker.index;
  }
  return stats;
}

}  // namespace ringway
