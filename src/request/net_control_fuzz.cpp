// Any sequence of commands, in any framing, from a driver with any features: what is understood must not depend on the
// framing, what is applied must leave a state that could be saved and loaded, and what is answered must lie where it
// belongs. With a flag, a second thread changes the commands while they are read.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "base/prng.hpp"
#include "request/net_filter.hpp"

namespace {

using namespace ringway;

constexpr std::byte kUntouched{0xc5};
constexpr std::size_t kCommandsMax = 32;
constexpr std::size_t kTextMax = 8192;  // of one command; each byte may be a descriptor
constexpr std::size_t kChangedMax = 4;  // commands of one input that are changed while they are read; that takes its time
constexpr std::uint64_t kFeatures =
    spec::kNetGuestCsum | spec::kNetGuestTso4 | spec::kNetGuestTso6 | spec::kNetGuestEcn | spec::kNetGuestUfo |
    spec::kNetGuestUso4 | spec::kNetGuestUso6 | spec::kNetCtrlGuestOffloads | spec::kNetMac | spec::kNetCtrlVq |
    spec::kNetCtrlRx | spec::kNetCtrlVlan | spec::kNetCtrlRxExtra | spec::kNetGuestAnnounce | spec::kNetMq |
    spec::kNetCtrlMacAddr | spec::kNetVqNotfCoal | spec::kNetNotfCoal | spec::kNetHashReport | spec::kNetRss;

constexpr std::uint8_t kFlagChanging = 1;  // a second thread changes the command
constexpr std::uint8_t kFlagFaults = 2;    // some chains have a fault
constexpr std::uint8_t kFlagBytewise = 4;  // one byte a descriptor
constexpr std::uint8_t kFlagNarrow = 8;    // only half of the queues are enabled

// The input: this first, then commands, each after its length in two bytes.
struct Setting {
  std::uint64_t seed;
  std::uint64_t features_off;
  std::uint8_t pairs;
  std::uint8_t flags;
  std::uint8_t unused[6];
};

// Changes bytes of some memory from another thread, from start() until stop().
class Changer {
 public:
  Changer() {
    std::thread([this] { run(); }).detach();
  }
  void start(std::span<const iovec> segments) {
    segments_ = segments;
    stopping_.store(false, std::memory_order_relaxed);
    ++round_;
    wanted_.store(round_, std::memory_order_release);  // pairs with the wait in run()
    wanted_.notify_one();
    while (running_.load(std::memory_order_acquire) != round_) {  // pairs with the store in run()
      std::this_thread::yield();
    }
  }
  void stop() {
    stopping_.store(true, std::memory_order_relaxed);
    done_.wait(round_ - 1, std::memory_order_acquire);  // pairs with the store in run()
  }

 private:
  void run() {
    Prng prng(1);
    for (std::uint32_t round = 1;; ++round) {
      wanted_.wait(round - 1, std::memory_order_acquire);
      running_.store(round, std::memory_order_release);
      while (!stopping_.load(std::memory_order_relaxed)) {
        const iovec& segment = segments_[prng.below(segments_.size())];
        auto* const byte = static_cast<std::uint8_t*>(segment.iov_base) + prng.below(segment.iov_len);
        __atomic_store_n(byte, static_cast<std::uint8_t>(prng.chance(1, 2) ? prng.below(8) : prng.next()), __ATOMIC_RELAXED);
      }
      done_.store(round, std::memory_order_release);
      done_.notify_one();
    }
  }

  std::span<const iovec> segments_;
  std::uint32_t round_ = 0;
  std::atomic<std::uint32_t> wanted_ = 0;
  std::atomic<std::uint32_t> running_ = 0;
  std::atomic<std::uint32_t> done_ = 0;
  std::atomic<bool> stopping_ = false;
};

// A chain in memory of its own, each segment a block that a sanitizer watches over.
class FuzzChain {
 public:
  void clear() {
    chain_.reset({});
    memory_.clear();
  }
  void readable(std::span<const std::byte> bytes) { append({bytes.begin(), bytes.end()}, false); }
  void writable(std::size_t bytes) { append(std::vector<std::byte>(bytes, kUntouched), true); }
  [[nodiscard]] const Chain& get() const { return chain_; }
  [[nodiscard]] std::vector<std::byte> written() const {
    std::vector<std::byte> all;
    for (const iovec& segment : chain_.writable()) {
      const auto* const first = static_cast<const std::byte*>(segment.iov_base);
      all.insert(all.end(), first, first + segment.iov_len);
    }
    return all;
  }

