#include "backend/blk/io_threads.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <future>

namespace ringway {
namespace {

cpu_set_t own_cpus() {
  cpu_set_t set{};
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

// Tells where it runs.
class AskCpus final : public IoTask {
 public:
  void run_task() noexcept override { cpus_.set_value(own_cpus()); }
  cpu_set_t answer(IoThreads& threads) {
    std::future<cpu_set_t> answer = cpus_.get_future();
    IoTaskQueue tasks;
    tasks.push(*this);
    threads.push(tasks);
    return answer.get();
  }

 private:
  std::promise<cpu_set_t> cpus_;
};

// As a worker with cpus=… does it: the pool is made by the control thread, and its threads are started by a pinned one.
TEST(IoThreads, RunWhereThePoolWasMadeAndNotWhereAPinnedWorkerRuns) {
  const cpu_set_t all = own_cpus();
  if (CPU_COUNT(&all) < 2) {
    GTEST_SKIP() << "only one CPU is allowed here";
  }
  IoThreads threads(IoThreads::Limits{});
  std::thread worker([&] {
    std::size_t first = 0;
    while (!CPU_ISSET(first, &all)) {
      ++first;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    ASSERT_TRUE(threads.start_first());
    AskCpus task;
    const cpu_set_t cpus = task.answer(threads);
    EXPECT_TRUE(CPU_EQUAL(&cpus, &all)) << "may run on " << CPU_COUNT(&cpus) << " of " << CPU_COUNT(&all) << " CPUs";
  });
  worker.join();
}

}  // namespace
}  // namespace ringway
