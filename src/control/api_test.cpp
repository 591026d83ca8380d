// The local API over its real socket, against a live Host.

#include "control/api.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "control/api_client.hpp"
#include "control/log_sink.hpp"
#include "control/test_host.hpp"
#include "driver/test_driver.hpp"
#include "vhost_user/socket_log.hpp"

namespace ringway {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Api : public ::testing::Test {
 protected:
  Api() { options_.api_socket = directory_.file("api.sock"); }

  void start(std::vector<DiskOptions> disks = {}, std::vector<NetOptions> nets = {}) {
    host_ = std::make_unique<TestHost>(options_, std::move(disks), std::move(nets));
    ASSERT_TRUE(host_->started()) << host_->started().error().message;
  }
  ApiReply ask(std::string_view method, std::string_view target, std::string_view body = {}) {
    Result<ApiReply> reply = api_request(options_.api_socket, method, target, body);
    EXPECT_TRUE(reply) << reply.error().message;
    return reply.value_or(ApiReply{});
  }
  // The status, and the body as JSON.
  std::pair<unsigned, json> ask_json(std::string_view method, std::string_view target, std::string_view body = {}) {
    const ApiReply reply = ask(method, target, body);
    json parsed = json::parse(reply.body, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << reply.body;
    return {reply.status, std::move(parsed)};
  }
  std::pair<unsigned, std::string> ask_error(std::string_view method, std::string_view target, std::string_view body = {}) {
    const auto [status, answer] = ask_json(method, target, body);
    EXPECT_EQ(answer.size(), 1U) << answer;
    return {status, answer.value("error", "(none)")};
  }
  json add_body(const std::string& name) {
    return {{"path", "null:1M"}, {"socket", directory_.file(name + ".sock")}, {"name", name}};
  }

  UniqueFd connect_raw() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, options_.api_socket.data(), options_.api_socket.size());
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << std::strerror(errno);
    return fd;
  }
  static std::string read_all(int fd) {
    std::string all;
    char buffer[4096];
    for (ssize_t got = 0; (got = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
      all.append(buffer, static_cast<std::size_t>(got));
    }
    return all;
  }

  TestDirectory directory_;
  HostOptions options_;
  std::unique_ptr<TestHost> host_;
};

TEST_F(Api, AddShowListRemove) {
  start();
  EXPECT_EQ(ask_json("GET", "/v1/disks"), std::make_pair(200U, json::array()));
  json body = add_body("vm1");
  body["queues"] = 2;
  EXPECT_EQ(ask_json("POST", "/v1/disks", body.dump()), std::make_pair(201U, json({{"name", "vm1"}})));

  const auto [status, disk] = ask_json("GET", "/v1/disks/vm1");
  EXPECT_EQ(status, 200U);
  EXPECT_EQ(disk["name"], "vm1");
  EXPECT_EQ(disk["state"], "serving");
  EXPECT_EQ(disk["path"], "null:1M");
  EXPECT_EQ(disk["socket"], directory_.file("vm1.sock"));
  EXPECT_EQ(disk["queues"], 2);
  EXPECT_EQ(disk["capacity"], 1 << 20);
  EXPECT_EQ(disk["engine"], "null");
  EXPECT_EQ(disk["connected"], false);
  EXPECT_TRUE(std::filesystem::exists(directory_.file("vm1.sock")));
  EXPECT_EQ(ask_json("GET", "/v1/disks"), std::make_pair(200U, json::array({disk})));

  EXPECT_EQ(ask_json("DELETE", "/v1/disks/vm1"), std::make_pair(200U, json({{"removed", "vm1"}})));
  EXPECT_FALSE(std::filesystem::exists(directory_.file("vm1.sock")));
  EXPECT_EQ(ask_error("GET", "/v1/disks/vm1"), std::make_pair(404U, std::string("there is no disk 'vm1'; none is served")));
}

TEST_F(Api, NetworkCardsBesideDisks) {
  start({test_disk("null:1M", directory_.file("d.sock"), "d")});
  EXPECT_EQ(ask_json("GET", "/v1/nets"), std::make_pair(200U, json::array()));
  const json body = {{"loop", true}, {"socket", directory_.file("n.sock")}, {"name", "n"},   {"queues", 2},
                     {"mtu", 1400},  {"mac", "52:54:00:12:34:56"},          {"speed", 10000}};
  EXPECT_EQ(ask_json("POST", "/v1/nets", body.dump()), std::make_pair(201U, json({{"name", "n"}})));
  const auto [status, net] = ask_json("GET", "/v1/nets/n");
  EXPECT_EQ(status, 200U);
  EXPECT_EQ(net["kind"], "net");
  EXPECT_EQ(net["name"], "n");
  EXPECT_EQ(net["state"], "serving");
  EXPECT_EQ(net["port"], "loop");
  EXPECT_EQ(net["queues"], 2);
  EXPECT_EQ(net["mac"], "52:54:00:12:34:56");
  EXPECT_EQ(net["mtu"], 1400);
  EXPECT_EQ(net["link"], "up");
  EXPECT_EQ(net["connected"], false);
  EXPECT_EQ(ask_json("GET", "/v1/nets"), std::make_pair(200U, json::array({net})));
  EXPECT_EQ(ask_json("GET", "/v1/devices/n").second, net);
  const json disk = ask_json("GET", "/v1/disks/d").second;
  EXPECT_EQ(disk["kind"], "disk");
  EXPECT_EQ(ask_json("GET", "/v1/devices"), std::make_pair(200U, json::array({disk, net})));

  const json stats = ask_json("GET", "/v1/stats").second;
  ASSERT_EQ(stats.size(), 2U);
  EXPECT_EQ(stats[1]["kind"], "net");
  ASSERT_EQ(stats[1]["pairs"].size(), 2U);
  EXPECT_EQ(stats[1]["pairs"][1]["index"], 1);
  EXPECT_EQ(stats[1]["pairs"][0]["receive"]["frames"], 0);

  // Each kind by its own address, or by that of both.
  EXPECT_EQ(ask_error("DELETE", "/v1/disks/n"),
            std::make_pair(404U, std::string("there is no disk 'n', but a net of that name")));
  EXPECT_EQ(ask_error("GET", "/v1/nets/d").first, 404U);
  EXPECT_EQ(ask_json("DELETE", "/v1/devices/n"), std::make_pair(200U, json({{"removed", "n"}})));
  EXPECT_EQ(ask_error("DELETE", "/v1/nets/n"), std::make_pair(404U, std::string("there is no net 'n'; none is served")));
  EXPECT_EQ(ask_error("DELETE", "/v1/devices/n"), std::make_pair(404U, std::string("there is no device 'n'; there are: d")));
  EXPECT_EQ(ask_json("POST", "/v1/nets", body.dump()).first, 201U);
  EXPECT_EQ(ask_json("DELETE", "/v1/nets/n"), std::make_pair(200U, json({{"removed", "n"}})));
}

TEST_F(Api, TheLinkOfANetworkCard) {
  start({test_disk("null:1M", directory_.file("d.sock"), "d")}, {test_net(directory_.file("n.sock"), "n")});
  EXPECT_EQ(ask_json("POST", "/v1/nets/n/link", R"({"up": false})"),
            std::make_pair(200U, json({{"name", "n"}, {"link", "down"}})));
  EXPECT_EQ(ask_json("GET", "/v1/nets/n").second["link"], "down");
  EXPECT_EQ(ask_json("POST", "/v1/nets/n/link", R"({"up": true})").second["link"], "up");
  for (const char* body : {"", "{}", R"({"up": "yes"})", R"({"up": 1})", R"({"up": true, "down": false})"}) {
    EXPECT_EQ(ask_error("POST", "/v1/nets/n/link", body),
              std::make_pair(400U, std::string(R"(give {"up": true} or {"up": false}: the state of the link)")))
        << body;
  }
  EXPECT_EQ(ask_error("GET", "/v1/nets/n/link").first, 405U);
  EXPECT_EQ(ask_error("POST", "/v1/nets/z/link", R"({"up": true})"),
            std::make_pair(404U, std::string("there is no net 'z'; there are: n")));
  EXPECT_EQ(ask_error("POST", "/v1/nets/n/resize"), std::make_pair(404U, std::string("a net has no 'resize'; try link")));
  EXPECT_EQ(ask_error("POST", "/v1/disks/d/link"), std::make_pair(404U, std::string("a disk has no 'link'; try resize")));
  EXPECT_EQ(ask_error("POST", "/v1/devices/n/link").first, 404U);
}

TEST_F(Api, ANetworkCardThatCantBeHad) {
  start({}, {test_net(directory_.file("n.sock"), "n")});
  json body = {{"loop", true}, {"socket", directory_.file("n.sock")}};
  EXPECT_EQ(ask_error("POST", "/v1/nets", body.dump()),
            std::make_pair(409U, "net 'loop': the socket '" + directory_.file("n.sock") + "' belongs to net 'n' already"));
  body["socket"] = directory_.file("m.sock");
  body["name"] = "n";
  EXPECT_EQ(ask_error("POST", "/v1/nets", body.dump()),
            std::make_pair(409U, std::string("net 'n': there is a net of that name already; choose another name=")));
  EXPECT_EQ(ask_error("POST", "/v1/nets", "{}").first, 400U);
  EXPECT_EQ(ask_error("POST", "/v1/nets", R"({"loop": true, "socket": "s"})").first, 400U);
  EXPECT_EQ(ask_error("POST", "/v1/nets", R"({"fds": 5, "socket": "/s"})").first, 400U);
  EXPECT_EQ(ask_error("POST", "/v1/devices", body.dump()),
            std::make_pair(405U, std::string("method not allowed here; allowed: GET")));
  EXPECT_EQ(ask_error("POST", "/v1/nets", json{{"loop", true}, {"socket", directory_.file("missing/m.sock")}}.dump()).first,
            422U);
}

TEST_F(Api, StatsWorkersVersion) {
  options_.workers.workers = 2;
  start({test_disk("null:1M", directory_.file("a.sock"), "a")});
  const auto driver = connect_driver(directory_.file("a.sock"));
  ASSERT_NE(driver, nullptr);
  ASSERT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  auto [status, stats] = ask_json("GET", "/v1/stats");
  EXPECT_EQ(status, 200U);
  EXPECT_EQ(stats[0]["name"], "a");
  EXPECT_EQ(stats[0]["queues"][0]["requests"]["in"], 1);
  EXPECT_EQ(stats[0]["queues"][0]["bytes_in"], 4096);
  // Latencies are recorded after the driver has its answer, at the end of the worker's turn.
  for (int i = 0; i < 1000 && stats[0]["latency"]["read"]["count"] == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stats = ask_json("GET", "/v1/stats").second;
  }
  EXPECT_EQ(stats[0]["latency"]["read"]["count"], 1);
  const json workers = ask_json("GET", "/v1/workers").second;
  ASSERT_EQ(workers.size(), 2U);
  EXPECT_EQ(workers[1]["index"], 1);
  EXPECT_EQ(ask_json("GET", "/v1/version"), std::make_pair(200U, json({{"version", RINGWAY_VERSION}})));
}

TEST_F(Api, StatsOfOneDevice) {
  start({test_disk("null:1M", directory_.file("a.sock"), "a"), test_disk("null:1M", directory_.file("b.sock"), "b")},
        {test_net(directory_.file("n.sock"), "n")});
  const json all = ask_json("GET", "/v1/stats").second;
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(ask_json("GET", "/v1/stats/b"), std::make_pair(200U, all[1]));
  EXPECT_EQ(ask_json("GET", "/v1/stats/n"), std::make_pair(200U, all[2]));
  EXPECT_EQ(ask_error("GET", "/v1/stats/z"),
            std::make_pair(404U, std::string("there is no device 'z'; there are: a, b, n")));
  EXPECT_EQ(ask_error("POST", "/v1/stats/b").first, 405U);
  EXPECT_EQ(ask_error("GET", "/v1/stats/").first, 404U);
}

TEST_F(Api, TellsHowManyLinesOfTheLogWereDropped) {
  start();
  const json before = ask_json("GET", "/v1/log").second["lines_dropped"];
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  ASSERT_GT(fcntl(writing.get(), F_SETPIPE_SZ, 4096), 0);
  spdlog::logger logger("", std::make_shared<LogSink>(writing.get()));
  logger.info(std::string(10'000, 'x'));  // begun, so not dropped
  logger.info("dropped");
  logger.info("dropped");
  EXPECT_EQ(ask_json("GET", "/v1/log"), std::make_pair(200U, json({{"lines_dropped", before.get<int>() + 2}})));
}

// What the store saw, which the guest can't tell: it goes on over sessions.
TEST_F(Api, StatsTellWhyRequestsFailed) {
  DiskOptions disk = test_disk(directory_.image("a.img", 1 << 20), directory_.file("a.sock"), "a");
  disk.faults = "eio=1/1:out";
  disk.engine = BlkEngine::threads;
  std::ostringstream log;
  const auto logger = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  start({disk});
  for (unsigned session = 1; session <= 2; ++session) {
    const auto driver = connect_driver(directory_.file("a.sock"));
    ASSERT_NE(driver, nullptr);
    EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeOut, 0).status, spec::kBlkStatusIoErr);
    EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeFlush, 0).status, spec::kBlkStatusOk);
    const json store = ask_json("GET", "/v1/stats").second[0]["store"];
    EXPECT_EQ(store["failures"]["io"], session) << store;
    EXPECT_EQ(store["failures"]["end_of_file"], 0);
    EXPECT_EQ(store["syncs"], session);
    EXPECT_EQ(store["registered"], 0);
  }
  std::filesystem::resize_file(directory_.file("a.img"), 4096);
  const auto driver = connect_driver(directory_.file("a.sock"));
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 1024).status, spec::kBlkStatusIoErr);
  EXPECT_EQ(ask_json("GET", "/v1/stats").second[0]["store"]["failures"]["end_of_file"], 1);
  EXPECT_EQ(host_->quit(), HostEnd::clean);
  EXPECT_THAT(host_->report(), HasSubstr("store failures: end_of_file 1, io 2"));
  host_.reset();
  spdlog::set_default_logger(logger);
  // One line for each kind.
  EXPECT_THAT(log.str(), AllOf(HasSubstr("disk 'a'"), HasSubstr("Input/output error"), HasSubstr("truncated")));
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = log.str().find("a request failed in the image", at)) != std::string::npos; ++at) {
    ++lines;
  }
  EXPECT_EQ(lines, 2U) << log.str();
}

