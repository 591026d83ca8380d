/*
 * An independent vhost-user-blk client: libblkio's driver virtio-blk-vhost-user. Writes, reads back and compares on every
 * queue, then tries what is not plain reading and writing. Prints "RESULT name ok|fail" lines like a guest under test.
 *
 *   libblkio_client SOCKET QUEUES
 *
 * The word at byte offset o of the disk is o * 0x9E3779B97F4A7C15 after the write pass, but for the first mebibyte of each
 * queue's part, which is zero in the end; run_libblkio compares the file with that.
 */
#include <blkio.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

enum { BLOCK = 16 * 1024, DEPTH = 32, MIB = 1024 * 1024 };

static int failures;

static void report(const char *name, bool held, const char *detail) {
  printf("RESULT %s %s %s\n", name, held ? "ok" : "fail", held ? "" : detail);
  fflush(stdout);
  failures += !held;
}

static void require(int status, const char *what) {
  if (status < 0) {
    printf("RESULT %s fail %s (%s)\n", what, strerror(-status), blkio_get_error_msg());
    exit(1);
  }
}

static uint64_t pattern(uint64_t offset) { return offset * UINT64_C(0x9E3779B97F4A7C15); }

static void fill(uint64_t *words, uint64_t offset, size_t bytes) {
  for (size_t i = 0; i < bytes / 8; i++) words[i] = pattern(offset + i * 8);
}

static bool is_filled(const uint64_t *words, uint64_t offset, size_t bytes) {
  for (size_t i = 0; i < bytes / 8; i++) {
    if (words[i] != pattern(offset + i * 8)) return false;
  }
  return true;
}

static bool is_zero(const uint64_t *words, size_t bytes) {
  for (size_t i = 0; i < bytes / 8; i++) {
    if (words[i] != 0) return false;
  }
  return true;
}

/* Waits for one request and returns its result; a hang is an error after ten seconds. */
static int one(struct blkioq *queue) {
  struct blkio_completion completion;
  struct timespec timeout = {.tv_sec = 10};
  int count = blkioq_do_io(queue, &completion, 1, 1, &timeout);
  if (count != 1) {
    printf("RESULT completion fail do_io returned %d\n", count);
    exit(1);
  }
  return completion.ret;
}

