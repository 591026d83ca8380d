#include "cli/bench_tables.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/unique_fd.hpp"
#include "bench/dataplane_bench.hpp"
#include "bench/polling_bench.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/cpus.hpp"
#include "cli/self_host.hpp"
#include "control/config.hpp"

namespace ringway::cli {
namespace {

struct TableForm {
  bool json = false, csv = false;
};

void add_form_options(CLI::App& app, TableForm& form) {
  CLI::Option* json = app.add_flag("--json", form.json, "One JSON object instead of text");
  app.add_flag("--csv", form.csv, "The table alone, comma-separated")->excludes(json);
}

// Where nobody looks on, the table is all there is.
std::function<void(std::string_view)> progress() {
  if (isatty(STDERR_FILENO) == 0) {
    return {};
  }
  return [](std::string_view what) { print_error(what); };
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

Result<std::uint32_t> number_in(const std::string& word, std::uint32_t least, std::uint32_t most) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() || value < least || value > most) {
    return fail(fmt::format("'{}' is not allowed; give whole numbers from {} to {}", word, least, most));
  }
  return value;
}

// Both refuse an empty time, which would measure nothing.
Result<Duration> take_duration(std::string_view option, const std::string& text, Duration least) {
  RW_TRY_ASSIGN(const Duration duration, of_option(option, parse_duration(text)));
  if (duration < least) {
    return fail(fmt::format("{}: '{}' is not allowed; give at least {}ms", option, text, least.ns / 1'000'000));
  }
  return duration;
}

constexpr Duration kRuntimeMin = Duration::milliseconds(10);

// ---------------------------------------------------------------- polling

constexpr std::uint32_t kDelayUsMax = 10'000;
constexpr std::string_view kDelay = "delay=";
constexpr std::string_view kFile = "file=";

struct PollingArguments {
  std::string stores;  // empty, as what follows: as `quick` says
  std::string rows;
  std::string runtime, warm_up;
  std::string driver_cpus;
  std::optional<std::uint32_t> rounds;
  SelfArguments self_host;
  bool quick = false;
  TableForm form;
};

// A word of --store.
Result<DiskOptions> polling_disk(std::string_view store) {
  DiskOptions disk;
  disk.name = "self";
  disk.path = "ram:64M";
  if (store == "ram") {
    return disk;
  }
  if (store.starts_with(kFile) && store.size() > kFile.size()) {
    disk.path = store.substr(kFile.size());
    disk.read_only = true;  // nothing is written to it
    return disk;
  }
  if (store.starts_with(kDelay)) {
    RW_TRY_ASSIGN(const std::uint32_t us,
                  of_option("--store: delay", number_in(std::string(store.substr(kDelay.size())), 1, kDelayUsMax)));
    disk.faults = fmt::format("delay={}us", us);
    return disk;
  }
  return fail(
      fmt::format("--store: '{}' is not allowed; give ram, file=<path> or delay=<microseconds>, or several with "
                  "commas",
                  store));
}

Result<PollingBenchOptions> polling_options(const PollingArguments& arguments) {
  PollingBenchOptions options;
  const bool quick = arguments.quick;
  options.stores = words_of(!arguments.stores.empty() ? arguments.stores
                            : quick                   ? "ram,delay=10"
                                                      : "ram,delay=10,delay=100");
  for (const std::string& store : options.stores) {
    RW_TRY(polling_disk(store));
  }
  options.rows = polling_rows(quick);
  if (!arguments.rows.empty()) {
    options.rows.clear();
    for (const std::string& name : words_of(arguments.rows)) {
      RW_TRY_ASSIGN(PollingRow row, of_option("--rows", parse_polling_row(name)));
      options.rows.push_back(std::move(row));
    }
  }
  options.rounds = arguments.rounds.value_or(3);
  RW_TRY_ASSIGN(options.runtime, take_duration("--time",
                                               !arguments.runtime.empty() ? arguments.runtime
                                               : quick                    ? "200ms"
                                                                          : "1s",
                                               kRuntimeMin));
  RW_TRY_ASSIGN(options.warm_up, take_duration("--warm-up",
                                               !arguments.warm_up.empty() ? arguments.warm_up
                                               : quick                    ? "50ms"
                                                                          : "200ms",
                                               Duration{}));
  if (!arguments.driver_cpus.empty()) {
    RW_TRY_ASSIGN(options.driver_cpus, take_cpus("--cpus", arguments.driver_cpus));
  }
  options.on_progress = progress();
  return options;
}

int bench_polling(const PollingArguments& arguments) {
  Result<PollingBenchOptions> options = polling_options(arguments);
  if (!options) {
    print_error(options.error().message);
    return kExitUsage;
  }
  const Result<WorkerPoolOptions> workers = self_workers(arguments.self_host, options->driver_cpus);
  if (!workers) {
    print_error(workers.error().message);
    return kExitUsage;
  }
  if (workers->workers != 1) {
    print_error("--worker-cpus: name one CPU; the disk has one queue, and so one worker");
    return kExitUsage;
  }
  std::unique_ptr<SelfHost> self;
  options->start = [&](std::string_view store, const PollingRow& row) -> Result<PollingTarget> {
    self.reset();
    SelfHostOptions host;
    host.workers = *workers;
    host.workers.poll = row.policy;
    RW_TRY_ASSIGN(DiskOptions disk, polling_disk(store));
    host.disks.push_back(std::move(disk));
    RW_TRY_ASSIGN(self, SelfHost::start(host));
    return PollingTarget{.socket_path = self->socket_path(), .backend_pid = self->pid()};
  };
  const Result<std::vector<PollingSeries>> table = measure_polling(*options);
  if (!table) {
    print_error(table.error().message);
    return kExitFailure;
  }
  std::cout << (arguments.form.json  ? polling_json(*table).dump(2) + "\n"
                : arguments.form.csv ? polling_csv(*table)
                                     : polling_text(*table));
  return 0;
}

// ---------------------------------------------------------------- the data plane

// What the placements are called. The first is the baseline.
constexpr const char* kPerDisk = "per-disk";
constexpr const char* kOne = "one";
constexpr const char* kPerCpu = "per-cpu";

struct DataplaneArguments {
  std::uint32_t disks = 128;
  std::string jobs;  // empty: powers of two, or fewer if `quick`
  std::string disk_size = "4M";
  std::string directory;
  std::string runtime, warm_up;  // empty: as `quick` says
  std::optional<std::uint32_t> rounds;
  std::string cpus;
  SelfArguments self_host{.worker_cpus = {},
                          .poll = "never"};  // 128 workers that spin for a core or two would be no placement
  bool quick = false;
  TableForm form;
};

// Files full of data, so that reading them is reading. They go with this object.
class DiskFiles {
 public:
  DiskFiles() = default;
  DiskFiles(const DiskFiles&) = delete;
  DiskFiles& operator=(const DiskFiles&) = delete;
  ~DiskFiles() {
    std::error_code ignored;
    if (!directory_.empty()) {
      std::filesystem::remove_all(directory_, ignored);
    }
  }

