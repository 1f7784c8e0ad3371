/* The tracepoint tier of the guard. Tracepoints of the kernel read the ioctls by which a process asks NVIDIA's resource
 * manager (RM) for device memory, charge its cgroup, and signal a process that holds more than the cgroup's limit. They
 * need CAP_BPF and CAP_PERFMON (or root), Linux 5.13, and BTF of the kernel.
 *
 * A tracepoint cannot refuse a call: an allocation that passes the limit exists until the signal has ended the process.
 *
 * The structs up to gs_guard_event are shared with the BPF programs (guard.bpf.c), which keep them in maps. */
#ifndef GS_GUARD_H
#define GS_GUARD_H

#ifdef __bpf__
#include "guard/types.h"
#elif !defined(GS_CFFI)
#include <stdint.h>
#include "page/gs_err.h"
#endif

#define GS_GUARD_ESCAPES 256 /* ioctl numbers: the driver looks only at _IOC_NR */
#define GS_GUARD_NODES 4
#define GS_GUARD_HEAPS 3
#define GS_GUARD_CLASSES 2

/* How the guard treats an ioctl. */
enum {
  GS_ESCAPE_OTHER,
  GS_ESCAPE_ALLOC, /* an object of a class */
  GS_ESCAPE_FREE,  /* an object, or all below a parent or a client */
  GS_ESCAPE_HEAP,  /* the older way to allocate memory: its struct selects the function */
  GS_ESCAPE_DUP,   /* another handle to an object */
  GS_ESCAPE_XFER,  /* carries another ioctl's number, size and pointer */
};

/* Offsets in the ioctl's struct. A struct of long_size bytes has its status at long_status. */
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

/* One driver version's structs. The heads of the structs are the same in all known versions; maps.h and asked.h have
 * them. Set by user space from its table of versions. */
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

/* A cgroup's limit. signal: sent to a process that exceeds it; 0: none. */
struct gs_guard_limit {
  uint64_t bytes;
  uint32_t signal, unused;
};

/* Device memory that a cgroup holds. doubt: the part of `used` whose process has ended; it does not count against the
 * limit until gs_guard_settle has determined who else has it open. */
struct gs_guard_books {
  uint64_t used, doubt;
  uint64_t allocations, frees, objects, parents, pending;
  uint64_t failed, failed_bytes; /* allocations that the driver refused, by the status in the ioctl's struct */
  uint64_t over;                 /* number of GS_GUARD_OVER and GS_GUARD_HIDDEN */
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
/* While attached, each system call of the machine takes longer, and each ioctl more so. Attaching or detaching a second
 * time has no effect. */
int gs_guard_attach(struct gs_guard *guard, struct gs_err *err);
void gs_guard_detach(struct gs_guard *guard);
int gs_guard_set_layout(struct gs_guard *guard, const struct gs_guard_layout *layout, struct gs_err *err);

/* Sets the limit of a cgroup, whether it had one or not. cgroup: its number, the inode of its v2 directory. Its
 * processes and those of the cgroups below it are charged; of nested cgroups that have limits, only the innermost
 * is. */
int gs_guard_limit(struct gs_guard *guard, uint64_t cgroup, const struct gs_guard_limit *limit, struct gs_err *err);
int gs_guard_books(struct gs_guard *guard, uint64_t cgroup, struct gs_guard_books *books, struct gs_err *err);
void gs_guard_forget(struct gs_guard *guard, uint64_t cgroup);

/* A descriptor that polls POLLIN while there are events; it belongs to the guard. Events that do not fit into 64 KiB
 * are lost. */
int gs_guard_events_fd(const struct gs_guard *guard);
/* Reads at most count of them, without waiting. Returns their number. */
int gs_guard_events(struct gs_guard *guard, struct gs_guard_event *out, uint32_t count);

/* Uncharges memory whose file is closed, and counts memory in doubt again if a process has a descriptor of its file or,
 * after 10 s, if the file is open outside all processes' tables. Looks at the descriptors of all processes. */
int gs_guard_settle(struct gs_guard *guard, struct gs_err *err);

/* Has a child of this process enter the cgroup that procs (its cgroup.procs, opened for writing) belongs to, and ask
 * the character device fd for bytes by the ioctl command cmd, as a process asks the driver. Stores its wait status: it
 * exits with 0, with 1 if it could not move, with 2 if the ioctl failed. */
int gs_guard_try(const struct gs_guard_layout *layout, int procs, int fd, uint32_t cmd, uint64_t bytes, int *status,
                 struct gs_err *err);
#endif
#endif
