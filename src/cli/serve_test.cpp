// The program itself: what it says, how it ends, and what a front-end sees of that.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <tuple>

#include "control/api_client.hpp"
#include "control/config.hpp"
#include "control/test_host.hpp"
#include "driver/test_driver.hpp"
#include "driver/test_net_driver.hpp"

namespace ringway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// One run of `ringway`.
class Program {
 public:
  // `files_max`: of its open files (ulimit -n); 0: as many as we.
  explicit Program(std::vector<std::string> arguments, std::vector<std::string> environment = {}, rlim_t files_max = 0) {
    int out[2];
    int err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
      ADD_FAILURE() << "no pipe";
      return;
    }
    out_.reset(out[0]);
    err_.reset(err[0]);
    const UniqueFd out_end(out[1]);
    const UniqueFd err_end(err[1]);
    std::string program = RINGWAY_PROGRAM;
    std::vector<char*> argv = {program.data()};
    for (std::string& argument : arguments) {
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out_end.get(), STDOUT_FILENO);
      dup2(err_end.get(), STDERR_FILENO);
      for (std::string& setting : environment) {
        putenv(setting.data());
      }
      if (const rlimit limit{files_max, files_max}; files_max != 0 && setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        _exit(126);
      }
      execv(program.c_str(), argv.data());
      _exit(127);
    }
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void signal(int number) const { kill(pid_, number); }
  // Reads until `text` stands in stdout; false when it ended or the time is over.
  bool wait_for(std::string_view text, Duration patience = Duration::seconds(20)) {
    return wait_for(out_text_, text, patience);
  }
  bool wait_for_log(std::string_view text, Duration patience = Duration::seconds(20)) {
    return wait_for(err_text_, text, patience);
  }
  // Reads to the end; the exit status, or 128 + signal.
  int wait(Duration patience = Duration::seconds(30)) {
    const Instant deadline = clock_now() + patience;
    while (read_some(deadline)) {
    }
    if (out_ || err_) {
      ADD_FAILURE() << "ringway doesn't end: " << err_text_;
      kill(pid_, SIGKILL);
    }
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  [[nodiscard]] const std::string& out() const { return out_text_; }
  [[nodiscard]] const std::string& err() const { return err_text_; }

 private:
  bool wait_for(const std::string& all, std::string_view text, Duration patience) {
    const Instant deadline = clock_now() + patience;
    while (all.find(text) == std::string::npos) {
      if (!read_some(deadline)) {
        return false;
      }
    }
    return true;
  }
  bool read_some(Instant deadline) {
    pollfd fds[2] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};
    const std::int64_t left = (deadline - clock_now()).ns / 1'000'000;
    if ((!out_ && !err_) || left <= 0 || poll(fds, 2, static_cast<int>(left)) <= 0) {
      return false;
    }
    take(out_, fds[0].revents, out_text_);
    take(err_, fds[1].revents, err_text_);
    return true;
  }
  static void take(UniqueFd& fd, short events, std::string& text) {
    if (!fd || events == 0) {
      return;
    }
    char buffer[4096];
    const ssize_t got = read(fd.get(), buffer, sizeof buffer);
    if (got > 0) {
      text.append(buffer, static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      fd.reset();
    }
  }

  pid_t pid_ = -1;
  UniqueFd out_, err_;
  std::string out_text_, err_text_;
};

struct Ended {
  int status;
  std::string out, err;
};

Ended run(std::vector<std::string> arguments, Duration patience = Duration::seconds(30)) {
  Program program(std::move(arguments));
  const int status = program.wait(patience);
  return {status, program.out(), program.err()};
}

class Serve : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return directory_.file(name); }
  std::vector<std::string> arguments(const std::string& disk, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"serve", "--api", "off", "--disk", disk};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string disk(const std::string& path = "null:1M") const {
    return "path=" + path + ",socket=" + file("a.sock") + ",name=a";
  }

  TestDirectory directory_;
};

// --- errors: each says what to do ---

