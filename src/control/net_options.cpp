#include "control/net_options.hpp"

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
                                       {"source", net.source_bytes != 0}}) {
    if (is_given) {
      given.emplace_back(name);
    }
  }
  if (given.empty()) {
    return fail(fmt::format("a network card needs a port for its frames: {}, {}, {} or {}",
                            written(notation, "tap", "<interface>"), written(notation, "null"), written(notation, "loop"),
                            written(notation, "source")));
  }
  if (given.size() > 1) {
    return fail(fmt::format("a network card has one port for its frames, and {} are given; leave all but one out",
                            fmt::join(given, " and ")));
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
  if (!net.tap.empty()) {
    return "tap " + net.tap;
  }
  if (!net.fds.empty()) {
    return fmt::format("tap of descriptors {}", fmt::join(net.fds, ":"));
  }
  if (net.source_bytes != 0) {
    return fmt::format("source of {} bytes", net.source_bytes);
  }
  return net.null ? "null" : net.loop ? "loop" : "";
}

std::string default_net_name(const NetOptions& net) {
  const std::string text = port_text(net);
  return device_name_from(net.tap.empty() ? text.substr(0, text.find(' ')) : net.tap, "net");
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
