// The switches of a host, by name. A switch is there as long as a card or an uplink is on it.
//
// Owner: control thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "backend/net/switch.hpp"
#include "base/result.hpp"

namespace ringway {

class Switches {
 public:
  // The one of that name, which is made if there is none. Errors: as Switch::create().
  [[nodiscard]] Result<std::shared_ptr<Switch>> get(const std::string& name);

 private:
  std::map<std::string, std::weak_ptr<Switch>> switches_;
};

}  // namespace ringway
