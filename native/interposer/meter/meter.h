/* Metering: how much device time a process used, from what the host sees of it. Pure arithmetic: no driver calls, no
 * clock, no locks; the caller (time/) serialises calls per device and does what the returned plan asks for.
 *
 * A queue models one stream: `end` is when the host believes its work is done. The launches since the last mark are the
 * open segment; a mark is a timing event that closes it. All times are host nanoseconds (CLOCK_MONOTONIC), device times
 * already mapped onto them with gs_clock; durations are nanoseconds in double.
 *
 * What bounds the error. A queue that never runs dry is measured by the device's clock between marks; a launch that
 * gets a mark of its own is, too. Launches onto an empty queue shorter than GS_METER_ALONE_NS are charged by an
 * estimate from brackets: an event before and one after. The second event is recorded e after the launch (e, the
 * processor time of recording one: ~2.5 us), so of a kernel of length k < e the bracket sees e: it is charged e. The
 * error of such a launch is e - k, never negative and never more than e; nothing that is recorded behind a launch can
 * see what ended before. One hold behind a wait would, but a thread stopped inside it would stop the program's stream.
 * From k = e on the error is that of the mean, below 1 %.
 *
 * Several streams. A mark says when its stream was done, not whose work the device did meanwhile. Where the device
 * never idles that does not matter: the union of all streams is the wall time. A program whose streams come near to
 * filling it, and whose kernels differ, is charged too much, since a gap between two marks of one stream looks like
 * work of another: in the model of six streams and launches of 0.1 to 1.9 times the mean it is up to 7 %, and up to 16
 * % when the device is leased in turn with another tenant every 20 ms ("many" and "manyturns" in the tests). It is
 * never more than the wall time between a launch and the mark behind it, a lost lease's not counted from its drain
 * on. */
#ifndef GPUSHARE_METER_H
#define GPUSHARE_METER_H

#include <stdbool.h>
#include <stdint.h>

enum {
  GS_METER_RING = 64,        /* marks of one stream in flight; a power of two */
  GS_METER_KINDS = 8,        /* different functions remembered per segment; the rest share one sum */
  GS_METER_FUNCTIONS = 2048, /* functions remembered per device; a power of two */
  GS_METER_PROBES = 8,
  GS_METER_SAMPLES = 31,
  GS_METER_CARRIED = 4, /* launches' worth of estimates that did not fit */
  GS_METER_MANY = 25,   /* launches whose sum says something about each */
  GS_METER_FAR = 4,     /* a sample so many times the median is not believed */
  GS_METER_EXACT = 32,  /* samples that a backlogged segment outweighs */
  GS_METER_PIECES = 64,
  GS_METER_MARK_NS = 500000, /* estimated work per mark: a timing event costs ~2.5 us, 0.5 % of it */
  GS_METER_SILENT = 8,       /* after so many marks that said nothing, twice as much */
  GS_METER_SILENT_MOST = 4 * GS_METER_SILENT,
  GS_METER_MARKS = 4, /* but never fewer than so many in what may be in flight */
  /* a launch this long onto an empty queue gets a mark of its own: it is seen as long as it is */
  GS_METER_ALONE_NS = 250000,
  GS_METER_SAMPLE_NS = 1000000, /* at most one bracketed launch per stream and this long */
  GS_METER_AGREED = 2,          /* while samples say what is known, so often twice as long */
  GS_METER_AGREED_SHORT = 5,    /* of kernels that are charged what recording an event takes */
  /* shorter kernels are done before the next is launched: they do not pile up unseen */
  GS_METER_PILE_NS = 3000,
  GS_METER_NOISE_NS = 300,       /* between two samples of one kernel */
  GS_METER_GUESS_NS = 8000,      /* a function never seen */
  GS_METER_TRUSTED = 4,          /* observations after which an estimate is believed */
  GS_METER_GAP_NS = 50000,       /* a queue that ran dry so long ago starts over with an unknown function */
  GS_METER_LAG_NS = 15000,       /* a mark done this long after its record had work before it */
  GS_METER_TAIL_NS = 3000000,    /* so long into a lease the one before may still have work on the device */
  GS_METER_TURNS = 128,          /* changes of who is on the device remembered; a power of two */
  GS_METER_OVERLAP_NS = 1000000, /* so long after a revoke a successor is leased, whatever is in flight */
  /* of the time between two events others rarely got a part when it is shorter than this */
  GS_METER_UNSLICED_NS = 200000,
  /* a segment longer than that is charged by residency: several slices of the device even out */
  GS_METER_LONG_NS = 5000000,
  GS_METER_HELD = 1,      /* this bit of a lease word: leased */
  GS_METER_RISK_SHARE = 8 /* so many launches of never observed functions fill the bound on work in flight */
};