  [[nodiscard]] Result<> make(const std::string& parent, std::uint32_t count, std::uint64_t bytes) {
    std::string directory = parent + "/ringway-dataplane-XXXXXX";
    if (mkdtemp(directory.data()) == nullptr) {
      return fail_errno(errno, fmt::format("--dir: can't make a directory in '{}'", parent));
    }
    directory_ = directory;
    const std::vector<char> data(std::size_t{1} << 20U, 'r');
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::string path = this->path(i);
      const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      for (std::uint64_t done = 0; done < bytes;) {
        const ssize_t written = write(fd.get(), data.data(), std::min<std::uint64_t>(data.size(), bytes - done));
        if (written <= 0) {
          return fail_errno(errno, fmt::format("--dir: can't write {} bytes to '{}'", bytes, path));
        }
        done += static_cast<std::uint64_t>(written);
      }
    }
    return {};
  }
  [[nodiscard]] std::string path(std::uint32_t disk) const { return fmt::format("{}/{}.img", directory_, disk); }

 private:
  std::string directory_;
};

Result<std::vector<std::uint32_t>> dataplane_jobs(const DataplaneArguments& arguments) {
  std::vector<std::uint32_t> jobs;
  if (!arguments.jobs.empty()) {
    for (const std::string& word : words_of(arguments.jobs)) {
      RW_TRY_ASSIGN(const std::uint32_t count, of_option("--jobs", number_in(word, 1, arguments.disks)));
      if (!jobs.empty() && count <= jobs.back()) {
        return fail(
            fmt::format("--jobs: {} doesn't follow {}; give each number once, in ascending order", count, jobs.back()));
      }
      jobs.push_back(count);
    }
    return jobs;
  }
  for (std::uint32_t count = 1; count <= arguments.disks; count *= arguments.quick ? 8 : 2) {
    jobs.push_back(count);
  }
  if (jobs.back() != arguments.disks) {
    jobs.push_back(arguments.disks);
  }
  return jobs;
}

