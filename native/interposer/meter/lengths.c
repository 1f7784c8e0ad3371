/* How long launches of each function take. */
#include "interposer/meter/lengths.h"

#include <stddef.h>
#include <string.h>

enum {
  PROBES = 8,
  WINDOW = 32 /* samples' worth of weight that a mean remembers */
};

static struct gs_function *find_function(struct gs_meter *meter, uint64_t key, bool add) {
  /* Keys of one function differ in their highest bits, those of fills and copies in their lowest. */
  uint32_t start = (uint32_t)((key ^ key >> 32) * 0x9e3779b97f4a7c15u >> 40);
  struct gs_function *victim = NULL;
  for (uint32_t i = 0; i < PROBES; i++) {
    struct gs_function *entry = &meter->function[(start + i) & (GS_METER_FUNCTIONS - 1)];
    if (entry->key == key)
      return entry;
    if (!victim || entry->key == 0 || (victim->key && entry->observed < victim->observed))
      victim = entry;
    if (entry->key == 0)
      break;
  }
  if (!add)
    return NULL;
  *victim = (struct gs_function){.key = key, .epoch = meter->epoch, .estimate = GS_METER_GUESS_NS};
  return victim;
}

/* Only the mean remains, as a first guess. */
static void forget(struct gs_function *function, uint32_t epoch) {
  *function = (struct gs_function){.key = function->key, .epoch = epoch, .estimate = function->estimate};
}

struct gs_function *gs_meter_function(struct gs_meter *meter, uint64_t key) {
  struct gs_function *function = find_function(meter, key, true);
  if (function->epoch != meter->epoch)
    forget(function, meter->epoch);
  return function;
}

void gs_meter_forget_functions(struct gs_meter *meter) { meter->epoch++; }

void gs_meter_reset_function(struct gs_meter *meter, uint64_t key) {
  struct gs_function *function = find_function(meter, key, false);
  if (function)
    forget(function, function->epoch);
}

uint64_t gs_meter_pace(struct gs_meter *meter, uint64_t key, uint64_t most) {
  const struct gs_function *function = gs_meter_function(meter, key);
  uint64_t pace = (uint64_t)(function->estimate / 8);
  return function->observed == 0 || pace > most ? most : pace;
}

/* ---- segments ---- */

static bool current(const struct gs_kind *kind) { return kind->function->key == kind->key; }

/* Whether launches of one burst are alike, nearly always: so long ones cannot hide behind a short one that was measured. */
static bool bursts_alike(const struct gs_function *function) { return function->alike > 0.9f; }

/* Whether one burst shows little of another, although launches of one are alike. */
static bool bursts_differ(const struct gs_function *function) {
  return bursts_alike(function) && function->spread > 0.1 * function->estimate;
}

/* What a launch of the kind takes: as long as another one of the same burst, if those are alike but not all launches
 * are. */
static double length_of(const struct gs_segment *segment, const struct gs_kind *kind) {
  const struct gs_function *function = kind->function;
  if (!current(kind))
    return GS_METER_GUESS_NS;
  return bursts_differ(function) && function->burst == segment->burst ? function->latest : function->estimate;
}

double gs_segment_now(const struct gs_segment *segment) {
  double total = segment->other;
  for (uint32_t i = 0; i < segment->kinds; i++)
    total += segment->kind[i].launches * length_of(segment, &segment->kind[i]);
  return total;
}

static uint32_t class_of(double took) {
  uint32_t class = 0;
  for (double most = 2000; took >= most && class < GS_METER_CLASSES - 1; most *= 2)
    class++;
  return class;
}

bool gs_class_occurs(const struct gs_function *function, const struct gs_class *length) {
  enum { RARELY = 16 }; /* one in so many does not count */
  return RARELY * length->weight > function->weight;
}

/* What a launch took that had `room`: its mean, unless launches take longer than that or shorter, but never about as
 * long as that. Then the mean of those that are shorter. */
