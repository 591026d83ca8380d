// One ring's part of the region that survives a crash of this process (vhost-user: INFLIGHT_SHMFD, "Inflight I/O tracking").
//
// The front-end keeps the memory; a restarted back-end finds in it which chains the old one had taken and not finished, and
// serves them again in the order in which they were taken. Every update follows the specification's order with release
// stores, and a batch is committed once per publish. What is read back is a front-end's claim: each index
// is checked, each walk bounded, and no entry is in two chains.
//
// Owner: the ring's worker. An object without memory is disabled: every call is then a single branch. open() and recover()
// allocate, the rest doesn't.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "guest/mapping.hpp"
#include "ring/chain.hpp"
#include "ring/packed_ring.hpp"
#include "ring/ring_layout.hpp"
#include "ring/spec.hpp"

namespace ringway {

class InflightQueue {
 public:
  struct Options {
    std::uint16_t queue_index = 0;  // within the region, from 0
    std::uint16_t queue_size = 0;   // that the region was laid out for
    std::uint32_t ring_size = 0;    // not more than that
    std::uint16_t used_index = 0;   // DeviceRing::used_index() at its start, where a new part begins
    bool packed = false;
    bool in_order = false;  // used elements leave in the order of popped(), whatever the order of pushed()
  };

  InflightQueue() = default;
  // Initialises the part if it is new (version 0). Errors: the region is too small for that queue; a version or a size that
  // is not ours.
  [[nodiscard]] static Result<InflightQueue> open(std::shared_ptr<Mapping> memory, const Options& options);
  // Bytes of one queue's part; queue i's starts at i times that. A multiple of 64, so that no two queues share a cache line.
  [[nodiscard]] static std::size_t bytes_per_queue(std::uint32_t queue_size, bool packed);

  // Makes a part that nobody has open new for whoever opens it next. One word: no more is touched of a region that may be
  // large, and that control threads see. REQUIRES: the region has room for that queue.
  static void forget(const Mapping& memory, std::uint16_t queue_index, std::uint32_t queue_size, bool packed) noexcept;

  [[nodiscard]] bool enabled() const noexcept { return first_ != nullptr; }
  // open() found the part in use: the ring was served before and never stopped with its base told. Its place is then the one
  // that the part tells, not the front-end's.
  [[nodiscard]] bool taken_over() const noexcept { return taken_over_; }

  struct Pending {
    std::uint16_t head = 0;                           // split: of the chain; packed: its first entry in the region
    std::vector<spec::PackedDescriptor> descriptors;  // packed: the chain as it stood in the ring
    std::uint64_t counter = 0;
  };
  // Puts the part in order after a crash (a batch that had been published but not committed, or the reverse) and returns
  // what must be served again, oldest first. Those count as popped.
  [[nodiscard]] std::vector<Pending> recover(const RingLayout& layout);
  // Packed, after recover(): the ring's positions in the form of SET_VRING_BASE, where our lost predecessor stood. Nothing
  // in a packed ring's memory tells a front-end, whose base is as old as the ring's last start. None if the region's numbers
  // can't be.
  [[nodiscard]] std::optional<std::uint32_t> recovered_base(std::span<const Pending> pending,
                                                            std::uint32_t ring_size) const noexcept;

  // A chain was taken. `descriptors`: packed only, its entries in the descriptor ring.
  void popped(ChainId id, std::span<const spec::PackedDescriptor> descriptors) noexcept {
    if (enabled()) {
      note_popped(id, descriptors);
    }
  }
  // A chain that recover() had returned was taken up again.
  void repopped(ChainId id) noexcept;
  // A chain is complete and its used element was written or (IN_ORDER) is held back by the ring. The region learns of it in
  // publishing(): chains are popped between the two, and must not be given the entries of one that counts as in flight
  // still.
  void pushed(ChainId id) noexcept {
    if (enabled() && !in_order_) {
      note_used(id);
    }
  }
  // Before used elements are published: `amount` of them (split) or the descriptors they cover (packed), after which the
  // published used position will be `used_index` (packed).
  void publishing(std::uint32_t amount, std::uint16_t used_index) noexcept {
    if (enabled()) {
      prepare(amount, used_index);
    }
  }
  // After that: the batch is done.
  void published(std::uint16_t used_index) noexcept {
    if (enabled()) {
      commit(used_index);
    }
  }
  // The ring was reset, or stopped with its base told: the part is as new for whoever opens it next, and this object is
  // disabled.
  void clear() noexcept;

 private:
  void initialise(std::uint16_t used_index) noexcept;
  void note_order(ChainId id) noexcept;
  void note_popped(ChainId id, std::span<const spec::PackedDescriptor> descriptors) noexcept;
  void note_popped_packed(ChainId id, std::span<const spec::PackedDescriptor> descriptors) noexcept;
  void note_used(ChainId id) noexcept;
  void prepare(std::uint32_t amount, std::uint16_t used_index) noexcept;
  void commit(std::uint16_t used_index) noexcept;
  void recover_split(const RingLayout& layout, std::vector<Pending>& pending);
  void recover_packed(const RingLayout& layout, std::vector<Pending>& pending);
  [[nodiscard]] PackedPosition used_position() const noexcept;
  void take_back_elements(const RingLayout& layout, std::span<const Pending> pending) noexcept;
  [[nodiscard]] std::byte* entry(std::uint32_t index) const noexcept;

  std::shared_ptr<Mapping> memory_;
  std::byte* first_ = nullptr;
  std::uint16_t size_ = 0;  // entries
  bool packed_ = false;
  bool in_order_ = false;
  bool taken_over_ = false;
  std::uint64_t counter_ = 0;  // of the next chain

  // Ours, so that nothing the front-end writes into the region can lead us astray while it runs.
  std::uint16_t free_head_ = 0;             // packed
  std::vector<std::uint16_t> next_;         // packed: the links of the entries
  std::vector<std::uint16_t> entry_of_id_;  // packed: buffer id → its first entry
  std::vector<std::uint16_t> last_of_;      // packed: first entry → last entry
  std::vector<std::uint16_t> batch_;        // first entries of the chains that are complete and not committed yet
  std::vector<ChainId> order_;              // IN_ORDER: a ring of the chains that were popped, oldest at order_first_
  std::size_t order_first_ = 0, order_count_ = 0;
  std::vector<std::uint16_t> recovered_;  // packed: entries of recover()'s chains, in their order
  std::size_t repopped_ = 0;
};

}  // namespace ringway
