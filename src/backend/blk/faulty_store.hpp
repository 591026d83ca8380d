// A decorator for tests: any store, with faults that real ones have rarely.
//
// Text form, items separated by commas:
//     eio=1/100       one request in 100 fails with IOERR, untouched
//     delay=500us     each request reaches the store that much later (ns, us, ms, s)
//     hang=1/1000     one request in 1000 doesn't complete until release()
//     seed=7          of the random choices; the same seed gives the same choices per channel
//     short=1/3       one transfer in three is cut to a random part by "the kernel" (file stores only)
//     eagain=1/10     one system call in ten answers EAGAIN (file stores only)
// eio, delay and hang may be narrowed: `:flush` to one kind of request (in, out, flush, discard, write_zeroes), `@1M` to
// requests that touch that byte. "hang@1M", "delay=500ms:flush", "eio=1/2:out@0". Without a fraction: always.
// The first item that applies to a request decides.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "backend/blk/blk_store.hpp"
#include "backend/blk/file_channel.hpp"
#include "base/result.hpp"
#include "base/time.hpp"

namespace ringway {

struct BlkFault {
  enum class Kind : std::uint8_t { eio, delay, hang };

  Kind kind = Kind::eio;
  std::uint32_t numerator = 1, denominator = 1;
  Duration delay;
  std::optional<BlkOpcode> opcode;
  std::optional<std::uint64_t> touching;  // a byte of the disk
};

struct BlkFaults {
  std::vector<BlkFault> requests;
  FileFaults file;  // below the channel, where only a file store has something
  std::uint64_t seed = 1;
};

[[nodiscard]] Result<BlkFaults> parse_blk_faults(std::string_view text);

class FaultyStore : public BlkStore {
 public:
  // Lets all hung requests go on, and no further one hang. Any thread.
  virtual void release() noexcept = 0;
};

[[nodiscard]] std::unique_ptr<FaultyStore> make_faulty_store(std::unique_ptr<BlkStore> store, const BlkFaults& faults);

}  // namespace ringway
