#include "meter.h"

#include <stddef.h>
#include <string.h>

static double minimum(double a, double b) { return a < b ? a : b; }
static double maximum(double a, double b) { return a > b ? a : b; }

/* ---- functions ---- */

static struct gs_function *find_function(struct gs_meter *meter, uint64_t key, bool add) {
  uint32_t start = (uint32_t)((key >> 4) * 0x9e3779b97f4a7c15u >> 40);
  struct gs_function *victim = NULL;
  for (uint32_t i = 0; i < GS_METER_PROBES; i++) {
    struct gs_function *entry = &meter->function[(start + i) & (GS_METER_FUNCTIONS - 1)];
    if (entry->key == key) return entry;
    if (!victim || entry->key == 0 || (victim->key && entry->observed < victim->observed)) victim = entry;
    if (entry->key == 0) break;
  }
  if (!add) return NULL;
  memset(victim, 0, sizeof *victim);
  victim->key = key;
  victim->epoch = meter->epoch;
  victim->estimate = GS_METER_GUESS_NS;
  return victim;
}

struct gs_function *gs_meter_function(struct gs_meter *meter, uint64_t key) {
  struct gs_function *function = find_function(meter, key, true);
  if (function->epoch != meter->epoch) {
    function->epoch = meter->epoch;
    function->observed = 0;
    function->samples = function->exact = 0;
  }
  return function;
}

void gs_meter_forget_functions(struct gs_meter *meter) { meter->epoch++; }

void gs_meter_reset_function(struct gs_meter *meter, uint64_t key) {
  struct gs_function *function = find_function(meter, key, false);
  if (function) {
    function->observed = 0;
    function->samples = function->exact = 0;
  }
}

static double segment_now(const struct gs_segment *segment) {
  double total = segment->other;
  for (uint32_t i = 0; i < segment->kinds; i++) {
    const struct gs_kind *kind = &segment->kind[i];
    total += kind->launches * (kind->function->key == kind->key ? kind->function->estimate : GS_METER_GUESS_NS);
  }
  return total;
}

static bool segment_trusted(const struct gs_segment *segment) {
  if (segment->other > 0) return false;
  for (uint32_t i = 0; i < segment->kinds; i++) {
    const struct gs_kind *kind = &segment->kind[i];
    if (kind->function->key != kind->key || kind->function->observed < GS_METER_TRUSTED) return false;
  }
  return true;
}

/* Scales the estimates of a segment's functions towards what it really took. exact: the device had nothing else to do. */
static void learn(const struct gs_segment *segment, double took, bool exact) {
  double total = segment_now(segment);
  took *= segment->share; /* the rest of that time went to other streams */
  if (total <= 0 || took <= 0) return;
  for (uint32_t i = 0; i < segment->kinds; i++) {
    struct gs_function *function = segment->kind[i].function;
    if (function->key != segment->kind[i].key) continue;
    /* One wild segment must not move a known function far; a new one may turn out to be anything. */
    double ratio = function->observed < GS_METER_TRUSTED ? took / total : minimum(maximum(took / total, 0.1), 10);
    double weight = function->observed < GS_METER_TRUSTED ? 1.0 : 0.2;
    function->estimate = maximum(function->estimate * (1 + (ratio - 1) * weight), 100);
    function->observed++;
    if (exact && segment->share > 0.9) function->exact = GS_METER_EXACT;
  }
}

/* ---- launches ---- */

static void count_kind(struct gs_segment *segment, struct gs_function *function, double estimate) {
  uint32_t i;
  for (i = 0; i < segment->kinds; i++)
    if (segment->kind[i].function == function && segment->kind[i].key == function->key) break;
  if (i == GS_METER_KINDS) {
    segment->other += estimate;
    return;
  }
  if (i == segment->kinds) {
    segment->kind[i] = (struct gs_kind){function, function->key, 0};
    segment->kinds++;
  }
  segment->kind[i].launches++;
}

bool gs_meter_close_first(const struct gs_queue *queue, const struct gs_function *function, uint64_t now) {
  return function->observed < GS_METER_TRUSTED && queue->open.launches > 0 && now > queue->end + GS_METER_GAP_NS;
}