Result<DataplaneBenchOptions> dataplane_options(const DataplaneArguments& arguments) {
  DataplaneBenchOptions options;
  options.placements = {kPerDisk, kOne, kPerCpu};
  RW_TRY_ASSIGN(options.jobs, dataplane_jobs(arguments));
  options.rounds = arguments.rounds.value_or(arguments.quick ? 1 : 3);
  const bool quick = arguments.quick;
  RW_TRY_ASSIGN(options.runtime, take_duration("--time",
                                               !arguments.runtime.empty() ? arguments.runtime
                                               : quick                    ? "300ms"
                                                                          : "500ms",
                                               kRuntimeMin));
  RW_TRY_ASSIGN(options.warm_up,
                take_duration("--warm-up", !arguments.warm_up.empty() ? arguments.warm_up : "100ms", Duration{}));
  options.driver_cpus = allowed_cpus();
  if (!arguments.cpus.empty()) {
    RW_TRY_ASSIGN(options.driver_cpus, take_cpus("--cpus", arguments.cpus));
  }
  options.driver_threads = static_cast<std::uint32_t>(std::max<std::size_t>(1, options.driver_cpus.size()));
  options.on_progress = progress();
  return options;
}

// The workers of a placement. Thread i of the driver runs on CPU i and has every n-th disk; worker i runs on the next CPU,
// so that, but for what one worker has to serve, each job crosses from one CPU to another, as a guest's do. Where the
// scheduler may choose, it is now that and now the same CPU, ten times as fast at depth 1, and that would be all there is to
// see.
WorkerPoolOptions placed_workers(std::string_view placement, std::uint32_t disks, const std::vector<int>& cpus,
                                 WorkerPoolOptions workers) {
  workers.cpus = cpus;
  if (!cpus.empty()) {
    std::ranges::rotate(workers.cpus, workers.cpus.begin() + 1);
  }
  workers.workers = placement == kPerDisk  ? disks
                    : placement == kPerCpu ? static_cast<std::uint32_t>(std::max<std::size_t>(1, cpus.size()))
                                           : 1;
  return workers;
}

// Each session here has seven descriptors or so.
void allow_many_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
  }
}

