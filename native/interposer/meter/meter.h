/* Metering: computes how much device time a process used from what the host can observe. Pure arithmetic: no driver
 * calls, no clock, no locks; the caller (time/) serialises calls per device and carries out the plan that is returned.
 *
 * How a launch is charged. The launches of a stream up to a mark (a timing event of ours) or a wait are a segment. What
 * of it was seen is charged as it was seen: from the record of a mark until it was done the device had work of this
 * process, likewise from the first launch of a segment whose queue never ran dry, and between the two events of a
 * bracket around one launch. The rest is charged by estimate, as far as there is room for it: each launch by what others
 * of the same burst took, if those are alike; by the lengths of its function that fit into the room, if only shorter ones
 * do; else by the mean. While others may be on the device, the estimate counts too where something was seen, within
 * bounds: at least what this process must have had of that time, at most all of it; the longer its work went on without a
 * break, the closer they are. A launch onto an empty queue is bracketed there, since nothing else shows when it began,
 * and what launches of unknown length were charged is corrected when the next ones have shown it. Which launches are
 * measured, and so teach these lengths, is decided at random before each launch, with a chance that follows from what it
 * costs: a small part of the program's time, and of the time that measuring has uncovered. A launch that was chosen
 * counts for all that it was chosen from: in the mean and, if it is far longer than the mean and nobody waits, in the
 * charge. A wait that returned late is charged as far as marks have shown such delays to be the device's, while nobody
 * else had it. Launches of known length that waited for other processes of the grant are charged this length, and
 * what of the wait no process of the grant has been charged for in the end. The mean of a function's
 * first launches is forgotten if several segments have no room for it.
 *
 * All times are host nanoseconds (CLOCK_MONOTONIC); device times are mapped to them with gs_clock first. Durations are
 * nanoseconds in double. The work of all streams is united on one time line, so that the charge never exceeds the wall
 * time; docs/concepts/inside/launch.md: how exact it is. */
#ifndef GPUSHARE_METER_H
#define GPUSHARE_METER_H

#include "interposer/meter/state.h"

enum gs_plan { GS_PLAN_START = 1, GS_PLAN_SAMPLE = 2, GS_PLAN_MARK = 4, GS_PLAN_HOLD = 8 };

/* ---- functions: lengths.c ---- */

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
/* Whether launches of the function are still bracketed whenever they can be. */
static inline bool gs_function_unknown(const struct gs_function *function) {
  return function->observed < GS_METER_TRUSTED || (!function->exact && function->tries < GS_METER_TRIES);
}
/* Time that a segment's launches take, as estimated now. */
double gs_segment_now(const struct gs_segment *segment);

/* ---- launches and marks: launch.c ---- */

/* Whether to mark the stream before this launch: the open segment ended a while ago, and the time of the new launch is
 * not known well enough to be distinguished from the gap. */
static inline bool gs_meter_close_first(const struct gs_queue *queue, const struct gs_function *function,
                                        uint64_t now) {
  return queue->open.launches > 0 && function->observed < GS_METER_TRUSTED && now > queue->end + GS_METER_GAP_NS;
}
/* To be called before a launch. Returns enum gs_plan bits: record a start mark before it, bracket it, record a mark
 * after it; hold the stream before the bracket. */
uint32_t gs_meter_launch(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t now,
                         uint32_t lease);
/* The start mark of the launch just planned is recorded: the launch is made at `now`, or later. */
void gs_meter_started(struct gs_queue *queue, uint64_t now);
/* Books n more launches of a function, made at unknown times since the last planned one. key: of the function, whose
 * entry may have been reused meanwhile. */
void gs_meter_repeated(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t key,
                       uint32_t n);
/* Undoes the launch just planned, which the driver refused. */
void gs_meter_undo(struct gs_meter *meter, struct gs_queue *queue, const struct gs_function *function, double estimate);
/* Takes a place in the ring and closes the open segment with it; NULL if the ring is full (the segment stays open). */
struct gs_mark *gs_meter_mark(struct gs_meter *meter, struct gs_queue *queue, bool start, uint64_t now);
/* The oldest mark of the queue, or NULL. */
struct gs_mark *gs_meter_oldest(struct gs_queue *queue);

/* ---- what is measured, and what that costs: purse.c ---- */

/* Returns how many of the next n launches into the queue come before one that is chosen to be measured. */
uint32_t gs_meter_unchosen(struct gs_meter *meter, struct gs_queue *queue, uint32_t n);
/* Note the host time of a mark: recording it took `ns`; reading one took `ns`. */
void gs_meter_recorded(struct gs_meter *meter, double ns);
void gs_meter_read(struct gs_meter *meter, double ns);
/* Whether measuring has lately uncovered time. May be called without the lock. */
static inline bool gs_meter_uncovered(const struct gs_meter *meter) {
  return __atomic_load_n(&meter->uncovered, __ATOMIC_RELAXED);
}

/* A wait of the program for a stream: from `began` until `until` the stream was seen to have work. */
struct gs_waited {
  uint64_t began, until; /* both 0: not known */
  uint32_t residents;    /* as of gs_meter_reap */
  bool returned;         /* `until` is when it returned, which may be long after the work was done */
};

/* ---- what marks and brackets show: shown.c, brackets.c ---- */

/* The oldest mark was completed at `done`. lease: the lease word now; if it differs from the segment's, others ran in
 * between. residents: number of processes of the grant that have work on the device. */
