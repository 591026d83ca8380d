#include "request/net_control_state.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/check.hpp"

namespace ringway {
namespace {

constexpr std::uint64_t kGsoOffloads = spec::kNetGuestTso4 | spec::kNetGuestTso6 | spec::kNetGuestEcn | spec::kNetGuestUfo |
                                       spec::kNetGuestUso4 | spec::kNetGuestUso6;
constexpr std::uint64_t kGuestOffloads = kGsoOffloads | spec::kNetGuestCsum;
constexpr std::uint16_t kVlans = 4096;

// A state outlives the command, is compared and sent as it stands.
static_assert(std::is_trivially_copyable_v<NetDriverState>);

bool is_group(const NetMac& mac) noexcept {
  return (mac[0] & 1U) != 0;
}

bool is_valid(const NetHashing& hashing, const NetControlLimits& limits) noexcept {
  return (hashing.types & ~limits.hash_types) == 0 && hashing.key_bytes <= hashing.key.size() &&
         (hashing.types == 0 || hashing.key_bytes > 0);
}

bool is_valid(const NetRssTable& table, std::uint16_t pairs_available) noexcept {
  const std::size_t entries = std::size_t{table.mask} + 1;
  return entries <= table.pairs.size() && std::has_single_bit(entries) && table.unclassified_pair < pairs_available &&
         std::all_of(
             table.pairs.begin(), table.pairs.begin() + static_cast<std::ptrdiff_t>(entries),
             [pairs_available](std::uint16_t pair) { return pair < pairs_available; });
}

// One command on one state; each overload checks first and changes then.
class ControlApplication {
 public:
  ControlApplication(std::uint64_t features, const NetControlLimits& limits, NetDriverState& state) noexcept
      : features_(features),
        limits_(limits),
        state_(state),
        pairs_available_(net_pairs_available(features, limits.pairs_max)) {}

  NetControlOutcome operator()(std::monostate) noexcept { return {NetControlRefusal::unknown_command, {}}; }

  NetControlOutcome operator()(const NetSetRxMode& command) noexcept {
    const bool basic = command.mode == spec::kNetCtrlRxPromisc || command.mode == spec::kNetCtrlRxAllmulti;
    if (!negotiated(basic ? spec::kNetCtrlRx : spec::kNetCtrlRxExtra)) {
      return {NetControlRefusal::not_negotiated, {}};
    }
    switch (command.mode) {
      case spec::kNetCtrlRxPromisc:
        state_.promiscuous = command.on;
        return {};
      case spec::kNetCtrlRxAllmulti:
        state_.all_multicast = command.on;
        return {};
      case spec::kNetCtrlRxAlluni:
        state_.all_unicast = command.on;
        return {};
      case spec::kNetCtrlRxNomulti:
        state_.no_multicast = command.on;
        return {};
      case spec::kNetCtrlRxNouni:
        state_.no_unicast = command.on;
        return {};
      case spec::kNetCtrlRxNobcast:
        state_.no_broadcast = command.on;
        return {};
      default:
        return {NetControlRefusal::unknown_command, {}};
    }
  }

  NetControlOutcome operator()(const NetSetMacTables& command) noexcept {
    if (!negotiated(spec::kNetCtrlRx)) {
      return {NetControlRefusal::not_negotiated, {}};
    }
    state_.unicast = command.unicast;
    state_.multicast = command.multicast;
    return {};
  }

  // Its own feature bit alone decides: Linux sends it without CTRL_RX too.
  NetControlOutcome operator()(const NetSetMac& command) noexcept {
    if (!negotiated(spec::kNetCtrlMacAddr)) {
      return {NetControlRefusal::not_negotiated, {}};
    }
    if (is_group(command.mac) || command.mac == NetMac{}) {
      return {NetControlRefusal::bad_value, {}};
    }
    state_.mac = command.mac;
    state_.mac_known = true;
    return {};
  }

  NetControlOutcome operator()(const NetSetVlan& command) noexcept {
    if (!negotiated(spec::kNetCtrlVlan)) {
      return {NetControlRefusal::not_negotiated, {}};
    }
    if (command.id >= kVlans) {
      return {NetControlRefusal::bad_value, {}};
    }
    const std::uint64_t bit = std::uint64_t{1} << (command.id % 64U);
    std::uint64_t& word = state_.vlans[command.id / 64U];
    word = command.member ? word | bit : word & ~bit;
    return {};
  }

