// For files in memory: the worker itself calls, since nothing there can wait for a device.
#include "backend/blk/file_store.hpp"

namespace ringway {
namespace {

class InlineChannel final : public FileChannel {
 public:
  using FileChannel::FileChannel;

 private:
  [[nodiscard]] std::int32_t start(FileOperation& operation) noexcept override { return perform(fd(), operation.call); }
};

}  // namespace

std::unique_ptr<BlkChannel> make_inline_channel(const FileChannel::Options& options) {
  return std::make_unique<InlineChannel>(options);
}

}  // namespace ringway
