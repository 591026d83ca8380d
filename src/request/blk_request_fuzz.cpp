// Any chain over any bytes: what the parser accepts must lie within the chain and within the disk, and agree with the chain
// read as one flat string of bytes.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "base/prng.hpp"
#include "request/blk_request.hpp"
#include "ring/spec.hpp"

namespace {

using namespace ringway;

constexpr std::size_t kSegments = 64;

// The input: framing first (seed, counts, limits), then the bytes of the readable part.
struct Framing {
  std::uint64_t seed;
  std::uint8_t readable_segments;
  std::uint8_t writable_segments;
  std::uint8_t flags;
  std::uint8_t block_shift;
  std::uint32_t capacity_sectors;
};

void check_segments(std::span<const iovec> part, const BlkRequest& request) {
  std::uint64_t bytes = 0;
  for (const iovec& segment : request.data) {
    const auto* const first = static_cast<const std::byte*>(segment.iov_base);
    RW_CHECK(segment.iov_len > 0);
    RW_CHECK(std::ranges::any_of(part, [&](const iovec& whole) {
      const auto* const begin = static_cast<const std::byte*>(whole.iov_base);
      return first >= begin && first + segment.iov_len <= begin + whole.iov_len &&
             (request.status < first || request.status >= first + segment.iov_len);
    }));
    bytes += segment.iov_len;
  }
  RW_CHECK(bytes == request.bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  Framing framing;
  if (size < sizeof framing) {
    return 0;
  }
  std::memcpy(&framing, input, sizeof framing);
  const auto rest = std::as_bytes(std::span(input, size)).subspan(sizeof framing);
  std::vector<std::byte> flat(rest.begin(), rest.end());
  // So that most inputs get past the first look at the type.
  if (!flat.empty() && (framing.flags & 64U) != 0) {
    flat[0] &= std::byte{15};
    std::fill(flat.begin() + 1, flat.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(flat.size(), 4)),
              std::byte{0});
  }

  static Chain chain;
  chain.reset({});
  Prng prng(framing.seed);
  std::vector<std::vector<std::byte>> memory;
  memory.reserve(2 * kSegments);
  const auto append = [&](std::size_t bytes, const std::byte* from, bool writable) {
    memory.emplace_back(bytes);
    if (from != nullptr) {
      std::memcpy(memory.back().data(), from, bytes);
    }
    chain.storage()[chain.count()++] = {memory.back().data(), bytes};
    chain.account(writable, bytes);
  };
  const std::size_t readable = framing.readable_segments % kSegments;
  std::size_t at = 0;
  for (std::size_t i = 0; i < readable && at < flat.size(); ++i) {
    const std::size_t left = flat.size() - at;
    const std::size_t bytes = i + 1 == readable ? left : 1 + prng.below(std::min<std::size_t>(left, 600));
    append(bytes, flat.data() + at, false);
    at += bytes;
  }
  flat.resize(at);
  for (std::size_t i = 0; i < framing.writable_segments % kSegments; ++i) {
    append(prng.chance(1, 2) ? 1 : 512 * (1 + prng.below(3)), nullptr, true);
  }

  BlkRequestLimits limits;
  limits.block_bytes = 512U << (framing.block_shift % 4U);
  limits.capacity_bytes = std::uint64_t{framing.capacity_sectors} * 512 / limits.block_bytes * limits.block_bytes;
  limits.discard_bytes_max = 1U << 20U;
  limits.read_only = (framing.flags & 1U) != 0;
  limits.write_through = (framing.flags & 2U) != 0;
  limits.discard = (framing.flags & 4U) != 0;
  limits.write_zeroes = (framing.flags & 8U) != 0;
  limits.secure_erase = (framing.flags & 16U) != 0;
  std::vector<iovec> storage((framing.flags & 32U) != 0 ? 2 * kSegments : 3);
  BlkRequest request;
  const BlkParsed parsed = parse_blk_request(chain, (framing.flags & 128U) != 0, limits, storage, request);

  if (chain.writable().empty()) {
    RW_CHECK(parsed.refusal != BlkRefusal::none && parsed.status_address == nullptr && parsed.used_length == 0);
    return 0;
  }
  const iovec& last = chain.writable().back();
  RW_CHECK(parsed.status_address == static_cast<std::byte*>(last.iov_base) + last.iov_len - 1);
  RW_CHECK(parsed.used_length <= 1);
  RW_CHECK((parsed.refusal == BlkRefusal::none) == (parsed.status == spec::kBlkStatusOk));
  if (parsed.refusal != BlkRefusal::none) {
    return 0;
  }
  RW_CHECK(flat.size() >= sizeof(spec::BlkRequestHeader));
  spec::BlkRequestHeader header;
  std::memcpy(&header, flat.data(), sizeof header);
  RW_CHECK(request.status == parsed.status_address);
  const bool in = request.opcode == BlkOpcode::in;
  check_segments(in || request.opcode == BlkOpcode::get_id ? chain.writable() : chain.readable(), request);
  if (in || request.opcode == BlkOpcode::out) {
    RW_CHECK(request.offset / 512 == header.sector && request.bytes > 0);
    RW_CHECK(request.offset % limits.block_bytes == 0 && request.bytes % limits.block_bytes == 0);
    RW_CHECK(request.offset <= limits.capacity_bytes && request.bytes <= limits.capacity_bytes - request.offset);
    RW_CHECK(request.bytes == (in ? chain.writable_bytes() - 1 : flat.size() - sizeof header));
    RW_CHECK(in || !limits.read_only);
  }
  for (std::size_t i = 0; i < request.range_count; ++i) {
    spec::BlkRange wire;
    std::memcpy(&wire, flat.data() + sizeof header + i * sizeof wire, sizeof wire);
    const BlkRequestRange& range = request.ranges[i];
    RW_CHECK(range.offset / 512 == wire.sector && range.bytes == std::uint64_t{wire.sectors} * 512);
    RW_CHECK(range.offset <= limits.capacity_bytes && range.bytes <= limits.capacity_bytes - range.offset);
  }
  RW_CHECK(blk_used_length(request, spec::kBlkStatusOk) <= chain.writable_bytes());
  RW_CHECK(blk_used_length(request, spec::kBlkStatusIoErr) <= 1);
  return 0;
}
