#include "request/net_filter.hpp"

namespace ringway {

NetReceiveFilter::NetReceiveFilter(const NetDriverState& state, std::uint64_t features) noexcept
    : broadcast_(!state.no_broadcast),
      has_rss_(state.rss.has_value()),
      pairs_(state.pairs),
      own_address_(to_number(state.mac)),
      vlans_(state.vlans),
      unicast_(state.unicast),
      multicast_(state.multicast),
      rss_(state.rss.value_or(NetRssTable{})) {
  const bool says_what_it_wants = (features & spec::kNetCtrlRx) != 0;
  const bool filters_vlans = (features & spec::kNetCtrlVlan) != 0;
  unicast_.all |= !says_what_it_wants || state.all_unicast || !state.mac_known;
  multicast_.all |= !says_what_it_wants || state.all_multicast;
  // What is suppressed is so even where all is asked for.
  if (state.no_unicast) {
    own_address_ = kNoAddress;
    unicast_ = {};
  }
  if (state.no_multicast) {
    multicast_ = {};
  }
  if (!filters_vlans) {
    vlans_.fill(~0ULL);
  }
  // Id 0 is a priority, and no VLAN that one could be in or not.
  vlans_[0] |= 1;
  everything_ =
      (says_what_it_wants && state.promiscuous) || (unicast_.all && multicast_.all && broadcast_ && !filters_vlans);
}

NetReceiveFilter::AddressSet::AddressSet(const NetMacTable& table) noexcept : all(table.all), count(table.count) {
  std::transform(table.entries.begin(), table.entries.begin() + count, sorted.begin(), to_number);
  std::sort(sorted.begin(), sorted.begin() + count);
}

std::uint64_t NetReceiveFilter::to_number(const NetMac& mac) noexcept {
  std::uint64_t number = 0;
  std::memcpy(&number, mac.data(), mac.size());
  return number;
}

}  // namespace ringway
