/* The layout of the two shared pages of a grant. C includes this file and cffi parses it (native/binding/build_ffi.py),
 * so there is one definition.
 *
 * limits: written by the daemon (policy words) and the arbiter (lease words). Tenants map it read-only.
 * usage: one slot per process. The daemon writes the slot headers, except own_pid and pid_namespace. The owning process
 * writes everything in gs_slot_device except cut. Once that process has ended, the daemon zeroes the slot. `charged` is
 * the only part that all processes write. The daemon trusts nothing it reads from this page: it keeps its own record of
 * which process has which slot (gs_seats.h), and caps the words at what is possible (arbiter/thread/claims.h).
 *
 * All words are naturally aligned and accessed with __atomic builtins; 32-bit words marked "futex" can be waited on.
 * Times are CLOCK_MONOTONIC nanoseconds, sizes are bytes. */
#ifndef GS_PAGE_H
#define GS_PAGE_H

#ifndef GS_CFFI
#include <stdint.h>

#include "page/gs_trace.h"
#endif

enum {
  GS_LIMITS_MAGIC = 0x67734c31, /* "gsL1" */
  GS_USAGE_MAGIC = 0x67735531,  /* "gsU1" */
  GS_PAGE_VERSION = 8,
  GS_MAX_DEVICES = 16,
  GS_MAX_SLOTS = 1024,
  GS_GRANT_ID_BYTES = 40 /* NUL-terminated */
};

enum gs_grant_state { GS_GRANT_RESERVED = 0, GS_GRANT_ACTIVE = 1, GS_GRANT_SUSPENDED = 2, GS_GRANT_RELEASED = 3 };

/* How managed memory, which the driver moves between host and device, is handled: charged in full like device memory,
 * or refused, as on a device without support for it. */
enum gs_managed { GS_MANAGED_CHARGE = 0, GS_MANAGED_REFUSE = 1 };

/* Whether allocations may be moved to host memory while the program does not use them. */
enum gs_idle_memory { GS_IDLE_KEEP = 0, GS_IDLE_LEND = 1 };

/* residency word: epoch << GS_RESIDENCY_SHIFT | enum gs_residency. The daemon adds 1 to the epoch at every change. */
enum gs_residency {
  GS_RESIDENT = 0, /* movable memory is on the device */
  GS_PREPARED = 1, /* the same; while the program does not use it, a copy of it is kept in host memory */
  /* movable memory leaves the device; calls that need it wait. So do those that take memory of the device, movable or not:
   * what no process of the grant has reserved may be others' */
  GS_HOSTED = 2
};
enum { GS_RESIDENCY_SHIFT = 2 };

/* How a process carried out a residency word. After each but GS_MOVED the memory is where it was before, and complete. */
enum gs_move {
  GS_MOVED = 0,
  GS_MOVE_WORKING = 1,   /* work of the program did not end in time, or a capture is open */
  GS_MOVE_NO_HOST = 2,   /* there was no host memory for it */
  GS_MOVE_NO_DEVICE = 3, /* the device has no room for it; the process tries again */
  GS_MOVE_FAILED = 4,    /* the driver refused a step */
  GS_MOVE_UNSEEN = 5     /* work was submitted that this library cannot follow, or this system cannot stop it */
};

/* lease word: epoch << 1 | held. The arbiter adds 1 at every change, so an odd value means the lease is held and no
 * value is reused. */
enum { GS_LEASE_HELD = 1 };

/* Two cache lines; entry i is the device with CUDA ordinal i inside the container. */
struct gs_device_limits {
  uint8_t uuid[16];
  uint64_t memory_bytes;      /* for all processes of the grant together */
  uint64_t context_bytes;     /* device memory that one process's context costs, measured by the daemon */
  uint64_t inflight_bound_ns; /* estimated device time that may be in flight (D, docs/concepts/inside/pages.md) */
  uint32_t guarantee_milli;   /* the local budget while the daemon is not running */
  uint32_t limit_milli;
  uint32_t lease;     /* futex; arbiter */
  uint32_t contended; /* 1: another grant waits for this device, or ran on it within the last second; arbiter */
  /* epoch << 1 | 1: another grant has a lease of the device, or work on it that outlives its lease. Kept up to date for
   * holders and for those whose own work outlives their lease; arbiter */
  uint32_t foreign_work;
  /* What the other grants with leases leave of the device, as far as known; 0 while the work of one that has none runs.
   * Kept up to date with foreign_work; arbiter */
  uint32_t spare_milli;
  uint64_t foreign_work_ns; /* time of the last change of foreign_work; 0: unknown; arbiter */
  /* memory of the grant's processes that the driver reports beyond what they were charged; counts against
   * memory_bytes */
  uint64_t uncharged_bytes;
  uint32_t instance;  /* 1: a part of a partitioned device, whose name begins with MIG- instead of GPU- */
  uint32_t residency; /* futex; see enum gs_residency */
  /* 1: the room that hosted memory left is still free for it: without a daemon it may come back */
  uint32_t room;
  /* at most so many of the other grants have work at a time, as far as known; 0: not known. Kept up to date with
   * foreign_work, which changes with it; arbiter */
  uint32_t foreign_count;
  uint8_t reserved[32];
};

