#include "backend/blk/faulty_store.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <mutex>

#include "backend/blk/make_store.hpp"
#include "base/check.hpp"
#include "base/prng.hpp"
#include "base/unique_fd.hpp"
#include "loop/clock.hpp"
#include "ring/spec.hpp"

namespace ringway {
namespace {

class FaultyChannel;

class FaultyStoreImpl final : public FaultyStore {
 public:
  FaultyStoreImpl(std::unique_ptr<BlkStore> inner, const BlkFaults& faults) : inner_(std::move(inner)), faults_(faults) {
    take_info();
  }

  void release() noexcept override;
  [[nodiscard]] const BlkStoreInfo& info() const noexcept override { return info_; }
  [[nodiscard]] Result<> refresh() override {
    RW_TRY(inner_->refresh());
    take_info();
    return {};
  }
  [[nodiscard]] Result<> resize(std::uint64_t bytes) override {
    RW_TRY(inner_->resize(bytes));
    take_info();
    return {};
  }
  [[nodiscard]] Result<std::unique_ptr<BlkChannel>> open_channel(Loop& loop, BlkChannelCounters& counters) override;
  [[nodiscard]] std::string default_serial() const override { return inner_->default_serial(); }

  [[nodiscard]] const BlkFaults& faults() const { return faults_; }
  // Relaxed is enough: the eventfd that is written afterwards orders it.
  [[nodiscard]] bool released() const noexcept { return released_.load(std::memory_order_relaxed); }
  void forget(FaultyChannel& channel) {
    const std::lock_guard lock(mutex_);
    std::erase(channels_, &channel);
  }

 private:
  void take_info() {
    info_ = inner_->info();
    info_.engine = "faulty+" + info_.engine;
  }

  const std::unique_ptr<BlkStore> inner_;
  const BlkFaults faults_;
  BlkStoreInfo info_;
  std::atomic<bool> released_{false};
  std::mutex mutex_;
  std::vector<FaultyChannel*> channels_;  // under mutex_
  std::atomic<std::uint64_t> opened_{0};
};

class FaultyChannel final : public BlkChannel, private TimerHandler, private FdHandler {
 public:
  FaultyChannel(FaultyStoreImpl& store, Loop& loop, BlkChannelCounters& counters, std::unique_ptr<BlkChannel> inner,
                UniqueFd event, std::uint64_t number)
      : BlkChannel(counters),
        store_(store),
        loop_(loop),
        inner_(std::move(inner)),
        event_(std::move(event)),
        prng_(store.faults().seed + number) {}
  FaultyChannel(const FaultyChannel&) = delete;
  FaultyChannel& operator=(const FaultyChannel&) = delete;
  ~FaultyChannel() override {
    RW_CHECK(delayed_.empty() && hung_.empty());
    store_.forget(*this);
    loop_.cancel_timer(*this);
    loop_.unwatch(watch_);
  }

  [[nodiscard]] Result<> open() {
    RW_TRY_ASSIGN(watch_, loop_.watch(event_.get(), EPOLLIN, *this));
    return {};
  }
  void wake() const noexcept {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(event_.get(), &one, sizeof one));
  }

  void submit(BlkOperation& operation) noexcept override {
    const BlkFault* const fault = choose(operation.request);
    if (fault == nullptr) {
      inner_->submit(operation);
      copied_ += inner_->take_copied();
      return;
    }
    switch (fault->kind) {
      case BlkFault::Kind::eio:
        counters_.add_failure(BlkFailure::io, EIO);
        return complete(operation, spec::kBlkStatusIoErr);
      case BlkFault::Kind::hang:
        hung_.push_back(&operation);
        return;
      case BlkFault::Kind::delay: {
        const Instant due = clock_now() + fault->delay;
        const auto after = std::ranges::upper_bound(delayed_, due, {}, &Delayed::due);
        delayed_.insert(after, {due, &operation});
        loop_.set_timer(*this, delayed_.front().due);
        return;
      }
    }
  }
  void end_of_batch() noexcept override { inner_->end_of_batch(); }
  void use_memory(const std::shared_ptr<const RegionMap>& map) override { inner_->use_memory(map); }

  [[nodiscard]] std::uint32_t in_flight() const noexcept override {
    return inner_->in_flight() + static_cast<std::uint32_t>(delayed_.size() + hung_.size());
  }

 private:
  struct Delayed {
    Instant due;
    BlkOperation* operation;
  };

  static bool touches(const BlkRequest& request, std::uint64_t byte) {
    if (byte >= request.offset && byte - request.offset < request.bytes) {
      return true;
    }
    return std::any_of(
        request.ranges.begin(), request.ranges.begin() + request.range_count,
        [&](const BlkRequestRange& range) { return byte >= range.offset && byte - range.offset < range.bytes; });
  }

  const BlkFault* choose(const BlkRequest& request) noexcept {
    for (const BlkFault& fault : store_.faults().requests) {
      const bool applies = (!fault.opcode || *fault.opcode == request.opcode) &&
                           (!fault.touching || touches(request, *fault.touching)) &&
                           (fault.kind != BlkFault::Kind::hang || !store_.released());
      if (applies && prng_.chance(fault.numerator, fault.denominator)) {
        return &fault;
      }
    }
    return nullptr;
  }

  void on_timer(Instant now) noexcept override {
    while (!delayed_.empty() && delayed_.front().due <= now) {
      BlkOperation& operation = *delayed_.front().operation;
      delayed_.erase(delayed_.begin());
      inner_->submit(operation);
    }
    if (!delayed_.empty()) {
      loop_.set_timer(*this, delayed_.front().due);
    }
    inner_->end_of_batch();
  }

