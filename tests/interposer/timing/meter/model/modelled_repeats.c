#include "interposer/meter/repeats.h" /* before `meter` is a variable */

#include <string.h>

#include "modelled_repeats.h"

static struct {
  uint64_t key;
  struct gs_function *function;
  uint32_t word, left, pending;
  uint64_t booked;           /* when a launch was last booked in full */
  uint64_t soon, short_wait; /* as of struct gs_repeat, in ns */
  uint32_t since;            /* number of launches since then */
} repeat[STREAMS];

void absorb(int s) {
  if (repeat[s].pending == 0)
    return;
  gs_meter_repeated(&meter, &queues[s], repeat[s].function, repeat[s].key, repeat[s].pending);
  repeat[s].pending = 0;
}

void absorb_all(void) {
  for (int s = 0; s < STREAMS; s++)
    absorb(s);
}

bool repeats(int s, uint64_t key, uint32_t word) {
  if (repeat[s].left == 0 || repeat[s].key != key || repeat[s].word != word ||
      now > repeat[s].booked + GS_REPEAT_WITHIN_NS)
    return false;
  repeat[s].left--;
  repeat[s].pending++;
  repeat[s].since++;
  return true;
}

void repeat_from(int s, uint64_t key, uint32_t word, double room) {
  struct gs_function *function = gs_meter_function(&meter, key);
  bool again = repeat[s].key == key;
  double interval = (double)(now - repeat[s].booked) / (repeat[s].since + 1);
  repeat[s].booked = now;
  repeat[s].since = 0;
  repeat[s].key = key;
  repeat[s].function = function;
  repeat[s].word = word;
  repeat[s].left = 0;
  if (!again || gs_function_unknown(function))
    return;
  repeat[s].soon = function->estimate < GS_REPEAT_SHORT_NS ? 0 : now + GS_REPEAT_NS;
  repeat[s].short_wait = (uint64_t)gs_repeat_short_wait(function);
  repeat[s].left = gs_repeats_after(&meter, &queues[s], function, interval, room);
}

bool wait_is_short(int s, uint64_t began) {
  return repeat[s].left > 0 && meter.marks == 0 && !queues[s].sampled && now - began < repeat[s].short_wait &&
         (repeat[s].soon == 0 || now < repeat[s].soon);
}

void forget_repeats(int s) { memset(&repeat[s], 0, sizeof repeat[s]); }
