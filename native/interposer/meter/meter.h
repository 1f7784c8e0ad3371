/* Metering: computes how much device time a process used from what the host can observe. Pure arithmetic: no driver
 * calls, no clock, no locks; the caller (time/) serialises calls per device and carries out the plan that is returned.
 *
 * A queue models one stream: `end` is the time at which the host believes its work is done. The launches since the last
 * mark are the open segment; a mark is a timing event that closes it. All times are host nanoseconds (CLOCK_MONOTONIC);
 * device times are mapped to them with gs_clock first. Durations are nanoseconds in double.
 *
 * Bounds of the error. A queue that never runs dry is measured by the device's clock between marks, and so is a launch
 * that gets a mark of its own. Launches shorter than GS_METER_ALONE_NS onto an empty queue (GS_METER_ALONE_MOST_NS
 * where marks are expensive) are charged by an estimate from brackets: an event before and one after. The stream is
 * held before the first event until the second is recorded (time/bracket.c), so that the time between them is the
 * kernel's. Holding it with a wait would do as well, but a thread stopped in between would stop the program's stream.
 * Where the driver cannot hold a stream, the second event is recorded a time e after the launch (e, the processor time
 * of recording an event: ~2.5 us), and an event cannot see what ended before it was recorded: a kernel of length k < e
 * is charged e. For k >= e the error is that of the mean, below 1 %. The first launches of a function are charged by a
 * guess if nothing measures them, and the guess is corrected once a bracket has shown how long one takes.
 *
 * Several streams. A mark says when its stream was done, but not whose work the device did meanwhile. If the device
 * never idles, that does not matter: the union of all streams is the wall time. A program whose streams nearly fill the
 * device, with kernels of different lengths, is charged too much, because a gap between two marks of one stream looks
 * like work of another. In the model of six streams and launches of 0.1 to 1.9 times the mean that is up to 4 %, up to
 * 16 % for means of 5 to 20 us, and as much if the device is leased in turn with another tenant every 20 ms ("many" and
 * "manyturns" in the tests). The charge never exceeds the wall time between a launch and the mark after it, not
 * counting the time from the drain of a lost lease on. */
#ifndef GPUSHARE_METER_H
#define GPUSHARE_METER_H

#include <stdbool.h>
#include <stdint.h>

