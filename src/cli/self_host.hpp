// The back-end of `ringway bench … --self`: a Host in a child process, so that its CPU time can be told from the driver's.
//
// REQUIRES: created before this process has a second thread (it forks). The child ends with this object, or with its parent.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "control/disk_options.hpp"
#include "control/net_options.hpp"
#include "worker/worker_pool.hpp"

namespace ringway::cli {

struct SelfHostOptions {
  WorkerPoolOptions workers;
  // One of both; its socket is chosen here.
  std::optional<DiskOptions> disk;
  std::optional<NetOptions> net;
};

class SelfHost {
 public:
  // Returns when the socket stands. Errors: what the host says.
  [[nodiscard]] static Result<std::unique_ptr<SelfHost>> start(const SelfHostOptions& options);
  ~SelfHost();
  SelfHost(const SelfHost&) = delete;
  SelfHost& operator=(const SelfHost&) = delete;

  [[nodiscard]] const std::string& socket_path() const { return socket_; }
  [[nodiscard]] pid_t pid() const { return child_; }

 private:
  SelfHost() = default;

  std::string directory_;
  std::string socket_;
  pid_t child_ = -1;
};

}  // namespace ringway::cli