uint32_t gs_meter_launch(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t now,
                         uint32_t lease) {
  struct gs_segment *open = &queue->open;
  double estimate = function->estimate;
  uint32_t plan = 0;
  if (lease != meter->lease) {
    meter->leased_at = meter->lease ? now : 0;
    meter->lease = lease;
  }
  if (!queue->anchored && queue->head == queue->tail && open->launches == 0) {
    plan |= GS_PLAN_START;
    queue->end = now;
  } else if (now >= queue->end) {
    open->idle += (double)(now - queue->end);
    queue->end = now;
    if (!queue->sampled &&
        (now - queue->last_sample > GS_METER_SAMPLE_NS || function->observed < GS_METER_TRUSTED)) {
      plan |= GS_PLAN_SAMPLE;
      queue->last_sample = now;
    }
  }
  queue->end += (uint64_t)estimate;
  queue->launches++;
  if (open->launches == 0) {
    open->first = now;
    open->lease = lease;
    open->shared = meter->tails || now < meter->leased_at + GS_METER_TAIL_NS;
  }
  open->estimate += estimate;
  open->launches++;
  queue->inflight += estimate;
  meter->inflight += estimate;
  meter->launched += estimate;
  if (function->observed == 0) {
    open->unobserved++;
    queue->unobserved++;
    meter->unobserved++;
  }
  count_kind(open, function, estimate);
  /* A new function is looked at after 1, 2, 4, 8 launches. */
  if (open->estimate >= GS_METER_MARK_NS || open->idle > 4.0 * GS_METER_MARK_NS ||
      (function->observed < GS_METER_TRUSTED && open->launches >= 1u << function->observed))
    plan |= GS_PLAN_MARK;
  return plan;
}

static void take_inflight(struct gs_meter *meter, struct gs_queue *queue, double estimate, uint32_t unobserved) {
  estimate = minimum(estimate, queue->inflight);
  queue->inflight -= estimate;
  meter->inflight = maximum(meter->inflight - estimate, 0);
  unobserved = unobserved < queue->unobserved ? unobserved : queue->unobserved;
  queue->unobserved -= unobserved;
  meter->unobserved -= unobserved < meter->unobserved ? unobserved : meter->unobserved;
}

void gs_meter_undo(struct gs_meter *meter, struct gs_queue *queue, const struct gs_function *function, double estimate) {
  struct gs_segment *open = &queue->open;
  bool unobserved = function->observed == 0 && open->unobserved > 0;
  if (open->launches == 0) return;
  open->launches--;
  open->unobserved -= unobserved;
  open->estimate = maximum(open->estimate - estimate, 0);
  for (uint32_t i = 0; i < open->kinds; i++)
    if (open->kind[i].function == function && open->kind[i].launches > 0) open->kind[i].launches--;
  take_inflight(meter, queue, estimate, unobserved);
  queue->end -= queue->end > (uint64_t)estimate ? (uint64_t)estimate : 0;
}

void gs_meter_sampling(struct gs_queue *queue, struct gs_function *function, uint64_t planned, uint64_t began, uint64_t ended,
                       uint64_t closed) {
  /* Between its first event and the launch the device had nothing to do. */
  double idle = (double)(ended - planned);
  queue->sampled_key = function->key;
  queue->sampled_host = (double)(ended - began);
  queue->sampled_whole = (double)(closed - planned);
  __atomic_store_n(&queue->sampled, function, __ATOMIC_RELEASE);
  queue->open.idle += idle;
  queue->open.stalled += idle;
  queue->end += (uint64_t)idle;
}

static double median(const float *values, uint32_t n) {
  float sorted[GS_METER_SAMPLES];
  for (uint32_t i = 0; i < n; i++) {
    uint32_t at = i;
    while (at > 0 && sorted[at - 1] > values[i]) {
      sorted[at] = sorted[at - 1];
      at--;
    }
    sorted[at] = values[i];
  }
  return sorted[n / 2];
}

