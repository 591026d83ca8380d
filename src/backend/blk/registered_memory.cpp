#include "backend/blk/registered_memory.hpp"

#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "loop/clock.hpp"

namespace ringway {

// Makes a piece's pages resident, on a thread of the pool. It belongs to whoever of the two lets go of it last: the worker
// doesn't wait for a page fault.
class RegisteredMemory::Populate final : public IoTask {
 public:
  Populate(std::shared_ptr<const RegionMap> map, std::span<std::byte> memory) : map_(std::move(map)), memory_(memory) {
    slow_task = true;
  }

  void run_task() noexcept override {
    // Only a start: where this fails (an older kernel, memory that has gone) registering does the work, or says why not.
#ifdef MADV_POPULATE_WRITE
    static_cast<void>(::madvise(memory_.data(), memory_.size(), MADV_POPULATE_WRITE));
#endif
    let_go();
  }

  // Acquire: pairs with the release in let_go().
  [[nodiscard]] bool done() const noexcept { return let_go_.load(std::memory_order_acquire); }

  // Each side once. acq_rel: who comes second deletes, after all that the first has done.
  void let_go() noexcept {
    if (let_go_.exchange(true, std::memory_order_acq_rel)) {
      delete this;
    }
  }

 private:
  const std::shared_ptr<const RegionMap> map_;  // keeps the memory mapped
  const std::span<std::byte> memory_;
  std::atomic<bool> let_go_{false};
};

RegisteredMemory::RegisteredMemory(Loop& loop, UringEngine& engine, IoThreads& threads, std::string disk)
    : loop_(loop), engine_(engine), threads_(threads), disk_(std::move(disk)) {}

RegisteredMemory::~RegisteredMemory() {
  use(nullptr);
}

void RegisteredMemory::use(std::shared_ptr<const RegionMap> map) {
  if (map == map_) {
    return;
  }
  abandon_task();
  std::vector<Region> old = std::exchange(regions_, {});
  if (map != nullptr) {
    for (const RegionMap::Region& region : map->regions()) {
      const auto same = std::ranges::find(old, region.mapping.get(), &Region::mapping);
      if (same != old.end()) {
        regions_.push_back(std::move(*same));
        same->slots.clear();
      } else {
        const std::size_t pieces = (region.bytes + kPieceBytes - 1) / kPieceBytes;
        regions_.push_back({.mapping = region.mapping.get(),
                            .host = region.host,
                            .bytes = region.bytes,
                            .slots = std::vector<int>(pieces, kNone)});
      }
    }
  }
  std::ranges::for_each(old, [this](Region& region) { drop(region); });
  map_ = std::move(map);
  near_ = next_region_ = next_piece_ = 0;
  given_up_ = false;
  start_next();
}

std::span<std::byte> RegisteredMemory::piece(const Region& region, std::size_t index) noexcept {
  const std::size_t first = index * kPieceBytes;
  return {region.host + first, std::min<std::size_t>(kPieceBytes, region.bytes - first)};
}

void RegisteredMemory::drop(Region& region) noexcept {
  for (std::size_t i = 0; i < region.slots.size(); ++i) {
    if (region.slots[i] != kNone) {
      engine_.unregister_buffer(region.slots[i]);
      registered_bytes_ -= piece(region, i).size();
    }
  }
}

// Hands the next piece that isn't registered to the pool, if there is one.
void RegisteredMemory::start_next() noexcept {
  for (; !given_up_ && next_region_ < regions_.size(); ++next_region_, next_piece_ = 0) {
    const Region& region = regions_[next_region_];
    while (next_piece_ < region.slots.size() && region.slots[next_piece_] != kNone) {
      ++next_piece_;
    }
    if (next_piece_ < region.slots.size()) {
      // Without a thread nobody would ever do it.
      if (const Result<> started = threads_.start_first(); !started) {
        return give_up(started.error());
      }
      task_ = new Populate(map_, piece(region, next_piece_));
      IoTaskQueue tasks;
      tasks.push(*task_);
      threads_.push(tasks);
      loop_.set_timer(*this, clock_now() + kLookAgain);
      return;
    }
  }
}

void RegisteredMemory::abandon_task() noexcept {
  if (task_ == nullptr) {
    return;
  }
  loop_.cancel_timer(*this);
  if (threads_.remove(*task_)) {
    task_->let_go();  // for the thread that will not come
  }
  std::exchange(task_, nullptr)->let_go();
}

void RegisteredMemory::on_timer(Instant now) noexcept {
  if (!task_->done()) {
    loop_.set_timer(*this, now + kLookAgain);
    return;
  }
  std::exchange(task_, nullptr)->let_go();
  Region& region = regions_[next_region_];
  const std::span<std::byte> memory = piece(region, next_piece_);
  if (const Result<int> slot = engine_.register_buffer(memory)) {
    region.slots[next_piece_] = *slot;
    registered_bytes_ += memory.size();
  } else {
    give_up(slot.error());
  }
  start_next();
}

void RegisteredMemory::give_up(const Error& error) noexcept {
  given_up_ = true;
  if (!std::exchange(complained_, true)) {
    spdlog::warn("{}: {} MiB of guest memory are registered with the kernel, the rest is used without that: {}", disk_,
                 registered_bytes_ >> 20U, error.message);
  }
}

int RegisteredMemory::find(std::span<const iovec> segments) const noexcept {
  const std::size_t count = regions_.size();
  const auto* const first = static_cast<const std::byte*>(segments.front().iov_base);
  for (std::size_t looked = 0; looked < count; ++looked) {
    const Region& region = regions_[near_];
    const auto offset = static_cast<std::uint64_t>(first - region.host);
    if (offset >= region.bytes) {
      near_ = near_ + 1 < count ? near_ + 1 : 0;
      continue;
    }
    const std::size_t index = offset / kPieceBytes;
    const std::span<std::byte> whole = piece(region, index);
    const bool inside = std::ranges::all_of(segments, [&](const iovec& segment) {
      const auto from = static_cast<std::uint64_t>(static_cast<const std::byte*>(segment.iov_base) - whole.data());
      return from < whole.size() && segment.iov_len <= whole.size() - from;
    });
    return inside ? region.slots[index] : kNone;
  }
  return kNone;
}

}  // namespace ringway