enum {
  GS_METER_RING = 64,        /* marks of a stream in flight; a power of two */
  GS_METER_KINDS = 8,        /* different functions remembered per segment; the rest share one sum */
  GS_METER_FUNCTIONS = 2048, /* functions remembered per device; a power of two */
  GS_METER_PROBES = 8,
  GS_METER_SAMPLES = 31,
  GS_METER_CARRIED = 4, /* launches' worth of estimates carried over */
  GS_METER_MANY = 25,   /* number of launches whose sum is significant for each */
  /* a sample this many times the median is ignored if it is also longer than GS_METER_FAR_NS: then marks and waits show
   * it, and it is charged as measured */
  GS_METER_FAR = 4,
  GS_METER_FAR_NS = 50000,
  GS_METER_EXACT = 32, /* number of samples that a backlogged segment outweighs */
  GS_METER_PIECES = 64,
  GS_METER_MARK_NS = 500000, /* estimated work per mark, or more where marks are expensive */
  GS_METER_SILENT = 8,       /* after this many marks without information the interval doubles */
  GS_METER_SILENT_MOST = 4 * GS_METER_SILENT,
  GS_METER_MARKS = 4, /* but at least this many marks within the bound on work in flight */
  /* a launch this long onto an empty queue gets a mark of its own, which measures it exactly; where marks are
   * expensive, only a longer one, but always one of 1 ms */
  GS_METER_ALONE_NS = 250000,
  GS_METER_ALONE_MOST_NS = 1000000,
  GS_METER_SAMPLE_NS = 1000000, /* one launch is bracketed in this time on average, or fewer */
  /* Divisors of the program's time: about 1/GS_METER_PRICE goes into marks recorded by chance, 1/GS_METER_MARK_PRICE
   * into marks of estimated work (more where other grants wait, since work in flight is then bounded closely:
   * GS_METER_MARKS), and 1/GS_METER_BRACKET_PRICE into brackets, not counting the reading of their events */
  GS_METER_PRICE = 256,
  GS_METER_MARK_PRICE = 128,
  GS_METER_BRACKET_PRICE = 160,
  GS_METER_AGREED = 2,       /* while samples confirm the estimate, the interval doubles this many times */
  GS_METER_AGREED_SHORT = 5, /* the same for kernels that are charged the time of recording an event */
  /* shorter kernels are done before the next one is launched, so they do not accumulate unnoticed */
  GS_METER_PILE_NS = 3000,
  GS_METER_NOISE_NS = 300,       /* difference between two samples of one kernel */
  GS_METER_GUESS_NS = 8000,      /* estimate for a function never seen */
  GS_METER_TRUSTED = 4,          /* number of observations after which an estimate is trusted */
  GS_METER_LOST_NS = 1000000000, /* a bracket still open after this time: its thread has ended */
  GS_METER_HOLD_NS = 20000,      /* with more work than this before it, a bracketed launch need not be held */
  GS_METER_AROUND_NS = 100000,   /* launches into other streams within this time of a bracket may fall into it */
  GS_METER_TRIES = 16,           /* number of launches of a function that are bracketed whenever they can be */
  GS_METER_GAP_NS = 50000,       /* a queue that ran dry this long ago starts anew with an unknown function */
  GS_METER_LAG_NS = 15000,       /* a mark done this long after it was recorded had work before it */
  GS_METER_TAIL_NS = 3000000,    /* for this long into a lease, work of the previous lease may still be on the device */
  GS_METER_BESIDE = 128,         /* number of segments over which the own part of the time beside others is averaged */
  GS_METER_TURNS = 128,          /* number of changes of the others on the device that are stored; a power of two */
  /* the next grant gets its lease at most this long after a revoke, whatever is in flight */
  GS_METER_OVERLAP_NS = 1000000,
  /* others rarely get a time slice between two events that are closer together than this */
  GS_METER_UNSLICED_NS = 200000,
  /* a segment longer than this is charged by residency: over several time slices differences even out */
  GS_METER_LONG_NS = 5000000,
  /* After work that took much longer than estimated, all work is measured for GS_METER_WORTH times the excess, at most
   * GS_METER_CAREFUL_NS. Where such work is rarer, 1 % of the time is missed. */
  GS_METER_WORTH = 100,
  GS_METER_CAREFUL_NS = 250000000,
  /* But marks behind launches cost at most 1/GS_METER_REWARD of the time that was found this way: lengths vary in an
   * honest program too. So where marks are expensive, more than 1 % may be missed of work that is long now and then and
   * that no wait shows. */
  GS_METER_REWARD = 2,
  GS_METER_CREDIT_NS = 25000000, /* and at most this much at once */
  /* Work that takes twice as long as estimated and this much more was estimated wrongly: waking a thread up takes
   * less. */
  GS_METER_LATE_NS = 25000,
  /* meanwhile a queue with work gets a mark after this much of it, estimated, or this long after the last one */
  GS_METER_CAREFUL_MARK_NS = 100000,
  GS_METER_DOUBT_NS = 250000000, /* after a pause in which nobody saw the stream idle, launches are checked this long */
  GS_METER_CHECK_NS = 500000,    /* one check in this time on average, or fewer: each costs a mark */
  GS_METER_RETURNS = 16,         /* classes of late waits, by delay: GS_METER_LATE_NS, twice that ... */
  GS_METER_OVERDUE_NS = 200000,  /* work behind an overdue mark is reported to take at least this much longer */
  GS_METER_HELD = 1,             /* this bit of a lease word: leased */
  GS_METER_RISK_SHARE = 8        /* this many launches of functions never observed fill the bound on work in flight */
};

/* How much a bracket shows, in ascending order. */
enum gs_sample {
  GS_SAMPLE_NONE,
  GS_SAMPLE_LOOSE,   /* the launch, or the host's calls if these take longer, or launches of other streams */
  GS_SAMPLE_COMPANY, /* an upper bound: other processes may have been on the device too */
  GS_SAMPLE_EXACT    /* the stream was held, and no other stream had launches */
};

/* How long a stream was kept from reaching the first event of a bracket. */
enum gs_held {
  GS_NOT_HELD,
  GS_HELD_BRIEFLY, /* not until the second one was recorded */
  GS_HELD
};

