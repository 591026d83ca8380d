// A virtio-net driver in user space over a vhost-user front-end (virtio 1.3 §5.1, vhost-user.rst): what a guest and its VMM
// do together, against any back-end. For the benches, `ringway check` and tests. Threads: see driver_session.hpp; the two
// queues of a pair may belong to two threads.
//
// Hot path (transmit, reap, receive, give_back, fill, publish_and_kick): no heap, no clock, no lock; a system call only
// where the back-end asked for a kick. All work is done in batches, from buffers that were laid out at the start.
//
// A buffer of either direction holds header and frame one after the other, the frame at the start of a cache line. It goes
// into one descriptor, as DPDK does it, or (header_apart) into two, as Linux does it with receive buffers that aren't
// mergeable and before VERSION_1.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/time.hpp"
#include "driver/driver_session.hpp"
#include "driver/shared_memory.hpp"
#include "ring/driver_ring.hpp"
#include "ring/spec.hpp"
#include "vhost_user/front_end.hpp"

namespace ringway {

// Every virtio-net bit that this driver can use.
inline constexpr std::uint64_t kNetDriverFeatures =
    spec::kNetCsum | spec::kNetGuestCsum | spec::kNetCtrlGuestOffloads | spec::kNetMtu | spec::kNetMac |
    spec::kNetGuestTso4 | spec::kNetGuestTso6 | spec::kNetGuestEcn | spec::kNetGuestUfo | spec::kNetHostTso4 |
    spec::kNetHostTso6 | spec::kNetHostEcn | spec::kNetHostUfo | spec::kNetMrgRxbuf | spec::kNetStatus | spec::kNetCtrlVq |
    spec::kNetCtrlRx | spec::kNetCtrlVlan | spec::kNetCtrlRxExtra | spec::kNetGuestAnnounce | spec::kNetMq |
    spec::kNetCtrlMacAddr | spec::kNetVqNotfCoal | spec::kNetNotfCoal | spec::kNetGuestUso4 | spec::kNetGuestUso6 |
    spec::kNetHostUso | spec::kNetHashReport | spec::kNetRss | spec::kNetSpeedDuplex;
// Every protocol feature that it can use.
inline constexpr std::uint64_t kNetDriverProtocolFeatures = vhost_user::kProtocolMq | vhost_user::kProtocolReplyAck |
                                                            vhost_user::kProtocolBackendReq | vhost_user::kProtocolConfig |
                                                            vhost_user::kProtocolConfigureMemSlots;

struct NetDriverOptions {
  std::string socket_path = {};
  Duration patience = Duration::seconds(5);  // for the socket to appear

  // Wishes: taken where the back-end offers them. NetDriver::negotiated() says what came of them. Bits of `features` whose
  // requirements (§5.1.3.1) aren't met are left out.
  bool packed = false;
  bool indirect = true;
  bool event_index = true;
  bool in_order = false;
  bool mergeable = true;
  // Drive the control queue. Without it the driver behaves as a guest whose VMM serves that queue by itself: it takes none
  // of the features that need it, but for MQ. So it does too if the back-end has no configuration space, as that one
  // (DPDK's) leaves the control queue to the VMM even where it offers CTRL_VQ.
  bool control_queue = true;
  // Hashes are for who looks at them: they cost the back-end time for each frame, and RSS leaves the pair to a command.
  std::uint64_t features = kNetDriverFeatures & ~(spec::kNetHashReport | spec::kNetRss);
  std::uint64_t protocol_features = kNetDriverProtocolFeatures;

  // Demands: an error if the back-end can't.
  bool legacy = false;             // no VERSION_1: 10 bytes of header where buffers aren't mergeable
  std::uint32_t pairs = 1;         // to lay out and start; the back-end may have more
  std::uint32_t queue_size = 256;  // descriptors; a power of two unless packed

  // Of each pair. Where the ring can't hold all receive buffers, fill() posts as many as it can.
  std::uint32_t receive_buffers = 256;
  std::uint32_t receive_buffer_bytes = 2048;  // header included, as posted
  std::uint32_t transmit_buffers = 256;
  std::uint32_t transmit_buffer_bytes = 2048;  // of the frame
  std::uint32_t pieces_max = 18;               // of one frame for transmit(); sizes the indirect tables
  bool receive_header_apart = false;
  bool transmit_header_apart = false;
  std::size_t scratch_bytes = 0;      // more shared memory, for NetDriver::memory().allocate()
  std::uint32_t scratch_regions = 0;  // 0: it lies in the rings' region; n: in each of n further ones

