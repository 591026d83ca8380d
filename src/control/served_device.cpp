#include "control/served_device.hpp"

#include <fmt/format.h>

namespace ringway {

std::string ServedDevice::label() const {
  return fmt::format("{} '{}'", to_string(kind_), name());
}

}  // namespace ringway
