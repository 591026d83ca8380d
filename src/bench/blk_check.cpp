#include "bench/blk_check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <string_view>

#include "bench/blk_check_rules.hpp"
#include "bench/connect_backend.hpp"
#include "bench/report_error.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace blk_check {

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

bool Session::submit(std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const DriverBuffer data{queue().buffer(i).guest, driver_->block_bytes(), true};
    if (!queue().submit({.type = spec::kBlkTypeIn, .sector = 0, .token = i, .data = {&data, 1}, .ranges = {}})) {
      return false;
    }
  }
  return true;
}

std::size_t Session::reap(std::size_t most) {
  std::size_t count = 0;
  BlkCompletion completion;
  while (count < most && queue().reap({&completion, 1}) == 1) {
    ++count;
  }
  return count;
}

check::RegionUse Session::use_region(std::uint32_t index) {
  const DriverBuffer data{queue().buffer(index).guest, driver_->block_bytes(), true};
  const Answer answer = request(spec::kBlkTypeIn, 0, {&data, 1});
  return {.works = answer.ok(), .shows_data = true, .seen = describe(answer)};
}

check::Backend Context::backend() const {
  static constexpr std::uint32_t kConfigOffsets[] = {0, 8, 20, 34, 56};
  check::Backend backend;
  backend.open = [context = *this](const check::Backend::Wish& wish) -> Result<std::unique_ptr<check::Session>> {
    BlkDriverOptions driver = context.driver_options();
    driver.data_regions = wish.data_regions;
    driver.memory_slots = wish.memory_slots;
    RW_TRY_ASSIGN(Session session, Session::open(driver, context.options.answer_limit));
    return std::make_unique<Session>(std::move(session));
  };
  backend.request = "read";
  backend.offered = offered;
  backend.protocol_offered = protocol_offered;
  backend.answer_limit = options.answer_limit;
  backend.packed = packed;
  backend.descriptors = 3;
  backend.config_bytes = offsetof(spec::BlkConfig, max_secure_erase_sectors);
  backend.config_offsets = kConfigOffsets;
  return backend;
}

namespace {

Result<Verdict> judge(const Rule& rule, const Context& context) {
  if (rule.needs == Needs::writing && context.offers(spec::kBlkRo)) {
    return skip("the disk is read-only");
  }
  if (rule.needs == Needs::writing && !context.options.allow_writes) {
    return skip("writing was not allowed");
  }
  return rule.run(context);
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
  const check::Report::Options wanted{.only = options.only, .json = options.json};
  const auto groups = {session_rules(), request_rules(), ring_rules()};
  if (options.list) {
    return check::list_groups<Rule>(groups, wanted, out);
  }
  Context context{.options = options};
  if (const Result<> learned = learn(context); !learned) {
    report_error(learned.error().message, options.json, out);
    return 2;
  }
  return check::run_groups<Rule>(groups, context, wanted, out, judge);
}

}  // namespace ringway
