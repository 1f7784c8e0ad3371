#include "modelled_others.h"
#include "modelled_tails.h"

#include <string.h>

#include "interposer/meter/charged.h"
#include "page/gs_page.h"

enum others foreign;
uint64_t sibling_ns, sibling_pause, siblings_truth;
double siblings_charged;

static uint64_t noticed; /* the gate thread has seen all changes up to here */

/* Leases alternate with those of the others. */
enum { PERIOD = 42000000, LEASE = 20000000, GAP = 1000000, SLICE = 2000000, NOTICE = 70000 };
enum { LATER = 1000000000 };

/* Of FOREIGN_YIELDS: this program's lease, which it asks for when it launches and loses when it has been idle. The other
 * has work whenever it is not held, and less than 0.2 ms of it when the lease changes hands, as the arbiter has it. The
 * same of FOREIGN_TAILS, with others as modelled_tails.h has them. */
enum { IDLE_LEAST = 200000, IDLE_MOST = 20000000, WAIT_MOST = 1000000, REST_MOST = 200000, REVOKE = 50000 };
static struct {
  uint64_t granted, tail_until, lost, idle; /* idle: how long it is kept after the last work */
  uint32_t word;
  bool noticed_tail, noticed_loss;
} lease;

/* Of FOREIGN_TAILS. `tails_seen`: the program knows of each that has ended before. */
static struct tails tails;
static uint64_t tails_seen;

bool yields(void) { return foreign == FOREIGN_YIELDS || foreign == FOREIGN_TAILS; }

/* Of SIBLINGS: what the others did on the device. They are charged for it, exactly, when they have learned of it. */
enum { COUNT = 3, CHANGE = 20000, REPORT_MOST = 5000000, UNREPORTED = 1024 };
static struct {
  uint64_t launched, from, to, at;
} unreported[UNREPORTED];
static uint32_t reports;
static uint64_t next_launch[COUNT];
static struct gs_charged charged;

/* Where another process was charged for that time, it had it at another time since it was launched. */
static void charge_sibling(uint64_t launched, uint64_t from, uint64_t to) {
  double had = (double)(to - from), counted = gs_charged_add(&charged, from, to, 1, 1);
  if (from > launched && had > counted)
    counted += gs_charged_add(&charged, launched, from, (had - counted) / (double)(from - launched), 1);
  siblings_charged += counted;
}

void report(uint64_t until) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < reports; i++)
    if (unreported[i].at <= until)
      charge_sibling(unreported[i].launched, unreported[i].from, unreported[i].to);
    else
      unreported[left++] = unreported[i];
  reports = left;
}

/* The device is this process's from `begin` on: when its kernel begins, after a slice for each of the others with work. */
static uint64_t after_siblings(uint64_t begin) {
  uint64_t at = begin;
  for (int i = 0; i < COUNT; i++) {
    if (next_launch[i] > at)
      continue;
    uint64_t slice = sibling_ns < SLICE ? sibling_ns : SLICE;
    at += CHANGE + slice;
    siblings_truth += slice;
    if (reports == UNREPORTED)
      report(UINT64_MAX);
    unreported[reports].launched = next_launch[i];
    unreported[reports].from = at - slice;
    unreported[reports].to = at;
    unreported[reports++].at = at + chance(REPORT_MOST);
    next_launch[i] = at + (sibling_pause > 0 ? chance(2 * sibling_pause) : 0);
  }
  return at > begin ? at + CHANGE : begin;
}

/* A process keeps the device for a slice, unless it runs dry; an event in between takes less than EVENTS. */
static uint64_t slice_until, last_end;
static uint64_t worked_among(uint64_t begin, uint64_t ns) {
  enum { EVENTS = 3000 };
  for (uint64_t part; ns > 0; ns -= part, begin += part) {
    if (begin > last_end + EVENTS || begin >= slice_until) {
      begin = after_siblings(begin);
      slice_until = begin + SLICE;
    }
    part = begin + ns < slice_until ? ns : slice_until - begin;
    last_end = begin + part;
  }
  return begin;
}

uint32_t residents(void) { return foreign == SIBLINGS ? 1 + COUNT : 1; }

uint32_t foreign_at(uint64_t t) {
  uint64_t at = t % PERIOD;
  if (foreign == FOREIGN_TAILS)
    return lease.word > 1 ? tails_at(&tails, t) : 1;
  if (foreign == FOREIGN_YIELDS)
    return t >= lease.lost || t < lease.tail_until;
  if (foreign == FOREIGN_CLAIMED || foreign == FOREIGN_LATER)
    return t >= first_instant + LATER;
  return foreign == FOREIGN_ALWAYS || (foreign == FOREIGN_IN_TURN && (at >= LEASE + GAP || at < SLICE));
}

