#include "control/config.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ringway {
namespace {

std::string error_of(const auto& result) {
  return result ? "(no error)" : result.error().message;
}

TEST(DiskText, EveryKeyReachesItsMember) {
  const Result<DiskOptions> disk = parse_disk(
      "path=/srv/a.img,socket=/run/a.sock,name=vm1-root,queues=4,ro,serial=ABC "
      "123,engine=threads,connect,direct=off,registered,packed=off,in-order,"
      "inband,write-cache=off,block-size=4096,mode=0660,faults=eio=1/100");
  ASSERT_TRUE(disk) << disk.error().message;
  DiskOptions expected;
  expected.path = "/srv/a.img";
  expected.socket = "/run/a.sock";
  expected.name = "vm1-root";
  expected.queues = 4;
  expected.read_only = true;
  expected.serial = "ABC 123";
  expected.engine = BlkEngine::threads;
  expected.connect = true;
  expected.direct = false;
  expected.registered = true;
  expected.packed = false;
  expected.in_order = true;
  expected.inband = true;
  expected.write_cache = false;
  expected.block_bytes = 4096;
  expected.mode = 0660;
  expected.faults = "eio=1/100";
  EXPECT_EQ(*disk, expected);
}

TEST(DiskText, WhatIsNotGivenKeepsItsDefault) {
  const Result<DiskOptions> disk = parse_disk("path=a.img,socket=a.sock");
  ASSERT_TRUE(disk) << disk.error().message;
  DiskOptions expected;
  expected.path = "a.img";
  expected.socket = "a.sock";
  EXPECT_EQ(*disk, expected);
}

TEST(DiskText, TwoCommasAreOneOfTheValue) {
  const Result<DiskOptions> disk = parse_disk("path=a,,b.img,socket=s,faults=short=1/3,,eio=1/100,,hang@1M,ro");
  ASSERT_TRUE(disk) << disk.error().message;
  EXPECT_EQ(disk->path, "a,b.img");
  EXPECT_EQ(disk->faults, "short=1/3,eio=1/100,hang@1M");
  EXPECT_TRUE(disk->read_only);
}

TEST(DiskText, AValueMayHaveEqualsSigns) {
  const Result<DiskOptions> disk = parse_disk("path=a=b.img,socket=s");
  ASSERT_TRUE(disk) << disk.error().message;
  EXPECT_EQ(disk->path, "a=b.img");
}

TEST(DiskText, EachErrorNamesKeyValueAndWhatIsAllowed) {
  constexpr std::string_view kKeys =
      "path, socket, name, queues, ro, serial, engine, connect, direct, registered, packed, in-order, inband, write-cache, "
      "block-size, "
      "mode, faults";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "'' has an empty part; separate key=value pairs by single commas"},
      {"path=a,socket=s,", "'path=a,socket=s,' has an empty part; separate key=value pairs by single commas"},
      {"=a", "'=a' has no key; write key=value"},
      {"a.img", "'a.img' has no key; write path=a.img,socket=/run/vm1-disk.sock"},
      {"a.img,ro", "'a.img' has no key; write path=a.img,ro,socket=/run/vm1-disk.sock"},
      {"a.img,socket=s", "'a.img' has no key; write path=a.img,socket=s"},
      {"a,,b.img,socket=s", "'a,b.img' has no key; write path=a,,b.img,socket=s"},
      {"/srv/a=b.img", "'/srv/a=b.img' has no key; write path=/srv/a=b.img,socket=/run/vm1-disk.sock"},
      {"ram:64M", "'ram:64M' has no key; write path=ram:64M,socket=/run/vm1-disk.sock"},
      {"quues", fmt::format("unknown key 'quues' of a disk (did you mean 'queues'?); allowed: {}", kKeys)},
      {"socket=s", "a disk needs path=<image>: a file, a block device, ram:<size> or null:<size>"},
      {"path=a", "the disk 'a' needs socket=<path>, the Unix socket where the VMM finds it"},
      {"path=a,socket=s,queue=2", fmt::format("unknown key 'queue' of a disk (did you mean 'queues'?); allowed: {}", kKeys)},
      {"path=a,socket=s,bananas=2", fmt::format("unknown key 'bananas' of a disk; allowed: {}", kKeys)},
      {"path=a,socket=s,queues", "queues: a value is missing; give queues=<value>, a number from 1 to 64"},
      {"path=a,socket=s,queues=0", "queues: '0' is not allowed; give a number from 1 to 64"},
      {"path=a,socket=s,queues=65", "queues: '65' is not allowed; give a number from 1 to 64"},
      {"path=a,socket=s,queues=-1", "queues: '-1' is not allowed; give a number from 1 to 64"},
      {"path=a,socket=s,queues=4x", "queues: '4x' is not allowed; give a number from 1 to 64"},
      {"path=a,socket=s,ro=maybe", "ro: 'maybe' is not allowed; give on, off, true, false, yes or no"},
      {"path=a,socket=s,ro=1", "ro: '1' is not allowed; give on, off, true, false, yes or no"},
      {"path=a,socket=s,ro,ro=off", "'ro' is given twice"},
      {"path=,socket=s", "path: '' is not allowed; give a file, a block device, ram:<size> or null:<size>"},
      {"path=a,socket=s,serial=123456789012345678901",
       "serial: '123456789012345678901' is not allowed; give 1 to 20 printable ASCII characters"},
      {"path=a,socket=s,engine=fast",
       "engine: 'fast' is not allowed; give auto (or automatic), io_uring (or uring), threads or inline"},
      {"path=a,socket=s,block-size=1000", "block-size: '1000' is not allowed; give a power of two from 512 to 65536"},
      {"path=a,socket=s,block-size=256", "block-size: '256' is not allowed; give a power of two from 512 to 65536"},
      {"path=a,socket=s,mode=0999",
       "mode: '0999' is not allowed; give octal permissions from 0600 to 0777 that let the owner read and write"},
      {"path=a,socket=s,mode=0060",
       "mode: '0060' is not allowed; give octal permissions from 0600 to 0777 that let the owner read and write"},
      {"path=a,socket=s,name=a/b",
       "name: 'a/b' is not allowed; give 1 to 64 letters, digits, '-', '_' and '.', not starting with '.'"},
      {"path=a,socket=s,name=..",
       "name: '..' is not allowed; give 1 to 64 letters, digits, '-', '_' and '.', not starting with '.'"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(error_of(parse_disk(text)), message) << text;
  }
}

