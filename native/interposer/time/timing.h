/* Device time in one process: the state that the rooms below share.
 *
 * Lock order: `reaping` of a device (may be held across driver calls that do not block), then `tables` (contexts and
 * streams), then `lock` of the device (its meter and queues; never held across a driver call, because recording an
 * event can block on a full channel whose progress needs another thread of the program), then `pool` of a context. */
#ifndef GPUSHARE_TIMING_H
#define GPUSHARE_TIMING_H

#include "interposer/process/passage/passage.h"
#include "interposer/os/latch.h"
#include "interposer/os/table.h"
#include "interposer/meter/meter.h"
#include "interposer/os/ticks.h"

enum {
  GS_BRACKET_EVENTS = 4,
  GS_TIME_EVENTS = 256, /* free events kept per context; further ones are destroyed */
  /* number of the program's events that are remembered, a power of two; the others prove nothing */
  GS_TIME_RECORDED = 256,
  GS_BOUND_DEFAULT_NS = 2000000,
  GS_DRAINED_NS = 200000, /* less than this in flight counts as drained */
  /* a mark overdue by this long, and by as long as it was expected to take, may wait for work held in the gate */
  GS_DEPENDENT_NS = 5000000,
  GS_HEARTBEAT_NS = 100000000 /* a heartbeat that has not changed for this long means that the daemon is gone */
};

struct gs_context {
  CUcontext handle;        /* NULL: free place */
  struct gs_context *next; /* of all places; constant */
  int ordinal;
  /* calls in progress that may end the context: meanwhile its events are not queried. Protected by `reaping` and
   * `tables` */
  uint32_t ending;
  uint64_t ending_since; /* when the last of them began; it waits for the context's work. Protected in the same way */
  /* Below: protected by the device's `reaping`. */
  CUevent base;       /* the event from which device times are measured; NULL until the first mark is done */
  uint64_t base_time; /* device time of the base event */
  struct gs_clock clock;
  uint32_t clocked; /* number of brackets that measured the clock. Atomic */
  /* An event behind everything in the context that is not known to be done, or NULL; number of such events that were
   * done. See query.c */
  CUevent asking;
  uint64_t answers;
  struct gs_latch pool; /* protects free_event */
  uint32_t free_events;
  CUevent free_event[GS_TIME_EVENTS];
};

struct gs_stream {
  CUstream handle; /* CU_STREAM_LEGACY or CU_STREAM_PER_THREAD for the default streams */
  uint64_t thread; /* the thread to which CU_STREAM_PER_THREAD belongs; see gs_stream_thread */
  struct gs_context *context;
  struct gs_time_device *device;
  bool live;                          /* false: a free place */
  bool blocking;                      /* ordered with the legacy stream */
  bool retired;                       /* destroyed by the program; the place becomes free once its marks are reaped */
  bool listed;                        /* in the list of its device, under the device's lock */
  CUevent bracket[GS_BRACKET_EVENTS]; /* see bracket.c */
  bool bracket_empty, bracket_early;  /* the last one measures an event as well, or the clock */
  struct gs_stream *alike;            /* with the same hash, or the next free place; under `tables` */
  struct gs_stream *next, *prior;     /* in the list of its device; see active.h */
  uint64_t due;                       /* when the work is expected to be done */
  uint64_t refused; /* when a mark was last refused; 0: never. After that, marks are tried again only after a while */
  /* query.c only: the number of the context's answer that covers this stream, and its number of launches when that was
   * asked */
  uint64_t asked, asked_launches;
  /* Submissions booked so far (written under the device's lock), and those whose driver call has ended since. They stay
   * when the place is reused for another stream: the call of a submission to the old one may still end. Atomic */
  uint64_t sent, arrived;
  /* Below: under the device's lock. */
  uint64_t newest;     /* only waits with a greater number show that the work of this stream is done; see waits.h */
  uint64_t unobserved; /* the stream is charged by residency from this time on; 0: by its marks. See residency.h */
  uint32_t unobserved_head; /* number of marks recorded when its work was last found out of their sight */
  /* When it last began to wait for a value in memory or a semaphore: 1 + number of launches, 0: nothing behind such a wait
   * is in flight; number of marks recorded. The gate reads the first without the lock. */
  uint64_t held_launches;
  uint32_t held_head;
  struct gs_queue queue;

  /* When the program queried the stream and it was not done: 1 + number of launches then, the first time and the last.
   * Atomic. */
  uint64_t polled_launches, polled_from, polled_until;