bool held_at(uint64_t t) {
  if (yields())
    return t >= lease.granted && t < lease.lost;
  return foreign == ALONE || foreign == SIBLINGS || t % PERIOD < LEASE;
}

uint32_t lease_at(uint64_t t) {
  if (yields())
    return lease.word + !held_at(t);
  return foreign == ALONE || foreign == SIBLINGS ? 1 : 1 + 2 * (uint32_t)(t / PERIOD % 1000000) + !held_at(t);
}

uint64_t worked(uint64_t begin, uint64_t ns) {
  if (foreign == ALONE || foreign == FOREIGN_CLAIMED)
    return begin + ns;
  if (foreign == SIBLINGS)
    return worked_among(begin, ns);
  if (foreign == FOREIGN_TAILS)
    return tails_worked(&tails, begin, ns);
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
  if (!yields())
    return worked(begin, ns);
  tails.lost = lease.lost = lease.granted + LEASE;
  uint64_t end = worked(begin, ns);
  if (end + lease.idle < lease.lost)
    tails.lost = lease.lost = end + lease.idle;
  return end;
}

/* The lease was lost: the program's gate thread has seen that, or the launching thread sees it now. */
static void notice_loss(void) {
  uint64_t at = now < lease.lost + NOTICE ? now : lease.lost + NOTICE;
  if (!metered || lease.noticed_loss || lease.granted == 0)
    return;
  lease.noticed_loss = true;
  if (device_free > at && foreign == FOREIGN_YIELDS)
    gs_meter_turn(&meter, 1, lease.lost);
  if (device_free <= now)
    gs_meter_turn(&meter, GS_METER_AWAY, device_free > at ? device_free : at);
}

/* Of FOREIGN_TAILS: who ended, one after another, and who came when the lease was lost, for as long as the program has
 * work on the device. */
static void notice_tails(void) {
  uint64_t until = now - NOTICE, end = device_free > lease.lost ? device_free : lease.lost;
  if (now > tails.at)
    tails_pass(&tails, now);
  if (until > end)
    until = end;
  for (uint64_t next; tails_seen < until; tails_seen = next) {
    next = tails_seen < lease.lost && lease.lost < until ? lease.lost : until;
    for (uint32_t i = 0; i < tails.count; i++)
      if (tails.ended[i] > tails_seen && tails.ended[i] < next)
        next = tails.ended[i];
    if (tails_at(&tails, next) != tails_at(&tails, tails_seen))
      gs_meter_turn(&meter, tails_at(&tails, next), next);
  }
}

void regain(void) {
  if (foreign == FOREIGN_YIELDS)
    notice_loss();
  now += REVOKE + (now - lease.granted >= LEASE ? chance(LEASE) : chance(WAIT_MOST));
  if (foreign == FOREIGN_TAILS) {
    notice_tails();
    notice_loss();
  }
  lease.granted = now;
  lease.tail_until = now + chance(REST_MOST);
  if (lease.tail_until < device_free) /* what is in flight was given its time beside the other when it was launched */
    lease.tail_until = device_free;
  lease.lost = now + LEASE;
  lease.idle = IDLE_LEAST + chance(chance(IDLE_MOST));
  lease.word += 2;
  lease.noticed_tail = lease.noticed_loss = false;
  tails_begin(&tails, now, lease.lost);
  tails_seen = now;
  if (metered)
    gs_meter_turn(&meter, foreign_at(now), now);
}

void notice(void) {
  const uint64_t change[] = {0, SLICE, LEASE + GAP};
  if (foreign == SIBLINGS)
    report(now);
  if (foreign == ALONE || foreign == SIBLINGS)
    return;
  if (foreign == FOREIGN_TAILS)
    notice_tails();
  if (yields()) {
    if (foreign == FOREIGN_YIELDS && !lease.noticed_tail && now >= lease.tail_until + NOTICE) {
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

static void draw_tails(void) {
  static const uint64_t lengths[] = {20000, 50000, 1000000, 5000000, 20000000};
  memset(&tails, 0, sizeof tails);
  seed = first_seed;
  tails.count = 1 + (uint32_t)chance(TAILS_MOST);
  for (uint32_t i = 0; i < tails.count; i++)
    tails.longest[i] = lengths[chance(5)];
}

void others_anew(void) {
  memset(&lease, 0, sizeof lease);
  lease.word = 1;
  noticed = 0;
  memset(&charged, 0, sizeof charged);
  memset(next_launch, 0, sizeof next_launch);
  reports = 0;
  siblings_truth = 0;
  siblings_charged = 0;
  slice_until = last_end = 0;
  draw_tails();
  meter.residents = residents();
  meter.charged = foreign == SIBLINGS ? &charged : NULL;
}
