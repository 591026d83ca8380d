#include "control/config.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "control/test_host.hpp"

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
      {"path=a, ,socket=s", "'path=a, ,socket=s' has an empty part; separate key=value pairs by single commas"},
      {"=a", "'=a' has no key; write key=value"},
      {"a.img", "'a.img' has no key; write path=a.img,socket=/run/vm1-disk.sock"},
      {"a.img,ro", "'a.img' has no key; write path=a.img,ro,socket=/run/vm1-disk.sock"},
      {"a.img,socket=s", "'a.img' has no key; write path=a.img,socket=s"},
      {"a,,b.img,socket=s", "'a,b.img' has no key; write path=a,,b.img,socket=s"},
      {"/srv/a=b.img", "'/srv/a=b.img' has no key; write path=/srv/a=b.img,socket=/run/vm1-disk.sock"},
      {"ram:64M", "'ram:64M' has no key; write path=ram:64M,socket=/run/vm1-disk.sock"},
      {"quues", fmt::format("unknown key 'quues' of a disk (did you mean 'queues'?); allowed: {}", kKeys)},
      {"socket=s", "a disk needs path=<image>: a file, a block device, ram:<size> or null:<size>"},
      {"path=a, socket=s",
       "' socket=s' has a space beside its key; write socket=s, with commas and no spaces between the pairs"},
      {"path=a,socket = s",
       "'socket = s' has a space beside its key; write socket=s, with commas and no spaces between the pairs"},
      {"path=a,socket=s, ro", "' ro' has a space beside its key; write ro, with commas and no spaces between the pairs"},
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
        "s,name=x,serial=y,connect,packed=off,inband,write-cache=off,block-size=512,mode=0777,faults=hang"}) {
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
      {R"({"path": "/a.img"})", R"(the disk '/a.img' needs "socket": "<path>", the Unix socket where the VMM finds it)"},
      {R"({"socket": "/s"})", R"(a disk needs "path": "<image>": a file, a block device, ram:<size> or null:<size>)"},
      {R"({"queues": true})", R"(queues: true is a boolean; give a number from 1 to 64, written "queues": 4)"},
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

constexpr std::string_view kNetKeyNames =
    "tap, fds, null, loop, source, switch, socket, name, queues, mac, mtu, bridge, vlan, trunk, isolated, mac-check, ip, "
    "connect, packed, in-order, inband, mergeable, offloads, control, speed, mode";
constexpr std::string_view kInterface =
    "the name of an interface: 1 to 15 ASCII characters without spaces, '/', ':' and '%', and neither '.' nor '..'";

TEST(NetText, EveryKeyReachesItsMember) {
  const Result<NetOptions> net = parse_net(
      "tap=tap0,socket=/run/n.sock,name=vm1,queues=4,mac=52:54:00:12:34:56,mtu=9000,bridge=br0,connect,packed=off,in-order,"
      "inband,mergeable=off,offloads=off,control=off,speed=10000,mode=0660");
  ASSERT_TRUE(net) << net.error().message;
  NetOptions expected;
  expected.tap = "tap0";
  expected.socket = "/run/n.sock";
  expected.name = "vm1";
  expected.queues = 4;
  expected.mac = {0x52, 0x54, 0x00, 0x12, 0x34, 0x56};
  expected.mtu = 9000;
  expected.bridge = "br0";
  expected.connect = true;
  expected.packed = false;
  expected.in_order = true;
  expected.inband = true;
  expected.mergeable = false;
  expected.offloads = false;
  expected.control = false;
  expected.speed_mbits = 10000;
  expected.mode = 0660;
  EXPECT_EQ(*net, expected);
}

TEST(NetText, EachPort) {
  EXPECT_TRUE(parse_net("null,socket=s").value_or(NetOptions{}).null);
  EXPECT_TRUE(parse_net("loop=on,socket=s").value_or(NetOptions{}).loop);
  EXPECT_EQ(parse_net("source,socket=s").value_or(NetOptions{}).source_bytes, 60U);
  EXPECT_EQ(parse_net("source=9014,socket=s").value_or(NetOptions{}).source_bytes, 9014U);
  EXPECT_EQ(parse_net("fds=3:17,socket=s").value_or(NetOptions{}).fds, (std::vector<int>{3, 17}));
  EXPECT_EQ(parse_net("switch=lan0,trunk=10,,20,socket=s").value_or(NetOptions{}).trunk,
            (std::vector<std::uint16_t>{10, 20}));
  EXPECT_EQ(parse_net("switch=lan0,socket=s").value_or(NetOptions{}).on_switch, "lan0");
  EXPECT_TRUE(parse_net("switch=lan0,tap=tap0").value_or(NetOptions{}).is_uplink());
  EXPECT_EQ(parse_net("null=off,loop,source=off,socket=s").value_or(NetOptions{}).loop, true);
}

TEST(NetText, EachErrorNamesKeyValueAndWhatIsAllowed) {
  constexpr std::string_view kFds = "different descriptors beyond 2, one for each pair, such as 3 or 3:4";
  constexpr std::string_view kMac = "six bytes in hexadecimal such as 52:54:00:12:34:56, of which the first is even";
  constexpr std::string_view kNoPort =
      "a network card needs a port for its frames: tap=<interface>, switch=<name>, null, "
      "loop or source";
  std::vector<std::pair<std::string, std::string>> cases = {
      {"", "'' has an empty part; separate key=value pairs by single commas"},
      {"tap0", "'tap0' has no key; write tap=tap0,socket=/run/vm1-net.sock"},
      {"vnet7,socket=s", "'vnet7' has no key; write tap=vnet7,socket=s"},
      {"socket=s", std::string(kNoPort)},
      {"null=off,socket=s", std::string(kNoPort)},
      {"tap", fmt::format("tap: a value is missing; give tap=<value>, {}", kInterface)},
      {"loop", "the network card 'loop' needs socket=<path>, the Unix socket where the VMM finds it"},
      {"loop,tap=t,socket=s",
       "a network card has one port for its frames, and tap and loop are given; leave all but one out"},
      {"tap=t,fds=3,socket=s",
       "a network card has one port for its frames, and tap and fds are given; leave all but one out"},
      {"switch=,socket=s", "switch: '' is not allowed; give a name of letters, digits, '-', '_' and '.', 64 bytes at most"},
      {"switch=lan0,vlan=4095,socket=s", "vlan: '4095' is not allowed; give a number from 1 to 4094"},
      {"switch=lan0,trunk=1-,socket=s",
       "trunk: '1-' is not allowed; give different numbers from 1 to 4094, such as 10+20 or 10-19+30"},
      {"switch=lan0,ip=10.0.0,socket=s",
       "ip: '10.0.0' is not allowed; give IP addresses such as 10.0.0.2 or 10.0.0.2+2001:db8::2"},
      {"tap=tap0,isolated,socket=s", "isolated: only a port of a switch has that, and the port of this card is tap"},
      {"switch=lan0", "the network card 'lan0' needs socket=<path>, the Unix socket where the VMM finds it"},
      {"nul,socket=s", fmt::format("unknown key 'nul' of a network card (did you mean 'null'?); allowed: {}", kNetKeyNames)},
      {"loop,sokcet=s",
       fmt::format("unknown key 'sokcet' of a network card (did you mean 'socket'?); allowed: {}", kNetKeyNames)},
      {"path=a.img,socket=s",
       fmt::format("unknown key 'path' of a network card (a disk has it); allowed: {}", kNetKeyNames)},
      {"loop,socket=s,loop", "'loop' is given twice"},
      {"loop,socket=s,bridge=br0", "bridge: only a tap can be a port of a bridge, and the port of this card is loop"},
      {"loop,socket=s,queues=128", "queues: '128' is not allowed; give a number from 1 to 127, or 128 with control=off"},
      {"tap=null,socket=s",
       "tap: 'null' is a port of its own, and no interface may have that name here (did you mean null instead of "
       "tap=null?)"},
      {"tap=source,socket=s",
       "tap: 'source' is a port of its own, and no interface may have that name here (did you mean source instead of "
       "tap=source?)"},
      {"fds=3:4,socket=s,queues=3", "queues: 3 given with 2 descriptors in fds; give one descriptor for each pair"},
  };
  for (const char* name :
       {"", "0123456789abcdef", "a b", "a/b", "a:b", "a%b", ".", "..", "a\x7f", "a\x80", "tap\xc3\xa4", "a\xff", "a\tb"}) {
    cases.emplace_back(fmt::format("socket=s,tap={}", name),
                       fmt::format("tap: '{}' is not allowed; give {}", name, kInterface));
  }
  for (const char* fds : {"", "2", "-1", "3:", "3:3", "x", "3 4", "99999999999"}) {
    cases.emplace_back(fmt::format("socket=s,fds={}", fds), fmt::format("fds: '{}' is not allowed; give {}", fds, kFds));
  }
  for (const char* mac : {"", "52:54:00:12:34", "33:33:00:00:00:01", "00:00:00:00:00:00", "525400123456"}) {
    cases.emplace_back(fmt::format("loop,socket=s,mac={}", mac),
                       fmt::format("mac: '{}' is not allowed; give {}", mac, kMac));
  }
  for (const char* source : {"", "59", "9015", "-60", "maybe"}) {
    cases.emplace_back(
        fmt::format("socket=s,source={}", source),
        fmt::format("source: '{}' is not allowed; give on, off, or the length of a frame from 60 to 9014", source));
  }
  for (const char* mtu : {"0", "67", "65536", "1.5k"}) {
    cases.emplace_back(fmt::format("loop,socket=s,mtu={}", mtu),
                       fmt::format("mtu: '{}' is not allowed; give a number from 68 to 65535", mtu));
  }
  for (const char* speed : {"0", "2147483648", "10G"}) {
    cases.emplace_back(fmt::format("loop,socket=s,speed={}", speed),
                       fmt::format("speed: '{}' is not allowed; give megabits a second from 1 to 2147483647", speed));
  }
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(error_of(parse_net(text)), message) << text;
  }
  EXPECT_THAT(error_of(parse_disk("tap=tap0,socket=s")),
              ::testing::StartsWith("unknown key 'tap' of a disk (a network card has it); allowed: path, "));
}

