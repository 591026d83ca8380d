// Theory of operation
//
// Guest memory is a file that another process owns and may truncate at any moment. The next touch of a page that is gone is
// a SIGBUS on whatever thread touched it, in the middle of a copy or of a ring operation. We serve other VMs on that thread,
// so it must go on; and it must not answer the guest with what it then read.
//
// Why not the simpler ways. Ending the process punishes every other VM. Jumping out of the handler (siglongjmp) abandons
// whatever the interrupted code held half-done, and costs a sigsetjmp per access. Checking the size before each access
// races with the truncation. Asking for F_SEAL_SHRINK would refuse the files of most front-ends. Copying through
// process_vm_readv costs a system call per access.
//
// So the handler makes the memory exist again: anonymous zeroes over the *whole* mapping. The whole, because one region can
// hold millions of pages: replacing page by page would mean one signal and one kernel mapping for each of them. The
// instruction is then restarted and succeeds. What it reads is zero, which is as valid as anything else a guest may have
// written there.
//
// Each slot of the table moves through
//
//   free → claimed → live → replacing → poisoned → free
//        add       add    fault        fault     remove     (also live → free, by remove)
//
// in one atomic word that also carries a generation, counted up by remove. Invariants:
//  - The range of a slot changes only while it is claimed. A reader that finds it live or later, reads the range and then
//    finds the same generation has read one consistent range.
//  - A mapping that somebody is touching is pinned, hence its slot is neither removed nor reused meanwhile. A slot that
//    changes under the handler's search is therefore some other mapping's, and skipping it is right: no retry is needed.
//  - replacing and the epoch come *before* the zeroes appear. Another thread may read the zeroes without a fault of its
//    own; it took a page fault after our mmap to do so (the kernel's page-table lock orders the two), so when it looks at
//    the epoch before publishing, it sees that it moved.
//  - One thread replaces. A second one that faults meanwhile returns at once, faults again, and so on until the memory is
//    there; the handler never waits.
//
// If the kernel refuses the whole mapping (strict overcommit counts it in full), the handler maps the one page that was
// touched, and again for each further one. So does a fault in a mapping that is poisoned already, such as bad RAM under the
// zeroes.
//
// Everything here is async-signal-safe: atomics that are always lock-free, and two raw system calls (raw, since a
// sanitizer's wrappers of mmap aren't). The table is zero-initialised, so its pages cost nothing until slots on them are
// used, and slots are given out lowest first, so that the search in the handler stays as short as the number of mappings has
// ever been.

#include "guest/sigbus.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <type_traits>

#include "base/check.hpp"
#include "base/limits.hpp"

namespace ringway::sigbus {
namespace {

enum class Status : std::uint64_t { kFree = 0, kClaimed, kLive, kReplacing, kPoisoned };

constexpr std::uint64_t kStatusBits = 3;
constexpr std::uint64_t kStatusMask = (1U << kStatusBits) - 1;

constexpr Status status_of(std::uint64_t state) {
  return static_cast<Status>(state & kStatusMask);
}
constexpr std::uint64_t generation_of(std::uint64_t state) {
  return state >> kStatusBits;
}
constexpr std::uint64_t make_state(std::uint64_t generation, Status status) {
  return (generation << kStatusBits) | static_cast<std::uint64_t>(status);
}
// Whether the slot holds a range.
constexpr bool is_used(std::uint64_t state) {
  return status_of(state) >= Status::kLive;
}

// Plain words behind atomic references: std::atomic has a constructor, which would run over the whole table at the start of
// the process and so touch all of it.
class Slot {
 public:
  std::atomic_ref<std::uint64_t> state() { return std::atomic_ref(state_); }
  std::atomic_ref<std::uint64_t> begin() { return std::atomic_ref(begin_); }
  std::atomic_ref<std::uint64_t> bytes() { return std::atomic_ref(bytes_); }
  // The least that can be replaced: a huge page can't be split.
  std::atomic_ref<std::uint64_t> page_bytes() { return std::atomic_ref(page_bytes_); }

