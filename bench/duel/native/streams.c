/* Streams and contexts that are not the usual ones. */
#include "duel.h"

/* A CUkernel, launched into a stream of a context while another is current. */
static void foreign_context(void) {
  CUcontext other;
  CUlibrary library;
  CUkernel kernel;
  CUstream stream = new_stream();
  MUST(cuLibraryLoadData(&library, program(), NULL, NULL, 0, NULL, NULL, 0));
  MUST(cuLibraryGetKernel(&kernel, library, "spin_ns"));
  MUST(cuCtxCreate_v2(&other, 0, 0));
  MUST(cuCtxSetCurrent(other));
  begin();
  for (unsigned long i = 1;; i++) {
    spin_as((CUfunction)kernel, stream, 10 * MS);
    if (i % 8 == 0)
      MUST(cuStreamSynchronize(stream));
  }
}

/* The same with no context current at all, where the driver allows it. */
static void no_context(void) {
  CUlibrary library;
  CUkernel kernel;
  CUstream stream = new_stream();
  uint64_t ns = 10 * MS;
  void *arguments[] = {&ns};
  MUST(cuLibraryLoadData(&library, program(), NULL, NULL, 0, NULL, NULL, 0));
  MUST(cuLibraryGetKernel(&kernel, library, "spin_ns"));
  MUST(cuCtxSetCurrent(NULL));
  begin();
  for (;;) {
    MUST(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    MUST(cuStreamSynchronize(stream));
  }
}

/* More streams than any table expects, all with work. */
static void many_streams(void) {
  enum { STREAMS = 3000 };
  static CUstream stream[STREAMS];
  for (int i = 0; i < STREAMS; i++) {
    stream[i] = new_stream();
    spin(stream[i], US);
  }
  wait_all();
  begin();
  for (unsigned long i = 0;; i++) {
    spin(stream[STREAMS - 1 - i % 500], 5 * MS);
    if (i % 4 == 3)
      MUST(cuStreamSynchronize(stream[STREAMS - 1 - i % 500]));
  }
}

static void many_contexts(void) {
  enum { CONTEXTS = 100 };
  static CUcontext context[CONTEXTS];
  static CUfunction function[CONTEXTS];
  for (int i = 0; i < CONTEXTS; i++) {
    CUmodule module;
    MUST(cuCtxCreate_v2(&context[i], 0, 0));
    MUST(cuModuleLoadData(&module, program()));
    function[i] = spin_of(module, "spin_ns");
    spin_as(function[i], NULL, US);
    wait_all();
  }
  begin();
  for (unsigned long i = 0;; i++) {
    int last = CONTEXTS - 1 - (int)(i % 20);
    MUST(cuCtxSetCurrent(context[last]));
    spin_as(function[last], NULL, 5 * MS);
    wait_all();
  }
}

const struct evasion stream_evasions[] = {
    {.name = "foreign-context",
     .about = "a CUkernel into a stream of a context that is not current",
     .run = foreign_context},
    {.name = "no-context", .about = "a CUkernel while no context is current", .run = no_context},
    {.name = "many-streams", .about = "3,000 live streams with work", .run = many_streams},
    {.name = "many-contexts", .about = "100 live contexts with work", .run = many_contexts},
    {0},
};
