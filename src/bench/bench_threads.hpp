// The threads of a bench's driver, whatever they drive. Private to the benches.
#pragma once

#include <barrier>
#include <cstddef>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "base/result.hpp"
#include "base/run_on_cpu.hpp"

namespace ringway {

// Runs each of `threads` on a thread of its own, on the CPUs in turn if there are any: prepare(), then, when all have done
// that, run(). Both return a Result<>. Returns when all have ended. Errors: the first one's, by their order; whom prepare()
// failed for, run() isn't called.
template <typename BenchThread>
[[nodiscard]] Result<> run_bench_threads(const std::vector<std::unique_ptr<BenchThread>>& threads,
                                         const std::vector<int>& cpus) {
  std::vector<Result<>> outcomes(threads.size());
  std::barrier start(static_cast<std::ptrdiff_t>(threads.size()));
  const auto live = [&](std::size_t number) {
    Result<>& outcome = outcomes[number];
    if (!cpus.empty()) {
      outcome = run_on_cpu(cpus[number % cpus.size()]);
    }
    if (outcome) {
      outcome = threads[number]->prepare();
    }
    start.arrive_and_wait();
    if (outcome) {
      outcome = threads[number]->run();
    }
  };
  {
    std::vector<std::jthread> running;
    running.reserve(threads.size());
    for (std::size_t number = 0; number < threads.size(); ++number) {
      try {
        running.emplace_back(live, number);
      } catch (const std::system_error& error) {
        outcomes[number] = fail_errno(error.code().value(), "can't start a driver thread");
        start.arrive_and_drop();  // the others don't wait for it
      }
    }
  }
  for (Result<>& outcome : outcomes) {
    RW_TRY(std::move(outcome));
  }
  return {};
}

}  // namespace ringway
