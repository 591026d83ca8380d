// Guest memory as registered buffers of a worker's io_uring: the kernel takes hold of the pages once, instead of looking
// them up and holding them for each request.
//
// Owner: the channel of one disk on one worker, and its thread; each worker has its own ring, so each registers for itself.
// By option only. Registering makes every page of the guest resident for as long as it lasts, so there is no overcommit. And
// the VMM must not take pages out of the guest meanwhile (balloon, free page reporting, virtio-mem: whatever punches holes
// into the memory file): the kernel goes on reading and writing the pages that it holds, while the guest gets new ones where
// it touches a hole. That is silent corruption of the guest's data, and nothing tells us of the hole.
//
// How it keeps out of the data path: memory is registered in pieces. A thread of the store's pool makes the pages of one
// piece resident, which takes seconds per GiB of memory that the guest has never touched; then the worker registers that
// piece, which only takes hold of them (a few milliseconds), and the thread goes on to the next. A request whose memory is
// not registered, or not yet, goes the ordinary way.
//
// What it brings: it may lower the CPU time of large requests; measure. There is one series, on a virtual machine that was
// busy otherwise (six alternating runs, medians, random reads with direct I/O, 32 in flight): CPU time of the back-end per
// request 27.9 to 16.0 us with 128 KiB, and no difference beyond the noise with 4 KiB. The disk's own speed bounded the rate
// in both.
//
// Where the kernel refuses (RLIMIT_MEMLOCK, no room in its table) or gives no thread, what is registered stays in use, and
// one log line says so.
#pragma once

#include <sys/uio.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/blk/io_threads.hpp"
#include "guest/region_map.hpp"
#include "loop/loop.hpp"
#include "loop/uring_engine.hpp"

namespace ringway {

class RegisteredMemory final : private TimerHandler {
 public:
  // No request may cross the border of two pieces, so they are large; the kernel's table has 16384 places for them, so not
  // too small either; and registering one is a pause of the worker, so not as large as could be (the kernel takes 1 GiB).
  static constexpr std::size_t kPieceBytes = std::size_t{32} << 20U;

  // `disk` is for log lines. All outlive the object. REQUIRES at destruction: nothing in flight uses a slot.
  RegisteredMemory(Loop& loop, UringEngine& engine, IoThreads& threads, std::string disk);
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ~RegisteredMemory() override;

  // From now on memory of `map` is meant. What isn't in it any more is not registered any more when this returns; what is in
  // both stays registered; what is new follows in time.
  void use(std::shared_ptr<const RegionMap> map);

  static constexpr int kNone = -1;
  // The slot of the piece that holds all bytes of the segments, for IORING_OP_READ_FIXED and the like, or kNone.
  [[nodiscard]] int find(std::span<const iovec> segments) const noexcept;

  // True when there is nothing left to register, or it was given up.
  [[nodiscard]] bool settled() const noexcept { return task_ == nullptr; }
  [[nodiscard]] std::uint64_t registered_bytes() const noexcept { return registered_bytes_; }

 private:
  struct Region {
    const Mapping* mapping = nullptr;  // kept alive by map_
    std::byte* host = nullptr;
    std::uint64_t bytes = 0;
    std::vector<int> slots;  // by piece, from the region's start; kNone where it is not registered yet
  };
  // Ends itself in let_go(), so nothing is deleted through a base.
  class Populate;  // NOLINT(cppcoreguidelines-virtual-class-destructor)

  void on_timer(Instant now) noexcept override;
  void drop(Region& region) noexcept;
  void start_next() noexcept;
  void abandon_task() noexcept;
  void give_up(const Error& error) noexcept;
  [[nodiscard]] static std::span<std::byte> piece(const Region& region, std::size_t index) noexcept;

  static constexpr Duration kLookAgain = Duration::milliseconds(1);

  Loop& loop_;
  UringEngine& engine_;
  IoThreads& threads_;
  const std::string disk_;
  std::shared_ptr<const RegionMap> map_;
  std::vector<Region> regions_;   // by guest address, as in the map
  mutable std::size_t near_ = 0;  // the region of the last find()
  Populate* task_ = nullptr;      // of the piece that is next
  std::size_t next_region_ = 0;
  std::size_t next_piece_ = 0;
  std::uint64_t registered_bytes_ = 0;
  bool given_up_ = false;  // until there is another map
  bool complained_ = false;
};

}  // namespace ringway
