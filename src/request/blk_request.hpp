// Stage (2) for disks: a validated chain becomes a value, or a counted reason for refusal (virtio 1.3 §5.2.6).
//
// Pure: reads guest memory (once, into the value) and nothing else; no system call. A test can build a BlkRequest without a
// ring and without a VM.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/limits.hpp"
#include "ring/chain.hpp"

namespace ringway {

enum class BlkOpcode : std::uint8_t { in, out, flush, get_id, discard, write_zeroes, secure_erase };
inline constexpr std::size_t kBlkOpcodes = 7;
[[nodiscard]] const char* to_string(BlkOpcode opcode) noexcept;

// Why a request was not carried out. Each is counted by name, per device.
enum class BlkRefusal : std::uint8_t {
  none,
  bad_chain,          // the ring found a chain fault (unmapped buffer, loop in an indirect table, …)
  short_header,       // fewer than 16 readable bytes
  no_status,          // no writable byte for the status: the chain is returned with length 0
  unknown_type,       // → UNSUPP
  not_negotiated,     // DISCARD and the like without its feature bit → UNSUPP
  out_of_range,       // beyond the capacity, or an overflowing sector number
  misaligned,         // no data at all, a length that is no multiple of 512, or an offset or length that is no multiple of
                      // the store's block size (never read-modify-write: not atomic to others)
  read_only,          // a write to a read-only disk
  bad_ranges,         // DISCARD / WRITE ZEROES / SECURE ERASE: payload no multiple of 16, no, too many or too long ranges
  bad_flags,          // reserved bits in a range → UNSUPP
  too_many_segments,  // no room for that many segments
};
inline constexpr std::size_t kBlkRefusals = 12;
[[nodiscard]] const char* to_string(BlkRefusal refusal) noexcept;

struct BlkRequestRange {
  std::uint64_t offset = 0;  // bytes
  std::uint64_t bytes = 0;
  bool unmap = false;
};

struct BlkRequest {
  BlkOpcode opcode = BlkOpcode::in;
  // OUT and the like must be on stable storage when they complete (write-through, or a driver that can't flush).
  bool durable = false;
  std::uint16_t range_count = 0;
  std::uint64_t offset = 0;          // bytes from the start of the disk (in, out)
  std::uint64_t bytes = 0;           // of data: sum over `data`
  std::uint64_t writable_bytes = 0;  // of the whole chain, the status byte included (for the used length)
  std::span<iovec> data;             // guest memory; in: written by us; out: read by us; get_id: where the id goes
  std::byte* status = nullptr;       // one writable byte of guest memory, the last of the chain; never part of `data`
  std::array<BlkRequestRange, limits::kBlkRangesMax> ranges;  // the first range_count are valid
};

// What a request is checked against. A plain value, changed between turns (resize, write-cache mode).
struct BlkRequestLimits {
  std::uint64_t capacity_bytes = 0;
  std::uint32_t block_bytes = 512;      // the store's logical block
  std::uint64_t discard_bytes_max = 0;  // of one range
  bool read_only = false;
  bool write_through = false;
  bool discard = false, write_zeroes = false, secure_erase = false;  // negotiated
};

struct BlkParsed {
  BlkRefusal refusal = BlkRefusal::none;
  std::uint8_t status = 0;              // what to answer for the refusal (spec::kBlkStatus…)
  std::byte* status_address = nullptr;  // where, or nullptr: then return the chain with length 0
  std::uint32_t used_length = 0;        // of a refused chain, once the status is written
};

// Reads each byte of the header and of the ranges once. `chain` may come from PopStatus::chain_fault: then only its status
// byte is looked for; it is the last writable byte that could be translated. `storage` receives the data segments; it should
// have room for all segments of the chain (else too_many_segments). FLUSH and GET_ID need no negotiation (a FLUSH without
// the bit is carried out, conformance row 25).
//
// The chain may be framed in any way (§2.7.4: no assumption about the descriptors' borders). The status is the last writable
// byte; what is writable before it is data of IN and GET_ID, and is left alone for the other types. What follows a FLUSH's
// or an IN's header on the readable side is ignored. `out` is valid only with BlkRefusal::none.
[[nodiscard]] BlkParsed parse_blk_request(const Chain& chain, bool chain_fault, const BlkRequestLimits& limits,
                                          std::span<iovec> storage, BlkRequest& out) noexcept;

// Used length of a finished request: the bytes that were surely written from the start of the device-writable part on
// (§2.7.8.2: a driver may rely on at least that many there). So the status byte counts only when all that precedes it was
// written: a good IN reports data and status; a failed IN reports 0, since nothing is known of its data; a GET_ID into a
// buffer of more than 20 bytes reports 20; all else reports 1. (Drivers read the status whatever the length says.)
[[nodiscard]] std::uint32_t blk_used_length(const BlkRequest& request, std::uint8_t status) noexcept;

}  // namespace ringway