/* Moves [begin, end) through the queue with DEPTH requests in flight; every buffer has its slot of `memory`. */
static bool sweep(struct blkioq *queue, char *memory, uint64_t begin, uint64_t end, bool writing) {
  uint64_t at[DEPTH];
  int free_slots[DEPTH];
  int free_count = DEPTH;
  int in_flight = 0;
  bool good = true;
  for (int i = 0; i < DEPTH; i++) free_slots[i] = i;
  uint64_t next = begin;
  while (next < end || in_flight > 0) {
    while (next < end && free_count > 0) {
      int slot = free_slots[--free_count];
      char *buffer = memory + (size_t)slot * BLOCK;
      at[slot] = next;
      if (writing) {
        fill((uint64_t *)buffer, next, BLOCK);
        blkioq_write(queue, next, buffer, BLOCK, (void *)(intptr_t)slot, 0);
      } else {
        memset(buffer, 0x5A, BLOCK);
        blkioq_read(queue, next, buffer, BLOCK, (void *)(intptr_t)slot, 0);
      }
      next += BLOCK;
      in_flight++;
    }
    struct blkio_completion completions[DEPTH];
    struct timespec timeout = {.tv_sec = 10};
    int count = blkioq_do_io(queue, completions, 1, DEPTH, &timeout);
    if (count <= 0) {
      printf("no completion within 10 s: %d\n", count);
      return false;
    }
    for (int i = 0; i < count; i++) {
      int slot = (int)(intptr_t)completions[i].user_data;
      if (completions[i].ret != 0) {
        printf("request at %llu: %s\n", (unsigned long long)at[slot], strerror(-completions[i].ret));
        good = false;
      } else if (!writing && !is_filled((uint64_t *)(memory + (size_t)slot * BLOCK), at[slot], BLOCK)) {
        printf("wrong data at %llu\n", (unsigned long long)at[slot]);
        good = false;
      }
      free_slots[free_count++] = slot;
      in_flight--;
    }
  }
  return good;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s SOCKET QUEUES\n", argv[0]);
    return 2;
  }
  int queues = atoi(argv[2]);
  struct blkio *disk = NULL;
  uint64_t capacity = 0;
  int queues_max = 0;
  require(blkio_create("virtio-blk-vhost-user", &disk), "create");
  require(blkio_set_str(disk, "path", argv[1]), "path");
  require(blkio_connect(disk), "connect");
  require(blkio_get_uint64(disk, "capacity", &capacity), "capacity");
  require(blkio_get_int(disk, "max-queues", &queues_max), "max-queues");
  report("all_queues_offered", queues_max >= queues, "fewer queues than the back-end was given");
  require(blkio_set_int(disk, "num-queues", queues), "num-queues");
  require(blkio_start(disk), "start");
  struct blkio_mem_region region;
  require(blkio_alloc_mem_region(disk, &region, (size_t)DEPTH * BLOCK), "memory");
  require(blkio_map_mem_region(disk, &region), "map memory");
  char *memory = region.addr;

  uint64_t part = capacity / (uint64_t)queues / MIB * MIB;
  for (int q = 0; q < queues; q++) {
    struct blkioq *queue = blkio_get_queue(disk, q);
    uint64_t begin = part * (uint64_t)q;
    char name[64];
    snprintf(name, sizeof name, "write_queue_%d", q);
    report(name, sweep(queue, memory, begin, begin + part, true), "see above");
    blkioq_flush(queue, NULL, 0);
    snprintf(name, sizeof name, "flush_queue_%d", q);
    report(name, one(queue) == 0, "flush failed");
  }
  for (int q = 0; q < queues; q++) {
    /* Read by another queue than it was written by. */
    uint64_t begin = part * (uint64_t)((q + 1) % queues);
    char name[64];
    snprintf(name, sizeof name, "read_back_queue_%d", q);
    report(name, sweep(blkio_get_queue(disk, q), memory, begin, begin + part, false), "see above");
  }

  struct blkioq *queue = blkio_get_queue(disk, 0);

  /* Data in sixteen pieces of uneven lengths, sectors in sum. */
  struct iovec pieces[16];
  size_t used = 0;
  for (int i = 0; i < 16; i++) {
    pieces[i].iov_base = memory + (size_t)(15 - i) * 4096;
    pieces[i].iov_len = i % 2 == 0 ? 512 : 1536;
    used += pieces[i].iov_len;
  }
  uint64_t target = part - MIB;
  blkioq_readv(queue, target, pieces, 16, NULL, 0);
  bool scattered = one(queue) == 0;
  uint64_t position = target;
  for (int i = 0; i < 16; i++) {
    scattered = scattered && is_filled(pieces[i].iov_base, position, pieces[i].iov_len);
    position += pieces[i].iov_len;
  }
  report("readv_of_sixteen_pieces", scattered && position == target + used, "wrong data");

  blkioq_write(queue, part - MIB, memory, 4096, NULL, BLKIO_REQ_FUA);
  int fua = one(queue);
  report("write_fua_or_not_supported", fua == 0 || fua == -ENOTSUP, strerror(-fua));
  fill((uint64_t *)memory, part - MIB, 4096);
  blkioq_write(queue, part - MIB, memory, 4096, NULL, 0);
  report("write_again", one(queue) == 0, "write failed");

  for (int q = 0; q < queues; q++) {
    blkioq_write_zeroes(queue, part * (uint64_t)q, MIB, NULL, 0);
    int zeroed = one(queue);
    report("write_zeroes", zeroed == 0, strerror(-zeroed));
    memset(memory, 0x5A, BLOCK);
    blkioq_read(queue, part * (uint64_t)q + MIB - BLOCK, memory, BLOCK, NULL, 0);
    report("zeroes_read_back", one(queue) == 0 && is_zero((uint64_t *)memory, BLOCK), "not zero");
  }
  blkioq_discard(queue, 0, MIB, NULL, 0);
  int discarded = one(queue);
  report("discard", discarded == 0, strerror(-discarded));

  /* One block beyond the end: refused, and the queue goes on. */
  blkioq_read(queue, capacity, memory, 4096, NULL, 0);
  report("read_past_the_end_is_refused", one(queue) != 0, "succeeded");
  blkioq_read(queue, capacity - 4096, memory, 4096, NULL, 0);
  report("queue_goes_on_after_that", one(queue) == 0, "read failed");

  blkio_unmap_mem_region(disk, &region);
  blkio_free_mem_region(disk, &region);
  blkio_destroy(&disk);
  printf("DONE\n");
  return failures == 0 ? 0 : 1;
}
