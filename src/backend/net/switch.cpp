#include "backend/net/switch.hpp"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <utility>

#include "backend/net/switch_channel.hpp"
#include "backend/net/switch_fabric.hpp"
#include "base/check.hpp"

namespace ringway {
namespace {

constexpr std::uint16_t kDefaultVlan = 1;
constexpr std::size_t kAddressesMin = 64;
constexpr std::size_t kAddressesMax = std::size_t{1} << 22U;

class SwitchPort final : public NetPort {
 public:
  SwitchPort(std::shared_ptr<SwitchFabric> fabric, SwitchFabric::Attached port, std::shared_ptr<const SwitchRules> rules,
             std::uint32_t pairs_max)
      : fabric_(std::move(fabric)), port_(port), rules_(std::move(rules)) {
    info_.kind = "switch";
    info_.pairs_max = pairs_max;
    info_.borrows = true;
    info_.steering_types = kNetHashTypesAll;
    // A receiver makes up for what its guest can't take.
    info_.host_offloads =
        spec::kNetCsum | spec::kNetHostTso4 | spec::kNetHostTso6 | spec::kNetHostEcn | spec::kNetHostUfo | spec::kNetHostUso;
    info_.guest_offloads = spec::kNetGuestCsum | spec::kNetGuestTso4 | spec::kNetGuestTso6 | spec::kNetGuestEcn |
                           spec::kNetGuestUfo | spec::kNetGuestUso4 | spec::kNetGuestUso6;
  }
  SwitchPort(const SwitchPort&) = delete;
  SwitchPort& operator=(const SwitchPort&) = delete;
  ~SwitchPort() override { fabric_->detach(port_.port); }

  [[nodiscard]] const NetPortInfo& info() const noexcept override { return info_; }
  [[nodiscard]] Result<> steer(const std::optional<NetSteering>& by) override {
    fabric_->place(port_.port).steer_by(by);
    return {};
  }
  [[nodiscard]] Result<std::unique_ptr<NetChannel>> open_channel(const Pair& pair) override {
    RW_CHECK(pair.index < info_.pairs_max);
    RW_TRY_ASSIGN(std::unique_ptr<NetChannel> channel, SwitchChannel::open(pair, *fabric_, port_, rules_));
    return channel;
  }

