// Rules about the control queue: each command is answered, and what makes no sense is refused (virtio 1.3 §5.1.6.5).
#include <fmt/core.h>

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "bench/net_check_rules.hpp"

namespace ringway::net_check {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kControlFeatures = spec::kNetCtrlVq | spec::kNetCtrlRx | spec::kNetCtrlRxExtra | spec::kNetCtrlVlan |
                                           spec::kNetCtrlMacAddr | spec::kNetGuestAnnounce | spec::kNetMq |
                                           spec::kNetCtrlGuestOffloads | spec::kNetNotfCoal | spec::kNetVqNotfCoal |
                                           spec::kNetRss | spec::kNetHashReport;

// With these features of control beside what the control queue itself needs.
Result<Session> open_control(const Context& context, std::uint64_t features, std::uint32_t pairs = 1) {
  NetDriverOptions driver = context.driver_options();
  driver.pairs = pairs;
  driver.control_queue = true;
  driver.features |= features | spec::kNetCtrlVq;
  RW_TRY_ASSIGN(Session session, context.open(driver));
  if (session.driver().control() == nullptr) {
    return fail("the control queue could not be negotiated");
  }
  session.driver().control()->set_patience(context.options.answer_limit);
  return session;
}

// What is wrong with an answer, or nothing.
std::string not_answered_with(std::uint8_t ack, const NetDriverControlQueue::Answer& answer, std::uint32_t written = 1) {
  if (!answer) {
    return answer.error().message;
  }
  if (answer->ack == NetDriverAnswer::kAckUntouched) {
    return "came back without an answer";
  }
  if (answer->ack != ack) {
    return fmt::format("answered with {}, {} expected",
                       answer->ack == spec::kNetAckOk    ? "OK"
                       : answer->ack == spec::kNetAckErr ? "ERR"
                                                         : fmt::format("{}", answer->ack),
                       ack == spec::kNetAckOk ? "OK" : "ERR");
  }
  return answer->written_bytes == written
             ? std::string()
             : fmt::format("answered, but the used length is {}; {} expected", answer->written_bytes, written);
}

NetDriverControlQueue::Answer command(Session& session, std::uint8_t control_class, std::uint8_t number,
                                      const Bytes& data = {}) {
  const std::array parts{std::span<const std::byte>(data)};
  return session.driver().control()->command(control_class, number, parts);
}

Bytes zeros(std::size_t count) {
  return Bytes(count);
}

// Whether the control queue still answers: by an unknown class, which each one has to refuse.
std::string still_answers(Session& session) {
  return not_answered_with(spec::kNetAckErr, command(session, 250, 0));
}

Result<Verdict> unknown_commands(const Context& context) {
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  struct Case {
    std::uint8_t control_class, number;
  };
  for (const Case one : {Case{7, 0},
                         {64, 1},
                         {250, 0},
                         {255, 255},
                         {spec::kNetCtrlClassRx, 100},
                         {spec::kNetCtrlClassMac, 100},
                         {spec::kNetCtrlClassVlan, 100},
                         {spec::kNetCtrlClassAnnounce, 100},
                         {spec::kNetCtrlClassMq, 100},
                         {spec::kNetCtrlClassGuestOffloads, 100},
                         {spec::kNetCtrlClassNotfCoal, 100}}) {
    for (const std::size_t bytes : {0U, 1U, 64U}) {
      if (const std::string wrong =
              not_answered_with(spec::kNetAckErr, command(session, one.control_class, one.number, zeros(bytes)));
          !wrong.empty()) {
        return failed(fmt::format("class {}, command {}, {} bytes: {}", one.control_class, one.number, bytes, wrong));
      }
    }
  }
  return pass("unknown classes, and unknown commands of each known one: ERR");
}

Result<Verdict> rx_modes(const Context& context) {
  if (!context.offers(spec::kNetCtrlRx)) {
    return skip("VIRTIO_NET_F_CTRL_RX is not offered");
  }
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  const std::uint8_t last = context.offers(spec::kNetCtrlRxExtra) ? spec::kNetCtrlRxNobcast : spec::kNetCtrlRxAllmulti;
  for (std::uint8_t mode = 0; mode <= last; ++mode) {
    for (const bool on : {true, false}) {
      if (const std::string wrong = not_answered_with(spec::kNetAckOk, session.driver().control()->set_rx_mode(mode, on));
          !wrong.empty()) {
        return failed(fmt::format("receive mode {} {}: {}", mode, on ? "on" : "off", wrong));
      }
    }
  }
  RW_TRY(session.driver().control()->set_rx_mode(spec::kNetCtrlRxPromisc, true));
  const std::string wrong = session.plain_frame();
  return wrong.empty() ? pass(fmt::format("modes 0 to {}, on and off: OK", last)) : failed("then a frame: " + wrong);
}

Result<Verdict> mac_tables(const Context& context) {
  if (!context.offers(spec::kNetCtrlRx)) {
    return skip("VIRTIO_NET_F_CTRL_RX is not offered");
  }
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  const NetDriverControlQueue::Mac unicast[] = {{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}};
  const std::vector<NetDriverControlQueue::Mac> many(300, {0x33, 0x33, 0, 0, 0, 1});
  for (const std::size_t count : {0U, 1U, 2U}) {
    for (const std::size_t group : {0U, 1U, 300U}) {
      if (const std::string wrong = not_answered_with(
              spec::kNetAckOk,
              session.driver().control()->set_mac_tables(std::span(unicast).first(count), std::span(many).first(group)));
          !wrong.empty() && group != 300) {
        return failed(fmt::format("tables of {} and {} addresses: {}", count, group, wrong));
      }
    }
  }
  const std::string wrong = still_answers(session);
  return wrong.empty() ? pass("tables of 0 to 2 and 0 to 1 addresses: OK; 300 are answered") : failed("then: " + wrong);
}

Result<Verdict> mac_address(const Context& context) {
  if (!context.offers(spec::kNetCtrlMacAddr)) {
    return skip("VIRTIO_NET_F_CTRL_MAC_ADDR is not offered");
  }
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  const spec::NetConfig before = session.driver().config();
  const NetDriverControlQueue::Mac other{2, 0x11, 0x22, 0x33, 0x44, 0x55};
  if (const std::string wrong = not_answered_with(spec::kNetAckOk, session.driver().control()->set_mac(other));
      !wrong.empty()) {
    return failed(wrong);
  }
  RW_TRY(session.driver().read_config());
  if (std::memcmp(session.driver().config().mac, other.data(), other.size()) != 0) {
    return failed("the configuration doesn't show the address that was set");
  }
  NetDriverControlQueue::Mac back{};
  std::memcpy(back.data(), before.mac, back.size());
  const std::string wrong = not_answered_with(spec::kNetAckOk, session.driver().control()->set_mac(back));
  return wrong.empty() ? pass("set, shown in the configuration, and set back") : failed("set back: " + wrong);
}

Result<Verdict> vlans(const Context& context) {
  if (!context.offers(spec::kNetCtrlVlan)) {
    return skip("VIRTIO_NET_F_CTRL_VLAN is not offered");
  }
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  for (const std::uint16_t id : {std::uint16_t{0}, std::uint16_t{1}, std::uint16_t{100}, std::uint16_t{4095}}) {
    for (const bool add : {true, true, false, false}) {
      const auto answer = add ? session.driver().control()->add_vlan(id) : session.driver().control()->delete_vlan(id);
      if (const std::string wrong = not_answered_with(spec::kNetAckOk, answer); !wrong.empty()) {
        return failed(fmt::format("VLAN {} {}: {}", id, add ? "added" : "deleted", wrong));
      }
    }
  }
  return pass("0, 1, 100 and 4095 added and deleted, each twice: OK");
}

Result<Verdict> pairs_in_range(const Context& context) {
  if (!context.offers(spec::kNetMq)) {
    return skip("VIRTIO_NET_F_MQ is not offered");
  }
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  const std::uint32_t most = session.driver().pairs_offered();
  for (const std::uint32_t pairs : {1U, most}) {
    if (const std::string wrong =
            not_answered_with(spec::kNetAckOk, session.driver().control()->set_pairs(static_cast<std::uint16_t>(pairs)));
        !wrong.empty()) {
      return failed(fmt::format("{} pair(s) of {}: {}", pairs, most, wrong));
    }
  }
  for (const std::uint32_t pairs : {0U, most + 1, 0x8001U, 0xffffU}) {
    if (const std::string wrong =
            not_answered_with(spec::kNetAckErr, session.driver().control()->set_pairs(static_cast<std::uint16_t>(pairs)));
        !wrong.empty()) {
      return failed(fmt::format("{} pairs of {}: {}", pairs, most, wrong));
    }
  }
  RW_TRY(session.driver().control()->set_pairs(1));
  const std::string wrong = session.plain_frame();
  return wrong.empty() ? pass(fmt::format("1 and {}: OK; 0, {}, 0x8001 and 0xffff: ERR", most, most + 1))
                       : failed("then a frame: " + wrong);
}

Result<Verdict> announcement(const Context& context) {
  if (!context.offers(spec::kNetGuestAnnounce)) {
    return skip("VIRTIO_NET_F_GUEST_ANNOUNCE is not offered");
  }
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  const std::string wrong = not_answered_with(spec::kNetAckOk, session.driver().control()->acknowledge_announce());
  return wrong.empty() ? pass("acknowledged: OK") : failed(wrong);
}

Result<Verdict> guest_offloads(const Context& context) {
  if (!context.offers(spec::kNetCtrlGuestOffloads)) {
    return skip("VIRTIO_NET_F_CTRL_GUEST_OFFLOADS is not offered");
  }
  constexpr std::uint64_t kAll = spec::kNetGuestCsum | spec::kNetGuestTso4 | spec::kNetGuestTso6 | spec::kNetGuestUfo;
  std::uint64_t negotiated = 0;
  {
    RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures | kAll));
    negotiated = session.driver().negotiated().features & kAll;
    for (const std::uint64_t offloads : {std::uint64_t{0}, negotiated & spec::kNetGuestCsum, negotiated}) {
      if (const std::string wrong = not_answered_with(spec::kNetAckOk, session.driver().control()->set_offloads(offloads));
          !wrong.empty()) {
        return failed(fmt::format("offloads {:#x} of {:#x}: {}", offloads, negotiated, wrong));
      }
    }
  }
  RW_TRY_ASSIGN(Session without, open_control(context, kControlFeatures));
  const std::string wrong =
      not_answered_with(spec::kNetAckErr, without.driver().control()->set_offloads(spec::kNetGuestTso4));
  return wrong.empty() ? pass(fmt::format("none, some and all of {:#x}: OK; what was not negotiated: ERR", negotiated))
                       : failed("an offload that was not negotiated: " + wrong);
}