 private:
  std::uint64_t state_;
  std::uint64_t begin_;
  std::uint64_t bytes_;
  std::uint64_t page_bytes_;
};

static_assert(std::is_trivially_default_constructible_v<Slot> && sizeof(Slot) == 32);
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free && std::atomic<std::size_t>::is_always_lock_free);
static_assert(sizeof(std::uintptr_t) == sizeof(std::uint64_t));

constexpr std::size_t kCapacity = limits::kMappingsMax;
static_assert(kCapacity <= INT32_MAX);

Slot slots[kCapacity];
// Slots at and above this index were never used. Only grows.
constinit std::atomic<std::size_t> high_water{0};
// A free slot is likely here, and hardly below. Only a hint.
constinit std::atomic<std::size_t> free_hint{0};
constinit std::atomic<std::uint64_t> faults{0};

// Written by sigaction() in install(), before there is a mapping to fault on; read by the handler.
struct sigaction previous_action;

bool map_zeroes(std::uintptr_t begin, std::size_t bytes) noexcept {
  const long result = ::syscall(SYS_mmap, begin, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0L);
  if (result == -1) {
    return false;
  }
  static_cast<void>(::syscall(SYS_madvise, begin, bytes, MADV_DONTDUMP));
  return true;
}

// The slot whose range holds `address`, or nullptr.
Slot* find(std::uintptr_t address) noexcept {
  // Acquire: pairs with the release in raise_high_water().
  const std::size_t count = high_water.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    Slot& slot = slots[i];
    // Acquire: pairs with the release of kLive in add(), so the range is at least as new as the state.
    const std::uint64_t state = slot.state().load(std::memory_order_acquire);
    if (!is_used(state)) {
      continue;
    }
    // Acquire: pairs with the release stores of the range in add(). A range of a later generation makes the claim that
    // preceded it visible to the second look at the state, which then differs.
    const std::uint64_t begin = slot.begin().load(std::memory_order_acquire);
    const std::uint64_t bytes = slot.bytes().load(std::memory_order_acquire);
    if (address - begin < bytes && generation_of(slot.state().load(std::memory_order_relaxed)) == generation_of(state)) {
      return &slot;
    }
  }
  return nullptr;
}

bool replace_page(Slot& slot, std::uintptr_t address) noexcept {
  const std::uint64_t page = slot.page_bytes().load(std::memory_order_relaxed);
  return map_zeroes(address & ~(page - 1), page);
}

// Poisons the slot's mapping, if this is its first fault. True if memory is, or is about to be, at `address`.
bool make_harmless(Slot& slot, std::uintptr_t address) noexcept {
  std::uint64_t state = slot.state().load(std::memory_order_relaxed);
  while (status_of(state) == Status::kLive) {
    const std::uint64_t generation = generation_of(state);
    // Relaxed on failure: only the status is looked at. Acquire-release on success: pairs with poisoned().
    if (!slot.state().compare_exchange_weak(state, make_state(generation, Status::kReplacing), std::memory_order_acq_rel,
                                            std::memory_order_relaxed)) {
      continue;
    }
    // Release: pairs with the acquire in epoch(), so who sees the count also sees which slot is meant.
    faults.fetch_add(1, std::memory_order_release);
    const bool whole =
        map_zeroes(slot.begin().load(std::memory_order_relaxed), slot.bytes().load(std::memory_order_relaxed));
    const bool done = whole || replace_page(slot, address);
    // Release: pairs with the acquire in poisoned().
    slot.state().store(make_state(generation, Status::kPoisoned), std::memory_order_release);
    return done;
  }
  switch (status_of(state)) {
    case Status::kReplacing:
      return true;
    case Status::kPoisoned:
      return replace_page(slot, address);
    case Status::kFree:
    case Status::kClaimed:
    case Status::kLive:
      break;
  }
  return false;
}

// Not a fault on guest memory: as if we had never been here.
void hand_back(const siginfo_t& info) noexcept {
  const bool sent = info.si_code <= 0;
  if (sent && (previous_action.sa_flags & SA_SIGINFO) == 0 && previous_action.sa_handler == SIG_IGN) {
    return;  // somebody's kill(2), and who started us ignores it
  }
  static_cast<void>(::sigaction(SIGBUS, &previous_action, nullptr));
  if (sent || info.si_code == BUS_MCEERR_AO) {
    static_cast<void>(::raise(SIGBUS));  // blocked now, delivered when the handler returns
  }
  // A true fault comes again by itself, and so with its address, when the instruction is restarted.
}

