// Rules about requests: status, used length and data of every type and outcome (virtio 1.3 §5.2.6).
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/prng.hpp"
#include "bench/blk_check_rules.hpp"

namespace ringway::blk_check {
namespace {

constexpr std::size_t kReadBack = std::size_t{1} << 20U;  // scratch offsets: what is written at 0, what is read here
constexpr std::size_t kHeader = std::size_t{3} << 20U;    // a hand-made header
constexpr std::size_t kStatus = kHeader + 64;             // and its status, with canaries around it

void fill(Session& session, std::size_t offset, std::size_t bytes, std::uint64_t seed) {
  Prng random(seed);
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    std::memcpy(session.host(offset + i), &word, std::min(sizeof word, bytes - i));
  }
}

void put_header(Session& session, std::uint32_t type, std::uint64_t sector) {
  const spec::BlkRequestHeader header{.type = type, .reserved = 0, .sector = sector};
  std::memcpy(session.host(kHeader), &header, sizeof header);
}

Verdict expect_refused_and_alive(Session& session, const Answer& answer, const std::string& what) {
  if (!answer.refused()) {
    return failed(fmt::format("{}: {}", what, describe(answer)));
  }
  if (!session.alive()) {
    return failed(fmt::format("{}: {}, but a plain read no longer works afterwards", what, describe(answer)));
  }
  return pass(fmt::format("{}: {}", what, describe(answer)));
}

Result<Verdict> read_after_write(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  const std::uint64_t capacity = context.config.capacity;
  std::size_t tried = 0;
  for (const std::size_t bytes : {std::size_t{context.block()}, std::size_t{4096}, std::size_t{65536}, kReadBack}) {
    const std::uint64_t sectors = bytes / spec::kSectorBytes;
    if (bytes % context.block() != 0 || sectors > capacity) {
      continue;
    }
    for (const std::uint64_t sector : {std::uint64_t{0}, capacity - sectors}) {
      if (sector % (context.block() / spec::kSectorBytes) != 0) {
        continue;
      }
      fill(session, 0, bytes, bytes + sector);
      std::memset(session.host(kReadBack), 0, bytes);
      const DriverBuffer out = session.at(0, bytes);
      const DriverBuffer in = session.at(kReadBack, bytes);
      const Answer written = session.request(spec::kBlkTypeOut, sector, {&out, 1});
      const Answer read = session.request(spec::kBlkTypeIn, sector, {&in, 1});
      if (!written.ok() || !read.ok()) {
        return failed(
            fmt::format("{} bytes at sector {}: write {}; read {}", bytes, sector, describe(written), describe(read)));
      }
      if (std::memcmp(session.host(0), session.host(kReadBack), bytes) != 0) {
        return failed(fmt::format("{} bytes at sector {}: other bytes came back", bytes, sector));
      }
      ++tried;
    }
  }
  return pass(
      fmt::format("{} transfers of {} bytes to 1 MiB at both ends of the disk came back the same", tried, context.block()));
}

Result<Verdict> read_length(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  const DriverBuffer data = session.at(0, 4096);
  const Answer answer = session.request(spec::kBlkTypeIn, 0, {&data, 1});
  return answer.ok() && answer.used_length == 4097 ? pass(describe(answer)) : failed(describe(answer) + "; 4097 expected");
}

Result<Verdict> write_length(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  const DriverBuffer data = session.at(0, 4096);
  const Answer answer = session.request(spec::kBlkTypeOut, 0, {&data, 1});
  return answer.ok() && answer.used_length == 1 ? pass(describe(answer)) : failed(describe(answer) + "; length 1 expected");
}

Result<Verdict> flush(const Context& context) {
  if (!context.offers(spec::kBlkFlush)) {
    return skip("VIRTIO_BLK_F_FLUSH is not offered");
  }
  RW_TRY_ASSIGN(Session session, context.open());
  const Answer answer = session.request(spec::kBlkTypeFlush, 0, {});
  return answer.ok() && answer.used_length == 1 ? pass(describe(answer))
                                                : failed(describe(answer) + "; OK, length 1 expected");
}

Result<Verdict> flush_not_negotiated(const Context& context) {
  BlkDriverOptions options = context.driver_options();
  options.features &= ~spec::kBlkFlush;
  RW_TRY_ASSIGN(Session session, Session::open(options, context.options.answer_limit));
  const Answer answer = session.request(spec::kBlkTypeFlush, 0, {});
  const bool good = answer.ok() || answer.status == spec::kBlkStatusUnsupported;
  return good && answer.completed ? pass(describe(answer)) : failed(describe(answer) + "; OK or UNSUPP expected");
}

Result<Verdict> get_id(const Context& context) {
  std::string ids[2];
  for (std::string& id : ids) {
    RW_TRY_ASSIGN(Session session, context.open());
    std::memset(session.host(), 0xcc, 32);
    const DriverBuffer data = session.at(0, limits::kBlkIdBytes);
    const Answer answer = session.request(spec::kBlkTypeGetId, 0, {&data, 1});
    if (!answer.ok()) {
      return failed(describe(answer));
    }
    if (answer.used_length != limits::kBlkIdBytes + 1) {
      return failed(fmt::format("{}; 21 expected (20 bytes and the status)", describe(answer)));
    }
    if (*session.host(limits::kBlkIdBytes) != std::byte{0xcc}) {
      return failed("bytes beyond the 20 of the id were written");
    }
    id.assign(reinterpret_cast<const char*>(session.host()), limits::kBlkIdBytes);
    id.resize(std::min(id.find('\0'), id.size()));
  }
  return ids[0] == ids[1] ? pass(fmt::format("\"{}\" in two sessions", ids[0]))
                          : failed(fmt::format("\"{}\", and in the next session \"{}\"", ids[0], ids[1]));
}

Result<Verdict> get_id_short(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  std::memset(session.host(), 0xcc, 32);
  const DriverBuffer data = session.at(0, 8);
  const Answer answer = session.request(spec::kBlkTypeGetId, 0, {&data, 1});
  if (!answer.completed || answer.status == kStatusUntouched) {
    return failed(describe(answer));
  }
  return *session.host(8) == std::byte{0xcc} ? pass(describe(answer) + ", nothing beyond the 8 bytes was written")
                                             : failed("bytes beyond the buffer were written");
}

Result<Verdict> out_of_range(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  const std::uint64_t capacity = context.config.capacity;
  const std::uint64_t block_sectors = context.block() / spec::kSectorBytes;
  struct Case {
    std::uint64_t sector;
    std::size_t blocks;
  };
  const Case cases[] = {{capacity, 1},
                        {capacity - block_sectors, 2},
                        {capacity + (1U << 20U), 1},
                        {std::uint64_t{1} << 55U, 1},
                        {(std::uint64_t{1} << 55U) + capacity, 1},
                        {~std::uint64_t{0} - (~std::uint64_t{0} % block_sectors), 1},
                        {~std::uint64_t{0} / block_sectors * block_sectors - block_sectors + 1, 2}};
  std::vector<std::uint32_t> types{spec::kBlkTypeIn};
  if (context.may_write()) {
    types.push_back(spec::kBlkTypeOut);
  }
  for (const std::uint32_t type : types) {
    for (const Case& one : cases) {
      const DriverBuffer data = session.at(0, one.blocks * context.block());
      const Answer answer = session.request(type, one.sector, {&data, 1});
      if (!answer.completed || answer.status != spec::kBlkStatusIoErr) {
        return failed(fmt::format("{} of {} block(s) at sector {} of {}: {}", type == spec::kBlkTypeIn ? "read" : "write",
                                  one.blocks, one.sector, capacity, describe(answer)));
      }
    }
  }
  return session.alive() ? pass(fmt::format("{} requests beyond the end: IOERR", types.size() * std::size(cases)))
                         : failed("refused, but a plain read no longer works afterwards");
}

Result<Verdict> misaligned(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  const DriverBuffer data = session.at(0, 511);
  return expect_refused_and_alive(session, session.request(spec::kBlkTypeIn, 0, {&data, 1}), "a read of 511 bytes");
}

Result<Verdict> no_data(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  const Answer answer = session.request(spec::kBlkTypeIn, 0, {});
  if (!answer.completed || answer.status == kStatusUntouched) {
    return failed("a read without a data buffer: " + describe(answer));
  }
  return session.alive() ? pass("a read without a data buffer: " + describe(answer))
                         : failed("a plain read no longer works afterwards");
}

Result<Verdict> unknown_type(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  for (const std::uint32_t type : {2U, 3U, 99U, 0x7ffffff0U, 0xffffffffU}) {
    const Answer answer = session.request(type, 0, {});
    if (!answer.completed || answer.status != spec::kBlkStatusUnsupported) {
      return failed(fmt::format("type {:#x}: {}", type, describe(answer)));
    }
  }
  return pass("types 2, 3, 99, 0x7ffffff0, 0xffffffff: UNSUPP");
}

// Header and data in any number of descriptors: the specification lets a device assume nothing about their borders.
Result<Verdict> framing(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  put_header(session, spec::kBlkTypeIn, 0);
  const std::size_t block = context.block();
  const DriverBuffer plain = session.at(0, block);
  if (!session.request(spec::kBlkTypeIn, 0, {&plain, 1}).ok()) {
    return failed("an ordinary read failed");
  }
  std::vector<std::vector<DriverBuffer>> chains;
  std::vector<DriverBuffer> bytewise;
  bytewise.reserve(sizeof(spec::BlkRequestHeader) + 2);
  for (std::size_t i = 0; i < sizeof(spec::BlkRequestHeader); ++i) {
    bytewise.push_back(session.at(kHeader + i, 1));
  }
  bytewise.push_back(session.at(kReadBack, block, true));
  bytewise.push_back(session.at(kStatus, 1, true));
  chains.push_back(bytewise);
  chains.push_back({session.at(kHeader, 8), session.at(kHeader + 8, 8), session.at(kReadBack, block, true),
                    session.at(kStatus, 1, true)});
  chains.push_back({session.at(kHeader, 16), session.at(kReadBack, 100, true), session.at(kReadBack + 100, 411, true),
                    session.at(kReadBack + 511, block - 511, true), session.at(kStatus, 1, true)});
  for (const std::vector<DriverBuffer>& chain : chains) {
    std::memset(session.host(kReadBack), 0x11, block + 1);
    const Answer answer = session.chain(chain, kStatus);
    if (!answer.ok() || std::memcmp(session.host(0), session.host(kReadBack), block) != 0) {
      return failed(
          fmt::format("a read in {} descriptors: {}{}", chain.size(), describe(answer), answer.ok() ? ", wrong data" : ""));
    }
  }
  // Data and status in one descriptor.
  const DriverBuffer merged[] = {session.at(kHeader, 16), session.at(kReadBack, block + 1, true)};
  const Answer answer = session.chain(merged, kReadBack + block);
  if (!answer.ok() || std::memcmp(session.host(0), session.host(kReadBack), block) != 0) {
    return failed(fmt::format("a read with data and status in one descriptor: {}", describe(answer)));
  }
  return pass("header in 1, 2 and 16 pieces, odd data pieces, data and status together");
}

Result<Verdict> status_canary(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  put_header(session, spec::kBlkTypeIn, 0);
  std::memset(session.host(kStatus - 8), 0x77, 24);
  const DriverBuffer chain[] = {session.at(kHeader, 16), session.at(kReadBack, 4096, true), session.at(kStatus, 1, true)};
  const Answer answer = session.chain(chain, kStatus);
  for (std::size_t i = kStatus - 8; i < kStatus + 16; ++i) {
    if (i != kStatus && *session.host(i) != std::byte{0x77}) {
      return failed(fmt::format("the byte {} from the status was changed",
                                static_cast<std::int64_t>(i) - static_cast<std::int64_t>(kStatus)));
    }
  }
  return answer.ok() ? pass("one byte was written") : failed(describe(answer));
}

// Closes `session` first: a back-end that serves one front-end at a time lets the second one wait.
Verdict next_session_works(Session&& session, const Context& context, const std::string& seen) {
  {
    const Session closing = std::move(session);
  }
  Result<Session> next = context.open();
  if (!next) {
    return failed(seen + ", and no session can be opened any more: " + next.error().message);
  }
  return next->alive() ? pass(seen + "; the next session works")
                       : failed(seen + ", and the next session doesn't work either");
}

// For chains that a device may answer by stopping and asking for a reset; but it must be usable by the next driver.
constexpr const char* kStopped = "the queue was stopped";

Result<Verdict> short_header(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  put_header(session, spec::kBlkTypeIn, 0);
  const DriverBuffer chain[] = {session.at(kHeader, 8), session.at(kReadBack, 512, true), session.at(kStatus, 1, true)};
  const Answer answer = session.chain(chain, kStatus);
  if (!answer.completed) {
    return next_session_works(std::move(session), context, kStopped);
  }
  return answer.ok() ? failed("a header of 8 bytes was taken: " + describe(answer)) : pass(describe(answer));
}

Result<Verdict> no_status(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  put_header(session, spec::kBlkTypeIn, 0);
  const DriverBuffer chain[] = {session.at(kHeader, 16)};
  const Answer answer = session.chain(chain, kStatus);
  if (!answer.completed) {
    return next_session_works(std::move(session), context, kStopped);
  }
  return answer.used_length == 0 && session.alive() ? pass("returned with length 0, and the next read works")
                                                    : failed(describe(answer));
}

Result<Verdict> unmapped_buffer(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  put_header(session, spec::kBlkTypeIn, 0);
  const DriverBuffer chain[] = {session.at(kHeader, 16), {GuestAddress{0x1000}, 4096, true}, session.at(kStatus, 1, true)};
  const Answer answer = session.chain(chain, kStatus);
  if (answer.ok()) {
    return failed("a read into memory that was never shared: " + describe(answer));
  }
  return next_session_works(std::move(session), context, describe(answer));
}

Result<Verdict> many_segments(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  std::uint32_t segments = 126;
  if (context.offers(spec::kBlkSegMax)) {
    segments = std::min(segments, context.config.seg_max);
  }
  const std::size_t each = context.block();
  std::vector<DriverBuffer> pieces;
  pieces.reserve(segments);
  for (std::uint32_t i = 0; i < segments; ++i) {
    pieces.push_back(session.at(kReadBack + std::size_t{i} * each, each));
  }
  if (segments * each / spec::kSectorBytes > context.config.capacity || segments * each > kReadBack) {
    return skip("the disk is too small, or its blocks are too large");
  }
  const DriverBuffer whole = session.at(0, segments * each);
  const Answer plain = session.request(spec::kBlkTypeIn, 0, {&whole, 1});
  const Answer scattered = session.request(spec::kBlkTypeIn, 0, pieces);
  if (!plain.ok() || !scattered.ok()) {
    return failed(fmt::format("{} segments: {}; in one: {}", segments, describe(scattered), describe(plain)));
  }
  return std::memcmp(session.host(0), session.host(kReadBack), segments * each) == 0
             ? pass(fmt::format("a read into {} segments gave the same as one", segments))
             : failed(fmt::format("a read into {} segments gave other data", segments));
}

Result<Verdict> write_zeroes(const Context& context) {
  if (!context.offers(spec::kBlkWriteZeroes)) {
    return skip("VIRTIO_BLK_F_WRITE_ZEROES is not offered");
  }
  RW_TRY_ASSIGN(Session session, context.open());
  const std::uint32_t sectors = std::max<std::uint32_t>(context.block(), 4096) / spec::kSectorBytes;
  const std::size_t bytes = std::size_t{sectors} * spec::kSectorBytes;
  fill(session, 0, 3 * bytes, 42);
  const DriverBuffer out = session.at(0, 3 * bytes);
  const DriverBuffer in = session.at(kReadBack, 3 * bytes);
  const spec::BlkRange range{.sector = sectors, .sectors = sectors, .flags = 0};
  const Answer written = session.request(spec::kBlkTypeOut, 0, {&out, 1});
  const Answer zeroed = session.request(spec::kBlkTypeWriteZeroes, 0, {}, {&range, 1});
  const Answer read = session.request(spec::kBlkTypeIn, 0, {&in, 1});
  if (!written.ok() || !zeroed.ok() || !read.ok() || zeroed.used_length != 1) {
    return failed(fmt::format("write {}; write zeroes {}; read {}", describe(written), describe(zeroed), describe(read)));
  }
  std::memset(session.host(bytes), 0, bytes);
  return std::memcmp(session.host(0), session.host(kReadBack), 3 * bytes) == 0
             ? pass(describe(zeroed) + "; exactly the range reads as zero")
             : failed("the range doesn't read as zero, or its neighbours changed");
}

Result<Verdict> discard(const Context& context) {
  if (!context.offers(spec::kBlkDiscard)) {
    return skip("VIRTIO_BLK_F_DISCARD is not offered");
  }
  RW_TRY_ASSIGN(Session session, context.open());
  const std::uint32_t sectors = std::max<std::uint32_t>(context.block(), 4096) / spec::kSectorBytes;
  const spec::BlkRange range{.sector = 0, .sectors = sectors, .flags = 0};
  const Answer answer = session.request(spec::kBlkTypeDiscard, 0, {}, {&range, 1});
  return answer.ok() && answer.used_length == 1 ? pass(describe(answer)) : failed(describe(answer));
}

Result<Verdict> bad_ranges(const Context& context) {
  if (!context.offers(spec::kBlkDiscard) && !context.offers(spec::kBlkWriteZeroes)) {
    return skip("neither DISCARD nor WRITE ZEROES is offered");
  }
  RW_TRY_ASSIGN(Session session, context.open());
  const std::uint64_t capacity = context.config.capacity;
  const spec::BlkRange ranges[] = {
      {capacity, 8, 0}, {capacity - 1, 8, 0}, {~std::uint64_t{0} - 3, 8, 0}, {std::uint64_t{1} << 55U, 8, 0}};
  for (const std::uint32_t type : {spec::kBlkTypeDiscard, spec::kBlkTypeWriteZeroes}) {
    if (!context.offers(type == spec::kBlkTypeDiscard ? spec::kBlkDiscard : spec::kBlkWriteZeroes)) {
      continue;
    }
    for (const spec::BlkRange& range : ranges) {
      const Answer answer = session.request(type, 0, {}, {&range, 1});
      if (!answer.completed || answer.status != spec::kBlkStatusIoErr) {
        return failed(fmt::format("type {} of 8 sectors from {} of {}: {}", type, range.sector, capacity, describe(answer)));
      }
    }
    const spec::BlkRange reserved{.sector = 0, .sectors = 8, .flags = 0x80000000U};
    const Answer answer = session.request(type, 0, {}, {&reserved, 1});
    if (!answer.completed || answer.status != spec::kBlkStatusUnsupported) {
      return failed(fmt::format("type {} with a reserved flag: {}; UNSUPP expected", type, describe(answer)));
    }
  }
  return pass("beyond the end: IOERR; reserved flags: UNSUPP");
}

Result<Verdict> read_only(const Context& context) {
  if (!context.offers(spec::kBlkRo)) {
    return skip("the disk is not read-only");
  }
  RW_TRY_ASSIGN(Session session, context.open());
  const DriverBuffer data = session.at(0, context.block());
  const Answer answer = session.request(spec::kBlkTypeOut, 0, {&data, 1});
  return answer.completed && answer.status == spec::kBlkStatusIoErr ? pass(describe(answer))
                                                                    : failed(describe(answer) + "; IOERR expected");
}

constexpr Rule kRequestRules[] = {
    {"what is written is read", "virtio 5.2.6", true, Needs::writing, read_after_write},
    {"used length of a read", "virtio 2.7.8.2, 5.2.6", true, Needs::nothing, read_length},
    {"used length of a write", "virtio 2.7.8.2, 5.2.6", true, Needs::writing, write_length},
    {"FLUSH", "virtio 5.2.6.2", true, Needs::nothing, flush},
    {"FLUSH though not negotiated", "virtio 5.2.6.2", true, Needs::nothing, flush_not_negotiated},
    {"GET_ID is stable and 20 bytes", "virtio 5.2.6", true, Needs::nothing, get_id},
    {"GET_ID into a short buffer", "virtio 5.2.6", true, Needs::nothing, get_id_short},
    {"requests beyond the end", "virtio 5.2.6.2", true, Needs::nothing, out_of_range},
    {"length no multiple of 512", "virtio 5.2.6.1", true, Needs::nothing, misaligned},
    {"no data", "virtio 5.2.6.1", true, Needs::nothing, no_data},
    {"unknown type", "virtio 5.2.6.2", true, Needs::nothing, unknown_type},
    {"any framing", "virtio 2.7.4", true, Needs::nothing, framing},
    {"status is one byte", "virtio 5.2.6", true, Needs::nothing, status_canary},
    {"short header", "virtio 5.2.6", true, Needs::nothing, short_header},
    {"no room for the status", "virtio 5.2.6", true, Needs::nothing, no_status},
    {"buffer in memory that isn't shared", "vhost-user, Memory access", true, Needs::nothing, unmapped_buffer},
    {"many segments", "virtio 5.2.4 seg_max", true, Needs::nothing, many_segments},
    {"WRITE ZEROES", "virtio 5.2.6.2", true, Needs::writing, write_zeroes},
    {"DISCARD", "virtio 5.2.6.2", true, Needs::writing, discard},
    {"bad ranges", "virtio 5.2.6.2", true, Needs::writing, bad_ranges},
    {"writes to a read-only disk", "virtio 5.2.6.2", true, Needs::nothing, read_only},
};

}  // namespace

std::span<const Rule> request_rules() {
  return kRequestRules;
}

}  // namespace ringway::blk_check