TEST_F(Api, Resize) {
  const std::string image = directory_.image("a.img", 1 << 20);
  start({test_disk(image, directory_.file("a.sock"), "a")});
  EXPECT_EQ(ask_json("POST", "/v1/disks/a/resize", R"({"size": "2M"})"),
            std::make_pair(200U, json({{"name", "a"}, {"capacity", 2 << 20}})));
  EXPECT_EQ(std::filesystem::file_size(image), 2U << 20U);
  EXPECT_EQ(ask_json("POST", "/v1/disks/a/resize", R"({"size": 3145728})").second["capacity"], 3 << 20);
  std::filesystem::resize_file(image, 4 << 20);
  EXPECT_EQ(ask_json("POST", "/v1/disks/a/resize").second["capacity"], 4 << 20);
  std::filesystem::resize_file(image, 5 << 20);
  EXPECT_EQ(ask_json("POST", "/v1/disks/a/resize", R"({"size": 0})").second["capacity"], 5 << 20);

  EXPECT_EQ(
      ask_error("POST", "/v1/disks/a/resize", R"({"size": "big"})"),
      std::make_pair(400U, std::string("size: \"big\" is not allowed; give bytes, or a whole number with K, M, G, T or P, "
                                       "such as \"2G\"; 0 or none only looks at the image again")));
  EXPECT_EQ(ask_error("POST", "/v1/disks/a/resize", R"({"bytes": 1})"),
            std::make_pair(400U, std::string("unknown key 'bytes'; allowed: size, and shrink (true or false)")));
  EXPECT_EQ(ask_error("POST", "/v1/disks/a/resize", R"({"size": 1001, "shrink": true})").first, 422U);
  const auto smaller = ask_error("POST", "/v1/disks/a/resize", R"({"size": "1M"})");
  EXPECT_EQ(smaller.first, 409U);
  EXPECT_THAT(smaller.second, testing::HasSubstr("would be lost"));
  EXPECT_EQ(std::filesystem::file_size(image), 5U << 20U);
  EXPECT_EQ(ask_json("POST", "/v1/disks/a/resize", R"({"size": "1M", "shrink": true})").second["capacity"], 1 << 20);
  EXPECT_EQ(ask_error("POST", "/v1/disks/z/resize"),
            std::make_pair(404U, std::string("there is no disk 'z'; there are: a")));
}