TEST(NetText, TheBoundsAreAllowed) {
  for (const char* text : {"loop,socket=s,mtu=68", "loop,socket=s,mtu=65535", "loop,socket=s,queues=127",
                           "loop,socket=s,queues=128,control=off", "source=60,socket=s", "loop,socket=s,speed=2147483647",
                           "tap=0123456789abcde,socket=s", "loop,socket=s,mac=02:00:00:00:00:00"}) {
    EXPECT_EQ(error_of(parse_net(text)), "(no error)") << text;
  }
}

TEST(NetJson, TheKeysAreThoseOfTheCommandLine) {
  const auto object = nlohmann::json::parse(
      R"({"tap": "tap0", "socket": "/s", "queues": 3, "mtu": 1400, "mac": "52:54:00:12:34:56", "mergeable": false})");
  const Result<NetOptions> net = net_from_json(object);
  ASSERT_TRUE(net) << net.error().message;
  EXPECT_EQ(*net, *parse_net("tap=tap0,socket=/s,queues=3,mtu=1400,mac=52:54:00:12:34:56,mergeable=off"));
  for (const auto& [source, bytes] : {std::pair{"true", 60U}, {"1500", 1500U}, {"\"700\"", 700U}}) {
    const Result<NetOptions> card =
        net_from_json(nlohmann::json::parse(fmt::format(R"({{"source": {}, "socket": "/s"}})", source)));
    ASSERT_TRUE(card) << card.error().message;
    EXPECT_EQ(card->source_bytes, bytes);
  }
}

