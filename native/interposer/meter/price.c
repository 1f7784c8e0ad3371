/* What measuring costs the program, and how much of that is allowed. With PyTorch on an H200 a mark takes 10 us, of the
 * 10 to 30 us between two launches: an event is recorded, queried and read, with none of that in the caches. */
#include "interposer/meter/functions.h"

enum {
  STEP = 16,           /* steps of 1/STEP towards the median: how much longer than usual a call took does not matter, */
  AT_FIRST_NS = 10000, /* nor that the first thread that called lost its processor */
  MOST_NS = 40000      /* upper bound: a program that makes the driver slow is measured all the same */
};

static double usually(double usual, double ns) {
  if (usual == 0)
    return ns < AT_FIRST_NS ? ns : AT_FIRST_NS;
  usual += (ns > usual ? usual : -usual) / STEP;
  return usual < MOST_NS ? usual : MOST_NS;
}

void gs_meter_surprise(struct gs_meter *meter, uint64_t now, double missed, double in_all) {
  double window = missed * GS_METER_WORTH;
  uint64_t until = now + (window < GS_METER_CAREFUL_NS ? (uint64_t)window : GS_METER_CAREFUL_NS);
  meter->credit += in_all / GS_METER_REWARD;
  if (meter->credit > GS_METER_CREDIT_NS)
    meter->credit = GS_METER_CREDIT_NS;
  if (meter->careful < until)
    __atomic_store_n(&meter->careful, until, __ATOMIC_RELAXED);
  if (meter->close < until && meter->credit > 0)
    meter->close = until;
}

void gs_meter_recorded(struct gs_meter *meter, uint64_t now, double ns) {
  meter->record_ns = usually(meter->record_ns, ns);
  if (!gs_meter_close(meter, now))
    return;
  meter->credit -= gs_meter_mark_ns(meter);
  if (meter->credit > 0)
    return;
  meter->credit = 0;
  meter->close = now;
}

void gs_meter_read(struct gs_meter *meter, double ns) { meter->read_ns = usually(meter->read_ns, ns); }

void gs_meter_bracketed(struct gs_meter *meter, double ns) { meter->bracket_ns = usually(meter->bracket_ns, ns); }
