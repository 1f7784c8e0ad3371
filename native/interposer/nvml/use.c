/* Utilization of a device: by the work of this grant, as its processes meter it. Work of others is not shown. What is
 * not metered (memory controller, encoder, decoder) is 0 if NVML's structure needs a number, and NOT_SUPPORTED
 * elsewhere. */
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "interposer/os/guest.h"
#include "interposer/nvml/ml.h"
#include "interposer/os/system.h"

/* A rate covers the time since an earlier sample taken here; NVML's own samples cover 1/6 s to 1 s. A process that has
 * no recent sample waits for the shortest interval that is meaningful, because metered time advances in steps of
 * milliseconds. */
enum { SHORTEST_NS = 50000000, APART_NS = 500000000 };
static const uint64_t LONGEST_NS = 10000000000u;

struct sample {
  uint64_t at_ns; /* 0: never taken */
  uint64_t busy_ns[GS_MAX_SLOTS];
  uint32_t generation[GS_MAX_SLOTS];
};

struct gs_history {
  struct sample older, newer; /* at least APART_NS apart, or the same */
};

/* Device time of one process since the sample. */
struct rate {
  unsigned int pid, percent;
};

struct rates {
  unsigned int whole; /* of the grant */
  unsigned int count; /* processes that did something */
  unsigned int room;  /* capacity of `each` */
  struct rate *each;  /* NULL if room is 0 */
};

static void take(const struct gs_view *view, int ordinal, struct sample *out) {
  out->at_ns = gs_now();
  for (uint32_t i = 0; i < gs_ml_slots(view); i++) {
    const struct gs_slot *slot = &view->usage->slot[i];
    out->generation[i] = __atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE);
    out->busy_ns[i] = __atomic_load_n(&slot->device[ordinal].busy_ns, __ATOMIC_ACQUIRE);
  }
}

static unsigned int percent(uint64_t part, uint64_t wall) {
  uint64_t value = wall ? (uint64_t)((double)part / (double)wall * 100.0 + 0.5) : 0;
  return value > 100 ? 100 : (unsigned int)value;
}

/* Computes the device time since the sample of the processes that are alive now. */
static void compare(const struct gs_view *view, int ordinal, const struct sample *since, struct rates *out) {
  uint64_t wall = gs_now() - since->at_ns, sum = 0;
  out->count = 0;
  for (uint32_t i = 0; i < gs_ml_slots(view); i++) {
    const struct gs_slot *slot = gs_ml_slot(view, i);
    if (!slot)
      continue;
    uint64_t busy = __atomic_load_n(&slot->device[ordinal].busy_ns, __ATOMIC_ACQUIRE);
    uint64_t before =
        __atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE) == since->generation[i] ? since->busy_ns[i] : 0;
    uint64_t done = busy > before ? busy - before : 0;
    if (done > wall)
      done = wall; /* the tenant writes this number */
    sum += done;
    if (done == 0)
      continue;
    if (out->count < out->room)
      out->each[out->count] = (struct rate){gs_ml_pid(view, slot), percent(done, wall)};
    out->count++;
  }
  out->whole = percent(sum, wall);
}

static struct gs_history *history(struct gs_view *view, int ordinal) {
  if (!view->history[ordinal])
    view->history[ordinal] = gs_private_map(sizeof *view->history[ordinal]);
  return view->history[ordinal];
}

/* The sample to compare with; *wait_ns: time left until the shortest interval has passed. Called with the lock held. */
static const struct sample *reference(struct gs_view *view, int ordinal, struct gs_history *history,
                                      uint64_t *wait_ns) {
  if (history->newer.at_ns == 0 || gs_now() - history->newer.at_ns > LONGEST_NS) {
    take(view, ordinal, &history->newer);
    history->older = history->newer;
  }
  uint64_t now = gs_now();
  const struct sample *found = now - history->newer.at_ns >= APART_NS ? &history->newer : &history->older;
  uint64_t since = now - found->at_ns;
  *wait_ns = since < SHORTEST_NS ? SHORTEST_NS - since : 0;
  return found;
}

static void rotate(struct gs_view *view, int ordinal, struct gs_history *history) {
  if (gs_now() - history->newer.at_ns < APART_NS)
    return;
  history->older = history->newer;
  take(view, ordinal, &history->newer);
}

static nvmlReturn_t rates_of(struct gs_view *view, int ordinal, struct rates *out) {
  uint64_t wait_ns = 0;
  gs_lock(&view->use_lock);
  struct gs_history *samples = history(view, ordinal);
  if (samples)
    reference(view, ordinal, samples, &wait_ns);
  gs_unlock(&view->use_lock);
  if (!samples)
    return NVML_ERROR_MEMORY;
  if (wait_ns)
    gs_nap(wait_ns);
  gs_lock(&view->use_lock);
  compare(view, ordinal, reference(view, ordinal, samples, &wait_ns), out);
  rotate(view, ordinal, samples);
  gs_unlock(&view->use_lock);
  return NVML_SUCCESS;
}

static unsigned long long now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
}

GS_ML(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t *rates)) {
  struct gs_view *view = gs_ml_view();
  nvmlUtilization_t real;
  struct rates ours = {0};
  int ordinal;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetUtilizationRates)(device, view && rates ? &real : rates);
  if (result != NVML_SUCCESS || !view)
    return result;
  result = gs_ml_device(view, device, &ordinal);
  if (result == NVML_SUCCESS)
    result = rates_of(view, ordinal, &ours);
  if (result == NVML_SUCCESS)
    *rates = (nvmlUtilization_t){.gpu = ours.whole, .memory = 0};
  return result;
}

/* ---- per process ------------------------------------------------------------------------------------------------- */

