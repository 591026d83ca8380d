// For tests: a small network back-end on a thread of its own that returns each frame to the pair that sent it, keeps to the
// specifications, and can be given one fault at a time. What `ringway check net` must find nothing in, and each fault of. It
// shares no code with the device.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/fence.hpp"
#include "loop/clock.hpp"
#include "loop/epoll_loop.hpp"
#include "ring/device_ring.hpp"
#include "ring/spec.hpp"
#include "vhost_user/device.hpp"
#include "vhost_user/endpoint.hpp"

namespace ringway {

enum class NetPeerFault : std::uint8_t {
  none,
  // session
  baseless_feature,       // GUEST_TSO4 without GUEST_CSUM
  group_address,          // as the card's own
  config_ignores_offset,  // as some back-ends do
  second_region_is_lost,  // what lies there is not sent
  keeps_old_memory,       // though the table has less of it now
  dies_of_hang_ups,       // after some
  // frames
  tx_used_length,    // tells of bytes written to what can only be read
  header_always_12,  // whatever was negotiated
  zero_num_buffers,
  one_num_buffers,    // whatever buffers were used
  part_of_a_frame,    // where there are too few buffers
  header_in_first,    // takes the first descriptor for the header, and what follows for the frame
  header_into_first,  // the same with receive buffers
  loses_frames,
  duplicates_frames,
  swaps_frames,
  dies_of_short_chains,  // for all sessions
  dies_of_bad_chains,    // that the ring finds fault with
  dies_of_empty_descriptors,
  dies_of_long_frames,
  dies_of_offloads,
  writes_what_is_read,  // writable buffers of a transmit queue
  writes_readable,      // receive buffers that are only readable
  writes_behind,        // receive buffers that are too small
  keeps_checksum,       // passes a partial checksum on to who can't take it
  // rings
  always_calls,
  never_calls,
  calls_for_receive_only,
  calls_at_each_element,  // ignores the event index
  never_asks_for_kicks,
  forgets_receive_ring,  // once it has been empty
  base_is_off,
  receive_base_is_off,
  loses_at_stop,         // what was available
  goes_on_at_old_place,  // after a stop, whatever the base
  sends_when_disabled,
  keeps_when_disabled,
  receives_when_disabled,
  stays_disabled,
  ignores_early_kicks,  // and what came with them
  second_pair_is_dead,
  large_rings_are_dead,
  // commands
  grants_all,
  refuses_all,
  no_used_length,
  mute,
  mac_is_not_shown,
  header_of_command_in_first,
  takes_any_offload,
  answers_without_room,
  forgets_commands,  // after some
  // hashes
  hashes_backwards,  // destination first
  reports_unasked,   // before any command
  forgets_table,     // RSS leaves frames where they are
  takes_any_table,   // and any hash types
};

class FaultyNetPeer final : private vhost_user::Device, private FdHandler {
 public:
  explicit FaultyNetPeer(NetPeerFault fault) : fault_(fault) {
    std::string pattern = std::filesystem::temp_directory_path() / "ringway-net-peer-XXXXXX";
    RW_CHECK(mkdtemp(pattern.data()) != nullptr);
    directory_ = pattern;
    socket_path_ = pattern + "/net.sock";
    thread_ = std::thread([this] { run(); });
    ready_.wait();
  }
  FaultyNetPeer(const FaultyNetPeer&) = delete;
  FaultyNetPeer& operator=(const FaultyNetPeer&) = delete;
  ~FaultyNetPeer() override {
    stop_ = true;
    loop_->wake();
    woken_.count_down();
    thread_.join();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  [[nodiscard]] const std::string& socket_path() const { return socket_path_; }

 private:
  using Bytes = std::vector<std::byte>;
  static constexpr std::uint16_t kPairs = 2;
  static constexpr std::uint32_t kHashTypes = 0x3f;
  static constexpr std::uint64_t kOffloads = spec::kNetGuestCsum | spec::kNetGuestTso4;

  struct Ring {
    vhost_user::RingStart start;
    std::unique_ptr<DeviceRing> ring;
    WatchId watch;
    bool active = true;  // may have work; else it waits for a kick
    bool was_enabled = false;
    bool dead = false;
  };

  void run() {
    const auto loop = std::move(*EpollLoop::create());
    loop_ = loop.get();
    auto endpoint = *vhost_user::Endpoint::create({.path = socket_path_}, *loop, *this);
    ready_.count_down();
    while (!stop_) {
      bool busy = false;
      for (auto& [index, ring] : rings_) {
        busy |= serve(index, ring);
      }
      const Instant now = clock_now();
      if (busy) {
        loop->poll(now);
      } else {
        loop->wait(now, now + Duration::seconds(1));
      }
    }
    bool closed = false;
    endpoint->close([&closed] { closed = true; });
    while (!closed) {
      loop->wait(clock_now(), clock_now() + Duration::milliseconds(20));
    }
    woken_.wait();  // the loop goes with this function
  }

  // --- rings ---
  // True if it may have more to do.
  bool serve(std::uint32_t index, Ring& ring) {
    const bool is_control = index == control_index();
    if (!ring.active || ring.dead || dead_ || (!is_control && index % 2 == 0)) {
      return false;
    }
    const bool discards = !is_control && !ring.start.enabled;
    if (!ring.start.enabled && (is_control || !ring.was_enabled || fault_ == NetPeerFault::keeps_when_disabled)) {
      return false;
    }
    ring.ring->suppress_kicks();
    Chain chain;
    std::uint32_t served = 0;
    for (;;) {
      const PopStatus status = ring.ring->pop(*map_, chain);
      if (status == PopStatus::empty || status == PopStatus::ring_fault) {
        break;
      }
      const bool bad = status == PopStatus::chain_fault;
      const std::uint32_t written = is_control ? command(chain, bad) : transmit(index, chain, bad, discards);
      if (dead_) {
        return false;
      }
      ring.ring->push_used(chain.id(), written);
      publish(ring);
      // So that something is there to be lost, however late the stop is.
      if (fault_ == NetPeerFault::loses_at_stop && ++served == 8) {
        ring.active = false;
        static_cast<void>(ring.ring->arm_kicks());
        return false;
      }
    }
    if (fault_ == NetPeerFault::never_asks_for_kicks) {
      ring.active = false;
      return false;
    }
    ring.active = ring.ring->arm_kicks();
    return ring.active;
  }
  void publish(Ring& ring) {
    ring.ring->publish();
    bool call = ring.ring->should_call();
    if (!call && ring.ring->must_settle()) {
      full_fence();  // pairs with the driver's between what it asks for and its look at the ring
      call = ring.ring->settle_call();
    }
    const bool receives = ring.start.index % 2 == 0;
    call = call || fault_ == NetPeerFault::always_calls ||
           (fault_ == NetPeerFault::calls_at_each_element && ring.start.features.event_index);
    call = call && fault_ != NetPeerFault::never_calls && (fault_ != NetPeerFault::calls_for_receive_only || receives);
    if (call && ring.start.call) {
      const std::uint64_t one = 1;
      static_cast<void>(!write(ring.start.call.get(), &one, sizeof one));
    }
  }

  // --- frames ---
  [[nodiscard]] std::size_t header_bytes() const {
    if ((acked_ & spec::kNetHashReport) != 0) {
      return 20;
    }
    return (acked_ & (spec::kFeatureVersion1 | spec::kNetMrgRxbuf)) != 0 || fault_ == NetPeerFault::header_always_12 ? 12
                                                                                                                     : 10;
  }
  static Bytes gather(std::span<const iovec> pieces) {
    Bytes bytes;
    for (const iovec& piece : pieces) {
      const auto* first = static_cast<const std::byte*>(piece.iov_base);
      bytes.insert(bytes.end(), first, first + piece.iov_len);
    }
    return bytes;
  }
  static std::size_t scatter(std::span<const std::byte> bytes, std::span<const iovec> pieces) {
    std::size_t done = 0;
    for (const iovec& piece : pieces) {
      const std::size_t part = std::min(bytes.size() - done, piece.iov_len);
      std::memcpy(piece.iov_base, bytes.data() + done, part);
      done += part;
    }
    return done;
  }
  [[nodiscard]] bool in_further_region(const Chain& chain) const {
    const RegionMap::Region& first = map_->regions().front();
    const auto* at = static_cast<const std::byte*>(chain.readable().front().iov_base);
    return at < first.host || at >= first.host + first.bytes;
  }
  // The used length.
  std::uint32_t transmit(std::uint32_t index, const Chain& chain, bool bad, bool discards) {
    const std::uint32_t used = fault_ == NetPeerFault::tx_used_length ? 12 : 0;
    if (!chain.writable().empty() && fault_ == NetPeerFault::writes_what_is_read) {
      std::memset(chain.writable().front().iov_base, 0, chain.writable().front().iov_len);
    }
    if (bad || !chain.writable().empty()) {
      dead_ = dead_ || (bad && fault_ == NetPeerFault::dies_of_bad_chains);
      return used;
    }
    if (chain.cost() > chain.readable().size() + 1 && fault_ == NetPeerFault::dies_of_empty_descriptors) {
      dead_ = true;
      return used;
    }
    Bytes frame = gather(chain.readable());
    if (frame.size() < header_bytes() + 14) {
      dead_ = dead_ || fault_ == NetPeerFault::dies_of_short_chains;
      return used;
    }
    constexpr std::size_t kLong = 65000;
    if (frame.size() > kLong) {
      dead_ = dead_ || fault_ == NetPeerFault::dies_of_long_frames;
      return used;
    }
    if (discards && fault_ != NetPeerFault::sends_when_disabled) {
      return used;
    }
    if (fault_ == NetPeerFault::header_in_first && chain.readable().size() > 1) {
      frame.erase(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(chain.readable().front().iov_len));
      frame.insert(frame.begin(), header_bytes(), std::byte{0});
    }
    if (!complete_checksum(frame)) {
      dead_ = dead_ || fault_ == NetPeerFault::dies_of_offloads;
      return used;
    }
    const Hash hash = hash_of(std::span(frame).subspan(header_bytes()));
    if (header_bytes() == 20) {
      std::memcpy(frame.data() + 12, &hash.value, sizeof hash.value);
      std::memcpy(frame.data() + 16, &hash.report, sizeof hash.report);
    }
    if (!rss_table_.empty() && fault_ != NetPeerFault::forgets_table) {
      index = 2U * (hash.report == 0 ? rss_unclassified_ : rss_table_[hash.value % rss_table_.size()]) + 1;
    }
    ++count_;
    const bool odd = count_ % 100 == 0;
    if ((fault_ == NetPeerFault::loses_frames && odd) || (fault_ == NetPeerFault::second_pair_is_dead && index > 2) ||
        (fault_ == NetPeerFault::second_region_is_lost && in_further_region(chain))) {
      return used;
    }
    if (fault_ == NetPeerFault::swaps_frames && odd) {
      kept_ = std::move(frame);
      return used;
    }
    deliver(index - 1, frame);
    if (fault_ == NetPeerFault::duplicates_frames && odd) {
      deliver(index - 1, frame);
    }
    if (kept_) {
      deliver(index - 1, *std::exchange(kept_, std::nullopt));
    }
    return used;
  }
  // False if the header makes no sense. After it the header tells of no offload.
  [[nodiscard]] bool complete_checksum(Bytes& frame) const {
    spec::NetHeader header{};
    std::memcpy(&header, frame.data(), 10);
    const std::span<std::byte> data = std::span(frame).subspan(header_bytes());
    const bool has_checksums = (acked_ & spec::kNetCsum) != 0;
    if (!has_checksums) {
      std::memset(frame.data(), 0, 10);
      return true;
    }
    if (header.gso_type != spec::kNetGsoNone) {
      return false;
    }
    if ((header.flags & spec::kNetHdrNeedsCsum) == 0 || fault_ == NetPeerFault::keeps_checksum) {
      return true;
    }
    if (std::size_t{header.csum_start} + header.csum_offset + 2 > data.size()) {
      return false;
    }
    std::uint32_t sum = 0;
    for (std::size_t i = header.csum_start; i < data.size(); ++i) {
      sum += std::to_integer<std::uint32_t>(data[i]) << ((i - header.csum_start) % 2 == 0 ? 8U : 0U);
      sum = (sum & 0xffff) + (sum >> 16U);
    }
    data[header.csum_start + std::size_t{header.csum_offset}] = static_cast<std::byte>(~sum >> 8U);
    data[header.csum_start + std::size_t{header.csum_offset} + 1] = static_cast<std::byte>(~sum);
    std::memset(frame.data(), 0, 10);
    return true;
  }
  // The frame with its header, into as many buffers as it takes.
  void deliver(std::uint32_t rx_index, Bytes frame) {
    const auto found = rings_.find(rx_index);
    if (found == rings_.end() || found->second.dead ||
        (!found->second.start.enabled && fault_ != NetPeerFault::receives_when_disabled)) {
      return;
    }
    Ring& rx = found->second;
    struct Target {
      ChainId id;
      std::vector<iovec> pieces;
      std::size_t bytes;
    };
    Chain chain;
    std::vector<Target> targets;
    std::size_t room = 0;
    const bool mergeable = (acked_ & spec::kNetMrgRxbuf) != 0;
    const bool overruns = fault_ == NetPeerFault::writes_behind;
    while (room < frame.size() && (mergeable || targets.empty())) {
      const PopStatus status = rx.ring->pop(*map_, chain);
      if (status != PopStatus::chain && status != PopStatus::chain_fault) {
        break;
      }
      if (status == PopStatus::chain_fault || !chain.readable().empty() || chain.writable_bytes() < 60) {
        if (fault_ == NetPeerFault::writes_readable && !chain.readable().empty()) {
          std::memset(chain.readable().front().iov_base, 0, 4);
        }
        if (overruns && status == PopStatus::chain && !chain.writable().empty()) {
          std::memset(chain.writable().front().iov_base, 0, 60);
        }
        rx.ring->push_used(chain.id(), 0);
        publish(rx);
        continue;
      }
      targets.push_back({chain.id(), {chain.writable().begin(), chain.writable().end()}, chain.writable_bytes()});
      room += chain.writable_bytes();
    }
    if (room < frame.size() && fault_ != NetPeerFault::part_of_a_frame) {
      for (auto target = targets.rbegin(); target != targets.rend(); ++target) {
        rx.ring->unpop(target->id);
      }
      rx.dead = rx.dead || (fault_ == NetPeerFault::forgets_receive_ring && targets.empty());
      return;
    }
    if (header_bytes() >= 12) {
      auto buffers = static_cast<std::uint16_t>(targets.size());
      buffers = fault_ == NetPeerFault::zero_num_buffers ? 0 : buffers;
      buffers = fault_ == NetPeerFault::one_num_buffers ? 1 : buffers;
      std::memcpy(frame.data() + 10, &buffers, sizeof buffers);
    }
    std::span<const std::byte> rest = frame;
    for (Target& target : targets) {
      const std::span<const std::byte> part = rest.first(std::min(rest.size(), target.bytes));
      if (fault_ == NetPeerFault::header_into_first && target.pieces.size() > 1 && rest.size() == frame.size()) {
        scatter(part.first(header_bytes()), std::span(target.pieces).first(1));
        scatter(part.subspan(header_bytes()), std::span(target.pieces).subspan(1));
      } else {
        scatter(part, target.pieces);
      }
      rx.ring->push_used(target.id, static_cast<std::uint32_t>(part.size()));
      rest = rest.subspan(part.size());
    }
    publish(rx);
  }

  // --- commands ---
  [[nodiscard]] std::uint32_t control_index() const {
    if ((acked_ & spec::kNetCtrlVq) == 0) {
      return UINT32_MAX;
    }
    return (acked_ & (spec::kNetMq | spec::kNetRss)) != 0 ? 2U * kPairs : 2;
  }
  // The used length.
  std::uint32_t command(const Chain& chain, bool bad) {
    ++commands_;
    if (fault_ == NetPeerFault::mute || (fault_ == NetPeerFault::forgets_commands && commands_ > 500)) {
      dead_ = true;
      return 0;
    }
    if (chain.writable().empty()) {
      return fault_ == NetPeerFault::answers_without_room ? 1 : 0;
    }
    bool good = !bad && is_good(chain);
    good = (good || fault_ == NetPeerFault::grants_all) && fault_ != NetPeerFault::refuses_all;
    const std::byte ack{good ? spec::kNetAckOk : spec::kNetAckErr};
    scatter({&ack, 1}, chain.writable());
    return fault_ == NetPeerFault::no_used_length ? 0 : 1;
  }
  [[nodiscard]] bool is_good(const Chain& chain) {
    const Bytes bytes = gather(chain.readable());
    if (bytes.size() < 2 || (fault_ == NetPeerFault::header_of_command_in_first && chain.readable().front().iov_len != 2)) {
      return false;
    }
    const std::span<const std::byte> data = std::span(bytes).subspan(2);
    const auto number = std::to_integer<std::uint8_t>(bytes[1]);
    const auto has = [this](std::uint64_t feature) { return (acked_ & feature) != 0; };
    switch (std::to_integer<std::uint8_t>(bytes[0])) {
      case spec::kNetCtrlClassRx:
        return has(spec::kNetCtrlRx) && number <= spec::kNetCtrlRxNobcast && data.size() == 1;
      case spec::kNetCtrlClassVlan:
        return has(spec::kNetCtrlVlan) && number <= spec::kNetCtrlVlanDel && data.size() == 2;
      case spec::kNetCtrlClassAnnounce:
        return has(spec::kNetGuestAnnounce) && number == 0 && data.empty();
      case spec::kNetCtrlClassMq: {
        if (number != spec::kNetCtrlMqVqPairsSet) {
          return number <= spec::kNetCtrlMqHashConfig && sets_hash(number == spec::kNetCtrlMqRssConfig, data);
        }
        rss_table_.clear();
        std::uint16_t pairs = 0;
        std::memcpy(&pairs, data.data(), std::min(data.size(), sizeof pairs));
        return has(spec::kNetMq) && number == 0 && data.size() == 2 && pairs >= 1 && pairs <= kPairs;
      }
      case spec::kNetCtrlClassGuestOffloads: {
        std::uint64_t offloads = 0;
        std::memcpy(&offloads, data.data(), std::min(data.size(), sizeof offloads));
        return has(spec::kNetCtrlGuestOffloads) && number == 0 && data.size() == 8 &&
               ((offloads & ~(acked_ & kOffloads)) == 0 || fault_ == NetPeerFault::takes_any_offload);
      }
      case spec::kNetCtrlClassMac:
        return number == spec::kNetCtrlMacTableSet ? has(spec::kNetCtrlRx) && are_tables(data)
                                                   : number == 1 && has(spec::kNetCtrlMacAddr) && sets_mac(data);
      default:
        return false;
    }
  }
  // RSS_CONFIG and HASH_CONFIG.
  bool sets_hash(bool rss, std::span<const std::byte> data) {
    const auto number = [&data](std::size_t at) -> std::uint16_t {
      std::uint16_t value = 0;
      std::memcpy(&value, data.data() + at, sizeof value);
      return value;
    };
    if ((acked_ & (rss ? spec::kNetRss : spec::kNetHashReport)) == 0 || data.size() < 13) {
      return false;
    }
    std::uint32_t types = 0;
    std::memcpy(&types, data.data(), sizeof types);
    const std::size_t entries = rss ? std::size_t{number(4)} + 1 : 1;
    const std::size_t key_at = rss ? 8 + 2 * entries + 3 : 13;
    if (data.size() < key_at || data.size() != key_at + std::to_integer<std::size_t>(data[key_at - 1])) {
      return false;
    }
    std::vector<std::uint16_t> table;
    bool good = data.size() - key_at <= 40 && (types & ~kHashTypes) == 0 && (entries & (entries - 1)) == 0 && entries <= 128;
    for (std::size_t i = 0; rss && i < entries; ++i) {
      table.push_back(number(8 + 2 * i));
      good = good && table.back() < kPairs;
    }
    good = good && (!rss || (number(6) < kPairs && number(key_at - 3) >= 1 && number(key_at - 3) <= kPairs));
    if (!good) {
      return fault_ == NetPeerFault::takes_any_table;
    }
    hash_types_ = types;
    hash_key_.assign(data.begin() + static_cast<std::ptrdiff_t>(key_at), data.end());
    rss_table_ = table;
    rss_unclassified_ = rss ? number(6) : std::uint16_t{0};
    return true;
  }
  struct Hash {
    std::uint32_t value = 0;
    std::uint16_t report = 0;
  };
  // Of frames without tags, options and fragments.
  [[nodiscard]] Hash hash_of(std::span<const std::byte> frame) const {
    const auto byte = [&](std::size_t at) { return at < frame.size() ? std::to_integer<unsigned>(frame[at]) : 0U; };
    const bool ipv4 = byte(12) == 0x08 && byte(13) == 0x00;
    const bool ipv6 = byte(12) == 0x86 && byte(13) == 0xdd;
    if (fault_ == NetPeerFault::reports_unasked && hash_types_ == 0) {
      return {.value = 1, .report = 1};
    }
    const std::size_t address = ipv4 ? 4 : 16;
    const std::size_t from = ipv4 ? 26 : 22;
    if ((!ipv4 && !ipv6) || frame.size() < from + 2 * address + 4) {
      return {};
    }
    const unsigned protocol = byte(ipv4 ? 23 : 20);
    const std::uint16_t first = ipv4 ? 1 : 4;
    const auto ports = static_cast<std::uint16_t>(protocol == 6 ? first + 1 : protocol == 17 ? first + 2 : 0);
    const bool by_ports = ports != 0 && (hash_types_ >> (ports - 1U) & 1U) != 0;
    if (!by_ports && (hash_types_ >> (first - 1U) & 1U) == 0) {
      return {};
    }
    const std::span<const std::byte> source = frame.subspan(from);
    const auto end_of = [&source](std::size_t bytes) { return source.begin() + static_cast<std::ptrdiff_t>(bytes); };
    std::vector<std::byte> input(source.begin(), end_of(2 * address));
    if (fault_ == NetPeerFault::hashes_backwards) {
      std::rotate(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(address), input.end());
    }
    if (by_ports) {
      input.insert(input.end(), end_of(2 * address), end_of(2 * address + 4));
    }
    Hash hash{.value = 0, .report = by_ports ? ports : first};
    const auto key_bit = [this](std::size_t bit) {
      return bit / 8 < hash_key_.size() ? std::to_integer<unsigned>(hash_key_[bit / 8]) >> (7 - bit % 8) & 1U : 0U;
    };
    for (std::size_t bit = 0; bit < input.size() * 8; ++bit) {
      for (std::size_t i = 0; (std::to_integer<unsigned>(input[bit / 8]) >> (7 - bit % 8) & 1U) != 0 && i < 32; ++i) {
        hash.value ^= key_bit(bit + i) << (31 - i);
      }
    }
    return hash;
  }
  static bool are_tables(std::span<const std::byte> data) {
    for (int table = 0; table < 2; ++table) {
      std::uint32_t entries = 0;
      if (data.size() < sizeof entries) {
        return false;
      }
      std::memcpy(&entries, data.data(), sizeof entries);
      data = data.subspan(sizeof entries);
      if (std::uint64_t{entries} * spec::kMacBytes > data.size()) {
        return false;
      }
      data = data.subspan(std::size_t{entries} * spec::kMacBytes);
    }
    return data.empty();
  }
  bool sets_mac(std::span<const std::byte> data) {
    if (data.size() != spec::kMacBytes) {
      return false;
    }
    if (fault_ != NetPeerFault::mac_is_not_shown) {
      std::memcpy(mac_, data.data(), data.size());
    }
    return true;
  }

  // --- vhost_user::Device ---
  [[nodiscard]] std::string name() const override { return "faulty net peer"; }
  [[nodiscard]] std::uint64_t features() const override {
    using namespace spec;
    return kFeatureVersion1 | kFeatureRingPacked | kFeatureIndirectDesc | kFeatureEventIdx | kNetCsum | kNetMac |
           kNetStatus | kNetMrgRxbuf | kNetCtrlVq | kNetCtrlRx | kNetCtrlRxExtra | kNetCtrlVlan | kNetGuestAnnounce |
           kNetMq | kNetCtrlMacAddr | kNetCtrlGuestOffloads | kNetRss | kNetHashReport | kNetGuestTso4 |
           (fault_ == NetPeerFault::baseless_feature ? 0 : kNetGuestCsum);
  }
  [[nodiscard]] std::uint32_t ring_count() const override { return 2U * kPairs + 1; }
  [[nodiscard]] std::uint64_t queue_num_reply() const override { return kPairs; }
  [[nodiscard]] std::uint32_t ring_size_max() const override { return 1024; }
  [[nodiscard]] bool offers_inband() const override { return false; }
  [[nodiscard]] bool offers_inflight() const override { return false; }
  void attach(vhost_user::FrontEndPort& /*nothing is told*/) override {}
  void detach(vhost_user::Done<> done) override {
    while (!rings_.empty()) {
      drop(rings_.begin()->first);
    }
    map_.reset();
    kept_.reset();
    hash_types_ = 0;
    rss_table_.clear();
    commands_ = 0;
    old_places_.clear();
    dead_ = dead_ || (++hang_ups_ > 8 && fault_ == NetPeerFault::dies_of_hang_ups);
    done({});
  }
  Result<> set_features(std::uint64_t acked) override {
    acked_ = acked;
    return {};
  }
  Result<> get_config(std::uint32_t offset, std::span<std::byte> out) override {
    spec::NetConfig config{};
    std::memcpy(config.mac, mac_, sizeof mac_);
    config.mac[0] = static_cast<std::uint8_t>(config.mac[0] | (fault_ == NetPeerFault::group_address ? 1 : 0));
    config.status = spec::kNetStatusLinkUp;
    config.max_virtqueue_pairs = kPairs;
    config.rss_max_key_size = 40;
    config.rss_max_indirection_table_length = 128;
    config.supported_hash_types = kHashTypes;
    if (offset > sizeof config || out.size() > sizeof config - offset) {
      return fail("beyond the configuration");
    }
    offset = fault_ == NetPeerFault::config_ignores_offset ? 0 : offset;
    std::memcpy(out.data(), reinterpret_cast<const std::byte*>(&config) + offset, out.size());
    return {};
  }
  Result<> set_config(std::uint32_t, std::span<const std::byte>, vhost_user::Done<>) override { return fail("read-only"); }
  void set_memory(std::shared_ptr<const RegionMap> map, vhost_user::Done<> done) override {
    const bool keeps =
        fault_ == NetPeerFault::keeps_old_memory && map_ != nullptr && map->regions().size() < map_->regions().size();
    map_ = keeps ? map_ : std::move(map);
    done({});
  }
  void set_log(std::shared_ptr<DirtyLog>, vhost_user::Done<> done) override { done({}); }
  void start_ring(vhost_user::RingStart start, vhost_user::Done<> done) override {
    const std::uint32_t index = start.index;
    const auto layout = RingLayout::resolve(*map_, start.addresses, start.size, start.features.packed);
    if (!layout) {
      done(std::unexpected(layout.error()));
      return;
    }
    if (const auto old = old_places_.find(index); old != old_places_.end() && fault_ == NetPeerFault::goes_on_at_old_place) {
      start.base = old->second;
    }
    Ring ring{.start = std::move(start), .ring = nullptr, .watch = {}};
    ring.ring = std::make_unique<DeviceRing>(*layout, ring.start.features, ring.start.base);
    ring.watch = *loop_->watch(ring.start.kick.get(), EPOLLIN, *this);
    ring.was_enabled = ring.start.enabled;
    ring.dead = fault_ == NetPeerFault::large_rings_are_dead && ring.start.size > 256;
    if (index % 2 == 0 && index != control_index()) {
      ring.ring->suppress_kicks();  // looked at when there is a frame for it
    }
    rings_.emplace(index, std::move(ring));
    done({});
  }
  void stop_ring(std::uint32_t index, vhost_user::Done<std::uint32_t> done) override {
    Ring& ring = rings_.at(index);
    Chain chain;
    while (fault_ == NetPeerFault::loses_at_stop && ring.ring->pop(*map_, chain) == PopStatus::chain) {
    }
    const bool off = fault_ == NetPeerFault::base_is_off || (fault_ == NetPeerFault::receive_base_is_off && index == 0);
    const std::uint32_t base = ring.ring->base() + (off ? 1 : 0);
    old_places_[index] = base;
    drop(index);
    done(base);
  }
  void enable_ring(std::uint32_t index, bool enabled, vhost_user::Done<> done) override {
    Ring& ring = rings_.at(index);
    if (fault_ == NetPeerFault::ignores_early_kicks && enabled && !ring.was_enabled) {
      static_cast<void>(ring.ring->arm_kicks());
      ring.active = false;
    } else {
      ring.active = true;
    }
    if (fault_ != NetPeerFault::stays_disabled || !ring.was_enabled || !enabled) {
      ring.start.enabled = enabled;
    }
    ring.was_enabled = ring.was_enabled || enabled;
    done({});
  }
  void set_call(std::uint32_t index, ForeignFd call, vhost_user::Done<> done) override {
    rings_.at(index).start.call = std::move(call);
    done({});
  }
  void set_kick(std::uint32_t, ForeignFd, vhost_user::Done<> done) override { done({}); }
  void set_error(std::uint32_t, ForeignFd, vhost_user::Done<> done) override { done({}); }
  void set_addresses(std::uint32_t, RingAddresses, bool, GuestAddress, vhost_user::Done<> done) override { done({}); }
  void kick(std::uint32_t) override {}
  void reset(vhost_user::Done<> done) override { done({}); }
  // Some ring was kicked: all are looked at.
  void on_ready(std::uint32_t) noexcept override {
    for (auto& [index, ring] : rings_) {
      ring.active = true;
    }
  }
  void drop(std::uint32_t index) {
    loop_->unwatch(rings_.at(index).watch);
    rings_.erase(index);
  }

  const NetPeerFault fault_;
  std::string directory_, socket_path_;
  std::thread thread_;
  std::latch ready_{1};
  std::latch woken_{1};
  EpollLoop* loop_ = nullptr;  // set before ready_
  std::atomic<bool> stop_{false};
  // Its thread's.
  std::uint64_t acked_ = 0;
  std::uint8_t mac_[spec::kMacBytes] = {2, 0, 0, 0, 0, 9};
  std::shared_ptr<const RegionMap> map_;
  std::map<std::uint32_t, Ring> rings_;
  std::map<std::uint32_t, std::uint32_t> old_places_;
  std::optional<Bytes> kept_;
  std::uint64_t count_ = 0;
  std::uint64_t commands_ = 0;
  std::uint32_t hash_types_ = 0;
  Bytes hash_key_;
  std::vector<std::uint16_t> rss_table_;  // none: frames come back where they were sent
  std::uint16_t rss_unclassified_ = 0;
  std::uint32_t hang_ups_ = 0;
  bool dead_ = false;  // serves no ring of any session any more
};

}  // namespace ringway
