// A host's tap interface: its queues, and what belongs to all of them together (offloads, size of the header before a frame,
// link, MTU).
//
// Opened and destroyed on the control thread, where steer() is called; set_guest() and set_attached() may be called from any
// thread. Closing the last
// descriptor of an interface that we made removes it; whether one persists is never changed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/net/net_port.hpp"
#include "backend/net/tap_steering.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace ringway {

inline constexpr std::uint32_t kTapMtuMin = 68;     // of IPv4
inline constexpr std::uint32_t kTapMtuMax = 65521;  // of the kernel: 65535 less an Ethernet header

struct TapOptions {
  std::string name{};      // of the interface, which is made if there is none; or
  std::vector<int> fds{};  // descriptors of its queues, one for each pair. They are ours from success on
  std::uint32_t pairs = 1;
  std::string bridge{};   // that it is to be a port of; empty: as it is
  std::uint32_t mtu = 0;  // of the interface; 0: as it is
};

class TapDevice {
 public:
  // What was found out when it was opened.
  struct Abilities {
    bool multi_queue = false;          // its queues can be detached
    bool made = false;                 // there was none of that name
    std::uint64_t guest_offloads = 0;  // spec::kNetGuest… that the kernel takes, and
    std::uint64_t host_offloads = 0;   // spec::kNetHost…
  };

  // Errors: whatever keeps the interface from being used, with what to do about it.
  [[nodiscard]] static Result<std::unique_ptr<TapDevice>> open(const TapOptions& options);

  // Over descriptors that keep to non-blocking reads and writes of whole frames; not looked at. For open(), and for tests.
  TapDevice(std::string name, std::vector<UniqueFd> queues, const Abilities& abilities);
  TapDevice(const TapDevice&) = delete;
  TapDevice& operator=(const TapDevice&) = delete;
  ~TapDevice() = default;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }  // when it was opened
  [[nodiscard]] const Abilities& abilities() const noexcept { return abilities_; }
  [[nodiscard]] std::uint32_t pairs() const noexcept { return static_cast<std::uint32_t>(queues_.size()); }
  [[nodiscard]] int fd(std::uint32_t pair) const noexcept { return queues_[pair].get(); }
  // A queue can't refuse a frame for lack of room: its interface lets as much be under way as there may be.
  [[nodiscard]] bool takes_all() const noexcept;

  struct Link {
    bool up = false;  // the interface is up and has a carrier
    std::uint32_t mtu = 0;
  };
  // Errors: the interface has gone, or lies in another network namespace than this thread.
  [[nodiscard]] Result<Link> link() const;
  // Errors: not allowed (CAP_NET_ADMIN), not kTapMtuMin…kTapMtuMax.
  [[nodiscard]] Result<> set_mtu(std::uint32_t mtu);

  // What frames to the guest may need of it (spec::kNetGuest…), and the size of the header in front of frames, both ways.
  // Only what differs from the last call is told to the kernel. Errors: the interface has gone.
  [[nodiscard]] Result<> set_guest(std::uint64_t guest_offloads, std::size_t header_bytes);
  // Frames for a queue that is not attached go to others, and those that it had are dropped. Nothing happens without
  // multi_queue, or while frames are steered: then frames for that queue are its own, whether anybody reads them or not.
  // Returns whether the kernel had it attached before. Waits for the kernel's other threads: some milliseconds.
  [[nodiscard]] Result<bool> set_attached(std::uint32_t pair, bool attached);
  // As NetPort::steer(). Whether it can: steers().
  [[nodiscard]] bool steers() const noexcept { return steering_ != nullptr; }
  [[nodiscard]] Result<> steer(const std::optional<NetSteering>& by);

  // True once: for the log. Any thread.
  [[nodiscard]] bool is_first_to_miss_it() noexcept { return !missed_.exchange(true, std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kUnknown = ~0ULL;

  [[nodiscard]] Result<> attach(std::uint32_t pair, bool attached);
  [[nodiscard]] bool is_attached(std::uint32_t pair) const noexcept;
  [[nodiscard]] Result<> set_steering_program(int program);
  [[nodiscard]] Result<> prepare_steering();

  const std::string name_;
  const std::vector<UniqueFd> queues_;
  const Abilities abilities_;
  std::atomic<bool> missed_{false};  // relaxed: nothing else is told by it
  std::mutex mutex_;
  std::uint64_t tun_offloads_ = kUnknown;  // as the kernel has them
  std::size_t header_bytes_ = 0;

  std::unique_ptr<TapSteering> steering_;
  std::mutex queues_mutex_;  // of what follows
  bool steered_ = false;
  std::vector<bool> wanted_;             // attached, by pair, but for steering
  std::vector<std::uint32_t> attached_;  // the pairs, in the order in which the kernel counts their queues
};

// The kernel's TUN_F_… for offloads of the guest: those that have all that they need.
[[nodiscard]] std::uint32_t to_tun_offloads(std::uint64_t guest_offloads) noexcept;

}  // namespace ringway
