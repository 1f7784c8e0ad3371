#include "guard/gs_devices.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "guard/call.h"

enum { MAP_NODES, MAP_RANGES, MAP_PASSES, MAPS };

#include "guard/devices_programs.h"

enum { ATTACHED_MAX = 64 /* the kernel's limit for each cgroup (BPF_CGROUP_MAX_PROGS) */ };

static int fail(struct gs_err *err, int status, const char *what) {
  return gs_fail(err, status, "cannot %s: %s%s", what, strerror(-status),
                 status == -EPERM ? ": it needs CAP_BPF and CAP_NET_ADMIN, or root" : "");
}

static int make(int *map, const char *name, uint32_t type, uint32_t key, uint32_t value, uint32_t most,
                struct gs_err *err) {
  *map = bpf_map_new(name, type, key, value, most, type == MAP_TYPE_HASH ? MAP_NO_PREALLOC : 0);
  return *map < 0 ? fail(err, *map, "make a map") : 0;
}

static int put(int map, const void *key, const void *value, struct gs_err *err) {
  int status = bpf_map_set(map, key, value, 0);
  return status ? fail(err, status, "fill a map") : 0;
}

static int put_node(int nodes, uint64_t major, uint32_t minor, struct gs_err *err) {
  return put(nodes, &(uint64_t){major << 32 | minor}, &(uint8_t){1}, err);
}

int gs_devices_load(const uint32_t *majors, uint32_t nmajors, const struct gs_device_node *granted, uint32_t ngranted,
                    struct gs_err *err) {
  const struct program program = {.name = "gpushare_nodes", .type = PROGRAM_CGROUP_DEVICE, .text = &text_nodes};
  int maps[MAPS];
  int status = make(&maps[MAP_NODES], "gpushare_nodes", MAP_TYPE_HASH, 8, 1, nmajors + ngranted + 1, err);
  if (status)
    return status;
  for (uint32_t i = 0; !status && i < nmajors; i++)
    status = put_node(maps[MAP_NODES], majors[i], GS_GUARDED_MAJOR, err);
  for (uint32_t i = 0; !status && i < ngranted; i++)
    status = put_node(maps[MAP_NODES], granted[i].major, granted[i].minor, err);
  if (!status)
    status = bpf_program_load(&program, maps, err);
  close(maps[MAP_NODES]);
  return status;
}

int gs_exclusive_load(const struct gs_device_ranges *ranges, const char *name, uint32_t most, int *passes,
                      struct gs_err *err) {
  const struct program program = {.name = name, .type = PROGRAM_CGROUP_DEVICE, .text = &text_exclusive};
  int maps[MAPS];
  int status = make(&maps[MAP_PASSES], name, MAP_TYPE_HASH, 8, 1, most, err);
  if (status)
    return status;
  status = make(&maps[MAP_RANGES], name, MAP_TYPE_ARRAY, 4, sizeof *ranges, 1, err);
  if (!status) {
    status = put(maps[MAP_RANGES], &(uint32_t){0}, ranges, err);
    if (!status)
      status = bpf_program_load(&program, maps, err);
    close(maps[MAP_RANGES]);
  }
  if (status < 0)
    close(maps[MAP_PASSES]);
  else
    *passes = maps[MAP_PASSES];
  return status;
}

uint64_t gs_pass_of_user(uint32_t uid) { return GS_PASS_OF_USER | uid; }

int gs_exclusive_pass(int passes, uint64_t pass, int given, struct gs_err *err) {
  if (given)
    return put(passes, &pass, &(uint8_t){1}, err);
  int status = bpf_map_drop(passes, &pass);
  return status && status != -ENOENT ? fail(err, status, "change a map") : 0;
}

int gs_device_attach(int cgroup, int program, struct gs_err *err) {
  int status = bpf_cgroup_attach(cgroup, program);
  return status ? fail(err, status, "attach the device program") : 0;
}

int gs_device_detach(int cgroup, int program, struct gs_err *err) {
  int status = bpf_cgroup_detach(cgroup, program);
  return status ? fail(err, status, "detach the device program") : 0;
}

int gs_device_attached(int cgroup, const char *name, int *programs, uint32_t count, struct gs_err *err) {
  uint32_t ids[ATTACHED_MAX], kept = 0;
  char found[16];
  int attached = bpf_cgroup_programs(cgroup, ids, ATTACHED_MAX);
  if (attached < 0)
    return fail(err, attached, "list the device programs");
  for (int i = 0; i < attached && kept < count; i++) {
    int program = bpf_program_open(ids[i], found);
    if (program == -ENOENT)
      continue; /* it was detached meanwhile */
    if (program < 0) {
      while (kept > 0)
        close(programs[--kept]);
      return fail(err, program, "open a device program");
    }
    if (strcmp(found, name) == 0)
      programs[kept++] = program;
    else
      close(program);
  }
  return (int)kept;
}