TEST(NetJson, ListsAreAsInTheFile) {
  const auto net = net_from_json(nlohmann::json::parse(
      R"({"switch": "lan0", "socket": "/s", "trunk": [10, "20-21"], "ip": ["10.0.0.2", "2001:db8::2"]})"));
  ASSERT_TRUE(net) << net.error().message;
  EXPECT_EQ(*net, *parse_net("switch=lan0,socket=/s,trunk=10+20-21,ip=10.0.0.2+2001:db8::2"));
  EXPECT_EQ(net_from_json(nlohmann::json::parse(R"({"switch": "lan0", "socket": "/s", "trunk": 7})"))->trunk,
            std::vector<std::uint16_t>{7});
  EXPECT_EQ(error_of(net_from_json(nlohmann::json::parse(R"({"switch": "lan0", "socket": "/s", "trunk": [null]})"))),
            "trunk: null stands in its list; give different numbers from 1 to 4094, such as 10+20 or 10-19+30, written "
            "\"trunk\": [10, 20]");
}

TEST(NetJson, GoesThereAndBack) {
  for (const char* text :
       {"loop,socket=/s", "source=1500,socket=/s,queues=7,in-order,name=x,mode=0777",
        "switch=lan-0.a_b,socket=/s,vlan=7,trunk=7+9-11,isolated,mac-check,mac=52:54:00:12:34:56,ip=10.0.0.2+2001:db8::2",
        "switch=lan0,tap=tap0,queues=2,bridge=br0,vlan=4094",
        "tap=t,socket=/s,connect,packed=off,inband,mergeable=off,offloads=off,control=off,speed=1,mtu=68,bridge=b,"
        "mac=52:54:00:12:34:56"}) {
    const Result<NetOptions> net = parse_net(text);
    ASSERT_TRUE(net) << net.error().message;
    const Result<NetOptions> again = net_from_json(net_to_json(*net));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, *net);
  }
}

