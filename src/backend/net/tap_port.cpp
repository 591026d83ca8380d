#include "backend/net/tap_port.hpp"

#include <fmt/format.h>

#include <utility>

#include "backend/net/tap_channel.hpp"

namespace ringway {

TapPort::TapPort(std::unique_ptr<TapDevice> device, BatchedEngine engine) : device_(std::move(device)), engine_(engine) {
  const TapDevice::Abilities& abilities = device_->abilities();
  info_.kind = "tap";
  info_.pairs_max = device_->pairs();
  info_.mtu_max = kTapMtuMax;  // whatever the interface has now: it may change, and the kernel takes longer frames
  info_.host_offloads = abilities.host_offloads;
  info_.guest_offloads = abilities.guest_offloads;
  info_.steering_types = device_->steers() ? TapSteering::kTypes : 0;
}

Result<std::unique_ptr<NetChannel>> TapPort::open_channel(const Pair& pair) {
  if (pair.index >= device_->pairs()) {
    return fail(fmt::format("the tap {} has {} queues, none with number {}", device_->name(), device_->pairs(), pair.index));
  }
  RW_TRY_ASSIGN(std::unique_ptr<NetChannel> channel, TapChannel::open(pair, *device_, engine_));
  return channel;
}

Result<std::unique_ptr<TapPort>> make_tap_port(const TapOptions& options) {
  RW_TRY_ASSIGN(std::unique_ptr<TapDevice> device, TapDevice::open(options));
  return std::make_unique<TapPort>(std::move(device));
}

}  // namespace ringway
