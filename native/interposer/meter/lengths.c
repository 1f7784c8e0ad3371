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

double gs_segment_now(const struct gs_segment *segment) {
  double total = segment->other;
  for (uint32_t i = 0; i < segment->kinds; i++) {
    const struct gs_kind *kind = &segment->kind[i];
    total += kind->launches * (current(kind) ? kind->function->estimate : GS_METER_GUESS_NS);
  }
  return total;
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

void gs_function_learn(struct gs_function *function, double took, double weight, bool exact) {
  if (exact && !function->exact)
    function->weight = 0; /* what was seen less exactly does not count any more */
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
      known += segment->kind[i].launches * segment->kind[i].function->estimate;
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

void gs_segment_lower(const struct gs_segment *segment, double part) {
  for (uint32_t i = 0; i < segment->kinds; i++)
    if (current(&segment->kind[i]))
      segment->kind[i].function->estimate = maximum(segment->kind[i].function->estimate * part, 100);
}
