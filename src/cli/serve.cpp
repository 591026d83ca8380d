// `ringway serve`: the command line and the configuration file become a Host, which runs until a signal or the API ends it.

#include <fcntl.h>
#include <fmt/core.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

#include "base/limits.hpp"
#include "base/plain_text.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/cpus.hpp"
#include "control/api_socket.hpp"
#include "control/config.hpp"
#include "control/host.hpp"
#include "control/log_sink.hpp"
#include "control/report.hpp"
#include "control/standard_output.hpp"
#include "guest/mapping.hpp"

namespace ringway::cli {
namespace {

constexpr int kExitHung = 3;
constexpr int kExitForced = 4;

struct ServeArguments {
  std::vector<std::string> disks, nets;
  std::string config;
  std::uint32_t workers = 0;
  std::string cpus, poll, loop, engine, api, stop_deadline;
  std::string log_level = "info";
  bool no_disks = false;
};

// Before we open any ourselves, since a number that was closed may be one of ours later.
Result<> check_descriptors(const std::vector<NetOptions>& nets) {
  std::set<int> seen;
  for (const NetOptions& net : nets) {
    for (const int fd : net.fds) {
      if (fcntl(fd, F_GETFD) < 0) {
        return fail(fmt::format("fds: descriptor {} is not open; whoever starts ringway has to pass it on", fd));
      }
      if (!seen.insert(fd).second) {
        return fail(fmt::format("fds: descriptor {} is given to two network cards", fd));
      }
    }
  }
  return {};
}

Result<ServeConfig> configure(const ServeArguments& arguments) {
  ServeConfig config;
  if (!arguments.config.empty()) {
    RW_TRY_ASSIGN(config, load_config(arguments.config));
  }
  for (const std::string& text : arguments.disks) {
    RW_TRY_ASSIGN(DiskOptions disk, of_option("--disk", parse_disk(text, "--disk ")));
    config.disks.push_back(std::move(disk));
  }
  for (const std::string& text : arguments.nets) {
    RW_TRY_ASSIGN(NetOptions net, of_option("--net", parse_net(text, "--net ")));
    config.nets.push_back(std::move(net));
  }
  RW_TRY(check_descriptors(config.nets));
  if (config.disks.empty() && config.nets.empty() && !arguments.no_disks) {
    return fail(
        "nothing to serve: give --disk path=disk.img,socket=/run/vm1-disk.sock or --net tap=tap0,socket=/run/vm1-net.sock, "
        "or --config with a [[disk]] or [[net]]; or start empty with --no-disks and add devices by `ringway ctl add`");
  }
  // Where the command line names one of the two, what the file says of the other gives way.
  if (arguments.workers != 0) {
    config.worker_count = arguments.workers;
    if (config.workers.cpus.size() > arguments.workers && arguments.cpus.empty()) {
      spdlog::warn("--workers {} uses the first of the {} CPUs in {}; --cpus names others", arguments.workers,
                   config.workers.cpus.size(), config.cpus_place);
    }
    config.workers.cpus.resize(std::min<std::size_t>(config.workers.cpus.size(), arguments.workers));
  } else if (!arguments.cpus.empty()) {
    config.worker_count.reset();
  }
  if (!arguments.cpus.empty()) {
    RW_TRY_ASSIGN(config.workers.cpus, take_cpus("--cpus", arguments.cpus));
    RW_TRY(settle_workers(config));
  } else if (!config.workers.cpus.empty()) {
    RW_TRY(of_option(config.cpus_place + ": cpus", check_cpus(config.workers.cpus)));
    RW_TRY(of_option(config.cpus_place + ": cpus", settle_workers(config)));
  } else {
    RW_TRY(settle_workers(config));
  }
  if (!arguments.poll.empty()) {
    RW_TRY_ASSIGN(config.workers.poll, of_option("--poll", parse_poll(arguments.poll)));
  }
  if (!arguments.loop.empty()) {
    RW_TRY_ASSIGN(config.workers.engine, of_option("--loop", parse_loop_engine(arguments.loop)));
  }
  if (!arguments.engine.empty()) {
    RW_TRY_ASSIGN(const BlkEngine engine, of_option("--engine", parse_blk_engine(arguments.engine)));
    for (DiskOptions& disk : config.disks) {
      if (disk.engine == BlkEngine::automatic && is_file_image(disk.path)) {
        disk.engine = engine;
      }
    }
  }
  if (!arguments.stop_deadline.empty()) {
    RW_TRY_ASSIGN(config.stop_deadline, of_option("--stop-deadline", parse_stop_deadline(arguments.stop_deadline)));
  }
  if (!arguments.api.empty()) {
    RW_TRY_ASSIGN(config.api_socket, of_option("--api", parse_api_socket(arguments.api)));
  }
  if (config.api_socket.empty()) {
    config.api_socket = default_api_path();
  }
  if (config.disks.empty() && config.nets.empty() && config.api_socket == "off") {
    return fail(
        "nothing to serve, and without the API nothing can be added: give a --disk or --net, or a path to --api (in the "
        "file: socket in [api]) instead of off");
  }
  return config;
}

// The message, where the pattern says %*.
class PlainMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*when*/, spdlog::memory_buf_t& out) override {
    const std::string text = plain_text({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PlainMessage>(); }
};

void start_log(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("ringway", make_stderr_sink());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PlainMessage>('*').set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %*");
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

// Neither the control thread nor the end waits longer than this for somebody who doesn't read; once he was found not to, not
// at all until he does.
constexpr Duration kPrintPatience = Duration::seconds(1);

void print(std::string_view text) {
  static bool is_read = true;
  const std::size_t written = StandardOutput(STDOUT_FILENO).write(text, is_read ? kPrintPatience : Duration{});
  is_read = written == text.size();
  if (written < text.size()) {
    spdlog::warn("stdout: {} of {} bytes went unread and are lost", text.size() - written, text.size());
  }
}

Result<std::unique_ptr<Host>> start(ServeConfig config) {
  HostOptions options;
  options.workers = config.workers;
  options.stop_deadline = config.stop_deadline;
  options.handle_signals = true;
  options.api_socket = config.api_socket == "off" ? "" : config.api_socket;
  options.on_report = print;
  RW_TRY_ASSIGN(std::unique_ptr<Host> host, Host::create(std::move(options)));
  spdlog::info("{} worker{}: {}; poll policy {}", host->workers().ports().size(),
               host->workers().ports().size() == 1 ? "" : "s", host->workers().engine_reason(), host->workers().poll());
  RW_TRY(host->add_devices(std::move(config.disks), std::move(config.nets)));
  if (const std::optional<std::string> warning = address_space_warning()) {
    spdlog::warn(*warning);
  }
  return host;
}

int serve(const ServeArguments& arguments) {
  Result<ServeConfig> config = configure(arguments);
  if (!config) {
    print_error(config.error().message);
    return kExitUsage;
  }
  start_log(arguments.log_level);
  const std::string devices = devices_text(config->disks.size(), config->nets.size());
  Result<std::unique_ptr<Host>> host = start(std::move(*config));
  if (!host) {
    print_error(host.error().message);
    return kExitFailure;
  }
  print(fmt::format("ready: {}\n", devices));
  sd_notify(0, "READY=1");  // does nothing without NOTIFY_SOCKET

  const HostEnd end = (*host)->run();
  sd_notify(0, "STOPPING=1");
  print((*host)->stats_report());
  if (end == HostEnd::clean) {
    host->reset();
    spdlog::info("ended cleanly");
    return 0;
  }
  // Threads and kernel I/O of the devices that were given up are still about, so nothing is taken apart.
  spdlog::shutdown();
  std::fflush(nullptr);
  std::_Exit(end == HostEnd::hung ? kExitHung : kExitForced);
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* serve_app =
      app.add_subcommand("serve", "Serve disks and network cards to virtual machines until SIGTERM or Ctrl-C");
  serve_app
      ->add_option(
          "--disk,-d", arguments->disks,
          "A disk: key=value pairs, separated by commas; repeat for more disks. A comma within a value is written twice")
      ->type_name("KEY=VALUE,...")
      ->allow_extra_args(false);
  serve_app->add_option("--net,-n", arguments->nets, "A network card, in the same way; repeat for more cards")
      ->type_name("KEY=VALUE,...")
      ->allow_extra_args(false);
  serve_app
      ->add_option("--config,-c", arguments->config,
                   "The same as a TOML file; the command line overrides it and adds devices")
      ->type_name("FILE");
  serve_app
      ->add_option("--workers,-w", arguments->workers,
                   "Worker threads; queues are dealt to them in turn (default: one for each of --cpus, or 1)")
      ->transform(whole_number({1, limits::kWorkersMax}))
      ->type_name("N");
  serve_app
      ->add_option(
          "--cpus", arguments->cpus,
          "CPUs for the workers, such as 0,1 or 2-5 (default: any): one worker on each, or with more --workers than "
          "CPUs in turn; fewer --workers than CPUs are refused")
      ->type_name("LIST");
  serve_app
      ->add_option(
          "--poll", arguments->poll,
          "When a worker spins for work: adaptive (as long as that pays, and at most adaptive=budget=10% of a CPU in vain), "
          "never, always (it takes a whole CPU), fixed=50us (that long after the last work), grow_shrink=max=32us (a window "
          "that "
          "doubles; default: adaptive)")
      ->type_name("POLICY");
  serve_app->add_option("--loop", arguments->loop, "Event loop of the workers: auto, io_uring, epoll (default: auto)")
      ->type_name("ENGINE");
  serve_app
      ->add_option("--engine", arguments->engine,
                   "Engine for disks without an engine= of their own: auto, io_uring, threads, inline (default: auto)")
      ->type_name("ENGINE");
  serve_app
      ->add_option("--api", arguments->api,
                   "Socket of the local API, or off (default: ringway.sock in $RUNTIME_DIRECTORY, of an ordinary user in "
                   "$XDG_RUNTIME_DIR, or in /run)")
      ->type_name("PATH");
  serve_app
      ->add_option("--stop-deadline", arguments->stop_deadline,
                   "How long a stopping ring, and the end, may wait for requests in flight, 1ms at least (default: 5s)")
      ->type_name("TIME");
  serve_app->add_flag("--no-disks", arguments->no_disks, "Start with nothing to serve; `ringway ctl add` adds it");
  serve_app
      ->add_option("--log", arguments->log_level, "Least severity that is logged to stderr: debug, info, warning, error")
      ->check(one_of({"debug", "info", "warning", "error"}))
      ->type_name("LEVEL");
  serve_app->footer(
      "A key that is on or off, such as ro or null, stands alone in --disk and --net, or with =off (ro, direct=off); in the "
      "file it is true\n"
      "or false (ro = true, null = true), and texts are in quotes (tap = \"tap0\"). Several descriptors are fds=3:4, and "
      "fds = "
      "[3, 4] in the file.\n\n"
      "Keys of --disk, of [[disk]] and of the API:\n" +
      disk_keys_help() + "\nKeys of --net, of [[net]] and of the API; each card has one port:\n" + net_keys_help() +
      "\nOther keys of --config; the option overrides the key (--engine, --log and --no-disks have none):\n" +
      host_keys_help() +
      "\nExamples:\n"
      "  ringway serve --disk path=disk.img,socket=/run/vm1-disk.sock\n"
      "  ringway serve --disk path=disk.img,socket=/run/vm1-disk.sock --net tap=tap0,socket=/run/vm1-net.sock,queues=4\n"
      "  ringway serve -d path=root.img,socket=/run/a.sock,queues=4 -d path=/dev/vg0/data,socket=/run/b.sock,ro --cpus 2,3\n"
      "  ringway serve -d path=ram:256M,socket=/tmp/fast.sock --poll fixed=50us\n"
      "  ringway serve --config host.toml\n"
      "\nhost.toml:\n"
      "  [workers]\n"
      "  cpus = [2, 3]\n"
      "  poll = \"fixed=50us\"\n"
      "  [api]\n"
      "  socket = \"/run/ringway.sock\"\n"
      "  [[disk]]\n"
      "  path = \"/srv/disk.img\"\n"
      "  socket = \"/run/vm1-disk.sock\"\n"
      "  queues = 4\n"
      "  [[net]]\n"
      "  tap = \"tap0\"\n"
      "  socket = \"/run/vm1-net.sock\"\n"
      "\nWhen the sockets stand it prints \"ready: N disks and M network cards\" (and tells systemd). SIGTERM, SIGINT, "
      "SIGHUP: "
      "finish what is in "
      "flight, close, end; a\n"
      "second one: end at once. SIGUSR1: print the counters, as is done at the end.\n"
      "Exit status: 0 ended cleanly; 1 couldn't start; 2 bad options; 3 a disk's storage hung at the end; 4 ended at once.");
  serve_app->callback([arguments, &exit_code] { exit_code = serve(*arguments); });
}

}  // namespace ringway::cli
