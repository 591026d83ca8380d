// Our names against the kernel's, wherever the headers of the oldest supported host have them.
#include "ring/spec.hpp"

// Without this virtio_ring.h has inline functions that aren't C++.
#define VIRTIO_RING_NO_LEGACY
#include <linux/vhost_types.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>

// A member of virtio_net_ctrl_hdr has that name.
#ifdef __clang__
#pragma clang diagnostic ignored "-Wkeyword-macro"
#endif
#define class ctrl_class
#include <linux/virtio_net.h>
#undef class

namespace ringway::spec {
namespace {

static_assert(kFeatureNotifyOnEmpty == bit(VIRTIO_F_NOTIFY_ON_EMPTY));
static_assert(kFeatureAnyLayout == bit(VIRTIO_F_ANY_LAYOUT));
static_assert(kFeatureIndirectDesc == bit(VIRTIO_RING_F_INDIRECT_DESC));
static_assert(kFeatureEventIdx == bit(VIRTIO_RING_F_EVENT_IDX));
static_assert(kFeatureVersion1 == bit(VIRTIO_F_VERSION_1));
static_assert(kFeatureAccessPlatform == bit(VIRTIO_F_ACCESS_PLATFORM));
static_assert(kFeatureRingPacked == bit(VIRTIO_F_RING_PACKED));
static_assert(kFeatureInOrder == bit(VIRTIO_F_IN_ORDER));
static_assert(kFeatureOrderPlatform == bit(VIRTIO_F_ORDER_PLATFORM));
#ifdef VIRTIO_F_NOTIFICATION_DATA
static_assert(kFeatureNotificationData == bit(VIRTIO_F_NOTIFICATION_DATA));
#endif
static_assert(kFeatureRingReset == bit(VIRTIO_F_RING_RESET));
static_assert(kFeatureLogAll == bit(VHOST_F_LOG_ALL));

static_assert(sizeof(Descriptor) == sizeof(vring_desc));
static_assert(offsetof(Descriptor, address) == offsetof(vring_desc, addr));
static_assert(offsetof(Descriptor, length) == offsetof(vring_desc, len));
static_assert(offsetof(Descriptor, flags) == offsetof(vring_desc, flags));
static_assert(offsetof(Descriptor, next) == offsetof(vring_desc, next));
static_assert(kDescNext == VRING_DESC_F_NEXT);
static_assert(kDescWrite == VRING_DESC_F_WRITE);
static_assert(kDescIndirect == VRING_DESC_F_INDIRECT);
static_assert(sizeof(UsedElementWire) == sizeof(vring_used_elem));
static_assert(offsetof(UsedElementWire, length) == offsetof(vring_used_elem, len));
static_assert(kAvailNoInterrupt == VRING_AVAIL_F_NO_INTERRUPT);
static_assert(kUsedNoNotify == VRING_USED_F_NO_NOTIFY);

static_assert(sizeof(PackedDescriptor) == sizeof(vring_packed_desc));
static_assert(offsetof(PackedDescriptor, length) == offsetof(vring_packed_desc, len));
static_assert(offsetof(PackedDescriptor, id) == offsetof(vring_packed_desc, id));
static_assert(offsetof(PackedDescriptor, flags) == offsetof(vring_packed_desc, flags));
static_assert(kPackedDescAvail == 1U << VRING_PACKED_DESC_F_AVAIL);
static_assert(kPackedDescUsed == 1U << VRING_PACKED_DESC_F_USED);
static_assert(sizeof(EventSuppression) == sizeof(vring_packed_desc_event));
static_assert(offsetof(EventSuppression, flags) == offsetof(vring_packed_desc_event, flags));
static_assert(kEventFlagsEnable == VRING_PACKED_EVENT_FLAG_ENABLE);
static_assert(kEventFlagsDisable == VRING_PACKED_EVENT_FLAG_DISABLE);
static_assert(kEventFlagsDesc == VRING_PACKED_EVENT_FLAG_DESC);

static_assert(kBlkSizeMax == bit(VIRTIO_BLK_F_SIZE_MAX));
static_assert(kBlkSegMax == bit(VIRTIO_BLK_F_SEG_MAX));
static_assert(kBlkGeometry == bit(VIRTIO_BLK_F_GEOMETRY));
static_assert(kBlkRo == bit(VIRTIO_BLK_F_RO));
static_assert(kBlkBlkSize == bit(VIRTIO_BLK_F_BLK_SIZE));
static_assert(kBlkFlush == bit(VIRTIO_BLK_F_FLUSH));
static_assert(kBlkTopology == bit(VIRTIO_BLK_F_TOPOLOGY));
static_assert(kBlkConfigWce == bit(VIRTIO_BLK_F_CONFIG_WCE));
static_assert(kBlkMq == bit(VIRTIO_BLK_F_MQ));
static_assert(kBlkDiscard == bit(VIRTIO_BLK_F_DISCARD));
static_assert(kBlkWriteZeroes == bit(VIRTIO_BLK_F_WRITE_ZEROES));
#ifdef VIRTIO_BLK_F_LIFETIME
static_assert(kBlkLifetime == bit(VIRTIO_BLK_F_LIFETIME));
#endif
static_assert(kBlkSecureErase == bit(VIRTIO_BLK_F_SECURE_ERASE));
#ifdef VIRTIO_BLK_F_ZONED
static_assert(kBlkZoned == bit(VIRTIO_BLK_F_ZONED));
#endif

// Newer kernels append the zoned fields, so only our part of the structure is compared.
static_assert(sizeof(BlkConfig) <= sizeof(virtio_blk_config));
static_assert(offsetof(BlkConfig, capacity) == offsetof(virtio_blk_config, capacity));
static_assert(offsetof(BlkConfig, size_max) == offsetof(virtio_blk_config, size_max));
static_assert(offsetof(BlkConfig, seg_max) == offsetof(virtio_blk_config, seg_max));
static_assert(offsetof(BlkConfig, geometry) == offsetof(virtio_blk_config, geometry));
static_assert(offsetof(BlkConfig, blk_size) == offsetof(virtio_blk_config, blk_size));
static_assert(offsetof(BlkConfig, topology.physical_block_exp) == offsetof(virtio_blk_config, physical_block_exp));
static_assert(offsetof(BlkConfig, topology.alignment_offset) == offsetof(virtio_blk_config, alignment_offset));
static_assert(offsetof(BlkConfig, topology.min_io_size) == offsetof(virtio_blk_config, min_io_size));
static_assert(offsetof(BlkConfig, topology.opt_io_size) == offsetof(virtio_blk_config, opt_io_size));
static_assert(offsetof(BlkConfig, writeback) == offsetof(virtio_blk_config, wce));
static_assert(offsetof(BlkConfig, num_queues) == offsetof(virtio_blk_config, num_queues));
static_assert(offsetof(BlkConfig, max_discard_sectors) == offsetof(virtio_blk_config, max_discard_sectors));
static_assert(offsetof(BlkConfig, max_discard_seg) == offsetof(virtio_blk_config, max_discard_seg));
static_assert(offsetof(BlkConfig, discard_sector_alignment) == offsetof(virtio_blk_config, discard_sector_alignment));
static_assert(offsetof(BlkConfig, max_write_zeroes_sectors) == offsetof(virtio_blk_config, max_write_zeroes_sectors));
static_assert(offsetof(BlkConfig, max_write_zeroes_seg) == offsetof(virtio_blk_config, max_write_zeroes_seg));
static_assert(offsetof(BlkConfig, write_zeroes_may_unmap) == offsetof(virtio_blk_config, write_zeroes_may_unmap));
static_assert(offsetof(BlkConfig, max_secure_erase_sectors) == offsetof(virtio_blk_config, max_secure_erase_sectors));
static_assert(offsetof(BlkConfig, max_secure_erase_seg) == offsetof(virtio_blk_config, max_secure_erase_seg));
static_assert(offsetof(BlkConfig, secure_erase_sector_alignment) ==
              offsetof(virtio_blk_config, secure_erase_sector_alignment));

static_assert(sizeof(BlkRequestHeader) == sizeof(virtio_blk_outhdr));
static_assert(offsetof(BlkRequestHeader, sector) == offsetof(virtio_blk_outhdr, sector));
static_assert(kBlkTypeIn == VIRTIO_BLK_T_IN);
static_assert(kBlkTypeOut == VIRTIO_BLK_T_OUT);
static_assert(kBlkTypeFlush == VIRTIO_BLK_T_FLUSH);
static_assert(kBlkTypeGetId == VIRTIO_BLK_T_GET_ID);
static_assert(kBlkTypeDiscard == VIRTIO_BLK_T_DISCARD);
static_assert(kBlkTypeWriteZeroes == VIRTIO_BLK_T_WRITE_ZEROES);
static_assert(kBlkTypeSecureErase == VIRTIO_BLK_T_SECURE_ERASE);
static_assert(sizeof(BlkRange) == sizeof(virtio_blk_discard_write_zeroes));
static_assert(offsetof(BlkRange, sectors) == offsetof(virtio_blk_discard_write_zeroes, num_sectors));
static_assert(offsetof(BlkRange, flags) == offsetof(virtio_blk_discard_write_zeroes, flags));
static_assert(kBlkRangeUnmap == VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP);
static_assert(kBlkStatusOk == VIRTIO_BLK_S_OK);
static_assert(kBlkStatusIoErr == VIRTIO_BLK_S_IOERR);
static_assert(kBlkStatusUnsupported == VIRTIO_BLK_S_UNSUPP);

static_assert(kNetCsum == bit(VIRTIO_NET_F_CSUM));
static_assert(kNetGuestCsum == bit(VIRTIO_NET_F_GUEST_CSUM));
static_assert(kNetCtrlGuestOffloads == bit(VIRTIO_NET_F_CTRL_GUEST_OFFLOADS));
static_assert(kNetMtu == bit(VIRTIO_NET_F_MTU));
static_assert(kNetMac == bit(VIRTIO_NET_F_MAC));
static_assert(kNetGuestTso4 == bit(VIRTIO_NET_F_GUEST_TSO4));
static_assert(kNetGuestTso6 == bit(VIRTIO_NET_F_GUEST_TSO6));
static_assert(kNetGuestEcn == bit(VIRTIO_NET_F_GUEST_ECN));
static_assert(kNetGuestUfo == bit(VIRTIO_NET_F_GUEST_UFO));
static_assert(kNetHostTso4 == bit(VIRTIO_NET_F_HOST_TSO4));
static_assert(kNetHostTso6 == bit(VIRTIO_NET_F_HOST_TSO6));
static_assert(kNetHostEcn == bit(VIRTIO_NET_F_HOST_ECN));
static_assert(kNetHostUfo == bit(VIRTIO_NET_F_HOST_UFO));
static_assert(kNetMrgRxbuf == bit(VIRTIO_NET_F_MRG_RXBUF));
static_assert(kNetStatus == bit(VIRTIO_NET_F_STATUS));
static_assert(kNetCtrlVq == bit(VIRTIO_NET_F_CTRL_VQ));
static_assert(kNetCtrlRx == bit(VIRTIO_NET_F_CTRL_RX));
static_assert(kNetCtrlVlan == bit(VIRTIO_NET_F_CTRL_VLAN));
static_assert(kNetCtrlRxExtra == bit(VIRTIO_NET_F_CTRL_RX_EXTRA));
static_assert(kNetGuestAnnounce == bit(VIRTIO_NET_F_GUEST_ANNOUNCE));
static_assert(kNetMq == bit(VIRTIO_NET_F_MQ));
static_assert(kNetCtrlMacAddr == bit(VIRTIO_NET_F_CTRL_MAC_ADDR));
static_assert(kNetNotfCoal == bit(VIRTIO_NET_F_NOTF_COAL));
static_assert(kNetHashReport == bit(VIRTIO_NET_F_HASH_REPORT));
static_assert(kNetRss == bit(VIRTIO_NET_F_RSS));
static_assert(kNetRscExt == bit(VIRTIO_NET_F_RSC_EXT));
static_assert(kNetStandby == bit(VIRTIO_NET_F_STANDBY));
static_assert(kNetSpeedDuplex == bit(VIRTIO_NET_F_SPEED_DUPLEX));
#ifdef VIRTIO_NET_F_VQ_NOTF_COAL
static_assert(kNetVqNotfCoal == bit(VIRTIO_NET_F_VQ_NOTF_COAL));
#endif
#ifdef VIRTIO_NET_F_GUEST_USO4
static_assert(kNetGuestUso4 == bit(VIRTIO_NET_F_GUEST_USO4));
#endif
#ifdef VIRTIO_NET_F_GUEST_USO6
static_assert(kNetGuestUso6 == bit(VIRTIO_NET_F_GUEST_USO6));
#endif
#ifdef VIRTIO_NET_F_HOST_USO
static_assert(kNetHostUso == bit(VIRTIO_NET_F_HOST_USO));
#endif
#ifdef VIRTIO_NET_F_GUEST_HDRLEN
static_assert(kNetGuestHdrlen == bit(VIRTIO_NET_F_GUEST_HDRLEN));
#endif

// Newer kernels may append to it, so only our part is compared.
static_assert(sizeof(NetConfig) <= sizeof(virtio_net_config));
static_assert(offsetof(NetConfig, mac) == offsetof(virtio_net_config, mac));
static_assert(offsetof(NetConfig, status) == offsetof(virtio_net_config, status));
static_assert(offsetof(NetConfig, max_virtqueue_pairs) == offsetof(virtio_net_config, max_virtqueue_pairs));
static_assert(offsetof(NetConfig, mtu) == offsetof(virtio_net_config, mtu));
static_assert(offsetof(NetConfig, speed) == offsetof(virtio_net_config, speed));
static_assert(offsetof(NetConfig, duplex) == offsetof(virtio_net_config, duplex));
static_assert(offsetof(NetConfig, rss_max_key_size) == offsetof(virtio_net_config, rss_max_key_size));
static_assert(offsetof(NetConfig, rss_max_indirection_table_length) ==
              offsetof(virtio_net_config, rss_max_indirection_table_length));
static_assert(offsetof(NetConfig, supported_hash_types) == offsetof(virtio_net_config, supported_hash_types));
static_assert(kNetStatusLinkUp == VIRTIO_NET_S_LINK_UP);
static_assert(kNetStatusAnnounce == VIRTIO_NET_S_ANNOUNCE);

static_assert(sizeof(NetHeader) == sizeof(virtio_net_hdr_v1_hash));
static_assert(kNetHeaderLegacyBytes == sizeof(virtio_net_hdr));
static_assert(kNetHeaderBytes == sizeof(virtio_net_hdr_v1));
static_assert(kNetHeaderBytes == sizeof(virtio_net_hdr_mrg_rxbuf));
static_assert(kNetHeaderHashBytes == sizeof(virtio_net_hdr_v1_hash));
static_assert(offsetof(NetHeader, flags) == offsetof(virtio_net_hdr_v1, flags));
static_assert(offsetof(NetHeader, gso_type) == offsetof(virtio_net_hdr_v1, gso_type));
static_assert(offsetof(NetHeader, hdr_len) == offsetof(virtio_net_hdr_v1, hdr_len));
static_assert(offsetof(NetHeader, gso_size) == offsetof(virtio_net_hdr_v1, gso_size));
static_assert(offsetof(NetHeader, csum_start) == offsetof(virtio_net_hdr_v1, csum_start));
static_assert(offsetof(NetHeader, csum_offset) == offsetof(virtio_net_hdr_v1, csum_offset));
static_assert(offsetof(NetHeader, num_buffers) == offsetof(virtio_net_hdr_v1, num_buffers));
static_assert(offsetof(NetHeader, hash_value) == offsetof(virtio_net_hdr_v1_hash, hash_value));
static_assert(offsetof(NetHeader, hash_report) == offsetof(virtio_net_hdr_v1_hash, hash_report));
static_assert(kNetHdrNeedsCsum == VIRTIO_NET_HDR_F_NEEDS_CSUM);
static_assert(kNetHdrDataValid == VIRTIO_NET_HDR_F_DATA_VALID);
static_assert(kNetHdrRscInfo == VIRTIO_NET_HDR_F_RSC_INFO);
static_assert(kNetGsoNone == VIRTIO_NET_HDR_GSO_NONE);
static_assert(kNetGsoTcpv4 == VIRTIO_NET_HDR_GSO_TCPV4);
static_assert(kNetGsoUdp == VIRTIO_NET_HDR_GSO_UDP);
static_assert(kNetGsoTcpv6 == VIRTIO_NET_HDR_GSO_TCPV6);
static_assert(kNetGsoEcn == VIRTIO_NET_HDR_GSO_ECN);
#ifdef VIRTIO_NET_HDR_GSO_UDP_L4
static_assert(kNetGsoUdpL4 == VIRTIO_NET_HDR_GSO_UDP_L4);
#endif

static_assert(kNetHashTypeIpv4 == VIRTIO_NET_RSS_HASH_TYPE_IPv4);
static_assert(kNetHashTypeTcpv4 == VIRTIO_NET_RSS_HASH_TYPE_TCPv4);
static_assert(kNetHashTypeUdpv4 == VIRTIO_NET_RSS_HASH_TYPE_UDPv4);
static_assert(kNetHashTypeIpv6 == VIRTIO_NET_RSS_HASH_TYPE_IPv6);
static_assert(kNetHashTypeTcpv6 == VIRTIO_NET_RSS_HASH_TYPE_TCPv6);
static_assert(kNetHashTypeUdpv6 == VIRTIO_NET_RSS_HASH_TYPE_UDPv6);
static_assert(kNetHashTypeIpEx == VIRTIO_NET_RSS_HASH_TYPE_IP_EX);
static_assert(kNetHashTypeTcpEx == VIRTIO_NET_RSS_HASH_TYPE_TCP_EX);
static_assert(kNetHashTypeUdpEx == VIRTIO_NET_RSS_HASH_TYPE_UDP_EX);
static_assert(kNetHashReportNone == VIRTIO_NET_HASH_REPORT_NONE);
static_assert(kNetHashReportIpv4 == VIRTIO_NET_HASH_REPORT_IPv4);
static_assert(kNetHashReportTcpv4 == VIRTIO_NET_HASH_REPORT_TCPv4);
static_assert(kNetHashReportUdpv4 == VIRTIO_NET_HASH_REPORT_UDPv4);
static_assert(kNetHashReportIpv6 == VIRTIO_NET_HASH_REPORT_IPv6);
static_assert(kNetHashReportTcpv6 == VIRTIO_NET_HASH_REPORT_TCPv6);
static_assert(kNetHashReportUdpv6 == VIRTIO_NET_HASH_REPORT_UDPv6);
static_assert(kNetHashReportIpv6Ex == VIRTIO_NET_HASH_REPORT_IPv6_EX);
static_assert(kNetHashReportTcpv6Ex == VIRTIO_NET_HASH_REPORT_TCPv6_EX);
static_assert(kNetHashReportUdpv6Ex == VIRTIO_NET_HASH_REPORT_UDPv6_EX);

static_assert(sizeof(NetCtrlHeader) == sizeof(virtio_net_ctrl_hdr));
static_assert(offsetof(NetCtrlHeader, command) == offsetof(virtio_net_ctrl_hdr, cmd));
static_assert(kNetAckOk == VIRTIO_NET_OK);
static_assert(kNetAckErr == VIRTIO_NET_ERR);
static_assert(kNetCtrlClassRx == VIRTIO_NET_CTRL_RX);
static_assert(kNetCtrlRxPromisc == VIRTIO_NET_CTRL_RX_PROMISC);
static_assert(kNetCtrlRxAllmulti == VIRTIO_NET_CTRL_RX_ALLMULTI);
static_assert(kNetCtrlRxAlluni == VIRTIO_NET_CTRL_RX_ALLUNI);
static_assert(kNetCtrlRxNomulti == VIRTIO_NET_CTRL_RX_NOMULTI);
static_assert(kNetCtrlRxNouni == VIRTIO_NET_CTRL_RX_NOUNI);
static_assert(kNetCtrlRxNobcast == VIRTIO_NET_CTRL_RX_NOBCAST);
static_assert(kNetCtrlClassMac == VIRTIO_NET_CTRL_MAC);
static_assert(kNetCtrlMacTableSet == VIRTIO_NET_CTRL_MAC_TABLE_SET);
static_assert(kNetCtrlMacAddrSet == VIRTIO_NET_CTRL_MAC_ADDR_SET);
static_assert(kNetCtrlClassVlan == VIRTIO_NET_CTRL_VLAN);
static_assert(kNetCtrlVlanAdd == VIRTIO_NET_CTRL_VLAN_ADD);
static_assert(kNetCtrlVlanDel == VIRTIO_NET_CTRL_VLAN_DEL);
static_assert(kNetCtrlClassAnnounce == VIRTIO_NET_CTRL_ANNOUNCE);
static_assert(kNetCtrlAnnounceAck == VIRTIO_NET_CTRL_ANNOUNCE_ACK);
static_assert(kNetCtrlClassMq == VIRTIO_NET_CTRL_MQ);
static_assert(kNetCtrlMqVqPairsSet == VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET);
static_assert(kNetCtrlMqRssConfig == VIRTIO_NET_CTRL_MQ_RSS_CONFIG);
static_assert(kNetCtrlMqHashConfig == VIRTIO_NET_CTRL_MQ_HASH_CONFIG);
static_assert(kNetCtrlClassGuestOffloads == VIRTIO_NET_CTRL_GUEST_OFFLOADS);
static_assert(kNetCtrlGuestOffloadsSet == VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET);
static_assert(kNetCtrlClassNotfCoal == VIRTIO_NET_CTRL_NOTF_COAL);
static_assert(kNetCtrlNotfCoalTxSet == VIRTIO_NET_CTRL_NOTF_COAL_TX_SET);
static_assert(kNetCtrlNotfCoalRxSet == VIRTIO_NET_CTRL_NOTF_COAL_RX_SET);
#ifdef VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET
static_assert(kNetCtrlNotfCoalVqSet == VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET);
#endif
#ifdef VIRTIO_NET_CTRL_NOTF_COAL_VQ_GET
static_assert(kNetCtrlNotfCoalVqGet == VIRTIO_NET_CTRL_NOTF_COAL_VQ_GET);
#endif
static_assert(kNetMqPairsMin == VIRTIO_NET_CTRL_MQ_VQ_PAIRS_MIN);
static_assert(kNetMqPairsMax == VIRTIO_NET_CTRL_MQ_VQ_PAIRS_MAX);

}  // namespace
}  // namespace ringway::spec
