#include "arbiter/thread/claims.h"

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t gs_claim_sum(uint64_t a, uint64_t b) {
  a = least(a, INT64_MAX);
  return b < INT64_MAX - a ? a + b : INT64_MAX;
}

static uint64_t since(uint64_t now, uint64_t then) { return now > then ? now - then : 0; }

/* Returns the bit of the word if it is above the bound, and lowers it to `believed`, which is at most the bound. */
static uint32_t above(uint64_t *word, uint64_t bound, uint64_t believed, uint32_t number) {
  uint32_t lie = *word > bound ? UINT32_C(1) << number : 0;
  *word = least(*word, believed);
  return lie;
}

static uint32_t above32(uint32_t *word, uint32_t bound, uint32_t number) {
  uint64_t wide = *word;
  uint32_t lie = above(&wide, bound, bound, number);
  *word = (uint32_t)wide;
  return lie;
}

bool gs_claim_by(const struct gs_claim_bounds *bounds, const struct gs_claim_words *words) {
  uint64_t age = since(bounds->now_ns, bounds->since_ns);
  return words->busy_ns <= age && words->launches <= age && words->collectives <= age;
}

uint32_t gs_claim_believe(struct gs_claim *claim, const struct gs_claim_bounds *bounds, struct gs_claim_words *words) {
  uint64_t age = least(since(bounds->now_ns, bounds->since_ns), INT64_MAX);
  uint64_t old = gs_claim_sum(age, GS_CLAIM_SLACK_NS);
  uint64_t capacity = bounds->capacity_bytes ? least(bounds->capacity_bytes, INT64_MAX) : INT64_MAX;
  uint64_t books = capacity > INT64_MAX / GS_CLAIM_MEMORY_FACTOR ? INT64_MAX : capacity * GS_CLAIM_MEMORY_FACTOR;
  uint32_t lies = (words->state != GS_SLOT_LIVE) << GS_WORD_STATE |
                  (uint32_t)(words->generation != bounds->generation) << GS_WORD_GENERATION |
                  (uint32_t)(words->pid != bounds->pid) << GS_WORD_PID |
                  (uint32_t)(words->busy_ns < claim->busy_ns) << GS_WORD_BUSY;
  words->state = GS_SLOT_LIVE;
  words->generation = bounds->generation;
  words->pid = bounds->pid;
  lies |= above(&words->busy_ns, old, old, GS_WORD_BUSY);
  lies |= above(&words->memory_bytes, books, capacity, GS_WORD_MEMORY);
  lies |= above(&words->queue_end_ns, INT64_MAX, INT64_MAX, GS_WORD_QUEUE_END);
  /* no launch takes less than a nanosecond to make */
  lies |= above(&words->launches, old, old, GS_WORD_LAUNCHES);
  lies |= above(&words->collectives, old, old, GS_WORD_COLLECTIVES);
  lies |= above32(&words->waiting, GS_CLAIM_THREADS_MAX, GS_WORD_WAITING);
  lies |= above32(&words->inflight, INT32_MAX, GS_WORD_INFLIGHT);
  if (words->busy_ns < claim->busy_ns)
    words->busy_ns = claim->busy_ns;
  claim->busy_ns = words->busy_ns;
  if (words->launches > claim->launches)
    claim->launches = words->launches;
  lies &= ~claim->lies;
  claim->lies |= lies;
  return lies;
}

uint64_t gs_claim_value(const struct gs_claim_words *words, uint32_t word) {
  switch ((enum gs_word)word) {
    case GS_WORD_STATE: return words->state;
    case GS_WORD_GENERATION: return words->generation;
    case GS_WORD_PID: return (uint32_t)words->pid;
    case GS_WORD_MEMORY: return least(words->memory_bytes, INT64_MAX);
    case GS_WORD_BUSY: return least(words->busy_ns, INT64_MAX);
    case GS_WORD_QUEUE_END: return least(words->queue_end_ns, INT64_MAX);
    case GS_WORD_LAUNCHES: return least(words->launches, INT64_MAX);
    case GS_WORD_COLLECTIVES: return least(words->collectives, INT64_MAX);
    case GS_WORD_WAITING: return words->waiting;
    case GS_WORD_INFLIGHT: return words->inflight;
    case GS_WORDS: break;
  }
  return 0;
}

void gs_metered_add(struct gs_metered *metered, uint64_t sum_ns, bool marked, bool held, uint64_t now_ns) {
  if (metered->seen_ns == 0) {
    metered->begun_ns = metered->seen_ns = now_ns;
    metered->base_ns = metered->busy_ns = metered->sum_ns = sum_ns;
    return;
  }
  uint64_t passed = since(now_ns, metered->seen_ns), grown = since(sum_ns, metered->sum_ns);
  if (marked && held && grown < passed)
    grown = passed;
  metered->sum_ns = sum_ns;
  metered->seen_ns += passed;
  uint64_t most = gs_claim_sum(metered->base_ns, gs_claim_sum(since(now_ns, metered->begun_ns), GS_CLAIM_SLACK_NS));
  uint64_t busy = least(gs_claim_sum(metered->busy_ns, grown), most);
  if (busy > metered->busy_ns)
    metered->busy_ns = busy;
}

uint64_t gs_claim_memory(uint64_t sum_bytes, bool marked, uint64_t limit_bytes, uint64_t capacity_bytes) {
  uint64_t bytes = marked && sum_bytes < limit_bytes ? limit_bytes : sum_bytes;
  return least(least(bytes, capacity_bytes ? capacity_bytes : INT64_MAX), INT64_MAX);
}