TEST_F(Api, ErrorsHaveTheRightStatus) {
  start({test_disk("null:1M", directory_.file("a.sock"), "a")});
  EXPECT_EQ(ask_error("DELETE", "/v1/disks/a%00junk").first, 404U) << "it is not the disk 'a'";
  EXPECT_EQ(ask_json("GET", "/v1/disks/%61").first, 200U);
  EXPECT_EQ(ask_error("POST", "/v1/disks", "{"), std::make_pair(400U, std::string("the body is not a JSON object")));
  EXPECT_EQ(ask_error("POST", "/v1/disks", "[1]"), std::make_pair(400U, std::string("the body is not a JSON object")));
  EXPECT_EQ(ask_error("POST", "/v1/disks").first, 400U);
  EXPECT_EQ(ask_error("POST", "/v1/disks", R"({"path": "rel.img", "socket": "/s"})").first, 400U);
  EXPECT_EQ(ask_error("POST", "/v1/disks", add_body("a").dump()),
            std::make_pair(409U, std::string("disk 'a': there is a disk of that name already; choose another name=")));
  json missing = add_body("b");
  missing["path"] = directory_.file("missing.img");
  const auto [status, message] = ask_error("POST", "/v1/disks", missing.dump());
  EXPECT_EQ(status, 422U);
  EXPECT_THAT(message, HasSubstr("No such file or directory"));
  EXPECT_EQ(ask_error("DELETE", "/v1/disks/zzz"), std::make_pair(404U, std::string("there is no disk 'zzz'; there are: a")));
  EXPECT_EQ(ask_error("GET", "/v2/disks").first, 404U);
  EXPECT_EQ(ask_error("GET", "/").first, 404U);
  EXPECT_EQ(ask_error("GET", "/v1/disks/").first, 404U);
  EXPECT_EQ(ask_error("GET", "/v1/disks/a/resize"),
            std::make_pair(405U, std::string("method not allowed here; allowed: POST")));
  EXPECT_EQ(ask_error("PUT", "/v1/disks").first, 405U);
  EXPECT_EQ(ask_error("POST", "/v1/stats").first, 405U);
  EXPECT_EQ(ask_error("GET", "/v1/quit").first, 405U);
  EXPECT_EQ(ask_error("POST", "/v1/disks/a/grow").first, 404U);
}

