// The middle of measured figures.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ringway {

// Of an even number, half-way between the two in the middle. REQUIRES: there are any.
[[nodiscard]] inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace ringway