TEST(NetJson, ErrorsNameTheKey) {
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"[]", R"(a network card is a JSON object such as {"tap": "tap0", "socket": "/run/vm1-net.sock"})"},
      {R"({"tap": 7})", fmt::format(R"(tap: 7 is a number; give {}, written "tap": "7")", kInterface)},
      {R"({"loop": 1})", R"(loop: 1 is a number; give true or false, written "loop": true)"},
      {R"({"source": 1.5})",
       R"(source: 1.5 is a fraction; give true, false, or the length of a frame from 60 to 9014, written "source": 1500)"},
      {R"({"loop": true, "socket": "s"})",
       "socket: 's' is not allowed; give an absolute path: the daemon doesn't share your working directory"},
      {R"({"tap": "loop", "socket": "/s"})",
       R"(tap: 'loop' is a port of its own, and no interface may have that name here (did you mean "loop": true instead of )"
       R"("tap": "loop"?))"},
      {R"({"socket": "/s"})",
       R"(a network card needs a port for its frames: "tap": "<interface>", "switch": "<name>", "null": true, "loop": true or "source": true)"},
      {R"({"fds": [3], "socket": "/s"})",
       "fds: those are descriptors of the daemon's process; only its own command line and file can name them"},
      {R"({"fds": "3", "socket": "/s"})",
       "fds: those are descriptors of the daemon's process; only its own command line and file can name them"},
      {R"({"path": "/a"})", fmt::format("unknown key 'path' of a network card (a disk has it); allowed: {}", kNetKeyNames)},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(error_of(net_from_json(nlohmann::json::parse(text))), message) << text;
  }
}

