/* Time in one process: what gate.c, streams.c, marks.c, launch.c, copies.c, sync.c, capture.c and gate_thread.c share.
 * The rest of the interposer needs the few calls at the end of interposer.h only.
 *
 * Lock order: `reaping` of a device (may be held over driver calls that do not block), then `tables` (contexts and
 * streams), then `lock` of the device (its meter and queues; never held over a driver call: a record can block on a
 * full channel whose progress needs another thread of the program), then a context's `pool`. */
#ifndef GPUSHARE_TIMING_H
#define GPUSHARE_TIMING_H

#include "interposer/process/process.h"
#include "interposer/os/latch.h"
#include "interposer/meter/meter.h"
#include "interposer/os/ticks.h"

enum {
  GS_TIME_CONTEXTS = 64,
  GS_TIME_STREAMS = 1024, /* live ones; further streams are gated and not metered */
  GS_TIME_EVENTS = 256,   /* free events kept per context */
  GS_TIME_RECORDED = 256, /* events of the program remembered, a power of two */
  GS_TIME_CAPTURES = 64,
  GS_BOUND_DEFAULT_NS = 2000000,
  GS_DRAINED_NS = 200000, /* less than this in flight counts as drained */
  /* a mark overdue by so long, and by as much as it takes, may wait for work held in the gate */
  GS_DEPENDENT_NS = 5000000,
  GS_HEARTBEAT_NS = 100000000 /* a heartbeat that stands still so long means that the daemon is gone */
};

struct gs_context {
  CUcontext handle; /* NULL: free place */
  int ordinal;
  /* calls under way that may end it: meanwhile nobody asks its events. Under `reaping` and `tables` */
  uint32_t ending;
  /* Below: by whoever holds the device's `reaping`. */
  CUevent base;       /* the event device times are measured from; NULL until the first mark is done */
  uint64_t base_time; /* its own device time */
  struct gs_clock clock;
  struct gs_latch pool; /* of free_event */
  uint32_t free_events;
  CUevent free_event[GS_TIME_EVENTS];
};

struct gs_stream {
  CUstream handle; /* CU_STREAM_LEGACY or CU_STREAM_PER_THREAD for the default ones */
  uint64_t thread; /* whose CU_STREAM_PER_THREAD */
  struct gs_context *context;
  struct gs_time_device *device;
  bool live;     /* false: a free place */
  bool blocking; /* ordered with the legacy stream */
  bool retired;  /* destroyed by the program; the place is free once its marks are reaped */
  bool unmarked; /* the driver refused a mark here: estimates only */
  CUevent bracket[2];
  struct gs_queue queue;

  /* repeat.h. */
  const void *repeater; /* the gs_repeat of the thread that may repeat its last launch here */
  uint64_t repeated;    /* launches, ever; its word */
  /* Below: under the device's lock. */
  uint64_t absorbed;                /* of them in the queue */
  uint64_t booked, booked_launches; /* when the last launch was booked in full, and how many were made by then */
  struct gs_function *repeats;
  uint64_t repeats_key;
  /* The program waited for it while somebody else read its marks: 1 + launches that were done then, and when. */
  uint64_t done_launches, done_at;
};

struct gs_time_device {
  const struct gs_device_limits *limits;
  struct gs_slot_device *slot;
  struct gs_meter *meter; /* NULL: no context of this process was ever on it */
  int ordinal;
  uint32_t local;     /* 1: the daemon is gone, the local budget decides */
  uint64_t reaped;    /* marks seen complete, ever */
  uint64_t looked_at; /* when somebody last looked whether there are any */
  uint32_t residents; /* processes of the grant with work on the device of late, this one included */
  uint64_t residents_at;
  struct gs_biased lock;
  struct gs_latch reaping;
  struct gs_ticks ticks; /* under lock */
  uint32_t claims;       /* collectives counted, or about to be, and not yet submitted */
  /* under lock: slot->launches when nothing was seen in flight; UINT64_MAX: something was, last time */
  uint64_t idle_at;

  /* Profiled processes: residency instead of marks. Under lock. */
  bool resident;
  uint64_t resident_since;

  /* The local budget. Under budget_lock. */
  struct gs_latch budget_lock;
  uint64_t budget_time;
  double budget_ns, budget_spent;

  /* gate_thread.c only. */
  uint32_t seen;     /* lease word acted upon */
  uint32_t draining; /* the even word whose drain is awaited, 0 none */
  uint64_t revoked;  /* when that was noticed */
};

/* A capture is open from its begin to its end, or to that of its stream, context or thread. */
struct gs_origin {
  CUstream stream; /* NULL: free place */
  CUcontext context;
  int32_t thread; /* whose CU_STREAM_PER_THREAD, else 0 */
};