TEST_F(Serve, BadCommandLines) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "a command is missing: serve, ctl, trace, bench, check or sim\nTry `ringway --help`."},
      {{"sevre"},
       "unknown command 'sevre' (did you mean 'serve'?); there are serve, ctl, trace, bench, check and sim\nTry `ringway "
       "--help`."},
      {{"bananas"}, "unknown command 'bananas'; there are serve, ctl, trace, bench, check and sim\nTry `ringway --help`."},
      {{"--disk", "x"},
       "unknown option '--disk'; a command comes first: serve, ctl, trace, bench, check or sim\nTry `ringway --help`."},
      {{"--disk", "x", "serve"}, "--disk belongs behind the command: ringway serve --disk\nTry `ringway serve --help`."},
      {{"serve", "--disc", "x"}, "unknown option '--disc' (did you mean '--disk'?)\nTry `ringway serve --help`."},
      {{"serve", "--disc=x"}, "unknown option '--disc' (did you mean '--disk'?)\nTry `ringway serve --help`."},
      {{"serve", "--bananas"}, "unknown option '--bananas'\nTry `ringway serve --help`."},
      {{"serve", "disk=x"}, "unexpected argument 'disk=x' (did you mean '--disk'?)\nTry `ringway serve --help`."},
      {{"serve", "--disk"}, "--disk: a value is missing\nTry `ringway serve --help`."},
      {{"ctl", "--api", "x", "lst"},
       "unknown command 'lst' (did you mean 'list'?); there are list, stats, workers, add, remove, link, poll, resize and "
       "quit\n"
       "Try `ringway ctl --help`."},
      {{"check", "blk", "--sokcet", "x"},
       "unknown option '--sokcet' (did you mean '--socket'?)\nTry `ringway check blk --help`."},
      {{"bench", "blk", "--self", "--wait", "spin"},
       "--wait: 'spin' is not allowed; give poll or sleep\nTry `ringway bench blk --help`."},
      {{"serve", "--disk", "disk.img"},
       "--disk: 'disk.img' has no key; write --disk path=disk.img,socket=/run/vm1-disk.sock"},
      {{"ctl", "add", "disk.img,socket=/tmp/d.sock"},
       "'disk.img' has no key; write ringway ctl add path=disk.img,socket=/tmp/d.sock"},
      {{"bench", "blk", "--self", "--queues", "2", "--threads", "3"},
       "3 threads for 2 queues: give at least one queue, and a thread no more than there are queues"},
      {{"serve"},
       "nothing to serve: give --disk path=disk.img,socket=/run/vm1-disk.sock or --net tap=tap0,socket=/run/vm1-net.sock, "
       "or --config with a [[disk]] or [[net]]; or start empty with --no-disks and add devices by `ringway ctl add`"},
      {{"serve", "--net", "tap0"}, "--net: 'tap0' has no key; write --net tap=tap0,socket=/run/vm1-net.sock"},
      {{"ctl", "add", "--net", "tap0"},
       "--net: 'tap0' has no key; write ringway ctl add --net tap=tap0,socket=/run/vm1-net.sock"},
      {{"serve", "--net", "socket=s"},
       "--net: a network card needs a port for its frames: tap=<interface>, switch=<name>, null, loop or source"},
      {{"serve", "--nte", "x"}, "unknown option '--nte' (did you mean '--net'?)\nTry `ringway serve --help`."},
      {{"serve", "--net", "fds=999,socket=s"}, "fds: descriptor 999 is not open; whoever starts ringway has to pass it on"},
      {{"serve", "--no-disks", "--api", "off"},
       "nothing to serve, and without the API nothing can be added: give a --disk or --net, or a path to --api (in the "
       "file: "
       "socket in [api]) instead of off"},
      {{"ctl", "link", "n", "sideways"},
       "state: 'sideways' is not allowed; give up or down\nTry `ringway ctl link --help`."},
      {{"serve", "--disk", "path=a,sokcet=b"},
       "--disk: unknown key 'sokcet' of a disk (did you mean 'socket'?); allowed: path, socket, name, queues, ro, serial, "
       "engine, connect, "
       "direct, registered, packed, in-order, inband, write-cache, block-size, mode, faults"},
      {{"serve", "--no-disks", "--cpus", "x"}, "--cpus: 'x' is not allowed; give CPU numbers such as 0,2 or 4-7"},
      {{"serve", "--no-disks", "--loop", "x"}, "--loop: 'x' is not allowed; give auto, io_uring or epoll"},
      {{"serve", "--no-disks", "--engine", "x"}, "--engine: unknown engine 'x': give auto, io_uring, threads or inline"},
      {{"serve", "--disk", "path=a,", "socket=b"},
       "unexpected argument 'socket=b'; the key=value pairs of one device are one word, with commas and no spaces between "
       "them\nTry `ringway serve --help`."},
      {{"serve", "--disk", "path=a, socket=b"},
       "--disk: ' socket=b' has a space beside its key; write socket=b, with commas and no spaces between the pairs"},
      {{"serve", "--no-disks", "--cpus", "0,0"}, "--cpus: '0,0' is not allowed; give each CPU once (CPU 0 is there twice)"},
      {{"serve", "--no-disks", "--api", "on"},
       "--api: 'on' doesn't say where; give the path of a Unix socket, or nothing for the default path"},
      {{"serve", "--net", "tap=null,socket=s"},
       "--net: tap: 'null' is a port of its own, and no interface may have that name here (did you mean null instead of "
       "tap=null?)"},
      {{"serve", "--no-disks", "--stop-deadline", "0s"},
       "--stop-deadline: '0s' is not allowed; give at least 1ms: the requests in flight need some time"},
      {{"bench", "blk", "--self", "--seconds", "5"},
       "unknown option '--seconds' (did you mean '--time'?)\nTry `ringway bench blk --help`."},
      {{"bench", "net", "--self", "--iodepth=5"},
       "unknown option '--iodepth' (did you mean '--depth'?)\nTry `ringway bench net --help`."},
      {{"serve", "--seconds", "5"}, "unknown option '--seconds'\nTry `ringway serve --help`."},
      {{"serve", "--no-disks", "--stop-deadline", "5"},
       "--stop-deadline: '5' is not allowed; give a number with its unit (ns, us, ms or s), such as 5s or 500ms"},
      {{"serve", "--disk", "path=ram:0,socket=s"},
       "--disk: path: 'ram:0' is not allowed; give a size that is a multiple of the block size, 512, and less than 8 EiB: a "
       "number of bytes, or one with K, M, G, T or P, such as ram:64M"},
      {{"bench", "blk", "--self", "--store", "null:1000"},
       "--store: 'null:1000' is not allowed; give a size that is a multiple of the block size, 512, and less than 8 EiB: a "
       "number of bytes, or one with K, M, G, T or P, such as null:64M"},
      {{"bench", "blk", "--self", "--block-size", "1000"},
       "--block-size: '1000' is not allowed; give a multiple of 512 up to 64M"},
      {{"serve", "--config", "/nonexistent.toml"},
       "can't open the configuration file '/nonexistent.toml': No such file or directory"},
      {{"ctl", "--api", "/nonexistent", "add", "socket=s"},
       "a disk needs path=<image>: a file, a block device, ram:<size> or null:<size>"},
  };
  for (const auto& [line, message] : cases) {
    const Ended ended = run(line);
    EXPECT_EQ(ended.status, 2) << message;
    EXPECT_EQ(ended.err, "ringway: " + message + "\n");
    EXPECT_EQ(ended.out, "");
  }
}

TEST_F(Serve, AMissingArgumentOfCtlIsShownInAnExample) {
  const std::string add =
      "Examples:\n"
      "  ringway ctl add --disk path=disk.img,socket=/run/vm1-disk.sock\n"
      "  ringway ctl add --net tap=tap0,socket=/run/vm1-net.sock\n"
      "Try `ringway ctl add --help`.";
  const std::string remove = "Example:\n  ringway ctl remove data\nTry `ringway ctl remove --help`.";
  const std::string link = "Example:\n  ringway ctl link tap0 down\nTry `ringway ctl link --help`.";
  const std::string resize =
      "Examples:\n  ringway ctl resize data 20G\n  ringway ctl resize data\nTry `ringway ctl resize --help`.";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"ctl", "add"}, "a disk or a network card is missing\n" + add},
      {{"ctl", "add", "path=a,socket=b", "--net", "loop,socket=c"},
       "a disk and a network card are given; add one after the other\n" + add},
      {{"ctl", "add", "--disk"}, "--disk: a value is missing\nTry `ringway ctl add --help`."},
      {{"ctl", "remove"}, "name is missing\n" + remove},
      {{"ctl", "link"}, "name is missing\n" + link},
      {{"ctl", "link", "tap0"}, "state is missing\n" + link},
      {{"ctl", "resize"}, "name is missing\n" + resize},
      {{"ctl", "resize", "--shrink"}, "name is missing\n" + resize},
      {{"bench", "cacheline"},
       "--cpus is missing\nExample:\n  ringway bench cacheline --cpus 0,1\nTry `ringway bench cacheline --help`."},
  };
  for (const auto& [line, message] : cases) {
    const Ended ended = run(line);
    EXPECT_EQ(ended.status, 2) << message;
    EXPECT_EQ(ended.err, "ringway: " + message + "\n");
  }
}

