#include "control/served_net.hpp"

#include <fmt/format.h>

#include <utility>

#include "backend/net/simple_ports.hpp"
#include "backend/net/tap_port.hpp"

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
  } else {
    port_ = options_.loop ? make_loop_port() : make_null_port();
  }
  return {};
}

Result<> ServedNet::create_device(const Surroundings& surroundings) {
  if (options_.mac == NetMac{}) {
    NetOptions unique = options_;
    unique.socket = normal_socket_path(unique.socket);
    options_.mac = default_mac(unique, host_identity());
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

std::string ServedNet::summary() const {
  return fmt::format("{}, {} queue pair{}, address {}", origin(), queues(), queues() == 1 ? "" : "s",
                     mac_text(options_.mac));
}

}  // namespace ringway
