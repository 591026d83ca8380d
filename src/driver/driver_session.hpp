// A driver in user space, without the device: the front-end's side of a vhost-user session (vhost-user.rst) with the memory
// and the rings that it shares. What a guest and its VMM do together and that is the same for every type of device:
// negotiation, layout, start and stop of rings, reconnecting. blk_driver.hpp and net_driver.hpp derive from it.
//
// Threads: the session belongs to one thread; each DriverQueue to the one thread that drives it, which may be another. The
// session's calls that touch a queue (stop, start, reset, reconnect) need that thread to be out of it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "driver/driver_queue.hpp"
#include "driver/shared_memory.hpp"
#include "ring/driver_ring.hpp"
#include "ring/spec.hpp"
#include "vhost_user/front_end.hpp"

namespace ringway {

// What a session itself needs of a driver's options, where they are explained.
struct DriverSessionOptions {
  std::string socket_path;
  Duration patience;
  bool packed = false;
  bool indirect = true;
  bool event_index = true;
  bool in_order = false;
  bool legacy = false;  // without VERSION_1, and any feature bit beyond 31
  std::uint64_t protocol_features = 0;
  std::uint32_t queue_size = 0;
  MemoryPages pages = MemoryPages::small;
  bool memory_slots = false;
  bool inflight = false;
};

struct DriverNegotiated {
  std::uint64_t offered = 0;   // GET_FEATURES
  std::uint64_t features = 0;  // what we acknowledged
  std::uint64_t protocol_offered = 0;
  std::uint64_t protocol_features = 0;
  std::uint64_t queues_offered = 1;  // GET_QUEUE_NUM (of a network device: pairs), 1 without MQ
  RingFeatures ring;
  [[nodiscard]] bool has(std::uint64_t bits) const { return (features & bits) == bits; }
  [[nodiscard]] bool has_protocol(std::uint64_t bits) const { return (protocol_features & bits) == bits; }
};

// The protocol doesn't say what a back-end is; the features that it offers tell, if it isn't a very plain one.
[[nodiscard]] bool is_network_card(std::uint64_t offered) noexcept;
[[nodiscard]] bool is_disk(std::uint64_t offered) noexcept;

class DriverSession {
 public:
  DriverSession(const DriverSession&) = delete;
  DriverSession& operator=(const DriverSession&) = delete;
  virtual ~DriverSession() = default;

  [[nodiscard]] const DriverNegotiated& negotiated() const { return negotiated_; }
  // Asks the back-end for its configuration again.
  [[nodiscard]] virtual Result<> read_config() = 0;
  // Waits for the back-end's message that the configuration changed, then reads it again.
  [[nodiscard]] Result<> wait_config_change(Duration patience);

  // Queues are named by the index of their virtqueue. Those of a network driver that uses fewer pairs than there are have
  // gaps in it, which is why queue_count() may be less than an index.
  [[nodiscard]] std::uint32_t queue_count() const { return static_cast<std::uint32_t>(queues_.size()); }
  // GET_VRING_BASE: the back-end has finished with the ring when this returns; the value in the form of the specification.
  [[nodiscard]] Result<std::uint32_t> stop_queue(std::uint32_t index);
  // Where the parts of a queue's ring are, as SET_VRING_ADDR wants it.
  [[nodiscard]] vhost_user::VringAddress vring_address(std::uint32_t index) const;
  // Sends the ring's parameters and enables it. `base` is what stop_queue() returned, or initial_base() for a ring that is
  // new. After a reconnect the queue is enabled again if it was.
  [[nodiscard]] Result<> start_queue(std::uint32_t index, std::uint32_t base, bool enable = true);
  // SET_VRING_ENABLE of a queue that was started.
  [[nodiscard]] Result<> enable_queue(std::uint32_t index, bool enable);
  // Both wrap counters of a new packed ring are 1 (vhost-user.rst, "Vring state").
  [[nodiscard]] std::uint32_t initial_base() const {
    return negotiated_.ring.packed ? kPackedBaseInitial : kSplitBaseInitial;
  }
  // Lays a stopped ring out anew, as a guest's driver does after a device reset; what was in flight is forgotten.
  void reset_queue(std::uint32_t index);