TEST_F(Serve, AMissingFile) {
  const Ended ended = run(arguments(disk(file("missing.img"))));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.err,
              HasSubstr("ringway: disk 'a': open '" + file("missing.img") + "' (create it first, e.g. 'truncate -s 10G " +
                        file("missing.img") + "'): No such file or directory\n"));
  EXPECT_EQ(ended.out, "");  // never "ready"
}

TEST_F(Serve, AMissingDevice) {
  const Ended ended = run(arguments(disk("/dev/ringway-nope")));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.err, HasSubstr("ringway: disk 'a': open '/dev/ringway-nope' (no such device; 'lsblk -p' lists the block "
                                   "devices): No such file or directory\n"));
  EXPECT_THAT(run(arguments(disk("/dev/shm/ringway-nope/a.img"))).err, HasSubstr("truncate -s 10G"));
}

TEST_F(Serve, ADirectory) {
  EXPECT_THAT(run(arguments(disk(file(".")))).err, HasSubstr("is a directory: name a file or a block device\n"));
}

TEST_F(Serve, AnEmptyFile) {
  const Ended ended = run(arguments(disk(directory_.image("empty.img", 0))));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.err, HasSubstr("has 0 bytes, less than one block of 512: give it a size"));
}

TEST_F(Serve, AnImageThatIsServedAlready) {
  const std::string image = directory_.image("a.img", 1 << 20);
  Program first(arguments(disk(image)));
  ASSERT_TRUE(first.wait_for("ready: 1 disk\n")) << first.err();
  const Ended second = run(arguments("path=" + image + ",socket=" + file("b.sock")));
  EXPECT_EQ(second.status, 1);
  EXPECT_THAT(second.err, HasSubstr("is locked by"));
  const Ended twice = run(arguments("path=" + directory_.image("c.img", 1 << 20) + ",name=c,socket=" + file("c.sock"),
                                    {"--disk", "path=" + file("c.img") + ",name=d,socket=" + file("d.sock")}));
  EXPECT_EQ(twice.status, 1);
  EXPECT_THAT(twice.err, HasSubstr("ringway: disk 'd': '" + file("c.img") + "' belongs to disk 'c' already: remove that"));
}

TEST_F(Serve, ASocketInUse) {
  Program first(arguments(disk()));
  ASSERT_TRUE(first.wait_for("ready: 1 disk\n")) << first.err();
  const Ended second = run(arguments(disk()));
  EXPECT_EQ(second.status, 1);
  EXPECT_THAT(second.err, HasSubstr("ringway: disk 'a': socket " + file("a.sock") + " is in use: "));
  EXPECT_THAT(second.err, HasSubstr(" holds " + file("a.sock") + ".lock\n"));
  EXPECT_NE(connect_driver(file("a.sock")), nullptr);
}

TEST_F(Serve, ASocketPathThatIsTooLong) {
  const Ended ended = run(arguments("path=null:1M,socket=/tmp/" + std::string(150, 'x')));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.err, HasSubstr("has 155 bytes, 1 to 107 are possible\n"));
}

TEST_F(Serve, ASocketDirectoryThatIsMissing) {
  const Ended ended = run(arguments("path=null:1M,socket=" + file("missing/a.sock")));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.err, HasSubstr("check that the directory exists and is writable: No such file or directory\n"));
}

TEST_F(Serve, NumbersAreWholeAndInRange) {
  for (const char* number : {"0", "257", "x", "1.5", "0x10", "1e3", "-1", "99999999999999999999"}) {
    const Ended ended = run({"serve", "--no-disks", "--workers", number});
    EXPECT_EQ(ended.status, 2) << number;
    EXPECT_EQ(ended.err, fmt::format("ringway: --workers: '{}' is not allowed; give a whole number from 1 to 256\n"
                                     "Try `ringway serve --help`.\n",
                                     number));
  }
  // Decimal, whatever it begins with: as octal it would be 8, and 010 requests in flight another workload than 10.
  const Ended ended = run({"bench", "blk", "--self", "--depth", "010", "--time", "20ms", "--warm-up", "0s", "--json"});
  EXPECT_EQ(ended.status, 0) << ended.err;
  const nlohmann::json report = nlohmann::json::parse(ended.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << ended.out;
  EXPECT_EQ(report["workload"]["depth"], 10);
}

TEST_F(Serve, APollPolicyThatDoesNotExist) {
  std::ofstream(file("host.toml")) << "[workers]\npoll = \"sometimes\"\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {arguments(disk(), {"--poll", "sometimes"}), "--poll: "},
      {{"serve", "--no-disks", "--config", file("host.toml")}, file("host.toml") + ":2:8: poll: "},
      {{"bench", "blk", "--self", "--poll", "sometimes"}, "--poll: "}};
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"serve", "--no-disks", "--poll", "50us"}, {"bench", "blk", "--self", "--poll", "50"}}) {
    EXPECT_THAT(run(line).err, ::testing::EndsWith(" (did you mean 'fixed=50us'?)\n"));
  }
  for (const auto& [line, where] : cases) {
    const Ended ended = run(line);
    EXPECT_EQ(ended.status, 2) << ended.err;
    EXPECT_THAT(ended.err, StartsWith("ringway: " + where + "poll policy \"sometimes\""));
  }
}

TEST_F(Serve, ACpuThatIsNotAllowedNamesThoseThatAre) {
  std::string allowed;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Cpus_allowed_list:\t")) {
      allowed = line.substr(line.find('\t') + 1);
    }
  }
  ASSERT_NE(allowed, "");
  std::ofstream(file("host.toml")) << "[workers]\ncpus = [4000]\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {arguments(disk(), {"--cpus", "4000"}), "--cpus"},
      {{"serve", "--no-disks", "--config", file("host.toml")}, file("host.toml") + ":2:8: cpus"},
      {{"bench", "blk", "--self", "--cpus", "4000"}, "--cpus"},
      {{"bench", "blk", "--self", "--worker-cpus", "4000"}, "--worker-cpus"},
      {{"bench", "cacheline", "--cpus", "4000,4001"}, "--cpus"}};
  for (const auto& [line, where] : cases) {
    const Ended ended = run(line);
    EXPECT_EQ(ended.status, 2) << where;
    EXPECT_EQ(ended.err,
              fmt::format("ringway: {}: CPU 4000 is not allowed for this process; it may run on {}\n", where, allowed));
  }
}

