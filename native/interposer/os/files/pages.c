#include "interposer/os/files/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interposer/os/system.h"
#include "page/gs_check.h"

/* path: for messages */
static int map_descriptor(int fd, const char *path, size_t size, bool writable, void **out, struct gs_err *err) {
  struct stat file;
  void *at;
  if (gs_fstat(fd, &file) < 0)
    return gs_fail(err, -errno, "cannot look at %s: %s", path, strerror(errno));
  if (!S_ISREG(file.st_mode) || (uint64_t)file.st_size != size)
    return gs_fail(err, -EPROTO, "%s has %lld bytes, expected %zu: not a page of this version", path,
                   (long long)file.st_size, size);
  at = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED)
    return gs_fail(err, -errno, "cannot map %s: %s", path, strerror(errno));
  *out = at;
  return 0;
}

static int map_file(const char *dir, const char *name, size_t size, bool writable, void **out, struct gs_err *err) {
  char path[PATH_MAX];
  if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
    return gs_fail(err, -ENAMETOOLONG, "the grant directory's name is too long");
  int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0)
    return gs_fail(err, -errno, "cannot open %s: %s", path, strerror(errno));
  int rc = map_descriptor(fd, path, size, writable, out, err);
  close(fd);
  return rc;
}

static int check(const struct gs_limits *limits, const struct gs_usage *usage, struct gs_err *err) {
  int rc = gs_limits_check(limits, sizeof *limits, err);
  if (rc == 0 && usage)
    rc = gs_usage_check(usage, sizeof *usage, err);
  if (rc == 0 && usage && strncmp(limits->grant, usage->grant, sizeof limits->grant) != 0)
    rc = gs_fail(err, -EPROTO, "the usage page belongs to another grant (%.40s) than the limits page (%.40s)",
                 usage->grant, limits->grant);
  return rc;
}

static int map_both(const char *dir, int page, struct gs_pages *pages, bool writable, struct gs_err *err) {
  void *limits = NULL, *usage = NULL;
  int rc = map_file(dir, "limits", sizeof(struct gs_limits), false, &limits, err);
  if (rc < 0)
    return rc;
  rc = page < 0 ? map_file(dir, "usage", sizeof(struct gs_usage), writable, &usage, err)
                : map_descriptor(page, "the usage page", sizeof(struct gs_usage), writable, &usage, err);
  if (rc == -EACCES && !writable)
    rc = 0; /* a viewer does without */
  if (rc == 0)
    rc = check(limits, usage, err);
  if (rc < 0) {
    munmap(limits, sizeof(struct gs_limits));
    if (usage)
      munmap(usage, sizeof(struct gs_usage));
    return rc;
  }
  pages->limits = limits;
  pages->usage = usage;
  return 0;
}

int gs_pages_map(const char *dir, int usage, struct gs_pages *pages, struct gs_err *err) {
  return map_both(dir, usage, pages, true, err);
}

int gs_pages_view(const char *dir, struct gs_pages *pages, struct gs_err *err) {
  return map_both(dir, -1, pages, false, err);
}