  MemoryPages pages = MemoryPages::small;
  bool memory_slots = false;  // ADD_MEM_REG for each region instead of one SET_MEM_TABLE
  bool start = true;          // start all queues; else start_queue() does
  bool enable_pairs = true;   // and enable them; else enable_pair() does. (The control queue is enabled anyway.)
};

// What a session must leave out of `features`, for want of what those bits require (§5.1.3.1); the rest. With
// `mq_by_front_end` MQ doesn't require the control queue.
[[nodiscard]] std::uint64_t net_features_with_requirements(std::uint64_t features, bool mq_by_front_end);

// Of struct virtio_net_hdr, as it stands before each frame under these features: 10, 12 or 20.
[[nodiscard]] std::uint32_t net_header_bytes(std::uint64_t features);

class NetDriverTransmitQueue final : public DriverQueue {
 public:
  // Queues buffers as they lie, each with the header that set_header() last put there (at first: no offload), and returns
  // how many the ring took. The device sees them at publish_and_kick(). Tokens are the buffers' numbers. A buffer that is in
  // flight may be sent again, if its contents stay.
  struct Frame {
    std::uint32_t buffer = 0;
    std::uint32_t bytes = 0;  // without header; transmit_buffer_bytes at most
  };
  [[nodiscard]] std::size_t transmit(std::span<const Frame> frames) noexcept;
  // Where the frame of a buffer is.
  [[nodiscard]] SharedBlock buffer(std::uint32_t index) const noexcept;
  void set_header(std::uint32_t buffer, const spec::NetHeader& header) noexcept;

  // Queues a frame that lies in pieces anywhere in shared memory. Its header has a descriptor of its own. False if the ring
  // is full. REQUIRES: pieces.size() <= pieces_max.
  [[nodiscard]] bool transmit(const spec::NetHeader& header, std::span<const DriverBuffer> pieces,
                              std::uint64_t token) noexcept;
  // Queues a chain as it is, for those who frame packets their own way.
  [[nodiscard]] bool transmit_chain(std::span<const DriverBuffer> chain, std::uint64_t token) noexcept;

  // Takes the tokens of what the device is done with, up to tokens.size(); returns how many.
  [[nodiscard]] std::size_t reap_transmitted(std::span<std::uint64_t> tokens) noexcept;
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return ring_->in_flight(); }

 private:
  friend class NetDriver;

  static constexpr std::uint64_t kCellToken = std::uint64_t{1} << 63U;  // ring token of a cell; else that of a buffer
  static constexpr std::size_t kCellBytes = 64;

  NetDriverTransmitQueue() = default;
  [[nodiscard]] Result<> lay_out_buffers(const NetDriverOptions& options, std::uint32_t header_bytes, SharedMemory& memory);
  [[nodiscard]] std::size_t transmit_header_apart(std::span<const Frame> frames) noexcept;
  void forget_in_flight() noexcept override;

  std::uint32_t header_bytes_ = 0;
  std::uint32_t buffer_bytes_ = 0;
  std::uint32_t stride_ = 0;
  bool header_apart_ = false;
  std::byte* frames_ = nullptr;  // buffer 0's frame, in shared memory
  GuestAddress frames_guest_;
  // Headers of frames in pieces, and tokens of what isn't in one of our buffers: one cell for each chain in flight.
  std::byte* cells_ = nullptr;  // shared memory
  GuestAddress cells_guest_;
  std::uint32_t free_count_ = 0;
  std::vector<std::uint32_t> free_cells_;
  std::vector<std::uint64_t> tokens_;  // by cell; private
  std::vector<DriverBuffer> chain_;    // scratch of transmit()
};

struct NetDriverFrame {
  spec::NetHeader header;         // copied once; zero behind what was negotiated
  std::uint32_t bytes = 0;        // of the frame, without header
  std::uint32_t first = 0;        // number of the receive buffer that it begins in
  std::uint32_t buffers = 0;      // that it lies in
  std::span<const iovec> pieces;  // one for each buffer, without header; until the next receive()
};

class NetDriverReceiveQueue final : public DriverQueue {
 public:
  // Posts the buffers that are free, as many as the ring takes, and kicks the device if it asked for that. Returns how many.
  std::uint32_t fill() noexcept;
  // Takes frames that have arrived, up to frames.size(); returns how many. Each one's buffers are the caller's until
  // give_back(). What makes no sense is counted, and its buffers are free again.
  [[nodiscard]] std::size_t receive(std::span<NetDriverFrame> frames) noexcept;
  // The buffers of received frames are free again, for the next fill(). Any frames of any receive(), each once.
  void give_back(std::span<const NetDriverFrame> frames) noexcept;