  void on_ready(std::uint32_t /*events*/) noexcept override {
    std::uint64_t ignored = 0;
    static_cast<void>(!::read(event_.get(), &ignored, sizeof ignored));
    if (store_.released()) {
      std::vector<BlkOperation*> released;
      released.swap(hung_);
      for (BlkOperation* const operation : released) {
        inner_->submit(*operation);
      }
      inner_->end_of_batch();
    }
  }

  FaultyStoreImpl& store_;
  Loop& loop_;
  const std::unique_ptr<BlkChannel> inner_;
  UniqueFd event_;
  WatchId watch_;
  Prng prng_;
  std::vector<Delayed> delayed_;  // the next one first
  std::vector<BlkOperation*> hung_;
};

void FaultyStoreImpl::release() noexcept {
  const std::lock_guard lock(mutex_);
  released_.store(true, std::memory_order_relaxed);
  for (const FaultyChannel* const channel : channels_) {
    channel->wake();
  }
}

Result<std::unique_ptr<BlkChannel>> FaultyStoreImpl::open_channel(Loop& loop, BlkChannelCounters& counters) {
  RW_TRY_ASSIGN(std::unique_ptr<BlkChannel> inner, inner_->open_channel(loop, counters));
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) {
    return fail_errno(errno, "eventfd for a fault-injecting disk");
  }
  // Relaxed: only the number counts.
  const std::uint64_t number = opened_.fetch_add(1, std::memory_order_relaxed);
  auto channel = std::make_unique<FaultyChannel>(*this, loop, counters, std::move(inner), std::move(event), number);
  RW_TRY(channel->open());
  const std::lock_guard lock(mutex_);
  channels_.push_back(channel.get());
  return channel;
}

// --- text ---

std::unexpected<Error> bad_item(std::string_view item, std::string_view why) {
  return fail(fmt::format("fault '{}': {}", item, why));
}

Result<> parse_fraction(std::string_view item, std::string_view text, std::uint32_t& numerator, std::uint32_t& denominator) {
  const std::size_t slash = text.find('/');
  const auto number = [](std::string_view digits, std::uint32_t& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc{} && end == digits.data() + digits.size();
  };
  if (slash == std::string_view::npos || !number(text.substr(0, slash), numerator) ||
      !number(text.substr(slash + 1), denominator) || denominator == 0 || numerator > denominator) {
    return bad_item(item, "give a fraction such as 1/100");
  }
  return {};
}

Result<Duration> parse_duration(std::string_view item, std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, text.data() + text.size());
  if (error == std::errc{} && number >= 0 && number <= 3'600'000'000) {
    if (unit == "ns") {
      return Duration::nanoseconds(number);
    }
    if (unit == "us") {
      return Duration::microseconds(number);
    }
    if (unit == "ms") {
      return Duration::milliseconds(number);
    }
    if (unit == "s" && number <= 3600) {
      return Duration::seconds(number);
    }
  }
  return bad_item(item, "give a time such as 500us, 20ms or 1s");
}

Result<> parse_item(std::string_view item, BlkFaults& faults) {
  // name[=value][:opcode][@offset]
  std::string_view rest = item;
  const auto cut = [&rest](char mark) {
    const std::size_t at = rest.rfind(mark);
    const std::string_view tail = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
    rest = rest.substr(0, at);
    return tail;
  };
  const std::string_view offset = cut('@');
  const std::string_view opcode = cut(':');
  const std::string_view value = cut('=');
  const std::string_view name = rest;
  if (name == "seed") {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), faults.seed);
    faults.file.seed = faults.seed;
    return error == std::errc{} && end == value.data() + value.size() ? Result<>{} : bad_item(item, "give a number");
  }
  if (name == "short") {
    return parse_fraction(item, value, faults.file.short_numerator, faults.file.short_denominator);
  }
  if (name == "eagain") {
    return parse_fraction(item, value, faults.file.again_numerator, faults.file.again_denominator);
  }
  BlkFault fault;
  if (name == "delay") {
    fault.kind = BlkFault::Kind::delay;
    RW_TRY_ASSIGN(fault.delay, parse_duration(item, value));
  } else if (name == "eio" || name == "hang") {
    fault.kind = name == "eio" ? BlkFault::Kind::eio : BlkFault::Kind::hang;
    if (!value.empty()) {
      RW_TRY(parse_fraction(item, value, fault.numerator, fault.denominator));
    }
  } else {
    return bad_item(item, "known are eio, delay, hang, short, eagain and seed");
  }
  if (!offset.empty()) {
    RW_TRY_ASSIGN(fault.touching, parse_size(offset));
  }
  for (std::size_t i = 0; i < kBlkOpcodes && !opcode.empty(); ++i) {
    if (opcode == to_string(static_cast<BlkOpcode>(i))) {
      fault.opcode = static_cast<BlkOpcode>(i);
    }
  }
  if (!opcode.empty() && !fault.opcode) {
    return bad_item(item, "after ':' give in, out, flush, discard, write_zeroes or secure_erase");
  }
  faults.requests.push_back(fault);
  return {};
}

}  // namespace

Result<BlkFaults> parse_blk_faults(std::string_view text) {
  BlkFaults faults;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    RW_TRY(parse_item(text.substr(0, comma), faults));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return faults;
}

std::unique_ptr<FaultyStore> make_faulty_store(std::unique_ptr<BlkStore> store, const BlkFaults& faults) {
  return std::make_unique<FaultyStoreImpl>(std::move(store), faults);
}

}  // namespace ringway
