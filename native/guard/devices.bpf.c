/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The BPF programs by which the kernel decides who may open which device nodes (gs_devices.h). It asks all programs of a
 * cgroup and of those above it, and each must allow an open. scripts/guard_programs.py compiles this file into
 * devices_programs.h. */
#include "guard/gs_devices.h"
#include "guard/types.h"

#define LEVELS 32 /* of cgroups without the root: engines and systemd nest about ten */
#define CHARACTER_DEVICE 2

struct bpf_cgroup_dev_ctx {
  uint32_t access_type; /* access << 16 | kind of device */
  uint32_t major, minor;
};

/* The maps; devices.c creates and fills them. */
struct map {
  int unused;
} gs_map_nodes SECTION("maps"), gs_map_ranges SECTION("maps"), gs_map_passes SECTION("maps");

INLINE int has(void *map, uint64_t number) { return bpf_map_lookup_elem(map, &number) != 0; }

/* Attached to a workload's cgroup: of guarded majors only the granted nodes may be opened. */
SECTION("program/nodes") int nodes(const struct bpf_cgroup_dev_ctx *context) {
  if ((context->access_type & 0xffff) != CHARACTER_DEVICE)
    return 1;
  uint64_t major = (uint64_t)context->major << 32;
  return !has(&gs_map_nodes, major | GS_GUARDED_MAJOR) || has(&gs_map_nodes, major | context->minor);
}

INLINE int guarded(uint32_t major, uint32_t minor) {
  uint32_t zero = 0;
  const struct gs_device_ranges *ranges = bpf_map_lookup_elem(&gs_map_ranges, &zero);
  if (!ranges)
    return 1;
#pragma unroll
  for (uint32_t i = 0; i < GS_DEVICE_RANGES; i++)
    if (i < ranges->count && ranges->range[i].major == major && minor >= ranges->range[i].first_minor &&
        minor <= ranges->range[i].last_minor)
      return 1;
  return 0;
}

/* Attached to the root cgroup: only users and cgroups with a pass may open the nodes in the ranges. */
SECTION("program/exclusive") int exclusive(const struct bpf_cgroup_dev_ctx *context) {
  if ((context->access_type & 0xffff) != CHARACTER_DEVICE || !guarded(context->major, context->minor))
    return 1;
  if (has(&gs_map_passes, GS_PASS_OF_USER | (uint32_t)bpf_get_current_uid_gid()))
    return 1;
#pragma unroll
  for (int level = 1; level <= LEVELS; level++) {
    uint64_t cgroup = bpf_get_current_ancestor_cgroup_id(level);
    if (!cgroup)
      return 0;
    if (has(&gs_map_passes, cgroup))
      return 1;
  }
  return 0;
}
