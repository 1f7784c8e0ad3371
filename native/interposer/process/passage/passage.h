/* Keeps calls apart from a move of memory. In grants that lend idle memory, gpushare copies the program's memory to the
 * host and unmaps it, and later brings it back at the same addresses (residency/). A call that makes the driver touch
 * device memory, or that changes what a move relies on, must not run meanwhile.
 *
 * Calls that submit work of the device are stopped by the gate, and copies and allocations here. A thread is "inside"
 * from before it looks at `state` until the driver has returned; the mover writes `state` and then waits until nobody is
 * inside, so one of the two sees the other. */
#ifndef GPUSHARE_PASSAGE_H
#define GPUSHARE_PASSAGE_H

#include "interposer/process/process.h"

enum gs_passage_state {
  GS_OPEN = 0,
  /* The same, but copies are being made ahead, or are there: whoever passes makes it GS_OPEN, and the copies are void. */
  GS_WATCHED = 1,
  GS_MOVING = 2, /* nobody passes */
  GS_AWAY = 3    /* memory is hosted: calls that need it wait, others pass */
};

/* A thread's launches that take the shortest way (time/streams/repeat.h) are inside while its word is not 0. */
struct __attribute__((aligned(64))) gs_launch_word {
  const void *thread; /* its gs_self; NULL: free */
  uint32_t inside;    /* written by that thread only */
};
enum { GS_LAUNCH_WORDS = 1024 };

struct gs_passage {
  uint32_t state;      /* futex; enum gs_passage_state. Written by the mover, except that a passer may end GS_WATCHED */
  uint32_t inside;     /* number of threads inside */
  uint32_t wants;      /* threads that wait for hosted memory */
  uint32_t calls;      /* futex of the mover: + 1 when there is something for it to do */
  uint32_t unseen;     /* 1: work was submitted into a stream that has no place, so nobody knows when it ends */
  uint32_t piece;      /* lock: held by the mover while it copies a piece ahead */
  const void *last;    /* gs_self of the thread that runs exit handlers; NULL: none does */
  uint32_t last_wants; /* 1: it has waited for hosted memory */
  uint32_t launch_lock;
  uint32_t word; /* the residency word at the start, for the mover; constant */
  /* the residency word under which memory has come back although the word says GS_HOSTED, for lack of a daemon; 0: none */
  uint32_t returned;
  struct gs_launch_word launch[GS_LAUNCH_WORDS];
};

/* NULL where the grant keeps its memory. */
static inline struct gs_passage *gs_passage(void) { return gs_process->passage; }

/* To be called when this process has joined. False: out of memory. */
bool gs_passage_start(void);

/* Around a driver call that touches device memory. Waits while memory moves or is hosted. May be nested; an end without a
 * begin does nothing. Not around a call that waits in the gate, which stops submissions itself. */
void gs_touch_enter(struct gs_passage *passage);
void gs_passage_leave(struct gs_passage *passage);
static inline void gs_touch_begin(void) {
  if (GS_UNLIKELY(gs_passage() != NULL))
    gs_touch_enter(gs_passage());
}
static inline void gs_touch_end(void) {
  if (GS_UNLIKELY(gs_passage() != NULL))
    gs_passage_leave(gs_passage());
}

/* For how long a call waits that the program may be refused: {0} as it begins. */
struct gs_patience {
  uint64_t until;     /* gs_now; 0: it has not waited yet */
  uint32_t room_seen; /* how often in a row the driver refused, and the device then had room */
};
/* The ns that are left of `allocation_wait_ms`, of which the first such question is the beginning. 0: none. */
uint64_t gs_patience_left(struct gs_patience *patience);

/* gs_touch_begin for a call that the program may be refused. False: patience is over, and the thread is not inside. */
bool gs_touch_begin_for(struct gs_patience *patience);

/* For a thread inside that has to wait for something else: meanwhile it is not inside. gs_passage_step_out returns whether
 * it was, gs_passage_step_in takes that; with `waits` false it comes in although memory is away, only to leave. */
bool gs_passage_step_out(void);
void gs_passage_step_in(bool inside, bool waits);

/* Around a call that changes what a move relies on: which allocations, contexts and captures there are. Waits while
 * memory moves, but not while it is hosted. */
void gs_settled_enter(struct gs_passage *passage);
static inline void gs_settled_begin(void) {
  if (GS_UNLIKELY(gs_passage() != NULL))
    gs_settled_enter(gs_passage());
}
static inline void gs_settled_end(void) { gs_touch_end(); }

/* Whether no thread is inside; with the passage closed (GS_MOVING), none comes. */
bool gs_none_inside(void);

/* Notes that a thread wants hosted memory, which wakes the mover; to be called again after each wait. */
void gs_memory_wanted(struct gs_passage *passage);
/* Wakes the mover. */
void gs_mover_call(struct gs_passage *passage);

/* A submission passes: ends GS_WATCHED. False: memory moves or is hosted. */
bool gs_submission_passes(struct gs_passage *passage);

/* The calling thread's word, NULL if there is none left. */
uint32_t *gs_launch_word(void);

#endif