TEST(DiskText, EverySpellingThatAnErrorNamesIsTaken) {
  for (const char* on : {"on", "true", "yes"}) {
    EXPECT_TRUE(parse_disk(fmt::format("path=a,socket=s,ro={}", on)).value_or(DiskOptions{}).read_only) << on;
  }
  for (const char* off : {"off", "false", "no"}) {
    EXPECT_FALSE(parse_disk(fmt::format("path=a,socket=s,direct={}", off)).value_or(DiskOptions{}).direct) << off;
  }
  for (const char* engine : {"auto", "automatic", "io_uring", "uring", "threads", "inline"}) {
    EXPECT_TRUE(parse_disk(fmt::format("path=a,socket=s,engine={}", engine))) << engine;
  }
  for (const char* unit : {"ns", "us", "ms", "s"}) {
    EXPECT_TRUE(parse_duration(fmt::format("1{}", unit))) << unit;
  }
}

TEST(DiskText, ASizeThatCantBeNamesThoseThatCan) {
  const auto message = [](std::string_view path, unsigned block, std::string_view kind) {
    return fmt::format(
        "path: '{}' is not allowed; give a size that is a multiple of the block size, {}, and less than 8 EiB: a number of "
        "bytes, or one with K, M, G, T or P, such as {}:64M",
        path, block, kind);
  };
  for (const char* path : {"ram:0", "ram:", "ram:511", "ram:1000", "ram:64X", "ram:-512", "ram:1.5M", "ram:8192P"}) {
    EXPECT_EQ(error_of(parse_disk(fmt::format("path={},socket=s", path))), message(path, 512, "ram")) << path;
  }
  EXPECT_EQ(error_of(parse_disk("path=null:0,socket=s")), message("null:0", 512, "null"));
  EXPECT_EQ(error_of(parse_disk("path=ram:1536,socket=s,block-size=1024")), message("ram:1536", 1024, "ram"));
  EXPECT_EQ(error_of(parse_config("[[disk]]\npath = 'ram:0'\nsocket = 's'\n", "h.toml")),
            "h.toml:2:8: " + message("ram:0", 512, "ram"));
  for (const char* path : {"ram:512", "ram:64K", "null:1P", "null:8191P", "ram:64m", "./ram:0"}) {
    EXPECT_EQ(error_of(parse_disk(fmt::format("path={},socket=s", path))), "(no error)");
  }
}

