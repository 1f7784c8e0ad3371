/* Device time in one process: the state shared by the files of this directory.
 *
 * Lock order: `reaping` of a device (may be held across driver calls that do not block), then `tables` (contexts and
 * streams), then `lock` of the device (its meter and queues; never held across a driver call, because recording an
 * event can block on a full channel whose progress needs another thread of the program), then `pool` of a context. */
#ifndef GPUSHARE_TIMING_H
#define GPUSHARE_TIMING_H

#include "interposer/process/process.h"
#include "interposer/os/latch.h"
#include "interposer/meter/meter.h"
#include "interposer/os/ticks.h"

enum {
  GS_TIME_CONTEXTS = 64,
  GS_TIME_STREAMS = 1024, /* live streams; further ones are gated and not metered */
  GS_TIME_EVENTS = 256,   /* free events kept per context */
  GS_TIME_RECORDED = 256, /* events of the program remembered, a power of two */
  GS_TIME_CAPTURES = 64,
  GS_BOUND_DEFAULT_NS = 2000000,
  GS_DRAINED_NS = 200000, /* less than this in flight counts as drained */
  /* a mark overdue by this long, and by as long as it was expected to take, may wait for work held in the gate */
  GS_DEPENDENT_NS = 5000000,
  GS_HEARTBEAT_NS = 100000000 /* a heartbeat that has not changed for this long means that the daemon is gone */
};

struct gs_context {
  CUcontext handle; /* NULL: free place */
  int ordinal;
  /* calls in progress that may end the context: meanwhile its events are not queried. Protected by `reaping` and
   * `tables` */
  uint32_t ending;
  /* Below: protected by the device's `reaping`. */
  CUevent base;       /* the event from which device times are measured; NULL until the first mark is done */
  uint64_t base_time; /* device time of the base event */
  struct gs_clock clock;
  struct gs_latch pool; /* protects free_event */
  uint32_t free_events;
  CUevent free_event[GS_TIME_EVENTS];
};

struct gs_stream {
  CUstream handle; /* CU_STREAM_LEGACY or CU_STREAM_PER_THREAD for the default streams */
  uint64_t thread; /* whose CU_STREAM_PER_THREAD */
  struct gs_context *context;
  struct gs_time_device *device;
  bool live;     /* false: a free place */
  bool blocking; /* ordered with the legacy stream */
  bool retired;  /* destroyed by the program; the place becomes free once its marks are reaped */
  bool unmarked; /* the driver refused a mark in this stream: it is charged by estimates only */
  CUevent bracket[2];
  struct gs_queue queue;

  /* When the program asked whether its work was done, and it was not: 1 + number of launches then, the first time and
   * the last. Atomic. */
  uint64_t polled_launches, polled_from, polled_until;

  /* Number of launches so far when the last mark was recorded or all was known to be done, and 1 + that number when a
   * short wait that is not booked yet ended. Atomic. */
  uint64_t covered, waited_launches;
  uint64_t witnessed, witnessed_at; /* witness.c only: number of launches at its last look, and since when it is that */

  /* Used by repeat.h. */
  const void *repeater; /* the gs_repeat of the thread that may repeat its last launch here */
  uint64_t repeated;    /* number of repeated launches; written only by that thread */
  /* Below: under the device's lock. */
  uint64_t absorbed; /* number of those already booked in the queue */
  /* when the last launch was booked in full, and the number of launches at that time */
  uint64_t booked, booked_launches;
  struct gs_function *repeats;
  uint64_t repeats_key;
  /* Set when the program waited for the stream while another thread read its marks: 1 + the number of launches that
   * were done then, and the time. */
  uint64_t done_launches, done_at;
};

struct gs_time_device {
  const struct gs_device_limits *limits;
  struct gs_slot_device *slot;
  struct gs_meter *meter; /* this process never had a context on the device */
  int ordinal;
  uint32_t local;     /* 1: the daemon is gone, the local budget decides */
  uint64_t reaped;    /* number of marks seen complete */
  uint64_t looked_at; /* when complete marks were last looked for */
  uint32_t residents; /* processes of the grant with recent work on the device, this one included */
  uint64_t residents_at;
  struct gs_biased lock;
  struct gs_latch reaping;
  struct gs_ticks ticks; /* under lock */
  uint32_t watched;      /* the gate's thread looks at the device every millisecond or two. Atomic */
  uint32_t claims;       /* collectives counted, or about to be, and not yet submitted */
  /* under lock: slot->launches when nothing was seen in flight; UINT64_MAX: something was in flight last time */
  uint64_t idle_at;

  /* Profiled processes: residency instead of marks. Under lock. */
  bool resident;
  uint64_t resident_since;

  /* The local budget. Protected by budget_lock. */
  struct gs_latch budget_lock;
  uint64_t budget_time;
  double budget_ns, budget_spent;

  /* gate_thread.c only. */
  uint32_t seen;     /* the last lease word handled */
  uint32_t draining; /* the even lease word whose drain is awaited; 0: none */
  uint64_t revoked;  /* when that revoke was noticed */
};

/* An open capture. It ends explicitly, or with its stream, context or thread. */
struct gs_origin {
  CUstream stream; /* NULL: free place */
  CUcontext context;
  int32_t thread; /* the thread to which CU_STREAM_PER_THREAD belongs, else 0 */
};

/* An event of the program and the number of launches into its stream when it was recorded. */
struct gs_recorded {
  CUevent event;
  struct gs_stream *stream;
  uint32_t generation;
  uint64_t launches;
};

struct gs_time {
  bool profiled; /* a profiler is in the process: no marks */
  struct gs_latch tables;
  uint32_t generation; /* incremented when a stream or context ends: then what threads have cached is stale */
  /* sum of `ending` over the contexts: handles of streams may be reused before their end is noticed */
  uint32_t ending;
  /* number of open captures of the process; while there are any, the interposer's driver calls need care */
  uint32_t captures;
  uint32_t repeats; /* incremented by everything that changes the meaning of a launch, see repeat.h; never 0 */
  uint32_t thread_started;
  uint32_t stop;           /* the process is exiting: the gate thread makes no more driver calls */
  uint32_t streams;        /* 1 + highest place ever used */
  struct gs_latch driving; /* held by the gate thread during its driver calls */
  struct gs_time_device device[GS_MAX_DEVICES];
  struct gs_context context[GS_TIME_CONTEXTS];
  struct gs_stream *stream[GS_TIME_STREAMS];
  struct gs_origin origin[GS_TIME_CAPTURES]; /* under tables */
  struct gs_latch recorded_lock;
  struct gs_recorded recorded[GS_TIME_RECORDED];
};

/* NULL before gs_time_start and in a forked child. */
static inline struct gs_time *gs_time(void) { return __atomic_load_n(&gs_process->time, __ATOMIC_ACQUIRE); }

static inline bool gs_stream_live(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->live, __ATOMIC_ACQUIRE);
}
static inline bool gs_stream_retired(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->retired, __ATOMIC_ACQUIRE);
}

/* Whether the handle is a default stream, as NULL is. The stream it means depends on the context and the thread. */
static inline bool gs_stream_is_default(CUstream handle) {
  return !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

static inline CUstream gs_ptsz(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

#endif