Result<Verdict> coalescing(const Context& context) {
  if (!context.offers(spec::kNetNotfCoal) && !context.offers(spec::kNetVqNotfCoal)) {
    return skip("neither VIRTIO_NET_F_NOTF_COAL nor VQ_NOTF_COAL is offered");
  }
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  NetDriverControlQueue& control = *session.driver().control();
  const NetDriverControlQueue::Coalescing values{.max_packets = 8, .max_usecs = 20};
  if (context.offers(spec::kNetNotfCoal)) {
    for (const auto& answer : {control.set_receive_coalescing(values), control.set_transmit_coalescing(values)}) {
      if (const std::string wrong = not_answered_with(spec::kNetAckOk, answer); !wrong.empty()) {
        return failed("of all queues: " + wrong);
      }
    }
  }
  if (context.offers(spec::kNetVqNotfCoal)) {
    NetDriverControlQueue::Coalescing got{};
    const auto set = control.set_queue_coalescing(0, values);
    const auto get = control.get_queue_coalescing(0, got);
    if (const std::string wrong = not_answered_with(spec::kNetAckOk, set); !wrong.empty()) {
      return failed("of queue 0: " + wrong);
    }
    if (const std::string wrong = not_answered_with(spec::kNetAckOk, get, 9); !wrong.empty() || got != values) {
      return failed("read back of queue 0: " + (wrong.empty() ? "other values" : wrong));
    }
    if (const std::string wrong = not_answered_with(spec::kNetAckErr, control.set_queue_coalescing(0xfffe, values));
        !wrong.empty()) {
      return failed("of a queue that isn't there: " + wrong);
    }
  }
  RW_TRY(control.set_transmit_coalescing({}));
  return pass("set, read back, and refused for a queue that isn't there");
}