int bench_dataplane(const DataplaneArguments& arguments) {
  const Result<std::uint64_t> disk_bytes = of_option("--disk-size", parse_size(arguments.disk_size));
  Result<DataplaneBenchOptions> options = dataplane_options(arguments);
  WorkerPoolOptions workers;
  const auto take = [&]() -> Result<> {
    RW_TRY(disk_bytes);
    if (*disk_bytes < (128U << 10U) || *disk_bytes % 4096 != 0) {
      return fail(fmt::format("--disk-size: '{}' is not allowed; give at least 128K, in steps of 4K", arguments.disk_size));
    }
    RW_TRY(options);
    RW_TRY_ASSIGN(workers.engine, of_option("--loop", parse_loop_engine(arguments.self_host.loop)));
    RW_TRY_ASSIGN(workers.poll, of_option("--poll", parse_poll(arguments.self_host.poll)));
    return {};
  };
  if (const Result<> taken = take(); !taken) {
    print_error(taken.error().message);
    return kExitUsage;
  }
  allow_many_descriptors();
  DiskFiles files;
  if (!arguments.directory.empty()) {
    if (const Result<> made = files.make(arguments.directory, arguments.disks, *disk_bytes); !made) {
      print_error(made.error().message);
      return kExitFailure;
    }
  }
  std::unique_ptr<SelfHost> self;
  options->start = [&](std::string_view placement) -> Result<DataplaneTarget> {
    self.reset();
    SelfHostOptions host;
    host.workers = placed_workers(placement, arguments.disks, options->driver_cpus, workers);
    for (std::uint32_t i = 0; i < arguments.disks; ++i) {
      DiskOptions disk;
      disk.name = fmt::format("disk{}", i);
      disk.path = arguments.directory.empty() ? fmt::format("ram:{}", *disk_bytes) : files.path(i);
      host.disks.push_back(std::move(disk));
    }
    RW_TRY_ASSIGN(self, SelfHost::start(host));
    DataplaneTarget target{.socket_paths = {}, .backend_pid = self->pid()};
    for (std::uint32_t i = 0; i < arguments.disks; ++i) {
      target.socket_paths.push_back(self->socket_path(i));
    }
    return target;
  };
  Result<DataplaneTable> table = measure_dataplane(*options);
  if (!table) {
    print_error(table.error().message);
    return kExitFailure;
  }
  table->title = fmt::format(
      "{} disks {}, {} each; 128 KiB sequential, 8 KiB random, depth 1 a job; poll {}; against one worker "
      "per disk",
      arguments.disks, arguments.directory.empty() ? "in RAM" : "in files in '" + arguments.directory + "'",
      arguments.disk_size, workers.poll);
  std::cout << (arguments.form.json  ? dataplane_json(*table).dump(2) + "\n"
                : arguments.form.csv ? dataplane_csv(*table)
                                     : dataplane_text(*table));
  return 0;
}

CLI::Option* add_rounds(CLI::App& app, std::optional<std::uint32_t>& rounds, const char* help) {
  return app.add_option("--rounds", rounds, help)->transform(whole_number({1, 1000}))->type_name("N");
}

}  // namespace