/* An event of the program and what its stream had been given when it was recorded. */
struct gs_recorded {
  CUevent event;
  struct gs_stream *stream;
  uint32_t generation;
  uint64_t launches;
};

struct gs_time {
  bool profiled; /* a profiler is in the process: no marks */
  struct gs_latch tables;
  uint32_t generation; /* + 1 when a stream or context goes: what threads remember is stale */
  uint32_t ending;     /* sum of that of the contexts: handles of streams may come back before we hear of their end */
  uint32_t captures;   /* open ones of the process; while there are any, driver calls of ours need care */
  uint32_t repeats;    /* moved by all that makes a launch another one than it was, see repeat.h; not 0 */
  uint32_t thread_started;
  uint32_t stop;           /* the process ends: the gate thread touches the driver no more */
  uint32_t streams;        /* 1 + highest place ever used */
  struct gs_latch driving; /* held by the gate thread while it is in the driver */
  struct gs_time_device device[GS_MAX_DEVICES];
  struct gs_context context[GS_TIME_CONTEXTS];
  struct gs_stream *stream[GS_TIME_STREAMS];
  struct gs_origin origin[GS_TIME_CAPTURES]; /* under tables */
  struct gs_latch recorded_lock;
  struct gs_recorded recorded[GS_TIME_RECORDED];
};

/* NULL until gs_time_start and in a fork's child. */
static inline struct gs_time *gs_time(void) { return __atomic_load_n(&gs_process->time, __ATOMIC_ACQUIRE); }

/* ---- streams.c ---- */

/* NULL means the legacy default stream; CU_STREAM_PER_THREAD that of this thread. NULL when it cannot be known or kept. */
struct gs_stream *gs_stream_of(CUstream handle);
/* The same, NULL when this process never submitted to it. */
struct gs_stream *gs_stream_known(CUstream handle);
void gs_stream_free(struct gs_stream *stream);
void gs_stream_ending(CUstream handle);
/* The context the stream belongs to, current being the calling thread's; NULL: the driver does not know the stream. */
CUcontext gs_context_behind(CUstream handle, CUcontext current);
/* The handles of all functions, or of one graph (key), may mean something else from now on. */
void gs_functions_changed(void);
void gs_function_changed(uint64_t key);
CUevent gs_event_take(struct gs_context *context);
void gs_event_give(struct gs_context *context, CUevent event);

/* ---- capture.c ---- */

bool gs_stream_capturing(CUstream handle);
/* Closes the captures whose stream was of a context that is gone, and of the green ones in it. Under `tables`. */
void gs_captures_gone(CUcontext context);
/* The same for threads that ended. */
void gs_captures_check(void);
/* Makes driver calls of ours harmless to captures of any thread, while there are any. Pair them. */
int gs_relax(void);
void gs_unrelax(int previous);

/* ---- marks.c ---- */

/* Closes the open segment of a stream with a timing event. Called by threads of the program, with the stream's context
 * current. */
void gs_mark_record(struct gs_stream *stream, bool start);
/* Records one of the two events around a sampled launch, and says when that was done; false when the driver refuses. */
bool gs_bracket_record(struct gs_stream *stream, int which, uint64_t *recorded);
/* Takes in what is done, of all streams of a device; returns at once when another thread does that already. */
void gs_reap(struct gs_time_device *device);
/* Everything submitted to the stream is done, the program knows. */
void gs_stream_done(struct gs_stream *stream);
/* Forgets the marks of a context that is gone, with its events, and charges what they were estimated at. Under the
 * device's `reaping` and `tables`. */
void gs_context_forget(struct gs_context *context);
/* Writes the slot's device words. Of an idle device the end stays when it was first seen idle: a program that asks
 * whether its work is done does not use the device. True: all is done, much sooner than was said before. Under the
 * device's lock. */
bool gs_publish(struct gs_time_device *device, uint64_t now);
/* Nanoseconds until the work in flight is expected to be done, 0: it is. Under the device's lock. */
uint64_t gs_rest(struct gs_time_device *device, uint64_t now);

/* ---- gate.c ---- */

/* What one observer saw of the daemon's heartbeat. */
struct gs_heartbeat {
  uint32_t beat;
  uint64_t time; /* of the last change; 0: not looked yet */
};
/* Decides between leases and the local budget, for all devices. */
void gs_daemon_check(struct gs_heartbeat *seen, uint64_t now);
/* Estimated nanoseconds that this process may have in flight. */
static inline double gs_bound(const struct gs_time_device *device) {
  uint64_t given = __atomic_load_n(&device->limits->inflight_bound_ns, __ATOMIC_RELAXED);
  uint32_t residents = __atomic_load_n(&device->residents, __ATOMIC_RELAXED);
  double bound = given ? (double)(int64_t)given : GS_BOUND_DEFAULT_NS;
  /* It holds for the grant: its processes share it. */
  return GS_LIKELY(residents <= 1) ? bound : bound / residents;
}
uint32_t gs_slots_active(const struct gs_time_device *device, uint64_t now, uint64_t within);