double gs_function_within(const struct gs_function *function, double room) {
  double weight = 0, sum = 0, longest = 0;
  if (!bursts_alike(function))
    return function->estimate;
  for (uint32_t c = 0; c < GS_METER_CLASSES; c++) {
    const struct gs_class *length = &function->length[c];
    double about = 2 * length->spread + 0.1 * length->mean;
    if (!gs_class_occurs(function, length))
      continue;
    longest = length->mean;
    if (length->mean - about < room && room < length->mean + about)
      return function->estimate;
    if (length->mean > room)
      break;
    weight += length->weight;
    sum += length->weight * length->mean;
  }
  return weight > 0 && longest > room ? minimum(sum / weight, function->estimate) : function->estimate;
}

double gs_segment_within(const struct gs_segment *segment, double total, double room, uint64_t done) {
  double part = room / maximum(gs_segment_now(segment), 1), sum = segment->other;
  double last = segment->last > 0 ? after(done, segment->last) + GS_METER_CLOCK_NS : room;
  for (uint32_t i = 0; i < segment->kinds; i++) {
    const struct gs_kind *kind = &segment->kind[i];
    double length = length_of(segment, kind);
    if (current(kind) && length == kind->function->estimate) /* else it is known from others of its burst */
      length = gs_function_within(kind->function, minimum(part * length, last));
    sum += kind->launches * length;
  }
  return minimum(sum, total);
}

void gs_segment_without(struct gs_segment *segment, const struct gs_function *function) {
  for (uint32_t i = 0; i < segment->kinds; i++)
    if (segment->kind[i].function == function && current(&segment->kind[i]) && segment->kind[i].launches > 0) {
      segment->kind[i].launches--;
      return;
    }
  segment->other = maximum(segment->other - function->estimate, 0);
}

bool gs_segment_trusted(const struct gs_segment *segment) {
  if (segment->guessed)
    return false;
  for (uint32_t i = 0; i < segment->kinds; i++)
    if (!current(&segment->kind[i]) || segment->kind[i].function->observed < GS_METER_TRUSTED)
      return false;
  return true;
}

bool gs_segment_known_alone(const struct gs_segment *segment) {
  for (uint32_t i = 0; i < segment->kinds; i++)
    if (segment->kind[i].function->shared)
      return false;
  return gs_segment_trusted(segment);
}

struct gs_function *gs_segment_function(const struct gs_segment *segment) {
  const struct gs_kind *kind = &segment->kind[0];
  bool one = segment->kinds == 1 && current(kind);
  return one && segment->share > GS_METER_MOSTLY && !segment->unsure ? kind->function : NULL;
}

/* ---- learning ---- */

bool gs_function_far(struct gs_function *function, double took) {
  enum { RARE = 3 }; /* so many more of them than of the others are not rare any more */
  if (function->observed < GS_METER_TRUSTED)
    return false;
  if (took <= maximum(GS_METER_KNEE * (function->estimate + 0.3 * function->spread), GS_METER_GAP_NS)) {
    function->far -= function->far > 0;
    return false;
  }
  function->far += function->far < RARE;
  return function->far < RARE;
}

/* The first launches of a function may be far longer than those that follow, and as long as streams are believed to be at
 * work that are not, few brackets show that. Once launches were chosen at random, only such may change the mean: else a
 * program could have a long one forgotten before it has paid for those that were not chosen. */
void gs_segment_refutes(const struct gs_segment *segment, double room) {
  enum { IN_A_ROW = 4, OF_A_BURST = 16 /* of short ones, where bursts differ */ };
  for (uint32_t i = 0; i < segment->kinds && !segment->unsure; i++) {
    const struct gs_kind *kind = &segment->kind[i];
    struct gs_function *function = kind->function;
    if (!current(kind) || function->observed < GS_METER_TRUSTED || function->chosen)
      continue;
    /* By more than a fifth, and than what launches of such a spread are off by chance. */
    double off = 0.8 * kind->launches * function->estimate - room - GS_METER_LAG_NS;
    if (off <= 0 || off * off < kind->launches * function->spread * function->spread)
      continue;
    if (++function->refuted < (bursts_differ(function) ? OF_A_BURST : IN_A_ROW))
      continue;
    forget(function, function->epoch);
    function->observed = 1; /* else few launches would fill the bound on work in flight */
  }
}

