// A tap interface as a port: the host's network stack, or its bridge, on the other side.
#pragma once

#include <memory>
#include <vector>

#include "backend/net/batched_io.hpp"
#include "backend/net/net_port.hpp"
#include "backend/net/tap_device.hpp"

namespace ringway {

class TapPort final : public NetPort {
 public:
  explicit TapPort(std::unique_ptr<TapDevice> device, BatchedEngine engine = BatchedEngine::automatic);

  [[nodiscard]] const NetPortInfo& info() const noexcept override { return info_; }
  [[nodiscard]] Result<> steer(const std::optional<NetSteering>& by) override { return device_->steer(by); }
  // Errors: no such pair; the loop can't watch the queue.
  [[nodiscard]] Result<std::unique_ptr<NetChannel>> open_channel(const Pair& pair) override;
  // For the link's state and MTU.
  [[nodiscard]] TapDevice& device() noexcept { return *device_; }

 private:
  std::unique_ptr<TapDevice> device_;
  BatchedEngine engine_;
  NetPortInfo info_;
};

// Opens the interface. Control thread. Errors: as TapDevice::open().
[[nodiscard]] Result<std::unique_ptr<TapPort>> make_tap_port(const TapOptions& options);

}  // namespace ringway