  [[nodiscard]] std::uint32_t free_buffers() const noexcept { return free_count_; }
  [[nodiscard]] std::uint32_t posted() const noexcept { return ring_->in_flight(); }

  struct Faults {
    std::uint64_t bad_length = 0;      // a used length less than the header, or more than the buffer
    std::uint64_t no_num_buffers = 0;  // num_buffers of 0, taken for 1
    std::uint64_t missing_buffers =
        0;  // fewer buffers used than num_buffers says: not seen together with the first, or never
    bool operator==(const Faults&) const = default;
  };
  [[nodiscard]] const Faults& faults() const noexcept { return faults_; }

 private:
  friend class NetDriver;

  NetDriverReceiveQueue() = default;
  [[nodiscard]] Result<> lay_out_buffers(const NetDriverOptions& options, std::uint32_t header_bytes, bool mergeable,
                                         SharedMemory& memory);
  void forget_in_flight() noexcept override;
  [[nodiscard]] bool post(std::uint32_t index) noexcept;
  // The other buffers of a frame whose first one is taken; false if they aren't there, or wrong.
  [[nodiscard]] bool take_others(NetDriverFrame& frame, iovec*& next) noexcept;
  void free_buffers_of(const NetDriverFrame& frame) noexcept;
  [[nodiscard]] std::byte* buffer(std::uint32_t index) const noexcept { return buffers_ + std::size_t{index} * stride_; }

  std::uint32_t header_bytes_ = 0;
  std::uint32_t buffer_bytes_ = 0;
  std::uint32_t stride_ = 0;
  bool mergeable_ = false;
  bool header_apart_ = false;
  std::byte* buffers_ = nullptr;  // where buffer 0's header is, in shared memory
  GuestAddress buffers_guest_;
  std::uint32_t free_count_ = 0;
  std::vector<std::uint32_t> free_;  // a stack: the buffer used last is the warmest
  std::vector<std::uint32_t> next_;  // by buffer: the next one of the same frame
  std::vector<iovec> pieces_;        // of the frames of one receive(): it can't bring more than there are buffers
  Faults faults_;
};

struct NetDriverAnswer {
  std::uint8_t ack = 0;             // kAckUntouched if the device wrote none
  std::uint32_t written_bytes = 0;  // the used length, as the device gave it
  static constexpr std::uint8_t kAckUntouched = 0xee;
  [[nodiscard]] bool ok() const { return ack == spec::kNetAckOk; }
};

// Commands one at a time, each with its answer (§5.1.6.5). An error says that there was no answer in time; then no other
// command can be given until that one is done after all.
class NetDriverControlQueue final : public DriverQueue {
 public:
  using Mac = std::array<std::uint8_t, spec::kMacBytes>;
  using Answer = Result<NetDriverAnswer>;
  static constexpr std::size_t kPartsMax = 8;
  static constexpr std::size_t kDataBytesMax = std::size_t{32} << 10U;

  // Class and command go into a descriptor of their own, as does each part of the data, what the device is to write into
  // `out` (which is filled with that), and the ack: as Linux does it. Empty parts are left out.
  [[nodiscard]] Answer command(std::uint8_t control_class, std::uint8_t command,
                               std::span<const std::span<const std::byte>> data = {}, std::span<std::byte> out = {});
  void set_patience(Duration patience) noexcept { patience_ = patience; }

  [[nodiscard]] Answer set_pairs(std::uint16_t pairs);
  [[nodiscard]] Answer set_rx_mode(std::uint8_t mode, bool on);  // spec::kNetCtrlRx…
  [[nodiscard]] Answer set_mac_tables(std::span<const Mac> unicast, std::span<const Mac> multicast);
  [[nodiscard]] Answer set_mac(const Mac& mac);
  [[nodiscard]] Answer add_vlan(std::uint16_t id);
  [[nodiscard]] Answer delete_vlan(std::uint16_t id);
  [[nodiscard]] Answer acknowledge_announce();
  [[nodiscard]] Answer set_offloads(std::uint64_t offloads);  // spec::kNetGuest…
  struct Rss {
    std::uint32_t hash_types = 0;
    std::span<const std::uint16_t> table;  // of pairs; its length less one goes as the mask
    std::uint16_t unclassified = 0;
    std::uint16_t transmit_queues = 1;
    std::span<const std::byte> key;  // 255 bytes at most
  };
  [[nodiscard]] Answer configure_rss(const Rss& rss);
  [[nodiscard]] Answer configure_hash(std::uint32_t hash_types, std::span<const std::byte> key);
  struct Coalescing {
    std::uint32_t max_packets = 0;
    std::uint32_t max_usecs = 0;
    bool operator==(const Coalescing&) const = default;
  };
  [[nodiscard]] Answer set_transmit_coalescing(const Coalescing& coalescing);
  [[nodiscard]] Answer set_receive_coalescing(const Coalescing& coalescing);
  [[nodiscard]] Answer set_queue_coalescing(std::uint16_t queue, const Coalescing& coalescing);  // index of the virtqueue
  [[nodiscard]] Answer get_queue_coalescing(std::uint16_t queue, Coalescing& coalescing);

