#include "control/served_net.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "backend/net/simple_ports.hpp"
#include "backend/net/tap_port.hpp"
#include "control/switches.hpp"

namespace ringway {

Result<> ServedNet::open(bool /*workers_have_uring*/, const std::vector<Holding>& /*held*/) {
  if (options_.is_tap()) {
    TapOptions tap;
    tap.name = options_.tap;
    tap.fds = options_.fds;
    tap.pairs = options_.pairs();
    tap.bridge = options_.bridge;
    tap.mtu = options_.mtu;
    RW_TRY_ASSIGN(port_, make_tap_port(tap));
  } else if (options_.source_bytes != 0) {
    port_ = make_source_port({.frame_bytes = options_.source_bytes});
  } else if (options_.on_switch.empty()) {
    port_ = options_.loop ? make_loop_port() : make_null_port();
  }
  return {};
}

Result<std::unique_ptr<NetPort>> ServedNet::attach_to_switch(Switches& switches) {
  RW_TRY_ASSIGN(switch_, switches.get(options_.on_switch));
  SwitchPortOptions port;
  port.pairs_max = options_.pairs();
  if (options_.vlan != 0) {
    port.vlan = options_.vlan;
  }
  port.trunk = options_.trunk;
  port.isolated = options_.isolated;
  if (options_.checks_mac) {
    port.macs = {options_.mac};
  }
  port.checks_ip = options_.checks_ip;
  port.ipv4 = options_.ipv4;
  port.ipv6 = options_.ipv6;
  return switch_->attach(port);
}

Result<> ServedNet::create_device(const Surroundings& surroundings) {
  if (options_.is_uplink()) {
    RW_TRY_ASSIGN(std::unique_ptr<NetPort> inside, attach_to_switch(surroundings.switches));
    RW_TRY_ASSIGN(uplink_, NetUplink::create({.name = options_.name, .pairs = options_.pairs()}, std::move(port_),
                                             std::move(inside), surroundings.workers.ports(), surroundings.first_worker,
                                             surroundings.control, [](const Result<>& opened) {
                                               if (!opened) {
                                                 spdlog::error("{}; remove it and add it again", opened.error().message);
                                               }
                                             }));
    return {};
  }
  if (options_.mac == NetMac{}) {
    NetOptions unique = options_;
    unique.socket = normal_socket_path(unique.socket);
    options_.mac = default_mac(unique, host_identity());
  }
  if (!options_.on_switch.empty()) {
    RW_TRY_ASSIGN(port_, attach_to_switch(surroundings.switches));
  }
  NetDeviceOptions options;
  options.name = options_.name;
  options.mac = options_.mac;
  options.pairs = options_.pairs();
  options.mtu = static_cast<std::uint16_t>(options_.mtu);
  options.packed = options_.packed;
  options.in_order = options_.in_order;
  options.inband = options_.inband;
  options.mergeable = options_.mergeable;
  options.offloads = options_.offloads;
  options.control = options_.control;
  options.speed_mbits = options_.speed_mbits;
  options.stop_deadline = surroundings.stop_deadline;
  RW_TRY_ASSIGN(device_, NetDevice::create(std::move(options), std::move(port_), surroundings.workers.ports(),
                                           surroundings.first_worker, surroundings.control));
  return {};
}

void ServedNet::detach(vhost_user::Done<> done) {
  if (uplink_ != nullptr) {
    uplink_->detach(std::move(done));
  } else {
    device_->detach(std::move(done));
  }
}

NetStats ServedNet::stats() const {
  NetStats stats{.name = options_.name, .stats = {}, .uplink = {}};
  if (uplink_ != nullptr) {
    stats.uplink = uplink_->stats();
  } else {
    stats.stats = device_->stats();
  }
  return stats;
}

std::string ServedNet::summary() const {
  if (uplink_ != nullptr) {
    return fmt::format("{}, {} queue pair{}", origin(), queues(), queues() == 1 ? "" : "s");
  }
  return fmt::format("{}, {} queue pair{}, address {}", origin(), queues(), queues() == 1 ? "" : "s",
                     mac_text(options_.mac));
}

}  // namespace ringway
