/* What items do when they start and when they complete, and the contexts that this makes unusable. */
#include "sim/model/model.h"

static unsigned pending;            /* items in all streams that have not taken effect */
static __thread unsigned in_effect; /* 1: this thread is running the effect of one of them */
static struct sim_ctx *acting;      /* the context of the item whose effect is running; under sim_lock */

bool sim_context_faults;

bool sim_idle(void) { return __atomic_load_n(&pending, __ATOMIC_ACQUIRE) == in_effect; }

void sim_pending_add(void) { __atomic_add_fetch(&pending, 1, __ATOMIC_RELEASE); }

void sim_effect(struct sim_item *item, void (*effect)(void *), bool done) {
  in_effect = done; /* it may free memory */
  acting = sim_ctx_owner(item->stream->ctx);
  if (effect && (item->resource != SIM_COMPUTE || sim_effect_sound()))
    effect(item->payload);
  acting = NULL;
  in_effect = 0;
  if (done)
    __atomic_sub_fetch(&pending, 1, __ATOMIC_RELEASE);
}

const struct sim_ctx *sim_effect_ctx(void) { return acting; }

bool sim_effect_sound(void) { return acting->fault == CUDA_SUCCESS; }

void sim_effect_illegal(void) {
  struct sim_reply reply;
  if (acting->fault)
    return;
  __atomic_store_n(&acting->fault, CUDA_ERROR_ILLEGAL_ADDRESS, __ATOMIC_RELEASE);
  __atomic_store_n(&sim_context_faults, true, __ATOMIC_RELEASE);
  sim_call(SIM_ILLEGAL, acting->device, 0, &reply, NULL, 0);
}
