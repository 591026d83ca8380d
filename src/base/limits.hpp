// Every limit of the product, in one place: unit, reason, and the relations between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.hpp"

namespace ringway::limits {

// --- Rings (virtio 1.3 §2.7, §2.8) ---
inline constexpr std::uint32_t kRingSizeMax = 32768;            // descriptors; the layout's own limit
inline constexpr std::uint32_t kChainSegmentsMax = 32768 + 64;  // segments after translation; one descriptor that crosses
                                                                // a region border gives two, so a little more than a ring
inline constexpr std::size_t kQueuesPerDeviceMax = 256;         // SET_VRING_KICK carries an 8-bit index
inline constexpr std::size_t kBlkQueuesMax = 64;

// --- Memory (vhost-user) ---
inline constexpr std::size_t kMemorySlotsMax = 509;  // what QEMU's own limit for vhost-user is; GET_MAX_MEM_SLOTS answers it
inline constexpr std::size_t kDevicesMax = 128;      // of one process; see kMappingsMax
inline constexpr std::size_t kMappingsMax = 131072;  // of guest memory in one process: the old and the new table of each
                                                     // device while one replaces the other, and its logs; 32 bytes each
inline constexpr std::uint64_t kGuestBytesMax = 1ULL << 44U;   // of one guest's memory: 16 TiB
inline constexpr std::uint64_t kMappedBytesMax = 1ULL << 46U;  // of all of it in one process: half of the 128 TiB that it
                                                               // has, so that sparse files can't take what we ourselves need
inline constexpr std::uint64_t kSmallGuestBytes = 256ULL << 20U;  // a limit of address space that has no room for such a
                                                                  // guest is warned of
inline constexpr std::size_t kFdsPerMessageMax = 8;               // VHOST_MEMORY_BASELINE_NREGIONS
inline constexpr std::size_t kOwnFds = 3 * kDevicesMax + 128;  // descriptors that no front-end may take: listener, lock and
                                                               // image of each device; 64 for 32 workers; 64 for the log,
                                                               // the loop, the API and its connections. A tap needs one
                                                               // more for each pair
inline constexpr std::uint32_t kForeignFdsMax = 2048;          // that one device's front-ends have made us hold: see below
inline constexpr std::size_t kMessagePayloadMax = 4096;  // bytes; the largest that applies to us is a memory table of 264

// --- Workers ---
inline constexpr std::uint32_t kWorkersMax = 256;     // threads; more than any host we know has use for
inline constexpr std::size_t kSlotsPerWorker = 1024;  // requests in flight on one worker that any of its disks may hold,
inline constexpr std::uint32_t kReservedSlots = 32;   // and those of each disk alone: a guest's usual depth, which holds up
                                                      // when all other disks of the worker hang
inline constexpr std::size_t kSlotsPerWorkerMax = kSlotsPerWorker + kReservedSlots * kDevicesMax;
inline constexpr std::int32_t kPumpBudget = 2048;     // per queue and turn, so that a deep queue can't hide a shallow one:
inline constexpr std::int32_t kPumpRequestCost = 13;  // of it for each request, and 1 for each descriptor read or further
                                                      // piece of a buffer. 128 requests of three descriptors, 43 of 128
                                                      // KiB in pages
inline constexpr std::uint64_t kPumpBytesPerUnit = 256;      // 1 for so many that the worker copies: 5 to 15 ns, a unit 6
inline constexpr std::uint64_t kCopySliceBytes = 1U << 20U;  // a longer copy is spread over turns: one slice a turn and disk
inline constexpr std::size_t kInlineSegments = 34;           // kept in the slot itself: 128 KiB in 4 KiB pages, and a little
inline constexpr std::size_t kLongSegments = 160;  // of any slot, in memory of its own: a chain of seg_max, some of whose
                                                   // buffers cross a region border
inline constexpr std::size_t kWideSegmentsPerWorker = 8;  // chains longer than that in flight on one worker

// --- Time ---
inline constexpr Duration kStopDeadline = Duration::seconds(5);      // stopping a ring, before the session fails
inline constexpr Duration kStall = Duration::seconds(5);             // a request that takes longer is warned of
inline constexpr Duration kSafetyPeriod = Duration::seconds(1);      // each running ring is looked at this often
inline constexpr Duration kStuckWritePeriod = Duration::seconds(1);  // a worker in a peer's write is freed within this time
inline constexpr Duration kSafetyStep =
    Duration::milliseconds(125);  // of one worker: 8 wake-ups a second, spread over its rings

// --- virtio-blk ---
inline constexpr std::uint32_t kBlkSegmentsMax = 126;  // seg_max: a 128-entry ring less header and status, so that it
                                                       // holds without indirect descriptors too
inline constexpr std::uint32_t kBlkRangesMax = 16;     // segments of one DISCARD or WRITE ZEROES
inline constexpr std::uint64_t kBlkRangeSectorsMax = 4ULL << 20U;  // sectors of one range: 2 GiB
inline constexpr std::size_t kBlkIdBytes = 20;

// --- virtio-net ---
inline constexpr std::uint32_t kNetPairsMax = 127;  // of queues and a control queue, by kQueuesPerDeviceMax
inline constexpr std::uint32_t kNetPairsWithoutControlMax = 128;
inline constexpr std::size_t kNetBatch = 32;                        // frames handed to a port at a time
inline constexpr std::uint32_t kNetPumpFrames = 128;                // received for one queue in one turn
inline constexpr std::int32_t kNetReceiveBudget = 4 * kPumpBudget;  // in the units of kPumpBudget, of one receive queue in
                                                                    // one turn, whoever its frames come from
inline constexpr std::size_t kNetTransmitSegments = 2048;  // of a batch. A frame of more is refused: Linux has 19 at most
inline constexpr std::size_t kNetReceiveBuffers = 1024;    // lent or filled at a time: 64 KiB in buffers of 64 bytes
inline constexpr std::size_t kNetReceiveSegments = 4096;   // of those, about
inline constexpr std::size_t kNetMacTableMax = 64;      // addresses of one kind that are told apart; who lists more gets all
                                                        // frames of that kind, as §5.1.6.5.2 allows and others do it
inline constexpr std::size_t kNetRssTableMax = 128;     // entries of rss_max_indirection_table_length; the least that the
                                                        // specification allows, and all that Linux uses
inline constexpr std::uint32_t kNetSegmentsMax = 1366;  // of one frame: 64 KiB in the smallest segments that TCP is used
                                                        // with (48 bytes, Linux). One chain makes that much work
inline constexpr std::size_t kNetHeadBytesMax = 256;  // of a frame that are looked at: enough for two tags, the longest IPv4
                                                      // and TCP headers, or IPv6 with more extension headers than are in use
inline constexpr std::size_t kNetExtensionHeadersMax = 8;  // of IPv6: a packet with more isn't looked into any further

static_assert(std::size_t{kNetPairsMax} * 2 + 1 <= kQueuesPerDeviceMax &&
              std::size_t{kNetPairsWithoutControlMax} * 2 == kQueuesPerDeviceMax);
static_assert(kBlkSegmentsMax + 2 <= 128, "the default ring of QEMU must hold the longest chain");
static_assert(kLongSegments >= kBlkSegmentsMax + 2, "a driver that keeps to seg_max never waits for wide segments");
static_assert(kPumpBudget / (kPumpRequestCost + 3) == 128, "what the comment says");
static_assert(kMappingsMax >= 2 * kDevicesMax * (kMemorySlotsMax + 2), "both tables, dirty log and in-flight region");
static_assert(kForeignFdsMax > 3 * kQueuesPerDeviceMax + 2 * kMemorySlotsMax + 16,
              "kick, call and error of each ring, the file of each mapping in the old and the new table, and a few");
static_assert(kSafetyStep.ns * 8 >= kSafetyPeriod.ns, "at most about 10 wake-ups a second and worker");

}  // namespace ringway::limits
