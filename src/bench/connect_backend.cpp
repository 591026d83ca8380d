#include "bench/connect_backend.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

namespace ringway {
namespace {

constexpr std::chrono::milliseconds kSilence{500};  // shorter waits need no words

enum class At : std::uint8_t { nothing, socket, something_else };

At what_is_at(const std::string& path) {
  struct stat file{};
  if (::stat(path.c_str(), &file) != 0) {
    return At::nothing;
  }
  return S_ISSOCK(file.st_mode) ? At::socket : At::something_else;
}

// Runs `tell` once if it lives longer than kSilence.
class Notice {
 public:
  explicit Notice(std::function<void()> tell)
      : thread_([tell = std::move(tell)](const std::stop_token& stop) {
          std::mutex mutex;
          std::condition_variable_any ended;
          std::unique_lock lock(mutex);
          if (!ended.wait_for(lock, stop, kSilence, [&] { return stop.stop_requested(); })) {
            tell();
          }
        }) {}

 private:
  std::jthread thread_;
};

Error explained(const std::string& path, Error error) {
  const At at = what_is_at(path);
  if (error.code == ENOENT && at == At::nothing) {
    error.message = fmt::format("nothing is at '{}'; check the path, and that the back-end has been started", path);
  } else if (error.code == ECONNREFUSED && at == At::socket) {
    error.message = fmt::format(
        "nobody listens on '{}': the socket is there, but its back-end has ended or doesn't listen yet; start it", path);
  } else if (error.code == EACCES && at == At::socket) {
    error.message =
        fmt::format("no permission to connect to '{}'; run as the back-end's user, or give the socket another mode", path);
  } else if (error.code == ETIMEDOUT) {
    error.message += fmt::format(
        "; '{}' takes connections, but its back-end doesn't answer: look whether it hangs, or serves another front-end",
        path);
  }
  return error;
}

template <typename Driver, typename Options>
Result<std::unique_ptr<Driver>> connect_driver_to(const Options& options,
                                                  const std::function<void(std::string_view)>& on_wait) {
  const std::string& path = options.socket_path;
  if (what_is_at(path) == At::something_else) {
    return fail(fmt::format("'{}' is no socket; give the path of the socket that the back-end listens on", path));
  }
  std::optional<Notice> notice;
  if (on_wait) {
    notice.emplace([&] {
      on_wait(what_is_at(path) == At::nothing
                  ? fmt::format("waiting up to {} s for the back-end's socket: nothing is at '{}' yet",
                                options.patience.ns / 1'000'000'000, path)
                  : fmt::format("waiting for the back-end's answer: '{}' is there, and hasn't answered yet", path));
    });
  }
  Result<std::unique_ptr<Driver>> driver = Driver::create(options);
  notice.reset();
  if (!driver) {
    return std::unexpected(explained(path, std::move(driver).error()));
  }
  return driver;
}

}  // namespace

Result<std::unique_ptr<BlkDriver>> connect_backend(const BlkDriverOptions& options,
                                                   const std::function<void(std::string_view)>& on_wait) {
  return connect_driver_to<BlkDriver>(options, on_wait);
}

Result<std::unique_ptr<NetDriver>> connect_backend(const NetDriverOptions& options,
                                                   const std::function<void(std::string_view)>& on_wait) {
  return connect_driver_to<NetDriver>(options, on_wait);
}

}  // namespace ringway