// --- hashes ---

// The first key and vectors of Microsoft's "Verifying the RSS Hash Calculation", as TCP.
constexpr std::array<std::uint8_t, spec::kNetRssKeyBytesMax> kHashKey = {
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
    0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};
constexpr std::size_t kHashFrameBytes = 80;
struct HashCase {
  const char* what;
  std::uint32_t ports_type, ports_hash;  // kNetHashType…, and the hash by it
  std::uint32_t addresses_type, addresses_hash;
  std::array<std::uint8_t, kHashFrameBytes - 12> bytes;  // from the Ethernet type on
};
constexpr std::array<HashCase, 3> kHashCases = {{
    {"TCP over IPv4",
     spec::kNetHashTypeTcpv4,
     0x51ccc178,
     spec::kNetHashTypeIpv4,
     0x323e8fc2,
     {0x08, 0x00, 0x45, 0,    0,    40,   0,    0, 0x40, 0, 64, 6, 0, 0, 66, 9,    149,  187,  161,
      142,  100,  80,   0x0a, 0xea, 0x06, 0xe6, 0, 0,    0, 1,  0, 0, 0, 1,  0x50, 0x10, 0xff, 0xff}},
    {"TCP over IPv6",
     spec::kNetHashTypeTcpv6,
     0x40207d3d,
     spec::kNetHashTypeIpv6,
     0x2cc18cd5,
     {0x86, 0xdd, 0x60, 0,    0,    0,    0,    20,   6,    64,   0x3f, 0xfe, 0x25, 0x01, 0x02, 0,    0x1f, 0xff, 0, 0,
      0,    0,    0,    0,    0,    7,    0x3f, 0xfe, 0x25, 0x01, 0x02, 0,    0,    3,    0,    0,    0,    0,    0, 0,
      0,    1,    0x0a, 0xea, 0x06, 0xe6, 0,    0,    0,    1,    0,    0,    0,    1,    0x50, 0x10, 0xff, 0xff}},
    {"another protocol", 0, 0, 0, 0, {0x88, 0xb5, 1, 2, 3, 4}},
}};

