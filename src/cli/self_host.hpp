// The back-end of `ringway bench … --self`: a Host in a child process, so that its CPU time can be told from the driver's.
//
// REQUIRES: created before this process has a second thread (it forks). The child ends with this object, or with its parent.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "control/disk_options.hpp"
#include "control/net_options.hpp"
#include "worker/worker_pool.hpp"

namespace ringway::cli {

// What an operator may say of its workers.
struct SelfArguments {
  std::string worker_cpus;
  std::string poll = WorkerPoolOptions{}.poll, loop = "auto";
};
// One worker for each CPU named, or one. `driver_cpus`, where the driver's threads run, is filled in if it is empty. Errors
// name the option.
[[nodiscard]] Result<WorkerPoolOptions> self_workers(const SelfArguments& arguments, std::vector<int>& driver_cpus);

struct SelfHostOptions {
  WorkerPoolOptions workers;
  // Disks or a card; their sockets are chosen here.
  std::vector<DiskOptions> disks;
  std::optional<NetOptions> net;
};

class SelfHost {
 public:
  // Returns when the sockets stand. Errors: what the host says.
  [[nodiscard]] static Result<std::unique_ptr<SelfHost>> start(const SelfHostOptions& options);
  ~SelfHost();
  SelfHost(const SelfHost&) = delete;
  SelfHost& operator=(const SelfHost&) = delete;

  // Of the card, or of a disk.
  [[nodiscard]] std::string socket_path(std::size_t disk = 0) const;
  [[nodiscard]] pid_t pid() const { return child_; }

 private:
  SelfHost() = default;

  std::string directory_;
  pid_t child_ = -1;
};

}  // namespace ringway::cli
