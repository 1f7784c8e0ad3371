/* The part of the meter that handles instants: the union of the work of all streams, and the mapping between clocks. */
#include <string.h>

#include "interposer/meter/charged.h"
#include "interposer/meter/functions.h"

/* ---- union of what all streams did ---- */

/* Makes place before the first piece: the first two become one, with the time between them, as dense as they are
 * together. What is said of that time later is counted in part, and no more in all than the time. */
static void join_first_two(struct gs_meter *meter) {
  struct gs_piece *first = &meter->piece[0], *second = first + 1;
  double busy =
      first->density * (double)(first->to - first->from) + second->density * (double)(second->to - second->from);
  *first = (struct gs_piece){first->from, second->to, busy / (double)(second->to - first->from)};
  meter->pieces--;
  memmove(second, second + 1, (meter->pieces - 1) * sizeof *second);
}

static void insert_piece(struct gs_meter *meter, uint32_t at, uint64_t from, uint64_t to, double density) {
  if (at > 0 && meter->piece[at - 1].to == from && meter->piece[at - 1].density == density) {
    meter->piece[at - 1].to = to;
    return;
  }
  if (meter->pieces == GS_METER_PIECES) {
    if (at == 0) {
      join_first_two(meter);
    } else {
      meter->forgotten = meter->piece[0].to;
      memmove(&meter->piece[0], &meter->piece[1], (GS_METER_PIECES - 1) * sizeof meter->piece[0]);
      meter->pieces--;
      at--;
    }
  }
  memmove(&meter->piece[at + 1], &meter->piece[at], (meter->pieces - at) * sizeof meter->piece[0]);
  meter->piece[at] = (struct gs_piece){from, to, density};
  meter->pieces++;
}

/* What is new to this process may be known to others of the grant. */
static double count(const struct gs_meter *meter, uint64_t from, uint64_t to, double density) {
  if (!meter->charged)
    return density * (double)(to - from);
  return gs_charged_add(meter->charged, from, to, density, 1.0 / meter->residents);
}

static double fill_piece(const struct gs_meter *meter, struct gs_piece *piece, double density, double most) {
  double before = piece->density;
  if (before >= most)
    return 0;
  piece->density = minimum(most, before + density);
  return count(meter, piece->from, piece->to, piece->density - before);
}

double gs_timeline_add(struct gs_meter *meter, uint64_t from, uint64_t to, double busy, double most) {
  double density, counted = 0;
  if (to <= from || busy <= 0)
    return 0;
  density = minimum(most, busy / (double)(to - from));
  if (from < meter->forgotten)
    from = meter->forgotten;
  for (uint32_t i = 0; from < to; i++) {
    if (i >= meter->pieces || to <= meter->piece[i].from) {
      counted += count(meter, from, to, density);
      insert_piece(meter, i < meter->pieces ? i : meter->pieces, from, to, density);
      break;
    }
    if (meter->piece[i].to <= from)
      continue;
    if (from < meter->piece[i].from) {
      uint64_t gap_end = meter->piece[i].from;
      counted += count(meter, from, gap_end, density);
      insert_piece(meter, i, from, gap_end, density);
      from = gap_end;
      i = (uint32_t)-1; /* places may have moved */
      continue;
    }
    if (from > meter->piece[i].from) { /* split: the left part stays as it is */
      uint64_t left = meter->piece[i].from;
      meter->piece[i].from = from;
      insert_piece(meter, i, left, from, meter->piece[i].density);
      i = (uint32_t)-1;
      continue;
    }
    if (to < meter->piece[i].to) {
      uint64_t right_end = meter->piece[i].to;
      double right = meter->piece[i].density;
      meter->piece[i].to = to;
      counted += fill_piece(meter, &meter->piece[i], density, most);
      insert_piece(meter, i + 1, to, right_end, right);
      break;
    }
    from = meter->piece[i].to;
    counted += fill_piece(meter, &meter->piece[i], density, most);
  }
  meter->busy += counted;
  return counted;
}

/* ---- who was on the device ---- */

void gs_meter_turn(struct gs_meter *meter, uint32_t others, uint64_t from) {
  /* Work that was expected to begin later than that did not. */
  while (meter->turns > 0 && meter->turn[(meter->turns - 1) % GS_METER_TURNS].from >= from)
    meter->turns--;
  /* read without the lock, to decide whether to call this */
  __atomic_store_n(&meter->others, others, __ATOMIC_RELAXED);
  if (meter->turns > 0 && meter->turn[(meter->turns - 1) % GS_METER_TURNS].others == others)
    return;
  meter->turn[meter->turns++ % GS_METER_TURNS] = (struct gs_turn){from, others};
}

double gs_meter_resident(const struct gs_meter *meter, uint64_t from, uint64_t to, uint32_t residents) {
  uint32_t most = meter->turns < GS_METER_TURNS ? meter->turns : GS_METER_TURNS;
  uint32_t ours = residents > 1 ? residents : 1;
  double sum = 0;
  for (uint32_t k = 1; k <= most && from < to; k++) {
    const struct gs_turn *turn = &meter->turn[(meter->turns - k) % GS_METER_TURNS];
    uint64_t begin = turn->from > from ? turn->from : from;
    if (begin >= to)
      continue;
    if (turn->others != GS_METER_AWAY)
      sum += turn->others > 0 ? (double)(to - begin) / (ours + turn->others) : (double)(to - begin);
    to = begin;
  }
  return from < to ? sum + (double)(to - from) : sum;
}

double gs_meter_exclusive(const struct gs_meter *meter, uint64_t from, uint64_t to) {
  /* time with others counts half in one, and whole in the other */
  double time = to > from ? (double)(to - from) : 0, twice = 2 * gs_meter_resident(meter, from, to, 1);
  return twice > time ? twice - time : 0;
}

/* ---- clocks ---- */

void gs_clock_not_before(struct gs_clock *clock, uint64_t device, uint64_t host) {
  int64_t least = (int64_t)(host - device);
  if (!clock->set || clock->offset < least)
    clock->offset = least;
  clock->set = true;
}

void gs_clock_not_after(struct gs_clock *clock, uint64_t device, uint64_t host) {
  int64_t most = (int64_t)(host - device);
  if (!clock->set || clock->offset > most)
    clock->offset = most;
  clock->set = true;
}

uint64_t gs_clock_host(const struct gs_clock *clock, uint64_t device) { return device + (uint64_t)clock->offset; }