TEST_F(Serve, EachCpuThatIsNamedGetsAWorker) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<std::string> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE && cpus.size() < 2; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) {
      cpus.push_back(std::to_string(cpu));
    }
  }
  if (cpus.size() < 2) {
    GTEST_SKIP() << "one CPU only";
  }
  const std::string both = cpus[0] + "," + cpus[1];
  std::ofstream(file("cpus.toml")) << fmt::format("[workers]\ncpus = [{}]\n", both);
  std::ofstream(file("count.toml")) << fmt::format("[workers]\ncount = 1\ncpus = [{}]\n", both);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--cpus", both}, "2 workers: "},
      {{"--cpus", cpus[1]}, " 1 worker: "},
      {{"--cpus", both, "--workers", "3"}, "3 workers: "},
      {{"--config", file("cpus.toml")}, "2 workers: "},
      {{"--config", file("cpus.toml"), "--cpus", cpus[0]}, " 1 worker: "},
      {{"--config", file("count.toml"), "--workers", "2"}, "2 workers: "},
      {{"--config", file("count.toml"), "--cpus", both}, "2 workers: "},
      {{"--config", file("cpus.toml"), "--workers", "1"}, " 1 worker: "}};
  for (const auto& [options, workers] : cases) {
    std::vector<std::string> line = {"serve", "--no-disks", "--api", file("api.sock")};
    line.insert(line.end(), options.begin(), options.end());
    Program program(line);
    ASSERT_TRUE(program.wait_for("ready: 0 disks\n")) << program.err();
    program.signal(SIGTERM);
    EXPECT_EQ(program.wait(), 0);
    EXPECT_THAT(program.err(), HasSubstr(workers)) << line.back();
  }
  for (const auto& [options, where] : {std::pair{std::vector<std::string>{"--cpus", both, "--workers", "1"}, std::string()},
                                       {{"--config", file("count.toml")}, file("count.toml") + ":3:8: cpus: "}}) {
    std::vector<std::string> line = {"serve", "--no-disks", "--api", file("api.sock")};
    line.insert(line.end(), options.begin(), options.end());
    const Ended ended = run(line);
    EXPECT_EQ(ended.status, 2);
    EXPECT_THAT(ended.err, StartsWith("ringway: " + where + "2 CPUs for 1 worker: ")) << options.back();
  }
}

TEST_F(Serve, AValueOfTheWrongTypeInTheFileIsShownAsItShouldBe) {
  std::ofstream(file("host.toml")) << "[[disk]]\npath = /srv/a.img\n";
  const Ended ended = run({"serve", "--config", file("host.toml")});
  EXPECT_EQ(ended.status, 2);
  EXPECT_THAT(ended.err, StartsWith("ringway: " + file("host.toml") + ":2:8: path: /srv/a.img is not in quotes; give "));
  EXPECT_THAT(ended.err, HasSubstr(", written path = \"/srv/a.img\"\n"));
}

// What the parser takes is what it lists for a key that it doesn't know.
TEST_F(Serve, HelpNamesEveryKeyOfTheFileInItsOwnSection) {
  const std::string help = run({"serve", "--help"}).out;
  const auto part = [&](const std::string& heading) {
    const std::size_t begin = help.find("\n" + heading);
    EXPECT_NE(begin, std::string::npos) << heading;
    return begin == std::string::npos ? "" : help.substr(begin, help.find("\n\n", begin + 1) - begin);
  };
  struct Section {
    std::string opening, heading, before;
    std::size_t keys;
  };
  for (const auto& [opening, heading, before, least] :
       {Section{"", "Other keys of --config", "\n  ", 1},
        Section{"[workers]\n", "Other keys of --config", "\n  [workers] ", 4},
        Section{"[api]\n", "Other keys of --config", "\n  [api] ", 1},
        Section{"[[disk]]\n", "Keys of --disk, of [[disk]]", "\n  ", 17},
        Section{"[[net]]\n", "Keys of --net, of [[net]]", "\n  ", 20}}) {
    const std::string section = part(heading);
    const Result<ServeConfig> refused = parse_config(opening + "bananas = 1\n", "h.toml");
    ASSERT_FALSE(refused);
    constexpr std::string_view kAllowed = "allowed: ";
    const std::string& message = refused.error().message;
    ASSERT_THAT(message, HasSubstr(kAllowed));
    std::istringstream names(message.substr(message.find(kAllowed) + kAllowed.size()));
    std::size_t keys = 0;
    for (std::string name; std::getline(names >> std::ws, name, ',');) {
      if (opening.empty() && name != "stop-deadline") {
        EXPECT_THAT(help, HasSubstr("[" + name + "]"));  // a section
        continue;
      }
      EXPECT_THAT(section, HasSubstr(before + name + " ")) << opening << name;
      ++keys;
    }
    EXPECT_GE(keys, least) << opening;
  }
}

TEST_F(Serve, HelpTeaches) {
  const Ended top = run({"--help"});
  EXPECT_EQ(top.status, 0);
  EXPECT_THAT(top.out, HasSubstr("ringway serve --disk path=disk.img,socket=/tmp/disk.sock"));
  const Ended serve = run({"serve", "--help"});
  EXPECT_EQ(serve.status, 0);
  EXPECT_THAT(serve.out, HasSubstr("write-cache"));
  EXPECT_THAT(serve.out, HasSubstr("[[disk]]"));
  EXPECT_THAT(serve.out, HasSubstr("[[net]]"));
  EXPECT_THAT(serve.out, HasSubstr("mergeable"));
  EXPECT_THAT(serve.out, HasSubstr("one for each of --cpus"));
  EXPECT_THAT(serve.out, HasSubstr("null = true"));
  for (const std::vector<std::string>& command : {std::vector<std::string>{"serve"},
                                                  {"bench", "blk"},
                                                  {"bench", "net"},
                                                  {"bench", "cacheline"},
                                                  {"check", "blk"},
                                                  {"check", "net"}}) {
    std::vector<std::string> line = command;
    line.emplace_back("--help");
    EXPECT_THAT(run(line).out, HasSubstr("Exit status: 0 ")) << command.back();
  }
  for (const char* command : {"ctl", "bench", "check"}) {
    EXPECT_EQ(run({command, "--help"}).status, 0) << command;
  }
  EXPECT_THAT(run({"bench", "cacheline", "--help"}).out, HasSubstr("ringway bench cacheline --cpus 0,1"));
  EXPECT_EQ(run({"--version"}).out, "ringway " RINGWAY_VERSION "\n");
}

// --- running and ending ---

TEST_F(Serve, SaysWhatItServesAndEndsCleanlyOnSigterm) {
  Program program(arguments(disk(directory_.image("a.img", 1 << 20)) + ",ro"));
  ASSERT_TRUE(program.wait_for("ready: 1 disk\n")) << program.err();
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_THAT(program.err(), HasSubstr("disk 'a': " + file("a.img") + ", 1.0 MiB read-only, 1 queue, engine "));
  EXPECT_THAT(program.err(), HasSubstr(", socket " + file("a.sock")));
  EXPECT_THAT(program.err(), HasSubstr("SIGTERM: closing 1 disk\n"));
  EXPECT_THAT(program.err(), HasSubstr("ended cleanly\n"));
  EXPECT_THAT(program.out(), HasSubstr("disk 'a'\n"));
  EXPECT_FALSE(std::filesystem::exists(file("a.sock")));
}

