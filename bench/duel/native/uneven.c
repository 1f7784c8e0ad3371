/* Kernels of one function whose lengths differ, so that an estimate of the next one is wrong. */
#include "duel.h"

/* `count` short kernels, a long one, and a wait for all of them. */
static void uneven(unsigned count, uint64_t brief, uint64_t length) {
  CUstream stream = new_stream();
  begin();
  for (;;) {
    for (unsigned i = 0; i < count; i++)
      spin(stream, brief);
    spin(stream, length);
    MUST(cuStreamSynchronize(stream));
  }
}

static void uneven_20_30ms(void) { uneven(20, 2 * US, 30 * MS); }
static void uneven_3_1ms(void) { uneven(3, 50 * US, MS); }
static void uneven_10_2ms(void) { uneven(10, 100 * US, 2 * MS); }
static void uneven_20_500us(void) { uneven(20, 20 * US, 500 * US); }

/* The first launch on each stream is long, and no stream gets a second one. */
static void first_long(void) {
  enum { STREAMS = 400 };
  static CUstream stream[STREAMS];
  for (int i = 0; i < STREAMS; i++)
    stream[i] = new_stream();
  begin();
  for (unsigned long i = 0;; i++) {
    spin(stream[i % STREAMS], 5 * MS);
    MUST(cuStreamSynchronize(stream[i % STREAMS]));
    MUST(cuStreamDestroy_v2(stream[i % STREAMS]));
    stream[i % STREAMS] = new_stream();
  }
}

/* Thousands of short kernels teach the estimate, then one takes a quarter of a second. */
static void taught(void) {
  CUstream stream = new_stream();
  begin();
  for (;;) {
    for (int i = 0; i < 2000; i++)
      spin(stream, 2 * US);
    MUST(cuStreamSynchronize(stream));
    spin(stream, 250 * MS);
    MUST(cuStreamSynchronize(stream));
  }
}

/* Never the same grid twice: the estimate of this function and shape is always that of a stranger. */
static void jitter(void) {
  CUstream stream = new_stream();
  uint64_t ns = 20 * MS;
  void *arguments[] = {&ns};
  begin();
  for (unsigned i = 0;; i++) {
    MUST(cuLaunchKernel(duel.spin, 1 + i % 1000000, 1 + i % 7, 1, 32, 1, 1, 0, stream, arguments, NULL));
    MUST(cuStreamSynchronize(stream));
  }
}

/* Heavy tail: most kernels are short, one in a hundred takes 40 ms, in no order that could be learned. */
static void tail(void) {
  CUstream stream = new_stream();
  uint64_t random = 88172645463325252u;
  begin();
  for (unsigned long i = 1;; i++) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    spin(stream, random % 100 == 0 ? 40 * MS : 10 * US);
    if (i % 16 == 0)
      MUST(cuStreamSynchronize(stream));
  }
}

/* A call that takes longer is one of a launch that was measured: short kernels until eight were, long ones until one is.
 * Nobody asks when they are done. */
static void watched(void) {
  enum { HITS = 8, LONGER = 3 * US };
  CUstream stream = new_stream();
  double usual = 5 * US;
  unsigned seen = 0;
  bool lengthy = false;
  begin();
  for (;;) {
    uint64_t ns = lengthy ? 60 * US : 10 * US, called = now_ns(), until;
    spin(stream, ns);
    uint64_t took = now_ns() - called;
    if ((double)took < 3 * usual)
      usual += ((double)took - usual) / 50;
    seen += (double)took > usual + LONGER;
    if (seen == (lengthy ? 1 : HITS)) {
      lengthy = !lengthy;
      seen = 0;
    }
    for (until = now_ns() + ns + 2 * US; now_ns() < until;) {
    }
  }
}

const struct evasion uneven_evasions[] = {
    {.name = "uneven-20-30ms", .about = "20 kernels of 2 us, one of 30 ms, a wait", .run = uneven_20_30ms},
    {.name = "uneven-3-1ms", .about = "3 kernels of 50 us, one of 1 ms, a wait", .run = uneven_3_1ms},
    {.name = "uneven-10-2ms", .about = "10 kernels of 100 us, one of 2 ms, a wait", .run = uneven_10_2ms},
    {.name = "uneven-20-500us", .about = "20 kernels of 20 us, one of 0.5 ms, a wait", .run = uneven_20_500us},
    {.name = "first-long", .about = "a stream's first launch is long, and its last", .run = first_long},
    {.name = "taught",
     .about = "2,000 kernels of 2 us teach the estimate, then one of 250 ms",
     .run = taught,
     .seconds = 10},
    {.name = "grid-jitter", .about = "20 ms kernels, each with a grid of its own", .run = jitter},
    {.name = "watched", .about = "10 us kernels while measured ones are near, then of 60 us", .run = watched},
    {.name = "heavy-tail", .about = "10 us kernels, one in a hundred of 40 ms", .run = tail},
    {0},
};
