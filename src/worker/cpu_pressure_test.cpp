#include "worker/cpu_pressure.hpp"

#include <gtest/gtest.h>

namespace ringway {
namespace {

Instant at_ms(std::int64_t ms) {
  return Instant{} + Duration::milliseconds(1'000 + ms);
}

TEST(CpuPressure, IsTheShareOfTimeInWhichAnotherRan) {
  CpuPressure pressure;
  EXPECT_EQ(pressure.update(at_ms(0), 5'000'000, 7), 0U);  // from before
  EXPECT_EQ(pressure.update(at_ms(4), 7'000'000, 7), 500U);
  EXPECT_EQ(pressure.update(at_ms(8), 7'000'000, 7), 0U);
  EXPECT_EQ(pressure.update(at_ms(12), 99'000'000, 7), 1000U);
}

TEST(CpuPressure, OftenAsleepIsNotKeptWaiting) {
  CpuPressure pressure;
  static_cast<void>(pressure.update(at_ms(0), 0, 0));
  // 20000 wake-ups a second of 15 us each.
  EXPECT_EQ(pressure.update(at_ms(100), 30'000'000, 2'000), 0U);
  // Fifty wake-ups behind somebody else's slice of 1.5 ms.
  EXPECT_GE(pressure.update(at_ms(200), 105'000'000, 2'050), 700U);
}

TEST(CpuPressure, WhatGoesBackIsNoPressure) {
  CpuPressure pressure;
  static_cast<void>(pressure.update(at_ms(10), 9'000'000, 9));
  EXPECT_EQ(pressure.update(at_ms(5), 99'000'000, 9), 0U);
  EXPECT_EQ(pressure.update(at_ms(20), 1'000'000, 3), 0U);
  EXPECT_EQ(pressure.update(at_ms(20), 50'000'000, 3), 0U);
}

}  // namespace
}  // namespace ringway