/* A function, graph or kind of fill. Table entries are reused: store the key together with a pointer. */
struct gs_function {
  uint64_t key; /* 0: free */
  double estimate;
  uint32_t observed;
  /* epoch of the meter when last observed; if older, the handle may have been reused and is observed anew */
  uint32_t epoch;
  uint32_t samples;
  uint32_t exact; /* number of samples to ignore, because a backlogged segment was more exact */
  uint8_t kind;   /* of the samples: enum gs_sample */
  uint8_t tries;  /* number of launches bracketed, GS_METER_TRIES at most */
  bool shared;    /* observed only while others were on the device too */
  /* launches that were charged by a guess, and how much: corrected once a bracket has shown how long one takes */
  uint32_t guesses;
  double guessed;
  float sample[GS_METER_SAMPLES];
  uint8_t rarity[GS_METER_SAMPLES]; /* how many launches each sample represents, relative to the others */
};

struct gs_kind {
  struct gs_function *function;
  uint64_t key;
  uint32_t launches;
};

struct gs_segment {
  double estimate;                /* sum over the launches, each as estimated at its launch */
  double idle;                    /* time for which the queue is believed to have been empty, */
  double before;                  /* and the part of it before the first launch */
  double other;                   /* the part of `estimate` of functions that are not in kind[] */
  bool guessed;                   /* some of them were not trusted */
  double stalled;                 /* time for which the device waited for the host inside a bracket */
  uint64_t held_from, held_until; /* when its last bracketed launch was held; until: 0 while not known */
  double share;                   /* share of what all streams launched meanwhile; set on a mark only */
  uint64_t first;                 /* host time of the first launch */
  uint64_t made;                  /* host time after it was made; 0: not known. Set on a mark only */
  double stands;                  /* its last launch was chosen by chance, out of this many; 0: it was not */
  uint32_t launches;
  uint32_t unobserved; /* launches of functions never observed before */
  uint32_t kinds;
  uint32_t lease; /* lease word of the first launch */
  bool shared;    /* work of the previous lease may have been on the device at the same time */
  bool clouded;   /* the stream also did or awaited something else. Set on a mark only */
  bool unsure;    /* a launch of it may have come after its mark, or before the mark of the segment before */
  struct gs_kind kind[GS_METER_KINDS];
};

#define GS_METER_AWAY UINT32_MAX /* `others` of a turn: this process has nothing on the device */

enum gs_mark_state { GS_MARK_RECORDING = 0, GS_MARK_RECORDED = 1, GS_MARK_LOST = 2 };

struct gs_mark {
  struct gs_segment segment;
  void *event;
  uint64_t recorded;    /* host time just before the record call */
  uint64_t unready;     /* the same, or when it was last queried and not done: a lower bound of its device time */
  uint64_t recorded_by; /* host time just after it: in between, the thread may have lost its processor */
  uint64_t expected;    /* `end` of the queue at that time */
  uint64_t after_all;   /* `end` of the meter at that time */
  uint32_t state;       /* enum gs_mark_state */
  bool start;           /* does not close a segment: the first mark of a stream, where its device time begins */
};

struct gs_queue {
  struct gs_segment open;
  uint64_t end;
  double inflight;        /* estimated time of launches not known to be done */
  uint32_t unobserved;    /* number of launches in it of functions never observed */
  uint32_t head, tail;    /* number of marks recorded and reaped */
  uint32_t segments;      /* number of segments that marks have closed. Atomic */
  double launched_before; /* meter's `launched` at the last mark */
  uint64_t launches;      /* number of launches, without repeated ones */
  uint64_t planned;       /* time of the last of them */
  uint64_t closed;        /* host time of the last mark or wait: the open segment did not begin earlier */
  bool anchored;          /* previous_done is valid */
  uint64_t previous_done;
  double previous_lag;
  double owed;    /* estimates that exceeded the span of their segments, still to be charged */
  double guessed; /* by how much guesses were too low, still to be charged; negative: too high */
  uint64_t last_sample, last_check;
  uint64_t made;   /* host time after the last launch that gets a mark of its own */
  uint32_t silent; /* number of marks in a row that found no work waiting, so that they measure nothing */
  uint32_t agreed; /* number of samples in a row that were as expected */
  /* repeated launches since the last planned one: the queue may not be as empty as believed */
  uint32_t repeated;
  /* Since the last mark or wait, a copy, a host function or a wait for something else went into the stream: how long
   * the stream is busy says nothing about its kernels. Atomic. */
  bool clouded;
  uint32_t unchosen;           /* number of launches to come that are not chosen to be measured; */
  bool check;                  /* the one after them is */
  bool sample_next;            /* a bracket is due, once `repeated` is 0 */
  bool bracketing;             /* a thread is between the plan of a bracket and its end. Atomic */
  struct gs_function *recent;  /* function of the last launch */
  struct gs_function *sampled; /* the bracketed launch whose events are not read yet */
  uint64_t sampled_key;
  enum gs_held sampled_held;
  uint8_t sampled_rarity;
  double sampled_stands; /* number of launches that the bracketed one represents */
  bool misjudged;        /* the last bracket was not held, but the work believed to be before it was not there */
  bool sampled_shared;   /* others may have been on the device */
  double sampled_host;   /* host time inside the bracketed launch call */
  double sampled_whole;  /* host time from before the record of the first event until after that of the second */
  uint64_t sampled_from, sampled_closed; /* start and end of that time */
  struct gs_mark ring[GS_METER_RING];
};