// Row 52.
TEST_F(Serve, SigtermWithAGuestAttachedHangsUpAndEndsCleanly) {
  Program program(arguments(disk("ram:1M")));
  ASSERT_TRUE(program.wait_for("ready: 1 disk\n")) << program.err();
  const auto driver = connect_driver(file("a.sock"));
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeOut, 0).status, spec::kBlkStatusOk);
  program.signal(SIGTERM);
  EXPECT_TRUE(eventually([&] { return driver->peer_closed(); }));
  EXPECT_EQ(program.wait(), 0);

  // A new one takes over, and the guest goes on.
  Program next(arguments(disk("ram:1M")));
  ASSERT_TRUE(next.wait_for("ready: 1 disk\n")) << next.err();
  const Result<> again = driver->reconnect();
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
}

// Row 51.
TEST_F(Serve, AfterKill9TheSocketComesBackAndTheDataIsThere) {
  const std::string image = directory_.image("a.img", 1 << 20);
  std::optional<Program> program(std::in_place, arguments(disk(image)));
  ASSERT_TRUE(program->wait_for("ready: 1 disk\n")) << program->err();
  const auto driver = connect_driver(file("a.sock"));
  ASSERT_NE(driver, nullptr);
  std::memset(driver->queue(0).buffer(0).host, 0x5a, 4096);
  ASSERT_EQ(transfer(driver->queue(0), spec::kBlkTypeOut, 8).status, spec::kBlkStatusOk);
  program->signal(SIGKILL);
  EXPECT_EQ(program->wait(), 128 + SIGKILL);
  ASSERT_TRUE(std::filesystem::exists(file("a.sock")));  // stale
  program.emplace(arguments(disk(image)));
  ASSERT_TRUE(program->wait_for("ready: 1 disk\n")) << program->err();
  const Result<> again = driver->reconnect();
  ASSERT_TRUE(again) << again.error().message;
  std::memset(driver->queue(0).buffer(0).host, 0, 4096);
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 8).status, spec::kBlkStatusOk);
  EXPECT_EQ(static_cast<int>(driver->queue(0).buffer(0).host[4095]), 0x5a);
}

// Row 57: a front-end that keeps knocking while the daemon restarts is either refused or served, never accepted and dropped.
TEST_F(Serve, WhoeverIsAcceptedIsServed) {
  for (int round = 0; round < 5; ++round) {
    Program program(arguments(disk()));
    const auto driver = connect_driver(file("a.sock"));  // tries from before the socket stands
    ASSERT_NE(driver, nullptr) << program.err();
    EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
    program.signal(SIGTERM);
    EXPECT_EQ(program.wait(), 0);
  }
}

TEST_F(Serve, AHungStoreEndsWithALineThatNamesIt) {
  Program program(arguments(disk("ram:1M") + ",faults=hang", {"--stop-deadline", "200ms"}));
  ASSERT_TRUE(program.wait_for("ready: 1 disk\n")) << program.err();
  const auto driver = connect_driver(file("a.sock"));
  ASSERT_NE(driver, nullptr);
  submit(driver->queue(0), spec::kBlkTypeIn, 0);
  driver->queue(0).publish_and_kick();
  // The report shows the kick once the worker has seen it; the signal and the kick race otherwise.
  do {
    program.signal(SIGUSR1);
    ASSERT_TRUE(program.wait_for("worker")) << program.err();
  } while (!program.wait_for("  0          1 ", Duration::milliseconds(500)));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 3);
  EXPECT_THAT(program.err(), HasSubstr("disk 'a': 'ram:1M' hasn't finished its requests after 200 ms; giving it up\n"));
}

TEST_F(Serve, ASecondSigtermEndsAtOnce) {
  Program program(arguments(disk("ram:1M") + ",faults=hang", {"--stop-deadline", "600s"}));
  ASSERT_TRUE(program.wait_for("ready: 1 disk\n")) << program.err();
  const auto driver = connect_driver(file("a.sock"));
  ASSERT_NE(driver, nullptr);
  submit(driver->queue(0), spec::kBlkTypeIn, 0);
  driver->queue(0).publish_and_kick();
  do {
    program.signal(SIGUSR1);
  } while (!program.wait_for("  0          1 ", Duration::milliseconds(500)));
  program.signal(SIGTERM);
  ASSERT_TRUE(program.wait_for_log("SIGTERM: closing 1 disk\n")) << program.err();
  // What comes within 100 ms belongs to the first.
  do {
    program.signal(SIGINT);
  } while (!program.wait_for_log("a second SIGINT: ending at once\n", Duration::milliseconds(30)));
  EXPECT_EQ(program.wait(), 4);
}

// As GNU timeout does, which signals its child and then the group.
TEST_F(Serve, SignalsThatComeTogetherAreOne) {
  Program program(arguments(disk("ram:1M") + ",faults=hang", {"--stop-deadline", "200ms"}));
  ASSERT_TRUE(program.wait_for("ready: 1 disk\n")) << program.err();
  const auto driver = connect_driver(file("a.sock"));
  ASSERT_NE(driver, nullptr);
  submit(driver->queue(0), spec::kBlkTypeIn, 0);
  driver->queue(0).publish_and_kick();
  do {
    program.signal(SIGUSR1);
  } while (!program.wait_for("  0          1 ", Duration::milliseconds(500)));
  // Stopped meanwhile, so that it finds all of them at once.
  program.signal(SIGSTOP);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGCONT}) {
    program.signal(number);
  }
  EXPECT_EQ(program.wait(), 3) << program.err();
  EXPECT_THAT(program.err(), ::testing::Not(HasSubstr("a second")));
}

TEST_F(Serve, Sigusr1PrintsTheCounters) {
  Program program(arguments(disk()));
  ASSERT_TRUE(program.wait_for("ready: 1 disk\n")) << program.err();
  const auto driver = connect_driver(file("a.sock"));
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
  program.signal(SIGUSR1);
  ASSERT_TRUE(program.wait_for("system calls\n")) << program.err();
  EXPECT_THAT(program.out(), HasSubstr("  0           0  running          0  4.0 KiB      0 B   1    0 "));
  EXPECT_EQ(transfer(driver->queue(0), spec::kBlkTypeIn, 0).status, spec::kBlkStatusOk);
}

