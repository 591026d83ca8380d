// Constants and wire structures of the virtio specification (1.3, and what Linux added to it), under their own names in
// our case style. The kernel's headers of the oldest host we build on lack several, and virtio_ring.h is not valid C++;
// spec_test.cpp asserts these against the kernel's headers wherever those have them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringway::spec {

// --- §2.2 feature bits ---
constexpr std::uint64_t bit(unsigned number) {
  return std::uint64_t{1} << number;
}

inline constexpr std::uint64_t kFeatureNotifyOnEmpty = bit(24);     // legacy
inline constexpr std::uint64_t kFeatureAnyLayout = bit(27);         // legacy
inline constexpr std::uint64_t kFeatureIndirectDesc = bit(28);      // VIRTIO_F_INDIRECT_DESC
inline constexpr std::uint64_t kFeatureEventIdx = bit(29);          // VIRTIO_F_EVENT_IDX
inline constexpr std::uint64_t kFeatureVersion1 = bit(32);          // VIRTIO_F_VERSION_1
inline constexpr std::uint64_t kFeatureAccessPlatform = bit(33);    // VIRTIO_F_ACCESS_PLATFORM
inline constexpr std::uint64_t kFeatureRingPacked = bit(34);        // VIRTIO_F_RING_PACKED
inline constexpr std::uint64_t kFeatureInOrder = bit(35);           // VIRTIO_F_IN_ORDER
inline constexpr std::uint64_t kFeatureOrderPlatform = bit(36);     // VIRTIO_F_ORDER_PLATFORM
inline constexpr std::uint64_t kFeatureNotificationData = bit(38);  // VIRTIO_F_NOTIFICATION_DATA
inline constexpr std::uint64_t kFeatureRingReset = bit(40);         // VIRTIO_F_RING_RESET
// vhost and vhost-user
inline constexpr std::uint64_t kFeatureLogAll = bit(26);            // VHOST_F_LOG_ALL
inline constexpr std::uint64_t kFeatureProtocolFeatures = bit(30);  // VHOST_USER_F_PROTOCOL_FEATURES

// --- §2.7 split virtqueues ---
struct Descriptor {
  std::uint64_t address;
  std::uint32_t length;
  std::uint16_t flags;
  std::uint16_t next;
};
static_assert(sizeof(Descriptor) == 16);
inline constexpr std::uint16_t kDescNext = 1;
inline constexpr std::uint16_t kDescWrite = 2;
inline constexpr std::uint16_t kDescIndirect = 4;

struct UsedElementWire {
  std::uint32_t id;
  std::uint32_t length;
};
static_assert(sizeof(UsedElementWire) == 8);
inline constexpr std::uint16_t kAvailNoInterrupt = 1;  // VIRTQ_AVAIL_F_NO_INTERRUPT
inline constexpr std::uint16_t kUsedNoNotify = 1;      // VIRTQ_USED_F_NO_NOTIFY

// --- §2.8 packed virtqueues ---
struct PackedDescriptor {
  std::uint64_t address;
  std::uint32_t length;
  std::uint16_t id;
  std::uint16_t flags;
};
static_assert(sizeof(PackedDescriptor) == 16);
inline constexpr std::uint16_t kPackedDescAvail = 1U << 7U;
inline constexpr std::uint16_t kPackedDescUsed = 1U << 15U;
struct EventSuppression {
  std::uint16_t offset_wrap;
  std::uint16_t flags;
};
static_assert(sizeof(EventSuppression) == 4);
inline constexpr std::uint16_t kEventFlagsEnable = 0;   // RING_EVENT_FLAGS_ENABLE
inline constexpr std::uint16_t kEventFlagsDisable = 1;  // RING_EVENT_FLAGS_DISABLE
inline constexpr std::uint16_t kEventFlagsDesc = 2;     // RING_EVENT_FLAGS_DESC

