// How long a cache line takes from one CPU to another and back. On virtual machines it changes by a factor of four with
// where the host has put the virtual CPUs, and every figure of a polled queue moves with it; so a bench that compares tells
// it.
#pragma once

#include <iosfwd>

#include "base/result.hpp"
#include "base/time.hpp"

namespace ringway {

struct CacheLineRoundTrip {
  Duration median;   // over the batches
  Duration minimum;  // the best batch: right even while others run on these CPUs
};

// Two threads, pinned to `first_cpu` and `second_cpu`, pass a word to and fro. Takes about 50 ms; ends in bounded time (2 s)
// with an error where the two never ran at once.
[[nodiscard]] Result<CacheLineRoundTrip> measure_cache_line_round_trip(int first_cpu, int second_cpu);

// For the command line: prints a sentence, or JSON {"cpus": [a, b], "median_ns": …, "minimum_ns": …}. Returns the exit code.
int run_cache_line_probe(int first_cpu, int second_cpu, bool json, std::ostream& out);

}  // namespace ringway
