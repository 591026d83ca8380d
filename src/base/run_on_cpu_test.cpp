#include "base/run_on_cpu.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace ringway {
namespace {

TEST(RunOnCpu, IsWhereTheThreadRunsFromThenOn) {
  std::thread([] {
    cpu_set_t allowed;
    ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) {
        const Result<> result = run_on_cpu(cpu);
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_EQ(sched_getcpu(), cpu);
      }
    }
  }).join();
}

TEST(RunOnCpu, ACpuThatCantBeHadIsNamed) {
  for (const int cpu : {-1, CPU_SETSIZE}) {
    EXPECT_EQ(run_on_cpu(cpu).error().message, "CPU " + std::to_string(cpu) + " doesn't exist");
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(CPU_SETSIZE - 1, &set);
  if (sched_setaffinity(0, sizeof set, &set) == 0) {
    GTEST_SKIP() << "a machine of " << CPU_SETSIZE << " CPUs";
  }
  const Result<> result = run_on_cpu(CPU_SETSIZE - 1);
  ASSERT_FALSE(result);
  EXPECT_TRUE(result.error().message.starts_with("can't run on CPU 1023; choose from those that "))
      << result.error().message;
}

}  // namespace
}  // namespace ringway