TEST_F(Serve, TellsItsSupervisorThatItIsReady) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = file("notify.sock");
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd supervisor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(supervisor.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  Program program(arguments(disk()), {"NOTIFY_SOCKET=" + path});
  char buffer[256];
  const ssize_t got = recv(supervisor.get(), buffer, sizeof buffer, 0);
  ASSERT_GT(got, 0);
  EXPECT_EQ(std::string(buffer, static_cast<std::size_t>(got)), "READY=1");
  EXPECT_TRUE(std::filesystem::exists(file("a.sock")));
}

TEST_F(Serve, TheConfigurationFileServesTheSame) {
  std::ofstream(file("host.toml")) << fmt::format("[api]\nsocket = \"off\"\n[[disk]]\npath = \"null:1M\"\nsocket = \"{}\"\n",
                                                  file("a.sock"));
  Program program({"serve", "--config", file("host.toml"), "--disk", "path=null:2M,socket=" + file("b.sock")});
  ASSERT_TRUE(program.wait_for("ready: 2 disks\n")) << program.err();
  EXPECT_NE(connect_driver(file("a.sock")), nullptr);
  const auto second = connect_driver(file("b.sock"));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->capacity_sectors(), 4096U);
}

// --- ctl ---

TEST_F(Serve, CtlDoesWhatTheApiDoes) {
  const std::string api = file("api.sock");
  Program program({"serve", "--api", api, "--no-disks"});
  ASSERT_TRUE(program.wait_for("ready: 0 disks\n")) << program.err();
  const std::string image = directory_.image("data.img", 1 << 20);
  EXPECT_EQ(run({"ctl", "--api", api, "add", "path=" + image + ",socket=" + file("d.sock")}).out, "added 'data'\n");
  const Ended list = run({"ctl", "list", "--api", api});
  EXPECT_THAT(list.out, StartsWith("name  state    size"));
  EXPECT_THAT(list.out, HasSubstr("data  serving  1.0 MiB"));
  EXPECT_EQ(run({"ctl", "--api", api, "resize", "data", "2M"}).out, "'data' has 2.0 MiB\n");
  std::filesystem::resize_file(image, 3 << 20);
  EXPECT_EQ(run({"ctl", "--api", api, "resize", "data"}).out, "'data' has 3.0 MiB\n");
  EXPECT_THAT(run({"ctl", "--api", api, "stats"}).out, StartsWith("disk 'data'\n"));
  EXPECT_THAT(run({"ctl", "--api", api, "workers"}).out, StartsWith("worker  engine    poll "));
  const nlohmann::json json = nlohmann::json::parse(run({"ctl", "--api", api, "--json", "list"}).out, nullptr, false);
  ASSERT_TRUE(json.is_array());
  EXPECT_EQ(json[0]["capacity"], 3 << 20);
  const Ended twice = run({"ctl", "--api", api, "add", "path=null:1M,socket=" + file("d.sock")});
  EXPECT_EQ(twice.status, 1);
  EXPECT_EQ(twice.err, "ringway: disk 'null': the socket '" + file("d.sock") + "' belongs to disk 'data' already\n");
  EXPECT_EQ(run({"ctl", "--api", api, "remove", "dat"}).err, "ringway: there is no device 'dat'; there are: data\n");
  EXPECT_EQ(run({"ctl", "--api", api, "resize", "dat"}).err, "ringway: there is no disk 'dat'; there are: data\n");
  EXPECT_EQ(run({"ctl", "--api", api, "remove", "data"}).out, "removed 'data'\n");
  EXPECT_EQ(run({"ctl", "--api", api, "remove", "data"}).err, "ringway: there is no device 'data'; none is served\n");
  EXPECT_EQ(run({"ctl", "--api", api, "quit"}).out, "ending\n");
  EXPECT_EQ(program.wait(), 0);
  const Ended gone = run({"ctl", "--api", api, "list"});
  EXPECT_EQ(gone.status, 1);
  EXPECT_EQ(gone.err,
            "ringway: no ringway answers at '" + api + "'; start one with `ringway serve`, or name its socket with --api\n");
}

// Each one added makes it a little worse.
TEST_F(Serve, TooFewDescriptorsAreNotToldOfWithEachDevice) {
  const std::string api = file("api.sock");
  constexpr rlim_t kFilesMax = 600;
  Program program({"serve", "--api", api, "--disk", disk()}, {}, kFilesMax);
  ASSERT_TRUE(program.wait_for("ready: 1 disk\n")) << program.err();
  for (int i = 0; i < 8; ++i) {
    const std::string name = fmt::format("d{}", i);
    EXPECT_EQ(run({"ctl", "--api", api, "add", "--disk", "path=null:1M,name=" + name + ",socket=" + file(name)}).out,
              fmt::format("added '{}'\n", name));
  }
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
  std::size_t told = 0;
  for (std::size_t at = 0; (at = program.err().find("the limit of open files leaves ", at)) != std::string::npos; ++at) {
    ++told;
  }
  EXPECT_GE(told, 1U) << program.err();
  EXPECT_LE(told, 4U) << program.err();
}

TEST_F(Serve, CtlDoesTheSameWithNetworkCards) {
  const std::string api = file("api.sock");
  Program program({"serve", "--api", api, "--net", "loop,socket=" + file("n.sock")});
  ASSERT_TRUE(program.wait_for("ready: 1 network card\n")) << program.err();
  EXPECT_EQ(run({"ctl", "--api", api, "add", "--net", "source=1500,socket=" + file("s.sock") + ",name=src"}).out,
            "added 'src'\n");
  const Ended list = run({"ctl", "list", "--api", api});
  EXPECT_THAT(list.out, StartsWith("name  state    port"));
  EXPECT_THAT(list.out, HasSubstr("src   serving  source of 1500 bytes  1      up    none "));
  EXPECT_EQ(run({"ctl", "--api", api, "add", "path=null:1M,name=d,socket=" + file("d.sock")}).out, "added 'd'\n");
  const Ended both = run({"ctl", "list", "--api", api});
  EXPECT_THAT(both.out, StartsWith("name  state    size"));
  EXPECT_THAT(both.out, HasSubstr("\n\nname  state    port"));
  EXPECT_EQ(run({"ctl", "--api", api, "link", "loop", "down"}).out, "the link of 'loop' is down\n");
  EXPECT_THAT(run({"ctl", "list", "--api", api}).out, HasSubstr("loop  serving  loop                  1      down  none "));
  EXPECT_EQ(run({"ctl", "--api", api, "link", "d", "up"}).err, "ringway: there is no net 'd', but a disk of that name\n");
  EXPECT_EQ(run({"ctl", "--api", api, "resize", "loop", "1G"}).err,
            "ringway: there is no disk 'loop', but a net of that name\n");
  const Ended stats = run({"ctl", "--api", api, "stats"});
  EXPECT_THAT(stats.out, StartsWith("disk 'd'\n"));
  EXPECT_THAT(stats.out, HasSubstr("\nnet 'loop'\n"));
  EXPECT_EQ(run({"ctl", "--api", api, "remove", "src"}).out, "removed 'src'\n");
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_THAT(program.err(), HasSubstr("SIGTERM: closing 1 disk and 1 network card\n"));
  EXPECT_THAT(program.out(), HasSubstr("net 'loop'\n"));
}