void gs_meter_sampled(struct gs_meter *meter, struct gs_queue *queue, double elapsed_ns) {
  struct gs_function *function = queue->sampled;
  double whole = queue->sampled_whole, took = elapsed_ns - queue->sampled_host;
  __atomic_store_n(&queue->sampled, NULL, __ATOMIC_RELAXED);
  if (!function || function->key != queue->sampled_key) return;
  if (meter->sample_low == 0 || whole < meter->sample_low) meter->sample_low = whole;
  else meter->sample_low *= 1.001;
  if (whole > 2 * meter->sample_low || took < 200) return;
  function->sample[function->samples++ % GS_METER_SAMPLES] = (float)took;
  if (function->exact > 0) {
    function->exact--;
    return;
  }
  function->estimate = median(function->sample, function->samples < GS_METER_SAMPLES ? function->samples : GS_METER_SAMPLES);
  function->observed++;
}

/* ---- marks ---- */

struct gs_mark *gs_meter_mark(struct gs_meter *meter, struct gs_queue *queue, bool start, uint64_t now) {
  struct gs_mark *mark;
  if (queue->head - queue->tail >= GS_METER_RING) return NULL;
  mark = &queue->ring[queue->head % GS_METER_RING];
  mark->event = NULL;
  mark->recorded = mark->recorded_by = now;
  mark->start = start;
  mark->state = GS_MARK_RECORDING;
  if (start) {
    memset(&mark->segment, 0, sizeof mark->segment);
  } else {
    if (now > queue->end) {
      queue->open.idle += (double)(now - queue->end);
      queue->end = now;
    }
    mark->segment = queue->open;
    mark->segment.share = minimum(1, queue->open.estimate / maximum(meter->launched - queue->launched_before, 1));
    queue->launched_before = meter->launched;
    memset(&queue->open, 0, sizeof queue->open);
  }
  mark->expected = queue->end;
  queue->head++;
  meter->marks++;
  return mark;
}

struct gs_mark *gs_meter_oldest(struct gs_queue *queue) {
  return queue->head == queue->tail ? NULL : &queue->ring[queue->tail % GS_METER_RING];
}

static void drop_oldest(struct gs_meter *meter, struct gs_queue *queue) {
  struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  take_inflight(meter, queue, mark->segment.estimate, mark->segment.unobserved);
  queue->tail++;
  meter->marks--;
}

/* Device time of a segment that ended at done, `span` after the one before it. */
static double segment_busy(const struct gs_segment *segment, uint64_t done, double span, double previous_lag, double lag,
                           bool alone, uint32_t residents) {
  bool trusted = segment_trusted(segment);
  double total = segment_now(segment);
  double since_first = done > segment->first ? minimum((double)(done - segment->first), span) : 0;
  since_first = maximum(since_first - segment->stalled, 0);
  if (residents > 1) {
    span /= residents;
    since_first /= residents;
  }
  if (!alone && (trusted || lag > GS_METER_LAG_NS)) return minimum(trusted ? total : since_first, span);
  if (previous_lag > GS_METER_LAG_NS && lag > GS_METER_LAG_NS && segment->idle < 0.02 * span && since_first > 0.98 * span) {
    learn(segment, span, true);
    return span;
  }
  if (lag > GS_METER_LAG_NS && (!trusted || since_first < 0.9 * total ||
                                (since_first > 1.1 * total && segment->idle < 0.02 * since_first))) {
    learn(segment, since_first, false);
    return since_first;
  }
  if (trusted) return minimum(total, span);
  /* Nothing waited, so these launches took no longer than it took to make them; less than guessed makes room for a sample. */
  if (alone && total > since_first) learn(segment, since_first, false);
  return span > segment->idle ? minimum(span - segment->idle, segment->estimate) : minimum(segment->estimate, span);
}

