// `ringway ctl`: a client of the local API. Tables for people, the API's JSON with --json.

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "control/api_client.hpp"
#include "control/api_socket.hpp"
#include "control/config.hpp"
#include "control/report.hpp"

namespace ringway::cli {
namespace {

using nlohmann::json;

struct CtlArguments {
  std::string api;
  bool as_json = false;
  bool shrink = false;
  std::string disk, name, size;
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

// Names come from the command line, so whatever isn't plain is escaped.
std::string url_part(std::string_view text) {
  std::string part;
  for (const char c : text) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    part += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return part;
}

int fail_with(std::string_view message) {
  print_error(message);
  return kExitFailure;
}

int run(const CtlArguments& arguments, const Command& command) {
  const Result<Duration> timeout = of_option("--timeout", parse_duration(arguments.timeout));
  if (!timeout) {
    print_error(timeout.error().message);
    return kExitUsage;
  }
  const Result<ApiReply> reply = api_request(arguments.api.empty() ? default_api_path() : arguments.api, command.method,
                                             command.target, command.body, *timeout);
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

int add(const CtlArguments& arguments) {
  Result<DiskOptions> disk = parse_disk(arguments.disk, "ringway ctl add ");
  if (!disk) {
    print_error(disk.error().message);
    return kExitUsage;
  }
  if (is_file_image(disk->path)) {
    disk->path = absolute(disk->path);
  }
  disk->socket = absolute(disk->socket);
  return run(arguments, {.method = "POST",
                         .target = "/v1/disks",
                         .body = disk_to_json(*disk).dump(-1, ' ', false, json::error_handler_t::replace),
                         .show = [](const json& answer) { return fmt::format("added '{}'\n", field(answer, "name")); }});
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

int remove(const CtlArguments& arguments) {
  return run(arguments,
             {.method = "DELETE", .target = "/v1/disks/" + url_part(arguments.name), .show = [](const json& answer) {
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
  ctl->add_option("--api", arguments->api, "Its API socket (default: where `ringway serve` puts it)")->type_name("PATH");
  ctl->add_flag("--json", arguments->as_json, "Print the API's JSON");
  ctl->add_option("--timeout", arguments->timeout, "How long to wait for an answer (default: 60s)")->type_name("TIME");
  ctl->footer(
      "Examples:\n"
      "  ringway ctl list\n"
      "  ringway ctl add path=data.img,socket=/run/vm1-data.sock,queues=2\n"
      "  ringway ctl resize data 20G          make the image larger and tell the guest\n"
      "  ringway ctl resize data              the image was resized by someone else: look again\n"
      "  ringway ctl remove data\n"
      "  ringway ctl --json stats | jq '.[].latency.read'\n"
      "\nThe same by curl: curl --unix-socket /run/ringway.sock http://localhost/v1/disks");

  const auto simple = [&, ctl](const char* name, const char* help, const char* target, std::string (*show)(const json&)) {
    ctl->add_subcommand(name, help)->callback([=, &exit_code] {
      exit_code = run(*arguments, {.target = target, .show = show});
    });
  };
  simple("list", "The disks", "/v1/disks", disks_table);
  simple("stats", "Counters and latencies of each disk and queue", "/v1/stats", stats_table);
  simple("workers", "What the worker threads do", "/v1/workers", workers_table);

  CLI::App* add_app = ctl->add_subcommand("add", "Add a disk");
  add_app->add_option("disk", arguments->disk, "As --disk of `ringway serve`: path=disk.img,socket=/run/vm1.sock,...")
      ->required();
  add_app->footer("Keys:\n" + disk_keys_help());
  add_app->callback([arguments, &exit_code] { exit_code = add(*arguments); });

  CLI::App* remove_app = ctl->add_subcommand("remove", "Remove a disk; its front-end is disconnected");
  remove_app->add_option("name", arguments->name, "The disk's name")->required();
  remove_app->callback([arguments, &exit_code] { exit_code = remove(*arguments); });

  CLI::App* resize_app = ctl->add_subcommand("resize", "Resize a disk, or look at its image again");
  resize_app->add_option("name", arguments->name, "The disk's name")->required();
  resize_app->add_option("size", arguments->size, "The new size, such as 20G; none: whatever the image has now");
  resize_app->add_flag("--shrink", arguments->shrink, "The size may be smaller than the disk is: what lies beyond is lost");
  resize_app->callback([arguments, &exit_code] { exit_code = resize(*arguments); });

  ctl->add_subcommand("quit", "End the daemon as SIGTERM does")->callback([arguments, &exit_code] {
    exit_code = run(*arguments,
                    {.method = "POST", .target = "/v1/quit", .show = [](const json&) { return std::string("ending\n"); }});
  });
}

}  // namespace ringway::cli