struct gs_limits {
  uint32_t magic, version, size, ndevices;
  char grant[40];        /* GS_GRANT_ID_BYTES */
  uint32_t state;        /* enum gs_grant_state */
  uint32_t slots_high;   /* 1 + the highest slot ever assigned: sums over slots stop here */
  uint32_t daemon_epoch; /* + 1 at each start of the daemon; after a change, processes join again */
  uint32_t heartbeat;    /* counter, + 1 at least every 50 ms while a process is joined */
  uint32_t managed;      /* enum gs_managed; constant */
  uint32_t idle_memory;  /* enum gs_idle_memory; constant */
  /* how long an allocation waits at most for memory that the grant may have and others use; where idle memory is lent */
  uint32_t allocation_wait_ms;
  uint8_t reserved[44];
  struct gs_device_limits device[16]; /* GS_MAX_DEVICES */
};

/* Two cache lines per device and process. */
struct gs_slot_device {
  uint64_t memory_bytes;   /* reserved under gs_page_reserve(); the driver may not have allocated it yet */
  uint64_t memory_pending; /* announced, not yet decided */
  uint64_t busy_ns;        /* metered device time since join */
  uint64_t queue_end_ns;   /* when the work submitted so far is expected to be done */
  uint64_t launches;       /* submissions since join */
  uint64_t wait_ns;        /* time that threads of this process waited in the gate since join */
  uint32_t waiting;        /* threads in the gate now, for a lease or for work in flight to fall under its bound */
  uint32_t inflight;       /* marks recorded and not yet seen complete; 0: no work is known to be in flight */
  uint32_t drained;        /* last lease word (even) for which the work in flight was estimated at less than 0.2 ms */
  uint32_t flags;          /* GS_SLOT_* */
  uint64_t collectives;    /* collective kernels (names that begin with ncclDevKernel) submitted since join */
  uint64_t cut;            /* without a lease, the process may submit until collectives reaches this; arbiter */
  uint64_t memory_growing; /* reserved for calls in progress, until they have shown how much of it they take */
  /* Part of memory_bytes: what can be moved; of that, what is in host memory instead of on the device, and what is on the
   * device with a current copy in host memory. */
  uint64_t movable_bytes, hosted_bytes, clean_bytes;
  uint64_t copied_bytes; /* copied to and from host memory since join, to move it */
  uint32_t residency;    /* the last residency word that was carried out, or could not be */
  uint32_t move;         /* enum gs_move of it */
};
enum gs_slot_flags {
  GS_SLOT_DEPENDENT = 1, /* has been let past the soft bound; see docs/concepts/inside/pages.md */
  GS_SLOT_WANTS = 2,     /* a call waits for memory that is hosted, or for room on the device */
  GS_SLOT_RETURNS = 4, /* without a daemon, it has come back by itself, or is about to; until the next residency word */
  GS_SLOT_LEAVES = 8   /* its work is done and there is host memory: all that can be moved is leaving */
};

/* What stays on the device in a grant that lends idle memory. Everything else that is not movable is the driver's:
 * contexts, code, stacks. */
enum gs_fixed {
  GS_FIXED_SMALL,  /* allocations of up to GS_MOVABLE_ABOVE bytes */
  GS_FIXED_DIRECT, /* larger ones that only the driver could make: wide rows, calls with 32-bit addresses */
  GS_FIXED_POOLS,  /* of stream-ordered allocations, and of graphs */
  GS_FIXED_ARRAYS,
  GS_FIXED_MANAGED,
  GS_FIXED_MAPPED,   /* the program's own handles (cuMemCreate) */
  GS_FIXED_EXPORTED, /* another process, or another driver, may have its pages */
  GS_FIXED_SYNCED    /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, by which programs prepare it for a network card */
};
enum { GS_FIXED_KINDS = 8 };

/* Why a call that takes device memory was refused. */
enum gs_refusal {
  GS_REFUSED_LIMIT = 0,  /* the grant has not so much left of its limit */
  GS_REFUSED_DEVICE = 1, /* the driver's device is full, although the grant has */
  GS_REFUSED_AWAY = 2    /* the grant's room on the device was not free again in time */
};

enum gs_slot_state { GS_SLOT_FREE = 0, GS_SLOT_LIVE = 1 };