/* A function, graph or kind of fill. Table entries are reused: keep the key together with a pointer. */
struct gs_function {
  uint64_t key; /* 0: free */
  double estimate;
  uint32_t observed;
  uint32_t epoch; /* of the meter when last observed; older: handles may have been reused, learn again */
  uint32_t samples;
  uint32_t exact; /* so many samples are not believed: a backlogged segment said it better */
  bool shared;    /* observed only while others were on the device too */
  float sample[GS_METER_SAMPLES];
};

struct gs_kind {
  struct gs_function *function;
  uint64_t key;
  uint32_t launches;
};

struct gs_segment {
  double estimate; /* sum over launches, as estimated when they were launched */
  double idle;     /* of it the queue is believed to have been empty */
  double other;    /* part of estimate whose functions are not in kind[] */
  double stalled;  /* of it the device waited for the host inside a bracket */
  double share;    /* of what all streams launched meanwhile; on a mark only */
  uint64_t first;  /* host time of the first launch */
  uint32_t launches;
  uint32_t unobserved; /* launches of functions never observed before */
  uint32_t kinds;
  uint32_t lease; /* lease word of the first launch */
  bool shared;    /* work of the lease before it may have been on the device at the same time */
  struct gs_kind kind[GS_METER_KINDS];
};

#define GS_METER_AWAY UINT32_MAX /* of a turn's others: nothing of ours is on the device */

enum gs_mark_state { GS_MARK_RECORDING = 0, GS_MARK_RECORDED = 1, GS_MARK_LOST = 2 };

struct gs_mark {
  struct gs_segment segment;
  void *event;
  uint64_t recorded;    /* host time just before the record call: a lower bound of its device time */
  uint64_t recorded_by; /* and just after it: in between the thread may have lost its processor */
  uint64_t expected;    /* `end` of the queue then */
  uint32_t state;       /* enum gs_mark_state */
  bool start;           /* closes nothing: the first mark of a stream, where its device time begins */
};

struct gs_queue {
  struct gs_segment open;
  uint64_t end;
  double inflight;        /* estimate of what was launched and is not known to be done */
  uint32_t unobserved;    /* part of it in launches of never observed functions */
  uint32_t head, tail;    /* marks recorded and reaped, ever */
  double launched_before; /* meter's `launched` at the last mark */
  uint64_t launches;      /* ever, but for repeated ones */
  uint64_t closed;        /* host time of the last mark or wait: the open segment began no sooner */
  bool anchored;          /* previous_done means something */
  uint64_t previous_done;
  double previous_lag;
  double owed; /* charged by estimate to segments that were too short for it */
  uint64_t last_sample, last_check;
  uint32_t silent; /* marks in a row that found nothing waiting: they measure nothing */
  uint32_t agreed; /* samples in a row that were as expected */
  /* launches since the last that was planned: the queue may not be as empty as believed */
  uint32_t repeated;
  bool sample_next;            /* a bracket is due, but for that */
  struct gs_function *sampled; /* the bracketed launch whose events are not read yet */
  uint64_t sampled_key;
  bool sampled_shared;        /* others may have been on the device */
  double sampled_host;        /* host time inside its launch call */
  double sampled_whole;       /* and from before its first event's record until after its second's */
  struct gs_function *recent; /* of the last launch */
  struct gs_mark ring[GS_METER_RING];
};

