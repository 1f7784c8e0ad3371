#include "arbiter/core/gangs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One call of gs_gangs_step: its arguments and results. */
struct step {
  gs_core *const *core;
  uint64_t now;
  struct gs_gang_decision *out;
  int n;
  uint32_t again;
  uint64_t next;
};

int gs_gangs_create(gs_gangs **out, const struct gs_arbiter_config *config) {
  struct gs_gangs *gangs = calloc(1, sizeof *gangs);
  if (!gangs)
    return -ENOMEM;
  gangs->term_ns = config->lease_ns;
  *out = gangs;
  return 0;
}

void gs_gangs_destroy(gs_gangs *gangs) { free(gangs); }

static struct gs_gang *find(struct gs_gangs *gangs, int32_t grant) {
  for (int i = 0; i < gangs->n; i++)
    if (gangs->gang[i].grant == grant)
      return &gangs->gang[i];
  return NULL;
}

int gs_gangs_held(const gs_gangs *gangs, int32_t grant) {
  for (int i = 0; i < gangs->n; i++)
    if (gangs->gang[i].grant == grant)
      return gangs->gang[i].held;
  return 0;
}

int gs_gangs_add(gs_gangs *gangs, gs_core *const *core, int32_t grant, const uint32_t *devices, uint32_t ndevices,
                 const struct gs_share *share, int held, uint64_t now_ns) {
  struct gs_gang *g = &gangs->gang[gangs->n++];
  struct gs_core_decision discarded[GS_CORE_DECISIONS];
  *g = (struct gs_gang){.grant = grant, .ndevices = ndevices, .held = held};
  for (uint32_t i = 0; i < ndevices; i++) {
    g->device[i] = devices[i];
    int kept = gs_core_add(core[devices[i]], grant, &share[i], held, now_ns);
    g->held = g->held && kept;
  }
  for (uint32_t i = 0; i < ndevices && held && !g->held; i++)
    if (gs_core_holds(core[devices[i]], grant))
      gs_core_gang_revoke(core[devices[i]], grant, -1, 0, now_ns, discarded);
  return g->held;
}

void gs_gangs_remove(gs_gangs *gangs, gs_core *const *core, int32_t grant, uint64_t now_ns) {
  struct gs_gang *g = find(gangs, grant);
  for (uint32_t i = 0; i < g->ndevices; i++)
    gs_core_remove(core[g->device[i]], grant, now_ns);
  gangs->n--;
  memmove(g, g + 1, (size_t)(&gangs->gang[gangs->n] - g) * sizeof *g);
}

/* ---- all devices of a gang ---- */

static void add_decisions(struct step *s, uint32_t device, const struct gs_core_decision *decisions, int n) {
  for (int i = 0; i < n; i++)
    s->out[s->n++] = (struct gs_gang_decision){device, decisions[i]};
  s->again |= UINT32_C(1) << device;
}

static void revoke(struct step *s, struct gs_gang *g, int32_t other, bool idle) {
  struct gs_core_decision made[GS_CORE_DECISIONS];
  for (uint32_t i = 0; i < g->ndevices; i++) {
    int n = gs_core_gang_revoke(s->core[g->device[i]], g->grant, other, idle, s->now, made);
    add_decisions(s, g->device[i], made, n);
  }
  g->held = g->beside = false;
}

static void lease(struct step *s, struct gs_gang *g, bool beside, uint64_t term) {
  struct gs_core_decision made[GS_CORE_DECISIONS];
  for (uint32_t i = 0; i < g->ndevices; i++) {
    int n = gs_core_gang_lease(s->core[g->device[i]], g->grant, beside, s->now, made);
    add_decisions(s, g->device[i], made, n);
  }
  g->held = true;
  g->called = false;
  g->beside = g->again = beside;
  g->end_ns = s->now + term;
  g->since_ns = 0;
}

static void look_again(struct step *s, uint64_t at) {
  if (at < s->next)
    s->next = at;
}

static bool wants(const struct step *s, const struct gs_gang *g) {
  bool any = true;
  for (uint32_t i = 0; i < g->ndevices; i++)
    any = any && gs_core_gang_wants(s->core[g->device[i]], g->grant);
  return any;
}

/* ---- what one gang needs; each function returns whether it did something ---- */

static bool end_lease(struct step *s, struct gs_gang *g) {
  bool idle = true, lent = false;
  for (uint32_t i = 0; i < g->ndevices; i++) {
    int32_t other;
    int rests;
    bool unused = gs_core_gang_idle(s->core[g->device[i]], g->grant, &rests);
    idle = idle && unused;
    lent = lent || rests;
    if (gs_core_gang_yields(s->core[g->device[i]], g->grant, &other)) {
      revoke(s, g, other, false);
      return true;
    }
  }
  if (g->beside)
    look_again(s, g->end_ns);
  if ((idle && lent) || (g->beside && s->now >= g->end_ns)) {
    revoke(s, g, -1, idle);
    return true;
  }
  return false;
}