 private:
  friend class NetDriver;

  NetDriverControlQueue() = default;
  [[nodiscard]] Result<> lay_out_buffers(SharedMemory& memory);
  [[nodiscard]] Result<UsedElement> await_used();
  void forget_in_flight() noexcept override {}

  SharedBlock block_;  // class and command, data, what the device writes, ack
  Duration patience_ = Duration::seconds(5);
};

// A receive queue and the transmit queue of the same number.
struct NetDriverPair {
  NetDriverReceiveQueue& rx;
  NetDriverTransmitQueue& tx;
  // Sleeps on both call eventfds until something may be used; false at the deadline. For more: DriverQueue::wait_any().
  [[nodiscard]] bool wait(Instant deadline) noexcept {
    const std::array<DriverQueue*, 2> both{&rx, &tx};
    return DriverQueue::wait_any(both, deadline);
  }
};

class NetDriver final : public DriverSession {
 public:
  // Connects, negotiates, lays out the memory, and (options.start) starts the queues. Receive queues are empty: fill() them.
  // Like a guest's driver it uses one pair until set_pairs(), if there is a control queue. Errors say what the back-end
  // lacks. After a reconnect() that reset the rings receive queues are empty again, frames that were not given back are
  // void, and the device knows no more of commands than the back-end has kept.
  static Result<std::unique_ptr<NetDriver>> create(const NetDriverOptions& options);

  [[nodiscard]] const NetDriverOptions& options() const { return options_; }
  [[nodiscard]] std::uint32_t header_bytes() const { return net_header_bytes(negotiated().features); }
  [[nodiscard]] bool mergeable() const { return negotiated().has(spec::kNetMrgRxbuf); }

  [[nodiscard]] const spec::NetConfig& config() const { return config_; }
  // Bytes of the configuration that the back-end gave, 0 if it has none; those beyond read as zero in config().
  [[nodiscard]] std::uint32_t config_bytes() const { return config_bytes_; }
  [[nodiscard]] Result<> read_config() override;
  // By config(), where these were negotiated. A link that has no status is up.
  [[nodiscard]] bool link_up() const;
  // The back-end wants the guest to make itself known on the link; until control()->acknowledge_announce().
  [[nodiscard]] bool announce_wanted() const;
  // Pairs that the back-end has: by its configuration where it has one, else GET_QUEUE_NUM.
  [[nodiscard]] std::uint32_t pairs_offered() const { return pairs_offered_; }

  [[nodiscard]] std::uint32_t pair_count() const { return static_cast<std::uint32_t>(pairs_.size()); }
  [[nodiscard]] NetDriverPair& pair(std::uint32_t index) { return pairs_[index]; }
  // Null without a control queue.
  [[nodiscard]] NetDriverControlQueue* control() { return control_; }
  // SET_VRING_ENABLE of both of its queues, as a VMM does that serves the control queue itself.
  [[nodiscard]] Result<> enable_pair(std::uint32_t index, bool enable);

 private:
  explicit NetDriver(const NetDriverOptions& options);

  [[nodiscard]] Result<std::uint64_t> choose_features() override;
  [[nodiscard]] Result<> lay_out() override;
  [[nodiscard]] Result<> lay_out_pair(std::uint32_t pair);
  [[nodiscard]] std::uint32_t control_index() const;

  NetDriverOptions options_;
  spec::NetConfig config_{};
  std::uint32_t config_bytes_ = 0;
  std::uint32_t pairs_offered_ = 1;
  std::vector<NetDriverPair> pairs_;
  NetDriverControlQueue* control_ = nullptr;  // the session's
};

}  // namespace ringway
