// The conformance tests, and the back-end that they kill: started with --serve, this program is a Host for one disk that
// ends only by a signal (a process that has threads can't simply fork).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>

#include "control/config.hpp"
#include "control/host.hpp"
#include "tests/conformance/allocations.hpp"
#include "tests/conformance/sanitizers.hpp"

namespace {

constinit thread_local std::uint64_t allocations = 0;

}  // namespace

std::uint64_t ringway::conformance::allocations_of_this_thread() noexcept {
  return allocations;
}

#if !RINGWAY_SANITIZED
// The other forms of new and delete come down to these.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* const memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#endif

int main(int count, char** arguments) {
  if (count == 3 && std::string_view(arguments[1]) == "--serve") {
    auto disk = ringway::parse_disk(arguments[2]);
    if (!disk) {
      std::fprintf(stderr, "%s\n", disk.error().message.c_str());
      return 1;
    }
    auto host = ringway::Host::create({});
    if (!host || !(*host)->add_disks({*disk})) {
      return 1;
    }
    static_cast<void>((*host)->run());
    return 0;
  }
  testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