/* Device time already counted: disjoint pieces, sorted by time; the union over all streams. */
struct gs_piece {
  uint64_t from, to;
  double density; /* counted time divided by length, 0..1 */
};

/* From this time on, this many others are believed to have work on the device. */
struct gs_turn {
  uint64_t from;
  uint32_t others;
};

/* Waits that returned late, ns: the sum of their delays after a mark was recorded, and for how much of it the device
 * worked. */
struct gs_returns {
  double late, worked;
};

/* The fields that each launch needs come first; the large arrays follow. */
struct gs_meter {
  double busy;
  double inflight;
  uint64_t done_at; /* when a mark of any stream was last done */
  uint64_t end;     /* when everything is believed to be done, if run one after another */
  double launched;  /* sum of the estimates of all launches */
  uint32_t others;  /* of the last turn */
  /* Decaying means in ns over segments that ran beside others while one stream was busy: what their work is believed to
   * take, and how long it took. */
  double beside_known, beside_took;
  uint32_t foreign_work; /* this word of the device's limits, as last seen */
  uint32_t turns;        /* number of turns noted */
  double mark_most_ns;   /* estimated work per mark, in ns; 0: not set */
  uint64_t leased_at;    /* time of the first launch under the lease word below, if another word was seen before */
  uint32_t lease;
  uint32_t unobserved;
  uint32_t marks; /* number of marks recorded or being recorded and not reaped */
  uint32_t epoch;
  uint32_t pieces;
  /* Functions turned out to vary in length: until this time there are marks before waits, */
  uint64_t careful;
  uint64_t close; /* and until this time behind all launches that they can measure, */
  double credit;  /* which may cost this many ns */
  /* Usual host time of recording a mark, of reading one, and of a bracket without reading it, ns; 0: not known */
  double record_ns, read_ns, bracket_ns;
  /* Used by unseen.c. */
  uint64_t doubted;              /* until this time, launches are chosen to be measured */
  uint64_t paced;                /* start of the current measurement of the launch interval */
  uint32_t launches;             /* launches counted since then */
  double pace;                   /* the launch interval last measured, ns */
  uint64_t counted;              /* when launches were last counted */
  uint64_t rushed;               /* time since `paced`, with at most GS_METER_SAMPLE_NS of each pause, ns */
  double rush;                   /* interval from `rushed`: brackets must not be more frequent after a pause, ns */
  uint64_t choice;               /* the last random number */
  uint64_t *charged;             /* what the grant's processes were charged, see charged.h; NULL: there is only one */
  uint32_t residents;            /* number of them with recent work on the device, this one included */
  uint64_t forgotten;            /* end of the last piece dropped: earlier time is not counted again */
  const struct gs_queue *latest; /* the queue with the last launch, */
  uint64_t latest_at, other_at;  /* when that was, and the last one into another queue */
  double sample_low; /* fastest recent bracket; if one is much slower, its thread lost its processor in between */
  struct gs_returns returns[GS_METER_RETURNS];
  struct gs_turn turn[GS_METER_TURNS];
  struct gs_piece piece[GS_METER_PIECES];
  struct gs_function function[GS_METER_FUNCTIONS];
};

enum gs_plan { GS_PLAN_START = 1, GS_PLAN_SAMPLE = 2, GS_PLAN_MARK = 4, GS_PLAN_HOLD = 8 };