static bool answer_call(struct step *s, struct gs_gang *g) {
  bool ready = true;
  if (!wants(s, g)) {
    for (uint32_t i = 0; i < g->ndevices; i++) {
      gs_core_gang_uncall(s->core[g->device[i]], g->grant);
      s->again |= UINT32_C(1) << g->device[i];
    }
    g->called = false;
    return true;
  }
  for (uint32_t i = 0; i < g->ndevices; i++) {
    uint64_t next;
    ready = gs_core_gang_ready(s->core[g->device[i]], g->grant, &next) && ready;
    look_again(s, next);
  }
  if (ready)
    lease(s, g, false, 0);
  return ready;
}

/* Ranks that run collectives wait for each other. After a revoke, one may wait for work that another has not
 * submitted. */
static bool lease_again(struct step *s, struct gs_gang *g, uint64_t term) {
  uint64_t first = UINT64_MAX;
  bool solvent = true;
  for (uint32_t i = 0; i < g->ndevices; i++) {
    uint64_t revoked = gs_core_undrained_since(s->core[g->device[i]], g->grant);
    solvent = solvent && gs_core_gang_solvent(s->core[g->device[i]], g->grant);
    if (revoked && revoked < first)
      first = revoked;
  }
  if (first == UINT64_MAX || (g->again && !solvent))
    return false;
  if (s->now >= first + GS_GANG_AGAIN_NS)
    lease(s, g, true, term);
  else
    look_again(s, first + GS_GANG_AGAIN_NS);
  return g->held;
}

static bool serve(struct step *s, struct gs_gang *g, uint64_t term) {
  if (g->held)
    return end_lease(s, g);
  if (g->called)
    return answer_call(s, g);
  if (!wants(s, g)) {
    g->since_ns = 0;
    return false;
  }
  if (!g->since_ns)
    g->since_ns = s->now;
  return lease_again(s, g, term);
}

/* ---- which gang is next ---- */

/* Since when the gang is due on all its devices; 0: it is not due, or cannot be called yet. */
static uint64_t callable_since(struct step *s, const struct gs_gang *g) {
  uint64_t since = 0, when = s->now;
  bool all = true;
  for (uint32_t i = 0; i < g->ndevices; i++) {
    uint64_t due, next;
    enum gs_core_call call = gs_core_gang_callable(s->core[g->device[i]], g->grant, &due, &next);
    if (call == GS_CORE_NOT_DUE)
      return 0;
    all = all && call == GS_CORE_CALLABLE;
    since = due > since ? due : since;
    when = next > when && next != UINT64_MAX ? next : when;
  }
  if (!all && when > s->now)
    look_again(s, when);
  return all ? since : 0;
}

/* Gangs that hold the device yield everywhere, except those that have nothing to run on it: they rest. */
static void clear_way(struct gs_gangs *gangs, struct step *s, uint32_t device, int32_t caller) {
  int32_t in_way = -1;
  while ((in_way = gs_core_gang_main(s->core[device], in_way)) >= 0) {
    int rests;
    if (gs_core_gang_idle(s->core[device], in_way, &rests))
      gs_core_gang_rest(s->core[device], in_way);
    else
      revoke(s, find(gangs, in_way), caller, false);
  }
}

static void call(struct gs_gangs *gangs, struct step *s, struct gs_gang *g) {
  struct gs_core_decision made[GS_CORE_DECISIONS];
  for (uint32_t i = 0; i < g->ndevices; i++)
    if (!gs_core_gang_fits(s->core[g->device[i]], g->grant))
      clear_way(gangs, s, g->device[i], g->grant);
  for (uint32_t i = 0; i < g->ndevices; i++) {
    int n = gs_core_gang_call(s->core[g->device[i]], g->grant, s->now, made);
    add_decisions(s, g->device[i], made, n);
  }
  g->called = true;
}

int gs_gangs_step(gs_gangs *gangs, gs_core *const *core, uint64_t now_ns, struct gs_gang_decision *out, uint32_t *again,
                  uint64_t *next_ns) {
  struct step s = {core, now_ns, out, 0, 0, UINT64_MAX};
  struct gs_gang *best = NULL;
  uint64_t best_since = 0;
  bool done = false;
  for (int i = 0; i < gangs->n && !done; i++)
    done = serve(&s, &gangs->gang[i], gangs->term_ns);
  for (int i = 0; i < gangs->n && !done; i++) {
    struct gs_gang *g = &gangs->gang[i];
    uint64_t since = g->held || g->called ? 0 : callable_since(&s, g);
    if (since && (!best || since < best_since || (since == best_since && g->since_ns < best->since_ns))) {
      best = g;
      best_since = since;
    }
  }
  if (best)
    call(gangs, &s, best);
  for (uint32_t d = 0; d < GS_ARBITER_MAX_DEVICES && !done && !best; d++)
    if (core[d] && gs_core_asks_gangs(core[d]))
      s.again |= UINT32_C(1) << d;
  *again = s.again;
  *next_ns = s.next;
  return s.n;
}
