// Rules about rings: notifications, starting, stopping and enabling, sizes, pairs (virtio 1.3 §2.7, §2.8; vhost-user,
// Starting and stopping rings).
#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "bench/net_check_rules.hpp"
#include "loop/clock.hpp"

namespace ringway::net_check {
namespace {

constexpr Duration kQuiet = Duration::milliseconds(kQuietMilliseconds);

std::size_t reap_within(Session& session, std::size_t wanted, Duration limit) {
  return check::spin_for_completions(session, wanted, limit);
}

// Of a ring that is disabled after it was in use: what is sent is taken and thrown away.
Result<Verdict> disabled_transmit(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  if (const std::string wrong = session.plain_frame(); !wrong.empty()) {
    return failed("a plain frame: " + wrong);
  }
  RW_TRY(session.driver().enable_queue(session.pair().tx.index(), false));
  if (!session.submit(4)) {
    return fail("no room in the ring");
  }
  session.pair().tx.publish_and_kick();
  if (const std::size_t done = reap_within(session, 4, context.options.answer_limit); done != 4) {
    return failed(fmt::format("{} of 4 frames in a disabled ring were taken; all are to be, and thrown away", done));
  }
  RW_TRY(session.driver().enable_queue(session.pair().tx.index(), true));
  if (context.loops() && session.arrived(session.pair(), kQuiet)) {
    return failed("a frame that was sent through a disabled ring came back");
  }
  const std::string wrong = session.plain_frame();
  return wrong.empty() ? pass("4 frames in a disabled ring were taken and thrown away; enabled, it sends")
                       : failed("after the ring was enabled again, a frame: " + wrong);
}

// Between SET_VRING_KICK and SET_VRING_ENABLE: whether the frame is sent or thrown away, its kick must not be lost.
Result<Verdict> net_kick_before_enable(const Context& context) {
  NetDriverOptions driver = context.driver_options();
  driver.enable_pairs = false;
  RW_TRY_ASSIGN(Session session, context.open(driver));
  if (!session.submit(1)) {
    return fail("no room in the ring");
  }
  session.pair().tx.publish_and_kick();
  std::size_t done = reap_within(session, 1, kQuiet);
  const bool at_once = done != 0;
  RW_TRY(session.driver().enable_pair(0, true));
  done += reap_within(session, 1 - done, context.options.answer_limit);
  if (done != 1) {
    return failed("a kick before SET_VRING_ENABLE was lost");
  }
  const std::string wrong = session.plain_frame();
  return wrong.empty()
             ? pass(at_once ? "taken while the ring was disabled" : "taken once the ring was enabled, without another kick")
             : failed("after the ring was enabled, a frame: " + wrong);
}

Result<Verdict> disabled_receive(const Context& context) {
  NetDriverOptions driver = context.driver_options();
  driver.enable_pairs = false;
  RW_TRY_ASSIGN(Session session, context.open(driver));
  static_cast<void>(session.pair().rx.fill());
  RW_TRY(session.driver().enable_queue(session.pair().tx.index(), true));
  if (!session.submit(4)) {
    return fail("no room in the ring");
  }
  session.pair().tx.publish_and_kick();
  static_cast<void>(reap_within(session, 4, context.options.answer_limit));
  if (session.arrived(session.pair(), kQuiet)) {
    return failed("a frame came through a disabled ring");
  }
  RW_TRY(session.driver().enable_queue(session.pair().rx.index(), true));
  if (!session.submit(1)) {
    return failed("frames that were sent while the receive ring was disabled fill the transmit ring");
  }
  session.pair().tx.publish_and_kick();
  return session.arrived() ? pass("nothing came while the ring was disabled; enabled, it receives")
                           : failed("no frame comes after the ring was enabled");
}

Result<Verdict> off_and_on(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  for (int round = 0; round < 10; ++round) {
    if (const std::string wrong = session.plain_frame(); !wrong.empty()) {
      return failed(fmt::format("after {} times off and on, a frame: {}", round, wrong));
    }
    RW_TRY(session.driver().enable_pair(0, false));
    RW_TRY(session.driver().enable_pair(0, true));
  }
  return pass("a pair was disabled and enabled 10 times, and frames went on");
}

Result<Verdict> receive_base(const Context& context) {
  constexpr std::uint32_t kFrames = 21;
  RW_TRY_ASSIGN(Session session, context.open());
  const std::uint32_t index = session.pair().rx.index();
  std::uint32_t used = 0;
  for (int round = 0; round < 5; ++round) {
    for (std::uint32_t i = 0; i < kFrames; ++i, ++used) {
      if (const std::string wrong = session.plain_frame(); !wrong.empty()) {
        return failed(fmt::format("after {} stops, frame {}: {}", round, i, wrong));
      }
    }
    RW_TRY_ASSIGN(const std::uint32_t base, session.driver().stop_queue(index));
    // One descriptor each, and fewer than the ring has.
    const std::uint32_t expected = context.packed ? (used | 0x8000U) * 0x10001U : used;
    if (base != expected) {
      return failed(fmt::format("{:#x} after {} frames of one buffer each; {:#x} expected", base, used, expected));
    }
    RW_TRY(session.driver().start_queue(index, base));
  }
  const std::string wrong = session.plain_frame();
  return wrong.empty() ? pass(fmt::format("exact after each of 5 stops, {} frames; no buffer lost, none twice", used))
                       : failed("after the last restart, a frame: " + wrong);
}

Result<Verdict> receive_calls(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  if (const std::string wrong = session.plain_frame(); !wrong.empty()) {
    return failed("a plain frame: " + wrong);
  }
  NetDriverReceiveQueue& rx = session.pair().rx;
  const auto send = [&session]() -> Result<> {
    if (!session.submit(1)) {
      return fail("no room in the ring");
    }
    session.pair().tx.publish_and_kick();
    return {};
  };
  const auto take = [&](Duration limit) {
    const Instant deadline = clock_now() + limit;
    NetDriverFrame frame;
    while (rx.receive({&frame, 1}) == 0) {
      if (clock_now() >= deadline) {
        return false;
      }
    }
    rx.give_back({&frame, 1});
    static_cast<void>(rx.fill());
    return true;
  };
  rx.ring().suppress_calls();
  static_cast<void>(check::called_within(rx, kQuietMilliseconds));
  static_cast<void>(rx.take_calls());
  RW_TRY(send());
  if (!take(context.options.answer_limit)) {
    return failed("a frame didn't come back");
  }
  if (check::called_within(rx, kQuietMilliseconds)) {
    return failed("a call came though the driver had asked for none");
  }
  for (int round = 0; round < 20; ++round) {
    static_cast<void>(rx.take_calls());
    static_cast<void>(session.reap(64));
    if (rx.ring().arm_calls()) {
      return failed("a used element though nothing was sent");
    }
    RW_TRY(send());
    const bool called = check::called_within(rx, static_cast<int>(context.options.answer_limit.ns / 1'000'000));
    if (!take(Duration::seconds(1)) || !called) {
      return failed(fmt::format("frame {}: {}", round, called ? "a call, but no frame" : "no call"));
    }
  }
  return pass("no call while suppressed; 20 frames, each followed by a call");
}

// A device that has run out of receive buffers asks for a kick, or looks by itself.
Result<Verdict> late_buffers(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  for (int round = 0; round < 10; ++round) {
    if (context.loops()) {
      // Nothing is posted in the first round; later all is, and used up.
      for (std::uint32_t sent = 0; sent < 96; sent += 32) {
        if (!session.submit(32)) {
          return failed("no room in the transmit ring");
        }
        session.pair().tx.publish_and_kick();
        if (reap_within(session, 32, context.options.answer_limit) != 32) {
          return failed("frames for which there are no receive buffers keep the transmit queue");
        }
      }
    }
    static_cast<void>(check::called_within(session.pair().rx, 20));
    NetDriverFrame frame;
    while (session.pair().rx.receive({&frame, 1}) == 1) {
      session.pair().rx.give_back({&frame, 1});
    }
    static_cast<void>(session.pair().rx.fill());
    if (context.loops() ? !session.alive() : !session.arrived()) {
      return failed(fmt::format("round {}: no frame comes into buffers that were posted when none were left", round));
    }
  }
  return pass("10 times all buffers were used up; frames came into the next ones");
}

Result<Verdict> without_event_index(const Context& context) {
  for (const bool indirect : {true, false}) {
    NetDriverOptions driver = context.driver_options();
    driver.event_index = false;
    driver.indirect = indirect;
    RW_TRY_ASSIGN(Session session, context.open(driver));
    NetDriverTransmitQueue& tx = session.pair().tx;
    for (int round = 0; round < 5; ++round) {
      static_cast<void>(check::called_within(tx, 20));
      if (const std::string wrong = session.plain_frame(); !wrong.empty()) {
        return failed(fmt::format("frame {} after a pause: {}", round, wrong));
      }
    }
    tx.ring().suppress_calls();
    static_cast<void>(check::called_within(tx, kQuietMilliseconds));
    static_cast<void>(tx.take_calls());
    if (!session.submit(8)) {
      return fail("no room in the ring");
    }
    tx.publish_and_kick();
    if (reap_within(session, 8, context.options.answer_limit) != 8) {
      return failed("frames were not taken while calls were suppressed");
    }
    if (check::called_within(tx, kQuietMilliseconds)) {
      return failed("a call came though the driver had asked for none");
    }
  }
  return pass("kicks and calls by flags alone");
}

Result<Verdict> every_pair(const Context& context) {
  NetDriverOptions driver = context.driver_options();
  constexpr std::uint32_t kMost = 16;
  driver.pairs = std::min(context.pairs_offered, kMost);
  driver.features |= spec::kNetMq | spec::kNetCtrlVq;
  driver.control_queue = context.has_control;
  RW_TRY_ASSIGN(Session session, context.open(driver));
  if (driver.pairs > 1 && session.driver().control() != nullptr) {
    RW_TRY_ASSIGN(const NetDriverAnswer answer,
                  session.driver().control()->set_pairs(static_cast<std::uint16_t>(driver.pairs)));
    if (!answer.ok()) {
      return failed(fmt::format("VQ_PAIRS_SET of {} was answered with {}", driver.pairs, answer.ack));
    }
  }
  for (std::uint32_t i = 0; i < driver.pairs; ++i) {
    if (const std::string wrong = session.plain_frame(session.driver().pair(i)); !wrong.empty()) {
      return failed(fmt::format("a frame of pair {} of {}: {}", i, driver.pairs, wrong));
    }
  }
  return pass(fmt::format("{} of {} pair(s)", driver.pairs, context.pairs_offered));
}

Result<Verdict> net_ring_sizes(const Context& context) {
  std::string seen;
  for (const std::uint32_t size : {2U, 4U, 128U, 256U, 1024U}) {
    NetDriverOptions driver = context.driver_options();
    driver.queue_size = size;
    RW_TRY_ASSIGN(Session session, context.open(driver));
    for (std::uint32_t i = 0; i < 2 * size + 3; ++i) {
      if (const std::string wrong = session.plain_frame(); !wrong.empty()) {
        return failed(fmt::format("{} descriptors, frame {}: {}", size, i, wrong));
      }
    }
    seen += fmt::format("{}{}", seen.empty() ? "" : ", ", size);
  }
  return pass(seen + " descriptors, each ring gone round twice");
}

// As a guest does that loads its driver again: all rings stop, and begin anew.
Result<Verdict> all_rings_anew(const Context& context) {
  NetDriverOptions driver = context.driver_options();
  driver.control_queue = context.has_control;
  driver.features |= spec::kNetCtrlVq;
  RW_TRY_ASSIGN(Session session, context.open(driver));
  std::vector<std::uint32_t> indices{session.pair().rx.index(), session.pair().tx.index()};
  if (session.driver().control() != nullptr) {
    indices.push_back(session.driver().control()->index());
  }
  for (int round = 0; round < 10; ++round) {
    if (const std::string wrong = session.plain_frame(); !wrong.empty()) {
      return failed(fmt::format("after {} times, a frame: {}", round, wrong));
    }
    if (!session.submit(16)) {
      return fail("no room in the ring");
    }
    session.pair().tx.publish_and_kick();
    for (const std::uint32_t index : indices) {
      RW_TRY(session.driver().stop_queue(index));
    }
    for (const std::uint32_t index : indices) {
      session.driver().reset_queue(index);
      RW_TRY(session.driver().start_queue(index, session.driver().initial_base()));
    }
  }
  const std::string wrong = session.plain_frame();
  return wrong.empty() ? pass(fmt::format("{} rings stopped under load and begun anew, 10 times", indices.size()))
                       : failed("after 10 times, a frame: " + wrong);
}

constexpr Rule kNetRingRules[] = {
    {"no call while suppressed", "virtio 2.7.7, 2.7.10, 2.8.10", true, Needs::nothing,
     shared<check::no_call_while_suppressed>},
    {"a call when asked for", "virtio 2.7.7, 2.7.10, 2.8.10", true, Needs::nothing, shared<check::call_when_asked_for>},
    {"event index crossing", "virtio 2.7.10, 2.8.10", true, Needs::nothing, shared<check::event_index_crossing>},
    {"an idle ring wakes by a kick", "virtio 2.7.10", true, Needs::nothing, shared<check::idle_ring_wakes_by_a_kick>},
    {"calls of a receive queue", "virtio 2.7.7, 2.7.10, 2.8.10", true, Needs::loop, receive_calls},
    {"without event index", "virtio 2.7.7, 2.8.10", true, Needs::nothing, without_event_index},
    {"receive buffers that come late", "virtio 5.1.6.3.1", true, Needs::frames, late_buffers},
    {"GET_VRING_BASE is exact", "vhost-user, Starting and stopping rings", true, Needs::nothing, shared<check::exact_base>},
    {"GET_VRING_BASE of a receive queue", "vhost-user, Starting and stopping rings", true, Needs::loop, receive_base},
    {"stop and start", "vhost-user, Starting and stopping rings", true, Needs::nothing, shared<check::stop_and_start>},
    {"all rings begun anew", "virtio 2.4, vhost-user, Starting and stopping rings", true, Needs::nothing, all_rings_anew},
    {"kick before enable", "vhost-user, SET_VRING_ENABLE", true, Needs::nothing, net_kick_before_enable},
    {"disabled transmit ring", "vhost-user, Ring states", true, Needs::nothing, disabled_transmit},
    {"disabled receive ring", "vhost-user, Ring states", true, Needs::frames, disabled_receive},
    {"disabled and enabled again", "vhost-user, SET_VRING_ENABLE", true, Needs::nothing, off_and_on},
    {"every pair serves", "virtio 5.1.2, 5.1.6.5.5", true, Needs::nothing, every_pair},
    {"ring sizes", "virtio 2.7, 2.8", true, Needs::nothing, net_ring_sizes},
};

}  // namespace

std::span<const Rule> ring_rules() {
  return kNetRingRules;
}

}  // namespace ringway::net_check
