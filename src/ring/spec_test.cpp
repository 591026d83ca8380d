// Our names against the kernel's, wherever the headers of the oldest supported host have them.
#include "ring/spec.hpp"

// Without this virtio_ring.h has inline functions that aren't C++.
#define VIRTIO_RING_NO_LEGACY
#include <linux/vhost_types.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>

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

}  // namespace
}  // namespace ringway::spec
