// Any sequence of descriptors and indirect tables, with any bytes in the tables, through ChainBuilder, against a model that
// first writes down what the tables say and then judges the whole list: no running state, hence none of its mistakes.
//
// Input: one byte (bit 0: packed layout), one byte with the number of steps, the steps, then the bytes of guest memory from
// its start on. A step is a byte (bit 0: writable, bit 1: a table, bit 2: a lost tail), a guest address of two bytes and a
// length of two bytes. Guest memory is small and begins near zero, so that two bytes reach all of it and its surroundings.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "guest/mapping.hpp"
#include "guest/region_map.hpp"
#include "ring/chain_builder.hpp"

namespace ringway {
namespace {

// Two neighbours, the second beginning inside what could be a descriptor, and one behind a hole.
struct Place {
  std::uint64_t guest;
  std::uint64_t bytes;
};
constexpr std::array<Place, 3> kPlaces = {{{.guest = 0x1000, .bytes = 0x1008}, {0x2008, 0xff8}, {0x8000, 0x1000}}};
constexpr std::size_t kStepsMax = 16;
constexpr std::uint32_t kTableBytesMax = 0x4000;
// A split table may visit an entry as often as it has entries, and a buffer lies in two neighbours at most.
static_assert(kStepsMax * (kTableBytesMax / kDescriptorBytes) * 2 < limits::kChainSegmentsMax,
              "the model knows no limit on the segments");

struct Memory {
  std::vector<std::shared_ptr<Mapping>> mappings;
  std::shared_ptr<const RegionMap> map;

  Memory() {
    for (const Place& place : kPlaces) {
      auto mapping = Mapping::create_anonymous(GuestAddress{place.guest}, UserAddress{place.guest}, place.bytes);
      RW_CHECK(mapping.has_value());
      mappings.push_back(std::move(*mapping));
    }
    auto created = RegionMap::create(mappings);
    RW_CHECK(created.has_value());
    map = std::move(*created);
  }

