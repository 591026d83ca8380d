// Rules about the session: features, configuration, memory, acknowledgements, reconnects (vhost-user.rst; virtio 1.3 §5.1.3
// ff).
#include <fmt/core.h>

#include <algorithm>

#include "bench/net_check_rules.hpp"

namespace ringway::net_check {
namespace {

struct FeatureName {
  std::uint64_t bit;
  const char* name;
};
constexpr FeatureName kNetFeatureNames[] = {
    {spec::kNetGuestTso4, "GUEST_TSO4"},
    {spec::kNetGuestTso6, "GUEST_TSO6"},
    {spec::kNetGuestEcn, "GUEST_ECN"},
    {spec::kNetGuestUfo, "GUEST_UFO"},
    {spec::kNetGuestUso4, "GUEST_USO4"},
    {spec::kNetGuestUso6, "GUEST_USO6"},
    {spec::kNetHostTso4, "HOST_TSO4"},
    {spec::kNetHostTso6, "HOST_TSO6"},
    {spec::kNetHostEcn, "HOST_ECN"},
    {spec::kNetHostUfo, "HOST_UFO"},
    {spec::kNetHostUso, "HOST_USO"},
    {spec::kNetCtrlRx, "CTRL_RX"},
    {spec::kNetCtrlVlan, "CTRL_VLAN"},
    {spec::kNetCtrlRxExtra, "CTRL_RX_EXTRA"},
    {spec::kNetGuestAnnounce, "GUEST_ANNOUNCE"},
    {spec::kNetMq, "MQ"},
    {spec::kNetCtrlMacAddr, "CTRL_MAC_ADDR"},
    {spec::kNetCtrlGuestOffloads, "CTRL_GUEST_OFFLOADS"},
    {spec::kNetNotfCoal, "NOTF_COAL"},
    {spec::kNetVqNotfCoal, "VQ_NOTF_COAL"},
    {spec::kNetHashReport, "HASH_REPORT"},
    {spec::kNetRss, "RSS"},
};

Result<Verdict> net_features(const Context& context) {
  std::string wrong;
  if (!context.offers(spec::kFeatureVersion1)) {
    wrong += " no VERSION_1;";
  }
  const std::uint64_t offered = context.offered & kNetDriverFeatures;
  const std::uint64_t baseless = offered & ~net_features_with_requirements(offered, false);
  for (const FeatureName& feature : kNetFeatureNames) {
    if ((baseless & feature.bit) != 0) {
      wrong += fmt::format(" {} without what it requires;", feature.name);
    }
  }
  if (context.offers(spec::kNetRscExt) && (context.offered & (spec::kNetHostTso4 | spec::kNetHostTso6)) == 0) {
    wrong += " RSC_EXT without HOST_TSO4 or HOST_TSO6;";
  }
  if (context.offers(spec::kNetMq) && !context.offers_protocol(vhost_user::kProtocolMq)) {
    wrong += " MQ without PROTOCOL_F_MQ;";
  }
  const std::string seen = fmt::format("features {:#x}, protocol features {:#x}", context.offered, context.protocol_offered);
  return wrong.empty() ? pass(seen) : failed(seen + ":" + wrong);
}

Result<Verdict> net_config_values(const Context& context) {
  if (!context.has_config) {
    return skip("PROTOCOL_F_CONFIG is not offered: the configuration is the front-end's");
  }
  constexpr std::uint16_t kMtuMin = 68;
  constexpr std::uint8_t kGroup = 1;
  const spec::NetConfig& config = context.config;
  std::string wrong;
  if (context.offers(spec::kNetMac) &&
      ((config.mac[0] & kGroup) != 0 || std::ranges::all_of(config.mac, [](std::uint8_t byte) { return byte == 0; }))) {
    wrong += " the MAC is a group's, or zero;";
  }
  if (context.offers(spec::kNetStatus) && (config.status & ~(spec::kNetStatusLinkUp | spec::kNetStatusAnnounce)) != 0) {
    wrong += " status with unknown bits;";
  }
  if ((context.offered & (spec::kNetMq | spec::kNetRss)) != 0) {
    if (config.max_virtqueue_pairs < spec::kNetMqPairsMin || config.max_virtqueue_pairs > spec::kNetMqPairsMax) {
      wrong += " max_virtqueue_pairs out of 1 to 0x8000;";
    }
    if (config.max_virtqueue_pairs > context.queues_offered) {
      wrong += " max_virtqueue_pairs beyond GET_QUEUE_NUM, which for a network card are pairs;";
    }
  }
  if (context.offers(spec::kNetMtu) && config.mtu < kMtuMin) {
    wrong += " an MTU below 68;";
  }
  if (context.offers(spec::kNetSpeedDuplex) &&
      ((config.speed > INT32_MAX && config.speed != spec::kNetSpeedUnknown) ||
       (config.duplex > spec::kNetDuplexFull && config.duplex != spec::kNetDuplexUnknown))) {
    wrong += " speed or duplex out of range;";
  }
  if ((context.offered & (spec::kNetRss | spec::kNetHashReport)) != 0 &&
      config.rss_max_key_size < spec::kNetRssKeyBytesMax) {
    wrong += " a hash key of less than 40 bytes;";
  }
  if ((context.offered & (spec::kNetRss | spec::kNetHashReport)) != 0 && config.supported_hash_types == 0) {
    wrong += " no hash types;";
  }
  if (context.offers(spec::kNetRss) && config.rss_max_indirection_table_length < 128) {
    wrong += " an RSS table of less than 128 entries;";
  }
  const std::string seen = fmt::format(
      "MAC {:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}, status {}, {} pair(s) of {}, MTU {}", config.mac[0], config.mac[1],
      config.mac[2], config.mac[3], config.mac[4], config.mac[5], config.status, context.pairs_offered,
      context.queues_offered, context.offers(spec::kNetMtu) ? fmt::format("{}", config.mtu) : std::string("not offered"));
  return wrong.empty() ? pass(seen) : failed(seen + ":" + wrong);
}

template <Result<Verdict> (*kRule)(const check::Backend& backend)>
Result<Verdict> with_config(const Context& context) {
  return context.has_config
             ? kRule(context.backend())
             : Result<Verdict>(skip("PROTOCOL_F_CONFIG is not offered: the configuration is the front-end's"));
}

constexpr Rule kNetSessionRules[] = {
    {"features fit together", "virtio 2.2.1, 5.1.3.1", false, Needs::nothing, net_features},
    {"configuration is plausible", "virtio 5.1.4", false, Needs::nothing, net_config_values},
    {"configuration in pieces", "vhost-user, GET_CONFIG", false, Needs::nothing, with_config<check::config_in_pieces>},
    {"configuration at its edges", "vhost-user, GET_CONFIG", false, Needs::nothing, with_config<check::config_at_its_edges>},
    {"REPLY_ACK gives one reply", "vhost-user, REPLY_ACK", false, Needs::nothing, shared<check::one_reply>},
    {"unknown message", "vhost-user, Communication", false, Needs::nothing, shared<check::unknown_message>},
    {"several memory regions", "vhost-user, SET_MEM_TABLE", false, Needs::nothing, shared<check::several_regions>},
    {"memory table replaced", "vhost-user, SET_MEM_TABLE", false, Needs::nothing, shared<check::memory_replaced>},
    {"memory slots", "vhost-user, ADD_MEM_REG, REM_MEM_REG", false, Needs::nothing, shared<check::memory_slots>},
    {"reconnects with frames in flight", "vhost-user, Starting and stopping rings", false, Needs::nothing,
     shared<check::reconnects_under_load>},
};

}  // namespace

std::span<const Rule> session_rules() {
  return kNetSessionRules;
}

}  // namespace ringway::net_check