void gs_segment_supports(const struct gs_segment *segment) {
  for (uint32_t i = 0; i < segment->kinds; i++)
    if (current(&segment->kind[i]))
      segment->kind[i].function->refuted = 0;
}

uint64_t gs_meter_burst(struct gs_meter *meter, uint64_t now) {
  if (after(now, meter->burst) > 4 * GS_METER_SLICE_NS)
    meter->burst = now;
  return meter->burst;
}

void gs_function_seen(struct gs_function *function, double took, uint64_t burst) {
  enum { PAIRS = 16 };
  double off = took - function->latest, like = 0.1 * took + GS_METER_CLOCK_NS;
  if (function->burst == burst) {
    function->pairs += function->pairs < PAIRS;
    function->alike += ((off > -like && off < like ? 1.0f : 0.0f) - function->alike) / function->pairs;
  }
  function->burst = burst;
  function->latest = (float)took;
}

void gs_function_classify(struct gs_function *function, double took, double weight) {
  struct gs_class *length = &function->length[class_of(took)];
  for (uint32_t c = 0; c < GS_METER_CLASSES; c++)
    function->length[c].weight *= 1 - 1.0f / WINDOW;
  if (length->weight <= 0)
    *length = (struct gs_class){.mean = (float)took};
  length->weight += (float)weight;
  double part = minimum(weight / length->weight, 1), off = took - length->mean;
  length->mean += (float)(off * part);
  length->spread += (float)(((off < 0 ? -off : off) - length->spread) * part);
}

void gs_function_learn(struct gs_function *function, double took, double weight, bool exact) {
  if (exact)
    gs_function_classify(function, took, weight);
  function->chosen |= exact && weight > 1;
  if (exact && !function->exact)
    function->weight = 0;      /* what was seen less exactly does not count any more */
  if (function->weight == 0) { /* what was believed before is a guess */
    function->estimate = took;
    function->spread = 0;
  }
  function->weight += weight - function->weight / WINDOW;
  double off = took - function->estimate, part = minimum(weight / function->weight, 1);
  function->estimate += off * part;
  function->spread += ((off < 0 ? -off : off) - function->spread) * part;
  function->exact |= exact;
  function->shared = false;
  function->observed++;
  if (exact && function->observed < GS_METER_TRUSTED)
    function->observed = GS_METER_TRUSTED;
}

/* The means of functions that were measured launch by launch stay as they are: a segment does not show whose its time
 * was. */
void gs_segment_learn(const struct gs_segment *segment, double took, bool shared) {
  double known = 0, rest;
  for (uint32_t i = 0; i < segment->kinds; i++)
    if (current(&segment->kind[i]) && segment->kind[i].function->exact)
      known += segment->kind[i].launches * length_of(segment, &segment->kind[i]);
  rest = gs_segment_now(segment) - known;
  took *= segment->share; /* the rest of that time went to other streams */
  if (rest <= 0 || took <= 0)
    return;
  double ratio = maximum(took - known, 0.1 * rest) / rest;
  for (uint32_t i = 0; i < segment->kinds; i++) {
    struct gs_function *function = segment->kind[i].function;
    if (!current(&segment->kind[i]) || function->exact || (segment->unsure && function->observed > 0))
      continue;
    /* What was seen while others had part of the time counts only until something better is known. */
    double part = function->shared && !shared ? 1 : maximum(1.0 / (function->observed + 1), 1.0 / WINDOW);
    double times = function->observed < GS_METER_TRUSTED ? ratio : minimum(maximum(ratio, 0.1), 10);
    function->shared = shared;
    function->estimate = maximum(function->estimate * (1 + (times - 1) * part), 100);
    function->observed++;
  }
}
