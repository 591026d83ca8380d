#include "bench/connect_backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/unique_fd.hpp"

namespace ringway {
namespace {

using testing::HasSubstr;

class ConnectBackend : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "ringway-connect-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override {
    if (!folder_.empty()) {
      std::filesystem::remove_all(folder_);
    }
  }
  std::string path() const { return folder_ + "/blk.sock"; }
  // A socket that nobody listens on.
  UniqueFd bind_socket(int type) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path().c_str(), path().size() + 1);
    UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return socket;
  }
  std::string error(Duration patience, const std::function<void(std::string_view)>& on_wait = {}) const {
    const auto driver = connect_backend(BlkDriverOptions{.socket_path = path(), .patience = patience}, on_wait);
    return driver ? "(no error)" : driver.error().message;
  }

 private:
  std::string folder_;
};

TEST_F(ConnectBackend, NothingAtThePath) {
  EXPECT_EQ(error({}), "nothing is at '" + path() + "'; check the path, and that the back-end has been started");
}

TEST_F(ConnectBackend, NobodyListens) {
  bind_socket(SOCK_STREAM).reset();  // its back-end has ended
  EXPECT_THAT(error({}), HasSubstr("nobody listens on '" + path() + "'"));
}

// At once: no amount of waiting makes a socket of a file.
TEST_F(ConnectBackend, APathThatIsNoSocket) {
  std::ofstream(path()) << "x";
  EXPECT_EQ(error(Duration::seconds(3600)),
            "'" + path() + "' is no socket; give the path of the socket that the back-end listens on");
}

TEST_F(ConnectBackend, SaysThatItWaits) {
  std::vector<std::string> said;
  UniqueFd wrong_kind;
  // What the notice puts there ends the wait, which would go on for a minute otherwise.
  const std::string end = error(Duration::seconds(60), [&](std::string_view text) {
    said.emplace_back(text);
    wrong_kind = bind_socket(SOCK_DGRAM);
  });
  EXPECT_THAT(said,
              testing::ElementsAre("waiting up to 60 s for the back-end's socket: nothing is at '" + path() + "' yet"));
  EXPECT_THAT(end, HasSubstr("can't connect to " + path()));
}

}  // namespace
}  // namespace ringway
