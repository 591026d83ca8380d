// The local API: HTTP and JSON on a Unix socket, for `ringway ctl`, scripts and supervisors.
//
//   GET    /v1/version                    {"version": "0.1.0"}
//   GET    /v1/devices                    [{"kind": "disk", "name": …, "socket": …, "state": "serving", …}, …]
//   GET    /v1/devices/<name>             one of them
//   DELETE /v1/devices/<name>             → 200 {"removed": …}; 202 {"removing": …} when its store doesn't answer in time
//   GET, DELETE /v1/disks…, /v1/nets…     the same for disks or network cards only
//   POST   /v1/disks                      {"path": …, "socket": …, …}: the keys of --disk    → 201 {"name": …}
//   POST   /v1/disks/<name>/resize        {"size": "2G"}; 0 or none: look at the image again → 200 {"capacity": bytes}
//   POST   /v1/nets                       {"tap": …, "socket": …, …}: the keys of --net      → 201 {"name": …}
//   POST   /v1/nets/<name>/link           {"up": true}: the cable, as the guest is shown it  → 200 {"link": "up"}
//   GET    /v1/stats                      counters and latencies per device and queue
//   GET    /v1/stats/<name>               those of one device
//   GET    /v1/workers                    what the worker threads do
//   GET    /v1/log                        {"lines_dropped": …}: lines of the log that stderr's reader didn't take
//   POST   /v1/quit                       drains and ends the daemon                         → 202
//
// Errors: {"error": "…"} with 400 (a bad value), 403 (another user), 404, 405 with Allow, 409 (a name, socket or
// interface that is taken), 413 (more than kApiBodyBytesMax), 422 (the environment says no: a missing file, …), 503 (the
// daemon ends, or serves kApiConnectionsMax connections already).
//
// Who may connect: root, and the user that the daemon runs as. The socket's mode says so, and each connection's credentials
// are checked again. Owner: control thread. libmicrohttpd runs on the control thread; no request blocks it,
// since what takes time is answered later (a suspended connection). Connections are limited in number, idle time and header
// size.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.hpp"

namespace ringway {

class Host;

inline constexpr std::size_t kApiBodyBytesMax = std::size_t{64} << 10U;  // the longest legal request is about 10 KiB
inline constexpr unsigned kApiConnectionsMax = 32;
inline constexpr unsigned kApiIdleSeconds = 30;

class ApiServer {
 public:
  // Takes the socket; answers from the next turn of the host's loop on.
  [[nodiscard]] static Result<std::unique_ptr<ApiServer>> create(const std::string& path, Host& host);
  // Requests that wait for something are answered by 503.
  virtual ~ApiServer() = default;
};

}  // namespace ringway
