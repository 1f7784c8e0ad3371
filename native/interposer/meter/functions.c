/* The estimates of how long functions take. */
#include "interposer/meter/functions.h"

#include <stddef.h>
#include <string.h>

static struct gs_function *find_function(struct gs_meter *meter, uint64_t key, bool add) {
  /* Keys of one function differ in their highest bits, those of fills and copies in their lowest. */
  uint32_t start = (uint32_t)((key ^ key >> 32) * 0x9e3779b97f4a7c15u >> 40);
  struct gs_function *victim = NULL;
  for (uint32_t i = 0; i < GS_METER_PROBES; i++) {
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
  memset(victim, 0, sizeof *victim);
  victim->key = key;
  victim->epoch = meter->epoch;
  victim->estimate = GS_METER_GUESS_NS;
  return victim;
}

static void forget_samples(struct gs_function *function) {
  function->samples = function->exact = 0;
  function->kind = GS_SAMPLE_NONE;
  function->guesses = 0;
  function->guessed = 0;
  function->tries = 0;
}

struct gs_function *gs_meter_function(struct gs_meter *meter, uint64_t key) {
  struct gs_function *function = find_function(meter, key, true);
  if (function->epoch != meter->epoch) {
    function->epoch = meter->epoch;
    forget_samples(function);
    function->observed = 0;
  }
  return function;
}

void gs_meter_forget_functions(struct gs_meter *meter) { meter->epoch++; }

void gs_meter_reset_function(struct gs_meter *meter, uint64_t key) {
  struct gs_function *function = find_function(meter, key, false);
  if (function) {
    forget_samples(function);
    function->observed = 0;
  }
}

uint64_t gs_meter_pace(struct gs_meter *meter, uint64_t key, uint64_t most) {
  const struct gs_function *function = gs_meter_function(meter, key);
  uint64_t pace = (uint64_t)(function->estimate / 8);
  return function->observed == 0 || pace > most ? most : pace;
}

/* ---- segments ---- */

double gs_segment_now(const struct gs_segment *segment) {
  double total = segment->other;
  for (uint32_t i = 0; i < segment->kinds; i++) {
    const struct gs_kind *kind = &segment->kind[i];
    total += kind->launches * (kind->function->key == kind->key ? kind->function->estimate : GS_METER_GUESS_NS);
  }
  return total;
}

bool gs_segment_trusted(const struct gs_segment *segment) {
  if (segment->guessed)
    return false;
  for (uint32_t i = 0; i < segment->kinds; i++) {
    const struct gs_kind *kind = &segment->kind[i];
    if (kind->function->key != kind->key || kind->function->observed < GS_METER_TRUSTED)
      return false;
  }
  return true;
}

bool gs_segment_known_alone(const struct gs_segment *segment) {
  for (uint32_t i = 0; i < segment->kinds; i++)
    if (segment->kind[i].function->shared)
      return false;
  return gs_segment_trusted(segment);
}

/* The part of a segment's estimated time that is of functions shown by brackets. */
static double shown(const struct gs_segment *segment) {
  double sum = 0;
  for (uint32_t i = 0; i < segment->kinds; i++) {
    const struct gs_kind *kind = &segment->kind[i];
    if (kind->function->key == kind->key && gs_function_shown(kind->function))
      sum += kind->launches * kind->function->estimate;
  }
  return sum;
}

/* The estimates of functions that brackets have shown stay as they are. */
void gs_segment_learn(const struct gs_segment *segment, double took, enum gs_observed how) {
  double known = shown(segment), total = gs_segment_now(segment) - known;
  took *= segment->share; /* the rest of that time went to other streams */
  if (total <= 0 || took <= 0)
    return;
  took = maximum(took - known, 0.1 * total);
  for (uint32_t i = 0; i < segment->kinds; i++) {
    struct gs_function *function = segment->kind[i].function;
    if (function->key != segment->kind[i].key || gs_function_shown(function) ||
        (segment->unsure && function->observed > 0))
      continue;
    /* One outlier must not change the estimate of a known function much; that of a new function may change by any
     * amount. */
    double ratio = function->observed < GS_METER_TRUSTED ? took / total : minimum(maximum(took / total, 0.1), 10);
    double weight =
        function->observed < GS_METER_TRUSTED || (function->shared && how != GS_OBSERVED_SHARED) ? 1.0 : 0.2;
    /* One launch says little about the mean, and such marks favour long ones; brackets show both. */
    if (weight < 1 && segment->launches == 1) {
      if (function->samples >= GS_METER_TRUSTED)
        continue;
      weight = 0.05;
    }
    /* Time slices of the device are distributed unevenly: only many such segments show how long one takes. */
    if (how == GS_OBSERVED_SHARED)
      weight = maximum(1.0 / (function->observed + 1), 0.05);
    function->shared = how == GS_OBSERVED_SHARED;
    function->estimate = maximum(function->estimate * (1 + (ratio - 1) * weight), 100);
    function->observed++;
    if (how == GS_OBSERVED_BACKLOGGED && segment->share > 0.9)
      function->exact = GS_METER_EXACT;
  }
}

void gs_segment_guessed(const struct gs_segment *segment, double charged) {
  double total = gs_segment_now(segment);
  for (uint32_t i = 0; i < segment->kinds && total > 0; i++) {
    const struct gs_kind *kind = &segment->kind[i];
    struct gs_function *function = kind->function;
    if (function->key != kind->key || function->observed >= GS_METER_TRUSTED)
      continue;
    function->guesses += kind->launches;
    function->guessed += charged * kind->launches * function->estimate / total;
  }
}

void gs_segment_distrust(const struct gs_segment *segment) {
  for (uint32_t i = 0; i < segment->kinds; i++)
    if (segment->kind[i].function->key == segment->kind[i].key) {
      forget_samples(segment->kind[i].function);
      segment->kind[i].function->observed = 1;
    }
}