void add_bench_polling(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<PollingArguments>();
  CLI::App* polling =
      bench.add_subcommand("polling", "Polling windows and policies compared, at depth 1 with a driver that sleeps");
  polling->add_flag("--quick", arguments->quick, "Fewer windows and shorter runs: within a minute");
  polling
      ->add_option("--store", arguments->stores,
                   "One or several of ram, file=<path> (only read) and delay=<microseconds> (RAM that answers so much "
                   "later; the CPU is free meanwhile; default: ram,delay=10,delay=100, quick ram,delay=10)")
      ->type_name("LIST");
  polling
      ->add_option("--rows", arguments->rows,
                   "Which rows: windows in nanoseconds, unset (no polling), never, always, grow_shrink, adaptive (default: "
                   "unset, 0, 1, 2, 4 … 131072 and the policies)")
      ->type_name("LIST");
  add_rounds(*polling, arguments->rounds, "Times that each row is measured (default: 3)");
  polling->add_option("--time,-t", arguments->runtime, "Of each run (default: 1s, quick 200ms)");
  polling->add_option("--warm-up", arguments->warm_up, "Of each run (default: 200ms, quick 50ms)");
  polling->add_option("--worker-cpus", arguments->self_host.worker_cpus, "CPU of the worker (default: the last)");
  polling->add_option("--cpus", arguments->driver_cpus, "CPUs of the driver (default: all but the worker's)");
  polling->add_option("--loop", arguments->self_host.loop, "Loop of the worker")->capture_default_str();
  add_form_options(*polling, arguments->form);
  polling->footer(
      "Each run starts ringway in a process of its own and reads 4 KiB at a time, one after the other, by a driver that "
      "sleeps\n"
      "on its call eventfd. A row has medians over the rounds, and the least and the most IOPS; user%, sys% and driver% "
      "are\n"
      "shares of one CPU. IOPS/CPU-s is the rate for each second of the worker's processor time, and of both sides'.\n\n"
      "Examples:\n"
      "  ringway bench polling --quick                           within a minute\n"
      "  ringway bench polling --store ram,file=disk.img         the whole series on two stores\n"
      "  ringway bench polling --store delay=8,delay=30 --rows never,always,adaptive --csv\n"
      "\nExit status: 0 measured; 1 couldn't measure; 2 bad options.");
  polling->callback([arguments, &exit_code] { exit_code = bench_polling(*arguments); });
}

void add_bench_dataplane(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<DataplaneArguments>();
  CLI::App* dataplane = bench.add_subcommand("dataplane", "Many disks: one worker for each of them against shared workers");
  dataplane->add_flag("--quick", arguments->quick, "Fewer numbers of jobs, shorter runs and one round: within a minute");
  dataplane->add_option("--disks", arguments->disks, "Disks, with jobs or idle")
      ->capture_default_str()
      ->transform(whole_number({1, kDataplaneDisksMax}))
      ->type_name("N");
  dataplane
      ->add_option("--jobs", arguments->jobs,
                   "How many of them are busy, one or several such as 1,8,128 (default: 1, 2, 4 … all, quick 1, 8, 64, "
                   "all)")
      ->type_name("LIST");
  dataplane->add_option("--dir", arguments->directory, "Disks in files in a directory of their own in there, instead of RAM")
      ->check(CLI::ExistingDirectory)
      ->type_name("PATH");
  dataplane->add_option("--disk-size", arguments->disk_size, "Of each disk")->capture_default_str();
  add_rounds(*dataplane, arguments->rounds, "Times that each row is measured (default: 3, quick 1)");
  dataplane->add_option("--time,-t", arguments->runtime, "Of each run (default: 500ms, quick 300ms)");
  dataplane->add_option("--warm-up", arguments->warm_up, "Of each run (default: 100ms)");
  dataplane->add_option("--cpus", arguments->cpus,
                        "CPUs of driver and workers (default: all); the driver has a thread on each");
  dataplane->add_option("--poll", arguments->self_host.poll, "Poll policy of the workers")->capture_default_str();
  dataplane->add_option("--loop", arguments->self_host.loop, "Loop of the workers")->capture_default_str();
  add_form_options(*dataplane, arguments->form);
  dataplane->footer(
      "Placements: per-disk (a worker thread for each disk, the baseline), one (a single worker), per-cpu (a worker on "
      "each\n"
      "CPU). A job is one disk with one request in flight: 128 KiB sequential, 8 KiB random. CPU/MB is processor time of "
      "the\n"
      "back-end for each 10^6 bytes: a positive change is worse.\n\n"
      "Examples:\n"
      "  ringway bench dataplane --quick\n"
      "  ringway bench dataplane --dir /var/tmp --jobs 1,16,128 --csv\n"
      "\nExit status: 0 measured; 1 couldn't measure; 2 bad options.");
  dataplane->callback([arguments, &exit_code] { exit_code = bench_dataplane(*arguments); });
}

}  // namespace ringway::cli
