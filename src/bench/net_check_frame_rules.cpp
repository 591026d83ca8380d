// Rules about frames: headers, framing, used lengths and chains that make no sense, in both directions (virtio 1.3 §5.1.6).
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/prng.hpp"
#include "bench/net_check_rules.hpp"
#include "bench/net_sequence.hpp"
#include "loop/clock.hpp"

namespace ringway::net_check {
namespace {

using Chain = std::vector<DriverBuffer>;

constexpr std::size_t kIn = std::size_t{256} << 10U;      // scratch offsets: what is sent at 0, what is received here
constexpr std::size_t kCanary = std::size_t{512} << 10U;  // and what nobody may write
constexpr std::byte kFill{0x77};
constexpr const char* kQueueStopped = "the queue was stopped";

// Pieces of these lengths, one behind the other; 0 stands for the rest.
Chain split(const Session& session, std::size_t offset, std::size_t bytes, std::span<const std::size_t> pieces,
            bool writable = false) {
  Chain chain;
  std::size_t done = 0;
  for (const std::size_t piece : pieces) {
    const std::size_t length = piece == 0 ? bytes - done : piece;
    chain.push_back(session.at(offset + done, length, writable));
    done += length;
  }
  return chain;
}

Chain bytewise(const Session& session, std::size_t offset, std::size_t bytes, std::size_t pieces, bool writable = false) {
  const std::size_t alone = std::min(pieces, bytes);
  std::vector<std::size_t> lengths(alone, 1);
  if (alone != bytes) {
    lengths.push_back(0);
  }
  return split(session, offset, bytes, lengths, writable);
}

// A frame in this chain arrives, as far as that can be seen. What is wrong, or nothing.
std::string carried(Session& session, const Context& context, std::span<const DriverBuffer> chain, std::uint32_t bytes) {
  if (context.loops()) {
    static_cast<void>(session.pair().rx.fill());
    return session.returns(chain, bytes);
  }
  const Answer answer = session.send(chain);
  return answer.completed && answer.used_length == 0 ? std::string() : describe(answer);
}

const char* how_far(const Context& context) {
  return context.loops() ? "came back the same" : "were taken (what became of them isn't seen)";
}

Result<Verdict> transmit_length(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  session.put_frame(200, 1);
  const DriverBuffer chain = session.at(0, session.header_bytes() + 200);
  const Answer answer = session.send({&chain, 1});
  return answer.completed && answer.used_length == 0 ? pass(describe(answer))
                                                     : failed(describe(answer) + "; length 0 expected");
}

// Without VERSION_1 and mergeable buffers a header has 10 bytes, else 12.
Result<Verdict> header_length(const Context& context) {
  std::string seen;
  for (const auto& [legacy, mergeable] : {std::pair{false, true}, {false, false}, {true, true}, {true, false}}) {
    NetDriverOptions driver = context.driver_options();
    driver.legacy = legacy;
    driver.mergeable = mergeable;
    Result<Session> session = context.open(driver);
    if (!session && legacy) {
      return pass(seen + " bytes; drivers without VERSION_1 are refused, as they may be");
    }
    if (!session) {
      return std::unexpected(session.error());
    }
    if (const std::string wrong = session->plain_frame(); !wrong.empty()) {
      return failed(fmt::format("{}, {}: {}", legacy ? "without VERSION_1" : "with VERSION_1",
                                session->driver().mergeable() ? "mergeable" : "not mergeable", wrong));
    }
    seen += fmt::format("{}{}", seen.empty() ? "" : ", ", session->header_bytes());
  }
  return pass(seen + " bytes");
}

Result<Verdict> plain_buffers(const Context& context) {
  NetDriverOptions driver = context.driver_options();
  driver.mergeable = false;
  RW_TRY_ASSIGN(Session session, context.open(driver));
  static_cast<void>(session.pair().rx.fill());
  for (const std::uint32_t bytes : {60U, 61U, 511U, 1514U}) {
    session.put_frame(bytes, bytes);
    const DriverBuffer chain = session.at(0, session.header_bytes() + bytes);
    if (const Answer answer = session.send({&chain, 1}); !answer.completed) {
      return failed(fmt::format("a frame of {} bytes: {}", bytes, describe(answer)));
    }
    const auto came = session.arrived();
    if (!came || came->bytes.size() != bytes ||
        std::memcmp(came->bytes.data(), session.host(session.header_bytes()), bytes) != 0) {
      return failed(fmt::format("a frame of {} bytes {}", bytes, came ? "came back as another" : "didn't come back"));
    }
    if (came->header.num_buffers != 1) {
      return failed(fmt::format("num_buffers is {} though buffers aren't mergeable; 1 expected", came->header.num_buffers));
    }
    if (came->header.flags != 0 || came->header.gso_type != spec::kNetGsoNone) {
      return failed(fmt::format("flags {:#x} and GSO type {} though no offload was negotiated", came->header.flags,
                                came->header.gso_type));
    }
  }
  return pass("60 to 1514 bytes came back the same, num_buffers 1, no offloads");
}

Result<Verdict> mergeable_buffers(const Context& context) {
  if (!context.offers(spec::kNetMrgRxbuf)) {
    return skip("VIRTIO_NET_F_MRG_RXBUF is not offered");
  }
  constexpr std::uint32_t kSmall = 100;
  NetDriverOptions driver = context.driver_options();
  driver.receive_buffer_bytes = kSmall;
  RW_TRY_ASSIGN(Session session, context.open(driver));
  static_cast<void>(session.pair().rx.fill());
  std::uint32_t most = 0;
  for (const std::uint32_t bytes : {60U, 88U, 89U, 188U, 1514U, 1514U, 60U}) {
    session.put_frame(bytes, bytes);
    const DriverBuffer chain = session.at(0, session.header_bytes() + bytes);
    if (const std::string wrong = session.returns({&chain, 1}, bytes); !wrong.empty()) {
      return failed(fmt::format("a frame of {} bytes into buffers of {}: {}", bytes, kSmall, wrong));
    }
    const NetDriverReceiveQueue::Faults& faults = session.pair().rx.faults();
    if (faults != NetDriverReceiveQueue::Faults{}) {
      return failed(fmt::format("{} wrong used lengths, {} times num_buffers 0, {} times fewer buffers than num_buffers",
                                faults.bad_length, faults.no_num_buffers, faults.missing_buffers));
    }
    most = std::max(most, (session.header_bytes() + bytes + kSmall - 1) / kSmall);
  }
  return pass(fmt::format("frames over 1 to {} buffers of {} bytes came back the same", most, kSmall));
}

Result<Verdict> too_few_buffers(const Context& context) {
  if (!context.offers(spec::kNetMrgRxbuf)) {
    return skip("VIRTIO_NET_F_MRG_RXBUF is not offered");
  }
  NetDriverOptions driver = context.driver_options();
  driver.receive_buffer_bytes = 100;
  driver.receive_buffers = 3;
  RW_TRY_ASSIGN(Session session, context.open(driver));
  static_cast<void>(session.pair().rx.fill());
  session.put_frame(1514, 1);
  const DriverBuffer chain = session.at(0, session.header_bytes() + 1514);
  if (const Answer answer = session.send({&chain, 1}); !answer.completed) {
    return next_session_works(std::move(session), context, "the transmit chain waits for receive buffers");
  }
  if (const auto came = session.arrived(session.pair(), Duration::milliseconds(kQuietMilliseconds))) {
    return failed(fmt::format("{} bytes of a frame of 1514 came in 3 buffers of 100", came->bytes.size()));
  }
  const std::string wrong = session.plain_frame();
  return wrong.empty() ? pass("a frame of 1514 bytes for 3 buffers of 100: no part of it came; the next frame did")
                       : failed("after a frame that was too long for the buffers, the next one: " + wrong);
}

// The specification lets a device assume nothing about the borders of descriptors (§5.1.6 since VERSION_1 is there).
Result<Verdict> transmit_framing(const Context& context) {
  for (const bool indirect : {true, false}) {
    NetDriverOptions driver = context.driver_options();
    driver.indirect = indirect;
    RW_TRY_ASSIGN(Session session, context.open(driver));
    constexpr std::uint32_t kBytes = 60;
    const std::size_t header = session.header_bytes();
    const std::size_t whole = header + kBytes;
    session.put_frame(kBytes, 5);
    const std::vector<std::size_t> pieces[] = {
        {0}, {header, 0}, {5, 7, 0}, {header - 1, 0}, {header + 1, 0}, {header, 14, 20, 8, 0}, {1, header - 2, 1, 1, 0}};
    for (const std::vector<std::size_t>& each : pieces) {
      if (const std::string wrong = carried(session, context, split(session, 0, whole, each), kBytes); !wrong.empty()) {
        return failed(fmt::format("in {} descriptors, the first of {} bytes{}: {}", each.size(),
                                  each[0] == 0 ? whole : each[0], indirect ? "" : ", not indirect", wrong));
      }
    }
    for (const std::size_t alone : {header, whole}) {
      if (const std::string wrong = carried(session, context, bytewise(session, 0, whole, alone), kBytes); !wrong.empty()) {
        return failed(fmt::format("{} descriptors of one byte{}: {}", alone, indirect ? "" : ", not indirect", wrong));
      }
    }
  }
  return pass(fmt::format("frames in 1 to 72 descriptors, header whole, split and with the frame, {}", how_far(context)));
}

// Whether a frame of 60 bytes that comes back fills this chain rightly.
std::string receives_into(Session& session, const Chain& chain) {
  constexpr std::uint32_t kBytes = 60;
  const std::uint32_t header = session.header_bytes();
  std::memset(session.host(kIn), std::to_integer<int>(kFill), 2048);
  session.put_frame(kBytes, 9);
  if (!session.post(chain)) {
    return "no room in the ring";
  }
  const DriverBuffer frame = session.at(0, header + kBytes);
  if (const Answer answer = session.send({&frame, 1}); !answer.completed) {
    return "the transmit chain: " + describe(answer);
  }
  UsedElement used;
  if (!session.await_used(session.pair().rx, used, session.answer_limit())) {
    return "the frame didn't come back";
  }
  if (used.written_bytes != header + kBytes) {
    return fmt::format("used length {}; {} expected", used.written_bytes, header + kBytes);
  }
  spec::NetHeader came{};
  std::memcpy(&came, session.host(kIn), header);
  if (came.num_buffers != 1) {
    return fmt::format("num_buffers is {}; 1 expected", came.num_buffers);
  }
  if (std::memcmp(session.host(kIn + header), session.host(header), kBytes) != 0) {
    return "other bytes came back";
  }
  return *session.host(kIn + header + kBytes) == kFill ? std::string() : "bytes behind the frame were written";
}

Result<Verdict> receive_framing(const Context& context) {
  for (const bool indirect : {true, false}) {
    NetDriverOptions driver = context.driver_options();
    driver.indirect = indirect;
    RW_TRY_ASSIGN(Session session, context.open(driver));
    const std::size_t header = session.header_bytes();
    constexpr std::size_t kRoom = 1600;
    const std::vector<std::size_t> pieces[] = {{0}, {header, 0}, {5, 7, 0}, {header - 1, 0}, {header + 1, 30, 0}};
    for (const std::vector<std::size_t>& each : pieces) {
      if (const std::string wrong = receives_into(session, split(session, kIn, kRoom, each, true)); !wrong.empty()) {
        return failed(fmt::format("into {} descriptors, the first of {} bytes{}: {}", each.size(),
                                  each[0] == 0 ? kRoom : each[0], indirect ? "" : ", not indirect", wrong));
      }
    }
    for (const std::size_t alone : {header, header + 60}) {
      if (const std::string wrong = receives_into(session, bytewise(session, kIn, kRoom, alone, true)); !wrong.empty()) {
        return failed(fmt::format("into {} descriptors of one byte{}: {}", alone, indirect ? "" : ", not indirect", wrong));
      }
    }
  }
  return pass("frames into 1 to 73 descriptors, header whole, split and with the frame, came the same, with exact lengths");
}

// Chains that are no frame: they come back, or the queue stops; the next frame, or the next session, works.
Result<Verdict> survives(const Context& context, Session&& session, const Chain& chain, const std::string& what) {
  const Answer answer = session.send(chain);
  if (!answer.completed) {
    return next_session_works(std::move(session), context, fmt::format("{}: {}", what, kQueueStopped));
  }
  if (answer.used_length != 0) {
    return failed(fmt::format("{}: {}; length 0 expected", what, describe(answer)));
  }
  const std::string wrong = session.plain_frame();
  return wrong.empty() ? pass(fmt::format("{}: {}", what, describe(answer)))
                       : failed(fmt::format("{}: {}, but then a plain frame: {}", what, describe(answer), wrong));
}

// Each in a session of its own, until one fails.
template <typename Make>
Result<Verdict> each_survives(const Context& context, std::span<const std::size_t> cases, const std::string& what,
                              const Make& make) {
  std::string all;
  for (const std::size_t each : cases) {
    RW_TRY_ASSIGN(Session session, context.open());
    session.put_frame(200, 1);
    const Chain chain = make(session, each);
    RW_TRY_ASSIGN(Verdict verdict, survives(context, std::move(session), chain, fmt::format("{}: {}", what, each)));
    if (verdict.outcome != check::Outcome::pass) {
      return verdict;
    }
    all += fmt::format("{}{}", all.empty() ? "" : ", ", each);
  }
  return pass(fmt::format("{}: {}; nothing written, and frames go on", what, all));
}

Result<Verdict> short_chains(const Context& context) {
  constexpr std::size_t kBytes[] = {1, 2, 9, 10, 11};
  return each_survives(context, kBytes, "bytes of a header of 12",
                       [](const Session& session, std::size_t bytes) { return Chain{session.at(0, bytes)}; });
}

Result<Verdict> short_frames(const Context& context) {
  constexpr std::size_t kBytes[] = {0, 1, 13, 14};
  return each_survives(context, kBytes, "bytes of a frame behind its header", [](const Session& session, std::size_t bytes) {
    return Chain{session.at(0, session.header_bytes() + bytes)};
  });
}

Result<Verdict> empty_descriptors(const Context& context) {
  constexpr std::size_t kPlaces[] = {0, 1, 2};
  return each_survives(context, kPlaces, "a descriptor of no bytes at place", [](const Session& session, std::size_t place) {
    Chain chain{session.at(0, session.header_bytes()), session.at(session.header_bytes(), 200)};
    chain.insert(chain.begin() + static_cast<std::ptrdiff_t>(place), session.at(0, 0));
    return chain;
  });
}

Result<Verdict> long_frame(const Context& context) {
  constexpr std::size_t kBytes[] = {70000, 200000};
  return each_survives(
      context, kBytes, "bytes of a frame without segmentation",
      [](const Session& session, std::size_t bytes) { return Chain{session.at(0, session.header_bytes() + bytes)}; });
}

Result<Verdict> writable_in_transmit(const Context& context) {
  Verdict verdict = pass("");
  for (const bool only : {false, true}) {
    RW_TRY_ASSIGN(Session session, context.open());
    session.put_frame(200, 1);
    std::memset(session.host(kCanary), std::to_integer<int>(kFill), 512);
    Chain chain{session.at(kCanary, 512, true)};
    if (!only) {
      chain.insert(chain.begin(), session.at(0, session.header_bytes() + 200));
    }
    const std::byte* const canary = session.host(kCanary);
    const Answer answer = session.send(chain);
    if (std::any_of(canary, canary + 512, [](std::byte byte) { return byte != kFill; })) {
      return failed("the writable buffer of a transmit chain was written");
    }
    const std::string what = only ? "a chain that is all writable" : "a writable buffer behind a frame";
    if (!answer.completed) {
      verdict = next_session_works(std::move(session), context, what + ": " + kQueueStopped);
    } else if (const std::string wrong = session.plain_frame(); answer.used_length != 0 || !wrong.empty()) {
      return failed(fmt::format("{}: {}; then a plain frame: {}", what, describe(answer), wrong.empty() ? "sent" : wrong));
    } else {
      verdict = pass(fmt::format("nothing written; {}: {}", what, describe(answer)));
    }
    if (verdict.outcome == check::Outcome::fail) {
      return verdict;
    }
  }
  return verdict;
}

// Posts `bad` and behind it a good buffer, and sends frames until one comes in that. What lies at kCanary stays as it is.
Result<Verdict> receives_behind(const Context& context, Session&& session, const Chain& bad, const std::string& what) {
  constexpr std::uint64_t kBad = 1, kGood = 2;
  constexpr std::uint32_t kBytes = 60;
  constexpr std::size_t kCanaryBytes = 1024;
  const std::uint32_t header = session.header_bytes();
  session.put_frame(kBytes, 3);
  std::memset(session.host(kCanary), std::to_integer<int>(kFill), kCanaryBytes);
  const DriverBuffer good = session.at(kIn, 1600, true);
  if (!session.post(bad, kBad) || !session.post({&good, 1}, kGood)) {
    return fail("no room in the ring");
  }
  const DriverBuffer frame = session.at(0, header + kBytes);
  std::string became = "stayed in the ring";
  bool came = false, right = false;
  for (int i = 0; i < 4 && !came && session.send({&frame, 1}).completed; ++i) {
    UsedElement used;
    while (!came && session.await_used(session.pair().rx, used, Duration::milliseconds(kQuietMilliseconds))) {
      if (used.token == kBad) {
        became = fmt::format("came back with length {}", used.written_bytes);
        continue;
      }
      came = true;
      right = used.written_bytes == header + kBytes &&
              std::memcmp(session.host(kIn + header), session.host(header), kBytes) == 0;
    }
  }
  const std::byte* const canary = session.host(kCanary);
  if (std::any_of(canary, canary + kCanaryBytes, [](std::byte byte) { return byte != kFill; })) {
    return failed(what + " was written");
  }
  if (!came) {
    return next_session_works(std::move(session), context, what + ": no frame came any more");
  }
  return right ? pass(fmt::format("{} {}; a frame came into the buffer behind it", what, became))
               : failed(fmt::format("{} {}; what came into the buffer behind it is not the frame", what, became));
}

Result<Verdict> readable_in_receive(const Context& context) {
  RW_TRY_ASSIGN(Session session, context.open());
  const Chain bad{session.at(kCanary, 256)};
  return receives_behind(context, std::move(session), bad, "a receive buffer that the device may only read");
}

Result<Verdict> small_receive_buffers(const Context& context) {
  Verdict verdict = pass("");
  for (const bool mergeable : {true, false}) {
    for (const std::size_t bytes : {1U, 4U, 11U, 12U, 40U}) {
      NetDriverOptions driver = context.driver_options();
      driver.mergeable = mergeable;
      RW_TRY_ASSIGN(Session session, context.open(driver));
      constexpr std::uint32_t kFrameBytes = 60;
      const std::uint32_t header = session.header_bytes();
      std::memset(session.host(kCanary), std::to_integer<int>(kFill), 2048);
      const DriverBuffer small = session.at(kCanary, bytes, true);
      const DriverBuffer good = session.at(kIn, 1600, true);
      if (!session.post({&small, 1}, 1) || !session.post({&good, 1}, 2)) {
        return fail("no room in the ring");
      }
      session.put_frame(kFrameBytes, 3);
      const DriverBuffer frame = session.at(0, header + kFrameBytes);
      bool came = false;
      for (int i = 0; i < 4 && !came && session.send({&frame, 1}).completed; ++i) {
        UsedElement used;
        while (session.await_used(session.pair().rx, used, Duration::milliseconds(kQuietMilliseconds))) {
          if (used.token == 1 && used.written_bytes > bytes) {
            return failed(fmt::format("a buffer of {} bytes came back with length {}", bytes, used.written_bytes));
          }
          came = came || used.token == 2;
          if (came) {
            break;
          }
        }
      }
      const std::byte* const behind = session.host(kCanary + bytes);
      if (std::any_of(behind, behind + 1024, [](std::byte byte) { return byte != kFill; })) {
        return failed(fmt::format("bytes behind a receive buffer of {} were written", bytes));
      }
      const std::string what = fmt::format("a receive buffer of {} bytes{}", bytes, mergeable ? "" : ", not mergeable");
      verdict = came ? pass(what + ": nothing written behind it, and frames went on to the next buffer")
                     : next_session_works(std::move(session), context, what + ": no frame came any more");
      if (verdict.outcome == check::Outcome::fail) {
        return verdict;
      }
    }
  }
  return verdict;
}

Result<Verdict> unshared_memory(const Context& context) {
  const DriverBuffer nowhere{GuestAddress{0x1000}, 2048, false};
  const DriverBuffer writable_nowhere{GuestAddress{0x1000}, 2048, true};
  Verdict verdict;
  {
    RW_TRY_ASSIGN(Session session, context.open());
    session.put_frame(200, 1);
    const Chain behind_header{session.at(0, session.header_bytes()), nowhere};
    RW_TRY_ASSIGN(verdict, survives(context, std::move(session), behind_header, "a frame in memory that isn't shared"));
  }
  if (verdict.outcome != check::Outcome::pass || !context.loops()) {
    return verdict;
  }
  RW_TRY_ASSIGN(Session receiving, context.open());
  return receives_behind(context, std::move(receiving), {writable_nowhere}, "a receive buffer in memory that isn't shared");
}

// --- offloads ---

std::uint16_t sum_of(std::span<const std::byte> bytes, std::uint32_t sum = 0) {
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    sum += std::to_integer<std::uint32_t>(bytes[i]) << 8U;
    sum += i + 1 < bytes.size() ? std::to_integer<std::uint32_t>(bytes[i + 1]) : 0;
  }
  while (sum > 0xffff) {
    sum = (sum & 0xffff) + (sum >> 16U);
  }
  return static_cast<std::uint16_t>(sum);
}

constexpr std::size_t kUdpAt = 14 + 20;
constexpr std::uint32_t kUdpProtocol = 17;

Result<Verdict> partial_checksum(const Context& context) {
  if (!context.offers(spec::kNetCsum)) {
    return skip("VIRTIO_NET_F_CSUM is not offered");
  }
  constexpr std::uint32_t kBytes = 100;
  NetDriverOptions driver = context.driver_options();
  driver.features |= spec::kNetCsum;
  RW_TRY_ASSIGN(Session session, context.open(driver));
  static_cast<void>(session.pair().rx.fill());
  const std::uint32_t header = session.header_bytes();
  session.put_frame(kBytes, 1);
  std::byte* const frame = session.host(header);
  const std::uint32_t udp_bytes = kBytes - kUdpAt;
  const std::uint16_t pseudo = sum_of({frame + 14 + 12, 8}, kUdpProtocol + udp_bytes);
  frame[kUdpAt + 6] = static_cast<std::byte>(pseudo >> 8U);
  frame[kUdpAt + 7] = static_cast<std::byte>(pseudo);
  spec::NetHeader offload{};
  offload.flags = spec::kNetHdrNeedsCsum;
  offload.csum_start = kUdpAt;
  offload.csum_offset = 6;
  std::memcpy(session.host(), &offload, header);
  const DriverBuffer chain = session.at(0, header + kBytes);
  if (const Answer answer = session.send({&chain, 1}); !answer.completed) {
    return failed(describe(answer));
  }
  const auto came = session.arrived();
  if (!came || came->bytes.size() != kBytes) {
    return failed(came ? "it came back with another length" : "it didn't come back");
  }
  if (came->header.flags != 0) {
    return failed(fmt::format("flags {:#x} for a driver without GUEST_CSUM", came->header.flags));
  }
  const std::uint16_t sum = sum_of(std::span(came->bytes).subspan(kUdpAt), pseudo);
  return sum == 0xffff ? pass("completed for a receiver without GUEST_CSUM")
                       : failed("a receiver without GUEST_CSUM got a checksum that is wrong");
}

Result<Verdict> bad_offloads(const Context& context) {
  NetDriverOptions driver = context.driver_options();
  driver.features |= spec::kNetCsum | spec::kNetHostTso4;
  struct Case {
    const char* what;
    spec::NetHeader header;
  };
  constexpr std::uint8_t kNeeds = spec::kNetHdrNeedsCsum;
  const auto make = [](std::uint8_t flags, std::uint8_t type, std::uint16_t size, std::uint16_t start,
                       std::uint16_t offset) {
    spec::NetHeader header{};
    header.flags = flags;
    header.gso_type = type;
    header.gso_size = size;
    header.csum_start = start;
    header.csum_offset = offset;
    header.hdr_len = 0xffff;
    return header;
  };
  const Case cases[] = {{"checksum start beyond the frame", make(kNeeds, 0, 0, 0xffff, 6)},
                        {"checksum offset beyond the frame", make(kNeeds, 0, 0, 34, 0xffff)},
                        {"checksum on the last byte", make(kNeeds, 0, 0, 34, 200 - 34 - 1)},
                        {"an unknown GSO type", make(kNeeds, 77, 100, 34, 6)},
                        {"a segment size of 0", make(kNeeds, spec::kNetGsoTcpv4, 0, 34, 16)},
                        {"a segment size of 1", make(kNeeds, spec::kNetGsoTcpv4, 1, 34, 16)},
                        {"segmentation of what is no TCP", make(kNeeds, spec::kNetGsoTcpv4, 100, 34, 16)},
                        {"segmentation without a checksum", make(0, spec::kNetGsoTcpv4, 100, 0, 0)}};
  RW_TRY_ASSIGN(Session session, context.open(driver));
  for (const Case& one : cases) {
    session.put_frame(200, 1);
    std::memcpy(session.host(), &one.header, session.header_bytes());
    const DriverBuffer chain = session.at(0, session.header_bytes() + 200);
    const Answer answer = session.send({&chain, 1});
    if (!answer.completed || answer.used_length != 0) {
      return failed(fmt::format("{}: {}", one.what, describe(answer)));
    }
    if (const std::string wrong = session.plain_frame(); !wrong.empty()) {
      return failed(fmt::format("{}: {}, but then a plain frame: {}", one.what, describe(answer), wrong));
    }
  }
  return pass(
      fmt::format("{} headers that make no sense: their chains came back, and frames behind them work", std::size(cases)));
}

// --- many of them ---

// `count` numbered frames in random batches, each of which has to come back once and in its order. What is wrong, or
// nothing.
std::string stream(Session& session, std::uint64_t count, Prng& random) {
  constexpr std::uint64_t kWindow = 24;
  NetDriverPair& pair = session.pair();
  static_cast<void>(pair.rx.fill());
  NetSequence sequence;
  std::uint64_t sent = 0;
  std::uint64_t used = 0;
  Instant deadline = clock_now() + session.answer_limit();
  while (sequence.next() < count || used < count) {
    const std::uint64_t room = kWindow - std::max(sent - used, sent - std::min(sent, sequence.next()));
    const std::uint64_t batch = std::min({1 + random.below(kWindow), room, count - sent});
    for (std::uint64_t i = 0; i < batch; ++i, ++sent) {
      const auto buffer = static_cast<std::uint32_t>(sent % kWindow);
      const std::uint32_t bytes = 60 + static_cast<std::uint32_t>(sent % 5) * 300;
      write_numbered_frame({pair.tx.buffer(buffer).host, bytes}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, {.number = sent});
      const NetDriverTransmitQueue::Frame frame{.buffer = buffer, .bytes = bytes};
      if (pair.tx.transmit({&frame, 1}) != 1) {
        return "no room in the ring";
      }
    }
    pair.tx.publish_and_kick();
    std::uint64_t token = 0;
    std::uint64_t progress = batch;
    while (pair.tx.reap_transmitted({&token, 1}) == 1) {
      ++used;
      ++progress;
    }
    std::array<NetDriverFrame, 8> frames;
    const std::size_t came = pair.rx.receive(frames);
    for (const NetDriverFrame& frame : std::span(frames).first(came)) {
      NetFrameLabel label;
      const iovec& first = frame.pieces.front();
      if (!read_frame_label({static_cast<const std::byte*>(first.iov_base), first.iov_len}, label)) {
        return "a frame came that was not sent";
      }
      if (frame.bytes != 60 + label.number % 5 * 300) {
        return fmt::format("frame {} came back with {} bytes", label.number, frame.bytes);
      }
      sequence.arrived(label.number);
    }
    pair.rx.give_back(std::span(frames).first(came));
    static_cast<void>(pair.rx.fill());
    if (progress + came != 0) {
      deadline = clock_now() + session.answer_limit();
    } else if (clock_now() >= deadline || pair.tx.ring().broken() || pair.rx.ring().broken()) {
      return fmt::format(
          "after {} of {} frames nothing more: {} used, {} came back{}", sent, count, used, sequence.next(),
          pair.tx.ring().broken() || pair.rx.ring().broken() ? "; a used element names nothing in flight" : "");
    }
  }
  const NetSequence::Counts& counts = sequence.counts();
  if (counts != NetSequence::Counts{.received = count, .lost = 0, .duplicated = 0, .reordered = 0}) {
    return fmt::format("{} lost, {} twice, {} out of order", counts.lost, counts.duplicated, counts.reordered);
  }
  return {};
}

Result<Verdict> once_and_in_order(const Context& context) {
  constexpr std::uint64_t kFrames = 3000;
  Prng random(7);
  std::string seen;
  for (const bool in_order : {false, true}) {
    if (in_order && !context.offers(spec::kFeatureInOrder)) {
      continue;
    }
    for (const bool header_apart : {false, true}) {
      NetDriverOptions driver = context.driver_options();
      driver.queue_size = 64;  // many times round
      driver.receive_buffers = 32;
      driver.in_order = in_order;
      driver.transmit_header_apart = driver.receive_header_apart = header_apart;
      driver.indirect = !header_apart;
      RW_TRY_ASSIGN(Session session, context.open(driver));
      if (const std::string wrong = stream(session, kFrames, random); !wrong.empty()) {
        return failed(fmt::format("{}{}: {}",
                                  header_apart ? "headers in descriptors of their own" : "one descriptor a frame",
                                  in_order ? ", IN_ORDER" : "", wrong));
      }
    }
    seen += in_order ? ", also with IN_ORDER" : "";
  }
  return pass(fmt::format("{} frames in random batches, many times round the rings{}", kFrames, seen));
}

constexpr Rule kFrameRules[] = {
    {"used length of a transmit chain", "virtio 2.7.8.2, 5.1.6.2", true, Needs::nothing, transmit_length},
    {"length of the header", "virtio 5.1.6", false, Needs::nothing, header_length},
    {"plain receive buffers", "virtio 5.1.6.4.1", true, Needs::loop, plain_buffers},
    {"mergeable receive buffers", "virtio 5.1.6.4.1", true, Needs::loop, mergeable_buffers},
    {"too few receive buffers", "virtio 5.1.6.4.1", true, Needs::loop, too_few_buffers},
    {"any framing of what is sent", "virtio 2.7.4, 5.1.6.2", true, Needs::nothing, transmit_framing},
    {"any framing of receive buffers", "virtio 2.7.4, 5.1.6.3", true, Needs::loop, receive_framing},
    {"frames come once and in order", "virtio 2.7.8, 2.8.6", true, Needs::loop, once_and_in_order},
    {"transmit chain shorter than the header", "virtio 5.1.6.2", true, Needs::nothing, short_chains},
    {"header without a frame", "virtio 5.1.6.2", true, Needs::nothing, short_frames},
    {"descriptors of no bytes", "virtio 2.7.5", true, Needs::nothing, empty_descriptors},
    {"frame that is too long", "virtio 5.1.6.2", true, Needs::nothing, long_frame},
    {"writable buffer in a transmit queue", "virtio 2.7.4.2", true, Needs::nothing, writable_in_transmit},
    {"readable buffer in a receive queue", "virtio 2.7.4.2", true, Needs::loop, readable_in_receive},
    {"receive buffers that are too small", "virtio 5.1.6.3.1", true, Needs::loop, small_receive_buffers},
    {"buffer in memory that isn't shared", "vhost-user, Memory access", true, Needs::nothing, unshared_memory},
    {"partial checksum is completed", "virtio 5.1.6.4.1", true, Needs::loop, partial_checksum},
    {"offloads that make no sense", "virtio 5.1.6.2", true, Needs::nothing, bad_offloads},
};

}  // namespace

std::span<const Rule> frame_rules() {
  return kFrameRules;
}

}  // namespace ringway::net_check
