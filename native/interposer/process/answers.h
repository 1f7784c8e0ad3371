/* Counts what a program would wait for if its device were far away: calls whose answer it needs, and bytes that it
 * copies to and from the device. For predictions (gpushare/policy/remote/predict.py) and nothing else; never on the path
 * of a launch.
 *
 * Which calls: those that return when work is done, and those that return something which only the driver knows: memory,
 * contexts, programs and their functions, what memory is free. Not those that are sent and forgotten, nor what a carrier
 * knows by itself: attributes of devices and pointers, which context is current, whether a stream is being captured. */
#ifndef GPUSHARE_ANSWERS_H
#define GPUSHARE_ANSWERS_H

#include "interposer/process/process.h"

static inline struct gs_slot *gs_slot_counting(void) {
  return GS_LIKELY(__atomic_load_n(&gs_process->joined, __ATOMIC_ACQUIRE) == GS_JOINED) ? gs_process->slot : NULL;
}

/* The program got an answer. That work is not ready is none to wait for: who asks again and again waits for the work,
 * and would ask less often where asking takes longer. */
static inline void gs_answered(CUresult result) {
  struct gs_slot *slot = gs_slot_counting();
  if (slot && result != CUDA_ERROR_NOT_READY)
    __atomic_fetch_add(&slot->sync_calls, 1, __ATOMIC_RELAXED);
}

/* Bytes went to the device or came from it. */
static inline void gs_copied(bool in, uint64_t bytes) {
  struct gs_slot *slot = gs_slot_counting();
  if (slot)
    __atomic_fetch_add(in ? &slot->host_bytes_in : &slot->host_bytes_out, bytes, __ATOMIC_RELAXED);
}

#endif
