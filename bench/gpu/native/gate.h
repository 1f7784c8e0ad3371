/* A gate inside the program, without any interposer: two processes share this page and a third, token.c, hands the
 * device to and fro. It exists to compare policies, not to enforce anything. */
#ifndef BENCH_GATE_H
#define BENCH_GATE_H

#include <stdbool.h>
#include <stdint.h>

enum { GATE_SIDES = 2, GATE_BOUND_NS = 2000000 /* work in flight while the other side is active */ };

struct gate_side {
  uint32_t active;    /* runs at all */
  uint32_t allowed;   /* odd: may submit; + 1 at each change; a futex */
  uint32_t waiting;   /* stands at the gate */
  uint32_t drained;   /* the even word of `allowed` for which nothing is in flight any more */
  uint64_t queue_end; /* estimate of when its last work is done */
  uint32_t busy;      /* something is, or is about to be, in flight */
  uint32_t pad[23];
};

struct gate_page {
  uint32_t bounded; /* work in flight is */
  uint32_t pad[15];
  struct gate_side side[GATE_SIDES];
};

struct gate;
/* NULL path: no gate. Ends the program when the page cannot be mapped. */
struct gate *gate_open(const char *path, unsigned side);
void gate_active(struct gate *gate, bool active);
/* Before work that takes `ns` is submitted to `stream`: waits until this side may, and until the bound has room. True
 * when this side did not have the device: then everything before is done, and `end`, if not NULL, was recorded behind
 * it at once. */
bool gate_enter(struct gate *gate, void *stream, uint64_t ns, void *end);
/* After it was submitted. */
void gate_submitted(struct gate *gate, void *stream, uint64_t ns);
/* Everything is known to be done. */
void gate_idle(struct gate *gate);

struct gate_page *gate_map(const char *path);
void gate_wake(uint32_t *word);
void gate_wait(uint32_t *word, uint32_t value, unsigned us);

#endif