std::span<const std::byte> hash_key() {
  return std::as_bytes(std::span(kHashKey));
}

// What is to be reported of it with these types: the type, or 0, and the hash.
std::pair<std::uint32_t, std::uint32_t> hash_by(const HashCase& one, std::uint32_t types) {
  if ((one.ports_type & types) != 0) {
    return {one.ports_type, one.ports_hash};
  }
  return (one.addresses_type & types) != 0 ? std::pair{one.addresses_type, one.addresses_hash} : std::pair{0U, 0U};
}

// Sends the frame on the first pair, and waits for it on `expected`. What is wrong, or nothing.
std::string comes_on(Session& session, const HashCase& one, std::uint32_t expected, spec::NetHeader& header) {
  std::memset(session.host(), 0, session.header_bytes());
  std::byte* const frame = session.host(session.header_bytes());
  std::memset(frame, 0xff, spec::kMacBytes);
  std::memcpy(frame + spec::kMacBytes, "\x02\x00\x00\x00\x00\x01", spec::kMacBytes);
  std::memcpy(frame + std::size_t{2} * spec::kMacBytes, one.bytes.data(), one.bytes.size());
  const DriverBuffer chain = session.at(0, session.header_bytes() + kHashFrameBytes);
  if (const Answer answer = session.send({&chain, 1}); !answer.completed) {
    return fmt::format("{}: the transmit chain: {}", one.what, describe(answer));
  }
  const auto came = session.arrived(session.driver().pair(expected), session.answer_limit());
  if (!came) {
    return fmt::format("{}: it didn't come back on pair {}", one.what, expected);
  }
  if (came->bytes.size() != kHashFrameBytes || std::memcmp(came->bytes.data(), frame, kHashFrameBytes) != 0) {
    return fmt::format("{}: it came back as another", one.what);
  }
  header = came->header;
  return {};
}

// Whether what is reported of frames is right with these types. What is wrong, or nothing.
std::string reports(Session& session, std::uint32_t types) {
  for (const HashCase& one : kHashCases) {
    spec::NetHeader header{};
    if (const std::string wrong = comes_on(session, one, 0, header); !wrong.empty()) {
      return wrong;
    }
    const auto [type, hash] = hash_by(one, types);
    const auto report = static_cast<std::uint16_t>(type == 0 ? spec::kNetHashReportNone : std::countr_zero(type) + 1);
    if (header.hash_report != report || (report != spec::kNetHashReportNone && header.hash_value != hash)) {
      return fmt::format("{}: type {} and hash {:#010x}; {} and {:#010x} expected", one.what, header.hash_report,
                         header.hash_value, report, hash);
    }
  }
  return {};
}

