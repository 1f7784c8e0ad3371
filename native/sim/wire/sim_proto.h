/* What the simulated GPU's engine (gpushare-sim) and its clients (the simulated libcuda.so.1 and libnvidia-ml.so.1, the
 * daemon, tests) say to each other.
 *
 * Socket: <dir>/sim.sock, AF_UNIX SOCK_SEQPACKET. Each request is one struct sim_request, each answer one struct
 * sim_reply (struct sim_hello for SIM_HELLO), sometimes with descriptors (SCM_RIGHTS). SIM_HELLO comes first. Who a
 * client is comes from the peer credentials. The end of the connection, or of the process behind it, gives back all it
 * held. Requests of one connection are answered in order.
 *
 * Lane: one shared page per (process, device) over which time is handed out, see struct sim_lane.
 *
 * Times are CLOCK_MONOTONIC nanoseconds, sizes bytes. Packed for any language: little endian, naturally aligned. */
#ifndef SIM_PROTO_H
#define SIM_PROTO_H

#include <stdint.h>

enum {
  SIM_PROTO_MAGIC = 0x67734d31, /* "gsM1" */
  SIM_PROTO_VERSION = 1,
  SIM_MAX_DEVICES = 16,
  SIM_NAME_BYTES = 64,
  SIM_INTERVALS = 512,
  SIM_BOUNDARIES = 4096,
  SIM_MEETINGS = 1024
};

#define SIM_SOCKET_NAME "sim.sock"

enum sim_op_code {
  SIM_HELLO = 1,      /* a: enum sim_role. Answer: struct sim_hello */
  SIM_MEM_ALLOC = 2,  /* device, a: bytes. error -ENOMEM: does not fit */
  SIM_MEM_FREE = 3,   /* device, a: bytes. error -EINVAL: more than the process holds */
  SIM_MEM_INFO = 4,   /* device. a: total, b: used by all, c: used by this process */
  SIM_LANE_OPEN = 5,  /* device. Descriptors: memfd with struct sim_lane, eventfd (the bell) */
  SIM_LANE_CLOSE = 6, /* device. What is still queued on it is dropped */
  SIM_STATS = 7,      /* Descriptor: memfd with a bytes of JSON, the books of all devices */
  SIM_PROCESSES = 8,  /* device. Descriptor: memfd with a records of struct sim_process, live processes first */
  SIM_STOP = 9,       /* ends the engine; root or the engine's own uid, else -EPERM */
  SIM_DEVICE = 10,    /* device. a: busy_ns, b: wall_ns, c: number of processes with a context or memory */
  /* device, a and b: a secret. With a descriptor: the memfd behind the process's memory there, for IPC */
  SIM_FILE_PUT = 11,
  /* a and b: the secret. Descriptor: that memfd, as long as its process lives; a: its device, b: its pid */
  SIM_FILE_GET = 12,
  SIM_SETTING =
      13, /* device, a: enum sim_setting, b: SIM_KEEP or the new value (root or the engine's own uid, else -EPERM).
                         a: the value */
  SIM_EVENTS_PUT = 14,  /* as SIM_FILE_PUT, for the page of its interprocess events */
  SIM_TIMES = 15,       /* device. a: busy_ns, b: switch_ns, c: wall_ns; cheap enough for a thousand a second */
  SIM_MEETINGS_GET = 16 /* Descriptor: the page of struct sim_meeting[SIM_MEETINGS] that all processes share */
};

/* What an administrator can set of a device. It means nothing to the simulation, tests look who may change it; but for
 * SIM_LOST: 1, the device answers nobody (-EIO to all that asks for it) and its work stands still, as after a fault of
 * the hardware, until it is 0 again. */
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
  SIM_ROLE_CLIENT = 1, /* a process that uses the device: has a row in the books */
  SIM_ROLE_VIEWER = 2, /* looks only (NVML, stats); does not keep the engine alive */
  SIM_ROLE_CONTROL = 3 /* looks, and keeps the engine alive while connected (the daemon) */
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

