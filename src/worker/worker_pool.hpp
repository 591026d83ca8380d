// The worker threads: each owns a loop and the queues it was dealt, and runs turns (design: one turn of a worker).
//
// Owner: control thread. The pool outlives every device whose queues it carries.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "device/worker_context.hpp"
#include "loop/make_loop.hpp"
#include "policy/poll_policy.hpp"

namespace ringway {

struct WorkerPoolOptions {
  std::uint32_t workers = 1;
  LoopEngine engine = LoopEngine::automatic;
  std::string poll = "adaptive";  // as parse_poll_policy takes it
  std::vector<int> cpus = {};     // worker i runs on cpus[i % size]; empty: the process's affinity, unpinned
};

struct WorkerStats {
  std::uint32_t index = 0;
  std::uint64_t turns = 0;
  std::uint64_t productive_turns = 0;  // turns that found work, and
  std::uint64_t productive_ns = 0;     // their time: what requests cost, however much the worker spins between them
  std::uint64_t sleeps = 0;
  std::uint64_t system_calls = 0;
  std::uint64_t cpu_ns = 0;             // of the thread
  std::string policy = {};              // its poll policy, as parse_poll_policy() takes it
  PollOutcome poll;                     // what came of its decisions
  std::uint32_t pressure_permille = 0;  // how much of the last milliseconds it wanted to run and could not
  std::string engine;
};

class WorkerPool {
 public:
  // Starts the threads and waits until each runs. Errors: a bad policy text, an engine that can't be had, a CPU that isn't
  // allowed; each says what to change.
  [[nodiscard]] static Result<std::unique_ptr<WorkerPool>> create(const WorkerPoolOptions& options);
  // REQUIRES: no queue is running. Ends and joins the threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] std::span<const WorkerPort> ports() const { return ports_; }
  [[nodiscard]] bool has_uring() const;  // what BlkStoreOptions::loop_has_uring wants to know
  [[nodiscard]] const std::string& engine_reason() const { return engine_reason_; }
  [[nodiscard]] std::vector<WorkerStats> stats() const;

  // Call about once a second (limits::kStuckWritePeriod): frees a worker that hangs in a write to a peer's descriptor, by
  // a signal that interrupts the write; the worker then drops that descriptor. A write that doesn't hang isn't disturbed.
  // And divides among the workers what the process may spin in vain.
  void look();
  // Changes the policy of all workers while they run. Errors: as parse_poll_policy().
  [[nodiscard]] Result<> set_poll(const std::string& text);
  // In its full form.
  [[nodiscard]] const std::string& poll() const { return poll_; }

 private:
  class Worker;
  WorkerPool() = default;

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<WorkerPort> ports_;
  std::string engine_reason_;
  std::string poll_;
  std::vector<std::uint64_t> spun_in_vain_;  // by worker, at the last look()
};

}  // namespace ringway
