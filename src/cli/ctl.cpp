// `ringway ctl`: a client of the local API. Tables for people, the API's JSON with --json.

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "control/api_client.hpp"
#include "control/config.hpp"
#include "control/report.hpp"

namespace ringway::cli {
namespace {

using nlohmann::json;

struct CtlArguments {
  std::string api;
  bool as_json = false;
  bool shrink = false;
  std::string disk, net, name, size, link, poll;
  std::string timeout = "60s";
};

struct Command {
  std::string method = "GET";
  std::string target;
  std::string body = {};
  // The answer for people.
  std::function<std::string(const json&)> show;
};

std::string field(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string url_part(std::string_view text) {
  std::string part;
  for (const char c : text) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    part += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return part;
}

namespace {

int fail_with(std::string_view message) {
  print_error(message);
  return kExitFailure;
}

// For Option::check(). Who writes "$NAME" and has none must not be understood as somebody who has left it out.
CLI::Validator not_empty() {
  return {[](const std::string& text) { return std::string(text.empty() ? "it is empty" : ""); }, ""};
}

Result<Duration> parse_timeout(const std::string& text) {
  constexpr Duration kLeast = Duration::milliseconds(1);
  RW_TRY_ASSIGN(const Duration timeout, parse_duration(text));
  if (timeout < kLeast) {
    return fail(fmt::format("'{}' is not allowed; give at least 1ms", text));
  }
  return timeout;
}

int run(const CtlArguments& arguments, const Command& command) {
  const Result<Duration> timeout = of_option("--timeout", parse_timeout(arguments.timeout));
  if (!timeout) {
    print_error(timeout.error().message);
    return kExitUsage;
  }
  const Result<ApiReply> reply = api_request(arguments.api, command.method, command.target, command.body, *timeout);
  if (!reply) {
    return fail_with(reply.error().message);
  }
  const json answer = json::parse(reply->body, nullptr, false);
  if (reply->status >= 400 || answer.is_discarded()) {
    const std::string message = answer.is_object() ? field(answer, "error") : "";
    return fail_with(message.empty() ? fmt::format("the daemon answered with status {}", reply->status) : message);
  }
  fmt::print("{}",
             arguments.as_json ? answer.dump(2, ' ', false, json::error_handler_t::replace) + "\n" : command.show(answer));
  return 0;
}

// The daemon has another working directory than we.
std::string absolute(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path result = std::filesystem::absolute(path, ignored);
  return ignored ? path : result.string();
}

int post_device(const CtlArguments& arguments, const char* target, const json& options) {
  return run(arguments, {.method = "POST",
                         .target = target,
                         .body = options.dump(-1, ' ', false, json::error_handler_t::replace),
                         .show = [](const json& answer) { return fmt::format("added '{}'\n", field(answer, "name")); }});
}

int add_disk(const CtlArguments& arguments) {
  Result<DiskOptions> disk = parse_disk(arguments.disk, "ringway ctl add ");
  if (!disk) {
    print_error(disk.error().message);
    return kExitUsage;
  }
  if (is_file_image(disk->path)) {
    disk->path = absolute(disk->path);
  }
  disk->socket = absolute(disk->socket);
  return post_device(arguments, "/v1/disks", disk_to_json(*disk));
}

int add_net(const CtlArguments& arguments) {
  Result<NetOptions> net = of_option("--net", parse_net(arguments.net, "ringway ctl add --net "));
  if (!net) {
    print_error(net.error().message);
    return kExitUsage;
  }
  if (!net->socket.empty()) {
    net->socket = absolute(net->socket);
  }
  return post_device(arguments, "/v1/nets", net_to_json(*net));
}

constexpr const char* kAddExamples =
    "Examples:\n"
    "  ringway ctl add --disk path=disk.img,socket=/run/vm1-disk.sock\n"
    "  ringway ctl add --net tap=tap0,socket=/run/vm1-net.sock";

int add(const CtlArguments& arguments) {
  if (arguments.disk.empty() == arguments.net.empty()) {
    print_error(fmt::format("{}\n{}\nTry `ringway ctl add --help`.",
                            arguments.net.empty() ? "a disk or a network card is missing"
                                                  : "a disk and a network card are given; add one after the other",
                            kAddExamples));
    return kExitUsage;
  }
  return arguments.net.empty() ? add_disk(arguments) : add_net(arguments);
}

int set_poll(const CtlArguments& arguments) {
  return run(arguments,
             {.method = "POST",
              .target = "/v1/workers",
              .body = json{{"poll", arguments.poll}}.dump(-1, ' ', false, json::error_handler_t::replace),
              .show = [](const json& answer) { return fmt::format("workers poll {}\n", field(answer, "poll")); }});
}

int set_link(const CtlArguments& arguments) {
  return run(arguments, {.method = "POST",
                         .target = "/v1/nets/" + url_part(arguments.name) + "/link",
                         .body = json{{"up", arguments.link == "up"}}.dump(),
                         .show = [](const json& answer) {
                           return fmt::format("the link of '{}' is {}\n", field(answer, "name"), field(answer, "link"));
                         }});
}

int resize(const CtlArguments& arguments) {
  json body = json::object();
  if (!arguments.size.empty()) {
    body["size"] = arguments.size;
  }
  if (arguments.shrink) {
    body["shrink"] = true;
  }
  return run(arguments, {.method = "POST",
                         .target = "/v1/disks/" + url_part(arguments.name) + "/resize",
                         .body = body.dump(-1, ' ', false, json::error_handler_t::replace),
                         .show = [](const json& answer) {
                           return fmt::format("'{}' has {}\n", field(answer, "name"),
                                              bytes_text(answer.value("capacity", std::uint64_t{0})));
                         }});
}

int stats(const CtlArguments& arguments) {
  if (arguments.name.empty()) {
    return run(arguments, {.target = "/v1/stats", .show = stats_table});
  }
  return run(arguments, {.target = "/v1/stats/" + url_part(arguments.name),
                         .show = [](const json& answer) { return stats_table(json::array({answer})); }});
}

int remove(const CtlArguments& arguments) {
  return run(arguments,
             {.method = "DELETE", .target = "/v1/devices/" + url_part(arguments.name), .show = [](const json& answer) {
                return answer.contains("removed") ? fmt::format("removed '{}'\n", field(answer, "removed"))
                                                  : field(answer, "reason") + "\n";
              }});
}

}  // namespace

void add_ctl(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<CtlArguments>();
  CLI::App* ctl = app.add_subcommand("ctl", "Ask or change a running `ringway serve`");
  ctl->require_subcommand(1);
  ctl->fallthrough();  // --api and --json may stand behind the command too
  ctl->add_option("--api", arguments->api, "Its API socket (default: where `ringway serve` or its systemd unit puts it)")
      ->check(not_empty())
      ->type_name("PATH");
  ctl->add_flag("--json", arguments->as_json, "Print the API's JSON");
  ctl->add_option("--timeout", arguments->timeout, "How long to wait for the whole answer (default: 60s)")
      ->type_name("TIME");
  ctl->footer(
      "Examples:\n"
      "  ringway ctl list\n"
      "  ringway ctl add path=data.img,socket=/run/vm1-data.sock,queues=2\n"
      "  ringway ctl resize data 20G          make the image larger and tell the guest\n"
      "  ringway ctl resize data              the image was resized by someone else: look again\n"
      "  ringway ctl remove data\n"
      "  ringway ctl add --net tap=tap0,socket=/run/vm1-net.sock\n"
      "  ringway ctl link tap0 down           as if its cable were pulled out\n"
      "  ringway ctl stats data\n"
      "  ringway ctl --json stats | jq '.[].latency.read'\n"
      "\nThe same by curl: curl --unix-socket /run/ringway.sock http://localhost/v1/devices\n"
      "\nExit status: 0 done; 1 refused by the daemon, or no answer from it; 2 bad command line.");

  const auto simple = [&, ctl](const char* name, const char* help, const char* target, std::string (*show)(const json&)) {
    ctl->add_subcommand(name, help)->callback([=, &exit_code] {
      exit_code = run(*arguments, {.target = target, .show = show});
    });
  };
  simple("list", "The disks and network cards", "/v1/devices", devices_table);
  CLI::App* stats_app = ctl->add_subcommand("stats", "Counters and latencies of each device and queue");
  stats_app->add_option("name", arguments->name, "Of this device only")->check(not_empty());
  stats_app->callback([arguments, &exit_code] { exit_code = stats(*arguments); });
  simple("workers", "What the worker threads do", "/v1/workers", workers_table);

  CLI::App* add_app = ctl->add_subcommand("add", "Add a disk or a network card");
  add_app
      ->add_option("disk,--disk", arguments->disk,
                   "As --disk of `ringway serve`: path=disk.img,socket=/run/vm1.sock,...; --disk may be left out")
      ->type_name("KEY=VALUE,...");
  add_app->add_option("--net", arguments->net, "As --net of `ringway serve`: tap=tap0,socket=/run/vm1-net.sock,...")
      ->type_name("KEY=VALUE,...");
  add_app->footer("Keys of a disk:\n" + disk_keys_help() + "\nKeys of a network card:\n" + net_keys_help() + "\n" +
                  kAddExamples);
  add_app->callback([arguments, &exit_code] { exit_code = add(*arguments); });

  CLI::App* remove_app = ctl->add_subcommand("remove", "Remove a disk or a network card; its front-end is disconnected");
  remove_app->add_option("name", arguments->name, "The device's name")->required()->check(not_empty());
  remove_app->footer("Example:\n  ringway ctl remove data");
  remove_app->callback([arguments, &exit_code] { exit_code = remove(*arguments); });

  CLI::App* link_app = ctl->add_subcommand(
      "link", "Pull the cable of a network card out, or put it in again: the guest is shown it, and no frame passes");
  link_app->add_option("name", arguments->name, "The card's name")->required()->check(not_empty());
  link_app->add_option("state", arguments->link, "up or down")->required()->check(one_of({"up", "down"}));
  link_app->footer("Example:\n  ringway ctl link tap0 down");
  link_app->callback([arguments, &exit_code] { exit_code = set_link(*arguments); });

  CLI::App* poll_app = ctl->add_subcommand("poll", "Change when the workers spin for work, while they run");
  poll_app->add_option("policy", arguments->poll, "As --poll of `ringway serve`: adaptive, never, always, fixed=50us, ...")
      ->required()
      ->check(not_empty());
  poll_app->footer("Examples:\n  ringway ctl poll never\n  ringway ctl poll adaptive=budget=5%");
  poll_app->callback([arguments, &exit_code] { exit_code = set_poll(*arguments); });

  CLI::App* resize_app = ctl->add_subcommand("resize", "Resize a disk, or look at its image again");
  resize_app->add_option("name", arguments->name, "The disk's name")->required()->check(not_empty());
  resize_app->add_option("size", arguments->size, "The new size, such as 20G; none: whatever the image has now")
      ->check(not_empty());
  resize_app->footer("Examples:\n  ringway ctl resize data 20G\n  ringway ctl resize data");
  resize_app->add_flag("--shrink", arguments->shrink, "The size may be smaller than the disk is: what lies beyond is lost");
  resize_app->callback([arguments, &exit_code] { exit_code = resize(*arguments); });

  ctl->add_subcommand("quit", "End the daemon as SIGTERM does")->callback([arguments, &exit_code] {
    exit_code = run(*arguments,
                    {.method = "POST", .target = "/v1/quit", .show = [](const json&) { return std::string("ending\n"); }});
  });
}

}  // namespace ringway::cli
