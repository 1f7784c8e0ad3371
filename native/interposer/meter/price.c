/* What measuring costs the program, and how much of that is allowed. A mark takes PyTorch 10 us on an H200, of the 10 to
 * 30 us between two of its launches: an event is recorded, asked for and read, with nothing of that in the caches. */
#include "interposer/meter/functions.h"

enum {
  STEP = 16,           /* towards the median: it does not matter how much longer than usual a call took, */
  AT_FIRST_NS = 10000, /* nor that the first thread that called lost its processor */
  MOST_NS = 40000      /* a program that makes the driver slow is measured all the same */
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
