// What the rules of `ringway check net` are made of. Private to net_check*.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/check_report.hpp"
#include "bench/check_shared_rules.hpp"
#include "bench/net_check.hpp"
#include "driver/net_driver.hpp"

namespace ringway::net_check {

using check::failed;
using check::kQuietMilliseconds;
using check::pass;
using check::shared;
using check::skip;
using check::Verdict;

// How one chain ended.
struct Answer {
  bool completed = false;
  std::uint32_t used_length = 0;
};
[[nodiscard]] std::string describe(const Answer& answer);

// A session for one rule: a driver, scratch memory, and frames one at a time on pair 0.
class Session final : public check::Session {
 public:
  static constexpr std::size_t kScratchBytes = std::size_t{1} << 20U;
  static constexpr std::uint32_t kPlainBytes = 100;  // of the frame that alive() sends

  static Result<Session> open(const NetDriverOptions& options, Duration answer_limit, bool loops);

  [[nodiscard]] NetDriver& driver() { return *driver_; }
  [[nodiscard]] NetDriverPair& pair() { return driver_->pair(0); }
  [[nodiscard]] DriverSession& session() override { return *driver_; }
  [[nodiscard]] DriverQueue& queue() override { return pair().tx; }
  [[nodiscard]] std::uint32_t header_bytes() const { return driver_->header_bytes(); }
  [[nodiscard]] Duration answer_limit() const { return answer_limit_; }

  // The scratch memory, of data region `region` if there are such.
  [[nodiscard]] std::byte* host(std::size_t offset = 0, std::size_t region = 0) { return scratch_[region].host + offset; }
  [[nodiscard]] DriverBuffer at(std::size_t offset, std::size_t bytes, bool writable = false, std::size_t region = 0) const {
    return {GuestAddress{scratch_[region].guest.value + offset}, static_cast<std::uint32_t>(bytes), writable};
  }
  // A header without offloads and, behind it, a numbered frame of so many bytes, at the start of the scratch memory.
  void put_frame(std::uint32_t frame_bytes, std::uint64_t number, std::size_t region = 0);

  // One chain of the transmit queue.
  [[nodiscard]] Answer send(std::span<const DriverBuffer> chain);
  // One chain for the receive queue, not waited for; false if there is no room.
  [[nodiscard]] bool post(std::span<const DriverBuffer> chain, std::uint64_t token = 0);
  // Whether a used element of `queue` comes in time; of a receive queue that has only chains of post().
  [[nodiscard]] bool await_used(DriverQueue& queue, UsedElement& used, Duration limit);
  // The next frame that arrives, in buffers of fill(); they are given back at once, so only the copy is the caller's.
  struct Arrived {
    spec::NetHeader header;
    std::uint32_t buffers = 0;
    std::vector<std::byte> bytes;
  };
  [[nodiscard]] std::optional<Arrived> arrived(NetDriverPair& from, Duration limit);
  [[nodiscard]] std::optional<Arrived> arrived() { return arrived(pair(), answer_limit_); }
  // Sends the chain, which makes a frame, and compares what comes back with what put_frame() put there. What is wrong, or
  // nothing.
  [[nodiscard]] std::string returns(std::span<const DriverBuffer> chain, std::uint32_t frame_bytes);

  [[nodiscard]] bool alive() override { return plain_frame().empty(); }
  // A plain frame: what is wrong with it, or nothing.
  [[nodiscard]] std::string plain_frame() { return plain_frame(pair()); }
  [[nodiscard]] std::string plain_frame(NetDriverPair& pair);
  [[nodiscard]] bool submit(std::uint32_t count) override;
  [[nodiscard]] std::size_t reap(std::size_t most) override;
  [[nodiscard]] check::RegionUse use_region(std::uint32_t index) override;

 private:
  std::unique_ptr<NetDriver> driver_;
  std::vector<SharedBlock> scratch_;
  Duration answer_limit_;
  bool loops_ = false;
  std::uint64_t number_ = 1'000'000;  // of the next plain frame
};

// What the rules are given.
struct Context {
  const NetCheckOptions& options;
  bool packed = false;
  NetCheckPort port = NetCheckPort::unknown;
  std::uint64_t offered = 0;  // virtio features
  std::uint64_t protocol_offered = 0;
  std::uint64_t queues_offered = 1;
  std::uint32_t pairs_offered = 1;
  bool has_config = false;
  bool has_control = false;  // a control queue that the back-end itself serves
  std::uint32_t config_bytes = 0;
  spec::NetConfig config{};

  [[nodiscard]] bool offers(std::uint64_t bits) const { return (offered & bits) == bits; }
  [[nodiscard]] bool offers_protocol(std::uint64_t bits) const { return (protocol_offered & bits) == bits; }
  [[nodiscard]] bool loops() const { return port == NetCheckPort::loop; }
  // Driver options that suit most rules: no offloads, since what is sent shall be what comes.
  [[nodiscard]] NetDriverOptions driver_options() const;
  [[nodiscard]] Result<Session> open(const NetDriverOptions& driver) const {
    return Session::open(driver, options.answer_limit, loops());
  }
  [[nodiscard]] Result<Session> open() const { return open(driver_options()); }
  // The back-end for the rules that every type of device has.
  [[nodiscard]] check::Backend backend() const;
};

// Closes `session`, if it stands, and says whether another one works: what must hold after chains that a device may answer
// by stopping and asking for a reset.
[[nodiscard]] Verdict next_session_works(Session&& session, const Context& context, const std::string& seen);

enum class Needs : std::uint8_t {
  nothing,
  loop,     // a back-end that returns frames
  frames,   // one that sends any
  control,  // one that serves a control queue
};

using Rule = check::RuleFor<Context, Needs>;

[[nodiscard]] std::span<const Rule> session_rules();
[[nodiscard]] std::span<const Rule> frame_rules();
[[nodiscard]] std::span<const Rule> ring_rules();
[[nodiscard]] std::span<const Rule> control_rules();

}  // namespace ringway::net_check