  NetControlOutcome operator()(const NetAckAnnounce& /*command*/) noexcept {
    if (!negotiated(spec::kNetGuestAnnounce)) {
      return {NetControlRefusal::not_negotiated, {}};
    }
    state_.announce_pending = false;
    return {};
  }

  NetControlOutcome operator()(const NetSetPairs& command) noexcept {
    if (!negotiated(spec::kNetMq)) {
      return {NetControlRefusal::not_negotiated, {}};
    }
    if (!is_pair_count(command.pairs)) {
      return {NetControlRefusal::bad_value, {}};
    }
    state_.pairs = command.pairs;
    state_.rss.reset();
    return {};
  }

  // Entries are checked against the pairs that there are, not against those in use: the command itself says which these
  // are, and Linux sends a table for all pairs before it brings up the last of them.
  NetControlOutcome operator()(const NetConfigureRss& command) noexcept {
    if (!negotiated(spec::kNetRss)) {
      return {NetControlRefusal::not_negotiated, {}};
    }
    if (!is_valid(command.hashing, limits_) || !is_valid(command.table, pairs_available_) ||
        !is_pair_count(command.transmit_pairs)) {
      return {NetControlRefusal::bad_value, {}};
    }
    state_.hashing = command.hashing;
    state_.rss = command.table;
    state_.pairs = command.transmit_pairs;
    return {};
  }

  NetControlOutcome operator()(const NetConfigureHash& command) noexcept {
    if (!negotiated(spec::kNetHashReport)) {
      return {NetControlRefusal::not_negotiated, {}};
    }
    if (!is_valid(command.hashing, limits_)) {
      return {NetControlRefusal::bad_value, {}};
    }
    state_.hashing = command.hashing;
    state_.rss.reset();
    return {};
  }

  NetControlOutcome operator()(const NetSetOffloads& command) noexcept {
    if (!negotiated(spec::kNetCtrlGuestOffloads)) {
      return {NetControlRefusal::not_negotiated, {}};
    }
    if ((command.offloads & ~(features_ & kGuestOffloads)) != 0) {
      return {NetControlRefusal::bad_value, {}};
    }
    state_.guest_offloads = command.offloads;
    return {};
  }

  // Queues that are not enabled are set as well: they would get the same as their default when they come.
  NetControlOutcome operator()(const NetSetCoalescing& command) noexcept {
    if (!negotiated(spec::kNetNotfCoal)) {
      return {NetControlRefusal::not_negotiated, {}};
    }
    (command.transmit ? state_.transmit_default : state_.receive_default) = command.coalescing;
    for (std::size_t queue = command.transmit ? 1 : 0; queue < data_queues(); queue += 2) {
      state_.coalescing[queue] = command.coalescing;
    }
    return {};
  }

  NetControlOutcome operator()(const NetSetQueueCoalescing& command) noexcept {
    const NetControlRefusal refusal = check_queue(command.queue);
    if (refusal == NetControlRefusal::none) {
      state_.coalescing[command.queue] = command.coalescing;
    }
    return {refusal, {}};
  }

  NetControlOutcome operator()(const NetGetQueueCoalescing& command) noexcept {
    const NetControlRefusal refusal = check_queue(command.queue);
    return {refusal, refusal == NetControlRefusal::none ? state_.coalescing[command.queue] : NetCoalescing{}};
  }

 private:
  [[nodiscard]] bool negotiated(std::uint64_t feature) const noexcept { return (features_ & feature) != 0; }
  [[nodiscard]] bool is_pair_count(std::uint16_t pairs) const noexcept {
    return pairs >= spec::kNetMqPairsMin && pairs <= pairs_available_;
  }
  // The receive and transmit queues come first; the control queue is the one behind them.
  [[nodiscard]] std::size_t data_queues() const noexcept {
    return std::min(std::size_t{pairs_available_} * 2, state_.coalescing.size());
  }
  [[nodiscard]] NetControlRefusal check_queue(std::uint16_t queue) const noexcept {
    if (!negotiated(spec::kNetVqNotfCoal)) {
      return NetControlRefusal::not_negotiated;
    }
    const bool is_enabled = queue < data_queues() && limits_.enabled_queues[queue];
    return is_enabled ? NetControlRefusal::none : NetControlRefusal::queue_not_enabled;
  }