struct gs_slot {
  uint32_t state;      /* enum gs_slot_state; daemon */
  uint32_t generation; /* + 1 each time the slot is assigned; daemon */
  int32_t pid;         /* host pid, from peer credentials; daemon */
  /* the pid in the process's own pid namespace, for other processes there; 0: unknown; written by the process */
  int32_t own_pid;
  uint32_t pid_namespace; /* inode of that namespace; 0: unknown; written by the process */
  uint32_t touched; /* + 1 with each call besides launches that touches memory, in a grant that lends idle memory */
  /* Part of device[0].memory_bytes, by enum gs_fixed; brought up to date every second, in a grant that lends idle memory,
   * which has one device */
  uint64_t fixed_bytes[8]; /* GS_FIXED_KINDS */
  /* Calls refused for want of device memory since join; of the last one: what it asked for, what the grant had left, the
   * device's ordinal, and enum gs_refusal */
  uint32_t refusals, refused_device;
  uint64_t refused_bytes, refused_left;
  uint32_t refused_why;
  uint8_t reserved[12];
  /* Since join: calls whose answer the program waited for (interposer/process/answers.h), and bytes that it copied from
   * host memory to the device, and back */
  uint64_t sync_calls, host_bytes_in, host_bytes_out;
  uint8_t reserved_too[40];
  struct gs_slot_device device[16]; /* GS_MAX_DEVICES */
};

/* Device time charged to the processes of a grant, by instant: one word for each 66 us (2^GS_CHARGED_SHIFT ns) of the
 * last 134 ms, and one for each 2.1 ms (2^GS_CHARGED_OLD_SHIFT) of the last 2.1 s. Its lower bits (GS_CHARGED_BITS,
 * GS_CHARGED_OLD_BITS) are the ns charged, the others the number of that interval since the clock's zero. Two processes
 * that wait for the device at the same time both see it busy; only one of them is charged. Any process of the grant
 * writes a word, by compare-and-swap, and nothing else depends on it. */
enum { GS_CHARGED_SHIFT = 16, GS_CHARGED_BITS = 17, GS_CHARGED_WORDS = 2048 };
enum { GS_CHARGED_OLD_SHIFT = 21, GS_CHARGED_OLD_BITS = 22, GS_CHARGED_OLD_WORDS = 1024 };

struct gs_charged {
  uint64_t word[2048]; /* GS_CHARGED_WORDS */
  uint64_t old[1024];  /* GS_CHARGED_OLD_WORDS */
};

struct gs_usage {
  uint32_t magic, version, size, nslots;
  char grant[40]; /* GS_GRANT_ID_BYTES */
  uint8_t reserved[8];
  struct gs_slot slot[1024];      /* GS_MAX_SLOTS */
  struct gs_trace_ring trace[32]; /* GS_TRACE_RINGS: entry i is written only by the process in slot i */
  struct gs_charged charged[16];  /* GS_MAX_DEVICES */
};

#ifndef GS_CFFI
#include <stddef.h>
_Static_assert(sizeof(struct gs_device_limits) == 128, "layout");
_Static_assert(offsetof(struct gs_device_limits, lease) == 48, "layout");
_Static_assert(offsetof(struct gs_device_limits, foreign_work) == 56, "layout");
_Static_assert(offsetof(struct gs_device_limits, spare_milli) == 60, "layout");
_Static_assert(offsetof(struct gs_device_limits, foreign_work_ns) == 64, "layout");
_Static_assert(offsetof(struct gs_device_limits, uncharged_bytes) == 72, "layout");
_Static_assert(offsetof(struct gs_device_limits, instance) == 80, "layout");
_Static_assert(offsetof(struct gs_device_limits, residency) == 84, "layout");
_Static_assert(offsetof(struct gs_limits, managed) == 72, "layout");
_Static_assert(offsetof(struct gs_limits, allocation_wait_ms) == 80, "layout");
_Static_assert(offsetof(struct gs_limits, device) == 128, "layout");
_Static_assert(sizeof(struct gs_limits) == 128 + 16 * 128, "layout");
_Static_assert(sizeof(struct gs_slot_device) == 128, "layout");
_Static_assert(sizeof(struct gs_slot) == 192 + 16 * 128, "layout");
_Static_assert(offsetof(struct gs_slot, refusals) == 88, "layout");
_Static_assert(offsetof(struct gs_slot, sync_calls) == 128, "layout");
_Static_assert(offsetof(struct gs_usage, slot) == 64, "layout");
_Static_assert(sizeof(struct gs_trace_ring) == 2048, "layout");
_Static_assert(offsetof(struct gs_usage, trace) == 64 + 1024 * (192 + 16 * 128), "layout");
_Static_assert(sizeof(struct gs_charged) == 8 * (GS_CHARGED_WORDS + GS_CHARGED_OLD_WORDS), "layout");
_Static_assert(offsetof(struct gs_usage, charged) == 64 + 1024 * (192 + 16 * 128) + 32 * 2048, "layout");
_Static_assert(sizeof(struct gs_usage) == 64 + 1024 * (192 + 16 * 128) + 32 * 2048 + 16 * 3072 * 8, "layout");
#endif
#endif
