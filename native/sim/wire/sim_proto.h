/* The protocol between the simulated GPU's engine (gpushare-sim) and its clients (the simulated libcuda.so.1 and
 * libnvidia-ml.so.1, the daemon, tests).
 *
 * Socket: <dir>/sim.sock, AF_UNIX SOCK_SEQPACKET. Each request is one struct sim_request, each answer one struct
 * sim_reply (struct sim_hello for SIM_HELLO), with descriptors (SCM_RIGHTS) where noted. SIM_HELLO comes first. A
 * client is identified by its peer credentials. When the connection or the process ends, everything it held is
 * released. Requests of one connection are answered in order.
 *
 * Lane: one shared page per (process, device) through which device time is granted; see struct sim_lane.
 *
 * Times are CLOCK_MONOTONIC nanoseconds, sizes are bytes. The layout is independent of the language: little endian,
 * naturally aligned. */
#ifndef SIM_PROTO_H
#define SIM_PROTO_H

#include <stdint.h>

enum {
  SIM_PROTO_MAGIC = 0x67734d31, /* "gsM1" */
  SIM_PROTO_VERSION = 5,
  SIM_MAX_DEVICES = 16,
  SIM_NAME_BYTES = 64,
  SIM_INTERVALS = 512,
  SIM_BOUNDARIES = 4096,
  SIM_MEETINGS = 1024,
  SIM_TRANSFERS = 4096
};

#define SIM_SOCKET_NAME "sim.sock"
/* Path of a device's node, followed by its minor; gpushare/node/standins.py creates the node. */
#define SIM_NODE_PATH "/dev/gpushare-sim-"

enum sim_op_code {
  SIM_HELLO = 1,      /* a: enum sim_role. Answer: struct sim_hello */
  SIM_MEM_ALLOC = 2,  /* device, a: bytes. error -ENOMEM: does not fit */
  SIM_MEM_FREE = 3,   /* device, a: bytes. error -EINVAL: more than the process holds */
  SIM_MEM_INFO = 4,   /* device. a: total, b: used by all, c: used by this process */
  SIM_LANE_OPEN = 5,  /* device. Descriptors: memfd with struct sim_lane, eventfd (the bell) */
  SIM_LANE_CLOSE = 6, /* device. Work still queued on it is dropped */
  SIM_STATS = 7,      /* Descriptor: memfd with a bytes of JSON, the accounts of all devices */
  /* device, a: 1: live processes only. Descriptor: memfd with a records of struct sim_process, live processes first */
  SIM_PROCESSES = 8,
  SIM_STOP = 9,    /* ends the engine; root or the engine's own uid, else -EPERM */
  SIM_DEVICE = 10, /* device. a: busy_ns, b: wall_ns, c: number of processes with a context or memory */
  /* device, a and b: a secret. With a descriptor: the memfd behind the process's memory on the device, for IPC */
  SIM_FILE_PUT = 11,
  /* a and b: the secret. Descriptor: that memfd, while its process lives; a: its device, b: its pid */
  SIM_FILE_GET = 12,
  /* device, a: enum sim_setting, b: SIM_KEEP or the new value (root or the engine's own uid, else -EPERM). a: the
   * value */
  SIM_SETTING = 13,
  SIM_EVENTS_PUT = 14,   /* as SIM_FILE_PUT, for the page of the process's interprocess events */
  SIM_TIMES = 15,        /* device. a: busy_ns, b: switch_ns, c: wall_ns; cheap enough for 1000 calls per second */
  SIM_MEETINGS_GET = 16, /* Descriptor: the page of struct sim_meeting[SIM_MEETINGS] that all processes share */
  /* Blocks: memory that several holders, in any processes, can keep; engine/blocks.c. A block is identified by its
   * number and a key, and lives while a process holds it or a descriptor of it is open anywhere. */
  SIM_BLOCK_MAKE = 17, /* device, a: bytes of SIM_MEM_ALLOC that become a block, with or without a descriptor: the
                          * file behind it. Held once by this process. a: number, b: key */
  SIM_BLOCK_HOLD = 18, /* a: number, b: key. Adds a hold; -ENOENT unless this process or the creator holds the block */
  SIM_BLOCK_DROP = 19, /* a: number. Removes a hold. a: 1 if something still keeps the block */
  SIM_BLOCK_EXPORT = 20, /* a: number. Descriptor: keeps the block and represents it */
  SIM_BLOCK_IMPORT = 21, /* with such a descriptor. Adds a hold. Descriptor: the file; a: number, b: key */
  SIM_BLOCK_SUMS = 22,   /* device. a: bytes of blocks charged to this process, b: number of its holds */
  /* device, with a descriptor of a cgroup v2 directory: the limit on the memory of the processes in it and below;
   * engine/limits.c. -ENOSYS: the driver is older than SIM_DRIVER_LIMITS, -EOPNOTSUPP: not such a directory. */
  SIM_LIMIT_SET = 23, /* a: hard limit or SIM_NO_LIMIT, b: soft limit, stored only. Same permission as SIM_STOP */
  SIM_LIMIT_GET = 24, /* a: hard limit, b: soft limit, c: bytes that the processes have */
  /* a: enum sim_checkpoint, with a pidfd of a client; engine/checkpoint.c. a: enum sim_state after it. -EPERM: another
   * user's process; -ESRCH: it is no client; -EBADMSG: not possible in its state; -EBUSY: it has work; -EOPNOTSUPP: it
   * shares memory with other processes; -ENOMEM: a device lacks room, and the process has failed for good */
  SIM_CHECKPOINT = 25,
  SIM_ILLEGAL = 26, /* device. Work of the process used memory that was not there: counted */
  /* device. Descriptor: the page of struct sim_direction[SIM_DIRECTIONS] that all processes share */
  SIM_LINKS_GET = 27
};
#define SIM_NO_LIMIT UINT64_MAX
enum { SIM_DRIVER_LIMITS = 615, SIM_DRIVER_DEFAULT = 580 };

