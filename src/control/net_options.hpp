// One network card as an operator describes it: on the command line, in the configuration file, or by the local API. A plain
// value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "control/device_options.hpp"
#include "request/net_control.hpp"
#include "ring/spec.hpp"

namespace ringway {

struct NetOptions : DeviceOptions {
  // A card is done with frames in their order anyway, and some drivers are faster when they may rely on it.
  NetOptions() { in_order = true; }

  // What its frames go to and come from: one of these.
  std::string tap;                 // the name of a host interface
  std::vector<int> fds;            // or descriptors of its queues, which are the daemon's from then on
  bool null = false;               // nowhere
  bool loop = false;               // back to the guest
  std::uint32_t source_bytes = 0;  // frames of this length, without end

  std::uint32_t queues = 0;  // pairs; 0: one for each of fds, or 1
  NetMac mac{};              // zeros: default_mac()
  std::uint32_t mtu = 0;     // offered to the guest, and that of the tap; 0: not, and as it is
  std::string bridge;        // that the tap is made a port of; empty: as it is
  bool mergeable = true;
  bool offloads = true;
  bool control = true;
  std::uint32_t speed_mbits = spec::kNetSpeedUnknown;

  [[nodiscard]] bool is_tap() const { return !tap.empty() || !fds.empty(); }
  [[nodiscard]] std::uint32_t pairs() const;

  bool operator==(const NetOptions&) const = default;
};

// Errors: no port or more than one, what a port of another kind has, more pairs than a device without control queue may
// have, or other than there are descriptors; an interface whose name is that of another port.
[[nodiscard]] Result<> check_port(const NetOptions& net, Notation notation = Notation::option);

// The port for people: "tap tap0", "tap of descriptors 3:4", "null", "loop", "source of 60 bytes".
[[nodiscard]] std::string port_text(const NetOptions& net);

// What a card is called that was given no name: its interface, or the kind of its port.
[[nodiscard]] std::string default_net_name(const NetOptions& net);

// "52:54:00:12:34:56"; hyphens are taken too. Errors: no six bytes, a group address, all zeros.
[[nodiscard]] Result<NetMac> parse_mac(std::string_view text);
[[nodiscard]] std::string mac_text(const NetMac& mac);

// A local address that stays the same from start to start and is another one on another host: from the card's name, its
// socket, and what tells hosts apart. Nothing of those can be read back from it.
[[nodiscard]] NetMac default_mac(const NetOptions& net, std::string_view host);
// What tells hosts apart: /etc/machine-id, or the host's name where there is none.
[[nodiscard]] std::string host_identity();

}  // namespace ringway
