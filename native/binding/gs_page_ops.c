#include "binding/gs_page_ops.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "page/page.h"

uint32_t gs_load32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

uint64_t gs_load64(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/* before whatever is read after it: who writes a residency word reads what processes have reserved, and they do the opposite */
void gs_store32(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

void gs_store64(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

uint32_t gs_add32(uint32_t *word, uint32_t value) { return __atomic_add_fetch(word, value, __ATOMIC_SEQ_CST); }

int gs_futex_wake(uint32_t *word) { return (int)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

uint64_t gs_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

_Static_assert(offsetof(struct gs_usage, slot) == GS_USAGE_HEAD_BYTES, "layout");

static int check_id(const char *grant, struct gs_err *err) {
  size_t length = strnlen(grant, GS_GRANT_ID_BYTES);
  if (length == 0 || length == GS_GRANT_ID_BYTES)
    return gs_fail(err, -EINVAL, "a grant id has 1 to %d bytes", GS_GRANT_ID_BYTES - 1);
  return 0;
}

int gs_limits_init(struct gs_limits *page, uint64_t size, const char *grant, uint32_t ndevices, uint32_t daemon_epoch,
                   struct gs_err *err) {
  int rc = check_id(grant, err);
  if (rc < 0)
    return rc;
  if (size != sizeof *page)
    return gs_fail(err, -EINVAL, "a limits page has %zu bytes, not %llu", sizeof *page, (unsigned long long)size);
  if (ndevices == 0 || ndevices > GS_MAX_DEVICES)
    return gs_fail(err, -EINVAL, "a grant has 1 to %d devices, not %u", GS_MAX_DEVICES, ndevices);
  page->version = GS_PAGE_VERSION;
  page->size = sizeof *page;
  page->ndevices = ndevices;
  strcpy(page->grant, grant);
  page->daemon_epoch = daemon_epoch;
  gs_store32(&page->magic, GS_LIMITS_MAGIC);
  return 0;
}

int gs_usage_init(struct gs_usage *page, uint64_t size, const char *grant, struct gs_err *err) {
  int rc = check_id(grant, err);
  if (rc < 0)
    return rc;
  if (size != sizeof *page)
    return gs_fail(err, -EINVAL, "a usage page has %zu bytes, not %llu", sizeof *page, (unsigned long long)size);
  page->version = GS_PAGE_VERSION;
  page->size = sizeof *page;
  page->nslots = GS_MAX_SLOTS;
  strcpy(page->grant, grant);
  gs_store32(&page->magic, GS_USAGE_MAGIC);
  return 0;
}

static void take_seat(struct gs_seat *seat, uint32_t generation, int32_t pid, uint64_t since_ns) {
  seat->generation = generation;
  seat->pid = pid;
  seat->since_ns = since_ns;
  gs_store32(&seat->taken, 1);
}

int gs_slot_claim(struct gs_limits *limits, struct gs_usage *usage, struct gs_seats *seats, int32_t pid, uint32_t *slot,
                  uint32_t *generation, struct gs_err *err) {
  for (uint32_t i = 0; i < GS_MAX_SLOTS; i++) {
    struct gs_slot *s = &usage->slot[i];
    struct gs_seat *seat = &seats->seat[i];
    if (gs_load32(&seat->taken))
      continue;
    *slot = i;
    /* after a start of the daemon, continues from the page's number */
    *generation = (seat->generation ? seat->generation : gs_load32(&s->generation)) + 1;
    memset(s->device, 0, sizeof s->device);
    gs_store32(&s->refusals, 0);
    s->sync_calls = s->host_bytes_in = s->host_bytes_out = 0;
    s->pid = pid;
    s->generation = *generation;
    gs_store32(&s->state, GS_SLOT_LIVE);
    take_seat(seat, *generation, pid, gs_now_ns());
    if (gs_load32(&limits->slots_high) <= i)
      gs_store32(&limits->slots_high, i + 1);
    return 0;
  }
  return gs_fail(err, -ENOSPC, "all %d process slots of the grant are taken: end some of its processes", GS_MAX_SLOTS);
}

void gs_seat_keep(struct gs_seats *seats, uint32_t slot, uint32_t generation, int32_t pid, uint64_t since_ns) {
  if (slot < GS_MAX_SLOTS && !gs_load32(&seats->seat[slot].taken))
    take_seat(&seats->seat[slot], generation, pid, since_ns);
}

void gs_page_held(const struct gs_limits *limits, struct gs_usage *usage, uint32_t device, uint64_t *least,
                  uint64_t *most) {
  gs_page_span(&(struct gs_pages){limits, usage}, device, least, most);
}
