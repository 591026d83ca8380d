// One device of the host, whatever its kind: what an operator asked for, what it serves from (an image, a port), and, once
// that is open, the device itself. What the host does with it is in host.cpp.
//
// Owner: control thread, but for open(). It ends with its device, so after that one's last detach().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/blk/image_file.hpp"
#include "base/result.hpp"
#include "control/device_options.hpp"
#include "device/ring_device.hpp"
#include "loop/executor.hpp"
#include "vhost_user/device.hpp"
#include "worker/worker_pool.hpp"

namespace ringway {

class Switches;

class ServedDevice {
 public:
  // An image that a device of this process has open, for who can't have it therefore.
  struct Holding {
    std::string device;  // its label()
    ImageId image;
    bool exclusively = false;
  };
  struct Surroundings {
    const WorkerPool& workers;
    Switches& switches;
    std::uint32_t first_worker = 0;  // that its queues are dealt to
    Duration stop_deadline;
    Executor& control;
  };

  explicit ServedDevice(DeviceKind kind) : kind_(kind) {}
  ServedDevice(const ServedDevice&) = delete;
  ServedDevice& operator=(const ServedDevice&) = delete;
  virtual ~ServedDevice() = default;

  [[nodiscard]] DeviceKind kind() const { return kind_; }
  [[nodiscard]] virtual const DeviceOptions& options() const = 0;
  [[nodiscard]] const std::string& name() const { return options().name; }
  // "disk 'vm1'"
  [[nodiscard]] std::string label() const;
  // For a device that was given none.
  [[nodiscard]] virtual std::string default_name() const = 0;
  virtual void set_name(std::string name) = 0;
  // What it serves from, for people: the image's path, "tap tap0".
  [[nodiscard]] virtual std::string origin() const = 0;
  // By its name, the image or interface that others may ask for in vain while this device has it; empty: none. Of an image
  // that is open image() tells, since its name may be another file's by then.
  [[nodiscard]] virtual std::string holds() const = 0;
  // The image that it has open. REQUIRES: a device, for open() may be running before.
  [[nodiscard]] virtual std::optional<ImageId> image() const = 0;
  // Whether no other device can have that.
  [[nodiscard]] virtual bool holds_exclusively() const = 0;
  // What it takes of the workers: request queues, pairs.
  [[nodiscard]] virtual std::uint32_t queues() const = 0;

  // Opens the image or port, which may take for ever. On any thread, while nobody else calls anything that isn't const.
  // Errors: what the environment says; with code EBUSY, that somebody else has it. `held` is what other devices have.
  [[nodiscard]] virtual Result<> open(bool workers_have_uring, const std::vector<Holding>& held) = 0;
  // REQUIRES: open() has succeeded. Errors name the device.
  [[nodiscard]] virtual Result<> create_device(const Surroundings& surroundings) = 0;
  // Null before, and of what has no guest (an uplink).
  [[nodiscard]] virtual RingDevice* device() const = 0;
  // Whether create_device() has succeeded.
  [[nodiscard]] virtual bool is_made() const { return device() != nullptr; }
  // As RingDevice::detach(). REQUIRES: is_made().
  virtual void detach(vhost_user::Done<> done) { device()->detach(std::move(done)); }
  // One line about what is served now. REQUIRES: a device.
  [[nodiscard]] virtual std::string summary() const = 0;

 private:
  DeviceKind kind_;
};

}  // namespace ringway