TEST(DiskJson, TheKeysAreThoseOfTheCommandLine) {
  const auto object = nlohmann::json::parse(
      R"({"path": "/a.img", "socket": "/s", "queues": 3, "ro": true, "mode": "0660", "block-size": 4096, "write-cache": false})");
  const Result<DiskOptions> disk = disk_from_json(object);
  ASSERT_TRUE(disk) << disk.error().message;
  EXPECT_EQ(*disk, *parse_disk("path=/a.img,socket=/s,queues=3,ro,mode=0660,block-size=4096,write-cache=off"));
}

TEST(DiskJson, GoesThereAndBack) {
  for (const char* text :
       {"path=/a,socket=/s", "path=ram:64M,socket=/s,ro,queues=7,engine=inline,in-order,direct=off",
        "path=/a,,b,socket=/"
        "s,name=x,serial=y,connect,packed=off,inband,write-cache=off,block-size=512,mode=0777,faults=z"}) {
    const Result<DiskOptions> disk = parse_disk(text);
    ASSERT_TRUE(disk) << disk.error().message;
    const Result<DiskOptions> again = disk_from_json(disk_to_json(*disk));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, *disk);
  }
}

TEST(DiskJson, ErrorsNameTheKey) {
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"[]", R"(a disk is a JSON object such as {"path": "/srv/disk.img", "socket": "/run/vm1-disk.sock"})"},
      {R"({"path": null})",
       R"(path: null is no value; give a file, a block device, ram:<size> or null:<size>, written "path": "/srv/vm1.img")"},
      {R"({"path": 7})",
       R"(path: 7 is a number; give a file, a block device, ram:<size> or null:<size>, written "path": "7")"},
      {R"({"socket": {}})",
       R"(socket: {...} is an object; give the path of a Unix socket, written "socket": "/run/vm1-disk.sock")"},
      {R"({"ro": 1})", R"(ro: 1 is a number; give true or false, written "ro": true)"},
      {R"({"mode": 432})",
       "mode: 432 is a number; give octal permissions from 0600 to 0777 that let the owner read and write, written "
       R"("mode": "0660")"},
      {R"({"queues": 1.5})", R"(queues: 1.5 is a fraction; give a number from 1 to 64, written "queues": 4)"},
      {R"({"queues": true})", R"(queues: true is true or false; give a number from 1 to 64, written "queues": 4)"},
      {R"({"queues": -3})", "queues: '-3' is not allowed; give a number from 1 to 64"},
      {R"({"path": "a.img", "socket": "/s"})",
       "path: 'a.img' is not allowed; give an absolute path: the daemon doesn't share your working directory"},
      {R"({"path": "/a.img", "socket": "s"})",
       "socket: 's' is not allowed; give an absolute path: the daemon doesn't share your working directory"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(error_of(disk_from_json(nlohmann::json::parse(text))), message) << text;
  }
}

TEST(Toml, AllOfIt) {
  const Result<ServeConfig> config = parse_config(R"(
stop-deadline = "750ms"
[workers]
count = 2
cpus = [2, "4-5"]
poll = "fixed=50us"
engine = "epoll"
[api]
socket = "/run/other.sock"
[[disk]]
path = "/srv/a.img"
socket = "/run/a.sock"
queues = 4
ro = true
mode = 0o660
[[disk]]
path = "null:1G"
socket = "/run/b.sock"
write-cache = false
)",
                                                  "host.toml");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->stop_deadline, Duration::milliseconds(750));
  EXPECT_EQ(config->worker_count, 2U);
  EXPECT_EQ(config->workers.cpus, (std::vector<int>{2, 4, 5}));
  EXPECT_EQ(config->workers.poll, "fixed=50us");
  EXPECT_EQ(config->workers.engine, LoopEngine::epoll);
  EXPECT_EQ(config->api_socket, "/run/other.sock");
  ASSERT_EQ(config->disks.size(), 2U);
  EXPECT_EQ(config->disks[0], *parse_disk("path=/srv/a.img,socket=/run/a.sock,queues=4,ro,mode=0660"));
  EXPECT_EQ(config->disks[1], *parse_disk("path=null:1G,socket=/run/b.sock,write-cache=off"));
}

