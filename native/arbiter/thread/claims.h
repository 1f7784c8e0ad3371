/* Validates what a tenant writes about itself. Pure: no clock, no shared memory. Every number of a usage page passes
 * gs_claim_believe before it is used to decide, charge or display anything.
 *
 * A process that runs the unmodified library is believed in full: it meters at most 1 ns per ns since it joined, its
 * meter does not go back, and it holds no more memory than the device has. One word beyond that is a lie, and its slot
 * is marked until it is cleared. While a slot is marked, its grant is charged as if it had used the device whenever it
 * had a lease, and as if it held all memory of its limit: an honest grant cannot have used more. */
#ifndef GS_ARBITER_THREAD_CLAIMS_H
#define GS_ARBITER_THREAD_CLAIMS_H

#ifndef GS_CFFI
#include <stdbool.h>
#include <stdint.h>

#include "arbiter/gs_arbiter.h"
#endif

enum {
  /* After a restart of the daemon the age of a process is known only to a clock tick (10 ms), and clocks are read one
   * after another. */
  GS_CLAIM_SLACK_NS = 50000000,
  /* Memory that the driver allocates for itself is estimated, so an honest process may account for more than the device
   * has, by at most this factor. */
  GS_CLAIM_MEMORY_FACTOR = 2,
  GS_CLAIM_THREADS_MAX = 4194304 /* of a machine: PID_MAX_LIMIT of Linux */
};

/* The words of a slot on one device, each loaded once. */
struct gs_claim_words {
  uint32_t state, generation;
  int32_t pid;
  uint32_t waiting, inflight;
  uint64_t memory_bytes, busy_ns, queue_end_ns, launches, collectives;
};

struct gs_claim_bounds {
  uint32_t generation; /* set by the daemon when it assigned the slot */
  int32_t pid;
  uint64_t now_ns, since_ns; /* now_ns was read after the words */
  uint64_t capacity_bytes;   /* 0: unknown */
};

/* What is remembered of a slot on one device. All zero: nothing was read yet. */
struct gs_claim {
  uint64_t busy_ns;  /* as believed; never falls */
  uint64_t launches; /* the same */
  uint32_t lies;     /* 1 << enum gs_word; 0: the slot is not marked */
};

/* Whether the words that grow with time can have been true at bounds->now_ns. */
bool gs_claim_by(const struct gs_claim_bounds *bounds, const struct gs_claim_words *words);
/* Replaces each word by its believed value. Returns the words that are newly found to be lies, as in gs_claim.lies. */
uint32_t gs_claim_believe(struct gs_claim *claim, const struct gs_claim_bounds *bounds, struct gs_claim_words *words);
/* The value of a word for the record; at most INT64_MAX. */
uint64_t gs_claim_value(const struct gs_claim_words *words, uint32_t word);

/* The metered time of a grant on one device, from the believed words of its slots. */
struct gs_metered {
  uint64_t busy_ns; /* the result: never falls, grows by no more than time passes, at most INT64_MAX */
  uint64_t sum_ns;  /* of all slots, when last read */
  uint64_t begun_ns, base_ns, seen_ns; /* when first read, sum_ns at that time, when last read */
};

/* sum_ns: of all slots and of processes that have ended. marked: a slot is marked. held: the grant holds a lease, or
 * reports that its work still runs. */
void gs_metered_add(struct gs_metered *metered, uint64_t sum_ns, bool marked, bool held, uint64_t now_ns);
/* The memory of a grant on one device: at most what the device has. sum_bytes: of all slots. */
uint64_t gs_claim_memory(uint64_t sum_bytes, bool marked, uint64_t limit_bytes, uint64_t capacity_bytes);
/* a + b, at most INT64_MAX. */
uint64_t gs_claim_sum(uint64_t a, uint64_t b);

#endif
