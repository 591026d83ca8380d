// What the rules of `ringway check blk` are made of. Private to blk_check*.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/blk_check.hpp"
#include "bench/check_report.hpp"
#include "bench/check_shared_rules.hpp"
#include "driver/blk_driver.hpp"

namespace ringway::blk_check {

using check::failed;
using check::kQuietMilliseconds;
using check::pass;
using check::shared;
using check::skip;
using check::Verdict;

// How one request ended.
struct Answer {
  bool completed = false;
  std::uint8_t status = kStatusUntouched;
  std::uint32_t used_length = 0;
  [[nodiscard]] bool ok() const { return completed && status == spec::kBlkStatusOk; }
  [[nodiscard]] bool refused() const { return completed && status != spec::kBlkStatusOk && status != kStatusUntouched; }
};
[[nodiscard]] std::string describe(const Answer& answer);

// A session for one rule: a driver, scratch memory, and requests one at a time on queue 0.
class Session final : public check::Session {
 public:
  static constexpr std::size_t kScratchBytes = std::size_t{4} << 20U;

  static Result<Session> open(const BlkDriverOptions& options, Duration answer_limit);

  [[nodiscard]] BlkDriver& driver() { return *driver_; }
  [[nodiscard]] DriverSession& session() override { return *driver_; }
  [[nodiscard]] BlkDriverQueue& queue() override { return driver_->queue(0); }
  [[nodiscard]] std::byte* host(std::size_t offset = 0) { return scratch_.host + offset; }
  // A buffer of the scratch memory.
  [[nodiscard]] DriverBuffer at(std::size_t offset, std::size_t bytes, bool writable = false) const {
    return {GuestAddress{scratch_.guest.value + offset}, static_cast<std::uint32_t>(bytes), writable};
  }

  [[nodiscard]] Answer request(std::uint32_t type, std::uint64_t sector, std::span<const DriverBuffer> data,
                               std::span<const spec::BlkRange> ranges = {});
  // A chain as it is; its status is read at `status_offset` of the scratch memory.
  [[nodiscard]] Answer chain(std::span<const DriverBuffer> chain, std::size_t status_offset);
  [[nodiscard]] bool alive() override;
  // Reads, whose tokens count from 0.
  [[nodiscard]] bool submit(std::uint32_t count) override;
  [[nodiscard]] std::size_t reap(std::size_t most) override;
  [[nodiscard]] check::RegionUse use_region(std::uint32_t index) override;
  // Waits for one completion; false at the limit.
  [[nodiscard]] bool await(BlkCompletion& completion);

 private:
  std::unique_ptr<BlkDriver> driver_;
  SharedBlock scratch_;
  Duration answer_limit_;
};

// What the rules are given.
struct Context {
  const BlkCheckOptions& options;
  bool packed = false;
  std::uint64_t offered = 0;  // virtio features
  std::uint64_t protocol_offered = 0;
  std::uint64_t queues_offered = 1;
  spec::BlkConfig config{};

  [[nodiscard]] bool offers(std::uint64_t bits) const { return (offered & bits) == bits; }
  [[nodiscard]] bool offers_protocol(std::uint64_t bits) const { return (protocol_offered & bits) == bits; }
  [[nodiscard]] bool may_write() const { return options.allow_writes && !offers(spec::kBlkRo); }
  [[nodiscard]] std::uint32_t block() const {
    return offers(spec::kBlkBlkSize) && config.blk_size != 0 ? config.blk_size : spec::kSectorBytes;
  }
  // Driver options that suit most rules.
  [[nodiscard]] BlkDriverOptions driver_options() const;
  [[nodiscard]] Result<Session> open() const { return Session::open(driver_options(), options.answer_limit); }
  // The back-end for the rules that every type of device has.
  [[nodiscard]] check::Backend backend() const;
};

enum class Needs : std::uint8_t {
  nothing,
  writing,  // a disk that can be written, and that may be
};

using Rule = check::RuleFor<Context, Needs>;

[[nodiscard]] std::span<const Rule> session_rules();
[[nodiscard]] std::span<const Rule> request_rules();
[[nodiscard]] std::span<const Rule> ring_rules();

}  // namespace ringway::blk_check