  /* When a short wait that is not booked ended: 1 + the number of launches, the processor's counter. Atomic */
  uint64_t waited_launches, waited_tick;

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
  struct gs_meter *meter; /* NULL: this process never had a context on the device */
  int ordinal;
  uint32_t local; /* 1: the daemon is gone, the local budget decides */
  /* state of struct gs_passage, or a word that is always GS_OPEN: otherwise nothing is submitted. Constant */
  const uint32_t *passage;
  uint64_t reaped;    /* number of marks seen complete */
  uint64_t looked_at; /* when complete marks were last looked for */
  uint32_t residents; /* processes of the grant with recent work on the device, this one included */
  uint64_t residents_at;
  struct gs_biased lock;
  uint64_t waits; /* number of the program's last wait; under lock */
  struct gs_latch reaping;
  struct gs_ticks ticks; /* under lock */
  uint32_t barriers;     /* how many barriers hold a bracketed launch, see bracket.c; 0: not yet known. Atomic */
  /* Time that the device takes for an event: the sum of `events` measurements, ns. Under `reaping`; the number is
   * atomic */
  double events_ns;
  uint32_t events;
  uint32_t claims; /* collectives counted, or about to be, and not yet submitted */
  /* under lock: slot->launches when nothing was seen in flight; UINT64_MAX: something was in flight last time */
  uint64_t idle_at;
  struct gs_stream *active;    /* see active.h */
  uint32_t unobserved_streams; /* number of streams charged by residency; under lock */
  uint64_t unobserved_since;   /* when the latest of them became so */
  struct gs_stream *rest;      /* represents all streams for which there was no memory; in the mapping of the meter */
  /* under lock: estimated time of what callbacks submitted while the lease word had this value, without a lease */
  uint32_t callback_lease;
  double callback_ns;
  uint64_t callback_passed; /* when a callback last passed because it had waited for a long time */

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
  uint64_t key; /* the stream, or the thread to which CU_STREAM_PER_THREAD belongs */
  CUstream stream;
  CUcontext context;
};

/* An event of the program and the number of launches into its stream when it was recorded. */
struct gs_recorded {
  CUevent event;
  struct gs_stream *stream;
  uint32_t generation;
  uint64_t launches;
};

struct gs_time {
  bool profiled; /* a profiler is in the process: no marks and no questions; every stream is charged by residency */
  struct gs_latch tables;
  uint32_t generation; /* incremented when a stream or context ends: invalidates what threads have cached */
  /* sum of `ending` over the contexts: handles of streams may be reused before their end is noticed */
  uint32_t ending;
  /* number of open captures of the process; while there are any, the interposer's driver calls need care */
  uint32_t captures;
  uint32_t joining;      /* number of calls in progress that may draw a stream into one of them */
  struct gs_latch whole; /* held while all work of a context is looked at, which would end captures: none begins */
  uint32_t repeats;      /* incremented by everything that changes the meaning of a launch, see repeat.h; never 0 */
  uint32_t thread_started;
  uint32_t dozes;          /* the gate thread sleeps for longer than work may go unwatched: new work has to wake it */
  uint32_t stop;           /* the process is exiting: the gate thread makes no more driver calls */
  struct gs_latch driving; /* held by the gate thread during its driver calls */
  struct gs_time_device device[GS_MAX_DEVICES];
  struct gs_context *contexts; /* all places */
  /* The streams, by hash. Under `tables`, as all below. */
  struct gs_stream **bucket;
  uint32_t buckets, streams; /* a power of two, and the number of streams in them */
  struct gs_stream *free_streams;
  struct gs_table origins;
  struct gs_latch recorded_lock;
  struct gs_recorded recorded[GS_TIME_RECORDED];
};

/* NULL before gs_time_create and in a forked child. */
static inline struct gs_time *gs_time(void) { return __atomic_load_n(&gs_process->time, __ATOMIC_ACQUIRE); }

static inline bool gs_stream_live(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->live, __ATOMIC_ACQUIRE);
}
/* Its place may be reused for another stream while another thread walks over the streams without a latch. */
static inline struct gs_time_device *gs_stream_home(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->device, __ATOMIC_RELAXED);
}
static inline bool gs_stream_retired(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->retired, __ATOMIC_ACQUIRE);
}
/* Whether any thread may pass the stream, found in the list of the device, to the driver. Under `reaping`, which calls
 * that end a stream or a context wait for. */
static inline bool gs_stream_askable(const struct gs_stream *stream, const struct gs_time_device *device) {
  return gs_stream_live(stream) && gs_stream_home(stream) == device && stream->context &&
         __atomic_load_n(&stream->context->ending, __ATOMIC_RELAXED) == 0;
}

/* Whether the program's memory is on the device and does not move. */
static inline bool gs_memory_there(const struct gs_time_device *device) {
  return GS_LIKELY(__atomic_load_n(device->passage, __ATOMIC_ACQUIRE) == GS_OPEN);
}

/* Number of the grant's processes with recent work on the device, this one included. */
static inline uint32_t gs_residents(const struct gs_time_device *device) {
  return __atomic_load_n(&device->residents, __ATOMIC_RELAXED);
}

/* Whether the handle is a default stream, as NULL is. The stream it means depends on the context and the thread. */
static inline bool gs_stream_is_default(CUstream handle) {
  return !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

static inline CUstream gs_ptsz(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

#endif
