// Rules about the session: features, configuration, memory, acknowledgements, reconnects (vhost-user.rst; virtio 1.3 §5.2.3
// ff).
#include <fmt/core.h>

#include <bit>
#include <cstddef>

#include "bench/blk_check_rules.hpp"

namespace ringway::blk_check {
namespace {

Result<Verdict> features(const Context& context) {
  std::string wrong;
  if (!context.offers(spec::kFeatureVersion1)) {
    wrong += " no VERSION_1;";
  }
  if (context.queues_offered > 1 && !context.offers(spec::kBlkMq)) {
    wrong += " several queues without BLK_F_MQ;";
  }
  if (context.offers(spec::kBlkMq) && !context.offers_protocol(vhost_user::kProtocolMq)) {
    wrong += " BLK_F_MQ without PROTOCOL_F_MQ;";
  }
  if (context.offers(spec::kBlkConfigWce) && !context.offers(spec::kBlkFlush)) {
    wrong += " CONFIG_WCE without FLUSH;";
  }
  const std::string seen = fmt::format("features {:#x}, protocol features {:#x}", context.offered, context.protocol_offered);
  return wrong.empty() ? pass(seen) : failed(seen + ":" + wrong);
}

Result<Verdict> config_values(const Context& context) {
  const spec::BlkConfig& config = context.config;
  std::string wrong;
  if (config.capacity == 0) {
    wrong += " capacity 0;";
  }
  if (context.offers(spec::kBlkBlkSize) && (config.blk_size < spec::kSectorBytes || !std::has_single_bit(config.blk_size))) {
    wrong += " blk_size no power of two from 512 on;";
  }
  if (context.offers(spec::kBlkSegMax) && config.seg_max == 0) {
    wrong += " seg_max 0;";
  }
  if (context.offers(spec::kBlkSizeMax) && config.size_max == 0) {
    wrong += " size_max 0;";
  }
  if (context.offers(spec::kBlkMq) && config.num_queues == 0) {
    wrong += " num_queues 0;";
  }
  if (context.offers(spec::kBlkMq) && config.num_queues > context.queues_offered) {
    wrong += " num_queues beyond GET_QUEUE_NUM;";
  }
  if (context.offers(spec::kBlkDiscard) && (config.max_discard_sectors == 0 || config.max_discard_seg == 0)) {
    wrong += " DISCARD with a limit of 0;";
  }
  if (context.offers(spec::kBlkWriteZeroes) && (config.max_write_zeroes_sectors == 0 || config.max_write_zeroes_seg == 0)) {
    wrong += " WRITE ZEROES with a limit of 0;";
  }
  const std::string seen = fmt::format("capacity {} sectors, blk_size {}, seg_max {}, num_queues {}", config.capacity,
                                       config.blk_size, config.seg_max, config.num_queues);
  return wrong.empty() ? pass(seen) : failed(seen + ":" + wrong);
}

Result<Verdict> write_cache(const Context& context) {
  if (!context.offers(spec::kBlkConfigWce)) {
    return skip("VIRTIO_BLK_F_CONFIG_WCE is not offered");
  }
  RW_TRY_ASSIGN(Session session, context.open());
  const std::uint32_t offset = offsetof(spec::BlkConfig, writeback);
  const auto before = static_cast<std::byte>(session.driver().config().writeback);
  for (const std::byte mode : {std::byte{0}, std::byte{1}, before}) {
    RW_TRY(session.driver().front_end().set_config(offset, {&mode, 1}));
    RW_TRY(session.driver().read_config());
    if (static_cast<std::byte>(session.driver().config().writeback) != mode) {
      return failed(
          fmt::format("writeback was set to {}, but reads {}", static_cast<int>(mode), session.driver().config().writeback));
    }
  }
  return pass("write-through, writeback and back again");
}

constexpr Rule kSessionRules[] = {
    {"features fit together", "virtio 5.2.3, 6", false, Needs::nothing, features},
    {"configuration is plausible", "virtio 5.2.4", false, Needs::nothing, config_values},
    {"configuration in pieces", "vhost-user, GET_CONFIG", false, Needs::nothing, shared<check::config_in_pieces>},
    {"configuration at its edges", "vhost-user, GET_CONFIG", false, Needs::nothing, shared<check::config_at_its_edges>},
    {"write cache mode", "virtio 5.2.5", false, Needs::writing, write_cache},
    {"REPLY_ACK gives one reply", "vhost-user, REPLY_ACK", false, Needs::nothing, shared<check::one_reply>},
    {"unknown message", "vhost-user, Communication", false, Needs::nothing, shared<check::unknown_message>},
    {"several memory regions", "vhost-user, SET_MEM_TABLE", false, Needs::nothing, shared<check::several_regions>},
    {"memory table replaced", "vhost-user, SET_MEM_TABLE", false, Needs::nothing, shared<check::memory_replaced>},
    {"memory slots", "vhost-user, ADD_MEM_REG, REM_MEM_REG", false, Needs::nothing, shared<check::memory_slots>},
    {"reconnects with requests in flight", "vhost-user, Starting and stopping rings", false, Needs::nothing,
     shared<check::reconnects_under_load>},
};

}  // namespace

std::span<const Rule> session_rules() {
  return kSessionRules;
}

}  // namespace ringway::blk_check