TEST(Toml, AllOfIt) {
  const Result<ServeConfig> config = parse_config(R"(
stop-deadline = "750ms"
[workers]
count = 2
cpus = [2, "4-5"]
poll = "fixed=50us"
loop = "epoll"
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
[[net]]
tap = "tap0"
socket = "/run/n.sock"
queues = 4
mergeable = false
[[net]]
fds = 5
socket = "/run/m.sock"
[[net]]
source = true
socket = "/run/o.sock"
[[net]]
fds = [6, 9, "7:8"]
socket = "/run/p.sock"
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
  ASSERT_EQ(config->nets.size(), 4U);
  EXPECT_EQ(config->nets[0], *parse_net("tap=tap0,socket=/run/n.sock,queues=4,mergeable=off"));
  EXPECT_EQ(config->nets[1], *parse_net("fds=5,socket=/run/m.sock"));
  EXPECT_EQ(config->nets[2], *parse_net("source,socket=/run/o.sock"));
  EXPECT_EQ(config->nets[3], *parse_net("fds=6:9:7:8,socket=/run/p.sock"));
  EXPECT_EQ(config->cpus_place, "host.toml:5:8");
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
       "h.toml:2:1: unknown key 'cuont' in [workers] (did you mean 'count'?); allowed: count, cpus, poll, loop"},
      {"[worker]\n",
       "h.toml:1:2: unknown key 'worker' at the top level (did you mean 'workers'?); allowed: stop-deadline, workers, api, "
       "disk, net"},
      {"[workers]\n\ncount = 0\n", "h.toml:3:9: count: '0' is not allowed; give a number from 1 to 256"},
      {"[workers]\ncpus = \"a\"\n", "h.toml:2:8: cpus: 'a' is not allowed; give CPU numbers such as 0,2 or 4-7"},
      {"[workers]\nloop = 'uring'\n", "h.toml:2:8: loop: 'uring' is not allowed; give auto, io_uring or epoll"},
      {"workers = 3\n", "h.toml:1:11: 'workers' must be a table, written as [workers]"},
      {"[api]\nsocket = ''\n", "h.toml:2:10: socket: '' is not allowed; give the path of a Unix socket, or \"off\""},
      {"[disk]\npath = 'a'\n", "h.toml:1:1: disks are written as [[disk]], with two brackets, once for each disk"},
      {"[[disk]]\npath = 'a'\nsocket = 's'\nqueues = 99\n",
       "h.toml:4:10: queues: '99' is not allowed; give a number from 1 to 64"},
      {"[[disk]]\npath = 'a'\nsocket = 1.5\n",
       "h.toml:3:10: socket: 1.5 is a fraction; give the path of a Unix socket, written socket = \"1.5\""},
      {"[workers]\ncpus = [0, 2, '1-3']\n",
       "h.toml:2:8: cpus: '0,2,1-3' is not allowed; give each CPU once (CPU 2 is there twice)"},
      {"[workers]\ncpus = [0, [1]]\n",
       "h.toml:2:12: cpus: [...] is a list; give CPU numbers such as 0,2 or 4-7, written cpus = [2, 3]"},
      {"[api]\nsocket = 'on'\n",
       "h.toml:2:10: socket: 'on' doesn't say where; give the path of a Unix socket, or nothing for the default path"},
      {"[api]\nsocket = 'false'\n", "h.toml:2:10: socket: 'false' is not allowed; give off, or the path of a Unix socket"},
      {"[[net]]\nfds = [3, 3]\nsocket = 's'\n",
       "h.toml:2:7: fds: '3,3' is not allowed; give different descriptors beyond 2, one for each pair, such as 3 or 3:4"},
      {"[[net]]\ntap = 'loop'\nsocket = 's'\n",
       "h.toml:2:7: tap: 'loop' is a port of its own, and no interface may have that name here (did you mean loop = true "
       "instead of tap = \"loop\"?)"},
      {"[[net]]\nsocket = 's'\n",
       "h.toml:1:1: a network card needs a port for its frames: tap = \"<interface>\", switch = \"<name>\", null = true, "
       "loop = true or source = "
       "true"},
      {"[[net]]\nloop = true\nsocket = 's'\nqueues = 128\n",
       "h.toml:4:10: queues: '128' is not allowed; give a number from 1 to 127, or 128 with control = false"},
      {"[[disk]]\nsocket = 's'\n",
       "h.toml:1:1: a disk needs path = \"<image>\": a file, a block device, ram:<size> or null:<size>"},
      {"[[disk]]\npath = 'a'\n",
       "h.toml:1:1: the disk 'a' needs socket = \"<path>\", the Unix socket where the VMM finds it"},
      {"[net]\nloop = true\n",
       "h.toml:1:1: network cards are written as [[net]], with two brackets, once for each network card"},
      {"[[net]]\nloop = true\n",
       "h.toml:1:1: the network card 'loop' needs socket = \"<path>\", the Unix socket where the VMM finds it"},
      {"[[net]]\nloop = true\nsocket = 's'\nbridge = 'br0'\n",
       "h.toml:4:10: bridge: only a tap can be a port of a bridge, and the port of this card is loop"},
      {"[[net]]\nlop = true\n",
       fmt::format("h.toml:2:1: unknown key 'lop' of a network card (did you mean 'loop'?); allowed: {}", kNetKeyNames)},
      {"stop-deadline = '999us'\n",
       "h.toml:1:17: stop-deadline: '999us' is not allowed; give at least 1ms: the requests in flight need some time"},
      {"stop-deadline = '5'\n",
       "h.toml:1:17: stop-deadline: '5' is not allowed; give a number with its unit (ns, us, ms or s), such as 5s or 500ms"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(error_of(parse_config(text, "h.toml")), message) << text;
  }
  const std::string window = error_of(parse_config("[workers]\npoll = '50us'\n", "h.toml"));
  EXPECT_THAT(window, ::testing::StartsWith("h.toml:2:8: poll: poll policy \"50us\": there is no such policy; "));
  EXPECT_THAT(window, ::testing::EndsWith(" (did you mean 'fixed=50us'?)"));
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
      {"[[disk]]", "path = true", fmt::format(R"(path: true is a boolean; give {}, written path = "true")", kImage)},
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
       fmt::format(R"(mode: true is a boolean; give {}, written mode = 0o660 or mode = "0660")", kMode)},
      {"[[net]]", "tap = tap0", fmt::format(R"(tap: tap0 is not in quotes; give {}, written tap = "tap0")", kInterface)},
      {"[[net]]", "source = 'on'",
       R"(source: "on" is a string; give true, false, or the length of a frame from 60 to 9014, written source = true)"},
      {"[[net]]", "source = '99'",
       R"(source: "99" is a string; give true, false, or the length of a frame from 60 to 9014, written source = 99)"},
      {"[[net]]", "queues = '3'", R"(queues: "3" is a string; give a number from 1 to 128, written queues = 3)"},
      {"[[net]]", "mac = 52:54:00:12:34:56",
       "mac: 52:54:00:12:34:56 is not in quotes; give six bytes in hexadecimal such as 52:54:00:12:34:56, of which the "
       "first is even, written mac = \"52:54:00:12:34:56\""},
      {"[[net]]", "loop = on", "loop: on is not a value in TOML; give true or false, written loop = true"},
      {"[workers]", "count = '2'", R"(count: "2" is a string; give a number from 1 to 256, written count = 2)"},
      {"[workers]", "cpus = true", "cpus: true is a boolean; give CPU numbers such as 0,2 or 4-7, written cpus = [2, 3]"},
      {"[workers]", "poll = 50",
       R"(poll: 50 is a number; give adaptive, never, always, grow_shrink, or a time such as fixed=50us, written poll = "fixed=50us")"},
      {"[workers]", "loop = false", R"(loop: false is a boolean; give auto, io_uring or epoll, written loop = "auto")"},
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
      {"[workers]", "loop = epoll", R"(loop: epoll is not in quotes; give auto, io_uring or epoll, written loop = "epoll")"},
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
    const bool is_port = advised.starts_with("tap") || advised.starts_with("source") || advised.starts_with("loop");
    const std::string rest = section == "[[disk]]" && !advised.starts_with("path") ? "path = 'a'\n"
                             : section == "[[net]]" && !is_port                    ? "loop = true\n"
                                                                                   : "";
    const std::string socket = section.starts_with("[[") && !advised.starts_with("socket") ? "socket = 's'\n" : "";
    EXPECT_EQ(error_of(parse_config(fmt::format("{}\n{}\n{}{}", section, advised, rest, socket), "h.toml")), "(no error)")
        << line;
  }
  // Not a value of ours: the parser's own words.
  for (const char* line : {"path = \"/srv/a.img", "bananas = on", "path /srv/a.img"}) {
    const std::string error = error_of(parse_config(fmt::format("[[disk]]\n{}\n", line), "h.toml"));
    EXPECT_THAT(error, ::testing::StartsWith("h.toml:2:")) << line;
    EXPECT_THAT(error, ::testing::Not(::testing::HasSubstr("written"))) << line;
  }
  for (const char* twice : {"queues = 2\nqueues = 4", "ro = true\nro = true", "mode = 0o660\nmode = 0o600"}) {
    const std::string error = error_of(parse_config(fmt::format("[[disk]]\n{}\n", twice), "h.toml"));
    EXPECT_THAT(error, ::testing::StartsWith("h.toml:3:")) << twice;
    EXPECT_THAT(error, ::testing::HasSubstr("redefine")) << twice;
  }
}