enum sim_checkpoint {
  SIM_CHECKPOINT_ASK,  /* changes nothing; -EBUSY while a locked process still has work */
  SIM_CHECKPOINT_LOCK, /* its calls wait from now on; what it has submitted goes on */
  SIM_CHECKPOINT_SAVE, /* its memory leaves the devices */
  SIM_CHECKPOINT_RESTORE,
  SIM_CHECKPOINT_UNLOCK
};
enum sim_state { SIM_RUNNING, SIM_LOCKED, SIM_CHECKPOINTED, SIM_FAILED }; /* as CUprocessState */

/* Settings an administrator can change. The simulation ignores them, except SIM_LOST; tests check who may change them.
 * SIM_LOST = 1 simulates a hardware fault: requests for the device fail with -EIO and its work stops until it is 0
 * again. */
enum sim_setting {
  SIM_PERSISTENCE = 0,
  SIM_COMPUTE_MODE = 1,
  SIM_ACCOUNTING = 2,
  SIM_POWER_LIMIT_MW = 3,
  SIM_LOST = 4,
  SIM_SETTINGS = 5
};
#define SIM_KEEP UINT64_MAX
enum { SIM_POWER_LIMIT_DEFAULT_MW = 300000 };

enum sim_role {
  SIM_ROLE_CLIENT = 1, /* a process that uses the device; it has a row in the accounts */
  SIM_ROLE_VIEWER = 2, /* reads only (NVML, stats); does not keep the engine alive */
  SIM_ROLE_CONTROL = 3 /* reads, and keeps the engine alive while connected (the daemon) */
};

struct sim_request {
  uint32_t magic, version, op, device;
  uint64_t a, b;
};

struct sim_reply {
  uint32_t magic;
  int32_t error; /* 0 or a negative errno */
  uint64_t a, b, c;
};

/* nvlink, pcie, numa: which devices are near each other. Devices with the same nonzero number are all linked by NVLink,
 * share a PCIe switch, or share NUMA node number - 1, respectively. */
struct sim_device_info {
  uint8_t uuid[16];
  uint64_t total_bytes;
  char name[SIM_NAME_BYTES]; /* NUL-terminated */
  uint32_t pci_domain, pci_bus, pci_device;
  uint8_t nvlink, pcie, numa, reserved;
};

struct sim_hello {
  uint32_t magic;
  int32_t error;
  uint32_t version, ndevices;
  int32_t host_pid; /* the client's pid as the engine sees it */
  int32_t engine_pid;
  uint64_t context_bytes; /* device memory that one context costs */
  uint64_t kernel_ns;     /* device time of a kernel that does not specify its own; 0: derived from its shape */
  uint64_t launch_ns;     /* CPU cost of a call, for each of the three kinds */
  uint64_t event_ns;
  uint64_t query_ns;
  uint64_t slice_ns;
  uint64_t switch_ns;
  uint64_t copy_bytes_per_us; /* rate of a device's link, in each direction */
  uint32_t queue_depth;       /* work items per stream before a submission blocks */
  uint32_t preempt;           /* 1: a slice can end in the middle of a kernel */
  uint32_t driver;            /* driver release that the libraries report */
  uint32_t node_major;        /* of the devices' nodes; 0: no nodes. Device i has the minor node_minor + i */
  uint32_t node_minor;
  uint32_t reserved;
  uint64_t pageable_bytes_per_us; /* most that a copy from or to pageable memory takes of it */
  uint64_t pin_bytes_per_us;      /* rate at which memory of the host is pinned; 0: at once */
  /* CPU cost of cuMemCreate, cuMemMap, cuMemSetAccess and cuMemUnmap, for each handle or mapping */
  uint64_t create_ns, map_ns, access_ns, unmap_ns;
  struct sim_device_info device[SIM_MAX_DEVICES];
};

