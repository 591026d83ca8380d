// Conformance of any vhost-user-net back-end: a list of rules, each tried in a session of its own over the driver library,
// each reported on a line with what was seen and where the rule stands ("virtio" is the virtio 1.3 specification,
// "vhost-user" QEMU's docs/interop/vhost-user.rst).
//
// Rules that concern frames, rings and commands run for the split layout, and again for the packed one where the back-end
// offers it. What a back-end does with a frame is seen only if it sends one: many rules need it to return each frame to the
// pair that sent it, and some that it sends any. For others they are skipped.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

#include "base/time.hpp"

namespace ringway {

// What a back-end does with frames.
enum class NetCheckPort : std::uint8_t {
  unknown,  // to be found out: a frame is sent, and what comes is looked at
  silent,   // it sends none
  loop,     // it returns each frame to the pair that sent it
  source,   // it sends frames of its own, without end
};

struct NetCheckOptions {
  std::string socket_path = {};
  Duration patience = Duration::seconds(5);      // for the socket to appear
  Duration answer_limit = Duration::seconds(5);  // for a chain to come back; beyond it counts as never
  NetCheckPort port = NetCheckPort::unknown;
  std::string only = {};  // runs only rules whose name contains this; empty: all
  bool list = false;      // only names the rules: needs no back-end
  bool json = false;      // one JSON object instead of lines
  // Told once, on a thread of its own, when the back-end lets us wait longer than half a second for the first session.
  std::function<void(std::string_view)> on_wait = {};
};

// Returns the exit code: 0 if no rule failed, 1 if one did, 2 if the back-end couldn't be reached at all, or no rule has the
// name that was asked for.
int run_net_check(const NetCheckOptions& options, std::ostream& out);

}  // namespace ringway
