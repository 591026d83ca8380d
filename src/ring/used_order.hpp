// Holds back completions so that buffers are used in the order in which they were made available, as VIRTIO_F_IN_ORDER
// demands (virtio 1.3 §2.7.9, §2.8.10).
//
// Owner: the ring's worker. Allocated at the ring's start, and only if IN_ORDER was negotiated; bounded by the ring's size.
// Each chain gets a used element of its own: batching several into one would hide their lengths, and a driver is free to
// look at them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/check.hpp"
#include "ring/chain.hpp"

namespace ringway {

class UsedOrder {
 public:
  // An order of no ring: active() is false, nothing else may be called.
  UsedOrder() = default;
  explicit UsedOrder(std::uint32_t size)
      : popped_(std::make_unique<ChainId[]>(size)), done_(std::make_unique<Done[]>(size)), size_(size) {}

  [[nodiscard]] bool active() const noexcept { return size_ != 0; }

  // REQUIRES: fewer than `size` chains are waiting, and id.head < size.
  void popped(ChainId id) noexcept {
    RW_DCHECK(waiting_ < size_ && id.head < size_);
    std::uint32_t end = first_ + waiting_;
    end = end >= size_ ? end - size_ : end;
    popped_[end] = id;
    ++waiting_;
  }

  // The chain popped last is taken back.
  void unpopped() noexcept {
    RW_DCHECK(waiting_ != 0);
    --waiting_;
  }

  // A chain is complete: calls emit(ChainId, std::uint32_t written_bytes) for each chain whose turn has come by it.
  template <typename Emit>
  void pushed(ChainId id, std::uint32_t written_bytes, Emit emit) noexcept {
    // A hostile driver may have made one head available several times; counting them keeps each one's element.
    ++done_[id.head].count;
    done_[id.head].written_bytes = written_bytes;
    while (waiting_ != 0) {
      const ChainId oldest = popped_[first_];
      Done& done = done_[oldest.head];
      if (done.count == 0) {
        return;
      }
      --done.count;
      first_ = first_ + 1 == size_ ? 0 : first_ + 1;
      --waiting_;
      emit(oldest, done.written_bytes);
    }
  }

 private:
  struct Done {
    std::uint32_t written_bytes = 0;
    std::uint32_t count = 0;
  };

  std::unique_ptr<ChainId[]> popped_;  // a ring of the chains not yet published, oldest at first_
  std::unique_ptr<Done[]> done_;       // by head (split) or buffer id (packed)
  std::uint32_t size_ = 0;
  std::uint32_t first_ = 0;
  std::uint32_t waiting_ = 0;
};

}  // namespace ringway