// --- §5.2 block device ---
inline constexpr std::uint64_t kBlkSizeMax = bit(1);
inline constexpr std::uint64_t kBlkSegMax = bit(2);
inline constexpr std::uint64_t kBlkGeometry = bit(4);
inline constexpr std::uint64_t kBlkRo = bit(5);
inline constexpr std::uint64_t kBlkBlkSize = bit(6);
inline constexpr std::uint64_t kBlkFlush = bit(9);
inline constexpr std::uint64_t kBlkTopology = bit(10);
inline constexpr std::uint64_t kBlkConfigWce = bit(11);
inline constexpr std::uint64_t kBlkMq = bit(12);
inline constexpr std::uint64_t kBlkDiscard = bit(13);
inline constexpr std::uint64_t kBlkWriteZeroes = bit(14);
inline constexpr std::uint64_t kBlkLifetime = bit(15);
inline constexpr std::uint64_t kBlkSecureErase = bit(16);
inline constexpr std::uint64_t kBlkZoned = bit(17);

#pragma pack(push, 1)
struct BlkConfig {
  std::uint64_t capacity;  // in 512-byte sectors
  std::uint32_t size_max;
  std::uint32_t seg_max;
  struct {
    std::uint16_t cylinders;
    std::uint8_t heads;
    std::uint8_t sectors;
  } geometry;
  std::uint32_t blk_size;
  struct {
    std::uint8_t physical_block_exp;
    std::uint8_t alignment_offset;
    std::uint16_t min_io_size;
    std::uint32_t opt_io_size;
  } topology;
  std::uint8_t writeback;
  std::uint8_t unused0;
  std::uint16_t num_queues;
  std::uint32_t max_discard_sectors;
  std::uint32_t max_discard_seg;
  std::uint32_t discard_sector_alignment;
  std::uint32_t max_write_zeroes_sectors;
  std::uint32_t max_write_zeroes_seg;
  std::uint8_t write_zeroes_may_unmap;
  std::uint8_t unused1[3];
  std::uint32_t max_secure_erase_sectors;
  std::uint32_t max_secure_erase_seg;
  std::uint32_t secure_erase_sector_alignment;
};
#pragma pack(pop)
static_assert(offsetof(BlkConfig, blk_size) == 20);
static_assert(offsetof(BlkConfig, writeback) == 32);
static_assert(offsetof(BlkConfig, num_queues) == 34);
static_assert(offsetof(BlkConfig, write_zeroes_may_unmap) == 56);
static_assert(sizeof(BlkConfig) == 72);

struct BlkRequestHeader {
  std::uint32_t type;
  std::uint32_t reserved;  // once the I/O priority
  std::uint64_t sector;
};
static_assert(sizeof(BlkRequestHeader) == 16);
inline constexpr std::uint32_t kBlkTypeIn = 0;
inline constexpr std::uint32_t kBlkTypeOut = 1;
inline constexpr std::uint32_t kBlkTypeFlush = 4;
inline constexpr std::uint32_t kBlkTypeGetId = 8;
inline constexpr std::uint32_t kBlkTypeGetLifetime = 10;
inline constexpr std::uint32_t kBlkTypeDiscard = 11;
inline constexpr std::uint32_t kBlkTypeWriteZeroes = 13;
inline constexpr std::uint32_t kBlkTypeSecureErase = 14;

struct BlkRange {  // struct virtio_blk_discard_write_zeroes
  std::uint64_t sector;
  std::uint32_t sectors;
  std::uint32_t flags;
};
static_assert(sizeof(BlkRange) == 16);
inline constexpr std::uint32_t kBlkRangeUnmap = 1;

inline constexpr std::uint8_t kBlkStatusOk = 0;
inline constexpr std::uint8_t kBlkStatusIoErr = 1;
inline constexpr std::uint8_t kBlkStatusUnsupported = 2;

inline constexpr std::uint32_t kSectorBytes = 512;