TEST_F(Serve, ANetworkCardFromTheFileBesideADisk) {
  std::ofstream(file("host.toml")) << fmt::format(
      "[api]\nsocket = \"off\"\n[[disk]]\npath = \"null:1M\"\nsocket = \"{}\"\n[[net]]\nloop = true\nsocket = \"{}\"\nmac = "
      "\"52:54:00:00:00:07\"\n",
      file("a.sock"), file("n.sock"));
  Program program({"serve", "--config", file("host.toml")});
  ASSERT_TRUE(program.wait_for("ready: 1 disk and 1 network card\n")) << program.err();
  EXPECT_NE(connect_driver(file("a.sock")), nullptr);
  NetDriverOptions options;
  options.socket_path = file("n.sock");
  const auto card = connect_net_driver(options);
  ASSERT_NE(card, nullptr);
  EXPECT_EQ(card->config().mac[5], 7);
  card->pair(0).rx.fill();
  EXPECT_TRUE(echo_once(card->pair(0), std::vector<std::byte>(100, std::byte{9})));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
}

TEST_F(Serve, TwoInstancesNeedTwoApiSockets) {
  Program first({"serve", "--api", file("api.sock"), "--no-disks"});
  ASSERT_TRUE(first.wait_for("ready: 0 disks\n")) << first.err();
  const Ended second = run({"serve", "--api", file("api.sock"), "--no-disks"});
  EXPECT_EQ(second.status, 1);
  EXPECT_THAT(second.err, HasSubstr("is in use"));
  EXPECT_THAT(second.err, HasSubstr("choose another path for the API, or run without one (--api <path>, --api off)\n"));
  Program third({"serve", "--api", file("other.sock"), "--no-disks"});
  EXPECT_TRUE(third.wait_for("ready: 0 disks\n")) << third.err();
}

TEST_F(Serve, BenchOfItself) {
  const Ended ended = run({"bench", "blk", "--self", "--time", "200ms", "--warm-up", "50ms", "--json"});
  EXPECT_EQ(ended.status, 0) << ended.err << ended.out;
  const nlohmann::json json = nlohmann::json::parse(ended.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << ended.out;
  EXPECT_EQ(run({"bench", "blk"}).err, "ringway: bench blk: give either --socket <path> of a back-end, or --self\n");
  const Ended missing = run({"bench", "blk", "--self", "--store", file("missing.img")});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("missing.img' (create it first"));
}

TEST_F(Serve, BenchMeasuresExactlyTheRequestsThatItIsAskedFor) {
  for (const auto& [warm_up, wait] : {std::pair{"0s", "poll"}, {"20ms", "sleep"}}) {
    for (const auto& [requests, queues, threads] :
         {std::tuple{"1", "1", "1"}, {"5", "4", "1"}, {"2", "4", "4"}, {"1001", "2", "2"}}) {
      const Ended ended = run({"bench", "blk", "--self", "--json", "--requests", requests, "--queues", queues, "--threads",
                               threads, "--warm-up", warm_up, "--wait", wait, "--depth", "32"});
      ASSERT_EQ(ended.status, 0) << ended.err << ended.out;
      const nlohmann::json report = nlohmann::json::parse(ended.out, nullptr, false);
      ASSERT_TRUE(report.is_object()) << ended.out;
      const auto wanted = static_cast<std::uint64_t>(std::stoull(requests));
      EXPECT_EQ(report["requests"], wanted) << ended.out;
      EXPECT_EQ(report["latency_ns"]["measured"], wanted) << ended.out;
      // None was on its way already when the time began.
      EXPECT_LE(report["latency_ns"]["max"].get<double>(), report["seconds"].get<double>() * 1.1e9) << ended.out;
    }
  }
}

TEST_F(Serve, BenchSendsNoMoreRequestsThanItIsAskedFor) {
  const std::string api = file("api.sock");
  Program program({"serve", "--api", api, "--disk", disk()});
  ASSERT_TRUE(program.wait_for("ready: 1 disk\n")) << program.err();
  const Ended bench =
      run({"bench", "blk", "--socket", file("a.sock"), "--requests", "5", "--depth", "32", "--warm-up", "0s"});
  EXPECT_EQ(bench.status, 0) << bench.err << bench.out;
  EXPECT_THAT(bench.out, HasSubstr("5 requests are too few to reach that depth\n"));
  const nlohmann::json stats = nlohmann::json::parse(run({"ctl", "--api", api, "--json", "stats"}).out, nullptr, false);
  ASSERT_TRUE(stats.is_array()) << stats;
  EXPECT_EQ(stats[0]["queues"][0]["requests"]["in"], 5) << stats;
}

