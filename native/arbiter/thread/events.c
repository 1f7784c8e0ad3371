/* The record of events: read by the daemon, which also adds what it finds in usage pages. */
#include <errno.h>
#include <pthread.h>

#include "arbiter/thread/state.h"

/* The ordinal that a device has in a grant; NO_ORDINAL: there is no such grant, or it does not have the device. */
static uint32_t ordinal_in(const gs_arbiter *a, int32_t grant, uint32_t device) {
  const struct entry *e = grant < 0 ? NULL : &a->grant[place_of(grant)];
  if (!e || !e->present || handle_of(a, place_of(grant)) != grant || device >= GS_ARBITER_MAX_DEVICES)
    return NO_ORDINAL;
  return e->ordinal[device];
}

int gs_arbiter_refused(gs_arbiter *a, int32_t grant, uint32_t device, const struct gs_refused *refused,
                       struct gs_err *err) {
  int rc = 0;
  pthread_mutex_lock(&a->lock);
  if (ordinal_in(a, grant, device) == NO_ORDINAL)
    rc = gs_fail(err, -ENOENT, "grant %d is not on device %u", grant, device);
  else
    a->event[a->nevents++ % GS_ARBITER_EVENTS] = (struct gs_event){
        .t_ns = now_ns(),
        .kind = GS_EVENT_REFUSED,
        .device = device,
        .grant = grant,
        .other = -1,
        .refused = *refused,
    };
  pthread_mutex_unlock(&a->lock);
  return rc;
}

int gs_arbiter_events(gs_arbiter *a, uint64_t *after, struct gs_event *out, uint32_t n) {
  pthread_mutex_lock(&a->lock);
  uint64_t from = *after, oldest = a->nevents > GS_ARBITER_EVENTS ? a->nevents - GS_ARBITER_EVENTS : 0;
  if (from < oldest)
    from = oldest;
  uint32_t copied = 0;
  while (copied < n && from < a->nevents)
    out[copied++] = a->event[from++ % GS_ARBITER_EVENTS];
  *after = from;
  pthread_mutex_unlock(&a->lock);
  return (int)copied;
}

uint64_t gs_arbiter_newest_event(gs_arbiter *a) {
  pthread_mutex_lock(&a->lock);
  uint64_t newest = a->nevents;
  pthread_mutex_unlock(&a->lock);
  return newest;
}