void gs_meter_reap(struct gs_meter *meter, struct gs_queue *queue, uint64_t done, uint32_t lease, uint32_t residents);
/* The oldest mark was queried at `now` and is not done: its stream has had work since it was recorded. */
void gs_meter_unready(struct gs_meter *meter, struct gs_queue *queue, uint64_t now, uint32_t residents);
/* The stream had work from `from` to `to`, out of the marks' sight. To be called again, with `from` where `to` was, as
 * long as it has. */
void gs_meter_had_work(struct gs_meter *meter, struct gs_queue *queue, uint64_t from, uint64_t to);
/* The completion of the oldest mark cannot be observed (its record failed): its estimate is charged. */
void gs_meter_lose(struct gs_meter *meter, struct gs_queue *queue, uint64_t now);
/* All work is done, and its marks cannot be asked any more: the context has ended. waited: what the call that ended it
 * has shown. */
void gs_meter_lose_all(struct gs_meter *meter, struct gs_queue *queue, uint64_t now, struct gs_waited waited);
/* The bracketed launch was made: its call lasted from `began` to `ended`, and its second event was recorded by
 * `closed`. plan: of gs_meter_launch. */
void gs_meter_sampling(struct gs_queue *queue, struct gs_function *function, uint32_t plan, uint64_t planned,
                       uint64_t began, uint64_t ended, uint64_t closed, enum gs_held held);
/* Passes the elapsed time between the two events of the bracket. begun: when the device reached the first one; 0: not
 * known. residents: as of gs_meter_reap. */
void gs_meter_sampled(struct gs_meter *meter, struct gs_queue *queue, double elapsed_ns, uint64_t begun,
                      uint32_t residents);

/* ---- what waits show: waits.c ---- */

/* Whether a mark should be recorded before the program blocks for this stream. */
bool gs_meter_check_before_sync(const struct gs_meter *meter, const struct gs_queue *queue);
/* A wait of the program has ended: what it launches from now on need not be like what it launched before. */
static inline void gs_meter_waited(struct gs_meter *meter, uint64_t now) { meter->burst = now; }
/* The program learned that everything in this stream is done. All marks of the queue have been reaped or lost. */
void gs_meter_synced(struct gs_meter *meter, struct gs_queue *queue, uint64_t now, struct gs_waited waited);
/* The program saw that this stream had work all that time, and does not know that it is done. */
void gs_meter_seen_busy(struct gs_meter *meter, const struct gs_queue *queue, struct gs_waited waited);

/* ---- what is in flight: inflight.c ---- */

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

/* ---- instants: timeline.c ---- */

/* From the time `from` on, this many others have work on the device. Before the first call: none. unsettled.c */
void gs_meter_turn(struct gs_meter *meter, uint32_t others, uint64_t from);
/* Charges what was to be charged later: the process ends. unsettled.c */
void gs_meter_end(struct gs_meter *meter);
/* Whether others are on the device now, as far as this process knows. */
static inline bool gs_meter_beside(const struct gs_meter *meter) {
  return meter->others > 0 && meter->others != GS_METER_AWAY;
}
/* When the last turn began; 0: there was none. */
static inline uint64_t gs_meter_last_turn(const struct gs_meter *meter) {
  return meter->turns > 0 ? meter->turn[(meter->turns - 1) % GS_METER_TURNS].from : 0;
}
/* Device time that this process got between two instants if it had work all the time: the hardware slices the device
 * evenly between the processes that have work. The other processes of the grant do not count while they are alone with
 * it: what they got is not charged twice (charged.h). */
double gs_meter_resident(const struct gs_meter *meter, uint64_t from, uint64_t to, uint32_t residents);
/* The same if others hardly have work: where they leave more than half of the device, that is what this process got. */
double gs_meter_likely(const struct gs_meter *meter, uint64_t from, uint64_t to, uint32_t residents);
/* Charges what segments that waited for other processes of the grant had after all, once that is known: to be called now
 * and then for as long as there are some, also while the program does nothing, since what the others were charged is
 * forgotten soon. siblings.c */
void gs_meter_explain(struct gs_meter *meter, uint64_t now);
/* Whether there are some. Needs no lock. */
static inline bool gs_meter_unexplained(const struct gs_meter *meter) {
  return __atomic_load_n(&meter->noted, __ATOMIC_RELAXED) != __atomic_load_n(&meter->explained, __ATOMIC_RELAXED);
}
/* Charged too much by so many ns, if that is positive. What was denied to the grant's other processes, because this one
 * was charged for the same instants, stays with it. */
void gs_meter_refund(struct gs_meter *meter, double ns);
/* Lower bound of the time between two instants for which this process had the device to itself. */
double gs_meter_exclusive(const struct gs_meter *meter, uint64_t from, uint64_t to);
/* What this process had of the device between two instants if it had work all the time, which is estimated to take
 * `estimate`. Over several time slices it had its part of them, but for a slice of each other. In less time the device
 * rarely changes hands: who had it when the time began kept it, but for the chance that it was switched, times how much
 * of the time was left then. Those were the others if this process came then, until they left; and this process from
 * then on, or from the begin if it had work before, even if others came meanwhile. */
struct gs_had {
  double least, most, likely;
  double beside; /* the part of the time in which others were there */
  bool about;    /* the estimate was a length that launches of the function often have, not their mean. By gs_run_had */
};
struct gs_had gs_meter_had(const struct gs_meter *meter, uint64_t from, uint64_t to, bool came, double estimate);
/* Adds busy time, spread evenly over (from, to], to that of the other streams there, up to `most` ns per ns. Returns
 * the time added. */
double gs_timeline_add(struct gs_meter *meter, uint64_t from, uint64_t to, double busy, double most);
/* The same into what is left there: what was counted before was other work. */
double gs_timeline_fill(struct gs_meter *meter, uint64_t from, uint64_t to, double busy);

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
