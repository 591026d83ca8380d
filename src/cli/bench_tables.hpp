// The benches that make a whole table by comparing back-ends of our own: `ringway bench polling` and `ringway bench
// dataplane`.
#pragma once

#include <CLI/CLI.hpp>

namespace ringway::cli {

// As the functions of commands.hpp; `bench` is the command of that name.
void add_bench_polling(CLI::App& bench, int& exit_code);
void add_bench_dataplane(CLI::App& bench, int& exit_code);

}  // namespace ringway::cli