Result<Verdict> hash_reports(const Context& context) {
  if (!context.offers(spec::kNetHashReport)) {
    return skip("VIRTIO_NET_F_HASH_REPORT is not offered");
  }
  RW_TRY_ASSIGN(Session session, open_control(context, spec::kNetHashReport));
  NetDriverControlQueue& control = *session.driver().control();
  static_cast<void>(session.pair().rx.fill());
  const std::uint32_t supported = context.config.supported_hash_types;
  if (const std::string wrong = reports(session, 0); !wrong.empty()) {
    return failed("before any command: " + wrong);
  }
  constexpr std::uint32_t kAddresses = spec::kNetHashTypeIpv4 | spec::kNetHashTypeIpv6;
  for (const std::uint32_t types : {supported, supported & kAddresses, std::uint32_t{0}}) {
    if (std::string wrong = not_answered_with(spec::kNetAckOk, control.configure_hash(types, hash_key())); !wrong.empty()) {
      return failed(fmt::format("types {:#x}: {}", types, wrong));
    }
    if (const std::string wrong = reports(session, types); !wrong.empty()) {
      return failed(fmt::format("types {:#x}: {}", types, wrong));
    }
  }
  if (const std::string wrong =
          not_answered_with(spec::kNetAckErr, control.configure_hash(supported | 1U << 31U, hash_key()));
      !wrong.empty()) {
    return failed("a type that isn't supported: " + wrong);
  }
  const Bytes long_key = zeros(std::size_t{context.config.rss_max_key_size} + 1);
  if (const std::string wrong = not_answered_with(spec::kNetAckErr, control.configure_hash(supported, long_key));
      context.config.rss_max_key_size < 255 && !wrong.empty()) {
    return failed("a key that is too long: " + wrong);
  }
  return pass(
      fmt::format("none at first; with types {:#x}, and of addresses only: as Microsoft's vectors; then none; a type "
                  "that isn't supported, a key that is too long: ERR",
                  supported));
}

Result<Verdict> hashing(const Context& context) {
  if (!context.offers(spec::kNetRss)) {
    return skip("VIRTIO_NET_F_RSS is not offered");
  }
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures & ~spec::kNetHashReport));
  NetDriverControlQueue& control = *session.driver().control();
  const std::uint32_t supported = context.config.supported_hash_types;
  const Bytes long_key = zeros(std::size_t{context.config.rss_max_key_size} + 1);
  const auto pairs = static_cast<std::uint16_t>(session.driver().pairs_offered());
  const std::uint16_t good[] = {0, 0};
  const std::uint16_t beyond[] = {0, pairs};
  const std::uint16_t odd[] = {0, 0, 0};
  const std::vector<std::uint16_t> long_table(std::size_t{context.config.rss_max_indirection_table_length} * 2);
  const NetDriverControlQueue::Rss table{.hash_types = supported, .table = good, .key = hash_key()};
  if (const std::string wrong = not_answered_with(spec::kNetAckOk, control.configure_rss(table)); !wrong.empty()) {
    return failed("a table of two entries: " + wrong);
  }
  struct Case {
    const char* what;
    NetDriverControlQueue::Rss rss;
    bool may_be = true;
  };
  const auto with = [&table](auto change) {
    NetDriverControlQueue::Rss rss = table;
    change(rss);
    return rss;
  };
  const Case cases[] = {
      {"a pair that isn't there", with([&](auto& rss) { rss.table = beyond; })},
      {"3 entries", with([&](auto& rss) { rss.table = odd; })},
      {"more entries than there may be", with([&](auto& rss) { rss.table = long_table; }), long_table.size() <= 8192},
      {"a pair for other frames that isn't there", with([&](auto& rss) { rss.unclassified = pairs; })},
      {"no transmit queue", with([](auto& rss) { rss.transmit_queues = 0; })},
      {"a hash type that isn't supported", with([&](auto& rss) { rss.hash_types = supported | 1U << 31U; })},
      {"a key that is too long", with([&](auto& rss) { rss.key = long_key; }), long_key.size() <= 255},
  };
  for (const Case& one : cases) {
    if (!one.may_be) {
      continue;
    }
    if (const std::string wrong = not_answered_with(spec::kNetAckErr, control.configure_rss(one.rss)); !wrong.empty()) {
      return failed(fmt::format("{}: {}", one.what, wrong));
    }
  }
  return pass(
      "a table of two entries: OK; pairs that aren't there, 3 entries, too many, no transmit queue, hash types that "
      "aren't supported, a key that is too long: ERR");
}

