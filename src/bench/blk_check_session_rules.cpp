// Rules about the session: features, configuration, memory, acknowledgements, reconnects (vhost-user.rst; virtio 1.3 §5.2.3
// ff).
#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <vector>

#include "bench/blk_check_rules.hpp"

namespace ringway::blk_check {
namespace {

using vhost_user::FrontEnd;
using vhost_user::Request;

std::vector<std::byte> bytes_of_value(std::uint64_t value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

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

Result<Verdict> config_pieces(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  FrontEnd& front_end = session.driver().front_end();
  RW_TRY_ASSIGN(const std::vector<std::byte> whole, front_end.get_config(0, 60));
  for (const std::uint32_t offset : {0U, 8U, 20U, 34U, 56U}) {
    for (const std::uint32_t bytes : {1U, 2U, 4U}) {
      if (offset + bytes > whole.size()) {
        continue;
      }
      RW_TRY_ASSIGN(const std::vector<std::byte> piece, front_end.get_config(offset, bytes));
      if (std::memcmp(piece.data(), whole.data() + offset, bytes) != 0) {
        return failed(fmt::format("{} bytes at offset {} are not what the whole holds there", bytes, offset));
      }
    }
  }
  return pass("pieces of 1, 2 and 4 bytes agree with the whole");
}

Result<Verdict> config_edges(const Context& context) {
  std::size_t answered = 0, refused = 0;
  struct Case {
    std::uint32_t offset, bytes;
  };
  for (const Case one : {Case{0, 256}, Case{255, 1}, Case{256, 0}, Case{0, 0}, Case{250, 100}, Case{0xffffffffU, 8}}) {
    RW_TRY_ASSIGN(Session session, context.open());
    // Refusal is an empty payload or a closed connection; what must not be is silence or the end of the back-end.
    session.driver().front_end().get_config(one.offset, one.bytes) ? ++answered : ++refused;
  }
  RW_TRY_ASSIGN(Session next, context.open());
  return next.alive() ? pass(fmt::format("{} odd ranges answered, {} refused; the next session works", answered, refused))
                      : failed("the next session doesn't work");
}

Result<Verdict> one_reply(const Context& context) {
  if (!context.offers_protocol(vhost_user::kProtocolReplyAck)) {
    return skip("PROTOCOL_F_REPLY_ACK is not offered");
  }
  RW_TRY_ASSIGN(Session session, context.open());
  FrontEnd& front_end = session.driver().front_end();
  const std::uint32_t flags = vhost_user::kVersion | vhost_user::kFlagNeedReply;
  for (int i = 0; i < 10; ++i) {
    RW_TRY(front_end.send(static_cast<std::uint32_t>(Request::set_features), flags,
                          bytes_of_value(session.driver().negotiated().features)));
    RW_TRY_ASSIGN(const vhost_user::Message answer, front_end.receive());
    if (answer.header.request != static_cast<std::uint32_t>(Request::set_features) || answer.payload.size() != 8) {
      return failed(fmt::format("answered by message {} of {} bytes", answer.header.request, answer.payload.size()));
    }
  }
  // A second reply to any of them would now come instead of the features.
  RW_TRY_ASSIGN(const std::uint64_t offered, front_end.get_features());
  if (offered != context.offered) {
    return failed("one reply too many");
  }
  // A message with a reply of its own, asked for an acknowledgement: still one.
  RW_TRY(front_end.send(static_cast<std::uint32_t>(Request::get_features), flags, {}));
  RW_TRY_ASSIGN(const vhost_user::Message answer, front_end.receive());
  RW_TRY_ASSIGN(const std::uint64_t again, front_end.get_features());
  return answer.payload.size() == 8 && again == context.offered ? pass("SET_FEATURES 10 times, GET_FEATURES: one reply each")
                                                                : failed("GET_FEATURES with NEED_REPLY: not one reply");
}

Result<Verdict> unknown_message(const Context& context) {
  {
    RW_TRY_ASSIGN(Session session, context.open());
    FrontEnd& front_end = session.driver().front_end();
    RW_TRY(front_end.send(200, vhost_user::kVersion | vhost_user::kFlagNeedReply, bytes_of_value(0)));
    const Result<vhost_user::Message> answer = front_end.receive(context.options.answer_limit);
    std::uint64_t value = 0;
    if (answer && answer->payload.size() == sizeof value) {
      std::memcpy(&value, answer->payload.data(), sizeof value);
      if (value == 0 && context.offers_protocol(vhost_user::kProtocolReplyAck)) {
        return failed("message 200 was acknowledged with success");
      }
    } else if (!answer && !session.driver().peer_closed()) {
      return failed("message 200 with NEED_REPLY got neither an answer nor an end of the session");
    }
  }
  RW_TRY_ASSIGN(Session next, context.open());
  return next.alive() ? pass("message 200: an error or the end of the session; the next session works")
                      : failed("the next session doesn't work");
}

Result<Verdict> replace_memory(const Context& context) {
  BlkDriverOptions options = context.driver_options();
  options.data_regions = 3;
  RW_TRY_ASSIGN(Session session, Session::open(options, context.options.answer_limit));
  const std::vector<FrontEnd::Region> all = session.driver().memory_table();
  for (std::size_t count = all.size(); count >= 1; --count) {
    RW_TRY_ASSIGN(const std::uint32_t base, session.driver().stop_queue(0));
    RW_TRY(session.driver().front_end().set_mem_table(std::span(all).first(count)));
    RW_TRY(session.driver().start_queue(0, base));
    if (!session.alive()) {
      return failed(fmt::format("no read works after a table of {} region(s)", count));
    }
  }
  const SharedBlock gone = session.queue().buffer(2);
  const DriverBuffer data{gone.guest, session.driver().block_bytes(), true};
  const Answer answer = session.request(spec::kBlkTypeIn, 0, {&data, 1});
  return answer.ok() ? failed("a read into a region that the table no longer has: " + describe(answer))
                     : pass("tables of 4 to 1 regions; a read into a region that is gone: " + describe(answer));
}

Result<Verdict> several_regions(const Context& context) {
  BlkDriverOptions options = context.driver_options();
  options.data_regions = 7;
  RW_TRY_ASSIGN(Session session, Session::open(options, context.options.answer_limit));
  for (std::uint32_t i = 0; i < 14; ++i) {
    const DriverBuffer data{session.queue().buffer(i).guest, session.driver().block_bytes(), true};
    const Answer answer = session.request(spec::kBlkTypeIn, 0, {&data, 1});
    if (!answer.ok()) {
      return failed(fmt::format("a read into data region {}: {}", i % 7, describe(answer)));
    }
  }
  return pass("8 regions in one table, a read into each");
}

Result<Verdict> memory_slots(const Context& context) {
  if (!context.offers_protocol(vhost_user::kProtocolConfigureMemSlots)) {
    return skip("PROTOCOL_F_CONFIGURE_MEM_SLOTS is not offered");
  }
  BlkDriverOptions options = context.driver_options();
  options.memory_slots = true;
  options.data_regions = 12;
  RW_TRY_ASSIGN(Session session, Session::open(options, context.options.answer_limit));
  RW_TRY_ASSIGN(const std::uint64_t slots, session.driver().front_end().get_max_mem_slots());
  for (std::uint32_t i = 0; i < 12; ++i) {
    const DriverBuffer data{session.queue().buffer(i).guest, session.driver().block_bytes(), true};
    if (const Answer answer = session.request(spec::kBlkTypeIn, 0, {&data, 1}); !answer.ok()) {
      return failed(fmt::format("a read into slot {}: {}", i + 1, describe(answer)));
    }
  }
  const std::vector<FrontEnd::Region> table = session.driver().memory_table();
  RW_TRY(session.driver().front_end().rem_mem_reg(table.back()));
  RW_TRY(session.driver().front_end().add_mem_reg(table.back()));
  const DriverBuffer data{session.queue().buffer(11).guest, session.driver().block_bytes(), true};
  const Answer answer = session.request(spec::kBlkTypeIn, 0, {&data, 1});
  return answer.ok() ? pass(fmt::format("13 of {} slots used, one removed and added again", slots))
                     : failed("a read into a slot that was removed and added again: " + describe(answer));
}

Result<Verdict> reconnect_under_load(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  const DriverBuffer data = session.at(0, session.driver().block_bytes());
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t i = 0; i < 32; ++i) {
      static_cast<void>(
          session.queue().submit({.type = spec::kBlkTypeIn, .sector = 0, .token = i, .data = {&data, 1}, .ranges = {}}));
    }
    session.queue().publish_and_kick();
    RW_TRY(session.driver().reconnect(BlkDriver::Rings::reset));
    if (!session.alive()) {
      return failed(fmt::format("no read works after reconnect {}", round));
    }
  }
  return pass("20 disconnects with 32 reads in flight");
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
    {"features fit together", "virtio 5.2.3, 6", false, false, features},
    {"configuration is plausible", "virtio 5.2.4", false, false, config_values},
    {"configuration in pieces", "vhost-user, GET_CONFIG", false, false, config_pieces},
    {"configuration at its edges", "vhost-user, GET_CONFIG", false, false, config_edges},
    {"write cache mode", "virtio 5.2.5", false, true, write_cache},
    {"REPLY_ACK gives one reply", "vhost-user, REPLY_ACK", false, false, one_reply},
    {"unknown message", "vhost-user, Communication", false, false, unknown_message},
    {"several memory regions", "vhost-user, SET_MEM_TABLE", false, false, several_regions},
    {"memory table replaced", "vhost-user, SET_MEM_TABLE", false, false, replace_memory},
    {"memory slots", "vhost-user, ADD_MEM_REG, REM_MEM_REG", false, false, memory_slots},
    {"reconnects with requests in flight", "vhost-user, Starting and stopping rings", false, false, reconnect_under_load},
};

}  // namespace

std::span<const Rule> session_rules() {
  return kSessionRules;
}

}  // namespace ringway::blk_check
