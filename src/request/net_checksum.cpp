#include "request/net_checksum.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "guest/access.hpp"

namespace ringway {
namespace {

// Two 64-bit lanes, which every x86-64 and every ARMv8 has. Each takes words of 32 bits, so that no carry gets lost.
using SumLanes = std::uint64_t __attribute__((vector_size(16)));
constexpr std::size_t kSumBlock = 4 * sizeof(SumLanes);
// What is copied before it is summed: both stay in the first cache.
constexpr std::size_t kCopyBlock = 4096;
static_assert(kCopyBlock % 2 == 0);

std::uint16_t fold(std::uint64_t sum) noexcept {
  sum = (sum >> 32U) + (sum & 0xffffffffU);  // at most 33 bits
  sum = (sum >> 16U) + (sum & 0xffffU);      // at most 18
  sum = (sum >> 16U) + (sum & 0xffffU);      // at most 17
  return static_cast<std::uint16_t>((sum >> 16U) + (sum & 0xffffU));
}

template <typename T>
T load_from(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Of bytes that begin at an even place. A guest may change them meanwhile: then the sum is any number.
std::uint64_t sum_words(const std::byte* at, std::size_t bytes) noexcept {
  std::uint64_t sum = 0;
  if (bytes >= kSumBlock) {
    SumLanes low = {};
    SumLanes high = {};
    do {
      for (std::size_t i = 0; i < kSumBlock; i += sizeof(SumLanes)) {
        const auto words = load_from<SumLanes>(at + i);
        low += words & 0xffffffffU;
        high += words >> 32;
      }
      at += kSumBlock;
      bytes -= kSumBlock;
    } while (bytes >= kSumBlock);
    low += high;
    sum = low[0] + low[1];
  }
  for (; bytes >= 8; at += 8, bytes -= 8) {
    const auto words = load_from<std::uint64_t>(at);
    sum += (words & 0xffffffffU) + (words >> 32U);
  }
  if ((bytes & 4U) != 0) {
    sum += load_from<std::uint32_t>(at);
    at += 4;
  }
  if ((bytes & 2U) != 0) {
    sum += load_from<std::uint16_t>(at);
    at += 2;
  }
  if ((bytes & 1U) != 0) {
    sum += std::to_integer<std::uint64_t>(*at);  // the missing second byte is 0
  }
  return sum;
}

}  // namespace

void NetSum::add(std::span<const std::byte> bytes) noexcept {
  std::uint16_t sum = fold(sum_words(bytes.data(), bytes.size()));
  if (odd_) {
    sum = std::byteswap(sum);
  }
  sum_ += sum;
  odd_ = odd_ != ((bytes.size() & 1U) != 0);
}

void NetSum::add(NetCursor& from, std::size_t bytes) noexcept {
  while (bytes > 0) {
    const std::span<const std::byte> taken = from.take(bytes);
    if (taken.empty()) {
      return;
    }
    add(taken);
    bytes -= taken.size();
  }
}

std::size_t NetSum::copy(NetCursor& to, NetCursor& from, std::size_t bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes) {
    std::span<const std::byte> source = from.take(std::min(bytes - done, kCopyBlock));
    if (source.empty()) {
      break;
    }
    while (!source.empty()) {
      const std::span<std::byte> target = to.take(source.size());
      if (target.empty()) {
        return done;
      }
      guest::copy(target.data(), source.data(), target.size());
      add(target);
      done += target.size();
      source = source.subspan(target.size());
    }
  }
  return done;
}

std::uint16_t NetSum::folded() const noexcept {
  return fold(sum_);
}

void net_copy_completing(NetCursor to, std::span<const iovec> from, std::size_t bytes, std::size_t csum_start,
                         std::size_t csum_offset) noexcept {
  RW_DCHECK(csum_start + csum_offset + sizeof(std::uint16_t) <= bytes);
  NetCursor source(from);
  net_copy(to, source, csum_start);
  NetCursor field = to;
  NetSum sum;
  // What the sender has put into the field, the sum of the pseudo header, is summed with all the rest.
  sum.copy(to, source, bytes - csum_start);
  field.advance(csum_offset);
  const std::uint16_t checksum = sum.checksum();
  field.write(std::as_bytes(std::span(&checksum, 1)));
}

}  // namespace ringway