/* Answers of the real library that mean that the request was valid. */
static bool in_order(nvmlReturn_t result) {
  return result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE || result == NVML_ERROR_NOT_FOUND;
}

/* put writes sample i. *count: in: the room; out: how many there are. */
static nvmlReturn_t put_rates(struct gs_view *view, nvmlDevice_t device, unsigned int *count, void *samples,
                              void (*put)(void *samples, unsigned int i, const struct rate *rate,
                                          unsigned long long at_us)) {
  struct rates rates = {.room = GS_MAX_SLOTS};
  int ordinal;
  nvmlReturn_t result = gs_ml_device(view, device, &ordinal);
  if (result != NVML_SUCCESS)
    return result;
  rates.each = gs_private_map(GS_MAX_SLOTS * sizeof *rates.each);
  result = rates.each ? rates_of(view, ordinal, &rates) : NVML_ERROR_MEMORY;
  if (result == NVML_SUCCESS) {
    unsigned int room = samples ? *count : 0;
    /* the answer to a query of the size leaves room for a process that starts meanwhile */
    *count = samples ? rates.count : gs_ml_slots(view) + 1;
    if (samples && rates.count == 0)
      result = NVML_ERROR_NOT_FOUND;
    else if (!samples || rates.count > room)
      result = NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned long long at_us = now_us();
    for (unsigned int i = 0; result == NVML_SUCCESS && i < rates.count; i++)
      put(samples, i, &rates.each[i], at_us);
  }
  if (rates.each)
    munmap(rates.each, GS_MAX_SLOTS * sizeof *rates.each);
  return result;
}

static void put_sample(void *samples, unsigned int i, const struct rate *rate, unsigned long long at_us) {
  ((nvmlProcessUtilizationSample_t *)samples)[i] =
      (nvmlProcessUtilizationSample_t){.pid = rate->pid, .timeStamp = at_us, .smUtil = rate->percent};
}

static void put_info(void *samples, unsigned int i, const struct rate *rate, unsigned long long at_us) {
  ((nvmlProcessUtilizationInfo_v1_t *)samples)[i] =
      (nvmlProcessUtilizationInfo_v1_t){.timeStamp = at_us, .pid = rate->pid, .smUtil = rate->percent};
}

GS_ML(nvmlDeviceGetProcessUtilization, (nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                        unsigned int *count, unsigned long long last_seen)) {
  struct gs_view *view = gs_ml_view();
  if (!view || !count)
    return GS_ML_REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, last_seen);
  unsigned int none = 0;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetProcessUtilization)(device, NULL, &none, last_seen);
  return in_order(result) ? put_rates(view, device, count, samples, put_sample) : result;
}

GS_ML(nvmlDeviceGetProcessesUtilizationInfo, (nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *infos)) {
  struct gs_view *view = gs_ml_view();
  if (!view || !infos)
    return GS_ML_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, infos);
  nvmlProcessesUtilizationInfo_v1_t real = {.version = infos->version, .lastSeenTimeStamp = infos->lastSeenTimeStamp};
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, &real);
  return in_order(result) ? put_rates(view, device, &infos->processSamplesCount, infos->procUtilArray, put_info)
                          : result;
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

enum sampling { GPU_UTILIZATION = 1, MEMORY_UTILIZATION = 2, ENCODER = 3, DECODER = 4, JPG = 8, OFA = 9 };
enum { VALUE_UNSIGNED_INT = 1 };

/* One sample, taken now: the driver's histories cover the whole device. */
static nvmlReturn_t own_sample(struct gs_view *view, nvmlDevice_t device, unsigned int *type, unsigned int *count,
                               nvmlSample_t *samples) {
  struct rates rates = {0};
  int ordinal;
  nvmlReturn_t result = gs_ml_device(view, device, &ordinal);
  if (result == NVML_SUCCESS && samples && *count == 0)
    result = NVML_ERROR_INVALID_ARGUMENT;
  if (result == NVML_SUCCESS && samples)
    result = rates_of(view, ordinal, &rates);
  if (result != NVML_SUCCESS)
    return result;
  *type = VALUE_UNSIGNED_INT;
  *count = 1;
  if (samples)
    *samples = (nvmlSample_t){.timeStamp = now_us(), .sampleValue = {.uiVal = rates.whole}};
  return NVML_SUCCESS;
}

GS_ML(nvmlDeviceGetSamples, (nvmlDevice_t device, unsigned int kind, unsigned long long last_seen, unsigned int *type,
                             unsigned int *count, nvmlSample_t *samples)) {
  struct gs_view *view = gs_ml_view();
  bool load = kind == GPU_UTILIZATION || kind == MEMORY_UTILIZATION || kind == ENCODER || kind == DECODER ||
              kind == JPG || kind == OFA;
  if (!view || !load || !type || !count)
    return GS_ML_REAL(nvmlDeviceGetSamples)(device, kind, last_seen, type, count, samples);
  unsigned int size = 0;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetSamples)(device, kind, last_seen, type, &size, NULL);
  if (result != NVML_SUCCESS && result != NVML_ERROR_NOT_FOUND)
    return result;
  return kind == GPU_UTILIZATION ? own_sample(view, device, type, count, samples) : NVML_ERROR_NOT_SUPPORTED;
}

/* These samples cover the whole device, so there are none here. */
GS_ML(nvmlGpmQueryDeviceSupport, (nvmlDevice_t device, nvmlGpmSupport_t *support)) {
  nvmlReturn_t result = GS_ML_REAL(nvmlGpmQueryDeviceSupport)(device, support);
  if (result == NVML_SUCCESS && gs_ml_view())
    support->isSupportedDevice = 0;
  return result;
}
