// What happens when guest memory vanishes while we touch it.
//
// A fixed, lock-free table holds the address range of every Mapping. The SIGBUS handler finds the faulting address in it,
// maps anonymous zero memory over the whole region so that the interrupted instruction can go on, marks the slot as
// poisoned, counts, and returns. It never jumps. An address outside the table is a bug of ours (or bad RAM): the previous
// disposition is restored and the signal raised again, which ends the process.
//
// Workers compare `epoch()` with the value they last saw once per batch, before publishing; only when it moved do
// they ask their region maps which mapping is poisoned. So the cost on the data path is one load per batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.hpp"

namespace ringway::sigbus {

// Installs the handler for the process; further calls do nothing. Mapping calls it; a thread that touches guest memory must
// not block SIGBUS, or the kernel ends the process.
[[nodiscard]] Result<> install();

// How many mappings were poisoned since the start. Any thread. It has moved before any thread can read the zeroes.
[[nodiscard]] std::uint64_t epoch() noexcept;

// For Mapping only. `address` and `bytes` are multiples of `page_bytes`, the page size of the file behind.
// A slot index, or -1 when the table is full.
[[nodiscard]] int add(void* address, std::size_t bytes, std::size_t page_bytes) noexcept;
// REQUIRES: nobody touches the memory any more, and nobody will; it is not unmapped yet.
void remove(int slot) noexcept;
[[nodiscard]] bool poisoned(int slot) noexcept;
// For system calls that answered EFAULT on guest memory: the same fault by another way. True if `address` lies in a mapping,
// which is poisoned then; false means that the EFAULT is a bug of ours. REQUIRES: the map that gave out `address` is pinned.
bool poison(const void* address) noexcept;

}  // namespace ringway::sigbus
