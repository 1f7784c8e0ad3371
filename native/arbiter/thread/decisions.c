/* Carries out decisions in the pages, and records them as events. */
#include "arbiter/thread/state.h"

static const uint32_t kinds[] = {
    [GS_CORE_LEASE] = GS_EVENT_LEASE,     [GS_CORE_LEASE_BESIDE] = GS_EVENT_BESIDE,
    [GS_CORE_REVOKE] = GS_EVENT_REVOKE,   [GS_CORE_HANDOVER] = GS_EVENT_HANDOVER,
    [GS_CORE_LATE] = GS_EVENT_LATE,       [GS_CORE_WAKE] = GS_EVENT_WAKE,
    [GS_CORE_DRAINED] = GS_EVENT_DRAINED, [GS_CORE_LEFT] = GS_EVENT_LEFT,
};

void arbiter_record(gs_arbiter *a, uint32_t device, const struct gs_core_decision *d, uint64_t now) {
  a->event[a->nevents++ % GS_ARBITER_EVENTS] = (struct gs_event){
      .t_ns = now,
      .kind = kinds[d->action],
      .device = device,
      .grant = handle_of(a, d->grant),
      .other = d->other < 0 ? -1 : handle_of(a, d->other),
      .receipt = d->receipt,
  };
}

void arbiter_carry_out(gs_arbiter *a, uint32_t device, const struct gs_core_decision *d, uint64_t now) {
  struct entry *e = &a->grant[d->grant];
  uint32_t ordinal = e->ordinal[device];
  switch ((enum gs_core_action)d->action) {
    case GS_CORE_CONTENDED: arbiter_set_bound(a, e, ordinal, (enum gs_core_company)d->value); return;
    case GS_CORE_LEASE:
    case GS_CORE_LEASE_BESIDE: arbiter_set_lease(a, e, ordinal, true); break;
    case GS_CORE_REVOKE:
      if (e->cuts) /* before its ranks see the revoke */
        arbiter_wake_cut(a, e, arbiter_set_cuts(e, now));
      arbiter_set_lease(a, e, ordinal, false);
      break;
    case GS_CORE_HANDOVER:
    case GS_CORE_LATE:
    case GS_CORE_WAKE:
    case GS_CORE_DRAINED:
    case GS_CORE_LEFT: break;
  }
  arbiter_record(a, device, d, now);
}