/* Device time already counted, in disjoint pieces sorted by time: the union over streams. */
struct gs_piece {
  uint64_t from, to;
  double density; /* counted time over length, 0..1 */
};

/* From this time on so many others are believed to have work on the device. */
struct gs_turn {
  uint64_t from;
  uint32_t others;
};

struct gs_meter {
  double busy;
  double inflight;
  uint64_t end;          /* when all of it is believed done, one after another */
  double launched;       /* estimates of all launches, ever */
  uint32_t others;       /* of the last turn */
  uint32_t foreign_work; /* word of the device's limits, as last seen */
  uint32_t turns;        /* noted, ever */
  struct gs_turn turn[GS_METER_TURNS];
  double mark_most_ns; /* estimated work per mark; 0: not said */
  uint64_t leased_at;  /* first launch under the lease word below, when another was seen before */
  uint32_t lease;
  uint32_t unobserved;
  uint32_t marks; /* recorded or being recorded, not reaped */
  uint32_t epoch;
  uint32_t pieces;
  uint64_t forgotten; /* end of the last piece dropped: what lies before it is not counted again */
  double sample_low;  /* fastest recent bracket; the thread of one much slower than that lost its processor in it */
  struct gs_piece piece[GS_METER_PIECES];
  struct gs_function function[GS_METER_FUNCTIONS];
};

enum gs_plan { GS_PLAN_START = 1, GS_PLAN_SAMPLE = 2, GS_PLAN_MARK = 4 };

struct gs_function *gs_meter_function(struct gs_meter *meter, uint64_t key);
/* Handles may be reused from now on: every function has to be observed again before it is believed. */
void gs_meter_forget_functions(struct gs_meter *meter);
/* One graph was changed: its history is worth nothing. */
void gs_meter_reset_function(struct gs_meter *meter, uint64_t key);

/* The same, quicker where the stream's last launch was of it too. */
static inline struct gs_function *gs_queue_function(struct gs_meter *meter, struct gs_queue *queue, uint64_t key) {
  struct gs_function *function = queue->recent;
  if (function && function->key == key && function->epoch == meter->epoch)
    return function;
  return queue->recent = gs_meter_function(meter, key);
}

/* Whether to mark the stream before this launch: the open segment ended a while ago, and what comes now is not known
 * well enough to be distinguished from the gap between. */
static inline bool gs_meter_close_first(const struct gs_queue *queue, const struct gs_function *function,
                                        uint64_t now) {
  return function->observed < GS_METER_TRUSTED && queue->open.launches > 0 && now > queue->end + GS_METER_GAP_NS;
}
/* A launch about to be made. Gives enum gs_plan bits: record a start mark before it, bracket it, record a mark after
 * it. */
uint32_t gs_meter_launch(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t now,
                         uint32_t lease);
/* n more launches of a function, made since the last one that was planned, at unknown times. key: the function's; its
 * place may have gone to another meanwhile. */
void gs_meter_repeated(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t key,
                       uint32_t n);
/* The driver refused the launch just planned. */
void gs_meter_undo(struct gs_meter *meter, struct gs_queue *queue, const struct gs_function *function, double estimate);
/* The bracketed launch was made: its call took from began to ended, its second event was recorded by closed. */
void gs_meter_sampling(struct gs_queue *queue, struct gs_function *function, uint64_t planned, uint64_t began,
                       uint64_t ended, uint64_t closed);
/* Elapsed time between the two events of the bracket. */
void gs_meter_sampled(struct gs_meter *meter, struct gs_queue *queue, double elapsed_ns);

/* Takes a place in the ring and closes the open segment into it; NULL when the ring is full (the segment stays
 * open). */