struct sim_process {
  int32_t pid; /* as the engine sees it */
  uint32_t alive;
  uint64_t busy_ns, bytes, peak_bytes;
};

/* Where kernels of several processes wait for each other (meeting.c). Written by clients only; entries are not
 * reused. */
struct sim_meeting {
  uint64_t id; /* key << 8 | ranks; 0: free */
  uint64_t arrived;
};

/* A copy between a device and the host, in the order in which they begin; see model/time/link.c. Written by clients
 * only. Entry k is in transfer[k % SIM_TRANSFERS]. */
enum { SIM_TO_DEVICE, SIM_FROM_DEVICE, SIM_DIRECTIONS };
struct sim_transfer {
  uint64_t number;   /* k + 1; 0: being written */
  uint64_t at;       /* when it began */
  uint64_t alone;    /* ns that it takes if there is no other */
  uint64_t pageable; /* 1: from or to pageable memory */
};
struct sim_direction {
  uint64_t count; /* entries that have a place */
  struct sim_transfer transfer[SIM_TRANSFERS];
};

/* An interval of wall time in which the device works for this lane. until is SIM_OPEN while no other lane wants the
 * device; when one does, the engine sets it to a time in the future. before is the sum of the lengths of all earlier
 * intervals, so that a client that missed more than SIM_INTERVALS of them still knows how much device time it
 * received. */
struct sim_interval {
  uint64_t from, until, before;
};
#define SIM_OPEN UINT64_MAX

/* The client's report: at time `at` it had executed `executed` device time since the lane was opened, and had `backlog`
 * device time of runnable work that keeps the device busy without a gap from then on. The engine derives later values
 * from the intervals, so submitted work of a stopped client continues to execute, as on hardware. */
struct sim_report {
  /* number of this report; lets a reader detect that the report was overwritten while it was read */
  uint64_t seq;
  uint64_t at, executed, backlog;
  /* the part of executed and backlog that computes nothing: memory barriers, which wait for a time slice and are not
   * charged */
  uint64_t barriers;
};

/* Words are accessed with __atomic builtins. Interval k is in interval[k % SIM_INTERVALS] and valid while k < count and
 * k + SIM_INTERVALS > count. Only `until` of the last one ever changes. Report n is in report[n % 2]; a writer that is
 * killed while writing n + 1 leaves n intact. boundary[k % SIM_BOUNDARIES], k < boundaries, is the value of `executed`
 * at which the kth work item ends; it is only written if the hardware does not preempt (sim_hello.preempt == 0). */
struct sim_lane {
  uint32_t magic, version;
  /* written by the engine */
  uint32_t wake; /* futex, + 1 at every change of the intervals; clients also wake their own worker with it */
  /* 0: the engine does not watch this lane because it has no work: ring the bell after publishing a report */
  uint32_t aware;
  uint64_t count;
  uint32_t locked; /* futex, 1: the process's calls wait (SIM_CHECKPOINT); the same in all its lanes */
  uint32_t reserved0[25];
  struct sim_interval interval[SIM_INTERVALS];
  /* written by the client */
  uint64_t reports; /* reports written; the latest has the number reports - 1 */
  uint64_t boundaries;
  uint32_t calls;                  /* in progress; counted in one lane of the process */
  uint32_t pending;                /* items of other kinds than kernels: copies, host functions, waits for values */
  uint64_t copied[SIM_DIRECTIONS]; /* bytes moved between the host and the device */
  uint64_t reserved1[11];
  struct sim_report report[2];
  uint64_t boundary[SIM_BOUNDARIES];
};

#include <stddef.h>
_Static_assert(sizeof(struct sim_request) == 32, "layout");
_Static_assert(sizeof(struct sim_reply) == 32, "layout");
_Static_assert(sizeof(struct sim_device_info) == 104, "layout");
_Static_assert(offsetof(struct sim_hello, device) == 160, "layout");
_Static_assert(sizeof(struct sim_process) == 32, "layout");
_Static_assert(offsetof(struct sim_lane, interval) == 128, "layout");
_Static_assert(offsetof(struct sim_lane, reports) == 128 + SIM_INTERVALS * 24, "layout");

#endif