TEST(Toml, AnEmptyFileIsTheDefaults) {
  const Result<ServeConfig> config = parse_config("", "host.toml");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_TRUE(config->disks.empty());
  EXPECT_EQ(config->worker_count, std::nullopt);
  EXPECT_EQ(config->stop_deadline, limits::kStopDeadline);
}

TEST(Toml, EachErrorNamesLineAndColumn) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[workers]\ncuont = 2\n",
       "h.toml:2:1: unknown key 'cuont' in [workers] (did you mean 'count'?); allowed: count, cpus, poll, engine"},
      {"[worker]\n",
       "h.toml:1:2: unknown key 'worker' at the top level (did you mean 'workers'?); allowed: workers, api, stop-deadline, "
       "disk"},
      {"[workers]\n\ncount = 0\n", "h.toml:3:9: count: '0' is not allowed; give a number from 1 to 256"},
      {"[workers]\ncpus = \"a\"\n", "h.toml:2:8: cpus: 'a' is not allowed; give CPU numbers such as 0,2 or 4-7"},
      {"[workers]\nengine = 'uring'\n", "h.toml:2:10: engine: 'uring' is not allowed; give auto, io_uring or epoll"},
      {"workers = 3\n", "h.toml:1:11: 'workers' must be a table, written as [workers]"},
      {"[api]\nsocket = ''\n", "h.toml:2:10: socket: '' is not allowed; give the path of a Unix socket, or \"off\""},
      {"[disk]\npath = 'a'\n", "h.toml:1:1: disks are written as [[disk]], with two brackets, once for each disk"},
      {"[[disk]]\npath = 'a'\nsocket = 's'\nqueues = 99\n",
       "h.toml:4:10: queues: '99' is not allowed; give a number from 1 to 64"},
      {"[[disk]]\npath = 'a'\nsocket = 1.5\n",
       "h.toml:3:10: socket: 1.5 is a fraction; give the path of a Unix socket, written socket = \"1.5\""},
      {"[[disk]]\npath = 'a'\n", "h.toml:1:1: the disk 'a' needs socket=<path>, the Unix socket where the VMM finds it"},
      {"stop-deadline = '5'\n",
       "h.toml:1:17: stop-deadline: '5' is not allowed; give a number with its unit (ns, us, ms or s), such as 5s or 500ms"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(error_of(parse_config(text, "h.toml")), message) << text;
  }
  // The parser's own words, so only the place is asserted.
  EXPECT_TRUE(error_of(parse_config("[workers]\ncount = = 2\n", "h.toml")).starts_with("h.toml:2:9: "));
}

