/* The part of the meter that handles brackets: a launch between two events, and what it shows about a kernel on an idle
 * queue. */
#include <stddef.h>

#include "interposer/meter/functions.h"

/* Weight of a sample if one is taken per `every` ns. */
static uint8_t rarity(uint64_t every) {
  uint64_t times = every / GS_METER_SAMPLE_NS;
  return times < UINT8_MAX ? (uint8_t)times : UINT8_MAX;
}

uint32_t gs_meter_plan_sample(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function,
                              uint64_t now) {
  /* A bracket would also measure work of other streams on the device. */
  bool alone = now >= meter->end || meter->inflight < queue->inflight + 1;
  bool free = !__atomic_load_n(&queue->bracketing, __ATOMIC_ACQUIRE) || now - queue->last_sample > GS_METER_LOST_NS;
  bool own_mark = gs_meter_own_mark(meter, function->estimate);
  /* While others are on the device, long launches are charged by estimates, which only brackets correct: these are worth
   * what they cost. */
  uint64_t every = own_mark ? (uint64_t)GS_METER_SAMPLE_NS << queue->agreed : gs_queue_sample_every(meter, queue);
  /* By chance, so that no program can know which of its launches are bracketed before it has made them; also while the
   * last one is not read yet, and where the queue is believed to have work: kernels may have become shorter. */
  bool chosen = queue->sample_next || gs_meter_by_chance(meter, now, 1 + queue->repeated, every);
  bool due = free && alone && (chosen || (!gs_function_known(function) && !queue->sampled));
  queue->sample_next = due && queue->repeated > 0 && function->estimate > GS_METER_PILE_NS;
  if (!due || queue->sample_next)
    return 0;
  function->tries += function->tries < GS_METER_TRIES;
  queue->last_sample = now;
  /* Where each launch has a mark, a bracket represents only itself. */
  queue->sampled_rarity = own_mark ? 1 : rarity(every);
  queue->sampled_stands = own_mark ? 1 : maximum((double)every / ((1 + queue->repeated) * meter->rush + 1), 1);
  __atomic_store_n(&queue->bracketing, true, __ATOMIC_RELAXED);
  return queue->end < now + GS_METER_HOLD_NS || queue->misjudged ? GS_PLAN_SAMPLE | GS_PLAN_HOLD : GS_PLAN_SAMPLE;
}