void gs_meter_reap(struct gs_meter *meter, struct gs_queue *queue, uint64_t done, uint32_t lease,
                   uint32_t residents) {
  struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  double lag = done > mark->recorded_by ? (double)(done - mark->recorded_by) : 0;
  if (!mark->start && queue->anchored && done > queue->previous_done) {
    double span = (double)(done - queue->previous_done);
    /* Without a lease (the daemon is gone) others are on the device too. */
    bool alone = mark->segment.lease == lease && (lease & GS_METER_HELD) && !mark->segment.shared;
    double busy = segment_busy(&mark->segment, done, span, queue->previous_lag, lag, alone, residents);
    gs_timeline_add(meter, queue->previous_done, done, busy);
  }
  drop_oldest(meter, queue);
  if (!queue->anchored || done > queue->previous_done) queue->previous_done = done;
  queue->anchored = true;
  queue->previous_lag = lag;
  if (lag > GS_METER_LAG_NS) queue->end = done + (uint64_t)queue->inflight;
}

void gs_meter_lose(struct gs_meter *meter, struct gs_queue *queue, uint64_t now) {
  struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  if (queue->anchored && now > queue->previous_done && !mark->start) {
    double span = (double)(now - queue->previous_done);
    gs_timeline_add(meter, queue->previous_done, now, minimum(segment_now(&mark->segment), span));
    queue->previous_done = now;
    queue->previous_lag = 0;
  }
  drop_oldest(meter, queue);
}

bool gs_meter_check_before_sync(struct gs_queue *queue, uint64_t now) {
  if (queue->open.launches < 2) return false;
  if (segment_trusted(&queue->open) && now - queue->last_check <= GS_METER_SAMPLE_NS) return false;
  queue->last_check = now;
  return true;
}

void gs_meter_synced(struct gs_meter *meter, struct gs_queue *queue, uint64_t now) {
  if (queue->open.launches > 0 && queue->anchored && now > queue->previous_done) {
    double span = (double)(now - queue->previous_done);
    gs_timeline_add(meter, queue->previous_done, now, minimum(segment_now(&queue->open), span));
  }
  take_inflight(meter, queue, queue->inflight, queue->unobserved);
  memset(&queue->open, 0, sizeof queue->open);
  queue->anchored = true;
  queue->launched_before = meter->launched;
  queue->previous_done = now;
  queue->previous_lag = 0;
  queue->end = now;
}

/* ---- what is in flight ---- */

double gs_meter_inflight(const struct gs_meter *meter, double bound) {
  return meter->inflight + meter->unobserved * (bound / GS_METER_RISK_SHARE);
}

double gs_queue_inflight(const struct gs_queue *queue, double bound, uint64_t now) {
  double rest = queue->inflight;
  if (queue->head == queue->tail) rest = queue->end > now ? minimum(rest, (double)(queue->end - now)) : 0;
  return queue->head == queue->tail && rest == 0 ? 0 : rest + queue->unobserved * (bound / GS_METER_RISK_SHARE);
}

uint64_t gs_queue_expected_end(const struct gs_queue *queue, uint64_t now) {
  if (queue->inflight <= 0) return 0; /* only copies, if anything */
  if (queue->head != queue->tail) {
    const struct gs_mark *oldest = &queue->ring[queue->tail % GS_METER_RING];
    if (now > oldest->expected) {
      /* Late already: the longer it is late, the longer it will take. */
      uint64_t late = now - oldest->expected, rest = (uint64_t)queue->inflight;
      return now + (late / 2 > rest ? late / 2 : rest);
    }
    return queue->end;
  }
  return queue->end > now ? queue->end : 0;
}

bool gs_queue_stuck(const struct gs_queue *queue, uint64_t patience, uint64_t now) {
  const struct gs_mark *oldest = &queue->ring[queue->tail % GS_METER_RING];
  uint64_t due = oldest->expected, own;
  if (queue->head == queue->tail) return false;
  own = (uint64_t)segment_now(&oldest->segment); /* of an unknown function much more may be known by now */
  if (queue->anchored && queue->previous_done + own > due) due = queue->previous_done + own;
  return now > due + (own > patience ? own : patience);
}

uint64_t gs_meter_pace(struct gs_meter *meter, uint64_t key, uint64_t most) {
  const struct gs_function *function = gs_meter_function(meter, key);
  uint64_t pace = (uint64_t)(function->estimate / 8);
  return function->observed == 0 || pace > most ? most : pace;
}