// "false" would be a path.
TEST(Toml, NoApiIsAdvisedAsTheWordThatMeansIt) {
  constexpr std::string_view kAllowed = R"(give the path of a Unix socket, or "off", written )";
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"false", "false is a boolean", "off"},
      {"no", "no is not in quotes", "off"},
      {"off", "off is not in quotes", "off"},
      {"true", "true doesn't say where", "/run/ringway.sock"},
      {"on", "on doesn't say where", "/run/ringway.sock"},
      {"['/run/a.sock']", "[...] is a list", "/run/ringway.sock"},
      {"{path='/run/a.sock'}", "{...} is a table", "/run/ringway.sock"},
  };
  for (const auto& [given, what, advised] : cases) {
    const std::string line = fmt::format("socket = \"{}\"", advised);
    const bool is_on = what.ends_with("where");
    EXPECT_THAT(error_of(parse_config(fmt::format("[api]\nsocket = {}\n", given), "h.toml")),
                ::testing::EndsWith(fmt::format(": socket: {}; {}{}{}", what, kAllowed, line,
                                                is_on ? ", or leave the key out for the default path" : "")));
    const Result<ServeConfig> config = parse_config(fmt::format("[api]\n{}\n", line), "h.toml");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->api_socket, advised);
  }
}

TEST(Toml, AKeyInTheWrongPlaceIsToldItsPlace) {
  constexpr std::string_view kTop = "stop-deadline, workers, api, disk, net";
  constexpr std::string_view kWorkers = "count, cpus, poll, loop";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"engine = 'inline'\n",
       fmt::format("h.toml:1:1: unknown key 'engine' at the top level (that of an image belongs into its [[disk]], or is "
                   "--engine for all of them; that of the workers' loops is 'loop' in [workers]); allowed: {}",
                   kTop)},
      {"[workers]\nengine = 'epoll'\n",
       fmt::format("h.toml:2:1: unknown key 'engine' in [workers] (the engine of the workers' loops is called 'loop', as in "
                   "--loop; that of an image belongs into its [[disk]]); allowed: {}",
                   kWorkers)},
      {"log = 'debug'\n",
       fmt::format("h.toml:1:1: unknown key 'log' at the top level (the command line only has it: --log); allowed: {}",
                   kTop)},
      {"[workers]\nlog = 'debug'\n",
       fmt::format("h.toml:2:1: unknown key 'log' in [workers] (the command line only has it: --log); allowed: {}",
                   kWorkers)},
      {"poll = 'always'\n",
       fmt::format("h.toml:1:1: unknown key 'poll' at the top level (it belongs in [workers]); allowed: {}", kTop)},
      {"loop = 'epoll'\n",
       fmt::format("h.toml:1:1: unknown key 'loop' at the top level (it belongs in [workers] or in a [[net]]); allowed: {}",
                   kTop)},
      {"socket = 's'\n",
       fmt::format(
           "h.toml:1:1: unknown key 'socket' at the top level (it belongs in [api] or in a [[disk]] or in a [[net]]); "
           "allowed: {}",
           kTop)},
      {"[workers]\nstop-deadline = '5s'\n",
       fmt::format(
           "h.toml:2:1: unknown key 'stop-deadline' in [workers] (it belongs at the top, before the first [section]); "
           "allowed: {}",
           kWorkers)},
      {"[[net]]\nloop = true\nsocket = 's'\nstop-deadline = '5s'\n",
       fmt::format("h.toml:4:1: unknown key 'stop-deadline' of a network card (it belongs at the top, before the first "
                   "[section]); allowed: {}",
                   kNetKeyNames)},
      {"[[net]]\nloop = true\nengine = 'inline'\n",
       fmt::format("h.toml:3:1: unknown key 'engine' of a network card (a disk has it); allowed: {}", kNetKeyNames)},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(error_of(parse_config(text, "h.toml")), message) << text;
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

