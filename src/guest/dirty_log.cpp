// How a bit can't get lost. The front-end repeats: take a word and clear it by one atomic exchange, then copy the pages
// whose bits were set. We: write the data, then OR the bit. Either our OR comes after its exchange, and the bit is there for
// the next round; or before, and then its exchange, which has acquire semantics, reads our OR, which has release semantics,
// and its copy sees the data.
//
// Release is therefore needed: a relaxed OR could be seen before the data. More is not: that the used index comes later is
// the work of its own release store. And the OR is never left out because the bit is set already: the load for that test
// could be satisfied before our data is visible, while the front-end clears the bit and copies the old page in between. It
// would take a full fence to make the test safe, which costs as much as the OR.

#include "guest/dirty_log.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace ringway {
namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);

// Bits first to last, both included, of a word of `Word`'s width.
template <typename Word>
constexpr Word bits_from_to(std::uint64_t first, std::uint64_t last) {
  const Word up_to_last = static_cast<Word>(static_cast<Word>(~Word{0}) >> (sizeof(Word) * 8 - 1 - last));
  return static_cast<Word>(up_to_last & static_cast<Word>(static_cast<Word>(~Word{0}) << first));
}

// Release: pairs with the front-end's atomic exchange that fetches and clears the bits.
template <typename Word>
void set_bits(std::byte* at, std::uint64_t first, std::uint64_t last) noexcept {
  __atomic_fetch_or(reinterpret_cast<Word*>(at), bits_from_to<Word>(first, last), __ATOMIC_RELEASE);
}

}  // namespace

Result<std::shared_ptr<DirtyLog>> DirtyLog::create(int fd, std::uint64_t bytes, std::uint64_t offset,
                                                   std::shared_ptr<ForeignHoldings> holdings) {
  RW_TRY_ASSIGN(std::shared_ptr<Mapping> mapping,
                Mapping::create_for(Mapping::Purpose::dirty_log, fd, bytes, offset, std::move(holdings)));
  std::shared_ptr<DirtyLog> log(new DirtyLog);
  // No guest has more pages than 64-bit addresses have, however long the bitmap is.
  constexpr std::uint64_t kPagesMax = std::numeric_limits<std::uint64_t>::max() / kPageBytes + 1;
  log->pages_ = std::min(bytes, kPagesMax / 8) * 8;
  log->mapping_ = std::move(mapping);
  return log;
}

DirtyLog::~DirtyLog() = default;

void DirtyLog::mark(GuestAddress address, std::uint64_t bytes) noexcept {
  if (bytes == 0) {
    return;
  }
  std::uint64_t end = 0;  // last byte of the range; a range that wraps ends with the address space
  if (__builtin_add_overflow(address.value, bytes - 1, &end)) {
    end = std::numeric_limits<std::uint64_t>::max();
  }
  const std::uint64_t first = address.value / kPageBytes;
  const std::uint64_t last = end / kPageBytes;
  if (last >= pages_) {
    outside_.fetch_add(last - std::max(first, pages_) + 1, std::memory_order_relaxed);
  }
  if (first < pages_) {
    set_pages(first, std::min(last, pages_ - 1));
  }
}

// A byte of the bitmap is reached by the aligned 64-bit word around it where that lies within the bitmap, else (at its ends,
// when offset or size aren't multiples of 8) by itself. So the width of an access depends on the place alone, and two of our
// threads never access one place with different widths.
void DirtyLog::set_pages(std::uint64_t first, std::uint64_t last) noexcept {
  std::byte* const bitmap = mapping_->data();
  const std::uint64_t bitmap_bytes = pages_ / 8;
  const std::uint64_t head_bytes = (kWordBytes - reinterpret_cast<std::uintptr_t>(bitmap) % kWordBytes) % kWordBytes;
  while (first <= last) {
    const std::uint64_t byte = first / 8;
    const std::uint64_t word = byte < head_bytes ? bitmap_bytes : byte - (byte - head_bytes) % kWordBytes;
    const bool whole_word = word < bitmap_bytes && bitmap_bytes - word >= kWordBytes;
    const std::uint64_t start = (whole_word ? word : byte) * 8;  // page of the unit's lowest bit
    const std::uint64_t until = std::min(last, start + (whole_word ? 63 : 7));
    if (whole_word) {
      set_bits<std::uint64_t>(bitmap + word, first - start, until - start);
    } else {
      set_bits<std::uint8_t>(bitmap + byte, first - start, until - start);
    }
    first = until + 1;
  }
}

void DirtyLog::mark(const RegionMap& map, const std::byte* host, std::uint64_t bytes) noexcept {
  GuestAddress address;
  if (map.guest_address_of(host, address)) {
    mark(address, bytes);
  } else if (bytes > 0) {
    outside_.fetch_add((bytes - 1) / kPageBytes + 1, std::memory_order_relaxed);
  }
}

std::uint64_t DirtyLog::outside() const noexcept {
  return outside_.load(std::memory_order_relaxed);
}

bool DirtyLog::poisoned() const noexcept {
  return mapping_->poisoned();
}

}  // namespace ringway
