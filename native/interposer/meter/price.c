/* What measuring costs the program, and how much of it that allows. A mark takes 10 us of a program that launches every 10
 * to 30 us: recording an event, asking for it and reading it, all of which the processor's caches do not hold. */
#include "interposer/meter/functions.h"

enum {
  STEP = 16,          /* towards the median: it does not matter how much longer than usual a call took, */
  AT_FIRST_NS = 10000 /* nor that the first thread that called lost its processor */
};

static double usually(double usual, double ns) {
  if (usual == 0)
    return ns < AT_FIRST_NS ? ns : AT_FIRST_NS;
  return usual + (ns > usual ? usual : -usual) / STEP;
}

void gs_meter_surprise(struct gs_meter *meter, uint64_t now, double missed, double in_all) {
  double window = missed * GS_METER_WORTH;
  uint64_t until = now + (window < GS_METER_CAREFUL_NS ? (uint64_t)window : GS_METER_CAREFUL_NS);
  meter->credit += in_all / GS_METER_REWARD;
  if (meter->credit > GS_METER_CREDIT_NS)
    meter->credit = GS_METER_CREDIT_NS;
  if (meter->careful < until)
    __atomic_store_n(&meter->careful, until, __ATOMIC_RELAXED);
}

void gs_meter_recorded(struct gs_meter *meter, uint64_t now, double ns) {
  meter->record_ns = usually(meter->record_ns, ns);
  if (!gs_meter_careful(meter, now))
    return;
  meter->credit -= gs_meter_mark_ns(meter);
  if (meter->credit > 0)
    return;
  meter->credit = 0;
  __atomic_store_n(&meter->careful, now, __ATOMIC_RELAXED);
}

void gs_meter_read(struct gs_meter *meter, double ns) { meter->read_ns = usually(meter->read_ns, ns); }

void gs_meter_bracketed(struct gs_meter *meter, double ns) { meter->bracket_ns = usually(meter->bracket_ns, ns); }