Result<Verdict> rss_places_frames(const Context& context) {
  if (!context.offers(spec::kNetRss) || context.pairs_offered < 2) {
    return skip("VIRTIO_NET_F_RSS is not offered, or there is one pair only");
  }
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures & ~spec::kNetHashReport, 2));
  const std::uint32_t supported = context.config.supported_hash_types;
  for (std::uint32_t pair = 0; pair < 2; ++pair) {
    static_cast<void>(session.driver().pair(pair).rx.fill());
  }
  // Each table shows one bit of the hash.
  constexpr std::size_t kEntries = 128;
  for (unsigned bit = 0; std::size_t{1} << bit < kEntries; ++bit) {
    std::array<std::uint16_t, kEntries> table{};
    for (std::size_t i = 0; i < kEntries; ++i) {
      table[i] = i >> bit & 1U;
    }
    const std::uint16_t others = bit & 1U;
    const NetDriverControlQueue::Rss rss{
        .hash_types = supported, .table = table, .unclassified = others, .transmit_queues = 1, .key = hash_key()};
    if (const std::string wrong = not_answered_with(spec::kNetAckOk, session.driver().control()->configure_rss(rss));
        !wrong.empty()) {
      return failed(fmt::format("a table of {} entries: {}", kEntries, wrong));
    }
    for (const HashCase& one : kHashCases) {
      const auto [type, hash] = hash_by(one, supported);
      const std::uint16_t pair = type == 0 ? others : table[hash % kEntries];
      spec::NetHeader header{};
      if (const std::string wrong = comes_on(session, one, pair, header); !wrong.empty()) {
        return failed(fmt::format("by bit {} of the hash, or pair {}: {}", bit, others, wrong));
      }
    }
  }
  return pass(fmt::format("frames with a hash, and one without, came on the pairs that tables of {} entries say", kEntries));
}

Result<Verdict> truncated_commands(const Context& context) {
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  struct Case {
    std::uint64_t feature;
    std::uint8_t control_class, number;
    std::size_t bytes;
    const char* what;
  };
  const Case cases[] = {
      {spec::kNetCtrlRx, spec::kNetCtrlClassRx, spec::kNetCtrlRxPromisc, 0, "a receive mode"},
      {spec::kNetCtrlRx, spec::kNetCtrlClassMac, spec::kNetCtrlMacTableSet, 0, "MAC tables"},
      {spec::kNetCtrlRx, spec::kNetCtrlClassMac, spec::kNetCtrlMacTableSet, 3, "MAC tables"},
      {spec::kNetCtrlRx, spec::kNetCtrlClassMac, spec::kNetCtrlMacTableSet, 4, "MAC tables"},
      {spec::kNetCtrlMacAddr, spec::kNetCtrlClassMac, spec::kNetCtrlMacAddrSet, 5, "a MAC address"},
      {spec::kNetCtrlVlan, spec::kNetCtrlClassVlan, spec::kNetCtrlVlanAdd, 1, "a VLAN"},
      {spec::kNetMq, spec::kNetCtrlClassMq, spec::kNetCtrlMqVqPairsSet, 1, "a number of pairs"},
      {spec::kNetRss, spec::kNetCtrlClassMq, spec::kNetCtrlMqRssConfig, 10, "an RSS table"},
      {spec::kNetHashReport, spec::kNetCtrlClassMq, spec::kNetCtrlMqHashConfig, 12, "hash types"},
      {spec::kNetCtrlGuestOffloads, spec::kNetCtrlClassGuestOffloads, spec::kNetCtrlGuestOffloadsSet, 7, "offloads"},
      {spec::kNetNotfCoal, spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalTxSet, 7, "coalescing"},
      {spec::kNetVqNotfCoal, spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalVqSet, 11, "coalescing of a queue"}};
  std::size_t tried = 0;
  for (const Case& one : cases) {
    if (!session.driver().negotiated().has(one.feature)) {
      continue;
    }
    ++tried;
    if (const std::string wrong =
            not_answered_with(spec::kNetAckErr, command(session, one.control_class, one.number, zeros(one.bytes)));
        !wrong.empty()) {
      return failed(fmt::format("{} in {} bytes: {}", one.what, one.bytes, wrong));
    }
  }
  if (session.driver().negotiated().has(spec::kNetCtrlRx)) {
    Bytes boasting = zeros(4 + 6 + 4);  // two entries by its own account, room for one and the next table's head
    boasting[0] = std::byte{0xff};
    boasting[3] = std::byte{0xff};
    if (const std::string wrong = not_answered_with(
            spec::kNetAckErr, command(session, spec::kNetCtrlClassMac, spec::kNetCtrlMacTableSet, boasting));
        !wrong.empty()) {
      return failed("a MAC table with a count beyond its end: " + wrong);
    }
    ++tried;
  }
  return tried == 0 ? skip("no command with data is offered") : pass(fmt::format("{} commands cut short: ERR", tried));
}

