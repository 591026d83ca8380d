// The watches of one loop: a table of slots, each with a generation that changes whenever its slot is freed.
//
// A WatchId is a slot and its generation, and is what the engines hand to the kernel as their 64 bits of user data. An event
// that comes back for a watch that is gone (collected in the same batch, or posted before the cancellation took effect)
// finds another generation and is dropped; so a reused slot or a reused descriptor number is never taken for the old watch.
//
// Owner: the loop's thread. Grows in add(), which is a control path; find() is one index and one comparison.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.hpp"
#include "loop/loop.hpp"

namespace ringway {

class WatchTable {
 public:
  // 22 bits of slot and 40 bits of generation leave the two highest bits of a user data word to the engine. A slot would
  // have to be reused 10^12 times to repeat a generation.
  static constexpr unsigned kSlotBits = 22;
  static constexpr unsigned kGenerationBits = 40;

  struct Watch {
    FdHandler* handler = nullptr;  // nullptr: the slot is free
    std::uint64_t generation = 1;  // never 0, so that a WatchId is never 0
    std::uint32_t events = 0;
    int fd = -1;
    bool armed = false;  // the io_uring engine's: a poll of it is in the ring
  };

  [[nodiscard]] WatchId add(int fd, std::uint32_t events, FdHandler& handler) {
    if (free_.empty()) {
      RW_CHECK(watches_.size() < (std::size_t{1} << kSlotBits));
      // Room for every slot's return, so that remove() never allocates.
      free_.reserve(watches_.size() + 1);
      free_.push_back(static_cast<std::uint32_t>(watches_.size()));
      watches_.emplace_back();
    }
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    Watch& watch = watches_[slot];
    watch.handler = &handler;
    watch.events = events;
    watch.fd = fd;
    watch.armed = false;
    return WatchId{(watch.generation << kSlotBits) | slot};
  }

  // The watch, or nullptr when it is gone. Good until the next add(), so don't keep it over a handler's call.
  [[nodiscard]] Watch* find(WatchId id) noexcept {
    const std::uint64_t slot = id.value & ((std::uint64_t{1} << kSlotBits) - 1);
    if (slot >= watches_.size()) {
      return nullptr;
    }
    Watch& watch = watches_[slot];
    return watch.handler != nullptr && watch.generation == id.value >> kSlotBits ? &watch : nullptr;
  }

  // REQUIRES: find(id) != nullptr.
  void remove(WatchId id) noexcept {
    Watch* watch = find(id);
    RW_CHECK(watch != nullptr);
    watch->handler = nullptr;
    watch->fd = -1;
    ++watch->generation;
    free_.push_back(static_cast<std::uint32_t>(watch - watches_.data()));
  }

  [[nodiscard]] std::size_t size() const noexcept { return watches_.size() - free_.size(); }

 private:
  std::vector<Watch> watches_;
  std::vector<std::uint32_t> free_;
};

}  // namespace ringway
