#include "ring/ring_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ring/ring_test_support.hpp"

namespace ringway::testing {
namespace {

using ::testing::HasSubstr;

class RingLayoutTest : public ::testing::Test {
 protected:
  static std::string error(const RingMemory& memory, const RingAddresses& addresses, std::uint32_t size, bool packed) {
    const Result<RingLayout> result = RingLayout::resolve(*memory.map, addresses, size, packed);
    return result.has_value() ? "" : result.error().message;
  }
  RingMemory split_{16, false};
  RingMemory packed_{100, true};
};

TEST_F(RingLayoutTest, GoodAddressesGiveHostMemory) {
  const RingLayout layout = RingMemory::value(RingLayout::resolve(*split_.map, split_.addresses, 16, false));
  EXPECT_EQ(layout.size, 16U);
  EXPECT_EQ(layout.descriptor_area, split_.first->data());
  EXPECT_EQ(layout.driver_area, split_.first->data() + 256);
  EXPECT_EQ(error(packed_, packed_.addresses, 100, true), "");
}

TEST_F(RingLayoutTest, SizeMustBePossible) {
  EXPECT_THAT(error(split_, split_.addresses, 0, false), HasSubstr("1 to 32768"));
  EXPECT_THAT(error(split_, split_.addresses, 32769, false), HasSubstr("1 to 32768"));
  EXPECT_THAT(error(split_, split_.addresses, 12, false), HasSubstr("power of two"));
  EXPECT_THAT(error(packed_, packed_.addresses, 0x1'0000, true), HasSubstr("1 to 32768"));
}

TEST_F(RingLayoutTest, EachAreaMustBeAligned) {
  for (const bool packed : {false, true}) {
    const RingMemory& memory = packed ? packed_ : split_;
    RingAddresses addresses = memory.addresses;
    addresses.descriptor_area.value += 8;
    EXPECT_THAT(error(memory, addresses, 16, packed), HasSubstr("aligned to 16"));
    addresses = memory.addresses;
    addresses.driver_area.value += packed ? 2 : 1;
    EXPECT_THAT(error(memory, addresses, 16, packed), HasSubstr(packed ? "driver event area" : "avail ring"));
    addresses = memory.addresses;
    addresses.device_area.value += 2;
    EXPECT_THAT(error(memory, addresses, 16, packed), HasSubstr(packed ? "device event area" : "used ring"));
  }
}

TEST_F(RingLayoutTest, AvailRingNeedsTwoBytesOfAlignmentOnly) {
  RingAddresses addresses = split_.addresses;
  addresses.driver_area.value += 2;
  EXPECT_EQ(error(split_, addresses, 16, false), "");
}

TEST_F(RingLayoutTest, EachAreaMustLieWholeInOneRegion) {
  const std::uint64_t end = RingMemory::kUser + split_.first->bytes();
  const RingAreaBytes bytes = ring_area_bytes(16, false);
  RingAddresses addresses = split_.addresses;
  addresses.descriptor_area.value = end - bytes.descriptor;
  EXPECT_EQ(error(split_, addresses, 16, false), "");
  addresses.descriptor_area.value += 16;
  EXPECT_THAT(error(split_, addresses, 16, false), HasSubstr("not within one memory region"));
  addresses = split_.addresses;
  addresses.device_area.value = (end - bytes.device) & ~std::uint64_t{3};
  EXPECT_EQ(error(split_, addresses, 16, false), "");
  addresses.device_area.value += 4;
  EXPECT_THAT(error(split_, addresses, 16, false), HasSubstr("used ring"));
  addresses.device_area.value = ~std::uint64_t{3};
  EXPECT_THAT(error(split_, addresses, 16, false), HasSubstr("not within one memory region"));
}

TEST_F(RingLayoutTest, AreaBytesAreThoseOfTheSpecification) {
  const RingAreaBytes split = ring_area_bytes(8, false);
  EXPECT_EQ(split.descriptor, 128U);
  EXPECT_EQ(split.driver, 22U);
  EXPECT_EQ(split.device, 70U);
  const RingAreaBytes packed = ring_area_bytes(7, true);
  EXPECT_EQ(packed.descriptor, 112U);
  EXPECT_EQ(packed.driver, 4U);
  EXPECT_EQ(packed.device, 4U);
}

}  // namespace
}  // namespace ringway::testing