Result<Verdict> not_negotiated(const Context& context) {
  RW_TRY_ASSIGN(Session session, open_control(context, 0));
  struct Case {
    std::uint8_t control_class, number;
    std::size_t bytes;
    const char* what;
  };
  for (const Case& one : {Case{spec::kNetCtrlClassRx, spec::kNetCtrlRxPromisc, 1, "CTRL_RX"},
                          {spec::kNetCtrlClassVlan, spec::kNetCtrlVlanAdd, 2, "CTRL_VLAN"},
                          {spec::kNetCtrlClassMac, spec::kNetCtrlMacAddrSet, 6, "CTRL_MAC_ADDR"},
                          {spec::kNetCtrlClassAnnounce, spec::kNetCtrlAnnounceAck, 0, "GUEST_ANNOUNCE"},
                          {spec::kNetCtrlClassMq, spec::kNetCtrlMqVqPairsSet, 2, "MQ"},
                          {spec::kNetCtrlClassMq, spec::kNetCtrlMqRssConfig, 13, "RSS"},
                          {spec::kNetCtrlClassMq, spec::kNetCtrlMqHashConfig, 13, "HASH_REPORT"},
                          {spec::kNetCtrlClassGuestOffloads, spec::kNetCtrlGuestOffloadsSet, 8, "CTRL_GUEST_OFFLOADS"},
                          {spec::kNetCtrlClassNotfCoal, spec::kNetCtrlNotfCoalTxSet, 8, "NOTF_COAL"}}) {
    Bytes data = zeros(one.bytes);
    if (!data.empty()) {
      data[0] = std::byte{one.bytes == 6 ? std::uint8_t{2} : std::uint8_t{1}};  // what would be right otherwise
    }
    data = one.bytes == 8 ? zeros(8) : data;
    if (one.bytes == 13) {  // no hash types, one entry, one transmit queue, no key
      data = zeros(13);
      data[10] = std::byte{one.number == spec::kNetCtrlMqRssConfig ? std::uint8_t{1} : std::uint8_t{0}};
    }
    if (const std::string wrong = not_answered_with(spec::kNetAckErr, command(session, one.control_class, one.number, data));
        !wrong.empty()) {
      return failed(fmt::format("a command that needs {}: {}", one.what, wrong));
    }
  }
  return pass("commands of features that were not negotiated: ERR");
}

// A chain as it is on the control queue; its answer is looked for at `ack`.
std::string raw_command(Session& session, std::span<const DriverBuffer> chain, std::size_t ack, std::uint8_t expected) {
  NetDriverControlQueue& control = *session.driver().control();
  *session.host(ack) = std::byte{NetDriverAnswer::kAckUntouched};
  if (!control.ring().add(chain, 0)) {
    return "no room in the ring";
  }
  control.publish_and_kick();
  UsedElement used;
  if (!session.await_used(control, used, session.answer_limit())) {
    return "never came back";
  }
  NetDriverAnswer answer{.ack = std::to_integer<std::uint8_t>(*session.host(ack)), .written_bytes = used.written_bytes};
  return not_answered_with(expected, answer);
}