  // Drops the session and begins another with the same memory.
  enum class Rings : std::uint8_t {
    resume,  // as a VMM does when its back-end was restarted: split rings go on at their used index, so that what was in
             // flight is served (again). A packed ring's position only the lost back-end knew: those are reset.
    reset,   // as a guest does that was rebooted meanwhile
  };
  // Rings are reset once the new session is open: a back-end that serves one session at a time no longer writes by then.
  // With options.inflight the region goes along with rings that are resumed; those that are reset get a new one. After an
  // error (and after disconnect()) there is no session: only reconnect(), peer_closed() and what concerns queues and memory
  // may be called.
  [[nodiscard]] Result<> reconnect(Rings rings = Rings::resume);
  // Only the first half of it: the socket is closed; queues keep their memory.
  void disconnect();

  // The process behind the socket (SO_PEERCRED: the one that called listen()).
  [[nodiscard]] Result<pid_t> backend_pid() const;
  // True if the back-end has closed the connection, or there is none.
  [[nodiscard]] bool peer_closed() const;

  [[nodiscard]] vhost_user::FrontEnd& front_end() { return *front_end_; }
  [[nodiscard]] SharedMemory& memory() { return *memory_; }
  // What SET_MEM_TABLE carries for the regions of memory().
  [[nodiscard]] std::vector<vhost_user::FrontEnd::Region> memory_table() const;

 protected:
  explicit DriverSession(DriverSessionOptions options) : session_options_(std::move(options)) {}

  // Connects, negotiates, lays out the memory and shares it, and (start) starts the queues. Errors say what the back-end
  // lacks.
  [[nodiscard]] Result<> open(bool start);

  // --- the device's part of it ---
  // The device type's feature bits that the driver takes of negotiated().offered. Protocol features are settled by then:
  // the place to read the configuration, and to refuse a back-end that lacks what was demanded.
  [[nodiscard]] virtual Result<std::uint64_t> choose_features() = 0;
  // Calls share_memory(), then add_queue() for each queue, with what was negotiated.
  [[nodiscard]] virtual Result<> lay_out() = 0;

  // --- for it ---
  // Asks for `bytes` of the configuration, and gives what came: at least `least`.
  [[nodiscard]] Result<std::vector<std::byte>> get_config(std::size_t bytes, std::size_t least);
  // Shared memory that the ring of one queue needs, indirect tables included.
  [[nodiscard]] std::size_t ring_bytes(std::uint32_t indirect_entries) const;
  // One region for each entry. Rings lie in the first one.
  [[nodiscard]] Result<> share_memory(std::span<const std::size_t> region_bytes);
  [[nodiscard]] Result<> add_queue(std::unique_ptr<DriverQueue> queue, std::uint32_t index, std::uint32_t indirect_entries,
                                   bool enable = true);
  [[nodiscard]] DriverQueue& queue_at(std::size_t position) { return *queues_[position]; }

 private:
  [[nodiscard]] Result<> open_session();
  [[nodiscard]] Result<> negotiate();
  [[nodiscard]] Result<> send_memory();
  [[nodiscard]] Result<> set_up_inflight();
  [[nodiscard]] DriverQueue& find(std::uint32_t index) const;

  DriverSessionOptions session_options_;
  DriverNegotiated negotiated_;
  std::optional<vhost_user::FrontEnd> front_end_;
  std::optional<SharedMemory> memory_;
  std::optional<vhost_user::FrontEnd::Inflight> inflight_;
  std::vector<std::unique_ptr<DriverQueue>> queues_;  // by rising index
};

}  // namespace ringway