// --- §5.1 network device ---
inline constexpr std::uint64_t kNetCsum = bit(0);
inline constexpr std::uint64_t kNetGuestCsum = bit(1);
inline constexpr std::uint64_t kNetCtrlGuestOffloads = bit(2);
inline constexpr std::uint64_t kNetMtu = bit(3);
inline constexpr std::uint64_t kNetMac = bit(5);
inline constexpr std::uint64_t kNetGuestTso4 = bit(7);
inline constexpr std::uint64_t kNetGuestTso6 = bit(8);
inline constexpr std::uint64_t kNetGuestEcn = bit(9);
inline constexpr std::uint64_t kNetGuestUfo = bit(10);
inline constexpr std::uint64_t kNetHostTso4 = bit(11);
inline constexpr std::uint64_t kNetHostTso6 = bit(12);
inline constexpr std::uint64_t kNetHostEcn = bit(13);
inline constexpr std::uint64_t kNetHostUfo = bit(14);
inline constexpr std::uint64_t kNetMrgRxbuf = bit(15);
inline constexpr std::uint64_t kNetStatus = bit(16);
inline constexpr std::uint64_t kNetCtrlVq = bit(17);
inline constexpr std::uint64_t kNetCtrlRx = bit(18);
inline constexpr std::uint64_t kNetCtrlVlan = bit(19);
inline constexpr std::uint64_t kNetCtrlRxExtra = bit(20);
inline constexpr std::uint64_t kNetGuestAnnounce = bit(21);
inline constexpr std::uint64_t kNetMq = bit(22);
inline constexpr std::uint64_t kNetCtrlMacAddr = bit(23);
inline constexpr std::uint64_t kNetVqNotfCoal = bit(52);
inline constexpr std::uint64_t kNetNotfCoal = bit(53);
inline constexpr std::uint64_t kNetGuestUso4 = bit(54);
inline constexpr std::uint64_t kNetGuestUso6 = bit(55);
inline constexpr std::uint64_t kNetHostUso = bit(56);
inline constexpr std::uint64_t kNetHashReport = bit(57);
inline constexpr std::uint64_t kNetGuestHdrlen = bit(59);
inline constexpr std::uint64_t kNetRss = bit(60);
inline constexpr std::uint64_t kNetRscExt = bit(61);
inline constexpr std::uint64_t kNetStandby = bit(62);
inline constexpr std::uint64_t kNetSpeedDuplex = bit(63);

inline constexpr std::size_t kMacBytes = 6;
#pragma pack(push, 1)
struct NetConfig {
  std::uint8_t mac[kMacBytes];
  std::uint16_t status;
  std::uint16_t max_virtqueue_pairs;
  std::uint16_t mtu;
  std::uint32_t speed;  // Mbit/s
  std::uint8_t duplex;
  std::uint8_t rss_max_key_size;
  std::uint16_t rss_max_indirection_table_length;
  std::uint32_t supported_hash_types;
};
#pragma pack(pop)
static_assert(offsetof(NetConfig, mtu) == 10);
static_assert(offsetof(NetConfig, duplex) == 16);
static_assert(offsetof(NetConfig, supported_hash_types) == 20);
static_assert(sizeof(NetConfig) == 24);
inline constexpr std::uint16_t kNetStatusLinkUp = 1;
inline constexpr std::uint16_t kNetStatusAnnounce = 2;
inline constexpr std::uint32_t kNetSpeedUnknown = 0xffffffff;
inline constexpr std::uint8_t kNetDuplexFull = 1;
inline constexpr std::uint8_t kNetDuplexUnknown = 0xff;

// §5.1.6: struct virtio_net_hdr. How much of it stands before a frame depends on what was negotiated: without VERSION_1 and
// MRG_RXBUF the first 10 bytes, with either 12, and with HASH_REPORT all 20.
struct NetHeader {
  std::uint8_t flags;
  std::uint8_t gso_type;
  std::uint16_t hdr_len;
  std::uint16_t gso_size;
  std::uint16_t csum_start;
  std::uint16_t csum_offset;
  std::uint16_t num_buffers;
  std::uint32_t hash_value;
  std::uint16_t hash_report;
  std::uint16_t padding_reserved;
};
static_assert(sizeof(NetHeader) == 20);
inline constexpr std::size_t kNetHeaderLegacyBytes = 10;
inline constexpr std::size_t kNetHeaderBytes = 12;
inline constexpr std::size_t kNetHeaderHashBytes = 20;
inline constexpr std::uint8_t kNetHdrNeedsCsum = 1;
inline constexpr std::uint8_t kNetHdrDataValid = 2;
inline constexpr std::uint8_t kNetHdrRscInfo = 4;
inline constexpr std::uint8_t kNetGsoNone = 0;
inline constexpr std::uint8_t kNetGsoTcpv4 = 1;
inline constexpr std::uint8_t kNetGsoUdp = 3;
inline constexpr std::uint8_t kNetGsoTcpv6 = 4;
inline constexpr std::uint8_t kNetGsoUdpL4 = 5;
inline constexpr std::uint8_t kNetGsoEcn = 0x80;  // ored to the others