Result<Verdict> command_framing(const Context& context) {
  if (!context.offers(spec::kNetCtrlRx)) {
    return skip("VIRTIO_NET_F_CTRL_RX, whose commands this takes, is not offered");
  }
  constexpr std::size_t kAck = 100;
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  const std::array command_bytes{spec::kNetCtrlClassRx, spec::kNetCtrlRxPromisc, std::uint8_t{1}};
  std::memcpy(session.host(), command_bytes.data(), command_bytes.size());
  const DriverBuffer ack = session.at(kAck, 1, true);
  const std::vector<DriverBuffer> chains[] = {{session.at(0, 3), ack},
                                              {session.at(0, 1), session.at(1, 1), session.at(2, 1), ack},
                                              {session.at(0, 1), session.at(1, 2), ack},
                                              {session.at(0, 2), session.at(2, 1), ack}};
  for (const std::vector<DriverBuffer>& chain : chains) {
    if (const std::string wrong = raw_command(session, chain, kAck, spec::kNetAckOk); !wrong.empty()) {
      return failed(fmt::format("a command in {} descriptors: {}", chain.size() - 1, wrong));
    }
  }
  return pass("a command in 1 to 3 descriptors, wherever they border: OK");
}

Result<Verdict> bad_command_chains(const Context& context) {
  constexpr std::size_t kAck = 100;
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  std::memset(session.host(), 0, 64);
  const DriverBuffer ack = session.at(kAck, 1, true);
  const DriverBuffer half[] = {session.at(0, 1), ack};
  if (const std::string wrong = raw_command(session, half, kAck, spec::kNetAckErr); !wrong.empty()) {
    return failed("one byte of class and command: " + wrong);
  }
  // Without a place for the answer it can only come back, or stop the queue.
  NetDriverControlQueue& control = *session.driver().control();
  const DriverBuffer mute = session.at(0, 3);
  UsedElement used;
  static_cast<void>(control.ring().add({&mute, 1}, 0));
  control.publish_and_kick();
  if (!session.await_used(control, used, context.options.answer_limit)) {
    return next_session_works(std::move(session), context, "a command without room for its answer stopped the queue");
  }
  if (used.written_bytes != 0) {
    return failed(fmt::format("a command without room for its answer came back with length {}", used.written_bytes));
  }
  const std::string wrong = still_answers(session);
  return wrong.empty() ? pass("half a header: ERR; no room for an answer: back with length 0, and the next one is answered")
                       : failed("after a command without room for its answer: " + wrong);
}

Result<Verdict> many_commands(const Context& context) {
  RW_TRY_ASSIGN(Session session, open_control(context, kControlFeatures));
  constexpr int kCommands = 1000;  // several times round the ring
  for (int i = 0; i < kCommands; ++i) {
    if (const std::string wrong = still_answers(session); !wrong.empty()) {
      return failed(fmt::format("command {}: {}", i, wrong));
    }
  }
  return pass(fmt::format("{} commands, several times round the ring", kCommands));
}

constexpr Rule kControlRules[] = {
    {"unknown commands", "virtio 5.1.6.5", true, Needs::control, unknown_commands},
    {"receive modes", "virtio 5.1.6.5.1", true, Needs::control, rx_modes},
    {"MAC tables", "virtio 5.1.6.5.2", true, Needs::control, mac_tables},
    {"MAC address", "virtio 5.1.6.5.2", true, Needs::control, mac_address},
    {"VLANs", "virtio 5.1.6.5.3", true, Needs::control, vlans},
    {"announcement", "virtio 5.1.6.5.4", true, Needs::control, announcement},
    {"number of pairs", "virtio 5.1.6.5.5", true, Needs::control, pairs_in_range},
    {"RSS", "virtio 5.1.6.5.7", true, Needs::control, hashing},
    {"RSS places frames", "virtio 5.1.6.5.7.1", true, Needs::loop, rss_places_frames},
    {"hash reports", "virtio 5.1.6.4.4", true, Needs::loop, hash_reports},
    {"guest offloads", "virtio 5.1.6.5.8", true, Needs::control, guest_offloads},
    {"coalescing", "virtio 5.1.6.5.9", true, Needs::control, coalescing},
    {"truncated commands", "virtio 5.1.6.5", true, Needs::control, truncated_commands},
    {"commands that were not negotiated", "virtio 5.1.6.5", true, Needs::control, not_negotiated},
    {"any framing of commands", "virtio 2.7.4", true, Needs::control, command_framing},
    {"command chains that make no sense", "virtio 5.1.6.5", true, Needs::control, bad_command_chains},
    {"many commands", "virtio 5.1.6.5", true, Needs::control, many_commands},
};

}  // namespace

std::span<const Rule> control_rules() {
  return kControlRules;
}

}  // namespace ringway::net_check
