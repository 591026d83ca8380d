// The vhost-user protocol's messages on the wire (QEMU docs/interop/vhost-user.rst), under the specification's names.
#pragma once

#include <cstdint>

namespace ringway::vhost_user {

enum class Request : std::uint32_t {
  get_features = 1,
  set_features = 2,
  set_owner = 3,
  reset_owner = 4,
  set_mem_table = 5,
  set_log_base = 6,
  set_log_fd = 7,
  set_vring_num = 8,
  set_vring_addr = 9,
  set_vring_base = 10,
  get_vring_base = 11,
  set_vring_kick = 12,
  set_vring_call = 13,
  set_vring_err = 14,
  get_protocol_features = 15,
  set_protocol_features = 16,
  get_queue_num = 17,
  set_vring_enable = 18,
  send_rarp = 19,
  net_set_mtu = 20,
  set_backend_req_fd = 21,
  iotlb_msg = 22,
  set_vring_endian = 23,
  get_config = 24,
  set_config = 25,
  create_crypto_session = 26,
  close_crypto_session = 27,
  postcopy_advise = 28,
  postcopy_listen = 29,
  postcopy_end = 30,
  get_inflight_fd = 31,
  set_inflight_fd = 32,
  gpu_set_socket = 33,
  reset_device = 34,
  vring_kick = 35,
  get_max_mem_slots = 36,
  add_mem_reg = 37,
  rem_mem_reg = 38,
  set_status = 39,
  get_status = 40,
  get_shared_object = 41,
  set_device_state_fd = 42,
  check_device_state = 43,
  get_shmem_config = 44,
};
// The specification's name without its prefix, or "an unknown message".
[[nodiscard]] const char* to_string(Request request) noexcept;

enum class BackendRequest : std::uint32_t {
  iotlb_msg = 1,
  config_change_msg = 2,
  vring_host_notifier_msg = 3,
  vring_call = 4,
  vring_err = 5,
};

// Header flags.
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint32_t kVersionMask = 3;
inline constexpr std::uint32_t kFlagReply = 1U << 2U;
inline constexpr std::uint32_t kFlagNeedReply = 1U << 3U;

struct Header {
  std::uint32_t request = 0;
  std::uint32_t flags = kVersion;
  std::uint32_t payload_bytes = 0;
};
static_assert(sizeof(Header) == 12);

constexpr std::uint64_t protocol_bit(unsigned number) {
  return std::uint64_t{1} << number;
}
inline constexpr std::uint64_t kProtocolMq = protocol_bit(0);
inline constexpr std::uint64_t kProtocolLogShmfd = protocol_bit(1);
inline constexpr std::uint64_t kProtocolRarp = protocol_bit(2);
inline constexpr std::uint64_t kProtocolReplyAck = protocol_bit(3);
inline constexpr std::uint64_t kProtocolMtu = protocol_bit(4);
inline constexpr std::uint64_t kProtocolBackendReq = protocol_bit(5);
inline constexpr std::uint64_t kProtocolCrossEndian = protocol_bit(6);
inline constexpr std::uint64_t kProtocolCryptoSession = protocol_bit(7);
inline constexpr std::uint64_t kProtocolPagefault = protocol_bit(8);
inline constexpr std::uint64_t kProtocolConfig = protocol_bit(9);
inline constexpr std::uint64_t kProtocolBackendSendFd = protocol_bit(10);
inline constexpr std::uint64_t kProtocolHostNotifier = protocol_bit(11);
inline constexpr std::uint64_t kProtocolInflightShmfd = protocol_bit(12);
inline constexpr std::uint64_t kProtocolResetDevice = protocol_bit(13);
inline constexpr std::uint64_t kProtocolInbandNotifications = protocol_bit(14);
inline constexpr std::uint64_t kProtocolConfigureMemSlots = protocol_bit(15);
inline constexpr std::uint64_t kProtocolStatus = protocol_bit(16);

struct MemoryRegion {
  std::uint64_t guest_address;
  std::uint64_t bytes;
  std::uint64_t user_address;
  std::uint64_t mmap_offset;
};
static_assert(sizeof(MemoryRegion) == 32);

struct VringState {
  std::uint32_t index;
  std::uint32_t num;
};
struct VringAddress {
  std::uint32_t index;
  std::uint32_t flags;  // bit 0: VHOST_VRING_F_LOG
  std::uint64_t descriptor;
  std::uint64_t used;
  std::uint64_t available;
  std::uint64_t log;
};
static_assert(sizeof(VringAddress) == 40);
struct LogDescription {
  std::uint64_t bytes;
  std::uint64_t offset;
};
struct InflightDescription {
  std::uint64_t mmap_bytes;
  std::uint64_t mmap_offset;
  std::uint16_t queue_count;
  std::uint16_t queue_size;
};
struct ConfigHeader {
  std::uint32_t offset;
  std::uint32_t bytes;
  std::uint32_t flags;
};
inline constexpr std::uint64_t kVringIndexMask = 0xff;
inline constexpr std::uint64_t kVringNoFd = 0x100;

}  // namespace ringway::vhost_user