TEST(Toml, AValueOfTheWrongTypeIsShownAsItShouldBe) {
  constexpr std::string_view kImage = "a file, a block device, ram:<size> or null:<size>";
  constexpr std::string_view kMode = "octal permissions from 0600 to 0777 that let the owner read and write";
  // The line, its section, and what is said behind "h.toml:2:<column>: ".
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"[[disk]]", "socket = 5", R"(socket: 5 is a number; give the path of a Unix socket, written socket = "5")"},
      {"[[disk]]", "path = 7", fmt::format(R"(path: 7 is a number; give {}, written path = "7")", kImage)},
      {"[[disk]]", "path = true", fmt::format(R"(path: true is true or false; give {}, written path = "true")", kImage)},
      {"[[disk]]", "path = ['a']", fmt::format(R"(path: [...] is a list; give {}, written path = "/srv/vm1.img")", kImage)},
      {"[[disk]]", "path = {a=1}",
       fmt::format(R"(path: {{...}} is a table; give {}, written path = "/srv/vm1.img")", kImage)},
      {"[[disk]]", "serial = 2026-11-30",
       R"(serial: 2026-11-30 is a date or time; give 1 to 20 printable ASCII characters, written serial = "2026-11-30")"},
      {"[[disk]]", "engine = 5",
       "engine: 5 is a number; give auto (or automatic), io_uring (or uring), threads or inline, written engine = "
       "\"threads\""},
      {"[[disk]]", "ro = 'true'", R"(ro: "true" is a string; give true or false, written ro = true)"},
      {"[[disk]]", "direct = \"off\"", R"(direct: "off" is a string; give true or false, written direct = false)"},
      {"[[disk]]", "ro = 0", "ro: 0 is a number; give true or false, written ro = false"},
      {"[[disk]]", "queues = '3'", R"(queues: "3" is a string; give a number from 1 to 64, written queues = 3)"},
      {"[[disk]]", "queues = 4.0", "queues: 4.0 is a fraction; give a number from 1 to 64, written queues = 4"},
      {"[[disk]]", "mode = 640",
       fmt::format(R"(mode: 640 is not octal; give {}, written mode = 0o640 or mode = "640")", kMode)},
      {"[[disk]]", "mode = true",
       fmt::format(R"(mode: true is true or false; give {}, written mode = 0o660 or mode = "0660")", kMode)},
      {"[workers]", "count = '2'", R"(count: "2" is a string; give a number from 1 to 256, written count = 2)"},
      {"[workers]", "cpus = true",
       "cpus: true is true or false; give CPU numbers such as 0,2 or 4-7, written cpus = [2, 3]"},
      {"[workers]", "poll = 50",
       R"(poll: 50 is a number; give never, always, or a time such as fixed=50us, written poll = "fixed=50us")"},
      {"[workers]", "engine = false",
       R"(engine: false is true or false; give auto, io_uring or epoll, written engine = "auto")"},
      {"[api]", "socket = 5", R"(socket: 5 is a number; give the path of a Unix socket, or "off", written socket = "5")"},
      {"", "stop-deadline = 5",
       "stop-deadline: 5 is a number; give a number with its unit (ns, us, ms or s), such as 5s or 500ms, written "
       "stop-deadline = \"5s\""},
      // No TOML at all.
      {"[[disk]]", "path = /srv/a.img  # the root",
       fmt::format(R"(path: /srv/a.img is not in quotes; give {}, written path = "/srv/a.img")", kImage)},
      {"[[disk]]", "path = disk.img",
       fmt::format(R"(path: disk.img is not in quotes; give {}, written path = "disk.img")", kImage)},
      {"[[disk]]",
       "socket = ", R"(socket: a value is missing; give the path of a Unix socket, written socket = "/run/vm1-disk.sock")"},
      {"[[disk]]", "mode = 0660",
       fmt::format(R"(mode: 0660 is not a value in TOML; give {}, written mode = 0o660 or mode = "0660")", kMode)},
      {"[[disk]]", "ro = on", "ro: on is not a value in TOML; give true or false, written ro = true"},
      {"[[disk]]", "direct = no", "direct: no is not a value in TOML; give true or false, written direct = false"},
      {"[[disk]]", "queues = 04", "queues: 04 is not a value in TOML; give a number from 1 to 64, written queues = 4"},
      {"[workers]", "cpus = 0,1",
       R"(cpus: 0,1 is not in quotes; give CPU numbers such as 0,2 or 4-7, written cpus = "0,1")"},
      {"[workers]", "engine = epoll",
       R"(engine: epoll is not in quotes; give auto, io_uring or epoll, written engine = "epoll")"},
      {"[ api ]", "socket = off",
       R"(socket: off is not in quotes; give the path of a Unix socket, or "off", written socket = "off")"},
      {"", "stop-deadline = 5s",
       "stop-deadline: 5s is not in quotes; give a number with its unit (ns, us, ms or s), such as 5s or 500ms, written "
       "stop-deadline = \"5s\""},
  };
  for (const auto& [section, line, message] : cases) {
    const std::string error = error_of(parse_config(fmt::format("{}\n{}\n", section, line), "h.toml"));
    EXPECT_THAT(error, ::testing::StartsWith("h.toml:2:")) << line;
    EXPECT_THAT(error, ::testing::EndsWith(": " + message)) << line;
    // What it advises is right.
    const std::string advice = message.substr(message.find(", written ") + 10);
    const std::string advised = advice.substr(0, advice.find(" or mode"));
    const std::string rest = section == "[[disk]]" && !advised.starts_with("path") ? "path = 'a'\n" : "";
    const std::string socket = section == "[[disk]]" && !advised.starts_with("socket") ? "socket = 's'\n" : "";
    EXPECT_EQ(error_of(parse_config(fmt::format("{}\n{}\n{}{}", section, advised, rest, socket), "h.toml")), "(no error)")
        << line;
  }
  // Not a value of ours: the parser's own words.
  for (const char* line : {"path = \"/srv/a.img", "bananas = on", "path /srv/a.img"}) {
    const std::string error = error_of(parse_config(fmt::format("[[disk]]\n{}\n", line), "h.toml"));
    EXPECT_THAT(error, ::testing::StartsWith("h.toml:2:")) << line;
    EXPECT_THAT(error, ::testing::Not(::testing::HasSubstr("written"))) << line;
  }
}

