// A disk in a file or on a block device: over io_uring, over threads, or inline.
#pragma once

#include <memory>

#include "backend/blk/blk_store.hpp"
#include "backend/blk/file_channel.hpp"
#include "backend/blk/image_file.hpp"
#include "backend/blk/make_store.hpp"
#include "base/result.hpp"

namespace ringway {

struct FileStoreOptions {
  ImageFileOptions image;
  BlkEngine engine = BlkEngine::automatic;
  bool loop_has_uring = true;
  bool registered = false;
  FileFaults faults;
};

[[nodiscard]] Result<BlkStoreChoice> make_file_store(const FileStoreOptions& options);

// One per way; `loop` and `counters` outlive the channel.
[[nodiscard]] std::unique_ptr<BlkChannel> make_inline_channel(const FileChannel::Options& options, Loop& loop,
                                                              BlkChannelCounters& counters);
[[nodiscard]] Result<std::unique_ptr<BlkChannel>> make_uring_channel(const FileChannel::Options& options, Loop& loop,
                                                                     BlkChannelCounters& counters);
[[nodiscard]] Result<std::unique_ptr<BlkChannel>> make_threads_channel(const FileChannel::Options& options,
                                                                       IoThreads& threads, Loop& loop,
                                                                       BlkChannelCounters& counters);

}  // namespace ringway
