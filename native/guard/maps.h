/* Contents of the BPF programs' maps, apart from those in gs_guard.h. */
#ifndef GS_GUARD_MAPS_H
#define GS_GUARD_MAPS_H

#include "guard/gs_guard.h"

/* Facts about the running kernel: offsets in its structs, from its BTF, and of registers, from its ABI. round: number
 * of the last look at descriptors. unseen: that look found more files than there was room for. one_reference: the
 * reference count of a file that is open once: 0 for f_ref (Linux 6.13, include/linux/file_ref.h; negative if there is
 * no reference), 1 for f_count. */
struct gs_settings {
  uint64_t next, round;
  uint32_t unseen;
  uint32_t ioctl, ioctl_x32, ioctl_compat;
  uint32_t number, arguments[3], arguments_compat[3];
  uint32_t task_compat, compat_mask;
  uint32_t task_files, files_fdt, fdt_max, fdt_fds, file_inode, inode_mode, inode_rdev;
  uint32_t file_references, one_reference;
  uint32_t task_signal, signal_live;
};

/* The head of NV_ESC_RM_ALLOC's struct. */
struct gs_alloc_head {
  uint32_t client, parent, object, class;
  uint64_t parameters;
};

struct gs_xfer {
  uint32_t number, size;
  uint64_t at;
};

/* An ioctl in progress in a thread. bytes: what it asked for before the driver looked; known: result of asked()
 * (asked.h). */
struct gs_attempt {
  uint64_t cgroup, file, at, parameters, bytes;
  uint32_t kind, status;
  uint32_t client, parent, object, class, source_client, source;
  int known;
};

/* Handles are the driver's, and valid only for the file through which their client was made. */
struct gs_object_key {
  uint64_t file;
  uint32_t client, object;
};

struct gs_object {
  uint64_t memory, round;
  uint32_t parent, pid;
};

enum {
  GS_MEMORY_HELD,
  GS_MEMORY_DOUBTED, /* its process has ended */
  GS_MEMORY_KEPT,    /* and its file stays open */
  GS_MEMORY_GONE,
};

/* doubted, doubted_ns: the round in which the memory came into doubt, and when; that happens once. A look that began
 * before may have seen its file with a process that has ended since. */
struct gs_memory {
  uint64_t cgroup, bytes, doubted, doubted_ns;
  uint32_t handles, state;
};

struct gs_below {
  uint64_t file;
  uint32_t client, object;
};

struct gs_round {
  uint64_t number;
  uint32_t all, unused;
};

#endif
