/* The interposer's fast path on the modelled GPU: launches that repeat the previous one are only counted, and booked with
 * the next one that is booked in full, as native/interposer/time/streams/repeat.h does. */
#ifndef MODELLED_REPEATS_H
#define MODELLED_REPEATS_H

#include "modelled_gpu.h"

/* Books what was only counted. To be called before anything else is done with the queue. */
void absorb(int s);
void absorb_all(void);

/* Whether a launch is only counted; it is then. */
bool repeats(int s, uint64_t key, uint32_t word);

/* Decides whether the next launches may repeat the one just booked. word: of the lease; room: left of the bound. */
void repeat_from(int s, uint64_t key, uint32_t word, double room);

/* Whether a wait that began at `began` and ends now is so short that the meter is not told of it. */
bool wait_is_short(int s, uint64_t began);

/* No launch counts as a repetition of an earlier one. */
void forget_repeats(int s);

#endif
