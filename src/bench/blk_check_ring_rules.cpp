// Rules about rings: notifications, order, starting and stopping, going on after a lost session (virtio 1.3 §2.7, §2.8;
// vhost-user, Starting and stopping rings, Inflight I/O tracking).
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/prng.hpp"
#include "bench/blk_check_rules.hpp"
#include "loop/clock.hpp"

namespace ringway::blk_check {
namespace {

using check::spin_for_completions;

bool submit_reads(Session& session, std::uint64_t first_token, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const SharedBlock buffer = session.queue().buffer(i);
    const DriverBuffer data{buffer.guest, session.driver().block_bytes(), true};
    if (!session.queue().submit(
            {.type = spec::kBlkTypeIn, .sector = 0, .token = first_token + i, .data = {&data, 1}, .ranges = {}})) {
      return false;
    }
  }
  return true;
}

Result<Verdict> each_token_once(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  Prng random(11);
  constexpr std::uint64_t kRequests = 2000;
  std::vector<std::uint8_t> seen(kRequests);
  std::uint64_t sent = 0, done = 0;
  const DriverBuffer data = session.at(0, session.driver().block_bytes());
  while (done < kRequests) {
    const std::uint64_t batch = 1 + random.below(48);
    for (std::uint64_t i = 0; i < batch && sent < kRequests; ++i, ++sent) {
      if (!session.queue().submit(
              {.type = spec::kBlkTypeIn, .sector = 0, .token = sent, .data = {&data, 1}, .ranges = {}})) {
        break;
      }
    }
    session.queue().publish_and_kick();
    BlkCompletion completion;
    if (!session.await(completion)) {
      return failed(fmt::format("{} of {} requests completed, then no more", done, sent));
    }
    do {
      if (completion.token >= sent || seen[completion.token]++ != 0) {
        return failed(fmt::format("request {} was completed twice, or was never sent", completion.token));
      }
      ++done;
    } while (session.queue().reap({&completion, 1}) == 1);
  }
  const bool clean = session.queue().counters().bad_used == 0 && !session.queue().ring().broken();
  return clean ? pass(fmt::format("{} requests in random batches", kRequests))
               : failed("used elements that name no request");
}

// What a VMM does after it has lost its back-end: everything anew, only the in-flight region is the one of before. The base
// is what a VMM can know: the used index of a split ring; of a packed one only where it began, since nothing in its memory
// tells how far the back-end came.
Result<vhost_user::FrontEnd> take_up_again(const Context& context, BlkDriver& driver,
                                           const vhost_user::FrontEnd::Inflight& region) {
  RW_TRY_ASSIGN(vhost_user::FrontEnd front_end,
                vhost_user::FrontEnd::connect(driver.options().socket_path, context.options.patience));
  RW_TRY_ASSIGN(const std::uint64_t offered, front_end.get_features());
  if ((driver.negotiated().features & ~offered) != 0) {
    return fail(
        fmt::format("features {:#x} are no longer offered after a reconnect", driver.negotiated().features & ~offered));
  }
  RW_TRY(front_end.get_protocol_features());
  RW_TRY(front_end.set_protocol_features(driver.negotiated().protocol_features));
  RW_TRY(front_end.set_owner());
  RW_TRY(front_end.set_features(driver.negotiated().features));
  RW_TRY(front_end.set_mem_table(driver.memory_table()));
  RW_TRY(front_end.set_inflight_fd(region.description, region.fd.get()));
  const BlkDriverQueue& queue = driver.queue(0);
  std::uint32_t base = driver.initial_base();
  if (!context.packed) {
    // struct virtq_used: flags, then idx (§2.7.8). The session before has ended, and no one writes it.
    std::uint16_t used_index = 0;
    std::memcpy(&used_index, driver.queue(0).ring().layout().device_area + 2, sizeof used_index);
    base = used_index;
  }
  RW_TRY(front_end.set_vring_num(0, driver.options().queue_size));
  RW_TRY(front_end.set_vring_base(0, base));
  RW_TRY(front_end.set_vring_addr(driver.vring_address(0)));
  RW_TRY(front_end.set_vring_err(0, queue.error_fd()));
  RW_TRY(front_end.set_vring_call(0, queue.call_fd()));
  RW_TRY(front_end.set_vring_kick(0, queue.kick_fd()));
  RW_TRY(front_end.set_vring_enable(0, true));
  driver.queue(0).kick();
  return front_end;
}

// Takes completions of tokens that are in `waiting` until `wanted` of them have come. What is wrong, or nothing.
std::string take_once_each(Session& session, std::vector<bool>& waiting, std::size_t wanted, Duration limit) {
  const Instant deadline = clock_now() + limit;
  for (std::size_t done = 0; done < wanted;) {
    BlkCompletion completion;
    if (session.queue().reap({&completion, 1}) == 0) {
      if (session.queue().ring().broken() || session.queue().counters().bad_used != 0) {
        return "a used element names no request in flight";
      }
      if (clock_now() >= deadline) {
        return fmt::format("{} of {} requests never completed", wanted - done, wanted);
      }
      continue;
    }
    if (completion.token >= waiting.size() || !waiting[completion.token]) {
      return fmt::format("request {} completed twice", completion.token);
    }
    if (completion.status != spec::kBlkStatusOk) {
      return fmt::format("request {} ended with status {}", completion.token, completion.status);
    }
    waiting[completion.token] = false;
    ++done;
  }
  return {};
}

// One ring in one region through all hang-ups; empty if nothing was wrong.
Result<std::string> hang_up_with_region(const Context& context, bool indirect) {
  constexpr std::uint32_t kHangUps = 8, kReads = 24;  // together more than once round the ring
  BlkDriverOptions options = context.driver_options();
  options.indirect = indirect;
  options.start = false;
  RW_TRY_ASSIGN(Session session, Session::open(options, context.options.answer_limit));
  BlkDriver& driver = session.driver();
  RW_TRY_ASSIGN(const vhost_user::FrontEnd::Inflight region,
                driver.front_end().get_inflight_fd(1, static_cast<std::uint16_t>(options.queue_size)));
  RW_TRY(driver.front_end().set_inflight_fd(region.description, region.fd.get()));
  RW_TRY(driver.start_queue(0, driver.initial_base()));
  std::optional<vhost_user::FrontEnd> front_end;  // of the second session and later ones
  for (std::uint32_t round = 0; round < kHangUps; ++round) {
    std::vector<bool> waiting(kReads, true);
    if (!submit_reads(session, 0, kReads)) {
      return fail("no room in the ring");
    }
    session.queue().publish_and_kick();
    // In every second round the back-end has surely taken some of them when the session ends.
    const std::size_t before = round % 2;
    if (const std::string wrong = take_once_each(session, waiting, before, context.options.answer_limit); !wrong.empty()) {
      return fmt::format("after {} hang-ups: {}", round, wrong);
    }
    driver.disconnect();
    front_end.reset();
    RW_TRY_ASSIGN(vhost_user::FrontEnd next, take_up_again(context, driver, region));
    front_end.emplace(std::move(next));
    if (const std::string wrong = take_once_each(session, waiting, kReads - before, context.options.answer_limit);
        !wrong.empty()) {
      return fmt::format("after {} hang-ups: {}", round + 1, wrong);
    }
  }
  return std::string();
}

Result<Verdict> inflight_region(const Context& context) {
  if (!context.offers_protocol(vhost_user::kProtocolInflightShmfd)) {
    return skip("PROTOCOL_F_INFLIGHT_SHMFD is not offered");
  }
  for (const bool indirect : {true, false}) {
    RW_TRY_ASSIGN(const std::string wrong, hang_up_with_region(context, indirect));
    if (!wrong.empty()) {
      return failed(fmt::format("{}{}{}", indirect ? "" : "chains without a table: ", wrong,
                                context.packed ? " (the region must tell the ring's position, but the specification doesn't "
                                                 "say that it goes before SET_VRING_BASE)"
                                               : ""));
    }
  }
  return pass(
      "16 hang-ups with reads in flight, each session with the same region; none lost, none twice (a back-end that finishes "
      "what it took before it lets go shows here that it takes its place from the region, not that it serves again)");
}

Result<Verdict> kick_before_enable(const Context& context) {
  BlkDriverOptions options = context.driver_options();
  options.start = false;
  RW_TRY_ASSIGN(Session session, Session::open(options, context.options.answer_limit));
  RW_TRY(session.driver().start_queue(0, session.driver().initial_base(), false));
  if (!submit_reads(session, 0, 1)) {
    return failed("no room in the ring");
  }
  session.queue().publish_and_kick();
  if (spin_for_completions(session, 1, Duration::milliseconds(kQuietMilliseconds)) != 0) {
    return failed("a request was served while its ring was disabled");
  }
  RW_TRY(session.driver().front_end().set_vring_enable(0, true));
  return spin_for_completions(session, 1, context.options.answer_limit) == 1
             ? pass("served once the ring was enabled, without another kick")
             : failed("a kick before SET_VRING_ENABLE was lost");
}

Result<Verdict> in_order(const Context& context) {
  if (!context.offers(spec::kFeatureInOrder)) {
    return skip("VIRTIO_F_IN_ORDER is not offered");
  }
  BlkDriverOptions options = context.driver_options();
  options.in_order = true;
  RW_TRY_ASSIGN(Session session, Session::open(options, context.options.answer_limit));
  std::uint64_t next = 0;
  for (std::uint64_t round = 0; round < 50; ++round) {
    if (!submit_reads(session, round * 32, 32)) {
      return failed("no room in the ring");
    }
    session.queue().publish_and_kick();
    for (int i = 0; i < 32; ++i, ++next) {
      BlkCompletion completion;
      if (!session.await(completion) || completion.token != next) {
        return failed(fmt::format("request {} was expected, {} came", next, completion.token));
      }
    }
  }
  return pass("1600 requests came back in their order");
}

Result<Verdict> every_queue(const Context& context) {
  BlkDriverOptions options = context.driver_options();
  options.queues = static_cast<std::uint32_t>(std::min<std::uint64_t>(context.queues_offered, limits::kBlkQueuesMax));
  RW_TRY_ASSIGN(Session session, Session::open(options, context.options.answer_limit));
  const DriverBuffer data = session.at(0, session.driver().block_bytes());
  for (std::uint32_t index = 0; index < options.queues; ++index) {
    BlkDriverQueue& queue = session.driver().queue(index);
    if (!queue.submit({.type = spec::kBlkTypeIn, .sector = 0, .token = 1, .data = {&data, 1}, .ranges = {}})) {
      return failed("no room in the ring");
    }
    queue.publish_and_kick();
    BlkCompletion completion;
    const Instant deadline = clock_now() + context.options.answer_limit;
    std::size_t done = 0;
    while (done == 0 && clock_now() < deadline) {
      static_cast<void>(queue.wait(deadline));
      done = queue.reap({&completion, 1});
    }
    if (done == 0 || completion.status != spec::kBlkStatusOk) {
      return failed(fmt::format("queue {} of {} doesn't serve", index, options.queues));
    }
  }
  return pass(fmt::format("{} queue(s)", options.queues));
}

Result<Verdict> ring_sizes(const Context& context) {
  std::string seen;
  for (const std::uint32_t size : {2U, 4U, 128U, 256U, 1024U}) {
    BlkDriverOptions options = context.driver_options();
    options.queue_size = size;
    options.requests_per_queue = std::min(size, 64U);
    RW_TRY_ASSIGN(Session session, Session::open(options, context.options.answer_limit));
    if (!session.driver().negotiated().ring.indirect && size < 4) {
      continue;
    }
    for (std::uint32_t i = 0; i < 2 * size + 3; ++i) {
      if (!session.alive()) {
        return failed(fmt::format("{} descriptors: read {} failed", size, i));
      }
    }
    seen += fmt::format("{}{}", seen.empty() ? "" : ", ", size);
  }
  return pass(seen + " descriptors, each ring gone round twice");
}

constexpr Rule kRingRules[] = {
    {"each request completes once", "virtio 2.7.8, 2.8.6", true, Needs::nothing, each_token_once},
    {"no call while suppressed", "virtio 2.7.7, 2.7.10, 2.8.10", true, Needs::nothing,
     shared<check::no_call_while_suppressed>},
    {"a call when asked for", "virtio 2.7.7, 2.7.10, 2.8.10", true, Needs::nothing, shared<check::call_when_asked_for>},
    {"event index crossing", "virtio 2.7.10, 2.8.10", true, Needs::nothing, shared<check::event_index_crossing>},
    {"an idle ring wakes by a kick", "virtio 2.7.10", true, Needs::nothing, shared<check::idle_ring_wakes_by_a_kick>},
    {"GET_VRING_BASE is exact", "vhost-user, Starting and stopping rings", true, Needs::nothing, shared<check::exact_base>},
    {"stop and start", "vhost-user, Starting and stopping rings", true, Needs::nothing, shared<check::stop_and_start>},
    {"in-flight region", "vhost-user, Inflight I/O tracking", true, Needs::nothing, inflight_region},
    {"kick before enable", "vhost-user, SET_VRING_ENABLE", true, Needs::nothing, kick_before_enable},
    {"in order", "virtio 2.7.9, 2.8.11", true, Needs::nothing, in_order},
    {"every queue serves", "vhost-user, Multiple queue support", true, Needs::nothing, every_queue},
    {"ring sizes", "virtio 2.7, 2.8", true, Needs::nothing, ring_sizes},
};

}  // namespace

std::span<const Rule> ring_rules() {
  return kRingRules;
}

}  // namespace ringway::blk_check
