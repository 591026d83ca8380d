#include "bench/blk_check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <ostream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "bench/blk_check_rules.hpp"
#include "bench/connect_backend.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace blk_check {

Verdict pass(std::string seen) {
  return {Outcome::pass, std::move(seen)};
}
Verdict failed(std::string seen) {
  return {Outcome::fail, std::move(seen)};
}
Verdict skip(std::string why) {
  return {Outcome::skip, std::move(why)};
}

std::string describe(const Answer& answer) {
  if (!answer.completed) {
    return "never completed";
  }
  const char* status = answer.status == spec::kBlkStatusOk            ? "OK"
                       : answer.status == spec::kBlkStatusIoErr       ? "IOERR"
                       : answer.status == spec::kBlkStatusUnsupported ? "UNSUPP"
                       : answer.status == kStatusUntouched            ? "status not written"
                                                                      : "an unknown status";
  return fmt::format("{}, used length {}", status, answer.used_length);
}

BlkDriverOptions Context::driver_options() const {
  BlkDriverOptions driver;
  driver.socket_path = options.socket_path;
  driver.patience = options.patience;
  driver.packed = packed;
  driver.segments_max = 126;
  driver.requests_per_queue = 64;
  driver.scratch_bytes = Session::kScratchBytes + 4096;
  return driver;
}

Result<Session> Session::open(const BlkDriverOptions& options, Duration answer_limit) {
  Session session;
  session.answer_limit_ = answer_limit;
  RW_TRY_ASSIGN(session.driver_, BlkDriver::create(options));
  RW_TRY_ASSIGN(session.scratch_, session.driver_->memory().allocate(kScratchBytes, 4096));
  return session;
}

bool Session::await(BlkCompletion& completion) {
  const Instant deadline = clock_now() + answer_limit_;
  while (true) {
    if (queue().reap({&completion, 1}) == 1) {
      return true;
    }
    if (clock_now() >= deadline || driver_->peer_closed()) {
      return false;
    }
    static_cast<void>(queue().wait(std::min(deadline, clock_now() + Duration::milliseconds(200))));
  }
}

Answer Session::request(std::uint32_t type, std::uint64_t sector, std::span<const DriverBuffer> data,
                        std::span<const spec::BlkRange> ranges) {
  Answer answer;
  if (!queue().submit({.type = type, .sector = sector, .token = 1, .data = data, .ranges = ranges})) {
    return answer;
  }
  queue().publish_and_kick();
  BlkCompletion completion;
  answer.completed = await(completion);
  answer.status = completion.status;
  answer.used_length = completion.written_bytes;
  return answer;
}

Answer Session::chain(std::span<const DriverBuffer> buffers, std::size_t status_offset) {
  Answer answer;
  *host(status_offset) = std::byte{kStatusUntouched};
  if (!queue().submit_chain(buffers, 1)) {
    return answer;
  }
  queue().publish_and_kick();
  BlkCompletion completion;
  answer.completed = await(completion);
  std::memcpy(&answer.status, host(status_offset), 1);
  answer.used_length = completion.written_bytes;
  return answer;
}

bool Session::alive() {
  const DriverBuffer data = at(kScratchBytes - driver_->block_bytes(), driver_->block_bytes());
  return request(spec::kBlkTypeIn, 0, {&data, 1}).ok();
}

namespace {

struct Tally {
  std::size_t passed = 0, failed = 0, skipped = 0;
  bool any = false;  // a rule had the name that was asked for
};

const char* outcome_name(Outcome outcome) {
  return outcome == Outcome::pass ? "PASS" : outcome == Outcome::fail ? "FAIL" : "SKIP";
}

Verdict judge(const Rule& rule, const Context& context) {
  if (rule.writes && context.offers(spec::kBlkRo)) {
    return skip("the disk is read-only");
  }
  if (rule.writes && !context.options.allow_writes) {
    return skip("writing was not allowed");
  }
  const Result<Verdict> verdict = rule.run(context);
  return verdict ? *verdict : failed(verdict.error().message);
}

// Whatever the case of their letters.
bool has(std::string_view name, std::string_view part) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  return !std::ranges::search(name, part, same).empty() || part.empty();
}

void run_rules(std::span<const Rule> rules, const Context& context, std::ostream& out, nlohmann::json& list, Tally& tally) {
  for (const Rule& rule : rules) {
    if (context.packed && !rule.each_layout) {
      continue;
    }
    const std::string name = std::string(rule.each_layout ? (context.packed ? "packed: " : "split: ") : "") + rule.name;
    if (!has(name, context.options.only)) {
      continue;
    }
    tally.any = true;
    const Verdict verdict = judge(rule, context);
    (verdict.outcome == Outcome::pass ? tally.passed : verdict.outcome == Outcome::fail ? tally.failed : tally.skipped)++;
    if (context.options.json) {
      list.push_back(
          {{"rule", name}, {"outcome", outcome_name(verdict.outcome)}, {"seen", verdict.seen}, {"where", rule.where}});
    } else {
      out << fmt::format("{}  {} - {} [{}]\n", outcome_name(verdict.outcome), name, verdict.seen, rule.where) << std::flush;
    }
  }
}

// What the back-end offers, by one ordinary session.
Result<> learn(Context& context) {
  RW_TRY_ASSIGN(const std::unique_ptr<BlkDriver> driver, connect_backend(context.driver_options(), context.options.on_wait));
  context.offered = driver->negotiated().offered;
  context.protocol_offered = driver->negotiated().protocol_offered;
  context.queues_offered = driver->negotiated().queues_offered;
  context.config = driver->config();
  return {};
}

}  // namespace
}  // namespace blk_check

int run_blk_check(const BlkCheckOptions& options, std::ostream& out) {
  using namespace blk_check;
  Context context{.options = options};
  if (const Result<> learned = learn(context); !learned) {
    if (options.json) {
      out << nlohmann::json{{"error", learned.error().message}}.dump() << '\n';
    } else {
      out << "error: " << learned.error().message << '\n';
    }
    return 2;
  }
  nlohmann::json list = nlohmann::json::array();
  Tally tally;
  run_rules(session_rules(), context, out, list, tally);
  for (const bool packed : {false, true}) {
    context.packed = packed;
    if (packed && !context.offers(spec::kFeatureRingPacked)) {
      if (!options.json) {
        out << "SKIP  packed: all rules - the back-end doesn't offer VIRTIO_F_RING_PACKED [virtio 2.8]\n";
      }
      ++tally.skipped;
      break;
    }
    run_rules(request_rules(), context, out, list, tally);
    run_rules(ring_rules(), context, out, list, tally);
  }
  if (!tally.any) {
    const std::string error = fmt::format(
        "no rule that applies to this back-end has '{}' in its name; without --only all are listed", options.only);
    out << (options.json ? nlohmann::json{{"error", error}}.dump() : "error: " + error) << '\n';
    return 2;
  }
  if (options.json) {
    out << nlohmann::json{{"rules", list}, {"passed", tally.passed}, {"failed", tally.failed}, {"skipped", tally.skipped}}
               .dump(2)
        << '\n';
  } else {
    out << fmt::format("{} passed, {} failed, {} skipped\n", tally.passed, tally.failed, tally.skipped);
  }
  return tally.failed == 0 ? 0 : 1;
}

}  // namespace ringway
