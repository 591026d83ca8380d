#include "control/switches.hpp"

#include <utility>

namespace ringway {

Result<std::shared_ptr<Switch>> Switches::get(const std::string& name) {
  std::erase_if(switches_, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = switches_.find(name); found != switches_.end()) {
    return found->second.lock();
  }
  RW_TRY_ASSIGN(std::unique_ptr<Switch> made, Switch::create({.name = name}));
  std::shared_ptr<Switch> shared = std::move(made);
  switches_.emplace(name, shared);
  return shared;
}

}  // namespace ringway
