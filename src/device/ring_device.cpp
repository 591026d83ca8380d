#include "device/ring_device.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "device/released_on.hpp"

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

}  // namespace

RingDevice::RingDevice(Executor& control)
    : number_([] {
        static std::atomic<std::uint32_t> last{0};
        return last.fetch_add(1, std::memory_order_relaxed) + 1;
      }()),
      control_(control) {}

RingDevice::~RingDevice() {
  RW_CHECK(port_ == nullptr);
}

// On a worker.
void RingDevice::tell_front_end(std::move_only_function<void(vhost_user::FrontEndPort&)> what) {
  control_.post([this, what = std::move(what)]() mutable {
    if (port_ != nullptr) {
      what(*port_);
    }
  });
}

RingQueue::Surroundings RingDevice::surroundings(std::uint32_t index, Duration stop_deadline) {
  // A ring may call more often than the control thread sends: of a ring, one call is on its way at most. acq_rel: whoever
  // finds it on its way has published what the driver will see when that one comes.
  const auto call_on_its_way = std::make_shared<std::atomic<bool>>(false);
  return {.device = number_,
          .index = index,
          .stop_deadline = stop_deadline,
          .send_inband_call =
              [this, call_on_its_way](std::uint32_t ring) {
                if (call_on_its_way->exchange(true, std::memory_order_acq_rel)) {
                  return false;
                }
                control_.post([this, call_on_its_way, ring] {
                  static_cast<void>(call_on_its_way->exchange(false, std::memory_order_acq_rel));
                  if (port_ != nullptr) {
                    static_cast<void>(port_->send_vring_call(ring));
                  }
                });
                return true;
              },
          .send_inband_error =
              [this](std::uint32_t ring) {
                tell_front_end([ring](vhost_user::FrontEndPort& port) { static_cast<void>(port.send_vring_error(ring)); });
              },
          .on_broken =
              [this](std::uint32_t ring, const char* why) {
                tell_front_end([ring, why](vhost_user::FrontEndPort& port) {
                  port.warn("ring " + std::to_string(ring) + " is not served any more: " + why +
                            "; it will be once it was stopped and started again");
                });
              },
          .on_held_write =
              [this](std::uint32_t ring) {
                tell_front_end([ring](vhost_user::FrontEndPort& port) {
                  port.give_up("ring " + std::to_string(ring) +
                               ": its call or error descriptor held up the worker: it was made blocking again, or very many "
                               "wait for it");
                });
              },
          .on_stall =
              [this](std::uint32_t ring, std::uint32_t requests, Duration age) {
                control_.post([this, ring, requests, age] {
                  const std::string in_flight =
                      "ring " + std::to_string(ring) + ": " + std::to_string(requests) + " requests are in flight";
                  const std::string text = age == Duration{}
                                               ? in_flight + ", and they go on"
                                               : in_flight + ", the oldest for " +
                                                     std::to_string(age.ns / Duration::seconds(1).ns) +
                                                     " s at least: the image's file system or device hangs or is very slow";
                  // The front-end may have gone since; its requests haven't.
                  port_ != nullptr ? port_->warn(text) : spdlog::warn("{}: {}", name(), text);
                });
              }};
}

Duration RingDevice::oldest_in_flight() const {
  Duration oldest;
  for (const RingQueue* queue : queues_) {
    oldest = std::max(oldest, queue->ring_stats().oldest_in_flight);
  }
  return oldest;
}

void RingDevice::add_queue(RingQueue& queue, const WorkerPort& worker) {
  queues_.push_back(&queue);
  workers_.push_back(worker);
}

void RingDevice::swap_rings(std::uint32_t one, std::uint32_t other) {
  std::swap(queues_[one], queues_[other]);
  std::swap(workers_[one], workers_[other]);
}

void RingDevice::on_queue(std::uint32_t index, std::move_only_function<void(RingQueue&)> body) {
  RW_CHECK(index < queues_.size());
  workers_[index].executor->post([queue = queues_[index], body = std::move(body)]() mutable { body(*queue); });
}