 private:
  void append(std::vector<std::byte> bytes, bool is_writable) {
    memory_.push_back(std::move(bytes));
    std::vector<std::byte>& block = memory_.back();
    chain_.storage()[chain_.count()++] = {block.data(), block.size()};
    chain_.account(is_writable, block.size());
  }

  Chain chain_;
  std::vector<std::vector<std::byte>> memory_;
};

struct Driver {
  std::uint64_t features = 0;
  NetControlLimits limits;
  NetDriverState state;
};

void check_state(const Driver& driver) {
  const auto saved = save_net_state(driver.state);
  const Result<NetDriverState> loaded = load_net_state(saved, driver.features, driver.limits);
  RW_CHECK(loaded.has_value() && *loaded == driver.state);

  const std::uint16_t pairs = net_pairs_available(driver.features, driver.limits.pairs_max);
  const NetReceiveFilter filter(driver.state, driver.features);
  RW_CHECK(net_receiving_pairs(driver.state) >= 1 && net_receiving_pairs(driver.state) <= pairs);
  for (const std::uint32_t hash : {0U, 0x9e3779b9U, 0xffffffffU}) {
    for (const std::uint16_t report : {spec::kNetHashReportNone, spec::kNetHashReportTcpv4}) {
      RW_CHECK(filter.select_pair(hash, report, 0xffff) < net_receiving_pairs(driver.state));
    }
  }
  std::array<std::byte, NetReceiveFilter::kHeadBytes> head{};
  std::memcpy(head.data(), driver.state.mac.data(), spec::kMacBytes);
  const bool promiscuous = driver.state.promiscuous && (driver.features & spec::kNetCtrlRx) != 0;
  RW_CHECK(filter.accepts(head) == (promiscuous || !driver.state.no_unicast));
  std::fill_n(head.begin(), spec::kMacBytes, std::byte{0xff});
  RW_CHECK(filter.accepts(head) == (promiscuous || !driver.state.no_broadcast));
  RW_CHECK((net_usable_offloads(driver.state.guest_offloads) & ~driver.state.guest_offloads) == 0);
}

// What holds of any command, whatever it was made from.
void check_command(const NetCommand& command) {
  if (const auto* const tables = std::get_if<NetSetMacTables>(&command)) {
    for (const NetMacTable& table : {tables->unicast, tables->multicast}) {
      RW_CHECK(table.count <= limits::kNetMacTableMax && (!table.all || table.count == 0));
    }
  }
  if (const auto* const rss = std::get_if<NetConfigureRss>(&command)) {
    RW_CHECK(rss->table.mask < limits::kNetRssTableMax && rss->hashing.key_bytes <= rss->hashing.key.size());
  }
  if (const auto* const hash = std::get_if<NetConfigureHash>(&command)) {
    RW_CHECK(hash->hashing.key_bytes <= hash->hashing.key.size());
  }
}

void apply(const NetControlParsed& parsed, Driver& driver, NetControlOutcome& outcome) {
  outcome = {parsed.refusal, {}};
  RW_CHECK((parsed.refusal == NetControlRefusal::none) != std::holds_alternative<std::monostate>(parsed.command));
  check_command(parsed.command);
  if (parsed.refusal != NetControlRefusal::none) {
    return;
  }
  const NetDriverState before = driver.state;
  outcome = apply_net_command(parsed.command, driver.features, driver.limits, driver.state);
  RW_CHECK(outcome.refusal == NetControlRefusal::none || driver.state == before);
}

void check_reply(const FuzzChain& chain, const NetControlReply& reply, const NetControlOutcome& outcome, bool chain_fault) {
  const std::size_t room = chain.written().size();
  if (room == 0) {
    RW_CHECK(reply.count == 0 && reply.used_length == 0);
    return;
  }
  RW_CHECK(reply.count > 0 && reply.bytes >= 1 && reply.bytes <= room);
  const std::uint32_t used = write_net_control_reply(reply, outcome.refusal, outcome.answer);
  const std::vector<std::byte> written = chain.written();
  const std::size_t ack = chain_fault ? room - 1 : reply.bytes - 1U;
  RW_CHECK(written[ack] == std::byte{outcome.refusal == NetControlRefusal::none ? spec::kNetAckOk : spec::kNetAckErr});
  RW_CHECK(used == (chain_fault && room > 1 ? 0U : reply.bytes));
  RW_CHECK(std::all_of(written.begin() + static_cast<std::ptrdiff_t>(ack) + 1, written.end(),
                       [](std::byte value) { return value == kUntouched; }));
  if (outcome.refusal == NetControlRefusal::none && reply.bytes == NetControlReply::kBytesMax) {
    RW_CHECK(std::memcmp(written.data(), &outcome.answer, sizeof outcome.answer) == 0);
  }
}

// Cuts both parts anyhow; the last writable descriptor may be missing.
void frame(std::span<const std::byte> text, bool bytewise, std::size_t room, Prng& prng, FuzzChain& out) {
  out.clear();
  while (!text.empty()) {
    const std::size_t bytes = bytewise ? 1 : 1 + prng.below(std::min<std::size_t>(text.size(), 300));
    out.readable(text.first(bytes));
    text = text.subspan(bytes);
  }
  while (room > 0) {
    const std::size_t bytes = bytewise ? 1 : 1 + prng.below(room);
    out.writable(bytes);
    room -= bytes;
  }
}

// Reads a chain while it is being changed: each time something must come out that a quiet chain could have held.
void serve_changing(const FuzzChain& chain, const Driver& driver) {
  static auto* const changer = new Changer;  // lives as long as its thread
  std::array<NetControlParsed, 8> parsed;
  changer->start(chain.get().readable());
  for (NetControlParsed& one : parsed) {
    one = parse_net_control(chain.get(), false);
  }
  changer->stop();
  for (const NetControlParsed& one : parsed) {
    Driver copy = driver;
    NetControlOutcome outcome;
    apply(one, copy, outcome);
    if (outcome.refusal == NetControlRefusal::none) {
      check_state(copy);
    }
  }
}

void serve(std::span<const std::byte> text, const Setting& setting, bool changing, Prng& prng, Driver& driver) {
  static FuzzChain flat;
  static FuzzChain framed;
  const std::size_t room = prng.chance(1, 2) ? 9 : prng.below(13);
  flat.clear();
  if (!text.empty()) {
    flat.readable(text);
  }
  if (room > 0) {
    flat.writable(room);
  }
  frame(text, (setting.flags & kFlagBytewise) != 0, room, prng, framed);
  const bool chain_fault = (setting.flags & kFlagFaults) != 0 && prng.chance(1, 8);

  const NetControlParsed expected = parse_net_control(flat.get(), chain_fault);
  const NetControlParsed parsed = parse_net_control(framed.get(), chain_fault);
  RW_CHECK(parsed.refusal == expected.refusal && parsed.command == expected.command);
  RW_CHECK(parsed.reply.bytes == expected.reply.bytes && parsed.reply.used_length == expected.reply.used_length);

  NetControlOutcome outcome;
  apply(parsed, driver, outcome);
  check_reply(framed, parsed.reply, outcome, chain_fault);
  check_state(driver);

  if (changing && !text.empty()) {
    serve_changing(framed, driver);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  Setting setting;
  if (size < sizeof setting) {
    return 0;
  }
  std::memcpy(&setting, input, sizeof setting);
  auto rest = std::as_bytes(std::span(input, size)).subspan(sizeof setting);

  Driver driver;
  driver.features = kFeatures & ~setting.features_off;
  driver.limits.pairs_max = static_cast<std::uint16_t>(1 + setting.pairs % 127);
  driver.limits.hash_types = 0x1ff;
  driver.limits.enabled_queues.set();
  if ((setting.flags & kFlagNarrow) != 0) {
    driver.limits.enabled_queues >>= driver.limits.enabled_queues.size() / 2;
  }
  driver.state = NetDriverState::after_reset(driver.features, NetMac{0x52, 0x54, 0, 1, 2, 3});
  check_state(driver);

  Prng prng(setting.seed);
  for (std::size_t i = 0; i < kCommandsMax && rest.size() >= 2; ++i) {
    std::uint16_t length = 0;
    std::memcpy(&length, rest.data(), sizeof length);
    rest = rest.subspan(sizeof length);
    const std::size_t bytes = std::min({std::size_t{length}, rest.size(), kTextMax});
    serve(rest.first(bytes), setting, (setting.flags & kFlagChanging) != 0 && i < kChangedMax, prng, driver);
    rest = rest.subspan(bytes);
    if (prng.chance(1, 8)) {
      reset_net_queue(driver.state, prng.below(2 * std::uint64_t{driver.limits.pairs_max}));
      check_state(driver);
    }
  }
  // The form that a migration brings, damaged anywhere.
  auto saved = save_net_state(driver.state);
  saved[prng.below(saved.size())] ^= static_cast<std::byte>(1 + prng.below(255));
  RW_CHECK(!load_net_state(saved, driver.features, driver.limits).has_value());
  return 0;
}