  void fill(std::span<const std::uint8_t> bytes) const {
    for (const auto& mapping : mappings) {
      const std::size_t taken = std::min<std::size_t>(bytes.size(), mapping->bytes());
      std::copy_n(std::as_bytes(bytes).begin(), taken, mapping->data());
      std::fill_n(mapping->data() + taken, mapping->bytes() - taken, std::byte{0});
      bytes = bytes.subspan(taken);
    }
  }
  [[nodiscard]] std::byte* at(std::uint64_t address) const {
    for (const auto& mapping : mappings) {
      const std::uint64_t start = mapping->identity().guest.value;
      if (address >= start && address - start < mapping->bytes()) {
        return mapping->data() + (address - start);
      }
    }
    return nullptr;
  }
  // Host pieces, one per region; nothing if a byte is missing.
  [[nodiscard]] std::optional<std::vector<iovec>> pieces(std::uint64_t address, std::uint64_t bytes) const {
    std::vector<iovec> result;
    while (bytes != 0) {
      std::byte* const first = at(address);
      if (first == nullptr) {
        return std::nullopt;
      }
      std::uint64_t taken = 1;
      while (taken < bytes && at(address + taken) == first + taken) {
        ++taken;
      }
      result.push_back({.iov_base = first, .iov_len = taken});
      address += taken;
      bytes -= taken;
    }
    return result;
  }
  // 16 bytes, one by one.
  template <typename Descriptor>
  [[nodiscard]] std::optional<Descriptor> descriptor(std::uint64_t address) const {
    std::array<std::byte, sizeof(Descriptor)> bytes;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::byte* const from = at(address + i);
      if (from == nullptr) {
        return std::nullopt;
      }
      bytes[i] = *from;
    }
    return std::bit_cast<Descriptor>(bytes);
  }
};

// What a driver said, table entries among the rest.
struct Said {
  ChainFault fault = ChainFault::none;  // of the entry as such; then it is no buffer and the tail is lost
  std::uint64_t address = 0;
  std::uint32_t bytes = 0;
  bool writable = false;
};

void say_table(const Memory& memory, bool packed, std::uint64_t address, std::uint32_t bytes, std::vector<Said>& said) {
  constexpr Said kBad = {.fault = ChainFault::bad_indirect};
  if (bytes == 0 || bytes % 16 != 0) {
    said.push_back(kBad);
    return;
  }
  const std::uint32_t entries = bytes / 16;
  std::uint32_t index = 0;
  for (std::uint32_t walked = 0;; ++walked) {
    if (walked == entries || index >= entries) {
      if (!packed) {
        said.push_back(kBad);  // the split table said that there is a next one
      }
      return;
    }
    const auto split = memory.descriptor<spec::Descriptor>(address + std::uint64_t{index} * 16);
    const auto flat = memory.descriptor<spec::PackedDescriptor>(address + std::uint64_t{index} * 16);
    if (!split.has_value()) {
      said.push_back(kBad);
      return;
    }
    const std::uint16_t flags = packed ? flat->flags : split->flags;
    if ((flags & spec::kDescIndirect) != 0) {
      said.push_back(kBad);
    } else {
      said.push_back({.address = packed ? flat->address : split->address,
                      .bytes = packed ? flat->length : split->length,
                      .writable = (flags & spec::kDescWrite) != 0});
    }
    if (!packed && (flags & spec::kDescNext) == 0) {
      return;
    }
    index = packed ? index + 1 : split->next;
  }
}

struct Judged {
  ChainFault fault = ChainFault::none;
  std::vector<iovec> readable;
  std::vector<iovec> writable;
  std::uint64_t readable_bytes = 0;
  std::uint64_t writable_bytes = 0;
};

Judged judge(const Memory& memory, const std::vector<Said>& said) {
  Judged result;
  bool writable_seen = false;
  // The last writable byte of the chain, if anybody knows; and whether one of the segments ends in it.
  std::optional<std::uint64_t> tail;
  bool tail_is_segment = true;
  const auto blame = [&](ChainFault fault) { result.fault = result.fault == ChainFault::none ? fault : result.fault; };
  for (const Said& entry : said) {
    if (entry.fault != ChainFault::none) {
      blame(entry.fault);
      tail.reset();
      tail_is_segment = false;
      continue;
    }
    if (entry.bytes == 0) {
      continue;
    }
    if (!entry.writable && writable_seen) {
      blame(ChainFault::readable_after_writable);
      continue;
    }
    writable_seen = writable_seen || entry.writable;
    const auto pieces = result.fault == ChainFault::none ? memory.pieces(entry.address, entry.bytes) : std::nullopt;
    if (pieces.has_value()) {
      auto& list = entry.writable ? result.writable : result.readable;
      list.insert(list.end(), pieces->begin(), pieces->end());
      (entry.writable ? result.writable_bytes : result.readable_bytes) += entry.bytes;
      continue;
    }
    blame(ChainFault::unmapped);
    if (entry.writable) {
      result.writable_bytes += entry.bytes;
      tail = entry.address + (entry.bytes - 1);
      if (*tail < entry.address) {
        tail.reset();
      }
      tail_is_segment = false;
    }
  }
  if (result.readable.empty() && result.writable.empty()) {
    blame(ChainFault::zero_length);
  }
  if (!tail_is_segment) {
    if (tail.has_value() && memory.at(*tail) != nullptr) {
      result.writable.push_back({.iov_base = memory.at(*tail), .iov_len = 1});
    } else {
      result.writable.clear();
      result.writable_bytes = 0;
    }
  }
  return result;
}

void check_same(std::span<const iovec> got, const std::vector<iovec>& expected) {
  const auto same = [](const iovec& a, const iovec& b) { return a.iov_base == b.iov_base && a.iov_len == b.iov_len; };
  RW_CHECK(std::ranges::equal(got, expected, same));
}

void run(std::span<const std::uint8_t> input) {
  static const Memory memory;
  static Chain chain;
  constexpr std::size_t kStepBytes = 5;
  if (input.size() < 2) {
    return;
  }
  const bool packed = (input[0] & 1U) != 0;
  const std::size_t count = std::min<std::size_t>(input[1] % (kStepsMax + 1), (input.size() - 2) / kStepBytes);
  memory.fill(input.subspan(2 + count * kStepBytes));

  std::vector<Said> said;
  RegionHint hint{input[0]};  // any guess must do
  ChainBuilder builder(*memory.map, chain, hint);
  ChainBuilder::Cursor at = builder.begin();
  for (std::size_t i = 0; i < count; ++i) {
    const auto step = input.subspan(2 + i * kStepBytes, kStepBytes);
    const std::uint64_t address = step[1] | static_cast<std::uint64_t>(step[2]) << 8U;
    const std::uint32_t bytes = step[3] | static_cast<std::uint32_t>(step[4]) << 8U;
    if ((step[0] & 4U) != 0) {
      builder.lose_tail(at, ChainFault::bad_indirect);
      said.push_back({.fault = ChainFault::bad_indirect});
    } else if ((step[0] & 2U) == 0) {
      builder.add(at, address, bytes, (step[0] & 1U) != 0);
      said.push_back({.address = address, .bytes = bytes, .writable = (step[0] & 1U) != 0});
    } else {
      const std::uint32_t table_bytes = bytes % kTableBytesMax;
      if (packed) {
        builder.add_packed_table(at, address, table_bytes);
      } else {
        builder.add_split_table(at, address, table_bytes);
      }
      say_table(memory, packed, address, table_bytes, said);
    }
  }
  const ChainId id{.head = 7, .descriptors = static_cast<std::uint16_t>(count)};
  const ChainFault fault = builder.finish(at, id);

  const Judged expected = judge(memory, said);
  RW_CHECK(fault == expected.fault);
  RW_CHECK(chain.id().head == id.head && chain.id().descriptors == id.descriptors);
  check_same(chain.readable(), expected.readable);
  check_same(chain.writable(), expected.writable);
  RW_CHECK(chain.readable_bytes() == expected.readable_bytes && chain.writable_bytes() == expected.writable_bytes);
}

}  // namespace
}  // namespace ringway

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  ringway::run({data, bytes});
  return 0;
}
