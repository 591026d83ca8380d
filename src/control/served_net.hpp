// A network card of the host: a port and a NetDevice; or an uplink, which is two ports and no guest. See served_device.hpp.
#pragma once

#include <memory>

#include "backend/net/net_port.hpp"
#include "backend/net/switch.hpp"
#include "control/host.hpp"
#include "control/net_options.hpp"
#include "control/served_device.hpp"
#include "device/net_device.hpp"
#include "device/net_uplink.hpp"

namespace ringway {

class ServedNet final : public ServedDevice {
 public:
  using Options = NetOptions;

  explicit ServedNet(NetOptions options) : ServedDevice(DeviceKind::net), options_(std::move(options)) {}

  [[nodiscard]] const NetOptions& options() const override { return options_; }
  [[nodiscard]] std::string default_name() const override { return default_net_name(options_); }
  void set_name(std::string name) override { options_.name = std::move(name); }
  [[nodiscard]] std::string origin() const override { return port_text(options_); }
  [[nodiscard]] std::string holds() const override { return options_.tap; }
  [[nodiscard]] std::optional<ImageId> image() const override { return {}; }
  // The kernel would deal an interface's frames to the queues of both.
  [[nodiscard]] bool holds_exclusively() const override { return true; }
  [[nodiscard]] std::uint32_t queues() const override { return options_.pairs(); }
  [[nodiscard]] Result<> open(bool workers_have_uring, const std::vector<Holding>& held) override;
  [[nodiscard]] Result<> create_device(const Surroundings& surroundings) override;
  [[nodiscard]] NetDevice* device() const override { return device_.get(); }
  [[nodiscard]] bool is_made() const override { return device_ != nullptr || uplink_ != nullptr; }
  void detach(vhost_user::Done<> done) override;
  [[nodiscard]] std::string summary() const override;
  // REQUIRES: is_made().
  [[nodiscard]] NetStats stats() const;
  [[nodiscard]] const NetPortInfo& port_info() const {
    return device_ != nullptr ? device_->port_info() : uplink_->outside_info();
  }

 private:
  [[nodiscard]] Result<std::unique_ptr<NetPort>> attach_to_switch(Switches& switches);

  NetOptions options_;
  std::unique_ptr<NetPort> port_;   // of open()
  std::shared_ptr<Switch> switch_;  // that it is on
  std::unique_ptr<NetDevice> device_;
  std::unique_ptr<NetUplink> uplink_;
};

}  // namespace ringway
