#include "backend/blk/null_store.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "ring/spec.hpp"

namespace ringway {
namespace {

class NullChannel final : public BlkChannel {
 public:
  using BlkChannel::BlkChannel;

  void submit(BlkOperation& operation) noexcept override {
    complete(operation, operation.request.opcode == BlkOpcode::get_id ? spec::kBlkStatusUnsupported : spec::kBlkStatusOk);
  }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return 0; }
};

class NullStore final : public BlkStore {
 public:
  explicit NullStore(const NullStoreOptions& options) {
    info_.engine = "null";
    info_.capacity_bytes = options.capacity_bytes;
    info_.block_bytes = info_.physical_block_bytes = options.block_bytes;
    info_.read_only = options.read_only;
    if (!options.read_only) {
      info_.discard_granularity_bytes = options.block_bytes;
      info_.discard_bytes_max = limits::kBlkRangeSectorsMax * spec::kSectorBytes;
      info_.write_zeroes = info_.secure_erase = true;
    }
  }

  [[nodiscard]] const BlkStoreInfo& info() const noexcept override { return info_; }
  [[nodiscard]] Result<> refresh() override { return {}; }
  [[nodiscard]] Result<> resize(std::uint64_t bytes) override {
    if (bytes == 0 || bytes % info_.block_bytes != 0) {
      return fail(fmt::format("can't resize a null disk to {} bytes: give a multiple of its block size, {}", bytes,
                              info_.block_bytes));
    }
    info_.capacity_bytes = bytes;
    return {};
  }
  [[nodiscard]] Result<std::unique_ptr<BlkChannel>> open_channel(Loop& /*loop*/, BlkChannelCounters& counters) override {
    return std::make_unique<NullChannel>(counters);
  }
  [[nodiscard]] std::string default_serial() const override { return {}; }  // nothing that lasts

 private:
  BlkStoreInfo info_;
};

}  // namespace

std::unique_ptr<BlkStore> make_null_store(const NullStoreOptions& options) {
  RW_CHECK(options.capacity_bytes > 0 && options.capacity_bytes % options.block_bytes == 0);
  return std::make_unique<NullStore>(options);
}

}  // namespace ringway
