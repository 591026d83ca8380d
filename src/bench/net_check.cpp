#include "bench/net_check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "bench/connect_backend.hpp"
#include "bench/net_check_rules.hpp"
#include "bench/net_sequence.hpp"
#include "bench/report_error.hpp"
#include "loop/clock.hpp"

namespace ringway {
namespace net_check {

std::string describe(const Answer& answer) {
  return answer.completed ? fmt::format("used, length {}", answer.used_length) : "never used";
}

// ---------------------------------------------------------------- a session

namespace {

// Another than any bench's, so that a bench on the same network doesn't take these for its own.
constexpr std::uint16_t kCheckRun = 0xc4ec;
constexpr NetFrameMac kEverybody{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

void write_plain_frame(std::byte* at, std::uint32_t bytes, std::uint64_t number) {
  write_numbered_frame({at, bytes}, kEverybody, {.run = kCheckRun, .flow = 0, .number = number});
  for (std::size_t i = kNetLabelOffset + sizeof(NetFrameLabel); i < bytes; ++i) {
    at[i] = static_cast<std::byte>(i * 31 + i / 256 + number);
  }
}

std::string compare(const std::vector<std::byte>& came, std::span<const std::byte> sent) {
  if (came.size() != sent.size()) {
    return fmt::format("{} bytes came back, {} were sent", came.size(), sent.size());
  }
  const auto at = std::ranges::mismatch(came, sent).in1;
  return at == came.end() ? std::string() : fmt::format("byte {} of the frame came back as another", at - came.begin());
}

}  // namespace

Result<Session> Session::open(const NetDriverOptions& options, Duration answer_limit, bool loops) {
  Session session;
  session.answer_limit_ = answer_limit;
  session.loops_ = loops;
  RW_TRY_ASSIGN(session.driver_, NetDriver::create(options));
  const std::uint32_t regions = std::max(options.scratch_regions, 1U);
  for (std::uint32_t i = 0; i < regions; ++i) {
    const std::size_t region = options.scratch_regions == 0 ? 0 : i + 1;
    RW_TRY_ASSIGN(const SharedBlock block, session.driver_->memory().allocate(kScratchBytes, 4096, region));
    session.scratch_.push_back(block);
  }
  return session;
}

void Session::put_frame(std::uint32_t frame_bytes, std::uint64_t number, std::size_t region) {
  std::memset(host(0, region), 0, header_bytes());
  write_plain_frame(host(header_bytes(), region), frame_bytes, number);
}

bool Session::await_used(DriverQueue& queue, UsedElement& used, Duration limit) {
  const Instant deadline = clock_now() + limit;
  while (!queue.ring().take_used(used)) {
    if (queue.ring().broken() || driver_->peer_closed() || (!queue.wait(deadline) && clock_now() >= deadline)) {
      return false;
    }
  }
  return true;
}

Answer Session::send(std::span<const DriverBuffer> chain) {
  UsedElement used;
  if (!pair().tx.ring().add(chain, 0)) {
    return {};
  }
  pair().tx.publish_and_kick();
  const bool completed = await_used(pair().tx, used, answer_limit_);
  return {.completed = completed, .used_length = used.written_bytes};
}

bool Session::post(std::span<const DriverBuffer> chain, std::uint64_t token) {
  const bool posted = pair().rx.ring().add(chain, token);
  pair().rx.publish_and_kick();
  return posted;
}

std::optional<Session::Arrived> Session::arrived(NetDriverPair& from, Duration limit) {
  const Instant deadline = clock_now() + limit;
  NetDriverFrame frame;
  while (from.rx.receive({&frame, 1}) == 0) {
    if (from.rx.ring().broken() || driver_->peer_closed() || (!from.rx.wait(deadline) && clock_now() >= deadline)) {
      return {};
    }
  }
  Arrived arrived{.header = frame.header, .buffers = frame.buffers, .bytes = {}};
  for (const iovec& piece : frame.pieces) {
    const auto* first = static_cast<const std::byte*>(piece.iov_base);
    arrived.bytes.insert(arrived.bytes.end(), first, first + piece.iov_len);
  }
  from.rx.give_back({&frame, 1});
  static_cast<void>(from.rx.fill());
  return arrived;
}

std::string Session::returns(std::span<const DriverBuffer> chain, std::uint32_t frame_bytes) {
  if (const Answer answer = send(chain); !answer.completed || answer.used_length != 0) {
    return "the transmit chain: " + describe(answer);
  }
  const std::optional<Arrived> came = arrived();
  if (!came) {
    return "it didn't come back";
  }
  return compare(came->bytes, {host(header_bytes()), frame_bytes});
}

std::string Session::plain_frame(NetDriverPair& pair) {
  const std::uint64_t number = number_++;
  if (loops_) {
    static_cast<void>(pair.rx.fill());
  }
  const std::byte* const frame = pair.tx.buffer(0).host;
  write_plain_frame(pair.tx.buffer(0).host, kPlainBytes, number);
  const NetDriverTransmitQueue::Frame whole{.buffer = 0, .bytes = kPlainBytes};
  if (pair.tx.transmit({&whole, 1}) != 1) {
    return "no room in the ring";
  }
  pair.tx.publish_and_kick();
  UsedElement used;
  const bool completed = await_used(pair.tx, used, answer_limit_);
  if (const Answer answer{.completed = completed, .used_length = used.written_bytes};
      !completed || used.written_bytes != 0) {
    return describe(answer);
  }
  if (!loops_) {
    return {};
  }
  // Frames that were still on their way come first.
  const Instant deadline = clock_now() + answer_limit_;
  for (std::optional<Arrived> came; (came = arrived(pair, deadline - clock_now()));) {
    if (NetFrameLabel label; read_frame_label(came->bytes, label) && label.number == number) {
      return compare(came->bytes, {frame, kPlainBytes});
    }
  }
  return "it didn't come back";
}

bool Session::submit(std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    write_plain_frame(pair().tx.buffer(i).host, kPlainBytes, i);
    const NetDriverTransmitQueue::Frame frame{.buffer = i, .bytes = kPlainBytes};
    if (pair().tx.transmit({&frame, 1}) != 1) {
      return false;
    }
  }
  return true;
}

std::size_t Session::reap(std::size_t most) {
  std::size_t count = 0;
  std::uint64_t token = 0;
  while (count < most && pair().tx.reap_transmitted({&token, 1}) == 1) {
    ++count;
  }
  return count;
}

check::RegionUse Session::use_region(std::uint32_t index) {
  put_frame(kPlainBytes, number_++, index);
  if (loops_) {
    static_cast<void>(pair().rx.fill());
  }
  const DriverBuffer chain = at(0, header_bytes() + kPlainBytes, false, index);
  const Answer answer = send({&chain, 1});
  check::RegionUse use{.works = answer.completed && answer.used_length == 0, .shows_data = loops_, .seen = describe(answer)};
  if (loops_ && use.works) {
    const std::optional<Arrived> came = arrived(pair(), Duration::seconds(1));
    use.seen = came ? compare(came->bytes, {host(header_bytes(), index), kPlainBytes}) : "it didn't come back";
    use.works = use.seen.empty();
    use.seen = use.works ? "it came back" : use.seen;
  }
  return use;
}

// ---------------------------------------------------------------- what rules are given

NetDriverOptions Context::driver_options() const {
  NetDriverOptions driver;
  driver.socket_path = options.socket_path;
  driver.patience = options.patience;
  driver.packed = packed;
  driver.features = spec::kNetMtu | spec::kNetMac | spec::kNetMrgRxbuf | spec::kNetStatus;
  driver.control_queue = false;
  driver.receive_buffers = 64;
  driver.transmit_buffers = 64;
  driver.scratch_bytes = Session::kScratchBytes + 4096;
  driver.pieces_max = 120;
  return driver;
}

check::Backend Context::backend() const {
  static constexpr std::uint32_t kConfigOffsets[] = {0, 4, 6, 8, 10, 12, 16, 20};
  check::Backend backend;
  backend.open = [context = *this](const check::Backend::Wish& wish) -> Result<std::unique_ptr<check::Session>> {
    NetDriverOptions driver = context.driver_options();
    driver.scratch_regions = wish.data_regions;
    driver.memory_slots = wish.memory_slots;
    RW_TRY_ASSIGN(Session session, context.open(driver));
    return std::make_unique<Session>(std::move(session));
  };
  backend.request = "frame";
  backend.offered = offered;
  backend.protocol_offered = protocol_offered;
  backend.answer_limit = options.answer_limit;
  backend.packed = packed;
  backend.config_bytes = config_bytes;
  backend.config_offsets = kConfigOffsets;
  return backend;
}

Verdict next_session_works(Session&& session, const Context& context, const std::string& seen) {
  {
    // A back-end that serves one front-end at a time lets the second one wait.
    const Session closing = std::move(session);
  }
  Result<Session> next = context.open();
  if (!next) {
    return failed(seen + ", and no session can be opened any more: " + next.error().message);
  }
  const std::string wrong = next->plain_frame();
  return wrong.empty() ? pass(seen + "; the next session works") : failed(seen + "; the next session's frame: " + wrong);
}

namespace {

// What the back-end offers, by one ordinary session.
Result<> learn(Context& context) {
  NetDriverOptions driver = context.driver_options();
  driver.features = kNetDriverFeatures;
  driver.control_queue = true;
  RW_TRY_ASSIGN(const std::unique_ptr<NetDriver> session, connect_backend(driver, context.options.on_wait));
  context.offered = session->negotiated().offered;
  context.protocol_offered = session->negotiated().protocol_offered;
  context.queues_offered = session->negotiated().queues_offered;
  context.pairs_offered = session->pairs_offered();
  context.has_config = session->config_bytes() != 0;
  context.has_control = session->control() != nullptr;
  context.config_bytes = session->config_bytes();
  context.config = session->config();
  return {};
}

// By a session without offloads and without control queue, where a loop can't be anything but that.
Result<NetCheckPort> find_port(const Context& context) {
  constexpr Duration kLook = Duration::milliseconds(300);
  RW_TRY_ASSIGN(Session session, context.open());
  static_cast<void>(session.pair().rx.fill());
  if (!session.submit(1)) {
    return NetCheckPort::silent;
  }
  session.pair().tx.publish_and_kick();
  const Instant deadline = clock_now() + kLook;
  std::uint32_t others = 0;
  while (const std::optional<Session::Arrived> came = session.arrived(session.pair(), deadline - clock_now())) {
    if (NetFrameLabel label; read_frame_label(came->bytes, label) && label.run == kCheckRun) {
      return NetCheckPort::loop;
    }
    // A host's interface may send a few of its own; that is no source.
    if (++others == 1000) {
      return NetCheckPort::source;
    }
  }
  return NetCheckPort::silent;
}

Result<Verdict> judge(const Rule& rule, const Context& context) {
  if (rule.needs == Needs::loop && !context.loops()) {
    return skip("needs a back-end that returns frames to their sender (see --port)");
  }
  if (rule.needs == Needs::frames && !context.loops() && context.port != NetCheckPort::source) {
    return skip("needs a back-end that sends frames (see --port)");
  }
  if (rule.needs == Needs::control && !context.has_control) {
    return skip(context.offers(spec::kNetCtrlVq)
                    ? "without a configuration space the control queue is the front-end's to serve"
                    : "VIRTIO_NET_F_CTRL_VQ is not offered");
  }
  return rule.run(context);
}

}  // namespace
}  // namespace net_check

int run_net_check(const NetCheckOptions& options, std::ostream& out) {
  using namespace net_check;
  const check::Report::Options wanted{.only = options.only, .json = options.json};
  const auto groups = {session_rules(), frame_rules(), ring_rules(), control_rules()};
  if (options.list) {
    return check::list_groups<Rule>(groups, wanted, out);
  }
  Context context{.options = options, .port = options.port};
  if (const Result<> learned = learn(context); !learned) {
    report_error(learned.error().message, options.json, out);
    return 2;
  }
  if (context.port == NetCheckPort::unknown) {
    const Result<NetCheckPort> found = find_port(context);
    if (!found) {
      report_error(found.error().message, options.json, out);
      return 2;
    }
    context.port = *found;
  }
  return check::run_groups<Rule>(groups, context, wanted, out, judge);
}

}  // namespace ringway