  std::uint64_t features_;
  const NetControlLimits& limits_;
  NetDriverState& state_;
  std::uint16_t pairs_available_;
};

// --- The form for a migration ---

constexpr std::uint32_t kStateMagic = 0x54534e52;  // "RNST"
constexpr std::uint16_t kStateVersion = 1;

constexpr std::uint16_t kFlagPromiscuous = 1U << 0U;
constexpr std::uint16_t kFlagAllMulticast = 1U << 1U;
constexpr std::uint16_t kFlagAllUnicast = 1U << 2U;
constexpr std::uint16_t kFlagNoMulticast = 1U << 3U;
constexpr std::uint16_t kFlagNoUnicast = 1U << 4U;
constexpr std::uint16_t kFlagNoBroadcast = 1U << 5U;
constexpr std::uint16_t kFlagMacKnown = 1U << 6U;
constexpr std::uint16_t kFlagRss = 1U << 7U;
constexpr std::uint16_t kFlagAnnouncePending = 1U << 8U;

struct MacTableWire {
  std::uint8_t count;
  std::uint8_t all;
  NetMac entries[limits::kNetMacTableMax];
};
struct StateWire {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t reserved;
  std::uint64_t checksum;  // of all that follows
  std::uint64_t guest_offloads;
  std::uint64_t vlans[64];
  std::uint32_t hash_types;
  std::uint16_t flags;
  std::uint16_t pairs;
  std::uint16_t rss_mask;
  std::uint16_t rss_unclassified_pair;
  std::uint16_t rss_pairs[limits::kNetRssTableMax];
  NetCoalescing receive_default;
  NetCoalescing transmit_default;
  NetCoalescing coalescing[limits::kQueuesPerDeviceMax];
  MacTableWire unicast;
  MacTableWire multicast;
  NetMac mac;
  std::uint8_t key_bytes;
  std::uint8_t key[spec::kNetRssKeyBytesMax];
  std::uint8_t reserved_end;
};
static_assert(sizeof(StateWire) == kNetDriverStateBytes);
static_assert(std::has_unique_object_representations_v<StateWire>, "no gaps");

// FNV-1a: finds what broke on the way; it is no defence against who wants to deceive, which the checks of the values are.
std::uint64_t checksum_of(const StateWire& wire) noexcept {
  constexpr std::size_t kFirst = offsetof(StateWire, guest_offloads);
  std::array<std::uint8_t, sizeof(StateWire)> bytes;
  std::memcpy(bytes.data(), &wire, sizeof wire);
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (std::size_t i = kFirst; i < bytes.size(); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  }
  return hash;
}

MacTableWire to_wire(const NetMacTable& table) noexcept {
  MacTableWire wire{};
  wire.count = table.count;
  wire.all = table.all ? 1 : 0;
  std::copy_n(table.entries.begin(), table.count, wire.entries);
  return wire;
}

NetMacTable from_wire(const MacTableWire& wire) noexcept {
  NetMacTable table;
  table.count = std::min<std::uint8_t>(wire.count, limits::kNetMacTableMax);
  table.all = wire.all != 0;
  std::copy_n(wire.entries, table.count, table.entries.begin());
  return table;
}

std::uint16_t flags_of(const NetDriverState& state) noexcept {
  std::uint16_t flags = 0;
  const auto put = [&flags](bool on, std::uint16_t flag) { flags |= on ? flag : std::uint16_t{0}; };
  put(state.promiscuous, kFlagPromiscuous);
  put(state.all_multicast, kFlagAllMulticast);
  put(state.all_unicast, kFlagAllUnicast);
  put(state.no_multicast, kFlagNoMulticast);
  put(state.no_unicast, kFlagNoUnicast);
  put(state.no_broadcast, kFlagNoBroadcast);
  put(state.mac_known, kFlagMacKnown);
  put(state.rss.has_value(), kFlagRss);
  put(state.announce_pending, kFlagAnnouncePending);
  return flags;
}

// Takes the fields over without judging them.
NetDriverState from_wire(const StateWire& wire) noexcept {
  NetDriverState state;
  state.promiscuous = (wire.flags & kFlagPromiscuous) != 0;
  state.all_multicast = (wire.flags & kFlagAllMulticast) != 0;
  state.all_unicast = (wire.flags & kFlagAllUnicast) != 0;
  state.no_multicast = (wire.flags & kFlagNoMulticast) != 0;
  state.no_unicast = (wire.flags & kFlagNoUnicast) != 0;
  state.no_broadcast = (wire.flags & kFlagNoBroadcast) != 0;
  state.mac_known = (wire.flags & kFlagMacKnown) != 0;
  state.announce_pending = (wire.flags & kFlagAnnouncePending) != 0;
  state.guest_offloads = wire.guest_offloads;
  std::copy(std::begin(wire.vlans), std::end(wire.vlans), state.vlans.begin());
  state.hashing.types = wire.hash_types;
  state.hashing.key_bytes = wire.key_bytes;
  std::copy(std::begin(wire.key), std::end(wire.key), state.hashing.key.begin());
  state.pairs = wire.pairs;
  if ((wire.flags & kFlagRss) != 0) {
    NetRssTable& table = state.rss.emplace();
    table.mask = wire.rss_mask;
    table.unclassified_pair = wire.rss_unclassified_pair;
    std::copy(std::begin(wire.rss_pairs), std::end(wire.rss_pairs), table.pairs.begin());
  }
  state.receive_default = wire.receive_default;
  state.transmit_default = wire.transmit_default;
  std::copy(std::begin(wire.coalescing), std::end(wire.coalescing), state.coalescing.begin());
  state.unicast = from_wire(wire.unicast);
  state.multicast = from_wire(wire.multicast);
  state.mac = wire.mac;
  return state;
}

// What a driver could have set only with a feature that it has not negotiated; nullptr if there is nothing like that.
const char* set_without_feature(const NetDriverState& state, std::uint64_t features) noexcept {
  const auto lacks = [features](std::uint64_t any_of) { return (features & any_of) == 0; };
  const auto is_set = [](const NetMacTable& table) { return table.count > 0 || table.all; };
  const auto is_coalescing = [](const NetCoalescing& value) { return value != NetCoalescing{}; };
  if (lacks(spec::kNetCtrlRx) &&
      (!state.promiscuous || state.all_multicast || is_set(state.unicast) || is_set(state.multicast))) {
    return "receive modes";
  }
  if (lacks(spec::kNetCtrlRxExtra) && (state.all_unicast || state.no_multicast || state.no_unicast || state.no_broadcast)) {
    return "extra receive modes";
  }
  if (lacks(spec::kNetCtrlVlan) && state.vlans != decltype(state.vlans){}) {
    return "VLANs";
  }
  if (lacks(spec::kNetRss) && state.rss.has_value()) {
    return "an RSS table";
  }
  if (lacks(spec::kNetRss | spec::kNetHashReport) && state.hashing != NetHashing{}) {
    return "hash types";
  }
  if (lacks(spec::kNetGuestAnnounce) && state.announce_pending) {
    return "an announcement";
  }
  if (lacks(spec::kNetNotfCoal) && (is_coalescing(state.receive_default) || is_coalescing(state.transmit_default))) {
    return "coalescing";
  }
  if (lacks(spec::kNetNotfCoal | spec::kNetVqNotfCoal) && std::ranges::any_of(state.coalescing, is_coalescing)) {
    return "coalescing of a queue";
  }
  return nullptr;
}

Result<> check_state(const NetDriverState& state, std::uint64_t features, const NetControlLimits& limits) {
  const std::uint16_t available = net_pairs_available(features, limits.pairs_max);
  const std::string on_this_side = "; give the device here the same options as the one it comes from";
  if (state.pairs < 1 || state.pairs > available) {
    return fail("network state: " + std::to_string(state.pairs) + " queue pairs in use, and there are " +
                std::to_string(available) + on_this_side);
  }
  if (state.rss.has_value() && !is_valid(*state.rss, available)) {
    return fail("network state: the RSS table is no power of two, or names a queue pair beyond the " +
                std::to_string(available) + " that there are" + on_this_side);
  }
  if (!is_valid(state.hashing, limits)) {
    return fail("network state: hash types that this device doesn't have, or no key for them" + on_this_side);
  }
  const std::uint64_t negotiated = features & kGuestOffloads;
  if ((state.guest_offloads & ~negotiated) != 0 ||
      ((features & spec::kNetCtrlGuestOffloads) == 0 && state.guest_offloads != negotiated)) {
    return fail("network state: the offloads are not among the negotiated ones" + on_this_side);
  }
  const auto unused = std::span(state.coalescing).subspan(std::min(std::size_t{available} * 2, state.coalescing.size()));
  if (std::ranges::any_of(unused, [](const NetCoalescing& value) { return value != NetCoalescing{}; })) {
    return fail("network state: coalescing of a queue that doesn't exist" + on_this_side);
  }
  if (is_group(state.mac)) {
    return fail("network state: the card's address is a group's; the state is damaged");
  }
  if (const char* const what = set_without_feature(state, features); what != nullptr) {
    return fail(std::string("network state: ") + what + " set without the feature for it" + on_this_side);
  }
  return {};
}

}  // namespace

NetDriverState NetDriverState::after_reset(std::uint64_t features, const NetMac& mac) noexcept {
  NetDriverState state;
  state.mac = mac;
  state.mac_known = (features & spec::kNetMac) != 0;
  state.guest_offloads = features & kGuestOffloads;
  return state;
}

NetControlOutcome apply_net_command(const NetCommand& command, std::uint64_t features, const NetControlLimits& limits,
                                    NetDriverState& state) noexcept {
  return std::visit(ControlApplication(features, limits, state), command);
}

void reset_net_queue(NetDriverState& state, std::size_t queue) noexcept {
  if (queue < state.coalescing.size()) {
    state.coalescing[queue] = queue % 2 == 0 ? state.receive_default : state.transmit_default;
  }
}

std::uint16_t net_pairs_available(std::uint64_t features, std::uint16_t pairs_max) noexcept {
  return (features & (spec::kNetMq | spec::kNetRss)) != 0 ? pairs_max : std::uint16_t{1};
}

std::uint16_t net_receiving_pairs(const NetDriverState& state) noexcept {
  if (!state.rss.has_value()) {
    return state.pairs;
  }
  const NetRssTable& table = *state.rss;
  const auto entries = std::span(table.pairs).first(std::size_t{table.mask} + 1);
  return static_cast<std::uint16_t>(std::max(table.unclassified_pair, *std::ranges::max_element(entries)) + 1);
}

std::uint64_t net_usable_offloads(std::uint64_t guest_offloads) noexcept {
  if ((guest_offloads & spec::kNetGuestCsum) == 0) {
    return guest_offloads & ~kGsoOffloads;
  }
  if ((guest_offloads & (spec::kNetGuestTso4 | spec::kNetGuestTso6)) == 0) {
    return guest_offloads & ~spec::kNetGuestEcn;
  }
  return guest_offloads;
}

std::array<std::byte, kNetDriverStateBytes> save_net_state(const NetDriverState& state) noexcept {
  StateWire wire{};
  wire.magic = kStateMagic;
  wire.version = kStateVersion;
  wire.flags = flags_of(state);
  wire.guest_offloads = state.guest_offloads;
  std::ranges::copy(state.vlans, wire.vlans);
  wire.hash_types = state.hashing.types;
  wire.key_bytes = state.hashing.key_bytes;
  std::ranges::copy(state.hashing.key, wire.key);
  wire.pairs = state.pairs;
  if (state.rss.has_value()) {
    wire.rss_mask = state.rss->mask;
    wire.rss_unclassified_pair = state.rss->unclassified_pair;
    std::copy_n(state.rss->pairs.begin(), std::size_t{state.rss->mask} + 1, wire.rss_pairs);
  }
  wire.receive_default = state.receive_default;
  wire.transmit_default = state.transmit_default;
  std::ranges::copy(state.coalescing, wire.coalescing);
  wire.unicast = to_wire(state.unicast);
  wire.multicast = to_wire(state.multicast);
  wire.mac = state.mac;
  wire.checksum = checksum_of(wire);
  return std::bit_cast<std::array<std::byte, kNetDriverStateBytes>>(wire);
}

Result<NetDriverState> load_net_state(std::span<const std::byte> bytes, std::uint64_t features,
                                      const NetControlLimits& limits) {
  if (bytes.size() != kNetDriverStateBytes) {
    return fail("network state: " + std::to_string(bytes.size()) + " bytes instead of " +
                std::to_string(kNetDriverStateBytes) + "; it is not of this program, or of another version of it");
  }
  StateWire wire;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (wire.magic != kStateMagic) {
    return fail("network state: it doesn't begin as one; it is not of this program");
  }
  if (wire.version != kStateVersion) {
    return fail("network state: version " + std::to_string(wire.version) + ", and this program knows only version " +
                std::to_string(kStateVersion) + "; use the same version on both sides");
  }
  if (wire.checksum != checksum_of(wire)) {
    return fail("network state: the checksum is wrong; it was damaged on the way, try again");
  }
  const NetDriverState state = from_wire(wire);
  RW_TRY(check_state(state, features, limits));
  // Whatever is left: unknown flags, counts too large, values where there should be zeros.
  if (!std::ranges::equal(save_net_state(state), bytes)) {
    return fail("network state: a field has a value that this program doesn't write; it was made by something else");
  }
  return state;
}

}  // namespace ringway