/* The entry of a function; a new or recycled one if it has none. */
struct gs_function *gs_meter_function(struct gs_meter *meter, uint64_t key);
/* Handles may be reused from now on: every function is observed again before its estimate is trusted. */
void gs_meter_forget_functions(struct gs_meter *meter);
/* A graph was changed: discards its history. */
void gs_meter_reset_function(struct gs_meter *meter, uint64_t key);

/* gs_meter_function, faster if the stream's last launch was of the same function. */
static inline struct gs_function *gs_queue_function(struct gs_meter *meter, struct gs_queue *queue, uint64_t key) {
  struct gs_function *function = queue->recent;
  if (function && function->key == key && function->epoch == meter->epoch)
    return function;
  return queue->recent = gs_meter_function(meter, key);
}

/* Notes that work took `missed` ns longer than estimated (GS_METER_CAREFUL_NS if unknown). in_all: the ns of which
 * marks may now cost a part: the time missed or, if unknown, the time of the work; a launch that was chosen by chance
 * counts for all that were not chosen. */
void gs_meter_surprise(struct gs_meter *meter, uint64_t now, double missed, double in_all);
/* Note the host time of a mark: recording it took `ns` and ended at `now`; reading one took `ns`. */
void gs_meter_recorded(struct gs_meter *meter, uint64_t now, double ns);
void gs_meter_read(struct gs_meter *meter, double ns);
static inline bool gs_meter_careful(const struct gs_meter *meter, uint64_t now) {
  return now < __atomic_load_n(&meter->careful, __ATOMIC_RELAXED);
}
/* Whether each launch that a mark can measure gets one now. Under the lock. */
static inline bool gs_meter_close(const struct gs_meter *meter, uint64_t now) { return now < meter->close; }

/* Whether to mark the stream before this launch: the open segment ended a while ago, and the time of the new launch is
 * not known well enough to be distinguished from the gap; or something else was put between them. */
static inline bool gs_meter_close_first(const struct gs_meter *meter, const struct gs_queue *queue,
                                        const struct gs_function *function, uint64_t now) {
  if (queue->open.launches == 0)
    return false;
  return (function->observed < GS_METER_TRUSTED && now > queue->end + GS_METER_GAP_NS) ||
         (__atomic_load_n(&queue->clouded, __ATOMIC_RELAXED) && gs_meter_close(meter, now));
}
/* To be called before a launch. Returns enum gs_plan bits: record a start mark before it, bracket it, record a mark
 * after it; hold the stream before the bracket. */
uint32_t gs_meter_launch(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t now,
                         uint32_t lease);
/* Returns how many of the next n launches into the queue come before one that is chosen to be measured. */
uint32_t gs_meter_unchosen(struct gs_meter *meter, struct gs_queue *queue, uint64_t now, uint32_t n);
/* Books n more launches of a function, made at unknown times since the last planned one. key: of the function, whose
 * entry may have been reused meanwhile. */
void gs_meter_repeated(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t key,
                       uint32_t n);
/* Undoes the launch just planned, which the driver refused. */
void gs_meter_undo(struct gs_meter *meter, struct gs_queue *queue, const struct gs_function *function, double estimate);
/* The bracketed launch was made: its call lasted from `began` to `ended`, and its second event was recorded by
 * `closed`. plan: of gs_meter_launch. */
void gs_meter_sampling(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint32_t plan,
                       uint64_t planned, uint64_t began, uint64_t ended, uint64_t closed, enum gs_held held);
/* Passes the elapsed time between the two events of the bracket. begun: when the device reached the first one; 0: not
 * known. residents: as of gs_meter_reap. */
void gs_meter_sampled(struct gs_meter *meter, struct gs_queue *queue, double elapsed_ns, uint64_t begun,
                      uint32_t residents);

/* Takes a place in the ring and closes the open segment with it; NULL if the ring is full (the segment stays open). */
struct gs_mark *gs_meter_mark(struct gs_meter *meter, struct gs_queue *queue, bool start, uint64_t now);
/* From the time `from` on, this many others have work on the device. Before the first call: none. */
void gs_meter_turn(struct gs_meter *meter, uint32_t others, uint64_t from);
/* When the last turn began; 0: there was none. */
static inline uint64_t gs_meter_last_turn(const struct gs_meter *meter) {
  return meter->turns > 0 ? meter->turn[(meter->turns - 1) % GS_METER_TURNS].from : 0;
}
/* Device time that this process got between two instants if it had work all the time: the hardware slices the device
 * evenly between the processes that have work. The other processes of the grant do not count while they are alone with
 * it: what they got is not charged twice (charged.h). */
