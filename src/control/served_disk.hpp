// A disk of the host: an image and a BlkDevice. See served_device.hpp.
#pragma once

#include <memory>

#include "backend/blk/make_store.hpp"
#include "control/disk_options.hpp"
#include "control/host.hpp"
#include "control/served_device.hpp"
#include "device/blk_device.hpp"

namespace ringway {

class ServedDisk final : public ServedDevice {
 public:
  using Options = DiskOptions;

  explicit ServedDisk(DiskOptions options) : ServedDevice(DeviceKind::disk), options_(std::move(options)) {}

  [[nodiscard]] const DiskOptions& options() const override { return options_; }
  [[nodiscard]] std::string default_name() const override { return default_disk_name(options_.path); }
  void set_name(std::string name) override { options_.name = std::move(name); }
  [[nodiscard]] std::string origin() const override { return options_.path; }
  [[nodiscard]] std::string holds() const override {
    return device_ == nullptr && is_file_image(options_.path) ? options_.path : "";
  }
  [[nodiscard]] std::optional<ImageId> image() const override { return choice_.image; }
  [[nodiscard]] bool holds_exclusively() const override { return !options_.read_only; }
  [[nodiscard]] std::uint32_t queues() const override { return options_.queues; }
  [[nodiscard]] Result<> open(bool workers_have_uring, const std::vector<Holding>& held) override;
  [[nodiscard]] Result<> create_device(const Surroundings& surroundings) override;
  [[nodiscard]] BlkDevice* device() const override { return device_.get(); }
  [[nodiscard]] std::string summary() const override;
  // REQUIRES: is_made().
  [[nodiscard]] DiskStats stats() const { return {.name = options_.name, .stats = device_->stats()}; }

  // Why this engine.
  [[nodiscard]] const std::string& engine_reason() const { return choice_.reason; }

 private:
  DiskOptions options_;
  BlkStoreChoice choice_;  // of open()
  std::unique_ptr<BlkDevice> device_;
};

}  // namespace ringway
