// For tests: a Host that runs on a thread of its own, as `ringway serve` does, in a directory of its own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "control/api_client.hpp"
#include "control/host.hpp"

namespace ringway {

class TestDirectory {
 public:
  TestDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ringway-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      ADD_FAILURE() << "no temporary directory " << pattern;
    }
    path_ = pattern;
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  // A sparse image.
  std::string image(const std::string& name, std::uintmax_t bytes) const {
    std::ofstream(file(name)).close();
    std::filesystem::resize_file(file(name), bytes);
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

class TestHost {
 public:
  explicit TestHost(HostOptions options = {}, std::vector<DiskOptions> disks = {}, std::vector<NetOptions> nets = {}) {
    std::promise<Result<>> ready;
    auto future = ready.get_future();
    thread_ = std::thread(
        [this, &ready, options = std::move(options), disks = std::move(disks), nets = std::move(nets)]() mutable {
          Result<std::unique_ptr<Host>> host = Host::create(std::move(options));
          Result<> started = host ? (*host)->add_devices(std::move(disks), std::move(nets)) : std::unexpected(host.error());
          if (!started) {
            if (host) {
              host->reset();
            }
            ready.set_value(std::move(started));
            return;
          }
          host_ = std::move(*host);
          ready.set_value({});
          end_ = host_->run();
          report_ = host_->stats_report();
          host_.reset();  // on its own thread
        });
    started_ = future.get();
  }
  ~TestHost() { static_cast<void>(quit()); }
  TestHost(const TestHost&) = delete;
  TestHost& operator=(const TestHost&) = delete;

  [[nodiscard]] const Result<>& started() const { return started_; }
  // Runs `function` on the control thread and returns its value.
  template <typename Function>
  auto call(Function function) {
    std::promise<decltype(function(std::declval<Host&>()))> promise;
    auto future = promise.get_future();
    host_->executor().post([&] { promise.set_value(function(*host_)); });
    return future.get();
  }
  HostResult<std::string> add(DiskOptions disk) {
    std::promise<HostResult<std::string>> promise;
    auto future = promise.get_future();
    host_->executor().post([&] {
      host_->add_disk(std::move(disk), [&](HostResult<std::string> added) { promise.set_value(std::move(added)); });
    });
    return future.get();
  }
  HostResult<std::string> add(NetOptions net) {
    std::promise<HostResult<std::string>> promise;
    auto future = promise.get_future();
    host_->executor().post([&] {
      host_->add_net(std::move(net), [&](HostResult<std::string> added) { promise.set_value(std::move(added)); });
    });
    return future.get();
  }
  std::future<HostResult<std::uint64_t>> start_resizing(std::string name, std::uint64_t bytes) {
    auto promise = std::make_shared<std::promise<HostResult<std::uint64_t>>>();
    auto future = promise->get_future();
    host_->executor().post([this, promise, resized = std::move(name), bytes] {
      host_->resize_disk(resized, bytes,
                         [promise](HostResult<std::uint64_t> result) { promise->set_value(std::move(result)); });
    });
    return future;
  }
  HostResult<std::uint64_t> resize(const std::string& name, std::uint64_t bytes) {
    return start_resizing(name, bytes).get();
  }
  std::future<HostResult<>> start_removing(std::string name) {
    auto promise = std::make_shared<std::promise<HostResult<>>>();
    auto future = promise->get_future();
    host_->executor().post([this, promise, removed = std::move(name)] {
      host_->remove_device(removed, [promise](HostResult<> result) { promise->set_value(std::move(result)); });
    });
    return future;
  }
  HostResult<> remove(const std::string& name) { return start_removing(name).get(); }
  // Drains; how run() ended.
  HostEnd quit() {
    if (thread_.joinable()) {
      if (started_ && !quitting_) {
        quitting_ = true;
        host_->quit("the test is over");
      }
      thread_.join();
    }
    return end_;
  }
  // Waits for an end that was asked for otherwise.
  HostEnd join() {
    quitting_ = true;
    return quit();
  }
  [[nodiscard]] const std::string& report() const { return report_; }

 private:
  std::thread thread_;
  std::unique_ptr<Host> host_;
  Result<> started_;
  bool quitting_ = false;
  HostEnd end_ = HostEnd::clean;
  std::string report_;
};

inline DiskOptions test_disk(std::string path, std::string socket, std::string name = "") {
  DiskOptions disk;
  disk.path = std::move(path);
  disk.socket = std::move(socket);
  disk.name = std::move(name);
  return disk;
}

// Its port is the loop unless the test chooses another.
inline NetOptions test_net(std::string socket, std::string name = "") {
  NetOptions net;
  net.loop = true;
  net.socket = std::move(socket);
  net.name = std::move(name);
  return net;
}

}  // namespace ringway
