#include "bench/check_shared_rules.hpp"

#include <fmt/core.h>
#include <poll.h>

#include <cstring>
#include <vector>

#include "loop/clock.hpp"

namespace ringway::check {
namespace {

using vhost_user::FrontEnd;
using vhost_user::Request;

std::vector<std::byte> bytes_of_value(std::uint64_t value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// Requests, shown to the device. An error if there is no room, which would be the rule's own fault.
Result<> send(Session& session, std::uint32_t count) {
  if (!session.submit(count)) {
    return fail("no room in the ring");
  }
  session.queue().publish_and_kick();
  return {};
}

Verdict next_session_works(const Backend& backend, const std::string& seen) {
  const Result<std::unique_ptr<Session>> next = backend.open({});
  if (!next) {
    return failed(seen + ", and no session can be opened any more: " + next.error().message);
  }
  return (*next)->alive() ? pass(seen + "; the next session works")
                          : failed(seen + ", and the next session doesn't work either");
}

}  // namespace

std::size_t spin_for_completions(Session& session, std::size_t wanted, Duration limit) {
  const Instant deadline = clock_now() + limit;
  std::size_t count = 0;
  while (count < wanted && clock_now() < deadline) {
    count += session.reap(1);
  }
  return count;
}

bool called_within(DriverQueue& queue, int milliseconds) {
  pollfd entry{.fd = queue.call_fd(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, milliseconds) > 0;
}

// ---------------------------------------------------------------- a session

Result<Verdict> config_in_pieces(const Backend& backend) {
  RW_TRY_ASSIGN(const auto session, backend.open({}));
  FrontEnd& front_end = session->session().front_end();
  RW_TRY_ASSIGN(const std::vector<std::byte> whole, front_end.get_config(0, backend.config_bytes));
  for (const std::uint32_t offset : backend.config_offsets) {
    for (const std::uint32_t bytes : {1U, 2U, 4U}) {
      if (offset + bytes > whole.size()) {
        continue;
      }
      RW_TRY_ASSIGN(const std::vector<std::byte> piece, front_end.get_config(offset, bytes));
      if (piece.size() < bytes || std::memcmp(piece.data(), whole.data() + offset, bytes) != 0) {
        return failed(fmt::format("{} bytes at offset {} are not what the whole holds there", bytes, offset));
      }
    }
  }
  return pass("pieces of 1, 2 and 4 bytes agree with the whole");
}

Result<Verdict> config_at_its_edges(const Backend& backend) {
  std::size_t answered = 0, refused = 0;
  struct Case {
    std::uint32_t offset, bytes;
  };
  for (const Case one : {Case{0, 256}, Case{255, 1}, Case{256, 0}, Case{0, 0}, Case{250, 100}, Case{0xffffffffU, 8}}) {
    RW_TRY_ASSIGN(const auto session, backend.open({}));
    // Refusal is an empty payload or a closed connection; what must not be is silence or the end of the back-end.
    session->session().front_end().get_config(one.offset, one.bytes) ? ++answered : ++refused;
  }
  return next_session_works(backend, fmt::format("{} odd ranges answered, {} refused", answered, refused));
}

Result<Verdict> one_reply(const Backend& backend) {
  if (!backend.offers_protocol(vhost_user::kProtocolReplyAck)) {
    return skip("PROTOCOL_F_REPLY_ACK is not offered");
  }
  RW_TRY_ASSIGN(const auto session, backend.open({}));
  FrontEnd& front_end = session->session().front_end();
  const std::uint32_t flags = vhost_user::kVersion | vhost_user::kFlagNeedReply;
  for (int i = 0; i < 10; ++i) {
    RW_TRY(front_end.send(static_cast<std::uint32_t>(Request::set_features), flags,
                          bytes_of_value(session->session().negotiated().features)));
    RW_TRY_ASSIGN(const vhost_user::Message answer, front_end.receive());
    if (answer.header.request != static_cast<std::uint32_t>(Request::set_features) || answer.payload.size() != 8) {
      return failed(fmt::format("answered by message {} of {} bytes", answer.header.request, answer.payload.size()));
    }
  }
  // A second reply to any of them would now come instead of the features.
  RW_TRY_ASSIGN(const std::uint64_t offered, front_end.get_features());
  if (offered != backend.offered) {
    return failed("one reply too many");
  }
  // A message with a reply of its own, asked for an acknowledgement: still one.
  RW_TRY(front_end.send(static_cast<std::uint32_t>(Request::get_features), flags, {}));
  RW_TRY_ASSIGN(const vhost_user::Message answer, front_end.receive());
  RW_TRY_ASSIGN(const std::uint64_t again, front_end.get_features());
  return answer.payload.size() == 8 && again == backend.offered ? pass("SET_FEATURES 10 times, GET_FEATURES: one reply each")
                                                                : failed("GET_FEATURES with NEED_REPLY: not one reply");
}

Result<Verdict> unknown_message(const Backend& backend) {
  {
    RW_TRY_ASSIGN(const auto session, backend.open({}));
    FrontEnd& front_end = session->session().front_end();
    RW_TRY(front_end.send(200, vhost_user::kVersion | vhost_user::kFlagNeedReply, bytes_of_value(0)));
    const Result<vhost_user::Message> answer = front_end.receive(backend.answer_limit);
    std::uint64_t value = 0;
    if (answer && answer->payload.size() == sizeof value) {
      std::memcpy(&value, answer->payload.data(), sizeof value);
      if (value == 0 && backend.offers_protocol(vhost_user::kProtocolReplyAck)) {
        return failed("message 200 was acknowledged with success");
      }
    } else if (!answer && !session->session().peer_closed()) {
      return failed("message 200 with NEED_REPLY got neither an answer nor an end of the session");
    }
  }
  return next_session_works(backend, "message 200: an error or the end of the session");
}

Result<Verdict> memory_replaced(const Backend& backend) {
  std::string seen;
  {
    RW_TRY_ASSIGN(const auto session, backend.open({.data_regions = 3}));
    DriverSession& driver = session->session();
    const std::vector<FrontEnd::Region> all = driver.memory_table();
    const std::uint32_t index = session->queue().index();
    for (std::size_t count = all.size(); count >= 1; --count) {
      RW_TRY_ASSIGN(const std::uint32_t base, driver.stop_queue(index));
      RW_TRY(driver.front_end().set_mem_table(std::span(all).first(count)));
      RW_TRY(driver.start_queue(index, base));
      if (!session->alive()) {
        return failed(fmt::format("no {} works after a table of {} region(s)", backend.request, count));
      }
    }
    const RegionUse gone = session->use_region(2);
    if (gone.works && gone.shows_data) {
      return failed(fmt::format("a {} in a region that the table no longer has: {}", backend.request, gone.seen));
    }
    seen =
        fmt::format("tables of {} to 1 regions; a {} in a region that is gone: {}", all.size(), backend.request, gone.seen);
  }
  return next_session_works(backend, seen);
}

Result<Verdict> several_regions(const Backend& backend) {
  constexpr std::uint32_t kRegions = 7;
  RW_TRY_ASSIGN(const auto session, backend.open({.data_regions = kRegions}));
  for (std::uint32_t i = 0; i < 2 * kRegions; ++i) {
    if (const RegionUse use = session->use_region(i % kRegions); !use.works) {
      return failed(fmt::format("a {} in data region {}: {}", backend.request, i % kRegions, use.seen));
    }
  }
  return pass(
      fmt::format("{} regions in one table, a {} in each", session->session().memory_table().size(), backend.request));
}

Result<Verdict> memory_slots(const Backend& backend) {
  if (!backend.offers_protocol(vhost_user::kProtocolConfigureMemSlots)) {
    return skip("PROTOCOL_F_CONFIGURE_MEM_SLOTS is not offered");
  }
  constexpr std::uint32_t kRegions = 12;
  RW_TRY_ASSIGN(const auto session, backend.open({.data_regions = kRegions, .memory_slots = true}));
  FrontEnd& front_end = session->session().front_end();
  RW_TRY_ASSIGN(const std::uint64_t slots, front_end.get_max_mem_slots());
  for (std::uint32_t i = 0; i < kRegions; ++i) {
    if (const RegionUse use = session->use_region(i); !use.works) {
      return failed(fmt::format("a {} in data region {}: {}", backend.request, i, use.seen));
    }
  }
  const std::vector<FrontEnd::Region> table = session->session().memory_table();
  RW_TRY(front_end.rem_mem_reg(table.back()));
  RW_TRY(front_end.add_mem_reg(table.back()));
  const RegionUse use = session->use_region(kRegions - 1);
  return use.works ? pass(fmt::format("{} of {} slots used, one removed and added again", table.size(), slots))
                   : failed(fmt::format("a {} in a slot that was removed and added again: {}", backend.request, use.seen));
}

Result<Verdict> reconnects_under_load(const Backend& backend) {
  constexpr std::uint32_t kInFlight = 32;
  RW_TRY_ASSIGN(const auto session, backend.open({}));
  for (int round = 0; round < 20; ++round) {
    RW_TRY(send(*session, kInFlight));
    RW_TRY(session->session().reconnect(DriverSession::Rings::reset));
    if (!session->alive()) {
      return failed(fmt::format("no {} works after reconnect {}", backend.request, round));
    }
  }
  return pass(fmt::format("20 disconnects with {} {}s in flight", kInFlight, backend.request));
}

// ---------------------------------------------------------------- a ring

Result<Verdict> no_call_while_suppressed(const Backend& backend) {
  RW_TRY_ASSIGN(const auto session, backend.open({}));
  DriverQueue& queue = session->queue();
  // Some back-ends call once when a ring starts; that is allowed.
  static_cast<void>(called_within(queue, kQuietMilliseconds));
  if (!session->alive()) {
    return failed(fmt::format("a plain {} doesn't work", backend.request));
  }
  queue.ring().suppress_calls();
  // What the request above armed may still be on its way.
  static_cast<void>(called_within(queue, kQuietMilliseconds));
  static_cast<void>(queue.take_calls());
  RW_TRY(send(*session, 8));
  if (const std::size_t done = spin_for_completions(*session, 8, backend.answer_limit); done != 8) {
    return failed(fmt::format("{} of 8 {}s completed", done, backend.request));
  }
  return called_within(queue, kQuietMilliseconds) ? failed("a call came though the driver had asked for none")
                                                  : pass(fmt::format("8 {}s, no call", backend.request));
}

Result<Verdict> call_when_asked_for(const Backend& backend) {
  RW_TRY_ASSIGN(const auto session, backend.open({}));
  DriverQueue& queue = session->queue();
  if (!session->alive()) {
    return failed(fmt::format("a plain {} doesn't work", backend.request));
  }
  for (int round = 0; round < 20; ++round) {
    static_cast<void>(queue.take_calls());
    if (queue.ring().arm_calls()) {
      return failed("a used element with nothing in flight");
    }
    RW_TRY(send(*session, 1));
    const bool called = called_within(queue, static_cast<int>(backend.answer_limit.ns / 1'000'000));
    if (spin_for_completions(*session, 1, Duration::seconds(1)) != 1 || !called) {
      return failed(fmt::format("round {}: {}", round, called ? "a call, but no used element" : "no call"));
    }
  }
  return pass(fmt::format("20 {}s, each followed by a call", backend.request));
}

Result<Verdict> event_index_crossing(const Backend& backend) {
  if (!backend.offers(spec::kFeatureEventIdx)) {
    return skip("VIRTIO_F_EVENT_IDX is not offered");
  }
  RW_TRY_ASSIGN(const auto session, backend.open({}));
  DriverQueue& queue = session->queue();
  if (!session->alive()) {
    return failed(fmt::format("a plain {} doesn't work", backend.request));
  }
  queue.ring().suppress_calls();
  static_cast<void>(called_within(queue, kQuietMilliseconds));
  static_cast<void>(queue.take_calls());
  // A packed ring's event is a place in the ring: that of the 4th chain.
  const bool in_tables = session->session().negotiated().ring.indirect;
  const std::uint32_t places = backend.packed && !in_tables ? 3 * backend.descriptors : 3;
  if (queue.ring().arm_calls_at(places)) {
    return failed("a used element with nothing in flight");
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    RW_TRY(send(*session, 1));
    if (spin_for_completions(*session, 1, backend.answer_limit) != 1) {
      return failed(fmt::format("{} {} didn't complete", backend.request, i));
    }
    const bool last = i == 3;
    if (called_within(queue, last ? 1000 : 20) != last) {
      return failed(
          fmt::format("asked for a call at the 4th used element: {} after element {}", last ? "none" : "one", i + 1));
    }
  }
  return pass("asked for a call at the 4th used element: none before, one then");
}

Result<Verdict> idle_ring_wakes_by_a_kick(const Backend& backend) {
  RW_TRY_ASSIGN(const auto session, backend.open({}));
  for (int round = 0; round < 10; ++round) {
    // A pause, so that a back-end that polls for a while has gone to sleep.
    static_cast<void>(called_within(session->queue(), 20));
    static_cast<void>(session->queue().take_calls());
    if (!session->alive()) {
      return failed(
          fmt::format("{} {} after a pause was never served: its kick was suppressed or lost", backend.request, round));
    }
  }
  return pass(fmt::format("10 {}s, each after a pause, were served", backend.request));
}

Result<Verdict> exact_base(const Backend& backend) {
  constexpr std::uint32_t kRequests = 37;
  RW_TRY_ASSIGN(const auto session, backend.open({}));
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    if (!session->alive()) {
      return failed(fmt::format("a plain {} doesn't work", backend.request));
    }
  }
  RW_TRY_ASSIGN(const std::uint32_t base, session->session().stop_queue(session->queue().index()));
  const std::uint32_t each = session->session().negotiated().ring.indirect ? 1 : backend.descriptors;
  const std::uint32_t expected = backend.packed ? (kRequests * each | 0x8000U) * 0x10001U : kRequests;
  return base == expected
             ? pass(fmt::format("{:#x} after {} {}s", base, kRequests, backend.request))
             : failed(fmt::format("{:#x} after {} {}s; {:#x} expected", base, kRequests, backend.request, expected));
}

Result<Verdict> stop_and_start(const Backend& backend) {
  constexpr std::uint32_t kInFlight = 16;
  RW_TRY_ASSIGN(const auto session, backend.open({}));
  DriverQueue& queue = session->queue();
  std::uint32_t sent = 0;
  for (int round = 0; round < 10; ++round) {
    RW_TRY(send(*session, kInFlight));
    RW_TRY_ASSIGN(const std::uint32_t base, session->session().stop_queue(queue.index()));
    // A stopped ring has finished what it took; what it didn't take waits for the restart.
    std::size_t done = spin_for_completions(*session, kInFlight, Duration::milliseconds(20));
    if (!backend.packed && queue.ring().in_flight() != 0) {
      const auto taken = static_cast<std::uint16_t>(base - sent);
      if (taken != done) {
        return failed(
            fmt::format("round {}: the base says {} {}s were taken, {} are completed", round, taken, backend.request, done));
      }
    }
    sent += kInFlight;
    RW_TRY(session->session().start_queue(queue.index(), base));
    queue.kick();
    done += spin_for_completions(*session, kInFlight - done, backend.answer_limit);
    if (done != kInFlight) {
      return failed(
          fmt::format("round {}: {} of {} {}s completed after the restart", round, done, kInFlight, backend.request));
    }
  }
  // One that was completed twice would have come as a used element that names nothing in flight.
  if (queue.ring().broken() || queue.counters().bad_used != 0) {
    return failed("used elements that make no sense");
  }
  return pass(fmt::format("10 stops with {} {}s in flight; none lost, none twice", kInFlight, backend.request));
}

}  // namespace ringway::check
