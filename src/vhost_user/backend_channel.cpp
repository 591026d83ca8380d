#include "vhost_user/backend_channel.hpp"

#include <sys/epoll.h>

#include <span>
#include <utility>
#include <vector>

#include "vhost_user/codec.hpp"

namespace ringway::vhost_user {

Result<std::unique_ptr<BackendChannel>> BackendChannel::create(ForeignFd socket, Loop& loop, std::shared_ptr<SocketLog> log,
                                                               std::move_only_function<void()> on_harm) {
  std::unique_ptr<BackendChannel> channel(new BackendChannel(std::move(socket), loop, std::move(log), std::move(on_harm)));
  // Each time that there is room again, and when the front-end hangs up.
  RW_TRY_ASSIGN(channel->watch_, loop.watch(channel->socket_.get(), EPOLLOUT, *channel));
  return channel;
}

BackendChannel::~BackendChannel() {
  if (watch_) {
    loop_.unwatch(watch_);
  }
}

bool BackendChannel::request(Note note) {
  if (!socket_) {
    return false;
  }
  // Behind those that wait, or it would overtake them.
  waiting_.insert(note);
  if (waiting_.size() == 1 && send(note)) {
    waiting_.clear();
  }
  return alive();
}

// False: it still waits, or the channel is dead.
bool BackendChannel::send(Note note) {
  const VringState state{.index = note.index, .num = 0};
  const bool of_ring = note.request != BackendRequest::config_change_msg;
  const std::vector<std::byte> bytes =
      encode(static_cast<std::uint32_t>(note.request), kVersion, of_ring ? bytes_of(state) : std::span<const std::byte>{});
  const Result<std::size_t> sent = send_some(socket_.get(), bytes, {}, socket_.holdings().get());
  if (socket_.holdings() != nullptr && socket_.holdings()->harmed()) {
    fail_channel("the front-end has held up our threads");
    on_harm_();
    return false;
  }
  if (!sent) {
    fail_channel(sent.error().message);
    return false;
  }
  if (*sent != 0 && *sent != bytes.size()) {
    // The kernel takes so small a message whole or not at all; half of one would garble all that follows.
    fail_channel("a request was cut in two");
    return false;
  }
  return *sent != 0;
}

void BackendChannel::on_ready(std::uint32_t events) noexcept {
  while (!waiting_.empty() && send(*waiting_.begin())) {
    waiting_.erase(waiting_.begin());
  }
  if (socket_ && (events & (EPOLLHUP | EPOLLERR)) != 0) {
    fail_channel("the front-end has closed it");
  }
}

void BackendChannel::fail_channel(const std::string& reason) {
  log_->info("back-end channel ended: " + reason);
  loop_.unwatch(std::exchange(watch_, {}));
  socket_.reset();
  waiting_.clear();
}

}  // namespace ringway::vhost_user
