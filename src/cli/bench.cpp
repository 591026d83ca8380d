// `ringway bench blk` and `ringway bench net`: the workloads against any back-end's socket, or against ourselves. `ringway
// bench cacheline`: what the machine itself contributes to such figures. The other benches are in bench_tables.cpp.

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <limits>

#include "base/limits.hpp"
#include "bench/blk_bench.hpp"
#include "bench/cache_line_probe.hpp"
#include "bench/net_bench.hpp"
#include "cli/arguments.hpp"
#include "cli/bench_tables.hpp"
#include "cli/commands.hpp"
#include "cli/cpus.hpp"
#include "cli/self_host.hpp"
#include "control/config.hpp"

namespace ringway::cli {
namespace {

constexpr std::uint64_t kCountMax = std::numeric_limits<std::uint64_t>::max();

struct BenchArguments {
  std::string socket;
  bool self = false;
  std::string store = "null:1G";
  std::string mix = "read";
  std::string block_size = "4K", offset, range;
  std::string runtime = "5s", warm_up = "500ms";
  std::string wait = "poll";
  std::string pages = "4K";
  std::string driver_cpus;
  std::string engine = "auto";
  SelfArguments self_host;
  bool sequential = false;
  bool no_indirect = false;
  bool no_event_index = false;
  bool destroy_data = false;
  BlkBenchOptions bench;
};

Result<std::uint32_t> parse_mix(const std::string& text) {
  if (text == "read") {
    return 100;
  }
  if (text == "write") {
    return 0;
  }
  if (text.starts_with("mix=")) {
    const Result<std::vector<int>> percent = parse_cpus(text.substr(4));  // one whole number
    if (percent && percent->size() == 1 && percent->front() <= 100) {
      return static_cast<std::uint32_t>(percent->front());
    }
  }
  return fail(fmt::format("--workload: '{}' is not allowed; give read, write, or mix=70 (per cent of reads)", text));
}

Result<MemoryPages> parse_pages(const std::string& text) {
  if (text == "4K") {
    return MemoryPages::small;
  }
  if (text == "transparent") {
    return MemoryPages::transparent;
  }
  if (text == "2M") {
    return MemoryPages::huge;
  }
  return fail(
      fmt::format("--pages: '{}' is not allowed; give 4K, transparent (huge pages if they come) or 2M (hugetlbfs)", text));
}

Result<BlkBenchOptions> bench_options(const BenchArguments& arguments) {
  BlkBenchOptions options = arguments.bench;
  options.socket_path = arguments.socket;
  options.pattern = arguments.sequential ? BlkBenchPattern::sequential : BlkBenchPattern::random;
  options.indirect = !arguments.no_indirect;
  options.event_index = !arguments.no_event_index;
  options.sleeping = arguments.wait == "sleep";
  RW_TRY_ASSIGN(options.read_percent, parse_mix(arguments.mix));
  RW_TRY_ASSIGN(options.pages, parse_pages(arguments.pages));
  RW_TRY_ASSIGN(const std::uint64_t block, of_option("--block-size", parse_size(arguments.block_size)));
  if (block == 0 || block % 512 != 0 || block > (std::uint64_t{64} << 20U)) {
    return fail(fmt::format("--block-size: '{}' is not allowed; give a multiple of 512 up to 64M", arguments.block_size));
  }
  options.block_bytes = static_cast<std::uint32_t>(block);
  RW_TRY_ASSIGN(options.runtime, of_option("--time", parse_duration(arguments.runtime)));
  RW_TRY_ASSIGN(options.warm_up, of_option("--warm-up", parse_duration(arguments.warm_up)));
  if (!arguments.offset.empty()) {
    RW_TRY_ASSIGN(options.offset_bytes, of_option("--offset", parse_size(arguments.offset)));
  }
  if (!arguments.range.empty()) {
    RW_TRY_ASSIGN(options.range_bytes, of_option("--range", parse_size(arguments.range)));
  }
  if (!arguments.driver_cpus.empty()) {
    RW_TRY_ASSIGN(options.driver_cpus, take_cpus("--cpus", arguments.driver_cpus));
  }
  RW_TRY(check_blk_bench_options(options));
  if (arguments.self && options.verify && arguments.store.starts_with("null:")) {
    return fail(fmt::format("--verify: '{}' keeps nothing that could be checked; give --store ram:64M or an image",
                            arguments.store));
  }
  const bool keeps_data = !arguments.self || is_file_image(arguments.store);
  if (keeps_data && !arguments.destroy_data && (options.verify || options.read_percent < 100)) {
    return fail(fmt::format("{} overwrites what is {} '{}'; if that may be lost, add --destroy-data",
                            options.verify ? "--verify" : "--workload " + arguments.mix,
                            arguments.self ? "in" : "on the disk at", arguments.self ? arguments.store : arguments.socket));
  }
  return options;
}

Result<SelfHostOptions> self_options(const BenchArguments& arguments, BlkBenchOptions& bench) {
  SelfHostOptions options;
  DiskOptions& disk = options.disks.emplace_back();
  disk.path = arguments.store;
  disk.name = "self";
  disk.queues = bench.queues;
  disk.packed = true;
  disk.in_order = bench.in_order;
  RW_TRY(of_option("--store", check_memory_size(disk)));
  RW_TRY_ASSIGN(disk.engine, of_option("--engine", parse_blk_engine(arguments.engine)));
  RW_TRY_ASSIGN(options.workers, self_workers(arguments.self_host, bench.driver_cpus));
  return options;
}

// For a person at a terminal, who would wonder at the silence otherwise.
void say_how_long(const std::string& runtime, const std::string& warm_up, const std::string& each = "") {
  if (isatty(STDERR_FILENO) != 0) {
    print_error(fmt::format("measuring for {}{}, after a warm-up of {} (--time, --warm-up)", runtime, each, warm_up));
  }
}

int bench_blk(const BenchArguments& arguments) {
  if (arguments.self == !arguments.socket.empty()) {
    print_error("bench blk: give either --socket <path> of a back-end, or --self");
    return kExitUsage;
  }
  Result<BlkBenchOptions> options = bench_options(arguments);
  if (!options) {
    print_error(options.error().message);
    return kExitUsage;
  }
  std::unique_ptr<SelfHost> self;
  if (arguments.self) {
    const Result<SelfHostOptions> host = self_options(arguments, *options);
    if (!host) {
      print_error(host.error().message);
      return kExitUsage;
    }
    Result<std::unique_ptr<SelfHost>> started = SelfHost::start(*host);
    if (!started) {
      print_error(started.error().message);
      return kExitFailure;
    }
    self = std::move(*started);
    options->socket_path = self->socket_path();
    options->backend_pid = self->pid();
  }
  options->on_wait = print_error;
  if (options->requests == 0) {
    say_how_long(arguments.runtime, arguments.warm_up);
  }
  return run_blk_bench(*options, std::cout);
}

void add_workload_options(CLI::App& blk, BenchArguments& arguments) {
  BlkBenchOptions& bench = arguments.bench;
  blk.add_option("--workload", arguments.mix,
                 "read, write, or mix=70 (per cent of reads); writes destroy the disk's contents (see --destroy-data)")
      ->capture_default_str();
  blk.add_flag("--sequential", arguments.sequential, "Sequential instead of random");
  blk.add_option("--block-size,-b", arguments.block_size, "Of one request")->capture_default_str();
  blk.add_option("--segments", bench.segments, "Buffers that a request's data is split into")
      ->capture_default_str()
      ->transform(whole_number({.least = 1}))
      ->type_name("N");
  blk.add_option("--depth,-i", bench.depth, "Requests in flight on each queue")
      ->capture_default_str()
      ->transform(whole_number({1, limits::kRingSizeMax}))
      ->type_name("N");
  blk.add_option("--queues,-q", bench.queues, "Queues")
      ->capture_default_str()
      ->transform(whole_number({1, limits::kBlkQueuesMax}))
      ->type_name("N");
  blk.add_option("--threads", bench.threads, "Driver threads (default: one per queue)")
      ->transform(whole_number({1, limits::kBlkQueuesMax}))
      ->type_name("N");
  blk.add_option("--offset", arguments.offset, "Where on the disk (default: its start)");
  blk.add_option("--range", arguments.range, "How much of the disk (default: all from the offset on)");
  blk.add_option("--time,-t", arguments.runtime, "How long")->capture_default_str();
  blk.add_option("--warm-up", arguments.warm_up, "Before it counts")->capture_default_str();
  blk.add_option("--requests", bench.requests, "Measure exactly so many requests, unless --time is over earlier")
      ->transform(whole_number({1, kCountMax}))
      ->type_name("N");
  blk.add_option("--wait", arguments.wait, "How the driver waits: poll (spins) or sleep (as a guest's driver does)")
      ->capture_default_str()
      ->check(one_of({"poll", "sleep"}));
  blk.add_flag("--verify", bench.verify,
               "Write patterns and check every read; destroys the disk's contents (see --destroy-data)");
  blk.add_flag("--destroy-data", arguments.destroy_data,
               "With --socket, or an image as --store: what is there may be overwritten; without it only reads are done");
  blk.add_option("--latency-every", bench.latency_every, "Take the time of every Nth request (default: by depth)")
      ->transform(whole_number({.least = 1}))
      ->type_name("N");
  blk.add_option("--seed", bench.seed, "Of the random offsets")
      ->capture_default_str()
      ->transform(whole_number({0, kCountMax}))
      ->type_name("N");
}

void add_ring_options(CLI::App& blk, BenchArguments& arguments) {
  BlkBenchOptions& bench = arguments.bench;
  blk.add_flag("--packed", bench.packed, "Packed rings");
  blk.add_flag("--in-order", bench.in_order, "In-order completion");
  blk.add_flag("--no-indirect", arguments.no_indirect, "No indirect descriptors");
  blk.add_flag("--no-event-index", arguments.no_event_index, "No event index");
  blk.add_option("--queue-size", bench.queue_size, "Descriptors of a ring (default: as the depth needs, 128 at least)")
      ->transform(whole_number({1, limits::kRingSizeMax}))
      ->type_name("N");
  blk.add_option("--pages", arguments.pages, "Of the driver's memory: 4K, transparent or 2M")->capture_default_str();
  blk.add_option("--cpus", arguments.driver_cpus, "CPUs of the driver's threads (with --self: all but the worker's)");
}

void add_self_options(CLI::App& app, CLI::Option* self, SelfArguments& arguments) {
  app.add_option("--worker-cpus", arguments.worker_cpus,
                 "With --self: CPUs of the workers, one worker each (default: the last)")
      ->needs(self);
  app.add_option("--poll", arguments.poll, "With --self: poll policy of the workers, as of serve")
      ->capture_default_str()
      ->needs(self);
  app.add_option("--loop", arguments.loop, "With --self: loop of the workers")->capture_default_str()->needs(self);
}

// ---------------------------------------------------------------- network

struct NetBenchArguments {
  std::string socket;
  bool self = false;
  std::string direction;
  std::string port;
  std::string sizes;
  std::string runtime = "5s", warm_up = "500ms";
  std::string wait = "poll";
  std::string pages = "4K";
  std::string driver_cpus;
  SelfArguments self_host;
  bool no_mergeable = false;
  bool no_indirect = false;
  bool no_event_index = false;
  NetBenchOptions bench;
};

// "64,256,1514"
Result<std::vector<std::uint32_t>> parse_frame_sizes(const std::string& text) {
  std::vector<std::uint32_t> sizes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const Result<std::uint64_t> bytes = parse_size(text.substr(begin, end - begin));
    if (!bytes || *bytes < kNetNumberedBytesMin || *bytes > kNetNumberedBytesMax) {
      return fail(
          fmt::format("--size: '{}' is not allowed; give bytes of a frame from {} to {}, one or several such as "
                      "64,512,1514",
                      text.substr(begin, end - begin), kNetNumberedBytesMin, kNetNumberedBytesMax));
    }
    sizes.push_back(static_cast<std::uint32_t>(*bytes));
    begin = end + 1;
  }
  return sizes;
}

// Who has named a port of a kind knows what he wants to see of it.
std::string direction_of(const NetBenchArguments& arguments) {
  if (!arguments.direction.empty()) {
    return arguments.direction;
  }
  return arguments.port == "loop" ? "echo" : arguments.port.starts_with("source") ? "rx" : "tx";
}

Result<NetBenchOptions> net_bench_options(const NetBenchArguments& arguments) {
  NetBenchOptions options = arguments.bench;
  options.target.socket_path = arguments.socket;
  const std::string direction = direction_of(arguments);
  options.direction = direction == "tx"   ? NetBenchDirection::tx
                      : direction == "rx" ? NetBenchDirection::rx
                                          : NetBenchDirection::echo;
  options.mergeable = !arguments.no_mergeable;
  options.indirect = !arguments.no_indirect;
  options.event_index = !arguments.no_event_index;
  options.sleeping = arguments.wait == "sleep";
  RW_TRY_ASSIGN(options.pages, parse_pages(arguments.pages));
  const bool chooses =
      options.direction != NetBenchDirection::rx || (arguments.self && !arguments.port.starts_with("source="));
  if (!arguments.sizes.empty()) {
    if (!chooses) {
      return fail("--size: in rx it is the back-end that chooses the length of its frames; leave it out");
    }
    RW_TRY_ASSIGN(options.frame_bytes, parse_frame_sizes(arguments.sizes));
  } else if (!chooses) {
    options.frame_bytes = {1514};  // what the rings must hold
  }
  RW_TRY_ASSIGN(options.runtime, of_option("--time", parse_duration(arguments.runtime)));
  RW_TRY_ASSIGN(options.warm_up, of_option("--warm-up", parse_duration(arguments.warm_up)));
  if (!arguments.driver_cpus.empty()) {
    RW_TRY_ASSIGN(options.driver_cpus, take_cpus("--cpus", arguments.driver_cpus));
  }
  RW_TRY(check_net_bench_options(options));
  return options;
}

// The card of a back-end of our own.
Result<NetOptions> self_card(const NetBenchArguments& arguments, const NetBenchOptions& bench, std::uint32_t frame_bytes) {
  std::string port = arguments.port;
  if (port.empty()) {
    port = bench.direction == NetBenchDirection::tx ? "null" : bench.direction == NetBenchDirection::rx ? "source" : "loop";
  }
  if (port == "source") {
    port = fmt::format("source={}", frame_bytes);
  }
  RW_TRY_ASSIGN(NetOptions net, of_option("--port", parse_net(port + ",socket=self,name=self")));
  net.queues = bench.pairs;
  net.in_order = bench.in_order;
  return net;
}

int bench_net(const NetBenchArguments& arguments) {
  if (arguments.self == !arguments.socket.empty()) {
    print_error("bench net: give either --socket <path> of a back-end, or --self");
    return kExitUsage;
  }
  Result<NetBenchOptions> options = net_bench_options(arguments);
  if (!options) {
    print_error(options.error().message);
    return kExitUsage;
  }
  options->on_wait = print_error;
  SelfHostOptions host;
  std::unique_ptr<SelfHost> self;  // one for each length of frames: a source has one
  if (arguments.self) {
    const Result<WorkerPoolOptions> workers = self_workers(arguments.self_host, options->driver_cpus);
    if (!workers) {
      print_error(workers.error().message);
      return kExitUsage;
    }
    host.workers = *workers;
    for (const std::uint32_t bytes : options->frame_bytes) {
      if (const Result<NetOptions> card = self_card(arguments, *options, bytes); !card) {
        print_error(card.error().message);
        return kExitUsage;
      }
    }
    options->find_target = [&](std::uint32_t frame_bytes) -> Result<NetBenchTarget> {
      self.reset();
      RW_TRY_ASSIGN(host.net, self_card(arguments, *options, frame_bytes));
      RW_TRY_ASSIGN(self, SelfHost::start(host));
      return NetBenchTarget{.socket_path = self->socket_path(), .backend_pid = self->pid()};
    };
  }
  say_how_long(arguments.runtime, arguments.warm_up, options->frame_bytes.size() > 1 ? " for each size" : "");
  return run_net_bench(*options, std::cout);
}

void add_net_workload_options(CLI::App& net, NetBenchArguments& arguments) {
  NetBenchOptions& bench = arguments.bench;
  net.add_option("--direction", arguments.direction,
                 "tx (we send), rx (the back-end sends) or echo (it returns what we send, and we take the time; default: as "
                 "fits the --port, else tx)")
      ->check(one_of({"tx", "rx", "echo"}));
  net.add_option("--size,-b", arguments.sizes,
                 "Bytes of a frame from its Ethernet header on, or several such as 64,512,1514: a row each (default: 64)");
  net.add_option("--pairs,-q", bench.pairs, "Queue pairs")
      ->capture_default_str()
      ->transform(whole_number({1, limits::kNetPairsMax}))
      ->type_name("N");
  net.add_option("--threads", bench.threads, "Driver threads (default: one per pair)")
      ->transform(whole_number({1, limits::kNetPairsMax}))
      ->type_name("N");
  net.add_option("--depth,-i", bench.depth, "tx, echo: frames in flight of each pair")
      ->capture_default_str()
      ->transform(whole_number({1, limits::kRingSizeMax}))
      ->type_name("N");
  net.add_option("--burst", bench.burst, "Frames that are sent, or taken, at a time")
      ->capture_default_str()
      ->transform(whole_number({1, 256}))
      ->type_name("N");
  net.add_option("--time,-t", arguments.runtime, "How long, for each size")->capture_default_str();
  net.add_option("--warm-up", arguments.warm_up, "Before it counts")->capture_default_str();
  net.add_option("--wait", arguments.wait, "How the driver waits: poll (spins) or sleep (as a guest's driver does)")
      ->capture_default_str()
      ->check(one_of({"poll", "sleep"}));
}

void add_net_ring_options(CLI::App& net, NetBenchArguments& arguments) {
  NetBenchOptions& bench = arguments.bench;
  net.add_flag("--packed", bench.packed, "Packed rings");
  net.add_flag("--in-order", bench.in_order, "In-order completion");
  net.add_flag("--no-mergeable", arguments.no_mergeable, "Each frame in one receive buffer");
  net.add_flag("--no-indirect", arguments.no_indirect, "No indirect descriptors");
  net.add_flag("--no-event-index", arguments.no_event_index, "No event index");
  net.add_option("--queue-size", bench.queue_size, "Descriptors of a ring (default: as the depth needs, 256 at least)")
      ->transform(whole_number({2, limits::kRingSizeMax}))
      ->type_name("N");
  net.add_option("--buffer-size", bench.receive_buffer_bytes,
                 "Of a receive buffer, header included (default: 2048, or what a frame needs with --no-mergeable)")
      ->transform(whole_number({128, 1U << 20U}))
      ->type_name("BYTES");
  net.add_option("--pages", arguments.pages, "Of the driver's memory: 4K, transparent or 2M")->capture_default_str();
  net.add_option("--cpus", arguments.driver_cpus, "CPUs of the driver's threads (with --self: all but the worker's)");
}

void add_bench_net(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<NetBenchArguments>();
  CLI::App* net = bench.add_subcommand("net", "Rate, loss, latency and CPU cost of any vhost-user-net back-end");
  net->add_option("--socket,-s", arguments->socket, "The back-end's socket")->type_name("PATH");
  CLI::Option* self = net->add_flag("--self", arguments->self, "Measure ringway itself, started for the purpose");
  add_net_workload_options(*net, *arguments);
  add_net_ring_options(*net, *arguments);
  net->add_flag("--json", arguments->bench.json, "One JSON object instead of text");
  net->add_option("--port", arguments->port,
                  "With --self: null, loop, source, source=<bytes> or tap=<interface> (default: null for tx, source for rx, "
                  "loop for echo)")
      ->needs(self);
  add_self_options(*net, self, arguments->self_host);
  net->footer(
      "Frames are numbered UDP from 198.18.0.1 to 198.18.0.2: what is lost, comes twice or out of order is counted from "
      "what "
      "arrives.\n"
      "In rx that needs a bench as the sender; the source port's frames bear no numbers.\n\n"
      "Examples:\n"
      "  ringway bench net --self                                    sending into nowhere, 64 bytes, 128 in flight\n"
      "  ringway bench net --self --direction rx --size 64,512,1514  receiving as fast as frames can be taken, a table\n"
      "  ringway bench net --self --port loop --depth 1 --burst 1    one frame's way there and back\n"
      "  ringway bench net --self --port loop --wait sleep --poll fixed=50us\n"
      "                                                              a driver that sleeps, a worker that polls a little\n"
      "  ringway bench net --socket /run/peer.sock --packed --json   any other back-end, by the same driver\n"
      "\nExit status: 0 measured; 1 couldn't measure, or the back-end broke its rings; 2 bad options.");
  net->callback([arguments, &exit_code] { exit_code = bench_net(*arguments); });
}

int bench_cache_line(const std::string& cpus, bool json) {
  Result<std::vector<int>> pair = of_option("--cpus", parse_cpus(cpus));
  if (pair && (pair->size() != 2 || pair->front() == pair->back())) {
    pair = fail(fmt::format("--cpus: '{}' is not allowed; give two different CPUs, such as 0,1", cpus));
  } else if (pair) {
    pair = take_cpus("--cpus", cpus);
  }
  if (!pair) {
    print_error(pair.error().message);
    return kExitUsage;
  }
  return run_cache_line_probe(pair->front(), pair->back(), json, std::cout);
}

void add_cache_line(CLI::App& bench, int& exit_code) {
  struct CacheLineArguments {
    std::string cpus;
    bool json = false;
  };
  auto arguments = std::make_shared<CacheLineArguments>();
  CLI::App* cache_line = bench.add_subcommand("cacheline", "How long a cache line takes from one CPU to another and back");
  cache_line->add_option("--cpus", arguments->cpus, "The two CPUs, such as 0,1")->required()->type_name("A,B");
  cache_line->add_flag("--json", arguments->json, "One JSON object instead of text");
  cache_line->footer(
      "On a virtual machine it changes by a factor of four with where the host puts the virtual CPUs, and the rate of a "
      "polled\n"
      "queue with it: look before and after a comparison.\n\n"
      "Example:\n"
      "  ringway bench cacheline --cpus 0,1\n"
      "\nExit status: 0 measured; 1 couldn't measure; 2 bad options.");
  cache_line->callback([arguments, &exit_code] { exit_code = bench_cache_line(arguments->cpus, arguments->json); });
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* bench = app.add_subcommand("bench", "Measure a back-end");
  bench->require_subcommand(1);
  bench->footer(
      "Start here:\n"
      "  ringway bench blk --self        a disk, without anybody else's\n"
      "  ringway bench net --self        a network card\n"
      "  ringway bench polling --quick   what polling gains and costs here\n"
      "\nringway bench <what> --help tells more.");
  add_cache_line(*bench, exit_code);
  add_bench_net(*bench, exit_code);
  add_bench_polling(*bench, exit_code);
  add_bench_dataplane(*bench, exit_code);
  CLI::App* blk = bench->add_subcommand("blk", "Rate, latency and CPU cost of any vhost-user-blk back-end");
  blk->add_option("--socket,-s", arguments->socket, "The back-end's socket")->type_name("PATH");
  CLI::Option* self = blk->add_flag("--self", arguments->self, "Measure ringway itself, started for the purpose");
  add_workload_options(*blk, *arguments);
  add_ring_options(*blk, *arguments);
  blk->add_flag("--json", arguments->bench.json, "One JSON object instead of text");
  blk->add_option("--store", arguments->store,
                  "With --self: null:<size>, ram:<size>, or an image (writes destroy its contents)")
      ->capture_default_str()
      ->needs(self);
  add_self_options(*blk, self, arguments->self_host);
  blk->add_option("--engine", arguments->engine, "With --self: engine of an image")->capture_default_str()->needs(self);
  blk->footer(
      "Examples:\n"
      "  ringway bench blk --self                                    null store, 4 KiB random reads, 32 in flight\n"
      "  ringway bench blk --self --store disk.img --depth 1         a file's latency\n"
      "  ringway bench blk --self --wait sleep --poll fixed=50us     a driver that sleeps, a worker that polls a little\n"
      "  ringway bench blk --socket /run/peer.sock --json            any other back-end, by the same driver\n"
      "  ringway bench blk --socket /run/peer.sock --workload write --destroy-data\n"
      "                                                              writes: only to a disk whose contents may be lost\n"
      "\nExit status: 0 measured; 1 couldn't measure, or requests failed or read wrong data; 2 bad options.");
  blk->callback([arguments, &exit_code] { exit_code = bench_blk(*arguments); });
}

}  // namespace ringway::cli