/* What happens to a device that was revoked: others come, and nothing of ours is there any more once it drained.
 * Without a daemon nobody knows: what runs then is charged in full. */
static inline uint32_t gs_others_without_lease(const struct gs_time_device *device, uint32_t lease) {
  const struct gs_slot_device *slot = device->slot;
  if (__atomic_load_n(&device->local, __ATOMIC_RELAXED))
    return 0;
  if (__atomic_load_n(&slot->drained, __ATOMIC_RELAXED) == lease &&
      __atomic_load_n(&slot->inflight, __ATOMIC_RELAXED) == 0)
    return GS_METER_AWAY;
  return 1;
}
/* Who may be on the device, by the lease word just read. */
static inline uint32_t gs_others(const struct gs_time_device *device, uint32_t lease) {
  return lease & GS_LEASE_HELD ? __atomic_load_n(&device->limits->foreign_work, __ATOMIC_ACQUIRE) & 1
                               : gs_others_without_lease(device, lease);
}
static inline bool gs_turn_passed(const struct gs_time_device *device, uint32_t lease) {
  return gs_others(device, lease) != __atomic_load_n(&device->meter->others, __ATOMIC_RELAXED) ||
         __atomic_load_n(&device->limits->foreign_work, __ATOMIC_RELAXED) !=
             __atomic_load_n(&device->meter->foreign_work, __ATOMIC_RELAXED);
}
/* Tells the meter. Under the device's lock. */
void gs_notice_turn(struct gs_time_device *device, uint32_t lease, uint64_t now);
/* The same where nobody submits. */
void gs_look_at_turn(struct gs_time_device *device);
/* Waits for a lease, or for the local budget where the daemon is gone. Gives the lease word that let it through. */
uint32_t gs_gate_wait(struct gs_time_device *device, struct gs_stream *stream);
/* Whether work goes on although the lease was revoked: the ranks of a gang stop at the same collective. */
bool gs_under_cut(const struct gs_time_device *device);
/* What was said of a drain holds no more: under a cut, work is about to be submitted. */
void gs_undrain(struct gs_time_device *device);
/* This thread is about to submit a collective that is counted: it goes, whatever the lease is now. collectives.c */
bool gs_claimed(const struct gs_time_device *device);
/* Waits until the work in flight is under the bound, softly: a stuck stream takes the launch of key, only not too fast. */
void gs_bound_wait(struct gs_time_device *device, struct gs_stream *stream, uint64_t key);
void gs_set_dependent(struct gs_time_device *device, bool dependent);

/* ---- sync.c ---- */

/* The program is about to wait for the stream (may be NULL). */
void gs_before_wait(struct gs_stream *stream);
/* gs_stream_done, and for the legacy stream all that it waits for. */
void gs_stream_done_with_others(struct gs_stream *stream);

/* ---- callbacks.c ---- */

/* This thread is in a function that the driver calls in stream order: what is submitted here is metered, and waits for
 * nothing. The driver may refuse calls of ours. */
extern __thread bool gs_called_back __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* ---- gate_thread.c ---- */

void gs_gate_thread_start(void);

/* ---- launch.c: every submission of compute work ---- */

struct gs_submission {
  struct gs_stream *stream; /* NULL: neither gated nor metered */
  struct gs_function *function;
  double estimate;
  uint32_t plan;
  uint64_t planned, began;
};

/* key: the function, the graph, or a kind of fill; never 0. To be called when gs_enter said true. Gives CUDA_SUCCESS. */
CUresult gs_submit(struct gs_submission *submission, uint64_t key, CUstream stream);
/* The same, which asks gs_enter and gives the error that it says. */
CUresult gs_enter_submit(struct gs_submission *submission, uint64_t key, CUstream stream);
void gs_submitted_slow(struct gs_submission *submission, CUresult result);
/* Gives result. */
static inline CUresult gs_submitted(struct gs_submission *submission, CUresult result) {
  if (!GS_LIKELY(!submission->stream || (submission->plan == 0 && result == CUDA_SUCCESS)))
    gs_submitted_slow(submission, result);
  return result;
}

static inline bool gs_stream_live(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->live, __ATOMIC_ACQUIRE);
}
static inline bool gs_stream_retired(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->retired, __ATOMIC_ACQUIRE);
}

static inline CUstream gs_ptsz(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

#endif
