/* Captures that stay open while work is submitted elsewhere. */
#include "duel.h"

static void held_open(CUstreamCaptureMode mode) {
  CUstream captured = new_stream(), stream = new_stream();
  MUST(cuStreamBeginCapture_v2(captured, mode));
  begin();
  for (;;) {
    spin(stream, 10 * MS);
    /* queries and waits of other streams are legal in a capture of the relaxed kind alone */
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED)
      MUST(cuStreamSynchronize(stream));
  }
}

static void open_relaxed(void) { held_open(CU_STREAM_CAPTURE_MODE_RELAXED); }
static void open_thread(void) { held_open(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL); }
static void open_global(void) { held_open(CU_STREAM_CAPTURE_MODE_GLOBAL); }

/* 200 at once, ended again, and 50 that stay. */
static void many(void) {
  enum { CAPTURES = 200, STAY = 50 };
  CUstream stream = new_stream();
  static CUstream captured[CAPTURES];
  CUgraph graph;
  for (int i = 0; i < CAPTURES; i++) {
    captured[i] = new_stream();
    MUST(cuStreamBeginCapture_v2(captured[i], CU_STREAM_CAPTURE_MODE_RELAXED));
    spin(captured[i], US);
  }
  for (int i = STAY; i < CAPTURES; i++)
    MUST(cuStreamEndCapture(captured[i], &graph));
  begin();
  flood(duel.spin, stream, 10 * MS, 8);
}

const struct evasion capture_evasions[] = {
    {.name = "capture-open-relaxed",
     .about = "a relaxed capture stays open, work in another stream",
     .run = open_relaxed},
    {.name = "capture-open-thread",
     .about = "a thread-local capture stays open, work in another stream",
     .run = open_thread},
    {.name = "capture-open-global", .about = "a global capture stays open, work in another stream", .run = open_global},
    {.name = "captures-200", .about = "200 captures at once, 50 stay open", .run = many},
    {0},
};
