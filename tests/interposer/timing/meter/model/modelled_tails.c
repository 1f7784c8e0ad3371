#include "modelled_tails.h"

/* Work that does not end until the lease changes hands. */
static const uint64_t endless = 1ull << 60;

/* One in this many of those who had the lease before the last holder still has a kernel on the device. */
enum { OLDER = 3 };

/* A turn of the device: one of the tails, or after them the program. */
static bool has_work(const struct tails *tails, uint32_t turn, uint64_t ns) {
  return turn == tails->count ? ns > 0 : tails->left[turn] > 0;
}

static bool next_turn(struct tails *tails, uint64_t ns) {
  for (uint32_t i = 1; i <= tails->count + 1; i++) {
    uint32_t turn = (tails->turn + i) % (tails->count + 1);
    if (!has_work(tails, turn, ns))
      continue;
    tails->turn = turn;
    tails->slice_until = tails->at + TAILS_SLICE;
    return true;
  }
  return false;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Plays until `until`, or until the program has had `ns` where that is not 0. */
static void play(struct tails *tails, uint64_t until, uint64_t ns) {
  bool asked = ns > 0;
  while (asked ? ns > 0 : tails->at < until) {
    uint64_t step = asked ? endless : until - tails->at;
    if (tails->at < tails->lost)
      step = least(step, tails->lost - tails->at);
    else if (tails->left[tails->holder] < endless / 2) {
      tails->back = tails->left[tails->holder] > 0 ? 0 : tails->at;
      tails->left[tails->holder] = endless;
    }
    if ((!has_work(tails, tails->turn, ns) || tails->at >= tails->slice_until) && !next_turn(tails, ns)) {
      tails->at += step;
      continue;
    }
    uint64_t *left = tails->turn == tails->count ? &ns : &tails->left[tails->turn];
    step = least(step, least(*left, tails->slice_until - tails->at));
    tails->at += step;
    *left -= step;
    if (tails->turn < tails->count && *left == 0)
      tails->ended[tails->turn] = tails->at;
  }
}

void tails_begin(struct tails *tails, uint64_t at, uint64_t lost) {
  if (tails->at < at)
    tails->at = at;
  tails->lost = lost;
  for (uint32_t i = 0; i < tails->count; i++) {
    tails->left[i] = i == tails->holder || chance(OLDER) == 0 ? chance(tails->longest[i]) + 1 : 0;
    tails->ended[i] = 0;
  }
  tails->holder = (uint32_t)chance(tails->count);
}

void tails_pass(struct tails *tails, uint64_t until) { play(tails, until, 0); }

/* The program keeps the device for a slice, unless it runs dry; an event in between takes less than EVENTS. */
uint64_t tails_worked(struct tails *tails, uint64_t begin, uint64_t ns) {
  enum { EVENTS = 3000 };
  bool keeps = tails->turn == tails->count && begin < tails->slice_until && begin <= tails->at + EVENTS;
  if (keeps && tails->at < begin)
    tails->at = begin;
  play(tails, begin, 0);
  play(tails, 0, ns);
  return tails->at;
}

uint32_t tails_at(const struct tails *tails, uint64_t t) {
  struct tails then = *tails;
  uint32_t found = 0;
  play(&then, t, 0);
  for (uint32_t i = 0; i < then.count; i++) {
    bool goes_on = then.left[i] > endless / 2 ? t >= then.back : then.left[i] > 0;
    found += goes_on || then.ended[i] > t || (i == then.holder && t >= then.lost);
  }
  return found;
}
