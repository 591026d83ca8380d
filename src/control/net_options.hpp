// One network card as an operator describes it: on the command line, in the configuration file, or by the local API. A plain
// value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/net/switch_frame.hpp"
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
  std::string on_switch;           // other cards of this process: the name of their switch. Together with a tap, and
                                   // without a socket, it is no card but an uplink: it joins the two

  // What its port of the switch may do; see SwitchPortOptions.
  std::uint16_t vlan = 0;  // 0: not said
  std::vector<std::uint16_t> trunk;
  bool isolated = false;
  bool checks_mac = false;  // sends from no address but `mac`
  bool checks_ip = false;   // and none of these
  std::vector<NetIpv4> ipv4;
  std::vector<NetIpv6> ipv6;

  std::uint32_t queues = 0;  // pairs; 0: one for each of fds, or 1
  NetMac mac{};              // zeros: default_mac()
  std::uint32_t mtu = 0;     // offered to the guest, and that of the tap; 0: not, and as it is
  std::string bridge;        // that the tap is made a port of; empty: as it is
  bool mergeable = true;
  bool offloads = true;
  bool control = true;
  std::uint32_t speed_mbits = spec::kNetSpeedUnknown;

  [[nodiscard]] bool is_tap() const { return !tap.empty() || !fds.empty(); }
  [[nodiscard]] bool is_uplink() const { return is_tap() && !on_switch.empty(); }
  [[nodiscard]] std::uint32_t pairs() const;

  bool operator==(const NetOptions&) const = default;
};

// Errors: no port or more than one (but for an uplink), what a port of another kind has, more pairs than a device without
// control queue may have, or other than there are descriptors; an interface whose name is that of another port.
[[nodiscard]] Result<> check_port(const NetOptions& net, Notation notation = Notation::option);

// The port for people: "tap tap0", "tap of descriptors 3:4", "null", "loop", "source of 60 bytes", "switch lan0", "tap tap0
// on switch lan0".
[[nodiscard]] std::string port_text(const NetOptions& net);

// What a card is called that was given no name: its interface, or the kind of its port.
[[nodiscard]] std::string default_net_name(const NetOptions& net);

// "10", "10+20+30-39": VLANs that a trunk carries. Errors: none, not 1 to 4094, one twice.
[[nodiscard]] Result<std::vector<std::uint16_t>> parse_vlans(std::string_view text);
[[nodiscard]] std::string vlans_text(const std::vector<std::uint16_t>& vlans);
// "10.0.0.2", "10.0.0.2+fe80::2": the addresses of a port that checks them. Errors: none, what is no address.
[[nodiscard]] Result<> parse_addresses(std::string_view text, NetOptions& net);
[[nodiscard]] std::string addresses_text(const NetOptions& net);

// "52:54:00:12:34:56"; hyphens are taken too. Errors: no six bytes, a group address, all zeros.
[[nodiscard]] Result<NetMac> parse_mac(std::string_view text);
[[nodiscard]] std::string mac_text(const NetMac& mac);

// A local address that stays the same from start to start and is another one on another host: from the card's name, its
// socket, and what tells hosts apart. Nothing of those can be read back from it.
[[nodiscard]] NetMac default_mac(const NetOptions& net, std::string_view host);
// What tells hosts apart: /etc/machine-id, or the host's name where there is none.
[[nodiscard]] std::string host_identity();

}  // namespace ringway