void on_sigbus(int /*signal*/, siginfo_t* info, void* /*context*/) noexcept {
  const int saved_errno = errno;
  // BUS_ADRALN isn't among them: zeroes wouldn't cure a misaligned access, it would fault for ever.
  const bool memory_gone = info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR || info->si_code == BUS_MCEERR_AR ||
                           info->si_code == BUS_MCEERR_AO;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Slot* slot = memory_gone ? find(address) : nullptr;
  if (slot == nullptr || !make_harmless(*slot, address)) {
    hand_back(*info);
  }
  errno = saved_errno;
}

void raise_high_water(std::size_t count) noexcept {
  std::size_t seen = high_water.load(std::memory_order_relaxed);
  // Release: pairs with the acquire in find().
  while (seen < count &&
         !high_water.compare_exchange_weak(seen, count, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

// Takes slot `index` if it is free.
bool claim(std::size_t index, std::uint64_t& generation) noexcept {
  std::uint64_t state = slots[index].state().load(std::memory_order_relaxed);
  generation = generation_of(state);
  // Acquire: pairs with the release in remove(), so the stores of the new range can't overtake it.
  return status_of(state) == Status::kFree &&
         slots[index].state().compare_exchange_strong(state, make_state(generation, Status::kClaimed),
                                                      std::memory_order_acquire, std::memory_order_relaxed);
}

}  // namespace

Result<> install() {
  static const int error = [] {
    struct sigaction action{};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &previous_action) == 0 ? 0 : errno;
  }();
  if (error != 0) {
    return fail_errno(error, "cannot install the handler of SIGBUS");
  }
  return {};
}

std::uint64_t epoch() noexcept {
  // Acquire: pairs with the release in make_harmless().
  return faults.load(std::memory_order_acquire);
}

int add(void* address, std::size_t bytes, std::size_t page_bytes) noexcept {
  RW_CHECK(bytes > 0 && page_bytes > 0 && (page_bytes & (page_bytes - 1)) == 0);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  RW_CHECK(begin % page_bytes == 0 && bytes % page_bytes == 0);
  const std::size_t hint = free_hint.load(std::memory_order_relaxed);
  for (std::size_t tried = 0; tried < kCapacity; ++tried) {
    const std::size_t index = (hint + tried) % kCapacity;
    std::uint64_t generation = 0;
    if (!claim(index, generation)) {
      continue;
    }
    Slot& slot = slots[index];
    // Release: each pairs with the acquire of the same word in find().
    slot.begin().store(begin, std::memory_order_release);
    slot.bytes().store(bytes, std::memory_order_release);
    slot.page_bytes().store(page_bytes, std::memory_order_release);
    raise_high_water(index + 1);
    // Release: pairs with the acquire of the state in find().
    slot.state().store(make_state(generation, Status::kLive), std::memory_order_release);
    std::size_t expected = hint;  // a remove() meanwhile may have lowered the hint: then it stays
    free_hint.compare_exchange_strong(expected, (index + 1) % kCapacity, std::memory_order_relaxed);
    return static_cast<int>(index);
  }
  return -1;
}

void remove(int slot) noexcept {
  RW_CHECK(slot >= 0 && static_cast<std::size_t>(slot) < kCapacity);
  const auto index = static_cast<std::size_t>(slot);
  const std::uint64_t state = slots[index].state().load(std::memory_order_relaxed);
  RW_CHECK(is_used(state) && status_of(state) != Status::kReplacing);
  // Release: pairs with the acquire in claim().
  slots[index].state().store(make_state(generation_of(state) + 1, Status::kFree), std::memory_order_release);
  std::size_t hint = free_hint.load(std::memory_order_relaxed);
  while (index < hint && !free_hint.compare_exchange_weak(hint, index, std::memory_order_relaxed)) {
  }
}

bool poisoned(int slot) noexcept {
  RW_DCHECK(slot >= 0 && static_cast<std::size_t>(slot) < kCapacity);
  // Acquire: pairs with the changes of state in make_harmless().
  return status_of(slots[slot].state().load(std::memory_order_acquire)) >= Status::kReplacing;
}

bool poison(const void* address) noexcept {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  Slot* slot = find(value);
  if (slot == nullptr) {
    return false;
  }
  // Should no memory come there now, the next touch is a SIGBUS, which tries again.
  static_cast<void>(make_harmless(*slot, value));
  return true;
}

}  // namespace ringway::sigbus