void gs_meter_sampling(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint32_t plan,
                       uint64_t planned, uint64_t began, uint64_t ended, uint64_t closed, enum gs_held held) {
  bool empty = plan & GS_PLAN_HOLD; /* or was believed to be */
  /* The device was idle until it had the launch, or until it was no longer held; not if it had other work. */
  double idle = empty ? (double)((held == GS_HELD ? closed : ended) - planned) : 0;
  queue->sampled_held = held;
  queue->sampled_key = function->key;
  queue->sampled_host = (double)(ended - began);
  queue->sampled_whole = (double)(closed - planned);
  gs_meter_bracketed(meter, queue->sampled_whole - queue->sampled_host);
  queue->sampled_from = planned;
  queue->sampled_closed = closed;
  __atomic_store_n(&queue->sampled, function, __ATOMIC_RELEASE);
  __atomic_store_n(&queue->bracketing, false, __ATOMIC_RELEASE);
  queue->misjudged = held != GS_HELD && !empty;
  if (held == GS_HELD && empty) {
    queue->open.held_from = planned;
    queue->open.held_until = 0;
  }
  /* There was less work before it than believed: corrects `end`, and has the next launch bracketed and held. */
  if (queue->misjudged) {
    queue->end = closed;
    queue->sample_next = true;
  }
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

static uint32_t samples_of(const struct gs_function *function) {
  return function->samples < GS_METER_SAMPLES ? function->samples : GS_METER_SAMPLES;
}

/* Samples longer than this are not part of the mean: marks and waits show such launches, and they are charged as
 * measured. */
static double farthest(const struct gs_function *function, double far) {
  return maximum(GS_METER_FAR * median(function->sample, samples_of(function)), far);
}

/* Charging the mean is right in the long run for kernels of varying length. While samples agree there are fewer of
 * them, so each counts for more: a program can tell from the driver calls when the last one was taken, and could launch
 * long kernels while they are rare. */
static double typical(const struct gs_function *function, uint32_t n, double far) {
  double most = farthest(function, far), sum = 0, count = 0;
  for (uint32_t i = 0; i < n; i++)
    if (function->sample[i] <= most) {
      sum += (double)function->sample[i] * function->rarity[i];
      count += function->rarity[i];
    }
  return sum / count;
}

/* Whether the thread kept its processor around a launch that was not held. */
static bool undisturbed(struct gs_meter *meter, double whole) {
  if (meter->sample_low == 0 || whole < meter->sample_low)
    meter->sample_low = whole;
  else
    meter->sample_low *= 1.001;
  return whole <= 1.25 * meter->sample_low;
}

static bool agrees(const struct gs_function *function, double took) {
  double margin = maximum(0.05 * function->estimate, GS_METER_NOISE_NS);
  return function->observed >= GS_METER_TRUSTED && took > function->estimate - margin &&
         took < function->estimate + margin;
}

static double lowest(const float *values, uint32_t n) {
  double least = values[0];
  for (uint32_t i = 1; i < n; i++)
    least = values[i] < least ? values[i] : least;
  return least;
}

static void add_sample(struct gs_function *function, enum gs_sample kind, double took, uint8_t rarity, double far) {
  if (kind > function->kind)
    function->samples = function->exact = 0;
  function->kind = (uint8_t)kind;
  function->rarity[function->samples % GS_METER_SAMPLES] = rarity;
  function->sample[function->samples++ % GS_METER_SAMPLES] = (float)took;
  if (function->exact > 0) {
    function->exact--;
    return;
  }
  uint32_t n = samples_of(function);
  function->shared = false;
  /* For an empty graph, say, only the error is left, which may be negative. */
  function->estimate = maximum(kind == GS_SAMPLE_COMPANY ? lowest(function->sample, n) : typical(function, n, far), 0);
  function->observed++;
  if (gs_function_shown(function) && function->observed < GS_METER_TRUSTED)
    function->observed = GS_METER_TRUSTED;
}

/* Notes that the launch was held for longer than the host's calls took. Not called if it waited for other work. */
static void held_until(struct gs_queue *queue, uint64_t begun) {
  struct gs_segment *segment = &queue->open;
  for (uint32_t i = queue->head; segment->held_from != queue->sampled_from && i != queue->tail; i--)
    segment = &queue->ring[(i - 1) % GS_METER_RING].segment;
  if (segment->held_from != queue->sampled_from)
    return;
  segment->held_until = begun;
  segment->stalled += (double)(begun - queue->sampled_closed);
}

/* Whether other grants were on the device meanwhile, as far as that is known. */
static bool in_turn(const struct gs_meter *meter, const struct gs_queue *queue, uint64_t begun, double took) {
  return queue->sampled_shared ||
         (begun && gs_meter_exclusive(meter, begun, begun + (uint64_t)maximum(took, 0)) < took - GS_METER_NOISE_NS);
}

/* Whether other streams had launches shortly before a bracket, or since. Looking only at launches during the bracket
 * would favour short ones. */
static bool disturbed(const struct gs_meter *meter, const struct gs_queue *queue) {
  uint64_t other = meter->latest == queue ? meter->other_at : meter->latest_at;
  return other + GS_METER_AROUND_NS > queue->sampled_from;
}

/* Where nobody waits, no mark or wait shows a launch far longer than the others. One that was bracketed by chance
 * represents all those that were not, since the time when all launches had marks, or since the first that was charged:
 * before that the process had no work. */
static void charge_unseen(struct gs_meter *meter, const struct gs_queue *queue, double missed) {
  uint64_t from = meter->close > meter->forgotten ? meter->close : meter->forgotten;
  if (meter->pieces == 0)
    return;
  if (from < meter->piece[0].from)
    from = meter->piece[0].from;
  if (queue->sampled_from < meter->doubted && from < queue->sampled_from)
    gs_timeline_add(meter, from, queue->sampled_from, missed * queue->sampled_stands, 1);
}

void gs_meter_sampled(struct gs_meter *meter, struct gs_queue *queue, double elapsed_ns, uint64_t begun,
                      uint32_t residents) {
  struct gs_function *function = queue->sampled;
  enum gs_held held = queue->sampled_held;
  /* On a stream that was not held, the device waited between the events while the launch was made; on one that was held
   * briefly, for some of that time at most. */
  double took = held == GS_NOT_HELD ? elapsed_ns - queue->sampled_host : elapsed_ns;
  bool turns = in_turn(meter, queue, begun, took), company = turns || (residents > 1 && took > GS_METER_UNSLICED_NS);
  bool mixed = disturbed(meter, queue);
  enum gs_sample kind = mixed             ? GS_SAMPLE_LOOSE
                        : company         ? GS_SAMPLE_COMPANY
                        : held == GS_HELD ? GS_SAMPLE_EXACT
                                          : GS_SAMPLE_LOOSE;
  __atomic_store_n(&queue->sampled, NULL, __ATOMIC_RELAXED);
  if (held == GS_HELD && begun > queue->sampled_closed && begun - queue->sampled_closed < GS_METER_GAP_NS)
    held_until(queue, begun);
  if (!function || function->key != queue->sampled_key)
    return;
  if (held != GS_HELD && (!undisturbed(meter, queue->sampled_whole) || took < 200))
    return;
  if (turns && took > GS_METER_UNSLICED_NS)
    return;
  double far = residents > 1 ? GS_METER_UNSLICED_NS : GS_METER_FAR_NS;
  if (kind == GS_SAMPLE_EXACT && gs_function_known(function) && took > farthest(function, far))
    charge_unseen(meter, queue, took - function->estimate);
  if (function->observed >= GS_METER_TRUSTED && !turns && took > GS_METER_FAR * function->estimate + GS_METER_LATE_NS)
    gs_meter_surprise(meter, queue->last_sample, took - function->estimate,
                      (took - function->estimate) * queue->sampled_stands);
  uint32_t most = function->estimate < GS_METER_PILE_NS ? GS_METER_AGREED_SHORT : GS_METER_AGREED;
  queue->agreed = !agrees(function, took) ? 0 : queue->agreed < most ? queue->agreed + 1 : most;
  if (kind < function->kind)
    return;
  add_sample(function, kind, took, queue->sampled_rarity, far);
  if (kind == GS_SAMPLE_EXACT && function->guesses > 0) {
    queue->guessed += function->guesses * function->estimate - function->guessed;
    function->guesses = 0;
    function->guessed = 0;
  }
}
