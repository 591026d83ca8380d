// The conformance tests, and the back-end that they kill: started with --serve, this program is a Host for one disk that
// ends only by a signal (a process that has threads can't simply fork).
#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>

#include "control/config.hpp"
#include "control/host.hpp"

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