TEST_F(Api, AMethodThatIsNotAllowedTellsWhichAre) {
  start();
  const UniqueFd fd = connect_raw();
  constexpr std::string_view kRequest = "PUT /v1/disks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  ASSERT_EQ(send(fd.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL), static_cast<ssize_t>(kRequest.size()));
  EXPECT_THAT(read_all(fd.get()), HasSubstr("Allow: GET, POST\r\n"));
}

TEST_F(Api, BodiesAreBounded) {
  start();
  EXPECT_EQ(ask_error("POST", "/v1/disks", std::string(kApiBodyBytesMax + 1, ' ')),
            std::make_pair(413U, std::string("the body is larger than 65536 bytes")));
  // Exactly as large is read (and is no object).
  EXPECT_EQ(ask_error("POST", "/v1/disks", std::string(kApiBodyBytesMax, ' ')).first, 400U);
}

TEST_F(Api, BodiesAreNestedSoFarAndNoFurther) {
  start({test_disk("null:1M", directory_.file("a.sock"), "a")});
  const auto nested = [](std::size_t levels, std::string_view open, std::string_view close) {
    std::string text;
    for (std::size_t i = 0; i < levels; ++i) {
      text += open;
    }
    for (std::size_t i = 0; i < levels; ++i) {
      text += close;
    }
    return text;
  };
  const std::pair<unsigned, std::string> too_deep = {400U, "the body is nested deeper than 16 levels"};
  EXPECT_EQ(ask_error("POST", "/v1/disks/a/resize", R"({"size": )" + nested(16, "[", "]") + "}"), too_deep);
  EXPECT_THAT(ask_error("POST", "/v1/disks/a/resize", R"({"size": )" + nested(15, "[", "]") + "}").second,
              HasSubstr("is not allowed; give bytes"));
  for (const char* target : {"/v1/disks", "/v1/nets", "/v1/disks/a/resize", "/v1/nets/a/link"}) {
    EXPECT_EQ(ask_error("POST", target, R"({"size": )" + nested(32'000, "[", "]") + "}"), too_deep) << target;
    EXPECT_EQ(ask_error("POST", target, nested(32'000, "[", "]")), too_deep) << target;
    EXPECT_EQ(ask_error("POST", target, nested(10'000, R"({"":)", "}")), too_deep) << target;
    EXPECT_EQ(ask_error("POST", target, std::string(60'000, '[')), too_deep) << target;
  }
}

TEST_F(Api, AKeyThatIsGivenTwiceIsNamed) {
  start({test_disk("null:1M", directory_.file("a.sock"), "a")});
  EXPECT_EQ(ask_error("POST", "/v1/disks", R"({"path": "null:1M", "socket": "/s", "path": "null:2M"})"),
            std::make_pair(400U, std::string("the key 'path' is given twice")));
  EXPECT_EQ(ask_error("POST", "/v1/disks/a/resize", R"({"size": {"b": 1, "c": {"b": 1}, "b": 2}})"),
            std::make_pair(400U, std::string("the key 'b' is given twice")));
  // In different objects they are different keys.
  EXPECT_THAT(ask_error("POST", "/v1/disks/a/resize", R"({"size": {"b": {"b": 1}}, "shrink": true})").second,
              HasSubstr("is not allowed; give bytes"));
}

TEST_F(Api, HeadersAreBounded) {
  start();
  const UniqueFd fd = connect_raw();
  const std::string request = "GET /v1/version HTTP/1.1\r\nHost: x\r\nX-Long: " + std::string(256U << 10U, 'x') + "\r\n\r\n";
  static_cast<void>(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL));
  EXPECT_THAT(read_all(fd.get()), ::testing::Not(HasSubstr("200 OK")));
  EXPECT_EQ(ask("GET", "/v1/version").status, 200U);
}

TEST_F(Api, GarbageIsAnsweredAndHarmsNobody) {
  start();
  using namespace std::string_view_literals;
  const UniqueFd lineless = connect_raw();
  ASSERT_EQ(send(lineless.get(), "GET\r\n\r\n", 7, MSG_NOSIGNAL), 7);
  EXPECT_EQ(read_all(lineless.get()), "") << "closed, as no version of HTTP can be made of it";
  const UniqueFd wrong = connect_raw();
  constexpr std::string_view kLength = "POST /v1/disks HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n";
  ASSERT_EQ(send(wrong.get(), kLength.data(), kLength.size(), MSG_NOSIGNAL), static_cast<ssize_t>(kLength.size()));
  EXPECT_TRUE(read_all(wrong.get()).starts_with("HTTP/1.1 400 "));
  // What may still become a request is waited for, up to the time-out: empty lines, and a line that has no end yet.
  std::vector<UniqueFd> slow;
  for (const std::string_view beginning : {"\r\n\r\n"sv, "\0\xff\x80 /// HTTP/9.9"sv}) {
    slow.push_back(connect_raw());
    ASSERT_EQ(send(slow.back().get(), beginning.data(), beginning.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(beginning.size()));
  }
  EXPECT_EQ(ask("GET", "/v1/version").status, 200U);
}

TEST_F(Api, AClientThatStopsInTheMiddleHoldsNobodyUp) {
  start();
  const UniqueFd fd = connect_raw();
  constexpr std::string_view kHalf = "POST /v1/disks HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
  ASSERT_EQ(send(fd.get(), kHalf.data(), kHalf.size(), MSG_NOSIGNAL), static_cast<ssize_t>(kHalf.size()));
  EXPECT_EQ(ask("GET", "/v1/version").status, 200U);
  EXPECT_EQ(host_->quit(), HostEnd::clean);
}

TEST_F(Api, ConnectionsAreBounded) {
  start();
  std::vector<UniqueFd> idle;
  for (unsigned i = 0; i < kApiConnectionsMax; ++i) {
    idle.push_back(connect_raw());
  }
  for (int surplus = 0; surplus < 2; ++surplus) {
    EXPECT_EQ(
        ask_error("GET", "/v1/version"),
        std::make_pair(503U, std::string("the daemon is busy: it serves 32 connections to its API at once; try again")));
  }
  idle.pop_back();
  // The place is free as soon as the daemon has seen the hang-up.
  const Instant deadline = clock_now() + Duration::seconds(10);
  ApiReply reply = ask("GET", "/v1/version");
  while (reply.status == 503 && clock_now() < deadline) {
    reply = ask("GET", "/v1/version");
  }
  EXPECT_EQ(reply.status, 200U);
}

TEST_F(Api, WhoIsRefusedByTheThousandFillsNoLog) {
  std::ostringstream log;
  const auto logger = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  start();
  std::vector<UniqueFd> idle;
  for (unsigned i = 0; i < kApiConnectionsMax; ++i) {
    idle.push_back(connect_raw());
  }
  constexpr unsigned kRefused = 3 * vhost_user::LineBudget::kLines;
  for (unsigned i = 0; i < kRefused; ++i) {
    EXPECT_EQ(ask("GET", "/v1/version").status, 503U);
  }
  EXPECT_EQ(host_->quit(), HostEnd::clean);
  host_.reset();
  spdlog::set_default_logger(logger);
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = log.str().find("refused a connection", at)) != std::string::npos; ++at) {
    ++lines;
  }
  EXPECT_GT(lines, 0U) << log.str();
  EXPECT_LT(lines, kRefused) << log.str();  // not the budget itself: this may have taken more than its period
  EXPECT_THAT(log.str(), HasSubstr("more lines about its socket were left out"));
}

TEST_F(Api, KeepAliveServesSeveralRequests) {
  start();
  const UniqueFd fd = connect_raw();
  constexpr std::string_view kTwo =
      "GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/disks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  ASSERT_EQ(send(fd.get(), kTwo.data(), kTwo.size(), MSG_NOSIGNAL), static_cast<ssize_t>(kTwo.size()));
  const std::string both = read_all(fd.get());
  EXPECT_THAT(both, HasSubstr(RINGWAY_VERSION));
  EXPECT_THAT(both, HasSubstr("[]"));
}

TEST_F(Api, RemovingAHungDiskIsAnsweredInTime) {
  options_.stop_deadline = Duration::milliseconds(100);
  DiskOptions hung = test_disk("ram:1M", directory_.file("a.sock"), "a");
  hung.faults = "hang";
  start({hung});
  const auto driver = connect_driver(directory_.file("a.sock"));
  ASSERT_NE(driver, nullptr);
  submit(driver->queue(0), spec::kBlkTypeIn, 0);
  driver->queue(0).publish_and_kick();
  // The kick was seen when the worker counts it; only then is the request surely in flight.
  while (host_->call([](Host& h) { return h.stats().front().stats.queues[0].kicks; }) == 0) {
    std::this_thread::yield();
  }
  const auto [status, answer] = ask_json("DELETE", "/v1/disks/a");
  EXPECT_EQ(status, 202U);
  EXPECT_EQ(answer["removing"], "a");
  EXPECT_EQ(ask_json("GET", "/v1/disks/a").second["state"], "removing");
  EXPECT_EQ(host_->quit(), HostEnd::hung);
}

// An epoll within another makes each change of it take a lock of the whole machine.
TEST_F(Api, NoEpollIsWatchedByAnother) {
  start();
  EXPECT_EQ(ask_json("GET", "/v1/version").first, 200U);
  std::set<int> epolls;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) == "anon_inode:[eventpoll]") {
      epolls.insert(std::stoi(entry.path().filename()));
    }
  }
  EXPECT_GE(epolls.size(), 2U) << "the loop's and libmicrohttpd's";
  for (const int epoll : epolls) {
    std::ifstream info("/proc/self/fdinfo/" + std::to_string(epoll));
    for (std::string line; std::getline(info, line);) {
      int watched = -1;
      if (std::sscanf(line.c_str(), "tfd: %d", &watched) == 1) {
        EXPECT_FALSE(epolls.contains(watched)) << watched << " in " << epoll;
      }
    }
  }
}

TEST_F(Api, QuitAnswersAndThenEnds) {
  start({test_disk("null:1M", directory_.file("a.sock"), "a")});
  EXPECT_EQ(ask_json("POST", "/v1/quit"), std::make_pair(202U, json({{"quitting", true}})));
  EXPECT_EQ(host_->join(), HostEnd::clean);
  EXPECT_FALSE(std::filesystem::exists(options_.api_socket));
  EXPECT_FALSE(std::filesystem::exists(directory_.file("a.sock")));
}

TEST_F(Api, TheSocketIsTheOwnersAlone) {
  start();
  struct stat status{};
  ASSERT_EQ(stat(options_.api_socket.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(status.st_uid, geteuid());
}

TEST_F(Api, AStrangerIsTurnedAwayEvenWhereTheModeLetsHimIn) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can play another user";
  }
  start();
  std::filesystem::permissions(options_.api_socket, std::filesystem::perms::all);
  std::filesystem::permissions(directory_.file("."), std::filesystem::perms::all);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    // Only async-signal-safe calls until the user has changed; the process has other threads.
    if (setresuid(65534, 65534, 65534) != 0) {
      _exit(1);
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, options_.api_socket.data(), options_.api_socket.size());
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      _exit(2);
    }
    char buffer[2048];
    ssize_t got = 0;
    while ((got = read(fd, buffer, sizeof buffer)) > 0) {
      if (write(writing.get(), buffer, static_cast<std::size_t>(got)) != got) {
        _exit(3);
      }
    }
    _exit(0);
  }
  writing.reset();
  std::string said;
  char buffer[2048];
  for (ssize_t got = 0; (got = read(reading.get(), buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<std::size_t>(got));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_THAT(said, HasSubstr("HTTP/1.1 403 Forbidden\r\n"));
  EXPECT_THAT(said, HasSubstr("only root and the user that the daemon runs as (uid 0) may use this API"));
}

TEST_F(Api, TwoInstancesDoNotShareASocket) {
  start();
  TestHost second(options_);
  ASSERT_FALSE(second.started());
  EXPECT_EQ(second.started().error().message,
            "local API: socket " + options_.api_socket + " is in use: this process itself holds " + options_.api_socket +
                ".lock; choose another path for the API, or run without one (--api <path>, --api off)");
  // The first is as it was.
  EXPECT_EQ(ask("GET", "/v1/version").status, 200U);
}

TEST_F(Api, AStaleSocketIsReplaced) {
  {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, options_.api_socket.data(), options_.api_socket.size());
    const UniqueFd dead(socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  start();
  EXPECT_EQ(ask("GET", "/v1/version").status, 200U);
}

TEST_F(Api, WhatIsNoSocketIsLeftAlone) {
  directory_.image("api.sock", 5);
  TestHost host(options_);
  ASSERT_FALSE(host.started());
  EXPECT_THAT(host.started().error().message, HasSubstr("exists and is not a socket"));
  EXPECT_EQ(std::filesystem::file_size(options_.api_socket), 5U);
}

TEST_F(Api, PathsThatCannotBeAreNamed) {
  options_.api_socket = directory_.file(std::string(120, 'x'));
  const TestHost long_path(options_);
  ASSERT_FALSE(long_path.started());
  EXPECT_THAT(long_path.started().error().message, HasSubstr("bytes, 1 to 107 are possible"));
  options_.api_socket = directory_.file("missing/api.sock");
  const TestHost no_directory(options_);
  ASSERT_FALSE(no_directory.started());
  EXPECT_THAT(no_directory.started().error().message, HasSubstr("check that the directory exists and is writable"));
}

TEST(ApiClient, SaysThatNobodyAnswers) {
  const TestDirectory directory;
  const Result<ApiReply> reply = api_request(directory.file("none.sock"), "GET", "/v1/disks");
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().message, "no ringway answers at '" + directory.file("none.sock") +
                                       "'; start one with `ringway serve`, or name its socket with --api");
}

// A socket where somebody listens, but who never answers by itself.
class SilentDaemon {
 public:
  explicit SilentDaemon(int backlog = 8) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    listener_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_.get(), backlog), 0);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] UniqueFd accept() const { return UniqueFd(::accept(listener_.get(), nullptr, nullptr)); }
  std::string error_of(Duration timeout) const {
    const Result<ApiReply> reply = api_request(path_, "GET", "/v1/disks", {}, timeout);
    return reply ? "(none)" : reply.error().message;
  }

 private:
  TestDirectory directory_;
  std::string path_ = directory_.file("api.sock");
  UniqueFd listener_;
};

TEST(ApiClient, SaysThatTheAnswerTakesTooLong) {
  const SilentDaemon daemon;
  EXPECT_EQ(daemon.error_of(Duration::milliseconds(30)),
            "'" + daemon.path() + "' hasn't answered within 30 ms: is the daemon stopped or hung?");
  EXPECT_EQ(daemon.error_of(Duration::seconds(1)),
            "'" + daemon.path() + "' hasn't answered within 1 s: is the daemon stopped or hung?");
}

// As one that is stopped, when many have tried before.
TEST(ApiClient, SaysThatNobodyAccepts) {
  const SilentDaemon daemon(0);
  EXPECT_THAT(daemon.error_of(Duration::milliseconds(1)), HasSubstr("hasn't answered within 1 ms"));  // takes the one place
  EXPECT_THAT(daemon.error_of(Duration::milliseconds(30)),
              HasSubstr("the daemon at '" + daemon.path() + "' doesn't accept connections: is it stopped or hung?"));
}

// The time-out is for the whole answer, not for each of its bytes.
TEST(ApiClient, AnAnswerInDropsTakesTooLongToo) {
  const SilentDaemon daemon;
  std::thread dripping([&] {
    const UniqueFd connection = daemon.accept();
    while (send(connection.get(), "x", 1, MSG_NOSIGNAL) == 1) {
      std::this_thread::yield();
    }
  });
  EXPECT_THAT(daemon.error_of(Duration::milliseconds(50)), HasSubstr("hasn't answered within 50 ms"));
  dripping.join();
}

TEST(ApiClient, SaysThatTheConnectionWasClosed) {
  const SilentDaemon daemon;
  std::thread closing([&] { static_cast<void>(daemon.accept()); });
  EXPECT_EQ(daemon.error_of(Duration::seconds(30)),
            "'" + daemon.path() +
                "' closed the connection without an answer: it is no ringway's API, or the daemon is just ending");
  closing.join();
}

}  // namespace
}  // namespace ringway
