#include "modelled_others.h"

#include <string.h>

enum others foreign;

static uint64_t noticed; /* the gate thread has seen all changes up to here */

/* Leases alternate with those of the others. */
enum { PERIOD = 42000000, LEASE = 20000000, GAP = 1000000, SLICE = 2000000, NOTICE = 70000 };
enum { LATER = 1000000000 };

/* Of FOREIGN_YIELDS: this program's lease, which it asks for when it launches and loses when it has been idle. The
 * other has work whenever it is not held, and less than 0.2 ms of it when the lease changes hands, as the arbiter has
 * it. */
enum { IDLE_LEAST = 200000, IDLE_MOST = 20000000, WAIT_MOST = 1000000, REST_MOST = 200000, REVOKE = 50000 };
static struct {
  uint64_t granted, tail_until, lost, idle; /* idle: how long it is kept after the last work */
  uint32_t word;
  bool noticed_tail, noticed_loss;
} lease;

bool foreign_at(uint64_t t) {
  uint64_t at = t % PERIOD;
  if (foreign == FOREIGN_YIELDS)
    return t >= lease.lost || t < lease.tail_until;
  if (foreign == FOREIGN_CLAIMED || foreign == FOREIGN_LATER)
    return t >= first_instant + LATER;
  return foreign == FOREIGN_ALWAYS || (foreign == FOREIGN_IN_TURN && (at >= LEASE + GAP || at < SLICE));
}

bool held_at(uint64_t t) {
  if (foreign == FOREIGN_YIELDS)
    return t >= lease.granted && t < lease.lost;
  return foreign == ALONE || t % PERIOD < LEASE;
}

uint32_t lease_at(uint64_t t) {
  if (foreign == FOREIGN_YIELDS)
    return lease.word + !held_at(t);
  return foreign == ALONE ? 1 : 1 + 2 * (uint32_t)(t / PERIOD % 1000000) + !held_at(t);
}

uint64_t worked(uint64_t begin, uint64_t ns) {
  if (foreign == ALONE || foreign == FOREIGN_CLAIMED)
    return begin + ns;
  while (ns > 0) {
    uint64_t step = 10000 - begin % 10000;
    bool ours = !foreign_at(begin) || begin / SLICE % 2 == 0;
    if (ours && step > ns)
      step = ns;
    if (ours)
      ns -= step;
    begin += step;
  }
  return begin;
}

uint64_t launched(uint64_t begin, uint64_t ns) {
  if (foreign != FOREIGN_YIELDS)
    return worked(begin, ns);
  lease.lost = lease.granted + LEASE;
  uint64_t end = worked(begin, ns);
  if (end + lease.idle < lease.lost)
    lease.lost = end + lease.idle;
  return end;
}

/* The lease was lost: the program's gate thread has seen that, or the launching thread sees it now. */
static void notice_loss(void) {
  uint64_t at = now < lease.lost + NOTICE ? now : lease.lost + NOTICE;
  if (!metered || lease.noticed_loss || lease.granted == 0)
    return;
  lease.noticed_loss = true;
  if (device_free > at)
    gs_meter_turn(&meter, 1, lease.lost);
  if (device_free <= now)
    gs_meter_turn(&meter, GS_METER_AWAY, device_free > at ? device_free : at);
}

void regain(void) {
  notice_loss();
  now += REVOKE + (now - lease.granted >= LEASE ? chance(LEASE) : chance(WAIT_MOST));
  lease.granted = now;
  lease.tail_until = now + chance(REST_MOST);
  if (lease.tail_until < device_free) /* what is in flight was given its time beside the other when it was launched */
    lease.tail_until = device_free;
  lease.lost = now + LEASE;
  lease.idle = IDLE_LEAST + chance(chance(IDLE_MOST));
  lease.word += 2;
  lease.noticed_tail = lease.noticed_loss = false;
  if (metered)
    gs_meter_turn(&meter, foreign_at(now), now);
}

void notice(void) {
  const uint64_t change[] = {0, SLICE, LEASE + GAP};
  if (foreign == ALONE)
    return;
  if (foreign == FOREIGN_YIELDS) {
    if (!lease.noticed_tail && now >= lease.tail_until + NOTICE) {
      lease.noticed_tail = true;
      gs_meter_turn(&meter, 0, lease.tail_until);
    }
    if (now >= lease.lost + NOTICE)
      notice_loss();
    return;
  }
  if (noticed == 0)
    noticed = now;
  for (uint64_t period = noticed / PERIOD * PERIOD; period <= now; period += PERIOD)
    for (int i = 0; i < 3; i++) {
      uint64_t at = period + change[i], seen = at + NOTICE;
      if (seen <= noticed || seen > now || foreign_at(at) == meter.others)
        continue;
      gs_meter_turn(&meter, foreign_at(at), held_at(at) ? seen : at);
    }
  noticed = now;
}

void others_anew(void) {
  memset(&lease, 0, sizeof lease);
  lease.word = 1;
  noticed = 0;
}