void RingDevice::on_each_queue(std::move_only_function<void(RingQueue&, vhost_user::Done<>)> body, vhost_user::Done<> done) {
  // Shared by the messages; `left` is counted down on the control thread only, where the round also ends: what the session
  // and the caller have put into it is theirs.
  struct Round {
    std::move_only_function<void(RingQueue&, vhost_user::Done<>)> body;
    vhost_user::Done<> done;
    std::size_t left = 0;
    Result<> result;
  };
  auto round = released_on(control_, std::make_shared<Round>());
  round->body = std::move(body);
  round->done = std::move(done);
  round->left = queues_.size();
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    on_queue(i, [this, round](RingQueue& queue) {
      round->body(queue, answer_on<void>(control_, [round](Result<> result) {
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

Result<> RingDevice::check_config_part(std::size_t whole_bytes, std::uint32_t offset, std::size_t part_bytes) {
  if (offset > whole_bytes || part_bytes > whole_bytes - offset) {
    return fail(
        fmt::format("the configuration space has {} bytes; {} at offset {} are outside", whole_bytes, part_bytes, offset));
  }
  return {};
}

void RingDevice::notify_config_change() {
  if (port_ != nullptr) {
    static_cast<void>(port_->notify_config_change());
  }
}

void RingDevice::detach(vhost_user::Done<> done) {
  port_ = nullptr;
  on_each_queue([](RingQueue& queue, vhost_user::Done<> each) { queue.detach(std::move(each)); },
                [this, done = std::move(done)](Result<>) mutable {
                  map_ = nullptr;
                  log_ = nullptr;
                  forget_driver();
                  release(std::move(done));
                });
}

void RingDevice::reset(vhost_user::Done<> done) {
  // The rings stop as for a detach, but the front-end's memory and descriptors stay with the session.
  on_each_queue([](RingQueue& queue, vhost_user::Done<> each) { queue.reset(std::move(each)); },
                [this, done = std::move(done)](Result<> result) mutable {
                  forget_driver();
                  done(std::move(result));
                });
}

void RingDevice::set_memory(std::shared_ptr<const RegionMap> map, vhost_user::Done<> done) {
  map_ = released_on(control_, std::move(map));
  prepare_memory(map_);
  on_each_queue([map = map_](RingQueue& queue, vhost_user::Done<> each) { queue.set_memory(map, std::move(each)); },
                std::move(done));
}

void RingDevice::set_log(std::shared_ptr<DirtyLog> log, vhost_user::Done<> done) {
  log_ = released_on(control_, std::move(log));
  on_each_queue(
      [log = log_](RingQueue& queue, vhost_user::Done<> each) {
        queue.set_log(log);
        each({});
      },
      std::move(done));
}

void RingDevice::start_ring(vhost_user::RingStart start, vhost_user::Done<> done) {
  const std::uint32_t index = start.index;
  RW_CHECK(index < queues_.size());
  if (map_ == nullptr) {
    done(fail("ring " + std::to_string(index) + " can't start: there is no memory table"));
    return;
  }
  start.inflight = released_on(control_, std::move(start.inflight));
  on_queue(index, [this, index, start = std::move(start), map = map_, log = log_,
                   done = answer_on<void>(control_, std::move(done))](RingQueue& /*start_queue() knows it*/) mutable {
    done(start_queue(index, std::move(start), std::move(map), std::move(log), *workers_[index].context));
  });
}

void RingDevice::stop_ring(std::uint32_t index, vhost_user::Done<std::uint32_t> done) {
  on_queue(index, [done = answer_on<std::uint32_t>(control_, std::move(done))](RingQueue& queue) mutable {
    queue.stop(std::move(done));
  });
}

void RingDevice::enable_ring(std::uint32_t index, bool enabled, vhost_user::Done<> done) {
  on_queue(index, [enabled, done = answer_on<void>(control_, std::move(done))](RingQueue& queue) mutable {
    queue.enable(enabled);
    done({});
  });
}

void RingDevice::set_call(std::uint32_t index, ForeignFd call, vhost_user::Done<> done) {
  on_queue(index, [call = std::move(call), done = answer_on<void>(control_, std::move(done))](RingQueue& queue) mutable {
    queue.set_call(std::move(call));
    done({});
  });
}

void RingDevice::set_kick(std::uint32_t index, ForeignFd kick, vhost_user::Done<> done) {
  on_queue(index, [kick = std::move(kick), done = answer_on<void>(control_, std::move(done))](RingQueue& queue) mutable {
    done(queue.set_kick(std::move(kick)));
  });
}

void RingDevice::set_error(std::uint32_t index, ForeignFd error, vhost_user::Done<> done) {
  on_queue(index, [error = std::move(error), done = answer_on<void>(control_, std::move(done))](RingQueue& queue) mutable {
    queue.set_error(std::move(error));
    done({});
  });
}

void RingDevice::set_addresses(std::uint32_t index, RingAddresses addresses, bool log, GuestAddress log_address,
                               vhost_user::Done<> done) {
  on_queue(index, [addresses, log, log_address, done = answer_on<void>(control_, std::move(done))](
                      RingQueue& queue) mutable { done(queue.set_addresses(addresses, log, log_address)); });
}

void RingDevice::kick(std::uint32_t index) {
  on_queue(index, [](RingQueue& queue) { queue.kick(); });
}

}  // namespace ringway
