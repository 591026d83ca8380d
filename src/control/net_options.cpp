#include "control/net_options.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/limits.hpp"

namespace ringway {
namespace {

constexpr std::uint8_t kGroupAddress = 1;
constexpr std::uint8_t kLocalAddress = 2;

std::uint64_t hash_of(std::uint64_t hash, std::string_view text) {
  // FNV-1a, with an end mark, so that "ab" and "c" are other than "a" and "bc".
  constexpr std::uint64_t kPrime = 0x100000001b3;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  }
  return (hash ^ 0xff) * kPrime;
}

}  // namespace

std::uint32_t NetOptions::pairs() const {
  if (queues != 0) {
    return queues;
  }
  return fds.empty() ? 1 : static_cast<std::uint32_t>(fds.size());
}

Result<> check_port(const NetOptions& net, Notation notation) {
  for (const std::string_view other : {"null", "loop", "source"}) {
    if (net.tap == other) {
      return fail(
          fmt::format("tap: '{0}' is a port of its own, and no interface may have that name here (did you mean "
                      "{1} instead of {2}?)",
                      other, written(notation, other), written(notation, "tap", other)));
    }
  }
  std::vector<std::string_view> given;
  for (const auto& [name, is_given] : {std::pair{"tap", !net.tap.empty()},
                                       {"fds", !net.fds.empty()},
                                       {"null", net.null},
                                       {"loop", net.loop},
                                       {"source", net.source_bytes != 0},
                                       {"switch", !net.on_switch.empty()}}) {
    if (is_given) {
      given.emplace_back(name);
    }
  }
  if (given.empty()) {
    return fail(fmt::format("a network card needs a port for its frames: {}, {}, {}, {} or {}",
                            written(notation, "tap", "<interface>"), written(notation, "switch", "<name>"),
                            written(notation, "null"), written(notation, "loop"), written(notation, "source")));
  }
  if (net.is_uplink() && given.size() == 2) {
    if (!net.socket.empty()) {
      return fail(fmt::format(
          "a network card has one port for its frames: leave {} or switch out; or leave socket out, and the two are joined",
          given.front()));
    }
    if (net.connect) {
      return fail("connect: an uplink has no socket to connect to");
    }
    if (net.checks_mac || net.checks_ip) {
      return fail(fmt::format("{}: what comes by an uplink is from many addresses; check the cards instead",
                              net.checks_mac ? "mac-check" : "ip"));
    }
  } else if (given.size() > 1) {
    return fail(fmt::format("a network card has one port for its frames, and {} are given; leave all but one out",
                            fmt::join(given, " and ")));
  }
  if (net.checks_mac && net.mac == NetMac{}) {
    return fail("mac-check: give mac, too: the address that the virtual machine has");
  }
  if (net.on_switch.empty()) {
    for (const auto& [name, is_given] : {std::pair{"vlan", net.vlan != 0},
                                         {"trunk", !net.trunk.empty()},
                                         {"isolated", net.isolated},
                                         {"mac-check", net.checks_mac},
                                         {"ip", net.checks_ip}}) {
      if (is_given) {
        return fail(
            fmt::format("{}: only a port of a switch has that, and the port of this card is {}", name, given.front()));
      }
    }
  }
  if (!net.bridge.empty() && !net.is_tap()) {
    return fail(fmt::format("bridge: only a tap can be a port of a bridge, and the port of this card is {}", given.front()));
  }
  if (!net.fds.empty() && net.pairs() != net.fds.size()) {
    return fail(fmt::format("queues: {} given with {} descriptors in fds; give one descriptor for each pair", net.queues,
                            net.fds.size()));
  }
  if (net.control && net.queues > limits::kNetPairsMax) {
    return fail(fmt::format("queues: '{}' is not allowed; give a number from 1 to {}, or {} with {}", net.queues,
                            limits::kNetPairsMax, limits::kNetPairsWithoutControlMax, written_off(notation, "control")));
  }
  return {};
}

std::string port_text(const NetOptions& net) {
  std::string on = net.on_switch.empty() ? "" : (net.is_tap() ? " on switch " : "switch ") + net.on_switch;
  if (!net.tap.empty()) {
    return "tap " + net.tap + on;
  }
  if (!net.fds.empty()) {
    return fmt::format("tap of descriptors {}{}", fmt::join(net.fds, ":"), on);
  }
  if (!on.empty()) {
    return on;
  }
  if (net.source_bytes != 0) {
    return fmt::format("source of {} bytes", net.source_bytes);
  }
  return net.null ? "null" : net.loop ? "loop" : "";
}

std::string default_net_name(const NetOptions& net) {
  if (!net.tap.empty()) {
    return device_name_from(net.tap, "net");
  }
  if (!net.on_switch.empty() && net.fds.empty()) {
    return device_name_from(net.on_switch, "net");
  }
  const std::string text = port_text(net);
  return device_name_from(text.substr(0, text.find(' ')), "net");
}