TEST(Workers, OneForEachCpuUnlessTheirNumberIsGiven) {
  const auto settled = [](std::optional<std::uint32_t> count, std::vector<int> cpus) {
    ServeConfig config;
    config.worker_count = count;
    config.workers.cpus = std::move(cpus);
    const Result<> result = settle_workers(config);
    return result ? fmt::to_string(config.workers.workers) : result.error().message;
  };
  EXPECT_EQ(settled({}, {}), "1");
  EXPECT_EQ(settled({}, {7}), "1");
  EXPECT_EQ(settled({}, {0, 1, 5}), "3");
  EXPECT_EQ(settled(3, {}), "3");
  EXPECT_EQ(settled(3, {0, 1, 5}), "3");
  EXPECT_EQ(settled(4, {0, 1}), "4");  // in turn
  EXPECT_EQ(settled(1, {0, 1}),
            "2 CPUs for 1 worker: name as many CPUs as there are workers, or fewer, or leave the number of workers out "
            "(--workers, or count in the file) and each CPU gets one");
  EXPECT_EQ(settled({}, std::vector<int>(256)), "256");
  EXPECT_EQ(settled({}, std::vector<int>(257)),
            "257 CPUs would have a worker each, and 256 workers are the most: name fewer");
}

TEST(Toml, AMissingFileIsNamed) {
  EXPECT_EQ(error_of(load_config("/nonexistent/host.toml")),
            "can't open the configuration file '/nonexistent/host.toml': No such file or directory");
}

TEST(Words, Cpus) {
  EXPECT_EQ(*parse_cpus("0"), (std::vector<int>{0}));
  EXPECT_EQ(*parse_cpus("3,1,4-6"), (std::vector<int>{3, 1, 4, 5, 6}));
  for (const char* bad : {"", ",", "1,", "-1", "2-1", "1-", "x", "0-99999", "1 2"}) {
    EXPECT_EQ(error_of(parse_cpus(bad)), fmt::format("'{}' is not allowed; give CPU numbers such as 0,2 or 4-7", bad));
  }
}

TEST(Words, Durations) {
  EXPECT_EQ(*parse_duration("5s"), Duration::seconds(5));
  EXPECT_EQ(*parse_duration("250ms"), Duration::milliseconds(250));
  EXPECT_EQ(*parse_duration("50us"), Duration::microseconds(50));
  EXPECT_EQ(*parse_duration("7ns"), Duration::nanoseconds(7));
  EXPECT_EQ(*parse_duration("0s"), Duration{});
  for (const char* bad : {"", "5", "s", "-5s", "5 s", "1.5s", "99999999999999s", "5m"}) {
    EXPECT_EQ(error_of(parse_duration(bad)),
              fmt::format("'{}' is not allowed; give a number with its unit (ns, us, ms or s), such as 5s or 500ms", bad));
  }
}

TEST(Words, CpusAsText) {
  EXPECT_EQ(cpus_text({}), "");
  EXPECT_EQ(cpus_text({3}), "3");
  EXPECT_EQ(cpus_text({0, 1}), "0-1");
  EXPECT_EQ(cpus_text({0, 2, 4, 5, 6, 7}), "0,2,4-7");
  EXPECT_EQ(*parse_cpus(cpus_text({0, 1, 2, 9, 11, 12})), (std::vector<int>{0, 1, 2, 9, 11, 12}));
}

TEST(Words, DefaultNames) {
  EXPECT_EQ(default_disk_name("/srv/vm1.img"), "vm1");
  EXPECT_EQ(default_disk_name("disk"), "disk");
  EXPECT_EQ(default_disk_name("/dev/vg0/my data"), "my-data");
  EXPECT_EQ(default_disk_name("ram:64M"), "ram");
  EXPECT_EQ(default_disk_name("null:1G"), "null");
  EXPECT_EQ(default_disk_name("/"), "disk");
  EXPECT_EQ(default_disk_name("/srv/.hidden"), "hidden");
  EXPECT_TRUE(is_disk_name(default_disk_name("/srv/" + std::string(200, 'x') + ".img")));
}

}  // namespace
}  // namespace ringway