// §5.1.6.4.3 and .4: hash_types, and what hash_report then says.
inline constexpr std::uint32_t kNetHashTypeIpv4 = 1U << 0U;
inline constexpr std::uint32_t kNetHashTypeTcpv4 = 1U << 1U;
inline constexpr std::uint32_t kNetHashTypeUdpv4 = 1U << 2U;
inline constexpr std::uint32_t kNetHashTypeIpv6 = 1U << 3U;
inline constexpr std::uint32_t kNetHashTypeTcpv6 = 1U << 4U;
inline constexpr std::uint32_t kNetHashTypeUdpv6 = 1U << 5U;
inline constexpr std::uint32_t kNetHashTypeIpEx = 1U << 6U;
inline constexpr std::uint32_t kNetHashTypeTcpEx = 1U << 7U;
inline constexpr std::uint32_t kNetHashTypeUdpEx = 1U << 8U;
inline constexpr std::uint16_t kNetHashReportNone = 0;
inline constexpr std::uint16_t kNetHashReportIpv4 = 1;
inline constexpr std::uint16_t kNetHashReportTcpv4 = 2;
inline constexpr std::uint16_t kNetHashReportUdpv4 = 3;
inline constexpr std::uint16_t kNetHashReportIpv6 = 4;
inline constexpr std::uint16_t kNetHashReportTcpv6 = 5;
inline constexpr std::uint16_t kNetHashReportUdpv6 = 6;
inline constexpr std::uint16_t kNetHashReportIpv6Ex = 7;
inline constexpr std::uint16_t kNetHashReportTcpv6Ex = 8;
inline constexpr std::uint16_t kNetHashReportUdpv6Ex = 9;
inline constexpr std::size_t kNetRssKeyBytesMax = 40;

// §5.1.6.5: the control virtqueue
struct NetCtrlHeader {
  std::uint8_t control_class;
  std::uint8_t command;
};
static_assert(sizeof(NetCtrlHeader) == 2);
inline constexpr std::uint8_t kNetAckOk = 0;
inline constexpr std::uint8_t kNetAckErr = 1;
inline constexpr std::uint8_t kNetCtrlClassRx = 0;
inline constexpr std::uint8_t kNetCtrlRxPromisc = 0;
inline constexpr std::uint8_t kNetCtrlRxAllmulti = 1;
inline constexpr std::uint8_t kNetCtrlRxAlluni = 2;
inline constexpr std::uint8_t kNetCtrlRxNomulti = 3;
inline constexpr std::uint8_t kNetCtrlRxNouni = 4;
inline constexpr std::uint8_t kNetCtrlRxNobcast = 5;
inline constexpr std::uint8_t kNetCtrlClassMac = 1;
inline constexpr std::uint8_t kNetCtrlMacTableSet = 0;
inline constexpr std::uint8_t kNetCtrlMacAddrSet = 1;
inline constexpr std::uint8_t kNetCtrlClassVlan = 2;
inline constexpr std::uint8_t kNetCtrlVlanAdd = 0;
inline constexpr std::uint8_t kNetCtrlVlanDel = 1;
inline constexpr std::uint8_t kNetCtrlClassAnnounce = 3;
inline constexpr std::uint8_t kNetCtrlAnnounceAck = 0;
inline constexpr std::uint8_t kNetCtrlClassMq = 4;
inline constexpr std::uint8_t kNetCtrlMqVqPairsSet = 0;
inline constexpr std::uint8_t kNetCtrlMqRssConfig = 1;
inline constexpr std::uint8_t kNetCtrlMqHashConfig = 2;
inline constexpr std::uint8_t kNetCtrlClassGuestOffloads = 5;
inline constexpr std::uint8_t kNetCtrlGuestOffloadsSet = 0;
inline constexpr std::uint8_t kNetCtrlClassNotfCoal = 6;
inline constexpr std::uint8_t kNetCtrlNotfCoalTxSet = 0;
inline constexpr std::uint8_t kNetCtrlNotfCoalRxSet = 1;
inline constexpr std::uint8_t kNetCtrlNotfCoalVqSet = 2;
inline constexpr std::uint8_t kNetCtrlNotfCoalVqGet = 3;
inline constexpr std::uint16_t kNetMqPairsMin = 1;       // VIRTIO_NET_CTRL_MQ_VQ_PAIRS_MIN
inline constexpr std::uint16_t kNetMqPairsMax = 0x8000;  // VIRTIO_NET_CTRL_MQ_VQ_PAIRS_MAX

}  // namespace ringway::spec