Result<std::vector<std::uint16_t>> parse_vlans(std::string_view text) {
  constexpr std::uint16_t kVlanLast = 4094;
  std::vector<std::uint16_t> vlans;
  const auto number = [](std::string_view part) -> std::uint16_t {
    std::uint16_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc{} && end == part.data() + part.size() && value <= kVlanLast ? value : std::uint16_t{0};
  };
  for (std::string_view rest = text;;) {
    const std::size_t plus = rest.find_first_of("+,");
    const std::string_view part = rest.substr(0, plus);
    const std::size_t dash = part.find('-');
    const std::uint16_t first = number(part.substr(0, dash));
    const std::uint16_t last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    if (first == 0 || last < first) {
      return fail(fmt::format("'{}' names no VLANs from 1 to {}", text, kVlanLast));
    }
    for (std::uint16_t vlan = first; vlan <= last; ++vlan) {
      if (std::ranges::find(vlans, vlan) != vlans.end()) {
        return fail(fmt::format("'{}' names VLAN {} twice", text, vlan));
      }
      vlans.push_back(vlan);
    }
    if (plus == std::string_view::npos) {
      return vlans;
    }
    rest.remove_prefix(plus + 1);
  }
}

std::string vlans_text(const std::vector<std::uint16_t>& vlans) {
  std::string text;
  for (std::size_t i = 0; i < vlans.size();) {
    std::size_t last = i;
    while (last + 1 < vlans.size() && vlans[last + 1] == vlans[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : "+";
    text += last == i ? fmt::to_string(vlans[i]) : fmt::format("{}-{}", vlans[i], vlans[last]);
    i = last + 1;
  }
  return text;
}

Result<> parse_addresses(std::string_view text, NetOptions& net) {
  net.checks_ip = true;
  net.ipv4.clear();
  net.ipv6.clear();
  for (std::string_view rest = text;;) {
    const std::size_t plus = rest.find_first_of("+,");
    const std::string part(rest.substr(0, plus));
    NetIpv4 four{};
    NetIpv6 six{};
    if (inet_pton(AF_INET, part.c_str(), four.data()) == 1) {
      net.ipv4.push_back(four);
    } else if (inet_pton(AF_INET6, part.c_str(), six.data()) == 1) {
      net.ipv6.push_back(six);
    } else {
      return fail(fmt::format("'{}' is no IP address", part));
    }
    if (plus == std::string_view::npos) {
      return {};
    }
    rest.remove_prefix(plus + 1);
  }
}

std::string addresses_text(const NetOptions& net) {
  std::string text;
  char word[INET6_ADDRSTRLEN] = {};
  const auto add = [&](int family, const void* address) {
    text += text.empty() ? "" : "+";
    text += inet_ntop(family, address, word, sizeof word);
  };
  for (const NetIpv4& address : net.ipv4) {
    add(AF_INET, address.data());
  }
  for (const NetIpv6& address : net.ipv6) {
    add(AF_INET6, address.data());
  }
  return text;
}

Result<NetMac> parse_mac(std::string_view text) {
  constexpr std::size_t kTextBytes = 3 * spec::kMacBytes - 1;
  NetMac mac{};
  bool good = text.size() == kTextBytes;
  for (std::size_t i = 0; good && i < mac.size(); ++i) {
    const std::string_view byte = text.substr(3 * i, 2);
    const auto [end, error] = std::from_chars(byte.data(), byte.data() + byte.size(), mac[i], 16);
    good = error == std::errc{} && end == byte.data() + byte.size() &&
           (i + 1 == mac.size() || text[3 * i + 2] == ':' || text[3 * i + 2] == '-');
  }
  if (!good || (mac[0] & kGroupAddress) != 0 || mac == NetMac{}) {
    return fail(fmt::format("'{}' is no address of one card", text));
  }
  return mac;
}

std::string mac_text(const NetMac& mac) {
  return fmt::format("{:02x}", fmt::join(mac, ":"));
}

NetMac default_mac(const NetOptions& net, std::string_view host) {
  std::uint64_t hash = hash_of(hash_of(hash_of(0xcbf29ce484222325, net.name), net.socket), host);
  // The last bytes of the text reach all bits only by this (the finalizer of MurmurHash3).
  for (const std::uint64_t factor : {0xff51afd7ed558ccdU, 0xc4ceb9fe1a85ec53U}) {
    hash = (hash ^ (hash >> 33U)) * factor;
  }
  hash ^= hash >> 33U;
  NetMac mac{};
  for (std::size_t i = 0; i < mac.size(); ++i) {
    mac[i] = static_cast<std::uint8_t>(hash >> (8 * i));
  }
  mac[0] = static_cast<std::uint8_t>((mac[0] & ~kGroupAddress) | kLocalAddress);
  return mac;
}

std::string host_identity() {
  std::string id;
  if (std::ifstream file("/etc/machine-id"); std::getline(file, id) && !id.empty() && id != "uninitialized") {
    return id;
  }
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace ringway
