/* The tracepoint tier of the guard. Tracepoints of the kernel read the ioctls by which a process asks NVIDIA's resource
 * manager (RM) for device memory, charge its cgroup, and signal a process that holds more than the cgroup's limit. They
 * need CAP_BPF and CAP_PERFMON (or root), Linux 5.13, and BTF of the kernel.
 *
 * A tracepoint can refuse nothing: the allocation that passes the limit exists until the signal has ended the process.
 *
 * The structs up to gs_guard_event are shared with the BPF programs (guard.bpf.c), which have them in maps. */
#ifndef GS_GUARD_H
#define GS_GUARD_H

#ifdef __bpf__
#include "guard/types.h"
#elif !defined(GS_CFFI)
#include <stdint.h>
#include "page/gs_err.h"
#endif

#define GS_GUARD_ESCAPES 256 /* ioctl numbers: the driver looks at _IOC_NR alone */
#define GS_GUARD_NODES 4
#define GS_GUARD_HEAPS 3
#define GS_GUARD_CLASSES 2

/* What an ioctl is to us. */
enum {
  GS_ESCAPE_OTHER,
  GS_ESCAPE_ALLOC, /* an object of a class */
  GS_ESCAPE_FREE,  /* an object, or all below a parent or a client */
  GS_ESCAPE_HEAP,  /* the older way to memory: its struct says which function is meant */
  GS_ESCAPE_DUP,   /* another handle to an object */
  GS_ESCAPE_XFER,  /* carries another ioctl's number, size and pointer */
};

/* Offsets are of the ioctl's struct. One that is long_size bytes long has its status at long_status. */
struct gs_guard_escape {
  uint32_t kind, status, long_size, long_status;
};

/* Character devices whose ioctls count. */
struct gs_guard_nodes {
  uint32_t major, first_minor, last_minor, used;
};

/* A function of GS_ESCAPE_HEAP that takes device memory. Where height is not 0 the size is height * pitch. */
struct gs_guard_heap {
  uint32_t function, attributes, size, height, pitch;
};

/* One driver version's structs. The heads of the structs are the same in all versions that are known and stand in
 * guard.bpf.c. Set by user space from its table of versions. */
struct gs_guard_layout {
  struct gs_guard_escape escapes[GS_GUARD_ESCAPES];
  struct gs_guard_nodes nodes[GS_GUARD_NODES];
  uint32_t classes[GS_GUARD_CLASSES]; /* of objects that are device memory */
  uint32_t memory_size;               /* offset of the size in an allocation's own parameters */
  uint32_t heap_function, heap_handle, heap_flags;
  uint32_t heap_free; /* the function that frees */
  uint32_t unused;
  struct gs_guard_heap heaps[GS_GUARD_HEAPS];
  uint32_t unused_too;
};

/* What a cgroup may hold. signal: to whom goes beyond, 0 for none. */
struct gs_guard_limit {
  uint64_t bytes;
  uint32_t signal, unused;
};

/* What a cgroup holds. doubt: the part of used whose process has ended, until gs_guard_settle has looked who else has it:
 * not counted against the limit until then. */
struct gs_guard_books {
  uint64_t used, doubt;
  uint64_t allocations, frees, objects, parents, pending;
  uint64_t failed, failed_bytes; /* of which the ioctl's struct said that the driver had refused */
  uint64_t over;                 /* how often the limit was passed */
  uint64_t lost;                 /* bytes charged without a record: they stay until the cgroup is forgotten */
};

enum {
  GS_GUARD_OVER = 1,   /* holds more than its limit */
  GS_GUARD_HIDDEN,     /* an allocation whose parameters could not be read, neither before nor after it */
  GS_GUARD_CHANGED,    /* parameters that were not the same after the ioctl as before it */
  GS_GUARD_UNRECORDED, /* charged without a record, since the cgroup has too many objects */
  GS_GUARD_LEFT,       /* a process that held memory has ended: call gs_guard_settle */
};

struct gs_guard_event {
  uint64_t t_ns; /* CLOCK_MONOTONIC */
  uint64_t cgroup, bytes, used, limit;
  uint32_t kind, pid, tid, client, object, signal;
  char comm[16];
};

#ifndef __bpf__
struct gs_guard;

/* Loads the programs and attaches none. Only one thread may use a guard at a time. */
int gs_guard_open(const struct gs_guard_layout *layout, struct gs_guard **out, struct gs_err *err);
void gs_guard_close(struct gs_guard *guard);
/* While attached, each system call of the machine takes longer, and each ioctl more so. Both do nothing the second
 * time. */
int gs_guard_attach(struct gs_guard *guard, struct gs_err *err);
void gs_guard_detach(struct gs_guard *guard);
int gs_guard_set_layout(struct gs_guard *guard, const struct gs_guard_layout *layout, struct gs_err *err);

/* cgroup: its number, the inode of its v2 directory. Its processes and those of cgroups in it are charged; of cgroups
 * in each other the innermost is. Sets the limit of one that is known already. */
int gs_guard_limit(struct gs_guard *guard, uint64_t cgroup, const struct gs_guard_limit *limit, struct gs_err *err);
int gs_guard_books(struct gs_guard *guard, uint64_t cgroup, struct gs_guard_books *books, struct gs_err *err);
void gs_guard_forget(struct gs_guard *guard, uint64_t cgroup);

/* A descriptor that polls POLLIN while there are events; the guard's. What does not fit into 64 KiB is lost. */
int gs_guard_events_fd(const struct gs_guard *guard);
/* At most count of them, without waiting. Returns how many. */
int gs_guard_events(struct gs_guard *guard, struct gs_guard_event *out, uint32_t count);

/* Gives back what is closed, and charges again what was in doubt where a process has a descriptor of it, or, after 10 s,
 * where it is open in no process's table. Looks at the descriptors of all processes. */
int gs_guard_settle(struct gs_guard *guard, struct gs_err *err);

/* A child of this process goes to the cgroup that procs (its cgroup.procs, opened for writing) belongs to, and asks the
 * character device fd for bytes by the ioctl command cmd, as a process asks the driver. Stores its wait status: it exits
 * with 0, with 1 where it could not move, with 2 where the ioctl failed. */
int gs_guard_try(const struct gs_guard_layout *layout, int procs, int fd, uint32_t cmd, uint64_t bytes, int *status,
                 struct gs_err *err);
#endif
#endif
