/* What the meter knows: sizes and constants with their units, functions, segments, marks, streams, and the device. Only
 * the meter's own files change it; time/ sets what depends on the driver and on other processes (residents, charged,
 * mark_most_ns, event_ns, foreign_work, spare_milli). Times are host nanoseconds. */
#ifndef GPUSHARE_METER_STATE_H
#define GPUSHARE_METER_STATE_H

#include <stdbool.h>
#include <stdint.h>

enum {
  /* Sizes of tables. */
  GS_METER_RING = 64,        /* marks of a stream in flight; a power of two */
  GS_METER_KINDS = 8,        /* different functions remembered per segment; the rest share one sum */
  GS_METER_FUNCTIONS = 2048, /* functions remembered per device; a power of two */
  GS_METER_CLASSES = 16,     /* of the lengths of a function's launches: below 2 us, 4 us, 8 us and so on */
  GS_METER_PIECES = 64,      /* of the time line */
  GS_METER_UNSETTLED = 8,    /* times beside others that are not charged yet */
  GS_METER_AMONG = 128, /* segments beside the grant's other processes that are not explained yet; a power of two */
  GS_METER_TURNS = 128, /* changes of the others on the device that are remembered; a power of two */
  /* What the host cannot know better. */
  GS_METER_CLOCK_NS = 3000,      /* device times are mapped to host times this exactly */
  GS_METER_LAG_NS = 15000,       /* a mark done this long after it was recorded had work before it */
  GS_METER_LATE_NS = 25000,      /* waking a thread up takes less */
  GS_METER_GAP_NS = 50000,       /* a thread that took this long for a call or two may have lost its processor */
  GS_METER_UNSLICED_NS = 200000, /* others rarely get a time slice between two events closer than this */
  GS_METER_SWITCH_NS = 25000,    /* changing from one process to another costs the device about this */
  GS_METER_SLICE_NS = 2500000,   /* longest time slice of the device */
  GS_METER_TAIL_NS = 3000000,    /* for this long into a lease, work of the previous one may be on the device */
  GS_METER_HEARD_NS = 100000,    /* others are done up to this long before this process learns it */
  GS_METER_OVERDUE_NS = 200000,  /* work behind an overdue mark is reported to take at least this much longer */
  /* Lengths. */
  GS_METER_GUESS_NS = 8000, /* of a function never seen */
  GS_METER_TRUSTED = 4,     /* number of observations after which a mean is trusted */
  GS_METER_TRIES = 16,      /* number of launches of a function that are bracketed whenever they can be */
  /* A launch of this many means, and more than GS_METER_GAP_NS, is charged as measured and not part of the mean; also the
   * number of launches whose estimates are carried over where a segment had no room for them */
  GS_METER_KNEE = 4,
  GS_METER_RISK_SHARE = 8, /* this many launches of functions never observed fill the bound on work in flight */
  /* Measuring. */
  GS_METER_MARK_NS = 500000, /* estimated work per mark, or more where marks are expensive */
  GS_METER_MARKS = 4,        /* but at least this many marks within the bound on work in flight */
  GS_METER_ALONE_NS =
      250000,           /* a launch this long onto an empty queue is measured by a mark, a shorter one by a bracket */
  GS_METER_INCOME = 128 /* measuring takes one part in this many of the program's time */
};
#define GS_METER_HELD 1u    /* this bit of a lease word: leased */
#define GS_METER_MOSTLY 0.9 /* a stream with this part of what all streams launched had the device to itself */

/* How long a stream was kept from reaching the first event of a bracket. */
enum gs_held {
  GS_NOT_HELD,
  GS_HELD_BRIEFLY, /* not until the second one was recorded */
  GS_HELD
};

/* Launches of similar length. */
struct gs_class {
  float weight, mean, spread; /* decaying sum of the samples' weights, mean length in ns, mean difference from that */
};

/* A function, graph or kind of fill. Table entries are reused: store the key together with a pointer. */
struct gs_function {
  uint64_t key;          /* 0: free */
  double estimate;       /* mean length of a launch */
  double weight, spread; /* decaying sum of the samples' weights; their mean difference from the mean */
  uint32_t observed;
  uint32_t epoch;      /* of the meter when last observed; if older, the handle may have been reused */
  uint8_t tries;       /* number of launches bracketed, GS_METER_TRIES at most */
  uint8_t far;         /* how many more samples were far longer than the mean than were not */
  uint8_t refuted;     /* so many segments had no room for its launches, since work last waited for a mark */
  bool exact;          /* launches were measured one by one, */
  bool chosen;         /* some of them chosen at random */
  bool shared;         /* observed only while others were on the device too */
  float latest, alike; /* length of the last launch measured; how often the one before in the same burst was like it, */
  uint8_t pairs;       /* of so many */
  uint64_t burst;      /* of the last one measured */
  struct gs_class length[GS_METER_CLASSES]; /* of launches measured one by one */
};

