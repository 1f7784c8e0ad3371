/* Calls of bpf(2). call.c has its own copy of the parts of union bpf_attr that it fills in (include/uapi/linux/bpf.h),
 * so that this builds with the headers of any kernel. On failure all return -errno. */
#ifndef GS_GUARD_CALL_H
#define GS_GUARD_CALL_H

#include <stddef.h>
#include <stdint.h>
#include "page/gs_err.h"

enum {
  MAP_TYPE_HASH = 1,
  MAP_TYPE_ARRAY = 2,
  MAP_TYPE_LRU_HASH = 9,
  MAP_TYPE_RINGBUF = 27,
  MAP_NO_PREALLOC = 1, /* a flag: memory is taken entry by entry; not for tracepoints */
  PROGRAM_CGROUP_DEVICE = 15,
  PROGRAM_RAW_TRACEPOINT = 17,
  PROGRAM_TRACING = 26,
  ATTACH_ITERATOR = 28,
};

struct map_use {
  uint32_t at, map; /* at: the instruction that loads the map's descriptor */
};

/* A program's instructions, as scripts/guard_programs.py writes them. */
struct program_text {
  const uint64_t *code;
  const struct map_use *uses;
  const uint32_t *functions; /* where each function begins, in instructions */
  uint32_t words, nuses, nfunctions;
};

struct program {
  const char *name;
  uint32_t type, attach; /* attach: 0, or the kind of attachment that the verifier has to know */
  uint32_t attach_to;    /* BTF id of the kernel's function, for an iterator */
  const struct program_text *text;
};

int bpf_map_new(const char *name, uint32_t type, uint32_t key, uint32_t value, uint32_t entries, uint32_t flags);
int bpf_map_get(int map, const void *key, void *value);
int bpf_map_set(int map, const void *key, const void *value, uint64_t flags);
int bpf_map_drop(int map, const void *key);
/* Stores the key after key, or the first one where key is NULL. -ENOENT at the end. */
int bpf_map_next(int map, const void *key, void *next);
/* Returns a descriptor. maps: descriptors of the maps that the text uses, by their numbers in it. On failure the error
 * has the verifier's last line. */
int bpf_program_load(const struct program *program, const int *maps, struct gs_err *err);
int bpf_program_open(uint32_t id, char name[16]); /* a descriptor */
int bpf_tracepoint_open(const char *name, int program);
int bpf_iterator_open(int program); /* a descriptor, to be read to its end */
int bpf_run(int program);           /* runs it once, with arguments 0 */

/* Device programs of a cgroup; cgroup: a descriptor of its directory. */
int bpf_cgroup_attach(int cgroup, int program);
int bpf_cgroup_detach(int cgroup, int program);
/* Stores the ids of those that are attached to it, at most count, and returns their number. */
int bpf_cgroup_programs(int cgroup, uint32_t *ids, uint32_t count);

#endif
