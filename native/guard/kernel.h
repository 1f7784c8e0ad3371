/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * What the guard's BPF programs read from the kernel: a process's files and its cgroup. */
#ifndef GS_GUARD_KERNEL_H
#define GS_GUARD_KERNEL_H

#include "guard/gs_guard.h"
#include "guard/maps.h"

#define LEVELS 16 /* how deep below the root a grant's cgroup is looked for */

/* The maps; loader.c creates them and sets their sizes. */
struct map {
  int unused;
} gs_map_settings SECTION("maps"), gs_map_layout SECTION("maps"), gs_map_limits SECTION("maps"),
    gs_map_books SECTION("maps"), gs_map_attempts SECTION("maps"), gs_map_objects SECTION("maps"),
    gs_map_memory SECTION("maps"), gs_map_parents SECTION("maps"), gs_map_holders SECTION("maps"),
    gs_map_seen SECTION("maps"), gs_map_clients SECTION("maps"), gs_map_events SECTION("maps");

INLINE uint64_t peek(uint64_t at) {
  uint64_t found = 0;
  bpf_probe_read_kernel(&found, sizeof found, (void *)at);
  return found;
}

INLINE uint32_t peek32(uint64_t at) {
  uint32_t found = 0;
  bpf_probe_read_kernel(&found, sizeof found, (void *)at);
  return found;
}

INLINE struct gs_settings *settings(void) {
  uint32_t zero = 0;
  return bpf_map_lookup_elem(&gs_map_settings, &zero);
}

INLINE struct gs_guard_layout *layout(void) {
  uint32_t zero = 0;
  return bpf_map_lookup_elem(&gs_map_layout, &zero);
}

/* The file behind a descriptor of this process; 0 where there is none. */
INLINE uint64_t file_of(const struct gs_settings *set, uint32_t fd) {
  uint64_t table = peek(peek(bpf_get_current_task() + set->task_files) + set->files_fdt);
  if (fd >= peek32(table + set->fdt_max))
    return 0;
  return peek(peek(table + set->fdt_fds) + 8ULL * fd);
}

INLINE int guarded(const struct gs_settings *set, const struct gs_guard_layout *lay, uint64_t file) {
  uint64_t inode = peek(file + set->file_inode);
  uint32_t mode = peek32(inode + set->inode_mode) & 0170000, device = peek32(inode + set->inode_rdev);
  uint32_t major = device >> 20, minor = device & 0xfffff;
  if (mode != 0020000)
    return 0;
#pragma unroll
  for (int i = 0; i < GS_GUARD_NODES; i++)
    if (lay->nodes[i].used && lay->nodes[i].major == major && minor >= lay->nodes[i].first_minor &&
        minor <= lay->nodes[i].last_minor)
      return 1;
  return 0;
}

/* Whether the file at this address is open: in a process's table or outside all tables, like a file that was sent and
 * not yet received, or that only a mapping has. */
INLINE int is_open(const struct gs_settings *set, const struct gs_guard_layout *lay, uint64_t file) {
  return (int64_t)peek(file + set->file_references) >= set->one_reference && guarded(set, lay, file);
}

/* The innermost cgroup that is limited. */
INLINE struct gs_guard_books *charged(uint64_t *cgroup) {
  struct gs_guard_books *books, *found = 0;
  uint64_t id = bpf_get_current_cgroup_id();
  *cgroup = id;
  books = bpf_map_lookup_elem(&gs_map_books, &id);
  if (books)
    return books;
#pragma unroll
  for (int level = 1; level < LEVELS; level++) {
    id = bpf_get_current_ancestor_cgroup_id(level);
    if (!id)
      break;
    books = bpf_map_lookup_elem(&gs_map_books, &id);
    if (books) {
      found = books;
      *cgroup = id;
    }
  }
  return found;
}

#endif