struct gs_kind {
  struct gs_function *function;
  uint64_t key;
  uint32_t launches;
};

struct gs_segment {
  double estimate;                /* sum over the launches, each as estimated at its launch */
  double other;                   /* the part of it of functions that are not in kind[] */
  double excess;                  /* minus what of its work is charged already, by gs_meter_had_work */
  double idle;                    /* time since the first launch for which the queue is believed to have been empty */
  double stalled;                 /* time for which the device waited for the host inside a bracket */
  double weight;                  /* its last launch was chosen, out of this many; 0: it was not */
  double share;                   /* share of what all streams launched meanwhile. Set on a mark only */
  uint64_t first;                 /* host time of the first launch */
  uint64_t last;                  /* and of the last one; 0: not known */
  uint64_t burst;                 /* as of the meter, at its first launch */
  uint64_t made;                  /* host time after it was made; 0: not known. Set on a mark only */
  uint64_t bracketed, held_until; /* when its last bracket was planned; until when that held the stream, if long */
  uint64_t seen_until; /* when its first launch was done, which is charged, as its bracket has shown; 0: it was not */
  uint32_t launches;
  uint32_t unobserved; /* launches of functions never observed before */
  uint32_t kinds;
  uint32_t lease;  /* lease word of the first launch */
  bool onto_empty; /* its last launch was made when the stream was believed to be empty */
  bool guessed;    /* some functions that are not in kind[] were not trusted */
  bool shared;     /* work of the previous lease may have been on the device at the same time */
  bool clouded;    /* the stream also did or awaited something else. Set on a mark only */
  bool unsure;     /* a launch of it may have come after its mark, or before the mark of the segment before */
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
  double charged;       /* what was charged before it was done */
  uint32_t state;       /* enum gs_mark_state */
  bool start;           /* does not close a segment: shows when the launches after it could begin */
};

/* Time for which a stream had work without a break, beside others. */
struct gs_run {
  uint64_t from, to;
  double charged; /* what it was charged for that */
  bool came;      /* the stream had no work before */
};

/* A stream. `end`: when the host believes its work to be done. The launches since the last mark are the open segment. */
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
  uint64_t made;          /* host time after the last launch that gets a mark of its own */
  uint64_t previous_done; /* when the last mark or wait was done, if `anchored` */
  bool anchored;
  bool unclocked; /* when it was made, no mark had shown yet how its context's clock runs. Set by the caller */
  uint64_t seen_from, seen_to; /* of gs_meter_had_work; 0: it was not called */
  double seen_ns;              /* what it surely was of it, */
  double seen_charged;         /* and what of that was not charged before, to this process or another of the grant */
  struct gs_run run;           /* the last one */
  double again;                /* the next launch is measured in place of one that was chosen out of this many; 0: no */
  bool put_off;                /* because that one followed repeated ones */
  double due;                  /* chance to be drawn until the next launch is chosen, see purse.c */
  uint32_t repeated;  /* repeated launches since the last planned one: the queue may not be as empty as believed */
  double repeated_ns; /* their estimate */
  uint64_t latest;    /* when the others are believed to be done if repeated ones were made as late as can be */
  /* Since the last mark or wait, a copy, a host function or a wait for something else went into the stream: how long
   * the stream is busy shows nothing about its kernels. Atomic. */
  bool clouded;
  bool bracketing; /* a thread is between the plan of a bracket, made at last_bracket, and its end. Atomic */
  uint64_t last_bracket;
  struct gs_function *recent;  /* function of the last launch */
  struct gs_function *sampled; /* the bracketed launch whose events are not read yet */
  uint64_t sampled_key;
  double sampled_weight; /* number of launches that it was chosen from */
  double sampled_host;   /* host time inside its launch call, */
  double sampled_whole;  /* and from before the record of the first event until after that of the second: */
  uint64_t sampled_from, sampled_ended, sampled_closed; /* when it was planned, made, and had its second event */
  uint64_t sampled_burst;                               /* as of a segment */
  uint64_t sampled_idle;                                /* when the work before it was done, or it was planned */
  enum gs_held sampled_held;
  uint64_t sampled_other; /* when the last launch into another stream had been made */
  bool sampled_first;     /* it was the first launch of its segment */
  bool sampled_clear;     /* all that was launched before it was known to be done */
  bool sampled_shared;    /* others may have been on the device */
  uint64_t bracket_done;  /* when the last launch was done, as its bracket has shown; 0: not known */
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

