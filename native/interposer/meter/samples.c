/* The part of the meter that handles brackets: a launch between two events, and what it shows about a kernel on an idle
 * queue. */
#include <stddef.h>

#include "interposer/meter/meter.h"

static double maximum(double a, double b) { return a > b ? a : b; }

void gs_meter_sampling(struct gs_queue *queue, struct gs_function *function, uint64_t planned, uint64_t began,
                       uint64_t ended, uint64_t closed) {
  /* Between the first event and the launch the device was idle. */
  double idle = (double)(ended - planned);
  queue->sampled_key = function->key;
  queue->sampled_host = (double)(ended - began);
  queue->sampled_whole = (double)(closed - planned);
  __atomic_store_n(&queue->sampled, function, __ATOMIC_RELEASE);
  queue->open.idle += idle;
  queue->open.stalled += idle;
  queue->end += (uint64_t)idle;
}

/* Charging the mean is right in the long run for kernels of varying length. */
static double typical(const float *values, uint32_t n) {
  float sorted[GS_METER_SAMPLES];
  for (uint32_t i = 0; i < n; i++) {
    uint32_t at = i;
    while (at > 0 && sorted[at - 1] > values[i]) {
      sorted[at] = sorted[at - 1];
      at--;
    }
    sorted[at] = values[i];
  }
  double sum = 0;
  uint32_t count = 0;
  float most = GS_METER_FAR * sorted[n / 2] > GS_METER_FAR_NS ? GS_METER_FAR * sorted[n / 2] : GS_METER_FAR_NS;
  for (uint32_t i = 0; i < n && sorted[i] <= most; i++, count++)
    sum += sorted[i];
  return sum / count;
}

void gs_meter_sampled(struct gs_meter *meter, struct gs_queue *queue, double elapsed_ns) {
  struct gs_function *function = queue->sampled;
  double whole = queue->sampled_whole, took = elapsed_ns - queue->sampled_host;
  __atomic_store_n(&queue->sampled, NULL, __ATOMIC_RELAXED);
  if (!function || function->key != queue->sampled_key)
    return;
  if (meter->sample_low == 0 || whole < meter->sample_low)
    meter->sample_low = whole;
  else
    meter->sample_low *= 1.001;
  if (whole > 1.25 * meter->sample_low || took < 200)
    return;
  if (queue->sampled_shared && took > GS_METER_UNSLICED_NS)
    return;
  if (function->observed >= GS_METER_TRUSTED && !queue->sampled_shared &&
      took > GS_METER_FAR * function->estimate + GS_METER_LATE_NS)
    gs_meter_surprise(meter, queue->last_sample, took - function->estimate);
  double margin = maximum(0.05 * function->estimate, GS_METER_NOISE_NS);
  bool agrees = function->observed >= GS_METER_TRUSTED && took > function->estimate - margin &&
                took < function->estimate + margin;
  uint32_t most = function->estimate < GS_METER_PILE_NS ? GS_METER_AGREED_SHORT : GS_METER_AGREED;
  queue->agreed = !agrees ? 0 : queue->agreed < most ? queue->agreed + 1 : most;
  function->sample[function->samples++ % GS_METER_SAMPLES] = (float)took;
  if (function->exact > 0) {
    function->exact--;
    return;
  }
  function->shared = false;
  function->estimate =
      typical(function->sample, function->samples < GS_METER_SAMPLES ? function->samples : GS_METER_SAMPLES);
  function->observed++;
}
