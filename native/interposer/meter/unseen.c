/* A program may learn that its work is done without a call that the interposer sees: the device writes to memory, a
 * host function runs, an undocumented call waits. If its launches then take longer than estimated, the device is taken
 * for idle while it works. So after a pause in which nobody saw that the stream was idle, launches are chosen at random
 * for a while, and get a mark behind them. How long a launch takes is settled before the program can know whether it
 * was chosen. */
#include "interposer/meter/functions.h"

enum {
  PACE_NS = 10000000, /* the launch interval is averaged over at least this time, pauses included, */
  PACED = 16          /* and over at least this many launches */
};

void gs_meter_count(struct gs_meter *meter, uint64_t now, uint32_t n) {
  if (meter->counted > 0 && now > meter->counted)
    meter->rushed += now - meter->counted < GS_METER_SAMPLE_NS ? now - meter->counted : GS_METER_SAMPLE_NS;
  meter->counted = now;
  meter->launches += n;
  if (now - meter->paced < PACE_NS || meter->launches < PACED)
    return;
  meter->pace = (double)(now - meter->paced) / meter->launches;
  meter->rush = (double)meter->rushed / meter->launches;
  meter->paced = now;
  meter->rushed = meter->launches = 0;
}

static double chance(struct gs_meter *meter, uint64_t now) { /* 0 to 1 */
  meter->choice = meter->choice * 6364136223846793005u + 1442695040888963407u + now;
  return (double)(meter->choice >> 32) / UINT32_MAX;
}

bool gs_meter_by_chance(struct gs_meter *meter, uint64_t now, uint32_t n, uint64_t every) {
  return chance(meter, now) * (double)every < n * meter->rush;
}

uint32_t gs_meter_unchosen(struct gs_meter *meter, struct gs_queue *queue, uint64_t now, uint32_t n) {
  if (now >= meter->doubted && !queue->check)
    return n;
  double every = gs_meter_check_every(meter);
  while (!queue->check && queue->unchosen < n) {
    queue->check = chance(meter, now) * every < meter->pace;
    queue->unchosen += !queue->check;
  }
  return queue->unchosen < n ? queue->unchosen : n;
}

bool gs_meter_take_choice(struct gs_meter *meter, struct gs_queue *queue, uint64_t now) {
  bool chosen = gs_meter_unchosen(meter, queue, now, 1) == 0;
  if (chosen)
    queue->check = false;
  else
    queue->unchosen -= queue->unchosen > 0;
  return chosen;
}