// The parser takes a key apart by recursion.
TEST(Toml, AKeyWithoutEndIsRefused) {
  const auto repeated = [](std::string_view part, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) {
      text += part;
    }
    return text;
  };
  constexpr std::size_t kMany = 1'000'000;
  const std::string refusal = ": a key of more than 16 parts; no key has so many dots";
  for (const auto& [before, part, after] : {std::tuple{"", "a.", "a = 1\n"},
                                            {"[", "a.", "a]\n"},
                                            {"[[", "a . ", "a]]\n"},
                                            {"", "'a'.", "a = 1\n"},
                                            {"", "\"a\\\"\".", "a = 1\n"},
                                            {"b = [{", "a.", "a = 1}]\n"},
                                            {"b = {c = '', ", "a.", "a = 1}\n"},
                                            {"b = {c = \"\"\"x\"\"\"\"\", ", "a.", "a = 1}\n"}}) {
    const std::string text = fmt::format("# ...................\n\n{}{}{}", before, repeated(part, kMany), after);
    EXPECT_EQ(error_of(parse_config(text, "h.toml")), "h.toml:3" + refusal) << before << part << after;
  }
  // As many as may be, and what looks like one and isn't.
  EXPECT_THAT(error_of(parse_config(repeated("a.", 15) + "a = 1\n", "h.toml")), ::testing::HasSubstr("unknown key 'a'"));
  const std::string dots(1000, '.');
  const std::vector<std::string> harmless = {"# " + dots + "\n", "[workers] # " + dots + "\n",
                                             "[[disk]]\npath = '" + dots + "'\nsocket = \"\\\"" + dots + "\"\n",
                                             "[[disk]]\npath = '''\n'" + dots + "'''\nsocket = 's'\n",
                                             "[[disk]]\npath = \"\"\"a\\\"\"\"" + dots + "\"\"\"\"\"\nsocket = 's'\n"};
  for (const std::string& text : harmless) {
    EXPECT_EQ(error_of(parse_config(text, "h.toml")), "(no error)") << text;
  }
}