/* A segment that took place between two instants while others were on the device: charged when it is known when those
 * left. If its launches were of unknown length, that is corrected when their length is known. */
struct gs_unsettled {
  uint64_t from, to;
  struct gs_segment segment;
  bool came;      /* its stream had no work before it */
  bool unknown;   /* the lengths of its launches were */
  double charged; /* if so: what it was charged */
};

/* A segment of launches of known length, while other processes of the grant had work. */
struct gs_among {
  uint64_t from, to;
  double pending;       /* it was at work for so long, */
  double own;           /* and charged so much */
  double theirs;        /* what the others were charged for that time, when last looked at */
  double weight;        /* it was chosen out of so many */
  uint64_t since;       /* if more than one: none of the others was seen to end since then */
  struct gs_kind whole; /* its launches, if it was seen whole, and they are of one function */
  uint32_t residents;
  bool came; /* its stream had no work before: the device changed to this process, if that was not the last there */
};

/* The fields that each launch needs come first; the large arrays follow. */
struct gs_meter {
  double busy;
  double inflight;
  uint64_t done_at; /* when a mark of any stream was last done */
  uint64_t end;     /* when everything is believed to be done, if run one after another */
  double launched;  /* sum of the estimates of all launches */
  double balance;   /* charged too little so far, to be made up where there is room */
  double mixed;     /* part of the brackets onto a device known to be empty that met other streams' launches */
  uint32_t others;  /* of the last turn */
  uint32_t lease;
  uint64_t leased_at;             /* time of the first launch under that lease word, if another word was seen before */
  double mark_most_ns;            /* estimated work per mark, in ns; 0: not set */
  double saved, purse;            /* ns that measuring may cost: from pauses, and from what it has uncovered */
  bool uncovered;                 /* the purse pays for most of what is measured. Atomic */
  double gap;                     /* ns before the launch that is made now, if it was too late to be repeated */
  double interval;                /* mean ns between launches, longer pauses not counted */
  double per_purse, per_interval; /* the chance of a launch to be chosen, per ns in the purse and of the interval */
  uint64_t counted;               /* when launches were last counted */
  uint32_t unobserved;
  uint32_t marks; /* number of marks recorded or being recorded and not reaped */
  uint32_t epoch;
  uint64_t burst; /* when launches began that may be alike: at the last wait, or a while ago */
  uint32_t pieces;
  uint32_t turns;                /* number of turns noted */
  uint32_t foreign_work;         /* this word of the device's limits, as last seen */
  uint32_t spare_milli;          /* and this one. Atomic */
  uint32_t residents;            /* number of the grant's processes with recent work on the device, this one included */
  struct gs_charged *charged;    /* what they were charged, see charged.h; NULL: there is only one */
  uint64_t forgotten;            /* end of the last piece dropped: earlier time is not counted again */
  const struct gs_queue *latest; /* the queue with the last launch, */
  uint64_t latest_at, other_at;  /* when that was, and the last one into another queue */
  /* When it was believed to be done at its last launch, if it had the device to itself; and all that had a launch
   * before it. */
  uint64_t latest_end, others_end;
  const struct gs_queue *sampling; /* the queue with the last bracket, */
  uint64_t joined;                 /* and when the first launch after that was made into another one; 0: none was */
  double event_ns;                 /* device time that an event takes, as far as it was measured */
  double record_ns, read_ns,
      bracket_ns;                      /* usual host time of a mark's record, of reading it, of a bracket; 0: unknown */
  double late, worked;                 /* delays of waits, and for how much of them marks saw the device at work */
  uint32_t ask;                        /* this many waits more are marked, to see that */
  uint64_t unseen_since, unseen_until; /* in between, nobody saw the streams idle where they were believed to be */
  uint64_t choice;                     /* the last random number */
  double credit; /* charged too much for launches of unknown length: what is charged next is less by this */
  uint32_t unsettled;
  uint32_t noted, explained; /* number of segments among other processes. Atomic */
  struct gs_unsettled pending[GS_METER_UNSETTLED];
  struct gs_among among[GS_METER_AMONG];
  struct gs_turn turn[GS_METER_TURNS];
  struct gs_piece piece[GS_METER_PIECES];
  struct gs_function function[GS_METER_FUNCTIONS];
};

#endif