struct sim_device_info {
  uint8_t uuid[16];
  uint64_t total_bytes;
  char name[SIM_NAME_BYTES]; /* NUL-terminated */
  uint32_t pci_domain, pci_bus, pci_device, reserved;
};

struct sim_hello {
  uint32_t magic;
  int32_t error;
  uint32_t version, ndevices;
  int32_t host_pid; /* the client's pid as the engine sees it */
  int32_t engine_pid;
  uint64_t context_bytes; /* device memory one context costs */
  uint64_t kernel_ns;     /* device time of a kernel that does not say its own */
  uint64_t launch_ns;     /* CPU costs of calls */
  uint64_t event_ns;
  uint64_t query_ns;
  uint64_t slice_ns;
  uint64_t switch_ns;
  uint64_t copy_bytes_per_us; /* of each copy engine */
  uint32_t queue_depth;       /* work items per stream before a submission blocks */
  uint32_t preempt;           /* 1: slices end in mid-kernel */
  struct sim_device_info device[SIM_MAX_DEVICES];
};

struct sim_process {
  int32_t pid; /* as the engine sees it */
  uint32_t alive;
  uint64_t busy_ns, bytes, peak_bytes;
};

/* Where kernels of several processes wait for each other (meeting.c). Written by clients only; a place is not given
 * back. */
struct sim_meeting {
  uint64_t id; /* key << 8 | ranks; 0: free */
  uint64_t arrived;
};

/* An interval of wall time in which the device works for this lane. until is SIM_OPEN while nobody else wants the
 * device; the engine sets it to a time in the future when somebody does. before is the sum of the lengths of all
 * earlier intervals, so a client that was stopped for more than SIM_INTERVALS of them still knows how much time it got. */
struct sim_interval {
  uint64_t from, until, before;
};
#define SIM_OPEN UINT64_MAX

/* The client's account: at time `at` it had executed `executed` device time since the lane was opened and had `backlog`
 * of runnable work that keeps the device busy without a gap from then on. The engine derives every later instant from
 * the intervals, so a stopped client goes on executing what it submitted, as on hardware. */
struct sim_report {
  /* copy of the number this report was written as: a reader sees whether it was overwritten meanwhile */
  uint64_t seq;
  uint64_t at, executed, backlog;
};

/* Words are accessed with __atomic builtins. Interval k is in interval[k % SIM_INTERVALS], valid for k < count and k +
 * SIM_INTERVALS > count. Only the last one ever changes (until). Report n is in report[n % 2]; a writer killed in the
 * middle of n + 1 leaves n whole. boundary[k % SIM_BOUNDARIES], k < boundaries: the value of `executed` at which the
 * kth work item ends; written only where the hardware does not preempt (sim_hello.preempt == 0). */
struct sim_lane {
  uint32_t magic, version;
  /* written by the engine */
  uint32_t wake; /* futex, + 1 at every change of the intervals; clients wake it too, for their own worker */
  /* 0: the engine thinks this lane has no work and is not watching: ring the bell after publishing some */
  uint32_t aware;
  uint64_t count;
  uint64_t reserved0[13];
  struct sim_interval interval[SIM_INTERVALS];
  /* written by the client */
  uint64_t reports; /* reports written; the latest is reports - 1 */
  uint64_t boundaries;
  uint64_t reserved1[14];
  struct sim_report report[2];
  uint64_t boundary[SIM_BOUNDARIES];
};

#include <stddef.h>
_Static_assert(sizeof(struct sim_request) == 32, "layout");
_Static_assert(sizeof(struct sim_reply) == 32, "layout");
_Static_assert(sizeof(struct sim_device_info) == 104, "layout");
_Static_assert(offsetof(struct sim_hello, device) == 96, "layout");
_Static_assert(sizeof(struct sim_process) == 32, "layout");
_Static_assert(offsetof(struct sim_lane, interval) == 128, "layout");
_Static_assert(offsetof(struct sim_lane, reports) == 128 + SIM_INTERVALS * 24, "layout");

#endif