struct gs_mark *gs_meter_mark(struct gs_meter *meter, struct gs_queue *queue, bool start, uint64_t now);
/* From now on others have, or have no more, work on the device at the same time. Nothing before the first call:
 * alone. */
void gs_meter_turn(struct gs_meter *meter, uint32_t others, uint64_t from);
/* When the last of them began, 0: there was none. */
static inline uint64_t gs_meter_last_turn(const struct gs_meter *meter) {
  return meter->turns > 0 ? meter->turn[(meter->turns - 1) % GS_METER_TURNS].from : 0;
}
/* Device time that fell to this process between two instants if it had work all along: the hardware slices the device
 * evenly between those who have. */
double gs_meter_resident(const struct gs_meter *meter, uint64_t from, uint64_t to, uint32_t residents);

/* The oldest mark of the queue, or NULL. */
struct gs_mark *gs_meter_oldest(struct gs_queue *queue);
/* The oldest mark is done, at `done`. lease: the lease word now; where it differs from the segment's, others ran in
 * between. residents: processes of the grant that have work on the device; the hardware slices it between them
 * evenly. */
void gs_meter_reap(struct gs_meter *meter, struct gs_queue *queue, uint64_t done, uint32_t lease, uint32_t residents);
/* The oldest mark will never be known to be done (its record failed): its estimate is charged. */
void gs_meter_lose(struct gs_meter *meter, struct gs_queue *queue, uint64_t now);
/* All is done, unseen (the context is gone): what it was estimated at is charged. */
void gs_meter_lose_all(struct gs_meter *meter, struct gs_queue *queue, uint64_t now);

/* Whether a mark should be recorded before the program blocks for this stream. */
bool gs_meter_check_before_sync(struct gs_queue *queue, uint64_t now);
/* The program learned that everything in this stream is done. All marks of the queue have been reaped or lost. */
void gs_meter_synced(struct gs_meter *meter, struct gs_queue *queue, uint64_t now);

/* What a segment's launches take, as estimated now. */
double gs_segment_now(const struct gs_segment *segment);
/* Estimated time in flight as the bound sees it. */
static inline double gs_meter_inflight(const struct gs_meter *meter, double bound) {
  return meter->inflight + meter->unobserved * (bound / GS_METER_RISK_SHARE);
}
/* The same for one queue, without what must be done by now although no mark said so. */
double gs_queue_inflight(const struct gs_queue *queue, double bound, uint64_t now);
/* When the queue is expected to be dry if the device is its own from now on; a queue whose oldest mark is overdue gets
 * half its delay on top. 0: nothing in flight. */
uint64_t gs_queue_expected_end(const struct gs_meter *meter, const struct gs_queue *queue, uint64_t now);

/* Whether its oldest mark is overdue by more than `patience` and by as much as it was expected to take, in time that
 * the device had for us: what it waits for may be work that was never submitted. */
bool gs_queue_stuck(const struct gs_meter *meter, const struct gs_queue *queue, uint64_t patience, uint64_t now);
/* How far apart launches into a stuck queue are let through: an eighth of what they take, an unknown function's
 * `most`. */
uint64_t gs_meter_pace(struct gs_meter *meter, uint64_t key, uint64_t most);

/* Busy time spread evenly over (from, to], added to what other streams did there, as far as that is under `most` ns per
 * ns. Gives what it added. */
double gs_timeline_add(struct gs_meter *meter, uint64_t from, uint64_t to, double busy, double most);

/* Maps device time (ns since some base event) to host time. The offset moves only when an observation contradicts it,
 * so it is tight from below while the queue runs dry and from above while the host waits for marks. */
struct gs_clock {
  int64_t offset;
  bool set;
};
void gs_clock_not_before(struct gs_clock *clock, uint64_t device, uint64_t host);
void gs_clock_not_after(struct gs_clock *clock, uint64_t device, uint64_t host);
uint64_t gs_clock_host(const struct gs_clock *clock, uint64_t device);

#endif