// A request that fails at once would make the rate look good.
TEST_F(Serve, BenchCountsFailedRequestsApart) {
  const std::string image = directory_.image("a.img", 1 << 20);
  Program program(arguments(disk(image) + ",faults=eio=1/4"));
  ASSERT_TRUE(program.wait_for("ready: 1 disk\n")) << program.err();
  const Ended bench = run({"bench", "blk", "--socket", file("a.sock"), "--requests", "400", "--warm-up", "0s", "--depth",
                           "4", "--latency-every", "1", "--json"});
  EXPECT_EQ(bench.status, 1) << bench.err;
  const nlohmann::json report = nlohmann::json::parse(bench.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << bench.out;
  EXPECT_EQ(report["requests"].get<int>() + report["failed"].get<int>(), 400) << report;
  EXPECT_NEAR(report["failed"].get<double>(), 100, 40) << report;
  EXPECT_EQ(report["latency_ns"]["measured"], report["requests"]) << report;
  EXPECT_NEAR(report["iops"].get<double>() * report["seconds"].get<double>(), report["requests"].get<double>(), 1) << report;
}

TEST_F(Serve, BenchWritesToAnothersDiskOnlyWithAWordForIt) {
  const std::string image = directory_.image("a.img", 1 << 20);
  Program program(arguments(disk(image)));
  ASSERT_TRUE(program.wait_for("ready: 1 disk\n")) << program.err();
  const auto is_untouched = [&] {
    std::ifstream stream(image, std::ios::binary);
    const std::string contents{std::istreambuf_iterator<char>(stream), {}};
    return contents == std::string(1 << 20, '\0');
  };
  const auto bench = [&](std::vector<std::string> more) {
    std::vector<std::string> line = {"bench", "blk",       "--socket", file("a.sock"), "--time",
                                     "5s",    "--warm-up", "0s",       "--requests",   "500"};
    line.insert(line.end(), more.begin(), more.end());
    return run(line);
  };
  const std::vector<std::pair<std::vector<std::string>, std::string>> writing = {
      {{"--workload", "write"}, "--workload write"},
      {{"--workload", "mix=99"}, "--workload mix=99"},
      {{"--verify", "--depth", "4"}, "--verify"}};
  for (const auto& [options, what] : writing) {
    const Ended refused = bench(options);
    EXPECT_EQ(refused.status, 2) << what;
    EXPECT_EQ(refused.err, fmt::format("ringway: {} overwrites what is on the disk at '{}'; if that may be lost, add "
                                       "--destroy-data\n",
                                       what, file("a.sock")));
    EXPECT_TRUE(is_untouched()) << what;
  }
  for (const char* workload : {"read", "mix=100"}) {
    const Ended reads = bench({"--workload", workload});
    EXPECT_EQ(reads.status, 0) << reads.err << reads.out;
    EXPECT_TRUE(is_untouched()) << workload;
  }
  for (std::vector<std::string> options : {writing[0].first, writing[2].first}) {
    options.emplace_back("--destroy-data");
    const Ended allowed = bench(options);
    EXPECT_EQ(allowed.status, 0) << allowed.err << allowed.out;
  }
  EXPECT_FALSE(is_untouched());
  // So is an image that a daemon of its own would serve.
  const std::string precious = directory_.image("precious.img", 1U << 20U);
  const std::vector<std::string> of_image = {"bench", "blk",    "--self", "--store",   precious, "--workload",
                                             "write", "--time", "20ms",   "--warm-up", "0s"};
  EXPECT_EQ(run(of_image).err,
            fmt::format("ringway: --workload write overwrites what is in '{}'; if that may be lost, add --destroy-data\n",
                        precious));
  std::vector<std::string> told = of_image;
  told.emplace_back("--destroy-data");
  EXPECT_EQ(run(told).status, 0);
  // Its own disk in memory is nobody's.
  EXPECT_EQ(run({"bench", "blk", "--self", "--workload", "write", "--time", "20ms", "--warm-up", "0s"}).status, 0);
}

TEST_F(Serve, BenchAndCheckSayThatTheyWait) {
  Program bench({"bench", "blk", "--socket", file("missing.sock")});
  Program check({"check", "blk", "--socket", file("missing.sock")});
  const std::string waiting =
      fmt::format("ringway: waiting up to 5 s for the back-end's socket: nothing is at '{}' yet\n", file("missing.sock"));
  const std::string missing = fmt::format(
      "ringway: nothing is at '{}'; check the path, and that the back-end has been started\n", file("missing.sock"));
  EXPECT_EQ(bench.wait(), 1);
  EXPECT_EQ(bench.err(), waiting + missing);
  EXPECT_EQ(bench.out(), "");
  EXPECT_EQ(check.wait(), 2);
  EXPECT_EQ(check.err(), waiting + missing);
  EXPECT_EQ(check.out(), "");
}

TEST_F(Serve, BenchOfACacheLine) {
  for (const char* cpus : {"0", "0,0", "0,1,2", "x"}) {
    const Ended ended = run({"bench", "cacheline", "--cpus", cpus});
    EXPECT_EQ(ended.status, 2) << cpus;
    EXPECT_THAT(ended.err, HasSubstr(fmt::format("--cpus: '{}' is not allowed; give ", cpus)));
  }
  const Ended ended = run({"bench", "cacheline", "--cpus", "0,1", "--json"});
  const nlohmann::json json = nlohmann::json::parse(ended.out, nullptr, false);
  if (ended.status != 0) {
    GTEST_SKIP() << ended.err << ended.out;  // one CPU, or CPUs that we may not use
  }
  EXPECT_GE(json.at("median_ns").get<int>(), json.at("minimum_ns").get<int>());
  EXPECT_THAT(run({"bench", "cacheline", "--cpus", "1,0"}).out, StartsWith("cache line from CPU 1 to CPU 0 and back: "));
}

// --- our own conformance, by the check that judges others ---

class Check : public Serve {
 protected:
  nlohmann::json check(const std::string& disk_options, std::vector<std::string> more, int expected_status) {
    Program program(arguments(disk_options + ",queues=2,in-order"));
    if (!program.wait_for("ready: 1 disk\n")) {
      ADD_FAILURE() << program.err();
      return {};
    }
    std::vector<std::string> line = {"check", "blk", "--socket", file("a.sock"), "--json"};
    line.insert(line.end(), more.begin(), more.end());
    const Ended ended = run(line, Duration::seconds(100));  // some rules wait for calls that must not come
    EXPECT_EQ(ended.status, expected_status) << ended.err << ended.out;
    return nlohmann::json::parse(ended.out, nullptr, false);
  }
  static std::vector<std::string> skipped(const nlohmann::json& report) {
    std::vector<std::string> rules;
    for (const nlohmann::json& rule : report.at("rules")) {
      if (rule.at("outcome") == "SKIP") {
        rules.push_back(rule.at("rule"));
      }
    }
    return rules;
  }
};

TEST_F(Check, FindsNoFaultInARamDisk) {
  const nlohmann::json report = check(disk("ram:64M"), {"--write"}, 0);
  EXPECT_THAT(skipped(report),
              ::testing::ElementsAre("split: writes to a read-only disk", "packed: writes to a read-only disk"));
  EXPECT_GT(report.at("passed").get<int>(), 60);
}

TEST_F(Check, FindsNoFaultInAFile) {
  const nlohmann::json report = check(disk(directory_.image("a.img", 64 << 20)), {"--write"}, 0);
  EXPECT_GT(report.at("passed").get<int>(), 60);
}

TEST_F(Check, FindsNoFaultInAReadOnlyDisk) {
  const nlohmann::json report = check(disk("ram:64M") + ",ro", {}, 0);
  EXPECT_THAT(skipped(report), ::testing::Not(::testing::Contains("split: writes to a read-only disk")));
}

// Or the three above would say nothing.
TEST_F(Check, FindsFaults) {
  const nlohmann::json report = check(disk("ram:64M") + ",faults=eio", {"--only", "split: used length of a read"}, 1);
  EXPECT_EQ(report.at("failed"), 1);
}

}  // namespace
}  // namespace ringway