double gs_meter_resident(const struct gs_meter *meter, uint64_t from, uint64_t to, uint32_t residents);

/* Lower bound of the time between two instants for which this process had the device to itself. */
double gs_meter_exclusive(const struct gs_meter *meter, uint64_t from, uint64_t to);

/* The oldest mark of the queue, or NULL. */
struct gs_mark *gs_meter_oldest(struct gs_queue *queue);
/* The oldest mark was completed at `done`. lease: the lease word now; if it differs from the segment's, others ran in
 * between. residents: number of processes of the grant that have work on the device. */
void gs_meter_reap(struct gs_meter *meter, struct gs_queue *queue, uint64_t done, uint32_t lease, uint32_t residents);
/* The oldest mark was queried at `now` and is not done: its stream has had work since it was recorded. */
void gs_meter_unready(struct gs_meter *meter, const struct gs_queue *queue, uint64_t now, uint32_t residents);
/* The completion of the oldest mark cannot be observed (its record failed): its estimate is charged. */
void gs_meter_lose(struct gs_meter *meter, struct gs_queue *queue, uint64_t now);
/* All work is done without having been observed (the context has ended): the estimates are charged. */
void gs_meter_lose_all(struct gs_meter *meter, struct gs_queue *queue, uint64_t now);

/* Whether a mark should be recorded before the program blocks for this stream. */
bool gs_meter_check_before_sync(const struct gs_meter *meter, struct gs_queue *queue, uint64_t now);
/* A wait of the program for a stream: from `began` until `until` the stream was seen to have work. */
struct gs_waited {
  uint64_t began, until; /* both 0: not known */
  uint32_t residents;    /* as of gs_meter_reap */
  bool returned;         /* `until` is when it returned, which may be long after the work was done */
};
/* The program learned that everything in this stream is done. All marks of the queue have been reaped or lost. */
void gs_meter_synced(struct gs_meter *meter, struct gs_queue *queue, uint64_t now, struct gs_waited waited);
/* The program saw that this stream had work all that time, and does not know that it is done. */
void gs_meter_seen_busy(struct gs_meter *meter, const struct gs_queue *queue, struct gs_waited waited);

/* Time that a segment's launches take, as estimated now. */
double gs_segment_now(const struct gs_segment *segment);
/* Estimated time in flight, as compared with the bound. */
static inline double gs_meter_inflight(const struct gs_meter *meter, double bound) {
  return meter->inflight + meter->unobserved * (bound / GS_METER_RISK_SHARE);
}
/* The same for one queue, without work that must be done by now although no mark has shown it. */
double gs_queue_inflight(const struct gs_queue *queue, double bound, uint64_t now);
/* When the queue is expected to be empty if it has the device to itself from now on; if the oldest mark is overdue,
 * half its delay and GS_METER_OVERDUE_NS are added. 0: nothing in flight. */
uint64_t gs_queue_expected_end(const struct gs_meter *meter, const struct gs_queue *queue, uint64_t now);

/* Whether the oldest mark is overdue by more than `patience` and by more than it was expected to take, and no stream
 * had a mark done for as long, counting only time in which the device was available to this process: the work may wait
 * for other work that was never submitted. While other streams move, it may merely wait for them. */
bool gs_queue_stuck(const struct gs_meter *meter, const struct gs_queue *queue, uint64_t patience, uint64_t now);
/* Interval of launches into a stuck queue: an eighth of the time that the function takes, `most` for an unknown one. */
uint64_t gs_meter_pace(struct gs_meter *meter, uint64_t key, uint64_t most);

/* Adds busy time, spread evenly over (from, to], to that of the other streams there, up to `most` ns per ns. Returns
 * the time added. */
double gs_timeline_add(struct gs_meter *meter, uint64_t from, uint64_t to, double busy, double most);

/* Maps device time (ns since a base event) to host time. The offset moves only when an observation contradicts it, so
 * it is tight from below while the queue runs dry and from above while the host waits for marks. */
struct gs_clock {
  int64_t offset;
  bool set;
};
void gs_clock_not_before(struct gs_clock *clock, uint64_t device, uint64_t host);
void gs_clock_not_after(struct gs_clock *clock, uint64_t device, uint64_t host);
uint64_t gs_clock_host(const struct gs_clock *clock, uint64_t device);

#endif
