// Random region tables and random look-ups, against a model that knows every byte by itself.
//
// Places are small numbers on top of a base, and one base lies at the end of the address space, so that overlaps,
// neighbours, holes and wraps are all common. The model is one map from a byte's guest address to its region and offset: no
// arithmetic on ranges, hence none of RegionMap's possible mistakes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "guest/region_map.hpp"

namespace ringway {
namespace {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t bytes) : data_(data), left_(bytes) {}

  [[nodiscard]] bool empty() const { return left_ == 0; }
  std::uint8_t byte() {
    if (left_ == 0) {
      return 0;
    }
    --left_;
    return *data_++;
  }
  std::uint64_t word() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) {
      value = value << 8U | byte();
    }
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

constexpr std::size_t kRegionsMax = 12;
constexpr std::array<std::uint64_t, 4> kBases = {0, 0x1000, 0x7fff'ffff'ffff'ff00, UINT64_MAX - 255};

struct Place {
  std::size_t region = 0;
  std::byte* host = nullptr;
};

// One byte of guest memory per entry. Nothing if two regions claim a byte.
using Model = std::map<std::uint64_t, Place>;

std::optional<Model> model_of(const std::vector<std::shared_ptr<Mapping>>& mappings, bool by_user) {
  Model model;
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    const Mapping& mapping = *mappings[i];
    const std::uint64_t begin = by_user ? mapping.identity().user.value : mapping.identity().guest.value;
    for (std::uint64_t offset = 0; offset < mapping.bytes(); ++offset) {
      if (!model.emplace(begin + offset, Place{.region = i, .host = mapping.data() + offset}).second) {
        return std::nullopt;
      }
    }
  }
  return model;
}

// The pieces of the range, byte by byte; nothing where RegionMap must refuse. Ranges longer than all regions together can't
// be mapped, so the walk ends at the first hole.
std::optional<std::vector<iovec>> pieces_of(const Model& model, std::uint64_t address, std::uint64_t bytes) {
  if (bytes == 0) {
    return std::nullopt;
  }
  std::vector<iovec> pieces;
  std::size_t region = SIZE_MAX;
  for (std::uint64_t i = 0; i < bytes; ++i) {
    if (i > 0 && address + i == 0) {
      return std::nullopt;  // came around
    }
    const auto found = model.find(address + i);
    if (found == model.end()) {
      return std::nullopt;
    }
    if (found->second.region != region) {
      region = found->second.region;
      pieces.push_back(iovec{.iov_base = found->second.host, .iov_len = 0});
    }
    ++pieces.back().iov_len;
  }
  return pieces;
}

std::uint64_t place(Input& input, std::uint64_t base) {
  return base + input.byte();
}

void look_up(Input& input, std::uint64_t base, const RegionMap& map, const Model& guests,
             const std::optional<Model>& users) {
  const std::uint8_t kind = input.byte();
  const std::uint64_t address = (kind & 1U) != 0 ? place(input, base) : input.word();
  const std::uint64_t bytes = (kind & 2U) != 0 ? input.byte() : input.word();
  const auto expected = pieces_of(guests, address, bytes);

  std::array<iovec, kRegionsMax> out{};
  const std::size_t room = input.byte() % (out.size() + 1);
  const std::size_t before = input.byte() % (room + 1);
  std::size_t count = before;
  const bool translated = map.translate(GuestAddress{address}, bytes, std::span(out.data(), room), count);
  RW_CHECK(translated == (expected.has_value() && expected->size() <= room - before));
  RW_CHECK(count == before + (translated ? expected->size() : 0));
  for (std::size_t i = before; i < count; ++i) {
    RW_CHECK(out[i].iov_base == (*expected)[i - before].iov_base && out[i].iov_len == (*expected)[i - before].iov_len);
  }

  std::byte* const contiguous = map.contiguous(GuestAddress{address}, bytes);
  const bool one_piece = expected.has_value() && expected->size() == 1;
  RW_CHECK(contiguous == (one_piece ? (*expected)[0].iov_base : nullptr));
  RegionHint hint{input.byte()};  // any guess must do
  const RegionMap::Region* near = &map.near(hint);
  RW_CHECK(map.contiguous(GuestAddress{address}, bytes, near, hint) == contiguous);
  RW_CHECK(map.contiguous(GuestAddress{address}, bytes, near, hint) == contiguous);
  if (contiguous != nullptr) {
    GuestAddress back;
    RW_CHECK(map.guest_address_of(contiguous, back) && back.value == address);
    RW_CHECK(map.guest_address_of(contiguous + bytes - 1, back) && back.value == address + bytes - 1);
  }
  if (users.has_value()) {  // where regions overlap in the front-end's addresses, any of them may answer
    const auto ring = pieces_of(*users, address, bytes);
    RW_CHECK(map.from_user(UserAddress{address}, bytes) ==
             (ring.has_value() && ring->size() == 1 ? (*ring)[0].iov_base : nullptr));
  }
}

void run(Input input) {
  const std::uint64_t base = kBases[input.byte() % kBases.size()];
  const std::size_t regions = input.byte() % (kRegionsMax + 1);
  std::vector<std::shared_ptr<Mapping>> mappings;
  for (std::size_t i = 0; i < regions; ++i) {
    const std::uint64_t guest = place(input, base);
    const std::uint64_t user = place(input, base);
    const std::uint64_t bytes = input.byte() % 64;
    auto mapping = Mapping::create_anonymous(GuestAddress{guest}, UserAddress{user}, bytes);
    const bool good = bytes > 0 && guest + (bytes - 1) >= guest && user + (bytes - 1) >= user;
    RW_CHECK(mapping.has_value() == good);
    if (good) {
      mappings.push_back(std::move(*mapping));
    }
  }
  const auto guests = model_of(mappings, false);
  const auto users = model_of(mappings, true);
  const auto map = RegionMap::create(mappings);
  RW_CHECK(map.has_value() == guests.has_value());
  if (!map.has_value()) {
    return;
  }
  RW_CHECK((*map)->regions().size() == mappings.size());
  while (!input.empty()) {
    look_up(input, base, **map, *guests, users);
  }
}

}  // namespace
}  // namespace ringway

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  ringway::run(ringway::Input(data, bytes));
  return 0;
}
