/* Kernels that use memory: what they read and write, and the fault if it is not there.
 *
 * touch_words(address, bytes, mask) exchanges each 8-byte word with its exclusive or with the mask;
 * sum_words(address, bytes, out) stores the sum of the words. Each looks at its memory twice: when the device starts it
 * and when it completes. The words are read and written at its end, if the same memory is there as at its start. */
#include <string.h>

#include "sim/memory/memory.h"
#include "sim/model/card.h"
#include "sim/program/images/image.h"

struct payload {
  enum sim_words words;
  CUdeviceptr at, out; /* out 0: none */
  uint64_t bytes, mask;
  uint64_t found, found_out; /* by begin; see sim_memory_reach */
};

static uint64_t reach(CUdeviceptr address, uint64_t bytes) {
  return sim_memory_reach(sim_effect_ctx(), address, bytes);
}

static void begin(void *data) {
  struct payload *kernel = data;
  kernel->found = reach(kernel->at, kernel->bytes);
  kernel->found_out = kernel->out ? reach(kernel->out, sizeof(uint64_t)) : 1;
  if (kernel->found == 0 || kernel->found_out == 0)
    sim_effect_illegal();
}

static void run(void *data) {
  const struct payload *kernel = data;
  unsigned char *at = (unsigned char *)(uintptr_t)kernel->at;
  uint64_t sum = 0, word;
  if (reach(kernel->at, kernel->bytes) != kernel->found || !sim_memory_present(at, kernel->bytes) ||
      (kernel->out && reach(kernel->out, sizeof sum) != kernel->found_out)) {
    sim_effect_illegal();
    return;
  }
  for (uint64_t i = 0; i < kernel->bytes; i += sizeof word) {
    memcpy(&word, at + i, sizeof word);
    sum += word;
    word ^= kernel->mask;
    if (kernel->words == SIM_TOUCHES_WORDS)
      memcpy(at + i, &word, sizeof word);
  }
  if (kernel->out)
    memcpy((void *)(uintptr_t)kernel->out, &sum, sizeof sum);
}

uint64_t sim_words_op(enum sim_words words, const uint64_t given[SIM_WORDS_ARGUMENTS], struct sim_op *op) {
  enum { ADDRESS, BYTES, THIRD };
  static __thread struct payload kernel; /* valid until the op is submitted */
  bool touches = words == SIM_TOUCHES_WORDS;
  kernel = (struct payload){.words = words,
                            .at = given[ADDRESS],
                            .bytes = given[BYTES] / sizeof(uint64_t) * sizeof(uint64_t),
                            .mask = touches ? given[THIRD] : 0,
                            .out = touches ? 0 : given[THIRD]};
  op->begin = begin;
  op->run = run;
  op->payload = &kernel;
  op->payload_bytes = sizeof kernel;
  double ns = (touches ? 2 : 1) * (double)kernel.bytes / SIM_BYTES_PER_NS;
  return ns > SIM_SHORTEST_NS ? (uint64_t)ns : SIM_SHORTEST_NS;
}