 private:
  const std::shared_ptr<SwitchFabric> fabric_;
  const SwitchFabric::Attached port_;
  const std::shared_ptr<const SwitchRules> rules_;
  NetPortInfo info_;
};

Result<SwitchVlans> vlans_of(const SwitchPortOptions& options) {
  SwitchVlans vlans{.trunk = !options.trunk.empty()};
  const auto add = [&](std::uint16_t vlan) -> Result<> {
    if (vlan == 0 || vlan > kVlanMax) {
      return fail("VLAN " + std::to_string(vlan) + " must be between 1 and " + std::to_string(kVlanMax));
    }
    vlans.add(vlan);
    return {};
  };
  for (const std::uint16_t vlan : options.trunk) {
    RW_TRY(add(vlan));
  }
  if (options.vlan || !vlans.trunk) {
    vlans.native = options.vlan.value_or(kDefaultVlan);
    RW_TRY(add(vlans.native));
  }
  return vlans;
}

Result<std::shared_ptr<const SwitchRules>> rules_of(const SwitchPortOptions& options) {
  RW_TRY_ASSIGN(const SwitchVlans vlans, vlans_of(options));
  auto rules = std::make_shared<SwitchRules>(SwitchRules{.vlans = vlans,
                                                         .isolated = options.isolated,
                                                         .macs = {},
                                                         .checks_ip = options.checks_ip,
                                                         .ipv4 = options.ipv4,
                                                         .ipv6 = options.ipv6});
  for (const NetMac& mac : options.macs) {
    if ((mac[0] & 1U) != 0) {
      return fail("a group address can't be a port's own; the lowest bit of the first byte of each of its MACs must be 0");
    }
    rules->macs.push_back(switch_mac(std::as_bytes(std::span(mac))));
  }
  if (!options.checks_ip && !(options.ipv4.empty() && options.ipv6.empty())) {
    return fail("a port has IP addresses, but isn't to check them");
  }
  std::ranges::sort(rules->macs);
  std::ranges::sort(rules->ipv4);
  std::ranges::sort(rules->ipv6);
  return rules;
}

}  // namespace

Result<std::unique_ptr<Switch>> Switch::create(const SwitchOptions& options) {
  const auto wrong = [&](const std::string& what) { return fail("switch '" + options.name + "': " + what); };
  if (!std::has_single_bit(options.addresses) || options.addresses < kAddressesMin || options.addresses > kAddressesMax) {
    return wrong("addresses=" + std::to_string(options.addresses) + " must be a power of two between " +
                 std::to_string(kAddressesMin) + " and " + std::to_string(kAddressesMax));
  }
  if (options.addresses_per_port == 0 || options.addresses_per_port > options.addresses) {
    return wrong("one port can know between 1 and all " + std::to_string(options.addresses) + " addresses, not " +
                 std::to_string(options.addresses_per_port));
  }
  const std::int64_t seconds = options.ageing.ns / Duration::seconds(1).ns;
  if (seconds < 1 || seconds > INT32_MAX) {
    return wrong("addresses must be kept for a second at least, and 68 years at most");
  }
  std::uint64_t secret = options.secret.value_or(0);
  if (!options.secret && getrandom(&secret, sizeof secret, 0) != static_cast<ssize_t>(sizeof secret)) {
    return fail_errno(errno, "switch '" + options.name + "' needs a random number");
  }
  auto fabric = std::make_shared<SwitchFabric>(options.name,
                                               SwitchTable::Options{.entries = options.addresses,
                                                                    .entries_per_port = options.addresses_per_port,
                                                                    .ageing_seconds = static_cast<std::uint32_t>(seconds),
                                                                    .secret = secret});
  return std::unique_ptr<Switch>(new Switch(std::move(fabric)));
}

Switch::Switch(std::shared_ptr<SwitchFabric> fabric) : fabric_(std::move(fabric)) {}

Switch::~Switch() = default;

Result<std::unique_ptr<NetPort>> Switch::attach(const SwitchPortOptions& options) {
  if (options.pairs_max == 0 || options.pairs_max > kSwitchPairsMax) {
    return fail("a port of switch '" + fabric_->name + "' has between 1 and " + std::to_string(kSwitchPairsMax) +
                " queue pairs, not " + std::to_string(options.pairs_max));
  }
  auto rules = rules_of(options);
  if (!rules) {
    return fail("a port of switch '" + fabric_->name + "': " + rules.error().message);
  }
  RW_TRY_ASSIGN(const SwitchFabric::Attached port, fabric_->attach(**rules));
  return std::make_unique<SwitchPort>(fabric_, port, std::move(*rules), options.pairs_max);
}

const std::string& Switch::name() const noexcept {
  return fabric_->name;
}

SwitchStats Switch::stats() const {
  SwitchStats stats;
  fabric_->for_each_seat([&](const SwitchSeat& seat) {
    ++stats.workers;
    stats.strays += seat.strays();
  });
  fabric_->for_each_port([&](std::uint16_t port) { stats.addresses.push_back(fabric_->table.taken(port)); });
  return stats;
}

const char* to_string(SwitchDrop drop) noexcept {
  constexpr std::array<const char*, kSwitchDrops> kNames{"none",        "malformed",    "reserved",  "vlan",
                                                         "spoofed_mac", "spoofed_ip",   "isolated",  "unreachable",
                                                         "pool_empty",  "credit_spent", "inbox_full"};
  return kNames[static_cast<std::size_t>(drop)];
}

}  // namespace ringway
