/* Memory limits per cgroup, as in drivers from r615 on: they apply to all processes in the cgroup and below, whatever
 * libraries these load. Only the nearest cgroup with a limit counts, as in the driver's backend without dmem. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "sim/engine/engine.h"

enum { CGROUP2_MAGIC = 0x63677270, PATH_BYTES = 4096 };

struct limit {
  dev_t dev;
  ino_t ino; /* the cgroup's number, which the kernel does not reuse */
  char path[PATH_BYTES];
  uint64_t hard[SIM_MAX_DEVICES], soft[SIM_MAX_DEVICES];
  struct limit *next;
};

/* The mount point of cgroup v2; empty: none. */
static const char *mount_point(void) {
  static char found[PATH_BYTES];
  static bool looked;
  if (looked)
    return found;
  looked = true;
  FILE *mounts = fopen("/proc/self/mountinfo", "re");
  char line[2 * PATH_BYTES], at[PATH_BYTES];
  while (mounts && fgets(line, sizeof line, mounts)) {
    const char *kind = strstr(line, " - ");
    if (kind && strncmp(kind, " - cgroup2 ", 11) == 0 && sscanf(line, "%*s %*s %*s %*s %4095s", at) == 1) {
      strcpy(found, at);
      break;
    }
  }
  if (mounts)
    fclose(mounts);
  return found;
}

/* The limit of the cgroup with this path, or of its nearest ancestor that has one; NULL: none. Truncates the path. */
static struct limit *nearest(const struct engine *engine, char *path, size_t top) {
  for (;;) {
    struct stat status;
    if (stat(path, &status) == 0)
      for (struct limit *limit = engine->limits; limit; limit = limit->next)
        if (limit->ino == status.st_ino && limit->dev == status.st_dev)
          return limit;
    char *slash = strrchr(path, '/');
    if (slash == NULL || (size_t)(slash - path) < top)
      return NULL;
    *slash = '\0';
  }
}

static void find_limit(struct engine *engine, struct process *process) {
  char name[64], line[PATH_BYTES], path[2 * PATH_BYTES];
  const char *top = mount_point();
  process->limit = NULL;
  if (engine->limits == NULL || *top == '\0')
    return;
  snprintf(name, sizeof name, "/proc/%d/cgroup", (int)process->pid);
  FILE *groups = fopen(name, "re");
  while (groups && fgets(line, sizeof line, groups)) {
    if (strncmp(line, "0::", 3) != 0)
      continue;
    line[strcspn(line, "\n")] = '\0';
    snprintf(path, sizeof path, "%s%s", top, strcmp(line + 3, "/") == 0 ? "" : line + 3);
    process->limit = nearest(engine, path, strlen(top));
  }
  if (groups)
    fclose(groups);
}

static uint64_t used_of(const struct engine *engine, const struct limit *limit, uint32_t device) {
  uint64_t used = 0;
  for (const struct process *process = engine->live; process; process = process->next)
    if (process->limit == limit)
      used += process->share[device].bytes;
  return used;
}

int limits_room(struct engine *engine, struct process *process, uint32_t device, uint64_t bytes) {
  if (engine->limits == NULL)
    return 0;
  find_limit(engine, process);
  const struct limit *limit = process->limit;
  if (limit == NULL || limit->hard[device] == SIM_NO_LIMIT)
    return 0;
  uint64_t used = used_of(engine, limit, device);
  return used > limit->hard[device] || bytes > limit->hard[device] - used ? -ENOMEM : 0;
}

static void refresh(struct engine *engine) {
  for (struct process *process = engine->live; process; process = process->next)
    find_limit(engine, process);
  for (struct process *process = engine->ended; process; process = process->next)
    process->limit = NULL;
}

/* Forgets limits of cgroups that have been removed. */
static void sweep(struct engine *engine) {
  bool gone = false;
  for (struct limit **at = &engine->limits; *at;) {
    struct limit *limit = *at;
    struct stat status;
    if (stat(limit->path, &status) == 0 && status.st_ino == limit->ino) {
      at = &limit->next;
      continue;
    }
    *at = limit->next;
    free(limit);
    gone = true;
  }
  if (gone)
    refresh(engine);
}

/* The cgroup behind a descriptor. */
static int describe(int given, struct limit *found) {
  char link[64];
  struct stat status;
  struct statfs system;
  if (given < 0)
    return -EINVAL;
  if (fstatfs(given, &system) < 0 || system.f_type != CGROUP2_MAGIC)
    return -EOPNOTSUPP;
  snprintf(link, sizeof link, "/proc/self/fd/%d", given);
  ssize_t length = readlink(link, found->path, sizeof found->path - 1);
  if (length < 0 || fstat(given, &status) < 0)
    return -errno;
  found->path[length] = '\0';
  found->dev = status.st_dev;
  found->ino = status.st_ino;
  return 0;
}

static struct limit *limit_of(const struct engine *engine, const struct limit *wanted) {
  for (struct limit *limit = engine->limits; limit; limit = limit->next)
    if (limit->ino == wanted->ino && limit->dev == wanted->dev)
      return limit;
  return NULL;
}

static int set_limit(struct engine *engine, const struct sim_request *request, const struct limit *group) {
  struct limit *limit = limit_of(engine, group);
  if (request->b > request->a)
    return -EINVAL;
  if (limit == NULL) {
    limit = malloc(sizeof *limit);
    if (limit == NULL)
      return -ENOMEM;
    *limit = *group;
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
      limit->hard[i] = SIM_NO_LIMIT;
      limit->soft[i] = 0;
    }
    limit->next = engine->limits;
    engine->limits = limit;
  }
  limit->hard[request->device] = request->a;
  limit->soft[request->device] = request->b;
  refresh(engine);
  return 0;
}

int request_limit(struct engine *engine, const struct sim_request *request, int given, struct sim_reply *reply) {
  static struct limit group; /* too large for the stack; the engine has one thread */
  int error = engine->options.hello.driver < SIM_DRIVER_LIMITS ? -ENOSYS : describe(given, &group);
  if (given >= 0)
    close(given);
  if (error)
    return error;
  sweep(engine);
  if (request->op == SIM_LIMIT_SET)
    return set_limit(engine, request, &group);
  size_t top = strlen(mount_point());
  const struct limit *limit = nearest(engine, group.path, top);
  reply->a = limit ? limit->hard[request->device] : SIM_NO_LIMIT;
  reply->b = limit ? limit->soft[request->device] : 0;
  reply->c = limit ? used_of(engine, limit, request->device) : 0;
  return 0;
}
