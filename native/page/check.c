/* Validates a page for the daemon and the interposer. Tenants can change the bytes at any time, so each word that the
 * check depends on is read once. */
#include "page/gs_check.h"

#include <errno.h>
#include <string.h>

static uint32_t load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static int check_header(const char *name, uint32_t magic, uint32_t expected, uint32_t version, uint32_t inside,
                        uint64_t want, uint64_t size, const char *grant, struct gs_err *err) {
  if (magic != expected)
    return gs_fail(err, -EPROTO, "not a %s page: magic 0x%08x instead of 0x%08x", name, magic, expected);
  if (version != GS_PAGE_VERSION)
    return gs_fail(err, -EPROTO,
                   "%s page has version %u, this gpushare speaks %d: end its processes and create the grant again",
                   name, version, GS_PAGE_VERSION);
  if (inside != want || size != want)
    return gs_fail(err, -EPROTO, "%s page says %u bytes and has %llu, expected %llu", name, inside,
                   (unsigned long long)size, (unsigned long long)want);
  if (grant[0] == '\0' || memchr(grant, 0, GS_GRANT_ID_BYTES) == NULL)
    return gs_fail(err, -EPROTO, "%s page has no grant id", name);
  return 0;
}

int gs_limits_check(const struct gs_limits *page, uint64_t size, struct gs_err *err) {
  if (size < sizeof *page)
    return gs_fail(err, -EPROTO, "limits page has %llu bytes, expected %zu", (unsigned long long)size, sizeof *page);
  int rc = check_header("limits", load(&page->magic), GS_LIMITS_MAGIC, page->version, page->size, sizeof *page, size,
                        page->grant, err);
  if (rc < 0)
    return rc;
  if (page->ndevices == 0 || page->ndevices > GS_MAX_DEVICES)
    return gs_fail(err, -EPROTO, "limits page names %u devices, at most %d are possible", page->ndevices,
                   GS_MAX_DEVICES);
  if (load(&page->slots_high) > GS_MAX_SLOTS)
    return gs_fail(err, -EPROTO, "limits page names %u slots, at most %d are possible", load(&page->slots_high),
                   GS_MAX_SLOTS);
  return 0;
}

int gs_usage_check(const struct gs_usage *page, uint64_t size, struct gs_err *err) {
  if (size < sizeof *page)
    return gs_fail(err, -EPROTO, "usage page has %llu bytes, expected %zu", (unsigned long long)size, sizeof *page);
  int rc = check_header("usage", load(&page->magic), GS_USAGE_MAGIC, page->version, page->size, sizeof *page, size,
                        page->grant, err);
  if (rc < 0)
    return rc;
  if (page->nslots != GS_MAX_SLOTS)
    return gs_fail(err, -EPROTO, "usage page names %u slots, expected %d", page->nslots, GS_MAX_SLOTS);
  return 0;
}