TEST(Toml, AFileThatIsNoConfigurationIsRefusedByItsSize) {
  const TestDirectory directory;
  const std::string path = directory.image("disk.img", (1 << 20) + 1);
  EXPECT_EQ(error_of(load_config(path)), fmt::format("'{}' is larger than 1 MiB: that is no configuration file", path));
  std::ofstream(directory.file("large.toml")) << std::string((1 << 20) - 1, '#') << '\n';
  EXPECT_EQ(error_of(load_config(directory.file("large.toml"))), "(no error)");
}

TEST(Toml, AMissingFileIsNamed) {
  EXPECT_EQ(error_of(load_config("/nonexistent/host.toml")),
            "can't open the configuration file '/nonexistent/host.toml': No such file or directory");
}

TEST(Words, Cpus) {
  EXPECT_EQ(*parse_cpus("0"), (std::vector<int>{0}));
  EXPECT_EQ(*parse_cpus("3,1,4-6"), (std::vector<int>{3, 1, 4, 5, 6}));
  for (const auto& [twice, cpu] : {std::pair{"0,0", 0}, {"0-3,2", 2}, {"5,4-5", 5}, {"4095,4095", 4095}}) {
    EXPECT_EQ(error_of(parse_cpus(twice)),
              fmt::format("'{}' is not allowed; give each CPU once (CPU {} is there twice)", twice, cpu));
  }
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

TEST(Words, StopDeadlines) {
  EXPECT_EQ(*parse_stop_deadline("1ms"), Duration::milliseconds(1));
  for (const char* bad : {"0s", "0ms", "999us", "999999ns"}) {
    EXPECT_EQ(error_of(parse_stop_deadline(bad)),
              fmt::format("'{}' is not allowed; give at least 1ms: the requests in flight need some time", bad));
  }
}

TEST(Words, AWindowAloneIsNoPollPolicy) {
  EXPECT_EQ(*parse_poll("fixed=20us"), "fixed=20us");
  for (const auto& [given, meant] : {std::pair{"50us", "fixed=50us"}, {"50", "fixed=50us"}, {"1ms", "fixed=1ms"}}) {
    EXPECT_THAT(error_of(parse_poll(given)), ::testing::EndsWith(fmt::format(" (did you mean '{}'?)", meant)));
  }
  for (const char* other : {"sometimes", "", "-1us", "5m", "fixed=", "2s"}) {
    EXPECT_THAT(error_of(parse_poll(other)), ::testing::Not(::testing::HasSubstr("did you mean"))) << other;
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
  EXPECT_TRUE(is_device_name(default_disk_name("/srv/" + std::string(200, 'x') + ".img")));
}

}  // namespace
}  // namespace ringway
